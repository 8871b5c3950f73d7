//! Source: runs the steps of a move on the side of the range's owner.

use std::sync::Arc;

use farleaf_fabric::{Endpoint, Incarnation, OpKind};
use farleaf_pool::Session;

use super::MoveError;
use crate::IndexError;
use crate::compute::messages::{OpReply, Request};
use crate::compute::ownership::{
    Intent, Ownership, Partitions, Range, View, ask, change_map, count, forget_intent, install,
    read_map,
};
use crate::compute::{Owned, RangeOwner};

farleaf_fabric::canaries! {
    pub GIVE_UNDRAINED = "give-undrained",
        "a range is given away while operations on it are under way";
}

/// Passes of writing back while the range is closed.
const PASSES_MAX: usize = 1_000;
/// Passes of writing back while the range is in use.
const EARLY_PASSES: usize = 4;
/// So few dirty nodes are left to be written while the range is closed.
const FEW: usize = 64;

/// A move under way on the giver's side. Dropped, everything is open again.
#[derive(Debug)]
pub(in crate::compute) struct MoveGuard(Arc<Ownership>);

impl MoveGuard {
    /// Begins to give something away, unless that is under way.
    pub(in crate::compute) fn begin(ownership: &Arc<Ownership>) -> Option<Self> {
        ownership.guard().begin_moving().then(|| MoveGuard(Arc::clone(ownership)))
    }
}

impl Drop for MoveGuard {
    fn drop(&mut self) {
        self.0.guard().end_moving();
        self.0.wake();
    }
}

/// Gives the keys of `range`, which must be this compute server's, to another one. Runs to its
/// end, in a session of its own, whatever becomes of the caller.
pub(crate) async fn give<T: RangeOwner>(
    table: &Owned<T>,
    session: &Session,
    range: Range,
    to: Incarnation,
) -> Result<u64, MoveError> {
    let table = table.clone();
    let own = session.pool().session(session.endpoint().clone()).await;
    let own = own.map_err(IndexError::from)?.without_deadline();
    let (sender, receiver) = crate::oneshot::channel();
    session.endpoint().spawn(async move {
        let done = give_now(&table, &own, range, to).await;
        drop(own);
        sender.send(done);
    });
    receiver.await
}

