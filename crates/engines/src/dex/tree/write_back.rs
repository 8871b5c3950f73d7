//! Write-back: writes dirty nodes to remote memory, for eviction, a flush, the log's room or the end.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use farleaf_fabric::Endpoint;
use farleaf_index::IndexError;
use farleaf_index::detach::detach;
use farleaf_pool::Session;

use super::DexTree;
use crate::dex::cache::{FrameState, OwnedFrame, Sx};
use crate::dex::log::BATCH_MAX;

/// Passes of a flush over the frames while others go on changing them.
const PASSES_MAX: u32 = 64;
/// Tries at one frame that somebody holds.
const TRIES_MAX: u32 = 1_000;
/// Tasks that write back at a time to make room in the log: their nodes fill half of a journal.
const ROOM_TASKS_MAX: u32 = 2;

impl DexTree {
    /// Takes a free frame, or makes one free; `None` if every frame is in use. The calling task runs to its
    /// end. The operation that has the turn may take one of the reserve.
    ///
    /// Cost: none, or 1 WRITE for each dirty node that has to go.
    pub(crate) async fn take_frame(
        &self,
        session: &Session,
    ) -> Result<Option<OwnedFrame>, IndexError> {
        let may_reserve = self.crowd.has_turn(session);
        let write_back = async |sx: &Sx| self.write_back(session, sx).await;
        self.pages.take_frame(session, may_reserve, write_back).await
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
    /// The frames stay dirty.
    async fn write_back_all(&self, session: &Session, held: &[Sx]) -> Result<(), IndexError> {
        let (mut pages, mut versions) = (Vec::with_capacity(held.len()), Vec::new());
        for sx in held {
            let (ctl, addr) = (sx.ctl(), self.pages.frames.addr(sx.frame()));
            assert!(!ctl.is_shared(), "INV-DEX-SHARED-1: about to write {addr} back");
            let mut image = session.client().buf(self.layout().node_bytes());
            self.pages.frames.copy(sx.frame(), image.words_mut());
            let version = self.log.version(ctl.level(), ctl.version());
            pages.push((addr, self.pages.remote_image(image, version)));
            versions.push(version);
        }
        self.write_pages(session, pages).await?;
        for (sx, version) in held.iter().zip(versions) {
            let ctl = sx.ctl();
            ctl.set_version(version);
            ctl.set_dirty(false);
        }
        Ok(())
    }

    /// Writes all nodes that are dirty now, children before their parents.
    ///
    /// Cost: 1 WRITE each, up to 8 in a round trip; with a journal 1 more for those, before them.
    pub(crate) async fn flush(self: &Arc<Self>, session: &Session) -> Result<(), IndexError> {
        let (tree, task_session) = (Arc::clone(self), session.clone());
        detach(session, async move { tree.flush_now(&task_session).await }).await
    }

    async fn flush_now(self: &Arc<Self>, session: &Session) -> Result<(), IndexError> {
        for _ in 0..PASSES_MAX {
            let mut dirty: Vec<(u8, u32)> = (0..self.pages.frames.count() as u32)
                .filter(|&frame| self.pages.frames.ctl(frame).is_dirty())
                .map(|frame| (self.pages.frames.ctl(frame).level(), frame))
                .collect();
            if dirty.is_empty() {
                return Ok(());
            }
            dirty.sort_unstable();
            for level in dirty.chunk_by(|(one, _), (other, _)| one == other) {
                for together in level.chunks(BATCH_MAX) {
                    for frame in self.flush_together(session, together).await? {
                        self.flush_frame(session, frame).await?;
                    }
                }
            }
        }
        // Others dirty nodes as quickly as this writes them; the nodes that were dirty at first are written.
        Ok(())
    }

    /// Writes those of some dirty frames that nobody holds; returns the others.
    async fn flush_together(
        self: &Arc<Self>,
        session: &Session,
        frames: &[(u8, u32)],
    ) -> Result<Vec<u32>, IndexError> {
        let (mut held, mut others) = (Vec::new(), Vec::new());
        for &(_, frame) in frames {
            let ctl = self.pages.frames.ctl(frame);
            match self.pages.sx_now(frame) {
                Some(sx) if ctl.is_dirty() && ctl.state() == FrameState::Hot => held.push(sx),
                Some(_) => {}
                None => others.push(frame),
            }
        }
        self.write_back_all(session, &held).await?;
        self.stats.flushed.add_many(held.len() as u64);
        Ok(others)
    }

    /// Writes the node of one frame back, if it is dirty.
    pub(crate) async fn flush_frame(
        self: &Arc<Self>,
        session: &Session,
        frame: u32,
    ) -> Result<(), IndexError> {
        let ctl = self.pages.frames.ctl(frame);
        for _ in 0..TRIES_MAX {
            if !ctl.is_dirty() {
                return Ok(());
            }
            if let Some(sx) = self.pages.sx_now(frame) {
                if ctl.is_dirty() && ctl.state() == FrameState::Hot {
                    self.write_back(session, &sx).await?;
                    self.stats.flushed.add();
                }
                return Ok(());
            }
            self.pages.wait_for_frame(frame).await;
            session.endpoint().yield_now().await;
        }
        Err(IndexError::Unavailable("a node is being changed all the time: try again".into()))
    }

    /// Starts a task that writes back the frames which keep the log's oldest part, if that is in the way.
    /// Nobody waits for it.
    ///
    /// Cost: none here; 1 WRITE for each of up to [`BATCH_MAX`] nodes, together, and 1 for all of them if
    /// there is a journal.
    pub(super) fn make_log_room(self: &Arc<Self>, session: &Session) {
        if !self.log.is_nearly_full() {
            return;
        }
        let Some(task) = RoomTask::begin(self) else { return };
        self.spawn(session, async move |session| task.0.write_back_oldest(&session).await);
    }

    /// Writes some of those frames back together. A frame that another thread changes meanwhile is written
    /// through by its next change.
    async fn write_back_oldest(self: &Arc<Self>, session: &Session) {
        let (mut taken, mut held, mut busy) = (Vec::new(), Vec::<Sx>::new(), Vec::new());
        while held.len() < BATCH_MAX
            && busy.len() < BATCH_MAX
            && let Some(straggler) = self.log.take_straggler()
        {
            let frame = straggler.frame;
            let ctl = self.pages.frames.ctl(frame);
            let is_clean = || ctl.oldest() == 0 || ctl.oldest() > straggler.last;
            if is_clean() {
                self.log.give_back(straggler, false);
            } else if held.iter().any(|sx| sx.frame() == frame) {
                taken.push(straggler);
            } else if let Some(sx) = self.pages.sx_now(frame)
                && !is_clean()
                && ctl.is_dirty()
                && ctl.state() == FrameState::Hot
            {
                held.push(sx);
                taken.push(straggler);
            } else {
                busy.push(straggler);
            }
        }
        for straggler in busy {
            self.log.give_back(straggler, true);
        }
        if held.is_empty() {
            return;
        }
        let written = self.write_back_all(session, &held).await;
        if written.is_ok() {
            self.stats.log_cleaned.add_many(held.len() as u64);
        }
        for straggler in taken {
            self.log.give_back(straggler, written.is_err());
        }
    }
}

/// A task that writes back the frames which keep the log's oldest part: one of [`ROOM_TASKS_MAX`].
struct RoomTask(Arc<DexTree>);

impl RoomTask {
    fn begin(tree: &Arc<DexTree>) -> Option<Self> {
        let more = |now| (now < ROOM_TASKS_MAX).then_some(now + 1);
        let begun = tree.room_tasks.fetch_update(Ordering::AcqRel, Ordering::Relaxed, more);
        begun.is_ok().then(|| RoomTask(Arc::clone(tree)))
    }
}

impl Drop for RoomTask {
    fn drop(&mut self) {
        self.0.room_tasks.fetch_sub(1, Ordering::AcqRel);
    }
}
