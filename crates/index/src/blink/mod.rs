//! Remote B-link tree: all compute servers read nodes without locks and change them under remote locks.
//!
//! Every operation reads every level remotely. A client caches only the root's address, and only as
//! long as the pool's epoch stands still. Nodes carry both fences and their right sibling, so that a
//! reader that arrives by an old pointer moves right. Readers take no lock. A READ of a node is
//! accepted if its checksum fits: the checksum covers all words but the lock, and the version, so that
//! the words are those of one published image, which was current at some moment of the READ. This is
//! the only rule that fabric contract F1 leaves with one READ per level.
//!
//! Writers lock one node by a CAS that is chained to the READ of its content, change the private
//! copy, and write it back in one chain with the unlock.
//!
//! | operation, tree of height h | READ | WRITE | CAS | round trips |
//! |---|---|---|---|---|
//! | get | h | 0 | 0 | h |
//! | update, insert, upsert, remove | h | 2 | 1 | h + 1 |
//! | the same, changing more than one word, on a fabric where a dying writer can leave half a WRITE | h | 3 | 1 | h + 1 |
//! | the same, without `write_vs_rmw` | h | 1 less | 1 more | h + 1 |
//! | the same, changing nothing (`insert` of a present key) | h | 1 | 1 | h + 1 |
//!
//! The third WRITE is a redo record (see `redo`), in the same chain. Splits, merges and records
//! outside of nodes add to this; `docs/design/btree.md` has the full table.
//!
//! # Invariants
//!
//! - `INV-BT-1` Nodes of a level tile the key space: the first has no low fence, each next one's
//!   low fence is its left neighbour's high fence, the last has no high fence.
//! - `INV-BT-2` A node is written in whole before anything points to it. So remote memory is a
//!   valid B-link tree at every moment.
//! - `INV-BT-3` A node's low fence never changes while it lives; its high fence changes only under
//!   its lock, together with its right sibling.
//! - `INV-BT-4` Every child of an inner node is alive, one level below, and its low fence is the
//!   separator to its left. A node may lack a separator for some of the nodes to the right of its
//!   children (an unfinished split); an operation that moves right because of it adds the separator.
//! - `INV-BT-5` A node's content changes only under its lock, by a WRITE that leaves the lock word
//!   out. The lock word names its holder; it is 0 when free and `DEAD` once the node is.
//! - `INV-BT-6` Under a lock, a WRITE that changes more than one payload word, and that can be cut
//!   short by a death, follows a complete redo record under the same token.
//! - `INV-BT-7` The holder of one node's lock waits for another only from parent to child and from left
//!   to right, and only by trying. So there is no deadlock.
//! - `INV-BT-8` After a client has posted a WRITE to a linked node or the root word, it posts it again
//!   until it has happened and its lock is released. If the caller does not wait, a task does so.

mod age;
mod bulk;
mod edit;
mod grow;
mod hops;
#[cfg(feature = "lab")]
pub mod lab;
mod leaf;
mod leaf_shape;
mod lock;
mod lock_table;
mod merge;
mod neighbourhood;
mod own_leaves;
mod read;
mod records;
mod redo;
mod remembered;
pub mod remote;
mod scan;
mod shape;
mod slot_change;
mod split;
mod verify;
mod write;

pub use edit::{Edit, LeafPairs};
pub use leaf_shape::{GuardedShape, TreeLayouts, lock_words};
pub use neighbourhood::{HopscotchCounts, HopscotchOptions, PointRead};
pub use own_leaves::{LeafOwner, LeafRule, OwnLeaves};
pub use redo::{ENGINE_REDO_BYTES, redo_bytes_beside};
pub use remembered::RememberOptions;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8};

use farleaf_fabric::GlobalAddr;
use farleaf_pool::Session;

use crate::bnode::{GuardedLayout, Layout, LeafEntry};
use crate::change::Change;
use crate::detach::run_to_end;
use crate::local::LockQueue;
use crate::{IndexError, KnobKind};
use lock_table::LockTables;
use neighbourhood::Hopscotch;
use remembered::Remembered;

