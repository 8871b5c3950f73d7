//! Range calls: find owners, move boundaries, and give compute servers a part or take it, for operator or balancing.

use farleaf_fabric::{Endpoint, Incarnation};
use farleaf_pool::Session;

use super::balance::{own_load, quantile};
use super::source::give;
use super::{Balance, BalanceOptions, Balancer, MoveError, PartLoad, RangeMove};
use crate::compute::messages::{OpReply, Request};
use crate::compute::ownership::{Owner, Partitions, Range, ask};
use crate::compute::{Owned, OwnedTable, RangeOwner};
use crate::{IndexError, Seek};

/// The calls on ranges of keys that need nothing of a table but its map and its messages.
#[allow(async_fn_in_trait, reason = "a session and all its tasks stay on one thread")]
pub trait RangeCalls: OwnedTable {
    /// The owner of `key`, if it is not this compute server's.
    ///
    /// Cost: none for an own key, else that of reading the map, 2 READs.
    ///
    /// # Errors
    /// `Unavailable`, `Closed`.
    async fn wrong_owner(
        &self,
        session: &Session,
        key: &[u8],
    ) -> Result<Option<Owner>, IndexError> {
        let seek = Seek::At(key);
        let ownership = self.part();
        if ownership.acquire(session, seek).await?.is_ok() {
            return Ok(None);
        }
        self.refresh_map(session).await?;
        // Waits while it is closed.
        drop(ownership.acquire(session, seek).await?);
        Ok(ownership.other_owner(seek))
    }

    /// Gives the keys above `low` up to and including `high`, which one compute server must own, to
    /// `to`, while all of them are in use. `None` is the end of the key space. The map's epoch after
    /// it.
    ///
    /// Operations on these keys wait for the short time in which what has just become dirty is written;
    /// all others go on. Whatever becomes of the caller, the owner does it.
    ///
    /// Cost: at the owner 1 WRITE for each dirty node of the range, a split for each end (of a B+-tree), two
    /// changes of the map.
    ///
    /// # Errors
    /// See [`MoveError`]. `OutcomeUnknown` if the owner died in the middle; what the map says then is so.
    async fn move_range(
        &self,
        session: &Session,
        low: Option<&[u8]>,
        high: Option<&[u8]>,
        to: Incarnation,
    ) -> Result<u64, MoveError> {
        let range = Range { low: low.map(<[u8]>::to_vec), high: high.map(<[u8]>::to_vec) };
        if range.is_empty() {
            return Err(MoveError::OutOfOrder);
        }
        if !range.low.iter().chain(&range.high).all(|key| self.takes(key)) {
            return Err(MoveError::NoKey);
        }
        let map = newest(self, session).await?;
        let Some(number) = map.around(&range) else { return Err(MoveError::NotOwned) };
        let owner = Incarnation(map.owners[number]);
        if owner.0 == 0 {
            return Err(MoveError::NotOwned);
        }
        let Range { low, high } = range;
        moved(self, session, owner, Request::Give { low, high, to }).await
    }

    /// Moves boundary `number`, that between the partitions of this number and the next, to `bound`, which
    /// lies in one of the two: its owner gives what is between to the other.
    ///
    /// # Errors
    /// As [`RangeCalls::move_range`]; `NoBoundary`, and `OutOfOrder` if the bound is in neither.
    async fn move_boundary(
        &self,
        session: &Session,
        number: usize,
        bound: &[u8],
    ) -> Result<u64, MoveError> {
        let map = newest(self, session).await?;
        let Some(old) = map.bounds.get(number) else { return Err(MoveError::NoBoundary(number)) };
        let (below, above) = (map.owned_range(number), map.owned_range(number + 1));
        let to = |number: usize| Incarnation(map.owners[number]);
        if bound == old.as_slice() {
            return Ok(map.epoch);
        }
        if below.holds(bound, false) {
            self.move_range(session, Some(bound), Some(old), to(number + 1)).await
        } else if above.holds(bound, false) {
            self.move_range(session, Some(old), Some(bound), to(number)).await
        } else {
            Err(MoveError::OutOfOrder)
        }
    }

    /// Lets a compute server that has joined have a part: about half of what the one with the most to do
    /// has, or, where nothing has been counted, with the most keys.
    ///
    /// # Errors
    /// As [`RangeCalls::move_range`].
    async fn scale_out(&self, session: &Session, to: Incarnation) -> Result<u64, MoveError> {
        let loads = self.loads(session, false).await?;
        let mut sums: Vec<(u64, Incarnation)> = Vec::new();
        for load in loads.iter().filter(|load| load.owner != to) {
            match sums.iter_mut().find(|(_, owner)| *owner == load.owner) {
                Some((ops, _)) => *ops += load.ops,
                None => sums.push((load.ops, load.owner)),
            }
        }
        // The first of those with the most.
        sums.reverse();
        let Some((_, busiest)) = sums.into_iter().max_by_key(|(ops, _)| *ops) else {
            return Err(MoveError::NobodyElse);
        };
        moved(self, session, busiest, Request::Share { to }).await
    }

