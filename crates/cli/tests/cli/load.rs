//! Load tests: formats, options and malformed input.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

use crate::{Pool, Run, command};

#[test]
fn every_format_is_loaded() {
    let pool = Pool::new();
    pool.load("lines", &["--value-from", "line-number"], b"b\r\n\na\n").done();
    assert_eq!(pool.scan("lines"), "a\t3\nb\t1\n");
    pool.load("tsv", &["-f", "tsv", "--key-column", "2", "--value-column", "1"], b"1\tann\n")
        .done();
    assert_eq!(pool.scan("tsv"), "ann\t1\n");
    let csv = b"id,name,note\n1,\"Smith, J\",\"said \"\"hi\"\"\"\r\n2,bob,\n";
    let options = ["-f", "csv", "--header", "--key-column", "name", "--value-column", "note"];
    pool.load("csv", &options, csv).done();
    assert_eq!(pool.scan("csv"), "Smith, J\tsaid \"hi\"\nbob\t\n");
    let binary = b"\x03\0\0\0key\x05\0\0\0value\x01\0\0\0\xff\0\0\0\0";
    pool.load("binary", &["-f", "binary"], binary).done();
    assert_eq!(pool.run("scan", &["binary", "--hex"]).done().text(), "6b6579\t76616c7565\nff\t\n");
    let number = ["--value-from", "line-number", "--value-format", "fixed:8"];
    pool.load("numbers", &number, b"a\nb\n").done();
    assert_eq!(pool.run("get", &["numbers", "b", "--raw"]).done().out, 2_u64.to_le_bytes());
    assert_eq!(pool.run("verify", &[]).done().code, 0);
}

#[test]
fn files_are_read_and_told_in_errors() {
    let pool = Pool::new();
    let path = pool.folder.with_extension("txt");
    fs::write(&path, "one\ntwo\n").unwrap();
    let name = path.to_str().unwrap();
    pool.run("load", &["t", name]).done();
    pool.run("load", &["t", name, "-f", "csv"]).failed(7, &format!("{name}: line 1 (record 1)"));
    fs::remove_file(&path).unwrap();
    assert_eq!(pool.scan("t"), "one\t\ntwo\t\n");
    pool.run("load", &["t", name]).failed(7, &format!("cannot read {name}: No such file"));
    pool.run("load", &["t", "/"]).failed(7, "directory");
}

