//! DEX tests: several compute servers, partitions and offloaded operations.

#![allow(clippy::unwrap_used)]

use farleaf_bench::{
    BenchConfig, BenchError, Boundaries, Cluster, CounterReport, FabricKind, LoadKind, NoProgress,
    OpKind, Parts, Report, Routing, run, units::Rate,
};
use farleaf_engines::Engine;
use farleaf_index::Settings;
use serde_json::json;

use crate::runs::{FABRICS, of, run_well, serve, small};

fn dex(fabric: FabricKind, workload: &str) -> BenchConfig {
    BenchConfig { engine: Engine::Dex, ..small(fabric, workload) }
}

fn settings(pairs: &[&str]) -> Settings {
    pairs.iter().map(|pair| pair.parse().unwrap()).collect()
}

fn counters(report: &Report) -> &CounterReport {
    report.run.counters.as_ref().unwrap()
}

fn count(report: &Report, name: &str) -> f64 {
    counters(report).per_op.get(name).copied().unwrap_or(0.0)
}

/// Runs `config` on its fabric; on `tcp`, with memory servers that offload.
fn run_anywhere(config: &BenchConfig) -> Report {
    if config.fabric != FabricKind::Tcp {
        return run_well(config);
    }
    let (_servers, addresses) = serve(config);
    run_well(&BenchConfig { cluster: Some(Cluster::Own(addresses)), ..config.clone() })
}

const EVERY: [FabricKind; 3] = [FabricKind::Mapped, FabricKind::Sim, FabricKind::Tcp];

/// Two compute servers, with one partition each or more, on every fabric, with every kind of load,
/// bounds and routing. The check at the end finds every key.
#[test]
fn several_compute_servers_share_a_table() {
    let mix = "get=30,update=20,insert=20,upsert=10,scan=10,remove=10";
    for fabric in EVERY {
        for (routing, boundaries, load, partitions) in [
            (Routing::Owner, Boundaries::Sampled, LoadKind::Bulk, None),
            (Routing::Owner, Boundaries::Equal, LoadKind::Insert, Some(5)),
            (Routing::Any, Boundaries::Sampled, LoadKind::Insert, None),
            (Routing::Any, Boundaries::Equal, LoadKind::Bulk, Some(4)),
        ] {
            let parts = Parts {
                routing: Some(routing),
                boundaries: Some(boundaries),
                partitions,
                ..Parts::default()
            };
            let report = run_anywhere(&BenchConfig { parts, load, ..dex(fabric, mix) });
            let told = |name: &str| &report.config[name];
            assert_eq!(told("partitions"), partitions.unwrap_or(2));
            assert_eq!(told("routing"), routing.name());
            assert_eq!(told("boundaries"), boundaries.name());
            let parts = told("parts").to_string();
            assert!(parts.contains(&format!("partitions ({boundaries})")), "{parts}");
            assert_eq!(report.load.ops, 3000);
            let at_end = told("keys_at_end").as_u64().unwrap();
            assert_eq!(report.memory.data_bytes, 16 * at_end);
            let forwarded = count(&report, "forwarded");
            // Scans go on at the next owner; nearly all of the others begin where they belong.
            let expected = if routing == Routing::Any { 0.4..0.7 } else { 0.0..0.1 };
            assert!(expected.contains(&forwarded), "{fabric} {routing}: {forwarded}");
        }
    }
}

/// A warm cache that holds all keys of its compute server does no remote operation.
#[test]
fn owners_with_a_warm_cache_read_nothing() {
    for fabric in EVERY {
        for compute_servers in [1, 2] {
            let base = dex(fabric, "read-only");
            let config = BenchConfig { compute_servers, warmup_ops: 6000, ..base };
            let report = run_anywhere(&config);
            let get = of(&report, OpKind::Get).per_op;
            assert_eq!((get.reads, get.round_trips, get.rpcs), (0.0, 0.0, 0.0), "{fabric}");
            assert_eq!(counters(&report).hit_rate, Some(1.0));
            assert_eq!(count(&report, "forwarded"), 0.0);
        }
    }
}

/// Without routing, two compute servers forward half of the operations.
#[test]
fn unrouted_operations_are_forwarded() {
    let parts = Parts { routing: Some(Routing::Any), ..Parts::default() };
    let base = dex(FabricKind::Sim, "read-only");
    let config = BenchConfig { parts, warmup_ops: 6000, ops: 6000, ..base };
    let report = run_well(&config);
    assert_eq!(of(&report, OpKind::Get).per_op.reads, 0.0);
    let forwarded = count(&report, "forwarded");
    assert!((0.45..0.55).contains(&forwarded), "{forwarded}");
    // There and back takes as long as a READ; what is cached here takes no time.
    let latency = of(&report, OpKind::Get).latency_us.unwrap();
    assert!(latency.p99 > 1.8 && latency.p99 < 4.0, "{latency:?}");
}

