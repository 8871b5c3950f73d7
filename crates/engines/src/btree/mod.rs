//! Naive one-sided B+-tree: the baseline that the papers start from.
//!
//! Every operation reads every level remotely and caches nothing but the root's address. The tree, its
//! protocol, costs and invariants are those of `crates/index/src/blink`.

#[cfg(test)]
mod edit_tests;
#[cfg(feature = "lab")]
mod lab;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use farleaf_fabric::{GlobalAddr, OpKind};
use farleaf_index::blink::{BlinkOptions, BlinkTree};
use farleaf_index::bnode::{BnodeShape, Layout};
use farleaf_index::engine::{Engine, Traits};
use farleaf_index::{
    Change, Entries, Index, IndexError, OpenOptions, Outcome, ScanRange, SortedPairs, Stored,
    TableReport, TableSpec, Visitor,
};
use farleaf_pool::{Audit, Session};

/// A table of this engine. Clones share its state.
#[derive(Clone, Debug)]
pub struct BTree(Arc<BlinkTree>);

impl BTree {
    #[cfg(test)]
    pub(crate) fn tree(&self) -> &Arc<BlinkTree> {
        &self.0
    }

    /// Makes the remote structure of an empty table; returns the address of its meta object.
    ///
    /// Cost: 2 WRITEs, 2 round trips.
    ///
    /// # Errors
    /// `Full` if the pool has no room.
    pub async fn create(session: &Session, layout: &Layout) -> Result<GlobalAddr, IndexError> {
        BlinkTree::create(session, layout).await
    }

    /// The table whose meta object is at `meta`.
    ///
    /// Cost: none; the first operation reads the root word.
    pub fn open(meta: GlobalAddr, layout: Layout, options: BlinkOptions) -> Self {
        BTree(BlinkTree::open(meta, layout, options))
    }

    /// Geometry of the nodes.
    pub fn layout(&self) -> &Layout {
        self.0.layout()
    }

    /// The objects that the table consists of: the meta object, then the levels from the root down, each from
    /// left to right.
    ///
    /// Cost: 1 READ for each node.
    ///
    /// # Errors
    /// `Corrupt`.
    pub async fn objects(&self, session: &Session) -> Result<Vec<GlobalAddr>, IndexError> {
        self.stored().collect::<BTree>(session, None).await
    }

    fn stored(&self) -> Stored<BnodeShape> {
        Stored { table: self.layout().table(), meta: self.0.meta() }
    }
}

impl Engine for BTree {
    const NAME: &'static str = "btree";
    const ABOUT: &'static str = "naive one-sided B-link tree, the baseline of the papers";

    const TRAITS: Traits = Traits::NONE;
    type Shape = BnodeShape;
    type Options = BlinkOptions;
    type Table = BTree;

    async fn create(
        session: &Session,
        table: &TableSpec<BnodeShape>,
    ) -> Result<GlobalAddr, IndexError> {
        BlinkTree::create(session, &Layout::of(table)?).await
    }

    /// Cost: none; the first operation reads the root word.
    async fn open(
        _session: &Session,
        table: &Stored<BnodeShape>,
        options: BlinkOptions,
        _join: &OpenOptions,
    ) -> Result<BTree, IndexError> {
        Ok(BTree::open(table.meta, Layout::of(table)?, options))
    }

    /// Cost: 1 READ for each node.
    async fn walk(
        session: &Session,
        table: &Stored<BnodeShape>,
        visitor: &mut impl Visitor,
        report: &mut TableReport,
    ) -> Result<(), IndexError> {
        stored_tree(table)?.walk(session, visitor, report).await
    }
}

fn stored_tree(table: &Stored<BnodeShape>) -> Result<Arc<BlinkTree>, IndexError> {
    Ok(BlinkTree::open(table.meta, Layout::of(table)?, BlinkOptions::default()))
}

impl Index for BTree {
    async fn get(
        &self,
        session: &Session,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<bool, IndexError> {
        self.0.check_key(key)?;
        let _pin = session.begin(OpKind::Get).await?;
        self.0.get(session, key, value).await
    }

    async fn change(
        &self,
        session: &Session,
        change: &Change<'_>,
        held: &mut Vec<u8>,
    ) -> Result<Outcome, IndexError> {
        self.0.change(session, change, held).await
    }

    async fn scan(
        &self,
        session: &Session,
        range: ScanRange<'_>,
        limit: usize,
        out: &mut Entries,
    ) -> Result<(), IndexError> {
        let _pin = session.begin(OpKind::Scan).await?;
        self.0.scan(session, range, limit, out).await
    }

    async fn bulk_load(
        &self,
        session: &Session,
        pairs: &mut impl SortedPairs,
    ) -> Result<u64, IndexError> {
        let _pin = session.begin(OpKind::BulkLoad).await?;
        self.0.bulk_load(session, pairs).await
    }

    async fn verify(
        &self,
        session: &Session,
        audit: &mut Audit,
    ) -> Result<TableReport, IndexError> {
        self.stored().mark::<BTree>(session, audit, None).await
    }
}
