//! Own nodes: cache entries that say exactly which slots a node has, while this compute server owns all of its keys.
//!
//! A compute server that owns every key below a node is the only one that changes the node's slots. So it knows what
//! they hold without a READ: an *exact* entry proves that a key is absent, and tells an insert its slot.
//!
//! - `INV-SMART-9` Of a node whose keys all have one owner, nobody else changes a slot or the first word. A change lands
//!   only on the way to its key. An owner's operations and their tasks are inside the range guard, which is drained
//!   before a range moves and before a closed table is released. A guest has the map's lock until nothing of its
//!   change is under way. The dead are fenced before the map names another owner. Recovery and walks change leaves
//!   and the headers of nodes with reserved room. Those nodes therefore have no exact entries.
//! - `INV-SMART-10` An exact entry holds the slots that its node has at the moment of the lookup. A READ makes one if
//!   all keys below the node are own by one view from before the READ until the entry is taken in, and no own change
//!   of the node is under way or ends meanwhile. While a change is under way the entry is a hint. The change that
//!   ends stores its slot in the entry, if that holds what the CAS expected; otherwise the entry stays a hint.
//! - `INV-SMART-11` An exact entry does not outlive its era: `hand_over` drops what holds keys of the range, after
//!   the guard has been drained under a view in which the range is closed. A READ that began before has another view;
//!   one that began later finds the range closed. So when the range comes back, all entries are of the new era.
//! - `INV-SMART-12` An owner links by a WRITE of a slot only while no other change of the node is under way, and the
//!   exact entry says that the slot holds what the change expects. Whatever changes a slot or the first word of an own
//!   node waits until that WRITE has ended. A new leaf is in front of it in the same chain, or has been written.
//!
//! An owner that dies has written the leaf and the slot, the leaf alone, or nothing. A lost completion is answered by
//! a READ of the slot: if it does not lead to the leaf, nobody has seen the leaf, and both are written again.
//!
//! The changes of one slot may end in another order than they happened. The check of what the entry holds makes a
//! hint of it then, or all of them apply, and lead to the same word as in their own order.

use std::sync::Arc;

use farleaf_fabric::GlobalAddr;
use farleaf_index::KeyFormat;
use farleaf_index::compute::ownership::{OpGuard, Ownership, RangeGuard};
use farleaf_pool::Session;

use super::cache::{Cache, Stamp};
use super::descent::ReadNode;
use super::entry::Entry;
use super::ladder::OwnerWrites;
use super::layout::Slot;
use super::tree::Tree;

/// The ownership of a table's ranges, as its tree asks for it.
#[derive(Clone, Debug)]
pub(crate) struct OwnRanges {
    ownership: Arc<Ownership>,
    writes: OwnerWrites,
}

impl AsRef<RangeGuard> for OwnRanges {
    fn as_ref(&self) -> &RangeGuard {
        self.ownership.guard()
    }
}

/// A change of a node's slots under way. Dropped without a result, nobody knows what the node holds.
#[derive(Debug)]
pub(super) struct NodeChange<'a> {
    cache: Option<&'a Cache>,
    node: GlobalAddr,
    result: NodeResult,
}

/// The result of a change for a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeResult {
    /// Something, or nothing.
    Unknown,
    /// Nothing.
    Nothing,
    /// A slot has another word; the member's view of the epoch after that.
    Slot { index: usize, expected: Slot, new: Slot, c: u64 },
}

impl NodeChange<'_> {
    /// Ends: the own CAS has changed nothing.
    pub(super) fn lost(mut self) {
        self.result = NodeResult::Nothing;
    }

    /// Ends: the own CAS or WRITE has stored `new` in slot `index`, which held `expected`.
    pub(super) fn stored(mut self, session: &Session, index: usize, (expected, new): (Slot, Slot)) {
        let (expected, new) = (expected.thawed(), new.thawed());
        self.result = NodeResult::Slot { index, expected, new, c: session.epoch() };
    }
}

impl Drop for NodeChange<'_> {
    fn drop(&mut self) {
        if let Some(cache) = self.cache {
            cache.end_change(self.node, self.result);
        }
    }
}

