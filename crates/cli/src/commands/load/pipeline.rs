//! Load pipeline: one thread reads, others insert, and the caller watches.
//!
//! - INV-LOAD-1: records with the same key are inserted by the same thread in their order, so that
//!   the last one of the input stands.
//! - INV-LOAD-2: every record before one that the reader refuses is in the table when [`run`] returns,
//!   unless the load was interrupted or the store failed. After a bulk load none is.
//! - INV-LOAD-3: a reader that waits for its input keeps nobody: on an interrupt it is left behind.
//! - INV-LOAD-4: however the load ends, every record up to [`Outcome::certain`] is in the table or was
//!   left out and told. A load of the rest of the input leaves the table as one load of all of it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SendError, Sender, SyncSender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use farleaf::{ErrorKind, Table, TableInfo};
use farleaf_index::sync::lock;

use crate::formats;
use crate::input::{Fault, InputError, Place, Record, RecordReader};

/// Bytes from which on a batch is sent, however few its records.
const BATCH_BYTES_MAX: usize = 1 << 20;
/// Batches that wait for a thread.
const BATCHES_WAITING_MAX: usize = 2;
/// Time between two looks of a waiting thread for an interrupt.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Records left out that are told one by one.
const SKIPPED_TOLD_MAX: usize = 10;

/// A load.
pub(super) struct Job {
    pub(super) reader: Box<dyn RecordReader>,
    pub(super) table: Table,
    /// Fill the table, which is empty, in one go; the input must be sorted.
    pub(super) bulk: bool,
    /// Leave out records that are malformed or that the table does not take.
    pub(super) skip_errors: bool,
    /// Leave out the input up to and with this position, which is in the table.
    pub(super) resume_from: u64,
    /// Threads that insert, at least 1; a bulk load has one.
    pub(super) threads: usize,
    /// Records of a batch, at least 1.
    pub(super) batch_records: usize,
    /// Set to stop between two batches.
    pub(super) stop: Arc<AtomicBool>,
}

/// The end of a load.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Records that are certainly in the table; after a failure of the store more may be.
    pub(super) loaded: u64,
    /// Number of those that added a key.
    pub(super) keys_new: u64,
    /// Their keys and values, in bytes.
    pub(super) bytes: u64,
    /// The line (of a format without lines: the record) up to which all is in the table. Records after it
    /// may be there.
    pub(super) certain: u64,
    /// Records that were left out.
    pub(super) skipped: u64,
    /// The first of them.
    pub(super) skipped_first: Vec<InputError>,
    /// Findings of the reader at the end of the input.
    pub(super) read: Read,
    /// A record that the table does not take.
    pub(super) refused: Option<InputError>,
    /// The record that the store refused.
    pub(super) store_error: Option<farleaf::Error>,
}

/// Findings of the reader.
#[derive(Debug, Default)]
pub(super) struct Read {
    /// Lines that were left out because they were empty.
    pub(super) empty_lines: u64,
    /// True if every key was larger than the one before.
    pub(super) is_sorted: bool,
    /// The position of the last record, if the reader came to the end of the input.
    pub(super) end: Option<u64>,
    /// The error that ended the input early.
    pub(super) error: Option<InputError>,
}

/// State that the threads share.
#[derive(Default)]
struct Totals {
    /// The position of the last record that was put into a batch, or left out.
    put: AtomicU64,
    tracks: Mutex<Tracks>,
}

/// Batches under way, and what has become of the others.
#[derive(Default)]
struct Tracks {
    /// For each thread that inserts, the first positions of its batches that are not in the table yet.
    waiting: Vec<VecDeque<u64>>,
    outcome: Outcome,
}

impl Totals {
    fn new(threads: usize, resume_from: u64) -> Self {
        let tracks = Tracks { waiting: vec![VecDeque::new(); threads], ..Tracks::default() };
        Totals { put: resume_from.into(), tracks: Mutex::new(tracks) }
    }

