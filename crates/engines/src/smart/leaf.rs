//! Leaf: one pair with a lock at its end, changed in place; the content gives the lock back.
//!
//! ```text
//! 0 head   birth:34 | klen:11 | vlen:11 | VALID | RECORD | n:6     n + 1 with each change
//! 8 sum    xxh3-64 of table number, own address, head, by, key and value
//! 16 by    token of the writer
//! 24 key, then value, each padded with zeros to 8 bytes      end - 8 lock
//! ```
//!
//! The lock word always holds the token of its last locker. The lock is free if the leaf is whole (its sum fits) and
//! `by` holds the same token. So the WRITE of the content gives the lock back, in whatever order its words land. A
//! WRITE covers only words that differ: one that lands late and stores what was there before would undo the next
//! writer's. Key words never change, so it may cover those.
//!
//! If RECORD is set, the value is one word that names a record (`record.rs`).

use std::ops::Range;

use farleaf_fabric::GlobalAddr;
use xxhash_rust::xxh3::xxh3_64_with_seed;
use zerocopy::IntoBytes;

use super::layout::LeafClass;

farleaf_fabric::canaries! {
    pub(crate) REWRITE_EQUAL_WORDS = "rewrite-equal-words",
        "a leaf's WRITE covers the words that stay as they are";
    pub(crate) REVIVE_HEAD_FIRST = "revive-head-first",
        "the head of a removed leaf that comes back is written before its value";
}

/// Set in the lock of a leaf whose value moves to another leaf.
pub(super) const MOVING: u64 = 1 << 62;
const VALID: u64 = 1 << 56;
const RECORD: u64 = 1 << 57;
const BIRTH: u64 = (1 << 34) - 1;
const LEN: u64 = (1 << 11) - 1;
/// First word of the key.
const KEY: usize = 3;
/// Words beside key and value.
const FIXED_WORDS: usize = 4;

/// The new value of a leaf's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NewValue<'a> {
    /// Nothing: the key is absent.
    Absent,
    /// This.
    Inline(&'a [u8]),
    /// The value in the record that this word names.
    Record(u64),
}

impl<'a> NewValue<'a> {
    /// The value, if it is in the leaf.
    pub(super) fn inline(self) -> Option<&'a [u8]> {
        match self {
            NewValue::Inline(value) => Some(value),
            NewValue::Absent | NewValue::Record(_) => None,
        }
    }

    /// Bytes in the leaf.
    pub(super) fn bytes(&self) -> usize {
        match self {
            NewValue::Absent => 0,
            NewValue::Inline(value) => value.len(),
            NewValue::Record(_) => 8,
        }
    }
}

/// Bytes of a leaf with such a key and value.
pub(super) fn leaf_bytes(key: usize, value: usize) -> usize {
    FIXED_WORDS * 8 + key.next_multiple_of(8) + value.next_multiple_of(8)
}

/// A leaf as it was read at `addr`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leaf<'a> {
    table: u64,
    addr: GlobalAddr,
    words: &'a [u64],
}

impl<'a> Leaf<'a> {
    pub(super) fn new(table: u64, addr: GlobalAddr, words: &'a [u64]) -> Leaf<'a> {
        Leaf { table, addr, words }
    }

    fn head(self) -> u64 {
        self.words[0]
    }

    /// Returns whether the key is present.
    pub(super) fn is_valid(self) -> bool {
        self.head() & VALID != 0
    }

    fn has_record(self) -> bool {
        self.head() & RECORD != 0
    }

    pub(super) fn by(self) -> u64 {
        self.words[2]
    }

    pub(super) fn lock(self) -> u64 {
        self.words[self.words.len() - 1]
    }

    /// Returns whether its value moves, or has moved, to another leaf.
    pub(super) fn is_moving(self) -> bool {
        self.lock() & MOVING != 0 && self.lock() != self.by()
    }

    fn key_len(self) -> usize {
        (self.head() >> 34 & LEN) as usize
    }

    fn value_len(self) -> usize {
        (self.head() >> 45 & LEN) as usize
    }

    /// Returns whether key and value fit into the object.
    pub(super) fn is_sound(self) -> bool {
        leaf_bytes(self.key_len(), self.value_len()) <= self.words.len() * 8
    }

    /// Returns whether all words are of one content.
    pub(super) fn is_whole(self) -> bool {
        self.is_sound() && self.words[1] == self.sum()
    }

    /// Returns whether nobody has locked it. Asked of a whole leaf.
    pub(super) fn is_free(self) -> bool {
        self.lock() == self.by()
    }

    /// Returns whether it was made at view `c` or before: then a slot that was read at `c` leads to it.
    pub(super) fn is_born_by(self, c: u64) -> bool {
        c.wrapping_sub(self.head()) & BIRTH < 1 << 33
    }

    /// The key; as much of it as the object holds.
    pub(super) fn key(self) -> &'a [u8] {
        let bytes = self.words[KEY..self.words.len() - 1].as_bytes();
        &bytes[..self.key_len().min(bytes.len())]
    }

