//! Eviction: samples, cools and evicts frames, so that others can take their places.
//!
//! - `INV-DEX-CLEAN` A Cooling frame is clean and has no swizzled children. So an eviction never
//!   waits for the fabric, and remote memory holds every node that is not cached as it is.
//! - `INV-DEX-WB` A dirty victim is written while readers go on (SX) and stays swizzled until the
//!   WRITE has completed; only then does its pointer become an address. As long as its SX is held no
//!   second write-back of it can begin, so an old image never lands after a newer one.

use std::sync::Arc;

use farleaf_fabric::Endpoint;
use farleaf_index::IndexError;
use farleaf_index::bnode::Kind;
use farleaf_index::local::Version;
use farleaf_pool::Session;

use super::PageCache;
use super::frames::{FrameRef, FrameState, TOP};
use super::mapping_table::Mapping;

farleaf_fabric::canaries! {
    pub(crate) COOL_UNWRITTEN = "cool-unwritten",
        "a changed node leaves a cache without being written back";
}

/// Rounds of looking for a frame before giving up; before the reserve is used.
const ROUNDS_MAX: u32 = 64;
const ROUNDS_BEFORE_RESERVE: u32 = 4;
/// Samples of which the best is the victim.
const LOOKS_MAX: u32 = 4;

/// A frame that the caller alone uses. Dropping it frees the frame.
#[derive(Debug)]
pub(crate) struct OwnedFrame {
    pages: Arc<PageCache>,
    worker: u32,
    frame: u32,
    armed: bool,
}

impl OwnedFrame {
    /// Its number.
    pub(crate) fn number(&self) -> u32 {
        self.frame
    }

    /// Returns the frame, which the caller makes Hot or Cooling.
    pub(crate) fn take(mut self) -> u32 {
        self.armed = false;
        self.frame
    }
}

impl Drop for OwnedFrame {
    fn drop(&mut self) {
        if self.armed {
            self.pages.frames.ctl(self.frame).set_state(FrameState::Free);
            self.pages.free.push(self.worker, self.frame);
        }
    }
}

/// SX of a frame's latch, or of the top's. Dropping it releases the latch.
#[derive(Debug)]
pub(crate) struct Sx {
    pages: Arc<PageCache>,
    frame: u32,
    armed: bool,
}

impl Sx {
    /// Takes X; the caller releases it, and SX with it.
    pub(crate) fn into_x(mut self) -> u32 {
        self.armed = false;
        self.ctl().latch.sx_to_x();
        self.frame
    }

    pub(crate) fn frame(&self) -> u32 {
        self.frame
    }

    /// The frame's latch and state.
    pub(crate) fn ctl(&self) -> FrameRef<'_> {
        self.pages.frames.ctl(self.frame)
    }
}

impl Drop for Sx {
    fn drop(&mut self) {
        if self.armed {
            self.ctl().latch.release_sx();
            self.pages.lot.unpark(PageCache::frame_key(self.frame));
        }
    }
}

impl PageCache {
    /// Takes SX if nobody holds the latch and nothing has changed since `version`.
    pub(crate) fn try_sx(self: &Arc<Self>, frame: u32, version: Version) -> Option<Sx> {
        let taken = self.frames.ctl(frame).latch.try_sx(version);
        taken.then(|| Sx { pages: Arc::clone(self), frame, armed: true })
    }

    /// Takes SX if nobody holds the latch now.
    pub(crate) fn sx_now(self: &Arc<Self>, frame: u32) -> Option<Sx> {
        let version = self.frames.ctl(frame).latch.sample()?;
        self.try_sx(frame, version)
    }

    /// Takes X if nobody holds the latch now.
    pub(crate) fn x_now(&self, frame: u32) -> bool {
        let latch = self.frames.latch(frame);
        latch.sample().is_some_and(|version| latch.try_x(version))
    }

