//! Lost operation tests: members work while operations happen, do not happen, or happen later.
//!
//! The members join, allocate, retire each other's objects and leave. Nobody dies. At the end the audit
//! accounts for every object.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::Ordering;

use farleaf_fabric::sim::{AdversaryConfig, Direction, Sim, SimConfig};
use farleaf_fabric::{AnyEndpoint, Client, Endpoint, GlobalAddr, OpKind, Peer, ServerId, ToAny};

use super::SMALL;
use crate::reliable::{PATIENCE_NS, Reconnects, Reliable};
use crate::{Audit, Pool, PoolError, PoolOptions, Session, format};

type Mine = Session;

const COMPUTE: usize = 3;
const CLIENTS: usize = 6;
/// Slots that each client fills, and its neighbour empties.
const SLOTS: usize = 24;
const BYTES: [usize; 4] = [64, 200, 900, 3000];

#[derive(Clone, Copy)]
struct ServerFailures {
    lost: f64,
    /// ServerFailures of a memory server, and its duration.
    outage: Option<(Outage, u64)>,
}

#[derive(Clone, Copy, Debug)]
enum Outage {
    Stopped(u16),
    NoReplies(u16),
}

/// One word per slot: the address of its object, or an odd number, never the same again. Only its
/// filler takes the number away, only its neighbour the address; so each of them can tell what became
/// of a CAS. (From 0 to an address and back it could not: a CAS that had happened, and whose object
/// was gone again, would happen twice.)
fn slot(table: GlobalAddr, client: usize, slot: usize) -> GlobalAddr {
    table.plus(((client * SLOTS) + slot) as u64 * 8)
}

async fn fill(session: &Mine, at: GlobalAddr) -> Result<(), PoolError> {
    let _pinned = session.begin(OpKind::Insert).await?;
    let reliable = session.reliable();
    let found = reliable.word(at).await?;
    if is_full(found) {
        return Ok(());
    }
    let bytes = BYTES[session.endpoint().random() as usize % BYTES.len()];
    let object = session.alloc_unlinked(session.place(), bytes).await?;
    let mut content = reliable.buf(bytes);
    content.words_mut().fill(bytes as u64);
    object.write(content).await?;
    let session = session.without_deadline();
    if session.reliable().cas_release(at, found, object.addr().word()).await? == found {
        object.keep();
    }
    Ok(())
}

async fn empty(session: &Mine, at: GlobalAddr) -> Result<(), PoolError> {
    let _pinned = session.begin(OpKind::Remove).await?;
    let found = session.reliable().word(at).await?;
    let Some(addr) = GlobalAddr::from_word(found).filter(|_| is_full(found)) else {
        return Ok(());
    };
    let content = session.reliable().read(addr, session.reliable().buf(64)).await?;
    let bytes = content.words()[0];
    assert!(content.words().iter().all(|word| *word == bytes), "handed out to another");
    assert!(BYTES.contains(&(bytes as usize)), "handed out to another");
    let retiring = session.prepare_retire(addr).await?;
    let session = session.without_deadline();
    let emptied = session.endpoint().random() | 1;
    if session.reliable().cas_release(at, found, emptied).await? == found {
        session.retire(retiring);
    } else {
        session.cancel_retire(retiring);
    }
    Ok(())
}

fn is_full(word: u64) -> bool {
    word != 0 && word & 1 == 0
}

fn is_passing(error: &PoolError) -> bool {
    matches!(
        error,
        PoolError::Fabric(_)
            | PoolError::Full { .. }
            | PoolError::RetireFull
            | PoolError::Unsettled
    )
}

