//! Driver: runs any engine of the table of engines on a paper's cluster, in the simulator.
//!
//! Round trips, operations and bytes are exact. Throughput and latency are the simulator's: they count as
//! ratios within one run.

use std::{cell::Cell, rc::Rc};

use farleaf_engines::Engine;
use farleaf_index::Settings;
use farleaf_index::knobs::{CACHE, DURABILITY};
use serde::Deserialize;

use super::{
    Repro, ReproOptions,
    error::ReproError,
    papers::DexSetup,
    report::{ReproChart, ReproReport},
};
use crate::{
    config::{BenchConfig, CapabilityKind, CardModel, FabricKind},
    distribution::RequestDistribution,
    keys::KeySpec,
    report::{KindReport, PerOp, Report, ReportKind},
    run::{self, BenchError, Progress},
    workload::{Mix, OpKind, ScanLength, Workload},
};

/// The least scale: clients of the largest experiment have two operations each.
pub(super) const SCALE_MIN: f64 = 1.0 / 65_536.0;
/// Bytes of cache that one client's path through a B+-tree takes, whatever the scale.
const PATH_BYTES: u64 = 9_362;
/// Engines whose caches have to hold the path of each client, in nodes.
const PATH_CACHES: [&str; 1] = ["dex"];
/// The least cache of these engines: ten nodes of 4 KiB.
const PATHS_MIN: u64 = 40 << 10;
/// Systems whose own programs unlock by a WRITE, so that their cards keep a WRITE and a CAS of one word apart. P-Sherman is
/// none: it locks leaves without words, and its figures are the same either way.
const UNLOCK_BY_WRITE: [&str; 1] = ["sherman"];
/// The remark of a report with rows of these systems.
pub(super) const UNLOCKED_BY_WRITE: &str = "Rows of sherman: a WRITE of a lock word and a CAS of it \
     exclude each other (write_vs_rmw), as its program unlocks by WRITE.";
/// A reason: locks in the simulator.
pub(super) const LOCKS_DIFFER: &str =
    "the simulator's locks cost round trips and waits, but no contention in a card's memory";
/// A reason: locks of plain ART.
pub(super) const PATH_LOCKS: &str =
    "a writer locks each node on its way, the root among them, so that all writers take turns";
/// The name of YCSB's load phase, which is no workload.
pub(super) const LOAD: &str = "load";
/// A scan counts as so many operations, as it reads as many pairs and more.
const SCAN_WEIGHT: u64 = 10;

/// Cluster, data and load of a paper's experiments, at scale 1.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct PaperCluster {
    pub(super) keys: u64,
    pub(super) value_bytes: usize,
    pub(super) compute_servers: usize,
    pub(super) memory_servers: usize,
    /// Clients of all compute servers.
    pub(super) clients: usize,
    /// Bytes of each compute server's cache.
    pub(super) cache_bytes: u64,
    pub(super) warmup_ops: u64,
    pub(super) ops: u64,
    /// Clients of each thread; 0 stands for 1.
    #[serde(default)]
    pub(super) coroutines: usize,
    /// Rates of the cards, where the paper's unlock by WRITE and its rates are known. Else the simulator's own.
    #[serde(default)]
    pub(super) card: Option<CardModel>,
}

impl PaperCluster {
    /// DEX's cluster, with as many measured operations as its warm-up has.
    pub(super) fn of(setup: &DexSetup) -> Self {
        PaperCluster {
            keys: setup.keys,
            value_bytes: setup.value_bytes as usize,
            compute_servers: setup.compute_servers,
            memory_servers: setup.memory_servers,
            clients: setup.threads,
            cache_bytes: setup.cache_bytes,
            warmup_ops: setup.warmup_ops,
            ops: setup.warmup_ops,
            coroutines: 1,
            card: None,
        }
    }
}

/// See the [module page](self).
pub(super) struct Driver<'a> {
    pub(super) cluster: PaperCluster,
    pub(super) options: &'a ReproOptions,
    progress: &'a dyn Progress,
    unlocked_by_write: Rc<Cell<bool>>,
}

impl<'a> Driver<'a> {
    /// Runs on that cluster, at the scale of the request.
    pub(super) fn new(repro: &Repro<'a>, cluster: PaperCluster) -> Self {
        let unlocked_by_write = Rc::clone(&repro.unlocked_by_write);
        Driver { cluster, options: repro.options, progress: repro.progress, unlocked_by_write }
    }

