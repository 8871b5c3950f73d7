//! Guests: work on keys that nobody owns, without becoming their owner.
//!
//! A short-lived process should not own a range: it would change the map three times, and its death would block other
//! clients. As a guest it works on remote memory by the protocol that is safe for any number of compute servers
//! ([`Unowned`]). Routing sends
//! operations on keys that have an owner there as always, and gives the others to the guest. A guest that has done
//! its number of operations takes the keys, and is an owner from then on.
//!
//! - `INV-COMPUTE-GUEST-1` A guest changes a key only while it holds the lock of the ownership map and the map
//!   names no owner of the key. A taker of the key changes the map under the same lock, so that it has cached
//!   nothing of what a guest changes. A guest's task releases the lock only when nothing of its change is under way.
//! - `INV-COMPUTE-GUEST-2` A guest's read counts if the map has the same epoch before and after, and names no owner
//!   of what was read: no owner has begun to change it in between.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use farleaf_fabric::{Endpoint, OpKind};
use farleaf_pool::Session;

use super::messages::{OpReply, Patience};
use super::ownership::{
    Partitions, lock_map, read_map, refresh_map, reply_of, scan_begin, seek_of, take_free,
};
use super::{Owned, RangeOwner};
use crate::change::{Change, Outcome};
use crate::detach::{run_to_end, unfinished_change, unfinished_work};
use crate::op::Op;
use crate::remote_lock::Lock;
use crate::{Entries, IndexError, ScanRange};

/// Pairs that a guest reads between two looks at the map.
pub(crate) const PAIRS_MAX: usize = 1024;

/// An engine's work on keys that nobody owns, safe beside any other guest. The caller has a pin.
#[allow(async_fn_in_trait, reason = "a session and all its tasks stay on one thread")]
pub trait Unowned<T: RangeOwner>: fmt::Debug + Sized + Send + Sync + 'static {
    /// Makes what a guest works with, beside its tree; `None` if the engine has no guests.
    fn new(tree: &Arc<T>) -> Option<Self>;

    /// As [`crate::Index::get`], for a key that nobody owns.
    async fn get(
        &self,
        tree: &Arc<T>,
        session: &Session,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<bool, IndexError>;

    /// As [`crate::Index::change`], for a key that nobody owns. The caller has the lock of the ownership map, and waits
    /// without a deadline: an error is final then, and nothing is under way.
    async fn change(
        &self,
        tree: &Arc<T>,
        session: &Session,
        change: &Change<'_>,
        held: &mut Vec<u8>,
    ) -> Result<Outcome, IndexError>;

    /// As [`crate::Index::scan`], for keys that nobody owns.
    async fn scan(
        &self,
        tree: &Arc<T>,
        session: &Session,
        range: ScanRange<'_>,
        limit: usize,
        out: &mut Entries,
    ) -> Result<(), IndexError>;

    /// Returns whether [`Unowned::clear`] would find something to do.
    fn has_remains(&self, _tree: &Arc<T>) -> bool {
        false
    }

    /// Clears what is left of removed keys, as far as nobody owns them by `map`: if it is due, or `is_last`. The
    /// caller is that of [`Unowned::change`].
    async fn clear(
        &self,
        _tree: &Arc<T>,
        _session: &Session,
        _map: &Partitions,
        _is_last: bool,
    ) -> Result<(), IndexError> {
        Ok(())
    }

    /// Finishes what the dead client that `dead` stands for was changing under the map's lock as a guest. Several takers
    /// of that lock may call it at once.
    ///
    /// # Errors
    /// Those of a change; the lock is not taken over then.
    async fn finish_dead(_tree: &Arc<T>, _session: &Session, _dead: u64) -> Result<(), IndexError> {
        Ok(())
    }
}

/// The guests of an engine that has none.
#[derive(Debug)]
pub enum NoGuests {}

impl<T: RangeOwner> Unowned<T> for NoGuests {
    fn new(_tree: &Arc<T>) -> Option<Self> {
        None
    }

    async fn get(
        &self,
        _tree: &Arc<T>,
        _session: &Session,
        _key: &[u8],
        _value: &mut Vec<u8>,
    ) -> Result<bool, IndexError> {
        match *self {}
    }

    async fn change(
        &self,
        _tree: &Arc<T>,
        _session: &Session,
        _change: &Change<'_>,
        _held: &mut Vec<u8>,
    ) -> Result<Outcome, IndexError> {
        match *self {}
    }

    async fn scan(
        &self,
        _tree: &Arc<T>,
        _session: &Session,
        _range: ScanRange<'_>,
        _limit: usize,
        _out: &mut Entries,
    ) -> Result<(), IndexError> {
        match *self {}
    }
}

/// The right to work on keys that nobody owns.
#[derive(Debug)]
pub(in crate::compute) struct Guest<T: RangeOwner> {
    /// The engine's side.
    unowned: T::Unowned,
    /// Operations that a guest does before it takes keys.
    operations: u64,
    /// Those that are left.
    left: AtomicU64,
}

impl<T: RangeOwner> Guest<T> {
    /// A guest for so many operations on keys that nobody owns; `None` if the engine has no guests.
    pub(in crate::compute) fn new(operations: u64, tree: &Arc<T>) -> Option<Self> {
        let unowned = T::Unowned::new(tree)?;
        Some(Guest { unowned, operations, left: AtomicU64::new(operations) })
    }

