//! Synchronization types: atomics, locks and threads.
//!
//! `crates/threads` compiles the modules that use them by path, with modelled types in their place.

pub(crate) use std::sync::{Mutex, atomic};
pub(crate) use std::thread;

use std::sync::{MutexGuard, PoisonError};

/// Locks. A thread that panicked has left the content whole: no critical section panics half way.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
