//! Cluster tests: clusters in etcd, with `memory --cluster`, `compute etcd://...` and `cluster`.

use std::fs;
use std::time::{Duration, Instant};

use farleaf::{EtcdAccess, EtcdTlsFiles};
use serde_json::Value;

use crate::authority::Authority;
use crate::cluster::Service;
use crate::processes::wait_until;
use crate::server::{self, Server, ServerTls, eventually};
use crate::{Run, command, farleaf, finish};

const LONG: Duration = Duration::from_secs(30);
const KEYS: usize = 400;

fn memory(etcd: &Server, server: &str, servers: &str, more: &[&str]) -> Service {
    let endpoint = etcd.endpoint();
    let words = ["memory", "--size", "64MiB", "--etcd", &endpoint, "--cluster", "orders"];
    let numbers = ["--server", server, "--servers", servers];
    Service::start(&[&words[..], &numbers, more].concat())
}

fn cluster(what: &str, uri: &str, words: &[&str]) -> Run {
    farleaf(&[&["cluster", what, uri][..], words].concat(), b"")
}

fn status(uri: &str) -> Value {
    cluster("status", uri, &["--json"]).done().json()
}

/// The owners of the partitions of table `t`, in the order of their keys.
fn owners(uri: &str) -> Vec<String> {
    let told = farleaf(&["repartition", uri, "t", "--json"], b"").done().json();
    let partitions = told["partitions"].as_array().unwrap().iter();
    partitions.map(|it| it["owner"].as_str().unwrap_or("nobody").to_owned()).collect()
}

fn fill(uri: &str) {
    let lines: Vec<u8> =
        (0..KEYS).flat_map(|n| format!("key-{n:04}\t{n}\n").into_bytes()).collect();
    let options = ["--create", "--engine", "dex", "--set", "node_bytes=4096", "--format", "tsv"];
    farleaf(&[&["load", uri, "t", "-"][..], &options].concat(), &lines).done();
}

fn count(uri: &str) -> String {
    farleaf(&["scan", uri, "t", "--count"], b"").done().text()
}

fn name(service: &Service) -> String {
    service.told["name"].as_str().unwrap().to_owned()
}

