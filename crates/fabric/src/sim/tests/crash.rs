//! Crash tests: planned deaths and pauses.

use std::cell::Cell;
use std::rc::Rc;

use super::*;
use crate::sim::{CrashPlan, CrashWay, Landing, SimFabric, Verb};
use crate::{Capabilities, OpErrorKind};

/// Remote operations of [`steps`].
const OPS: u64 = 9;

/// One FAA; a chain of FAA, WRITE of 4 words and FAA; a batch of FAA, WRITE and FAA; a WRITE of 4 words; one
/// FAA. Each has a line of its own, so that the memory shows the operations that have taken effect.
async fn steps(endpoint: SimEndpoint, done: Rc<Cell<u32>>) {
    let step = || done.set(done.get() + 1);
    let (mut chain, mut batch) = (endpoint.ops(), endpoint.ops());
    endpoint.faa(at(0, 0), 1).await.unwrap();
    step();
    chain.faa(at(0, 64), 1);
    chain.write(at(0, 128), filled(&endpoint, 4, 1));
    chain.faa(at(0, 192), 1);
    endpoint.chain(chain).await.unwrap();
    step();
    batch.faa(at(0, 256), 1);
    batch.write(at(1, 320), filled(&endpoint, 4, 1));
    batch.faa(at(0, 384), 1);
    endpoint.post_many(batch).await.unwrap();
    step();
    endpoint.write(at(1, 448), filled(&endpoint, 4, 1)).await.unwrap();
    step();
    endpoint.faa(at(0, 512), 1).await.unwrap();
    step();
}

/// Counts the landed words of each operation of [`steps`].
fn landed(sim: &Sim) -> Vec<u64> {
    (0..OPS as usize)
        .map(|op| (0..2).map(|server| look(sim, server, op * 64, 4).iter().sum::<u64>()).sum())
        .collect()
}

/// Result of [`landed`] when everything has happened.
const ALL: [u64; OPS as usize] = [1, 1, 4, 1, 1, 4, 1, 4, 1];

fn cluster(config: SimConfig) -> Sim {
    sim(SimConfig { memory_servers: 2, compute_servers: 2, ..config })
}

/// Runs [`steps`] on compute server 1 under `plan`; returns its finished steps and the landed words.
fn run(config: SimConfig, op: u64, way: CrashWay) -> (Sim, SimFabric, Rc<Cell<u32>>) {
    let sim = cluster(config);
    let (victim, done) = (sim.fabric(1), Rc::default());
    let endpoint = victim.endpoint().unwrap();
    victim.plan(CrashPlan { op, way });
    sim.spawn(1, steps(endpoint, Rc::clone(&done)));
    sim.run_until(100_000).unwrap();
    (sim, victim, done)
}

/// The step that an operation belongs to.
const STEP: [u32; OPS as usize] = [0, 1, 1, 1, 2, 2, 2, 3, 4];

#[test]
fn operations_are_counted_one_by_one() {
    let sim = cluster(config(1));
    let (victim, done) = (sim.fabric(1), Rc::<Cell<u32>>::default());
    let endpoint = victim.endpoint().unwrap();
    sim.block_on(endpoint.faa(at(0, 4096), 1)).unwrap().unwrap();
    assert_eq!(victim.ops_counted(), 1);
    victim.record_ops();
    let who = sim.fabric(0).incarnation();
    sim.spawn(1, async move {
        steps(endpoint.clone(), Rc::clone(&done)).await;
        endpoint.sleep(10).await;
        endpoint.fence(ServerId(0), who).await.unwrap();
        let request = filled(&endpoint, 1, 1);
        let reply = endpoint.buf(8);
        let none = endpoint.rpc(ServerId(0), crate::ServiceId(3), request, reply).await;
        assert!(matches!(none.unwrap_err().kind, OpErrorKind::NoService { .. }));
    });
    sim.run().unwrap();
    assert_eq!((victim.ops_counted(), landed(&sim)), (1 + OPS + 2, ALL.to_vec()));
    let kinds: Vec<_> = victim.recorded_ops().iter().map(|op| op.kind).collect();
    use Verb::{Faa, Fence, Rpc, Write};
    assert_eq!(kinds, [Faa, Faa, Write, Faa, Faa, Write, Faa, Write, Faa, Fence, Rpc]);
    let places: Vec<_> =
        victim.recorded_ops().iter().map(|op| (op.part, op.parts, op.is_batch)).collect();
    assert_eq!(places[1..5], [(0, 3, false), (1, 3, false), (2, 3, false), (0, 3, true)]);
    assert_eq!(victim.recorded_ops()[2].words, 4);
    assert!(!victim.has_fired() && !victim.has_in_flight());
}

