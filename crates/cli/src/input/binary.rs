//! Binary format: `u32` key length, key, `u32` value length, value, least byte first.
//!
//! Nothing marks where a record begins, so that after an error there is no going on.

use std::io::{BufRead, Read};

use super::{Fault, InputError, RECORD_BYTES_MAX, Record, RecordReader};

/// Reads records back to back.
pub(super) struct BinaryReader {
    input: Box<dyn BufRead + Send>,
}

impl BinaryReader {
    pub(super) fn new(input: Box<dyn BufRead + Send>) -> Self {
        BinaryReader { input }
    }

    /// Reads a part of `bytes` bytes; `false` if the input had ended before it.
    fn read_part(
        &mut self,
        part: &'static str,
        bytes: u32,
        into: &mut Vec<u8>,
    ) -> Result<bool, Fault> {
        into.clear();
        let expected = u64::from(bytes);
        // The memory taken follows what comes, not what a length promises.
        let found = (&mut self.input).take(expected).read_to_end(into).map_err(Fault::Io)? as u64;
        if found == expected {
            Ok(true)
        } else if found == 0 && part == KEY_LENGTH {
            Ok(false)
        } else {
            Err(Fault::Truncated { part, found, expected })
        }
    }

    fn read_length(&mut self, part: &'static str, of: &'static str) -> Result<Option<u32>, Fault> {
        let mut bytes = Vec::with_capacity(4);
        if !self.read_part(part, 4, &mut bytes)? {
            return Ok(None);
        }
        let mut length = [0; 4];
        length.copy_from_slice(&bytes);
        let length = u32::from_le_bytes(length);
        if length as usize > RECORD_BYTES_MAX {
            let (bytes, limit) = (length.into(), RECORD_BYTES_MAX);
            return Err(Fault::Length { part: of, bytes, limit });
        }
        Ok(Some(length))
    }

    fn read_record(&mut self, record: &mut Record) -> Result<bool, Fault> {
        let Some(key_bytes) = self.read_length(KEY_LENGTH, "key")? else { return Ok(false) };
        self.read_part("key", key_bytes, &mut record.key)?;
        let value_bytes = self.read_length("value length", "value")?.unwrap_or_default();
        self.read_part("value", value_bytes, &mut record.value)?;
        Ok(true)
    }
}

/// The only part before which the input may end.
const KEY_LENGTH: &str = "key length";

impl RecordReader for BinaryReader {
    fn read(&mut self, record: &mut Record) -> Result<bool, InputError> {
        record.number += 1;
        record.line = None;
        self.read_record(record).map_err(|fault| InputError { fatal: true, ..record.error(fault) })
    }
}

/// Writes a record as [`BinaryReader`] reads it.
#[cfg(test)]
pub(super) fn write_record(key: &[u8], value: &[u8], out: &mut Vec<u8>) {
    for part in [key, value] {
        out.extend_from_slice(&(part.len() as u32).to_le_bytes());
        out.extend_from_slice(part);
    }
}
