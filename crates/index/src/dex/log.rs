//! The log of changes: what makes an acknowledged change survive the death of its compute server.
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
//!   through. Once more than half of the log is in use, whoever has logged a change then writes back
//!   up to two of the frames that keep the oldest part.
//! - `INV-DEX-LOG-5` No record of the log refers to an object of the pool. (Such an object would have to
//!   be found by whoever gives a dead compute server's memory back.)

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use farleaf_fabric::{Endpoint, GlobalAddr};
use farleaf_pool::Session;
use farleaf_pool::canary::Canary;

use super::combine::Others;
use super::eviction::Sx;
use super::frames::State;
use super::ops::OwnedIntent;
use super::ring::{Entry, Kind, Ring};
use super::{Cache, DexOptions, Fail};
use crate::IndexError;
use crate::sync::Mutex;

/// Frames that are written back after a change while the log is more than half full, and frames that
/// are looked at for that.
const TIDY_WRITES: u32 = 2;
const TIDY_LOOKS: u32 = 16;
/// Tries at the latch of one that somebody holds.
const TIDY_TRIES: u32 = 8;

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
pub(super) struct Live {
    pub(super) addr: GlobalAddr,
    /// Changes.
    pub(super) changes: Option<Ring>,
    /// Images of nodes that are being written.
    pub(super) journal: Option<Ring>,
    /// The last number of an image.
    pub(super) images: AtomicU64,
    /// Whose images were put into the journal last: all that it may have images of.
    pub(super) recent: Mutex<VecDeque<u64>>,
}

/// A cache's log.
#[derive(Debug)]
pub(super) struct Log {
    pub(super) durability: Durability,
    pub(super) journals: bool,
    /// This cache replays another's changes: its leaves are sealed with the number of the last.
    replays: AtomicBool,
    /// The last version or number that was drawn.
    number: AtomicU64,
    /// See `recover`.
    pub(super) taken: AtomicU8,
    pub(super) live: OnceLock<Live>,
}

impl Log {
    pub(super) fn new(options: &DexOptions) -> Self {
        Log {
            durability: options.durability,
            journals: options.wb_journal || options.durability == Durability::Logged,
            replays: AtomicBool::new(false),
            number: AtomicU64::new(0),
            taken: AtomicU8::new(0),
            live: OnceLock::new(),
        }
    }

    /// Where changes are logged, if they are.
    #[inline]
    pub(super) fn changes(&self) -> Option<&Ring> {
        self.live.get().and_then(|live| live.changes.as_ref())
    }

    /// From now on changes up to `number` are being replayed.
    pub(super) fn replay_at(&self, number: u64) {
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
    pub(super) fn version(&self, level: u8, above: u64) -> u64 {
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
    pub(super) async fn log_changes<E: Endpoint>(
        &self,
        session: &Session<E>,
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

    /// Writes back what keeps the log's oldest part, if more than half of it is in use. What cannot be
    /// written now is written later.
    ///
    /// Cost: none, or up to 2 WRITEs.
    pub(super) async fn tidy_log<E: Endpoint>(self: &std::sync::Arc<Self>, session: &Session<E>) {
        let Some(ring) = self.log.changes() else { return };
        let mut writes = 0;
        for _ in 0..TIDY_LOOKS {
            if writes == TIDY_WRITES {
                break;
            }
            let Some(straggler) = ring.straggler() else { break };
            let cleaned = self.clean(session, straggler.frame, straggler.last).await;
            ring.give_back(straggler, cleaned.is_err());
            match cleaned {
                Ok(wrote) => writes += u32::from(wrote),
                Err(_) => break,
            }
        }
    }

    /// Makes sure that the frame holds no change up to `last` that remote memory does not have;
    /// whether it had to be written.
    async fn clean<E: Endpoint>(
        self: &std::sync::Arc<Self>,
        session: &Session<E>,
        frame: u32,
        last: u64,
    ) -> Result<bool, Fail> {
        let ctl = self.frames.ctl(frame);
        let is_clean = || ctl.oldest() == 0 || ctl.oldest() > last;
        for _ in 0..TIDY_TRIES {
            if is_clean() {
                return Ok(false);
            }
            let sx = ctl.latch.sample().and_then(|version| self.try_sx(frame, version));
            if let Some(sx) = sx {
                if !is_clean() && ctl.is_dirty() && ctl.state() == State::Hot {
                    self.write_back(session, &sx).await?;
                    self.stats.log_cleaned.add();
                    return Ok(true);
                }
            } else {
                self.wait_for_frame(frame).await;
            }
            session.endpoint().yield_now().await;
        }
        Err(Fail::Restart)
    }
}
