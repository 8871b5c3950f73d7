//! Trace hash: hashes everything that happens, to tell one run from another.

/// Folds in every event and every effect: two runs with one hash are the same.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trace(u64);

impl Trace {
    pub(super) fn new(seed: u64) -> Self {
        Trace(mix(seed, 0))
    }

    #[inline]
    pub(super) fn add(&mut self, word: u64) {
        let mixed = (self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 32;
    }

    pub(super) fn hash(self) -> u64 {
        self.0
    }
}

/// A number that depends on both in no simple way.
#[inline]
pub(super) fn mix(one: u64, other: u64) -> u64 {
    let mut x = one ^ other.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

/// A summary of a payload, cheap enough to take of every READ.
#[inline]
pub(super) fn fold(words: &[u64]) -> u64 {
    words.iter().fold(words.len() as u64, |sum, word| sum.wrapping_add(*word))
}
