//! Columns: choose the columns of a line that hold the key and the value.

use std::convert::Infallible;
use std::str::FromStr;

use super::{Fault, InputError, Record, write_line_number};

/// A column, by its number from 1 or by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ColumnSpec {
    /// Counted from 1; 0 is no column.
    Number(usize),
    /// As it stands in the header.
    Name(String),
}

impl FromStr for ColumnSpec {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match text.parse() {
            Ok(number) => ColumnSpec::Number(number),
            Err(_) => ColumnSpec::Name(text.to_owned()),
        })
    }
}

/// Source of values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValueSource {
    /// A column of the line.
    Column(ColumnSpec),
    /// All are the same.
    Constant(Vec<u8>),
    /// The number of the line: in decimal, or as 8 bytes with the least first.
    LineNumber {
        /// As 8 bytes.
        as_u64: bool,
    },
}

/// The parts that are taken from a line of columns.
#[derive(Clone, Debug)]
pub struct Columns {
    /// The key's column.
    pub key: ColumnSpec,
    /// The value.
    pub value: ValueSource,
    /// The first line holds names.
    pub header: bool,
}

/// [`Columns`] once the first line is known.
#[derive(Debug)]
pub(super) struct Picker {
    /// From 0.
    key: usize,
    value: Value,
    /// Columns of the first line.
    count: usize,
}

#[derive(Debug)]
enum Value {
    /// From 0.
    Column(usize),
    Constant(Vec<u8>),
    LineNumber {
        as_u64: bool,
    },
}

impl Picker {
    /// Finds the columns, where the first line is `first`.
    ///
    /// # Errors
    /// A fatal error if there is no such column.
    pub(super) fn new<'a>(
        columns: &Columns,
        first: impl Iterator<Item = &'a [u8]>,
        line: u64,
    ) -> Result<Picker, InputError> {
        let first: Vec<&[u8]> = first.collect();
        let place = |spec: &ColumnSpec, what| {
            find(spec, what, &first).map_err(|fault| InputError {
                line: Some(line),
                record: 1,
                fault,
                fatal: true,
            })
        };
        Ok(Picker {
            key: place(&columns.key, "key")?,
            value: match &columns.value {
                ValueSource::Column(spec) => Value::Column(place(spec, "value")?),
                ValueSource::Constant(value) => Value::Constant(value.clone()),
                ValueSource::LineNumber { as_u64 } => Value::LineNumber { as_u64: *as_u64 },
            },
            count: first.len(),
        })
    }

    /// Copies key and value out of `fields` into `record`, whose line is set.
    ///
    /// # Errors
    /// [`Fault::ColumnCount`].
    pub(super) fn pick<'a>(
        &self,
        fields: impl Iterator<Item = &'a [u8]>,
        record: &mut Record,
    ) -> Result<(), Fault> {
        record.key.clear();
        record.value.clear();
        let mut found = 0;
        for (column, field) in fields.enumerate() {
            if column == self.key {
                record.key.extend_from_slice(field);
            }
            if matches!(self.value, Value::Column(value) if column == value) {
                record.value.extend_from_slice(field);
            }
            found += 1;
        }
        if found != self.count {
            return Err(Fault::ColumnCount { found, expected: self.count });
        }
        match &self.value {
            Value::Column(_) => {}
            Value::Constant(value) => record.value.extend_from_slice(value),
            Value::LineNumber { as_u64 } => {
                write_line_number(record.line.unwrap_or(record.number), *as_u64, &mut record.value);
            }
        }
        Ok(())
    }
}

fn find(spec: &ColumnSpec, what: &'static str, first: &[&[u8]]) -> Result<usize, Fault> {
    match spec {
        ColumnSpec::Number(number) if (1..=first.len()).contains(number) => Ok(number - 1),
        ColumnSpec::Number(number) => {
            Err(Fault::NoColumn { what, column: *number, count: first.len() })
        }
        ColumnSpec::Name(name) => {
            first.iter().position(|field| *field == name.as_bytes()).ok_or_else(|| {
                let known = first.iter().map(|name| name.escape_ascii().to_string()).collect();
                Fault::UnknownColumn { name: name.clone(), known }
            })
        }
    }
}
