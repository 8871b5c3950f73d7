//! Memory server tests: `memory` and `up` as processes, and the commands that use them.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use farleaf::Processors;
use serde_json::Value;

use crate::authority::Authority;
use crate::processes::{at_work_in, signal, wait_until};
use crate::{Pool, command, farleaf};

/// A command that serves until it is told to end, and what it said first.
pub(crate) struct Service {
    pub(crate) process: Child,
    /// Its end ends the command.
    stdin: Option<ChildStdin>,
    pub(crate) told: Value,
}

impl Service {
    pub(crate) fn start(words: &[&str]) -> Service {
        let words: Vec<&str> =
            words.iter().copied().chain(["--json", "--end-with-stdin"]).collect();
        Service::of(command(&words))
    }

    /// The service that a command line with `--json` and `--end-with-stdin` starts.
    pub(crate) fn of(mut command: Command) -> Service {
        let mut process = command.stderr(Stdio::inherit()).spawn().unwrap();
        let stdin = process.stdin.take();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Service { process, stdin, told: serde_json::from_str(&line).unwrap() }
    }

    pub(crate) fn up(options: &[&str]) -> Service {
        let words = ["up", "--pool-bytes", "64MiB", "--quiet"];
        Service::start(&words.into_iter().chain(options.iter().copied()).collect::<Vec<_>>())
    }

    pub(crate) fn pool(&self) -> &str {
        self.told["pool"].as_str().unwrap()
    }

    pub(crate) fn address(&self) -> &str {
        self.told["address"].as_str().unwrap()
    }

