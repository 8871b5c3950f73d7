//! Owned table: the calls on an open table whose ranges of keys have owners, for every such engine.

use std::future::Future;
use std::pin::Pin;

use farleaf_fabric::{GlobalAddr, Incarnation, OpKind};
use farleaf_pool::Session;

use super::messages::{OpReply, Request};
use super::migration::{self, BalanceOptions, Balancer, MoveError, PartLoad};
use super::ownership::{self, Owner};
use super::{HostedTable, RangeOwner};
use crate::IndexError;

/// Work that is boxed, so that a table of any engine can be asked for it. None of it is on an operation's way.
pub type Work<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// An open table whose ranges of keys have owners.
pub trait OwnedTable {
    /// The address of its meta object.
    fn meta(&self) -> GlobalAddr;

    /// Epoch, bounds and owners of the ownership map as they are known here.
    fn known_map(&self) -> (u64, Vec<Vec<u8>>, Vec<Incarnation>);

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

    /// The owner of `key`, if it is not this compute server's.
    ///
    /// Cost: none for an own key, else that of reading the map, 2 READs.
    ///
    /// # Errors
    /// `Unavailable`, `Closed`.
    fn wrong_owner<'a>(
        &'a self,
        session: &'a Session,
        key: &'a [u8],
    ) -> Work<'a, Result<Option<Owner>, IndexError>>;

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
    fn move_range<'a>(
        &'a self,
        session: &'a Session,
        low: Option<&'a [u8]>,
        high: Option<&'a [u8]>,
        to: Incarnation,
    ) -> Work<'a, Result<u64, MoveError>>;

    /// Moves boundary `number`, that between the partitions of this number and the next, to `bound`, which
    /// lies in one of the two: its owner gives what is between to the other.
    ///
    /// # Errors
    /// As [`OwnedTable::move_range`]; `NoBoundary`, and `OutOfOrder` if the bound is in neither.
    fn move_boundary<'a>(
        &'a self,
        session: &'a Session,
        number: usize,
        bound: &'a [u8],
    ) -> Work<'a, Result<u64, MoveError>>;

    /// Lets a compute server that has joined have a part: about half of what the one with the most to do
    /// has, or, where nothing has been counted, with the most keys.
    ///
    /// # Errors
    /// As [`OwnedTable::move_range`].
    fn scale_out<'a>(
        &'a self,
        session: &'a Session,
        to: Incarnation,
    ) -> Work<'a, Result<u64, MoveError>>;

    /// Lets a compute server give up all that it has, to the owners of what is beside it; how many
    /// ranges it gave. It can be closed then, or go on as one that owns nothing.
    ///
    /// # Errors
    /// As [`OwnedTable::move_range`]; `NobodyElse` if all keys are its. What was given until then is given.
    fn scale_in<'a>(
        &'a self,
        session: &'a Session,
        who: Incarnation,
    ) -> Work<'a, Result<usize, MoveError>>;

    /// The load of each partition that a compute server serves, in the order of their keys. With `decay` half
    /// of it is forgotten then.
    ///
    /// # Errors
    /// Those of reading the map. An owner that does not answer has nothing counted.
    fn loads<'a>(
        &'a self,
        session: &'a Session,
        decay: bool,
    ) -> Work<'a, Result<Vec<PartLoad>, MoveError>>;

    /// One round of balancing: gathers the loads and moves a boundary if that is worth while; the map's
    /// epoch after it, if something was moved.
    ///
    /// # Errors
    /// As [`OwnedTable::move_range`].
    fn balance<'a>(
        &'a self,
        session: &'a Session,
        balancer: &'a mut Balancer,
    ) -> Work<'a, Result<Option<u64>, MoveError>>;

    /// Balances until the table is closed here, if `options` say so. Every compute server may run it;
    /// the one that owns the lowest keys acts.
    ///
    /// # Errors
    /// `Closed`. A move that fails is left to the next round.
    fn balance_repeatedly<'a>(
        &'a self,
        session: &'a Session,
        options: BalanceOptions,
    ) -> Work<'a, Result<(), IndexError>>;
}

