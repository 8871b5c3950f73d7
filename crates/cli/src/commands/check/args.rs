//! Check options: the options of `farleaf check`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};
use farleaf_bench::units::{Count, TimeSpan};
use farleaf_check::report::Plan;
use farleaf_check::scenario::Choices;

use super::processes::{ProcessArgs, ProcessesArgs};
use crate::errors::Failure;
use crate::settings::SetArgs;

/// Seeds that are run unless told.
const SEEDS: u64 = 1_000;

#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Exits with 1 if a check failed; each failure is told with the command line that replays it.",
    after_long_help = "\
Every option from --engine on pins something that otherwise follows from the seed.

Faults: torn, split, late, lost, shuffle (probabilities, or above 0); jitter, late-ns, lost-ns,
timeout-ns, lease, skew (nanoseconds); drift (millionths); queue (operations). As in
torn=0.5,late=0.01, or none.

Events: kill:C, restart:C, stop:C, resume:C (compute server C); slow:M-F (memory server M takes F
times as long), stop-memory:M, resume-memory:M; cut-requests:C-M, cut-replies:C-M, heal:C-M. Each
with its time in nanoseconds, as in kill:1@60000, with commas between them, or none.

Exits with 1 if a check failed; each failure is told with the command line that replays it."
)]
pub(crate) struct CheckArgs {
    #[command(subcommand)]
    pub(crate) command: Option<CheckCommand>,
    #[command(flatten)]
    pub(crate) run: SeedsArgs,
}

/// Further checks.
#[derive(Debug, Subcommand)]
pub(crate) enum CheckCommand {
    /// End compute servers at every one of their remote operations
    ///
    /// For every kind of operation of every engine, from small tables chosen so that it splits, merges,
    /// grows and so on: the compute server that does it dies before and after each of its remote
    /// operations and within its WRITEs, or is stopped there, replaced, and comes back. The others
    /// must find everything in order. Exits with 1 if they do not.
    Crash(CrashArgs),
    /// Seed bugs and count the seeds until they are found
    ///
    /// Exits with 1 if one is not found.
    #[cfg(feature = "canary")]
    Canaries(Box<CanariesArgs>),
    /// Check files of histories, as others write them, too
    ///
    /// Several files are one history, of as many processes: their times must come from one clock.
    /// Exits with 1 if it is none that a table may produce, with 7 if a file cannot be read.
    History(HistoryArgs),
    /// Kill and stop real processes that share a pool, and check what they were told
    ///
    /// Exits with 1 if something was found; the folder is then kept.
    Processes(Box<ProcessesArgs>),
    /// The processes to start
    #[command(hide = true)]
    Process(ProcessArgs),
}

#[derive(Debug, Args)]
pub(crate) struct HistoryArgs {
    /// The files; `-` for standard input
    #[arg(required = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) files: Vec<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct CrashArgs {
    /// Part of the names of cases to go through (--list prints them), or one point of a case, as in
    /// 'CASE#k=2,after' [default: all]
    pub(crate) cases: Option<String>,
    /// Print the names of the cases and run nothing
    #[arg(long)]
    pub(crate) list: bool,
    /// Run every n-th point of each case only
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) stride: u16,
    /// Threads [default: as many as the machine has]
    #[arg(short, long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    /// Begin no more points after this time, as in 90s
    #[arg(long, value_parser = some_time)]
    pub(crate) time: Option<TimeSpan>,
}

#[cfg(feature = "canary")]
#[derive(Debug, Args)]
pub(crate) struct CanariesArgs {
    /// The ones to hunt [default: all]
    #[arg(value_name = "CANARY")]
    pub(crate) names: Vec<String>,
    /// Run the points of this crash case instead of seeds ('farleaf check crash --list' names them)
    #[arg(long, value_name = "CASE")]
    pub(crate) at: Option<String>,
    /// Seeds within which each must be found
    #[arg(short = 'n', long, value_name = "COUNT", default_value = "2K")]
    pub(crate) seeds: Count,
    /// Threads [default: as many as the machine has]
    #[arg(short, long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    #[command(flatten)]
    pub(crate) pins: PinArgs,
}

/// Reads a time in which something can be checked.
pub(super) fn some_time(text: &str) -> Result<TimeSpan, String> {
    match text.parse::<TimeSpan>() {
        Ok(span) if span.duration().is_zero() => Err("a time of 0 checks nothing".to_owned()),
        Ok(span) => Ok(span),
        Err(error) => Err(error.to_string()),
    }
}

/// As many threads as were asked for, or as the machine has.
pub(super) fn threads(wanted: Option<u16>) -> usize {
    match wanted {
        Some(threads) => threads.into(),
        None => std::thread::available_parallelism().map_or(1, Into::into),
    }
}

#[derive(Debug, Args)]
pub(crate) struct SeedsArgs {
    /// Seeds to run, one scenario each [default: 1000, or 1 with --seed]
    #[arg(short = 'n', long, value_name = "COUNT")]
    seeds: Option<Count>,
    /// The first seed [default: 0]
    #[arg(short, long)]
    seed: Option<u64>,
    /// Threads [default: as many as the machine has]
    #[arg(short, long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// End after this time, as in 90s
    #[arg(long, value_parser = some_time)]
    time: Option<TimeSpan>,
    /// End after so many failures
    #[arg(long, value_name = "COUNT", default_value_t = 10,
        value_parser = clap::value_parser!(u16).range(1..))]
    failures: u16,
    /// Make the first failing scenario smaller, as long as it fails in the same way
    #[arg(long)]
    pub(crate) shrink: bool,
    /// Runs that shrinking may take
    #[arg(long, value_name = "COUNT", default_value = "3K", requires = "shrink")]
    pub(crate) tries: Count,
    /// Write what clients saw to this file: of the first failing run, or of the last
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) history: Option<PathBuf>,
    /// Write a drawing of that run to this file, one page of HTML
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) trace: Option<PathBuf>,
    #[command(flatten)]
    pins: PinArgs,
}

