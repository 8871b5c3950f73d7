//! Compute server tests: `compute`, `up --compute` and `repartition` as processes.

use std::io::{BufRead, BufReader};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::cluster::Service;
use crate::processes::{signal, wait_until};
use crate::{Pool, Run, farleaf};

/// Keys of the table `t`.
const KEYS: usize = 400;

fn lines() -> Vec<u8> {
    (0..KEYS).flat_map(|n| format!("key-{n:04}\t{n}\n").into_bytes()).collect()
}

/// A table of the engine dex, filled.
fn fill(pool: &str) {
    let options = ["--create", "--engine", "dex", "--set", "node_bytes=4096", "--format", "tsv"];
    farleaf(&[&["load", pool, "t", "-"][..], &options].concat(), &lines()).done();
}

fn repartition(pool: &str, words: &[&str]) -> Run {
    farleaf(&[&["repartition", pool, "t"], words].concat(), b"")
}

fn show(pool: &str) -> Value {
    repartition(pool, &["--json"]).done().json()
}

/// The owners of the partitions, in the order of their keys.
fn owners(pool: &str) -> Vec<String> {
    let told = show(pool);
    let partitions = told["partitions"].as_array().unwrap().iter();
    partitions.map(|it| it["owner"].as_str().unwrap_or("nobody").to_owned()).collect()
}

fn count(pool: &str) -> String {
    farleaf(&["scan", pool, "t", "--count"], b"").done().text()
}

impl Service {
    fn compute(pool: &str, options: &[&str]) -> Service {
        Service::start(&[&["compute", pool], options].concat())
    }

    fn name(&self) -> String {
        self.told["name"].as_str().unwrap().to_owned()
    }
}

#[test]
fn compute_servers_share_a_table_that_commands_use_meanwhile() {
    let pool = Pool::missing();
    let uri = pool.uri();
    fill(&uri);
    let first = Service::compute(&uri, &["--table", "t"]);
    assert_eq!(first.told["tables"], serde_json::json!(["t"]));
    assert_eq!(owners(&uri), [first.name()]);
    // Others use it, and own nothing.
    farleaf(&["put", &uri, "t", "key-0001", "new"], b"").done();
    assert_eq!(farleaf(&["get", &uri, "t", "key-0001"], b"").done().text(), "new\n");
    // In a folder it listens at a socket.
    let mut second = Service::compute(&uri, &[]);
    assert_eq!((&second.told["address"], &second.told["listens"]), (&Value::Null, &Value::Null));
    assert_eq!(owners(&uri), [first.name()]);
    // A range, a share, a boundary, all under load.
    let load = thread::spawn({
        let uri = uri.clone();
        move || {
            farleaf(&["load", &uri, "t", "-", "--format", "tsv", "--batch", "10"], &lines()).done()
        }
    });
    let name = second.name();
    repartition(&uri, &["move", &name, "--above", "key-0300"]).done();
    assert_eq!(owners(&uri), [first.name(), name.clone()]);
    repartition(&uri, &["boundary", "0", "key-0250"]).done();
    load.join().unwrap();
    let told = show(&uri);
    assert_eq!(told["partitions"][0]["up_to"], "key-0250");
    assert!(told["partitions"][0]["above"].is_null());
    let servers = told["servers"].as_array().unwrap();
    assert!(servers.iter().any(|server| server["name"] == name), "{servers:?}");
    assert_eq!(count(&uri), format!("{KEYS}\n"));
    repartition(&uri, &["drain", &name]).done();
    assert!(owners(&uri).iter().all(|owner| *owner == first.name()));
    repartition(&uri, &["add", &name]).done();
    assert!(owners(&uri).contains(&name));
    let text = repartition(&uri, &[]).done().text();
    assert!(text.contains(&format!("server\t{name}\t-")), "{text}");

    // An interrupt hands back what it has, and the other takes it.
    signal("INT", &second.process);
    assert_eq!(second.process.wait().unwrap().code(), Some(0));
    assert_eq!(count(&uri), format!("{KEYS}\n"));
    wait_until("the first has all", || owners(&uri).iter().all(|owner| *owner == first.name()));
    farleaf(&["drop", &uri, "t"], b"").failed(2, "end that process");
    assert_eq!(first.end(), Some(0));
    assert_eq!(farleaf(&["verify", &uri, "--json"], b"").done().json()["sound"], true);
    farleaf(&["drop", &uri, "t"], b"").done();
}

