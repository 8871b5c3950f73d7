//! Swizzling: turns child pointers into numbers of frames while the child is Hot, and back.
//!
//! - `INV-DEX-PATH` The parent of a Hot frame is Hot and its slot is swizzled to the frame: a
//!   frame with swizzled children is no victim.
//! - `INV-DEX-PTR` Bit 63, which marks a pointer to a frame, is in no word of remote memory. The tree
//!   checks it before every WRITE of a page, and after every READ.

use farleaf_fabric::Buf;
use farleaf_index::bnode::{Kind, Node, NodeMut};

use super::PageCache;
use super::frames::{FrameState, TOP};
use super::mapping_table::Mapping;

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

    /// Takes the pointer to a frame out of its parent, whose X is held, or out of the top. Fails if the frame
    /// has got another parent, or the parent's frame another node.
    pub(crate) fn unlink(&self, parent: u32, frame: u32) -> bool {
        let (ctl, pointer) = (self.frames.ctl(frame), self.frames.swizzle(frame));
        if parent == TOP {
            let is_root = self.frames.root() == pointer;
            if is_root {
                self.frames.set_root(0);
            }
            return is_root;
        }
        if ctl.parent() != parent {
            return false;
        }
        let Some(index) = self.frames.node(&self.layout, parent).find_child(pointer) else {
            return false;
        };
        self.detach_child(parent, index, ctl.addr_word());
        true
    }

    /// Makes the node in a frame that the caller has filled Hot, and lets others find it. Returns the pointer to
    /// it, for its parent or the top, whose X is held.
    pub(crate) fn enter(&self, frame: u32) -> u64 {
        let ctl = self.frames.ctl(frame);
        ctl.set_state(FrameState::Hot);
        let entered = self.map.claim(ctl.addr_word(), Mapping::Resident(frame));
        debug_assert_eq!(entered, Ok(()), "nobody knew of it");
        ctl.latch.revive();
        self.frames.swizzle(frame)
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
        let mut swizzled = 0;
        for (_, child) in self.frames.children(Node::new(&self.layout, words)) {
            self.frames.ctl(child).set_parent(frame);
            swizzled += 1;
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
