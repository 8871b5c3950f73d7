//! Layout: geometry of leaves, and the codec of their headers and slots.
//!
//! A leaf is a header and `span` slots. Header, words: 0 version, 1 own address, 2 address of the right neighbour, 3 lengths
//! and flags (open fences, DEAD), 4 epoch of its making, 5 0, 6 0, 7 checksum of the header; then the low fence (exclusive) and
//! the high fence (inclusive). Slot, words: 0 version << 1 | VALID, 1 check, 2.. value, then the key. A value of 9 to 240
//! bytes takes as many words as it needs and one more, a checksum of it.
//!
//! The check's upper half covers tree, leaf, slot and key, its lower half that and the value. It leaves the version out, so
//! that a split gives a slot another version by one word. An empty slot has the check 0 and BLANK as the value's first word,
//! a secret of the slot: so a torn insert or remove differs from a torn update of one word.

use farleaf_fabric::GlobalAddr;
use farleaf_index::bnode::{Layout, LayoutError, LayoutOptions, shortest_separator};
use farleaf_index::{IndexError, KeyFormat, Shape, Spec, ValueFormat};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::options::FpTreeShape;

/// Most slots of a leaf: one byte of its line for each.
pub(super) const SPAN_MAX: usize = 32;
/// Bytes of a header without its fences.
const HEAD_BYTES: usize = 64;
/// Offset of the value in a slot.
const VALUE_AT: usize = 16;
/// Longest value that stands in a slot.
const VALUE_INLINE_MAX: usize = 240;
/// Bytes of a key field of keys that differ in length: length, then bytes.
const KEY_FIELD_BYTES: usize = 32;
/// Longest key that stands in such a field, and what a field keeps of a longer one in front of its hash.
const KEY_INLINE_MAX: usize = KEY_FIELD_BYTES - 2;
const KEY_KEPT: usize = KEY_INLINE_MAX - 8;
/// Longest fence that stands in a header; longer ones have a record.
const FENCE_INLINE_MAX: usize = 126;
/// Smallest leaf: lines are found by places of 1 KiB.
const LEAF_BYTES_MIN: usize = 1024;
const VALID: u64 = 1;
const LOW_OPEN: u64 = 1 << 32;
const HIGH_OPEN: u64 = 1 << 33;
const DEAD: u64 = 1 << 34;
const BLANK_BIT: u64 = 1 << 63;

/// Geometry of a table, worked out once from its keys, values and shape.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeafShape {
    /// The table's own number, bound into every checksum.
    pub(super) tree: u64,
    /// Keys and values of the table.
    pub(super) spec: Spec,
    /// Nodes of the upper tree.
    pub(super) upper: Layout,
    pub(super) span: usize,
    key_bytes: usize,
    /// Bytes of a slot for its value.
    value_bytes: usize,
    fence_bytes: usize,
    /// Longest value that stands in a slot.
    inline_max: usize,
    pub(super) header_bytes: usize,
    pub(super) slot_bytes: usize,
    pub(super) leaf_bytes: usize,
}

/// One side of a leaf's range as its header holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fence {
    Open,
    Inline(Vec<u8>),
    /// The word that names its record.
    Record(u64),
}

/// The content of a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) version: u64,
    pub(super) right: u64,
    pub(super) birth: u64,
    /// The leaf is out of the tree.
    pub(super) is_dead: bool,
    pub(super) low: Fence,
    pub(super) high: Fence,
}

impl Header {
    /// That of a leaf that leaves the tree.
    pub(super) fn dead(version: u64) -> Self {
        let (low, high) = (Fence::Open, Fence::Open);
        Header { version, right: 0, birth: 0, is_dead: true, low, high }
    }
}

/// The value of a pair, as its slot has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PairContent {
    Inline(Vec<u8>),
    /// The word that names its record.
    Record(u64),
}

/// A slot as one READ brought it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Judged {
    /// Of another version of the leaf.
    Stale,
    Empty,
    /// A pair, with the first word of its value, which names its record if it has one.
    Pair(u64),
    /// Half written.
    Torn,
}

