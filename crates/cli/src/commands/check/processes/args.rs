//! What can be said to `farleaf check processes`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueHint};
use farleaf::Engine;
use farleaf_bench::units::{Count, Size, TimeSpan};
use farleaf_check::processes::Config;

use crate::errors::Failure;
use crate::formats;

#[derive(Clone, Debug, Args)]
pub(crate) struct ProcessesArgs {
    /// Processes that do random operations at the same time
    #[arg(short, long, value_name = "COUNT", default_value_t = 3)]
    processes: u32,
    /// Client threads of each process
    #[arg(short, long, value_name = "COUNT", default_value_t = 2)]
    threads: u32,
    /// How long to go on; the round that is under way is finished
    #[arg(long, value_name = "TIME", default_value = "60s")]
    time: TimeSpan,
    /// How long clients run before their history is checked
    #[arg(long, value_name = "TIME", default_value = "2s")]
    round_time: TimeSpan,
    /// Processes killed (kill -9) a second, on average
    #[arg(long, value_name = "RATE", default_value_t = 6.0)]
    kills_per_second: f64,
    /// Processes stopped (SIGSTOP) a second, on average
    #[arg(long, value_name = "RATE", default_value_t = 6.0)]
    stops_per_second: f64,
    /// Time for which a process is stopped, at most
    #[arg(long, value_name = "TIME", default_value = "500ms")]
    stop_time_max: TimeSpan,
    /// Seed of all that is random in the driver and its clients; processes do not replay exactly
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// Keys of a table: few, so that clients meet
    #[arg(long, value_name = "COUNT", default_value = "48")]
    keys: Count,
    /// The design of the index
    #[arg(long, default_value_t = Engine::BTree, value_parser = formats::parse_engine)]
    engine: Engine,
    /// Bytes of the pool
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    pool_bytes: Size,
    /// New or empty folder for the pool and the histories [default: one of its own in /dev/shm]
    #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    pool: Option<PathBuf>,
    /// Leave the folder, also if nothing was found
    #[arg(long)]
    keep: bool,
}

impl ProcessesArgs {
    /// What the library is asked for.
    ///
    /// # Errors
    /// For a number that is too large for what it counts.
    pub(crate) fn config(&self) -> Result<Config, Failure> {
        let keys = u32::try_from(self.keys.0)
            .map_err(|_| Failure::usage(format!("--keys {}: too many", self.keys)))?;
        Ok(Config {
            processes: self.processes,
            threads: self.threads,
            time: self.time.duration(),
            round_time: self.round_time.duration(),
            kills_per_second: self.kills_per_second,
            stops_per_second: self.stops_per_second,
            stop_time_max: self.stop_time_max.duration(),
            seed: self.seed,
            keys,
            engine: self.engine,
            pool_bytes: self.pool_bytes.0,
            folder: self.pool.clone(),
            keep: self.keep,
        })
    }

    /// The command line that asks for the same again, but for the folder.
    pub(crate) fn again(&self) -> String {
        format!(
            "farleaf check processes --processes {} --threads {} --time {} --round-time {} \
             --kills-per-second {} --stops-per-second {} --stop-time-max {} --seed {} --keys {} \
             --engine {} --pool-bytes {}",
            self.processes,
            self.threads,
            self.time,
            self.round_time,
            self.kills_per_second,
            self.stops_per_second,
            self.stop_time_max,
            self.seed,
            self.keys,
            self.engine,
            self.pool_bytes
        )
    }

    /// How long it is to take.
    pub(crate) fn time(&self) -> Duration {
        self.time.duration()
    }
}

/// What the driver tells a child.
#[derive(Clone, Debug, Args)]
pub(crate) struct ProcessArgs {
    /// The child's task, in JSON
    pub(crate) spec: String,
}
