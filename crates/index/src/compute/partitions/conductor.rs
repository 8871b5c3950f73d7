//! Conductor: the one member that closes and opens partitions, after a death or to move them.
//!
//! It holds a lock word of the table. A successor of a dead conductor finds all that it needs in the map: closed
//! partitions wait for acknowledgements of the map's epoch or a later one, and a move under way is called off.
//! So every conductor begins with [`Conductor::settle`], which may be repeated from any point.

use std::cell::RefCell;

use farleaf_fabric::{Endpoint, GlobalAddr, Incarnation, OpErrorKind, OpKind};
use farleaf_pool::{PoolError, Session};

use super::acks::{clear_ack, read_acks};
use super::map::{MapMember, MoveWay, PartitionMap, PartitionState};
use super::membership::{learn, learn_if_newer};
use super::{
    Home, OPEN_UNACKNOWLEDGED, OPEN_UNFINISHED, PartitionedTable, TWO_CONDUCTORS,
    change_partitions, read_partitions,
};
use crate::IndexError;
use crate::compute::MoveError;
use crate::compute::ownership::cut_off;
use crate::detach::detach;
use crate::remote_lock::lock_word_beside;
use crate::retry::backoff;

/// Partitions that one step of a move closes.
const PARTITIONS_A_STEP: usize = 64;
/// Time that a move waits for acknowledgements before it is called off.
const MOVE_WAIT_NS: u64 = 1_000_000_000;
/// Rounds of moves after which others are taken to move partitions back and forth.
const ROUNDS_MAX: u32 = 1_000;

/// Gives the partitions of the dead compute server `dead` to others, under new terms. It is cut off first, and so are
/// dead members that have not acknowledged. The caller has no pin and is not inside the guard.
///
/// Cost: a fence per server; 4 changes of the map's words, a READ per look at the acknowledgements.
///
/// # Errors
/// `Unavailable` if it lives.
pub async fn fail_over<T: PartitionedTable>(
    table: &T,
    session: &Session,
    dead: Incarnation,
) -> Result<(), IndexError> {
    {
        let _pin = session.begin(OpKind::Maintenance).await?;
        let words = table.words();
        cut_off(&words.map, session, dead).await?;
        let map = read_partitions(words, session).await?;
        if map.member(dead).is_none() && !map.is_closed() {
            return learn(table, session).await;
        }
    }
    let settled = conduct(table, session, async move |conductor| {
        conductor.dead.borrow_mut().push(dead);
        conductor.settle().await?;
        Ok(())
    });
    only_index(settled.await)
}

/// Finishes what a conductor has left: opens closed partitions once that is allowed. The caller has no pin and
/// is not inside the guard.
///
/// # Errors
/// `Unavailable` if another conductor is at work for long.
pub async fn resume<T: PartitionedTable>(table: &T, session: &Session) -> Result<(), IndexError> {
    let settled = conduct(table, session, async |conductor| {
        conductor.settle().await?;
        Ok(())
    });
    only_index(settled.await)
}

/// Does `work` as the conductor, by the map as it stands: meanwhile no partition opens or changes its owner. The caller is
/// not inside the guard. `work` holds a pin and runs to its end.
///
/// Cost: 2 CAS and 3 READs, and that of the work.
///
/// # Errors
/// `Unavailable` if another conductor is at work for long; those of `work`.
pub async fn as_conductor<T: PartitionedTable, R: 'static>(
    table: &T,
    session: &Session,
    work: impl AsyncFnOnce(&T, &Session, &PartitionMap) -> Result<R, IndexError> + 'static,
) -> Result<R, IndexError> {
    let done = conduct(table, session, async move |conductor| {
        let (table, session) = (&conductor.table, &conductor.session);
        let map = read_partitions(table.words(), session).await?;
        Ok(work(table, session, &map).await?)
    });
    only_index(done.await)
}

