//! Loom models: explore every interleaving of small protocols under the C11 rules.
//!
//! See the crate's page.
//!
//! The crate's page lists them.
#![allow(clippy::unwrap_used)]
#![allow(clippy::arc_with_non_send_sync, reason = "loom has one thread and checks who shares")]

/// Stands in the modelled modules for the standard library's.
mod sync {
    pub(crate) use loom::sync::{Mutex, MutexGuard, atomic};
    pub(crate) use loom::thread;
    // loom's has no weak references; what is shared by these is read only.
    pub(crate) use std::sync::{Arc, Weak};
}

#[allow(dead_code, reason = "the fabric uses all of it")]
#[path = "../../fabric/src/raw/copy.rs"]
mod copy;
#[allow(dead_code, reason = "the store uses all of it")]
#[path = "../../store/src/op_lock.rs"]
mod op_lock;
#[allow(dead_code, reason = "the fabric uses all of it")]
#[path = "../../fabric/src/wake.rs"]
mod wake;
#[allow(dead_code, reason = "the simulator uses all of it")]
#[path = "../../fabric/src/sim/woken.rs"]
mod woken;

use std::collections::VecDeque;
use std::sync::Arc;

use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::sync::{Condvar, Mutex};
use loom::thread;
use op_lock::{Activity, OpLock, OpLocks};
use wake::{Asked, Flag, Home, Notify, Queue};
use woken::Woken;

/// `count` words of zero.
fn words(count: usize) -> Arc<Vec<AtomicU64>> {
    Arc::new((0..count).map(|_| AtomicU64::new(0)).collect())
}

/// INV-COPY-1: a WRITE that was completed before another was posted is seen by whoever sees the
/// other one.
#[test]
fn a_write_is_seen_before_those_after_it() {
    loom::model(|| {
        let words = words(3);
        let writer = {
            let words = Arc::clone(&words);
            thread::spawn(move || {
                copy::store(&words[1..], &[7, 8]);
                copy::store(&words[..1], &[1]);
            })
        };
        let (mut flag, mut data) = ([0], [0; 2]);
        copy::load(&words[..1], &mut flag);
        copy::load(&words[1..], &mut data);
        assert!(flag == [0] || data == [7, 8], "flag {flag:?} without its data {data:?}");
        writer.join().unwrap();
    });
}

/// The same with a lock that is taken by CAS and given back by a store, as nodes are locked: the
/// next holder sees what the last one wrote.
#[test]
fn a_lock_hands_over_what_was_written_under_it() {
    loom::model(|| {
        let words = words(2);
        let add = |words: &[AtomicU64]| {
            if copy::cas(&words[0], 0, 1) != 0 {
                return 0;
            }
            let mut data = [0];
            copy::load(&words[1..], &mut data);
            copy::store(&words[1..], &[data[0] + 1]);
            copy::store(&words[..1], &[0]);
            1
        };
        let other = {
            let words = Arc::clone(&words);
            thread::spawn(move || add(&words))
        };
        let done = add(&words) + other.join().unwrap();
        assert!(done >= 1);
        assert_eq!(words[1].load(Ordering::Relaxed), done);
    });
}

/// INV-COPY-2: neighbours within a word, and one who adds to it, lose nothing to each other.
#[test]
fn bytes_beside_each_other_stay() {
    loom::model(|| {
        let words = words(2);
        let left = {
            let words = Arc::clone(&words);
            thread::spawn(move || copy::store_bytes(&words, 6, &[1, 2, 3]))
        };
        copy::store_bytes(&words, 9, &[4, 5]);
        copy::faa(&words[0], 9);
        left.join().unwrap();
        let mut bytes = [0; 12];
        copy::load_bytes(&words, 0, &mut bytes);
        assert_eq!(bytes, [9, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 0]);
    });
}

