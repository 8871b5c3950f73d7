//! Engines tests: `farleaf engines`, and `--set` on command lines and in a file of settings.

use std::fs;

use crate::{Pool, Run, command, farleaf, finish};

fn told(words: &[&str]) -> Run {
    farleaf(words, b"")
}

#[test]
fn every_engine_is_listed_with_its_paper_and_traits() {
    let lines = told(&["engines"]).done().text();
    let line = |name: &str| lines.lines().find(|line| line.starts_with(name)).unwrap_or("");
    assert!(line("dex\t").contains("PVLDB") && line("dex\t").contains("cached"), "{lines}");
    assert!(line("btree\t").contains("baseline") && !line("btree\t").contains("cached"), "{lines}");
}

#[test]
fn every_setting_of_an_engine_is_listed_with_its_default() {
    let lines = told(&["engines", "dex"]).done().text();
    for expected in
        ["cache", "256MiB", "256 MB (section 7.1)", "node_bytes", "durability", "logged"]
    {
        assert!(lines.contains(expected), "{expected} is missing in\n{lines}");
    }
    told(&["engines", "dxe"]).failed(2, "did you mean \"dex\"?");
}

#[test]
fn seeds_are_run_with_settings_in_place_of_drawn_ones() {
    let run = ["check", "--engine", "dex", "--seed", "3", "--ops", "8", "--set"];
    let with = |setting| told(&[&run[..], &[setting]].concat());
    with("cache=64KiB,combine=0").done();
    with("cahce=64KiB").failed(2, "did you mean \"cache\"?");
    with("durability=volatile").failed(2, "must stay \"logged\"");
    with("combine=-1").failed(2, "no value of combine");
}

#[test]
fn experiments_take_settings_but_those_that_they_choose() {
    let run = ["repro", "dex-table2", "--scale", "0.002", "--set"];
    let with = |setting| told(&[&run[..], &[setting]].concat());
    let usual = told(&run[..4]).done().text();
    assert_ne!(with("admission=eager").done().text(), usual, "the setting changed nothing");
    with("cache=1GiB").failed(2, "dex-table2 chooses cache itself");
    with("combin=4").failed(2, "did you mean \"combine\"?");
}

#[test]
fn a_file_of_settings_may_set_some() {
    let pool = Pool::missing();
    fs::create_dir_all(&pool.folder).unwrap();
    let file = pool.folder.join("farleaf.toml");
    let bench = |text: &str| {
        fs::write(&file, text).unwrap();
        let words = ["bench", "--engine", "dex", "--keys", "2K", "--ops", "2K", "--json"];
        let mut command = command(&words);
        command.env("FARLEAF_CONFIG", &file);
        finish(command, b"")
    };
    let report = bench("[bench]\nset = ['combine=3', 'cache=1MiB']\n").done().json();
    assert_eq!(report["config"]["settings"]["combine"], "3", "{report}");
    assert_eq!(report["config"]["settings"]["cache"], "1MiB", "{report}");
    bench("[bench]\nset = ['combnie=3']\n").failed(2, "combine");
}
