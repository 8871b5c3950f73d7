//! Task tests: sleeping, yielding, spawning, stopping, and runs that cannot go on.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Poll, Waker};

use super::*;
use crate::sim::SimError;

type Log = Rc<RefCell<Vec<u64>>>;

#[test]
fn sleepers_wake_in_order_at_their_time() {
    let sim = sim(config(1));
    let log = Log::default();
    for ns in [90_000_000, 300, 0, 40_000] {
        let (endpoint, log) = (endpoint(&sim, 0), Rc::clone(&log));
        sim.spawn(0, async move {
            endpoint.sleep(ns).await;
            assert_eq!(endpoint.now_ns(), ns.max(1));
            log.borrow_mut().push(ns);
        });
    }
    sim.run().unwrap();
    assert_eq!(*log.borrow(), [0, 300, 40_000, 90_000_000]);
}

#[test]
fn a_loop_that_yields_lets_time_go_on() {
    let sim = sim(config(1));
    let done = Rc::new(Cell::new(false));
    let (sleeper, spinner) = (endpoint(&sim, 0), endpoint(&sim, 0));
    let set = Rc::clone(&done);
    sim.spawn(0, async move {
        sleeper.sleep(10_000).await;
        set.set(true);
    });
    let turns = sim.block_on(async {
        let mut turns = 0;
        while !done.get() {
            spinner.yield_now().await;
            turns += 1;
        }
        turns
    });
    assert_eq!(turns, Ok(200), "each takes 50 ns");
}

#[test]
fn work_occupies_its_thread_and_no_other() {
    let sim = sim(config(1));
    let fabric = sim.fabric(0);
    let log = Log::default();
    for thread in [0, 0, 1] {
        let (endpoint, log) = (fabric.endpoint_on(thread).unwrap(), Rc::clone(&log));
        assert_eq!(endpoint.thread(), thread);
        sim.spawn(0, async move {
            endpoint.work(1_000).await;
            log.borrow_mut().push(endpoint.now_ns());
        });
    }
    sim.run().unwrap();
    assert_eq!(*log.borrow(), [1_000, 1_000, 2_000]);
}

#[test]
fn a_spawned_task_outlives_its_maker() {
    let sim = sim(config(1));
    let endpoint = endpoint(&sim, 0);
    sim.block_on(async {
        let other = endpoint.clone();
        endpoint.spawn(async move {
            other.sleep(500).await;
            other.write(at(0, 8), filled(&other, 1, 9)).await.unwrap();
        });
    })
    .unwrap();
    assert_eq!((sim.live_tasks(), sim.now_ns()), (1, 0));
    sim.run().unwrap();
    assert_eq!(look(&sim, 0, 8, 1), [9]);
}

/// Wakers that are not the task's own, as a join of futures makes them.
#[test]
fn foreign_wakers_are_called() {
    struct Flag(std::sync::Mutex<Option<Waker>>, std::sync::atomic::AtomicBool);
    impl std::task::Wake for Flag {
        fn wake(self: std::sync::Arc<Self>) {
            self.1.store(true, std::sync::atomic::Ordering::SeqCst);
            if let Some(waker) = self.0.lock().unwrap().take() {
                waker.wake();
            }
        }
    }
    let sim = sim(config(1));
    for root in [true, false] {
        let endpoint = endpoint(&sim, 0);
        let seen = Rc::new(Cell::new(None));
        let set = Rc::clone(&seen);
        let task = async move {
            let flag = std::sync::Arc::new(Flag(None.into(), true.into()));
            let waker = Waker::from(std::sync::Arc::clone(&flag));
            let mut faa = Box::pin(endpoint.faa(at(0, 64), 1));
            let old = std::future::poll_fn(|context| {
                *flag.0.lock().unwrap() = Some(context.waker().clone());
                if !flag.1.swap(false, std::sync::atomic::Ordering::SeqCst) {
                    return Poll::Pending;
                }
                faa.as_mut().poll(&mut std::task::Context::from_waker(&waker))
            })
            .await;
            set.set(Some(old));
        };
        if root {
            sim.block_on(task).unwrap();
        } else {
            sim.spawn(0, task);
            sim.run().unwrap();
        }
        assert_eq!(seen.take(), Some(Ok(u64::from(!root))));
    }
}

