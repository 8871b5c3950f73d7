//! I/O marks: give one task the right to work on a node that is not cached, and admit the node.
//!
//! - `INV-DEX-IO` A node is read from, and a leaf that is not cached written to, remote memory only
//!   under the `Io` mark of its address. So no two tasks of this compute server work on one node
//!   remotely, and only the first that misses it reads it.
//! - `INV-DEX-PIN` A mark holds a pin on the parent's frame: the parent stays Hot, and keeps
//!   the child, as long as the mark is there.

use std::sync::Arc;

use farleaf_fabric::GlobalAddr;
use farleaf_index::compute::ownership::Range;
use farleaf_index::local::Version;

use super::PageCache;
use super::eviction::OwnedFrame;
use super::frames::{FrameState, TOP};
use super::mapping_table::Mapping;
use crate::dex::stats::Cause;

/// A child that is not cached, as its parent names it.
#[derive(Debug)]
pub(crate) struct MissedChild {
    pub(crate) addr: u64,
    /// The parent's frame, which was Hot at `version`.
    pub(crate) parent: u32,
    pub(crate) version: Version,
    /// The child's level.
    pub(crate) level: u8,
    /// The range that the parent gives the child.
    pub(crate) range: Range,
}

/// The right to work on a node that is not cached, and the duty to end that: the `Io` mark of its address
/// and the pin on its parent. Dropping it gives both back.
#[derive(Debug)]
pub(crate) struct IoMark {
    pages: Arc<PageCache>,
    pub(crate) addr: u64,
    pub(crate) parent: u32,
    /// The node's level.
    pub(crate) level: u8,
    /// Others may change the node, or the parent, which may then be out of date.
    pub(crate) shared: bool,
    pub(crate) shared_parent: bool,
    /// The range that the parent gives the node.
    pub(crate) range: Range,
    /// The purpose of the READ.
    pub(crate) cause: Cause,
    armed: bool,
}

impl IoMark {
    /// Marks a child that has no entry in the mapping table. `crosses` says whether others may change a
    /// node of a range.
    pub(crate) fn take(
        pages: &Arc<PageCache>,
        child: MissedChild,
        crosses: impl FnOnce(Option<&[u8]>, Option<&[u8]>) -> bool,
    ) -> Option<IoMark> {
        let MissedChild { addr, parent, version, level, range } = child;
        if pages.map.claim(addr, Mapping::Io).is_err() {
            return None;
        }
        if !pages.frames.pin(parent, version) {
            pages.map.exchange(addr, Some(Mapping::Io), None);
            pages.lot.unpark(addr);
            return None;
        }
        // A miss below an inner node is a use of that node.
        if parent != TOP {
            pages.frames.note_use(parent);
        }
        let shared_parent = pages.frames.ctl(parent).is_shared();
        // Below an exclusive parent the node is exclusive still (INV-DEX-SHARED-3), also if a range is just
        // being given away: the parent is pinned, and becomes shared before the node does.
        let shared = shared_parent && crosses(range.low.as_deref(), range.high.as_deref());
        let pages = Arc::clone(pages);
        let (cause, armed) = (Cause::Descent, true);
        Some(IoMark { pages, addr, parent, level, shared, shared_parent, range, cause, armed })
    }

    /// The node's address.
    pub(crate) fn addr(&self) -> GlobalAddr {
        GlobalAddr::from_word(self.addr).unwrap_or(GlobalAddr::NULL)
    }

    /// Puts the node's image into a frame and makes that the parent's child, or leaves it Cooling if
    /// somebody holds the parent.
    pub(crate) fn admit(
        mut self,
        frame: OwnedFrame,
        image: &[u64],
        version: u64,
        shared: bool,
        worker: u32,
    ) {
        let pages = Arc::clone(&self.pages);
        let frame = frame.take();
        pages.frames.fill(frame, image, self.addr, self.level, version);
        let ctl = pages.frames.ctl(frame);
        ctl.set_shared(shared);
        let taken = pages.x_now(self.parent);
        let slot = taken
            .then(|| pages.frames.node(&pages.layout, self.parent).find_child(self.addr))
            .flatten();
        debug_assert_eq!(slot.is_some(), taken, "INV-DEX-PIN: the parent keeps the child");
        match slot {
            Some(index) => pages.attach_child(self.parent, index, frame),
            None if ctl.is_shared() => {
                // INV-DEX-SHARED-3: a later operation reads it again.
                ctl.set_state(FrameState::Free);
                pages.free.push(worker, frame);
                return;
            }
            None => ctl.set_state(FrameState::Cooling),
        }
        ctl.latch.revive();
        let to = Some(Mapping::Resident(frame));
        let settled = pages.map.exchange(self.addr, Some(Mapping::Io), to);
        debug_assert!(settled, "INV-DEX-MAP-2");
        if slot.is_none() {
            pages.put_cooling(self.addr, frame, worker);
        }
        if taken {
            pages.release_x(self.parent);
        }
        self.armed = false;
        self.give_back();
    }

    /// Turns the mark into another one; the caller takes over the duty to end that and to unpin the parent.
    pub(crate) fn convert(mut self, to: Mapping) -> Arc<PageCache> {
        let marked = self.pages.map.exchange(self.addr, Some(Mapping::Io), Some(to));
        debug_assert!(marked, "INV-DEX-MAP-2");
        self.armed = false;
        Arc::clone(&self.pages)
    }

    fn give_back(&self) {
        self.pages.frames.unpin(self.parent);
        self.pages.lot.unpark(self.addr);
    }
}

impl Drop for IoMark {
    fn drop(&mut self) {
        if self.armed {
            self.pages.map.exchange(self.addr, Some(Mapping::Io), None);
            self.give_back();
        }
    }
}