#[test]
fn a_life_ends_before_or_after_any_operation() {
    for config in [config(3), hostile(3)] {
        for op in 0..OPS {
            for (way, last) in [(CrashWay::Before, op), (CrashWay::After, op + 1)] {
                let (sim, victim, done) = run(config.clone(), op, way);
                let mut expected = ALL;
                expected[last as usize..].fill(0);
                assert_eq!(landed(&sim), expected, "{way:?} {op}");
                // It has not learnt of the step in which it died.
                assert_eq!(done.get(), STEP[op as usize], "{way:?} {op}");
                assert!(victim.has_fired() && !victim.has_in_flight());
                assert_eq!((sim.live_tasks(), sim.in_flight()), (0, 0));
                assert_eq!(Rc::strong_count(&done), 1, "its task has been dropped");
                let other = endpoint(&sim, 0);
                assert_eq!(sim.block_on(other.is_dead(victim.incarnation())), Ok(true));
                // A fence brings nothing back.
                for server in [ServerId(0), ServerId(1)] {
                    sim.block_on(other.fence(server, victim.incarnation())).unwrap().unwrap();
                }
                assert_eq!(landed(&sim), expected);
            }
        }
    }
}

#[test]
fn a_fence_that_overtakes_does_not_land_what_must_not() {
    for seed in 0..40 {
        for op in [2, 7] {
            let sim = cluster(hostile(seed));
            let victim = sim.fabric(1);
            let (own, fencer) = (victim.endpoint().unwrap(), endpoint(&sim, 0));
            victim.plan(CrashPlan { op, way: CrashWay::Before });
            sim.spawn(1, steps(own, Rc::default()));
            // As soon as it is dead, while its last post is on its way.
            while !victim.has_fired() {
                sim.run_until(sim.now_ns() + 10).unwrap();
            }
            let who = victim.incarnation();
            for server in [ServerId(0), ServerId(1)] {
                sim.block_on(fencer.fence(server, who)).unwrap().unwrap();
            }
            sim.run().unwrap();
            assert_eq!(landed(&sim)[op as usize..], [0; OPS as usize][op as usize..]);
        }
    }
}

#[test]
fn one_of_a_batch_may_be_missing() {
    for op in 4..7 {
        let (sim, _, done) = run(config(3), op, CrashWay::Skip);
        let mut expected = ALL;
        expected[op as usize] = 0;
        expected[7..].fill(0);
        assert_eq!((landed(&sim), done.get()), (expected.to_vec(), 2));
    }
}

#[test]
fn a_write_lands_in_part() {
    for (op, server) in [(2, 0), (5, 1), (7, 1)] {
        for words in 0..=4 {
            let way = CrashWay::Within(Landing::Prefix(words as u32));
            let (sim, _, done) = run(hostile(7), op, way);
            let mut prefix = [1, 1, 1, 1];
            prefix[words..].fill(0);
            assert_eq!(look(&sim, server, op as usize * 64, 4), prefix);
            let mut expected = ALL;
            expected[op as usize] = words as u64;
            expected[op as usize + 1..].fill(0);
            assert_eq!((landed(&sim), done.get()), (expected.to_vec(), STEP[op as usize]));
        }
    }
    let subset = |seed| {
        let (sim, ..) = run(config(1), 7, CrashWay::Within(Landing::Subset(seed)));
        look(&sim, 1, 448, 4)
    };
    let seen: std::collections::BTreeSet<_> = (0..64).map(subset).collect();
    assert!(seen.len() > 12, "most of the 16 subsets: {seen:?}");
    assert_eq!(subset(5), subset(5));
    // An operation that is no WRITE does not happen.
    let (sim, ..) = run(config(1), 3, CrashWay::Within(Landing::Subset(1)));
    assert_eq!(landed(&sim)[..4], [1, 1, 4, 0]);
}

