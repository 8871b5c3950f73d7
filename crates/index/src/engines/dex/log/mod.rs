//! Change log: makes an acknowledged change survive the death of its compute server.
//!
//! A change of a cached leaf is appended to the log under the leaf's SX; once it has landed there, it
//! is applied under X and acknowledged. Changes that are in remote memory anyway when they are
//! acknowledged (of leaves that are not kept, and those that link or unlink a value's record) are not
//! logged.
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
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use farleaf_fabric::GlobalAddr;
use farleaf_pool::Session;
use farleaf_pool::canary::Canary;

use crate::IndexError;
use crate::engines::dex::cache::State;
use crate::engines::dex::cache::Sx;
use crate::engines::dex::tree::Others;
use crate::engines::dex::tree::OwnedIntent;
use crate::engines::dex::{Cache, DexOptions};
use crate::sync::Mutex;
pub(crate) use journal::BATCH_MAX;
pub(crate) use log_object::read_log;
use ring::{Entry, Kind, Ring};

/// Tasks that write back at a time to make room in the log: their nodes fill half of a journal.
const TIDIERS_MAX: u32 = 2;

/// What an acknowledged change survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Nothing: changes are in this compute server's memory until their node is written back. Its
    /// death loses those that were acknowledged since.
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

/// The log's memory, and the rings in it.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) addr: GlobalAddr,
    /// Changes.
    pub(crate) changes: Option<Ring>,
    /// Images of nodes that are being written.
    pub(crate) journal: Option<Ring>,
    /// The last number of an image.
    pub(crate) images: AtomicU64,
    /// Whose images were put into the journal last: all that it may have images of.
    pub(crate) recent: Mutex<VecDeque<u64>>,
}

/// A cache's log.
#[derive(Debug)]
pub(crate) struct Log {
    pub(crate) durability: Durability,
    pub(crate) journals: bool,
    /// This cache replays another's changes: its leaves are sealed with the number of the last.
    replays: AtomicBool,
    /// The last version or number that was drawn.
    number: AtomicU64,
    /// Tasks that make room in it.
    tidiers: AtomicU32,
    pub(crate) live: OnceLock<Live>,
}

impl Log {
    pub(crate) fn new(options: &DexOptions) -> Self {
        Log {
            durability: options.durability,
            journals: options.wb_journal || options.durability == Durability::Logged,
            replays: AtomicBool::new(false),
            number: AtomicU64::new(0),
            tidiers: AtomicU32::new(0),
            live: OnceLock::new(),
        }
    }

    /// Where changes are logged, if they are.
    #[inline]
    pub(crate) fn changes(&self) -> Option<&Ring> {
        self.live.get().and_then(|live| live.changes.as_ref())
    }

    /// From now on changes up to `number` are being replayed.
    pub(crate) fn replay_at(&self, number: u64) {
        self.replays.store(true, Ordering::Relaxed);
        self.number.store(number, Ordering::Relaxed);
    }

    /// A number larger than all before and than `above`.
    fn draw(&self, above: u64) -> u64 {
        let next = |last: u64| Some(last.max(above) + 1);
        let last = self.number.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        last.unwrap_or_else(|last| last).max(above) + 1
    }

    /// The version that a node of `level` is to be sealed as, whose image was `above` and whose latch
    /// keeps others from changing it (`INV-DEX-LOG-2`).
    pub(crate) fn version(&self, level: u8, above: u64) -> u64 {
        if level > 0 {
            above + 1
        } else if self.replays.load(Ordering::Relaxed) {
            // What comes next has not been applied yet, and has a larger number.
            self.number.load(Ordering::Relaxed).max(above)
        } else if self.durability == Durability::Logged {
            self.draw(above)
        } else {
            above + 1
        }
    }
}

