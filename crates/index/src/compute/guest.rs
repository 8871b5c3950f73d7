//! Guests: work on keys that nobody owns, without becoming their owner.
//!
//! A process that does a few operations had better not own a range: it would prepare to own it, change the map
//! three times, and keep everybody else waiting if it is killed. As a guest it works on remote memory by the
//! protocol that is safe for any number of compute servers ([`ServesGuests`]). Keys that have an owner are asked
//! for as always. A guest that has done its number of operations takes the keys, and is an owner from then on.
//!
//! - `INV-COMPUTE-GUEST-1` A guest changes a key only while it holds the lock of the ownership map and the map
//!   names no owner of the key. A taker of the key changes the map under the same lock, so that it has cached
//!   nothing of what a guest changes. A guest's task releases the lock only when nothing of its change is under way.
//! - `INV-COMPUTE-GUEST-2` A guest's read counts if the map has the same epoch before and after, and names no owner
//!   of what was read: no owner has begun to change it in between.

use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};

use farleaf_fabric::{Endpoint, OpKind};
use farleaf_pool::Session;

use super::RangeOwner;
use super::messages::Patience;
use super::ownership::{
    Partitions, forward_change, forward_get, give_away, lock_map, read_map, refresh_map, scan_all,
    take_free,
};
use crate::blink::lock::Lock;
use crate::blink::remote::Passage;
use crate::bnode::Seek;
use crate::change::{Change, Outcome};
use crate::detach::run_to_end;
use crate::index::ScanRange;
use crate::op::Op;
use crate::retry::backoff;
use crate::{Entries, IndexError};

/// Pairs that a guest reads between two looks at the map.
const PAIRS_MAX: usize = 1024;
/// Refusals that an operation takes while the map says that an owner lives.
const REFUSALS_MAX: u32 = 3;

/// The right to work on keys that nobody owns.
#[derive(Debug)]
pub struct Guest {
    /// Operations that a guest does before it takes keys.
    operations: u64,
    /// Those that are left.
    left: AtomicU64,
}

/// A table in which guests work: operations on keys that nobody owns, safe beside those of any other guest.
#[allow(async_fn_in_trait, reason = "a session and all its tasks stay on one thread")]
pub trait ServesGuests: RangeOwner {
    /// As [`crate::Index::get`]. The caller has a pin.
    async fn get_unowned(
        &self,
        session: &Session,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<bool, IndexError>;

    /// As [`crate::Index::change`]. The caller has a pin and the lock of the ownership map, and waits without a
    /// deadline: an error is final then, and nothing is under way.
    async fn change_unowned(
        &self,
        session: &Session,
        change: &Change<'_>,
        held: &mut Vec<u8>,
    ) -> Result<Outcome, IndexError>;

    /// Clears what is left of removed keys, as far as nobody owns them by `map`: if it is due, or `is_last`. The
    /// caller is that of [`ServesGuests::change_unowned`].
    async fn clear_unowned(
        &self,
        _session: &Session,
        _map: &Partitions,
        _is_last: bool,
    ) -> Result<(), IndexError> {
        Ok(())
    }

    /// As [`crate::Index::scan`]. The caller has a pin.
    async fn scan_unowned(
        &self,
        session: &Session,
        range: ScanRange<'_>,
        limit: usize,
        out: &mut Entries,
    ) -> Result<(), IndexError>;
}

impl Guest {
    /// A guest for so many operations on keys that nobody owns.
    pub fn new(operations: u64) -> Guest {
        Guest { operations, left: AtomicU64::new(operations) }
    }

