//! Partition: DEX's side of ownership, [`RangeOwner`]; ranges of keys have owners, and leaves one each.
//!
//! - `INV-DEX-PART-1` Every bound is the high fence of a leaf. So a leaf belongs to one partition, and
//!   no leaf is ever shared.
//! - `INV-DEX-PART-2` A node is *exclusive* to a partition if its range lies in it, by its own fences, and
//!   *shared* otherwise. Exclusive nodes are read and written by the partition's owner alone; shared
//!   ones are changed under their remote lock only.
//! - `INV-DEX-PART-3` A node that was cached as shared is taken for exclusive only once its image
//!   has been compared with remote memory, after the map gave all of its range to this compute server.

use std::future::Future;
use std::sync::Arc;

use farleaf_fabric::{GlobalAddr, Incarnation, OpKind};
use farleaf_index::blink::remote::RemoteTree;
use farleaf_index::bnode::{BnodeShape, Layout};
use farleaf_index::compute::ownership::{
    MapWords, Ownership, OwnershipCounts, Partitions, Range, ScanEnd, WholeTable, release_once,
};
use farleaf_index::compute::{MoveError, RangeOwner};
use farleaf_index::{
    Change, CounterSet, Entries, IndexError, Outcome, ScanCursor, Seek, Shape, SortedPairs, Stored,
    TableReport, TableSpec,
};
use farleaf_pool::{Audit, Session};

use super::guest::DexGuest;
use super::tree::{DexTree, Need, place_for};
use super::{Dex, DexFail, DexOptions, DexTable, Durability, FRAMES_MIN, OpContext};

/// The words of the meta object that hold the ownership map.
pub(super) fn map_words(meta: GlobalAddr) -> MapWords {
    let [map, lock] = [0, 1].map(|number| RemoteTree::free_word(meta, number));
    MapWords { meta, map, lock }
}

impl RangeOwner for DexTree {
    type Engine = Dex;
    type Unowned = DexGuest;

    fn map_words(meta: GlobalAddr) -> MapWords {
        map_words(meta)
    }

    /// Makes an empty cache.
    ///
    /// Cost: 1 READ beside that of the map; 1 CAS for the first one that offloads.
    async fn new(
        session: &Session,
        table: &Stored<BnodeShape>,
        options: DexOptions,
        ownership: impl Future<Output = Result<Arc<Ownership>, IndexError>>,
    ) -> Result<Arc<Self>, IndexError> {
        let (meta, layout) = (table.meta, Layout::of(table)?);
        let placement = {
            let _pin = session.begin(OpKind::Other).await?;
            session.reliable().word(RemoteTree::placement_word(meta)).await?
        };
        let tree = Arc::new(DexTree::empty(meta, layout, options, ownership.await?)?);
        tree.take_placement(place_for(session, meta, placement, options.offload).await?);
        Ok(tree)
    }

    fn released(table: &TableSpec<BnodeShape>) -> DexOptions {
        DexOptions {
            cache_bytes: FRAMES_MIN * table.shape.node_bytes(&table.spec) as u64,
            durability: Durability::Volatile,
            ..DexOptions::default()
        }
    }

    #[inline]
    fn ownership(&self) -> &Arc<Ownership> {
        &self.ownership
    }

