//! Scan: reads a range of keys, in both directions.
//!
//! A scan goes from leaf to leaf by key: after a leaf it wants the one that covers the place behind
//! that leaf's fence, so that splits and merges in between can neither hide a key nor show one twice.
//! The scan only guesses its address from the parent's children, and reads several leaves at a time. It
//! discards a leaf that does not cover the place, and looks the place up from the root.

use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::Arc;

use farleaf_fabric::{Buf, GlobalAddr};
use farleaf_pool::Session;

use super::leaf::NodeView;
use super::read::LeafFit;
use super::remembered::UpperNode;
use super::{BlinkFail, BlinkTree};
use crate::VALUE_BYTES_MAX;
use crate::bnode::{Cover, Node, RecordRef, SlotPair, StoredValue};
use crate::retry::{Attempts, RetryPolicy};
use crate::scan_cursor::CursorPlace;
use crate::{Entries, IndexError, ScanCursor, ScanRange};

farleaf_fabric::canaries! {
    pub SCAN_BACK = "scan-back", "a scan takes all of a leaf that has taken in the one before it";
}

/// Records read at once, and their bytes.
const RECORDS_AT_ONCE: (usize, usize) = (16, 4 * VALUE_BYTES_MAX);

/// A scan under way.
struct LeafScan<'a> {
    cursor: ScanCursor<'a>,
    /// Leaves that were read ahead, the next one first.
    ahead: VecDeque<(GlobalAddr, Buf)>,
    /// Children of the last parent that were not read yet, the next one first.
    children: VecDeque<GlobalAddr>,
    /// That parent, where copies of parents are kept.
    parent: Option<UpperNode>,
    entries_per_leaf: usize,
}

impl BlinkTree {
    /// Appends up to `limit` pairs of `range` to `out`.
    ///
    /// Cost: height READs for the first leaf; then 1 READ per leaf, up to `scan_batch` of them in
    /// one round trip, and height READs again for every parent; 1 READ for each value in a record.
    pub async fn scan(
        self: &Arc<Self>,
        session: &Session,
        range: ScanRange<'_>,
        limit: usize,
        out: &mut Entries,
    ) -> Result<(), IndexError> {
        let Some(cursor) = ScanCursor::begin(range, limit, out) else { return Ok(()) };
        let (ahead, children) = Default::default();
        let mut scan = LeafScan { cursor, ahead, children, parent: None, entries_per_leaf: 0 };
        let mut attempts = Attempts::new(&RetryPolicy::WAY);
        loop {
            let wanted = scan.cursor.wanted(out);
            let leaf = match self.next_leaf(session, &mut scan, wanted).await {
                Ok(leaf) => leaf,
                Err(BlinkFail::Restart) => {
                    scan.children.clear();
                    self.again(session, &mut attempts).await?;
                    continue;
                }
                Err(BlinkFail::Error(error)) => return Err(error),
            };
            let node = match self.view(0, leaf.words()) {
                NodeView::Node(node) => node,
                NodeView::Guarded(leaf) => {
                    // A leaf of the usual fill has seven pairs in ten slots.
                    scan.entries_per_leaf = leaf.count().max(leaf.slots() * 6 / 10).max(1);
                    let fence = if range.reverse { leaf.low_fence() } else { leaf.high_fence() };
                    let pairs = leaf.pairs().unwrap_or_default();
                    take_slots(pairs, &scan.cursor, out);
                    if !scan.cursor.skip_to(fence.as_deref(), out) {
                        return Ok(());
                    }
                    continue;
                }
            };
            // As many as this leaf would have if it were filled as usual.
            let usual = node.count() * node.capacity_bytes() * 6 / 10 / node.used_bytes().max(1);
            scan.entries_per_leaf = node.count().max(usual).max(1);
            if !self.take_leaf(session, &node, &mut scan.cursor, out).await? {
                return Ok(());
            }
        }
    }

    /// The leaf that covers the cursor's place.
    async fn next_leaf(
        self: &Arc<Self>,
        session: &Session,
        scan: &mut LeafScan<'_>,
        wanted: usize,
    ) -> Result<Buf, BlinkFail> {
        if scan.ahead.is_empty() && !scan.children.is_empty() {
            self.read_ahead(session, scan, wanted).await?;
        }
        if let Some((addr, leaf)) = scan.ahead.pop_front() {
            if self.is_read_ahead(scan, &leaf, addr) {
                return Ok(leaf);
            }
            scan.ahead.clear();
            scan.children.clear();
        }
        let seek = scan.cursor.seek();
        if self.remembered.is_some() {
            return self.next_by_copies(session, scan).await;
        }
        if self.root(session).await?.1 == 0 {
            return Ok(self.node_at(session, seek, 0).await?.1);
        }
        let (_, parent) = self.node_at(session, seek, 1).await?;
        let node = Node::new(&self.layout, parent.words());
        let first = self.children_from(&node, &scan.cursor, &mut scan.children)?;
        let leaf = self.read_node(session, first, 0).await?;
        match Node::new(&self.layout, leaf.words()).covers_place(seek) {
            Cover::Inside => Ok(leaf),
            // The leaf was split since its parent was read, or its parent lacks a separator.
            _ => {
                scan.children.clear();
                Ok(self.node_at(session, scan.cursor.seek(), 0).await?.1)
            }
        }
    }