/// Killed, not asked: what it had acknowledged is there, served by another.
#[test]
fn a_cluster_lives_on_without_a_compute_server_that_was_killed() {
    let cluster = Service::up(&["--compute", "2"]);
    assert_eq!(cluster.told["compute_servers"].as_array().unwrap().len(), 2);
    let pool = cluster.pool().to_owned();
    fill(&pool);
    wait_until("somebody has it", || owners(&pool) != ["nobody"]);
    let mut third = Service::compute(&pool, &[]);
    repartition(&pool, &["add", third.address()]).done();
    let name = third.name();
    assert!(owners(&pool).contains(&name));
    farleaf(&["put", &pool, "t", "key-0001", "one"], b"").done();
    farleaf(&["put", &pool, "t", "key-0399", "last"], b"").done();
    third.process.kill().unwrap();
    third.process.wait().unwrap();
    // It counts as alive for a lease, and does not answer; then it is dead.
    let drained = repartition(&pool, &["drain", &name]);
    assert!([3, 8].contains(&drained.code), "{}", drained.err);
    assert!(drained.err.contains("compute server"), "{}", drained.err);
    let end = Instant::now() + Duration::from_secs(30);
    while farleaf(&["get", &pool, "t", "key-0399"], b"").code != 0 {
        assert!(Instant::now() < end, "its keys stay away");
    }
    assert_eq!(farleaf(&["get", &pool, "t", "key-0399"], b"").done().text(), "last\n");
    assert_eq!(farleaf(&["get", &pool, "t", "key-0001"], b"").done().text(), "one\n");
    assert_eq!(count(&pool), format!("{KEYS}\n"));
    assert_eq!(cluster.end(), Some(0));
}

/// Beside compute servers that change the table, `verify` said "memory does not add up", and counted too few keys.
#[test]
fn counts_beside_compute_servers_are_said_not_to_be_exact() {
    let pool = Pool::missing();
    let uri = pool.uri();
    fill(&uri);
    let server = Service::compute(&uri, &[]);
    // Changes that it has not written back yet.
    farleaf(&["put", &uri, "t", "key-0001", "new"], b"").done();
    for command in ["verify", "stats"] {
        let told = farleaf(&[command, &uri, "--json"], b"").done();
        assert!(
            told.err.contains("in use by 1 compute server; these counts are not exact"),
            "{}",
            told.err
        );
        assert_eq!(told.json()["used_by"], 1);
        assert_ne!(told.json()["sound"], false);
        farleaf(&[command, &uri], b"").done();
        farleaf(&[command, &uri, "--exclusive"], b"")
            .failed(3, &format!("in use by 1 compute server ({}", server.name()));
    }
    let waiting = thread::spawn({
        let uri = uri.clone();
        move || farleaf(&["verify", &uri, "--exclusive", "--wait", "20s", "--json"], b"").done()
    });
    thread::sleep(Duration::from_millis(300));
    assert_eq!(server.end(), Some(0));
    let verified = waiting.join().unwrap();
    assert!(!verified.err.contains("not exact"), "{}", verified.err);
    let verified = verified.json();
    assert_eq!((&verified["sound"], &verified["used_by"]), (&true.into(), &0.into()));
    assert_eq!(verified["tables"][0]["keys"], KEYS);
}

