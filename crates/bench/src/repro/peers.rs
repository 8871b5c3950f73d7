//! Peers: compares remote operations and bytes with the programs published with the papers.
//!
//! On Soft-RoCE, the device of the programs' measurements, it also compares throughput.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use farleaf_engines::Engine;
use farleaf_fabric::{
    Endpoint, FabricError, GlobalAddr, ServerId, ToAny, Words,
    tcp::MemoryServerConfig,
    verbs::{CardConfig, Verbs, VerbsConfig, VerbsServer, devices},
};
use farleaf_index::Settings;
use serde_json::json;

use super::{
    Repro, ReproOptions, driver,
    error::ReproError,
    papers::{self, Peer, PeerRow},
    report::ReproReport,
};
use crate::{
    config::{BenchConfig, Cluster, FabricKind},
    distribution::RequestDistribution,
    keys::KeySpec,
    report::RunReport,
    run::{Phase, Progress, region_bytes},
    workload::{OpKind, Workload},
};

/// The cache must hold the paths of both threads with room to spare.
pub(super) const SCALE_MIN: f64 = 0.02;
/// Operations at scale 1, and those that fill the cache before. There are fewer of inserts, which
/// make the table larger, and of runs without a cache.
const OPS: u64 = 200_000;
const WARMUP_OPS: u64 = 500_000;
const SHORT_WARMUP_OPS: u64 = 20_000;
/// READs of 1 KiB that show how quick the device is, before each slice of a workload and after the last.
const DEVICE_READS: u32 = 1_000;
const SLICES: u64 = 20;
const READ_BYTES: usize = 1024;

/// The workload that the figures call `name`.
fn workload(name: &str) -> Result<Workload, ReproError> {
    let named = driver::workload("ycsb-a")?;
    let kind = match name {
        "c" | "c uniform" => OpKind::Get,
        "update" => OpKind::Update,
        "insert" => OpKind::Insert,
        "scan of 100" => OpKind::Scan,
        _ => return Ok(Workload { name: name.to_owned(), ..named }),
    };
    let request = match name {
        "c uniform" => RequestDistribution::Uniform,
        _ => named.request,
    };
    driver::mixed(name, &[(kind, 1.0)], request)
}

pub(super) fn run(repro: &Repro<'_>, report: &mut ReproReport) -> Result<(), ReproError> {
    let Repro { options, progress, .. } = *repro;
    let peers = papers::peers()?;
    report.source.clone_from(&peers.source);
    let device = devices().ok().and_then(|names| names.into_iter().next());
    report.set("seed", options.seed);
    report.set("device", device.clone());
    report.set("threads", peers.threads);
    report.set("ops", options.scaled(OPS));
    let world = PeerBench { options, threads: peers.threads, device: device.as_deref() };
    let theirs_kops = peers.read_1kib_kops;
    for peer in &peers.programs {
        let Some(engine) = driver::engine(&peer.engine) else { continue };
        let (name, reason) = (case_name(peer), reason(&peer.engine));
        report.set(&format!("cache_bytes_{name}"), options.scaled(peer.cache_bytes));
        for (workload, row) in &peer.rows {
            let ours = world.measure(engine, peer, workload, progress)?;
            let case = format!("{name}, {workload}");
            add(report, &case, row, theirs_kops, &ours, reason);
            if peer.is_bar {
                add_bars(report, &case, peer, workload, row, &ours);
            }
            if peer.engine == "dex" {
                add_speed_bar(report, &case, row, theirs_kops, &ours, world.is_soft());
            }
        }
        report.note(format!("{name} stands beside {}.", peer.name));
    }
    report.notes.push(match &device {
        Some(device) => format!(
            "By RDMA on {device}, servers of this process. How quick the device is depends on the \
             machine, so throughput stands beside that of {READ_BYTES}-byte READs, one at a time, in \
             {SLICES} pauses of it and after it; theirs beside perftest's {theirs_kops} kop/s."
        ),
        None => "There is no RDMA device here: in memory of this process, where remote operations and \
                 bytes are the same. Throughput is compared on Soft-RoCE alone (`make peers`)."
            .to_owned(),
    });
    Ok(())
}

