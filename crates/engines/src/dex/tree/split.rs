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
use farleaf_index::bnode::{ChangeError, Head, NodeMut};
use farleaf_index::{IndexError, Seek};
use farleaf_pool::{Placement, Session, Unlinked};

use super::ops::apply;
use super::shared::First;
use super::walk::{Location, SearchEnd};
use super::{DexFail, DexTree, OpContext};
use crate::dex::cache::{OwnedFrame, TOP};
use crate::dex::change::OwnedLeafChange;

farleaf_fabric::canaries! {
    pub(crate) SPLIT_OLD_FIRST = "split-old-first",
        "a cached node's split writes the old node, which points to the new one, first";
}

/// The purpose of a split.
#[derive(Clone, Debug)]
pub(crate) enum Need {
    /// Room for a change of a leaf.
    Room(OwnedLeafChange),
    /// Room for a separator in a node of this level.
    Separator(Vec<u8>, u8),
    /// A leaf that ends here.
    Bound(Vec<u8>),
}

impl Need {
    fn key(&self) -> &[u8] {
        match self {
            Need::Room(change) => &change.key,
            Need::Separator(separator, _) | Need::Bound(separator) => separator,
        }
    }

    fn level(&self) -> u8 {
        match self {
            Need::Room(_) | Need::Bound(_) => 0,
            Need::Separator(_, level) => *level,
        }
    }

    /// Returns whether the node needs no split.
    fn is_met(&self, tree: &DexTree, words: &[u64]) -> bool {
        let mut words = words.to_vec();
        let mut node = NodeMut::new(tree.layout(), words.as_mut_slice());
        match self {
            Need::Bound(bound) => {
                let mut high = Vec::new();
                node.as_node().high_fence(&mut high) && high == *bound
            }
            Need::Room(change) => apply(&mut node, &change.borrowed()) != Err(ChangeError::NoRoom),
            Need::Separator(separator, _) => {
                // Any address does: where it leads is not looked at.
                node.insert_separator(separator, 64) != Err(ChangeError::NoRoom)
            }
        }
    }
}

/// Remote memory for a new node.
struct NodeMemory {
    object: Unlinked,
    /// The server that was asked first; `None`: any.
    near: Option<ServerId>,
}

impl NodeMemory {
    /// A node of `level`, near that server or anywhere.
    async fn alloc(
        tree: &DexTree,
        session: &Session,
        near: Option<ServerId>,
        level: u8,
    ) -> Result<Self, IndexError> {
        let place = near.map_or_else(|| session.place(), Placement::from);
        let object = session.alloc_unlinked(place, tree.layout().node_bytes()).await?;
        if near.is_some() {
            tree.remote.note_place(session, level, place, object.addr()).await?;
        }
        Ok(NodeMemory { object, near })
    }

    fn addr(&self) -> GlobalAddr {
        self.object.addr()
    }
}

impl DexTree {
    /// Makes room as `need` says. Runs to its end whatever becomes of the caller.
    ///
    /// Cost: 2 WRITEs, one after the other; the same again for each level that is full.
    ///
    /// # Errors
    /// `Full`: nothing was changed.
    pub(crate) async fn split(
        self: &Arc<Self>,
        session: &Session,
        need: Need,
    ) -> Result<(), DexFail> {
        self.detach(session, |tree, session| async move { tree.split_now(&session, need).await })
            .await
    }

