//! Hopscotch leaf: a guarded leaf in which a key lies in one of a few neighbouring slots.
//!
//! The slots of a leaf are a hash table. A key's *home* is a slot that its hash chooses; its *neighbourhood* is the
//! home and the slots behind it, [`GuardedLayout::neighbourhood`] in all. The last slots are nobody's home, so that no
//! neighbourhood wraps and one READ covers it. An insert that finds its neighbourhood full moves pairs to the right,
//! each within its own neighbourhood (*hops*), until a slot of it is free.
//!
//! Word 0 of the leaf counts hops. A hop WRITEs the copy, the count and the empty slot, in this order and each landed
//! before the next one. So a reader that finds the count unchanged before and after its READ of the slots knows that a
//! key which it does not see is absent (`INV-HOP-2`). No bitmap says which slots a home's pairs are in: the holder of
//! the lock computes that from the keys.
//!
//! - `INV-HOP-1` A pair lies in the neighbourhood of its key.
//! - `INV-HOP-2` A pair that hops is in at least one of its two slots at each instant; if it is in one alone and was in
//!   the other one before, the count has changed between.
//! - `INV-HOP-3` A client that dies in a hop may leave a pair in two slots of its neighbourhood, with one value, and a redo
//!   record that names the leaf. The taker of its lock empties the second one before it unlocks. So the holder of a lock that
//!   was free finds a pair in one slot.
//! - `INV-HOP-4` A leaf that was rewritten, or that is dead, has another stamp in the check of every slot.
//!
//! Source: Luo et al., "CHIME" (SOSP 2024), hopscotch leaf nodes. Differs: their entries carry versions of 4 bits and a
//! hop bitmap, which agree by chance if the words of one READ are sampled in any order; their table is a ring.

use std::ops::Range;

use super::super::dense::key_word;
use super::super::edit::ChangeError;
use super::super::header::{
    FLAG_HIGH_INFINITE, FLAG_LOW_INFINITE, META_WORD, Meta, SELF_WORD, TAG, VERSION_WORD,
};
use super::edit::GuardedLeafMut;
use super::slot::{home_hash, turn};
use super::view::{GuardedLeaf, SlotState};
use super::{FLAG_GUARDED, GuardedLayout, GuardedLayoutError, KIND_LEAF, Stamp};

farleaf_fabric::canaries! {
    pub CLEAR_BEFORE_COPY = "clear-before-copy", "a pair that hops leaves its slot before it is in the next one";
    pub DEAD_KEEPS_SLOTS = "dead-keeps-slots", "a leaf that was merged away keeps its pairs and its stamp";
    pub UPDATE_ONE_OF_TWO = "update-one-of-two", "a pair that a dead client left in two slots stays in both";
}

/// The word that counts hops.
const MOVES_WORD: usize = 0;
/// In place of the count: it changed while the image was READ.
const MOVED: u64 = u64::MAX;
/// Smallest and largest neighbourhood in slots.
const NEIGHBOURHOOD_MIN: usize = 2;
const NEIGHBOURHOOD_MAX: usize = 16;

/// A hop of a pair, from one slot to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hop {
    /// The slot that the pair leaves.
    pub from: usize,
    /// The empty slot that it goes to.
    pub to: usize,
}

impl GuardedLayout {
    /// The layout with neighbourhoods of so many slots.
    ///
    /// # Errors
    /// [`GuardedLayoutError::Neighbourhood`].
    pub fn with_neighbourhood(self, neighbourhood: usize) -> Result<Self, GuardedLayoutError> {
        let most = self.slots.min(NEIGHBOURHOOD_MAX);
        if !(NEIGHBOURHOOD_MIN..=most).contains(&neighbourhood) {
            let slots = self.slots;
            return Err(GuardedLayoutError::Neighbourhood { neighbourhood, slots, most });
        }
        Ok(GuardedLayout { neighbourhood, ..self })
    }

    /// Slots of a neighbourhood; 0 if a key may lie in any slot.
    pub fn neighbourhood(&self) -> usize {
        self.neighbourhood
    }

