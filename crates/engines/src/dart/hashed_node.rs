//! Hashed nodes: arrays of small buckets, of which a reader needs one.
//!
//! N8 is one bucket of half size; N16 to N128 are 1 to 8 buckets; N256 is an array by byte with a last slot for
//! the end of a key. A fixed permutation spreads bytes over buckets, so each bucket owns as many bytes. END
//! lives in bucket 0.

use std::ops::Range;

use farleaf_fabric::GlobalAddr;

use super::options::DartShape;
use super::word::{DartNodeType, SlotWord, Step};

farleaf_fabric::canaries! {
    pub(crate) FILL_ANY_SLOT = "fill-any-slot",
        "an insert takes the last empty slot of its bucket, not the first";
}

/// Slots of an N256: one for each byte, and END.
const ARRAY_SLOTS: usize = 257;

/// The place of each byte: its bucket is the low bits.
const PERMUTATION: [u8; 256] = permutation();

const fn permutation() -> [u8; 256] {
    let mut places = [0; 256];
    let mut at = 0;
    while at < 256 {
        places[at] = at as u8;
        at += 1;
    }
    let mut state: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut at = 255;
    while at > 0 {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let other = (state >> 33) as usize % (at + 1);
        let place = places[at];
        places[at] = places[other];
        places[other] = place;
        at -= 1;
    }
    places
}

/// The place of a step's word in its bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BucketPlace {
    /// In this slot.
    At(usize, SlotWord),
    /// Nowhere, and this is the first empty slot.
    Empty(usize, SlotWord),
    /// Nowhere, and the bucket is full.
    Full,
}

/// Finds `step` in the words of its bucket (`INV-DART-2`: slots fill from left to right).
#[inline]
pub(super) fn find(words: &[u64], step: Step) -> BucketPlace {
    for (index, word) in words.iter().enumerate() {
        let word = SlotWord::from_raw(*word);
        match word.step() {
            None => {
                let last = words.len() - 1;
                if FILL_ANY_SLOT.is_armed() && words[last] == 0 {
                    return BucketPlace::Empty(last, word);
                }
                return BucketPlace::Empty(index, word);
            }
            Some(found) if found == step => return BucketPlace::At(index, word),
            Some(_) => {}
        }
    }
    BucketPlace::Full
}

/// The sizes of a table's nodes: slots of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NodeShape {
    slots: usize,
}

impl NodeShape {
    /// That of a table of such a shape.
    pub(super) fn new(shape: DartShape) -> NodeShape {
        NodeShape { slots: usize::from(shape.bucket_bytes()) / 8 }
    }

    fn buckets(&self, node: DartNodeType) -> usize {
        1 << node.number().saturating_sub(2)
    }

    fn bucket_slots(&self, node: DartNodeType) -> usize {
        match node {
            DartNodeType::N8 => self.slots / 2,
            DartNodeType::N256 => 1,
            _ => self.slots,
        }
    }

    /// Slots of a node.
    pub(super) fn slots(&self, node: DartNodeType) -> usize {
        match node {
            DartNodeType::N256 => ARRAY_SLOTS,
            _ => self.buckets(node) * self.bucket_slots(node),
        }
    }

    /// Children that such a node is likely to have, at least.
    pub(super) fn children_likely(&self, node: DartNodeType) -> usize {
        (self.slots(node) / 4).max(2)
    }

    /// Bytes of a node.
    pub(super) fn bytes(&self, node: DartNodeType) -> usize {
        8 * self.slots(node)
    }

    /// Slots of the bucket that owns `step`.
    #[inline]
    pub(super) fn bucket(&self, node: DartNodeType, step: Step) -> Range<usize> {
        if node == DartNodeType::N256 {
            let index = match step {
                Step::Byte(byte) => usize::from(byte),
                Step::End => ARRAY_SLOTS - 1,
            };
            return index..index + 1;
        }
        let slots = self.bucket_slots(node);
        let bucket = match step {
            Step::Byte(byte) => {
                usize::from(PERMUTATION[usize::from(byte)]) & (self.buckets(node) - 1)
            }
            Step::End => 0,
        };
        bucket * slots..(bucket + 1) * slots
    }

