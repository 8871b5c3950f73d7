//! Process tests: several processes on one pool, one of which is killed.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::common::{SharedPool, eventually, key};
use farleaf::{ErrorKind, Farleaf, TableOptions};

/// Names the pool to the second process.
const POOL: &str = "FARLEAF_TEST_POOL";

/// Not a test of its own: what the second process does. It writes until it is killed, and says
/// after every 100 keys how many are acknowledged.
#[test]
fn second_process() {
    let Some(uri) = std::env::var_os(POOL) else { return };
    let db = Farleaf::open(uri.to_str().unwrap()).unwrap();
    let table = db.table("t").unwrap();
    for number in (0..).step_by(2) {
        table.insert(key(number), key(number)).unwrap();
        table.insert("both", number.to_le_bytes()).unwrap();
        if number % 10 == 0 {
            table.remove(key(number)).unwrap();
        }
        if number % 200 == 0 {
            eprintln!("done {number}");
        }
    }
}

/// Not a test of its own: a process with more threads than the pool has sessions. Each keeps the one that
/// it has; the process says when there are no more, and waits to be killed.
#[test]
fn greedy_process() {
    let Some(uri) = std::env::var_os(POOL) else { return };
    let db = Farleaf::open(uri.to_str().unwrap()).unwrap();
    let table = db.table("t").unwrap();
    let mut threads = Vec::new();
    let full = loop {
        let table = table.clone();
        let (told, answer) = std::sync::mpsc::channel();
        threads.push(std::thread::spawn(move || {
            told.send(table.get("both").map(drop)).unwrap();
            std::thread::park();
        }));
        if let Err(error) = answer.recv().unwrap() {
            break error;
        }
    };
    assert_eq!(full.kind(), ErrorKind::Full, "{full}");
    assert!(full.to_string().contains("use fewer threads or processes"), "{full}");
    eprintln!("done {}", threads.len());
    std::thread::park();
}

/// Not a test of its own: a process that opens the pool until it takes no more compute servers, says how many
/// it has become, and waits to be killed.
#[test]
fn crowd_process() {
    let Some(uri) = std::env::var_os(POOL) else { return };
    let mut opened = Vec::new();
    let full = loop {
        let builder = Farleaf::builder().join_timeout(Duration::ZERO);
        match builder.open(uri.to_str().unwrap()) {
            Ok(db) => opened.push(db),
            Err(error) => break error,
        }
    };
    assert_eq!(full.kind(), ErrorKind::Full, "{full}");
    assert!(full.to_string().contains("close one, or try again when the leases"), "{full}");
    opened[0].table("t").unwrap().insert("crowd", "was here").unwrap();
    eprintln!("done {}", opened.len());
    std::thread::park();
}

/// The name under which the test program knows it.
fn process_name(name: &str) -> String {
    let module = module_path!().split_once("::").map(|(_, module)| format!("{module}::"));
    module.unwrap_or_default() + name
}

/// A pool with a table, which nobody has open.
fn with_table(name: &str) -> SharedPool {
    let scratch = SharedPool::new(name);
    let db = scratch.open();
    db.create_table("t", TableOptions::default()).unwrap();
    db.close().unwrap();
    scratch
}

fn start_second(scratch: &SharedPool) -> Child {
    start(scratch, "second_process")
}

