//! Tests of `dmtree` over TCP: compute servers come and go under load, and all die.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{SharedPool, eventually, key};
use farleaf::{Builder, Engine, ErrorKind, Farleaf, ServerName, Table, TableOptions};

/// Names the pool to another process.
const POOL: &str = "FARLEAF_TEST_DMTREE_POOL";
/// Names the first number that it inserts.
const FIRST: &str = "FARLEAF_TEST_DMTREE_FIRST";
/// Memory that each compute server exposes: the lines of a table take a sixteenth of the pool.
const EXPOSE_BYTES: u64 = 8 << 20;
/// No operation waits longer while compute servers come and go. This machine may be busy with other tests for as long, so
/// the bound of 100 ms is asserted in virtual time, `engines::dmtree::moves`.
const WAIT_MAX: Duration = Duration::from_secs(3);

fn builder() -> Builder {
    Farleaf::builder().create(true).expose_bytes(EXPOSE_BYTES)
}

fn open(pool: &SharedPool) -> Farleaf {
    builder().open(&pool.uri()).unwrap()
}

fn create(db: &Farleaf) -> Table {
    db.create_table("t", TableOptions::default().engine(Engine::DmTree)).unwrap()
}

fn own_name(table: &Table) -> ServerName {
    table.compute_servers().unwrap().into_iter().find(|server| server.is_own).unwrap().name
}

/// Partitions by their owners, of which nobody is left out.
fn owned(table: &Table) -> BTreeMap<ServerName, usize> {
    let shares = table.partition_shares().unwrap().into_iter();
    shares.map(|share| (share.owner.unwrap(), share.partitions)).collect()
}

/// The end of a load: the value of each key, and the longest wait for an operation.
type Written = (BTreeMap<u32, u32>, Duration);

/// Changes keys by all of `tables` until `act` has ended, which waits for more changes by its argument. None may fail.
fn under_load(tables: &[Table], act: impl FnOnce(&dyn Fn(&str))) -> Written {
    const KEYS: u32 = 1200;
    let (stop, changed) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut all = (BTreeMap::new(), Duration::ZERO);
    thread::scope(|scope| {
        let writers: Vec<_> = (0..)
            .zip(tables)
            .map(|(first, table): (u32, &Table)| {
                let (stop, changed) = (&stop, &changed);
                scope.spawn(move || {
                    let mut written: Written = Default::default();
                    for number in (first..KEYS).step_by(tables.len()).cycle() {
                        if stop.load(Ordering::SeqCst) {
                            break;
                        }
                        let round = written.0.get(&number).map_or(1, |round| round + 1);
                        let since = Instant::now();
                        table.insert(key(number), round.to_be_bytes()).unwrap();
                        written.1 = written.1.max(since.elapsed());
                        written.0.insert(number, round);
                        changed.fetch_add(1, Ordering::SeqCst);
                        if number % 7 == 0 {
                            let held = table.get(key(number)).unwrap();
                            assert_eq!(held, Some(round.to_be_bytes().to_vec()), "{number}");
                        }
                    }
                    written
                })
            })
            .collect();
        act(&|what| {
            let before = changed.load(Ordering::SeqCst);
            let goes_on = || changed.load(Ordering::SeqCst) > before + 300;
            eventually(Duration::from_secs(30), what, || {
                goes_on() || writers.iter().any(|writer| writer.is_finished())
            });
        });
        stop.store(true, Ordering::SeqCst);
        for writer in writers {
            let (values, longest) = writer.join().unwrap();
            all.0.extend(values);
            all.1 = all.1.max(longest);
        }
    });
    all
}

