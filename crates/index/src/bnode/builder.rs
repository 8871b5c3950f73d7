//! Image builder: fills an image of either layout from its first entry to its last.

use super::edit::ChangeError;
use super::encode::{set_dense_fence, set_key};
use super::header::{HIGH_WORD, Head, Kind, LOW_WORD, set_count, write_head};
use super::layout::{Layout, RECORD_BYTES, VALUE_HEAD_BYTES};
use super::slotted::{Heap, SuffixSlot, child_at, slot_at, slots_bytes, value_head};
use super::strings::{common_prefix, leading};
use super::view::{Node, Value};
use super::words::{HEAD_WORDS, Image};

/// Bytes that a value takes in a slotted leaf, without its length.
pub(super) fn value_bytes(value: &Value<'_>) -> usize {
    match value {
        Value::Inline(bytes) => bytes.len(),
        Value::Record(_) => RECORD_BYTES,
    }
}

/// A value as a slotted cell holds it: its length, then its bytes. `record` is space for a reference.
pub(super) fn value_tail<'v>(
    value: &Value<'v>,
    record: &'v mut [u8; RECORD_BYTES],
) -> ([u8; VALUE_HEAD_BYTES], &'v [u8]) {
    match *value {
        Value::Inline(bytes) => (value_head(bytes.len(), false), bytes),
        Value::Record(reference) => {
            record[..8].copy_from_slice(&reference.addr.to_le_bytes());
            record[8..].copy_from_slice(&reference.len.to_le_bytes());
            (value_head(0, true), record)
        }
    }
}

/// Bytes that all keys between two fences start with.
pub(super) fn prefix_len(low: Option<&[u8]>, high: Option<&[u8]>) -> usize {
    match (low, high) {
        (Some(low), Some(high)) => common_prefix(low, high),
        _ => 0,
    }
}

/// Fills a private image in key order.
pub(super) struct NodeBuilder<'a> {
    layout: &'a Layout,
    words: &'a mut [u64],
    kind: Kind,
    count: usize,
    heap: Heap,
    /// Byte where the heap starts.
    bottom: usize,
}

impl<'a> NodeBuilder<'a> {
    /// Clears the image and writes header and fences.
    pub(super) fn start(
        layout: &'a Layout,
        words: &'a mut [u64],
        kind: Kind,
        head: &Head<'_>,
    ) -> Result<Self, ChangeError> {
        assert!(words.len() == layout.node_words, "an image has the length of the layout's nodes");
        layout.check_head(head)?;
        words.fill(0);
        write_head(words, layout, kind, head);
        let bottom = layout.node_bytes();
        let mut builder = Self { layout, words, kind, count: 0, heap: Heap::default(), bottom };
        if layout.dense {
            let mut image = &mut *builder.words;
            set_dense_fence(layout, &mut image, false, head.low);
            set_dense_fence(layout, &mut image, true, head.high);
            return Ok(builder);
        }
        let (low, high) = (head.low.unwrap_or(&[]), head.high.unwrap_or(&[]));
        builder.heap.low_offset = builder.append(&[low]);
        builder.heap.low_len = low.len() as u16;
        builder.heap.high_offset = builder.append(&[high]);
        builder.heap.high_len = high.len() as u16;
        builder.heap.prefix_len = prefix_len(head.low, head.high) as u16;
        Ok(builder)
    }

    /// Puts `parts` below the heap and gives their offset, 0 if they are empty.
    fn append(&mut self, parts: &[&[u8]]) -> u16 {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        if len == 0 {
            return 0;
        }
        self.bottom -= len;
        let mut at = self.bottom;
        let mut image = &mut *self.words;
        for part in parts {
            image.write_bytes(at, part);
            at += part.len();
        }
        self.bottom as u16
    }

