//! Check tests: small runs of `farleaf check`.

use std::fs;
use std::path::PathBuf;

use crate::{Pool, Run, farleaf};

fn check(options: &[&str]) -> Run {
    let words: Vec<&str> = ["check"].into_iter().chain(options.iter().copied()).collect();
    farleaf(&words, b"")
}

/// A file's name that no other test has.
fn file(extension: &str) -> PathBuf {
    Pool::missing().folder.with_extension(extension)
}

#[test]
fn seeds_are_run_and_counted() {
    let report = check(&["--seeds", "12", "--threads", "2", "--json"]).done().json();
    assert_eq!((&report["seeds"], &report["complete"]), (&12.into(), &true.into()));
    assert_eq!(report["failures"], serde_json::json!([]));
    assert!(report["ops"].as_u64().unwrap() > 1_000);
    let lines = check(&["--seed", "5", "--engine", "all"]).done().text();
    assert!(lines.contains("seeds\t1\n") && lines.contains("\nops_per_s\t"), "{lines}");
}

/// The same command line is the same run, and what it writes is the same, too.
#[test]
fn runs_repeat_and_are_written() {
    let (history, trace) = (file("jsonl"), file("html"));
    let options = "--engine btree --seed 7 --clients 3 --ops 20 --event kill:0@50000";
    let options: Vec<&str> = options.split(' ').collect();
    let run = || {
        let files = ["--history", history.to_str().unwrap(), "--trace", trace.to_str().unwrap()];
        let words: Vec<&str> = options.iter().copied().chain(files).collect();
        let noted = check(&words).done().err;
        assert!(
            noted.contains("wrote the run of farleaf check --engine btree --seed 7"),
            "{noted}"
        );
        (fs::read(&history).unwrap(), fs::read_to_string(&trace).unwrap())
    };
    let first = run();
    assert_eq!(first, run());
    assert!(first.1.contains("kill:0") && first.1.starts_with("<!doctype html>"));

    // The written history can be checked again, and a wrong answer is found.
    let told = farleaf(&["check", "history", history.to_str().unwrap()], b"").done().text();
    assert!(told.ends_with("verdict\tlinearizable\n"), "{told}");
    let json = farleaf(&["check", "history", "-", "--json"], &first.0).done().json();
    assert_eq!(json["linearizable"], true);
    let again = [&first.0[..], &first.0[..]].concat();
    farleaf(&["check", "history", "-"], &again).failed(7, "-: ");
    fs::remove_file(history).unwrap();
    fs::remove_file(trace).unwrap();
}

#[test]
fn histories_that_no_table_gives_are_found() {
    // A key that nobody has written is found.
    let history = br#"{"op":"history","version":1}
{"client":1,"op":"get","key":"aw==","from_ns":1,"to_ns":2,"result":null}
{"client":1,"op":"get","key":"aw==","from_ns":3,"to_ns":4,"result":"MQ=="}
"#;
    let found = farleaf(&["check", "history", "-"], history).failed(1, "");
    assert!(found.text().contains("no order explains") && found.text().contains("verdict\tnot"));
    let json = farleaf(&["check", "history", "-", "--json"], history).failed(1, "").json();
    assert_eq!((&json["operations"], &json["linearizable"]), (&2.into(), &false.into()));
    let missing = farleaf(&["check", "history", "/does/not/exist"], b"");
    missing.failed(7, "cannot read /does/not/exist");
    farleaf(&["check", "history", "-"], b"nonsense\n").failed(7, "line 1");
}

/// `--list` printed no JSON.
#[test]
fn crash_cases_are_listed_and_run() {
    let list = check(&["crash", "records/remove", "--list"]).done().text();
    let listed = check(&["crash", "records/remove", "--list", "--json"]).done().json();
    let names: Vec<&str> =
        listed["cases"].as_array().unwrap().iter().map(|it| it.as_str().unwrap()).collect();
    assert!(!names.is_empty() && names.iter().all(|name| name.contains("records/remove")));
    assert_eq!(list, names.iter().map(|name| format!("case\t{name}\n")).collect::<String>());
    let point = check(&["crash", "btree/u64-tiny/update#k=2,after", "--json"]).done().json();
    assert!(point["failure"].is_null(), "{point}");
}

#[test]
fn nonsense_is_refused() {
    for (options, words) in [
        (&["--engine", "btre"][..], "did you mean \"btree\"?"),
        (&["--format", "u64-tny"], "did you mean \"u64-tiny\"?"),
        (&["--workload", "mixd"], "did you mean \"mixed\"?"),
        (&["--faults", "tron=0.5"], "did you mean \"torn\"?"),
        (&["--faults", "torn=7"], "takes 0 to 1"),
        (&["--event", "kil:1@5"], "did you mean \"kill\"?"),
        (&["--window", "x"], "no window"),
        (&["--only", "x"], "names no operations"),
        (&["--clients", "0"], "--clients takes 1 to 64"),
        (&["--seeds", "0"], "takes 1 or more"),
        (&["--time", "5"], "--time"),
        (&["--threads", "0"], "--threads"),
        (&["--tries", "5"], "--shrink"),
        (&["--sed", "5"], "'--seed'"),
    ] {
        check(options).failed(2, words);
    }
    check(&["histroy"]).failed(2, "'history'");
    check(&["--seed", "1", "--trace", "/does/not/exist"]).failed(7, "cannot write /does/not/exist");
}
