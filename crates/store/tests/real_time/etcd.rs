//! Directory tests: open stores by the name of their cluster, on a real etcd.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../../../cluster/tests/common/etcd.rs"]
mod server;

use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{block_on, key};
use farleaf::{Engine, ErrorKind, EtcdAccess, Farleaf, TableOptions};
use farleaf_cluster::{Directory, MemoryRecord, MemoryRegistration, Way};
use farleaf_harness::LoopbackServers;
use server::{Server, eventually};

const LONG: Duration = Duration::from_secs(30);
const REGION_BYTES: u64 = 32 << 20;
/// Those who are silent for so long are dead to memory servers.
const LEASE: Duration = Duration::from_secs(2);

/// Memory servers of this process that are registered, and a thread that keeps them so.
struct Memory {
    servers: LoopbackServers,
    directory: Directory,
    registrations: Vec<MemoryRegistration>,
}

impl Memory {
    fn start(etcd: &Server, count: usize) -> Memory {
        let directory = Directory::with(&etcd.address("c"), &EtcdAccess::default());
        let servers = LoopbackServers::start(count, REGION_BYTES, LEASE).unwrap();
        let mut memory = Memory { servers, directory, registrations: Vec::new() };
        for number in 0..count {
            memory.enter(number);
        }
        memory
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        self.servers.addresses()
    }

    fn enter(&mut self, number: usize) {
        let numbers = (number as u16, self.servers.0.len() as u16);
        let record = MemoryRecord::new(self.addresses()[number], numbers, REGION_BYTES, None);
        self.registrations.push(self.directory.register_memory(record).unwrap());
    }

    /// Runs `test` while the entries are kept.
    fn while_kept(&mut self, test: impl FnOnce()) {
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::SeqCst) {
                    // While etcd is away, this fails.
                    self.registrations
                        .iter_mut()
                        .for_each(|registration| drop(registration.keep(None)));
                    thread::sleep(Duration::from_millis(200));
                }
            });
            let _stops = Stops(&stop);
            test();
        });
    }
}

/// Also if the test fails.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn create(uri: &str) -> Farleaf {
    Farleaf::builder().create(true).open(uri).unwrap()
}

#[test]
fn a_pool_is_opened_by_the_name_of_its_cluster() {
    let Some(etcd) = server::start("a_pool_is_opened_by_the_name_of_its_cluster") else { return };
    let uri = etcd.uri("c");
    let fails = |kind: ErrorKind, what: &str| {
        let error = Farleaf::connect(&uri).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(what), "{error}");
        assert!(error.to_string().contains(&uri), "{error}");
    };
    fails(ErrorKind::NoPool, "knows no cluster \"c\"");
    let mut memory = Memory::start(&etcd, 2);
    let addresses = memory.addresses();
    let directory = memory.directory.clone();
    memory.while_kept(|| {
        fails(ErrorKind::NoPool, "not formatted");
        let db = create(&uri);
        let table = db.create_table("t", TableOptions::default()).unwrap();
        table.insert("a", "1").unwrap();
        assert!(db.cluster().unwrap().is_registered);
        // The same pool, whichever way; who opens it by addresses is in no cluster.
        let text: Vec<String> = addresses.iter().map(SocketAddr::to_string).collect();
        let other = Farleaf::connect(&format!("tcp://{}", text.join(","))).unwrap();
        assert_eq!(other.cluster(), None);
        assert_eq!(other.table("t").unwrap().get("a").unwrap().as_deref(), Some(&b"1"[..]));
        assert_eq!(Farleaf::builder().locate(&uri).unwrap().addresses, addresses);
        let again = Farleaf::connect(&uri).unwrap();
        assert_eq!(block_on(again.table("t").unwrap().to_async().get("a")).unwrap().unwrap(), b"1");

        let snapshot = directory.look().unwrap();
        assert_eq!(snapshot.compute.len(), 2);
        assert!(snapshot.compute.values().all(|it| !it.serves && it.address.is_none()));
        again.close().unwrap();
        db.close().unwrap();
        let snapshot = directory.look().unwrap();
        assert_eq!((snapshot.compute.len(), snapshot.coordinator), (0, None));
        assert_eq!(snapshot.pool.unwrap().servers, 2);
        // Another pool than the cluster had.
        etcd.client()
            .put("/farleaf/c/pool", &format!("{{\"id\":\"{:032x}\",\"servers\":2}}", 7), None)
            .unwrap();
        fails(ErrorKind::Invalid, "is of pool 00000000000000000000000000000007");
        etcd.client().put("/farleaf/c/pool", "7", None).unwrap();
        fails(ErrorKind::Corrupt, "/farleaf/c/pool");
    });
    let nobody = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap();
    let error = Farleaf::connect(&format!("etcd://{nobody}/c")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("etcd cannot be reached"), "{error}");
}

