//! Read cost on mapped memory: compares READs with `memcpy`, and the async with the synchronous client.
//!
//! The async and the synchronous lookup are the same. One thread, wall clock.
//!
//! `cargo run --release -p farleaf-fabric --example mapped_rate [repeats]`
//!
//! Every measurement alternates between the two sides within one run and reports medians. The next
//! address depends on all words of the last READ, so that READs overlap no more than an index allows.
//! The fabric asks for huge pages; `GLIBC_TUNABLES=glibc.malloc.hugetlb=1` gives the other side the
//! same. Both sides walk the same addresses over the same data; their sums must agree.
#![allow(clippy::disallowed_methods, reason = "it measures real time")]

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use farleaf_fabric::mapped::{Mapped, MappedEndpoint};
use farleaf_fabric::{Client, Endpoint, Fabric, GlobalAddr, OpError, OpKind, ServerId, Words};

/// Words of a node: 1 KiB.
const NODE_WORDS: usize = 128;
/// Bytes of the large region.
const LARGE_BYTES: usize = 1 << 30;
/// Bytes of the region that fits a core's own cache.
const SMALL_BYTES: usize = 256 << 10;
/// Levels of a lookup.
const LEVELS: usize = 4;
const SERVER: ServerId = ServerId(0);

fn main() -> ExitCode {
    let repeats = std::env::args().nth(1).and_then(|count| count.parse().ok()).unwrap_or(9);
    let large = Both::new(LARGE_BYTES);
    println!("medians of {repeats} interleaved repeats, ns");
    println!("{:<44} {:>9} {:>9} {:>7}  bar", "", "baseline", "READ", "ratio");
    let mut all_hold = true;
    let mut report = |name: &str, bar: Bar, pair: (f64, f64)| all_hold &= bar.report(name, pair);

    report("64 B in 256 KiB", Bar::More(10.0), large.reads(SMALL_BYTES, 8, 200_000, repeats));
    report("1 KiB in 256 KiB", Bar::More(30.0), large.reads(SMALL_BYTES, 128, 100_000, repeats));
    report(
        "1 KiB random in 1 GiB",
        Bar::Times(1.25),
        large.reads(LARGE_BYTES, 128, 40_000, repeats),
    );
    let times = Bar::Times(1.25);
    report("4-level lookup in 256 KiB", times, large.lookups(SMALL_BYTES, 25_000, repeats));
    report("4-level lookup in 1 GiB", times, large.lookups(LARGE_BYTES, 10_000, repeats));
    if all_hold { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Limit that a figure must keep beside its baseline.
#[derive(Clone, Copy)]
enum Bar {
    /// At most so many nanoseconds more.
    More(f64),
    /// At most so many times as much.
    Times(f64),
}

impl Bar {
    fn report(self, name: &str, (baseline, ours): (f64, f64)) -> bool {
        let (holds, bar) = match self {
            Bar::More(ns) => (ours <= baseline + ns, format!("+{ns} ns")),
            Bar::Times(times) => (ours <= baseline * times, format!("x {times}")),
        };
        let verdict = if holds { "PASS" } else { "FAIL" };
        let ratio = ours / baseline;
        println!("{name:<44} {baseline:>9.1} {ours:>9.1} {ratio:>7.2}  {bar:<8} {verdict}");
        holds
    }
}

/// The same random words in plain memory, in a bare region and behind the fabric.
struct Both {
    plain: Vec<u64>,
    bare: Words,
    endpoint: MappedEndpoint,
}

impl Both {
    fn new(bytes: usize) -> Both {
        let mut rng = fastrand::Rng::with_seed(1);
        let plain: Vec<u64> = (0..bytes / 8).map(|_| rng.u64(..)).collect();
        let bare = Words::anonymous(plain.len()).expect("memory for the bare region");
        bare.store(0, &plain);
        let fabric = Mapped::anonymous(1, bytes as u64).expect("memory for the fabric's region");
        let endpoint = fabric.endpoint().expect("an endpoint");
        endpoint.executor().block_on(async {
            let mut buf = endpoint.buf(1 << 20);
            for (index, chunk) in plain.chunks(buf.len() / 8).enumerate() {
                buf.words_mut().copy_from_slice(chunk);
                let to = GlobalAddr::new(SERVER, (index * buf.len()) as u64);
                buf = endpoint.write(to, buf).await.expect("in bounds");
            }
        });
        Both { plain, bare, endpoint }
    }

    /// `memcpy` and READ of `words` words at random places of the first `bytes`: ns each.
    fn reads(&self, bytes: usize, words: usize, count: usize, repeats: usize) -> (f64, f64) {
        let mask = bytes / 8 / words - 1;
        let client = Client::new(self.endpoint.clone());
        let copy = || {
            let mut into = vec![0; words];
            let mut sum = 0;
            for step in 0..count {
                let at = next(sum, step, mask) * words;
                into.copy_from_slice(&self.plain[at..at + words]);
                sum = consume(sum, black_box(&into));
            }
            sum
        };
        let read = || {
            let sum: Result<u64, OpError> = self.endpoint.executor().block_on(async {
                let mut buf = client.buf(words * 8);
                let mut sum = 0;
                for step in 0..count {
                    let at = next(sum, step, mask) * words * 8;
                    buf = client.read(GlobalAddr::new(SERVER, at as u64), buf).await?;
                    sum = consume(sum, black_box(buf.words()));
                }
                Ok(sum)
            });
            sum.expect("all addresses are inside")
        };
        interleave(count, repeats, copy, read)
    }

    /// A lookup of [`LEVELS`] dependent nodes, synchronous over [`Words`] and through the client:
    /// ns each. Both search the node for a separator, as a tree would, and count.
    fn lookups(&self, bytes: usize, count: usize, repeats: usize) -> (f64, f64) {
        let mask = bytes / 8 / NODE_WORDS - 1;
        let client = Client::new(self.endpoint.clone());
        let counts = Counts::default();
        let direct = || {
            let mut into = [0; NODE_WORDS];
            let mut sum = 0;
            for step in 0..count {
                counts.begin();
                for level in 0..LEVELS {
                    let at = next(sum, step * LEVELS + level, mask) * NODE_WORDS;
                    counts.read(NODE_WORDS as u64 * 8);
                    self.bare.load(at, &mut into);
                    sum = consume(sum, black_box(&into));
                }
            }
            sum
        };
        let through_client = || {
            let sum: Result<u64, OpError> = self.endpoint.executor().block_on(async {
                let mut sum = 0;
                for step in 0..count {
                    sum = lookup(&client, sum, step, mask).await?;
                }
                Ok(sum)
            });
            sum.expect("all addresses are inside")
        };
        interleave(count, repeats, direct, through_client)
    }
}

/// One lookup as an engine writes it: a counted operation, a buffer of its own.
async fn lookup(
    client: &Client<MappedEndpoint>,
    mut sum: u64,
    step: usize,
    mask: usize,
) -> Result<u64, OpError> {
    client.begin(OpKind::Get);
    let mut buf = client.buf(NODE_WORDS * 8);
    for level in 0..LEVELS {
        let at = next(sum, step * LEVELS + level, mask) * NODE_WORDS * 8;
        buf = client.read(GlobalAddr::new(SERVER, at as u64), buf).await?;
        sum = consume(sum, black_box(buf.words()));
    }
    Ok(sum)
}

/// The next place, which depends on every word read so far and never falls into a short cycle.
#[inline(always)]
fn next(sum: u64, step: usize, mask: usize) -> usize {
    ((sum ^ step as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & mask
}

#[inline(always)]
fn consume(sum: u64, words: &[u64]) -> u64 {
    words.iter().fold(sum, |sum, word| sum.wrapping_add(*word))
}

/// The client's counters for a READ and for an operation, counted by hand in the same way.
#[derive(Default)]
struct Counts {
    ops: AtomicU64,
    reads: AtomicU64,
    round_trips: AtomicU64,
    bytes_read: AtomicU64,
}

impl Counts {
    fn begin(&self) {
        bump(&self.ops, 1);
    }

    fn read(&self, bytes: u64) {
        bump(&self.reads, 1);
        bump(&self.round_trips, 1);
        bump(&self.bytes_read, bytes);
    }
}

fn bump(count: &AtomicU64, by: u64) {
    count.store(count.load(Ordering::Relaxed) + by, Ordering::Relaxed);
}

/// Runs both sides in turn, each first in every other round; returns their medians per step.
fn interleave(
    count: usize,
    repeats: usize,
    baseline: impl Fn() -> u64,
    ours: impl Fn() -> u64,
) -> (f64, f64) {
    let sides: [&dyn Fn() -> u64; 2] = [&baseline, &ours];
    assert_eq!(baseline(), ours(), "both sides must read the same words");
    let mut times = [Vec::new(), Vec::new()];
    for round in 0..repeats {
        for side in [round % 2, 1 - round % 2] {
            let start = Instant::now();
            black_box(sides[side]());
            times[side].push(start.elapsed().as_nanos() as f64 / count as f64);
        }
    }
    let [baseline, ours] = times.map(median);
    (baseline, ours)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
