//! Node view: reads a private copy, or a frame that another thread may be writing.

use super::header::{Kind, Meta, RIGHT_WORD, SELF_WORD, VERSION_WORD, meta};
use super::layout::Layout;
use super::words::{SUM_WORD, Word, sum, word};
use crate::Seek;

/// A value too long for a leaf: where it is and how long it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordRef {
    /// Global address of the record.
    pub addr: u64,
    /// Length of the value in bytes.
    pub len: u64,
}

/// A value to be put into a leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value<'a> {
    /// The value itself, at most [`Layout::inline_value_max`] bytes.
    Inline(&'a [u8]),
    /// A reference to it; slotted layouts only.
    Record(RecordRef),
}

/// The form in which a leaf holds a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoredValue {
    /// In the leaf; it has been copied out.
    Inline,
    /// In a record elsewhere.
    Record(RecordRef),
}

/// The place of a key as seen from a node's fences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cover {
    /// At or below the low fence: the node is to the right of the key.
    Below,
    /// The node is responsible.
    Inside,
    /// Above the high fence: go right.
    Above,
}

/// A node that is read.
///
/// No method panics, and each ends in time proportional to the node, for any content of the words. On
/// content that is torn or foreign the answers mean nothing: check the sum, or the latch's version,
/// before acting on them. Methods for leaves do not check that the node is a leaf, nor do those for
/// inner nodes; see [`Node::kind`].
pub struct Node<'a, W: Word> {
    pub(super) layout: &'a Layout,
    pub(super) words: &'a [W],
}

impl<W: Word> Clone for Node<'_, W> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<W: Word> Copy for Node<'_, W> {}

impl<'a, W: Word> Node<'a, W> {
    /// Views `words` as a node.
    ///
    /// # Panics
    /// If there are not exactly [`Layout::node_words`] of them, which is a programmer's error.
    #[inline(always)]
    pub fn new(layout: &'a Layout, words: &'a [W]) -> Self {
        assert!(words.len() == layout.node_words, "an image has the length of the layout's nodes");
        Self { layout, words }
    }

