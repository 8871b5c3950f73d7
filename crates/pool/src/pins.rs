//! Which epochs the sessions of one member hold on to.
//!
//! INV-PIN-1: a pin, once it is visible to others, is at least every announcement that was
//! computed before it became visible: it is stored, and then the view is read again, so that
//! either [`Pins::least`] sees it or it sees the view that `least`'s caller had read before.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The value of a pin that holds nothing.
pub(crate) const UNPINNED: u64 = u64::MAX;
/// Pins of a session; the last is shared by all that find the others taken.
pub(crate) const SESSION_PINS: usize = 4;

/// The pins of one session, on a cache line of their own.
#[derive(Debug)]
#[repr(align(64))]
struct Line {
    operations: [AtomicU64; SESSION_PINS],
    reclaim: AtomicU64,
    /// Operations begun. One writer.
    begun: AtomicU64,
}

/// The pins of a member's sessions, by client, and one of its recovery.
#[derive(Debug)]
pub(crate) struct Pins {
    lines: Box<[Line]>,
    /// Lines in front of this one have been used.
    used: AtomicUsize,
    pub(crate) recovery: AtomicU64,
}

impl Pins {
    pub(crate) fn new(clients: u32) -> Self {
        let lines = (0..clients).map(|_| Line {
            operations: std::array::from_fn(|_| AtomicU64::new(UNPINNED)),
            reclaim: AtomicU64::new(UNPINNED),
            begun: AtomicU64::new(0),
        });
        Pins {
            lines: lines.collect(),
            used: AtomicUsize::new(0),
            recovery: AtomicU64::new(UNPINNED),
        }
    }

    /// Makes `least` and `begun` look at the client's line from now on.
    pub(crate) fn enable(&self, client: u32) {
        self.used.fetch_max(client as usize + 1, Ordering::SeqCst);
    }

    #[inline]
    pub(crate) fn operation(&self, client: u32, slot: usize) -> &AtomicU64 {
        &self.lines[client as usize].operations[slot]
    }

    pub(crate) fn reclaim(&self, client: u32) -> &AtomicU64 {
        &self.lines[client as usize].reclaim
    }

    /// Counts an operation of the client. Only its own thread may.
    #[inline]
    pub(crate) fn count_begin(&self, client: u32) {
        let begun = &self.lines[client as usize].begun;
        begun.store(begun.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Operations begun by all sessions.
    pub(crate) fn begun(&self) -> u64 {
        let lines = &self.lines[..self.used.load(Ordering::SeqCst)];
        lines.iter().fold(0, |sum, line| sum.wrapping_add(line.begun.load(Ordering::Relaxed)))
    }

    /// The smallest pin, or [`UNPINNED`].
    pub(crate) fn least(&self) -> u64 {
        let lines = &self.lines[..self.used.load(Ordering::SeqCst)];
        let pins = lines.iter().flat_map(|line| line.operations.iter().chain([&line.reclaim]));
        pins.chain([&self.recovery]).map(|pin| pin.load(Ordering::SeqCst)).min().unwrap_or(UNPINNED)
    }
}

/// Sets `pin` to the current view.
#[inline]
pub(crate) fn pin_at(pin: &AtomicU64, view: &AtomicU64) {
    loop {
        let epoch = view.load(Ordering::SeqCst);
        pin.store(epoch, Ordering::SeqCst);
        // A tick that did not see this pin had stored its view before looking at the pins; then
        // this load sees that view, and the pin moves up to it.
        if view.load(Ordering::SeqCst) == epoch {
            return;
        }
    }
}

/// Clears a pin when it goes out of scope.
#[derive(Debug)]
pub(crate) struct PinGuard<'a>(pub(crate) &'a AtomicU64);

impl Drop for PinGuard<'_> {
    fn drop(&mut self) {
        self.0.store(UNPINNED, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_pin_counts() {
        let pins = Pins::new(3);
        let view = AtomicU64::new(7);
        pin_at(pins.operation(2, 1), &view);
        assert_eq!(pins.least(), UNPINNED, "not enabled");
        pins.enable(2);
        assert_eq!(pins.least(), 7);
        view.store(9, Ordering::SeqCst);
        pin_at(pins.reclaim(0), &view);
        assert_eq!(pins.least(), 7);
        drop(PinGuard(pins.operation(2, 1)));
        assert_eq!(pins.least(), 9);
        pins.recovery.store(3, Ordering::SeqCst);
        assert_eq!(pins.least(), 3);
        pins.count_begin(1);
        pins.count_begin(2);
        assert_eq!(pins.begun(), 2);
    }
}
