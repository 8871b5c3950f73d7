//! Pipe tests: output to pipes and terminals.

use std::io::{BufRead, BufReader, Read};

use crate::{Pool, command, farleaf};

#[test]
fn a_reader_that_leaves_ends_the_scan_quietly() {
    let pool = Pool::new();
    let input: String = (0..50_000).map(|number| format!("a longer key {number:06}\n")).collect();
    pool.load("t", &["--sorted"], input.as_bytes()).done();
    let mut child = command(&["scan", &pool.uri(), "t"]).spawn().unwrap();
    let mut line = String::new();
    // Dropped after the first line, with most of the output unwritten.
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "a longer key 000000\t\n");
    let mut told = String::new();
    child.stderr.take().unwrap().read_to_string(&mut told).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{told}");
    assert_eq!(told, "");
}

#[test]
fn what_scan_prints_load_reads() {
    let pool = Pool::new();
    let text = "one\t1\nthree\t3\ntwo\t2\n";
    pool.load("t", &["-f", "tsv"], text.as_bytes()).done();
    let scanned = pool.run("scan", &["t"]).done().out;
    pool.load("copy", &["-f", "tsv", "--sorted"], &scanned).done();
    assert_eq!(pool.scan("copy"), text);
}

#[test]
fn pipes_get_bytes_as_they_are_and_no_colour() {
    let pool = Pool::new();
    pool.run_with("put", &["t", "k", "-"], b"\x1b[31mred\xff").done();
    assert_eq!(pool.run("get", &["t", "k"]).done().out, b"\x1b[31mred\xff\n");
    let plain = pool.run("get", &["none", "k"]).failed(8, "error: ");
    assert!(!plain.err.contains('\x1b'), "{:?}", plain.err);
    let coloured = pool.run("get", &["none", "k", "--color", "always"]).failed(8, "error:");
    assert!(coloured.err.contains("\x1b[1;31merror:\x1b[0m"), "{:?}", coloured.err);
    assert!(farleaf(&["--help", "--color=always"], b"").done().text().contains('\x1b'));
    assert!(!farleaf(&["--help", "--color=never"], b"").done().text().contains('\x1b'));
}

#[test]
fn verbose_says_more_and_only_on_standard_error() {
    let pool = Pool::new();
    let run = pool.run("put", &["t", "k", "v", "-v"]).done();
    assert!(run.err.contains("opened shm:") && run.err.contains("added"), "{}", run.err);
    assert_eq!(run.text(), "");
    pool.run("get", &["t", "k", "-v", "-q"]).failed(2, "cannot be used with");
}
