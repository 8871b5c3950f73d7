//! Values: content that a client can check without remembering it.

use crate::mix64::mix64;

/// Makes the values of one size: bytes that follow from the item and a version.
///
/// The writer counts versions; another version gives another value. The first eight bytes hold it,
/// mixed with the item. So a reader who does not know which version to expect can tell which one it
/// has found ([`ValueMaker::version_of`]). It can also tell whether all of the value is of that
/// version ([`ValueMaker::value_matches`]): a value torn between two versions matches neither.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueMaker {
    value_bytes: usize,
}

impl ValueMaker {
    /// Values of `value_bytes` bytes; 0 is allowed.
    pub fn new(value_bytes: usize) -> Self {
        Self { value_bytes }
    }

    /// The size of every value in bytes.
    pub fn value_bytes(&self) -> usize {
        self.value_bytes
    }

    /// Writes the value of `item` at `version` into `value`, in place of what was there.
    ///
    /// Does not allocate if `value` has room for it. Below eight bytes the value is cut off, and
    /// different versions may look alike.
    pub fn write_value(&self, item: u64, version: u64, value: &mut Vec<u8>) {
        value.clear();
        value.resize(self.value_bytes, 0);
        let mut words = words(item, version);
        let (whole, rest) = value.as_chunks_mut::<8>();
        for (bytes, word) in whole.iter_mut().zip(words.by_ref()) {
            *bytes = word.to_le_bytes();
        }
        if let Some(word) = words.next() {
            rest.copy_from_slice(&word.to_le_bytes()[..rest.len()]);
        }
    }

    /// Returns whether `value` is all of the value of `item` at `version`.
    pub fn value_matches(&self, item: u64, version: u64, value: &[u8]) -> bool {
        let mut words = words(item, version);
        let (whole, rest) = value.as_chunks::<8>();
        value.len() == self.value_bytes
            && whole.iter().zip(words.by_ref()).all(|(bytes, word)| *bytes == word.to_le_bytes())
            && words.next().is_some_and(|word| *rest == word.to_le_bytes()[..rest.len()])
    }

    /// Returns whether `value` is all of the value of `item` at some version. A value below eight
    /// bytes holds no version: then only its length is checked.
    #[inline]
    pub fn is_one_of(&self, item: u64, value: &[u8]) -> bool {
        match self.version_of(item, value) {
            Some(version) => self.value_matches(item, version, value),
            None => value.len() == self.value_bytes,
        }
    }

    /// The version that `value` claims, if it is of `item` at all; `None` if the value is shorter
    /// than eight bytes. Only [`ValueMaker::value_matches`] tells whether the claim is true.
    pub fn version_of(&self, item: u64, value: &[u8]) -> Option<u64> {
        let first = value.first_chunk::<8>()?;
        Some(u64::from_le_bytes(*first) ^ mix64(item))
    }
}

/// The value's words: the version under a mask of the item's, then what both mix to.
fn words(item: u64, version: u64) -> impl Iterator<Item = u64> {
    let mask = mix64(item);
    let seed = mix64(mask.rotate_left(32) ^ mix64(version));
    std::iter::once(mask ^ version).chain((1u64..).map(move |index| mix64(seed ^ index)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(bytes: usize, item: u64, version: u64) -> Vec<u8> {
        let mut value = b"left over from before".to_vec();
        ValueMaker::new(bytes).write_value(item, version, &mut value);
        value
    }

    #[test]
    fn values_match_themselves_and_nothing_else() {
        for bytes in [8, 9, 16, 64, 100, 1000] {
            let maker = ValueMaker::new(bytes);
            let original = value(bytes, 7, 3);
            assert_eq!(original.len(), bytes);
            assert!(maker.value_matches(7, 3, &original));
            assert!(maker.is_one_of(7, &original) && !maker.is_one_of(7, &original[1..]));
            assert_eq!(maker.version_of(7, &original), Some(3));
            assert!(!maker.value_matches(7, 4, &original));
            assert!(!maker.value_matches(8, 3, &original));
            assert!(!maker.value_matches(7, 3, &original[1..]));
            assert!(!ValueMaker::new(bytes + 1).value_matches(7, 3, &original));
            for broken in 0..bytes {
                let mut value = original.clone();
                value[broken] ^= 1;
                assert!(!maker.value_matches(7, 3, &value), "byte {broken}");
            }
        }
    }

    #[test]
    fn torn_values_match_neither_version() {
        let maker = ValueMaker::new(64);
        let (old, new) = (value(64, 5, 1), value(64, 5, 2));
        for cut in (8..64).step_by(8) {
            let torn = [&new[..cut], &old[cut..]].concat();
            assert!(!maker.value_matches(5, 1, &torn) && !maker.value_matches(5, 2, &torn));
            assert!(!maker.is_one_of(5, &torn));
        }
    }

    #[test]
    fn short_values_are_cut_off() {
        assert!(value(0, 1, 1).is_empty());
        assert!(ValueMaker::new(0).value_matches(1, 2, b""));
        assert_eq!(value(3, 1, 1), value(8, 1, 1)[..3]);
        assert!(ValueMaker::new(3).value_matches(1, 1, &value(3, 1, 1)));
        assert_eq!(ValueMaker::new(3).version_of(1, &value(3, 1, 1)), None);
        assert!(ValueMaker::new(3).is_one_of(1, b"abc") && !ValueMaker::new(3).is_one_of(1, b"ab"));
    }

    #[test]
    fn writing_a_value_does_not_allocate() {
        let maker = ValueMaker::new(100);
        let mut value = Vec::with_capacity(100);
        let before = (value.as_ptr(), value.capacity());
        (0..100).for_each(|item| maker.write_value(item, 0, &mut value));
        assert_eq!((value.as_ptr(), value.capacity()), before);
    }
}
