//! Owned engine: gives ranges of keys owners, for an engine whose protocol is safe for any number of compute servers.
//!
//! [`Owned`] makes an engine of [`Partitioned`]'s: P-SMART is `Owned<Smart>`. A table is the engine's own with an
//! ownership map, which two words of its meta object name. An operation on an own key is inside the range guard and
//! is the engine's; one on another's key travels to the owner; one on a key that nobody owns takes the range, or is
//! a guest's.
//!
//! All that an owner acknowledges is in remote memory, where any other compute server goes on with it. So nothing is
//! written back before a range moves, and nothing is replayed after a death: what the dead left half done the next
//! operation that meets it finishes by the engine's protocol.
//!
//! An engine may believe its cache about what only the owner changes. So whatever changes own keys ends before
//! another compute server may own them: operations and their tasks are inside the guard, removed keys are cleared
//! before a range moves, and a table that closes drains the guard before it gives its ranges up. A guest changes
//! nothing without the map's lock.

use std::fmt;
use std::sync::{Arc, OnceLock};

use farleaf_fabric::{Endpoint, GlobalAddr, Incarnation, OpKind, Service, ServiceId};
use farleaf_pool::canary::Canary;
use farleaf_pool::{Audit, Recovery, Session};
use fastrand::Rng;

use super::migration::MoveError;
use super::ownership::{
    MapWords, OpGuard, Ownership, Partitions, Range, RangeGuard, View, check_unowned, claim,
    close_whole, create_map, dead_holders, forward_change, forward_get, give_away, open_already,
    read_map, scan_all,
};
use super::{Guest, JoinOptions, Moving, OwnedTable, RangeOwner, ServesGuests, Take};
use crate::blink::remote::Passage;
use crate::bnode::{Layout, Seek};
use crate::change::{Change, Outcome};
use crate::engine::{Engine, Traits};
use crate::index::{Index, ScanRange, SortedPairs, TableReport};
use crate::limits::check_key;
use crate::retry::backoff;
use crate::walk::Visitor;
use crate::{Entries, IndexError, Knobs, OpenOptions, Settings, Stored};

/// Pairs that a scan reads between two looks at the guard.
const PAIRS_INSIDE_MAX: usize = 1024;

/// The settings of an engine's tables with owners.
pub trait OwnedSettings: Engine {
    /// Settings by which one compute server opens a table with owners.
    type OwnedOptions: Knobs;
}

