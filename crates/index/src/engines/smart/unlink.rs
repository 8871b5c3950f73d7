//! Unlinking: takes the leaves of removed keys out of the tree, in the background.
//!
//! A remove leaves its leaf linked, so that the key can come back in place. Once a compute server has removed a batch
//! of keys, a task locks the leaves that are still without a value, empties their slots and retires them. Without the
//! leaf's lock, a key that came back meanwhile would be lost.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use farleaf_fabric::{Endpoint, GlobalAddr, OpKind};
use farleaf_pool::canary::Canary;
use farleaf_pool::{Session, Trial};

use super::descent::Landing;
use super::layout::Slot;
use super::tree::{Fail, Tree, count};
use crate::IndexError;
use crate::sync::lock;

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
        if self.shape.points_back {
            // Its leaf stays linked (INV-SMART-8).
            return;
        }
        let keys = {
            let mut removed = lock(&self.removed);
            if removed.len() < REMOVED_MAX {
                removed.push(key.to_vec());
            }
            let is_due = removed.len() >= self.options.unlink_batch
                && !self.unlinking.swap(true, Ordering::SeqCst);
            if !is_due {
                return;
            }
            std::mem::take(&mut *removed)
        };
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
        });
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
        let Landing::Leaf { index, slot } = path.landing else { return Ok(()) };
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
        let is_locked = Canary::UnlinkUnlocked.is_armed()
            || reliable.cas(leaf.lock_addr(), by, token).await? == by;
        if !is_locked {
            session.cancel_retire(retiring);
            return Ok(());
        }
        let Some(mut held) = path.nodes.pop() else { return Ok(()) };
        let (at, mut tomb) = (held.slot_addr(index), Slot::tomb(slot.edge()));
        if Canary::FreeSlot.is_armed() {
            tomb = Slot(0);
        }
        if self.empty_slot(session, at, (slot, tomb), key).await? {
            // It stays locked: a client that waits for it looks at the slot.
            session.retire(retiring);
            self.remember_slot(&mut held, index, tomb, key);
            count(&self.counts.unlinked);
            return self.shrink(session, held, key).await;
        }
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
        let posting = session.reliable().posting();
        let error = match session.client().cas(at, slot.0, tomb.0).await {
            Ok(found) => return Ok(found == slot.0),
            Err(error) => error,
        };
        session.reliable().again(&mut Trial::default(), posting, error).await?;
        // Nobody else can take the leaf out while it is locked.
        let now = Slot(session.reliable().word(at).await?);
        Ok(now.thawed() == tomb || !self.reaches(session, key, slot.addr()).await?)
    }
}