impl Cache {
    /// Logs a change of the leaf whose SX is held, and those of others that go with it. `false` if there is
    /// no room: the leaf must be written through then, sealed with a number above those that were drawn.
    ///
    /// Cost: 1 WRITE, which all that are logged at the same time share.
    ///
    /// # Errors
    /// `OutcomeUnknown`; the cache is of no use any more.
    pub(crate) async fn log_changes(
        &self,
        session: &Session,
        sx: &Sx,
        first: &OwnedIntent,
        others: &Others,
    ) -> Result<bool, IndexError> {
        let Some(ring) = self.log.changes() else { return Ok(false) };
        if Canary::LoseLogRecord.is_armed() {
            return Ok(true);
        }
        let ctl = self.frames.ctl(sx.frame());
        let mut count = 0;
        // One by one: together they may be more than a segment holds.
        for intent in std::iter::once(first).chain(others.changes()) {
            debug_assert!(intent.record().is_none(), "INV-DEX-LOG-5");
            let entry = Entry {
                kind: if intent.value().is_some() { Kind::Put } else { Kind::Remove },
                key: &intent.key,
                value: intent.value().unwrap_or(&[]),
                frame: Some(sx.frame()),
            };
            let was = ctl.oldest();
            let appended = ring.append(&[entry], false, || {
                let number = self.log.draw(ctl.version());
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
        let landed = ring.land(session, &self.lot, count).await;
        self.stats.log_writes.add_many(landed.as_ref().copied().unwrap_or(0));
        self.must_succeed(landed.map(drop))?;
        Ok(true)
    }

    /// Whether the leaf keeps the log's oldest part while that is in the way: then its next change is written
    /// through.
    pub(crate) fn keeps_oldest(&self, frame: u32) -> bool {
        let oldest = self.frames.ctl(frame).oldest();
        let last = self.log.changes().filter(|_| oldest > 0).and_then(Ring::oldest_part);
        last.is_some_and(|last| oldest <= last)
    }

    /// Has what keeps the log's oldest part written back, if that is in the way; nobody waits for it.
    ///
    /// Cost: none here; 1 WRITE for each of up to [`BATCH_MAX`] nodes, together, and 1 for all of them if
    /// there is a journal.
    pub(crate) fn tidy_log(self: &Arc<Self>, session: &Session) {
        if self.log.changes().and_then(Ring::oldest_part).is_none() {
            return;
        }
        let Some(tidying) = Tidying::begin(self) else { return };
        self.spawn(session, async move |session| tidying.0.tidy(&session).await);
    }

    /// Writes some of those frames back together. Those that somebody changes meanwhile are left to their
    /// next change.
    async fn tidy(self: &Arc<Self>, session: &Session) {
        let Some(ring) = self.log.changes() else { return };
        let (mut taken, mut held, mut busy) = (Vec::new(), Vec::<Sx>::new(), Vec::new());
        while held.len() < BATCH_MAX
            && busy.len() < BATCH_MAX
            && let Some(straggler) = ring.straggler()
        {
            let frame = straggler.frame;
            let ctl = self.frames.ctl(frame);
            let is_clean = || ctl.oldest() == 0 || ctl.oldest() > straggler.last;
            if is_clean() {
                ring.give_back(straggler, false);
            } else if held.iter().any(|sx| sx.frame() == frame) {
                taken.push(straggler);
            } else if let Some(version) = ctl.latch.sample()
                && let Some(sx) = self.try_sx(frame, version)
                && !is_clean()
                && ctl.is_dirty()
                && ctl.state() == State::Hot
            {
                held.push(sx);
                taken.push(straggler);
            } else {
                busy.push(straggler);
            }
        }
        for straggler in busy {
            ring.give_back(straggler, true);
        }
        if held.is_empty() {
            return;
        }
        let written = self.write_back_all(session, &held).await;
        if written.is_ok() {
            self.stats.log_cleaned.add_many(held.len() as u64);
        }
        for straggler in taken {
            ring.give_back(straggler, written.is_err());
        }
    }
}

/// A task that writes back what keeps the log's oldest part: one of [`TIDIERS_MAX`].
struct Tidying(Arc<Cache>);

impl Tidying {
    fn begin(cache: &Arc<Cache>) -> Option<Self> {
        let more = |now| (now < TIDIERS_MAX).then_some(now + 1);
        let begun = cache.log.tidiers.fetch_update(Ordering::AcqRel, Ordering::Relaxed, more);
        begun.is_ok().then(|| Tidying(Arc::clone(cache)))
    }
}

impl Drop for Tidying {
    fn drop(&mut self) {
        self.0.log.tidiers.fetch_sub(1, Ordering::AcqRel);
    }
}