/// An engine whose tables' ranges can have owners.
#[allow(async_fn_in_trait, reason = "a session and all its tasks stay on one thread")]
pub trait Partitioned: OwnedSettings {
    /// [`Engine::NAME`] of the engine with owners.
    const OWNED_NAME: &'static str;
    /// [`Engine::ABOUT`] of the engine with owners.
    const OWNED_ABOUT: &'static str;
    /// [`Engine::CANARIES`] of the engine with owners.
    const OWNED_CANARIES: &'static [Canary];
    /// Its settings that are fixed when a table is made.
    const OWNED_SHAPE: &'static [&'static str] = Self::SHAPE;
    /// The words of the meta object that hold the ownership map; 0 in a new table.
    fn map_words(meta: GlobalAddr) -> MapWords;

    /// Opens a table that has owners.
    ///
    /// # Errors
    /// As [`Engine::open`].
    fn open_owned(
        session: &Session,
        table: &Stored,
        options: Self::OwnedOptions,
        ownership: &Arc<Ownership>,
    ) -> Result<Self::Table, IndexError>;

    /// As [`Engine::walk`], with the object of the ownership map behind the meta object.
    async fn walk_owned(
        session: &Session,
        table: &Stored,
        visitor: &mut impl Visitor,
        report: &mut TableReport,
    ) -> Result<(), IndexError>;

    /// As [`Index::verify`], with the object of the ownership map.
    async fn verify_owned(
        table: &Self::Table,
        session: &Session,
        audit: &mut Audit,
    ) -> Result<TableReport, IndexError>;

    /// As [`Engine::draw`].
    fn draw_owned(rng: &mut Rng) -> Settings;

    /// Refuses a change that the table cannot take.
    ///
    /// # Errors
    /// `Invalid`.
    fn check_change(table: &Self::Table, change: &Change<'_>) -> Result<(), IndexError>;

    /// As [`Index::get`]. The caller has a pin; so below.
    async fn get_pinned(
        table: &Self::Table,
        session: &Session,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<bool, IndexError>;

    /// As [`Index::change`].
    async fn change_pinned(
        table: &Self::Table,
        session: &Session,
        change: &Change<'_>,
        held: &mut Vec<u8>,
    ) -> Result<Outcome, IndexError>;

    /// As [`Index::change`], for a guest, who joins no other operation.
    async fn change_alone(
        table: &Self::Table,
        session: &Session,
        change: &Change<'_>,
        held: &mut Vec<u8>,
    ) -> Result<Outcome, IndexError>;

    /// As [`Index::scan`].
    async fn scan_pinned(
        table: &Self::Table,
        session: &Session,
        range: ScanRange<'_>,
        limit: usize,
        out: &mut Entries,
    ) -> Result<(), IndexError>;

    /// Drops from the cache what holds keys of `range`.
    fn drop_cached(table: &Self::Table, range: ScanRange<'_>);

    /// Returns whether enough keys were removed here to clear what is left of them; any, if it is the last time.
    fn is_clearing_due(table: &Self::Table, is_last: bool) -> bool;

    /// The keys that were removed here, of which something is still in the table, and of which `is_wanted` says so.
    /// The table forgets them.
    fn take_removed(table: &Self::Table, is_wanted: &dyn Fn(&[u8]) -> bool) -> Vec<Vec<u8>>;

    /// Takes out of the table what is left of a removed key. Runs to its end whatever becomes of the caller.
    async fn clear_removed(
        table: &Self::Table,
        session: &Session,
        key: &[u8],
    ) -> Result<(), IndexError>;

    /// A key that about halves the keys of `range`; `None` if there is no such.
    async fn middle(
        table: &Self::Table,
        session: &Session,
        range: ScanRange<'_>,
    ) -> Result<Option<Vec<u8>>, IndexError>;
}

/// The engine `E` with owners of ranges, and a table of it. Clones share the table's state.
pub struct Owned<E: Engine>(Arc<Inner<E>>);

struct Inner<E: Engine> {
    table: E::Table,
    layout: Layout,
    ownership: Arc<Ownership>,
    /// The right to work on keys that nobody owns, if it has one.
    guest: OnceLock<Guest>,
}

impl<E: Engine> Clone for Owned<E> {
    fn clone(&self) -> Self {
        Owned(Arc::clone(&self.0))
    }
}

impl<E: Engine> fmt::Debug for Owned<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Owned").field(&self.0.table).field(&self.0.ownership).finish()
    }
}

impl<E: Engine> Owned<E> {
    /// The table without its owners.
    pub fn inner(&self) -> &E::Table {
        &self.0.table
    }
}

impl<E: Engine> Owned<E> {
    fn new(table: E::Table, layout: Layout, ownership: Arc<Ownership>) -> Self {
        Owned(Arc::new(Inner { table, layout, ownership, guest: OnceLock::new() }))
    }

    /// The place in the order of keys that a scan wants next, and the part of the partition around it that is
    /// known and open, once the guard admits that: `Err` is the partition of another.
    async fn acquire_part(
        &self,
        session: &Session,
        seek: Seek<'_>,
    ) -> Result<Result<(OpGuard<&RangeGuard>, Range), usize>, IndexError> {
        let ownership = &self.0.ownership;
        loop {
            let view = ownership.view();
            let inside = match ownership.acquire(session, seek).await? {
                Ok(inside) => inside,
                Err(number) => return Ok(Err(number)),
            };
            // The range is that of the view by which the guard admitted the operation.
            if Arc::ptr_eq(&view, &ownership.view()) {
                return Ok(Ok((inside, view.open_part(seek))));
            }
        }
    }
}

/// Clears what is left of all removed keys that are own, or that nobody owns.
async fn clear_all_removed<E: Partitioned>(
    owned: &Owned<E>,
    session: &Session,
) -> Result<(), IndexError> {
    let table = &owned.0.table;
    if let Some(guest) = owned.0.guest.get()
        && E::is_clearing_due(table, true)
    {
        guest.clear(owned, session).await?;
    }
    for key in E::take_removed(table, &|_| true) {
        let Ok(_inside) = owned.0.ownership.acquire(session, Seek::At(&key)).await? else {
            continue;
        };
        let _pin = session.begin(OpKind::Other).await?;
        E::clear_removed(table, session, &key).await?;
    }
    Ok(())
}

/// Waits until no operation is inside. One drain runs at a time.
async fn drain<E: Partitioned>(owned: &Owned<E>, session: &Session) {
    let mut attempt = 0;
    let _moving = loop {
        if let Some(moving) = Moving::begin(owned) {
            break moving;
        }
        backoff(session, attempt).await;
        attempt = (attempt + 1).min(4);
    };
    owned.0.ownership.guard().drain(session).await;
}

