//! Records: values that expire, and small hashes, in tables of any engine.
//!
//! A table of records holds, as each value, a *record*: a header and a string, or a header and the fields of a hash.
//! [`RecordView`] reads the format, [`Record`] owns one, and [`Records`] are the operations of a table of records on
//! any [`Index`](farleaf_index::Index). Engines know nothing of records. `docs/design/records.md` has the reasons.

#![forbid(unsafe_code)]

mod error;
mod expiry;
mod format;
mod hashes;
mod ops;

pub use error::RecordError;
pub use expiry::Expiry;
pub use format::{
    FormatFault, HEADER_BYTES_MAX, Hash, HashView, Record, RecordValue, RecordView, ValueView,
};
pub use ops::{RecordChange, Records, Swept, string_of, string_to_store};
