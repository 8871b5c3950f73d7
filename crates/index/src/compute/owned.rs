//! Owned table: an open table of any engine whose ranges of keys have owners.
//!
//! It puts together what ownership needs of a table and what the engine adds ([`RangeOwner`]): operations on own keys
//! run in the engine's tree, inside the guard; all others travel to the owner, or are a guest's.

use std::sync::{Arc, OnceLock};

use farleaf_fabric::{GlobalAddr, Incarnation, OpKind};
use farleaf_pool::{Audit, Session};

use super::guest::Guest;
use super::messages::{OpReply, Request};
use super::migration::MoveGuard;
use super::ownership::{
    self, BatchAnswers, Ownership, Partitions, View, claim, close_whole, dead_holders,
    forward_change, forward_get, give_away, read_map, release_once, scan_all,
};
use super::range_owner::{OptionsOf, RangeOwner, ShapeOf};
use super::{HostedTable, JoinOptions, OwnedTable, Take};
use crate::op::Op;
use crate::retry::backoff;
use crate::walk::Visitor;
use crate::{
    CacheControl, Change, CounterSet, Entries, Index, IndexError, OpenOptions, Outcome, ScanRange,
    Seek, SortedPairs, Spec, Stored, TableReport, Work, open_once,
};

/// An open table whose ranges of keys have owners, with the engine's tree `T`. Clones share its state.
#[derive(Debug)]
pub struct Owned<T: RangeOwner>(Arc<OwnedState<T>>);

#[derive(Debug)]
struct OwnedState<T: RangeOwner> {
    tree: Arc<T>,
    stored: Stored<ShapeOf<T>>,
    /// True if this compute server takes a partition over when it meets a key whose owner is dead, or that nobody has.
    takes_over: bool,
    /// The right to work on keys that nobody owns, if it has one.
    guest: OnceLock<Guest<T>>,
}

impl<T: RangeOwner> Clone for Owned<T> {
    fn clone(&self) -> Self {
        Owned(Arc::clone(&self.0))
    }
}

impl<T: RangeOwner> Owned<T> {
    /// Opens a table in this member of the pool: returns what the member has open of it already, or a new state.
    ///
    /// Cost: 3 READs for a new state, what the engine reads for its own, and a change of the map if it takes something.
    ///
    /// # Errors
    /// `Unavailable` if another member of this compute server has the table open; those of [`RangeOwner::new`].
    pub async fn open(
        session: &Session,
        table: &Stored<ShapeOf<T>>,
        options: OptionsOf<T>,
        join: &OpenOptions,
    ) -> Result<Self, IndexError> {
        let guest_operations = join.guest_operations;
        Owned::join(session, table, options, JoinOptions::of(join), guest_operations).await
    }

    /// As [`Owned::open`], with the part that this compute server takes. If it takes over, and `guest_operations` is
    /// above 0, it does so many operations as a guest first.
    ///
    /// # Errors
    /// As [`Owned::open`].
    pub async fn join(
        session: &Session,
        table: &Stored<ShapeOf<T>>,
        options: OptionsOf<T>,
        join: JoinOptions,
        guest_operations: u64,
    ) -> Result<Self, IndexError> {
        let guest_operations = Some(guest_operations).filter(|most| join.take_over && *most > 0);
        let opened = open_once(session, table.meta, async || {
            let words = T::map_words(table.meta);
            let joining = async { Ownership::join(words, session, join.calls).await.map(Arc::new) };
            let tree = T::new(session, table, options, joining).await?;
            let guest = guest_operations.and_then(|operations| Guest::new(operations, &tree));
            let takes_over = join.take_over && guest.is_none();
            let guest = guest.map_or_else(OnceLock::new, OnceLock::from);
            Ok(OwnedState { tree, stored: *table, takes_over, guest })
        })
        .await?;
        // Kept before it takes anything: what it has from then on is this one's, whatever fails.
        let owned = Owned(opened.thing);
        if opened.is_first {
            claim(owned.tree(), session, join.take).await?;
        } else if let Some(operations) = guest_operations {
            owned.be_guest(operations);
        }
        Ok(owned)
    }

    /// The second opening of a table in a member gets the first one's state.
    fn be_guest(&self, operations: u64) {
        if let Some(guest) = Guest::new(operations, self.tree()) {
            let _ = self.0.guest.set(guest);
        }
    }

    /// Releases the ranges of dead compute servers, and returns how many servers those were. The pool then holds every
    /// change that they acknowledged.
    ///
    /// # Errors
    /// As [`crate::engine::Engine::release_dead`].
    pub async fn release_dead(
        session: &Session,
        table: &Stored<ShapeOf<T>>,
    ) -> Result<usize, IndexError> {
        let _pin = session.begin(OpKind::Maintenance).await?;
        let words = T::map_words(table.meta);
        let (map, dead) = dead_holders(&words, session).await?;
        if dead.is_empty() {
            return Ok(0);
        }
        let ownership = Arc::new(Ownership::of_view(words, View::new(map)));
        let tree = T::new(session, table, T::released(table), async { Ok(ownership) }).await?;
        for who in &dead {
            give_away(&tree, session, *who, 0).await?;
        }
        Ok(dead.len())
    }

