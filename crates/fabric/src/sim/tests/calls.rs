//! ! Calls: faults that strike messages between compute servers, and all canaries.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use super::*;
use crate::sim::{CrashPlan, CrashWay, SimFabric, Verb};
use crate::{
    CallError, Canary, Client, Incarnation, ListenConfig, OpErrorKind, OpKind, Peer, ServiceId,
    canary,
};

const ADD: ServiceId = ServiceId(1);

fn number(compute: usize) -> ServerId {
    ServerId(ServerId::COMPUTE_FIRST.0 + compute as u16)
}

fn cluster(seed: u64, adversary: AdversaryConfig) -> SimConfig {
    let adversary = AdversaryConfig { timeout_ns: 20_000, ..adversary };
    SimConfig { compute_servers: 3, adversary, record: true, ..config(seed) }
}

/// A cluster whose compute servers call each other.
fn connected(config: SimConfig) -> Sim {
    let sim = sim(config);
    for compute in 0..3 {
        let fabric = sim.fabric(compute);
        fabric.expose(number(compute), 0, &ListenConfig::default()).unwrap();
        for other in 0..3 {
            let incarnation = sim.fabric(other).incarnation();
            let peer = Peer { server: number(other), incarnation, address: None, region_bytes: 0 };
            fabric.attach(peer).unwrap();
        }
    }
    sim
}

/// Compute server 1 adds the numbers that it receives to a sum, in some tasks.
fn serve_sums(sim: &Sim) -> Rc<Cell<u64>> {
    let sum = Rc::new(Cell::new(0));
    for _ in 0..2 {
        let (end, sum) = (endpoint(sim, 1), Rc::clone(&sum));
        sim.spawn(1, async move {
            while let Some(mut incoming) = end.next_call(ADD).await {
                if !incoming.begin() {
                    continue;
                }
                let add = u64::from_le_bytes(incoming.request[..].try_into().unwrap());
                end.work(200).await;
                sum.set(sum.get() + add);
                // If the reply cannot leave, the caller's error says so.
                let _ = incoming.reply(sum.get().to_le_bytes().to_vec());
            }
        });
    }
    sum
}

async fn add(end: &SimEndpoint, by: u64) -> Result<u64, CallError> {
    let reply = end.call(number(1), ADD, by.to_le_bytes().to_vec()).await?;
    Ok(u64::from_le_bytes(reply[..].try_into().unwrap()))
}

/// Adds 1 many times, again after `NotBegun` alone. Returns bounds on the number of additions.
fn adders(config: SimConfig) -> (u64, u64, u64, u64) {
    let sim = connected(config);
    let sum = serve_sums(&sim);
    let counts = Rc::new(RefCell::new((0, 0)));
    for client in 0..4 {
        let (end, counts) = (endpoint(&sim, client % 2 * 2), Rc::clone(&counts));
        sim.spawn(client % 2 * 2, async move {
            for _ in 0..50 {
                loop {
                    match add(&end, 1).await {
                        Ok(_) => counts.borrow_mut().0 += 1,
                        Err(CallError::NotBegun) => continue,
                        Err(_) => counts.borrow_mut().1 += 1,
                    }
                    break;
                }
            }
        });
    }
    // Late copies come to an end.
    sim.run_until(20_000_000).unwrap();
    let (done, unknown) = *counts.borrow();
    assert_eq!(done + unknown, 200, "every call ended");
    assert!((done..=done + unknown).contains(&sum.get()), "{done} and {unknown}: {}", sum.get());
    (sum.get(), done, unknown, sim.trace_hash())
}

#[test]
fn a_call_is_done_once_though_it_comes_twice() {
    for seed in 0..20 {
        let adversary = AdversaryConfig { repeated: 0.5, late: 0.2, ..Default::default() };
        let (sum, done, unknown, _) = adders(cluster(seed, adversary));
        assert_eq!((sum, done, unknown), (200, 200, 0), "seed {seed}");
    }
}

