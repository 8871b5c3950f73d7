//! Timers: wake tasks of one thread at given times.
//!
//! Reading the clock costs more than most of the work between two timers, so the thread reads it only
//! when one may be near.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::task::{Context, Poll, Waker};

/// The thread does not check moments further away than this after each round of tasks.
const NEAR_NS: u64 = 200_000;
/// Rounds after which the thread reads the clock all the same: each takes as long as its tasks do.
const ROUNDS_MAX: u32 = 8;

/// Waiters, by their moment and a number of their own.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    waiting: RefCell<BTreeMap<Moment, Waker>>,
    count: Cell<u64>,
    /// The last time that was read, and the rounds since.
    looked_ns: Cell<u64>,
    rounds: Cell<u32>,
}

/// End of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment {
    at_ns: u64,
    number: u64,
}

impl Timers {
    /// Notes the time.
    #[inline]
    pub(crate) fn looked(&self, now_ns: u64) {
        self.looked_ns.set(now_ns);
        self.rounds.set(0);
    }

    /// A moment `ns` after `now_ns`.
    pub(crate) fn moment(&self, now_ns: u64, ns: u64) -> Moment {
        self.looked(now_ns);
        let number = self.count.replace(self.count.get() + 1);
        Moment { at_ns: now_ns.saturating_add(ns), number }
    }

    /// Begins to wait for a moment.
    pub(crate) fn arm(&self, moment: Moment, waker: &Waker) {
        self.waiting.borrow_mut().insert(moment, waker.clone());
    }

    /// Returns ready once a moment that was armed has come.
    pub(crate) fn poll(&self, moment: Moment, context: &Context<'_>) -> Poll<()> {
        match self.waiting.borrow_mut().get_mut(&moment) {
            None => Poll::Ready(()),
            Some(waker) => {
                waker.clone_from(context.waker());
                Poll::Pending
            }
        }
    }

    /// Gives a moment up.
    pub(crate) fn disarm(&self, moment: Moment) {
        let waker = self.waiting.borrow_mut().remove(&moment);
        // Not inside the borrow: it may be the last waker of its task.
        drop(waker);
    }

    /// Returns the first moment that somebody waits for.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.waiting.borrow().first_key_value().map(|(moment, _)| moment.at_ns)
    }

    /// After a round of tasks: wakes the tasks whose moment has come; true if there are any. Calls `now_ns`
    /// only if one may have come.
    pub(crate) fn fire(&self, now_ns: impl FnOnce() -> u64) -> bool {
        let Some(next_ns) = self.next_ns() else { return false };
        let rounds = self.rounds.get() + 1;
        if next_ns.saturating_sub(self.looked_ns.get()) > NEAR_NS && rounds < ROUNDS_MAX {
            self.rounds.set(rounds);
            return false;
        }
        let now_ns = now_ns();
        self.looked(now_ns);
        let mut fired = false;
        loop {
            let mut waiting = self.waiting.borrow_mut();
            let first = waiting.first_entry().filter(|first| first.key().at_ns <= now_ns);
            let Some(waker) = first.map(|first| first.remove()) else { return fired };
            drop(waiting);
            waker.wake();
            fired = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn armed(timers: &Timers, now_ns: u64, ns: u64) -> Moment {
        let moment = timers.moment(now_ns, ns);
        timers.arm(moment, Waker::noop());
        moment
    }

    /// The clock is read in every round if a moment is near, else in one of eight.
    #[test]
    fn a_distant_moment_seldom_reads_the_clock() {
        for (wait_ns, expected) in [(NEAR_NS, 80), (NEAR_NS + 1, 10)] {
            let timers = Timers::default();
            armed(&timers, 5, wait_ns);
            let asked = Cell::new(0);
            for _ in 0..80 {
                let fired = timers.fire(|| {
                    asked.set(asked.get() + 1);
                    5
                });
                assert!(!fired);
            }
            assert_eq!(asked.get(), expected, "{wait_ns} ns away");
        }
        assert!(!Timers::default().fire(|| unreachable!("nobody waits")));
    }

    #[test]
    fn moments_fire_once_and_in_order() {
        let timers = Timers::default();
        let [late, early, same, gone] = [30, 10, 10, 5].map(|ns| armed(&timers, 100, ns));
        let is_over = |moment| timers.poll(moment, &Context::from_waker(Waker::noop())).is_ready();
        timers.disarm(gone);
        assert_eq!(timers.next_ns(), Some(110));
        assert!(!timers.fire(|| 109));
        assert_eq!([late, early, same].map(is_over), [false; 3]);
        assert!(timers.fire(|| 110));
        assert_eq!([late, early, same].map(is_over), [false, true, true]);
        assert_eq!(timers.next_ns(), Some(130));
        assert!(timers.fire(|| 130) && is_over(late));
        assert_eq!(timers.next_ns(), None);
    }
}
