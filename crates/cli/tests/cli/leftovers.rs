//! Leftover tests: what a command leaves behind if it fails, and what it says then.

use std::fs::{self, File};
use std::io::Write;
use std::net::{TcpListener, ToSocketAddrs};
use std::process::Stdio;

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::{Pool, command, farleaf};

/// The example of its own help text was refused, which `up` and `put --create` round.
#[test]
fn a_memory_server_takes_sizes_that_are_no_multiple() {
    let words = ["memory", "--size", "1GB", "--listen", "127.0.0.1:0", "--end-with-stdin"];
    let told = farleaf(&words, b"").done().text();
    assert!(told.contains("bytes\t999997440\n"), "{told}");
    let small = ["memory", "--size", "5000", "--listen", "127.0.0.1:0", "--end-with-stdin"];
    farleaf(&small, b"").failed(2, "at least 65536");
}

/// The records before an unsorted or malformed one stayed, and the next try was no bulk load.
#[test]
fn a_bulk_load_that_fails_leaves_the_table_empty() {
    let pool = Pool::new();
    let many: String = (0..5000).map(|number| format!("{number:04}\n")).collect();
    for (end, words) in
        [("17\n", "not larger than the one before it"), ("\u{e9}", "a key of 2 bytes")]
    {
        for (begin, batch) in [(many.as_str(), "1000"), (many.as_str(), "7"), ("aaaa\n", "1000")] {
            let input = format!("{begin}{end}");
            let options = ["--sorted", "--key-format", "bytes:4", "--batch", batch];
            let fixed = ["--sorted", "--key-format", "fixed:4", "--batch", batch];
            let options = if end == "17\n" { options } else { fixed };
            let table = if end == "17\n" { "u" } else { "v" };
            let failed = pool.load(table, &options, input.as_bytes()).failed(7, words);
            assert!(failed.err.contains("the table is as empty as before"), "{}", failed.err);
            assert_eq!(pool.scan(table), "");
        }
    }
    let again = pool.load("u", &["--sorted", "--json"], many.as_bytes()).done().json();
    assert_eq!((&again["bulk"], &again["keys_new"]), (&true.into(), &5000.into()));
    pool.run("verify", &[]).done();
}

/// Names went to the terminal with their control bytes, and so did suggestions that came from the pool.
#[test]
fn messages_hold_no_control_bytes() {
    let pool = Pool::new();
    let evil = "us\x1b[2Jers\u{9b}1m";
    pool.load(evil, &[], b"a\n").done();
    let uri = pool.uri();
    let near = "us\x1b[2Jer\u{9b}1m";
    for words in [
        &["get", &uri, near, "a"][..],
        &["put", &uri, near, "a", "1"],
        &["del", &uri, near, "a"],
        &["scan", &uri, near],
        &["drop", &uri, near],
        &["repartition", &uri, near],
        &["repartition", &uri, evil, "add", "\x1b[2J"],
        &["load", &uri, "t", "\x1b[2J"],
        &["load", &uri, "t", "--format", "\x1b[2J"],
        &["get", "shm:\x1b[2J", "t", "a"],
        &["get", "\x1b[2J:", "t", "a"],
        &["bench", "--engine", "\x1b[2J"],
        &["bench", "-p", "\x1b[2J"],
        &["engines", "\x1b[2J"],
        &["check", "--format", "\x1b[2J"],
        &["check", "history", "\x1b[2J"],
        &["repro", "\x1b[2J"],
        &["config", "show", "\x1b[2J"],
        &["cluster", "status", "etcd://\x1b[2J/c"],
        &["\x1b[2J"],
        &["get", "--\x1b[2J"],
    ] {
        let run = farleaf(words, b"");
        assert_ne!(run.code, 0, "{words:?}");
        let is_bad = |letter: char| letter != '\n' && letter.is_control();
        assert!(!run.err.contains(is_bad), "{words:?}: {:?}", run.err);
    }
    let missing = pool.run("get", &[near, "a"]);
    missing.failed(8, "did you mean \"us\\x1b[2Jers\\xc2\\x9b1m\"?");
    let json = pool.run("tables", &["--json"]).done();
    assert!(!json.text().contains('\u{9b}'), "{}", json.text());
    assert!(json.json()["tables"].as_array().unwrap().iter().any(|table| table["table"] == evil));
}

