//! CSV format: columns between commas, quoted as RFC 4180 says, by the crate `csv`.
//!
//! The crate takes a quoted field that never ends for one that ends with the input, however long
//! that is. Two things around it make an error of that, at a bounded cost: [`Bounded`] counts the
//! bytes of a record, and puts a last line behind the input, which must come out by itself.

use std::io::{self, BufRead, Read};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use csv::{ByteRecord, Reader, ReaderBuilder};
use farleaf_index::sync::lock;

use super::columns::{Columns, Picker};
use super::{Fault, InputError, RECORD_BYTES_MAX, Record, RecordReader};

/// Stands behind the input, where it is told from the same line inside by its place.
const END: &[u8] = b"\nend\n";

/// One record a line, or more lines where fields hold line ends.
pub(super) struct CsvReader {
    input: Reader<Bounded>,
    state: Arc<CsvState>,
    picker: Picker,
    fields: ByteRecord,
    ended: bool,
}

/// State that the reader and its input share.
struct CsvState {
    /// Bytes up to which the input may be read before a record must have ended.
    read_max: AtomicU64,
    /// Bytes of the input, once it has ended; `u64::MAX` before.
    length: AtomicU64,
    /// The bytes that were read last, and the place where they begin.
    chunk: Mutex<(u64, Vec<u8>)>,
}

/// The input, bounded by [`CsvState::read_max`] and followed by [`END`].
struct Bounded {
    input: Box<dyn BufRead + Send>,
    state: Arc<CsvState>,
    read: u64,
    end: &'static [u8],
}

/// The error of [`Bounded`] beyond its bound.
#[derive(Debug, thiserror::Error)]
#[error("the record is too long")]
struct TooLong;

impl CsvReader {
    pub(super) fn new(input: Box<dyn BufRead + Send>, columns: Columns) -> Self {
        let state = Arc::new(CsvState {
            read_max: 0.into(),
            length: u64::MAX.into(),
            chunk: Mutex::default(),
        });
        let bounded = Bounded { input, state: Arc::clone(&state), read: 0, end: END };
        let input = ReaderBuilder::new().has_headers(false).flexible(true).from_reader(bounded);
        let (picker, fields) = (Picker::new(columns), ByteRecord::new());
        CsvReader { input, state, picker, fields, ended: false }
    }

    /// Reads fields; `false` at the end.
    fn read_fields(&mut self) -> Result<bool, (Fault, bool)> {
        let start = self.input.position().byte();
        self.state.read_max.store(start + RECORD_BYTES_MAX as u64, Ordering::Relaxed);
        match self.input.read_byte_record(&mut self.fields) {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            Err(error) => return Err((fault(error), true)),
        }
        // A last record without a line end takes that of `END`; what reaches further is the last
        // line itself, or a quoted field that has swallowed it.
        let length = self.state.length.load(Ordering::Relaxed);
        if self.input.position().byte() <= length.saturating_add(1) {
            return Ok(true);
        }
        match self.fields.iter().next_back() {
            Some(field) if field.ends_with(END) => Err((Fault::OpenQuote, true)),
            _ => Ok(false),
        }
    }
}

impl CsvReader {
    /// The line on which the record just read begins. The crate knows where it ended; where it
    /// began, the crate confuses with the end of the one before, empty lines and `\n` of `\r\n`
    /// included.
    fn line(&self) -> u64 {
        let end = self.input.position();
        let inside: usize = self.fields.iter().map(count_line_ends).sum();
        let after = u64::from(self.state.byte_before(end.byte()) == Some(b'\n'));
        end.line().saturating_sub(inside as u64 + after).max(1)
    }
}

fn count_line_ends(field: &[u8]) -> usize {
    field.iter().filter(|byte| **byte == b'\n').count()
}

impl CsvState {
    /// The byte that ends at `place`, which was read lately.
    fn byte_before(&self, place: u64) -> Option<u8> {
        let chunk = lock(&self.chunk);
        let at = place.checked_sub(chunk.0 + 1)?;
        chunk.1.get(usize::try_from(at).ok()?).copied()
    }

    fn keep(&self, begin: u64, bytes: &[u8]) {
        let mut chunk = lock(&self.chunk);
        chunk.0 = begin;
        chunk.1.clear();
        chunk.1.extend_from_slice(bytes);
    }
}

impl RecordReader for CsvReader {
    fn read(&mut self, record: &mut Record) -> Result<bool, InputError> {
        record.number += 1;
        loop {
            if self.ended {
                return Ok(false);
            }
            let before = self.input.position().line();
            let read = self.read_fields();
            // An open quote, or an error, has read lines beyond its own.
            let line = if matches!(read, Ok(true)) { self.line() } else { before };
            record.line = Some(line);
            match read {
                Ok(true) => {}
                Ok(false) => {
                    self.ended = true;
                    return Ok(false);
                }
                Err((fault, fatal)) => {
                    self.ended = fatal;
                    return Err(InputError { fatal, ..record.error(fault) });
                }
            }
            if self.picker.pick(|| self.fields.iter(), record)? {
                return Ok(true);
            }
        }
    }
}

impl Read for Bounded {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.read >= self.state.read_max.load(Ordering::Relaxed) {
            return Err(io::Error::other(TooLong));
        }
        let count = self.input.read(buffer)?;
        if count > 0 || buffer.is_empty() {
            self.state.keep(self.read, &buffer[..count]);
            self.read += count as u64;
            return Ok(count);
        }
        self.state.length.store(self.read, Ordering::Relaxed);
        let count = self.end.read(buffer)?;
        if count > 0 {
            self.state.keep(self.read, &buffer[..count]);
        }
        Ok(count)
    }
}

fn fault(error: csv::Error) -> Fault {
    match error.into_kind() {
        csv::ErrorKind::Io(error) if error.get_ref().is_some_and(|inner| inner.is::<TooLong>()) => {
            Fault::TooLong { limit: RECORD_BYTES_MAX }
        }
        csv::ErrorKind::Io(error) => Fault::Io(error),
        other => Fault::Io(io::Error::other(format!("{other:?}"))),
    }
}
