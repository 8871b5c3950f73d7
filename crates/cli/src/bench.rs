//! Bench options: the options of `farleaf bench`, and the configurations that they give.

use std::path::PathBuf;

use clap::{Args, ValueHint};
use farleaf::{Builder, Engine};
use farleaf_bench::units::{Count, Rate, Size, SizeOrShare};
use farleaf_bench::{
    BenchConfig, Boundaries, CapabilityKind, Cluster, FabricKind, KeySpec, LoadKind, Parts,
    RequestDistribution, Routing, ScanLength, Workload, YcsbConfig, YcsbProperties,
};
use farleaf_index::knobs::CACHE;

use crate::args::to_usize;
use crate::card::CardArgs;
use crate::errors::{self, Failure};
use crate::formats;
use crate::settings::SetArgs;

/// Measure an engine under a workload
#[derive(Debug, Default, Args)]
#[command(
    after_help = "Counts read 1000, 100K, 2.5M; sizes read 4096, 64KiB, 1GB; rates read 250K, 1.5M/s.",
    after_long_help = "\
Workloads: YCSB's a to f; read-only, read-intensive, write-intensive, insert-intensive and
scan-intensive as in the paper of DEX; or a mix as in get=95,update=5.

Counts read 1000, 100K, 2.5M; sizes read 4096, 64KiB, 1GB; rates read 250K, 1.5M/s."
)]
pub(crate) struct BenchArgs {
    /// Engines to measure one after the other: names with commas between them, or all
    #[arg(short, long, default_value = Engine::default().name(), value_name = "ENGINES")]
    pub(crate) engine: String,
    /// Operations to run: a workload's name, or a mix as in get=95,update=5 [default: a]
    #[arg(short, long, conflicts_with_all = ["property_file", "property"])]
    pub(crate) workload: Option<String>,
    /// Keys to load [default: 1M]
    #[arg(short, long, value_name = "COUNT")]
    pub(crate) keys: Option<Count>,
    /// Operations before the measured ones, of all clients together [default: 100K]
    #[arg(long, value_name = "COUNT")]
    pub(crate) warmup: Option<Count>,
    /// Operations to measure, of all clients together [default: 1M]
    #[arg(short = 'n', long, value_name = "COUNT")]
    pub(crate) ops: Option<Count>,
    /// Distribution of keys: zipfian, uniform, latest, hotspot, exponential, sequential
    /// [default: the workload's]
    #[arg(short, long)]
    pub(crate) distribution: Option<RequestDistribution>,
    /// Skew of zipfian and latest, above 0 [default: 0.99]
    #[arg(long, allow_negative_numbers = true)]
    pub(crate) theta: Option<f64>,
    /// Clients of all compute servers together [default: 16]
    #[arg(short, long, value_name = "COUNT")]
    pub(crate) clients: Option<Count>,
    /// Threads of all compute servers together [default: 2, or as many as clients]
    #[arg(short, long, value_name = "COUNT")]
    pub(crate) threads: Option<Count>,
    /// Compute servers [default: 1]
    #[arg(long, value_name = "COUNT")]
    pub(crate) compute_servers: Option<Count>,
    /// Memory servers [default: 2]
    #[arg(long, value_name = "COUNT")]
    pub(crate) memory_servers: Option<Count>,
    /// Fabric that carries the operations: mapped (this process's memory), sim (simulated network, virtual
    /// time), tcp (memory servers, processes on this machine unless --connect says where) or verbs (the
    /// same by RDMA) [default: mapped]
    #[arg(short, long)]
    pub(crate) fabric: Option<FabricKind>,
    /// Memory servers to use (needs --fabric tcp or verbs, as the address says): a pool that is there keeps its tables, and the
    /// bench's own is dropped at the end
    #[arg(long, value_name = "POOL", conflicts_with_all = ["memory_servers", "pool_bytes"])]
    pub(crate) connect: Option<String>,
    /// Seed of all randomness [default: 1]
    #[arg(short, long)]
    pub(crate) seed: Option<u64>,
    /// YCSB workload file; may be given more than once
    #[arg(short = 'P', value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) property_file: Vec<PathBuf>,
    /// YCSB property, which wins over files; may be given more than once
    #[arg(short = 'p', value_name = "PROPERTY=VALUE")]
    pub(crate) property: Vec<String>,
    /// Kind of keys: u64, u64:ordered, bytes, bytes:ordered, bytes:24, digits:24, randint, email,
    /// lines:FILE [default: u64]
    #[arg(long, value_name = "TYPE")]
    pub(crate) key_type: Option<KeySpec>,
    /// Length of values [default: 8]
    #[arg(long, value_name = "SIZE")]
    pub(crate) value_bytes: Option<Size>,
    /// Pairs of a scan: 100, 1-100 or zipfian:1-100 [default: the workload's]
    #[arg(long, value_name = "LENGTH")]
    pub(crate) scan_length: Option<ScanLength>,
    /// Operations per second of all clients together: an open loop, which does not wait
    #[arg(short, long)]
    pub(crate) rate: Option<Rate>,
    /// Way to load the keys: bulk or insert [default: bulk]
    #[arg(long)]
    pub(crate) load: Option<LoadKind>,
    /// Cache of each compute server, short for --set cache=SIZE: bytes, or as in 8% a share of what the
    /// loaded table takes in the pool [default: 256MiB]
    #[arg(long, value_name = "SIZE")]
    pub(crate) cache: Option<SizeOrShare>,
    #[command(flatten)]
    pub(crate) set: SetArgs,
    #[command(flatten)]
    pub(crate) parts: PartsArgs,
    #[command(flatten)]
    pub(crate) card: CardArgs,
    /// Bytes of all memory servers together [default: what the keys need]
    #[arg(long, value_name = "SIZE")]
    pub(crate) pool_bytes: Option<Size>,
    /// Have the simulator tear and reorder words (needs --fabric sim)
    #[arg(long)]
    pub(crate) torn: bool,
    /// Capabilities of the simulator beyond the contract: none, mapped or write-vs-rmw [default: none]
    #[arg(long, value_name = "SET")]
    pub(crate) capabilities: Option<CapabilityKind>,
    /// Check every node of the table at the end
    #[arg(long)]
    pub(crate) verify: bool,
    /// Write the reports to this file, too, one JSON object a line
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) output: Option<PathBuf>,
    /// Print only what operations cost: a line for each run and kind of operation
    #[arg(long, conflicts_with = "dry_run")]
    pub(crate) costs: bool,
    /// Print what would be run as JSON, and run nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// Partitions of the table and their servers, for engines with owners.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Partitions")]
