//! Allocation tests: take and free objects, on one server and between members.
#![allow(clippy::disallowed_methods, reason = "real threads race here")]

use std::collections::BTreeSet;

use farleaf_fabric::sim::{Sim, SimConfig};
use farleaf_fabric::{Client, OpKind, ServerId, ToAny};

use super::{SMALL, audit_of, endpoint, formatted, join, member, tick};
use crate::PoolError;
use crate::class::class_of;
use crate::words::{BlockState, BlockWord};

const ONE: ServerId = ServerId(0);

#[test]
fn objects_are_aligned_and_distinct_and_cost_nothing_remote() {
    let fabric = formatted(2, 4 << 20, SMALL);
    let end = endpoint(&fabric);
    end.executor().block_on(async {
        let session = member(&end).await;
        let mut live = Vec::new();
        for bytes in [1, 64, 65, 1000, 4096, 5000] {
            let addr = session.alloc(session.place(), bytes).await.unwrap();
            assert!(addr.offset().is_multiple_of(64));
            live.push((addr, bytes));
        }
        assert!(audit_of(&session, &live).await.closes());
        // The first block of its class on that server.
        let first = session.alloc(ONE, 60).await.unwrap();
        session.free_unpublished(first, 60);
        let before = end_counts(&session);
        for _ in 0..50 {
            let addr = session.alloc(ONE, 60).await.unwrap();
            session.free_unpublished(addr, 60);
        }
        assert_eq!(end_counts(&session), before, "no remote operation");
        for (addr, bytes) in live.drain(..) {
            session.free_unpublished(addr, bytes);
        }
        assert!(audit_of(&session, &[]).await.closes());
        assert_eq!(session.pool().memory().live_bytes, 0);
        let too_large = session.pool().geometry().object_bytes_max() + 1;
        assert!(matches!(session.alloc(ONE, too_large).await, Err(PoolError::Invalid(_))));
        assert!(matches!(session.alloc(ServerId(2), 8).await, Err(PoolError::Invalid(_))));
    });
}

fn end_counts(session: &super::Mine) -> u64 {
    use farleaf_fabric::Endpoint;
    session.endpoint().counters().snapshot().total().verbs()
}

#[test]
#[should_panic(expected = "cannot be freed")]
fn freeing_twice_is_noticed() {
    let fabric = formatted(1, 4 << 20, SMALL);
    let end = endpoint(&fabric);
    end.executor().block_on(async {
        let session = member(&end).await;
        let addr = session.alloc(ONE, 64).await.unwrap();
        session.free_unpublished(addr, 64);
        session.free_unpublished(addr, 64);
    });
}

#[test]
fn a_full_pool_says_so_and_recovers() {
    let fabric = formatted(1, 1 << 20, SMALL);
    let end = endpoint(&fabric);
    end.executor().block_on(async {
        let session = member(&end).await;
        let mut objects = BTreeSet::new();
        let full = loop {
            match session.alloc(ONE, 1024).await {
                Ok(addr) => assert!(objects.insert(addr), "{addr} was handed out twice"),
                Err(error) => break error,
            }
        };
        assert!(matches!(full, PoolError::Full { server: ONE, bytes: 1024, .. }), "{full}");
        let live: Vec<_> = objects.iter().map(|addr| (*addr, 1024)).collect();
        let report = audit_of(&session, &live).await;
        assert!(report.closes(), "{report:?}");
        assert_eq!(report.blocks_free, 0);
        let full = session.alloc(ONE, 64).await.unwrap_err();
        assert!(matches!(full, PoolError::Full { server: ONE, bytes: 64, .. }), "{full}");
        // Another class can use the memory once it is free.
        for addr in objects {
            session.free_unpublished(addr, 1024);
        }
        let mut small = Vec::new();
        while let Ok(addr) = session.alloc(ONE, 64).await {
            small.push((addr, 64));
        }
        assert!(small.len() as u64 * 64 > 600 << 10, "{} objects", small.len());
        assert!(audit_of(&session, &small).await.closes());
    });
}

