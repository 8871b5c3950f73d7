//! Spec: the byte strings that a table takes as keys and values.

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
    /// Any length; beyond what the engine keeps in a leaf, that refers to a record.
    Bytes,
}