/// Two compute servers work, two more come, one is drained and leaves, another leaves with all that it has. No operation
/// fails, and nothing is lost.
#[test]
fn compute_servers_come_and_go_under_load() {
    let pool = SharedPool::new("dmtree-scale");
    let (first, second) = (open(&pool), open(&pool));
    let tables = [create(&first), second.table("t").unwrap()];
    let table = &tables[0];
    let (written, longest) = under_load(&tables, |more| {
        more("two compute servers");
        let (third_db, fourth_db) = (open(&pool), open(&pool));
        let joined = [third_db.table("t").unwrap(), fourth_db.table("t").unwrap()];
        more("four compute servers");
        let names = joined.each_ref().map(own_name);
        assert!(!table.give_share(names[0]).unwrap(), "it has taken its share");
        let shares = owned(table);
        assert!(shares.len() == 4 && shares.values().all(|count| *count > 10), "{shares:?}");
        assert_eq!(table.drain(names[0]).unwrap(), shares[&names[0]]);
        assert_eq!(owned(table)[&names[0]], 0);
        more("one is drained");
        assert!(table.give_share(names[0]).unwrap());
        assert_eq!(owned(table), shares);
        drop(joined);
        third_db.close().unwrap();
        more("one has left");
        assert_eq!(owned(table).len(), 3);
        fourth_db.close().unwrap();
        more("two have left");
    });
    println!("the longest wait was {longest:?}");
    assert!(longest < WAIT_MAX, "{longest:?}");
    assert_eq!(owned(table).len(), 2);
    let third = open(&pool);
    let reader = third.table("t").unwrap();
    assert_eq!(owned(table).len(), 3);
    for (number, round) in &written {
        let held = reader.get(key(*number)).unwrap();
        assert_eq!(held, Some(round.to_be_bytes().to_vec()), "{number}");
    }
    drop(reader);
    third.close().unwrap();
    drop(tables);
    second.close().unwrap();
    let report = first.verify().unwrap();
    assert!(report.closes(), "{report:?}");
}

/// The last with memory keeps its partitions; what goes by ranges of keys is refused with the reason.
#[test]
fn the_last_owner_keeps_its_partitions() {
    let pool = SharedPool::new("dmtree-last");
    let (first, plain) = (open(&pool), Farleaf::open(&pool.uri()).unwrap());
    let (table, same) = (create(&first), plain.table("t").unwrap());
    for number in 0..100 {
        same.insert(key(number), key(number)).unwrap();
    }
    let (me, other) = (own_name(&table), own_name(&same));
    let shares = owned(&table);
    assert_eq!(shares.keys().collect::<Vec<_>>(), [&me]);
    let error = same.drain(me).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.to_string().contains("no other compute server"), "{error}");
    assert_eq!(owned(&same), shares);
    assert_eq!(table.drain(other).unwrap(), 0, "it has nothing");
    let refused = |result: farleaf::Result<()>, what: &str| {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains(what), "{error}");
    };
    refused(table.give_share(other).map(drop), "exposes no memory");
    refused(table.move_range(None, None, other), "numbered and placed by a ring");
    refused(table.move_boundary(0, b"a"), "numbered and placed by a ring");
    refused(table.partitions().map(drop), "numbered and placed by a ring");
    let raw = first.create_table("raw", TableOptions::default()).unwrap();
    refused(raw.partition_shares().map(drop), "no numbered partitions");
    let nobody: ServerName = "0123456789abcdef".parse().unwrap();
    assert_eq!(table.drain(nobody).unwrap_err().kind(), ErrorKind::NotFound);
    // Its leaving is another matter: the lines go to memory servers.
    drop(table);
    first.close().unwrap();
    assert!(same.partition_shares().unwrap().iter().all(|share| share.owner.is_none()));
    for number in 0..100 {
        assert_eq!(same.get(key(number)).unwrap(), Some(key(number)));
        same.insert(key(number), "new").unwrap();
    }
}

/// Not a test of its own: what another process does.
#[test]
fn other_process() {
    let Some(uri) = std::env::var_os(POOL) else { return };
    let db = builder().open(uri.to_str().unwrap()).unwrap();
    let table = db.table("t").unwrap();
    let first: u32 = std::env::var(FIRST).unwrap().parse().unwrap();
    for number in first.. {
        // While the other one's death is in doubt, changes of its partitions may fail.
        while let Err(error) = table.insert(key(number), key(number)) {
            let kind = error.kind();
            assert!(matches!(kind, ErrorKind::Unavailable | ErrorKind::OutcomeUnknown), "{error}");
        }
        eprintln!("{number}");
    }
}