    pub(crate) async fn split_now(
        self: &Arc<Self>,
        session: &Session,
        need: Need,
    ) -> Result<(), DexFail> {
        // The splits to do, from the bottom up: a parent without room comes before its child.
        let mut needs = vec![need];
        let mut context = OpContext::default();
        let mut frame: Option<OwnedFrame> = None;
        let mut memory: Option<NodeMemory> = None;
        while let Some(need) = needs.last() {
            let level = need.level();
            context.has_hand = frame.is_some();
            let found = self.find(session, Seek::At(need.key()), level, &mut context).await?;
            context.has_hand = false;
            let location = match found {
                SearchEnd::Node(location) => location,
                SearchEnd::TooLow => {
                    self.grow_now(session, level).await?;
                    continue;
                }
                SearchEnd::Crowded => {
                    frame = None;
                    context.take_turn(self, session).await;
                    continue;
                }
                other => unreachable!("asked for the node itself, and got {other:?}"),
            };
            // All waits come before the latches.
            let on = self.server_beside(self.pages.frames.addr(location.frame), level);
            let does = |at: &NodeMemory| on.is_none_or(|server| at.near == Some(server));
            if !memory.as_ref().is_some_and(does) {
                memory = Some(NodeMemory::alloc(self, session, on, level).await?);
                continue;
            }
            if frame.is_none() {
                frame = self.take_frame(session).await?;
                match frame {
                    // An inner node's children could not stay swizzled.
                    None if level > 0 => {
                        context.after(DexFail::NoFrame, self, session).await?;
                        continue;
                    }
                    None => {}
                    Some(_) => continue,
                }
            }
            if location.parent == TOP {
                self.grow_now(session, level + 1).await?;
                continue;
            }
            let Some(new) = &memory else { continue };
            match self.split_at(session, location, need, new, &mut frame).await? {
                SplitAttempt::Done => {
                    // A bound is met when the leaf ends there, which takes another look.
                    if !matches!(need, Need::Bound(_)) {
                        needs.pop();
                    }
                    memory = None;
                }
                SplitAttempt::Met => {
                    needs.pop();
                }
                SplitAttempt::ParentFull(separator) => {
                    needs.push(Need::Separator(separator, level + 1))
                }
                SplitAttempt::SharedFull(separator, addr) => {
                    let first = First::MakeRoom(level + 1, separator);
                    self.refresh(session, location.parent, addr, first).await?;
                }
                SplitAttempt::Again => context.again(self, session).await?,
            }
        }
        Ok(())
    }

    /// One attempt at splitting the node at `spot`.
    async fn split_at(
        self: &Arc<Self>,
        session: &Session,
        location: Location,
        need: &Need,
        new: &NodeMemory,
        hand: &mut Option<OwnedFrame>,
    ) -> Result<SplitAttempt, DexFail> {
        // Parent before child.
        let Some(above) = self.pages.try_sx(location.parent, location.parent_version) else {
            self.pages.wait_for_frame(location.parent).await;
            return Ok(SplitAttempt::Again);
        };
        let Some(sx) = self.pages.try_sx(location.frame, location.version) else {
            drop(above);
            self.pages.wait_for_frame(location.frame).await;
            return Ok(SplitAttempt::Again);
        };
        let ctl = self.pages.frames.ctl(location.frame);
        let layout = self.layout();
        if ctl.is_shared() {
            // It has become that meanwhile: its room is made remotely, from below.
            return Err(DexFail::Restart);
        }
        if need.level() > 0 && (!self.drain_pins(session, location.frame).await || hand.is_none()) {
            return Ok(SplitAttempt::Again);
        }
        // Pointers stay swizzled in these two: the node's code only moves them.
        let mut left = vec![0; layout.node_words()];
        self.pages.frames.copy(location.frame, &mut left);
        if need.is_met(self, &left) {
            return Ok(SplitAttempt::Met);
        }
        let mut right = vec![0; layout.node_words()];
        let mut right_node = NodeMut::new(layout, right.as_mut_slice());
        let mut left_node = NodeMut::new(layout, left.as_mut_slice());
        let split = match need {
            Need::Bound(bound) => {
                match left_node.cut_leaf_at(bound, &mut right_node, new.addr().word()) {
                    // The new fences take more than the old ones: with fewer entries they fit.
                    Err(ChangeError::NoRoom) => {
                        left_node.split_for(bound, &mut right_node, new.addr().word(), 0)
                    }
                    cut => cut,
                }
            }
            _ => left_node.split_for(need.key(), &mut right_node, new.addr().word(), 0),
        };
        let split = split.map_err(|error| self.damaged(location.frame, error))?;
        let shared = self.pages.frames.ctl(location.parent).is_shared();
        let mut parent = vec![0; layout.node_words()];
        self.pages.frames.copy(location.parent, &mut parent);
        if Need::Separator(split.separator.clone(), 0).is_met(self, &parent) {
            // There is room.
        } else if shared {
            let addr = self.pages.frames.ctl(location.parent).addr_word();
            return Ok(SplitAttempt::SharedFull(split.separator, addr));
        } else {
            return Ok(SplitAttempt::ParentFull(split.separator));
        }
        let client = session.client();
        let mut image = client.buf(layout.node_bytes());
        image.words_mut().copy_from_slice(&right);
        // The right part holds what the left one did (INV-DEX-LOG-2).
        let version = self.log.version(need.level(), ctl.version());
        let mut right_image = Some(self.pages.remote_image(image, version));
        if !SPLIT_OLD_FIRST.is_armed()
            && let Some(image) = right_image.take()
        {
            self.write_page(session, new.addr(), image, 0).await?;
        }
        let mut image = client.buf(layout.node_bytes());
        image.words_mut().copy_from_slice(&left);
        let image = self.pages.remote_image(image, version);
        new.object.keep();
        let written =
            self.write_page(session, self.pages.frames.addr(location.frame), image, 8).await;
        self.ownership.must_succeed(written)?;
        if let Some(image) = right_image {
            self.write_page(session, new.addr(), image, 0).await?;
        }
        if shared {
            // Remote memory may have another parent meanwhile; the separator goes to the one that covers
            // the key.
            let level = need.level() + 1;
            let _turn = self.post_turn(false).await;
            let posted =
                self.remote.post_separator(session, level, &split.separator, new.addr()).await;
            // A B-link tree does without the separator: an operation that is led right for want of it posts
            // it. So it does not matter that somebody held the parent's lock for too long.
            drop(posted);
        }

        // Remote memory has both. Now the cache, in one moment: both latches are X.
        let (parent, node) = (above.into_x(), sx.into_x());
        self.pages.frames.store(node, &left);
        ctl.set_version(version);
        ctl.set_dirty(false);
        let pointer = match hand.take() {
            Some(hand) => {
                let frame = hand.take();
                self.pages.frames.fill(frame, &right, new.addr().word(), need.level(), version);
                self.pages.adopt_children(frame, &right);
                self.pages.adopt_children(node, &left);
                self.pages.frames.ctl(frame).set_parent(parent);
                let above = self.pages.frames.ctl(parent);
                above.set_swizzled(above.swizzled() + 1);
                self.pages.enter(frame)
            }
            None => new.addr().word(),
        };
        let posted =
            self.pages.frames.node_mut(layout, parent).insert_separator(&split.separator, pointer);
        debug_assert!(posted.is_ok(), "there was room: {posted:?}");
        self.pages.frames.ctl(parent).set_dirty(!shared);
        self.pages.release_x(node);
        self.pages.release_x(parent);
        self.stats.splits.add();
        Ok(SplitAttempt::Done)
    }