/// Choices that are pinned of a scenario. [`Choices::set`] reads their values.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Scenario")]
pub(crate) struct PinArgs {
    /// Engine to check, or all
    #[arg(short, long)]
    engine: Option<String>,
    /// Format of the table: u64-tiny, u64-small, u64, wide-tiny, short-tiny, bytes-tiny, bytes, odd,
    /// u64-reserved, short-reserved
    #[arg(short, long)]
    format: Option<String>,
    #[command(flatten)]
    set: SetArgs,
    /// Work of clients: mixed, hot, ascending, removes, churn, counters, reads, large
    #[arg(short, long)]
    workload: Option<String>,
    /// Memory servers
    #[arg(long, value_name = "COUNT")]
    memory_servers: Option<String>,
    /// Compute servers
    #[arg(long, value_name = "COUNT")]
    compute_servers: Option<String>,
    /// Clients of all compute servers together
    #[arg(short, long, value_name = "COUNT")]
    clients: Option<String>,
    /// Operations of each client
    #[arg(short, long, value_name = "COUNT")]
    ops: Option<String>,
    /// Different keys
    #[arg(short, long, value_name = "COUNT")]
    keys: Option<String>,
    /// Keys that the table holds at first
    #[arg(long, value_name = "COUNT")]
    preload: Option<String>,
    /// Bytes of each memory server, in KiB
    #[arg(long, value_name = "KIB")]
    region_kib: Option<String>,
    /// Bytes of memory that each compute server exposes to the others, in KiB, a multiple of 4 [default: 0, or drawn for
    /// an engine that uses it]
    #[arg(long, value_name = "KIB")]
    expose_kib: Option<String>,
    /// Mean time between two operations of a client
    #[arg(long, value_name = "NS")]
    think_ns: Option<String>,
    /// Probability that a caller gives an operation up half done
    #[arg(long, value_name = "PROBABILITY")]
    impatience: Option<String>,
    /// Faults of operations, as in torn=0.5,late=0.01, or none
    #[arg(long, value_name = "LIST")]
    faults: Option<String>,
    /// Posts that something may go wrong with, counted from the start of the clients: 100..2000, all
    #[arg(long, value_name = "RANGE")]
    window: Option<String>,
    /// Events of servers with their moments, as in kill:1@60000, or none
    #[arg(long, value_name = "LIST")]
    event: Vec<String>,
    /// Start counters just before they wrap: those of the pool and the versions of nodes
    #[arg(long, value_name = "YES|NO")]
    aged: Option<String>,
    /// Operations that are run, as in 0:0-5,9/2:3 (client 0's 0 to 5 and 9, client 2's 3), all, none
    #[arg(long, value_name = "LIST")]
    only: Option<String>,
    /// Another draw of the simulator's luck
    #[arg(long)]
    salt: Option<String>,
}

impl SeedsArgs {
    /// The scenarios to run.
    ///
    /// # Errors
    /// A usage error with a sentence on what makes no sense.
    pub(crate) fn plan(&self) -> Result<Plan, Failure> {
        let first = self.seed.unwrap_or(0);
        let count = match (self.seeds, self.seed) {
            (Some(Count(0)), _) => {
                return Err(Failure::usage("no seeds to run: --seeds takes 1 or more"));
            }
            (Some(Count(count)), _) => count,
            (None, Some(_)) => 1,
            (None, None) => SEEDS,
        };
        let threads = threads(self.threads);
        let Some(end) = first.checked_add(count) else {
            return Err(Failure::usage(format!("there are no {count} seeds from {first} on")));
        };
        Ok(Plan {
            seeds: first..end,
            choices: self.pins.choices()?,
            threads,
            time: self.time.map(TimeSpan::duration),
            failures_max: self.failures.into(),
        })
    }
}

impl PinArgs {
    pub(crate) fn choices(&self) -> Result<Choices, Failure> {
        let mut choices = Choices::default();
        let set: Vec<String> = self.set.set.iter().map(ToString::to_string).collect();
        let set = (!set.is_empty()).then(|| set.join(","));
        let events = (!self.event.is_empty()).then(|| self.event.join(","));
        for (flag, text) in [
            ("engine", &self.engine),
            ("format", &self.format),
            ("set", &set),
            ("workload", &self.workload),
            ("memory-servers", &self.memory_servers),
            ("compute-servers", &self.compute_servers),
            ("clients", &self.clients),
            ("ops", &self.ops),
            ("keys", &self.keys),
            ("preload", &self.preload),
            ("region-kib", &self.region_kib),
            ("expose-kib", &self.expose_kib),
            ("think-ns", &self.think_ns),
            ("impatience", &self.impatience),
            ("faults", &self.faults),
            ("window", &self.window),
            ("event", &events),
            ("aged", &self.aged),
            ("only", &self.only),
            ("salt", &self.salt),
        ] {
            let Some(text) = text.as_deref().filter(|text| (flag, *text) != ("engine", "all"))
            else {
                continue;
            };
            choices.set(flag, text).map_err(|error| Failure::usage(error.to_string()))?;
        }
        if let Some(event) = choices.event_nowhere() {
            return Err(Failure::usage(format!("--event {event}: there is no such server")));
        }
        Ok(choices)
    }
}
