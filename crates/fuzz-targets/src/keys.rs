//! Key file target: files of keys for the bench (`--keys lines:PATH`).

use std::collections::BTreeSet;
use std::path::Path;

use farleaf_bench::LineKeys;

pub(crate) fn run(input: &[u8]) {
    let keys = match LineKeys::from_bytes(input.to_vec(), Path::new("keys")) {
        Ok(keys) => keys,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let lines: Vec<&[u8]> = (0..keys.count()).filter_map(|index| keys.line(index)).collect();
    assert_eq!(lines.len() as u64, keys.count());
    assert_eq!(lines.iter().copied().collect::<BTreeSet<_>>().len(), lines.len(), "each once");
    assert_eq!(lines.iter().map(|line| line.len() as u64).sum::<u64>(), keys.total_bytes());
    assert_eq!(lines.iter().map(|line| line.len()).max(), Some(keys.line_bytes_max()));
    assert!(keys.line(keys.count()).is_none() && keys.line(u64::MAX).is_none());
    let all = input.split(|byte| *byte == b'\n').count() as u64;
    assert!(keys.count() + keys.duplicate_count() + keys.empty_count() <= all);
}
