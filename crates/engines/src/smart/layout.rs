//! Layout: the words of slots, inner nodes and the meta object.
//!
//! ```text
//! slot     0..7 key byte | 8..12 node type, or 8..11 size of the leaf | 13 TOMB | 14 FROZEN | 15 LEAF
//!          16..23 memory server | 24..62 offset / 64 | 63 END
//! node     0 first word: birth 0..39, check 40..62, DEAD 63     8 header     16 slots
//!          in a table whose objects point back: parent word / 8 0..41, its server 42..49, check 50..62, DEAD 63
//! header   depth:8 | type:5 | len:3 | bytes[6]            keys over 240 bytes: depth:16 | type:5 | len:3 | bytes[5]
//! claimed  a frozen slot without a child: as it was, type 31 in 8..12, number of the client in 16..62
//! meta     0 magic    8 table number    64 root word: address of the root node    72 address of the lock table, or 0
//! ```
//!
//! In a table that reserves its nodes' room, each node has room for a slot of every byte and the end. Types 18 to 23 and
//! 17 say how many slots count, and that much to READ: 4, 8, 16, 32, 64, 128, 257. The type in the header rules; that in
//! the parent's slot is a hint, which may be behind or, after a lost CAS, ahead.
//!
//! A slot of 0 was never used. END says that the key ends where the node dispatches; so keys that are prefixes of
//! others, zero bytes and the empty key need no escaping. The order of slots means nothing.

use std::cmp::Ordering;

use farleaf_fabric::{Endpoint, GlobalAddr, ServerId};
use farleaf_index::{IndexError, TableSpec};
use farleaf_pool::{PoolOptions, Session};
use xxhash_rust::xxh3::xxh3_64;

use super::mode::NodeMode;
use super::options::{FirstSlots, SmartShape};

/// Bytes of the meta object.
pub(super) const META_BYTES: usize = 256;
/// First word of the meta object.
pub(super) const META_MAGIC: u64 = u64::from_le_bytes(*b"FLsmart1");
/// Offset of the root word in the meta object.
pub(super) const META_ROOT: u64 = 64;
/// Offset of the word that names the lock table.
pub(super) const META_LOCKS: u64 = 72;
/// Offsets of the words for the ownership map of a table that has owners: its name, and its lock.
pub(crate) const META_MAP: u64 = 192;
pub(crate) const META_MAP_LOCK: u64 = 200;

const TOMB: u64 = 1 << 13;
const FROZEN: u64 = 1 << 14;
const LEAF: u64 = 1 << 15;
const END: u64 = 1 << 63;
const EDGE: u64 = END | 0xff;
/// The type in a slot whose node a client has claimed to retire it.
const CLAIMED: u64 = 31 << 8;
const SERVERS_MAX: usize = 256;
const REGION_BYTES_MAX: u64 = 1 << 45;
// The lock tokens of so many members leave bit 62 free.
const _: () = assert!(PoolOptions::MEMBERS_MAX <= 1 << 14);

/// A place in a node: the next byte of a key, or its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Edge(u16);

impl Edge {
    /// The key ends here.
    pub(super) const END: Edge = Edge(0);

    /// That of `key` at byte `at`; `None` if the key is shorter.
    pub(super) fn of(key: &[u8], at: usize) -> Option<Edge> {
        match key.len().cmp(&at) {
            Ordering::Less => None,
            Ordering::Equal => Some(Edge::END),
            Ordering::Greater => Some(Edge::byte(key[at])),
        }
    }

    pub(super) fn byte(byte: u8) -> Edge {
        Edge(u16::from(byte) + 1)
    }

    /// The byte; `None` at the end.
    pub(super) fn as_byte(self) -> Option<u8> {
        self.0.checked_sub(1).map(|byte| byte as u8)
    }

    fn bits(self) -> u64 {
        self.as_byte().map_or(END, u64::from)
    }
}

/// A slot of a node.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Slot(pub(super) u64);

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Slot({:#018x})", self.0)
    }
}

impl Slot {
    pub(super) fn node(edge: Edge, addr: GlobalAddr, of: NodeType) -> Slot {
        Slot(edge.bits() | u64::from(of.0) << 8 | place(addr))
    }

    pub(super) fn leaf(edge: Edge, addr: GlobalAddr, class: LeafClass) -> Slot {
        Slot(edge.bits() | LEAF | u64::from(class.0) << 8 | place(addr))
    }

