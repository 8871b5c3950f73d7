//! CHIME: a B-link tree whose leaves are hopscotch tables, so that a get reads a few slots of a leaf.
//!
//! Source: Luo et al.: CHIME, SOSP 2024. Any compute server reads and changes any node by READ, WRITE and CAS. The tree, its
//! locks, splits, merges and recovery are the kit's (`crates/index/src/blink`), as are its parts of this design:
//!
//! - *Hopscotch leaf* (`crates/index/src/bnode/guarded/hopscotch.rs`): a key lies in one of 8 slots, its neighbourhood.
//! - *Remembered stamps* (`crates/index/src/blink/neighbourhood.rs`): the checks of a neighbourhood's slots are bound to the
//!   stamp of their leaf, which a compute server remembers beside the child in its copy of the parent. So the slots prove
//!   their leaf, with no metadata of their own.
//! - *Counted hops* (`crates/index/src/blink/hops.rs`): an insert without room moves pairs; a reader that misses a key
//!   looks whether pairs have moved.
//! - *Speculative reads* (`crates/index/src/local/slot_hints.rs`): a get or an update of a hot key reads the slot that had it
//!   last.
//! - *Read delegation, write combining* (`crates/index/src/local/key_queues.rs`): gets of one key that wait share the next
//!   READ. Changes of a key that is there are written together.
//!
//! | operation, inner nodes cached, keys and values of 8 bytes | READ | bytes READ | WRITE | CAS | waits |
//! |---|---|---|---|---|---|
//! | get, by a hint | 1 slot | 24 | 0 | 0 | 1 |
//! | get | 1 neighbourhood | 192 | 0 | 0 | 1 |
//! | get, key absent | 4 | 400 | 0 | 0 | 2 |
//! | update, by a hint | 1 slot | 24 | 2 | 1 | 2 |
//! | update, remove, insert with room in the neighbourhood | 1 | 192 | 2 | 1 | 2 |
//! | insert without it: more | 1 leaf | 1792 | 1, and 3 for each hop | 0 | 1 |
//! | scan of n leaves | 3 n | 1808 n | 0 | 0 | 1 + n / 8 |
//!
//! Without `write_vs_rmw` one of the WRITEs is a CAS. An update of a longer value WRITEs a redo record as well. Tables of
//! keys or values without a fixed length in whole words have the kit's leaves, with one checksum, as those of `sherman`.
//!
//! `docs/design/chime.md` describes the design, `docs/papers/chime.md` what differs from the paper.

#[cfg(feature = "lab")]
mod lab;
mod options;

use std::sync::Arc;

use farleaf_fabric::{GlobalAddr, OpKind};
use farleaf_index::blink::{BlinkTree, TreeLayouts, lock_words};
use farleaf_index::engine::{Engine, Traits};
use farleaf_index::local::key_queues::{ChangeTurn, KeyQueues};
use farleaf_index::sync::{AtomicU64, Ordering};
use farleaf_index::{
    CacheControl, Change, CounterSet, Entries, Index, IndexError, OpenOptions, Outcome, ScanRange,
    SortedPairs, Stored, TableReport, TableSpec, Visitor,
};
use farleaf_pool::{Audit, Session};

pub use farleaf_index::blink::PointRead;
pub use options::{ChangeRead, ChimeOptions, ChimeShape};

farleaf_fabric::canaries! {
    pub(crate) JOIN_OPEN_READ = "join-open-read",
        "a get takes the answer of a READ that began before it";
}

/// A table of this engine. Clones share its state.
#[derive(Clone, Debug)]
pub struct Chime(Arc<ChimeTree>);

#[derive(Debug)]
struct ChimeTree {
    stored: Stored<ChimeShape>,
    tree: Arc<BlinkTree>,
    /// Gets of a key share READs, and changes a lock and a WRITE, if they do.
    queues: Option<KeyQueues>,
    gets_joined: AtomicU64,
    changes_joined: AtomicU64,
}

/// Opens a table's tree, with no copies for work on the whole of it.
async fn open_tree(
    session: &Session,
    table: &Stored<ChimeShape>,
    options: &ChimeOptions,
) -> Result<Arc<BlinkTree>, IndexError> {
    let TreeLayouts { nodes, leaves } = ChimeShape::layouts_of(table)?;
    let (blink, remember) = (options.blink(), options.remember());
    let layouts = (nodes, leaves);
    BlinkTree::open_hopscotch(session, table.meta, layouts, blink, remember, options.hopscotch())
        .await
}

fn without_copies() -> ChimeOptions {
    ChimeOptions { cache_bytes: 0, ..ChimeOptions::default() }
}

