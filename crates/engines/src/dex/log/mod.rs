//! Change log: makes an acknowledged change survive the death of its compute server.
//!
//! The log gets a change of a cached leaf under the leaf's SX. Once the record has landed, the tree applies
//! the change under X and acknowledges it. It does not log changes that are in remote memory anyway when they
//! are acknowledged: those of leaves that the cache does not admit, and those that link or unlink a value's
//! record.
//!
//! - `INV-DEX-LOG-1` Nobody sees a change, and it is not acknowledged, before it is in the log or in
//!   the remote node.
//! - `INV-DEX-LOG-2` Versions of leaves and numbers of changes come from one counter, which goes beyond
//!   the version of every leaf that is changed. So a leaf in remote memory holds a change of one of its
//!   keys if, and only if, its version is at least the change's number: for that a node is sealed
//!   under its latch, and so are the parts of a split and the whole of a merge.
//! - `INV-DEX-LOG-3` A part of the log is used again only when no frame holds a change of it that remote
//!   memory does not have. A frame's `oldest` is the number of the first such change, and is set before
//!   that is appended.
//! - `INV-DEX-LOG-4` Nothing waits for room in the log: a change for which there is none is written
//!   through. If the next half of the log is not all free, background tasks write back the frames that
//!   hold the oldest part, and a change of such a frame is written through.
//! - `INV-DEX-LOG-5` No record of the log refers to an object of the pool. (The recovery of a dead
//!   compute server's memory would have to find such an object.)

mod journal;
mod log_object;
mod recover;
mod ring;

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use farleaf_fabric::GlobalAddr;
use farleaf_index::IndexError;
use farleaf_index::bnode::Layout;
use farleaf_index::sync::Mutex;
use farleaf_pool::Session;

use crate::dex::DexOptions;
use crate::dex::cache::{PageCache, Sx};
use crate::dex::change::OwnedLeafChange;
use crate::dex::stats::Stats;
pub(crate) use journal::BATCH_MAX;
pub(crate) use log_object::{LogPlace, read_log};
pub(crate) use recover::{read_ring, write_floors};
use ring::{LogEntry, Ring};
pub(crate) use ring::{Record, RecordKind, Straggler};

farleaf_fabric::canaries! {
    pub(crate) LOSE_LOG_RECORD = "lose-log-record", "a change is acknowledged that was not logged";
}

/// The failures that an acknowledged change survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// None: a change is in this compute server's memory until its node is written back. The death of the
    /// compute server loses the changes that it acknowledged since.
    Volatile,
    /// The death of this compute server, with its cache: a change is in the log, in a memory server,
    /// or in its node there, before it is acknowledged. (The loss of a memory server is another
    /// matter.)
    Logged,
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Durability::Volatile => "volatile",
            Durability::Logged => "logged",
        })
    }
}

impl FromStr for Durability {
    type Err = UnknownDurability;

    fn from_str(name: &str) -> Result<Self, UnknownDurability> {
        let all = [Durability::Volatile, Durability::Logged];
        let found = all.into_iter().find(|durability| durability.to_string() == name);
        found.ok_or_else(|| UnknownDurability(name.to_owned()))
    }
}

/// There is no durability of that name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no durability {0:?}; there are: volatile, logged")]
pub struct UnknownDurability(pub String);

/// A log that has its memory, and the rings there.
#[derive(Debug)]
struct OpenLog {
    addr: GlobalAddr,
    /// Changes.
    changes: Option<Ring>,
    /// Images of nodes that are being written.
    journal: Option<Ring>,
    /// The last number of an image.
    images: AtomicU64,
    /// The nodes whose images came into the journal last: all that it may have images of.
    recent: Mutex<VecDeque<u64>>,
}

/// The log of one compute server's changes of one table, and the journal beside it.
#[derive(Debug)]
pub(crate) struct Log {
    /// The table's meta object, to which the log is bound.
    meta: GlobalAddr,
    layout: Layout,
    durability: Durability,
    journals: bool,
    /// Bytes of the log's object, if changes are logged.
    bytes: u64,
    /// The tree replays a dead owner's changes: its leaves are sealed with the number of the last one.
    replays: AtomicBool,
    /// The last version or number that was drawn.
    number: AtomicU64,
    open: OnceLock<OpenLog>,
    pages: Arc<PageCache>,
    stats: Arc<Stats>,
}

