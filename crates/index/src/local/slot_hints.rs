//! Slot hints: remember the slot of its leaf in which a hot key was found.
//!
//! A hint is never trusted: its slot is READ and proves itself, or the hint is forgotten. So hints are relaxed words
//! without locks, and one whose two words are of two writes is a wrong slot number at worst. They take memory as they come.
//!
//! Source: Luo et al., "CHIME" (SOSP 2024), hotness-aware speculative reads. Differs: their hotspot buffer holds heap objects
//! that a queue frees by its length, while others may read them.

use std::sync::OnceLock;

use farleaf_fabric::GlobalAddr;

use crate::sync::{AtomicU64, Ordering};

/// Hints that share a line of 64 bytes.
const LINE: usize = 4;
/// Bytes of a hint.
const HINT_BYTES: u64 = 16;
/// Lines that get their memory together.
const PART_LINES: u64 = 1024;
/// Most lines: 4 GiB of them.
const LINES_MAX: u64 = 1 << 26;

/// The word of a leaf's address, and slot 16 | fingerprint 16 | uses 32.
#[derive(Debug, Default)]
struct Hint {
    leaf: AtomicU64,
    place: AtomicU64,
}

fn fingerprint(hash: u64) -> u64 {
    hash & 0xffff
}

fn uses(place: u64) -> u64 {
    place & 0xffff_ffff
}

impl Hint {
    /// Its place word, if it is of that key in that leaf.
    fn of(&self, leaf: GlobalAddr, hash: u64) -> Option<u64> {
        let place = self.place.load(Ordering::Relaxed);
        let is_it = place >> 32 & 0xffff == fingerprint(hash)
            && self.leaf.load(Ordering::Relaxed) == leaf.word();
        is_it.then_some(place)
    }
}

/// See the [module page](self).
#[derive(Debug)]
pub struct SlotHints {
    lines: u64,
    parts: Box<[OnceLock<HintPart>]>,
}

type HintPart = Box<[[Hint; LINE]]>;

impl SlotHints {
    /// Hints that take at most `budget` bytes. A budget below one line keeps none.
    pub fn new(budget: u64) -> SlotHints {
        let lines = (budget / (HINT_BYTES * LINE as u64)).min(LINES_MAX);
        let parts = (0..lines.div_ceil(PART_LINES)).map(|_| OnceLock::new()).collect();
        SlotHints { lines, parts }
    }

    /// The number of the hash's line.
    fn line_at(&self, hash: u64) -> u64 {
        ((u128::from(hash) * u128::from(self.lines)) >> 64) as u64
    }

    fn line(&self, hash: u64) -> Option<&[Hint; LINE]> {
        let at = self.line_at(hash);
        self.parts.get((at / PART_LINES) as usize)?.get()?.get((at % PART_LINES) as usize)
    }

    /// The same; its part gets its memory.
    fn new_line(&self, hash: u64) -> Option<&[Hint; LINE]> {
        let at = self.line_at(hash);
        let (number, in_part) = (at / PART_LINES, (at % PART_LINES) as usize);
        let lines = (self.lines - number * PART_LINES).min(PART_LINES);
        let part = self.parts.get(number as usize)?;
        part.get_or_init(|| (0..lines).map(|_| <[Hint; LINE]>::default()).collect()).get(in_part)
    }

    /// The slot in which the key of that hash was found in the leaf. That is a use of the hint.
    pub fn get(&self, leaf: GlobalAddr, hash: u64) -> Option<usize> {
        let found = self.line(hash)?.iter().find_map(|it| Some((it, it.of(leaf, hash)?)));
        let (hint, place) = found?;
        if uses(place) < u64::from(u32::MAX) {
            hint.place.store(place + 1, Ordering::Relaxed);
        }
        Some((place >> 48) as usize)
    }

