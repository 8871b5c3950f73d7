//! Unlinking: takes the leaves of removed keys out of the tree, in the background.
//!
//! A remove leaves its leaf linked, so that the key can come back in place. Once a compute server has removed a batch
//! of keys, a task locks the leaves that are still without a value, empties their slots and retires them. Without the
//! leaf's lock, a key that came back meanwhile would be lost.
//!
//! In a table with owners only the owner of a key unlinks its leaf, or a guest that holds the map's lock. The task is
//! inside the range guard, and leaves out keys that are another's or about to be. Those of a range that moves are
//! unlinked before `hand_over` (`farleaf_index::compute::owned`).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use farleaf_fabric::{Endpoint, GlobalAddr, OpKind};
use farleaf_index::IndexError;
use farleaf_index::sync::lock;
use farleaf_pool::{Session, Tries};

use super::descent::PathEnd;
use super::layout::Slot;
use super::tree::{Fail, Tree, count};

farleaf_fabric::canaries! {
    pub(crate) UNLINK_UNLOCKED = "unlink-unlocked", "a removed leaf is unlinked without its lock";
    pub(crate) FREE_SLOT = "free-slot", "the slot of an unlinked leaf becomes unused again";
}

/// Removed keys that wait for their turn; later ones stay linked.
const REMOVED_MAX: usize = 1 << 16;
/// Leaves that are unlinked under one pin.
const PINNED_MAX: usize = 64;
/// Between looks whether the task has ended.
const WAIT_NS: u64 = 2_000;
/// Looks until it is taken for held up.
const WAITS_MAX: u32 = 500_000;

/// The right to unlink; one task has it.
struct Unlinking(Arc<Tree>);

impl Drop for Unlinking {
    fn drop(&mut self) {
        self.0.unlinking.store(false, Ordering::SeqCst);
    }
}

impl Tree {
    /// Notes a key whose leaf is to be unlinked, and lets a task unlink when there are enough. Within an operation.
    pub(super) fn note_removed(self: &Arc<Self>, session: &Session, key: &[u8]) {
        if self.shape.mode.keeps_leaves() {
            // Its leaf stays linked (INV-SMART-8).
            return;
        }
        let is_due = {
            let mut removed = lock(&self.removed);
            if removed.len() < REMOVED_MAX {
                removed.push(key.to_vec());
            }
            removed.len() >= self.options.unlink_batch
        };
        // A guest unlinks under the map's lock.
        let is_own = self.owner.as_ref().is_none_or(|owner| owner.owns(key));
        if !is_due || !is_own || self.unlinking.swap(true, Ordering::SeqCst) {
            return;
        }
        // It enters before it looks which keys are own.
        let inside = self.owner.as_ref().map(|owner| owner.enter_task(session));
        let keys = self.take_removed(|key| self.owner.as_ref().is_none_or(|owner| owner.owns(key)));
        let (unlinking, pin) = (Unlinking(Arc::clone(self)), session.pin_for_task());
        session.spawn(async move |session| {
            for key in keys {
                // An error leaves the leaf linked, which is as well.
                if unlinking.0.unlink(&session, &key).await.is_err() {
                    break;
                }
            }
            drop(pin);
            drop(unlinking);
            drop(inside);
        });
    }

    /// Returns whether enough keys were removed here to unlink their leaves; any, if it is the last time.
    pub(crate) fn is_unlinking_due(&self, is_last: bool) -> bool {
        lock(&self.removed).len() >= if is_last { 1 } else { self.options.unlink_batch }
    }

    /// The keys that were removed here and of which `is_wanted` says so. Others remain.
    pub(crate) fn take_removed(&self, is_wanted: impl Fn(&[u8]) -> bool) -> Vec<Vec<u8>> {
        let mut removed = lock(&self.removed);
        let (taken, rest) =
            std::mem::take(&mut *removed).into_iter().partition(|key| is_wanted(key));
        *removed = rest;
        taken
    }

    /// As [`Tree::unlink`], to its end whatever becomes of the caller.
    pub(crate) async fn unlink_whole(
        self: &Arc<Self>,
        session: &Session,
        key: &[u8],
    ) -> Result<(), IndexError> {
        let (tree, key) = (Arc::clone(self), key.to_vec());
        self.finish(session, async move |session| tree.unlink(&session, &key).await).await
    }

