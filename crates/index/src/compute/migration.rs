//! Migration: how much is done on ranges, and why a range does not move.

use farleaf_fabric::Incarnation;

use crate::IndexError;

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
    #[error("the range is not, or not as a whole, of the compute server that is to give it")]
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
