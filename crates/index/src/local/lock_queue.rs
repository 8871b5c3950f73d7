//! Lock queue: lets the tasks of one compute server go one after the other to what a remote lock or a cache guards.
//!
//! Tasks that ask for one remote lock together fail against each other: each failure costs a CAS and a longer wait, and
//! the one that waits longest comes last. In front of the lock they queue in the order of their arrival, without remote
//! operations. A task that takes several locks takes a place and its lock before the next place, in the order of the
//! locks; so no two wait for each other.
//!
//! - `INV-QUEUE-1` Of the entries of one key in the list, the first one has the place. An entry leaves when its place or
//!   its waiting future is dropped, and wakes the next one of its key.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::sync::{AtomicU64, Mutex, Ordering, lock};

/// Lists, so that tasks at different locks seldom meet. A power of two.
const LISTS: usize = 64;

#[derive(Debug)]
struct Entry {
    key: u64,
    ticket: u64,
    /// `None` for one that has the place, or was not polled since it came first.
    waker: Option<Waker>,
}

/// See the [module page](self).
#[derive(Debug)]
pub struct LockQueue {
    lists: Box<[Mutex<Vec<Entry>>]>,
    tickets: AtomicU64,
}

impl Default for LockQueue {
    fn default() -> Self {
        let lists = (0..LISTS).map(|_| Mutex::default()).collect();
        LockQueue { lists, tickets: AtomicU64::new(1) }
    }
}

impl LockQueue {
    fn list(&self, key: u64) -> &Mutex<Vec<Entry>> {
        let hash = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        &self.lists[hash as usize % LISTS]
    }

    /// Returns whether a task has the place now.
    pub fn is_taken(&self, key: u64) -> bool {
        lock(self.list(key)).iter().any(|entry| entry.key == key)
    }

    /// Takes the place of `key`, if no task has it or waits for it.
    pub fn try_place(self: &Arc<Self>, key: u64) -> Option<QueuePlace> {
        let mut list = lock(self.list(key));
        if list.iter().any(|entry| entry.key == key) {
            return None;
        }
        let ticket = self.tickets.fetch_add(1, Ordering::Relaxed);
        list.push(Entry { key, ticket, waker: None });
        Some(QueuePlace { queue: Arc::clone(self), key, ticket })
    }

    /// Waits for the place of `key`.
    pub fn place(self: &Arc<Self>, key: u64) -> Queued {
        Queued { queue: Arc::clone(self), key, ticket: 0 }
    }

    /// Takes the entry out, and wakes the next one if it was the first.
    fn leave(&self, key: u64, ticket: u64) {
        let mut list = lock(self.list(key));
        let mut of_key = list.iter().enumerate().filter(|(_, entry)| entry.key == key);
        let was_first = of_key.next().is_some_and(|(_, entry)| entry.ticket == ticket);
        list.retain(|entry| entry.key != key || entry.ticket != ticket);
        let next = list.iter_mut().find(|entry| entry.key == key);
        let waker = next.filter(|_| was_first).and_then(|entry| entry.waker.take());
        drop(list);
        waker.into_iter().for_each(Waker::wake);
    }
}

/// A task that waits for a place.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Queued {
    queue: Arc<LockQueue>,
    key: u64,
    /// 0 before it is in the list, and once the place is another's to give back.
    ticket: u64,
}

impl Future for Queued {
    type Output = QueuePlace;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<QueuePlace> {
        let (queue, key) = (Arc::clone(&self.queue), self.key);
        let mut list = lock(queue.list(key));
        if self.ticket == 0 {
            self.ticket = queue.tickets.fetch_add(1, Ordering::Relaxed);
            list.push(Entry { key, ticket: self.ticket, waker: None });
        }
        let Some(first) = list.iter_mut().find(|entry| entry.key == key) else {
            return Poll::Pending;
        };
        if first.ticket == self.ticket {
            first.waker = None;
            drop(list);
            let ticket = std::mem::take(&mut self.ticket);
            return Poll::Ready(QueuePlace { queue, key, ticket });
        }
        let ticket = self.ticket;
        let own = list.iter_mut().find(|entry| entry.ticket == ticket);
        own.into_iter().for_each(|entry| entry.waker = Some(context.waker().clone()));
        Poll::Pending
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        if self.ticket != 0 {
            self.queue.leave(self.key, self.ticket);
        }
    }
}

/// The place in front of a remote lock. Dropped, the next task has it.
#[derive(Debug)]
pub struct QueuePlace {
    queue: Arc<LockQueue>,
    key: u64,
    ticket: u64,
}

impl Drop for QueuePlace {
    fn drop(&mut self) {
        self.queue.leave(self.key, self.ticket);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::local::wakes::Wakes;

    fn poll(queued: &mut Queued, count: &Arc<Wakes>) -> Option<QueuePlace> {
        let waker = Waker::from(Arc::clone(count));
        match Pin::new(queued).poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(place) => Some(place),
            Poll::Pending => None,
        }
    }

    #[test]
    fn places_go_by_arrival_and_those_who_go_away_hold_up_nobody() {
        let queue = Arc::new(LockQueue::default());
        let counts: [Arc<Wakes>; 4] = std::array::from_fn(|_| Arc::default());
        let [mut first, mut gone, mut second, mut third] = [(); 4].map(|()| queue.place(7));
        let place = poll(&mut first, &counts[0]).expect("nobody is there");
        for (queued, count) in [&mut gone, &mut second, &mut third].into_iter().zip(&counts[1..]) {
            assert!(poll(queued, count).is_none());
        }
        let mut other = queue.place(8);
        assert!(poll(&mut other, &counts[0]).is_some(), "another lock");
        drop(gone);
        drop(place);
        let woken = || counts.each_ref().map(|count| count.0.load(Ordering::SeqCst));
        assert_eq!(woken(), [0, 0, 1, 0]);
        assert!(poll(&mut third, &counts[3]).is_none(), "the second one comes before it");
        // Woken, it goes away: the third one hears of it.
        drop(second);
        assert_eq!(woken(), [0, 0, 1, 1]);
        drop(poll(&mut third, &counts[3]).expect("its turn"));
        assert!(queue.lists.iter().all(|list| lock(list).is_empty()));
    }
}