impl LeafShape {
    /// The geometry of the table `tree` of that shape.
    ///
    /// # Errors
    /// `Invalid` for a span that is not from 2 to 32, or nodes that the upper tree cannot have.
    pub(super) fn new(spec: &Spec, shape: &FpTreeShape, tree: u64) -> Result<Self, IndexError> {
        LeafShape::of(spec, shape, tree, VALUE_INLINE_MAX)
    }

    /// As [`LeafShape::new`], where a change of a pair is always told by one word, so that no update needs a redo record.
    pub(super) fn of_words(
        spec: &Spec,
        shape: &FpTreeShape,
        tree: u64,
    ) -> Result<Self, IndexError> {
        LeafShape::of(spec, shape, tree, 8)
    }

    fn of(
        spec: &Spec,
        shape: &FpTreeShape,
        tree: u64,
        inline_max: usize,
    ) -> Result<Self, IndexError> {
        let span = shape.cap_leaf.map_or(SPAN_MAX, usize::from);
        if !(2..=SPAN_MAX).contains(&span) {
            return Err(IndexError::Invalid(format!(
                "cap_leaf={span}: a leaf of engine fptree has 2 to {SPAN_MAX} entries, one for each byte of its line"
            )));
        }
        let upper = LayoutOptions {
            cap_inner: shape.cap_inner,
            ..LayoutOptions::new(shape.node_bytes(spec), spec.key, ValueFormat::Fixed(16))
        };
        let most = Layout::new(upper).map_err(upper_error)?.leaf_cap();
        // A node always keeps a record, and must count as sparse with it.
        let cap_leaf = shape.cap_leaf.map(|cap| cap + 2).filter(|cap| usize::from(*cap) < most);
        let upper = Layout::new(LayoutOptions { cap_leaf, ..upper }).map_err(upper_error)?;
        let upper = upper.for_tree(tree).with_exact_cuts();
        let key_bytes = match spec.key {
            KeyFormat::Fixed(bytes) if bytes <= 64 => bytes.max(1).next_multiple_of(8),
            _ => KEY_FIELD_BYTES,
        };
        let fence_bytes = spec.key_max().clamp(8, FENCE_INLINE_MAX).next_multiple_of(8);
        let header_bytes = (HEAD_BYTES + 2 * fence_bytes).next_multiple_of(64);
        let value_bytes = match spec.value {
            ValueFormat::Fixed(bytes) if (9..=inline_max).contains(&bytes) => {
                bytes.next_multiple_of(8) + 8
            }
            _ => 8,
        };
        let slot_bytes = VALUE_AT + value_bytes + key_bytes;
        let leaf_bytes = (header_bytes + span * slot_bytes).max(LEAF_BYTES_MIN);
        Ok(LeafShape {
            tree,
            spec: *spec,
            upper,
            span,
            key_bytes,
            value_bytes,
            fence_bytes,
            inline_max,
            header_bytes,
            slot_bytes,
            leaf_bytes,
        })
    }

    /// The largest key: that of the last leaf's record.
    pub(super) fn largest(&self) -> Vec<u8> {
        vec![0xff; self.spec.key_max()]
    }

    pub(super) fn is_fixed_key(&self) -> bool {
        matches!(self.spec.key, KeyFormat::Fixed(bytes) if bytes <= 64)
    }

    /// Bytes of a value that a slot holds; `None` if values have records.
    fn inline_value(&self) -> Option<usize> {
        match self.spec.value {
            ValueFormat::Fixed(bytes) if bytes <= self.inline_max => Some(bytes),
            _ => None,
        }
    }

    /// Tells whether a pair of that key has a record.
    pub(super) fn has_record(&self, key_len: usize) -> bool {
        self.inline_value().is_none() || (!self.is_fixed_key() && key_len > KEY_INLINE_MAX)
    }

    fn is_one_word(&self) -> bool {
        self.value_bytes == 8
    }