/// Moves partitions to the memory of `to`, or to memory servers if that is `None`, 64 at a time; gives the map's
/// epoch then. The caller has no pin and is not inside the guard.
///
/// Cost: for each step two changes of the map, a READ per look at the acknowledgements, and the lines.
///
/// # Errors
/// `CalledOff` if giver or taker died, `Busy` if a member does not acknowledge for 1 s: what has not been moved is
/// open again where it was. `UnknownServer`.
pub async fn move_partitions<T: PartitionedTable>(
    table: &T,
    session: &Session,
    partitions: Vec<u32>,
    to: Option<Incarnation>,
    way: MoveWay,
) -> Result<u32, MoveError> {
    conduct(table, session, async move |conductor| conductor.move_to(&partitions, to, way).await)
        .await
}

/// Moves partitions until each is where the ring has it. The caller has no pin and is not inside the guard.
///
/// # Errors
/// As [`move_partitions`].
pub async fn rebalance<T: PartitionedTable>(
    table: &T,
    session: &Session,
    way: MoveWay,
) -> Result<(), MoveError> {
    move_misplaced(table, session, None, way).await
}

/// Moves partitions until each is where the ring has it, those of `from` alone if that is given. The plan is made with the
/// conductor's word: an older one might give partitions to a member that is leaving.
pub(super) async fn move_misplaced<T: PartitionedTable>(
    table: &T,
    session: &Session,
    from: Option<Incarnation>,
    way: MoveWay,
) -> Result<(), MoveError> {
    for _ in 0..ROUNDS_MAX {
        let map = {
            let pinned = session.begin(OpKind::Maintenance).await;
            let _pin = pinned.map_err(IndexError::from)?;
            read_partitions(table.words(), session).await?
        };
        if map.next_misplaced(from).is_none() {
            return Ok(());
        }
        conduct(table, session, async move |conductor| {
            let map = conductor.settle().await?;
            match map.next_misplaced(from) {
                Some((to, numbers)) => conductor.move_settled(&map, &numbers, to, way).await,
                None => Ok(map.epoch),
            }
        })
        .await?;
    }
    Err(MoveError::Busy)
}

/// Changes the map's members by `change`, as the conductor, once no partition is closed, no dead member is named, and this
/// member has acknowledged that map; gives what `change` returned. A change to nothing is `None`.
pub(super) async fn change_as_conductor<T: PartitionedTable, R: 'static>(
    table: &T,
    session: &Session,
    change: impl FnOnce(&PartitionMap) -> Result<(Option<PartitionMap>, R), MoveError> + 'static,
) -> Result<R, MoveError> {
    conduct(table, session, async move |conductor| {
        let map = conductor.settle().await?;
        conductor.acknowledge(map.epoch).await?;
        let mut told = None;
        conductor
            .change(|map| match change(map) {
                Ok((new, result)) => {
                    told = Some(Ok(result));
                    new
                }
                Err(error) => {
                    told = Some(Err(error));
                    None
                }
            })
            .await?;
        learn(&conductor.table, &conductor.session).await?;
        told.expect("the change has run")
    })
    .await
}

/// The error of work that moves nothing.
fn only_index<R>(done: Result<R, MoveError>) -> Result<R, IndexError> {
    done.map_err(|error| match error {
        MoveError::Index(error) => error,
        other => IndexError::Unavailable(other.to_string()),
    })
}

/// Does `work` as the conductor, to its end whatever becomes of the caller.
async fn conduct<T: PartitionedTable, R: 'static>(
    table: &T,
    session: &Session,
    work: impl AsyncFnOnce(&Conductor<T>) -> Result<R, MoveError> + 'static,
) -> Result<R, MoveError> {
    let _pin = session.begin(OpKind::Maintenance).await.map_err(IndexError::from)?;
    let (table, task_session) = (table.clone(), session.without_deadline());
    let conductor = Conductor { table, session: task_session, dead: RefCell::default() };
    detach(session, async move {
        if TWO_CONDUCTORS.is_armed() {
            return work(&conductor).await;
        }
        let (table, session) = (&conductor.table, &conductor.session);
        // The present conductor may wait for this member's acknowledgement.
        let meanwhile = async || learn_if_newer(table, session).await;
        let word = table.words().conductor;
        // Dropped, the lock is released; what is closed then is another conductor's to open.
        let lock = lock_word_beside(session, word, meanwhile, async |_| Ok(())).await?;
        let done = work(&conductor).await;
        lock.release().await?;
        done
    })
    .await
}