/// `strict`: nothing may fail for good.
async fn work(
    endpoint: AnyEndpoint,
    table: GlobalAddr,
    client: usize,
    steps: usize,
    strict: bool,
    running: Rc<Cell<usize>>,
) {
    let next = (client + 1) % CLIENTS;
    let check = |done: Result<(), PoolError>| match done {
        Ok(()) => {}
        Err(PoolError::Full { .. } | PoolError::RetireFull) => {}
        Err(error) => assert!(!strict && is_passing(&error), "{error}"),
    };
    let mut session: Option<Mine> = None;
    for step in 0..steps {
        let now = match session.take() {
            Some(session) => session,
            None => {
                let joined = async {
                    Pool::join(&Client::new(endpoint.clone()))
                        .await?
                        .session(endpoint.clone())
                        .await
                };
                match joined.await {
                    Ok(session) => session,
                    Err(error) => {
                        check(Err(error));
                        endpoint.sleep(100_000).await;
                        continue;
                    }
                }
            }
        };
        let random = endpoint.random() as usize;
        check(match random & 1 {
            0 => fill(&now, slot(table, client, random / 2 % SLOTS)).await,
            _ => empty(&now, slot(table, next, random / 2 % SLOTS)).await,
        });
        if random & 0x300 == 0 {
            check(now.tick().await);
        }
        if step % 50 == 49 && strict {
            now.leave().await.unwrap();
        } else {
            session = Some(now);
        }
    }
    if let Some(session) = session {
        while let Err(error) = session.leave().await {
            check(Err(error));
            endpoint.sleep(1_000_000).await;
        }
    }
    running.set(running.get() - 1);
}

fn run(seed: u64, steps: usize, trouble: ServerFailures) {
    let config = SimConfig {
        memory_servers: 2,
        compute_servers: COMPUTE,
        region_bytes: 2 << 20,
        adversary: AdversaryConfig {
            torn: 0.2,
            late: 0.05,
            lost: trouble.lost,
            shuffle: true,
            ..AdversaryConfig::default()
        },
        ..SimConfig::seeded(seed)
    };
    let sim = Sim::new(config).unwrap();
    // With one operation in twenty lost, the others pin for so long that who leaves beside them may not see
    // the epoch in which what it retired is free, any of the six times that it leaves; then it stays, as dead.
    let entries_max = if trouble.lost < 0.05 { 16 } else { 64 };
    let options = PoolOptions { clients_max: entries_max, members_max: entries_max, ..SMALL };
    let first = sim.fabric(0).any_endpoint().unwrap();
    let bytes = CLIENTS * SLOTS * 8;
    let (keeper, table) = sim
        .block_on(async {
            format(&Client::new(first.clone()), &options).await.unwrap();
            let pool = Pool::join(&Client::new(first.clone())).await.unwrap();
            let session = pool.session(first.clone()).await.unwrap();
            let table = session.alloc_unlinked(ServerId(0), bytes).await.unwrap();
            let mut zero = session.client().buf(bytes);
            zero.words_mut().fill(0);
            table.write(zero).await.unwrap();
            table.keep();
            session.create_root("t", "slots", &[0; 64], table.addr()).await.unwrap();
            for _ in 0..3 {
                session.tick().await.unwrap();
            }
            (session, table.addr())
        })
        .unwrap();
    let running = Rc::new(Cell::new(CLIENTS));
    for client in 0..CLIENTS {
        let endpoint = sim.fabric(client % COMPUTE).any_endpoint().unwrap();
        let strict = trouble.outage.is_none();
        let work = work(endpoint, table, client, steps, strict, Rc::clone(&running));
        sim.spawn(client % COMPUTE, work);
    }
    if let Some((outage, ns)) = trouble.outage {
        sim.run_until(sim.now_ns() + 300_000).unwrap();
        match outage {
            Outage::Stopped(server) => sim.memory_server(ServerId(server)).stop(),
            Outage::NoReplies(server) => {
                sim.memory_server(ServerId(server)).cut(1, Direction::Replies);
            }
        }
        sim.run_until(sim.now_ns() + ns).unwrap();
        match outage {
            Outage::Stopped(server) => sim.memory_server(ServerId(server)).resume(),
            Outage::NoReplies(server) => sim.memory_server(ServerId(server)).heal(1),
        }
    }
    sim.run().unwrap();
    assert_eq!(running.get(), 0, "seed {seed}: somebody hangs");
    sim.calm();
    sim.block_on(async {
        for _ in 0..8 {
            keeper.tick().await.unwrap();
        }
        // Who could not wait for others' epochs has left as dead.
        if let Some(recovery) = keeper.recover_begin().await.unwrap() {
            let mut audit = recovery.audit();
            walk(&keeper, table, &mut audit).await;
            let done = keeper.recover_finish(recovery, &audit).await.unwrap();
            assert_eq!(done.problems, Vec::<String>::new(), "seed {seed}");
        }
        let mut audit = Audit::new(&keeper).await.unwrap();
        walk(&keeper, table, &mut audit).await;
        let report = audit.report(&keeper).await.unwrap();
        assert!(report.closes(), "seed {seed}: {report:#?}");
        let members = crate::member::read_table(keeper.reliable(), keeper.pool().geometry()).await;
        let members = members.unwrap();
        let used =
            members.iter().filter(|entry| entry.word.0 & 15 != 0 || entry.incarnation.0 != 0);
        assert_eq!(used.count(), 1, "seed {seed}: {members:?}");
        let clients = keeper.pool().read_clients(keeper.reliable()).await.unwrap();
        assert_eq!(clients.len(), 1, "seed {seed}: {clients:?}");
    })
    .unwrap();
}