#[test]
fn a_lost_reply_is_unknown() {
    let mut both = (0, 0);
    for seed in 0..20 {
        let adversary = AdversaryConfig { lost: 0.2, repeated: 0.2, ..Default::default() };
        let (sum, done, unknown, _) = adders(cluster(seed, adversary));
        assert!(unknown > 10, "seed {seed}");
        both = (both.0 + (sum - done), both.1 + (done + unknown - sum));
    }
    assert!(both.0 > 50 && both.1 > 50, "of what is unknown some is done, some is not: {both:?}");
}

#[test]
fn calls_replay_from_their_seed() {
    let hostile = AdversaryConfig {
        lost: 0.1,
        late: 0.3,
        repeated: 0.3,
        shuffle: true,
        ..Default::default()
    };
    let hashes: Vec<_> = (0..4).map(|seed| adders(cluster(seed, hostile.clone()))).collect();
    for (seed, first) in (0..).zip(&hashes) {
        assert_eq!(adders(cluster(seed, hostile.clone())), *first);
    }
    assert!(hashes.windows(2).all(|pair| pair[0].3 != pair[1].3));
}

#[test]
fn a_cut_link_swallows_one_direction() {
    let sim = connected(cluster(1, AdversaryConfig::default()));
    let sum = serve_sums(&sim);
    let end = endpoint(&sim, 0);
    let timeout = Err(CallError::Unknown(OpErrorKind::Timeout));
    sim.cut(0, 1);
    assert_eq!(sim.block_on(add(&end, 1)).unwrap(), timeout);
    assert_eq!(sum.get(), 0, "the request did not arrive");
    // The link of another pair is whole.
    assert_eq!(sim.block_on(add(&endpoint(&sim, 2), 2)).unwrap(), Ok(2));
    sim.heal(0, 1);
    sim.cut(1, 0);
    assert_eq!(sim.block_on(add(&end, 4)).unwrap(), timeout);
    assert_eq!(sum.get(), 6, "the request arrived, and no reply");
    sim.heal(1, 0);
    assert_eq!(sim.block_on(add(&end, 8)).unwrap(), Ok(14));
    let faults: Vec<_> = sim.recorded().into_iter().filter(|one| one.verb == Verb::Call).collect();
    let faults: Vec<_> = faults.iter().map(|one| one.faults.as_slice()).collect();
    assert_eq!(faults, [&["request cut off"][..], &[], &["reply cut off"], &[]]);
}

#[test]
fn a_slow_card_slows_calls() {
    let took = |slow: bool| {
        let sim = connected(SimConfig { network: exact(), ..cluster(1, Default::default()) });
        serve_sums(&sim);
        if slow {
            sim.fabric(1).slow(1_000);
        }
        sim.block_on(add(&endpoint(&sim, 0), 1)).unwrap().unwrap();
        sim.now_ns()
    };
    let (usual, slow) = (took(false), took(true));
    assert!((1_500..4_000).contains(&usual), "{usual}");
    assert!(slow > usual + 10_000, "{slow}");
}

#[test]
fn a_paused_receiver_replies_when_it_goes_on() {
    let sim = connected(cluster(1, AdversaryConfig::default()));
    let sum = serve_sums(&sim);
    sim.fabric(1).stop();
    let end = endpoint(&sim, 0);
    let reply = Rc::new(Cell::new(None));
    let told = Rc::clone(&reply);
    sim.spawn(0, async move { told.set(Some(add(&end, 5).await)) });
    sim.run_until(1_000_000).unwrap();
    assert_eq!((reply.get(), sum.get()), (None, 0), "it waits");
    sim.fabric(1).resume();
    sim.run_until(2_000_000).unwrap();
    assert_eq!(reply.get(), Some(Ok(5)));
}

