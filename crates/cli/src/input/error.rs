//! Input errors: say where and why input cannot be read.

use std::io;

use farleaf_index::suggest::hint;

use crate::output::counted;

/// A record that cannot be used, and where it stands.
#[derive(Debug, thiserror::Error)]
#[error("{}: {fault}", place(*line, *record))]
pub struct InputError {
    /// The line on which the record begins, from 1; `None` if the format has no lines.
    pub line: Option<u64>,
    /// Number of the record, from 1.
    pub record: u64,
    /// The fault.
    #[source]
    pub fault: Fault,
    /// Nothing more can be read.
    pub fatal: bool,
}

/// Fault of a record.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The system refused to read on.
    #[error("cannot read on: {0}")]
    Io(#[source] io::Error),
    /// The record is longer than any that makes sense.
    #[error("longer than {limit} bytes")]
    TooLong {
        /// The most bytes that are read.
        limit: usize,
    },
    /// Other lines have another number of columns.
    #[error("{}, but the first line has {expected}", columns(*found))]
    ColumnCount {
        /// Columns of this line.
        found: usize,
        /// Columns of the first line.
        expected: usize,
    },
    /// The first line has no such column.
    #[error("{}, but the {what} is to come from column {column}", columns(*count))]
    NoColumn {
        /// The part that was to come from there.
        what: &'static str,
        /// The column, from 1.
        column: usize,
        /// Number of columns in the line.
        count: usize,
    },
    /// No column has that name.
    #[error("{}", no_column(name, known))]
    UnknownColumn {
        /// The name as it was given.
        name: String,
        /// The names there are.
        known: Vec<String>,
    },
    /// Several columns have that name.
    #[error(
        "columns {} and {} are both named \"{name}\": choose one by its number",
        columns[0],
        columns[1]
    )]
    SameColumn {
        /// The name as it was given.
        name: String,
        /// The first two of them, from 1.
        columns: [usize; 2],
    },
    /// A quoted field does not end.
    #[error("a quoted field does not end")]
    OpenQuote,
    /// The input ends in the middle of a record.
    #[error("the input ends inside the {part}: {found} of {expected} bytes are there")]
    Truncated {
        /// In which part.
        part: &'static str,
        /// Bytes of the part that are there.
        found: u64,
        /// Bytes that it should have.
        expected: u64,
    },
    /// A length cannot be right.
    #[error("a {part} of {bytes} bytes cannot be: at most {limit}")]
    Length {
        /// Of what.
        part: &'static str,
        /// The length.
        bytes: u64,
        /// The longest there can be.
        limit: usize,
    },
    /// The table does not take such a key or value.
    #[error("{0}")]
    Refused(String),
    /// The key is not larger than the one before.
    #[error("the key is not larger than the one before it")]
    NotSorted,
}

impl InputError {
    /// The line on which the record begins, or, where there are no lines, its number; both from 1.
    pub fn position(&self) -> u64 {
        self.line.unwrap_or(self.record)
    }
}

fn place(line: Option<u64>, record: u64) -> String {
    match line {
        Some(line) => format!("line {line} (record {record})"),
        None => format!("record {record}"),
    }
}

fn no_column(name: &str, known: &[String]) -> String {
    let hint = hint(name, known.iter().map(String::as_str));
    format!("no column is named \"{name}\"{hint} (columns: {})", known.join(", "))
}

fn columns(count: usize) -> String {
    counted(count as u64, "column")
}
