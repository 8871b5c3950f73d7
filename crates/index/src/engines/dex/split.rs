//! Split: divides a full node, and puts a new root over the old one.
//!
//! A split writes the new right node in whole, then the old one, and only then changes the cache:
//!
//! - `INV-DEX-BLINK` A node is written in whole before anything, cached or remote, points to
//!   it.
//! - `INV-DEX-CHAIN` Fences and right siblings of every node in remote memory are those that it has
//!   in the cache: both halves of a split and all nodes of a merge are written before either shows in
//!   the cache. Only entries, separators and children may be out of date remotely. So remote memory
//!   is a valid B-link tree at every moment, whatever order dirty nodes are written back in.
//!
//! The parent learns the separator in the cache alone and is dirty from then on.

use std::sync::Arc;

use farleaf_fabric::{GlobalAddr, ServerId};
use farleaf_pool::canary::Canary;
use farleaf_pool::{Place, Session};

use super::eviction::OwnedFrame;
use super::frames::{State, TOP};
use super::mapping_table::Entry;
use super::ops::{OwnedIntent, apply};
use super::shared::First;
use super::walk::{Seek, Spot};
use super::{Cache, Fail, Found, OpContext};
use crate::IndexError;
use crate::bnode::{ChangeError, Head, Kind, Node, NodeMut};

/// What a node is split for.
#[derive(Clone, Debug)]
pub(super) enum Need {
    /// Room for a change of a leaf.
    Room(OwnedIntent),
    /// Room for a separator in a node of this level.
    Separator(Vec<u8>, u8),
    /// A leaf that ends here.
    Bound(Vec<u8>),
}

impl Need {
    fn key(&self) -> &[u8] {
        match self {
            Need::Room(intent) => &intent.key,
            Need::Separator(separator, _) | Need::Bound(separator) => separator,
        }
    }

    fn level(&self) -> u8 {
        match self {
            Need::Room(_) | Need::Bound(_) => 0,
            Need::Separator(_, level) => *level,
        }
    }

    /// Whether the node has room already.
    fn is_met(&self, cache: &Cache, words: &[u64]) -> bool {
        let mut words = words.to_vec();
        let mut node = NodeMut::new(cache.layout(), words.as_mut_slice());
        match self {
            Need::Bound(bound) => {
                let mut high = Vec::new();
                node.as_node().high_fence(&mut high) && high == *bound
            }
            Need::Room(intent) => {
                apply(&mut node, &intent.key, &intent.intent()) != Err(ChangeError::NoRoom)
            }
            Need::Separator(separator, _) => {
                // Any address does: where it leads is not looked at.
                node.insert_separator(separator, 64) != Err(ChangeError::NoRoom)
            }
        }
    }
}

/// Remote memory for a new node. Dropped, it is free again.
struct NewNode {
    session: Session,
    addr: GlobalAddr,
    /// The server that was asked first.
    near: ServerId,
    bytes: usize,
    armed: bool,
}

impl NewNode {
    /// A node of `level`, near that server or anywhere.
    async fn alloc(
        cache: &Cache,
        session: &Session,
        near: Option<ServerId>,
        level: u8,
    ) -> Result<Self, IndexError> {
        let place = near.map_or_else(|| session.place(), Place::from);
        let bytes = cache.layout().node_bytes();
        let addr = session.alloc(place, bytes).await?;
        let node =
            NewNode { session: session.clone(), addr, near: place.server(), bytes, armed: true };
        if near.is_some() {
            cache.remote.note_place(session, level, place, addr).await?;
        }
        Ok(node)
    }

    /// Something points to it from now on.
    fn publish(&mut self) {
        self.armed = false;
    }
}

impl Drop for NewNode {
    fn drop(&mut self) {
        if self.armed {
            self.session.free_unpublished(self.addr, self.bytes);
        }
    }
}

impl Cache {
    /// Makes room as `need` says. Runs to its end whatever becomes of the caller.
    ///
    /// Cost: 2 WRITEs, one after the other; the same again for each level that is full.
    ///
    /// # Errors
    /// `Full`: nothing was changed.
    pub(super) async fn split(self: &Arc<Self>, session: &Session, need: Need) -> Result<(), Fail> {
        let (cache, task_session) = (Arc::clone(self), session.clone());
        self.detach(session, async move { cache.split_now(&task_session, need).await }).await
    }