    /// The smallest type that holds `children`.
    pub(super) fn fit(&self, children: &[SlotWord]) -> DartNodeType {
        let steps = || children.iter().filter_map(|word| word.step());
        let holds = |node: &DartNodeType| {
            let mut used = [0_u16; 8];
            steps().all(|step| {
                let bucket = self.bucket(*node, step).start / self.bucket_slots(*node);
                used[bucket] += 1;
                usize::from(used[bucket]) <= self.bucket_slots(*node)
            })
        };
        let hashed = DartNodeType::all().take(5);
        hashed
            .filter(|node| steps().count() <= self.slots(*node))
            .find(holds)
            .unwrap_or(DartNodeType::N256)
    }

    /// Fills the words of a node of that type.
    pub(super) fn fill(&self, node: DartNodeType, children: &[SlotWord], words: &mut [u64]) {
        words.fill(0);
        for child in children {
            let Some(step) = child.step() else { continue };
            let bucket = &mut words[self.bucket(node, step)];
            let free = bucket.iter_mut().find(|word| **word == 0);
            let free = free.unwrap_or_else(|| panic!("{node:?} has no slot for {child:?}"));
            *free = child.raw();
        }
        debug_assert_eq!(self.problem(node, GlobalAddr::NULL, words), None, "INV-DART-2");
    }

