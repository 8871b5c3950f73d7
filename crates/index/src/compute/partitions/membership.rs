//! Partition membership: takes part in a table, learns newer maps, and acknowledges them.
//!
//! A member that learns of a new map publishes it, drains its guard if an open partition has lost its home, zeroes
//! lines that have left it, and acknowledges the epoch. If the future that does this is dropped, the next tick
//! does the rest: what is left to do follows from `acked` and `must_drain`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use farleaf_fabric::{Endpoint, Incarnation, OpKind};
use farleaf_pool::Session;

use super::acks::{AckWord, ack_addr, clear_ack, read_acks};
use super::conductor::{change_as_conductor, move_misplaced, resume};
use super::guard::{InsidePartitions, PartitionGuard, PartitionView};
use super::left_locks::{LeftLocks, give_back_left};
use super::map::{MapMember, MoveWay, PartitionEntry, PartitionMap, PartitionState};
use super::scaling::{HAND_OVER_WAIT_NS, patiently};
use super::{
    ACK_LEFT, ACK_UNDRAINED, Home, MAP_BEFORE_ACK, PartitionWords, PartitionedTable,
    change_partitions, read_partitions,
};
use crate::compute::MoveError;
use crate::compute::messages::alive_check_ns;
use crate::compute::ownership::glance;
use crate::detach::{detach, unfinished_work};
use crate::join::within;
use crate::local::ParkingLot;
use crate::remote_lock::LeftLock;
use crate::retry::{LOCK_WAIT_MAX_NS, backoff};
use crate::sync::{Mutex, lock};
use crate::{CounterSet, IndexError};

/// The key under which operations wait in the parking lot.
const LOT_KEY: u64 = 0;

/// Counts of what a member has done.
#[derive(Debug, Default)]
pub struct PartitionCounts {
    /// Operations that waited for a partition to open.
    pub waited: AtomicU64,
    /// Maps acknowledged.
    pub acknowledged: AtomicU64,
    /// Maps for which the guard was drained.
    pub drained: AtomicU64,
    /// Partitions whose lines were zeroed.
    pub forgotten: AtomicU64,
}

/// A compute server's part in a table with numbered partitions.
#[derive(Debug)]
pub struct PartitionMembership {
    words: PartitionWords,
    guard: PartitionGuard,
    /// Operations that wait for partitions to open.
    lot: ParkingLot,
    pub(super) left: LeftLocks,
    me: Incarnation,
    slot: u32,
    generation: u32,
    /// The last epoch that was acknowledged.
    acked: AtomicU32,
    /// The word that stands there.
    ack: Mutex<AckWord>,
    /// For each partition the term of this compute server's lines of it.
    held: Mutex<Vec<Option<u32>>>,
    /// A partition has lost its home since the last drain.
    must_drain: AtomicBool,
    /// A task is learning a map.
    learning: AtomicBool,
    closed: AtomicBool,
    counts: PartitionCounts,
}

/// Held by the one task that learns a map.
struct Learning<'a>(&'a AtomicBool);

/// A membership on its way to the caller. It ends if the caller has gone: else no partition changed hands while this
/// compute server lives, as nobody acknowledges for it.
struct Arrival {
    session: Session,
    membership: Option<PartitionMembership>,
}

impl Drop for Arrival {
    fn drop(&mut self) {
        let Some(own) = self.membership.take() else { return };
        self.session.spawn(async move |session| {
            let Ok(_pin) = session.begin(OpKind::Maintenance).await else { return };
            let word = *lock(&own.ack);
            // An error means that this compute server is cut off.
            let _ = clear_ack(&session, own.words.acks, own.slot, word).await;
        });
    }
}

impl Drop for Learning<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl PartitionMembership {
    /// Adds the epoch of the known map, its partitions by owner and state, and what this member has done.
    pub fn counters(&self, counters: &mut CounterSet) {
        let view = self.view();
        let map = &view.map;
        counters.add("partition_epoch", u64::from(map.epoch));
        let count = |is_it: &dyn Fn(&PartitionEntry) -> bool| {
            map.entries.iter().filter(|entry| is_it(entry)).count() as u64
        };
        counters.add("partitions_own", count(&|entry| entry.owner == Some(self.me)));
        counters.add("partitions_of_others", count(&|it| it.owner.is_some_and(|of| of != self.me)));
        counters.add("partitions_unowned", count(&|entry| entry.owner.is_none()));
        counters.add("partitions_closed", count(&|entry| entry.state != PartitionState::Open));
        let done = [
            ("partition_waits", &self.counts.waited),
            ("partition_drains", &self.counts.drained),
            ("partitions_forgotten", &self.counts.forgotten),
        ];
        for (name, counter) in done {
            counters.add(name, counter.load(Ordering::Relaxed));
        }
        counters.add("locks_left", self.left.len() as u64);
    }

