//! Task tests: pins of tasks, new objects in lists, and what a recovery tells engines of the dead.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use farleaf_fabric::{GlobalAddr, OpKind, ServerId};

use super::{SMALL, endpoint, formatted, member, set_word, tick, word};
use crate::Cas;

const ONE: ServerId = ServerId(0);

/// Tells whether the future waits when it is polled for the first time.
async fn waits(future: impl Future) -> bool {
    let mut future = pin!(future);
    poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_pending())).await
}

#[test]
fn a_task_pin_lets_the_next_operation_begin_and_holds_the_epoch() {
    let fabric = formatted(1, 4 << 20, SMALL);
    let end = endpoint(&fabric);
    end.executor().block_on(async {
        let session = member(&end).await;
        let pinned = session.begin(OpKind::Insert).await.unwrap();
        let of_task = session.pin_for_task();
        let before = session.pool().pins.least();
        drop(pinned);
        for _ in 0..4 {
            drop(session.begin(OpKind::Insert).await.unwrap());
            tick(&session, 2).await;
        }
        assert_eq!(session.pool().pins.least(), before);
        drop(of_task);
        tick(&session, 2).await;
        let pinned = session.begin(OpKind::Insert).await.unwrap();
        assert!(session.pool().pins.least() > before);
        let _first = session.hold();
        drop(pinned);
        assert!(waits(session.begin(OpKind::Insert)).await, "its redo area is in use");
    });
}

/// Else the pin that all share, once the others are taken, could hold one epoch for ever.
#[test]
fn an_operation_waits_while_three_tasks_hold_pins() {
    let fabric = formatted(1, 4 << 20, SMALL);
    let end = endpoint(&fabric);
    end.executor().block_on(async {
        let session = member(&end).await;
        let mut tasks = Vec::new();
        for _ in 0..3 {
            let _pinned = session.begin(OpKind::Insert).await.unwrap();
            tasks.push(session.pin_for_task());
        }
        assert!(waits(session.begin(OpKind::Insert)).await);
        tasks.pop();
        assert!(!waits(session.begin(OpKind::Insert)).await);
    });
}

#[test]
fn a_new_object_is_written_in_a_list_and_kept_until_its_cas_has_lost() {
    let fabric = formatted(1, 4 << 20, SMALL);
    let end = endpoint(&fabric);
    end.executor().block_on(async {
        let session = member(&end).await;
        let pinned = session.begin(OpKind::Insert).await.unwrap();
        let free = session.pool().memory().free_bytes;
        let object = session.alloc_unlinked(ONE, 64).await.unwrap();
        let (addr, table) = (object.addr(), session.alloc(ONE, 64).await.unwrap());
        set_word(&session, table, 7).await;
        let mut ops = session.client().ops();
        let mut content = session.client().buf(64);
        content.words_mut().fill(5);
        object.write_in(&mut ops, content);
        ops.read(table, session.client().buf(8));
        let ops = session.reliable().post_many(ops).await.unwrap();
        object.written();
        assert_eq!((ops.buf(1).words()[0], word(&session, addr).await), (7, 5));
        object.keep();
        let link = |expected| Cas { at: table, expected, new: addr.word() };
        let found = session.reliable().cas_many(&[link(6)]).await.unwrap();
        assert_eq!(found, [7], "the race is lost");
        object.unkeep();
        drop(object);
        session.free_unpublished(table, 64);
        let memory = session.pool().memory();
        assert!(memory.free_bytes > free && memory.live_bytes == 0, "{memory:?}");
        drop(pinned);
    });
}

#[test]
fn a_recovery_names_the_clients_of_the_dead_and_tells_unclaimed_from_unmarked() {
    let fabric = formatted(1, 4 << 20, SMALL);
    let end = endpoint(&fabric);
    end.executor().block_on(async {
        let (survivor, dead) = (member(&end).await, member(&end).await);
        let pinned = dead.begin(OpKind::Insert).await.unwrap();
        let [kept, lost] = [dead.alloc(ONE, 64).await.unwrap(), dead.alloc(ONE, 64).await.unwrap()];
        let foreign = survivor.alloc(ONE, 64).await.unwrap();
        set_word(&dead, dead.redo_addr(ONE), 0x5ed0).await;
        drop(pinned);
        dead.leave_as_dead().await.unwrap();
        let recovery = survivor.recover_begin().await.unwrap().expect("somebody is dead");
        assert_eq!(recovery.clients(), [dead.id()]);
        assert_eq!(word(&survivor, recovery.redo_addr(ONE, dead.id())).await, 0x5ed0);
        let mut audit = recovery.audit();
        audit.mark(kept, 64).unwrap();
        assert_eq!(audit.is_marked(kept), Some(true));
        assert_eq!(audit.is_marked(lost), Some(false));
        assert_eq!(audit.is_marked(foreign), None, "the block is its owner's");
        assert_eq!(audit.is_marked(GlobalAddr::new(ONE, 64)), None);
        let at = recovery.redo_addr(ONE, dead.id());
        survivor.recover_finish(recovery, &audit).await.unwrap();
        assert_eq!(word(&survivor, at).await, 0);
    });
}
