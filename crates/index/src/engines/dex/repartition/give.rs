//! Giving: runs the steps of a move on the side of the range's owner.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use farleaf_fabric::{Endpoint, Incarnation, OpKind};
use farleaf_pool::Session;
use farleaf_pool::canary::Canary;

use super::super::member::forget_intent;
use super::super::partitions::{Intent, Partitions, Range, change_map};
use super::super::range_guard::View;
use super::super::tree::Need;
use super::super::tree::Seek;
use super::super::{Cache, Dex, Fail, Found, OpContext};
use crate::IndexError;
use crate::compute::MoveError;
use crate::compute::messages::{Op, OpReply};

/// Passes of writing back while the range is closed.
const PASSES_MAX: usize = 1_000;
/// Passes of writing back while the range is in use.
const EARLY_PASSES: usize = 4;
/// So few dirty nodes are left to be written while the range is closed.
const FEW: usize = 64;

/// How a range is given away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoveOptions {
    /// Nodes that are written back at the same time.
    pub flush_tasks: usize,
}

impl Default for MoveOptions {
    fn default() -> Self {
        MoveOptions { flush_tasks: 1 }
    }
}

/// A move under way on the giver's side. Dropped, everything is open again.
pub(in super::super) struct Moving(Arc<Cache>);

impl Moving {
    pub(in super::super) fn begin(cache: &Arc<Cache>) -> Option<Self> {
        cache.part.guard.begin_moving().then(|| Moving(Arc::clone(cache)))
    }
}

impl Drop for Moving {
    fn drop(&mut self) {
        self.0.part.guard.end_moving();
        self.0.wake_guard();
    }
}

impl Dex {
    /// Gives the keys of `(low, high]`, which must be this compute server's, to another one. Runs to its
    /// end, in a session of its own, whatever becomes of the caller.
    pub(in super::super) async fn give(
        &self,
        session: &Session,
        low: Option<Vec<u8>>,
        high: Option<Vec<u8>>,
        to: Incarnation,
    ) -> Result<u64, MoveError> {
        let dex = self.clone();
        let range = Range { low, high };
        let own = session.pool().session(session.endpoint().clone()).await;
        let own = own.map_err(IndexError::from)?.without_deadline();
        let (sender, receiver) = crate::oneshot::channel();
        session.endpoint().spawn(async move {
            let done = dex.give_now(&own, range, to).await;
            drop(own);
            sender.send(done);
        });
        receiver.await
    }

    async fn give_now(
        &self,
        session: &Session,
        range: Range,
        to: Incarnation,
    ) -> Result<u64, MoveError> {
        let cache = &self.0;
        let me = session.endpoint().incarnation();
        let view = cache.view();
        if range.is_empty() {
            return Err(MoveError::OutOfOrder);
        }
        let keys = range.low.iter().chain(&range.high);
        if !keys.into_iter().all(|key| cache.layout().takes_key(key.len())) {
            return Err(MoveError::NoKey);
        }
        let is_own = |view: &View| view.map.around(&range).is_some_and(|at| view.owned[at]);
        if !is_own(&view) {
            return Err(MoveError::NotOwned);
        }
        if to == me {
            return Ok(view.map.epoch);
        }
        if to.0 == 0 {
            // The owner of what nobody has.
            return Err(MoveError::UnknownServer(to));
        }
        if session.endpoint().is_dead(to).await {
            return Err(MoveError::DeadTarget(to));
        }
        let greet = async || match self.ask(session, to, Op::Hello).await {
            Ok(Some(OpReply::Done(true))) => Ok(()),
            _ => Err(MoveError::UnknownServer(to)),
        };
        greet().await?;
        // 1
        let intent = Intent { from: me.0, to: to.0, range: range.clone() };
        let Some(moving) = Moving::begin(cache) else { return Err(MoveError::Busy) };
        self.announce(session, intent.clone()).await?;
        // Once more: who closes the table after this finds the intent, and drops it.
        let prepared = match greet().await {
            Ok(()) => cache.prepare(session, &range, self.move_options()).await,
            Err(gone) => Err(gone),
        };
        let prepared = match prepared {
            Ok(()) => self.commit(session, &intent).await,
            Err(fail) => Err(fail),
        };
        let map = match prepared {
            Ok(map) => map,
            Err(error) => {
                // Everything is as it was, but for what has been written back.
                drop(moving);
                self.call_off(session, &intent).await;
                return Err(error);
            }
        };
        // 9
        let epoch = map.epoch;
        let installed = {
            let _pin = session.begin(OpKind::Maintenance).await.map_err(IndexError::from)?;
            cache.install(session, map).await
        };
        drop(moving);
        cache.stats.moves.add();
        installed?;
        // It hears of it with the first operation, if not by this.
        let _ = self.ask(session, to, Op::Learn { epoch }).await;
        Ok(epoch)
    }