/// Loads with 200 threads, all of which are at work before the end of the input comes.
fn load_with_many_threads(uri: &str, options: &[&str]) -> Run {
    let words = ["load", uri, "t", "-", "--create", "--no-reserve", "--threads", "200", "--json"];
    let mut child = command(&[&words[..], options].concat()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    for part in 0..2 {
        let lines: String = (0..4000).map(|number| format!("{}\n", part * 4000 + number)).collect();
        // It may have ended already.
        let _ = stdin.write_all(lines.as_bytes());
        // Longer than one waits for a session.
        thread::sleep(Duration::from_millis(1500 * (1 - part)));
    }
    drop(stdin);
    let ended = child.wait_with_output().unwrap();
    let err = String::from_utf8(ended.stderr).unwrap();
    Run { code: ended.status.code().unwrap_or(-1), out: ended.stdout, err }
}

/// 200 threads were more than operations had sessions, half of 256: "no free client entry", exit 4.
#[test]
fn many_threads_have_sessions_of_a_pool_of_the_usual_size() {
    let pool = Pool::missing();
    let loaded = load_with_many_threads(&pool.uri(), &["--batch", "1"]).done().json();
    assert_eq!((&loaded["records"], &loaded["keys_new"]), (&8000.into(), &8000.into()));
    // In a small one they have not; what to do is said.
    let small = Pool::missing();
    let failed = load_with_many_threads(&small.uri(), &["--pool-bytes", "8MiB", "--batch", "1"]);
    failed.failed(4, "use fewer threads or processes, or make a larger pool");
}

#[test]
fn the_summary_counts_new_and_changed_keys() {
    let pool = Pool::new();
    let input: String = (0..5000).map(|number| format!("{number}\n")).collect();
    let first = pool.load("t", &["--json", "--threads", "4"], input.as_bytes()).done().json();
    assert_eq!(first["records"], 5000);
    assert_eq!((&first["keys_new"], &first["keys_changed"]), (&5000.into(), &0.into()));
    assert_eq!(first["bytes"], input.len() - 5000);
    assert_eq!(first["complete"], true);
    assert!(first["error"].is_null() && first["seconds"].as_f64().unwrap() > 0.0);
    let second = pool.load("t", &["--json", "--batch", "7"], b"1\n2\nnew\n\n").done().json();
    assert_eq!((&second["keys_new"], &second["keys_changed"]), (&1.into(), &2.into()));
    assert_eq!(second["empty_lines"], 1);
    let lines = pool.load("t", &[], b"1\n").done().text();
    assert!(lines.starts_with("table\tt\nrecords\t1\nkeys_new\t0\nkeys_changed\t1\n"), "{lines}");
    assert_eq!(pool.load("t", &["-q"], b"1\n").done().text(), "");
}

/// The last record with a key stands, whatever the number of threads.
#[test]
fn the_last_of_equal_keys_wins() {
    let pool = Pool::new();
    let input: String = (0..20_000).map(|number| format!("{}\t{number}\n", number % 10)).collect();
    pool.load("t", &["-f", "tsv", "--threads", "4", "--batch", "3"], input.as_bytes()).done();
    let expected: String = (0..10).map(|key| format!("{key}\t{}\n", 19_990 + key)).collect();
    assert_eq!(pool.scan("t"), expected);
}

#[test]
fn sorted_input_fills_a_table_in_one_go() {
    let pool = Pool::new();
    let input: String = (0..20_000).map(|number| format!("{number:05}\n")).collect();
    let bulk = pool.load("t", &["--sorted", "--json"], input.as_bytes()).done().json();
    assert_eq!((&bulk["bulk"], &bulk["keys_new"]), (&true.into(), &20_000.into()));
    assert_eq!(pool.run("scan", &["t", "--count"]).done().text(), "20000\n");

    let again = pool.load("t", &["--sorted", "--json"], b"00000\nzzz\n").done();
    assert!(again.err.contains("table \"t\" holds keys already"), "{}", again.err);
    assert_eq!(again.json()["bulk"], false);

    let unsorted = pool.load("u", &["--sorted"], b"a\nc\nb\nd\n");
    unsorted.failed(7, "line 3 (record 3): the key is not larger than the one before it");
    assert_eq!(pool.scan("u"), "");
    pool.load("v", &["--sorted", "--threads", "2"], b"").failed(2, "from one thread");
    assert_eq!(pool.run("verify", &[]).done().code, 0);
}

#[test]
fn malformed_input_ends_the_load_and_says_where() {
    let pool = Pool::new();
    let csv = b"k1,v1\nk2,v2\nk3\nk4,v4\n";
    let failed = pool.load("csv", &["-f", "csv"], csv);
    failed.failed(7, "standard input: line 3 (record 3): 1 column, but the first line has 2 (2 records loaded before it)");
    assert_eq!(pool.scan("csv"), "k1\tv1\nk2\tv2\n");
    pool.load("csv", &["-f", "csv"], b"a,1\nb,\"2\n").failed(7, "a quoted field does not end");
    let failed = pool.load("csv", &["-f", "csv", "--header", "--key-column", "nam"], b"name,id\n");
    failed.failed(7, "no column is named \"nam\"; did you mean \"name\"?");

    let cut = b"\x03\0\0\0key\x05\0\0\0value\x03\0\0\0ke";
    let failed = pool.load("binary", &["-f", "binary", "--json"], cut);
    let failed = failed.failed(7, "record 2: the input ends inside the key: 2 of 3 bytes");
    let summary = failed.json();
    assert_eq!((&summary["complete"], &summary["records"]), (&false.into(), &1.into()));
    assert!(summary["error"].as_str().unwrap().contains("record 2"));
    assert_eq!(pool.scan("binary"), "key\tvalue\n");

    let long = [vec![b'x'; 1025], b"\nok\n".to_vec()].concat();
    pool.load("t", &[], &long).failed(7, "line 1 (record 1): a key of 1025 bytes");
    pool.load("fixed", &["--key-format", "fixed:2"], b"ab\nabc\n")
        .failed(7, "line 2 (record 2): a key of 3 bytes; the table's are of 2 (1 record loaded");
}

#[test]
fn errors_can_be_skipped_and_are_counted() {
    let pool = Pool::new();
    let mut input = b"k1\tv1\nbad\n".to_vec();
    input.extend(b"x\ty\tz\n".repeat(20));
    input.extend(b"k2\tv2\n");
    let options = ["-f", "tsv", "--skip-errors", "--json"];
    let run = pool.load("t", &options, &input).done();
    assert_eq!((&run.json()["skipped"], &run.json()["records"]), (&21.into(), &2.into()));
    assert!(run.err.contains("warning: standard input: line 2 (record 2)"), "{}", run.err);
    assert!(run.err.contains("21 records skipped in all"), "{}", run.err);
    assert_eq!(run.err.lines().count(), 11);
    assert_eq!(pool.scan("t"), "k1\tv1\nk2\tv2\n");
    let cut = pool.load("t", &["-f", "binary", "--skip-errors"], b"\x03\0\0\0ke");
    cut.failed(7, "the input ends inside the key");
}

#[test]
fn options_that_do_not_fit_the_format_are_refused() {
    let pool = Pool::new();
    for (options, words) in [
        (&["--header"][..], "--header does not apply to --format lines"),
        (&["--key-column", "1"], "only tsv and csv have columns"),
        (&["-f", "binary", "--value", "x"], "its records hold their values"),
        (&["-f", "csv", "--key-column", "name"], "needs --header"),
        (&["-f", "csv", "--key-column", "0"], "counted from 1"),
        (&["-f", "csv", "--value", "x", "--value-column", "2"], "cannot be used with"),
        (&["--batch", "0"], "at least one record"),
        (&["--threads", "0"], "--threads"),
        (&["--pool-bytes", "1GiB"], "--create"),
        (&["--create", "--pool-bytes", "1G"], "say GiB (1024) or GB (1000)"),
        (&["--format", "cvs"], "did you mean \"csv\"?"),
        (&["--engine", "btre"], "did you mean \"btree\"?"),
        (&["--key-format", "fixd:8"], "did you mean \"fixed:N\"?"),
        (&["--value-from", "line"], "line-number"),
    ] {
        pool.load("t", options, b"").failed(2, words);
    }
}

#[test]
fn a_full_pool_says_so_and_stays_sound() {
    let pool = Pool::missing();
    let input: String = (0..20_000).map(|number| format!("{number}\n")).collect();
    let value = "x".repeat(900);
    let options = ["--create", "--pool-bytes", "16MiB", "--value", &value];
    pool.load("t", &options, input.as_bytes()).failed(4, "--resume-from ");
    let count: u64 = pool.run("scan", &["t", "--count"]).done().text().trim().parse().unwrap();
    assert!(count > 100, "{count}");
    assert!(pool.run("verify", &[]).done().text().contains("sound"));
}

/// A load that stopped said "after 0 records" with 900 in the table, and with several threads the number was not
/// that of the first ones.
#[test]
fn a_load_that_stops_names_the_line_up_to_which_all_is_in() {
    let pool = Pool::missing();
    let value = "x".repeat(900);
    let filler: String = (0..3000).map(|number| format!("{number}\n")).collect();
    let create = ["--create", "--pool-bytes", "16MiB", "--value", &value];
    pool.load("filler", &create, filler.as_bytes()).done();
    let input: String = (0..8_000).map(|number| format!("{number:05}\n")).collect();
    let load = |options: &[&str]| {
        let all = [&["--value", &value, "--threads", "4", "--json"], options].concat();
        pool.load("t", &all, input.as_bytes())
    };
    let stopped = load(&["--batch", "50"]).failed(4, "up to line ");
    let told = stopped.json();
    let (certain, records) = (&told["loaded_up_to"], &told["records"]);
    let (certain, records) = (certain.as_u64().unwrap(), records.as_u64().unwrap());
    assert!(stopped.err.contains(&format!("--resume-from {certain} goes on")), "{}", stopped.err);
    assert!(0 < certain && certain <= records && records < 8_000, "{told}");
    let keys = pool.run("scan", &["t", "--keys-only"]).done().text();
    let first = keys.lines().take(certain as usize);
    let first: Vec<usize> = first.map(|key| key.parse().unwrap()).collect();
    assert!(first.iter().copied().eq(0..certain as usize), "all up to line {certain}");
    assert!(keys.lines().count() as u64 >= records);
    // With room again, the rest follows.
    pool.run("drop", &["filler"]).done();
    let rest = load(&["--resume-from", &certain.to_string()]).done().json();
    assert_eq!((&rest["records"], &rest["complete"]), (&(8_000 - certain).into(), &true.into()));
    assert_eq!(rest["loaded_up_to"], 8_000);
    assert_eq!(pool.run("scan", &["t", "--count"]).done().text(), "8000\n");
    assert!(pool.run("verify", &[]).done().text().contains("sound"));
}

/// A record that the pool has no block for ended the load, whatever --skip-errors said, and no line was named.
#[test]
fn values_that_do_not_fit_are_named_and_skipped() {
    let pool = Pool::missing();
    let small = ["--format", "tsv", "--create", "--pool-bytes", "16MiB"];
    let long = "x".repeat(800_000);
    let lines = |number: u32| match number {
        30 | 70 => format!("{number}\t{long}\n"),
        _ => format!("{number}\tshort\n"),
    };
    let input: String = (1..=100).map(lines).collect();
    for (table, options) in [
        ("one", &["--batch", "7"][..]),
        ("several", &["--threads", "3"]),
        ("sorted", &["--sorted"]),
    ] {
        let input: &str = &if table == "sorted" {
            let mut sorted: Vec<&str> = input.lines().collect();
            sorted.sort_unstable();
            sorted.join("\n")
        } else {
            input.clone()
        };
        let load =
            |more: &[&str]| pool.load(table, &[&small, options, more].concat(), input.as_bytes());
        let skipped = load(&["--skip-errors", "--json"]).done();
        let told = skipped.json();
        assert_eq!((&told["records"], &told["skipped"]), (&98.into(), &2.into()), "{table}");
        assert_eq!(skipped.err.matches("; skipped").count(), 2, "{}", skipped.err);
        assert_eq!(pool.run("scan", &[table, "--count"]).done().text(), "98\n", "{table}");
        if table == "one" {
            assert!(skipped.err.contains("line 30 (record 30)"), "{}", skipped.err);
            load(&[]).failed(7, "line 30 (record 30)").err.contains("up to line 29 ");
        }
    }
    assert!(pool.run("verify", &[]).done().text().contains("sound"));
}

/// Ctrl-C also ends a load that waits for its input.
#[test]
fn an_interrupt_ends_a_load_between_batches() {
    let pool = Pool::new();
    let mut child =
        command(&["load", &pool.uri(), "t", "-", "--batch", "10", "--json"]).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let lines: String = (0..100).map(|number| format!("{number:03}\n")).collect();
    input.write_all(lines.as_bytes()).unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while pool.run("scan", &["t", "--count"]).done().text() != "100\n" {
        assert!(Instant::now() < deadline, "the records do not arrive");
        thread::sleep(Duration::from_millis(20));
    }
    let id = child.id().to_string();
    let killed = Command::new("kill").args(["-INT", &id]).stdout(Stdio::null()).status().unwrap();
    assert!(killed.success());
    let output = child.wait_with_output().unwrap();
    drop(input);
    assert_eq!(output.status.code(), Some(130));
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.contains("interrupted after 100 records had been loaded"), "{told}");
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&summary["complete"], &summary["records"]), (&false.into(), &100.into()));
    assert!(pool.run("verify", &[]).done().text().contains("sound"));
}
