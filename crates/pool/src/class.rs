//! Size classes: round object sizes up, and lay out a block of one class.
//!
//! Classes are 64, 128, 192 and 256 bytes, then four to each doubling (320, 384, 448, 512, 640,
//! ...) up to 1 MiB + 256 KiB: every power of two from 64 on is one, and above 256 bytes at most a
//! fifth of an object is waste. Two more stand between them. 2,112 bytes hold the largest node of a radix
//! tree: 257 slots of 8 bytes with a header, which would waste a sixth of 2,560. 1,664 bytes hold a leaf of
//! 32 slots of 48 bytes with a header of 128, which would waste 7 % of 1,792.

/// Number of size classes.
pub(crate) const CLASS_COUNT: usize = 55;
/// Bytes and numbers of the classes beside the doublings, ascending.
const EXTRA: [(usize, usize); 2] = [(1664, 14), (2112, 17)];
/// Objects start at multiples of this.
pub(crate) const OBJECT_ALIGN: u64 = 64;
/// Bytes of a block's header, in front of its bitmaps.
pub(crate) const BLOCK_HEADER_BYTES: u64 = 64;

/// Bytes of an object of `class`.
pub(crate) fn class_bytes(class: usize) -> u64 {
    debug_assert!(class < CLASS_COUNT);
    let mut below = 0;
    for (bytes, number) in EXTRA {
        if class == number {
            return bytes as u64;
        }
        below += usize::from(class > number);
    }
    let class = (class - below) as u64;
    if class < 4 {
        return 64 * (class + 1);
    }
    let base = 256_u64 << ((class - 4) / 4);
    base + base / 4 * ((class - 4) % 4 + 1)
}

/// The smallest class whose objects hold `bytes`; `None` if none is large enough.
pub(crate) fn class_of(bytes: usize) -> Option<usize> {
    let bytes = bytes.max(1);
    if bytes <= 256 {
        return Some((bytes - 1) / 64);
    }
    let doubling = ((bytes - 1) / 256).ilog2() as usize;
    let base = 256_usize << doubling;
    let class = 4 + doubling * 4 + (bytes - base - 1) / (base / 4);
    let class = class + EXTRA.iter().filter(|(extra, _)| bytes > *extra).count();
    (class < CLASS_COUNT).then_some(class)
}

/// Division of a block for one class: header, bitmaps, objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockShape {
    pub(crate) object_bytes: u64,
    /// Objects; 0 if the block is too small for one.
    pub(crate) count: u32,
    /// Offset of the first object in the block.
    pub(crate) first_object: u32,
}

impl BlockShape {
    pub(crate) fn new(block_bytes: u64, class: usize) -> Self {
        let object_bytes = class_bytes(class);
        let mut count = (block_bytes - BLOCK_HEADER_BYTES) / object_bytes;
        while count > 0 && first_object(count) + count * object_bytes > block_bytes {
            count -= 1;
        }
        let first_object = first_object(count) as u32;
        BlockShape { object_bytes, count: count as u32, first_object }
    }

    /// Words of each of the two bitmaps.
    pub(crate) fn bitmap_words(&self) -> usize {
        self.count.div_ceil(64) as usize
    }

    /// The object that starts at `offset` of the block.
    pub(crate) fn object_at(&self, offset: u64) -> Option<u32> {
        let from_first = offset.checked_sub(u64::from(self.first_object))?;
        let index = from_first / self.object_bytes;
        (from_first % self.object_bytes == 0 && index < u64::from(self.count))
            .then_some(index as u32)
    }

    /// Offset in the block of the object `index`.
    pub(crate) fn offset_of(&self, index: u32) -> u64 {
        u64::from(self.first_object) + u64::from(index) * self.object_bytes
    }

    /// The bits of word `word` of the bitmap that stand for objects.
    pub(crate) fn valid_bits(&self, word: usize) -> u64 {
        match u64::from(self.count).saturating_sub(word as u64 * 64) {
            0 => 0,
            left @ 1..=63 => (1 << left) - 1,
            _ => u64::MAX,
        }
    }
}

fn first_object(count: u64) -> u64 {
    BLOCK_HEADER_BYTES + (count.div_ceil(64) * 16).next_multiple_of(OBJECT_ALIGN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_class_that_holds_it_is_chosen() {
        for class in 0..CLASS_COUNT {
            let bytes = class_bytes(class) as usize;
            assert_eq!(class_of(bytes), Some(class), "{bytes}");
            assert_eq!(class_of(bytes + 1), (class + 1 < CLASS_COUNT).then_some(class + 1));
            assert_eq!(bytes % 64, 0);
            if class > 4 {
                let before = class_bytes(class - 1) as usize;
                assert!((bytes - before) * 5 <= bytes, "{before} to {bytes} wastes too much");
            }
        }
        for power in 6..=20 {
            assert_eq!(class_bytes(class_of(1 << power).expect("class")), 1 << power);
        }
        assert_eq!(class_bytes(CLASS_COUNT - 1), 5 << 18);
        assert!(class_bytes(CLASS_COUNT - 1) >= (1 << 20) + 64);
        assert_eq!(class_of(0), Some(0));
        assert_eq!(class_of(2112).map(class_bytes), Some(2112));
        assert_eq!(class_of(2113).map(class_bytes), Some(2560));
        assert_eq!(class_of(1537).map(class_bytes), Some(1664));
        assert_eq!(class_of(1665).map(class_bytes), Some(1792));
    }

    #[test]
    fn objects_fit_their_block_and_fill_it() {
        for block_bytes in [64 << 10, 1 << 20, 16 << 20, 1 << 30_u64] {
            for class in 0..CLASS_COUNT {
                let shape = BlockShape::new(block_bytes, class);
                let end = shape.offset_of(shape.count);
                assert!(end <= block_bytes, "{block_bytes} {class}");
                assert!(block_bytes - end < shape.object_bytes + 192, "{block_bytes} {class}");
                if shape.count > 0 {
                    let last = shape.count - 1;
                    assert_eq!(shape.object_at(shape.offset_of(last)), Some(last));
                    assert_eq!(shape.object_at(shape.offset_of(last) + 1), None);
                    assert_eq!(shape.object_at(end), None);
                    let bits: u32 = (0..shape.bitmap_words())
                        .map(|word| shape.valid_bits(word).count_ones())
                        .sum();
                    assert_eq!(bits, shape.count);
                }
            }
        }
    }
}
