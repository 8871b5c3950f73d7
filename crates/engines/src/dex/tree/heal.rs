//! Healing: finishes or undoes the changes that a crash left half done, when an operation meets them.
//!
//! The fences tell the possible states apart; see `docs/design/dex.md`, Death.

use std::sync::Arc;

use farleaf_fabric::Buf;
use farleaf_index::bnode::{ChangeError, Node, NodeMut};
use farleaf_index::{IndexError, Seek};
use farleaf_pool::Session;

use super::shared::First;
use super::split::Need;
use super::walk::UnfinishedSplit;
use super::{DexFail, DexTree, OpContext};
use crate::dex::cache::Sx;

/// A change that a crash has left half done, as an operation met it.
#[derive(Debug)]
pub(super) enum Heal {
    /// A separator is missing.
    Separator(UnfinishedSplit),
    /// A child of the node of `level` that covers the place above `low` is dead.
    Dead { level: u8, low: Option<Vec<u8>>, image: Buf },
    /// The copy of the shared node at `addr` that `frame` holds is out of date; perhaps because of
    /// a split that nobody has finished.
    Stale { frame: u32, addr: u64, unfinished: Option<UnfinishedSplit> },
    /// The copy of the shared node at `addr` that `frame` holds is of an earlier ownership map.
    Unproven { frame: u32, addr: u64 },
    /// The node of `level` has a separator at `bound`, and the child below it covers the next one's range as well.
    Absorbed { level: u8, bound: Vec<u8> },
}

impl DexTree {
    /// As [`DexTree::heal`]; runs to its end whatever becomes of the caller.
    pub(super) async fn heal_detached(
        self: &Arc<Self>,
        session: &Session,
        heal: Heal,
    ) -> Result<(), DexFail> {
        let healing = |tree: Arc<Self>, session| async move { tree.heal(&session, heal).await };
        Box::pin(self.detach(session, healing)).await
    }

    /// Finishes what a crash has left half done.
    pub(super) async fn heal(
        self: &Arc<Self>,
        session: &Session,
        heal: Heal,
    ) -> Result<(), DexFail> {
        match heal {
            Heal::Separator(unfinished) => {
                self.stats.separators_healed.add();
                self.post_separator(session, unfinished).await
            }
            Heal::Stale { frame, addr, unfinished } => {
                let first = unfinished.map_or(First::Nothing, First::Post);
                self.refresh(session, frame, addr, first).await
            }
            Heal::Unproven { frame, addr } => self.prove(session, frame, addr).await,
            Heal::Dead { level, low, image } => self.heal_dead(session, level, low, image).await,
            Heal::Absorbed { level, bound } => {
                // The separator goes, and the child behind it, which is dead.
                let sx = self.hold_inner(session, Seek::At(&bound), level).await?;
                let node = self.pages.frames.node(self.layout(), sx.frame());
                let index = node.child_for(&bound).0;
                let next = node.child(index + 1).unwrap_or(0);
                if self.pages.frames.unswizzle(next).is_some() || self.pages.map.get(next).is_some()
                {
                    // Another task has just met it and handles it.
                    return Err(DexFail::Restart);
                }
                self.drop_dead(sx, index)
            }
        }
    }

    /// Adds the separator of a split that the parent does not know of. May be done again.
    async fn post_separator(
        self: &Arc<Self>,
        session: &Session,
        unfinished: UnfinishedSplit,
    ) -> Result<(), DexFail> {
        let UnfinishedSplit { level, separator, right } = unfinished;
        let mut context = OpContext::default();
        loop {
            // Boxed: finding a node may meet another such split on its way.
            let found = Box::pin(self.reach(session, Seek::At(&separator), level, &mut context));
            let Some(location) = found.await? else {
                self.grow_now(session, level).await?;
                continue;
            };
            if !self.pages.frames.ctl(location.frame).latch.try_x(location.version) {
                self.pages.wait_for_frame(location.frame).await;
                context.again(self, session).await?;
                continue;
            }
            if self.pages.frames.ctl(location.frame).is_shared() {
                self.pages.release_x(location.frame);
                return Err(DexFail::Restart);
            }
            let mut node = self.pages.frames.node_mut(self.layout(), location.frame);
            let posted = node.insert_separator(&separator, right);
            if posted.is_ok() {
                self.pages.frames.ctl(location.frame).set_dirty(true);
            }
            let addr = self.pages.frames.addr(location.frame);
            self.pages.release_x(location.frame);
            match posted {
                Ok(_) | Err(ChangeError::OtherChild { .. }) => return Ok(()),
                Err(ChangeError::NoRoom) => {
                    let need = Need::Separator(separator.clone(), level);
                    Box::pin(self.split_now(session, need)).await?;
                }
                Err(error) => return Err(self.remote.damaged(addr, error).into()),
            }
        }
    }

