//! Churn tests: members join, write a little, and leave or die, and the pool's blocks stay in proportion to
//! what lives.

use std::cell::Cell;
use std::rc::Rc;

use farleaf_fabric::sim::{Sim, SimConfig};
use farleaf_fabric::{AnyEndpoint, Client, Endpoint, OpKind, ServerId, ToAny};

use super::simulated::{Shared, Table, maintained_pool, recover};
use super::{Mine, SMALL, audit_of, endpoint, formatted, member, objects_of_block, tick};
use crate::{Audit, AuditReport, Pool, PoolError, PoolOptions, format};

const ONE: ServerId = ServerId(0);
const SERVERS: usize = 2;
/// Members that come and go at a time, beside the one that stays.
const COMERS: usize = 4;
const OPTIONS: PoolOptions =
    PoolOptions { block_bytes: 256 << 10, clients_max: 256, members_max: 8, ..SMALL };

/// Blocks that the live objects fill, all classes together.
fn filled(session: &Mine, report: &AuditReport) -> u64 {
    let bytes: u64 = report.classes.iter().map(|class| class.live * class.bytes).sum();
    bytes.div_ceil(session.pool().geometry().shape().usable_bytes())
}

fn taken(report: &AuditReport) -> u64 {
    report.blocks_owned + report.blocks_orphan
}

/// The times between events of a run.
#[derive(Clone, Copy)]
struct Pace {
    /// Between two lives of a compute server, and between two operations, at most.
    life_gap_ns: u64,
    step_gap_ns: u64,
    /// Between two deaths, at least; at most three times as long.
    death_gap_ns: u64,
    maintenance_gap_ns: u64,
}

/// As fast as it goes: members die faster than they are recovered.
const FAST: Pace =
    Pace { life_gap_ns: 1, step_gap_ns: 1, death_gap_ns: 500_000, maintenance_gap_ns: 20_000 };
/// A life a second on each compute server, and a death each 12 seconds.
const DAILY: Pace = Pace {
    life_gap_ns: 1_000_000_000,
    step_gap_ns: 40_000_000,
    death_gap_ns: 6_000_000_000,
    maintenance_gap_ns: 20_000_000,
};

struct Churn {
    shared: Rc<Shared>,
    pace: Pace,
    /// Ended by leaving.
    lives: Cell<usize>,
    /// Compute servers that come and go.
    comers: Cell<usize>,
}

/// One compute server that joins, changes up to 12 keys and leaves, again and again.
async fn come_and_go(number: usize, endpoint: AnyEndpoint, churn: Rc<Churn>) {
    while !churn.shared.stop.get() && number <= churn.comers.get() {
        endpoint.sleep(endpoint.random() % churn.pace.life_gap_ns).await;
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
            table.step(&session, &churn.shared).await.unwrap();
            endpoint.sleep(endpoint.random() % churn.pace.step_gap_ns).await;
        }
        session.tick().await.unwrap();
        // One that succeeds to a dead one recovers it, and others if it sees them.
        if session.pool().needs_recovery() {
            recover(&session, &table, &churn.shared).await;
        }
        session.leave().await.unwrap();
        churn.lives.set(churn.lives.get() + 1);
    }
}

/// Frees what the dead unlinked in blocks of members that lived on, and did not announce.
async fn sweep(session: &Mine, table: &Table) {
    let Some(recovery) = session.sweep_begin().await.unwrap() else { return };
    let mut audit = recovery.audit();
    table.walk(session, &mut audit).await;
    let done = session.recover_finish(recovery, &audit).await.unwrap();
    assert!(done.complete && done.problems.is_empty(), "{done:?}");
}

