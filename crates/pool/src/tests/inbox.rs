//! Inbox tests: freed objects come home by their owner's ring, and to the bitmaps once there is no such owner.

use farleaf_fabric::{GlobalAddr, OpKind, ServerId};

use super::{Mine, SMALL, audit_of, endpoint, formatted, member, tick};

const ONE: ServerId = ServerId(0);
/// More than have to come back by bitmaps before an owner opens its inbox.
const MANY: usize = 80;

async fn take_many(session: &Mine, bytes: usize) -> Vec<GlobalAddr> {
    let mut objects = Vec::new();
    for _ in 0..MANY + 20 {
        objects.push(session.alloc(ONE, bytes).await.unwrap());
    }
    objects
}

async fn retire(session: &Mine, objects: &[GlobalAddr]) {
    let pinned = session.begin(OpKind::Remove).await.unwrap();
    for addr in objects {
        let retiring = session.prepare_retire(*addr).await.unwrap();
        session.retire(retiring);
    }
    drop(pinned);
}

/// `owner` opens its inbox, because `other` frees so many of its objects; it has the rest.
async fn open_inbox(owner: &Mine, bytes: usize, other: &Mine, keeper: &Mine) -> Vec<GlobalAddr> {
    let mut objects = take_many(owner, bytes).await;
    let rest = objects.split_off(MANY);
    retire(other, &objects).await;
    for _ in 0..200 {
        // At work, so that it looks at the others.
        drop(owner.begin(OpKind::Get).await.unwrap());
        let addr = owner.alloc(ONE, bytes).await.unwrap();
        owner.free_unpublished(addr, bytes);
        for session in [other, owner, keeper] {
            tick(session, 1).await;
        }
        if owner.pool().inbox.is_open() {
            return rest;
        }
    }
    panic!("the inbox stays closed");
}

/// Objects of a member that has left are not sent to the next one in its slot, whose inbox is another's.
#[test]
fn objects_of_an_earlier_life_of_a_slot_go_to_the_bitmaps() {
    let fabric = formatted(1, 4 << 20, SMALL);
    let end = endpoint(&fabric);
    end.executor().block_on(async {
        let (sender, owner, other) = (member(&end).await, member(&end).await, member(&end).await);
        let slot = owner.pool().member();
        let rest = open_inbox(&owner, 64, &other, &sender).await;
        // The sender learns the owner and its ring.
        retire(&sender, &rest[..1]).await;
        for _ in 0..8 {
            for session in [&sender, &owner, &other] {
                tick(session, 1).await;
            }
        }
        owner.leave().await.unwrap();
        let next = member(&end).await;
        assert_eq!(next.pool().member(), slot);
        // Of another size, so that it does not adopt the block.
        let own = open_inbox(&next, 128, &other, &sender).await;
        // Idle, so that nothing waits for the next one, which looks at its rings no more.
        tick(&next, 2).await;
        retire(&sender, &rest[1..2]).await;
        for _ in 0..8 {
            for session in [&sender, &other] {
                tick(session, 1).await;
            }
        }
        assert_eq!(sender.inner.retired.lock().len(), 0);
        let live = rest[2..].iter().map(|addr| (*addr, 64));
        let live: Vec<_> = live.chain(own.iter().map(|addr| (*addr, 128))).collect();
        let report = audit_of(&sender, &live).await;
        let leaked: u64 = report.classes.iter().map(|class| class.leaked).sum();
        assert_eq!((leaked, report.problems.len()), (0, 0), "{report:?}");
    });
}
