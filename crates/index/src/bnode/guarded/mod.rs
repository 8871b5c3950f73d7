//! Guarded leaf: unsorted slots with a check each, so that a change writes one slot and a reader needs one READ.
//!
//! For fixed keys and values in whole words, as in the dense layout. A leaf lives at level 0 of a tree whose inner nodes
//! are the kit's, and it has their header; its checksum covers the header and the fences alone.
//!
//! | off | field |
//! |---|---|
//! | 0 | count of hops, see `hopscotch.rs`; else 0; outside of the checksum |
//! | 8, 16, 24, 32, 40 | as in every node: own address, fences of keys of one word, right sibling, small fields |
//! | 48 | checksum of words 1 to 5, word 7 and the fences |
//! | 56 | stamp: birth in the high 40 bits, whole rewrites in the low 24 |
//! | 64 | keys of more than one word: low fence, high fence |
//! | then | slots: key, value, check |
//!
//! # Slots
//!
//! A slot never moves while the stamp stays. Its *turn* (16 bits in its check) changes with each insert into it, also after
//! one that was cut short. Stored key and value words are masked by turn, place, stamp, address and table. So words of two
//! lives of a slot never pass for one pair. A slot *fits* if its check is that of its stored words, as a pair or as an
//! empty slot in which they are left.
//!
//! | change | words written, one WRITE without a redo record | cut short, the next holder of the lock finds |
//! |---|---|---|
//! | insert | the whole slot, under the next turn | no fit: it empties the slot |
//! | update, values of one word | value, check | no fit: both values are whole, and it makes the check anew |
//! | remove, values of one word | value (the slot's blank word), check | no fit: it empties the slot |
//! | remove, other values | check | nothing |
//!
//! A slot that is emptied so takes the next turn. An empty slot's check must name the words left in it: else an insert of
//! which only a key or value word has landed leaves no trace, and the next one takes the same turn. Three inserts that die
//! one after the other then show a READ a pair that never was: a word of the first, overwritten by the second, and the rest
//! of the third.
//!
//! A *wide* change ([`SlotEdit::is_wide`]) is one that a death may leave neither done nor undone: an update of a longer
//! value, or one from or to the blank word. The engine writes a redo record in front of it.
//!
//! # Invariants
//!
//! - `INV-GUARD-1` A slot that fits holds the key and value of one write, current at an instant of the READ.
//! - `INV-GUARD-2` If the header fits, all slots fit, and none holds a key, the key was absent at an instant of the READ.
//! - `INV-GUARD-3` An address and a stamp never come again for other content: each rewrite of the whole leaf takes the
//!   next stamp.
//! - `INV-GUARD-4` No key is in two slots of a leaf at rest.
//! - `INV-GUARD-5` Only the holder of the leaf's lock mends slots.
//!
//! Source: Wang, Lu, Shu (SIGMOD 2022) for unsorted entries that are written one by one. Differs: their two-level versions
//! of 4 bits accept torn entries once they wrap, and take an entry that does not fit for an absent one.

mod edit;
mod hopscotch;
mod slot;
mod view;

#[cfg(test)]
mod hop_tests;
#[cfg(test)]
mod tests;

pub use edit::{
    BUILD_CLEARS_TORN, BUILD_KEEPS_TORN, GuardedLeafMut, Mend, Mended, REWRITE_KEEPS_STAMP,
    SlotEdit,
};
pub use hopscotch::{CLEAR_BEFORE_COPY, DEAD_KEEPS_SLOTS, Hop, UPDATE_ONE_OF_TWO, note_moves};
pub use view::{GuardedLeaf, Lookup, MISS_UNCHECKED, SlotPair, SlotState};

use xxhash_rust::xxh3::xxh3_64;
use zerocopy::IntoBytes;

use super::dense::Probe;
use super::edit::ChangeError;
use super::encode::set_key;
use super::header::{
    FLAG_HIGH_INFINITE, FLAG_LOW_INFINITE, HIGH_WORD, Head, LOW_WORD, META_WORD, Meta, RIGHT_WORD,
    SELF_WORD, TAG, VERSION_WORD,
};
use super::words::{HEAD_WORDS, SUM_WORD};
use crate::spec::{KeyFormat, Spec, ValueFormat};
use slot::Guard;

