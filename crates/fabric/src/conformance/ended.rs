//! Ended connections: one thread ends the connection of another one (F13).

use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use super::tools::{at, meet, ok, poll_once, put, put_word, wait_until, word, words};
use super::{Harness, Task, task};
use crate::sync::{Mutex, lock};
use crate::{ConnectionMark, Endpoint, GlobalAddr, OpErrorKind, ServerId};

/// Times that each case tries, at most.
const TRIES: u64 = 30;
/// Far longer than any operation takes.
const SETTLE_NS: u64 = 200_000;
/// Words of the block that is written.
const WORDS: usize = 64;

/// Rounds of two threads of one compute server: the one gives its mark, and waits until the other has answered.
#[derive(Clone, Default)]
pub(super) struct Rounds(Arc<Mutex<RoundsState>>);

#[derive(Default)]
struct RoundsState {
    given: u64,
    mark: Option<ConnectionMark>,
    answered: u64,
}

impl Rounds {
    /// Names the caller's operations on `server`, and waits for the end of the round.
    pub(super) async fn give<E: Endpoint>(&self, end: &E, server: ServerId) {
        let mark = end.connection(server);
        assert!(mark.is_some() || !end.is_lossy(), "operations may be under way");
        assert!(mark.is_none_or(|mark| mark.server() == server));
        let round = {
            let mut state = lock(&self.0);
            (state.given, state.mark) = (state.given + 1, mark);
            state.given
        };
        wait_until(end, "the other thread answers", || lock(&self.0).answered == round).await;
    }

    /// Waits for the mark of that round, from 1 on.
    pub(super) async fn take<E: Endpoint>(&self, end: &E, round: u64) -> Option<ConnectionMark> {
        wait_until(end, "a mark is given", || lock(&self.0).given == round).await;
        lock(&self.0).mark
    }

    pub(super) fn answer(&self) {
        let mut state = lock(&self.0);
        state.answered = state.given;
    }
}

/// Ends what a mark stands for, if there may be anything.
pub(super) async fn end_marked<E: Endpoint>(end: &E, mark: Option<ConnectionMark>) {
    if let Some(mark) = mark {
        ok(end.end_connection(mark).await);
    }
}

/// Times that a case tries. By a card, it takes half a second until a thread learns that a memory server has ended its
/// connection.
fn tries<H: Harness>(harness: &H) -> u64 {
    harness.rounds(20 * TRIES).clamp(4, TRIES)
}

/// Both as threads of one compute server.
pub(super) fn beside<E>(one: Task<E>, other: Task<E>) -> Vec<Task<E>> {
    let nothing: Task<E> = Box::new(|_| Box::pin(async {}));
    vec![one, nothing, other]
}

/// A thread whose connection to a memory server was ended reconnects, as after any loss.
async fn come_back<E: Endpoint>(end: &E, at: GlobalAddr) {
    if end.read(at, end.buf(8)).await.is_err() {
        ok(end.reconnect(at.server()).await);
    }
}

/// F13: operations that were posted and dropped have happened when their connection has been ended, or never happen; the
/// same holds for each part of a WRITE.
pub(super) fn nothing_lands_once_its_connection_was_ended<H: Harness>(harness: &H) {
    let tries = tries(harness);
    let base = at(harness, H::OTHER, 4096);
    let rounds = Rounds::default();
    let own = rounds.clone();
    let poster = task(move |end: H::Endpoint| async move {
        for round in 1..=tries {
            // The first operations wait for a connection, where there is none.
            if round > 1 {
                come_back(&end, base).await;
                put(&end, base, &[0; WORDS * 8]).await;
            }
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
                if round > 1 {
                    end.sleep(round * 50).await;
                }
            }
            own.give(&end, H::OTHER).await;
        }
    });
    let other = task(move |end: H::Endpoint| async move {
        for round in 1..=tries {
            let mark = rounds.take(&end, round).await;
            end_marked(&end, mark).await;
            let seen = (words(&end, base, WORDS).await, words(&end, base.plus(4096), WORDS).await);
            assert!(seen.0.iter().all(|word| *word == 0 || *word == round), "F1");
            end.sleep(SETTLE_NS).await;
            let later = (words(&end, base, WORDS).await, words(&end, base.plus(4096), WORDS).await);
            assert!(seen == later, "something landed after the end");
            put_word(&end, base, u64::MAX).await;
            assert_eq!(word(&end, base).await, u64::MAX);
            rounds.answer();
        }
    });
    harness.run(beside(poster, other));
}