    /// Takes part in the table. A member that exposes memory has published its region before. It ends with
    /// [`leave`] or with its life; until then no partition changes hands without its acknowledgement, so it ticks. If the
    /// caller goes away meanwhile, it does not take part.
    ///
    /// Cost: 6 remote operations: 1 READ, 1 CAS, 3 READs of the map, 1 CAS.
    ///
    /// # Errors
    /// `Unavailable` if this compute server takes part already.
    pub async fn join(words: PartitionWords, session: &Session) -> Result<Self, IndexError> {
        let _pin = session.begin(OpKind::Other).await?;
        let task_session = session.without_deadline();
        let arrived = detach(session, async move {
            let membership = Self::join_now(words, &task_session).await?;
            Ok::<_, IndexError>(Arrival { session: task_session, membership: Some(membership) })
        });
        let membership = arrived.await?.membership.take();
        membership.ok_or_else(|| unfinished_work("taking part in a table"))
    }

    async fn join_now(words: PartitionWords, session: &Session) -> Result<Self, IndexError> {
        let (slot, generation) = (session.pool().member(), session.pool().generation());
        let (at, first) = (ack_addr(words.acks, slot), AckWord::new(generation, 0));
        let reliable = session.reliable();
        let early = match MAP_BEFORE_ACK.is_armed() {
            true => Some(read_partitions(&words, session).await?),
            false => None,
        };
        // That of an earlier life of the slot, which is cut off.
        let mut seen = AckWord(reliable.word(at).await?);
        loop {
            if seen.takes_part() && seen.generation() == generation {
                return Err(IndexError::Unavailable(format!(
                    "this compute server takes part in the table at {} already: use that one",
                    words.map.meta
                )));
            }
            match reliable.cas(at, seen.0, first.0).await? {
                found if found == seen.0 => break,
                found => seen = AckWord(found),
            }
        }
        let map = match early {
            Some(map) => map,
            // INV-PART-ACK-1.
            None => match read_partitions(&words, session).await {
                Ok(map) => map,
                Err(error) => {
                    clear_ack(session, words.acks, slot, first).await?;
                    return Err(error);
                }
            },
        };
        let epoch = map.epoch;
        let member = PartitionMembership {
            words,
            held: Mutex::new(vec![None; map.entries.len()]),
            guard: PartitionGuard::new(map),
            lot: ParkingLot::new(1),
            left: LeftLocks::default(),
            me: session.endpoint().incarnation(),
            slot,
            generation,
            acked: AtomicU32::new(0),
            ack: Mutex::new(first),
            must_drain: AtomicBool::new(false),
            learning: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            counts: PartitionCounts::default(),
        };
        member.acknowledge(session, epoch).await?;
        Ok(member)
    }

    /// The guard.
    pub fn guard(&self) -> &PartitionGuard {
        &self.guard
    }

    /// The latest known map.
    pub fn view(&self) -> Arc<PartitionView> {
        self.guard.view()
    }

    /// Its counts so far.
    pub fn counts(&self) -> &PartitionCounts {
        &self.counts
    }

    /// Takes a lock in `partition` over that its holder could not give back. Ticks see to it.
    pub fn leave_lock(&self, partition: u32, left: LeftLock) {
        self.left.add(partition, left);
    }

    /// The last epoch that it has acknowledged.
    pub(super) fn acked(&self) -> u32 {
        self.acked.load(Ordering::Acquire)
    }

