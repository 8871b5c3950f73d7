//! Tree: Sherman's tree with the ownership of its ranges, for own keys and for guests.

use std::any::Any;
use std::future::Future;
use std::sync::Arc;

use farleaf_fabric::{GlobalAddr, Incarnation, OpKind};
use farleaf_index::blink::remote::RemoteTree;
use farleaf_index::blink::{BlinkTree, LeafOwner, LeafRule, OwnLeaves};
use farleaf_index::compute::ownership::{
    MapWords, Ownership, Partitions, Range, ScanEnd, WholeTable, scan_parts,
};
use farleaf_index::compute::{MoveError, RangeOwner, Unowned};
use farleaf_index::{
    Change, CounterSet, Entries, IndexError, Outcome, ScanCursor, ScanRange, Seek, SortedPairs,
    Stored, TableSpec,
};
use farleaf_pool::Session;

use super::{PSherman, PShermanOptions};
use crate::sherman::{ShermanOptions, ShermanShape, open_tree};

/// The words of the meta object that hold the ownership map; 0 in a new table.
pub(super) fn map_words(meta: GlobalAddr) -> MapWords {
    let [map, lock] = [0, 1].map(|number| RemoteTree::free_word(meta, number));
    MapWords { meta, map, lock }
}

/// Sherman's tree of a table, as an owner of its ranges uses it.
#[derive(Debug)]
pub struct PShermanTree {
    tree: Arc<BlinkTree>,
    stored: Stored<ShermanShape>,
    ownership: Arc<Ownership>,
}

/// The ownership, as the tree asks for it.
#[derive(Debug)]
struct LeavesOf(Arc<Ownership>);

impl LeafOwner for LeavesOf {
    fn enter(&self, session: &Session) -> Box<dyn Any> {
        Box::new(self.0.enter_task(session))
    }

    fn owns(&self, low: Option<&[u8]>, high: Option<&[u8]>) -> bool {
        !self.0.is_moving() && !self.0.crosses(low, high)
    }
}

impl RangeOwner for PShermanTree {
    type Engine = PSherman;
    type Unowned = PShermanGuest;

    fn map_words(meta: GlobalAddr) -> MapWords {
        map_words(meta)
    }

    /// Cost: 2 READs beside those of the map.
    async fn new(
        session: &Session,
        table: &Stored<ShermanShape>,
        options: PShermanOptions,
        ownership: impl Future<Output = Result<Arc<Ownership>, IndexError>>,
    ) -> Result<Arc<Self>, IndexError> {
        let ownership = ownership.await?;
        let leaves = OwnLeaves::new(LeavesOf(Arc::clone(&ownership)), options.hand_image);
        let options = ShermanOptions::from(options);
        let tree = open_tree(session, table, &options, LeafRule::Own(leaves)).await?;
        Ok(Arc::new(PShermanTree { tree, stored: *table, ownership }))
    }

    fn released(_table: &TableSpec<ShermanShape>) -> PShermanOptions {
        PShermanOptions { cache_bytes: 0, ..PShermanOptions::default() }
    }

    #[inline]
    fn ownership(&self) -> &Arc<Ownership> {
        &self.ownership
    }

    async fn get_own(
        self: &Arc<Self>,
        session: &Session,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<bool, IndexError> {
        self.ownership.check_open()?;
        let found = {
            let _pin = session.begin(OpKind::Get).await?;
            self.tree.get(session, key, value).await?
        };
        session.vouch()?;
        Ok(found)
    }

    async fn change_own(
        self: &Arc<Self>,
        session: &Session,
        change: &Change<'_>,
        held: &mut Vec<u8>,
    ) -> Result<Outcome, IndexError> {
        self.ownership.check_open()?;
        let outcome = self.tree.change(session, change, held).await?;
        session.vouch()?;
        Ok(outcome)
    }

    async fn scan_own(
        self: &Arc<Self>,
        session: &Session,
        cursor: &mut ScanCursor<'_>,
        out: &mut Entries,
    ) -> Result<ScanEnd, IndexError> {
        let scan = async |range: ScanRange<'_>, limit, out: &mut Entries| {
            let _pin = session.begin(OpKind::Scan).await?;
            self.tree.scan(session, range, limit, out).await
        };
        scan_parts(&self.ownership, session, cursor, out, scan).await
    }

