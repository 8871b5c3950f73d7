//! Run configuration: options of a run, and the counts that it reports at its end.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use farleaf::Engine;
use serde::Serialize;

use super::calls::CALLS_MAX;
use super::commands::{CommandsReport, KEYS_EACH};
use super::times::NetworkReport;

/// Threads of all processes together, at most: each takes a session of the pool.
const THREADS_MAX: u32 = 64;
const KEYS_MAX: u32 = 9999;
const RATE_MAX: f64 = 1000.0;
/// Gateways of a run, at most.
const GATEWAYS_MAX: u32 = 16;
/// Short commands at a time, at most.
const COMMANDS_MAX: u32 = 16;
/// Memory servers of a run, at most.
const MEMORY_SERVERS_MAX: u16 = 16;
/// The shortest lease: with less, processes of a busy machine would all count as dead.
const LEASE_LEAST: Duration = Duration::from_millis(50);
/// Leases that a recovery may take, at most.
const LEASES_MAX: f64 = 1000.0;
const LEASE_MOST: Duration = Duration::from_secs(60);

/// A run of processes that are killed and stopped.
#[derive(Clone, Debug)]
pub struct Config {
    /// Processes that do random operations at the same time. Others come and go beside them: one
    /// that makes and drops tables, loads, and some that just open the pool.
    pub processes: u32,
    /// Client threads of each.
    pub threads: u32,
    /// Duration of the run. The round that is under way is brought to its end.
    pub time: Duration,
    /// Time that clients run before the history is checked.
    pub round_time: Duration,
    /// Mean rate of `kill -9`, at random moments.
    pub kills_per_second: f64,
    /// Mean rate of SIGSTOP, at random moments.
    pub stops_per_second: f64,
    /// SIGCONT follows after this time at most; most stops are much shorter.
    pub stop_time_max: Duration,
    /// Seed of all that is random in the driver and in the clients.
    pub seed: u64,
    /// Keys of a table.
    pub keys: u32,
    /// The design of the index.
    pub engine: Engine,
    /// Bytes of the pool.
    pub pool_bytes: u64,
    /// The pool is one of memory servers, which the run starts; `None`: in shared memory.
    pub network: Option<Network>,
    /// Bytes of memory that each process exposes to the others, if the engine has owners; 0 for none.
    pub expose_bytes: u64,
    /// Gateways for Redis's clients, and as many processes of such clients.
    pub gateways: u32,
    /// Short commands (`farleaf put`, `get`, `del`) at a time, beside the processes, of which some are killed.
    pub commands: u32,
    /// Time within which such a command must end, after its start or the last death or end of a stop that it met. A
    /// later one fails the run. So does one that fails without such a death or stop, and a recovery in vain, or beside
    /// another. `None`: the report gives the times, and none of them fails the run.
    pub commands_within: Option<Duration>,
    /// Folder for pool and histories: new or empty. Default: a folder of its own in `/dev/shm`, or
    /// where temporary files go.
    pub folder: Option<PathBuf>,
    /// Leave the folder, even if nothing was found.
    pub keep: bool,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            processes: 3,
            threads: 2,
            time: Duration::from_secs(60),
            round_time: Duration::from_secs(2),
            kills_per_second: 6.0,
            stops_per_second: 6.0,
            stop_time_max: Duration::from_millis(500),
            seed: 1,
            keys: 48,
            engine: Engine::default(),
            pool_bytes: 256 << 20,
            network: None,
            expose_bytes: 0,
            gateways: 0,
            commands: 2,
            commands_within: None,
            folder: None,
            keep: false,
        }
    }
}

/// A run's memory servers, and the faults of these and of the links to them.
#[derive(Clone, Debug)]
pub struct Network {
    /// The number of memory servers.
    pub memory_servers: u16,
    /// Time for which a silent compute server counts as alive.
    pub lease: Duration,
    /// Mean rate of faults of memory servers: `kill -9` and a new start over the same file, or
    /// SIGSTOP and SIGCONT.
    pub memory_faults_per_second: f64,
    /// Mean rate of faults of links between a process and a memory server: cut, in both directions
    /// or in one, slowed, or all connections ended.
    pub link_faults_per_second: f64,
    /// Mean rate of the same faults of links over which compute servers ask each other. They strike
    /// all that lead to one, or that of one to another. For engines whose keys have owners.
    pub call_faults_per_second: f64,
    /// Longest time that a memory server is away, or a link is cut or slow.
    pub outage_time_max: Duration,
    /// Leases within which keys must be served again, after a compute server was killed while
    /// nothing else went wrong. No operation on others' keys may take longer than half of that. A
    /// slower recovery fails the run. `None`: the report gives the times, and none of them fails
    /// the run.
    pub recovery_leases: Option<f64>,
}

