//! Local tree: a B+-tree in local memory, for comparison with a cached remote tree.
//!
//! Nodes are laid out and searched as those of the remote tree; a latch is the lock word of a
//! remote node. Readers couple optimistically, from the root down: read the child pointer, validate
//! the parent, sample the child's latch, validate the parent again. A change takes the leaf's latch
//! alone. Readers check no fences and no levels, and no node can be missing. The tree is built
//! once; its shape does not change.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use farleaf_fabric::Words;
use farleaf_index::{
    SortedPairs,
    bnode::{Head, Layout, LeafEntry, Node, NodeMut, StoredValue, Value},
};

/// The word of a node that holds its latch: bit 0 is set during a write, the rest is a version.
const LATCH_WORD: usize = 0;
const WRITING: u64 = 1;

/// See the [module page](self).
#[derive(Debug)]
pub(super) struct LocalTree {
    layout: Layout,
    words: Words,
    root: usize,
    nodes: usize,
}

/// Nodes of one level: first keys and addresses.
type Level = Vec<(Vec<u8>, u64)>;

impl LocalTree {
    /// Builds a tree of the pairs, at most `count`, in nodes that are full to `fill`. `None`
    /// without pairs or without memory.
    pub(super) fn build(
        layout: Layout,
        pairs: &mut impl SortedPairs,
        count: u64,
        fill: f64,
    ) -> Option<Self> {
        let leaf = ((layout.leaf_cap() as f64 * fill) as usize).max(1);
        let fanout = ((layout.inner_cap() as f64 * fill) as usize + 1).max(2);
        let leaves = (count as usize).div_ceil(leaf) + 1;
        // Each level above has at most half the nodes.
        let most = 2 * leaves + 64;
        let words = Words::anonymous(most * layout.node_words())?;
        let mut tree = LocalTree { layout, words, root: 0, nodes: 0 };
        let mut level = tree.build_leaves(pairs, leaf)?;
        let mut height = 0;
        while level.len() > 1 {
            height += 1;
            level = tree.build_inner(&level, fanout, height)?;
        }
        tree.root = level.first()?.1 as usize;
        Some(tree)
    }

    fn build_leaves(&mut self, pairs: &mut impl SortedPairs, leaf: usize) -> Option<Level> {
        let mut level = Level::new();
        let mut held: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        loop {
            let next = pairs.next().map(|(key, value)| (key.to_vec(), value.to_vec()));
            let is_last = next.is_none();
            held.extend(next);
            if held.len() == leaf || (is_last && !held.is_empty()) {
                let mut image = vec![0; self.layout.node_words()];
                let entries: Vec<_> = held
                    .iter()
                    .map(|(key, value)| LeafEntry { key, value: Value::Inline(value) })
                    .collect();
                self.layout.encode_leaf(&mut image, &Head::default(), &entries).ok()?;
                let at = self.add(&image)?;
                level.push((held.last()?.0.clone(), at));
                held.clear();
            }
            if is_last {
                return Some(level);
            }
        }
    }

    fn build_inner(&mut self, below: &Level, fanout: usize, height: u8) -> Option<Level> {
        let mut level = Level::new();
        for part in below.chunks(fanout) {
            let children: Vec<u64> = part.iter().map(|(_, at)| *at).collect();
            let bounds: Vec<&[u8]> =
                part[..part.len() - 1].iter().map(|(last, _)| last.as_slice()).collect();
            let mut image = vec![0; self.layout.node_words()];
            let head = Head { level: height, ..Head::default() };
            self.layout.encode_inner(&mut image, &head, &children, &bounds).ok()?;
            let at = self.add(&image)?;
            level.push((part.last()?.0.clone(), at));
        }
        Some(level)
    }

    /// Stores a node. Numbers count from 1, as no child pointer is null.
    fn add(&mut self, image: &[u64]) -> Option<u64> {
        let number = self.nodes + 1;
        let into = self.words.as_slice().chunks_exact(image.len()).nth(self.nodes)?;
        for (to, from) in into.iter().zip(image) {
            to.store(*from, Ordering::Relaxed);
        }
        into[LATCH_WORD].store(0, Ordering::Relaxed);
        self.nodes = number;
        Some(number as u64)
    }

    /// Number of nodes.
    pub(super) fn nodes(&self) -> usize {
        self.nodes
    }

    #[inline]
    fn image(&self, number: usize) -> &[AtomicU64] {
        let first = (number - 1) * self.layout.node_words();
        &self.words.as_slice()[first..first + self.layout.node_words()]
    }

    /// Prefetches the words that a search of a node touches, as a cache of the remote tree does.
    #[inline]
    fn prefetch(&self, number: usize, is_leaf: bool) {
        let words = self.layout.node_words();
        self.words.prefetch((number - 1) * words, words * if is_leaf { 6 } else { 4 });
    }

