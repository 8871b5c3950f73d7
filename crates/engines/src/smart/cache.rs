//! Cache: inner nodes in this compute server's memory, up to a budget of bytes.
//!
//! An entry is what one READ of a live node brought: its first word, header and the slots that have children, with
//! `c`, the member's view of the epoch before that READ. An operation walks from entry to entry by the addresses in
//! slots (`descent.rs`), so the cached part of the tree is its own index. Slot and entry may be of different times, and
//! the address used again in between. So an entry bears the bytes that all keys of its node begin with: a linked node
//! is on the way of exactly the keys that begin with them.
//!
//! Entries (`entry.rs`) lie in shards by address. Each shard evicts by CLOCK, which counts uses. With
//! `cache_index=hash` a table of hashed names finds entries as well: the name of a node is the bytes in front of the one
//! that it dispatches on.
//!
//! In a table with owners an entry also keeps the slots without a child and the place of each slot. It is *exact* if
//! its node is known to have these slots, or a hint (`own_nodes.rs`).

use farleaf_fabric::GlobalAddr;
use farleaf_index::local::ParkingLot;
use farleaf_index::sync::{Mutex, lock};
use hashbrown::HashTable;
use xxhash_rust::xxh3::xxh3_64;

use super::changes::{ChangeEnd, Changes, SHARDS, mix};
use super::entry::Entry;
use super::ladder::{NAME_BYTES, Names};
use super::layout::{NodeForm, Slot};
use super::own_nodes::NodeResult;

farleaf_fabric::canaries! {
    pub(crate) BELIEVE_OLD_READ = "believe-old-read",
        "a READ makes an exact entry of a node that has changed since it began";
    pub(crate) WRITE_SLOT_BESIDE = "write-slot-beside",
        "an owner writes a slot while other changes of the node are under way";
}

/// Bytes that an entry takes beside its allocation: its place in the ring, and its share of the table that finds it and
/// of the room that both have left.
const ENTRY_BYTES: usize = size_of::<Cached>() + 12;
/// Rounds of the hand for which a popular entry stays without another use.
const USES_MAX: u8 = 3;
/// A cache with less than so many bytes for each shard has one.
const SHARD_BYTES_MIN: u64 = 256 << 10;
/// The moment before a READ of a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stamp {
    /// Number of the view of the ownership map.
    pub(super) view: u64,
    /// Changes of the node, begun and ended.
    pub(super) changes: u64,
}

fn hash(addr: GlobalAddr) -> u64 {
    xxh3_64(&addr.word().to_le_bytes())
}

/// The hash of the address of an entry in a ring.
fn hash_at(ring: &[Cached], place: u32) -> u64 {
    hash(ring[place as usize].entry.addr())
}

/// The cached nodes of a table.
#[derive(Debug)]
pub(super) struct Cache {
    shape: NodeForm,
    shards: Box<[Mutex<Shard>]>,
    names: Option<Names>,
    /// Changes that wait for one that has its node alone.
    waiting: ParkingLot,
}

#[derive(Debug, Default)]
struct Shard {
    /// Places in the ring, by address.
    places: HashTable<u32>,
    ring: Vec<Cached>,
    hand: usize,
    bytes: usize,
    bytes_max: usize,
    /// Bytes that an entry takes beside its own.
    more_bytes: usize,
    /// Those of its nodes.
    changes: Changes,
}

#[derive(Debug)]
struct Cached {
    entry: Entry,
    /// Uses that the hand has not counted down yet, up to [`USES_MAX`].
    uses: u8,
    /// It is exact whenever no change of the node is under way.
    is_exact: bool,
}

impl Cache {
    /// An empty cache of at most `bytes`, with a hash table if there are `names`.
    pub(super) fn new(shape: NodeForm, bytes: u64, names: Option<Names>) -> Cache {
        let shards = if bytes / SHARDS as u64 >= SHARD_BYTES_MIN { SHARDS } else { 1 };
        let bytes_max = usize::try_from(bytes).unwrap_or(usize::MAX) / shards;
        let more_bytes = if names.is_some() { NAME_BYTES } else { 0 };
        let shard = |_| Mutex::new(Shard { bytes_max, more_bytes, ..Shard::default() });
        let waiting = ParkingLot::new(SHARDS);
        Cache { shape, shards: (0..shards).map(shard).collect(), names, waiting }
    }

