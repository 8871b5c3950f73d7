//! Sorted items: yields items in the order of their keys, for bulk loads.

use farleaf_index::SortedPairs;

use super::progress::Progress;
use crate::{
    keys::{KeyError, KeyMaker, KeyOrder, item_of_randint, randint},
    mix64::{mix64, unmix64},
    values::ValueMaker,
};

/// Mixed keys that are sorted at one time: 256 MiB of them. With more items there is one pass for
/// each such part, which at a nanosecond an item costs less than sorting.
const PART_KEYS: u64 = 1 << 25;
/// Pairs between two calls of [`Progress::advance`].
const PROGRESS_PAIRS: u64 = 1 << 16;

/// The items `0..count`, smallest key first.
///
/// Memory: none for ordered keys; 8 bytes an item, but at most 256 MiB, for hashed `u64` keys; 8
/// bytes an item for the others.
#[derive(Debug)]
pub(crate) struct SortedItems(SortedSource);

#[derive(Debug)]
enum SortedSource {
    InOrder(std::ops::Range<u64>),
    Listed(std::vec::IntoIter<u64>),
    Mixed(MixedKeys),
}

impl SortedItems {
    /// The items `0..count` of `keys`.
    pub(crate) fn new(keys: &KeyMaker, count: u64) -> Self {
        SortedItems(match keys {
            KeyMaker::U64(KeyOrder::Ordered) | KeyMaker::Bytes(KeyOrder::Ordered) => {
                SortedSource::InOrder(0..count)
            }
            KeyMaker::U64(KeyOrder::Hashed) | KeyMaker::Digits(_) | KeyMaker::Random(_) => {
                SortedSource::Mixed(MixedKeys::new(count, PART_KEYS))
            }
            KeyMaker::Bytes(KeyOrder::Hashed) => {
                let mut numbers: Vec<u64> = (0..count).map(mix64).collect();
                numbers.sort_unstable_by_key(|number| decimal_order(*number));
                numbers.iter_mut().for_each(|number| *number = unmix64(*number));
                SortedSource::Listed(numbers.into_iter())
            }
            KeyMaker::Randint => {
                let mut numbers: Vec<u64> = (0..count).map(randint).collect();
                numbers.sort_unstable();
                numbers.iter_mut().for_each(|number| *number = item_of_randint(*number));
                SortedSource::Listed(numbers.into_iter())
            }
            KeyMaker::Email => SortedSource::Listed(sorted_by_key(keys, count).into_iter()),
            KeyMaker::Lines(lines) => {
                let mut items: Vec<u64> = (0..count.min(lines.count())).collect();
                items.sort_unstable_by_key(|item| lines.line(*item));
                SortedSource::Listed(items.into_iter())
            }
        })
    }
}

impl Iterator for SortedItems {
    type Item = u64;

    #[inline]
    fn next(&mut self) -> Option<u64> {
        match &mut self.0 {
            SortedSource::InOrder(items) => items.next(),
            SortedSource::Listed(items) => items.next(),
            SortedSource::Mixed(keys) => keys.next().map(unmix64),
        }
    }
}

/// The items sorted by their keys, mostly by the first 16 bytes. Takes 32 bytes an item meanwhile.
fn sorted_by_key(keys: &KeyMaker, count: u64) -> Vec<u64> {
    let key_of = |item: u64, key: &mut Vec<u8>| {
        // A key that cannot be made gives an error when the load asks for it.
        let _ = keys.write_key(item, key);
    };
    let mut key = Vec::new();
    let head = |item: u64| {
        key_of(item, &mut key);
        let mut head = [0; 16];
        let bytes = key.len().min(16);
        head[..bytes].copy_from_slice(&key[..bytes]);
        (u128::from_be_bytes(head), item)
    };
    let mut items: Vec<(u128, u64)> = (0..count).map(head).collect();
    let (mut one, mut other) = (Vec::new(), Vec::new());
    items.sort_unstable_by(|a, b| {
        a.0.cmp(&b.0).then_with(|| {
            key_of(a.1, &mut one);
            key_of(b.1, &mut other);
            one.cmp(&other)
        })
    });
    items.into_iter().map(|(_, item)| item).collect()
}

/// Sorts numbers as their decimal digits sort: of `12` and `123`, the shorter first.
fn decimal_order(number: u64) -> (u128, u32) {
    let more_digits = number.checked_ilog10().unwrap_or(0);
    (u128::from(number) * 10u128.pow(19 - more_digits), more_digits)
}

/// The mixed numbers of `0..items` in ascending order, a range of values at a time.
#[derive(Debug)]
struct MixedKeys {
    items: u64,
    /// The number's highest bits that name its part.
    part_bits: u32,
    next_part: u64,
    keys: Vec<u64>,
    next: usize,
}

impl MixedKeys {
    fn new(items: u64, part_keys: u64) -> Self {
        let part_bits = (items / part_keys).next_power_of_two().trailing_zeros();
        MixedKeys { items, part_bits, next_part: 0, keys: Vec::new(), next: 0 }
    }

    /// Brings in the next part; `false` if there is none.
    #[cold]
    fn turn(&mut self) -> bool {
        if self.next_part >> self.part_bits != 0 {
            return false;
        }
        self.keys.clear();
        self.next = 0;
        // A shift by all 64 bits, where there is one part, must give 0.
        let part_of = |key: u64| key.checked_shr(64 - self.part_bits).unwrap_or(0);
        let part = self.next_part;
        self.keys.extend((0..self.items).map(mix64).filter(|key| part_of(*key) == part));
        self.keys.sort_unstable();
        self.next_part += 1;
        true
    }
}

