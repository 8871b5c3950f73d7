//! Move crash tests: a compute server of `dex` dies while a range changes owners.
//!
//! It dies at every remote operation of the giver, the taker and the caller of the move. The survivors
//! serve every key again, and only changes that the dead had not written back are lost.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use farleaf_engines::TableFormat;
use farleaf_engines::dex::{Dex, DexOptions, JoinOptions, MoveError, Take};
use farleaf_fabric::ToAny;
use farleaf_fabric::sim::{CrashPlan, CrashWay, Landing, Sim};
use farleaf_index::compute::{OwnedTable, RangeCalls};
use farleaf_index::{Entries, Index, IndexError, ScanRange};

use super::hosts::Hosts;
use super::storm::{config, members, serve};
use crate::common::clients::soak;
use crate::common::{formats, join, settle};

const KEYS: u64 = 160;
/// Between the two partitions, and of the range that moves.
const CUT: u64 = 100;
const LOW: u64 = 37;

fn key_of(number: u64) -> Vec<u8> {
    (number << 32).to_be_bytes().to_vec()
}

/// What a key may hold: the last acknowledged value, and one whose outcome is not known.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    flushed: u64,
    sure: u64,
    perhaps: Option<u64>,
}

type Helds = Rc<RefCell<BTreeMap<u64, Held>>>;

/// Who dies.
const GIVER: usize = 0;
const TAKER: usize = 1;
const ASKER: usize = 2;

/// Whether the death came before all was done; and whether the range had changed hands by then.
fn death(seed: u64, format: TableFormat, victim: usize, plan: CrashPlan) -> (bool, bool) {
    let mut config = config(seed, 4);
    // Without a journal WRITEs land whole or not at all: what one that was cut short leaves is lost.
    let logs = victim == GIVER;
    config.adversary.torn = if logs { 0.7 } else { 0.0 };
    let sim = Sim::new(config).expect("sim");
    let cluster = Hosts::of(&sim);
    let servers = members(&sim, &format, &[key_of(CUT)], 60);
    let incarnation = |compute: usize| sim.fabric(compute).incarnation();
    for (compute, server) in servers.iter().enumerate() {
        serve(&sim, compute, server, &cluster);
    }
    let held: Helds = Rc::default();
    let (meta, layout) = (servers[0].index.meta(), *servers[0].index.tree().layout());
    let options = DexOptions { cache_bytes: 60 * layout.node_bytes() as u64, ..Default::default() };
    sim.block_on(async {
        let asker = &servers[ASKER];
        for number in 0..KEYS {
            let (key, value) = (key_of(number), 1_u64.to_le_bytes());
            assert_eq!(asker.index.upsert(&asker.session, &key, &value).await, Ok(true));
        }
        for server in &servers[..2] {
            server.index.flush(&server.session).await.expect("flush");
        }
        for number in 0..KEYS {
            let value = if number % 3 == 0 { 2_u64 } else { 1 };
            if value == 2 {
                let (key, value) = (key_of(number), value.to_le_bytes());
                assert_eq!(asker.index.upsert(&asker.session, &key, &value).await, Ok(false));
            }
            let all = Held { flushed: 1, sure: value, perhaps: None };
            held.borrow_mut().insert(number, all);
        }
    })
    .expect("filled");
    let stop = Rc::new(Cell::new(false));
    // Whoever asks takes nothing over, so that the map shows what the dead had.
    let outcome: Rc<RefCell<Option<Result<u64, MoveError>>>> = Rc::default();
    let asker = Rc::new(Cell::new(None));
    {
        let endpoint = sim.fabric(ASKER).any_endpoint().expect("endpoint");
        let (pool, index) = (servers[ASKER].pool.clone(), servers[ASKER].index.clone());
        let (outcome, to, asker) = (outcome.clone(), incarnation(TAKER), asker.clone());
        sim.spawn(ASKER, async move {
            asker.set(Some(()));
            let session = pool.session(endpoint).await.expect("session");
            let (low, high) = (key_of(LOW), key_of(CUT));
            let moved = index.move_range(&session, Some(&low), Some(&high), to).await;
            *outcome.borrow_mut() = Some(moved);
        });
    }
    for client in 0..2_u64 {
        let endpoint = sim.fabric(3).any_endpoint().expect("endpoint");
        let (held, stop) = (held.clone(), stop.clone());
        sim.spawn(3, async move {
            let session = join(endpoint).await;
            let join = JoinOptions { take: Take::Nothing, take_over: false, calls: true };
            let index = Dex::open(&session, meta, layout, options, join).await.expect("join");
            let mut rng = fastrand::Rng::with_seed(seed * 2 + client);
            for value in 10_u64.. {
                if stop.get() {
                    return;
                }
                let number = rng.u64(..KEYS / 2) * 2 + client;
                held.borrow_mut().get_mut(&number).expect("a key").perhaps = Some(value);
                let put = index.upsert(&session, &key_of(number), &value.to_le_bytes()).await;
                match put {
                    Ok(_) => {
                        let mut held = held.borrow_mut();
                        let held = held.get_mut(&number).expect("a key");
                        (held.sure, held.perhaps) = (value, None);
                    }
                    Err(IndexError::OutcomeUnknown(_) | IndexError::Unavailable(_)) => return,
                    Err(error) => panic!("{error}"),
                }
                session.tick().await.expect("tick");
            }
        });
    }
    sim.fabric(victim).plan(plan);
    for _ in 0..200 {
        sim.run_until(sim.now_ns() + 50_000).expect("runs");
        if outcome.borrow().is_some() || sim.fabric(victim).has_fired() {
            break;
        }
    }
    let fired = sim.fabric(victim).has_fired();
    sim.run_until(sim.now_ns() + 3_000_000).expect("runs");
    stop.set(true);
    sim.run_until(sim.now_ns() + 40_000_000).expect("runs");
    if !fired {
        let moved = outcome.borrow_mut().take();
        assert!(matches!(moved, Some(Ok(_))), "{moved:?}");
        return (false, true);
    }
    let dead = incarnation(victim);
    let held = held.borrow().clone();
    let endpoint = sim.fabric(3).any_endpoint().expect("endpoint");
    let changed_hands = sim.block_on(async {
        let session = join(endpoint).await;
        let join = JoinOptions { take: Take::Nothing, take_over: true, calls: true };
        let index = Dex::open(&session, meta, layout, options, join).await.expect("join");
        let (_, bounds, owners) = index.known_map();
        let owner_of = |key: &[u8]| owners[bounds.partition_point(|bound| bound.as_slice() < key)];
        let moved = owner_of(&key_of(LOW + 1)) == incarnation(TAKER);
        for (number, held) in &held {
            let (key, mut found) = (key_of(*number), Vec::new());
            assert_eq!(index.get(&session, &key, &mut found).await, Ok(true), "key {number}");
            let value = u64::from_le_bytes(found.try_into().expect("8 bytes"));
            let is_sure = value == held.sure || Some(value) == held.perhaps;
            if owner_of(&key) == dead && !logs {
                // Any that it held since the flush; they grow.
                let newest = held.perhaps.unwrap_or(0).max(held.sure);
                assert!(
                    (held.flushed..=newest).contains(&value),
                    "key {number}: {value}, {held:?}"
                );
            } else {
                assert!(is_sure, "key {number}: {value}, {held:?}, owner {}", owner_of(&key));
            }
            session.tick().await.expect("tick");
        }
        // All of them can be changed, and moved again.
        for number in held.keys() {
            let value = number.to_le_bytes();
            assert_eq!(index.upsert(&session, &key_of(*number), &value).await, Ok(false));
        }
        let survivors: Vec<_> = (0..3).filter(|compute| *compute != victim).collect();
        let to = incarnation(survivors[0]);
        let again = index.move_range(&session, Some(&key_of(LOW)), Some(&key_of(CUT)), to).await;
        assert!(matches!(again, Ok(_) | Err(MoveError::NotOwned)), "{again:?}");
        let mut out = Entries::new();
        index.scan(&session, ScanRange::ALL, usize::MAX, &mut out).await.expect("scan");
        assert_eq!(out.len() as u64, KEYS);
        for (number, (key, value)) in out.iter().enumerate() {
            assert_eq!((key, value), (&*key_of(number as u64), &(number as u64).to_le_bytes()[..]));
        }
        settle(&session).await;
        let living = survivors.iter().map(|at| (&servers[*at].index, &servers[*at].session));
        for (index, session) in living.chain([(&index, &session)]) {
            index.flush(session).await.expect("flush");
            assert_eq!(index.tree().check_cache(), Vec::<String>::new());
        }
        let mut audit = farleaf_pool::Audit::new(&session).await.expect("audit");
        let report = index.verify(&session, &mut audit).await.expect("verify");
        assert_eq!(report.problems, Vec::<String>::new());
        assert_eq!(report.keys, KEYS);
        moved
    });
    (true, changed_hands.expect("checked"))
}

