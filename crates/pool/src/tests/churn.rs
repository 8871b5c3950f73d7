//! Churn tests: members join, write a little, and leave or die, and the pool's blocks stay in proportion to
//! what lives.

use std::cell::Cell;
use std::rc::Rc;

use farleaf_fabric::sim::{Sim, SimConfig};
use farleaf_fabric::{AnyEndpoint, Client, Endpoint, Fabric, OpKind, ServerId};

use super::simulated::{Shared, Table, recover};
use super::{Mine, SMALL, audit_of, endpoint, formatted, join, member, tick};
use crate::{Audit, AuditReport, Pool, PoolError, PoolOptions, format};

const ONE: ServerId = ServerId(0);
const SERVERS: usize = 2;
/// Members that come and go at a time, beside the one that stays.
const COMERS: usize = 4;
const OPTIONS: PoolOptions = PoolOptions { clients_max: 256, members_max: 8, ..SMALL };

/// Blocks that the live objects fill, each class by itself.
fn filled(report: &AuditReport) -> u64 {
    let classes = report.classes.iter();
    classes.map(|class| class.live.div_ceil((class.handed_out / class.blocks).max(1))).sum()
}

fn taken(report: &AuditReport) -> u64 {
    report.blocks_owned + report.blocks_orphan
}

