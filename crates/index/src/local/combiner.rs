//! Combiner: collects work for the holder of a latch, who does it together with its own.
//!
//! A task that finds a latch held leaves its work under the latch's key. It waits in the
//! [`ParkingLot`](super::ParkingLot) until a holder answers, or the latch is free and nobody has taken
//! the work. A holder takes the waiting work, does it, answers, and then releases the latch. So waiting
//! tasks do not all try for the latch at its release, nor one after the other.
//!
//! - `INV-COMBINE-1` A piece of work is done by one: it is taken, or taken back, under one lock.
//! - `INV-COMBINE-2` Work that was taken is answered before the latch is released: by its outcome, or
//!   by the answer that nothing was done and its owner must try again.

use crate::sync::{AtomicUsize, Mutex, Ordering, lock};

#[derive(Debug)]
enum CombinerState<W, R> {
    Left(W),
    Taken,
    Answered(Option<R>),
}

#[derive(Debug)]
struct QueuedWork<W, R> {
    key: u64,
    ticket: u64,
    state: CombinerState<W, R>,
}

#[derive(Debug)]
struct CombinerStripe<W, R> {
    /// Items that nobody has taken: a hint, so that looking for none costs one load.
    left: AtomicUsize,
    items: Mutex<Items<W, R>>,
}

#[derive(Debug)]
struct Items<W, R> {
    tickets: u64,
    /// The oldest first.
    all: Vec<QueuedWork<W, R>>,
}

impl<W, R> Items<W, R> {
    fn at(&self, ticket: u64) -> Option<usize> {
        self.all.iter().position(|item| item.ticket == ticket)
    }

    fn left(&self) -> usize {
        self.all.iter().filter(|item| matches!(item.state, CombinerState::Left(_))).count()
    }
}

/// See the [module page](self).
#[derive(Debug)]
pub struct Combiner<W, R>(Box<[CombinerStripe<W, R>]>);

/// Work that was taken, and has to be answered.
#[derive(Debug)]
pub struct Taken<W> {
    /// The work.
    pub work: W,
    ticket: u64,
}

/// The end of waiting for left work.
#[derive(Debug, PartialEq, Eq)]
pub enum Ended<R> {
    /// It was done.
    Done(R),
    /// Nothing of it was done, and nobody will.
    Back,
    /// Somebody is at it.
    NotYet,
}

impl<W, R> Combiner<W, R> {
    /// A combiner whose keys share `stripes` lists, a power of two.
    pub fn new(stripes: usize) -> Self {
        let items = || Items { tickets: 0, all: Vec::new() };
        let stripe = || CombinerStripe { left: AtomicUsize::new(0), items: Mutex::new(items()) };
        Combiner((0..stripes.next_power_of_two()).map(|_| stripe()).collect())
    }

    fn stripe(&self, key: u64) -> &CombinerStripe<W, R> {
        let hash = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        &self.0[hash as usize & (self.0.len() - 1)]
    }

    /// Leaves work for who holds the latch of `key`.
    pub fn leave(&self, key: u64, work: W) -> LeftWork<'_, W, R> {
        let stripe = self.stripe(key);
        let mut items = lock(&stripe.items);
        items.tickets += 1;
        let ticket = items.tickets;
        items.all.push(QueuedWork { key, ticket, state: CombinerState::Left(work) });
        stripe.left.store(items.left(), Ordering::Relaxed);
        LeftWork { stripe, ticket }
    }

    /// Tells whether there may be work for the holder of `key`'s latch. What it misses is taken back.
    #[inline]
    pub fn has_work(&self, key: u64) -> bool {
        self.stripe(key).left.load(Ordering::Relaxed) > 0
    }

    /// Takes up to `most` pieces of work, the oldest first, for the holder of `key`'s latch.
    pub fn take(&self, key: u64, most: usize) -> Vec<Taken<W>> {
        let mut taken = Vec::new();
        if !self.has_work(key) {
            return taken;
        }
        let stripe = self.stripe(key);
        let mut items = lock(&stripe.items);
        for item in items.all.iter_mut().filter(|item| item.key == key) {
            if taken.len() == most {
                break;
            }
            match std::mem::replace(&mut item.state, CombinerState::Taken) {
                CombinerState::Left(work) => taken.push(Taken { work, ticket: item.ticket }),
                other => item.state = other,
            }
        }
        stripe.left.store(items.left(), Ordering::Relaxed);
        taken
    }

    /// Says how work ended; `None` if nothing of it was done.
    pub fn answer(&self, key: u64, taken: &Taken<W>, answer: Option<R>) {
        let mut items = lock(&self.stripe(key).items);
        // The operation that left it may wait no longer.
        if let Some(at) = items.at(taken.ticket) {
            items.all[at].state = CombinerState::Answered(answer);
        }
    }
}

