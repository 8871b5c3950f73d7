//! Handover: the time that a line of the processor's cache takes from one thread to another.
//!
//! ```text
//! cargo run --release -p farleaf-fabric --example handover [ROUNDS]
//! ```
//!
//! Two threads change one line in turn: alone, as the holder's place of a lock, and as a lock with the content behind it.
//! One thread does the same for comparison. It takes two idle processors. The simulator's `CpuConfig::handover_ns` stands
//! for the first of these times in experiments about contention.
#![allow(clippy::disallowed_methods, reason = "it measures threads of the system in real time")]

use std::hint::spin_loop;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

#[repr(align(128))]
struct Line(AtomicU64);

#[repr(align(128))]
struct Locked(Mutex<[u64; 6]>);

/// Nanoseconds of each of `rounds` calls of `change` by each of `threads` threads.
fn each_ns(threads: u64, rounds: u64, change: impl Fn(u64, u64) + Sync) -> f64 {
    let began = Instant::now();
    thread::scope(|scope| {
        for thread in 0..threads {
            let change = &change;
            scope.spawn(move || (0..rounds).for_each(|round| change(thread, round)));
        }
    });
    began.elapsed().as_nanos() as f64 / (rounds * threads) as f64
}

fn main() {
    let rounds = std::env::args().nth(1).map_or(Ok(2_000_000), |rounds| rounds.parse());
    let Ok(rounds @ 1..) = rounds else {
        eprintln!("handover: the number of rounds is 1 or more");
        std::process::exit(2);
    };
    let line = Line(AtomicU64::new(0));
    let one = each_ns(1, rounds, |_, _| {
        line.0.fetch_add(1, Ordering::AcqRel);
    });
    line.0.store(0, Ordering::Release);
    // Thread 0 makes even numbers odd, thread 1 odd ones even.
    let two = each_ns(2, rounds, |thread, round| {
        while line.0.load(Ordering::Acquire) != round * 2 + thread {
            spin_loop();
        }
        line.0.store(round * 2 + thread + 1, Ordering::Release);
    });
    let locked = Locked(Mutex::new([0; 6]));
    let count = |_, round: u64| {
        if let Ok(mut content) = locked.0.lock() {
            content[round as usize % 6] += 1;
        }
    };
    let (alone, beside) = (each_ns(1, rounds, count), each_ns(2, rounds, count));
    println!("a line, by one thread          {one:7.1} ns");
    println!("a line, by two in turn         {two:7.1} ns");
    println!("a lock, by one thread          {alone:7.1} ns");
    println!("a lock, by two at once         {beside:7.1} ns");
}
