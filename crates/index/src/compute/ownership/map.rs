//! Ownership map: reads and changes the map of a table's partitions.
//!
//! The map is an object that a word of the table's meta object names ([`super::two_slots`]). A compute server that
//! changes it takes the map's lock, and puts the new map, with the next epoch, in its place. A taker breaks the lock of
//! a dead holder after that is cut off, once the engine has finished what a dead guest changed under it
//! ([`Unowned::finish_dead`]).
//!
//! - `INV-COMPUTE-MAP-1` Only the owner that the map names for a range gives the range to another, or a
//!   taker after that owner has been cut off from every memory server.
//! - `INV-COMPUTE-MAP-2` A map counts once the word names it. A reader reads the word again after the map,
//!   and begins anew if the word has changed: the slot may hold parts of the next map.

use std::sync::Arc;

use farleaf_pool::Session;

use super::partitions::{PARTITIONS_MAX, Partitions};
use super::two_slots::{MapWords, lock_slots, put_slot, read_slot};
use crate::IndexError;
use crate::compute::{RangeOwner, Unowned};
use crate::detach::detach;
use crate::remote_lock::Lock;

/// The ownership map that the meta object names.
///
/// Cost: 3 READs in 2 round trips; more if it is being changed.
pub async fn read_map(words: &MapWords, session: &Session) -> Result<Partitions, IndexError> {
    read_slot(words, session, Partitions::decode).await
}

/// Puts what `change` makes of the ownership map in its place, as the next epoch; gives the new map. An
/// error of `change`'s is the result, and nothing has happened. Runs to its end whatever becomes of the
/// caller, who has a pin.
///
/// Cost: CAS and 3 READs, then a WRITE and a chain: 5 round trips; more if others change it at the same
/// time, or if it outgrows its slot. A fence per memory server if the dead had it.
///
/// # Errors
/// `Unavailable` if somebody holds the lock for long, `Full`; `change`'s.
pub async fn change_map<T: RangeOwner, E: From<IndexError> + 'static>(
    tree: &Arc<T>,
    session: &Session,
    change: impl AsyncFnOnce(&Partitions) -> Result<Partitions, E> + 'static,
) -> Result<Partitions, E> {
    let (tree, task_session) = (Arc::clone(tree), session.without_deadline());
    detach(session, async move { change_map_now(&tree, &task_session, change).await }).await
}

/// As [`change_map`], for a task that runs to its end.
pub async fn change_map_now<T: RangeOwner, E: From<IndexError>>(
    tree: &Arc<T>,
    session: &Session,
    change: impl AsyncFnOnce(&Partitions) -> Result<Partitions, E>,
) -> Result<Partitions, E> {
    let words = tree.ownership().words();
    // Dropped, the lock is released.
    let lock = lock_map(tree, session).await?;
    let old = read_map(words, session).await?;
    let new = change(&old).await?;
    Ok(put_map(words, session, lock, Some(&old), new).await?)
}

/// Takes the map's lock; takes it over from the dead, once what they changed under it is whole.
pub async fn lock_map<T: RangeOwner>(tree: &Arc<T>, session: &Session) -> Result<Lock, IndexError> {
    let finish = async |dead| T::Unowned::finish_dead(tree, session, dead).await;
    lock_slots(tree.ownership().words(), session, finish).await
}

/// Gives a new table its ownership map, of one partition that nobody has.
///
/// Cost: 1 CAS, 1 WRITE and a chain.
pub async fn create_map(words: &MapWords, session: &Session) -> Result<(), IndexError> {
    let lock = lock_slots(words, session, async |_| Ok(())).await?;
    put_map(words, session, lock, None, Partitions::cut(&[])).await.map(drop)
}

/// Names `new` in the place of `old`, and releases the map's lock.
async fn put_map(
    words: &MapWords,
    session: &Session,
    lock: Lock,
    old: Option<&Partitions>,
    mut new: Partitions,
) -> Result<Partitions, IndexError> {
    if new.count() > PARTITIONS_MAX {
        return Err(IndexError::Invalid(format!(
            "a table has at most {PARTITIONS_MAX} partitions"
        )));
    }
    new.epoch = old.map_or(0, |old| old.epoch) + 1;
    let mut unnamed = Vec::new();
    let logs = old.iter().flat_map(|old| old.logs.iter());
    for log in logs.filter(|log| !new.logs.contains(log)) {
        unnamed.push(words.pointer(log.1)?);
    }
    let place = old.map(|old| old.place);
    new.place = put_slot(words, session, lock, place, &new.encode(), unnamed).await?;
    Ok(new)
}
