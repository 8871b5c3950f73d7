//! Hot leaves in `dex`: measures combined changes of hot leaves, on threads and in the simulator.
//!
//! With `DexOptions::combine` the holder of a hot leaf's latch does others' changes together with its
//! own. The example gives operations per second and latencies, with and without it, in one run.
//!
//! `cargo run --profile bench -p farleaf-engines --example dex_hot`. Half gets, half updates of keys by Zipf's
//! law, the hottest beside each other, all of them cached. First real threads on mapped memory, as many as
//! there are processors and four times as many, so that who holds a latch may lose its processor: of five
//! rounds, which take turns, the middle one. Then 32 clients on 4 threads of the simulator with default latencies, in
//! virtual time.
#![allow(clippy::unwrap_used, reason = "a tool for developers")]

mod all_keys;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Instant;

use all_keys::All;
use farleaf_engines::dex::{Dex, DexOptions, DexTable, Durability, JoinOptions};
use farleaf_fabric::mapped::Mapped;
use farleaf_fabric::sim::{Sim, SimConfig};
use farleaf_fabric::{AnyEndpoint, Client, Endpoint, ToAny};
use farleaf_index::bnode::BnodeShape;
use farleaf_index::{Index, Spec};
use farleaf_pool::{Pool, PoolOptions, Session, format};

const KEYS: u64 = 50_000;
const ROUNDS: usize = 5;
const COMBINE: [usize; 2] = [0, 64];

/// Keys by Zipf's law, the least the hottest.
fn zipf(skew: f64, seed: u64, count: usize) -> Vec<u64> {
    let mut shares = Vec::with_capacity(KEYS as usize);
    let mut sum = 0.0;
    for rank in 1..=KEYS {
        sum += (rank as f64).powf(-skew);
        shares.push(sum);
    }
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut draw = || {
        let at = rng.f64() * sum;
        (shares.partition_point(|share| *share < at) as u64).min(KEYS - 1)
    };
    (0..count).map(|_| draw()).collect()
}

async fn opened(
    endpoint: AnyEndpoint,
    combine: usize,
    durability: Durability,
) -> (Session, DexTable) {
    let client = Client::new(endpoint.clone());
    format(&client, &PoolOptions::default()).await.unwrap();
    let pool = Pool::join(&client).await.unwrap();
    let session = pool.session(endpoint).await.unwrap();
    let layout = BnodeShape::default().layout(&Spec::FIXED8).unwrap().for_tree(1);
    let meta = Dex::create(&session, &layout).await.unwrap();
    let cache_bytes = KEYS / 30 * 1024;
    let options = DexOptions { cache_bytes, combine, durability, ..DexOptions::default() };
    let index = Dex::open(&session, meta, layout, options, JoinOptions::default());
    let index = index.await.unwrap();
    index.bulk_load(&session, &mut All::below(KEYS)).await.unwrap();
    let mut value = Vec::new();
    for key in 0..KEYS {
        index.get(&session, &key.to_be_bytes(), &mut value).await.unwrap();
    }
    (session, index)
}

/// A client's operations; how long each took.
async fn client(session: Session, index: DexTable, keys: Vec<u64>) -> Vec<u64> {
    let mut took = Vec::with_capacity(keys.len());
    let mut value = Vec::new();
    for (step, key) in keys.into_iter().enumerate() {
        let (key, begun) = (key.to_be_bytes(), session.endpoint().now_ns());
        if step % 2 == 0 {
            index.get(&session, &key, &mut value).await.unwrap();
        } else {
            index.update(&session, &key, &key).await.unwrap();
        }
        took.push(session.endpoint().now_ns() - begun);
        if step % 1024 == 0 {
            session.tick().await.unwrap();
        }
    }
    took
}

struct Figures {
    mops: f64,
    p50_ns: u64,
    p99_ns: u64,
    p999_ns: u64,
    combined: u64,
}

fn figures(mut took: Vec<u64>, ns: u64, combined: u64) -> Figures {
    took.sort_unstable();
    let at = |share: f64| took[((took.len() - 1) as f64 * share) as usize];
    // Hits take no virtual time.
    let mops = took.len() as f64 * 1_000.0 / ns.max(1) as f64;
    Figures { mops, p50_ns: at(0.5), p99_ns: at(0.99), p999_ns: at(0.999), combined }
}

