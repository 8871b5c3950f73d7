//! Tree: a table as one compute server sees it, its root, and waiting.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use farleaf_fabric::GlobalAddr;
use farleaf_index::IndexError;
use farleaf_index::detach::{run_to_end, unfinished_change};
use farleaf_index::local::LockQueue;
use farleaf_index::local::key_queues::KeyQueues;
use farleaf_index::sync::{Mutex, lock};
use farleaf_index::{Spec, Stored};
use farleaf_pool::{LockToken, Session};

use super::cache::Cache;
use super::changes::LeafChanges;
use super::ladder::Ladder;
use super::layout::{FirstWord, META_MAGIC, META_ROOT, NodeForm, NodeType};
use super::leaf::MOVING;
use super::options::{SmartOptions, SmartShape};
use super::own_nodes::OwnRanges;

/// The name of a locked object in messages.
pub(super) const LEAF: &str = "the leaf at";
/// Longest value in a leaf.
const INLINE_BYTES_MAX: usize = 1_024;

/// Why an attempt did not come to an end.
#[derive(Debug)]
pub(super) enum Fail {
    /// A pointer that it went by is out of date: begin again.
    Again,
    /// It failed for good.
    Error(IndexError),
}

impl Fail {
    /// Returns the error of an operation that does not begin again; `why` says so.
    pub(super) fn or_unavailable(self, why: &str) -> IndexError {
        match self {
            Fail::Again => IndexError::Unavailable(why.into()),
            Fail::Error(error) => error,
        }
    }
}

impl<E: Into<IndexError>> From<E> for Fail {
    fn from(error: E) -> Self {
        Fail::Error(error.into())
    }
}

/// A table as one compute server sees it.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(super) meta: GlobalAddr,
    pub(super) spec: Spec,
    pub(super) shape: NodeForm,
    pub(super) options: SmartOptions,
    pub(super) cache: Cache,
    /// Changes of leaves that are under way, if ranges have owners.
    pub(super) leaf_changes: LeafChanges,
    /// The ownership of the table's ranges, if they have owners.
    pub(super) owner: Option<OwnRanges>,
    /// The root node as last seen: address and first word.
    root: Mutex<Option<(GlobalAddr, FirstWord)>>,
    /// The steps of the ladder.
    pub(super) ladder: Ladder,
    /// Tasks of this compute server that replace a node, by its address, beside those of the ladder.
    pub(super) lock_queue: Arc<LockQueue>,
    /// Keys that this compute server has removed and whose leaves are still linked.
    pub(super) removed: Mutex<Vec<Vec<u8>>>,
    /// A task is unlinking.
    pub(super) unlinking: AtomicBool,
    /// A task corrects hints or pointers back.
    #[cfg(feature = "figures")]
    pub(super) correcting: Arc<AtomicBool>,
    pub(super) queues: KeyQueues,
    pub(super) counts: Counts,
}

/// Counts of what operations met.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Leaves that a cached slot led to, and that proved it.
    pub(super) proven: AtomicU64,
    /// Leaves and nodes that a cached slot led to, and that proved nothing.
    pub(super) unproven: AtomicU64,
    /// Leaf locks that another had.
    pub(super) lock_lost: AtomicU64,
    /// Locks of the lock table that another had.
    pub(super) table_lock_lost: AtomicU64,
    /// Locks that went from one change of this compute server to the next.
    pub(super) passed: AtomicU64,
    /// Leaves whose dead holder's lock was taken over.
    pub(super) taken_over: AtomicU64,
    /// Nodes that were replaced, and replacements that another made first.
    pub(super) relocated: AtomicU64,
    pub(super) relocate_lost: AtomicU64,
    /// Nodes whose only child, or nothing, took their place.
    pub(super) nodes_removed: AtomicU64,
    /// Headers of nodes with reserved room that were grown.
    pub(super) grown: AtomicU64,
    /// Nodes that had more slots than the word that led to them said.
    pub(super) stale_hints: AtomicU64,
    /// Objects that did not name the slot that leads to them.
    pub(super) stale_back: AtomicU64,
    /// Leaves and edges that were split.
    pub(super) splits: AtomicU64,
    /// Dead leaves that were unlinked.
    pub(super) unlinked: AtomicU64,
    /// Gets that another's READ has answered.
    pub(super) gets_joined: AtomicU64,
    /// Changes that another operation has done or answered.
    pub(super) changes_joined: AtomicU64,
    /// WRITEs of several operations' changes.
    pub(super) batches: AtomicU64,
    /// Changes that were applied in those beside their leaders'.
    pub(super) collapsed: AtomicU64,
}

