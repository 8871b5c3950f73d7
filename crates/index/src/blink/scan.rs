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
use farleaf_pool::canary::Canary;

use super::read::Restarts;
use super::{BlinkFail, BlinkTree};
use crate::bnode::{Cover, Node, RecordRef, Seek, StoredValue};
use crate::index::ScanRange;
use crate::limits::VALUE_BYTES_MAX;
use crate::{Entries, IndexError};

/// Records read at once, and their bytes.
const RECORDS_AT_ONCE: (usize, usize) = (16, 4 * VALUE_BYTES_MAX);

/// The place where a scan goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CursorPlace {
    /// At one end of the key space.
    End,
    /// At a key.
    At(Vec<u8>),
    /// Just above a key.
    After(Vec<u8>),
    /// Just below a key, of a scan that descends.
    Below(Vec<u8>),
}

impl CursorPlace {
    fn seek(&self, reverse: bool) -> Seek<'_> {
        match self {
            CursorPlace::End if reverse => Seek::Last,
            CursorPlace::End => Seek::First,
            CursorPlace::At(key) | CursorPlace::Below(key) => Seek::At(key),
            CursorPlace::After(key) => Seek::After(key),
        }
    }
}

/// A scan under way.
struct Cursor<'a> {
    range: ScanRange<'a>,
    place: CursorPlace,
    /// Leaves that were read ahead, the next one first.
    ahead: VecDeque<(GlobalAddr, Buf)>,
    /// Children of the last parent that were not read yet, the next one first.
    children: VecDeque<GlobalAddr>,
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
        if limit == 0 || is_empty(&range) {
            return Ok(());
        }
        let end = out.len().saturating_add(limit);
        let place = match if range.reverse { range.to } else { range.from } {
            Bound::Unbounded => CursorPlace::End,
            Bound::Included(key) => CursorPlace::At(key.to_vec()),
            // The leaf that ends with a key is the one that the places below it are in, too.
            Bound::Excluded(key) if range.reverse => CursorPlace::At(key.to_vec()),
            Bound::Excluded(key) => CursorPlace::After(key.to_vec()),
        };
        let (ahead, children) = Default::default();
        let mut cursor = Cursor { range, place, ahead, children, entries_per_leaf: 0 };
        let mut restarts = Restarts::default();
        loop {
            let wanted = end - out.len();
            let leaf = match self.next_leaf(session, &mut cursor, wanted).await {
                Ok(leaf) => leaf,
                Err(BlinkFail::Restart) => {
                    cursor.children.clear();
                    restarts.again(self, session).await?;
                    continue;
                }
                Err(BlinkFail::Error(error)) => return Err(error),
            };
            let node = Node::new(&self.layout, leaf.words());
            // As many as this leaf would have if it were filled as usual.
            let usual = node.count() * node.capacity_bytes() * 6 / 10 / node.used_bytes().max(1);
            cursor.entries_per_leaf = node.count().max(usual).max(1);
            self.take_pairs(session, &node, &range, &cursor.place, end, out).await?;
            let mut fence = Vec::new();
            let more = if range.reverse {
                node.low_fence(&mut fence)
            } else {
                node.high_fence(&mut fence)
            };
            if !more || out.len() >= end || is_past(&range, &fence) {
                return Ok(());
            }
            cursor.place =
                if range.reverse { CursorPlace::At(fence) } else { CursorPlace::After(fence) };
        }
    }

    /// The leaf that covers the cursor's place.
    async fn next_leaf(
        self: &Arc<Self>,
        session: &Session,
        cursor: &mut Cursor<'_>,
        wanted: usize,
    ) -> Result<Buf, BlinkFail> {
        if cursor.ahead.is_empty() && !cursor.children.is_empty() {
            self.read_ahead(session, cursor, wanted).await?;
        }
        if let Some((addr, leaf)) = cursor.ahead.pop_front() {
            let node = Node::new(&self.layout, leaf.words());
            if self.is_current(&leaf, addr, 0)
                && cursor.place.seek(cursor.range.reverse).covered(&node) == Cover::Inside
            {
                return Ok(leaf);
            }
            cursor.ahead.clear();
            cursor.children.clear();
        }
        let seek = cursor.place.seek(cursor.range.reverse);
        if self.root(session).await?.1 == 0 {
            return Ok(self.node_at(session, seek, 0).await?.1);
        }
        let (_, parent) = self.node_at(session, seek, 1).await?;
        let node = Node::new(&self.layout, parent.words());
        let (index, first) = seek.child(&node);
        let beside: &mut dyn Iterator<Item = usize> = if cursor.range.reverse {
            &mut (0..index).rev()
        } else {
            &mut (index + 1..=node.count())
        };
        let mut fence = Vec::new();
        for child in beside {
            // Children that lie wholly outside the range are not wanted.
            let bound = if cursor.range.reverse { child } else { child - 1 };
            if node.separator(bound, &mut fence) && is_past(&cursor.range, &fence) {
                break;
            }
            cursor.children.push_back(self.pointer(node.child(child).unwrap_or(0), self.meta)?);
        }
        let reliable = session.reliable();
        let addr = self.pointer(first, self.meta)?;
        let mut leaf = reliable.read(addr, reliable.buf(self.layout.node_bytes())).await?;
        if !self.is_current(&leaf, addr, 0) {
            leaf = self.read_again(session, addr, 0, leaf).await?;
        }
        match seek.covered(&Node::new(&self.layout, leaf.words())) {
            Cover::Inside => Ok(leaf),
            // The leaf was split since its parent was read, or its parent lacks a separator.
            _ => {
                cursor.children.clear();
                Ok(self.node_at(session, cursor.place.seek(cursor.range.reverse), 0).await?.1)
            }
        }
    }

    /// Reads as many of the parent's next children as the scan probably needs. 1 round trip.
    async fn read_ahead(
        &self,
        session: &Session,
        cursor: &mut Cursor<'_>,
        wanted: usize,
    ) -> Result<(), BlinkFail> {
        let client = session.client();
        let leaves = wanted.div_ceil(cursor.entries_per_leaf.max(1));
        let leaves = leaves.clamp(1, self.options.scan_batch.max(1)).min(cursor.children.len());
        let mut ops = client.ops();
        for addr in cursor.children.iter().take(leaves) {
            ops.read(*addr, client.buf(self.layout.node_bytes()));
        }
        let mut ops = session.reliable().post_many(ops).await?;
        for (index, addr) in cursor.children.drain(..leaves).enumerate() {
            cursor.ahead.push_back((addr, ops.take_buf(index)));
        }
        Ok(())
    }

    /// Appends the leaf's pairs from `place` on that are in the range, until `out` has `end` pairs.
    pub(super) async fn take_pairs(
        &self,
        session: &Session,
        node: &Node<'_, u64>,
        range: &ScanRange<'_>,
        place: &CursorPlace,
        end: usize,
        out: &mut Entries,
    ) -> Result<(), IndexError> {
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
            _ if Canary::ScanBack.is_armed() => (first, last),
            CursorPlace::End => (first, last),
            CursorPlace::Below(key) => (first, last.min(node.lower_bound(key))),
            CursorPlace::At(key) if range.reverse => (first, last.min(node.upper_bound(key))),
            CursorPlace::At(key) => (first.max(node.lower_bound(key)), last),
            CursorPlace::After(key) => (first.max(node.upper_bound(key)), last),
        };
        let mut indices = first..last.max(first);
        let wanted = end - out.len();
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
    pub(super) async fn take_pair(
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
    pub(super) async fn take_records(
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

/// Tells whether no key can be in the range.
pub(super) fn is_empty(range: &ScanRange<'_>) -> bool {
    match (range.from, range.to) {
        (Bound::Included(from), Bound::Included(to)) => from > to,
        (Bound::Included(from) | Bound::Excluded(from), Bound::Excluded(to))
        | (Bound::Excluded(from), Bound::Included(to)) => from >= to,
        _ => false,
    }
}

/// Tells whether everything on the far side of `fence` is outside the range: above it, exclusive, when
/// ascending; at or below it when descending.
pub(super) fn is_past(range: &ScanRange<'_>, fence: &[u8]) -> bool {
    if range.reverse {
        match range.from {
            Bound::Unbounded => false,
            Bound::Included(from) => fence < from,
            Bound::Excluded(from) => fence <= from,
        }
    } else {
        match range.to {
            Bound::Unbounded => false,
            Bound::Included(to) | Bound::Excluded(to) => fence >= to,
        }
    }
}
