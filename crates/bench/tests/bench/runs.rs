//! Run tests: what a run reports, on every fabric, with every kind of load, key and loop.
#![allow(clippy::unwrap_used)]

use std::{
    net::SocketAddr,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use farleaf_bench::{
    BenchConfig, BenchError, CapabilityKind, CardModel, Cluster, FabricKind, KeyOrder, KeySpec,
    KindReport, LoadKind, LoopKind, NoProgress, OpKind, PerOp, Phase, Progress, Report, ReportKind,
    RequestDistribution, TimeKind, Workload, YcsbProperties, region_bytes, run, units::Rate,
};
use farleaf_engines::Engine;
use farleaf_fabric::{
    Client, ToAny,
    tcp::{Tcp, TcpConfig},
};
use farleaf_harness::LoopbackServers;
use farleaf_index::Settings;
use farleaf_pool::Pool;

/// A small run: two compute servers, two memory servers.
pub(crate) fn small(fabric: FabricKind, workload: &str) -> BenchConfig {
    BenchConfig {
        fabric,
        workload: workload.parse().unwrap(),
        keys: 3000,
        warmup_ops: 200,
        ops: 1500,
        clients: 6,
        threads: 2,
        compute_servers: 2,
        memory_servers: 2,
        seed: 7,
        verify: true,
        ..BenchConfig::default()
    }
}

pub(crate) const FABRICS: [FabricKind; 2] = [FabricKind::Mapped, FabricKind::Sim];

/// Starts memory servers in this process for `config`; returns their addresses as well.
pub(crate) fn serve(config: &BenchConfig) -> (LoopbackServers, Vec<SocketAddr>) {
    let bytes = region_bytes(config).unwrap();
    let lease = LoopbackServers::LEASE_LONG;
    let servers = LoopbackServers::start(config.memory_servers, bytes, lease).unwrap();
    let addresses = servers.addresses();
    (servers, addresses)
}

/// Remote operations of an index operation are the same on every network, and counted alike.
#[test]
fn a_run_over_tcp_costs_what_it_costs_elsewhere() {
    let config = small(FabricKind::Tcp, "ycsb-c");
    assert!(matches!(run(&config, &NoProgress), Err(BenchError::NoCluster)));
    let (_servers, addresses) = serve(&config);
    let over_tcp = run_well(&BenchConfig { cluster: Some(Cluster::Own(addresses)), ..config });
    let mapped = run_well(&small(FabricKind::Mapped, "ycsb-c"));
    assert_eq!((&*over_tcp.fabric, over_tcp.time), ("tcp", TimeKind::Real));
    // Without maintenance, and READs of the root word (once in an epoch): there are more of both the longer it takes, as
    // on a machine with other work. What is more than a whole number of READs has 8 bytes each, or the bytes differ.
    let per_op = |report: &Report| {
        let PerOp { reads, round_trips, bytes_read, .. } = of(report, OpKind::Get).per_op;
        assert_eq!(reads, round_trips);
        (reads.floor(), (bytes_read - reads.fract() * 8.0).round())
    };
    assert_eq!(per_op(&over_tcp), per_op(&mapped));
    assert!(per_op(&over_tcp).1 >= 1024.0);
}

/// A run leaves other tables of the pool as they are, and drops its own.
#[test]
fn a_run_leaves_other_tables_of_a_pool_as_they_were() {
    let config = BenchConfig { pool_bytes: Some(64 << 20), ..small(FabricKind::Tcp, "ycsb-a") };
    let (_servers, addresses) = serve(&config);
    let cluster = Some(Cluster::Shared(addresses));
    let config = BenchConfig { cluster, ..config };
    for _ in 0..2 {
        let report = run_well(&config);
        assert_eq!(report.config["connect"].as_array().unwrap().len(), 2);
    }
    let large = BenchConfig { keys: 100_000, value_bytes: 1024, ..config.clone() };
    assert!(matches!(run(&large, &NoProgress), Err(BenchError::PoolTooSmall { .. })));
    let servers = config.cluster.as_ref().unwrap().addresses().iter().copied();
    let endpoint = Tcp::connect(TcpConfig::to(servers)).unwrap().any_endpoint().unwrap();
    endpoint.executor().block_on(async {
        let pool = Pool::join(&Client::new(endpoint.clone())).await.unwrap();
        let session = pool.session(endpoint.clone()).await.unwrap();
        assert_eq!(session.list_roots().await.unwrap(), []);
    });
}

pub(crate) fn run_well(config: &BenchConfig) -> Report {
    let report = run(config, &NoProgress).unwrap();
    assert_eq!(report.run.first_error, None, "{config:?}");
    assert_eq!((report.run.errors, report.run.phase.ops), (0, config.ops), "{config:?}");
    report
}

pub(crate) fn of(report: &Report, kind: OpKind) -> &KindReport {
    &report.run.by_kind[&ReportKind::Op(kind)]
}

#[test]
fn every_workload_runs_on_every_fabric() {
    for fabric in FABRICS {
        for name in Workload::NAMES {
            let config = small(fabric, name);
            let report = run_well(&config);
            let mut ops = 0;
            for kind in OpKind::ALL {
                let expected = config.workload.mix.share(kind) > 0.0;
                assert_eq!(report.run.by_kind.contains_key(&ReportKind::Op(kind)), expected);
                if expected {
                    let report = of(&report, kind);
                    ops += report.ops;
                    let latency = report.latency_us.unwrap();
                    assert!(latency.p50 <= latency.p99 && latency.p99 <= latency.max);
                    assert!(report.per_op.reads >= 1.0 && report.per_op.round_trips >= 1.0);
                }
            }
            assert_eq!(ops, config.ops);
            let at_end = report.config["keys_at_end"].as_u64().unwrap();
            // The report leaves out those of the warm-up.
            let inserts = config.workload.mix.share(OpKind::Insert);
            let inserted = (at_end - config.keys) as f64;
            assert!((inserted - inserts * 1700.0).abs() < 100.0, "{name}: {inserted}");
            assert_eq!(report.memory.data_bytes, 16 * at_end);
            assert!(report.memory.index_bytes >= report.memory.data_bytes);
            assert_eq!(report.load.ops, config.keys);
            assert_eq!(report.fabric, fabric.name());
        }
    }
}

#[test]
fn open_loops_keep_their_rate() {
    for (fabric, rate, time) in [
        (FabricKind::Mapped, 20_000, TimeKind::Real),
        (FabricKind::Sim, 100_000, TimeKind::Virtual),
    ] {
        for name in ["ycsb-a", "scan-intensive"] {
            let rate = Rate::new(rate);
            let config = BenchConfig { rate, verify: false, ..small(fabric, name) };
            let report = run_well(&config);
            assert_eq!((report.loop_kind, report.time), (LoopKind::Open, time));
            let expected = config.ops as f64 / rate.unwrap().per_second() as f64;
            let ratio = report.run.phase.seconds / expected;
            // Not every machine keeps up in real time.
            let most = if time == TimeKind::Virtual { 1.3 } else { 20.0 };
            assert!((0.8..most).contains(&ratio), "{ratio}");
        }
    }
}

/// An operation that waits for its turn takes longer, and that counts.
#[test]
fn late_operations_count_from_their_time() {
    let closed = run_well(&small(FabricKind::Sim, "ycsb-c"));
    let rate = Rate::new(100_000_000);
    let open = run_well(&BenchConfig { rate, ..small(FabricKind::Sim, "ycsb-c") });
    // At a hundred million a second, all but the first are late, more and more so.
    assert!(open.run.latency_us.p50 > 20.0 * closed.run.latency_us.p50);
    assert!(open.run.latency_us.max / 1e6 > 0.9 * open.run.phase.seconds);
}

/// INV-RUN-1.
#[test]
fn the_same_seed_gives_the_same_report() {
    for name in ["ycsb-a", "ycsb-e", "insert-intensive"] {
        for torn in [false, true] {
            let config = BenchConfig { torn, ..small(FabricKind::Sim, name) };
            let first = run_well(&config);
            assert_eq!(first, run_well(&config));
            let other = run_well(&BenchConfig { seed: 8, ..config });
            assert_ne!(first.config["trace_hash"], other.config["trace_hash"]);
            assert_ne!(first.run.latency_us, other.run.latency_us);
        }
    }
}

fn nodes(bytes: u32) -> Settings {
    Settings::default().with("node_bytes", &bytes.to_string())
}

#[test]
fn reads_cost_the_height_exactly() {
    for fabric in FABRICS {
        for (keys, node_bytes) in [(10, 1024), (3000, 1024), (3000, 256)] {
            let base = small(fabric, "read-only");
            let report = run_well(&BenchConfig { keys, settings: nodes(node_bytes), ..base });
            let height = report.config["levels"].as_u64().unwrap();
            let per_op = &of(&report, OpKind::Get).per_op;
            // Beside the nodes, once in an epoch of the pool, the root word.
            let root_words = per_op.reads - height as f64;
            assert!((0.0..0.01).contains(&root_words), "{per_op:?}");
            assert_eq!(per_op.round_trips, per_op.reads);
            assert_eq!((per_op.writes, per_op.atomics), (0.0, 0.0));
            let bytes = height as f64 * f64::from(node_bytes) + root_words * 8.0;
            assert!((per_op.bytes_read - bytes).abs() < 1e-6, "{per_op:?}");
            assert!(height > 1 || keys == 10);
        }
    }
}

/// A read-modify-write has the cost of a get and an update; together with maintenance, all kinds
/// come to the total.
#[test]
fn costs_by_kind_add_up() {
    let report = run_well(&small(FabricKind::Sim, "get=40,rmw=30,update=10,upsert=10,insert=10"));
    let (get, update) = (of(&report, OpKind::Get).per_op, of(&report, OpKind::Update).per_op);
    let both = of(&report, OpKind::ReadModifyWrite).per_op;
    assert!((both.reads - get.reads - update.reads).abs() < 1e-9);
    assert!((both.writes - get.writes - update.writes).abs() < 1e-9);
    let sum = |cost: fn(&PerOp) -> f64| {
        let kinds = report.run.by_kind.values();
        kinds.map(|kind| cost(&kind.per_op) * kind.ops as f64).sum::<f64>()
    };
    let ops = report.run.phase.ops as f64;
    let costs: [fn(&PerOp) -> f64; 4] =
        [|it| it.reads, |it| it.writes, |it| it.atomics, |it| it.bytes_written];
    for cost in costs {
        assert!((sum(cost) - cost(&report.run.per_op) * ops).abs() < 1e-3);
    }
}

/// Compute servers of `dmtree` expose their memory and have lines there: a get reads one slot of a memory server. Other
/// slots with the same fingerprint come to 0.08 READs.
#[test]
fn compute_servers_expose_memory_to_engines_that_use_it() {
    let config = BenchConfig {
        engine: Engine::DmTree,
        keys: 5_000,
        key_type: KeySpec::Digits(24),
        // Changes build the lines of the leaves that they meet.
        warm_up: Some("get=50,update=50".parse().unwrap()),
        warmup_ops: 60_000,
        ops: 4_000,
        workload: Workload {
            request: RequestDistribution::Uniform,
            ..small(FabricKind::Sim, "get=50,update=50").workload
        },
        ..small(FabricKind::Sim, "ycsb-a")
    };
    let config = BenchConfig { memory_servers: 1, ..config };
    let report = run_well(&config);
    let targets = |kind| of(&report, kind).targets.unwrap();
    let (get, update) = (targets(OpKind::Get), targets(OpKind::Update));
    assert!((1.0..1.2).contains(&get.memory.reads), "{get:?}");
    assert!(get.compute.reads + get.own.reads < 0.05, "{get:?}");
    assert!((1.0..1.2).contains(&update.memory.reads), "{update:?}");
    assert!((0.9..=1.0).contains(&update.memory.writes), "{update:?}");
    let atomics = update.compute.atomics + update.own.atomics;
    assert!((1.6..=2.1).contains(&atomics), "{update:?}");
    let sum = get.named().iter().map(|(_, cost)| cost.reads).sum::<f64>();
    assert!((sum - of(&report, OpKind::Get).per_op.reads).abs() < 1e-9);
    // An unlock is a WRITE where a WRITE and a CAS exclude each other.
    let capabilities = CapabilityKind::WriteRmw;
    let report = run_well(&BenchConfig { capabilities, ..config.clone() });
    let update = of(&report, OpKind::Update).targets.unwrap();
    assert!(update.compute.atomics + update.own.atomics <= 1.1, "{update:?}");
    // Threads of several compute servers in real time.
    let report = run_well(&BenchConfig { fabric: FabricKind::Mapped, ..config });
    assert!(of(&report, OpKind::Get).targets.is_some_and(|it| it.memory.reads < 1.5));
}

/// Slower cards bind a run, and the warm-up may have a workload of its own.
#[test]
fn cards_have_the_rates_of_the_model() {
    let card_model = Some(CardModel { ops_per_s: 100_000, atomics_per_s: 50_000 });
    let usual = small(FabricKind::Sim, "get=100");
    let rate = |config: &BenchConfig| run_well(config).run.phase.ops_per_s;
    let slow =
        BenchConfig { card_model, warm_up: Some("scan=100".parse().unwrap()), ..usual.clone() };
    let (fast, slowed) = (rate(&usual), rate(&slow));
    assert!(slowed < 200_000.0 && fast > 4.0 * slowed, "{fast}, {slowed}");
    let told = run_well(&slow).config;
    assert_eq!(told["card_ops_per_s"], 100_000);
    assert!(told["warm_up"].as_str().is_some_and(|name| name.starts_with("scan")));
}

#[test]
fn tables_can_be_loaded_by_inserts() {
    for fabric in FABRICS {
        let config = BenchConfig { load: LoadKind::Insert, ..small(fabric, "ycsb-c") };
        let report = run_well(&config);
        assert_eq!(report.load.ops, config.keys);
        assert!(report.load.seconds > 0.0);
        assert_eq!(report.memory.data_bytes, 16 * config.keys);
        assert_eq!(report.config["keys_at_end"], config.keys);
    }
}

#[test]
fn keys_and_values_of_every_kind() {
    let path = std::env::temp_dir().join(format!("farleaf-bench-keys-{}", std::process::id()));
    let lines: String = (0..4000).map(|line| format!("line {}\n", line * 7919 % 4001)).collect();
    std::fs::write(&path, lines).unwrap();
    let kinds = [
        KeySpec::U64(KeyOrder::Ordered),
        KeySpec::Bytes(KeyOrder::Hashed),
        KeySpec::Bytes(KeyOrder::Ordered),
        KeySpec::Randint,
        KeySpec::Email,
        KeySpec::Lines(path.clone()),
    ];
    for fabric in FABRICS {
        for key_type in &kinds {
            for value_bytes in [0, 3, 8, 100, 2000] {
                let key_type = key_type.clone();
                let base = small(fabric, "get=40,update=20,insert=20,scan=10,remove=10");
                let ops = 400;
                let config = BenchConfig { key_type, value_bytes, keys: 600, ops, ..base };
                let report = run_well(&config);
                let at_end = report.config["keys_at_end"].as_u64().unwrap();
                let values = at_end * value_bytes as u64;
                assert!((values..values + at_end * 25).contains(&report.memory.data_bytes));
            }
        }
    }
    std::fs::remove_file(&path).unwrap();
}

/// A file of keys ends: then inserts end, and with them their clients.
#[test]
fn running_out_of_keys_ends_the_run() {
    let path = std::env::temp_dir().join(format!("farleaf-bench-few-{}", std::process::id()));
    std::fs::write(&path, (0..120).map(|line| format!("{line}\n")).collect::<String>()).unwrap();
    let base = small(FabricKind::Sim, "insert=1");
    let key_type = KeySpec::Lines(path.clone());
    let config = BenchConfig { keys: 100, warmup_ops: 0, key_type, ..base };
    let report = run(&config, &NoProgress).unwrap();
    assert_eq!((report.run.phase.ops, report.run.errors), (20, 0));
    let error = run(&BenchConfig { keys: 121, ..config }, &NoProgress).unwrap_err();
    assert_eq!(error.to_string(), "121 keys to load, but the file has 120: load at most that many");
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn ycsb_properties_are_run() {
    let mut properties = YcsbProperties::new();
    for property in [
        "recordcount=500",
        "operationcount=600",
        "readproportion=0.4",
        "updateproportion=0.2",
        "scanproportion=0.2",
        "readmodifywriteproportion=0.2",
        "requestdistribution=latest",
        "maxscanlength=20",
        "fieldcount=3",
        "fieldlength=40",
    ] {
        properties.set(property).unwrap();
    }
    let ycsb = properties.config().unwrap();
    for fabric in FABRICS {
        let config = BenchConfig {
            workload: ycsb.workload.clone(),
            keys: ycsb.record_count,
            ops: ycsb.operation_count.unwrap(),
            value_bytes: ycsb.value_bytes,
            key_type: KeySpec::Bytes(ycsb.key_order),
            ..small(fabric, "ycsb-a")
        };
        let report = run_well(&config);
        assert!(of(&report, OpKind::ReadModifyWrite).ops > 80);
        assert!(report.memory.data_bytes > 500 * (120 + 5));
        assert_eq!(report.config["distribution"], "latest:0.99");
    }
}

#[test]
fn capabilities_of_the_simulator_can_be_chosen() {
    let config = small(FabricKind::Sim, "ycsb-a");
    let none = run_well(&config);
    let mapped = run_well(&BenchConfig { capabilities: CapabilityKind::Mapped, ..config });
    assert_eq!(none.config["capabilities"].as_array().unwrap().len(), 2);
    let real = run_well(&small(FabricKind::Mapped, "ycsb-a"));
    assert_eq!(mapped.config["capabilities"], real.config["capabilities"]);
    let atomics = |report: &Report| of(report, OpKind::Update).per_op.atomics;
    assert!(atomics(&none) > atomics(&mapped), "a lock is released by a WRITE where that is safe");
}

#[test]
fn impossible_configurations_are_refused() {
    let refusal = |change: &dyn Fn(&mut BenchConfig)| {
        let mut config = small(FabricKind::Sim, "ycsb-a");
        change(&mut config);
        run(&config, &NoProgress).unwrap_err()
    };
    assert!(matches!(refusal(&|it| it.clients = 0), BenchError::Config(_)));
    assert!(matches!(refusal(&|it| it.threads = 8), BenchError::Config(_)));
    assert!(matches!(refusal(&|it| it.settings.set("node_bytes", "1000")), BenchError::Table(_)));
    let missing = refusal(&|it| it.key_type = "lines:/no/such/file".parse().unwrap());
    assert!(matches!(missing, BenchError::Lines(_)));
    for fabric in FABRICS {
        for load in [LoadKind::Bulk, LoadKind::Insert] {
            let error = refusal(&|it| {
                (it.fabric, it.load, it.keys) = (fabric, load, 200_000);
                it.pool_bytes = Some(3 << 20);
            });
            assert!(matches!(error, BenchError::PoolTooSmall { .. }), "{fabric}: {error}");
            assert!(error.to_string().contains("--pool-bytes"), "{error}");
        }
        let error = refusal(&|it| (it.fabric, it.pool_bytes) = (fabric, Some(1000)));
        assert!(matches!(error, BenchError::Fabric(_)), "{error}");
    }
}

/// Counts its calls.
#[derive(Default)]
struct Counting {
    phases: AtomicU64,
    total: AtomicU64,
    steps: AtomicU64,
    /// Steps that were done at each pause.
    pauses: Mutex<Vec<u64>>,
}

impl Progress for Counting {
    fn begin(&self, _phase: Phase, total: u64) {
        self.phases.fetch_add(1, Ordering::SeqCst);
        self.total.fetch_add(total, Ordering::SeqCst);
    }

    fn advance(&self, steps: u64) {
        self.steps.fetch_add(steps, Ordering::SeqCst);
    }

    fn pause(&self) {
        self.pauses.lock().unwrap().push(self.steps.load(Ordering::SeqCst));
    }
}

#[test]
fn no_client_works_between_slices() {
    for fabric in FABRICS {
        for engine in [Engine::BTree, Engine::Dex] {
            let progress = Counting::default();
            let config = BenchConfig { engine, ops: 9000, slices: 7, ..small(fabric, "ycsb-a") };
            let report = run(&config, &progress).unwrap();
            assert_eq!((report.run.phase.ops, progress.phases.into_inner()), (9000, 4));
            let done = |slice| 3000 + 200 + 9000 * slice / 7;
            assert_eq!(
                progress.pauses.into_inner().unwrap(),
                (0..7_u64).map(done).collect::<Vec<_>>()
            );
        }
    }
}

/// Rests in each pause, and meets the other threads late.
struct Resting(Duration);

impl Progress for Resting {
    fn begin(&self, _phase: Phase, _total: u64) {}

    fn advance(&self, _steps: u64) {}

    fn pause(&self) {
        std::thread::sleep(self.0);
    }
}

/// Maintenance goes on in pauses, and the report leaves it out of the operations' cost.
#[test]
fn pauses_cost_nothing() {
    const REST: Duration = Duration::from_millis(500);
    let config = BenchConfig {
        engine: Engine::Dex,
        clients: 2,
        compute_servers: 1,
        slices: 3,
        ..small(FabricKind::Mapped, "ycsb-c")
    };
    let report = run(&config, &Resting(REST)).unwrap();
    let all = report.run.per_op.reads * config.ops as f64;
    let gets = of(&report, OpKind::Get).per_op.reads * config.ops as f64;
    // One every 40 ms, of two READs at most, and one of each slice and client that has just begun. In the
    // pauses there are 37, of 46 READs.
    let ticks = report.run.phase.seconds / 0.04 + 2.0 * 3.0;
    assert!(all - gets <= 2.0 * ticks, "{} READs of maintenance, {ticks} ticks", all - gets);
}

#[test]
fn progress_comes_to_the_total() {
    for fabric in FABRICS {
        for load in [LoadKind::Bulk, LoadKind::Insert] {
            let progress = Counting::default();
            let config = BenchConfig { load, ops: 9000, ..small(fabric, "ycsb-a") };
            let report = run(&config, &progress).unwrap();
            assert_eq!(report.run.phase.ops, 9000);
            assert_eq!(progress.phases.into_inner(), 4);
            assert_eq!(progress.total.into_inner(), 3000 + 200 + 9000);
            assert_eq!(progress.steps.into_inner(), 3000 + 200 + 9000);
        }
    }
}