impl Iterator for MixedKeys {
    type Item = u64;

    #[inline]
    fn next(&mut self) -> Option<u64> {
        while self.next == self.keys.len() {
            if !self.turn() {
                return None;
            }
        }
        self.next += 1;
        Some(self.keys[self.next - 1])
    }
}

/// The pairs of a bulk load, made on demand.
pub(crate) struct Pairs<'a> {
    items: SortedItems,
    keys: &'a KeyMaker,
    values: ValueMaker,
    key: Vec<u8>,
    value: Vec<u8>,
    progress: &'a dyn Progress,
    count: u64,
    key_bytes: u64,
    error: Option<KeyError>,
}

impl<'a> Pairs<'a> {
    /// The pairs of the items `0..count`, with values of version 0.
    pub(crate) fn new(
        keys: &'a KeyMaker,
        values: ValueMaker,
        count: u64,
        progress: &'a dyn Progress,
    ) -> Self {
        Pairs {
            items: SortedItems::new(keys, count),
            keys,
            values,
            key: Vec::with_capacity(keys.key_bytes_max()),
            value: Vec::with_capacity(values.value_bytes()),
            progress,
            count: 0,
            key_bytes: 0,
            error: None,
        }
    }

    /// Bytes of the keys so far.
    ///
    /// # Errors
    /// [`KeyError`] if the pairs ended early because an item has no key.
    pub(crate) fn finish(self) -> Result<u64, KeyError> {
        self.progress.advance(self.count % PROGRESS_PAIRS);
        self.error.map_or(Ok(self.key_bytes), Err)
    }
}

impl SortedPairs for Pairs<'_> {
    #[inline]
    fn next(&mut self) -> Option<(&[u8], &[u8])> {
        let item = self.items.next()?;
        if let Err(error) = self.keys.write_key(item, &mut self.key) {
            self.error = Some(error);
            return None;
        }
        self.values.write_value(item, 0, &mut self.value);
        self.count += 1;
        self.key_bytes += self.key.len() as u64;
        if self.count.is_multiple_of(PROGRESS_PAIRS) {
            self.progress.advance(PROGRESS_PAIRS);
        }
        Some((&self.key, &self.value))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::{path::Path, sync::Arc};

    use super::*;
    use crate::{lines::LineKeys, run::progress::NoProgress};

    fn makers() -> Vec<KeyMaker> {
        let lines = b"pear\napple\nfig\napples\n\xff\nzebra\nap\n1\n10\n".to_vec();
        let lines = LineKeys::from_bytes(lines, Path::new("keys.txt")).unwrap();
        vec![
            KeyMaker::U64(KeyOrder::Hashed),
            KeyMaker::U64(KeyOrder::Ordered),
            KeyMaker::Bytes(KeyOrder::Hashed),
            KeyMaker::Bytes(KeyOrder::Ordered),
            KeyMaker::Digits(24),
            KeyMaker::Random(24),
            KeyMaker::Randint,
            KeyMaker::Email,
            KeyMaker::Lines(Arc::new(lines)),
        ]
    }

    #[test]
    fn every_item_comes_once_in_the_order_of_its_key() {
        for keys in makers() {
            for count in [0, 1, 2, 7, 1000] {
                let count = keys.items_max().map_or(count, |most| most.min(count));
                let mut items: Vec<u64> = SortedItems::new(&keys, count).collect();
                let (mut key, mut last) = (Vec::new(), None);
                for item in &items {
                    keys.write_key(*item, &mut key).unwrap();
                    assert!(last < Some(key.clone()), "{keys:?}: {last:?} before {key:?}");
                    last = Some(key.clone());
                }
                items.sort_unstable();
                assert!(items.into_iter().eq(0..count), "{keys:?}");
            }
        }
    }

    #[test]
    fn any_size_of_part_gives_the_same_order() {
        let whole: Vec<u64> = MixedKeys::new(5000, 1 << 20).collect();
        assert!(whole.is_sorted());
        assert_eq!(whole.len(), 5000);
        for part_keys in [1, 3, 100, 2499, 5000] {
            let parts = MixedKeys::new(5000, part_keys);
            assert!(part_keys == 5000 || parts.part_bits > 0);
            assert!(parts.eq(whole.iter().copied()), "{part_keys}");
        }
    }

    #[test]
    fn digits_sort_as_text() {
        let mut numbers: Vec<u64> = (0..2000).map(|n| mix64(n) >> (n % 64)).collect();
        numbers.extend([0, 1, 10, 100, u64::MAX, u64::MAX / 10, 9, 99]);
        let mut texts: Vec<String> = numbers.iter().map(u64::to_string).collect();
        numbers.sort_unstable_by_key(|number| decimal_order(*number));
        texts.sort_unstable();
        assert_eq!(numbers.iter().map(u64::to_string).collect::<Vec<_>>(), texts);
    }

    #[test]
    fn pairs_carry_values_that_match() {
        let keys = KeyMaker::U64(KeyOrder::Ordered);
        let values = ValueMaker::new(20);
        let mut pairs = Pairs::new(&keys, values, 10, &NoProgress);
        for item in 0..10u64 {
            let (key, value) = pairs.next().unwrap();
            assert_eq!(key, item.to_be_bytes());
            assert!(values.value_matches(item, 0, value));
        }
        assert!(pairs.next().is_none());
        assert_eq!(pairs.finish().unwrap(), 80);
    }
}