    /// The child of a parent that has the cursor's place; those behind it go into `children`.
    fn children_from(
        &self,
        node: &Node<'_, u64>,
        cursor: &ScanCursor<'_>,
        children: &mut VecDeque<GlobalAddr>,
    ) -> Result<GlobalAddr, IndexError> {
        let (index, first) = node.child_at_place(cursor.seek());
        let beside: &mut dyn Iterator<Item = usize> = if cursor.is_reverse() {
            &mut (0..index).rev()
        } else {
            &mut (index + 1..=node.count())
        };
        let mut fence = Vec::new();
        for child in beside {
            // Children that lie wholly outside the range are not wanted.
            let bound = if cursor.is_reverse() { child } else { child - 1 };
            if node.separator(bound, &mut fence) && cursor.ends_before(&fence) {
                break;
            }
            children.push_back(self.pointer(node.child(child).unwrap_or(0), self.meta)?);
        }
        self.pointer(first, self.meta)
    }

    /// Returns whether a leaf that was read ahead is the one that covers the cursor's place, and whole.
    fn is_read_ahead(&self, scan: &LeafScan<'_>, leaf: &Buf, addr: GlobalAddr) -> bool {
        let view = self.view(0, leaf.words());
        let is_it = self.is_current(leaf, addr, 0)
            && view.covers_place(scan.cursor.seek()) == Cover::Inside;
        let Some(parent) = &scan.parent else { return is_it };
        let pointer = parent.pointer(addr);
        let is_proven = is_it && self.is_born_by(leaf.words(), pointer.view);
        if !is_proven {
            self.refuse(&pointer);
        }
        // One without neighbours may be giving way to a loaded tree.
        let is_lone = view.right() == 0 && view.low().is_none();
        is_proven && !is_lone && !self.has_torn_slots(0, leaf.words())
    }

    /// The leaf that covers the cursor's place, by the copy of its parent; the parent's next children are to be read
    /// ahead.
    async fn next_by_copies(
        self: &Arc<Self>,
        session: &Session,
        scan: &mut LeafScan<'_>,
    ) -> Result<Buf, BlinkFail> {
        let seek = scan.cursor.seek();
        scan.parent = None;
        if let Some(parent) = self.parent_of(session, seek, &mut None).await? {
            let node = Node::new(&self.layout, parent.node.words());
            let first = self.children_from(&node, &scan.cursor, &mut scan.children)?;
            let pointer = parent.pointer(first);
            let leaf = self.read_fitting(session, &pointer, 0, LeafFit::All(seek)).await?;
            if self.view(0, leaf.words()).covers_place(seek) == Cover::Inside {
                scan.parent = Some(parent);
                return Ok(leaf);
            }
            self.refuse(&pointer);
            scan.children.clear();
        }
        Ok(self.proven_at(session, seek, 0, LeafFit::All(seek)).await?.1)
    }

    /// Reads as many of the parent's next children as the scan probably needs. 1 round trip.
    async fn read_ahead(
        &self,
        session: &Session,
        scan: &mut LeafScan<'_>,
        wanted: usize,
    ) -> Result<(), BlinkFail> {
        let leaves = wanted.div_ceil(scan.entries_per_leaf.max(1));
        let leaves = leaves.clamp(1, self.options.scan_batch.max(1)).min(scan.children.len());
        let places: Vec<GlobalAddr> = scan.children.iter().take(leaves).copied().collect();
        let images = self.read_images(session, &places, 0).await?;
        scan.children.drain(..leaves);
        scan.ahead.extend(places.into_iter().zip(images));
        Ok(())
    }

    /// Takes the leaf's pairs; returns whether there is more to come.
    pub async fn take_leaf(
        &self,
        session: &Session,
        leaf: &Node<'_, u64>,
        cursor: &mut ScanCursor<'_>,
        out: &mut Entries,
    ) -> Result<bool, IndexError> {
        self.take_pairs(session, leaf, cursor, out).await?;
        let mut fence = Vec::new();
        let more = match cursor.is_reverse() {
            true => leaf.low_fence(&mut fence),
            false => leaf.high_fence(&mut fence),
        };
        Ok(cursor.skip_to(more.then_some(&fence), out))
    }

