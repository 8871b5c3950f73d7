//! Seek: names a place in the order of keys.

/// A place in the order of keys.
#[derive(Clone, Copy, Debug)]
pub enum Seek<'a> {
    /// A key.
    At(&'a [u8]),
    /// The place just above a key.
    After(&'a [u8]),
    /// The place below all keys.
    First,
    /// The place above all keys.
    Last,
}