    /// Tells whether an update changes one word of the value, so that a torn one leaves the old or the new value.
    pub(super) fn tells_old_from_new(&self, key_len: usize) -> bool {
        self.is_one_word() || self.has_record(key_len)
    }

    /// The value field of a pair without a record, into `field`.
    pub(super) fn put_value(&self, value: &[u8], field: &mut [u8]) {
        field.fill(0);
        field[..value.len()].copy_from_slice(value);
        if !self.is_one_word() {
            let sum = xxh3_64_with_seed(value, self.tree);
            set(field, self.value_bytes / 8 - 1, sum);
        }
    }

    /// The value in a slot of a pair without a record.
    pub(super) fn value_of(&self, slot: &[u8], value: &mut Vec<u8>) {
        value.clear();
        value.extend_from_slice(&slot[VALUE_AT..][..self.inline_value().unwrap_or(0)]);
    }

    /// The bytes of a slot that an update writes.
    pub(super) fn updated(&self) -> std::ops::Range<usize> {
        8..VALUE_AT + self.value_bytes
    }

    fn key_field<'a>(&self, slot: &'a [u8]) -> &'a [u8] {
        &slot[VALUE_AT + self.value_bytes..][..self.key_bytes]
    }

    /// The hash of a key; its fingerprint is 1 to 255.
    pub(super) fn fingerprint(&self, key: &[u8]) -> u8 {
        (self.hash(key) % 255) as u8 + 1
    }

    /// The fingerprint of the key in a slot: a key that only its record has leaves its hash there.
    pub(super) fn slot_fingerprint(&self, slot: &[u8]) -> u8 {
        match self.key_of(slot) {
            Some(key) => self.fingerprint(key),
            None => {
                let mut hash = [0; 8];
                hash.copy_from_slice(&self.key_field(slot)[2 + KEY_KEPT..][..8]);
                (u64::from_le_bytes(hash) % 255) as u8 + 1
            }
        }
    }

    fn hash(&self, key: &[u8]) -> u64 {
        xxh3_64_with_seed(key, self.tree)
    }

    /// The key field of a slot, into `field`.
    pub(super) fn put_key(&self, key: &[u8], field: &mut [u8]) {
        field.fill(0);
        if self.is_fixed_key() {
            field[..key.len()].copy_from_slice(key);
            return;
        }
        field[..2].copy_from_slice(&(key.len() as u16).to_le_bytes());
        if key.len() <= KEY_INLINE_MAX {
            field[2..2 + key.len()].copy_from_slice(key);
        } else {
            field[2..2 + KEY_KEPT].copy_from_slice(&key[..KEY_KEPT]);
            field[2 + KEY_KEPT..].copy_from_slice(&self.hash(key).to_le_bytes());
        }
    }

    /// The key in a slot, or `None` if only its record has all of it.
    pub(super) fn key_of<'a>(&self, slot: &'a [u8]) -> Option<&'a [u8]> {
        let field = self.key_field(slot);
        match self.spec.key {
            KeyFormat::Fixed(bytes) if self.is_fixed_key() => Some(&field[..bytes]),
            _ => {
                let len = self.key_len(slot);
                (len <= KEY_INLINE_MAX).then(|| &field[2..2 + len])
            }
        }
    }

    /// Bytes of the key in a slot.
    pub(super) fn key_len(&self, slot: &[u8]) -> usize {
        match self.spec.key {
            KeyFormat::Fixed(bytes) => bytes,
            KeyFormat::Bytes { .. } => {
                let field = self.key_field(slot);
                usize::from(u16::from_le_bytes([field[0], field[1]]))
            }
        }
    }

    /// Tells whether a slot may hold `key`: surely, unless the key has a record.
    pub(super) fn holds(&self, slot: &[u8], key: &[u8]) -> bool {
        let mut field = [0; 64];
        let field = &mut field[..self.key_bytes];
        self.put_key(key, field);
        self.key_field(slot) == field
    }

    /// Offset of a slot in its leaf.
    pub(super) fn slot_at(&self, index: usize) -> usize {
        self.header_bytes + index * self.slot_bytes
    }

    /// A slot of a leaf that was read.
    pub(super) fn slot<'a>(&self, leaf: &'a [u8], index: usize) -> &'a [u8] {
        &leaf[self.slot_at(index)..][..self.slot_bytes]
    }

    /// The value of an empty slot.
    pub(super) fn blank(&self, leaf: GlobalAddr, index: usize) -> u64 {
        let place = (leaf.word() + index as u64).to_le_bytes();
        xxh3_64_with_seed(&place, self.tree ^ 0x62_6c61_6e6b) | BLANK_BIT
    }

    /// The check of a pair; it covers the key and the value in `slot`.
    pub(super) fn check(&self, leaf: GlobalAddr, index: usize, slot: &[u8]) -> u64 {
        let seed = (self.tree ^ leaf.word()).wrapping_add((index as u64) << 56);
        let high = xxh3_64_with_seed(self.key_field(slot), seed) >> 32 << 32;
        let value = &slot[VALUE_AT..VALUE_AT + self.value_bytes];
        let low = xxh3_64_with_seed(value, seed ^ high) & 0xffff_ffff;
        (high | low).max(1)
    }

    /// Tells whether the checksum of a value of several words fits.
    fn value_fits(&self, slot: &[u8]) -> bool {
        let Some(bytes) = self.inline_value().filter(|_| !self.is_one_word()) else { return true };
        let sum = xxh3_64_with_seed(&slot[VALUE_AT..VALUE_AT + bytes], self.tree);
        // A pair with a record has its word there.
        self.has_record(self.key_len(slot)) || word(slot, 1 + self.value_bytes / 8) == sum
    }

    /// Fills a slot with a pair.
    pub(super) fn fill_slot(
        &self,
        (leaf, index): (GlobalAddr, usize),
        slot: &mut [u8],
        version: u64,
        (key, value): (&[u8], &PairContent),
    ) {
        let key_at = VALUE_AT + self.value_bytes;
        self.put_key(key, &mut slot[key_at..]);
        let field = &mut slot[VALUE_AT..key_at];
        match value {
            PairContent::Record(word) => {
                field.fill(0);
                set(field, 0, *word);
            }
            PairContent::Inline(value) => self.put_value(value, field),
        }
        let check = self.check(leaf, index, slot);
        set(slot, 0, version << 1 | VALID);
        set(slot, 1, check);
    }

    /// Copies a pair to another slot.
    pub(super) fn copy_slot(
        &self,
        (leaf, index): (GlobalAddr, usize),
        slot: &mut [u8],
        version: u64,
        from: &[u8],
    ) {
        slot.copy_from_slice(from);
        let check = self.check(leaf, index, slot);
        set(slot, 0, version << 1 | VALID);
        set(slot, 1, check);
    }

    /// Empties a slot, all but the key field; gives the three words.
    pub(super) fn clear_slot(
        &self,
        (leaf, index): (GlobalAddr, usize),
        slot: &mut [u8],
        version: u64,
    ) {
        set(slot, 0, version << 1);
        set(slot, 1, 0);
        set(slot, 2, self.blank(leaf, index));
    }

    /// Gives a slot another version and nothing else.
    pub(super) fn set_version(slot: &mut [u8], version: u64) {
        set(slot, 0, version << 1 | word(slot, 0) & VALID);
    }

    /// Judges a slot that was read.
    pub(super) fn judge(
        &self,
        (leaf, index): (GlobalAddr, usize),
        slot: &[u8],
        version: u64,
    ) -> Judged {
        let first = word(slot, 0);
        if first >> 1 != version {
            Judged::Stale
        } else if first & VALID == 0 {
            Judged::Empty
        } else if word(slot, 1) == self.check(leaf, index, slot) && self.value_fits(slot) {
            Judged::Pair(word(slot, 2))
        } else {
            Judged::Torn
        }
    }

    /// Tells whether a slot that does not fit its check holds a pair all the same: an update of its value was cut short.
    pub(super) fn names_pair(&self, (leaf, index): (GlobalAddr, usize), slot: &[u8]) -> bool {
        let check = self.check(leaf, index, slot);
        self.tells_old_from_new(self.key_len(slot))
            && word(slot, 0) & VALID != 0
            && word(slot, 1) >> 32 == check >> 32
            && word(slot, 2) != self.blank(leaf, index)
    }

    /// Repairs a slot that a dead client was writing, under the leaf's lock; tells whether it changed it.
    ///
    /// An insert or a remove that is torn leaves no key; a torn update leaves the old or the new value, each whole.
    pub(super) fn repair_slot(
        &self,
        (leaf, index): (GlobalAddr, usize),
        slot: &mut [u8],
        version: u64,
    ) -> bool {
        let before = [word(slot, 0), word(slot, 1), word(slot, 2)];
        let check = self.check(leaf, index, slot);
        if before[0] & VALID != 0 && before[1] == check && self.value_fits(slot) {
            return false;
        }
        if self.names_pair((leaf, index), slot) {
            set(slot, 1, check);
        } else {
            self.clear_slot((leaf, index), slot, version);
        }
        before != [word(slot, 0), word(slot, 1), word(slot, 2)]
    }

    /// Empties a slot that does not fit its check: a seeded bug.
    #[cold]
    pub(super) fn clear_if_torn(&self, place: (GlobalAddr, usize), slot: &mut [u8], version: u64) {
        let check = self.check(place.0, place.1, slot);
        if word(slot, 1) != check || word(slot, 0) & VALID == 0 {
            self.clear_slot(place, slot, version);
        }
    }

    /// Takes a slot that does not fit its check for a pair: a seeded bug.
    #[cold]
    pub(super) fn take_if_torn(&self, place: (GlobalAddr, usize), slot: &mut [u8]) {
        if word(slot, 0) & VALID != 0 {
            let check = self.check(place.0, place.1, slot);
            set(slot, 1, check);
        }
    }

    /// The header as it stands in front of a leaf.
    pub(super) fn put_header(&self, leaf: GlobalAddr, header: &Header, bytes: &mut [u8]) {
        bytes[..self.header_bytes].fill(0);
        let mut lengths = if header.is_dead { DEAD } else { 0 };
        for (high, fence) in [(false, &header.low), (true, &header.high)] {
            let at = HEAD_BYTES + if high { self.fence_bytes } else { 0 };
            let len = match fence {
                Fence::Open => {
                    lengths |= if high { HIGH_OPEN } else { LOW_OPEN };
                    0
                }
                Fence::Inline(key) => {
                    bytes[at..at + key.len()].copy_from_slice(key);
                    key.len() as u64
                }
                Fence::Record(record) => {
                    bytes[at..at + 8].copy_from_slice(&record.to_le_bytes());
                    0xffff
                }
            };
            lengths |= len << (if high { 16 } else { 0 });
        }
        for (index, value) in [header.version, leaf.word(), header.right, lengths, header.birth]
            .into_iter()
            .enumerate()
        {
            set(bytes, index, value);
        }
        let check = self.header_check(bytes);
        set(bytes, 7, check);
    }

    /// The header in front of a leaf; `None` if it is torn or of something else.
    pub(super) fn header(&self, leaf: GlobalAddr, bytes: &[u8]) -> Option<Header> {
        if word(bytes, 1) != leaf.word() || word(bytes, 7) != self.header_check(bytes) {
            return None;
        }
        let lengths = word(bytes, 3);
        let fence = |high: bool| {
            let at = HEAD_BYTES + if high { self.fence_bytes } else { 0 };
            let (shift, open) = if high { (16, HIGH_OPEN) } else { (0, LOW_OPEN) };
            let len = (lengths >> shift & 0xffff) as usize;
            match len {
                _ if lengths & open != 0 => Some(Fence::Open),
                0xffff => Some(Fence::Record(word(&bytes[at..], 0))),
                len if len <= self.fence_bytes => Some(Fence::Inline(bytes[at..at + len].to_vec())),
                _ => None,
            }
        };
        Some(Header {
            version: word(bytes, 0),
            right: word(bytes, 2),
            birth: word(bytes, 4),
            is_dead: lengths & DEAD != 0,
            low: fence(false)?,
            high: fence(true)?,
        })
    }

    fn header_check(&self, bytes: &[u8]) -> u64 {
        let first = xxh3_64_with_seed(&bytes[..56], self.tree);
        xxh3_64_with_seed(&bytes[HEAD_BYTES..self.header_bytes], first)
    }

    /// Tells whether a fence of `len` bytes stands in the header itself.
    pub(super) fn fence_fits(&self, len: usize) -> bool {
        len <= FENCE_INLINE_MAX.min(self.fence_bytes)
    }

    /// The fence between two neighbouring keys, the high one of the left leaf.
    pub(super) fn separator(&self, below: &[u8], above: &[u8]) -> Vec<u8> {
        let mut separator = Vec::new();
        match self.spec.key {
            KeyFormat::Fixed(_) => separator.extend_from_slice(below),
            KeyFormat::Bytes { .. } => shortest_separator(below, above, &mut separator),
        }
        separator
    }

    /// Fills an empty leaf's slots.
    pub(super) fn clear_all(&self, leaf: GlobalAddr, bytes: &mut [u8], version: u64) {
        bytes[self.header_bytes..].fill(0);
        for index in 0..self.span {
            let at = self.slot_at(index);
            self.clear_slot((leaf, index), &mut bytes[at..at + self.slot_bytes], version);
        }
    }
}

