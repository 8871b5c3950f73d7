//! Range owner: what an engine adds so that ranges of its tables' keys have owners.
//!
//! [`Owned`] makes an open table of it: map, guard, routing, moves and taking over are this crate's
//! [`super::ownership`] and [`super::migration`].

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use farleaf_fabric::{GlobalAddr, Incarnation, OpKind};
use farleaf_pool::{Audit, Session};

use super::guest::Unowned;
use super::migration::MoveError;
use super::owned::Owned;
use super::ownership::{MapWords, Ownership, Partitions, Range, ScanEnd, WholeTable};
use crate::engine::Engine;
use crate::{
    Change, CounterSet, Entries, IndexError, Outcome, ScanCursor, SortedPairs, Stored, TableReport,
    TableSpec, longest_prefix_by_floors,
};

/// The shape of the tables of such trees.
pub type ShapeOf<T> = <<T as RangeOwner>::Engine as Engine>::Shape;
/// The settings by which one compute server opens such a table.
pub type OptionsOf<T> = <<T as RangeOwner>::Engine as Engine>::Options;

/// An engine's tree of a table whose ranges of keys have owners: the engine's side of ownership.
///
/// All its work on own keys runs inside the guard ([`Ownership::acquire`]). Keys and changes fit the table when they
/// come here.
#[allow(async_fn_in_trait, reason = "a session and all its tasks stay on one thread")]
pub trait RangeOwner: fmt::Debug + Sized + Send + Sync + 'static {
    /// The engine of such tables.
    type Engine: Engine<Table = Owned<Self>>;
    /// Its work on keys that nobody owns; [`NoGuests`](super::NoGuests) if it does none.
    type Unowned: Unowned<Self>;

    /// The words of the meta object at `meta` that hold the ownership map; 0 in a new table.
    fn map_words(meta: GlobalAddr) -> MapWords;

    /// Makes this compute server's tree of a table. `ownership` reads the map when it is awaited.
    ///
    /// # Errors
    /// Those of `ownership`; `Invalid` for options that make no sense.
    async fn new(
        session: &Session,
        table: &Stored<ShapeOf<Self>>,
        options: OptionsOf<Self>,
        ownership: impl Future<Output = Result<Arc<Ownership>, IndexError>>,
    ) -> Result<Arc<Self>, IndexError>;

    /// The settings of a tree that only releases what the dead own: the cheapest.
    fn released(_table: &TableSpec<ShapeOf<Self>>) -> OptionsOf<Self> {
        OptionsOf::<Self>::default()
    }

    /// This compute server's part in the table, with which the tree was made.
    fn ownership(&self) -> &Arc<Ownership>;

    /// As [`crate::Index::get`], for an own key; the caller is inside the guard. The answer is vouched for
    /// ([`Session::vouch`]) when it returns.
    async fn get_own(
        self: &Arc<Self>,
        session: &Session,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<bool, IndexError>;

    /// As [`crate::Index::change`], for an own key; otherwise as [`RangeOwner::get_own`].
    async fn change_own(
        self: &Arc<Self>,
        session: &Session,
        change: &Change<'_>,
        held: &mut Vec<u8>,
    ) -> Result<Outcome, IndexError>;

    /// Appends the pairs that `cursor` still wants to `out`, as far as its places are own keys. It acquires the guard
    /// itself, as often as it likes; [`scan_parts`](super::ownership::scan_parts) does for most engines.
    async fn scan_own(
        self: &Arc<Self>,
        session: &Session,
        cursor: &mut ScanCursor<'_>,
        out: &mut Entries,
    ) -> Result<ScanEnd, IndexError>;

    /// As [`crate::Index::longest_prefix`].
    async fn longest_prefix(
        table: &Owned<Self>,
        session: &Session,
        key: &[u8],
        out: &mut Entries,
    ) -> Result<(), IndexError> {
        longest_prefix_by_floors(table, session, key, out).await
    }

    /// As [`crate::Index::bulk_load`]. All of the table is this compute server's, and closed until `whole` is dropped:
    /// a task that outlives the caller keeps it.
    async fn bulk_load(
        self: &Arc<Self>,
        session: &Session,
        whole: WholeTable,
        pairs: &mut impl SortedPairs,
    ) -> Result<u64, IndexError>;

    /// Makes `bound` a boundary that no object of own keys alone crosses, such as the fence of a leaf of a B+-tree. If
    /// the range behind it `is_moving` to another compute server, it also finishes what a crash has left half done
    /// around the bound. The caller has a pin.
    async fn make_bound(
        self: &Arc<Self>,
        _session: &Session,
        _bound: &[u8],
        _is_moving: bool,
    ) -> Result<(), IndexError> {
        Ok(())
    }

    /// Writes back what is dirty in `range` now, unless it is more than `most` nodes; returns how many nodes are dirty.
    /// The caller has a pin.
    async fn write_back(
        self: &Arc<Self>,
        _session: &Session,
        _range: &Range,
        _most: usize,
    ) -> Result<usize, IndexError> {
        Ok(0)
    }

    /// Writes back everything. The caller has a pin.
    async fn flush(self: &Arc<Self>, _session: &Session) -> Result<(), IndexError> {
        Ok(())
    }

    /// The view has new cuts: what is cached and crosses one is shared with other compute servers from now on.
    async fn share_bounds(self: &Arc<Self>, _session: &Session) -> Result<(), MoveError> {
        Ok(())
    }

    /// Drops everything of `range` from the cache: it is another's next. It is closed, no operation works on it,
    /// and nothing of it is dirty. The caller has a pin.
    async fn hand_over(self: &Arc<Self>, session: &Session, range: &Range)
    -> Result<(), MoveError>;

    /// Before this compute server serves the first range that `map` gives it; returns the newest map. The caller
    /// has a pin.
    async fn prepare_to_own(
        self: &Arc<Self>,
        _session: &Session,
        map: Partitions,
    ) -> Result<Partitions, IndexError> {
        Ok(map)
    }

    /// The view gives this compute server more than before. The caller has a pin.
    async fn take_in(self: &Arc<Self>, _session: &Session) -> Result<(), IndexError> {
        Ok(())
    }

    /// Brings to remote memory what the dead compute server `dead` has acknowledged on the ranges that `map`
    /// gives to it. It is cut off, and the caller holds the map's lock.
    async fn replay(
        self: &Arc<Self>,
        _session: &Session,
        _map: &Partitions,
        _dead: Incarnation,
    ) -> Result<(), IndexError> {
        Ok(())
    }

    /// Returns a key in the middle of a range of own keys; `None` if it cannot be halved.
    ///
    /// # Errors
    /// `NotOwned`.
    async fn middle(
        self: &Arc<Self>,
        session: &Session,
        range: &Range,
    ) -> Result<Option<Vec<u8>>, MoveError>;

    /// Brings to remote memory what the next owners of the own keys must find there, before the table closes. The
    /// caller has no pin, and is outside of the guard.
    async fn finish(self: &Arc<Self>, session: &Session) -> Result<(), IndexError> {
        let _pin = session.begin(OpKind::Maintenance).await?;
        self.flush(session).await
    }

    /// Ends all work on own keys, and gives them up. Called again after an error, it goes on.
    ///
    /// # Errors
    /// As [`crate::Index::close`].
    async fn close(table: &Owned<Self>, session: &Session) -> Result<(), IndexError> {
        table.close_drained(session).await
    }

    /// As [`crate::Index::verify`].
    async fn verify(
        self: &Arc<Self>,
        session: &Session,
        table: &Stored<ShapeOf<Self>>,
        audit: &mut Audit,
    ) -> Result<TableReport, IndexError> {
        table.mark::<Self::Engine>(session, audit, None).await
    }

    /// Adds the counts of the tree to those of ownership.
    fn counters(&self, _counters: &mut CounterSet) {}

    /// As [`crate::CacheControl::check`].
    fn check_cache(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns the bytes that the cache takes now.
    fn resident_bytes(&self) -> u64 {
        0
    }
}