/// Returns the part that a store's options give this compute server in a table, and whether it is a guest's.
pub fn joins(options: &OpenOptions) -> (JoinOptions, bool) {
    let take = match options.take {
        0 => Take::Nothing,
        most => Take::Free(most),
    };
    let is_guest = options.take_over && options.guest_operations > 0;
    let take_over = options.take_over && !is_guest;
    (JoinOptions { take, take_over, calls: options.calls }, is_guest)
}

impl<E: Partitioned> Engine for Owned<E> {
    const NAME: &'static str = E::OWNED_NAME;
    const ABOUT: &'static str = E::OWNED_ABOUT;
    const TRAITS: Traits = Traits { owned: true, ..E::TRAITS };
    const SHAPE: &'static [&'static str] = E::OWNED_SHAPE;
    const CANARIES: &'static [Canary] = E::OWNED_CANARIES;

    type Options = E::OwnedOptions;
    type Table = Self;

    /// The table has an ownership map of one partition that nobody owns.
    async fn create(session: &Session, layout: &Layout) -> Result<GlobalAddr, IndexError> {
        let meta = E::create(session, layout).await?;
        // An error leaves what nobody knows of, for the recovery to sweep.
        let _pin = session.begin(OpKind::Maintenance).await?;
        create_map(&E::map_words(meta), session).await?;
        Ok(meta)
    }

    /// Gives what this member of the pool has open of the table already, if anything.
    ///
    /// Cost: 3 READs the first time, and a change of the map if it takes something.
    async fn open(
        session: &Session,
        table: &Stored,
        options: &OpenOptions,
    ) -> Result<Self, IndexError> {
        let meta = table.meta();
        let kept = session.pool().kept::<Inner<E>>(meta);
        let (join, is_guest) = joins(options);
        let owned = match kept {
            Some(kept) => Owned(kept),
            None => {
                let settings = E::OwnedOptions::read(&options.settings).map_err(|error| {
                    IndexError::Invalid(format!("engine {}: {error}", E::OWNED_NAME))
                })?;
                let words = E::map_words(meta);
                let map = {
                    let _pin = session.begin(OpKind::Other).await?;
                    read_map(&words, session).await?
                };
                let me = session.endpoint().incarnation();
                if map.owners.contains(&me.0) {
                    return Err(open_already(meta, me));
                }
                let ownership = Arc::new(Ownership::new(words, map, join));
                let inner = E::open_owned(session, table, settings, &ownership)?;
                let new = Owned::<E>::new(inner, *table.layout(), ownership);
                // Kept before it takes anything: what it has from then on is this one's, whatever fails.
                let owned = Owned(session.pool().keep(meta, new.0));
                if let Take::Free(most @ 1..) = join.take {
                    let _pin = session.begin(OpKind::Maintenance).await?;
                    claim(&owned, session, most).await?;
                }
                owned
            }
        };
        if is_guest {
            // The second opening of a table in a member gets the first one's state.
            owned.0.ownership.set_guest();
            let _ = owned.0.guest.set(Guest::new(options.guest_operations));
        }
        Ok(owned)
    }

    async fn walk(
        session: &Session,
        table: &Stored,
        visitor: &mut impl Visitor,
        report: &mut TableReport,
    ) -> Result<(), IndexError> {
        E::walk_owned(session, table, visitor, report).await
    }

    async fn release_dead(session: &Session, table: &Stored) -> Result<usize, IndexError> {
        let _pin = session.begin(OpKind::Maintenance).await?;
        let words = E::map_words(table.meta());
        let (map, dead) = dead_holders(&words, session).await?;
        if dead.is_empty() {
            return Ok(0);
        }
        let ownership = Arc::new(Ownership::of_view(words, View::new(map)));
        let inner = E::open_owned(session, table, E::OwnedOptions::default(), &ownership)?;
        let owned = Owned::<E>::new(inner, *table.layout(), ownership);
        for who in &dead {
            give_away(&owned, session, *who, 0).await?;
        }
        Ok(dead.len())
    }

    async fn redo_dead(
        session: &Session,
        table: &Stored,
        recovery: &Recovery,
    ) -> Result<(), IndexError> {
        E::redo_dead(session, table, recovery).await
    }

    async fn before_free(
        session: &Session,
        table: &Stored,
        marks: &Audit,
    ) -> Result<(), IndexError> {
        E::before_free(session, table, marks).await
    }

    async fn check_unowned(session: &Session, table: &Stored) -> Result<(), IndexError> {
        let _pin = session.begin(OpKind::Other).await?;
        check_unowned(&E::map_words(table.meta()), session).await
    }

    async fn age(session: &Session, table: &Stored) -> Result<(), IndexError> {
        E::age(session, table).await
    }

    fn draw(rng: &mut Rng, _layout: &Layout) -> Settings {
        E::draw_owned(rng)
    }

    fn services(_life: u64) -> Vec<(ServiceId, Arc<dyn Service>)> {
        // Those of `E` are `E`'s own.
        Vec::new()
    }
}

