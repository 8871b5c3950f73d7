//! Cache: entries of the skip table that this compute server remembers, up to a budget of bytes.
//!
//! A remembered entry saves the probe of a lookup. It may have left the tree, so it is a start as any other: its
//! reader believes unsealed words alone. What must hold is that it leads to no freed memory.
//!
//! - `INV-DART-7` An operation uses what is remembered only after an operation of its compute server has read
//!   the check line at the same moment (pool, INV-EPOCH-7), and has forgotten what notices name. Before a client
//!   retires a node that had entries, it takes them out and then leaves a notice. So what is remembered at that
//!   moment is retired after that READ, and its memory is not used again while the operation runs.
//! - `INV-DART-8` An entry that an operation has probed is remembered only if its node was not forgotten since the
//!   operation began. Else its notice may have been heeded before.
//!
//! Notices lie in a ring of the meta object. The word `head` of the check line counts them (FAA), and each goes
//! into its place by CAS over what an earlier lap left. A reader goes through the places from the head that it saw
//! last. A place that is not written yet is looked at again the next time: its client has retired nothing yet.
//! If more than a ring of notices have come, the reader forgets all, as it does if the *era* has changed: recoveries
//! and sweeps raise that, because they free nodes without notices. `tests.rs` models this.
//!
//! A new skip table, with other lengths or not, changes nothing here: a remembered entry goes by prefix and node. From
//! the first table on there always is one, and every node that is retired then has its notice, whatever its length.

use std::sync::atomic::{AtomicU64, Ordering};

use farleaf_fabric::GlobalAddr;
use farleaf_index::IndexError;
use farleaf_index::sync::{Mutex, lock};
use farleaf_pool::Reliable;

use super::counters::Counters;
use super::descent::NodeRef;
use super::meta::{CheckLine, META_HEAD, META_RING, RING_PLACES};
use super::word::DartNodeType;

farleaf_fabric::canaries! {
    pub(crate) IGNORE_NOTICES = "ignore-notices",
        "a remembered entry is used without a look at notices";
}

/// A cache with less than so many bytes for each shard has one.
const SHARD_BYTES_MIN: u64 = 16 << 10;
const SHARDS: usize = 64;
/// Bytes of an entry with its share of both tables of chains, at most.
const ENTRY_BYTES: usize = size_of::<CacheSlot>() + 16;
const NONE: u32 = u32::MAX;
/// The nodes forgotten last that are known by their names. An operation during which more were forgotten remembers
/// nothing.
const FORGOTTEN: u64 = 128;
/// Slots that a shard begins with.
const SLOTS_MIN: usize = 16;

/// Bits of a notice that hold the node's address, in units of 64 bytes; the others hold the lap.
const ADDR_BITS: u32 = 42;
const LAPS: u64 = 1 << (64 - ADDR_BITS);

/// A place of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Notice(u64);

/// A place's content, seen by the reader of a notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// The notice: its node.
    Node(GlobalAddr),
    /// Not yet written.
    NotYet,
    /// A later lap has overwritten it.
    Overrun,
}

impl Notice {
    /// Notice number `number`, of `node`.
    fn of(node: GlobalAddr, number: u64) -> Notice {
        let place = u64::from(node.server().0) << 34 | node.offset() >> 6;
        Notice(Notice::lap(number) << ADDR_BITS | place)
    }

    /// Laps count from 1: a place that was never written is 0.
    fn lap(number: u64) -> u64 {
        (number / RING_PLACES + 1) % LAPS
    }

    /// Compares the place with notice `number`.
    fn of_number(self, number: u64) -> Seen {
        let ahead = (self.0 >> ADDR_BITS).wrapping_sub(Notice::lap(number)) % LAPS;
        let place = self.0 & ((1 << ADDR_BITS) - 1);
        match ahead {
            0 if place == 0 => Seen::NotYet,
            0 => {
                let server = farleaf_fabric::ServerId((place >> 34) as u16);
                Seen::Node(GlobalAddr::new(server, (place & ((1 << 34) - 1)) << 6))
            }
            ahead if self.0 != 0 && ahead < LAPS / 2 => Seen::Overrun,
            _ => Seen::NotYet,
        }
    }
}

