//! Driver: runs any engine of the table of engines on a paper's cluster, in the simulator.
//!
//! Round trips, operations and bytes are exact. Throughput and latency are the simulator's: they count as
//! ratios within one run.

use farleaf_engines::Engine;
use farleaf_index::Settings;
use farleaf_index::knobs::{CACHE, DURABILITY, KnobError};
use serde::Deserialize;

use super::{
    ReproOptions,
    error::ReproError,
    report::{ChartKind, ReproChart, ReproReport, ReproSeries},
};
use crate::{
    config::{BenchConfig, FabricKind},
    distribution::RequestDistribution,
    keys::KeySpec,
    report::{KindReport, Report, ReportKind, TimeKind},
    run::{self, BenchError, Progress},
    workload::{Mix, OpKind, ScanLength, Workload},
};

/// The least scale: clients of the largest experiment have two operations each.
pub(super) const SCALE_MIN: f64 = 1.0 / 65_536.0;
/// Bytes of cache that one client's path through a B+-tree takes, whatever the scale.
pub(super) const PATH_BYTES: u64 = 9_362;
/// The least cache that every engine takes: ten nodes of 4 KiB.
const CACHE_MIN: u64 = 40 << 10;
/// A reason: locks in the simulator.
pub(super) const LOCKS_DIFFER: &str =
    "the simulator's locks cost round trips and waits, but no contention in a card's memory";
/// A reason: locks of plain ART.
pub(super) const PATH_LOCKS: &str =
    "a writer locks each node on its way, the root among them, so that all writers take turns";
/// A scan counts as so many operations, as it reads as many pairs and more.
const SCAN_WEIGHT: u64 = 10;

/// Cluster, data and load of a paper's experiments, at scale 1.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct PaperCluster {
    pub(super) keys: u64,
    pub(super) value_bytes: usize,
    pub(super) compute_servers: usize,
    pub(super) memory_servers: usize,
    /// Clients of all compute servers, with one thread each.
    pub(super) clients: usize,
    /// Bytes of each compute server's cache.
    pub(super) cache_bytes: u64,
    pub(super) warmup_ops: u64,
    pub(super) ops: u64,
}

/// See the [module page](self).
pub(super) struct Driver<'a> {
    pub(super) cluster: PaperCluster,
    pub(super) options: &'a ReproOptions,
    progress: &'a dyn Progress,
}

/// Name, title and paper of an experiment.
pub(super) struct Heading<'a> {
    pub(super) name: &'a str,
    pub(super) title: &'a str,
    pub(super) source: &'a str,
}

impl<'a> Driver<'a> {
    /// Runs on that cluster, at the scale of `options`.
    pub(super) fn new(
        cluster: PaperCluster,
        options: &'a ReproOptions,
        progress: &'a dyn Progress,
    ) -> Self {
        Driver { cluster, options, progress }
    }

    /// Begins a report with the parameters of the run.
    ///
    /// # Errors
    /// `Scale`, `TooSmall`.
    pub(super) fn begin(
        heading: Heading<'_>,
        cluster: PaperCluster,
        options: &'a ReproOptions,
        progress: &'a dyn Progress,
    ) -> Result<(ReproReport, Self), ReproError> {
        options.check_scale(SCALE_MIN, "clients have no operations")?;
        let Heading { name, title, source } = heading;
        let mut report = ReproReport::new(name, title, source, TimeKind::Virtual);
        let driver = Driver::new(cluster, options, progress);
        report.scale = options.scale;
        report.set("seed", options.seed);
        report.set("keys", options.scaled(driver.cluster.keys));
        report.set("value_bytes", driver.cluster.value_bytes);
        report.set("clients", driver.cluster.clients);
        report.set("compute_servers", driver.cluster.compute_servers);
        report.set("memory_servers", driver.cluster.memory_servers);
        report.set(
            "cache_bytes",
            driver.cache_bytes(driver.cluster.cache_bytes, driver.cluster.clients),
        );
        Ok((report, driver))
    }

    /// A cache of `bytes` at scale 1, and never less than the paths of a compute server's clients.
    pub(super) fn cache_bytes(&self, bytes: u64, clients: usize) -> u64 {
        let each = clients.div_ceil(self.cluster.compute_servers) as u64;
        self.options.scaled(bytes).max(each * PATH_BYTES).max(CACHE_MIN)
    }

    /// A run of `workload` on the paper's cluster, with the engine's defaults but for the cache and for
    /// changes, which are volatile: no paper keeps changes that a dead compute server had not written.
    pub(super) fn case(&self, engine: Engine, keys: &KeySpec, workload: Workload) -> BenchConfig {
        let cluster = &self.cluster;
        let cache = self.cache_bytes(cluster.cache_bytes, cluster.clients).to_string();
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
            threads: cluster.clients,
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
        all_right(config, run::run(config, self.progress)?)
    }

