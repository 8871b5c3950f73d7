//! Guard of a slot: masks and checks that bind its words to table, leaf, stamp, place and turn.
//!
//! The check's word: turn in the high 16 bits, then one bit that tells a pair from an empty slot, then 47 bits of hashes.
//! For values of one word these are 23 bits over the key and 24 over both, so that a holder of the lock can tell whether a
//! key is whole when the value is not.

/// The check's bit that a pair has and an empty slot has not.
const PAIR_BIT: u64 = 1 << 47;
const LOW_47: u64 = PAIR_BIT - 1;
const LOW_24: u64 = (1 << 24) - 1;
const LOW_23: u64 = (1 << 23) - 1;

/// Domains: what a hash is for.
const SEED: u64 = 0x6a09_e667_f3bc_c908;
const KEY: u64 = 0xbb67_ae85_84ca_a73b;
const VALUE: u64 = 0x3c6e_f372_fe94_f82b;
const EMPTY: u64 = 0xa54f_f53a_5f1d_36f1;
const BLANK: u64 = 0x510e_527f_ade6_82d1;
const CHECK: u64 = 0x9b05_688c_2b3e_6c1f;
const CHECK_VALUE: u64 = 0x1f83_d9ab_fb41_bd6b;
const HOME: u64 = 0x5be0_cd19_137e_2179;

/// One step of a hash: a bijection of `word` for each `state`.
#[inline(always)]
fn step(state: u64, word: u64) -> u64 {
    let mut mixed = state.rotate_left(25).wrapping_add(0x9e37_79b9_7f4a_7c15) ^ word;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// The seed of masks and checks: binds words to one slot of one leaf under one stamp.
#[derive(Debug, Clone, Copy)]
pub(super) struct Guard(u64);

impl Guard {
    /// The part that all slots of a leaf share; see [`Guard::at`].
    #[inline]
    pub(super) fn of_leaf(tree: u64, addr: u64, stamp: u64) -> Guard {
        Guard(step(step(step(SEED, tree), addr), stamp))
    }

    /// The guard of a slot of the leaf.
    #[inline(always)]
    pub(super) fn at(self, index: usize) -> Guard {
        Guard(step(self.0, index as u64))
    }

    pub(super) fn new(tree: u64, addr: u64, stamp: u64, index: usize) -> Guard {
        Guard::of_leaf(tree, addr, stamp).at(index)
    }

    #[inline(always)]
    pub(super) fn key_mask(self, turn: u16, at: usize) -> u64 {
        step(self.0 ^ KEY, u64::from(turn) << 16 | at as u64)
    }

    #[inline(always)]
    pub(super) fn value_mask(self, turn: u16, at: usize) -> u64 {
        step(self.0 ^ VALUE, u64::from(turn) << 16 | at as u64)
    }

    /// The check of an empty slot in which these words are left. It names them, so that it fits no more once a word of an
    /// insert has landed.
    #[inline(always)]
    pub(super) fn empty(self, turn: u16, keys: &[u64], values: &[u64]) -> u64 {
        let start = step(self.0 ^ EMPTY, u64::from(turn));
        let words = keys.iter().chain(values);
        u64::from(turn) << 48 | words.fold(start, |state, &word| step(state, word)) & LOW_47
    }

    /// The value word of a slot that was emptied; for values of one word.
    #[inline(always)]
    pub(super) fn blank(self) -> u64 {
        step(self.0 ^ BLANK, 0)
    }

    /// The check's bits over the stored key alone; for values of one word.
    #[inline(always)]
    fn key_bits(self, turn: u16, keys: &[u64]) -> u64 {
        let start = step(self.0 ^ CHECK, u64::from(turn));
        keys.iter().fold(start, |state, &word| step(state, word)) & LOW_23
    }

    /// The check of a pair with these stored words.
    #[inline(always)]
    pub(super) fn check(self, turn: u16, keys: &[u64], values: &[u64]) -> u64 {
        let front = u64::from(turn) << 48 | PAIR_BIT;
        if let [value] = values {
            let high = self.key_bits(turn, keys);
            let low = step(step(self.0 ^ CHECK_VALUE, u64::from(turn) << 24 | high), *value);
            return front | high << 24 | low & LOW_24;
        }
        let start = step(self.0 ^ CHECK, u64::from(turn));
        let words = keys.iter().chain(values);
        front | words.fold(start, |state, &word| step(state, word)) & LOW_47
    }

    /// Returns whether a check's key bits are those of the stored key: whether key and check are of one write. For values
    /// of one word.
    pub(super) fn has_key(self, check: u64, keys: &[u64]) -> bool {
        is_pair(check) && check >> 24 & LOW_23 == self.key_bits(turn(check), keys)
    }
}

/// The hash of a key that chooses its home in a leaf of the tree.
pub(super) fn home_hash(tree: u64, key: impl Iterator<Item = u64>) -> u64 {
    key.fold(step(HOME, tree), step)
}

/// The turn that a check names.
#[inline(always)]
pub(super) fn turn(check: u64) -> u16 {
    (check >> 48) as u16
}

/// Returns whether a check is one of a pair.
#[inline(always)]
pub(super) fn is_pair(check: u64) -> bool {
    check & PAIR_BIT != 0
}
