//! Node split and merge: divides a full image, and joins two sparse ones.

use super::builder::{NodeBuilder, prefix_len};
use super::edit::{ChangeError, NodeMut};
use super::encode::Fences;
use super::header::{Head, Kind};
use super::slotted::slots_bytes;
use super::view::{Cover, Node};
use super::words::{Image, Word};

/// The place at which a node was split.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Split {
    /// High fence of the left node and low fence of the right one: what goes to the parent.
    pub separator: Vec<u8>,
    /// True if the key that the split was for now belongs to the right node.
    pub goes_right: bool,
}

/// Of `total`, what a split leaves on the left: half, or nine tenths if keys arrive in ascending order.
fn left_share(total: usize, at_end: bool) -> usize {
    if at_end { (total * 9).div_ceil(10) } else { total / 2 }
}

impl<I: Image> NodeMut<'_, I> {
    /// Splits a node that has no room for `key`, a key or, in an inner node, a separator.
    ///
    /// This node keeps the lower part, becomes bounded by the separator and gets `right_addr` for its
    /// right sibling; `right` is built afresh with the rest. A leaf is divided in the middle (by bytes
    /// when slotted), or keeps nine tenths if `key` lies behind its last entry; of a single entry and
    /// `key`, each goes to its own side. An inner node gives a separator up to the parent. Neither
    /// image is sealed.
    ///
    /// With entries of very different sizes, `key` may still find no room: then split again. By
    /// `INV-NODE-6` this ends, each split leaving fewer entries beside `key`.
    ///
    /// Cost: copies of the node; a few microseconds per KiB at most.
    ///
    /// # Errors
    /// [`ChangeError::NothingToSplit`] if nothing can be divided, others if `key` does not belong here.
    /// Nothing was changed.
    pub fn split_for<J: Image>(
        &mut self,
        key: &[u8],
        right: &mut NodeMut<'_, J>,
        right_addr: u64,
        right_incarnation: u16,
    ) -> Result<Split, ChangeError> {
        assert!(right.layout == self.layout, "both halves have the same layout");
        let node = self.as_node();
        let kind = node.kind();
        let fits = match kind {
            Kind::Leaf => self.layout.takes_key(key.len()),
            Kind::Inner => self.layout.takes_separator(key.len()),
            Kind::Dead | Kind::Invalid => return Err(ChangeError::WrongKind),
        };
        if !fits {
            return Err(ChangeError::BadKey { len: key.len() });
        }
        if node.covers(key) != Cover::Inside {
            return Err(ChangeError::OutsideFences);
        }
        let old = self.copy();
        let old = Node::new(self.layout, &old);
        let fences = old.fences();
        let cut = match (kind, self.layout.dense) {
            (Kind::Leaf, _) if old.leaf_count() < 2 => cut_single(&old, key)?,
            (Kind::Leaf, true) => cut_dense_leaf(&old, key),
            (_, true) => cut_dense_inner(&old, key)?,
            (_, false) => cut_slotted(&old, kind, key, &fences)?,
        };
        let goes_right = key > &cut.separator[..];
        self.part(&old, &fences, &cut, right, (right_addr, right_incarnation))?;
        Ok(Split { separator: cut.separator, goes_right })
    }

    /// Cuts a leaf at `bound`, a fence strictly between its own: this node keeps the keys up to it,
    /// `right` is built afresh with the rest. Either may be empty. Neither is sealed.
    ///
    /// # Errors
    /// [`ChangeError`] if this is no leaf or the bound is none of it. Nothing was changed.
    pub fn cut_leaf_at<J: Image>(
        &mut self,
        bound: &[u8],
        right: &mut NodeMut<'_, J>,
        right_addr: u64,
    ) -> Result<Split, ChangeError> {
        let node = self.as_node();
        if node.kind() != Kind::Leaf {
            return Err(ChangeError::WrongKind);
        }
        if !self.layout.takes_separator(bound.len()) {
            return Err(ChangeError::BadKey { len: bound.len() });
        }
        if [node.covers(bound), node.covers_after(bound)] != [Cover::Inside; 2] {
            return Err(ChangeError::OutsideFences);
        }
        let old = self.copy();
        let old = Node::new(self.layout, &old);
        let fences = old.fences();
        let (left, count) = (old.upper_bound(bound), old.leaf_count());
        let cut = Cut { left, right: (left, count), separator: bound.to_vec() };
        self.part(&old, &fences, &cut, right, (right_addr, 0))?;
        Ok(Split { separator: cut.separator, goes_right: false })
    }

    /// Keeps the left part of `old`, which this node is, and builds `right` afresh with the right one.
    fn part<J: Image>(
        &mut self,
        old: &Node<'_, u64>,
        fences: &Fences,
        cut: &Cut,
        right: &mut NodeMut<'_, J>,
        (right_addr, incarnation): (u64, u16),
    ) -> Result<(), ChangeError> {
        let (head, separator) = (old.head(fences), Some(&cut.separator[..]));
        let right_head = Head { addr: right_addr, incarnation, low: separator, ..head };
        let left_head = Head { right: right_addr, high: separator, ..head };
        let [mut new_left, mut new_right] = [0, 0].map(|_| vec![0; self.layout.node_words]);
        copy_part(old, &right_head, cut.right, &mut new_right)?;
        copy_part(old, &left_head, (0, cut.left), &mut new_left)?;
        self.image.assign(1, &new_left[1..]);
        right.image.assign(0, &new_right);
        Ok(())
    }

    /// Absorbs the node to the right: its content, high fence and right sibling. The other is left as
    /// it is, and this one unsealed.
    ///
    /// # Errors
    /// [`ChangeError::NotNeighbours`] if this node's high fence is not the other's low one or they are
    /// not of one kind and level, [`ChangeError::NoRoom`] if both together do not fit. Nothing was
    /// changed.
    pub fn merge_right<W: Word>(&mut self, right: &Node<'_, W>) -> Result<(), ChangeError> {
        let mut words = vec![0; self.layout.node_words];
        right.copy_to(&mut words);
        let right = Node::new(self.layout, &words);
        let old = self.copy();
        let left = Node::new(self.layout, &old);
        let Some(join) = Join::new(&left, &right) else {
            return Err(ChangeError::NotNeighbours);
        };
        if join.entries > join.entries_max || join.used_bytes > join.capacity_bytes {
            return Err(ChangeError::NoRoom);
        }
        let kind = left.kind();
        let mut new = vec![0; self.layout.node_words];
        let fences = Fences { low: left.fences().low, high: right.fences().high };
        let head = Head { right: right.right(), ..left.head(&fences) };
        let mut builder = NodeBuilder::start(self.layout, &mut new, kind, &head)?;
        builder.push_part(&left, (0, left.count()))?;
        if kind == Kind::Inner {
            let child = left.child(left.inner_count()).unwrap_or(0);
            builder.push_separator(&join.fence, child)?;
        }
        builder.push_part(&right, (0, right.count()))?;
        builder.finish(right.child(right.inner_count()).unwrap_or(0));
        self.image.assign(1, &new[1..]);
        Ok(())
    }
}

