//! Changes: which objects this compute server is changing, and whether one has changed since a moment.

use std::collections::BTreeMap;

use farleaf_fabric::GlobalAddr;
use farleaf_index::local::ParkingLot;
use farleaf_index::sync::{Mutex, lock};

/// Parts of the addresses, each with its own lock.
pub(super) const SHARDS: usize = 64;
/// Parts of a shard's addresses whose changes are counted together.
const COUNTS: usize = 64;

/// Bits of an address, mixed.
pub(super) fn mix(addr: GlobalAddr) -> usize {
    (addr.word().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize
}

/// The changes of one object that are under way.
#[derive(Debug, Default)]
struct UnderWay {
    count: u32,
    /// It is one, and no other may begin.
    is_alone: bool,
}

/// The changes of a part of the addresses.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// By the address of their object.
    under_way: BTreeMap<u64, UnderWay>,
    /// Those that have begun or ended; empty before the first.
    counts: Vec<u64>,
}

/// The end of a change.
pub(super) struct ChangeEnd {
    /// Other changes of the object that are under way.
    pub(super) left: u32,
    /// It had the object alone.
    pub(super) was_alone: bool,
}

impl Changes {
    /// A number that differs once a change of the object has begun or ended; `None` while one is under way.
    pub(super) fn of(&self, addr: GlobalAddr) -> Option<u64> {
        let count = self.counts.get(mix(addr) / SHARDS % COUNTS).copied().unwrap_or(0);
        (!self.are_under_way(addr)).then_some(count)
    }

    pub(super) fn are_under_way(&self, addr: GlobalAddr) -> bool {
        self.under_way.contains_key(&addr.word())
    }

    /// Returns whether a change has the object alone.
    pub(super) fn is_alone(&self, addr: GlobalAddr) -> bool {
        self.under_way.get(&addr.word()).is_some_and(|it| it.is_alone)
    }

    fn count(&mut self, addr: GlobalAddr) {
        self.counts.resize(COUNTS, 0);
        self.counts[mix(addr) / SHARDS % COUNTS] += 1;
    }

    /// Begins a change beside others; not while one has the object alone.
    pub(super) fn begin(&mut self, addr: GlobalAddr) -> bool {
        let under_way = self.under_way.entry(addr.word()).or_default();
        if under_way.is_alone {
            return false;
        }
        under_way.count += 1;
        self.count(addr);
        true
    }

    /// Begins a change that has the object alone; the caller has found that it may.
    pub(super) fn begin_alone(&mut self, addr: GlobalAddr) {
        let under_way = self.under_way.entry(addr.word()).or_default();
        (under_way.count, under_way.is_alone) = (under_way.count + 1, true);
        self.count(addr);
    }

    pub(super) fn end(&mut self, addr: GlobalAddr) -> ChangeEnd {
        self.count(addr);
        let left = self.under_way.get_mut(&addr.word()).map_or(0, |under_way| {
            under_way.count -= 1;
            under_way.count
        });
        let ended = if left == 0 { self.under_way.remove(&addr.word()) } else { None };
        ChangeEnd { left, was_alone: ended.is_some_and(|ended| ended.is_alone) }
    }
}

/// The changes of leaves.
#[derive(Debug)]
pub(super) struct LeafChanges {
    shards: Box<[Mutex<Changes>]>,
    /// Changes that wait for one that has its leaf alone.
    waiting: ParkingLot,
}

impl LeafChanges {
    pub(super) fn new() -> LeafChanges {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        LeafChanges { shards, waiting: ParkingLot::new(SHARDS) }
    }

    fn shard(&self, addr: GlobalAddr) -> &Mutex<Changes> {
        &self.shards[mix(addr) % SHARDS]
    }

    /// See [`Changes::of`].
    pub(super) fn of(&self, addr: GlobalAddr) -> Option<u64> {
        lock(self.shard(addr)).of(addr)
    }

    /// See [`Changes::is_alone`].
    pub(super) fn is_alone(&self, addr: GlobalAddr) -> bool {
        lock(self.shard(addr)).is_alone(addr)
    }

    /// Begins a change beside others, once none has the leaf alone.
    pub(super) async fn begin(&self, addr: GlobalAddr) {
        while !lock(self.shard(addr)).begin(addr) {
            self.waiting.park(addr.word(), || !self.is_alone(addr)).await;
        }
    }

    /// Begins a change that has the leaf alone, if `may_begin` says so of [`Changes::of`].
    pub(super) fn begin_alone(
        &self,
        addr: GlobalAddr,
        may_begin: impl FnOnce(Option<u64>) -> bool,
    ) -> bool {
        let mut changes = lock(self.shard(addr));
        let begins = may_begin(changes.of(addr));
        if begins {
            changes.begin_alone(addr);
        }
        begins
    }

    pub(super) fn end(&self, addr: GlobalAddr) {
        let ended = lock(self.shard(addr)).end(addr);
        if ended.was_alone {
            self.waiting.unpark(addr.word());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_fabric::ServerId;

    #[test]
    fn a_change_alone_keeps_others_out_and_is_counted() {
        let (addr, other) = (GlobalAddr::new(ServerId(0), 64), GlobalAddr::new(ServerId(0), 4096));
        let mut changes = Changes::default();
        let before = changes.of(addr);
        changes.begin_alone(addr);
        assert_eq!(changes.of(addr), None);
        assert!(!changes.begin(addr) && changes.is_alone(addr));
        assert!(changes.begin(other) && !changes.is_alone(other));
        assert!(changes.end(addr).was_alone);
        assert_ne!(changes.of(addr), before);
        assert!(changes.begin(addr) && changes.begin(addr));
        assert_eq!(changes.end(addr).left, 1);
        assert_eq!(changes.end(addr).left, 0);
        assert!(changes.of(addr).is_some());
    }
}
