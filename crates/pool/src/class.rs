//! Size classes: round object sizes up.
//!
//! Classes are 64, 128, 192 and 256 bytes, then four to each doubling (320, 384, 448, 512, 640,
//! ...) up to 1 MiB + 256 KiB: every power of two from 64 on is one, and above 256 bytes at most a
//! fifth of an object is waste. [`BESIDE`] lists further ones.
//!
//! Remote memory names a class by its bytes, never by its number. So a class may be added without a new
//! version of the format.

/// Sizes beside the doublings, ascending: multiples of 64 that a design needs often, where the next class would
/// waste much. 2,112 bytes hold the largest node of a radix tree: 257 slots of 8 bytes with a header, which would
/// waste a sixth of 2,560. 1,664 bytes hold a leaf of 32 slots of 48 bytes with a header of 128, which would waste 7 % of
/// 1,792.
const BESIDE: [u32; 2] = [1664, 2112];
/// Classes of the doublings: 4 up to 256 bytes, four to each of 12 doublings, and the largest.
const DOUBLING_COUNT: usize = 53;
/// Number of size classes.
pub(crate) const CLASS_COUNT: usize = DOUBLING_COUNT + BESIDE.len();
/// Objects start at multiples of this, and sizes are multiples of it.
pub(crate) const OBJECT_ALIGN: u64 = 64;
/// Groups of classes: one for each doubling.
pub(crate) const GROUP_COUNT: u32 = 15;

const SIZES: [u32; CLASS_COUNT] = sizes();

const fn sizes() -> [u32; CLASS_COUNT] {
    let (mut sizes, mut class, mut doubling, mut beside) = ([0; CLASS_COUNT], 0, 0, 0);
    while class < CLASS_COUNT {
        let next = doubling_bytes(doubling);
        sizes[class] = if beside < BESIDE.len() && BESIDE[beside] < next {
            beside += 1;
            BESIDE[beside - 1]
        } else {
            doubling += 1;
            next
        };
        class += 1;
    }
    sizes
}

const fn doubling_bytes(number: usize) -> u32 {
    if number < 4 {
        return 64 * (number as u32 + 1);
    }
    let base = 256 << ((number - 4) / 4);
    base + base / 4 * ((number as u32 - 4) % 4 + 1)
}

/// Bytes of an object of `class`.
pub(crate) fn class_bytes(class: usize) -> u64 {
    u64::from(SIZES[class])
}

/// The smallest class whose objects hold `bytes`; `None` if none is large enough.
pub(crate) fn class_of(bytes: usize) -> Option<usize> {
    let class = SIZES.partition_point(|size| (*size as usize) < bytes);
    (class < CLASS_COUNT).then_some(class)
}

/// The class of objects of exactly so many bytes.
pub(crate) fn class_of_size(bytes: u64) -> Option<usize> {
    SIZES.binary_search(&u32::try_from(bytes).ok()?).ok()
}

/// The group of a class: below [`GROUP_COUNT`].
pub(crate) fn group_of(class: usize) -> u32 {
    (class_bytes(class) / OBJECT_ALIGN).ilog2()
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
            assert_eq!(class_of_size(bytes as u64), Some(class));
            assert_eq!(class_of_size(bytes as u64 + 1), None);
            assert!(group_of(class) < GROUP_COUNT);
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
}
