//! Locks and turns that are handed on by `Lock::finish_handing`: what the next task finds, whatever becomes of the caller.

use std::cell::RefCell;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Waker};

use farleaf_fabric::sim::SimConfig;
use farleaf_fabric::{Endpoint, GlobalAddr};
use farleaf_index::local::{Entered, HandOver};
use farleaf_index::remote_lock::{Lock, lock_word, release_turn};
use farleaf_pool::Session;

use crate::common::World;

/// The content that the holder writes.
const WRITTEN: u64 = 7;

/// The task whose caller goes away.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Calm,
    /// The holder's caller goes away once the chain is posted.
    HolderDropped,
    /// The chosen waiter goes away while the chain is under way.
    WaiterDropped,
}

fn config(seed: u64, lost: f64) -> SimConfig {
    let mut config = World { seed, ..World::default() }.sim_config();
    let adversary = &mut config.adversary;
    (adversary.torn, adversary.shuffle, adversary.lost) = (0.5, true, lost);
    (adversary.lost_ns, adversary.late, adversary.late_ns) = (40_000, 0.3, 30_000);
    config
}

/// A lock word, and behind it the word that it protects.
async fn object(session: &Session) -> (GlobalAddr, GlobalAddr) {
    let word = session.alloc(session.place(), 64).await.expect("memory");
    let mut zero = session.client().buf(64);
    zero.words_mut().fill(0);
    session.reliable().write(word, zero).await.expect("written");
    (word, word.plus(8))
}

/// The holder of `lock`, for which a waiter was chosen or not, writes and hands on.
async fn finish(session: &Session, lock: Lock, data: GlobalAddr, fate: Fate) {
    let mut ops = session.client().ops();
    ops.write_word(data, WRITTEN);
    let mut done = pin!(lock.finish_handing(ops, 0, None, Some([WRITTEN].into())));
    if fate == Fate::HolderDropped {
        let mut context = Context::from_waker(Waker::noop());
        assert!(done.as_mut().poll(&mut context).is_pending(), "the simulator takes its time");
        return;
    }
    // With lost completions a task may go on with it.
    let _ = done.await;
}

/// The word holds the waiter's token, behind all that the holder wrote, before the waiter learns of it. If the waiter is gone,
/// the word is released.
#[test]
fn a_waiter_learns_of_a_pass_behind_the_chain() {
    for (fate, lost, seed) in [Fate::Calm, Fate::HolderDropped, Fate::WaiterDropped]
        .into_iter()
        .flat_map(|fate| [0.0, 0.4].map(|lost| (fate, lost)))
        .flat_map(|(fate, lost)| (0..10).map(move |seed| (fate, lost, seed)))
    {
        World { seed, ..World::default() }.on_sim_with(config(seed, lost), |session| async move {
            let (word, data) = object(&session).await;
            let queue = HandOver::new(8);
            let (turn, how) = queue.enter(word, session.lock_token(), data, drop).await;
            assert_eq!(how, Entered::Ask);
            let mut lock = lock_word(&session, word).await.expect("locked").in_turn(turn);
            let token = session.lock_token();
            let orphan = {
                let session = session.clone();
                move |turn| release_turn(&session, word, turn)
            };
            let mut waiter = Box::pin(queue.enter(word, token, data, orphan));
            let mut context = Context::from_waker(Waker::noop());
            assert!(waiter.as_mut().poll(&mut context).is_pending());
            assert_eq!(lock.choose(), Some(data));
            let found = Rc::new(RefCell::new(None));
            if fate == Fate::WaiterDropped {
                drop(waiter);
            } else {
                let (own, found) = (session.clone(), Rc::clone(&found));
                session.endpoint().spawn(async move {
                    let (turn, how) = waiter.await;
                    let held = own.reliable().word(word).await.expect("the lock word");
                    let content = own.reliable().word(data).await.expect("the content");
                    *found.borrow_mut() = Some((how, held, content));
                    Lock::passed(&own, word, turn).release().await.expect("released");
                });
            }
            finish(&session, lock, data, fate).await;
            session.endpoint().sleep(3_000_000).await;
            let passed = (Entered::Passed(Some([WRITTEN].into())), token, WRITTEN);
            let expected = (fate != Fate::WaiterDropped).then_some(passed);
            // Of a holder that was dropped, nobody has the content.
            let found = found.borrow_mut().take();
            assert_eq!(found, expected, "{fate:?}, {lost} lost, seed {seed}");
            let left = session.reliable().word(word).await;
            assert_eq!(left, Ok(0), "{fate:?}, {lost} lost, seed {seed}");
        });
    }
}

/// The next task at an own leaf begins when the WRITE of the task before has landed, also if its caller went away, or its
/// completion was lost. The lock word stays 0.
#[test]
fn a_turn_ends_when_its_write_has_landed() {
    for (fate, is_chosen, lost, seed) in [Fate::Calm, Fate::HolderDropped, Fate::WaiterDropped]
        .into_iter()
        .flat_map(|fate| [(fate, true), (fate, false)])
        .flat_map(|(fate, is_chosen)| [0.0, 0.4].map(|lost| (fate, is_chosen, lost)))
        .flat_map(|(fate, chosen, lost)| (0..10).map(move |seed| (fate, chosen, lost, seed)))
    {
        World { seed, ..World::default() }.on_sim_with(config(seed, lost), |session| async move {
            let (word, data) = object(&session).await;
            let queue = HandOver::new(u32::MAX);
            let (turn, _) = queue.enter(data, session.lock_token(), data, drop).await;
            assert!(queue.try_enter(data, session.lock_token()).is_none(), "somebody has it");
            let kept = Rc::new(());
            let mut lock = Lock::local(&session, word, turn, Box::new(Rc::clone(&kept)));
            let mut waiter = Box::pin(queue.enter(data, session.lock_token(), data, drop));
            let mut context = Context::from_waker(Waker::noop());
            assert!(waiter.as_mut().poll(&mut context).is_pending());
            if is_chosen {
                assert_eq!(lock.choose(), Some(data));
            }
            let mut last = Some(waiter).filter(|_| fate != Fate::WaiterDropped);
            let next = last
                .take()
                .unwrap_or_else(|| Box::pin(queue.enter(data, session.lock_token(), data, drop)));
            let found = Rc::new(RefCell::new(None));
            let (own, told) = (session.clone(), Rc::clone(&found));
            session.endpoint().spawn(async move {
                let (turn, _) = next.await;
                let content = own.reliable().word(data).await.expect("the content");
                *told.borrow_mut() = Some(content);
                drop(turn);
            });
            finish(&session, lock, data, fate).await;
            session.endpoint().sleep(3_000_000).await;
            assert_eq!(*found.borrow(), Some(WRITTEN), "{fate:?}, {lost} lost, seed {seed}");
            assert_eq!(session.reliable().word(word).await, Ok(0));
            assert_eq!(Rc::strong_count(&kept), 1, "what it kept was dropped");
            let turn = queue.try_enter(data, session.lock_token());
            assert!(turn.is_some(), "the queue is empty");
        });
    }
}
