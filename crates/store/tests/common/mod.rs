//! What the tests of the public API share.
#![allow(dead_code, reason = "every test program uses a part")]
#![allow(clippy::unwrap_used)]

use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use farleaf::{Farleaf, Result, Table, TableOptions};

/// A pool of 64 MiB in this process's memory.
pub(crate) fn small() -> Farleaf {
    Farleaf::builder().pool_bytes(64 << 20).open("mem:").unwrap()
}

/// A table of byte strings in a pool of its own.
pub(crate) fn table() -> Table {
    small().create_table("t", TableOptions::default()).unwrap()
}

/// A folder name that is free, and is removed at the end.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("farleaf-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Scratch(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn uri(&self) -> String {
        format!("shm:{}", self.0.display())
    }

    /// Makes or opens the pool.
    pub(crate) fn open(&self) -> Farleaf {
        Farleaf::builder().create(true).pool_bytes(64 << 20).open(&self.uri()).unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// All pairs of a range.
pub(crate) fn collect(
    range: impl Iterator<Item = Result<(Vec<u8>, Vec<u8>)>>,
) -> Vec<(Vec<u8>, Vec<u8>)> {
    range.collect::<Result<_>>().unwrap()
}

/// The key of a number, in the order of numbers.
pub(crate) fn key(number: u32) -> Vec<u8> {
    format!("key-{number:08}").into_bytes()
}

/// Waits until `is_so`, at most `limit`.
pub(crate) fn eventually(limit: Duration, what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + limit;
    while !is_so() {
        assert!(Instant::now() < end, "not within {limit:?}: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Runs a future on this thread.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}
