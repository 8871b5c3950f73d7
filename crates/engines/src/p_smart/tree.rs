//! Tree: SMART's tree with the ownership of its ranges, for own keys and for guests.

use std::future::Future;
use std::sync::Arc;

use farleaf_fabric::{GlobalAddr, OpKind};
use farleaf_index::compute::ownership::{
    MapWords, Ownership, Partitions, Range, ScanEnd, WholeTable, scan_parts,
};
use farleaf_index::compute::{MoveError, Owned, RangeOwner, Unowned};
use farleaf_index::{
    Change, CounterSet, Entries, Index, IndexError, Outcome, ScanCursor, ScanRange, Seek,
    SortedPairs, Stored, TableReport, common_bytes, longest_prefix_by_floors,
};
use farleaf_pool::{Audit, Session};

use super::{PSmart, PSmartOptions};
use crate::smart::{META_MAP, META_MAP_LOCK, OwnRanges, Smart, SmartShape};

farleaf_fabric::canaries! {
    pub(crate) KEEP_EXACT_ENTRIES = "keep-exact-entries",
        "an owner that gives a range away keeps its exact entries";
}

/// The words of the meta object that hold the ownership map; 0 in a new table.
pub(super) fn map_words(meta: GlobalAddr) -> MapWords {
    let [map, lock] = [META_MAP, META_MAP_LOCK].map(|offset| meta.plus(offset));
    MapWords { meta, map, lock }
}

/// SMART's tree of a table, as an owner of its ranges uses it.
#[derive(Debug)]
pub struct PSmartTree {
    smart: Smart,
    ownership: Arc<Ownership>,
}

impl PSmartTree {
    /// The table without its owners.
    pub fn inner(&self) -> &Smart {
        &self.smart
    }
}

impl RangeOwner for PSmartTree {
    type Engine = PSmart;
    type Unowned = PSmartGuest;

    fn map_words(meta: GlobalAddr) -> MapWords {
        map_words(meta)
    }

    async fn new(
        session: &Session,
        table: &Stored<SmartShape>,
        options: PSmartOptions,
        ownership: impl Future<Output = Result<Arc<Ownership>, IndexError>>,
    ) -> Result<Arc<Self>, IndexError> {
        let ownership = ownership.await?;
        let own = OwnRanges::new(&ownership, options.owner_writes);
        let smart = Smart::open_owned(session, table, options.into(), own)?;
        Ok(Arc::new(PSmartTree { smart, ownership }))
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
            self.smart.tree.get_delegated(session, key, value).await?
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
        let outcome = {
            let _pin = session.begin(change.kind).await?;
            self.smart.tree.change_combined(session, change, held).await?
        };
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
            self.smart.tree.scan(session, range, limit, out).await
        };
        scan_parts(&self.ownership, session, cursor, out, scan).await
    }

    /// One descent if the key is own, and so is the longest prefix. A prefix of another's is found by floors.
    async fn longest_prefix(
        table: &Owned<Self>,
        session: &Session,
        key: &[u8],
        out: &mut Entries,
    ) -> Result<(), IndexError> {
        let mut probe = key;
        let (tree, ownership) = (table.tree(), table.ownership());
        if let Ok((_inside, part)) = ownership.acquire_part(session, Seek::At(key)).await? {
            ownership.check_open()?;
            let mut found = Entries::new();
            {
                let _pin = session.begin(OpKind::Get).await?;
                tree.smart.tree.longest_prefix(session, key, &mut found).await?;
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
        longest_prefix_by_floors(table, session, probe, out).await?;
        Ok(session.vouch()?)
    }

    async fn bulk_load(
        self: &Arc<Self>,
        session: &Session,
        _whole: WholeTable,
        pairs: &mut impl SortedPairs,
    ) -> Result<u64, IndexError> {
        self.smart.bulk_load(session, pairs).await
    }

    /// Nothing is ever dirty. Unlinks the leaves of removed keys, because the next owner does not know them.
    async fn write_back(
        self: &Arc<Self>,
        session: &Session,
        range: &Range,
        _most: usize,
    ) -> Result<usize, IndexError> {
        let tree = &self.smart.tree;
        for key in tree.take_removed(|key: &[u8]| range.holds(key, false)) {
            tree.unlink_whole(session, &key).await?;
        }
        Ok(0)
    }

    async fn hand_over(
        self: &Arc<Self>,
        _session: &Session,
        range: &Range,
    ) -> Result<(), MoveError> {
        if !KEEP_EXACT_ENTRIES.is_armed() {
            self.smart.tree.forget_range(&range.as_scan());
        }
        Ok(())
    }

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
        let middle = self.smart.tree.middle(session, range.as_scan()).await?;
        let spec = &self.smart.stored.spec;
        Ok(middle.filter(|key| {
            spec.takes_key(key.len()) && range.holds(key, false) && range.high.as_ref() != Some(key)
        }))
    }

    /// Unlinks the leaves of all own keys that were removed here.
    async fn finish(self: &Arc<Self>, session: &Session) -> Result<(), IndexError> {
        let tree = &self.smart.tree;
        for key in tree.take_removed(|_: &[u8]| true) {
            let Ok(_inside) = self.ownership.acquire(session, Seek::At(&key)).await? else {
                continue;
            };
            let _pin = session.begin(OpKind::Other).await?;
            tree.unlink_whole(session, &key).await?;
        }
        Ok(())
    }

    async fn verify(
        self: &Arc<Self>,
        session: &Session,
        _table: &Stored<SmartShape>,
        audit: &mut Audit,
    ) -> Result<TableReport, IndexError> {
        self.smart.verify_as::<PSmart>(session, audit).await
    }

    fn counters(&self, counters: &mut CounterSet) {
        Index::counters(&self.smart, counters);
    }

    fn resident_bytes(&self) -> u64 {
        self.smart.cached().0
    }
}

/// A guest works by SMART's protocol, as all compute servers do.
#[derive(Debug)]
pub struct PSmartGuest;

impl Unowned<PSmartTree> for PSmartGuest {
    fn new(_tree: &Arc<PSmartTree>) -> Option<Self> {
        Some(PSmartGuest)
    }

    async fn get(
        &self,
        tree: &Arc<PSmartTree>,
        session: &Session,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<bool, IndexError> {
        tree.smart.tree.get_delegated(session, key, value).await
    }

    async fn change(
        &self,
        tree: &Arc<PSmartTree>,
        session: &Session,
        change: &Change<'_>,
        held: &mut Vec<u8>,
    ) -> Result<Outcome, IndexError> {
        tree.smart.tree.change(session, change, held, None).await
    }

    async fn scan(
        &self,
        tree: &Arc<PSmartTree>,
        session: &Session,
        range: ScanRange<'_>,
        limit: usize,
        out: &mut Entries,
    ) -> Result<(), IndexError> {
        tree.smart.tree.scan(session, range, limit, out).await
    }

    fn has_remains(&self, tree: &Arc<PSmartTree>) -> bool {
        tree.smart.tree.is_unlinking_due(true)
    }

    async fn clear(
        &self,
        tree: &Arc<PSmartTree>,
        session: &Session,
        map: &Partitions,
        is_last: bool,
    ) -> Result<(), IndexError> {
        let tree = &tree.smart.tree;
        if tree.is_unlinking_due(is_last) {
            let is_unowned = |key: &[u8]| map.owners[map.of(key, false)] == 0;
            for key in tree.take_removed(is_unowned) {
                tree.unlink_whole(session, &key).await?;
            }
        }
        Ok(())
    }
}
