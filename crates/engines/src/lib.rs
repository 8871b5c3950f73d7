//! Engines: one folder for each design, and the table of them.
//!
//! Every engine implements the traits [`farleaf_index::engine::Engine`] and [`farleaf_index::Index`] with the kit of
//! `farleaf_index`, and uses no other engine. An engine is added by its folder and its line in the table below.
//! [`AnyIndex`] is an open table of any engine.
#![forbid(unsafe_code)]

pub mod art;
pub mod btree;
pub mod dart;
pub mod dex;
mod drops;
#[cfg(feature = "example")]
pub mod example;
pub mod fptree;
pub mod p_smart;
mod recovery;
mod registry;
mod settings;
pub mod sherman;
pub mod smart;
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
pub use registry::{AnyIndex, Engine, UnknownEngine};
pub use settings::{KnobDefault, SettingError};
pub use stored::StoredTable;
pub use table_format::{Content, TableFormat};
