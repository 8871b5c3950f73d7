//! Process tests: `farleaf check processes` kills its children, and leaves none behind.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::{Pool, Run, command, farleaf};

const NAME: &[&str] = &["check", "processes"];

/// Multiplies the time of the run.
fn soak() -> u64 {
    std::env::var("FARLEAF_SOAK").ok().and_then(|times| times.parse().ok()).unwrap_or(1)
}

fn words<'a>(options: &[&'a str]) -> Vec<&'a str> {
    NAME.iter().chain(options).copied().collect()
}

/// Processes whose command line names the folder.
pub(crate) fn at_work_in(folder: &Path) -> usize {
    let name = folder.to_str().unwrap().as_bytes();
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let lines = processes.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    lines.filter(|line| line.windows(name.len()).any(|part| part == name)).count()
}

pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < end, "not within 20 s: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A driver at work in a folder, with children.
fn start(folder: &Path, fabric: &str) -> Child {
    let folder_word = folder.to_str().unwrap();
    let options = ["--pool", folder_word, "--time", "60s", "--round-time", "30s"];
    let mut driver = command(&words(&[&options[..], &["--fabric", fabric]].concat()));
    let driver = driver.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    // The driver, three clients and more.
    wait_until("children are at work", || at_work_in(folder) >= 5);
    driver
}

pub(crate) fn signal(name: &str, process: &Child) {
    let id = process.id().to_string();
    assert!(Command::new("kill").args(["-s", name, &id]).status().unwrap().success());
}

fn scratch() -> (Pool, PathBuf) {
    let pool = Pool::missing();
    let folder = pool.folder.clone();
    (pool, folder)
}

/// Redis's clients beside the others, through gateways that are killed and stopped as all are.
#[test]
fn gateways_that_are_killed_lose_and_repeat_nothing() {
    for engine in ["btree", "dex"] {
        let (_pool, folder) = scratch();
        let time = format!("{}s", 5 * soak());
        let options = ["--pool", folder.to_str().unwrap(), "--time", &time, "--json"];
        let more = ["--redis", "--engine", engine, "--kills-per-second", "10"];
        let report = farleaf(&words(&[&options[..], &more].concat()), b"").done().json();
        assert!(report["failure"].is_null(), "{report}");
        let count = |name: &str| report["counts"][name].as_u64().unwrap();
        assert!(count("kills_gateways") > 0 && count("kills_resp") > 0, "{report}");
        assert!(count("operations") > 500, "{report}");
    }
}

#[test]
fn processes_that_are_killed_and_stopped_leave_a_table_that_is_right() {
    let (_pool, folder) = scratch();
    let time = format!("{}s", 8 * soak());
    let options = ["--pool", folder.to_str().unwrap(), "--time", &time, "--json"];
    let report = farleaf(&words(&options), b"").done().json();
    assert!(report["failure"].is_null(), "{report}");
    let count = |name: &str| report["counts"][name].as_u64().unwrap();
    assert!(count("operations") > 1_000, "{report}");
    for name in ["kills_clients", "kills_tables", "kills_loads", "kills_openers", "stops"] {
        assert!(count(name) > 0, "{name}: {report}");
    }
    let commands = &report["commands"];
    for name in ["run", "killed", "recoveries"] {
        assert!(commands[name].as_u64().unwrap() > 0, "{name}: {report}");
    }
    assert!(commands["longest_ms"].as_f64().unwrap() > 0.0, "{report}");
    assert!(commands["within_ms"].is_null(), "{report}");
    assert!(count("keys_checked") > 40, "{report}");
    assert_eq!(count("keys_undecided"), 0, "{report}");
    assert!(!folder.exists(), "the folder is removed");
    assert_eq!(at_work_in(&folder), 0);
}

