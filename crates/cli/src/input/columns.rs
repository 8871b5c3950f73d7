//! Columns: choose the columns of a line that hold the key and the value.

use std::convert::Infallible;
use std::str::FromStr;

use super::{Fault, InputError, Record};

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

impl ValueSource {
    /// Writes the value of a record at `position`, unless a column holds it.
    pub(super) fn write(&self, position: u64, value: &mut Vec<u8>) {
        match self {
            ValueSource::Column(_) => {}
            ValueSource::Constant(constant) => value.extend_from_slice(constant),
            ValueSource::LineNumber { as_u64: true } => {
                value.extend_from_slice(&position.to_le_bytes());
            }
            ValueSource::LineNumber { as_u64: false } => {
                value.extend_from_slice(position.to_string().as_bytes());
            }
        }
    }
}

/// Takes key and value out of lines of columns.
#[derive(Debug)]
pub(super) struct Picker {
    columns: Columns,
    /// Known once there was a line.
    places: Option<Places>,
}

/// Places of [`Columns`] in a line, from 0.
#[derive(Clone, Copy, Debug)]
struct Places {
    key: usize,
    value: Option<usize>,
    /// Columns of the first line.
    count: usize,
}

impl Picker {
    pub(super) fn new(columns: Columns) -> Self {
        Picker { columns, places: None }
    }

    /// Returns whether no line has been picked from.
    pub(super) fn is_at_first_line(&self) -> bool {
        self.places.is_none()
    }

    /// Copies key and value out of the fields of a line into `record`, whose place is set; `false` if the
    /// line is the header.
    ///
    /// # Errors
    /// [`Fault::ColumnCount`]; for the first line a fatal error if there is no such column.
    pub(super) fn pick<'a, F: Iterator<Item = &'a [u8]>>(
        &mut self,
        fields: impl Fn() -> F,
        record: &mut Record,
    ) -> Result<bool, InputError> {
        let places = match self.places {
            Some(places) => places,
            None => {
                let places =
                    self.columns.places(&fields().collect::<Vec<_>>()).map_err(|fault| {
                        InputError { record: 1, fatal: true, ..record.error(fault) }
                    })?;
                self.places = Some(places);
                if self.columns.header {
                    return Ok(false);
                }
                places
            }
        };
        record.key.clear();
        record.value.clear();
        let mut found = 0;
        for (column, field) in fields().enumerate() {
            if column == places.key {
                record.key.extend_from_slice(field);
            }
            if Some(column) == places.value {
                record.value.extend_from_slice(field);
            }
            found += 1;
        }
        if found != places.count {
            return Err(record.error(Fault::ColumnCount { found, expected: places.count }));
        }
        self.columns.value.write(record.place().position(), &mut record.value);
        Ok(true)
    }
}

impl Columns {
    /// Finds the columns, where the first line is `first`.
    fn places(&self, first: &[&[u8]]) -> Result<Places, Fault> {
        let key = find(&self.key, "key", first)?;
        let value = match &self.value {
            ValueSource::Column(spec) => Some(find(spec, "value", first)?),
            _ => None,
        };
        Ok(Places { key, value, count: first.len() })
    }
}

fn find(spec: &ColumnSpec, what: &'static str, first: &[&[u8]]) -> Result<usize, Fault> {
    match spec {
        ColumnSpec::Number(number) if (1..=first.len()).contains(number) => Ok(number - 1),
        ColumnSpec::Number(number) => {
            Err(Fault::NoColumn { what, column: *number, count: first.len() })
        }
        ColumnSpec::Name(name) => {
            let mut places = (0..first.len()).filter(|place| first[*place] == name.as_bytes());
            let Some(place) = places.next() else {
                let known = first.iter().map(|name| name.escape_ascii().to_string()).collect();
                return Err(Fault::UnknownColumn { name: name.clone(), known });
            };
            match places.next() {
                Some(again) => {
                    Err(Fault::SameColumn { name: name.clone(), columns: [place + 1, again + 1] })
                }
                None => Ok(place),
            }
        }
    }
}
