//! Redis comparison: Redis beside this index over TCP on the same machine, in real time.
//!
//! It compares gets with Redis's own bench, and YCSB's workloads with the same operations for all.
//!
//! Each side has a client of one thread that keeps as many operations under way, and a server of one
//! thread; they speak TCP over the loopback interface. The systems take turns in rounds, one after the
//! other, so that other load of the machine strikes all alike; the figures are medians over rounds.

mod benchmark;
mod error;
pub(super) mod gateway;
mod play;
mod server;
mod systems;
#[cfg(test)]
mod tests;

use serde_json::{Value, json};

pub use error::RedisError;

use super::{
    Repro, ReproOptions, driver,
    error::ReproError,
    report::{ReproReport, ReproRow, ReproTable},
};
use crate::{
    config::{BenchConfig, FabricKind},
    distribution::RequestDistribution,
    keys::{KeyOrder, KeySpec},
    run::{BenchError, context::Dataset},
    workload::{OpKind, Workload},
};
use benchmark::Gets;
use server::RedisServer;
use systems::{System, SystemResult, median};

const KEYS: u64 = 1_000_000;
/// Gets of each side in each round.
const GETS: u64 = 1_000_000;
const GET_ROUNDS: usize = 5;
/// Operations of a workload of YCSB, and as many scans are enough.
const OPS: u64 = 200_000;
const SCAN_OPS: u64 = 10_000;
const ROUNDS: usize = 3;
/// Operations under way on each side.
const DEPTH: usize = 64;
/// Connections of the run of Redis's bench that stands beside.
const CLIENTS_BESIDE: usize = 50;
const KEY_TYPE: KeySpec = KeySpec::U64(KeyOrder::Hashed);
const VALUE_BYTES: usize = 8;
pub(super) const SCALE_MIN: f64 = 0.001;
/// The least ratio of our gets to those of Redis's own bench.
const BARS: [(System, f64); 3] =
    [(System::DexWarm, 3.0), (System::DexRead, 1.0), (System::BTree, 0.4)];
const WORKLOADS: [&str; 6] = ["ycsb-a", "ycsb-b", "ycsb-c", "ycsb-d", "ycsb-e", "ycsb-f"];

pub(super) fn run(repro: &Repro<'_>, report: &mut ReproReport) -> Result<(), ReproError> {
    let server = RedisServer::start()?;
    report.source = format!("Redis {}", server.version);
    report.against = "redis".to_owned();
    describe(report, repro.options);
    compare(repro, report, &server).map_err(|error| match error {
        ReproError::Redis(error) => ReproError::Redis(server.explain(error)),
        other => other,
    })
}

fn describe(report: &mut ReproReport, options: &ReproOptions) {
    let keys = options.scaled(KEYS);
    report.set("fabric", "tcp");
    report.set("seed", options.seed);
    report.set("keys", keys);
    report.set("key_bytes", "8; redis-benchmark's own have 16");
    report.set("value_bytes", VALUE_BYTES);
    report.set("in_flight", DEPTH);
    report.set("gets", options.scaled(GETS));
    report.set("get_rounds", GET_ROUNDS);
    report.set("ops", options.scaled(OPS));
    report.set("scan_ops", options.scaled(SCAN_OPS));
    report.set("rounds", ROUNDS);
    report.set("client_threads", 1);
    report.set("server_threads", 1);
    for system in System::ALL {
        let ((name, key), about) = (system.names(), system.about(keys));
        report.note(format!("{name}: {about}."));
        report.set(key, about);
    }
    report.note(
        "Latency, on every side, is from the moment at which an operation is given to the client's \
         library (Redis: put with the commands that are sent next) until its answer has been looked \
         at, so that waiting behind the others under way counts; redis-benchmark's is from sending \
         64 commands to the first byte of their answers.",
    );
    report.note(
        "READ, WRITE and atomics are remote operations for each operation; bytes are those that they \
         carry, for Redis those of commands and replies.",
    );
    report.note(
        "Scans on Redis: a sorted set of all keys, of one score, read by ZRANGE ... BYLEX LIMIT, \
         then MGET of the values; inserts add to it where the workload has scans.",
    );
}

/// The same work for all sides; `ops` at scale 1.
fn work(workload: Workload, ops: u64, options: &ReproOptions) -> BenchConfig {
    BenchConfig {
        fabric: FabricKind::Tcp,
        workload,
        keys: options.scaled(KEYS),
        ops: options.scaled(ops),
        clients: DEPTH,
        threads: 1,
        compute_servers: 1,
        memory_servers: 1,
        seed: options.seed,
        key_type: KEY_TYPE,
        value_bytes: VALUE_BYTES,
        settings: options.settings.clone(),
        ..BenchConfig::default()
    }
}