impl Engine for Chime {
    const NAME: &'static str = "chime";
    const ABOUT: &'static str =
        "CHIME: B-link tree whose leaves are hopscotch tables; Luo and others, SOSP 2024";

    const TRAITS: Traits = Traits { cached: true, ..Traits::NONE };

    type Shape = ChimeShape;
    type Options = ChimeOptions;
    type Table = Chime;

    /// Cost: 1 WRITE for each memory server, and 3.
    async fn create(
        session: &Session,
        table: &TableSpec<ChimeShape>,
    ) -> Result<GlobalAddr, IndexError> {
        let TreeLayouts { nodes, leaves } = ChimeShape::layouts_of(table)?;
        let words = lock_words(table.shape.lock_words)?;
        BlinkTree::create_remembered(session, &nodes, leaves.as_ref(), words).await
    }

    /// Cost: 2 READs.
    async fn open(
        session: &Session,
        table: &Stored<ChimeShape>,
        options: ChimeOptions,
        _join: &OpenOptions,
    ) -> Result<Chime, IndexError> {
        let tree = open_tree(session, table, &options).await?;
        let queues = options.delegate.then(|| KeyQueues::new(options.batch_limit));
        let (gets_joined, changes_joined) = Default::default();
        Ok(Chime(Arc::new(ChimeTree { stored: *table, tree, queues, gets_joined, changes_joined })))
    }

    /// Cost: 2 READs for each node, 1 for each lock table.
    async fn walk(
        session: &Session,
        table: &Stored<ChimeShape>,
        visitor: &mut impl Visitor,
        report: &mut TableReport,
    ) -> Result<(), IndexError> {
        BlinkTree::visit_meta_object(table.meta, visitor);
        if visitor.is_done() {
            return Ok(());
        }
        let tree = open_tree(session, table, &without_copies()).await?;
        tree.walk_nodes(session, visitor, report).await
    }
}

impl Index for Chime {
    async fn get(
        &self,
        session: &Session,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<bool, IndexError> {
        let tree = &self.0.tree;
        tree.check_key(key)?;
        let _pin = session.begin(OpKind::Get).await?;
        let Some(queues) = &self.0.queues else { return tree.get(session, key, value).await };
        let read = async |value: &mut Vec<u8>| tree.get(session, key, value).await;
        let got = queues.get(session, key, value, !JOIN_OPEN_READ.is_armed(), read).await?;
        if got.joined {
            self.0.gets_joined.fetch_add(1, Ordering::Relaxed);
        }
        Ok(got.is_there)
    }

    async fn change(
        &self,
        session: &Session,
        change: &Change<'_>,
        held: &mut Vec<u8>,
    ) -> Result<Outcome, IndexError> {
        let tree = &self.0.tree;
        let Some(queues) = self.0.queues.as_ref().filter(|_| tree.combines_changes()) else {
            return tree.change(session, change, held).await;
        };
        tree.check_change(change)?;
        let _pin = session.begin(change.kind).await?;
        match queues.change(session, change, held).await? {
            ChangeTurn::Lead(lead) => {
                tree.change_leading(session, change, held, &mut Some(lead)).await
            }
            ChangeTurn::Done(outcome) => {
                self.0.changes_joined.fetch_add(1, Ordering::Relaxed);
                Ok(outcome)
            }
        }
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
        self.0.stored.mark::<Chime>(session, audit, None).await
    }

    fn cache(&self) -> Option<&dyn CacheControl> {
        Some(self)
    }

    fn counters(&self, counters: &mut CounterSet) {
        self.0.tree.count_remembered(counters);
        counters.add("gets_joined", self.0.gets_joined.load(Ordering::Relaxed));
        counters.add("changes_joined", self.0.changes_joined.load(Ordering::Relaxed));
        if let Some(counts) = self.0.tree.hopscotch_counts() {
            for (name, count) in [
                ("hints_tried", &counts.hints_tried),
                ("slots_guessed", &counts.hints_right),
                ("stamps_learned", &counts.learned),
                ("stamps_stale", &counts.stale),
                ("second_looks", &counts.second_looks),
                ("whole_leaves", &counts.whole_leaves),
                ("hops", &counts.hops),
                ("read_on", &counts.read_on),
                ("siblings_busy", &counts.siblings_busy),
            ] {
                counters.add(name, count.load(Ordering::Relaxed));
            }
        }
    }
}

impl CacheControl for Chime {
    fn resident_bytes(&self) -> u64 {
        self.0.tree.copy_bytes() + self.0.tree.hint_bytes()
    }
}
