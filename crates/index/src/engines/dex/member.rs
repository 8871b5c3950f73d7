//! Membership: joins a partitioned table, learns newer maps, and takes over from dead owners.
//!
//! A compute server has one cache of a table, for all ranges that the map gives to its incarnation. It
//! begins to serve a range when the map names it as the owner. Before that, the former owner has
//! written everything back and dropped it, or has been cut off (`INV-DEX-PART-3`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use farleaf_fabric::{Endpoint, GlobalAddr, Incarnation, OpKind};
use farleaf_pool::Session;

use super::partitions::{Partitions, Range, change_map};
use super::placement::place_for;
use super::range_guard::{Posts, RangeGuard, View};
use super::walk::Seek;
use super::{CLOSED, Cache, Dex, DexOptions, OWNED};
use crate::IndexError;
use crate::blink::BlinkOptions;
use crate::blink::remote::RemoteTree;
use crate::bnode::Layout;
use crate::compute::forget;

/// What a compute server takes on when it opens a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Take {
    /// Nothing: every key is another's, and operations travel.
    Nothing,
    /// At most so many of the partitions that nobody has.
    Free(usize),
}

/// How a compute server takes part in a table: [`Dex::open`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JoinOptions {
    /// What it takes at once.
    pub take: Take,
    /// Whether it takes a partition over when it meets a key whose owner is dead, or that nobody has.
    pub take_over: bool,
    /// Whether it sends operations on others' keys to their owners. Without that they fail with `Unavailable`.
    pub calls: bool,
}

impl Default for JoinOptions {
    fn default() -> Self {
        JoinOptions { take: Take::Free(usize::MAX), take_over: true, calls: false }
    }
}

/// A cache's membership in its table: what it serves, and whether it takes over.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) guard: RangeGuard,
    /// The cache is closed, and the map does not name it.
    is_released: AtomicBool,
    pub(super) take_over: bool,
    /// See [`JoinOptions::calls`].
    pub(super) calls: bool,
    pub(super) posts: Posts,
}

impl Part {
    fn new(map: Partitions, take_over: bool, calls: bool) -> Self {
        let (guard, is_released, posts) =
            (RangeGuard::new(map), AtomicBool::default(), Posts::default());
        Part { guard, is_released, take_over, calls, posts }
    }

    /// What serves the partitions that are owned in `view`, and never another.
    pub(super) fn of_view(view: View) -> Self {
        let part = Part::new(view.map.clone(), false, false);
        part.guard.change(|_| Some(view));
        part
    }
}

impl Dex {
    /// Opens a table in this member of the pool: gives the cache that the member has of it, or a new one, which
    /// is empty.
    ///
    /// Cost: 3 READs for a new cache, and a change of the map if it takes something.
    ///
    /// # Errors
    /// For a new cache: `Invalid` for one of fewer than 8 nodes and for options that make no sense, `Full` if
    /// there is no memory for it; `Unavailable` if another member of this compute server has the table open.
    pub async fn open(
        session: &Session,
        meta: GlobalAddr,
        layout: Layout,
        options: DexOptions,
        join: JoinOptions,
    ) -> Result<Self, IndexError> {
        if let Some(cache) = session.pool().kept::<Cache>(meta) {
            return Ok(Dex(cache));
        }
        let (map, placement) = read_partitions(session, meta, layout).await?;
        let me = session.endpoint().incarnation();
        if map.owners.contains(&me.0) {
            return Err(open_already(meta, me));
        }
        let part = Part::new(map, join.take_over, join.calls);
        let new = Dex::with(meta, layout, options, part)?;
        let placement = place_for(session, meta, placement, new.0.options.offload).await?;
        new.0.take_placement(placement);
        // Kept before it takes anything: what it has from then on is this cache's, whatever fails.
        let dex = Dex(session.pool().keep(meta, new.0));
        if let Take::Free(most @ 1..) = join.take {
            let _pin = session.begin(OpKind::Maintenance).await?;
            dex.0.claim(session, most).await?;
        }
        Ok(dex)
    }

    /// Makes everything this compute server's that the map gives to a dead one, so that its keys are
    /// served again; how many partitions that were. Whoever meets a dead owner may call it, and so may
    /// a recovery; if two do, one of them gets it.
    ///
    /// The dead one's log is gone through first, if it had one: no acknowledged change is lost then.
    /// (With volatile durability those are that it had not written back.) What it left half done is
    /// healed when it is met. A move that it was in the middle of is undone.
    ///
    /// Cost: a fence for each memory server, a change of the map, and what going through a log costs.
    ///
    /// # Errors
    /// `Unavailable` if the compute server lives.
    pub async fn take_over(
        &self,
        session: &Session,
        dead: Incarnation,
    ) -> Result<usize, IndexError> {
        let _pin = session.begin(OpKind::Maintenance).await?;
        self.0.take_over(session, dead).await
    }