#[test]
fn a_search_of_another_session_that_lasts_is_not_taken_for_a_full_pool() {
    let sim = Sim::new(SimConfig::seeded(1)).unwrap();
    let end = sim.fabric(0).any_endpoint().unwrap();
    let done = sim.block_on(async {
        crate::format(&Client::new(end.clone()), &SMALL).await.unwrap();
        let session = member(&end).await;
        let class = class_of(64).unwrap();
        assert!(session.pool().alloc().begin_refill(ONE, class), "it is the first");
        assert!(matches!(session.alloc_on(ONE, 64).await, Err(PoolError::Searching)));
        session.pool().alloc().of_class_mut(ONE, class).refilling = false;
        session.alloc_on(ONE, 64).await.unwrap();
    });
    done.unwrap();
}

#[test]
fn surplus_blocks_go_back_to_the_pool() {
    let fabric = formatted(1, 4 << 20, SMALL);
    let end = endpoint(&fabric);
    end.executor().block_on(async {
        let session = member(&end).await;
        let mut objects = Vec::new();
        for _ in 0..60 * 6 {
            objects.push(session.alloc(ONE, 1024).await.unwrap());
        }
        assert!(session.pool().memory().block_bytes_owned >= 5 * SMALL.block_bytes);
        for addr in objects {
            session.free_unpublished(addr, 1024);
        }
        tick(&session, 10).await;
        assert_eq!(session.pool().memory().block_bytes_owned, SMALL.block_bytes);
    });
}

/// One member frees what another allocated; the owner hands it out again.
#[test]
fn objects_come_back_from_other_members() {
    let fabric = formatted(1, 1 << 20, SMALL);
    let end = endpoint(&fabric);
    end.executor().block_on(async {
        let (owner, other) = (member(&end).await, member(&end).await);
        let mut objects = Vec::new();
        while let Ok(addr) = owner.alloc(ONE, 2048).await {
            objects.push(addr);
        }
        for addr in &objects[..40] {
            let pinned = other.begin(OpKind::Remove).await.unwrap();
            let retiring = other.prepare_retire(*addr).await.unwrap();
            other.retire(retiring);
            drop(pinned);
        }
        for _ in 0..6 {
            other.tick().await.unwrap();
            owner.tick().await.unwrap();
        }
        let given: BTreeSet<_> = objects.drain(..40).collect();
        let mut again = BTreeSet::new();
        while let Ok(addr) = owner.alloc(ONE, 2048).await {
            assert!(again.insert(addr));
        }
        assert_eq!(again, given);
        other.leave().await.unwrap();
        let live: Vec<_> = objects.iter().chain(&again).map(|addr| (*addr, 2048)).collect();
        let report = audit_of(&owner, &live).await;
        assert!(report.closes(), "{report:?}");
    });
}

#[test]
fn orphans_of_a_member_that_left_are_adopted() {
    let fabric = formatted(1, 1 << 20, SMALL);
    let end = endpoint(&fabric);
    end.executor().block_on(async {
        let first = member(&end).await;
        let kept = first.alloc(ONE, 512).await.unwrap();
        let freed = first.alloc(ONE, 128).await.unwrap();
        first.free_unpublished(freed, 128);
        first.leave().await.unwrap();
        assert_eq!(first.tick().await, Err(PoolError::Closed));
        assert!(matches!(first.alloc(ONE, 1).await, Err(PoolError::Closed)));
        let second = member(&end).await;
        assert_eq!(second.pool().member(), 0, "the slot is free again");
        let report = audit_of(&second, &[(kept, 512)]).await;
        assert!(report.closes(), "{report:?}");
        assert_eq!((report.blocks_orphan, report.blocks_owned), (1, 0), "the empty one is free");
        let mut live = vec![(kept, 512)];
        live.push((second.alloc(ONE, 512).await.unwrap(), 512));
        let report = audit_of(&second, &live).await;
        assert!(report.closes(), "{report:?}");
        assert_eq!((report.blocks_orphan, report.blocks_owned), (0, 1));
        let geometry = second.pool().geometry();
        let (block, _) = geometry.block_of(kept).unwrap();
        let word = BlockWord(super::word(&second, geometry.block_word_addr(block)).await);
        assert_eq!((word.state(), word.owner()), (Ok(BlockState::Owned), 0));
    });
}

