//! Root: creates, grows and replaces the root of the tree.

use std::sync::Arc;

use farleaf_fabric::GlobalAddr;
use farleaf_pool::{Retiring, Session};

use super::lock_table::LockTables;
use super::{BlinkFail, BlinkTree, META_BYTES, META_LOCKS, META_ROOT, META_ROOT_LOCK};
use crate::bnode::{GuardedLayout, Head, Layout, LeafEntry, Stamp};
use crate::remote_lock::{Lock, lock_word};
use crate::{IndexError, Seek};

farleaf_fabric::canaries! {
    pub GROW_FROM_OLD_ROOT = "grow-from-old-root",
        "a new root is built from the root as it was before its lock was taken";
}

/// First word of a meta object.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"FLbtree1");

/// Makes a leaf of `entries` and the meta object that names it as the root.
pub(super) async fn create(
    session: &Session,
    layout: &Layout,
    entries: &[LeafEntry<'_>],
) -> Result<GlobalAddr, IndexError> {
    let client = session.client();
    let meta = session.alloc_unlinked(session.place(), META_BYTES).await?;
    let root = session.alloc_unlinked(session.place(), layout.node_bytes()).await?;
    let mut leaf = client.buf(layout.node_bytes());
    let head = Head { addr: root.addr().word(), version: 1, ..Head::default() };
    layout
        .encode_leaf(leaf.words_mut(), &head, entries)
        .map_err(|error| IndexError::Invalid(error.to_string()))?;
    root.write(leaf).await?;
    let mut object = client.buf(META_BYTES);
    object.words_mut().fill(0);
    object.words_mut()[0] = MAGIC;
    object.words_mut()[META_ROOT as usize / 8] = root.addr().word();
    meta.write(object).await?;
    root.keep();
    meta.keep();
    Ok(meta.addr())
}

/// Makes lock tables, an empty leaf, and the meta object that names them.
pub(super) async fn create_remembered(
    session: &Session,
    layout: &Layout,
    guarded: Option<&GuardedLayout>,
    lock_words: u32,
) -> Result<GlobalAddr, IndexError> {
    let client = session.client();
    let locks = LockTables::create(session, layout.tree(), lock_words).await?;
    let meta = session.alloc_unlinked(session.place(), META_BYTES).await?;
    let leaf_bytes = guarded.map_or(layout.node_bytes(), GuardedLayout::leaf_bytes);
    let root = session.alloc_unlinked(session.place(), leaf_bytes).await?;
    let mut leaf = client.buf(leaf_bytes);
    let version = Stamp::at_birth(session.epoch()).word();
    let head = Head { addr: root.addr().word(), version, ..Head::default() };
    let encoded = match guarded {
        Some(guarded) => guarded.encode(leaf.words_mut(), &head, &[] as &[(&[u8], &[u8])]),
        None => layout.encode_leaf(leaf.words_mut(), &head, &[]),
    };
    encoded.map_err(|error| IndexError::Invalid(error.to_string()))?;
    root.write(leaf).await?;
    let mut object = client.buf(META_BYTES);
    object.words_mut().fill(0);
    object.words_mut()[0] = MAGIC;
    object.words_mut()[META_ROOT as usize / 8] = root.addr().word();
    object.words_mut()[META_LOCKS] = locks.last().map_or(0, |directory| directory.addr().word());
    meta.write(object).await?;
    for object in locks.iter().chain([&root, &meta]) {
        object.keep();
    }
    Ok(meta.addr())
}

impl BlinkTree {
    /// Makes sure that `level` exists: puts a new root over the old one and its right sibling.
    ///
    /// Cost: CAS, READ, WRITE, and 2 WRITEs in one chain.
    pub(super) async fn grow(
        self: &Arc<Self>,
        session: &Session,
        level: u8,
    ) -> Result<(), BlinkFail> {
        let before = match GROW_FROM_OLD_ROOT.is_armed() {
            true => Some(self.root(session).await?),
            false => None,
        };
        let lock = self.lock_root(session).await?;
        let (root, root_level) = match before {
            Some(before) => before,
            None => self.read_root(session).await?,
        };
        if root_level >= level {
            lock.release().await?;
            return Ok(());
        }
        let (addr, image) = self.node_at(session, Seek::First, root_level).await?;
        let node = self.view(root_level, image.words());
        let Some(separator) = node.high().filter(|_| addr == root) else {
            // The image is older than the split, or the split's own news is.
            lock.release().await?;
            return Err(BlinkFail::Restart);
        };
        let children = [root.word(), node.right()];
        let client = session.client();
        let bytes = self.layout.node_bytes();
        let place = self.place_beside(session, root, root_level + 1);
        let top = session.alloc_unlinked(place, bytes).await?;
        self.note_place(session, root_level + 1, place, top.addr()).await?;
        let mut image = client.buf(bytes);
        let version = self.first_version(session);
        let head =
            Head { addr: top.addr().word(), level: root_level + 1, version, ..Head::default() };
        self.layout
            .encode_inner(image.words_mut(), &head, &children, &[&separator])
            .map_err(|error| self.damaged(root, error))?;
        top.write(image).await?;
        top.keep();
        self.publish_root(session, lock, top.addr(), root_level + 1).await?;
        Ok(())
    }

    /// Names `root` in the root word and releases its lock, in one chain.
    pub(super) async fn publish_root(
        &self,
        session: &Session,
        lock: Lock,
        root: GlobalAddr,
        level: u8,
    ) -> Result<(), IndexError> {
        let word = root.word() | u64::from(level);
        let (moment, epoch) = (session.moment(), session.epoch());
        let mut ops = session.client().ops();
        ops.write_word(self.meta.plus(META_ROOT), word);
        lock.finish(ops, 0, None).await?;
        self.root.remember(word, moment, epoch);
        Ok(())
    }

    /// Locks the root word. A dead holder has left it as it was or as it wanted it: it is one word.
    pub(super) async fn lock_root(&self, session: &Session) -> Result<Lock, IndexError> {
        lock_word(session, self.meta.plus(META_ROOT_LOCK)).await
    }

    /// The root has a single child left: makes that the root. Gives up if anybody is busy there.
    ///
    /// Cost: 2 CASes, 2 READs, 5 WRITEs.
    pub(super) async fn shrink(self: &Arc<Self>, session: &Session) -> Result<(), BlinkFail> {
        let lock = self.lock_root(session).await?;
        let (root, level) = self.read_root(session).await?;
        let token = session.lock_token();
        let Some(node) = self.lock_if_free(session, root, level, token).await? else {
            lock.release().await?;
            return Ok(());
        };
        if level == 0 || node.node().count() > 0 || node.node().right() != 0 {
            node.unlock().await?;
            lock.release().await?;
            return Ok(());
        }
        let child = self.pointer(node.node().child(0).unwrap_or(0), root)?;
        let retiring = session.prepare_retire(root).await?;
        self.record_burial(session, &node).await?;
        self.publish_root(session, lock, child, level - 1).await?;
        // From here on the old root is only met by those who remember its address. It leads them right.
        // Nobody changes it if we die: a merge below it gives up at its lock, and whoever would wait for
        // that, to add a separator, reads the root word first.
        self.publish_dead(node, Some(retiring)).await?;
        Ok(())
    }

    /// Marks a locked node dead for good, in one chain, and retires it.
    pub(super) async fn publish_dead(
        &self,
        mut node: super::lock::Locked,
        retiring: Option<Retiring>,
    ) -> Result<(), IndexError> {
        self.kill(node.level, node.image.words_mut());
        let mut ops = node.session.client().ops();
        ops.write(node.addr.plus(8), node.image.window(8..self.bytes_at(node.level)));
        node.lock.finish(ops, self.dead_word(), retiring).await
    }
}