/// Returns the address of the place of notice `number`.
fn place(meta: GlobalAddr, number: u64) -> GlobalAddr {
    meta.plus(META_RING + 8 * (number % RING_PLACES))
}

/// Tells every compute server that `node` is about to be retired. It has no entry any more.
///
/// Cost: 1 FAA, 1 READ and 1 CAS, in 3 round trips.
pub(super) async fn notify(
    io: Reliable<'_>,
    meta: GlobalAddr,
    node: GlobalAddr,
) -> Result<(), IndexError> {
    let mut ops = io.client().ops();
    // If a completion is lost, one more number is drawn, and the place of the lost one stays unwritten.
    let at = ops.faa(meta.plus(META_HEAD), 1);
    let number = io.post_many(ops).await?.old(at);
    let (at, new) = (place(meta, number), Notice::of(node, number));
    loop {
        let found = io.word(at).await?;
        if Notice(found).of_number(number) != Seen::NotYet {
            // A ring ahead: all that have not heeded this notice forget all.
            return Ok(());
        }
        if io.cas(at, found, new.0).await? == found {
            return Ok(());
        }
    }
}

/// Entries in this compute server's memory.
#[derive(Debug)]
pub(super) struct EntryCache {
    /// Counts what was forgotten (`INV-DART-8`).
    generation: AtomicU64,
    /// The nodes forgotten last: that of number `n` of `generation` at place `n` modulo [`FORGOTTEN`].
    forgotten: Box<[AtomicU64]>,
    heeded: Mutex<Heeded>,
    shards: Box<[Mutex<CacheShard>]>,
}

/// The check line by which notices were heeded last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Heeded {
    era: u64,
    /// Notices below this one are heeded.
    head: u64,
}

/// Work that a check line asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    /// So many notices are not heeded yet.
    Notices(u64),
    /// More than the ring holds.
    Overrun,
    /// The era has changed.
    Era,
}

impl Heeded {
    /// Compares what is heeded with a check line. Of two operations that have read one, the later READ may be
    /// heeded first: the earlier line then asks for nothing.
    fn due(self, line: &CheckLine) -> Due {
        if self.era != line.era {
            return Due::Era;
        }
        match line.head.wrapping_sub(self.head) {
            count if count <= RING_PLACES => Due::Notices(count),
            count if count > u64::MAX / 2 => Due::Notices(0),
            _ => Due::Overrun,
        }
    }
}

impl EntryCache {
    /// An empty cache of at most `bytes`.
    pub(super) fn new(bytes: u64) -> EntryCache {
        let shards = if bytes / SHARDS as u64 >= SHARD_BYTES_MIN { SHARDS } else { 1 };
        let most = usize::try_from(bytes).unwrap_or(usize::MAX) / shards / ENTRY_BYTES;
        let most = most.min(NONE as usize - 1);
        let shard = |_| Mutex::new(CacheShard { most, free: NONE, ..CacheShard::default() });
        EntryCache {
            generation: AtomicU64::new(0),
            forgotten: (0..FORGOTTEN).map(|_| AtomicU64::new(0)).collect(),
            heeded: Mutex::new(Heeded::default()),
            shards: (0..shards).map(shard).collect(),
        }
    }

