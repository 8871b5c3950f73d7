//! Merge: moves the entries of a sparse node into its neighbour.
//!
//! Parent, left and right are locked by trying, parent first, left before right (`INV-BT-7`). Then
//! 1. a redo record of all three,
//! 2. left gets right's content, high fence and sibling: both cover the keys now, with the same
//!    content, and neither can change,
//! 3. the parent loses the separator: a reader reaches right only by an old pointer,
//! 4. the writer marks right dead: a reader that arrives by an old pointer begins again,
//! 5. left and parent are unlocked, right is retired.
//!
//! Left must not be unlocked before right is dead: else a reader on an old pointer could see right's
//! content after a writer has changed the key in left.

use std::sync::Arc;

use farleaf_fabric::{GlobalAddr, OpKind};
use farleaf_pool::Session;

use super::lock::Locked;
use super::redo::LOSE_REDO_RECORD;
use super::remembered::count;
use super::write::FORGET_RETIRE;
use super::{BlinkFail, BlinkTree};
use crate::bnode::Cover;
use crate::retry::{Attempts, RetryPolicy};
use crate::{IndexError, Seek};

farleaf_fabric::canaries! {
    pub UNLOCK_RIGHT_EARLY = "unlock-right-early",
        "a merge unlocks the right node before it is dead";
}

impl BlinkTree {
    /// Tries to merge the node below `parent_level` that covers `key` with a neighbour, and goes on
    /// upwards where that leaves a parent sparse. Gives up wherever somebody else is busy, at any error,
    /// and if the way to the parent changes again and again: the change that left the node sparse has
    /// happened, merging is never needed, and what is wrong shows in the next operation that needs it.
    ///
    /// Its cost counts as maintenance: a READ for each level down to the parent, 3 CASes, 3 READs
    /// and 7 WRITEs for one merge.
    pub(super) async fn merge(self: &Arc<Self>, session: &Session, key: &[u8], parent_level: u8) {
        if self.height_seen() <= u64::from(parent_level) || self.leaves_unmerged(parent_level - 1) {
            return;
        }
        let (tree, key) = (Arc::clone(self), key.to_vec());
        let before = session.client().charge_to(OpKind::Maintenance);
        let inside = self.own_leaves(parent_level - 1).map(|own| own.enter(session));
        BlinkTree::detach(session, async move |session| {
            let _inside = inside;
            let (mut level, mut attempts) = (parent_level, Attempts::new(&RetryPolicy::WAY));
            loop {
                match tree.merge_at(&session, &key, level).await {
                    Ok(true) => level += 1,
                    // A copy of a node led astray and is dropped.
                    Err(BlinkFail::Restart) if attempts.is_quick() => {
                        if tree.again(&session, &mut attempts).await.is_err() {
                            break;
                        }
                    }
                    _ => break,
                }
            }
        })
        .await;
        session.client().charge_to(before);
    }

    /// One merge; says whether the parent is sparse now.
    async fn merge_at(
        self: &Arc<Self>,
        session: &Session,
        key: &[u8],
        level: u8,
    ) -> Result<bool, BlinkFail> {
        let (root, root_level) = self.root(session).await?;
        if root_level < level {
            return Ok(false);
        }
        let addr = self.node_at(session, Seek::At(key), level).await?.0;
        // One token for all, so that one redo record serves all.
        let token = session.lock_token();
        let Ok(parent) = self.try_lock(session, addr, level, token).await? else {
            return Ok(false);
        };
        let node = parent.node();
        if node.covers(key) != Cover::Inside {
            parent.unlock().await?;
            return Ok(false);
        }
        if node.count() == 0 {
            parent.unlock().await?;
            if addr == root {
                self.shrink(session).await?;
            }
            return Ok(false);
        }
        // The right neighbour where there is one under this parent, else the left one.
        let (index, _) = node.child_for(key);
        let index = match self.own_leaves(level - 1) {
            None => Some(index.min(node.count() - 1)),
            Some(own) => own.left_of_pair(&node, index),
        };
        let Some(index) = index else {
            parent.unlock().await?;
            return Ok(false);
        };
        let [left, right] = [index, index + 1].map(|child| node.child(child).unwrap_or(0));
        let (left, right) = (self.pointer(left, addr)?, self.pointer(right, addr)?);
        let Some(merged) = self.merge_pair(session, parent, index, left, right).await? else {
            return Ok(false);
        };
        if addr == root {
            // A root may be sparse, but it should have more than one child.
            if merged.children == 1 {
                self.shrink(session).await?;
            }
            return Ok(false);
        }
        Ok(merged.is_sparse)
    }

