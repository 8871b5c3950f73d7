//! Sweeps: write back, share or drop the giver's cached nodes of a range.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use farleaf_fabric::{Endpoint, OpKind};
use farleaf_index::compute::MoveError;
use farleaf_index::compute::ownership::Range;
use farleaf_index::retry::backoff;
use farleaf_index::{IndexError, Seek};
use farleaf_pool::Session;

use super::{DexTree, OpContext, range_of};
use crate::dex::cache::{FrameState, TOP};

/// Passes over the frames while others go on; each but the last few has less to do than the one
/// before.
const PASSES_MAX: usize = 1_000;
/// Frames that are looked at between two points at which others may run.
const FRAMES_AT_ONCE: usize = 512;

/// A frame of a range, and its relation to it.
struct FramePlace {
    level: u8,
    frame: u32,
    addr: u64,
}

impl DexTree {
    /// Address and fences of the node in a frame, of one moment; `None` if there is none, or it is
    /// being changed.
    pub(crate) fn range_of(&self, frame: u32) -> Option<(u64, Range)> {
        let ctl = self.pages.frames.ctl(frame);
        let version = ctl.latch.sample()?;
        let node = self.pages.frames.node(self.layout(), frame);
        let held = (ctl.addr_word(), range_of(&node));
        ctl.latch.validate(version).then_some(held)
    }

    /// The frames that hold nodes of which `wanted` says so, from the leaves up.
    async fn select(
        &self,
        session: &Session,
        wanted: impl Fn(u32, &Range) -> bool,
        of: impl Fn(u32) -> bool,
    ) -> Vec<FramePlace> {
        let mut places = Vec::new();
        for frame in 0..self.pages.frames.count() as u32 {
            if frame as usize % FRAMES_AT_ONCE == FRAMES_AT_ONCE - 1 {
                session.endpoint().yield_now().await;
            }
            if !matches!(
                self.pages.frames.ctl(frame).state(),
                FrameState::Hot | FrameState::Cooling
            ) || !of(frame)
            {
                continue;
            }
            let mut held = self.range_of(frame);
            for attempt in 0..1_000 {
                if held.is_some() || self.pages.frames.ctl(frame).state() == FrameState::Free {
                    break;
                }
                // Somebody is writing to it: X is short.
                backoff(session, attempt.min(3)).await;
                held = self.range_of(frame);
            }
            if let Some((addr, range)) = held
                && wanted(frame, &range)
            {
                places.push(FramePlace {
                    level: self.pages.frames.ctl(frame).level(),
                    frame,
                    addr,
                });
            }
        }
        places.sort_unstable_by_key(|place| (place.level, place.frame));
        places
    }

    /// Writes back all nodes that meet `range` and are dirty now, those of one level at the same time, as
    /// far as there are tasks; children before their parents. None if there are more than
    /// `most`. How many there were.
    ///
    /// Cost: 1 WRITE each.
    pub(crate) async fn flush_range(
        self: &Arc<Self>,
        session: &Session,
        range: &Range,
        tasks: usize,
        most: usize,
    ) -> Result<usize, IndexError> {
        let meets = |_: u32, held: &Range| range.meets(held.low.as_deref(), held.high.as_deref());
        let dirty =
            self.select(session, meets, |frame| self.pages.frames.ctl(frame).is_dirty()).await;
        let count = dirty.len();
        if count > most {
            return Ok(count);
        }
        for level in dirty.chunk_by(|a, b| a.level == b.level) {
            let frames: Vec<u32> = level.iter().map(|place| place.frame).collect();
            let rest = Rc::new(RefCell::new(frames.into_iter()));
            let mut ends = Vec::new();
            for _ in 0..tasks.max(1) {
                let (cache, rest, task_session) =
                    (Arc::clone(self), Rc::clone(&rest), session.clone());
                let (sender, receiver) = farleaf_index::oneshot::channel();
                session.endpoint().spawn(async move {
                    loop {
                        let next = rest.borrow_mut().next();
                        let Some(frame) = next else { return sender.send(Ok(())) };
                        if let Err(error) = cache.flush_frame(&task_session, frame).await {
                            return sender.send(Err(error));
                        }
                        cache.stats.moved_nodes.add();
                    }
                });
                ends.push(receiver);
            }
            let mut done = Ok(());
            for end in ends {
                // All of them, whatever one of them came to.
                let ended: Result<(), IndexError> = end.await;
                done = done.and(ended);
            }
            done?;
        }
        Ok(count)
    }

    /// Step 5: nodes that cross one of the cuts become shared, from the root down.
    ///
    /// Cost: 1 WRITE for each that is dirty; there is about one a level for each cut.
    pub(crate) async fn share_crossing(
        self: &Arc<Self>,
        session: &Session,
    ) -> Result<(), MoveError> {
        let _pin = session.begin(OpKind::Maintenance).await.map_err(IndexError::from)?;
        for pass in 0..PASSES_MAX {
            let view = self.ownership.view();
            let is_cut = |frame: u32, held: &Range| {
                let is_root = self.pages.frames.ctl(frame).parent() == TOP
                    && self.pages.frames.ctl(frame).state() == FrameState::Hot;
                (is_root && !view.cuts.is_empty())
                    || view.is_cut(held.low.as_deref(), held.high.as_deref())
            };
            let exclusive = |frame: u32| {
                let ctl = self.pages.frames.ctl(frame);
                ctl.level() > 0 && !ctl.is_shared()
            };
            let crossing = self.select(session, is_cut, exclusive).await;
            if crossing.is_empty() {
                return Ok(());
            }
            for place in crossing.into_iter().rev() {
                self.share_frame(session, &place).await?;
            }
            backoff(session, (pass as u32).min(4)).await;
        }
        Err(MoveError::Busy)
    }

