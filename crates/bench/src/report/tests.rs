#![allow(clippy::unwrap_used)]

use super::*;
use crate::histogram::LatencyHistogram;

fn sample() -> Report {
    let mut histogram = LatencyHistogram::new();
    (1..=1000).for_each(|nanos| histogram.record(nanos));
    let cost = Cost {
        reads: 330,
        writes: 190,
        cas: 3,
        faa: 2,
        rpcs: 1,
        calls: 2,
        round_trips: 400,
        bytes_read: 333_900,
        bytes_written: 190_200,
        ..Cost::default()
    };
    let latency_us = Some(histogram.summary());
    let kind = KindReport { ops: 500, latency_us, per_op: PerOp::of(cost, 500), targets: None };
    let maintenance =
        KindReport { ops: 1000, latency_us: None, per_op: PerOp::of(cost, 1000), targets: None };
    Report {
        engine: "dex".to_owned(),
        fabric: "sim".to_owned(),
        time: TimeKind::Virtual,
        loop_kind: LoopKind::Closed,
        config: Map::from_iter([
            ("workload".to_owned(), Value::from("ycsb-a")),
            ("keys".to_owned(), Value::from(1_000_000)),
            ("cache".to_owned(), Value::from("8%")),
            ("parts".to_owned(), Value::from(vec!["cache of 1 MiB", "logged"])),
        ]),
        load: PhaseReport::new(0.5, 1_000_000),
        run: RunReport {
            phase: PhaseReport::new(0.25, 1000),
            errors: 2,
            first_error: Some("update of item 7: full".to_owned()),
            latency_us: histogram.summary(),
            per_op: PerOp::of(cost, 1000),
            targets: None,
            by_kind: BTreeMap::from([
                (ReportKind::Maintenance, maintenance),
                (ReportKind::Op(OpKind::Update), kind),
                (ReportKind::Op(OpKind::Get), kind),
            ]),
            counters: Some(CounterReport {
                hit_rate: Some(0.75),
                per_op: BTreeMap::from([("reads_leaf".to_owned(), 0.25)]),
            }),
            busiest_card: Some(BusiestCard {
                server: "memory server 1".to_owned(),
                part: "bytes out".to_owned(),
                share: 0.975,
            }),
        },
        memory: MemoryReport {
            pool_bytes: 4096,
            index_bytes: 1024,
            data_bytes: 2048,
            compute_bytes: 64,
        },
        machine: Machine {
            cpu: None,
            cores: Some(2),
            memory_bytes: Some(1 << 30),
            os: Some("Linux 6.1.0".to_owned()),
            arch: Some("x86_64".to_owned()),
        },
        commit: None,
    }
}

/// The names of all objects in `value`, in their order, one line for each number, text or null.
fn names(prefix: &str, value: &Value, lines: &mut Vec<String>) {
    match value {
        Value::Object(members) => members
            .iter()
            .for_each(|(name, value)| names(&format!("{prefix}.{name}"), value, lines)),
        _ => lines.push(prefix.to_owned()),
    }
}

/// INV-REPORT-1. If this fails, the tools that read reports fail too.
#[test]
fn names_are_the_agreed_ones_in_their_order() {
    const COST: [&str; 13] = [
        "latency_us.p50",
        "latency_us.p90",
        "latency_us.p99",
        "latency_us.p999",
        "latency_us.max",
        "per_op.reads",
        "per_op.writes",
        "per_op.atomics",
        "per_op.rpcs",
        "per_op.calls",
        "per_op.round_trips",
        "per_op.bytes_read",
        "per_op.bytes_written",
    ];
    let mut golden: Vec<String> = Vec::new();
    let mut expect = |prefix: &str, names: &[&str]| {
        golden.extend(names.iter().map(|name| format!("{prefix}.{name}")));
    };
    expect("", &["engine", "fabric", "time", "loop"]);
    expect(".config", &["workload", "keys", "cache", "parts"]);
    expect(".load", &["seconds", "ops", "ops_per_s"]);
    expect(".run", &["seconds", "ops", "ops_per_s", "errors", "first_error"]);
    expect(".run", &COST);
    for kind in [".run.by_kind.get", ".run.by_kind.update"] {
        expect(kind, &["ops"]);
        expect(kind, &COST);
    }
    expect(".run.by_kind.maintenance", &["ops"]);
    expect(".run.by_kind.maintenance", &COST[5..]);
    expect(".run.counters", &["hit_rate", "per_op.reads_leaf"]);
    expect(".run.busiest_card", &["server", "part", "share"]);
    expect(".memory", &["pool_bytes", "index_bytes", "data_bytes", "compute_bytes"]);
    expect(".machine", &["cpu", "cores", "memory_bytes", "os", "arch"]);
    expect("", &["commit"]);

    // Through text, to see the order in the text.
    let text = serde_json::to_string(&sample()).unwrap();
    let mut found = Vec::new();
    names("", &serde_json::from_str(&text).unwrap(), &mut found);
    assert_eq!(found, golden);
}

