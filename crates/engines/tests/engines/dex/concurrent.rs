//! Concurrency tests: many clients of one compute server of `dex`, in the simulator and on threads.
//!
//! Some tests drop futures at every await.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::task::Poll;

use farleaf_engines::TableFormat;
use farleaf_engines::dex::offload::{OFFLOAD_SERVICE, Offload};
use farleaf_engines::dex::{Admission, DexOptions, DexStats, DexTable};
use farleaf_fabric::mapped::Mapped;
use farleaf_fabric::sim::{Sim, SimConfig};
use farleaf_fabric::{Endpoint, Fabric, ToAny};
use farleaf_harness::simulate;
use farleaf_index::{Entries, Index, IndexError, ScanRange};
use farleaf_pool::{Pool, Session};

use super::tables::{check, create, open, some_durability};
use crate::common::clients::{self, soak, sum_of_counters};
use crate::common::{World, bnode_layout, formats, key, offload_service, settle, start, value};

fn config(seed: u64) -> SimConfig {
    let mut config = World { seed, ..World::default() }.sim_config();
    config.adversary.torn = 0.5;
    config.network.jitter_ns = 1_000;
    config.capabilities.cpu_visible = true;
    config
}

/// A height of the tree and 2 for each of so many operations at a time, and less.
fn caches(format: &TableFormat) -> [u64; 3] {
    let is_dense = bnode_layout(format).is_dense();
    [if is_dense { 16 } else { 28 }, 80, 2_000]
}

const CLIENTS: usize = 6;

/// A client that lets reclamation go on when it is done.
async fn client_of(
    session: &Session,
    index: &DexTable,
    format: &TableFormat,
    client: usize,
    seed: u64,
    steps: usize,
) -> u64 {
    let counted = clients::run(session, index, format, client, seed, steps).await;
    for _ in 0..2 {
        session.tick().await.expect("tick");
    }
    counted
}

fn sim_storm(
    seed: u64,
    format: TableFormat,
    frames: u64,
    steps: usize,
    offload: Offload,
) -> (u64, DexStats) {
    let sim = simulate(config(seed)).expect("sim");
    let first = sim.fabric(0).any_endpoint().expect("endpoint");
    let options = World::default().pool_options();
    let admission = [Admission::LAZY, Admission::EAGER, Admission::Chance(0.5), Admission::Again]
        [seed as usize % 4];
    let (session, index) = sim
        .block_on(async {
            let session = start(first, &options).await;
            let options = DexOptions { admission, offload, ..DexOptions::default() };
            let options = some_durability(seed / 3, options);
            let index = open(&session, create(&session, &format).await, frames, options).await;
            (session, index)
        })
        .expect("made");
    let (running, counted) = (Rc::new(Cell::new(CLIENTS)), Rc::new(Cell::new(0)));
    for client in 0..CLIENTS {
        let endpoint = sim.fabric(0).any_endpoint().expect("endpoint");
        let (pool, index) = (session.pool().clone(), index.clone());
        let (running, counted) = (Rc::clone(&running), Rc::clone(&counted));
        sim.spawn(0, async move {
            let session = pool.session(endpoint).await.expect("session");
            let count = client_of(&session, &index, &format, client, seed, steps).await;
            counted.set(counted.get() + count);
            running.set(running.get() - 1);
        });
    }
    {
        let (session, running) = (session.clone(), Rc::clone(&running));
        sim.spawn(0, async move {
            while running.get() > 0 {
                session.tick().await.expect("tick");
                session.endpoint().sleep(200_000).await;
            }
        });
    }
    sim.run().expect("the simulation ends");
    sim.block_on(async {
        assert_eq!(sum_of_counters(&session, &index, &format).await, counted.get());
        check(&session, &index).await;
    })
    .expect("checked");
    (sim.trace_hash(), index.tree().stats())
}

#[test]
fn clients_of_one_compute_server_agree() {
    for round in 0..soak() {
        for (number, (name, format)) in formats().into_iter().enumerate() {
            for (which, frames) in caches(&format).into_iter().enumerate() {
                let seed = 10 + (number + 4 * which) as u64 + 1_000 * round;
                println!("{name}, {frames} frames, seed {seed}");
                let (_, stats) = sim_storm(seed, format, frames, 120, Offload::Never);
                println!("{stats:?}");
            }
        }
    }
}

#[test]
fn the_same_seed_is_the_same_run() {
    let format = formats()[0].1;
    for offload in [Offload::Never, Offload::Adaptive] {
        let run = |seed| sim_storm(seed, format, 24, 100, offload);
        assert_eq!(run(1), run(1));
        assert_ne!(run(1).0, run(2).0);
    }
}