    /// The key of that hash was found in `slot` of the leaf. Takes the place of the least used hint of its line, and halves
    /// the uses of the others.
    pub fn put(&self, leaf: GlobalAddr, hash: u64, slot: usize) {
        let Some(line) = self.new_line(hash) else { return };
        let place = (slot as u64) << 48 | fingerprint(hash) << 32 | 1;
        if let Some(hint) = line.iter().find(|it| it.of(leaf, hash).is_some()) {
            hint.place.store(place, Ordering::Relaxed);
            return;
        }
        let used = |hint: &&Hint| match hint.leaf.load(Ordering::Relaxed) {
            0 => 0,
            _ => 1 + uses(hint.place.load(Ordering::Relaxed)),
        };
        let Some(least) = line.iter().min_by_key(used) else { return };
        for hint in line {
            let place = hint.place.load(Ordering::Relaxed);
            hint.place.store(place - uses(place).div_ceil(2), Ordering::Relaxed);
        }
        least.place.store(place, Ordering::Relaxed);
        least.leaf.store(leaf.word(), Ordering::Relaxed);
    }

    /// The hint was wrong.
    pub fn forget(&self, leaf: GlobalAddr, hash: u64) {
        let hints = self.line(hash).into_iter().flatten();
        for hint in hints.filter(|it| it.of(leaf, hash).is_some()) {
            hint.leaf.store(0, Ordering::Relaxed);
        }
    }

    /// Bytes that hints have taken.
    pub fn bytes(&self) -> u64 {
        let lines: usize = self.parts.iter().filter_map(OnceLock::get).map(|it| it.len()).sum();
        (lines * LINE) as u64 * HINT_BYTES
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use farleaf_fabric::ServerId;

    use super::*;

    fn leaf(number: u64) -> GlobalAddr {
        GlobalAddr::new(ServerId(1), 4096 + number * 64)
    }

    #[test]
    fn a_hint_is_of_one_key_in_one_leaf_until_it_is_forgotten() {
        let hints = SlotHints::new(64);
        assert_eq!((hints.bytes(), hints.get(leaf(1), 7)), (0, None));
        hints.put(leaf(1), 7, 71);
        assert_eq!((hints.bytes(), hints.get(leaf(1), 7)), (64, Some(71)));
        assert_eq!((hints.get(leaf(2), 7), hints.get(leaf(1), 8)), (None, None));
        hints.put(leaf(1), 7, 70);
        assert_eq!(hints.get(leaf(1), 7), Some(70));
        hints.forget(leaf(1), 8);
        assert_eq!(hints.get(leaf(1), 7), Some(70));
        hints.forget(leaf(1), 7);
        assert_eq!(hints.get(leaf(1), 7), None);
    }

    #[test]
    fn the_least_used_hint_of_a_line_gives_way() {
        let hints = SlotHints::new(64 + 63);
        for hash in 1..=4 {
            hints.put(leaf(hash), hash, hash as usize);
            (1..hash).for_each(|_| assert!(hints.get(leaf(hash), hash).is_some()));
        }
        // The hints of 2 and 3 have been used less often than that of 4, but later than that of 1.
        hints.put(leaf(5), 5, 5);
        let there = (1..=5).filter(|&hash| hints.get(leaf(hash), hash).is_some()).count();
        assert_eq!(there, 4);
        assert_eq!(hints.get(leaf(4), 4), Some(4), "the most used one stays");
        assert_eq!(hints.get(leaf(5), 5), Some(5), "the new one is there");
        // Parts come one by one.
        let many = SlotHints::new((PART_LINES + 3) * 64);
        many.put(leaf(1), u64::MAX, 1);
        assert_eq!((many.bytes(), many.get(leaf(1), u64::MAX)), (3 * 64, Some(1)));
        many.put(leaf(1), 0, 2);
        assert_eq!((many.bytes(), many.get(leaf(1), 0)), ((PART_LINES + 3) * 64, Some(2)));
        let none = SlotHints::new(63);
        none.put(leaf(1), 1, 1);
        assert_eq!((none.bytes(), none.get(leaf(1), 1)), (0, None));
    }
}
