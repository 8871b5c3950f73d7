//! History: clients' calls and answers, with times; `docs/history-format.md` specifies its files.

mod encode;
mod error;
mod files;
mod parse;
#[cfg(test)]
mod tests;

use std::ops::Bound;

pub use error::{HistoryError, LineFault};
pub use files::{HistoryWriter, LINE_BYTES_MAX, OperationNumber, merge, read_jsonl, write_jsonl};

/// A client's request to a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
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

/// The answer that a client received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The answer of a get: the value, if the key was present.
    Value(Option<Vec<u8>>),
    /// The answer of insert and update: true if it was done. Of upsert: true if the key was absent.
    /// Of remove: true if it was present.
    Flag(bool),
    /// The answer of a compare-exchange: success, and the content of the key before.
    Exchanged {
        /// True if the key was changed.
        done: bool,
        /// Content of the key before.
        held: Option<Vec<u8>>,
    },
    /// The answer of a scan, in its order.
    Pairs(Vec<(Vec<u8>, Vec<u8>)>),
    /// It failed and certainly did nothing.
    Nothing,
}

/// One operation of one client. A client has one operation under way at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The client.
    pub client: u32,
    /// The request.
    pub call: Call,
    /// Time of the request, in nanoseconds.
    pub from_ns: u64,
    /// Time and content of the answer. `None`: it never came, or the outcome is unknown. The
    /// operation may have happened at any moment after `from_ns`, or never.
    pub answer: Option<(u64, Answer)>,
}

/// A run as its clients saw it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// Content of the table at the start, in order of keys.
    pub initial: Vec<(Vec<u8>, Vec<u8>)>,
    /// In any order.
    pub events: Vec<Event>,
}
