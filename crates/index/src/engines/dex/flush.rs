//! Flush: writes all dirty nodes back, and closes the tree.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use farleaf_fabric::{Endpoint, Incarnation, Ops};
use farleaf_pool::Session;

use super::admission::Claim;
use super::frames::State;
use super::journal::BATCH_MAX;
use super::recover::{MAYBE_TAKEN, NOT_TAKEN, TAKEN, TAKEN_OVER};
use super::{CLOSED, Cache, Fail, OWNED};
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

    /// Makes the tree this cache's, or makes sure that it is. Runs to its end whatever becomes of the
    /// caller: a log that is about to be named is not freed.
    ///
    /// Cost: 1 CAS for the first time; if a dead compute server had it, a fence per memory server
    /// and 1 CAS more; and what `begin_log` costs.
    ///
    /// # Errors
    /// `Unavailable` if another compute server, or another cache of this one, has it.
    pub(super) async fn own(self: &Arc<Self>, session: &Session) -> Result<(), Fail> {
        self.check_open()?;
        if self.is_owned() {
            return Ok(());
        }
        let first = self.claim_root().await?;
        let (cache, task_session) = (Arc::clone(self), session.clone());
        self.detach(session, async move { cache.own_now(&task_session, &first).await }).await
    }

    /// As [`Cache::own`], of a task that has the root's claim: one at a time is the first.
    pub(super) async fn own_now(&self, session: &Session, _first: &Claim) -> Result<(), Fail> {
        self.check_open()?;
        if self.is_owned() {
            return Ok(());
        }
        self.take_table(session).await?;
        self.begin_log(session).await?;
        self.set_ownership(OWNED);
        Ok(())
    }

    /// Whether there is nothing to take: partitions were claimed before anybody came here.
    fn is_owned(&self) -> bool {
        self.ownership() == OWNED || self.part.is_some()
    }

    /// Puts this compute server's incarnation into the owner's word.
    async fn take_table(&self, session: &Session) -> Result<(), Fail> {
        let taken = self.log.taken.load(Ordering::Relaxed);
        if matches!(taken, TAKEN | TAKEN_OVER) {
            // What came after it failed.
            return Ok(());
        }
        let (steady, word) = (session.steady(), self.remote.owner_word());
        let me = session.endpoint().incarnation();
        let mut expected = 0;
        // Twice: free, or left behind by one that is dead.
        for _ in 0..2 {
            let build = |ops: &mut Ops| {
                ops.cas(word, expected, me.0);
                // In the same round trip, behind it: is there a map by now? And the placement, two
                // words on.
                ops.read(self.remote.map_word(), steady.buf(24));
            };
            // Until the outcome is known; also if it never will be.
            self.log.taken.store(MAYBE_TAKEN, Ordering::Relaxed);
            let (ops, repeated) = steady.chain(build).await?;
            // Nobody but this compute server puts its name there. (Should two caches of it ask for one
            // table at the same moment, and lose completions, they are not told apart.)
            let mut holder = ops.old(0);
            if holder == me.0 && taken == MAYBE_TAKEN {
                // By an earlier call; from whom is not known any more.
                self.take_placement(ops.buf(1).words()[2]);
                self.log.taken.store(TAKEN_OVER, Ordering::Relaxed);
                return Ok(());
            }
            if holder == me.0 && repeated {
                holder = expected;
            }
            self.log.taken.store(NOT_TAKEN, Ordering::Relaxed);
            if holder == expected && ops.buf(1).words()[0] != 0 {
                steady.cas_release(word, me.0, 0).await?;
                return Err(Fail::Error(IndexError::Invalid(format!(
                    "the table at {} is partitioned: open one of its partitions",
                    self.remote.meta()
                ))));
            }
            if holder == expected {
                self.take_placement(ops.buf(1).words()[2]);
                let taken = if expected == 0 { TAKEN } else { TAKEN_OVER };
                self.log.taken.store(taken, Ordering::Relaxed);
                return Ok(());
            }
            let holder = Incarnation(holder);
            if holder == me {
                return Err(Fail::Error(IndexError::Unavailable(format!(
                    "the table at {} is open in this compute server already, with another cache, or \
                     was not closed there",
                    self.remote.meta()
                ))));
            }
            if !session.endpoint().is_dead(holder).await {
                return Err(Fail::Error(IndexError::Unavailable(format!(
                    "the table at {} belongs to compute server {holder}, which lives: a table of \
                     this engine is open in one compute server at a time",
                    self.remote.meta()
                ))));
            }
            steady.fence_everywhere(holder).await?;
            expected = holder.0;
        }
        Err(Fail::Restart)
    }

    /// Writes everything back and gives the tree to whoever opens it next. Nothing may run on it.
    ///
    /// Cost: that of a flush, and 1 CAS; 2 WRITEs if it has a log.
    pub(super) async fn close(self: &Arc<Self>, session: &Session) -> Result<(), IndexError> {
        if self.ownership() == CLOSED {
            return self.release_once(session).await;
        }
        self.check_settled()?;
        self.flush(session).await?;
        if self.part.is_some() {
            self.set_ownership(CLOSED);
            // Whoever waited for a range to open hears of it.
            self.wake_gate();
            return self.release_once(session).await;
        }
        if self.ownership() != OWNED {
            self.set_ownership(CLOSED);
            return Ok(());
        }
        let (cache, session_too) = (Arc::clone(self), session.clone());
        RemoteTree::detach(session, async move {
            cache.end_log(&session_too).await?;
            cache.set_ownership(CLOSED);
            let me = session_too.endpoint().incarnation().0;
            let session = session_too.patient();
            session.steady().cas_release(cache.remote.owner_word(), me, 0).await?;
            Ok(())
        })
        .await
    }
}