/// After a life was killed, begun calls to it are `Unknown`, and so are later calls until its death is known.
#[test]
fn calls_of_a_killed_receiver_end() {
    for seed in 0..30 {
        let sim = connected(cluster(seed, AdversaryConfig::default()));
        serve_sums(&sim);
        let end = endpoint(&sim, 0);
        let (doomed, ended) = (sim.fabric(1), Rc::new(Cell::new(0)));
        for _ in 0..8 {
            let (end, ended) = (end.clone(), Rc::clone(&ended));
            sim.spawn(0, async move {
                while add(&end, 1).await.is_ok() {}
                ended.set(ended.get() + 1);
            });
        }
        sim.run_until(30_000 + 97 * seed).unwrap();
        doomed.kill();
        let who = doomed.incarnation();
        sim.block_on(async {
            assert!(end.is_dead(who).await);
            assert_eq!(add(&end, 1).await, Err(CallError::NotBegun));
        })
        .unwrap();
        sim.run().unwrap();
        assert_eq!((ended.get(), sim.in_flight()), (8, 0));
        // Its next life is another one, until it is attached.
        let next = doomed.restart();
        next.expose(number(1), 0, &ListenConfig::default()).unwrap();
        let sum = serve_sums(&sim);
        assert_eq!(sim.block_on(add(&end, 1)).unwrap(), Err(CallError::NotBegun));
        let incarnation = next.incarnation();
        let peer = Peer { server: number(1), incarnation, address: None, region_bytes: 0 };
        sim.fabric(0).attach(peer).unwrap();
        assert_eq!(sim.block_on(add(&end, 1)).unwrap(), Ok(1));
        assert_eq!(sum.get(), 1);
    }
}

/// F12.7: a life that has lost its lease replies nothing, whether it knows of that or not.
fn zombie(seed: u64) {
    let config = SimConfig { lease_ns: 50_000, ..cluster(seed, AdversaryConfig::default()) };
    let sim = connected(config);
    let fabric = sim.fabric(1);
    let end = endpoint(&sim, 1);
    let left = Rc::new(Cell::new(None));
    let told = Rc::clone(&left);
    sim.spawn(1, async move {
        let mut incoming = end.next_call(ADD).await.unwrap();
        assert!(incoming.begin());
        end.sleep(10_000).await;
        told.set(Some(incoming.reply(vec![1]).is_ok()));
    });
    let (caller, judge) = (endpoint(&sim, 0), endpoint(&sim, 2));
    let outcome = Rc::new(Cell::new(None));
    let got = Rc::clone(&outcome);
    sim.spawn(0, async move { got.set(Some(caller.call(number(1), ADD, vec![0]).await.is_ok())) });
    sim.run_until(8_000).unwrap();
    fabric.stop();
    sim.run_until(100_000).unwrap();
    assert!(sim.block_on(judge.is_dead(fabric.incarnation())).unwrap());
    fabric.resume();
    sim.run_until(300_000).unwrap();
    assert_eq!(left.get(), Some(false), "a zombie's reply left");
    assert_eq!(outcome.get(), Some(false), "a zombie was believed");
}

#[test]
fn a_zombie_does_not_reply() {
    (0..5).for_each(zombie);
}

/// F12.6: a request that waits is not begun once its sender has been fenced, nor is a later one.
fn fenced(seed: u64) {
    let sim = connected(cluster(seed, AdversaryConfig::default()));
    let (sender, receiver) = (endpoint(&sim, 0), endpoint(&sim, 1));
    let who = sim.fabric(0).incarnation();
    sim.spawn(0, async move {
        for _ in 0..2 {
            let told = sender.call(number(1), ADD, vec![0]).await;
            assert!(told.is_err(), "served behind the fence");
        }
    });
    sim.block_on(async {
        let mut incoming = receiver.next_call(ADD).await.unwrap();
        let client = Client::new(endpoint(&sim, 2));
        sim.fabric(0).condemn();
        client.fence_everywhere(who).await.unwrap();
        assert!(!incoming.begin(), "begun behind the fence");
        drop(incoming);
        let mut later = receiver.next_call(ADD).await.unwrap();
        assert!(!later.begin(), "begun behind the fence");
    })
    .unwrap();
    sim.run().unwrap();
}

#[test]
fn a_fenced_life_is_not_served() {
    (0..5).for_each(fenced);
}