    /// Returns whether keys have neighbourhoods.
    pub fn is_hopscotch(&self) -> bool {
        self.neighbourhood > 0
    }

    /// The slot that a key's hash chooses. The key has the layout's length.
    fn home(&self, key: &[u8]) -> usize {
        let words = key.chunks(8).map(key_word);
        let homes = (self.slots - self.neighbourhood + 1) as u128;
        ((u128::from(home_hash(self.tree, words)) * homes) >> 64) as usize
    }

    /// The slots in which a key may lie: its neighbourhood, or all.
    pub fn window(&self, key: &[u8]) -> Range<usize> {
        if !self.is_hopscotch() || key.len() != self.key_bytes() {
            return 0..self.slots;
        }
        let home = self.home(key);
        home..home + self.neighbourhood
    }

    /// Offset and length in bytes of some slots in a leaf.
    pub fn bytes_of(&self, slots: &Range<usize>) -> (u64, usize) {
        (8 * self.slot_at(slots.start) as u64, 8 * self.slot_words() * slots.len())
    }

    /// Bytes of header and fences.
    pub fn header_bytes(&self) -> usize {
        8 * self.slots_at()
    }

    /// The slot of each key, none of which comes twice, if they can all lie in their neighbourhoods.
    ///
    /// All neighbourhoods have one length. So keys in the order of their homes, each in the first free slot from its home
    /// on, find places whenever there are any.
    pub(super) fn places<K: AsRef<[u8]>>(&self, keys: &[K]) -> Option<Vec<usize>> {
        if !self.is_hopscotch() {
            return (keys.len() <= self.slots).then(|| (0..keys.len()).collect());
        }
        let homes: Vec<usize> = keys.iter().map(|key| self.home(key.as_ref())).collect();
        let mut order: Vec<usize> = (0..keys.len()).collect();
        order.sort_by_key(|&index| homes[index]);
        let (mut places, mut next) = (vec![0; keys.len()], 0);
        for index in order {
            let place = next.max(homes[index]);
            if place >= homes[index] + self.neighbourhood {
                return None;
            }
            (places[index], next) = (place, place + 1);
        }
        Some(places)
    }

    /// Returns whether one leaf can hold all these keys.
    pub fn takes_all<K: AsRef<[u8]>>(&self, keys: &[K]) -> bool {
        keys.iter().all(|key| key.as_ref().len() == self.key_bytes()) && self.places(keys).is_some()
    }

    /// Puts some slots of the leaf at `addr` that were READ, and the header that goes with them if they fit under
    /// `stamp`, into an image. No other slot of the image fits.
    ///
    /// # Panics
    /// If the slots are not those of `words`, or the image has another length than a leaf.
    pub fn fill_part(
        &self,
        image: &mut [u64],
        (addr, stamp): (u64, Stamp),
        slots: &Range<usize>,
        words: &[u64],
    ) {
        image.fill(0);
        let flags = FLAG_GUARDED | FLAG_LOW_INFINITE | FLAG_HIGH_INFINITE;
        let count = self.slots as u16;
        let meta = Meta { kind: KIND_LEAF, level: 0, count, flags, tag: TAG, incarnation: 0 };
        (image[SELF_WORD], image[VERSION_WORD]) = (addr, stamp.word());
        image[META_WORD] = meta.pack();
        self.fill_slots(image, slots, words);
    }

    /// Puts a header and some slots that were READ into an image. No other slot of the image fits.
    ///
    /// # Panics
    /// As [`GuardedLayout::fill_part`].
    pub fn fill_headed(
        &self,
        image: &mut [u64],
        header: &[u64],
        slots: &Range<usize>,
        words: &[u64],
    ) {
        image.fill(0);
        image[..self.slots_at()].copy_from_slice(header);
        self.fill_slots(image, slots, words);
    }

    fn fill_slots(&self, image: &mut [u64], slots: &Range<usize>, words: &[u64]) {
        let at = self.slot_at(slots.start);
        image[at..at + self.slot_words() * slots.len()].copy_from_slice(words);
    }
}