/// Lives; blocks taken and filled, after the churn of several compute servers and after that of one.
fn churn(seed: u64, pace: Pace, deaths: usize) -> (usize, [(u64, u64); 2]) {
    let config = SimConfig {
        memory_servers: SERVERS,
        compute_servers: COMERS + 1,
        region_bytes: 8 << 20,
        ..SimConfig::seeded(seed)
    };
    let sim = Sim::new(config).unwrap();
    let (shared, lives, comers) = (Rc::new(Shared::default()), Cell::new(0), Cell::new(COMERS));
    let churn = Rc::new(Churn { shared: Rc::clone(&shared), pace, lives, comers });
    let keeper = maintained_pool(&sim, &OPTIONS, pace.maintenance_gap_ns, &shared);
    let start = |number: usize, endpoint: AnyEndpoint| {
        sim.spawn(number, come_and_go(number, endpoint, Rc::clone(&churn)));
    };
    (1..=COMERS).for_each(|number| start(number, sim.fabric(number).any_endpoint().unwrap()));
    for death in 0..deaths {
        let more = (seed * 7919 + death as u64 * 104_729) % 2_000;
        sim.run_until(sim.now_ns() + pace.death_gap_ns * (1_000 + more) / 1_000).unwrap();
        let victim = 1 + death % COMERS;
        sim.fabric(victim).kill();
        start(victim, sim.fabric(victim).restart().any_endpoint().unwrap());
    }
    let table = sim.block_on(Table::open(&keeper)).unwrap();
    let account = || {
        let report = sim.block_on(async {
            recover(&keeper, &table, &shared).await;
            sweep(&keeper, &table).await;
            // Time for the keeper to free blocks that have become empty.
            for _ in 0..100 {
                tick(&keeper, 1).await;
                keeper.endpoint().sleep(20_000_000).await;
            }
            let mut audit = Audit::new(&keeper).await.unwrap();
            table.walk(&keeper, &mut audit).await;
            let report = audit.report(&keeper).await.unwrap();
            assert!(report.closes(), "seed {seed}: {report:?}");
            report
        });
        let report = report.unwrap();
        (taken(&report), filled(&keeper, &report))
    };
    let rest_ns = 50_000_000 + 20 * pace.life_gap_ns;
    churn.comers.set(0);
    sim.run_until(sim.now_ns() + rest_ns).unwrap();
    let after_several = account();
    churn.comers.set(1);
    start(1, sim.fabric(1).any_endpoint().unwrap());
    let until = churn.lives.get() + 400;
    while churn.lives.get() < until {
        sim.run_until(sim.now_ns() + rest_ns).unwrap();
    }
    shared.stop.set(true);
    sim.run_until(sim.now_ns() + rest_ns).unwrap();
    let after_one = account();
    (churn.lives.get() + deaths, [after_several, after_one])
}

/// At most twice the blocks that live objects fill, and 2 for each memory server and for each of `members`. Objects
/// stay where they are: what members of one time left part-filled lasts until later ones have filled it or removed
/// all of it. After members that came one by one, twice what live objects fill is enough.
fn check_churn(seed: u64, pace: Pace, deaths: usize, members: usize) -> usize {
    let (lives, after) = churn(seed, pace, deaths);
    for ((taken, filled), more) in after.into_iter().zip([2 * (members + SERVERS) as u64, 0]) {
        let most = 2 * filled + more;
        println!(
            "seed {seed}: {lives} lives, {taken} blocks taken, {filled} filled, at most {most}"
        );
        assert!(taken <= most, "seed {seed}: {taken} blocks for {filled} after {lives} lives");
    }
    lives
}

/// `FARLEAF_SOAK=n` runs n times as many deaths.
#[test]
fn after_churn_blocks_taken_are_in_proportion_to_what_lives() {
    let soak = std::env::var("FARLEAF_SOAK").ok().and_then(|soak| soak.parse().ok()).unwrap_or(1);
    let check = |seed| check_churn(seed, FAST, 300 * soak, COMERS + 1);
    let lives: usize = (0..5).map(check).sum();
    assert!(lives > 2_000, "{lives} lives");
}

/// An hour of simulated time, with some 20,000 lives, of which 300 end by a death. When blocks are counted, one
/// member lives.
#[test]
fn after_an_hour_of_churn_blocks_taken_are_in_proportion_to_what_lives() {
    let seed = std::env::var("FARLEAF_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let lives = check_churn(seed, DAILY, 300, 1);
    assert!(lives > 15_000, "{lives} lives");
}

/// A member that needs memory during a recovery adopts an orphan, and what it takes from there is not freed.
#[test]
fn orphans_are_adopted_during_a_recovery() {
    let fabric = formatted(1, 4 << 20, SMALL);
    let end = endpoint(&fabric);
    end.executor().block_on(async {
        let (survivor, left, dead) = (member(&end).await, member(&end).await, member(&end).await);
        let kept = left.alloc(ONE, 64).await.unwrap();
        let lost = dead.alloc(ONE, 1024).await.unwrap();
        left.leave().await.unwrap();
        dead.leave_as_dead().await.unwrap();
        let mut recovery = survivor.recover_begin().await.unwrap().expect("somebody is dead");
        let mut audit = recovery.audit();
        audit.mark(kept, 64).unwrap();
        let taker = member(&end).await;
        let new = taker.alloc(ONE, 64).await.unwrap();
        let geometry = taker.pool().geometry();
        let block_of = |addr| geometry.block_of(addr).unwrap().0;
        assert_eq!(block_of(new), block_of(kept), "no new block is taken");
        survivor.recover_forget_adopted(&mut recovery, &mut audit).await.unwrap();
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
        for _ in 0..objects_of_block(&first, 8192) {
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

/// A member gives back an empty block that it does not use any more.
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
        assert_eq!(blocks(), 1);
        end.sleep(1_100_000_000).await;
        tick(&session, 1).await;
        let addr = session.alloc(ONE, 64).await.unwrap();
        end.sleep(1_100_000_000).await;
        tick(&session, 1).await;
        assert_eq!(blocks(), 1, "the one in use");
        session.free_unpublished(addr, 64);
        for _ in 0..2 {
            end.sleep(1_100_000_000).await;
            tick(&session, 1).await;
        }
        assert_eq!(blocks(), 0);
        let addr = session.alloc(ONE, 64).await.unwrap();
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
