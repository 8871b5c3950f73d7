//! Systems: the engines over TCP, each on its own memory server, and Redis; they run in turns.

use farleaf_engines::Engine;
use farleaf_index::Settings;

use super::{benchmark::Figures, play::RedisPlan, wire::Wire};
use crate::{
    config::{BenchConfig, Cluster, FabricKind},
    keys::{KeyOrder, KeySpec},
    report::{PerOp, Report, ReportKind},
    repro::{error::ReproError, hosts::Hosts},
    run::{self, Progress},
    units::human_bytes,
    values::ValueMaker,
    workload::{OpKind, Workload},
};

pub(super) const VALUE_BYTES: usize = 8;
const KEY_TYPE: KeySpec = KeySpec::U64(KeyOrder::Hashed);
/// A node of both engines.
const NODE_BYTES: f64 = 1024.0;
/// Room for every node, and for inserts.
const CACHE_OF_ALL: u64 = 256 << 20;
/// Room for the inner nodes of a million keys and little more: leaves are kept while there are frames
/// that were never used.
const CACHE_OF_INNER: u64 = 640 << 10;
const CACHE_OF_INNER_MIN: u64 = 256 << 10;
const KEYS_OF_INNER: u64 = 1_000_000;
/// Warm-up where there is little to warm: a share of the keys.
const WARMUP_SHARE: u64 = 10;
/// The most by which a get may cost less or more: a few leaves are kept, or read again.
const COST_TOLERANCE: f64 = 0.02;

/// A side of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum System {
    /// `dex` with a cache that holds everything.
    DexWarm,
    /// `dex` with a cache that holds no leaf.
    DexRead,
    /// `btree`, which caches nothing.
    BTree,
    Redis,
}

/// The work of all sides.
#[derive(Clone, Debug)]
pub(super) struct SystemPlan {
    pub(super) workload: Workload,
    pub(super) keys: u64,
    pub(super) ops: u64,
    /// Operations under way at a time.
    pub(super) depth: usize,
    pub(super) seed: u64,
    /// In place of the defaults.
    pub(super) settings: Settings,
}

/// One side's result of a round, or the medians over rounds.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct SystemResult {
    pub(super) ops_per_s: f64,
    /// Least and largest throughput of all rounds.
    pub(super) least: f64,
    pub(super) most: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    /// Remote operations, of those sides that do some.
    pub(super) per_op: Option<PerOp>,
    /// Cost of a get alone, without maintenance.
    pub(super) get: PerOp,
    pub(super) bytes_per_op: Option<f64>,
    /// The first answer that was wrong.
    pub(super) error: Option<String>,
}

impl System {
    pub(super) const ALL: [System; 4] =
        [System::DexWarm, System::DexRead, System::BTree, System::Redis];

    /// The name, for people.
    pub(super) fn name(self) -> &'static str {
        match self {
            System::DexWarm => "dex, warm cache",
            System::DexRead => "dex, one READ",
            System::BTree => "btree",
            System::Redis => "redis",
        }
    }

    /// The name of its settings in the configuration.
    pub(super) fn key(self) -> &'static str {
        match self {
            System::DexWarm => "dex_warm",
            System::DexRead => "dex_one_read",
            System::BTree => "btree",
            System::Redis => "redis",
        }
    }

    /// Describes its set-up.
    pub(super) fn about(self, keys: u64) -> String {
        let cache = |bytes| human_bytes(bytes);
        match self {
            System::DexWarm => format!(
                "cache of {}, which holds every node; every leaf is kept (admission eager); as many \
                 operations to warm it up as there are keys; changes logged, as by default",
                cache(CACHE_OF_ALL)
            ),
            System::DexRead => format!(
                "cache of {}, which holds the inner nodes; no leaf is kept (admission 0), so that a \
                 get READs its leaf, 1 KiB; changes logged",
                cache(inner_cache(keys))
            ),
            System::BTree => "no cache: a get READs a node of 1 KiB on every level".to_owned(),
            System::Redis => {
                "no persistence (save \"\", appendonly no); GET and SET pipelined on one \
                              connection, by a client of this program"
                    .to_owned()
            }
        }
    }

    fn settings(self, keys: u64) -> Settings {
        let (bytes, admission) = match self {
            System::DexWarm => (CACHE_OF_ALL, "eager"),
            System::DexRead => (inner_cache(keys), "0"),
            System::BTree | System::Redis => return Settings::default(),
        };
        Settings::default().with("cache", &bytes.to_string()).with("admission", admission)
    }

    fn warmup_ops(self, keys: u64) -> u64 {
        if self == System::DexWarm { keys } else { keys / WARMUP_SHARE }
    }

    /// Runs the plan, on a table that it loads first.
    ///
    /// # Errors
    /// Those of the bench, of a memory server that does not start, and of Redis.
    pub(super) fn run(
        self,
        plan: &SystemPlan,
        hosts: &dyn Hosts,
        wire: &mut Wire,
        progress: &dyn Progress,
    ) -> Result<SystemResult, ReproError> {
        let SystemPlan { workload, keys, ops, depth, seed, settings } = plan.clone();
        let warmup_ops = self.warmup_ops(keys);
        if self == System::Redis {
            let key_maker = KEY_TYPE.open().map_err(run::BenchError::from)?;
            let values = ValueMaker::new(VALUE_BYTES);
            let plan =
                RedisPlan { workload, keys, key_maker, values, warmup_ops, ops, depth, seed };
            let result = plan.run(wire, progress)?;
            return Ok(SystemResult {
                ops_per_s: result.phase.ops_per_s,
                least: result.phase.ops_per_s,
                most: result.phase.ops_per_s,
                p50_us: result.latency_us.p50,
                p99_us: result.latency_us.p99,
                per_op: None,
                get: PerOp::default(),
                bytes_per_op: Some(result.bytes_per_op),
                error: first_error(result.errors, result.first_error),
            });
        }
        let engine = if self == System::BTree { Engine::BTree } else { Engine::Dex };
        let config = BenchConfig {
            engine,
            fabric: FabricKind::Tcp,
            workload,
            keys,
            warmup_ops,
            ops,
            clients: depth,
            threads: 1,
            compute_servers: 1,
            memory_servers: 1,
            seed,
            key_type: KEY_TYPE,
            value_bytes: VALUE_BYTES,
            settings: self.settings(keys).and(&engine.known(&settings)),
            ..BenchConfig::default()
        };
        let region_bytes = run::region_bytes(&config)?;
        let host = hosts.memory_server(region_bytes).map_err(ReproError::Host)?;
        let cluster = Some(Cluster::Own(vec![host.address()]));
        let report = run::run(&BenchConfig { cluster, ..config }, progress)?;
        Ok(SystemResult::from(report))
    }

    /// Returns a statement of the cost of a get, and whether it holds.
    pub(super) fn cost_of_get(self, measured: &SystemResult) -> (String, bool) {
        let PerOp { reads, bytes_read, .. } = measured.get;
        let near = |number: f64, wanted: f64| (number - wanted).abs() <= COST_TOLERANCE * wanted;
        let of_nodes = near(bytes_read, reads * NODE_BYTES);
        let name = self.name();
        match self {
            System::DexWarm => (format!("{name}: a get READs nothing"), reads <= COST_TOLERANCE),
            System::DexRead => {
                (format!("{name}: a get is one READ of 1 KiB"), near(reads, 1.0) && of_nodes)
            }
            System::BTree | System::Redis => {
                // Any number of levels, of which there are a root and leaves.
                let whole = reads.round();
                let levels = whole >= 2.0 && near(reads, whole) && of_nodes;
                (format!("{name}: a get is a READ of 1 KiB on every level"), levels)
            }
        }
    }
}