async fn give_now<T: RangeOwner>(
    table: &Owned<T>,
    session: &Session,
    range: Range,
    to: Incarnation,
) -> Result<u64, MoveError> {
    let (tree, ownership) = (table.tree(), table.ownership());
    let me = session.endpoint().incarnation();
    let view = ownership.view();
    if range.is_empty() {
        return Err(MoveError::OutOfOrder);
    }
    let keys = range.low.iter().chain(&range.high);
    if !keys.into_iter().all(|key| table.spec().takes_key(key.len())) {
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
    let greet = async || match ask(table, session, to, Request::Hello).await {
        Ok(Some(OpReply::Done(true))) => Ok(()),
        _ => Err(MoveError::UnknownServer(to)),
    };
    greet().await?;
    // 1
    let intent = Intent { from: me.0, to: to.0, range: range.clone() };
    let Some(moving) = MoveGuard::begin(ownership) else { return Err(MoveError::Busy) };
    announce(tree, session, intent.clone()).await?;
    // Once more: who closes the table after this finds the intent, and drops it.
    let prepared = match greet().await {
        Ok(()) => prepare(tree, session, &range).await,
        Err(gone) => Err(gone),
    };
    let prepared = match prepared {
        Ok(()) => commit(tree, session, &intent).await,
        Err(fail) => Err(fail),
    };
    let map = match prepared {
        Ok(map) => map,
        Err(error) => {
            // Everything is as it was, but for what has been written back.
            drop(moving);
            call_off(tree, session, &intent).await;
            return Err(error);
        }
    };
    // 9
    let epoch = map.epoch;
    let installed = {
        let _pin = session.begin(OpKind::Maintenance).await.map_err(IndexError::from)?;
        install(tree, session, map).await
    };
    drop(moving);
    count(&ownership.counts().moves);
    installed?;
    // It hears of it with the first operation, if not by this.
    let _ = ask(table, session, to, Request::Learn { epoch }).await;
    Ok(epoch)
}

/// Writes the intent into the map, in the place of one whose giver or taker is dead.
async fn announce<T: RangeOwner>(
    tree: &Arc<T>,
    session: &Session,
    intent: Intent,
) -> Result<(), MoveError> {
    let words = *tree.ownership().words();
    let _pin = session.begin(OpKind::Maintenance).await.map_err(IndexError::from)?;
    let mut tries = 0;
    loop {
        let held = read_map(&words, session).await?.intent;
        if let Some(other) = &held {
            for who in [other.from, other.to].map(Incarnation) {
                if who != session.endpoint().incarnation() && session.endpoint().is_dead(who).await
                {
                    // Without it, nobody names the range as the taker's any more.
                    session.fence(who).await.map_err(IndexError::from)?;
                    let dead = who.0;
                    change_map(tree, session, async move |map| {
                        let mut new = map.clone();
                        forget_intent(&mut new, dead);
                        Ok::<_, MoveError>(new)
                    })
                    .await?;
                }
            }
        }
        let wanted = intent.clone();
        let map = change_map(tree, session, async move |map| {
            if map.intent.is_some() {
                return Err(MoveError::Busy);
            }
            let owner = map.around(&wanted.range).map(|at| map.owners[at]);
            if owner != Some(wanted.from) {
                return Err(MoveError::NotOwned);
            }
            Ok(Partitions { intent: Some(wanted), ..map.clone() })
        })
        .await;
        match map {
            Ok(map) => return Ok(install(tree, session, map).await?),
            Err(MoveError::Busy) if held.is_some() && tries < 2 => tries += 1,
            Err(error) => return Err(error),
        }
    }
}

/// Step 8.
async fn commit<T: RangeOwner>(
    tree: &Arc<T>,
    session: &Session,
    intent: &Intent,
) -> Result<Partitions, MoveError> {
    let _pin = session.begin(OpKind::Maintenance).await.map_err(IndexError::from)?;
    let to = Incarnation(intent.to);
    if session.endpoint().is_dead(to).await {
        return Err(MoveError::DeadTarget(to));
    }
    let wanted = intent.clone();
    change_map(tree, session, async move |map| {
        if map.intent.as_ref() != Some(&wanted) {
            // INV-COMPUTE-MOVE-3
            return Err(MoveError::CalledOff);
        }
        let mut new = map.clone();
        new.give(&wanted.range, wanted.to);
        new.intent = None;
        Ok(new)
    })
    .await
}

/// Takes the intent back, as far as that can be done.
async fn call_off<T: RangeOwner>(tree: &Arc<T>, session: &Session, intent: &Intent) {
    let Ok(_pin) = session.begin(OpKind::Maintenance).await else { return };
    let wanted = intent.clone();
    let map = change_map(tree, session, async move |map| {
        if map.intent.as_ref() != Some(&wanted) {
            return Err(MoveError::CalledOff);
        }
        Ok(Partitions { intent: None, ..map.clone() })
    })
    .await;
    if let Ok(map) = map {
        // A map that it misses here it meets at its next operation.
        let _ = install(tree, session, map).await;
    }
}

/// Steps 2 to 7.
async fn prepare<T: RangeOwner>(
    tree: &Arc<T>,
    session: &Session,
    range: &Range,
) -> Result<(), MoveError> {
    let guard = tree.ownership().guard();
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
        tree.make_bound(session, end, true).await?;
    }
    // 4
    let mut most = usize::MAX;
    for pass in 0..EARLY_PASSES {
        let _pin = session.begin(OpKind::Maintenance).await.map_err(IndexError::from)?;
        let dirty = tree.write_back(session, range, most).await?;
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
    tree.share_bounds(session).await?;
    // 6
    guard.change(|view| Some(View { closed: Some(range.clone()), ..view.clone() }));
    if !GIVE_UNDRAINED.is_armed() {
        guard.drain(session).await;
    }
    // 7
    let _pin = session.begin(OpKind::Maintenance).await.map_err(IndexError::from)?;
    for _ in 0..PASSES_MAX {
        if tree.write_back(session, range, usize::MAX).await? == 0 {
            break;
        }
    }
    tree.hand_over(session, range).await
}
