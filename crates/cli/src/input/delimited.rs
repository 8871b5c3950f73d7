//! TSV format: columns between tabs, without quotes or escapes.
//!
//! So no field can hold a tab or a line end.

use std::io::BufRead;

use super::columns::{Columns, Picker};
use super::lines::Lines;
use super::{InputError, Record, RecordReader};

/// One record a line.
pub(super) struct TsvReader {
    lines: Lines,
    picker: Picker,
}

impl TsvReader {
    pub(super) fn new(input: Box<dyn BufRead + Send>, columns: Columns) -> Self {
        TsvReader { lines: Lines::new(input), picker: Picker::new(columns) }
    }
}

impl RecordReader for TsvReader {
    fn read(&mut self, record: &mut Record) -> Result<bool, InputError> {
        record.number += 1;
        loop {
            let next = self.lines.next(record.number)?;
            let Some((line, text)) = next else { return Ok(false) };
            record.line = Some(line);
            let text = if self.picker.is_at_first_line() { without_bom(text) } else { text };
            if self.picker.pick(|| text.split(|byte| *byte == b'\t'), record)? {
                return Ok(true);
            }
        }
    }

    fn empty_lines(&self) -> u64 {
        self.lines.empty_count()
    }
}

/// The first field does not begin with the mark that some programs put before UTF-8.
fn without_bom(text: &[u8]) -> &[u8] {
    text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text)
}
