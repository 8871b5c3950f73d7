//! Experiment tests: small experiments of papers.

use std::fs;

use serde_json::Value;

use crate::{Pool, farleaf};

const TINY: [&str; 4] = ["repro", "dex-table2", "--scale", "0.002"];

#[test]
fn figures_stand_beside_the_papers() {
    let listed = farleaf(&["repro", "--list"], b"").done().text();
    assert!(listed.contains("dex-table2\t"), "{listed}");
    let lines = farleaf(&TINY, b"").done().text();
    let first: Vec<&str> = lines.lines().next().unwrap_or_default().split('\t').collect();
    assert_eq!(first[..3], ["read-only", "READs /op", "0.330"]);

    let stem = Pool::missing().folder.clone();
    let (json, svg) = (stem.with_extension("json"), stem.with_extension("svg"));
    let files = ["--json", "--output", json.to_str().unwrap(), "--svg", svg.to_str().unwrap()];
    let words: Vec<&str> = TINY.into_iter().chain(files).collect();
    let told = farleaf(&words, b"").done().json();
    assert_eq!(told["experiment"], "dex-table2");
    assert_eq!(told["rows"].as_array().map(Vec::len), Some(10));
    let written: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    assert_eq!(written, told);
    assert!(fs::read_to_string(&svg).unwrap().starts_with("<svg"));
    for path in [json, svg] {
        fs::remove_file(path).unwrap();
    }
}

#[test]
fn what_makes_no_sense_is_explained() {
    farleaf(&["repro"], b"").failed(2, "EXPERIMENT");
    farleaf(&["repro", "dex-tabel2"], b"").failed(2, "did you mean \"dex-table2\"?");
    farleaf(&["repro", "dex-table2", "--scale", "2"], b"").failed(2, "makes no sense");
    farleaf(&["repro", "dex-table2", "--scale", "-1"], b"").failed(2, "makes no sense");
    farleaf(&["repro", "dex-table2", "--scale", "0.0001"], b"").failed(2, "give at least");
    farleaf(&["repro", "dex-table2", "--scael", "1"], b"").failed(2, "'--scale'");
}
