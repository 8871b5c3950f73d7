//! Item space: tracks the existing items while many clients insert new ones.
//!
//! Inserts take item numbers from one counter and finish in any order. Readers choose among the
//! items below the *frontier*:
//!
//! - INV-SPACE-1: every item below the frontier has been loaded or acknowledged, so that its key
//!   can be looked up with success;
//! - INV-SPACE-2: the frontier never goes back, never passes the next new item, and catches up with
//!   it when all inserts are acknowledged.
//!
//! Modelled in `crates/threads`.

use std::{collections::BTreeSet, sync::PoisonError};

use crate::sync::{
    Mutex,
    atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst},
};

/// Acknowledgements this far ahead of the frontier are kept without a lock.
pub(crate) const WINDOW: u64 = 1 << 14;

/// The items of a table and its frontier, shared by all clients. 128 KiB.
#[derive(Debug)]
pub struct ItemSpace {
    loaded: u64,
    next: AtomicU64,
    end: u64,
    frontier: AtomicU64,
    /// Slot `i % window.len()` holds `i + 1` once item `i` is acknowledged. Only items in
    /// `frontier..frontier + window.len()` are written, so that no two unfinished ones share a slot.
    window: Box<[AtomicU64]>,
    /// Acknowledged items beyond the window: one insert is very late and many others are not.
    beyond: Mutex<BTreeSet<u64>>,
    beyond_count: AtomicUsize,
}

impl ItemSpace {
    /// Items `0..loaded` exist; inserts may go on up to `items_max` items in all, if that is given
    /// (a file of keys has an end). A maximum below `loaded` allows no insert.
    pub fn new(loaded: u64, items_max: Option<u64>) -> Self {
        Self::with_window(loaded, items_max, WINDOW)
    }

    pub(crate) fn with_window(loaded: u64, items_max: Option<u64>, window: u64) -> Self {
        Self {
            loaded,
            next: AtomicU64::new(loaded),
            end: items_max.unwrap_or(u64::MAX).max(loaded),
            frontier: AtomicU64::new(loaded),
            window: (0..window).map(|_| AtomicU64::new(0)).collect(),
            beyond: Mutex::new(BTreeSet::new()),
            beyond_count: AtomicUsize::new(0),
        }
    }

    /// The number of items at first.
    pub fn loaded(&self) -> u64 {
        self.loaded
    }

    /// The number of items, from 0 on, that can be read: the frontier.
    pub fn readable(&self) -> u64 {
        self.frontier.load(SeqCst)
    }

    /// The number of claimed items, loaded ones included.
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

    /// Lets the frontier pass `item`, whose insert is over.
    ///
    /// A failed insert is acknowledged as well; reads of it then find nothing. The claimer calls
    /// this once for each item; items not claimed, or passed by the frontier, are ignored.
    pub fn acknowledge(&self, item: u64) {
        let frontier = self.frontier.load(SeqCst);
        if item < frontier || item >= self.next.load(SeqCst) {
            return;
        }
        if item - frontier < self.window.len() as u64 {
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
    /// Two clients that acknowledge items 7 and 8 at once must not both miss the other's. Each
    /// stores its own mark before it looks at the frontier's slot. All of these are sequentially
    /// consistent, so that the later one of the two sees both marks.
    fn advance(&self) {
        loop {
            let frontier = self.frontier.load(SeqCst);
            if frontier < self.end && self.slot(frontier).load(SeqCst) == frontier + 1 {
                // The loser of the race looks at the new frontier.
                let _ = self.frontier.compare_exchange(frontier, frontier + 1, SeqCst, SeqCst);
            } else if self.beyond_count.load(SeqCst) == 0 || !self.bring_in() {
                return;
            }
        }
    }

    /// Moves acknowledged items within reach into the window; returns whether there were any.
    fn bring_in(&self) -> bool {
        let mut beyond = self.beyond.lock().unwrap_or_else(PoisonError::into_inner);
        let frontier = self.frontier.load(SeqCst);
        let far = beyond.split_off(&frontier.saturating_add(self.window.len() as u64));
        let near = std::mem::replace(&mut *beyond, far);
        self.beyond_count.store(beyond.len(), SeqCst);
        for item in near.iter().filter(|item| **item >= frontier) {
            self.slot(*item).store(item + 1, SeqCst);
        }
        !near.is_empty()
    }

    fn slot(&self, item: u64) -> &AtomicU64 {
        &self.window[(item % self.window.len() as u64) as usize]
    }
}