    /// The entry of that name, or of another with the same hash.
    pub(super) fn by_name(&self, name: &[u8]) -> Option<Entry> {
        Some(self.get(self.names.as_ref()?.get(name)?)?.0)
    }

    /// Takes the names of entries that are gone out of the table.
    fn forget_names(&self, gone: &[Entry]) {
        let Some(names) = &self.names else { return };
        for entry in gone {
            names.remove(&entry.whole_prefix(&self.shape), entry.addr());
        }
    }

    fn shard(&self, addr: GlobalAddr) -> &Mutex<Shard> {
        &self.shards[mix(addr) % self.shards.len()]
    }

    /// The entry of an address, and whether it is exact.
    pub(super) fn get(&self, addr: GlobalAddr) -> Option<(Entry, bool)> {
        let mut shard = lock(self.shard(addr));
        let shard = &mut *shard;
        let place = shard.place(addr)?;
        let cached = &mut shard.ring[place];
        cached.uses = (cached.uses + 1).min(USES_MAX);
        let is_exact = cached.is_exact && !shard.changes.are_under_way(addr);
        Some((cached.entry.clone(), is_exact))
    }

    /// Takes a hint in, unless there is a later entry of that address.
    pub(super) fn put(&self, entry: Entry) {
        self.put_stamped(entry, None, |_| false);
    }

    /// Takes an entry in, unless there is a later one of that address. It is exact if no change has begun or ended
    /// since `stamp` and the view is still current.
    pub(super) fn put_stamped(
        &self,
        entry: Entry,
        stamp: Option<Stamp>,
        is_current: impl FnOnce(u64) -> bool,
    ) {
        let addr = entry.addr();
        let name = self.names.as_ref().map(|names| (names, entry.whole_prefix(&self.shape)));
        let (gone, is_in) = self.put_in_shard(entry, stamp, is_current);
        self.forget_names(&gone);
        if let Some((names, name)) = name.filter(|_| is_in) {
            names.insert(&name, addr);
        }
    }

    /// Takes an entry in; returns the entries that had to go, and whether it is in.
    fn put_in_shard(
        &self,
        entry: Entry,
        stamp: Option<Stamp>,
        is_current: impl FnOnce(u64) -> bool,
    ) -> (Vec<Entry>, bool) {
        let mut shard = lock(self.shard(entry.addr()));
        let (shard, mut gone) = (&mut *shard, Vec::new());
        let changes = shard.changes.of(entry.addr());
        let is_exact = stamp.is_some_and(|it| {
            (changes == Some(it.changes) || BELIEVE_OLD_READ.is_armed()) && is_current(it.view)
        });
        let mut uses = 0;
        if let Some(place) = shard.place(entry.addr()) {
            let cached = &shard.ring[place];
            let there = &cached.entry;
            let is_same = there.first_word() == entry.first_word();
            let is_of_one_life = there.is_in_place() || there.first_word().is_born_by(entry.c());
            let is_later = there.c() > entry.c() && is_of_one_life;
            let stays = cached.is_exact && is_same && !BELIEVE_OLD_READ.is_armed();
            debug_assert!(
                !(stays && is_exact) || there.has_slots_of(&entry) || WRITE_SLOT_BESIDE.is_armed(),
                "INV-SMART-10: two exact entries of the node at {} differ",
                entry.addr()
            );
            if stays || !is_exact && is_later {
                return (gone, false);
            }
            uses = cached.uses;
            gone.push(shard.remove(place));
        }
        let is_in = shard.insert(entry, (is_exact, uses), &mut gone);
        (gone, is_in)
    }

    /// Changes of the node at `addr` so far; `None` if one is under way.
    pub(super) fn changes(&self, addr: GlobalAddr) -> Option<u64> {
        lock(self.shard(addr)).changes.of(addr)
    }