/// INV-WAKE-1 for the root of `block_on`: it does not park for good, and sees what was done before
/// it was woken.
#[test]
fn the_root_is_woken() {
    loom::model(|| {
        let flag = Arc::new(Flag::new(Home::new(None)));
        let done = Arc::new(AtomicBool::new(false));
        let waker = {
            let (flag, done) = (Arc::clone(&flag), Arc::clone(&done));
            thread::spawn(move || {
                done.store(true, Ordering::Relaxed);
                flag.wake();
            })
        };
        // As in `Executor::block_on`.
        let mut is_first = true;
        loop {
            if (std::mem::take(&mut is_first) || flag.take()) && done.load(Ordering::Relaxed) {
                break;
            }
            if flag.is_raised() {
                thread::yield_now();
            } else {
                thread::park();
            }
        }
        waker.join().unwrap();
    });
}

/// INV-WAKE-1 for tasks: both that others make ready are run, each once.
#[test]
fn tasks_of_other_threads_are_run() {
    loom::model(|| {
        let queue = Arc::new(Queue::new(Home::new(None)));
        // Not joined: loom takes an unpark for the end of a join.
        let _others: Vec<_> = (1..3_u32)
            .map(|task| {
                let queue = Arc::clone(&queue);
                thread::spawn(move || queue.push_once(&Asked::default(), task))
            })
            .collect();
        let mut sum = 0;
        while sum < 3 {
            let mut ready = VecDeque::new();
            if queue.is_empty() {
                thread::park();
            } else {
                queue.take(&mut ready);
            }
            sum += ready.iter().sum::<u32>();
        }
        assert_eq!(sum, 3);
    });
}

/// INV-WAKE-3: a task that several ask for is run after the last of them, and sees what each has done.
#[test]
fn a_task_that_several_ask_for_misses_nothing() {
    loom::model(|| {
        let (queue, asked) = (Arc::new(Queue::new(Home::new(None))), Arc::new(Asked::default()));
        let done = Arc::new([AtomicBool::new(false), AtomicBool::new(false)]);
        let _others: Vec<_> = (0..2)
            .map(|other| {
                let (queue, asked) = (Arc::clone(&queue), Arc::clone(&asked));
                let done = Arc::clone(&done);
                thread::spawn(move || {
                    done[other].store(true, Ordering::Relaxed);
                    queue.push_once(&asked, 7_u32);
                })
            })
            .collect();
        let is_done = |which: usize| done[which].load(Ordering::Relaxed);
        loop {
            let mut ready = VecDeque::new();
            if queue.is_empty() {
                thread::park();
                continue;
            }
            queue.take(&mut ready);
            assert!(ready.len() <= 1, "it stands there once");
            // The task is run: first it may be asked for again.
            if ready.pop_front().is_some() {
                asked.take();
                if is_done(0) && is_done(1) {
                    break;
                }
            }
        }
    });
}

/// INV-WAKE-1 where the thread waits for a fabric, and a notifier takes the place of `unpark`.
#[test]
fn a_notifier_ends_the_wait_of_a_fabric() {
    loom::model(|| {
        // As an `eventfd` in an `epoll`: its token stays until a wait takes it.
        let token = Arc::new((Mutex::new(false), Condvar::new()));
        let notify: Notify = {
            let token = Arc::clone(&token);
            Arc::new(move || {
                *token.0.lock().unwrap() = true;
                token.1.notify_one();
            })
        };
        let home = Home::new(Some(notify));
        let flag = Arc::new(Flag::new(home.clone()));
        let queue = Arc::new(Queue::new(home));
        let done = Arc::new(AtomicBool::new(false));
        let other = {
            let (flag, queue, done) = (Arc::clone(&flag), Arc::clone(&queue), Arc::clone(&done));
            thread::spawn(move || {
                queue.push_once(&Asked::default(), 1);
                done.store(true, Ordering::Relaxed);
                flag.wake();
            })
        };
        let (mut ran, mut ended) = (0, false);
        while !(ended && ran == 1) {
            ended |= flag.take() && done.load(Ordering::Relaxed);
            let mut ready = VecDeque::new();
            queue.take(&mut ready);
            ran += ready.iter().sum::<u32>();
            if ready.is_empty() && !ended && !flag.is_raised() {
                let mut token_there = token.0.lock().unwrap();
                while !*token_there {
                    token_there = token.1.wait(token_there).unwrap();
                }
                *token_there = false;
            }
        }
        other.join().unwrap();
    });
}

