//! Index layer: ordered indexes on disaggregated memory, one folder an engine.
//!
//! Every engine implements the trait [`Index`] over a [`farleaf_pool::Session`].
//! [`AnyIndex`] is the table of engines; [`bnode`] has the nodes that tree engines share.
#![forbid(unsafe_code)]

mod blink;
pub mod bnode;
mod change;
pub mod compute;
mod counters;
mod detach;
pub mod engine;
pub mod engines;
mod entries;
mod error;
mod index;
mod join;
pub mod knobs;
mod limits;
mod local;
mod oneshot;
mod op;
mod open_options;
mod retire;
mod retry;
mod shape;
mod stored;
pub mod suggest;
mod sync;
pub mod units;
mod walk;

pub use blink::BlinkOptions;
pub use change::{Change, Decision, Outcome};
pub use counters::{CacheControl, CounterSet};
pub use engine::Traits;
pub use engines::{
    AnyIndex, Engine, KnobDefault, SettingError, StoredTable, TableFormat, UnknownEngine,
    mark_drops, recover, sweep,
};
pub use entries::Entries;
pub use error::IndexError;
pub use index::{Exchange, Index, ScanRange, SortedPairs, TableReport};
pub use knobs::{Knob, KnobError, KnobKind, KnobOf, KnobValue, Knobs, Setting, Settings};
pub use limits::VALUE_BYTES_MAX;
pub use op::Op;
pub use open_options::OpenOptions;
pub use shape::{NodeRoom, PointerCheck, Shape};
pub use stored::Stored;
pub use walk::Visitor;
