//! Forwarding tests: several processes own parts of one table of `dex`, and all use all keys.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::ops::Range;
use std::process::{Child, ChildStderr, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::common::{SharedPool, eventually, key};
use farleaf::{Engine, ErrorKind, Farleaf, ServerName, Table, TableOptions};

/// Names the pool to another process.
const POOL: &str = "FARLEAF_TEST_DEX_POOL";

/// Not a test of its own: what another process does, a line of standard input after the other.
#[test]
fn other_process() {
    let Some(uri) = std::env::var_os(POOL) else { return };
    let db = Farleaf::open(uri.to_str().unwrap()).unwrap();
    let table = db.table("t").unwrap();
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words[at].parse::<u32>().unwrap();
        match words[0] {
            "name" => {
                let servers = table.compute_servers().unwrap();
                let own = servers.iter().find(|server| server.is_own).unwrap();
                eprintln!("{}", own.name);
            }
            "fill" => {
                fill(&table, number(1)..number(2));
                eprintln!("filled");
            }
            "check" => eprintln!("{}", check(&table, number(1))),
            "write" => write_forever(&table, number(1)),
            "close" => {
                drop(table);
                db.close().unwrap();
                eprintln!("closed");
                return;
            }
            other => panic!("{other}"),
        }
    }
}

fn fill(table: &Table, numbers: Range<u32>) {
    for number in numbers {
        table.insert(key(number), key(number)).unwrap();
    }
}

/// Writes numbers as keys until it is killed, and says how many are acknowledged.
fn write_forever(table: &Table, first: u32) {
    for number in first.. {
        while let Err(error) = table.insert(key(number), key(number)) {
            let kind = error.kind();
            assert!(matches!(kind, ErrorKind::Unavailable | ErrorKind::OutcomeUnknown), "{error}");
        }
        eprintln!("{number}");
    }
}

/// Returns whether the table holds these numbers and no others, by gets of some and by scans both ways.
fn check(table: &Table, count: u32) -> String {
    for number in (0..count).step_by(97) {
        assert_eq!(table.get(key(number)).unwrap(), Some(key(number)), "{number}");
    }
    assert_eq!(table.get(key(count)).unwrap(), None);
    let keys = |pairs: Vec<(Vec<u8>, Vec<u8>)>| pairs.into_iter().map(|(key, _)| key);
    let up: Vec<_> = keys(crate::common::collect(table.range(..))).collect();
    let down: Vec<_> = keys(crate::common::collect(table.range(..).rev())).rev().collect();
    assert_eq!(up, (0..count).map(key).collect::<Vec<_>>());
    assert_eq!(up, down);
    "as it should be".to_owned()
}

struct Peer {
    process: Child,
    input: ChildStdin,
    lines: Lines<BufReader<ChildStderr>>,
}

impl Peer {
    fn start(pool: &SharedPool) -> Peer {
        let module = module_path!().split_once("::").map(|(_, module)| format!("{module}::"));
        let name = module.unwrap_or_default() + "other_process";
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args([&name, "--exact", "--nocapture"])
            .env(POOL, pool.uri())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let input = process.stdin.take().unwrap();
        let lines = BufReader::new(process.stderr.take().unwrap()).lines();
        Peer { process, input, lines }
    }

    fn tell(&mut self, command: &str) {
        writeln!(self.input, "{command}").unwrap();
    }

    fn line(&mut self) -> String {
        let line = self.lines.next().unwrap().unwrap();
        if line.is_empty() {
            // A panic begins with an empty line.
            let rest: Vec<String> = self.lines.by_ref().map_while(Result::ok).take(6).collect();
            panic!("the other process has failed: {}", rest.join(" "));
        }
        line
    }

    fn ask(&mut self, command: &str) -> String {
        self.tell(command);
        self.line()
    }