/// The end of a wait for acknowledgements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Acks {
    /// All members that take part have acknowledged.
    All,
    /// A member was found dead, and cut off.
    Deaths,
    /// Time is up.
    Late,
}

/// The member that holds the conductor's word.
struct Conductor<T> {
    table: T,
    /// Waits for servers for ever.
    session: Session,
    /// Compute servers that it has cut off, which the member table may still name.
    dead: RefCell<Vec<Incarnation>>,
}

impl<T: PartitionedTable> Conductor<T> {
    fn acks(&self) -> GlobalAddr {
        self.table.words().acks
    }

    async fn change(
        &self,
        change: impl FnOnce(&PartitionMap) -> Option<PartitionMap>,
    ) -> Result<PartitionMap, IndexError> {
        change_partitions(self.table.words(), &self.session, |map| Ok(change(map))).await
    }

    /// Takes the dead out of the map, calls off a move that is under way, and opens what is closed, once all members
    /// have acknowledged that and the work of the dead is finished; gives the map then.
    async fn settle(&self) -> Result<PartitionMap, IndexError> {
        loop {
            let lives = self.session.members().await?;
            let is_dead = |member: &MapMember| {
                let who = member.incarnation;
                self.dead.borrow().contains(&who) || !lives.iter().any(|it| it.incarnation == who)
            };
            let map = self.change(|map| map.settled(is_dead)).await?;
            let closed = map.in_state(PartitionState::Closed);
            if closed.is_empty() {
                learn(&self.table, &self.session).await?;
                return Ok(map);
            }
            if self.wait_for_acks(map.epoch, None).await? == Acks::Deaths {
                continue;
            }
            if !OPEN_UNFINISHED.is_armed() {
                self.table.finish_dead(&self.session, &closed).await?;
            }
            let is_unowned = |number: &u32| map.entries[*number as usize].owner.is_none();
            let unowned: Vec<u32> = closed.into_iter().filter(is_unowned).collect();
            if !unowned.is_empty() {
                self.table.clear_unowned(&self.session, &unowned).await?;
            }
            let opened = self.change(|map| Some(map.opened())).await?;
            learn(&self.table, &self.session).await?;
            return Ok(opened);
        }
    }

    /// Waits until this member has acknowledged `epoch` or a later one. It has zeroed then what it has lost, and may leave the
    /// map, which names its slice.
    async fn acknowledge(&self, epoch: u32) -> Result<(), IndexError> {
        let mut attempt = 0;
        while self.table.membership().is_some_and(|own| own.acked() < epoch) {
            learn(&self.table, &self.session).await?;
            backoff(&self.session, attempt).await;
            attempt = (attempt + 1).min(6);
        }
        Ok(())
    }

    /// Waits until every member that takes part has acknowledged `epoch` or a later one, or is cut off.
    async fn wait_for_acks(&self, epoch: u32, until_ns: Option<u64>) -> Result<Acks, IndexError> {
        if OPEN_UNACKNOWLEDGED.is_armed() {
            return Ok(Acks::All);
        }
        let (session, mut attempt) = (&self.session, 0);
        loop {
            // This member's own acknowledgement: nobody else may be there to see to it.
            if self.table.membership().is_some_and(|own| own.acked() < epoch) {
                learn(&self.table, session).await?;
            }
            let mut late = read_acks(session, self.acks()).await?;
            late.retain(|(_, word)| word.epoch() < epoch);
            if late.is_empty() {
                return Ok(Acks::All);
            }
            let members = session.members().await?;
            let mut found_dead = false;
            for (slot, word) in late {
                let mut lives = members.iter();
                let is_it = |it: &&farleaf_pool::Member| {
                    it.slot == slot && it.generation == word.generation()
                };
                if let Some(member) = lives.find(is_it) {
                    if !self.cut_off_if_dead(member.incarnation).await? {
                        continue;
                    }
                    self.dead.borrow_mut().push(member.incarnation);
                }
                // It is cut off, by this conductor or before it was marked in the member table; or it has left the
                // pool in order, and nothing of it is under way.
                clear_ack(session, self.acks(), slot, word).await?;
                found_dead = true;
            }
            if found_dead {
                return Ok(Acks::Deaths);
            }
            if until_ns.is_some_and(|until_ns| session.endpoint().now_ns() >= until_ns) {
                return Ok(Acks::Late);
            }
            backoff(session, attempt).await;
            attempt = (attempt + 1).min(6);
        }
    }