pub(crate) struct PartsArgs {
    /// Partitions of the table [default: one for each compute server]
    #[arg(long, value_name = "COUNT")]
    pub(crate) partitions: Option<Count>,
    /// Bounds of partitions: sampled (equal shares of the keys that are loaded) or equal (equal shares
    /// of all u64) [default: sampled]
    #[arg(long)]
    pub(crate) boundaries: Option<Boundaries>,
    /// Compute server where operations begin: owner (at the compute server that owns the key) or any (at their
    /// client's, which forwards those on others' keys) [default: owner; any with --rate]
    #[arg(long)]
    pub(crate) routing: Option<Routing>,
    /// Threads of each memory server that work for others (needs --fabric sim, tcp or verbs) [default: 1]
    #[arg(long, value_name = "COUNT")]
    pub(crate) memory_threads: Option<Count>,
}

impl PartsArgs {
    fn parts(&self) -> Parts {
        Parts {
            partitions: self.partitions.map(|count| to_usize(count.0)),
            boundaries: self.boundaries,
            routing: self.routing,
            memory_threads: self.memory_threads.map(|count| to_usize(count.0)),
        }
    }
}

/// Runs that were asked for.
#[derive(Debug)]
pub(crate) struct Plan {
    /// One for each engine; they differ in nothing else.
    pub(crate) runs: Vec<BenchConfig>,
    /// YCSB's properties that were given and change nothing, by name.
    pub(crate) ignored: Vec<String>,
}

impl BenchArgs {
    /// Makes sense of the options. `pools` is how a pool is reached that they name.
    ///
    /// # Errors
    /// [`Exit::Usage`](crate::errors::Exit::Usage) with a sentence on what does not.
    pub(crate) fn plan(&self, pools: &Builder) -> Result<Plan, Failure> {
        let engines = engines(&self.engine)?;
        let ycsb = self.ycsb()?;
        let mut config = BenchConfig::default();
        let mut ignored = Vec::new();
        if let Some(ycsb) = ycsb {
            ignored = self.take_ycsb(ycsb, &mut config)?;
        } else if let Some(workload) = &self.workload {
            config.workload = workload.parse().map_err(usage)?;
        }
        self.take_workload(&mut config.workload)?;
        self.take_counts(&mut config, pools)?;
        let several = engines.len() > 1;
        for (name, _) in config.settings.iter().filter(|_| several) {
            let one = config.settings.filtered(|it| it == name);
            if engines.iter().all(|engine| engine.known(&one).is_empty()) {
                // Some engine says so, with the names that it has.
                engines[0].split(&one).map_err(usage)?;
            }
        }
        let run = |engine: Engine| {
            let mut run = BenchConfig { engine, ..config.clone() };
            if several {
                // The choice holds for those of them that have it.
                run.settings = engine.known(&run.settings);
                if !engine.traits().owned {
                    run.parts = run.parts.of_plain_engine(run.fabric);
                }
            }
            run.validate().map_err(usage)?;
            Ok(run)
        };
        let runs = engines.into_iter().map(run).collect::<Result<_, Failure>>()?;
        Ok(Plan { runs, ignored })
    }

    fn ycsb(&self) -> Result<Option<YcsbConfig>, Failure> {
        if self.property_file.is_empty() && self.property.is_empty() {
            return Ok(None);
        }
        let mut properties = YcsbProperties::new();
        for file in &self.property_file {
            properties.read_file(file).map_err(usage)?;
        }
        for property in &self.property {
            properties.set(property).map_err(usage)?;
        }
        properties.config().map(Some).map_err(usage)
    }

