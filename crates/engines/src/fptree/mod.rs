//! FP-B+-tree: a B-link tree whose leaves have a line of fingerprints, the baseline of DMTree's paper.
//!
//! Source: DMTree, FAST 2026, sections 3.2 and 5: FP-B+-tree keeps the fingerprint table of each leaf beside the leaf, in
//! memory servers. A leaf has 32 unsorted slots. Its *line* of 64 bytes holds a fingerprint for each slot, a version and a
//! lock. So a point operation moves one line and one slot, not a leaf. Records {high fence, leaf, version} stand in an upper
//! tree, a B-link tree of the kit, and compute servers cache them; a line's version tells whether a record still holds.
//!
//! | operation, record cached | READ | WRITE | CAS | waits |
//! |---|---|---|---|---|
//! | get | 1 line, 1.08 slots | 0 | 0 | 2 |
//! | update | 1 line, 1.08 slots | 2 (1 without `write_vs_rmw`) | 1 (2) | 3 |
//! | insert | 1 line, 0.09 slots | 3 (2) | 1 (2) | 2 |
//! | remove | 1 line, 1.08 slots | 3 (2) | 1 (2) | 3 |
//!
//! Scans read the line of each leaf, then 1 or 2 runs of slots: 2 waits for `scan_window` leaves.
//!
//! A value of a fixed length of up to 240 bytes stands in its slot; if it is longer than 8, its update WRITEs a redo record
//! as well. A pair with another value, or with a key of more than 30 bytes, has a record of its own: 1 WRITE more for a change, 1
//! READ more for a get.
//!
//! # Invariants
//!
//! - `INV-FP-1` A slot that verifies, in a leaf that the tree reaches, is the one pair of its key; or its key's other copy
//!   is equal and cannot change meanwhile (split). Leaves tile the key space.
//! - `INV-FP-2` If a line has its leaf's version, each valid slot's fingerprint is in it. A fingerprint is in the line
//!   before its slot is valid, and leaves it after. So a line without a match proves a key absent.
//! - `INV-FP-3` Slots change under the leaf's lock alone. A lock word is a lock word or unused, for ever.
//! - `INV-FP-4` Leaf and version name a range that only grows. It shrinks only together with the version, which stands in
//!   the header, the line, every slot and the record. No version is used twice in a table.
//! - `INV-FP-5` A new leaf is written and locked before anything leads to it, and unlocked only when the old copies are
//!   gone and the old line has its new version.
//! - `INV-FP-6` A leaf that a merge takes in is empty under a version that no record has, and so is its line, before its
//!   left neighbour is unlocked. It is retired after that.
//! - `INV-FP-7` A header counts for a cached record if the leaf was born no later than the record was seen
//!   (`INV-EPOCH-6`): else the address may have been used again.
//!
//! `docs/design/fptree.md` describes the design, `docs/papers/fptree.md` what differs from the paper.

mod bulk;
mod cache;
mod delegation;
pub(crate) mod homed;
pub(crate) mod homed_options;
mod homes;
#[cfg(feature = "lab")]
mod lab;
mod layout;
mod line;
mod lines;
mod locate;
mod merge;
mod ops;
mod options;
mod partitioned;
mod proofs;
mod records;
mod redo;
mod replicas;
mod rescue;
mod scan;
mod split;
mod verify;

use std::sync::Arc;

use farleaf_fabric::{Endpoint, GlobalAddr, OpKind, ServerId};
use farleaf_index::blink::BlinkTree;
use farleaf_index::bnode::{LeafEntry, Value};
use farleaf_index::compute::partitions::ack_bytes;
use farleaf_index::engine::{Engine, Traits};
use farleaf_index::local::key_queues::KeyQueues;
use farleaf_index::sync::{AtomicU64, Mutex, Ordering, lock};
use farleaf_index::{
    BlinkOptions, CacheControl, Change, CounterSet, Entries, Index, IndexError, OpenOptions,
    Outcome, ScanRange, SortedPairs, Stored, TableReport, TableSpec, Visitor,
};
use farleaf_pool::{Audit, Recovery, Session, Unlinked};

