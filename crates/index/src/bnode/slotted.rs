//! Slotted layout: reads sorted slots and a heap of bytes.
//!
//! Leaf payload: one slot word an entry. Inner payload: the last child's address, then a slot word and a
//! child's address for each separator. From the image's end downwards grows the heap: both fences, then
//! cells. A cell is a key's suffix (the key without the node's prefix) and, in a leaf, a value: two bytes
//! of length, whose top bit marks a record, then the bytes or the record's address and length.

use std::cmp::Ordering;

use super::dense::{count_before, count_before_unguessed};
use super::header::{HIGH_WORD, Kind, LOW_WORD};
use super::layout::{RECORD_BYTES, VALUE_HEAD_BYTES};
use super::strings::leading;
use super::view::{Cover, Node, RecordRef, StoredValue};
use super::words::{HEAD_WORDS, Word, append, compare, load_at, word};

/// Slots with one head that are looked at one by one; more are counted by halving.
const SAME_HEADS: usize = 4;
/// Set in a value's length: the value is in a record.
const RECORD_BIT: u16 = 1 << 15;

/// A slot word: the first bytes of a suffix, and where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SuffixSlot {
    /// First four bytes of the suffix as a big-endian number, padded with zeros.
    pub(super) head: u32,
    /// Byte of the image where the cell starts; 0 for a cell of no bytes.
    pub(super) offset: u16,
    /// Bytes of the suffix.
    pub(super) len: u16,
}

impl SuffixSlot {
    #[inline(always)]
    pub(super) fn unpack(word: u64) -> Self {
        Self { head: (word >> 32) as u32, offset: (word >> 16) as u16, len: word as u16 }
    }

    pub(super) fn pack(self) -> u64 {
        u64::from(self.head) << 32 | u64::from(self.offset) << 16 | u64::from(self.len)
    }
}

/// The two fence words: where the fences are, and the state of the heap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Heap {
    pub(super) low_offset: u16,
    pub(super) low_len: u16,
    pub(super) high_offset: u16,
    pub(super) high_len: u16,
    /// Bytes from the heap's lowest to the image's end.
    pub(super) heap_bytes: u16,
    /// Bytes among them that nothing refers to any more.
    pub(super) hole_bytes: u16,
    /// Bytes that both fences start with, left out of every key.
    pub(super) prefix_len: u16,
    /// Always 0.
    pub(super) spare: u16,
}

impl Heap {
    #[inline(always)]
    pub(super) fn unpack(low: u64, high: u64) -> Self {
        Self {
            low_offset: low as u16,
            low_len: (low >> 16) as u16,
            heap_bytes: (low >> 32) as u16,
            hole_bytes: (low >> 48) as u16,
            high_offset: high as u16,
            high_len: (high >> 16) as u16,
            prefix_len: (high >> 32) as u16,
            spare: (high >> 48) as u16,
        }
    }

    pub(super) fn low_word(self) -> u64 {
        u64::from(self.low_offset)
            | u64::from(self.low_len) << 16
            | u64::from(self.heap_bytes) << 32
            | u64::from(self.hole_bytes) << 48
    }

    pub(super) fn high_word(self) -> u64 {
        u64::from(self.high_offset)
            | u64::from(self.high_len) << 16
            | u64::from(self.prefix_len) << 32
            | u64::from(self.spare) << 48
    }

    /// Offset and length of a fence.
    #[inline(always)]
    pub(super) fn fence(self, high: bool) -> (usize, usize) {
        let (offset, len) =
            if high { (self.high_offset, self.high_len) } else { (self.low_offset, self.low_len) };
        (offset.into(), len.into())
    }

    /// Prefix length, never more than the low fence that it is read from.
    #[inline(always)]
    pub(super) fn prefix(self) -> usize {
        usize::from(self.prefix_len.min(self.low_len))
    }
}

/// The word of slot `index`.
#[inline(always)]
pub(super) fn slot_at(kind: Kind, index: usize) -> usize {
    match kind {
        Kind::Inner => HEAD_WORDS + 1 + 2 * index,
        _ => HEAD_WORDS + index,
    }
}