/// Goes through the operations of one compute server's, every `step`-th; how many there were.
fn all_deaths(victim: usize, way: CrashWay, format: TableFormat, step: u64) -> u64 {
    let (mut before, mut after) = (0, 0);
    for op in (0..).step_by(step as usize) {
        let (fired, moved) = death(7 + op, format, victim, CrashPlan { op, way });
        if !fired {
            println!("compute server {victim}, {way:?}: {before} deaths before, {after} after");
            assert!(before > 0 || victim == ASKER);
            return op;
        }
        if moved { after += 1 } else { before += 1 }
    }
    0
}

#[test]
fn a_giver_with_a_log_that_dies_at_any_operation_loses_nothing() {
    let step = if soak() > 1 { 1 } else { 3 };
    all_deaths(GIVER, CrashWay::Before, formats()[0].1, step);
    all_deaths(GIVER, CrashWay::After, formats()[0].1, step);
    all_deaths(GIVER, CrashWay::Within(Landing::Subset(1)), formats()[0].1, step);
}

#[test]
fn a_taker_that_dies_at_any_operation_is_replaced() {
    let step = if soak() > 1 { 1 } else { 2 };
    all_deaths(TAKER, CrashWay::Before, formats()[0].1, step);
    all_deaths(TAKER, CrashWay::After, formats()[0].1, step);
}

#[test]
fn who_asked_may_die_at_any_operation() {
    all_deaths(ASKER, CrashWay::Before, formats()[0].1, 1);
    all_deaths(ASKER, CrashWay::After, formats()[0].1, 1);
}