    /// Tells it to end, and gives the code that it ended with.
    pub(crate) fn end(mut self) -> Option<i32> {
        drop(self.stdin.take());
        self.process.wait().unwrap().code()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn scratch() -> (Pool, PathBuf) {
    let pool = Pool::missing();
    let folder = pool.folder.clone();
    std::fs::create_dir_all(&folder).unwrap();
    (pool, folder)
}

#[test]
fn every_command_works_on_a_network() {
    let cluster = Service::up(&["--memory-servers", "3"]);
    let pool = cluster.pool();
    assert!(pool.starts_with("tcp://127.0.0.1:") && pool.matches(',').count() == 2, "{pool}");
    every_command_works(pool, "tcp", 3);
}

/// On an empty pool of so many memory servers, which is empty again at the end.
pub(crate) fn every_command_works(pool: &str, fabric: &str, servers: usize) {
    let run = |words: &[&str]| {
        let words = [&words[..1], &[pool], &words[1..]].concat();
        farleaf(&words, b"apple\t1\nbanana\t2\ncherry\t3\n")
    };
    run(&["load", "fruit", "-", "--format", "tsv"]).done();
    assert_eq!(run(&["get", "fruit", "banana"]).done().text(), "2\n");
    run(&["put", "fruit", "date", "4"]).done();
    run(&["del", "fruit", "apple"]).done();
    assert_eq!(run(&["scan", "fruit", "--keys-only"]).done().text(), "banana\ncherry\ndate\n");
    assert_eq!(run(&["verify", "--json"]).done().json()["sound"], true);
    let stats = run(&["stats", "--json"]).done().json();
    assert_eq!((&stats["fabric"], &stats["memory_servers"]), (&fabric.into(), &servers.into()));
    assert_eq!(run(&["tables"]).done().text().lines().count(), 1);
    run(&["drop", "fruit"]).done();
    run(&["get", "fruit", "banana"]).failed(8, "there is no table");
    run(&["put", "fruit", "a", "b", "--create", "--pool-bytes", "1GiB"])
        .failed(2, "have the size that they were started with");
    let bench = ["bench", "--keys", "1K", "--ops", "1K", "--threads", "1", "--verify", "--json"];
    let there = ["--fabric", fabric, "--connect", pool];
    let report = farleaf(&[&bench[..], &there[..]].concat(), b"").done().json();
    assert_eq!(report["config"]["memory_servers"], servers);
    assert_eq!(run(&["tables"]).done().text(), "", "the bench's table is gone");
}

#[test]
fn an_interrupt_ends_a_cluster_and_its_files_serve_the_same_data_again() {
    let (_pool, folder) = scratch();
    let options = ["--folder", folder.to_str().unwrap()];
    let mut cluster = Service::up(&options);
    farleaf(&["put", cluster.pool(), "t", "key", "value", "--create"], b"").done();
    assert_eq!(at_work_in(&folder), 3);
    signal("INT", &cluster.process);
    assert_eq!(cluster.process.wait().unwrap().code(), Some(0));
    assert_eq!(at_work_in(&folder), 0);
    farleaf(&["get", cluster.pool(), "t", "key"], b"").failed(3, "cannot reach memory server 0");
    let again = Service::up(&options);
    assert_eq!(farleaf(&["get", again.pool(), "t", "key"], b"").done().text(), "value\n");
    assert_eq!(again.end(), Some(0));
    farleaf(&["up", "--folder", options[1], "--pool-bytes", "128MiB"], b"")
        .failed(2, "leave the size out");
}

/// Commands beside a server that was just starting failed.
#[test]
fn commands_wait_for_servers_that_are_just_starting() {
    let address = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().to_string();
    let pool = format!("tcp://{address}");
    let run = |words: &[&str]| {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        std::thread::spawn(move || {
            farleaf(&words.iter().map(String::as_str).collect::<Vec<_>>(), b"")
        })
    };
    let put = run(&["put", &pool, "t", "key", "value", "--create", "--wait", "20s"]);
    let tables = run(&["tables", &pool, "--wait", "20s"]);
    farleaf(&["tables", &pool, "--wait", "200ms"], b"").failed(3, "cannot reach memory server 0");
    let server = Service::start(&["memory", "--size", "64MiB", "--listen", &address]);
    put.join().unwrap().done();
    tables.join().unwrap().done();
    assert_eq!(farleaf(&["get", &pool, "t", "key"], b"").done().text(), "value\n");
    let missing = Pool::missing();
    missing.run("tables", &["--wait", "100ms"]).failed(9, "no such folder");
    assert_eq!(server.end(), Some(0));
}

/// Killed, not asked: the operating system keeps what was written.
#[test]
fn a_memory_server_that_is_killed_comes_back_with_its_data() {
    let (_pool, folder) = scratch();
    let file = folder.join("memory");
    let start = |listen: &str| {
        let file = file.to_str().unwrap();
        Service::start(&["memory", "--file", file, "--size", "64MiB", "--listen", listen])
    };
    let mut server = start("127.0.0.1:0");
    assert_eq!(server.told["bytes"], 64 << 20);
    let address = server.address().to_owned();
    let pool = format!("tcp://{address}");
    farleaf(&["get", &pool, "t", "a"], b"").failed(9, "is not formatted");
    let lines: Vec<u8> = (0..1000).flat_map(|n| format!("key-{n}\t{n}\n").into_bytes()).collect();
    farleaf(&["load", &pool, "t", "-", "--format", "tsv", "--create"], &lines).done();
    server.process.kill().unwrap();
    server.process.wait().unwrap();
    let start_time = Instant::now();
    farleaf(&["get", &pool, "t", "key-7"], b"").failed(3, "cannot reach memory server 0");
    assert!(start_time.elapsed() < Duration::from_secs(10));
    let server = start(&address);
    assert_eq!(farleaf(&["get", &pool, "t", "key-7"], b"").done().text(), "7\n");
    assert_eq!(farleaf(&["scan", &pool, "t", "--count"], b"").done().text(), "1000\n");
    assert_eq!(server.end(), Some(0));
}

#[test]
fn a_memory_server_that_makes_no_sense_does_not_start() {
    let (_pool, folder) = scratch();
    let refused = |options: &[&str], code: i32, words: &str| {
        let words_all = [&["memory", "--end-with-stdin"], options].concat();
        farleaf(&words_all, b"").failed(code, words);
    };
    refused(&["--size", "100"], 2, "multiple of 4096");
    refused(&["--server", "2", "--servers", "2"], 2, "numbers begin with 0");
    refused(&["--threads", "0"], 2, "0 threads");
    refused(&["--lease", "1ms"], 2, "a lease of 1ms");
    refused(&["--listen", "0.0.0.0:0"], 2, "--insecure-public");
    refused(&["--listen", "nowhere"], 2, "invalid");
    let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap();
    let listener = TcpListener::bind(taken).unwrap();
    refused(&["--listen", &taken.to_string()], 3, "cannot listen on");
    drop(listener);
    let foreign = folder.join("letter");
    std::fs::write(&foreign, "dear").unwrap();
    refused(&["--file", foreign.to_str().unwrap()], 2, "not a memory server's file");
    let file = folder.join("memory");
    let file = file.to_str().unwrap();
    let server = Service::start(&["memory", "--file", file, "--size", "1MiB"]);
    refused(&["--file", file], 2, "another process serves it");
    assert_eq!(server.end(), Some(0));
    refused(&["--file", file, "--size", "2MiB"], 2, "leave the size out");
    refused(&["--file", file, "--servers", "2"], 2, "of memory server 0 of 1");
    // It is reached from elsewhere only if that was asked for.
    let public = ["memory", "--size", "1MiB", "--listen", "0.0.0.0:0", "--insecure-public"];
    assert_eq!(Service::start(&public).end(), Some(0));
}

/// Encrypted, and nobody gets in without a certificate.
#[test]
fn a_cluster_with_tls_lets_in_who_has_a_certificate() {
    let authority = Authority::new();
    let files = authority.files("all", "127.0.0.1");
    let [ca, certificate, key] = [&files.ca, &files.certificate, &files.key];
    let tls = [("--tls-ca", ca), ("--tls-cert", certificate), ("--tls-key", key)];
    let tls: Vec<&str> =
        tls.iter().flat_map(|(flag, file)| [*flag, file.to_str().unwrap()]).collect();
    let cluster = Service::up(&[&tls[..], &["--compute", "1"]].concat());
    let pool = cluster.pool();
    let put = ["put", pool, "t", "key", "value", "--create"];
    farleaf(&put, b"").failed(3, "it accepts TLS only");
    farleaf(&[&put[..], &tls[..2]].concat(), b"").failed(2, "takes all of");
    farleaf(&[&put[..], &tls].concat(), b"").done();
    assert_eq!(
        farleaf(&[&["get", pool, "t", "key"], &tls[..]].concat(), b"").done().text(),
        "value\n"
    );
    // A table whose keys the compute server has: it is asked for them.
    let put = ["put", pool, "d", "key", "value", "--create", "--engine", "dex"];
    farleaf(&[&put[..], &tls].concat(), b"").done();
    let show = [&["repartition", pool, "d", "--json"], &tls[..]].concat();
    wait_until("the compute server has the table", || {
        farleaf(&show, b"").done().json()["partitions"][0]["owner"].is_string()
    });
    let get = [&["get", pool, "d", "key"], &tls[..]].concat();
    assert_eq!(farleaf(&get, b"").done().text(), "value\n");
    // It may listen where others reach it, on a machine that has this address.
    let public = [&get[..], &["--listen", "192.0.2.1:0"]].concat();
    farleaf(&public, b"").failed(2, "not an address of this machine");
    let others = Authority::new().files("others", "127.0.0.1");
    let get = ["get", pool, "t", "key"];
    let key_of_others = [&get[..], &tls[..5], &[others.key.to_str().unwrap()]].concat();
    farleaf(&key_of_others, b"").failed(2, "cannot read");
    let bench = ["bench", "--fabric", "tcp", "--keys", "1K", "--ops", "1K", "--verify", "--json"];
    let report = farleaf(&[&bench[..], &tls].concat(), b"").done().json();
    assert_eq!(report["run"]["errors"], 0);
    // Others may reach it now.
    let public = ["memory", "--size", "1MiB", "--listen", "0.0.0.0:0"];
    assert_eq!(Service::start(&[&public[..], &tls].concat()).end(), Some(0));
    assert_eq!(cluster.end(), Some(0));
}

/// Returns whether this process, and so all that it starts, was told to ignore SIGINT, as a shell tells what it runs
/// in the background.
fn ignores_interrupts() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    u64::from_str_radix(ignored.trim(), 16).unwrap() & 1 << 1 != 0
}

/// The servers of a bench end with it, however it ends.
#[test]
fn a_bench_over_tcp_leaves_no_process_behind() {
    // By their size they are found again.
    let bytes = (32 << 20) + 4096 * u64::from(std::process::id() % 1000 + 1);
    let (pool_bytes, mark) = ((2 * bytes).to_string(), bytes.to_string());
    let options = ["bench", "--fabric", "tcp", "--pool-bytes", &pool_bytes];
    let bench = |more: &[&'static str]| [&options, more].concat();
    let report =
        farleaf(&bench(&["--keys", "1K", "--ops", "2K", "--verify", "--json"]), b"").done().json();
    assert_eq!((&report["fabric"], &report["time"]), (&"tcp".into(), &"real".into()));
    assert_eq!(report["run"]["errors"], 0);
    assert!(report["run"]["per_op"]["round_trips"].as_f64().unwrap() >= 1.0);
    let servers = || at_work_in(Path::new(&mark));
    assert_eq!(servers(), 0);
    farleaf(&bench(&["--keys", "4M", "--ops", "1"]), b"").failed(4, "too small");
    assert_eq!(servers(), 0);
    for name in ["INT", "KILL"] {
        if name == "INT" && ignores_interrupts() {
            println!("not interrupted: who started this test has interrupts ignored");
            continue;
        }
        let mut bench = command(&bench(&["--keys", "1K", "--ops", "100M"]))
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        wait_until("it is at work", || servers() == 2);
        signal(name, &bench);
        bench.wait().unwrap();
        wait_until("its servers have ended", || servers() == 0);
    }
}

/// Returns the processors of a process's threads whose name begins so, as the system tells it, in order.
fn processors(process: u32, thread: &str) -> Vec<String> {
    let mut found = Vec::new();
    for task in std::fs::read_dir(format!("/proc/{process}/task")).unwrap() {
        let read = |file: &str| std::fs::read_to_string(task.as_ref().unwrap().path().join(file));
        // One may have ended meanwhile.
        let (Ok(name), Ok(status)) = (read("comm"), read("status")) else { continue };
        if name.starts_with(thread) {
            let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
            found.push(line.unwrap().trim().to_owned());
        }
    }
    found.sort();
    found
}

#[test]
fn servers_keep_their_threads_on_processors() {
    let all = processors(std::process::id(), "");
    let all: Processors = all[0].parse().unwrap();
    let cpu = |thread: usize| all.of(thread).unwrap();
    // Two of them where there are two.
    let pin = if all.count() > 1 { format!("{},{}", cpu(0), cpu(1)) } else { cpu(0).to_string() };
    let mut expected: Vec<String> = (0..3)
        .map(|thread| thread % all.count().min(2))
        .map(cpu)
        .map(|it| it.to_string())
        .collect();
    expected.sort();
    let memory = ["memory", "--size", "64MiB", "--threads", "3", "--pin", &pin];
    let memory = Service::start(&memory);
    // It says where it listens before its threads run.
    let stay = || processors(memory.process.id(), "farleaf-memory") == expected;
    wait_until("each thread is on its processor", stay);
    let uri = format!("tcp://{}", memory.address());
    farleaf(&["put", &uri, "t", "a", "1", "--create", "--engine", "dex"], b"").done();
    let compute = ["compute", &uri, "--threads", "2", "--pin", &cpu(0).to_string(), "--quiet"];
    let compute = Service::start(&compute);
    let one = cpu(0).to_string();
    assert_eq!(processors(compute.process.id(), "farleaf-serve"), [one.as_str(), &one]);
    // Others are where they were.
    assert!(processors(compute.process.id(), "").contains(&all.to_string()));
    assert_eq!(farleaf(&["get", &uri, "t", "a"], b"").done().text(), "1\n");
    assert_eq!(compute.end(), Some(0));

    let run = farleaf(
        &["memory", "--size", "1MiB", "--threads", "3", "--pin", &one, "--end-with-stdin"],
        b"",
    );
    assert!(
        run.err.contains("3 threads on 1 processor: some threads share a processor"),
        "{}",
        run.err
    );
    for (server, place) in [("memory", "--size=1MiB"), ("compute", uri.as_str())] {
        let refused = |pin: &str, what: &str| {
            farleaf(&[server, place, "--pin", pin, "--end-with-stdin"], b"").failed(2, what);
        };
        refused("1023", "no processor 1023 here");
        refused("first", "\"first\" is not a processor");
    }
    // Only one is for it.
    if all.count() > 1 && Command::new("taskset").arg("--version").output().is_ok() {
        let program = env!("CARGO_BIN_EXE_farleaf");
        let mut command = Command::new("taskset");
        command.args(["-c", &one, program, "memory", "--size", "1MiB", "--end-with-stdin"]);
        command.args(["--pin", &cpu(1).to_string()]).env("FARLEAF_CONFIG", "");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        crate::finish(command, b"")
            .failed(2, &format!("processor {} is not for this process", cpu(1)));
    }
}
