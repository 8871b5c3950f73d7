//! Descent: walks down the cache by optimistic lock coupling over swizzled pointers.
//!
//! A walk neither waits nor touches the fabric. It ends at the node it wants, or says why it cannot get
//! there; `Tree::find` removes the obstacle and walks again from the top.
//!
//! `INV-DEX-HOP`: read the child pointer, validate the parent, sample the child's latch,
//! validate the parent again. Without the last step the child could have been split, and its upper
//! half have moved away, between the pointer's reading and the latch's.

use std::sync::Arc;

use farleaf_index::bnode::{Cover, Node, Word};
use farleaf_index::compute::ownership::Range;
use farleaf_index::local::Version;
use farleaf_index::{IndexError, Seek};
use farleaf_pool::Session;

use super::DexTree;
use super::context::{DexFail, OpContext};
use super::heal::Heal;
use crate::dex::cache::{IoMark, Mapping, MissedChild, TOP};
use crate::dex::offload::{Offload, OffloadMark};

/// Levels that a walk goes down before it must have met inconsistent content.
const LEVELS_MAX: u32 = 64;

/// A Hot node and its parent, with the versions that the walk saw.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Location {
    pub(crate) frame: u32,
    pub(crate) version: Version,
    pub(crate) parent: u32,
    pub(crate) parent_version: Version,
}

/// A split whose separator the parent lacks, because a crash left it unfinished.
#[derive(Clone, Debug)]
pub(crate) struct UnfinishedSplit {
    /// Level of the parent.
    pub(crate) level: u8,
    /// High fence of the left part.
    pub(crate) separator: Vec<u8>,
    /// The right part.
    pub(crate) right: u64,
}

/// The end of a walk.
#[derive(Debug)]
enum Walk {
    /// At the node.
    At(Location),
    /// At a child that is not cached. The walk has marked it for the caller.
    Miss(IoMark),
    /// The root is not cached.
    NoRoot,
    /// At a child that another task is reading or changing: wait until its mark changes.
    Wait(u64),
    /// At a child on whose subtree readers run at the memory server: wait, or join them.
    Readers { addr: u64, parent: u32, version: Version, level: u8 },
    /// At a frame whose latch somebody holds: wait until it is free.
    Busy(u32),
    /// Something changed on the way.
    Again,
    /// The tree has no such level.
    TooLow,
    /// At a node that a crash left half done, or whose parent is out of date.
    Heal(Heal),
    /// At a node that does not cover the range that its parent gives it.
    Mismatch(u64),
}

/// The result of a search through the cache.
#[derive(Debug)]
pub(crate) enum SearchEnd {
    /// The node, Hot.
    Node(Location),
    /// The node is not cached and is not to be: the mark under which the caller reads it.
    Missing(IoMark),
    /// A node on the way is not cached, and its memory server is to execute the rest.
    Offload(OffloadMark),
    /// Another task works on the node with that address, and nobody has waited for it yet.
    Awaited(u64),
    /// The tree has no such level.
    TooLow,
    /// The caller has a frame in hand that others wait for.
    Crowded,
}

