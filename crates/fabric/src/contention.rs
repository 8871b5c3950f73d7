//! Contention: what it costs that threads of one compute server change the same memory in turn.
//!
//! A line of a processor's cache that another processor has changed comes from there, and threads that want it wait for
//! one another. Real fabrics have that by nature, the simulator only where code tells it: [`SharedLines::change`] names
//! a line, and [`CpuConfig::handover_ns`](crate::sim::CpuConfig::handover_ns) is its way from one thread to another.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering};

static NEXT: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// A simulator with contention polls a task on this thread.
    static IS_NOTED: Cell<bool> = const { Cell::new(false) };
    /// The lines that the task has changed since it posted last.
    static CHANGED: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// Lines that threads of one compute server change in turn, such as those of a lock and what it protects.
#[derive(Debug)]
pub struct SharedLines {
    first: u64,
}

impl SharedLines {
    /// Makes the names of `count` lines, which are no other's.
    pub fn new(count: usize) -> Self {
        SharedLines { first: NEXT.fetch_add(count as u64, Ordering::Relaxed) }
    }

    /// The thread changes line `index`. In a simulator with contention, the next post of the task comes later by the
    /// time that it waits for the line; elsewhere this does nothing.
    #[inline]
    pub fn change(&self, index: usize) {
        if IS_NOTED.get() {
            CHANGED.with_borrow_mut(|lines| lines.push(self.first + index as u64));
        }
    }
}

/// Polls a task by `poll` and notes the lines that it changes.
pub(crate) fn noting<T>(poll: impl FnOnce() -> T) -> T {
    CHANGED.with_borrow_mut(Vec::clear);
    IS_NOTED.set(true);
    let polled = poll();
    IS_NOTED.set(false);
    polled
}

/// Hands over the lines that the task has changed since the last time, in their order.
pub(crate) fn changed(mut each: impl FnMut(u64)) {
    if IS_NOTED.get() {
        CHANGED.with_borrow_mut(|lines| lines.drain(..).for_each(&mut each));
    }
}