    /// The edge stays bound, without a child.
    pub(super) fn tomb(edge: Edge) -> Slot {
        Slot(edge.bits() | TOMB)
    }

    /// The same child under another edge.
    pub(super) fn under(self, edge: Edge) -> Slot {
        Slot(self.thawed().0 & !EDGE | edge.bits())
    }

    /// Returns whether it was never used.
    pub(super) fn is_empty(self) -> bool {
        self.thawed().0 == 0 || self.is_claimed() && !self.is_tomb()
    }

    /// Returns whether the node has left the tree and a client has claimed it.
    pub(super) fn is_claimed(self) -> bool {
        self.0 & (LEAF | CLAIMED) == CLAIMED
    }

    /// This slot without a child, with a number of the client that claims the node.
    pub(super) fn claimed(self, token: u64) -> Slot {
        debug_assert!(self.is_frozen() && !self.has_child());
        Slot(self.0 | CLAIMED | xxh3_64(&token.to_le_bytes()) >> 17 << 16)
    }

    pub(super) fn is_tomb(self) -> bool {
        self.0 & TOMB != 0
    }

    /// Returns whether the node is being replaced; the word never changes again.
    pub(super) fn is_frozen(self) -> bool {
        self.0 & FROZEN != 0
    }

    pub(super) fn is_leaf(self) -> bool {
        self.0 & LEAF != 0
    }

    /// Returns whether it leads to a leaf or a node.
    pub(super) fn has_child(self) -> bool {
        !self.is_empty() && !self.is_tomb()
    }

    pub(super) fn frozen(self) -> Slot {
        Slot(self.0 | FROZEN)
    }

    pub(super) fn thawed(self) -> Slot {
        Slot(self.0 & !FROZEN)
    }

    pub(super) fn edge(self) -> Edge {
        if self.0 & END != 0 { Edge::END } else { Edge::byte(self.0 as u8) }
    }

    pub(super) fn addr(self) -> GlobalAddr {
        let offset = (self.0 >> 24 & ((1 << 39) - 1)) * 64;
        GlobalAddr::new(ServerId((self.0 >> 16 & 0xff) as u16), offset)
    }

    /// The type of the node that it leads to.
    pub(super) fn node_type(self) -> Option<NodeType> {
        NodeType::from_bits(self.0 >> 8 & 0x1f)
    }

    /// The size of the leaf that it leads to.
    pub(super) fn leaf_class(self) -> LeafClass {
        LeafClass((self.0 >> 8 & 0xf) as u8)
    }

    /// The same with a node of another type.
    #[cfg(feature = "figures")]
    pub(super) fn with_type(self, of: NodeType) -> Slot {
        debug_assert!(!self.is_leaf());
        Slot(self.0 & !CLAIMED | u64::from(of.0) << 8)
    }

    /// Bytes of a READ of what it leads to.
    pub(super) fn bytes(self) -> Option<usize> {
        if self.is_leaf() {
            return Some(self.leaf_class().bytes());
        }
        self.node_type().map(NodeType::bytes)
    }

    /// Pairs that are likely to lie below it, at least.
    pub(super) fn pairs_likely(self) -> usize {
        self.node_type().filter(|_| !self.is_leaf()).map_or(1, NodeType::children_likely)
    }

    /// A thawed slot in two parts: edge and kind, with END in the place of FROZEN, and the child's server and offset
    /// in the order of addresses, 0 if there is none.
    pub(super) fn parts(self) -> (u16, u64) {
        debug_assert!(!self.is_frozen());
        let end = if self.0 & END != 0 { FROZEN } else { 0 };
        let place = (self.0 & !END) >> 16;
        ((self.0 | end) as u16, place >> 8 | (place & 0xff) << 39)
    }

    /// The slot of [`Slot::parts`].
    pub(super) fn of_parts(low: u16, high: u64) -> Slot {
        let end = if u64::from(low) & FROZEN != 0 { END } else { 0 };
        let place = (high & ((1 << 39) - 1)) << 8 | high >> 39;
        Slot(u64::from(low) & !FROZEN | end | place << 16)
    }

    /// Bytes of the object that it leads to.
    pub(super) fn object_bytes(self) -> Option<usize> {
        if self.is_leaf() { self.bytes() } else { self.node_type().map(NodeType::object_bytes) }
    }
}