    /// Returns whether the table has been left. An operation asks once it is inside: those that are inside are waited for.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    fn check_open(&self) -> Result<(), IndexError> {
        match self.closed.load(Ordering::Acquire) {
            true => Err(IndexError::Closed("the table has been closed".into())),
            false => Ok(()),
        }
    }

    /// Writes this member's word.
    async fn acknowledge(&self, session: &Session, epoch: u32) -> Result<(), IndexError> {
        let (at, new) =
            (ack_addr(self.words.acks, self.slot), AckWord::new(self.generation, epoch));
        loop {
            let old = *lock(&self.ack);
            let found = AckWord(session.maintenance().cas(at, old.0, new.0).await?);
            if found == old || found == new {
                *lock(&self.ack) = new;
                self.acked.fetch_max(epoch, Ordering::AcqRel);
                self.counts.acknowledged.fetch_add(1, Ordering::Relaxed);
                return Ok(());
            }
            // A task that was dropped has written it; nobody else writes this life's word.
            if !found.takes_part() || found.generation() != self.generation {
                return Err(IndexError::Closed(
                    "this compute server was taken for dead: open the pool anew".into(),
                ));
            }
            *lock(&self.ack) = found;
        }
    }

    /// The term of the lines of each partition that this compute server holds by `map`.
    fn wanted(&self, map: &PartitionMap) -> Vec<Option<u32>> {
        let arriving = map.moving.filter(|moving| moving.to == Some(self.me));
        let of_entry = |entry: &super::PartitionEntry| match entry.owner == Some(self.me) {
            true => Some(entry.term),
            false if entry.state == PartitionState::Moving => arriving.map(|moving| moving.epoch),
            false => None,
        };
        map.entries.iter().map(of_entry).collect()
    }

    /// Goes by `map` from now on, unless a newer one is known.
    fn publish(&self, map: PartitionMap) {
        self.guard.change(|view| {
            if map.epoch <= view.map.epoch {
                return None;
            }
            let next = PartitionView { map };
            if !view.keeps_homes(&next) {
                // Before it is published: it stays until a drain has begun after that, and ended.
                self.must_drain.store(true, Ordering::SeqCst);
            }
            Some(next)
        });
        self.lot.unpark(LOT_KEY);
    }
}

/// READs the map, goes by it, and acknowledges it. Does nothing if another task does. The caller has a pin and is not
/// inside the guard.
///
/// Cost: 3 READs and 1 CAS, and the wait for a drain.
pub(super) async fn learn<T: PartitionedTable>(
    table: &T,
    session: &Session,
) -> Result<(), IndexError> {
    let Some(own) = table.membership() else { return Ok(()) };
    if own.learning.swap(true, Ordering::AcqRel) {
        return Ok(());
    }
    let _learning = Learning(&own.learning);
    own.publish(read_partitions(&own.words, session).await?);
    let view = own.view();
    if own.must_drain.load(Ordering::SeqCst) && !ACK_UNDRAINED.is_armed() {
        own.guard.drain(session).await;
        own.must_drain.store(false, Ordering::SeqCst);
        own.counts.drained.fetch_add(1, Ordering::Relaxed);
    }
    if own.acked() >= view.map.epoch {
        return Ok(());
    }
    // INV-PART-LEFT-1. A later tick goes on.
    if own.left.has_in_closed(&view.map) && !ACK_LEFT.is_armed() {
        return Ok(());
    }
    let wanted = own.wanted(&view.map);
    let lost: Vec<u32> = {
        let held = lock(&own.held);
        let pairs = (0..).zip(held.iter().zip(&wanted));
        pairs
            .filter(|(_, (held, wanted))| held.is_some() && held != wanted)
            .map(|it| it.0)
            .collect()
    };
    if !lost.is_empty() {
        table.forget_lines(session, &lost).await?;
        own.counts.forgotten.fetch_add(lost.len() as u64, Ordering::Relaxed);
    }
    *lock(&own.held) = wanted;
    own.acknowledge(session, view.map.epoch).await
}

/// As [`learn`], if there is a newer map, or the known one was not acknowledged.
///
/// Cost: 2 READs of 8 bytes, 1 round trip.
pub(super) async fn learn_if_newer<T: PartitionedTable>(
    table: &T,
    session: &Session,
) -> Result<(), IndexError> {
    let Some(own) = table.membership() else { return Ok(()) };
    let view = own.view();
    let epoch = u64::from(view.map.epoch);
    let is_known = glance(&own.words.map, session, view.map.place).await? == Some(epoch);
    match is_known && own.acked() >= view.map.epoch {
        true => Ok(()),
        false => learn(table, session).await,
    }
}

/// A member's regular work: learns a new map, and goes on for a conductor that has died. The caller has no pin and
/// is not inside the guard.
///
/// Cost: 2 READs of 8 bytes, 1 round trip. While partitions are closed, 1 READ more and a look whether the
/// conductor lives.
///
/// # Errors
/// `Closed` if the table was left, or this compute server was taken for dead.
pub async fn tick<T: PartitionedTable>(table: &T, session: &Session) -> Result<(), IndexError> {
    let Some(own) = table.membership() else { return Ok(()) };
    own.check_open()?;
    let is_abandoned = {
        let _pin = session.begin(OpKind::Maintenance).await?;
        learn_if_newer(table, session).await?;
        own.view().map.is_closed() && is_abandoned(session, &own.words).await?
    };
    match is_abandoned {
        true => resume(table, session).await,
        false => Ok(()),
    }
}

