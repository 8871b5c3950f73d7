//! Drop tests: drops beside a recovery, and by compute servers that die over them.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use farleaf_engines::{AnyIndex, Engine, StoredTable, TableFormat, continue_drops, recover};
use farleaf_fabric::sim::{Sim, SimConfig};
use farleaf_fabric::{Endpoint, OpKind, ToAny};
use farleaf_index::{Index, IndexError, ValueFormat};
use farleaf_pool::{Audit, PoolOptions, Session};

use crate::common::{create, join, open, start, with_shape};

const NAME: &str = "dropped";
const KEEPER: usize = 0;
const DROPPER: usize = 1;
const DEAD: usize = 2;

/// Short nodes, so that a table has many objects, and records.
fn table_format() -> TableFormat {
    let fixed = TableFormat::fixed8(Engine::BTree).with_values(ValueFormat::Bytes);
    with_shape(fixed, &[("node_bytes", "512"), ("cap_leaf", "4"), ("cap_inner", "4")])
}

struct Stage {
    sim: Sim,
    keeper: Session,
    dropper: Session,
}

/// A table whose objects lie in blocks of one that has just died, and a few of the dropper's.
fn stage(seed: u64, keys: u64) -> Stage {
    let config = SimConfig {
        memory_servers: 2,
        compute_servers: 3,
        region_bytes: 4 << 20,
        ..SimConfig::seeded(seed)
    };
    let sim = Sim::new(config).expect("sim");
    let ends = [KEEPER, DROPPER, DEAD].map(|at| sim.fabric(at).any_endpoint().expect("endpoint"));
    let options = PoolOptions {
        block_bytes: 64 << 10,
        clients_max: 12,
        members_max: 6,
        tables_max: 4,
        ..PoolOptions::default()
    };
    let (keeper, dropper, dead) = sim
        .block_on(async {
            let [keeper, dropper, dead] = ends;
            let keeper = start(keeper, &options).await;
            let (dropper, dead) = (join(dropper).await, join(dead).await);
            let table = create(&dead, NAME, &table_format()).await;
            let other = open(&dropper, NAME).await;
            let kept = create(&dead, "kept", &table_format()).await;
            for key in 0..keys {
                let (key, value) = (key.to_be_bytes(), vec![7; (key % 7) as usize * 60]);
                table.insert(&dead, &key, &value).await.expect("insert");
                if key[7] % 8 == 0 {
                    other.upsert(&dropper, &key, &value).await.expect("upsert");
                    kept.insert(&dead, &key, &value).await.expect("insert");
                }
                if key[7] % 4 == 0 {
                    dead.tick().await.expect("tick");
                    dropper.tick().await.expect("tick");
                    keeper.tick().await.expect("tick");
                }
            }
            for session in [&keeper, &dropper, &dead] {
                for _ in 0..4 {
                    session.tick().await.expect("tick");
                }
            }
            (keeper, dropper, dead)
        })
        .expect("the stage is set");
    sim.fabric(DEAD).kill();
    std::mem::forget(dead);
    Stage { sim, keeper, dropper }
}

/// Every object is a table's, free or retired, and nobody but the keeper is left.
async fn check(session: &Session, seed: u64) {
    for _ in 0..8 {
        session.tick().await.expect("tick");
    }
    if let Some(done) = farleaf_engines::sweep(session).await.expect("sweep") {
        assert_eq!(done.problems, Vec::<String>::new(), "seed {seed}");
        assert_eq!(done.objects_freed, 0, "seed {seed}: lost before");
    }
    let mut audit = Audit::new(session).await.expect("audit");
    let roots = session.list_roots().await.expect("roots");
    let names: Vec<&str> = roots.iter().map(|root| root.name.as_str()).collect();
    assert_eq!(names, ["kept"], "seed {seed}");
    let kept = StoredTable::of(&roots[0]).expect("table");
    let report = kept.verify(session, &mut audit).await.expect("verify");
    assert_eq!(report.problems, Vec::<String>::new(), "seed {seed}");
    let report = audit.report(session).await.expect("report");
    assert!(report.closes(), "seed {seed}: {report:?}");
}

/// While a recovery was under way, what a dropper had unlinked with the table's root and not yet
/// announced was taken for lost and freed, and then freed again by the dropper.
#[test]
fn a_table_is_dropped_beside_a_recovery() {
    for seed in 0..24 {
        let Stage { sim, keeper, dropper } = stage(seed, 200);
        let dropped = Rc::new(RefCell::new(None));
        let result = Rc::clone(&dropped);
        let has_left = Rc::new(RefCell::new(false));
        let left = Rc::clone(&has_left);
        // As a store's maintenance does: recovery frees nothing beside one who never ticks.
        let (ticker, is_over) = (dropper.clone(), Rc::clone(&dropped));
        sim.spawn(DROPPER, async move {
            while is_over.borrow().is_none() {
                ticker.tick().await.expect("tick");
                ticker.endpoint().sleep(5_000).await;
            }
        });
        // The dropper begins before, during or after the walk.
        let (later, first) = (seed * 25_000, seed % 3 == 0);
        sim.spawn(DROPPER, async move {
            if !first {
                dropper.endpoint().sleep(later).await;
            }
            let outcome = AnyIndex::drop_table(&dropper, NAME).await;
            *result.borrow_mut() = Some(outcome);
            while dropper.leave().await.is_err() {
                dropper.endpoint().sleep(10_000).await;
            }
            *left.borrow_mut() = true;
        });
        let seen = Rc::clone(&dropped);
        let ended = sim.block_on(async move {
            if first {
                keeper.endpoint().sleep(later).await;
            }
            while let Some(done) = recover(&keeper).await.expect("recover") {
                assert_eq!(done.problems, Vec::<String>::new(), "seed {seed}");
            }
            while !*has_left.borrow() {
                keeper.tick().await.expect("tick");
                keeper.endpoint().sleep(20_000).await;
            }
            assert_eq!(seen.take(), Some(Ok::<(), IndexError>(())), "seed {seed}");
            check(&keeper, seed).await;
        });
        ended.expect("it ends");
    }
}

