//! Partition: DEX's side of ownership, [`RangeOwner`]; ranges of keys have owners, and leaves one each.
//!
//! - `INV-DEX-PART-1` Every bound is the high fence of a leaf. So a leaf belongs to one partition, and
//!   no leaf is ever shared.
//! - `INV-DEX-PART-2` A node is *exclusive* to a partition if its range lies in it, by its own fences, and
//!   *shared* otherwise. Exclusive nodes are read and written by the partition's owner alone; shared
//!   ones are changed under their remote lock only.
//! - `INV-DEX-PART-3` A node that was cached as shared is taken for exclusive only once its image
//!   has been compared with remote memory, after the map gave all of its range to this compute server.

use std::sync::Arc;

use farleaf_fabric::{Incarnation, OpKind};
use farleaf_pool::Session;

use super::split::Need;
use super::walk::Seek;
use super::{Cache, Dex, Fail, Found, OpContext};
use crate::blink::remote::{Passage, TimedOut};
use crate::bnode::Kind;
use crate::change::{Change, Outcome};
use crate::compute::ownership::{OpGuard, Ownership, Partitions, Range, RangeGuard, View};
use crate::compute::{MoveError, RangeOwner};
use crate::detach::run_to_end;
use crate::{Entries, IndexError};

/// A range's way to another owner, on the giver's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoveOptions {
    /// Nodes that are written back at the same time.
    pub flush_tasks: usize,
}

impl Default for MoveOptions {
    fn default() -> Self {
        MoveOptions { flush_tasks: 1 }
    }
}

impl RangeOwner for Dex {
    fn ownership(&self) -> &Ownership {
        &self.0.ownership
    }

    fn takes_key(&self, len: usize) -> bool {
        self.0.layout().takes_key(len)
    }

    fn check_change(&self, change: &Change<'_>) -> Result<(), IndexError> {
        self.0.check_change(change)
    }

    async fn get_own(
        &self,
        session: &Session,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<bool, IndexError> {
        let _pin = session.begin(OpKind::Get).await?;
        self.0.get(session, key, value).await
    }

    async fn change_own(
        &self,
        session: &Session,
        change: &Change<'_>,
        held: &mut Vec<u8>,
    ) -> Result<Outcome, IndexError> {
        self.0.modify(session, change, held).await
    }

    async fn scan_own(
        &self,
        session: &Session,
        passage: &mut Passage<'_>,
        out: &mut Entries,
    ) -> Result<Option<usize>, IndexError> {
        self.0.scan_own(session, passage, out).await
    }

    /// Splits the leaf that has `bound` so that it ends there (`INV-DEX-PART-1`).
    async fn make_bound(&self, session: &Session, bound: &[u8]) -> Result<(), IndexError> {
        let mut restarts = OpContext::default();
        loop {
            match self.0.split(session, Need::Bound(bound.to_vec())).await {
                Ok(()) => return Ok(()),
                Err(fail) => restarts.after(fail, &self.0, session).await?,
            }
        }
    }

    /// Cost: 1 READ for each child, of inner nodes that cross `bound`, that is not cached.
    async fn heal_around(&self, session: &Session, bound: &[u8]) -> Result<(), IndexError> {
        self.0.visit_children(session, bound).await
    }

    /// Cost: 1 WRITE each.
    async fn write_back(
        &self,
        session: &Session,
        range: &Range,
        most: usize,
    ) -> Result<usize, IndexError> {
        let tasks = self.0.options.moves.flush_tasks;
        self.0.flush_range(session, range, tasks, most).await
    }

    async fn flush(&self, session: &Session) -> Result<(), IndexError> {
        self.0.flush(session).await
    }

    async fn share_bounds(&self, session: &Session) -> Result<(), MoveError> {
        self.0.share_crossing(session).await
    }

    async fn hand_over(&self, session: &Session, range: &Range) -> Result<(), MoveError> {
        self.0.drop_range(session, range).await?;
        self.0.forget_images_in(session, range).await?;
        Ok(())
    }

    /// The log of this cache is made, if it needs one, and named in the map.
    async fn prepare_to_own(
        &self,
        session: &Session,
        map: Partitions,
    ) -> Result<Partitions, IndexError> {
        self.0.name_log(session, map).await
    }

    async fn take_in(&self, session: &Session) -> Result<(), IndexError> {
        self.0.adopt(session).await
    }

    async fn replay(
        &self,
        session: &Session,
        map: &Partitions,
        dead: Incarnation,
    ) -> Result<(), IndexError> {
        self.0.replay_dead(session, map, dead.0).await
    }

    /// By the separators of the highest level that has some in `range`; `None` if it is all one leaf.
    async fn middle(&self, session: &Session, range: &Range) -> Result<Option<Vec<u8>>, MoveError> {
        let cache = &self.0;
        let _pin = session.begin(OpKind::Maintenance).await.map_err(IndexError::from)?;
        let seek = range.low.as_deref().map_or(Seek::First, Seek::After);
        let Ok(_inside) = cache.ownership.acquire(session, seek).await? else {
            return Err(MoveError::NotOwned);
        };
        // From the root down, along the way to the range's lower end.
        let mut levels = Vec::new();
        for level in 1.. {
            let mut restarts = OpContext::default();
            let found = cache.find(session, seek, level, false, &mut restarts).await?;
            let Found::Spot(spot) = found else { break };
            let node = cache.frames.node(cache.layout(), spot.frame);
            let mut inside = Vec::new();
            if node.kind() == Kind::Inner {
                for index in 0..node.count() {
                    let mut separator = Vec::new();
                    let is_there = node.separator(index, &mut separator);
                    if is_there
                        && range.holds(&separator, false)
                        && range.high.as_ref() != Some(&separator)
                    {
                        inside.push(separator);
                    }
                }
            }
            if cache.frames.ctl(spot.frame).latch.validate(spot.version) {
                levels.push(inside);
            }
        }
        let best = levels.into_iter().rev().find(|inside| !inside.is_empty());
        Ok(best.map(|mut inside| {
            let middle = inside.len() / 2;
            inside.swap_remove(middle)
        }))
    }

    fn let_go(&self, session: &Session) {
        session.pool().let_go(self.meta(), &self.0);
    }
}

/// A cache, for the tasks that are inside.
#[derive(Debug)]
struct Holder(Arc<Cache>);

impl AsRef<RangeGuard> for Holder {
    fn as_ref(&self) -> &RangeGuard {
        self.0.ownership.guard()
    }
}

impl Cache {
    /// What is known of the map.
    pub(super) fn view(&self) -> Arc<View> {
        self.ownership.view()
    }

