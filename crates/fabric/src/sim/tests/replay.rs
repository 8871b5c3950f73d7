//! SIM-1: the same seed replays bit for bit.

use super::*;
use crate::Ops;

/// A cluster where everything happens: all operations, chains, batches, drops, kills, fences.
fn everything(config: SimConfig) -> (u64, u64, u64, Vec<u64>) {
    let sim = sim(SimConfig { memory_servers: 3, compute_servers: 3, ..config });
    let mut endpoints = Vec::new();
    for client in 0..24 {
        let endpoint = endpoint(&sim, client % 3);
        endpoints.push(endpoint.clone());
        endpoint.clone().spawn(async move {
            for _ in 0..60 {
                one(&endpoint).await;
            }
        });
    }
    sim.run_until(20_000).unwrap();
    sim.fabric(2).stop();
    sim.run_until(40_000).unwrap();
    let dead = sim.fabric(1);
    dead.kill();
    let other = endpoint(&sim, 0);
    sim.block_on(async {
        for server in 0..3 {
            other.fence(ServerId(server), dead.incarnation()).await.unwrap();
        }
    })
    .unwrap();
    sim.fabric(2).resume();
    sim.run().unwrap();
    assert_eq!(sim.in_flight(), 0);
    assert!(endpoints.iter().all(|endpoint| endpoint.buffers_out() == 0));
    let mut memory = look(&sim, 0, 0, 512);
    memory.extend(look(&sim, 1, 0, 512));
    (sim.trace_hash(), sim.events(), sim.now_ns(), memory)
}

async fn one(endpoint: &SimEndpoint) {
    let random = endpoint.random();
    let addr = at((random % 3) as u16, random >> 8 & 0xff8);
    let list = || -> Ops {
        let mut ops = endpoint.ops();
        ops.write(addr, filled(endpoint, 8, random));
        ops.cas(addr, random, random + 1);
        ops.read(addr, endpoint.buf(128));
        ops
    };
    match random >> 40 & 7 {
        0 => drop(endpoint.read(addr, endpoint.buf(256)).await.unwrap()),
        1 => drop(endpoint.write(addr, filled(endpoint, 32, random)).await.unwrap()),
        2 => drop(endpoint.cas(addr, 0, random).await.unwrap()),
        3 => drop(endpoint.faa(addr, random).await.unwrap()),
        4 => drop(endpoint.chain(list()).await.unwrap()),
        5 => drop(endpoint.post_many(list()).await.unwrap()),
        6 => endpoint.work(random >> 50 & 0xff).await,
        _ => {
            // Polled once, and forgotten.
            let mut write = Box::pin(endpoint.write(addr, filled(endpoint, 16, random)));
            std::future::poll_fn(|context| {
                assert!(write.as_mut().poll(context).is_pending());
                std::task::Poll::Ready(())
            })
            .await;
            endpoint.sleep(random >> 50 & 0xff).await;
        }
    }
}

#[test]
fn a_seed_replays_and_another_differs() {
    let mut hashes = Vec::new();
    for seed in 0..6 {
        for config in [config(seed), hostile(seed)] {
            let first = everything(config.clone());
            assert_eq!(first, everything(config));
            hashes.push(first.0);
        }
    }
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), 12);
}

#[test]
fn many_clients_of_many_servers_end_and_replay() {
    let run = |seed| {
        let sim = sim(SimConfig {
            memory_servers: 4,
            compute_servers: 4,
            ..SimConfig { region_bytes: 8 << 20, ..hostile(seed) }
        });
        for compute in 0..4 {
            let threads: Vec<_> = (0..4).map(|_| endpoint(&sim, compute)).collect();
            for client in 0..144 {
                let endpoint = threads[client % 4].clone();
                sim.spawn(compute, async move {
                    for _ in 0..20 {
                        let random = endpoint.random();
                        let addr = at((random % 4) as u16, random >> 8 & 0x7f_fc00);
                        drop(endpoint.read(addr, endpoint.buf(1024)).await.unwrap());
                    }
                });
            }
        }
        sim.run().unwrap();
        assert_eq!(sim.ops(), 4 * 144 * 20);
        sim.trace_hash()
    };
    assert_eq!(run(3), run(3));
    assert_ne!(run(3), run(4));
}

/// A fault that is off costs nothing and changes nothing. The expected hashes are older than all faults but
/// torn operations.
#[test]
fn a_run_without_faults_repeats_its_trace_hash() {
    let before = [
        (0x80c2_1485_7c3a_0b05, 4144, 127_353),
        (0x35ec_1f76_5b16_f4b6, 3983, 122_908),
        (0xffd6_e990_9057_b3c9, 4124, 138_354),
    ];
    for (seed, before) in (0..).zip(before) {
        let (hash, events, now_ns, _) = everything(config(seed));
        assert_eq!((hash, events, now_ns), before);
    }
}
