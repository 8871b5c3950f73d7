//! Seek: names a place in the order of keys, and finds it among nodes.

use super::{Cover, Node, Word};

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

impl Seek<'_> {
    /// Tells whether `node` covers the place, by its fences.
    #[inline]
    pub fn covered<W: Word>(self, node: &Node<'_, W>) -> Cover {
        match self {
            Seek::At(key) => node.covers(key),
            Seek::After(key) => node.covers_after(key),
            Seek::First => Cover::Inside,
            Seek::Last if node.right() != 0 => Cover::Above,
            Seek::Last => Cover::Inside,
        }
    }

    /// The child of `node` that covers the place: its index and its word.
    #[inline]
    pub fn child<W: Word>(self, node: &Node<'_, W>) -> (usize, u64) {
        match self {
            Seek::At(key) => node.child_for(key),
            Seek::After(key) => node.child_after(key),
            Seek::First => (0, node.child(0).unwrap_or(0)),
            Seek::Last => (node.count(), node.child(node.count()).unwrap_or(0)),
        }
    }
}
