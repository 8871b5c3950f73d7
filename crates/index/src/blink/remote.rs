//! Remote tree: gives caching engines single objects of the tree, and work on the whole tree at rest.
//!
//! Such an engine keeps the tree's nodes, meta object and records as they are here, so that
//! `verify`, `destroy` and loading are these.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use farleaf_fabric::{Buf, GlobalAddr};
use farleaf_pool::Session;

pub use super::bulk::NewTree;
use super::read::Unfinished;
use super::{BlinkFail, BlinkOptions, BlinkTree, LEVEL_MASK, META_ROOT};
use crate::IndexError;
use crate::bnode::{ChangeError, Layout, NodeMut, RecordRef};
use crate::change::{Change, Outcome};
use crate::retry::{Attempts, RetryPolicy, backoff};

/// First word of the meta object that is free for the engine.
const META_FREE: u64 = 192;
/// Tries at a node that does not look like one, with waits between them: enough for a WRITE to end.
const EXCLUSIVE_TRIES: u32 = 32;

/// A remote tree: a [`BlinkTree`] some of whose nodes have owners, with what such an engine needs beside it.
#[derive(Clone, Debug)]
pub struct RemoteTree(Arc<BlinkTree>);

impl Deref for RemoteTree {
    type Target = Arc<BlinkTree>;

    fn deref(&self) -> &Arc<BlinkTree> {
        &self.0
    }
}

impl RemoteTree {
    /// The tree with the meta object at `meta`. No remote operation.
    pub fn open(meta: GlobalAddr, layout: Layout, options: BlinkOptions) -> Self {
        RemoteTree(Arc::new(BlinkTree::with(meta, layout, options, true)))
    }

    /// A word of the meta object that is the engine's: `number` is 0 to 2.
    pub fn free_word(meta: GlobalAddr, number: u64) -> GlobalAddr {
        debug_assert!(number < 3);
        meta.plus(META_FREE + 8 * (number + 1))
    }

    /// The word of the meta object that says up to which level nodes lie on their children's server.
    pub fn placement_word(meta: GlobalAddr) -> GlobalAddr {
        Self::free_word(meta, 2)
    }

    /// The bit of that word that says that some nodes do not: their server was full, or they are older.
    pub const LOOSE: u64 = 1 << 63;

    /// From now on, new nodes up to this level go to their neighbours' server, or to any.
    pub fn set_subtree_level(&self, level: Option<u8>) {
        self.0.placed.store(level.map_or(0, |level| level + 1), Ordering::Relaxed);
    }

    /// See [`RemoteTree::set_subtree_level`].
    pub fn subtree_level(&self) -> Option<u8> {
        self.0.placed.load(Ordering::Relaxed).checked_sub(1)
    }

    /// Changes a key that nobody owns, under its leaf's lock. The caller has a pin and the
    /// lock of the ownership map, and waits without a deadline: an error is final then, and nothing is under way.
    ///
    /// Cost: as [`crate::blink`]'s.
    pub async fn change(
        &self,
        session: &Session,
        change: &Change<'_>,
        held: &mut Vec<u8>,
    ) -> Result<Outcome, IndexError> {
        let mut tries = 0;
        loop {
            match self.0.change_begun(session, change, held).await {
                // As in `post_separator`.
                Err(IndexError::Corrupt(_)) if tries < EXCLUSIVE_TRIES => tries += 1,
                done => return done,
            }
            backoff(session, tries).await;
        }
    }

    /// The address of the root word, and what it holds for a root.
    pub fn root_word(&self, root: GlobalAddr, level: u8) -> (GlobalAddr, u64) {
        debug_assert!(u64::from(level) <= LEVEL_MASK);
        (self.0.meta.plus(META_ROOT), root.word() | u64::from(level))
    }

    /// The root is another one now; what was cached of the root word is forgotten.
    pub fn forget_root(&self) {
        self.0.root.forget();
    }

    /// Tells whether a value of `len` bytes needs a record.
    pub fn needs_record(&self, len: usize) -> bool {
        len > self.0.layout.inline_value_max()
    }

    /// Writes a value outside of a node.
    ///
    /// Cost: 1 WRITE, and what allocating costs.
    ///
    /// # Errors
    /// `Full`, `Unavailable`.
    pub async fn write_record(
        &self,
        session: &Session,
        value: &[u8],
    ) -> Result<RecordRef, IndexError> {
        let record = self.0.write_record(session, value).await?;
        record.keep();
        Ok(record.reference())
    }

    /// READs a node that others may be writing, until an image of it fits; `None` if no such node is
    /// there any more. 1 READ, more if it is torn.
    pub async fn read_shared(
        &self,
        session: &Session,
        addr: GlobalAddr,
        level: u8,
    ) -> Result<Option<Buf>, IndexError> {
        match self.0.read_node(session, addr, level).await {
            Ok(image) => Ok(Some(image)),
            Err(BlinkFail::Restart) => Ok(None),
            Err(BlinkFail::Error(error)) => Err(error),
        }
    }

    /// Tells the node of `level` that covers `separator`, under its remote lock, that `right` begins
    /// there; adds a level if there is none. May be done again.
    pub async fn post_separator(
        &self,
        session: &Session,
        level: u8,
        separator: &[u8],
        right: GlobalAddr,
    ) -> Result<(), IndexError> {
        let unfinished = Unfinished { level, separator: separator.to_vec(), right };
        let mut tries = 0;
        loop {
            match self.0.finish_split_now(session, unfinished.clone()).await {
                // The way there may touch a node whose one owner writes it without the lock.
                Err(IndexError::Corrupt(_)) if tries < EXCLUSIVE_TRIES => tries += 1,
                done => return done,
            }
            backoff(session, tries).await;
        }
    }

    /// Makes sure that the node of `level` that covers `separator` has room for it, under its remote
    /// lock.
    pub async fn make_room(
        &self,
        session: &Session,
        level: u8,
        separator: &[u8],
    ) -> Result<(), IndexError> {
        let mut attempts = Attempts::new(&RetryPolicy::WAY);
        let mut tries = 0;
        loop {
            match self.try_make_room(session, level, separator).await {
                Ok(()) => return Ok(()),
                // As above.
                Err(BlinkFail::Error(IndexError::Corrupt(_))) if tries < EXCLUSIVE_TRIES => {
                    tries += 1;
                    backoff(session, tries).await;
                }
                Err(BlinkFail::Restart) => self.0.again(session, &mut attempts).await?,
                Err(BlinkFail::Error(error)) => return Err(error),
            }
        }
    }

    async fn try_make_room(
        &self,
        session: &Session,
        level: u8,
        separator: &[u8],
    ) -> Result<(), BlinkFail> {
        let tree = &self.0;
        let mut further = None;
        let addr = tree.way_to(session, separator, level, &mut further).await?;
        let node = tree.lock_covering(session, addr, separator, level, &mut further).await?;
        let mut copy = node.image.words().to_vec();
        let posted =
            NodeMut::new(&tree.layout, copy.as_mut_slice()).insert_separator(separator, 64);
        if posted == Err(ChangeError::NoRoom) {
            tree.split(session, node, separator.to_vec()).await?;
        } else {
            node.unlock().await?;
        }
        Ok(())
    }
}
