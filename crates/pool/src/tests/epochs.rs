//! Epoch tests: the pool reuses a retired object once no operation can hold it, and never before.

use std::sync::Arc;

use farleaf_fabric::sim::{Sim, SimConfig};
use farleaf_fabric::{Client, Endpoint, Fabric, GlobalAddr, OpKind, ServerId, ToAny};

use super::{Mine, Scratch, audit_of, endpoint, formatted, join, kill, member, run_of, tick};
use crate::PoolError;
use crate::geometry::RETIRE_WORDS;

const ONE: ServerId = ServerId(0);

/// Allocates and retires an object in one operation.
async fn retire_one(session: &Mine) -> GlobalAddr {
    let pinned = session.begin(OpKind::Remove).await.unwrap();
    let addr = session.alloc(ONE, 64).await.unwrap();
    let retiring = session.prepare_retire(addr).await.unwrap();
    assert_eq!(retiring.addr(), addr);
    session.retire(retiring);
    drop(pinned);
    addr
}

/// Tells whether the object can be had again; leaves it in use if so.
fn is_free(session: &Mine, addr: GlobalAddr) -> bool {
    let (block, run, index) = run_of(session, addr);
    session.pool().alloc().block(block).unwrap().run_at(run.page).unwrap().is_free(index)
}

#[test]
fn a_pinned_session_of_the_same_member_holds_objects_back() {
    let fabric = formatted(1, 4 << 20, super::SMALL);
    let end = endpoint(&fabric);
    end.executor().block_on(async {
        let pool = join(&end).await;
        let (one, two) =
            (pool.session(end.clone()).await.unwrap(), pool.session(end.clone()).await.unwrap());
        let reading = two.begin(OpKind::Get).await.unwrap();
        let addr = retire_one(&one).await;
        assert!(pool.memory().retired_bytes >= 64);
        tick(&one, 20).await;
        assert!(!is_free(&one, addr));
        let owned = two.hold();
        drop(reading);
        tick(&one, 20).await;
        assert!(!is_free(&one, addr), "the second pin holds it");
        drop(owned);
        tick(&one, 3).await;
        assert!(is_free(&one, addr));
        assert_eq!(pool.memory().retired_bytes, 0);
    });
}

#[test]
fn an_idle_session_keeps_nothing_from_the_others() {
    let fabric = formatted(1, 4 << 20, super::SMALL);
    let end = endpoint(&fabric);
    end.executor().block_on(async {
        let pool = join(&end).await;
        let (idle, busy) =
            (pool.session(end.clone()).await.unwrap(), pool.session(end.clone()).await.unwrap());
        let retired = [retire_one(&idle).await, retire_one(&idle).await, retire_one(&idle).await];
        tick(&busy, 20).await;
        for addr in retired {
            assert!(is_free(&busy, addr), "freed without a tick of its session");
        }
        assert_eq!(pool.memory().retired_bytes, 0);
        drop(idle);
        tick(&busy, 20).await;
        assert_eq!(pool.sessions(), 1);
        busy.leave().await.unwrap();
    });
}

#[test]
fn a_pinned_session_of_another_member_holds_objects_back() {
    let fabric = formatted(1, 4 << 20, super::SMALL);
    let end = endpoint(&fabric);
    end.executor().block_on(async {
        let (one, two) = (member(&end).await, member(&end).await);
        let reading = two.begin(OpKind::Get).await.unwrap();
        let addr = retire_one(&one).await;
        for _ in 0..20 {
            tick(&one, 1).await;
            tick(&two, 1).await;
        }
        assert!(!is_free(&one, addr));
        drop(reading);
        for _ in 0..4 {
            tick(&two, 1).await;
            tick(&one, 1).await;
        }
        assert!(is_free(&one, addr));
    });
}

#[test]
fn overlapping_operations_of_one_session_are_all_protected() {
    let fabric = formatted(1, 4 << 20, super::SMALL);
    let end = endpoint(&fabric);
    end.executor().block_on(async {
        let (one, two) = (member(&end).await, member(&end).await);
        let mut reading = Vec::new();
        for _ in 0..7 {
            reading.push(two.begin(OpKind::Get).await.unwrap());
        }
        let addr = retire_one(&one).await;
        while let Some(last) = reading.pop() {
            for _ in 0..3 {
                tick(&two, 1).await;
                tick(&one, 1).await;
            }
            assert!(!is_free(&one, addr), "{} still read", reading.len() + 1);
            drop(last);
        }
        for _ in 0..4 {
            tick(&two, 1).await;
            tick(&one, 1).await;
        }
        assert!(is_free(&one, addr));
    });
}