    /// The value's bytes in the leaf. Asked of a sound leaf.
    fn value(self) -> &'a [u8] {
        let first = KEY + self.key_len().div_ceil(8);
        &self.words[first..].as_bytes()[..self.value_len()]
    }

    /// Returns the value of the key. Asked of a sound leaf.
    pub(super) fn content(self) -> NewValue<'a> {
        match (self.is_valid(), self.has_record()) {
            (false, _) => NewValue::Absent,
            (true, false) => NewValue::Inline(self.value()),
            (true, true) => {
                let word = self.words[KEY + self.key_len().div_ceil(8)];
                NewValue::Record(word)
            }
        }
    }

    /// Returns whether a value of so many bytes fits in its place.
    pub(super) fn has_room(self, value: usize) -> bool {
        leaf_bytes(self.key_len(), value) <= self.words.len() * 8
    }

    fn sum(self) -> u64 {
        let used = KEY + self.key_len().div_ceil(8) + self.value_len().div_ceil(8);
        let place = self.table ^ self.addr.word().rotate_left(17);
        let seed = xxh3_64_with_seed(&self.head().to_le_bytes(), place);
        xxh3_64_with_seed(self.words[2..used].as_bytes(), seed)
    }
}

/// The words of a new leaf, whose first token is `by`.
pub(super) fn fill_leaf(
    table: u64,
    addr: GlobalAddr,
    words: &mut [u64],
    birth: u64,
    (key, value): (&[u8], NewValue<'_>),
    by: u64,
) {
    words.fill(0);
    words[0] = birth & BIRTH | (key.len() as u64) << 34;
    let last = words.len() - 1;
    words[KEY..last].as_mut_bytes()[..key.len()].copy_from_slice(key);
    words[last] = by;
    set_content(table, addr, words, value, by);
}

/// Gives a leaf's words another content by `by`.
pub(super) fn set_content(
    table: u64,
    addr: GlobalAddr,
    words: &mut [u64],
    value: NewValue<'_>,
    by: u64,
) {
    let old = Leaf::new(table, addr, words);
    let (n, key_len) = ((old.head() >> 58).wrapping_add(1) & 0x3f, old.key_len());
    let mut head = old.head() & (BIRTH | LEN << 34) | n << 58;
    let first = KEY + key_len.div_ceil(8);
    let len = value.bytes();
    let place = &mut words[first..first + len.div_ceil(8)];
    match value {
        NewValue::Absent => {}
        NewValue::Inline(value) => {
            head |= VALID | (len as u64) << 45;
            if let Some(last) = place.last_mut() {
                *last = 0;
            }
            place.as_mut_bytes()[..len].copy_from_slice(value);
        }
        NewValue::Record(word) => {
            head |= VALID | RECORD | 8 << 45;
            place[0] = word;
        }
    }
    words[0] = head;
    seal(table, addr, words, by);
}

/// Makes what is there whole, as written by `by`.
pub(super) fn seal(table: u64, addr: GlobalAddr, words: &mut [u64], by: u64) {
    words[2] = by;
    words[1] = Leaf::new(table, addr, words).sum();
}

/// The differences between two contents of one leaf, as runs of words to write.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Changed {
    /// Runs in the order in which they are to be written.
    pub(super) runs: Vec<Range<usize>>,
    /// A death in between could leave a value that is neither the old nor the new one.
    pub(super) needs_redo: bool,
}

/// Compares `old` with `new`. A deleted leaf that comes back gets its value first, so that no mixture of words shows
/// a present key with another value.
pub(super) fn changed(old: &[u64], new: &[u64]) -> Changed {
    let is_valid = |words: &[u64]| words[0] & VALID != 0;
    let revives = !is_valid(old) && is_valid(new);
    let key_words = (new[0] >> 34 & LEN).div_ceil(8) as usize;
    let value = KEY + key_words;
    let end = new.len() - 1;
    let differs = |at: &usize| old[*at] != new[*at] || REWRITE_EQUAL_WORDS.is_armed();
    if revives {
        let mut runs = runs_of((value..end).filter(differs), value);
        let head = runs_of((0..KEY).filter(differs), value);
        if REVIVE_HEAD_FIRST.is_armed() {
            runs.splice(..0, head);
        } else {
            runs.extend(head);
        }
        return Changed { runs, needs_redo: false };
    }
    let runs = runs_of((0..KEY).chain(value..end).filter(differs), value);
    let value_words = (value..end).filter(differs).count();
    let lens_differ = (old[0] ^ new[0]) >> 45 & LEN != 0;
    let stays = is_valid(old) && is_valid(new);
    let needs_redo = stays && (value_words > 1 || value_words == 1 && lens_differ);
    Changed { runs, needs_redo }
}

/// Joins words to runs; the key's words, in front of word `value`, may be covered.
fn runs_of(words: impl Iterator<Item = usize>, value: usize) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for at in words {
        match runs.last_mut() {
            Some(run) if run.end == at || run.end == KEY && at == value => run.end = at + 1,
            _ => runs.push(at..at + 1),
        }
    }
    runs
}

/// The class of a leaf with `lead` words in front and such a key and value; `None` if the value must go to a record.
pub(super) fn class_for(lead: usize, key: usize, value: usize) -> Option<LeafClass> {
    LeafClass::of(8 * lead + leaf_bytes(key, value))
}

#[cfg(test)]
#[path = "leaf_tests.rs"]
mod tests;