/// The processes that `up` has started with this word.
fn children(parent: u32, word: &str) -> Vec<u32> {
    let tasks = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap();
    let is_of_kind = |id: &u32| {
        let line = std::fs::read_to_string(format!("/proc/{id}/cmdline")).unwrap_or_default();
        line.split('\0').nth(1) == Some(word)
    };
    tasks.split_whitespace().map(|id| id.parse().unwrap()).filter(is_of_kind).collect()
}

fn kill(process: u32) {
    let id = process.to_string();
    assert!(std::process::Command::new("kill").args(["-9", &id]).status().unwrap().success());
}

/// The death of any compute server ended the whole cluster.
#[test]
fn up_replaces_a_compute_server_that_was_killed() {
    let cluster = Service::up(&["--compute", "2"]);
    let pool = cluster.pool().to_owned();
    fill(&pool);
    let servers = || show(&pool)["servers"].as_array().unwrap().len();
    wait_until("somebody has the table", || owners(&pool) != ["nobody"]);
    let before = children(cluster.process.id(), "compute");
    assert_eq!(before.len(), 2);
    for victim in &before {
        kill(*victim);
        // Its keys are served meanwhile.
        let end = Instant::now() + Duration::from_secs(30);
        for key in ["key-0001", "key-0200", "key-0399"] {
            while farleaf(&["put", &pool, "t", key, "new"], b"").code != 0 {
                assert!(Instant::now() < end, "{key} stays away");
            }
        }
        wait_until("another was started", || {
            let now = children(cluster.process.id(), "compute");
            now.len() == 2 && !now.contains(victim)
        });
        wait_until("it serves", || servers() == 2);
    }
    // A command that has just ended gave its ranges up; the compute servers come to take them.
    let has_owner = || owners(&pool).iter().all(|name| name != "nobody");
    wait_until("the compute servers have the table", has_owner);
    assert_eq!(count(&pool), format!("{KEYS}\n"));
    assert_eq!(cluster.end(), Some(0));
}

#[test]
fn up_ends_with_a_memory_server_and_says_why() {
    let mut up =
        crate::command(&["up", "--pool-bytes", "64MiB", "--compute", "1", "--end-with-stdin"]);
    let mut process = up.spawn().unwrap();
    let mut pool = String::new();
    BufReader::new(process.stdout.as_mut().unwrap()).read_line(&mut pool).unwrap();
    assert!(pool.starts_with("pool\ttcp://"), "{pool}");
    kill(children(process.id(), "memory")[1]);
    // Its end would end the cluster.
    let _stdin = process.stdin.take();
    let ended = process.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(3));
    let told = String::from_utf8(ended.stderr).unwrap();
    assert!(told.contains("memory server 1 has ended (signal: 9 (SIGKILL))"), "{told}");
    assert!(told.contains("--folder keeps data in files"), "{told}");
}

#[test]
fn moves_that_make_no_sense_are_explained() {
    let pool = Pool::missing();
    let uri = pool.uri();
    fill(&uri);
    pool.load("plain", &[], b"a\n").done();
    let server = Service::compute(&uri, &["--table", "t"]);
    let name = server.name();
    pool.run("repartition", &["tt"]).failed(8, "did you mean \"t\"?");
    pool.run("repartition", &["plain"]).failed(2, "which has no partitions");
    pool.run("compute", &["--table", "plain"]).failed(2, "which has no owners");
    pool.run("compute", &["--table", "none"]).failed(8, "there is no table");
    pool.run("compute", &["--listen", "0.0.0.0:0"]).failed(2, "--insecure-public");
    farleaf(&["compute", "mem:"], b"").failed(2, "exists only within one process");
    repartition(&uri, &["mvoe", "x"]).failed(2, "'move'");
    let slip = format!("{}{}", &name[..15], if name.ends_with('0') { '1' } else { '0' });
    repartition(&uri, &["add", &slip]).failed(8, &format!("did you mean \"{name}\"?"));
    repartition(&uri, &["add", "nobody"]).failed(8, "no compute server has that name or address");
    let out_of_order = ["move", &name, "--above", "b", "--up-to", "a"];
    repartition(&uri, &out_of_order).failed(2, "out of order");
    repartition(&uri, &["boundary", "7", "a"]).failed(2, "no boundary of number 7");
    repartition(&uri, &["drain", &name]).failed(2, "no other compute server");
    repartition(&uri, &["move", &name, "--hex", "--above", "xy"]).failed(2, "not hexadecimal");
    assert_eq!(owners(&uri), [name]);
    assert_eq!(server.end(), Some(0));
}

