//! ! Regions: memory that compute servers expose, its loopback, faults and deaths, and the canaries of regions.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;

use super::*;
use crate::sim::{CrashPlan, CrashWay, SimFabric};
use crate::{Canary, Client, Incarnation, ListenConfig, OpError, OpErrorKind, Peer, canary};

const BYTES: u64 = 64 << 10;

pub(super) fn number(compute: usize) -> ServerId {
    ServerId(ServerId::COMPUTE_FIRST.0 + compute as u16)
}

/// Byte `offset` of a compute server's region.
pub(super) fn of(compute: usize, offset: u64) -> GlobalAddr {
    GlobalAddr::new(number(compute), offset)
}

pub(super) fn peer(fabric: &SimFabric) -> Peer {
    let (server, incarnation) = (number(fabric.compute()), fabric.incarnation());
    Peer { server, incarnation, address: None, region_bytes: BYTES }
}

fn expose(fabric: &SimFabric) {
    fabric.expose(number(fabric.compute()), BYTES, &ListenConfig::default()).unwrap();
}

pub(super) fn cluster(seed: u64, adversary: AdversaryConfig) -> SimConfig {
    let adversary = AdversaryConfig { timeout_ns: 20_000, ..adversary };
    SimConfig { compute_servers: 3, adversary, record: true, ..config(seed) }
}

/// A cluster whose compute servers expose regions to each other.
pub(super) fn connected(config: SimConfig) -> Sim {
    let sim = sim(config);
    let fabrics: Vec<SimFabric> = (0..3).map(|compute| sim.fabric(compute)).collect();
    fabrics.iter().for_each(expose);
    for fabric in &fabrics {
        fabrics.iter().for_each(|other| fabric.attach(peer(other)).unwrap());
    }
    sim
}

pub(super) fn gone(who: Incarnation) -> OpErrorKind {
    OpErrorKind::Gone { who }
}

/// The outcome of a task of a compute server, once there is one.
pub(super) type Outcome<T> = Rc<RefCell<Option<T>>>;

pub(super) fn task<T: 'static>(
    sim: &Sim,
    compute: usize,
    body: impl Future<Output = T> + 'static,
) -> Outcome<T> {
    let outcome = Rc::new(RefCell::new(None));
    let told = Rc::clone(&outcome);
    sim.spawn(compute, async move {
        let value = body.await;
        *told.borrow_mut() = Some(value);
    });
    outcome
}

pub(super) fn add(sim: &Sim, compute: usize, to: GlobalAddr) -> Outcome<Result<u64, OpError>> {
    let end = endpoint(sim, compute);
    task(sim, compute, async move { end.faa(to, 1).await })
}

/// Loopback takes `loopback_ns` in place of the wire, and the own card in both directions.
#[test]
fn an_own_operation_takes_no_wire_and_the_own_card() {
    let sim = connected(SimConfig { network: exact(), ..cluster(1, AdversaryConfig::default()) });
    let (end, before) = (endpoint(&sim, 1), sim.card_use());
    let latency = |to| {
        let start_ns = sim.now_ns();
        sim.block_on(end.faa(to, 1)).unwrap().unwrap();
        sim.now_ns() - start_ns
    };
    let (memory, own, other) = (latency(at(0, 4096)), latency(of(1, 0)), latency(of(2, 0)));
    assert!(other.abs_diff(memory) <= 20, "{other} and {memory} ns");
    let saved = sim.config().network.rtt_ns - sim.config().network.loopback_ns;
    assert_eq!(memory - own, saved, "{memory} and {own} ns");
    let used: Vec<_> = sim.card_use().into_iter().zip(before).map(|(a, b)| a.since(b)).collect();
    // The memory server's card, and those of the compute servers.
    let seen = |card: usize| (used[card].inbound.ops, used[card].outbound.ops, used[card].atomics);
    assert_eq!([seen(0), seen(1), seen(2), seen(3)], [(1, 1, 1), (0, 0, 0), (4, 4, 1), (1, 1, 1)]);
    let (header, word) = (80, 8);
    assert_eq!(used[3].inbound.bytes, header + word, "a request");
    assert_eq!(used[3].outbound.bytes, header + word, "its answer");
}