    /// Makes the partitions that nobody has this compute server's; whether there were any.
    ///
    /// Cost: 2 READs, and a change of the map if there are any.
    pub async fn take_all_free(&self, session: &Session) -> Result<bool, IndexError> {
        self.refresh_map(session).await?;
        let is_free = self.0.view().map.owners.contains(&0);
        if is_free {
            let _pin = session.begin(OpKind::Maintenance).await?;
            self.0.claim(session, usize::MAX).await?;
        }
        Ok(is_free)
    }

    /// Reads the ownership map and serves what it gives to this compute server; its epoch. Operations
    /// do so by themselves when they are told that a key has gone elsewhere.
    ///
    /// Cost: 2 READs.
    pub async fn refresh_map(&self, session: &Session) -> Result<u64, IndexError> {
        let _pin = session.begin(OpKind::Maintenance).await?;
        self.0.refresh_map(session).await
    }
}

async fn read_partitions(
    session: &Session,
    meta: GlobalAddr,
    layout: Layout,
) -> Result<(Partitions, u64), IndexError> {
    let remote = RemoteTree::open(meta, layout, BlinkOptions::default());
    let _pin = session.begin(OpKind::Other).await?;
    let placement = session.reliable().word(RemoteTree::placement_word(meta)).await?;
    Ok((Cache::read_map(&remote, session).await?, placement))
}

fn open_already(meta: GlobalAddr, me: Incarnation) -> IndexError {
    IndexError::Unavailable(format!(
        "compute server {me} has the table at {meta} open already, with another cache, or did not \
         close it: use that one"
    ))
}

impl Cache {
    /// Makes at most so many of the partitions that nobody has this cache's. The caller has a pin.
    pub(super) async fn claim(
        self: &Arc<Self>,
        session: &Session,
        most: usize,
    ) -> Result<(), IndexError> {
        let me = session.endpoint().incarnation();
        let map = change_map(&self.remote, session, async move |map| {
            let mut new = map.clone();
            let free = new.owners.iter_mut().filter(|owner| **owner == 0);
            free.take(most).for_each(|owner| *owner = me.0);
            Ok(new)
        })
        .await?;
        self.set_ownership(OWNED);
        self.install(session, map).await
    }

    /// Sees to it that nothing comes from `owner` any more; an error if it lives.
    async fn cut_off(&self, session: &Session, owner: Incarnation) -> Result<(), IndexError> {
        if owner.0 == 0 {
            return Ok(());
        }
        if owner == session.endpoint().incarnation() {
            return Err(open_already(self.remote.meta(), owner));
        }
        if !session.endpoint().is_dead(owner).await {
            return Err(IndexError::Unavailable(format!(
                "the partition of the table at {} belongs to compute server {owner}, which lives: \
                 a partition is open in one compute server at a time",
                self.remote.meta()
            )));
        }
        session.reliable().fence_everywhere(owner).await?;
        forget(session.endpoint(), owner);
        Ok(())
    }

    /// As [`Dex::take_over`]; the caller has a pin.
    pub(super) async fn take_over(
        self: &Arc<Self>,
        session: &Session,
        dead: Incarnation,
    ) -> Result<usize, IndexError> {
        let me = session.endpoint().incarnation().0;
        let (map, taken) = self.give_away(session, dead, me).await?;
        self.install(session, map).await?;
        self.stats.takeovers.add();
        Ok(taken)
    }