fn place(addr: GlobalAddr) -> u64 {
    debug_assert!(addr.offset().is_multiple_of(64) && addr.offset() < REGION_BYTES_MAX);
    debug_assert!(addr.server().index() < SERVERS_MAX);
    u64::from(addr.server().0) << 16 | (addr.offset() / 64) << 24
}

/// The size of a leaf's object: 64 to 2,048 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LeafClass(u8);

impl LeafClass {
    /// The smallest that holds `bytes`; `None` if that is too much for a leaf.
    pub(super) fn of(bytes: usize) -> Option<LeafClass> {
        (0..16).map(LeafClass).find(|class| class.bytes() >= bytes)
    }

    pub(super) fn bytes(self) -> usize {
        size_bytes(self.0.into())
    }
}

/// Sizes of leaves and records: 64, 128, 192 and 256 bytes, then four to a doubling.
pub(super) fn size_bytes(class: usize) -> usize {
    if class < 4 {
        return 64 * (class + 1);
    }
    let base = 256 << ((class - 4) / 4);
    base + base / 4 * ((class - 4) % 4 + 1)
}

/// The type of a node, by its number of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NodeType(u8);

/// Slots by type; each but the last fills an object of the pool. Behind them the types of nodes that reserve their room.
const CAPACITIES: [u16; 24] = [
    0, 6, 14, 22, 30, 38, 46, 54, 62, 78, 94, 110, 126, 158, 190, 222, 254, 257, 4, 8, 16, 32, 64,
    128,
];
/// The types that a node with reserved room passes through.
pub(super) const RESERVED: [NodeType; 7] = [
    NodeType(18),
    NodeType(19),
    NodeType(20),
    NodeType(21),
    NodeType(22),
    NodeType(23),
    NodeType::TOP,
];
/// The types that a growing node passes through.
const GROWTH: [NodeType; 7] =
    [NodeType(1), NodeType(2), NodeType(4), NodeType(8), NodeType(12), NodeType(16), NodeType(17)];

impl NodeType {
    /// 6 slots.
    pub(super) const SMALLEST: NodeType = NodeType(1);
    /// 14 slots.
    pub(super) const SECOND: NodeType = NodeType(2);
    /// A slot for each byte and the end.
    pub(super) const TOP: NodeType = NodeType(17);

    fn from_bits(bits: u64) -> Option<NodeType> {
        (1..CAPACITIES.len() as u64).contains(&bits).then_some(NodeType(bits as u8))
    }

    /// The smallest that has `slots`.
    pub(super) fn holding(slots: usize) -> NodeType {
        (1..17).map(NodeType).find(|it| it.capacity() >= slots).unwrap_or(NodeType::TOP)
    }

    /// The type of a node that takes the place of one with `live` children: it has room for one more.
    pub(super) fn replacing(live: usize, first: NodeType) -> NodeType {
        let fits = |it: &&NodeType| **it >= first && it.capacity() > live;
        GROWTH.iter().find(fits).copied().unwrap_or(NodeType::TOP)
    }

    pub(super) fn is_reserved(self) -> bool {
        RESERVED.contains(&self)
    }

    /// Bytes of the object that a node of it takes.
    pub(super) fn object_bytes(self) -> usize {
        if self.is_reserved() { NodeType::TOP.bytes() } else { self.bytes() }
    }

    pub(super) fn capacity(self) -> usize {
        CAPACITIES[usize::from(self.0)].into()
    }

    /// Children that such a node is likely to have, at least: one with fewer than a quarter of its slots in use
    /// shrinks.
    fn children_likely(self) -> usize {
        (self.capacity() / 4).max(2)
    }

    /// Bytes that a READ of it takes.
    pub(super) fn bytes(self) -> usize {
        16 + 8 * self.capacity()
    }
}

/// The first word of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FirstWord(pub(super) u64);

const BIRTH: u64 = (1 << 40) - 1;
pub(super) const DEAD: u64 = 1 << 63;

impl FirstWord {
    pub(super) fn new(table: u64, addr: GlobalAddr, birth: u64) -> FirstWord {
        let birth = birth & BIRTH;
        let mut words = [0; 24];
        for (bytes, word) in words.chunks_exact_mut(8).zip([table, addr.word(), birth]) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        FirstWord(birth | xxh3_64(&words) >> 41 << 40)
    }