fn upper_error(error: LayoutError) -> IndexError {
    IndexError::Invalid(format!("upper tree of engine fptree: {error}"))
}

pub(super) fn word(bytes: &[u8], index: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[index * 8..index * 8 + 8]);
    u64::from_le_bytes(word)
}

pub(super) fn set(bytes: &mut [u8], index: usize, value: u64) {
    bytes[index * 8..index * 8 + 8].copy_from_slice(&value.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use farleaf_fabric::ServerId;

    use super::*;

    fn leaf() -> (GlobalAddr, usize) {
        (GlobalAddr::new(ServerId(0), 1 << 20), 3)
    }

    fn shapes() -> [LeafShape; 4] {
        let of = |key, value| {
            let node_bytes = Some(1024);
            let shape = FpTreeShape { node_bytes, ..FpTreeShape::default() };
            LeafShape::new(&Spec { key, value }, &shape, 5).expect("shape")
        };
        let bytes = KeyFormat::Bytes { max: 200 };
        [
            of(KeyFormat::Fixed(24), ValueFormat::Fixed(8)),
            of(KeyFormat::Fixed(8), ValueFormat::Fixed(20)),
            of(bytes, ValueFormat::Fixed(8)),
            of(bytes, ValueFormat::Bytes),
        ]
    }

    fn key(shape: &LeafShape) -> Vec<u8> {
        vec![7; if shape.is_fixed_key() { shape.spec.key_max() } else { 11 }]
    }

    fn content(shape: &LeafShape, number: u8) -> PairContent {
        match shape.inline_value() {
            Some(bytes) => PairContent::Inline(vec![number; bytes]),
            None => PairContent::Record(u64::from(number) << 6),
        }
    }

    #[test]
    fn the_papers_leaf_has_a_class_of_its_own() {
        let [paper, ..] = shapes();
        assert_eq!((paper.header_bytes, paper.slot_bytes, paper.leaf_bytes), (128, 48, 1664));
        for cap in [1, 33] {
            let shape = FpTreeShape { cap_leaf: Some(cap), ..FpTreeShape::default() };
            let refused = LeafShape::new(&Spec::FIXED8, &shape, 0);
            assert!(matches!(refused, Err(IndexError::Invalid(_))), "{refused:?}");
        }
    }

    #[test]
    fn a_shape_is_completed_once() {
        for (spec, bytes) in [(Spec::FIXED8, 1024), (Spec::ANY, 4096)] {
            let whole = FpTreeShape::default().complete(&spec).expect("a shape");
            assert_eq!(whole.node_bytes, Some(bytes));
            assert_eq!(whole.complete(&spec), Ok(whole));
        }
        let odd = FpTreeShape { node_bytes: Some(1000), ..FpTreeShape::default() };
        let told = odd.complete(&Spec::FIXED8).expect_err("no power of two").to_string();
        assert!(
            told.contains("upper tree of engine fptree: node size 1000 is not a power"),
            "{told}"
        );
    }

    /// Every mixture of words of a change and of what was there: an insert or a remove leaves the pair or none, an update
    /// the old or the new value, a longer one what its redo record says.
    #[test]
    fn a_torn_slot_becomes_what_was_or_what_was_to_be() {
        for shape in shapes() {
            let key = key(&shape);
            let mut empty = vec![0; shape.slot_bytes];
            shape.clear_slot(leaf(), &mut empty, 9);
            let filled = |number| {
                let mut slot = vec![0; shape.slot_bytes];
                shape.fill_slot(leaf(), &mut slot, 9, (&key, &content(&shape, number)));
                slot
            };
            let (old, new) = (filled(1), filled(2));
            assert_eq!(shape.judge(leaf(), &empty, 9), Judged::Empty);
            assert!(matches!(shape.judge(leaf(), &old, 9), Judged::Pair(_)));
            assert_eq!(shape.judge(leaf(), &old, 8), Judged::Stale);
            assert_ne!(shape.judge((leaf().0, 4), &old, 9), shape.judge(leaf(), &old, 9));
            assert!(shape.holds(&old, &key));
            let words = shape.slot_bytes / 8;
            let is_update_told = shape.tells_old_from_new(key.len());
            for (from, to) in [(&empty, &old), (&old, &empty), (&old, &new)] {
                for mixture in 0..1_u32 << words.min(12) {
                    let mut slot = from.clone();
                    for index in (0..words).filter(|index| mixture >> (index % 12) & 1 != 0) {
                        // A remove leaves the key alone.
                        if index < words && !(to == &empty && index * 8 >= VALUE_AT + 8) {
                            set(&mut slot, index, word(to, index));
                        }
                    }
                    let torn = slot.clone();
                    shape.repair_slot(leaf(), &mut slot, 9);
                    let judged = shape.judge(leaf(), &slot, 9);
                    let pairs: Vec<Judged> = [from, to]
                        .into_iter()
                        .map(|slot| shape.judge(leaf(), slot, 9))
                        .filter(|judged| matches!(judged, Judged::Pair(_)))
                        .collect();
                    let is_update = pairs.len() == 2;
                    let is_right = match judged {
                        Judged::Empty => !is_update || !is_update_told,
                        Judged::Pair(_) => pairs.contains(&judged),
                        Judged::Stale | Judged::Torn => false,
                    };
                    assert!(is_right, "{torn:?} of {from:?} and {to:?} became {slot:?}");
                }
            }
        }
    }

    #[test]
    fn headers_read_back() {
        for shape in shapes() {
            let at = leaf().0;
            let high = Fence::Inline(vec![3; 8]);
            let (low, right) = (Fence::Record(0x1_0041), 77 << 6);
            let header = Header { version: 5, right, birth: 4, is_dead: false, low, high };
            for header in [header, Header::dead(6)] {
                let mut bytes = vec![0xaa; shape.leaf_bytes];
                shape.put_header(at, &header, &mut bytes);
                assert_eq!(shape.header(at, &bytes), Some(header));
                assert_eq!(shape.header(at.plus(64), &bytes), None);
                for index in 0..shape.header_bytes / 8 {
                    let mut torn = bytes.clone();
                    set(&mut torn, index, word(&bytes, index) ^ 1 << 40);
                    assert_eq!(shape.header(at, &torn), None, "word {index}");
                }
            }
        }
    }
}
