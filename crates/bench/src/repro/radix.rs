//! Radix trees' experiments: every engine on the keys of SMART's and DART's papers, in the simulator.
//!
//! Round trips, bytes and memory are exact. Throughput is the simulator's: it counts as a ratio within one run.

use farleaf_index::knobs::{CACHE, DURABILITY};
use farleaf_index::{Engine, Settings};

use super::{
    ReproOptions,
    error::ReproError,
    papers::{self, DartPaper},
    report::ReproReport,
    setup,
};
use crate::{
    config::{BenchConfig, FabricKind},
    keys::KeySpec,
    report::{KindReport, Report, ReportKind, TimeKind},
    run::{self, BenchError, Progress},
    workload::{OpKind, Workload},
};

/// 234,375 keys: the nodes of 60 M random numbers, one level higher.
pub(super) const USUAL_SCALE: f64 = 1.0 / 256.0;
/// The least scale at which every client has some operations.
const SCALE_MIN: f64 = 1.0 / 4096.0;
/// Clients' paths through a cached B+-tree take this much, whatever the scale.
const CACHE_MIN: u64 = 512 << 10;
const WORKLOADS: [&str; 5] = ["ycsb-a", "ycsb-b", "ycsb-c", "ycsb-d", "ycsb-e"];
/// Bytes of a pair of `randint`: the key, and the value as [`amplification`] chooses it.
const PAIR_BYTES: f64 = 16.0;
/// At most so many bytes for each key beyond the paper's 128 of a pair, at scale 1: engine, keys, bytes.
const INDEX_BARS: [(&str, &str, f64); 4] = [
    ("dart", "randint", 16.0),
    ("dart", "email", 27.0),
    ("smart", "randint", 21.0),
    ("smart", "email", 29.0),
];
/// Most round trips of a get of YCSB C, at scale 1.
const TRIP_BARS: [(&str, &str, f64); 2] = [("dart", "randint", 3.1), ("dart", "email", 5.8)];
/// Most bytes of a get of YCSB C, at scale 1.
const BYTE_BARS: [(&str, &str, f64); 1] = [("dart", "randint", 320.0)];

