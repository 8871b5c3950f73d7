//! Gateway comparison: redis-benchmark on a gateway and on redis-server, in turns, each on the same processor.
//!
//! The server has one thread on one processor, redis-benchmark runs on another one. Rounds alternate, so that other load
//! of the machine strikes both alike; the figures are medians over rounds.

use std::{net::SocketAddr, path::PathBuf, process};

use farleaf_resp::wire::Wire;
use serde_json::json;

use super::{
    benchmark,
    error::RedisError,
    server::{RedisServer, SILENCE_MAX, output_of},
    systems::{SystemResult, median},
};
use crate::{
    repro::{Host, Repro, error::ReproError, report::ReproReport, report::ReproTable},
    run::Phase,
};

const KEYS: u64 = 1_000_000;
/// Commands of a run; fewer of those whose commands wait for each other.
const COMMANDS: u64 = 1_000_000;
const COMMANDS_ALONE: u64 = 200_000;
/// Rounds at scale 1; smaller runs have one.
const ROUNDS: usize = 5;
const VALUE_BYTES: usize = 8;
/// Keys that are loaded with one wait.
const LOAD_KEYS: u64 = 512;
/// The cache holds everything.
const CACHE: &str = "256MiB";
const POOL_BYTES: &str = "1GiB";
const REGION_BYTES: u64 = 1 << 30;
/// The least ratio of overlapping commands over the network to those one by one.
const OVERLAP_LEAST: f64 = 8.0;