fn inner_cache(keys: u64) -> u64 {
    (CACHE_OF_INNER * keys / KEYS_OF_INNER).max(CACHE_OF_INNER_MIN)
}

fn first_error(errors: u64, first: Option<String>) -> Option<String> {
    (errors > 0).then(|| first.unwrap_or_else(|| format!("{errors} operations failed")))
}

impl From<Report> for SystemResult {
    fn from(report: Report) -> Self {
        let run = report.run;
        let rate = run.phase.ops_per_s;
        let gets = run.by_kind.get(&ReportKind::Op(OpKind::Get));
        let get = gets.map(|gets| gets.per_op).unwrap_or_default();
        SystemResult {
            ops_per_s: rate,
            least: rate,
            most: rate,
            p50_us: run.latency_us.p50,
            p99_us: run.latency_us.p99,
            per_op: Some(run.per_op),
            get,
            bytes_per_op: Some(run.per_op.bytes_read + run.per_op.bytes_written),
            error: first_error(run.errors, run.first_error),
        }
    }
}

impl SystemResult {
    /// Number by number, the median over `rounds`.
    pub(super) fn median(rounds: &[SystemResult]) -> SystemResult {
        let of = |number: fn(&SystemResult) -> f64| median(rounds.iter().map(number).collect());
        let share = 1.0 / rounds.len() as f64;
        // Costs hardly differ: their mean is as good.
        let per_op = rounds.iter().map(|it| it.per_op).sum::<Option<PerOp>>();
        let per_op = per_op.map(|sum| sum.times(share));
        let bytes = rounds.iter().map(|it| it.bytes_per_op).sum::<Option<f64>>();
        let rates = || rounds.iter().map(|it| it.ops_per_s);
        SystemResult {
            ops_per_s: of(|it| it.ops_per_s),
            least: rates().fold(f64::INFINITY, f64::min),
            most: rates().fold(0.0, f64::max),
            p50_us: of(|it| it.p50_us),
            p99_us: of(|it| it.p99_us),
            per_op,
            get: rounds.iter().map(|it| it.get).sum::<PerOp>().times(share),
            bytes_per_op: bytes.map(|sum| sum * share),
            error: rounds.iter().find_map(|it| it.error.clone()),
        }
    }

    /// Medians of the results of Redis's own bench.
    pub(super) fn from_benchmark(rounds: &[Figures]) -> SystemResult {
        let each = |it: &Figures| SystemResult {
            ops_per_s: it.ops_per_s,
            p50_us: it.p50_us,
            p99_us: it.p99_us,
            ..SystemResult::default()
        };
        SystemResult::median(&rounds.iter().map(each).collect::<Vec<_>>())
    }
}

/// The middle of `numbers`, the lower one of two; 0 if there are none.
pub(super) fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_unstable_by(f64::total_cmp);
    numbers.get(numbers.len().saturating_sub(1) / 2).copied().unwrap_or(0.0)
}
