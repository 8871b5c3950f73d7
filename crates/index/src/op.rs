//! Op: an operation of a table with its keys and values, for messages, histories and tests.

use std::ops::Bound;

use farleaf_fabric::OpKind;

use crate::change::Change;

/// An operation of a table. Its fields are those of [`crate::Index`]'s methods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// The value of a key.
    Get {
        /// The key.
        key: Vec<u8>,
    },
    /// Adds an absent key.
    Insert {
        /// The key.
        key: Vec<u8>,
        /// Its value.
        value: Vec<u8>,
    },
    /// Changes a present key.
    Update {
        /// The key.
        key: Vec<u8>,
        /// Its new value.
        value: Vec<u8>,
    },
    /// Adds or changes a key.
    Upsert {
        /// The key.
        key: Vec<u8>,
        /// Its new value.
        value: Vec<u8>,
    },
    /// Removes a key.
    Remove {
        /// The key.
        key: Vec<u8>,
    },
    /// Changes a key if it holds the expected value; `None` stands for an absent key.
    CompareExchange {
        /// The key.
        key: Vec<u8>,
        /// Content that the key must have.
        expected: Option<Vec<u8>>,
        /// Content that the key gets.
        new: Option<Vec<u8>>,
    },
    /// The pairs of a range.
    Scan {
        /// Lower end.
        from: Bound<Vec<u8>>,
        /// Upper end.
        to: Bound<Vec<u8>>,
        /// From the largest key down.
        reverse: bool,
        /// The most pairs to return.
        limit: usize,
    },
}

impl Op {
    /// The operation that does `change`.
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

    /// Its change; `None` for a get and a scan.
    pub fn change(&self) -> Option<Change<'_>> {
        Some(match self {
            Op::Insert { key, value } => Change::insert(key, value),
            Op::Update { key, value } => Change::update(key, value),
            Op::Upsert { key, value } => Change::upsert(key, value),
            Op::Remove { key } => Change::remove(key),
            Op::CompareExchange { key, expected, new } => {
                Change::compare_exchange(key, expected.as_deref(), new.as_deref())
            }
            Op::Get { .. } | Op::Scan { .. } => return None,
        })
    }

    /// The key; `None` for a scan.
    pub fn key(&self) -> Option<&[u8]> {
        match self {
            Op::Get { key } => Some(key),
            Op::Scan { .. } => None,
            change => change.change().map(|change| change.key),
        }
    }

    /// Returns whether it changes nothing, so that it may be done again.
    pub fn is_read(&self) -> bool {
        matches!(self, Op::Get { .. } | Op::Scan { .. })
    }

    /// The kind of operation to which its costs are charged.
    pub fn kind(&self) -> OpKind {
        match self.change() {
            Some(change) => change.kind,
            None if matches!(self, Op::Get { .. }) => OpKind::Get,
            None => OpKind::Scan,
        }
    }
}
