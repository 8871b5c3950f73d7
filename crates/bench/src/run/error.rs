//! Bench errors: say why a bench failed.

use std::io;

use farleaf_fabric::{FabricError, sim::SimError};
use farleaf_index::IndexError;
use farleaf_pool::PoolError;
use thiserror::Error;

use crate::{
    config::BenchConfigError, distribution::DistributionError, keys::KeyError, lines::LinesError,
    units::human_bytes, workload::WorkloadError,
};

/// Failure of a bench. A single operation that fails is counted instead, in
/// [`RunReport::errors`](crate::RunReport::errors).
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BenchError {
    /// The configuration makes no sense.
    #[error(transparent)]
    Config(#[from] BenchConfigError),
    /// The file of keys cannot be used.
    #[error(transparent)]
    Lines(#[from] LinesError),
    /// The file of keys is shorter than the load.
    #[error("{keys} keys to load, but the file has {lines}: load at most that many")]
    TooFewLines {
        /// Keys to load.
        keys: u64,
        /// Distinct lines.
        lines: u64,
    },
    /// An item has no key.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The workload makes no sense.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// The workload's numbers are out of range.
    #[error(transparent)]
    Distribution(#[from] DistributionError),
    /// The engine has no table of such keys, values and nodes.
    #[error("no such table: {0}")]
    Table(#[source] IndexError),
    /// A compute server cannot open the table with these options.
    #[error("cannot open the table: {0}")]
    Open(#[source] IndexError),
    /// A share of the data makes no cache.
    #[error("a cache of {share} of a table of {table} is too small: {source}")]
    SmallShare {
        /// The share.
        share: String,
        /// Bytes of the table in the pool.
        table: String,
        /// The engine's error.
        source: IndexError,
    },
    /// The memory servers could not be set up.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The memory servers' addresses are missing.
    #[error("the fabric tcp needs memory servers: say where they are")]
    NoCluster,
    /// The bench could not drop its table from a pool that stays.
    #[error("the table of the bench is still in the pool, drop it by hand: {0}")]
    Clear(#[source] IndexError),
    /// The pool could not be formatted or joined.
    #[error("cannot set up a pool of {}: {source}", human_bytes(*.pool_bytes))]
    Pool {
        /// Bytes of all memory servers together.
        pool_bytes: u64,
        /// The pool's error.
        source: PoolError,
    },
    /// The load does not fit.
    #[error(
        "a pool of {} is too small for the load: give more with --pool-bytes ({source})",
        human_bytes(*.pool_bytes)
    )]
    PoolTooSmall {
        /// Bytes of all memory servers together.
        pool_bytes: u64,
        /// The engine's error.
        source: IndexError,
    },
    /// The load failed.
    #[error("the load failed: {0}")]
    Load(#[source] IndexError),
    /// The load did not do its work: the first fault.
    #[error("the load went wrong: {0}")]
    WrongLoad(String),
    /// The table could not be walked at the end.
    #[error("the check at the end failed: {0}")]
    Verify(#[source] IndexError),
    /// The walk at the end found the table damaged.
    #[error("the table is damaged in {count} places, the first: {first}")]
    Damaged {
        /// The number of damaged places.
        count: usize,
        /// The first.
        first: String,
    },
    /// The simulation cannot go on.
    #[error(transparent)]
    Sim(#[from] SimError),
    /// A thread could not be started.
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
    /// Another thread failed, and reports the cause.
    #[error("another thread failed")]
    Aborted,
}
