//! Input errors: say where and why input cannot be read.

use std::error::Error;
use std::{fmt, io};

use crate::output::counted;

/// A record that cannot be used, and where it stands.
#[derive(Debug)]
pub struct InputError {
    /// The line on which the record begins, from 1; `None` if the format has no lines.
    pub line: Option<u64>,
    /// Number of the record, from 1.
    pub record: u64,
    /// The fault.
    pub fault: Fault,
    /// Nothing more can be read.
    pub fatal: bool,
}

/// Fault of a record.
#[derive(Debug)]
pub enum Fault {
    /// The system refused to read on.
    Io(io::Error),
    /// The record is longer than any that makes sense.
    TooLong {
        /// The most bytes that are read.
        limit: usize,
    },
    /// Other lines have another number of columns.
    ColumnCount {
        /// Columns of this line.
        found: usize,
        /// Columns of the first line.
        expected: usize,
    },
    /// The first line has no such column.
    NoColumn {
        /// The part that was to come from there.
        what: &'static str,
        /// The column, from 1.
        column: usize,
        /// Number of columns in the line.
        count: usize,
    },
    /// No column has that name.
    UnknownColumn {
        /// The name as it was given.
        name: String,
        /// The names there are.
        known: Vec<String>,
    },
    /// A quoted field does not end.
    OpenQuote,
    /// The input ends in the middle of a record.
    Truncated {
        /// In which part.
        part: &'static str,
        /// Bytes of the part that are there.
        found: u64,
        /// Bytes that it should have.
        expected: u64,
    },
    /// A length cannot be right.
    Length {
        /// Of what.
        part: &'static str,
        /// The length.
        bytes: u64,
        /// The longest there can be.
        limit: usize,
    },
    /// The table does not take such a key or value.
    Refused(String),
    /// The key is not larger than the one before.
    NotSorted,
}

impl InputError {
    /// The line on which the record begins, or, where there are no lines, its number; both from 1.
    pub fn position(&self) -> u64 {
        self.line.unwrap_or(self.record)
    }
}

impl fmt::Display for InputError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "line {line} (record {}): {}", self.record, self.fault),
            None => write!(f, "record {}: {}", self.record, self.fault),
        }
    }
}

impl Error for InputError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &self.fault {
            Fault::Io(source) => Some(source),
            _ => None,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Io(_) => f.write_str("cannot read on"),
            Fault::TooLong { limit } => write!(f, "longer than {limit} bytes"),
            Fault::ColumnCount { found, expected } => {
                write!(f, "{}, but the first line has {expected}", columns(*found))
            }
            Fault::NoColumn { what, column, count } => {
                let has = columns(*count);
                write!(f, "{has}, but the {what} is to come from column {column}")
            }
            Fault::UnknownColumn { name, known } => {
                let hint = farleaf_index::suggest::hint(name, known.iter().map(String::as_str));
                write!(f, "no column is named \"{name}\"{hint} (columns: {})", known.join(", "))
            }
            Fault::OpenQuote => f.write_str("a quoted field does not end"),
            Fault::Truncated { part, found, expected } => {
                write!(f, "the input ends inside the {part}: {found} of {expected} bytes are there")
            }
            Fault::Length { part, bytes, limit } => {
                write!(f, "a {part} of {bytes} bytes cannot be: at most {limit}")
            }
            Fault::Refused(why) => f.write_str(why),
            Fault::NotSorted => f.write_str("the key is not larger than the one before it"),
        }
    }
}

fn columns(count: usize) -> String {
    counted(count as u64, "column")
}
