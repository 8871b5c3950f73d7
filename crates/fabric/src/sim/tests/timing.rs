//! Timing tests: latency follows the configuration, and every limit binds.

use std::sync::Arc;

use super::*;
use crate::sim::{CpuConfig, NicConfig, RpcConfig};
use crate::{Op, Ops, Service, ServiceId, ServiceReply, SharedLines, Words};

/// Transfers of `client` clients per virtual second, once it runs evenly.
fn rate(
    config: SimConfig,
    clients: usize,
    each: impl AsyncFn(&SimEndpoint) + Clone + 'static,
) -> f64 {
    let sim = sim(config);
    let threads: Vec<_> = (0..sim.config().threads).map(|_| endpoint(&sim, 0)).collect();
    for client in 0..clients {
        let (endpoint, each) = (threads[client % threads.len()].clone(), each.clone());
        sim.spawn(0, async move {
            loop {
                each(&endpoint).await;
            }
        });
    }
    sim.run_until(200_000).unwrap();
    let before = sim.ops();
    sim.run_until(1_200_000).unwrap();
    (sim.ops() - before) as f64 / 1e-3
}

fn near(seen: f64, expected: f64, tolerance: f64) {
    assert!((seen / expected - 1.0).abs() <= tolerance, "{seen:e}, expected {expected:e}");
}

async fn read(endpoint: &SimEndpoint, bytes: usize) {
    let addr = at(0, endpoint.random() & 0xf_0000);
    drop(endpoint.read(addr, endpoint.buf(bytes)).await.unwrap());
}

async fn write(endpoint: &SimEndpoint, bytes: usize) {
    let addr = at(0, endpoint.random() & 0xf_0000);
    drop(endpoint.write(addr, endpoint.buf(bytes)).await.unwrap());
}

/// Many threads, so that the client's CPU is no limit.
fn roomy() -> SimConfig {
    SimConfig { threads: 32, ..config(1) }
}

#[test]
fn one_operation_takes_its_latency_and_its_transfer() {
    let sim = sim(SimConfig { network: exact(), ..config(1) });
    let endpoint = endpoint(&sim, 0);
    let took = |post: &dyn Fn() -> Ops, single: bool| {
        let (before, events) = (sim.inner.machine.borrow().now, sim.events());
        sim.block_on(async {
            let mut ops = post();
            if single && let Op::Read { into, from } = &mut ops.as_mut_slice()[0] {
                let buf = std::mem::replace(into, endpoint.buf(0));
                drop(endpoint.read(*from, buf).await.unwrap());
            } else {
                drop(endpoint.chain(ops).await.unwrap());
            }
        })
        .unwrap();
        assert!(!single || sim.events() == events + 2, "idle stages cost no event");
        sim.inner.machine.borrow().now - before
    };
    // 80 bytes of header each way, 80 ps for a byte; 80 + 60 ns of CPU around 1,850.
    let empty_ps = 1_990_000 + 2 * 6_400;
    for bytes in [64, 1024, 65_536] {
        let read = || {
            let mut ops = endpoint.ops();
            ops.read(at(0, 0), endpoint.buf(bytes));
            ops
        };
        assert_eq!(took(&read, true), empty_ps + bytes as u64 * 80);
        assert_eq!(took(&read, false), empty_ps + bytes as u64 * 80);
        let write = || {
            let mut ops = endpoint.ops();
            ops.write(at(0, 0), endpoint.buf(bytes));
            ops
        };
        assert_eq!(took(&write, false), empty_ps + bytes as u64 * 80);
    }
    let cas = || {
        let mut ops = endpoint.ops();
        ops.cas(at(0, 0), 0, 1);
        ops
    };
    assert_eq!(took(&cas, false), empty_ps + 8 * 160);
    let chain = || {
        let mut ops = endpoint.ops();
        for _ in 0..3 {
            ops.faa(at(0, 0), 1);
        }
        ops
    };
    // Two more headers and words each way, two more posts, two steps.
    assert_eq!(took(&chain, false), 1_990_000 + 3 * 88 * 160 + 2 * (20_000 + 100_000));
}

