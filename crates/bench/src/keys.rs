//! Keys: make the key of an item.
//!
//! - INV-KEY-1: different items have different keys, and an item has the same key always.

use std::{fmt, ops::RangeInclusive, path::PathBuf, str::FromStr, sync::Arc};

use farleaf_index::suggest::{did_you_mean, nearest};
use thiserror::Error;

use crate::{
    email::{EMAIL_BYTES_MAX, write_email},
    lines::{LineKeys, LinesError},
    mix64::{mix64, unmix64},
};

const USER: &[u8; 4] = b"user";
/// Decimal digits of `u64::MAX`.
const DIGITS_MAX: usize = 20;
/// Lengths of keys of digits, and of random bytes.
const DIGIT_KEYS: RangeInclusive<usize> = DIGITS_MAX..=64;
const RANDOM_KEYS: RangeInclusive<usize> = 8..=64;

/// Placement of neighbouring items' keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyOrder {
    /// Anywhere: the item is mixed, one to one, over all 64-bit numbers first.
    Hashed,
    /// Beside each other: keys sort as their items do.
    Ordered,
}

/// Turns items into keys. Cheap to clone; clients on several threads can share one.
#[derive(Clone, Debug)]
pub enum KeyMaker {
    /// Eight bytes, big-endian, so that they sort as the number does.
    U64(KeyOrder),
    /// `user` and decimal digits, as YCSB's keys: 5 to 24 bytes when hashed; when ordered always
    /// 24, filled up with zeros (YCSB's own `insertorder=ordered` leaves them out unless
    /// `zeropadding` is set, and then neither sorts by item nor spreads).
    Bytes(KeyOrder),
    /// Eight bytes, big-endian, of numbers below 2^63, as the papers on radix trees have them: the item is
    /// mixed, one to one, over all of these. For items below 2^63.
    Randint,
    /// So many decimal digits, at least 20: those of a mixed number, filled up with zeros in front.
    Digits(usize),
    /// So many random bytes, at least 8: a mixed number, big-endian, and bytes that follow from it.
    Random(usize),
    /// Made addresses, the domain first: 18 bytes on average, at most 32.
    Email,
    /// Line `i` of a file for item `i`.
    Lines(Arc<LineKeys>),
}

impl KeyMaker {
    /// Writes the key of `item` into `key`, in place of what was there.
    ///
    /// Does not allocate if `key` has room for [`KeyMaker::key_bytes_max`] bytes.
    ///
    /// # Errors
    /// [`KeyError::NoSuchLine`] if a file of keys has no line for `item`; `key` is then empty.
    pub fn write_key(&self, item: u64, key: &mut Vec<u8>) -> Result<(), KeyError> {
        key.clear();
        match self {
            Self::U64(order) => key.extend_from_slice(&order.number(item).to_be_bytes()),
            Self::Bytes(order) => {
                key.extend_from_slice(USER);
                let (digits, first) = decimal(order.number(item));
                let first = if *order == KeyOrder::Ordered { 0 } else { first };
                key.extend_from_slice(&digits[first..]);
            }
            Self::Digits(bytes) => {
                key.resize(bytes.saturating_sub(DIGITS_MAX), b'0');
                key.extend_from_slice(&decimal(mix64(item)).0);
            }
            Self::Random(bytes) => {
                let number = mix64(item);
                let words = (0..).map(|at| if at == 0 { number } else { mix64(number ^ at) });
                for word in words.take(bytes.div_ceil(8)) {
                    key.extend_from_slice(&word.to_be_bytes());
                }
                key.truncate(*bytes);
            }
            Self::Randint => key.extend_from_slice(&randint(item).to_be_bytes()),
            Self::Email => write_email(item, key),
            Self::Lines(lines) => {
                let line = lines
                    .line(item)
                    .ok_or(KeyError::NoSuchLine { item, line_count: lines.count() })?;
                key.extend_from_slice(line);
            }
        }
        Ok(())
    }

    /// The longest key there can be, in bytes.
    pub fn key_bytes_max(&self) -> usize {
        match self {
            Self::U64(_) | Self::Randint => 8,
            Self::Bytes(_) => USER.len() + DIGITS_MAX,
            Self::Digits(bytes) | Self::Random(bytes) => *bytes,
            Self::Email => EMAIL_BYTES_MAX,
            Self::Lines(lines) => lines.line_bytes_max(),
        }
    }

