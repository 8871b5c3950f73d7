//! Arguments: the subcommands and options of the command line.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
use clap_complete::Shell;
use farleaf::{Content, Engine, KeyFormat, ValueFormat};
use farleaf_index::units::{Count, Size, TimeSpan};

#[cfg(feature = "lab")]
use crate::bench::BenchArgs;
#[cfg(feature = "lab")]
use crate::commands::check::CheckArgs;
use crate::commands::cluster::ClusterArgs;
use crate::commands::compute::ComputeArgs;
use crate::commands::config::ConfigArgs;
use crate::commands::engines::EnginesArgs;
use crate::commands::health::HealthArgs;
use crate::commands::memory::MemoryArgs;
use crate::commands::redis::RedisArgs;
use crate::commands::repartition::RepartitionArgs;
#[cfg(feature = "lab")]
use crate::commands::repro::ReproArgs;
use crate::commands::up::UpArgs;
use crate::errors::Exit;
use crate::etcd::EtcdArgs;
use crate::formats;
use crate::input::{ColumnSpec, InputFormat};
use crate::listen::ListenArgs;
use crate::one_of::OneOf;
use crate::settings::SetArgs;
use crate::tls::TlsArgs;

const SETTINGS: &str = "\
Settings:
  Every option has a name in the environment and in a file of settings (TOML), too: --lease of memory is
  FARLEAF_MEMORY_LEASE, and lease in the table [memory]; --tls-ca, which all commands take, is
  FARLEAF_TLS_CA, and tls-ca before the first table; for memory alone it is FARLEAF_MEMORY_TLS_CA, and
  tls-ca in [memory]. The command line counts first, then the environment, then the file.
  'farleaf config show memory --origin' prints what is set where.";

const POOLS: &str = "\
Pools:
  shm:FOLDER  a pool in memory files, which the processes of this machine share
  tcp://HOST:PORT,HOST:PORT...
              a pool of memory servers (see memory and up), in the order of their numbers
  verbs://HOST:PORT,HOST:PORT...[?device=NAME&port=NUMBER&gid=NUMBER&mtu=BYTES]
              the same, reached by RDMA; what is not said of the card is chosen
  etcd://HOST:PORT,HOST:PORT.../CLUSTER
              the pool of a cluster that etcd knows at these addresses (see memory --cluster)
  mem:        a pool of one process; gone when it ends, so only programs can use it";

/// Ordered key-value store on disaggregated memory
#[derive(Debug, Parser)]
#[command(
    name = "farleaf",
    version,
    arg_required_else_help = true,
    after_help = "Try 'farleaf help COMMAND' for a command's options.",
    after_long_help = format!("{POOLS}\n\n{SETTINGS}\n\nExit codes:\n{}", Exit::list())
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: GlobalArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Options that every command takes.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct GlobalArgs {
    /// Print JSON: one object, or one a line from get and scan
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Use of colours; NO_COLOR in the environment turns `auto` off
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto",
        value_parser = OneOf::<When>::names())]
    pub(crate) color: When,
    /// Print results and errors only
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Say what is being done, on standard error
    #[arg(short, long, global = true)]
    pub(crate) verbose: bool,
    /// Wait so long, as in 10s, for servers that are just starting and for a pool that another command makes;
    /// with --exclusive, for others to leave the pool
    #[arg(long, global = true, value_name = "TIME")]
    pub(crate) wait: Option<TimeSpan>,
    /// The file of settings, if FARLEAF_CONFIG does not name it; an empty name means none [default:
    /// ~/.config/farleaf/farleaf.toml, or /etc/farleaf/farleaf.toml]
    // Looked for before the command line is understood: see `Config::find`.
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) config: Option<OsString>,
    #[command(flatten)]
    pub(crate) listen: ListenArgs,
    #[command(flatten)]
    pub(crate) tls: TlsArgs,
    #[command(flatten)]
    pub(crate) etcd: EtcdArgs,
}