    /// Gives all that the map says is the dead compute server `dead`'s to `to` (0 is nobody), once it is
    /// cut off and its log has been gone through; the new map, and how many partitions that were. The
    /// caller has a pin.
    pub(super) async fn give_away(
        self: &Arc<Self>,
        session: &Session,
        dead: Incarnation,
        to: u64,
    ) -> Result<(Partitions, usize), IndexError> {
        self.cut_off(session, dead).await?;
        let (cache, task_session) = (Arc::clone(self), session.clone());
        let taken = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&taken);
        let map = change_map(&self.remote, session, async move |map| {
            cache.replay_dead(&task_session, map, dead.0).await?;
            let mut new = map.clone();
            for owner in new.owners.iter_mut().filter(|owner| **owner == dead.0) {
                *owner = to;
                counted.fetch_add(1, Ordering::Relaxed);
            }
            forget_intent(&mut new, dead.0);
            forget_log(&mut new, dead.0);
            Ok(new)
        })
        .await?;
        Ok((map, taken.load(Ordering::Relaxed)))
    }

    /// Makes the partition that `seek` is in this cache's, if nobody has it. The caller has a pin.
    pub(super) async fn take_free(
        self: &Arc<Self>,
        session: &Session,
        seek: Seek<'_>,
    ) -> Result<(), IndexError> {
        let me = session.endpoint().incarnation();
        let number = move |map: &Partitions, key: Option<(Vec<u8>, bool)>, last: bool| match key {
            Some((key, after)) => map.of(&key, after),
            None if last => map.count() - 1,
            None => 0,
        };
        let (key, last) = match seek {
            Seek::At(key) => (Some((key.to_vec(), false)), false),
            Seek::After(key) => (Some((key.to_vec(), true)), false),
            Seek::First => (None, false),
            Seek::Last => (None, true),
        };
        let map = change_map(&self.remote, session, async move |map| {
            let mut new = map.clone();
            let number = number(map, key, last);
            if new.owners[number] == 0 {
                new.owners[number] = me.0;
            }
            Ok(new)
        })
        .await?;
        self.install(session, map).await
    }

    /// As [`Dex::refresh_map`]; the caller has a pin.
    pub(super) async fn refresh_map(
        self: &Arc<Self>,
        session: &Session,
    ) -> Result<u64, IndexError> {
        let map = Cache::read_map(&self.remote, session).await?;
        let epoch = map.epoch;
        self.stats.map_reads.add();
        self.install(session, map).await?;
        Ok(epoch)
    }

    /// Goes by `map` from now on, unless a newer one is known; what has become this cache's by it is
    /// adopted. The caller has a pin.
    pub(super) async fn install(
        self: &Arc<Self>,
        session: &Session,
        map: Partitions,
    ) -> Result<(), IndexError> {
        self.check_open()?;
        let guard = &self.part.guard;
        let me = session.endpoint().incarnation().0;
        let gained = |view: &View, map: &Partitions| {
            let had =
                |range: Range| view.map.around(&range).is_some_and(|number| view.owned[number]);
            let mine = |at: usize| map.owners[at] == me;
            (0..map.count()).any(|at| mine(at) && !had(map.owned_range(at)))
        };
        let map = match map.epoch > guard.view().map.epoch && gained(&guard.view(), &map) {
            true => self.name_log(session, map).await?,
            false => map,
        };
        let mut gains = false;
        guard.change(|view| {
            if map.epoch <= view.map.epoch {
                return None;
            }
            let owned: Vec<bool> = map.owners.iter().map(|owner| *owner == me).collect();
            gains = gained(view, &map);
            Some(View { map, owned, cuts: view.cuts.clone(), closed: view.closed.clone() })
        });
        if gains {
            self.set_ownership(OWNED);
            self.adopt(session).await?;
        }
        self.wake_guard();
        Ok(())
    }

    /// Gives everything up that the map says is this cache's, or is about to be, once it is closed: also what
    /// it has come to have and could not begin to serve, for want of room. Does nothing the second time.
    pub(super) async fn release_once(
        self: &Arc<Self>,
        session: &Session,
    ) -> Result<(), IndexError> {
        if self.part.is_released.load(Ordering::Acquire) {
            return Ok(());
        }
        let me = session.endpoint().incarnation();
        // Not before it is closed: a giver asks whether it is open once its intent stands in the map.
        let map = Cache::read_map(&self.remote, session).await?;
        if map.holders().contains(&me) {
            self.release_all(session).await?;
        }
        self.part.is_released.store(true, Ordering::Release);
        Ok(())
    }

    /// Gives everything up that the map says is this cache's.
    async fn release_all(self: &Arc<Self>, session: &Session) -> Result<(), IndexError> {
        let me = session.endpoint().incarnation().0;
        change_map(&self.remote, session, async move |map| {
            let mut new = map.clone();
            new.owners.iter_mut().filter(|owner| **owner == me).for_each(|owner| *owner = 0);
            forget_intent(&mut new, me);
            forget_log(&mut new, me);
            Ok(new)
        })
        .await?;
        debug_assert_eq!(self.ownership(), CLOSED);
        Ok(())
    }
}

/// A move that `who` gives or takes in does not come about.
pub(super) fn forget_intent(map: &mut Partitions, who: u64) {
    if map.intent.as_ref().is_some_and(|intent| intent.from == who || intent.to == who) {
        map.intent = None;
    }
}

/// The log of `who`, which has been gone through or is empty, is of no use once it owns nothing.
fn forget_log(map: &mut Partitions, who: u64) {
    if !map.owners.contains(&who) {
        map.logs.retain(|(owner, _)| *owner != who);
    }
}