#[test]
fn a_column_that_is_there_twice_is_refused() {
    let pool = Pool::new();
    let options = ["-f", "csv", "--header", "--key-column", "id", "--value-column", "name"];
    let failed = pool.load("csv", &options, b"id,name,id\n1,ann,2\n");
    failed.failed(7, "columns 1 and 3 are both named \"id\"");
    pool.load("csv", &options, b"id,x,name,name\n1,b,c,d\n").failed(7, "columns 3 and 4");
    // Others may be there twice.
    pool.load("csv", &options, b"id,name,x,x\n1,ann,b,c\n").done();
    assert_eq!(pool.scan("csv"), "1\tann\n");
}

/// A failed command left a pool of another size, or a table of other formats, that the next try could not use.
#[test]
fn a_command_that_fails_leaves_no_pool_and_no_table() {
    let pool = Pool::missing();
    let create = ["--create", "--pool-bytes", "64MiB"];
    let load = |options: &[&str], input: &[u8]| pool.load("t", &[&create, options].concat(), input);
    load(&["-f", "csv", "--header", "--key-column", "no"], b"a,b\n").failed(7, "no column");
    assert!(!pool.folder.exists());
    load(&["--key-format", "fixed:8"], b"a\n").failed(7, "a key of 1 bytes");
    load(&["-f", "binary"], b"\x03").failed(7, "the input ends inside");
    load(&["--set", "node_bytes=3"], b"a\n").failed(2, "node_bytes");
    load(&["--engine", "dex", "--set", "node_bytes=300"], b"a\n").failed(2, "300");
    assert!(!pool.folder.exists());
    let put = |options: &[&str]| {
        pool.run("put", &[&["t", "key", "value"], &create[..], options].concat())
    };
    put(&["--value-format", "fixed:8"]).failed(2, "a value of 5 bytes");
    put(&["--key-format", "fixed:8"]).failed(2, "a key of 3 bytes");
    assert!(!pool.folder.exists());
    // A pool too small for a table; the next one is larger.
    let small = ["t", "key", "value", "--create", "--pool-bytes", "1MiB"];
    let code = pool.run("put", &small).code;
    assert!(code != 0 && !pool.folder.exists(), "{code}");
    put(&[]).done();
    // A folder that was there stays.
    let other = Pool::missing();
    fs::create_dir(&other.folder).unwrap();
    other
        .load("t", &["--create", "--key-format", "fixed:8", "--no-reserve"], b"a\n")
        .failed(7, "1 bytes");
    assert!(other.folder.exists());
    assert_eq!(fs::read_dir(&other.folder).unwrap().count(), 0);
    // A pool that was there stays, without the table that failed.
    pool.load("u", &["--key-format", "fixed:8"], b"a\n").failed(7, "a key of 1 bytes");
    pool.load("u", &["--key-format", "bytes:8"], b"a\n").done();
    assert_eq!(pool.run("get", &["t", "key"]).done().text(), "value\n");
}