/// Choice of colours in the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum When {
    /// On terminals
    #[default]
    Auto,
    /// Into pipes and files, too
    Always,
    /// Not at all
    Never,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Load records from a file or standard input into a table
    Load(LoadArgs),
    /// Print the values of keys
    Get(GetArgs),
    /// Add or change a key
    Put(PutArgs),
    /// Remove keys
    Del(DelArgs),
    /// Print keys and values in order
    Scan(ScanArgs),
    /// Count the keys of a table, or of a range of it
    Count(CountArgs),
    /// List the tables of a pool
    Tables(PoolArgs),
    /// Remove a table and all that is in it
    Drop(TableArgs),
    /// Print what a pool and its tables hold; walks all tables
    ///
    /// While others use the pool, the counts are not exact, and a warning says so.
    Stats(StatsArgs),
    /// Check every node of a pool and account for all its memory
    ///
    /// Exits with 1 if problems were found, with 5 if the damage keeps the check from going on. While others
    /// use the pool, changes that are under way look like problems: then they are doubts, which a warning
    /// tells, and no failure.
    Verify(WalkArgs),
    /// List the engines, or the settings of one
    Engines(EnginesArgs),
    /// Measure an engine under a workload
    #[cfg(feature = "lab")]
    Bench(Box<BenchArgs>),
    /// Repeat experiments of papers, and print the paper's figures beside ours
    ///
    /// In the simulator, unless an experiment says otherwise: virtual time, the same again from one
    /// seed.
    #[cfg(feature = "lab")]
    Repro(ReproArgs),
    /// Check engines where everything goes wrong: in simulated clusters, unless a command says where
    ///
    /// Runs one scenario per seed: clients, faults, deaths; then checks that what the clients saw is
    /// linearizable, that every node of the table is in order and that no memory was lost.
    #[cfg(feature = "lab")]
    Check(Box<CheckArgs>),
    /// Serve memory to a pool on a network, until Ctrl-C
    ///
    /// Prints where it listens. A pool is the list of its servers' addresses, in the order of their
    /// numbers: tcp://HOST:PORT,HOST:PORT. A server that is started again over its file serves the same
    /// data.
    Memory(MemoryArgs),
    /// Own and serve keys of a pool's tables, for engines with owners, until Ctrl-C
    ///
    /// Takes the keys that nobody has, and answers the processes that use them. Prints where it listens,
    /// and its name. Ends in order: what it has is written back and free for others.
    Compute(ComputeArgs),
    /// Serve tables to Redis's clients, until Ctrl-C
    ///
    /// Prints where it listens, and the tables that clients SELECT. Any number of gateways serve one pool. With
    /// mem: the process is the whole store.
    Redis(Box<RedisArgs>),
    /// Ask memory, compute or redis, at the address of its --metrics, whether it does its work
    ///
    /// Exits with 3 if it does not, and says why; for health checks of containers.
    Health(HealthArgs),
    /// Show the owners of a table's keys, for engines with owners, and move keys while clients run
    Repartition(RepartitionArgs),
    /// Show who belongs to a cluster that etcd knows, and change what compute servers have
    Cluster(ClusterArgs),
    /// Start a cluster on this machine, until Ctrl-C: memory servers, and a pool on them
    ///
    /// For development and demonstrations. Prints the address of the pool.
    Up(UpArgs),
    /// Show what is set by the environment and by a file
    Config(ConfigArgs),
    /// Print a completion script for a shell
    ///
    /// For bash: mkdir -p ~/.local/share/bash-completion/completions; farleaf completions bash >
    /// ~/.local/share/bash-completion/completions/farleaf
    Completions(CompletionsArgs),
}

/// A pool.
#[derive(Debug, Args)]
pub(crate) struct PoolArgs {
    /// The pool, as in shm:/dev/shm/mypool or tcp://127.0.0.1:7000
    pub(crate) pool: String,
}

/// A pool that is walked.
#[derive(Debug, Args)]
pub(crate) struct WalkArgs {
    /// The pool, as in shm:/dev/shm/mypool or tcp://127.0.0.1:7000
    pub(crate) pool: String,
    /// Make certain of the result: fail with 3 while others have the pool open; --wait waits for them to leave
    #[arg(long)]
    pub(crate) exclusive: bool,
}

/// Options of `stats`: the tables and the memory to report.
#[derive(Debug, Args)]
pub(crate) struct StatsArgs {
    #[command(flatten)]
    pub(crate) walk: WalkArgs,
    /// Print free, reserved and used bytes of each memory server, owner and size class as well
    #[arg(long)]
    pub(crate) memory: bool,
}

/// A table of a pool.
#[derive(Clone, Debug, Args)]
pub(crate) struct TableArgs {
    /// The pool, as in shm:/dev/shm/mypool or tcp://127.0.0.1:7000
    pub(crate) pool: String,
    /// The table
    pub(crate) table: String,
}

/// Form in which bytes are printed.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct BytesArgs {
    /// Read and print keys and values in hexadecimal
    #[arg(long)]
    pub(crate) hex: bool,
    /// Print bytes as they are, also to a terminal
    #[arg(long, conflicts_with_all = ["hex", "json"])]
    pub(crate) raw: bool,
}

