//! Numbered partitions: owners of the lines and locks of an engine's table, in the memory of compute servers.
//!
//! An engine hashes each line to one of the table's numbered partitions. A partition's lines and lock words stand
//! in the region of its owner, a compute server, or on memory servers if nobody owns it. All members that have
//! the table open use them where they stand; owning gives no other right. The map (`map`) names each
//! partition's owner and *term*. A partition changes its owner in three steps: it is closed in the map; all
//! members drain their guards and acknowledge the map; it is opened under a new term. The *conductor*, a member
//! that holds a lock word of the table, does this: after an owner's death, or to move partitions.
//!
//! - `INV-PART-1` An operation uses lines and locks of a partition only inside the guard for it (`guard`).
//! - `INV-PART-2` A partition opens under a new term only when every member that takes part has acknowledged an
//!   epoch in which it was closed, or is cut off, and all that the dead have left half done in it is finished.
//! - `INV-PART-3` One conductor at a time closes and opens partitions.
//! - `INV-PART-4` Lines of a partition in an owner's memory are zero when it becomes the owner, or are copied
//!   whole. So no lock word of an earlier time is found there.
//!
//! `docs/design/partitions.md` has each step with the state that a death leaves behind.
//!
//! Source: DMTree (FAST 2026) names a leaf's primary by consistent hashing; terms, acknowledgements and
//! fail-over are ours.

mod acks;
mod calls;
mod conductor;
mod guard;
mod left_locks;
mod map;
mod membership;
mod ring;
mod scaling;
#[cfg(test)]
mod tests;

use farleaf_fabric::GlobalAddr;
use farleaf_pool::Session;

use super::ownership::{MapWords, lock_slots, put_slot, read_slot};
use crate::IndexError;
pub use acks::ack_bytes;
pub use calls::PartitionCalls;
pub use conductor::{as_conductor, fail_over, move_partitions, rebalance, resume};
pub use guard::{Home, InsidePartitions, PartitionGuard, PartitionView};
use map::EPOCH_MAX;
pub use map::{
    MapMember, MoveWay, NUMBERED_PARTITIONS_MAX, PartitionEntry, PartitionMap, PartitionMove,
    PartitionState,
};
pub use membership::{
    PartitionCounts, PartitionMembership, check_unused, enter, leave, offer, tick,
};
pub use ring::WEIGHT_MAX;
pub use scaling::{PartitionShare, add_share, drain, settle_in};

farleaf_fabric::canaries! {
    pub ACK_UNDRAINED = "ack-undrained", "a member acknowledges a map of partitions without a drain";
    pub ACK_LEFT = "ack-left",
        "a member acknowledges that a partition is closed while it has left a lock there";
    pub OPEN_UNACKNOWLEDGED = "open-unacknowledged",
        "a conductor opens partitions without acknowledgements";
    pub OPEN_UNFINISHED = "open-unfinished",
        "a conductor opens partitions before the work of the dead is finished";
    pub IGNORE_TERM = "ignore-term", "lines of a partition's earlier term count";
    pub MAP_BEFORE_ACK = "map-before-ack",
        "a member reads its first map of partitions before it takes part";
    pub TWO_CONDUCTORS = "two-conductors", "a second conductor does not wait for the first";
}

/// The words of a table that hold its partitions.
#[derive(Clone, Copy, Debug)]
pub struct PartitionWords {
    /// The map's, and its lock.
    pub map: MapWords,
    /// The conductor's lock word.
    pub conductor: GlobalAddr,
    /// The acknowledgements: [`ack_bytes`] bytes.
    pub acks: GlobalAddr,
}

