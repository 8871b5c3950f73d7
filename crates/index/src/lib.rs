//! Ordered indexes on disaggregated memory, one folder an engine.
//!
//! Every engine implements the trait [`Index`] over a [`farleaf_pool::Session`], generic in the
//! fabric. [`AnyIndex`] is the table of engines; [`bnode`] is what tree engines share.
#![forbid(unsafe_code)]

mod any;
mod blink;
pub mod bnode;
mod detach;
mod drops;
pub mod engines;
mod entries;
mod error;
mod index;
mod local;
mod oneshot;
mod recovery;
mod stored;
mod sync;

pub use any::{AnyIndex, Engine, OpenOptions, TableFormat, UnknownEngine};
pub use blink::BlinkOptions;
pub use drops::mark_drops;
pub use engines::{btree, dex};
pub use entries::Entries;
pub use error::IndexError;
pub use index::{Exchange, Index, ScanRange, SortedPairs, TableReport};
pub use recovery::recover;
pub use stored::StoredTable;