    /// Refuses a table of which some compute server owns a part.
    ///
    /// Cost: 3 READs.
    ///
    /// # Errors
    /// `Invalid`, and says who.
    pub async fn check_unowned(
        session: &Session,
        table: &Stored<ShapeOf<T>>,
    ) -> Result<(), IndexError> {
        let _pin = session.begin(OpKind::Other).await?;
        ownership::check_unowned(&T::map_words(table.meta), session).await
    }

    /// Visits the ownership map, as part of a walk; `None` if the visitor is done, before it or after. The caller has
    /// a pin.
    ///
    /// Cost: 3 READs.
    ///
    /// # Errors
    /// `Corrupt`.
    pub async fn visit_map(
        session: &Session,
        table: &Stored<ShapeOf<T>>,
        visitor: &mut impl Visitor,
    ) -> Result<Option<Partitions>, IndexError> {
        if visitor.is_done() {
            return Ok(None);
        }
        let map = read_map(&T::map_words(table.meta), session).await?;
        visitor.object("ownership map", map.place.addr, map.place.bytes);
        Ok((!visitor.is_done()).then_some(map))
    }

    /// The engine's tree.
    #[inline]
    pub fn tree(&self) -> &Arc<T> {
        &self.0.tree
    }

    /// This compute server's part in the table.
    #[inline]
    pub fn ownership(&self) -> &Arc<Ownership> {
        self.0.tree.ownership()
    }

    /// The table in the pool.
    pub fn stored(&self) -> &Stored<ShapeOf<T>> {
        &self.0.stored
    }

    /// Returns the address of its meta object.
    pub fn meta(&self) -> GlobalAddr {
        self.0.stored.meta
    }

    /// The keys and values that it takes.
    #[inline]
    pub(in crate::compute) fn spec(&self) -> &Spec {
        &self.0.stored.table.spec
    }

    /// The right to work on keys that nobody owns, if it has one. A bulk load of a guest takes over from the dead, and
    /// nothing else does.
    pub(in crate::compute) fn guest(&self) -> Option<&Guest<T>> {
        self.0.guest.get()
    }

    /// Returns whether it takes over what it meets without a living owner.
    pub(in crate::compute) fn takes_over(&self) -> bool {
        self.0.takes_over
    }

    /// Writes all changed nodes back. Remote memory then holds every change acknowledged before the call.
    ///
    /// Cost: 1 WRITE for each changed node.
    ///
    /// # Errors
    /// As any operation; nodes that could not be written are still in the cache.
    pub async fn flush(&self, session: &Session) -> Result<(), IndexError> {
        let _pin = session.begin(OpKind::Maintenance).await?;
        self.tree().flush(session).await
    }

    /// Closes the table as most engines do: finishes what is put off, waits until no operation and no task is inside
    /// the guard, and gives the ranges up.
    ///
    /// Cost: that of [`RangeOwner::finish`], and a change of the map.
    ///
    /// # Errors
    /// As [`Index::close`]; `Unavailable` if an operation does not end.
    pub async fn close_drained(&self, session: &Session) -> Result<(), IndexError> {
        let ownership = self.ownership();
        if !ownership.is_closed() {
            if let Some(guest) = self.guest().filter(|guest| guest.has_remains(self.tree())) {
                guest.clear(self, session).await?;
            }
            self.tree().finish(session).await?;
            ownership.set_closed();
        }
        session.reliable().within(self.drain(session)).await.ok_or_else(|| {
            let why = "an operation on the table has not ended: close the table again";
            IndexError::Unavailable(why.into())
        })?;
        let _pin = session.begin(OpKind::Maintenance).await?;
        release_once(self.tree(), session).await
    }

    /// Waits until no operation is inside. One drain runs at a time.
    async fn drain(&self, session: &Session) {
        let mut attempt = 0;
        let _moving = loop {
            if let Some(moving) = MoveGuard::begin(self.ownership()) {
                break moving;
            }
            backoff(session, attempt).await;
            attempt = (attempt + 1).min(4);
        };
        self.ownership().guard().drain(session).await;
    }

    /// The table is closed: the member of the pool forgets that it is open.
    pub fn let_go(&self, session: &Session) {
        session.pool().let_go(self.meta(), &self.0);
    }
}

