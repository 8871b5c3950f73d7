//! Event calendar: queues future events and yields them in the order of time.
//!
//! 1,024 buckets of 32.8 ns each, unsorted until their time comes, and a heap for what lies
//! beyond them. Invariants, with `cursor` the number of the bucket that is being emptied:
//!
//! - **CAL-1** `current` holds every event of buckets up to `cursor`, latest first.
//! - **CAL-2** `buckets` hold events of the buckets `cursor + 1` to `cursor + 1023`; `filled` has
//!   the bit of every one that is not empty.
//! - **CAL-3** `beyond` holds events of buckets from `cursor + 1024` on.
//!
//! Events of one instant come out in the order in which they went in.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Buckets; a power of two.
const BUCKETS: u64 = 1024;
/// A bucket is 2 to the power of this in picoseconds.
const BUCKET_SHIFT: u32 = 15;

/// Room in a bucket before it has to grow.
const BUCKET_EVENTS: usize = 8;

/// Action at an event's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum Kind {
    /// A request's last byte would reach the server if the client's card were idle.
    Arrive,
    /// It reaches the server after waiting for the client's card.
    Reach,
    /// The server's card has taken it in; or the next operation of a chain is due.
    Execute,
    /// The card's unit for atomics is free for it.
    Atomic,
    /// The second instant of a torn operation.
    Second,
    /// An RPC's handler is done.
    Handled,
    /// The answer's last byte would be dealt with if the client's card and thread were idle.
    Complete,
    /// The answer has passed the client's card.
    Taken,
    /// The task goes on.
    Resume,
    /// A sleep ends.
    Timer,
    /// The third instant of a torn operation.
    Third,
    /// The fourth.
    Fourth,
    /// A message ends without an answer.
    Vanish,
    /// A client gives up waiting; the slot is the number of a timer.
    Timeout,
    /// A message between compute servers takes a step; the slot is its number, the part the step.
    Call,
}

/// The later instants of a torn operation, in order.
pub(super) const LATER_INSTANTS: [Kind; 3] = [Kind::Second, Kind::Third, Kind::Fourth];

/// A future event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Event {
    /// Time in picoseconds.
    pub at: u64,
    number: u64,
    /// The slot that it is about.
    pub slot: u32,
    /// The operation in the slot's list.
    pub part: u16,
    /// The action.
    pub kind: Kind,
}

#[derive(Debug)]
pub(super) struct Calendar {
    cursor: u64,
    current: Vec<Event>,
    buckets: Vec<Vec<Event>>,
    filled: [u64; (BUCKETS / 64) as usize],
    beyond: BinaryHeap<Reverse<Event>>,
    pushed: u64,
}

impl Calendar {
    pub(super) fn new() -> Self {
        Calendar {
            cursor: 0,
            current: Vec::new(),
            buckets: (0..BUCKETS).map(|_| Vec::with_capacity(BUCKET_EVENTS)).collect(),
            filled: [0; (BUCKETS / 64) as usize],
            beyond: BinaryHeap::new(),
            pushed: 0,
        }
    }

    #[inline]
    pub(super) fn push(&mut self, at: u64, kind: Kind, slot: u32, part: u16) {
        let event = Event { at, number: self.pushed, slot, part, kind };
        self.pushed += 1;
        self.place(event);
    }

    #[inline]
    fn place(&mut self, event: Event) {
        let bucket = event.at >> BUCKET_SHIFT;
        if bucket <= self.cursor {
            let key = (event.at, event.number);
            let at = self.current.partition_point(|other| (other.at, other.number) > key);
            self.current.insert(at, event);
        } else if bucket < self.cursor + BUCKETS {
            let index = (bucket % BUCKETS) as usize;
            self.buckets[index].push(event);
            self.filled[index / 64] |= 1 << (index % 64);
        } else {
            self.beyond.push(Reverse(event));
        }
    }