/// Marks a leaf of guarded slots among the header's flags.
const FLAG_GUARDED: u8 = 8;
/// The kind of a leaf in the header.
const KIND_LEAF: u8 = 1;
/// Bits of a stamp that count rewrites.
const REWRITE_BITS: u32 = 24;
const BIRTH_MASK: u64 = (1 << (64 - REWRITE_BITS)) - 1;
/// Longest key and value in bytes.
const KEY_MAX: usize = 64;
const VALUE_MAX: usize = 256;
/// Smallest and largest leaf in bytes, and what a leaf's size is a multiple of.
const LEAF_BYTES_MIN: usize = 256;
const LEAF_BYTES_MAX: usize = 64 << 10;
const LEAF_BYTES_STEP: usize = 64;
/// Fewest slots: a split parts two pairs.
const SLOTS_MIN: usize = 2;

/// The birth of a leaf and the count of its whole rewrites: the header's word 7.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp(u64);

impl Stamp {
    /// The first stamp of a leaf that is made at `epoch`, the maker's view of the pool's epochs.
    pub fn at_birth(epoch: u64) -> Self {
        Stamp(epoch << REWRITE_BITS)
    }

    /// The stamp that a header holds; word 7 of any node that bears its birth.
    pub fn of_word(word: u64) -> Self {
        Stamp(word)
    }

    /// The stamp as the header holds it.
    pub fn word(self) -> u64 {
        self.0
    }

    /// The stamp of the next rewrite. A count that wraps adds one to the birth: remembered pointers then refuse the leaf
    /// until their view has passed it.
    #[must_use]
    pub fn next(self) -> Self {
        Stamp(self.0.wrapping_add(1))
    }

    /// Returns whether a pointer that was read at `epoch` may lead to this leaf: whether it was born by then.
    ///
    /// Births are compared modulo 2^40. A pointer that is 2^39 epochs old or older must be dropped before.
    pub fn is_born_by(self, epoch: u64) -> bool {
        epoch.wrapping_sub(self.0 >> REWRITE_BITS) & BIRTH_MASK < 1 << (63 - REWRITE_BITS)
    }
}

/// Why there is no layout of guarded leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum GuardedLayoutError {
    /// The size of a leaf is out of range or no multiple of a line.
    #[error(
        "leaf size {0} is not a multiple of {LEAF_BYTES_STEP} from {LEAF_BYTES_MIN} to {LEAF_BYTES_MAX} bytes"
    )]
    LeafBytes(usize),
    /// Keys or values are not of fixed whole words.
    #[error(
        "guarded leaves take fixed keys of 8 to {KEY_MAX} bytes and fixed values of 0 to {VALUE_MAX} bytes, \
         multiples of 8: tables of other keys and values need the kit's other leaves"
    )]
    Format,
    /// Fewer than two pairs fit.
    #[error(
        "two pairs of {pair} bytes do not fit in a leaf of {leaf_bytes} bytes, which needs at least {least}"
    )]
    Pairs {
        /// Bytes of a slot.
        pair: usize,
        /// Bytes of a leaf.
        leaf_bytes: usize,
        /// Bytes of the smallest leaf that takes two.
        least: usize,
    },
    /// A capacity is below 2 or more than fits.
    #[error("capacity {cap} is not from {SLOTS_MIN} to the {fits} slots that fit")]
    Capacity {
        /// Capacity asked for.
        cap: usize,
        /// Slots that fit.
        fits: usize,
    },
    /// A neighbourhood is smaller or larger than may be.
    #[error(
        "a neighbourhood of {neighbourhood} slots is not from 2 to {most}: a leaf has {slots} slots, and 16 are the most"
    )]
    Neighbourhood {
        /// Slots of the neighbourhood.
        neighbourhood: usize,
        /// Slots of a leaf.
        slots: usize,
        /// Slots of the largest neighbourhood of such a leaf.
        most: usize,
    },
}

/// Sizes of a table's guarded leaves, and the number of its tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GuardedLayout {
    leaf_words: usize,
    key_words: usize,
    value_words: usize,
    slots: usize,
    /// Slots in which a key may lie; 0 for all.
    neighbourhood: usize,
    tree: u64,
}