/// Marks everything that the table refers to.
async fn walk(session: &Mine, table: GlobalAddr, audit: &mut Audit) {
    let (reliable, bytes) = (session.reliable(), CLIENTS * SLOTS * 8);
    audit.mark(table, bytes).unwrap();
    let slots = reliable.read(table, reliable.buf(bytes)).await.unwrap();
    for word in slots.words().iter().filter(|word| is_full(**word)) {
        let addr = GlobalAddr::from_word(*word).unwrap();
        let bytes = reliable.word(addr).await.unwrap();
        audit.mark(addr, bytes as usize).unwrap();
    }
}

/// As many as `usual` says, and those that `also` found something.
fn seeds(usual: u64, also: &[u64]) -> Vec<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    match number("FARLEAF_SEED") {
        Some(seed) => vec![seed],
        None => {
            let usual = 0..usual * number("FARLEAF_SOAK").unwrap_or(1);
            usual.chain(also.iter().copied()).collect()
        }
    }
}

/// Seed 140: a block was carved anew between two tries at giving an object of it back. Seed 935: a session
/// joined where another of its process was leaving for the second time: "no incarnation but state".
#[test]
fn lost_operations_lose_no_memory() {
    for seed in seeds(12, &[140, 935]) {
        let lost = [0.005, 0.02, 0.05][seed as usize % 3];
        println!("seed {seed}");
        run(seed, 300, ServerFailures { lost, outage: None });
    }
}

#[test]
fn outages_lose_no_memory() {
    for seed in seeds(6, &[]) {
        let server = (seed / 2 % 2) as u16;
        let outage =
            if seed % 2 == 0 { Outage::Stopped(server) } else { Outage::NoReplies(server) };
        // Longer than anybody has patience, every third time.
        let ns = if seed % 3 == 0 { 2_500_000_000 } else { 20_000_000 };
        println!("seed {seed}: {outage:?}");
        run(seed, 300, ServerFailures { lost: 0.01, outage: Some((outage, ns)) });
    }
}

/// Clients of three threads add to one word under a lock, and each to a word of its own by CAS: with
/// every third operation lost, each addition happens once.
///
/// Seed 24: a second try was taken for settled by the reconnect of a READ between it and the first.
#[test]
fn settled_operations_happen_once() {
    const CLIENTS: u64 = 6;
    const TIMES: u64 = 60;
    for seed in seeds(4, &[24]) {
        let config = SimConfig {
            compute_servers: COMPUTE,
            region_bytes: 2 << 20,
            adversary: AdversaryConfig {
                lost: 0.3,
                shuffle: true,
                split_rmw: 0.3,
                ..AdversaryConfig::default()
            },
            ..SimConfig::seeded(seed)
        };
        let sim = Sim::new(config).unwrap();
        let at = |word: u64| GlobalAddr::new(ServerId(0), 4096 + word * 64);
        let (lock, sum) = (at(0), at(1));
        let lines: Vec<Rc<Reconnects>> =
            (0..COMPUTE).map(|_| Rc::new(Reconnects::new(1))).collect();
        let endpoints: Vec<AnyEndpoint> =
            (0..COMPUTE).map(|compute| sim.fabric(compute).any_endpoint().unwrap()).collect();
        for number in 0..CLIENTS {
            let compute = number as usize % COMPUTE;
            let (lines, endpoint) = (Rc::clone(&lines[compute]), endpoints[compute].clone());
            sim.spawn(compute, async move {
                let client = Client::new(endpoint);
                let reliable = Reliable::new(&client, &lines, PATIENCE_NS);
                for time in 0..TIMES {
                    let own = reliable.cas_release(at(2 + number), time, time + 1).await;
                    assert_eq!(own, Ok(time), "seed {seed}");
                    let token = 1 << 63 | number << 32 | time;
                    while reliable.cas(lock, 0, token).await.unwrap() != 0 {
                        reliable.endpoint().sleep(5_000).await;
                    }
                    let next = reliable.word(sum).await.unwrap() + 1;
                    let chain = |ops: &mut farleaf_fabric::Ops| {
                        ops.write_word(sum, next);
                        ops.cas(lock, token, 0);
                    };
                    reliable.release(lock, token, chain).await.unwrap();
                }
            });
        }
        sim.run().unwrap();
        let words = sim.memory(ServerId(0)).unwrap();
        let word =
            |at: GlobalAddr| words.as_slice()[at.offset() as usize / 8].load(Ordering::SeqCst);
        assert_eq!((word(lock), word(sum)), (0, CLIENTS * TIMES), "seed {seed}");
        for number in 0..CLIENTS {
            assert_eq!(word(at(2 + number)), TIMES, "seed {seed}");
        }
    }
}

