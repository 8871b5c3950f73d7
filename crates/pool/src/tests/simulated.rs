//! Simulated index: compute servers insert, read and remove in a small index, die, and are recovered.
//!
//! They drop operations half done, die at any moment and come back. No object is reused while a reader
//! holds it. At the end the audit accounts for every object.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use farleaf_fabric::sim::{AdversaryConfig, Sim, SimConfig};
use farleaf_fabric::{AnyEndpoint, Client, Endpoint, GlobalAddr, OpKind, ServerId, ToAny};

use super::{SMALL, member};
use crate::member::read_table;
use crate::{Audit, Pool, PoolError, PoolOptions, Session, format, is_open};

type Mine = Session;

const SLOTS: usize = 96;
/// Bytes of the largest object.
const BYTES_MAX: usize = (64 + 48) << 5;
const COMPUTE: usize = 4;
const SESSIONS: usize = 2;

/// State that the whole run shares, outside of the pool.
#[derive(Default)]
pub(super) struct Shared {
    pub(super) stop: Cell<bool>,
    running: Cell<usize>,
    recovered: Cell<usize>,
    reads: Cell<usize>,
    freed: Cell<u64>,
}

/// One word per key: the address of its object, or 0. An object's words are all the same, but the
/// second, which holds its length.
pub(super) struct Table(GlobalAddr);

impl Table {
    fn slot(&self, key: usize) -> GlobalAddr {
        self.0.plus(key as u64 * 8)
    }

    pub(super) async fn open(session: &Mine) -> Self {
        Table(session.open_root("t").await.unwrap().addr)
    }

    pub(super) async fn make(session: &Mine) -> Self {
        let addr = session.alloc(ServerId(0), SLOTS * 8).await.unwrap();
        let mut zero = session.client().buf(SLOTS * 8);
        zero.words_mut().fill(0);
        session.client().write(addr, zero).await.unwrap();
        session.create_root("t", "slots", &[0; 64], addr).await.unwrap();
        Table(addr)
    }

    /// One operation on a random key.
    pub(super) async fn step(&self, session: &Mine, shared: &Shared) -> Result<(), PoolError> {
        let endpoint = session.endpoint();
        let random = endpoint.random();
        let key = (random >> 8) as usize % SLOTS;
        let _pinned = session.begin(OpKind::Update).await?;
        let client = session.client();
        let found = client.read(self.slot(key), client.buf(8)).await?.words()[0];
        if found == 0 {
            let bytes = any_bytes(random >> 32);
            let addr = session.alloc(session.place(), bytes).await?;
            let mut content = client.buf(bytes);
            content.words_mut().fill(random << 8 | key as u64);
            content.words_mut()[1] = bytes as u64;
            client.write(addr, content).await?;
            if client.cas(self.slot(key), 0, addr.word()).await? != 0 {
                session.free_unpublished(addr, bytes);
            }
            return Ok(());
        }
        let addr = GlobalAddr::from_word(found).unwrap();
        if random & 1 == 0 {
            let bytes = length(session, addr).await?;
            endpoint.sleep(random >> 50).await;
            let content = client.read(addr, client.buf(bytes)).await?;
            let (first, words) = (content.words()[0], content.words());
            assert_eq!(first & 0xff, key as u64, "reused under a reader's pin");
            assert!(words[2..].iter().all(|word| *word == first), "reused under a reader's pin");
            shared.reads.set(shared.reads.get() + 1);
            return Ok(());
        }
        let retiring = session.prepare_retire(addr).await?;
        if client.cas(self.slot(key), found, 0).await? == found {
            session.retire(retiring);
        } else {
            session.cancel_retire(retiring);
        }
        Ok(())
    }

    /// Marks everything that the table reaches.
    pub(super) async fn walk(&self, session: &Mine, audit: &mut Audit) {
        let reliable = session.reliable();
        audit.mark(self.0, SLOTS * 8).unwrap();
        let slots = reliable.read(self.0, reliable.buf(SLOTS * 8)).await.unwrap();
        for word in slots.words().iter().filter(|word| **word != 0) {
            let addr = GlobalAddr::from_word(*word).unwrap();
            let bytes = length(session, addr).await.unwrap();
            audit.mark(addr, bytes).unwrap();
        }
    }
}

/// A size of any class up to `BYTES_MAX`, with the same number of objects of each.
fn any_bytes(random: u64) -> usize {
    let [quarters, doublings] = [random % 4, random / 4 % 6].map(|part| part as usize);
    (64 + 16 * quarters) << doublings
}

