//! Test helpers: shared by the tests of the public API.
#![allow(dead_code, reason = "every test program uses a part")]
#![allow(clippy::unwrap_used)]

use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use crate::OVER_NETWORK;
use farleaf::{Builder, Farleaf, Result, Table, TableOptions};
use farleaf_harness::LoopbackServers;

/// A pool of 64 MiB in this process's memory, or on a network.
pub(crate) fn small() -> Farleaf {
    small_with(Farleaf::builder())
}

/// The same with more options.
pub(crate) fn small_with(builder: Builder) -> Farleaf {
    if OVER_NETWORK {
        let servers = self::servers(2, 32 << 20);
        let db = builder.create(true).open(&servers.uri()).unwrap();
        // They go with this process.
        std::mem::forget(servers);
        return db;
    }
    builder.pool_bytes(64 << 20).open("mem:").unwrap()
}

/// Memory servers of this process. Nobody leaves, however busy this machine is.
pub(crate) fn servers(count: usize, region_bytes: u64) -> LoopbackServers {
    LoopbackServers::start(count, region_bytes, LoopbackServers::LEASE_LONG).unwrap()
}

/// A pool that several open: in a folder, or on a network.
pub(crate) struct SharedPool {
    folder: Scratch,
    servers: Option<LoopbackServers>,
}

impl SharedPool {
    /// Those who are silent are taken for dead after this long, on a network.
    const LEASE: Duration = Duration::from_secs(3);

    pub(crate) fn new(name: &str) -> Self {
        let servers =
            OVER_NETWORK.then(|| LoopbackServers::start(2, 32 << 20, Self::LEASE).unwrap());
        SharedPool { folder: Scratch::new(name), servers }
    }

    pub(crate) fn uri(&self) -> String {
        self.servers.as_ref().map_or_else(|| self.folder.uri(), LoopbackServers::uri)
    }

    /// Makes or opens the pool.
    pub(crate) fn open(&self) -> Farleaf {
        Farleaf::builder().create(true).pool_bytes(64 << 20).open(&self.uri()).unwrap()
    }

    /// Returns how often a test repeats what takes long on a network.
    pub(crate) fn rounds(&self, most: u32) -> u32 {
        if self.servers.is_some() { 1 } else { most }
    }

    /// Waits until those count as dead who have just been killed.
    pub(crate) fn await_death(&self) {
        if self.servers.is_some() {
            thread::sleep(Self::LEASE + Self::LEASE / 4);
        }
    }
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
