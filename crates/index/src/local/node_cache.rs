//! Node cache: copies of remote nodes by address, up to a budget of bytes, that die out by CLOCK.
//!
//! Copies are hints. Each keeps the epoch from before the READ that brought it: an object that bears the epoch of its
//! making was linked when the copy was read only if it was born by then (INV-EPOCH-6 of the pool). So a reader that follows
//! a copy's pointer accepts what it finds there only if that was born by [`CachedNode::epoch`].
//!
//! A copy may have a *note* for each child: a word that the tree keeps beside it, such as the stamp of a leaf.
//!
//! - `INV-NCACHE-1` A copy's words never change, its notes may. A newer copy takes its place.
//! - `INV-NCACHE-2` The copies' bytes, with the frames around them, never exceed the budget.
//! - `INV-NCACHE-3` A copy that is [`AGE_MAX`] epochs old is not returned: births are compared modulo 2^40.

use std::collections::BTreeMap;
use std::sync::Arc;

use farleaf_fabric::GlobalAddr;

use crate::sync::{AtomicU64, Mutex, Ordering, lock};

/// Parts with a lock each, so that threads seldom meet.
const PARTS: usize = 64;
/// Bytes that a copy takes beside its words: the frame, its place in the map and in the clock.
const FRAME_BYTES: usize = 96;
/// Epochs after which a copy is as good as evicted; twelve days at the least.
pub const AGE_MAX: u64 = 1 << 38;

/// A copy of a remote node.
#[derive(Debug)]
pub struct CachedNode {
    words: Box<[u64]>,
    epoch: u64,
    level: u8,
    /// 1 if it was used since the clock's hand came by.
    used: AtomicU64,
    notes: Box<[AtomicU64]>,
}

impl CachedNode {
    /// The node's words, as one READ returned and the reader proved them.
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// The reader's view of the pool's epochs from before the READ.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The node's level above the leaves.
    pub fn level(&self) -> u8 {
        self.level
    }

    /// The note of child `index`; 0 if there is none.
    pub fn note(&self, index: usize) -> u64 {
        self.notes.get(index).map_or(0, |note| note.load(Ordering::Relaxed))
    }

    /// Notes a word of child `index`, if there is room for notes.
    pub fn set_note(&self, index: usize, word: u64) {
        self.notes.get(index).into_iter().for_each(|note| note.store(word, Ordering::Relaxed));
    }

    fn bytes(&self) -> usize {
        (self.words.len() + self.notes.len()) * 8 + FRAME_BYTES
    }
}

/// Spreads addresses, which end in zeros, over the parts.
fn hash(word: u64) -> u64 {
    let mixed = word.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ (mixed >> 32)
}

#[derive(Debug, Default)]
struct Part {
    /// Place of each copy in the clock, by address.
    places: BTreeMap<u64, usize>,
    clock: Vec<(u64, Arc<CachedNode>)>,
    hand: usize,
    bytes: usize,
}

impl Part {
    fn remove_at(&mut self, place: usize) {
        let (addr, copy) = self.clock.swap_remove(place);
        self.bytes -= copy.bytes();
        self.places.remove(&addr);
        if let Some((moved, _)) = self.clock.get(place) {
            self.places.insert(*moved, place);
        }
    }

    /// Adds a copy: just behind the hand if it takes an evicted copy's place, so that the hand comes by it last.
    fn insert(&mut self, addr: u64, copy: Arc<CachedNode>, takes_place: bool) {
        self.bytes += copy.bytes();
        let end = self.clock.len();
        self.clock.push((addr, copy));
        let place = if takes_place { self.hand.min(end) } else { end };
        self.clock.swap(place, end);
        for at in [end, place] {
            self.places.insert(self.clock[at].0, at);
        }
        if takes_place {
            self.hand = place + 1;
        }
    }