    /// Merges two neighbours under a locked parent; `None` if they are busy or do not fit.
    async fn merge_pair(
        self: &Arc<Self>,
        session: &Session,
        mut parent: Locked,
        index: usize,
        left: GlobalAddr,
        right: GlobalAddr,
    ) -> Result<Option<Merged>, BlinkFail> {
        let level = parent.node().level() - 1;
        if self.share_lock_words(&[parent.addr, left, right]) {
            parent.unlock().await?;
            return Ok(None);
        }
        let left = self.lock_if_free(session, left, level, parent.token()).await?;
        let Some(mut left) = left else {
            parent.unlock().await?;
            return Ok(None);
        };
        let right = self.lock_if_free(session, right, level, parent.token()).await?;
        let percent = (self.options.merge_sum * 100.0) as usize;
        let right = match right {
            Some(right)
                if left.view().right() == right.addr.word()
                    && (left.is_sparse() || right.is_sparse())
                    && left.view().can_merge(&right.view(), percent) =>
            {
                right
            }
            other => {
                if let Some(right) = other {
                    right.unlock().await?;
                }
                left.unlock().await?;
                parent.unlock().await?;
                return Ok(None);
            }
        };
        let retiring = session.prepare_retire(right.addr).await?;
        let place = (left.addr, level);
        self.take_in(place, left.image.words_mut(), right.image.words())?;
        let parent_addr = parent.addr;
        let removed = parent.node_mut().remove_separator(index);
        removed.map_err(|error| self.damaged(parent_addr, error))?;
        if !self.is_guarded(level) {
            left.seal();
        }
        parent.seal();
        self.remember_node(parent.addr, level + 1, session.epoch(), parent.image.words());
        self.remember_node(left.addr, level, session.epoch(), left.image.words());
        let merged = Merged {
            children: parent.node().count() + 1,
            is_sparse: self.is_sparse(&parent.node()),
        };
        self.write_merge(session, left, parent, right).await?;
        if let Some(remembered) = &self.remembered {
            count(&remembered.counts.merges);
        }
        if !FORGET_RETIRE.is_armed() {
            session.retire(retiring);
        }
        Ok(Some(merged))
    }

    /// Returns whether two of the nodes have one lock word: then they cannot be locked one by one.
    fn share_lock_words(&self, nodes: &[GlobalAddr; 3]) -> bool {
        let words = nodes.map(|addr| self.lock_word_of(addr));
        self.remembered.is_some()
            && (words[0] == words[1] || words[1] == words[2] || words[0] == words[2])
    }

    /// Steps 1 to 5 of the [module page](self).
    async fn write_merge(
        &self,
        session: &Session,
        mut left: Locked,
        mut parent: Locked,
        right: Locked,
    ) -> Result<(), IndexError> {
        let reliable = session.reliable();
        debug_assert_eq!((left.token(), right.token()), (parent.token(), parent.token()));
        let mut right = right;
        // This is a task's work, and its session does not give up. So what fails from here on is
        // that this compute server has been cut off: its locks are for whoever recovers it.
        for node in [&mut left, &mut parent, &mut right] {
            node.lock.disarm();
        }
        // Also where no WRITE is ever cut short: a death in between leaves one node written and the
        // next one not.
        if !LOSE_REDO_RECORD.is_armed() {
            let dead = self.dead_image(session, right.level, &right.image);
            let token = left.token();
            // Left first: its lock is given back last.
            let nodes = [
                (left.addr, token, left.image.words()),
                (parent.addr, token, parent.image.words()),
                (right.addr, token, dead.words()),
            ];
            let record = self.record(session, token, &nodes);
            reliable.write(session.redo_addr(left.addr.server()), record).await?;
        }
        for node in [&mut left, &mut parent] {
            let bytes = self.bytes_at(node.level);
            let image = std::mem::replace(&mut node.image, reliable.buf(0));
            let written = reliable.write(node.addr.plus(8), image.window(8..bytes)).await;
            written.map_err(|error| IndexError::OutcomeUnknown(error.to_string()))?;
        }
        if UNLOCK_RIGHT_EARLY.is_armed() {
            let _ = session.client().cas(self.lock_word_of(right.addr), right.token(), 0).await;
        }
        self.publish_dead(right, None).await?;
        for node in [parent, left] {
            let ops = session.client().ops();
            node.lock.finish(ops, 0, None).await?;
        }
        Ok(())
    }
}

/// The parent as a merge left it.
struct Merged {
    children: usize,
    is_sparse: bool,
}
