//! Messages: the requests that compute servers send each other about tables, and the replies.

mod codec;
mod send;

use farleaf_fabric::{Incarnation, OpKind};

use super::migration::{MoveError, PartLoad};
use crate::op::Op;
use crate::{Entries, Exchange, IndexError};

pub use codec::{decode_reply, decode_request, encode_reply, encode_request};
pub(crate) use send::{Patience, alive_check_ns, forget, send};

/// A request to another compute server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// An operation for its key's owner.
    Op(Op),
    /// Operations on keys of the receiver's, none of them a scan, to be done in their order.
    Batch(Vec<Op>),
    /// Asks whether the receiver serves the table.
    Hello,
    /// The map has this epoch; it may give the receiver a range.
    Learn {
        /// The epoch.
        epoch: u64,
    },
    /// Give the keys of `(low, high]`, which are the receiver's, to another.
    Give {
        /// The lower bound; `None`: from the first key.
        low: Option<Vec<u8>>,
        /// The upper bound; `None`: to the last key.
        high: Option<Vec<u8>>,
        /// The compute server that gets them.
        to: Incarnation,
    },
    /// Give a part of the receiver's keys to another, about half of its load.
    Share {
        /// The compute server that gets it.
        to: Incarnation,
    },
    /// Asks for the load of the receiver's partitions.
    Load {
        /// Forget half of it.
        decay: bool,
    },
}

impl Request {
    /// Returns whether it changes nothing, so that it may be done again.
    pub fn is_read(&self) -> bool {
        match self {
            Request::Op(op) => op.is_read(),
            Request::Batch(ops) => ops.iter().all(Op::is_read),
            Request::Hello | Request::Learn { .. } | Request::Load { .. } => true,
            Request::Give { .. } | Request::Share { .. } => false,
        }
    }

    /// Returns whether it moves a range, which takes long.
    pub(crate) fn moves(&self) -> bool {
        matches!(self, Request::Give { .. } | Request::Share { .. })
    }

    /// The kind of operation to which its costs are charged.
    pub(crate) fn kind(&self) -> OpKind {
        match self {
            Request::Op(op) => op.kind(),
            Request::Batch(ops) => ops.first().map_or(OpKind::Maintenance, Op::kind),
            _ => OpKind::Maintenance,
        }
    }
}

/// The outcome of a [`Request`].
#[derive(Clone, Debug, PartialEq)]
pub enum OpReply {
    /// Of a get.
    Value(Option<Vec<u8>>),
    /// Of a change, as its method returns it.
    Done(bool),
    /// Of a compare-exchange, and what the key held.
    Exchanged(Exchange, Option<Vec<u8>>),
    /// Of a scan.
    Pairs(Entries),
    /// The first pairs of a scan, at least one; there may be more.
    Part(Entries),
    /// Of a batch, for each of its operations in their order; [`OpReply::WrongOwner`] for those that were not done.
    Batch(Vec<Result<OpReply, IndexError>>),
    /// Nothing was done: the key is not here, by the map of this epoch.
    WrongOwner {
        /// The epoch.
        epoch: u64,
    },
    /// Of a move: the map's epoch after it.
    Moved(Result<u64, MoveError>),
    /// Of a question for the load.
    Load(Vec<PartLoad>),
}
