//! Cache: inner nodes in this compute server's memory, up to a budget of bytes.
//!
//! An entry is what one READ of a live node brought: its life word, header and the slots that have children, with
//! `c`, the member's view of the epoch before that READ. An operation walks from entry to entry by the addresses in
//! slots (`descent.rs`), so the cached part of the tree is its own index. Slot and entry may be of different times, and
//! the address used again in between. So an entry bears the bytes that all keys of its node begin with: a linked node
//! is on the way of exactly the keys that begin with them.
//!
//! Entries lie in shards by address. Each shard evicts by CLOCK. With `cache_index=hash` a table of hashed names finds
//! them as well: the name of a node is the bytes in front of the one that it dispatches on.

use std::collections::BTreeMap;
use std::sync::Arc;

use farleaf_fabric::GlobalAddr;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::layout::{Edge, Life, Node, NodeType, Shape, Slot};
use super::switches::CacheIndex;
use crate::sync::{Mutex, lock};

/// Bytes that an entry takes beside its words: itself, its place in the ring and in the map.
const ENTRY_BYTES: usize = 144;
/// A cache with less than so many bytes for each shard has one.
const SHARD_BYTES_MIN: u64 = 256 << 10;
const SHARDS: usize = 64;
/// Bytes that a hashed name takes: itself and an address, with its share of the nodes of the map.
const NAME_BYTES: usize = 32;

/// A cached node.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) addr: GlobalAddr,
    pub(super) c: u64,
    of: NodeType,
    /// The bytes in front of its depth, which all of its keys begin with; they never change.
    prefix: Box<[u8]>,
    /// Life and header, then the slots that have children in the order of their edges. If objects point back, in that
    /// of the node; if nodes are cached whole, every slot.
    words: Box<[u64]>,
    is_in_place: bool,
    /// The hash of its name.
    name: u64,
}

impl Entry {
    /// Remembers a live node on the way to `key`, by a READ that began when the view was `c`.
    pub(super) fn of(
        shape: &Shape,
        addr: GlobalAddr,
        c: u64,
        words: &[u64],
        (key, is_whole): (&[u8], bool),
    ) -> Option<Entry> {
        let node = Node::new(shape, words);
        let of = node.node_type()?;
        let prefix = key.get(..node.depth())?.into();
        let mut kept: Vec<u64> = Vec::with_capacity(2 + node.live());
        kept.extend_from_slice(&words[..2]);
        let has_child = |slot: &Slot| slot.has_child();
        let is_in_place = is_whole || shape.points_back;
        if is_whole {
            let word = |slot: Slot| if slot.has_child() { slot.thawed().0 } else { 0 };
            kept.extend(node.slots().map(word));
        } else if is_in_place {
            // Slots fill from left to right; one READ may have missed some.
            kept.extend(node.slots().take_while(has_child).map(|slot| slot.thawed().0));
        } else {
            kept.extend(node.slots().filter(has_child).map(|slot| slot.thawed().0));
            kept[2..].sort_unstable_by_key(|word| Slot(*word).edge());
        }
        let name = name_of(key.get(..node.dispatch()).unwrap_or_default());
        Some(Entry { addr, c, of, prefix, words: kept.into_boxed_slice(), is_in_place, name })
    }

    pub(super) fn life(&self) -> Life {
        Life(self.words[0])
    }

    pub(super) fn node_type(&self) -> NodeType {
        self.of
    }

    /// Its header, and its children as slots.
    pub(super) fn node(&self, shape: &Shape) -> Node<'_> {
        Node::new(shape, &self.words)
    }

    /// Returns whether the node is on the way to `key`, if it is linked.
    pub(super) fn is_on_way(&self, shape: &Shape, key: &[u8]) -> bool {
        key.starts_with(&self.prefix) && self.node(shape).differs(key, 0).is_none()
    }

    /// The child under an edge, and its number here, which is that of its slot if objects point back.
    pub(super) fn find(&self, edge: Edge) -> Option<(usize, Slot)> {
        let slots = &self.words[2..];
        let at = match self.is_in_place {
            true => slots.iter().position(|word| *word != 0 && Slot(*word).edge() == edge)?,
            false => slots.binary_search_by_key(&edge, |word| Slot(*word).edge()).ok()?,
        };
        Some((at, Slot(slots[at])))
    }

    /// Its children, if their slots stand in the node's order: the number of the first unused one.
    pub(super) fn children(&self) -> usize {
        let slots = &self.words[2..];
        slots.iter().position(|word| *word == 0).unwrap_or(slots.len())
    }

    fn bytes(&self) -> usize {
        ENTRY_BYTES + self.prefix.len() + 8 * self.words.len()
    }
}

fn name_of(bytes: &[u8]) -> u64 {
    xxh3_64_with_seed(bytes, bytes.len() as u64)
}

/// Addresses of entries by the hashes of their names, in shards. Of names with one hash it has the last.
type Names = Box<[Mutex<BTreeMap<u64, u64>>]>;

/// The cached nodes of a table.
#[derive(Debug)]
pub(super) struct Cache {
    shards: Box<[Mutex<Shard>]>,
    names: Option<Names>,
}