    /// Returns whether a node of this table was made at `addr` with this word.
    pub(super) fn fits(self, table: u64, addr: GlobalAddr) -> bool {
        FirstWord::new(table, addr, self.0 & BIRTH).0 == self.0 & !DEAD
    }

    pub(super) fn is_dead(self) -> bool {
        self.0 & DEAD != 0
    }

    pub(super) fn dead(self) -> FirstWord {
        FirstWord(self.0 | DEAD)
    }

    /// Returns whether it was made at view `c` or before: then a pointer that was read at `c` leads to it.
    pub(super) fn is_born_by(self, c: u64) -> bool {
        c.wrapping_sub(self.0) & BIRTH < 1 << 39
    }
}

/// Sizes and numbers that hold for all nodes of a table.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodeForm {
    /// The table's own number.
    pub(super) table: u64,
    /// Keys may be longer than 240 bytes.
    pub(super) wide: bool,
    /// The type of a new node.
    pub(super) first: NodeType,
    /// The room of nodes, and the proof of cached pointers.
    pub(super) mode: NodeMode,
}

impl NodeForm {
    pub(super) fn of(table: &TableSpec<SmartShape>) -> NodeForm {
        let mode = NodeMode::of(&table.shape);
        let first = match table.shape.first_slots(&table.spec) {
            FirstSlots::Fourteen => NodeType::SECOND,
            FirstSlots::Six | FirstSlots::Auto => NodeType::SMALLEST,
        };
        NodeForm {
            table: table.number,
            wide: table.spec.key_max() > 240,
            first: mode.first(first),
            mode,
        }
    }

    /// The first word of a node that is made at view `birth`, and linked at `parent`.
    pub(super) fn first_word(&self, addr: GlobalAddr, birth: u64, parent: GlobalAddr) -> FirstWord {
        self.mode.first_word(self.table, addr, birth, parent)
    }

    /// Lets a new object at `addr` name the slot at `at` in its `words`, if objects point back; returns whether that
    /// changed them.
    pub(super) fn aim(&self, words: &mut [u64], addr: GlobalAddr, at: GlobalAddr) -> bool {
        self.mode.aim(self.table, words, addr, at)
    }

    /// Most compressed bytes of a node.
    pub(super) fn bytes_max(&self) -> usize {
        if self.wide { 5 } else { 6 }
    }

    /// The header of a node that compresses `bytes`, which begin at byte `depth` of its keys.
    pub(super) fn header(&self, depth: usize, bytes: &[u8], of: NodeType) -> u64 {
        debug_assert!(bytes.len() <= self.bytes_max());
        let (len, kind) = (bytes.len() as u64, u64::from(of.0));
        let low = if self.wide {
            depth as u64 & 0xffff | kind << 16 | len << 21
        } else {
            depth as u64 & 0xff | kind << 8 | len << 13
        };
        let first = if self.wide { 24 } else { 16 };
        let place = |(at, byte): (usize, &u8)| u64::from(*byte) << (first + 8 * at);
        low | bytes.iter().enumerate().map(place).sum::<u64>()
    }
}

/// Position of the type in a header.
fn type_at(wide: bool) -> u32 {
    if wide { 16 } else { 8 }
}

/// Refuses pools whose addresses the words of this engine cannot hold.
///
/// # Errors
/// `Invalid`.
pub(super) fn check_pool(session: &Session) -> Result<(), IndexError> {
    let endpoint = session.endpoint();
    check_reach((0..endpoint.server_count()).map(|it| endpoint.region_bytes(ServerId(it as u16))))
}

fn check_reach(regions: impl Iterator<Item = u64>) -> Result<(), IndexError> {
    let mut servers = 0;
    for bytes in regions {
        if bytes > REGION_BYTES_MAX {
            return Err(IndexError::Invalid(format!(
                "memory server {servers} has {bytes} bytes; tables of engine smart reach {REGION_BYTES_MAX} \
                 on each: use another engine"
            )));
        }
        servers += 1;
    }
    if servers > SERVERS_MAX {
        return Err(IndexError::Invalid(format!(
            "the pool has {servers} memory servers; tables of engine smart reach {SERVERS_MAX}: use another \
             engine"
        )));
    }
    Ok(())
}

/// The words of a node as they were read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node<'a> {
    words: &'a [u64],
    wide: bool,
}