fn start(scratch: &SharedPool, name: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([&process_name(name), "--exact", "--nocapture"])
        .env(POOL, scratch.uri())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// The last number that the process says it has done once it is killed, after at least `least`.
fn kill_after(child: Child, least: u32) -> u32 {
    kill_when(child, least, || {})
}

/// The same; `wait` comes between that number and the kill.
fn kill_when(mut child: Child, least: u32, wait: impl FnOnce()) -> u32 {
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut done = 0;
    for line in lines.by_ref() {
        let line = line.unwrap();
        let Some(number) = line.strip_prefix("done ") else { panic!("{line}") };
        done = number.parse().unwrap();
        if done >= least {
            break;
        }
    }
    wait();
    child.kill().unwrap();
    child.wait().unwrap();
    for line in lines {
        if let Some(number) = line.unwrap().strip_prefix("done ") {
            done = number.parse().unwrap_or(done);
        }
    }
    done
}

#[test]
fn a_killed_process_leaves_a_pool_that_works_and_adds_up() {
    let scratch = SharedPool::new("killed");
    let db = scratch.open();
    let table = db.create_table("t", TableOptions::default()).unwrap();
    for round in 0..scratch.rounds(3) {
        let child = start_second(&scratch);
        let writer = std::thread::spawn({
            let table = table.clone();
            move || {
                // Odd numbers, and one key that both write.
                for number in (1..20_000).step_by(2) {
                    table.insert(key(number), key(number)).unwrap();
                    table.insert("both", number.to_le_bytes()).unwrap();
                }
            }
        });
        let done = kill_after(child, 3000 + 777 * round);
        writer.join().unwrap();
        for number in 0..done {
            let expected = (number % 10 != 0).then(|| key(number));
            if number < 20_000 || number % 2 == 0 {
                assert_eq!(table.get(key(number)).unwrap(), expected, "{number} of {done}");
            }
        }
        eventually(Duration::from_secs(10), "the dead member is cleared away", || {
            table.insert("both", "again").unwrap();
            db.verify().unwrap().closes()
        });
        table.remove_many((0..done + 10_000).map(key)).unwrap();
    }
}

#[test]
fn opening_a_pool_clears_away_the_dead() {
    let scratch = with_table("alone");
    let done = kill_after(start_second(&scratch), 2000);
    scratch.await_death();
    let db = Farleaf::open(&scratch.uri()).unwrap();
    let report = db.verify().unwrap();
    assert!(report.closes(), "{report:?}");
    let table = db.table("t").unwrap();
    for number in (0..done).step_by(2) {
        assert_eq!(table.contains_key(key(number)).unwrap(), number % 10 != 0, "{number}");
    }
}

/// A dead process holds its sessions until it has been recovered, which takes one, too. Found by `farleaf check
/// processes --fabric tcp --seed 1`, where loads died one after the other before any lease was over: nobody
/// could open the pool any more.
#[test]
fn the_dead_keep_nobody_from_the_pool_by_the_sessions_that_they_had() {
    let scratch = with_table("greedy");
    assert!(kill_after(start(&scratch, "greedy_process"), 1) > 16);
    // At once the dead may count as alive, on a network: there is no room for operations.
    scratch.await_death();
    let db = Farleaf::open(&scratch.uri()).unwrap();
    db.table("t").unwrap().insert("both", "again").unwrap();
    assert!(db.verify().unwrap().closes());
}

/// An operation waits for a session while another process has them all, until that process is dead and recovered.
/// After many kills on a busy machine it failed after a second (`scripts/churn.sh`, 10 minutes: 11 of 1,978 loads).
#[test]
fn an_operation_waits_for_the_sessions_of_others() {
    let scratch = with_table("waiting");
    let greedy = start(&scratch, "greedy_process");
    let uri = scratch.uri();
    let insert = move || {
        let db = Farleaf::open(&uri).unwrap();
        db.table("t").and_then(|table| table.insert("both", "again"))
    };
    let mut waits = None;
    let sessions = kill_when(greedy, 1, || {
        waits = Some(std::thread::spawn(insert));
        std::thread::sleep(Duration::from_millis(1_500));
    });
    assert!(sessions > 16);
    assert!(waits.expect("begun").join().unwrap().is_ok());
}

/// The dead hold their entries of the member table until they have been recovered, which takes one, too. Nobody
/// could open a pool any more all of whose compute servers were dead, if they were as many as it takes.
#[test]
fn the_dead_keep_nobody_from_the_pool_by_their_number() {
    let scratch = with_table("crowd");
    let members = kill_after(start(&scratch, "crowd_process"), 1);
    assert!(members > 32, "{members}");
    scratch.await_death();
    let db = Farleaf::open(&scratch.uri()).unwrap();
    assert_eq!(db.compute_servers().unwrap().len(), 1);
    assert_eq!(db.table("t").unwrap().get("crowd").unwrap().as_deref(), Some(&b"was here"[..]));
    assert!(db.verify().unwrap().closes());
}