/// The seeded bugs of B-link trees.
pub mod canaries {
    pub use super::grow::GROW_FROM_OLD_ROOT;
    pub use super::hops::{HOPS_IN_ONE_CHAIN, HOPS_UNRECORDED};
    pub use super::leaf::{BELIEVE_OLD_POINTER, SCAN_UNCOUNTED};
    pub use super::lock::{ANSWER_BEFORE_WRITE, UNLOCK_BEFORE_WRITE};
    pub use super::merge::UNLOCK_RIGHT_EARLY;
    pub use super::neighbourhood::{ABSENT_AT_ONCE, LEARN_FOR_SIBLING, SPECULATE_BY_KEY};
    pub use super::own_leaves::MERGE_ACROSS_BOUND;
    pub use super::read::ACCEPT_TORN;
    pub use super::redo::{
        LOSE_REDO_RECORD, OPEN_UNFINISHED, REDO_OF_ANY_TOKEN, SIBLING_TAKEN_ALONE,
    };
    pub use super::scan::SCAN_BACK;
    pub use super::slot_change::LOSE_LEAF_REDO;
    pub use super::split::{DROP_SIBLING, PUBLISH_OLD_FIRST, SEPARATOR_UNCHECKED};
    pub use super::write::{COMPARE_UNLOCKED, FORGET_RETIRE, SKIP_COVER_CHECK};
}

/// Bytes of the meta object: four lines, so that no two words share one.
pub(crate) const META_BYTES: usize = 256;
/// Offset of the root word: address of the root, its level in the low 6 bits.
const META_ROOT: u64 = 64;
/// Offset of the lock of the root word.
pub const META_ROOT_LOCK: u64 = 128;
/// Word of the meta object that names the directory of lock tables, where nodes are locked by them.
const META_LOCKS: usize = 28;
/// Lowest bits of an address, which are 0: objects lie at multiples of 64 bytes.
const LEVEL_MASK: u64 = 63;

/// Lock word of a node that has been merged away.
const DEAD: u64 = 0x7fff_dead_dead_dead;

crate::knobs! {
    /// Settings of a remote B-link tree.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct BlinkOptions {
        /// Share of a node that a bulk load fills; 0.7 leaves room as random inserts do.
        "bulk_fill" => bulk_fill: f64 = 0.7, KnobKind::Share;
        /// A node that is filled below this share is merged with a neighbour, if the sum is at most `merge_sum`.
        "merge_low" => merge_low: f64 = 0.25, KnobKind::Share;
        /// Share of a node that two nodes may fill together to be merged.
        "merge_sum" => merge_sum: f64 = 0.75, KnobKind::Share;
        /// Most leaves that a scan reads at once.
        "scan_batch" => scan_batch: usize = 16, KnobKind::Count { min: 1, max: 256, unit: "leaves" };
    }
}

/// One remote tree as one compute server sees it.
#[derive(Debug)]
pub struct BlinkTree {
    layout: Layout,
    /// The leaves, if their slots have checks of their own.
    guarded: Option<GuardedLayout>,
    /// Copies of nodes, and lock tables, if this compute server finds leaves by copies.
    remembered: Option<Remembered>,
    /// Hints and counts, if leaves have neighbourhoods.
    hopscotch: Option<Hopscotch>,
    options: BlinkOptions,
    meta: GlobalAddr,
    root: read::RememberedRoot,
    /// Nodes up to this level, less 1, lie on their children's memory server; 0 if they may lie
    /// anywhere, as in a table of this engine's own.
    placed: AtomicU8,
    /// Owners write exclusive nodes without the remote lock. Then every change of a node has a redo record: a
    /// node without one, whose holder is dead, is untouched, and whoever unlocks it writes nothing.
    has_owners: bool,
    /// The meta object says that some nodes lie elsewhere.
    is_loose: AtomicBool,
    /// Tasks of this compute server that want the lock of one node, by its address.
    lock_queue: Arc<LockQueue>,
}

