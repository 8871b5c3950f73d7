//! ! Synchronization types: atomics, locks and threads.
//!
//! `crates/threads` compiles the modules that use them by path, with modelled types in their place.

pub(crate) use std::sync::{Mutex, atomic};
pub(crate) use std::thread;