#[test]
fn values_are_written_as_agreed() {
    let json = serde_json::to_value(sample()).unwrap();
    assert_eq!(json["time"], "virtual");
    assert_eq!(json["loop"], "closed");
    assert_eq!(json["load"]["ops_per_s"], 2_000_000.0);
    assert_eq!(json["run"]["ops"], 1000);
    assert_eq!(json["run"]["latency_us"]["p50"], 0.5);
    assert_eq!(json["run"]["latency_us"]["max"], 1.0);
    assert_eq!(json["run"]["per_op"]["reads"], 0.33);
    assert_eq!(json["machine"]["cpu"], Value::Null);
    assert_eq!(json["commit"], Value::Null);
    assert_eq!(serde_json::to_value(TimeKind::Real).unwrap(), "real");
    assert_eq!(serde_json::to_value(LoopKind::Open).unwrap(), "open");
}

#[test]
fn reports_survive_the_way_through_json() {
    let report = sample();
    for text in
        [serde_json::to_string(&report).unwrap(), serde_json::to_string_pretty(&report).unwrap()]
    {
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
    }
}

/// INV-REPORT-2.
#[test]
fn nothing_done_in_no_time_is_zero() {
    assert_eq!(PhaseReport::new(0.0, 0), PhaseReport::default());
    assert_eq!(PhaseReport::new(0.0, 5).ops_per_s, 0.0);
    assert_eq!(PerOp::of(Cost { reads: 3, ..Cost::default() }, 0), PerOp::default());
}

#[test]
fn costs_add_up() {
    let one = Cost { reads: 1, bytes_written: 8, ..Cost::default() };
    let mut total = one;
    total += one;
    let sum: PerOp = [one, one].map(|cost| PerOp::of(cost, 1)).into_iter().sum();
    assert_eq!(sum, PerOp::of(total, 1));
    assert_eq!(sum, PerOp { reads: 2.0, bytes_written: 16.0, ..PerOp::default() });
}

#[test]
fn rows_tell_the_same() {
    let rows = sample().rows();
    let value = |group: &str, name: &str| {
        rows.iter().find(|row| row.group == group && row.name == name).map(|row| row.value.as_str())
    };
    assert_eq!(value("bench", "time"), Some("virtual"));
    assert_eq!(value("bench", "commit"), None);
    assert_eq!(value("load", "ops_per_s"), Some("2.00 M ops/s"));
    assert_eq!(value("bench", "parts"), Some("cache of 1 MiB; logged"));
    assert_eq!(value("counters", "hit_rate"), Some("75.00 %"));
    assert_eq!(value("counters", "reads_leaf"), Some("0.2500 /op"));
    assert_eq!(
        value("run", "busiest_card"),
        Some("memory server 1's card, bytes out, 98 % of the time")
    );
    assert_eq!(value("run", "p50"), Some("500 ns"));
    assert_eq!(value("run", "reads"), Some("0.3300 /op"));
    assert_eq!(value("get", "bytes_read"), Some("667.8 B/op"));
    assert_eq!(value("memory", "pool_bytes"), Some("4.00 KiB"));
    assert_eq!(value("machine", "cpu"), None);
    assert_eq!(value("machine", "cores"), Some("2"));

    // Rows of a group stay together, so that a table can be cut between groups.
    let mut groups: Vec<&str> = rows.iter().map(|row| row.group).collect();
    groups.dedup();
    assert_eq!(
        groups,
        ["bench", "load", "run", "get", "update", "maintenance", "counters", "memory", "machine"]
    );
}

#[test]
fn commit_is_a_commit_or_nothing() {
    assert!(build_commit().is_none_or(|commit| commit.len() >= 7));
}
