//! Atomics, locks and threads of what threads share. `crates/threads` compiles the modules that use
//! this by path, with modelled ones in its place.

pub(crate) use std::sync::{Mutex, atomic};
pub(crate) use std::thread;