impl<T: RangeOwner> Index for Owned<T> {
    async fn get(
        &self,
        session: &Session,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<bool, IndexError> {
        self.spec().check_key(key)?;
        let Ok(_inside) = self.ownership().acquire(session, Seek::At(key)).await? else {
            return Box::pin(forward_get(self, session, key, value)).await;
        };
        self.tree().get_own(session, key, value).await
    }

    async fn change(
        &self,
        session: &Session,
        change: &Change<'_>,
        held: &mut Vec<u8>,
    ) -> Result<Outcome, IndexError> {
        self.spec().check_change(change)?;
        let Ok(_inside) = self.ownership().acquire(session, Seek::At(change.key)).await? else {
            return Box::pin(forward_change(self, session, change, held)).await;
        };
        self.tree().change_own(session, change, held).await
    }

    async fn scan(
        &self,
        session: &Session,
        range: ScanRange<'_>,
        limit: usize,
        out: &mut Entries,
    ) -> Result<(), IndexError> {
        scan_all(self, session, range, limit, out).await?;
        Ok(session.vouch()?)
    }

    async fn longest_prefix(
        &self,
        session: &Session,
        key: &[u8],
        out: &mut Entries,
    ) -> Result<(), IndexError> {
        T::longest_prefix(self, session, key, out).await
    }

    /// All partitions become this compute server's as far as nobody has them, and are closed meanwhile.
    ///
    /// # Errors
    /// `Unavailable` if another compute server has a partition.
    async fn bulk_load(
        &self,
        session: &Session,
        pairs: &mut impl SortedPairs,
    ) -> Result<u64, IndexError> {
        let load = async {
            let whole = close_whole(self, session).await?;
            self.tree().bulk_load(session, whole, pairs).await
        };
        Box::pin(load).await
    }

    async fn verify(
        &self,
        session: &Session,
        audit: &mut Audit,
    ) -> Result<TableReport, IndexError> {
        self.tree().verify(session, &self.0.stored, audit).await
    }

    async fn close(&self, session: &Session) -> Result<(), IndexError> {
        T::close(self, session).await?;
        self.let_go(session);
        Ok(())
    }

    fn owned(&self) -> Option<&dyn OwnedTable> {
        Some(self)
    }

    fn cache(&self) -> Option<&dyn CacheControl> {
        Some(self)
    }

    fn counters(&self, counters: &mut CounterSet) {
        self.tree().counters(counters);
        self.ownership().counts().named().for_each(|(name, count)| counters.add(name, count));
    }
}

impl<T: RangeOwner> CacheControl for Owned<T> {
    fn flush<'a>(&'a self, session: &'a Session) -> Work<'a, Result<(), IndexError>> {
        Box::pin(Owned::flush(self, session))
    }

    fn check(&self) -> Vec<String> {
        self.tree().check_cache()
    }

    fn resident_bytes(&self) -> u64 {
        self.tree().resident_bytes()
    }
}

impl<T: RangeOwner> OwnedTable for Owned<T> {
    fn part(&self) -> &Ownership {
        self.ownership()
    }

    fn takes(&self, key: &[u8]) -> bool {
        self.spec().takes_key(key.len())
    }

    fn serve<'a>(
        &'a self,
        session: &'a Session,
        request: Request,
    ) -> Work<'a, Result<OpReply, IndexError>> {
        Box::pin(ownership::serve(self, session, request))
    }

    fn run_at<'a>(
        &'a self,
        session: &'a Session,
        owner: Incarnation,
        ops: Vec<Op>,
    ) -> Work<'a, BatchAnswers> {
        Box::pin(async move {
            let is_refused = |op: &Op| {
                op.change().is_some_and(|change| self.spec().check_change(&change).is_err())
            };
            if ops.iter().any(is_refused) {
                // By itself, it gets its error.
                return ops.iter().map(|_| None).collect();
            }
            ownership::run_at(self, session, owner, ops).await
        })
    }

    fn refresh_map<'a>(&'a self, session: &'a Session) -> Work<'a, Result<u64, IndexError>> {
        Box::pin(ownership::refresh_map(self.tree(), session))
    }

    fn take_all_free<'a>(&'a self, session: &'a Session) -> Work<'a, Result<bool, IndexError>> {
        Box::pin(async move {
            ownership::refresh_map(self.tree(), session).await?;
            let is_free = self.ownership().view().map.owners.contains(&0);
            if is_free {
                claim(self.tree(), session, Take::Free(usize::MAX)).await?;
            }
            Ok(is_free)
        })
    }

    fn take_over<'a>(
        &'a self,
        session: &'a Session,
        dead: Incarnation,
    ) -> Work<'a, Result<usize, IndexError>> {
        Box::pin(ownership::take_over(self.tree(), session, dead))
    }

    fn partition<'a>(
        &'a self,
        session: &'a Session,
        bounds: &'a [Vec<u8>],
    ) -> Work<'a, Result<(), IndexError>> {
        Box::pin(ownership::cut(self, session, bounds))
    }
}

impl<T: RangeOwner> HostedTable for Owned<T> {
    fn meta(&self) -> GlobalAddr {
        self.0.stored.meta
    }

    async fn serve(&self, session: &Session, request: Request) -> Result<OpReply, IndexError> {
        ownership::serve(self, session, request).await
    }
}