/// REGION-2: what is on its way to a region vanishes with its life. The poster gets `Timeout`, and `Gone` once
/// it has been told.
#[test]
fn a_region_vanishes_with_its_life() {
    for seed in 0..20 {
        let faults = AdversaryConfig { torn: 1.0, split_rmw: 1.0, ..Default::default() };
        let sim = connected(cluster(seed, faults));
        let (victim, who) = (sim.fabric(1), sim.fabric(1).incarnation());
        let outcomes: Vec<_> = (0..4).map(|word| add(&sim, 0, of(1, word * 8))).collect();
        let (end, many) = (endpoint(&sim, 0), endpoint(&sim, 2));
        let wide =
            task(&sim, 0, async move { end.read(of(1, 4096), end.buf(4096)).await.map(drop) });
        let batch = task(&sim, 2, async move {
            let mut ops = many.ops();
            ops.faa(at(0, 4096), 1);
            ops.faa(of(1, 64), 1);
            ops.faa(of(0, 64), 1);
            many.post_many(ops).await.map(drop)
        });
        sim.run_until(700 + 60 * seed).unwrap();
        victim.kill();
        assert!(victim.region().is_none(), "its memory is lost");
        sim.run().unwrap();
        let failed =
            |error: &OpError| (error.server, error.kind) == (number(1), OpErrorKind::Timeout);
        for outcome in outcomes {
            let outcome = outcome.borrow_mut().take().unwrap();
            assert!(outcome.as_ref().map_or_else(failed, |_| true), "{outcome:?}");
        }
        for outcome in [wide, batch] {
            let outcome = outcome.borrow_mut().take().unwrap();
            let is_lost = |error: &OpError| error.kind == OpErrorKind::Timeout;
            assert!(outcome.as_ref().map_or_else(is_lost, |()| true), "{outcome:?}");
        }
        assert_eq!(look(&sim, 0, 4096, 1), [1], "the batch's part at the memory server");
        let end = endpoint(&sim, 0);
        sim.block_on(async {
            assert_eq!(end.faa(of(1, 0), 1).await.unwrap_err().kind, OpErrorKind::Timeout);
            assert!(end.is_dead(who).await);
            assert_eq!(end.faa(of(1, 0), 1).await.unwrap_err().kind, gone(who));
        })
        .unwrap();
        // The other process was told nothing.
        let other = endpoint(&sim, 2);
        let untold = sim.block_on(other.faa(of(1, 0), 1)).unwrap().unwrap_err().kind;
        assert_eq!(untold, OpErrorKind::Timeout);
        assert_eq!(sim.in_flight(), 0);
    }
}

/// F11.6: news of a death ends what is in flight, long before its timer.
#[test]
fn the_news_of_a_death_ends_what_is_in_flight() {
    let sim = connected(cluster(1, AdversaryConfig::default()));
    let who = sim.fabric(1).incarnation();
    let outcome = add(&sim, 0, of(1, 0));
    let end = endpoint(&sim, 0);
    let settling = task(&sim, 0, async move { end.reconnect(number(1)).await });
    sim.run_until(500).unwrap();
    sim.fabric(1).kill();
    let end = endpoint(&sim, 0);
    assert!(sim.block_on(end.is_dead(who)).unwrap());
    sim.run_until(2_000).unwrap();
    assert_eq!(outcome.borrow_mut().take().unwrap().unwrap_err().kind, gone(who));
    sim.run().unwrap();
    assert!(settling.borrow_mut().take().unwrap().is_err());
    assert_eq!(sim.in_flight(), 0);
}

/// A stopped owner's region works on where a card serves it, and waits where its process does.
#[test]
fn a_stopped_owners_region_works_on_or_waits() {
    let sim = connected(cluster(1, AdversaryConfig::default()));
    sim.fabric(1).stop();
    let end = endpoint(&sim, 0);
    assert_eq!(sim.block_on(end.faa(of(1, 0), 1)).unwrap(), Ok(0));
    sim.fabric(1).resume();
    sim.fabric(1).stop_with_region();
    let late = sim.block_on(end.faa(of(1, 0), 1)).unwrap().unwrap_err();
    assert_eq!(late.kind, OpErrorKind::Timeout);
    assert_eq!(sim.block_on(end.faa(of(2, 0), 1)).unwrap(), Ok(0), "another region");
    sim.fabric(1).resume();
    sim.run().unwrap();
    assert_eq!(sim.block_on(end.faa(of(1, 0), 1)).unwrap(), Ok(2), "it has taken effect late");
}

