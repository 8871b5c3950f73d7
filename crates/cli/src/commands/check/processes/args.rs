//! Process test options: the options of `farleaf check processes`.

use std::path::PathBuf;

use clap::{Args, ValueHint};
use farleaf::Engine;
use farleaf_bench::FabricKind;
use farleaf_bench::units::{Count, Size, TimeSpan};
use farleaf_check::processes::{Config, Network};

use super::super::args::some_time;
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
    /// Fabric that carries the operations: mapped (a pool in shared memory) or tcp (memory servers, processes
    /// that are killed and stopped, too, reached over links that are cut and slowed)
    #[arg(short, long, default_value_t = FabricKind::Mapped)]
    fabric: FabricKind,
    /// Time to go on; the round that is under way is finished [default: 60s, over tcp 30s]
    #[arg(long, value_name = "TIME", value_parser = some_time)]
    time: Option<TimeSpan>,
    /// Time that clients run before their history is checked [default: 2s, over tcp 8s]
    #[arg(long, value_name = "TIME")]
    round_time: Option<TimeSpan>,
    /// Processes killed (kill -9) a second, on average [default: 6, over tcp 0.8]
    #[arg(long, value_name = "RATE")]
    kills_per_second: Option<f64>,
    /// Processes stopped (SIGSTOP) a second, on average [default: 6, over tcp 0.4]
    #[arg(long, value_name = "RATE")]
    stops_per_second: Option<f64>,
    /// Time for which a process is stopped, at most [default: 500ms, over tcp 3s]
    #[arg(long, value_name = "TIME")]
    stop_time_max: Option<TimeSpan>,
    /// Memory servers (needs --fabric tcp) [default: 2]
    #[arg(long, value_name = "COUNT")]
    memory_servers: Option<u16>,
    /// Time that a compute server counts as alive without being heard of (needs --fabric tcp) [default: 1s]
    #[arg(long, value_name = "TIME")]
    lease: Option<TimeSpan>,
    /// Memory servers killed and started again, or stopped, a second (needs --fabric tcp) [default: 0.4]
    #[arg(long, value_name = "RATE")]
    memory_faults_per_second: Option<f64>,
    /// Links cut, slowed or with all connections ended, a second (needs --fabric tcp) [default: 0.8]
    #[arg(long, value_name = "RATE")]
    link_faults_per_second: Option<f64>,
    /// Links between compute servers cut, slowed or with all connections ended, a second (needs --fabric tcp
    /// and an engine with owners) [default: 0.4]
    #[arg(long, value_name = "RATE")]
    call_faults_per_second: Option<f64>,
    /// Time for which a memory server is away, or a link cut or slow, at most (needs --fabric tcp)
    /// [default: 2s]
    #[arg(long, value_name = "TIME")]
    outage_time_max: Option<TimeSpan>,
    /// Fail if a compute server is killed while nothing else goes wrong, and its keys are not served again
    /// within so many leases, or an operation on others' keys takes more than half of that (needs
    /// --fabric tcp); for engines whose keys have owners, 2 is what is promised on a machine that is not busy
    /// [default: only tell]
    #[arg(long, value_name = "LEASES")]
    recovery_within: Option<f64>,
    /// Bytes of memory that each process exposes to the others, a multiple of 4KiB (needs an engine with owners)
    /// [default: 0]
    #[arg(long, value_name = "SIZE")]
    expose_bytes: Option<Size>,
    /// Gateways for Redis's clients, and as many processes of such clients, beside the others [default: none; 2 if the
    /// option has no number]
    #[arg(long, value_name = "COUNT", num_args = 0..=1, default_missing_value = "2")]
    redis: Option<u32>,
    /// Short commands (put, get, del) that run at a time, one after the other, beside the processes; some are killed
    #[arg(long, value_name = "COUNT", default_value_t = 2)]
    commands: u32,
    /// Fail if a short command takes longer than this after its start or after the last death or stop of a process that
    /// it met, or fails without one; or if a recovery is in vain or beside another. The lease and 1 s are promised, on
    /// a machine that is not busy. Links that are cut and memory servers that are away excuse nothing: set the rates of
    /// these faults to 0 [default: only tell]
    #[arg(long, value_name = "TIME", value_parser = some_time)]
    commands_within: Option<TimeSpan>,
    /// Seed of all that is random in the driver and its clients; processes do not replay exactly
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// Keys of a table: few, so that clients meet
    #[arg(long, value_name = "COUNT", default_value = "48")]
    keys: Count,
    /// The design of the index
    #[arg(long, default_value_t = Engine::default(), value_parser = formats::parse_engine)]
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
    /// The request to the library.
    ///
    /// # Errors
    /// For a number that is too large for what it counts.
    pub(crate) fn config(&self) -> Result<Config, Failure> {
        let keys = u32::try_from(self.keys.0)
            .map_err(|_| Failure::usage(format!("--keys {}: too many", self.keys)))?;
        let usual = match self.fabric {
            FabricKind::Mapped => Config::default(),
            FabricKind::Tcp => Config::over_network(),
            FabricKind::Sim => {
                return Err(Failure::usage(
                    "--fabric sim: no real processes run there; `farleaf check` simulates, and processes \
                     take mapped or tcp",
                ));
            }
            FabricKind::Verbs => {
                return Err(Failure::usage(
                    "--fabric verbs: links are cut by a proxy of TCP, past which RDMA goes; processes \
                     take mapped or tcp",
                ));
            }
        };
        let span = |given: Option<TimeSpan>, usual| given.map_or(usual, TimeSpan::duration);
        Ok(Config {
            processes: self.processes,
            threads: self.threads,
            time: span(self.time, usual.time),
            round_time: span(self.round_time, usual.round_time),
            kills_per_second: self.kills_per_second.unwrap_or(usual.kills_per_second),
            stops_per_second: self.stops_per_second.unwrap_or(usual.stops_per_second),
            stop_time_max: span(self.stop_time_max, usual.stop_time_max),
            seed: self.seed,
            keys,
            engine: self.engine,
            pool_bytes: self.pool_bytes.0,
            network: self.network(usual.network)?,
            expose_bytes: self.expose_bytes()?,
            gateways: self.redis.unwrap_or_default(),
            commands: self.commands,
            commands_within: self.commands_within.map(TimeSpan::duration),
            folder: self.pool.clone(),
            keep: self.keep,
        })
    }

    /// Bytes that each process exposes.
    fn expose_bytes(&self) -> Result<u64, Failure> {
        let traits = self.engine.traits();
        match self.expose_bytes {
            Some(size) if size.0 > 0 && !traits.is_served() => Err(Failure::usage(
                "--expose-bytes needs an engine with owners ('farleaf engines'): compute servers of other \
                 engines expose nothing",
            )),
            size => Ok(size.map_or(0, |size| size.0)),
        }
    }

    /// The request for memory servers and links.
    fn network(&self, usual: Option<Network>) -> Result<Option<Network>, Failure> {
        let Some(usual) = usual else {
            return match self.given_of_network().into_iter().find(|(_, given)| given.is_some()) {
                Some((name, _)) => Err(Failure::usage(format!("{name} needs --fabric tcp"))),
                None => Ok(None),
            };
        };
        if self.call_faults_per_second.is_some() && !self.engine.traits().owned {
            return Err(Failure::usage(
                "--call-faults-per-second needs an engine with owners ('farleaf engines'): compute \
                 servers of other engines do not ask each other",
            ));
        }
        let span = |given: Option<TimeSpan>, usual| given.map_or(usual, TimeSpan::duration);
        let rate = |given: Option<f64>, usual| given.unwrap_or(usual);
        Ok(Some(Network {
            memory_servers: self.memory_servers.unwrap_or(usual.memory_servers),
            lease: span(self.lease, usual.lease),
            memory_faults_per_second: rate(
                self.memory_faults_per_second,
                usual.memory_faults_per_second,
            ),
            link_faults_per_second: rate(self.link_faults_per_second, usual.link_faults_per_second),
            call_faults_per_second: rate(self.call_faults_per_second, usual.call_faults_per_second),
            outage_time_max: span(self.outage_time_max, usual.outage_time_max),
            recovery_leases: self.recovery_within,
        }))
    }

    /// The command line that asks for the same again, but for the folder.
    pub(crate) fn again(&self) -> String {
        let mut line = format!(
            "farleaf check processes --processes {} --threads {} --seed {} --keys {} --engine {} \
             --commands {} --pool-bytes {} --fabric {}",
            self.processes,
            self.threads,
            self.seed,
            self.keys,
            self.engine,
            self.commands,
            self.pool_bytes,
            self.fabric
        );
        let given = [
            ("--time", text(self.time)),
            ("--round-time", text(self.round_time)),
            ("--kills-per-second", text(self.kills_per_second)),
            ("--stops-per-second", text(self.stops_per_second)),
            ("--stop-time-max", text(self.stop_time_max)),
            ("--expose-bytes", text(self.expose_bytes)),
            ("--redis", text(self.redis)),
            ("--commands-within", text(self.commands_within)),
        ];
        for (name, given) in given.into_iter().chain(self.given_of_network()) {
            line.extend(given.map(|given| format!(" {name} {given}")));
        }
        line
    }

    /// The options of memory servers and links by their names, with what was given for each.
    fn given_of_network(&self) -> [(&'static str, Option<String>); 7] {
        [
            ("--memory-servers", text(self.memory_servers)),
            ("--lease", text(self.lease)),
            ("--memory-faults-per-second", text(self.memory_faults_per_second)),
            ("--link-faults-per-second", text(self.link_faults_per_second)),
            ("--call-faults-per-second", text(self.call_faults_per_second)),
            ("--outage-time-max", text(self.outage_time_max)),
            ("--recovery-within", text(self.recovery_within)),
        ]
    }
}

/// A value of the command line as it stands there.
fn text(given: Option<impl ToString>) -> Option<String> {
    given.map(|given| given.to_string())
}

/// Options that the driver passes to a child.
#[derive(Clone, Debug, Args)]
pub(crate) struct ProcessArgs {
    /// The child's task, in JSON
    pub(crate) spec: String,
}
