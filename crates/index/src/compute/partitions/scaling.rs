//! Scaling: shows which member has which share of a table's partitions, gives a member its share, and takes it away.
//!
//! A member's share follows from its weight: the ring places partitions by the weights in the map. A member takes its
//! share when it opens the table. A drained member has weight 0 and still takes part.

use farleaf_fabric::{Endpoint, Incarnation, OpKind};
use farleaf_pool::Session;

use super::conductor::{change_as_conductor, fail_over, move_misplaced};
use super::map::{MapMember, MoveWay, PartitionMap, PartitionState};
use super::{PartitionedTable, read_partitions};
use crate::IndexError;
use crate::compute::MoveError;
use crate::retry::{LOCK_WAIT_MAX_NS, backoff};

/// Time for which a member that leaves, a drain and an addition try again: a death takes up to two leases to be found.
pub(super) const HAND_OVER_WAIT_NS: u64 = LOCK_WAIT_MAX_NS;
/// The same of a member that opens the table: what it does not get then, it gets later.
const SETTLE_WAIT_NS: u64 = 2_000_000_000;
/// Weight of a member that gets a share again after a drain.
const WEIGHT_AGAIN: u16 = 1;

/// Partitions that one compute server has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionShare {
    /// The compute server; `None` for memory servers.
    pub owner: Option<Incarnation>,
    /// Its weight on the ring: 0 for one that is drained or leaves, and for memory servers.
    pub weight: u16,
    /// Partitions whose lines are in its memory.
    pub partitions: usize,
    /// Those among them that are closed after a death.
    pub closed: usize,
    /// Those among them that are on their way to another.
    pub moving: usize,
}

impl PartitionMap {
    /// The share of each member, in the order in which they joined, and that of memory servers if they have some.
    pub fn shares(&self) -> Vec<PartitionShare> {
        let share = |owner, weight| {
            let mut share = PartitionShare { owner, weight, partitions: 0, closed: 0, moving: 0 };
            for entry in self.entries.iter().filter(|entry| entry.owner == owner) {
                share.partitions += 1;
                share.closed += usize::from(entry.state == PartitionState::Closed);
                share.moving += usize::from(entry.state == PartitionState::Moving);
            }
            share
        };
        let members = self.members.iter().map(|it| share(Some(it.incarnation), it.weight));
        let unowned = Some(share(None, 0)).filter(|unowned| unowned.partitions > 0);
        members.chain(unowned).collect()
    }

    fn owned_by(&self, who: Incarnation) -> usize {
        self.entries.iter().filter(|entry| entry.owner == Some(who)).count()
    }

    /// The map with another weight for a member.
    fn with_weight(&self, who: Incarnation, weight: u16) -> PartitionMap {
        let mut new = self.clone();
        new.members.iter_mut().filter(|it| it.incarnation == who).for_each(|it| it.weight = weight);
        new
    }
}

/// Gives the member `who` its share of partitions, by `way`; returns how many more it has then. A member takes its share
/// when it opens the table, so this gives something only after a drain, or where that was called off. The caller has no
/// pin and is not inside the guard.
///
/// Cost: 2 CAS and 3 READs if it has its share; else a change of the map, and the moves.
///
/// # Errors
/// `UnknownServer` if it has not offered memory for this table; those of a move, after it was tried again for 10 s.
pub async fn add_share<T: PartitionedTable>(
    table: &T,
    session: &Session,
    who: Incarnation,
    way: MoveWay,
) -> Result<usize, MoveError> {
    patiently(session, HAND_OVER_WAIT_NS, async || {
        let before = change_as_conductor(table, session, move |map| {
            let weight = map.member(who).ok_or(MoveError::UnknownServer(who))?.weight;
            let new = (weight == 0).then(|| map.with_weight(who, WEIGHT_AGAIN));
            Ok((new, map.owned_by(who)))
        })
        .await?;
        move_misplaced(table, session, None, way).await?;
        let after = change_as_conductor(table, session, move |map| Ok((None, map.owned_by(who))));
        Ok(after.await?.saturating_sub(before))
    })
    .await
}

