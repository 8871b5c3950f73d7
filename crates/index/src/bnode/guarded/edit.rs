//! Guarded leaf, changed: edits a private image under the leaf's lock and names the bytes to WRITE.

use std::ops::Range;

use super::super::edit::ChangeError;
use super::super::header::{Head, META_WORD, VERSION_WORD, meta};
use super::super::view::Cover;
use super::super::words::SUM_WORD;
use super::hopscotch::UPDATE_ONE_OF_TWO;
use super::slot::{Guard, turn};
use super::view::{GuardedLeaf, Lookup, SlotPair, SlotState};
use super::{GuardedLayout, Stamp};

farleaf_fabric::canaries! {
    pub BUILD_CLEARS_TORN = "build-clears-torn", "a slot that a dead client's update has torn is emptied";
    pub REWRITE_KEEPS_STAMP = "rewrite-keeps-stamp", "a leaf that is split or merged keeps its stamp";
    pub BUILD_KEEPS_TORN = "build-keeps-torn", "a slot that a dead client's insert or remove has torn is kept";
}

/// A change of one slot: what the holder of the lock WRITEs of the image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotEdit {
    /// The slot.
    pub index: usize,
    /// Bytes of the image to WRITE, in one WRITE.
    pub bytes: Range<usize>,
    /// A death may leave the WRITE neither done nor undone: a redo record of it goes in front.
    pub is_wide: bool,
}

/// The outcome of mending a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mended {
    /// An insert or a remove was cut short; the slot is empty.
    Emptied,
    /// An update was cut short; the value is the old or the new one.
    Resealed,
}

/// A slot that was mended, and the bytes of the image to WRITE.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mend {
    /// The slot.
    pub index: usize,
    /// Bytes of the image to WRITE.
    pub bytes: Range<usize>,
    /// The outcome.
    pub how: Mended,
}

/// A private image of a guarded leaf that is changed by the holder of its lock. The header fits, and the holder has mended
/// what did not fit ([`GuardedLeafMut::mend`]).
#[derive(Debug)]
pub struct GuardedLeafMut<'a> {
    layout: &'a GuardedLayout,
    words: &'a mut [u64],
}

impl<'a> GuardedLeafMut<'a> {
    /// Views `words` as a leaf to change.
    ///
    /// # Panics
    /// If there are not exactly [`GuardedLayout::leaf_words`] of them, which is a programmer's error.
    pub fn new(layout: &'a GuardedLayout, words: &'a mut [u64]) -> Self {
        assert!(words.len() == layout.leaf_words, "an image has the length of the layout's leaves");
        GuardedLeafMut { layout, words }
    }

