//! Line keys: take the lines of a file as keys.

use std::{
    collections::HashSet,
    fs, io,
    path::{Path, PathBuf},
};

use thiserror::Error;

/// The longest key that an engine takes.
const LINE_BYTES_MAX: usize = 1024;

/// The distinct lines of a file, in the order in which they first come.
///
/// A line ends at `\n`, with a `\r` before it taken off; any other byte belongs to the key. Empty
/// lines are left out. Memory: the distinct lines and 8 bytes for each; while loading, the whole
/// file and about 50 bytes for each.
#[derive(Debug)]
pub struct LineKeys {
    /// Line `i` is `bytes[starts[i]..starts[i + 1]]`.
    bytes: Vec<u8>,
    starts: Vec<usize>,
    duplicate_count: u64,
    empty_count: u64,
    line_bytes_max: usize,
}

impl LineKeys {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// [`LinesError`]: the file cannot be read, has no line that is not empty, or has one longer
    /// than a key may be (1024 bytes).
    pub fn open(path: &Path) -> Result<Self, LinesError> {
        let bytes =
            fs::read(path).map_err(|source| LinesError::Read { path: path.to_owned(), source })?;
        Self::from_bytes(bytes, path)
    }

    /// Takes `bytes` for the contents of the file at `path`, which is named in errors only.
    ///
    /// # Errors
    /// As [`LineKeys::open`].
    pub fn from_bytes(mut bytes: Vec<u8>, path: &Path) -> Result<Self, LinesError> {
        let mut kept: Vec<(usize, usize)> = Vec::new();
        let mut duplicate_count = 0;
        let mut empty_count = 0;
        let mut seen: HashSet<&[u8]> = HashSet::new();
        let mut start = 0;
        // The rest after the last line end is a line, unless it is empty.
        for (index, piece) in bytes.split_inclusive(|byte| *byte == b'\n').enumerate() {
            let line = piece.strip_suffix(b"\n").unwrap_or(piece);
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.len() > LINE_BYTES_MAX {
                return Err(LinesError::TooLong {
                    path: path.to_owned(),
                    line_number: index + 1,
                    line_bytes: line.len(),
                });
            }
            if line.is_empty() {
                empty_count += 1;
            } else if seen.insert(line) {
                kept.push((start, line.len()));
            } else {
                duplicate_count += 1;
            }
            start += piece.len();
        }
        drop(seen);
        if kept.is_empty() {
            return Err(LinesError::NoLines { path: path.to_owned() });
        }

        // Lines only move towards the front, so that none is overwritten before it is moved.
        let mut starts = Vec::with_capacity(kept.len() + 1);
        let mut line_bytes_max = 0;
        let mut end = 0;
        for (start, line_bytes) in kept {
            starts.push(end);
            bytes.copy_within(start..start + line_bytes, end);
            end += line_bytes;
            line_bytes_max = line_bytes_max.max(line_bytes);
        }
        starts.push(end);
        bytes.truncate(end);
        bytes.shrink_to_fit();
        Ok(Self { bytes, starts, duplicate_count, empty_count, line_bytes_max })
    }

    /// The number of distinct lines, at least one.
    pub fn count(&self) -> u64 {
        (self.starts.len() - 1) as u64
    }

    /// Line `index`, counting distinct lines from 0.
    pub fn line(&self, index: u64) -> Option<&[u8]> {
        let index = usize::try_from(index).ok()?;
        let start = *self.starts.get(index)?;
        let end = *self.starts.get(index + 1)?;
        Some(&self.bytes[start..end])
    }

    /// The number of lines left out because they had come before.
    pub fn duplicate_count(&self) -> u64 {
        self.duplicate_count
    }

    /// The number of lines left out because they were empty.
    pub fn empty_count(&self) -> u64 {
        self.empty_count
    }

    /// The longest line in bytes.
    pub fn line_bytes_max(&self) -> usize {
        self.line_bytes_max
    }

    /// All distinct lines together, in bytes.
    pub fn total_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }
}

/// A file whose lines cannot be keys.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LinesError {
    /// The file cannot be read.
    #[error("cannot read keys from {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Every line is empty, or there is none.
    #[error("{} holds no keys: every line is empty", path.display())]
    NoLines {
        /// The file.
        path: PathBuf,
    },
    /// A line is longer than a key may be.
    #[error("{} line {line_number}: a key of {line_bytes} bytes is too long (at most {})",
        path.display(), LINE_BYTES_MAX)]
    TooLong {
        /// The file.
        path: PathBuf,
        /// Number of the line, counting from 1.
        line_number: usize,
        /// Its length in bytes.
        line_bytes: usize,
    },
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn read(text: &[u8]) -> Result<LineKeys, LinesError> {
        LineKeys::from_bytes(text.to_vec(), Path::new("keys.txt"))
    }

    fn all(keys: &LineKeys) -> Vec<&[u8]> {
        (0..keys.count()).map(|index| keys.line(index).unwrap()).collect()
    }

    #[test]
    fn distinct_lines_stay_in_their_order() {
        let keys = read(b"pear\r\napple\n\npear\nfig\napple\n\r\n\xff\x00\nlast").unwrap();
        let expected: [&[u8]; 5] = [b"pear", b"apple", b"fig", b"\xff\x00", b"last"];
        assert_eq!(all(&keys), expected);
        assert_eq!((keys.duplicate_count(), keys.empty_count()), (2, 2));
        assert_eq!((keys.line_bytes_max(), keys.total_bytes()), (5, 18));
        assert_eq!(keys.line(5), None);
        assert_eq!(keys.line(u64::MAX), None);
    }

    #[test]
    fn many_lines_stay_whole_when_moved() {
        let mut rng = fastrand::Rng::with_seed(1);
        let mut text = Vec::new();
        let mut expected: Vec<Vec<u8>> = Vec::new();
        for _ in 0..5000 {
            let line = format!("{}", rng.u32(0..3000)).into_bytes();
            text.extend_from_slice(&line);
            text.push(b'\n');
            if !expected.contains(&line) {
                expected.push(line);
            }
        }
        let keys = read(&text).unwrap();
        assert_eq!(all(&keys), expected);
        assert_eq!(keys.duplicate_count() as usize, 5000 - expected.len());
    }

    #[test]
    fn files_without_keys_are_refused() {
        for text in [&b""[..], b"\n", b"\n\r\n\n"] {
            let message = read(text).unwrap_err().to_string();
            assert_eq!(message, "keys.txt holds no keys: every line is empty");
        }
    }

    #[test]
    fn long_lines_are_named() {
        let mut text = b"short\n".to_vec();
        text.extend([b'x'; LINE_BYTES_MAX]);
        assert_eq!(read(&text).unwrap().line_bytes_max(), LINE_BYTES_MAX);
        text.push(b'x');
        let message = read(&text).unwrap_err().to_string();
        assert_eq!(message, "keys.txt line 2: a key of 1025 bytes is too long (at most 1024)");
    }

    #[test]
    fn files_are_read_and_missing_ones_are_named() {
        let path = std::env::temp_dir().join(format!("farleaf-lines-{}", std::process::id()));
        fs::write(&path, "one\ntwo\n").unwrap();
        let keys = LineKeys::open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        assert_eq!(all(&keys), [&b"one"[..], b"two"]);

        let error = LineKeys::open(&path).unwrap_err();
        assert_eq!(error.to_string(), format!("cannot read keys from {}", path.display()));
        assert!(std::error::Error::source(&error).is_some());
    }
}