#[test]
fn a_write_lands_as_the_capabilities_say() {
    let run = |capabilities, words: u32| {
        let (sim, ..) = run(
            SimConfig { capabilities, ..config(1) },
            7,
            CrashWay::Within(Landing::Prefix(words)),
        );
        landed(&sim)[7]
    };
    let whole = Capabilities { crash_atomic_bytes: 32, ..Capabilities::NONE };
    let line = Capabilities { line_atomic: true, ..Capabilities::NONE };
    for capabilities in [whole, line] {
        assert_eq!([0, 1, 3, 4].map(|words| run(capabilities, words)), [0, 0, 0, 4]);
    }
    let short = Capabilities { crash_atomic_bytes: 24, ..Capabilities::NONE };
    assert_eq!([0, 1, 3, 4].map(|words| run(short, words)), [0, 1, 3, 4]);
    let ordered = Capabilities { write_inorder: true, ..Capabilities::NONE };
    for seed in 0..32 {
        let way = CrashWay::Within(Landing::Subset(seed));
        let config = SimConfig { capabilities: ordered, ..config(1) };
        let (sim, ..) = self::run(config, 7, way);
        assert!(look(&sim, 1, 448, 4).is_sorted_by(|a, b| a >= b), "a prefix");
    }
}

#[test]
fn a_paused_life_comes_back_as_a_zombie() {
    for config in [config(3), hostile(3)] {
        for op in 0..OPS {
            for way in [CrashWay::PauseBefore, CrashWay::PauseAfter] {
                let sim = cluster(config.clone());
                let (victim, done) = (sim.fabric(1), Rc::<Cell<u32>>::default());
                let (own, other) = (victim.endpoint().unwrap(), endpoint(&sim, 0));
                let error = Rc::new(Cell::new(None));
                let (seen, watch) = (Rc::clone(&error), own.clone());
                victim.plan(CrashPlan { op, way });
                sim.spawn(1, steps_until_error(own, Rc::clone(&done), seen));
                sim.run_until(100_000).unwrap();
                // Lists are posted as wholes.
                let step = STEP[op as usize];
                let posted = step + u32::from(way == CrashWay::PauseAfter);
                let expected: Vec<u64> = (0..OPS as usize)
                    .map(|op| if STEP[op] < posted { ALL[op] } else { 0 })
                    .collect();
                assert_eq!((landed(&sim), done.get()), (expected.clone(), step), "{way:?} {op}");
                let who = victim.incarnation();
                assert_eq!(sim.block_on(other.is_dead(who)), Ok(false), "nobody can tell");
                victim.condemn();
                assert_eq!(sim.block_on(other.is_dead(who)), Ok(true));
                for server in [ServerId(0), ServerId(1)] {
                    sim.block_on(other.fence(server, who)).unwrap().unwrap();
                }
                victim.resume();
                sim.run().unwrap();
                assert_eq!(landed(&sim), expected, "F6");
                assert_eq!(done.get(), posted, "what had happened is learnt of");
                let all = posted == STEP[OPS as usize - 1] + 1;
                assert_eq!(error.get(), (!all).then_some(OpErrorKind::Fenced));
                let after = sim.block_on(watch.faa(at(0, 0), 1)).unwrap();
                assert_eq!(after.unwrap_err().kind, OpErrorKind::Fenced);
            }
        }
    }
}

/// As [`steps`], ending with the first error.
async fn steps_until_error(
    endpoint: SimEndpoint,
    done: Rc<Cell<u32>>,
    error: Rc<Cell<Option<OpErrorKind>>>,
) {
    let note = |kind| error.set(Some(kind));
    let step = || done.set(done.get() + 1);
    let (mut chain, mut batch) = (endpoint.ops(), endpoint.ops());
    if let Err(error) = endpoint.faa(at(0, 0), 1).await {
        return note(error.kind);
    }
    step();
    chain.faa(at(0, 64), 1);
    chain.write(at(0, 128), filled(&endpoint, 4, 1));
    chain.faa(at(0, 192), 1);
    if let Err(error) = endpoint.chain(chain).await {
        return note(error.kind);
    }
    step();
    batch.faa(at(0, 256), 1);
    batch.write(at(1, 320), filled(&endpoint, 4, 1));
    batch.faa(at(0, 384), 1);
    if let Err(error) = endpoint.post_many(batch).await {
        return note(error.kind);
    }
    step();
    if let Err(error) = endpoint.write(at(1, 448), filled(&endpoint, 4, 1)).await {
        return note(error.kind);
    }
    step();
    if let Err(error) = endpoint.faa(at(0, 512), 1).await {
        return note(error.kind);
    }
    step();
}

