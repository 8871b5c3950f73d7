//! Visibility cases: F3 between the users of a server, and F4.

use std::sync::{Arc, Mutex, PoisonError};

use super::tools::{at, countable, get, meet, ok, put, put_word, wait_for_word, word, words};
use super::{Harness, task};
use crate::{Endpoint, GlobalAddr};

/// F4: a task that sees the flag sees everything written before it, on every server.
pub(super) fn completion_is_visible_to_all<H: Harness>(harness: &H) {
    const ROUNDS: u64 = 1_000;
    const LEN: usize = 520;
    let (near, far) = (at(harness, H::ONE, 4096), at(harness, H::OTHER, 4096));
    let (flag, answer) = (at(harness, H::ONE, 64), at(harness, H::OTHER, 64));
    let writer = task(move |end: H::Endpoint| async move {
        for round in 1..=ROUNDS {
            put(&end, near, &round.to_le_bytes().repeat(LEN / 8)).await;
            put(&end, far.plus(4), &round.to_le_bytes()).await;
            ok(end.faa(far.plus(64), 1).await);
            // The flag is a WRITE or an atomic in turn.
            if round % 2 == 0 {
                put_word(&end, flag, round).await;
            } else {
                assert_eq!(end.cas(flag, round - 1, round).await, Ok(round - 1));
            }
            wait_for_word(&end, answer, |seen| seen == round).await;
        }
    });
    let reader = task(move |end: H::Endpoint| async move {
        for round in 1..=ROUNDS {
            wait_for_word(&end, flag, |flag| flag == round).await;
            let seen = get(&end, near, LEN).await;
            assert!(seen.chunks_exact(8).all(|word| word == round.to_le_bytes()), "a late WRITE");
            assert_eq!(get(&end, far.plus(4), 8).await, round.to_le_bytes(), "a late WRITE");
            assert_eq!(word(&end, far.plus(64)).await, round, "a late FAA");
            put_word(&end, answer, round).await;
        }
    });
    harness.run(vec![writer, reader]);
}

/// F4: each of two tasks counts up in a word of its own and, once that WRITE has completed, reads
/// the other's word.
///
/// If one reads `j` in its round `i`, the other's WRITE of `j + 1` comes after that READ and so
/// after the WRITE of `i`. Then the READ that follows the WRITE of `j + 1` must find at least `i`.
pub(super) fn no_store_waits_behind_a_read<H: Harness>(harness: &H) {
    let rounds = harness.rounds(60_000);
    let words = [at(harness, H::ONE, 4096), at(harness, H::OTHER, 4096)];
    let barrier = at(harness, H::ONE, 64);
    let seen: [Arc<Mutex<Vec<u64>>>; 2] = Default::default();
    let tasks = (0..2).map(|me| {
        let (mine, others, seen) = (words[me], words[1 - me], Arc::clone(&seen[me]));
        task(move |end: H::Endpoint| async move {
            let rounds = countable(&end, rounds);
            let mut all = Vec::with_capacity(rounds as usize);
            let (mut from, mut into) = (end.buf(8), end.buf(8));
            for round in 1..=rounds {
                if round % 100 == 1 {
                    meet(&end, barrier, 2, round / 100 + 1).await;
                }
                from.words_mut()[0] = round;
                from = ok(end.write(mine, from).await);
                into = ok(end.read(others, into).await);
                all.push(into.words()[0]);
            }
            *seen.lock().unwrap_or_else(PoisonError::into_inner) = all;
        })
    });
    harness.run(tasks.collect());
    let seen =
        seen.map(|seen| std::mem::take(&mut *seen.lock().unwrap_or_else(PoisonError::into_inner)));
    for (mine, others) in [(&seen[0], &seen[1]), (&seen[1], &seen[0])] {
        assert!(!mine.is_empty() && mine.len() == others.len());
        for (round, found) in (1..).zip(mine) {
            // Their round `found + 1` stands at index `found`.
            if let Some(theirs) = others.get(*found as usize) {
                assert!(*theirs >= round, "round {round} read {found}, and it read {theirs}");
            }
        }
    }
}

const CHAIN_ROUNDS: u64 = 1_500;
const BLOCK: usize = 256;

/// Places of a chain's three operations, all on one server.
#[derive(Clone, Copy)]
struct Places {
    first: GlobalAddr,
    second: GlobalAddr,
    flag: GlobalAddr,
}

impl Places {
    fn new<H: Harness>(harness: &H) -> Places {
        let [first, second, flag] =
            [4096, 8192 + 64, 4096 - 8].map(|at_| at(harness, H::OTHER, at_));
        Places { first, second, flag }
    }

    /// Chains of WRITE, WRITE, CAS that count up, until the flag is at [`CHAIN_ROUNDS`].
    async fn count_up<E: Endpoint>(self, end: E) {
        for round in 1..=countable(&end, CHAIN_ROUNDS) {
            let mut ops = end.ops();
            for to in [self.first, self.second] {
                let mut buf = end.buf(BLOCK);
                buf.words_mut().fill(round);
                ops.write(to, buf);
            }
            let flag = ops.cas(self.flag, round - 1, round);
            let ops = ok(end.chain(ops).await);
            assert_eq!(ops.old(flag), round - 1);
        }
    }
}

/// The oldest and the newest word of a block.
fn span(words: &[u64]) -> (u64, u64) {
    let oldest = words.iter().min().copied().unwrap_or(0);
    (oldest, words.iter().max().copied().unwrap_or(0))
}

/// F3: a reader that takes a later operation's result for a flag finds all earlier ones done.
pub(super) fn a_chain_lands_in_order<H: Harness>(harness: &H) {
    let places = Places::new(harness);
    let writer = task(move |end: H::Endpoint| places.count_up(end));
    let reader = task(move |end: H::Endpoint| async move {
        let (mut flag, rounds) = (0, countable(&end, CHAIN_ROUNDS));
        while flag < rounds {
            flag = word(&end, places.flag).await;
            let (second, newest) = span(&words(&end, places.second, BLOCK / 8).await);
            let (first, _) = span(&words(&end, places.first, BLOCK / 8).await);
            assert!(second >= flag, "CAS {flag} came before the WRITE in front of it ({second})");
            assert!(first >= newest, "WRITE {newest} came before the one in front ({first})");
            end.yield_now().await;
        }
    });
    harness.run(vec![writer, reader]);
}

/// F3 for READs: of a chain of READs, a later one sees at least what an earlier one saw.
pub(super) fn a_chain_reads_in_order<H: Harness>(harness: &H) {
    let places = Places::new(harness);
    let writer = task(move |end: H::Endpoint| places.count_up(end));
    let reader = task(move |end: H::Endpoint| async move {
        let (mut flag, rounds) = (0, countable(&end, CHAIN_ROUNDS));
        while flag < rounds {
            let mut ops = end.ops();
            let at_flag = ops.read(places.flag, end.buf(8));
            let at_second = ops.read(places.second, end.buf(BLOCK));
            let at_first = ops.read(places.first, end.buf(BLOCK));
            let ops = ok(end.chain(ops).await);
            flag = ops.buf(at_flag).words()[0];
            let (second, newest) = span(ops.buf(at_second).words());
            let (first, _) = span(ops.buf(at_first).words());
            assert!(second >= flag, "flag {flag} was read, then a block of {second}");
            assert!(first >= newest, "{newest} was read, then a block of {first}");
            end.yield_now().await;
        }
    });
    harness.run(vec![writer, reader]);
}
