//! Redis tests: a small `repro redis`, and its messages if Redis is missing.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::{Pool, command, finish};

/// Runs it with nothing but `folder` to find programs in.
fn with_path(folder: &str) -> crate::Run {
    let mut command = command(&["repro", "redis", "--scale", "0.001"]);
    command.env("PATH", folder);
    finish(command, b"")
}

#[test]
fn a_table_has_all_sides() {
    let run = crate::farleaf(&["repro", "redis", "--scale", "0.001", "--json"], b"");
    if run.err.contains("there is no redis-server here") {
        assert_eq!(run.code, 3);
        eprintln!(
            "a_table_has_all_sides: skipped: no redis-server here (`make setup` installs it)"
        );
        return;
    }
    let told = run.done().json();
    assert_eq!((&told["experiment"], &told["against"]), (&"redis".into(), &"redis".into()));
    let rows = told["tables"][1]["rows"].as_array().unwrap();
    for workload in ["ycsb-a", "ycsb-e"] {
        let of = rows.iter().filter(|row| row["workload"] == workload);
        let systems: Vec<&str> = of.map(|row| row["system"].as_str().unwrap()).collect();
        assert_eq!(systems, ["dex, warm cache", "dex, one READ", "btree", "redis"]);
    }
}

/// Every case of the gateway's comparison runs; at this scale no bar counts.
#[test]
fn the_gateways_comparison_has_all_cases() {
    let run = crate::farleaf(&["repro", "gateway", "--scale", "0.001", "--json"], b"");
    if run.err.contains("there is no redis-server here") {
        assert_eq!(run.code, 3);
        eprintln!("the_gateways_comparison_has_all_cases: skipped: no redis-server here");
        return;
    }
    let told = run.done().json();
    let rows = told["tables"][0]["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2 * 8);
    for row in rows {
        assert!(row["K commands/s"].as_f64().unwrap() > 0.0, "{row}");
    }
    assert_eq!(told["checks"].as_array().unwrap().len(), 6);
}

#[test]
fn what_is_missing_or_too_old_is_said() {
    let folder = Pool::missing().folder.clone();
    fs::create_dir_all(&folder).unwrap();
    let path = folder.to_str().unwrap();
    with_path(path).failed(3, "there is no redis-server here: make setup installs it");
    let fake = folder.join("redis-server");
    for (says, words) in [
        ("Redis server v=5.0.3 sha=0", "version 5.0.3, and the comparison takes 6.2 or later"),
        ("hello", "says nothing about its version, but \"hello\""),
    ] {
        fs::write(&fake, format!("#!/bin/sh\necho '{says}'\n")).unwrap();
        fs::set_permissions(&fake, fs::Permissions::from_mode(0o755)).unwrap();
        with_path(path).failed(3, words);
    }
    fs::remove_dir_all(&folder).unwrap();
}
