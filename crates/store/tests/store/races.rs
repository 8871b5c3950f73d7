//! Race tests: first operations, openings and drops of tables, by several threads and handles at once.
#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::thread;
use std::time::Duration;

use crate::common::{SharedPool, key, small};
use farleaf::{Engine, Farleaf, Table, TableOptions};

/// Threads that begin at the same moment.
const THREADS: u32 = 4;

/// Tables that each engine gets.
const TABLES: u32 = 60;

/// Time within which a call ends that waits for others.
const CALL_MAX: Duration = Duration::from_secs(60);

/// Engines whose keys have owners.
fn owned() -> impl Iterator<Item = Engine> {
    Engine::ALL.iter().copied().filter(|engine| engine.traits().owned)
}

/// The operations of which one is a thread's first.
fn begin(table: &Table, thread: u32, round: u32) {
    let own = key(thread);
    match (thread + round) % 4 {
        0 => assert_eq!(table.get(&own).unwrap(), None),
        1 => {
            let first = table.range(&own..).next().map(Result::unwrap);
            assert_ne!(first.map(|it| it.0), Some(own.clone()));
        }
        2 => assert!(!table.remove(&own).unwrap()),
        _ => {}
    }
    assert!(table.insert(&own, "1").unwrap());
    assert_eq!(table.insert_many([(own.clone(), "2"), (key(thread + 100), "2")]).unwrap(), 1);
    assert_eq!(table.get(&own).unwrap().as_deref(), Some(&b"2"[..]));
}

/// Calls `act` in all threads at the same moment.
fn at_once(act: impl Fn(u32) + Sync) {
    let barrier = Barrier::new(THREADS as usize);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (barrier, act) = (&barrier, &act);
            scope.spawn(move || {
                barrier.wait();
                act(thread);
            });
        }
    });
}

/// A thread met a key that nobody had, and another thread took it for this compute server. The first one looked the
/// key's owner up in the newer view, found that it was its own compute server, and refused the operation.
#[test]
fn first_operations_of_several_threads_are_not_refused() {
    let (alone, pool) = (small(), SharedPool::new("first"));
    let shared = pool.open();
    for engine in owned() {
        for round in 0..TABLES {
            let db = if round % 2 == 0 { &alone } else { &shared };
            let table = db.create_table("t", TableOptions::default().engine(engine)).unwrap();
            at_once(|thread| begin(&table, thread, round));
            assert_eq!(table.range(..).count(), 2 * THREADS as usize);
            db.drop_table("t").unwrap();
        }
    }
}

/// Threads of one store that open a table at the same moment get the same one. One of them once joined it when
/// another had just taken keys, and was told that its own compute server had it open already.
#[test]
fn openings_of_one_table_by_several_threads_are_one() {
    let pool = SharedPool::new("openings");
    let maker = Farleaf::builder().take_partitions(0).create(true).pool_bytes(64 << 20);
    let maker = maker.open(&pool.uri()).unwrap();
    let opener = Farleaf::builder().take_partitions(usize::MAX).open(&pool.uri()).unwrap();
    for &engine in Engine::ALL {
        for round in 0..20 {
            let name = format!("{engine}-{round}");
            maker.create_table(&name, TableOptions::default().engine(engine)).unwrap();
            at_once(|thread| begin(&opener.table(&name).unwrap(), thread, round));
            // A table with lines on compute servers goes once one of them alone has it open.
            if !engine.traits().exposes {
                opener.drop_table(&name).unwrap();
            }
        }
    }
}

/// Calls that go on beside drops, of several handles on one pool: each ends, with an error or without. (A drop stood
/// still for minutes: a handle whose threads had ended held the epoch, see `farleaf::maintain`.)
#[test]
fn drops_beside_operations_of_other_handles_end() {
    for &engine in Engine::ALL {
        for round in 0..3 {
            drop_beside_inserts(engine, round);
        }
    }
}

fn drop_beside_inserts(engine: Engine, round: u32) {
    let pool = SharedPool::new("drops");
    let dropper = pool.open();
    dropper.create_table("t", TableOptions::default().engine(engine)).unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let (tell, told) = mpsc::channel();
    // They stay open, and have nothing to do once their threads have ended.
    let handles = [(); 3].map(|()| pool.open());
    for (thread, handle) in (0..3).zip(&handles) {
        let (is_over, tell) = (Arc::clone(&is_over), tell.clone());
        let table = handle.table("t").unwrap();
        thread::spawn(move || {
            let (mut number, mut ended) = (thread, Ok(0));
            while number < 6_000 && !is_over.load(Ordering::Relaxed) && ended.is_ok() {
                ended = table.insert_many((0..30).map(|at| (key(number + 3 * at), [7; 100])));
                number += 90;
            }
            tell.send(()).unwrap();
        });
    }
    thread::sleep(Duration::from_millis(20 * u64::from(round)));
    let over = Arc::clone(&is_over);
    thread::spawn(move || {
        // A table that others own is not dropped.
        let _ = dropper.drop_table("t");
        over.store(true, Ordering::Relaxed);
        let _ = dropper.drop_table("t");
        tell.send(()).unwrap();
    });
    for _ in 0..4 {
        let ended = told.recv_timeout(CALL_MAX);
        assert_eq!(ended, Ok(()), "{engine}, round {round}: somebody waits for {CALL_MAX:?}");
    }
}

/// Three handles and four threads replaced the values of five keys. Each compute server kept blocks for itself for each
/// size of objects, so a pool of which a hundredth was in use refused values.
#[test]
fn handles_that_replace_values_of_all_sizes_share_a_small_pool() {
    const VALUE_BYTES_MAX: u32 = 70_000;
    let pool = SharedPool::new("sizes");
    let handles: Vec<Farleaf> = (0..3).map(|_| pool.open()).collect();
    // One handle drops what the others have open.
    let is_shared = |engine: &Engine| !engine.traits().owned && !engine.traits().exposes;
    for engine in Engine::ALL.iter().copied().filter(is_shared) {
        handles[0].create_table("t", TableOptions::default().engine(engine)).unwrap();
        let tables: Vec<Table> = handles.iter().map(|db| db.table("t").unwrap()).collect();
        at_once(|thread| {
            let table = &tables[thread as usize % tables.len()];
            for round in 0..pool.rounds(150) {
                let mixed = (thread * 7919 + round).wrapping_mul(2_654_435_761) >> 8;
                let value = vec![thread as u8; (mixed % VALUE_BYTES_MAX) as usize];
                table.insert(key(round % 5), &value).unwrap_or_else(|error| {
                    panic!(
                        "{engine}: thread {thread}, round {round}, {} bytes: {error}",
                        value.len()
                    )
                });
            }
        });
        assert_eq!(tables[0].range(..).count(), 5.min(pool.rounds(150) as usize), "{engine}");
        drop(tables);
        handles[0].drop_table("t").unwrap();
    }
}
