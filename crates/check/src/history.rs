//! History: clients' calls and answers, with times; `docs/history-format.md` specifies its files.

mod encode;
mod error;
mod files;
mod parse;
#[cfg(test)]
mod tests;

pub use farleaf_index::Op;

pub use error::{HistoryError, LineFault};
pub use files::{HistoryWriter, LINE_BYTES_MAX, OperationNumber, merge, read_jsonl, write_jsonl};

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
    pub call: Op,
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
