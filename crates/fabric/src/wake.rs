//! Wake-ups: let other threads wake the thread of an executor.
//!
//! INV-WAKE-1: the home thread sees another thread's push or flag before it waits, or the push ends its
//! wait. The pusher first stores and then wakes, and the token of `unpark`, or of the notifier in its
//! place, stays until a wait takes it.
//!
//! INV-WAKE-2: the thread that clears a flag sees everything before each raise, although the home
//! thread also raises it when its root yields. Raising is a read-modify-write, so that one raise does
//! not hide another.
//!
//! INV-WAKE-3: after the home thread has cleared an item's flag, it sees everything before each push of
//! the item, also before pushes that found the item queued. Threads raise and clear that flag by
//! read-modify-writes as well.
//!
//! Modelled in `crates/threads`.
#![allow(clippy::disallowed_methods, reason = "part of the executor of real threads")]

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};

use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::thread::{self, Thread};

/// Ends a wait from any thread: the present one, or else the next.
pub(crate) type Notify = Arc<dyn Fn() + Send + Sync>;

/// The thread that waits, and the way to end its wait.
#[derive(Clone)]
pub(crate) struct Home {
    thread: Thread,
    notify: Option<Notify>,
}

impl Home {
    /// The calling thread. It parks, or waits in a way that `notify` ends.
    pub(crate) fn new(notify: Option<Notify>) -> Self {
        Home { thread: thread::current(), notify }
    }

    /// Ends its wait, unless the home thread itself calls: that does not wait.
    fn wake(&self) {
        if thread::current().id() == self.thread.id() {
            return;
        }
        match &self.notify {
            Some(notify) => notify(),
            None => self.thread.unpark(),
        }
    }
}

/// Items that are ready, in order. Any thread may push; the thread that made it takes.
pub(crate) struct Queue<T> {
    ready: Mutex<VecDeque<T>>,
    /// Something may be in it: set after a push, cleared before a take.
    filled: AtomicBool,
    home: Home,
}

/// An item's mark that it stands in a queue, so that it stands there once.
#[derive(Default)]
pub(crate) struct Asked(AtomicBool);

impl<T> Queue<T> {
    /// An empty queue.
    pub(crate) fn new(home: Home) -> Self {
        Queue { ready: Mutex::new(VecDeque::new()), filled: AtomicBool::new(false), home }
    }

    fn push(&self, item: T) {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner).push_back(item);
        self.filled.store(true, Ordering::Release);
        self.home.wake();
    }

    /// Pushes `item` unless it stands there. The thread that takes it sees everything before the push, and
    /// then [`Asked::take`]s the mark.
    pub(crate) fn push_once(&self, asked: &Asked, item: T) {
        if !asked.0.swap(true, Ordering::Release) {
            self.push(item);
        }
    }

    /// Returns whether there is nothing to take.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        !self.filled.load(Ordering::Acquire)
    }

    /// Takes all that is ready, in order; `into` is empty before.
    pub(crate) fn take(&self, into: &mut VecDeque<T>) {
        self.filled.store(false, Ordering::Relaxed);
        std::mem::swap(&mut *self.ready.lock().unwrap_or_else(PoisonError::into_inner), into);
    }
}

impl Asked {
    /// Lets it be pushed again. The caller sees everything before each push, also before pushes that found it
    /// queued.
    pub(crate) fn take(&self) {
        self.0.swap(false, Ordering::Acquire);
    }
}

/// A flag that any thread raises and its maker clears.
pub(crate) struct Flag {
    raised: AtomicBool,
    home: Home,
}

impl Flag {
    /// A flag that is not raised.
    pub(crate) fn new(home: Home) -> Self {
        Flag { raised: AtomicBool::new(false), home }
    }

    /// Raises it and wakes the home thread.
    pub(crate) fn wake(&self) {
        self.raised.swap(true, Ordering::Release);
        self.home.wake();
    }

    /// Clears it; returns whether it was raised. The caller then sees everything before the raise.
    #[inline]
    pub(crate) fn take(&self) -> bool {
        self.raised.swap(false, Ordering::Acquire)
    }

    pub(crate) fn is_raised(&self) -> bool {
        self.raised.load(Ordering::Relaxed)
    }
}