/// Work that takes long because the machine is busy is waited for, and such that a failing server may hold up
/// is not, whichever thread the server has failed.
#[test]
fn work_is_waited_for_longer_while_no_server_fails() {
    // So seldom that it does not happen.
    let adversary = AdversaryConfig { lost: 1e-12, ..AdversaryConfig::default() };
    let sim = Sim::new(SimConfig { adversary, ..SimConfig::seeded(5) }).unwrap();
    let endpoint = sim.fabric(0).any_endpoint().unwrap();
    let (client, lines) = (Client::new(endpoint.clone()), Reconnects::new(1));
    sim.block_on(async {
        let reliable = Reliable::new(&client, &lines, PATIENCE_NS);
        let waited = async |patiences: f64| {
            let (begun_ns, work_ns) = (endpoint.now_ns(), patiences * PATIENCE_NS as f64);
            let done = reliable.within(endpoint.sleep(work_ns as u64)).await;
            (done.is_some(), (endpoint.now_ns() - begun_ns) as f64 / PATIENCE_NS as f64)
        };
        assert_eq!(waited(5.5).await, (true, 5.5));
        assert_eq!(waited(100.0).await, (false, 10.0));
        let (other, failing) = (lines.of_another_thread(), endpoint.clone());
        sim.spawn(0, async move {
            failing.sleep(PATIENCE_NS * 5 / 2).await;
            let client = Client::new(failing);
            Reliable::new(&client, &other, PATIENCE_NS).settle(ServerId(0)).await.unwrap();
        });
        assert_eq!(waited(5.5).await, (false, 3.0));
        assert_eq!(waited(0.5).await, (true, 0.5));
    })
    .unwrap();
}

/// Compute servers may die one after the other: until the second is known to be dead, the first cannot be cut off from
/// it. That is waited for, and is no failure of a memory server.
#[test]
fn a_compute_server_that_may_be_dead_is_waited_for() {
    const LEASE_NS: u64 = 3 * PATIENCE_NS;
    let config = SimConfig { compute_servers: 3, lease_ns: LEASE_NS, ..SimConfig::seeded(5) };
    let sim = Sim::new(config).unwrap();
    for number in 0..3 {
        let server = ServerId(ServerId::COMPUTE_FIRST.0 + number as u16);
        let incarnation = sim.fabric(number).incarnation();
        sim.fabric(0).attach(Peer { server, incarnation, address: None, region_bytes: 0 }).unwrap();
    }
    let endpoint = sim.fabric(0).any_endpoint().unwrap();
    let (client, lines) = (Client::new(endpoint.clone()), Reconnects::new(1));
    sim.fabric(1).kill();
    sim.fabric(2).stop();
    sim.cut(0, 2);
    let dead = sim.fabric(1).incarnation();
    sim.block_on(async {
        let reliable = Reliable::new(&client, &lines, PATIENCE_NS);
        let since_ns = endpoint.now_ns();
        assert_eq!(reliable.within(reliable.fence_everywhere(dead)).await, Some(Ok(())));
        let waited_ns = endpoint.now_ns() - since_ns;
        assert!((LEASE_NS..LEASE_NS + PATIENCE_NS).contains(&waited_ns), "{waited_ns}");
    })
    .unwrap();
}