    /// Takes the next event out unless it comes after `until`.
    #[inline]
    pub(super) fn pop(&mut self, until: u64) -> Option<Event> {
        while self.current.is_empty() {
            if !self.advance() {
                return None;
            }
        }
        let next = self.current.last()?;
        if next.at > until { None } else { self.current.pop() }
    }

    /// Moves on to the next bucket that holds anything. `current` must be empty.
    fn advance(&mut self) -> bool {
        let near = self.next_filled();
        let far = self.beyond.peek().map(|Reverse(event)| event.at >> BUCKET_SHIFT);
        // By CAL-2 and CAL-3, whatever is near comes before whatever is beyond.
        let Some(bucket) = near.or(far) else { return false };
        self.cursor = bucket;
        if near.is_some() {
            let index = (bucket % BUCKETS) as usize;
            std::mem::swap(&mut self.current, &mut self.buckets[index]);
            self.filled[index / 64] &= !(1 << (index % 64));
            self.current.sort_unstable_by_key(|event| Reverse((event.at, event.number)));
        }
        while let Some(Reverse(event)) = self.beyond.peek() {
            if event.at >> BUCKET_SHIFT >= self.cursor.saturating_add(BUCKETS) {
                break;
            }
            let event = *event;
            self.beyond.pop();
            self.place(event);
        }
        true
    }

    /// The number of the first bucket after `cursor` that is not empty.
    fn next_filled(&self) -> Option<u64> {
        let words = self.filled.len() as u64;
        let first = self.cursor + 1;
        let start = first % BUCKETS;
        for step in 0..=words {
            let word = (start / 64 + step) % words;
            let mut bits = self.filled[word as usize];
            if step == 0 {
                bits &= u64::MAX << (start % 64);
            } else if step == words {
                bits &= !(u64::MAX << (start % 64));
            }
            if bits != 0 {
                let index = word * 64 + u64::from(bits.trailing_zeros());
                return Some(first + (index + BUCKETS - start) % BUCKETS);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against a sorted list, with pushes near, far, into the past of the cursor and at one time.
    #[test]
    fn events_come_out_in_order() {
        let mut rng = fastrand::Rng::with_seed(7);
        let (mut calendar, mut model) = (Calendar::new(), Vec::new());
        let (mut now, mut slot) = (0, 0);
        for _ in 0..200_000 {
            if rng.u8(..) < 130 {
                let spread = [1, 40_000, 5_000_000, 100_000_000, 10_000_000_000][rng.usize(..5)];
                let at = now + rng.u64(0..spread);
                calendar.push(at, Kind::Timer, slot, 0);
                model.push(Reverse((at, slot)));
                slot += 1;
                if model.len() > 1 && rng.u8(..) == 0 {
                    // Looking ahead moves the cursor, and must not disturb what is pushed next.
                    let Reverse((first, _)) = model.iter().max().copied().expect("not empty");
                    assert!(first == 0 || calendar.pop(first - 1).is_none());
                }
            } else if let Some(event) = calendar.pop(u64::MAX) {
                model.sort_unstable();
                assert_eq!(model.pop(), Some(Reverse((event.at, event.slot))));
                now = event.at;
            } else {
                assert!(model.is_empty());
            }
            if model.len() > 100 {
                model.sort_unstable();
                for _ in 0..90 {
                    let event = calendar.pop(u64::MAX).expect("as many as in the model");
                    assert_eq!(model.pop(), Some(Reverse((event.at, event.slot))));
                    now = event.at;
                }
            }
        }
    }

    #[test]
    fn the_end_of_time_is_reached() {
        let mut calendar = Calendar::new();
        calendar.push(u64::MAX, Kind::Timer, 1, 0);
        calendar.push(5, Kind::Timer, 0, 0);
        assert_eq!(calendar.pop(u64::MAX).map(|event| event.slot), Some(0));
        assert_eq!(calendar.pop(u64::MAX).map(|event| event.slot), Some(1));
        calendar.push(u64::MAX, Kind::Timer, 2, 0);
        assert_eq!(calendar.pop(u64::MAX).map(|event| event.slot), Some(2));
        assert!(calendar.pop(u64::MAX).is_none());
    }
}
