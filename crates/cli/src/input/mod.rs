//! Input: reads records from files, with one reader for each format.
//!
//! - INV-INPUT-1: whatever the input, a reader holds at most [`RECORD_BYTES_MAX`] bytes of a record
//!   (csv: and one buffer more) and never panics.
//! - INV-INPUT-2: after an error that is not fatal, the next read goes on with the next record.

mod binary;
mod columns;
mod csv;
mod delimited;
mod error;
mod lines;

use std::io::BufRead;

use clap::ValueEnum;

pub use columns::{ColumnSpec, Columns, ValueSource};
pub use error::{Fault, InputError};

/// Format of a record of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum InputFormat {
    /// A key a line; the value is empty unless --value or --value-from says otherwise
    Lines,
    /// Columns between tabs, without quotes or escapes
    Tsv,
    /// Columns between commas, quoted where needed (RFC 4180)
    Csv,
    /// Key length, key, value length, value; lengths are 32 bits, least byte first
    Binary,
}

/// The longest record that is read, in bytes: a key and a value of the longest fit many times.
pub const RECORD_BYTES_MAX: usize = 16 << 20;

/// A key and its value, and where they stood.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// The key.
    pub key: Vec<u8>,
    /// The value.
    pub value: Vec<u8>,
    /// The line on which it begins, from 1; `None` if the format has no lines.
    pub line: Option<u64>,
    /// Number of the record in the input, from 1; those with errors count.
    pub number: u64,
}

impl Record {
    /// Its place.
    pub fn place(&self) -> Place {
        Place { line: self.line, number: self.number }
    }

    /// An error of this record, after which reading can go on.
    pub fn error(&self, fault: Fault) -> InputError {
        self.place().error(fault)
    }
}

/// Place of a record in the input.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    line: Option<u64>,
    number: u64,
}

impl Place {
    /// The line on which the record begins, or, where there are no lines, its number; both from 1.
    pub fn position(self) -> u64 {
        self.line.unwrap_or(self.number)
    }

    /// An error of the record, after which reading can go on.
    pub fn error(self, fault: Fault) -> InputError {
        InputError { line: self.line, record: self.number, fault, fatal: false }
    }
}

/// Reads records one after the other.
pub trait RecordReader: Send {
    /// Reads the next record into `record`, whose memory is reused, and whose number goes on; `false` at the
    /// end.
    ///
    /// # Errors
    /// [`InputError`]; unless it is fatal, the next call reads the next record (INV-INPUT-2).
    fn read(&mut self, record: &mut Record) -> Result<bool, InputError>;

    /// Lines left out so far because they were empty, of a format that counts them.
    fn empty_lines(&self) -> u64 {
        0
    }
}

/// A reader whose first record has been read.
pub struct Peeked {
    record: Record,
    first: Option<Result<bool, InputError>>,
    rest: Box<dyn RecordReader>,
}

impl Peeked {
    /// Reads the first record of `rest`.
    pub fn new(mut rest: Box<dyn RecordReader>) -> Self {
        let mut record = Record::default();
        let first = Some(rest.read(&mut record));
        Peeked { record, first, rest }
    }

    /// The first record; `None` if the input is empty, or its first record is malformed.
    pub fn first(&self) -> Option<&Record> {
        matches!(self.first, Some(Ok(true))).then_some(&self.record)
    }

    /// Takes the error of the first record, if `takes` says so; the reader is of no use afterwards.
    pub fn take_error(&mut self, takes: impl Fn(&InputError) -> bool) -> Option<InputError> {
        match self.first.take() {
            Some(Err(error)) if takes(&error) => Some(error),
            first => {
                self.first = first;
                None
            }
        }
    }
}

impl RecordReader for Peeked {
    fn read(&mut self, record: &mut Record) -> Result<bool, InputError> {
        match self.first.take() {
            Some(first) => {
                std::mem::swap(record, &mut self.record);
                first
            }
            None => self.rest.read(record),
        }
    }

    fn empty_lines(&self) -> u64 {
        self.rest.empty_lines()
    }
}

/// Opens a reader of `format`.
pub fn open(
    format: InputFormat,
    input: Box<dyn BufRead + Send>,
    columns: Columns,
) -> Box<dyn RecordReader> {
    match format {
        InputFormat::Lines => Box::new(lines::LinesReader::new(input, columns.value)),
        InputFormat::Tsv => Box::new(delimited::TsvReader::new(input, columns)),
        InputFormat::Csv => Box::new(csv::CsvReader::new(input, columns)),
        InputFormat::Binary => Box::new(binary::BinaryReader::new(input)),
    }
}

#[cfg(test)]
mod tests;