    /// Counts an operation on keys that nobody owns; false if there were as many before as a guest does.
    fn admits(&self) -> bool {
        let less = |left: u64| left.checked_sub(1);
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }
}

impl Guest {
    /// Gets a key that is not own.
    ///
    /// Cost: 3 READs for each look at the map, 2 of them, and the engine's get, if nobody owns the key.
    ///
    /// # Errors
    /// As [`route`](crate::compute::ownership::forward_get).
    pub async fn get<T: ServesGuests>(
        &self,
        table: &T,
        session: &Session,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<bool, IndexError> {
        let mut patience = Patience::new(session.endpoint());
        loop {
            if self.may_work(table, session, Seek::At(key)).await? {
                let of_key = |map: &Partitions| [map.of(key, false); 2];
                let read = read_unowned(table, session, of_key, async || {
                    let _pin = session.begin(OpKind::Get).await?;
                    table.get_unowned(session, key, value).await
                });
                if let Some(has) = read.await? {
                    return Ok(has);
                }
            }
            match forward_get(table, session, key, value).await {
                Err(IndexError::Unavailable(why)) => {
                    after_refusal(table, session, Seek::At(key), why, &mut patience).await?;
                }
                done => return done,
            }
        }
    }

    /// Changes a key that is not own.
    ///
    /// Cost: if nobody owns the key, that of the engine, 1 CAS, 3 READs and 1 WRITE.
    ///
    /// # Errors
    /// As [`route`](crate::compute::ownership::forward_get).
    pub async fn change<T: ServesGuests>(
        &self,
        table: &T,
        session: &Session,
        change: &Change<'_>,
        held: &mut Vec<u8>,
    ) -> Result<Outcome, IndexError> {
        table.check_change(change)?;
        let seek = Seek::At(change.key);
        let mut patience = Patience::new(session.endpoint());
        loop {
            if self.may_work(table, session, seek).await?
                && let Some(outcome) = change_unowned(table, session, change, held).await?
            {
                return Ok(outcome);
            }
            match forward_change(table, session, change, held).await {
                Err(IndexError::Unavailable(why)) => {
                    after_refusal(table, session, seek, why, &mut patience).await?;
                }
                done => return done,
            }
        }
    }

    /// Scans keys of which some are not own, partition by partition.
    ///
    /// Cost: of a partition that nobody owns, that of the engine, and 6 READs for each 1024 pairs.
    ///
    /// # Errors
    /// As [`route`](crate::compute::ownership::forward_get).
    pub async fn scan<T: ServesGuests>(
        &self,
        table: &T,
        session: &Session,
        range: ScanRange<'_>,
        limit: usize,
        out: &mut Entries,
    ) -> Result<(), IndexError> {
        let end = out.len().saturating_add(limit);
        let owned = |bound: Bound<&[u8]>| bound.map(<[u8]>::to_vec);
        let (mut from, mut to) = (owned(range.from), owned(range.to));
        let reverse = range.reverse;
        let mut patience = Patience::new(session.endpoint());
        loop {
            let rest = ScanRange::between(&from, &to, reverse);
            let begun = out.len();
            let Some(mut passage) = Passage::begin(rest, end - begun, out) else { return Ok(()) };
            let seek = passage.seek();
            let view = table.ownership().view();
            let number = view.map.at(seek);
            let (low, high) = view.map.range(number);
            let (part_from, part_to, wanted) = passage.rest_in(low, high, out);
            let part = ScanRange::between(&part_from, &part_to, reverse);
            let (mut is_whole, mut refusal) = (false, None);
            if self.may_work(table, session, seek).await? {
                let wanted = wanted.min(PAIRS_MAX);
                let of_part = |map: &Partitions| {
                    let first = low.map_or(0, |low| map.of(low, true));
                    [first, high.map_or(map.count() - 1, |high| map.of(high, false))]
                };
                let read = read_unowned(table, session, of_part, async || {
                    let mut pairs = Entries::new();
                    let _pin = session.begin(OpKind::Scan).await?;
                    table.scan_unowned(session, part, wanted, &mut pairs).await?;
                    Ok(pairs)
                });
                if let Some(pairs) = read.await? {
                    pairs.iter().for_each(|(key, value)| out.push(key, value));
                    is_whole = pairs.len() < wanted;
                }
            } else {
                match scan_all(table, session, part, wanted, out).await {
                    Ok(()) => is_whole = true,
                    Err(IndexError::Unavailable(why)) => refusal = Some(why),
                    Err(error) => return Err(error),
                }
            }
            if let Some(why) = refusal {
                after_refusal(table, session, seek, why, &mut patience).await?;
            }
            let behind = match (is_whole, reverse) {
                (true, false) if passage.skip_to(high, out) => high.map(|at| (at, true)),
                (true, true) if passage.skip_to(low, out) => low.map(|at| (at, false)),
                (true, _) => return Ok(()),
                (false, _) if out.len() > begun => out.last().map(|(key, _)| (key, true)),
                (false, _) => None,
            };
            if let Some((key, is_seen)) = behind {
                let key = key.to_vec();
                let bound = if is_seen { Bound::Excluded(key) } else { Bound::Included(key) };
                *(if reverse { &mut to } else { &mut from }) = bound;
            }
        }
    }

    /// Clears what is left of removed keys that nobody owns, before the table is closed.
    ///
    /// Cost: 1 CAS, 3 READs and 1 WRITE, and the engine's.
    pub async fn clear<T: ServesGuests>(
        &self,
        table: &T,
        session: &Session,
    ) -> Result<(), IndexError> {
        let _pin = session.begin(OpKind::Other).await?;
        let lock = lock_map(table.ownership().words(), session).await?;
        let map = read_map(table.ownership().words(), session).await?;
        let patient = session.without_deadline();
        let (table, lock) = (table.clone(), lock.with_session(&patient));
        let task = async move {
            table.clear_unowned(&patient, &map, true).await?;
            lock.release().await
        };
        run_to_end(session, Box::pin(task), ()).await.unwrap_or_else(|| {
            let why = "a memory server cannot be reached: close the table again";
            Err(IndexError::Unavailable(why.into()))
        })
    }

    /// Tells whether nobody owns the keys at `seek`, as far as is known, and this guest may work on them. Takes
    /// them if it has done its operations. If the pool has no room for what an owner needs, such as a log, it stays
    /// a guest for as many operations again: so a full pool can be read, and what is in it removed.
    async fn may_work<T: RangeOwner>(
        &self,
        table: &T,
        session: &Session,
        seek: Seek<'_>,
    ) -> Result<bool, IndexError> {
        let Err(number) = table.ownership().acquire(session, seek).await? else { return Ok(false) };
        if table.ownership().owner_of(number).owner.is_some() {
            return Ok(false);
        }
        if self.admits() {
            return Ok(true);
        }
        let _pin = session.begin(OpKind::Maintenance).await?;
        // Before the map names this compute server as the owner.
        let map = read_map(table.ownership().words(), session).await?;
        match table.prepare_to_own(session, map).await {
            Ok(_) => {}
            Err(IndexError::Full(_)) => {
                self.left.store(self.operations, Ordering::Relaxed);
                return Ok(true);
            }
            Err(error) => return Err(error),
        }
        take_free(table, session, seek).await?;
        Ok(false)
    }
}

/// Changes a key if nobody owns it (`INV-COMPUTE-GUEST-1`); `None` if somebody does.
async fn change_unowned<T: ServesGuests>(
    table: &T,
    session: &Session,
    change: &Change<'_>,
    held: &mut Vec<u8>,
) -> Result<Option<Outcome>, IndexError> {
    let done = {
        let _pin = session.begin(change.kind).await?;
        let lock = lock_map(table.ownership().words(), session).await?;
        let map = read_map(table.ownership().words(), session).await?;
        if map.owners[map.of(change.key, false)] == 0 {
            let patient = session.without_deadline();
            let lock = lock.with_session(&patient);
            let (table, op) = (table.clone(), Op::of(change));
            let task = async move { change_locked(&table, &patient, (lock, map), &op).await };
            Some(run_to_end(session, Box::pin(task), ()).await)
        } else {
            lock.release().await?;
            None
        }
    };
    let Some(done) = done else {
        refresh_map(table, session).await?;
        return Ok(None);
    };
    let (outcome, found) = done.unwrap_or_else(|| {
        Err(IndexError::OutcomeUnknown("a memory server cannot be reached".into()))
    })?;
    *held = found;
    Ok(Some(outcome))
}

/// Reads by `read` what lies in the partitions from the first to the last that `of` finds in a map, if
/// nobody owns any of them (`INV-COMPUTE-GUEST-2`); `None` if somebody does.
async fn read_unowned<T: RangeOwner, R>(
    table: &T,
    session: &Session,
    of: impl Fn(&Partitions) -> [usize; 2],
    mut read: impl AsyncFnMut() -> Result<R, IndexError>,
) -> Result<Option<R>, IndexError> {
    let mut patience = Patience::new(session.endpoint());
    let mut before = map_now(table, session).await?;
    loop {
        let [first, last] = of(&before);
        if before.owners[first..=last].iter().any(|owner| *owner != 0) {
            refresh_map(table, session).await?;
            return Ok(None);
        }
        let found = read().await?;
        let after = map_now(table, session).await?;
        if after.epoch == before.epoch {
            return Ok(Some(found));
        }
        before = after;
        patience.tries += 1;
        if patience.is_over(session.endpoint().now_ns()) {
            let why = "the ownership map changes all the time: try again";
            return Err(IndexError::Unavailable(why.into()));
        }
    }
}

async fn map_now<T: RangeOwner>(table: &T, session: &Session) -> Result<Partitions, IndexError> {
    let _pin = session.begin(OpKind::Other).await?;
    read_map(table.ownership().words(), session).await
}

/// Learns who owns the keys at `seek`, whose owner did not do an operation: if nobody does now, it is tried
/// again. What a dead owner had is nobody's from then on.
///
/// # Errors
/// `Unavailable` with `why` if the owner lives, or it has been tried for long.
async fn after_refusal<T: RangeOwner>(
    table: &T,
    session: &Session,
    seek: Seek<'_>,
    why: String,
    patience: &mut Patience,
) -> Result<(), IndexError> {
    patience.tries += 1;
    if patience.is_over(session.endpoint().now_ns()) {
        return Err(IndexError::Unavailable(why));
    }
    let before = table.ownership().view().map.epoch;
    let has_changed = refresh_map(table, session).await? != before;
    let Err(number) = table.ownership().acquire(session, seek).await? else { return Ok(()) };
    let Some(owner) = table.ownership().owner_of(number).owner else { return Ok(()) };
    if !session.endpoint().is_dead(owner).await {
        // It may have taken the keys just now, and another operation of this process have learnt that.
        if has_changed || patience.tries <= REFUSALS_MAX {
            return Ok(());
        }
        return Err(IndexError::Unavailable(why));
    }
    let given = {
        let _pin = session.begin(OpKind::Maintenance).await?;
        give_away(table, session, owner, 0).await
    };
    match given {
        Ok(_) => refresh_map(table, session).await.map(drop),
        // Somebody else is at it.
        Err(IndexError::Unavailable(_)) => {
            backoff(session, patience.tries).await;
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// Changes a key that nobody owns, then releases the map's lock. For a task that runs to its end.
async fn change_locked<T: ServesGuests>(
    table: &T,
    session: &Session,
    (lock, map): (Lock, Partitions),
    op: &Op,
) -> Result<(Outcome, Vec<u8>), IndexError> {
    let Some(change) = op.change() else { return Err(IndexError::Invalid("no change".into())) };
    let mut held = Vec::new();
    let outcome = table.change_unowned(session, &change, &mut held).await?;
    let unknown = |error: IndexError| IndexError::OutcomeUnknown(error.to_string());
    // If this fails, what is left stays in the table, and does no harm.
    let _ = table.clear_unowned(session, &map, false).await;
    lock.release().await.map_err(unknown)?;
    Ok((outcome, held))
}
