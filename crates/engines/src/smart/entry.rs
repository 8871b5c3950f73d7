//! Entry: a cached node in one allocation, with slots that take as few bytes as they can.
//!
//! ```text
//! word   0 address   1 c   2 first word   3 header   4 base 0..46, slots 47..55, width 56..58, flags 59..61
//! bytes  length of the prefix, 2 bytes | kind, if all slots have one | prefix | low parts, 1 or 2 bytes each |
//!        high parts, `width` bytes each | places, 2 bytes each, or nothing
//! ```
//!
//! The low part of a slot is its edge, and its kind unless all slots have one. The high part is the address of the
//! child: 0 if there is none, else one more than its distance from `base`, the lowest such address. The children of a
//! node that a bulk load has made lie together, so a byte or two tell them apart.

use std::sync::Arc;

use farleaf_fabric::GlobalAddr;
use zerocopy::IntoBytes;

use super::layout::{Edge, FirstWord, Node, NodeForm, NodeType, Slot};

/// The words in front of the bytes.
const WORDS: usize = 5;
/// The word of the member's view of the epoch.
const C: usize = 1;
/// The word of the base and the numbers, and the bits of the base.
const NUMBERS: usize = 4;
const BASE_BITS: u32 = 47;
/// Bytes of the high part of a slot that keeps its 8 bytes.
const WIDTH_MAX: usize = 6;
/// Bytes that a clone shares with the first: the counts of an `Arc`.
const COUNTS: usize = 16;

/// A cached node. A clone is the same.
#[derive(Clone, Debug)]
pub(super) struct Entry(Arc<[u64]>);

/// The lengths of the parts of an entry.
#[derive(Clone, Copy, Debug)]
struct Numbers {
    prefix: usize,
    slots: usize,
    width: usize,
    has_places: bool,
    is_in_place: bool,
    /// All slots have one kind.
    is_alike: bool,
}

impl Numbers {
    fn word(self) -> u64 {
        let flags = [self.has_places, self.is_in_place, self.is_alike];
        let flags = flags.into_iter().zip(59..).map(|(flag, at)| u64::from(flag) << at);
        (self.slots as u64) << BASE_BITS | (self.width as u64) << 56 | flags.sum::<u64>()
    }

    fn of(word: u64, prefix: [u8; 2]) -> Numbers {
        let flag = |at: u32| word >> at & 1 != 0;
        Numbers {
            prefix: usize::from(u16::from_le_bytes(prefix)),
            slots: (word >> BASE_BITS & 0x1ff) as usize,
            width: (word >> 56 & 7) as usize,
            has_places: flag(59),
            is_in_place: flag(60),
            is_alike: flag(61),
        }
    }

    /// The first byte of the prefix.
    fn prefix_at(self) -> usize {
        2 + usize::from(self.is_alike)
    }

    fn low_at(self) -> usize {
        self.prefix_at() + self.prefix
    }

    fn low_bytes(self) -> usize {
        2 - usize::from(self.is_alike)
    }

    fn high_at(self) -> usize {
        self.low_at() + self.low_bytes() * self.slots
    }

    fn places_at(self) -> usize {
        self.high_at() + self.width * self.slots
    }

    fn end(self) -> usize {
        self.places_at() + if self.has_places { 2 * self.slots } else { 0 }
    }
}

impl Entry {
    /// Remembers a live node on the way to `key`, by a READ that began when the view was `c`: the slots that have
    /// children in the order of their edges. If objects point back, in that of the node; if nodes are cached whole,
    /// every slot, in 8 bytes.
    pub(super) fn of(
        shape: &NodeForm,
        addr: GlobalAddr,
        c: u64,
        words: &[u64],
        (key, is_whole): (&[u8], bool),
    ) -> Option<Entry> {
        let node = Node::new(shape, words);
        node.node_type()?;
        let has_child = |slot: &Slot| slot.has_child();
        let is_in_place = is_whole || shape.mode.keeps_order();
        let slots = node.slots().map(Slot::thawed);
        let kept: Vec<Slot> = if is_whole {
            slots.map(|slot| if slot.has_child() { slot } else { Slot(0) }).collect()
        } else if is_in_place {
            // Slots fill from left to right; one READ may have missed some.
            slots.take_while(has_child).collect()
        } else {
            let mut kept: Vec<Slot> = slots.filter(has_child).collect();
            kept.sort_unstable_by_key(|slot| slot.edge());
            kept
        };
        let head = [addr.word(), c, words[0], words[1]];
        let prefix = key.get(..node.depth())?;
        Some(Entry::packed(head, prefix, &kept, &[], (is_in_place, is_whole)))
    }