    fn name(&mut self) -> ServerName {
        self.ask("name").parse().unwrap()
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Kills one that writes numbers from `first` on: all that it has said are in the table.
    fn kill_and_check(&mut self, table: &Table, first: u32) {
        self.kill();
        let mut last = 0;
        while let Some(Ok(line)) = self.lines.next() {
            last = line.parse().unwrap_or(last);
        }
        assert!(last > first + 10, "{last}");
        for number in first..=last {
            assert_eq!(table.get(key(number)).unwrap(), Some(key(number)), "{number} to {last}");
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A pool with a table of small nodes.
fn pool(name: &str) -> (SharedPool, Farleaf, Table) {
    let pool = SharedPool::new(name);
    let db = pool.open();
    let options = TableOptions::default().engine(Engine::Dex).set("node_bytes", "4096");
    let table = db.create_table("t", options).unwrap();
    (pool, db, table)
}

fn own_name(table: &Table) -> ServerName {
    table.compute_servers().unwrap().into_iter().find(|server| server.is_own).unwrap().name
}

fn owners(table: &Table) -> Vec<Option<ServerName>> {
    table.partitions().unwrap().into_iter().map(|partition| partition.owner).collect()
}

#[test]
fn any_process_answers_any_key_and_scans_cross_owners() {
    let (pool, db, table) = pool("forward");
    fill(&table, 0..1000);
    let me = own_name(&table);
    assert_eq!(owners(&table), [Some(me)]);
    let (mut second, mut third) = (Peer::start(&pool), Peer::start(&pool));
    assert_eq!(second.ask("check 1000"), "as it should be");
    assert_eq!(second.ask("fill 1000 2000"), "filled");
    assert_eq!(table.get(key(1500)).unwrap(), Some(key(1500)));
    assert_eq!(owners(&table), [Some(me)], "it has taken nothing");
    // Two thirds to the others.
    let names = [second.name(), third.name()];
    assert_eq!(third.ask("check 2000"), "as it should be");
    table.move_range(Some(&key(700)), None, names[0]).unwrap();
    table.move_range(Some(&key(1300)), None, names[1]).unwrap();
    assert_eq!(owners(&table), [Some(me), Some(names[0]), Some(names[1])]);
    assert_eq!(check(&table, 2000), "as it should be");
    assert_eq!(second.ask("check 2000"), "as it should be");
    assert_eq!(third.ask("check 2000"), "as it should be");
    // Every kind of operation on a key of another's.
    let foreign = key(1999);
    assert!(!table.insert_new(&foreign, "x").unwrap());
    assert!(table.update(&foreign, "y").unwrap());
    let found = table.compare_exchange(&foreign, Some(b"z"), None).unwrap();
    assert_eq!(found, farleaf::CompareExchange::Found(Some(b"y".to_vec())));
    let done = table.compare_exchange(&foreign, Some(b"y"), Some(&foreign)).unwrap();
    assert_eq!(done, farleaf::CompareExchange::Exchanged);
    assert!(table.remove(&foreign).unwrap());
    assert_eq!(table.insert_many([(&foreign, &foreign)]).unwrap(), 1);
    let refused = table.insert(vec![b'x'; 5000], "").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
    // More than one reply holds.
    let large = |n: u32| vec![n as u8; 100_000];
    let pairs = (0..60).map(|n| (key(1400 + n), large(n)));
    table.insert_many(pairs).unwrap();
    let from = key(1399);
    let found = crate::common::collect(table.range(from..key(1460)));
    assert_eq!(found.len(), 61);
    assert!((0..60).all(|n| found[n + 1].1 == large(n as u32)));
    fill(&table, 1400..1460);
    // Errors of moves.
    let kind = |result: farleaf::Result<()>| result.unwrap_err().kind();
    let (low, high) = (key(5), key(4));
    assert_eq!(kind(table.move_range(Some(&low), Some(&high), me)), ErrorKind::Invalid);
    assert_eq!(kind(table.move_range(None, None, me)), ErrorKind::Invalid, "of several");
    let nobody: ServerName = "0123456789abcdef".parse().unwrap();
    assert_eq!(kind(table.give_share(nobody).map(drop)), ErrorKind::NotFound);
    // A leaving member hands back what it has.
    assert_eq!(second.ask("close"), "closed");
    assert_eq!(third.ask("check 2000"), "as it should be");
    assert!(owners(&table).iter().all(|owner| owner.is_some_and(|owner| owner != names[0])));
    assert!(table.drain(names[1]).unwrap() >= 1);
    assert!(owners(&table).iter().all(|owner| *owner == Some(me)));
    assert_eq!(third.ask("close"), "closed");
    assert_eq!(check(&table, 2000), "as it should be");
    let report = db.verify().unwrap();
    assert!(report.closes(), "{report:?}");
}

/// A call on many keys sends each owner one message, and costs the waits of one key.
#[test]
fn an_owner_gets_one_message_for_a_batch() {
    let (pool, db, table) = pool("forward-batch");
    fill(&table, 0..1000);
    let (mut second, mut third) = (Peer::start(&pool), Peer::start(&pool));
    let names = [second.name(), third.name()];
    table.move_range(Some(&key(400)), None, names[0]).unwrap();
    table.move_range(Some(&key(700)), None, names[1]).unwrap();
    assert_eq!(check(&table, 1000), "as it should be");
    let calls = |work: &dyn Fn()| {
        let before = db.stats().unwrap().counters.total().calls;
        work();
        db.stats().unwrap().counters.total().calls - before
    };
    let of = |numbers: Range<u32>| numbers.map(key).collect::<Vec<_>>();
    let values = |numbers: Range<u32>| numbers.map(|number| Some(key(number))).collect::<Vec<_>>();
    assert_eq!(calls(&|| assert_eq!(table.get(key(500)).unwrap(), Some(key(500)))), 1);
    let get = |numbers: Range<u32>| {
        assert_eq!(table.get_many(of(numbers.clone())).unwrap(), values(numbers));
    };
    assert_eq!(calls(&|| get(500..532)), 1);
    assert_eq!(calls(&|| get(684..716)), 2, "of two owners");
    assert_eq!(calls(&|| get(384..416)), 1, "half of them are own");
    assert_eq!(calls(&|| get(0..32)), 0);
    let pairs = || of(600..632).into_iter().map(|key| (key.clone(), key));
    assert_eq!(calls(&|| assert_eq!(table.insert_many(pairs()).unwrap(), 0)), 1);
    let new: Vec<_> = (900..932).map(|number| [key(number), b"+".to_vec()].concat()).collect();
    let pairs = || new.iter().map(|key| (key, key));
    assert_eq!(calls(&|| assert_eq!(table.insert_many(pairs()).unwrap(), 32)), 1);
    assert_eq!(calls(&|| assert_eq!(table.remove_many(&new).unwrap(), 32)), 1);
    assert_eq!(calls(&|| assert_eq!(table.remove_many(&new).unwrap(), 0)), 1);
    // A key that the table does not take fails by itself.
    let long = [key(500), vec![b'x'; 5000]];
    assert_eq!(table.get_many(long).unwrap_err().kind(), ErrorKind::Invalid);
    // An owner that is gone: others take its keys.
    second.kill();
    get(500..532);
    assert_eq!(third.ask("check 1000"), "as it should be");
}

/// Threads that write until they are told to end, and what each has written at least.
fn under_load(table: &Table, threads: u32, act: impl FnOnce(&dyn Fn(u32))) -> BTreeMap<u32, u32> {
    let stop = AtomicBool::new(false);
    let rounds: Vec<AtomicU32> = (0..threads).map(|_| AtomicU32::new(0)).collect();
    let mut last = BTreeMap::new();
    thread::scope(|scope| {
        let writers: Vec<_> = (0..threads)
            .map(|thread| {
                let (stop, rounds) = (&stop, &rounds);
                scope.spawn(move || {
                    let mut written = BTreeMap::new();
                    for round in 1_u32.. {
                        if stop.load(Ordering::SeqCst) {
                            break;
                        }
                        for number in (thread..2000).step_by(threads as usize * 7) {
                            // Tried again until it is acknowledged: values only grow.
                            while let Err(error) = table.insert(key(number), round.to_be_bytes()) {
                                let may_be = [ErrorKind::Unavailable, ErrorKind::OutcomeUnknown];
                                assert!(may_be.contains(&error.kind()), "{error}");
                            }
                            written.insert(number, round);
                        }
                        rounds[thread as usize].store(round, Ordering::SeqCst);
                    }
                    written
                })
            })
            .collect();
        act(&|more| {
            let least = rounds.iter().map(|round| round.load(Ordering::SeqCst)).min().unwrap();
            eventually(Duration::from_secs(60), "writers go on", || {
                rounds.iter().all(|round| round.load(Ordering::SeqCst) >= least + more)
            });
        });
        stop.store(true, Ordering::SeqCst);
        writers.into_iter().for_each(|writer| last.extend(writer.join().unwrap()));
    });
    last
}

fn assert_holds(table: &Table, written: &BTreeMap<u32, u32>) {
    for (number, round) in written {
        let value = table.get(key(*number)).unwrap();
        assert_eq!(value, Some(round.to_be_bytes().to_vec()), "{number}");
    }
}

#[test]
fn an_owner_that_is_killed_under_load_loses_nothing_acknowledged() {
    let (pool, db, table) = pool("forward-killed");
    for round in 0..pool.rounds(3) {
        let (mut owner, mut writer) = (Peer::start(&pool), Peer::start(&pool));
        table.insert(key(0), "first").unwrap();
        table.move_range(Some(&key(1000)), None, owner.name()).unwrap();
        // Keys of the owner's that only a third process writes.
        writer.tell(&format!("write {}", 1_000_000 * (round + 1)));
        let written = under_load(&table, 4, |wait| {
            wait(3);
            owner.kill();
            wait(3);
        });
        assert_holds(&table, &written);
        writer.kill_and_check(&table, 1_000_000 * (round + 1));
    }
    let me = own_name(&table);
    assert!(owners(&table).iter().all(|owner| *owner == Some(me)));
    eventually(Duration::from_secs(20), "the dead members are cleared away", || {
        table.insert("both", "again").unwrap();
        db.verify().unwrap().closes()
    });
}

/// Processes that own the table or ask its owner, and end in order all the time: none fails.
#[test]
fn processes_that_come_and_go_in_order_fail_nobody() {
    const EACH: u32 = 20;
    let (pool, db, table) = pool("forward-come-and-go");
    table.insert(key(0), key(0)).unwrap();
    drop(table);
    db.close().unwrap();
    let rounds = pool.rounds(8);
    thread::scope(|scope| {
        for line in 0..3 {
            let pool = &pool;
            scope.spawn(move || {
                for round in 0..rounds {
                    let first = 1 + (line * rounds + round) * EACH;
                    let mut peer = Peer::start(pool);
                    assert_eq!(peer.ask(&format!("fill {first} {}", first + EACH)), "filled");
                    assert_eq!(peer.ask("close"), "closed");
                }
            });
        }
    });
    let db = pool.open();
    assert_eq!(check(&db.table("t").unwrap(), 1 + 3 * rounds * EACH), "as it should be");
}

#[test]
fn ranges_that_move_under_load_lose_nothing() {
    let (pool, db, table) = pool("forward-moved");
    let mut other = Peer::start(&pool);
    table.insert(key(0), "first").unwrap();
    let (me, name) = (own_name(&table), other.name());
    other.tell("write 1000000");
    let written = under_load(&table, 4, |wait| {
        for turn in 0..6 {
            table.move_range(Some(&key(500 + turn)), Some(&key(1500)), name).unwrap();
            table.move_range(Some(&key(1800)), None, name).unwrap();
            wait(1);
            assert!(table.drain(name).unwrap() >= 1);
            wait(1);
        }
        table.give_share(name).unwrap();
        wait(1);
    });
    assert!(owners(&table).contains(&Some(name)) && owners(&table).contains(&Some(me)));
    assert_holds(&table, &written);
    other.kill_and_check(&table, 1_000_000);
    assert_holds(&table, &written);
    eventually(Duration::from_secs(20), "the dead member is cleared away", || {
        table.insert("both", "again").unwrap();
        db.verify().unwrap().closes()
    });
}

/// The listener for others serves members of the pool alone.
#[test]
fn strangers_at_the_door_harm_nobody() {
    let (pool, _db, table) = pool("forward-strangers");
    table.insert(key(0), key(0)).unwrap();
    let servers = table.compute_servers().unwrap();
    // A folder's compute servers listen at sockets in it.
    let Some(address) = servers[0].address else { return };
    assert!(address.ip().is_loopback());
    let mut open = Vec::new();
    for greeting in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 64], b"FarleafP", &[0; 4096]] {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(greeting).unwrap();
        open.push(stream);
    }
    let mut other = Peer::start(&pool);
    assert_eq!(other.ask("fill 1 100"), "filled");
    for mut stream in open {
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        assert_eq!(stream.read(&mut [0; 64]).unwrap_or(0), 0, "closed without a word");
    }
    assert_eq!(check(&table, 100), "as it should be");
    let builder = Farleaf::builder().listen("0.0.0.0:0".parse().unwrap());
    let refused = builder.open(&pool.uri()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
    assert!(refused.to_string().contains("insecure_public"), "{refused}");
}

/// Both sides of a forwarder, as of a container: requests come in where others are told to ask.
#[test]
fn others_ask_where_a_compute_server_says_that_it_is_reached() {
    let (pool, _db, table) = pool("forward-advertise");
    if pool.uri().starts_with("shm:") {
        return;
    }
    for number in 0..100 {
        table.insert(key(number), key(number)).unwrap();
    }
    let gate = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = gate.local_addr().unwrap();
    let db = Farleaf::builder().advertise(address).open(&pool.uri()).unwrap();
    assert_eq!(db.listens().unwrap(), None);
    let own = db.serve().unwrap();
    assert_eq!(own.address, Some(address));
    let listens = db.listens().unwrap().unwrap();
    assert_ne!(listens, address);
    let told = db.compute_servers().unwrap();
    assert!(told.iter().any(|server| server.name == own.name && server.address == Some(address)));
    let taken = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&taken);
    thread::spawn(move || {
        for stream in gate.incoming() {
            count.fetch_add(1, Ordering::SeqCst);
            let (from, to) = (stream.unwrap(), TcpStream::connect(listens).unwrap());
            let back = (to.try_clone().unwrap(), from.try_clone().unwrap());
            for (mut from, mut to) in [(from, to), back] {
                thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(Shutdown::Both);
                });
            }
        }
    });
    let there = db.table("t").unwrap();
    there.move_range(None, None, own.name).unwrap();
    assert!(owners(&there).into_iter().all(|owner| owner == Some(own.name)));
    for number in 0..100 {
        assert_eq!(table.get(key(number)).unwrap(), Some(key(number)));
    }
    assert!(
        (1..=4).contains(&taken.load(Ordering::SeqCst)),
        "a connection for each thread that asks"
    );
    let all = Farleaf::builder().listen("0.0.0.0:0".parse().unwrap()).insecure_public(true);
    let refused = all.clone().open(&pool.uri()).unwrap_err();
    assert!(refused.to_string().contains("advertise"), "{refused}");
    all.advertise("127.0.0.1:0".parse().unwrap()).open(&pool.uri()).unwrap().close().unwrap();
}
