//! Client process: does random operations and records their answers.

use std::future::Future;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use farleaf::{AsyncTable, CompareExchange, Error, ErrorKind, Farleaf, Table};

use super::calls::{CALLS_MAX, Form, Job, Jobs};
use super::log::Log;
use super::spec::{ChildFailed, ClientSpec, is_network, may_pass};
use super::values::Shape;
use super::{owners, recoveries};
use crate::history::{Answer, Op};

/// Errors that a process prints; all are in the history.
const TOLD_MAX: u32 = 5;
/// Time between two attempts to reach a pool on a network.
const OPEN_PAUSE: Duration = Duration::from_millis(20);
/// Attempts to get a share of the keys.
const SHARE_TRIES: u32 = 10;
/// Time for which calls linger before they leave anything half done. Some calls give the pool up
/// over a cut link while others wait for that link.
const LINGER_LEAST: Duration = Duration::from_millis(300);
const LINGER_MORE_MS: u64 = 4000;

/// A call's answer; `None` if its outcome is unknown.
type Told = Option<Answer>;
type Pair = (Vec<u8>, Vec<u8>);

pub(super) fn run(spec: &ClientSpec, stop: &AtomicBool) -> Result<(), ChildFailed> {
    let clients = (0..).zip(&spec.logs).map(|(number, log)| ClientThread::new(spec, number, log));
    let mut clients: Vec<ClientThread> = clients.collect::<Result<_, ChildFailed>>()?;
    let told = AtomicU32::new(0);
    while let Some((db, table)) = open(spec, stop)? {
        if !work_all(spec, &db, &table, &mut clients, stop, &told)? {
            drop(table);
            return db.close().or_else(|error| ChildFailed::at_end(&spec.pool, error));
        }
        drop(table);
        // It was cut off: others recover it, and it begins anew.
        let _ = db.close();
    }
    Ok(())
}

/// Opens the pool and the table: at once, or, on a network, as soon as it can reach them. `None` if
/// `stop` was set meanwhile.
fn open(spec: &ClientSpec, stop: &AtomicBool) -> Result<Option<(Farleaf, Table)>, ChildFailed> {
    let is_network = is_network(&spec.pool);
    while !stop.load(Ordering::Relaxed) {
        let linger = LINGER_LEAST + Duration::from_millis(spec.seed % LINGER_MORE_MS);
        let mut builder = Farleaf::builder().linger_timeout(linger).expose_bytes(spec.expose_bytes);
        if let Some(address) = spec.advertise {
            builder = builder.advertise(address);
        }
        let opened = builder.open(&spec.pool).and_then(|db| {
            let table = db.table(&spec.table)?;
            if let Some(names) = &spec.names {
                share(&db, &table, names)?;
            }
            Ok((db, table))
        });
        match opened {
            Ok(opened) => return Ok(Some(opened)),
            Err(error) if is_network && may_pass(&spec.pool, error.kind()) => {
                thread::sleep(OPEN_PAUSE);
            }
            Err(error) => return Err(ChildFailed::at_start(&spec.pool, error)),
        }
    }
    Ok(None)
}

/// Writes down the name and address of this compute server, and takes a share of the keys if they
/// have owners.
fn share(db: &Farleaf, table: &Table, names: &Path) -> Result<(), Error> {
    let has_owners = table.info().engine.traits().owned;
    let own = if has_owners { Some(db.serve()?.name) } else { None };
    owners::note(names, own.zip(db.listens()?));
    let Some(own) = own else { return Ok(()) };
    table.take_free()?;
    for _ in 0..SHARE_TRIES {
        match table.give_share(own) {
            // No server has enough keys, or can be reached, or is free of another move just now.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::Invalid
                        | ErrorKind::NotFound
                        | ErrorKind::Unavailable
                        | ErrorKind::OutcomeUnknown
                ) =>
            {
                thread::sleep(OPEN_PAUSE);
            }
            given => return given.map(drop),
        }
    }
    Ok(())
}

/// Works on all threads until standard input ends, or this compute server is cut off; returns
/// whether it was.
fn work_all(
    spec: &ClientSpec,
    db: &Farleaf,
    table: &Table,
    clients: &mut [ClientThread],
    stop: &AtomicBool,
    told: &AtomicU32,
) -> Result<bool, ChildFailed> {
    let is_cut_off = AtomicBool::new(false);
    let ended: Vec<Result<(), ChildFailed>> = thread::scope(|scope| {
        let threads: Vec<_> = clients
            .iter_mut()
            .map(|thread| {
                let mut worker = Worker {
                    shape: spec.shape,
                    thread,
                    asynchronous: table.to_async(),
                    table: table.clone(),
                    told,
                    is_cut_off: is_network(&spec.pool).then_some(&is_cut_off),
                };
                let is_cut_off = &is_cut_off;
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) && !is_cut_off.load(Ordering::Relaxed) {
                        worker.one().inspect_err(|_| stop.store(true, Ordering::SeqCst))?;
                    }
                    Ok(())
                })
            })
            .collect();
        if let Some(path) = &spec.recoveries {
            recoveries::note(db, path, stop, &is_cut_off);
        }
        let panicked = || Err(ChildFailed::Fault("a client thread panicked".to_owned()));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| panicked())).collect()
    });
    ended.into_iter().collect::<Result<(), ChildFailed>>()?;
    Ok(is_cut_off.into_inner())
}