    /// Returns the faults of the words of the node at `at` (`INV-DART-1`, `INV-DART-2`).
    pub(super) fn problem(
        &self,
        node: DartNodeType,
        at: GlobalAddr,
        words: &[u64],
    ) -> Option<String> {
        let mut seen = Vec::new();
        for (index, word) in words.iter().enumerate() {
            let word = SlotWord::from_raw(*word);
            if !word.is_legal() {
                return Some(format!("slot {index} holds {:#x}, which is no word", word.raw()));
            }
            let Some(step) = word.step() else { continue };
            // A claim stands in any dead slot. A walk meets it if the node is unlinked after the walk saw its slot.
            if word.is_claim_of(at) {
                continue;
            }
            let bucket = self.bucket(node, step);
            if !bucket.contains(&index) {
                return Some(format!("INV-DART-2: slot {index} holds {word:?} of another bucket"));
            }
            if words[bucket.start..index]
                .iter()
                .any(|before| SlotWord::from_raw(*before).is_empty())
            {
                return Some(format!("INV-DART-2: an empty slot stands in front of {word:?}"));
            }
            if seen.contains(&step) {
                return Some(format!("INV-DART-2: {step:?} is there twice"));
            }
            seen.push(step);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use farleaf_fabric::ServerId;

    use super::*;

    fn at() -> GlobalAddr {
        GlobalAddr::new(ServerId(0), 8192)
    }

    fn leaf(step: Step) -> SlotWord {
        SlotWord::leaf(step, 0, GlobalAddr::new(ServerId(0), 4096))
    }

    fn shaped(bucket_bytes: Option<u16>) -> NodeShape {
        NodeShape::new(DartShape { bucket_bytes })
    }

    fn bytes(count: usize) -> Vec<SlotWord> {
        (0..count).map(|byte| leaf(Step::Byte(byte as u8))).collect()
    }

    #[test]
    fn each_bucket_owns_as_many_bytes() {
        let mut seen = [false; 256];
        PERMUTATION.iter().for_each(|place| seen[usize::from(*place)] = true);
        assert_eq!(seen, [true; 256]);
        let shape = shaped(None);
        for node in DartNodeType::all() {
            let mut owned = vec![0; shape.slots(node)];
            for byte in 0..=255 {
                owned[shape.bucket(node, Step::Byte(byte)).start] += 1;
            }
            let most = owned.iter().max();
            assert!(owned.iter().all(|count| *count == 0 || Some(count) == most), "{node:?}");
        }
    }

    #[test]
    fn sizes_are_those_of_the_paper() {
        let shape = shaped(None);
        let sizes: Vec<_> = DartNodeType::all().map(|node| shape.bytes(node)).collect();
        assert_eq!(sizes, [64, 128, 256, 512, 1024, 2056]);
        let tiny = shaped(Some(32));
        let sizes: Vec<_> = DartNodeType::all().map(|node| tiny.slots(node)).collect();
        assert_eq!(sizes, [2, 4, 8, 16, 32, 257]);
        for bytes in [32, 64, 128, 256, 512_u16] {
            let shape = shaped(Some(bytes));
            let sizes: Vec<_> = DartNodeType::all().map(|node| shape.bytes(node)).collect();
            let own = usize::from(bytes);
            assert_eq!(sizes, [own / 2, own, 2 * own, 4 * own, 8 * own, 2056]);
            assert_eq!(shape.bucket(DartNodeType::of(4).expect("N64"), Step::End).len(), own / 8);
        }
    }

    #[test]
    fn nodes_grow_to_all_bytes_and_the_end() {
        for shape in [shaped(None), shaped(Some(32)), shaped(Some(512))] {
            let mut children = Vec::new();
            let mut last = DartNodeType::N8;
            for step in std::iter::once(Step::End).chain((0..=255).map(Step::Byte)) {
                children.push(leaf(step));
                let node = shape.fit(&children);
                assert!(node >= last);
                last = node;
                let mut words = vec![0; shape.slots(node)];
                shape.fill(node, &children, &mut words);
                assert_eq!(shape.problem(node, at(), &words), None);
                for child in &children {
                    let step = child.step().expect("a step");
                    let bucket = &words[shape.bucket(node, step)];
                    assert!(
                        matches!(find(bucket, step), BucketPlace::At(_, word) if word == *child)
                    );
                }
            }
            let all_fit = shape.slots(DartNodeType::N256) <= shape.slots(last);
            assert!(all_fit, "{last:?}");
            assert_eq!(shape.fit(&bytes(2)), DartNodeType::N8);
        }
    }

    #[test]
    fn a_bucket_tells_absence_by_its_first_empty_slot() {
        let mut words = [0; 4];
        words[0] = leaf(Step::Byte(3)).raw();
        assert_eq!(find(&words, Step::Byte(4)), BucketPlace::Empty(1, SlotWord::EMPTY));
        words[1] = SlotWord::EMPTY.sealed().raw();
        assert_eq!(find(&words, Step::Byte(4)), BucketPlace::Empty(1, SlotWord::EMPTY.sealed()));
        let full = [3, 5, 6, 7].map(|byte| leaf(Step::Byte(byte)).raw());
        assert_eq!(find(&full, Step::Byte(4)), BucketPlace::Full);
    }

    #[test]
    fn misplaced_words_are_told() {
        let shape = shaped(None);
        let one = leaf(Step::Byte(1)).raw();
        assert!(shape.problem(DartNodeType::N8, at(), &[0, one, 0, 0, 0, 0, 0, 0]).is_some());
        assert!(shape.problem(DartNodeType::N8, at(), &[one, one, 0, 0, 0, 0, 0, 0]).is_some());
        assert!(shape.problem(DartNodeType::N8, at(), &[one | 1, 0, 0, 0, 0, 0, 0, 0]).is_some());
        assert!(shape.problem(DartNodeType::N8, at(), &[one, 0, 0, 0, 0, 0, 0, 0]).is_none());
    }

    #[test]
    fn a_claim_of_an_unlinked_node_is_no_fault() {
        let shape = shaped(None);
        let only = leaf(Step::Byte(0)).sealed().raw();
        let free = SlotWord::EMPTY.sealed().raw();
        let mut words = [free; 8];
        words[0] = only;
        // A walk that has seen the slot of a node reads the node after it was unlinked and claimed.
        words[1] = SlotWord::claim(Step::Byte(0), at(), 7).raw();
        assert_eq!(shape.problem(DartNodeType::N8, at(), &words), None);
        words[1] = SlotWord::tomb(Step::Byte(0), at().plus(64), 7).sealed().raw();
        assert!(shape.problem(DartNodeType::N8, at(), &words).is_some());
    }
}
