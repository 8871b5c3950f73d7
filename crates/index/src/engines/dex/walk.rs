//! Descent: walks down the cache by optimistic lock coupling over swizzled pointers.
//!
//! Nothing here waits or touches the fabric. A walk ends at the node it wants, or says what keeps
//! it from there; the caller sees to that and walks again from the top.
//!
//! `INV-DEX-HOP`: read the child pointer, validate the parent, sample the child's latch,
//! validate the parent again. Without the last step the child could have been split, and its upper
//! half have moved away, between the pointer's reading and the latch's.

use std::sync::Arc;

use super::Cache;
use super::frames::{State, TOP};
use super::mapping_table::Entry;
use super::miss::{Heal, IoMark};
pub(super) use crate::bnode::Seek;
use crate::bnode::{Cover, Node, Word};
use crate::local::Version;

/// Levels that a walk goes down before it must have met inconsistent content.
const LEVELS_MAX: u32 = 64;

/// A Hot node and its parent, as they were when the walk came by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spot {
    pub(super) frame: u32,
    pub(super) version: Version,
    pub(super) parent: u32,
    pub(super) parent_version: Version,
}

/// A split whose separator the parent lacks: it was left unfinished by a crash.
#[derive(Clone, Debug)]
pub(super) struct Unfinished {
    /// Level of the parent.
    pub(super) level: u8,
    /// High fence of the left part.
    pub(super) separator: Vec<u8>,
    /// The right part.
    pub(super) right: u64,
}

/// How a walk ended.
#[derive(Debug)]
pub(super) enum Walk {
    /// At the node.
    At(Spot),
    /// At a child that is not cached. The claim to see to it is the caller's.
    Miss(IoMark),
    /// The root is not cached.
    NoRoot,
    /// At a child that somebody else is reading or changing: wait until its entry changes.
    Wait(u64),
    /// At a child on whose subtree readers run at the memory server: wait, or join them.
    Readers { addr: u64, parent: u32, version: Version, level: u8 },
    /// At a frame whose latch somebody holds: wait until it is free.
    Busy(u32),
    /// Something changed on the way.
    Again,
    /// The tree has no such level.
    TooLow,
    /// At a node that was left half done, or whose parent is out of date.
    Heal(Heal),
    /// At a node that does not cover what its parent says it covers.
    Astray(u64),
}

impl Cache {
    /// Walks to the node of `level` that `seek` wants.
    pub(super) fn walk(self: &Arc<Self>, seek: Seek<'_>, level: u8) -> Walk {
        let frames = &self.frames;
        let Some(mut parent_version) = frames.ctl(TOP).latch.sample() else { return Walk::Again };
        let Some(mut frame) = frames.unswizzle(frames.root()) else {
            return Walk::NoRoot;
        };
        let mut parent = TOP;
        let mut version = match self.hop(frame, parent, parent_version) {
            Some(version) => version,
            None => return Walk::Again,
        };
        for _ in 0..LEVELS_MAX {
            let ctl = frames.ctl(frame);
            let node = frames.node(self.layout(), frame);
            let at = node.level();
            let cover = seek.covered(&node);
            if at <= level || cover != Cover::Inside {
                let right = node.right();
                let mut separator = Vec::new();
                let finite = cover == Cover::Above && node.high_fence(&mut separator);
                if !ctl.latch.validate(version) {
                    return Walk::Again;
                }
                let unfinished =
                    (finite && right != 0).then(|| Unfinished { level: at + 1, separator, right });
                // What is out of date: the parent, or a root that is none any more.
                let stale = if parent == TOP { frame } else { parent };
                let stale_addr = frames.ctl(stale).addr_word();
                let is_shared = frames.ctl(stale).is_shared();
                if cover != Cover::Inside && !frames.ctl(parent).latch.validate(parent_version) {
                    return Walk::Again;
                }
                return match cover {
                    Cover::Inside if at < level => Walk::TooLow,
                    Cover::Inside => Walk::At(Spot { frame, version, parent, parent_version }),
                    _ if is_shared => {
                        Walk::Heal(Heal::Stale { frame: stale, addr: stale_addr, unfinished })
                    }
                    _ => match unfinished {
                        Some(unfinished) => Walk::Heal(Heal::Separator(unfinished)),
                        None => Walk::Astray(ctl.addr_word()),
                    },
                };
            }
            let (index, pointer) = seek.child(&node);
            if !ctl.latch.validate(version) {
                return Walk::Again;
            }
            let Some(child) = frames.unswizzle(pointer) else {
                match self.miss(frame, version, &node, at, index, pointer) {
                    // The child was Cooling and has been swizzled again.
                    None => match ctl.latch.sample() {
                        Some(now) => {
                            version = now;
                            if !frames.ctl(parent).latch.validate(parent_version) {
                                return Walk::Again;
                            }
                            continue;
                        }
                        None => return Walk::Again,
                    },
                    Some(ended) => return ended,
                }
            };
            match self.hop(child, frame, version) {
                Some(next) => {
                    (parent, parent_version, frame, version) = (frame, version, child, next)
                }
                None => return Walk::Again,
            }
        }
        Walk::Again
    }