/// A process that inserts numbers from `first` on, and says which are acknowledged.
struct Inserting {
    process: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStderr>>,
    first: u32,
    last: u32,
}

impl Inserting {
    fn start(pool: &SharedPool, first: u32) -> Inserting {
        let module = module_path!().split_once("::").map(|(_, module)| format!("{module}::"));
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args([&(module.unwrap_or_default() + "other_process"), "--exact", "--nocapture"])
            .env(POOL, pool.uri())
            .env(FIRST, first.to_string())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stderr.take().unwrap()).lines();
        Inserting { process, lines, first, last: first }
    }

    /// Waits until so many more are acknowledged.
    fn wait(&mut self, count: u32) {
        for _ in 0..count {
            let line = self.lines.next().unwrap().unwrap();
            let number = line.parse();
            self.last = number.unwrap_or_else(|_| panic!("the other process has failed: {line}"));
        }
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// The numbers that it has said.
    fn acknowledged(&mut self) -> std::ops::RangeInclusive<u32> {
        while let Some(Ok(line)) = self.lines.next() {
            self.last = line.parse().unwrap_or(self.last);
        }
        self.first..=self.last
    }
}

impl Drop for Inserting {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// All compute servers are killed, and one comes back: all that was acknowledged is there, and every key can be changed.
#[test]
fn all_compute_servers_are_killed_and_one_comes_back() {
    let pool = SharedPool::new("dmtree-killed");
    let db = open(&pool);
    drop(create(&db));
    db.close().unwrap();
    let mut others = [Inserting::start(&pool, 0), Inserting::start(&pool, 1_000_000)];
    others.iter_mut().for_each(|other| other.wait(300));
    others.iter_mut().for_each(Inserting::kill);
    let db = open(&pool);
    let table = db.table("t").unwrap();
    for numbers in others.iter_mut().map(Inserting::acknowledged) {
        assert!(numbers.end() - numbers.start() >= 299, "{numbers:?}");
        for number in numbers {
            assert_eq!(table.get(key(number)).unwrap(), Some(key(number)), "{number}");
            eventually(Duration::from_secs(30), "it can be changed", || {
                match table.insert(key(number), "again") {
                    Ok(_) => true,
                    Err(error) if error.kind() == ErrorKind::Unavailable => false,
                    Err(error) => panic!("{error}"),
                }
            });
        }
    }
    assert_eq!(owned(&table).keys().collect::<Vec<_>>(), [&own_name(&table)]);
    let report = db.verify().unwrap();
    assert!(report.closes(), "{report:?}");
}

/// A forwarder in front of a compute server, which others reach through it. While it is cut, bytes stay where they are.
struct Link {
    address: SocketAddr,
    to: Arc<OnceLock<SocketAddr>>,
    is_cut: Arc<AtomicBool>,
}

impl Link {
    fn new() -> Link {
        let gate = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = gate.local_addr().unwrap();
        let (to, is_cut) = (Arc::<OnceLock<SocketAddr>>::default(), Arc::<AtomicBool>::default());
        let (leads_to, cut) = (Arc::clone(&to), Arc::clone(&is_cut));
        thread::spawn(move || {
            for from in gate.incoming() {
                let (from, cut) = (from.unwrap(), Arc::clone(&cut));
                let Ok(to) = TcpStream::connect(leads_to.wait()) else { continue };
                let back = (to.try_clone().unwrap(), from.try_clone().unwrap());
                for (from, to) in [(from, to), back] {
                    let cut = Arc::clone(&cut);
                    thread::spawn(move || forward(from, to, &cut));
                }
            }
        });
        Link { address, to, is_cut }
    }

    fn cut(&self, is_cut: bool) {
        self.is_cut.store(is_cut, Ordering::SeqCst);
    }
}

fn forward(mut from: TcpStream, mut to: TcpStream, is_cut: &AtomicBool) {
    let mut bytes = [0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        while is_cut.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(5));
        }
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}

