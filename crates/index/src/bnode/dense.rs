//! Dense layout: reads sorted words.
//!
//! Leaf payload: entries of `key_words` and value words. Inner payload: `inner_slots` separators, then
//! `inner_slots + 1` children. Key words hold eight bytes each as a big-endian number, so that comparing
//! numbers compares bytes; value words hold bytes in image order. Keys of several words have their
//! fences in the last words of the image.

use std::cmp::Ordering;
use std::hint::select_unpredictable;

use super::header::{HIGH_WORD, Kind, LOW_WORD};
use super::layout::Layout;
use super::view::{Cover, Node};
use super::words::{HEAD_WORDS, Word, word};

/// A byte string of any length as a place among keys of a fixed number of words.
///
/// A shorter string has the same keys before it as its zero-padded form; a longer one lies just after
/// the key that it starts with.
pub(super) struct Probe {
    words: [u64; 8],
    /// True: the place is behind an equal key. False: before it.
    after: bool,
    /// True if the string has a key's length.
    exact: bool,
}

impl Probe {
    pub(super) fn new(key_words: usize, key: &[u8], after: bool) -> Self {
        let bytes = key_words * 8;
        let mut words = [0; 8];
        for (into, chunk) in words.iter_mut().zip(key[..key.len().min(bytes)].chunks(8)) {
            *into = key_word(chunk);
        }
        let after = match key.len().cmp(&bytes) {
            Ordering::Less => false,
            Ordering::Equal => after,
            Ordering::Greater => true,
        };
        Self { words, after, exact: key.len() == bytes }
    }

    /// Tells whether the key whose words `at` gives lies before this place.
    #[inline(always)]
    pub(super) fn is_past(&self, key_words: usize, at: impl Fn(usize) -> u64) -> bool {
        for (index, &mine) in self.words.iter().enumerate().take(key_words) {
            let theirs = at(index);
            if theirs != mine {
                return theirs < mine;
            }
        }
        self.after
    }
}

/// Up to eight bytes as a big-endian number, padded with zeros behind.
#[inline(always)]
pub(super) fn key_word(bytes: &[u8]) -> u64 {
    if let Some(all) = bytes.first_chunk::<8>() {
        return u64::from_be_bytes(*all);
    }
    let mut padded = [0; 8];
    padded[..bytes.len()].copy_from_slice(bytes);
    u64::from_be_bytes(padded)
}

/// One-word form of [`Probe`]: the number and whether the place is behind it.
#[inline(always)]
fn probe_word(key: &[u8], after: bool) -> (u64, bool) {
    match <[u8; 8]>::try_from(key) {
        Ok(bytes) => (u64::from_be_bytes(bytes), after),
        Err(_) => (key_word(key), key.len() > 8),
    }
}

/// Counts the numbers of `0..count` that come before the first for which `before` is false, by halving.
#[inline(always)]
pub(super) fn count_before(count: usize, before: impl FnMut(usize) -> bool) -> usize {
    count_by(count, before, |is_before, behind, here| if is_before { behind } else { here })
}

/// As [`count_before`], without a guess of the processor at each step: half of the guesses are wrong, and each costs more
/// than a step whose word is near.
#[inline(always)]
pub(super) fn count_before_unguessed(count: usize, before: impl FnMut(usize) -> bool) -> usize {
    count_by(count, before, select_unpredictable)
}

/// Counts by halving; `choose` takes one of two numbers.
#[inline(always)]
fn count_by(
    count: usize,
    mut before: impl FnMut(usize) -> bool,
    choose: impl Fn(bool, usize, usize) -> usize,
) -> usize {
    if count == 0 {
        return 0;
    }
    let (mut base, mut size) = (0, count);
    while size > 1 {
        let half = size / 2;
        base = choose(before(base + half), base + half, base);
        size -= half;
    }
    base + usize::from(before(base))
}

/// The words of the low or high fence.
pub(super) fn fence_at(layout: &Layout, high: bool) -> usize {
    match (layout.key_words, high) {
        (1, false) => LOW_WORD,
        (1, true) => HIGH_WORD,
        (key_words, false) => layout.node_words - 2 * key_words,
        (key_words, true) => layout.node_words - key_words,
    }
}