    /// A number that changes whenever something is forgotten; to be asked for before the probe whose entry may be
    /// remembered.
    #[inline]
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }

    fn shard(&self, hash: u64) -> &Mutex<CacheShard> {
        &self.shards[(hash >> 40) as usize % self.shards.len()]
    }

    /// The node behind a prefix of `length` bytes.
    #[inline]
    pub(super) fn find(&self, hash: u64, length: usize) -> Option<NodeRef> {
        lock(self.shard(hash)).find(hash, length)
    }

    /// Remembers the node behind a prefix, unless it may have been forgotten since `generation`.
    pub(super) fn learn(&self, generation: u64, hash: u64, length: usize, node: NodeRef) {
        let mut shard = lock(self.shard(hash));
        // Under the lock: a thread that forgets the node has named it before it comes to this shard.
        if !self.may_be_forgotten(node.addr, generation) {
            shard.put(hash, length, node);
        }
    }

    /// Returns whether a node may have been forgotten since `generation`.
    fn may_be_forgotten(&self, node: GlobalAddr, generation: u64) -> bool {
        let now = self.generation();
        if now.wrapping_sub(generation) > FORGOTTEN {
            return true;
        }
        let is_it = |number: u64| {
            self.forgotten[(number % FORGOTTEN) as usize].load(Ordering::SeqCst) == node.word()
        };
        (generation..now).any(is_it)
            // A later node may have taken the place of one that was to be looked at.
            || self.generation().wrapping_sub(generation) > FORGOTTEN
    }

    /// Forgets the node behind a prefix, which led nowhere.
    pub(super) fn forget(&self, hash: u64, length: usize) {
        let mut shard = lock(self.shard(hash));
        if let Some(slot) = shard.position(hash, length) {
            shard.remove(slot);
        }
    }

    /// Forgets a node.
    pub(super) fn forget_node(&self, node: GlobalAddr) {
        let number = self.generation.fetch_add(1, Ordering::SeqCst);
        self.forgotten[(number % FORGOTTEN) as usize].store(node.word(), Ordering::SeqCst);
        for shard in &self.shards {
            lock(shard).remove_node(node);
        }
    }

    /// Heeds the notices up to a check line, which the caller's operation has read.
    ///
    /// Cost: nothing, unless a notice has come since the last time and something is remembered; else 1 READ.
    pub(super) async fn heed(
        &self,
        io: Reliable<'_>,
        meta: GlobalAddr,
        line: &CheckLine,
        counters: &Counters,
    ) -> Result<(), IndexError> {
        let before = *lock(&self.heeded);
        let count = match before.due(line) {
            _ if IGNORE_NOTICES.is_armed() => return Ok(()),
            Due::Notices(0) => return Ok(()),
            Due::Notices(count) if !self.is_empty() => count,
            due => {
                self.forget_all(line);
                counters.cache_emptied.add(u64::from(due == Due::Overrun));
                return Ok(());
            }
        };
        let mut ops = io.client().ops();
        let first = before.head % RING_PLACES;
        let parts = [count.min(RING_PLACES - first), count.saturating_sub(RING_PLACES - first)];
        ops.read(place(meta, first), io.buf(8 * parts[0] as usize));
        if parts[1] > 0 {
            ops.read(place(meta, 0), io.buf(8 * parts[1] as usize));
        }
        let ops = io.post_many(ops).await?;
        let places = (0..parts.len()).filter(|part| parts[*part] > 0);
        let words: Vec<u64> = places.flat_map(|part| ops.buf(part).words().to_vec()).collect();
        let (mut nodes, mut head) = (Vec::new(), None);
        for (number, word) in (before.head..).zip(words) {
            match Notice(word).of_number(number) {
                Seen::Node(node) => nodes.push(node),
                // Looked at again the next time; what comes behind counts now.
                Seen::NotYet => head = head.or(Some(number)),
                Seen::Overrun => {
                    counters.cache_emptied.add(1);
                    self.forget_all(line);
                    return Ok(());
                }
            }
        }
        counters.notices_heeded.add(nodes.len() as u64);
        let mut heeded = lock(&self.heeded);
        for node in nodes {
            self.forget_node(node);
        }
        if heeded.era == before.era {
            heeded.head = heeded.head.max(head.unwrap_or(line.head));
        }
        Ok(())
    }

    /// Forgets all. The empty cache has heeded every notice up to the root line.
    fn forget_all(&self, line: &CheckLine) {
        let mut heeded = lock(&self.heeded);
        self.generation.fetch_add(FORGOTTEN + 1, Ordering::SeqCst);
        for shard in &self.shards {
            lock(shard).clear();
        }
        let head = heeded.head.max(line.head);
        *heeded = Heeded { era: line.era, head };
    }

    fn is_empty(&self) -> bool {
        self.shards.iter().all(|shard| lock(shard).count == 0)
    }

    /// Bytes in use, and entries.
    pub(super) fn used(&self) -> (u64, u64) {
        let sum = |sum: (u64, u64), shard: &Mutex<CacheShard>| {
            let shard = lock(shard);
            (sum.0 + shard.bytes() as u64, sum.1 + u64::from(shard.count))
        };
        self.shards.iter().fold((0, 0), sum)
    }
}