/// A cut link swallows requests of operations one way, and their replies the other way.
#[test]
fn a_cut_link_swallows_operations() {
    let sim = connected(cluster(1, AdversaryConfig::default()));
    let end = endpoint(&sim, 0);
    let lost = |sim: &Sim| {
        let error = sim.block_on(end.faa(of(1, 0), 1)).unwrap().unwrap_err();
        assert_eq!((error.server, error.kind), (number(1), OpErrorKind::Timeout));
        sim.run().unwrap();
    };
    sim.cut(0, 1);
    lost(&sim);
    let found = |sim: &Sim| {
        sim.fabric(1).region().unwrap().as_slice()[0].load(std::sync::atomic::Ordering::Relaxed)
    };
    assert_eq!(found(&sim), 0, "a swallowed request never happens");
    sim.heal(0, 1);
    sim.cut(1, 0);
    lost(&sim);
    assert_eq!(found(&sim), 1, "a request whose reply is swallowed has happened");
    sim.heal(1, 0);
    assert_eq!(sim.block_on(end.faa(of(1, 0), 1)).unwrap(), Ok(1));
}

/// F10 at regions: a late operation lands before a reconnect or never, and later ones wait for it.
#[test]
fn nothing_older_lands_behind_a_reconnect() {
    for seed in 0..200 {
        let faults = AdversaryConfig {
            lost: 0.4,
            late: 0.5,
            late_ns: 9_000,
            torn: 0.5,
            ..Default::default()
        };
        let sim = connected(cluster(seed, faults));
        let end = endpoint(&sim, 0);
        let done = task(&sim, 0, async move {
            let mut certain = 0;
            for _ in 0..10 {
                match end.faa(of(1, 0), 1).await {
                    Ok(_) => certain += 1,
                    Err(_) => {
                        let mut settled = end.reconnect(number(1)).await;
                        while settled.is_err() {
                            settled = end.reconnect(number(1)).await;
                        }
                    }
                }
            }
            certain
        });
        sim.run().unwrap();
        let certain = done.borrow_mut().take().unwrap();
        let sum = sim.fabric(1).region().unwrap().as_slice()[0]
            .load(std::sync::atomic::Ordering::Relaxed);
        assert!((certain..=10).contains(&sum), "seed {seed}: {sum} of {certain}");
        assert_eq!(sim.in_flight(), 0, "seed {seed}");
    }
}

/// The owner dies at the chosen operation, alone or with the actor.
#[test]
fn an_owner_dies_at_a_planned_operation() {
    for (way, on_memory) in [
        (CrashWay::OwnerDies, false),
        (CrashWay::OwnerDies, true),
        (CrashWay::BothDie, false),
        (CrashWay::BothDie, true),
    ] {
        let sim = connected(cluster(1, AdversaryConfig::default()));
        let (actor, end) = (sim.fabric(0), endpoint(&sim, 0));
        actor.plan(CrashPlan { op: 1, way });
        let errors = Rc::new(Cell::new(0));
        let told = Rc::clone(&errors);
        sim.spawn(0, async move {
            end.faa(of(1, 0), 1).await.unwrap();
            let second = if on_memory { at(0, 4096) } else { of(1, 0) };
            let failed = u32::from(end.faa(second, 1).await.is_err());
            told.set(10 + failed);
        });
        sim.run().unwrap();
        assert!(actor.has_fired());
        assert!(sim.fabric(1).region().is_none(), "the owner is dead");
        assert!(sim.fabric(2).region().is_some());
        let is_alone = way == CrashWay::OwnerDies;
        let wanted = if is_alone { 10 + u32::from(!on_memory) } else { 0 };
        assert_eq!(errors.get(), wanted, "{way:?}");
        assert_eq!(sim.fabric(0).region().is_some(), is_alone);
        assert_eq!(look(&sim, 0, 4096, 1), [u64::from(is_alone && on_memory)]);
    }
}

/// SIM-1 with regions: the same seed gives the same run, faults and deaths among them.
#[test]
fn runs_with_regions_replay() {
    let run = |seed| {
        let faults = AdversaryConfig {
            torn: 0.5,
            split_rmw: 0.5,
            late: 0.2,
            lost: 0.1,
            shuffle: true,
            ..Default::default()
        };
        let sim = connected(SimConfig { queue_depth: 3, ..cluster(seed, faults) });
        for client in 0..9 {
            let end = endpoint(&sim, client % 3);
            sim.spawn(client % 3, async move {
                for _ in 0..40 {
                    let random = end.random();
                    let to = of((random % 3) as usize, random >> 8 & 0xff8);
                    let mut ops = end.ops();
                    ops.faa(to, 1);
                    ops.read(to, end.buf(64));
                    let result = match random >> 40 & 3 {
                        0 => end.chain(ops).await.map(drop),
                        1 => end.post_many(ops).await.map(drop),
                        2 => end.reconnect(to.server()).await,
                        _ => end.write(to, filled(&end, 16, random)).await.map(drop),
                    };
                    if result.is_err() {
                        let _ = end.is_dead(Incarnation(2)).await;
                    }
                }
            });
        }
        sim.run_until(60_000).unwrap();
        sim.fabric(1).kill();
        sim.run().unwrap();
        assert_eq!(sim.in_flight(), 0, "seed {seed}");
        (sim.trace_hash(), sim.events(), sim.recorded())
    };
    for seed in 0..20 {
        assert_eq!(run(seed), run(seed));
    }
    assert_ne!(run(1).0, run(2).0);
}

