//! RDMA tests: stores by RDMA, in `make verbs` alone if they need a device.
//!
//! Without a device each test prints that it was skipped, and why.
#![allow(clippy::unwrap_used)]
#![allow(clippy::disallowed_methods, reason = "a network is real threads")]

use std::env;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::thread;

use farleaf::{CardConfig, Engine, ErrorKind, Farleaf, MemoryServers, TableOptions};
use farleaf_fabric::ServerId;
use farleaf_fabric::tcp::{HugePages, MemoryServer, MemoryServerConfig, Region};
use farleaf_fabric::verbs::{VerbsError, VerbsServer, devices};

const REGION_BYTES: u64 = 48 << 20;

/// Why RDMA cannot be used here, if so.
fn no_card() -> Option<String> {
    match devices() {
        Ok(names) if !names.is_empty() => None,
        Ok(_) => Some(VerbsError::NoDevice { wanted: None, found: Vec::new() }.to_string()),
        Err(error) => Some(error.to_string()),
    }
}

/// Returns whether there is a device. If not, says so, and why; panics if there has to be one.
fn has_card(test: &str) -> bool {
    let Some(why) = no_card() else { return true };
    assert_ne!(env::var("FARLEAF_VERBS").as_deref(), Ok("required"), "{why}");
    eprintln!("{test}: skipped: {why}. `make verbs` runs it in a virtual machine");
    false
}

fn config(server: usize, servers: usize) -> (MemoryServerConfig, Region) {
    let region = Region::anonymous(REGION_BYTES, HugePages::No).unwrap();
    (MemoryServerConfig { server: ServerId(server as u16), servers, ..Default::default() }, region)
}

fn servers(count: usize) -> Vec<VerbsServer> {
    let start = |server| {
        let (config, region) = config(server, count);
        VerbsServer::start_over(config, &CardConfig::default(), region).unwrap()
    };
    (0..count).map(start).collect()
}

fn uri(servers: &[VerbsServer]) -> String {
    let addresses: Vec<SocketAddr> = servers.iter().map(VerbsServer::address).collect();
    MemoryServers::new(addresses, Some(CardConfig::default())).uri()
}

#[track_caller]
fn refused(uri: &str, kind: ErrorKind, words: &str) {
    let error = Farleaf::connect(uri).unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(words), "{words:?} is not in: {error}");
}

/// The same program runs where there is no card, and says what is missing.
#[test]
fn without_a_card_it_is_said_what_is_missing() {
    let Some(why) = no_card() else { return };
    refused("verbs://127.0.0.1:9", ErrorKind::Unavailable, &why);
    assert!(why.contains("install") || why.contains("rdma link"), "{why}");
}

#[test]
fn what_is_wrong_is_said_by_its_kind() {
    if !has_card("what_is_wrong_is_said_by_its_kind") {
        return;
    }
    let servers = servers(1);
    let uri = uri(&servers);
    refused(&format!("{uri}?device=farleaf9"), ErrorKind::Invalid, "there are ");
    refused(&format!("{uri}?gid=250"), ErrorKind::Invalid, "GID index 250");
    refused(&format!("{uri}?port=77"), ErrorKind::Unavailable, "port 77");
    refused(&format!("{uri}?mtu=1500"), ErrorKind::Invalid, "an MTU of 1500 bytes");
    refused(&uri, ErrorKind::NoPool, "not formatted");
    drop(servers);
    refused(&uri, ErrorKind::Unavailable, "cannot reach memory server 0");
    let (config, region) = config(0, 1);
    let plain = MemoryServer::start_over(config, region).unwrap();
    refused(&format!("verbs://{}", plain.address()), ErrorKind::Invalid, "serves tcp alone");
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let newer = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_exact(&mut [0; 64]).unwrap();
        let mut welcome = [0; 64];
        welcome[..8].copy_from_slice(b"FarleafT");
        (welcome[8], welcome[12]) = (9, 1);
        stream.write_all(&welcome).unwrap();
    });
    refused(&format!("verbs://{address}"), ErrorKind::Corrupt, "version 9");
    newer.join().unwrap();
}

#[test]
fn a_store_by_rdma_is_like_any_other() {
    if !has_card("a_store_by_rdma_is_like_any_other") {
        return;
    }
    let servers = servers(2);
    let uri = uri(&servers);
    let db = Farleaf::builder().create(true).cache_bytes(1 << 20).open(&uri).unwrap();
    let stats = db.stats().unwrap();
    assert_eq!((stats.fabric, stats.memory_servers), ("verbs", 2));
    let key = |number: u32| format!("key {number:05}");
    for engine in Engine::ALL {
        let options = TableOptions::default().engine(*engine);
        let table = db.create_table(engine.name(), options).unwrap();
        for number in 0..400 {
            table.insert(key(number), number.to_string()).unwrap();
        }
        // One that is kept outside of nodes, and one that travels in several packets.
        table.insert("long", vec![7; 100_000]).unwrap();
        table.insert(key(3), "three").unwrap();
        assert!(table.remove(key(5)).unwrap());
    }
    assert!(db.verify().unwrap().closes());
    db.close().unwrap();
    // Another compute server, with nothing in its cache.
    let db = Farleaf::connect(&uri).unwrap();
    for engine in Engine::ALL {
        let table = db.table(engine.name()).unwrap();
        assert_eq!(table.get("long").unwrap(), Some(vec![7; 100_000]));
        assert_eq!(table.get(key(3)).unwrap().as_deref(), Some(&b"three"[..]));
        assert_eq!(table.get(key(5)).unwrap(), None);
        let numbers = table.prefix("key ").map(|pair| pair.unwrap().0);
        let wanted = (0..400).filter(|number| *number != 5).map(|number| key(number).into_bytes());
        assert!(numbers.eq(wanted), "{engine}");
    }
    let counters = db.stats().unwrap().counters;
    assert!(counters.total().reads > 0 && counters.total().round_trips > 0);
    db.close().unwrap();
}
