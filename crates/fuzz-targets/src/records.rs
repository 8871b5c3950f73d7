//! Record target: files for `farleaf load` in the formats lines, tsv, csv and binary.
//!
//! Input: format, header, columns, size of the reader's buffer, the file.

use std::io::{BufReader, Cursor};

use farleaf_cli::input::{self, Columns, InputFormat, RECORD_BYTES_MAX, Record, ValueSource};

use crate::bytes::Bytes;

pub(crate) fn run(data: &[u8]) {
    let mut bytes = Bytes::new(data);
    let (format, options) = (bytes.u8(), bytes.u8());
    let format = match format % 4 {
        0 => InputFormat::Lines,
        1 => InputFormat::Tsv,
        2 => InputFormat::Csv,
        _ => InputFormat::Binary,
    };
    let column = |selector: u8| {
        let names = ["1", "2", "0", "3", "a", "b", "", "18446744073709551615"];
        names[usize::from(selector % 8)].parse().unwrap_or_else(|never| match never {})
    };
    let value = match options >> 1 & 3 {
        0 => ValueSource::Constant(b"value".to_vec()),
        1 => ValueSource::LineNumber { as_u64: options & 8 != 0 },
        _ => ValueSource::Column(column(bytes.u8())),
    };
    let columns = Columns { key: column(options >> 4), value, header: options & 1 != 0 };
    // A small buffer puts its ends everywhere.
    let buffer = 1 + usize::from(bytes.u8() % 16);
    let file = bytes.rest();
    let lines = file.iter().filter(|byte| matches!(byte, b'\n' | b'\r')).count() + 1;
    let file = BufReader::with_capacity(buffer, Cursor::new(file.to_vec()));
    let mut reader = input::open(format, Box::new(file), columns);
    let mut record = Record::default();
    // Every turn takes at least a byte.
    for _ in 0..=data.len() + 1 {
        match reader.read(&mut record) {
            Ok(true) => {
                assert!(record.key.len() <= RECORD_BYTES_MAX);
                assert!(record.value.len() <= RECORD_BYTES_MAX);
                if let Some(line) = record.line {
                    assert!((1..=lines as u64).contains(&line), "line {line} of {lines}");
                }
            }
            Ok(false) => {
                assert!(reader.empty_lines() <= lines as u64);
                return;
            }
            Err(error) => {
                assert!(!error.to_string().is_empty());
                if error.fatal {
                    return;
                }
            }
        }
    }
    panic!("reading does not come to an end");
}