impl GuardedLayout {
    /// Works out the layout of leaves of `leaf_bytes`, with at most `cap` slots, for the tree numbered `tree`.
    ///
    /// # Errors
    /// [`GuardedLayoutError`].
    pub fn new(
        leaf_bytes: usize,
        spec: &Spec,
        cap: Option<u16>,
        tree: u64,
    ) -> Result<Self, GuardedLayoutError> {
        if !leaf_bytes.is_multiple_of(LEAF_BYTES_STEP)
            || !(LEAF_BYTES_MIN..=LEAF_BYTES_MAX).contains(&leaf_bytes)
        {
            return Err(GuardedLayoutError::LeafBytes(leaf_bytes));
        }
        let (key, value) = match (spec.key, spec.value) {
            (KeyFormat::Fixed(key), ValueFormat::Fixed(value))
                if (8..=KEY_MAX).contains(&key) && value <= VALUE_MAX =>
            {
                (key, value)
            }
            _ => return Err(GuardedLayoutError::Format),
        };
        if key % 8 != 0 || value % 8 != 0 {
            return Err(GuardedLayoutError::Format);
        }
        let (leaf_words, key_words, value_words) = (leaf_bytes / 8, key / 8, value / 8);
        let (slots, neighbourhood) = (0, 0);
        let mut layout =
            GuardedLayout { leaf_words, key_words, value_words, slots, neighbourhood, tree };
        let stride = layout.slot_words();
        let fits = (leaf_words - layout.slots_at()) / stride;
        if fits < SLOTS_MIN {
            let least = (8 * (layout.slots_at() + SLOTS_MIN * stride)).max(LEAF_BYTES_MIN);
            let least = least.next_multiple_of(LEAF_BYTES_STEP);
            return Err(GuardedLayoutError::Pairs { pair: 8 * stride, leaf_bytes, least });
        }
        layout.slots = match cap.map(usize::from) {
            None => fits,
            Some(cap) if (SLOTS_MIN..=fits).contains(&cap) => cap,
            Some(cap) => return Err(GuardedLayoutError::Capacity { cap, fits }),
        };
        Ok(layout)
    }

    /// Bytes of a leaf: what a READ of one takes.
    pub fn leaf_bytes(&self) -> usize {
        self.leaf_words * 8
    }

    /// Words of a leaf: the length of every image.
    pub fn leaf_words(&self) -> usize {
        self.leaf_words
    }

    /// Slots of a leaf.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Bytes of a key.
    pub fn key_bytes(&self) -> usize {
        self.key_words * 8
    }

    /// Bytes of a value.
    pub fn value_bytes(&self) -> usize {
        self.value_words * 8
    }