    pub(super) async fn split_now(
        self: &Arc<Self>,
        session: &Session,
        need: Need,
    ) -> Result<(), Fail> {
        // What is to be split from the bottom up: a parent without room comes before its child.
        let mut needs = vec![need];
        let mut restarts = OpContext::default();
        let mut frame: Option<OwnedFrame> = None;
        let mut memory: Option<NewNode> = None;
        while let Some(need) = needs.last() {
            let level = need.level();
            let spot = match self
                .find(session, Seek::At(need.key()), level, false, &mut restarts)
                .await?
            {
                Found::Spot(spot) => spot,
                Found::Missing(_) | Found::Offload(_) | Found::Awaited(_) => {
                    return Err(Fail::Restart);
                }
                Found::TooLow => {
                    self.grow_now(session, level).await?;
                    continue;
                }
            };
            // Everything that has to be waited for comes before the latches.
            let on = self.server_beside(self.frames.addr(spot.frame), level);
            let does = |at: &NewNode| on.is_none_or(|server| at.near == server);
            if !memory.as_ref().is_some_and(does) {
                memory = Some(NewNode::alloc(self, session, on, level).await?);
                continue;
            }
            if frame.is_none() {
                frame = self.frame(session).await?;
                match frame {
                    // An inner node's children could not stay swizzled.
                    None if level > 0 => restarts.again(self, session).await?,
                    None => {}
                    Some(_) => continue,
                }
            }
            if spot.parent == TOP {
                self.grow_now(session, level + 1).await?;
                continue;
            }
            let Some(new) = memory.as_mut() else { continue };
            match self.split_at(session, spot, need, new, &mut frame).await? {
                Split::Done => {
                    // A bound is met when the leaf ends there, which takes another look.
                    if !matches!(need, Need::Bound(_)) {
                        needs.pop();
                    }
                    memory = None;
                }
                Split::Met => {
                    needs.pop();
                }
                Split::ParentFull(separator) => needs.push(Need::Separator(separator, level + 1)),
                Split::SharedFull(separator, addr) => {
                    let first = First::MakeRoom(level + 1, separator);
                    self.refresh(session, spot.parent, addr, first).await?;
                }
                Split::Again => restarts.again(self, session).await?,
            }
        }
        Ok(())
    }

    /// One attempt at splitting the node at `spot`.
    async fn split_at(
        self: &Arc<Self>,
        session: &Session,
        spot: Spot,
        need: &Need,
        new: &mut NewNode,
        hand: &mut Option<OwnedFrame>,
    ) -> Result<Split, Fail> {
        // Parent before child.
        let Some(above) = self.try_sx(spot.parent, spot.parent_version) else {
            self.wait_for_frame(spot.parent).await;
            return Ok(Split::Again);
        };
        let Some(sx) = self.try_sx(spot.frame, spot.version) else {
            drop(above);
            self.wait_for_frame(spot.frame).await;
            return Ok(Split::Again);
        };
        let ctl = self.frames.ctl(spot.frame);
        let layout = self.layout();
        if ctl.is_shared() {
            // It has become that meanwhile: its room is made remotely, from below.
            return Err(Fail::Restart);
        }
        if need.level() > 0 && (!self.drain_pins(session, spot.frame).await || hand.is_none()) {
            return Ok(Split::Again);
        }
        // Pointers stay swizzled in these two: the node's code only moves them.
        let mut left = vec![0; layout.node_words()];
        self.frames.copy(spot.frame, &mut left);
        if need.is_met(self, &left) {
            return Ok(Split::Met);
        }
        let mut right = vec![0; layout.node_words()];
        let mut right_node = NodeMut::new(layout, right.as_mut_slice());
        let mut left_node = NodeMut::new(layout, left.as_mut_slice());
        let split = match need {
            Need::Bound(bound) => {
                match left_node.cut_leaf_at(bound, &mut right_node, new.addr.word()) {
                    // The new fences take more than the old ones: with fewer entries they fit.
                    Err(ChangeError::NoRoom) => {
                        left_node.split_for(bound, &mut right_node, new.addr.word(), 0)
                    }
                    cut => cut,
                }
            }
            _ => left_node.split_for(need.key(), &mut right_node, new.addr.word(), 0),
        };
        let split =
            split.map_err(|error| self.remote.damaged(self.frames.addr(spot.frame), error))?;
        let shared = self.frames.ctl(spot.parent).is_shared();
        let mut parent = vec![0; layout.node_words()];
        self.frames.copy(spot.parent, &mut parent);
        if Need::Separator(split.separator.clone(), 0).is_met(self, &parent) {
            // There is room.
        } else if shared {
            let addr = self.frames.ctl(spot.parent).addr_word();
            return Ok(Split::SharedFull(split.separator, addr));
        } else {
            return Ok(Split::ParentFull(split.separator));
        }
        let client = session.client();
        let mut image = client.buf(layout.node_bytes());
        image.words_mut().copy_from_slice(&right);
        // The right part holds what the left one did (INV-DEX-LOG-2).
        let version = self.log.version(need.level(), ctl.version());
        let mut right_image = Some(self.make_remote(image, version));
        if !Canary::SplitOldFirst.is_armed()
            && let Some(image) = right_image.take()
        {
            self.write_page(session, new.addr, image, 0).await?;
        }
        let mut image = client.buf(layout.node_bytes());
        image.words_mut().copy_from_slice(&left);
        let image = self.make_remote(image, version);
        new.publish();
        let written = self.write_page(session, self.frames.addr(spot.frame), image, 8).await;
        self.must_succeed(written)?;
        if let Some(image) = right_image {
            self.write_page(session, new.addr, image, 0).await?;
        }
        if shared {
            // The parent that there is remotely may be another one by now; it has the key.
            let level = need.level() + 1;
            let _turn = self.post_turn(false).await;
            let posted =
                self.remote.post_separator(session, level, &split.separator, new.addr).await;
            // A B-link tree does without it: whoever is led right for want of it posts it. So it
            // does not matter that somebody held the parent's lock for too long.
            drop(posted);
        }

        // Remote memory has both. Now the cache, in one moment: both latches are X.
        let (parent, node) = (above.into_x(), sx.into_x());
        self.frames.store(node, &left);
        ctl.set_version(version);
        ctl.set_dirty(false);
        let pointer = match hand.take() {
            Some(hand) => {
                let frame = hand.take();
                self.frames.fill(frame, &right, new.addr.word(), need.level(), version);
                self.adopt_children(frame, &right);
                self.adopt_children(node, &left);
                self.frames.ctl(frame).set_parent(parent);
                self.frames.ctl(frame).set_state(State::Hot);
                let entered = self.map.claim(new.addr.word(), Entry::Resident(frame));
                debug_assert_eq!(entered, Ok(()), "nobody knew of it");
                self.frames.ctl(frame).latch.revive();
                let above = self.frames.ctl(parent);
                above.set_swizzled(above.swizzled() + 1);
                self.frames.swizzle(frame)
            }
            None => new.addr.word(),
        };
        let posted =
            self.frames.node_mut(layout, parent).insert_separator(&split.separator, pointer);
        debug_assert!(posted.is_ok(), "there was room: {posted:?}");
        self.frames.ctl(parent).set_dirty(!shared);
        self.release_x(node);
        self.release_x(parent);
        self.stats.splits.add();
        Ok(Split::Done)
    }