#[test]
fn an_idle_member_holds_nothing_back_and_wakes_with_one_chain() {
    let fabric = formatted(1, 4 << 20, super::SMALL);
    let end = endpoint(&fabric);
    end.executor().block_on(async {
        let (one, two) = (member(&end).await, member(&end).await);
        drop(two.begin(OpKind::Get).await.unwrap());
        tick(&two, 2).await;
        for _ in 0..30 {
            let addr = retire_one(&one).await;
            tick(&one, 3).await;
            assert!(is_free(&one, addr));
        }
        let chains = || end.counters().snapshot().total().chains;
        let before = chains();
        let reading = two.begin(OpKind::Get).await.unwrap();
        assert_eq!(chains(), before + 1);
        let addr = retire_one(&one).await;
        tick(&one, 10).await;
        assert!(!is_free(&one, addr), "it is not idle any more");
        drop(reading);
        drop(two.begin(OpKind::Get).await.unwrap());
        assert_eq!(chains(), before + 1 + 1 + 10, "both woke once, and the ticks");
    });
}

/// A member that dies in the middle of an operation is found by its lag, fenced and left out.
#[test]
fn a_dead_member_holds_nothing_back() {
    let scratch = Scratch::new("dead");
    let fabric = scratch.format(1, 4 << 20);
    let end = endpoint(&fabric);
    let other = farleaf_fabric::mapped::Mapped::open(&scratch.0).unwrap();
    let other_end = endpoint(&other);
    let dead = other_end.executor().block_on(async {
        let dead = member(&other_end).await;
        // Pinned for ever.
        std::mem::forget(dead.begin(OpKind::Get).await.unwrap());
        dead
    });
    let one = end.executor().block_on(async {
        let one = member(&end).await;
        let addr = retire_one(&one).await;
        tick(&one, 40).await;
        assert!(!is_free(&one, addr), "it lives");
        assert!(!one.pool().needs_recovery());
        one
    });
    kill(other, other_end, dead);
    end.executor().block_on(async {
        tick(&one, 12).await;
        assert!(one.pool().needs_recovery());
        let addr = retire_one(&one).await;
        tick(&one, 4).await;
        assert!(is_free(&one, addr));
        assert_eq!(one.pool().memory().retired_bytes, 0);
    });
}

/// One that dies idle lags never; it is asked after in turn.
#[test]
fn a_member_that_dies_idle_is_found() {
    let scratch = Scratch::new("idle");
    let fabric = scratch.format(1, 4 << 20);
    let end = endpoint(&fabric);
    let other = farleaf_fabric::mapped::Mapped::open(&scratch.0).unwrap();
    let other_end = endpoint(&other);
    let dead = other_end.executor().block_on(member(&other_end));
    let one = end.executor().block_on(async {
        let (one, idle) = (member(&end).await, member(&end).await);
        tick(&one, 300).await;
        assert!(!one.pool().needs_recovery());
        drop(idle);
        one
    });
    kill(other, other_end, dead);
    end.executor().block_on(async {
        tick(&one, 300).await;
        assert!(one.pool().needs_recovery());
    });
}

/// As above, with sessions that tick in step: each look is one session's.
#[test]
fn a_member_that_dies_idle_is_found_by_sessions_that_tick_in_step() {
    let sim = Sim::new(SimConfig { compute_servers: 2, ..SimConfig::seeded(1) }).unwrap();
    let [own, other] = [0, 1].map(|at| sim.fabric(at).any_endpoint().unwrap());
    let members = sim.block_on(async {
        crate::format(&Client::new(own.clone()), &super::SMALL).await.unwrap();
        (member(&own).await, member(&other).await)
    });
    let (one, idle) = members.unwrap();
    let pool = Arc::clone(one.pool());
    for _ in 0..2 {
        let (pool, endpoint) = (Arc::clone(&pool), own.clone());
        sim.spawn(0, async move {
            let session = pool.session(endpoint).await.unwrap();
            loop {
                session.tick().await.unwrap();
                session.endpoint().sleep(10_000).await;
            }
        });
    }
    sim.run_until(sim.now_ns() + 1_000_000).unwrap();
    assert!(!pool.needs_recovery());
    sim.fabric(1).kill();
    drop(idle);
    sim.run_until(sim.now_ns() + 10_000_000).unwrap();
    assert!(pool.needs_recovery());
}