    #[inline]
    async fn get_own(
        self: &Arc<Self>,
        session: &Session,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<bool, IndexError> {
        if let Some(found) = self.get_cached(key, value)? {
            session.count_local(OpKind::Get)?;
            return Ok(found);
        }
        let _pin = session.begin(OpKind::Get).await?;
        let found = self.get(session, key, value).await?;
        session.vouch()?;
        Ok(found)
    }

    #[inline]
    async fn change_own(
        self: &Arc<Self>,
        session: &Session,
        change: &Change<'_>,
        held: &mut Vec<u8>,
    ) -> Result<Outcome, IndexError> {
        let outcome = self.modify(session, change, held).await?;
        session.vouch()?;
        Ok(outcome)
    }

    /// Leaf by leaf, because it reads leaves ahead.
    async fn scan_own(
        self: &Arc<Self>,
        session: &Session,
        cursor: &mut ScanCursor<'_>,
        out: &mut Entries,
    ) -> Result<ScanEnd, IndexError> {
        self.scan(session, cursor, out).await
    }

    async fn bulk_load(
        self: &Arc<Self>,
        session: &Session,
        whole: WholeTable,
        pairs: &mut impl SortedPairs,
    ) -> Result<u64, IndexError> {
        self.fill(session, whole, pairs).await
    }

    /// Splits the leaf that has `bound` so that it ends there (`INV-DEX-PART-1`).
    ///
    /// Cost: that of a split; for a move 1 READ for each child, of inner nodes that cross `bound`, that is not cached.
    async fn make_bound(
        self: &Arc<Self>,
        session: &Session,
        bound: &[u8],
        is_moving: bool,
    ) -> Result<(), IndexError> {
        let mut restarts = OpContext::default();
        while let Err(fail) = self.split(session, Need::Bound(bound.to_vec())).await {
            restarts.after(fail, self, session).await?;
        }
        if is_moving { self.visit_children(session, bound).await } else { Ok(()) }
    }

    /// Cost: 1 WRITE each.
    async fn write_back(
        self: &Arc<Self>,
        session: &Session,
        range: &Range,
        most: usize,
    ) -> Result<usize, IndexError> {
        self.flush_range(session, range, self.options.flush_tasks, most).await
    }

    async fn flush(self: &Arc<Self>, session: &Session) -> Result<(), IndexError> {
        DexTree::flush(self, session).await
    }

    async fn share_bounds(self: &Arc<Self>, session: &Session) -> Result<(), MoveError> {
        self.share_crossing(session).await
    }

    async fn hand_over(
        self: &Arc<Self>,
        session: &Session,
        range: &Range,
    ) -> Result<(), MoveError> {
        self.drop_range(session, range).await?;
        self.log.forget_images_in(&self.remote, session, range).await?;
        Ok(())
    }

    /// The log of this cache is made, if it needs one, and named in the map.
    async fn prepare_to_own(
        self: &Arc<Self>,
        session: &Session,
        map: Partitions,
    ) -> Result<Partitions, IndexError> {
        self.name_log(session, map).await
    }

    async fn take_in(self: &Arc<Self>, session: &Session) -> Result<(), IndexError> {
        self.adopt(session).await
    }

    async fn replay(
        self: &Arc<Self>,
        session: &Session,
        map: &Partitions,
        dead: Incarnation,
    ) -> Result<(), IndexError> {
        self.replay_dead(session, map, dead.0).await
    }

    /// By the separators of the highest level that has some in `range`; `None` if it is all one leaf.
    async fn middle(
        self: &Arc<Self>,
        session: &Session,
        range: &Range,
    ) -> Result<Option<Vec<u8>>, MoveError> {
        let _pin = session.begin(OpKind::Maintenance).await.map_err(IndexError::from)?;
        let seek = range.low.as_deref().map_or(Seek::First, Seek::After);
        let Ok(_inside) = self.ownership.acquire(session, seek).await? else {
            return Err(MoveError::NotOwned);
        };
        // From the root down, along the way to the range's lower end.
        let mut best = Vec::new();
        for level in 1.. {
            let mut restarts = OpContext::default();
            let found = self.reach(session, seek, level, &mut restarts).await?;
            let Some(spot) = found else { break };
            let mut inside = self.separators(spot).unwrap_or_default();
            inside.retain(|at| range.holds(at, false) && range.high.as_ref() != Some(at));
            if !inside.is_empty() {
                best = inside;
            }
        }
        Ok((!best.is_empty()).then(|| best.swap_remove(best.len() / 2)))
    }

    /// Writes everything back, and releases the ranges within the same pin. It waits for no task: one works on dirty
    /// nodes alone, and after the flush there are none.
    ///
    /// Cost: that of a flush, and a change of the map.
    async fn close(table: &DexTable, session: &Session) -> Result<(), IndexError> {
        let tree = table.tree();
        let _pin = session.begin(OpKind::Maintenance).await?;
        if !tree.ownership.is_closed() {
            tree.offloads.check_settled()?;
            tree.flush(session).await?;
            tree.ownership.set_closed();
        }
        release_once(tree, session).await
    }

    async fn verify(
        self: &Arc<Self>,
        session: &Session,
        table: &Stored<BnodeShape>,
        audit: &mut Audit,
    ) -> Result<TableReport, IndexError> {
        self.verify_all(session, table, audit).await
    }

    fn counters(&self, counters: &mut CounterSet) {
        let stats = self.stats.get(&OwnershipCounts::default());
        stats.named().for_each(|(name, count)| counters.add(name, count));
        counters.add_misses(stats.leaf_misses());
    }

    fn check_cache(&self) -> Vec<String> {
        DexTree::check_cache(self)
    }

    fn resident_bytes(&self) -> u64 {
        self.pages.resident_bytes()
    }
}

impl From<DexFail> for MoveError {
    fn from(fail: DexFail) -> Self {
        match fail {
            DexFail::Restart | DexFail::NoFrame => MoveError::Busy,
            DexFail::Error(error) => MoveError::Index(error),
        }
    }
}
