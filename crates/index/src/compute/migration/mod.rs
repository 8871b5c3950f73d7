//! Migration: moves ranges of keys between compute servers while clients use them.
//!
//! The giver of a range does nearly all of the move ([`source`]). The taker learns of the new map, and its
//! engine takes the range in. Steps, of range X from A to B; the engine's part is [`super::RangeOwner`]'s:
//!
//! 1. A writes the intent into the map. One move is under way at a time.
//! 2. From now on A's engine changes the structure in no way that a move could not bear (it merges nothing),
//!    and A waits until no such change is under way.
//! 3. The engine prepares X's ends as bounds (`make_bound`).
//! 4. It writes back what is dirty in X while operations go on (`write_back`); again as long as what has
//!    become dirty meanwhile is at most half of what was.
//! 5. A takes X's ends for bounds: nodes that cross one are shared from now on (`share_bounds`).
//! 6. A closes X: operations on it wait. It drains its guard.
//! 7. The engine writes back what has become dirty since, and drops everything inside X from its cache
//!    (`hand_over`).
//! 8. A puts the map with X given to B in place of the one with the intent: from here on X is B's.
//! 9. A opens the guard; operations that waited find the key to be B's and go there. A tells B, which takes
//!    X in (`take_in`).
//!
//! - `INV-COMPUTE-MOVE-1` When the map comes to name B as X's owner, A has nothing of X cached that is not
//!   shared, nothing of it is dirty, and no operation of A's on it is under way.
//! - `INV-COMPUTE-MOVE-2` At every moment X has one owner, by the map. Up to step 8 the move can be called off
//!   by dropping the intent; what has been done till then only costs time.
//! - `INV-COMPUTE-MOVE-3` The map's new bounds are given in step 8 only if the intent is still there. So a
//!   successor of a dead A or B that drops the intent ends the move.

mod balance;
mod calls;
mod source;

use farleaf_fabric::Incarnation;

use crate::IndexError;
pub(crate) use balance::own_load;
pub use balance::{Balance, BalanceOptions, Balancer, RangeMove};
pub use calls::RangeCalls;
pub(crate) use calls::share;
pub use source::GIVE_UNDRAINED;
pub(in crate::compute) use source::MoveGuard;
pub(crate) use source::give;

/// The load of one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartLoad {
    /// The compute server that serves it.
    pub owner: Incarnation,
    /// Exclusive lower bound.
    pub low: Option<Vec<u8>>,
    /// Inclusive upper bound.
    pub high: Option<Vec<u8>>,
    /// Operations, the older ones counted less.
    pub ops: u64,
    /// A sample of their keys.
    pub keys: Vec<Vec<u8>>,
}

/// Why a range was not moved. Unless it says otherwise everything is as it was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MoveError {
    /// Bounds that leave no range between them.
    #[error("the bounds are out of order: the lower one must be below the upper one")]
    OutOfOrder,
    /// A bound that the table takes as no key.
    #[error("a bound is no key of this table: it has another length than its keys may have")]
    NoKey,
    /// There is no such boundary.
    #[error("the table has no boundary of number {0}")]
    NoBoundary(usize),
    /// Nobody serves under this name, as far as can be found out.
    #[error("compute server {0} does not answer: let it join the table and serve first")]
    UnknownServer(Incarnation),
    /// The one that was to get the range, or to give it, is dead.
    #[error("compute server {0} is dead: take its partitions over")]
    DeadTarget(Incarnation),
    /// The range is not one owner's.
    #[error("the compute server does not own the whole range")]
    NotOwned,
    /// There is nobody who could take what is to be given up.
    #[error("no other compute server serves the table")]
    NobodyElse,
    /// Another move is under way.
    #[error("another range is being moved: try again")]
    Busy,
    /// Somebody has ended the move, as its giver or taker was taken for dead.
    #[error("the move was called off: one of its compute servers was taken for dead")]
    CalledOff,
    /// An error of an index operation.
    #[error(transparent)]
    Index(#[from] IndexError),
}
