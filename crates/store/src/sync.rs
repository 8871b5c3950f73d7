//! Atomics, locks and threads of what a store's threads share. `crates/threads` compiles the modules
//! that use this by path, with modelled ones in its place.

pub(crate) use std::sync::{Arc, Mutex, MutexGuard, Weak, atomic};
pub(crate) use std::thread;