    /// As [`Entry::of`], with the slots that have no child and the places of all: an entry that may be exact, or that
    /// tells the place of a slot in a node that never leaves the tree.
    pub(super) fn with_places_of(
        shape: &NodeForm,
        addr: GlobalAddr,
        c: u64,
        words: &[u64],
        key: &[u8],
    ) -> Option<Entry> {
        let node = Node::new(shape, words);
        node.node_type()?;
        let used = node.slots().enumerate().filter(|(_, slot)| !slot.is_empty());
        let mut used: Vec<(Slot, u16)> =
            used.map(|(place, slot)| (slot.thawed(), place as u16)).collect();
        used.sort_unstable_by_key(|(slot, _)| slot.edge());
        let (slots, places): (Vec<Slot>, Vec<u16>) = used.into_iter().unzip();
        let head = [addr.word(), c, words[0], words[1]];
        let prefix = key.get(..node.depth())?;
        Some(Entry::packed(head, prefix, &slots, &places, (false, false)))
    }

    /// Packs slots. Their places are kept unless they are in order: so are those of a node that a bulk load has made.
    fn packed(
        head: [u64; 4],
        prefix: &[u8],
        slots: &[Slot],
        places: &[u16],
        (is_in_place, is_whole): (bool, bool),
    ) -> Entry {
        let parts = slots.iter().map(|slot| slot.parts());
        let highs = || parts.clone().map(|(_, high)| high).filter(|high| *high != 0);
        let base = highs().min().unwrap_or(0);
        let distance = |high: u64| if high == 0 { 0 } else { high - base + 1 };
        let most = highs().max().map_or(0, distance);
        let needed = (u64::BITS - most.leading_zeros()).div_ceil(8) as usize;
        let kind = parts.clone().next().map(|(low, _)| low >> 8);
        let numbers = Numbers {
            prefix: prefix.len(),
            slots: slots.len(),
            width: if is_whole { WIDTH_MAX } else { needed },
            has_places: places.iter().enumerate().any(|(at, place)| at != usize::from(*place)),
            is_in_place,
            is_alike: !is_whole && parts.clone().all(|(low, _)| Some(low >> 8) == kind),
        };
        let (width, low_bytes) = (numbers.width, numbers.low_bytes());
        let mut entry: Arc<[u64]> =
            std::iter::repeat_n(0, WORDS + numbers.end().div_ceil(8)).collect();
        // Nobody shares it yet, so nothing is copied.
        let words = Arc::make_mut(&mut entry);
        words[..NUMBERS].copy_from_slice(&head);
        words[NUMBERS] = base | numbers.word();
        let bytes = words[WORDS..].as_mut_bytes();
        bytes[..2].copy_from_slice(&(prefix.len() as u16).to_le_bytes());
        if numbers.is_alike {
            bytes[2] = kind.unwrap_or(0) as u8;
        }
        bytes[numbers.prefix_at()..][..prefix.len()].copy_from_slice(prefix);
        for (at, (low, high)) in parts.enumerate() {
            let (low, high) = (low.to_le_bytes(), distance(high).to_le_bytes());
            bytes[numbers.low_at() + low_bytes * at..][..low_bytes]
                .copy_from_slice(&low[..low_bytes]);
            bytes[numbers.high_at() + width * at..][..width].copy_from_slice(&high[..width]);
        }
        for (at, place) in places.iter().enumerate().filter(|_| numbers.has_places) {
            bytes[numbers.places_at() + 2 * at..][..2].copy_from_slice(&place.to_le_bytes());
        }
        Entry(entry)
    }

    pub(super) fn addr(&self) -> GlobalAddr {
        GlobalAddr::from_word(self.0[0]).unwrap_or(GlobalAddr::NULL)
    }

