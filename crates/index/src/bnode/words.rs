//! Words of a node image: private copies and shared frames behind one interface.

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use xxhash_rust::xxh3::{Xxh3, xxh3_64};
use zerocopy::IntoBytes;

#[cfg(not(target_endian = "little"))]
compile_error!("node images are viewed as bytes in place, which needs a little-endian machine");

/// Words of the header, before the payload.
pub(super) const HEAD_WORDS: usize = 8;
/// Word of the checksum.
pub(super) const SUM_WORD: usize = 6;
/// Words hashed at once when a shared frame is summed.
const SUM_CHUNK_WORDS: usize = 128;

/// One word of an image: `u64` in a private copy, `AtomicU64` in a frame that others may be writing.
pub trait Word: sealed::Sealed + Sized {
    /// Reads the word; relaxed if it is shared.
    fn load(&self) -> u64;

    /// Views the words as bytes in image order, where that is possible without copying.
    #[doc(hidden)]
    fn as_bytes(words: &[Self]) -> Option<&[u8]>;
}

impl Word for u64 {
    #[inline(always)]
    fn load(&self) -> u64 {
        *self
    }

    #[inline(always)]
    fn as_bytes(words: &[Self]) -> Option<&[u8]> {
        Some(IntoBytes::as_bytes(words))
    }
}

impl Word for AtomicU64 {
    #[inline(always)]
    fn load(&self) -> u64 {
        AtomicU64::load(self, Relaxed)
    }

    #[inline(always)]
    fn as_bytes(_: &[Self]) -> Option<&[u8]> {
        None
    }
}

/// A node image that can be changed: `&mut [u64]`, or `&[AtomicU64]` by the one holder of its latch.
///
/// Stores outside the image do nothing.
pub trait Image: sealed::Sealed {
    /// The kind of word that the image is made of.
    type Word: Word;

    /// The image's words.
    fn words(&self) -> &[Self::Word];

    /// Stores one word.
    fn set(&mut self, index: usize, value: u64);

    /// Moves the words of `from` so that they start at word `to`; the two may overlap.
    fn shift(&mut self, from: Range<usize>, to: usize);

    /// Stores `bytes` from byte `offset` of the image on.
    fn write_bytes(&mut self, offset: usize, bytes: &[u8]);

    /// Stores `words` from word `at` of the image on.
    fn assign(&mut self, at: usize, words: &[u64]);
}

impl Image for &mut [u64] {
    type Word = u64;

    #[inline(always)]
    fn words(&self) -> &[u64] {
        self
    }

    #[inline(always)]
    fn set(&mut self, index: usize, value: u64) {
        if let Some(word) = self.get_mut(index) {
            *word = value;
        }
    }

    #[inline]
    fn shift(&mut self, from: Range<usize>, to: usize) {
        if from.start <= from.end && from.end <= self.len() && to + from.len() <= self.len() {
            self.copy_within(from, to);
        }
    }

    fn write_bytes(&mut self, offset: usize, bytes: &[u8]) {
        let end = offset.saturating_add(bytes.len());
        if let Some(into) = self.as_mut_bytes().get_mut(offset..end) {
            into.copy_from_slice(bytes);
        }
    }

    fn assign(&mut self, at: usize, words: &[u64]) {
        if let Some(into) = self.get_mut(at..at.saturating_add(words.len())) {
            into.copy_from_slice(words);
        }
    }
}

impl Image for &[AtomicU64] {
    type Word = AtomicU64;

    #[inline(always)]
    fn words(&self) -> &[AtomicU64] {
        self
    }

    #[inline(always)]
    fn set(&mut self, index: usize, value: u64) {
        if let Some(word) = self.get(index) {
            word.store(value, Relaxed);
        }
    }

    fn shift(&mut self, from: Range<usize>, to: usize) {
        let count = from.len();
        if from.end > self.len() || to + count > self.len() {
            return;
        }
        let step = |index: usize| {
            self[to + index].store(self[from.start + index].load(Relaxed), Relaxed);
        };
        // The end that is written last is the one that the other end's stores would overwrite.
        if to <= from.start {
            (0..count).for_each(step);
        } else {
            (0..count).rev().for_each(step);
        }
    }

    fn write_bytes(&mut self, offset: usize, mut bytes: &[u8]) {
        let mut at = offset;
        while !bytes.is_empty() {
            let (index, skip) = (at / 8, at % 8);
            let count = bytes.len().min(8 - skip);
            let Some(word) = self.get(index) else { return };
            let mut content = word.load(Relaxed).to_le_bytes();
            content[skip..skip + count].copy_from_slice(&bytes[..count]);
            word.store(u64::from_le_bytes(content), Relaxed);
            bytes = &bytes[count..];
            at += count;
        }
    }

