#![allow(clippy::unwrap_used)]

use std::{net::TcpStream, path::Path};

use super::*;

/// Starts a Redis; if this machine has none, prints so and returns `None`.
pub(super) fn start(test: &str) -> Option<RedisServer> {
    match RedisServer::start() {
        Err(RedisError::Missing { .. }) => {
            eprintln!("{test}: skipped: no redis-server here (`make setup` installs it)");
            None
        }
        started => Some(started.unwrap()),
    }
}

#[test]
fn a_dropped_server_leaves_nothing_behind() {
    let Some(server) = start("a_dropped_server_leaves_nothing_behind") else { return };
    let mut wire = server.connect().unwrap();
    let told = wire.ask("CONFIG GET", &[b"CONFIG", b"GET", b"dir"]).unwrap();
    let (folder, address) = (told.lines().last().unwrap(), server.address);
    assert!(address.ip().is_loopback() && Path::new(folder).is_dir());
    drop(server);
    assert!(!Path::new(folder).exists(), "{folder}");
    TcpStream::connect(address).unwrap_err();
}

#[test]
fn a_dead_server_and_a_refusal_give_different_errors() {
    let Some(server) = start("a_dead_server_and_a_refusal_give_different_errors") else { return };
    let (mut wire, mut other) = (server.connect().unwrap(), server.connect().unwrap());
    let refused = wire.ask("GET", &[b"GET"]).unwrap_err().to_string();
    assert!(refused.contains("answers GET with \"ERR wrong number of arguments"), "{refused}");
    let ended = RedisError::from(other.ask("SHUTDOWN", &[b"SHUTDOWN", b"NOSAVE"]).unwrap_err());
    assert!(matches!(ended, RedisError::Gone { .. }), "{ended}");
    let gone = server.explain(wire.ask("PING", &[b"PING"]).unwrap_err().into()).to_string();
    assert!(gone.contains("has ended or been cut off while it was at work"), "{gone}");
    assert!(gone.contains("the last it has logged: ") && gone.contains("bye"), "{gone}");
    let gets = Gets { clients: 1, depth: 1, keys: 1, ops: 1, value_bytes: 8 };
    let gone = gets.run(&server).unwrap_err();
    assert!(matches!(gone, RedisError::Gone { .. }), "{gone}");
}

/// A bench that would never end by itself: the test ends its server during the run.
#[test]
fn gets_end_with_their_server() {
    let Some(server) = start("gets_end_with_their_server") else { return };
    let mut wire = server.connect().unwrap();
    let gets = Gets { clients: 1, depth: 1, keys: 1, ops: 1_000_000_000, value_bytes: 8 };
    let gone = std::thread::scope(|scope| {
        let gets = scope.spawn(|| gets.run(&server));
        // The run has begun once the bench has sent its first command.
        let stats: [&[u8]; 2] = [b"INFO", b"commandstats"];
        while !wire.ask("INFO", &stats).unwrap().contains("cmdstat_get") {
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        wire.ask("SHUTDOWN", &[b"SHUTDOWN", b"NOSAVE"]).unwrap_err();
        gets.join().unwrap().unwrap_err()
    });
    assert!(matches!(gone, RedisError::Gone { .. }), "{gone}");
}

#[test]
fn medians_are_of_the_middle() {
    assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
    assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.0);
    assert_eq!(median(vec![]), 0.0);
    let round = |rate: f64, reads: f64| SystemResult {
        ops_per_s: rate,
        per_op: Some(crate::PerOp { reads, ..Default::default() }),
        error: (rate == 5.0).then(|| "wrong".to_owned()),
        ..SystemResult::default()
    };
    let all = SystemResult::median(&[round(1.0, 1.0), round(5.0, 2.0), round(2.0, 3.0)]);
    assert_eq!((all.ops_per_s, all.least, all.most), (2.0, 1.0, 5.0));
    assert!((all.per_op.unwrap().reads - 2.0).abs() < 1e-9);
    assert_eq!(all.error.as_deref(), Some("wrong"));
}
