//! DART: a radix tree of hashed nodes, entered through an express skip table.
//!
//! Source: Zhang et al., "DART: A Lock-free Two-layer Hashed ART Index for Disaggregated Memory", PACMMOD 4(1),
//! article 22, SIGMOD 2026.
//!
//! The tree lies in memory servers, and compute servers run it with READ, WRITE, CAS and FAA alone. An inner
//! node has no header: all that a reader needs of a child stands in the 8-byte pointer to it. So each change
//! of the structure is one CAS. A node is an array of small hash buckets, and a reader READs one of them. A
//! hash table, the skip table, maps a key's prefix to the node at that depth.
//!
//! It differs from the paper in what decides correctness: removed children leave TOMBs, nodes are replaced
//! under seals and without a grace period, and entries of the skip table become valid in two phases.
//! `docs/design/dart.md` has the protocols, `docs/papers/dart.md` the paper's mechanisms one by one.
//!
//! - `INV-DART-1` The partial key of a slot is written once in a node's life: empty, then words with that
//!   partial key. A slot never becomes empty again.
//! - `INV-DART-2` The slots of a bucket fill from left to right: a client puts a word into a slot after it has
//!   seen all slots in front of it hold other partial keys. So a partial key has at most one slot, however the
//!   words of a READ were sampled.
//! - `INV-DART-3` A sealed word stays as it is until its node is unlinked.
//! - `INV-DART-4` A node leaves the tree by one CAS on its parent's slot, after each of its slots is sealed. So an
//!   unsealed word that was read in a linked node proves that the node was in the tree then. A new node that no
//!   fresh way meets and that is not sealed was never linked.
//! - `INV-DART-5` A valid entry of a table that the descriptor names leads to no freed node.
//! - `INV-DART-6` All keys below a node share its first plen bytes. No key is in the tree twice.
//! - `INV-DART-7`, `INV-DART-8`: entries that a compute server remembers; see `cache.rs`.

mod bulk;
mod cache;
mod changing;
mod counters;
#[cfg(test)]
mod damage;
mod descent;
mod hashed_node;
#[cfg(feature = "lab")]
mod lab;
mod leaf;
mod longest_prefix;
mod meta;
mod node_split;
mod node_switch;
mod ops;
mod options;
mod outcome;
mod publish;
mod scan;
mod skip_table;
#[cfg(test)]
mod tests;
mod verify;
mod word;

use std::sync::Arc;

use farleaf_fabric::{GlobalAddr, OpKind};
use farleaf_index::engine::{Engine, Traits};
use farleaf_index::{
    CacheControl, Change, CounterSet, Entries, Index, IndexError, OpenOptions, Outcome, ScanRange,
    SortedPairs, Stored, TableReport, TableSpec, Visitor,
};
use farleaf_pool::{Audit, Session};

use self::cache::EntryCache;
use self::counters::Counters;
use self::hashed_node::NodeShape;
use self::meta::CachedRoot;
use self::node_switch::Claims;
pub use self::options::{DartOptions, DartShape};
use self::skip_table::{AdjustClock, HitRates, KnownTables, Maintenance};
pub use self::skip_table::{EntryReport, Lengths, Prefixes};

farleaf_fabric::canaries! {
    pub(crate) KEEP_ENTRIES_OF_FREED = "keep-entries-of-freed",
        "recovery leaves the entries of nodes that it frees";
}

/// A table of this engine. Clones share its state.
#[derive(Clone, Debug)]
pub struct Dart(Arc<DartTree>);

/// One tree as one compute server sees it.
#[derive(Debug)]
struct DartTree {
    stored: Stored<DartShape>,
    meta: GlobalAddr,
    shape: NodeShape,
    /// The table's number, which its leaves carry.
    table: u32,
    object_bytes_max: usize,
    options: DartOptions,
    remembered: CachedRoot,
    cache: EntryCache,
    known_tables: KnownTables,
    hit_rates: HitRates,
    maintenance: Maintenance,
    adjust_clock: AdjustClock,
    claims: Claims,
    counters: Counters,
}

