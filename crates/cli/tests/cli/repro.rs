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
    let rows = told["rows"].as_array().unwrap();
    let own =
        |row: &&Value| ["read-only", "write-intensive"].contains(&row["case"].as_str().unwrap());
    assert_eq!(rows.iter().filter(own).count(), 10);
    assert!(rows.iter().any(|row| row["case"] == "read-only, smart" && row["ours"].is_number()));
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
    farleaf(&["repro", "dex-table2", "--scale", "2"], b"").failed(2, "is invalid");
    farleaf(&["repro", "dex-table2", "--scale", "-1"], b"").failed(2, "is invalid");
    farleaf(&["repro", "dex-table2", "--scale", "0.0001"], b"").failed(2, "give at least");
    farleaf(&["repro", "dex-table2", "--scael", "1"], b"").failed(2, "'--scale'");
    farleaf(&["repro", "dart-fig16"], b"").failed(2, "did you mean \"dart-fig6\"?");
    farleaf(&["repro", "al"], b"").failed(2, "did you mean \"all\"?");
    farleaf(&["repro", "all"], b"").failed(2, "--out FILE");
    farleaf(&["repro", "dex-fig8", "--overview", "o.md"], b"").failed(2, "--overview is for all");
    farleaf(&["repro", "all", "--scale", "smal"], b"").failed(2, "did you mean \"small\"?");
    let out = ["--out", "/no/such/folder/page.html"];
    farleaf(&[&["repro", "all"][..], &out].concat(), b"").failed(7, "cannot write");
    let set = ["repro", "all", "--out", "page.html", "--set", "combine=4"];
    farleaf(&set, b"").failed(2, "--set is for one experiment");
}

#[test]
fn a_page_has_drawings_and_tables_and_tells_what_failed() {
    let stem = Pool::missing().folder.clone();
    let page = stem.with_extension("html");
    let out = ["--out", page.to_str().unwrap()];
    let one = ["repro", "dart-fig14", "--scale", "0.00002"];
    let lines = farleaf(&[&one[..], &out].concat(), b"").done().text();
    assert!(lines.contains("dart over others, all skews\t"), "{lines}");
    let text = fs::read_to_string(&page).unwrap();
    assert!(text.contains("<svg") && text.contains("farleaf repro dart-fig14"), "{text}");
    assert!(!text.contains("<script") && text.ends_with("</html>\n"));

    // Far too small for any of them, so that all fail at once.
    let all = ["repro", "all", "--scale", "0.0000001"];
    let table = stem.with_extension("md");
    let overview = ["--overview", table.to_str().unwrap()];
    farleaf(&[&all[..], &out, &overview].concat(), b"").failed(2, "dart-fig6 failed");
    let text = fs::read_to_string(&page).unwrap();
    assert!(text.contains("give at least") && text.contains("0 of "), "{text}");
    let text = fs::read_to_string(&table).unwrap();
    assert!(
        text.contains("| DART | Figure 6 |") && text.contains("`dart-fig6` | failed |"),
        "{text}"
    );
    fs::remove_file(&page).unwrap();
    fs::remove_file(&table).unwrap();
}