    /// Cuts `who` off from all memory if it is dead; returns whether it did.
    async fn cut_off_if_dead(&self, who: Incarnation) -> Result<bool, IndexError> {
        let endpoint = self.session.endpoint();
        if who == endpoint.incarnation() || !endpoint.is_dead(who).await {
            return Ok(false);
        }
        match self.session.fence(who).await {
            Ok(()) => Ok(true),
            Err(PoolError::Fabric(error)) => match error.kind {
                // Its death was in doubt, or a living member's memory cannot be reached: it counts later.
                OpErrorKind::StillAlive | OpErrorKind::Unavailable | OpErrorKind::Timeout => {
                    Ok(false)
                }
                _ => Err(error.into()),
            },
            Err(error) => Err(error.into()),
        }
    }

    /// Moves partitions, step by step.
    async fn move_to(
        &self,
        partitions: &[u32],
        to: Option<Incarnation>,
        way: MoveWay,
    ) -> Result<u32, MoveError> {
        let map = self.settle().await?;
        self.move_settled(&map, partitions, to, way).await
    }

    /// As [`Conductor::move_to`], by the map that it has settled.
    async fn move_settled(
        &self,
        map: &PartitionMap,
        partitions: &[u32],
        to: Option<Incarnation>,
        way: MoveWay,
    ) -> Result<u32, MoveError> {
        if let Some(to) = to.filter(|to| map.member(*to).is_none()) {
            return Err(MoveError::UnknownServer(to));
        }
        let count = map.entries.len();
        if let Some(number) = partitions.iter().find(|number| **number as usize >= count) {
            let why = format!("partition {number}: the table has partitions 0 to {}", count - 1);
            return Err(IndexError::Invalid(why).into());
        }
        let is_elsewhere = |number: &u32| map.entries[*number as usize].owner != to;
        let moving: Vec<u32> = partitions.iter().copied().filter(is_elsewhere).collect();
        let mut epoch = map.epoch;
        for step in moving.chunks(PARTITIONS_A_STEP) {
            let moved = self.move_step(step, to, way).await;
            // Calls off what was not moved, and sees to those who died meanwhile.
            let map = self.settle().await?;
            moved?;
            epoch = map.epoch;
        }
        Ok(epoch)
    }

    /// One step. After an error, partitions are left moving.
    async fn move_step(
        &self,
        step: &[u32],
        to: Option<Incarnation>,
        way: MoveWay,
    ) -> Result<(), MoveError> {
        let map = self.change(|map| Some(map.with_move(step, to, way))).await?;
        let until_ns = self.session.endpoint().now_ns() + MOVE_WAIT_NS;
        let is_part = |who: Incarnation| {
            let owns = |number: &u32| map.entries[*number as usize].owner == Some(who);
            to == Some(who) || step.iter().any(owns)
        };
        loop {
            match self.wait_for_acks(map.epoch, Some(until_ns)).await? {
                Acks::All => break,
                Acks::Late => return Err(MoveError::Busy),
                Acks::Deaths if self.dead.borrow().iter().any(|who| is_part(*who)) => {
                    return Err(MoveError::CalledOff);
                }
                Acks::Deaths => {}
            }
        }
        if to.is_none() {
            self.table.clear_unowned(&self.session, step).await?;
        }
        match way {
            MoveWay::Build => self.table.finish_dead(&self.session, step).await?,
            MoveWay::Copy => {
                let new = Home { owner: to, term: map.epoch };
                for number in step {
                    let entry = map.entries[*number as usize];
                    let old = Home { owner: entry.owner, term: entry.term };
                    self.table.copy_lines(&self.session, *number, old, new).await?;
                }
            }
        }
        let mut is_done = false;
        self.change(|map| {
            let moved = map.moved();
            is_done = moved.is_some();
            moved
        })
        .await?;
        if is_done { Ok(()) } else { Err(MoveError::CalledOff) }
    }
}