/// F13: an operation in flight comes back, with its result or with an error that leaves it open; with its result, it
/// has happened.
pub(super) fn an_end_leaves_nobody_waiting<H: Harness>(harness: &H) {
    let tries = tries(harness);
    let base = at(harness, H::OTHER, 4096);
    let rounds = Rounds::default();
    let own = rounds.clone();
    let poster = task(move |end: H::Endpoint| async move {
        let mut certain = 0;
        for round in 1..=tries {
            come_back(&end, base).await;
            let mut add = pin!(end.faa(base, 1));
            let first = poll_once(add.as_mut()).await;
            end.sleep(round * 50).await;
            own.give(&end, H::OTHER).await;
            let result = match first {
                Poll::Ready(result) => result,
                Poll::Pending => add.await,
            };
            match result {
                Ok(_) => certain += 1,
                Err(error) => {
                    let is_open =
                        matches!(error.kind, OpErrorKind::Timeout | OpErrorKind::Unavailable);
                    assert!(is_open && error.server == H::OTHER, "{error}");
                }
            }
            come_back(&end, base).await;
            let sum = word(&end, base).await;
            assert!((certain..=round).contains(&sum), "{sum} of {certain} to {round}");
        }
    });
    let other = task(move |end: H::Endpoint| async move {
        for round in 1..=tries {
            let mark = rounds.take(&end, round).await;
            end_marked(&end, mark).await;
            rounds.answer();
        }
    });
    harness.run(beside(poster, other));
}

/// F13: the operations of all other threads go on, those of the caller among them.
pub(super) fn an_end_affects_one_connection<H: Harness>(harness: &H) {
    let tries = tries(harness);
    const THREADS: u64 = 5;
    let (base, gate) = (at(harness, H::OTHER, 4096), at(harness, H::ONE, 4096));
    let sum = base.plus(64);
    let rounds = Rounds::default();
    let own = rounds.clone();
    let poster = task(move |end: H::Endpoint| async move {
        meet(&end, gate, THREADS, 1).await;
        for _ in 0..tries {
            {
                let mut add = pin!(end.faa(base, 1));
                let _ = poll_once(add.as_mut()).await;
            }
            own.give(&end, H::OTHER).await;
            come_back(&end, base).await;
        }
        meet(&end, gate, THREADS, 2).await;
    });
    let caller = task(move |end: H::Endpoint| async move {
        meet(&end, gate, THREADS, 1).await;
        for round in 1..=tries {
            let mark = rounds.take(&end, round).await;
            let mut add = pin!(end.faa(sum, 1));
            let first = poll_once(add.as_mut()).await;
            end_marked(&end, mark).await;
            match first {
                Poll::Ready(added) => ok(added),
                Poll::Pending => ok(add.await),
            };
            rounds.answer();
        }
        meet(&end, gate, THREADS, 2).await;
        assert_eq!(word(&end, sum).await, (THREADS - 1) * tries);
    });
    let others = || {
        task(move |end: H::Endpoint| async move {
            meet(&end, gate, THREADS, 1).await;
            for _ in 0..tries {
                ok(end.faa(sum, 1).await);
            }
            meet(&end, gate, THREADS, 2).await;
        })
    };
    harness.run(vec![poster, others(), caller, others(), others()]);
}

/// F13: a mark that was ended, whose thread has reconnected or which has gone is `Ok`, and harms no later operation.
pub(super) fn an_end_may_come_late_or_twice<H: Harness>(harness: &H) {
    let tries = tries(harness);
    let base = at(harness, H::OTHER, 4096);
    let rounds = Rounds::default();
    let own = rounds.clone();
    let poster = task(move |end: H::Endpoint| async move {
        ok(end.faa(base, 1).await);
        own.give(&end, H::OTHER).await;
        come_back(&end, base).await;
        for _ in 0..tries {
            ok(end.faa(base, 1).await);
        }
        own.give(&end, H::OTHER).await;
        come_back(&end, base).await;
        // Of another connection, from here on.
        ok(end.reconnect(H::OTHER).await);
        for _ in 0..tries {
            ok(end.faa(base, 1).await);
        }
        {
            let mut last = pin!(end.faa(base, 1));
            let _ = poll_once(last.as_mut()).await;
        }
        own.give(&end, H::OTHER).await;
    });
    let marks = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&marks);
    let other = task(move |end: H::Endpoint| async move {
        let first = rounds.take(&end, 1).await;
        end_marked(&end, first).await;
        end_marked(&end, first).await;
        rounds.answer();
        // Beside the thread's further operations.
        for _ in 0..4 {
            end_marked(&end, first).await;
        }
        let second = rounds.take(&end, 2).await;
        rounds.answer();
        let third = rounds.take(&end, 3).await;
        // Its thread has reconnected meanwhile.
        end_marked(&end, second).await;
        lock(&kept).extend([first, second, third]);
        rounds.answer();
    });
    harness.run(beside(poster, other));
    harness.run(vec![task(move |end: H::Endpoint| async move {
        let marks = std::mem::take(&mut *lock(&marks));
        for mark in marks {
            end_marked(&end, mark).await;
        }
        let sum = word(&end, base).await;
        assert!((2 * tries + 1..=2 * tries + 2).contains(&sum), "{sum}");
        end.sleep(SETTLE_NS).await;
        assert_eq!(word(&end, base).await, sum, "it landed after the end");
    })]);
}