    /// The leaf, to read.
    pub fn view(&self) -> GuardedLeaf<'_> {
        GuardedLeaf::new(self.layout, self.words)
    }

    pub(super) fn slot_mut(&mut self, index: usize) -> (Guard, &mut [u64]) {
        let guard = self.view().guard().at(index);
        let slot = &mut self.words[self.layout.slot_at(index)..][..self.layout.slot_words()];
        (guard, slot)
    }

    /// Bytes of the words of a slot from its word `from` to its end.
    pub(super) fn bytes_from(&self, index: usize, from: usize) -> Range<usize> {
        let at = self.layout.slot_at(index);
        8 * (at + from)..8 * (at + self.layout.slot_words())
    }

    /// Bytes of a slot that emptying it changes.
    fn emptied_bytes(&self, index: usize) -> Range<usize> {
        let check = self.layout.slot_words() - 1;
        self.bytes_from(index, if self.layout.has_word_values() { check - 1 } else { check })
    }

    /// Makes every slot that does not fit one that does, and empties second copies of pairs (`INV-HOP-3`). The caller WRITEs
    /// what is returned before it decides anything.
    ///
    /// The writer of such a slot is dead, since a living one holds the lock until its WRITE has landed. Redo records under
    /// the lock's token have been carried out before.
    pub fn mend(&mut self) -> Vec<Mend> {
        let mut mends = Vec::new();
        for index in 0..self.layout.slots {
            if self.view().slot(index) != SlotState::Torn {
                continue;
            }
            let is_update = self.is_cut_update(index);
            let has_word_values = self.layout.has_word_values();
            let (layout, key_words) = (self.layout, self.layout.key_words);
            let (guard, slot) = self.slot_mut(index);
            let check = slot.len() - 1;
            let turn = turn(slot[check]);
            if is_update {
                debug_assert!(has_word_values);
                slot[check] = guard.check(turn, &slot[..key_words], &slot[key_words..check]);
                let bytes = self.bytes_from(index, check);
                mends.push(Mend { index, bytes, how: Mended::Resealed });
            } else {
                // The dead insert's turn, at the least, is over.
                layout.store_empty(&guard, slot, turn.wrapping_add(1));
                let bytes = self.emptied_bytes(index);
                mends.push(Mend { index, bytes, how: Mended::Emptied });
            }
        }
        let seconds = self.view().second_copies();
        for index in seconds.into_iter().filter(|_| !UPDATE_ONE_OF_TWO.is_armed()) {
            let (layout, (guard, slot)) = (self.layout, self.slot_mut(index));
            let turn = turn(slot[slot.len() - 1]);
            layout.store_empty(&guard, slot, turn);
            mends.push(Mend { index, bytes: self.emptied_bytes(index), how: Mended::Emptied });
        }
        mends
    }

    /// Returns whether a slot that does not fit is that of an update: key and check are of one write, and the value is no
    /// blank word.
    fn is_cut_update(&self, index: usize) -> bool {
        let view = self.view();
        let guard = view.guard().at(index);
        let (keys, values, check) = view.stored(index);
        if BUILD_CLEARS_TORN.is_armed() {
            return false;
        }
        if BUILD_KEEPS_TORN.is_armed() {
            return self.layout.has_word_values();
        }
        self.layout.has_word_values()
            && guard.has_key(check, keys)
            && values[0] != guard.blank()
            && view.covers(&view.key(index)) == Cover::Inside
    }

    /// Inserts a pair into a free slot. WRITEs a whole slot.
    ///
    /// # Errors
    /// `NoRoom` if no slot is free, `Exists`, `OutsideFences`, `BadKey`, `BadValue`, `Damaged` if a slot does not fit;
    /// nothing was changed.
    pub fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<SlotEdit, ChangeError> {
        self.layout.check_pair(key, value)?;
        let view = self.view();
        match view.find(key) {
            Lookup::Hit(index) => return Err(ChangeError::Exists { index }),
            Lookup::Torn(_) => return Err(ChangeError::Damaged),
            Lookup::Miss => {}
        }
        if view.covers(key) != Cover::Inside {
            return Err(ChangeError::OutsideFences);
        }
        let layout = self.layout;
        let mut free = layout.window(key).filter(|&index| view.slot(index) == SlotState::Empty);
        let index = free.next().ok_or(ChangeError::NoRoom)?;
        let (guard, slot) = self.slot_mut(index);
        let turn = turn(slot[slot.len() - 1]);
        layout.store(&guard, slot, turn.wrapping_add(1), key, value);
        Ok(SlotEdit { index, bytes: self.bytes_from(index, 0), is_wide: false })
    }

    /// Gives the pair in slot `index` another value, under the same turn. WRITEs value and check.
    ///
    /// # Errors
    /// `BadValue`, `BadIndex` if the slot holds no pair; nothing was changed.
    pub fn update(&mut self, index: usize, value: &[u8]) -> Result<SlotEdit, ChangeError> {
        if value.len() != self.layout.value_bytes() {
            return Err(ChangeError::BadValue { len: value.len() });
        }
        self.check_pair_at(index)?;
        let key = self.view().key(index);
        let layout = self.layout;
        let (guard, slot) = self.slot_mut(index);
        let (before, turn) = (slot[layout.key_words], turn(slot[slot.len() - 1]));
        layout.store(&guard, slot, turn, &key, value);
        let touches_blank = [before, slot[layout.key_words]].contains(&guard.blank());
        let is_wide = layout.value_words > 1 || layout.has_word_values() && touches_blank;
        let bytes = self.bytes_from(index, layout.key_words);
        Ok(SlotEdit { index, bytes, is_wide })
    }

    /// Removes the pair in slot `index`. WRITEs the check, and the blank word for values of one word.
    ///
    /// # Errors
    /// `BadIndex` if the slot holds no pair; nothing was changed.
    pub fn remove(&mut self, index: usize) -> Result<SlotEdit, ChangeError> {
        self.check_pair_at(index)?;
        let layout = self.layout;
        let (guard, slot) = self.slot_mut(index);
        let turn = turn(slot[slot.len() - 1]);
        layout.store_empty(&guard, slot, turn);
        Ok(SlotEdit { index, bytes: self.emptied_bytes(index), is_wide: false })
    }

    pub(super) fn check_pair_at(&self, index: usize) -> Result<(), ChangeError> {
        if index < self.layout.slots && self.view().slot(index) == SlotState::Pair {
            Ok(())
        } else {
            Err(ChangeError::BadIndex { index })
        }
    }

    /// Marks the leaf as merged away. The stamp and the slots stay as they are, but for a leaf with neighbourhoods, whose
    /// slots are emptied under the next stamp (`INV-HOP-4`).
    pub fn set_dead(&mut self) {
        self.clear_dead();
        let mut meta = meta(self.words);
        meta.set_dead();
        self.words[META_WORD] = meta.pack();
        self.words[SUM_WORD] = self.layout.sum(self.words);
    }

    /// Sets the count of hops.
    pub(super) fn set_first_word(&mut self, word: u64) {
        self.words[0] = word;
    }

    /// Gives the image another stamp. The caller writes every slot anew, and seals the header.
    pub(super) fn set_stamp(&mut self, stamp: Stamp) {
        self.words[VERSION_WORD] = stamp.word();
    }
}