/// F12.6: a sender that was told of a death takes no reply that comes after it.
#[test]
fn a_reply_of_the_dead_is_not_taken() {
    let sim = connected(cluster(1, AdversaryConfig::default()));
    serve_sums(&sim);
    let end = endpoint(&sim, 0);
    let outcome = Rc::new(Cell::new(None));
    let (calling, told) = (end.clone(), Rc::clone(&outcome));
    sim.spawn(0, async move { told.set(Some(add(&calling, 1).await)) });
    sim.run_until(1_200).unwrap();
    let who = sim.fabric(1).incarnation();
    sim.fabric(1).condemn();
    assert!(sim.block_on(end.is_dead(who)).unwrap());
    sim.run_until(100_000).unwrap();
    assert_eq!(outcome.get(), Some(Err(CallError::Unknown(OpErrorKind::Gone { who }))));
}

/// F12.8, with the numbers of calls beginning anew with each connection.
fn stale(seed: u64) {
    let sim = connected(cluster(seed, AdversaryConfig::default()));
    let (sender, receiver) = (endpoint(&sim, 0), endpoint(&sim, 1));
    sim.spawn(1, async move {
        let mut old = receiver.next_call(ADD).await.unwrap();
        assert!(old.begin());
        let mut new = receiver.next_call(ADD).await.unwrap();
        assert!(new.begin());
        let _ = old.reply(vec![1]);
        receiver.sleep(10_000).await;
        let _ = new.reply(vec![2]);
    });
    sim.spawn(0, async move {
        let old = sender.clone();
        sender.spawn(async move {
            let told = old.call(number(1), ADD, vec![1]).await;
            assert_eq!(told, Err(CallError::Unknown(OpErrorKind::Timeout)));
        });
        sender.sleep(5_000).await;
        sender.reconnect(number(1)).await.unwrap();
        assert_eq!(sender.call(number(1), ADD, vec![2]).await, Ok(vec![2]), "a stale reply");
    });
    sim.run().unwrap();
    assert_eq!(sim.stale_replies(), 1);
}

#[test]
fn a_stale_reply_is_dropped_and_counted() {
    (0..5).for_each(stale);
}

/// Calls and replies are crash points of their own.
#[test]
fn calls_and_replies_are_counted_crash_points() {
    let cluster = || connected(cluster(1, AdversaryConfig::default()));
    let sim = cluster();
    serve_sums(&sim);
    sim.fabric(0).record_ops();
    sim.fabric(1).record_ops();
    sim.block_on(add(&endpoint(&sim, 0), 1)).unwrap().unwrap();
    let kinds =
        |fabric: SimFabric| fabric.recorded_ops().into_iter().map(|op| op.kind).collect::<Vec<_>>();
    assert_eq!(kinds(sim.fabric(0)), [Verb::Call]);
    assert_eq!(kinds(sim.fabric(1)), [Verb::Reply]);
    for (way, sum_after) in [(CrashWay::Before, 0), (CrashWay::After, 1)] {
        let sim = cluster();
        let sum = serve_sums(&sim);
        let fabric = sim.fabric(0);
        fabric.plan(CrashPlan { op: 0, way });
        let end = endpoint(&sim, 0);
        sim.spawn(0, async move {
            let _ = add(&end, 1).await;
        });
        sim.run_until(100_000).unwrap();
        assert!(fabric.has_fired() && !fabric.has_in_flight());
        assert_eq!(sum.get(), sum_after, "{way:?} the call");
    }
    let timeout = Err(CallError::Unknown(OpErrorKind::Timeout));
    for (way, wanted) in [(CrashWay::Before, timeout), (CrashWay::After, Ok(1))] {
        let sim = cluster();
        serve_sums(&sim);
        let fabric = sim.fabric(1);
        fabric.plan(CrashPlan { op: 0, way });
        let end = endpoint(&sim, 0);
        assert_eq!(sim.block_on(add(&end, 1)).unwrap(), wanted, "{way:?} the reply");
        assert!(fabric.has_fired());
    }
    for way in [CrashWay::PauseBefore, CrashWay::PauseAfter] {
        let sim = cluster();
        serve_sums(&sim);
        let fabric = sim.fabric(1);
        fabric.plan(CrashPlan { op: 0, way });
        let reply = Rc::new(Cell::new(None));
        let (end, told) = (endpoint(&sim, 0), Rc::clone(&reply));
        sim.spawn(0, async move { told.set(Some(add(&end, 1).await)) });
        sim.run_until(100_000).unwrap();
        let is_early = way == CrashWay::PauseAfter;
        assert_eq!(reply.get(), is_early.then_some(Ok(1)), "{way:?} the reply");
        fabric.resume();
        sim.run_until(200_000).unwrap();
        assert_eq!(reply.get(), Some(Ok(1)));
    }
}

