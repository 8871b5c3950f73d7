//! Load pipeline: one thread reads, others insert, and the caller watches.
//!
//! - INV-LOAD-1: records with the same key are inserted by the same thread in their order, so that
//!   the last one of the input stands.
//! - INV-LOAD-2: every record before one that ends the load is in the table when [`run`] returns,
//!   unless it was interrupted or the store failed.
//! - INV-LOAD-3: a reader that waits for its input keeps nobody: on an interrupt it is left behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use farleaf::{KeyFormat, Table, ValueFormat};

use crate::formats::VALUE_BYTES_MAX;
use crate::input::{Fault, InputError, Record, RecordReader};

/// Bytes from which on a batch is sent, however few its records.
const BATCH_BYTES_MAX: usize = 1 << 20;
/// Batches that wait for a thread.
const BATCHES_WAITING_MAX: usize = 2;
/// How often those who wait look for an interrupt.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Records left out that are told one by one.
const SKIPPED_TOLD_MAX: usize = 10;

/// A load.
pub(super) struct Job {
    pub(super) reader: Box<dyn RecordReader>,
    pub(super) table: Table,
    /// Fill the table, which is empty, in one go; the input must be sorted.
    pub(super) bulk: bool,
    /// Leave out malformed records.
    pub(super) skip_errors: bool,
    /// Threads that insert, at least 1; a bulk load has one.
    pub(super) threads: usize,
    /// Records of a batch, at least 1.
    pub(super) batch_records: usize,
    /// Set to stop between two batches.
    pub(super) stop: Arc<AtomicBool>,
}

/// How a load ended.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Records that are in the table.
    pub(super) loaded: u64,
    /// How many of them added a key.
    pub(super) keys_new: u64,
    /// Their keys and values, in bytes.
    pub(super) bytes: u64,
    /// Malformed records that were left out.
    pub(super) skipped: u64,
    /// The first of them.
    pub(super) skipped_first: Vec<InputError>,
    /// Lines that were left out because they were empty.
    pub(super) empty_lines: u64,
    /// Whether every key was larger than the one before.
    pub(super) is_sorted: bool,
    /// What ended the input early.
    pub(super) input_error: Option<InputError>,
    /// What the store refused; more than [`Outcome::loaded`] records may be in the table then.
    pub(super) store_error: Option<farleaf::Error>,
}

/// What the threads add up.
#[derive(Default)]
struct Totals {
    loaded: AtomicU64,
    keys_new: AtomicU64,
    bytes: AtomicU64,
}

#[derive(Default)]
struct Batch {
    pairs: Vec<(Vec<u8>, Vec<u8>)>,
    bytes: usize,
}

enum Event {
    /// The input is at its end; the totals are not filled in.
    Read(Outcome),
    /// A thread that inserts is.
    Inserted(farleaf::Result<()>),
}

