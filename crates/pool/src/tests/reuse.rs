//! Reuse tests: the pool never reuses an address in the epoch in which its object was retired.
//!
//! A member that remembers an address from one operation to the next trusts it for as long as its view
//! of the global epoch stands still. Idle members and missing pins must not shorten that time.

use std::collections::BTreeSet;

use farleaf_fabric::{GlobalAddr, OpKind, ServerId};

use super::{Mine, SMALL, endpoint, formatted, member, tick, word};
use crate::PoolError;

const ONE: ServerId = ServerId(0);
const TICKS_MAX: usize = 64;

async fn epoch(session: &Mine) -> u64 {
    word(session, session.pool().geometry().epoch_addr()).await
}

/// Retires `addr` within an operation; gives the global epoch of then.
async fn retire(session: &Mine, addr: GlobalAddr) -> u64 {
    let pinned = session.begin(OpKind::Remove).await.unwrap();
    let retiring = session.prepare_retire(addr).await.unwrap();
    let retired_at = epoch(session).await;
    session.retire(retiring);
    drop(pinned);
    retired_at
}

/// Every object of 64 bytes that can be had from the first server, in a pool of one block.
async fn all_that_is_free(session: &Mine) -> BTreeSet<GlobalAddr> {
    let mut found = BTreeSet::new();
    loop {
        match session.alloc(ONE, 64).await {
            Ok(addr) => assert!(found.insert(addr)),
            Err(PoolError::Full { .. }) => return found,
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_member_alone_reuses_nothing_in_the_epoch_of_its_retirement() {
    let fabric = formatted(1, 4 << 20, SMALL);
    let end = endpoint(&fabric);
    end.executor().block_on(async {
        let one = member(&end).await;
        let addr = one.alloc(ONE, 64).await.unwrap();
        let retired_at = retire(&one, addr).await;
        let mut ticks = 0;
        while one.inner.retired.lock().len() > 0 {
            tick(&one, 1).await;
            ticks += 1;
            assert!(ticks < TICKS_MAX, "it is never free");
        }
        assert!(epoch(&one).await >= retired_at + 2, "free after {ticks} ticks");
        // Idle, with nothing to free, it leaves the epoch alone.
        tick(&one, 2).await;
        let at_rest = epoch(&one).await;
        tick(&one, 20).await;
        assert_eq!(epoch(&one).await, at_rest);
    });
}

/// The object is in another member's block: it comes back to that by its bitmap.
#[test]
fn what_is_given_back_to_another_member_has_waited_for_two_epochs() {
    let fabric = formatted(1, 4 << 20, SMALL);
    let end = endpoint(&fabric);
    end.executor().block_on(async {
        let (owner, other) = (member(&end).await, member(&end).await);
        let addr = owner.alloc(ONE, 64).await.unwrap();
        tick(&owner, 2).await;
        let retired_at = retire(&other, addr).await;
        let mut ticks = 0;
        while other.inner.retired.lock().len() > 0 {
            tick(&other, 1).await;
            ticks += 1;
            assert!(ticks < TICKS_MAX, "it is never free");
        }
        assert!(epoch(&other).await >= retired_at + 2, "free after {ticks} ticks");
    });
}

#[test]
fn a_member_that_leaves_waits_for_two_epochs() {
    let fabric = formatted(1, 4 << 20, SMALL);
    let end = endpoint(&fabric);
    end.executor().block_on(async {
        let (keeper, leaver) = (member(&end).await, member(&end).await);
        tick(&keeper, 2).await;
        let [kept, addr] =
            [leaver.alloc(ONE, 64).await.unwrap(), leaver.alloc(ONE, 64).await.unwrap()];
        let retired_at = retire(&leaver, addr).await;
        leaver.leave().await.unwrap();
        let free = all_that_is_free(&keeper).await;
        assert!(free.contains(&addr), "the keeper adopts the block");
        assert!(!free.contains(&kept));
        assert!(epoch(&keeper).await >= retired_at + 2);
    });
}

#[test]
fn a_recovery_and_a_sweep_free_nothing_in_the_epoch_that_they_looked_in() {
    let fabric = formatted(1, 4 << 20, SMALL);
    let end = endpoint(&fabric);
    end.executor().block_on(async {
        let survivor = member(&end).await;
        tick(&survivor, 2).await;
        let dead = member(&end).await;
        let pinned = dead.begin(OpKind::Insert).await.unwrap();
        let [kept, lost, swept] = [
            dead.alloc(ONE, 64).await.unwrap(),
            dead.alloc(ONE, 64).await.unwrap(),
            dead.alloc(ONE, 64).await.unwrap(),
        ];
        drop(pinned);
        dead.leave_as_dead().await.unwrap();
        for (is_recovery, lives) in [(true, &[kept, swept][..]), (false, &[kept])] {
            let recovery = match is_recovery {
                true => survivor.recover_begin().await.unwrap().expect("somebody is dead"),
                false => survivor.sweep_begin().await.unwrap().expect("an orphan"),
            };
            let mut audit = recovery.audit();
            lives.iter().for_each(|addr| audit.mark(*addr, 64).unwrap());
            let looked_at = epoch(&survivor).await;
            let done = survivor.recover_finish(recovery, &audit).await.unwrap();
            assert!(done.complete && done.problems.is_empty(), "{done:?}");
            assert!(done.objects_freed > 0, "{done:?}");
            assert!(epoch(&survivor).await > looked_at, "recovery: {is_recovery}");
        }
        let free = all_that_is_free(&survivor).await;
        assert!(free.contains(&lost) && free.contains(&swept) && !free.contains(&kept));
    });
}
