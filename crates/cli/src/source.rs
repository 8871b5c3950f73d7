//! Files: reads records from a file or standard input, counts its bytes, and makes files for results.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::compressed::Decompressed;
use crate::errors::Failure;

const BUFFER_BYTES: usize = 256 << 10;

/// An input that is open.
pub(crate) struct Source {
    /// For messages.
    pub(crate) name: String,
    /// Its bytes, decompressed.
    pub(crate) input: Box<dyn BufRead + Send>,
    /// Bytes in all, if known.
    pub(crate) length: Option<u64>,
    /// Bytes read so far, before decompression.
    pub(crate) read: Arc<AtomicU64>,
}

impl Source {
    /// Opens a file; `-` and nothing are standard input.
    pub(crate) fn open(path: Option<&Path>) -> Result<Source, Failure> {
        let read = Arc::new(AtomicU64::new(0));
        let Some(path) = path.filter(|path| *path != "-") else {
            let input = Box::new(Decompressed::new(Counted::new(io::stdin(), &read)));
            return Ok(Source { name: "standard input".to_owned(), input, length: None, read });
        };
        let unreadable = |error| Failure::unreadable(path.display(), error);
        let file = File::open(path).map_err(unreadable)?;
        let metadata = file.metadata().map_err(unreadable)?;
        if metadata.is_dir() {
            return Err(unreadable(io::Error::from(io::ErrorKind::IsADirectory)));
        }
        Ok(Source {
            name: path.display().to_string(),
            input: Box::new(Decompressed::new(Counted::new(file, &read))),
            length: metadata.is_file().then_some(metadata.len()),
            read,
        })
    }
}

/// Makes a file for results: before the work that they come from, so that this is not in vain.
#[cfg(feature = "lab")]
pub(crate) fn create(path: &Path) -> Result<File, Failure> {
    File::create(path).map_err(|error| Failure::unwritable(path.display(), error))
}

/// A buffer around an input that counts what was taken from it.
struct Counted<R> {
    input: BufReader<R>,
    read: Arc<AtomicU64>,
}

impl<R: Read> Counted<R> {
    fn new(input: R, read: &Arc<AtomicU64>) -> Self {
        Counted { input: BufReader::with_capacity(BUFFER_BYTES, input), read: Arc::clone(read) }
    }
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.input.read(buffer)?;
        self.read.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

impl<R: Read> BufRead for Counted<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.input.fill_buf()
    }

    fn consume(&mut self, count: usize) {
        self.input.consume(count);
        self.read.fetch_add(count as u64, Ordering::Relaxed);
    }
}
