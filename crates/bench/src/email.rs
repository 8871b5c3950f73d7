//! Email keys: makes addresses as keys, the domain in front of the user.
//!
//! DART's paper takes its email keys from a file of addresses that is not free: 2 to 32 bytes, 18
//! on average, the domain first. This module makes its own: 18 bytes on average, at most 32. Half
//! of the addresses lie in two large domains, the rest in 47 smaller ones. A radix tree sees long
//! shared prefixes and uneven fan-out.

use std::sync::OnceLock;

/// The longest address.
pub(crate) const EMAIL_BYTES_MAX: usize = 32;
/// Items that are mixed with each other; an address of a later item ends with the number of its round.
const ROUND_BITS: u32 = 26;
const ROUND_MASK: u64 = (1 << ROUND_BITS) - 1;
const SLOT_BITS: u32 = 8;
const NAME_BITS: u32 = 6;
/// Bits of the number behind the name.
const NUMBER_BITS: u32 = ROUND_BITS - SLOT_BITS - NAME_BITS;

/// Domains with a share of more than one in 256, and their shares.
const LARGE: [(&str, usize); 9] = [
    ("gmail.com", 72),
    ("yahoo.com", 48),
    ("hotmail.com", 24),
    ("qq.com", 24),
    ("aol.com", 16),
    ("mail.ru", 12),
    ("163.com", 8),
    ("gmx.de", 6),
    ("web.de", 6),
];

const NAMES: [&str; 1 << NAME_BITS] = [
    "abe", "ada", "al", "amy", "ana", "andy", "ann", "art", "bea", "ben", "beth", "bob", "bree",
    "cal", "carl", "cate", "chen", "cleo", "dan", "dave", "deb", "don", "eda", "ed", "ella",
    "eric", "eve", "fay", "finn", "fred", "gail", "gus", "guy", "hal", "hana", "hugo", "ian",
    "ida", "igor", "ines", "ivan", "jan", "jay", "jill", "joe", "john", "june", "kai", "kim",
    "lea", "leo", "li", "lou", "lucy", "max", "mia", "ned", "olga", "otto", "pam", "ray", "sam",
    "tom", "zoe",
];

/// The domain of a slot, and how many slots before it have the same one.
type Slot = (&'static str, u64);

/// One slot for each of the 256 shares.
fn slots() -> &'static [Slot; 1 << SLOT_BITS] {
    static SLOTS: OnceLock<[Slot; 1 << SLOT_BITS]> = OnceLock::new();
    SLOTS.get_or_init(|| {
        let large =
            LARGE.iter().flat_map(|(domain, share)| (0..*share as u64).map(|rank| (*domain, rank)));
        let mut slots = large.chain(SMALL.iter().map(|domain| (*domain, 0)));
        std::array::from_fn(|_| slots.next().unwrap_or(("gmail.com", u64::MAX)))
    })
}

/// Domains with a share of one in 256.
const SMALL: [&str; 40] = [
    "ban.org", "bel.org", "bit.org", "bon.org", "dal.net", "den.net", "dip.net", "dot.net",
    "far.com", "fen.com", "fig.com", "fox.com", "gap.org", "gem.org", "gin.org", "gold.org",
    "kat.eu", "ken.eu", "kit.eu", "kon.eu", "lab.io", "leg.io", "lin.io", "log.io", "map.fr",
    "mel.fr", "min.fr", "mon.fr", "nap.it", "net.it", "nil.it", "nov.it", "pan.uk", "pen.uk",
    "pin.uk", "pot.uk", "ram.es", "red.es", "rio.es", "rom.es",
];

/// Mixes `0..2^26` one to one: each step can be undone.
fn mix26(word: u64) -> u64 {
    let word = word.wrapping_mul(0x2c1_b3c5) & ROUND_MASK;
    let word = (word ^ word >> 13).wrapping_mul(0x297_a2d5) & ROUND_MASK;
    word ^ word >> 13
}

/// Appends the address of `item`. Different items have different addresses.
pub(crate) fn write_email(item: u64, key: &mut Vec<u8>) {
    let (round, mixed) = (item >> ROUND_BITS, mix26(item & ROUND_MASK));
    let (domain, rank) = slots()[(mixed & ((1 << SLOT_BITS) - 1)) as usize];
    let rest = mixed >> SLOT_BITS;
    let name = NAMES[(rest & ((1 << NAME_BITS) - 1)) as usize];
    let number = rank << NUMBER_BITS | rest >> NAME_BITS;
    key.extend_from_slice(domain.as_bytes());
    key.push(b'@');
    key.extend_from_slice(name.as_bytes());
    write_number(number, 10, key);
    if round > 0 {
        key.push(b'.');
        write_number(round, 36, key);
    }
}

/// Appends the digits of `number`.
fn write_number(mut number: u64, base: u64, key: &mut Vec<u8>) {
    let start = key.len();
    loop {
        key.push(b"0123456789abcdefghijklmnopqrstuvwxyz"[(number % base) as usize]);
        number /= base;
        if number == 0 {
            break;
        }
    }
    key[start..].reverse();
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn email(item: u64) -> Vec<u8> {
        let mut key = Vec::new();
        write_email(item, &mut key);
        key
    }

    #[test]
    fn addresses_are_distinct_and_of_the_stated_lengths() {
        let beyond = 5 << ROUND_BITS;
        let all: BTreeSet<_> = (0..100_000).chain(beyond..beyond + 100_000).map(email).collect();
        assert_eq!(all.len(), 200_000);
        assert!(all.iter().all(|key| key.len() <= EMAIL_BYTES_MAX));
        assert!(email(u64::MAX).len() <= EMAIL_BYTES_MAX, "{:?}", email(u64::MAX));
        let bytes: usize = (0..100_000).map(|item| email(item).len()).sum();
        let mean = bytes as f64 / 100_000.0;
        assert!((17.0..19.0).contains(&mean), "{mean}");
    }

    #[test]
    fn every_slot_has_a_domain_and_mixing_loses_nothing() {
        assert!(slots().iter().all(|(_, rank)| *rank < 256));
        let distinct: BTreeSet<_> = slots().iter().collect();
        assert_eq!(distinct.len(), 1 << SLOT_BITS);
        let mut seen = vec![false; 1 << ROUND_BITS];
        for word in 0..1 << ROUND_BITS {
            assert!(!std::mem::replace(&mut seen[mix26(word) as usize], true));
        }
    }
}