    /// Takes SX of a node of a level above the leaves, if it is exclusive.
    async fn hold_inner(
        self: &Arc<Self>,
        session: &Session,
        seek: Seek<'_>,
        level: u8,
    ) -> Result<Sx, DexFail> {
        let mut context = OpContext::default();
        // Boxed: finding a node may meet something else to heal on its way.
        let found = Box::pin(self.reach(session, seek, level, &mut context)).await?;
        let Some(location) = found else { return Err(DexFail::Restart) };
        let Some(sx) = self.pages.try_sx(location.frame, location.version) else {
            self.pages.wait_for_frame(location.frame).await;
            return Err(DexFail::Restart);
        };
        // It may have become shared meanwhile.
        if sx.ctl().is_shared() { Err(DexFail::Restart) } else { Ok(sx) }
    }

    /// Removes separator `index` of a node, and the child behind it, which is dead.
    fn drop_dead(&self, sx: Sx, index: usize) -> Result<(), DexFail> {
        self.stats.merges_finished.add();
        let frame = sx.into_x();
        let removed = self.pages.frames.node_mut(self.layout(), frame).remove_separator(index);
        self.pages.frames.ctl(frame).set_dirty(true);
        self.pages.release_x(frame);
        removed.map_err(|error| self.damaged(frame, error))?;
        Ok(())
    }

    /// A child is dead, says `image`: removes it from its parent if its left neighbour covers its
    /// range, else revives it.
    ///
    /// Cost: 1 READ or 1 WRITE.
    async fn heal_dead(
        self: &Arc<Self>,
        session: &Session,
        level: u8,
        low: Option<Vec<u8>>,
        mut image: Buf,
    ) -> Result<(), DexFail> {
        let dead = Node::new(self.layout(), image.words());
        let (addr, version) = (dead.self_addr(), dead.version());
        // A first child is never merged away, so there is a left neighbour, and a fence to it.
        let Some(low) = low else { return Err(self.dead_child(addr)) };
        let sx = self.hold_inner(session, Seek::After(&low), level).await?;
        let parent = self.pages.frames.addr(sx.frame());
        let node = self.pages.frames.node(self.layout(), sx.frame());
        let index = match node.find_child(addr) {
            Some(0) => return Err(self.dead_child(addr)),
            Some(index) => index,
            // Another task was quicker.
            None => return Ok(()),
        };
        let left = node.child(index - 1).unwrap_or(0);
        let mut fence = Vec::new();
        let finite = match self.pages.frames.unswizzle(left) {
            // Its slot keeps it where it is, and its fences only change together with its parent.
            Some(frame) => self.pages.frames.node(self.layout(), frame).high_fence(&mut fence),
            None => {
                let left = self.remote.pointer(left, parent)?;
                self.stats.reads_heal.add();
                let image = self.read_node(session, left, level - 1).await?;
                Node::new(self.layout(), image.words()).high_fence(&mut fence)
            }
        };
        if finite && fence == low {
            let at = self.remote.pointer(addr, parent)?;
            let mut node = NodeMut::new(self.layout(), image.words_mut());
            node.mark_alive();
            node.seal(self.log.version(level - 1, version));
            self.write_page(session, at, image, 8).await?;
            self.stats.merges_undone.add();
            return Ok(());
        }
        self.drop_dead(sx, index - 1)
    }

    fn dead_child(&self, addr: u64) -> DexFail {
        DexFail::Error(IndexError::Corrupt(format!(
            "a node of the table at {} points to a dead node at {addr:#x}",
            self.remote.meta()
        )))
    }
}