fn compare(
    repro: &Repro<'_>,
    report: &mut ReproReport,
    server: &RedisServer,
) -> Result<(), ReproError> {
    let mut errors = gets(repro, report, server)?;
    let mut table = ReproTable::new("YCSB");
    let mut wire = server.connect()?;
    for name in WORKLOADS {
        let workload = driver::workload(name)?;
        let has_scans = workload.mix.share(OpKind::Scan) > 0.0;
        let config = work(workload, if has_scans { SCAN_OPS } else { OPS }, repro.options);
        let mut runs = System::ALL.map(|system| (system, Vec::with_capacity(ROUNDS)));
        for _ in 0..ROUNDS {
            for (system, runs) in &mut runs {
                runs.push(system.run(repro, &config, &mut wire)?);
            }
        }
        let runs = runs.map(|(system, runs)| (system, SystemResult::median(&runs)));
        let redis = runs.iter().find(|(system, _)| *system == System::Redis);
        let redis = redis.map_or(0.0, |(_, measured)| measured.ops_per_s);
        for (system, measured) in &runs {
            let of_redis = ("of redis", json!(measured.ops_per_s / redis));
            table.row(cells(Some(name), system.name(), measured, of_redis));
            let quantity = format!("{name}, M op/s");
            if *system != System::Redis {
                let [theirs, ours] = [redis, measured.ops_per_s].map(|rate| Some(rate / 1e6));
                // A difference of two systems needs no reason.
                report.rows.push(ReproRow::new(system.name(), &quantity, theirs, ours));
            }
            errors.extend(measured.error.as_ref().map(|it| format!("{}: {it}", system.name())));
        }
    }
    report.tables.push(table);
    let what = match errors.first() {
        Some(first) => format!("every answer is right (the first that was not: {first})"),
        None => "every answer is right".to_owned(),
    };
    report.check(what, Some(errors.is_empty()));
    Ok(())
}

/// Measures gets of keys drawn evenly, against Redis's own bench; returns the wrong answers.
fn gets(
    repro: &Repro<'_>,
    report: &mut ReproReport,
    server: &RedisServer,
) -> Result<Vec<String>, ReproError> {
    let workload = driver::mixed("gets", &[(OpKind::Get, 1.0)], RequestDistribution::Uniform)?;
    let config = work(workload, GETS, repro.options);
    let BenchConfig { keys, ops, .. } = config;
    let gets = Gets { clients: 1, depth: DEPTH, keys, ops, value_bytes: VALUE_BYTES };
    let beside = Gets { clients: CLIENTS_BESIDE, ..gets };
    let mut wire = server.connect()?;
    let data = Dataset::new(&config, KEY_TYPE.open().map_err(BenchError::from)?);
    play::set_all(&mut wire, &data, false, repro.progress, |item, key| {
        key.clear();
        key.extend_from_slice(format!("key:{item:012}").as_bytes());
        Ok(())
    })?;
    let mut runs = BARS.map(|(system, _)| (system, Vec::with_capacity(GET_ROUNDS)));
    let mut ratios = BARS.map(|_| Vec::with_capacity(GET_ROUNDS));
    let (mut single, mut many) = (Vec::new(), Vec::new());
    for _ in 0..GET_ROUNDS {
        for ((system, runs), ratios) in runs.iter_mut().zip(&mut ratios) {
            let theirs = gets.run(server)?;
            let ours = system.run(repro, &config, &mut wire)?;
            ratios.push(ours.ops_per_s / theirs.ops_per_s);
            single.push(theirs);
            runs.push(ours);
        }
        many.push(beside.run(server)?);
    }
    let mut table = ReproTable::new("gets of keys drawn evenly");
    let theirs =
        [(&gets, single), (&beside, many)].map(|(gets, runs)| (gets, SystemResult::median(&runs)));
    for (gets, measured) in &theirs {
        table.row(cells(None, &gets.name(), measured, ("of -c 1", Value::Null)));
    }
    let mut errors = Vec::new();
    for (((system, least), (_, runs)), ratios) in BARS.iter().zip(&runs).zip(ratios) {
        let measured = SystemResult::median(runs);
        let ratio = median(ratios);
        table.row(cells(None, system.name(), &measured, ("of -c 1", json!(ratio))));
        let ours = measured.ops_per_s / 1e6;
        for (gets, measured) in &theirs {
            let quantity = format!("M gets/s, against {}", gets.name());
            let theirs = Some(measured.ops_per_s / 1e6);
            let row = ReproRow::new(system.name(), &quantity, theirs, Some(ours));
            // Each round's ratio is to the row before it.
            let ratio = if gets.clients == 1 { Some(ratio) } else { row.ratio };
            report.rows.push(ReproRow { ratio, ..row });
        }
        let what = format!("{}: gets at least {least} times {}", system.name(), gets.name());
        report.bar(what, ratio >= *least);
        let (what, holds) = system.cost_of_get(&measured);
        let full = report.scale == 1.0;
        // No cache is so small that it does not hold all of a small table.
        report.check(what, (full || *system != System::DexRead).then_some(holds));
        errors.extend(measured.error.map(|it| format!("{}: {it}", system.name())));
    }
    report.tables.push(table);
    Ok(errors)
}

/// The cells of a row.
fn cells<'a>(
    workload: Option<&str>,
    name: &str,
    measured: &SystemResult,
    last: (&'a str, Value),
) -> impl Iterator<Item = (&'a str, Value)> {
    let per_op = measured.per_op.as_ref();
    let cells = [
        ("system", json!(name)),
        ("M op/s", json!(measured.ops_per_s / 1e6)),
        ("least", json!(measured.least / 1e6)),
        ("most", json!(measured.most / 1e6)),
        ("p50 us", json!(measured.p50_us)),
        ("p99 us", json!(measured.p99_us)),
        ("READ /op", json!(per_op.map(|it| it.reads))),
        ("WRITE /op", json!(per_op.map(|it| it.writes))),
        ("atomics /op", json!(per_op.map(|it| it.atomics))),
        ("bytes /op", json!(measured.bytes_per_op)),
        last,
    ];
    workload.map(|name| ("workload", json!(name))).into_iter().chain(cells)
}