    fn move_options(&self) -> MoveOptions {
        self.0.options.moves
    }

    /// Writes the intent into the map, in the place of one whose giver or taker is dead.
    async fn announce(&self, session: &Session, intent: Intent) -> Result<(), MoveError> {
        let _pin = session.begin(OpKind::Maintenance).await.map_err(IndexError::from)?;
        let mut tries = 0;
        loop {
            let held = Cache::read_map(&self.0.remote, session).await?.intent;
            if let Some(other) = &held {
                for who in [other.from, other.to].map(Incarnation) {
                    if who != session.endpoint().incarnation()
                        && session.endpoint().is_dead(who).await
                    {
                        // Without it, nobody names the range as the taker's any more.
                        session.reliable().fence_everywhere(who).await.map_err(IndexError::from)?;
                        let dead = who.0;
                        change_map(&self.0.remote, session, async move |map| {
                            let mut new = map.clone();
                            forget_intent(&mut new, dead);
                            Ok(new)
                        })
                        .await?;
                    }
                }
            }
            let wanted = intent.clone();
            let busy = Rc::new(RefCell::new(None));
            let told = Rc::clone(&busy);
            let map = change_map(&self.0.remote, session, async move |map| {
                let refuse = |why: MoveError| {
                    *told.borrow_mut() = Some(why);
                    Err(IndexError::Unavailable("a move cannot begin".into()))
                };
                if map.intent.is_some() {
                    return refuse(MoveError::Busy);
                }
                let owner = map.around(&wanted.range).map(|at| map.owners[at]);
                if owner != Some(wanted.from) {
                    return refuse(MoveError::NotOwned);
                }
                Ok(Partitions { intent: Some(wanted), ..map.clone() })
            })
            .await;
            let why = busy.borrow_mut().take();
            match (map, why) {
                (Ok(map), _) => {
                    self.0.install(session, map).await?;
                    return Ok(());
                }
                (Err(_), Some(MoveError::Busy)) if held.is_some() && tries < 2 => tries += 1,
                (Err(_), Some(why)) => return Err(why),
                (Err(error), None) => return Err(error.into()),
            }
        }
    }

