//! SMART: an adaptive radix tree with one pair a leaf, lock-free inner nodes and leaves that change in place.
//!
//! Source: SMART, OSDI 2023. A point read moves one pair alone, where a B+-tree moves a leaf. Inner nodes change by
//! CAS of one slot. A leaf changes in place under a lock at its end; its address stays, so the compute servers'
//! caches of inner nodes stay good. They cache inner nodes, never leaves. `docs/design/smart.md` has the protocol and
//! its reasons, `docs/papers/smart.md` what differs from the paper.
//!
//! | operation | READ | WRITE | CAS | round trips |
//! |---|---|---|---|---|
//! | get, *n* nodes on the way not cached | n + 1 | 0 | 0 | n + 1 |
//! | update in place | n + 1 | 1 | 1 | n + 3 |
//! | update of several words of the value | n + 1 | 2 or more | 1 | n + 3 |
//! | insert into a node with room | max(n, 1) | 1 | 1 | max(n, 1) + 1 |
//! | insert beside the leaf of another key | max(n, 1) + 1 | 2 | 1 | max(n, 1) + 3 |
//! | remove | n + 1 | 1 | 1 | n + 3 |
//! | longest prefix, *d* nodes on the way, *e* leaves where one may end | d + e | 0 | 0 | n + 1 |
//! | get or change that another on its key does (`delegation.rs`) | 0 | 0 | 0 | 0 |
//!
//! - `INV-SMART-1` A slot's edge (key byte or end) is set once in a node's life, and no slot becomes unused again.
//!   Slots fill from left to right. So an edge has at most one slot.
//! - `INV-SMART-2` All keys below a node begin with the bytes that lead to it. A key has at most one leaf that is
//!   linked, valid and not moving.
//! - `INV-SMART-3` A node leaves the tree by one CAS in its parent, after it was marked dead and each of its words
//!   was frozen. A word that was read unfrozen was read in a linked node.
//! - `INV-SMART-4` A leaf leaves the tree by one CAS under its lock, removed or moving, and stays locked. So a leaf
//!   that no client has locked and no path reaches was never linked.
//! - `INV-SMART-5` The words of a linked leaf change under its lock alone, and only those that differ. Where a death
//!   could leave a value that is neither the old nor the new one, a redo record comes first.
//! - `INV-SMART-6` In a node with reserved room, no change of a slot behind those that the header's type counts is
//!   acknowledged or followed before the header has grown (`paper/grow.rs`).
//! - `INV-SMART-7` CAS and WRITE go only to objects that the operation has proven (`descent.rs`), or to a node of which
//!   `INV-SMART-15` says that it stays.
//! - `INV-SMART-15` A node with reserved room, other than the root, never leaves the tree; nobody uses a table that is
//!   dropped. So an operation that has READ and proven a leaf by a cached slot of it may CAS that slot: if the slot still
//!   has the leaf's address, it leads to this leaf.

mod bulk;
mod cache;
mod changes;
mod changing;
mod delegation;
mod descent;
mod entry;
mod insert;
#[cfg(feature = "lab")]
pub(crate) mod lab;
mod ladder;
mod layout;
mod leaf;
mod locked;
mod longest_prefix;
mod middle;
mod mode;
#[cfg(test)]
mod model;
mod ops;
mod options;
mod outcome;
mod own_leaves;
mod own_nodes;
#[cfg(feature = "figures")]
mod paper;
mod record;
mod relocate;
mod scan;
mod shrink;
mod takeover;
mod tree;
mod unlink;
mod verify;

use std::sync::Arc;

use farleaf_fabric::{GlobalAddr, OpKind};
use farleaf_index::engine::{Engine, Traits};
use farleaf_index::{
    CacheControl, Change, CounterSet, Entries, Index, IndexError, OpenOptions, Outcome, ScanRange,
    SortedPairs, Stored, TableReport, TableSpec, Visitor,
};
use farleaf_pool::{Audit, Recovery, Session};

