//! Cache: nodes of records in this compute server's memory, up to a budget of bytes, in the order of their keys.
//!
//! A node is what one READ of a leaf of the upper tree brought, as far as headers of leaves have not told better since. A
//! record's range is taken from one node alone: between the record before it, or the node's low fence, and its own key.
//! Nodes are hints: a line's version tells whether a record still holds. The oldest node gives way, as in the paper (FIFO).
//!
//! A record of version 0 names a leaf whose version nobody here knows: an operation READs that leaf's header first.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use farleaf_fabric::GlobalAddr;
use farleaf_index::IndexError;
use farleaf_index::bnode::{Layout, Node};
use farleaf_index::sync::{Mutex, lock};

/// Bytes that a node takes beside its records.
const NODE_BYTES: u64 = 192;

/// A leaf as the upper tree names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LeafRecord {
    pub(super) leaf: GlobalAddr,
    pub(super) version: u64,
}

impl LeafRecord {
    /// As the upper tree holds it.
    pub(super) fn value(self) -> Vec<u8> {
        [self.leaf.word().to_le_bytes(), self.version.to_le_bytes()].concat()
    }

    pub(super) fn of_value(value: &[u8]) -> Option<LeafRecord> {
        let (leaf, version) = value.split_first_chunk::<8>()?;
        let leaf =
            GlobalAddr::from_word(u64::from_le_bytes(*leaf)).filter(|addr| !addr.is_null())?;
        Some(LeafRecord { leaf, version: u64::from_le_bytes(version.try_into().ok()?) })
    }
}

/// A record, and the epoch of the READ that showed its leaf linked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SeenRecord {
    pub(super) record: LeafRecord,
    pub(super) epoch: u64,
}

/// A node of records.
#[derive(Clone, Debug)]
pub(super) struct RecordNode {
    pub(super) low: Option<Vec<u8>>,
    pub(super) high: Option<Vec<u8>>,
    /// The keys of all records, one after the other, and where each ends.
    keys: Vec<u8>,
    ends: Vec<u32>,
    records: Vec<SeenRecord>,
}

impl RecordNode {
    /// The records in a node that was READ in `epoch`.
    ///
    /// # Errors
    /// `Corrupt` for an entry that is no record.
    pub(super) fn new(layout: &Layout, words: &[u64], epoch: u64) -> Result<Self, IndexError> {
        let node = Node::new(layout, words);
        let [mut low, mut high] = [Vec::new(), Vec::new()];
        let low = node.low_fence(&mut low).then_some(low);
        let high = node.high_fence(&mut high).then_some(high);
        let mut records =
            RecordNode { low, high, keys: Vec::new(), ends: Vec::new(), records: Vec::new() };
        let (mut key, mut value) = (Vec::new(), Vec::new());
        for index in 0..node.count() {
            let is_there = node.key(index, &mut key) && node.value(index, &mut value).is_some();
            let record = if is_there { LeafRecord::of_value(&value) } else { None };
            let Some(record) = record else {
                let addr = GlobalAddr::from_word(node.self_addr());
                return Err(IndexError::Corrupt(format!(
                    "entry {index} of the node {addr:?} of records is none"
                )));
            };
            records.push(&key, SeenRecord { record, epoch });
        }
        Ok(records)
    }

    fn push(&mut self, key: &[u8], record: SeenRecord) {
        self.keys.extend_from_slice(key);
        self.ends.push(self.keys.len() as u32);
        self.records.push(record);
    }

    pub(super) fn count(&self) -> usize {
        self.records.len()
    }

    /// The key of record `index`, which is the largest of its leaf.
    pub(super) fn key(&self, index: usize) -> &[u8] {
        let from = index.checked_sub(1).map_or(0, |before| self.ends[before] as usize);
        &self.keys[from..self.ends[index] as usize]
    }

    pub(super) fn record(&self, index: usize) -> SeenRecord {
        self.records[index]
    }

    /// Index of the record that covers `key`, or the place just above it.
    pub(super) fn position(&self, key: &[u8], after: bool) -> usize {
        let (mut from, mut to) = (0, self.count());
        while from < to {
            let middle = from.midpoint(to);
            let is_below = if after { self.key(middle) <= key } else { self.key(middle) < key };
            if is_below {
                from = middle + 1;
            } else {
                to = middle;
            }
        }
        from
    }