/// INV-WAKE-2: a root that yields, and so raises its own flag, does not miss what another thread did.
#[test]
fn a_root_that_yields_misses_nothing() {
    loom::model(|| {
        let flag = Arc::new(Flag::new(Home::new(None)));
        let done = Arc::new(AtomicBool::new(false));
        // Not joined: loom takes an unpark for the end of a join.
        let _waker = {
            let (flag, done) = (Arc::clone(&flag), Arc::clone(&done));
            thread::spawn(move || {
                done.store(true, Ordering::Relaxed);
                flag.wake();
            })
        };
        // It yields once.
        flag.wake();
        loop {
            if flag.take() && done.load(Ordering::Relaxed) {
                break;
            }
            if !flag.is_raised() {
                thread::park();
            }
        }
    });
}

/// INV-WOKEN-1.
#[test]
fn wake_ups_are_drained_once() {
    loom::model(|| {
        let woken = Arc::new(Woken::default());
        let others: Vec<_> = (0..2)
            .map(|task| {
                let woken = Arc::clone(&woken);
                thread::spawn(move || woken.push(task, 0))
            })
            .collect();
        let mut seen = Vec::new();
        woken.drain(|task, _| seen.push(task));
        others.into_iter().for_each(|other| other.join().unwrap());
        woken.drain(|task, _| seen.push(task));
        seen.sort();
        assert_eq!(seen, [0, 1]);
        woken.drain(|_, _| panic!("nothing is left"));
    });
}

/// INV-OP-LOCK-1: once the locks are passed, nobody is inside who has not seen the flag; also through a
/// lock that is added meanwhile.
#[test]
fn a_thread_that_has_passed_all_locks_is_alone() {
    loom::model(|| {
        let locks = Arc::new(OpLocks::default());
        let activity = Arc::new(Activity::default());
        let closed = Arc::new(AtomicBool::new(false));
        // Memory that the closer gives back; loom sees who touches it without order.
        let memory = Arc::new(loom::cell::UnsafeCell::new(0));
        let operation = {
            let (locks, activity) = (Arc::clone(&locks), Arc::clone(&activity));
            let (closed, memory) = (Arc::clone(&closed), Arc::clone(&memory));
            thread::spawn(move || {
                let lock = Arc::new(OpLock::default());
                locks.add(&lock);
                let _inside = lock.enter(&activity);
                if !closed.load(Ordering::Relaxed) {
                    memory.with_mut(|_| ());
                }
                // The order of its end is `std`'s counters', which loom does not see.
                Arc::clone(&lock)
            })
        };
        closed.store(true, Ordering::SeqCst);
        locks.pass();
        memory.with_mut(|_| ());
        operation.join().unwrap();
    });
}

/// INV-OP-LOCK-2: an operation that begins while the maintenance thread falls asleep is counted, or
/// wakes it.
#[test]
fn an_operation_wakes_the_maintenance_thread() {
    loom::model(|| {
        let locks = Arc::new(OpLocks::default());
        let activity = Arc::new(Activity::default());
        let lock = Arc::new(OpLock::default());
        locks.add(&lock);
        // As `maintain` does, after a quiet time without operations.
        let maintenance = {
            let (locks, activity) = (Arc::clone(&locks), Arc::clone(&activity));
            thread::spawn(move || {
                activity.set_thread();
                activity.set_idle();
                if locks.ops() != Some(0) {
                    activity.wake();
                }
                while activity.is_idle() {
                    thread::park();
                }
            })
        };
        drop(lock.enter(&activity));
        maintenance.join().unwrap();
        assert_eq!(locks.ops(), Some(1));
    });
}