impl Log {
    pub(crate) fn new(
        meta: GlobalAddr,
        options: &DexOptions,
        pages: Arc<PageCache>,
        stats: Arc<Stats>,
    ) -> Self {
        Log {
            meta,
            layout: *pages.layout(),
            durability: options.durability,
            journals: options.wb_journal || options.durability == Durability::Logged,
            bytes: options.log_bytes,
            replays: AtomicBool::new(false),
            number: AtomicU64::new(0),
            open: OnceLock::new(),
            pages,
            stats,
        }
    }

    /// Returns whether the log has its memory.
    pub(crate) fn is_open(&self) -> bool {
        self.open.get().is_some()
    }

    /// Returns whether changes are logged.
    #[inline]
    pub(crate) fn logs_changes(&self) -> bool {
        self.changes().is_some()
    }

    #[inline]
    fn changes(&self) -> Option<&Ring> {
        self.open.get().and_then(|open| open.changes.as_ref())
    }

    /// Says that the tree replays the change of this number.
    pub(crate) fn replay_at(&self, number: u64) {
        self.replays.store(true, Ordering::Relaxed);
        self.number.store(number, Ordering::Relaxed);
    }

    /// Draws a number larger than all before and than `above`.
    fn draw(&self, above: u64) -> u64 {
        let next = |last: u64| Some(last.max(above) + 1);
        let last = self.number.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        last.unwrap_or_else(|last| last).max(above) + 1
    }

    /// Returns the version to seal a node of `level` as, whose image was `above` and whose latch
    /// keeps others from changing it (`INV-DEX-LOG-2`).
    pub(crate) fn version(&self, level: u8, above: u64) -> u64 {
        if level > 0 {
            above + 1
        } else if self.replays.load(Ordering::Relaxed) {
            // The next change has not been applied yet, and has a larger number.
            self.number.load(Ordering::Relaxed).max(above)
        } else if self.durability == Durability::Logged {
            self.draw(above)
        } else {
            above + 1
        }
    }

    /// Appends changes of the leaf whose SX is held. `false` if there is no room: the caller must then write
    /// the leaf through, sealed with a number above those that were drawn.
    ///
    /// Cost: 1 WRITE, which all that are logged at the same time share.
    ///
    /// # Errors
    /// This compute server has been cut off. The log is of no use any more.
    pub(crate) async fn append_changes(
        &self,
        session: &Session,
        sx: &Sx,
        changes: impl Iterator<Item = &OwnedLeafChange>,
    ) -> Result<bool, IndexError> {
        let Some(ring) = self.changes() else { return Ok(false) };
        if LOSE_LOG_RECORD.is_armed() {
            return Ok(true);
        }
        let ctl = sx.ctl();
        let mut count = 0;
        // One by one: together they may be more than a segment holds.
        for change in changes {
            let change = change.borrowed();
            debug_assert!(change.record.is_none(), "INV-DEX-LOG-5");
            let record = LogEntry {
                kind: if change.value.is_some() { RecordKind::Put } else { RecordKind::Remove },
                key: change.key,
                value: change.value.unwrap_or(&[]),
                frame: Some(sx.frame()),
            };
            let was = ctl.oldest();
            let appended = ring.append(&[record], false, || {
                let number = self.draw(ctl.version());
                if was == 0 {
                    ctl.set_oldest(number);
                }
                number
            });
            let Some(appended) = appended else {
                self.stats.log_full.add();
                return Ok(false);
            };
            count = appended.count;
            self.stats.log_records.add();
        }
        let landed = ring.land(session, &self.pages.lot, count).await;
        self.stats.log_writes.add_many(landed.as_ref().copied().unwrap_or(0));
        landed.map(|_| true)
    }

    /// Returns whether a leaf keeps the log's oldest part, and that part is in the way: then the leaf's next
    /// change is written through. `oldest` is the number of the leaf's first change that remote memory
    /// does not have.
    pub(crate) fn is_kept_full_by(&self, oldest: u64) -> bool {
        let last = self.changes().filter(|_| oldest > 0).and_then(Ring::oldest_part);
        last.is_some_and(|last| oldest <= last)
    }

    /// Returns whether frames keep the oldest part of the log, which is needed next.
    pub(crate) fn is_nearly_full(&self) -> bool {
        self.changes().and_then(Ring::oldest_part).is_some()
    }

    /// Takes one of the frames that keep the log's oldest part.
    pub(crate) fn take_straggler(&self) -> Option<Straggler> {
        self.changes().and_then(Ring::straggler)
    }

    /// Returns a straggler to the ring; `keeps` says whether it still keeps its segment.
    pub(crate) fn give_back(&self, straggler: Straggler, keeps: bool) {
        if let Some(ring) = self.changes() {
            ring.give_back(straggler, keeps);
        }
    }
}