/// Returns whether no living member is the conductor. 1 READ, and more if one is.
async fn is_abandoned(session: &Session, words: &PartitionWords) -> Result<bool, IndexError> {
    match session.reliable().word(words.conductor).await? {
        0 => Ok(true),
        token => Ok(session.owner_is_dead(token).await?),
    }
}

/// Enters the guard for `partitions`, once all of them are open; gives their homes. The caller has no pin and is
/// not inside. While it waits it ticks.
///
/// # Errors
/// `Closed`; `Unavailable` if a partition stays closed for 10 s: nothing was done.
pub async fn enter<'a, T: PartitionedTable, const N: usize>(
    table: &T,
    own: &'a PartitionMembership,
    session: &Session,
    partitions: [u32; N],
) -> Result<(InsidePartitions<&'a PartitionGuard>, [Home; N]), IndexError> {
    own.check_open()?;
    if let Some(entered) = own.guard.try_enter(session.id(), partitions) {
        return Ok(entered);
    }
    Box::pin(enter_opened(table, own, session, partitions)).await
}

#[cold]
async fn enter_opened<'a, T: PartitionedTable, const N: usize>(
    table: &T,
    own: &'a PartitionMembership,
    session: &Session,
    partitions: [u32; N],
) -> Result<(InsidePartitions<&'a PartitionGuard>, [Home; N]), IndexError> {
    own.counts.waited.fetch_add(1, Ordering::Relaxed);
    let endpoint = session.endpoint();
    let since_ns = endpoint.now_ns();
    loop {
        let view = own.view();
        let is_over = || {
            let is_open = |partition| own.view().home(partition).is_some();
            partitions.into_iter().all(is_open) || own.check_open().is_err()
        };
        let parked = own.lot.park(LOT_KEY, is_over);
        if within(endpoint, std::pin::pin!(parked), alive_check_ns(endpoint)).await.is_none() {
            tick(table, session).await?;
        }
        own.check_open()?;
        if let Some(entered) = own.guard.try_enter(session.id(), partitions) {
            return Ok(entered);
        }
        if endpoint.now_ns() - since_ns >= LOCK_WAIT_MAX_NS {
            return Err(IndexError::Unavailable(format!(
                "partitions of the table at {} have been closed since map {} for more than {} s: is a \
                 compute server stopped?",
                own.words.map.meta,
                view.map.epoch,
                LOCK_WAIT_MAX_NS / 1_000_000_000
            )));
        }
    }
}

/// Offers the part `slice` of this member's memory: from the next [`super::rebalance`] on it owns a share of partitions by
/// its weight. A weight of 0 offers none. The slice stays what it was the first time.
///
/// Cost: a change of the map.
///
/// # Errors
/// `Unavailable` if the map's lock is held for long.
pub async fn offer<T: PartitionedTable>(
    table: &T,
    session: &Session,
    weight: u16,
    slice: u16,
) -> Result<(), IndexError> {
    let Some(own) = table.membership() else { return Ok(()) };
    own.check_open()?;
    let _pin = session.begin(OpKind::Maintenance).await?;
    let member = MapMember { incarnation: own.me, slot: own.slot, weight, slice };
    change_members(table, session, move |members| {
        match members.iter_mut().find(|other| other.incarnation == member.incarnation) {
            Some(own) => own.weight = weight,
            None => members.push(member),
        }
    })
    .await?;
    learn(table, session).await
}

/// Puts what `change` makes of the members into the map. The caller has a pin.
async fn change_members<T: PartitionedTable>(
    table: &T,
    session: &Session,
    change: impl FnOnce(&mut Vec<MapMember>) + 'static,
) -> Result<(), IndexError> {
    let (words, task_session) = (*table.words(), session.without_deadline());
    detach(session, async move {
        let with = |map: &PartitionMap| {
            let mut new = map.clone();
            change(&mut new.members);
            Ok((new != *map).then_some(new))
        };
        change_partitions(&words, &task_session, with).await.map(drop)
    })
    .await
}