/// A gateway's tables.
struct Tables {
    name: &'static str,
    pool: Pool,
    engine: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Pool {
    /// Of the gateway's own process.
    Own,
    /// In shared memory.
    Shared,
    /// Of a memory server, over TCP.
    Network,
}

/// A call of redis-benchmark: test, pipeline, connections; and the least ratio to redis-server.
struct BenchCall(&'static str, usize, usize, Option<f64>);

const CASES: [(Tables, &[BenchCall]); 3] = [
    (
        Tables { name: "dex in mem:, warm", pool: Pool::Own, engine: "dex" },
        &[
            BenchCall("get", 16, 50, Some(1.0)),
            BenchCall("set", 16, 50, None),
            BenchCall("get", 1, 50, Some(0.8)),
            BenchCall("set", 1, 50, Some(0.8)),
        ],
    ),
    (
        Tables { name: "btree in shm:", pool: Pool::Shared, engine: "btree" },
        &[BenchCall("get", 16, 50, Some(0.5)), BenchCall("set", 16, 50, Some(0.4))],
    ),
    (
        Tables { name: "btree over tcp", pool: Pool::Network, engine: "btree" },
        &[BenchCall("get", 64, 1, None), BenchCall("get", 1, 1, None)],
    ),
];

/// A folder in shared memory, gone when it is dropped.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        // The system tells of a folder that stays.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(in crate::repro) fn run(repro: &Repro<'_>, report: &mut ReproReport) -> Result<(), ReproError> {
    let pins = std::thread::available_parallelism().is_ok_and(|count| count.get() > 1)
        && output_of("taskset", &["--version"], || Ok(())).is_ok();
    let words: &[&str] = if pins { &["--server_cpulist", "0"] } else { &[] };
    let server = RedisServer::start_with(words)?;
    report.source = format!("Redis {}", server.version);
    report.against = "redis".to_owned();
    let keys = repro.options.scaled(KEYS);
    report.set("keys", keys);
    report.set("key_bytes", 16);
    report.set("value_bytes", VALUE_BYTES);
    let rounds = if repro.options.scale == 1.0 { ROUNDS } else { 1 };
    report.set("rounds", rounds);
    report.set("server_processor", if pins { json!(0) } else { json!(null) });
    report.set("client_processor", if pins { json!(1) } else { json!(null) });
    report.note(
        "redis-server and the gateway have one thread each; redis-benchmark runs in turn on both, and its own figures \
         are compared. Redis keeps no persistence.",
    );
    load(&mut server.connect()?, keys, repro)?;
    let mut table = ReproTable::new("redis-benchmark, medians of rounds in turns");
    for (tables, measured) in CASES {
        // Dropped from the last one on.
        let (_scratch, _memory, gateway) = start(repro, &tables, pins)?;
        let address = gateway.address();
        let connect = || Wire::connect(address, SILENCE_MAX);
        load(&mut connect()?, keys, repro)?;
        let mut rates = Vec::new();
        for BenchCall(test, depth, clients, least) in measured {
            let commands = if *depth == 1 { COMMANDS_ALONE } else { COMMANDS };
            let commands = repro.options.scaled(commands).max(benchmark::OPS_MIN);
            let run = |address: SocketAddr| -> Result<SystemResult, RedisError> {
                let words = words_of(address, test, *depth, *clients, keys, commands, pins);
                let words: Vec<&str> = words.iter().map(String::as_str).collect();
                let (program, words) =
                    if pins { ("taskset", &words[..]) } else { (benchmark::PROGRAM, &words[3..]) };
                let is_there = || Ok(Wire::connect(address, SILENCE_MAX).map(drop)?);
                benchmark::result(&output_of(program, words, is_there)?)
            };
            // The first one warms caches and connections up.
            run(address)?;
            let mut runs = [Vec::new(), Vec::new()];
            for _ in 0..rounds {
                runs[0].push(run(server.address)?);
                runs[1].push(run(address)?);
            }
            let ratios = runs[0]
                .iter()
                .zip(&runs[1])
                .map(|(theirs, ours)| ours.ops_per_s / theirs.ops_per_s);
            let ratio = median(ratios.collect());
            let [theirs, ours] = runs.map(|runs| SystemResult::median(&runs));
            let case = format!("{}, -t {test} -P {depth} -c {clients}", tables.name);
            for (system, result, of_redis) in
                [("redis", &theirs, None), ("gateway", &ours, Some(ratio))]
            {
                table.row([
                    ("case", json!(case)),
                    ("system", json!(system)),
                    ("K commands/s", json!(result.ops_per_s / 1e3)),
                    ("least", json!(result.least / 1e3)),
                    ("most", json!(result.most / 1e3)),
                    ("p50 us", json!(result.p50_us)),
                    ("p99 us", json!(result.p99_us)),
                    ("of redis", json!(of_redis)),
                ]);
            }
            let rate = |result: &SystemResult| Some(result.ops_per_s / 1e3);
            let mut row = super::super::report::ReproRow::new(
                &case,
                "K commands/s",
                rate(&theirs),
                rate(&ours),
            );
            row.ratio = Some(ratio);
            report.rows.push(row);
            if let Some(least) = least {
                report.bar(format!("{case}: at least {least} of redis"), ratio >= *least);
            }
            rates.push(ours.ops_per_s);
        }
        if let (Pool::Network, [together, alone]) = (tables.pool, &rates[..]) {
            let gain = together / alone;
            report.note(format!("{}: -P 64 -c 1 is {gain:.1} times -P 1 -c 1.", tables.name));
            let what =
                format!("{}: -P 64 -c 1 at least {OVERLAP_LEAST} times -P 1 -c 1", tables.name);
            report.bar(what, gain >= OVERLAP_LEAST);
        }
    }
    report.tables.push(table);
    Ok(())
}

/// The folder and the memory server of a gateway, as far as it has them, and the gateway.
type Started = (Option<Scratch>, Option<Box<dyn Host>>, Box<dyn Host>);

fn start(repro: &Repro<'_>, tables: &Tables, pins: bool) -> Result<Started, ReproError> {
    let (mut memory, mut scratch) = (None, None);
    let pool = match tables.pool {
        Pool::Own => "mem:".to_owned(),
        Pool::Shared => {
            let folder = PathBuf::from(format!("/dev/shm/farleaf-repro-gateway-{}", process::id()));
            let pool = format!("shm:{}", folder.display());
            scratch = Some(Scratch(folder));
            pool
        }
        Pool::Network => {
            let server = repro.hosts.memory_server(REGION_BYTES).map_err(ReproError::Host)?;
            let pool = format!("tcp://{}", server.address());
            memory = Some(server);
            pool
        }
    };
    let mut words = vec![pool.as_str(), "--create", "--engine", tables.engine];
    if tables.pool != Pool::Network {
        words.extend(["--pool-bytes", POOL_BYTES]);
    }
    if tables.engine == "dex" {
        words.extend(["--cache", CACHE]);
    }
    if pins {
        words.extend(["--pin", "0"]);
    }
    let gateway = repro.hosts.gateway(&words).map_err(ReproError::Host)?;
    Ok((scratch, memory, gateway))
}

/// The words of a run; the first three keep it on a processor.
fn words_of(
    address: SocketAddr,
    test: &str,
    depth: usize,
    clients: usize,
    keys: u64,
    commands: u64,
    pins: bool,
) -> Vec<String> {
    let (host, port) = (address.ip(), address.port());
    let commands = benchmark::whole(commands, depth);
    let pin = if pins { "1" } else { "0" };
    format!(
        "-c {pin} {} -h {host} -p {port} -c {clients} -P {depth} -d {VALUE_BYTES} -r {keys} -n {commands} -t {test} \
         --csv --precision 3",
        benchmark::PROGRAM
    )
    .split(' ')
    .map(str::to_owned)
    .collect()
}

/// Sets the keys that redis-benchmark draws from.
fn load(wire: &mut Wire, keys: u64, repro: &Repro<'_>) -> Result<(), ReproError> {
    repro.progress.begin(Phase::Load, keys);
    for first in (0..keys).step_by(LOAD_KEYS as usize) {
        let items = first..keys.min(first + LOAD_KEYS);
        for item in items.clone() {
            wire.put(&[b"SET", format!("key:{item:012}").as_bytes(), &item.to_le_bytes()]);
        }
        wire.send()?;
        for _ in items.clone() {
            let reply = wire.reply("SET")?;
            if reply.text() != "OK" {
                return Err(RedisError::answer("SET", &reply).into());
            }
        }
        repro.progress.advance(items.end - items.start);
    }
    Ok(())
}