    /// The length of every key in bytes, if a table may count on it.
    pub(crate) fn key_bytes(&self) -> Option<usize> {
        match self {
            Self::Digits(bytes) | Self::Random(bytes) => Some(*bytes),
            _ => None,
        }
    }

    /// The number of items with a key; `None` if all have one.
    pub fn items_max(&self) -> Option<u64> {
        match self {
            Self::U64(_) | Self::Bytes(_) | Self::Email => None,
            Self::Digits(_) | Self::Random(_) => None,
            Self::Randint => Some(1 << 63),
            Self::Lines(lines) => Some(lines.count()),
        }
    }
}

/// The decimal digits of `number`, filled up with zeros in front, and the place of the first digit.
fn decimal(number: u64) -> ([u8; DIGITS_MAX], usize) {
    let mut digits = [b'0'; DIGITS_MAX];
    let (mut rest, mut first) = (number, DIGITS_MAX);
    while rest > 0 || first == DIGITS_MAX {
        first -= 1;
        // A remainder by ten is one digit.
        digits[first] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    (digits, first)
}

/// Mixes an item below 2^63 over the numbers below 2^63, one to one: a result beyond them
/// is mixed again until it comes back.
pub(crate) fn randint(item: u64) -> u64 {
    let mut mixed = mix64(item);
    while mixed >> 63 != 0 {
        mixed = mix64(mixed);
    }
    mixed
}

/// Undoes [`randint`].
pub(crate) fn item_of_randint(number: u64) -> u64 {
    let mut item = unmix64(number);
    while item >> 63 != 0 {
        item = unmix64(item);
    }
    item
}

impl KeyOrder {
    /// The number that stands for `item`.
    fn number(self, item: u64) -> u64 {
        match self {
            Self::Hashed => mix64(item),
            Self::Ordered => item,
        }
    }
}

/// Kind of keys, as people write it: `u64`, `u64:ordered`, `bytes`, `bytes:ordered`, `bytes:24`, `digits:24`,
/// `randint`, `email`, `lines:PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySpec {
    /// [`KeyMaker::U64`].
    U64(KeyOrder),
    /// [`KeyMaker::Bytes`].
    Bytes(KeyOrder),
    /// [`KeyMaker::Randint`].
    Randint,
    /// [`KeyMaker::Digits`].
    Digits(usize),
    /// [`KeyMaker::Random`].
    Random(usize),
    /// [`KeyMaker::Email`].
    Email,
    /// [`KeyMaker::Lines`] of the file at this path.
    Lines(PathBuf),
}

impl KeySpec {
    /// Makes the key maker, which for `lines` reads the whole file into memory.
    ///
    /// # Errors
    /// [`LinesError`] if the file cannot be read or has no usable keys.
    pub fn open(&self) -> Result<KeyMaker, LinesError> {
        Ok(match self {
            Self::U64(order) => KeyMaker::U64(*order),
            Self::Bytes(order) => KeyMaker::Bytes(*order),
            Self::Randint => KeyMaker::Randint,
            Self::Digits(bytes) => KeyMaker::Digits(*bytes),
            Self::Random(bytes) => KeyMaker::Random(*bytes),
            Self::Email => KeyMaker::Email,
            Self::Lines(path) => KeyMaker::Lines(Arc::new(LineKeys::open(path)?)),
        })
    }
}