impl Counts {
    /// The counts by name.
    pub(super) fn list(&self) -> Vec<(&'static str, u64)> {
        [
            ("proven", &self.proven),
            ("unproven", &self.unproven),
            ("lock_lost", &self.lock_lost),
            ("table_lock_lost", &self.table_lock_lost),
            ("passed", &self.passed),
            ("taken_over", &self.taken_over),
            ("relocated", &self.relocated),
            ("relocate_lost", &self.relocate_lost),
            ("nodes_removed", &self.nodes_removed),
            ("grown", &self.grown),
            ("stale_hints", &self.stale_hints),
            ("stale_back", &self.stale_back),
            ("splits", &self.splits),
            ("unlinked", &self.unlinked),
            ("gets_joined", &self.gets_joined),
            ("changes_joined", &self.changes_joined),
            ("batches", &self.batches),
            ("collapsed", &self.collapsed),
        ]
        .into_iter()
        .map(|(name, count)| (name, count.load(Ordering::Relaxed)))
        .collect()
    }
}

/// Adds one.
pub(super) fn count(counter: &AtomicU64) {
    count_many(counter, 1);
}

/// Adds `more`.
pub(super) fn count_many(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

impl Tree {
    pub(super) fn new(
        table: &Stored<SmartShape>,
        options: SmartOptions,
        owner: Option<OwnRanges>,
    ) -> Arc<Tree> {
        let (shape, lock_queue) = (NodeForm::of(table), Arc::default());
        let ladder = Ladder::new(table.meta, &options, Arc::clone(&lock_queue));
        Arc::new(Tree {
            meta: table.meta,
            spec: table.spec,
            shape,
            options,
            cache: Cache::new(shape, options.cache_bytes, ladder.names()),
            leaf_changes: LeafChanges::new(),
            owner,
            root: Mutex::default(),
            ladder,
            lock_queue,
            removed: Mutex::default(),
            unlinking: AtomicBool::new(false),
            #[cfg(feature = "figures")]
            correcting: Arc::default(),
            queues: KeyQueues::new(options.batch_limit),
            counts: Counts::default(),
        })
    }

    /// The root node as last seen.
    pub(super) fn known_root(&self) -> Option<(GlobalAddr, FirstWord)> {
        *lock(&self.root)
    }

    /// Notes the root node that an operation has found.
    pub(super) fn note_root(&self, root: Option<(GlobalAddr, FirstWord)>) {
        *lock(&self.root) = root;
    }

    /// READs the meta object: the address of the root node.
    pub(super) async fn read_meta(&self, session: &Session) -> Result<GlobalAddr, IndexError> {
        let reliable = session.reliable();
        let buf = reliable.read(self.meta, reliable.buf(META_ROOT as usize + 8)).await?;
        let (magic, table) = (buf.words()[0], buf.words()[1]);
        let root = GlobalAddr::from_word(buf.words()[META_ROOT as usize / 8]);
        match root {
            Some(root)
                if magic == META_MAGIC && table == self.shape.table && root.offset() % 64 == 0 =>
            {
                Ok(root)
            }
            _ => Err(self.corrupt(self.meta, "the meta object is not that of this table")),
        }
    }

    /// Damage of the object at `addr`.
    pub(super) fn corrupt(&self, addr: GlobalAddr, what: &str) -> IndexError {
        corrupt(self.meta, addr, what)
    }

    /// Longest value that stays in its leaf: a redo record has room for it.
    pub(super) fn inline_max(&self, session: &Session) -> usize {
        inline_max(session)
    }

    /// The type of a new node.
    pub(super) fn first_type(&self) -> NodeType {
        self.shape.mode.first_type(self.ladder.types(), self.shape.first)
    }

    /// The type of a new node with so many slots.
    pub(super) fn holding(&self, slots: usize) -> NodeType {
        self.shape.mode.holding(self.ladder.types(), slots)
    }

    /// Runs `task` to its end with a session that does not give up, whatever becomes of the caller. In a table with
    /// owners it is inside the range guard.
    ///
    /// # Errors
    /// `OutcomeUnknown` if it takes longer than the caller waits.
    pub(super) async fn finish<T: 'static>(
        &self,
        session: &Session,
        task: impl AsyncFnOnce(Session) -> Result<T, IndexError> + 'static,
    ) -> Result<T, IndexError> {
        let patient = session.without_deadline();
        let inside = self.owner.as_ref().map(|owner| owner.enter_task(session));
        let task = Box::pin(async move { task(patient).await });
        run_to_end(session, task, inside)
            .await
            .unwrap_or_else(|| Err(unfinished_change("the change")))
    }
}

/// Damage of the object at `addr` of the table whose meta object is at `meta`.
pub(super) fn corrupt(meta: GlobalAddr, addr: GlobalAddr, what: &str) -> IndexError {
    IndexError::Corrupt(format!("the object at {addr} of the table at {meta}: {what}"))
}

/// Longest value that stays in its leaf.
pub(super) fn inline_max(session: &Session) -> usize {
    INLINE_BYTES_MAX.min(session.redo_bytes().saturating_sub(super::takeover::HEADER_BYTES))
}

/// The token of a lock word, whether the leaf moves or not.
pub(super) fn owner(lock: u64) -> u64 {
    lock & !MOVING
}

/// Returns whether the holder of a lock is dead; then it is fenced.
pub(super) async fn is_owner_dead(session: &Session, lock: u64) -> Result<bool, IndexError> {
    let token = owner(lock);
    Ok(LockToken::from_word(token).is_some() && session.owner_is_dead(token).await?)
}