    /// The member's view of the epoch before its words were READ.
    pub(super) fn c(&self) -> u64 {
        self.0[C]
    }

    pub(super) fn first_word(&self) -> FirstWord {
        FirstWord(self.0[2])
    }

    pub(super) fn node_type(&self, shape: &NodeForm) -> Option<NodeType> {
        self.head(shape).node_type()
    }

    /// Its first word and header, as a node without slots.
    pub(super) fn head(&self, shape: &NodeForm) -> Node<'_> {
        Node::new(shape, &self.0[2..4])
    }

    fn numbers(&self) -> Numbers {
        let bytes = self.bytes();
        Numbers::of(self.0[NUMBERS], [bytes[0], bytes[1]])
    }

    fn bytes(&self) -> &[u8] {
        self.0[WORDS..].as_bytes()
    }

    pub(super) fn is_in_place(&self) -> bool {
        self.numbers().is_in_place
    }

    /// The bytes in front of its depth, which all of its keys begin with; they never change.
    pub(super) fn prefix(&self) -> &[u8] {
        let numbers = self.numbers();
        &self.bytes()[numbers.prefix_at()..numbers.low_at()]
    }

    /// The bytes that all keys below the node begin with.
    pub(super) fn whole_prefix(&self, shape: &NodeForm) -> Vec<u8> {
        let (bytes, len) = self.head(shape).compressed();
        [self.prefix(), &bytes[..len]].concat()
    }

    /// Returns whether both have the same slots at the same places.
    pub(super) fn has_slots_of(&self, other: &Entry) -> bool {
        let slots = |entry: &Entry| {
            (0..entry.children()).map(|at| (entry.slot(at), entry.place(at))).collect::<Vec<_>>()
        };
        slots(self) == slots(other)
    }

    /// Returns whether the node is on the way to `key`, if it is linked.
    pub(super) fn is_on_way(&self, shape: &NodeForm, key: &[u8]) -> bool {
        key.starts_with(self.prefix()) && self.head(shape).differs(key, 0).is_none()
    }

    /// The low part of the slot numbered `at`.
    fn low(&self, at: usize) -> u16 {
        let (numbers, bytes) = (self.numbers(), self.bytes());
        let low = &bytes[numbers.low_at() + numbers.low_bytes() * at..];
        u16::from_le_bytes([low[0], if numbers.is_alike { bytes[2] } else { low[1] }])
    }

    /// The slot numbered `at`.
    fn slot(&self, at: usize) -> Slot {
        let numbers = self.numbers();
        let mut high = [0; 8];
        let bytes = &self.bytes()[numbers.high_at() + numbers.width * at..][..numbers.width];
        high[..numbers.width].copy_from_slice(bytes);
        let base = self.0[NUMBERS] & ((1 << BASE_BITS) - 1);
        let distance = u64::from_le_bytes(high);
        let high = if distance == 0 { 0 } else { base + distance - 1 };
        Slot::of_parts(self.low(at), high)
    }

    /// The place in the node of the slot numbered `at`.
    fn place(&self, at: usize) -> usize {
        let numbers = self.numbers();
        if !numbers.has_places {
            return at;
        }
        let bytes = &self.bytes()[numbers.places_at() + 2 * at..];
        usize::from(u16::from_le_bytes([bytes[0], bytes[1]]))
    }

    fn slots(&self) -> impl Iterator<Item = Slot> {
        (0..self.numbers().slots).map(|at| self.slot(at))
    }

    /// The child under an edge, and its number here, which is that of its slot if objects point back.
    pub(super) fn find(&self, edge: Edge) -> Option<(usize, Slot)> {
        let at = match self.is_in_place() {
            true => self.slots().position(|slot| slot.0 != 0 && slot.edge() == edge)?,
            false => self.search(edge).ok()?,
        };
        Some((at, self.slot(at))).filter(|(_, slot)| slot.has_child())
    }

    /// Its children, if their slots stand in the node's order: the number of the first unused one.
    pub(super) fn children(&self) -> usize {
        self.slots().position(|slot| slot.0 == 0).unwrap_or(self.numbers().slots)
    }

    /// The number of the slot of an edge, or its place among those that are in the order of their edges.
    fn search(&self, edge: Edge) -> Result<usize, usize> {
        let (mut low, mut high) = (0, self.numbers().slots);
        while low < high {
            let at = usize::midpoint(low, high);
            match Slot::of_parts(self.low(at), 0).edge().cmp(&edge) {
                std::cmp::Ordering::Less => low = at + 1,
                std::cmp::Ordering::Equal => return Ok(at),
                std::cmp::Ordering::Greater => high = at,
            }
        }
        Err(low)
    }

    /// Copies the node's words to `words`, which are as many as its type has. Asked of an entry that may be exact.
    pub(super) fn fill(&self, words: &mut [u64]) {
        words.fill(0);
        words[..2].copy_from_slice(&self.0[2..4]);
        for (at, slot) in self.slots().enumerate() {
            words[2 + self.place(at)] = slot.0;
        }
    }

    /// Returns whether the slot at `index` can change from `expected` to `new`: the node holds that, and no other slot
    /// has the edge.
    pub(super) fn holds(&self, index: usize, words: (Slot, Slot)) -> bool {
        self.place_of(index, words).is_some()
    }

    /// The number here of the slot at `index` that is to change from `expected` to `new`, as [`Entry::search`]; `None`
    /// if the node does not hold that.
    fn place_of(
        &self,
        index: usize,
        (expected, new): (Slot, Slot),
    ) -> Option<Result<usize, usize>> {
        let found = self.search(new.edge());
        let holds = match found {
            Ok(at) => self.place(at) == index && self.slot(at) == expected,
            Err(_) => {
                let mut slots = 0..self.numbers().slots;
                expected.0 == 0 && slots.all(|at| self.place(at) != index)
            }
        };
        holds.then_some(found)
    }

    /// The same after the slot at `index` has changed from `expected` to `new`, with the present view of the epoch if
    /// all of its words are of that; `None` if it did not hold that.
    pub(super) fn with_slot(
        &self,
        index: usize,
        (expected, new): (Slot, Slot),
        c: Option<u64>,
    ) -> Option<Entry> {
        let found = self.place_of(index, (expected, new))?;
        let mut slots: Vec<Slot> = self.slots().collect();
        let mut places: Vec<u16> = (0..slots.len()).map(|at| self.place(at) as u16).collect();
        match found {
            Ok(at) => slots[at] = new,
            Err(at) => {
                slots.insert(at, new);
                places.insert(at, index as u16);
            }
        }
        let head = [self.0[0], c.unwrap_or(self.c()), self.0[2], self.0[3]];
        Some(Entry::packed(head, self.prefix(), &slots, &places, (false, false)))
    }

    /// Bytes of its allocation, with what an allocator adds: 8 bytes, in steps of 16.
    pub(super) fn allocated(&self) -> usize {
        (COUNTS + 8 * self.0.len() + 8).next_multiple_of(16)
    }
}