/// Payload bytes that `count` slots take, children included.
pub(super) fn slots_bytes(kind: Kind, count: usize) -> usize {
    (slot_at(kind, count) - HEAD_WORDS) * 8
}

/// The word of child `index` of `count + 1`.
#[inline(always)]
pub(super) fn child_at(count: usize, index: usize) -> usize {
    if index < count { slot_at(Kind::Inner, index) + 1 } else { HEAD_WORDS }
}

/// The two bytes before a value.
pub(super) fn value_head(len: usize, record: bool) -> [u8; VALUE_HEAD_BYTES] {
    let head = if record { RECORD_BIT } else { len as u16 };
    head.to_le_bytes()
}

/// Bytes of a value behind its two bytes of length, and whether it is a record.
#[inline(always)]
pub(super) fn value_len(head: u16) -> (usize, bool) {
    let record = head & RECORD_BIT != 0;
    (if record { RECORD_BYTES } else { usize::from(head) }, record)
}

impl<W: Word> Node<'_, W> {
    #[inline(always)]
    pub(super) fn heap(&self) -> Heap {
        Heap::unpack(word(self.words, LOW_WORD), word(self.words, HIGH_WORD))
    }

    #[inline(always)]
    pub(super) fn slot(&self, kind: Kind, index: usize) -> SuffixSlot {
        SuffixSlot::unpack(word(self.words, slot_at(kind, index)))
    }

    #[inline(always)]
    pub(super) fn slotted_child(&self, count: usize, index: usize) -> u64 {
        word(self.words, child_at(count, index))
    }

    /// Compares a fence with `key`.
    #[inline]
    fn compare_fence(&self, high: bool, key: &[u8]) -> Ordering {
        let (offset, len) = self.heap().fence(high);
        compare(self.words, offset, len, key)
    }

    #[inline]
    pub(super) fn slotted_covers(&self, key: &[u8], after: bool) -> Cover {
        let meta = self.meta();
        let equal = if after { Ordering::Less } else { Ordering::Greater };
        // A fence equal to the key lies before the place just above the key, and not before the key.
        let past = |high| self.compare_fence(high, key).then(equal) == Ordering::Less;
        if !meta.low_infinite() && !past(false) {
            Cover::Below
        } else if !meta.high_infinite() && past(true) {
            Cover::Above
        } else {
            Cover::Inside
        }
    }

    /// Slots before `key`, or, `after` it, up to it; and whether the first slot not counted is `key`.
    #[inline]
    pub(super) fn slotted_position(
        &self,
        kind: Kind,
        count: usize,
        key: &[u8],
        after: bool,
    ) -> (usize, bool) {
        let heap = self.heap();
        let prefix = heap.prefix();
        if prefix > 0 {
            let start = &key[..key.len().min(prefix)];
            match compare(self.words, heap.low_offset.into(), prefix, start) {
                Ordering::Less => return (count, false),
                Ordering::Greater => return (0, false),
                Ordering::Equal => {}
            }
        }
        // Equal to the whole prefix, or torn: then the suffix may well be empty.
        let suffix = key.get(prefix..).unwrap_or(&[]);
        let head = leading(suffix);
        let (start, stride) = (slot_at(kind, 0), slot_at(kind, 1) - slot_at(kind, 0));
        let slots = self.words.get(start..).unwrap_or(&[]);
        let slot = |index: usize| SuffixSlot::unpack(word(slots, index * stride));
        // By the heads alone first: they stand in the slots, so that no step waits for a cell or a guess.
        let first = count_before_unguessed(count, |index| slot(index).head < head);
        let mut same = 0;
        while first + same < count && same < SAME_HEADS && slot(first + same).head == head {
            same += 1;
        }
        if same == SAME_HEADS {
            same = count_before(count - first, |index| slot(first + index).head <= head);
        }
        let mut found = false;
        let index = first
            + count_before(same, |index| match self.compare_suffix(slot(first + index), suffix) {
                Ordering::Less => true,
                Ordering::Equal => {
                    found = true;
                    after
                }
                Ordering::Greater => false,
            });
        (index, found)
    }

    /// Compares the suffix of `slot` with one that has the same head.
    #[inline(never)]
    fn compare_suffix(&self, slot: SuffixSlot, suffix: &[u8]) -> Ordering {
        let len = usize::from(slot.len);
        if len <= 4 && suffix.len() <= 4 {
            // Equal but for zeros at the end of the longer.
            return len.cmp(&suffix.len());
        }
        // Equal heads: the bytes that both have among the first four are equal.
        let skip = len.min(suffix.len()).min(4);
        compare(self.words, usize::from(slot.offset) + skip, len - skip, &suffix[skip..])
    }

    pub(super) fn slotted_fence(&self, high: bool, out: &mut Vec<u8>) {
        let (offset, len) = self.heap().fence(high);
        append(self.words, offset, len, out);
    }

    #[inline]
    pub(super) fn slotted_key(&self, kind: Kind, index: usize, out: &mut Vec<u8>) {
        let (heap, slot) = (self.heap(), self.slot(kind, index));
        append(self.words, heap.low_offset.into(), heap.prefix(), out);
        append(self.words, slot.offset.into(), slot.len.into(), out);
    }

    #[inline]
    pub(super) fn slotted_value(&self, index: usize, out: &mut Vec<u8>) -> StoredValue {
        let slot = self.slot(Kind::Leaf, index);
        let at = usize::from(slot.offset) + usize::from(slot.len);
        if let Some(record) = self.slotted_record(index) {
            return StoredValue::Record(record);
        }
        let (len, _) = value_len(load_at(self.words, at) as u16);
        append(self.words, at + VALUE_HEAD_BYTES, len, out);
        StoredValue::Inline
    }

    /// The record that value `index` is, if it is one.
    pub(super) fn slotted_record(&self, index: usize) -> Option<RecordRef> {
        let slot = self.slot(Kind::Leaf, index);
        let at = usize::from(slot.offset) + usize::from(slot.len);
        let (_, is_record) = value_len(load_at(self.words, at) as u16);
        let at = at + VALUE_HEAD_BYTES;
        is_record
            .then(|| RecordRef { addr: load_at(self.words, at), len: load_at(self.words, at + 8) })
    }

    /// Bytes of the cell of `slot`.
    pub(super) fn cell_bytes(&self, kind: Kind, slot: SuffixSlot) -> usize {
        let suffix = usize::from(slot.len);
        if kind == Kind::Inner {
            return suffix;
        }
        let head = load_at(self.words, usize::from(slot.offset) + suffix) as u16;
        suffix + VALUE_HEAD_BYTES + value_len(head).0
    }

    pub(super) fn slotted_used(&self, inner: bool) -> usize {
        let heap = self.heap();
        let (kind, count) =
            if inner { (Kind::Inner, self.inner_count()) } else { (Kind::Leaf, self.leaf_count()) };
        slots_bytes(kind, count)
            + usize::from(heap.heap_bytes).saturating_sub(heap.hole_bytes.into())
    }
}

impl<'a> Node<'a, u64> {
    /// Bytes of a private image, as far as they exist.
    pub(super) fn bytes(&self, offset: usize, len: usize) -> &'a [u8] {
        let bytes = u64::as_bytes(self.words).unwrap_or(&[]);
        let offset = offset.min(bytes.len());
        &bytes[offset..offset + len.min(bytes.len() - offset)]
    }

    /// The prefix that every key of a private slotted image starts with.
    pub(super) fn prefix_bytes(&self) -> &'a [u8] {
        let heap = self.heap();
        self.bytes(heap.low_offset.into(), heap.prefix())
    }

    /// A cell of a private slotted image: suffix, and value with its length.
    pub(super) fn cell(&self, kind: Kind, index: usize) -> (&'a [u8], &'a [u8]) {
        let slot = self.slot(kind, index);
        let all = self.bytes(slot.offset.into(), self.cell_bytes(kind, slot));
        all.split_at(all.len().min(slot.len.into()))
    }
}
