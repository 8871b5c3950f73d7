//! Which items exist, while many clients insert new ones.
//!
//! Inserts take item numbers from one counter and finish in any order. Readers choose among the
//! items below the *frontier*:
//!
//! - INV-SPACE-1: every item below the frontier has been loaded or acknowledged, so that its key
//!   can be looked up with success;
//! - INV-SPACE-2: the frontier never goes back, never passes the next new item, and catches up with
//!   it when all inserts are acknowledged.

use std::{
    collections::BTreeSet,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst},
    },
};

/// Acknowledgements this far ahead of the frontier are kept without a lock.
const WINDOW: u64 = 1 << 14;

/// The items of a table and its frontier, shared by all clients. 128 KiB.
#[derive(Debug)]
pub struct ItemSpace {
    loaded: u64,
    next: AtomicU64,
    end: u64,
    frontier: AtomicU64,
    /// Slot `i % WINDOW` holds `i + 1` once item `i` is acknowledged. Only items in
    /// `frontier..frontier + WINDOW` are written, so that no two unfinished ones share a slot.
    window: Box<[AtomicU64]>,
    /// Acknowledged items beyond the window: one insert is very late and many others are not.
    beyond: Mutex<BTreeSet<u64>>,
    beyond_count: AtomicUsize,
}

impl ItemSpace {
    /// Items `0..loaded` exist; inserts may go on up to `items_max` items in all, if that is given
    /// (a file of keys has an end). A maximum below `loaded` allows no insert.
    pub fn new(loaded: u64, items_max: Option<u64>) -> Self {
        Self {
            loaded,
            next: AtomicU64::new(loaded),
            end: items_max.unwrap_or(u64::MAX).max(loaded),
            frontier: AtomicU64::new(loaded),
            window: (0..WINDOW).map(|_| AtomicU64::new(0)).collect(),
            beyond: Mutex::new(BTreeSet::new()),
            beyond_count: AtomicUsize::new(0),
        }
    }

    /// How many items were there at first.
    pub fn loaded(&self) -> u64 {
        self.loaded
    }

    /// How many items, from 0 on, can be read: the frontier.
    pub fn readable(&self) -> u64 {
        self.frontier.load(SeqCst)
    }

    /// How many item numbers have been given out, loaded ones included.
    pub fn claimed(&self) -> u64 {
        self.next.load(SeqCst)
    }

    /// Takes the next new item for an insert; `None` when all are taken.
    ///
    /// Each must be given back to [`ItemSpace::acknowledge`], or the frontier stays before it.
    pub fn claim(&self) -> Option<u64> {
        self.next
            .fetch_update(SeqCst, SeqCst, |next| (next < self.end).then_some(next.wrapping_add(1)))
            .ok()
    }

    /// Says that the insert of `item` is over and lets the frontier pass it.
    ///
    /// An insert that failed is acknowledged too; reads of it then find nothing. Called once for
    /// each item, by its claimer; items not claimed, or passed by the frontier, are ignored.
    pub fn acknowledge(&self, item: u64) {
        let frontier = self.frontier.load(SeqCst);
        if item < frontier || item >= self.next.load(SeqCst) {
            return;
        }
        if item - frontier < WINDOW {
            self.slot(item).store(item + 1, SeqCst);
        } else {
            let mut beyond = self.beyond.lock().unwrap_or_else(PoisonError::into_inner);
            beyond.insert(item);
            self.beyond_count.store(beyond.len(), SeqCst);
        }
        self.advance();
    }

    /// Moves the frontier past every acknowledged item.
    ///
    /// Two clients that acknowledge items 7 and 8 at once must not both miss the other's: each
    /// stores its own mark before it looks at the frontier's slot, and all of these are
    /// sequentially consistent, so that the later one of the two sees both marks.
    fn advance(&self) {
        loop {
            let frontier = self.frontier.load(SeqCst);
            if frontier < self.end && self.slot(frontier).load(SeqCst) == frontier + 1 {
                // Whoever loses the race looks at the new frontier.
                let _ = self.frontier.compare_exchange(frontier, frontier + 1, SeqCst, SeqCst);
            } else if self.beyond_count.load(SeqCst) == 0 || !self.bring_in() {
                return;
            }
        }
    }

    /// Moves what has come within reach into the window; whether that was anything.
    fn bring_in(&self) -> bool {
        let mut beyond = self.beyond.lock().unwrap_or_else(PoisonError::into_inner);
        let frontier = self.frontier.load(SeqCst);
        let far = beyond.split_off(&frontier.saturating_add(WINDOW));
        let near = std::mem::replace(&mut *beyond, far);
        self.beyond_count.store(beyond.len(), SeqCst);
        for item in near.iter().filter(|item| **item >= frontier) {
            self.slot(*item).store(item + 1, SeqCst);
        }
        !near.is_empty()
    }

    fn slot(&self, item: u64) -> &AtomicU64 {
        &self.window[(item % WINDOW) as usize]
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::thread;

    use super::*;

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
    fn strangers_and_repetitions_have_no_effect() {
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
}
