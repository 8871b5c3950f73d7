//! Mapping table: maps cached remote nodes to frames, and marks nodes with I/O under way.
//!
//! It is the ground truth: an address without an entry is not cached by this compute server, and
//! nothing of it is under way.
//!
//! - `INV-DEX-MAP-1` `Resident(f)` and "frame `f` holds this address and is Hot or Cooling" mean the
//!   same.
//! - `INV-DEX-MAP-2` A mark (`Io`, `OffX`, `OffS`) belongs to the tasks that set it, and only they
//!   remove it.
//!
//! Only misses come here, hits follow swizzled pointers. Stripes of open addressing behind a mutex
//! each; nothing is freed that an optimistic reader could be looking at.

use crate::sync::{Mutex, lock};

/// The entry of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mapping {
    /// The node is in this frame.
    Resident(u32),
    /// A task reads the node, or changes it in remote memory.
    Io,
    /// A changing operation runs on its subtree at the memory server.
    OffX,
    /// Reading operations run on its subtree at the memory server. The low half of the number counts those
    /// that run, the high one all that have come since the first.
    OffS(u32),
}

impl Mapping {
    fn pack(self) -> u64 {
        match self {
            Mapping::Resident(frame) => u64::from(frame) << 2,
            Mapping::Io => 1,
            Mapping::OffX => 2,
            Mapping::OffS(count) => u64::from(count) << 2 | 3,
        }
    }

    fn unpack(word: u64) -> Self {
        let number = (word >> 2) as u32;
        match word & 3 {
            0 => Mapping::Resident(number),
            1 => Mapping::Io,
            2 => Mapping::OffX,
            _ => Mapping::OffS(number),
        }
    }
}

/// Addresses (never 0) and their entries, open addressing, linear probing.
#[derive(Debug)]
struct AddressStripe {
    slots: Vec<(u64, u64)>,
    len: usize,
}

impl AddressStripe {
    fn start(&self, addr: u64) -> usize {
        (hash(addr) >> 20) as usize & (self.slots.len() - 1)
    }

    /// Returns the slot of the address, or the free one where it would go.
    fn position(&self, addr: u64) -> usize {
        let mask = self.slots.len() - 1;
        let mut at = self.start(addr);
        // There is always a free slot.
        while self.slots[at].0 != addr && self.slots[at].0 != 0 {
            at = (at + 1) & mask;
        }
        at
    }

    fn get(&self, addr: u64) -> Option<Mapping> {
        let (held, word) = self.slots[self.position(addr)];
        (held == addr).then(|| Mapping::unpack(word))
    }

    fn set(&mut self, addr: u64, entry: Mapping) {
        if (self.len + 1) * 4 > self.slots.len() * 3 {
            let larger = vec![(0, 0); self.slots.len() * 2];
            let old = std::mem::replace(&mut self.slots, larger);
            for (held, word) in old.into_iter().filter(|slot| slot.0 != 0) {
                let at = self.position(held);
                self.slots[at] = (held, word);
            }
        }
        let at = self.position(addr);
        self.len += usize::from(self.slots[at].0 == 0);
        self.slots[at] = (addr, entry.pack());
    }

    /// Closes the gap, so that no tombstones are left.
    fn remove(&mut self, addr: u64) {
        let mask = self.slots.len() - 1;
        let mut gap = self.position(addr);
        if self.slots[gap].0 != addr {
            return;
        }
        self.len -= 1;
        let mut at = gap;
        loop {
            at = (at + 1) & mask;
            let held = self.slots[at].0;
            if held == 0 {
                break;
            }
            // It may move into the gap if its own start is not between the gap and it.
            let start = self.start(held);
            if (at.wrapping_sub(start) & mask) >= (at.wrapping_sub(gap) & mask) {
                self.slots[gap] = self.slots[at];
                gap = at;
            }
        }
        self.slots[gap] = (0, 0);
    }
}

/// See the [module page](self).
#[derive(Debug)]
pub(crate) struct MappingTable {
    stripes: Box<[Mutex<AddressStripe>]>,
}

impl MappingTable {
    /// Makes a table for about `frames` addresses.
    pub(crate) fn new(frames: usize) -> Self {
        let stripes = (frames / 64).next_power_of_two().clamp(1, 256);
        let slots = (2 * frames / stripes).next_power_of_two().max(8);
        let stripe = || Mutex::new(AddressStripe { slots: vec![(0, 0); slots], len: 0 });
        MappingTable { stripes: (0..stripes).map(|_| stripe()).collect() }
    }

    fn stripe(&self, addr: u64) -> &Mutex<AddressStripe> {
        debug_assert!(addr != 0 && addr >> 63 == 0, "{addr:#x} is no remote address");
        &self.stripes[hash(addr) as usize & (self.stripes.len() - 1)]
    }

    /// Returns the entry of `addr`, if it has one.
    pub(crate) fn get(&self, addr: u64) -> Option<Mapping> {
        lock(self.stripe(addr)).get(addr)
    }

    /// Marks `addr` if it has no entry; fails with the entry that it has.
    pub(crate) fn claim(&self, addr: u64, mark: Mapping) -> Result<(), Mapping> {
        let mut stripe = lock(self.stripe(addr));
        match stripe.get(addr) {
            Some(entry) => Err(entry),
            None => {
                stripe.set(addr, mark);
                Ok(())
            }
        }
    }

    /// Replaces the entry `from` by `to`; returns whether that was there. `None` is no entry.
    pub(crate) fn exchange(&self, addr: u64, from: Option<Mapping>, to: Option<Mapping>) -> bool {
        let mut stripe = lock(self.stripe(addr));
        if stripe.get(addr) != from {
            return false;
        }
        match to {
            Some(entry) => stripe.set(addr, entry),
            None => stripe.remove(addr),
        }
        true
    }

    /// Returns every entry, in no order that means anything.
    pub(crate) fn entries(&self) -> Vec<(u64, Mapping)> {
        let mut entries = Vec::new();
        for stripe in &self.stripes {
            let stripe = lock(stripe);
            let taken = stripe.slots.iter().filter(|slot| slot.0 != 0);
            entries.extend(taken.map(|&(addr, word)| (addr, Mapping::unpack(word))));
        }
        entries
    }
}

fn hash(addr: u64) -> u64 {
    let mixed = addr.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed >> 32 ^ mixed
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn entries_are_those_of_a_map() {
        let table = MappingTable::new(8);
        let mut model = BTreeMap::new();
        let mut rng = fastrand::Rng::with_seed(3);
        for _ in 0..40_000 {
            let addr = (1 + rng.u64(..300)) * 64;
            let entry = match rng.u8(..4) {
                0 => Mapping::Io,
                1 => Mapping::OffX,
                2 => Mapping::OffS(rng.u32(1..9)),
                _ => Mapping::Resident(rng.u32(..)),
            };
            let held = model.get(&addr).copied();
            match rng.u8(..4) {
                0 => {
                    assert_eq!(table.claim(addr, entry).err(), held);
                    model.entry(addr).or_insert(entry);
                }
                1 => {
                    assert!(table.exchange(addr, held, Some(entry)));
                    model.insert(addr, entry);
                }
                2 => {
                    assert!(table.exchange(addr, held, None));
                    model.remove(&addr);
                }
                _ => {
                    let other = Some(Mapping::Resident(77));
                    assert_eq!(table.exchange(addr, other, held), held == other);
                }
            }
            assert_eq!(table.get(addr), model.get(&addr).copied());
        }
        let mut entries = table.entries();
        entries.sort_by_key(|entry| entry.0);
        assert_eq!(entries, model.into_iter().collect::<Vec<_>>());
    }
}