/// Kinds of keys, by the papers' names.
fn keys() -> [(&'static str, KeySpec); 2] {
    [("randint", KeySpec::Randint), ("email", KeySpec::Email)]
}

/// Engines that people can choose; the example engine is for tests.
fn engines() -> impl Iterator<Item = Engine> {
    Engine::ALL.iter().copied().filter(|engine| engine.name() != "example")
}

/// Round trips, bytes and throughput of YCSB on both kinds of keys.
///
/// # Errors
/// Those of [`run::run`].
pub(super) fn ycsb(
    options: &ReproOptions,
    progress: &dyn Progress,
) -> Result<ReproReport, ReproError> {
    let title = "throughput, round trips and bytes of YCSB's workloads";
    let (mut report, paper) = begin("dart-ycsb", title, options)?;
    for (keys, spec) in keys() {
        for name in WORKLOADS {
            let mut best: Option<(Engine, f64)> = None;
            let mut dart = None;
            for engine in engines() {
                let config = config(engine, &spec, name, &paper, options)?;
                let measured = measure(&config, progress)?;
                let case = format!("{name}, {keys}, {engine}");
                add_costs(&mut report, &case, &measured);
                let mops = measured.run.phase.ops_per_s / 1e6;
                report.row(&case, "Mops", None, mops, "");
                if name == "ycsb-c" {
                    add_search(&mut report, &paper, keys, engine, &measured, options);
                }
                if engine.name() == "dart" {
                    dart = Some(mops);
                } else if best.is_none_or(|(_, other)| other < mops) {
                    best = Some((engine, mops));
                }
            }
            if let (Some(dart), Some((other, mops))) = (dart, best) {
                let case = format!("{name}, {keys}, dart over {other}");
                report.row(&case, "ratio", None, dart / mops, "");
            }
        }
    }
    report.notes.push(
        "Operations cost a compute server 400 ns of processor time in the simulator, whatever the engine. \
         The email keys are made; see `farleaf bench --help`, --key-type."
            .to_owned(),
    );
    Ok(report)
}

/// Memory beside keys and values after a bulk load.
///
/// # Errors
/// Those of [`run::run`].
pub(super) fn memory(
    options: &ReproOptions,
    progress: &dyn Progress,
) -> Result<ReproReport, ReproError> {
    let title = "memory beside keys and values";
    let (mut report, paper) = begin("dart-table2", title, options)?;
    for (keys, spec) in keys() {
        for engine in engines() {
            let mut config = config(engine, &spec, "ycsb-c", &paper, options)?;
            (config.warmup_ops, config.ops) = (0, config.clients as u64);
            let measured = measure(&config, progress)?;
            let count = config.keys as f64;
            let all = measured.memory.index_bytes as f64 / count;
            let case = format!("{keys}, {engine}");
            let beside = all - measured.memory.data_bytes as f64 / count;
            report.row(&case, "bytes /key beside keys and values", None, beside, "");
            let per_key = |gb: f64| gb * (1u64 << 30) as f64 / paper.setup.keys as f64;
            let told = paper.index_gb.get(keys).and_then(|by| by.get(engine.name()));
            let beyond = all - per_key(paper.data_gb);
            let reason = "the paper's SMART reserves each node at its largest size, ours relocates nodes; our \
                          B+-trees pack pairs into nodes, and need less than 128 bytes for each";
            report.row(&case, "bytes /key", told.map(|gb| per_key(*gb)), beyond, reason);
            for (_, _, most) in INDEX_BARS.iter().filter(|it| (it.0, it.1) == (engine.name(), keys))
            {
                let what = format!("{case}: at most {most} bytes /key");
                report.check(what, asked(options, beyond <= *most));
            }
        }
    }
    report.notes.push(
        "The paper's figures are beyond 7.15 GB of data, which is an object of 128 bytes for each pair; so are \
         the bytes /key beside them."
            .to_owned(),
    );
    Ok(report)
}

/// Bytes moved for each byte that was asked for or changed: pairs of 16 bytes, uniform.
///
/// # Errors
/// Those of [`run::run`].
pub(super) fn amplification(
    options: &ReproOptions,
    progress: &dyn Progress,
) -> Result<ReproReport, ReproError> {
    let title = "bytes moved for each byte of a pair of 16 bytes, gets and updates half and half";
    let (mut report, paper) = begin("smart-amplification", title, options)?;
    for engine in engines() {
        let mut config = config(engine, &KeySpec::Randint, "ycsb-a", &paper, options)?;
        config.value_bytes = 8;
        let measured = measure(&config, progress)?;
        let case = engine.to_string();
        let zero = KindReport::default();
        let of = |kind| measured.run.by_kind.get(&ReportKind::Op(kind)).unwrap_or(&zero).per_op;
        let (get, update) = (of(OpKind::Get), of(OpKind::Update));
        let reads = get.bytes_read / PAIR_BYTES;
        report.row(&case, "bytes READ /byte, get", None, reads, "");
        let reads = update.bytes_read / PAIR_BYTES;
        report.row(&case, "bytes READ /byte, update", None, reads, "");
        let writes = update.bytes_written / PAIR_BYTES;
        report.row(&case, "bytes written /byte, update", None, writes, "");
    }
    report.notes.push(
        "SMART's paper gives 32 for a B+-tree of 32 pairs a leaf, READ and written, and 1 for a radix tree, \
         without the headers of nodes and leaves."
            .to_owned(),
    );
    Ok(report)
}

fn begin(
    name: &str,
    title: &str,
    options: &ReproOptions,
) -> Result<(ReproReport, DartPaper), ReproError> {
    let paper = papers::dart()?;
    setup::check_scale(options, SCALE_MIN, "clients have no operations")?;
    let mut report = ReproReport::new(name, title, &paper.source, TimeKind::Virtual);
    report.scale = options.scale;
    report.set("seed", options.seed);
    report.set("keys", setup::scaled(paper.setup.keys, options));
    report.set("clients", paper.setup.clients);
    report.set("compute_servers", paper.setup.compute_servers);
    report.set("memory_servers", paper.setup.memory_servers);
    report.set("cache_bytes", cache_bytes(&paper, options));
    Ok((report, paper))
}

fn cache_bytes(paper: &DartPaper, options: &ReproOptions) -> u64 {
    setup::scaled(paper.setup.cache_bytes, options).max(CACHE_MIN)
}

fn config(
    engine: Engine,
    key_type: &KeySpec,
    workload: &str,
    paper: &DartPaper,
    options: &ReproOptions,
) -> Result<BenchConfig, ReproError> {
    let setup = &paper.setup;
    let cache = cache_bytes(paper, options).to_string();
    // As in the papers: none of them keeps changes that a dead compute server had not written.
    let volatile = Settings::default().with(DURABILITY, "volatile");
    let settings = volatile.and(&options.settings).with(CACHE, &cache);
    Ok(BenchConfig {
        engine,
        fabric: FabricKind::Sim,
        workload: Workload::named(workload).map_err(BenchError::from)?,
        keys: setup::scaled(setup.keys, options),
        warmup_ops: setup::scaled(setup.warmup_ops, options),
        ops: setup::scaled(setup.ops, options),
        clients: setup.clients,
        threads: setup.clients,
        compute_servers: setup.compute_servers,
        memory_servers: setup.memory_servers,
        seed: options.seed,
        key_type: key_type.clone(),
        value_bytes: setup.value_bytes,
        settings: engine.known(&settings),
        ..BenchConfig::default()
    })
}

/// Runs the bench; an operation that fails or answers wrongly ends the experiment.
fn measure(config: &BenchConfig, progress: &dyn Progress) -> Result<Report, ReproError> {
    let report = run::run(config, progress)?;
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

fn add_costs(report: &mut ReproReport, case: &str, measured: &Report) {
    let cost = measured.run.per_op;
    report.row(case, "round trips /op", None, cost.round_trips, "");
    report.row(case, "bytes /op", None, cost.bytes_read + cost.bytes_written, "");
}

/// Adds the papers' figures for gets, and their checks.
fn add_search(
    report: &mut ReproReport,
    paper: &DartPaper,
    keys: &str,
    engine: Engine,
    measured: &Report,
    options: &ReproOptions,
) {
    let cost = measured.run.per_op;
    let bytes = cost.bytes_read + cost.bytes_written;
    let case = format!("get, {keys}, {engine}");
    let told = paper.search.get(keys).and_then(|by| by.get(engine.name()));
    let reason = "the READ size of our nodes follows their type, and at a small scale the cache holds more of \
                  the tree";
    let of = |figure: fn(&papers::SearchCost) -> f64| told.map(figure);
    report.row(&case, "round trips /op", of(|it| it.round_trips), cost.round_trips, reason);
    report.row(&case, "bytes /op", of(|it| it.bytes), bytes, reason);
    let bars = TRIP_BARS.iter().map(|it| (it, "round trips", cost.round_trips));
    let bars = bars.chain(BYTE_BARS.iter().map(|it| (it, "bytes", bytes)));
    for ((name, kind, most), what, ours) in bars {
        if (*name, *kind) == (engine.name(), keys) {
            let what = format!("{case}: at most {most} {what}");
            report.check(what, asked(options, ours <= *most));
        }
    }
}

/// Returns a check that applies at the paper's own scale only.
fn asked(options: &ReproOptions, holds: bool) -> Option<bool> {
    (options.scale == 1.0).then_some(holds)
}