    /// Makes one node shared, unless somebody is busy with it: then the next pass does.
    async fn share_frame(
        self: &Arc<Self>,
        session: &Session,
        place: &FramePlace,
    ) -> Result<(), IndexError> {
        let ctl = self.pages.frames.ctl(place.frame);
        if ctl.state() == FrameState::Cooling {
            self.pages.drop_cooling(place.addr, place.frame, session.id());
            return Ok(());
        }
        let parent = ctl.parent();
        // Against a growth, which is about the top and the root.
        let top = if parent == TOP {
            match self.pages.sx_now(TOP) {
                Some(top) => Some(top),
                None => return Ok(()),
            }
        } else {
            None
        };
        let Some(sx) = self.pages.sx_now(place.frame) else { return Ok(()) };
        let is_same = ctl.state() == FrameState::Hot && ctl.addr_word() == place.addr;
        let is_below_shared = match ctl.parent() {
            TOP => top.is_some(),
            parent => self.pages.frames.ctl(parent).is_shared(),
        };
        // INV-DEX-SHARED-3: its parent first.
        if !is_same || !is_below_shared || !self.drain_pins(session, place.frame).await {
            return Ok(());
        }
        if ctl.is_dirty() {
            self.write_back(session, &sx).await?;
            self.stats.moved_nodes.add();
        }
        sx.into_x();
        ctl.set_shared(true);
        self.pages.release_x(place.frame);
        Ok(())
    }

    /// Drops every node that lies in `range` from the cache. No operation works on them.
    pub(crate) async fn drop_range(
        self: &Arc<Self>,
        session: &Session,
        range: &Range,
    ) -> Result<(), MoveError> {
        for pass in 0..PASSES_MAX {
            let inside =
                |_: u32, held: &Range| range.contains(held.low.as_deref(), held.high.as_deref());
            let rest = self.select(session, inside, |_| true).await;
            if rest.is_empty() {
                return Ok(());
            }
            for place in rest {
                self.drop_frame(session, &place).await?;
            }
            backoff(session, (pass as u32).min(4)).await;
        }
        Err(MoveError::Busy)
    }

    async fn drop_frame(
        self: &Arc<Self>,
        session: &Session,
        place: &FramePlace,
    ) -> Result<(), IndexError> {
        let (frame, addr) = (place.frame, place.addr);
        let ctl = self.pages.frames.ctl(frame);
        if ctl.state() == FrameState::Cooling {
            self.pages.drop_cooling(addr, frame, session.id());
            return Ok(());
        }
        let Some(sx) = self.pages.sx_now(frame) else { return Ok(()) };
        let is_same = ctl.state() == FrameState::Hot && ctl.addr_word() == addr;
        if !is_same || ctl.pins() > 0 || ctl.swizzled() > 0 {
            return Ok(());
        }
        if ctl.is_dirty() {
            self.write_back(session, &sx).await?;
            self.stats.moved_nodes.add();
        }
        let parent = ctl.parent();
        if !self.pages.x_now(parent) {
            return Ok(());
        }
        // The root goes where everything is given away.
        if self.pages.unlink(parent, frame) {
            sx.into_x();
            self.pages.unmap(frame, session.id());
        }
        self.pages.release_x(parent);
        Ok(())
    }
}

impl DexTree {
    /// Finds every child of the inner nodes that cross `bound`, so that what a crash has left half done
    /// below them is healed while they are exclusive still: below a shared node merges are not.
    ///
    /// Cost: 1 READ for each child that is not cached.
    pub(crate) async fn visit_children(
        self: &Arc<Self>,
        session: &Session,
        bound: &[u8],
    ) -> Result<(), IndexError> {
        let mut level = 1;
        loop {
            let mut restarts = OpContext::default();
            let found = self.reach(session, Seek::At(bound), level, &mut restarts).await?;
            let Some(spot) = found else { return Ok(()) };
            let Some((_, range)) = self.range_of(spot.frame) else { continue };
            let Some(separators) = self.separators(spot) else { continue };
            let is_shared = self.pages.frames.ctl(spot.frame).is_shared();
            if !is_shared && range.high.as_deref() != Some(bound) {
                for separator in &separators {
                    self.visit(session, Seek::At(separator), level - 1).await?;
                }
                if let Some(last) = separators.last() {
                    self.visit(session, Seek::After(last), level - 1).await?;
                }
            }
            level += 1;
        }
    }

    pub(super) async fn visit(
        self: &Arc<Self>,
        session: &Session,
        seek: Seek<'_>,
        level: u8,
    ) -> Result<(), IndexError> {
        self.reach(session, seek, level, &mut OpContext::default()).await.map(drop)
    }
}