/// One remembered entry.
#[derive(Clone, Copy, Debug)]
struct CacheSlot {
    hash: u64,
    node: GlobalAddr,
    /// The next slot of its prefix's chain; of a free slot, the next free one.
    next_of_prefix: u32,
    next_of_node: u32,
    length: u16,
    plen: u16,
    kind: DartNodeType,
    is_used: bool,
    is_free: bool,
}

/// A part of the cache: slots, with chains by prefix and by node.
#[derive(Debug, Default)]
struct CacheShard {
    slots: Vec<CacheSlot>,
    prefixes: Vec<u32>,
    nodes: Vec<u32>,
    free: u32,
    hand: usize,
    count: u32,
    /// Slots at most.
    most: usize,
}

impl CacheShard {
    fn chain_of(&self, word: u64) -> usize {
        (word.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33) as usize & (self.prefixes.len() - 1)
    }

    fn position(&self, hash: u64, length: usize) -> Option<u32> {
        if self.prefixes.is_empty() {
            return None;
        }
        let mut at = self.prefixes[self.chain_of(hash)];
        while let Some(slot) = self.slots.get(at as usize) {
            if slot.hash == hash && usize::from(slot.length) == length {
                return Some(at);
            }
            at = slot.next_of_prefix;
        }
        None
    }

    fn find(&mut self, hash: u64, length: usize) -> Option<NodeRef> {
        let at = self.position(hash, length)?;
        let slot = &mut self.slots[at as usize];
        slot.is_used = true;
        Some(NodeRef { addr: slot.node, kind: slot.kind, plen: slot.plen.into() })
    }

    fn put(&mut self, hash: u64, length: usize, node: NodeRef) {
        let (Ok(short), Ok(plen)) = (u16::try_from(length), u16::try_from(node.plen)) else {
            return;
        };
        if self.most == 0 {
            return;
        }
        if let Some(at) = self.position(hash, length) {
            self.remove(at);
        }
        let slot = CacheSlot {
            hash,
            node: node.addr,
            next_of_prefix: NONE,
            next_of_node: NONE,
            length: short,
            plen,
            kind: node.kind,
            is_used: false,
            is_free: false,
        };
        if self.free == NONE && self.slots.len() == self.most {
            self.evict();
        }
        let at = match self.free {
            NONE => {
                if self.slots.len() == self.slots.capacity() {
                    let more = self.slots.len().max(SLOTS_MIN).min(self.most - self.slots.len());
                    self.slots.reserve_exact(more);
                }
                self.slots.push(slot);
                self.slots.len() as u32 - 1
            }
            at => {
                self.free = self.slots[at as usize].next_of_prefix;
                self.slots[at as usize] = slot;
                at
            }
        };
        self.count += 1;
        if self.prefixes.len() < self.slots.len() {
            self.rehash();
        } else {
            self.link(at);
        }
    }

    fn link(&mut self, at: u32) {
        let slot = self.slots[at as usize];
        let (prefix, node) = (self.chain_of(slot.hash), self.chain_of(slot.node.word()));
        let slot = &mut self.slots[at as usize];
        slot.next_of_prefix = std::mem::replace(&mut self.prefixes[prefix], at);
        slot.next_of_node = std::mem::replace(&mut self.nodes[node], at);
    }

