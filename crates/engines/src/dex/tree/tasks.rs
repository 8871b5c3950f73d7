//! Tasks: run an operation's steps to their end, inside the range guard.

use std::sync::Arc;

use farleaf_index::compute::ownership::{OpGuard, RangeGuard};
use farleaf_index::detach::{TimedOut, run_to_end};
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
    /// As [`detach`](farleaf_index::detach::detach), for a task of an operation that is inside: so is the task.
    pub(crate) fn detach<T: TimedOut + 'static, F: Future<Output = T> + 'static>(
        self: &Arc<Self>,
        session: &Session,
        task: impl FnOnce(Arc<Self>, Session) -> F,
    ) -> impl Future<Output = T> {
        let done = self.detach_within(session, task);
        async { done.await.unwrap_or_else(T::timed_out) }
    }

    /// As [`DexTree::detach`]; returns `None` if it goes on for longer than the caller waits.
    pub(crate) fn detach_within<T: 'static, F: Future<Output = T> + 'static>(
        self: &Arc<Self>,
        session: &Session,
        task: impl FnOnce(Arc<Self>, Session) -> F,
    ) -> impl Future<Output = Option<T>> {
        let task = Box::pin(task(Arc::clone(self), session.clone()));
        run_to_end(session, task, self.acquire_for_task(session))
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
