//! Range owner: what an engine adds so that ranges of its tables' keys have owners.
//!
//! Map, guard, routing, moves and taking over are this crate's [`super::ownership`] and [`super::migration`].

use farleaf_fabric::Incarnation;
use farleaf_pool::Session;

use super::Guest;
use super::migration::MoveError;
use super::ownership::{Ownership, Partitions, Range};
use crate::change::{Change, Outcome};
use crate::{Entries, IndexError, ScanCursor, ScanRange};

/// An engine's open table whose ranges of keys have owners: the engine's side of ownership.
///
/// All its work on own keys runs inside the guard ([`Ownership::acquire`]).
#[allow(async_fn_in_trait, reason = "a session and all its tasks stay on one thread")]
pub trait RangeOwner: Clone + 'static {
    /// This compute server's part in the table.
    fn ownership(&self) -> &Ownership;

    /// Returns whether keys of the table may have this length.
    fn takes_key(&self, len: usize) -> bool;

    /// Refuses a change that the table cannot take, before it travels.
    ///
    /// # Errors
    /// `Invalid`.
    fn check_change(&self, change: &Change<'_>) -> Result<(), IndexError>;

    /// As [`crate::Index::get`], for an own key; the caller is inside the guard.
    async fn get_own(
        &self,
        session: &Session,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<bool, IndexError>;

    /// As [`crate::Index::change`], for an own key; the caller is inside the guard.
    async fn change_own(
        &self,
        session: &Session,
        change: &Change<'_>,
        held: &mut Vec<u8>,
    ) -> Result<Outcome, IndexError>;

    /// Appends the pairs that `cursor` still wants to `out`, as far as its places are own keys: the partition
    /// of the first that is not, `None` if all is done. It acquires the guard itself, as often as it likes.
    async fn scan_own(
        &self,
        session: &Session,
        cursor: &mut ScanCursor<'_>,
        out: &mut Entries,
    ) -> Result<Option<usize>, IndexError>;

    /// This compute server's right to work on keys that nobody owns, if it has one. A bulk load of a guest takes over
    /// from the dead, and nothing else does.
    fn guest(&self) -> Option<&Guest>;

    /// As [`crate::Index::get`], for a key that nobody owns, safe beside any other guest. The caller has a pin.
    async fn get_unowned(
        &self,
        session: &Session,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<bool, IndexError>;

    /// As [`crate::Index::change`], for a key that nobody owns, safe beside any other guest. The caller has a pin and
    /// the lock of the ownership map, and waits without a deadline: an error is final then, and nothing is under way.
    async fn change_unowned(
        &self,
        session: &Session,
        change: &Change<'_>,
        held: &mut Vec<u8>,
    ) -> Result<Outcome, IndexError>;

    /// Clears what is left of removed keys, as far as nobody owns them by `map`: if it is due, or `is_last`. The
    /// caller is that of [`RangeOwner::change_unowned`].
    async fn clear_unowned(
        &self,
        _session: &Session,
        _map: &Partitions,
        _is_last: bool,
    ) -> Result<(), IndexError> {
        Ok(())
    }

    /// Finishes what the dead client that `dead` stands for was changing under the map's lock as a guest. Several takers
    /// of that lock may call it at once.
    ///
    /// # Errors
    /// Those of a change; the lock is not taken over then.
    async fn finish_dead_guest(&self, _session: &Session, _dead: u64) -> Result<(), IndexError> {
        Ok(())
    }

    /// As [`crate::Index::scan`], for keys that nobody owns, safe beside any other guest. The caller has a pin.
    async fn scan_unowned(
        &self,
        session: &Session,
        range: ScanRange<'_>,
        limit: usize,
        out: &mut Entries,
    ) -> Result<(), IndexError>;

    /// Makes `bound` a boundary that no object of own keys alone crosses: the fence of a leaf in a B+-tree. The
    /// caller has a pin.
    async fn make_bound(&self, session: &Session, bound: &[u8]) -> Result<(), IndexError>;

    /// Finishes what a crash has left half done around `bound`, before nodes that cross it are shared. The caller
    /// has a pin.
    async fn heal_around(&self, _session: &Session, _bound: &[u8]) -> Result<(), IndexError> {
        Ok(())
    }

    /// Writes back what is dirty in `range` now, unless it is more than `most` nodes; how many nodes are dirty.
    /// The caller has a pin.
    async fn write_back(
        &self,
        session: &Session,
        range: &Range,
        most: usize,
    ) -> Result<usize, IndexError>;

    /// Writes back everything. The caller has a pin.
    async fn flush(&self, session: &Session) -> Result<(), IndexError>;

    /// The view has new cuts: what is cached and crosses one is shared with other compute servers from now on.
    async fn share_bounds(&self, _session: &Session) -> Result<(), MoveError> {
        Ok(())
    }

    /// Drops everything of `range` from the cache: it is another's next. It is closed, no operation works on it,
    /// and nothing of it is dirty. The caller has a pin.
    async fn hand_over(&self, session: &Session, range: &Range) -> Result<(), MoveError>;

    /// Before this compute server serves the first range that `map` gives it; gives the newest map. The caller
    /// has a pin.
    async fn prepare_to_own(
        &self,
        _session: &Session,
        map: Partitions,
    ) -> Result<Partitions, IndexError> {
        Ok(map)
    }

    /// The view gives this compute server more than before. The caller has a pin.
    async fn take_in(&self, session: &Session) -> Result<(), IndexError>;

    /// Brings to remote memory what the dead compute server `dead` has acknowledged on the ranges that `map`
    /// gives to it. It is cut off, and the caller holds the map's lock.
    async fn replay(
        &self,
        session: &Session,
        map: &Partitions,
        dead: Incarnation,
    ) -> Result<(), IndexError>;

    /// A key in the middle of a range of own keys; `None` if it cannot be halved.
    ///
    /// # Errors
    /// `NotOwned`.
    async fn middle(&self, session: &Session, range: &Range) -> Result<Option<Vec<u8>>, MoveError>;

    /// The table is closed: the member of the pool forgets that it is open.
    fn let_go(&self, session: &Session);
}