impl GuardedLeaf<'_> {
    /// Splits the leaf and takes a new pair along: encodes this leaf under its next stamp into `left`, and the upper half,
    /// a leaf at `right_addr`, into `right`. Returns the separator: the left part's high fence.
    ///
    /// # Errors
    /// `Exists` if the leaf has the key, `NothingToSplit` for fewer than two pairs, `Damaged` if a slot does not fit,
    /// `OutsideFences`, `BadKey`, `BadValue`. `NoRoom` if the new pair finds no place beside the others in its
    /// neighbourhood, wherever they are cut; without a new pair there is a cut.
    pub fn split(
        &self,
        new: Option<(&[u8], &[u8])>,
        right_addr: u64,
        right_stamp: Stamp,
        left: &mut [u64],
        right: &mut [u64],
    ) -> Result<Vec<u8>, ChangeError> {
        let layout = self.layout();
        let mut pairs = self.pairs().map_err(|_| ChangeError::Damaged)?;
        if let Some((key, value)) = new {
            layout.check_pair(key, value)?;
            match pairs.binary_search_by(|pair| pair.0.as_slice().cmp(key)) {
                Ok(index) => return Err(ChangeError::Exists { index }),
                Err(index) => pairs.insert(index, (key.to_vec(), value.to_vec())),
            }
        }
        if pairs.len() < 2 {
            return Err(ChangeError::NothingToSplit);
        }
        let lower = self.cut(&pairs).ok_or(ChangeError::NoRoom)?;
        let separator = pairs[lower - 1].0.clone();
        self.divide((&pairs, &separator), (right_addr, right_stamp), left, right)?;
        Ok(separator)
    }

    /// Cuts the leaf at `bound`, a key strictly between its fences: as [`GuardedLeaf::split`], where the left part keeps the
    /// keys up to the bound. Either may be empty.
    ///
    /// # Errors
    /// `Damaged` if a slot does not fit, `OutsideFences`, `BadKey`.
    pub fn cut_at(
        &self,
        bound: &[u8],
        right_addr: u64,
        right_stamp: Stamp,
        left: &mut [u64],
        right: &mut [u64],
    ) -> Result<(), ChangeError> {
        if bound.len() != self.layout().key_bytes() {
            return Err(ChangeError::BadKey { len: bound.len() });
        }
        if [self.covers(bound), self.covers_after(bound)] != [Cover::Inside; 2] {
            return Err(ChangeError::OutsideFences);
        }
        let pairs = self.pairs().map_err(|_| ChangeError::Damaged)?;
        self.divide((&pairs, bound), (right_addr, right_stamp), left, right)
    }

    /// Encodes the pairs up to the separator as this leaf, under its next stamp, and the others as a leaf at `right_addr`.
    fn divide(
        &self,
        (pairs, separator): (&[SlotPair], &[u8]),
        (right_addr, right_stamp): (u64, Stamp),
        left: &mut [u64],
        right: &mut [u64],
    ) -> Result<(), ChangeError> {
        let (low, high) = (self.low_fence(), self.high_fence());
        let (lower, upper) =
            pairs.split_at(pairs.partition_point(|pair| pair.0.as_slice() <= separator));
        let head = Head {
            addr: self.self_addr(),
            right: right_addr,
            incarnation: self.incarnation(),
            version: self.next_stamp().word(),
            low: low.as_deref(),
            high: Some(separator),
            ..Head::default()
        };
        self.layout().encode(left, &head, lower)?;
        let head = Head {
            addr: right_addr,
            right: self.right(),
            version: right_stamp.word(),
            low: Some(separator),
            high: high.as_deref(),
            ..Head::default()
        };
        self.layout().encode(right, &head, upper)
    }

    /// The stamp under which the leaf is rewritten.
    fn next_stamp(&self) -> Stamp {
        if REWRITE_KEEPS_STAMP.is_armed() { self.stamp() } else { self.stamp().next() }
    }

    /// The cut nearest to the middle at which all pairs find places in two leaves. Those of this leaf do at each cut,
    /// since they have some now.
    fn cut(&self, pairs: &[SlotPair]) -> Option<usize> {
        let middle = pairs.len().div_ceil(2);
        let nearest = (0..pairs.len()).flat_map(|by| [middle.checked_sub(by), Some(middle + by)]);
        let keys: Vec<&[u8]> = pairs.iter().map(|pair| pair.0.as_slice()).collect();
        nearest.flatten().filter(|cut| (1..keys.len()).contains(cut)).find(|&cut| {
            [&keys[..cut], &keys[cut..]].iter().all(|part| self.layout().places(part).is_some())
        })
    }

    /// Returns whether this leaf takes in all pairs of another one, its neighbour.
    pub fn takes_in(&self, other: &GuardedLeaf<'_>) -> bool {
        if !self.layout().is_hopscotch() {
            return self.count() + other.count() <= self.slots();
        }
        let (Ok(mut pairs), Ok(others)) = (self.pairs(), other.pairs()) else { return false };
        pairs.extend(others);
        let keys: Vec<&[u8]> = pairs.iter().map(|pair| pair.0.as_slice()).collect();
        self.layout().places(&keys).is_some()
    }

    /// Encodes this leaf under another stamp into `out`; for tests that age leaves.
    ///
    /// # Errors
    /// `Damaged` if a slot does not fit.
    pub fn with_stamp(&self, stamp: Stamp, out: &mut [u64]) -> Result<(), ChangeError> {
        let pairs = self.pairs().map_err(|_| ChangeError::Damaged)?;
        let (low, high) = (self.low_fence(), self.high_fence());
        let head = Head {
            addr: self.self_addr(),
            right: self.right(),
            incarnation: self.incarnation(),
            version: stamp.word(),
            low: low.as_deref(),
            high: high.as_deref(),
            ..Head::default()
        };
        self.layout().encode(out, &head, &pairs)
    }

    /// Encodes this leaf under its next stamp, with the pairs of its right neighbour, into `out`.
    ///
    /// # Errors
    /// `NotNeighbours`, `NoRoom`, `Damaged` if a slot does not fit.
    pub fn merge(&self, right: &GuardedLeaf<'_>, out: &mut [u64]) -> Result<(), ChangeError> {
        let fence = self.high_fence();
        if self.right() != right.self_addr() || fence.is_none() || fence != right.low_fence() {
            return Err(ChangeError::NotNeighbours);
        }
        let mut pairs = self.pairs().map_err(|_| ChangeError::Damaged)?;
        pairs.extend(right.pairs().map_err(|_| ChangeError::Damaged)?);
        let (low, high) = (self.low_fence(), right.high_fence());
        let head = Head {
            addr: self.self_addr(),
            right: right.right(),
            incarnation: self.incarnation(),
            version: self.next_stamp().word(),
            low: low.as_deref(),
            high: high.as_deref(),
            ..Head::default()
        };
        self.layout().encode(out, &head, &pairs)
    }
}