    /// # Errors
    /// `Closed`.
    #[inline]
    pub(super) fn check_open(&self) -> Result<(), IndexError> {
        self.ownership.check_open()
    }

    /// A change of the tree's shape has begun in remote memory and must not stop half way: if it did,
    /// cache and remote memory do not fit together any more.
    pub(super) fn must_succeed(&self, done: Result<(), IndexError>) -> Result<(), IndexError> {
        self.ownership.must_succeed(done)
    }

    /// Whether others may change a node of this range.
    pub(super) fn crosses_bounds(&self, low: Option<&[u8]>, high: Option<&[u8]>) -> bool {
        self.ownership.crosses(low, high)
    }

    /// Whether nodes must not be merged now, as a range is being given away.
    pub(super) fn merges_rest(&self) -> bool {
        self.ownership.is_moving()
    }

    /// As [`detach`](crate::detach::detach), for a task of an operation that is inside: so is the task.
    pub(super) fn detach<T: TimedOut + 'static>(
        self: &Arc<Self>,
        session: &Session,
        task: impl Future<Output = T> + 'static,
    ) -> impl Future<Output = T> {
        let done = self.detach_within(session, task);
        async { done.await.unwrap_or_else(T::timed_out) }
    }

    /// As [`Cache::detach`]; `None` if it goes on for longer than the caller waits.
    pub(super) fn detach_within<T: 'static>(
        self: &Arc<Self>,
        session: &Session,
        task: impl Future<Output = T> + 'static,
    ) -> impl Future<Output = Option<T>> {
        run_to_end(session, Box::pin(task), self.acquire_for_task(session))
    }

    /// Runs a task that nobody waits for, inside as [`Cache::detach`]'s. It begins no operation, and has no
    /// pin: the nodes that it deals with are those whose latches it holds.
    pub(super) fn spawn(
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

    /// Finds every child of the inner nodes that cross `bound`, so that what a crash has left half done
    /// below them is healed while they are exclusive still: below a shared node merges are not.
    ///
    /// Cost: 1 READ for each child that is not cached.
    async fn visit_children(
        self: &Arc<Self>,
        session: &Session,
        bound: &[u8],
    ) -> Result<(), IndexError> {
        let mut level = 1;
        loop {
            let mut restarts = OpContext::default();
            let found = self.find(session, Seek::At(bound), level, false, &mut restarts).await?;
            let Found::Spot(spot) = found else { return Ok(()) };
            let Some((_, range)) = self.range_of(spot.frame) else { continue };
            let node = self.frames.node(self.layout(), spot.frame);
            let mut separators = Vec::new();
            for index in 0..node.count() {
                let mut separator = Vec::new();
                if node.separator(index, &mut separator) {
                    separators.push(separator);
                }
            }
            if !self.frames.ctl(spot.frame).latch.validate(spot.version) {
                continue;
            }
            let is_shared = self.frames.ctl(spot.frame).is_shared();
            if !is_shared && range.high.as_deref() != Some(bound) {
                let last = separators.last().cloned();
                for separator in &separators {
                    self.visit(session, Seek::At(separator), level - 1).await?;
                }
                if let Some(last) = &last {
                    self.visit(session, Seek::After(last), level - 1).await?;
                }
            }
            level += 1;
        }
    }

    pub(super) async fn visit(
        self: &Arc<Self>,
        session: &Session,
        seek: Seek<'_>,
        level: u8,
    ) -> Result<(), IndexError> {
        let mut restarts = OpContext::default();
        restarts.keep();
        self.find(session, seek, level, false, &mut restarts).await.map(drop)
    }
}

impl From<Fail> for MoveError {
    fn from(fail: Fail) -> Self {
        match fail {
            Fail::Restart | Fail::NoFrame => MoveError::Busy,
            Fail::Error(error) => MoveError::Index(error),
        }
    }
}
