//! History log: writes each call of a thread to its file before the thread makes it.
//!
//! Each line is one `write` into the page cache, where it is safe from the death of the process (not
//! of the machine: nothing is synced). The clock is the machine's monotonic one, the same for all
//! processes.

use std::fs::File;
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};

use rustix::time::{ClockId, clock_gettime};

use crate::history::{
    Answer, History, HistoryError, HistoryWriter, Op, OperationNumber, read_jsonl, write_jsonl,
};

/// Nanoseconds of the machine's monotonic clock.
pub(super) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    // The clock starts at 0 when the machine does.
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// A file that one thread writes.
#[derive(Debug)]
pub(super) struct Log(HistoryWriter<File>);

impl Log {
    /// # Errors
    /// The system's error.
    pub(super) fn create(path: &Path) -> Result<Log, HistoryError> {
        Ok(Log(HistoryWriter::new(File::create_new(path)?)?))
    }

    /// Records that `client` is about to make `call`.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn begin(
        &mut self,
        client: u32,
        call: &Op,
    ) -> Result<OperationNumber, HistoryError> {
        self.0.begin(client, call, now_ns())
    }

    /// Records the answer of an operation.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn end(
        &mut self,
        number: OperationNumber,
        answer: &Answer,
    ) -> Result<(), HistoryError> {
        // First of all, as writing takes its time.
        let to_ns = now_ns();
        self.0.end(number, to_ns, answer)
    }
}

/// Writes what the table holds before a round into its folder, so that the round's files together are a whole
/// history; the file's path.
///
/// # Errors
/// The system's error.
pub(super) fn write_initial(folder: &Path, content: &[(Vec<u8>, Vec<u8>)]) -> io::Result<PathBuf> {
    let path = folder.join("initial.jsonl");
    let history = History { initial: content.to_vec(), events: Vec::new() };
    match write_jsonl(BufWriter::new(File::create_new(&path)?), &history) {
        Ok(()) => Ok(path),
        Err(HistoryError::Io(error)) => Err(error),
        Err(error) => Err(io::Error::other(error)),
    }
}

/// Reads a file back; `None` if the process was killed before it made it.
///
/// # Errors
/// As [`read_jsonl`].
pub(super) fn read(path: &Path) -> Result<Option<History>, HistoryError> {
    match File::open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        file => Ok(Some(read_jsonl(file?)?)),
    }
}