    /// Grows the tree until `level` exists: puts a root with one child over the old one.
    ///
    /// Cost: 2 WRITEs, one after the other.
    pub(crate) async fn grow_now(
        self: &Arc<Self>,
        session: &Session,
        level: u8,
    ) -> Result<(), DexFail> {
        let bytes = self.layout().node_bytes();
        let Some(root) = self.pages.frames.unswizzle(self.pages.frames.root()) else {
            return Err(DexFail::Restart);
        };
        let above = self.pages.frames.ctl(root).level() + 1;
        let on = self.server_beside(self.pages.frames.addr(root), above);
        let new = NodeMemory::alloc(self, session, on, above).await?;
        let Some(hand) = self.take_frame(session).await? else { return Err(DexFail::NoFrame) };
        let Some(sx) = self.pages.sx_now(TOP) else {
            self.pages.wait_for_frame(TOP).await;
            return Err(DexFail::Restart);
        };
        let Some(root) = self.pages.frames.unswizzle(self.pages.frames.root()) else {
            return Err(DexFail::Restart);
        };
        let above = self.pages.frames.ctl(root).level() + 1;
        if above > level {
            return Ok(());
        }
        if self.pages.frames.ctl(root).is_shared() {
            // A shared root grows under its lock.
            return Err(DexFail::Restart);
        }
        let child = self.pages.frames.addr(root);
        if self.server_beside(child, above).is_some_and(|server| Some(server) != new.near) {
            // The root has changed meanwhile.
            return Err(DexFail::Restart);
        }
        let mut image = session.client().buf(bytes);
        let head = Head { addr: new.addr().word(), level: above, version: 1, ..Head::default() };
        self.layout()
            .encode_inner(image.words_mut(), &head, &[child.word()], &[] as &[&[u8]])
            .map_err(|error| self.remote.damaged(child, error))?;
        let written = session.reliable().copy(&image);
        self.write_page(session, new.addr(), written, 0).await?;
        new.object.keep();
        let published = self.publish_root(session, new.addr(), above).await;
        self.ownership.must_succeed(published)?;
        sx.into_x();
        let frame = hand.take();
        self.pages.frames.fill(frame, image.words(), new.addr().word(), above, 1);
        self.pages.attach_child(frame, 0, root);
        self.pages.frames.set_root(self.pages.enter(frame));
        self.pages.release_x(TOP);
        Ok(())
    }
}

/// The result of an attempt at a split.
enum SplitAttempt {
    Done,
    /// There was room already.
    Met,
    /// The parent has no room for this separator.
    ParentFull(Vec<u8>),
    /// The parent, at this address, lacks room, and other compute servers may change it.
    SharedFull(Vec<u8>, u64),
    Again,
}
