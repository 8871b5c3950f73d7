//! Network tests: behaviour that only memory servers on a network have.
#![allow(clippy::unwrap_used)]

use std::net::TcpListener;
use std::panic::{self, AssertUnwindSafe};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{eventually, key, small};
use farleaf::{ErrorKind, Farleaf, OpKind, TableOptions};
use farleaf_fabric::ServerId;
use farleaf_fabric::tcp::{HugePages, MemoryServer, MemoryServerConfig, Region, Tcp, TcpConfig};
use farleaf_harness::LoopbackServers;

const REGION_BYTES: u64 = 32 << 20;

#[test]
fn a_store_on_a_network_is_known_as_one() {
    let db = small();
    let stats = db.stats().unwrap();
    assert_eq!((stats.fabric, stats.memory_servers), ("tcp", 2));
    assert_eq!(stats.memory.pool_bytes, 2 * REGION_BYTES);
}

#[test]
fn a_pool_is_made_only_when_asked_for_and_only_once() {
    let servers = crate::common::servers(2, REGION_BYTES);
    let error = Farleaf::connect(&servers.uri()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoPool, "{error}");
    assert!(error.to_string().contains("not formatted"), "{error}");
    // Several at once, and none loses what another has written.
    let uri = servers.uri();
    thread::scope(|scope| {
        for number in 0..4 {
            let uri = &uri;
            scope.spawn(move || {
                let db = Farleaf::builder().create(true).open(uri).unwrap();
                let table = db.table_or_create("t", TableOptions::default()).unwrap();
                table.insert(key(number), "v").unwrap();
                db.close().unwrap();
            });
        }
    });
    let db = Farleaf::connect(&servers.uri()).unwrap();
    assert_eq!(db.table("t").unwrap().range(..).count(), 4);
    assert!(db.verify().unwrap().closes());
    // One of them has lost its memory: nobody makes a new pool of the other's.
    drop(db);
    let mut lost = servers;
    lost.0.truncate(1);
    lost.0.push(crate::common::servers(2, REGION_BYTES).0.remove(1));
    let error = Farleaf::builder().create(true).open(&lost.uri()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoPool, "{error}");
    assert!(error.to_string().contains("memory server 1 is not formatted"), "{error}");
}

#[test]
fn who_cannot_be_reached_or_refuses_is_told_in_kind() {
    let kind = |uri: &str, what: &str| {
        let error = Farleaf::connect(uri).unwrap_err();
        assert!(error.to_string().contains(what), "{uri}: {error}");
        error.kind()
    };
    let nobody = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap();
    let uri = format!("tcp://{nobody}");
    assert_eq!(kind(&uri, "cannot reach memory server 0"), ErrorKind::Unavailable);
    assert_eq!(kind("tcp://no.such.host.invalid:7", "no.such.host"), ErrorKind::Io);
    assert_eq!(kind("mem:", "not a network address"), ErrorKind::Invalid);
    let mut other_version = [0; 64];
    other_version[..8].copy_from_slice(b"FarleafT");
    other_version[8] = 99;
    other_version[12] = 1;
    let uri = answering(other_version);
    assert_eq!(kind(&uri, "speaks version 99"), ErrorKind::Corrupt);
    let uri = answering([b'H'; 64]);
    assert_eq!(kind(&uri, "not a memory server of Farleaf"), ErrorKind::NoPool);

    let mut servers = crate::common::servers(2, REGION_BYTES);
    servers.0.reverse();
    assert_eq!(kind(&servers.uri(), "check the list of addresses"), ErrorKind::Invalid);
    let config = MemoryServerConfig { connections_max: 1, ..Default::default() };
    let region = Region::anonymous(REGION_BYTES, HugePages::No).unwrap();
    let full = MemoryServer::start_over(config, region).unwrap();
    let uri = format!("tcp://{}", full.address());
    let _holds_the_only_one = Tcp::connect(TcpConfig::to([full.address()])).unwrap();
    assert_eq!(kind(&uri, "limit of connections"), ErrorKind::Full);
}

/// The address of something that greets so and says nothing more.
fn answering(greeting: [u8; 64]) -> String {
    use std::io::Write;
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let mut streams = Vec::new();
        while let Ok((mut stream, _)) = listener.accept() {
            let _ = stream.write_all(&greeting);
            streams.push(stream);
        }
    });
    format!("tcp://{address}")
}

/// Files of two memory servers, and where they listen.
struct Files {
    paths: [PathBuf; 2],
    servers: Vec<MemoryServer>,
    listen: Vec<String>,
    lease: Duration,
}

impl Files {
    fn new(name: &str, lease: Duration) -> Files {
        let path = |server| {
            let name = format!("farleaf-{name}-{}-{server}", std::process::id());
            let path = std::env::temp_dir().join(name);
            let _ = std::fs::remove_file(&path);
            path
        };
        let paths = [path(0), path(1)];
        let listen = vec!["127.0.0.1:0".to_owned(); 2];
        let mut files = Files { paths, servers: Vec::new(), listen, lease };
        files.restart();
        let address = |server: &MemoryServer| server.address().to_string();
        files.listen = files.servers.iter().map(address).collect();
        files
    }

