//! Synchronization types: the atomics of the words that sessions share.
//!
//! `crates/threads` compiles the modules that use them by path, with modelled atomics in their place.

pub(crate) use std::sync::atomic;