/// Plays rounds over memory servers and links that fail, with a short lease.
fn over_a_network(engine: &str, seconds: u64) {
    let (_pool, folder) = scratch();
    let time = format!("{}s", seconds * soak());
    let words = words(&["--fabric", "tcp", "--engine", engine, "--time", &time, "--json"]);
    let times = ["--round-time", "6s", "--lease", "400ms", "--outage-time-max", "600ms"];
    let others = ["--stop-time-max", "800ms", "--kills-per-second", "1.5"];
    let folder_words = ["--pool", folder.to_str().unwrap()];
    let report = farleaf(&[&words[..], &times, &others, &folder_words].concat(), b"");
    let report = report.done().json();
    assert!(report["failure"].is_null(), "{report}");
    let count = |name: &str| report["counts"][name].as_u64().unwrap();
    // That there was work, not how fast: 8 tests at a time on two cores leave a round of 11 s with 233 operations
    // where a quiet machine does 30,000.
    assert!(count("operations") > 100 && count("keys_checked") > 20, "{report}");
    assert!(count("kills_clients") > 0, "{report}");
    assert!(!folder.exists(), "the folder is removed");
    assert_eq!(at_work_in(&folder), 0);
    let network = &report["network"];
    assert_eq!(network["lease_ms"], 400.0);
    assert_eq!(network["memory_servers"], 2);
    // The first round has one of each, apart from others.
    for name in ["kills_compute_served", "kills_compute_stalls", "starts_listen", "starts_served"] {
        assert!(network[name]["count"].as_u64().unwrap() > 0, "{name}: {report}");
    }
    assert!(network["kills_memory"].as_u64().unwrap() > 0, "{report}");
}

#[test]
fn memory_servers_and_links_that_fail_leave_a_table_that_is_right() {
    // On a machine that is not too busy, a round of each kind.
    over_a_network("dex", 7);
}

#[test]
fn so_do_they_under_the_plain_tree() {
    over_a_network("btree", 1);
}

/// Compute servers that cannot ask each other, while each reaches the memory servers.
#[test]
fn links_between_compute_servers_that_fail_leave_a_table_that_is_right() {
    let (_pool, folder) = scratch();
    let none = ["--memory-faults-per-second", "0", "--link-faults-per-second", "0"];
    let time = format!("{}s", 8 * soak());
    let times = ["--time", &time, "--round-time", "6s", "--lease", "400ms"];
    let posts = ["--call-faults-per-second", "3", "--outage-time-max", "600ms"];
    // Few keys: each must be asked for after a link is back, and 8 tests at a time on two cores may leave
    // this one 788 operations in all.
    let asked = ["--fabric", "tcp", "--engine", "dex", "--keys", "8", "--json"];
    let folder_words = ["--pool", folder.to_str().unwrap()];
    let report = farleaf(&words(&[&asked[..], &times, &none, &posts, &folder_words].concat()), b"");
    let report = report.done().json();
    assert!(report["failure"].is_null(), "{report}");
    let network = &report["network"];
    let count = |name: &str| network[name].as_u64().unwrap();
    let kinds = ["call_cuts", "call_half_cuts", "call_slows", "call_ends"];
    let done: u64 = kinds.into_iter().map(count).sum();
    assert!(done > 0, "{report}");
    let faults = network["faults"].as_array().unwrap().iter();
    let told = faults.filter(|fault| fault["what"].as_str().unwrap().starts_with("call_"));
    assert_eq!(told.count() as u64, done, "{report}");
    assert_eq!(count("cuts") + count("half_cuts") + count("slows") + count("ends"), 0, "{report}");
    assert_eq!(network["returns_served"]["never"], 0, "{report}");
}

/// The bars of a death: nothing goes wrong but that compute servers are killed.
fn only_kills(engine: &str, leases: &str) -> Run {
    let (_pool, folder) = scratch();
    let none = ["--memory-faults-per-second", "0", "--link-faults-per-second", "0"];
    let times =
        ["--time", "1s", "--round-time", "7s", "--lease", "500ms", "--stops-per-second", "0"];
    let asked = ["--fabric", "tcp", "--engine", engine, "--recovery-within", leases, "--json"];
    let none = [&none[..], &["--commands", "0"]].concat();
    let folder_words = ["--pool", folder.to_str().unwrap()];
    farleaf(&words(&[&asked[..], &times, &none, &folder_words].concat()), b"")
}

#[test]
fn what_a_killed_compute_server_had_is_served_again_in_time() {
    for engine in ["dex", "btree"] {
        // Promised are 2; this machine may be busy.
        let report = only_kills(engine, "10").done().json();
        assert_eq!(report["network"]["recovery_leases"], 10.0);
        let served = &report["network"]["kills_compute_served"];
        assert!(served["count"].as_u64().unwrap() > 0, "{report}");
    }
}

