//! Sweeps: sizes of caches and of pairs, lengths of scans (Figures 15, 18 and 19).

use super::{
    DMTREE, Repro,
    driver::{self, Step},
    error::ReproError,
    report::{ReproChart, ReproReport},
    setup::{self, KEYS, Micro, PaperRuns, THREADS},
};
use crate::{
    config::BenchConfig,
    distribution::RequestDistribution,
    keys::KeySpec,
    workload::{OpKind, ScanLength, Workload},
};

/// Memory of each compute server, GB at scale 1; the paper's most and least.
const MEMORY_GB: [f64; 4] = [20.0, 10.0, 5.0, 2.5];
/// The radix tree with the paper's room in nodes.
const RESERVED: &str = "smart, nodes=reserve";

/// Figure 15.
pub(super) fn caches(repro: &Repro<'_>, report: &mut ReproReport) -> Result<(), ReproError> {
    let mut runs = PaperRuns::begin(repro, report)?;
    let mut chart = ReproChart::lines("search, uniform", "GB of cache at scale 1", "Mops");
    let usual = ["sherman", "smart", "chime", DMTREE].into_iter().filter_map(driver::engine);
    let usual = usual.map(|engine| (engine.name(), Step { name: "", engine, set: &[] }));
    let reserved = driver::engine("smart")
        .map(|engine| (RESERVED, Step { name: "", engine, set: &[("nodes", "reserve")] }));
    let steps: Vec<_> = usual.chain(reserved).collect();
    for gb in MEMORY_GB {
        runs.driver.cluster.cache_bytes = (gb * 1e9) as u64;
        for (name, step) in &steps {
            let workload = Micro::Search.workload(RequestDistribution::Uniform)?;
            let config = step.on(runs.case(step.engine, &KEYS, workload, THREADS)?);
            let case = format!("{gb} GB, {name}");
            let measured = runs.record(report, &case, &config)?;
            chart.add(name, &gb.to_string(), driver::mops(&measured));
        }
    }
    let [most, least] = [MEMORY_GB[0], MEMORY_GB[3]].map(|gb| gb.to_string());
    let names = steps.iter().map(|(name, _)| *name);
    for (name, range) in &runs.paper.small_cache {
        let case = format!("{name}, {least} over {most} GB");
        if driver::engine(name).is_none() {
            let why = setup::absent(name);
            report.missing(&case, "throughput, ratio", Some(range[0]), &why);
        }
    }
    for name in names {
        let case = format!("{name}, {least} over {most} GB");
        let told = if name == RESERVED { "smart" } else { name };
        let told = runs.paper.small_cache.get(told).map(|it| it[0]);
        if let (Some(small), Some(large)) = (chart.at(name, &least), chart.at(name, &most)) {
            report.row(&case, "throughput, ratio", told, small / large, "");
        }
    }
    report.charts.push(chart);
    report
        .note("The paper's text says that SMART loses up to 72 %, and that CHIME and DMTree hold.");
    Ok(())
}

/// Bytes of a value beside a key of 8 bytes.
const VALUES: [usize; 4] = [8, 24, 56, 120];
const PAIR_KEY: KeySpec = KeySpec::Random(8);

/// Figure 18.
pub(super) fn pairs(repro: &Repro<'_>, report: &mut ReproReport) -> Result<(), ReproError> {
    let mut runs = PaperRuns::begin(repro, report)?;
    report.set("key_type", PAIR_KEY.to_string());
    // A tenth of the pairs of the other figures.
    let cluster = &mut runs.driver.cluster;
    (cluster.keys, cluster.warmup_ops) = (cluster.keys / 10, cluster.warmup_ops / 10);
    let scans = Micro::Scan.workload(RequestDistribution::Uniform)?;
    for (name, workload) in [("ycsb-a", driver::workload("ycsb-a")?), ("scan", scans)] {
        let mut chart = ReproChart::lines(name, "bytes of a pair", "Mops");
        for value_bytes in VALUES {
            runs.driver.cluster.value_bytes = value_bytes;
            let at = (8 + value_bytes).to_string();
            for engine in setup::systems() {
                let case = format!("{name}, {at} bytes, {engine}");
                let config = runs.case(engine, &PAIR_KEY, workload.clone(), THREADS)?;
                let mops = driver::mops(&runs.record(report, &case, &config)?);
                chart.add(engine.name(), &at, mops);
            }
            let ranges = runs.paper.pair_bytes.get(&at).and_then(|by| by.get(name));
            let range = |other: &str| ranges.and_then(|by| by.get(other)).copied();
            let others = ranges.into_iter().flatten().map(|(other, _)| other.as_str());
            let what = format!("{name}, {at} bytes");
            setup::ratios(report, &chart, (&what, &at), range, others);
        }
        report.charts.push(chart);
    }
    report.note(
        "The paper's text names pairs of 16 and 128 bytes, and not how they divide into key and value: ours have keys of \
         8 random bytes. Values above 8 bytes of DMTree's are updated by a redo record and the value, one WRITE more.",
    );
    Ok(())
}

/// The most pairs of a scan.
const LENGTHS: [u32; 3] = [10, 100, 1000];

/// Figure 19.
pub(super) fn scans(repro: &Repro<'_>, report: &mut ReproReport) -> Result<(), ReproError> {
    let runs = PaperRuns::begin(repro, report)?;
    let shown = [DMTREE, "sherman", "smart"];
    for name in ["scan", "ycsb-e"] {
        let mut chart = ReproChart::lines(name, "most pairs of a scan", "Mops");
        for max in LENGTHS {
            let at = max.to_string();
            for engine in shown.into_iter().filter_map(driver::engine) {
                let workload = match name {
                    "scan" => Micro::Scan.workload(RequestDistribution::Uniform)?,
                    _ => driver::workload(name)?,
                };
                let scan_length = ScanLength::Uniform { min: 1, max };
                let workload = Workload { scan_length, ..workload };
                let config = runs.case(engine, &KEYS, workload, THREADS)?;
                let config = shorter(config, max);
                let case = format!("{name}, up to {max} pairs, {engine}");
                let mops = driver::mops(&runs.record(report, &case, &config)?);
                chart.add(engine.name(), &at, mops);
            }
            let ranges = runs.paper.scan_length.get(&at);
            let range = |other: &str| ranges.and_then(|by| by.get(other)).copied();
            let what = format!("{name}, up to {max} pairs");
            let none = std::iter::empty();
            setup::ratios(report, &chart, (&what, &at), range, none);
        }
        report.charts.push(chart);
    }
    Ok(())
}

/// Fewer of the longest scans, at least one for each client.
fn shorter(config: BenchConfig, max: u32) -> BenchConfig {
    debug_assert!(config.workload.mix.share(OpKind::Scan) > 0.0);
    let ops = config.ops * 100 / u64::from(max.max(100));
    BenchConfig { ops: ops.max(config.clients as u64), ..config }
}