    /// As [`Driver::new`]; the report of the paper `source` records the parameters of the run.
    pub(super) fn begin(
        repro: &Repro<'a>,
        report: &mut ReproReport,
        source: &str,
        cluster: PaperCluster,
    ) -> Self {
        let driver = Driver::new(repro, cluster);
        let (cluster, options) = (&driver.cluster, driver.options);
        report.source = source.to_owned();
        report.set("seed", options.seed);
        report.set("keys", options.scaled(cluster.keys));
        report.set("value_bytes", cluster.value_bytes);
        report.set("clients", cluster.clients);
        report.set("compute_servers", cluster.compute_servers);
        report.set("memory_servers", cluster.memory_servers);
        report.set("cache_bytes", driver.options.scaled(cluster.cache_bytes));
        let raised = PATH_CACHES.iter().filter_map(|name| engine(name));
        for engine in raised.filter(|it| driver.has_larger_cache(*it)) {
            report.set(&format!("cache_bytes_{engine}"), driver.cache_bytes(engine));
            report.note(format!(
                "{engine} has a larger cache than the paper's share at this scale: it holds the path of each client."
            ));
        }
        driver
    }

    /// The cluster's cache at the scale. Engines that cache paths never get less than those of a compute server's
    /// clients.
    fn cache_bytes(&self, engine: Engine) -> u64 {
        let PaperCluster { clients, compute_servers, cache_bytes, .. } = self.cluster;
        let share = self.options.scaled(cache_bytes);
        if !PATH_CACHES.contains(&engine.name()) {
            return share;
        }
        let each = clients.div_ceil(compute_servers) as u64;
        share.max(each * PATH_BYTES).max(PATHS_MIN)
    }

    /// True if `engine` gets a larger cache than the paper's share.
    pub(super) fn has_larger_cache(&self, engine: Engine) -> bool {
        self.cache_bytes(engine) > self.options.scaled(self.cluster.cache_bytes)
    }

    /// A run of `workload` on the paper's cluster, with the engine's defaults but for the cache and for
    /// changes, which are volatile: no paper keeps changes that a dead compute server had not written.
    pub(super) fn case(&self, engine: Engine, keys: &KeySpec, workload: Workload) -> BenchConfig {
        let cluster = &self.cluster;
        let cache = self.cache_bytes(engine).to_string();
        let volatile = Settings::default().with(DURABILITY, "volatile");
        let settings = volatile.and(&self.options.settings).with(CACHE, &cache);
        let weight = if workload.mix.share(OpKind::Scan) > 0.0 { SCAN_WEIGHT } else { 1 };
        let least = cluster.clients as u64;
        BenchConfig {
            engine,
            fabric: FabricKind::Sim,
            keys: self.options.scaled(cluster.keys).max(1),
            warmup_ops: self.options.scaled(cluster.warmup_ops) / weight,
            ops: (self.options.scaled(cluster.ops) / weight).max(least),
            clients: cluster.clients,
            threads: cluster.clients / cluster.coroutines.max(1),
            card_model: cluster.card,
            capabilities: match cluster.card.is_some() || unlocks_by_write(engine) {
                true => CapabilityKind::WriteRmw,
                false => CapabilityKind::None,
            },
            compute_servers: cluster.compute_servers,
            memory_servers: cluster.memory_servers,
            seed: self.options.seed,
            key_type: keys.clone(),
            value_bytes: cluster.value_bytes,
            settings: engine.known(&settings),
            workload,
            ..BenchConfig::default()
        }
    }

    /// Runs the bench. An operation that fails or answers wrongly ends the experiment.
    ///
    /// # Errors
    /// `Bench`, `Wrong`.
    pub(super) fn measure(&self, config: &BenchConfig) -> Result<Report, ReproError> {
        if self.cluster.card.is_none() && unlocks_by_write(config.engine) {
            self.unlocked_by_write.set(true);
        }
        all_right(config, run::run(config, self.progress)?)
    }

    /// Runs the bench as [`Driver::measure`], and reports these figures of it.
    ///
    /// # Errors
    /// `Bench`, `Wrong`.
    pub(super) fn record(
        &self,
        report: &mut ReproReport,
        case: &str,
        config: &BenchConfig,
        metrics: &[Metric],
    ) -> Result<Report, ReproError> {
        let measured = self.measure(config)?;
        for (quantity, of) in metrics {
            report.row(case, quantity, None, of(&measured), "");
        }
        Ok(measured)
    }

    /// As [`Driver::record`] for every engine, with its throughput as a point of a chart.
    ///
    /// # Errors
    /// `Bench`, `Wrong`.
    pub(super) fn sweep(
        &self,
        report: &mut ReproReport,
        chart: &mut ReproChart,
        case: &str,
        at: &str,
        config: impl Fn(Engine) -> Result<BenchConfig, ReproError>,
    ) -> Result<(), ReproError> {
        for engine in engines() {
            let (case, config) = (format!("{case}, {engine}"), config(engine)?);
            let measured = self.record(report, &case, &config, &[MOPS, TRIPS, P99])?;
            chart.add(engine.name(), at, mops(&measured));
        }
        Ok(())
    }

    /// A run of the built-in workload called `name`, as [`Driver::case`]. The [`LOAD`] is inserts.
    ///
    /// # Errors
    /// `Bench`.
    pub(super) fn named(
        &self,
        engine: Engine,
        keys: &KeySpec,
        name: &str,
    ) -> Result<BenchConfig, ReproError> {
        if name != LOAD {
            return Ok(self.case(engine, keys, workload(name)?));
        }
        let load = mixed(LOAD, &[(OpKind::Insert, 1.0)], RequestDistribution::Uniform)?;
        Ok(inserts(self.case(engine, keys, load)))
    }
}