/// One compute server that joins, changes up to 12 keys and leaves, again and again.
async fn come_and_go(endpoint: AnyEndpoint, shared: Rc<Shared>, lives: Rc<Cell<usize>>) {
    while !shared.stop.get() {
        let session: Mine = match Pool::join(&Client::new(endpoint.clone())).await {
            Ok(pool) => pool.session(endpoint.clone()).await.unwrap(),
            Err(PoolError::NoSlot(..)) => {
                endpoint.sleep(50_000).await;
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        let table = Table::open(&session).await;
        for _ in 0..1 + endpoint.random() % 12 {
            match table.step(&session, &shared).await {
                Ok(()) => {}
                Err(error) => panic!("{error}"),
            }
        }
        session.tick().await.unwrap();
        // One that succeeds to a dead one recovers it, and others if it sees them.
        if session.pool().needs_recovery() {
            recover(&session, &table, &shared).await;
        }
        session.leave().await.unwrap();
        lives.set(lives.get() + 1);
    }
}

/// Lives, blocks taken at the end, and blocks that live objects fill.
fn churn(seed: u64, deaths: usize) -> (usize, u64, u64) {
    let config = SimConfig {
        memory_servers: SERVERS,
        compute_servers: COMERS + 1,
        region_bytes: 8 << 20,
        ..SimConfig::seeded(seed)
    };
    let sim = Sim::new(config).unwrap();
    let (shared, lives) = (Rc::new(Shared::default()), Rc::new(Cell::new(0)));
    let first = sim.fabric(0).any_endpoint().unwrap();
    let keeper = sim.block_on(async {
        format(&Client::new(first.clone()), &OPTIONS).await.unwrap();
        let session = member(&first).await;
        Table::make(&session).await;
        session
    });
    let keeper = Rc::new(keeper.unwrap());
    let (upkeep, stop) = (Rc::clone(&keeper), Rc::clone(&shared));
    sim.spawn(0, async move {
        let table = Table::open(&upkeep).await;
        while !stop.stop.get() {
            upkeep.tick().await.unwrap();
            if upkeep.pool().needs_recovery() {
                recover(&upkeep, &table, &stop).await;
            }
            upkeep.endpoint().sleep(20_000).await;
        }
    });
    let start = |number: usize, endpoint: AnyEndpoint| {
        sim.spawn(number, come_and_go(endpoint, Rc::clone(&shared), Rc::clone(&lives)));
    };
    (1..=COMERS).for_each(|number| start(number, sim.fabric(number).any_endpoint().unwrap()));
    for death in 0..deaths {
        let apart_ns = 500_000 + (seed * 7919 + death as u64 * 104_729) % 900_000;
        sim.run_until(sim.now_ns() + apart_ns).unwrap();
        let victim = 1 + death % COMERS;
        sim.fabric(victim).kill();
        start(victim, sim.fabric(victim).restart().any_endpoint().unwrap());
    }
    shared.stop.set(true);
    sim.run_until(sim.now_ns() + 50_000_000).unwrap();
    let report = sim.block_on(async {
        let table = Table::open(&keeper).await;
        recover(&keeper, &table, &shared).await;
        for _ in 0..100 {
            tick(&keeper, 1).await;
            first.sleep(20_000_000).await;
        }
        let mut audit = Audit::new(&keeper).await.unwrap();
        table.walk(&keeper, &mut audit).await;
        let report = audit.report(&keeper).await.unwrap();
        assert!(report.closes(), "seed {seed}: {report:?}");
        report
    });
    let report = report.unwrap();
    (lives.get() + deaths, taken(&report), filled(&report))
}

fn check_churn(seed: u64, deaths: usize) -> usize {
    let (lives, taken, filled) = churn(seed, deaths);
    let most = 2 * filled + 2 * (1 + SERVERS as u64);
    println!("seed {seed}: {lives} lives, {taken} blocks taken, {filled} filled, at most {most}");
    assert!(taken <= most, "seed {seed}: {taken} blocks for {filled} after {lives} lives");
    lives
}

/// `FARLEAF_SOAK=n` runs n times as many deaths; 40 make an hour of simulated time.
#[test]
fn after_churn_blocks_taken_are_in_proportion_to_what_lives() {
    let soak = std::env::var("FARLEAF_SOAK").ok().and_then(|soak| soak.parse().ok()).unwrap_or(1);
    let lives: usize = (0..3).map(|seed| check_churn(seed, 300 * soak)).sum();
    assert!(lives > 2_000, "{lives} lives");
}

/// A member that needs memory during a recovery adopts an orphan, and what it takes from there is not freed.
#[test]
fn orphans_are_adopted_during_a_recovery() {
    let fabric = formatted(1, 4 << 20, SMALL);
    let end = endpoint(&fabric);
    end.executor().block_on(async {
        let (survivor, left) = (member(&end).await, member(&end).await);
        let kept = left.alloc(ONE, 64).await.unwrap();
        left.leave().await.unwrap();
        let dead = member(&end).await;
        let lost = dead.alloc(ONE, 1024).await.unwrap();
        dead.leave_as_dead().await.unwrap();
        let mut recovery = survivor.recover_begin().await.unwrap().expect("somebody is dead");
        let mut audit = recovery.audit();
        audit.mark(kept, 64).unwrap();
        let taker = member(&end).await;
        let new = taker.alloc(ONE, 64).await.unwrap();
        let geometry = taker.pool().geometry();
        let block_of = |addr| geometry.block_of(addr).unwrap().0;
        assert_eq!(block_of(new), block_of(kept), "no new block is taken");
        survivor.recover_claim(&mut recovery, &mut audit).await.unwrap();
        assert_eq!(audit.is_marked(new), None, "the taker's to free");
        assert_eq!(audit.is_marked(lost), Some(false));
        let done = survivor.recover_finish(recovery, &audit).await.unwrap();
        assert!(done.complete && done.problems.is_empty(), "{done:?}");
        assert_eq!(done.blocks, 1);
        assert_ne!(taker.alloc(ONE, 64).await.unwrap(), new);
        tick(&survivor, 2).await;
        taker.leave().await.unwrap();
        let report = audit_of(&survivor, &[(kept, 64), (new, 64)]).await;
        assert_eq!(taken(&report), 1, "{report:?}");
    });
}

/// Full orphans are passed over, until an object is given back to them.
#[test]
fn a_full_orphan_is_found_once_something_is_free_there() {
    let fabric = formatted(1, 4 << 20, SMALL);
    let end = endpoint(&fabric);
    end.executor().block_on(async {
        let (first, second) = (member(&end).await, member(&end).await);
        let mut objects = Vec::new();
        for _ in 0..first.pool().geometry().shape(class(8192)).count {
            objects.push(first.alloc(ONE, 8192).await.unwrap());
        }
        first.leave().await.unwrap();
        // All of it is in use: the next one takes a block of its own.
        let other = second.alloc(ONE, 8192).await.unwrap();
        let geometry = second.pool().geometry();
        let block_of = |addr| geometry.block_of(addr).unwrap().0;
        assert_ne!(block_of(other), block_of(objects[0]));
        let pinned = second.begin(OpKind::Remove).await.unwrap();
        let retiring = second.prepare_retire(objects[0]).await.unwrap();
        second.retire(retiring);
        drop(pinned);
        tick(&second, 6).await;
        let third = member(&end).await;
        assert_eq!(third.alloc(ONE, 8192).await.unwrap(), objects[0]);
    });
}

fn class(bytes: usize) -> usize {
    crate::class::class_of(bytes).unwrap()
}

/// Members with one long-lived large object each share a block.
#[test]
fn blocks_that_are_handed_on_are_shared() {
    let fabric = formatted(2, 4 << 20, SMALL);
    let end = endpoint(&fabric);
    end.executor().block_on(async {
        let mut members = Vec::new();
        let mut live = Vec::new();
        for _ in 0..4 {
            let session = member(&end).await;
            let log = session.alloc(session.place(), 8192).await.unwrap();
            session.hand_on(log);
            assert!(session.finish_tasks().await);
            live.push((log, 8192));
            members.push(session);
        }
        let report = audit_of(&members[0], &live).await;
        assert!(report.closes(), "{report:?}");
        assert_eq!((taken(&report), report.blocks_owned), (1, 0), "{report:?}");
        // Not given on: an object that is not linked yet lies there, too.
        let one = members[0].alloc(ONE, 64).await.unwrap();
        let two = members[0].alloc(ONE, 64).await.unwrap();
        members[0].hand_on(one);
        assert!(members[0].finish_tasks().await);
        assert_eq!(members[0].pool().memory().block_bytes_owned, SMALL.block_bytes);
        members[0].free_unpublished(one, 64);
        members[0].free_unpublished(two, 64);
    });
}

/// A member gives back its empty blocks of classes that it does not use any more.
#[test]
fn an_empty_block_is_given_back_after_a_second() {
    let sim = Sim::new(SimConfig { region_bytes: 4 << 20, ..SimConfig::seeded(1) }).unwrap();
    let end = sim.fabric(0).any_endpoint().unwrap();
    sim.block_on(async {
        format(&Client::new(end.clone()), &SMALL).await.unwrap();
        let session = member(&end).await;
        for bytes in [64, 1024, 8192] {
            let addr = session.alloc(ONE, bytes).await.unwrap();
            session.free_unpublished(addr, bytes);
        }
        let blocks = || session.pool().memory().block_bytes_owned / SMALL.block_bytes;
        tick(&session, 4).await;
        assert_eq!(blocks(), 3);
        end.sleep(1_100_000_000).await;
        tick(&session, 1).await;
        let addr = session.alloc(ONE, 64).await.unwrap();
        end.sleep(1_100_000_000).await;
        tick(&session, 1).await;
        assert_eq!(blocks(), 1, "the one in use");
        session.free_unpublished(addr, 64);
    })
    .unwrap();
}

/// Large values of one key that are replaced all the time fit a small pool, because their bytes are bounded
/// while they wait for reclamation.
#[test]
fn replaced_large_objects_do_not_fill_the_pool() {
    const VALUE_BYTES: usize = 1 << 20;
    let options = PoolOptions { block_bytes: 2 << 20, ..SMALL };
    let fabric = formatted(1, 24 << 20, options);
    let end = endpoint(&fabric);
    end.executor().block_on(async {
        let session = member(&end).await;
        let mut old = session.alloc(ONE, VALUE_BYTES).await.unwrap();
        for number in 0..200 {
            let pinned = session.begin(OpKind::Update).await.unwrap();
            let new = session.alloc(session.place(), VALUE_BYTES).await.unwrap();
            let retiring = session.prepare_retire(old).await.unwrap();
            session.retire(retiring);
            old = new;
            drop(pinned);
            if number % 32 == 31 {
                tick(&session, 1).await;
            }
        }
        tick(&session, 8).await;
        assert_eq!(session.pool().memory().retired_bytes, 0);
        assert_eq!(session.pool().waiting_bytes.load(std::sync::atomic::Ordering::Relaxed), 0);
    });
}

/// Many more openers than entries, some of them killed while they have the pool open: each gets its turn.
#[test]
fn openers_wait_for_an_entry() {
    const OPENERS: usize = 24;
    let config = SimConfig {
        compute_servers: OPENERS + 1,
        region_bytes: 8 << 20,
        lease_ns: 1_000_000,
        ..SimConfig::seeded(3)
    };
    let sim = Sim::new(config).unwrap();
    let first = sim.fabric(0).any_endpoint().unwrap();
    let shared = Rc::new(Shared::default());
    let keeper = sim.block_on(async {
        format(&Client::new(first.clone()), &SMALL).await.unwrap();
        let session = member(&first).await;
        Table::make(&session).await;
        session
    });
    let keeper = Rc::new(keeper.unwrap());
    let (upkeep, stop) = (Rc::clone(&keeper), Rc::clone(&shared));
    sim.spawn(0, async move {
        let table = Table::open(&upkeep).await;
        while !stop.stop.get() {
            upkeep.tick().await.unwrap();
            if upkeep.pool().needs_recovery() {
                recover(&upkeep, &table, &stop).await;
            }
            upkeep.endpoint().sleep(200_000).await;
        }
    });
    let opened = Rc::new(Cell::new(0));
    let open = |number: usize, endpoint: AnyEndpoint| {
        let opened = Rc::clone(&opened);
        sim.spawn(number, async move {
            let client = Client::new(endpoint.clone());
            let pool = Pool::join_within(&client, 30_000_000_000).await.unwrap();
            opened.set(opened.get() + 1);
            endpoint.sleep(5_000_000).await;
            let session = pool.session(endpoint).await.unwrap();
            session.leave().await.unwrap();
        });
    };
    (1..=OPENERS).for_each(|number| open(number, sim.fabric(number).any_endpoint().unwrap()));
    for death in 0..12 {
        sim.run_until(sim.now_ns() + 3_000_000 + death * 700_000).unwrap();
        let victim = 1 + (death as usize * 7) % OPENERS;
        sim.fabric(victim).kill();
        open(victim, sim.fabric(victim).restart().any_endpoint().unwrap());
    }
    sim.run_until(sim.now_ns() + 30_000_000_000).unwrap();
    shared.stop.set(true);
    assert!(opened.get() >= OPENERS, "{} opened", opened.get());
    // Full of the living, it says so after the time that it was given.
    let others: Vec<_> = (1..=4).map(|at| sim.fabric(at).any_endpoint().unwrap()).collect();
    sim.block_on(async {
        let mut living = Vec::new();
        for end in &others[..3] {
            living.push(join(end).await);
        }
        let from_ns = others[3].now_ns();
        let none = Pool::join_within(&Client::new(others[3].clone()), 100_000_000).await;
        assert_eq!(none.unwrap_err(), PoolError::NoSlot("member", 4));
        let waited_ns = others[3].now_ns() - from_ns;
        assert!((100_000_000..200_000_000).contains(&waited_ns), "{waited_ns} ns");
        drop(living);
    })
    .unwrap();
}
