//! Tasks: run an operation's steps to their end, inside the range guard.

use std::sync::Arc;

use farleaf_index::IndexError;
use farleaf_index::compute::ownership::{OpGuard, RangeGuard, View};
use farleaf_index::detach::TimedOut;
use farleaf_index::detach::run_to_end;
use farleaf_pool::Session;

use super::DexTree;

/// A tree, for the tasks that are inside.
#[derive(Debug)]
struct Holder(Arc<DexTree>);

impl AsRef<RangeGuard> for Holder {
    fn as_ref(&self) -> &RangeGuard {
        self.0.ownership.guard()
    }
}

impl DexTree {
    /// Returns the ownership map as it is known here.
    pub(crate) fn view(&self) -> Arc<View> {
        self.ownership.view()
    }

    /// Fails if the tree is closed or broken.
    ///
    /// # Errors
    /// `Closed`.
    #[inline]
    pub(crate) fn check_open(&self) -> Result<(), IndexError> {
        self.ownership.check_open()
    }

    /// Breaks the tree if a step failed that must not: a change of the tree's shape has begun in remote
    /// memory, and cache and remote memory do not fit together if it stops half way.
    pub(crate) fn must_succeed<T>(&self, done: Result<T, IndexError>) -> Result<T, IndexError> {
        self.ownership.must_succeed(done)
    }

    /// Returns whether others may change a node of this range.
    pub(crate) fn crosses_bounds(&self, low: Option<&[u8]>, high: Option<&[u8]>) -> bool {
        self.ownership.crosses(low, high)
    }

    /// Returns whether merges must rest, as a range is being given away.
    pub(crate) fn merges_rest(&self) -> bool {
        self.ownership.is_moving()
    }

    /// As [`detach`](farleaf_index::detach::detach), for a task of an operation that is inside: so is the task.
    pub(crate) fn detach<T: TimedOut + 'static>(
        self: &Arc<Self>,
        session: &Session,
        task: impl Future<Output = T> + 'static,
    ) -> impl Future<Output = T> {
        let done = self.detach_within(session, task);
        async { done.await.unwrap_or_else(T::timed_out) }
    }

    /// As [`DexTree::detach`]; returns `None` if it goes on for longer than the caller waits.
    pub(crate) fn detach_within<T: 'static>(
        self: &Arc<Self>,
        session: &Session,
        task: impl Future<Output = T> + 'static,
    ) -> impl Future<Output = Option<T>> {
        run_to_end(session, Box::pin(task), self.acquire_for_task(session))
    }

    /// Runs a task that nobody waits for, inside as [`DexTree::detach`]'s. It begins no operation, and has no
    /// pin: the nodes that it deals with are those whose latches it holds.
    pub(crate) fn spawn(
        self: &Arc<Self>,
        session: &Session,
        task: impl AsyncFnOnce(Session) + 'static,
    ) {
        let inside = self.acquire_for_task(session);
        session.spawn(async move |session| {
            task(session).await;
            drop(inside);
        });
    }

    fn acquire_for_task(self: &Arc<Self>, session: &Session) -> OpGuard<Holder> {
        RangeGuard::acquire_for_task(Holder(Arc::clone(self)), session)
    }
}