/// Notes in a whole image whether the count of hops changed during its READ: `before` and `after` were READ before and
/// after it.
pub fn note_moves(image: &mut [u64], before: u64, after: u64) {
    image[MOVES_WORD] = if before == after { after } else { MOVED };
}

impl GuardedLeaf<'_> {
    /// Returns whether pairs hopped while the image was READ ([`note_moves`]).
    pub fn has_moved(&self) -> bool {
        self.layout().is_hopscotch() && self.image()[MOVES_WORD] == MOVED
    }

    /// The leaf's count of hops; 0 if it has none, or that changed while the image was READ.
    pub fn hops(&self) -> u64 {
        if !self.layout().is_hopscotch() || self.has_moved() { 0 } else { self.image()[MOVES_WORD] }
    }

    /// Counts those of some slots that fit as pairs, as empty ones, and that do not fit.
    pub fn fits_in(&self, slots: &Range<usize>) -> (usize, usize, usize) {
        let mut counts = (0, 0, 0);
        for index in slots.clone() {
            match self.slot(index) {
                SlotState::Pair => counts.0 += 1,
                SlotState::Empty => counts.1 += 1,
                SlotState::Torn => counts.2 += 1,
            }
        }
        counts
    }

    /// Slots that hold one key, an earlier one and a later one.
    fn double_slots(&self) -> impl Iterator<Item = (usize, usize)> {
        let slots = if self.layout().is_hopscotch() { 0..self.layout().slots } else { 0..0 };
        let pairs = slots.filter(|&index| self.slot(index) == SlotState::Pair);
        let mut keys: Vec<_> = pairs.map(|index| (self.key(index), index)).collect();
        keys.sort();
        let doubles: Vec<_> = keys
            .windows(2)
            .filter(|two| two[0].0 == two[1].0)
            .map(|two| (two[0].1, two[1].1))
            .collect();
        doubles.into_iter()
    }

    /// Slots that hold a pair which an earlier slot of its neighbourhood holds as well (`INV-HOP-3`).
    pub(super) fn second_copies(&self) -> Vec<usize> {
        self.double_slots().map(|(_, later)| later).collect()
    }

    /// Returns whether a key has two values: an update has come between their samples.
    pub fn has_two_values(&self) -> bool {
        let [mut one, mut other] = [Vec::new(), Vec::new()];
        self.double_slots().any(|(first, second)| {
            self.value(first, &mut one);
            self.value(second, &mut other);
            one != other
        })
    }

    /// The hops, in their order, after which the neighbourhood of `key` has a free slot: none if it has one. `None` if
    /// there are no such hops.
    pub fn hops_for(&self, key: &[u8]) -> Option<Vec<Hop>> {
        let layout = self.layout();
        if !layout.is_hopscotch() {
            return None;
        }
        let window = layout.window(key);
        let home_at = |index: usize| {
            (self.slot(index) == SlotState::Pair).then(|| layout.home(&self.key(index)))
        };
        hops(window, layout.slots, layout.neighbourhood, home_at, |index| {
            self.slot(index) == SlotState::Empty
        })
    }
}

/// Searches hops that bring an empty slot into `window`. `home_at` is the home of the pair in a slot.
fn hops(
    window: Range<usize>,
    slots: usize,
    neighbourhood: usize,
    home_at: impl Fn(usize) -> Option<usize>,
    is_empty: impl Fn(usize) -> bool,
) -> Option<Vec<Hop>> {
    let mut empty = (window.start..slots).find(|&index| is_empty(index))?;
    let mut homes: Vec<Option<usize>> = (0..slots).map(home_at).collect();
    let mut hops = Vec::new();
    while empty >= window.end {
        let before = empty + 1 - neighbourhood..empty;
        let from = before.into_iter().find(|&from| {
            homes[from].is_some_and(|home| home <= from && empty < home + neighbourhood)
        })?;
        homes.swap(from, empty);
        hops.push(Hop { from, to: empty });
        empty = from;
    }
    Some(hops)
}

