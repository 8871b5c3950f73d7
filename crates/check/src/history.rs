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

/// What a client asked of a table.
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
    /// Changes a key if it holds what is expected; `None` stands for an absent key.
    CompareExchange {
        /// The key.
        key: Vec<u8>,
        /// What it must hold.
        expected: Option<Vec<u8>>,
        /// What it holds then.
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
        /// At most so many.
        limit: usize,
    },
}

/// What a client was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Of a get: the value, if the key was present.
    Value(Option<Vec<u8>>),
    /// Of insert and update: whether it was done. Of upsert: whether the key was absent. Of remove:
    /// whether it was present.
    Flag(bool),
    /// Of a compare-exchange: whether it was done, and what the key held before.
    Exchanged {
        /// It was done.
        done: bool,
        /// What the key held.
        held: Option<Vec<u8>>,
    },
    /// Of a scan, in the order of the answer.
    Pairs(Vec<(Vec<u8>, Vec<u8>)>),
    /// It failed and certainly did nothing.
    Nothing,
}

/// One operation of one client. A client has one operation under way at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Who asked.
    pub client: u32,
    /// What was asked.
    pub call: Call,
    /// When, in nanoseconds.
    pub from_ns: u64,
    /// The answer, and when it came. `None`: it never came, or the outcome is unknown; the
    /// operation may have happened at any moment after `from_ns`, or never.
    pub answer: Option<(u64, Answer)>,
}

/// A run as its clients saw it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// What the table held at the start, in order of keys.
    pub initial: Vec<(Vec<u8>, Vec<u8>)>,
    /// In any order.
    pub events: Vec<Event>,
}
