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
enum CursorPlace {
    /// At one end of the key space.
    End,
    /// At a key.
    At(Vec<u8>),
    /// Just above a key.
    After(Vec<u8>),
    /// Just below a key, of a scan that descends.
    Below(Vec<u8>),
}

/// A scan that goes from leaf to leaf.
pub struct Passage<'a> {
    range: ScanRange<'a>,
    place: CursorPlace,
    end: usize,
}

impl<'a> Passage<'a> {
    /// A scan of at most `limit` pairs of `range` that are appended to `out`; `None` if there can
    /// be none.
    pub(crate) fn begin(range: ScanRange<'a>, limit: usize, out: &Entries) -> Option<Self> {
        if limit == 0 || is_empty(&range) {
            return None;
        }
        let place = match if range.reverse { range.to } else { range.from } {
            Bound::Unbounded => CursorPlace::End,
            Bound::Included(key) => CursorPlace::At(key.to_vec()),
            // The leaf that ends with a key is the one that the places below it are in, too.
            Bound::Excluded(key) if range.reverse => CursorPlace::At(key.to_vec()),
            Bound::Excluded(key) => CursorPlace::After(key.to_vec()),
        };
        Some(Passage { range, place, end: out.len().saturating_add(limit) })
    }

    /// The next leaf's place in the order of keys.
    pub fn seek(&self) -> Seek<'_> {
        match &self.place {
            CursorPlace::End if self.range.reverse => Seek::Last,
            CursorPlace::End => Seek::First,
            CursorPlace::At(key) | CursorPlace::Below(key) => Seek::At(key),
            CursorPlace::After(key) => Seek::After(key),
        }
    }

    /// Tells whether the scan descends.
    pub fn is_reverse(&self) -> bool {
        self.range.reverse
    }

    /// Pairs that are still wanted.
    pub fn wanted(&self, out: &Entries) -> usize {
        self.end.saturating_sub(out.len())
    }

    /// Tells whether the range ends before the leaf behind this fence.
    pub fn ends_before(&self, fence: &[u8]) -> bool {
        is_past(&self.range, fence)
    }

    /// Takes the leaf's pairs; whether there is more to come.
    pub async fn pass(
        &mut self,
        tree: &BlinkTree,
        session: &Session,
        leaf: &Node<'_, u64>,
        out: &mut Entries,
    ) -> Result<bool, IndexError> {
        tree.take_pairs(session, leaf, self, out).await?;
        let mut fence = Vec::new();
        let more = match self.range.reverse {
            true => leaf.low_fence(&mut fence),
            false => leaf.high_fence(&mut fence),
        };
        Ok(self.skip_to(more.then_some(&fence), out))
    }

    /// Takes pairs of the range that somebody else has gathered, all from the place to `fence`; whether
    /// there is more to come.
    pub async fn pass_pairs<'p>(
        &mut self,
        tree: &BlinkTree,
        session: &Session,
        pairs: impl Iterator<Item = (&'p [u8], StoredValue, &'p [u8])>,
        fence: Option<&[u8]>,
        out: &mut Entries,
    ) -> Result<bool, IndexError> {
        let mut pending = Vec::new();
        for (key, stored, value) in pairs.take(self.wanted(out)) {
            tree.take_pair(session, (key, stored, value), &mut pending, out).await?;
        }
        tree.take_records(session, &mut pending, out).await?;
        Ok(self.skip_to(fence, out))
    }

    /// Tells whether the end that a descending scan comes from is `key`, and not in the range.
    pub fn leaves_out(&self, key: &[u8]) -> bool {
        self.range.to == Bound::Excluded(key)
    }

    /// The end that the scan goes to, and whether it is not in the range.
    pub fn far_end(&self) -> Option<(&[u8], bool)> {
        match if self.range.reverse { self.range.from } else { self.range.to } {
            Bound::Unbounded => None,
            Bound::Included(key) => Some((key, false)),
            Bound::Excluded(key) => Some((key, true)),
        }
    }

    /// Returns the rest of the range in `(low, high]`, which holds the place, and how many pairs are
    /// wanted.
    pub fn rest_in(
        &self,
        low: Option<&[u8]>,
        high: Option<&[u8]>,
        out: &Entries,
    ) -> (Bound<Vec<u8>>, Bound<Vec<u8>>, usize) {
        let owned = |bound: Bound<&[u8]>| bound.map(<[u8]>::to_vec);
        let key_of = |bound: Bound<&[u8]>| match bound {
            Bound::Unbounded => None,
            Bound::Included(key) | Bound::Excluded(key) => Some(key.to_vec()),
        };
        let (mut from, mut to) = (owned(self.range.from), owned(self.range.to));
        match &self.place {
            CursorPlace::End => {}
            CursorPlace::Below(key) => to = Bound::Excluded(key.clone()),
            CursorPlace::After(key) => from = Bound::Excluded(key.clone()),
            CursorPlace::At(key) if !self.range.reverse => from = Bound::Included(key.clone()),
            CursorPlace::At(key) if key_of(self.range.to).as_ref() != Some(key) => {
                to = Bound::Included(key.clone());
            }
            CursorPlace::At(_) => {}
        }
        if self.range.reverse {
            let begins_below = key_of(self.range.from).is_none_or(|key| Some(&*key) <= low);
            if let (Some(low), true) = (low, begins_below) {
                from = Bound::Excluded(low.to_vec());
            }
        } else if let Some(high) = high
            && key_of(self.range.to).is_none_or(|key| *key > *high)
        {
            to = Bound::Included(high.to_vec());
        }
        (from, to, self.end - out.len())
    }

    /// All up to `last`, the key of the last pair, has been seen to; whether there is more to come.
    pub fn go_on_behind(&mut self, last: &[u8], out: &Entries) -> bool {
        let last = last.to_vec();
        self.place =
            if self.range.reverse { CursorPlace::Below(last) } else { CursorPlace::After(last) };
        out.len() < self.end
    }

    /// All up to `fence` has been seen to; whether there is more to come.
    pub fn skip_to(&mut self, fence: Option<&[u8]>, out: &Entries) -> bool {
        let Some(fence) = fence else { return false };
        if out.len() >= self.end || is_past(&self.range, fence) {
            return false;
        }
        let fence = fence.to_vec();
        self.place =
            if self.range.reverse { CursorPlace::At(fence) } else { CursorPlace::After(fence) };
        true
    }
}