/// The recovery of a dead dropper finishes the drop, at whatever point it has stopped; the name is free.
#[test]
fn a_dead_droppers_table_is_finished() {
    let mut found = 0;
    for seed in 0..24 {
        let Stage { sim, keeper, dropper } = stage(seed, 200);
        let recovers_first = seed % 2 == 0;
        let sim = &sim;
        if recovers_first {
            let one = &keeper;
            sim.block_on(async { recover(one).await.expect("recover") }).expect("recovered");
        }
        sim.spawn(DROPPER, async move {
            let _ = AnyIndex::drop_table(&dropper, NAME).await;
        });
        sim.run_until(sim.now_ns() + 20_000 + seed * 6_000).expect("runs");
        sim.fabric(DROPPER).kill();
        sim.run_until(sim.now_ns() + 50_000).expect("runs");
        let drops = sim
            .block_on(async move {
                let drops = keeper.list_drops().await.expect("drops").len();
                if drops > 0 {
                    // The name is free while the entry is in use.
                    create(&keeper, NAME, &table_format()).await;
                    AnyIndex::drop_table(&keeper, NAME).await.expect("drop");
                }
                while let Some(done) = recover(&keeper).await.expect("recover") {
                    assert_eq!(done.problems, Vec::<String>::new(), "seed {seed}");
                    assert!(done.complete, "seed {seed}");
                }
                assert_eq!(keeper.list_drops().await.expect("drops"), [], "seed {seed}");
                if keeper.open_root(NAME).await.is_ok() {
                    AnyIndex::drop_table(&keeper, NAME).await.expect("drop");
                }
                check(&keeper, seed).await;
                drops
            })
            .expect("it ends");
        found += drops;
    }
    assert!(found >= 12, "only {found} have died over it");
}

/// A caller that goes away leaves the rest to a task.
#[test]
fn a_caller_goes_away_and_the_drop_goes_on() {
    let mut waited = 0;
    for seed in 0..8 {
        let Stage { sim, keeper, dropper } = stage(seed, 200);
        let ended = sim.block_on(async move {
            while recover(&keeper).await.expect("recover").is_some() {}
            {
                let mut dropping = pin!(AnyIndex::drop_table(&dropper, NAME));
                let mut patience = pin!(dropper.endpoint().sleep(30_000 + seed * 50_000));
                poll_fn(|context| match dropping.as_mut().poll(context) {
                    Poll::Ready(outcome) => {
                        assert_eq!(outcome, Ok(()), "seed {seed}");
                        Poll::Ready(())
                    }
                    Poll::Pending => patience.as_mut().poll(context),
                })
                .await;
            }
            let mut waits = 0;
            while !keeper.list_drops().await.expect("drops").is_empty() {
                for session in [&keeper, &dropper] {
                    session.tick().await.expect("tick");
                }
                keeper.endpoint().sleep(10_000).await;
                waits += 1;
                assert!(waits < 10_000, "seed {seed}: it does not go on");
            }
            if keeper.open_root(NAME).await.is_ok() {
                // It had not begun.
                AnyIndex::drop_table(&keeper, NAME).await.expect("drop");
            }
            dropper.leave().await.expect("leave");
            check(&keeper, seed).await;
            waits
        });
        waited += usize::from(ended.expect("it ends") > 0);
    }
    assert!(waited > 0, "no caller went away in the middle");
}

/// A member keeps an operation under way, so that nothing that is retired may be reused, and the table has more objects
/// than the retire pages hold: the drop once waited for ever. It says so in time, and the member goes on with it.
#[test]
fn a_drop_that_others_hold_up_is_told_of_and_goes_on() {
    for seed in 0..4 {
        let Stage { sim, keeper, dropper } = stage(seed, 3_000);
        let ended = sim.block_on(async move {
            while recover(&keeper).await.expect("recover").is_some() {}
            let held = keeper.begin(OpKind::Other).await.expect("pin");
            let before_ns = dropper.endpoint().now_ns();
            let dropped = AnyIndex::drop_table(&dropper, NAME).await;
            let took_ns = dropper.endpoint().now_ns() - before_ns;
            assert!(matches!(dropped, Err(IndexError::Unavailable(_))), "seed {seed}: {dropped:?}");
            assert!(took_ns < 3_000_000_000, "seed {seed}: {took_ns} ns");
            assert!(dropper.pool().has_left_drops(), "seed {seed}");
            assert!(keeper.open_root(NAME).await.is_err(), "seed {seed}: the name is free");
            continue_drops(&dropper).await.expect("nothing is wrong");
            assert!(dropper.pool().has_left_drops(), "seed {seed}: it is held up still");
            drop(held);
            for _ in 0..10_000 {
                if !dropper.pool().has_left_drops() {
                    break;
                }
                for session in [&keeper, &dropper] {
                    session.tick().await.expect("tick");
                }
                continue_drops(&dropper).await.expect("nothing is wrong");
            }
            assert_eq!(keeper.list_drops().await.expect("drops"), [], "seed {seed}");
            dropper.leave().await.expect("leave");
            check(&keeper, seed).await;
        });
        ended.expect("it ends");
    }
}