/// The engine, and its settings beside the cache.
fn case_name(peer: &Peer) -> String {
    let settings = peer.settings.iter().map(|(name, value)| format!(" {name}={value}"));
    std::iter::once(peer.engine.clone()).chain(settings).collect()
}

fn reason(engine: &str) -> &'static str {
    match engine {
        "dex" => "the cache keeps what is asked for again",
        "sherman" => {
            "slots of leaves have checks: a leaf of 1,024 B has 40, the program's 54, and a split leaves a redo record"
        }
        "chime" => "a get READs its key's neighbourhood, or the one slot that a hint names",
        _ => "leaves and nodes have checks, and a changed leaf a version",
    }
}

/// Everything that all runs have in common.
struct PeerBench<'a> {
    options: &'a ReproOptions,
    threads: usize,
    device: Option<&'a str>,
}

/// Our result of a workload.
struct Ours {
    run: RunReport,
    /// READs of 1 KiB each thousandth of a second, by a device.
    read_kops: Option<f64>,
}

impl PeerBench<'_> {
    /// Returns whether the device is of the kind that the others' programs were measured on.
    fn is_soft(&self) -> bool {
        self.device.is_some_and(|device| device.starts_with("rxe"))
    }

    fn measure(
        &self,
        engine: Engine,
        peer: &Peer,
        name: &str,
        progress: &dyn Progress,
    ) -> Result<Ours, ReproError> {
        let fills_cache = peer.fills_cache && name != "insert";
        let warmup = if fills_cache { WARMUP_OPS } else { SHORT_WARMUP_OPS };
        let cache_bytes = self.options.scaled(peer.cache_bytes).to_string();
        let mut settings =
            Settings::default().with("cache", &cache_bytes).with("durability", "volatile");
        peer.settings.iter().for_each(|(name, value)| settings.set(name, value));
        let key_type = peer.key_type.as_deref().unwrap_or("u64");
        let key_type = key_type.parse::<KeySpec>();
        let key_type = key_type.map_err(|error| ReproError::Wrong(error.to_string()))?;
        let mut config = BenchConfig {
            engine,
            workload: workload(name)?,
            keys: self.options.scaled(peer.keys),
            key_type,
            warmup_ops: self.options.scaled(warmup),
            ops: self.options.scaled(OPS),
            clients: self.threads,
            threads: self.threads,
            memory_servers: 1,
            seed: self.options.seed,
            slices: SLICES,
            settings: engine.known(&settings).and(&engine.known(&self.options.settings)),
            ..BenchConfig::default()
        };
        let (report, read_kops) = if self.device.is_some() {
            config.fabric = FabricKind::Verbs;
            let bytes = region_bytes(&config)?;
            let words = Words::anonymous((bytes / 8) as usize).ok_or_else(|| {
                ReproError::Wrong(format!("no {bytes} bytes of memory for a memory server"))
            })?;
            let (listen, card) = (MemoryServerConfig::default(), CardConfig::default());
            let server = VerbsServer::start(listen, &card, Arc::new(words)).map_err(fabric)?;
            let reads = Verbs::connect(VerbsConfig::to([server.address()])).map_err(fabric)?;
            let probe = Probe { reads, progress, read: Mutex::new(Ok(Duration::ZERO)) };
            config.cluster = Some(Cluster::Own(vec![server.address()]));
            let report = crate::run::run(&config, &probe)?;
            probe.pause();
            let time = probe.read.into_inner().unwrap_or_else(PoisonError::into_inner)?;
            let reads = f64::from(DEVICE_READS) * (SLICES + 1) as f64;
            (report, Some(reads / time.as_secs_f64() / 1e3))
        } else {
            (crate::run::run(&config, progress)?, None)
        };
        Ok(Ours { run: driver::all_right(&config, report)?.run, read_kops })
    }
}

