//! Swizzling: turns child pointers into numbers of frames while the child is Hot, and back.
//!
//! - `INV-DEX-PATH` The parent of a Hot frame is Hot and its slot is swizzled to the frame: a
//!   frame with swizzled children is no victim.
//! - `INV-DEX-PTR` Bit 63, which marks a pointer to a frame, is in no word of remote memory. The tree
//!   checks it before every WRITE of a page, and after every READ.

use farleaf_fabric::Buf;
use farleaf_index::bnode::{Kind, Node, NodeMut};

use super::PageCache;
use super::frames::FrameState;

impl PageCache {
    /// Makes a frame that the caller owns the Hot child `index`, under X of the parent.
    pub(crate) fn attach_child(&self, parent: u32, index: usize, frame: u32) {
        let (ctl, above) = (self.frames.ctl(frame), self.frames.ctl(parent));
        let done =
            self.frames.node_mut(&self.layout, parent).set_child(index, self.frames.swizzle(frame));
        debug_assert_eq!(done, Ok(()), "the slot was found under the same latch");
        above.set_swizzled(above.swizzled() + 1);
        ctl.set_parent(parent);
        ctl.set_state(FrameState::Hot);
    }

    /// Writes the remote address of child `index` over the pointer to its frame, under X of the parent.
    pub(crate) fn detach_child(&self, parent: u32, index: usize, addr: u64) {
        let done = self.frames.node_mut(&self.layout, parent).set_child(index, addr);
        debug_assert_eq!(done, Ok(()), "the slot was found under the same latch");
        let above = self.frames.ctl(parent);
        above.set_swizzled(above.swizzled() - 1);
    }

    /// Gives the Cooling child `index` its second chance, under X of the parent: swizzles it again.
    /// Fails if the child is not in its bucket.
    pub(crate) fn promote(&self, parent: u32, index: usize, addr: u64, frame: u32) -> bool {
        if !self.cooling.remove(addr, frame) {
            return false;
        }
        // INV-DEX-COOL-1: this thread took it out, so it owns the frame.
        let ctl = self.frames.ctl(frame);
        debug_assert_eq!((ctl.state(), ctl.addr_word()), (FrameState::Cooling, addr));
        self.attach_child(parent, index, frame);
        self.stats.second_chances.add();
        true
    }

    /// Makes `frame` the parent of all swizzled children of the image `words`. The caller has X of the
    /// frame that was their parent.
    pub(crate) fn adopt_children(&self, frame: u32, words: &[u64]) {
        let node = Node::new(&self.layout, words);
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

    /// Turns a copy of a frame's words into an image for remote memory: addresses in place of swizzled
    /// pointers (`INV-DEX-PTR`), sealed as `version`. The caller holds the frame's SX or X.
    pub(crate) fn remote_image(&self, mut image: Buf, version: u64) -> Buf {
        let node = Node::new(&self.layout, image.words());
        let children: Vec<u64> = match node.kind() {
            Kind::Inner => (0..=node.count()).filter_map(|index| node.child(index)).collect(),
            _ => Vec::new(),
        };
        let mut node = NodeMut::new(&self.layout, image.words_mut());
        for (index, pointer) in children.into_iter().enumerate() {
            if self.frames.unswizzle(pointer).is_some() {
                let done = node.set_child(index, self.frames.addr_of(pointer));
                debug_assert_eq!(done, Ok(()), "one of its children");
            }
        }
        node.seal(version);
        image
    }
}