#[test]
fn jitter_spreads_the_latency_evenly_around_its_mean() {
    let sim = sim(config(5));
    let endpoint = endpoint(&sim, 0);
    let mut all = Vec::new();
    for _ in 0..2_000 {
        let before = sim.now_ns();
        sim.block_on(read(&endpoint, 64)).unwrap();
        all.push(sim.now_ns() - before);
    }
    let mean = all.iter().sum::<u64>() as f64 / all.len() as f64;
    near(mean, 2_008.0, 0.002);
    let (least, most) = (all.iter().min().unwrap(), all.iter().max().unwrap());
    assert!((1_907..1_925).contains(least) && (2_090..2_109).contains(most), "{least} {most}");
}

#[test]
fn rates_and_bandwidths_of_cards_bind() {
    type Change = fn(&mut NicConfig);
    let ops: [Change; 2] =
        [|nic| nic.in_ops_per_s = 5_000_000, |nic| nic.out_ops_per_s = 5_000_000];
    for change in ops {
        let mut config = roomy();
        change(&mut config.memory_nic);
        near(rate(config, 64, async |endpoint| read(endpoint, 64).await), 5e6, 0.03);
        let mut config = roomy();
        change(&mut config.compute_nic);
        near(rate(config, 64, async |endpoint| read(endpoint, 64).await), 5e6, 0.03);
    }
    // 4 KiB with 80 bytes of header, at 12.5 bytes per ns.
    let full = 12.5e9 / 4_176.0;
    near(rate(roomy(), 64, async |endpoint| read(endpoint, 4096).await), full, 0.03);
    near(rate(roomy(), 64, async |endpoint| write(endpoint, 4096).await), full, 0.03);
    let bits: [(Change, bool); 2] = [
        (|nic| nic.in_bits_per_s = 10_000_000_000, true),
        (|nic| nic.out_bits_per_s = 10_000_000_000, false),
    ];
    for (change, into) in bits {
        let mut config = roomy();
        change(&mut config.compute_nic);
        let seen = if into {
            rate(config, 64, async |endpoint| read(endpoint, 4096).await)
        } else {
            rate(config, 64, async |endpoint| write(endpoint, 4096).await)
        };
        near(seen, full / 10.0, 0.03);
    }
}

#[test]
fn atomics_have_a_rate_of_their_own() {
    let faa = async |endpoint: &SimEndpoint| {
        let addr = at(0, endpoint.random() & 0xf_fff8);
        endpoint.faa(addr, 1).await.unwrap();
    };
    near(rate(roomy(), 64, faa), 10e6, 0.03);
    let mut slow = roomy();
    slow.memory_nic.atomics_per_s = 2_500_000;
    near(rate(slow, 64, faa), 2.5e6, 0.03);
    // They do not hold up READs beside them.
    let mut slow = roomy();
    slow.memory_nic.atomics_per_s = 100_000;
    let reads = rate(slow, 64, async |endpoint| {
        if endpoint.thread() == 0 {
            endpoint.faa(at(0, 0), 1).await.unwrap();
        } else {
            read(endpoint, 64).await;
        }
    });
    near(reads, 62.0 / 2.008e-6, 0.1);
}

struct Costly;

impl Service for Costly {
    fn call(&self, memory: &Words, request: &[u8], reply: &mut [u8]) -> ServiceReply {
        let count = memory.faa(0, 1);
        reply[..8].copy_from_slice(&count.to_le_bytes());
        reply[8..16].copy_from_slice(request);
        ServiceReply { len: 16, cpu_ns: 600 }
    }
}

