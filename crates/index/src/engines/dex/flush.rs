//! Flush: writes all dirty nodes back, and closes the tree.

use std::sync::Arc;

use farleaf_fabric::Endpoint;
use farleaf_pool::Session;

use super::Cache;
use super::frames::State;
use super::journal::BATCH_MAX;
use crate::IndexError;
use crate::blink::remote::RemoteTree;

/// Passes of a flush over the frames while others go on changing them.
const PASSES_MAX: u32 = 64;
/// Tries at one frame that somebody holds.
const TRIES_MAX: u32 = 1_000;

impl Cache {
    /// Writes all nodes that are dirty now, children before their parents.
    ///
    /// Cost: 1 WRITE each, up to 8 in a round trip; with a journal 1 more for those, before them.
    pub(super) async fn flush(self: &Arc<Self>, session: &Session) -> Result<(), IndexError> {
        let (cache, task_session) = (Arc::clone(self), session.clone());
        RemoteTree::detach(session, async move { cache.flush_now(&task_session).await }).await
    }

    async fn flush_now(self: &Arc<Self>, session: &Session) -> Result<(), IndexError> {
        for _ in 0..PASSES_MAX {
            let mut dirty: Vec<(u8, u32)> = (0..self.frames.count() as u32)
                .filter(|&frame| self.frames.ctl(frame).is_dirty())
                .map(|frame| (self.frames.ctl(frame).level(), frame))
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
        // Others dirty nodes as quickly as they are written; what was dirty at first is written.
        Ok(())
    }

    /// Writes those of some dirty frames that nobody holds; gives the others.
    async fn flush_together(
        self: &Arc<Self>,
        session: &Session,
        frames: &[(u8, u32)],
    ) -> Result<Vec<u32>, IndexError> {
        let (mut held, mut others) = (Vec::new(), Vec::new());
        for &(_, frame) in frames {
            let ctl = self.frames.ctl(frame);
            match ctl.latch.sample().and_then(|version| self.try_sx(frame, version)) {
                Some(sx) if ctl.is_dirty() && ctl.state() == State::Hot => held.push(sx),
                Some(_) => {}
                None => others.push(frame),
            }
        }
        self.write_back_all(session, &held).await?;
        self.stats.flushed.add_many(held.len() as u64);
        Ok(others)
    }

    /// Writes the node of one frame back, if it is dirty.
    pub(super) async fn flush_frame(
        self: &Arc<Self>,
        session: &Session,
        frame: u32,
    ) -> Result<(), IndexError> {
        let ctl = self.frames.ctl(frame);
        for _ in 0..TRIES_MAX {
            if !ctl.is_dirty() {
                return Ok(());
            }
            let version = ctl.latch.sample();
            if let Some(sx) = version.and_then(|version| self.try_sx(frame, version)) {
                if ctl.is_dirty() && ctl.state() == State::Hot {
                    self.write_back(session, &sx).await?;
                    self.stats.flushed.add();
                }
                return Ok(());
            }
            self.wait_for_frame(frame).await;
            session.endpoint().yield_now().await;
        }
        Err(IndexError::Unavailable("a node is being changed all the time: try again".into()))
    }

    /// Writes everything back and gives up what the map says is this cache's. Nothing may run on it.
    ///
    /// Cost: that of a flush, and a change of the map.
    pub(super) async fn close(self: &Arc<Self>, session: &Session) -> Result<(), IndexError> {
        if self.ownership.is_closed() {
            return self.ownership.release_once(session).await;
        }
        self.check_settled()?;
        self.flush(session).await?;
        self.ownership.set_closed();
        self.ownership.release_once(session).await
    }
}
