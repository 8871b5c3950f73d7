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
    columns: Columns,
    /// Known once there was a line.
    picker: Option<Picker>,
    record_count: u64,
}

impl TsvReader {
    pub(super) fn new(input: Box<dyn BufRead + Send>, columns: Columns) -> Self {
        TsvReader { lines: Lines::new(input), columns, picker: None, record_count: 0 }
    }
}

impl RecordReader for TsvReader {
    fn read(&mut self, record: &mut Record) -> Result<bool, InputError> {
        self.record_count += 1;
        record.number = self.record_count;
        loop {
            let next = self.lines.next(self.record_count)?;
            let Some((line, text)) = next else { return Ok(false) };
            record.line = Some(line);
            let text = if self.picker.is_none() { without_bom(text) } else { text };
            let fields = || text.split(|byte| *byte == b'\t');
            let picker = match &self.picker {
                Some(picker) => picker,
                None => {
                    let picker = Picker::new(&self.columns, fields(), line)?;
                    let picker = self.picker.insert(picker);
                    if self.columns.header {
                        continue;
                    }
                    picker
                }
            };
            picker.pick(fields(), record).map_err(|fault| record.error(fault))?;
            return Ok(true);
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
