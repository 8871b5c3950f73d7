//! Ended connections: one thread settles what another one lost (F13, CONN-4).

use std::sync::atomic::Ordering;

use super::regions::{Outcome, add, cluster, connected, gone, number, of, peer, task};
use super::*;
use crate::sim::Verb;
use crate::{ConnectionMark, ListenConfig, OpError, OpErrorKind};

fn word(sim: &Sim, compute: usize, word: usize) -> u64 {
    sim.fabric(compute).region().unwrap().as_slice()[word].load(Ordering::Relaxed)
}

fn end(sim: &Sim, by: &SimEndpoint, mark: ConnectionMark) -> Result<(), OpErrorKind> {
    sim.block_on(by.end_connection(mark)).unwrap().map_err(|error| error.kind)
}

fn timed_out<T: std::fmt::Debug>(outcome: &Outcome<Result<T, OpError>>) {
    let error = outcome.borrow_mut().take().unwrap().unwrap_err();
    assert_eq!(error.kind, OpErrorKind::Timeout);
}

/// An operation waits at a stopped region. Once another thread has ended its connection, it never takes effect, and
/// the next one does.
pub(super) fn what_waits_at_a_stopped_region() {
    let sim = connected(cluster(1, AdversaryConfig::default()));
    let (idle, other) = (endpoint(&sim, 0), endpoint(&sim, 0));
    assert_ne!(idle.thread(), other.thread());
    sim.fabric(1).stop_with_region();
    let (adds, own) = (idle.clone(), of(1, 0));
    let lost = task(&sim, 0, async move { adds.faa(own, 1).await });
    sim.run_until(30_000).unwrap();
    timed_out(&lost);
    let mark = idle.connection(number(1)).unwrap();
    assert_eq!(mark.server(), number(1));
    assert_eq!(end(&sim, &other, mark), Ok(()));
    sim.fabric(1).resume();
    sim.run().unwrap();
    assert_eq!(word(&sim, 1, 0), 0, "a late CAS or FAA");
    assert_eq!(sim.block_on(idle.faa(of(1, 0), 1)).unwrap(), Ok(0));
    assert_eq!(end(&sim, &other, mark), Ok(()), "again");
    assert_eq!(sim.in_flight(), 0);
}

#[test]
fn an_operation_that_waits_at_a_stopped_region_never_lands() {
    what_waits_at_a_stopped_region();
}

/// At a stopped memory server the end of a connection waits as well, behind the operations of before.
#[test]
fn nothing_lands_behind_an_end_at_a_memory_server() {
    let sim = sim(SimConfig { compute_servers: 2, ..config(1) });
    let (idle, other) = (endpoint(&sim, 0), endpoint(&sim, 0));
    let server = sim.memory_server(ServerId(0));
    server.stop();
    let adds = idle.clone();
    let lost = task(&sim, 0, async move { adds.faa(at(0, 4096), 1).await });
    sim.run_until(1_000_000).unwrap();
    timed_out(&lost);
    let mark = idle.connection(ServerId(0)).unwrap();
    assert_eq!(end(&sim, &other, mark), Err(OpErrorKind::Timeout));
    server.resume();
    sim.run().unwrap();
    let seen = look(&sim, 0, 4096, 1)[0];
    assert_eq!(end(&sim, &other, mark), Ok(()));
    assert_eq!(look(&sim, 0, 4096, 1), [seen]);
    assert_eq!(sim.block_on(idle.faa(at(0, 4096), 1)).unwrap(), Ok(seen));
    assert!(idle.connection(ServerId(9)).is_none());
}

/// The end of a connection travels as a reconnect does: a cut link swallows it or its answer.
#[test]
fn a_cut_link_swallows_an_end() {
    let sim = connected(cluster(1, AdversaryConfig::default()));
    let (idle, other) = (endpoint(&sim, 0), endpoint(&sim, 0));
    sim.cut(0, 1);
    let adds = idle.clone();
    let lost = task(&sim, 0, async move { adds.faa(of(1, 0), 1).await });
    sim.run().unwrap();
    timed_out(&lost);
    let mark = idle.connection(number(1)).unwrap();
    assert_eq!(end(&sim, &other, mark), Err(OpErrorKind::Timeout));
    sim.heal(0, 1);
    sim.cut(1, 0);
    assert_eq!(end(&sim, &other, mark), Err(OpErrorKind::Timeout), "its answer");
    sim.heal(1, 0);
    let sent_ns = sim.now_ns();
    assert_eq!(end(&sim, &other, mark), Ok(()));
    assert!(sim.now_ns() - sent_ns < 3_000, "one round trip");
    assert_eq!(sim.block_on(idle.faa(of(1, 0), 1)).unwrap(), Ok(0));
}