use cache::{LeafRecord, RecordCache};
use homes::{LinePlace, Op, Parts};
use layout::{Fence, Header, LeafShape};
use line::Line;
use lines::Lines;
pub use options::{FpTreeOptions, FpTreeShape};
use redo::LeafRedo;

/// Bytes of the meta object: four lines, so that no two words share one.
const META_BYTES: usize = 256;
const META_TAG: u64 = u64::from_le_bytes(*b"FLfptre1");
/// Words of the meta object: the upper tree's meta object, the directory of lines.
const META_UPPER: usize = 1;
const META_DIRECTORY: usize = 2;
/// The acknowledgements of a table with partitions.
const META_ACKS: usize = 3;
/// Offset of the counter of versions.
const META_VERSIONS: u64 = 64;
/// Versions that a compute server takes at once.
const VERSIONS: u64 = 1 << 20;

/// A table of this engine.
#[derive(Clone, Debug)]
pub struct FpTree(Arc<LeafTree>);

/// One table as one compute server sees it.
#[derive(Debug)]
struct LeafTree {
    stored: Stored<FpTreeShape>,
    shape: LeafShape,
    options: FpTreeOptions,
    upper: Arc<BlinkTree>,
    lines: Lines,
    /// Of a table whose lines lie on compute servers.
    parts: Option<Parts>,
    cache: RecordCache,
    queues: KeyQueues,
    /// The next version, and the end of those that this compute server has taken.
    versions: Mutex<(u64, u64)>,
    counts: FpTreeCounts,
}

#[derive(Debug, Default)]
struct FpTreeCounts {
    splits: AtomicU64,
    merges: AtomicU64,
    rescued: AtomicU64,
    header_refreshes: AtomicU64,
    gets_joined: AtomicU64,
    changes_joined: AtomicU64,
    batches: AtomicU64,
    collapsed: AtomicU64,
    built: AtomicU64,
    replica_hits: AtomicU64,
    replicas_behind: AtomicU64,
    line_proofs: AtomicU64,
    leaf_proofs: AtomicU64,
    failed_over: AtomicU64,
    speculated: AtomicU64,
}