/// Drains the member `who`: gives it weight 0 and moves its partitions to others, by `way`; returns how many it had. It takes
/// part in the table afterwards, without lines in its memory. The caller has no pin and is not inside the guard.
///
/// Cost: a look by the fabric at each member, a change of the map, and the moves.
///
/// # Errors
/// `NobodyElse` if no other living member has weight: nothing was changed. Those of a move, after it was tried again for
/// 10 s: the rest of its partitions moves when somebody drains it again, or it leaves.
pub async fn drain<T: PartitionedTable>(
    table: &T,
    session: &Session,
    who: Incarnation,
    way: MoveWay,
) -> Result<usize, MoveError> {
    let owned = patiently(session, HAND_OVER_WAIT_NS, async || {
        fail_over_dead(table, session).await?;
        change_as_conductor(table, session, move |map| {
            let owned = map.owned_by(who);
            let Some(member) = map.member(who) else { return Ok((None, 0)) };
            let is_heir = |it: &&MapMember| it.incarnation != who && it.weight > 0;
            match map.members.iter().find(is_heir) {
                Some(_) => Ok(((member.weight > 0).then(|| map.with_weight(who, 0)), owned)),
                None if owned == 0 && member.weight == 0 => Ok((None, 0)),
                None => Err(MoveError::NobodyElse),
            }
        })
        .await
    })
    .await?;
    patiently(session, HAND_OVER_WAIT_NS, async || {
        move_misplaced(table, session, Some(who), way).await
    })
    .await?;
    Ok(owned)
}

/// Gives the partitions of dead members to others, so that none of them counts as one who could take some.
async fn fail_over_dead<T: PartitionedTable>(
    table: &T,
    session: &Session,
) -> Result<(), MoveError> {
    let map = {
        let pinned = session.begin(OpKind::Maintenance).await;
        let _pin = pinned.map_err(IndexError::from)?;
        read_partitions(table.words(), session).await?
    };
    let endpoint = session.endpoint();
    for member in map.members {
        let who = member.incarnation;
        if who != endpoint.incarnation() && endpoint.is_dead(who).await {
            fail_over(table, session, who).await?;
        }
    }
    Ok(())
}

/// Moves partitions to where the ring has them, by `way`, if this member lacks some of its share, or has some of another's,
/// by the map that is known here; returns whether it did. Moves that were called off when it opened the table come about so.
/// The caller has no pin and is not inside the guard.
///
/// Cost: none if all are in their places, else that of the moves.
///
/// # Errors
/// Those of a move, after it was tried again for 2 s.
pub async fn settle_in<T: PartitionedTable>(
    table: &T,
    session: &Session,
    way: MoveWay,
) -> Result<bool, MoveError> {
    let Some(own) = table.membership() else { return Ok(false) };
    let me = Some(session.endpoint().incarnation());
    let map = own.view().map.clone();
    let concerns_me = |(to, numbers): &(Option<Incarnation>, Vec<u32>)| {
        *to == me || numbers.iter().any(|number| map.entries[*number as usize].owner == me)
    };
    if !map.misplaced().iter().any(concerns_me) {
        return Ok(false);
    }
    patiently(session, SETTLE_WAIT_NS, async || move_misplaced(table, session, None, way).await)
        .await?;
    Ok(true)
}

/// Attempts something that other members may stop, in rounds, for `wait_ns`; gives the last error then.
pub(super) async fn patiently<R>(
    session: &Session,
    wait_ns: u64,
    attempt: impl AsyncFn() -> Result<R, MoveError>,
) -> Result<R, MoveError> {
    let until_ns = session.endpoint().now_ns() + wait_ns;
    let mut number = 0;
    loop {
        let error = match attempt().await {
            Ok(done) => return Ok(done),
            Err(error) => error,
        };
        let may_pass = matches!(
            error,
            MoveError::Busy | MoveError::CalledOff | MoveError::Index(IndexError::Unavailable(_))
        );
        if !may_pass || session.endpoint().now_ns() >= until_ns {
            return Err(error);
        }
        backoff(session, number).await;
        number = (number + 1).min(8);
    }
}