impl<W: Word> Node<'_, W> {
    /// Words behind the header.
    #[inline(always)]
    fn payload(&self) -> &[W] {
        self.words.get(HEAD_WORDS..).unwrap_or(&[])
    }

    #[inline(always)]
    pub(super) fn dense_covers(&self, key: &[u8], after: bool) -> Cover {
        let meta = self.meta();
        let key_words = self.layout.key_words;
        let (past_low, past_high) = if key_words == 1 {
            let (mine, after) = probe_word(key, after);
            let past = |fence: u64| fence < mine || (after && fence == mine);
            (past(word(self.words, LOW_WORD)), past(word(self.words, HIGH_WORD)))
        } else {
            let probe = Probe::new(key_words, key, after);
            let past = |high| {
                let at = fence_at(self.layout, high);
                probe.is_past(key_words, |index| word(self.words, at + index))
            };
            (past(false), past(true))
        };
        if !past_low && !meta.low_infinite() {
            Cover::Below
        } else if past_high && !meta.high_infinite() {
            Cover::Above
        } else {
            Cover::Inside
        }
    }

    /// Separators before `key`, or, `after` it, up to it.
    #[inline(always)]
    pub(super) fn dense_separator_position(&self, count: usize, key: &[u8], after: bool) -> usize {
        let key_words = self.layout.key_words;
        if key_words == 1 {
            let (mine, after) = probe_word(key, after);
            let payload = self.payload();
            return if after {
                count_before(count, |index| word(payload, index) <= mine)
            } else {
                count_before(count, |index| word(payload, index) < mine)
            };
        }
        self.dense_position_wide(count, key_words, &Probe::new(key_words, key, after))
    }

    /// Entries before `key`, or, `after` it, up to it.
    #[inline(always)]
    pub(super) fn dense_entry_position(&self, count: usize, key: &[u8], after: bool) -> usize {
        let (key_words, stride) = (self.layout.key_words, self.layout.stride);
        if key_words > 1 {
            return self.dense_position_wide(count, stride, &Probe::new(key_words, key, after));
        }
        let (mine, after) = probe_word(key, after);
        if stride == 2 {
            let entries = self.payload().as_chunks::<2>().0;
            let entries = entries.get(..count).unwrap_or(&[]);
            return if after {
                entries.partition_point(|[key, _]| key.load() <= mine)
            } else {
                entries.partition_point(|[key, _]| key.load() < mine)
            };
        }
        let payload = self.payload();
        count_before(count, |index| {
            let key = word(payload, index * stride);
            key < mine || (after && key == mine)
        })
    }

    fn dense_position_wide(&self, count: usize, stride: usize, probe: &Probe) -> usize {
        let (payload, key_words) = (self.payload(), self.layout.key_words);
        count_before(count, |index| {
            probe.is_past(key_words, |at| word(payload, index * stride + at))
        })
    }

    /// Index of the first entry at or above `key`, and whether it is at `key`.
    #[inline(always)]
    pub(super) fn dense_find(&self, count: usize, key: &[u8]) -> (usize, bool) {
        let (key_words, stride) = (self.layout.key_words, self.layout.stride);
        if key_words == 1 {
            let index = self.dense_entry_position(count, key, false);
            let there = index < count
                && key.len() == 8
                && word(self.payload(), index * stride) == key_word(key);
            return (index, there);
        }
        let probe = Probe::new(key_words, key, false);
        let index = self.dense_position_wide(count, stride, &probe);
        let there = index < count
            && probe.exact
            && (0..key_words)
                .all(|at| word(self.payload(), index * stride + at) == probe.words[at]);
        (index, there)
    }

    #[inline]
    pub(super) fn dense_key(&self, kind: Kind, index: usize, out: &mut Vec<u8>) {
        let stride = if kind == Kind::Leaf { self.layout.stride } else { self.layout.key_words };
        self.append_key_words(HEAD_WORDS + index * stride, out);
    }

    pub(super) fn dense_fence(&self, high: bool, out: &mut Vec<u8>) {
        self.append_key_words(fence_at(self.layout, high), out);
    }

    #[inline]
    fn append_key_words(&self, at: usize, out: &mut Vec<u8>) {
        for index in at..at + self.layout.key_words {
            out.extend_from_slice(&word(self.words, index).to_be_bytes());
        }
    }

    #[inline]
    pub(super) fn dense_value(&self, index: usize, out: &mut Vec<u8>) {
        let at = HEAD_WORDS + index * self.layout.stride;
        for index in at + self.layout.key_words..at + self.layout.stride {
            out.extend_from_slice(&word(self.words, index).to_le_bytes());
        }
    }

    pub(super) fn dense_used(&self, inner: bool) -> usize {
        if inner {
            (self.inner_count() * (self.layout.key_words + 1) + 1) * 8
        } else {
            self.leaf_count() * self.layout.stride * 8
        }
    }
}
