//! Index layer: the interface of engines, and the kit that they are made of.
//!
//! An engine implements the traits [`engine::Engine`] and [`Index`] over a [`farleaf_pool::Session`]; the crate
//! `farleaf-engines` has them all. [`bnode`] has the nodes of B+-trees, [`blink`] the remote B-link tree, [`local`]
//! what tasks of one compute server share, [`compute`] what compute servers are to each other.
#![forbid(unsafe_code)]

pub mod blink;
pub mod bnode;
mod change;
pub mod compute;
mod counters;
pub mod detach;
pub mod engine;
mod entries;
mod error;
mod index;
pub mod join;
pub mod knobs;
#[cfg(feature = "lab")]
pub mod lab;
pub mod local;
pub mod oneshot;
mod op;
mod open_once;
mod open_options;
pub mod remote_lock;
pub mod retire;
pub mod retry;
mod scan_cursor;
mod scan_range;
mod seek;
pub mod shape;
pub mod spec;
mod stored;
pub mod suggest;
pub mod sync;
pub mod units;
mod update_with;
mod walk;
mod work;

pub use blink::BlinkOptions;
pub use change::{Change, Decision, Exchange, Outcome, OwnedChange};
pub use counters::{CacheControl, CounterSet};
pub use engine::Traits;
pub use entries::{Entries, PairList, SortedPairs, collect_sorted};
pub use error::IndexError;
pub use index::{Index, common_bytes, longest_prefix_by_floors};
pub use knobs::{Knob, KnobError, KnobKind, KnobOf, KnobValue, Knobs, Setting, Settings};
pub use op::Op;
pub use open_once::{Opened, open_once};
pub use open_options::OpenOptions;
pub use scan_cursor::ScanCursor;
pub use scan_range::ScanRange;
pub use seek::Seek;
pub use shape::{KeptShape, NoShape, Shape};
pub use spec::{KEY_BYTES_MAX, KeyFormat, Spec, TableSpec, VALUE_BYTES_MAX, ValueFormat};
pub use stored::Stored;
pub use update_with::{UPDATE_ATTEMPTS_MAX, Update, update_wait_ns, update_with};
pub use walk::{Collector, Marker, TableReport, Visitor};
pub use work::Work;