    /// Lets a compute server give up all that it has, to the owners of what is beside it; how many
    /// ranges it gave. It can be closed then, or go on as one that owns nothing.
    ///
    /// # Errors
    /// As [`RangeCalls::move_range`]; `NobodyElse` if all keys are its. What was given until then is given.
    async fn scale_in(&self, session: &Session, who: Incarnation) -> Result<usize, MoveError> {
        let mut given = 0;
        loop {
            let map = newest(self, session).await?;
            let Some(number) = map.owners.iter().position(|owner| *owner == who.0) else {
                return Ok(given);
            };
            // The last of a row, or the first of one that goes to the end.
            let row = (number..map.count()).take_while(|at| map.owners[*at] == who.0);
            let last = row.last().unwrap_or(number);
            let is_other = |owner: &u64| *owner != 0;
            let before = number.checked_sub(1).map(|at| map.owners[at]).filter(is_other);
            let after = map.owners.get(last + 1).copied().filter(is_other);
            let (which, to) = match (before, after) {
                (Some(before), _) => (number, before),
                (None, Some(after)) => (last, after),
                (None, None) => return Err(MoveError::NobodyElse),
            };
            let Range { low, high } = map.owned_range(which);
            let give = Request::Give { low, high, to: Incarnation(to) };
            moved(self, session, who, give).await?;
            given += 1;
        }
    }

    /// The load of each partition that a compute server serves, in the order of their keys. With `decay` half
    /// of it is forgotten then.
    ///
    /// # Errors
    /// Those of reading the map. An owner that does not answer has nothing counted.
    async fn loads(&self, session: &Session, decay: bool) -> Result<Vec<PartLoad>, MoveError> {
        let map = newest(self, session).await?;
        let mut owners: Vec<u64> = map.owners.iter().copied().filter(|owner| *owner != 0).collect();
        owners.sort_unstable();
        owners.dedup();
        let mut loads: Vec<PartLoad> = Vec::new();
        for owner in owners.into_iter().map(Incarnation) {
            if let Ok(Some(OpReply::Load(some))) =
                ask(self, session, owner, Request::Load { decay }).await
            {
                loads.extend(some.into_iter().map(|load| PartLoad { owner, ..load }));
            }
        }
        loads.sort_by(|a, b| a.low.cmp(&b.low));
        Ok(loads)
    }

    /// One round of balancing: gathers the loads and moves a boundary if that is worth while; the map's
    /// epoch after it, if something was moved.
    ///
    /// # Errors
    /// As [`RangeCalls::move_range`].
    async fn balance(
        &self,
        session: &Session,
        balancer: &mut Balancer,
    ) -> Result<Option<u64>, MoveError> {
        let loads = self.loads(session, true).await?;
        let Some(RangeMove { low, high, to, .. }) = balancer.decide(&loads) else {
            return Ok(None);
        };
        self.move_range(session, low.as_deref(), high.as_deref(), to).await.map(Some)
    }

    /// Balances until the table is closed here, if `options` say so. Every compute server may run it;
    /// the one that owns the lowest keys acts.
    ///
    /// # Errors
    /// `Closed`. A move that fails is left to the next round.
    async fn balance_repeatedly(
        &self,
        session: &Session,
        options: BalanceOptions,
    ) -> Result<(), IndexError> {
        if options.mode == Balance::Off {
            return Ok(());
        }
        let mut balancer = Balancer::new(options);
        loop {
            session.endpoint().sleep(options.round_ns).await;
            self.part().check_open()?;
            if self.part().view().owned[0] {
                let _ = self.balance(session, &mut balancer).await;
            }
            session.tick().await?;
        }
    }
}

impl<T: OwnedTable + ?Sized> RangeCalls for T {}

/// Gives about half of what this compute server has to `to`.
pub(crate) async fn share<T: RangeOwner>(
    table: &Owned<T>,
    session: &Session,
    to: Incarnation,
) -> Result<u64, MoveError> {
    let loads = own_load(table.ownership(), false);
    let Some(most) = loads.iter().rev().max_by_key(|load| load.ops) else {
        return Err(MoveError::NotOwned);
    };
    let whole = Range { low: most.low.clone(), high: most.high.clone() };
    // Of two, one is half.
    if loads.len() > 1 {
        return Box::pin(give(table, session, whole, to)).await;
    }
    let middle = match quantile(&most.keys, 0.5) {
        Some(middle) if most.keys.len() >= 16 && most.high.as_ref() != Some(&middle) => {
            Some(middle)
        }
        _ => table.tree().middle(session, &whole).await?,
    };
    let Some(middle) = middle else {
        return Box::pin(give(table, session, whole, to)).await;
    };
    let upper = Range { low: Some(middle), high: most.high.clone() };
    Box::pin(give(table, session, upper, to)).await
}

async fn newest<T: OwnedTable + ?Sized>(
    table: &T,
    session: &Session,
) -> Result<Partitions, MoveError> {
    table.refresh_map(session).await?;
    Ok(table.part().view().map.clone())
}

async fn moved<T: OwnedTable + ?Sized>(
    table: &T,
    session: &Session,
    giver: Incarnation,
    request: Request,
) -> Result<u64, MoveError> {
    if giver != session.endpoint().incarnation() && session.endpoint().is_dead(giver).await {
        return Err(MoveError::DeadTarget(giver));
    }
    match ask(table, session, giver, request).await? {
        Some(OpReply::Moved(Ok(epoch))) => {
            table.refresh_map(session).await?;
            Ok(epoch)
        }
        Some(OpReply::Moved(Err(error))) => Err(error),
        _ => Err(MoveError::UnknownServer(giver)),
    }
}
