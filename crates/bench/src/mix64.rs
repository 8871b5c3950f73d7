//! Mixing: mixes 64-bit words without loss.

/// Maps every word to another one, as if at random; no two words to the same one.
///
/// Flipping any bit of the input flips each bit of the output with a chance of about one half.
///
/// Source: the output step of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014) with Stafford's 13th
/// set of constants; each of its steps (addition, xor with a right shift of itself,
/// multiplication by an odd number) can be undone, and so can the whole.
pub(crate) fn mix64(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// Undoes [`mix64`].
pub(crate) fn unmix64(mixed: u64) -> u64 {
    let word = unshift(mixed, 31).wrapping_mul(INVERSE_SECOND);
    let word = unshift(word, 27).wrapping_mul(INVERSE_FIRST);
    unshift(word, 30).wrapping_sub(0x9e37_79b9_7f4a_7c15)
}

const INVERSE_FIRST: u64 = inverse(0xbf58_476d_1ce4_e5b9);
const INVERSE_SECOND: u64 = inverse(0x94d0_49bb_1331_11eb);

/// Undoes `word ^ (word >> shift)` for a shift of at least 22, where two steps back reach all bits.
fn unshift(mixed: u64, shift: u32) -> u64 {
    mixed ^ (mixed >> shift) ^ (mixed >> (2 * shift))
}

/// The inverse of an odd number modulo 2^64, by Newton's iteration, which doubles the right bits
/// each time, from 3 on.
const fn inverse(odd: u64) -> u64 {
    let mut inverse = odd;
    let mut step = 0;
    while step < 5 {
        inverse = inverse.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(inverse)));
        step += 1;
    }
    inverse
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mixing_can_be_undone() {
        let mut rng = fastrand::Rng::with_seed(1);
        for word in [0, 1, u64::MAX, 1 << 63].into_iter().chain((0..10_000).map(|_| rng.u64(..))) {
            assert_eq!(unmix64(mix64(word)), word);
        }
    }

    #[test]
    fn one_bit_in_flips_half_of_the_bits_out() {
        let mut rng = fastrand::Rng::with_seed(2);
        for bit in 0..64 {
            let flipped: u32 = (0..1000)
                .map(|_| {
                    let word = rng.u64(..);
                    (mix64(word) ^ mix64(word ^ (1 << bit))).count_ones()
                })
                .sum();
            let mean = f64::from(flipped) / 1000.0;
            assert!((31.0..33.0).contains(&mean), "bit {bit}: {mean}");
        }
    }
}
