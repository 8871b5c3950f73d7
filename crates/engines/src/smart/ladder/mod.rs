//! Ladder: the steps of the papers' ablations, from plain ART to SMART.

pub(super) mod lock_table;
mod switches;

pub use switches::{
    CacheIndex, LeafLock, LeafUpdate, NodeLocks, NodeTypes, OwnerWrites, ReadDelegation,
};