impl OwnRanges {
    pub(crate) fn new(ownership: &Arc<Ownership>, writes: OwnerWrites) -> OwnRanges {
        OwnRanges { ownership: Arc::clone(ownership), writes }
    }

    pub(super) fn writes(&self) -> OwnerWrites {
        self.writes
    }

    /// Returns whether `key` is this compute server's and not about to be another's. So it stays until a task ends
    /// that is inside the guard.
    pub(super) fn owns(&self, key: &[u8]) -> bool {
        self.as_ref().with_current(|view| view.is_open(key))
    }

    /// Enters the range guard for a task of an operation that is inside, or that holds the map's lock.
    pub(super) fn enter_task(&self, session: &Session) -> OpGuard<OwnRanges> {
        RangeGuard::acquire_for_task(self.clone(), session)
    }
}

impl Tree {
    /// Returns whether all keys that begin with `prefix` are this compute server's, now and after a move that is
    /// under way.
    pub(super) fn owns_all(&self, prefix: &[u8]) -> bool {
        let Some(owner) = &self.owner else { return false };
        let key_bytes = self.key_bytes();
        owner.as_ref().with_current(|view| view.owns_prefix(prefix, key_bytes))
    }

    /// Bytes of each key; `None` if they differ.
    fn key_bytes(&self) -> Option<usize> {
        match self.spec.key {
            KeyFormat::Fixed(bytes) => Some(bytes),
            KeyFormat::Bytes { .. } => None,
        }
    }

    /// Returns whether entries of own nodes may be exact, and WRITEs link leaves there.
    pub(super) fn has_exact_entries(&self) -> bool {
        let is_exclusive = |owner: &OwnRanges| owner.writes == OwnerWrites::Exclusive;
        self.shape.mode.allows_exact_entries() && self.owner.as_ref().is_some_and(is_exclusive)
    }

    /// The moment before a READ of the node at `addr`; `None` if the READ cannot make an exact entry.
    pub(super) fn stamp(&self, addr: GlobalAddr) -> Option<Stamp> {
        let owner = self.owner.as_ref().filter(|_| self.has_exact_entries())?;
        // The view first: one that is published in between is a later one.
        let view = owner.as_ref().view_number();
        Some(Stamp { view, changes: self.cache.changes(addr)? })
    }

    /// Takes in an entry by a READ that began at `stamp`; exact if the node was own and unchanged since.
    pub(super) fn put(&self, entry: Entry, stamp: Option<Stamp>) {
        let is_own = |view: u64| {
            let Some(owner) = &self.owner else { return false };
            let (prefix, key_bytes) = (entry.whole_prefix(&self.shape), self.key_bytes());
            let owns = owner.as_ref().with_view(view, |view| view.owns_prefix(&prefix, key_bytes));
            owns.unwrap_or(false)
        };
        let is_own = stamp.is_some_and(|stamp| is_own(stamp.view));
        let stamp = stamp.filter(|_| is_own);
        let is_current =
            |view| self.owner.as_ref().is_some_and(|owner| owner.as_ref().view_number() == view);
        self.cache.put_stamped(entry, stamp, is_current);
    }

    /// Begins a change of the node at `addr`, before its first operation is posted; once no other one has it alone.
    pub(super) async fn changing(&self, node: GlobalAddr) -> NodeChange<'_> {
        let cache = self.owner.as_ref().map(|_| &self.cache);
        if let Some(cache) = cache {
            cache.begin_change(node).await;
        }
        NodeChange { cache, node, result: NodeResult::Unknown }
    }

    /// Begins a change of slot `index` of an own node on the way to `key` that has the node alone, if that is possible
    /// at once. Inside the range guard.
    pub(super) fn changing_alone(
        &self,
        held: &ReadNode,
        key: &[u8],
        index: usize,
        (expected, new): (Slot, Slot),
    ) -> Option<NodeChange<'_>> {
        let words = (expected.thawed(), new.thawed());
        let is_own = self.owns_all(key.get(..held.node(self).dispatch())?);
        let begins = is_own && self.cache.begin_alone(held.addr, index, words);
        begins.then(|| NodeChange {
            cache: Some(&self.cache),
            node: held.addr,
            result: NodeResult::Unknown,
        })
    }
}