#[allow(clippy::disallowed_methods, reason = "real threads are what this is about")]
fn on_threads(threads: usize, skew: f64, durability: Durability, combine: usize) -> Figures {
    const STEPS: usize = 200_000;
    let fabric = Mapped::anonymous(1, 256 << 20).unwrap();
    let endpoint = fabric.any_endpoint().unwrap();
    let executor = endpoint.executor().clone();
    let (session, index) = executor.block_on(opened(endpoint, combine, durability));
    let keys: Vec<_> =
        (0..threads).map(|thread| zipf(skew, thread as u64, STEPS / threads)).collect();
    let begun = Instant::now();
    let took: Vec<u64> = std::thread::scope(|scope| {
        let threads: Vec<_> = keys
            .into_iter()
            .map(|keys| {
                let (pool, fabric) = (session.pool().clone(), fabric.clone());
                let index = index.clone();
                scope.spawn(move || {
                    let endpoint = fabric.any_endpoint().unwrap();
                    let executor = endpoint.executor().clone();
                    executor.block_on(async {
                        let session = pool.session(endpoint).await.unwrap();
                        client(session, index, keys).await
                    })
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let ns = begun.elapsed().as_nanos() as u64;
    figures(took, ns, index.tree().stats().combined)
}

fn in_simulator(skew: f64, durability: Durability, combine: usize) -> Figures {
    const CLIENTS: usize = 32;
    const STEPS: usize = 1_000;
    let sim = Sim::new(SimConfig { region_bytes: 256 << 20, ..SimConfig::default() }).unwrap();
    let first = sim.fabric(0).any_endpoint().unwrap();
    let (session, index) = sim.block_on(opened(first, combine, durability)).unwrap();
    let (took, span) = (Rc::new(RefCell::new(Vec::new())), Rc::new(Cell::new((u64::MAX, 0))));
    for number in 0..CLIENTS {
        let endpoint = sim.fabric(0).any_endpoint().unwrap();
        let (pool, index) = (session.pool().clone(), index.clone());
        let (took, span) = (Rc::clone(&took), Rc::clone(&span));
        sim.spawn(0, async move {
            let session = pool.session(endpoint).await.unwrap();
            let (endpoint, begun_ns) = (session.endpoint().clone(), session.endpoint().now_ns());
            let own = client(session, index, zipf(skew, number as u64, STEPS)).await;
            took.borrow_mut().extend(own);
            let (first, last) = span.get();
            span.set((first.min(begun_ns), last.max(endpoint.now_ns())));
        });
    }
    sim.run().unwrap();
    let (first, last) = span.get();
    figures(took.take(), last - first, index.tree().stats().combined)
}

fn row(what: &str, skew: f64, durability: Durability, combine: usize, figures: &Figures) {
    let Figures { mops, p50_ns, p99_ns, p999_ns, combined } = figures;
    println!(
        "| {what} | {skew} | {durability} | {combine} | {mops:.2} | {p50_ns} | {p99_ns} | {p999_ns} | {combined} |"
    );
}

fn main() {
    println!(
        "| where | skew | durability | combine | M op/s | p50 ns | p99 ns | p99.9 ns | combined |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let cores = std::thread::available_parallelism().unwrap().get();
    for durability in [Durability::Volatile, Durability::Logged] {
        for threads in [cores, 4 * cores] {
            for skew in [0.99, 1.2] {
                let mut rounds: [Vec<Figures>; 2] = Default::default();
                for _ in 0..ROUNDS {
                    for (rounds, combine) in rounds.iter_mut().zip(COMBINE) {
                        rounds.push(on_threads(threads, skew, durability, combine));
                    }
                }
                for (rounds, combine) in rounds.iter_mut().zip(COMBINE) {
                    rounds.sort_by(|one, other| one.mops.total_cmp(&other.mops));
                    let what = format!("{threads} threads");
                    row(&what, skew, durability, combine, &rounds[ROUNDS / 2]);
                }
            }
        }
    }
    for durability in [Durability::Volatile, Durability::Logged] {
        for skew in [0.99, 1.2] {
            for combine in COMBINE {
                let figures = in_simulator(skew, durability, combine);
                row("simulator", skew, durability, combine, &figures);
            }
        }
    }
}