/// Late, lost, torn and split operations of a thread that gives up at the first error: once another thread has ended
/// its connection, nothing changes any more.
#[test]
fn nothing_lands_behind_an_end() {
    for seed in 0..300 {
        let faults = AdversaryConfig {
            lost: 0.4,
            late: 0.5,
            late_ns: 9_000,
            torn: 0.5,
            split_rmw: 0.5,
            shuffle: true,
            ..Default::default()
        };
        let sim = connected(SimConfig { queue_depth: 3, ..cluster(seed, faults) });
        let (idle, other) = (endpoint(&sim, 0), endpoint(&sim, 0));
        let on_memory = seed % 3 == 0;
        let base = if on_memory { at(0, 4096) } else { of(1, 0) };
        let words = match on_memory {
            true => sim.memory(ServerId(0)).unwrap(),
            false => sim.fabric(1).region().unwrap(),
        };
        let seen = move || {
            let mut seen = vec![0; 64];
            words.load(if on_memory { 512 } else { 0 }, &mut seen);
            seen
        };
        let posts = idle.clone();
        let given_up = task(&sim, 0, async move {
            for round in 1.. {
                let mut chain = posts.ops();
                chain.write(base, filled(&posts, 32, round));
                chain.faa(base.plus(256), 1);
                let mut batch = posts.ops();
                batch.faa(base.plus(264), 1);
                batch.write(base.plus(272), filled(&posts, 8, round));
                if posts.chain(chain).await.is_err() || posts.post_many(batch).await.is_err() {
                    break;
                }
            }
            posts.connection(base.server()).unwrap()
        });
        let ended = task(&sim, 0, async move {
            let mark = loop {
                other.sleep(700).await;
                if let Some(mark) = given_up.borrow_mut().take() {
                    break mark;
                }
            };
            while other.end_connection(mark).await.is_err() {}
            let found = seen();
            other.sleep(200_000).await;
            assert!(found == seen(), "seed {seed}: something landed behind the end");
        });
        sim.run().unwrap();
        assert!(ended.borrow().is_some());
        assert_eq!(sim.in_flight(), 0, "seed {seed}");
    }
}

/// CONN-4: an old mark touches nothing of a later connection, whether its reconnect has come back, has come to the
/// server, or is on its way there.
#[test]
fn an_old_mark_spares_a_later_connection() {
    for (on_memory, delay_ns) in (0..40).map(|step| (step % 2 == 0, 100 * step)) {
        let sim = connected(cluster(1, AdversaryConfig::default()));
        let (reconnects, other) = (endpoint(&sim, 0), endpoint(&sim, 0));
        let base = if on_memory { at(0, 4096) } else { of(1, 0) };
        sim.block_on(reconnects.faa(base, 1)).unwrap().unwrap();
        let mark = reconnects.connection(base.server()).unwrap();
        let adds = reconnects.clone();
        let settled = task(&sim, 0, async move { reconnects.reconnect(base.server()).await });
        let added = task(&sim, 0, async move {
            adds.sleep(50).await;
            adds.faa(base, 1).await
        });
        let ended = task(&sim, 0, async move {
            other.sleep(delay_ns).await;
            other.end_connection(mark).await
        });
        sim.run().unwrap();
        assert_eq!(*settled.borrow(), Some(Ok(())), "{delay_ns} ns");
        assert_eq!(*added.borrow(), Some(Ok(1)), "{delay_ns} ns");
        assert_eq!(*ended.borrow(), Some(Ok(())));
        let records = sim.recorded();
        let ends = records.iter().filter(|record| record.verb == Verb::EndConnection);
        assert_eq!(ends.count(), 1);
    }
}

