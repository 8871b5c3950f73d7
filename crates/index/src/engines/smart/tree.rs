//! Tree: a table as one compute server sees it, its root, and waiting.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use farleaf_fabric::{Endpoint, GlobalAddr, OpError};
use farleaf_pool::{LockToken, PoolError, Session};

use super::cache::Cache;
use super::layout::{Life, META_MAGIC, META_ROOT, NodeType, Shape};
use super::leaf::MOVING;
use super::options::SmartOptions;
use crate::IndexError;
use crate::bnode::Layout;
use crate::detach::run_to_end;
use crate::sync::{Mutex, lock};

/// Attempts at one operation before it gives up.
const ATTEMPTS_MAX: u32 = 20_000;
/// Attempts that follow each other at once.
const ATTEMPTS_QUICK: u32 = 4;
/// After waiting so long on a lock, an operation looks whether its holder lives.
pub(super) const OWNER_CHECK_NS: u64 = 10_000_000;
/// After waiting so long on a lock, an operation gives up.
pub(super) const LOCK_WAIT_MAX_NS: u64 = 10_000_000_000;
/// First and longest wait between two tries.
const BACKOFF_NS: (u64, u64) = (1_000, 64_000);
/// Tries at a lock after which the longest wait doubles, and again after as many more, up to 4 ms.
const MANY_TRIES: u32 = 32;
/// Longest value in a leaf.
const INLINE_BYTES_MAX: usize = 1_024;

/// Why an attempt did not come to an end.
#[derive(Debug)]
pub(super) enum Fail {
    /// What it went by is out of date: begin again.
    Again,
    /// It failed for good.
    Error(IndexError),
}

impl From<IndexError> for Fail {
    fn from(error: IndexError) -> Self {
        Fail::Error(error)
    }
}

impl From<OpError> for Fail {
    fn from(error: OpError) -> Self {
        Fail::Error(error.into())
    }
}

impl From<PoolError> for Fail {
    fn from(error: PoolError) -> Self {
        Fail::Error(error.into())
    }
}

/// A table as one compute server sees it.
#[derive(Debug)]
pub(super) struct Tree {
    pub(super) meta: GlobalAddr,
    pub(super) layout: Layout,
    pub(super) shape: Shape,
    pub(super) options: SmartOptions,
    pub(super) cache: Cache,
    /// The root node as last seen: address and life.
    root: Mutex<Option<(GlobalAddr, Life)>>,
    /// Keys that this compute server has removed and whose leaves are still linked.
    pub(super) removed: Mutex<Vec<Vec<u8>>>,
    /// A task is unlinking.
    pub(super) unlinking: AtomicBool,
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
    /// Leaves whose dead holder's lock was taken over.
    pub(super) taken_over: AtomicU64,
    /// Nodes that were replaced, and replacements that another made first.
    pub(super) relocated: AtomicU64,
    pub(super) relocate_lost: AtomicU64,
    /// Leaves and edges that were split.
    pub(super) splits: AtomicU64,
    /// Dead leaves that were unlinked.
    pub(super) unlinked: AtomicU64,
}

impl Counts {
    /// The counts by name.
    pub(super) fn list(&self) -> [(&'static str, u64); 8] {
        [
            ("proven", &self.proven),
            ("unproven", &self.unproven),
            ("lock_lost", &self.lock_lost),
            ("taken_over", &self.taken_over),
            ("relocated", &self.relocated),
            ("relocate_lost", &self.relocate_lost),
            ("splits", &self.splits),
            ("unlinked", &self.unlinked),
        ]
        .map(|(name, count)| (name, count.load(Ordering::Relaxed)))
    }
}

/// Adds one.
pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Tree {
    pub(super) fn new(meta: GlobalAddr, layout: Layout, options: SmartOptions) -> Arc<Tree> {
        Arc::new(Tree {
            meta,
            layout,
            shape: Shape::of(&layout),
            options,
            cache: Cache::new(options.cache_bytes),
            root: Mutex::default(),
            removed: Mutex::default(),
            unlinking: AtomicBool::new(false),
            counts: Counts::default(),
        })
    }

    /// The root node as last seen.
    pub(super) fn known_root(&self) -> Option<(GlobalAddr, Life)> {
        *lock(&self.root)
    }

    /// Notes the root node that an operation has found.
    pub(super) fn note_root(&self, root: Option<(GlobalAddr, Life)>) {
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
        IndexError::Corrupt(format!("the object at {addr} of the table at {}: {what}", self.meta))
    }

    /// Longest value that stays in its leaf: a redo record has room for it.
    pub(super) fn inline_max(&self, session: &Session) -> usize {
        INLINE_BYTES_MAX.min(session.redo_bytes().saturating_sub(super::takeover::HEADER_BYTES))
    }

    /// The type of a new node.
    pub(super) fn first_type(&self) -> NodeType {
        self.shape.first
    }
}

/// Runs `task` to its end with a session that does not give up, whatever becomes of the caller.
///
/// # Errors
/// `OutcomeUnknown` if it takes longer than the caller waits.
pub(super) async fn finish<T: 'static>(
    session: &Session,
    task: impl AsyncFnOnce(Session) -> Result<T, IndexError> + 'static,
) -> Result<T, IndexError> {
    let patient = session.without_deadline();
    let task = Box::pin(async move { task(patient).await });
    run_to_end(session, task, ()).await.unwrap_or_else(|| {
        Err(IndexError::OutcomeUnknown(
            "a memory server cannot be reached; the change goes on once it can".into(),
        ))
    })
}

