//! Set-up: the paper's cluster, loads and rows that its experiments share.

use farleaf_engines::Engine;

use super::{
    DMTREE, Repro,
    driver::{self, Driver, MOPS, Metric},
    error::ReproError,
    papers::{self, DmTreePaper, Range},
    report::{ReproChart, ReproReport},
};
use crate::{
    config::BenchConfig,
    distribution::RequestDistribution,
    keys::KeySpec,
    report::Report,
    workload::{OpKind, ScanLength, Workload},
};

/// The paper's keys: 24 bytes.
pub(super) const KEYS: KeySpec = KeySpec::Digits(24);
/// Threads of each compute server in the paper's largest runs.
pub(super) const THREADS: usize = 72;
/// Operations of each client, at least: fewer swing with single waits.
const OPS_LEAST: u64 = 24;
/// A scan counts as so many operations, as it reads as many pairs and more.
const SCAN_WEIGHT: u64 = 6;
/// Systems that the paper measures DMTree against, and its baseline.
pub(super) const SYSTEMS: [&str; 5] = [DMTREE, "fptree", "sherman", "smart", "chime"];
/// Bytes of a leaf of 32 pairs of 24 + 8 bytes, as the paper's B+-trees have them: 1.3 KB.
const SHERMAN_LEAF: &[(&str, &str)] = &[("leaf_bytes", "1408"), ("cap_leaf", "32")];
/// Bytes that a message takes beside its payload, in the simulator.
const HEADER_BYTES: f64 = 80.0;
/// Bytes that a card moves a second each way.
const CARD_BYTES_PER_S: f64 = 12.5e9;

/// Costs of an operation on memory servers.
pub(super) const MEMORY_VERBS: Metric =
    ("operations on memory servers /op", |it| driver::verbs(&driver::on_memory(it)));
pub(super) const MEMORY_BYTES: Metric = ("bytes to and from memory servers /op", |it| {
    let cost = driver::on_memory(it);
    cost.bytes_read + cost.bytes_written
});
pub(super) const COMPUTE_VERBS: Metric = ("operations on compute servers /op", |it| {
    it.run.targets.map_or(0.0, |it| driver::verbs(&it.compute) + driver::verbs(&it.own))
});
/// The figures of a run.
pub(super) const METRICS: [Metric; 4] = [MOPS, MEMORY_VERBS, COMPUTE_VERBS, MEMORY_BYTES];

/// Operations of the micro-benchmarks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Micro {
    Search,
    Insert,
    Update,
    Scan,
}

impl Micro {
    pub(super) const ALL: [Micro; 4] = [Micro::Search, Micro::Insert, Micro::Update, Micro::Scan];

    pub(super) fn name(self) -> &'static str {
        match self {
            Micro::Search => "search",
            Micro::Insert => "insert",
            Micro::Update => "update",
            Micro::Scan => "scan",
        }
    }

    fn kind(self) -> OpKind {
        match self {
            Micro::Search => OpKind::Get,
            Micro::Insert => OpKind::Insert,
            Micro::Update => OpKind::Update,
            Micro::Scan => OpKind::Scan,
        }
    }

    /// Operations of this kind alone; scans are of up to 100 pairs.
    ///
    /// # Errors
    /// `Bench`.
    pub(super) fn workload(self, request: RequestDistribution) -> Result<Workload, ReproError> {
        let workload = driver::mixed(self.name(), &[(self.kind(), 1.0)], request)?;
        Ok(Workload { scan_length: ScanLength::Uniform { min: 1, max: 100 }, ..workload })
    }
}

/// The paper's distributions, by the names of reports.
pub(super) fn distributions() -> [(&'static str, RequestDistribution); 2] {
    [
        ("uniform", RequestDistribution::Uniform),
        ("zipfian", RequestDistribution::Zipfian { theta: 0.99 }),
    ]
}

/// PaperRuns on the paper's cluster.
pub(super) struct PaperRuns<'a> {
    pub(super) driver: Driver<'a>,
    pub(super) paper: DmTreePaper,
}