/// Why an attempt did not come to an end.
#[derive(Debug)]
enum BlinkFail {
    /// The way to the node was out of date: begin again at the root.
    Restart,
    /// It failed for good.
    Error(IndexError),
}

impl<E: Into<IndexError>> From<E> for BlinkFail {
    fn from(error: E) -> Self {
        BlinkFail::Error(error.into())
    }
}

impl BlinkTree {
    /// Makes the remote structure of an empty tree; returns the address of its meta object.
    ///
    /// Cost: 2 WRITEs, 2 round trips.
    ///
    /// # Errors
    /// `Full` if the pool has no room.
    pub async fn create(session: &Session, layout: &Layout) -> Result<GlobalAddr, IndexError> {
        BlinkTree::create_with(session, layout, &[]).await
    }

    /// As [`BlinkTree::create`], of a tree that holds `entries`, which one leaf has room for.
    ///
    /// # Errors
    /// As [`BlinkTree::create`].
    pub async fn create_with(
        session: &Session,
        layout: &Layout,
        entries: &[LeafEntry<'_>],
    ) -> Result<GlobalAddr, IndexError> {
        grow::create(session, layout, entries).await
    }

    /// The tree whose meta object is at `meta`. No remote operation.
    pub fn open(meta: GlobalAddr, layout: Layout, options: BlinkOptions) -> Arc<Self> {
        Arc::new(BlinkTree::with(meta, layout, options, false))
    }

    fn with(meta: GlobalAddr, layout: Layout, options: BlinkOptions, has_owners: bool) -> Self {
        let (root, placed, is_loose, lock_queue) = Default::default();
        let (guarded, remembered, hopscotch) = (None, None, None);
        BlinkTree {
            layout,
            guarded,
            remembered,
            hopscotch,
            options,
            meta,
            root,
            placed,
            has_owners,
            is_loose,
            lock_queue,
        }
    }

    /// Makes the remote structure of an empty tree that compute servers find leaves of by remembered pointers, with lock
    /// tables of about `lock_words` words on each memory server, and guarded leaves if `guarded`. Returns the address of its
    /// meta object.
    ///
    /// Cost: 1 WRITE for each memory server, and 3.
    ///
    /// # Errors
    /// `Full` if the pool has no room.
    pub async fn create_remembered(
        session: &Session,
        layout: &Layout,
        guarded: Option<&GuardedLayout>,
        lock_words: u32,
    ) -> Result<GlobalAddr, IndexError> {
        grow::create_remembered(session, layout, guarded, lock_words).await
    }

    /// Opens the tree whose meta object is at `meta`, which [`BlinkTree::create_remembered`] has made.
    ///
    /// Cost: 2 READs.
    ///
    /// # Errors
    /// `Corrupt` if no such tree is there.
    pub async fn open_remembered(
        session: &Session,
        meta: GlobalAddr,
        layout: Layout,
        guarded: Option<GuardedLayout>,
        options: BlinkOptions,
        remember: RememberOptions,
    ) -> Result<Arc<Self>, IndexError> {
        let rule = LeafRule::Shared;
        BlinkTree::open_ruled(session, meta, layout, guarded, (options, remember, rule)).await
    }

    /// As [`BlinkTree::open_remembered`], where the guarded leaves may have owners.
    ///
    /// # Errors
    /// As [`BlinkTree::open_remembered`].
    pub async fn open_ruled(
        session: &Session,
        meta: GlobalAddr,
        layout: Layout,
        guarded: Option<GuardedLayout>,
        rules: (BlinkOptions, RememberOptions, LeafRule),
    ) -> Result<Arc<Self>, IndexError> {
        Ok(Arc::new(BlinkTree::open_locked(session, meta, layout, guarded, rules).await?))
    }

    /// As [`BlinkTree::open_remembered`], of a tree whose leaves have neighbourhoods if their layout says so. Such leaves
    /// are never passed on with their lock.
    ///
    /// Cost: 2 READs.
    ///
    /// # Errors
    /// As [`BlinkTree::open_remembered`].
    pub async fn open_hopscotch(
        session: &Session,
        meta: GlobalAddr,
        (layout, guarded): (Layout, Option<GuardedLayout>),
        options: BlinkOptions,
        remember: RememberOptions,
        hopscotch: HopscotchOptions,
    ) -> Result<Arc<Self>, IndexError> {
        let hops = guarded.as_ref().is_some_and(GuardedLayout::is_hopscotch);
        let hand_image = remember.hand_image && !hops;
        let remember = RememberOptions { hand_image, ..remember };
        let rules = (options, remember, LeafRule::Shared);
        let open = BlinkTree::open_locked(session, meta, layout, guarded, rules);
        let mut tree = open.await?;
        tree.hopscotch = hops.then(|| Hopscotch::new(hopscotch));
        Ok(Arc::new(tree))
    }

    async fn open_locked(
        session: &Session,
        meta: GlobalAddr,
        layout: Layout,
        guarded: Option<GuardedLayout>,
        (options, remember, rule): (BlinkOptions, RememberOptions, LeafRule),
    ) -> Result<Self, IndexError> {
        let reliable = session.reliable();
        let object = reliable.read(meta, reliable.buf(META_BYTES)).await?;
        let directory = GlobalAddr::from_word(object.words()[META_LOCKS]);
        let directory = directory.filter(|it| !it.is_null() && it.offset().is_multiple_of(64));
        let (Some(directory), grow::MAGIC) = (directory, object.words()[0]) else {
            return Err(IndexError::Corrupt(format!(
                "the object at {meta} is no meta object of a tree with lock tables"
            )));
        };
        let locks = LockTables::open(session, directory, layout.tree()).await?;
        let mut tree = BlinkTree::with(meta, layout, options, false);
        // Copies of parents have a word for each child.
        let hops = guarded.as_ref().is_some_and(GuardedLayout::is_hopscotch);
        let notes = if hops { 8 * (layout.inner_cap() + 1) } else { 0 };
        tree.remembered = Some(Remembered::new(locks, remember, layout.node_bytes() + notes, rule));
        tree.guarded = guarded;
        Ok(tree)
    }

    /// Bytes of hints to slots of leaves.
    pub fn hint_bytes(&self) -> u64 {
        self.hopscotch.as_ref().map_or(0, Hopscotch::hint_bytes)
    }

    /// Drops all copies of nodes.
    pub fn forget_copies(&self) {
        if let Some(remembered) = &self.remembered {
            remembered.nodes.clear();
        }
        self.root.forget();
    }

    /// The address of the meta object.
    pub fn meta(&self) -> GlobalAddr {
        self.meta
    }

    /// Geometry of the nodes.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Levels of the tree as last seen: 1 for a lone leaf, 0 if nobody looked yet.
    fn height_seen(&self) -> u64 {
        match self.root.word() {
            0 => 0,
            word => (word & LEVEL_MASK) + 1,
        }
    }

    /// Refuses a key that the table's format does not take.
    ///
    /// # Errors
    /// `Invalid`.
    pub fn check_key(&self, key: &[u8]) -> Result<(), IndexError> {
        self.layout.spec().check_key(key)
    }

    /// Refuses a change whose key or value the table's format does not take.
    ///
    /// # Errors
    /// `Invalid`.
    pub fn check_change(&self, change: &Change<'_>) -> Result<(), IndexError> {
        self.check_key(change.key)?;
        change.value.map_or(Ok(()), |value| self.layout.spec().check_value(value))
    }

    /// Returns whether changes of one key may be written together: leaves are guarded.
    pub fn combines_changes(&self) -> bool {
        self.guarded.is_some()
    }

    /// [`run_to_end`] with a session that does not give up.
    fn detach<T: 'static>(
        session: &Session,
        task: impl AsyncFnOnce(Session) -> T + 'static,
    ) -> impl Future<Output = Option<T>> {
        let patient = session.without_deadline();
        run_to_end(session, Box::pin(async move { task(patient).await }), ())
    }
}