    /// Tells whether the node covers `key`, or the place just above it.
    fn covers(&self, key: &[u8], after: bool) -> bool {
        let above = |low: &[u8]| if after { low <= key } else { low < key };
        self.low.as_deref().is_none_or(above)
            && self.high.as_deref().is_none_or(|high| if after { key < high } else { key <= high })
    }

    /// The same with `parts` in place of record `index`.
    fn with(&self, index: usize, parts: &[(Vec<u8>, SeenRecord)]) -> RecordNode {
        let mut node = RecordNode {
            low: self.low.clone(),
            high: self.high.clone(),
            keys: Vec::with_capacity(self.keys.len() + 64),
            ends: Vec::with_capacity(self.count() + 1),
            records: Vec::with_capacity(self.count() + 1),
        };
        for at in 0..self.count() {
            if at == index {
                parts.iter().for_each(|(key, record)| node.push(key, *record));
            } else {
                node.push(self.key(at), self.record(at));
            }
        }
        node
    }

    fn bytes(&self) -> u64 {
        let fences = self.low.as_ref().map_or(0, Vec::len) + self.high.as_ref().map_or(0, Vec::len);
        let entries = self.count() * (size_of::<SeenRecord>() + size_of::<u32>());
        NODE_BYTES + (fences + self.keys.len() + entries) as u64
    }
}

/// The place of a node: its high fence; an open one comes last.
type High = (bool, Vec<u8>);

#[derive(Debug, Default)]
struct State {
    nodes: BTreeMap<High, Arc<RecordNode>>,
    /// The oldest first. A node that has been taken out may still stand here.
    order: VecDeque<High>,
    bytes: u64,
}

impl State {
    fn take_out(&mut self, high: &High) {
        if let Some(node) = self.nodes.remove(high) {
            self.bytes -= node.bytes();
        }
    }

    fn find(&self, key: &[u8], after: bool) -> Option<(&High, &Arc<RecordNode>)> {
        let at = (false, key.to_vec());
        let from = if after { Bound::Excluded(at) } else { Bound::Included(at) };
        let found = self.nodes.range((from, Bound::Unbounded)).next()?;
        found.1.covers(key, after).then_some(found)
    }

    fn make_room(&mut self, budget: u64) {
        while self.bytes > budget {
            let Some(oldest) = self.order.pop_front() else { break };
            self.take_out(&oldest);
        }
        if self.order.len() > 2 * self.nodes.len() + 64 {
            let nodes = &self.nodes;
            let mut seen = std::collections::BTreeSet::new();
            self.order.retain(|high| nodes.contains_key(high) && seen.insert(high.clone()));
        }
    }
}

/// The cached nodes of a table.
#[derive(Debug)]
pub(super) struct RecordCache {
    budget: u64,
    state: Mutex<State>,
}

impl RecordCache {
    pub(super) fn new(budget: u64) -> Self {
        RecordCache { budget, state: Mutex::default() }
    }

    /// The node that covers `key`, or the place just above it.
    pub(super) fn find(&self, key: &[u8], after: bool) -> Option<Arc<RecordNode>> {
        lock(&self.state).find(key, after).map(|(_, node)| Arc::clone(node))
    }

    /// Takes in a node that was read.
    pub(super) fn put(&self, node: &Arc<RecordNode>) {
        let bytes = node.bytes();
        let is_empty = matches!((&node.low, &node.high), (Some(low), Some(high)) if low >= high);
        if bytes > self.budget || is_empty {
            return;
        }
        let high = (node.high.is_none(), node.high.clone().unwrap_or_default());
        let mut state = lock(&self.state);
        // Nodes that have been merged into this one would be found first.
        let from = node.low.clone().map_or(Bound::Unbounded, |low| Bound::Excluded((false, low)));
        let inside = state.nodes.range((from, Bound::Excluded(high.clone())));
        let inside: Vec<High> = inside.map(|(high, _)| high.clone()).collect();
        inside.iter().for_each(|high| state.take_out(high));
        let is_new = !state.nodes.contains_key(&high);
        state.take_out(&high);
        if is_new {
            state.order.push_back(high.clone());
        }
        state.nodes.insert(high, Arc::clone(node));
        state.bytes += bytes;
        state.make_room(self.budget);
    }

