//! Parking lot: holds waiting tasks of all threads until a latch or an address changes.
//!
//! A waiter leaves its waker under a key and checks its condition once more. A task that changes the
//! condition does so first and then wakes the key's waiters. One of the two sees the other.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use crate::sync::{AtomicU64, AtomicUsize, Mutex, Ordering, fence, lock};

#[derive(Debug)]
struct Waiter {
    key: u64,
    ticket: u64,
    waker: Waker,
}

#[derive(Debug)]
struct Stripe {
    /// Length of the list, so that waking nobody costs one load.
    waiting: AtomicUsize,
    waiters: Mutex<Vec<Waiter>>,
}

/// See the [module page](self).
#[derive(Debug)]
pub struct ParkingLot {
    stripes: Box<[Stripe]>,
    tickets: AtomicU64,
}

impl ParkingLot {
    /// A lot whose keys share `stripes` lists, a power of two.
    pub fn new(stripes: usize) -> Self {
        let stripe = || Stripe { waiting: AtomicUsize::new(0), waiters: Mutex::new(Vec::new()) };
        ParkingLot {
            stripes: (0..stripes.next_power_of_two()).map(|_| stripe()).collect(),
            tickets: AtomicU64::new(1),
        }
    }

    fn stripe(&self, key: u64) -> &Stripe {
        let hash = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        &self.stripes[hash as usize & (self.stripes.len() - 1)]
    }

    /// Waits until `is_over`. Whoever makes it so calls [`ParkingLot::unpark`] with `key` after.
    pub fn park<F: Fn() -> bool>(&self, key: u64, is_over: F) -> Parked<'_, F> {
        Parked { lot: self, key, ticket: 0, is_over }
    }

    /// Wakes all who wait under `key`.
    #[inline]
    pub fn unpark(&self, key: u64) {
        fence(Ordering::SeqCst);
        let stripe = self.stripe(key);
        if stripe.waiting.load(Ordering::SeqCst) > 0 {
            Self::wake(stripe, key);
        }
    }

    #[cold]
    fn wake(stripe: &Stripe, key: u64) {
        let mut woken = Vec::new();
        {
            let mut waiters = lock(&stripe.waiters);
            woken.extend(waiters.extract_if(.., |waiter| waiter.key == key).map(|it| it.waker));
            stripe.waiting.store(waiters.len(), Ordering::SeqCst);
        }
        woken.into_iter().for_each(Waker::wake);
    }

    /// Tasks that wait.
    #[cfg(test)]
    pub fn waiting(&self) -> usize {
        self.stripes.iter().map(|stripe| stripe.waiting.load(Ordering::SeqCst)).sum()
    }
}

/// A task that waits in a [`ParkingLot`].
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Parked<'a, F> {
    lot: &'a ParkingLot,
    key: u64,
    /// Names the waiter; 0 before it is in the list.
    ticket: u64,
    is_over: F,
}

impl<F> Parked<'_, F> {
    fn forget(&mut self) {
        if self.ticket != 0 {
            let stripe = self.lot.stripe(self.key);
            let mut waiters = lock(&stripe.waiters);
            waiters.retain(|waiter| waiter.ticket != self.ticket);
            stripe.waiting.store(waiters.len(), Ordering::SeqCst);
            self.ticket = 0;
        }
    }
}

impl<F: Fn() -> bool + Unpin> Future for Parked<'_, F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if !(self.is_over)() {
            self.forget();
            let ticket = self.lot.tickets.fetch_add(1, Ordering::Relaxed);
            let stripe = self.lot.stripe(self.key);
            {
                let mut waiters = lock(&stripe.waiters);
                let waker = context.waker().clone();
                waiters.push(Waiter { key: self.key, ticket, waker });
                stripe.waiting.store(waiters.len(), Ordering::SeqCst);
            }
            self.ticket = ticket;
            fence(Ordering::SeqCst);
            if !(self.is_over)() {
                return Poll::Pending;
            }
        }
        self.forget();
        Poll::Ready(())
    }
}

impl<F> Drop for Parked<'_, F> {
    fn drop(&mut self) {
        self.forget();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::Cell;
    use std::sync::Arc;

    use super::*;
    use crate::local::wakes::Wakes;

    #[test]
    fn waiters_of_the_key_are_woken_and_no_others() {
        let lot = ParkingLot::new(1);
        let over = Cell::new(false);
        let counts: Vec<_> = (0..3).map(|_| Arc::new(Wakes::default())).collect();
        let mut parked: Vec<_> =
            [5, 5, 6].map(|key| Box::pin(lot.park(key, || over.get()))).into_iter().collect();
        for (parked, count) in parked.iter_mut().zip(&counts) {
            let waker = Waker::from(Arc::clone(count));
            assert!(parked.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        assert_eq!(lot.waiting(), 3);
        lot.unpark(5);
        let woken: Vec<_> = counts.iter().map(|count| count.0.load(Ordering::SeqCst)).collect();
        assert_eq!((woken, lot.waiting()), (vec![1, 1, 0], 1));
        over.set(true);
        let waker = Waker::noop();
        for parked in &mut parked {
            assert!(parked.as_mut().poll(&mut Context::from_waker(waker)).is_ready());
        }
        assert_eq!(lot.waiting(), 0);
    }

    #[test]
    fn a_dropped_waiter_leaves_nothing() {
        let lot = ParkingLot::new(4);
        let mut parked = Box::pin(lot.park(1, || false));
        assert!(parked.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert_eq!(lot.waiting(), 1);
        drop(parked);
        assert_eq!(lot.waiting(), 0);
    }
}
