//! Atomics and mutexes of the protocols between threads of one compute server: those of the standard
//! library, or loom's when `RUSTFLAGS="--cfg loom"` builds this crate's tests.

#[cfg(all(test, loom))]
pub(crate) use loom::sync::Mutex;
#[cfg(all(test, loom))]
pub(crate) use loom::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(not(all(test, loom)))]
pub(crate) use std::sync::Mutex;
#[cfg(not(all(test, loom)))]
pub(crate) use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};

use std::ops::DerefMut;
use std::sync::PoisonError;

/// Locks; what a thread that panicked left is whole, since no critical section here can panic half way.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> impl DerefMut<Target = T> + '_ {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