    /// # Errors
    /// `Invalid` if the table is cut into partitions: it is loaded before.
    async fn bulk_load(
        self: &Arc<Self>,
        session: &Session,
        whole: WholeTable,
        pairs: &mut impl SortedPairs,
    ) -> Result<u64, IndexError> {
        if !whole.bounds.is_empty() {
            return Err(IndexError::Invalid(format!(
                "a table of engine p-sherman is loaded in bulk before it is cut, and this one has {} partitions",
                whole.bounds.len() + 1
            )));
        }
        let _pin = session.begin(OpKind::BulkLoad).await?;
        self.tree.bulk_load_keeping(session, pairs, whole).await
    }

    /// Splits the leaf that has `bound` so that it ends there (`INV-OWN-1`).
    ///
    /// Cost: that of a split.
    async fn make_bound(
        self: &Arc<Self>,
        session: &Session,
        bound: &[u8],
        _is_moving: bool,
    ) -> Result<(), IndexError> {
        self.tree.cut_leaf_at(session, bound).await
    }

    /// Copies of inner nodes are hints, and leaves are not cached.
    async fn hand_over(
        self: &Arc<Self>,
        _session: &Session,
        _range: &Range,
    ) -> Result<(), MoveError> {
        Ok(())
    }

    /// Carries out the redo records of the dead (`INV-OWN-3`).
    async fn replay(
        self: &Arc<Self>,
        session: &Session,
        _map: &Partitions,
        _dead: Incarnation,
    ) -> Result<(), IndexError> {
        self.tree.finish_words_of_dead(session).await
    }

    /// By the separators of the highest level that has some in `range`; `None` if it is all one leaf.
    async fn middle(
        self: &Arc<Self>,
        session: &Session,
        range: &Range,
    ) -> Result<Option<Vec<u8>>, MoveError> {
        let seek = range.low.as_deref().map_or(Seek::First, Seek::After);
        let Ok(_inside) = self.ownership.acquire(session, seek).await? else {
            return Err(MoveError::NotOwned);
        };
        let _pin = session.begin(OpKind::Maintenance).await.map_err(IndexError::from)?;
        let spec = &self.stored.spec;
        let is_inside = |key: &[u8]| {
            let is_high = range.high.as_deref() == Some(key);
            spec.takes_key(key.len()) && range.holds(key, false) && !is_high
        };
        let mut inside = self.tree.separators(session, seek, is_inside).await?;
        Ok((!inside.is_empty()).then(|| inside.swap_remove(inside.len() / 2)))
    }

    fn counters(&self, counters: &mut CounterSet) {
        self.tree.count_remembered(counters);
    }

    fn resident_bytes(&self) -> u64 {
        self.tree.copy_bytes()
    }
}

/// A guest works by Sherman's protocol, with lock words, and merges no leaves.
#[derive(Debug)]
pub struct PShermanGuest(Arc<BlinkTree>);

impl Unowned<PShermanTree> for PShermanGuest {
    fn new(tree: &Arc<PShermanTree>) -> Option<Self> {
        Some(PShermanGuest(tree.tree.unowned()))
    }

    async fn get(
        &self,
        _tree: &Arc<PShermanTree>,
        session: &Session,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<bool, IndexError> {
        self.0.get(session, key, value).await
    }

    async fn change(
        &self,
        _tree: &Arc<PShermanTree>,
        session: &Session,
        change: &Change<'_>,
        held: &mut Vec<u8>,
    ) -> Result<Outcome, IndexError> {
        self.0.change_begun(session, change, held).await
    }

    async fn scan(
        &self,
        _tree: &Arc<PShermanTree>,
        session: &Session,
        range: ScanRange<'_>,
        limit: usize,
        out: &mut Entries,
    ) -> Result<(), IndexError> {
        self.0.scan(session, range, limit, out).await
    }

    async fn finish_dead(
        tree: &Arc<PShermanTree>,
        session: &Session,
        dead: u64,
    ) -> Result<(), IndexError> {
        tree.tree.finish_change_of(session, dead).await
    }
}