/// Options for making a pool if there is none.
#[derive(Debug, Args)]
#[command(next_help_heading = "Making a pool")]
pub(crate) struct CreateArgs {
    /// Make the pool if the folder, or the memory servers, hold none
    #[arg(long)]
    pub(crate) create: bool,
    /// Bytes of all memory servers together [default: 4GiB]
    #[arg(long, value_name = "SIZE", requires = "create")]
    pub(crate) pool_bytes: Option<Size>,
    /// Memory servers of the pool [default: 1]
    #[arg(long, value_name = "COUNT", requires = "create")]
    pub(crate) memory_servers: Option<u32>,
    /// Bytes of a block, the unit in which compute servers take memory: a power of two
    #[arg(long, value_name = "SIZE", requires = "create")]
    pub(crate) block_bytes: Option<Size>,
    /// Let the files of a shm: pool take space only as it is used; a file system that is full then ends commands
    #[arg(long, requires = "create")]
    pub(crate) no_reserve: bool,
}

/// Options for making a table if there is none.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Making a table")]
pub(crate) struct NewTableArgs {
    #[arg(long, value_parser = formats::parse_engine,
        help = format!("The design of the index [default: {}]", Engine::default()))]
    pub(crate) engine: Option<Engine>,
    /// Keys that it takes: bytes, bytes:MAX or fixed:N [default: bytes:1024]
    #[arg(long, value_name = "FORMAT", value_parser = formats::parse_key_format)]
    pub(crate) key_format: Option<KeyFormat>,
    /// Values that it takes: bytes or fixed:N [default: bytes]
    #[arg(long, value_name = "FORMAT", value_parser = formats::parse_value_format)]
    pub(crate) value_format: Option<ValueFormat>,
    /// Meaning of its values: raw, or records, which may expire and be small hashes [default: raw]
    #[arg(long, value_name = "CONTENT")]
    pub(crate) content: Option<Content>,
}

impl NewTableArgs {
    /// The options by their names, with what was given for each.
    pub(crate) fn given(&self) -> [(&'static str, Option<String>); 4] {
        [
            ("--engine", self.engine.map(|engine| engine.to_string())),
            ("--key-format", self.key_format.map(formats::key_format)),
            ("--value-format", self.value_format.map(formats::value_format)),
            ("--content", self.content.map(|content| content.to_string())),
        ]
    }
}

#[derive(Debug, Args)]
pub(crate) struct LoadArgs {
    #[command(flatten)]
    pub(crate) table: TableArgs,
    #[command(flatten)]
    pub(crate) set: SetArgs,
    /// The file to read; `-` or nothing for standard input
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) file: Option<PathBuf>,
    /// Format of a record
    #[arg(short, long, default_value = "lines", value_parser = OneOf::<InputFormat>::names())]
    pub(crate) format: InputFormat,
    /// Column of the key, by number from 1 or by name (tsv, csv) [default: 1]
    #[arg(long, value_name = "COLUMN")]
    pub(crate) key_column: Option<ColumnSpec>,
    /// Column of the value, by number from 1 or by name (tsv, csv) [default: 2]
    #[arg(long, value_name = "COLUMN", conflicts_with_all = ["value", "value_from"])]
    pub(crate) value_column: Option<ColumnSpec>,
    /// The first line names the columns (tsv, csv)
    #[arg(long)]
    pub(crate) header: bool,
    /// Give every key this value
    #[arg(long, value_name = "TEXT", conflicts_with = "value_from")]
    pub(crate) value: Option<OsString>,
    /// Source of values, if not the input
    #[arg(long, value_name = "SOURCE", value_parser = OneOf::<ValueFrom>::names())]
    pub(crate) value_from: Option<ValueFrom>,
    /// The input is sorted by key without repetition: fill an empty table from it in one go
    #[arg(long)]
    pub(crate) sorted: bool,
    /// Leave out records that are malformed or do not fit, and count them
    #[arg(long)]
    pub(crate) skip_errors: bool,
    /// Go on with a load that was stopped: leave out the input up to and with this line (of binary: record), which
    /// the stopped load has named
    #[arg(long, value_name = "LINE", default_value_t = 0, hide_default_value = true)]
    pub(crate) resume_from: u64,
    /// Threads that insert
    #[arg(short, long, value_name = "COUNT", default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) threads: u16,
    /// Records of a batch
    #[arg(long, value_name = "COUNT", default_value = "1000")]
    pub(crate) batch: Count,
    #[command(flatten)]
    pub(crate) create: CreateArgs,
    #[command(flatten)]
    pub(crate) new_table: NewTableArgs,
}

/// Source of a value, if not the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ValueFrom {
    /// The number of the line, from 1: in decimal, or as 8 bytes, least first, if values are fixed:8
    LineNumber,
}