/// Counts attempts at one operation and spaces them out.
#[derive(Debug, Default)]
pub(super) struct Attempts(u32);

impl Attempts {
    /// Waits before one more attempt when there were some.
    pub(super) async fn again(&mut self, session: &Session) -> Result<(), IndexError> {
        self.0 += 1;
        if self.0 > ATTEMPTS_MAX {
            return Err(IndexError::Unavailable(format!(
                "gave up after {ATTEMPTS_MAX} attempts at one key, which others change all the time: try again"
            )));
        }
        if self.0 > ATTEMPTS_QUICK {
            backoff(session, self.0 - ATTEMPTS_QUICK, BACKOFF_NS.1).await;
        }
        Ok(())
    }
}

/// Waits 1 us to `most_ns`, doubling with `attempt`, jittered.
pub(super) async fn backoff(session: &Session, attempt: u32, most_ns: u64) {
    let most = (BACKOFF_NS.0 << attempt.min(16)).min(most_ns);
    let ns = most / 2 + session.endpoint().random() % (most / 2 + 1);
    session.endpoint().sleep(ns).await;
}

/// Waiting for the lock of a leaf that another has.
#[derive(Debug, Default)]
pub(super) struct LockWait {
    since_ns: u64,
    holder: u64,
    tries: u32,
    /// The holder that is known to be dead, and fenced.
    pub(super) dead: Option<u64>,
}

impl LockWait {
    /// Waits before one more look at the lock of the leaf at `addr`, which held `lock`.
    ///
    /// # Errors
    /// `Unavailable` if one holder keeps it too long.
    pub(super) async fn again(
        &mut self,
        session: &Session,
        addr: GlobalAddr,
        lock: u64,
    ) -> Result<(), IndexError> {
        let now_ns = session.endpoint().now_ns();
        if self.holder != lock {
            (self.since_ns, self.holder) = (now_ns, lock);
        }
        let waited_ns = now_ns - self.since_ns;
        if waited_ns >= OWNER_CHECK_NS && is_owner_dead(session, lock).await? {
            self.dead = Some(lock);
            return Ok(());
        }
        if waited_ns >= LOCK_WAIT_MAX_NS {
            return Err(locked_too_long(addr, lock));
        }
        let most_ns = BACKOFF_NS.1 << (self.tries / MANY_TRIES).min(6);
        backoff(session, self.tries, most_ns).await;
        self.tries += 1;
        Ok(())
    }
}

/// The token of a lock word, whether the leaf moves or not.
pub(super) fn owner(lock: u64) -> u64 {
    lock & !MOVING
}

/// Whether the holder of a lock is dead; then it is fenced.
pub(super) async fn is_owner_dead(session: &Session, lock: u64) -> Result<bool, IndexError> {
    let token = owner(lock);
    Ok(LockToken::from_word(token).is_some() && session.owner_is_dead(token).await?)
}

pub(super) fn locked_too_long(addr: GlobalAddr, lock: u64) -> IndexError {
    let holder = match LockToken::from_word(owner(lock)) {
        Some(token) => format!("compute server {} (client {})", token.member(), token.client()),
        None => format!("an unknown holder ({lock:#018x})"),
    };
    IndexError::Unavailable(format!(
        "the leaf at {addr} has been locked by {holder} for more than {} s: is that process stopped?",
        LOCK_WAIT_MAX_NS / 1_000_000_000
    ))
}
