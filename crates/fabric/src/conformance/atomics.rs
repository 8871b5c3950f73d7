//! CAS, FAA and the atomicity of words: F1, F2.

use std::sync::{Arc, Mutex, PoisonError};

use super::tools::{at, get, meet, ok, put, put_word, wait_for_word, word};
use super::{Harness, task};
use crate::{Endpoint, GlobalAddr};

/// Results, edge values and wrapping; the neighbouring words stay.
pub(super) fn atomics_return_the_old_word<H: Harness>(harness: &H) {
    let base = at(harness, H::ONE, 4096);
    harness.run(vec![task(move |end: H::Endpoint| async move {
        put(&end, base, &[0xee; 24]).await;
        let at = base.plus(8);
        put_word(&end, at, 5).await;
        assert_eq!(end.cas(at, 5, u64::MAX).await, Ok(5));
        assert_eq!(end.cas(at, 5, 1).await, Ok(u64::MAX), "a failed CAS tells what is there");
        assert_eq!(word(&end, at).await, u64::MAX, "a failed CAS stores nothing");
        assert_eq!(end.faa(at, 3).await, Ok(u64::MAX));
        assert_eq!(end.faa(at, 0).await, Ok(2));
        assert_eq!(end.faa(at, u64::MAX).await, Ok(2), "adding -1");
        assert_eq!(end.cas(at, 1, 1).await, Ok(1));
        assert_eq!(end.cas(at, 1, 1 << 63).await, Ok(1));
        assert_eq!(end.faa(at, 1 << 63).await, Ok(1 << 63));
        assert_eq!(word(&end, at).await, 0);
        assert_eq!(get(&end, base, 8).await, [0xee; 8], "the word before");
        assert_eq!(get(&end, base.plus(16), 8).await, [0xee; 8], "the word behind");
    })]);
}

/// F2: no FAA is lost and every one gets a number of its own.
pub(super) fn every_addition_counts<H: Harness>(harness: &H) {
    const TASKS: u64 = 4;
    let rounds = harness.rounds(25_000);
    let (at, barrier) = (at(harness, H::OTHER, 4096), at(harness, H::ONE, 64));
    let numbers = Arc::new(Mutex::new(Vec::new()));
    let tasks = (0..TASKS).map(|_| {
        let numbers = Arc::clone(&numbers);
        task(move |end: H::Endpoint| async move {
            meet(&end, barrier, TASKS, 1).await;
            let mut mine = Vec::with_capacity(rounds as usize);
            for _ in 0..rounds {
                mine.push(ok(end.faa(at, 1).await));
            }
            assert!(mine.is_sorted(), "my own later additions see my earlier ones");
            numbers.lock().unwrap_or_else(PoisonError::into_inner).extend(mine);
        })
    });
    harness.run(tasks.collect());
    let mut numbers = std::mem::take(&mut *numbers.lock().unwrap_or_else(PoisonError::into_inner));
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(0..TASKS * rounds), "numbers given twice or never");
}

/// F2: of all CASes that replace a value, one wins; CAS and FAA on one word respect each other.
pub(super) fn every_swap_is_won_once<H: Harness>(harness: &H) {
    const TASKS: u64 = 4;
    const VALUES: u64 = 1_000;
    let (at, barrier) = (at(harness, H::ONE, 4096), at(harness, H::ONE, 64));
    let won = Arc::new(Mutex::new(Vec::new()));
    let tasks = (0..TASKS).map(|_| {
        let won = Arc::clone(&won);
        task(move |end: H::Endpoint| async move {
            meet(&end, barrier, TASKS, 1).await;
            let mut mine = Vec::new();
            let mut now = 0;
            // The value counts in the upper half; FAAs in the lower half disturb.
            while now >> 32 < VALUES {
                let found = ok(end.cas(at, now, now + (1 << 32)).await);
                if found == now {
                    mine.push(now >> 32);
                    now = ok(end.faa(at, 1).await) + 1;
                } else {
                    now = found;
                }
            }
            won.lock().unwrap_or_else(PoisonError::into_inner).extend(mine);
        })
    });
    harness.run(tasks.collect());
    let mut won = std::mem::take(&mut *won.lock().unwrap_or_else(PoisonError::into_inner));
    won.sort_unstable();
    assert!(won.into_iter().eq(0..VALUES), "a value won twice or never");
    harness.run(vec![task(move |end: H::Endpoint| async move {
        assert_eq!(word(&end, at).await, VALUES << 32 | VALUES, "additions lost");
    })]);
}

