//! Sherman: a B-link tree whose leaves are locked hierarchically and written entry by entry.
//!
//! Source: Wang, Lu, Shu: Sherman, SIGMOD 2022. Any compute server reads and changes any node by READ, WRITE and CAS. The
//! tree, its splits, merges and recovery are the kit's (`crates/index/src/blink`); its *remembered* form adds four things:
//!
//! - *Guarded leaf*: unsorted slots, each with a check of its own. A change writes one slot of 16 or 24 bytes.
//! - *Hierarchical lock*: a table of lock words on each memory server. In front of it each compute server has a queue for
//!   each word, in which a held lock goes from task to task.
//! - *Combined commands*: lock and READ leave in one chain, slot and release in another. An update waits twice.
//! - *Index cache*: copies of inner nodes. They are hints; a node that they lead to proves itself.
//!
//! | operation, inner nodes cached, keys and values of 8 bytes | READ | WRITE | CAS | waits |
//! |---|---|---|---|---|
//! | get | 1 leaf | 0 | 0 | 1 |
//! | get, table of one leaf | 1 lock word, 1 leaf | 0 | 0 | 1 |
//! | update, insert, remove | 1 leaf | 2 | 1 | 2 |
//! | the same, the lock passed on with the leaf's content | 0 | 2 | 0 | 1 |
//! | scan of n leaves | n | 0 | 0 | 1 + n / 16 |
//!
//! Without `write_vs_rmw` one of the WRITEs is a CAS. An update of a longer value WRITEs a redo record as well. Tables of
//! keys or values without a fixed length in whole words have the kit's leaves, with one checksum: a change WRITEs redo
//! record, leaf and release.
//!
//! `docs/design/sherman.md` describes the design, `docs/papers/sherman.md` what differs from the paper.

#[cfg(feature = "lab")]
pub(crate) mod lab;
mod options;

use std::sync::Arc;

use farleaf_fabric::{GlobalAddr, OpKind};
use farleaf_index::blink::{BlinkTree, LeafRule, TreeLayouts, lock_words};
use farleaf_index::engine::{Engine, Traits};
use farleaf_index::{
    CacheControl, Change, CounterSet, Entries, Index, IndexError, OpenOptions, Outcome, ScanRange,
    SortedPairs, Stored, TableReport, TableSpec, Visitor,
};
use farleaf_pool::{Audit, Session};

pub use options::{LeafRead, ShermanOptions, ShermanShape, WriteBack};

/// A table of this engine. Clones share its state.
#[derive(Clone, Debug)]
pub struct Sherman(Arc<OpenTree>);

#[derive(Debug)]
struct OpenTree {
    stored: Stored<ShermanShape>,
    tree: Arc<BlinkTree>,
}

/// Opens a table's tree, whose guarded leaves are changed by `rule`.
///
/// Cost: 2 READs.
pub(crate) async fn open_tree(
    session: &Session,
    table: &Stored<ShermanShape>,
    options: &ShermanOptions,
    rule: LeafRule,
) -> Result<Arc<BlinkTree>, IndexError> {
    let TreeLayouts { nodes, leaves } = ShermanShape::layouts_of(table)?;
    let how = (options.blink(), options.remember(), rule);
    BlinkTree::open_ruled(session, table.meta, nodes, leaves, how).await
}

/// The settings for work on the whole of a table.
pub(crate) fn without_copies() -> ShermanOptions {
    ShermanOptions { cache_bytes: 0, ..ShermanOptions::default() }
}

impl Engine for Sherman {
    const NAME: &'static str = "sherman";
    const ABOUT: &'static str = "Sherman: B-link tree with lock queues and entry-wise write-back; Wang, Lu, Shu, SIGMOD 2022";

    const TRAITS: Traits = Traits { cached: true, ..Traits::NONE };

    type Shape = ShermanShape;
    type Options = ShermanOptions;
    type Table = Sherman;

    /// Cost: 1 WRITE for each memory server, and 3.
    async fn create(
        session: &Session,
        table: &TableSpec<ShermanShape>,
    ) -> Result<GlobalAddr, IndexError> {
        let TreeLayouts { nodes, leaves } = ShermanShape::layouts_of(table)?;
        let words = lock_words(table.shape.lock_words)?;
        BlinkTree::create_remembered(session, &nodes, leaves.as_ref(), words).await
    }

    /// Cost: 2 READs.
    async fn open(
        session: &Session,
        table: &Stored<ShermanShape>,
        options: ShermanOptions,
        _join: &OpenOptions,
    ) -> Result<Sherman, IndexError> {
        let tree = open_tree(session, table, &options, LeafRule::Shared).await?;
        Ok(Sherman(Arc::new(OpenTree { stored: *table, tree })))
    }

    /// Cost: 2 READs for each node, 1 for each lock table.
    async fn walk(
        session: &Session,
        table: &Stored<ShermanShape>,
        visitor: &mut impl Visitor,
        report: &mut TableReport,
    ) -> Result<(), IndexError> {
        BlinkTree::visit_meta_object(table.meta, visitor);
        if visitor.is_done() {
            return Ok(());
        }
        let tree = open_tree(session, table, &without_copies(), LeafRule::Shared).await?;
        tree.walk_nodes(session, visitor, report).await
    }
}

impl Index for Sherman {
    async fn get(
        &self,
        session: &Session,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<bool, IndexError> {
        let tree = &self.0.tree;
        tree.check_key(key)?;
        let _pin = session.begin(OpKind::Get).await?;
        tree.get(session, key, value).await
    }

    async fn change(
        &self,
        session: &Session,
        change: &Change<'_>,
        held: &mut Vec<u8>,
    ) -> Result<Outcome, IndexError> {
        self.0.tree.change(session, change, held).await
    }

    async fn scan(
        &self,
        session: &Session,
        range: ScanRange<'_>,
        limit: usize,
        out: &mut Entries,
    ) -> Result<(), IndexError> {
        let _pin = session.begin(OpKind::Scan).await?;
        self.0.tree.scan(session, range, limit, out).await
    }

    async fn bulk_load(
        &self,
        session: &Session,
        pairs: &mut impl SortedPairs,
    ) -> Result<u64, IndexError> {
        let _pin = session.begin(OpKind::BulkLoad).await?;
        self.0.tree.bulk_load(session, pairs).await
    }

    async fn verify(
        &self,
        session: &Session,
        audit: &mut Audit,
    ) -> Result<TableReport, IndexError> {
        self.0.stored.mark::<Sherman>(session, audit, None).await
    }

    fn cache(&self) -> Option<&dyn CacheControl> {
        Some(self)
    }

    fn counters(&self, counters: &mut CounterSet) {
        self.0.tree.count_remembered(counters);
    }
}

impl CacheControl for Sherman {
    fn resident_bytes(&self) -> u64 {
        self.0.tree.copy_bytes()
    }
}