async fn length(session: &Mine, addr: GlobalAddr) -> Result<usize, PoolError> {
    let head = session.reliable().read(addr, session.client().buf(16)).await?;
    let bytes = head.words()[1] as usize;
    assert!((64..=BYTES_MAX).contains(&bytes), "reused under a reader's pin: {bytes}");
    Ok(bytes)
}

/// Formats the pool, and keeps a member with a table in it, which ticks every `gap_ns` and recovers the dead until
/// `shared.stop`.
pub(super) fn maintained_pool(
    sim: &Sim,
    options: &PoolOptions,
    gap_ns: u64,
    shared: &Rc<Shared>,
) -> Rc<Mine> {
    let first = sim.fabric(0).any_endpoint().unwrap();
    let keeper = sim.block_on(async {
        format(&Client::new(first.clone()), options).await.unwrap();
        let session = member(&first).await;
        Table::make(&session).await;
        session
    });
    let keeper = Rc::new(keeper.unwrap());
    let (maintenance, stop) = (Rc::clone(&keeper), Rc::clone(shared));
    sim.spawn(0, async move {
        let table = Table::open(&maintenance).await;
        while !stop.stop.get() {
            maintenance.tick().await.unwrap();
            if maintenance.pool().needs_recovery() {
                recover(&maintenance, &table, &stop).await;
            }
            maintenance.endpoint().sleep(gap_ns).await;
        }
    });
    keeper
}

pub(super) async fn recover(session: &Mine, table: &Table, shared: &Shared) {
    let Some(recovery) = session.recover_begin().await.unwrap() else { return };
    let mut audit = recovery.audit();
    table.walk(session, &mut audit).await;
    let done = session.recover_finish(recovery, &audit).await.unwrap();
    assert_eq!(done.problems, Vec::<String>::new());
    shared.recovered.set(shared.recovered.get() + done.members);
    shared.freed.set(shared.freed.get() + done.objects_freed);
}

/// One client of a compute server, until the run stops.
async fn work(session: Mine, shared: Rc<Shared>) {
    let table = Table::open(&session).await;
    let mut steps = 0_usize;
    while !shared.stop.get() {
        let patience_ns = patience_ns(session.endpoint());
        match for_at_most(session.endpoint(), patience_ns, table.step(&session, &shared)).await {
            Some(Ok(()) | Err(PoolError::Full { .. } | PoolError::RetireFull)) | None => {}
            // Failed by a reconnect of the thread's other session, which settles what it has dropped:
            // as if this one had been dropped.
            Some(Err(PoolError::Fabric(error))) if is_open(error) => {}
            Some(Err(error)) => panic!("{error}"),
        }
        steps += 1;
        if steps.is_multiple_of(4)
            && let Some(done) = for_at_most(session.endpoint(), patience_ns, session.tick()).await
        {
            done.unwrap();
        }
        if session.pool().needs_recovery() {
            recover(&session, &table, &shared).await;
        }
    }
    for _ in 0..4 {
        session.tick().await.unwrap();
    }
    shared.running.set(shared.running.get() - 1);
}

/// Time that a caller waits: mostly for ever, now and then too short.
fn patience_ns(endpoint: &AnyEndpoint) -> u64 {
    let random = endpoint.random();
    if random.is_multiple_of(8) { (random >> 8) % 12_000 } else { u64::MAX / 4 }
}

/// The result, or `None` if it was dropped half done because it took too long.
async fn for_at_most<T>(
    endpoint: &AnyEndpoint,
    ns: u64,
    work: impl Future<Output = T>,
) -> Option<T> {
    let (mut work, mut sleep) = (pin!(work), pin!(endpoint.sleep(ns)));
    poll_fn(|context| match work.as_mut().poll(context) {
        Poll::Ready(result) => Poll::Ready(Some(result)),
        Poll::Pending => sleep.as_mut().poll(context).map(|()| None),
    })
    .await
}

/// A compute server: joins, and runs its clients.
async fn compute(endpoint: AnyEndpoint, shared: Rc<Shared>) {
    let pool = Pool::join(&Client::new(endpoint.clone())).await.unwrap();
    for _ in 0..SESSIONS {
        let session = pool.session(endpoint.clone()).await.unwrap();
        shared.running.set(shared.running.get() + 1);
        endpoint.spawn(work(session, Rc::clone(&shared)));
    }
}

