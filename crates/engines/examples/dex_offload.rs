//! Offloading in `dex`: measures each way of offloading by number of handler threads, in the simulator.
//!
//! It gives operations per second of virtual time, and READs and RPCs for each operation.
//!
//! `cargo run --profile bench -p farleaf-engines --example dex_offload`. Uniform keys, half gets, half
//! updates; one compute server of 4 threads and 32 clients, 2 memory servers, tables placed with subtree
//! level 1, so that both have leaves, a cache of a few per cent of the nodes.
#![allow(clippy::unwrap_used, reason = "a tool for developers")]

mod all_keys;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use all_keys::All;
use farleaf_engines::dex::offload::{OFFLOAD_SERVICE, Offload, OffloadService};
use farleaf_engines::dex::{Dex, DexOptions, JoinOptions};
use farleaf_fabric::sim::{RpcConfig, Sim, SimConfig};
use farleaf_fabric::{Client, Endpoint, Fabric, ToAny};
use farleaf_index::bnode::BnodeShape;
use farleaf_index::{Index, Spec};
use farleaf_pool::{Pool, PoolOptions, format};

const KEYS: u64 = 200_000;
const CLIENTS: usize = 32;
const STEPS: u64 = 1_500;

fn run(offload: Offload, threads: usize, cache_percent: u64) {
    let mut config = SimConfig { memory_servers: 2, ..SimConfig::default() };
    config.capabilities.cpu_visible = true;
    config.rpc = RpcConfig { threads, ..RpcConfig::default() };
    let sim = Sim::new(config).unwrap();
    sim.fabric(0).serve(OFFLOAD_SERVICE, Arc::new(OffloadService::new(1, None)));
    let endpoints: Vec<_> = (0..CLIENTS).map(|_| sim.fabric(0).any_endpoint().unwrap()).collect();
    let first = sim.fabric(0).any_endpoint().unwrap();
    let (session, index) = sim
        .block_on(async {
            let client = Client::new(first.clone());
            format(&client, &PoolOptions::default()).await.unwrap();
            let pool = Pool::join(&client).await.unwrap();
            let session = pool.session(first).await.unwrap();
            let layout = BnodeShape::default().layout(&Spec::FIXED8).unwrap().for_tree(1);
            let meta = Dex::create_placed(&session, &layout, 1).await.unwrap();
            let nodes = KEYS / 42;
            let cache_bytes = (nodes * cache_percent / 100).max(150) * 1024;
            let options = DexOptions { cache_bytes, offload, ..DexOptions::default() };
            let index = Dex::open(&session, meta, layout, options, JoinOptions::default());
            let index = index.await.unwrap();
            index.bulk_load(&session, &mut All::below(KEYS)).await.unwrap();
            (session, index)
        })
        .unwrap();
    let begun = Rc::new(Cell::new((0, 0)));
    for (client, endpoint) in endpoints.into_iter().enumerate() {
        let (pool, index, begun) = (session.pool().clone(), index.clone(), Rc::clone(&begun));
        sim.spawn(0, async move {
            let session = pool.session(endpoint).await.unwrap();
            let mut rng = fastrand::Rng::with_seed(client as u64);
            let mut value = Vec::new();
            for step in 0..2 * STEPS {
                if step == STEPS && client == 0 {
                    // All are warm by then.
                    begun.set((
                        session.endpoint().now_ns(),
                        index.tree().stats().offload_handler_ns,
                    ));
                }
                let key = rng.u64(..KEYS).to_be_bytes();
                if rng.bool() {
                    index.get(&session, &key, &mut value).await.unwrap();
                } else {
                    index.update(&session, &key, &key).await.unwrap();
                }
            }
        });
    }
    let cost = || {
        let counters = sim.fabric(0).counters();
        let total = counters.iter().map(|counters| counters.snapshot().total());
        total.fold((0, 0, 0, 0), |(reads, writes, rpcs, bytes), cost| {
            let moved = cost.bytes_read + cost.bytes_written;
            (reads + cost.reads, writes + cost.writes, rpcs + cost.rpcs, bytes + moved)
        })
    };
    let before = cost();
    sim.run().unwrap();
    let after = cost();
    let (begun_ns, handler_ns) = begun.get();
    let ns = sim.now_ns() - begun_ns;
    let ops = (CLIENTS as u64 * STEPS) as f64;
    let all = (CLIENTS as u64 * 2 * STEPS) as f64;
    let stats = index.tree().stats();
    let busy = (stats.offload_handler_ns - handler_ns) as f64 / (2 * threads as u64 * ns) as f64;
    println!(
        "| {cache_percent} % | {threads} | {offload} | {:.2} | {:.2} | {:.2} | {:.2} | {:.0} | {:.0} % |",
        ops / ns as f64 * 1_000.0,
        (after.0 - before.0) as f64 / all,
        (after.1 - before.1) as f64 / all,
        (after.2 - before.2) as f64 / all,
        (after.3 - before.3) as f64 / all,
        busy * 100.0
    );
}

fn main() {
    println!(
        "| cache | handler threads | offload | M op/s | READ/op | WRITE/op | RPC/op | bytes/op | handlers busy |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for cache_percent in [3, 10] {
        for threads in [1, 4] {
            for offload in [Offload::Never, Offload::Adaptive, Offload::Ratio(0.5), Offload::Always]
            {
                run(offload, threads, cache_percent);
            }
        }
    }
}
