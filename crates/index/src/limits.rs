//! Limits of a table: which keys and values it takes.

use crate::IndexError;
use crate::bnode::{KeyFormat, Layout, ValueFormat};

/// Longest value of any table.
pub const VALUE_BYTES_MAX: usize = 1 << 20;

/// Refuses a key that a table of this layout does not take.
///
/// # Errors
/// `Invalid`, with the lengths that the table takes.
pub fn check_key(layout: &Layout, key: &[u8]) -> Result<(), IndexError> {
    if layout.takes_key(key.len()) {
        return Ok(());
    }
    Err(IndexError::Invalid(format!(
        "a key of {} bytes: this table takes {}",
        key.len(),
        key_lengths(layout)
    )))
}

/// Refuses a value that a table of this layout does not take.
///
/// # Errors
/// `Invalid`, with the lengths that the table takes.
pub fn check_value(layout: &Layout, value: &[u8]) -> Result<(), IndexError> {
    if layout.takes_value(value.len()) && value.len() <= VALUE_BYTES_MAX {
        return Ok(());
    }
    let takes = match layout.options().value {
        ValueFormat::Fixed(bytes) => format!("exactly {bytes} bytes"),
        ValueFormat::Bytes => format!("at most {VALUE_BYTES_MAX} bytes"),
    };
    Err(IndexError::Invalid(format!("a value of {} bytes: this table takes {takes}", value.len())))
}

/// The lengths of keys that a table of this layout takes, in words.
pub(crate) fn key_lengths(layout: &Layout) -> String {
    match layout.options().key {
        KeyFormat::Fixed(bytes) => format!("exactly {bytes} bytes"),
        KeyFormat::Bytes { .. } => format!("at most {} bytes", layout.key_max()),
    }
}
