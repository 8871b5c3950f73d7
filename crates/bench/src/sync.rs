//! Synchronization types: atomics and locks that clients share.
//!
//! `crates/threads` compiles the modules that use them by path, with modelled types in their place.

pub(crate) use std::sync::{Mutex, atomic};
