//! Slotted edits: change the slots and the heap of a slotted node in place.

use super::builder::{NodeBuilder, value_bytes, value_tail};
use super::edit::{ChangeError, NodeMut};
use super::header::{HIGH_WORD, Kind, LOW_WORD, set_count};
use super::layout::{RECORD_BYTES, VALUE_HEAD_BYTES};
use super::slotted::{Heap, SuffixSlot, slot_at, slots_bytes};
use super::strings::leading;
use super::view::{Node, Value};
use super::words::{HEAD_WORDS, Image, append};

impl<I: Image> NodeMut<'_, I> {
    fn set_heap(&mut self, heap: Heap) {
        self.image.set(LOW_WORD, heap.low_word());
        self.image.set(HIGH_WORD, heap.high_word());
    }

    /// Free bytes between `slots` slots and the heap; negative if the slots alone do not fit.
    fn gap(&self, kind: Kind, slots: usize) -> isize {
        let heap_bytes = usize::from(self.as_node().heap().heap_bytes);
        self.layout.payload_bytes() as isize
            - heap_bytes as isize
            - slots_bytes(kind, slots) as isize
    }

    /// Opens slot `index` for a new cell. In an inner node the child moves along with its slot, and
    /// the new slot's child is left to the caller.
    pub(super) fn insert_cell(
        &mut self,
        kind: Kind,
        index: usize,
        suffix: &[u8],
        value: Option<Value<'_>>,
    ) -> Result<(), ChangeError> {
        let cell_bytes =
            suffix.len() + value.map_or(0, |value| VALUE_HEAD_BYTES + value_bytes(&value));
        let count = self.slotted_count(kind);
        if self.gap(kind, count + 1) < cell_bytes as isize {
            let holes = usize::from(self.as_node().heap().hole_bytes) as isize;
            if self.gap(kind, count + 1) + holes < cell_bytes as isize {
                return Err(ChangeError::NoRoom);
            }
            self.rebuild(kind, None)?;
            if self.gap(kind, count + 1) < cell_bytes as isize {
                return Err(ChangeError::Damaged);
            }
        }
        let offset = self.append_cell(cell_bytes, suffix, value);
        let (at, next) = (slot_at(kind, index), slot_at(kind, index + 1));
        self.image.shift(at..slot_at(kind, count), next);
        let slot = SuffixSlot { head: leading(suffix), offset, len: suffix.len() as u16 };
        self.image.set(at, slot.pack());
        set_count(&mut self.image, count + 1);
        Ok(())
    }

    fn slotted_count(&self, kind: Kind) -> usize {
        let node = self.as_node();
        if kind == Kind::Inner { node.inner_count() } else { node.leaf_count() }
    }

    /// Puts a cell below the heap, where there is space for it, and gives its offset.
    fn append_cell(&mut self, cell_bytes: usize, suffix: &[u8], value: Option<Value<'_>>) -> u16 {
        let mut heap = self.as_node().heap();
        heap.heap_bytes = heap.heap_bytes.saturating_add(cell_bytes as u16);
        // The gap above the slots was checked to be at least this large.
        let offset = self.layout.node_bytes() - usize::from(heap.heap_bytes);
        self.image.write_bytes(offset, suffix);
        if let Some(value) = value {
            self.write_value(offset + suffix.len(), value);
        }
        self.set_heap(heap);
        if cell_bytes == 0 { 0 } else { offset as u16 }
    }

    fn write_value(&mut self, at: usize, value: Value<'_>) {
        let mut record = [0; RECORD_BYTES];
        let (head, bytes) = value_tail(&value, &mut record);
        self.image.write_bytes(at, &head);
        self.image.write_bytes(at + VALUE_HEAD_BYTES, bytes);
    }

    pub(super) fn replace_cell(
        &mut self,
        index: usize,
        value: Value<'_>,
    ) -> Result<(), ChangeError> {
        let node = self.as_node();
        let slot = node.slot(Kind::Leaf, index);
        let (offset, suffix_len) = (usize::from(slot.offset), usize::from(slot.len));
        let old_bytes = node.cell_bytes(Kind::Leaf, slot);
        let new_bytes = suffix_len + VALUE_HEAD_BYTES + value_bytes(&value);
        let (mut heap, count) = (node.heap(), node.leaf_count());
        // Never write outside the heap, whatever a damaged slot says.
        let bottom = self.layout.node_bytes().saturating_sub(heap.heap_bytes.into());
        if offset < bottom.max(HEAD_WORDS * 8) || offset + old_bytes > self.layout.node_bytes() {
            return Err(ChangeError::Damaged);
        }
        if new_bytes <= old_bytes {
            self.write_value(offset + suffix_len, value);
            heap.hole_bytes = heap.hole_bytes.saturating_add((old_bytes - new_bytes) as u16);
            self.set_heap(heap);
            return Ok(());
        }
        let mut suffix = Vec::with_capacity(suffix_len);
        append(node.words, offset, suffix_len, &mut suffix);
        let gap = self.gap(Kind::Leaf, count);
        if gap >= new_bytes as isize {
            let offset = self.append_cell(new_bytes, &suffix, Some(value));
            self.image.set(slot_at(Kind::Leaf, index), SuffixSlot { offset, ..slot }.pack());
            let mut heap = self.as_node().heap();
            heap.hole_bytes = heap.hole_bytes.saturating_add(old_bytes as u16);
            self.set_heap(heap);
            return Ok(());
        }
        let reclaimed = usize::from(heap.hole_bytes) + old_bytes;
        if gap + (reclaimed as isize) < new_bytes as isize {
            return Err(ChangeError::NoRoom);
        }
        self.rebuild(Kind::Leaf, Some(index))?;
        self.insert_cell(Kind::Leaf, index, &suffix, Some(value))
    }

    pub(super) fn remove_cell(&mut self, kind: Kind, index: usize, count: usize) {
        let node = self.as_node();
        let (slot, mut heap) = (node.slot(kind, index), node.heap());
        let cell_bytes = node.cell_bytes(kind, slot) as u16;
        let bottom = self.layout.node_bytes().saturating_sub(heap.heap_bytes.into());
        if usize::from(slot.offset) == bottom {
            heap.heap_bytes = heap.heap_bytes.saturating_sub(cell_bytes);
        } else {
            heap.hole_bytes = heap.hole_bytes.saturating_add(cell_bytes);
        }
        self.image.shift(slot_at(kind, index + 1)..slot_at(kind, count), slot_at(kind, index));
        self.zero(slot_at(kind, count - 1), slot_at(kind, count));
        self.set_heap(heap);
        set_count(&mut self.image, count - 1);
    }

    /// Closes the heap's holes, leaving out entry `skip`.
    fn rebuild(&mut self, kind: Kind, skip: Option<usize>) -> Result<(), ChangeError> {
        let (old, mut new) = (self.copy(), vec![0; self.layout.node_words]);
        let old = Node::new(self.layout, &old);
        let fences = old.fences();
        let mut builder = NodeBuilder::start(self.layout, &mut new, kind, &old.head(&fences))?;
        let count = self.slotted_count(kind);
        builder.push_part(&old, (0, skip.unwrap_or(count)))?;
        builder.push_part(&old, (skip.map_or(count, |skip| skip + 1), count))?;
        builder.finish(old.slotted_child(count, count));
        self.image.assign(1, &new[1..]);
        Ok(())
    }
}