    fn uri(&self) -> String {
        format!("tcp://{}", self.listen.join(","))
    }

    /// Starts them again where they were.
    fn restart(&mut self) {
        self.servers.clear();
        for server in 0..2 {
            let number = ServerId(server as u16);
            let config = MemoryServerConfig {
                server: number,
                servers: 2,
                listen: self.listen[server].parse().unwrap(),
                lease: self.lease,
                ..Default::default()
            };
            let region = Region::file(&self.paths[server], Some(REGION_BYTES), number, 2).unwrap();
            self.servers.push(MemoryServer::start_over(config, region).unwrap());
        }
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        for path in &self.paths {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// The store is not opened anew: what was under way while the servers were away has happened or fails.
#[test]
fn a_restart_of_the_servers_is_lived_through() {
    let mut files = Files::new("lived-through", LoopbackServers::LEASE_LONG);
    let db = Farleaf::builder().create(true).open(&files.uri()).unwrap();
    let table = db.create_table("t", TableOptions::default()).unwrap();
    let stop = AtomicBool::new(false);
    let acknowledged = AtomicU32::new(0);
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for number in 0_u32.. {
                if stop.load(Ordering::SeqCst) {
                    return number;
                }
                // A server that is away for longer than an operation has patience fails it.
                while let Err(error) = table.insert(key(number), key(number)) {
                    let kind = error.kind();
                    let may_be = [ErrorKind::Unavailable, ErrorKind::OutcomeUnknown];
                    assert!(may_be.contains(&kind), "{kind:?}: {error}");
                }
                acknowledged.store(number, Ordering::SeqCst);
            }
            0
        });
        for _ in 0..3 {
            let before = acknowledged.load(Ordering::SeqCst);
            eventually(Duration::from_secs(20), "it goes on", || {
                acknowledged.load(Ordering::SeqCst) > before + 200
            });
            files.restart();
        }
        stop.store(true, Ordering::SeqCst);
        let count = writer.join().unwrap();
        for number in 0..count {
            assert_eq!(table.get(key(number)).unwrap(), Some(key(number)), "{number} of {count}");
        }
    });
    assert!(db.verify().unwrap().closes());
    db.close().unwrap();
    files.restart();
    let db = Farleaf::connect(&files.uri()).unwrap();
    assert!(db.table("t").unwrap().range(..).count() > 600);
}

/// A process that is being started has copies of all descriptors for a moment: they keep neither a server's
/// address nor its file.
#[test]
fn servers_start_again_while_processes_are_started() {
    let mut files = Files::new("started", LoopbackServers::LEASE_LONG);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let start = || {
            let mut started = 0;
            while !stop.load(Ordering::SeqCst) {
                assert!(Command::new("true").status().unwrap().success());
                started += 1;
            }
            started
        };
        let threads = [scope.spawn(start), scope.spawn(start), scope.spawn(start)];
        let restarted =
            panic::catch_unwind(AssertUnwindSafe(|| (0..150).for_each(|_| files.restart())));
        stop.store(true, Ordering::SeqCst);
        assert!(threads.into_iter().all(|thread| thread.join().unwrap() > 0));
        restarted.unwrap();
    });
}

