//! Wake-ups: collects wake-ups of simulated tasks through their wakers.
//!
//! INV-WOKEN-1: exactly one `drain` drains a wake-up: one that begins after the push at the latest. The
//! flag spares the lock of a list that is mostly empty. A push sets it afterwards, and a drain clears
//! it before it empties the list. Modelled in `crates/threads`.

use std::sync::PoisonError;

use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};

/// Wake-ups that came through a [`Waker`] rather than straight from the machine.
#[derive(Debug, Default)]
pub(crate) struct Woken {
    any: AtomicBool,
    list: Mutex<Vec<(u32, u32)>>,
}

impl Woken {
    pub(crate) fn push(&self, task: u32, generation: u32) {
        self.list.lock().unwrap_or_else(PoisonError::into_inner).push((task, generation));
        self.any.store(true, Ordering::Release);
    }

    /// Hands every task that was woken to `each`, in order.
    #[inline]
    pub(crate) fn drain(&self, mut each: impl FnMut(u32, u32)) {
        if !self.any.load(Ordering::Acquire) {
            return;
        }
        self.any.store(false, Ordering::Relaxed);
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        list.drain(..).for_each(|(task, generation)| each(task, generation));
    }
}