    /// Evicts copies that were not used since the hand came by, until `bytes` more fit into `budget`. At most two rounds.
    fn make_room(&mut self, bytes: usize, budget: usize) -> u64 {
        let mut evicted = 0;
        while self.bytes + bytes > budget && !self.clock.is_empty() {
            if self.hand >= self.clock.len() {
                self.hand = 0;
            }
            if self.clock[self.hand].1.used.swap(0, Ordering::Relaxed) != 0 {
                self.hand += 1;
            } else {
                self.remove_at(self.hand);
                evicted += 1;
            }
        }
        evicted
    }
}

/// Hits, misses and evictions since the cache was made, and what it holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeCacheCounts {
    /// Looks that found a copy.
    pub hits: u64,
    /// Looks that found none.
    pub misses: u64,
    /// Copies that gave way to others.
    pub evicted: u64,
    /// Copies there now.
    pub nodes: u64,
    /// Bytes that they take, with their frames.
    pub bytes: u64,
}

/// See the [module page](self).
#[derive(Debug)]
pub struct NodeCache {
    parts: Box<[Mutex<Part>]>,
    part_budget: usize,
    hits: AtomicU64,
    misses: AtomicU64,
    evicted: AtomicU64,
}

impl NodeCache {
    /// A cache of at most `budget` bytes for nodes of up to `node_bytes`. A budget below one node caches nothing.
    pub fn new(budget: u64, node_bytes: usize) -> Self {
        let budget = usize::try_from(budget).unwrap_or(usize::MAX);
        // Each part has room for some nodes: a small cache has fewer parts.
        let parts = (budget / (8 * (node_bytes + FRAME_BYTES))).clamp(1, PARTS);
        NodeCache {
            parts: (0..parts).map(|_| Mutex::default()).collect(),
            part_budget: budget / parts,
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
        }
    }

    fn part(&self, addr: GlobalAddr) -> &Mutex<Part> {
        &self.parts[hash(hash(addr.word()) >> 7) as usize % self.parts.len()]
    }

    /// The copy of the node at `addr`, for a reader whose view of the epochs is `epoch`.
    pub fn get(&self, addr: GlobalAddr, epoch: u64) -> Option<Arc<CachedNode>> {
        let found = {
            let part = lock(self.part(addr));
            part.places.get(&addr.word()).map(|&place| Arc::clone(&part.clock[place].1))
        };
        let found = found.filter(|copy| epoch.saturating_sub(copy.epoch) < AGE_MAX);
        let count = if found.is_some() { &self.hits } else { &self.misses };
        count.fetch_add(1, Ordering::Relaxed);
        found.inspect(|copy| copy.used.store(1, Ordering::Relaxed))
    }

    /// The copy of the node at `addr` of whatever age, for its notes; that is no use of it.
    pub fn peek(&self, addr: GlobalAddr) -> Option<Arc<CachedNode>> {
        let part = lock(self.part(addr));
        part.places.get(&addr.word()).map(|&place| Arc::clone(&part.clock[place].1))
    }

    /// Takes in a copy of the node of `level` at `addr`: `epoch` is the reader's view from before the READ. A copy there
    /// that was read later stays. Returns the copy of `words`, whether the cache keeps it or not.
    pub fn put(&self, addr: GlobalAddr, level: u8, epoch: u64, words: &[u64]) -> Arc<CachedNode> {
        self.put_noted(addr, (level, epoch), words, &[])
    }

    /// As [`NodeCache::put`], with a note for each child.
    pub fn put_noted(
        &self,
        addr: GlobalAddr,
        (level, epoch): (u8, u64),
        words: &[u64],
        notes: &[u64],
    ) -> Arc<CachedNode> {
        let used = AtomicU64::new(0);
        let notes = notes.iter().map(|&note| AtomicU64::new(note)).collect();
        let copy = Arc::new(CachedNode { words: words.into(), epoch, level, used, notes });
        let bytes = copy.bytes();
        if bytes > self.part_budget {
            self.forget(addr);
            return copy;
        }
        let mut part = lock(self.part(addr));
        if let Some(&place) = part.places.get(&addr.word()) {
            if part.clock[place].1.epoch > epoch {
                return copy;
            }
            part.remove_at(place);
        }
        let evicted = part.make_room(bytes, self.part_budget);
        part.insert(addr.word(), Arc::clone(&copy), evicted > 0);
        drop(part);
        self.evicted.fetch_add(evicted, Ordering::Relaxed);
        copy
    }