/// One that dies in an operation, announced at an epoch that nobody moves on, lags never either.
#[test]
fn a_member_that_dies_live_is_found_where_nothing_is_to_be_freed() {
    let scratch = Scratch::new("calm");
    let fabric = scratch.format(1, 4 << 20);
    let end = endpoint(&fabric);
    let other = farleaf_fabric::mapped::Mapped::open(&scratch.0).unwrap();
    let other_end = endpoint(&other);
    let one = end.executor().block_on(member(&end));
    let dead = other_end.executor().block_on(async {
        let dead = member(&other_end).await;
        std::mem::forget(dead.begin(OpKind::Get).await.unwrap());
        tick(&dead, 1).await;
        dead
    });
    end.executor().block_on(async {
        tick(&one, 300).await;
        assert!(!one.pool().needs_recovery());
    });
    kill(other, other_end, dead);
    end.executor().block_on(async {
        tick(&one, 300).await;
        assert!(one.pool().needs_recovery());
    });
}

#[test]
fn a_full_retire_page_says_so_and_empties() {
    let fabric = formatted(1, 4 << 20, super::SMALL);
    let end = endpoint(&fabric);
    end.executor().block_on(async {
        let (one, two) = (member(&end).await, member(&end).await);
        let reading = two.begin(OpKind::Get).await.unwrap();
        let pinned = one.begin(OpKind::Remove).await.unwrap();
        // All words but those of the chunk that is filled and the one that is emptied.
        let room = RETIRE_WORDS - 2 * 64;
        for _ in 0..room {
            let addr = two.alloc(ONE, 64).await.unwrap();
            let retiring = one.prepare_retire(addr).await.unwrap();
            one.retire(retiring);
        }
        let addr = two.alloc(ONE, 64).await.unwrap();
        assert_eq!(one.prepare_retire(addr).await.err(), Some(PoolError::RetireFull));
        let own = one.alloc(ONE, 64).await.unwrap();
        let retiring = one.prepare_retire(own).await.expect("room of its own");
        one.cancel_retire(retiring);
        let report = audit_of(&two, &[(addr, 64)]).await;
        assert_eq!(report.classes[0].retired, room as u64);
        drop((pinned, reading));
        tick(&two, 2).await;
        tick(&one, 6).await;
        let retiring = one.prepare_retire(addr).await.unwrap();
        one.cancel_retire(retiring);
        one.free_unpublished(own, 64);
        one.leave().await.unwrap();
        let report = audit_of(&two, &[(addr, 64)]).await;
        assert_eq!((report.classes[0].retired, report.closes()), (0, true), "{report:?}");
    });
}

#[test]
fn what_a_dropped_session_retired_is_reclaimed_by_others() {
    let fabric = formatted(2, 4 << 20, super::SMALL);
    let end = endpoint(&fabric);
    end.executor().block_on(async {
        let pool = join(&end).await;
        let one = pool.session(end.clone()).await.unwrap();
        let addr = retire_one(&one).await;
        // Announced and then forgotten: the object stays in use.
        let kept = one.alloc(ServerId(1), 64).await.unwrap();
        drop(one.prepare_retire(kept).await.unwrap());
        let id = one.id();
        drop(one);
        assert_eq!(pool.sessions(), 0);
        let two = pool.session(end.clone()).await.unwrap();
        assert_ne!(two.id(), id, "not free yet");
        tick(&two, 4).await;
        assert!(is_free(&two, addr));
        let report = audit_of(&two, &[(kept, 64)]).await;
        assert!(report.closes(), "{report:?}");
        let three = pool.session(end.clone()).await.unwrap();
        assert_eq!(three.id(), id, "free again");
    });
}

/// The price of maintenance, exactly.
#[test]
fn a_tick_costs_what_it_says() {
    let fabric = formatted(1, 4 << 20, super::SMALL);
    let end = endpoint(&fabric);
    end.executor().block_on(async {
        let client = Client::new(end.clone());
        let session = member(&end).await;
        let cost = || client.endpoint().counters().snapshot().kind(OpKind::Maintenance);
        tick(&session, 3).await;
        let before = cost();
        tick(&session, 4).await;
        let after = cost();
        let idle = (after.chains - before.chains, after.reads - before.reads, after.atomics());
        assert_eq!(idle, (1, 5, before.atomics()), "idle: three glances and a look");
        // Of four ticks with an operation before each one looks, and moves the epoch on.
        let mut has_looked = false;
        for _ in 0..4 {
            drop(session.begin(OpKind::Get).await.unwrap());
            let before = cost();
            tick(&session, 1).await;
            let after = cost();
            if after.chains > before.chains {
                assert_eq!(after.round_trips - before.round_trips, 2, "a look and the advance");
                has_looked = true;
                break;
            }
            assert_eq!(after.bytes_read - before.bytes_read, 8, "a glance");
        }
        assert!(has_looked);
        assert!(fabric.endpoint().is_ok());
    });
}