/// The same with operations that memory servers do. (Test 9 of the design.)
#[test]
fn clients_agree_whoever_does_the_work() {
    let modes = [Offload::Always, Offload::Ratio(0.5), Offload::Adaptive];
    let mut all = DexStats::default();
    for round in 0..soak() {
        for (number, (name, format)) in formats().into_iter().enumerate() {
            for (which, offload) in modes.into_iter().enumerate() {
                let frames = caches(&format)[which.min(1)];
                let seed = 40 + (number + 4 * which) as u64 + 1_000 * round;
                println!("{name}, {frames} frames, seed {seed}, {offload}");
                let (_, stats) = sim_storm(seed, format, frames, 120, offload);
                println!("{stats:?}");
                all.offload_ok += stats.offload_ok;
                all.offload_joined += stats.offload_joined;
                all.offload_invalidated += stats.offload_invalidated;
                all.offload_need_smo += stats.offload_need_smo;
            }
        }
    }
    let counts = [all.offload_ok, all.offload_joined, all.offload_need_smo];
    assert!(counts.into_iter().all(|count| count > 0), "{all:?}");
}

/// Several threads share a cache that is far too small.
#[test]
#[allow(clippy::disallowed_methods, reason = "real threads are what this is about")]
fn threads_share_a_cache() {
    const THREADS: usize = 3;
    for round in 0..soak() {
        for (number, (name, format)) in formats().into_iter().enumerate() {
            for frames in caches(&format) {
                let seed = 500 + number as u64 + 1_000 * round;
                println!("{name}, {frames} frames, seed {seed}");
                let fabric = Mapped::anonymous(2, 32 << 20).expect("memory");
                fabric.serve(OFFLOAD_SERVICE, offload_service());
                let offload = [Offload::Never, Offload::Ratio(0.5)][number % 2];
                let endpoint = fabric.any_endpoint().expect("endpoint");
                let executor = endpoint.executor().clone();
                let options = World::default().pool_options();
                let (session, index) = executor.block_on(async {
                    let session = start(endpoint, &options).await;
                    let made = create(&session, &format).await;
                    let options = DexOptions { offload, ..DexOptions::default() };
                    let options = some_durability(number as u64, options);
                    {
                        let index = open(&session, made, frames, options).await;
                        (session, index)
                    }
                });
                let counted: u64 = std::thread::scope(|scope| {
                    let threads: Vec<_> = (0..THREADS)
                        .map(|thread| {
                            let pool = session.pool().clone();
                            let (fabric, index) = (fabric.clone(), index.clone());
                            scope
                                .spawn(move || on_thread(fabric, pool, index, format, thread, seed))
                        })
                        .collect();
                    threads.into_iter().map(|thread| thread.join().expect("thread")).sum()
                });
                executor.block_on(async {
                    assert_eq!(sum_of_counters(&session, &index, &format).await, counted);
                    check(&session, &index).await;
                });
            }
        }
    }
}

/// Two clients on one thread.
fn on_thread(
    fabric: Mapped,
    pool: std::sync::Arc<Pool>,
    index: DexTable,
    format: TableFormat,
    thread: usize,
    seed: u64,
) -> u64 {
    let endpoint = fabric.any_endpoint().expect("endpoint");
    endpoint.seed(seed * 31 + thread as u64);
    let executor = endpoint.executor().clone();
    let counted = Rc::new(Cell::new(0));
    executor.block_on(async {
        for part in 0..2 {
            let (pool, endpoint) = (pool.clone(), endpoint.clone());
            let (index, counted) = (index.clone(), Rc::clone(&counted));
            executor.spawn(async move {
                let session = pool.session(endpoint).await.expect("session");
                let client = 2 * thread + part;
                let count = client_of(&session, &index, &format, client, seed, 150).await;
                counted.set(counted.get() + count);
            });
        }
    });
    counted.get()
}

/// Polls `operation` at most `polls` times, then drops it.
async fn polled<T>(polls: u32, operation: impl Future<Output = T>) -> Option<T> {
    let mut operation = std::pin::pin!(operation);
    let mut left = polls;
    std::future::poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        operation.as_mut().poll(context).map(Some)
    })
    .await
}