    /// A check that applies at the paper's own scale only.
    pub(super) fn asked(&self, holds: bool) -> Option<bool> {
        (self.options.scale == 1.0).then_some(holds)
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
    Engine::ALL.iter().copied().filter(|engine| engine.name() != "example")
}

/// Returns the engine of that name if this build has it.
pub(super) fn engine(name: &str) -> Option<Engine> {
    engines().find(|engine| engine.name() == name)
}

/// The reason for a row of an engine that this build lacks.
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

/// Millions of operations per second of virtual time.
pub(super) fn mops(report: &Report) -> f64 {
    report.run.phase.ops_per_s / 1e6
}

/// Bytes both ways for each operation.
pub(super) fn bytes(report: &Report) -> f64 {
    report.run.per_op.bytes_read + report.run.per_op.bytes_written
}

/// READs, WRITEs and atomics for each operation.
pub(super) fn verbs(report: &Report) -> f64 {
    let cost = report.run.per_op;
    cost.reads + cost.writes + cost.atomics
}

/// The figures of one kind of operation; all 0 if none came.
pub(super) fn kind(report: &Report, kind: OpKind) -> KindReport {
    report.run.by_kind.get(&ReportKind::Op(kind)).copied().unwrap_or_default()
}

/// A step of a ladder: an engine with settings by name.
///
/// A build may lack the engine or a setting. Then the step's row says so, and the ladder goes on.
pub(super) struct Step {
    pub(super) name: &'static str,
    pub(super) engine: &'static str,
    /// Names and values.
    pub(super) set: &'static [(&'static str, &'static str)],
}

impl Step {
    /// The engine and its settings.
    ///
    /// # Errors
    /// The part that this build lacks, in words.
    pub(super) fn find(&self) -> Result<(Engine, Settings), String> {
        let engine = engine(self.engine).ok_or_else(|| no_engine(self.engine))?;
        let mut settings = Settings::default();
        for (name, value) in self.set {
            settings.set(name, value);
        }
        engine.split(&settings).map_err(|error| match error.error {
            KnobError::Unknown { name, .. } => {
                format!("{engine} of this build has no setting {name}")
            }
            error => format!("{engine} of this build: {error}"),
        })?;
        Ok((engine, settings))
    }
}

/// Curves of a chart as they grow, point by point.
pub(super) struct Curves(ReproChart);

impl Curves {
    /// A chart without points.
    pub(super) fn new(kind: ChartKind, title: &str, x: &str, y: &str) -> Self {
        Curves(ReproChart {
            title: title.to_owned(),
            x: x.to_owned(),
            y: y.to_owned(),
            kind,
            labels: Vec::new(),
            series: Vec::new(),
        })
    }

    /// Adds a point to the series of that name.
    pub(super) fn add(&mut self, series: &str, at: &str, value: f64) {
        let place = self.place(at);
        let found = self.0.series.iter_mut().find(|it| it.name == series);
        let series = match found {
            Some(series) => series,
            None => {
                let new = ReproSeries { name: series.to_owned(), values: Vec::new() };
                self.0.series.push(new);
                self.0.series.last_mut().expect("it has just been added")
            }
        };
        if series.values.len() <= place {
            series.values.resize(place + 1, None);
        }
        series.values[place] = Some(value);
    }

    /// Keeps a place for a point that nothing may have.
    pub(super) fn place(&mut self, at: &str) -> usize {
        match self.0.labels.iter().position(|label| label == at) {
            Some(place) => place,
            None => {
                self.0.labels.push(at.to_owned());
                self.0.labels.len() - 1
            }
        }
    }

    /// The value of a series at a point.
    pub(super) fn at(&self, series: &str, at: &str) -> Option<f64> {
        let place = self.0.labels.iter().position(|label| label == at)?;
        let series = self.0.series.iter().find(|it| it.name == series)?;
        series.values.get(place).copied().flatten()
    }

    /// The names of the series and their values at a point.
    pub(super) fn across<'a>(&'a self, at: &'a str) -> impl Iterator<Item = (&'a str, f64)> {
        let names = self.0.series.iter().map(|series| series.name.as_str());
        names.filter_map(move |name| self.at(name, at).map(|value| (name, value)))
    }

    /// Adds the chart to a report.
    pub(super) fn finish(self, report: &mut ReproReport) {
        report.charts.push(self.0);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_step_says_what_a_build_lacks() {
        let step = |engine, set| Step { name: "x", engine, set };
        assert!(step("no-such", &[]).find().unwrap_err().contains("no engine no-such"));
        let lacks = step("btree", &[("no_such", "1")]).find().unwrap_err();
        assert_eq!(lacks, "btree of this build has no setting no_such");
        let value = step("dex", &[("offload", "often")]).find().unwrap_err();
        assert!(value.contains("no value of offload"), "{value}");
        let (engine, settings) = step("dex", &[("offload", "always")]).find().unwrap();
        assert_eq!((engine.name(), settings.get("offload")), ("dex", Some("always")));
    }

    #[test]
    fn curves_have_gaps_where_points_are_missing() {
        let mut curves = Curves::new(ChartKind::Lines, "t", "x", "y");
        curves.add("a", "1", 1.0);
        curves.add("a", "3", 3.0);
        curves.add("b", "3", 4.0);
        assert_eq!(curves.at("b", "1"), None);
        assert_eq!(curves.at("a", "3"), Some(3.0));
        assert_eq!(curves.across("3").collect::<Vec<_>>(), [("a", 3.0), ("b", 4.0)]);
    }
}