impl<E: Partitioned> Index for Owned<E> {
    async fn get(
        &self,
        session: &Session,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<bool, IndexError> {
        check_key(&self.0.layout, key)?;
        let Ok(_inside) = self.0.ownership.acquire(session, Seek::At(key)).await? else {
            return match self.0.guest.get() {
                Some(guest) => Box::pin(guest.get(self, session, key, value)).await,
                None => Box::pin(forward_get(self, session, key, value)).await,
            };
        };
        let found = self.get_own(session, key, value).await?;
        session.vouch()?;
        Ok(found)
    }

    async fn change(
        &self,
        session: &Session,
        change: &Change<'_>,
        held: &mut Vec<u8>,
    ) -> Result<Outcome, IndexError> {
        let Ok(_inside) = self.0.ownership.acquire(session, Seek::At(change.key)).await? else {
            return match self.0.guest.get() {
                Some(guest) => Box::pin(guest.change(self, session, change, held)).await,
                None => Box::pin(forward_change(self, session, change, held)).await,
            };
        };
        let outcome = self.change_own(session, change, held).await?;
        session.vouch()?;
        Ok(outcome)
    }

    async fn scan(
        &self,
        session: &Session,
        range: ScanRange<'_>,
        limit: usize,
        out: &mut Entries,
    ) -> Result<(), IndexError> {
        match self.0.guest.get() {
            Some(guest) => Box::pin(guest.scan(self, session, range, limit, out)).await?,
            None => scan_all(self, session, range, limit, out).await?,
        }
        Ok(session.vouch()?)
    }

    /// All partitions become this compute server's as far as nobody has them, and are closed meanwhile.
    async fn bulk_load(
        &self,
        session: &Session,
        pairs: &mut impl SortedPairs,
    ) -> Result<u64, IndexError> {
        let (_moving, _) = Box::pin(close_whole(self, session)).await?;
        self.0.table.bulk_load(session, pairs).await
    }

    async fn verify(
        &self,
        session: &Session,
        audit: &mut Audit,
    ) -> Result<TableReport, IndexError> {
        E::verify_owned(&self.0.table, session, audit).await
    }

    /// Its ranges are free once no operation and no task works on them.
    async fn close(&self, session: &Session) -> Result<(), IndexError> {
        let ownership = &self.0.ownership;
        if !ownership.is_closed() {
            clear_all_removed(self, session).await?;
            ownership.set_closed();
        }
        session.reliable().within(drain(self, session)).await.ok_or_else(|| {
            let why = "an operation on the table has not ended: close the table again";
            IndexError::Unavailable(why.into())
        })?;
        {
            let _pin = session.begin(OpKind::Maintenance).await?;
            ownership.release_once(session).await?;
        }
        self.let_go(session);
        Ok(())
    }

    fn owned(&self) -> Option<&dyn OwnedTable> {
        Some(self)
    }
}

impl<E: Partitioned> RangeOwner for Owned<E> {
    fn ownership(&self) -> &Ownership {
        &self.0.ownership
    }

    fn takes_key(&self, len: usize) -> bool {
        self.0.layout.takes_key(len)
    }

    fn check_change(&self, change: &Change<'_>) -> Result<(), IndexError> {
        E::check_change(&self.0.table, change)
    }

