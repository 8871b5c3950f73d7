//! Owned table: the calls on an open table whose ranges of keys have owners, for every such engine.

use farleaf_fabric::{GlobalAddr, Incarnation};
use farleaf_pool::Session;

use super::messages::{OpReply, Request};
use super::ownership::{BatchAnswers, Ownership};
use crate::op::Op;
use crate::{IndexError, Seek, Work};

/// An open table whose ranges of keys have owners. [`RangeCalls`](super::RangeCalls) are further calls on it.
pub trait OwnedTable {
    /// This compute server's part in it.
    fn part(&self) -> &Ownership;

    /// Returns whether `key` may be a key of it.
    fn takes(&self, key: &[u8]) -> bool;

    /// The address of its meta object.
    fn meta(&self) -> GlobalAddr {
        self.part().words().meta
    }

    /// Epoch, bounds and owners of the ownership map as they are known here.
    fn known_map(&self) -> (u64, Vec<Vec<u8>>, Vec<Incarnation>) {
        let view = self.part().view();
        let owners = view.map.owners.iter().copied().map(Incarnation).collect();
        (view.map.epoch, view.map.bounds.clone(), owners)
    }

    /// Executes a request that another compute server has sent. If its keys are not this compute
    /// server's, nothing is done and the reply says so.
    ///
    /// # Errors
    /// Those of the operation.
    fn serve<'a>(
        &'a self,
        session: &'a Session,
        request: Request,
    ) -> Work<'a, Result<OpReply, IndexError>>;

    /// The compute server that owns `key`, if that is another one, is known and takes calls. No remote operation.
    fn owner_to_call(&self, key: &[u8]) -> Option<Incarnation> {
        let part = self.part();
        part.other_owner(Seek::At(key))?.owner.filter(|_| part.takes_calls())
    }

    /// Sends operations on keys of the compute server `owner`, none of them a scan, in one message; `None` for one that
    /// is to be done by itself, because it was not done there. Those of one key are done in their order.
    ///
    /// Cost: 1 call, and what the owner does.
    fn run_at<'a>(
        &'a self,
        session: &'a Session,
        owner: Incarnation,
        ops: Vec<Op>,
    ) -> Work<'a, BatchAnswers>;

    /// Reads the ownership map and serves what it gives to this compute server; its epoch. Operations
    /// do so by themselves when they are told that a key has gone elsewhere.
    ///
    /// Cost: 2 READs.
    fn refresh_map<'a>(&'a self, session: &'a Session) -> Work<'a, Result<u64, IndexError>>;

    /// Makes the partitions that nobody has this compute server's; whether there were any.
    ///
    /// Cost: 2 READs, and a change of the map if there are any.
    fn take_all_free<'a>(&'a self, session: &'a Session) -> Work<'a, Result<bool, IndexError>>;

    /// Makes everything this compute server's that the map gives to a dead one, so that its keys are
    /// served again; how many partitions that were. A client that meets a dead owner may call it, and so may
    /// a recovery; if two do, one of them gets it.
    ///
    /// Changes that the dead one had acknowledged in a log are brought to remote memory first. A change of the
    /// tree that it left half done is healed when an operation meets it. A move that it was in the middle of
    /// is undone.
    ///
    /// Cost: a fence for each memory server, a change of the map, and what replaying a log costs.
    ///
    /// # Errors
    /// `Unavailable` if the compute server lives.
    fn take_over<'a>(
        &'a self,
        session: &'a Session,
        dead: Incarnation,
    ) -> Work<'a, Result<usize, IndexError>>;

    /// Cuts the table into one partition more than there are `bounds`, which are inclusive upper
    /// bounds, ascending, of the partitions but the last; and closes it. From then on each partition
    /// has nobody until a compute server that opens the table takes it. No operation may be running.
    ///
    /// Cost: a split for each bound (of a B+-tree), a flush, a change of the map.
    ///
    /// # Errors
    /// `Invalid` for bounds that are no keys of the table or do not ascend, or a table that has several
    /// partitions already; `Unavailable` if another compute server has it. The table is as it was.
    fn partition<'a>(
        &'a self,
        session: &'a Session,
        bounds: &'a [Vec<u8>],
    ) -> Work<'a, Result<(), IndexError>>;
}