    /// Makes as many chains as there may be slots before the next time.
    fn rehash(&mut self) {
        let chains = self.slots.len().next_power_of_two();
        self.prefixes = vec![NONE; chains];
        self.nodes = vec![NONE; chains];
        for at in 0..self.slots.len() {
            if !self.slots[at].is_free {
                self.link(at as u32);
            }
        }
    }

    fn remove(&mut self, at: u32) {
        let slot = self.slots[at as usize];
        let (prefix, node) = (self.chain_of(slot.hash), self.chain_of(slot.node.word()));
        if self.prefixes[prefix] == at {
            self.prefixes[prefix] = slot.next_of_prefix;
        } else {
            let mut before = self.prefixes[prefix];
            while self.slots[before as usize].next_of_prefix != at {
                before = self.slots[before as usize].next_of_prefix;
            }
            self.slots[before as usize].next_of_prefix = slot.next_of_prefix;
        }
        if self.nodes[node] == at {
            self.nodes[node] = slot.next_of_node;
        } else {
            let mut before = self.nodes[node];
            while self.slots[before as usize].next_of_node != at {
                before = self.slots[before as usize].next_of_node;
            }
            self.slots[before as usize].next_of_node = slot.next_of_node;
        }
        let slot = &mut self.slots[at as usize];
        (slot.is_free, slot.next_of_prefix) = (true, self.free);
        self.free = at;
        self.count -= 1;
    }

    fn remove_node(&mut self, node: GlobalAddr) {
        if self.count == 0 {
            return;
        }
        let mut at = self.nodes[self.chain_of(node.word())];
        while let Some(slot) = self.slots.get(at as usize).copied() {
            if slot.node == node {
                self.remove(at);
            }
            at = slot.next_of_node;
        }
    }

    /// Removes the next entry that has not been used since the hand passed it. All slots are in use.
    fn evict(&mut self) {
        loop {
            self.hand = if self.hand < self.slots.len() { self.hand } else { 0 };
            let at = self.hand;
            self.hand += 1;
            if !std::mem::take(&mut self.slots[at].is_used) {
                self.remove(at as u32);
                return;
            }
        }
    }

    fn clear(&mut self) {
        self.slots.clear();
        self.prefixes.fill(NONE);
        self.nodes.fill(NONE);
        (self.free, self.count, self.hand) = (NONE, 0, 0);
    }

    fn bytes(&self) -> usize {
        self.slots.capacity() * size_of::<CacheSlot>() + 8 * self.prefixes.len()
    }
}

#[cfg(test)]
mod tests {
    use farleaf_fabric::ServerId;

    use super::*;

    fn node(number: u64) -> NodeRef {
        let addr = GlobalAddr::new(ServerId((number % 3) as u16), 64 * number);
        NodeRef { addr, kind: DartNodeType::N8, plen: 3 }
    }

    fn hash(number: u64) -> u64 {
        number.wrapping_mul(0xd134_2543_de82_ef95)
    }

    #[test]
    fn entries_are_found_until_their_node_is_forgotten() {
        let cache = EntryCache::new(1 << 20);
        for number in 1..=1_000 {
            for length in [2, 3] {
                cache.learn(cache.generation(), hash(number), length, node(number));
            }
        }
        assert_eq!(cache.used().1, 2_000);
        for number in 1..=1_000 {
            assert_eq!(cache.find(hash(number), 2), Some(node(number)));
            assert_eq!(cache.find(hash(number), 4), None, "another length");
        }
        for number in (1..=1_000).step_by(2) {
            cache.forget_node(node(number).addr);
        }
        for number in 1..=1_000 {
            let is_there = number % 2 == 0;
            assert_eq!(cache.find(hash(number), 3), is_there.then(|| node(number)));
        }
        cache.forget(hash(2), 2);
        assert_eq!((cache.find(hash(2), 2), cache.find(hash(2), 3)), (None, Some(node(2))));
        cache.learn(cache.generation(), hash(2), 3, node(5_000));
        assert_eq!(cache.find(hash(2), 3), Some(node(5_000)));
        assert_eq!(cache.used().1, 999);
    }