#[derive(Debug, Default)]
struct Shard {
    /// Places in the ring, by address.
    places: BTreeMap<u64, usize>,
    ring: Vec<Cached>,
    hand: usize,
    bytes: usize,
    bytes_max: usize,
    /// Bytes that an entry takes beside its own.
    more_bytes: usize,
}

#[derive(Debug)]
struct Cached {
    entry: Arc<Entry>,
    used: bool,
}

impl Cache {
    /// An empty cache of at most `bytes`.
    pub(super) fn new(bytes: u64, index: CacheIndex) -> Cache {
        let shards = if bytes / SHARDS as u64 >= SHARD_BYTES_MIN { SHARDS } else { 1 };
        let bytes_max = usize::try_from(bytes).unwrap_or(usize::MAX) / shards;
        let is_hashed = index == CacheIndex::Hash;
        let more_bytes = if is_hashed { NAME_BYTES } else { 0 };
        let shard = |_| Mutex::new(Shard { bytes_max, more_bytes, ..Shard::default() });
        let names = is_hashed.then(|| (0..SHARDS).map(|_| Mutex::default()).collect());
        Cache { shards: (0..shards).map(shard).collect(), names }
    }

    /// The entry of that name, or of another with the same hash.
    pub(super) fn by_name(&self, name: &[u8]) -> Option<Arc<Entry>> {
        let (names, name) = (self.names.as_ref()?, name_of(name));
        let addr = *lock(&names[name as usize % SHARDS]).get(&name)?;
        self.get(GlobalAddr::from_word(addr)?)
    }

    /// Takes the names of entries that are gone out of the table.
    fn forget_names(&self, gone: &[Arc<Entry>]) {
        let Some(names) = &self.names else { return };
        for entry in gone {
            let mut names = lock(&names[entry.name as usize % SHARDS]);
            if names.get(&entry.name) == Some(&entry.addr.word()) {
                names.remove(&entry.name);
            }
        }
    }

    fn shard(&self, addr: GlobalAddr) -> &Mutex<Shard> {
        let mixed = addr.word().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        &self.shards[mixed as usize % self.shards.len()]
    }

    pub(super) fn get(&self, addr: GlobalAddr) -> Option<Arc<Entry>> {
        let mut shard = lock(self.shard(addr));
        let place = *shard.places.get(&addr.word())?;
        let cached = &mut shard.ring[place];
        cached.used = true;
        Some(Arc::clone(&cached.entry))
    }

    /// Takes an entry in, unless there is a later one of that address.
    pub(super) fn put(&self, entry: Entry) {
        let (name, addr) = (entry.name, entry.addr.word());
        let (gone, is_in) = self.put_in_shard(entry);
        self.forget_names(&gone);
        if let Some(names) = self.names.as_ref().filter(|_| is_in) {
            lock(&names[name as usize % SHARDS]).insert(name, addr);
        }
    }

    /// Takes an entry in; returns the entries that had to go, and whether it is in.
    fn put_in_shard(&self, entry: Entry) -> (Vec<Arc<Entry>>, bool) {
        let mut shard = lock(self.shard(entry.addr));
        let (shard, mut gone) = (&mut *shard, Vec::new());
        let (bytes, addr) = (entry.bytes() + shard.more_bytes, entry.addr.word());
        let mut used = false;
        if let Some(place) = shard.places.get(&addr).copied() {
            let there = &shard.ring[place].entry;
            let is_of_one_life = there.is_in_place || there.life().is_born_by(entry.c);
            if there.c > entry.c && is_of_one_life {
                return (gone, false);
            }
            used = shard.ring[place].used;
            gone.push(shard.remove(place));
        }
        if bytes > shard.bytes_max {
            return (gone, false);
        }
        while shard.bytes + bytes > shard.bytes_max {
            gone.extend(shard.evict());
        }
        shard.bytes += bytes;
        shard.places.insert(addr, shard.ring.len());
        shard.ring.push(Cached { entry: Arc::new(entry), used });
        (gone, true)
    }

    /// Drops an entry whose node is not what it was.
    pub(super) fn forget(&self, entry: &Entry) {
        let mut shard = lock(self.shard(entry.addr));
        if let Some(place) = shard.places.get(&entry.addr.word()).copied()
            && shard.ring[place].entry.life() == entry.life()
        {
            let gone = shard.remove(place);
            drop(shard);
            self.forget_names(&[gone]);
        }
    }

    /// Drops the entries of nodes whose keys begin with bytes of which `is_gone` says so.
    pub(super) fn forget_all(&self, is_gone: impl Fn(&[u8]) -> bool) {
        for shard in &self.shards {
            let (mut shard, mut gone) = (lock(shard), Vec::new());
            for place in (0..shard.ring.len()).rev() {
                if is_gone(&shard.ring[place].entry.prefix) {
                    gone.push(shard.remove(place));
                }
            }
            drop(shard);
            self.forget_names(&gone);
        }
    }

