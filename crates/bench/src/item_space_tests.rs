//! Item space tests: clients claim and acknowledge items in any order.
//!
//! They stand beside `item_space.rs`, because `crates/threads` compiles that again for its model.
#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;

use crate::item_space::{ItemSpace, WINDOW};

#[test]
fn frontier_waits_for_the_oldest_insert() {
    let space = ItemSpace::new(10, None);
    assert_eq!([(); 3].map(|()| space.claim().unwrap()), [10, 11, 12]);
    space.acknowledge(12);
    space.acknowledge(11);
    assert_eq!(space.readable(), 10);
    space.acknowledge(10);
    assert_eq!(space.readable(), 13);
    assert_eq!(space.claimed(), 13);
}

#[test]
fn unclaimed_and_repeated_acknowledgements_have_no_effect() {
    let space = ItemSpace::new(10, None);
    space.acknowledge(3);
    space.acknowledge(10);
    assert_eq!(space.readable(), 10);
    space.claim().unwrap();
    space.acknowledge(10);
    space.acknowledge(10);
    assert_eq!(space.readable(), 11);
}

#[test]
fn items_come_to_an_end() {
    let space = ItemSpace::new(3, Some(5));
    assert_eq!([(); 4].map(|()| space.claim()), [Some(3), Some(4), None, None]);
    assert_eq!(space.claimed(), 5);
    assert_eq!(ItemSpace::new(3, Some(1)).claim(), None);
    let full = ItemSpace::new(u64::MAX, None);
    assert_eq!(full.claim(), None);
    full.acknowledge(u64::MAX);
    assert_eq!(full.readable(), u64::MAX);
    let last = ItemSpace::new(u64::MAX - 1, None);
    last.acknowledge(last.claim().unwrap());
    assert_eq!((last.readable(), last.claim()), (u64::MAX, None));
}

#[test]
fn one_late_insert_holds_back_any_number() {
    let space = ItemSpace::new(5, None);
    let late = space.claim().unwrap();
    let others: Vec<u64> = (0..4 * WINDOW + 77).map(|_| space.claim().unwrap()).collect();
    let mut shuffled = others;
    fastrand::Rng::with_seed(1).shuffle(&mut shuffled);
    for item in shuffled {
        space.acknowledge(item);
        assert_eq!(space.readable(), late);
    }
    space.acknowledge(late);
    assert_eq!(space.readable(), space.claimed());
}

/// INV-SPACE-1 and INV-SPACE-2 with real threads.
#[test]
fn frontier_is_right_under_threads() {
    const EACH: u64 = 50_000;
    let space = ItemSpace::new(0, None);
    let done: Vec<AtomicU64> = (0..4 * EACH).map(|_| AtomicU64::new(0)).collect();
    thread::scope(|scope| {
        for client in 0..4 {
            let (space, done) = (&space, &done);
            scope.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(client);
                let mut held = Vec::new();
                for _ in 0..EACH {
                    held.push(space.claim().unwrap());
                    // Up to a few unfinished at once, finished in any order.
                    while held.len() > rng.usize(0..8) {
                        let item = held.swap_remove(rng.usize(0..held.len()));
                        done[item as usize].store(1, SeqCst);
                        space.acknowledge(item);
                    }
                    let readable = space.readable();
                    assert!(readable <= space.claimed());
                    if readable > 0 {
                        let newest = readable - 1;
                        assert_eq!(done[newest as usize].load(SeqCst), 1);
                    }
                }
                for item in held {
                    done[item as usize].store(1, SeqCst);
                    space.acknowledge(item);
                }
            });
        }
    });
    assert_eq!(space.readable(), 4 * EACH);
}
