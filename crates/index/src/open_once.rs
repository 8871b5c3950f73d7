//! Open once: what a compute server keeps open of a table is made by one of its tasks.

use std::any::Any;
use std::sync::Arc;

use farleaf_fabric::GlobalAddr;
use farleaf_pool::Session;

use crate::IndexError;
use crate::retry::{Attempts, RetryPolicy};

/// Attempts at a table that another task of the compute server is opening.
const OPENING: RetryPolicy = RetryPolicy {
    at_once: 0,
    yielding: 0,
    most: 20_000,
    longest_ns: 1_000_000,
    gave_up: "opening a table that another thread of this compute server is opening: try again",
};

/// Returns what the compute server keeps open at `at`, or opens and keeps it. Tasks that come while another one opens it
/// wait for that one, and open it themselves if it fails.
///
/// Cost: that of `open` for the first task, no remote operation for the others.
///
/// # Errors
/// Those of `open`; `Unavailable` if another task takes very long.
pub async fn open_once<T: Any + Send + Sync>(
    session: &Session,
    at: GlobalAddr,
    open: impl AsyncFnOnce() -> Result<T, IndexError>,
) -> Result<Opened<T>, IndexError> {
    let (pool, mut attempts) = (session.pool(), Attempts::new(&OPENING));
    loop {
        let opening = pool.opening(at);
        // Asked for after the right to open it: it may have been kept in between.
        if let Some(kept) = pool.kept(at) {
            return Ok(Opened { thing: kept, is_first: false });
        }
        if let Some(_opening) = opening {
            let thing = pool.keep(at, Arc::new(open().await?));
            return Ok(Opened { thing, is_first: true });
        }
        attempts.again(session).await?;
    }
}

/// The object that a compute server keeps open of a table.
#[derive(Debug)]
pub struct Opened<T> {
    /// The object, shared by all tasks of the compute server.
    pub thing: Arc<T>,
    /// This task has opened it.
    pub is_first: bool,
}
