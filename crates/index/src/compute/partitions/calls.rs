//! Partition calls: what store, command and lab ask of an open table with numbered partitions, for every such engine.

use farleaf_fabric::{GlobalAddr, Incarnation, OpKind};
use farleaf_pool::Session;

use super::conductor::{fail_over, rebalance};
use super::left_locks::give_back_left;
use super::map::{MoveWay, PartitionMap};
use super::membership::{PartitionCounts, tick};
use super::scaling::{add_share, drain, settle_in};
use super::{PartitionMembership, PartitionedTable, read_partitions};
use crate::compute::MoveError;
use crate::{IndexError, Work};

/// An open table with numbered partitions. Its methods begin operations of their own: the caller has no pin.
pub trait PartitionCalls {
    /// The address of its meta object.
    fn meta(&self) -> GlobalAddr;

    /// The map as it is known here.
    fn known_partitions(&self) -> PartitionMap;

    /// Bytes of memory that a compute server must expose to have partitions of this table.
    fn slice_bytes(&self, session: &Session) -> u64;

    /// The map as it is in the pool.
    ///
    /// Cost: 3 READs in 2 round trips.
    ///
    /// # Errors
    /// `Closed`, `Unavailable`; `Corrupt` if there is none.
    fn newest_partitions<'a>(
        &'a self,
        session: &'a Session,
    ) -> Work<'a, Result<PartitionMap, IndexError>>;

    /// Counts of what this member has done.
    fn partition_counts(&self) -> &PartitionCounts;

    /// The member's regular work: learns of a new map, goes on for a conductor that has died, and gives locks back whose
    /// homes could not be reached. A member that has the table open does it every 10 ms, on a thread that always runs: no
    /// partition changes its owner without its acknowledgement.
    ///
    /// Cost: 2 READs of 8 bytes, 1 round trip.
    ///
    /// # Errors
    /// `Closed` if the table was closed, or this compute server was taken for dead.
    fn tick<'a>(&'a self, session: &'a Session) -> Work<'a, Result<(), IndexError>>;

    /// Ends the tasks that ticks have begun: this compute server leaves, or is about to be dead.
    fn end_ticks(&self);

    /// Gives the partitions of the dead compute server `dead` to others.
    ///
    /// # Errors
    /// `Unavailable` if it lives.
    fn take_over_partitions<'a>(
        &'a self,
        session: &'a Session,
        dead: Incarnation,
    ) -> Work<'a, Result<(), IndexError>>;

    /// Moves partitions until each is where the ring has it.
    ///
    /// # Errors
    /// As [`rebalance`].
    fn spread<'a>(&'a self, session: &'a Session, way: MoveWay) -> Work<'a, Result<(), MoveError>>;

    /// Moves partitions to where the ring has them, if some of this compute server are elsewhere by the map that is known
    /// here. Returns whether it did.
    ///
    /// Cost: none if all are in their places, else that of the moves.
    ///
    /// # Errors
    /// As [`rebalance`], after it has tried again for 2 s.
    fn settle_in<'a>(&'a self, session: &'a Session) -> Work<'a, Result<bool, MoveError>>;

    /// Gives the compute server `who` its share of partitions, by copy; returns the number that it gets.
    ///
    /// # Errors
    /// As [`add_share`].
    fn add_share<'a>(
        &'a self,
        session: &'a Session,
        who: Incarnation,
    ) -> Work<'a, Result<usize, MoveError>>;

    /// Moves all partitions of the compute server `who` to others, by copy; returns their number.
    ///
    /// # Errors
    /// As [`drain`].
    fn drain<'a>(
        &'a self,
        session: &'a Session,
        who: Incarnation,
    ) -> Work<'a, Result<usize, MoveError>>;
}

/// The part of a table that its member has open, as every table has that gives these calls.
fn own<T: PartitionedTable>(table: &T) -> &PartitionMembership {
    table.membership().expect("an open table has a membership")
}

impl<T: PartitionedTable> PartitionCalls for T {
    fn meta(&self) -> GlobalAddr {
        self.words().map.meta
    }

    fn known_partitions(&self) -> PartitionMap {
        own(self).view().map.clone()
    }

    fn slice_bytes(&self, session: &Session) -> u64 {
        PartitionedTable::slice_bytes(self, session)
    }

    fn newest_partitions<'a>(
        &'a self,
        session: &'a Session,
    ) -> Work<'a, Result<PartitionMap, IndexError>> {
        Box::pin(async {
            let _pin = session.begin(OpKind::Maintenance).await?;
            read_partitions(self.words(), session).await
        })
    }

    fn partition_counts(&self) -> &PartitionCounts {
        own(self).counts()
    }

    fn tick<'a>(&'a self, session: &'a Session) -> Work<'a, Result<(), IndexError>> {
        give_back_left(self, session);
        Box::pin(tick(self, session))
    }

    fn end_ticks(&self) {
        own(self).left.end();
    }

    fn take_over_partitions<'a>(
        &'a self,
        session: &'a Session,
        dead: Incarnation,
    ) -> Work<'a, Result<(), IndexError>> {
        Box::pin(fail_over(self, session, dead))
    }

    fn spread<'a>(&'a self, session: &'a Session, way: MoveWay) -> Work<'a, Result<(), MoveError>> {
        Box::pin(rebalance(self, session, way))
    }

    fn settle_in<'a>(&'a self, session: &'a Session) -> Work<'a, Result<bool, MoveError>> {
        Box::pin(settle_in(self, session, MoveWay::Copy))
    }

    fn add_share<'a>(
        &'a self,
        session: &'a Session,
        who: Incarnation,
    ) -> Work<'a, Result<usize, MoveError>> {
        Box::pin(add_share(self, session, who, MoveWay::Copy))
    }

    fn drain<'a>(
        &'a self,
        session: &'a Session,
        who: Incarnation,
    ) -> Work<'a, Result<usize, MoveError>> {
        Box::pin(drain(self, session, who, MoveWay::Copy))
    }
}
