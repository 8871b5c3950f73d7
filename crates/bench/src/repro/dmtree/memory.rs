//! Memory: bytes of a key on a compute server and in the pool (section 5.3).

use super::{
    DMTREE, Repro, driver,
    error::ReproError,
    report::{ReproChart, ReproReport},
    setup::{self, KEYS, Micro, PaperRuns},
};
use crate::{config::BenchConfig, distribution::RequestDistribution, report::Report};

/// Bytes of a leaf's line.
const LINE_BYTES: f64 = 64.0;
/// Reads of each key by each compute server, so that its cache holds all that it can: a leaf has 20 keys and more.
const READS: u64 = 2;
/// At most so many bytes of a key: the paper's pairs at a fill of 0.7.
const LINES_BAR: f64 = 2.9;
const RECORDS_BAR: f64 = 2.1;
const POOL_BAR: f64 = 78.0;
/// Rounding of bars that stand with one decimal.
const WITHIN: f64 = 0.05;
/// Keys below which objects of a fixed size count among the bytes of a key.
const KEYS_LEAST: u64 = 100_000;

/// Section 5.3.
pub(super) fn run(repro: &Repro<'_>, report: &mut ReproReport) -> Result<(), ReproError> {
    let runs = PaperRuns::begin(repro, report)?;
    let mut compute = ReproChart::bars("a compute server", "engine", "bytes /key");
    let mut pool = ReproChart::bars("the pool", "engine", "bytes /key");
    // GB of 10^9 pairs are bytes of a pair.
    for engine in setup::systems() {
        let name = engine.name();
        let measured = measure(&runs, &case(&runs, name)?)?;
        let each = measured.compute_bytes + measured.lines;
        let told = runs.paper.compute_gb.get(name).copied();
        report.row(name, "bytes /key, compute server", told, each, "");
        let told = runs.paper.pool_gb.get(name).copied();
        report.row(name, "bytes /key, pool", told, measured.pool_bytes, "");
        compute.add(name, "compute server", each);
        pool.add(name, "pool", measured.pool_bytes);
        if name == DMTREE {
            parts(report, &runs, &measured)?;
        }
    }
    for (name, gb) in &runs.paper.compute_gb {
        let system = name.split(',').next().unwrap_or(name);
        if driver::engine(system).is_none() {
            let why = setup::absent(system);
            report.missing(name, "bytes /key, compute server", Some(*gb), &why);
        }
    }
    report.charts.push(compute);
    report.charts.push(pool);
    report.note(
        "The paper's GB of a billion pairs are bytes of a pair. Each compute server has read each key twice, so \
         that its cache is full.",
    );
    Ok(())
}

/// Bytes of a key.
struct Bytes {
    /// Caches of one compute server.
    compute_bytes: f64,
    /// Lines that a compute server is primary of; 0 for engines without them.
    lines: f64,
    pool_bytes: f64,
}

fn case(runs: &PaperRuns<'_>, name: &str) -> Result<BenchConfig, ReproError> {
    let engine = driver::engine(name).ok_or_else(|| ReproError::Wrong(driver::no_engine(name)))?;
    let workload = Micro::Search.workload(RequestDistribution::Uniform)?;
    let config = runs.case(engine, &KEYS, workload, 4)?;
    let reads = READS * runs.driver.cluster.compute_servers as u64;
    let ops = config.clients as u64;
    Ok(BenchConfig { warmup_ops: config.keys * reads, ops, verify: name == DMTREE, ..config })
}

fn measure(runs: &PaperRuns<'_>, config: &BenchConfig) -> Result<Bytes, ReproError> {
    let measured = runs.driver.measure(config)?;
    let keys = config.keys as f64;
    let servers = config.compute_servers as f64;
    let lines = match config.engine.traits().exposes {
        true => leaves(&measured) * LINE_BYTES / servers / keys,
        false => 0.0,
    };
    Ok(Bytes {
        compute_bytes: measured.memory.compute_bytes as f64 / servers / keys,
        lines,
        pool_bytes: measured.memory.index_bytes as f64 / keys,
    })
}

fn leaves(measured: &Report) -> f64 {
    measured.config.get("leaves").and_then(serde_json::Value::as_f64).unwrap_or(0.0)
}

/// Adds DMTree's own lines, records and replicas.
fn parts(report: &mut ReproReport, runs: &PaperRuns<'_>, all: &Bytes) -> Result<(), ReproError> {
    let mut config = case(runs, DMTREE)?;
    config.settings.set("replica", "false");
    let alone = measure(runs, &config)?;
    let records = alone.compute_bytes;
    let replicas = all.compute_bytes - records;
    let told = |name: &str| runs.paper.compute_parts_gb.get(name).copied();
    report.row("dmtree, records", "bytes /key, compute server", told("inner nodes"), records, "");
    let fingerprints = all.lines + replicas;
    let case = "dmtree, own lines and replicas";
    report.row(case, "bytes /key, compute server", told("fingerprints"), fingerprints, "");
    report.row("dmtree, own lines", "bytes /key, compute server", None, all.lines, "");
    report.row("dmtree, replicas", "bytes /key, compute server", None, replicas, "");
    let servers = runs.driver.cluster.compute_servers as f64;
    let is_large = config.keys >= KEYS_LEAST;
    for (what, most, ours) in [
        ("own lines of all compute servers", LINES_BAR, all.lines * servers),
        ("records", RECORDS_BAR, records),
        ("replicas of all leaves", LINES_BAR, replicas),
        ("pool", POOL_BAR, all.pool_bytes),
    ] {
        let what = format!("{what}: at most {most} bytes /key");
        report.check(what, is_large.then_some(ours <= most + WITHIN));
    }
    Ok(())
}
