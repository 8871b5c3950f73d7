//! Engines: one folder for each design, and the table of them.
//!
//! Every engine implements the traits [`farleaf_index::engine::Engine`] and [`farleaf_index::Index`] with the kit of
//! `farleaf_index`, and uses no other engine. An engine is added by its folder and its two lines below.
//! [`AnyIndex`] is an open table of any engine.
#![forbid(unsafe_code)]

#[macro_use]
mod list;

pub mod art;
pub mod btree;
pub mod chime;
pub mod dart;
pub mod dex;
pub mod dmtree;
#[cfg(feature = "example")]
pub mod example;
pub mod example_owned;
pub mod fptree;
pub mod p_sherman;
pub mod p_smart;
pub mod sherman;
pub mod smart;

engines! {
    ($)
    /// The plain adaptive radix tree; see [`art`].
    Art: crate::art::Art,
    /// The naive one-sided B+-tree; see [`btree`].
    BTree: crate::btree::BTree,
    /// The B-link tree whose leaves are hopscotch tables; see [`chime`].
    Chime: crate::chime::Chime,
    /// The radix tree of hashed nodes with a skip table; see [`dart`].
    Dart: crate::dart::Dart,
    /// The partitioned B+-tree with a cache on each compute server; see [`dex`].
    Dex: crate::dex::Dex,
    /// The same tree as `FpTree`'s with fingerprint tables and locks on compute servers; see [`dmtree`].
    DmTree: crate::dmtree::DmTree,
    /// The B-link tree whose leaves have fingerprint tables; see [`fptree`].
    FpTree: crate::fptree::FpTree,
    /// The B-link tree with lock queues and entry-wise write-back; see [`sherman`].
    Sherman: crate::sherman::Sherman,
    /// The same B-link tree with owned ranges; see [`p_sherman`].
    PSherman: crate::p_sherman::PSherman,
    /// The adaptive radix tree with leaves changed in place; see [`smart`].
    Smart: crate::smart::Smart,
    /// The radix tree with owned ranges; see [`p_smart`].
    PSmart: crate::p_smart::PSmart,
    /// The example engine, for tests only; see [`example`].
    #[cfg(feature = "example")]
    Example: crate::example::Example,
    #[doc = "The example engine with owners, for tests only."] #[cfg(feature = "example")] ExampleOwned: crate::example_owned::ExampleOwned,
}

// These use the macros that the table expands to, so they stand behind it.
mod drops;
#[cfg(feature = "lab")]
mod lab;
mod recovery;
mod registry;
mod settings;
mod stored;
mod table_format;
#[cfg(debug_assertions)]
#[doc(hidden)]
pub mod translate;
pub mod typed;

/// Named so for the modules that loom models: there, loom's stands in its place.
use farleaf_index::sync;

pub use drops::{continue_drops, mark_drops};
pub use recovery::{recover, recover_within, sweep};
pub use registry::UnknownEngine;
pub use settings::{KnobDefault, SettingError};
pub use stored::StoredTable;
pub use table_format::{Content, TableFormat};