/// A value whose halves are equal.
fn twice(half: u64) -> u64 {
    half << 32 | half & 0xffff_ffff
}

/// F1: an aligned word is old or new, for each writer, reader, length of the operation and place of the
/// buffer. If the fabric may tear words (`word_atomic` is false), the case posts the operations and does not
/// judge the READs.
pub(super) fn words_are_never_torn<H: Harness>(harness: &H) {
    let rounds = harness.rounds(8_000);
    const WORDS: usize = 96;
    let (base, barrier) = (at(harness, H::OTHER, 4096), at(harness, H::ONE, 64));
    let mut tasks = Vec::new();
    for writer in 0..2u64 {
        tasks.push(task(move |end: H::Endpoint| async move {
            let mut all = end.buf(WORDS * 8);
            meet(&end, barrier, 4, 1).await;
            for round in 0..rounds {
                let value = twice(end.random());
                let some = base.plus(round % WORDS as u64 * 8);
                match (round + writer) % 6 {
                    0..3 => {
                        all.words_mut().fill(value);
                        all = ok(end.write(base, all).await);
                    }
                    3 => {
                        // From an odd place of the buffer.
                        let mut buf = end.buf(11);
                        buf.bytes_mut()[3..].copy_from_slice(&value.to_le_bytes());
                        ok(end.write(some, buf.window(3..)).await);
                    }
                    4 => {
                        let mut ops = end.ops();
                        ops.write_word(some, value);
                        ok(end.chain(ops).await);
                    }
                    // Atomics have a word of their own: racing WRITEs are not promised to respect
                    // them (F2).
                    _ => {
                        let own = base.plus(WORDS as u64 * 8);
                        ok(end.faa(own, twice(1)).await);
                    }
                }
            }
        }));
    }
    for reader in 0..2 {
        tasks.push(task(move |end: H::Endpoint| async move {
            let mut into = end.buf(WORDS * 8 + 16);
            meet(&end, barrier, 4, 1).await;
            for round in 0..rounds as usize {
                let words = if round % 3 == 0 { 1 + round % WORDS } else { WORDS + 1 };
                let skip = if (round + reader) % 4 == 0 { 5 } else { 0 };
                into = ok(end.read(base, into.window(skip..skip + words * 8)).await);
                let is_whole = |word: &[u8]| word[..4] == word[4..];
                let words = into.window_bytes().chunks_exact(8);
                let is_judged = end.capabilities().word_atomic;
                assert!(!is_judged || { words }.all(is_whole), "a word was torn");
            }
        }));
    }
    harness.run(tasks);
}

/// A lock taken by CAS guards content that WRITEs change. CAS releases it, and WRITE as well if the fabric
/// claims `write_vs_rmw`.
pub(super) fn a_lock_guards_a_counter<H: Harness>(harness: &H) {
    const TASKS: u64 = 3;
    const ROUNDS: u64 = 400;
    let (lock, barrier) = (at(harness, H::ONE, 4096), at(harness, H::ONE, 64));
    let counter = at(harness, H::OTHER, 4096);
    let tasks = (1..=TASKS).map(|me| {
        task(move |end: H::Endpoint| async move {
            meet(&end, barrier, TASKS, 1).await;
            for round in 0..ROUNDS {
                take(&end, lock, me).await;
                let now = word(&end, counter).await;
                put_word(&end, counter, now + 1).await;
                if round % 2 == 0 && end.capabilities().write_vs_rmw {
                    put_word(&end, lock, 0).await;
                } else {
                    assert_eq!(end.cas(lock, me, 0).await, Ok(me), "somebody took my lock");
                }
            }
            meet(&end, barrier, TASKS, 2).await;
            assert_eq!(word(&end, counter).await, TASKS * ROUNDS, "the lock let two in");
        })
    });
    harness.run(tasks.collect());
}

async fn take<E: Endpoint>(end: &E, lock: GlobalAddr, me: u64) {
    while ok(end.cas(lock, 0, me).await) != 0 {
        wait_for_word(end, lock, |holder| holder == 0).await;
    }
}
