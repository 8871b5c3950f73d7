//! Naive one-sided B+-tree: the baseline that the papers start from.
//!
//! Every operation reads every level remotely and caches nothing but the root's address. The tree, its
//! protocol, costs and invariants are those of [`crate::blink`].

use std::sync::Arc;

use farleaf_fabric::{GlobalAddr, OpKind};
use farleaf_pool::{Audit, Session};

use crate::blink::{BlinkOptions, Tree};
use crate::bnode::Layout;
use crate::change::{Change, Outcome};
use crate::index::{Index, ScanRange, SortedPairs, TableReport};
use crate::{Entries, IndexError};

/// A table of this engine. Clones share its state.
#[derive(Clone, Debug)]
pub struct BTree(Arc<Tree>);

impl BTree {
    #[cfg(test)]
    pub(crate) fn tree(&self) -> &Tree {
        &self.0
    }

    /// Makes the remote structure of an empty table; returns the address of its meta object.
    ///
    /// Cost: 2 WRITEs, 2 round trips.
    ///
    /// # Errors
    /// `Full` if the pool has no room; `Invalid` if nodes are too large for redo records.
    pub async fn create(session: &Session, layout: &Layout) -> Result<GlobalAddr, IndexError> {
        Tree::create(session, layout).await
    }

    /// The table whose meta object is at `meta`.
    ///
    /// Cost: none; the first operation reads the root word.
    pub fn open(meta: GlobalAddr, layout: Layout, options: BlinkOptions) -> Self {
        BTree(Tree::open(meta, layout, options))
    }

    /// Geometry of the nodes.
    pub fn layout(&self) -> &Layout {
        self.0.layout()
    }

    /// The first `left` of the objects that the table consists of, or all, in an order that stays
    /// the same while nobody changes it. What is left of a table that is retired from its last object
    /// on can be walked.
    ///
    /// # Errors
    /// `Corrupt` if there are fewer.
    pub async fn collect(
        &self,
        session: &Session,
        left: Option<u64>,
    ) -> Result<Vec<GlobalAddr>, IndexError> {
        self.0.collect(session, left).await
    }

    /// Marks the first `left` of the objects of [`BTree::collect`]; gives what is wrong.
    ///
    /// # Errors
    /// As [`Index::verify`].
    pub async fn mark_left(
        &self,
        session: &Session,
        audit: &mut Audit,
        left: u64,
    ) -> Result<Vec<String>, IndexError> {
        self.0.mark_left(session, audit, left).await
    }

    /// Seals every node with one of the last versions that there are, so that they wrap soon. For
    /// tests; nobody else may use the table.
    ///
    /// Cost: 2 READs and 1 WRITE for each node.
    ///
    /// # Errors
    /// As [`Index::verify`].
    pub async fn age(&self, session: &Session) -> Result<(), IndexError> {
        self.0.age(session).await
    }
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
        let _pin = session.begin(OpKind::Other).await?;
        self.0.verify(session, audit).await
    }
}