#[cfg(test)]
mod tests {
    use farleaf_fabric::ServerId;

    use super::super::layout::{LeafClass, fill_node};
    use super::super::mode::NodeMode;
    use super::*;

    fn shape() -> NodeForm {
        NodeForm { table: 7, wide: false, first: NodeType::SMALLEST, mode: NodeMode::Relocate }
    }

    /// A READ of a node below "ab" with these slots.
    fn read(slots: &[Slot]) -> Vec<u64> {
        let of = NodeType::holding(slots.len());
        let mut words = vec![0; 2 + of.capacity()];
        let first_word = FirstWord::new(7, GlobalAddr::new(ServerId(0), 64), 1);
        fill_node(&shape(), &mut words, first_word, of, (2, b"xyz"), slots.iter().copied());
        words
    }

    fn leaf(edge: Edge, server: u16, number: u64) -> Slot {
        let addr = GlobalAddr::new(ServerId(server), 64 * number);
        Slot::leaf(edge, addr, LeafClass::of(256).expect("class"))
    }

    fn exact(slots: &[Slot]) -> Entry {
        let addr = GlobalAddr::new(ServerId(3), 640);
        Entry::with_places_of(&shape(), addr, 5, &read(slots), b"abxyz").expect("a node")
    }

    #[test]
    fn an_entry_gives_back_what_was_read() {
        let far = (1 << 39) - 1;
        let node =
            Slot::node(Edge::byte(255), GlobalAddr::new(ServerId(255), 64 * far), NodeType::TOP);
        let slots = [
            leaf(Edge::END, 0, 0),
            leaf(Edge::byte(0), 0, 1),
            Slot::tomb(Edge::byte(9)),
            leaf(Edge::byte(7), 255, far),
            node,
            leaf(Edge::byte(254), 17, 1 << 20),
        ];
        for count in 0..=slots.len() {
            let (words, entry) = (read(&slots[..count]), exact(&slots[..count]));
            let mut again = vec![1; words.len()];
            entry.fill(&mut again);
            assert_eq!(again, words);
            assert_eq!((entry.addr(), entry.c()), (GlobalAddr::new(ServerId(3), 640), 5));
            assert_eq!(
                (entry.prefix(), &entry.whole_prefix(&shape())[..]),
                (&b"ab"[..], &b"abxyz"[..])
            );
            for slot in &slots {
                let is_in = slots[..count].contains(slot) && slot.has_child();
                assert_eq!(entry.find(slot.edge()).map(|it| it.1), is_in.then_some(*slot));
            }
            assert_eq!(entry.find(Edge::byte(100)), None);
        }
    }

