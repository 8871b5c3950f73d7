//! History errors: say why a history file cannot be read.

/// Failure to read, write or merge a history.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HistoryError {
    /// The file cannot be read or written.
    #[error("the history's file cannot be read or written: {0}")]
    Io(#[from] std::io::Error),
    /// A line is not one of this format.
    #[error("line {line} of the history: {fault}")]
    Line {
        /// Counted from 1.
        line: u64,
        /// The fault of the line.
        fault: LineFault,
    },
    /// An operation would make a line longer than readers accept. It was not written.
    #[error("an operation would take a line of {bytes} bytes, more than {}", super::LINE_BYTES_MAX)]
    TooLong {
        /// Length of the line.
        bytes: usize,
    },
    /// A write failed earlier and may have left half a line.
    #[error("the history's file ends within a line, since an earlier write failed; begin another")]
    Broken,
    /// Histories that are merged disagree on what a key held at the start.
    #[error("the histories disagree on what key {key:02x?} held at the start")]
    InitialConflict {
        /// The key.
        key: Vec<u8>,
    },
}

/// Fault of a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LineFault {
    /// It is longer than [`super::LINE_BYTES_MAX`].
    #[error("longer than {} bytes", super::LINE_BYTES_MAX)]
    TooLong,
    /// It is no JSON.
    #[error("not JSON: {0}")]
    Json(String),
    /// It is JSON, but no object.
    #[error("not a JSON object")]
    NotObject,
    /// The first line is not a history's header.
    #[error("not the header that a history begins with: {{\"op\":\"history\",\"version\":1}}")]
    Header,
    /// The header is of another version.
    #[error("version {0} of the format, which this program does not know")]
    Version(u64),
    /// There is no such operation.
    #[error("unknown operation {0:?}")]
    UnknownOp(String),
    /// The operation has no such field.
    #[error("unknown field {0:?}")]
    UnknownField(String),
    /// The operation needs this field.
    #[error("field {0:?} is missing")]
    Missing(&'static str),
    /// The field holds something else than it should.
    #[error("field {field:?} is not {expected}")]
    Field {
        /// Its name.
        field: &'static str,
        /// Its accepted form.
        expected: &'static str,
    },
    /// The answer came before the call.
    #[error("ends at {to_ns} ns, before its begin at {from_ns} ns")]
    Times {
        /// Time of the call.
        from_ns: u64,
        /// Time of the answer.
        to_ns: u64,
    },
    /// An operation with this number was begun before.
    #[error("operation {0} was begun before")]
    BegunTwice(u64),
    /// No operation with this number is under way.
    #[error("operation {0} is not under way")]
    NotBegun(u64),
    /// A key of the initial content comes twice.
    #[error("the initial content has this key already")]
    InitialTwice,
}