/// Nobody is known to be dead before its lease is over.
#[test]
fn a_recovery_that_takes_too_long_fails_the_run() {
    only_kills("btree", "0.001").failed(1, "allowed are 0.001 leases of 500 ms");
}

/// Nothing goes wrong but that processes and commands are killed, and that clients are stopped.
fn commands_within(options: &[&str], time: &str) -> Run {
    let (_pool, folder) = scratch();
    let asked = ["--commands", "3", "--commands-within", time, "--json"];
    let folder_words = ["--pool", folder.to_str().unwrap()];
    farleaf(&words(&[options, &asked[..], &folder_words].concat()), b"")
}

const NO_FAULTS_OF_LINKS: [&str; 10] = [
    "--fabric",
    "tcp",
    "--engine",
    "dex",
    "--memory-faults-per-second",
    "0",
    "--link-faults-per-second",
    "0",
    "--call-faults-per-second",
    "0",
];

#[test]
fn commands_end_in_time_while_clients_and_commands_die_and_stop() {
    // A round whose faults are apart, in which no command is killed, and one of all faults together. Promised are the
    // lease and 1 s; this machine may be busy.
    let times = ["--time", "7s", "--round-time", "3s", "--lease", "500ms"];
    let faults = ["--kills-per-second", "2", "--stop-time-max", "1s"];
    let over_tcp = [&NO_FAULTS_OF_LINKS[..], &times, &faults].concat();
    let mapped = ["--time", "4s", "--stop-time-max", "300ms"].to_vec();
    for options in [over_tcp, mapped] {
        let report = commands_within(&options, "8s").done().json();
        let commands = &report["commands"];
        assert_eq!(commands["within_ms"], 8000.0, "{report}");
        assert!(commands["run"].as_u64().unwrap() > 0, "{report}");
        // On a machine that is too busy, the first round takes all the time.
        if report["network"].is_null() || report["rounds"].as_u64().unwrap() > 1 {
            assert!(commands["killed"].as_u64().unwrap() > 0, "{report}");
        }
        for name in ["recoveries_in_vain", "recoveries_at_once"] {
            assert_eq!(commands[name], 0, "{name}: {report}");
        }
    }
}

/// No command opens the pool in that time.
#[test]
fn a_command_that_takes_too_long_fails_the_run() {
    let times = ["--time", "1s", "--kills-per-second", "0", "--stops-per-second", "0"];
    commands_within(&times, "1us").failed(1, "of them after the last death or stop that it met");
}

#[test]
fn an_interrupt_ends_all_processes_and_removes_the_folder() {
    for fabric in ["mapped", "tcp"] {
        let (_pool, folder) = scratch();
        let mut driver = start(&folder, fabric);
        signal("INT", &driver);
        assert_eq!(driver.wait().unwrap().code(), Some(130));
        assert_eq!(at_work_in(&folder), 0);
        assert!(!folder.exists());
    }
}

#[test]
fn no_process_outlives_a_driver_that_is_killed() {
    for fabric in ["mapped", "tcp"] {
        let (_pool, folder) = scratch();
        let mut driver = start(&folder, fabric);
        driver.kill().unwrap();
        driver.wait().unwrap();
        wait_until("the children die too", || at_work_in(&folder) == 0);
    }
}

/// The files of a round lacked what the table held before it, so that a kept round was judged wrong.
#[test]
fn kept_rounds_are_whole_histories() {
    let (_pool, folder) = scratch();
    let times = ["--time", "6s", "--round-time", "1s", "--stop-time-max", "200ms"];
    let options = ["--pool", folder.to_str().unwrap(), "--keep", "--json"];
    let report = farleaf(&words(&[&options[..], &times].concat()), b"").done().json();
    let rounds = report["rounds"].as_u64().unwrap();
    assert!(rounds >= 2 && report["failure"].is_null(), "{report}");
    let mut initial_count = 0;
    for round in 1..=rounds {
        let files = fs::read_dir(folder.join(format!("round-{round:04}"))).unwrap();
        let files = files.map(|file| file.unwrap().path().display().to_string());
        let files: Vec<String> = files.filter(|name| name.ends_with(".jsonl")).collect();
        let initial = files.iter().find(|name| name.ends_with("initial.jsonl")).unwrap();
        initial_count += fs::read_to_string(initial).unwrap().lines().count() - 1;
        let all =
            ["check", "history", "--json"].into_iter().chain(files.iter().map(String::as_str));
        let judged = farleaf(&all.collect::<Vec<_>>(), b"").done().json();
        assert_eq!(judged["linearizable"], true, "round {round}: {judged}");
        assert!(judged["operations"].as_u64().unwrap() > 10);
    }
    // Two of three rounds are of the same table.
    assert!(rounds < 3 || initial_count > 0, "some round begins with keys");
}

