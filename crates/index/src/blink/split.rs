//! Split: divides a full node, and posts the separator to its parent.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use farleaf_fabric::{Buf, GlobalAddr};
use farleaf_pool::{Placement, Session};

use super::lock::Locked;
use super::read::Unfinished;
use super::remote::RemoteTree;
use super::{BlinkFail, BlinkTree};
use crate::IndexError;
use crate::bnode::{ChangeError, NodeMut};
use crate::detach::unfinished_work;
use crate::retry::{Attempts, RetryPolicy};

farleaf_fabric::canaries! {
    pub PUBLISH_OLD_FIRST = "publish-old-first",
        "a split writes the old node, which points to the new one, first";
    pub DROP_SIBLING = "drop-sibling", "a split forgets the right sibling of the new node";
    pub SEPARATOR_UNCHECKED = "separator-unchecked",
        "an unfinished split is finished without a look whether the new node still lives";
}

impl BlinkTree {
    /// Divides a locked node so that there is room for `key`, unlocks it, and tells its parent.
    ///
    /// Cost: WRITE of the new node; WRITEs of the old one, its redo record and its lock in one
    /// chain; then a separator (see [`BlinkTree::finish_split`]).
    ///
    /// # Errors
    /// `Full`: nothing was changed.
    pub(super) async fn split(
        self: &Arc<Self>,
        session: &Session,
        node: Locked,
        key: Vec<u8>,
    ) -> Result<(), IndexError> {
        let tree = Arc::clone(self);
        BlinkTree::detach(session, async move |session| {
            let unfinished = tree.split_now(&session, node.with_session(&session), &key).await?;
            tree.finish_split_now(&session, unfinished).await
        })
        .await
        .unwrap_or_else(|| Err(unfinished_work("a split")))
    }

    /// Adds the separator of a split that somebody has left unfinished, if it is still missing.
    ///
    /// Cost: a READ for each level above the parent's, CAS, READ and unlock there, 1 READ of the
    /// right node, and the WRITE if the separator is missing.
    pub(super) async fn finish_split(
        self: &Arc<Self>,
        session: &Session,
        unfinished: Unfinished,
    ) -> Result<(), IndexError> {
        let tree = Arc::clone(self);
        BlinkTree::detach(session, async move |session| {
            tree.finish_split_now(&session, unfinished).await
        })
        .await
        .unwrap_or_else(|| Err(unfinished_work("a split")))
    }

    /// Chooses the server of a new node of `level`, beside the one at `addr` or above it.
    pub(super) fn place_beside(&self, session: &Session, addr: GlobalAddr, level: u8) -> Placement {
        if self.is_placed(level) { addr.server().into() } else { session.place() }
    }

    /// Tells whether nodes of `level` lie on their children's server, if that has room.
    fn is_placed(&self, level: u8) -> bool {
        level < self.placed.load(Ordering::Relaxed)
    }

    /// Tells the table that a node of `level` that was to lie at `place` lies at `addr`.
    ///
    /// Cost: none; 1 CAS the first time that it is on another server.
    pub async fn note_place(
        &self,
        session: &Session,
        level: u8,
        place: Placement,
        addr: GlobalAddr,
    ) -> Result<(), IndexError> {
        let is_elsewhere = self.is_placed(level)
            && matches!(place, Placement::Near(server) if server != addr.server());
        if is_elsewhere && !self.is_loose.swap(true, Ordering::Relaxed) {
            let at = RemoteTree::placement_word(self.meta);
            let word = u64::from(self.placed.load(Ordering::Relaxed));
            session.reliable().cas(at, word, word | RemoteTree::LOOSE).await?;
        }
        Ok(())
    }