    /// The layout that the node is read by.
    pub fn layout(&self) -> &'a Layout {
        self.layout
    }

    /// The node's words.
    pub fn words(&self) -> &'a [W] {
        self.words
    }

    #[inline(always)]
    pub(super) fn meta(&self) -> Meta {
        meta(self.words)
    }

    /// Returns the kind: a leaf, an inner node, a dead one, or none at all.
    #[inline]
    pub fn kind(&self) -> Kind {
        self.meta().kind()
    }

    /// Level above the leaves.
    #[inline]
    pub fn level(&self) -> u8 {
        self.meta().level
    }

    /// Entries of a leaf, separators of an inner node; as stored, so torn content may say too many.
    #[inline]
    pub fn count(&self) -> usize {
        usize::from(self.meta().count)
    }

    /// Returns the number of earlier uses of the node's memory.
    pub fn incarnation(&self) -> u16 {
        self.meta().incarnation
    }

    /// The node's own address.
    #[inline]
    pub fn self_addr(&self) -> u64 {
        word(self.words, SELF_WORD)
    }

    /// Address of the next node on the level, 0 if there is none.
    #[inline]
    pub fn right(&self) -> u64 {
        word(self.words, RIGHT_WORD)
    }

    /// Version that the image was sealed with.
    #[inline]
    pub fn version(&self) -> u64 {
        word(self.words, VERSION_WORD)
    }

    /// Tells whether the checksum fits the content: the check for every image that a fabric read returned.
    ///
    /// Cost: one hash of the node, about 40 ns per KiB of a private copy.
    #[inline]
    pub fn sum_ok(&self) -> bool {
        word(self.words, SUM_WORD) == sum(self.words, self.layout.tree)
    }

    /// Copies the image into `out`, the lock word included.
    pub fn copy_to(&self, out: &mut [u64]) {
        for (into, from) in out.iter_mut().zip(self.words) {
            *into = from.load();
        }
    }

    /// Puts the low fence (exclusive) into `out`; `false` if the node is open below.
    pub fn low_fence(&self, out: &mut Vec<u8>) -> bool {
        self.fence(false, !self.meta().low_infinite(), out)
    }

    /// Puts the high fence (inclusive) into `out`; `false` if the node is open above.
    pub fn high_fence(&self, out: &mut Vec<u8>) -> bool {
        self.fence(true, !self.meta().high_infinite(), out)
    }

    fn fence(&self, high: bool, is_finite: bool, out: &mut Vec<u8>) -> bool {
        out.clear();
        match (is_finite, self.layout.dense) {
            (false, _) => {}
            (true, true) => self.dense_fence(high, out),
            (true, false) => self.slotted_fence(high, out),
        }
        is_finite
    }

    /// Tells whether these are its fences; `None` is an open end.
    #[inline]
    pub fn has_fences(&self, low: Option<&[u8]>, high: Option<&[u8]>) -> bool {
        // A key is the low fence if it is just outside, the high fence if it is just inside.
        let begins = low.map_or(self.meta().low_infinite(), |low| {
            self.covers(low) == Cover::Below && self.covers_after(low) != Cover::Below
        });
        begins
            && high.map_or(self.meta().high_infinite(), |high| {
                self.covers(high) != Cover::Above && self.covers_after(high) == Cover::Above
            })
    }

    /// Returns the place of `key` as seen from the fences. Any byte string is allowed.
    #[inline]
    pub fn covers(&self, key: &[u8]) -> Cover {
        self.covers_at(key, false)
    }

    /// Returns the place just above `key`: the node wanted by a cursor that has passed `key`.
    #[inline]
    pub fn covers_after(&self, key: &[u8]) -> Cover {
        self.covers_at(key, true)
    }

    /// Returns whether the node covers a place in the order of keys, by its fences.
    #[inline]
    pub fn covers_place(&self, place: Seek<'_>) -> Cover {
        match place {
            Seek::At(key) => self.covers(key),
            Seek::After(key) => self.covers_after(key),
            Seek::First => Cover::Inside,
            Seek::Last if self.right() != 0 => Cover::Above,
            Seek::Last => Cover::Inside,
        }
    }

    #[inline(always)]
    fn covers_at(&self, key: &[u8], after: bool) -> Cover {
        if self.layout.dense {
            self.dense_covers(key, after)
        } else {
            self.slotted_covers(key, after)
        }
    }

    /// Separators that are surely there: `count`, cut to what fits.
    #[inline(always)]
    pub(super) fn inner_count(&self) -> usize {
        self.count().min(self.layout.inner_slots)
    }

    /// Entries that are surely there: `count`, cut to what fits.
    #[inline(always)]
    pub(super) fn leaf_count(&self) -> usize {
        self.count().min(self.layout.leaf_slots)
    }

    /// Inner: index and address of the child that covers `key`.
    #[inline]
    pub fn child_for(&self, key: &[u8]) -> (usize, u64) {
        self.child_at(key, false)
    }

    /// Inner: index and address of the child that covers the place just above `key`.
    #[inline]
    pub fn child_after(&self, key: &[u8]) -> (usize, u64) {
        self.child_at(key, true)
    }

    /// Inner: index and address of the child that covers a place in the order of keys.
    #[inline]
    pub fn child_at_place(&self, place: Seek<'_>) -> (usize, u64) {
        match place {
            Seek::At(key) => self.child_for(key),
            Seek::After(key) => self.child_after(key),
            Seek::First => (0, self.child(0).unwrap_or(0)),
            Seek::Last => (self.count(), self.child(self.count()).unwrap_or(0)),
        }
    }

    #[inline(always)]
    fn child_at(&self, key: &[u8], after: bool) -> (usize, u64) {
        let count = self.inner_count();
        if self.layout.dense {
            let index = self.dense_separator_position(count, key, after);
            (index, word(self.words, self.layout.children_at() + index))
        } else {
            let index = self.slotted_position(Kind::Inner, count, key, after).0;
            (index, self.slotted_child(count, index))
        }
    }

    /// Inner: address of child `index`, which is at most the count of separators.
    #[inline]
    pub fn child(&self, index: usize) -> Option<u64> {
        let count = self.inner_count();
        (index <= count).then(|| {
            if self.layout.dense {
                word(self.words, self.layout.children_at() + index)
            } else {
                self.slotted_child(count, index)
            }
        })
    }

    /// Inner: index of the child at `addr`.
    pub fn find_child(&self, addr: u64) -> Option<usize> {
        (0..=self.inner_count()).find(|&index| self.child(index) == Some(addr))
    }

    /// Inner: puts separator `index`, the inclusive upper bound of child `index`, into `out`; `false`
    /// if there is none.
    pub fn separator(&self, index: usize, out: &mut Vec<u8>) -> bool {
        out.clear();
        let found = index < self.inner_count();
        if found && self.layout.dense {
            self.dense_key(Kind::Inner, index, out);
        } else if found {
            self.slotted_key(Kind::Inner, index, out);
        }
        found
    }

    /// Leaf: index of `key`, or where it would be inserted.
    #[inline]
    pub fn find(&self, key: &[u8]) -> Result<usize, usize> {
        let count = self.leaf_count();
        let (index, found) = if self.layout.dense {
            self.dense_find(count, key)
        } else {
            self.slotted_position(Kind::Leaf, count, key, false)
        };
        if found { Ok(index) } else { Err(index) }
    }

    /// Leaf: how many keys are below `key`: the index of the first entry of a scan from `key`.
    #[inline]
    pub fn lower_bound(&self, key: &[u8]) -> usize {
        self.bound(key, false)
    }

    /// Leaf: how many keys are at or below `key`: the index of the first entry of a scan past `key`.
    #[inline]
    pub fn upper_bound(&self, key: &[u8]) -> usize {
        self.bound(key, true)
    }

    #[inline(always)]
    fn bound(&self, key: &[u8], after: bool) -> usize {
        let count = self.leaf_count();
        if self.layout.dense {
            self.dense_entry_position(count, key, after)
        } else {
            self.slotted_position(Kind::Leaf, count, key, after).0
        }
    }

    /// Leaf: puts key `index` into `out`; `false` if there is none.
    #[inline]
    pub fn key(&self, index: usize, out: &mut Vec<u8>) -> bool {
        out.clear();
        let found = index < self.leaf_count();
        if found && self.layout.dense {
            self.dense_key(Kind::Leaf, index, out);
        } else if found {
            self.slotted_key(Kind::Leaf, index, out);
        }
        found
    }

    /// Leaf: reads value `index`, into `out` if it is inline. `None` if there is no such entry.
    #[inline]
    pub fn value(&self, index: usize, out: &mut Vec<u8>) -> Option<StoredValue> {
        out.clear();
        if index >= self.leaf_count() {
            None
        } else if self.layout.dense {
            self.dense_value(index, out);
            Some(StoredValue::Inline)
        } else {
            Some(self.slotted_value(index, out))
        }
    }

    /// Leaf: the record that entry `index` refers to, if it refers to one. Nothing is copied.
    #[inline]
    pub fn record(&self, index: usize) -> Option<RecordRef> {
        if self.layout.dense || index >= self.leaf_count() {
            return None;
        }
        self.slotted_record(index)
    }

    /// Bytes in use, out of [`Node::capacity_bytes`]. Holes that compaction would close do not count.
    pub fn used_bytes(&self) -> usize {
        let inner = self.kind() == Kind::Inner;
        if self.layout.dense { self.dense_used(inner) } else { self.slotted_used(inner) }
    }

    /// Bytes that entries, separators, children and, when slotted, fences may take.
    pub fn capacity_bytes(&self) -> usize {
        let layout = self.layout;
        match (layout.dense, self.kind() == Kind::Inner) {
            (true, true) => (layout.inner_cap * (layout.key_words + 1) + 1) * 8,
            (true, false) => layout.leaf_cap * layout.stride * 8,
            (false, _) => layout.payload_bytes(),
        }
    }
}
