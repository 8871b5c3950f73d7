//! Leaves: one key and its value, immutable but for the first word.
//!
//! | word | content |
//! |---|---|
//! | 0 | 0-31 access count (FAA only), 32-63 a number of this writing; outside the checksum |
//! | 1 | `prev`: what the leaf replaced, see [`Before`] |
//! | 2 | 0-31 checksum, 32-47 bytes of the key, 48-63 flags |
//! | 3 | 0-31 bytes of the value, 32-63 the table's number |
//! | from 4 | the key, the value, zeros to 8 |
//!
//! The pointer to a leaf has its size code, so that one READ gets all of it; only the last code needs two.

use farleaf_fabric::{Buf, GlobalAddr};
use farleaf_pool::Session;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::word::{SESSION_MASK, SlotWord};

/// Bytes of the header.
pub(super) const HEAD_BYTES: usize = 32;
/// Bytes that a size code stands for; those of the last code are read in front of the rest.
const SIZES: [usize; 16] =
    [64, 128, 192, 256, 320, 384, 448, 512, 640, 768, 896, 1024, 1536, 2048, 4096, 64];
/// The code of leaves that are longer than any other code says.
pub(super) const LONG: u8 = 15;

const BLIND: u16 = 1;
const OVER_TOMB: u16 = 2;
const OVER_EMPTY: u16 = 4;
const SESSION_SHIFT: u32 = 3;

/// The content of a slot that a leaf replaced when it was linked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Before {
    /// It was born in a new node.
    Nothing,
    /// The leaf at that address.
    Leaf(GlobalAddr),
    /// A TOMB of what is at that address, left by that session.
    Tomb(GlobalAddr, u32),
    /// The empty slot at that address.
    Empty(GlobalAddr),
}

impl Before {
    /// That of a leaf that goes over `word` in the slot at `at`.
    pub(super) fn of(word: SlotWord, at: GlobalAddr) -> Before {
        match word {
            word if word.is_empty() => Before::Empty(at),
            word if word.is_tomb() => Before::Tomb(word.addr(), word.session()),
            word => Before::Leaf(word.addr()),
        }
    }
}

/// A leaf's code: the smallest that holds a pair of that size.
pub(super) fn code_of(key: usize, value: usize) -> u8 {
    let bytes = HEAD_BYTES + key + value;
    SIZES[..15].iter().position(|size| *size >= bytes).map_or(LONG, |code| code as u8)
}

/// Bytes that the first READ of a leaf takes: all of it, unless its code is [`LONG`].
pub(super) fn read_bytes(code: u8) -> usize {
    SIZES[usize::from(code & 0xf)]
}

/// Bytes of the object for a pair of that size.
pub(super) fn object_bytes(key: usize, value: usize) -> usize {
    match code_of(key, value) {
        LONG => (HEAD_BYTES + key + value).next_multiple_of(8),
        code => read_bytes(code),
    }
}

/// Bytes of a [`LONG`] leaf, by its first words; `None` if those are of no such leaf.
pub(super) fn long_bytes(words: &[u64], table: u32, most: usize) -> Option<usize> {
    let (key, value) = (words[2] >> 32 & 0xffff, words[3] & 0xffff_ffff);
    let bytes = HEAD_BYTES + key as usize + value as usize;
    let is_one = (words[3] >> 32) as u32 == table && bytes > SIZES[14] && bytes <= most;
    is_one.then(|| bytes.next_multiple_of(8))
}

/// Writes a leaf into `buf`.
pub(super) fn encode(
    mut buf: Buf,
    (key, value): (&[u8], &[u8]),
    (before, is_blind): (Before, bool),
    (table, number): (u32, u32),
) -> Buf {
    let end = HEAD_BYTES + key.len() + value.len();
    let (prev, mut flags) = match before {
        Before::Nothing => (0, 0),
        Before::Leaf(addr) => (addr.word(), 0),
        Before::Empty(addr) => (addr.word(), OVER_EMPTY),
        Before::Tomb(addr, session) => {
            (addr.word(), OVER_TOMB | ((session & SESSION_MASK) as u16) << SESSION_SHIFT)
        }
    };
    if is_blind {
        flags |= BLIND;
    }
    let bytes = buf.bytes_mut();
    bytes[HEAD_BYTES..HEAD_BYTES + key.len()].copy_from_slice(key);
    bytes[HEAD_BYTES + key.len()..end].copy_from_slice(value);
    bytes[end..].fill(0);
    let words = buf.words_mut();
    words[0] = u64::from(number) << 32;
    words[1] = prev;
    words[2] = (key.len() as u64) << 32 | u64::from(flags) << 48;
    words[3] = value.len() as u64 | u64::from(table) << 32;
    let sum = u64::from(checksum(&buf, end));
    buf.words_mut()[2] |= sum;
    buf
}