impl FromStr for KeySpec {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        let (name, rest) = match text.trim().split_once(':') {
            Some((name, rest)) => (name, Some(rest)),
            None => (text.trim(), None),
        };
        let order = match rest {
            None | Some("hashed") => Some(KeyOrder::Hashed),
            Some("ordered") => Some(KeyOrder::Ordered),
            Some(_) => None,
        };
        match (name, rest.and_then(|rest| rest.parse::<usize>().ok())) {
            ("digits", Some(bytes)) if DIGIT_KEYS.contains(&bytes) => {
                return Ok(Self::Digits(bytes));
            }
            ("bytes", Some(bytes)) if RANDOM_KEYS.contains(&bytes) => {
                return Ok(Self::Random(bytes));
            }
            _ => {}
        }
        match (name, order, rest) {
            ("u64", Some(order), _) => Ok(Self::U64(order)),
            ("bytes", Some(order), _) => Ok(Self::Bytes(order)),
            ("randint", _, None) => Ok(Self::Randint),
            ("email", _, None) => Ok(Self::Email),
            ("lines", _, Some(path)) if !path.is_empty() => Ok(Self::Lines(path.into())),
            _ => Err(KeyError::Spec {
                read: text.to_owned(),
                suggestion: nearest(name, ["u64", "bytes", "digits", "randint", "email", "lines"])
                    .filter(|nearest| *nearest != name)
                    .map(str::to_owned),
            }),
        }
    }
}

impl fmt::Display for KeySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::U64(KeyOrder::Hashed) => f.write_str("u64"),
            Self::U64(KeyOrder::Ordered) => f.write_str("u64:ordered"),
            Self::Bytes(KeyOrder::Hashed) => f.write_str("bytes"),
            Self::Bytes(KeyOrder::Ordered) => f.write_str("bytes:ordered"),
            Self::Randint => f.write_str("randint"),
            Self::Digits(bytes) => write!(f, "digits:{bytes}"),
            Self::Random(bytes) => write!(f, "bytes:{bytes}"),
            Self::Email => f.write_str("email"),
            Self::Lines(path) => write!(f, "lines:{}", path.display()),
        }
    }
}

