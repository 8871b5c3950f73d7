//! Ownership: the keys of a table that this compute server owns, and the operations that work on them.
//!
//! A table has an ownership map, which its meta object names. Each compute server that has the table
//! open holds an [`Ownership`] of it: a view of the map behind a [`RangeGuard`], which each operation acquires.
//! An operation on another's key is sent to the owner (`routing`). Joining, learning newer maps and
//! taking over from the dead is `membership`.

mod guard;
mod load;
mod map;
mod membership;
mod op_counters;
mod routing;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use farleaf_fabric::Incarnation;
use farleaf_pool::Session;

use crate::IndexError;
use crate::bnode::Seek;
use crate::local::ParkingLot;
use crate::sync::{Mutex, lock};
use guard::Standing;
pub use guard::{OpGuard, RangeGuard, View};
pub(crate) use load::Load;
pub use map::{Intent, change_map, create_map, lock_map};
pub use map::{MapWords, Partitions, Range, change_map_now, equal_width, read_map, sampled};
pub use membership::{
    JoinOptions, Take, check_unowned, claim, close_whole, dead_holders, give_away,
};
pub(crate) use membership::{cut, forget_intent, install, refresh_map, take_free, take_over};
pub use routing::{Owner, forward_change, forward_get, scan_all, serve};
pub(crate) use routing::{ask, reply_of, scan_begin, seek_of};

/// The table is open, and this compute server has owned no key of it yet.
const UNOWNED: u8 = 0;
/// This compute server owns, or has owned, keys.
const OWNED: u8 = 1;
const CLOSED: u8 = 2;
/// A change of the table's shape failed half way: nothing is done any more.
const BROKEN: u8 = 3;

/// The key under which operations wait in the parking lot.
const LOT_KEY: u64 = 0;

/// Counts of what ownership has brought about.
#[derive(Debug, Default)]
pub struct OwnershipCounts {
    /// Operations that waited for a range to open.
    pub parked: AtomicU64,
    /// Operations sent to the owners of their keys.
    pub forwarded: AtomicU64,
    /// Readings of the map.
    pub map_reads: AtomicU64,
    /// Dead owners whose place was taken.
    pub takeovers: AtomicU64,
    /// Ranges given to others.
    pub moves: AtomicU64,
}

/// Adds one.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// A table's ownership, as this compute server takes part in it.
#[derive(Debug)]
pub struct Ownership {
    words: MapWords,
    guard: RangeGuard,
    /// Operations that wait for a closed range.
    lot: ParkingLot,
    state: AtomicU8,
    /// The reason, once nothing works any more.
    broken: Mutex<String>,
    /// The table is closed, and the map does not name this compute server.
    is_released: AtomicBool,
    /// See [`JoinOptions`].
    take_over: bool,
    calls: bool,
    counts: OwnershipCounts,
}

impl AsRef<RangeGuard> for Ownership {
    fn as_ref(&self) -> &RangeGuard {
        &self.guard
    }
}

impl Ownership {
    /// The part of a compute server that owns nothing by `map` yet.
    fn new(words: MapWords, map: Partitions, join: JoinOptions) -> Self {
        Ownership {
            words,
            guard: RangeGuard::new(map),
            lot: ParkingLot::new(1),
            state: AtomicU8::new(UNOWNED),
            broken: Mutex::default(),
            is_released: AtomicBool::new(false),
            take_over: join.take_over,
            calls: join.calls,
            counts: OwnershipCounts::default(),
        }
    }

    /// Serves the partitions that are owned in `view`, and never another.
    pub fn of_view(words: MapWords, view: View) -> Self {
        let join = JoinOptions { take: Take::Nothing, take_over: false, calls: false };
        let ownership = Ownership::new(words, view.map.clone(), join);
        ownership.guard.change(|_| Some(view));
        ownership
    }

    /// The words that hold the map.
    pub fn words(&self) -> &MapWords {
        &self.words
    }

    /// The guard.
    pub fn guard(&self) -> &RangeGuard {
        &self.guard
    }

    /// The latest known map.
    pub fn view(&self) -> Arc<View> {
        self.guard.view()
    }