    /// A batch of `thread` begins with a record at `position`.
    fn begin(&self, thread: usize, position: u64) {
        lock(&self.tracks).waiting[thread].push_back(position);
    }

    /// The first `batches` of `thread` are in the table.
    fn end(&self, thread: usize, batches: usize) {
        lock(&self.tracks).waiting[thread].drain(..batches);
    }

    fn add(&self, count: u64, new: u64, bytes: u64) {
        let mut tracks = lock(&self.tracks);
        tracks.outcome.loaded += count;
        tracks.outcome.keys_new += new;
        tracks.outcome.bytes += bytes;
    }

    fn skip(&self, error: InputError) {
        let mut tracks = lock(&self.tracks);
        let Outcome { skipped, skipped_first, .. } = &mut tracks.outcome;
        *skipped += 1;
        skipped_first.push(error);
        // Several threads find them, in any order.
        skipped_first.sort_by_key(InputError::position);
        skipped_first.truncate(SKIPPED_TOLD_MAX);
    }

    /// The position up to which all is in the table (INV-LOAD-4).
    fn certain(&self) -> u64 {
        // Before the batches: the reader notes a batch before it puts a record into it.
        let put = self.put.load(Ordering::Acquire);
        let tracks = lock(&self.tracks);
        let first = tracks.waiting.iter().filter_map(VecDeque::front).min();
        first.map_or(put, |first| put.min(first - 1))
    }
}

#[derive(Default)]
struct Batch {
    pairs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Of each pair.
    places: Vec<Place>,
    bytes: usize,
}

enum Event {
    /// The input is at its end.
    Read(Read),
    /// A thread that inserts is.
    Inserted(Result<(), Stop>),
}

/// The error that ended a thread that inserts.
enum Stop {
    Store(farleaf::Error),
    /// A record that the table does not take.
    Refused(InputError),
}

impl From<farleaf::Error> for Stop {
    fn from(error: farleaf::Error) -> Self {
        Stop::Store(error)
    }
}

