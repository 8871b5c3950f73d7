//! The one place with unsafe code: shared words and registered buffers, behind safe faces.
//!
//! - [`Words`]: memory that other threads, processes and cards may write at any time. It is only
//!   ever seen as a slice of atomic words; no reference to plain bytes of it exists.
//! - [`Slab`] and [`Buf`]: private memory that a fabric can reach, owned by exactly one holder at a
//!   time: the caller, or the operation it was given to.
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
