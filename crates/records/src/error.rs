//! Record errors: say why an operation on a record failed.

use farleaf_index::IndexError;

use crate::format::FormatFault;

/// A failed operation on a table of records. Nothing was done, except as [`IndexError`] says.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The operation of the table failed.
    #[error(transparent)]
    Index(#[from] IndexError),
    /// The key holds a value of another kind than the operation is for.
    #[error("the key \"{}\" holds a {holds}, not a {wanted}", key.escape_ascii())]
    WrongKind {
        /// The key.
        key: Vec<u8>,
        /// The kind that it holds: a string, or a hash.
        holds: &'static str,
        /// The kind that the operation is for.
        wanted: &'static str,
    },
    /// The value of the key is no record that this program reads.
    #[error("the record of the key \"{}\" {fault}", key.escape_ascii())]
    Format {
        /// The key.
        key: Vec<u8>,
        /// The reason.
        fault: FormatFault,
    },
    /// The record would be longer than any value.
    #[error("a {what} of {bytes} bytes with its header: at most {most}")]
    TooLong {
        /// A string, or a hash.
        what: &'static str,
        /// Its length as it is stored.
        bytes: usize,
        /// The most.
        most: usize,
    },
}