/// F11.5, F11.6: a mark is for one life.
#[test]
fn a_mark_of_an_ended_life_is_gone() {
    let sim = connected(cluster(1, AdversaryConfig::default()));
    let (idle, other) = (endpoint(&sim, 0), endpoint(&sim, 0));
    let who = sim.fabric(1).incarnation();
    sim.block_on(idle.faa(of(1, 0), 1)).unwrap().unwrap();
    let mark = idle.connection(number(1)).unwrap();
    sim.fabric(1).kill();
    assert_eq!(end(&sim, &other, mark), Err(OpErrorKind::Timeout), "before the news");
    assert!(sim.block_on(other.is_dead(who)).unwrap());
    assert_eq!(end(&sim, &other, mark), Err(gone(who)));
    assert!(idle.connection(number(1)).is_none(), "nothing is under way there");
    let next = sim.fabric(1).restart();
    next.expose(number(1), 64 << 10, &ListenConfig::default()).unwrap();
    sim.fabric(0).attach(peer(&next)).unwrap();
    let added = add(&sim, 0, of(1, 0));
    assert_eq!(end(&sim, &other, mark), Err(gone(who)), "not the new life's");
    sim.run().unwrap();
    assert_eq!(added.borrow_mut().take(), Some(Ok(0)));
    sim.fabric(0).detach(number(1));
    assert_eq!(end(&sim, &other, mark), Err(gone(who)));
    // The own region, and a fenced life.
    assert!(idle.connection(number(0)).is_some());
    let there = idle.connection(number(2)).unwrap();
    let fencer = endpoint(&sim, 2);
    let me = sim.fabric(0).incarnation();
    sim.block_on(fencer.fence(number(2), me)).unwrap().unwrap();
    assert_eq!(end(&sim, &other, there), Err(OpErrorKind::Fenced));
}

/// A call that waits unbegun on an ended connection is not begun any more.
#[test]
fn a_call_of_an_ended_connection_is_not_begun() {
    use crate::{CallError, ServiceId};
    const SERVICE: ServiceId = ServiceId(5);
    let sim = connected(cluster(1, AdversaryConfig::default()));
    let (idle, other, receiver) = (endpoint(&sim, 0), endpoint(&sim, 0), endpoint(&sim, 1));
    let calls = idle.clone();
    let called = task(&sim, 0, async move { calls.call(number(1), SERVICE, vec![1]).await });
    sim.run_until(5_000).unwrap();
    let mark = idle.connection(number(1)).unwrap();
    assert_eq!(end(&sim, &other, mark), Ok(()));
    let is_begun = sim.block_on(async {
        let mut incoming = receiver.next_call(SERVICE).await.unwrap();
        incoming.begin()
    });
    assert!(!is_begun.unwrap());
    sim.run().unwrap();
    assert_eq!(called.borrow_mut().take(), Some(Err(CallError::NotBegun)));
}

/// SIM-1: marks cost nothing, so that a run without ends keeps its trace; a run with ends replays.
#[test]
fn marks_leave_the_trace_as_it_is() {
    let run = |marks: bool, ends: bool| {
        let faults = AdversaryConfig { lost: 0.1, late: 0.2, torn: 0.5, ..Default::default() };
        let sim = connected(cluster(4, faults));
        for client in 0..6 {
            let (own, other) = (endpoint(&sim, client % 3), endpoint(&sim, client % 3));
            sim.spawn(client % 3, async move {
                for step in 0..30 {
                    let to = if step % 2 == 0 { at(0, 64) } else { of((client + 1) % 3, 64) };
                    let _ = own.faa(to, 1).await;
                    let mark = if marks { own.connection(to.server()) } else { None };
                    if ends && let Some(mark) = mark {
                        let _ = other.end_connection(mark).await;
                    }
                }
            });
        }
        sim.run().unwrap();
        assert_eq!(sim.in_flight(), 0);
        (sim.trace_hash(), sim.events())
    };
    assert_eq!(run(false, false), run(true, false));
    assert_eq!(run(true, true), run(true, true));
    assert_ne!(run(true, true), run(true, false));
}