pub use ladder::{
    CacheIndex, LeafLock, LeafUpdate, NodeLocks, NodeTypes, OwnerWrites, ReadDelegation,
};
pub use options::{FirstSlots, NodeRoom, SmartOptions, SmartShape};

#[cfg(feature = "lab")]
pub(crate) use self::cache::{BELIEVE_OLD_READ, WRITE_SLOT_BESIDE};
use self::layout::{META_BYTES, META_MAGIC, META_ROOT, NodeForm, NodeType, check_pool, fill_node};
pub(crate) use self::layout::{META_MAP, META_MAP_LOCK};
use self::mode::NodeMode;
#[cfg(feature = "lab")]
pub(crate) use self::own_leaves::STORE_LEAF_BESIDE;
pub(crate) use self::own_nodes::OwnRanges;
pub(crate) use self::tree::Tree;

/// A table of this engine. Clones share its state.
#[derive(Clone, Debug)]
pub struct Smart {
    pub(crate) stored: Stored<SmartShape>,
    pub(crate) tree: Arc<Tree>,
}

impl Smart {
    /// Bytes that cached nodes take, and how many there are.
    pub fn cached(&self) -> (u64, u64) {
        self.tree.cache.used()
    }

    /// Counts of this compute server's operations, by name: cached pointers that proved themselves or did not,
    /// locks that another had or a dead client held, nodes replaced, removed and split, leaves unlinked, operations that
    /// another one did.
    pub fn counts(&self) -> Vec<(&'static str, u64)> {
        self.tree.counts.list()
    }
}

impl Smart {
    /// Opens a table of this engine, or of one that is a preset of it.
    pub(crate) fn open_with(
        session: &Session,
        table: &Stored<SmartShape>,
        options: SmartOptions,
    ) -> Result<Smart, IndexError> {
        check_pool(session)?;
        NodeMode::check_values(session, table)?;
        NodeMode::check_open(&table.shape, &options)?;
        Ok(Smart { stored: *table, tree: Tree::new(table, options, None) })
    }

    /// As [`Smart::open_with`], for a table whose ranges have owners.
    pub(crate) fn open_owned(
        session: &Session,
        table: &Stored<SmartShape>,
        options: SmartOptions,
        owner: OwnRanges,
    ) -> Result<Smart, IndexError> {
        check_pool(session)?;
        Ok(Smart { stored: *table, tree: Tree::new(table, options, Some(owner)) })
    }

    /// As [`Index::verify`], with the walk of the engine that the table is of.
    pub(crate) async fn verify_as<E: Engine<Shape = SmartShape>>(
        &self,
        session: &Session,
        audit: &mut Audit,
    ) -> Result<TableReport, IndexError> {
        self.tree.finish_unlinking(session).await;
        self.stored.mark::<E>(session, audit, None).await
    }
}

/// The table without a cache, for walks.
pub(crate) fn stored_tree(table: &Stored<SmartShape>) -> Arc<Tree> {
    let options = SmartOptions { cache_bytes: 0, ..SmartOptions::default() };
    Tree::new(table, options, None)
}

impl Engine for Smart {
    const NAME: &'static str = "smart";
    const ABOUT: &'static str =
        "adaptive radix tree with leaves changed in place; SMART, OSDI 2023";

    const TRAITS: Traits = Traits { cached: true, ..Traits::NONE };

    type Shape = SmartShape;
    type Options = SmartOptions;
    type Table = Smart;

    fn check_options(
        options: &SmartOptions,
        table: &TableSpec<SmartShape>,
    ) -> Result<(), IndexError> {
        NodeMode::check_open(&table.shape, options)
    }