    async fn get_own(
        &self,
        session: &Session,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<bool, IndexError> {
        self.0.ownership.check_open()?;
        let _pin = session.begin(OpKind::Get).await?;
        E::get_pinned(&self.0.table, session, key, value).await
    }

    async fn change_own(
        &self,
        session: &Session,
        change: &Change<'_>,
        held: &mut Vec<u8>,
    ) -> Result<Outcome, IndexError> {
        E::check_change(&self.0.table, change)?;
        self.0.ownership.check_open()?;
        let _pin = session.begin(change.kind).await?;
        E::change_pinned(&self.0.table, session, change, held).await
    }

    async fn scan_own(
        &self,
        session: &Session,
        passage: &mut Passage<'_>,
        out: &mut Entries,
    ) -> Result<Option<usize>, IndexError> {
        loop {
            let seek = passage.seek();
            // For each part anew, so that a long scan does not keep a range from changing hands.
            let (_inside, part) = match self.acquire_part(session, seek).await? {
                Ok(part) => part,
                Err(number) => return Ok(Some(number)),
            };
            self.0.ownership.check_open()?;
            let (low, high) = (part.low.as_deref(), part.high.as_deref());
            let (from, to, wanted) = passage.rest_in(low, high, out);
            let reverse = passage.next().1;
            let (from, to) = (from.as_ref().map(Vec::as_slice), to.as_ref().map(Vec::as_slice));
            let range = ScanRange { from, to, reverse };
            let limit = wanted.min(PAIRS_INSIDE_MAX);
            let begun = out.len();
            {
                let _pin = session.begin(OpKind::Scan).await?;
                E::scan_pinned(&self.0.table, session, range, limit, out).await?;
            }
            let is_whole = out.len() - begun < limit;
            let goes_on = match out.last() {
                Some((last, _)) if !is_whole => {
                    let last = last.to_vec();
                    passage.go_on_behind(&last, out)
                }
                _ => passage.skip_to(if reverse { low } else { high }, out),
            };
            if !goes_on {
                return Ok(None);
            }
        }
    }

    /// No object of keys alone has bounds.
    async fn make_bound(&self, _session: &Session, _bound: &[u8]) -> Result<(), IndexError> {
        Ok(())
    }

    /// Nothing is ever dirty. Clears what is left of removed keys, which nobody does once they are another's.
    async fn write_back(
        &self,
        session: &Session,
        range: &Range,
        _most: usize,
    ) -> Result<usize, IndexError> {
        for key in E::take_removed(&self.0.table, &|key| range.holds(key, false)) {
            E::clear_removed(&self.0.table, session, &key).await?;
        }
        Ok(0)
    }

    async fn flush(&self, _session: &Session) -> Result<(), IndexError> {
        Ok(())
    }

    async fn hand_over(&self, _session: &Session, range: &Range) -> Result<(), MoveError> {
        E::drop_cached(&self.0.table, range.as_scan());
        Ok(())
    }

    /// Does nothing: the cache's entries of the range are hints, which each operation proves.
    async fn take_in(&self, _session: &Session) -> Result<(), IndexError> {
        Ok(())
    }

    /// Nothing that the dead have acknowledged is theirs alone.
    async fn replay(
        &self,
        _session: &Session,
        _map: &Partitions,
        _dead: Incarnation,
    ) -> Result<(), IndexError> {
        Ok(())
    }

    async fn middle(&self, session: &Session, range: &Range) -> Result<Option<Vec<u8>>, MoveError> {
        let seek = range.low.as_deref().map_or(Seek::First, Seek::After);
        let Ok(_inside) = self.0.ownership.acquire(session, seek).await? else {
            return Err(MoveError::NotOwned);
        };
        let _pin = session.begin(OpKind::Maintenance).await.map_err(IndexError::from)?;
        let middle = E::middle(&self.0.table, session, range.as_scan()).await?;
        Ok(middle.filter(|key| {
            self.takes_key(key.len()) && range.holds(key, false) && range.high.as_ref() != Some(key)
        }))
    }

    fn let_go(&self, session: &Session) {
        session.pool().let_go(self.0.ownership.words().meta, &self.0);
    }
}

impl<E: Partitioned> ServesGuests for Owned<E> {
    async fn get_unowned(
        &self,
        session: &Session,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<bool, IndexError> {
        E::get_pinned(&self.0.table, session, key, value).await
    }

    async fn change_unowned(
        &self,
        session: &Session,
        change: &Change<'_>,
        held: &mut Vec<u8>,
    ) -> Result<Outcome, IndexError> {
        E::change_alone(&self.0.table, session, change, held).await
    }

    async fn scan_unowned(
        &self,
        session: &Session,
        range: ScanRange<'_>,
        limit: usize,
        out: &mut Entries,
    ) -> Result<(), IndexError> {
        E::scan_pinned(&self.0.table, session, range, limit, out).await
    }

    async fn clear_unowned(
        &self,
        session: &Session,
        map: &Partitions,
        is_last: bool,
    ) -> Result<(), IndexError> {
        if E::is_clearing_due(&self.0.table, is_last) {
            let is_unowned = |key: &[u8]| map.owners[map.of(key, false)] == 0;
            for key in E::take_removed(&self.0.table, &is_unowned) {
                E::clear_removed(&self.0.table, session, &key).await?;
            }
        }
        Ok(())
    }
}