/// Leaves the table in order: its partitions go to others, by `way`, or to memory servers if nobody else has weight. The
/// caller has no pin, and no operation of this compute server is inside or comes later. A move that another death or
/// another conductor stops is tried again, for 10 s.
///
/// Cost: that of the moves, and 2 changes of the map.
///
/// # Errors
/// Those of a move: it takes part still, with weight 0, and may try again.
pub async fn leave<T: PartitionedTable>(
    table: &T,
    session: &Session,
    way: MoveWay,
) -> Result<(), MoveError> {
    let Some(own) = table.membership() else { return Ok(()) };
    let me = own.me;
    patiently(session, HAND_OVER_WAIT_NS, async || match depart(table, session, me).await? {
        true => Ok(()),
        false => {
            move_misplaced(table, session, Some(me), way).await?;
            // Somebody may have moved others here meanwhile.
            let is_out = depart(table, session, me).await?;
            is_out.then_some(()).ok_or(MoveError::Busy)
        }
    })
    .await?;
    own.closed.store(true, Ordering::SeqCst);
    own.lot.unpark(LOT_KEY);
    let _pin = session.begin(OpKind::Maintenance).await.map_err(IndexError::from)?;
    let mut attempt = 0;
    while own.learning.swap(true, Ordering::AcqRel) {
        backoff(session, attempt).await;
        attempt = (attempt + 1).min(6);
    }
    // An acknowledgement now would change the word that is cleared below, so that it stayed.
    let _learning = Learning(&own.learning);
    own.guard.drain(session).await;
    finish_left(table, session).await?;
    let word = *lock(&own.ack);
    clear_ack(&session.without_deadline(), own.words.acks, own.slot, word).await?;
    Ok(())
}

/// Waits until no lock is left, for 10 s.
///
/// # Errors
/// `Unavailable`; from then on none is given back by this compute server.
async fn finish_left<T: PartitionedTable>(table: &T, session: &Session) -> Result<(), IndexError> {
    let Some(own) = table.membership() else { return Ok(()) };
    let since_ns = session.endpoint().now_ns();
    let mut attempt = 0;
    while own.left.len() > 0 {
        give_back_left(table, session);
        if session.endpoint().now_ns() - since_ns >= HAND_OVER_WAIT_NS {
            own.left.end();
            return Err(IndexError::Unavailable(format!(
                "{} locks of the table at {} cannot be given back, as the compute servers that have them cannot be \
                 reached: others take them over once this one has gone",
                own.left.len(),
                own.words.map.meta
            )));
        }
        backoff(session, attempt).await;
        attempt = (attempt + 1).min(6);
    }
    Ok(())
}

/// Takes the member `me`, this one, out of the map if it owns nothing; else gives it weight 0, so that nobody moves
/// partitions to it. Returns whether it is out.
async fn depart<T: PartitionedTable>(
    table: &T,
    session: &Session,
    me: Incarnation,
) -> Result<bool, MoveError> {
    let is_named = {
        let pinned = session.begin(OpKind::Maintenance).await;
        let _pin = pinned.map_err(IndexError::from)?;
        read_partitions(table.words(), session).await?.member(me).is_some()
    };
    if !is_named {
        return Ok(true);
    }
    change_as_conductor(table, session, move |map| {
        let mut new = map.clone();
        let owns = map.entries.iter().any(|entry| entry.owner == Some(me));
        if owns {
            new.members.iter_mut().filter(|it| it.incarnation == me).for_each(|it| it.weight = 0);
        } else {
            new.members.retain(|it| it.incarnation != me);
        }
        Ok(((new != *map).then_some(new), !owns))
    })
    .await
}

/// Refuses if a living member other than this one takes part in the table. The caller has a pin.
///
/// Cost: 2 READs; a look by the fabric at each member that takes part.
///
/// # Errors
/// `Unavailable`, with the member's name.
pub async fn check_unused(words: &PartitionWords, session: &Session) -> Result<(), IndexError> {
    let acks = read_acks(session, words.acks).await?;
    let members = session.members().await?;
    for (slot, word) in acks {
        let is_it =
            |it: &&farleaf_pool::Member| it.slot == slot && it.generation == word.generation();
        let Some(member) = members.iter().find(is_it) else { continue };
        let (who, endpoint) = (member.incarnation, session.endpoint());
        if who != endpoint.incarnation() && !endpoint.is_dead(who).await {
            return Err(IndexError::Unavailable(format!(
                "compute server {who} has the table at {} open: close it there first",
                words.map.meta
            )));
        }
    }
    Ok(())
}
