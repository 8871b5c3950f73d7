//! Systems: the engines over TCP, each on its own memory server, and Redis; they run in turns.

use farleaf_engines::Engine;
use farleaf_index::Settings;

use farleaf_resp::wire::Wire;

use super::play;
use crate::{
    config::{BenchConfig, Cluster},
    report::{PerOp, ReportKind, RunReport},
    repro::{Repro, error::ReproError},
    run,
    units::human_bytes,
    workload::OpKind,
};

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
        self.names().0
    }

    /// The names for people, and of its settings in the configuration.
    pub(super) fn names(self) -> (&'static str, &'static str) {
        match self {
            System::DexWarm => ("dex, warm cache", "dex_warm"),
            System::DexRead => ("dex, one READ", "dex_one_read"),
            System::BTree => ("btree", "btree"),
            System::Redis => ("redis", "redis"),
        }
    }

    /// Describes its set-up.
    pub(super) fn about(self, keys: u64) -> String {
        match self {
            System::DexWarm => format!(
                "cache of {}, which holds every node; every leaf is kept (admission eager); as many \
                 operations to warm it up as there are keys; changes logged, as by default",
                human_bytes(CACHE_OF_ALL)
            ),
            System::DexRead => format!(
                "cache of {}, which holds the inner nodes; no leaf is kept (admission 0), so that a \
                 get READs its leaf, 1 KiB; changes logged",
                human_bytes(inner_cache(keys))
            ),
            System::BTree => "no cache: a get READs a node of 1 KiB on every level".to_owned(),
            System::Redis => "no persistence (save \"\", appendonly no); GET and SET on one \
                              connection, in pipelines of 64 commands, by a client of this program"
                .to_owned(),
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

    /// Runs the bench of `config` on a table that it loads first.
    ///
    /// # Errors
    /// Those of the bench, of a memory server that does not start, and of Redis.
    pub(super) fn run(
        self,
        repro: &Repro<'_>,
        config: &BenchConfig,
        wire: &mut Wire,
    ) -> Result<SystemResult, ReproError> {
        let (keys, progress) = (config.keys, repro.progress);
        let warmup_ops = if self == System::DexWarm { keys } else { keys / WARMUP_SHARE };
        let config = BenchConfig { warmup_ops, ..config.clone() };
        if self == System::Redis {
            let (run, bytes_per_op) = play::run(&config, wire, progress)?;
            let bytes_per_op = Some(bytes_per_op);
            return Ok(SystemResult { bytes_per_op, per_op: None, ..run.into() });
        }
        let engine = if self == System::BTree { Engine::BTree } else { Engine::Dex };
        let settings = self.settings(keys).and(&engine.known(&config.settings));
        let config = BenchConfig { engine, settings, ..config };
        let host = repro.hosts.memory_server(run::region_bytes(&config)?);
        let host = host.map_err(ReproError::Host)?;
        let cluster = Some(Cluster::Own(vec![host.address()]));
        Ok(run::run(&BenchConfig { cluster, ..config }, progress)?.run.into())
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
                // Any number of levels, of which there are a root and leaves. Beside their nodes comes the word of the
                // root, of 8 bytes, each time that the epoch has moved on: on a busy machine once in few gets.
                let nodes = (bytes_read / NODE_BYTES).round();
                let levels = nodes >= 2.0
                    && near(bytes_read, nodes * NODE_BYTES)
                    && (nodes * (1.0 - COST_TOLERANCE)..nodes + 1.0).contains(&reads);
                (format!("{name}: a get is a READ of 1 KiB on every level"), levels)
            }
        }
    }
}

fn inner_cache(keys: u64) -> u64 {
    (CACHE_OF_INNER * keys / KEYS_OF_INNER).max(CACHE_OF_INNER_MIN)
}

impl From<RunReport> for SystemResult {
    fn from(run: RunReport) -> Self {
        let rate = run.phase.ops_per_s;
        let get = run.by_kind.get(&ReportKind::Op(OpKind::Get));
        let failed = || format!("{} operations failed", run.errors);
        SystemResult {
            ops_per_s: rate,
            least: rate,
            most: rate,
            p50_us: run.latency_us.p50,
            p99_us: run.latency_us.p99,
            per_op: Some(run.per_op),
            get: get.map(|gets| gets.per_op).unwrap_or_default(),
            bytes_per_op: Some(run.per_op.bytes_read + run.per_op.bytes_written),
            error: (run.errors > 0).then(|| run.first_error.unwrap_or_else(failed)),
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
}

/// The middle of `numbers`, the lower one of two; 0 if there are none.
pub(super) fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_unstable_by(f64::total_cmp);
    numbers.get(numbers.len().saturating_sub(1) / 2).copied().unwrap_or(0.0)
}