    /// Bytes in use, and entries.
    pub(super) fn used(&self) -> (u64, u64) {
        let sum = |sum: (u64, u64), shard: &Mutex<Shard>| {
            let shard = lock(shard);
            (sum.0 + shard.bytes as u64, sum.1 + shard.ring.len() as u64)
        };
        self.shards.iter().fold((0, 0), sum)
    }
}

impl Shard {
    fn remove(&mut self, place: usize) -> Arc<Entry> {
        let gone = self.ring.swap_remove(place);
        self.bytes -= gone.entry.bytes() + self.more_bytes;
        self.places.remove(&gone.entry.addr.word());
        if let Some(moved) = self.ring.get(place) {
            self.places.insert(moved.entry.addr.word(), place);
        }
        gone.entry
    }

    /// Removes the next entry that has not been used since the hand passed it.
    fn evict(&mut self) -> Option<Arc<Entry>> {
        loop {
            self.hand = if self.hand < self.ring.len() { self.hand } else { 0 };
            let cached = self.ring.get_mut(self.hand)?;
            let gone = (!std::mem::take(&mut cached.used)).then(|| self.remove(self.hand));
            // The newest entry has taken the place of one that is gone: its turn comes a round later.
            self.hand += 1;
            if gone.is_some() {
                return gone;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use farleaf_fabric::ServerId;

    use super::super::layout::{LeafClass, fill_node};
    use super::*;

    const SHAPE: Shape = Shape {
        table: 7,
        wide: false,
        first: NodeType::SMALLEST,
        reserves: false,
        points_back: false,
    };

    fn entry(number: u64, birth: u64, c: u64) -> Entry {
        let addr = GlobalAddr::new(ServerId(0), 64 * number);
        let class = LeafClass::of(64).expect("class");
        let slots = [9, 3].map(|byte| Slot::leaf(Edge::byte(byte), addr.plus(640), class));
        let mut words = [0; 8];
        let of = NodeType::SMALLEST;
        fill_node(&SHAPE, &mut words, Life::new(7, addr, birth), of, (0, b""), slots.into_iter());
        Entry::of(&SHAPE, addr, c, &words, (b"", false)).expect("a node")
    }

    #[test]
    fn children_are_found_by_their_edges() {
        let entry = entry(1, 1, 1);
        let edge = |byte| entry.find(Edge::byte(byte)).map(|(_, slot)| slot.edge());
        assert_eq!(edge(3), Some(Edge::byte(3)));
        assert_eq!(edge(9), Some(Edge::byte(9)));
        assert_eq!((entry.find(Edge::byte(4)), entry.find(Edge::END)), (None, None));
        assert_eq!(entry.node_type(), NodeType::SMALLEST);
    }

    #[test]
    fn the_budget_holds_and_what_is_used_stays() {
        let bytes = entry(1, 1, 1).bytes() as u64;
        let cache = Cache::new(4 * bytes, CacheIndex::Radix);
        for number in 1..=20 {
            cache.put(entry(number, 1, 1));
            assert!(cache.used().0 <= 4 * bytes);
            assert!(cache.get(GlobalAddr::new(ServerId(0), 64)).is_some(), "{number}");
        }
        assert_eq!(cache.used(), (4 * bytes, 4));
        cache.forget(&entry(1, 2, 2));
        assert!(cache.get(GlobalAddr::new(ServerId(0), 64)).is_some(), "it is another life");
        cache.forget(&entry(1, 1, 9));
        assert!(cache.get(GlobalAddr::new(ServerId(0), 64)).is_none());
        let none = Cache::new(0, CacheIndex::Radix);
        none.put(entry(1, 1, 1));
        assert_eq!(none.used(), (0, 0));
    }

    /// A full cache threw out what it had taken in last, and never learnt what was popular.
    #[test]
    fn new_entries_outlive_unused_old_ones() {
        let bytes = entry(1, 1, 1).bytes() as u64;
        for index in [CacheIndex::Radix, CacheIndex::Hash] {
            let more = if index == CacheIndex::Hash { NAME_BYTES as u64 } else { 0 };
            let cache = Cache::new(32 * (bytes + more), index);
            (1..=100).for_each(|number| cache.put(entry(number, 1, 1)));
            let has = |number: u64| cache.get(GlobalAddr::new(ServerId(0), 64 * number)).is_some();
            let (last, first) = ((85..=100).filter(|it| has(*it)), (1..=50).filter(|it| has(*it)));
            assert_eq!((last.count() >= 12, first.count()), (true, 0));
        }
    }

    #[test]
    fn a_later_look_at_a_node_stays() {
        let cache = Cache::new(1 << 10, CacheIndex::Radix);
        cache.put(entry(1, 1, 5));
        cache.put(entry(1, 1, 4));
        let c = || cache.get(GlobalAddr::new(ServerId(0), 64)).map(|entry| entry.c);
        assert_eq!(c(), Some(5));
        cache.put(entry(1, 6, 6));
        assert_eq!(c(), Some(6));
        // That of a life before.
        cache.put(entry(1, 1, 5));
        assert_eq!(c(), Some(5));
    }
}