    /// Takes a free frame: from the lists, else from a cooling bucket, else by cooling victims; from the reserve, if
    /// the caller `may_reserve`. `None` if every frame is in use. `write_back` writes the node of a dirty victim to remote memory, and marks its
    /// frame clean. The calling task runs to its end.
    ///
    /// Cost: none, or 1 WRITE for each dirty victim.
    pub(crate) async fn take_frame(
        self: &Arc<Self>,
        session: &Session,
        may_reserve: bool,
        write_back: impl AsyncFn(&Sx) -> Result<(), IndexError>,
    ) -> Result<Option<OwnedFrame>, IndexError> {
        let worker = session.id();
        for round in 0..ROUNDS_MAX {
            let reserved = || match may_reserve && round >= ROUNDS_BEFORE_RESERVE {
                true => self.free.pop_reserve(),
                false => None,
            };
            if let Some(frame) = self.free.pop(worker).or_else(reserved) {
                let pages = Arc::clone(self);
                return Ok(Some(OwnedFrame { pages, worker, frame, armed: true }));
            }
            if self.evict_oldest(session) {
                continue;
            }
            for _ in 0..self.sample_count {
                match self.victim(session) {
                    Some((frame, version)) => {
                        self.cool(worker, &write_back, frame, version).await?
                    }
                    None => self.stats.sample_misses.add(),
                }
            }
        }
        self.stats.frames_wanting.add();
        Ok(None)
    }

    /// Evicts the oldest frame of a random cooling bucket, or of one of those behind it.
    fn evict_oldest(&self, session: &Session) -> bool {
        let buckets = self.cooling.buckets();
        let first = session.endpoint().random() as usize % buckets;
        for probe in 0..self.probe_buckets.min(buckets) {
            if let Some(frame) = self.cooling.take_oldest((first + probe) % buckets) {
                self.evict(frame, session.id());
                return true;
            }
        }
        false
    }

    /// Frees a Cooling frame that the caller has taken out of its bucket.
    pub(crate) fn evict(&self, frame: u32, worker: u32) {
        let ctl = self.frames.ctl(frame);
        debug_assert!(ctl.state() == FrameState::Cooling && !ctl.is_dirty() && ctl.swizzled() == 0);
        // A thread that sampled the frame just before it became Cooling holds SX until it sees that.
        while !self.x_now(frame) {
            std::hint::spin_loop();
        }
        self.stats.evicted.add();
        self.unmap(frame, worker);
    }

    /// Takes the node in a frame, whose X is held, out of the mapping table, and frees the frame. Nothing
    /// leads to it any more.
    pub(crate) fn unmap(&self, frame: u32, worker: u32) {
        let ctl = self.frames.ctl(frame);
        let gone = self.map.exchange(ctl.addr_word(), Some(Mapping::Resident(frame)), None);
        debug_assert!(gone, "INV-DEX-MAP-1");
        ctl.set_state(FrameState::Free);
        ctl.set_dirty(false);
        ctl.set_swizzled(0);
        ctl.latch.x_to_dead();
        self.lot.unpark(Self::frame_key(frame));
        self.free.push(worker, frame);
    }

    /// Puts a frame that has just become Cooling into its bucket, and evicts the one that a full bucket
    /// gives up.
    pub(super) fn put_cooling(&self, addr: u64, frame: u32, worker: u32) {
        if let Some(out) = self.cooling.insert(addr, frame) {
            self.evict(out, worker);
        }
    }

    /// Evicts the Cooling frame of the node at `addr`. Fails if another thread has taken it out of its
    /// bucket, and decides about it.
    pub(crate) fn drop_cooling(&self, addr: u64, frame: u32, worker: u32) -> bool {
        let taken = self.cooling.remove(addr, frame);
        if taken {
            self.evict(frame, worker);
        }
        taken
    }

    /// All Cooling frames.
    pub(crate) fn cooling_frames(&self) -> Vec<u32> {
        self.cooling.frames()
    }

    /// Returns the best of some random victims: the one with the fewest uses left, and of several such a
    /// clean one, which costs no WRITE. Takes a use from each.
    fn victim(&self, session: &Session) -> Option<(u32, Version)> {
        let mut best: Option<((u8, bool), u32, Version)> = None;
        for _ in 0..LOOKS_MAX {
            let Some((frame, version)) = self.sample(session) else { continue };
            let rank = (self.frames.take_use(frame), self.frames.ctl(frame).is_dirty());
            if rank == (0, false) {
                return Some((frame, version));
            }
            if best.is_none_or(|(other, ..)| rank < other) {
                best = Some((rank, frame, version));
            }
        }
        best.map(|(_, frame, version)| (frame, version))
    }