    /// Copies `key`'s value into `value`; `false` if there is none. No allocation if it has room.
    /// With `FETCH` nodes are prefetched.
    #[inline]
    pub(super) fn get<const FETCH: bool>(&self, key: &[u8], value: &mut Vec<u8>) -> bool {
        loop {
            let Some((image, version)) = self.leaf::<FETCH>(key) else { continue };
            let node = Node::new(&self.layout, image);
            let stored = match node.find(key) {
                Ok(index) => node.value(index, value),
                Err(_) => None,
            };
            if validate(image, version) {
                return matches!(stored, Some(StoredValue::Inline));
            }
        }
    }

    /// Replaces `key`'s value; `false` if there is none. With `FETCH` nodes are prefetched.
    #[inline]
    pub(super) fn update<const FETCH: bool>(&self, key: &[u8], value: &[u8]) -> bool {
        loop {
            let Some((image, version)) = self.leaf::<FETCH>(key) else { continue };
            let latch = &image[LATCH_WORD];
            let taken = latch.compare_exchange(
                version,
                version | WRITING,
                Ordering::Acquire,
                Ordering::Relaxed,
            );
            if taken.is_err() {
                continue;
            }
            // The words' stores must not come before the latch is seen.
            fence(Ordering::Release);
            let mut node = NodeMut::new(&self.layout, image);
            let found = node.as_node().find(key);
            let done = found.is_ok_and(|index| node.replace(index, Value::Inline(value)).is_ok());
            latch.store(version + 2, Ordering::Release);
            return done;
        }
    }

    /// Returns the leaf that covers `key` and its version; `None` if a writer changed the path.
    #[inline]
    fn leaf<const FETCH: bool>(&self, key: &[u8]) -> Option<(&[AtomicU64], u64)> {
        let mut image = self.image(self.root);
        let mut version = sample(image)?;
        loop {
            let node = Node::new(&self.layout, image);
            let level = node.level();
            if level == 0 {
                return validate(image, version).then_some((image, version));
            }
            let (_, child) = node.child_for(key);
            if !validate(image, version) {
                return None;
            }
            let child = (child as usize).clamp(1, self.nodes);
            if FETCH {
                self.prefetch(child, level == 1);
            }
            let below = self.image(child);
            let next = sample(below)?;
            if !validate(image, version) {
                return None;
            }
            (image, version) = (below, next);
        }
    }
}

#[inline]
fn sample(image: &[AtomicU64]) -> Option<u64> {
    let word = image[LATCH_WORD].load(Ordering::Acquire);
    (word & WRITING == 0).then_some(word)
}

#[inline]
fn validate(image: &[AtomicU64], version: u64) -> bool {
    fence(Ordering::Acquire);
    image[LATCH_WORD].load(Ordering::Relaxed) == version
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::thread;

    use farleaf_index::{Spec, bnode::BnodeShape};

    use super::*;
    use crate::{
        keys::{KeyMaker, KeyOrder},
        run::{NoProgress, sorted::Pairs},
        values::ValueMaker,
    };

    fn tree(count: u64) -> LocalTree {
        let layout = BnodeShape::default().layout(&Spec::FIXED8).unwrap();
        let keys = KeyMaker::U64(KeyOrder::Hashed);
        let mut pairs = Pairs::new(&keys, ValueMaker::new(8), count, &NoProgress);
        LocalTree::build(layout, &mut pairs, count, 0.7).unwrap()
    }

    fn key(item: u64) -> Vec<u8> {
        let mut key = Vec::new();
        KeyMaker::U64(KeyOrder::Hashed).write_key(item, &mut key).unwrap();
        key
    }

    #[test]
    fn built_pairs_are_found_and_updated() {
        for count in [1, 42, 43, 2_000, 100_000] {
            let tree = tree(count);
            let values = ValueMaker::new(8);
            let mut value = Vec::new();
            for item in (0..count).step_by(7) {
                assert!(tree.get::<false>(&key(item), &mut value));
                assert!(values.value_matches(item, 0, &value));
                values.write_value(item, 5, &mut value);
                assert!(tree.update::<true>(&key(item), &value));
                assert!(tree.get::<true>(&key(item), &mut value));
                assert!(values.value_matches(item, 5, &value));
            }
            assert!(!tree.get::<true>(&key(count), &mut value));
            assert!(!tree.update::<false>(&key(count), &value));
            assert!(tree.nodes() as u64 >= count.div_ceil(60));
        }
    }

    #[test]
    fn readers_see_whole_values_while_others_write() {
        let tree = &tree(500);
        let values = ValueMaker::new(8);
        thread::scope(|scope| {
            for writer in 1..3u64 {
                scope.spawn(move || {
                    let (mut value, mut found) = (Vec::new(), Vec::new());
                    for step in 0..20_000 {
                        let item = step % 50;
                        values.write_value(item, writer << 32 | step, &mut value);
                        assert!(tree.update::<false>(&key(item), &value));
                        assert!(tree.get::<true>(&key(item), &mut found));
                        let version = values.version_of(item, &found).unwrap();
                        assert!(values.value_matches(item, version, &found));
                        assert!((1..3).contains(&(version >> 32)));
                    }
                });
            }
        });
    }
}