impl GuardedLeafMut<'_> {
    /// Moves a pair into an empty slot, and counts that. Returns the bytes to WRITE in one chain, in this order: the copy,
    /// the count, the slot that was left.
    ///
    /// # Errors
    /// `BadIndex` if there is no pair at `from`, or `to` is not empty; nothing was changed.
    pub fn hop(&mut self, Hop { from, to }: Hop) -> Result<[Range<usize>; 3], ChangeError> {
        self.check_pair_at(from)?;
        if to >= self.view().slots() || self.view().slot(to) != SlotState::Empty {
            return Err(ChangeError::BadIndex { index: to });
        }
        let (key, mut value) = (self.view().key(from), Vec::new());
        self.view().value(from, &mut value);
        let layout = *self.view().layout();
        let (guard, slot) = self.slot_mut(to);
        let turn = turn(slot[slot.len() - 1]);
        layout.store(&guard, slot, turn.wrapping_add(1), &key, &value);
        let copy = self.bytes_from(to, 0);
        self.count_move();
        let cleared = self.remove(from)?.bytes;
        let count = 8 * MOVES_WORD..8 * MOVES_WORD + 8;
        Ok(if CLEAR_BEFORE_COPY.is_armed() {
            [cleared, count, copy]
        } else {
            [copy, count, cleared]
        })
    }

    fn count_move(&mut self) {
        let moves = self.view().image()[MOVES_WORD];
        self.set_first_word(moves.wrapping_add(1));
    }

    /// Empties the slots of a leaf that is dead, under its next stamp: a reader that remembers the stamp finds that none
    /// fits.
    pub(super) fn clear_dead(&mut self) {
        if DEAD_KEEPS_SLOTS.is_armed() || !self.view().layout().is_hopscotch() {
            return;
        }
        self.set_stamp(self.view().stamp().next());
        let layout = *self.view().layout();
        for index in 0..layout.slots {
            let (guard, slot) = self.slot_mut(index);
            layout.store_empty(&guard, slot, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Searches all sequences of hops: whether any brings an empty slot into the window.
    fn any_hops(
        homes: &mut Vec<Option<usize>>,
        window: &Range<usize>,
        h: usize,
        depth: usize,
    ) -> bool {
        if window.clone().any(|slot| homes[slot].is_none()) {
            return true;
        }
        if depth == 0 {
            return false;
        }
        for from in 0..homes.len() {
            let Some(home) = homes[from] else { continue };
            for to in from + 1..(home + h).min(homes.len()) {
                if homes[to].is_none() {
                    homes.swap(from, to);
                    let found = any_hops(homes, window, h, depth - 1);
                    homes.swap(from, to);
                    if found {
                        return true;
                    }
                }
            }
        }
        false
    }

    /// Against every sequence of up to four hops to the right, in small tables.
    #[test]
    fn hops_are_found_where_a_search_of_all_sequences_finds_some() {
        let (slots, h) = (9, 3);
        let mut rng = fastrand::Rng::with_seed(7);
        let (mut found, mut none) = (0, 0);
        for _ in 0..3_000 {
            let mut homes: Vec<Option<usize>> = vec![None; slots];
            for _ in 0..rng.usize(4..=9) {
                let home = rng.usize(0..=slots - h);
                if let Some(slot) = (home..home + h).find(|&slot| homes[slot].is_none()) {
                    homes[slot] = Some(home);
                }
            }
            let home = rng.usize(0..=slots - h);
            let window = home..home + h;
            let before = homes.clone();
            let plan = hops(
                window.clone(),
                slots,
                h,
                |index| before[index],
                |index| before[index].is_none(),
            );
            // Ours moves the first empty slot on the right alone.
            if let Some(plan) = &plan {
                for hop in plan {
                    let moved = homes[hop.from].expect("a pair hops");
                    assert!(homes[hop.to].is_none() && (moved..moved + h).contains(&hop.to));
                    homes.swap(hop.from, hop.to);
                }
                assert!(window.clone().any(|slot| homes[slot].is_none()));
                found += usize::from(!plan.is_empty());
            } else {
                none += 1;
                assert!(!any_hops(&mut homes, &window, h, 4), "{before:?} {window:?}");
            }
        }
        assert!(found > 200 && none > 200, "{found} with hops, {none} without");
    }
}