impl FpTreeCounts {
    /// Those of a table whose lines lie on compute servers alone.
    fn list_homed(&self) -> [(&'static str, &AtomicU64); 7] {
        [
            ("lines_built", &self.built),
            ("replica_hits", &self.replica_hits),
            ("replicas_behind", &self.replicas_behind),
            ("line_proofs", &self.line_proofs),
            ("leaf_proofs", &self.leaf_proofs),
            ("failed_over", &self.failed_over),
            ("speculated", &self.speculated),
        ]
    }

    fn list(&self) -> [(&'static str, &AtomicU64); 8] {
        [
            ("splits", &self.splits),
            ("merges", &self.merges),
            ("rescued", &self.rescued),
            ("header_refreshes", &self.header_refreshes),
            ("gets_joined", &self.gets_joined),
            ("changes_joined", &self.changes_joined),
            ("batches", &self.batches),
            ("collapsed", &self.collapsed),
        ]
    }
}

fn count_if(is_so: bool, counter: &AtomicU64) {
    count_many(counter, u64::from(is_so));
}

fn count(counter: &AtomicU64) {
    count_many(counter, 1);
}

fn count_many(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

/// The meta object of a table, as far as both kinds of table have it.
struct MetaObject {
    upper: GlobalAddr,
    directory: GlobalAddr,
    /// A further address, of the other kind; null if it has none.
    acks: GlobalAddr,
}

/// READs the meta object at `meta`, which begins with `tag`. 1 READ.
///
/// # Errors
/// `Corrupt` if there is none.
async fn read_meta(
    session: &Session,
    (meta, tag, engine): (GlobalAddr, u64, &str),
) -> Result<MetaObject, IndexError> {
    let reliable = session.reliable();
    let object = reliable.read(meta, reliable.buf(META_BYTES)).await?;
    let words = object.words();
    let addr =
        |index: usize| GlobalAddr::from_word(words[index]).filter(|at| at.offset() % 64 == 0);
    let linked = |index: usize| addr(index).filter(|addr| !addr.is_null());
    match (linked(META_UPPER), linked(META_DIRECTORY), addr(META_ACKS)) {
        (Some(upper), Some(directory), Some(acks)) if words[0] == tag => {
            Ok(MetaObject { upper, directory, acks })
        }
        _ => Err(IndexError::Corrupt(format!("no meta object of engine {engine} is at {meta}"))),
    }
}

impl LeafTree {
    /// Cost: 1 READ.
    async fn open(
        session: &Session,
        table: &Stored<FpTreeShape>,
        options: FpTreeOptions,
    ) -> Result<Arc<LeafTree>, IndexError> {
        let shape = LeafShape::new(&table.spec, &table.shape, table.number)?;
        let meta = read_meta(session, (table.meta, META_TAG, FpTree::NAME)).await?;
        Ok(Arc::new(LeafTree::with(table, shape, options, &meta, None)))
    }

    fn with(
        table: &Stored<FpTreeShape>,
        shape: LeafShape,
        options: FpTreeOptions,
        meta: &MetaObject,
        parts: Option<Parts>,
    ) -> LeafTree {
        let upper_options =
            BlinkOptions { bulk_fill: options.bulk_fill, ..BlinkOptions::default() };
        LeafTree {
            upper: BlinkTree::open(meta.upper, shape.upper, upper_options),
            lines: Lines::new(meta.directory, shape.tree, shape.leaf_bytes),
            parts,
            cache: RecordCache::new(options.cache_bytes),
            queues: KeyQueues::new(options.batch_limit),
            versions: Mutex::new((0, 0)),
            counts: FpTreeCounts::default(),
            stored: *table,
            options,
            shape,
        }
    }

    /// A version that no leaf of the table has had. 1 FAA for every million.
    async fn next_version(&self, session: &Session) -> Result<u64, IndexError> {
        loop {
            {
                let mut versions = lock(&self.versions);
                if versions.0 < versions.1 {
                    versions.0 += 1;
                    return Ok(versions.0);
                }
            }
            let at = self.stored.meta.plus(META_VERSIONS);
            let start = take_versions(session, at).await?;
            *lock(&self.versions) = (start, start + VERSIONS - 1);
        }
    }

    fn corrupt(&self, what: &str) -> IndexError {
        IndexError::Corrupt(format!("the table at {}: {what}", self.stored.meta))
    }
}

/// Takes a part of the versions; one whose completion is lost is skipped.
async fn take_versions(session: &Session, at: GlobalAddr) -> Result<u64, IndexError> {
    let reliable = session.reliable();
    let mut tries = farleaf_pool::Tries::default();
    loop {
        let mark = reliable.post_mark();
        match reliable.client().faa(at, VERSIONS).await {
            Ok(start) => return Ok(start),
            Err(error) => reliable.again(&mut tries, mark, error).await?,
        }
    }
}

/// The objects of a table that nobody knows of yet; freed when dropped, unless they are kept.
struct CreatedTree {
    meta: Unlinked,
    directory: Unlinked,
    leaf: Unlinked,
    acks: Option<Unlinked>,
}

impl CreatedTree {
    fn keep(&self) {
        [&self.meta, &self.directory, &self.leaf].into_iter().for_each(Unlinked::keep);
        self.acks.iter().for_each(Unlinked::keep);
    }

    /// Nobody has come to know of it after all.
    fn unkeep(&self) {
        [&self.meta, &self.directory, &self.leaf].into_iter().for_each(Unlinked::unkeep);
        self.acks.iter().for_each(Unlinked::unkeep);
    }
}

/// Makes an empty table of engine `engine`. Without `has_line` its lines lie on compute servers: they are made when they are
/// needed.
async fn create_leaf_tree(
    session: &Session,
    shape: &LeafShape,
    (tag, engine): (u64, &str),
    has_line: bool,
) -> Result<CreatedTree, IndexError> {
    let client = session.client();
    let words = lines::directory_words(session.pool().geometry(), shape.leaf_bytes);
    let most = session.pool().geometry().object_bytes_max();
    if words * 8 > most {
        return Err(IndexError::Invalid(format!(
            "engine {engine}: a directory of {words} parts of this pool takes {} bytes, its largest object has {most}: \
             format it with larger blocks",
            words * 8
        )));
    }
    let meta = session.alloc_unlinked(session.place(), META_BYTES).await?;
    let directory = session.alloc_unlinked(session.place(), words * 8).await?;
    let mut zero = client.buf(words * 8);
    zero.words_mut().fill(0);
    directory.write(zero).await?;
    let acks = match has_line {
        true => None,
        false => {
            let bytes = ack_bytes(session.pool());
            let acks = session.alloc_unlinked(session.place(), bytes).await?;
            let mut zero = client.buf(bytes);
            zero.words_mut().fill(0);
            acks.write(zero).await?;
            Some(acks)
        }
    };
    let leaf = session.alloc_unlinked(session.place(), shape.leaf_bytes).await?;
    let lines = Lines::new(directory.addr(), shape.tree, shape.leaf_bytes);
    let at = match has_line {
        true => Some(LinePlace::in_pool(lines.of_new(session, leaf.addr()).await?)),
        false => None,
    };
    let version = 1;
    let mut image = client.buf(shape.leaf_bytes);
    let birth = session.epoch();
    let (low, high, is_dead) = (Fence::Open, Fence::Open, false);
    let header = Header { version, right: 0, birth, is_dead, low, high };
    shape.put_header(leaf.addr(), &header, image.bytes_mut());
    shape.clear_all(leaf.addr(), image.bytes_mut(), version);
    leaf.write(image).await?;
    if let Some(at) = at {
        let line = Line::empty(version).encode(session, shape.tree, at);
        session.reliable().write(at.at, line).await?;
    }
    let value = LeafRecord { leaf: leaf.addr(), version }.value();
    let (largest, value) = (shape.largest(), Value::Inline(&value));
    let entries = [LeafEntry { key: &largest, value }];
    let upper = match BlinkTree::create_with(session, &shape.upper, &entries).await {
        Ok(upper) => upper,
        Err(error) => {
            let bytes = lines::table_bytes(session.pool().geometry(), shape.leaf_bytes);
            lines.known().for_each(|table| session.free_unpublished(table, bytes));
            return Err(error);
        }
    };
    let mut object = client.buf(META_BYTES);
    object.words_mut().fill(0);
    object.words_mut()[0] = tag;
    if let Some(acks) = &acks {
        object.words_mut()[META_ACKS] = acks.addr().word();
    }
    object.words_mut()[META_UPPER] = upper.word();
    object.words_mut()[META_DIRECTORY] = directory.addr().word();
    object.words_mut()[META_VERSIONS as usize / 8] = version + 1;
    meta.write(object).await?;
    Ok(CreatedTree { meta, directory, leaf, acks })
}

impl Engine for FpTree {
    const NAME: &'static str = "fptree";
    const ABOUT: &'static str = "FP-B+-tree: leaves with fingerprint tables in memory servers; baseline of DMTree, FAST 2026";

    const TRAITS: Traits = Traits { cached: true, ..Traits::NONE };

    type Shape = FpTreeShape;
    type Options = FpTreeOptions;
    type Table = FpTree;

    /// Cost: 5 WRITEs of objects, 1 for a line, and what finding memory costs.
    async fn create(
        session: &Session,
        table: &TableSpec<FpTreeShape>,
    ) -> Result<GlobalAddr, IndexError> {
        let shape = LeafShape::new(&table.spec, &table.shape, table.number)?;
        let made = create_leaf_tree(session, &shape, (META_TAG, FpTree::NAME), true).await?;
        made.keep();
        Ok(made.meta.addr())
    }

    /// Cost: 1 READ.
    async fn open(
        session: &Session,
        table: &Stored<FpTreeShape>,
        options: FpTreeOptions,
        _join: &OpenOptions,
    ) -> Result<FpTree, IndexError> {
        Ok(FpTree(LeafTree::open(session, table, options).await?))
    }

    /// Cost: 1 READ for each node and record, 3 for each leaf.
    async fn walk(
        session: &Session,
        table: &Stored<FpTreeShape>,
        visitor: &mut impl Visitor,
        report: &mut TableReport,
    ) -> Result<(), IndexError> {
        let tree = LeafTree::open(session, table, FpTreeOptions::default()).await?;
        tree.walk_all(session, visitor, report).await
    }

    /// Finishes the splits of the dead: their records are zeroed when the recovery ends.
    ///
    /// Cost: 1 READ for each memory server and dead client.
    async fn redo_dead(
        session: &Session,
        table: &Stored<FpTreeShape>,
        recovery: &Recovery,
    ) -> Result<(), IndexError> {
        let _pin = session.begin(OpKind::Maintenance).await?;
        let tree = LeafTree::open(session, table, FpTreeOptions::default()).await?;
        let op = Op::in_pool(session);
        for &client in recovery.clients() {
            for server in 0..session.endpoint().server_count() {
                let area = recovery.redo_addr(ServerId(server as u16), client);
                match tree.read_redo(session, area).await? {
                    Some(LeafRedo::Pending(pending)) => tree.finish_left(&op, &pending).await?,
                    Some(LeafRedo::Update(update)) => {
                        let leaf = update.leaf.leaf;
                        let at = tree.line_of(&op, leaf).await?;
                        if tree.read_line(&op, at).await?.1 == update.token {
                            tree.rescue(&op, (leaf, at), update.token).await?;
                        }
                    }
                    None => {}
                }
            }
        }
        Ok(())
    }
}

impl Index for FpTree {
    async fn get(
        &self,
        session: &Session,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<bool, IndexError> {
        self.0.shape.spec.check_key(key)?;
        let _pin = session.begin(OpKind::Get).await?;
        self.0.get_delegated(&Op::in_pool(session), key, value).await
    }

    async fn change(
        &self,
        session: &Session,
        change: &Change<'_>,
        held: &mut Vec<u8>,
    ) -> Result<Outcome, IndexError> {
        self.0.shape.spec.check_change(change)?;
        let _pin = session.begin(change.kind).await?;
        self.0.change_combined(&Op::in_pool(session), change, held).await
    }

    async fn scan(
        &self,
        session: &Session,
        range: ScanRange<'_>,
        limit: usize,
        out: &mut Entries,
    ) -> Result<(), IndexError> {
        let _pin = session.begin(OpKind::Scan).await?;
        self.0.scan_range(&Op::in_pool(session), range, limit, out).await
    }

    async fn bulk_load(
        &self,
        session: &Session,
        pairs: &mut impl SortedPairs,
    ) -> Result<u64, IndexError> {
        let _pin = session.begin(OpKind::BulkLoad).await?;
        self.0.load(session, pairs).await
    }

    async fn verify(
        &self,
        session: &Session,
        audit: &mut Audit,
    ) -> Result<TableReport, IndexError> {
        self.0.stored.mark::<FpTree>(session, audit, None).await
    }

    fn cache(&self) -> Option<&dyn CacheControl> {
        Some(self)
    }

    fn counters(&self, counters: &mut CounterSet) {
        for (name, counter) in self.0.counts.list() {
            counters.add(name, counter.load(Ordering::Relaxed));
        }
    }
}

impl CacheControl for FpTree {
    fn resident_bytes(&self) -> u64 {
        self.0.cache.bytes()
    }
}