    /// Returns whether the table must be cleared before it is closed.
    pub(in crate::compute) fn has_remains(&self, tree: &Arc<T>) -> bool {
        self.unowned.has_remains(tree)
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
    pub(in crate::compute) async fn serve(
        &self,
        table: &Owned<T>,
        session: &Session,
        op: &Op,
    ) -> Result<Option<OpReply>, IndexError> {
        let tree = table.tree();
        if !self.admits() && self.takes(tree, session, op).await? {
            return Ok(None);
        }
        match op {
            Op::Get { key } => {
                let get = async || {
                    let _pin = session.begin(OpKind::Get).await?;
                    let mut value = Vec::new();
                    let has = self.unowned.get(tree, session, key, &mut value).await?;
                    Ok(OpReply::Value(has.then_some(value)))
                };
                read_unowned(tree, session, op, get).await
            }
            Op::Scan { from, to, reverse, limit } => {
                let range = ScanRange::between(from, to, *reverse);
                let scan = async || {
                    let _pin = session.begin(OpKind::Scan).await?;
                    let mut pairs = Entries::new();
                    self.unowned.scan(tree, session, range, *limit, &mut pairs).await?;
                    Ok(OpReply::Pairs(pairs))
                };
                read_unowned(tree, session, op, scan).await
            }
            _ => change_unowned(table, session, op).await,
        }
    }

    /// Takes the keys of `op`, which nobody owns as far as is known. If the pool has no room for what an owner needs,
    /// such as a log, this stays a guest for as many operations again, and returns false: so a full pool can be read,
    /// and what is in it removed.
    async fn takes(&self, tree: &Arc<T>, session: &Session, op: &Op) -> Result<bool, IndexError> {
        let _pin = session.begin(OpKind::Maintenance).await?;
        // Before the map names this compute server as the owner.
        let map = read_map(tree.ownership().words(), session).await?;
        match tree.prepare_to_own(session, map).await {
            Ok(_) => {}
            Err(IndexError::Full(_)) => {
                self.left.store(self.operations, Ordering::Relaxed);
                return Ok(false);
            }
            Err(error) => return Err(error),
        }
        take_free(tree, session, seek_of(op)).await?;
        Ok(true)
    }

    /// Clears what is left of removed keys that nobody owns, before the table is closed.
    ///
    /// Cost: 1 CAS, 3 READs and 1 WRITE, and the engine's.
    pub(in crate::compute) async fn clear(
        &self,
        table: &Owned<T>,
        session: &Session,
    ) -> Result<(), IndexError> {
        let _pin = session.begin(OpKind::Other).await?;
        let lock = lock_map(table.tree(), session).await?;
        let map = read_map(table.ownership().words(), session).await?;
        let patient = session.without_deadline();
        let (table, lock) = (table.clone(), lock.with_session(&patient));
        let task = async move {
            if let Some(guest) = table.guest() {
                guest.unowned.clear(table.tree(), &patient, &map, true).await?;
            }
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
    table: &Owned<T>,
    session: &Session,
    op: &Op,
) -> Result<Option<OpReply>, IndexError> {
    let done = {
        let _pin = session.begin(op.kind()).await?;
        let lock = lock_map(table.tree(), session).await?;
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
        refresh_map(table.tree(), session).await?;
        return Ok(None);
    };
    let (outcome, held) = done.unwrap_or_else(|| Err(unfinished_change("the change")))?;
    Ok(Some(reply_of(op.kind(), outcome, held)))
}

/// Reads by `read` the keys of `op`, if nobody owns any of them (`INV-COMPUTE-GUEST-2`); `None` if somebody does.
async fn read_unowned<T: RangeOwner>(
    tree: &Arc<T>,
    session: &Session,
    op: &Op,
    mut read: impl AsyncFnMut() -> Result<OpReply, IndexError>,
) -> Result<Option<OpReply>, IndexError> {
    let mut patience = Patience::new(session.endpoint());
    let mut before = map_now(tree, session).await?;
    loop {
        if !is_unowned(&before, op) {
            refresh_map(tree, session).await?;
            return Ok(None);
        }
        let found = read().await?;
        let after = map_now(tree, session).await?;
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

async fn map_now<T: RangeOwner>(
    tree: &Arc<T>,
    session: &Session,
) -> Result<Partitions, IndexError> {
    let _pin = session.begin(OpKind::Other).await?;
    read_map(tree.ownership().words(), session).await
}

/// Changes a key that nobody owns, then releases the map's lock. For a task that runs to its end.
async fn change_locked<T: RangeOwner>(
    table: &Owned<T>,
    session: &Session,
    (lock, map): (Lock, Partitions),
    op: &Op,
) -> Result<(Outcome, Vec<u8>), IndexError> {
    let (Some(change), Some(guest)) = (op.change(), table.guest()) else {
        return Err(IndexError::Invalid("no change of a guest's".into()));
    };
    let (unowned, tree) = (&guest.unowned, table.tree());
    let mut held = Vec::new();
    let outcome = unowned.change(tree, session, &change, &mut held).await?;
    let unknown = |error: IndexError| IndexError::OutcomeUnknown(error.to_string());
    // If this fails, what is left stays in the table, and does no harm.
    let _ = unowned.clear(tree, session, &map, false).await;
    lock.release().await.map_err(unknown)?;
    Ok((outcome, held))
}
