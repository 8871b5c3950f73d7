//! Eviction: samples, cools, writes back and evicts frames.
//!
//! - `INV-DEX-CLEAN` A Cooling frame is clean and has no swizzled children. So an eviction never
//!   waits for the fabric, and whatever is not cached is as remote memory has it.
//! - `INV-DEX-WB` A dirty victim is written while readers go on (SX) and stays swizzled until the
//!   WRITE has completed; only then does its pointer become an address. As long as its SX is held no
//!   second write-back of it can begin, so an old image never lands after a newer one.
//! - `INV-DEX-PATH` The parent of a Hot frame is Hot and its slot is swizzled to the frame: a
//!   frame with swizzled children is no victim.

use std::sync::Arc;

use farleaf_fabric::{Buf, Endpoint};
use farleaf_pool::Session;
use farleaf_pool::canary::Canary;

use super::frames::{State, TOP};
use super::mapping_table::Entry;
use crate::IndexError;
use crate::bnode::{Kind, Node, NodeMut};
use crate::engines::dex::Cache;
use crate::local::Version;

/// Rounds of looking for a frame before giving up.
const ROUNDS_MAX: u32 = 64;
/// Samples of which the best is the victim.
const LOOKS_MAX: u32 = 4;

/// A frame that is in the caller's hands. Dropped, it is free again.
#[derive(Debug)]
pub(crate) struct OwnedFrame {
    cache: Arc<Cache>,
    worker: u32,
    frame: u32,
    armed: bool,
}

impl OwnedFrame {
    /// The frame; the caller makes it Hot or Cooling.
    pub(crate) fn take(mut self) -> u32 {
        self.armed = false;
        self.frame
    }
}

impl Drop for OwnedFrame {
    fn drop(&mut self) {
        if self.armed {
            self.cache.frames.ctl(self.frame).set_state(State::Free);
            self.cache.free.push(self.worker, self.frame);
        }
    }
}

/// SX of a frame's latch, or of the top's. Dropped, it is released.
#[derive(Debug)]
pub(crate) struct Sx {
    cache: Arc<Cache>,
    frame: u32,
    armed: bool,
}

impl Sx {
    /// Takes X; the caller releases it, and SX with it.
    pub(crate) fn into_x(mut self) -> u32 {
        self.armed = false;
        self.cache.frames.ctl(self.frame).latch.sx_to_x();
        self.frame
    }

    pub(crate) fn frame(&self) -> u32 {
        self.frame
    }
}

impl Drop for Sx {
    fn drop(&mut self) {
        if self.armed {
            self.cache.frames.ctl(self.frame).latch.release_sx();
            self.cache.lot.unpark(Cache::frame_key(self.frame));
        }
    }
}

impl Cache {
    /// Takes SX if nobody holds the latch and nothing has changed since `version`.
    pub(crate) fn try_sx(self: &Arc<Self>, frame: u32, version: Version) -> Option<Sx> {
        let taken = self.frames.ctl(frame).latch.try_sx(version);
        taken.then(|| Sx { cache: Arc::clone(self), frame, armed: true })
    }