fn fabric(error: FabricError) -> ReproError {
    ReproError::Bench(error.into())
}

/// Measures the device whenever a workload pauses.
struct Probe<'a> {
    reads: Verbs,
    progress: &'a dyn Progress,
    /// Time of all READs so far.
    read: Mutex<Result<Duration, ReproError>>,
}

impl Progress for Probe<'_> {
    fn begin(&self, phase: Phase, total: u64) {
        self.progress.begin(phase, total);
    }

    fn advance(&self, steps: u64) {
        self.progress.advance(steps);
    }

    fn pause(&self) {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if let Ok(before) = *read {
            *read = read_time(&self.reads).map(|time| before + time);
        }
    }
}

/// Time of [`DEVICE_READS`] READs of 1 KiB, one at a time.
fn read_time(fabric: &Verbs) -> Result<Duration, ReproError> {
    let endpoint = fabric.any_endpoint().map_err(self::fabric)?;
    let own = endpoint.clone();
    let begun = Instant::now();
    let done = endpoint.executor().block_on(async move {
        let mut buf = own.buf(READ_BYTES);
        for place in 0..u64::from(DEVICE_READS) {
            let at = GlobalAddr::new(ServerId(0), place % 64 * READ_BYTES as u64);
            buf = own.read(at, buf).await?;
        }
        Ok::<_, farleaf_fabric::OpError>(())
    });
    done.map_err(|error| ReproError::Wrong(format!("the device fails: {error}")))?;
    Ok(begun.elapsed())
}

fn add(
    report: &mut ReproReport,
    case: &str,
    row: &PeerRow,
    theirs_read_kops: f64,
    ours: &Ours,
    reason: &str,
) {
    let it = &ours.run.per_op;
    for (quantity, theirs, ours) in [
        ("READs /op", row.reads, it.reads),
        ("WRITEs /op", row.writes, it.writes),
        ("atomics /op", row.atomics, it.atomics),
        ("bytes /op", row.bytes(), it.bytes_read + it.bytes_written),
    ] {
        report.row(case, quantity, Some(theirs), ours, reason);
    }
    let kops = ours.run.phase.ops_per_s / 1e3;
    if let Some(read_kops) = ours.read_kops {
        let speed = "the machine, and what else runs on it";
        report.row(case, "kop/s", Some(row.kops), kops, speed);
        let theirs = row.kops / theirs_read_kops;
        report.row(case, "ops for each READ of the device", Some(theirs), kops / read_kops, reason);
    }
    report.set(&format!("run of {case}"), json!({"kops": kops, "read_kops": ours.read_kops}));
}

fn add_bars(
    report: &mut ReproReport,
    case: &str,
    peer: &Peer,
    workload: &str,
    row: &PeerRow,
    ours: &Ours,
) {
    let (it, allowed) = (&ours.run.per_op, peer.allowed.get(workload));
    let writes = allowed.map_or(row.writes, |most| most.writes);
    let bytes = row.bytes_read + allowed.map_or(row.bytes_written, |most| most.bytes_written);
    for (what, most, ours, rounding) in [
        ("READs", row.reads, it.reads, peer.rounding),
        ("WRITEs", writes, it.writes, peer.rounding),
        ("atomics", row.atomics, it.atomics, peer.rounding),
        ("bytes", bytes, it.bytes_read + it.bytes_written, 100.0 * peer.rounding),
    ] {
        report.bar(format!("{case}: at most {most} {what} /op"), ours <= most + rounding);
    }
}

fn add_speed_bar(
    report: &mut ReproReport,
    case: &str,
    row: &PeerRow,
    theirs_read_kops: f64,
    ours: &Ours,
    is_soft: bool,
) {
    let least = row.kops / theirs_read_kops;
    let quick = ours.read_kops.map(|read| ours.run.phase.ops_per_s / 1e3 / read >= least);
    let what = format!("{case}: at least {least:.2} ops for each READ of the device");
    let is_asked = is_soft && report.scale == 1.0;
    report.check(what, quick.filter(|_| is_asked));
}