/// The driver stalls: a client filled the disk with its history.
#[test]
fn a_client_stops_by_itself() {
    let (pool, folder) = scratch();
    let formats = ["--key-format", "fixed:8", "--value-format", "fixed:8", "--create"];
    let small = ["--pool-bytes", "64MiB", "--quiet"];
    pool.load("words", &[&formats[..], &small].concat(), b"").done();
    let log = folder.join("client.jsonl");
    let spec = serde_json::json!({ "parent": std::process::id(), "role": { "client": {
        "pool": pool.uri(), "table": "words", "shape": "words", "keys": 10, "logs": [log],
        "client": 0, "seed": 1, "names": null, "advertise": null,
        "work_time_max": { "secs": 0, "nanos": 300_000_000 },
    } } });
    let mut client = command(&["check", "process", &spec.to_string()]).spawn().unwrap();
    let length = || fs::metadata(&log).map_or(0, |file| file.len());
    wait_until("it works", || length() > 1000);
    std::thread::sleep(Duration::from_secs(2));
    let long = length();
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(length(), long, "it works no more");
    assert!(client.try_wait().unwrap().is_none(), "and waits to be told to end");
    drop(client.stdin.take());
    assert!(client.wait().unwrap().success());
}

#[test]
fn what_makes_no_sense_is_refused() {
    let refused = |options: &[&str], why| farleaf(&words(options), b"").failed(2, why);
    refused(&["--processes", "0"], "at least one of each");
    refused(&["--processes", "99", "--threads", "99"], "at most 64 threads");
    refused(&["--keys", "0"], "1 to 9999");
    refused(&["--keys", "1T"], "too many");
    refused(&["--kills-per-second", "-1"], "");
    refused(&["--stops-per-second", "NaN"], "0 to 1000");
    refused(&["--round-time", "0s"], "rounds of no time");
    refused(&["--time", "5"], "unit");
    refused(&["--engine", "btre"], "did you mean \"btree\"?");
    refused(&["--lease", "1s"], "--lease needs --fabric tcp");
    refused(&["--memory-servers", "2"], "--memory-servers needs --fabric tcp");
    refused(&["--link-faults-per-second", "2"], "needs --fabric tcp");
    refused(&["--call-faults-per-second", "2"], "needs --fabric tcp");
    refused(&["--fabric", "tcp", "--call-faults-per-second", "2"], "needs an engine with owners");
    let posts = ["--fabric", "tcp", "--engine", "dex", "--call-faults-per-second", "NaN"];
    refused(&posts, "0 to 1000");
    refused(&["--commands", "17"], "17 commands: it takes 0 to 16");
    refused(&["--commands", "-1"], "");
    refused(&["--commands-within", "0s"], "");
    refused(&["--commands-within", "5"], "unit");
    refused(&["--commands", "0", "--commands-within", "2s"], "nothing would be judged");
    refused(&["--keys", "9998"], "at most 9999 together");
    refused(&["--fabric", "sim"], "mapped or tcp");
    refused(&["--fabric", "tpc"], "did you mean \"tcp\"?");
    refused(&["--fabric", "tcp", "--memory-servers", "0"], "1 to 16");
    refused(&["--recovery-within", "2"], "--recovery-within needs --fabric tcp");
    refused(&["--fabric", "tcp", "--recovery-within", "0"], "more than 0");
    refused(&["--fabric", "tcp", "--lease", "1ms"], "it takes 50ms to 60s");
    refused(&["--fabric", "tcp", "--memory-faults-per-second", "NaN"], "0 to 1000");
    let (_pool, folder) = scratch();
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("thesis"), "mine").unwrap();
    refused(&["--pool", folder.to_str().unwrap()], "is not empty");
    assert!(folder.join("thesis").exists());
    // Only the driver can start a child.
    farleaf(&["check", "process", "{}"], b"").failed(1, "not the driver's");
}
