//! Usage tests: command lines that make no sense, and help.

use crate::{Pool, farleaf};

#[test]
fn no_arguments_print_help() {
    let run = farleaf(&[], b"").failed(2, "Usage: farleaf");
    assert!(run.err.contains("load") && run.err.contains("completions"));
    let help = farleaf(&["--help"], b"").done().text();
    for line in [
        "0  done",
        "3  the pool is unavailable",
        "7  input data",
        "8  the pool has no such table",
        "9  there is no pool",
        "130  interrupted",
    ] {
        assert!(help.contains(line), "{line}");
    }
    for command in [
        "load",
        "get",
        "put",
        "del",
        "scan",
        "count",
        "tables",
        "drop",
        "stats",
        "verify",
        "bench",
        "repro",
        "check",
        "memory",
        "compute",
        "redis",
        "repartition",
        "up",
        "completions",
    ] {
        let help = farleaf(&[command, "--help"], b"").done().text();
        assert!(help.contains(&format!("Usage: farleaf {command}")), "{help}");
    }
    assert!(farleaf(&["--version"], b"").done().text().starts_with("farleaf "));
}

#[test]
fn mistyped_words_are_corrected() {
    farleaf(&["scna"], b"").failed(2, "'scan'");
    farleaf(&["scan", "shm:/x", "t", "--prefx", "a"], b"").failed(2, "'--prefix'");
    farleaf(&["tables", "shm:/x", "--color", "allways"], b"").failed(2, "did you mean \"always\"?");
    let pool = Pool::new();
    pool.run("get", &["tt", "k"]).failed(8, "did you mean \"t\"?");
}

#[test]
fn addresses_that_are_none_are_explained() {
    farleaf(&["tables", "/dev/shm/x"], b"").failed(2, "did you mean \"shm:/dev/shm/x\"?");
    farleaf(&["tables", "smh:/dev/shm/x"], b"").failed(2, "did you mean \"shm:/dev/shm/x\"?");
    farleaf(&["tables", "tcp://host"], b"").failed(2, "\"host\" is not a memory server");
    farleaf(&["tables", "verbs://host"], b"").failed(2, "\"host\" is not a memory server");
    farleaf(&["tables", "verbs://host:1?gdi=1"], b"").failed(2, "did you mean \"gid\"?");
    for words in [&["load", "mem:", "t"][..], &["get", "mem:", "t", "k"], &["stats", "mem:"]] {
        farleaf(words, b"").failed(2, "exists only within one process");
    }
    let missing = Pool::missing();
    missing.run("tables", &[]).failed(9, "there is no such folder");
}

#[test]
fn completions_are_scripts() {
    let script = farleaf(&["completions", "bash"], b"").done().text();
    assert!(script.contains("_farleaf()") && script.contains("--skip-errors"));
    farleaf(&["completions", "bsh"], b"").failed(2, "bash");
}