impl Default for Network {
    fn default() -> Self {
        Network {
            memory_servers: 2,
            lease: Duration::from_secs(1),
            memory_faults_per_second: 0.4,
            link_faults_per_second: 0.8,
            call_faults_per_second: 0.4,
            outage_time_max: Duration::from_secs(2),
            recovery_leases: None,
        }
    }
}

impl Network {
    /// # Errors
    /// The options that make no sense.
    fn check(&self) -> Result<(), String> {
        if !(1..=MEMORY_SERVERS_MAX).contains(&self.memory_servers) {
            let count = self.memory_servers;
            return Err(format!("{count} memory servers: it takes 1 to {MEMORY_SERVERS_MAX}"));
        }
        if !(LEASE_LEAST..=LEASE_MOST).contains(&self.lease) {
            return Err(format!(
                "a lease of {:?}: it takes {LEASE_LEAST:?} to {LEASE_MOST:?}",
                self.lease
            ));
        }
        if let Some(leases) = self.recovery_leases
            && !(f64::MIN_POSITIVE..=LEASES_MAX).contains(&leases)
        {
            return Err(format!(
                "recovery within {leases} leases: it takes more than 0, and at most {LEASES_MAX}"
            ));
        }
        check_rate("faults of memory servers", self.memory_faults_per_second)?;
        check_rate("faults of links", self.link_faults_per_second)?;
        check_rate("faults of call links", self.call_faults_per_second)
    }
}

fn check_rate(what: &str, rate: f64) -> Result<(), String> {
    if (0.0..=RATE_MAX).contains(&rate) {
        return Ok(());
    }
    Err(format!("{rate} {what} a second: it takes 0 to {RATE_MAX}"))
}

impl Config {
    /// The usual run over a network of two memory servers. It is shorter, with longer rounds and
    /// fewer faults at a time, as a dead process counts as dead only after its lease.
    pub fn over_network() -> Self {
        Config {
            time: Duration::from_secs(30),
            round_time: Duration::from_secs(8),
            kills_per_second: 0.8,
            stops_per_second: 0.4,
            stop_time_max: Duration::from_secs(3),
            network: Some(Network::default()),
            ..Config::default()
        }
    }

    /// # Errors
    /// [`ProcessesError::Config`] if the options make no sense.
    pub(super) fn check(&self) -> Result<(), ProcessesError> {
        let refuse = |why: String| Err(ProcessesError::Config(why));
        let threads = self.processes.saturating_mul(self.threads);
        if self.gateways > GATEWAYS_MAX {
            return refuse(format!("{} gateways: it takes 0 to {GATEWAYS_MAX}", self.gateways));
        }
        if threads == 0 || threads > THREADS_MAX {
            let (processes, each) = (self.processes, self.threads);
            return refuse(format!(
                "{processes} processes of {each} threads: take at least one of each, and at most \
                 {THREADS_MAX} threads in all"
            ));
        }
        if self.keys == 0 || self.keys > KEYS_MAX {
            return refuse(format!("{} keys: it takes 1 to {KEYS_MAX}", self.keys));
        }
        let rates = [("kills", self.kills_per_second), ("stops", self.stops_per_second)];
        let refused = rates.into_iter().try_for_each(|(what, rate)| check_rate(what, rate));
        if let Err(why) =
            refused.and_then(|()| self.network.as_ref().map_or(Ok(()), Network::check))
        {
            return refuse(why);
        }
        if self.commands > COMMANDS_MAX {
            return refuse(format!("{} commands: it takes 0 to {COMMANDS_MAX}", self.commands));
        }
        let commands_keys = self.commands * KEYS_EACH;
        if self.keys + commands_keys > KEYS_MAX {
            return refuse(format!(
                "{} keys and {commands_keys} for commands, {KEYS_EACH} for each: it takes at most {KEYS_MAX} together",
                self.keys
            ));
        }
        if self.commands_within.is_some_and(|within| within.is_zero()) {
            return refuse("commands within no time: none ends at its start".to_owned());
        }
        if self.commands == 0 && self.commands_within.is_some() {
            return refuse(
                "commands within a time, but no commands: nothing would be judged".to_owned(),
            );
        }
        if self.round_time.is_zero() {
            return refuse("rounds of no time: nothing would happen in them".to_owned());
        }
        Ok(())
    }

