//! Partition guard: admits an operation only while its partitions are open, and drains running operations before
//! one changes its owner.
//!
//! An operation enters for all partitions that it knows of, and may ask for a further one while inside. It uses
//! lines and locks of those alone, at the homes that it was told. It leaves when nothing that it has posted to
//! them, or to what their locks protect, can still take effect.
//!
//! - `INV-PART-GUARD-1` An operation is inside only if all its partitions were open by one view, the one that was
//!   published when it entered.
//! - `INV-PART-GUARD-2` After a drain no operation is inside that entered under a view older than the one
//!   published when the drain began, nor a task of such an operation.
//! - `INV-PART-GUARD-3` No operation waits inside for the guard, or for a lock once it is stale. So a drain ends.

use std::cell::RefCell;
use std::sync::Arc;

use farleaf_fabric::Incarnation;
use farleaf_pool::Session;

use super::map::{PartitionMap, PartitionState};
use crate::compute::ownership::{Published, ViewCache, ViewEntry, Viewed, no_views};

/// The place of an open partition's lines and locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Home {
    /// The compute server whose memory holds them; `None` for memory servers.
    pub owner: Option<Incarnation>,
    /// Lines of another term are worthless.
    pub term: u32,
}

/// A map as this compute server goes by it.
#[derive(Clone, Debug)]
pub struct PartitionView {
    /// The map.
    pub map: PartitionMap,
}

impl PartitionView {
    /// The partition's home; `None` while it is closed.
    pub fn home(&self, partition: u32) -> Option<Home> {
        let entry = self.map.entries[partition as usize];
        let is_open = entry.state == PartitionState::Open;
        is_open.then_some(Home { owner: entry.owner, term: entry.term })
    }

    /// The part of the owner's region that holds lines of this table; `None` for one that is no member.
    pub fn slice(&self, owner: Incarnation) -> Option<u16> {
        self.map.member(owner).map(|member| member.slice)
    }

    /// Returns whether each partition that is open here has the same home in `next`.
    pub(super) fn keeps_homes(&self, next: &PartitionView) -> bool {
        (0..self.map.entries.len() as u32)
            .all(|number| self.home(number).is_none_or(|home| next.home(number) == Some(home)))
    }
}

/// See the page of its module.
#[derive(Debug)]
pub struct PartitionGuard {
    published: Published<PartitionView>,
}

thread_local! {
    static VIEWS: RefCell<ViewCache<PartitionView>> = const { RefCell::new(no_views()) };
}

impl Viewed for PartitionView {
    #[inline]
    fn with_cache<T>(with: impl FnOnce(&mut ViewCache<Self>) -> T) -> T {
        VIEWS.with_borrow_mut(with)
    }
}

/// Proof that an operation is inside. Dropped, it has left.
#[derive(Debug)]
pub struct InsidePartitions<G: AsRef<PartitionGuard>> {
    guard: G,
    entry: ViewEntry,
}

impl<G: AsRef<PartitionGuard>> InsidePartitions<G> {
    /// The home of one more partition, if it is open and no newer view has been published. Waits for nothing;
    /// if this is `None` the operation leaves, and enters for all of its partitions.
    pub fn try_enter(&self, partition: u32) -> Option<Home> {
        if self.is_stale() {
            return None;
        }
        let published = &self.guard.as_ref().published;
        published.with_view(self.entry.view, |view| view.home(partition)).flatten()
    }

    /// Returns whether a newer view has been published: an operation that waits for a lock leaves then.
    #[inline]
    pub fn is_stale(&self) -> bool {
        self.guard.as_ref().published.number() != self.entry.view
    }

    /// Enters for a task that the operation leaves behind; `holder` keeps the guard alive.
    pub fn for_task<H: AsRef<PartitionGuard>>(
        &self,
        holder: H,
        session: &Session,
    ) -> InsidePartitions<H> {
        let entry = self.guard.as_ref().published.enter_task(session.id());
        InsidePartitions { guard: holder, entry }
    }
}

impl<G: AsRef<PartitionGuard>> Drop for InsidePartitions<G> {
    #[inline]
    fn drop(&mut self) {
        self.guard.as_ref().published.leave(&self.entry);
    }
}

impl AsRef<PartitionGuard> for PartitionGuard {
    fn as_ref(&self) -> &PartitionGuard {
        self
    }
}

impl PartitionGuard {
    pub(super) fn new(map: PartitionMap) -> Self {
        PartitionGuard { published: Published::new(PartitionView { map }) }
    }

    /// The latest known map.
    pub fn view(&self) -> Arc<PartitionView> {
        self.published.view()
    }

    pub(super) fn change(
        &self,
        change: impl FnOnce(&PartitionView) -> Option<PartitionView>,
    ) -> Arc<PartitionView> {
        self.published.change(change)
    }

    /// Enters if all of `partitions` are open; gives their homes.
    #[inline]
    pub fn try_enter<const N: usize>(
        &self,
        session: u32,
        partitions: [u32; N],
    ) -> Option<(InsidePartitions<&PartitionGuard>, [Home; N])> {
        let admit = |view: &PartitionView| {
            let homes = partitions.map(|partition| view.home(partition));
            match homes.iter().all(Option::is_some) {
                true => Ok(homes.map(|home| home.expect("all are open"))),
                false => Err(()),
            }
        };
        let (entry, homes) = self.published.try_enter(session, admit).ok()?;
        Some((InsidePartitions { guard: self, entry }, homes))
    }

    /// Waits until all operations have left that are inside now, with the tasks that they leave behind.
    pub(super) async fn drain(&self, session: &Session) {
        self.published.drain(session).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An operation inside keeps to its view: a further partition that has been closed since is refused, and so is
    /// one that has been opened since.
    #[test]
    fn an_operation_enters_by_one_view() {
        let mut map = PartitionMap::unowned(16);
        map.entries[3].state = PartitionState::Closed;
        let guard = PartitionGuard::new(map.clone());
        assert!(guard.try_enter(0, [2, 3]).is_none());
        let (inside, homes) = guard.try_enter(0, [2, 4]).expect("open");
        assert_eq!(homes, [Home { owner: None, term: 1 }; 2]);
        assert!(inside.try_enter(5).is_some() && inside.try_enter(3).is_none());
        assert!(!inside.is_stale());
        map.epoch += 1;
        map.entries[3] = PartitionMap::unowned(1).entries[0];
        let before = guard.view();
        let after = guard.change(|_| Some(PartitionView { map: map.clone() }));
        assert!(before.keeps_homes(&after) && !after.keeps_homes(&before));
        assert!(inside.is_stale());
        assert!(inside.try_enter(5).is_none() && inside.try_enter(3).is_none());
        assert!(guard.try_enter(0, [3]).is_some());
    }
}
