//! Scrambling: spreads popular ranks over the items.

use crate::mix64::mix64;

/// A fixed shuffle of `0..items`, computed and not stored.
///
/// Invariants:
/// - INV-SCRAMBLE-1: ranks below `items` are mapped one to one onto `0..items`;
/// - INV-SCRAMBLE-2: ranks from `items` on map to themselves. So the map is one to one over every
///   `0..count` with `count >= items`. No rank moves when items are added: the popular items stay
///   popular for the whole run, and new items join at the unpopular end.
///
/// YCSB takes a 64-bit FNV hash of the rank modulo the number of items instead. That sends several
/// ranks to one item and none to about a third of them (1/e). So the most popular items carry more
/// than their share, and all of them move whenever the number of items changes.
///
/// Cost: three multiplications, fewer than twice that on average.
#[derive(Clone, Debug)]
pub struct Scramble {
    items: u64,
    bits: u32,
    mask: u64,
    keys: [u64; ROUNDS],
}

const ROUNDS: usize = 3;

impl Scramble {
    /// A shuffle of `0..items`; another `salt` gives another one.
    pub fn new(items: u64, salt: u64) -> Self {
        let bits = (64 - items.saturating_sub(1).leading_zeros()).max(1);
        let mut key = mix64(salt ^ 0x5c4a_3b1e);
        let keys = [(); ROUNDS].map(|()| {
            key = mix64(key);
            key
        });
        Self { items, bits, mask: u64::MAX >> (64 - bits), keys }
    }

    /// The item at `rank`.
    pub fn item(&self, rank: u64) -> u64 {
        if rank >= self.items {
            return rank;
        }
        // The rounds permute the next power of two. Following them from a rank below `items` to the
        // next number below `items` permutes those. The loop ends, as the cycle leads back to the
        // rank itself, and soon, as at least half of all numbers are below.
        let mut item = self.permute(rank);
        while item >= self.items {
            item = self.permute(item);
        }
        item
    }

    /// One to one on numbers of `bits` bits: every step can be undone on them.
    fn permute(&self, number: u64) -> u64 {
        let mut number = number;
        for key in self.keys {
            number = number.wrapping_add(key) & self.mask;
            number ^= number >> (self.bits / 2).max(1);
            number = number.wrapping_mul(key | 1) & self.mask;
            number ^= number >> (self.bits / 3).max(1);
        }
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// INV-SCRAMBLE-1.
    #[test]
    fn no_two_ranks_share_an_item() {
        for items in (1..70).chain([127, 128, 129, 1000, 4096, 100_003]) {
            for salt in 0..3 {
                let scramble = Scramble::new(items, salt);
                let mut seen = vec![false; items as usize];
                for rank in 0..items {
                    let item = scramble.item(rank) as usize;
                    assert!(!std::mem::replace(&mut seen[item], true), "{items} items, {item}");
                }
            }
        }
    }

    /// INV-SCRAMBLE-2.
    #[test]
    fn added_items_stay_where_they_are() {
        let scramble = Scramble::new(1000, 9);
        for rank in [1000, 1001, 1 << 40, u64::MAX] {
            assert_eq!(scramble.item(rank), rank);
        }
        assert_eq!(Scramble::new(0, 9).item(5), 5);
    }

    #[test]
    fn neighbouring_ranks_are_spread_evenly() {
        const ITEMS: u64 = 1_000_000;
        const PARTS: u64 = 100;
        for salt in 0..8 {
            let scramble = Scramble::new(ITEMS, salt);
            for first in [0, 500_000] {
                let mut parts = [0f64; PARTS as usize];
                for rank in first..first + 10_000 {
                    parts[(scramble.item(rank) * PARTS / ITEMS) as usize] += 1.0;
                }
                // 99 degrees of freedom. Spread more evenly than chance is fine.
                let chi_square: f64 = parts.iter().map(|seen| (seen - 100.0).powi(2) / 100.0).sum();
                assert!(chi_square < 170.0, "salt {salt}, from {first}: {chi_square}");
            }
        }
    }

    #[test]
    fn salt_changes_the_shuffle() {
        let [left, right] = [1, 2].map(|salt| Scramble::new(1 << 20, salt));
        let same = (0..10_000).filter(|rank| left.item(*rank) == right.item(*rank)).count();
        assert!(same < 5, "{same} of 10000 are the same");
    }
}