    /// A change of the node at `addr` begins, beside others, once no change has the node alone.
    pub(super) async fn begin_change(&self, addr: GlobalAddr) {
        while !lock(self.shard(addr)).changes.begin(addr) {
            let is_over = || !lock(self.shard(addr)).changes.is_alone(addr);
            self.waiting.park(addr.word(), is_over).await;
        }
    }

    /// Begins a change of the node at `addr` that has the node alone, if no other is under way and an exact entry says
    /// that slot `index` can change from `expected` to `new`.
    pub(super) fn begin_alone(&self, addr: GlobalAddr, index: usize, words: (Slot, Slot)) -> bool {
        let mut shard = lock(self.shard(addr));
        let shard = &mut *shard;
        let Some(place) = shard.place(addr) else { return false };
        let cached = &shard.ring[place];
        let is_exact = cached.is_exact && !shard.changes.are_under_way(addr);
        let may_begin = is_exact && cached.entry.holds(index, words)
            || WRITE_SLOT_BESIDE.is_armed() && words.0.0 == 0;
        if may_begin {
            shard.changes.begin_alone(addr);
        }
        may_begin
    }

    /// Returns whether a change has the node at `addr` alone.
    pub(super) fn is_alone(&self, addr: GlobalAddr) -> bool {
        lock(self.shard(addr)).changes.is_alone(addr)
    }

    /// A change of the node at `addr` has ended.
    pub(super) fn end_change(&self, addr: GlobalAddr, result: NodeResult) {
        let (gone, was_alone) = lock(self.shard(addr)).end_change(addr, result);
        self.forget_names(&gone);
        if was_alone {
            self.waiting.unpark(addr.word());
        }
    }