/// Pages of orphans serve another class once no object is in use there, before the pool counts as full.
#[test]
fn free_orphans_of_another_class_are_used() {
    let fabric = formatted(1, 1 << 20, SMALL);
    let end = endpoint(&fabric);
    end.executor().block_on(async {
        let (first, second) = (member(&end).await, member(&end).await);
        let mut objects = Vec::new();
        while let Ok(addr) = first.alloc(ONE, 4096).await {
            objects.push(addr);
        }
        // The pages that are left.
        while first.alloc(ONE, 1024).await.is_ok() {}
        first.leave().await.unwrap();
        assert!(matches!(second.alloc(ONE, 64).await, Err(PoolError::Full { .. })));
        for addr in objects {
            let pinned = second.begin(OpKind::Remove).await.unwrap();
            let retiring = second.prepare_retire(addr).await.unwrap();
            second.retire(retiring);
            drop(pinned);
            tick(&second, 1).await;
        }
        tick(&second, 4).await;
        second.alloc(ONE, 64).await.unwrap();
        for _ in 0..40 {
            second.alloc(ONE, 8192).await.unwrap();
        }
    });
}

/// Two threads allocate, free their own and retire each other's. Real threads: the simulator has
/// but one, and what is shared between a member's threads is to be tried.
#[test]
#[allow(clippy::disallowed_methods)]
fn threads_share_a_pool() {
    let fabric = formatted(2, 8 << 20, SMALL);
    let end = endpoint(&fabric);
    let pool = end.executor().block_on(join(&end));
    let (to_other, from_other): (Vec<_>, Vec<_>) =
        (0..2).map(|_| std::sync::mpsc::channel()).unzip();
    let mut from_other: Vec<_> = from_other.into_iter().map(Some).collect();
    let left: Vec<_> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..2)
            .map(|number| {
                let (fabric, shared) = (&fabric, &pool);
                let to = to_other[1 - number].clone();
                let from = from_other[number].take().unwrap();
                scope.spawn(move || {
                    let end = endpoint(fabric);
                    end.executor().block_on(async {
                        // One thread is of the first member, the other a member of its own.
                        let own = if number == 0 { shared.clone() } else { join(&end).await };
                        let session = own.session(end.clone()).await.unwrap();
                        let mut live = Vec::new();
                        for round in 0..4000_usize {
                            let pinned = session.begin(OpKind::Insert).await.unwrap();
                            let bytes = [64, 320, 1500][round % 3];
                            match session.alloc(session.place(), bytes).await {
                                Ok(addr) if round % 2 == 0 => to.send((addr, bytes)).unwrap(),
                                Ok(addr) => live.push((addr, bytes)),
                                Err(error) => panic!("{error}"),
                            }
                            if let Ok((addr, _)) = from.try_recv() {
                                let retiring = session.prepare_retire(addr).await.unwrap();
                                session.retire(retiring);
                            }
                            if live.len() > 20 {
                                let (addr, bytes) = live.swap_remove(round % 20);
                                session.free_unpublished(addr, bytes);
                            }
                            drop(pinned);
                            if round % 8 == 0 {
                                session.tick().await.unwrap();
                            }
                        }
                        drop(to);
                        live.extend(from.try_iter());
                        if number == 1 {
                            session.leave().await.unwrap();
                        } else {
                            // Idle, so that the other does not wait for it.
                            tick(&session, 2).await;
                        }
                        (live, from)
                    })
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    drop(to_other);
    let mut live = Vec::new();
    for (objects, from) in left {
        live.extend(objects);
        live.extend(from.try_iter());
    }
    end.executor().block_on(async {
        let session = pool.session(end.clone()).await.unwrap();
        // Retired objects that were not due when the second member left are recovery's.
        if let Some(recovery) = session.recover_begin().await.unwrap() {
            let mut audit = recovery.audit();
            live.iter().for_each(|(addr, bytes)| audit.mark(*addr, *bytes).unwrap());
            let done = session.recover_finish(recovery, &audit).await.unwrap();
            assert!(done.complete && done.problems.is_empty(), "{done:?}");
        }
        tick(&session, 10).await;
        let report = audit_of(&session, &live).await;
        assert!(report.closes(), "{report:?}");
    });
}