fn run(seed: u64, deaths: usize) -> u64 {
    let config = SimConfig {
        memory_servers: 2,
        compute_servers: COMPUTE,
        region_bytes: 2 << 20,
        adversary: AdversaryConfig { torn: 0.1, split_rmw: 0.1, ..AdversaryConfig::default() },
        ..SimConfig::seeded(seed)
    };
    let sim = Sim::new(config).unwrap();
    let shared = Rc::new(Shared::default());
    let first = sim.fabric(0).any_endpoint().unwrap();
    let options = crate::PoolOptions { clients_max: 16, members_max: 8, ..SMALL };
    let keeper = sim.block_on(async {
        format(&Client::new(first.clone()), &options).await.unwrap();
        let pool = Pool::join(&Client::new(first.clone())).await.unwrap();
        let session = pool.session(first.clone()).await.unwrap();
        Table::make(&session).await;
        for _ in 0..3 {
            session.tick().await.unwrap();
        }
        session
    });
    let keeper = keeper.unwrap();
    for server in 1..COMPUTE {
        let endpoint = sim.fabric(server).any_endpoint().unwrap();
        sim.spawn(server, compute(endpoint, Rc::clone(&shared)));
    }
    for death in 0..deaths {
        sim.run_until(sim.now_ns() + 400_000 + (seed * 7919 + death as u64 * 104_729) % 90_000)
            .unwrap();
        let victim = 1 + (seed as usize + death) % (COMPUTE - 1);
        sim.fabric(victim).kill();
        shared.running.set(shared.running.get() - SESSIONS);
        sim.run_until(sim.now_ns() + 150_000).unwrap();
        let endpoint = sim.fabric(victim).restart().any_endpoint().unwrap();
        sim.spawn(victim, compute(endpoint, Rc::clone(&shared)));
    }
    sim.run_until(sim.now_ns() + 1_500_000).unwrap();
    shared.stop.set(true);
    sim.run_until(sim.now_ns() + 5_000_000).unwrap();
    assert_eq!(shared.running.get(), 0, "seed {seed}: somebody hangs");
    assert!(shared.recovered.get() <= deaths, "seed {seed}");
    assert!(shared.recovered.get() * 2 >= deaths, "seed {seed}: while the others went on");
    assert!(shared.reads.get() > 100, "seed {seed}: {} reads", shared.reads.get());
    // The others die, idle; what they held is recovered.
    for server in 1..COMPUTE {
        sim.fabric(server).kill();
    }
    let closes = sim.block_on(async {
        let table = Table::open(&keeper).await;
        recover(&keeper, &table, &shared).await;
        let members = read_table(keeper.reliable(), keeper.pool().geometry()).await.unwrap();
        let left = members.iter().filter(|entry| entry.word.0 & 15 != 0).count();
        assert_eq!(left, 1, "seed {seed}: {members:?}");
        for _ in 0..8 {
            keeper.tick().await.unwrap();
        }
        let mut audit = Audit::new(&keeper).await.unwrap();
        table.walk(&keeper, &mut audit).await;
        let report = audit.report(&keeper).await.unwrap();
        assert!(report.closes(), "seed {seed}: {report:?}");
        assert_eq!(report.blocks_owned, 1, "seed {seed}: the table's: {report:?}");
    });
    closes.unwrap();
    shared.freed.get()
}

#[test]
fn nothing_is_reused_under_a_reader() {
    for seed in 0..6 {
        run(seed, 0);
    }
}

#[test]
fn compute_servers_die_and_nothing_is_lost() {
    let freed: u64 = (0..20).map(|seed| run(seed, 4)).sum();
    assert!(freed > 0, "the dead had lost objects, which recovery found");
}

/// Who took the entry of one who had died while joining found it live, if what the dead had sent last came
/// after the table had been read: "member 1 has no incarnation but state".
#[test]
fn an_entry_of_one_who_died_while_joining_may_become_live_late() {
    let mut late = 0;
    for seed in 0..400 {
        let adversary =
            AdversaryConfig { late: 0.5, late_ns: 30_000, ..AdversaryConfig::default() };
        let config = SimConfig {
            compute_servers: 3,
            region_bytes: 2 << 20,
            lease_ns: 1_000,
            ..SimConfig::seeded(seed)
        };
        let sim = Sim::new(SimConfig { adversary, ..config }).unwrap();
        let first = sim.fabric(0).any_endpoint().unwrap();
        let keeper = sim.block_on(async {
            format(&Client::new(first.clone()), &SMALL).await.unwrap();
            Pool::join(&Client::new(first.clone())).await.unwrap().session(first.clone()).await
        });
        let keeper = keeper.unwrap().unwrap();
        let endpoint = sim.fabric(1).any_endpoint().unwrap();
        sim.spawn(1, async move {
            let _ = Pool::join(&Client::new(endpoint)).await;
        });
        sim.run_until(sim.now_ns() + 5_000 + seed * 200).unwrap();
        sim.fabric(1).kill();
        sim.run_until(sim.now_ns() + 2_000).unwrap();
        let endpoint = sim.fabric(2).any_endpoint().unwrap();
        let members = sim.block_on(async {
            Pool::join(&Client::new(endpoint)).await.map(drop).unwrap();
            read_table(keeper.reliable(), keeper.pool().geometry()).await.unwrap()
        });
        late += usize::from(members.unwrap()[1].incarnation != sim.fabric(2).incarnation());
    }
    assert!((20..380).contains(&late), "{late} of 400: some must come late, and some must not");
}