    /// Drops an entry whose node is not what it was.
    pub(super) fn forget(&self, entry: &Entry) {
        let mut shard = lock(self.shard(entry.addr()));
        if let Some(place) = shard.place(entry.addr())
            && shard.ring[place].entry.first_word() == entry.first_word()
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
                if is_gone(shard.ring[place].entry.prefix()) {
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
    /// Ends a change, and amends an exact entry; returns the entries that had to go, and whether the change had the
    /// node alone.
    fn end_change(&mut self, addr: GlobalAddr, result: NodeResult) -> (Vec<Entry>, bool) {
        let mut gone = Vec::new();
        let ChangeEnd { left, was_alone } = self.changes.end(addr);
        let Some(place) = self.place(addr) else { return (gone, was_alone) };
        let cached = &mut self.ring[place];
        match result {
            NodeResult::Nothing => {}
            NodeResult::Unknown => cached.is_exact = false,
            NodeResult::Slot { index, expected, new, c } if cached.is_exact => {
                // All of its words are current if nothing else is under way.
                let c = (left == 0).then_some(c);
                match cached.entry.with_slot(index, (expected, new), c) {
                    Some(entry) => {
                        let uses = cached.uses.max(1);
                        let old = self.remove(place);
                        if !self.insert(entry, (true, uses), &mut gone) {
                            // Otherwise the name of the old entry is the new one's.
                            gone.push(old);
                        }
                    }
                    None => cached.is_exact = false,
                }
            }
            NodeResult::Slot { .. } => {}
        }
        (gone, was_alone)
    }

    /// Takes in an entry of an address that has none, if there is room for it, and puts the entries that had to go
    /// into `gone`; returns whether it is in.
    fn insert(
        &mut self,
        entry: Entry,
        (is_exact, uses): (bool, u8),
        gone: &mut Vec<Entry>,
    ) -> bool {
        let bytes = self.bytes_of(&entry);
        if bytes > self.bytes_max {
            return false;
        }
        while self.bytes + bytes > self.bytes_max {
            gone.extend(self.evict());
        }
        self.bytes += bytes;
        if self.ring.len() == self.ring.capacity() {
            self.ring.reserve_exact(self.ring.len() / 8 + 4);
        }
        let (place, ring) = (self.ring.len(), &self.ring);
        self.places.insert_unique(hash(entry.addr()), place as u32, |place| hash_at(ring, *place));
        self.ring.push(Cached { entry, uses, is_exact });
        true
    }

    /// The place of an address in the ring.
    fn place(&self, addr: GlobalAddr) -> Option<usize> {
        let is_it = |place: &u32| self.ring[*place as usize].entry.addr() == addr;
        self.places.find(hash(addr), is_it).map(|place| *place as usize)
    }

    fn bytes_of(&self, entry: &Entry) -> usize {
        ENTRY_BYTES + entry.allocated() + self.more_bytes
    }

    fn remove(&mut self, place: usize) -> Entry {
        let last = self.ring.len() - 1;
        self.rename(place, None);
        if place != last {
            self.rename(last, Some(place));
        }
        let gone = self.ring.swap_remove(place).entry;
        self.bytes -= self.bytes_of(&gone);
        gone
    }

    /// Has the table say that the entry at a place of the ring is at another one, or nowhere.
    fn rename(&mut self, place: usize, new: Option<usize>) {
        let hash = hash_at(&self.ring, place as u32);
        let Ok(mut found) = self.places.find_entry(hash, |it| *it as usize == place) else {
            return;
        };
        match new {
            Some(new) => *found.get_mut() = new as u32,
            None => drop(found.remove()),
        }
    }

    /// Removes the next entry without uses; the hand counts one of each other entry down.
    fn evict(&mut self) -> Option<Entry> {
        loop {
            self.hand = if self.hand < self.ring.len() { self.hand } else { 0 };
            let cached = self.ring.get_mut(self.hand)?;
            let is_unused = cached.uses == 0;
            cached.uses = cached.uses.saturating_sub(1);
            let gone = is_unused.then(|| self.remove(self.hand));
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
    use std::pin::pin;
    use std::task::{Context, Waker};

    use farleaf_fabric::ServerId;

    use super::super::layout::{Edge, FirstWord, LeafClass, NodeType, fill_node};
    use super::super::mode::NodeMode;
    use super::*;

    const SHAPE: NodeForm =
        NodeForm { table: 7, wide: false, first: NodeType::SMALLEST, mode: NodeMode::Relocate };

    fn entry(number: u64, birth: u64, c: u64) -> Entry {
        let addr = GlobalAddr::new(ServerId(0), 64 * number);
        let class = LeafClass::of(64).expect("class");
        let slots = [9, 3].map(|byte| Slot::leaf(Edge::byte(byte), addr.plus(640), class));
        let mut words = [0; 8];
        let of = NodeType::SMALLEST;
        fill_node(
            &SHAPE,
            &mut words,
            FirstWord::new(7, addr, birth),
            of,
            (0, b""),
            slots.into_iter(),
        );
        Entry::of(&SHAPE, addr, c, &words, (b"", false)).expect("a node")
    }

    #[test]
    fn children_are_found_by_their_edges() {
        let entry = entry(1, 1, 1);
        let edge = |byte| entry.find(Edge::byte(byte)).map(|(_, slot)| slot.edge());
        assert_eq!(edge(3), Some(Edge::byte(3)));
        assert_eq!(edge(9), Some(Edge::byte(9)));
        assert_eq!((entry.find(Edge::byte(4)), entry.find(Edge::END)), (None, None));
        assert_eq!(entry.node_type(&SHAPE), Some(NodeType::SMALLEST));
    }

    #[test]
    fn the_budget_holds_and_what_is_used_stays() {
        let bytes = (ENTRY_BYTES + entry(1, 1, 1).allocated()) as u64;
        let cache = Cache::new(SHAPE, 4 * bytes, None);
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
        let none = Cache::new(SHAPE, 0, None);
        none.put(entry(1, 1, 1));
        assert_eq!(none.used(), (0, 0));
    }

    /// A full cache threw out what it had taken in last, and never learnt what was popular.
    #[test]
    fn new_entries_outlive_unused_old_ones() {
        let bytes = (ENTRY_BYTES + entry(1, 1, 1).allocated()) as u64;
        for names in [None, Some(Names::default())] {
            let more = if names.is_some() { NAME_BYTES as u64 } else { 0 };
            let cache = Cache::new(SHAPE, 32 * (bytes + more), names);
            (1..=100).for_each(|number| cache.put(entry(number, 1, 1)));
            let has = |number: u64| cache.get(GlobalAddr::new(ServerId(0), 64 * number)).is_some();
            let (last, first) = ((85..=100).filter(|it| has(*it)), (1..=50).filter(|it| has(*it)));
            assert_eq!((last.count() >= 12, first.count()), (true, 0));
        }
    }

    /// The words of an exact entry of a node with 6 slots, in the order of the slots.
    fn exact(cache: &Cache) -> Option<Vec<u64>> {
        let (entry, is_exact) = cache.get(GlobalAddr::new(ServerId(0), 64))?;
        let mut words = [0; 8];
        entry.fill(&mut words);
        is_exact.then(|| words[2..].to_vec())
    }

    fn leaf(byte: u8, number: u64) -> Slot {
        let addr = GlobalAddr::new(ServerId(0), 64 * number);
        Slot::leaf(Edge::byte(byte), addr, LeafClass::of(64).expect("class"))
    }

    /// Begins a change that need not wait.
    fn begin(cache: &Cache) {
        let begun = pin!(cache.begin_change(GlobalAddr::new(ServerId(0), 64)));
        let mut context = Context::from_waker(Waker::noop());
        assert!(begun.poll(&mut context).is_ready());
    }

    /// A READ of a node whose first slot leads to a leaf.
    fn read(cache: &Cache, stamp: Option<Stamp>) {
        let addr = GlobalAddr::new(ServerId(0), 64);
        let (mut words, of) = ([0; 8], NodeType::SMALLEST);
        let first_word = FirstWord::new(7, addr, 1);
        fill_node(&SHAPE, &mut words, first_word, of, (0, b""), [leaf(9, 7)].into_iter());
        let entry = Entry::with_places_of(&SHAPE, addr, 1, &words, b"").expect("a node");
        cache.put_stamped(entry, stamp, |view| view == 3);
    }

    #[test]
    fn an_entry_is_exact_until_its_node_changes_unseen() {
        let addr = GlobalAddr::new(ServerId(0), 64);
        let now = |cache: &Cache| cache.changes(addr).map(|changes| Stamp { view: 3, changes });
        let slot = |index, expected, new| NodeResult::Slot { index, expected, new, c: 8 };
        let first = [leaf(9, 7).0, 0, 0, 0, 0, 0];
        let cache = Cache::new(SHAPE, 1 << 20, None);
        read(&cache, None);
        assert_eq!(exact(&cache), None, "no stamp");
        read(&cache, now(&cache).map(|it| Stamp { view: 2, ..it }));
        assert_eq!(exact(&cache), None, "another view");
        let begun = now(&cache);
        begin(&cache);
        assert_eq!(cache.changes(addr), None, "a change is under way");
        cache.end_change(addr, NodeResult::Nothing);
        read(&cache, begun);
        assert_eq!(exact(&cache), None, "a change has ended since the READ began");
        read(&cache, now(&cache));
        assert_eq!(exact(&cache), Some(first.to_vec()));
        read(&cache, None);
        assert_eq!(exact(&cache), Some(first.to_vec()), "a hint does not take its place");
        begin(&cache);
        assert_eq!(exact(&cache), None, "a change is under way");
        cache.end_change(addr, slot(1, Slot(0), leaf(3, 5)));
        let second = [leaf(9, 7).0, leaf(3, 5).0, 0, 0, 0, 0];
        assert_eq!(exact(&cache), Some(second.to_vec()));
        assert_eq!(cache.get(addr).map(|(entry, _)| entry.c()), Some(8));
        assert_eq!(
            cache.get(addr).and_then(|(entry, _)| entry.find(Edge::byte(3))),
            Some((0, leaf(3, 5)))
        );
        // Emptied, and filled again.
        begin(&cache);
        cache.end_change(addr, slot(0, leaf(9, 7), Slot::tomb(Edge::byte(9))));
        assert_eq!(cache.get(addr).and_then(|(entry, _)| entry.find(Edge::byte(9))), None);
        begin(&cache);
        cache.end_change(addr, slot(0, Slot::tomb(Edge::byte(9)), leaf(9, 6)));
        let third = [leaf(9, 6).0, leaf(3, 5).0, 0, 0, 0, 0];
        assert_eq!(exact(&cache), Some(third.to_vec()));
        begin(&cache);
        cache.end_change(addr, NodeResult::Unknown);
        assert_eq!(exact(&cache), None, "nobody knows");
        assert!(cache.get(addr).is_some(), "it is a hint");
    }

    #[test]
    fn changes_of_a_node_may_end_in_any_order() {
        let addr = GlobalAddr::new(ServerId(0), 64);
        let slot = |index, expected, new| NodeResult::Slot { index, expected, new, c: 8 };
        let made = || {
            let cache = Cache::new(SHAPE, 1 << 20, None);
            let changes = cache.changes(addr).expect("none is under way");
            read(&cache, Some(Stamp { view: 3, changes }));
            begin(&cache);
            begin(&cache);
            cache
        };
        // Two slots.
        let cache = made();
        cache.end_change(addr, slot(2, Slot(0), leaf(4, 2)));
        assert_eq!(exact(&cache), None, "the other one is under way");
        cache.end_change(addr, slot(1, Slot(0), leaf(3, 5)));
        assert_eq!(exact(&cache), Some(vec![leaf(9, 7).0, leaf(3, 5).0, leaf(4, 2).0, 0, 0, 0]));
        // One slot twice: in its order, and in the other one.
        let tomb = Slot::tomb(Edge::byte(9));
        let (empties, fills) = (slot(0, leaf(9, 7), tomb), slot(0, tomb, leaf(9, 6)));
        let cache = made();
        cache.end_change(addr, empties);
        cache.end_change(addr, fills);
        assert_eq!(exact(&cache), Some(vec![leaf(9, 6).0, 0, 0, 0, 0, 0]));
        let cache = made();
        cache.end_change(addr, fills);
        cache.end_change(addr, empties);
        assert_eq!(exact(&cache), None, "what the entry held was not what the CAS expected");
    }

    #[test]
    fn a_change_has_its_node_alone_if_the_entry_is_exact() {
        let addr = GlobalAddr::new(ServerId(0), 64);
        let cache = Cache::new(SHAPE, 1 << 20, None);
        let alone = |index, expected, new| cache.begin_alone(addr, index, (expected, new));
        assert!(!alone(1, Slot(0), leaf(3, 5)), "no entry");
        read(&cache, None);
        assert!(!alone(1, Slot(0), leaf(3, 5)), "a hint");
        let changes = cache.changes(addr).expect("none is under way");
        read(&cache, Some(Stamp { view: 3, changes }));
        assert!(!alone(0, Slot(0), leaf(3, 5)), "another edge has the slot");
        assert!(!alone(1, Slot(0), leaf(9, 5)), "the edge has another slot");
        begin(&cache);
        assert!(!alone(1, Slot(0), leaf(3, 5)), "another change is under way");
        cache.end_change(addr, NodeResult::Nothing);
        assert!(alone(1, Slot(0), leaf(3, 5)));
        assert!(!alone(2, Slot(0), leaf(4, 5)), "another one has it alone");
        let mut waits = pin!(cache.begin_change(addr));
        let mut context = Context::from_waker(Waker::noop());
        assert!(waits.as_mut().poll(&mut context).is_pending());
        cache.end_change(
            addr,
            NodeResult::Slot { index: 1, expected: Slot(0), new: leaf(3, 5), c: 2 },
        );
        assert!(waits.as_mut().poll(&mut context).is_ready());
        cache.end_change(addr, NodeResult::Nothing);
        assert_eq!(exact(&cache), Some(vec![leaf(9, 7).0, leaf(3, 5).0, 0, 0, 0, 0]));
    }

    #[test]
    fn a_later_look_at_a_node_stays() {
        let cache = Cache::new(SHAPE, 1 << 10, None);
        cache.put(entry(1, 1, 5));
        cache.put(entry(1, 1, 4));
        let c = || cache.get(GlobalAddr::new(ServerId(0), 64)).map(|(entry, _)| entry.c());
        assert_eq!(c(), Some(5));
        cache.put(entry(1, 6, 6));
        assert_eq!(c(), Some(6));
        // That of a life before.
        cache.put(entry(1, 1, 5));
        assert_eq!(c(), Some(5));
    }
}