impl DexTree {
    /// Finds the Hot node of `level` that `seek` wants, reading the nodes on the way that are not cached. A leaf
    /// that is missed and not to be cached is returned as such if the operation streams.
    ///
    /// Cost: 1 READ for each level that is not cached.
    pub(crate) async fn find(
        self: &Arc<Self>,
        session: &Session,
        seek: Seek<'_>,
        level: u8,
        context: &mut OpContext,
    ) -> Result<SearchEnd, IndexError> {
        loop {
            self.ownership.check_open()?;
            let failed = match self.walk(seek, level) {
                Walk::At(location) => return Ok(SearchEnd::Node(location)),
                Walk::TooLow => return Ok(SearchEnd::TooLow),
                Walk::Miss(mark) if self.crowd.holds_back(session) && !context.has_passed => {
                    drop(mark);
                    if context.has_hand {
                        return Ok(SearchEnd::Crowded);
                    }
                    Box::pin(self.crowd.pass(session)).await;
                    context.has_passed = true;
                    Ok(())
                }
                Walk::Miss(mark) if mark.shared_parent && !self.is_proven(mark.parent) => {
                    let (frame, addr) =
                        (mark.parent, self.pages.frames.ctl(mark.parent).addr_word());
                    drop(mark);
                    self.heal_detached(session, Heal::Unproven { frame, addr }).await
                }
                Walk::Miss(mut mark) => {
                    mark.cause = context.cause;
                    context.has_passed = false;
                    if self.options.offload != Offload::Never
                        && let Some(work) = context.offloadable
                        && self.offloads.chooses(session, &mark, work, self.remote.subtree_level())
                    {
                        return Ok(SearchEnd::Offload(OffloadMark::of(mark, work.reads())));
                    }
                    if mark.level == 0
                        && context.streams
                        && (context.reads_ahead
                            || context.no_frame
                            || !self.pages.admits(session, mark.addr))
                    {
                        return Ok(SearchEnd::Missing(mark));
                    }
                    // Boxed, as all that goes to the fabric from here: futures of operations stay small.
                    Box::pin(self.load(session, mark)).await
                }
                Walk::NoRoot => Box::pin(self.load_root(session)).await,
                Walk::Wait(addr) => {
                    self.stats.waits.add();
                    if context.joins {
                        return Ok(SearchEnd::Awaited(addr));
                    }
                    self.pages.wait_for_node(addr).await;
                    Ok(())
                }
                Walk::Readers { addr, parent, version, level } => {
                    let is_proven =
                        !self.pages.frames.ctl(parent).is_shared() || self.is_proven(parent);
                    if is_proven
                        && context.offloadable.is_some_and(|work| work.joins(level))
                        && let Some(mark) =
                            OffloadMark::join(&self.pages, addr, parent, version, level)
                    {
                        self.stats.offload_joined.add();
                        return Ok(SearchEnd::Offload(mark));
                    }
                    self.stats.waits.add();
                    self.pages.wait_for_node(addr).await;
                    Ok(())
                }
                Walk::Busy(frame) => {
                    self.pages.wait_for_frame(frame).await;
                    Ok(())
                }
                Walk::Again => Err(DexFail::Restart),
                Walk::Heal(heal) => self.heal_detached(session, heal).await,
                Walk::Mismatch(addr) => {
                    return Err(IndexError::Corrupt(format!(
                        "the cached node at {addr:#x} of the table at {} does not cover what its \
                         parent says",
                        self.remote.meta()
                    )));
                }
            };
            match failed {
                Ok(()) => context.step()?,
                Err(DexFail::NoFrame) if context.has_hand => return Ok(SearchEnd::Crowded),
                Err(fail) => context.after(fail, self, session).await?,
            }
        }
    }

    /// Finds the Hot node of `level` that `seek` wants, for work that needs it in the cache, and neither is
    /// offloaded nor joins another task's READ. `None` if the tree has no such level.
    ///
    /// Cost: 1 READ for each level that is not cached.
    pub(crate) async fn reach(
        self: &Arc<Self>,
        session: &Session,
        seek: Seek<'_>,
        level: u8,
        context: &mut OpContext,
    ) -> Result<Option<Location>, IndexError> {
        debug_assert!(!context.streams && context.offloadable.is_none() && !context.joins);
        match self.find(session, seek, level, context).await? {
            SearchEnd::Node(location) => Ok(Some(location)),
            SearchEnd::TooLow => Ok(None),
            other => unreachable!("asked for the node itself, and got {other:?}"),
        }
    }

    /// Returns the Hot node of `level` that `seek` wants, if a single walk gets there.
    pub(super) fn find_cached(self: &Arc<Self>, seek: Seek<'_>, level: u8) -> Option<Location> {
        match self.walk(seek, level) {
            Walk::At(location) => Some(location),
            _ => None,
        }
    }

