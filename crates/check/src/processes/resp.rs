//! RESP client: a child that works on a table through gateways, as Redis's clients do.
//!
//! It speaks to one of the gateways, and to another once a connection breaks. A command whose reply did not come is an
//! operation without an answer.

use std::net::SocketAddr;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use farleaf_resp::RangeFrame;
use farleaf_resp::wire::{Reply, Wire};

use super::calls::{CALLS_MAX, Jobs};
use super::log::Log;
use super::spec::{ChildFailed, RespSpec};
use super::values::Shape;
use crate::history::{Answer, Op};

/// Longest wait for a reply: a stopped or lost server answers late.
const SILENCE_MAX: Duration = Duration::from_secs(20);
/// Time between two attempts to reach a gateway.
const CONNECT_PAUSE: Duration = Duration::from_millis(10);
/// One in this many `SET` has no answer that a history can hold: few, so that the rest is checked closely.
const BLIND_ONE_IN: u32 = 16;
/// Pairs of a range, at most: more than there are keys.
const PAIRS_MAX: usize = 10_000;

pub(super) fn run(spec: &RespSpec, stop: &AtomicBool) -> Result<(), ChildFailed> {
    let ended: Vec<Result<(), ChildFailed>> = thread::scope(|scope| {
        let threads: Vec<_> = (0..)
            .zip(&spec.logs)
            .map(|(number, log)| {
                scope.spawn(move || {
                    let client = spec.client + number * CALLS_MAX as u32;
                    let seed = spec.seed ^ u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                    let mut worker = RespWorker {
                        shape: spec.shape,
                        gateways: &spec.gateways,
                        rng: fastrand::Rng::with_seed(seed),
                        jobs: Jobs::new(spec.shape, spec.keys, client, !seed),
                        client,
                        log: Log::create(log)?,
                        connection: None,
                    };
                    while !stop.load(Ordering::Relaxed) {
                        worker.one().inspect_err(|_| stop.store(true, Ordering::SeqCst))?;
                    }
                    Ok(())
                })
            })
            .collect();
        let panicked = || Err(ChildFailed::Fault("a client thread panicked".to_owned()));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| panicked())).collect()
    });
    ended.into_iter().collect()
}

struct RespWorker<'a> {
    shape: Shape,
    gateways: &'a [SocketAddr],
    rng: fastrand::Rng,
    jobs: Jobs,
    client: u32,
    log: Log,
    connection: Option<Wire>,
}

