//! Waits: counts how often a call waits for a memory server, by a relay that holds back what it is sent.
//!
//! The relay passes on what a client sends once the client has been silent for a while, as one round. A client that sends
//! the requests of many operations before it waits has one round for all of them.
#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crate::common::{key, servers};
use farleaf::{Engine, Farleaf, TableOptions};

/// Silence after which the relay passes on what has come, of the first measurement.
const SILENCE: Duration = Duration::from_millis(8);
/// Measurements, of which the least counts. On a busy machine a client may be silent in the middle of what it sends, so
/// each takes twice the silence of the one before, until one holds.
const TRIES: u32 = 6;

/// See the [module page](self).
struct Relay {
    address: SocketAddr,
    shared: Arc<RelayShared>,
}

#[derive(Default)]
struct RelayShared {
    /// The silence in milliseconds; with 0 it passes everything on at once.
    silence_ms: AtomicU64,
    /// Rounds of each connection.
    rounds: Mutex<Vec<Arc<AtomicU64>>>,
}

impl Relay {
    fn start(to: SocketAddr) -> Relay {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let relay = Relay { address: listener.local_addr().unwrap(), shared: Arc::default() };
        let shared = Arc::clone(&relay.shared);
        // It goes with this process.
        thread::spawn(move || {
            for client in listener.incoming() {
                let (client, server) = (client.unwrap(), TcpStream::connect(to).unwrap());
                client.set_nodelay(true).unwrap();
                server.set_nodelay(true).unwrap();
                let (replies, taker) = (server.try_clone().unwrap(), client.try_clone().unwrap());
                thread::spawn(move || copy(replies, taker));
                let (shared, rounds) = (Arc::clone(&shared), Arc::<AtomicU64>::default());
                shared.rounds.lock().unwrap().push(Arc::clone(&rounds));
                thread::spawn(move || hold_back(client, server, &shared, &rounds));
            }
        });
        relay
    }

    /// The rounds that `op` takes on the connection that has most, if each ends by `silence`.
    fn waits_of(&self, silence: Duration, op: impl FnOnce()) -> u64 {
        let counts = || -> Vec<u64> {
            let rounds = self.shared.rounds.lock().unwrap();
            rounds.iter().map(|rounds| rounds.load(Ordering::SeqCst)).collect()
        };
        self.shared.silence_ms.store(silence.as_millis() as u64, Ordering::SeqCst);
        let before = counts();
        op();
        let after = counts();
        self.shared.silence_ms.store(0, Ordering::SeqCst);
        assert_eq!(before.len(), after.len(), "a connection of before does the work");
        after.iter().zip(before).map(|(after, before)| after - before).max().unwrap()
    }
}

fn copy(mut from: TcpStream, mut to: TcpStream) {
    let _ = std::io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Both);
}

fn hold_back(
    mut client: TcpStream,
    mut server: TcpStream,
    shared: &RelayShared,
    rounds: &AtomicU64,
) {
    let (mut buffer, mut held) = (vec![0; 64 << 10], Vec::new());
    loop {
        let silence_ms = shared.silence_ms.load(Ordering::SeqCst);
        let silence = (!held.is_empty()).then_some(Duration::from_millis(silence_ms.max(1)));
        client.set_read_timeout(silence).unwrap();
        match client.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => held.extend_from_slice(&buffer[..count]),
            Err(_) if silence.is_none() => break,
            Err(_) => {
                rounds.fetch_add(1, Ordering::SeqCst);
                if server.write_all(&held).is_err() {
                    break;
                }
                held.clear();
            }
        }
        if shared.silence_ms.load(Ordering::SeqCst) == 0 {
            if server.write_all(&held).is_err() {
                break;
            }
            held.clear();
        }
    }
    let _ = server.shutdown(Shutdown::Both);
}

/// A batch waits as often as the slowest of its operations does by itself, and not once for each.
#[test]
fn many_gets_wait_as_often_as_one() {
    const KEYS: u32 = 6_000;
    // Some in each leaf.
    const VALUE: [u8; 200] = [7; 200];
    let servers = servers(1, 64 << 20);
    let relay = Relay::start(servers.0[0].address());
    let db = Farleaf::builder().create(true).open(&format!("tcp://{}", relay.address)).unwrap();
    for engine in Engine::ALL.iter().filter(|engine| !engine.is_example()) {
        let table =
            db.create_table(engine.name(), TableOptions::default().engine(*engine)).unwrap();
        table.bulk_load((0..KEYS).map(|number| (key(number), VALUE))).unwrap();
        // So that sessions, and the upper nodes, are there.
        let spread = |from: u32| (0..32).map(move |at| key(from + at * (KEYS / 32)));
        table.get_many(spread(0)).unwrap();
        // Other leaves than those before, each time.
        let one = (0..4).map(|at| {
            relay.waits_of(SILENCE, || {
                assert!(table.contains_key(key(40 + at * 1_501)).unwrap());
            })
        });
        let one = one.max().unwrap();
        let mut many = u64::MAX;
        for round in 1..=TRIES {
            let waits = relay.waits_of(SILENCE * (1 << (round - 1)), || {
                assert!(table.get_many(spread(round * 31)).unwrap().iter().all(Option::is_some));
            });
            assert!(waits > 0, "{engine}: the leaves are new");
            many = many.min(waits);
            if many * 10 <= one * 13 {
                break;
            }
        }
        println!("{engine}: {one} waits of a get, {many} of 32 gets");
        assert!(many * 10 <= one * 13, "{engine}: {many} waits of 32 gets, {one} of one");
    }
}