    /// Rate of faults of links between compute servers; 0 for engines without owners.
    pub(super) fn post_rate(&self) -> f64 {
        let network = self.network.as_ref().filter(|_| self.engine.traits().owned);
        network.map_or(0.0, |network| network.call_faults_per_second)
    }

    /// Numbers in the history that a client process takes.
    pub(super) fn clients_each(&self) -> u32 {
        self.threads * CALLS_MAX as u32
    }
}

/// Way to start a child: the program, and the arguments in front of the child's specification. The
/// program must hand that to [`run_child`](super::run_child).
#[derive(Clone, Debug)]
pub struct Launcher {
    /// The program. It also is the command `farleaf` itself, whose `load`, `put` and others are run.
    pub program: PathBuf,
    /// Arguments in front.
    pub arguments: Vec<OsString>,
    /// Variables of the environment that are others than here; `None` removes one.
    pub environment: Vec<(OsString, Option<OsString>)>,
}

/// Counts of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Counts {
    /// Operations begun, all of them checked.
    pub operations: u64,
    /// Operations of these that were refused, and certainly not done.
    pub refused: u64,
    /// Operations of these without an answer, mostly because the process was killed.
    pub unknown: u64,
    /// Keys whose operations were put in order, anew in each round.
    pub keys_checked: u64,
    /// Keys of these given up, since too many operations overlap or have no answer.
    pub keys_undecided: u64,
    /// Client processes started.
    pub clients: u64,
    /// Clients killed.
    pub kills_clients: u64,
    /// Others killed while they made, filled and dropped tables.
    pub kills_tables: u64,
    /// `farleaf load` killed.
    pub kills_loads: u64,
    /// Processes killed while they opened the pool and recovered what others had left.
    pub kills_openers: u64,
    /// Killed gateways for Redis's clients.
    pub kills_gateways: u64,
    /// Killed clients of gateways.
    pub kills_resp: u64,
    /// Processes killed while they made another pool.
    pub kills_creations: u64,
    /// Processes stopped, and continued unless they were killed first.
    pub stops: u64,
    /// Processes that could not begin, because another one was stopped.
    pub not_started: u64,
    /// Loads that ended well.
    pub loads: u64,
    /// Tables that killed processes had left.
    pub tables_left: u64,
}

impl Counts {
    /// All kills.
    pub fn kills(&self) -> u64 {
        self.kills_clients
            + self.kills_tables
            + self.kills_loads
            + self.kills_openers
            + self.kills_gateways
            + self.kills_resp
            + self.kills_creations
    }
}

/// The end of a run.
#[derive(Clone, Debug, Serialize)]
pub struct ProcessesReport {
    /// The seed of the run.
    pub seed: u64,
    /// Rounds that were begun.
    pub rounds: u64,
    /// Counts of all rounds.
    pub counts: Counts,
    /// Short commands, and recoveries.
    pub commands: CommandsReport,
    /// Faults of memory servers and links, and the times of recovery; of a run over a network.
    pub network: Option<NetworkReport>,
    /// Seconds in all.
    pub seconds: f64,
    /// Seconds of them that went into checking histories.
    pub check_seconds: f64,
    /// True if an interrupt ended the run early.
    pub is_interrupted: bool,
    /// The folder, if it was kept.
    pub folder: Option<PathBuf>,
    /// The failed check, if one failed.
    pub failure: Option<RoundFailure>,
}

/// A failed check.
#[derive(Clone, Debug, Serialize)]
pub struct RoundFailure {
    /// The round in which it was found, from 1.
    pub round: u64,
    /// The finding.
    pub what: String,
    /// The round's folder: history files (`*.jsonl`), standard error of processes (`*.err`).
    pub folder: PathBuf,
    /// The pool after the failure.
    pub pool: String,
}

/// Reason why a run could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProcessesError {
    /// The options make no sense.
    #[error("{0}")]
    Config(String),
    /// The pool could not be made.
    #[error("cannot make the pool")]
    Store(#[from] farleaf::Error),
    /// The system refused.
    #[error("cannot {what} {path}")]
    Io {
        /// The attempted step.
        what: &'static str,
        /// The file or folder of the step.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}