/// A table with numbered partitions: the engine's side.
///
/// Its methods run in a task that holds a pin, so none of them begins an operation. The conductor calls the first three, for
/// partitions that are closed and drained everywhere: no living client holds a lock or changes a line in them.
#[allow(async_fn_in_trait, reason = "a session and all its tasks stay on one thread")]
pub trait PartitionedTable: Clone + 'static {
    /// Its words.
    fn words(&self) -> &PartitionWords;

    /// This compute server's part; `None` where the table is not open, as in a recovery.
    fn membership(&self) -> Option<&PartitionMembership>;

    /// Bytes of its memory that a compute server gives to this table if it has partitions of it.
    fn slice_bytes(&self, session: &Session) -> u64;

    /// Finishes what dead clients have left half done in `closed`, without their locks: by redo records, whose
    /// versions tell whether a record is done. May be called again at any time.
    async fn finish_dead(&self, session: &Session, closed: &[u32]) -> Result<(), IndexError>;

    /// Copies all used lines of `partition` to its next owner, lock words included, with the new term where the old
    /// one is current. No line of `to` that the giver does not use is touched.
    ///
    /// # Errors
    /// `Unavailable` if giver or taker cannot be reached, or is gone: the move is called off.
    async fn copy_lines(
        &self,
        session: &Session,
        partition: u32,
        from: Home,
        to: Home,
    ) -> Result<(), IndexError>;

    /// Zeroes the lines of `partitions` on memory servers: nobody is about to own them.
    async fn clear_unowned(&self, session: &Session, partitions: &[u32]) -> Result<(), IndexError>;

    /// Zeroes the lines of `partitions` in this compute server's own memory. Nobody uses them any more.
    async fn forget_lines(&self, session: &Session, partitions: &[u32]) -> Result<(), IndexError>;
}

/// Gives a new table its map: `count` partitions that nobody owns.
///
/// Cost: 1 CAS, 1 WRITE and a chain.
///
/// # Errors
/// `Invalid` for more than [`NUMBERED_PARTITIONS_MAX`] partitions, or none; `Full`.
pub async fn create_partitions(
    words: &PartitionWords,
    session: &Session,
    count: usize,
) -> Result<(), IndexError> {
    if !(1..=NUMBERED_PARTITIONS_MAX).contains(&count) {
        return Err(IndexError::Invalid(format!(
            "a table of {count} numbered partitions: it takes 1 to {NUMBERED_PARTITIONS_MAX}"
        )));
    }
    let lock = lock_slots(&words.map, session, async |_| Ok(())).await?;
    let content = PartitionMap::unowned(count).encode();
    put_slot(&words.map, session, lock, None, &content, Vec::new()).await?;
    Ok(())
}

/// The map that the table names. The caller has a pin.
///
/// Cost: 3 READs in 2 round trips; more if it is being changed.
///
/// # Errors
/// `Corrupt` if there is none.
pub async fn read_partitions(
    words: &PartitionWords,
    session: &Session,
) -> Result<PartitionMap, IndexError> {
    read_slot(&words.map, session, PartitionMap::decode).await
}

/// Puts what `change` makes of the map in its place, as the next epoch, or leaves it if that is `None`; gives the
/// map that counts then. The caller has a pin, and runs to its end.
///
/// Cost: CAS and 3 READs, then a WRITE and a chain; a fence per server if the dead had the lock.
///
/// # Errors
/// Those of `change`; `Unavailable` if somebody holds the lock for long; `Full`.
async fn change_partitions(
    words: &PartitionWords,
    session: &Session,
    change: impl FnOnce(&PartitionMap) -> Result<Option<PartitionMap>, IndexError>,
) -> Result<PartitionMap, IndexError> {
    let lock = lock_slots(&words.map, session, async |_| Ok(())).await?;
    let old = read_partitions(words, session).await?;
    let Some(mut new) = change(&old)? else {
        lock.release().await?;
        return Ok(old);
    };
    if old.epoch == EPOCH_MAX {
        return Err(IndexError::Full(format!(
            "the map of the table at {} has been changed {EPOCH_MAX} times: copy the table",
            words.map.meta
        )));
    }
    new.epoch = old.epoch + 1;
    let place = Some(old.place);
    new.place = put_slot(&words.map, session, lock, place, &new.encode(), Vec::new()).await?;
    Ok(new)
}