impl DartTree {
    fn new(session: &Session, table: &Stored<DartShape>, options: DartOptions) -> Arc<DartTree> {
        Arc::new(DartTree {
            stored: *table,
            meta: table.meta,
            shape: NodeShape::new(table.shape),
            table: number_of(table),
            object_bytes_max: session.pool().geometry().object_bytes_max(),
            cache: EntryCache::new(options.cache_bytes),
            options,
            remembered: CachedRoot::default(),
            known_tables: KnownTables::default(),
            hit_rates: HitRates::default(),
            maintenance: Maintenance::default(),
            adjust_clock: AdjustClock::default(),
            claims: Claims::default(),
            counters: Counters::default(),
        })
    }

    fn check_pair(&self, key: &[u8], value: Option<&[u8]>) -> Result<(), IndexError> {
        self.stored.spec.check_key(key)?;
        let Some(value) = value else { return Ok(()) };
        self.stored.spec.check_value(value)?;
        let bytes = leaf::object_bytes(key.len(), value.len());
        if bytes > self.object_bytes_max {
            return Err(IndexError::Invalid(format!(
                "a key and a value of {bytes} bytes together: an object of this pool has at most {} bytes",
                self.object_bytes_max
            )));
        }
        Ok(())
    }
}

/// The number that tells a table's leaves from others'.
fn number_of(table: &TableSpec<DartShape>) -> u32 {
    (table.number ^ table.number >> 32) as u32
}

impl Dart {
    /// Counts of what this compute server has done with the table, by name.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut all = self.0.counters.all();
        let (bytes, entries) = self.0.cache.used();
        let directory = self.0.known_tables.bytes();
        all.extend([
            ("cache_bytes", bytes),
            ("cache_entries", entries),
            ("directory_bytes", directory),
        ]);
        all
    }

    /// Counts the entries of the skip tables. Meant for a quiet table.
    ///
    /// Cost: 1 READ for each node of the tree, and for each segment of the tables.
    ///
    /// # Errors
    /// As [`Index::verify`].
    pub async fn entries(&self, session: &Session) -> Result<EntryReport, IndexError> {
        let _pin = session.begin(OpKind::Other).await?;
        self.0.count_entries(session).await
    }

    /// Does what maintenance of the skip table is due: makes a table, fills it, or drops one.
    ///
    /// # Errors
    /// `Full`, `Unavailable`, `Corrupt`; lookups begin at the root then.
    pub async fn maintain(&self, session: &Session) -> Result<(), IndexError> {
        self.0.maintenance_step(session, None).await.map(drop)
    }

    /// Has a skip table with these prefix lengths take the place of the present one. Others go on meanwhile.
    ///
    /// Cost: 1 READ for each node of the tree twice, and 4 operations for each entry.
    ///
    /// # Errors
    /// As [`Dart::maintain`].
    pub async fn set_prefixes(
        &self,
        session: &Session,
        prefixes: &Lengths,
    ) -> Result<(), IndexError> {
        self.0.maintenance_step(session, Some(prefixes)).await.map(drop)
    }

    /// Chooses the prefix lengths by the accesses that were counted, and replaces the skip table if they are
    /// others; returns them. `None` if no length saves anything.
    ///
    /// # Errors
    /// As [`Dart::maintain`].
    pub async fn adjust(&self, session: &Session) -> Result<Option<Lengths>, IndexError> {
        self.0.adjust(session).await
    }
}

impl Engine for Dart {
    const NAME: &'static str = "dart";
    const ABOUT: &'static str =
        "radix tree of hashed nodes with a skip table: DART, PACMMOD/SIGMOD 2026";

    const TRAITS: Traits = Traits { cached: true, ..Traits::NONE };

