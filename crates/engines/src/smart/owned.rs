//! Owned: P-SMART, which gives ranges of SMART's keys owners.
//!
//! A table is SMART's own with an ownership map, which two words of its meta object name. An operation on an own key
//! is inside the range guard and is SMART's; one on another's key travels to the owner; one on a key that nobody owns
//! takes the range, or is a guest's. The protocol beneath stays that of all compute servers. Beyond it, an owner
//! believes its cache about its own nodes (`own_nodes.rs`).
//!
//! All that an owner acknowledges is in remote memory, where any other compute server goes on with it. So nothing is
//! written back before a range moves, and nothing is replayed after a death: what the dead left half done the next
//! operation that meets it finishes by SMART's protocol.
//!
//! An owner may believe its cache about what only the owner changes. So whatever changes own keys ends before
//! another compute server may own them: operations and their tasks are inside the guard, removed keys are cleared
//! before a range moves, and a table that closes drains the guard before it gives its ranges up. A guest changes
//! nothing without the map's lock.

use std::sync::{Arc, OnceLock};

use farleaf_fabric::{GlobalAddr, OpKind};
use farleaf_index::compute::ownership::{
    MapWords, OpGuard, Ownership, Range, RangeGuard, View, check_unowned, claim, close_whole,
    create_map, dead_holders, forward_change, forward_get, give_away, read_map, release_once,
    scan_all,
};
use farleaf_index::compute::{Guest, JoinOptions, Moving, OwnedTable, RangeOwner};
use farleaf_index::engine::{Engine, Traits, choose};
use farleaf_index::retry::backoff;
use farleaf_index::{
    CacheControl, Change, CounterSet, Entries, Index, IndexError, OpenOptions, Outcome, ScanRange,
    Seek, Settings, SortedPairs, Spec, Stored, TableReport, TableSpec, Visitor, common_bytes,
    longest_prefix_by_floors,
};
use farleaf_pool::canary::Canary;
use farleaf_pool::{Audit, Recovery, Session};
use fastrand::Rng;

use super::layout::{META_MAP, META_MAP_LOCK, check_pool};
use super::own_nodes::OwnRanges;
use super::tree::Tree;
use super::{Smart, SmartShape, lab, stored_tree};
use crate::p_smart::PSmartOptions;

/// The engine P-SMART, and a table of it. Clones share the table's state.
#[derive(Clone, Debug)]
pub struct PSmart(pub(super) Arc<Inner>);

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) smart: Smart,
    pub(super) ownership: Arc<Ownership>,
    /// The right to work on keys that nobody owns, if it has one.
    pub(super) guest: OnceLock<Guest>,
}

/// The words of the meta object that hold the ownership map; 0 in a new table.
fn map_words(meta: GlobalAddr) -> MapWords {
    let [map, lock] = [META_MAP, META_MAP_LOCK].map(|offset| meta.plus(offset));
    MapWords { meta, map, lock }
}

impl PSmart {
    fn new(
        session: &Session,
        table: &Stored<SmartShape>,
        options: PSmartOptions,
        ownership: Ownership,
    ) -> Result<Self, IndexError> {
        check_pool(session)?;
        let ownership = Arc::new(ownership);
        let owner = Some(OwnRanges::new(&ownership, options.owner_writes));
        let smart = Smart { stored: *table, tree: Tree::new(table, options.into(), owner) };
        Ok(PSmart(Arc::new(Inner { smart, ownership, guest: OnceLock::new() })))
    }

    /// The table without its owners.
    pub fn inner(&self) -> &Smart {
        &self.0.smart
    }

    pub(super) fn tree(&self) -> &Arc<Tree> {
        &self.0.smart.tree
    }

