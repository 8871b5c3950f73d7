//! Guarded leaf, read: judges header and slots of one READ.

use super::super::dense::key_word;
use super::super::header::{
    FLAG_HIGH_INFINITE, FLAG_LOW_INFINITE, Kind, Meta, RIGHT_WORD, SELF_WORD, VERSION_WORD, meta,
};
use super::super::verify::NodeError;
use super::super::view::Cover;
use super::super::words::SUM_WORD;
use super::slot::{Guard, is_pair, turn};
use super::{FLAG_GUARDED, GuardedLayout, Stamp};
use crate::Seek;

farleaf_fabric::canaries! {
    pub MISS_UNCHECKED = "miss-unchecked", "a key counts as absent although a slot of its leaf is between two writes";
}

/// The key and the value of a slot.
pub type SlotPair = (Vec<u8>, Vec<u8>);

/// A slot as an image shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotState {
    /// It holds a pair.
    Pair,
    /// It holds none.
    Empty,
    /// Its words are of two writes.
    Torn,
}

/// The answer of an image to a search for a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lookup {
    /// The slot that holds the key.
    Hit(usize),
    /// No slot does, and all fit (`INV-GUARD-2`).
    Miss,
    /// No slot that fits does, and this one does not fit: read again.
    Torn(usize),
}

/// A private image of a guarded leaf that is read.
///
/// No method panics for any content of the words. Before the header fits ([`GuardedLeaf::kind_at`]) the answers of all
/// other methods mean nothing.
#[derive(Debug, Clone, Copy)]
pub struct GuardedLeaf<'a> {
    layout: &'a GuardedLayout,
    words: &'a [u64],
}

impl<'a> GuardedLeaf<'a> {
    /// Views `words` as a leaf.
    ///
    /// # Panics
    /// If there are not exactly [`GuardedLayout::leaf_words`] of them, which is a programmer's error.
    pub fn new(layout: &'a GuardedLayout, words: &'a [u64]) -> Self {
        assert!(words.len() == layout.leaf_words, "an image has the length of the layout's leaves");
        GuardedLeaf { layout, words }
    }

