//! RDMA tests: pools by RDMA, in `make verbs` alone if they need a device.
//!
//! Without a device each test prints that it was skipped, and why.

use std::env;

use farleaf_fabric::verbs::devices;

use crate::cluster::{Service, every_command_works};
use crate::{Pool, farleaf};

/// Returns what is missing here, if something is.
fn missing() -> Option<&'static str> {
    match devices() {
        Ok(names) if !names.is_empty() => None,
        Ok(_) => Some("no RDMA device"),
        Err(_) => Some("no rdma-core here"),
    }
}

/// Returns whether there is a device. If not, says so, and why; panics if there has to be one.
fn has_card(test: &str) -> bool {
    let Some(why) = missing() else { return true };
    assert_ne!(env::var("FARLEAF_VERBS").as_deref(), Ok("required"), "{why}");
    eprintln!("{test}: skipped: {why}. `make verbs` runs it in a virtual machine");
    false
}

#[test]
fn without_a_card_commands_say_what_is_missing() {
    let Some(why) = missing() else { return };
    farleaf(&["tables", "verbs://127.0.0.1:7"], b"").failed(3, why);
    let serve = ["--fabric", "verbs", "--end-with-stdin"];
    farleaf(&[&["memory", "--size", "1MiB"], &serve[..]].concat(), b"").failed(3, why);
    farleaf(&[&["up", "--pool-bytes", "64MiB"], &serve[..]].concat(), b"").failed(3, why);
    let small = ["--keys", "1K", "--ops", "1K", "--pool-bytes", "64MiB"];
    farleaf(&[&["bench", "--fabric", "verbs"], &small[..]].concat(), b"").failed(3, why);
    farleaf(&["bench", "--fabric", "verbs", "--connect", "verbs://127.0.0.1:7"], b"")
        .failed(3, why);
}

#[test]
fn a_card_that_is_not_used_is_not_asked_for() {
    let refused = |words: &[&str]| farleaf(words, b"").failed(2, "need --fabric verbs");
    refused(&["memory", "--device", "mlx5_0", "--end-with-stdin"]);
    refused(&["up", "--gid-index", "3", "--end-with-stdin"]);
    refused(&["bench", "--mtu", "1024"]);
}

#[test]
fn every_command_works_by_rdma() {
    if !has_card("every_command_works_by_rdma") {
        return;
    }
    let cluster = Service::up(&["--memory-servers", "2", "--fabric", "verbs", "--mtu", "1024"]);
    let pool = cluster.pool();
    assert!(pool.starts_with("verbs://127.0.0.1:") && pool.ends_with("?mtu=1024"), "{pool}");
    every_command_works(pool, "verbs", 2);
    farleaf(&["tables", pool], b"").done();
    // Memory of a compute server, which its card locks and serves.
    let compute = Service::start(&["compute", pool, "--expose-bytes", "1MiB"]);
    assert_eq!(compute.told["exposed_bytes"], 1 << 20);
    assert_eq!(compute.end(), Some(0));
    let no_such = ["memory", "--fabric", "verbs", "--device", "farleaf9", "--end-with-stdin"];
    farleaf(&no_such, b"").failed(2, "there are ");
    assert_eq!(cluster.end(), Some(0));
}

/// Memory in a file is served again, by RDMA and by TCP.
#[test]
fn a_server_with_a_card_comes_back_with_its_data() {
    if !has_card("a_server_with_a_card_comes_back_with_its_data") {
        return;
    }
    let pool = Pool::missing();
    std::fs::create_dir_all(&pool.folder).unwrap();
    let file = pool.folder.join("memory");
    let start = |listen: &str| {
        let file = file.to_str().unwrap();
        let words = ["memory", "--fabric", "verbs", "--file", file, "--size", "64MiB"];
        Service::start(&[&words[..], &["--listen", listen]].concat())
    };
    let mut server = start("127.0.0.1:0");
    assert!(server.told["card"].as_str().unwrap().contains(" port 1 GID index "));
    let address = server.address().to_owned();
    let by_card = format!("verbs://{address}");
    farleaf(&["load", &by_card, "t", "-", "--format", "tsv", "--create"], b"a\t1\nb\t2\n").done();
    server.process.kill().unwrap();
    server.process.wait().unwrap();
    farleaf(&["get", &by_card, "t", "a"], b"").failed(3, "cannot reach memory server 0");
    let server = start(&address);
    assert_eq!(farleaf(&["get", &by_card, "t", "a"], b"").done().text(), "1\n");
    let by_tcp = format!("tcp://{address}");
    assert_eq!(farleaf(&["get", &by_tcp, "t", "b"], b"").done().text(), "2\n");
    assert_eq!(server.end(), Some(0));
    let plain = Service::start(&["memory", "--size", "64MiB"]);
    farleaf(&["tables", &format!("verbs://{}", plain.address())], b"")
        .failed(2, "serves tcp alone");
}

/// By one thread: the device that is made of software tears words.
#[test]
fn a_bench_starts_servers_of_its_own_with_cards() {
    if !has_card("a_bench_starts_servers_of_its_own_with_cards") {
        return;
    }
    for engine in ["btree", "dex"] {
        let what = ["bench", "--fabric", "verbs", "--engine", engine, "--workload", "a"];
        let how = ["--keys", "2K", "--ops", "2K", "--warmup", "0", "--threads", "1"];
        let servers = ["--pool-bytes", "256MiB", "--memory-servers", "2"];
        let told = ["--verify", "--json", "--quiet"];
        let options = [&what[..], &how, &servers, &told];
        let report = farleaf(&options.concat(), b"").done().json();
        assert_eq!((&report["engine"], &report["fabric"]), (&engine.into(), &"verbs".into()));
        assert_eq!((&report["run"]["ops"], &report["run"]["errors"]), (&2000.into(), &0.into()));
        assert_eq!(report["config"]["keys_at_end"], 2000);
        assert!(report["config"]["card"].as_str().unwrap().contains(" port 1 GID index "));
    }
}