    fn assign(&mut self, at: usize, words: &[u64]) {
        for (into, &word) in self.iter().skip(at).zip(words) {
            into.store(word, Relaxed);
        }
    }
}

mod sealed {
    /// Keeps [`super::Word`] and [`super::Image`] to the implementations here.
    pub trait Sealed {}
    impl Sealed for u64 {}
    impl Sealed for std::sync::atomic::AtomicU64 {}
    impl Sealed for &mut [u64] {}
    impl Sealed for &[std::sync::atomic::AtomicU64] {}
}

/// The word at `index`, 0 beyond the end.
#[inline(always)]
pub(super) fn word<W: Word>(words: &[W], index: usize) -> u64 {
    words.get(index).map_or(0, Word::load)
}

/// Eight bytes from any byte offset as a little-endian number, zeros beyond the end.
#[inline]
pub(super) fn load_at<W: Word>(words: &[W], offset: usize) -> u64 {
    let (index, bits) = (offset / 8, (offset % 8) as u32 * 8);
    let first = word(words, index) >> bits;
    if bits == 0 { first } else { first | word(words, index + 1) << (64 - bits) }
}

/// Appends the image's bytes `offset..offset + len`, as far as they exist.
#[inline]
pub(super) fn append<W: Word>(words: &[W], offset: usize, len: usize, out: &mut Vec<u8>) {
    let (offset, len) = clamp(words, offset, len);
    if let Some(bytes) = W::as_bytes(words) {
        out.extend_from_slice(&bytes[offset..offset + len]);
        return;
    }
    out.reserve(len);
    let mut done = 0;
    while done < len {
        let count = (len - done).min(8);
        out.extend_from_slice(&load_at(words, offset + done).to_le_bytes()[..count]);
        done += count;
    }
}

/// Compares the image's bytes `offset..offset + len`, as far as they exist, with `other`.
#[inline]
pub(super) fn compare<W: Word>(words: &[W], offset: usize, len: usize, other: &[u8]) -> Ordering {
    let (offset, len) = clamp(words, offset, len);
    if let Some(bytes) = W::as_bytes(words) {
        return bytes[offset..offset + len].cmp(other);
    }
    let (chunks, rest) = other[..len.min(other.len())].as_chunks::<8>();
    let mut at = offset;
    for chunk in chunks {
        let order = load_at(words, at).swap_bytes().cmp(&u64::from_be_bytes(*chunk));
        if order != Ordering::Equal {
            return order;
        }
        at += 8;
    }
    if !rest.is_empty() {
        let mut padded = [0; 8];
        padded[..rest.len()].copy_from_slice(rest);
        let mine = load_at(words, at).swap_bytes() & (u64::MAX << (64 - 8 * rest.len()));
        let order = mine.cmp(&u64::from_be_bytes(padded));
        if order != Ordering::Equal {
            return order;
        }
    }
    len.cmp(&other.len())
}

#[inline(always)]
fn clamp<W>(words: &[W], offset: usize, len: usize) -> (usize, usize) {
    let end = words.len() * 8;
    let offset = offset.min(end);
    (offset, len.min(end - offset))
}

/// The checksum that belongs into `words`: over everything but the lock word and the sum itself.
///
/// The payload and the version are hashed first, then the rest of the header with that hash and the
/// tree's number behind it, so that nothing is copied and no hasher state is kept. Cost: about 40 ns per KiB of a private
/// image.
#[inline]
pub(super) fn sum<W: Word>(words: &[W], tree: u64) -> u64 {
    let (head, rest) = words.split_at(words.len().min(SUM_WORD + 1));
    let rest = match W::as_bytes(rest) {
        Some(bytes) => xxh3_64(bytes),
        None => sum_shared(rest),
    };
    let mut front = [0; SUM_WORD + 1];
    for (into, from) in front.iter_mut().zip(head.iter().take(SUM_WORD).skip(1)) {
        *into = from.load();
    }
    front[SUM_WORD - 1] = rest;
    front[SUM_WORD] = tree;
    xxh3_64(front.as_bytes())
}

fn sum_shared<W: Word>(words: &[W]) -> u64 {
    let mut chunk = [0_u64; SUM_CHUNK_WORDS];
    let mut fill = |from: &[W]| {
        for (into, from) in chunk.iter_mut().zip(from) {
            *into = from.load();
        }
        chunk
    };
    if words.len() <= SUM_CHUNK_WORDS {
        return xxh3_64(fill(words)[..words.len()].as_bytes());
    }
    let mut hasher = Xxh3::new();
    for part in words.chunks(SUM_CHUNK_WORDS) {
        hasher.update(fill(part)[..part.len()].as_bytes());
    }
    hasher.digest()
}