    /// Walks to the node of `level` that `seek` wants.
    fn walk(self: &Arc<Self>, seek: Seek<'_>, level: u8) -> Walk {
        let frames = &self.pages.frames;
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
            let cover = node.covers_place(seek);
            if at <= level || cover != Cover::Inside {
                let right = node.right();
                let mut separator = Vec::new();
                let finite = cover == Cover::Above && node.high_fence(&mut separator);
                if !ctl.latch.validate(version) {
                    return Walk::Again;
                }
                let unfinished = (finite && right != 0).then(|| UnfinishedSplit {
                    level: at + 1,
                    separator,
                    right,
                });
                // Either the parent is out of date, or the frame is no root any more.
                let stale = if parent == TOP { frame } else { parent };
                let stale_addr = frames.ctl(stale).addr_word();
                let is_shared = frames.ctl(stale).is_shared();
                if cover != Cover::Inside && !frames.ctl(parent).latch.validate(parent_version) {
                    return Walk::Again;
                }
                return match cover {
                    Cover::Inside if at < level => Walk::TooLow,
                    Cover::Inside => Walk::At(Location { frame, version, parent, parent_version }),
                    _ if is_shared => {
                        Walk::Heal(Heal::Stale { frame: stale, addr: stale_addr, unfinished })
                    }
                    _ => match unfinished {
                        Some(unfinished) => Walk::Heal(Heal::Separator(unfinished)),
                        None => Walk::Mismatch(ctl.addr_word()),
                    },
                };
            }
            let (index, pointer) = node.child_at_place(seek);
            if !ctl.latch.validate(version) {
                return Walk::Again;
            }
            let Some(child) = frames.unswizzle(pointer) else {
                match self.meet_unswizzled(frame, version, &node, at, index, pointer) {
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

    /// Returns the Hot leaf that covers `key`, if every node on the way is cached and nothing changes
    /// meanwhile: the cost of a hit, and no more. If it gives up, [`DexTree::find`] learns why.
    ///
    /// It does not ask inner nodes whether they cover the key: a leaf that does is the right one,
    /// whichever way led there. It leaves out the first validation of `INV-DEX-HOP`, which guards a use of
    /// the pointer: sampling a latch does no harm, as every pointer leads to some frame.
    #[inline]
    pub(crate) fn hit(&self, key: &[u8]) -> Option<Location> {
        let frames = &self.pages.frames;
        // A copy: the compiler would load a field behind a reference anew after every look at a latch.
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
                return (covers && latch.validate(version)).then_some(Location {
                    frame,
                    version,
                    parent,
                    parent_version,
                });
            }
            let (_, pointer) = node.child_for(key);
            let child = frames.unswizzle(pointer)?;
            frames.prefetch(&layout, child, level == 1);
            (parent, above, parent_version, frame) = (frame, latch, version, child);
        }
        None
    }

    /// Does the last two steps of `INV-DEX-HOP`.
    #[inline]
    fn hop(&self, child: u32, parent: u32, parent_version: Version) -> Option<Version> {
        let version = self.pages.frames.ctl(child).latch.sample()?;
        self.pages.frames.ctl(parent).latch.validate(parent_version).then_some(version)
    }

    /// Handles child `index` of the node in `parent`, which is not swizzled: swizzles it if it is Cooling
    /// (`None`), marks it if it is not cached, or says what to wait for.
    #[cold]
    fn meet_unswizzled<W: Word>(
        self: &Arc<Self>,
        parent: u32,
        version: Version,
        node: &Node<'_, W>,
        level: u8,
        index: usize,
        addr: u64,
    ) -> Option<Walk> {
        let latch = &self.pages.frames.ctl(parent).latch;
        if addr == 0 {
            return Some(Walk::Mismatch(self.pages.frames.ctl(parent).addr_word()));
        }
        let busy = || if latch.is_held() { Walk::Busy(parent) } else { Walk::Again };
        match self.pages.map.get(addr) {
            Some(Mapping::Resident(frame)) => {
                if !latch.try_x(version) {
                    return Some(busy());
                }
                let promoted = self.pages.promote(parent, index, addr, frame);
                self.pages.release_x(parent);
                // Another thread is putting it into its bucket, or has taken it out to evict it.
                (!promoted).then_some(Walk::Again)
            }
            Some(Mapping::Io | Mapping::OffX) => Some(Walk::Wait(addr)),
            Some(Mapping::OffS(_)) => {
                Some(Walk::Readers { addr, parent, version, level: level - 1 })
            }
            None => {
                let range = Self::child_range(node, index);
                let child = MissedChild { addr, parent, version, level: level - 1, range };
                Some(self.mark(child).map_or_else(busy, Walk::Miss))
            }
        }
    }

    /// Returns the separators of the inner node at `location`, if it has not changed since.
    pub(crate) fn separators(&self, location: Location) -> Option<Vec<Vec<u8>>> {
        let node = self.pages.frames.node(self.layout(), location.frame);
        let separator = |index| {
            let mut separator = Vec::new();
            node.separator(index, &mut separator).then_some(separator)
        };
        let separators = (0..node.count()).map_while(separator).collect();
        self.pages.frames.latch(location.frame).validate(location.version).then_some(separators)
    }

    /// Returns the range that a node gives its child `index`.
    pub(super) fn child_range<W: Word>(node: &Node<'_, W>, index: usize) -> Range {
        let (mut low, mut high) = (Vec::new(), Vec::new());
        let has_low = match index.checked_sub(1) {
            Some(before) => node.separator(before, &mut low),
            None => node.low_fence(&mut low),
        };
        let has_high = node.separator(index, &mut high) || node.high_fence(&mut high);
        Range { low: has_low.then_some(low), high: has_high.then_some(high) }
    }
}