    /// Cost: 2 WRITEs, 2 round trips.
    async fn create(
        session: &Session,
        table: &TableSpec<SmartShape>,
    ) -> Result<GlobalAddr, IndexError> {
        check_pool(session)?;
        NodeMode::check_values(session, table)?;
        let shape = NodeForm::of(table);
        let root = session.alloc_unlinked(session.place(), NodeType::TOP.bytes()).await?;
        let mut buf = session.client().buf(NodeType::TOP.bytes());
        let place = (0, &b""[..]);
        let meta = session.alloc_unlinked(session.place(), META_BYTES).await?;
        let first_word =
            shape.first_word(root.addr(), session.epoch(), meta.addr().plus(META_ROOT));
        fill_node(&shape, buf.words_mut(), first_word, NodeType::TOP, place, std::iter::empty());
        root.write(buf).await?;
        let mut buf = session.client().buf(META_BYTES);
        buf.words_mut().fill(0);
        (buf.words_mut()[0], buf.words_mut()[1]) = (META_MAGIC, shape.table);
        buf.words_mut()[META_ROOT as usize / 8] = root.addr().word();
        meta.write(buf).await?;
        root.keep();
        meta.keep();
        Ok(meta.addr())
    }

    /// Cost: none; the first operation reads the meta object.
    async fn open(
        session: &Session,
        table: &Stored<SmartShape>,
        options: SmartOptions,
        _join: &OpenOptions,
    ) -> Result<Smart, IndexError> {
        Smart::open_with(session, table, options)
    }

    /// Cost: 1 READ for each node, leaf and record.
    async fn walk(
        session: &Session,
        table: &Stored<SmartShape>,
        visitor: &mut impl Visitor,
        report: &mut TableReport,
    ) -> Result<(), IndexError> {
        stored_tree(table).walk(session, visitor, report).await
    }

    async fn redo_dead(
        session: &Session,
        table: &Stored<SmartShape>,
        recovery: &Recovery,
    ) -> Result<(), IndexError> {
        let _pin = session.begin(OpKind::Other).await?;
        stored_tree(table).redo_dead(session, recovery).await
    }
}

impl Index for Smart {
    async fn get(
        &self,
        session: &Session,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<bool, IndexError> {
        self.stored.spec.check_key(key)?;
        let _pin = session.begin(OpKind::Get).await?;
        self.tree.get_delegated(session, key, value).await
    }

    async fn change(
        &self,
        session: &Session,
        change: &Change<'_>,
        held: &mut Vec<u8>,
    ) -> Result<Outcome, IndexError> {
        self.tree.check_change(change)?;
        let _pin = session.begin(change.kind).await?;
        self.tree.change_combined(session, change, held).await
    }

    async fn scan(
        &self,
        session: &Session,
        range: ScanRange<'_>,
        limit: usize,
        out: &mut Entries,
    ) -> Result<(), IndexError> {
        let _pin = session.begin(OpKind::Scan).await?;
        self.tree.scan(session, range, limit, out).await
    }

    async fn longest_prefix(
        &self,
        session: &Session,
        key: &[u8],
        out: &mut Entries,
    ) -> Result<(), IndexError> {
        let _pin = session.begin(OpKind::Get).await?;
        self.tree.longest_prefix(session, key, out).await
    }

    async fn bulk_load(
        &self,
        session: &Session,
        pairs: &mut impl SortedPairs,
    ) -> Result<u64, IndexError> {
        let _pin = session.begin(OpKind::BulkLoad).await?;
        self.tree.bulk_load(session, pairs).await
    }

    async fn verify(
        &self,
        session: &Session,
        audit: &mut Audit,
    ) -> Result<TableReport, IndexError> {
        self.verify_as::<Smart>(session, audit).await
    }

    /// Unlinks the leaves of keys that were removed here.
    async fn close(&self, session: &Session) -> Result<(), IndexError> {
        self.tree.unlink_removed(session).await
    }

    fn cache(&self) -> Option<&dyn CacheControl> {
        Some(self)
    }

    fn counters(&self, counters: &mut CounterSet) {
        self.counts().into_iter().for_each(|(name, count)| counters.add(name, count));
    }
}

impl CacheControl for Smart {
    fn resident_bytes(&self) -> u64 {
        self.cached().0
    }
}
