//! Spec: the byte strings that a table takes as keys and values, and a table as its engine makes it.

use crate::{Change, IndexError};

/// Longest key of any table.
pub const KEY_BYTES_MAX: usize = 1024;
/// Longest value of any table.
pub const VALUE_BYTES_MAX: usize = 1 << 20;

/// The byte strings that a table takes as keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyFormat {
    /// Exactly this many bytes.
    Fixed(usize),
    /// Up to `max` bytes, the empty key included.
    Bytes {
        /// Longest key in bytes.
        max: usize,
    },
}

/// The byte strings that a table takes as values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueFormat {
    /// Exactly this many bytes.
    Fixed(usize),
    /// Any length, up to [`VALUE_BYTES_MAX`].
    Bytes,
}

/// The keys and values that a table takes; the same for every engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spec {
    /// The keys.
    pub key: KeyFormat,
    /// The values.
    pub value: ValueFormat,
}

impl Spec {
    /// Keys and values of 8 bytes, such as numbers.
    pub const FIXED8: Spec = Spec { key: KeyFormat::Fixed(8), value: ValueFormat::Fixed(8) };
    /// The longest keys, and values of any length.
    pub const ANY: Spec =
        Spec { key: KeyFormat::Bytes { max: KEY_BYTES_MAX }, value: ValueFormat::Bytes };

    /// Returns the length of the longest key.
    pub fn key_max(&self) -> usize {
        match self.key {
            KeyFormat::Fixed(max) | KeyFormat::Bytes { max } => max,
        }
    }

    /// Returns whether keys may have this length.
    #[inline]
    pub fn takes_key(&self, len: usize) -> bool {
        match self.key {
            KeyFormat::Fixed(bytes) => len == bytes,
            KeyFormat::Bytes { max } => len <= max,
        }
    }

    /// Returns whether values may have this length.
    #[inline]
    pub fn takes_value(&self, len: usize) -> bool {
        len <= VALUE_BYTES_MAX
            && match self.value {
                ValueFormat::Fixed(bytes) => len == bytes,
                ValueFormat::Bytes => true,
            }
    }

    /// Refuses formats that no engine takes.
    ///
    /// # Errors
    /// `Invalid` for keys beyond [`KEY_BYTES_MAX`].
    pub fn check(&self) -> Result<(), IndexError> {
        let max = self.key_max();
        if max <= KEY_BYTES_MAX {
            return Ok(());
        }
        Err(IndexError::Invalid(format!(
            "keys of {max} bytes: the longest key is {KEY_BYTES_MAX} bytes"
        )))
    }

    /// Refuses a key that the table does not take.
    ///
    /// # Errors
    /// `Invalid`, with the lengths that the table takes.
    #[inline]
    pub fn check_key(&self, key: &[u8]) -> Result<(), IndexError> {
        if self.takes_key(key.len()) { Ok(()) } else { Err(self.wrong_key(key.len())) }
    }

    /// Refuses a value that the table does not take.
    ///
    /// # Errors
    /// `Invalid`, with the lengths that the table takes.
    #[inline]
    pub fn check_value(&self, value: &[u8]) -> Result<(), IndexError> {
        if self.takes_value(value.len()) { Ok(()) } else { Err(self.wrong_value(value.len())) }
    }

    /// Refuses a change whose key or new value the table does not take.
    ///
    /// # Errors
    /// `Invalid`, with the lengths that the table takes.
    #[inline]
    pub fn check_change(&self, change: &Change<'_>) -> Result<(), IndexError> {
        self.check_key(change.key)?;
        change.value.map_or(Ok(()), |value| self.check_value(value))
    }

    /// The lengths of keys that the table takes, in words.
    pub(crate) fn key_lengths(&self) -> String {
        match self.key {
            KeyFormat::Fixed(bytes) => format!("exactly {bytes} bytes"),
            KeyFormat::Bytes { max } => format!("at most {max} bytes"),
        }
    }

    #[cold]
    fn wrong_key(&self, len: usize) -> IndexError {
        let takes = self.key_lengths();
        IndexError::Invalid(format!("a key of {len} bytes: this table takes {takes}"))
    }

    #[cold]
    fn wrong_value(&self, len: usize) -> IndexError {
        let takes = match self.value {
            ValueFormat::Fixed(bytes) => format!("exactly {bytes} bytes"),
            ValueFormat::Bytes => format!("at most {VALUE_BYTES_MAX} bytes"),
        };
        IndexError::Invalid(format!("a value of {len} bytes: this table takes {takes}"))
    }
}

/// A table as its engine makes it: keys, values, and the shape of its objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableSpec<S> {
    /// The keys and values that it takes.
    pub spec: Spec,
    /// The shape of its objects, complete.
    pub shape: S,
    /// The table's own number. Checksums are bound to it, so that an object of another table, met by an old pointer,
    /// does not pass for one of this.
    pub number: u64,
}