impl<W: Word> Node<'_, W> {
    /// Tells whether this node and its right neighbour fit into one that is then full to `fill_percent` at
    /// most. `false` if they are not neighbours.
    pub fn can_merge<V: Word>(&self, right: &Node<'_, V>, fill_percent: usize) -> bool {
        Join::new(self, right).is_some_and(|join| {
            join.entries <= join.entries_max
                && join.used_bytes <= join.capacity_bytes * fill_percent.min(100) / 100
        })
    }
}

/// Two neighbours as one node.
struct Join {
    /// The fence between them.
    fence: Vec<u8>,
    /// Entries or separators, and how many are allowed.
    entries: usize,
    entries_max: usize,
    used_bytes: usize,
    capacity_bytes: usize,
}

impl Join {
    fn new<W: Word, V: Word>(left: &Node<'_, W>, right: &Node<'_, V>) -> Option<Self> {
        let (layout, kind) = (left.layout, left.kind());
        let (ours, theirs) = (left.fences(), right.fences());
        let fence = ours.high?;
        let same = kind == right.kind()
            && matches!(kind, Kind::Leaf | Kind::Inner)
            && left.level() == right.level()
            && theirs.low.as_deref() == Some(&fence[..]);
        if !same {
            return None;
        }
        let inner = kind == Kind::Inner;
        // The fence between two inner nodes comes down as a separator.
        let entries = left.count() + right.count() + usize::from(inner);
        let used_bytes = if layout.dense {
            left.used_bytes() + right.used_bytes() + if inner { layout.key_words * 8 } else { 0 }
        } else {
            let prefix = prefix_len(ours.low.as_deref(), theirs.high.as_deref());
            let cells = cells_bytes(left, prefix) + cells_bytes(right, prefix);
            let middle = if inner { fence.len().saturating_sub(prefix) } else { 0 };
            let fences = [&ours.low, &theirs.high];
            let fences: usize = fences.into_iter().flatten().map(Vec::len).sum();
            slots_bytes(kind, entries) + cells + middle + fences
        };
        Some(Self {
            fence,
            entries,
            entries_max: if inner { layout.inner_cap } else { layout.leaf_cap },
            used_bytes,
            capacity_bytes: left.capacity_bytes(),
        })
    }
}

/// Bytes of all cells of a slotted node if its keys had a prefix of `prefix` bytes, which is not longer
/// than the one they have.
fn cells_bytes<W: Word>(node: &Node<'_, W>, prefix: usize) -> usize {
    let heap = node.heap();
    let others =
        usize::from(heap.hole_bytes) + usize::from(heap.low_len) + usize::from(heap.high_len);
    usize::from(heap.heap_bytes).saturating_sub(others)
        + node.count() * heap.prefix().saturating_sub(prefix)
}

