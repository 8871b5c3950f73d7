//! Scan prefetch: reads the next leaves of a scan together with one that it missed.
//!
//! The scan marks each leaf as any node that it reads (`INV-DEX-IO`), so that this cache has no newer image
//! than remote memory, and admits it as any leaf. The scan goes through the image later, when others may
//! have changed the leaf. The image is still of one moment of the scan, as each leaf of a scan is of a
//! moment of its own. Fences decide which leaf comes next, not the order of the READs.
//!
//! It marks leaves below an exclusive parent only. If a range is being given away, the nodes that cross its
//! ends have become shared before it is closed. So a leaf below an exclusive parent is open or closed
//! together with the place for which the scan has entered the range guard.

use std::collections::VecDeque;
use std::sync::Arc;

use farleaf_fabric::Buf;
use farleaf_index::bnode::{Cover, Layout, Node};
use farleaf_index::{ScanCursor, Seek};
use farleaf_pool::Session;

use super::miss::Arrival;
use super::{DexFail, DexTree};
use crate::dex::cache::{IoMark, MissedChild};
use crate::dex::stats::Cause;

/// Most leaves that are read ahead at a time, whatever is asked for.
const AHEAD_MAX: usize = 64;

/// The leaves that a scan may still want behind one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    /// At most so many leaves that are not cached are read.
    pub(crate) missing: usize,
    /// The scan looks no further than so many leaves, cached or not.
    pub(crate) leaves: usize,
}

/// Takes the image of the leaf that covers the place, if a scan has read it ahead: `images` has the nearest first.
/// Images before it are of no use any more; those behind may be, if the leaves in between are cached.
pub(crate) fn take_ahead(
    images: &mut VecDeque<Buf>,
    layout: &Layout,
    seek: Seek<'_>,
) -> Option<Buf> {
    let covers = |image: &Buf| Node::new(layout, image.words()).covers_place(seek) == Cover::Inside;
    let at = images.iter().position(covers)?;
    images.drain(..at);
    images.pop_front()
}

impl DexTree {
    /// Marks leaves behind that of `first`, the nearest first: those that are not cached, are not worked on
    /// by another task, and begin before the end of the scan, as far as the parent names them.
    pub(crate) fn mark_behind(
        self: &Arc<Self>,
        first: &IoMark,
        cursor: &ScanCursor<'_>,
        span: Span,
    ) -> Vec<IoMark> {
        let mut marks = Vec::new();
        let above = self.pages.frames.ctl(first.parent);
        let (Some(version), false) = (above.latch.sample(), above.is_shared()) else {
            return marks;
        };
        let node = self.pages.frames.node(self.layout(), first.parent);
        let Some(mut at) = node.find_child(first.addr) else { return marks };
        let reverse = cursor.is_reverse();
        let mut fence = Vec::new();
        for _ in 0..span.leaves {
            if marks.len() == span.missing.min(AHEAD_MAX) {
                break;
            }
            let next = if reverse { at.checked_sub(1) } else { Some(at + 1) };
            let Some(next) = next else { break };
            if node.separator(at.min(next), &mut fence) && cursor.ends_before(&fence) {
                break;
            }
            let (Some(child), range) = (node.child(next), Self::child_range(&node, next)) else {
                break;
            };
            if !above.latch.validate(version) {
                break;
            }
            at = next;
            if self.pages.frames.unswizzle(child).is_some() || child == 0 {
                continue;
            }
            let parent = first.parent;
            let child = MissedChild { addr: child, parent, version, level: 0, range };
            if let Some(mut mark) = self.mark(child) {
                mark.cause = Cause::Prefetch;
                marks.push(mark);
            }
        }
        marks
    }

    /// Reads a leaf that a scan has missed and those `behind`, and caches those that the admission policy
    /// chooses. Returns the images of the first one and of as many others as are in order. Runs to its end
    /// whatever becomes of the caller.
    ///
    /// Cost: 1 READ each, all in 1 round trip; 1 READ more if the first one was torn; 1 WRITE for each
    /// dirty node that has to make room.
    pub(crate) async fn read_leaves(
        self: &Arc<Self>,
        session: &Session,
        first: IoMark,
        behind: Vec<IoMark>,
    ) -> Result<VecDeque<Buf>, DexFail> {
        self.detach(session, |tree, session| async move {
            tree.read_leaves_now(&session, first, behind).await
        })
        .await
    }

    async fn read_leaves_now(
        self: &Arc<Self>,
        session: &Session,
        first: IoMark,
        behind: Vec<IoMark>,
    ) -> Result<VecDeque<Buf>, DexFail> {
        let (mut images, mut marks) = (VecDeque::new(), VecDeque::from(behind));
        if !marks.is_empty() {
            marks.push_front(first);
            images = self.read_together(session, &marks).await?;
            marks.truncate(images.len().max(1));
        } else {
            marks.push_front(first);
        }
        if images.is_empty()
            && let Some(first) = marks.pop_front()
        {
            // A READ of its own, or once more: it may have to wait, or to heal.
            match self.read_marked(session, &first).await? {
                Ok(image) => images.push_back(image),
                Err(heal) => {
                    drop(first);
                    self.heal(session, heal).await?;
                    return Err(DexFail::Restart);
                }
            }
            marks.push_front(first);
        }
        let mut kept = Vec::new();
        for (at, mark) in marks.into_iter().enumerate() {
            if self.pages.admits(session, mark.addr) {
                kept.push((at, mark));
            } else {
                self.stats.leaves_streamed.add();
            }
        }
        for (at, mark) in kept {
            match self.take_frame(session).await? {
                Some(frame) => self.admit(mark, frame, &images[at], session.id()),
                None => self.stats.leaves_streamed.add(),
            }
        }
        Ok(images)
    }

    /// READs marked leaves; returns the images of those before the first that is not in order.
    async fn read_together(
        &self,
        session: &Session,
        marks: &VecDeque<IoMark>,
    ) -> Result<VecDeque<Buf>, DexFail> {
        let reliable = session.reliable();
        let mut ops = session.client().ops();
        for mark in marks {
            self.stats.note_read(mark.cause, mark.level, mark.shared);
            ops.read(mark.addr(), reliable.buf(self.layout().node_bytes()));
        }
        let mut ops = reliable.post_many(ops).await?;
        let mut images = VecDeque::with_capacity(marks.len());
        for (at, mark) in marks.iter().enumerate() {
            let image = ops.take_buf(at);
            if !self.is_in_order(mark, &image) {
                self.stats.reads_in_vain.add_many((marks.len() - at) as u64);
                break;
            }
            images.push_back(image);
        }
        Ok(images)
    }

    /// Returns whether a leaf that was read is whole and covers the range that its parent gives it.
    fn is_in_order(&self, mark: &IoMark, image: &Buf) -> bool {
        let node = Node::new(self.layout(), image.words());
        self.remote.is_current(image, mark.addr(), mark.level)
            && matches!(Arrival::of(mark, &node), Ok(Arrival::Fits))
    }
}
