//! Node layout: sizes and capacities of nodes in both layouts.

use super::words::HEAD_WORDS;
use crate::spec::{KEY_BYTES_MAX, KeyFormat, Spec, ValueFormat};

/// Largest node in bytes.
pub const NODE_BYTES_MAX: usize = 65536;
/// Smallest node in bytes.
pub const NODE_BYTES_MIN: usize = 256;

/// Bytes of a record reference in a slotted leaf: address and length.
pub(super) const RECORD_BYTES: usize = 16;
/// Bytes before a value in a slotted leaf: its length and whether it is a record.
pub(super) const VALUE_HEAD_BYTES: usize = 2;
/// Longest dense key and value in bytes.
const DENSE_KEY_MAX: usize = 64;
const DENSE_VALUE_MAX: usize = 256;
/// Fewest entries or separators that a capacity may allow.
const CAP_MIN: usize = 2;

/// The parts that a [`Layout`] is made from. Every node of a tree has the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayoutOptions {
    /// Size of a node: a power of two, [`NODE_BYTES_MIN`] to [`NODE_BYTES_MAX`].
    pub node_bytes: usize,
    /// Keys of the tree.
    pub key: KeyFormat,
    /// Values of the tree.
    pub value: ValueFormat,
    /// Most entries in a leaf, if fewer than fit; at least 2.
    pub cap_leaf: Option<u16>,
    /// Most separators in an inner node, if fewer than fit; at least 2.
    pub cap_inner: Option<u16>,
}

impl LayoutOptions {
    /// Nodes of `node_bytes` with all the capacity that they have.
    pub fn new(node_bytes: usize, key: KeyFormat, value: ValueFormat) -> Self {
        Self { node_bytes, key, value, cap_leaf: None, cap_inner: None }
    }
}

/// Why there is no layout for some [`LayoutOptions`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// The node size is no power of two or out of range.
    #[error("node size {0} is not a power of two from {NODE_BYTES_MIN} to {NODE_BYTES_MAX} bytes")]
    NodeBytes(usize),
    /// Keys are longer than any layout takes.
    #[error("keys of {0} bytes: the longest key is {KEY_BYTES_MAX} bytes")]
    KeyBytes(usize),
    /// Two fences and an entry of such keys would not fit in a node.
    #[error(
        "keys of {key} bytes do not fit in nodes of {node_bytes} bytes, which take keys up to {key_max}; \
         such keys need nodes of at least {node_least} bytes"
    )]
    KeyForNode {
        /// Longest key asked for.
        key: usize,
        /// Node size asked for.
        node_bytes: usize,
        /// Longest key that nodes of that size take.
        key_max: usize,
        /// Smallest node size that takes such keys.
        node_least: usize,
    },
    /// A dense node would hold fewer than two entries or separators.
    #[error(
        "two entries do not fit in nodes of {node_bytes} bytes; they need at least {node_least} bytes"
    )]
    EntryForNode {
        /// Node size asked for.
        node_bytes: usize,
        /// Smallest node size that takes two entries.
        node_least: usize,
    },
    /// A capacity is below 2 or more than fits.
    #[error("capacity {cap} is not from {CAP_MIN} to the {fits} that fit")]
    Capacity {
        /// Capacity asked for.
        cap: usize,
        /// The number that fits.
        fits: usize,
    },
}

/// Sizes and capacities of a tree's nodes, worked out once from [`LayoutOptions`].
///
/// Keys of 8 to 64 and values of 0 to 256 bytes that are both fixed and multiples of 8 make the
/// *dense* layout; all others make the *slotted* one. See the [module page](super).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    pub(super) options: LayoutOptions,
    pub(super) node_words: usize,
    pub(super) dense: bool,
    /// Dense: words of a key and of an entry.
    pub(super) key_words: usize,
    pub(super) stride: usize,
    /// Entries and separators for which there is space; counts read from an image are cut to these.
    pub(super) leaf_slots: usize,
    pub(super) inner_slots: usize,
    pub(super) leaf_cap: usize,
    pub(super) inner_cap: usize,
    pub(super) key_max: usize,
    pub(super) inline_value_max: usize,
    /// Bound into every checksum.
    pub(super) tree: u64,
    /// Leaves are cut at a key of theirs, not at the shortest string between two.
    pub(super) exact_cuts: bool,
}

