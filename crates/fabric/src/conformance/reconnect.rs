//! Reconnecting: F10.

use std::pin::pin;

use super::tools::{at, meet, ok, poll_once, put, put_word, word, words};
use super::{Harness, task};
use crate::{Endpoint, GlobalAddr, OpErrorKind};

/// Times that each case tries.
const TRIES: u64 = 40;
/// Far longer than any operation takes.
const SETTLE_NS: u64 = 200_000;
/// Words of the block that is written.
const WORDS: usize = 64;

/// F10: if an earlier operation was posted and dropped, it has happened when the reconnect returns, or never
/// happens; the same holds for each part of a WRITE. Later operations are not affected.
pub(super) fn nothing_older_lands_after_a_reconnect<H: Harness>(harness: &H) {
    let base = at(harness, H::OTHER, 4096);
    harness.run(vec![task(move |end: H::Endpoint| async move {
        for round in 1..=TRIES {
            put(&end, base, &[0; WORDS * 8]).await;
            {
                let mut buf = end.buf(WORDS * 8);
                buf.words_mut().fill(round);
                let mut ops = end.ops();
                ops.write_word(base.plus(4096), round);
                ops.faa(base.plus(4104), 1);
                let mut write = pin!(end.write(base, buf));
                let mut chain = pin!(end.chain(ops));
                let _ = poll_once(write.as_mut()).await;
                let _ = poll_once(chain.as_mut()).await;
                end.sleep(round * 50).await;
            }
            ok(end.reconnect(H::OTHER).await);
            let seen = (words(&end, base, WORDS).await, words(&end, base.plus(4096), WORDS).await);
            assert!(seen.0.iter().all(|word| *word == 0 || *word == round), "F1");
            end.sleep(SETTLE_NS).await;
            let later = (words(&end, base, WORDS).await, words(&end, base.plus(4096), WORDS).await);
            assert!(seen == later, "something landed after the reconnect");
            put_word(&end, base, u64::MAX).await;
            assert_eq!(word(&end, base).await, u64::MAX);
        }
    })]);
}

/// F10: another task's operation in flight comes back, with its result or with `Timeout`; with its result, it
/// has happened.
pub(super) fn a_reconnect_leaves_nobody_waiting<H: Harness>(harness: &H) {
    let base = at(harness, H::OTHER, 4096);
    harness.run(vec![task(move |end: H::Endpoint| async move {
        let mut certain = 0;
        for round in 1..=TRIES {
            let mut add = pin!(end.faa(base, 1));
            let mut other = pin!(end.faa(at_one::<H>(base), 1));
            let first = poll_once(add.as_mut()).await;
            let elsewhere = poll_once(other.as_mut()).await;
            end.sleep(round * 50).await;
            ok(end.reconnect(H::OTHER).await);
            let before = word(&end, base).await;
            let result = match first {
                std::task::Poll::Ready(result) => result,
                std::task::Poll::Pending => add.await,
            };
            match result {
                Ok(_) => certain += 1,
                Err(error) => {
                    assert_eq!((error.kind, error.server), (OpErrorKind::Timeout, H::OTHER))
                }
            }
            assert!((certain..=round).contains(&before), "{before} of {certain} to {round}");
            assert_eq!(word(&end, base).await, before, "added after the reconnect");
            // The other server's connection is as it was.
            match elsewhere {
                std::task::Poll::Ready(result) => drop(ok(result)),
                std::task::Poll::Pending => drop(ok(other.await)),
            }
        }
        assert_eq!(word(&end, at_one::<H>(base)).await, TRIES);
    })]);
}

fn at_one<H: Harness>(addr: GlobalAddr) -> GlobalAddr {
    GlobalAddr::new(H::ONE, addr.offset())
}

/// F10: other threads' operations go on, and what has completed stays.
pub(super) fn a_reconnect_affects_one_thread<H: Harness>(harness: &H) {
    let (sum, gate) = (at(harness, H::OTHER, 4096), at(harness, H::ONE, 4096));
    let tasks = (0..2).map(|me| {
        task(move |end: H::Endpoint| async move {
            meet(&end, gate, 2, 1).await;
            for _ in 0..TRIES {
                ok(end.faa(sum, 1).await);
                if me == 0 {
                    ok(end.reconnect(H::OTHER).await);
                }
            }
            meet(&end, gate, 2, 2).await;
            assert_eq!(word(&end, sum).await, 2 * TRIES);
        })
    });
    harness.run(tasks.collect());
}