/// Does the job, and calls `watch` with the records loaded every now and then.
///
/// # Errors
/// A thread cannot be started; everything else stands in the outcome.
pub(super) fn run(job: Job, watch: impl Fn(u64)) -> anyhow::Result<Outcome> {
    let Job { reader, table, bulk, skip_errors, resume_from, threads, batch_records, stop } = job;
    let totals = Arc::new(Totals::new(threads, resume_from));
    // Set when a thread has failed, so that the others stop without an interrupt.
    let failed = Arc::new(AtomicBool::new(false));
    // Set when the reader has failed, before it sends no more.
    let is_cut = Arc::new(AtomicBool::new(false));
    let (events, happened) = mpsc::channel();
    let mut senders = Vec::new();
    for thread in 0..threads {
        let (sender, batches) = mpsc::sync_channel(BATCHES_WAITING_MAX);
        senders.push(sender);
        let inserter = Inserter {
            table: table.clone(),
            batches,
            thread,
            skip_errors,
            totals: Arc::clone(&totals),
            stops: [Arc::clone(&stop), Arc::clone(&failed)],
            is_cut: Arc::clone(&is_cut),
        };
        let events = events.clone();
        spawn("insert", move || {
            let inserted = if bulk { inserter.bulk_load() } else { inserter.insert() };
            // Nobody listens only if the load is over.
            let _ = events.send(Event::Inserted(inserted));
        })?;
    }
    let feed = Feed {
        table: table.info().clone(),
        bulk,
        skip_errors,
        resume_from,
        totals: Arc::clone(&totals),
        batches: senders.iter().map(|_| Batch::default()).collect(),
        senders,
        batch_records,
        is_cut,
    };
    drop(table);
    spawn("read", move || read(reader, feed, &events))?;

    let mut read = None;
    let mut running = threads;
    while running > 0 || (read.is_none() && !stop.load(Ordering::Relaxed)) {
        match happened.recv_timeout(LOOK_EVERY) {
            Ok(Event::Read(at_end)) => read = Some(at_end),
            Ok(Event::Inserted(inserted)) => {
                running -= 1;
                if let Err(stop) = inserted {
                    failed.store(true, Ordering::Relaxed);
                    let mut tracks = lock(&totals.tracks);
                    match stop {
                        Stop::Store(error) => tracks.outcome.store_error = Some(error),
                        Stop::Refused(error) => tracks.outcome.refused = Some(error),
                    }
                }
                if running == 0 && failed.load(Ordering::Relaxed) {
                    break;
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        let loaded = lock(&totals.tracks).outcome.loaded;
        watch(loaded);
    }
    // An end that was reached at the same moment counts.
    while let Ok(event) = happened.try_recv() {
        if let Event::Read(at_end) = event {
            read = Some(at_end);
        }
    }
    let certain = totals.certain();
    let outcome = std::mem::take(&mut lock(&totals.tracks).outcome);
    Ok(Outcome { certain, read: read.unwrap_or_default(), ..outcome })
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> anyhow::Result<()> {
    thread::Builder::new().name(name.to_owned()).spawn(work).context("cannot start a thread")?;
    Ok(())
}

/// A thread that inserts.
struct Inserter {
    table: Table,
    batches: Receiver<Batch>,
    /// Its number.
    thread: usize,
    skip_errors: bool,
    totals: Arc<Totals>,
    stops: [Arc<AtomicBool>; 2],
    /// The reader has failed: a bulk load leaves the table empty.
    is_cut: Arc<AtomicBool>,
}

impl Inserter {
    fn insert(self) -> Result<(), Stop> {
        while let Some(batch) = self.next() {
            let pairs = batch.pairs.iter().map(|(key, value)| (key, value));
            match self.table.insert_many(pairs) {
                Ok(new) => {
                    self.totals.add(batch.pairs.len() as u64, new, batch.bytes as u64);
                }
                // For example, the pool has no block for a record; the batch does not say which.
                Err(error) if error.kind() == ErrorKind::Invalid => self.insert_each(&batch)?,
                Err(error) => return Err(error.into()),
            }
            self.totals.end(self.thread, 1);
        }
        Ok(())
    }

    /// Inserts a batch record by record, and finds those that the table does not take.
    fn insert_each(&self, batch: &Batch) -> Result<(), Stop> {
        for ((key, value), place) in batch.pairs.iter().zip(&batch.places) {
            match self.table.insert(key, value) {
                Ok(is_new) => {
                    self.totals.add(1, is_new.into(), (key.len() + value.len()) as u64);
                }
                Err(error) if error.kind() == ErrorKind::Invalid => {
                    let refused = place.error(Fault::Refused(error.to_string()));
                    if !self.skip_errors {
                        return Err(Stop::Refused(refused));
                    }
                    self.totals.skip(refused);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn bulk_load(self) -> Result<(), Stop> {
        let (mut bytes, mut count) = (0, 0);
        let mut last = None;
        let batches = std::iter::from_fn(|| match self.next() {
            Some(batch) => {
                bytes += batch.bytes as u64;
                count += 1;
                last = batch.pairs.last().cloned();
                Some(batch.pairs)
            }
            // A key that is not larger than the one before undoes a bulk load.
            None if self.is_cut.load(Ordering::Acquire) => last.take().map(|pair| vec![pair]),
            None => None,
        });
        let loaded = match self.table.bulk_load(batches.flatten()) {
            Err(_) if self.is_cut.load(Ordering::Acquire) => return Ok(()),
            loaded => loaded?,
        };
        self.totals.add(loaded, loaded, bytes);
        self.totals.end(self.thread, count);
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

/// Destination of the reader's records.
struct Feed {
    table: TableInfo,
    bulk: bool,
    skip_errors: bool,
    resume_from: u64,
    totals: Arc<Totals>,
    senders: Vec<SyncSender<Batch>>,
    /// One for each sender.
    batches: Vec<Batch>,
    batch_records: usize,
    /// See [`Inserter::is_cut`].
    is_cut: Arc<AtomicBool>,
}

fn read(mut reader: Box<dyn RecordReader>, mut feed: Feed, events: &Sender<Event>) {
    let mut at_end = Read { is_sorted: true, ..Read::default() };
    let mut record = Record::default();
    let mut last: Option<Vec<u8>> = None;
    let mut position = 0;
    loop {
        let is_larger = |record: &Record| last.as_ref().is_none_or(|last| record.key > *last);
        let read = reader.read(&mut record).and_then(|more| {
            let is_left_out = more && record.place().position() <= feed.resume_from;
            if more && !is_left_out {
                feed.check(&record, is_larger(&record))?;
            }
            Ok((more, is_left_out))
        });
        match &read {
            Ok((true, _)) => position = record.place().position(),
            Ok((false, _)) => {}
            Err(error) => position = error.position(),
        }
        match read {
            Ok((false, _)) => {
                at_end.end = Some(position);
                break;
            }
            Ok((true, true)) => {}
            Ok((true, false)) => {
                at_end.is_sorted &= is_larger(&record);
                let key = last.get_or_insert_default();
                key.clear();
                key.extend_from_slice(&record.key);
                if feed.put(&mut record).is_err() {
                    // The inserting thread has stopped, and says why.
                    break;
                }
            }
            // The load before has told of these.
            Err(error) if !error.fatal && error.position() <= feed.resume_from => {}
            Err(error) if feed.skip_errors && !error.fatal => {
                feed.totals.put.store(error.position(), Ordering::Release);
                feed.totals.skip(error);
            }
            Err(error) => {
                at_end.error = Some(error);
                break;
            }
        }
    }
    if feed.bulk && at_end.error.is_some() {
        feed.is_cut.store(true, Ordering::Release);
        drop(feed);
    } else {
        feed.finish();
    }
    at_end.empty_lines = reader.empty_lines();
    let _ = events.send(Event::Read(at_end));
}

impl Feed {
    /// Refuses a record that the table would refuse, so that it is told with its line.
    fn check(&self, record: &Record, is_larger: bool) -> Result<(), InputError> {
        let refused = formats::check_key(self.table.keys, record.key.len())
            .and_then(|()| formats::check_value(self.table.values, record.value.len()));
        match refused {
            Err(why) => Err(record.error(Fault::Refused(why))),
            Ok(()) if self.bulk && !is_larger => Err(record.error(Fault::NotSorted)),
            Ok(()) => Ok(()),
        }
    }

    /// Takes the record's key and value, and sends a batch if one is full.
    ///
    /// # Errors
    /// The thread that the batch is for has stopped.
    fn put(&mut self, record: &mut Record) -> Result<(), SendError<Batch>> {
        let at = thread_of(&record.key, self.senders.len());
        let place = record.place();
        let batch = &mut self.batches[at];
        if batch.pairs.is_empty() {
            self.totals.begin(at, place.position());
        }
        batch.places.push(place);
        batch.bytes += record.key.len() + record.value.len();
        batch.pairs.push((std::mem::take(&mut record.key), std::mem::take(&mut record.value)));
        self.totals.put.store(place.position(), Ordering::Release);
        if batch.pairs.len() >= self.batch_records || batch.bytes >= BATCH_BYTES_MAX {
            return self.send(at);
        }
        Ok(())
    }

    fn send(&mut self, at: usize) -> Result<(), SendError<Batch>> {
        self.senders[at].send(std::mem::take(&mut self.batches[at]))
    }

    /// Sends what is left; the threads end when they have inserted it.
    fn finish(mut self) {
        for at in 0..self.senders.len() {
            if !self.batches[at].pairs.is_empty() {
                // One that has stopped does not keep the others from the rest.
                let _ = self.send(at);
            }
        }
    }
}

/// Returns which of `threads` threads inserts `key` (INV-LOAD-1), by its FNV-1a hash.
fn thread_of(key: &[u8], threads: usize) -> usize {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = key.iter().fold(0xcbf2_9ce4_8422_2325, step);
    // The remainder is below the number of threads.
    (hash % threads as u64) as usize
}