impl Layout {
    /// Works out the layout for `options`.
    ///
    /// # Errors
    /// [`LayoutError`] if the node size is not allowed, a capacity cannot be had, or the largest keys
    /// are too large for `INV-NODE-6` (see the [module page](super)) to hold.
    pub fn new(options: LayoutOptions) -> Result<Self, LayoutError> {
        let LayoutOptions { node_bytes, key, value, .. } = options;
        if !node_bytes.is_power_of_two() || !(NODE_BYTES_MIN..=NODE_BYTES_MAX).contains(&node_bytes)
        {
            return Err(LayoutError::NodeBytes(node_bytes));
        }
        let (KeyFormat::Fixed(key_max) | KeyFormat::Bytes { max: key_max }) = key;
        if key_max > KEY_BYTES_MAX {
            return Err(LayoutError::KeyBytes(key_max));
        }
        let mut layout = Self {
            options,
            node_words: node_bytes / 8,
            dense: false,
            key_words: 0,
            stride: 0,
            leaf_slots: 0,
            inner_slots: 0,
            leaf_cap: 0,
            inner_cap: 0,
            key_max,
            inline_value_max: 0,
            tree: 0,
            exact_cuts: false,
        };
        match (key, value) {
            (KeyFormat::Fixed(key), ValueFormat::Fixed(value))
                if key > 0
                    && key.is_multiple_of(8)
                    && key <= DENSE_KEY_MAX
                    && value.is_multiple_of(8)
                    && value <= DENSE_VALUE_MAX =>
            {
                layout.set_dense(key / 8, value / 8)?;
            }
            _ => layout.set_slotted()?,
        }
        layout.leaf_cap = capacity(options.cap_leaf, layout.leaf_slots)?;
        layout.inner_cap = capacity(options.cap_inner, layout.inner_slots)?;
        Ok(layout)
    }

    /// The same geometry for one tree of its own: checksums are bound to `tree`, so that a node of
    /// another tree, met by an old pointer, does not pass for one of this.
    #[must_use]
    pub fn for_tree(self, tree: u64) -> Self {
        Layout { tree, ..self }
    }

    /// The same geometry, whose leaves end at the largest key that they held when they were cut. So what a leaf's
    /// entries say of ranges of keys that end at theirs ends where the leaf does.
    #[must_use]
    pub fn with_exact_cuts(self) -> Self {
        Layout { exact_cuts: true, ..self }
    }

    /// The number that its checksums are bound to; see [`Layout::for_tree`].
    pub fn tree(&self) -> u64 {
        self.tree
    }

    fn set_dense(&mut self, key_words: usize, value_words: usize) -> Result<(), LayoutError> {
        let slots = |node_bytes: usize| {
            let payload = node_bytes / 8 - HEAD_WORDS;
            let fences = if key_words == 1 { 0 } else { 2 * key_words };
            let space = payload.saturating_sub(fences);
            (space / (key_words + value_words), space.saturating_sub(1) / (key_words + 1))
        };
        let node_bytes = self.options.node_bytes;
        let enough = |node_bytes| {
            let (leaf, inner) = slots(node_bytes);
            leaf >= CAP_MIN && inner >= CAP_MIN
        };
        if !enough(node_bytes) {
            return Err(LayoutError::EntryForNode { node_bytes, node_least: node_least(enough) });
        }
        self.dense = true;
        self.key_words = key_words;
        self.stride = key_words + value_words;
        (self.leaf_slots, self.inner_slots) = slots(node_bytes);
        self.inline_value_max = value_words * 8;
        Ok(())
    }