#[test]
fn one_endpoint_of_several_is_counted() {
    let sim = cluster(config(1));
    let victim = sim.fabric(1);
    let (one, two) = (victim.endpoint_on(0).unwrap(), victim.endpoint_on(0).unwrap());
    victim.plan_at(&two, CrashPlan { op: 2, way: CrashWay::After });
    for (endpoint, word) in [(one, 0), (two, 64)] {
        sim.spawn(1, async move {
            for _ in 0..if word == 0 { 100 } else { 5 } {
                endpoint.faa(at(0, word), 1).await.unwrap();
            }
        });
    }
    sim.run().unwrap();
    assert_eq!(look(&sim, 0, 64, 1), [3]);
    assert!((2..=3).contains(&look(&sim, 0, 0, 1)[0]), "both have stopped");
}

#[test]
fn a_life_loses_the_rest_of_a_list_and_posts_it_again() {
    for (lost, expected) in [(1, [0, 0, 0]), (2, [1, 0, 0]), (3, [1, 4, 0])] {
        let sim = cluster(config(1));
        let (victim, endpoint) = (sim.fabric(1), sim.fabric(1).endpoint().unwrap());
        victim.plan(CrashPlan { op: 6, way: CrashWay::Before });
        victim.lose(lost);
        let seen = Rc::<Cell<Option<OpErrorKind>>>::default();
        let error = Rc::clone(&seen);
        sim.spawn(1, async move {
            endpoint.faa(at(0, 512), 1).await.unwrap();
            for _ in 0..2 {
                let mut chain = endpoint.ops();
                chain.faa(at(0, 0), 1);
                chain.write(at(0, 64), filled(&endpoint, 4, 1));
                chain.faa(at(0, 128), 1);
                let lost = endpoint.chain(chain).await.unwrap_err();
                error.set(Some(lost.kind));
                endpoint.sleep(20_000).await;
            }
        });
        sim.run_until(10_000).unwrap();
        assert_eq!(landed(&sim)[..3], expected);
        assert_eq!((seen.get(), victim.has_fired()), (Some(OpErrorKind::Timeout), false));
        sim.run_until(100_000).unwrap();
        assert_eq!(landed(&sim)[..3], [expected[0] + 1, 4, 0], "it dies in the second try");
        assert!(victim.has_fired() && !victim.has_in_flight());
    }
}

#[test]
fn all_tasks_of_a_paused_life_stop_and_go_on() {
    let sim = cluster(config(1));
    let (victim, endpoint) = (sim.fabric(1), sim.fabric(1).endpoint().unwrap());
    victim.plan(CrashPlan { op: 7, way: CrashWay::PauseBefore });
    // Two operations of one task and one of another are due in the same instant.
    let (two, three) = (endpoint.clone(), endpoint.clone());
    sim.spawn(1, async move {
        for _ in 0..10 {
            let mut one = std::pin::pin!(endpoint.faa(at(0, 0), 1));
            let mut other = std::pin::pin!(two.faa(at(0, 64), 1));
            let mut missing = (true, true);
            std::future::poll_fn(|context| {
                missing.0 = missing.0 && one.as_mut().poll(context).is_pending();
                missing.1 = missing.1 && other.as_mut().poll(context).is_pending();
                if missing == (false, false) {
                    std::task::Poll::Ready(())
                } else {
                    std::task::Poll::Pending
                }
            })
            .await;
        }
    });
    sim.spawn(1, async move {
        for _ in 0..10 {
            three.faa(at(0, 128), 1).await.unwrap();
        }
    });
    let counts = || [0, 64, 128].map(|offset| look(&sim, 0, offset, 1)[0]);
    sim.run_until(200_000).unwrap();
    assert!(victim.has_fired());
    assert_eq!(counts().iter().sum::<u64>(), 7, "{:?}", counts());
    victim.resume();
    sim.run().unwrap();
    assert_eq!(counts(), [10; 3]);
}

#[test]
fn a_plan_replays() {
    let hash = |way| {
        let (sim, ..) = run(hostile(5), 5, way);
        sim.trace_hash()
    };
    let way = CrashWay::Within(Landing::Subset(3));
    assert_eq!(hash(way), hash(way));
    assert_ne!(hash(way), hash(CrashWay::Before));
}