/// Returns the report of a run in which no operation failed or answered wrongly.
///
/// # Errors
/// `Wrong`.
pub(super) fn all_right(config: &BenchConfig, report: Report) -> Result<Report, ReproError> {
    match (&report.run.first_error, report.run.errors) {
        (_, 0) => Ok(report),
        (error, count) => Err(ReproError::Wrong(format!(
            "{count} operations of {} on {} failed: {}",
            config.workload.name,
            config.engine,
            error.as_deref().unwrap_or("wrong answers")
        ))),
    }
}

/// Engines that people can choose; the example engine is for tests.
pub(super) fn engines() -> impl Iterator<Item = Engine> {
    Engine::ALL.iter().copied().filter(|engine| !engine.is_example())
}

/// Returns the engine of that name, if there is one.
pub(super) fn engine(name: &str) -> Option<Engine> {
    engines().find(|engine| engine.name() == name)
}

fn unlocks_by_write(engine: Engine) -> bool {
    UNLOCK_BY_WRITE.contains(&engine.name())
}

/// The reason for a row of an engine that only the paper has.
pub(super) fn no_engine(name: &str) -> String {
    format!("this build has no engine {name}")
}

/// The built-in workload called `name`.
///
/// # Errors
/// `Bench`.
pub(super) fn workload(name: &str) -> Result<Workload, ReproError> {
    Ok(Workload::named(name).map_err(BenchError::from)?)
}

/// A workload of that mix.
///
/// # Errors
/// `Bench`.
pub(super) fn mixed(
    name: &str,
    weights: &[(OpKind, f64)],
    request: RequestDistribution,
) -> Result<Workload, ReproError> {
    let mix = Mix::new(weights).map_err(BenchError::from)?;
    Ok(Workload { name: name.to_owned(), mix, request, scan_length: ScanLength::Fixed(100) })
}

/// YCSB's load phase: half of the keys are there already, the measured operations insert the other half.
///
/// # Errors
/// `Bench`.
pub(super) fn inserts(config: BenchConfig) -> BenchConfig {
    let half = (config.keys / 2).max(1);
    BenchConfig {
        keys: half,
        warmup_ops: half / 10,
        ops: half.max(config.clients as u64),
        ..config
    }
}

/// A figure of a run: its name in reports, and its value.
pub(super) type Metric = (&'static str, fn(&Report) -> f64);

pub(super) const MOPS: Metric = ("Mops", mops);
pub(super) const TRIPS: Metric = ("round trips /op", |it| it.run.per_op.round_trips);
pub(super) const READS: Metric = ("READs /op", |it| it.run.per_op.reads);
pub(super) const VERBS: Metric = ("remote operations /op", |it| verbs(&it.run.per_op));
pub(super) const BYTES: Metric = ("bytes /op", bytes);
pub(super) const P50: Metric = ("p50, us", |it| it.run.latency_us.p50);
pub(super) const P99: Metric = ("p99, us", |it| it.run.latency_us.p99);

/// Millions of operations per second of virtual time.
pub(super) fn mops(report: &Report) -> f64 {
    report.run.phase.ops_per_s / 1e6
}

/// Costs on memory servers alone.
pub(super) fn on_memory(report: &Report) -> PerOp {
    report.run.targets.map_or(report.run.per_op, |it| it.memory)
}

/// READs, WRITEs and atomics.
pub(super) fn verbs(cost: &PerOp) -> f64 {
    cost.reads + cost.writes + cost.atomics
}

/// Bytes both ways for each operation.
pub(super) fn bytes(report: &Report) -> f64 {
    report.run.per_op.bytes_read + report.run.per_op.bytes_written
}

/// The figures of one kind of operation; all 0 if none came.
pub(super) fn kind(report: &Report, kind: OpKind) -> KindReport {
    report.run.by_kind.get(&ReportKind::Op(kind)).copied().unwrap_or_default()
}

/// Round trips of maintenance for each operation.
pub(super) fn maintenance(report: &Report) -> f64 {
    let maintenance = report.run.by_kind.get(&ReportKind::Maintenance);
    maintenance.map(|it| it.per_op.round_trips).unwrap_or_default()
}

/// A step of a ladder: an engine with settings by name.
pub(super) struct Step {
    pub(super) name: &'static str,
    pub(super) engine: Engine,
    /// Names and values.
    pub(super) set: &'static [(&'static str, &'static str)],
}

impl Step {
    /// The run with the step's settings; [`BenchConfig::validate`] checks them.
    pub(super) fn on(&self, mut config: BenchConfig) -> BenchConfig {
        self.set.iter().for_each(|(name, text)| config.settings.set(name, text));
        config
    }
}