impl RespWorker<'_> {
    /// Sends the next command and records its answer.
    fn one(&mut self) -> Result<(), ChildFailed> {
        let Some(mut connection) = self.connection.take().or_else(|| self.connect()) else {
            thread::sleep(CONNECT_PAUSE);
            return Ok(());
        };
        for call in self.jobs.next().calls {
            let call = expressible(call);
            let number = self.log.begin(self.client, &call)?;
            let mut words = words(self.shape, &call);
            let is_blind = matches!(call, Op::Upsert { .. }) && self.rng.u32(..BLIND_ONE_IN) == 0;
            if is_blind {
                words.truncate(3);
            }
            let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
            connection.put(&words);
            let Ok(reply) = connection.send().and_then(|_| connection.reply("a call")) else {
                // It may or may not have been carried out.
                return Ok(());
            };
            if let Some(answer) = self.answer(&call, &reply)? {
                self.log.end(number, &answer)?;
                self.learn(&call, &answer);
            }
        }
        self.connection = Some(connection);
        Ok(())
    }

    fn connect(&mut self) -> Option<Wire> {
        let at = self.rng.usize(..self.gateways.len().max(1));
        Wire::connect(*self.gateways.get(at)?, SILENCE_MAX).ok()
    }

    /// The answer of a reply; `None` if the outcome is unknown.
    fn answer(&self, call: &Op, reply: &Reply<'_>) -> Result<Option<Answer>, ChildFailed> {
        let strange = |what: String| ChildFailed::Fault(format!("{what}, to {call:?}"));
        if let RangeFrame::Error(_) = &reply.frame {
            let text = reply.text();
            return match text.split(' ').next().unwrap_or_default() {
                // Nothing was done.
                "TRYAGAIN" | "LOADING" | "OOM" => Ok(Some(Answer::Nothing)),
                "UNKNOWN" => Ok(None),
                _ => Err(strange(format!("the reply {text}"))),
            };
        }
        let stamp = |value: &RangeFrame| {
            let value = reply.string(value).unwrap_or_default();
            self.shape.stamp_of(value).map_err(|why| strange(why.to_string()))
        };
        Ok(Some(match (call, &reply.frame) {
            (Op::Get { .. }, RangeFrame::Null) => Answer::Value(None),
            (Op::Get { .. }, value @ RangeFrame::BulkString(_)) => {
                Answer::Value(Some(stamp(value)?))
            }
            (Op::Insert { .. } | Op::Update { .. }, RangeFrame::Null) => Answer::Flag(false),
            (Op::Insert { .. } | Op::Update { .. }, RangeFrame::SimpleString(_)) => {
                Answer::Flag(true)
            }
            (Op::Upsert { .. }, RangeFrame::Null) => Answer::Flag(true),
            (Op::Upsert { .. }, RangeFrame::BulkString(_)) => Answer::Flag(false),
            // A SET alone does not tell whether the key was there.
            (Op::Upsert { .. }, RangeFrame::SimpleString(_)) => return Ok(None),
            (Op::Remove { .. }, RangeFrame::Integer(count)) => Answer::Flag(*count == 1),
            (Op::CompareExchange { .. }, RangeFrame::Null) => {
                Answer::Exchanged { done: false, held: None }
            }
            (Op::CompareExchange { expected, .. }, held @ RangeFrame::BulkString(_)) => {
                let held = Some(stamp(held)?);
                Answer::Exchanged { done: held == *expected, held }
            }
            (Op::Scan { .. }, RangeFrame::Array(parts)) => {
                let mut pairs = Vec::with_capacity(parts.len() / 2);
                for pair in parts.chunks(2) {
                    let [key @ RangeFrame::BulkString(_), value @ RangeFrame::BulkString(_)] = pair
                    else {
                        return Err(strange(format!("the reply {}", reply.text())));
                    };
                    pairs.push((reply.string(key).unwrap_or_default().to_vec(), stamp(value)?));
                }
                Answer::Pairs(pairs)
            }
            _ => return Err(strange(format!("the reply {}", reply.text()))),
        }))
    }

    /// Remembers the content of keys, so that some exchanges find what they expect.
    fn learn(&mut self, call: &Op, answer: &Answer) {
        match (call, answer) {
            (Op::Get { key }, Answer::Value(value)) => self.jobs.saw(key, value.clone()),
            (Op::Update { key, value } | Op::Insert { key, value }, Answer::Flag(true)) => {
                self.jobs.saw(key, Some(value.clone()));
            }
            (Op::Remove { key }, Answer::Flag(_)) => self.jobs.saw(key, None),
            (Op::CompareExchange { key, new, .. }, Answer::Exchanged { done: true, .. }) => {
                self.jobs.saw(key, new.clone());
            }
            (Op::CompareExchange { key, .. }, Answer::Exchanged { held, .. }) => {
                self.jobs.saw(key, held.clone());
            }
            _ => {}
        }
    }
}

/// The call, or one like it that a command with a full answer makes.
fn expressible(call: Op) -> Op {
    match call {
        Op::CompareExchange { key, expected: None, new: None } => Op::Get { key },
        Op::CompareExchange { key, expected: None, new: Some(value) } => Op::Insert { key, value },
        // DELIFEQ does not tell what the key held.
        Op::CompareExchange { key, expected: Some(_), new: None } => Op::Remove { key },
        Op::Scan { from, to, reverse, limit } => {
            Op::Scan { from, to, reverse, limit: limit.min(PAIRS_MAX) }
        }
        call => call,
    }
}

/// The words of the command that makes the call.
fn words(shape: Shape, call: &Op) -> Vec<Vec<u8>> {
    let word = |word: &str| word.as_bytes().to_vec();
    let set = |key: &[u8], value: &[u8], condition: &str| {
        let mut words = vec![word("SET"), key.to_vec(), shape.value(value)];
        words.push(word(condition));
        words
    };
    match call {
        Op::Get { key } => vec![word("GET"), key.clone()],
        Op::Insert { key, value } => set(key, value, "NX"),
        Op::Update { key, value } => set(key, value, "XX"),
        Op::Upsert { key, value } => set(key, value, "GET"),
        Op::Remove { key } => vec![word("DEL"), key.clone()],
        Op::CompareExchange { key, expected, new } => {
            let whole = |stamp: &Option<Vec<u8>>| shape.value(stamp.as_deref().unwrap_or_default());
            let (expected, new) = (whole(expected), whole(new));
            vec![word("SET"), key.clone(), new, word("IFEQ"), expected, word("GET")]
        }
        Op::Scan { from, to, reverse, limit } => {
            let bound = |bound: &Bound<Vec<u8>>, open: &str| match bound {
                Bound::Included(key) => [b"[", &key[..]].concat(),
                Bound::Excluded(key) => [b"(", &key[..]].concat(),
                Bound::Unbounded => word(open),
            };
            let mut words = vec![word("FARLEAF.RANGE"), bound(from, "-"), bound(to, "+")];
            words.extend([word("LIMIT"), word(&limit.to_string())]);
            words.extend(reverse.then(|| word("REV")));
            words
        }
    }
}