    /// Writes a leaf of `pairs`, which ascend and lie inside the fences, into `words`. `head.version` is its stamp.
    ///
    /// # Errors
    /// [`ChangeError`] if the pairs do not fit, are not sorted, or do not belong to the layout; `words` then hold no leaf.
    ///
    /// # Panics
    /// If `words` has not the length of a leaf.
    pub fn encode<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        words: &mut [u64],
        head: &Head<'_>,
        pairs: &[(K, V)],
    ) -> Result<(), ChangeError> {
        assert!(words.len() == self.leaf_words, "an image has the length of the layout's leaves");
        words.fill(0);
        self.check_head(head)?;
        for (index, (key, value)) in pairs.iter().enumerate() {
            let (key, value) = (key.as_ref(), value.as_ref());
            self.check_pair(key, value)?;
            if index > 0 && pairs[index - 1].0.as_ref() >= key {
                return Err(ChangeError::Unsorted { index });
            }
            if head.low.is_some_and(|low| key <= low) || head.high.is_some_and(|high| key > high) {
                return Err(ChangeError::OutsideFences);
            }
        }
        let keys: Vec<&[u8]> = pairs.iter().map(|(key, _)| key.as_ref()).collect();
        let places = self.places(&keys).ok_or(ChangeError::NoRoom)?;
        let mut flags = FLAG_GUARDED;
        flags |= if head.low.is_none() { FLAG_LOW_INFINITE } else { 0 };
        flags |= if head.high.is_none() { FLAG_HIGH_INFINITE } else { 0 };
        let slots = self.slots as u16;
        let incarnation = head.incarnation;
        let kind = KIND_LEAF;
        let meta = Meta { kind, level: 0, count: slots, flags, tag: TAG, incarnation };
        words[SELF_WORD] = head.addr;
        words[RIGHT_WORD] = head.right;
        words[META_WORD] = meta.pack();
        words[VERSION_WORD] = head.version;
        for (fence, is_high) in [(head.low, false), (head.high, true)] {
            let at = self.fence_at(is_high);
            fence.into_iter().for_each(|fence| set_key(&mut words[at..at + self.key_words], fence));
        }
        words[SUM_WORD] = self.sum(words);
        let stamp = head.version;
        let mut pair_at = vec![None; self.slots];
        places.iter().enumerate().for_each(|(pair, &place)| pair_at[place] = Some(pair));
        for (index, pair) in pair_at.into_iter().enumerate() {
            let guard = Guard::new(self.tree, head.addr, stamp, index);
            let slot = &mut words[self.slot_at(index)..][..self.slot_words()];
            match pair.map(|pair| &pairs[pair]) {
                Some((key, value)) => self.store(&guard, slot, 1, key.as_ref(), value.as_ref()),
                None => self.store_empty(&guard, slot, 0),
            }
        }
        Ok(())
    }

    fn check_head(&self, head: &Head<'_>) -> Result<(), ChangeError> {
        if head.level != 0 {
            return Err(ChangeError::WrongKind);
        }
        for fence in [head.low, head.high].into_iter().flatten() {
            if fence.len() != self.key_bytes() {
                return Err(ChangeError::BadKey { len: fence.len() });
            }
        }
        match (head.low, head.high) {
            (Some(low), Some(high)) if low >= high => Err(ChangeError::OutsideFences),
            _ => Ok(()),
        }
    }

    fn check_pair(&self, key: &[u8], value: &[u8]) -> Result<(), ChangeError> {
        if key.len() != self.key_bytes() {
            return Err(ChangeError::BadKey { len: key.len() });
        }
        if value.len() != self.value_bytes() {
            return Err(ChangeError::BadValue { len: value.len() });
        }
        Ok(())
    }

    /// Stores a pair and its check in the words of a slot.
    fn store(&self, guard: &Guard, slot: &mut [u64], turn: u16, key: &[u8], value: &[u8]) {
        let (keys, rest) = slot.split_at_mut(self.key_words);
        let (values, check) = rest.split_at_mut(self.value_words);
        set_key(keys, key);
        for (at, word) in keys.iter_mut().enumerate() {
            *word ^= guard.key_mask(turn, at);
        }
        for (at, (word, bytes)) in values.iter_mut().zip(value.as_chunks::<8>().0).enumerate() {
            *word = u64::from_le_bytes(*bytes) ^ guard.value_mask(turn, at);
        }
        check[0] = guard.check(turn, keys, values);
    }

    /// Empties a slot: the check, and the blank word for values of one word. Other words stay as they are.
    fn store_empty(&self, guard: &Guard, slot: &mut [u64], turn: u16) {
        if self.has_word_values() {
            slot[self.key_words] = guard.blank();
        }
        let (words, check) = slot.split_at_mut(self.slot_words() - 1);
        let (keys, values) = words.split_at(self.key_words);
        check[0] = guard.empty(turn, keys, values);
    }

    /// Returns whether a value is one word, so that each half of a torn update is a whole value.
    fn has_word_values(&self) -> bool {
        self.value_words == 1
    }

    /// Words of a slot.
    fn slot_words(&self) -> usize {
        self.key_words + self.value_words + 1
    }

    /// The first word of the slots.
    fn slots_at(&self) -> usize {
        HEAD_WORDS + if self.key_words == 1 { 0 } else { 2 * self.key_words }
    }

    /// The first word of a slot.
    fn slot_at(&self, index: usize) -> usize {
        self.slots_at() + index * self.slot_words()
    }

    fn fence_at(&self, is_high: bool) -> usize {
        match (self.key_words, is_high) {
            (1, false) => LOW_WORD,
            (1, true) => HIGH_WORD,
            (_, false) => HEAD_WORDS,
            (key_words, true) => HEAD_WORDS + key_words,
        }
    }

    /// The checksum of header and fences.
    fn sum(&self, words: &[u64]) -> u64 {
        let mut front = [0_u64; 8 + 2 * KEY_MAX / 8];
        front[..SUM_WORD - 1].copy_from_slice(&words[1..SUM_WORD]);
        front[SUM_WORD - 1] = words[VERSION_WORD];
        front[SUM_WORD] = self.tree;
        let fences = &words[HEAD_WORDS..self.slots_at()];
        front[SUM_WORD + 1..][..fences.len()].copy_from_slice(fences);
        xxh3_64(front[..SUM_WORD + 1 + fences.len()].as_bytes())
    }

    /// A place in the order of keys, to compare with fences.
    fn probe(&self, key: &[u8], after: bool) -> Probe {
        Probe::new(self.key_words, key, after)
    }
}