    pub(super) fn image(&self) -> &'a [u64] {
        self.words
    }

    pub(super) fn layout(&self) -> &'a GuardedLayout {
        self.layout
    }

    fn meta(&self) -> Meta {
        meta(self.words)
    }

    /// The kind, if the header fits and is that of a guarded leaf of this tree at `addr`: `Leaf` or `Dead`. Else `Invalid`:
    /// the header is torn, or something else lies there.
    pub fn kind_at(&self, addr: u64) -> Kind {
        match self.header_error(addr) {
            None => self.meta().kind(),
            Some(_) => Kind::Invalid,
        }
    }

    fn header_error(&self, addr: u64) -> Option<NodeError> {
        let meta = self.meta();
        let flags = FLAG_GUARDED | FLAG_LOW_INFINITE | FLAG_HIGH_INFINITE;
        if self.words[SUM_WORD] != self.layout.sum(self.words) {
            Some(NodeError::Sum)
        } else if meta.kind() == Kind::Invalid {
            Some(NodeError::Tag(meta.tag))
        } else if self.words[SELF_WORD] != addr {
            Some(NodeError::Address { expected: addr, found: self.words[SELF_WORD] })
        } else if meta.kind() == Kind::Inner || meta.level != 0 {
            Some(NodeError::Level(meta.level))
        } else if meta.flags & FLAG_GUARDED == 0 || meta.flags & !flags != 0 {
            Some(NodeError::Flags(meta.flags))
        } else if usize::from(meta.count) != self.layout.slots {
            Some(NodeError::Count { count: usize::from(meta.count), cap: self.layout.slots })
        } else {
            None
        }
    }

    /// The stamp that the slots' checks are bound to.
    pub fn stamp(&self) -> Stamp {
        Stamp::of_word(self.words[VERSION_WORD])
    }

    /// The leaf's own address.
    pub fn self_addr(&self) -> u64 {
        self.words[SELF_WORD]
    }

    /// Address of the next leaf, 0 if there is none.
    pub fn right(&self) -> u64 {
        self.words[RIGHT_WORD]
    }

    /// The number of earlier uses of the leaf's memory, as far as the engine counts that.
    pub fn incarnation(&self) -> u16 {
        self.meta().incarnation
    }

    /// The low fence (exclusive); `None` if the leaf is open below.
    pub fn low_fence(&self) -> Option<Vec<u8>> {
        (!self.meta().low_infinite()).then(|| self.fence(false))
    }

    /// The high fence (inclusive); `None` if the leaf is open above.
    pub fn high_fence(&self) -> Option<Vec<u8>> {
        (!self.meta().high_infinite()).then(|| self.fence(true))
    }

    fn fence(&self, is_high: bool) -> Vec<u8> {
        let at = self.layout.fence_at(is_high);
        let words = &self.words[at..at + self.layout.key_words];
        words.iter().flat_map(|word| word.to_be_bytes()).collect()
    }

    /// Returns the place of `key` as seen from the fences. Any byte string is allowed.
    pub fn covers(&self, key: &[u8]) -> Cover {
        self.covers_at(key, false)
    }

    /// Returns the place just above `key`, as seen from the fences.
    pub fn covers_after(&self, key: &[u8]) -> Cover {
        self.covers_at(key, true)
    }

    /// Returns whether the leaf covers a place in the order of keys.
    pub fn covers_place(&self, place: Seek<'_>) -> Cover {
        match place {
            Seek::At(key) => self.covers(key),
            Seek::After(key) => self.covers_after(key),
            Seek::Last if self.right() != 0 => Cover::Above,
            Seek::First | Seek::Last => Cover::Inside,
        }
    }

    fn covers_at(&self, key: &[u8], after: bool) -> Cover {
        let (layout, meta) = (self.layout, self.meta());
        let probe = layout.probe(key, after);
        let is_past = |is_high| {
            let at = layout.fence_at(is_high);
            probe.is_past(layout.key_words, |index| self.words[at + index])
        };
        if !meta.low_infinite() && !is_past(false) {
            Cover::Below
        } else if !meta.high_infinite() && is_past(true) {
            Cover::Above
        } else {
            Cover::Inside
        }
    }

    pub(super) fn guard(&self) -> Guard {
        Guard::of_leaf(self.layout.tree, self.self_addr(), self.stamp().word())
    }

    /// The stored key words, value words and check of a slot.
    pub(super) fn stored(&self, index: usize) -> (&'a [u64], &'a [u64], u64) {
        let layout = self.layout;
        let slot = &self.words[layout.slot_at(index)..][..layout.slot_words()];
        let (keys, rest) = slot.split_at(layout.key_words);
        let (values, check) = rest.split_at(layout.value_words);
        (keys, values, check[0])
    }

    /// Returns what slot `index`, below [`GuardedLayout::slots`], shows. Cost: some nanoseconds.
    pub fn slot(&self, index: usize) -> SlotState {
        self.judge(self.guard().at(index), index)
    }

    fn judge(&self, guard: Guard, index: usize) -> SlotState {
        let (keys, values, check) = self.stored(index);
        let turn = turn(check);
        if is_pair(check) {
            let fits = check == guard.check(turn, keys, values);
            return if fits { SlotState::Pair } else { SlotState::Torn };
        }
        if check == guard.empty(turn, keys, values) { SlotState::Empty } else { SlotState::Torn }
    }

    /// Searches the slots in which `key` may lie. Cost: two multiply-mixes for each slot, about 100 ns for 40 slots.
    pub fn find(&self, key: &[u8]) -> Lookup {
        if key.len() != self.layout.key_bytes() {
            return Lookup::Miss;
        }
        let leaf = self.guard();
        let mut torn = None;
        let first = key_word(&key[..8]);
        for index in self.layout.window(key) {
            let guard = leaf.at(index);
            let (keys, _, check) = self.stored(index);
            let state = self.judge(guard, index);
            if state == SlotState::Torn {
                torn = torn.or(Some(index));
            }
            let begins = keys[0] ^ guard.key_mask(turn(check), 0) == first;
            if state == SlotState::Pair && begins && self.key(index) == key {
                return Lookup::Hit(index);
            }
        }
        let moved = self.has_moved().then(|| self.layout.window(key).start);
        let torn = torn.or(moved).filter(|_| !MISS_UNCHECKED.is_armed());
        torn.map_or(Lookup::Miss, Lookup::Torn)
    }

    /// The key of a slot that holds a pair.
    pub fn key(&self, index: usize) -> Vec<u8> {
        let guard = self.guard().at(index);
        let (keys, _, check) = self.stored(index);
        let words = keys.iter().enumerate();
        words
            .flat_map(|(at, word)| (word ^ guard.key_mask(turn(check), at)).to_be_bytes())
            .collect()
    }

    /// Puts the value of a slot that holds a pair into `out`.
    pub fn value(&self, index: usize, out: &mut Vec<u8>) {
        let guard = self.guard().at(index);
        let (_, values, check) = self.stored(index);
        out.clear();
        for (at, word) in values.iter().enumerate() {
            out.extend_from_slice(&(word ^ guard.value_mask(turn(check), at)).to_le_bytes());
        }
    }

    /// All pairs in the order of their keys. The error is the index of a slot that does not fit.
    ///
    /// A pair that moved to another slot during the READ counts once.
    ///
    /// # Errors
    /// The index of the first slot that is torn.
    pub fn pairs(&self) -> Result<Vec<SlotPair>, usize> {
        let mut pairs = Vec::with_capacity(self.layout.slots);
        for index in 0..self.layout.slots {
            match self.slot(index) {
                SlotState::Empty => {}
                SlotState::Torn => return Err(index),
                SlotState::Pair => {
                    let mut value = Vec::with_capacity(self.layout.value_bytes());
                    self.value(index, &mut value);
                    pairs.push((self.key(index), value));
                }
            }
        }
        pairs.sort_by(|a, b| a.0.cmp(&b.0));
        pairs.dedup_by(|a, b| a.0 == b.0);
        Ok(pairs)
    }

    /// Slots of the leaf, free ones among them.
    pub fn slots(&self) -> usize {
        self.layout.slots
    }

    /// Slots that hold a pair.
    pub fn count(&self) -> usize {
        let leaf = self.guard();
        let is_pair = |index: &usize| self.judge(leaf.at(*index), *index) == SlotState::Pair;
        (0..self.layout.slots).filter(is_pair).count()
    }

    /// Checks the image of a leaf at rest: header, fences, every slot, keys inside the fences and once each.
    ///
    /// # Errors
    /// The first thing that is wrong: [`NodeError::Cell`] for a slot that does not fit.
    pub fn verify(&self, addr: u64) -> Result<(), NodeError> {
        if let Some(error) = self.header_error(addr) {
            return Err(error);
        }
        if self.meta().kind() == Kind::Dead {
            return Err(NodeError::Dead);
        }
        if let (Some(low), Some(high)) = (self.low_fence(), self.high_fence())
            && low >= high
        {
            return Err(NodeError::Fences);
        }
        let mut keys = Vec::new();
        for index in 0..self.layout.slots {
            match self.slot(index) {
                SlotState::Empty => {}
                SlotState::Torn => return Err(NodeError::Cell { index }),
                SlotState::Pair => {
                    let key = self.key(index);
                    if self.covers(&key) != Cover::Inside {
                        return Err(NodeError::Outside { index });
                    }
                    if !self.layout.window(&key).contains(&index) {
                        return Err(NodeError::Place { index });
                    }
                    keys.push((key, index));
                }
            }
        }
        keys.sort();
        // A dead client's hop leaves a pair in two slots, with one value (`INV-HOP-3`).
        let may_repeat = self.layout.is_hopscotch() && !self.has_two_values();
        match keys.windows(2).find(|two| two[0].0 == two[1].0 && !may_repeat) {
            Some(two) => Err(NodeError::Order { index: two[1].1 }),
            None => Ok(()),
        }
    }
}