    /// Step 8.
    async fn commit(&self, session: &Session, intent: &Intent) -> Result<Partitions, MoveError> {
        let _pin = session.begin(OpKind::Maintenance).await.map_err(IndexError::from)?;
        let to = Incarnation(intent.to);
        if session.endpoint().is_dead(to).await {
            return Err(MoveError::DeadTarget(to));
        }
        let wanted = intent.clone();
        let gone = Rc::new(RefCell::new(false));
        let told = Rc::clone(&gone);
        let map = change_map(&self.0.remote, session, async move |map| {
            if map.intent.as_ref() != Some(&wanted) {
                // INV-DEX-MOVE-3
                *told.borrow_mut() = true;
                return Err(IndexError::Unavailable("the move was called off".into()));
            }
            let mut new = map.clone();
            new.give(&wanted.range, wanted.to);
            new.intent = None;
            Ok(new)
        })
        .await;
        match map {
            Ok(map) => Ok(map),
            Err(_) if *gone.borrow() => Err(MoveError::CalledOff),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes the intent back, as far as that can be done.
    async fn call_off(&self, session: &Session, intent: &Intent) {
        let Ok(_pin) = session.begin(OpKind::Maintenance).await else { return };
        let wanted = intent.clone();
        let map = change_map(&self.0.remote, session, async move |map| {
            if map.intent.as_ref() != Some(&wanted) {
                return Err(IndexError::Unavailable("it is gone already".into()));
            }
            Ok(Partitions { intent: None, ..map.clone() })
        })
        .await;
        if let Ok(map) = map {
            // What it learns of later it learns then.
            let _ = self.0.install(session, map).await;
        }
    }
}

impl Cache {
    /// Steps 2 to 7.
    async fn prepare(
        self: &Arc<Self>,
        session: &Session,
        range: &Range,
        options: MoveOptions,
    ) -> Result<(), MoveError> {
        let guard = &self.part.guard;
        // 2
        guard.drain(session).await;
        // 3
        let view = guard.view();
        let ends: Vec<Vec<u8>> = [&range.low, &range.high]
            .into_iter()
            .flatten()
            .filter(|end| !view.map.bounds.contains(end))
            .cloned()
            .collect();
        for end in &ends {
            let _pin = session.begin(OpKind::Maintenance).await.map_err(IndexError::from)?;
            self.cut_leaf(session, end).await?;
            self.visit_children(session, end).await?;
        }
        // 4
        let (tasks, mut most) = (options.flush_tasks, usize::MAX);
        for pass in 0..EARLY_PASSES {
            let _pin = session.begin(OpKind::Maintenance).await.map_err(IndexError::from)?;
            let dirty = self.flush_range(session, range, tasks, most).await?;
            // Under a heavy load what has been written is soon dirty again: no use in writing it twice
            // before the range is closed.
            if dirty <= FEW * (pass + 1) || dirty > most {
                break;
            }
            most = dirty / 2;
        }
        // 5
        guard.change(|view| Some(View { cuts: ends.clone(), ..view.clone() }));
        guard.drain(session).await;
        self.share_crossing(session).await?;
        // 6
        guard.change(|view| Some(View { closed: Some(range.clone()), ..view.clone() }));
        if !Canary::GiveUndrained.is_armed() {
            guard.drain(session).await;
        }
        // 7
        let _pin = session.begin(OpKind::Maintenance).await.map_err(IndexError::from)?;
        for _ in 0..PASSES_MAX {
            if self.flush_range(session, range, tasks, usize::MAX).await? == 0 {
                break;
            }
        }
        self.drop_range(session, range).await?;
        self.log.forget_images_in(&self.remote, session, range).await?;
        Ok(())
    }

    /// Splits the leaf that has `bound` so that it ends there.
    pub(in super::super) async fn cut_leaf(
        self: &Arc<Self>,
        session: &Session,
        bound: &[u8],
    ) -> Result<(), IndexError> {
        let mut restarts = OpContext::default();
        loop {
            match self.split(session, Need::Bound(bound.to_vec())).await {
                Ok(()) => return Ok(()),
                Err(fail) => restarts.after(fail, self, session).await?,
            }
        }
    }

    /// Finds every child of the inner nodes that cross `bound`, so that what a crash has left half done
    /// below them is healed while they are exclusive still: below a shared node merges are not.
    ///
    /// Cost: 1 READ for each child that is not cached.
    async fn visit_children(
        self: &Arc<Self>,
        session: &Session,
        bound: &[u8],
    ) -> Result<(), IndexError> {
        let mut level = 1;
        loop {
            let mut restarts = OpContext::default();
            let found = self.find(session, Seek::At(bound), level, false, &mut restarts).await?;
            let Found::Node(spot) = found else { return Ok(()) };
            let Some((_, range)) = self.range_of(spot.frame) else { continue };
            let node = self.pages.frames.node(self.layout(), spot.frame);
            let mut separators = Vec::new();
            for index in 0..node.count() {
                let mut separator = Vec::new();
                if node.separator(index, &mut separator) {
                    separators.push(separator);
                }
            }
            if !self.pages.frames.ctl(spot.frame).latch.validate(spot.version) {
                continue;
            }
            let is_shared = self.pages.frames.ctl(spot.frame).is_shared();
            if !is_shared && range.high.as_deref() != Some(bound) {
                let last = separators.last().cloned();
                for separator in &separators {
                    self.visit(session, Seek::At(separator), level - 1).await?;
                }
                if let Some(last) = &last {
                    self.visit(session, Seek::After(last), level - 1).await?;
                }
            }
            level += 1;
        }
    }

    pub(in super::super) async fn visit(
        self: &Arc<Self>,
        session: &Session,
        seek: Seek<'_>,
        level: u8,
    ) -> Result<(), IndexError> {
        let mut restarts = OpContext::default();
        restarts.must_cache();
        self.find(session, seek, level, false, &mut restarts).await.map(drop)
    }
}

impl From<Fail> for MoveError {
    fn from(fail: Fail) -> Self {
        match fail {
            Fail::Restart | Fail::NoFrame => MoveError::Busy,
            Fail::Error(error) => MoveError::Index(error),
        }
    }
}