impl<'a> Node<'a> {
    /// A view of `words`: first word, header and slots. With reserved room, of the slots that count (`INV-SMART-6`).
    pub(super) fn new(shape: &NodeForm, words: &'a [u64]) -> Node<'a> {
        let all = Node { words, wide: shape.wide };
        Node { words: shape.mode.counted(words, all.node_type()), ..all }
    }

    pub(super) fn first_word(self) -> FirstWord {
        FirstWord(self.words[0])
    }

    fn header(self) -> u64 {
        self.words[1]
    }

    /// Position of the first compressed byte.
    pub(super) fn depth(self) -> usize {
        (self.header() & if self.wide { 0xffff } else { 0xff }) as usize
    }

    pub(super) fn node_type(self) -> Option<NodeType> {
        NodeType::from_bits(self.header() >> type_at(self.wide) & 0x1f)
    }

    /// Returns whether more slots count than were READ: the type that led here was behind.
    pub(super) fn is_short(self) -> bool {
        self.node_type().is_some_and(|of| of.capacity() > self.capacity())
    }

    /// The compressed bytes, and how many there are.
    pub(super) fn compressed(self) -> ([u8; 6], usize) {
        let (first, at) = if self.wide { (24, 21) } else { (16, 13) };
        let len = (self.header() >> at & 7) as usize;
        let bytes = (self.header() >> first).to_le_bytes();
        let mut compressed = [0; 6];
        compressed.copy_from_slice(&bytes[..6]);
        (compressed, len.min(6))
    }

    /// Position of the byte by which it tells its children apart.
    pub(super) fn dispatch(self) -> usize {
        self.depth() + self.compressed().1
    }

    /// The first position from `matched` on at which `key` leaves the compressed bytes.
    pub(super) fn differs(self, key: &[u8], matched: usize) -> Option<usize> {
        let (depth, (bytes, len)) = (self.depth(), self.compressed());
        (matched.max(depth)..depth + len).find(|at| key.get(*at) != Some(&bytes[at - depth]))
    }

    /// The compressed byte at position `at` of the keys.
    pub(super) fn byte_at(self, at: usize) -> Option<u8> {
        let (bytes, len) = self.compressed();
        let index = at.checked_sub(self.depth())?;
        (index < len).then(|| bytes[index])
    }

    pub(super) fn capacity(self) -> usize {
        self.words.len() - 2
    }

    pub(super) fn slot(self, index: usize) -> Slot {
        Slot(self.words[2 + index])
    }

    pub(super) fn slots(self) -> impl DoubleEndedIterator<Item = Slot> + ExactSizeIterator + 'a {
        self.words[2..].iter().map(|word| Slot(*word))
    }

    /// The slot of an edge.
    pub(super) fn find(self, edge: Edge) -> Option<(usize, Slot)> {
        self.slots().enumerate().find(|(_, slot)| !slot.is_empty() && slot.edge() == edge)
    }

    /// The first slot that was never used.
    pub(super) fn first_empty(self) -> Option<usize> {
        self.slots().position(Slot::is_empty)
    }

    /// Children.
    pub(super) fn live(self) -> usize {
        self.slots().filter(|slot| slot.has_child()).count()
    }

    /// Returns whether the word of a node of this table that was made at `addr` is here, dead or alive. It was READ
    /// as `of`, which is its type, unless nodes reserve their room.
    pub(super) fn is_of(self, shape: &NodeForm, addr: GlobalAddr, of: NodeType) -> bool {
        let is_here = shape.mode.is_of_table(self.first_word(), shape.table, addr);
        is_here && shape.mode.fits(self, of)
    }
}

/// Address of slot `index` of the node at `addr`.
pub(super) fn slot_addr(addr: GlobalAddr, index: usize) -> GlobalAddr {
    addr.plus(16 + 8 * index as u64)
}

/// The words of a new node of type `of`, in an object for it.
pub(super) fn fill_node(
    shape: &NodeForm,
    words: &mut [u64],
    first_word: FirstWord,
    of: NodeType,
    (depth, bytes): (usize, &[u8]),
    slots: impl Iterator<Item = Slot>,
) {
    debug_assert_eq!(words.len() * 8, of.object_bytes());
    words.fill(0);
    words[0] = first_word.0;
    words[1] = shape.header(depth, bytes, of);
    for (word, slot) in words[2..].iter_mut().zip(slots) {
        *word = slot.0;
    }
}

#[cfg(test)]
#[path = "layout_tests.rs"]
mod tests;
