//! Guests: work on keys that nobody owns, without becoming their owner.
//!
//! A process that does a few operations had better not own a range: it would prepare to own it, change the map
//! three times, and keep everybody else waiting if it is killed. As a guest it works on remote memory by the
//! protocol that is safe for any number of compute servers ([`RangeOwner::get_unowned`] and its like). Routing sends
//! operations on keys that have an owner there as always, and gives the others to the guest. A guest that has done
//! its number of operations takes the keys, and is an owner from then on.
//!
//! - `INV-COMPUTE-GUEST-1` A guest changes a key only while it holds the lock of the ownership map and the map
//!   names no owner of the key. A taker of the key changes the map under the same lock, so that it has cached
//!   nothing of what a guest changes. A guest's task releases the lock only when nothing of its change is under way.
//! - `INV-COMPUTE-GUEST-2` A guest's read counts if the map has the same epoch before and after, and names no owner
//!   of what was read: no owner has begun to change it in between.

use std::sync::atomic::{AtomicU64, Ordering};

use farleaf_fabric::{Endpoint, OpKind};
use farleaf_pool::Session;

use super::RangeOwner;
use super::messages::{OpReply, Patience};
use super::ownership::{
    Partitions, lock_map, read_map, refresh_map, reply_of, scan_begin, seek_of, take_free,
};
use crate::change::Outcome;
use crate::detach::{run_to_end, unfinished_change, unfinished_work};
use crate::op::Op;
use crate::remote_lock::Lock;
use crate::{Entries, IndexError, ScanRange};

/// Pairs that a guest reads between two looks at the map.
pub(crate) const PAIRS_MAX: usize = 1024;

/// The right to work on keys that nobody owns.
#[derive(Debug)]
pub struct Guest {
    /// Operations that a guest does before it takes keys.
    operations: u64,
    /// Those that are left.
    left: AtomicU64,
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

    /// Does an operation on keys that nobody owns, as far as is known. `None` if they have an owner, which the view
    /// names: another compute server, or this one, which takes them once it has done its operations as a guest.
    ///
    /// Cost: that of the engine, and for a change 1 CAS, 3 READs and 1 WRITE, else 3 READs for each look at the map,
    /// 2 of them.
    ///
    /// # Errors
    /// Those of the operation; `Unavailable` if the map changes all the time.
    pub(crate) async fn serve<T: RangeOwner>(
        &self,
        table: &T,
        session: &Session,
        op: &Op,
    ) -> Result<Option<OpReply>, IndexError> {
        if !self.admits() && self.takes(table, session, op).await? {
            return Ok(None);
        }
        match op {
            Op::Get { key } => {
                let get = async || {
                    let _pin = session.begin(OpKind::Get).await?;
                    let mut value = Vec::new();
                    let has = table.get_unowned(session, key, &mut value).await?;
                    Ok(OpReply::Value(has.then_some(value)))
                };
                read_unowned(table, session, op, get).await
            }
            Op::Scan { from, to, reverse, limit } => {
                let range = ScanRange::between(from, to, *reverse);
                let scan = async || {
                    let _pin = session.begin(OpKind::Scan).await?;
                    let mut pairs = Entries::new();
                    table.scan_unowned(session, range, *limit, &mut pairs).await?;
                    Ok(OpReply::Pairs(pairs))
                };
                read_unowned(table, session, op, scan).await
            }
            _ => change_unowned(table, session, op).await,
        }
    }

    /// Takes the keys of `op`, which nobody owns as far as is known. If the pool has no room for what an owner needs,
    /// such as a log, this stays a guest for as many operations again, and returns false: so a full pool can be read,
    /// and what is in it removed.
    async fn takes<T: RangeOwner>(
        &self,
        table: &T,
        session: &Session,
        op: &Op,
    ) -> Result<bool, IndexError> {
        let _pin = session.begin(OpKind::Maintenance).await?;
        // Before the map names this compute server as the owner.
        let map = read_map(table.ownership().words(), session).await?;
        match table.prepare_to_own(session, map).await {
            Ok(_) => {}
            Err(IndexError::Full(_)) => {
                self.left.store(self.operations, Ordering::Relaxed);
                return Ok(false);
            }
            Err(error) => return Err(error),
        }
        take_free(table, session, seek_of(op)).await?;
        Ok(true)
    }

    /// Clears what is left of removed keys that nobody owns, before the table is closed.
    ///
    /// Cost: 1 CAS, 3 READs and 1 WRITE, and the engine's.
    pub async fn clear<T: RangeOwner>(
        &self,
        table: &T,
        session: &Session,
    ) -> Result<(), IndexError> {
        let _pin = session.begin(OpKind::Other).await?;
        let lock = lock_map(table, session).await?;
        let map = read_map(table.ownership().words(), session).await?;
        let patient = session.without_deadline();
        let (table, lock) = (table.clone(), lock.with_session(&patient));
        let task = async move {
            table.clear_unowned(&patient, &map, true).await?;
            lock.release().await
        };
        let cleared = run_to_end(session, Box::pin(task), ()).await;
        cleared.unwrap_or_else(|| Err(unfinished_work("closing the table")))
    }
}

/// Tells whether `map` names no owner of any key of `op`.
fn is_unowned(map: &Partitions, op: &Op) -> bool {
    let [first, last] = match op {
        Op::Scan { from, to, .. } => {
            [false, true].map(|reverse| map.at(scan_begin(from, to, reverse)))
        }
        _ => [map.at(seek_of(op)); 2],
    };
    map.owners[first..=last].iter().all(|owner| *owner == 0)
}

/// Changes a key if nobody owns it (`INV-COMPUTE-GUEST-1`); `None` if somebody does.
async fn change_unowned<T: RangeOwner>(
    table: &T,
    session: &Session,
    op: &Op,
) -> Result<Option<OpReply>, IndexError> {
    let done = {
        let _pin = session.begin(op.kind()).await?;
        let lock = lock_map(table, session).await?;
        let map = read_map(table.ownership().words(), session).await?;
        if is_unowned(&map, op) {
            let patient = session.without_deadline();
            let lock = lock.with_session(&patient);
            let (table, op) = (table.clone(), op.clone());
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
    let (outcome, held) = done.unwrap_or_else(|| Err(unfinished_change("the change")))?;
    Ok(Some(reply_of(op.kind(), outcome, held)))
}

/// Reads by `read` the keys of `op`, if nobody owns any of them (`INV-COMPUTE-GUEST-2`); `None` if somebody does.
async fn read_unowned<T: RangeOwner>(
    table: &T,
    session: &Session,
    op: &Op,
    mut read: impl AsyncFnMut() -> Result<OpReply, IndexError>,
) -> Result<Option<OpReply>, IndexError> {
    let mut patience = Patience::new(session.endpoint());
    let mut before = map_now(table, session).await?;
    loop {
        if !is_unowned(&before, op) {
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

/// Changes a key that nobody owns, then releases the map's lock. For a task that runs to its end.
async fn change_locked<T: RangeOwner>(
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
