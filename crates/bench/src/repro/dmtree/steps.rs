//! Steps: the parts of an operation's latency (Table 1).

use std::collections::BTreeMap;

use farleaf_fabric::sim::{OpRecord, Posted, Verb};

use super::{
    DMTREE, Repro,
    driver::{self, P50},
    error::ReproError,
    report::{ReproChart, ReproReport},
    setup::{KEYS, Micro, PaperRuns},
};
use crate::{config::BenchConfig, distribution::RequestDistribution, run::run_recorded};

/// Bytes of a slot of 24 + 8 bytes, of its check and value, and of a line.
const SLOT_BYTES: u64 = 48;
const UPDATE_BYTES: u64 = 16;
const LINE_BYTES: u64 = 64;
/// Operations of each client.
const OPS: u64 = 2_000;
/// The steps that take time on a processor alone.
const LOCAL: [&str; 2] = ["inner cache", "fingerprints"];
const LOCAL_IS_FREE: &str =
    "the simulator charges posts and completions, and no time of a processor for work in caches";

/// Steps that wait, as the paper names them, and ours beside them.
const LOCK: &str = "lock";
const SYNC: &str = "fingerprint sync";
const PAIR: &str = "pair";
const OTHERS: &str = "splits, refreshes and others";

/// Table 1.
pub(super) fn run(repro: &Repro<'_>, report: &mut ReproReport) -> Result<(), ReproError> {
    let mut runs = PaperRuns::begin(repro, report)?;
    runs.driver.cluster.coroutines = 1;
    let Some(engine) = driver::engine(DMTREE) else {
        report.missing("all", "us", None, &driver::no_engine(DMTREE));
        return Ok(());
    };
    let mut chart = ReproChart::bars("waits of an operation", "step", "us");
    for (case, micro, paper) in [
        ("search", Micro::Search, Some("search")),
        ("insert", Micro::Insert, Some("write")),
        ("update", Micro::Update, None),
    ] {
        let workload = micro.workload(RequestDistribution::Uniform)?;
        let config = runs.case(engine, &KEYS, workload, 1)?;
        let config = BenchConfig { ops: OPS * config.clients as u64, ..config };
        let (measured, records) = run_recorded(&config, repro.progress)?;
        let measured = driver::all_right(&config, measured)?;
        let told = paper.and_then(|name| runs.paper.latency_us.get(name));
        for name in LOCAL {
            let told = told.and_then(|by| by.get(name)).copied();
            report.missing(&format!("{case}, {name}"), "us", told, LOCAL_IS_FREE);
        }
        let waits = waits(&records, measured.run.phase.seconds);
        for name in [LOCK, SYNC, PAIR, OTHERS] {
            let told = told.and_then(|by| by.get(name)).copied();
            let ours = waits.get(name).copied().unwrap_or(0.0) / measured.run.phase.ops as f64;
            report.row(&format!("{case}, {name}"), "us", told, ours, "");
            chart.add(case, name, ours);
        }
        report.row(&format!("{case}, all"), P50.0, None, measured.run.latency_us.p50, "");
    }
    report.charts.push(chart);
    report.note(
        "One client on each compute server, so that no operation waits for another. The paper's write stands beside our \
         insert. An update's READ of the pair goes on beside its lock, and nobody waits for an unlock, which no step \
         counts: steps do not add up to the latency.",
    );
    Ok(())
}

/// Microseconds of all posts of the last `seconds`, by step.
fn waits(records: &[OpRecord], seconds: f64) -> BTreeMap<&'static str, f64> {
    let end = records.iter().filter_map(|record| record.back_ns).max().unwrap_or(0);
    let begin = end.saturating_sub((seconds * 1e9) as u64);
    let mut posts: BTreeMap<u64, Vec<&OpRecord>> = BTreeMap::new();
    for record in records.iter().filter(|record| record.posted_ns >= begin) {
        posts.entry(record.serial).or_default().push(record);
    }
    let mut waits = BTreeMap::new();
    for post in posts.values() {
        let (Some(step), Some(first)) = (step(post), post.first()) else { continue };
        let Some(back) = first.back_ns else { continue };
        *waits.entry(step).or_insert(0.0) += (back - first.posted_ns) as f64 / 1e3;
    }
    waits
}

/// The step that a post belongs to; `None` for an unlock, which nobody waits for, and for regular work.
fn step(post: &[&OpRecord]) -> Option<&'static str> {
    let first = post.first()?;
    let is_slot = |it: &&OpRecord| {
        let slot = it.bytes == SLOT_BYTES;
        matches!(it.verb, Verb::Read if slot)
            || matches!(it.verb, Verb::Write if slot || it.bytes == UPDATE_BYTES)
    };
    if !first.server.is_compute() {
        return match post.iter().all(is_slot) {
            true => Some(PAIR),
            // Epochs and the map are regular work: a word, or two.
            false => post.iter().any(|it| it.bytes >= LINE_BYTES).then_some(OTHERS),
        };
    }
    let is_lock = |it: &&OpRecord| it.verb == Verb::Cas && it.expected == Some(0);
    let is_line = |it: &&OpRecord| it.verb == Verb::Read && it.bytes == LINE_BYTES;
    if post.iter().any(is_lock) {
        return Some(LOCK);
    }
    if post.iter().any(is_line) {
        return Some(OTHERS);
    }
    let is_table = |it: &&OpRecord| it.verb == Verb::Write && it.bytes > 8;
    let alone = first.posted == Posted::Alone || post.len() == 1;
    (alone && post.iter().any(is_table)).then_some(SYNC)
}
