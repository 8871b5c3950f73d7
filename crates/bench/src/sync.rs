//! Atomics and locks of what clients share. `crates/threads` compiles the modules that use this by
//! path, with modelled ones in its place.

pub(crate) use std::sync::{Mutex, atomic};