    /// The swizzled children of an image belong to `frame` now. Under X of whoever had them.
    pub(super) fn adopt_children(&self, frame: u32, words: &[u64]) {
        let node = Node::new(self.layout(), words);
        let mut swizzled = 0;
        if node.kind() == Kind::Inner {
            for index in 0..=node.count() {
                if let Some(child) = node.child(index).and_then(|it| self.frames.unswizzle(it)) {
                    self.frames.ctl(child).set_parent(frame);
                    swizzled += 1;
                }
            }
        }
        self.frames.ctl(frame).set_swizzled(swizzled);
    }

    /// Makes sure that `level` exists: puts a root with one child over the old one.
    ///
    /// Cost: 2 WRITEs, one after the other.
    pub(super) async fn grow_now(
        self: &Arc<Self>,
        session: &Session,
        level: u8,
    ) -> Result<(), Fail> {
        let bytes = self.layout().node_bytes();
        let Some(root) = self.frames.unswizzle(self.frames.root()) else {
            return Err(Fail::Restart);
        };
        let above = self.frames.ctl(root).level() + 1;
        let on = self.server_beside(self.frames.addr(root), above);
        let mut new = NewNode::alloc(self, session, on, above).await?;
        let Some(hand) = self.frame(session).await? else { return Err(Fail::NoFrame) };
        let latch = &self.frames.ctl(TOP).latch;
        let Some(sx) = latch.sample().and_then(|version| self.try_sx(TOP, version)) else {
            self.wait_for_frame(TOP).await;
            return Err(Fail::Restart);
        };
        let Some(root) = self.frames.unswizzle(self.frames.root()) else {
            return Err(Fail::Restart);
        };
        let above = self.frames.ctl(root).level() + 1;
        if above > level {
            return Ok(());
        }
        if self.frames.ctl(root).is_shared() {
            // A shared root grows under its lock.
            return Err(Fail::Restart);
        }
        let child = self.frames.addr(root);
        if self.server_beside(child, above).is_some_and(|server| server != new.near) {
            // It is another root by now.
            return Err(Fail::Restart);
        }
        let mut image = session.client().buf(bytes);
        let head = Head { addr: new.addr.word(), level: above, version: 1, ..Head::default() };
        self.layout()
            .encode_inner(image.words_mut(), &head, &[child.word()], &[] as &[&[u8]])
            .map_err(|error| self.remote.damaged(child, error))?;
        let written = session.reliable().copy(&image);
        self.write_page(session, new.addr, written, 0).await?;
        new.publish();
        let published = self.publish_root(session, new.addr, above).await;
        self.must_succeed(published)?;
        sx.into_x();
        let frame = hand.take();
        self.frames.fill(frame, image.words(), new.addr.word(), above, 1);
        self.frames.ctl(frame).set_state(State::Hot);
        self.swizzle_in(frame, 0, root);
        let entered = self.map.claim(new.addr.word(), Entry::Resident(frame));
        debug_assert_eq!(entered, Ok(()), "nobody knew of it");
        self.frames.ctl(frame).latch.revive();
        self.frames.set_root(self.frames.swizzle(frame));
        self.release_x(TOP);
        Ok(())
    }
}

/// How an attempt at a split ended.
enum Split {
    Done,
    /// There was room already.
    Met,
    /// The parent has no room for this separator.
    ParentFull(Vec<u8>),
    /// As that, and others change the parent, too, which is at this address.
    SharedFull(Vec<u8>, u64),
    Again,
}
