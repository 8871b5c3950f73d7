//! Synchronization types: atomics and mutexes of the protocols between threads of one compute server.
//!
//! They are the standard library's. `crates/threads` compiles these modules with those of model
//! checkers in their place, and with `cfg(loom)`, which leaves out their plain tests.

pub use farleaf_fabric::SharedLines;
pub use std::sync::Mutex;
pub use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};

use std::ops::DerefMut;
use std::sync::PoisonError;

/// Locks; what a thread that panicked left is whole, since no critical section here can panic half way.
pub fn lock<T>(mutex: &Mutex<T>) -> impl DerefMut<Target = T> + '_ {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