#[test]
fn handlers_answer_and_their_threads_are_a_limit() {
    // Threads from the start, and from when requests wait for them.
    for (first, threads) in [(1, 1), (3, 3), (1, 3), (3, 1)] {
        let rpc = RpcConfig { threads: first, ..Default::default() };
        let sim = sim(SimConfig { rpc, ..roomy() });
        sim.fabric(0).serve(ServiceId(3), Arc::new(Costly));
        for _ in 0..32 {
            let endpoint = endpoint(&sim, 0);
            sim.spawn(0, async move {
                for round in 0..100_u64 {
                    let mut request = endpoint.buf(8);
                    request.words_mut()[0] = round;
                    let reply = endpoint.buf(64);
                    let reply = endpoint.rpc(ServerId(0), ServiceId(3), request, reply).await;
                    let reply = reply.unwrap();
                    assert_eq!(reply.window_bytes().len(), 16);
                    assert_eq!(reply.words()[1], round);
                }
            });
        }
        if first != threads {
            sim.run_until(10_000).unwrap();
            sim.memory_server(ServerId(0)).set_rpc_threads(threads);
        }
        sim.run().unwrap();
        assert_eq!(look(&sim, 0, 0, 1), [3_200]);
        near(sim.now_ns() as f64, 3_200.0 * 1_000.0 / threads as f64, 0.03);
    }
}

#[test]
fn clients_of_one_thread_share_its_time() {
    for threads in [1, 2] {
        let config = SimConfig { threads, ..config(1) };
        let seen = rate(config, 36 * threads, async |endpoint| read(endpoint, 64).await);
        near(seen, threads as f64 / 140e-9, 0.01);
    }
    let cpu = CpuConfig { post_ns: 0, completion_ns: 0, ..Default::default() };
    let free = SimConfig { threads: 1, cpu, ..config(1) };
    near(rate(free, 36, async |endpoint| read(endpoint, 64).await), 36.0 / 1.868e-6, 0.02);
}

#[test]
fn the_adversary_leaves_throughput_alone() {
    let mixed = async |endpoint: &SimEndpoint| {
        match endpoint.random() % 4 {
            0 => read(endpoint, 1024).await,
            1 => write(endpoint, 1024).await,
            2 => drop(endpoint.cas(at(0, endpoint.random() & 0xff8), 0, 1).await.unwrap()),
            _ => {
                let mut ops = endpoint.ops();
                ops.write(at(0, 0), filled(endpoint, 128, 1));
                ops.faa(at(0, 0), 1);
                ops.read(at(0, 0), endpoint.buf(512));
                drop(endpoint.chain(ops).await.unwrap());
            }
        };
    };
    for clients in [4, 144] {
        for threads in [4, 32] {
            let plain = rate(SimConfig { threads, ..config(1) }, clients, mixed);
            let torn = rate(SimConfig { threads, ..hostile(1) }, clients, mixed);
            near(torn, plain, 0.02);
            let plain = rate(SimConfig { threads, ..config(1) }, clients, async |endpoint| {
                read(endpoint, 1024).await;
            });
            let torn = rate(SimConfig { threads, ..hostile(1) }, clients, async |endpoint| {
                read(endpoint, 1024).await;
            });
            near(torn, plain, 0.02);
        }
    }
}

/// READs of threads, with some clients each, that change one of `lines` lines before.
fn rate_beside(lines: u64, handover_ns: u64, threads: usize, clients: usize) -> f64 {
    let cpu = CpuConfig { handover_ns, ..Default::default() };
    let shared = Arc::new(SharedLines::new(lines as usize));
    rate(SimConfig { threads, cpu, ..config(1) }, clients * threads, async move |endpoint| {
        shared.change((endpoint.random() % lines) as usize);
        read(endpoint, 64).await;
    })
}

#[test]
fn threads_take_a_line_from_one_another() {
    let free = rate_beside(1, 0, 32, 1);
    assert!(free > 15e6, "{free:e}");
    near(rate_beside(1, 130, 32, 1), 1.0 / 130e-9, 0.01);
    // With many lines they seldom meet; each takes its line over all the same.
    let many = rate_beside(1_000, 130, 4, 32);
    near(many, 4.0 / (140e-9 + 130e-9 * 3.0 / 4.0), 0.1);
    // Nobody takes a line from the thread that has it.
    near(rate_beside(1, 130, 1, 4), rate_beside(1, 0, 1, 4), 0.01);
}