fn checksum(buf: &Buf, end: usize) -> u32 {
    let words = buf.words();
    let seed = words[1].rotate_left(17) ^ (words[2] >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    xxh3_64_with_seed(&buf.bytes()[24..end], seed) as u32
}

/// A private copy of a leaf whose checksum fits.
#[derive(Debug)]
pub(super) struct LeafCopy(Buf);

impl LeafCopy {
    /// The leaf in `buf`, if there is one of that table.
    pub(super) fn parse(buf: Buf, table: u32) -> Option<LeafCopy> {
        if buf.len() < HEAD_BYTES {
            return None;
        }
        let leaf = LeafCopy(buf);
        let end = HEAD_BYTES + leaf.key_bytes() + leaf.value_bytes();
        let words = leaf.0.words();
        let fits = (words[3] >> 32) as u32 == table
            && end <= leaf.0.len()
            && words[2] as u32 == checksum(&leaf.0, end);
        fits.then_some(leaf)
    }

    fn key_bytes(&self) -> usize {
        (self.0.words()[2] >> 32 & 0xffff) as usize
    }

    fn value_bytes(&self) -> usize {
        (self.0.words()[3] & 0xffff_ffff) as usize
    }

    fn flags(&self) -> u16 {
        (self.0.words()[2] >> 48) as u16
    }

    pub(super) fn key(&self) -> &[u8] {
        &self.0.bytes()[HEAD_BYTES..HEAD_BYTES + self.key_bytes()]
    }

    pub(super) fn value(&self) -> &[u8] {
        let start = HEAD_BYTES + self.key_bytes();
        &self.0.bytes()[start..start + self.value_bytes()]
    }

    /// Returns whether a blind update or upsert put it over the same key.
    pub(super) fn is_blind(&self) -> bool {
        self.flags() & BLIND != 0
    }

    pub(super) fn before(&self) -> Before {
        let prev = self.0.words()[1];
        match GlobalAddr::from_word(prev) {
            None => Before::Nothing,
            Some(addr) if addr.is_null() => Before::Nothing,
            Some(addr) if self.flags() & OVER_EMPTY != 0 => Before::Empty(addr),
            Some(addr) if self.flags() & OVER_TOMB != 0 => {
                Before::Tomb(addr, u32::from(self.flags() >> SESSION_SHIFT) & SESSION_MASK)
            }
            Some(addr) => Before::Leaf(addr),
        }
    }

    /// The position of the first byte in which `key` differs from its key; `None` if they are the same.
    pub(super) fn difference(&self, key: &[u8]) -> Option<usize> {
        let own = self.key();
        let common = own.iter().zip(key).take_while(|(a, b)| a == b).count();
        (common < own.len() || common < key.len()).then_some(common)
    }

    /// Returns whether its key begins with the first `len` bytes of `key`.
    pub(super) fn shares(&self, key: &[u8], len: usize) -> bool {
        len <= key.len() && self.key().get(..len) == Some(&key[..len])
    }
}

/// Bytes of a leaf's key, and its accesses: one, and those that were counted. By the leaf's head, unchecked.
pub(super) fn accesses_of(head: &[u64]) -> (u16, u64) {
    ((head[2] >> 32) as u16, 1 + (head[0] & 0xffff_ffff))
}

/// A number for the next writing of a leaf, which no writing of the same memory before has, but by chance.
pub(super) fn writing(session: &Session) -> u32 {
    (session.lock_token().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
}

/// The number of the writing of a leaf, by its first word.
pub(super) fn number_of(word: u64) -> u32 {
    (word >> 32) as u32
}

#[cfg(test)]
mod tests {
    use farleaf_fabric::mapped::Mapped;
    use farleaf_fabric::{Endpoint, ServerId, ToAny};

    use super::*;

    #[test]
    fn codes_hold_what_they_say() {
        assert_eq!((code_of(8, 64), object_bytes(8, 64)), (1, 128), "a pair of the paper");
        assert_eq!((code_of(32, 64), object_bytes(32, 64)), (1, 128), "the longest address");
        for (code, size) in (0..).zip(&SIZES[..15]) {
            let value = size - HEAD_BYTES - 8;
            assert_eq!((code_of(8, value), object_bytes(8, value)), (code, *size));
            assert_eq!(code_of(8, value + 1), code + 1);
            assert_eq!(read_bytes(code), *size);
        }
        assert_eq!(object_bytes(1_024, 1 << 20), 32 + 1_024 + (1 << 20));
        assert_eq!(read_bytes(LONG), 64);
    }

    #[test]
    fn pairs_come_back_and_damage_is_told() {
        let fabric = Mapped::anonymous(1, 1 << 20).expect("memory");
        let endpoint = fabric.any_endpoint().expect("endpoint");
        let at = |offset| GlobalAddr::new(ServerId(3), offset);
        let befores = [
            Before::Nothing,
            Before::Leaf(at(64)),
            Before::Tomb(at(128), 2_047),
            Before::Empty(at(72)),
        ];
        for (key, value) in [(0, 0), (1, 3), (8, 64), (1_024, 5_000)] {
            for before in befores {
                let key = vec![7; key];
                let value = vec![9; value];
                let buf = endpoint.buf(object_bytes(key.len(), value.len()));
                let buf = encode(buf, (&key, &value), (before, true), (5, 77));
                let words = buf.words().to_vec();
                let copy = |words: &[u64]| {
                    let mut buf = endpoint.buf(8 * words.len());
                    buf.words_mut().copy_from_slice(words);
                    buf
                };
                if code_of(key.len(), value.len()) == LONG {
                    assert_eq!(long_bytes(&words, 5, 1 << 20), Some(8 * words.len()));
                    assert_eq!(long_bytes(&words, 6, 1 << 20), None);
                    assert_eq!(long_bytes(&words, 5, 4_200), None);
                }
                let leaf = LeafCopy::parse(copy(&words), 5).expect("a leaf");
                assert_eq!((leaf.key(), leaf.value()), (&key[..], &value[..]));
                assert_eq!((leaf.before(), leaf.is_blind()), (before, true));
                assert_eq!(number_of(words[0]), 77);
                assert!(LeafCopy::parse(copy(&words), 6).is_none(), "another table's");
                for word in 1..HEAD_BYTES.div_ceil(8) {
                    let mut damaged = words.clone();
                    damaged[word] ^= 1 << 33;
                    assert!(LeafCopy::parse(copy(&damaged), 5).is_none(), "word {word}");
                }
                let mut counted = words.clone();
                counted[0] += 3;
                assert!(LeafCopy::parse(copy(&counted), 5).is_some(), "counts are outside of it");
                assert_eq!(accesses_of(&counted), (key.len() as u16, 4));
                assert_eq!(number_of(counted[0]), 77);
            }
        }
    }

    #[test]
    fn differences_are_found() {
        let fabric = Mapped::anonymous(1, 1 << 20).expect("memory");
        let endpoint = fabric.any_endpoint().expect("endpoint");
        let of = |key: &[u8]| {
            let buf = endpoint.buf(object_bytes(key.len(), 0));
            LeafCopy::parse(encode(buf, (key, b""), (Before::Nothing, false), (1, 0)), 1)
                .expect("a leaf")
        };
        let leaf = of(b"a\0b");
        assert_eq!(leaf.difference(b"a\0b"), None);
        assert_eq!(leaf.difference(b"a\0"), Some(2));
        assert_eq!(leaf.difference(b"a\0b\0"), Some(3));
        assert_eq!(leaf.difference(b"a\0c"), Some(2));
        assert_eq!(leaf.difference(b""), Some(0));
        assert!(leaf.shares(b"a\0x", 2) && !leaf.shares(b"a\0x", 3) && !leaf.shares(b"a", 2));
        assert_eq!(of(b"").difference(b""), None);
    }
}
