//! Allocation tests: no operation allocates once its thread has warmed up.
//!
//! A new fabric is one more test at the end.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;

use farleaf_fabric::mapped::Mapped;
use farleaf_fabric::sim::{AdversaryConfig, Sim, SimConfig};
use farleaf_fabric::tcp::{MemoryServer, MemoryServerConfig, Tcp, TcpConfig};
use farleaf_fabric::{Client, Endpoint, Fabric, GlobalAddr, OpKind, ServerId, Words};

/// Operation that a test repeats.
#[derive(Clone, Copy, Debug)]
enum Verb {
    Read,
    ReadFrame,
    Write,
    Cas,
    Faa,
    Chain,
    PostMany,
    Dropped,
}

const VERBS: [Verb; 8] = [
    Verb::Read,
    Verb::ReadFrame,
    Verb::Write,
    Verb::Cas,
    Verb::Faa,
    Verb::Chain,
    Verb::PostMany,
    Verb::Dropped,
];

/// Repeats `verb` `rounds` times, with its buffers and lists.
async fn work<E: Endpoint>(client: &Client<E>, verb: Verb, frame: &Arc<Words>, rounds: usize) {
    let near = GlobalAddr::new(ServerId(0), 4096);
    let far = GlobalAddr::new(ServerId(1), 8192);
    for round in 0..rounds {
        client.begin(OpKind::Get);
        let len = [8, 100, 1024, 16 << 10][round % 4];
        match verb {
            Verb::Read => drop(client.read(near, client.buf(len)).await.expect("a READ")),
            Verb::ReadFrame => {
                client.read_frame(far, frame, 3, 100).await.expect("a READ into a frame");
            }
            Verb::Write => drop(client.write(far, client.buf(len)).await.expect("a WRITE")),
            Verb::Cas => {
                client.cas(near, 0, 1).await.expect("a CAS");
            }
            Verb::Faa => {
                client.faa(far, 1).await.expect("an FAA");
            }
            Verb::Chain => {
                let mut ops = client.ops();
                ops.write(far, client.buf(len));
                ops.read(far, client.buf(len));
                for _ in 0..round % 9 {
                    ops.write_word(far, 1);
                }
                ops.cas(far, 0, 1);
                drop(client.chain(ops).await.expect("a chain"));
            }
            Verb::PostMany => {
                let mut ops = client.ops();
                ops.read(near, client.buf(len));
                ops.read(far, client.buf(len));
                ops.faa(near, 1);
                let mut ops = client.post_many(ops).await.expect("a batch");
                drop(ops.take_buf(1));
            }
            Verb::Dropped => {
                drop(client.read(near, client.buf(len)));
                let mut ops = client.ops();
                ops.write(near, client.buf(len));
                drop(client.chain(ops));
            }
        }
    }
}

/// Asserts that 1,000 more rounds of each verb allocate nothing. `run` runs a client's work from beginning to
/// end; its own allocations do not count.
fn assert_no_allocation(run: impl Fn(Verb, usize)) {
    for verb in VERBS {
        run(verb, 300);
        let few = allocation_counter::measure(|| run(verb, 1));
        let many = allocation_counter::measure(|| run(verb, 1_001));
        assert_eq!(many.count_total, few.count_total, "{verb:?} allocates");
    }
}

#[test]
fn mapped_allocates_nothing() {
    let mapped = Mapped::anonymous(2, 1 << 20).expect("memory");
    let client = Client::new(mapped.endpoint().expect("an endpoint"));
    let frame = Arc::new(Words::anonymous(128).expect("1 KiB of memory"));
    let run = |verb, rounds| {
        client.endpoint().executor().block_on(work(&client, verb, &frame, rounds));
    };
    assert_no_allocation(run);
    // No allocation at all, the executor included.
    assert_eq!(allocation_counter::measure(|| run(Verb::Read, 100)).count_total, 0);
}

/// The counter counts: without this, a broken allocator hook would let every test pass.
#[test]
fn an_allocation_is_seen() {
    let seen = allocation_counter::measure(|| drop(std::hint::black_box(Box::new(7))));
    assert_eq!(seen.count_total, 1);
}

#[test]
fn sim_allocates_nothing() {
    for torn in [0.0, 1.0] {
        let adversary = AdversaryConfig { torn, split_rmw: torn, ..Default::default() };
        let config = SimConfig { memory_servers: 2, adversary, ..SimConfig::seeded(1) };
        let sim = Sim::new(config).expect("memory");
        let client = Client::new(sim.fabric(0).endpoint().expect("an endpoint"));
        let frame = Arc::new(Words::anonymous(128).expect("1 KiB of memory"));
        assert_no_allocation(|verb, rounds| {
            sim.block_on(work(&client, verb, &frame, rounds)).expect("no deadlock");
        });
    }
}

#[test]
fn tcp_allocates_nothing() {
    let servers = [0, 1].map(|server| {
        let server = ServerId(server);
        let config = MemoryServerConfig { server, servers: 2, ..Default::default() };
        let words = Arc::new(Words::anonymous(1 << 17).expect("1 MiB of memory"));
        MemoryServer::start(config, words).expect("a memory server")
    });
    let config = TcpConfig::to(servers.iter().map(MemoryServer::address));
    let client = Client::new(Tcp::connect(config).expect("connected").endpoint().expect("in"));
    let frame = Arc::new(Words::anonymous(128).expect("1 KiB of memory"));
    assert_no_allocation(|verb, rounds| {
        client.endpoint().executor().block_on(work(&client, verb, &frame, rounds));
    });
}

#[test]
#[cfg(feature = "verbs")]
fn verbs_allocates_nothing() {
    use farleaf_fabric::verbs::{CardConfig, Verbs, VerbsConfig, VerbsServer, devices};

    if devices().is_ok_and(|names| !names.is_empty()) {
        let servers = [0, 1].map(|server| {
            let server = ServerId(server);
            let config = MemoryServerConfig { server, servers: 2, ..Default::default() };
            let words = Arc::new(Words::anonymous(1 << 17).expect("1 MiB of memory"));
            VerbsServer::start(config, &CardConfig::default(), words).expect("a memory server")
        });
        let config = VerbsConfig::to(servers.iter().map(VerbsServer::address));
        let fabric = Verbs::connect(config).expect("connected");
        let client = Client::new(fabric.endpoint().expect("an endpoint"));
        let frame = Arc::new(Words::anonymous(128).expect("1 KiB of memory"));
        assert_no_allocation(|verb, rounds| {
            client.endpoint().executor().block_on(work(&client, verb, &frame, rounds));
        });
    } else {
        eprintln!("verbs_allocates_nothing: skipped: no RDMA device; `make verbs` runs it");
    }
}
