//! Lines: read one record per line, for the format `lines` and all other line formats.

use std::io::{BufRead, Read};

use super::columns::ValueSource;
use super::{Fault, InputError, RECORD_BYTES_MAX, Record, RecordReader};

/// Lines of an input, without those that are empty. A line ends at `\n`, with a `\r` before it
/// taken off; every other byte belongs to it.
pub(super) struct Lines {
    input: Box<dyn BufRead + Send>,
    line: Vec<u8>,
    /// Lines begun so far.
    line_count: u64,
    empty_count: u64,
    limit: usize,
}

impl Lines {
    pub(super) fn new(input: Box<dyn BufRead + Send>) -> Self {
        Lines { input, line: Vec::new(), line_count: 0, empty_count: 0, limit: RECORD_BYTES_MAX }
    }

    /// The next line that is not empty, and its number from 1. `record` is only named in errors.
    ///
    /// # Errors
    /// After [`Fault::TooLong`] the rest of the line has been skipped; others are fatal.
    pub(super) fn next(&mut self, record: u64) -> Result<Option<(u64, &[u8])>, InputError> {
        loop {
            self.line.clear();
            let line = self.line_count + 1;
            let error = |fault, fatal| InputError { line: Some(line), record, fault, fatal };
            let unreadable = |source| error(Fault::Io(source), true);
            // One byte beyond the limit tells a line that is too long from one that just fits.
            let mut input = (&mut self.input).take(self.limit as u64 + 2);
            if input.read_until(b'\n', &mut self.line).map_err(unreadable)? == 0 {
                return Ok(None);
            }
            self.line_count = line;
            let has_end = self.line.ends_with(b"\n");
            if has_end {
                self.line.pop();
                if self.line.ends_with(b"\r") {
                    self.line.pop();
                }
            }
            if self.line.len() > self.limit {
                if !has_end {
                    skip_line(&mut self.input).map_err(unreadable)?;
                }
                return Err(error(Fault::TooLong { limit: self.limit }, false));
            }
            if !self.line.is_empty() {
                return Ok(Some((line, &self.line)));
            }
            self.empty_count += 1;
        }
    }

    pub(super) fn empty_count(&self) -> u64 {
        self.empty_count
    }

    #[cfg(test)]
    pub(super) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }
}

/// Reads up to and with the next line end.
fn skip_line(input: &mut dyn BufRead) -> std::io::Result<()> {
    loop {
        let bytes = match input.fill_buf() {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        match bytes.iter().position(|byte| *byte == b'\n') {
            Some(end) => {
                input.consume(end + 1);
                return Ok(());
            }
            None if bytes.is_empty() => return Ok(()),
            None => {
                let count = bytes.len();
                input.consume(count);
            }
        }
    }
}

/// A key a line.
pub(super) struct LinesReader {
    pub(super) lines: Lines,
    value: ValueSource,
}

impl LinesReader {
    /// `value` is no column.
    pub(super) fn new(input: Box<dyn BufRead + Send>, value: ValueSource) -> Self {
        LinesReader { lines: Lines::new(input), value }
    }
}

impl RecordReader for LinesReader {
    fn read(&mut self, record: &mut Record) -> Result<bool, InputError> {
        record.number += 1;
        record.key.clear();
        record.value.clear();
        let next = self.lines.next(record.number)?;
        let Some((line, key)) = next else { return Ok(false) };
        record.line = Some(line);
        record.key.extend_from_slice(key);
        self.value.write(line, &mut record.value);
        Ok(true)
    }

    fn empty_lines(&self) -> u64 {
        self.lines.empty_count()
    }
}