    /// Returns when no task unlinks.
    pub(super) async fn finish_unlinking(&self, session: &Session) {
        let mut waits = 0;
        while self.unlinking.load(Ordering::SeqCst) && waits < WAITS_MAX {
            session.endpoint().sleep(WAIT_NS).await;
            waits += 1;
        }
    }

    /// Unlinks the leaves of all removed keys that this compute server knows of.
    pub(super) async fn unlink_removed(&self, session: &Session) -> Result<(), IndexError> {
        self.finish_unlinking(session).await;
        loop {
            let keys: Vec<Vec<u8>> = {
                let mut removed = lock(&self.removed);
                let from = removed.len().saturating_sub(PINNED_MAX);
                removed.drain(from..).collect()
            };
            if keys.is_empty() {
                return Ok(());
            }
            let _pin = session.begin(OpKind::Other).await?;
            for key in keys {
                self.unlink(session, &key).await?;
            }
        }
    }

    /// Unlinks the leaf of `key` if it has no value, and replaces nodes that have too few children then.
    ///
    /// Cost: the READs of its way, 1 WRITE and 2 CASes; more as [`Tree::shrink`] says.
    async fn unlink(&self, session: &Session, key: &[u8]) -> Result<(), IndexError> {
        let mut path = match self.way(session, key).await {
            Ok(path) => path,
            Err(Fail::Again) => return Ok(()),
            Err(Fail::Error(error)) => return Err(error),
        };
        let PathEnd::Leaf { index, slot } = path.landing else { return Ok(()) };
        let reliable = session.reliable();
        let image = reliable.read(slot.addr(), reliable.buf(slot.leaf_class().bytes())).await?;
        let leaf = self.leaf(slot.addr(), &image);
        let is_dead = leaf.key() == key && !leaf.is_valid() && leaf.is_whole() && leaf.is_free();
        if !is_dead || slot.is_frozen() {
            return Ok(());
        }
        let retiring = session.prepare_retire(slot.addr()).await?;
        let (by, token) = (leaf.by(), session.lock_token());
        let leaf = self.leaf_image(slot.addr(), &image);
        let _changing = self.changing_leaf(slot.addr()).await;
        let is_locked =
            UNLINK_UNLOCKED.is_armed() || reliable.cas(leaf.lock_addr(), by, token).await? == by;
        if !is_locked {
            session.cancel_retire(retiring);
            return Ok(());
        }
        let Some(mut held) = path.nodes.pop() else { return Ok(()) };
        let (at, mut tomb) = (held.slot_addr(index), Slot::tomb(slot.edge()));
        if FREE_SLOT.is_armed() {
            tomb = Slot(0);
        }
        let changing = self.changing(held.addr).await;
        if self.empty_slot(session, at, (slot, tomb), key).await? {
            // It stays locked: a client that waits for it looks at the slot.
            session.retire(retiring);
            self.remember_slot(&mut held, index, tomb, key);
            changing.stored(session, index, (slot, tomb));
            count(&self.counts.unlinked);
            return self.shrink(session, held, key).await;
        }
        changing.lost();
        self.unlock(session, &leaf, token).await?;
        session.cancel_retire(retiring);
        Ok(())
    }

    /// Empties the slot of a leaf that this client has locked; returns whether it led there.
    async fn empty_slot(
        &self,
        session: &Session,
        at: GlobalAddr,
        (slot, tomb): (Slot, Slot),
        key: &[u8],
    ) -> Result<bool, IndexError> {
        let mark = session.reliable().post_mark();
        let error = match session.client().cas(at, slot.0, tomb.0).await {
            Ok(found) => return Ok(found == slot.0),
            Err(error) => error,
        };
        session.reliable().again(&mut Tries::default(), mark, error).await?;
        // Nobody else can take the leaf out while it is locked.
        let now = Slot(session.reliable().word(at).await?);
        Ok(now.thawed() == tomb || !self.reaches(session, key, slot.addr()).await?)
    }
}