    /// A free frame: of the lists, else of a cooling bucket, else by cooling others. `None` if none
    /// could be had. Called by tasks that run to their end.
    ///
    /// Cost: none, or 1 WRITE for each dirty node that had to go.
    pub(crate) async fn frame(
        self: &Arc<Self>,
        session: &Session,
    ) -> Result<Option<OwnedFrame>, IndexError> {
        let worker = session.id();
        for _ in 0..ROUNDS_MAX {
            if let Some(frame) = self.free.pop(worker) {
                return Ok(Some(OwnedFrame {
                    cache: Arc::clone(self),
                    worker,
                    frame,
                    armed: true,
                }));
            }
            if self.evict_oldest(session) {
                continue;
            }
            for _ in 0..self.options.sample_count {
                match self.victim(session) {
                    Some((frame, version)) => self.cool(session, frame, version).await?,
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
        for probe in 0..self.options.probe_buckets.min(buckets) {
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
        debug_assert!(ctl.state() == State::Cooling && !ctl.is_dirty() && ctl.swizzled() == 0);
        // Somebody may have sampled it just before it became Cooling: it then holds SX for as long
        // as it takes to see that.
        while !ctl.latch.sample().is_some_and(|version| ctl.latch.try_x(version)) {
            std::hint::spin_loop();
        }
        let gone = self.map.exchange(ctl.addr_word(), Some(Entry::Resident(frame)), None);
        debug_assert!(gone, "INV-DEX-MAP-1");
        self.stats.evicted.add();
        self.bury_frame(frame, worker);
    }

    /// Makes a frame free, under its X, once nothing leads to it.
    pub(crate) fn bury_frame(&self, frame: u32, worker: u32) {
        let ctl = self.frames.ctl(frame);
        ctl.set_state(State::Free);
        ctl.set_dirty(false);
        ctl.set_swizzled(0);
        ctl.latch.x_to_dead();
        self.lot.unpark(Self::frame_key(frame));
        self.free.push(worker, frame);
    }

    /// Puts a frame that has just become Cooling into its bucket, and evicts what that pushes out.
    pub(crate) fn put_cooling(&self, addr: u64, frame: u32, worker: u32) {
        if let Some(out) = self.cooling.insert(addr, frame) {
            self.evict(out, worker);
        }
    }

    /// The best of some random victims: the one with the fewest uses left, and of such a clean one, which costs
    /// no WRITE. Each that is looked at forgets a use.
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

    /// A random victim: from a random frame down along random swizzled children to a frame that has
    /// none.
    fn sample(&self, session: &Session) -> Option<(u32, Version)> {
        let random = session.endpoint().random();
        let mut frame = (random % self.frames.count() as u64) as u32;
        let mut choice = (random >> 32) as usize;
        // At most one step for each level.
        for _ in 0..64 {
            let ctl = self.frames.ctl(frame);
            let version = ctl.latch.sample()?;
            if ctl.state() != State::Hot {
                return None;
            }
            let node = self.frames.node(self.layout(), frame);
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
        session: &Session,
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
            if Canary::CoolUnwritten.is_armed() {
                ctl.set_dirty(false);
            } else {
                self.write_back(session, &sx).await?;
            }
            self.stats.written_back.add();
        }
        self.cool_clean(sx, session.id());
        Ok(())
    }

    fn may_cool(&self, frame: u32) -> bool {
        let ctl = self.frames.ctl(frame);
        ctl.state() == State::Hot && ctl.parent() != TOP && ctl.pins() == 0 && ctl.swizzled() == 0
    }

    /// The last step of a write-back (`INV-DEX-WB`): un-swizzles a clean victim under X of its parent and its own, unless it
    /// was pinned or given swizzled children meanwhile or the parent is busy.
    fn cool_clean(self: &Arc<Self>, sx: Sx, worker: u32) {
        let frame = sx.frame();
        let ctl = self.frames.ctl(frame);
        let parent = ctl.parent();
        if parent == TOP {
            return;
        }
        let latch = &self.frames.ctl(parent).latch;
        if !latch.sample().is_some_and(|version| latch.try_x(version)) {
            self.stats.sample_misses.add();
            return;
        }
        // The parent may be another one by now, and its frame may hold another node.
        let slot = if ctl.parent() == parent && self.may_cool(frame) && !ctl.is_dirty() {
            let node = self.frames.node(self.layout(), parent);
            node.find_child(self.frames.swizzle(frame))
        } else {
            None
        };
        let Some(index) = slot else {
            self.release_x(parent);
            self.stats.sample_misses.add();
            return;
        };
        sx.into_x();
        let addr = ctl.addr_word();
        let above = self.frames.ctl(parent);
        let done = self.frames.node_mut(self.layout(), parent).set_child(index, addr);
        debug_assert_eq!(done, Ok(()), "the slot was found under the same latch");
        above.set_swizzled(above.swizzled() - 1);
        let out = self.start_cooling(frame, worker);
        self.release_x(parent);
        if let Some(out) = out {
            self.evict(out, worker);
        }
    }

    /// Makes a clean frame that nothing is swizzled to any more, and whose X is held, Cooling, and
    /// releases it; gives what that pushes out of its bucket. A shared one is evicted at once: its
    /// second chance could come under a newer copy of its parent, to which it may be something else
    /// by now (`INV-DEX-SHARED-3`).
    #[must_use = "a frame that comes out is the caller's to evict"]
    pub(crate) fn start_cooling(&self, frame: u32, worker: u32) -> Option<u32> {
        let ctl = self.frames.ctl(frame);
        let addr = ctl.addr_word();
        self.stats.cooled.add();
        if ctl.is_shared() {
            let gone = self.map.exchange(addr, Some(Entry::Resident(frame)), None);
            debug_assert!(gone, "INV-DEX-MAP-1");
            self.stats.evicted.add();
            self.bury_frame(frame, worker);
            return None;
        }
        ctl.set_state(State::Cooling);
        let out = self.cooling.insert(addr, frame);
        // A new version: who was about to write to it finds that it is not Hot any more.
        self.release_x(frame);
        out
    }

    /// Writes the node of a frame whose SX is held. 1 WRITE, 2 with a journal.
    ///
    /// # Errors
    /// The frame stays dirty.
    pub(crate) async fn write_back(&self, session: &Session, sx: &Sx) -> Result<(), IndexError> {
        self.write_back_all(session, std::slice::from_ref(sx)).await
    }

    /// Writes the nodes of some frames, whose SX are held, together.
    ///
    /// Cost: 1 WRITE each, and 1 for all with a journal.
    ///
    /// # Errors
    /// As [`Cache::write_back`].
    pub(crate) async fn write_back_all(
        &self,
        session: &Session,
        held: &[Sx],
    ) -> Result<(), IndexError> {
        let (mut pages, mut versions) = (Vec::with_capacity(held.len()), Vec::new());
        for sx in held {
            let (ctl, addr) = (self.frames.ctl(sx.frame()), self.frames.addr(sx.frame()));
            assert!(!ctl.is_shared(), "INV-DEX-SHARED-1: about to write {addr} back");
            let mut image = session.client().buf(self.layout().node_bytes());
            self.frames.copy(sx.frame(), image.words_mut());
            let version = self.log.version(ctl.level(), ctl.version());
            pages.push((addr, self.make_remote(image, version)));
            versions.push(version);
        }
        self.write_pages(session, pages).await?;
        for (sx, version) in held.iter().zip(versions) {
            let ctl = self.frames.ctl(sx.frame());
            ctl.set_version(version);
            ctl.set_dirty(false);
        }
        Ok(())
    }

    /// Makes a copy of a frame's words what remote memory is to hold: addresses for swizzled pointers
    /// (`INV-DEX-PTR`), sealed as `version`. The caller holds the frame's SX or X.
    pub(crate) fn make_remote(&self, mut image: Buf, version: u64) -> Buf {
        let node = Node::new(self.layout(), image.words());
        let children: Vec<u64> = match node.kind() {
            Kind::Inner => (0..=node.count()).filter_map(|index| node.child(index)).collect(),
            _ => Vec::new(),
        };
        let mut node = NodeMut::new(self.layout(), image.words_mut());
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
