//! Raw memory: wraps shared words and registered buffers in safe interfaces; all unsafe code is here.
//!
//! - [`Words`]: memory that other threads, processes and cards may write at any time. Code sees it only
//!   as a slice of atomic words; no reference to plain bytes of it exists.
//! - [`Slab`] and [`Buf`]: private memory that a fabric can reach. Exactly one holder owns it at a
//!   time: the caller, or the operation that uses it.
//! - `verbs`: cards, by libibverbs (feature `verbs`).
#![allow(unsafe_code)]

mod copy;
mod slab;
#[cfg(feature = "verbs")]
pub(crate) mod verbs;
mod words;

pub(crate) use slab::SlabRef;
pub use slab::{Buf, Slab};
pub use words::Words;