#[test]
fn detached_peers_are_called_no_more() {
    let sim = connected(cluster(1, AdversaryConfig::default()));
    serve_sums(&sim);
    let end = endpoint(&sim, 0);
    let outcome = Rc::new(Cell::new(None));
    let (calling, told) = (end.clone(), Rc::clone(&outcome));
    sim.spawn(0, async move { told.set(Some(add(&calling, 1).await)) });
    sim.run_until(1_500).unwrap();
    assert_eq!(end.peers().len(), 3);
    sim.fabric(0).detach(number(1));
    assert_eq!(end.peers().len(), 2);
    assert_eq!(sim.block_on(add(&end, 1)).unwrap(), Err(CallError::NotBegun));
    let who = sim.fabric(1).incarnation();
    assert_eq!(outcome.get(), Some(Err(CallError::Unknown(OpErrorKind::Gone { who }))));
    let unknown =
        Peer { server: number(1), incarnation: Incarnation(99), address: None, region_bytes: 0 };
    assert!(sim.fabric(0).attach(unknown).is_err());
    assert!(sim.fabric(0).expose(number(0), 0, &ListenConfig::default()).is_err(), "twice");
    let memory = sim.fabric(0).restart();
    let bytes = memory.expose(number(0), 4097, &ListenConfig::default()).unwrap_err();
    assert!(bytes.to_string().contains("4097 bytes"), "{bytes}");
    assert!(memory.expose(ServerId(0), 0, &ListenConfig::default()).is_err());
}

#[test]
fn an_operation_kind_is_charged_for_calls() {
    let sim = connected(cluster(1, AdversaryConfig::default()));
    serve_sums(&sim);
    let client = Client::new(endpoint(&sim, 0));
    client.begin(OpKind::Get);
    let request = 1_u64.to_le_bytes().to_vec();
    sim.block_on(client.call(number(1), ADD, request)).unwrap().unwrap();
    let counts = client.endpoint().counters().snapshot();
    assert_eq!(counts.kind(OpKind::Get).calls, 1);
    assert_eq!(counts.server(number(1)), counts.total());
}

/// The check of a rule finds the seeded bug that breaks it.
#[test]
fn canaries_are_found() {
    let finds: [(&'static Canary, fn()); 5] = [
        (&canary::DELIVER_TWICE, || {
            let adversary = AdversaryConfig { repeated: 0.5, ..Default::default() };
            let (sum, ..) = adders(cluster(1, adversary));
            assert_eq!(sum, 200);
        }),
        (&canary::LOST_IS_NOT_BEGUN, || {
            let adversary = AdversaryConfig { lost: 0.2, ..Default::default() };
            adders(cluster(1, adversary));
        }),
        (&canary::STALE_REPLY, || stale(1)),
        (&canary::BEGIN_BEHIND_FENCE, || fenced(1)),
        (&canary::REPLY_AS_ZOMBIE, || zombie(1)),
    ];
    let of_regions = super::regions::FINDS;
    let all = finds.into_iter().chain(of_regions).collect::<Vec<_>>();
    assert!(all.iter().map(|(canary, _)| *canary).eq(canary::CANARIES.iter().copied()));
    for (canary, find) in all {
        find();
        let _armed = canary.arm();
        assert!(catch_unwind(AssertUnwindSafe(find)).is_err(), "{canary:?} was not found");
    }
}
