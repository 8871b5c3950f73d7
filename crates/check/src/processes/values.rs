//! Test values: each client value is unique, names its writer and shows damage.

use serde::{Deserialize, Serialize};

/// Bytes of a value that determine the rest.
const HEAD_BYTES: usize = 12;

/// Form of a table's keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Shape {
    /// 8 bytes each: dense nodes, updates of a single word.
    Words,
    /// Strings of several lengths, values up to 100 KiB: slotted nodes, records.
    Strings,
}

impl Shape {
    pub(super) const ALL: [Shape; 2] = [Shape::Words, Shape::Strings];

    /// The key of that number. Keys sort as their numbers do.
    pub(super) fn key(self, number: u32) -> Vec<u8> {
        match self {
            Shape::Words => u64::from(number).to_be_bytes().to_vec(),
            Shape::Strings => {
                let mut key = format!("{number:04}").into_bytes();
                key.resize(4 + (number as usize * 7) % 20, b'x');
                key
            }
        }
    }

    /// The number of a key of this shape; `None` if it is none.
    pub(super) fn number_of(self, key: &[u8]) -> Option<u32> {
        let number = match self {
            Shape::Words => u64::from_be_bytes(key.try_into().ok()?).try_into().ok()?,
            Shape::Strings => std::str::from_utf8(key.get(..4)?).ok()?.parse().ok()?,
        };
        (self.key(number) == key).then_some(number)
    }

    /// A short stand-in for a value of that writer, for histories: 8 or 12 bytes.
    pub(super) fn stamp(self, client: u32, sequence: u32, bytes: u32) -> Vec<u8> {
        let mut stamp = [client.to_le_bytes(), sequence.to_le_bytes()].concat();
        if self == Shape::Strings {
            stamp.extend(bytes.max(HEAD_BYTES as u32).to_le_bytes());
        }
        stamp
    }

    /// The value of a stamp.
    pub(super) fn value(self, stamp: &[u8]) -> Vec<u8> {
        let mut value = stamp.to_vec();
        if self == Shape::Strings {
            let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| stamp[at + byte]));
            let mut state = u64::from(word(0)) << 32 | u64::from(word(4));
            let bytes = word(8) as usize;
            value.reserve(bytes.saturating_sub(HEAD_BYTES) + 8);
            while value.len() < bytes {
                // Weyl's sequence through a multiplication: enough to make every word differ.
                state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                value.extend(
                    (state ^ (state >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9).to_le_bytes(),
                );
            }
            value.truncate(bytes);
        }
        value
    }

    /// The stamp of a value that was read.
    ///
    /// # Errors
    /// The fault of bytes that nobody has written as they are.
    pub(super) fn stamp_of(self, value: &[u8]) -> Result<Vec<u8>, String> {
        let torn = |why: &str| {
            let front = value[..value.len().min(32)].escape_ascii();
            Err(format!("a value of {} bytes that nobody wrote, {why}: {front}", value.len()))
        };
        match self {
            Shape::Words if value.len() == 8 => Ok(value.to_vec()),
            Shape::Words => torn("of a wrong length"),
            Shape::Strings => {
                let Some(head) = value.get(..HEAD_BYTES) else { return torn("too short") };
                let bytes = u32::from_le_bytes([8, 9, 10, 11].map(|at| head[at])) as usize;
                if bytes != value.len() {
                    return torn("of another length than it says");
                }
                if self.value(head) != value {
                    return torn("whose parts do not belong together");
                }
                Ok(head.to_vec())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_sort_as_their_numbers() {
        for shape in Shape::ALL {
            let keys: Vec<_> = (0..1000).map(|number| shape.key(number)).collect();
            assert!(keys.is_sorted());
            assert!((0..).zip(&keys).all(|(number, key)| shape.number_of(key) == Some(number)));
            assert_eq!(shape.number_of(b"strange"), None);
        }
    }

    #[test]
    fn values_are_recognized_and_damage_is_found() {
        for bytes in [0, 12, 13, 20, 4096, 100_000] {
            let stamp = Shape::Strings.stamp(7, 9, bytes);
            let mut value = Shape::Strings.value(&stamp);
            assert_eq!(value.len(), (bytes as usize).max(HEAD_BYTES));
            assert_eq!(Shape::Strings.stamp_of(&value), Ok(stamp));
            let last = value.len() - 1;
            value[last] ^= 1;
            assert!(Shape::Strings.stamp_of(&value).is_err(), "{bytes}");
            assert!(Shape::Strings.stamp_of(&value[..last]).is_err());
        }
        let stamp = Shape::Words.stamp(1, 2, 500);
        assert_eq!(Shape::Words.stamp_of(&Shape::Words.value(&stamp)), Ok(stamp));
        assert!(Shape::Words.stamp_of(b"short").is_err());
    }
}