/// Entries that say verbs are opened so; no card is needed to find that out.
#[test]
fn a_cluster_says_by_which_fabric_it_is_reached() {
    let Some(etcd) = server::start("a_cluster_says_by_which_fabric_it_is_reached") else { return };
    let directory = Directory::with(&etcd.address("c"), &EtcdAccess::default());
    let at = SocketAddr::from(([127, 0, 0, 1], 9));
    let record = MemoryRecord::new(at, (0, 1), REGION_BYTES, None);
    let locate = |query: &str| Farleaf::builder().locate(&format!("{}{query}", etcd.uri("c")));
    let registration = directory.register_memory(record).unwrap();
    assert_eq!(locate("").unwrap().uri(), "tcp://127.0.0.1:9");
    let error = locate("?device=mlx5_0").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("\"c\" are reached by TCP: ?device=mlx5_0 is"), "{error}");
    registration.leave().unwrap();
    let _registration = directory.register_memory(record.by(Way::Verbs)).unwrap();
    assert_eq!(locate("").unwrap().uri(), "verbs://127.0.0.1:9");
    let with_card = locate("?device=mlx5_0&mtu=1024").unwrap();
    assert_eq!(with_card.uri(), "verbs://127.0.0.1:9?device=mlx5_0&mtu=1024");
    // Nobody listens there; and it is not TCP that is tried.
    let error = Farleaf::connect(&format!("{}?device=none_here", etcd.uri("c"))).unwrap_err();
    assert!(!error.to_string().contains("reached by TCP"), "{error}");
}

/// Names the pool to another process.
const POOL: &str = "FARLEAF_TEST_CLUSTER";

/// Not a test of its own: another process that has written, says so, and waits to be killed.
#[test]
fn other_process() {
    let Some(uri) = std::env::var_os(POOL) else { return };
    let db = Farleaf::connect(uri.to_str().unwrap()).unwrap();
    let table = db.table("t").unwrap();
    for number in 0..500 {
        table.insert(key(number), "by another").unwrap();
    }
    eprintln!("written");
    let _ = std::io::stdin().read(&mut [0]);
}

fn other(uri: &str) -> Child {
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args(["etcd::other_process", "--exact", "--nocapture"])
        .env(POOL, uri)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(process.stderr.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "written\n");
    process
}

/// Nobody uses the pool, so nobody's operations come upon the dead; the coordinator does.
#[test]
fn the_coordinator_recovers_from_a_death_that_nobody_would_notice() {
    let name = "the_coordinator_recovers_from_a_death_that_nobody_would_notice";
    let Some(etcd) = server::start(name) else { return };
    let uri = etcd.uri("c");
    let mut memory = Memory::start(&etcd, 2);
    let directory = memory.directory.clone();
    memory.while_kept(|| {
        let db = create(&uri);
        db.create_table("t", TableOptions::default()).unwrap();
        eventually(LONG, "it is elected", || db.cluster().unwrap().is_coordinator);
        let mut victim = other(&uri);
        let members = || db.compute_servers().unwrap().len();
        assert_eq!((members(), directory.look().unwrap().compute.len()), (2, 2));
        victim.kill().unwrap();
        victim.wait().unwrap();
        // Looking at the members wakes whoever keeps the store in order, who would notice in time: so not
        // before it has been done.
        thread::sleep(Duration::from_secs(7));
        assert_eq!(members(), 1, "it was taken over from, and its place is free");
        assert_eq!(directory.look().unwrap().compute.len(), 1);
        let table = db.table("t").unwrap();
        assert_eq!(table.range(..).count(), 500);
        drop(table);
        assert!(db.verify().unwrap().closes());
        db.close().unwrap();
    });
}

/// The coordinator is killed: another process takes the office, and recovers from it.
#[test]
fn a_dead_coordinator_is_followed_by_another() {
    let Some(etcd) = server::start("a_dead_coordinator_is_followed_by_another") else { return };
    let uri = etcd.uri("c");
    let mut memory = Memory::start(&etcd, 1);
    let directory = memory.directory.clone();
    memory.while_kept(|| {
        let first = create(&uri);
        first.create_table("t", TableOptions::default()).unwrap();
        let mut victim = other(&uri);
        first.close().unwrap();
        eventually(LONG, "the other is elected", || {
            directory.look().unwrap().coordinator.is_some()
        });
        let db = Farleaf::connect(&uri).unwrap();
        assert!(!db.cluster().unwrap().is_coordinator);
        victim.kill().unwrap();
        victim.wait().unwrap();
        let took = eventually(LONG, "it follows", || db.cluster().unwrap().is_coordinator);
        println!("elected {took:?} after the death of the coordinator");
        thread::sleep(Duration::from_secs(2));
        assert_eq!(db.compute_servers().unwrap().len(), 1);
        db.close().unwrap();
    });
}