/// A key that cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The text names no kind of keys.
    #[error("\"{read}\" is not a kind of keys{} (accepted: u64, u64:ordered, bytes, \
        bytes:ordered, bytes:LENGTH from 8 to 64, digits:LENGTH from 20 to 64, randint, email, lines:PATH)",
        did_you_mean(suggestion.as_deref()))]
    Spec {
        /// The text as it was given.
        read: String,
        /// The known kind that was probably meant.
        suggestion: Option<String>,
    },
    /// The file of keys ends before the item.
    #[error("item {item} has no key: the file has {line_count} keys")]
    NoSuchLine {
        /// The item asked for.
        item: u64,
        /// Keys in the file.
        line_count: u64,
    },
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::collections::BTreeSet;

    use super::*;

    fn key(maker: &KeyMaker, item: u64) -> Vec<u8> {
        let mut key = b"left over from before".to_vec();
        maker.write_key(item, &mut key).unwrap();
        key
    }

    /// INV-KEY-1, and the stated lengths.
    #[test]
    fn keys_are_distinct_and_as_long_as_stated() {
        for order in [KeyOrder::Hashed, KeyOrder::Ordered] {
            for maker in [KeyMaker::U64(order), KeyMaker::Bytes(order)] {
                let keys: BTreeSet<Vec<u8>> = (0..20_000).map(|item| key(&maker, item)).collect();
                assert_eq!(keys.len(), 20_000);
                assert!(keys.iter().all(|key| key.len() <= maker.key_bytes_max()));
                if !matches!(maker, KeyMaker::Bytes(KeyOrder::Hashed)) {
                    assert!(keys.iter().all(|key| key.len() == maker.key_bytes_max()));
                }
                assert_eq!(key(&maker, 7), key(&maker, 7));
                assert_eq!(maker.items_max(), None);
            }
        }
    }

    /// INV-KEY-1 for keys of one length, which sort as the mixed item does.
    #[test]
    fn keys_of_one_length_sort_by_the_mixed_item() {
        for maker in [KeyMaker::Digits(24), KeyMaker::Random(24), KeyMaker::Random(13)] {
            let mut all: Vec<(u64, Vec<u8>)> =
                (0..10_000).map(|item| (mix64(item), key(&maker, item))).collect();
            assert!(all.iter().all(|(_, key)| Some(key.len()) == maker.key_bytes()));
            all.sort_unstable_by_key(|(number, _)| *number);
            assert!(all.windows(2).all(|pair| pair[0].1 < pair[1].1), "{maker:?}");
        }
        let digits = key(&KeyMaker::Digits(24), 7);
        assert!(digits.starts_with(b"0000") && digits.iter().all(u8::is_ascii_digit));
    }

    #[test]
    fn numbers_below_2_63_lead_back_to_their_items() {
        let items = (0..20_000).chain((1 << 63) - 1000..1 << 63);
        let numbers: BTreeSet<u64> = items
            .map(|item| {
                let number = randint(item);
                assert_eq!((number >> 63, item_of_randint(number)), (0, item));
                assert_eq!(key(&KeyMaker::Randint, item), number.to_be_bytes());
                number
            })
            .collect();
        assert_eq!(numbers.len(), 21_000);
    }

    #[test]
    fn ordered_keys_sort_by_item() {
        for maker in [KeyMaker::U64(KeyOrder::Ordered), KeyMaker::Bytes(KeyOrder::Ordered)] {
            let items = [0, 1, 9, 10, 255, 256, 99_999, 100_000, u64::MAX];
            assert!(items.map(|item| key(&maker, item)).is_sorted());
        }
        assert_eq!(key(&KeyMaker::U64(KeyOrder::Ordered), 258), [0, 0, 0, 0, 0, 0, 1, 2]);
        let bytes = KeyMaker::Bytes(KeyOrder::Ordered);
        assert_eq!(key(&bytes, 42), b"user00000000000000000042");
        assert_eq!(key(&bytes, u64::MAX), b"user18446744073709551615");
    }

    #[test]
    fn hashed_keys_are_spread() {
        let maker = KeyMaker::U64(KeyOrder::Hashed);
        let mut parts = [0f64; 64];
        for item in 0..6400 {
            parts[usize::from(key(&maker, item)[0] >> 2)] += 1.0;
        }
        let chi_square: f64 = parts.iter().map(|seen| (seen - 100.0).powi(2) / 100.0).sum();
        assert!(chi_square < 110.0, "{chi_square}");

        let user = key(&KeyMaker::Bytes(KeyOrder::Hashed), 0);
        assert!(user.starts_with(b"user") && user[4..].iter().all(u8::is_ascii_digit));
    }

    #[test]
    fn writing_a_key_does_not_allocate() {
        for maker in [KeyMaker::U64(KeyOrder::Hashed), KeyMaker::Bytes(KeyOrder::Hashed)] {
            let mut key = Vec::with_capacity(maker.key_bytes_max());
            let before = (key.as_ptr(), key.capacity());
            for item in 0..1000 {
                maker.write_key(item, &mut key).unwrap();
            }
            assert_eq!((key.as_ptr(), key.capacity()), before);
        }
    }

    #[test]
    fn lines_of_a_file_are_keys() {
        let lines = LineKeys::from_bytes(b"b\na\nccc\n".to_vec(), "x".as_ref()).unwrap();
        let maker = KeyMaker::Lines(Arc::new(lines));
        assert_eq!(key(&maker, 0), b"b");
        assert_eq!(key(&maker, 2), b"ccc");
        assert_eq!((maker.items_max(), maker.key_bytes_max()), (Some(3), 3));
        let error = maker.write_key(3, &mut Vec::new()).unwrap_err();
        assert_eq!(error, KeyError::NoSuchLine { item: 3, line_count: 3 });
    }

    #[test]
    fn specs_are_read_and_printed() {
        let specs = [
            "u64",
            "u64:ordered",
            "bytes",
            "bytes:ordered",
            "bytes:8",
            "bytes:24",
            "digits:24",
            "randint",
            "email",
            "lines:/tmp/a:b.txt",
        ];
        for text in specs {
            assert_eq!(text.parse::<KeySpec>().unwrap().to_string(), text);
        }
        assert_eq!("u64:hashed".parse(), Ok(KeySpec::U64(KeyOrder::Hashed)));
        for text in
            ["", "u65", "u64:sorted", "lines", "lines:", "bytes:", "bytes:7", "digits", "digits:19"]
        {
            assert!(matches!(text.parse::<KeySpec>(), Err(KeyError::Spec { .. })), "{text}");
        }
        let message = "byte".parse::<KeySpec>().unwrap_err().to_string();
        assert!(message.contains("did you mean \"bytes\"?"), "{message}");
        assert!(matches!(
            "lines:/does/not/exist".parse::<KeySpec>().unwrap().open(),
            Err(LinesError::Read { .. })
        ));
    }
}