    /// The new node first, then the old one (`INV-BT-2`). Gives what the parent must learn.
    async fn split_now(
        self: &Arc<Self>,
        session: &Session,
        mut node: Locked,
        key: &[u8],
    ) -> Result<Unfinished, IndexError> {
        let client = session.client();
        let bytes = self.layout.node_bytes();
        let level = node.node().level();
        let place = self.place_beside(session, node.addr, level);
        let right_object = match session.alloc_unlinked(place, bytes).await {
            Ok(object) => object,
            Err(full) => {
                node.unlock().await?;
                return Err(full.into());
            }
        };
        let right_addr = right_object.addr();
        if let Err(error) = self.note_place(session, level, place, right_addr).await {
            node.unlock().await?;
            return Err(error);
        }
        let mut right: Buf = client.buf(bytes);
        let mut right_mut = NodeMut::new(&self.layout, right.words_mut());
        let split = match node.node_mut().split_for(key, &mut right_mut, right_addr.word(), 0) {
            Ok(split) => split,
            Err(error) => return Err(self.damaged(node.addr, error)),
        };
        if DROP_SIBLING.is_armed() {
            right_mut.set_right(0);
        }
        // Not below the old node's: a log of changes tells by a node's version which of them it holds.
        let version = match self.remembered {
            None => node.node().version().wrapping_add(1),
            Some(_) => self.first_version(session),
        };
        right_mut.seal(version);
        if PUBLISH_OLD_FIRST.is_armed() {
            node.publish(true, None).await?;
            right_object.write(right).await?;
            right_object.keep();
        } else {
            right_object.write(right).await?;
            right_object.keep();
            node.publish(true, None).await?;
        }
        Ok(Unfinished { level: level + 1, separator: split.separator, right: right_addr })
    }

    pub(super) async fn finish_split_now(
        self: &Arc<Self>,
        session: &Session,
        unfinished: Unfinished,
    ) -> Result<(), IndexError> {
        let mut to_do = vec![unfinished];
        let mut attempts = Attempts::new(&RetryPolicy::WAY);
        while let Some(next) = to_do.last() {
            match self.add_separator(session, next).await {
                Ok(None) => {
                    to_do.pop();
                }
                // The parent was split to make room: its own separator first, then try again.
                Ok(Some(parent)) => to_do.push(parent),
                Err(BlinkFail::Restart) => self.again(session, &mut attempts).await?,
                // A B-link tree does without the separator; somebody adds it when there is room.
                Err(BlinkFail::Error(IndexError::Full(_))) => return Ok(()),
                Err(BlinkFail::Error(error)) => return Err(error),
            }
        }
        Ok(())
    }

    /// Adds one separator. If the parent had no room it is split instead, and its own separator is
    /// what is unfinished now.
    async fn add_separator(
        self: &Arc<Self>,
        session: &Session,
        unfinished: &Unfinished,
    ) -> Result<Option<Unfinished>, BlinkFail> {
        let Unfinished { level, separator, right } = unfinished;
        let is_known_higher = self.remembered.is_some() && self.height_seen() > u64::from(*level);
        if !is_known_higher && self.read_root(session).await?.1 < *level {
            self.grow(session, *level).await?;
        }
        let mut parent = self.lock_level(session, separator, *level, &mut None).await?;
        if !SEPARATOR_UNCHECKED.is_armed()
            && !self.still_starts_at(session, *right, *level - 1, separator).await?
        {
            // Merged away since, by somebody who then removed the separator, too.
            parent.unlock().await?;
            return Ok(None);
        }
        match parent.node_mut().insert_separator(separator, right.word()) {
            Ok(crate::bnode::Posted::Added(_)) => {
                parent.seal();
                self.remember_node(parent.addr, *level, session.epoch(), parent.image.words());
                parent.publish_sealed(true, None).await?;
                Ok(None)
            }
            Ok(crate::bnode::Posted::AlreadyThere(_))
            | Err(ChangeError::OtherChild { .. } | ChangeError::OutsideFences) => {
                parent.unlock().await?;
                Ok(None)
            }
            Err(ChangeError::NoRoom) => Ok(Some(self.split_now(session, parent, separator).await?)),
            Err(error) => Err(BlinkFail::Error(self.damaged(parent.addr, error))),
        }
    }

    /// Tells whether the node at `addr` is alive and its low fence is `separator`. The caller holds the
    /// lock of the parent that covers it, so that nobody can merge it away meanwhile.
    async fn still_starts_at(
        self: &Arc<Self>,
        session: &Session,
        addr: GlobalAddr,
        level: u8,
        separator: &[u8],
    ) -> Result<bool, BlinkFail> {
        let image = match self.read_node(session, addr, level).await {
            Ok(image) => image,
            Err(BlinkFail::Restart) => return Ok(false),
            Err(error) => return Err(error),
        };
        Ok(self.view(level, image.words()).low().as_deref() == Some(separator))
    }
}
