//! Replicas: lines of leaves as this compute server has seen them last, up to a budget of bytes.
//!
//! A replica is a hint. It tells which slot to READ for a key that is there; it never proves a key absent. The oldest gives
//! way.

use std::collections::{BTreeMap, VecDeque};

use farleaf_fabric::GlobalAddr;
use farleaf_index::sync::{Mutex, lock};

use super::line::Line;

/// Parts of the cache, each with a lock of its own.
const SHARDS: usize = 64;
/// Bytes that a replica takes.
const REPLICA_BYTES: u64 = 96;

#[derive(Debug, Default)]
struct ReplicaShard {
    lines: BTreeMap<u64, Line>,
    /// The oldest first, each once.
    order: VecDeque<u64>,
}

/// The replicas of a table.
#[derive(Debug)]
pub(super) struct ReplicaCache {
    /// Replicas of each shard; 0: none at all.
    most: usize,
    shards: Vec<Mutex<ReplicaShard>>,
}

impl ReplicaCache {
    /// One of so many bytes at most.
    pub(super) fn new(budget: u64) -> Self {
        let most = (budget / REPLICA_BYTES / SHARDS as u64) as usize;
        let shards = if most > 0 { SHARDS } else { 0 };
        ReplicaCache { most, shards: (0..shards).map(|_| Mutex::default()).collect() }
    }

    fn shard(&self, leaf: GlobalAddr) -> Option<&Mutex<ReplicaShard>> {
        let hash = leaf.word().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58;
        self.shards.get(hash as usize)
    }

    /// The replica of that version.
    pub(super) fn get(&self, leaf: GlobalAddr, version: u64) -> Option<Line> {
        let shard = lock(self.shard(leaf)?);
        shard.lines.get(&leaf.word()).filter(|line| line.version == version).copied()
    }

    /// Takes in a line that was read, or written.
    pub(super) fn put(&self, leaf: GlobalAddr, line: Line) {
        let Some(shard) = self.shard(leaf) else { return };
        let mut shard = lock(shard);
        if shard.lines.insert(leaf.word(), line).is_some() {
            return;
        }
        shard.order.push_back(leaf.word());
        if shard.order.len() > self.most
            && let Some(oldest) = shard.order.pop_front()
        {
            shard.lines.remove(&oldest);
        }
    }

    /// Number of replicas.
    pub(super) fn count(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).lines.len()).sum()
    }

    /// Bytes that they take.
    pub(super) fn bytes(&self) -> u64 {
        self.count() as u64 * REPLICA_BYTES
    }
}

#[cfg(test)]
mod tests {
    use farleaf_fabric::ServerId;

    use super::*;

    #[test]
    fn the_oldest_replicas_give_way_and_versions_are_told_apart() {
        let leaf = |number: u64| GlobalAddr::new(ServerId(0), number * 1664);
        let none = ReplicaCache::new(0);
        none.put(leaf(1), Line::empty(1));
        assert_eq!((none.get(leaf(1), 1), none.bytes()), (None, 0));
        let cache = ReplicaCache::new(SHARDS as u64 * REPLICA_BYTES * 2);
        for number in 0..1000 {
            cache.put(leaf(number), Line::empty(number));
            cache.put(leaf(number), Line::empty(number).with(3, 7));
        }
        assert!(cache.count() <= 2 * SHARDS && cache.count() > SHARDS, "{}", cache.count());
        assert_eq!(cache.get(leaf(999), 999), Some(Line::empty(999).with(3, 7)));
        assert_eq!((cache.get(leaf(999), 998), cache.get(leaf(0), 0)), (None, None));
    }
}