/// Servers that stay away: every call ends, with an error in kind, and so does closing. What was begun
/// is finished by whoever opens the pool once they are back.
#[test]
fn nothing_hangs_on_servers_that_are_gone() {
    let mut files = Files::new("gone", Duration::from_millis(500));
    let db = Farleaf::builder()
        .create(true)
        .linger_timeout(Duration::from_millis(300))
        .open(&files.uri())
        .unwrap();
    let table = db.create_table("t", TableOptions::default()).unwrap();
    table.insert_many((0..2000).map(|number| (key(number), key(number)))).unwrap();
    let begun = Arc::new(AtomicU32::new(0));
    let threads: Vec<_> = (0..4_u32)
        .map(|thread| {
            let (table, begun) = (table.clone(), Arc::clone(&begun));
            thread::spawn(move || {
                for number in 0.. {
                    begun.fetch_add(1, Ordering::Relaxed);
                    let key = key((number * 4 + thread) % 2000);
                    let done = match thread {
                        0 => table.get(&key).map(drop),
                        1 => {
                            crate::common::block_on(table.to_async().insert(&key, "new")).map(drop)
                        }
                        2 => table.get_many((0..100).map(crate::common::key)).map(drop),
                        _ => table.insert(&key, vec![7; 3000]).map(drop),
                    };
                    match done.map_err(|error| error.kind()) {
                        Ok(()) => {}
                        Err(ErrorKind::Closed) => return,
                        Err(ErrorKind::Unavailable | ErrorKind::OutcomeUnknown) => {}
                        Err(kind) => panic!("{kind:?}"),
                    }
                }
            })
        })
        .collect();
    eventually(Duration::from_secs(10), "they are at work", || begun.load(Ordering::Relaxed) > 400);
    files.servers.clear();
    let gone = Instant::now();
    // Some change was under way, with near certainty; else it is one from now on.
    while table.insert("after", "v").unwrap_err().kind() != ErrorKind::Closed {
        assert!(gone.elapsed() < Duration::from_secs(20), "it never gives up");
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(table.range(..).next().unwrap().unwrap_err().kind(), ErrorKind::Closed);
    let error = db.close().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    assert!(gone.elapsed() < Duration::from_secs(30));

    files.restart();
    // They could not hear that it has left: it is dead to them after two leases.
    eventually(Duration::from_secs(20), "what it left is cleared away", || {
        Farleaf::connect(&files.uri()).unwrap().verify().unwrap().closes()
    });
    let db = Farleaf::connect(&files.uri()).unwrap();
    let table = db.table("t").unwrap();
    assert!(table.range(..).count() >= 2000);
    table.insert("after", "v").unwrap();
    assert!(db.verify().unwrap().closes());
}

/// A server that comes back without its memory is not taken for the one that was there.
#[test]
fn lost_memory_is_not_taken_for_a_pool() {
    let mut servers = crate::common::servers(1, REGION_BYTES);
    let db = Farleaf::builder().create(true).open(&servers.uri()).unwrap();
    let table = db.create_table("t", TableOptions::default()).unwrap();
    table.insert("a", "1").unwrap();
    let address = servers.0[0].address();
    servers.0.clear();
    let region = Region::anonymous(REGION_BYTES, HugePages::No).unwrap();
    let config = MemoryServerConfig { listen: address, ..Default::default() };
    servers.0.push(MemoryServer::start_over(config, region).unwrap());
    let error = table.get("a").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    assert_eq!(table.insert("a", "2").unwrap_err().kind(), ErrorKind::Closed);
    let error = Farleaf::connect(&servers.uri()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoPool, "{error}");
}

/// Many keys at once take about as many round trips as one, one after the other.
#[test]
fn many_operations_are_in_flight_at_once() {
    let db = small();
    let table = db.create_table("t", TableOptions::default()).unwrap();
    table.insert_many((0..5000).map(|number| (key(number), "v"))).unwrap();
    table.get_many((0..100).map(key)).unwrap();
    let time = |op: &dyn Fn()| {
        let start = Instant::now();
        op();
        start.elapsed()
    };
    let before = db.stats().unwrap().counters;
    let together = time(&|| assert_eq!(table.get_many((0..2000).map(key)).unwrap().len(), 2000));
    let cost = db.stats().unwrap().counters.since(&before);
    assert_eq!(cost.ops(OpKind::Get), 2000);
    let apart = time(&|| (0..2000).for_each(|number| assert!(table.get(key(number)).is_ok())));
    assert!(together < apart, "{together:?} together, {apart:?} one after the other");
}

/// Sorted keys are neighbours in the table. In flight together, they would try each other's locks: 7 tries
/// for each insert. The values are long, for there must be many more leaves than operations in flight: where
/// there were 28, those that were dealt far apart met as well, 1.00 to 1.20 tries.
#[test]
fn many_inserts_do_not_wait_for_each_other() {
    let db = small();
    let table = db.create_table("t", TableOptions::default()).unwrap();
    let value = [7; 100];
    let pairs = || (0..5000).map(|number| (key(number), value));
    table.insert_many(pairs()).unwrap();
    let before = db.stats().unwrap().counters;
    assert_eq!(table.insert_many(pairs()).unwrap(), 0);
    let cost = db.stats().unwrap().counters.since(&before);
    assert_eq!(cost.ops(OpKind::Upsert), 5000);
    let tries = cost.kind(OpKind::Upsert).cas as f64 / 5000.0;
    assert!(tries < 1.1, "{tries} tries at a lock for each insert");
}

/// The first of the operations that a call has in flight waits for a session, the others take spare ones or
/// none. While the first one's was on its way they took themselves for first: 32 threads, as those of `farleaf
/// load -t 32`, had all of the pool's sessions and failed for want of more.
#[test]
fn many_threads_with_many_operations_in_flight_leave_sessions() {
    const THREADS: u32 = 32;
    let db = small();
    let table = db.create_table("t", TableOptions::default()).unwrap();
    let together = Barrier::new(THREADS as usize);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (table, together) = (&table, &together);
            scope.spawn(move || {
                together.wait();
                let pairs = (0..64).map(|at| (key(thread * 64 + at), "v"));
                let inserted = table.insert_many(pairs);
                // Each keeps its sessions until all have had theirs.
                together.wait();
                assert_eq!(inserted.unwrap(), 64);
            });
        }
    });
    let all = table.get_many((0..64 * THREADS).map(key)).unwrap();
    assert!(all.len() == 64 * THREADS as usize && all.iter().all(Option::is_some));
}