/// A peer that another thread detaches while its fence is about to be posted counts as fenced.
#[test]
fn a_peer_that_is_detached_meanwhile_counts_as_fenced() {
    let sim = sim(SimConfig { compute_servers: 4, ..cluster(1, AdversaryConfig::default()) });
    let fabrics: Vec<SimFabric> = (0..4).map(|compute| sim.fabric(compute)).collect();
    fabrics.iter().for_each(expose);
    fabrics[1..].iter().for_each(|other| fabrics[0].attach(peer(other)).unwrap());
    let (client, who) = (Client::new(endpoint(&sim, 0)), fabrics[3].incarnation());
    let fencing = task(&sim, 0, async move { client.fence_peers(who).await });
    sim.run_until(100).unwrap();
    assert!(fencing.borrow().is_none(), "the fence of the first peer is under way");
    fabrics[0].detach(number(2));
    sim.run().unwrap();
    assert_eq!(*fencing.borrow(), Some(Ok(())));
    let zombie = endpoint(&sim, 3);
    fabrics[3].attach(peer(&fabrics[1])).unwrap();
    let refused = sim.block_on(zombie.faa(of(1, 0), 1)).unwrap().map_err(|error| error.kind);
    assert_eq!(refused, Err(OpErrorKind::Fenced));
}

/// The next life of compute server 1 begins while operations for the one before are on their way.
fn successor(in_flight: bool) {
    let sim = connected(cluster(1, AdversaryConfig::default()));
    let end = endpoint(&sim, 0);
    sim.block_on(end.faa(of(1, 0), 5)).unwrap().unwrap();
    if in_flight {
        add(&sim, 0, of(1, 0));
        sim.run_until(sim.now_ns() + 300).unwrap();
    }
    let next = sim.fabric(1).restart();
    expose(&next);
    sim.fabric(0).attach(peer(&next)).unwrap();
    sim.run().unwrap();
    assert_eq!(sim.block_on(end.faa(of(1, 0), 1)).unwrap(), Ok(0), "F11.1, F11.5");
}

fn fenced_from_regions() {
    let sim = connected(cluster(1, AdversaryConfig::default()));
    let client = Client::new(endpoint(&sim, 0));
    let (who, zombie) = (sim.fabric(1).incarnation(), endpoint(&sim, 1));
    sim.block_on(client.fence_everywhere(who)).unwrap().unwrap();
    let refused = sim.block_on(zombie.faa(of(2, 0), 1)).unwrap().map_err(|error| error.kind);
    assert_eq!(refused, Err(OpErrorKind::Fenced));
    // No fence reaches loopback (F11.10).
    assert_eq!(sim.block_on(zombie.faa(of(1, 0), 1)).unwrap(), Ok(0));
}

fn additions_of_owner_and_others() {
    let faults = AdversaryConfig { split_rmw: 1.0, ..Default::default() };
    let sim = connected(cluster(1, faults));
    for compute in [0, 1, 1, 2] {
        let end = endpoint(&sim, compute);
        sim.spawn(compute, async move {
            for _ in 0..100 {
                end.faa(of(1, 0), 1).await.unwrap();
            }
        });
    }
    sim.run().unwrap();
    let end = endpoint(&sim, 0);
    assert_eq!(sim.block_on(end.faa(of(1, 0), 0)).unwrap(), Ok(400));
}

/// The seeded bugs of regions, and what finds each.
pub(super) const FINDS: [(&Canary, fn()); 5] = [
    (&canary::REGION_OUTLIVES_LIFE, || successor(false)),
    (&canary::NUMBER_FOLLOWS_SLOT, || successor(true)),
    (&canary::FENCE_SKIPS_REGIONS, fenced_from_regions),
    (&canary::LOOPBACK_BY_PROCESSOR, additions_of_owner_and_others),
    (&canary::END_SPARES_POSTED, super::ended::what_waits_at_a_stopped_region),
];