/// Does the job, and calls `watch` with the records loaded every now and then.
///
/// # Errors
/// A thread cannot be started; everything else stands in the outcome.
pub(super) fn run(job: Job, watch: impl Fn(u64)) -> anyhow::Result<Outcome> {
    let Job { reader, table, bulk, skip_errors, threads, batch_records, stop } = job;
    let totals = Arc::new(Totals::default());
    // Set when a thread has failed, so that the others stop without an interrupt.
    let failed = Arc::new(AtomicBool::new(false));
    let (events, happened) = mpsc::channel();
    let mut senders = Vec::new();
    for _ in 0..threads {
        let (sender, batches) = mpsc::sync_channel(BATCHES_WAITING_MAX);
        senders.push(sender);
        let inserter = Inserter {
            table: table.clone(),
            batches,
            totals: Arc::clone(&totals),
            stops: [Arc::clone(&stop), Arc::clone(&failed)],
        };
        let events = events.clone();
        spawn("insert", move || {
            let inserted = if bulk { inserter.bulk_load() } else { inserter.insert() };
            // Nobody listens only if the load is over.
            let _ = events.send(Event::Inserted(inserted));
        })?;
    }
    let feed = Feed {
        checks: Checks { keys: table.info().keys, values: table.info().values, bulk },
        skip_errors,
        batches: senders.iter().map(|_| Batch::default()).collect(),
        senders,
        batch_records,
    };
    drop(table);
    spawn("read", move || read(reader, feed, &events))?;

    let mut outcome = None;
    let mut store_error = None;
    let mut running = threads;
    while running > 0 || (outcome.is_none() && !stop.load(Ordering::Relaxed)) {
        match happened.recv_timeout(LOOK_EVERY) {
            Ok(Event::Read(read)) => outcome = Some(read),
            Ok(Event::Inserted(inserted)) => {
                running -= 1;
                if let Err(error) = inserted {
                    failed.store(true, Ordering::Relaxed);
                    store_error.get_or_insert(error);
                }
                if running == 0 && store_error.is_some() {
                    break;
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        watch(totals.loaded.load(Ordering::Relaxed));
    }
    // An end that was reached at the same moment counts.
    while let Ok(event) = happened.try_recv() {
        if let Event::Read(read) = event {
            outcome = Some(read);
        }
    }
    Ok(Outcome {
        loaded: totals.loaded.load(Ordering::Relaxed),
        keys_new: totals.keys_new.load(Ordering::Relaxed),
        bytes: totals.bytes.load(Ordering::Relaxed),
        store_error,
        ..outcome.unwrap_or_default()
    })
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> anyhow::Result<()> {
    thread::Builder::new().name(name.to_owned()).spawn(work).context("cannot start a thread")?;
    Ok(())
}

/// A thread that inserts.
struct Inserter {
    table: Table,
    batches: Receiver<Batch>,
    totals: Arc<Totals>,
    stops: [Arc<AtomicBool>; 2],
}

impl Inserter {
    fn insert(self) -> farleaf::Result<()> {
        while let Some(batch) = self.next() {
            let count = batch.pairs.len() as u64;
            let new = self.table.insert_many(batch.pairs)?;
            self.totals.add(count, new, batch.bytes as u64);
        }
        Ok(())
    }

    fn bulk_load(self) -> farleaf::Result<()> {
        let mut bytes = 0;
        let batches = std::iter::from_fn(|| self.next());
        let pairs =
            batches.inspect(|batch| bytes += batch.bytes as u64).flat_map(|batch| batch.pairs);
        let count = self.table.bulk_load(pairs)?;
        self.totals.add(count, count, bytes);
        Ok(())
    }

    /// The next batch; `None` after the last one and when it is time to stop.
    fn next(&self) -> Option<Batch> {
        loop {
            if self.stops.iter().any(|stop| stop.load(Ordering::Relaxed)) {
                return None;
            }
            match self.batches.recv_timeout(LOOK_EVERY) {
                Ok(batch) => return Some(batch),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
    }
}

impl Totals {
    fn add(&self, count: u64, new: u64, bytes: u64) {
        self.loaded.fetch_add(count, Ordering::Relaxed);
        self.keys_new.fetch_add(new, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Where the reader puts its records.
struct Feed {
    checks: Checks,
    skip_errors: bool,
    senders: Vec<SyncSender<Batch>>,
    /// One for each sender.
    batches: Vec<Batch>,
    batch_records: usize,
}

fn read(mut reader: Box<dyn RecordReader>, mut feed: Feed, events: &Sender<Event>) {
    let mut outcome = Outcome { is_sorted: true, ..Outcome::default() };
    let mut record = Record::default();
    let mut last: Option<Vec<u8>> = None;
    loop {
        let is_larger = |record: &Record| last.as_ref().is_none_or(|last| record.key > *last);
        let checked = reader.read(&mut record).and_then(|more| {
            if more {
                feed.checks.check(&record, is_larger(&record))?;
            }
            Ok(more)
        });
        match checked {
            Ok(false) => break,
            Ok(true) => {
                outcome.is_sorted &= is_larger(&record);
                let key = last.get_or_insert_default();
                key.clear();
                key.extend_from_slice(&record.key);
                if feed.put(&mut record).is_err() {
                    // Whoever was to insert has stopped, and says why.
                    break;
                }
            }
            Err(error) if feed.skip_errors && !error.fatal => {
                outcome.skipped += 1;
                if outcome.skipped_first.len() < SKIPPED_TOLD_MAX {
                    outcome.skipped_first.push(error);
                }
            }
            Err(error) => {
                outcome.input_error = Some(error);
                break;
            }
        }
    }
    feed.finish();
    outcome.empty_lines = reader.empty_lines();
    let _ = events.send(Event::Read(outcome));
}

/// The thread that a record was for has stopped.
struct Stopped;

impl Feed {
    /// Takes the record's key and value, and sends a batch if one is full.
    fn put(&mut self, record: &mut Record) -> Result<(), Stopped> {
        let at = thread_of(&record.key, self.senders.len());
        let batch = &mut self.batches[at];
        batch.bytes += record.key.len() + record.value.len();
        batch.pairs.push((std::mem::take(&mut record.key), std::mem::take(&mut record.value)));
        if batch.pairs.len() >= self.batch_records || batch.bytes >= BATCH_BYTES_MAX {
            return self.send(at);
        }
        Ok(())
    }

    fn send(&mut self, at: usize) -> Result<(), Stopped> {
        let batch = std::mem::take(&mut self.batches[at]);
        self.senders[at].send(batch).map_err(|_| Stopped)
    }

    /// Sends what is left; the threads end when they have inserted it.
    fn finish(mut self) {
        for at in 0..self.senders.len() {
            // One that has stopped does not keep the others from the rest.
            let _ = self.send(at);
        }
    }
}

/// Which of `threads` threads inserts `key` (INV-LOAD-1): its FNV-1a hash says.
fn thread_of(key: &[u8], threads: usize) -> usize {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = key.iter().fold(0xcbf2_9ce4_8422_2325, step);
    // The remainder is below the number of threads.
    (hash % threads as u64) as usize
}

/// What a table takes, so that a record that it would refuse is told with its line.
struct Checks {
    keys: KeyFormat,
    values: ValueFormat,
    bulk: bool,
}

impl Checks {
    fn check(&self, record: &Record, is_larger: bool) -> Result<(), InputError> {
        let (key, value) = (record.key.len(), record.value.len());
        let refused = match (self.keys, self.values) {
            (KeyFormat::Fixed(bytes), _) if key != bytes => {
                Some(format!("a key of {key} bytes; the table's are of {bytes}"))
            }
            (KeyFormat::Bytes { max }, _) if key > max => {
                Some(format!("a key of {key} bytes; the table's are of at most {max}"))
            }
            (_, ValueFormat::Fixed(bytes)) if value != bytes => {
                Some(format!("a value of {value} bytes; the table's are of {bytes}"))
            }
            (_, ValueFormat::Bytes) if value > VALUE_BYTES_MAX => Some(format!(
                "a value of {value} bytes; a table's are of at most {VALUE_BYTES_MAX}"
            )),
            _ => None,
        };
        match refused {
            Some(why) => Err(record.error(Fault::Refused(why))),
            None if self.bulk && !is_larger => Err(record.error(Fault::NotSorted)),
            None => Ok(()),
        }
    }
}