/// Reads and writes go on without etcd, and entries come back with it.
#[test]
fn the_loss_of_etcd_stops_nobody_who_has_the_pool_open() {
    let Some(mut etcd) = server::start("the_loss_of_etcd_stops_nobody_who_has_the_pool_open")
    else {
        return;
    };
    let uri = etcd.uri("c");
    let mut memory = Memory::start(&etcd, 1);
    let directory = memory.directory.clone();
    memory.while_kept(|| {
        let db = create(&uri);
        let table = db.create_table("t", TableOptions::default()).unwrap();
        eventually(LONG, "it is elected", || db.cluster().unwrap().is_coordinator);
        etcd.kill();
        for number in 0..1000 {
            table.insert(key(number), key(number)).unwrap();
        }
        eventually(LONG, "it finds etcd gone", || !db.cluster().unwrap().is_registered);
        for number in 0..1000 {
            assert_eq!(table.get(key(number)).unwrap(), Some(key(number)));
        }
        let error = Farleaf::connect(&uri).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        etcd.restart();
        eventually(LONG, "it has its entry again", || {
            db.cluster().unwrap().is_registered && directory.look().unwrap().compute.len() == 1
        });
        assert_eq!(Farleaf::connect(&uri).unwrap().table("t").unwrap().range(..).count(), 1000);
        // Closing does not hang on etcd either.
        etcd.kill();
        drop(table);
        db.close().unwrap();
    });
}

/// Acknowledgements of a client under load: how many inserts were acknowledged, and the longest that one took.
#[derive(Default)]
struct Told {
    count: AtomicU32,
    slowest_ms: AtomicU32,
}

/// Under load of two compute servers, on a table whose keys have owners, etcd is stopped and goes on, is killed
/// and starts again: nobody waits for it, and all entries come back with it.
#[test]
fn etcd_is_stopped_and_killed_under_load_and_nobody_waits_for_it() {
    let Some(mut etcd) =
        server::start("etcd_is_stopped_and_killed_under_load_and_nobody_waits_for_it")
    else {
        return;
    };
    let uri = etcd.uri("c");
    let mut memory = Memory::start(&etcd, 2);
    let directory = memory.directory.clone();
    memory.while_kept(|| {
        let stores = [create(&uri), Farleaf::connect(&uri).unwrap()];
        stores[0].create_table("t", TableOptions::default().engine(Engine::Dex)).unwrap();
        let (stop, told) = (AtomicBool::new(false), [Told::default(), Told::default()]);
        thread::scope(|scope| {
            let stops = Stops(&stop);
            for (number, (store, told)) in stores.iter().zip(&told).enumerate() {
                let (table, stop) = (store.table("t").unwrap(), &stop);
                scope.spawn(move || {
                    while !stop.load(Ordering::SeqCst) {
                        let count = told.count.load(Ordering::SeqCst);
                        let from = Instant::now();
                        // No operation is refused: etcd is asked for none.
                        table.insert(key(count * 2 + number as u32), key(count)).unwrap();
                        let took = from.elapsed().as_millis() as u32;
                        told.slowest_ms.fetch_max(took, Ordering::SeqCst);
                        told.count.store(count + 1, Ordering::SeqCst);
                    }
                });
            }
            let counts = || told.each_ref().map(|told| told.count.load(Ordering::SeqCst));
            let goes_on = |what: &str| {
                let before = counts();
                eventually(LONG, what, || {
                    counts().iter().zip(before).all(|(count, before)| *count > before + 200)
                });
            };
            let are_registered =
                || stores.iter().all(|store| store.cluster().unwrap().is_registered);
            goes_on("both work");
            etcd.signal("STOP");
            eventually(LONG, "they find it silent", || {
                stores.iter().all(|store| !store.cluster().unwrap().is_registered)
            });
            goes_on("both work while it is stopped");
            let asked = Instant::now();
            let error = Farleaf::connect(&uri).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            assert!(asked.elapsed() < LONG, "{:?}", asked.elapsed());
            etcd.signal("CONT");
            eventually(LONG, "it knows them again", are_registered);
            etcd.kill();
            goes_on("both work while it is gone");
            etcd.restart();
            eventually(LONG, "they have their entries again", || {
                are_registered() && directory.look().unwrap().compute.len() == 2
            });
            goes_on("both work when it is back");
            drop(stops);
        });
        let third = Farleaf::connect(&uri).unwrap().table("t").unwrap();
        for (number, told) in told.iter().enumerate() {
            for count in 0..told.count.load(Ordering::SeqCst) {
                let found = third.get(key(count * 2 + number as u32)).unwrap();
                assert_eq!(found, Some(key(count)), "{count} of {number}");
            }
            let slowest = Duration::from_millis(told.slowest_ms.load(Ordering::SeqCst).into());
            assert!(slowest < Duration::from_secs(5), "an operation took {slowest:?}");
        }
    });
}