/// The link to one compute server is cut: reads go on, changes of its partitions fail within 1.5 s with nothing done, and
/// others go on. Healed, all goes on: locks that were in doubt are given back, although the thread that asked for them is
/// idle.
#[test]
fn a_cut_link_between_compute_servers_stops_changes_of_its_partitions_alone() {
    // About 900 leaves, whose lines have one home for each 64.
    const KEYS: u32 = 20_000;
    let pool = SharedPool::new("dmtree-cut");
    let link = Link::new();
    let first = builder().advertise(link.address).open(&pool.uri()).unwrap();
    let table = create(&first);
    let listens = first.listens().unwrap().unwrap();
    link.to.set(listens).unwrap();
    let second = open(&pool);
    let other = second.table("t").unwrap();
    other.bulk_load((0..KEYS).map(|number| (key(number), "old"))).unwrap();
    assert!(owned(&other).values().all(|count| *count > 10), "{:?}", owned(&other));
    link.cut(true);
    let (mut changed, mut refused) = (Vec::new(), Vec::new());
    for number in (0..KEYS).step_by(KEYS as usize / 14) {
        let since = Instant::now();
        match other.insert(key(number), "new") {
            Ok(_) => changed.push(number),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                refused.push(number);
            }
        }
        let took = since.elapsed();
        assert!(took < Duration::from_millis(1500), "{number}: {took:?}, {changed:?} {refused:?}");
        let held = other.get(key(number)).unwrap().unwrap();
        let is_new = changed.last() == Some(&number);
        assert_eq!(held, if is_new { b"new" } else { b"old" }, "{number}");
    }
    assert!(!changed.is_empty() && !refused.is_empty(), "{changed:?} {refused:?}");
    let mut longest = Duration::ZERO;
    for number in (0..KEYS).step_by(61) {
        let since = Instant::now();
        assert!(other.get(key(number)).unwrap().is_some(), "{number}");
        longest = longest.max(since.elapsed());
    }
    println!("the longest read took {longest:?}");
    assert!(longest < WAIT_MAX, "{longest:?}");
    link.cut(false);
    let healed = Instant::now();
    for number in &refused {
        // By the compute server that has them.
        table.insert(key(*number), "newer").unwrap();
    }
    for number in refused {
        assert_eq!(other.get(key(number)).unwrap(), Some(b"newer".to_vec()));
        other.insert(key(number), "newest").unwrap();
    }
    println!("all can be changed {:?} after the link is there again", healed.elapsed());
    drop(other);
    second.close().unwrap();
    drop(table);
    let report = first.verify().unwrap();
    assert!(report.closes(), "{report:?}");
}

/// A compute server that closes while it cannot reach another one ends all the same, and says what it has left behind.
#[test]
fn a_compute_server_behind_a_cut_link_can_be_closed() {
    const KEYS: u32 = 20_000;
    let pool = SharedPool::new("dmtree-cut-close");
    let link = Link::new();
    let first = builder().advertise(link.address).open(&pool.uri()).unwrap();
    let table = create(&first);
    link.to.set(first.listens().unwrap().unwrap()).unwrap();
    let second = open(&pool);
    let other = second.table("t").unwrap();
    other.bulk_load((0..KEYS).map(|number| (key(number), "old"))).unwrap();
    link.cut(true);
    let is_refused = |number: &u32| other.insert(key(*number), "new").is_err();
    let refused = (0..KEYS).step_by(KEYS as usize / 14).find(is_refused).unwrap();
    drop(other);
    let since = Instant::now();
    let error = second.close().unwrap_err();
    println!("refused to close after {:?}: {error}", since.elapsed());
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(since.elapsed() < Duration::from_secs(30), "{:?}", since.elapsed());
    eventually(Duration::from_secs(60), "it can be changed", || {
        match table.insert(key(refused), "newer") {
            Ok(_) => true,
            Err(error) if error.kind() == ErrorKind::Unavailable => false,
            Err(error) => panic!("{error}"),
        }
    });
    link.cut(false);
    assert_eq!(owned(&table).keys().collect::<Vec<_>>(), [&own_name(&table)]);
    drop(table);
    eventually(Duration::from_secs(60), "the other one is recovered", || {
        first.verify().unwrap().closes()
    });
}
