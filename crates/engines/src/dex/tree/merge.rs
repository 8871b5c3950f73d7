//! Merge: moves the entries of a sparse node into its left neighbour.
//!
//! Parent, left and right are held with SX, in this order, by trying. Then, remotely: right dead, its
//! content still in it; left with all content; the parent without right (each written before the
//! next). Then all three in the cache, in one moment, and right is retired. Readers go on meanwhile:
//! they see the state before, which cannot change as writers are kept out.
//!
//! A crash in between leaves one of two states, which the fences tell apart: right is dead and left
//! does not cover it, then the operation that meets right revives it; or left covers it, then that
//! operation removes the parent's separator. The cache never holds a dead node, so that nobody can have
//! changed it since.

use std::sync::Arc;

use farleaf_fabric::OpKind;
use farleaf_index::Seek;
use farleaf_index::bnode::{Node, NodeMut, Word};
use farleaf_pool::Session;

use super::{DexFail, DexTree};
use crate::dex::cache::{FrameState, TOP};

impl DexTree {
    /// Returns whether a node has become so empty that a neighbour could absorb it.
    pub(crate) fn is_sparse<W: Word>(&self, node: &Node<'_, W>) -> bool {
        (node.used_bytes() as f64) < node.capacity_bytes() as f64 * self.options.merge_low
    }

    /// Tries to merge the leaf that covers `key` with a neighbour, and goes on upwards where that
    /// leaves a parent sparse. Gives up wherever somebody is busy or something is not cached: merging
    /// is never needed.
    ///
    /// Its cost counts as maintenance: 4 WRITEs for one merge.
    pub(crate) async fn merge(self: &Arc<Self>, session: &Session, key: &[u8]) {
        let key = key.to_vec();
        let before = session.client().charge_to(OpKind::Maintenance);
        self.detach(session, |tree, session| async move {
            let mut level = 0;
            while let Ok(true) = tree.merge_now(&session, &key, level).await {
                level += 1;
            }
        })
        .await;
        session.client().charge_to(before);
    }

    /// One merge; says whether the parent is sparse now.
    async fn merge_now(
        self: &Arc<Self>,
        session: &Session,
        key: &[u8],
        level: u8,
    ) -> Result<bool, DexFail> {
        if self.ownership.is_moving() {
            return Ok(false);
        }
        let Some(location) = self.find_cached(Seek::At(key), level) else { return Ok(false) };
        if location.parent == TOP {
            return Ok(false);
        }
        let Some(above) = self.pages.try_sx(location.parent, location.parent_version) else {
            return Ok(false);
        };
        let (layout, frames) = (self.layout(), &self.pages.frames);
        let parent = frames.node(layout, above.frame());
        // Below a shared parent nothing is merged: it would take its remote lock.
        if parent.count() == 0 || frames.ctl(above.frame()).is_shared() {
            return Ok(false);
        }
        // The right neighbour where there is one under this parent, else the left one.
        let index = parent.child_for(key).0.min(parent.count() - 1);
        let pair = [index, index + 1].map(|child| {
            let frame = parent.child(child).and_then(|pointer| frames.unswizzle(pointer))?;
            let version = frames.ctl(frame).latch.sample()?;
            self.pages.try_sx(frame, version)
        });
        let [Some(left_sx), Some(right_sx)] = pair else { return Ok(false) };
        let (left, right) = (left_sx.frame(), right_sx.frame());
        // Children on their way would miss their parent.
        if !self.drain_pins(session, right).await || !self.drain_pins(session, left).await {
            return Ok(false);
        }
        debug_assert!([left, right].iter().all(|frame| !frames.ctl(*frame).is_shared()));
        let copy = |frame| {
            let mut words = vec![0; layout.node_words()];
            frames.copy(frame, &mut words);
            words
        };
        let [mut left_words, right_words, mut parent_words] =
            [left, right, above.frame()].map(copy);
        let percent = (self.options.merge_sum * 100.0) as usize;
        {
            let nodes = [&left_words, &right_words].map(|words| Node::new(layout, words));
            let sparse = self.is_sparse(&nodes[0]) || self.is_sparse(&nodes[1]);
            if !sparse || !nodes[0].can_merge(&nodes[1], percent) {
                return Ok(false);
            }
        }
        let (left_addr, right_addr) = (frames.addr(left), frames.addr(right));
        if !self.may_unite(left_addr, right_addr, level) {
            return Ok(false);
        }
        NodeMut::new(layout, left_words.as_mut_slice())
            .merge_right(&Node::new(layout, &right_words))
            .map_err(|error| self.remote.damaged(left_addr, error))?;
        NodeMut::new(layout, parent_words.as_mut_slice())
            .remove_separator(index)
            .map_err(|error| self.damaged(above.frame(), error))?;
        let parent_sparse = self.is_sparse(&Node::new(layout, &parent_words));
        let retiring = session.prepare_retire(right_addr).await?;
        // The whole holds what both did (INV-DEX-LOG-2).
        let both = frames.ctl(left).version().max(frames.ctl(right).version());
        let merged = self.log.version(level, both);
        let versions = [merged, merged, frames.ctl(above.frame()).version() + 1];
        let images = [&right_words, &left_words, &parent_words];
        let places = [right_addr, left_addr, frames.addr(above.frame())];
        for ((addr, words), version) in places.into_iter().zip(images).zip(versions) {
            let mut image = session.client().buf(layout.node_bytes());
            image.words_mut().copy_from_slice(words);
            let mut image = self.pages.remote_image(image, version);
            if addr == right_addr {
                // Not before: a dead node has no children that could be found.
                let mut dead = NodeMut::new(layout, image.words_mut());
                dead.mark_dead();
                dead.seal(version);
            }
            let written = self.write_page(session, addr, image, 8).await;
            self.ownership.must_succeed(written)?;
        }

        let forgotten = self.log.forget_images(session, right_addr).await;
        self.ownership.must_succeed(forgotten)?;

        // Remote memory has it. Now the cache, in one moment.
        let (parent, left, right) = (above.into_x(), left_sx.into_x(), right_sx.into_x());
        frames.store(left, &left_words);
        self.pages.adopt_children(left, &left_words);
        frames.store(parent, &parent_words);
        let ctl = frames.ctl(parent);
        ctl.set_swizzled(ctl.swizzled() - 1);
        for (frame, version) in [(left, versions[1]), (parent, versions[2])] {
            frames.ctl(frame).set_version(version);
            frames.ctl(frame).set_dirty(false);
        }
        debug_assert_eq!(frames.ctl(right).state(), FrameState::Hot);
        self.pages.unmap(right, session.id());
        self.pages.release_x(left);
        self.pages.release_x(parent);
        session.retire(retiring);
        self.stats.merges.add();
        Ok(parent_sparse)
    }
}
