//! Ladder: the steps of the papers' ablations, from plain ART to SMART, as one table is opened with them.
//!
//! Each step is a setting ([`switches`]) of the compute server that opens the table. Members of one pool may differ in all
//! of them: the lock-free protocol and the lock in each leaf stay in force below the locks that a switch adds. A table's
//! words are the same whatever the switches say, so a table that one step has made can be opened by another.
//!
//! The tree asks [`Ladder`] and names no switch. By default each answer is a constant, and no lock is taken.

mod leaf_turn;
mod lock_table;
mod names;
mod switches;

use std::sync::Arc;

use farleaf_fabric::GlobalAddr;
use farleaf_index::Change;
use farleaf_index::local::{HandOver, LockQueue};
use farleaf_index::sync::Mutex;

use super::descent::ReadNode;
use super::layout::NodeType;
use super::locked::LeafContent;
use super::options::SmartOptions;
pub(super) use leaf_turn::{LeafTurn, release_leaf};
pub(super) use lock_table::{LOCKS_BYTES, LockSet, lock_table_at};
pub(super) use names::{NAME_BYTES, Names};
pub use switches::{
    CacheIndex, LeafLock, LeafUpdate, NodeLocks, NodeTypes, OwnerWrites, ReadDelegation,
};

/// The steps with which a table is open.
#[derive(Debug)]
pub(super) struct Ladder {
    delegation: ReadDelegation,
    leaf: LeafUpdate,
    lock: LeafLock,
    node_locks: NodeLocks,
    types: NodeTypes,
    cache_index: CacheIndex,
    /// The table's meta object, which names the lock table.
    meta: GlobalAddr,
    /// The lock table, once this compute server has used it.
    lock_table: Mutex<Option<GlobalAddr>>,
    /// Tasks of this compute server that want a lock of the lock table, by its address, or change the slots of a
    /// locked node, by the node's.
    queue: Arc<LockQueue>,
    /// The same at a lock of the lock table or of a leaf, if one passes the lock on to the next.
    turns: Option<Arc<HandOver>>,
}

impl Ladder {
    pub(super) fn new(meta: GlobalAddr, options: &SmartOptions, queue: Arc<LockQueue>) -> Ladder {
        Ladder {
            delegation: options.read_delegation,
            leaf: options.leaf,
            lock: options.lock,
            node_locks: options.node_locks,
            types: options.types,
            cache_index: options.cache_index,
            meta,
            lock_table: Mutex::default(),
            queue,
            turns: (options.hand_over > 0).then(|| HandOver::new(options.hand_over)),
        }
    }

    /// Returns whether only gets that began before a READ share it, or all that began before its end. `None` if none
    /// do.
    pub(super) fn reads_are_strict(&self) -> Option<bool> {
        match self.delegation {
            ReadDelegation::Off => None,
            ReadDelegation::Strict => Some(true),
            ReadDelegation::Lax => Some(false),
        }
    }

    /// Returns whether a change begins at the root: a leaf is replaced from the slot of its node, which the way from
    /// the root reads.
    pub(super) fn starts_at_root(&self, change: &Change<'_>) -> bool {
        self.leaf == LeafUpdate::Replaced && change.value.is_some() && !change.adds
    }

    /// Returns whether a leaf takes that content in its place, if it has room.
    pub(super) fn stays(&self, content: &LeafContent) -> bool {
        self.leaf == LeafUpdate::InPlace || matches!(content, LeafContent::Absent)
    }

    /// The locks of a change of a slot in the last of `nodes`.
    pub(super) fn slot_locks(&self, nodes: &[ReadNode]) -> LockSet {
        let nodes = match self.node_locks {
            NodeLocks::Off => &[],
            NodeLocks::Node => &nodes[nodes.len() - 1..],
            NodeLocks::Path => nodes,
        };
        nodes.iter().map(|held| held.addr).collect()
    }

    /// The locks of a change of a leaf, with those of its slot.
    pub(super) fn leaf_locks(&self, leaf: GlobalAddr, mut locks: LockSet) -> LockSet {
        if self.lock == LeafLock::Table {
            locks.add(leaf);
        }
        locks
    }

    /// Returns whether an operation locks nodes before it changes a slot. Then it has its turn at the node.
    pub(super) fn locks_nodes(&self) -> bool {
        self.node_locks != NodeLocks::Off
    }

    /// Returns whether an operation locks each node that it has read on its way.
    pub(super) fn locks_paths(&self) -> bool {
        self.node_locks == NodeLocks::Path
    }

    /// The types that nodes grow through.
    pub(super) fn types(&self) -> NodeTypes {
        self.types
    }

    /// The type of a node that takes the place of one with `live` children, with room for one more.
    pub(super) fn replacing(&self, live: usize, first: NodeType) -> NodeType {
        self.types.replacing(live, first)
    }

    /// Returns whether a node takes as much room in the cache as in remote memory.
    pub(super) fn caches_whole(&self) -> bool {
        self.types == NodeTypes::Whole
    }

    /// Returns whether a hash table of the bytes that lead to nodes finds the cached ones.
    pub(super) fn starts_by_hash(&self) -> bool {
        self.cache_index == CacheIndex::Hash
    }

    /// The hash table of cached nodes, if there is one.
    pub(super) fn names(&self) -> Option<Names> {
        self.starts_by_hash().then(Names::default)
    }
}
