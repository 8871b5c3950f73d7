//! Bench tests: small runs of `farleaf bench`.

use std::fs;

use serde_json::Value;

use crate::{Pool, farleaf};

const SMALL: [&str; 8] =
    ["--keys", "1K", "--ops", "2K", "--warmup", "100", "--pool-bytes", "64MiB"];

fn bench(options: &[&str]) -> crate::Run {
    let words: Vec<&str> =
        ["bench"].into_iter().chain(SMALL).chain(options.iter().copied()).collect();
    farleaf(&words, b"")
}

#[test]
fn reports_are_json_lines_or_a_file() {
    let report = bench(&["--json", "--workload", "b", "--verify"]).done().json();
    assert_eq!(report["engine"], "btree");
    assert_eq!(report["config"]["workload"], "ycsb-b");
    assert_eq!((&report["run"]["ops"], &report["run"]["errors"]), (&2000.into(), &0.into()));

    let lines = bench(&["--clients", "2"]).done().text();
    assert!(lines.contains("bench\tengine\tbtree\n"), "{lines}");
    assert!(lines.contains("\nrun\tops_per_s\t"), "{lines}");

    let path = Pool::missing().folder.with_extension("json");
    bench(&["--output", path.to_str().unwrap()]).done();
    let written: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    fs::remove_file(&path).unwrap();
    assert_eq!(written["run"]["ops"], 2000);
    bench(&["--output", "/does/not/exist"]).failed(7, "cannot write /does/not/exist");
}

/// In virtual time the same seed gives the same report.
#[test]
fn simulated_benches_repeat() {
    let run = || bench(&["--fabric", "sim", "--torn", "--seed", "7", "--json"]).done().json();
    let (mut first, mut second) = (run(), run());
    assert_eq!(first["time"], "virtual");
    for report in [&mut first, &mut second] {
        report["machine"] = Value::Null;
    }
    assert_eq!(first, second);
}

/// Two compute servers of the engine with parts, on every fabric, and what was on.
#[test]
fn parts_are_told() {
    for fabric in ["mapped", "sim", "tcp"] {
        let options = [
            "--engine",
            "dex",
            "--fabric",
            fabric,
            "--compute-servers",
            "2",
            "--workload",
            "a",
            "--cache",
            "40%",
            "--set",
            "offload=ratio:0.5",
            "--clients",
            "4",
            "--verify",
            "--json",
        ];
        let report = bench(&options).done().json();
        assert_eq!(report["run"]["errors"], 0);
        assert_eq!(report["config"]["partitions"], 2);
        let parts = report["config"]["parts"].to_string();
        assert!(parts.contains("2 partitions (sampled)") && parts.contains("offload=ratio:0.5"));
        assert!(report["run"]["counters"]["hit_rate"].as_f64().unwrap() > 0.0);
        assert!(
            report["run"]["counters"]["per_op"]["offload_ok"].as_f64().unwrap() > 0.0,
            "{report}"
        );
    }
    let lines = bench(&["--engine", "dex"]).done().text();
    assert!(lines.contains("\tparts\tcache=256MiB\n"), "{lines}");
    assert!(lines.contains("\ncounters\thit_rate\t"), "{lines}");
}

#[test]
fn nonsense_is_refused() {
    for (options, words) in [
        (&["--clients", "0"][..], "0 clients"),
        (&["--clients", "2", "--threads", "4"], "4 threads for 2 clients"),
        (&["--theta", "0"], "theta must be"),
        (&["--workload", "red-only"], "did you mean \"read-only\"?"),
        (&["--engine", "btre"], "did you mean \"btree\"?"),
        (&["--fabric", "simm"], "did you mean \"sim\"?"),
        (&["--distribution", "zipfain"], "did you mean \"zipfian\"?"),
        (&["--clients", "5", "--compute-servers", "2"], "cannot be shared evenly"),
        (&["--engine", "dex", "--cache", "0%"], "0 bytes of cache"),
        (&["--engine", "dex", "--set", "offload=ratio:2"], "ratio: and a share"),
        (&["--set", "offload=always"], "engine btree: no setting is named \"offload\""),
        (&["--torn"], "torn words are the simulator's"),
        (&["--clints", "2"], "'--clients'"),
    ] {
        bench(options).failed(2, words);
    }
    let tiny = bench(&["--engine", "dex", "--cache", "1"]);
    tiny.failed(2, "cannot open the table: a cache of 1 bytes holds 0 nodes");
    bench(&["--key-type", "lines:/does/not/exist"]).failed(7, "cannot read keys");
    farleaf(&["bench", "--keys", "1M", "--pool-bytes", "1MiB"], b"").failed(4, "too small");
}

#[test]
fn dry_runs_tell_and_do_nothing() {
    let config = bench(&["--dry-run", "-p", "readproportion=1", "-p", "colour=blue"]).done();
    assert!(config.err.contains("the property colour changes nothing here"), "{}", config.err);
    assert_eq!(config.json()["keys"], 1000);
}
