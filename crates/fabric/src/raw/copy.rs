//! Word copies: copy words that other threads may write meanwhile, and run atomics on them.
//!
//! INV-COPY-1: a thread that loads a word's new content also sees every store that came before the
//! `store` of that word: the contract's F4, "completed before posted".
//! INV-COPY-2: a store of a partial word leaves its other bytes alone, also while another thread stores
//! those.
//!
//! Modelled in `crates/threads`.

use std::ops::Range;

use crate::sync::atomic::{AtomicU64, Ordering, fence};

/// Words in one step of a copy: 1 KiB.
pub(crate) const STEP_WORDS: usize = 128;
/// Words in a cache line.
pub(crate) const LINE_WORDS: usize = 8;

/// See [`super::Words::load`]. Both are of one length.
#[inline]
pub(crate) fn load(from: &[AtomicU64], into: &mut [u64]) {
    let (mut from_steps, mut into_steps) =
        (from.chunks_exact(STEP_WORDS), into.chunks_exact_mut(STEP_WORDS));
    for (from, into) in (&mut from_steps).zip(&mut into_steps) {
        touch(from);
        copy_out(from, into);
    }
    copy_out(from_steps.remainder(), into_steps.into_remainder());
    fence(Ordering::Acquire);
}

/// See [`super::Words::store`]. Both are of one length.
#[inline]
pub(crate) fn store(to: &[AtomicU64], from: &[u64]) {
    fence(Ordering::Release);
    for (to, word) in to.iter().zip(from) {
        to.store(*word, Ordering::Relaxed);
    }
    fence(Ordering::SeqCst);
}

/// See [`super::Words::load_bytes`].
#[inline]
pub(crate) fn load_bytes(words: &[AtomicU64], offset: usize, into: &mut [u8]) {
    let (chunks, rest) = into.as_chunks_mut::<8>();
    if offset.is_multiple_of(8) && rest.is_empty() && chunks.len() < STEP_WORDS {
        // Most short copies are like this.
        let (from, from_rest) = words[offset / 8..][..chunks.len()].as_chunks::<LINE_WORDS>();
        let (into, into_rest) = chunks.as_chunks_mut::<LINE_WORDS>();
        for (from, into) in from.iter().zip(into) {
            // The constant count matters, it is unrolled.
            for word in 0..LINE_WORDS {
                into[word] = from[word].load(Ordering::Relaxed).to_le_bytes();
            }
        }
        for (from, into) in from_rest.iter().zip(into_rest) {
            *into = from.load(Ordering::Relaxed).to_le_bytes();
        }
        fence(Ordering::Acquire);
        return;
    }
    load_any_bytes(words, offset, into);
}

fn load_any_bytes(words: &[AtomicU64], offset: usize, into: &mut [u8]) {
    // Most copies begin at a word: whole words first, as `load` takes them.
    let whole = if offset.is_multiple_of(8) { into.len() / 8 } else { 0 };
    let (aligned, into) = into.split_at_mut(whole * 8);
    let mut steps = words[offset / 8..offset / 8 + whole].chunks(STEP_WORDS);
    for into in aligned.chunks_mut(STEP_WORDS * 8) {
        let from = steps.next().unwrap_or(&[]);
        if from.len() == STEP_WORDS {
            touch(from);
        }
        for (from, into) in from.iter().zip(into.chunks_exact_mut(8)) {
            into.copy_from_slice(&from.load(Ordering::Relaxed).to_le_bytes());
        }
    }
    let offset = offset + whole * 8;
    for (at, part) in split_at_words(offset, into.len()) {
        let word = words[at / 8].load(Ordering::Relaxed).to_le_bytes();
        into[part.clone()].copy_from_slice(&word[at % 8..at % 8 + part.len()]);
    }
    fence(Ordering::Acquire);
}

/// See [`super::Words::store_bytes`].
pub(crate) fn store_bytes(words: &[AtomicU64], offset: usize, from: &[u8]) {
    fence(Ordering::Release);
    let whole = if offset.is_multiple_of(8) { from.len() / 8 } else { 0 };
    let (aligned, from) = from.split_at(whole * 8);
    for (to, word) in words[offset / 8..offset / 8 + whole].iter().zip(aligned.chunks_exact(8)) {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(word);
        to.store(u64::from_le_bytes(bytes), Ordering::Relaxed);
    }
    let offset = offset + whole * 8;
    for (at, part) in split_at_words(offset, from.len()) {
        let to = &words[at / 8];
        let bytes = &from[part.clone()];
        if let Ok(whole) = <[u8; 8]>::try_from(bytes) {
            to.store(u64::from_le_bytes(whole), Ordering::Relaxed);
            continue;
        }
        let mut old = to.load(Ordering::Relaxed);
        loop {
            let mut new = old.to_le_bytes();
            new[at % 8..at % 8 + bytes.len()].copy_from_slice(bytes);
            let new = u64::from_le_bytes(new);
            match to.compare_exchange_weak(old, new, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => old = now,
            }
        }
    }
    fence(Ordering::SeqCst);
}

/// CAS; returns the old word.
#[inline]
pub(crate) fn cas(word: &AtomicU64, expected: u64, new: u64) -> u64 {
    match word.compare_exchange(expected, new, Ordering::SeqCst, Ordering::SeqCst) {
        Ok(old) | Err(old) => old,
    }
}

/// FAA; returns the old word.
#[inline]
pub(crate) fn faa(word: &AtomicU64, add: u64) -> u64 {
    word.fetch_add(add, Ordering::SeqCst)
}

/// Loads one word of every line of one step.
///
/// Word-wise loads and stores fill the out-of-order window after a few lines, so that cache misses
/// would come one after another. One load per line first overlaps them; the constant count matters, it
/// is unrolled.
#[inline(always)]
fn touch(step: &[AtomicU64]) {
    let step = &step[..STEP_WORDS];
    let mut touched = 0;
    for line in 0..STEP_WORDS / LINE_WORDS {
        touched |= step[line * LINE_WORDS].load(Ordering::Relaxed);
    }
    std::hint::black_box(touched);
}

#[inline]
fn copy_out(from: &[AtomicU64], into: &mut [u64]) {
    for (from, into) in from.iter().zip(into) {
        *into = from.load(Ordering::Relaxed);
    }
}

/// Cuts `len` bytes from byte `offset` on at word boundaries: (offset of the part, its range).
fn split_at_words(offset: usize, len: usize) -> impl Iterator<Item = (usize, Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done;
        let part = (8 - at % 8).min(len - done);
        let range = done..done + part;
        done += part;
        (part > 0).then_some((at, range))
    })
}