/// Work that its owner waits for. Dropped, it is taken back if nobody has it.
#[derive(Debug)]
pub struct LeftWork<'a, W, R> {
    stripe: &'a CombinerStripe<W, R>,
    /// 0 once it has ended.
    ticket: u64,
}

impl<W, R> LeftWork<'_, W, R> {
    /// Tells whether waiting is over, given whether somebody holds the latch.
    pub fn is_over(&self, is_held: impl FnOnce() -> bool) -> bool {
        let items = lock(&self.stripe.items);
        match items.at(self.ticket).map(|at| &items.all[at].state) {
            Some(CombinerState::Left(_)) => {
                drop(items);
                !is_held()
            }
            Some(CombinerState::Taken) => false,
            Some(CombinerState::Answered(_)) | None => true,
        }
    }

    /// Returns the end; takes the work back if nobody has taken it.
    pub fn end(&mut self) -> Ended<R> {
        let mut items = lock(&self.stripe.items);
        let Some(at) = items.at(self.ticket) else { return Ended::Back };
        if matches!(items.all[at].state, CombinerState::Taken) {
            return Ended::NotYet;
        }
        self.ticket = 0;
        let ended = match items.all.remove(at).state {
            CombinerState::Answered(Some(answer)) => Ended::Done(answer),
            CombinerState::Answered(None) | CombinerState::Left(_) | CombinerState::Taken => {
                Ended::Back
            }
        };
        self.stripe.left.store(items.left(), Ordering::Relaxed);
        ended
    }
}

impl<W, R> Drop for LeftWork<'_, W, R> {
    fn drop(&mut self) {
        if self.ticket != 0 {
            let mut items = lock(&self.stripe.items);
            items.all.retain(|item| item.ticket != self.ticket);
            self.stripe.left.store(items.left(), Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn work_is_taken_in_order_and_answered() {
        let combiner: Combiner<u32, u32> = Combiner::new(1);
        assert!(!combiner.has_work(1) && combiner.take(1, 9).is_empty());
        let mut left: Vec<_> = [1, 1, 2, 1].into_iter().zip(10..).collect::<Vec<_>>();
        let mut left: Vec<_> =
            left.drain(..).map(|(key, work)| combiner.leave(key, work)).collect();
        let taken = combiner.take(1, 2);
        assert_eq!(taken.iter().map(|taken| taken.work).collect::<Vec<_>>(), [10, 11]);
        assert!(combiner.has_work(1), "one more");
        // Work that is taken is waited for, whether the latch is held or not.
        assert!(!left[0].is_over(|| false) && left[0].end() == Ended::NotYet);
        combiner.answer(1, &taken[0], Some(5));
        combiner.answer(1, &taken[1], None);
        assert!(left[0].is_over(|| true) && left[1].is_over(|| true));
        assert_eq!((left[0].end(), left[1].end()), (Ended::Done(5), Ended::Back));
        // Work that is not taken comes back once the latch is free.
        assert!(!left[3].is_over(|| true) && left[3].is_over(|| false));
        assert_eq!(left[3].end(), Ended::Back);
        assert!(combiner.take(1, 9).is_empty());
        assert_eq!(combiner.take(2, 9).len(), 1);
    }

    #[test]
    fn who_waits_no_longer_leaves_nothing() {
        let combiner: Combiner<u32, u32> = Combiner::new(2);
        drop(combiner.leave(7, 1));
        assert!(!combiner.has_work(7));
        let left = combiner.leave(7, 2);
        let taken = combiner.take(7, 1);
        drop(left);
        combiner.answer(7, &taken[0], Some(3));
        assert!(lock(&combiner.stripe(7).items).all.is_empty());
    }
}