    /// Its counts so far.
    pub fn counts(&self) -> &OwnershipCounts {
        &self.counts
    }

    /// Returns whether others may change a node of the range `(low, high]`.
    pub fn crosses(&self, low: Option<&[u8]>, high: Option<&[u8]>) -> bool {
        self.guard.with_current(|view| view.crosses(low, high))
    }

    /// Returns whether a range is being given away.
    pub fn is_moving(&self) -> bool {
        self.guard.is_moving()
    }

    /// Returns whether this compute server owns, or has owned, keys, and the table is open.
    pub fn is_owned(&self) -> bool {
        self.state.load(Ordering::Acquire) == OWNED
    }

    /// Returns whether the table was closed here.
    pub fn is_closed(&self) -> bool {
        self.state.load(Ordering::Acquire) == CLOSED
    }

    /// From now on this compute server owns keys.
    pub fn set_owned(&self) {
        self.state.store(OWNED, Ordering::Release);
    }

    /// From now on operations fail. Those that wait for a range to open hear of it.
    pub fn set_closed(&self) {
        self.state.store(CLOSED, Ordering::Release);
        self.wake();
    }

    /// # Errors
    /// `Closed`.
    #[inline]
    pub fn check_open(&self) -> Result<(), IndexError> {
        if self.state.load(Ordering::Acquire) <= OWNED { Ok(()) } else { Err(self.closed()) }
    }

    #[cold]
    fn closed(&self) -> IndexError {
        IndexError::Closed(match lock(&self.broken).as_str() {
            "" => "the table has been closed".into(),
            why => format!("the table must be opened anew: {why}"),
        })
    }

    /// The table is of no use here any more if a change that must not stop half way has failed.
    ///
    /// # Errors
    /// `OutcomeUnknown` instead of the change's.
    pub fn must_succeed<T>(&self, done: Result<T, IndexError>) -> Result<T, IndexError> {
        done.map_err(|error| {
            let text = error.to_string();
            lock(&self.broken).clone_from(&text);
            self.state.store(BROKEN, Ordering::Release);
            IndexError::OutcomeUnknown(text)
        })
    }

    /// Lets in those who wait for a range that was closed.
    pub(crate) fn wake(&self) {
        self.lot.unpark(LOT_KEY);
    }

    /// Acquires the guard for an operation at `seek`, once that is open; `Err` is the partition that it is in,
    /// and that is another's. The caller has no pin, is not inside, and acquires again for the next
    /// operation.
    ///
    /// # Errors
    /// `Closed`.
    #[inline]
    pub async fn acquire(
        &self,
        session: &Session,
        seek: Seek<'_>,
    ) -> Result<Result<OpGuard<&RangeGuard>, usize>, IndexError> {
        match self.guard.try_acquire(session.id(), seek) {
            Ok(inside) => Ok(Ok(inside)),
            Err(Standing::Foreign(number)) => {
                self.check_open()?;
                Ok(Err(number))
            }
            Err(_) => Box::pin(self.acquire_opened(session, seek)).await,
        }
    }

    /// As [`Ownership::acquire`], after a wait for the range to open.
    #[cold]
    async fn acquire_opened(
        &self,
        session: &Session,
        seek: Seek<'_>,
    ) -> Result<Result<OpGuard<&RangeGuard>, usize>, IndexError> {
        loop {
            count(&self.counts.parked);
            let is_open =
                || self.check_open().is_err() || self.view().standing(seek) != Standing::Closed;
            self.lot.park(LOT_KEY, is_open).await;
            self.check_open()?;
            match self.guard.try_acquire(session.id(), seek) {
                Ok(inside) => return Ok(Ok(inside)),
                Err(Standing::Foreign(number)) => return Ok(Err(number)),
                Err(_) => {}
            }
        }
    }

    /// The compute server that serves `partition`, as far as it is known here, and the map's epoch.
    pub(crate) fn owner_of(&self, partition: usize) -> Owner {
        let view = self.view();
        let owner = view.map.owners.get(partition).copied().filter(|owner| *owner != 0);
        Owner { partition, owner: owner.map(Incarnation), epoch: view.map.epoch }
    }
}