#[test]
fn stopped_tasks_wait_and_lose_nothing() {
    let sim = sim(SimConfig { compute_servers: 2, ..config(1) });
    for compute in 0..2 {
        let endpoint = endpoint(&sim, compute);
        sim.spawn(compute, async move {
            loop {
                endpoint.faa(at(0, 8 * compute as u64), 1).await.unwrap();
            }
        });
    }
    sim.run_until(100_000).unwrap();
    let before = look(&sim, 0, 0, 2);
    sim.fabric(0).stop();
    sim.run_until(200_000).unwrap();
    let stopped = look(&sim, 0, 0, 2);
    assert!(stopped[0] <= before[0] + 1, "only what was in flight");
    assert!(stopped[1] > before[1] + 30);
    sim.fabric(0).resume();
    sim.run_until(300_000).unwrap();
    let after = look(&sim, 0, 0, 2);
    assert!(after[0] > stopped[0] + 30);
    assert_eq!(sim.live_tasks(), 2);
}

#[test]
fn a_deadlock_names_how_many_wait() {
    let sim = sim(config(1));
    let endpoint = endpoint(&sim, 0);
    for _ in 0..3 {
        let endpoint = endpoint.clone();
        sim.spawn(0, async move {
            endpoint.faa(at(0, 0), 1).await.unwrap();
            std::future::pending::<()>().await;
        });
    }
    let error = sim.run().unwrap_err();
    assert!(matches!(error, SimError::Deadlock { tasks: 3, now_ns: 1_000.. }), "{error}");
    let root = sim.block_on(std::future::pending::<()>()).unwrap_err();
    assert!(matches!(root, SimError::Deadlock { tasks: 4, .. }));
    assert!(root.to_string().contains("4 tasks wait"));
}

#[test]
fn a_run_without_end_is_cut_off() {
    let sim = sim(SimConfig { events_max: 10_000, ..config(1) });
    let endpoint = endpoint(&sim, 0);
    sim.spawn(0, async move {
        loop {
            endpoint.yield_now().await;
        }
    });
    let error = sim.run().unwrap_err();
    assert!(matches!(error, SimError::TooManyEvents { events: 10_000, tasks: 1, .. }), "{error}");
}

#[test]
fn dropping_a_simulation_drops_its_tasks() {
    let held = Rc::new(());
    {
        let sim = sim(config(1));
        for _ in 0..3 {
            let (endpoint, held) = (endpoint(&sim, 0), Rc::clone(&held));
            sim.spawn(0, async move {
                let _held = held;
                loop {
                    drop(endpoint.read(at(0, 0), endpoint.buf(64)).await);
                }
            });
        }
        sim.run_until(5_000).unwrap();
        assert_eq!(Rc::strong_count(&held), 4);
    }
    assert_eq!(Rc::strong_count(&held), 1);
}

#[test]
fn dropped_futures_complete_unseen_and_lose_no_buffer() {
    let sim = sim(config(1));
    let endpoint = endpoint(&sim, 0);
    // Never polled: it did not happen (F8).
    drop(endpoint.write(at(0, 0), filled(&endpoint, 8, 1)));
    assert_eq!(endpoint.buffers_out(), 0);
    for count in 0..25 {
        let delay = 2_400 - 100 * count;
        let (other, offset) = (endpoint.clone(), 64 * (count + 1));
        sim.block_on(async {
            let mut write = Box::pin(other.write(at(0, offset), filled(&other, 8, offset)));
            let mut sleep = Box::pin(other.sleep(delay));
            let mut polled = false;
            std::future::poll_fn(|context| {
                if !std::mem::replace(&mut polled, true) {
                    assert!(write.as_mut().poll(context).is_pending());
                }
                sleep.as_mut().poll(context)
            })
            .await;
        })
        .unwrap();
    }
    assert!(endpoint.buffers_out() > 0, "the last belongs to its operation still (F7)");
    sim.run().unwrap();
    assert_eq!((endpoint.buffers_out(), sim.in_flight()), (0, 0));
    assert_eq!(look(&sim, 0, 0, 8), [0; 8]);
    for offset in (64..=25 * 64).step_by(64) {
        assert_eq!(look(&sim, 0, offset, 8), [offset as u64; 8]);
    }
}