    /// The place in the order of keys that a scan wants next, and the part of the partition around it that is
    /// known and open, once the guard admits that: `Err` is the partition of another.
    pub(super) async fn acquire_part(
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

    /// Clears what is left of all removed keys that are own, or that nobody owns.
    async fn clear_all_removed(&self, session: &Session) -> Result<(), IndexError> {
        if let Some(guest) = self.0.guest.get()
            && self.tree().is_unlinking_due(true)
        {
            guest.clear(self, session).await?;
        }
        for key in self.tree().take_removed(|_: &[u8]| true) {
            let Ok(_inside) = self.0.ownership.acquire(session, Seek::At(&key)).await? else {
                continue;
            };
            let _pin = session.begin(OpKind::Other).await?;
            self.tree().unlink_whole(session, &key).await?;
        }
        Ok(())
    }

    /// Waits until no operation is inside. One drain runs at a time.
    async fn drain(&self, session: &Session) {
        let mut attempt = 0;
        let _moving = loop {
            if let Some(moving) = Moving::begin(self) {
                break moving;
            }
            backoff(session, attempt).await;
            attempt = (attempt + 1).min(4);
        };
        self.0.ownership.guard().drain(session).await;
    }
}

impl Engine for PSmart {
    const NAME: &'static str = "p-smart";
    const ABOUT: &'static str =
        "P-SMART: smart with owned key ranges; Lu et al., PVLDB 17(10), 2024";
    const TRAITS: Traits = Traits { owned: true, ..Smart::TRAITS };
    const CANARIES: &'static [Canary] = lab::OWNED_CANARIES;

    type Shape = SmartShape;
    type Options = PSmartOptions;
    type Table = Self;

    fn shape_for(spec: &Spec, wanted: SmartShape) -> Result<SmartShape, IndexError> {
        wanted.complete_forward(spec, Self::NAME)
    }

    /// The table has an ownership map of one partition that nobody owns.
    async fn create(
        session: &Session,
        table: &TableSpec<SmartShape>,
    ) -> Result<GlobalAddr, IndexError> {
        let meta = Smart::create(session, table).await?;
        // An error leaves what nobody knows of, for the recovery to sweep.
        let _pin = session.begin(OpKind::Maintenance).await?;
        create_map(&map_words(meta), session).await?;
        Ok(meta)
    }

    /// Gives what this member of the pool has open of the table already, if anything.
    ///
    /// Cost: 3 READs the first time, and a change of the map if it takes something.
    async fn open(
        session: &Session,
        table: &Stored<SmartShape>,
        options: PSmartOptions,
        join: &OpenOptions,
    ) -> Result<Self, IndexError> {
        let (meta, guest_operations) = (table.meta, join.guest_operations);
        let kept = session.pool().kept::<Inner>(meta);
        let (join, is_guest) = JoinOptions::of(join);
        let owned = match kept {
            Some(kept) => PSmart(kept),
            None => {
                match Ownership::join_or_kept::<Inner>(map_words(meta), session, join).await? {
                    Ok(ownership) => {
                        let new = PSmart::new(session, table, options, ownership)?;
                        // Kept before it takes anything: what it has from then on is this one's, whatever fails.
                        let owned = PSmart(session.pool().keep(meta, new.0));
                        claim(&owned, session, join.take).await?;
                        owned
                    }
                    Err(kept) => PSmart(kept),
                }
            }
        };
        if is_guest {
            // The second opening of a table in a member gets the first one's state.
            let _ = owned.0.guest.set(Guest::new(guest_operations));
        }
        Ok(owned)
    }

    async fn walk(
        session: &Session,
        table: &Stored<SmartShape>,
        visitor: &mut impl Visitor,
        report: &mut TableReport,
    ) -> Result<(), IndexError> {
        let tree = stored_tree(table);
        tree.visit_meta(visitor);
        if visitor.is_done() {
            return Ok(());
        }
        let map = read_map(&map_words(table.meta), session).await?;
        visitor.object("ownership map", map.place.addr, map.place.bytes);
        if visitor.is_done() {
            return Ok(());
        }
        tree.walk_behind_meta(session, visitor, report).await
    }

    async fn release_dead(
        session: &Session,
        table: &Stored<SmartShape>,
    ) -> Result<usize, IndexError> {
        let _pin = session.begin(OpKind::Maintenance).await?;
        let words = map_words(table.meta);
        let (map, dead) = dead_holders(&words, session).await?;
        if dead.is_empty() {
            return Ok(0);
        }
        let ownership = Ownership::of_view(words, View::new(map));
        let owned = PSmart::new(session, table, PSmartOptions::default(), ownership)?;
        for who in &dead {
            give_away(&owned, session, *who, 0).await?;
        }
        Ok(dead.len())
    }

