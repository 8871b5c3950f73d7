//! Ownership: the keys of a table that this compute server owns, and the operations that work on them.
//!
//! A table has an ownership map, which its meta object names. Each compute server that has the table
//! open holds an [`Ownership`] of it: a view of the map behind a [`RangeGuard`], which each operation acquires.
//! An operation on another's key is sent to the owner (`routing`). Joining, learning newer maps and
//! taking over from the dead is `membership`.

mod batch;
mod guard;
mod load;
mod map;
mod membership;
mod op_counters;
mod partitions;
mod published;
mod routing;
mod scan_parts;
mod two_slots;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use farleaf_fabric::Incarnation;
use farleaf_pool::Session;
use guard::KeyState;

use crate::local::ParkingLot;
use crate::sync::{Mutex, lock};
use crate::{IndexError, Seek};
pub use batch::BatchAnswers;
pub(crate) use batch::run_at;
pub use guard::{OpGuard, RangeGuard, View};
pub(crate) use load::Load;
pub use map::{change_map, change_map_now, create_map, lock_map, read_map};
pub(in crate::compute) use membership::cut_off;
pub use membership::{JoinOptions, Take, WholeTable, check_unowned, release_once};
pub(crate) use membership::{claim, close_whole, dead_holders, give_away};
pub(crate) use membership::{cut, forget_intent, install, refresh_map, take_free, take_over};
pub use partitions::{Intent, Partitions, Range, equal_width, sampled};
pub(in crate::compute) use published::{Published, ViewCache, ViewEntry, Viewed, no_views};
pub use routing::{FORWARD_UNCHECKED, Owner};
pub(crate) use routing::{ask, reply_of, scan_begin, seek_of};
pub(crate) use routing::{forward_change, forward_get, scan_all, serve};
pub use scan_parts::{ScanEnd, scan_parts};
pub use two_slots::{MapWords, SlotPlace, lock_slots, read_slot};
pub(in crate::compute) use two_slots::{glance, put_slot};

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

impl OwnershipCounts {
    /// The counts by name.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
        [
            ("forwarded", &self.forwarded),
            ("map_reads", &self.map_reads),
            ("moves", &self.moves),
            ("parked", &self.parked),
            ("takeovers", &self.takeovers),
        ]
        .into_iter()
        .map(|(name, counter)| (name, counter.load(Ordering::Relaxed)))
    }
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
    calls: bool,
    counts: OwnershipCounts,
}

impl AsRef<RangeGuard> for Ownership {
    fn as_ref(&self) -> &RangeGuard {
        &self.guard
    }
}

/// An ownership, for a task that is inside.
#[derive(Debug)]
pub struct TaskOwnership(Arc<Ownership>);

impl AsRef<RangeGuard> for TaskOwnership {
    fn as_ref(&self) -> &RangeGuard {
        &self.0.guard
    }
}

impl Ownership {
    /// The part of a compute server that owns nothing by `map` yet.
    fn new(words: MapWords, map: Partitions, calls: bool) -> Self {
        Ownership {
            words,
            guard: RangeGuard::new(map),
            lot: ParkingLot::new(1),
            state: AtomicU8::new(UNOWNED),
            broken: Mutex::default(),
            is_released: AtomicBool::new(false),
            calls,
            counts: OwnershipCounts::default(),
        }
    }

    /// Serves the partitions that are owned in `view`, and never another.
    pub fn of_view(words: MapWords, view: View) -> Self {
        let ownership = Ownership::new(words, view.map.clone(), false);
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
            Err(KeyState::Foreign(number)) => {
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
                || self.check_open().is_err() || self.view().state_of(seek) != KeyState::Closed;
            self.lot.park(LOT_KEY, is_open).await;
            self.check_open()?;
            match self.guard.try_acquire(session.id(), seek) {
                Ok(inside) => return Ok(Ok(inside)),
                Err(KeyState::Foreign(number)) => return Ok(Err(number)),
                Err(_) => {}
            }
        }
    }

    /// Enters the guard for a task that an operation which is inside leaves behind.
    pub fn enter_task(self: &Arc<Self>, session: &Session) -> OpGuard<TaskOwnership> {
        RangeGuard::acquire_for_task(TaskOwnership(Arc::clone(self)), session)
    }

    /// Returns whether it may call other compute servers.
    pub(crate) fn takes_calls(&self) -> bool {
        self.calls
    }

    /// The compute server that serves the key at `seek`, as far as it is known here, and the map's epoch; `None`
    /// if that is this one. All by one view: a partition's number means nothing in another.
    pub(crate) fn other_owner(&self, seek: Seek<'_>) -> Option<Owner> {
        let view = self.view();
        let partition = view.foreign_at(seek)?;
        let owner = Some(view.map.owners[partition]).filter(|owner| *owner != 0);
        Some(Owner { partition, owner: owner.map(Incarnation), epoch: view.map.epoch })
    }
}

#[cfg(test)]
mod tests {
    use farleaf_fabric::GlobalAddr;

    use super::*;

    fn part(bounds: &[&str], owned: &[bool]) -> View {
        let bounds: Vec<Vec<u8>> = bounds.iter().map(|bound| bound.as_bytes().to_vec()).collect();
        let map = Partitions::cut(&bounds);
        let map = Partitions {
            owners: owned.iter().map(|own| if *own { 7 } else { 9 }).collect(),
            ..map
        };
        View { owned: owned.to_vec(), ..View::new(map) }
    }

    /// A thread met a key of a partition that nobody had, or another. Before it looked the owner up by the partition's
    /// number, another thread published the map in which the key was this compute server's: the operation was
    /// refused, as if that were another.
    #[test]
    fn an_owner_is_looked_up_by_the_key_and_not_by_a_number_of_an_older_view() {
        let nowhere = GlobalAddr::NULL;
        let words = MapWords { meta: nowhere, map: nowhere, lock: nowhere };
        let ownership = Ownership::of_view(words, part(&["g"], &[true, false]));
        let key = Seek::At(b"k");
        let other = |partition| Owner { partition, owner: Some(Incarnation(9)), epoch: 0 };
        let before = ownership.guard.try_acquire(0, key).err();
        assert_eq!(before, Some(KeyState::Foreign(1)));
        assert_eq!(ownership.other_owner(key), Some(other(1)));
        ownership.guard.change(|_| Some(part(&[], &[true])));
        assert_eq!(ownership.other_owner(key), None, "it is own, and partition 1 is none");
        ownership.guard.change(|_| Some(part(&["c", "g"], &[false, true, false])));
        assert_eq!(ownership.other_owner(key), Some(other(2)), "partition 1 is own");
        ownership
            .guard
            .change(|view| Some(View { closed: Some(Range::default()), ..view.clone() }));
        assert_eq!(ownership.other_owner(Seek::At(b"d")), None, "own, and about to be another's");
        assert_eq!(ownership.view().foreign_at(Seek::First), Some(0));
    }
}