    /// Takes what YCSB's properties say; options win over them later. Returns those ignored.
    fn take_ycsb(
        &self,
        ycsb: YcsbConfig,
        config: &mut BenchConfig,
    ) -> Result<Vec<String>, Failure> {
        config.workload = ycsb.workload;
        if ycsb.record_count > 0 {
            config.keys = ycsb.record_count;
        }
        config.ops = ycsb.operation_count.unwrap_or(config.ops);
        config.value_bytes = ycsb.value_bytes;
        config.key_type = KeySpec::Bytes(ycsb.key_order);
        if let Some(count) = ycsb.thread_count {
            config.clients = to_usize(count);
        }
        config.rate = ycsb.target_ops_per_s.and_then(Rate::new);
        let mut ignored: Vec<String> = ycsb.ignored.into_iter().map(|(name, _)| name).collect();
        if ycsb.max_seconds.is_some() {
            ignored.push("maxexecutiontime".to_owned());
        }
        Ok(ignored)
    }

    fn take_workload(&self, workload: &mut Workload) -> Result<(), Failure> {
        if let Some(distribution) = self.distribution {
            workload.request = distribution;
        }
        if let Some(wanted) = self.theta {
            match &mut workload.request {
                RequestDistribution::Zipfian { theta } | RequestDistribution::Latest { theta } => {
                    *theta = wanted;
                }
                other => {
                    return Err(Failure::usage(format!(
                        "--theta is the skew of zipfian and latest; the distribution is {other}"
                    )));
                }
            }
        }
        if let Some(length) = self.scan_length {
            workload.scan_length = length;
        }
        Ok(())
    }

    fn take_counts(&self, config: &mut BenchConfig, pools: &Builder) -> Result<(), Failure> {
        let defaults = (config.clients, config.threads);
        for (given, place) in [
            (self.keys, &mut config.keys),
            (self.warmup, &mut config.warmup_ops),
            (self.ops, &mut config.ops),
        ] {
            if let Some(count) = given {
                *place = count.0;
            }
        }
        for (given, place) in [
            (self.clients, &mut config.clients),
            (self.threads, &mut config.threads),
            (self.compute_servers, &mut config.compute_servers),
            (self.memory_servers, &mut config.memory_servers),
        ] {
            if let Some(count) = given {
                *place = to_usize(count.0);
            }
        }
        // A default never contradicts what was asked for.
        if self.threads.is_none() {
            let servers = config.compute_servers.max(1);
            config.threads = defaults.1.min(config.clients).next_multiple_of(servers).max(1);
        }
        config.fabric = self.fabric.unwrap_or(config.fabric);
        config.card = self.card.config();
        if config.fabric != FabricKind::Verbs {
            self.card.refuse("--fabric verbs")?;
        }
        if let Some(pool) = &self.connect {
            let usage = |error: farleaf::Error| Failure::usage(error.to_string());
            let found = pools.locate(pool).map_err(usage)?;
            let needed = if found.card.is_some() { FabricKind::Verbs } else { FabricKind::Tcp };
            if config.fabric != needed {
                return Err(Failure::usage(format!("--connect {pool} needs --fabric {needed}")));
            }
            if let Some(card) = found.card {
                self.card.refuse("memory servers of the bench's own: an address says it itself")?;
                config.card = card;
            }
            config.memory_servers = found.addresses.len();
            config.cluster = Some(Cluster::Shared(found.addresses));
        }
        config.seed = self.seed.unwrap_or(config.seed);
        config.load = self.load.unwrap_or(config.load);
        config.torn = self.torn;
        config.verify = self.verify;
        config.capabilities = self.capabilities.unwrap_or(config.capabilities);
        config.rate = self.rate.or(config.rate);
        if let Some(key_type) = &self.key_type {
            config.key_type = key_type.clone();
        }
        if let Some(size) = self.value_bytes {
            config.value_bytes = to_usize(size.0);
        }
        config.settings = self.set.settings();
        if let Some(cache) = self.cache {
            config.settings.set(CACHE, &cache.to_string());
        }
        config.parts = self.parts.parts();
        config.pool_bytes = self.pool_bytes.map(|size| size.0).or(config.pool_bytes);
        Ok(())
    }
}

/// Engines by their names, each once.
fn engines(text: &str) -> Result<Vec<Engine>, Failure> {
    if text.trim().eq_ignore_ascii_case("all") {
        return Ok(Engine::ALL.to_vec());
    }
    let mut engines = Vec::new();
    for name in text.split(',') {
        let engine = formats::parse_engine(name).map_err(Failure::usage)?;
        if !engines.contains(&engine) {
            engines.push(engine);
        }
    }
    Ok(engines)
}

/// An error of the library about what was asked for, with its causes.
fn usage(error: impl std::error::Error + Send + Sync + 'static) -> Failure {
    Failure::usage(errors::told(&anyhow::Error::new(error)))
}

#[cfg(test)]
mod tests;
