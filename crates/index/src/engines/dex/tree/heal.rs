//! Healing: finishes or undoes the changes that a crash left half done, when an operation meets them.
//!
//! The states that there can be exclude each other by the fences; see `docs/design/dex.md`, Death.

use std::sync::Arc;

use farleaf_fabric::Buf;
use farleaf_pool::Session;

use super::split::Need;
use super::walk::{Seek, Spot, Unfinished};
use crate::IndexError;
use crate::bnode::{ChangeError, Node, NodeMut};
use crate::engines::dex::cache::Heal;
use crate::engines::dex::shared::First;
use crate::engines::dex::{Cache, Fail, Found, OpContext};

impl Cache {
    /// Finishes what a crash has left half done.
    pub(crate) async fn heal(self: &Arc<Self>, session: &Session, heal: Heal) -> Result<(), Fail> {
        match heal {
            Heal::Separator(unfinished) => {
                self.stats.separators_healed.add();
                self.post_separator(session, unfinished).await
            }
            Heal::Stale { frame, addr, unfinished } => {
                let first = unfinished.map_or(First::Nothing, First::Post);
                self.refresh(session, frame, addr, first).await
            }
            Heal::Dead { level, low, image } => self.heal_dead(session, level, low, image).await,
            Heal::Absorbed { level, bound } => {
                // The separator goes, and the child behind it, which is dead.
                let spot = self.find_inner(session, Seek::At(&bound), level).await?;
                let Some(sx) = self.try_sx(spot.frame, spot.version) else {
                    self.wait_for_frame(spot.frame).await;
                    return Err(Fail::Restart);
                };
                if self.frames.ctl(spot.frame).is_shared() {
                    // It has become that meanwhile.
                    return Err(Fail::Restart);
                }
                let node = self.frames.node(self.layout(), spot.frame);
                let index = node.child_for(&bound).0;
                let next = node.child(index + 1).unwrap_or(0);
                if self.frames.unswizzle(next).is_some() || self.map.get(next).is_some() {
                    // Somebody has just met it and sees to it.
                    return Err(Fail::Restart);
                }
                self.stats.merges_finished.add();
                let frame = sx.into_x();
                let removed = self.frames.node_mut(self.layout(), frame).remove_separator(index);
                self.frames.ctl(frame).set_dirty(true);
                self.release_x(frame);
                removed.map_err(|error| self.remote.damaged(self.frames.addr(frame), error))?;
                Ok(())
            }
        }
    }

    /// Adds the separator of a split that the parent does not know of. May be done again.
    async fn post_separator(
        self: &Arc<Self>,
        session: &Session,
        unfinished: Unfinished,
    ) -> Result<(), Fail> {
        let Unfinished { level, separator, right } = unfinished;
        let mut restarts = OpContext::default();
        loop {
            // Boxed: finding a node may meet another such split on its way.
            let found =
                Box::pin(self.find(session, Seek::At(&separator), level, false, &mut restarts));
            let spot = match found.await? {
                Found::Spot(spot) => spot,
                Found::Missing(_) | Found::Offload(_) | Found::Awaited(_) => {
                    return Err(Fail::Restart);
                }
                Found::TooLow => {
                    self.grow_now(session, level).await?;
                    continue;
                }
            };
            if !self.frames.ctl(spot.frame).latch.try_x(spot.version) {
                self.wait_for_frame(spot.frame).await;
                restarts.again(self, session).await?;
                continue;
            }
            if self.frames.ctl(spot.frame).is_shared() {
                self.release_x(spot.frame);
                return Err(Fail::Restart);
            }
            let mut node = self.frames.node_mut(self.layout(), spot.frame);
            let posted = node.insert_separator(&separator, right);
            if posted.is_ok() {
                self.frames.ctl(spot.frame).set_dirty(true);
            }
            let addr = self.frames.addr(spot.frame);
            self.release_x(spot.frame);
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

    /// A node of a level above the leaves.
    async fn find_inner(
        self: &Arc<Self>,
        session: &Session,
        seek: Seek<'_>,
        level: u8,
    ) -> Result<Spot, Fail> {
        let mut restarts = OpContext::default();
        // Boxed: finding a node may meet something else to heal on its way.
        match Box::pin(self.find(session, seek, level, false, &mut restarts)).await? {
            Found::Spot(spot) => Ok(spot),
            _ => Err(Fail::Restart),
        }
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
    ) -> Result<(), Fail> {
        let dead = Node::new(self.layout(), image.words());
        let (addr, version) = (dead.self_addr(), dead.version());
        // A first child is never merged away, so there is a left neighbour, and a fence to it.
        let Some(low) = low else { return Err(self.dead_child(addr)) };
        let spot = self.find_inner(session, Seek::After(&low), level).await?;
        let Some(sx) = self.try_sx(spot.frame, spot.version) else {
            self.wait_for_frame(spot.frame).await;
            return Err(Fail::Restart);
        };
        if self.frames.ctl(spot.frame).is_shared() {
            return Err(Fail::Restart);
        }
        let node = self.frames.node(self.layout(), spot.frame);
        let index = match node.find_child(addr) {
            Some(0) => return Err(self.dead_child(addr)),
            Some(index) => index,
            // Somebody was quicker.
            None => return Ok(()),
        };
        let left = node.child(index - 1).unwrap_or(0);
        let mut fence = Vec::new();
        let finite = match self.frames.unswizzle(left) {
            // Its slot keeps it where it is, and its fences only change together with its parent.
            Some(frame) => self.frames.node(self.layout(), frame).high_fence(&mut fence),
            None => {
                let left = self.remote.pointer(left, self.frames.addr(spot.frame))?;
                self.stats.reads_heal.add();
                let image = self.read_node(session, left, level - 1).await?;
                Node::new(self.layout(), image.words()).high_fence(&mut fence)
            }
        };
        if finite && fence == low {
            let at = self.remote.pointer(addr, self.frames.addr(spot.frame))?;
            let mut node = NodeMut::new(self.layout(), image.words_mut());
            node.mark_alive();
            node.seal(self.log.version(level - 1, version));
            self.write_page(session, at, image, 8).await?;
            self.stats.merges_undone.add();
            return Ok(());
        }
        self.stats.merges_finished.add();
        let frame = sx.into_x();
        let removed = self.frames.node_mut(self.layout(), frame).remove_separator(index - 1);
        self.frames.ctl(frame).set_dirty(true);
        self.release_x(frame);
        removed.map_err(|error| self.remote.damaged(self.frames.addr(frame), error))?;
        Ok(())
    }

    fn dead_child(&self, addr: u64) -> Fail {
        Fail::Error(IndexError::Corrupt(format!(
            "a node of the table at {} points to a dead node at {addr:#x}",
            self.remote.meta()
        )))
    }
}