    /// Puts `parts` in place of the record `old` that covers `key`, if it still stands there. The parts tile its range.
    pub(super) fn replace(&self, key: &[u8], old: LeafRecord, parts: &[(Vec<u8>, SeenRecord)]) {
        let mut state = lock(&self.state);
        let Some((high, node)) = state.find(key, false) else { return };
        let index = node.position(key, false);
        let is_there = index < node.count()
            && node.record(index).record == old
            && parts.last().is_some_and(|(last, _)| last.as_slice() == node.key(index));
        if !is_there {
            return;
        }
        let (high, node) = (high.clone(), Arc::new(node.with(index, parts)));
        state.take_out(&high);
        state.bytes += node.bytes();
        state.nodes.insert(high, node);
        state.make_room(self.budget);
    }

    /// The key of the record `old` that covers `key`, if it stands here.
    pub(super) fn end_of(&self, key: &[u8], old: LeafRecord) -> Option<Vec<u8>> {
        let state = lock(&self.state);
        let (_, node) = state.find(key, false)?;
        let index = node.position(key, false);
        let is_there = index < node.count() && node.record(index).record == old;
        is_there.then(|| node.key(index).to_vec())
    }

    pub(super) fn bytes(&self) -> u64 {
        lock(&self.state).bytes
    }
}

#[cfg(test)]
mod tests {
    use farleaf_fabric::ServerId;

    use super::*;

    fn seen(leaf: u64, version: u64) -> SeenRecord {
        let leaf = GlobalAddr::new(ServerId(0), leaf * 64);
        SeenRecord { record: LeafRecord { leaf, version }, epoch: 3 }
    }

    fn node(low: Option<u8>, high: Option<u8>, keys: &[u8]) -> Arc<RecordNode> {
        let mut node = RecordNode {
            low: low.map(|low| vec![low]),
            high: high.map(|high| vec![high]),
            keys: Vec::new(),
            ends: Vec::new(),
            records: Vec::new(),
        };
        keys.iter().for_each(|key| node.push(&[*key], seen(u64::from(*key), 1)));
        Arc::new(node)
    }

    #[test]
    fn a_node_replaces_those_that_it_has_taken_in() {
        let cache = RecordCache::new(1 << 20);
        cache.put(&node(None, Some(10), &[5, 10]));
        cache.put(&node(Some(10), Some(20), &[15, 20]));
        cache.put(&node(Some(20), None, &[255]));
        let found = cache.find(&[10], false).expect("cached");
        assert_eq!(found.position(&[10], false), 1);
        assert_eq!(cache.find(&[10], true).expect("cached").key(0), [15]);
        cache.put(&node(None, Some(20), &[5, 20]));
        assert_eq!(cache.find(&[7], false).expect("cached").count(), 2);
        let bytes: u64 = [&[5, 20][..], &[255]]
            .map(|keys| {
                NODE_BYTES + 1 + keys.len() as u64 * (1 + 4 + size_of::<SeenRecord>() as u64)
            })
            .iter()
            .sum();
        assert_eq!(cache.bytes(), bytes);
    }

    #[test]
    fn a_record_gives_way_to_its_parts_and_old_nodes_to_new_ones() {
        let cache = RecordCache::new(1 << 20);
        cache.put(&node(None, None, &[10, 20, 255]));
        let old = seen(20, 1).record;
        assert_eq!(cache.end_of(&[15], old), Some(vec![20]));
        let parts = [(vec![13], seen(20, 2)), (vec![20], seen(30, 0))];
        cache.replace(&[15], seen(20, 9).record, &parts);
        assert_eq!(cache.find(&[15], false).expect("cached").count(), 3, "another record");
        cache.replace(&[15], old, &parts);
        let found = cache.find(&[15], false).expect("cached");
        assert_eq!((found.count(), found.key(1), found.record(1)), (4, &[13][..], seen(20, 2)));
        assert_eq!(found.record(found.position(&[14], false)), seen(30, 0));
        let small = RecordCache::new(600);
        for low in 0..100 {
            small.put(&node(Some(low), Some(low + 1), &[low + 1]));
            small.put(&node(Some(low), Some(low + 1), &[low + 1]));
            assert!(small.bytes() <= 600);
        }
        assert!(small.find(&[100], false).is_some() && small.find(&[1], false).is_none());
        assert!(lock(&small.state).order.len() < 100);
    }
}
