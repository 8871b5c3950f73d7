//! Messages: the requests that compute servers send each other about tables, and the replies.

mod codec;
mod send;

use std::ops::Bound;

use farleaf_fabric::{Incarnation, OpKind};

use super::migration::{MoveError, PartLoad};
use crate::Entries;
use crate::change::Change;
use crate::index::Exchange;

pub use codec::{Malformed, decode_reply, decode_request, encode_reply, encode_request};
pub(crate) use send::{Patience, forget, send};

/// A request to another compute server: an operation for its key's owner, whose fields are those of
/// [`crate::Index`]'s methods, or one that concerns the server itself.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "as the methods' parameters")]
pub enum Op {
    Get {
        key: Vec<u8>,
    },
    Insert {
        key: Vec<u8>,
        value: Vec<u8>,
    },
    Update {
        key: Vec<u8>,
        value: Vec<u8>,
    },
    Upsert {
        key: Vec<u8>,
        value: Vec<u8>,
    },
    Remove {
        key: Vec<u8>,
    },
    CompareExchange {
        key: Vec<u8>,
        expected: Option<Vec<u8>>,
        new: Option<Vec<u8>>,
    },
    Scan {
        from: Bound<Vec<u8>>,
        to: Bound<Vec<u8>>,
        reverse: bool,
        limit: usize,
    },
    /// Are you there?
    Hello,
    /// The map is of this epoch by now; it may give you something.
    Learn {
        epoch: u64,
    },
    /// Give the keys of `(low, high]`, which are yours, to another.
    Give {
        low: Option<Vec<u8>>,
        high: Option<Vec<u8>>,
        to: Incarnation,
    },
    /// Give a part of what you have to another, about half of its load.
    Share {
        to: Incarnation,
    },
    /// Asks how much is done on the receiver's partitions; `decay` forgets half of it.
    Load {
        decay: bool,
    },
}

impl Op {
    /// The request that carries `change`.
    pub(crate) fn of(change: &Change<'_>) -> Self {
        let key = change.key.to_vec();
        let value = change.value.map(<[u8]>::to_vec);
        match (change.kind, value) {
            (OpKind::Insert, Some(value)) => Op::Insert { key, value },
            (OpKind::Update, Some(value)) => Op::Update { key, value },
            (OpKind::Upsert, Some(value)) => Op::Upsert { key, value },
            (OpKind::Remove, None) => Op::Remove { key },
            (_, new) => {
                let expected = change.expected.flatten().map(<[u8]>::to_vec);
                Op::CompareExchange { key, expected, new }
            }
        }
    }

    /// The change that it carries; `None` if it carries none.
    pub(crate) fn change(&self) -> Option<Change<'_>> {
        Some(match self {
            Op::Insert { key, value } => Change::insert(key, value),
            Op::Update { key, value } => Change::update(key, value),
            Op::Upsert { key, value } => Change::upsert(key, value),
            Op::Remove { key } => Change::remove(key),
            Op::CompareExchange { key, expected, new } => {
                Change::compare_exchange(key, expected.as_deref(), new.as_deref())
            }
            _ => return None,
        })
    }

    /// Returns whether it changes nothing, so that it may be done again.
    pub fn is_read(&self) -> bool {
        matches!(
            self,
            Op::Get { .. } | Op::Scan { .. } | Op::Hello | Op::Learn { .. } | Op::Load { .. }
        )
    }

    /// Returns whether it moves a range, which takes long.
    pub(crate) fn moves(&self) -> bool {
        matches!(self, Op::Give { .. } | Op::Share { .. })
    }

    /// The kind of operation to which its costs are charged.
    pub(crate) fn kind(&self) -> OpKind {
        match self {
            Op::Get { .. } => OpKind::Get,
            Op::Scan { .. } => OpKind::Scan,
            other => other.change().map_or(OpKind::Maintenance, |change| change.kind),
        }
    }
}

/// The outcome of an [`Op`].
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
