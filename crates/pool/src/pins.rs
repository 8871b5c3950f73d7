//! Pins: record the epochs that the sessions of one member hold.
//!
//! INV-PIN-1: a pin, once it is visible to others, is at least every announcement that was
//! computed before it became visible: it is stored, and then the view is read again, so that
//! either [`Pins::least`] sees it or it sees the view that `least`'s caller had read before.
//! INV-PIN-2: if an operation pins an epoch twice, the second pin stands behind the first, and
//! [`Pins::least`] looks from the front on. So it sees the second if the first is dropped while it
//! looks. (It could look at a second pin in front before that is set, and at the first one after that
//! is dropped.)
//!
//! `crates/threads` models all of this.

use std::cell::Cell;

use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// The value of a pin that holds nothing.
pub(crate) const UNPINNED: u64 = u64::MAX;
/// Pins of a session; the last is shared by all that find the others taken.
pub(crate) const SESSION_PINS: usize = 4;

/// The pins of a session's operations.
pub(crate) type SessionPins = [AtomicU64; SESSION_PINS];

/// The pins of one session, on a cache line of their own.
#[derive(Debug)]
#[repr(align(64))]
struct Line {
    operations: SessionPins,
    /// The least epoch of what is unlinked and not announced yet (INV-RETIRE-1).
    pending: AtomicU64,
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
    /// Of objects that came by the inbox and are passed on.
    pub(crate) inbox: AtomicU64,
}

impl Pins {
    pub(crate) fn new(clients: u32) -> Self {
        let lines = (0..clients).map(|_| Line {
            operations: std::array::from_fn(|_| AtomicU64::new(UNPINNED)),
            pending: AtomicU64::new(UNPINNED),
            reclaim: AtomicU64::new(UNPINNED),
            begun: AtomicU64::new(0),
        });
        Pins {
            lines: lines.collect(),
            used: AtomicUsize::new(0),
            recovery: AtomicU64::new(UNPINNED),
            inbox: AtomicU64::new(UNPINNED),
        }
    }

    /// Makes `least` and `begun` look at the client's line from now on.
    pub(crate) fn enable(&self, client: u32) {
        self.used.fetch_max(client as usize + 1, Ordering::SeqCst);
    }

    #[inline]
    pub(crate) fn operations(&self, client: u32) -> &SessionPins {
        &self.lines[client as usize].operations
    }

    /// The least epoch that an operation of the client has pinned. Only its own thread asks.
    pub(crate) fn least_operation(&self, client: u32) -> u64 {
        let pins = self.operations(client).iter();
        pins.map(|pin| pin.load(Ordering::Relaxed)).min().unwrap_or(UNPINNED)
    }

    pub(crate) fn pending(&self, client: u32) -> &AtomicU64 {
        &self.lines[client as usize].pending
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
        // The pending pin stands behind those of operations, whose epochs it goes on to hold (INV-PIN-2).
        let pins = lines
            .iter()
            .flat_map(|line| line.operations.iter().chain([&line.pending, &line.reclaim]));
        pins.chain([&self.recovery, &self.inbox])
            .map(|pin| pin.load(Ordering::SeqCst))
            .min()
            .unwrap_or(UNPINNED)
    }

    /// The epoch that the member may announce: the view first, then the pins (INV-EPOCH-1).
    pub(crate) fn announceable(&self, view: &AtomicU64) -> u64 {
        view.load(Ordering::SeqCst).min(self.least())
    }

    /// Tells whether the member may be announced idle; then `live` is cleared. It is cleared first, and
    /// then the pins are looked at (INV-EPOCH-4).
    pub(crate) fn try_idle(&self, live: &AtomicBool) -> bool {
        live.store(false, Ordering::SeqCst);
        let idle = self.least() == UNPINNED;
        live.store(!idle, Ordering::SeqCst);
        idle
    }
}

/// The pins of a session that are in use. It stays on the session's thread.
#[derive(Debug, Default)]
pub(crate) struct PinSlots {
    /// Bit per pin in front of the last.
    taken: Cell<u8>,
    last_users: Cell<u32>,
}

/// The pin that all share who find the others taken.
pub(crate) const LAST_PIN: usize = SESSION_PINS - 1;

impl PinSlots {
    /// Pins the current view with a free pin. The last one keeps its first user's epoch, which
    /// holds back more than is needed.
    #[inline]
    pub(crate) fn take(&self, pins: &SessionPins, view: &AtomicU64) -> usize {
        let slot = self.reserve(0);
        if slot < LAST_PIN || self.last_users.get() == 1 {
            pin_at(&pins[slot], view);
        }
        slot
    }

    /// A second pin of the epoch that `slot` holds, behind it (INV-PIN-2).
    pub(crate) fn double(&self, pins: &SessionPins, slot: usize) -> usize {
        let epoch = pins[slot].load(Ordering::Relaxed);
        let second = self.reserve(slot + 1);
        // The first pin holds the epoch until this store is done.
        let pin = &pins[second];
        pin.store(epoch.min(pin.load(Ordering::Relaxed)), Ordering::SeqCst);
        second
    }

    #[inline]
    pub(crate) fn release(&self, pins: &SessionPins, slot: usize) {
        if slot == LAST_PIN {
            let users = self.last_users.get() - 1;
            self.last_users.set(users);
            if users > 0 {
                return;
            }
        } else {
            self.taken.set(self.taken.get() & !(1 << slot));
        }
        pins[slot].store(UNPINNED, Ordering::Release);
    }

    /// A free pin from `first` on, or the last.
    #[inline]
    pub(crate) fn reserve(&self, first: usize) -> usize {
        let taken = self.taken.get();
        let skipped = taken | ((1_u8 << first.min(LAST_PIN)) - 1);
        let slot = (skipped.trailing_ones() as usize).min(LAST_PIN);
        if slot == LAST_PIN {
            self.last_users.set(self.last_users.get() + 1);
        } else {
            self.taken.set(taken | 1 << slot);
        }
        slot
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