#[test]
fn positions_behind_the_end_and_counts_of_nothing_are_refused() {
    let pool = Pool::new();
    pool.load("t", &["--resume-from", "3"], b"a\nb\n\n")
        .failed(2, "the last record of standard input is at line 2");
    pool.load("t", &["--resume-from", "2"], b"a\nb\n").done();
    assert_eq!(pool.scan("t"), "");
    pool.load("t", &["--resume-from", "1"], b"").failed(2, "--resume-from 1");
    for property in ["recordcount=0", "operationcount=0", "threadcount=0"] {
        let words = ["bench", "-p", property, "--dry-run"];
        farleaf(&words, b"").failed(2, "a whole number of at least 1");
    }
    for words in [
        &["bench", "--dry-run", "--keys", "0"][..],
        &["bench", "--dry-run", "--clients", "18446744073709551615"],
        &["bench", "--dry-run", "--value-bytes", "1TiB"],
        &["check", "--seeds", "0"],
        &["check", "--seed", "18446744073709551615", "--seeds", "2"],
        &["check", "processes", "--processes", "0"],
        &["check", "processes", "--threads", "0"],
        &["check", "processes", "--keys", "0"],
        &["check", "processes", "--keys", "18446744073709551615"],
        &["check", "processes", "--kills-per-second", "-1"],
        &["check", "processes", "--stops-per-second", "NaN"],
        &["check", "processes", "--round-time", "0s"],
        &["check", "processes", "--time", "0s"],
        &["check", "crash", "--time", "0s"],
        &["check", "--time", "0s"],
        &["memory", "--threads", "0"],
        &["memory", "--connections-max", "0"],
        &["memory", "--lease", "0s"],
        &["memory", "--lease", "2000h"],
        &["memory", "--server", "2", "--servers", "2"],
        &["up", "--port", "65535"],
        &["up", "--port", "65000", "--memory-servers", "1024"],
        &["up", "--threads", "0"],
    ] {
        let run = farleaf(words, b"");
        assert_eq!(run.code, 2, "{words:?}: {}", run.err);
    }
}

#[test]
fn a_server_on_the_second_address_of_a_host_is_found() {
    let addresses = ("localhost", 1).to_socket_addrs().unwrap().collect::<Vec<_>>();
    if !addresses.iter().any(std::net::SocketAddr::is_ipv6) {
        eprintln!("not tested, as localhost has no IPv6 address here: {addresses:?}");
        return;
    }
    for host in ["127.0.0.1", "[::1]"] {
        let listen = format!("{host}:0");
        let mut child =
            command(&["memory", "--size", "64MiB", "--listen", &listen, "--end-with-stdin"])
                .spawn()
                .unwrap();
        let mut line = String::new();
        let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut out, &mut line).unwrap();
        let port = line.trim().rsplit_once(':').unwrap().1;
        let uri = format!("tcp://localhost:{port}");
        farleaf(&["put", &uri, "t", "a", "1", "--create"], b"").done();
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
    }
}

#[test]
fn a_silent_server_and_a_blank_among_addresses_are_named() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let uri = format!("tcp://{}", silent.local_addr().unwrap());
    farleaf(&["tables", &uri], b"")
        .failed(3, "accepts connections, and has not answered within 2s");
    let run = farleaf(&["tables", "tcp://127.0.0.1:1, 127.0.0.1:2", "--wait", "1h"], b"");
    run.failed(2, "\" 127.0.0.1:2\" holds a blank");
}

#[test]
fn a_full_standard_output_is_named() {
    let pool = Pool::new();
    let uri = pool.uri();
    for words in [
        &["engines"][..],
        &["tables", &uri],
        &["stats", &uri, "--json"],
        &["completions", "bash"],
        &["config", "show"],
        &["--version"],
        &["--help"],
    ] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let mut command = command(words);
        let ended = command.stdout(full).stdin(Stdio::null()).output().unwrap();
        let err = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(70), "{words:?}: {err}");
        assert!(err.contains("cannot write to standard output: No space left"), "{words:?}: {err}");
    }
}

#[test]
fn gzip_is_read_and_other_compressed_input_is_named() {
    let pool = Pool::new();
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    let lines: String = (0..5000).map(|number| format!("{number:04}\n")).collect();
    encoder.write_all(lines.as_bytes()).unwrap();
    let gzip = encoder.finish().unwrap();
    let loaded = pool.load("t", &["--json", "--sorted"], &gzip).done().json();
    assert_eq!(loaded["keys_new"], 5000);
    pool.load("u", &[], &gzip[..gzip.len() / 2])
        .failed(7, "begins like gzip, and is damaged or cut short");
    let removed = pool.run_with("del", &["t", "-", "--json"], &gzip).done().json();
    assert_eq!(removed["removed"], 5000);
    let zstd = b"\x28\xb5\x2f\xfd\x04\x58\x09\x00\x00a";
    pool.load("w", &[], zstd).failed(7, "it is compressed by zstd");
    pool.run_with("del", &["t", "-"], zstd).failed(7, "it is compressed by zstd");
    pool.run("scan", &["w"]).failed(8, "no table \"w\"");
}
