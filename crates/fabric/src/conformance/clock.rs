//! Time, tasks and randomness: F9.

use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::tools::{ONE, at, ok, poll_once, wait_until, word};
use super::{Harness, task};
use crate::Endpoint;

/// Time passes through operations, yields, work and sleep.
pub(super) fn time_never_goes_back<H: Harness>(harness: &H) {
    let base = at(harness, ONE, 4096);
    harness.run(vec![task(move |end: H::Endpoint| async move {
        let mut last_ns = end.now_ns();
        for round in 0..500 {
            match round % 4 {
                0 => drop(word(&end, base).await),
                1 => end.yield_now().await,
                2 => end.work(round).await,
                _ => end.sleep(round).await,
            }
            let now_ns = end.now_ns();
            assert!(now_ns >= last_ns, "from {last_ns} to {now_ns} ns");
            last_ns = now_ns;
        }
    })]);
}

/// No sleep is shorter than asked.
pub(super) fn sleep_is_long_enough<H: Harness>(harness: &H) {
    harness.run(vec![task(move |end: H::Endpoint| async move {
        for ns in [0, 1, 999, 20_000, 150_000, 1_000_000, 3_000_001] {
            let before_ns = end.now_ns();
            end.sleep(ns).await;
            let slept_ns = end.now_ns() - before_ns;
            assert!(slept_ns >= ns, "slept {slept_ns} ns instead of {ns}");
        }
    })]);
}

/// Tasks of one thread that sleep do so together and wake in the order of their times.
pub(super) fn sleepers_wake_in_order<H: Harness>(harness: &H) {
    harness.run(vec![task(move |end: H::Endpoint| async move {
        let woken = Rc::new(RefCell::new(Vec::new()));
        // Far apart, as a busy machine may keep the thread from beginning the next wait.
        for ms in [100, 20, 80, 40, 60] {
            let (sleeper, woken) = (end.clone(), Rc::clone(&woken));
            end.spawn(async move {
                sleeper.sleep(ms * 1_000_000).await;
                woken.borrow_mut().push(ms);
            });
        }
        wait_until(&end, "five sleepers", || woken.borrow().len() == 5).await;
        assert_eq!(*woken.borrow(), [20, 40, 60, 80, 100]);
    })]);
}

/// A spawned task runs to its end, also if its spawner is dropped, and if the thread's main task ends first.
pub(super) fn a_spawned_task_outlives_its_parent<H: Harness>(harness: &H) {
    let base = at(harness, ONE, 4096);
    let ended = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&ended);
    harness.run(vec![task(move |end: H::Endpoint| async move {
        for _ in 0..10 {
            let child = long_task(end.clone(), base, Arc::clone(&count));
            let parent = async {
                end.spawn(child);
                std::future::pending::<()>().await;
            };
            let polled = poll_once(pin!(parent)).await;
            assert!(polled.is_pending());
        }
        wait_until(&end, "ten children", || count.load(Ordering::SeqCst) == 10).await;
        assert_eq!(word(&end, base).await, 30);
        end.spawn(long_task(end.clone(), base, count));
    })]);
    assert_eq!(ended.load(Ordering::SeqCst), 11, "the last child was not waited for");
}

async fn long_task<E: Endpoint>(end: E, base: crate::GlobalAddr, ended: Arc<AtomicU64>) {
    for _ in 0..3 {
        ok(end.faa(base, 1).await);
        end.yield_now().await;
        end.sleep(50_000).await;
    }
    ended.fetch_add(1, Ordering::SeqCst);
}

/// Two tasks of one thread that wait for each other by yielding both make progress.
pub(super) fn a_yield_lets_others_run<H: Harness>(harness: &H) {
    const TURNS: u64 = 1_000;
    harness.run(vec![task(move |end: H::Endpoint| async move {
        let turn = Rc::new(Cell::new(0));
        let (other, others_turn) = (end.clone(), Rc::clone(&turn));
        end.spawn(async move {
            while others_turn.get() < TURNS {
                if others_turn.get() % 2 == 1 {
                    others_turn.set(others_turn.get() + 1);
                }
                other.yield_now().await;
            }
        });
        let mut yields = 0;
        while turn.get() < TURNS {
            if turn.get().is_multiple_of(2) {
                turn.set(turn.get() + 1);
            }
            end.yield_now().await;
            yields += 1;
            assert!(yields <= 10 * TURNS, "yielding in vain at turn {}", turn.get());
        }
    })]);
}

/// Endpoints draw different numbers, and the same ones from the same seed.
pub(super) fn endpoints_draw_their_own_random_numbers<H: Harness>(harness: &H) {
    let drawn = Arc::new(Mutex::new(Vec::new()));
    let tasks = (0..2).map(|_| {
        let drawn = Arc::clone(&drawn);
        task(move |end: H::Endpoint| async move {
            let draw = || (0..8).map(|_| end.random()).collect::<Vec<u64>>();
            let own = draw();
            let is_seeded = H::seed(&end, 7);
            let first = draw();
            assert_eq!(H::seed(&end, 7), is_seeded);
            let second = draw();
            assert_eq!(first == second, is_seeded, "the same seed, or just going on");
            drawn.lock().unwrap_or_else(PoisonError::into_inner).push((own, is_seeded, first));
        })
    });
    harness.run(tasks.collect());
    let drawn = drawn.lock().unwrap_or_else(PoisonError::into_inner);
    let [(own, is_seeded, first), (others_own, _, others_first)] = &drawn[..] else {
        panic!("two endpoints")
    };
    assert_ne!(own, others_own, "two endpoints draw the same");
    assert_eq!(first == others_first, *is_seeded, "the same seed on another endpoint");
}