#[test]
fn misses_are_offloaded_on_every_fabric() {
    for fabric in EVERY {
        let parts =
            Parts { memory_threads: (fabric == FabricKind::Sim).then_some(2), ..Parts::default() };
        let settings = settings(&["cache=20%", "offload=always", "durability=volatile"]);
        let config = BenchConfig { parts, settings, ..dex(fabric, "get=50,update=50") };
        let report = run_anywhere(&config);
        assert!(report.run.per_op.rpcs > 0.2, "{fabric}: {:?}", report.run.per_op);
        assert!(count(&report, "offload_ok") > 0.2, "{fabric}: {:?}", counters(&report));
        assert!(counters(&report).hit_rate.unwrap() < 0.8);
        assert!(report.config["parts"].to_string().contains("offload=always"));
        let shared = report.config["capabilities"].as_array().unwrap();
        assert!(shared.iter().any(|name| name == "cpu_visible"), "{fabric}");
    }
}

/// A share of the data is a share of the table's bytes in the pool.
#[test]
fn caches_can_be_a_share_of_the_data() {
    // Without logs, which are in the pool as well.
    let sized = |share: &str| settings(&["durability=volatile"]).with("cache", share);
    for fabric in FABRICS {
        let config = BenchConfig { settings: sized("25%"), ..dex(fabric, "ycsb-c") };
        let report = run_well(&config);
        let bytes = report.config["cache_bytes"].as_u64().unwrap() as f64;
        // The cache of its leaves and records, and little more.
        let table = report.memory.index_bytes as f64;
        assert!((0.2..0.26).contains(&(bytes / table)), "{bytes} of {table}");
        assert!(counters(&report).hit_rate.unwrap() < 1.0);
    }
    let tiny = BenchConfig { settings: sized("1%"), ..dex(FabricKind::Mapped, "ycsb-c") };
    let error = run(&tiny, &NoProgress).unwrap_err().to_string();
    assert!(error.starts_with("a cache of 1% of a table of "), "{error}");
    assert!(error.contains("the least is 8"), "{error}");
    let bytes = BenchConfig { settings: sized("1"), ..dex(FabricKind::Mapped, "ycsb-c") };
    let error = run(&bytes, &NoProgress).unwrap_err().to_string();
    assert_eq!(
        error,
        "cannot open the table: a cache of 1 bytes holds 0 nodes; the least is 8, 8192 bytes"
    );
}

/// INV-RUN-1, with all parts on.
#[test]
fn the_same_seed_gives_the_same_report_with_all_parts() {
    for routing in [Routing::Owner, Routing::Any] {
        let parts = Parts { routing: Some(routing), partitions: Some(3), ..Parts::default() };
        let all = ["cache=20%", "admission=eager", "single_queue=true", "offload=adaptive"];
        let settings = settings(&all);
        let config = BenchConfig { parts, settings, torn: true, ..dex(FabricKind::Sim, "ycsb-a") };
        let first = run_well(&config);
        assert_eq!(first, run_well(&config));
        let told = |name: &str| &first.config["settings"][name];
        let (admission, queue) = (told("admission"), told("single_queue"));
        assert_eq!((admission, queue), (&json!("eager"), &json!("true")));
        assert_eq!(told("scan_prefetch"), &json!("8"));
    }
}

#[test]
fn open_loops_forward_operations_on_others_keys() {
    let config = BenchConfig { rate: Rate::new(100_000), ..dex(FabricKind::Sim, "ycsb-a") };
    let report = run_well(&config);
    assert_eq!(report.config["routing"], "any");
    assert!(count(&report, "forwarded") > 0.4);
}

/// With fewer keys than compute servers, some own nothing and forward every operation.
#[test]
fn a_compute_server_may_own_no_keys() {
    for routing in [Routing::Owner, Routing::Any] {
        let parts = Parts { routing: Some(routing), ..Parts::default() };
        for fabric in FABRICS {
            let config = BenchConfig { keys: 1, parts: parts.clone(), ..dex(fabric, "ycsb-a") };
            assert_eq!(run_well(&config).config["partitions"], 1);
        }
    }
}

/// A run leaves other tables of a pool as they are, and drops its own, even if it failed.
#[test]
fn several_compute_servers_leave_other_tables_as_they_were() {
    let config = BenchConfig { pool_bytes: Some(64 << 20), ..dex(FabricKind::Tcp, "ycsb-a") };
    let (_servers, addresses) = serve(&config);
    let cluster = Some(Cluster::Shared(addresses));
    let config = BenchConfig { cluster, ..config };
    run_well(&config);
    let tiny = settings(&["cache=0.1%"]);
    let refused = run(&BenchConfig { settings: tiny, ..config.clone() }, &NoProgress);
    assert!(matches!(refused, Err(BenchError::SmallShare { .. })), "{refused:?}");
    run_well(&config);
}