    async fn redo_dead(
        session: &Session,
        table: &Stored<SmartShape>,
        recovery: &Recovery,
    ) -> Result<(), IndexError> {
        Smart::redo_dead(session, table, recovery).await
    }

    async fn check_unowned(
        session: &Session,
        table: &Stored<SmartShape>,
    ) -> Result<(), IndexError> {
        let _pin = session.begin(OpKind::Other).await?;
        check_unowned(&map_words(table.meta), session).await
    }

    fn draw(rng: &mut Rng, _table: &TableSpec<SmartShape>) -> Settings {
        lab::draw_owned(rng)
            .with("owner_writes", choose(rng, &["exclusive", "exclusive", "exclusive", "shared"]))
    }
}

impl Index for PSmart {
    async fn get(
        &self,
        session: &Session,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<bool, IndexError> {
        self.0.smart.stored.spec.check_key(key)?;
        let Ok(_inside) = self.0.ownership.acquire(session, Seek::At(key)).await? else {
            return Box::pin(forward_get(self, session, key, value)).await;
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
            return Box::pin(forward_change(self, session, change, held)).await;
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
        scan_all(self, session, range, limit, out).await?;
        Ok(session.vouch()?)
    }

    /// One descent if the key is own, and so is the longest prefix. A prefix of another's is found by floors.
    async fn longest_prefix(
        &self,
        session: &Session,
        key: &[u8],
        out: &mut Entries,
    ) -> Result<(), IndexError> {
        let mut probe = key;
        if let Ok((_inside, part)) = self.acquire_part(session, Seek::At(key)).await? {
            self.0.ownership.check_open()?;
            let mut found = Entries::new();
            {
                let _pin = session.begin(OpKind::Get).await?;
                self.tree().longest_prefix(session, key, &mut found).await?;
            }
            session.vouch()?;
            let low = part.low.as_deref();
            if let Some((prefix, value)) = found.get(0)
                && low.is_none_or(|low| prefix > low)
            {
                out.push(prefix, value);
                return Ok(());
            }
            // Every key between a prefix and the key begins with the prefix, and so does the bound between the two.
            let Some(low) = low else { return Ok(()) };
            probe = &key[..common_bytes(key, low)];
        }
        longest_prefix_by_floors(self, session, probe, out).await?;
        Ok(session.vouch()?)
    }

    /// All partitions become this compute server's as far as nobody has them, and are closed meanwhile.
    async fn bulk_load(
        &self,
        session: &Session,
        pairs: &mut impl SortedPairs,
    ) -> Result<u64, IndexError> {
        let (_moving, _) = Box::pin(close_whole(self, session)).await?;
        self.0.smart.bulk_load(session, pairs).await
    }

    async fn verify(
        &self,
        session: &Session,
        audit: &mut Audit,
    ) -> Result<TableReport, IndexError> {
        self.0.smart.verify_as::<PSmart>(session, audit).await
    }

    /// Its ranges are free once no operation and no task works on them.
    async fn close(&self, session: &Session) -> Result<(), IndexError> {
        let ownership = &self.0.ownership;
        if !ownership.is_closed() {
            self.clear_all_removed(session).await?;
            ownership.set_closed();
        }
        session.reliable().within(self.drain(session)).await.ok_or_else(|| {
            let why = "an operation on the table has not ended: close the table again";
            IndexError::Unavailable(why.into())
        })?;
        {
            let _pin = session.begin(OpKind::Maintenance).await?;
            release_once(self, session).await?;
        }
        self.let_go(session);
        Ok(())
    }

    fn owned(&self) -> Option<&dyn OwnedTable> {
        Some(self)
    }

    fn cache(&self) -> Option<&dyn CacheControl> {
        self.inner().cache()
    }

    fn counters(&self, counters: &mut CounterSet) {
        self.inner().counters(counters);
    }
}