    /// Adds entries `from..to` of another node, or separators and the children before them.
    pub(super) fn push_part(
        &mut self,
        node: &Node<'_, u64>,
        (from, to): (usize, usize),
    ) -> Result<(), ChangeError> {
        if self.layout.dense {
            let stride = match self.kind {
                Kind::Inner => self.layout.key_words,
                _ => self.layout.stride,
            };
            self.copy_words(node, HEAD_WORDS, stride, (from, to));
            if self.kind == Kind::Inner {
                self.copy_words(node, self.layout.children_at(), 1, (from, to));
            }
            self.count += to - from;
            return Ok(());
        }
        let prefix = node.prefix_bytes();
        for index in from..to {
            let (suffix, tail) = node.cell(self.kind, index);
            self.push([prefix, suffix], [tail, &[]], node.child(index).unwrap_or(0))?;
        }
        Ok(())
    }

    /// Dense: copies elements `from..to` of the array that begins at word `start` behind those that are there.
    fn copy_words(
        &mut self,
        node: &Node<'_, u64>,
        start: usize,
        stride: usize,
        (from, to): (usize, usize),
    ) {
        let at = |index: usize| start + index * stride;
        let mut image = &mut *self.words;
        image.assign(at(self.count), node.words.get(at(from)..at(to)).unwrap_or(&[]));
    }

    /// Adds a separator and the child before it.
    pub(super) fn push_separator(
        &mut self,
        separator: &[u8],
        child: u64,
    ) -> Result<(), ChangeError> {
        if !self.layout.dense {
            return self.push([separator, &[]], [&[], &[]], child);
        }
        if self.count >= self.layout.inner_cap {
            return Err(ChangeError::NoRoom);
        }
        let (at, key_words) = (self.count * self.layout.key_words, self.layout.key_words);
        set_key(&mut self.words[HEAD_WORDS + at..][..key_words], separator);
        self.words[self.layout.children_at() + self.count] = child;
        self.count += 1;
        Ok(())
    }

    /// Slotted: adds an entry whose key is the two pieces of `key` together, or a separator with its child.
    pub(super) fn push(
        &mut self,
        key: [&[u8]; 2],
        tail: [&[u8]; 2],
        child: u64,
    ) -> Result<(), ChangeError> {
        let prefix = usize::from(self.heap.prefix_len);
        let first = key[0].get(prefix..).unwrap_or(&[]);
        let second = key[1].get(prefix.saturating_sub(key[0].len())..).unwrap_or(&[]);
        let suffix_len = first.len() + second.len();
        let cell_bytes = suffix_len + tail[0].len() + tail[1].len();
        let slots_end = HEAD_WORDS * 8 + slots_bytes(self.kind, self.count + 1);
        let cap = match self.kind {
            Kind::Inner => self.layout.inner_cap,
            _ => self.layout.leaf_cap,
        };
        if self.count >= cap || self.bottom < slots_end + cell_bytes {
            return Err(ChangeError::NoRoom);
        }
        let head = if first.len() >= 4 || second.is_empty() {
            leading(first)
        } else {
            let mut start = [0; 4];
            for (into, &byte) in start.iter_mut().zip(first.iter().chain(second)) {
                *into = byte;
            }
            u32::from_be_bytes(start)
        };
        let offset = self.append(&[first, second, tail[0], tail[1]]);
        let slot = SuffixSlot { head, offset, len: suffix_len as u16 };
        self.words[slot_at(self.kind, self.count)] = slot.pack();
        if self.kind == Kind::Inner {
            self.words[slot_at(self.kind, self.count) + 1] = child;
        }
        self.count += 1;
        Ok(())
    }

    /// Writes count, fence words and, in an inner node, the last child. The sum is left out.
    pub(super) fn finish(mut self, last_child: u64) {
        let mut child = self.layout.children_at() + self.count;
        if !self.layout.dense {
            self.heap.heap_bytes = (self.layout.node_bytes() - self.bottom) as u16;
            self.words[LOW_WORD] = self.heap.low_word();
            self.words[HIGH_WORD] = self.heap.high_word();
            child = child_at(self.count, self.count);
        }
        if self.kind == Kind::Inner {
            self.words[child] = last_child;
        }
        let mut image = &mut *self.words;
        set_count(&mut image, self.count);
    }
}
