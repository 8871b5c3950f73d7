//! Synchronization types: atomics, locks and threads of a store's threads.
//!
//! `crates/threads` compiles the modules that use them by path, with modelled types in their place.

pub(crate) use std::sync::{Arc, Mutex, MutexGuard, Weak, atomic};
pub(crate) use std::thread;