    /// Takes pairs of the range that another has gathered, all from the place to `fence`; returns whether there is
    /// more to come.
    pub async fn take_pairs_until<'p>(
        &self,
        session: &Session,
        pairs: impl Iterator<Item = (&'p [u8], StoredValue, &'p [u8])>,
        fence: Option<&[u8]>,
        cursor: &mut ScanCursor<'_>,
        out: &mut Entries,
    ) -> Result<bool, IndexError> {
        let mut pending = Vec::new();
        for (key, stored, value) in pairs.take(cursor.wanted(out)) {
            self.take_pair(session, (key, stored, value), &mut pending, out).await?;
        }
        self.take_records(session, &mut pending, out).await?;
        Ok(cursor.skip_to(fence, out))
    }

    /// Appends the leaf's pairs that `cursor` wants to `out`.
    async fn take_pairs(
        &self,
        session: &Session,
        node: &Node<'_, u64>,
        cursor: &ScanCursor<'_>,
        out: &mut Entries,
    ) -> Result<(), IndexError> {
        let (range, place) = (cursor.range(), cursor.place());
        let first = match range.from {
            Bound::Unbounded => 0,
            Bound::Included(key) => node.lower_bound(key),
            Bound::Excluded(key) => node.upper_bound(key),
        };
        let last = match range.to {
            Bound::Unbounded => node.count(),
            Bound::Included(key) => node.upper_bound(key),
            Bound::Excluded(key) => node.lower_bound(key),
        };
        // The leaf may have taken in the neighbour that the scan has been through already.
        let (first, last) = match place {
            _ if SCAN_BACK.is_armed() => (first, last),
            CursorPlace::End => (first, last),
            CursorPlace::Below(key) => (first, last.min(node.lower_bound(key))),
            CursorPlace::At(key) if range.reverse => (first, last.min(node.upper_bound(key))),
            CursorPlace::At(key) => (first.max(node.lower_bound(key)), last),
            CursorPlace::After(key) => (first.max(node.upper_bound(key)), last),
        };
        let mut indices = first..last.max(first);
        let wanted = cursor.wanted(out);
        if range.reverse {
            indices.start = indices.start.max(indices.end.saturating_sub(wanted));
        } else {
            indices.end = indices.end.min(indices.start.saturating_add(wanted));
        }
        let (mut key, mut value) = (Vec::new(), Vec::new());
        let mut pending: Vec<(Vec<u8>, RecordRef)> = Vec::new();
        for step in 0..indices.len() {
            let index = if range.reverse { indices.end - 1 - step } else { indices.start + step };
            node.key(index, &mut key);
            let Some(stored) = node.value(index, &mut value) else { return Ok(()) };
            self.take_pair(session, (&key, stored, &value), &mut pending, out).await?;
        }
        self.take_records(session, &mut pending, out).await
    }

    /// Appends a pair, or has it wait in `pending` if its value is in a record.
    async fn take_pair(
        &self,
        session: &Session,
        (key, stored, value): (&[u8], StoredValue, &[u8]),
        pending: &mut Vec<(Vec<u8>, RecordRef)>,
        out: &mut Entries,
    ) -> Result<(), IndexError> {
        match stored {
            StoredValue::Inline => {
                self.take_records(session, pending, out).await?;
                out.push(key, value);
            }
            StoredValue::Record(record) => {
                pending.push((key.to_vec(), record));
                let bytes: u64 = pending.iter().map(|(_, record)| record.len).sum();
                if pending.len() >= RECORDS_AT_ONCE.0 || bytes >= RECORDS_AT_ONCE.1 as u64 {
                    self.take_records(session, pending, out).await?;
                }
            }
        }
        Ok(())
    }

    /// Reads the records of `pending` at once and appends the pairs.
    async fn take_records(
        &self,
        session: &Session,
        pending: &mut Vec<(Vec<u8>, RecordRef)>,
        out: &mut Entries,
    ) -> Result<(), IndexError> {
        if pending.is_empty() {
            return Ok(());
        }
        let client = session.client();
        let mut ops = client.ops();
        for (_, record) in &*pending {
            let (addr, bytes) = self.record_place(*record)?;
            ops.read(addr, client.buf(bytes));
        }
        let ops = session.reliable().post_many(ops).await?;
        for (index, (key, record)) in pending.drain(..).enumerate() {
            out.push(&key, self.record_value(ops.buf(index), record)?);
        }
        Ok(())
    }
}

/// Appends the pairs of a guarded leaf, in the order of their keys, that `cursor` wants.
fn take_slots(mut pairs: Vec<SlotPair>, cursor: &ScanCursor<'_>, out: &mut Entries) {
    let (range, place) = (cursor.range(), cursor.place());
    pairs.retain(|(key, _)| {
        let key = key.as_slice();
        let is_ahead = match place {
            CursorPlace::End => true,
            // The leaf may have taken in the neighbour that the scan has been through already.
            _ if SCAN_BACK.is_armed() => true,
            CursorPlace::Below(end) => key < end.as_slice(),
            CursorPlace::At(end) if range.reverse => key <= end.as_slice(),
            CursorPlace::At(start) => key >= start.as_slice(),
            CursorPlace::After(start) => key > start.as_slice(),
        };
        is_ahead && range.holds(key)
    });
    if range.reverse {
        pairs.reverse();
    }
    for (key, value) in pairs.iter().take(cursor.wanted(out)) {
        out.push(key, value);
    }
}