    fn set_slotted(&mut self) -> Result<(), LayoutError> {
        // INV-NODE-6: two fences and one entry, with a record reference for a value, or two fences,
        // a separator and its two children, must fit.
        let leaf = 8 + VALUE_HEAD_BYTES + RECORD_BYTES;
        let inner = 8 + 8 + 8;
        let key_max = |node_bytes: usize| (node_bytes - 8 * HEAD_WORDS - leaf.max(inner)) / 3;
        let node_bytes = self.options.node_bytes;
        if self.key_max > key_max(node_bytes) {
            return Err(LayoutError::KeyForNode {
                key: self.key_max,
                node_bytes,
                key_max: key_max(node_bytes).min(KEY_BYTES_MAX),
                node_least: node_least(|bytes| self.key_max <= key_max(bytes)),
            });
        }
        let payload_words = self.node_words - HEAD_WORDS;
        self.leaf_slots = payload_words;
        self.inner_slots = (payload_words - 1) / 2;
        let spare = payload_words * 8 - 3 * self.key_max - 8 - VALUE_HEAD_BYTES;
        self.inline_value_max = spare.min(node_bytes / 4);
        Ok(())
    }

    /// The options that this is made from.
    pub fn options(&self) -> &LayoutOptions {
        &self.options
    }

    /// The keys and values that the tree takes.
    #[inline]
    pub fn spec(&self) -> Spec {
        Spec { key: self.options.key, value: self.options.value }
    }

    /// Bytes of a node.
    pub fn node_bytes(&self) -> usize {
        self.node_words * 8
    }

    /// Words of a node: the length of every image.
    pub fn node_words(&self) -> usize {
        self.node_words
    }

    /// Tells whether entries are fixed words rather than slots and a heap.
    pub fn is_dense(&self) -> bool {
        self.dense
    }

    /// Longest key, separator and fence in bytes.
    pub fn key_max(&self) -> usize {
        self.key_max
    }

    /// Longest value in bytes that a leaf holds itself; longer ones are records elsewhere.
    ///
    /// Slotted: a quarter of the node, or less if two fences and one entry with the longest keys leave
    /// less. Dense: the value's size.
    pub fn inline_value_max(&self) -> usize {
        self.inline_value_max
    }

    /// Most entries in a leaf. Dense leaves reach it; slotted ones may be full before.
    pub fn leaf_cap(&self) -> usize {
        self.leaf_cap
    }

    /// Most separators in an inner node, which has one child more.
    pub fn inner_cap(&self) -> usize {
        self.inner_cap
    }

    /// Tells whether a key of this length may be in a leaf.
    pub fn takes_key(&self, len: usize) -> bool {
        self.spec().takes_key(len)
    }

    /// Tells whether a value of this length belongs to the table at all.
    pub fn takes_value(&self, len: usize) -> bool {
        self.spec().takes_value(len)
    }

    /// Tells whether a string of this length may be a separator or a fence.
    pub fn takes_separator(&self, len: usize) -> bool {
        if self.dense { len == self.key_max } else { len <= self.key_max }
    }

    /// Payload bytes of a node.
    pub(super) fn payload_bytes(&self) -> usize {
        (self.node_words - HEAD_WORDS) * 8
    }

    /// Dense: the word where an inner node's children start.
    #[inline(always)]
    pub(super) fn children_at(&self) -> usize {
        HEAD_WORDS + self.inner_slots * self.key_words
    }
}

/// The smallest node size for which `fits`; the largest if none does.
fn node_least(fits: impl Fn(usize) -> bool) -> usize {
    let mut node_bytes = NODE_BYTES_MIN;
    while node_bytes < NODE_BYTES_MAX && !fits(node_bytes) {
        node_bytes *= 2;
    }
    node_bytes
}

fn capacity(cap: Option<u16>, fits: usize) -> Result<usize, LayoutError> {
    match cap.map(usize::from) {
        None => Ok(fits),
        Some(cap) if (CAP_MIN..=fits).contains(&cap) => Ok(cap),
        Some(cap) => Err(LayoutError::Capacity { cap, fits }),
    }
}