/// `farleaf verify` of a store whose maintenance was just freeing what had been retired said "the object is
/// free at its owner and retired": the one was looked at after the other.
#[test]
fn an_audit_beside_its_own_members_maintenance_adds_up() {
    const OBJECTS: usize = 1_600;
    let mut caught = 0;
    for seed in 0..160 {
        let adversary =
            AdversaryConfig { late: 0.3, late_ns: 20_000, ..AdversaryConfig::default() };
        let config = SimConfig {
            memory_servers: 2,
            region_bytes: 2 << 20,
            adversary,
            ..SimConfig::seeded(seed)
        };
        let sim = Sim::new(config).unwrap();
        let endpoint = sim.fabric(0).any_endpoint().unwrap();
        let outcome = sim.block_on(async {
            format(&Client::new(endpoint.clone()), &SMALL).await.unwrap();
            let pool = Pool::join(&Client::new(endpoint.clone())).await.unwrap();
            // Else own objects become free at one moment.
            pool.poison_freed();
            let (busy, auditor) = (
                pool.session(endpoint.clone()).await.unwrap(),
                pool.session(endpoint.clone()).await.unwrap(),
            );
            for number in 0..OBJECTS {
                let addr = busy.alloc(ServerId((number % 2) as u16), 64).await.unwrap();
                let retiring = busy.prepare_retire(addr).await.unwrap();
                busy.retire(retiring);
            }
            endpoint.spawn(async move {
                for _ in 0..80 {
                    busy.tick().await.unwrap();
                }
            });
            let mut mixed = 0;
            while pool.memory().retired_bytes > 0 {
                let report = Audit::new(&auditor).await.unwrap().report(&auditor).await.unwrap();
                assert!(report.closes(), "seed {seed}: {report:?}");
                let retired: u64 = report.classes.iter().map(|class| class.retired).sum();
                mixed += usize::from((1..OBJECTS as u64).contains(&retired));
            }
            mixed
        });
        caught += outcome.unwrap();
    }
    assert!(caught > 10, "an audit saw some free and some not yet {caught} times");
}

/// Who is alone ticks every 40 ms; with others every 10, from its first tick after they have come.
#[test]
fn who_is_alone_asks_less_often() {
    let config = SimConfig { compute_servers: 2, region_bytes: 4 << 20, ..SimConfig::seeded(1) };
    let sim = Sim::new(config).unwrap();
    let [first, second] = [0, 1].map(|number| sim.fabric(number).any_endpoint().unwrap());
    sim.block_on(async {
        format(&Client::new(first.clone()), &SMALL).await.unwrap();
        let one = Pool::join(&Client::new(first.clone())).await.unwrap();
        let one = one.session(first.clone()).await.unwrap();
        // Ticks in 400 ms, asked for every millisecond.
        let ticks = async || {
            let requests = |spent: farleaf_fabric::Cost| spent.chains + spent.reads;
            let cost = || requests(first.counters().snapshot().kind(OpKind::Maintenance));
            let mut count = 0;
            for _ in 0..400 {
                let before = cost();
                one.tick_if_due().await.unwrap();
                count += usize::from(cost() > before);
                first.sleep(1_000_000).await;
            }
            count
        };
        ticks().await;
        assert_eq!(ticks().await, 10);
        let two = Pool::join(&Client::new(second.clone())).await.unwrap();
        let two = two.session(second.clone()).await.unwrap();
        // It moves the epoch on, as far as it can alone.
        for _ in 0..2 {
            drop(two.begin(OpKind::Get).await.unwrap());
            two.tick().await.unwrap();
        }
        let noticed = ticks().await;
        assert!((34..=40).contains(&noticed), "{noticed} ticks, the first after up to 40 ms");
        assert_eq!(ticks().await, 40);
        drop(two);
    })
    .unwrap();
}