    #[test]
    fn nothing_is_learned_that_may_have_been_forgotten() {
        let cache = EntryCache::new(1 << 20);
        let before = cache.generation();
        cache.forget_node(node(7).addr);
        cache.forget_node(node(9).addr);
        cache.learn(before, hash(7), 2, node(7));
        assert_eq!(cache.find(hash(7), 2), None);
        cache.learn(before, hash(8), 2, node(8));
        assert_eq!(cache.find(hash(8), 2), Some(node(8)), "others were forgotten");
        cache.learn(cache.generation(), hash(7), 2, node(7));
        assert_eq!(cache.find(hash(7), 2), Some(node(7)));
        // More than are known by name, or all.
        let before = cache.generation();
        (0..=FORGOTTEN).for_each(|_| cache.forget_node(node(9).addr));
        cache.learn(before, hash(10), 2, node(10));
        assert_eq!(cache.find(hash(10), 2), None);
        let before = cache.generation();
        let root = crate::dart::word::SlotWord::from_raw(0);
        let line = CheckLine { root, tables: 0, era: 1, head: 0, is_remembered: false };
        cache.forget_all(&line);
        cache.learn(before, hash(10), 2, node(10));
        assert_eq!(cache.find(hash(10), 2), None);
    }

    #[test]
    fn a_check_line_that_is_heeded_late_asks_for_nothing() {
        let root = crate::dart::word::SlotWord::from_raw(0);
        let line = |head, era| CheckLine { root, tables: 0, era, head, is_remembered: false };
        let heeded = Heeded { head: 5, ..Heeded::default() };
        assert_eq!(heeded.due(&line(3, 0)), Due::Notices(0));
        assert_eq!(heeded.due(&line(5, 0)), Due::Notices(0));
        assert_eq!(heeded.due(&line(7, 0)), Due::Notices(2));
        assert_eq!(heeded.due(&line(5 + RING_PLACES, 0)), Due::Notices(RING_PLACES));
        assert_eq!(heeded.due(&line(6 + RING_PLACES, 0)), Due::Overrun);
        assert_eq!(heeded.due(&line(5, 1)), Due::Era);
    }

    #[test]
    fn the_budget_holds_and_what_is_used_stays() {
        for bytes in [0, 100, 400, 4_096, 1 << 16, 3 << 20] {
            let cache = EntryCache::new(bytes);
            cache.learn(cache.generation(), hash(0), 2, node(1));
            for number in 1..20_000 {
                cache.learn(cache.generation(), hash(number), 2, node(number));
                if number % 2 == 0 && bytes >= 400 {
                    assert_eq!(cache.find(hash(0), 2), Some(node(1)), "{bytes}: {number}");
                }
            }
            let (used, entries) = cache.used();
            assert!(used <= bytes, "{used} of {bytes} bytes");
            assert!(entries * 70 >= bytes.min(20_000 * 70) || bytes < 400, "{entries} in {bytes}");
        }
    }

    #[test]
    fn notices_tell_their_number() {
        let addr = GlobalAddr::new(ServerId(255), (1 << 40) - 64);
        let wrap = LAPS * RING_PLACES;
        for number in
            [0, 1, RING_PLACES, 7 * RING_PLACES + 3, wrap - 1, wrap, wrap + 5 * RING_PLACES]
        {
            let notice = Notice::of(addr, number);
            assert_eq!(notice.of_number(number), Seen::Node(addr), "{number}");
            assert_eq!(notice.of_number(number + RING_PLACES), Seen::NotYet);
            assert_eq!(Notice(0).of_number(number), Seen::NotYet);
            if number >= RING_PLACES {
                assert_eq!(notice.of_number(number - RING_PLACES), Seen::Overrun);
            }
        }
    }
}