#[test]
fn a_cluster_is_used_by_its_name() {
    let Some(etcd) = server::start("a_cluster_is_used_by_its_name") else { return };
    let uri = etcd.uri("orders");
    farleaf(&["get", &uri, "t", "a"], b"").failed(9, "knows no cluster \"orders\"");
    let second_memory = memory(&etcd, "1", "2", &[]);
    farleaf(&["get", &uri, "t", "a"], b"").failed(3, "of 2 memory servers, 0 is not registered");
    let first_memory = memory(&etcd, "0", "2", &[]);
    farleaf(&["put", &uri, "plain", "a", "1", "--create", "--pool-bytes", "1GiB"], b"")
        .failed(2, "have the size that they were started with");
    farleaf(&["put", &uri, "plain", "a", "1", "--create"], b"").done();
    assert_eq!(farleaf(&["get", &uri, "plain", "a"], b"").done().text(), "1\n");
    fill(&uri);

    let first = Service::start(&["compute", &uri]);
    wait_until("the first has all", || owners(&uri) == [name(&first)]);
    let mut second = Service::start(&["compute", &uri]);
    eventually(LONG, "one is coordinator, and both say where they are", || {
        let told = status(&uri);
        let compute = told["compute_servers"].as_array().unwrap();
        let is_told = |service: &Service| {
            compute.iter().any(|it| {
                (it["name"].as_str(), it["address"].as_str(), it["serves"].as_bool())
                    == (Some(&name(service)), Some(service.address()), Some(true))
            })
        };
        !told["coordinator"].is_null() && is_told(&first) && is_told(&second)
    });
    let told = status(&uri);
    assert_eq!((&told["cluster"], &told["trouble"]), (&"orders".into(), &Value::Null));
    let memory_servers: Vec<&str> = told["memory_servers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["address"].as_str().unwrap())
        .collect();
    assert_eq!(memory_servers, [first_memory.address(), second_memory.address()]);
    assert!(told["pool"].as_str().is_some_and(|id| id.len() == 32));
    eventually(LONG, "memory servers say whose data they hold", || {
        let told = status(&uri);
        told["memory_servers"].as_array().unwrap().iter().all(|it| it["pool"] == told["pool"])
    });
    let text = cluster("status", &uri, &[]).done().text();
    assert!(
        text.contains(&format!("compute\t{}\t{}\tserves", name(&second), second.address())),
        "{text}"
    );
    assert!(text.contains("memory\t1\t"), "{text}");

    assert_eq!(owners(&uri), [name(&first)]);
    let added = cluster("add", &uri, &[second.address(), "--json"]).done().json();
    assert_eq!(added["tables"], serde_json::json!(["t"]));
    assert!(owners(&uri).contains(&name(&second)));
    let added = cluster("add", &uri, &[&name(&second), "--json"]).done().json();
    assert_eq!(added["tables"], serde_json::json!([]), "it has something already");
    assert_eq!(count(&uri), format!("{KEYS}\n"));

    cluster("drain", &uri, &[&name(&second)]).done();
    assert_eq!(second.process.wait().unwrap().code(), Some(0));
    assert!(owners(&uri).iter().all(|owner| *owner == name(&first)));
    assert_eq!(count(&uri), format!("{KEYS}\n"));
    cluster("drain", &uri, &[&name(&second)]).failed(8, "is registered");
    cluster("drain", &uri, &[&name(&first)]).failed(2, "no other compute server");
    cluster("drain", &uri, &[first_memory.address()]).failed(2, "is a memory server");
    cluster("add", &uri, &["nobody"]).failed(8, "no compute server \"nobody\"");
    assert_eq!(first.end(), Some(0));
    assert!(status(&uri)["compute_servers"].as_array().unwrap().is_empty());

    // Ended in order, a memory server has no entry at once.
    assert_eq!(second_memory.end(), Some(0));
    let run = cluster("status", &uri, &["--json"]);
    assert_eq!((run.code, &run.json()["missing_memory_servers"]), (1, &serde_json::json!([1])));
    assert_eq!(first_memory.end(), Some(0));
}

/// A compute server takes its share of a table of dmtree by itself; a cluster drains all but the last that has memory.
#[test]
fn a_table_of_dmtree_is_scaled_by_its_cluster() {
    let Some(etcd) = server::start("a_table_of_dmtree_is_scaled_by_its_cluster") else { return };
    let uri = etcd.uri("orders");
    let memory = memory(&etcd, "0", "1", &[]);
    let lines: Vec<u8> =
        (0..KEYS).flat_map(|n| format!("key-{n:04}\t{n}\n").into_bytes()).collect();
    let options = ["--create", "--engine", "dmtree", "--format", "tsv"];
    farleaf(&[&["load", &uri, "t", "-"][..], &options].concat(), &lines).done();
    let compute = |options: &[&str]| Service::start(&[&["compute", &uri][..], options].concat());
    let exposes = ["--expose-bytes", "8MiB"];
    let (first, mut second, plain) = (compute(&exposes), compute(&exposes), compute(&[]));
    let serving = || status(&uri)["compute_servers"].as_array().unwrap().len();
    eventually(LONG, "all are registered", || serving() == 3);
    let parts = |who: &str| {
        let told = farleaf(&["repartition", &uri, "t", "--json"], b"").done().json();
        let mut shares = told["shares"].as_array().unwrap().iter();
        shares.find(|it| it["owner"] == who).map_or(0, |it| it["partitions"].as_u64().unwrap())
    };
    let name_of_second = name(&second);
    let before = parts(&name_of_second);
    assert!(before > 0);
    let add = |who: &str| cluster("add", &uri, &[who, "--json"]).done().json()["tables"].clone();
    assert_eq!(add(&name_of_second), serde_json::json!([]), "it has its share");
    farleaf(&["repartition", &uri, "t", "drain", &name_of_second], b"").done();
    assert_eq!(parts(&name_of_second), 0);
    assert_eq!(add(&name_of_second), serde_json::json!(["t"]));
    assert_eq!(parts(&name_of_second), before);
    assert_eq!(add(&name(&plain)), serde_json::json!([]), "it has no memory");
    cluster("add", &uri, &[&name(&plain), "--table", "t"]).failed(2, "exposes no memory");

    cluster("drain", &uri, &[&name_of_second]).done();
    assert_eq!(second.process.wait().unwrap().code(), Some(0));
    assert_eq!(count(&uri), format!("{KEYS}\n"));
    let all = parts(&name(&first));
    cluster("drain", &uri, &[&name(&first)]).failed(2, "the last one with memory for table \"t\"");
    assert_eq!(parts(&name(&first)), all);
    cluster("drain", &uri, &[&name(&plain)]).done();
    assert_eq!(first.end(), Some(0));
    assert_eq!(count(&uri), format!("{KEYS}\n"));
    assert_eq!(memory.end(), Some(0));
}

/// Killed while nobody works: its entry runs out, and the coordinator takes over what it had.
#[test]
fn a_compute_server_that_is_killed_is_missed_by_its_cluster() {
    let Some(etcd) = server::start("a_compute_server_that_is_killed_is_missed") else { return };
    let uri = etcd.uri("orders");
    let _memory = memory(&etcd, "0", "1", &["--lease", "2s"]);
    fill(&uri);
    let first = Service::start(&["compute", &uri]);
    wait_until("the first has all", || owners(&uri) == [name(&first)]);
    let mut second = Service::start(&["compute", &uri]);
    cluster("add", &uri, &[&name(&second)]).done();
    let dead = name(&second);
    assert!(owners(&uri).contains(&dead));
    farleaf(&["put", &uri, "t", "key-0399", "last"], b"").done();
    second.process.kill().unwrap();
    second.process.wait().unwrap();
    let killed = Instant::now();
    let took = eventually(LONG, "the first has all again", || {
        // Nothing but the directory is looked at before.
        killed.elapsed() > Duration::from_secs(6)
            && owners(&uri).iter().all(|it| *it == name(&first))
    });
    println!("taken over within {took:?}");
    assert_eq!(farleaf(&["get", &uri, "t", "key-0399"], b"").done().text(), "last\n");
    assert_eq!(count(&uri), format!("{KEYS}\n"));
    let told = status(&uri);
    assert_eq!(told["compute_servers"].as_array().unwrap().len(), 1, "{told}");
    assert_eq!(told["without_entry"].as_array().unwrap().len(), 0, "{told}");
}

#[test]
fn entries_that_make_no_sense_are_explained() {
    let Some(etcd) = server::start("entries_that_make_no_sense_are_explained") else { return };
    let uri = etcd.uri("orders");
    let endpoint = etcd.endpoint();
    let refused = |words: &[&str], code: i32, what: &str| {
        let all = ["memory", "--size", "1MiB", "--end-with-stdin"];
        farleaf(&[&all, words].concat(), b"").failed(code, what);
    };
    refused(&["--etcd", &endpoint], 2, "--cluster");
    refused(&["--cluster", "orders"], 2, "--etcd");
    refused(&["--etcd", "here", "--cluster", "orders"], 2, "\"here\" is no server of etcd");
    refused(&["--etcd", &endpoint, "--cluster", "a/b"], 2, "no name of a cluster");
    refused(&["--etcd", "127.0.0.1:1", "--cluster", "orders"], 3, "etcd cannot be reached");
    let public = ["--listen", "0.0.0.0:0", "--insecure-public", "--etcd", &endpoint];
    refused(&[&public[..], &["--cluster", "orders"]].concat(), 2, "--advertise");
    cluster("status", &uri, &[]).failed(9, "knows no cluster \"orders\"");
    cluster("status", "tcp://127.0.0.1:1", &[]).failed(2, "does not begin with etcd://");

    let server = memory(&etcd, "0", "2", &[]);
    let taken = ["--etcd", &endpoint, "--cluster", "orders", "--servers", "2"];
    refused(&taken, 2, &format!("has a memory server 0 already, at {}", server.address()));
    refused(&[&taken[..4], &["--servers", "3", "--server", "1"]].concat(), 2, "there are 3");
    let run = cluster("status", &uri, &[]);
    assert_eq!(run.code, 1);
    assert!(run.text().contains("memory\t1\t-\tmissing"), "{}", run.text());
    assert!(run.text().contains("1 is not registered"), "{}", run.text());
    etcd.client().put("/farleaf/orders/letter", "dear", None).unwrap();
    let told = cluster("status", &uri, &["--json"]).json();
    assert_eq!(told["foreign"][0]["key"], "/farleaf/orders/letter");
    // A killed server is back at its address at once.
    let address = server.address().to_owned();
    drop(server);
    let again = memory(&etcd, "0", "2", &["--listen", &address]);
    assert_eq!(again.address(), address);
}

/// Everything by TLS with certificates of both sides, and as a user with a password.
#[test]
fn a_cluster_is_used_by_tls_and_as_a_user_of_etcd() {
    let Some(mut etcd) = server::start("a_cluster_is_used_by_tls_and_as_a_user_of_etcd") else {
        return;
    };
    etcd.turn_users_on(&["orders"]);
    let (authority, others) = (Authority::new(), Authority::new());
    let (files, own) = (authority.files("etcd", "127.0.0.1"), authority.nameless("own"));
    let access = EtcdAccess::default()
        .tls(&EtcdTlsFiles {
            ca: own.ca.clone(),
            identity: Some((own.certificate.clone(), own.key.clone())),
        })
        .unwrap()
        .user("orders", "orders");
    let clients = Some(files.ca.clone());
    etcd.restart_with(
        ServerTls { certificate: files.certificate, key: files.key, clients },
        access,
    );
    let password = authority.folder.join("password");
    fs::write(&password, "orders\n").unwrap();
    let text = |path: &std::path::Path| path.to_str().unwrap().to_owned();
    let (ca, certificate, key) = (text(&own.ca), text(&own.certificate), text(&own.key));
    let password = text(&password);
    let tls = ["--etcd-tls-ca", &ca, "--etcd-tls-cert", &certificate, "--etcd-tls-key", &key];
    let user = ["--etcd-user", "orders", "--etcd-password-file", &password];
    let all = [&tls[..], &user].concat();
    let endpoint = etcd.endpoint();
    let memory = ["memory", "--size", "64MiB", "--etcd", &endpoint, "--cluster", "c"];
    let _memory = Service::start(&[&memory[..], &all].concat());
    let uri = etcd.uri("c");
    let put = ["put", &uri, "t", "a", "1", "--create", "--engine", "dex"];
    farleaf(&[&put[..], &all].concat(), b"").done();
    let _compute = Service::start(&[&["compute", &uri][..], &all].concat());
    let get = ["get", &uri, "t", "a"];
    assert_eq!(farleaf(&[&get[..], &all].concat(), b"").done().text(), "1\n");
    let told = farleaf(&[&["cluster", "status", &uri, "--json"][..], &all].concat(), b"");
    assert_eq!(told.done().json()["trouble"], Value::Null);
    // By the environment, with the password itself.
    let by_environment = |words: &[&str], password: &str| {
        let mut command = command(words);
        command.envs([
            ("FARLEAF_ETCD_TLS_CA", ca.as_str()),
            ("FARLEAF_ETCD_TLS_CERT", &certificate),
            ("FARLEAF_ETCD_TLS_KEY", &key),
            ("FARLEAF_ETCD_USER", "orders"),
            ("FARLEAF_ETCD_PASSWORD", password),
        ]);
        finish(command, b"")
    };
    assert_eq!(by_environment(&get, "orders").done().text(), "1\n");
    by_environment(&get, "wrong").failed(2, "knows no user \"orders\" with that password");
    by_environment(&[&get[..], &user[2..]].concat(), "orders").failed(2, "given twice");
    let shown = by_environment(&["config", "show", "--origin"], "orders").done().text();
    assert!(shown.contains("etcd-password\t(hidden)\tFARLEAF_ETCD_PASSWORD"), "{shown}");
    assert!(shown.contains("etcd-user\torders\tFARLEAF_ETCD_USER"), "{shown}");

    let refused = |words: &[&str], code: i32, what: &str| {
        farleaf(&[&get[..], words].concat(), b"").failed(code, what)
    };
    refused(&[], 2, "speaks TLS");
    refused(&tls, 2, "answers its users only");
    refused(&[&tls[..2], &user].concat(), 2, "only who shows a certificate");
    let foreign = text(&others.folder.join("ca.pem"));
    let foreign = [&["--etcd-tls-ca", &foreign][..], &tls[2..], &user].concat();
    refused(&foreign, 3, "is not accepted");
    let other = ["get", &etcd.uri("d"), "t", "a"];
    farleaf(&[&other[..], &all].concat(), b"").failed(2, "does not let its user \"orders\" list");
    // Options that make no sense together.
    refused(&tls[..4], 2, "needs both --etcd-tls-cert and --etcd-tls-key");
    refused(&tls[2..], 2, "needs --etcd-tls-ca");
    refused(&user[..2], 2, "--etcd-password-file");
    refused(&user[2..], 2, "name one (--etcd-user)");
    let gone = [&tls[..], &["--etcd-user", "orders", "--etcd-password-file", "/nowhere"]].concat();
    refused(&gone, 2, "cannot read /nowhere");
    refused(&["--etcd-tls-ca", "/nowhere"], 2, "cannot read /nowhere");
}