/// A scan under way.
struct Cursor<'a> {
    passage: Passage<'a>,
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
        let Some(passage) = Passage::begin(range, limit, out) else { return Ok(()) };
        let (ahead, children) = Default::default();
        let mut cursor = Cursor { passage, ahead, children, entries_per_leaf: 0 };
        let mut restarts = Restarts::default();
        loop {
            let wanted = cursor.passage.wanted(out);
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
            if !cursor.passage.pass(self, session, &node, out).await? {
                return Ok(());
            }
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
                && cursor.passage.seek().covered(&node) == Cover::Inside
            {
                return Ok(leaf);
            }
            cursor.ahead.clear();
            cursor.children.clear();
        }
        let seek = cursor.passage.seek();
        if self.root(session).await?.1 == 0 {
            return Ok(self.node_at(session, seek, 0).await?.1);
        }
        let (_, parent) = self.node_at(session, seek, 1).await?;
        let node = Node::new(&self.layout, parent.words());
        let (index, first) = seek.child(&node);
        let beside: &mut dyn Iterator<Item = usize> = if cursor.passage.is_reverse() {
            &mut (0..index).rev()
        } else {
            &mut (index + 1..=node.count())
        };
        let mut fence = Vec::new();
        for child in beside {
            // Children that lie wholly outside the range are not wanted.
            let bound = if cursor.passage.is_reverse() { child } else { child - 1 };
            if node.separator(bound, &mut fence) && cursor.passage.ends_before(&fence) {
                break;
            }
            cursor.children.push_back(self.pointer(node.child(child).unwrap_or(0), self.meta)?);
        }
        let leaf = self.read_node(session, self.pointer(first, self.meta)?, 0).await?;
        match seek.covered(&Node::new(&self.layout, leaf.words())) {
            Cover::Inside => Ok(leaf),
            // The leaf was split since its parent was read, or its parent lacks a separator.
            _ => {
                cursor.children.clear();
                Ok(self.node_at(session, cursor.passage.seek(), 0).await?.1)
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

    /// Appends the leaf's pairs that `passage` wants to `out`.
    async fn take_pairs(
        &self,
        session: &Session,
        node: &Node<'_, u64>,
        passage: &Passage<'_>,
        out: &mut Entries,
    ) -> Result<(), IndexError> {
        let Passage { range, place, end } = passage;
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

/// Tells whether no key can be in the range.
fn is_empty(range: &ScanRange<'_>) -> bool {
    match (range.from, range.to) {
        (Bound::Included(from), Bound::Included(to)) => from > to,
        (Bound::Included(from) | Bound::Excluded(from), Bound::Excluded(to))
        | (Bound::Excluded(from), Bound::Included(to)) => from >= to,
        _ => false,
    }
}

/// Tells whether everything on the far side of `fence` is outside the range: above it, exclusive, when
/// ascending; at or below it when descending.
fn is_past(range: &ScanRange<'_>, fence: &[u8]) -> bool {
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