    /// The Hot leaf that covers `key`, if all on the way to it is cached and nothing changes meanwhile:
    /// what a hit costs, and no more. Where it gives up, [`Cache::walk`] finds out why.
    ///
    /// Inner nodes are not asked whether they cover the key: a leaf that does is the right one,
    /// whichever way led there. And of the steps of `INV-DEX-HOP` the first validation is left out:
    /// it guards what is done with the pointer, and sampling a latch does no harm, as every pointer
    /// leads to some frame.
    #[inline]
    pub(super) fn hit(&self, key: &[u8]) -> Option<Spot> {
        let frames = &self.frames;
        // A copy: what is behind a reference is loaded anew after every look at a latch.
        let layout = *self.layout();
        let (mut parent, mut above) = (TOP, frames.latch(TOP));
        let mut parent_version = above.sample()?;
        let mut frame = frames.unswizzle(frames.root())?;
        for _ in 0..LEVELS_MAX {
            let latch = frames.latch(frame);
            let version = latch.sample()?;
            if !above.validate(parent_version) {
                return None;
            }
            let node = frames.node(&layout, frame);
            let level = node.level();
            if level == 0 {
                let covers = node.covers(key) == Cover::Inside;
                frames.note_use(frame);
                return (covers && latch.validate(version)).then_some(Spot {
                    frame,
                    version,
                    parent,
                    parent_version,
                });
            }
            let (_, pointer) = node.child_for(key);
            let child = frames.unswizzle(pointer)?;
            frames.prefetch(child, level == 1);
            (parent, above, parent_version, frame) = (frame, latch, version, child);
        }
        None
    }

    /// The last two steps of `INV-DEX-HOP`.
    #[inline]
    fn hop(&self, child: u32, parent: u32, parent_version: Version) -> Option<Version> {
        let version = self.frames.ctl(child).latch.sample()?;
        self.frames.ctl(parent).latch.validate(parent_version).then_some(version)
    }

    /// The child at `index` of the node in `parent` is not swizzled: swizzles it if it is Cooling
    /// (`None`), claims it if it is not cached, or says what to wait for.
    #[cold]
    fn miss<W: Word>(
        self: &Arc<Self>,
        parent: u32,
        version: Version,
        node: &Node<'_, W>,
        level: u8,
        index: usize,
        addr: u64,
    ) -> Option<Walk> {
        let latch = &self.frames.ctl(parent).latch;
        if addr == 0 {
            return Some(Walk::Astray(self.frames.ctl(parent).addr_word()));
        }
        let busy = || if latch.is_held() { Walk::Busy(parent) } else { Walk::Again };
        match self.map.get(addr) {
            Some(Entry::Resident(frame)) => {
                if !latch.try_x(version) {
                    return Some(busy());
                }
                let promoted = self.promote(parent, index, addr, frame);
                self.release_x(parent);
                // It was just being put into its bucket, or taken out to be evicted.
                (!promoted).then_some(Walk::Again)
            }
            Some(Entry::Io | Entry::OffX) => Some(Walk::Wait(addr)),
            Some(Entry::OffS(_)) => Some(Walk::Readers { addr, parent, version, level: level - 1 }),
            None => {
                let (low, high) = Self::child_range(node, index);
                let claim = IoMark::take(self, addr, parent, version, level - 1, low, high);
                Some(claim.map_or_else(busy, Walk::Miss))
            }
        }
    }

    /// The range that a node gives its child `index`.
    pub(super) fn child_range<W: Word>(
        node: &Node<'_, W>,
        index: usize,
    ) -> (Option<Vec<u8>>, Option<Vec<u8>>) {
        let (mut low, mut high) = (Vec::new(), Vec::new());
        let has_low = match index.checked_sub(1) {
            Some(before) => node.separator(before, &mut low),
            None => node.low_fence(&mut low),
        };
        let has_high = node.separator(index, &mut high) || node.high_fence(&mut high);
        (has_low.then_some(low), has_high.then_some(high))
    }

    /// Second chance: swizzles a Cooling child again, under X of the parent. Fails if it is not in
    /// its bucket.
    fn promote(&self, parent: u32, index: usize, addr: u64, frame: u32) -> bool {
        if !self.cooling.remove(addr, frame) {
            return false;
        }
        // INV-DEX-COOL-1: the frame is ours now.
        let ctl = self.frames.ctl(frame);
        debug_assert_eq!((ctl.state(), ctl.addr_word()), (State::Cooling, addr));
        self.swizzle_in(parent, index, frame);
        self.stats.second_chances.add();
        true
    }

    /// Makes a frame that is in the caller's hands the Hot child `index`, under X of the parent.
    pub(super) fn swizzle_in(&self, parent: u32, index: usize, frame: u32) {
        let (ctl, above) = (self.frames.ctl(frame), self.frames.ctl(parent));
        let done = self
            .frames
            .node_mut(self.layout(), parent)
            .set_child(index, self.frames.swizzle(frame));
        debug_assert_eq!(done, Ok(()), "the slot was found under the same latch");
        above.set_swizzled(above.swizzled() + 1);
        ctl.set_parent(parent);
        ctl.set_state(State::Hot);
    }
}