    /// Samples a victim: walks from a random frame down along random swizzled children to a frame that has
    /// none.
    fn sample(&self, session: &Session) -> Option<(u32, Version)> {
        let random = session.endpoint().random();
        let count = self.free.bound(self.frames.count());
        let mut frame = (random % count as u64) as u32;
        let mut choice = (random >> 32) as usize;
        // At most one step for each level.
        for _ in 0..64 {
            let ctl = self.frames.ctl(frame);
            let version = ctl.latch.sample()?;
            if ctl.state() != FrameState::Hot {
                return None;
            }
            let node = self.frames.node(&self.layout, frame);
            if ctl.swizzled() == 0 {
                return (ctl.parent() != TOP && ctl.pins() == 0).then_some((frame, version));
            }
            if node.kind() != Kind::Inner {
                return None;
            }
            let children = node.count() + 1;
            let child = (0..children)
                .filter_map(|step| node.child((choice + step) % children))
                .find_map(|pointer| self.frames.unswizzle(pointer))?;
            if !ctl.latch.validate(version) {
                return None;
            }
            choice = choice.rotate_right(7);
            frame = child;
        }
        None
    }

    /// Makes a victim Cooling, if it is still one; writes it back first if it is dirty.
    async fn cool(
        self: &Arc<Self>,
        worker: u32,
        write_back: &impl AsyncFn(&Sx) -> Result<(), IndexError>,
        frame: u32,
        version: Version,
    ) -> Result<(), IndexError> {
        let Some(sx) = self.try_sx(frame, version) else {
            self.stats.sample_misses.add();
            return Ok(());
        };
        let ctl = self.frames.ctl(frame);
        if !self.may_cool(frame) {
            self.stats.sample_misses.add();
            return Ok(());
        }
        if ctl.is_dirty() {
            if COOL_UNWRITTEN.is_armed() {
                ctl.set_dirty(false);
            } else {
                write_back(&sx).await?;
            }
            self.stats.written_back.add();
        }
        self.cool_clean(sx, worker);
        Ok(())
    }

    fn may_cool(&self, frame: u32) -> bool {
        let ctl = self.frames.ctl(frame);
        ctl.state() == FrameState::Hot
            && ctl.parent() != TOP
            && ctl.pins() == 0
            && ctl.swizzled() == 0
    }

    /// Does the last step of a write-back (`INV-DEX-WB`): un-swizzles a clean victim under X of its parent
    /// and its own. Leaves the victim if a task pinned it or gave it swizzled children meanwhile, or if the
    /// parent is busy.
    fn cool_clean(self: &Arc<Self>, sx: Sx, worker: u32) {
        let frame = sx.frame();
        let ctl = self.frames.ctl(frame);
        let parent = ctl.parent();
        if parent == TOP {
            return;
        }
        if !self.x_now(parent) {
            self.stats.sample_misses.add();
            return;
        }
        if !self.may_cool(frame) || ctl.is_dirty() || !self.unlink(parent, frame) {
            self.release_x(parent);
            self.stats.sample_misses.add();
            return;
        }
        sx.into_x();
        let out = self.start_cooling(frame, worker);
        self.release_x(parent);
        if let Some(out) = out {
            self.evict(out, worker);
        }
    }

    /// Makes a frame Cooling and releases it. The frame is clean, the caller holds its X, and no pointer
    /// is swizzled to it any more. Returns the frame that a full bucket gives up. A shared node is evicted
    /// at once: its second chance could come under a newer copy of its parent, to which it may be
    /// something else (`INV-DEX-SHARED-3`).
    #[must_use = "a frame that comes out is the caller's to evict"]
    pub(crate) fn start_cooling(&self, frame: u32, worker: u32) -> Option<u32> {
        let ctl = self.frames.ctl(frame);
        let addr = ctl.addr_word();
        self.stats.cooled.add();
        if ctl.is_shared() {
            self.stats.evicted.add();
            self.unmap(frame, worker);
            return None;
        }
        ctl.set_state(FrameState::Cooling);
        let out = self.cooling.insert(addr, frame);
        // The release makes a new version: a thread that was about to write to the frame finds that it is
        // not Hot any more.
        self.release_x(frame);
        out
    }
}