/// Partitions of a table of dmtree by their owners, as `repartition` prints them.
fn shares(pool: &str) -> Vec<(String, u64, u64)> {
    let told = show(pool);
    let shares = told["shares"].as_array().unwrap().iter();
    let share = |it: &Value| {
        let owner = it["owner"].as_str().unwrap_or("nobody").to_owned();
        (owner, it["weight"].as_u64().unwrap(), it["partitions"].as_u64().unwrap())
    };
    shares.map(share).collect()
}

#[test]
fn compute_servers_share_the_partitions_of_a_table_of_dmtree() {
    let pool = Pool::missing();
    let uri = pool.uri();
    let options = ["--create", "--pool-bytes", "64MiB", "--engine", "dmtree", "--format", "tsv"];
    farleaf(&[&["load", &uri, "t", "-"][..], &options].concat(), &lines()).done();
    assert!(shares(&uri).iter().all(|(owner, ..)| owner == "nobody"));
    let exposes = ["--expose-bytes", "8MiB"];
    let (first, mut second) = (Service::compute(&uri, &exposes), Service::compute(&uri, &exposes));
    let (plain, name) = (Service::compute(&uri, &[]), second.name());
    let before = shares(&uri);
    assert!(
        before.len() == 2 && before.iter().all(|share| share.1 == 1 && share.2 > 4),
        "{before:?}"
    );
    let text = repartition(&uri, &[]).done().text();
    assert!(text.contains(&format!("{name}\t1\t")) && text.contains("server\t"), "{text}");
    repartition(&uri, &["move", &name]).failed(2, "numbered and placed by a ring");
    repartition(&uri, &["boundary", "0", "a"]).failed(2, "numbered and placed by a ring");
    repartition(&uri, &["add", &plain.name()]).failed(2, "exposes no memory");
    let small = Service::compute(&uri, &["--expose-bytes", "64KiB"]);
    repartition(&uri, &["add", &small.name()]).failed(2, "exposes 65536 bytes of memory");
    assert_eq!(small.end(), Some(0));
    repartition(&uri, &["add", &name]).done();
    assert_eq!(shares(&uri), before, "it has its share");
    repartition(&uri, &["drain", &name]).done();
    let drained: Vec<_> =
        shares(&uri).into_iter().map(|(_, weight, count)| (weight, count)).collect();
    assert_eq!(drained.iter().filter(|share| **share == (0, 0)).count(), 1, "{drained:?}");
    repartition(&uri, &["drain", &first.name()]).failed(2, "no other compute server");
    repartition(&uri, &["add", &name]).done();
    assert_eq!(shares(&uri), before);
    assert_eq!(count(&uri), format!("{KEYS}\n"));
    // In order, and not: the other one has all then.
    signal("TERM", &second.process);
    assert!(second.process.wait().unwrap().success());
    let left = shares(&uri);
    assert!(left.len() == 1 && left[0].0 == first.name(), "{left:?}");
    farleaf(&["put", &uri, "t", "key-0001", "new"], b"").done();
    assert_eq!(first.end(), Some(0));
    assert_eq!(count(&uri), format!("{KEYS}\n"));
    assert!(shares(&uri).iter().all(|(owner, ..)| owner == "nobody"));
}
