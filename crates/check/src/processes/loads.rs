//! Load files: the records that `farleaf load` inserts until the driver kills it.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// Records of the file.
pub(super) const RECORDS: u32 = 20_000;

fn record(number: u32) -> (String, String) {
    (format!("key-{number:06}"), format!("value-{}", u64::from(number) * 7919))
}

/// Writes the records in order, with a tab between key and value.
pub(super) fn write(path: &Path) -> io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    for (key, value) in (0..RECORDS).map(record) {
        writeln!(file, "{key}\t{value}")?;
    }
    file.flush()
}

/// Returns whether such a record is in the file.
pub(super) fn is_record(key: &[u8], value: &[u8]) -> bool {
    let number = key.strip_prefix(b"key-").and_then(|digits| std::str::from_utf8(digits).ok());
    let Some(Ok(number)) = number.map(str::parse) else { return false };
    let (known_key, known_value) = record(number);
    number < RECORDS && known_key.as_bytes() == key && known_value.as_bytes() == value
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn records_are_known() {
        let path = std::env::temp_dir().join(format!("farleaf-loads-{}", std::process::id()));
        write(&path).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let mut count = 0;
        for line in text.lines() {
            let (key, value) = line.split_once('\t').unwrap();
            assert!(is_record(key.as_bytes(), value.as_bytes()));
            assert!(!is_record(key.as_bytes(), b"value-1"));
            count += 1;
        }
        assert_eq!(count, RECORDS);
        assert!(!is_record(b"key-020000", b"value-158380000"));
        assert!(!is_record(b"key-", b"") && !is_record(b"nonsense", b""));
    }
}
