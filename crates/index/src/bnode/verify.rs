//! Image check: checks every rule that a single image can show.

use super::header::{FLAG_SLOTTED, FLAGS_ALL, Kind, TAG};
use super::layout::{Layout, VALUE_HEAD_BYTES};
use super::slotted::{slots_bytes, value_len};
use super::strings::{common_prefix, leading};
use super::view::{Cover, Node};
use super::words::{HEAD_WORDS, load_at};

/// A fault of a node image.
///
/// [`NodeError::may_be_torn`] tells what reading again can cure from what it cannot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// The image has not the length of a node.
    #[error("image of {words} words instead of {expected}")]
    Length {
        /// Words there are.
        words: usize,
        /// Words of a node.
        expected: usize,
    },
    /// Content and checksum disagree.
    #[error("INV-NODE-4: checksum does not match the content")]
    Sum,
    /// The header is not one of this format.
    #[error("INV-NODE-4: not a node: format tag {0:#04x}")]
    Tag(u8),
    /// The kind is unknown.
    #[error("unknown kind of node {0:#04x}")]
    Kind(u8),
    /// The node was merged away or replaced.
    #[error("node is dead")]
    Dead,
    /// The node belongs to another address.
    #[error("node at {expected:#x} says that it is at {found:#x}")]
    Address {
        /// The address that it was read from.
        expected: u64,
        /// The address that it states.
        found: u64,
    },
    /// The flags are of another layout, or unknown.
    #[error("flags {0:#04x} do not fit the layout")]
    Flags(u8),
    /// A leaf above level 0, or an inner node on it.
    #[error("level {0} does not fit the kind of node")]
    Level(u8),
    /// More entries or separators than allowed.
    #[error("{count} entries where at most {cap} are allowed")]
    Count {
        /// Entries or separators that the header says there are.
        count: usize,
        /// The layout's capacity.
        cap: usize,
    },
    /// Fences are out of order, outside the image, too long, or do not fit the stored prefix.
    #[error("INV-NODE-1: fences are not valid")]
    Fences,
    /// A cell lies outside the heap, overlaps another, or its slot contradicts it.
    #[error("INV-NODE-5: cell of entry {index} is not valid")]
    Cell {
        /// The entry or separator.
        index: usize,
    },
    /// The heap's size is not that of its content.
    #[error("INV-NODE-5: heap accounting is wrong")]
    Heap,
    /// A key or separator is not above the one before it.
    #[error("INV-NODE-2: entry {index} is not above the one before it")]
    Order {
        /// The later of the two.
        index: usize,
    },
    /// A key lies outside of its neighbourhood.
    #[error("INV-HOP-1: slot {index} holds a key outside of its neighbourhood")]
    Place {
        /// The slot.
        index: usize,
    },
    /// A key or separator lies outside the fences.
    #[error("INV-NODE-1: entry {index} is outside the fences")]
    Outside {
        /// The entry or separator.
        index: usize,
    },
    /// A key has a length that the layout does not allow.
    #[error("key {index} has {len} bytes, which the layout does not allow")]
    KeyLength {
        /// The entry or separator.
        index: usize,
        /// Its length.
        len: usize,
    },
    /// A value has a length that the layout does not allow.
    #[error("value {index} is not one of this layout")]
    Value {
        /// The entry.
        index: usize,
    },
    /// A child's address is null.
    #[error("INV-NODE-3: child {index} is null")]
    Child {
        /// The child.
        index: usize,
    },
}

impl NodeError {
    /// Tells whether a read that raced with a write explains it: then read again. All others had a right
    /// checksum and are damage, or come from following a stale address.
    pub fn may_be_torn(&self) -> bool {
        matches!(self, NodeError::Sum)
    }
}

/// Checks a private image read from `expected_addr`: checksum, header, capacities, bounds, order, fences.
///
/// Cost: the checksum, then some nanoseconds an entry; allocates when slotted.
///
/// # Errors
/// The first thing that is wrong.
pub fn verify_image(layout: &Layout, words: &[u64], expected_addr: u64) -> Result<(), NodeError> {
    if words.len() != layout.node_words {
        return Err(NodeError::Length { words: words.len(), expected: layout.node_words });
    }
    let node = Node::new(layout, words);
    if !node.sum_ok() {
        return Err(NodeError::Sum);
    }
    let meta = node.meta();
    let kind = match meta.kind() {
        Kind::Invalid if meta.tag != TAG => return Err(NodeError::Tag(meta.tag)),
        Kind::Invalid => return Err(NodeError::Kind(meta.kind)),
        Kind::Dead => return Err(NodeError::Dead),
        kind => kind,
    };
    if node.self_addr() != expected_addr {
        return Err(NodeError::Address { expected: expected_addr, found: node.self_addr() });
    }
    let slotted = meta.flags & FLAG_SLOTTED != 0;
    if slotted == layout.dense || meta.flags & !FLAGS_ALL != 0 {
        return Err(NodeError::Flags(meta.flags));
    }
    if (kind == Kind::Leaf) != (meta.level == 0) {
        return Err(NodeError::Level(meta.level));
    }
    let cap = if kind == Kind::Leaf { layout.leaf_cap } else { layout.inner_cap };
    if node.count() > cap {
        return Err(NodeError::Count { count: node.count(), cap });
    }
    if !layout.dense {
        verify_heap(&node, kind)?;
    }
    let fences = node.fences();
    if layout.check_head(&node.head(&fences)).is_err() {
        return Err(NodeError::Fences);
    }
    verify_keys(&node, kind)?;
    if kind == Kind::Inner
        && let Some(index) = (0..=node.count()).find(|&index| node.child(index) == Some(0))
    {
        return Err(NodeError::Child { index });
    }
    Ok(())
}