/// State of a thread, for either store API.
struct ClientThread {
    jobs: Jobs,
    client: u32,
    log: Log,
}

impl ClientThread {
    fn new(spec: &ClientSpec, thread: u32, log: &Path) -> Result<ClientThread, ChildFailed> {
        let client = spec.client + thread * CALLS_MAX as u32;
        let seed = spec.seed ^ u64::from(thread).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let jobs = Jobs::new(spec.shape, spec.keys, client, seed);
        Ok(ClientThread { jobs, client, log: Log::create(log)? })
    }
}

struct Worker<'a> {
    shape: Shape,
    thread: &'a mut ClientThread,
    table: Table,
    asynchronous: AsyncTable,
    told: &'a AtomicU32,
    /// Set when others may have recovered this process as dead, which only happens on a network.
    is_cut_off: Option<&'a AtomicBool>,
}

impl Worker<'_> {
    /// Does the next job and records it.
    fn one(&mut self) -> Result<(), ChildFailed> {
        let Job { form, calls } = self.thread.jobs.next();
        let mut numbers = Vec::with_capacity(calls.len());
        for (client, call) in (self.thread.client..).zip(&calls) {
            numbers.push(self.thread.log.begin(client, call)?);
        }
        let answers = match form {
            Form::Blocking => vec![self.settle(&calls[0], self.blocking(&calls[0]))?],
            Form::Async => vec![self.settle(&calls[0], self.in_worker(&calls[0]))?],
            Form::Many => self.many(&calls)?,
        };
        for (number, answer) in numbers.into_iter().zip(&answers) {
            if let Some(answer) = answer {
                self.thread.log.end(number, answer)?;
            }
        }
        for (call, answer) in calls.iter().zip(answers) {
            self.learn(call, answer);
        }
        Ok(())
    }

    /// Turns an error into an answer, if it is one that the call may have.
    fn settle(&self, call: &Op, result: Result<Answer, Error>) -> Result<Told, ChildFailed> {
        let error = match result {
            Ok(Answer::Value(value)) => {
                return Ok(Some(Answer::Value(self.optional_stamp(call, value)?)));
            }
            Ok(Answer::Exchanged { done, held }) => {
                let held = self.optional_stamp(call, held)?;
                return Ok(Some(Answer::Exchanged { done, held }));
            }
            Ok(Answer::Pairs(pairs)) => {
                let pairs = pairs
                    .into_iter()
                    .map(|(key, value)| Ok((key, self.stamp(call, &value)?)))
                    .collect::<Result<Vec<Pair>, ChildFailed>>()?;
                return Ok(Some(Answer::Pairs(pairs)));
            }
            Ok(answer) => return Ok(Some(answer)),
            Err(error) => error,
        };
        let told = match error.kind() {
            ErrorKind::Unavailable | ErrorKind::Full => Some(Answer::Nothing),
            ErrorKind::OutcomeUnknown => None,
            // A change that was under way may have happened.
            ErrorKind::Closed if self.cut_off() => None,
            kind => return Err(ChildFailed::Fault(format!("{error} ({kind:?}), from {call:?}"))),
        };
        self.tell(&error);
        Ok(told)
    }

    /// Others may have recovered this process as dead: sets the flag, if that is possible here.
    fn cut_off(&self) -> bool {
        self.is_cut_off.inspect(|cut_off| cut_off.store(true, Ordering::SeqCst)).is_some()
    }

    fn tell(&self, error: &Error) {
        if self.told.fetch_add(1, Ordering::Relaxed) < TOLD_MAX {
            eprintln!("refused: {error} ({:?})", error.kind());
        }
    }

    fn stamp(&self, call: &Op, value: &[u8]) -> Result<Vec<u8>, ChildFailed> {
        let fault = |why| ChildFailed::Fault(format!("{why}, from {call:?}"));
        self.shape.stamp_of(value).map_err(fault)
    }

    fn optional_stamp(
        &self,
        call: &Op,
        value: Option<Vec<u8>>,
    ) -> Result<Option<Vec<u8>>, ChildFailed> {
        value.map(|value| self.stamp(call, &value)).transpose()
    }

    fn blocking(&self, call: &Op) -> Result<Answer, Error> {
        let (table, shape) = (&self.table, self.shape);
        Ok(match call {
            Op::Get { key } => Answer::Value(table.get(key)?),
            Op::Insert { key, value } => Answer::Flag(table.insert_new(key, shape.value(value))?),
            Op::Update { key, value } => Answer::Flag(table.update(key, shape.value(value))?),
            Op::Upsert { key, value } => Answer::Flag(table.insert(key, shape.value(value))?),
            Op::Remove { key } => Answer::Flag(table.remove(key)?),
            Op::CompareExchange { key, expected, new } => {
                let (whole, new) = (whole(shape, expected), whole(shape, new));
                let done = table.compare_exchange(key, whole.as_deref(), new.as_deref())?;
                exchanged(done, whole)
            }
            Op::Scan { from, to, reverse, limit } => {
                let range = table.range((from.clone(), to.clone()));
                let pairs: Result<_, _> = match reverse {
                    true => range.rev().take(*limit).collect(),
                    false => range.take(*limit).collect(),
                };
                Answer::Pairs(pairs?)
            }
        })
    }

    /// Makes the call in a worker thread of the store; this thread waits for it.
    fn in_worker(&self, call: &Op) -> Result<Answer, Error> {
        let (table, shape) = (&self.asynchronous, self.shape);
        Ok(match call.clone() {
            Op::Get { key } => Answer::Value(wait(table.get(key))?),
            Op::Insert { key, value } => {
                Answer::Flag(wait(table.insert_new(key, shape.value(&value)))?)
            }
            Op::Update { key, value } => {
                Answer::Flag(wait(table.update(key, shape.value(&value)))?)
            }
            Op::Upsert { key, value } => {
                Answer::Flag(wait(table.insert(key, shape.value(&value)))?)
            }
            Op::Remove { key } => Answer::Flag(wait(table.remove(key))?),
            Op::CompareExchange { key, expected, new } => {
                let (whole, new) = (whole(shape, &expected), whole(shape, &new));
                let done = table.compare_exchange(key, whole.as_deref(), new.as_deref());
                exchanged(wait(done)?, whole)
            }
            Op::Scan { from, to, reverse: false, limit } => {
                Answer::Pairs(wait(table.scan((from, to), limit))?)
            }
            // The async API scans upwards only.
            down @ Op::Scan { .. } => return self.blocking(&down),
        })
    }

    /// Calls of one kind with different keys, in one.
    fn many(&self, calls: &[Op]) -> Result<Vec<Told>, ChildFailed> {
        let keys: Vec<&[u8]> = calls.iter().filter_map(Op::key).collect();
        let counted = match calls[0] {
            Op::Get { .. } => {
                return match self.table.get_many(&keys) {
                    Ok(values) => {
                        let told = calls.iter().zip(values).map(|(call, value)| {
                            Ok(Some(Answer::Value(self.optional_stamp(call, value)?)))
                        });
                        told.collect()
                    }
                    Err(error) => {
                        let told = self.settle(&calls[0], Err(error))?;
                        Ok(vec![told; calls.len()])
                    }
                };
            }
            Op::Remove { .. } => self.table.remove_many(&keys),
            _ => {
                let values = calls.iter().map(|call| match call {
                    Op::Upsert { value, .. } => self.shape.value(value),
                    _ => Vec::new(),
                });
                let pairs: Vec<_> = keys.iter().copied().zip(values).collect();
                self.table.insert_many(pairs)
            }
        };
        let told = match counted {
            // The count is the whole answer: with some of them done, nobody knows which.
            Ok(0) => Some(Answer::Flag(false)),
            Ok(count) if count == calls.len() as u64 => Some(Answer::Flag(true)),
            Ok(count) if count < calls.len() as u64 => None,
            Ok(count) => {
                let asked = calls.len();
                return Err(ChildFailed::Fault(format!("{count} of {asked} done, from {calls:?}")));
            }
            // Some may have happened.
            Err(error) => self.settle(&calls[0], Err(error))?.and(None),
        };
        Ok(vec![told; calls.len()])
    }

    /// Remembers the content of keys, so that some exchanges find what they expect.
    fn learn(&mut self, call: &Op, answer: Told) {
        match (call, answer) {
            (Op::Get { key }, Some(Answer::Value(value))) => self.thread.jobs.saw(key, value),
            (Op::Update { key, value } | Op::Insert { key, value }, Some(Answer::Flag(true)))
            | (Op::Upsert { key, value }, Some(Answer::Flag(_))) => {
                self.thread.jobs.saw(key, Some(value.clone()));
            }
            (Op::Remove { key }, Some(Answer::Flag(_))) => self.thread.jobs.saw(key, None),
            (Op::CompareExchange { key, new, .. }, Some(Answer::Exchanged { done, held })) => {
                self.thread.jobs.saw(key, if done { new.clone() } else { held });
            }
            _ => {}
        }
    }
}

fn whole(shape: Shape, stamp: &Option<Vec<u8>>) -> Option<Vec<u8>> {
    stamp.as_ref().map(|stamp| shape.value(stamp))
}

fn exchanged(done: CompareExchange, expected: Option<Vec<u8>>) -> Answer {
    match done {
        CompareExchange::Exchanged => Answer::Exchanged { done: true, held: expected },
        CompareExchange::Found(held) => Answer::Exchanged { done: false, held },
    }
}

/// Waits for a future on this thread.
fn wait<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let (mut future, mut context) = (pin!(future), Context::from_waker(&waker));
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}