impl<'a> PaperRuns<'a> {
    /// Records the parameters and the card model.
    ///
    /// # Errors
    /// `Figures`.
    pub(super) fn begin(
        repro: &Repro<'a>,
        report: &mut ReproReport,
    ) -> Result<PaperRuns<'a>, ReproError> {
        let paper = papers::papers()?.dmtree;
        let driver = Driver::begin(repro, report, &paper.source, paper.setup.clone());
        report.set("key_type", KEYS.to_string());
        report.set("coroutines", paper.setup.coroutines);
        if let Some(card) = paper.setup.card {
            report.set("card_ops_per_s", card.ops_per_s);
            report.set("card_atomics_per_s", card.atomics_per_s);
            report.note(format!(
                "Card model: {} M operations a second each way, {} M atomics a second, 100 Gb/s, on 6 compute servers \
                 and 1 memory server. A WRITE of a lock word and a CAS of it exclude each other (write_vs_rmw), as all \
                 systems of the paper unlock by WRITE.",
                card.ops_per_s / 1_000_000,
                card.atomics_per_s / 1_000_000
            ));
        }
        report.note(
            "The paper's programs run without the checks that ours keep: its baselines lost the masked CAS, its \
             writes store one constant, and its DMTree ran without checksums of entries.",
        );
        Ok(PaperRuns { driver, paper })
    }

    /// A run of `workload` by `each` threads of each compute server, after every key has been read about once.
    ///
    /// # Errors
    /// `Bench`.
    pub(super) fn case(
        &self,
        engine: Engine,
        keys: &KeySpec,
        workload: Workload,
        each: usize,
    ) -> Result<BenchConfig, ReproError> {
        let Driver { cluster, options, .. } = &self.driver;
        let scans = workload.mix.share(OpKind::Scan) > 0.0;
        let weight = if scans { SCAN_WEIGHT } else { 1 };
        let threads = each * cluster.compute_servers;
        let clients = threads * cluster.coroutines.max(1);
        let least = (clients as u64 * OPS_LEAST / weight).max(1);
        let reads = [(OpKind::Get, 1.0)];
        let mut config = BenchConfig {
            threads,
            clients,
            warm_up: Some(driver::mixed("reads", &reads, RequestDistribution::Uniform)?),
            warmup_ops: options.scaled(cluster.warmup_ops),
            ops: (options.scaled(cluster.ops) / weight).max(least),
            ..self.driver.case(engine, keys, workload)
        };
        if engine.name() == "sherman" && config.value_bytes == 8 {
            let known = engine.known(&settings(SHERMAN_LEAF));
            config.settings = config.settings.and(&known);
        }
        Ok(config)
    }

    /// Shares of the memory server's card that a run used: operations, atomics, and bytes of the fuller direction.
    pub(super) fn memory_card(&self, measured: &Report) -> [(&'static str, f64); 3] {
        let cost = driver::on_memory(measured);
        let rate = measured.run.phase.ops_per_s / self.driver.cluster.memory_servers as f64;
        let card = self.driver.cluster.card;
        let share = |count: f64, of: Option<u64>| of.map_or(0.0, |of| count * rate / of as f64);
        let bytes = cost.bytes_read.max(cost.bytes_written) + HEADER_BYTES * driver::verbs(&cost);
        [
            ("operations", share(driver::verbs(&cost), card.map(|it| it.ops_per_s))),
            ("atomics", share(cost.atomics, card.map(|it| it.atomics_per_s))),
            ("bytes", bytes * rate / CARD_BYTES_PER_S),
        ]
    }

    /// PaperRuns the case, and reports its figures and the fullest part of the memory server's card.
    ///
    /// # Errors
    /// `Bench`, `Wrong`.
    pub(super) fn record(
        &self,
        report: &mut ReproReport,
        case: &str,
        config: &BenchConfig,
    ) -> Result<Report, ReproError> {
        let measured = self.driver.record(report, case, config, &METRICS)?;
        for (part, share) in self.memory_card(&measured) {
            let quantity = format!("share of the memory server's card, {part}");
            report.row(case, &quantity, None, share, "");
        }
        Ok(measured)
    }
}

/// Settings by name and value.
pub(super) fn settings(pairs: &[(&str, &str)]) -> farleaf_index::Settings {
    let mut settings = farleaf_index::Settings::default();
    pairs.iter().for_each(|(name, value)| settings.set(name, value));
    settings
}

/// The engines of the paper that this build has, the paper's own first.
pub(super) fn systems() -> impl Iterator<Item = Engine> {
    SYSTEMS.into_iter().filter_map(driver::engine)
}

/// Adds a ratio beside the value of the paper's range that is nearest to it.
pub(super) fn nearest(
    report: &mut ReproReport,
    case: &str,
    quantity: &str,
    range: Option<Range>,
    ours: f64,
) {
    let told = range.map(|[low, high]| ours.clamp(low, high));
    report.gain(case, &with_range(quantity, range), told, ours, "");
}

/// A quantity with the paper's range, if it is one.
pub(super) fn with_range(quantity: &str, range: Option<Range>) -> String {
    match range {
        Some([low, high]) if low < high => format!("{quantity} (paper: {low} to {high})"),
        _ => quantity.to_owned(),
    }
}

/// Adds the ratios of DMTree over others at a point of a chart, and the paper's alone of systems that this build lacks.
pub(super) fn ratios<'a>(
    report: &mut ReproReport,
    chart: &ReproChart,
    (what, at): (&str, &str),
    told: impl Fn(&str) -> Option<Range>,
    others: impl Iterator<Item = &'a str>,
) {
    const QUANTITY: &str = "throughput, ratio";
    for (other, gain) in chart.gains(DMTREE, at) {
        let case = format!("{what}, {DMTREE} over {other}");
        nearest(report, &case, QUANTITY, told(&other), gain);
    }
    for other in others.filter(|other| driver::engine(other).is_none()) {
        let (case, range) = (format!("{what}, {DMTREE} over {other}"), told(other));
        let low = range.map(|[low, _]| low);
        report.missing(&case, &with_range(QUANTITY, range), low, &absent(other));
    }
}

/// The reason for a row of a system that is not measured.
pub(super) fn absent(name: &str) -> String {
    match name {
        "dlsm" | "rolex" => format!("{name} is not built here: the paper's figure alone"),
        _ => driver::no_engine(name),
    }
}
