//! Raw memory: wraps shared words and registered buffers in safe interfaces; all unsafe code is here.
//!
//! - [`Words`]: memory that other threads, processes and cards may write at any time. Code sees it only
//!   as a slice of atomic words; no reference to plain bytes of it exists.
//! - [`Slab`] and [`Buf`]: private memory that a fabric can reach. Exactly one holder owns it at a
//!   time: the caller, or the operation that uses it.
//! - [`exit_on_bus_error`]: the end of a process whose mapped file cannot be read or written.
//! - `verbs`: cards, by libibverbs (feature `verbs`).
#![allow(unsafe_code)]

mod bus_error;
mod copy;
mod slab;
#[cfg(feature = "verbs")]
pub(crate) mod verbs;
mod words;

pub use bus_error::exit_on_bus_error;
pub(crate) use slab::SlabRef;
pub use slab::{Buf, Slab};
pub use words::Words;