/// Checks lengths and order of all keys or separators, and the outermost against the fences.
fn verify_keys(node: &Node<'_, u64>, kind: Kind) -> Result<(), NodeError> {
    let layout = node.layout();
    let (mut key, mut before) = (Vec::new(), Vec::new());
    let count = node.count();
    for index in 0..count {
        std::mem::swap(&mut key, &mut before);
        let takes = if kind == Kind::Leaf {
            node.key(index, &mut key);
            layout.takes_key(key.len())
        } else {
            node.separator(index, &mut key);
            layout.takes_separator(key.len())
        };
        if !takes {
            return Err(NodeError::KeyLength { index, len: key.len() });
        }
        if index > 0 && before >= key {
            return Err(NodeError::Order { index });
        }
        if index > 0 && index + 1 < count {
            continue;
        }
        // A separator at the high fence would leave nothing for the last child.
        let inside = node.covers(&key) == Cover::Inside
            && (kind == Kind::Leaf || node.covers_after(&key) == Cover::Inside);
        if !inside {
            return Err(NodeError::Outside { index });
        }
    }
    Ok(())
}

/// Checks a slotted image's heap: everything in bounds, nothing overlapping, sizes adding up.
fn verify_heap(node: &Node<'_, u64>, kind: Kind) -> Result<(), NodeError> {
    let (layout, heap, meta) = (node.layout(), node.heap(), node.meta());
    let end = layout.node_bytes();
    let heap_bytes = usize::from(heap.heap_bytes);
    let slots_end = HEAD_WORDS * 8 + slots_bytes(kind, node.count());
    if heap_bytes + slots_end > end || heap.spare != 0 {
        return Err(NodeError::Heap);
    }
    let bottom = end - heap_bytes;
    let mut used = Vec::with_capacity(node.count() + 2);
    let fences = [heap.fence(false), heap.fence(true)];
    for ((offset, len), infinite) in
        fences.into_iter().zip([meta.low_infinite(), meta.high_infinite()])
    {
        let misplaced = if len == 0 { offset != 0 } else { offset < bottom || offset + len > end };
        if misplaced || (infinite && len > 0) {
            return Err(NodeError::Fences);
        }
        used.push((offset, len, None));
    }
    let open = meta.low_infinite() || meta.high_infinite();
    let [low, high] = fences.map(|(offset, len)| node.bytes(offset, len));
    let prefix = if open { 0 } else { common_prefix(low, high) };
    if usize::from(heap.prefix_len) != prefix {
        return Err(NodeError::Fences);
    }
    for index in 0..node.count() {
        let slot = node.slot(kind, index);
        let (offset, len) = (usize::from(slot.offset), node.cell_bytes(kind, slot));
        let misplaced = if len == 0 { offset != 0 } else { offset < bottom || offset + len > end };
        if misplaced || leading(node.bytes(offset, slot.len.into())) != slot.head {
            return Err(NodeError::Cell { index });
        }
        if kind == Kind::Leaf {
            verify_value(node, index, offset + usize::from(slot.len))?;
        }
        used.push((offset, len, Some(index)));
    }
    used.retain(|&(_, len, _)| len > 0);
    used.sort_unstable();
    for pair in used.windows(2) {
        if pair[0].0 + pair[0].1 > pair[1].0 {
            return Err(NodeError::Cell { index: pair[1].2.or(pair[0].2).unwrap_or(0) });
        }
    }
    let total: usize = used.iter().map(|&(_, len, _)| len).sum();
    if total + usize::from(heap.hole_bytes) != heap_bytes {
        return Err(NodeError::Heap);
    }
    Ok(())
}

fn verify_value(node: &Node<'_, u64>, index: usize, at: usize) -> Result<(), NodeError> {
    let layout = node.layout();
    let (len, record) = value_len(load_at(node.words, at) as u16);
    let fits = if record {
        layout.takes_value(load_at(node.words, at + VALUE_HEAD_BYTES + 8) as usize)
    } else {
        len <= layout.inline_value_max && layout.takes_value(len)
    };
    if fits { Ok(()) } else { Err(NodeError::Value { index }) }
}