    type Shape = DartShape;
    type Options = DartOptions;
    type Table = Dart;

    /// Cost: 1 WRITE.
    async fn create(
        session: &Session,
        table: &TableSpec<DartShape>,
    ) -> Result<GlobalAddr, IndexError> {
        word::check_reach(session)?;
        meta::create(session, number_of(table)).await
    }

    /// Cost: 1 READ.
    async fn open(
        session: &Session,
        table: &Stored<DartShape>,
        options: DartOptions,
        _join: &OpenOptions,
    ) -> Result<Dart, IndexError> {
        word::check_reach(session)?;
        meta::check(session.reliable(), table.meta, number_of(table)).await?;
        Ok(Dart(DartTree::new(session, table, options)))
    }

    /// Cost: 1 READ for each node, and for each leaf if its content matters.
    async fn walk(
        session: &Session,
        table: &Stored<DartShape>,
        visitor: &mut impl Visitor,
        report: &mut TableReport,
    ) -> Result<(), IndexError> {
        DartTree::new(session, table, DartOptions::default()).walk(session, visitor, report).await
    }

    /// Takes out the entries of objects that are about to be freed.
    ///
    /// Cost: 1 READ for each 16 KiB of the skip tables.
    async fn before_free(
        session: &Session,
        table: &Stored<DartShape>,
        marks: &Audit,
    ) -> Result<(), IndexError> {
        if KEEP_ENTRIES_OF_FREED.is_armed() {
            return Ok(());
        }
        let _pin = session.begin(OpKind::Other).await?;
        DartTree::new(session, table, DartOptions::default())
            .take_out_unmarked(session, marks)
            .await
    }
}

impl Index for Dart {
    async fn get(
        &self,
        session: &Session,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<bool, IndexError> {
        self.0.stored.spec.check_key(key)?;
        self.0.get(session, key, value).await
    }

    async fn change(
        &self,
        session: &Session,
        change: &Change<'_>,
        held: &mut Vec<u8>,
    ) -> Result<Outcome, IndexError> {
        self.0.check_pair(change.key, change.value)?;
        self.0.change(session, change, held).await
    }

    async fn scan(
        &self,
        session: &Session,
        range: ScanRange<'_>,
        limit: usize,
        out: &mut Entries,
    ) -> Result<(), IndexError> {
        self.0.scan(session, range, limit, out).await
    }

    async fn longest_prefix(
        &self,
        session: &Session,
        key: &[u8],
        out: &mut Entries,
    ) -> Result<(), IndexError> {
        self.0.longest_prefix(session, key, out).await
    }

    async fn bulk_load(
        &self,
        session: &Session,
        pairs: &mut impl SortedPairs,
    ) -> Result<u64, IndexError> {
        self.0.bulk_load(session, pairs).await
    }

    async fn verify(
        &self,
        session: &Session,
        audit: &mut Audit,
    ) -> Result<TableReport, IndexError> {
        self.0.stored.mark::<Dart>(session, audit, None).await
    }

    /// Waits for the maintenance of the skip table that this compute server has under way, which uses the table
    /// after the operation that began it.
    async fn close(&self, session: &Session) -> Result<(), IndexError> {
        self.0.maintenance_ended(session).await
    }

    fn cache(&self) -> Option<&dyn CacheControl> {
        Some(self)
    }

    fn counters(&self, counters: &mut CounterSet) {
        self.0.counters.all().into_iter().for_each(|(name, count)| counters.add(name, count));
    }

    fn parts(&self) -> Vec<String> {
        let lengths = self.0.known_tables.lengths();
        lengths.map(|lengths| format!("prefix lengths {lengths}")).into_iter().collect()
    }
}

/// Remembered entries, and the directory of the skip table.
impl CacheControl for Dart {
    fn resident_bytes(&self) -> u64 {
        self.0.cache.used().0 + self.0.known_tables.bytes()
    }
}