    /// All kinds of slots at random addresses, changed one after the other.
    #[test]
    fn changed_slots_are_found_again() {
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..300 {
            let near = random.bool();
            let child = |random: &mut fastrand::Rng, edge| {
                let most = if near { 1 << 10 } else { 1 << 39 };
                let server = if near { 4 } else { random.u16(..256) };
                leaf(edge, server, random.u64(..most))
            };
            let mut now = [Slot(0); 14];
            let mut entry = exact(&[]);
            // As READ from the largest type that the test fills.
            let mut words = read(&now);
            for _ in 0..40 {
                let index = random.usize(..now.len());
                let edge = match now[index].0 {
                    0 => Edge::byte(random.u8(..)),
                    _ => now[index].edge(),
                };
                if now
                    .iter()
                    .enumerate()
                    .any(|(at, it)| at != index && it.0 != 0 && it.edge() == edge)
                {
                    continue;
                }
                let new =
                    if random.u8(..4) == 0 { Slot::tomb(edge) } else { child(&mut random, edge) };
                assert!(!entry.holds(index, (Slot(1 << 20), new)));
                entry = entry.with_slot(index, (now[index], new), Some(9)).expect("it holds that");
                now[index] = new;
                words[2..].copy_from_slice(&now.map(|slot| slot.0));
                let mut again = vec![1; words.len()];
                entry.fill(&mut again);
                assert_eq!(again[2..], words[2..]);
            }
            assert_eq!(entry.c(), 9);
        }
    }

    #[test]
    fn children_that_lie_together_take_few_bytes() {
        let slots = |step: u64| -> Vec<Slot> {
            (0..12)
                .map(|at| leaf(Edge::byte(20 * at), 2, (1 << 30) + step * u64::from(at)))
                .collect()
        };
        // Words, length, kind and prefix take 45 bytes, counts and the allocator's own 24.
        let bytes = |of: usize| (40 + (5 + of).next_multiple_of(8) + 24).next_multiple_of(16);
        assert_eq!(exact(&slots(1)).allocated(), bytes(12 * 2));
        assert_eq!(exact(&slots(100)).allocated(), bytes(12 * 3));
        assert_eq!(exact(&slots(1 << 22)).allocated(), bytes(12 * 5));
        let mut mixed = slots(1);
        mixed[3] = Slot::tomb(mixed[3].edge());
        assert_eq!(exact(&mixed).allocated(), bytes(12 * 3 - 1), "of two kinds");
        let words = read(&slots(1));
        let whole = Entry::of(&shape(), GlobalAddr::new(ServerId(0), 64), 1, &words, (b"ab", true));
        let whole = whole.expect("a node");
        assert_eq!(whole.allocated(), bytes(14 * 8 - 1));
        assert_eq!(whole.children(), 12);
    }
}