/// Futures that are dropped after any number of polls leave no latch, pin, mark or frame behind, and
/// the key holds the old value or the new one.
fn dropped(seed: u64, format: TableFormat, frames: u64, admission: Admission, offload: Offload) {
    let sim = simulate(config(seed)).expect("sim");
    let endpoint = sim.fabric(0).any_endpoint().expect("endpoint");
    let options = World::default().pool_options();
    sim.block_on(async {
        let session = start(endpoint, &options).await;
        let options = DexOptions { admission, offload, ..DexOptions::default() };
        let options = some_durability(seed, options);
        let index = open(&session, create(&session, &format).await, frames, options).await;
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        for round in 0..900_u32 {
            session.tick().await.expect("tick");
            let key = key(&format, &mut rng, 80);
            let new = (rng.u8(..3) > 0).then(|| value(&format, &mut rng));
            let operation = async {
                match &new {
                    Some(value) => index.upsert(&session, &key, value).await,
                    None => index.remove(&session, &key).await,
                }
            };
            let done = polled(1 + round % 23, operation).await;
            assert!(!matches!(done, Some(Err(_))), "{done:?}");
            // What it began ends before the next operation of the session, which sees one of the two.
            let mut found = Vec::new();
            let has = index.get(&session, &key, &mut found).await.expect("get");
            let now = has.then_some(found);
            let old = model.get(&key).cloned();
            match done {
                Some(_) => assert_eq!(now, new),
                None => assert!(now == old || now == new, "{now:?} is neither old nor new"),
            }
            match now {
                Some(now) => model.insert(key, now),
                None => model.remove(&key),
            };
            let mut out = Entries::new();
            let scan = index.scan(&session, ScanRange::ALL, usize::MAX, &mut out);
            let done = polled(round % 31, scan).await;
            assert!(!matches!(done, Some(Err(_))), "{done:?}");
        }
        session.endpoint().sleep(20_000_000).await;
        settle(&session).await;
        assert_eq!(index.tree().check_cache(), Vec::<String>::new());
        // Records that were written and never linked are lost until their block is swept, so the
        // accounts are not looked at.
        let mut audit = farleaf_pool::Audit::new(&session).await.expect("audit");
        let report = index.verify(&session, &mut audit).await.expect("verify");
        assert_eq!(report.problems, Vec::<String>::new());
        assert_eq!(report.keys, model.len() as u64);
    })
    .expect("the simulation ends");
}

#[test]
fn dropped_operations_leave_nothing_half_done() {
    for round in 0..soak() {
        for (number, (name, format)) in formats().into_iter().enumerate() {
            let admission = [Admission::LAZY, Admission::EAGER, Admission::Again][number % 3];
            let frames = caches(&format)[0];
            println!("{name}, {frames} frames, admission {admission}");
            let seed = 900 + number as u64 + 1_000 * round;
            dropped(seed, format, frames, admission, Offload::Never);
            dropped(seed, format, frames, admission, Offload::Ratio(0.7));
        }
    }
}

/// A table belongs to one cache at a time: others are refused until it is closed, and find everything
/// then, also through the engine whose tree it is in remote memory.
#[test]
fn a_table_is_one_caches_until_it_is_closed() {
    let sim = Sim::new(SimConfig { compute_servers: 2, ..config(3) }).expect("sim");
    let options = World::default().pool_options();
    let endpoints = [0, 1].map(|compute| sim.fabric(compute).any_endpoint().expect("endpoint"));
    sim.block_on(async {
        let [one, other] = endpoints;
        let session = start(one, &options).await;
        let other = farleaf_harness::join(other).await.expect("join");
        let format = formats()[0].1;
        let made = create(&session, &format).await;
        let index = open(&session, made, 32, DexOptions::default()).await;
        for key in 0..500_u64 {
            let done = index.insert(&session, &key.to_be_bytes(), &key.to_le_bytes()).await;
            assert_eq!(done, Ok(true));
        }
        let mut value = Vec::new();
        // Who opens it again in the same member of the pool gets the same cache.
        let second = open(&session, made, 32, DexOptions::default()).await;
        assert_eq!(second.get(&session, &[0; 8], &mut value).await, Ok(true));
        assert_eq!(second.tree().stats(), index.tree().stats());
        let there = open(&other, made, 32, DexOptions::default()).await;
        let refused = there.get(&other, &[0; 8], &mut value).await;
        assert!(matches!(refused, Err(IndexError::Unavailable(_))), "{refused:?}");
        index.close(&session).await.expect("close");
        let refused = index.get(&session, &[0; 8], &mut value).await;
        assert!(matches!(refused, Err(IndexError::Closed(_))), "{refused:?}");
        for key in 0..500_u64 {
            assert_eq!(there.get(&other, &key.to_be_bytes(), &mut value).await, Ok(true));
            assert_eq!(value, key.to_le_bytes());
        }
        there.close(&other).await.expect("close");
        let (meta, layout) = made;
        let btree = farleaf_engines::btree::BTree::open(meta, layout, Default::default());
        let mut out = Entries::new();
        btree.scan(&session, ScanRange::ALL, usize::MAX, &mut out).await.expect("scan");
        assert_eq!(out.len(), 500);
        assert_eq!(btree.insert(&session, &[9; 8], &[1; 8]).await, Ok(true));
        let last = open(&session, made, 8, DexOptions::default()).await;
        assert_eq!(last.get(&session, &[9; 8], &mut value).await, Ok(true));
        // What it has retired of its own blocks is known to it alone until it leaves.
        drop(there);
        other.leave().await.expect("leave");
        check(&session, &last).await;
    })
    .expect("the simulation ends");
}
