//! Adoption: takes a range, with the nodes of it that the cache holds as shared.

use std::sync::Arc;

use farleaf_index::IndexError;
use farleaf_index::bnode::Kind;
use farleaf_index::detach::detach;
use farleaf_index::retry::backoff;
use farleaf_pool::Session;

use super::shared::First;
use super::{DexFail, DexTree};
use crate::dex::cache::{FrameState, TOP};

farleaf_fabric::canaries! {
    pub ADOPT_UNCHECKED = "adopt-unchecked",
        "a shared node is taken for exclusive without a look whether it is current";
}

/// Passes over the frames: one for each level, and some for what is busy.
const PASSES_MAX: usize = 32;

/// The result of a look at one frame.
enum Looked {
    Done,
    /// Somebody holds it, or something below it comes first.
    Busy,
    /// It is out of date.
    Stale,
}

impl DexTree {
    /// Looks at every shared node in the cache whose range has become this cache's as a whole: if it is
    /// as remote memory has it, it is exclusive from now on, else it is dropped and read again
    /// (`INV-DEX-PART-3`). What cannot be settled stays shared, which only costs time. Runs to its end
    /// whatever becomes of the caller, who has a pin.
    ///
    /// Cost: 1 READ for each such node, of which there is about one a level for each bound that has
    /// gone.
    pub(crate) async fn adopt(self: &Arc<Self>, session: &Session) -> Result<(), IndexError> {
        let (cache, task_session) = (Arc::clone(self), session.clone());
        let adopted = detach(session, async move { cache.adopt_now(&task_session).await });
        match adopted.await {
            Ok(()) | Err(DexFail::Restart | DexFail::NoFrame) => Ok(()),
            Err(DexFail::Error(error)) => Err(error),
        }
    }

    async fn adopt_now(self: &Arc<Self>, session: &Session) -> Result<(), DexFail> {
        for pass in 0..PASSES_MAX {
            let mut candidates: Vec<(u8, u32, u64)> = (0..self.pages.frames.count() as u32)
                .filter_map(|frame| {
                    let addr = self.adoptable(frame)?;
                    Some((self.pages.frames.ctl(frame).level(), frame, addr))
                })
                .collect();
            if candidates.is_empty() {
                return Ok(());
            }
            // A shared node's parent is shared, so from the bottom up.
            candidates.sort_unstable();
            let (mut is_busy, mut stale) = (false, Vec::new());
            {
                let _turn = self.post_turn(true).await;
                for (_, frame, addr) in candidates {
                    match self.adopt_frame(session, frame, addr).await? {
                        Looked::Done => {}
                        Looked::Busy => is_busy = true,
                        Looked::Stale => stale.push((frame, addr)),
                    }
                }
            }
            // Without the turn: this waits for latches, whose holders may wait for theirs.
            for (frame, addr) in stale {
                self.refresh(session, frame, addr, First::Nothing).await?;
            }
            if !is_busy {
                return Ok(());
            }
            backoff(session, pass as u32).await;
        }
        Ok(())
    }

    /// The address of a frame's node, if that is shared, and within a partition of this cache's.
    fn adoptable(&self, frame: u32) -> Option<u64> {
        let ctl = self.pages.frames.ctl(frame);
        if !ctl.is_shared() || ctl.state() != FrameState::Hot || ctl.parent() == TOP {
            return None;
        }
        let (addr, range) = self.range_of(frame)?;
        let is_own = !self.ownership.crosses(range.low.as_deref(), range.high.as_deref());
        is_own.then_some(addr)
    }

    async fn adopt_frame(
        self: &Arc<Self>,
        session: &Session,
        frame: u32,
        addr: u64,
    ) -> Result<Looked, DexFail> {
        // No task of this compute server changes it now (INV-DEX-SHARED-5), and no other compute server
        // may any more. Nobody is waited for, who could be waiting for the turn.
        let ctl = self.pages.frames.ctl(frame);
        let Some(sx) = self.pages.sx_now(frame) else { return Ok(Looked::Busy) };
        if self.adoptable(frame) != Some(addr) {
            return Ok(Looked::Done);
        }
        if !self.drain_pins(session, frame).await {
            return Ok(Looked::Busy);
        }
        let node = self.pages.frames.node(self.layout(), frame);
        debug_assert_eq!(node.kind(), Kind::Inner, "no leaf is shared");
        let frames = &self.pages.frames;
        if frames.children(node).any(|(_, child)| frames.ctl(child).is_shared()) {
            return Ok(Looked::Busy);
        }
        if !ADOPT_UNCHECKED.is_armed() && !self.is_as_remote(session, frame).await? {
            return Ok(Looked::Stale);
        }
        // Meanwhile a range may have begun to be given away of which it has a part: who does that makes
        // shared what is exclusive then, and takes this for shared.
        if self.adoptable(frame) != Some(addr) {
            return Ok(Looked::Done);
        }
        sx.into_x();
        ctl.set_shared(false);
        self.pages.release_x(frame);
        self.stats.adopted.add();
        Ok(Looked::Done)
    }
}