impl<T: RangeOwner> OwnedTable for T {
    fn meta(&self) -> GlobalAddr {
        self.ownership().words().meta
    }

    fn known_map(&self) -> (u64, Vec<Vec<u8>>, Vec<Incarnation>) {
        let view = self.ownership().view();
        let owners = view.map.owners.iter().copied().map(Incarnation).collect();
        (view.map.epoch, view.map.bounds.clone(), owners)
    }

    fn serve<'a>(
        &'a self,
        session: &'a Session,
        request: Request,
    ) -> Work<'a, Result<OpReply, IndexError>> {
        Box::pin(ownership::serve(self, session, request))
    }

    fn wrong_owner<'a>(
        &'a self,
        session: &'a Session,
        key: &'a [u8],
    ) -> Work<'a, Result<Option<Owner>, IndexError>> {
        Box::pin(ownership::wrong_owner(self, session, key))
    }

    fn refresh_map<'a>(&'a self, session: &'a Session) -> Work<'a, Result<u64, IndexError>> {
        Box::pin(ownership::refresh_map(self, session))
    }

    fn take_all_free<'a>(&'a self, session: &'a Session) -> Work<'a, Result<bool, IndexError>> {
        Box::pin(async move {
            ownership::refresh_map(self, session).await?;
            let is_free = self.ownership().view().map.owners.contains(&0);
            if is_free {
                let _pin = session.begin(OpKind::Maintenance).await?;
                ownership::claim(self, session, usize::MAX).await?;
            }
            Ok(is_free)
        })
    }

    fn take_over<'a>(
        &'a self,
        session: &'a Session,
        dead: Incarnation,
    ) -> Work<'a, Result<usize, IndexError>> {
        Box::pin(ownership::take_over(self, session, dead))
    }

    fn partition<'a>(
        &'a self,
        session: &'a Session,
        bounds: &'a [Vec<u8>],
    ) -> Work<'a, Result<(), IndexError>> {
        Box::pin(ownership::cut(self, session, bounds))
    }

    fn move_range<'a>(
        &'a self,
        session: &'a Session,
        low: Option<&'a [u8]>,
        high: Option<&'a [u8]>,
        to: Incarnation,
    ) -> Work<'a, Result<u64, MoveError>> {
        Box::pin(migration::move_range(self, session, low, high, to))
    }

    fn move_boundary<'a>(
        &'a self,
        session: &'a Session,
        number: usize,
        bound: &'a [u8],
    ) -> Work<'a, Result<u64, MoveError>> {
        Box::pin(migration::move_boundary(self, session, number, bound))
    }

    fn scale_out<'a>(
        &'a self,
        session: &'a Session,
        to: Incarnation,
    ) -> Work<'a, Result<u64, MoveError>> {
        Box::pin(migration::scale_out(self, session, to))
    }

    fn scale_in<'a>(
        &'a self,
        session: &'a Session,
        who: Incarnation,
    ) -> Work<'a, Result<usize, MoveError>> {
        Box::pin(migration::scale_in(self, session, who))
    }

    fn loads<'a>(
        &'a self,
        session: &'a Session,
        decay: bool,
    ) -> Work<'a, Result<Vec<PartLoad>, MoveError>> {
        Box::pin(migration::loads(self, session, decay))
    }

    fn balance<'a>(
        &'a self,
        session: &'a Session,
        balancer: &'a mut Balancer,
    ) -> Work<'a, Result<Option<u64>, MoveError>> {
        Box::pin(migration::balance(self, session, balancer))
    }

    fn balance_repeatedly<'a>(
        &'a self,
        session: &'a Session,
        options: BalanceOptions,
    ) -> Work<'a, Result<(), IndexError>> {
        Box::pin(migration::balance_repeatedly(self, session, options))
    }
}

impl<T: RangeOwner> HostedTable for T {
    fn meta(&self) -> GlobalAddr {
        self.ownership().words().meta
    }

    async fn serve(&self, session: &Session, request: Request) -> Result<OpReply, IndexError> {
        ownership::serve(self, session, request).await
    }
}
