//! Log recovery: opens a log, voids one, and reads the records that a dead owner left.
//!
//! The tree that takes over replays them (`tree/replay.rs`).

use std::sync::atomic::{AtomicU64, Ordering};

use farleaf_fabric::GlobalAddr;
use farleaf_index::IndexError;
use farleaf_index::retry::backoff;
use farleaf_index::sync::Mutex;
use farleaf_pool::Session;

use super::log_object::{FLOOR_WORD, LogPlace};
use super::ring::{Record, Ring, RingPlace, records_of};
use super::{Log, OpenLog};

/// The first key under which tasks wait for a ring: no address, and no frame's key.
const KEYS: u64 = 1 << 63 | 1 << 40;

impl Log {
    /// Opens the log at `place`, once.
    pub(crate) fn start(&self, place: &LogPlace) {
        let ring = |place: Option<RingPlace>, part: u64| {
            place.map(|place| {
                let last = place.segments - 1;
                Ring::new(place, [KEYS + 2 * part, KEYS + 2 * part + 1], last, 0)
            })
        };
        debug_assert!(!self.is_open(), "it is opened once");
        let _ = self.open.set(OpenLog {
            addr: place.addr,
            changes: ring(place.changes(), 0),
            journal: ring(place.journal(), 1),
            images: AtomicU64::new(0),
            recent: Mutex::default(),
        });
    }

    /// Goes on with the journal of the dead owner's log `log`: behind the segment and generation that it used
    /// last, and the number `last` of its last image.
    pub(crate) fn take_journal(
        &self,
        log: &LogPlace,
        place: RingPlace,
        (segment, generation): (usize, u64),
        last: u64,
    ) {
        let _ = self.open.set(OpenLog {
            addr: log.addr,
            changes: None,
            journal: Some(Ring::new(place, [KEYS, KEYS + 1], segment, generation)),
            images: AtomicU64::new(last),
            recent: Mutex::default(),
        });
    }

    /// Voids the records so far. Remote memory holds their changes in any case, and nobody may replay them:
    /// the caller is about to change keys beside the log. Waits until no WRITE of a node is under way.
    ///
    /// Cost: 1 WRITE if there is a log.
    pub(crate) async fn void(&self, session: &Session) -> Result<(), IndexError> {
        let Some(open) = self.open.get() else { return Ok(()) };
        let mut attempt = 0;
        let images = loop {
            let images = open.images.load(Ordering::SeqCst);
            if open.journal.as_ref().is_none_or(Ring::is_closed) {
                break images;
            }
            backoff(session, attempt).await;
            attempt += 1;
        };
        write_floors(session, open.addr, [self.version(0, 0), images]).await
    }
}

/// Writes the numbers of the last change and the last image that do not count into the head of the log at
/// `log`. 1 WRITE.
pub(crate) async fn write_floors(
    session: &Session,
    log: GlobalAddr,
    floors: [u64; 2],
) -> Result<(), IndexError> {
    let session = session.without_deadline();
    let mut buf = session.reliable().buf(16);
    buf.words_mut().copy_from_slice(&floors);
    Ok(session.reliable().write(log.plus(FLOOR_WORD * 8), buf).await?)
}

/// Reads a ring's segments: the last that was begun, its generation, and all records.
///
/// Cost: 1 READ for each segment.
pub(crate) async fn read_ring(
    session: &Session,
    place: RingPlace,
) -> Result<(usize, u64, Vec<Record>), IndexError> {
    let reliable = session.reliable();
    let (mut last, mut records) = ((0, place.segments - 1), Vec::new());
    for index in 0..place.segments {
        let buf = reliable.buf(place.segment_words * 8);
        let segment = reliable.read(place.segment(index), buf).await?;
        let (mut found, generation) = records_of(segment.words(), place.seed);
        last = last.max((generation, index));
        records.append(&mut found);
    }
    Ok((last.1, last.0, records))
}
