//! Stress example: uses one store from several threads with every kind of call.
//!
//! It gets, puts, removes and scans, uses the async API, and makes and drops tables. The sanitizers
//! (`make tsan`, `make asan`) look for data races and wild accesses meanwhile. At the end the example
//! verifies the store.
//!
//! `stress [THREADS] [ROUNDS]`: 4 threads and 2,000 rounds of each if not given.
#![allow(clippy::unwrap_used, reason = "a tool for developers")]

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use farleaf::{ErrorKind, Farleaf, KeyFormat, Table, TableOptions, ValueFormat};

/// Keys that the threads fight for.
const KEYS: u64 = 500;

fn main() {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse::<u64>().unwrap());
    let (threads, rounds) = (args.next().unwrap_or(4), args.next().unwrap_or(2_000));
    let db = Farleaf::builder().pool_bytes(64 << 20).open("mem:").unwrap();
    let fixed = TableOptions::default().keys(KeyFormat::Fixed(8)).values(ValueFormat::Fixed(8));
    let tables = [
        db.create_table("bytes", TableOptions::default()).unwrap(),
        db.create_table("fixed", fixed).unwrap(),
    ];
    thread::scope(|scope| {
        for number in 0..threads {
            let (db, tables) = (&db, &tables);
            scope.spawn(move || work(db, tables, number + 1, rounds));
        }
    });
    let report = db.verify().unwrap();
    let keys: Vec<u64> = report.tables.iter().map(|table| table.stats.keys).collect();
    assert!(report.tables.iter().all(|table| table.problems.is_empty()), "{report:?}");
    db.close().unwrap();
    println!("{threads} threads, {rounds} rounds each: {keys:?} keys left, no problem");
}

fn work(db: &Farleaf, tables: &[Table; 2], seed: u64, rounds: u64) {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for round in 0..rounds {
        let number = random();
        let table = &tables[(number >> 60) as usize % 2];
        let key = (random() % KEYS).to_be_bytes();
        match number % 100 {
            0..40 => drop(table.get(key).unwrap()),
            40..70 => drop(table.insert(key, round.to_le_bytes()).unwrap()),
            70..85 => drop(table.remove(key).unwrap()),
            85..90 => {
                table.range(key.as_slice()..).take(50).for_each(|pair| drop(pair.unwrap()));
            }
            90..95 => drop(wait(table.to_async().get(key)).unwrap()),
            95..97 => drop(db.stats().unwrap()),
            97 => drop(wait(table.to_async().insert(key, round.to_le_bytes())).unwrap()),
            _ => own_table(db, seed, round),
        }
    }
}

/// Makes a table, which another thread may be dropping, uses it and drops it.
fn own_table(db: &Farleaf, seed: u64, round: u64) {
    let name = format!("own-{}", seed / 2);
    let used = db.table_or_create(&name, TableOptions::default()).and_then(|table| {
        table.insert(round.to_be_bytes(), vec![7; (round % 50) as usize * 100])?;
        table.get(round.to_be_bytes())?;
        db.drop_table(&name)
    });
    match used {
        Ok(()) => {}
        // The other one was quicker.
        Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound, "{error}"),
    }
}

/// Runs a future on this thread.
fn wait<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}