/// The parts into which a node is cut: the first `left` entries stay, those of `right` (from, to) leave.
struct Cut {
    left: usize,
    right: (usize, usize),
    separator: Vec<u8>,
}

/// A leaf of one entry: it and `key` part ways.
fn cut_single(old: &Node<'_, u64>, key: &[u8]) -> Result<Cut, ChangeError> {
    let (mut only, mut separator) = (Vec::new(), Vec::new());
    if !old.key(0, &mut only) || only == key {
        return Err(ChangeError::NothingToSplit);
    }
    let left = usize::from(&only[..] < key);
    if left == 1 {
        old.layout.separator(&only, key, &mut separator);
    } else {
        old.layout.separator(key, &only, &mut separator);
    }
    Ok(Cut { left, right: (left, 1), separator })
}

/// A dense leaf of at least two entries: both sides get one.
fn cut_dense_leaf(old: &Node<'_, u64>, key: &[u8]) -> Cut {
    let count = old.leaf_count();
    let left = left_share(count, old.lower_bound(key) == count).clamp(1, count - 1);
    let mut separator = Vec::new();
    old.key(left - 1, &mut separator);
    Cut { left, right: (left, count), separator }
}

/// A dense inner node: a separator moves up.
fn cut_dense_inner(old: &Node<'_, u64>, key: &[u8]) -> Result<Cut, ChangeError> {
    let count = old.inner_count();
    if count == 0 {
        return Err(ChangeError::NothingToSplit);
    }
    let left = left_share(count, old.child_for(key).0 == count).min(count - 1);
    let mut separator = Vec::new();
    old.separator(left, &mut separator);
    Ok(Cut { left, right: (left + 1, count), separator })
}

/// A slotted leaf of at least two entries, or a slotted inner node: the place nearest to the wanted
/// share of the bytes at which both sides fit with their new fence.
///
/// There is one. With `U` the bytes in use, cut a leaf behind its first entry `e`: the left part fits by
/// INV-NODE-6, and the right one has `U + |separator| - |low| - slot(e) - cell(e)` bytes, which is
/// below `U` since the separator is not longer than `e`'s key, hence than `|low| + cell(e)`. The same
/// holds for an inner node that gives up its first separator.
fn cut_slotted(
    old: &Node<'_, u64>,
    kind: Kind,
    key: &[u8],
    fences: &Fences,
) -> Result<Cut, ChangeError> {
    let leaf = kind == Kind::Leaf;
    let (count, position) = if leaf {
        (old.leaf_count(), old.lower_bound(key))
    } else {
        (old.inner_count(), old.child_for(key).0)
    };
    if count == 0 {
        return Err(ChangeError::NothingToSplit);
    }
    let slot_bytes = slots_bytes(kind, 1) - slots_bytes(kind, 0);
    let mut bytes_before = vec![0];
    let mut total = 0;
    for index in 0..count {
        total += slot_bytes + old.cell_bytes(kind, old.slot(kind, index));
        bytes_before.push(total);
    }
    let fence_len = |fence: &Option<Vec<u8>>| fence.as_ref().map_or(0, Vec::len);
    let (low, high) = (fence_len(&fences.low), fence_len(&fences.high));
    let most = old.layout.payload_bytes() - slots_bytes(kind, 0);
    let (mut below, mut above, mut separator) = (Vec::new(), Vec::new(), Vec::new());
    let mut try_cut = |left: usize| {
        // The right side of an inner node starts behind the separator that moves up.
        let rest = if leaf { left } else { left + 1 };
        if leaf {
            old.key(left - 1, &mut below);
            old.key(left, &mut above);
            old.layout.separator(&below, &above, &mut separator);
        } else {
            old.separator(left, &mut separator);
        }
        let left_bytes = low + separator.len() + bytes_before[left];
        let right_bytes = separator.len() + high + total - bytes_before[rest];
        (left_bytes <= most && right_bytes <= most).then(|| Cut {
            left,
            right: (rest, count),
            separator: separator.clone(),
        })
    };
    let (first, last) = if leaf { (1, count - 1) } else { (0, count - 1) };
    let share = left_share(total, position == count);
    let wanted = bytes_before.partition_point(|&bytes| bytes < share).clamp(first, last);
    (0..count)
        .flat_map(|distance| [wanted.checked_sub(distance), Some(wanted + distance)])
        .flatten()
        .filter(|cut| (first..=last).contains(cut))
        .find_map(&mut try_cut)
        .ok_or(ChangeError::Damaged)
}

/// Builds a node from a part of another; children go from the part's first to one behind its last.
fn copy_part(
    old: &Node<'_, u64>,
    head: &Head<'_>,
    (from, to): (usize, usize),
    new: &mut [u64],
) -> Result<(), ChangeError> {
    let mut builder = NodeBuilder::start(old.layout, new, old.kind(), head)?;
    builder.push_part(old, (from, to))?;
    builder.finish(old.child(to).unwrap_or(0));
    Ok(())
}