#[derive(Debug, Args)]
pub(crate) struct GetArgs {
    #[command(flatten)]
    pub(crate) table: TableArgs,
    #[command(flatten)]
    pub(crate) set: SetArgs,
    /// The keys
    #[arg(required = true, value_name = "KEY")]
    pub(crate) keys: Vec<OsString>,
    #[command(flatten)]
    pub(crate) near: NearArgs,
    #[command(flatten)]
    pub(crate) bytes: BytesArgs,
}

/// The pair that is printed for a key; its own if none is set.
#[derive(Clone, Copy, Debug, Args)]
#[group(multiple = false)]
pub(crate) struct NearArgs {
    /// Print the largest key that is at most KEY, and its value
    #[arg(long)]
    pub(crate) floor: bool,
    /// Print the smallest key that is at least KEY, and its value
    #[arg(long)]
    pub(crate) ceiling: bool,
    /// Print the largest key below KEY, and its value
    #[arg(long)]
    pub(crate) lower: bool,
    /// Print the smallest key above KEY, and its value
    #[arg(long)]
    pub(crate) higher: bool,
    /// Print the longest key that KEY starts with, and its value
    #[arg(long)]
    pub(crate) longest_prefix: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PutArgs {
    #[command(flatten)]
    pub(crate) table: TableArgs,
    #[command(flatten)]
    pub(crate) set: SetArgs,
    /// The key
    pub(crate) key: OsString,
    /// The value; `-` reads it from standard input
    pub(crate) value: OsString,
    /// Only add: exit with 1 if the key is there
    #[arg(long, conflicts_with = "if_present")]
    pub(crate) if_absent: bool,
    /// Only change: exit with 1 if the key is not there
    #[arg(long)]
    pub(crate) if_present: bool,
    /// Let the value expire after this time; for tables of records (--content records)
    #[arg(long, value_name = "TIME")]
    pub(crate) expires_in: Option<TimeSpan>,
    /// Read key and value in hexadecimal
    #[arg(long)]
    pub(crate) hex: bool,
    #[command(flatten)]
    pub(crate) create: CreateArgs,
    #[command(flatten)]
    pub(crate) new_table: NewTableArgs,
}

#[derive(Debug, Args)]
pub(crate) struct DelArgs {
    #[command(flatten)]
    pub(crate) table: TableArgs,
    #[command(flatten)]
    pub(crate) set: SetArgs,
    /// The keys; `-` alone reads them from standard input, one a line
    #[arg(required_unless_present = "keys_from", value_name = "KEY")]
    pub(crate) keys: Vec<OsString>,
    /// Read the keys from this file, one a line; `-` for standard input
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "keys")]
    pub(crate) keys_from: Option<PathBuf>,
    /// Read keys in hexadecimal
    #[arg(long)]
    pub(crate) hex: bool,
}

/// The keys that a command works on; all if none is set.
#[derive(Debug, Args)]
pub(crate) struct RangeArgs {
    /// Only keys that start with this
    #[arg(long, value_name = "KEY", conflicts_with_all = ["from", "to"])]
    pub(crate) prefix: Option<OsString>,
    /// Start at this key, itself included
    #[arg(long, value_name = "KEY")]
    pub(crate) from: Option<OsString>,
    /// Stop before this key
    #[arg(long, value_name = "KEY")]
    pub(crate) to: Option<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct ScanArgs {
    #[command(flatten)]
    pub(crate) table: TableArgs,
    #[command(flatten)]
    pub(crate) set: SetArgs,
    #[command(flatten)]
    pub(crate) range: RangeArgs,
    /// At most so many
    #[arg(short = 'n', long, value_name = "COUNT")]
    pub(crate) limit: Option<Count>,
    /// From the largest key down
    #[arg(short, long)]
    pub(crate) reverse: bool,
    /// Leave out values
    #[arg(short, long)]
    pub(crate) keys_only: bool,
    /// Print only how many there are
    #[arg(short, long, conflicts_with = "keys_only")]
    pub(crate) count: bool,
    #[command(flatten)]
    pub(crate) bytes: BytesArgs,
}

#[derive(Debug, Args)]
pub(crate) struct CountArgs {
    #[command(flatten)]
    pub(crate) table: TableArgs,
    #[command(flatten)]
    pub(crate) set: SetArgs,
    #[command(flatten)]
    pub(crate) range: RangeArgs,
    /// Read the keys of the range in hexadecimal
    #[arg(long)]
    pub(crate) hex: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub(crate) shell: Shell,
}

/// A number that does not fit is far beyond every limit, and stays so.
pub(crate) fn to_usize(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_and_option_has_help() {
        for command in Cli::command().get_subcommands() {
            assert!(command.get_about().is_some(), "{}", command.get_name());
            for option in command.get_arguments() {
                let (command, option_id) = (command.get_name(), option.get_id());
                assert!(option.get_help().is_some(), "{command} {option_id}");
            }
        }
    }
}