    /// Drops the copy of the node at `addr`, if there is one.
    pub fn forget(&self, addr: GlobalAddr) {
        let mut part = lock(self.part(addr));
        if let Some(&place) = part.places.get(&addr.word()) {
            part.remove_at(place);
        }
    }

    /// Drops `copy` of the node at `addr`, which led a reader astray; one that took its place stays.
    pub fn forget_copy(&self, addr: GlobalAddr, copy: &Arc<CachedNode>) {
        let mut part = lock(self.part(addr));
        if let Some(&place) = part.places.get(&addr.word())
            && Arc::ptr_eq(&part.clock[place].1, copy)
        {
            part.remove_at(place);
        }
    }

    /// Drops all copies. Counts go on.
    pub fn clear(&self) {
        for part in &self.parts {
            *lock(part) = Part::default();
        }
    }

    /// The counts.
    pub fn counts(&self) -> NodeCacheCounts {
        let (mut nodes, mut bytes) = (0, 0);
        for part in &self.parts {
            let part = lock(part);
            nodes += part.clock.len() as u64;
            bytes += part.bytes as u64;
        }
        let [hits, misses, evicted] =
            [&self.hits, &self.misses, &self.evicted].map(|count| count.load(Ordering::Relaxed));
        NodeCacheCounts { hits, misses, evicted, nodes, bytes }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use farleaf_fabric::ServerId;

    use super::*;

    const NODE_BYTES: usize = 1024;
    const FRAME: u64 = (NODE_BYTES + FRAME_BYTES) as u64;

    fn addr(number: u64) -> GlobalAddr {
        GlobalAddr::new(ServerId((number % 3) as u16), 4096 + number * 64)
    }

    fn node(number: u64) -> Vec<u64> {
        vec![number; NODE_BYTES / 8]
    }

    #[test]
    fn a_copy_is_what_was_put_and_keeps_the_epoch_from_before_its_read() {
        let cache = NodeCache::new(1 << 20, NODE_BYTES);
        assert!(cache.get(addr(1), 0).is_none());
        cache.put(addr(1), 2, 7, &node(1));
        let copy = cache.get(addr(1), 9).expect("it is there");
        assert_eq!((copy.words(), copy.epoch(), copy.level()), (&node(1)[..], 7, 2));
        cache.put(addr(1), 2, 6, &node(5));
        let same = cache.get(addr(1), 9).expect("it is there");
        assert!(Arc::ptr_eq(&copy, &same), "one that was read before it does not take its place");
        cache.put(addr(1), 2, 7, &node(6));
        assert_eq!(cache.get(addr(1), 9).expect("it is there").words(), node(6));
        assert_eq!(copy.words(), node(1), "a reader's copy stays as it is");
        // An answer that comes late does not drop the newer copy.
        cache.forget_copy(addr(1), &copy);
        let newer = cache.get(addr(1), 9).expect("it is there");
        cache.forget_copy(addr(1), &newer);
        assert!(cache.get(addr(1), 9).is_none());
        let counts = NodeCacheCounts { hits: 4, misses: 2, ..NodeCacheCounts::default() };
        assert_eq!(cache.counts(), counts);
    }

    #[test]
    fn a_copy_has_the_notes_that_it_was_put_with_and_others_later() {
        let cache = NodeCache::new(3 * (FRAME + 16), NODE_BYTES + 16);
        let copy = cache.put_noted(addr(1), (1, 7), &node(1), &[0, 5]);
        assert_eq!([0, 1, 2].map(|child| copy.note(child)), [0, 5, 0]);
        copy.set_note(0, 9);
        copy.set_note(2, 9);
        let found = cache.peek(addr(1)).expect("it is there");
        assert_eq!([0, 1, 2].map(|child| found.note(child)), [9, 5, 0]);
        assert_eq!((cache.counts().bytes, cache.counts().hits), (FRAME + 16, 0));
    }

    #[test]
    fn copies_too_old_to_compare_births_by_are_not_returned() {
        let cache = NodeCache::new(1 << 20, NODE_BYTES);
        cache.put(addr(1), 1, 5, &node(1));
        assert!(cache.get(addr(1), 4 + AGE_MAX).is_some());
        assert!(cache.get(addr(1), 5 + AGE_MAX).is_none());
        cache.put(addr(1), 1, 5 + AGE_MAX, &node(1));
        assert!(cache.get(addr(1), 5 + AGE_MAX).is_some());
    }

    #[test]
    fn the_budget_holds_and_used_copies_stay() {
        // One part of seven nodes.
        let cache = NodeCache::new(7 * FRAME, NODE_BYTES);
        for number in 0..7 {
            cache.put(addr(number), 1, 1, &node(number));
        }
        assert_eq!((cache.counts().nodes, cache.counts().bytes), (7, 7 * FRAME));
        for number in [0, 2, 4, 6] {
            assert!(cache.get(addr(number), 1).is_some());
        }
        for number in 10..13 {
            cache.put(addr(number), 1, 1, &node(number));
        }
        let there: Vec<u64> = (0..13).filter(|&it| cache.get(addr(it), 1).is_some()).collect();
        assert_eq!(there, [0, 2, 4, 6, 10, 11, 12]);
        assert_eq!(cache.counts().evicted, 3);
        // All are used: the hand goes round once, and one gives way all the same.
        cache.put(addr(20), 1, 1, &node(20));
        assert_eq!((cache.counts().nodes, cache.counts().evicted), (7, 4));
        cache.clear();
        assert_eq!((cache.counts().nodes, cache.counts().bytes), (0, 0));
    }

    #[test]
    fn a_budget_below_one_node_caches_nothing() {
        for budget in [0, FRAME - 1] {
            let cache = NodeCache::new(budget, NODE_BYTES);
            cache.put(addr(1), 1, 1, &node(1));
            assert!(cache.get(addr(1), 1).is_none());
            assert_eq!(cache.counts().nodes, 0);
        }
    }

    #[test]
    fn random_use_agrees_with_a_map_and_never_exceeds_the_budget() {
        for parts in [1, 9, 100] {
            let budget = parts * 8 * FRAME;
            let cache = NodeCache::new(budget, NODE_BYTES);
            let mut newest = BTreeMap::new();
            let mut state = parts;
            for step in 0..20_000_u64 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let number = (state >> 33) % (parts * 16);
                match (state >> 20) % 8 {
                    0 => {
                        cache.forget(addr(number));
                        newest.remove(&number);
                    }
                    1..4 => {
                        cache.put(addr(number), 1, step, &node(step));
                        newest.insert(number, step);
                    }
                    _ => {
                        if let Some(copy) = cache.get(addr(number), step) {
                            let put = newest.get(&number).copied();
                            assert_eq!((Some(copy.epoch()), copy.words()[0]), (put, copy.epoch()));
                        }
                    }
                }
                if step % 64 == 0 {
                    let counts = cache.counts();
                    assert!(counts.bytes <= budget && counts.bytes == counts.nodes * FRAME);
                }
            }
            let counts = cache.counts();
            assert!(counts.evicted > 0 && counts.hits > 1_000, "{counts:?}");
        }
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "real threads meet at the cache's locks")]
    fn threads_find_whole_copies() {
        let cache = NodeCache::new(16 * FRAME, NODE_BYTES);
        std::thread::scope(|scope| {
            for thread in 0..3_u64 {
                let cache = &cache;
                scope.spawn(move || {
                    for step in 0..4_000_u64 {
                        let at = addr((step * 7 + thread) % 40);
                        match cache.get(at, 1) {
                            None => drop(cache.put(at, 1, 1, &node(step << 2 | thread))),
                            Some(copy) => {
                                assert!(copy.words().iter().all(|&word| word == copy.words()[0]));
                                if step % 16 == 0 {
                                    cache.forget_copy(at, &copy);
                                }
                            }
                        }
                    }
                });
            }
        });
        let counts = cache.counts();
        assert_eq!(counts.hits + counts.misses, 12_000);
        assert!(counts.bytes <= 16 * FRAME);
    }
}
