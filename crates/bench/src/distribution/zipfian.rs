//! Zipfian distribution: samples ranks exactly and without a table.

use fastrand::Rng;

use super::DistributionError;

/// Most rejections in a row: each has a chance below one half, so that more do not happen.
const ATTEMPTS_MAX: usize = 128;

/// Ranks `0..items`, where rank `r` is drawn with a probability proportional to
/// `1 / (r + 1)^theta`.
///
/// Any finite `theta > 0` is right, 1 and more included, and any number of items up to 2^53 or so.
/// Set-up takes constant time and so does a change of the number of items; a sample costs about
/// one exponential and one logarithm. The probabilities are exact to the precision of `f64`; no
/// sum over the items is formed anywhere.
///
/// The generator that YCSB uses (Gray et al., SIGMOD 1994) adds up all items first. It gives exact
/// probabilities to the two first ranks only, and does not work at `theta >= 1`.
///
/// Source: W. Hormann and G. Derflinger, "Rejection-inversion to generate variates from monotone
/// discrete distributions", ACM TOMACS 6(3), 1996. A point is drawn under the continuous
/// `x^-theta` by inverting its integral and rounded to the nearest rank; the rounding is accepted
/// so that every rank keeps exactly its own share of the area.
#[derive(Clone, Debug)]
pub struct Zipfian {
    theta: f64,
    items: u64,
    /// The integral at the left end, moved so that the first rank needs no rejection.
    area_first: f64,
    /// The integral at the right end, `items + 1/2`.
    area_last: f64,
    /// Roundings by no more than this are accepted without evaluating the integral.
    sure_width: f64,
}

impl Zipfian {
    /// A distribution over `items` ranks; none counts as one.
    ///
    /// # Errors
    /// [`DistributionError::Theta`] if `theta` is not a finite number above 0.
    pub fn new(theta: f64, items: u64) -> Result<Self, DistributionError> {
        if !(theta.is_finite() && theta > 0.0) {
            return Err(DistributionError::Theta(theta));
        }
        let items = items.max(1);
        let area_last = integral(items as f64 + 0.5, theta);
        Ok(Self {
            theta,
            items,
            area_first: integral(1.5, theta) - 1.0,
            area_last,
            sure_width: 2.0 - inverse(integral(2.5, theta) - weight(2.0, theta), theta),
        })
    }

    /// The number of ranks.
    pub fn items(&self) -> u64 {
        self.items
    }

    /// Changes the number of ranks, in constant time; none counts as one.
    pub fn set_items(&mut self, items: u64) {
        let items = items.max(1);
        if items != self.items {
            self.items = items;
            self.area_last = integral(items as f64 + 0.5, self.theta);
        }
    }

    /// Draws a rank: 0 is the most popular.
    pub fn sample(&self, rng: &mut Rng) -> u64 {
        for _ in 0..ATTEMPTS_MAX {
            let area = self.area_last + rng.f64() * (self.area_first - self.area_last);
            let point = inverse(area, self.theta);
            // Ranks count from one here. Rounding can leave the range by one at either end.
            let rank = ((point + 0.5) as u64).clamp(1, self.items);
            let center = rank as f64;
            if center - point <= self.sure_width
                || area >= integral(center + 0.5, self.theta) - weight(center, self.theta)
            {
                return rank - 1;
            }
        }
        0
    }
}

/// `x^-theta`.
fn weight(x: f64, theta: f64) -> f64 {
    (-theta * x.ln()).exp()
}

/// The integral of `x^-theta` from 1 to `x`: `(x^(1-theta) - 1) / (1-theta)`, and `ln x` at 1.
///
/// Written so that nothing cancels when `theta` is near 1.
fn integral(x: f64, theta: f64) -> f64 {
    let log = x.ln();
    let exponent = (1.0 - theta) * log;
    let ratio =
        if exponent.abs() > 1e-8 { exponent.exp_m1() / exponent } else { 1.0 + exponent / 2.0 };
    ratio * log
}

/// The `x` at which [`integral`] is `area`.
fn inverse(area: f64, theta: f64) -> f64 {
    // Below -1 only by rounding, where the integral has all but reached its limit.
    let exponent = (area * (1.0 - theta)).max(-1.0);
    let ratio =
        if exponent.abs() > 1e-8 { exponent.ln_1p() / exponent } else { 1.0 - exponent / 2.0 };
    (ratio * area).exp()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// The sum of `k^-theta` for k from 1 to `n`: the head added up, the rest by the
    /// Euler-Maclaurin formula. Good to about 1e-12.
    fn zeta(n: u64, theta: f64) -> f64 {
        const HEAD: u64 = 1000;
        let head = |n: u64| (1..=n).rev().map(|k| (k as f64).powf(-theta)).sum::<f64>();
        if n <= HEAD {
            return head(n);
        }
        let (from, to) = (HEAD as f64, n as f64);
        let f = |x: f64, down: f64| x.powf(-theta - down);
        head(HEAD - 1)
            + (integral(to, theta) - integral(from, theta))
            + (f(from, 0.0) + f(to, 0.0)) / 2.0
            + theta / 12.0 * (f(from, 1.0) - f(to, 1.0))
            - theta * (theta + 1.0) * (theta + 2.0) / 720.0 * (f(from, 3.0) - f(to, 3.0))
    }

    #[test]
    fn zeta_of_the_tests_is_right() {
        // Known values: H(10^6), and zeta(2) with its tail of about 1/n.
        assert!((zeta(1_000_000, 1.0) - 14.392_726_722_865_724).abs() < 1e-10);
        let full = std::f64::consts::PI.powi(2) / 6.0;
        assert!((zeta(10_000_000, 2.0) - (full - 1e-7 + 0.5e-14)).abs() < 1e-11);
        let plain: f64 = (1..=20_000u64).rev().map(|k| (k as f64).powf(-0.99)).sum();
        assert!((zeta(20_000, 0.99) - plain).abs() < 1e-10);
    }

    #[test]
    fn few_items_have_their_exact_probabilities() {
        const SAMPLES: u64 = 300_000;
        for theta in [0.1, 0.5, 0.99, 1.0, 1.2, 2.0, 3.5] {
            for items in [1u64, 2, 3, 10, 40] {
                let zipfian = Zipfian::new(theta, items).unwrap();
                let mut rng = Rng::with_seed(theta.to_bits() ^ items);
                let mut seen = vec![0u64; items as usize];
                for _ in 0..SAMPLES {
                    seen[zipfian.sample(&mut rng) as usize] += 1;
                }
                let total = zeta(items, theta);
                // Ranks expected less than 10 times are left out: chi-square needs a few of each.
                let (mut chi_square, mut cells) = (0.0, 0u32);
                for (rank, seen) in seen.iter().enumerate() {
                    let share = ((rank + 1) as f64).powf(-theta) / total;
                    let expected = share * SAMPLES as f64;
                    if expected >= 10.0 {
                        chi_square += (*seen as f64 - expected).powi(2) / expected;
                        cells += 1;
                    }
                }
                let freedom = f64::from(cells - 1);
                let limit = freedom + 4.0 * (2.0 * freedom).sqrt();
                assert!(
                    chi_square <= limit,
                    "theta {theta}, {items} items: {chi_square} > {limit}"
                );
            }
        }
    }

    #[test]
    fn two_hundred_million_items_follow_the_distribution() {
        const ITEMS: u64 = 200_000_000;
        const SAMPLES: u64 = 400_000;
        for theta in [0.5, 0.99, 1.0, 1.2] {
            let zipfian = Zipfian::new(theta, ITEMS).unwrap();
            let mut rng = Rng::with_seed(7);
            let tops = [1u64, 10, 1_000, 100_000, 10_000_000, 150_000_000];
            let mut seen = [0u64; 6];
            for _ in 0..SAMPLES {
                let rank = zipfian.sample(&mut rng);
                assert!(rank < ITEMS);
                for (top, seen) in tops.iter().zip(&mut seen) {
                    *seen += u64::from(rank < *top);
                }
            }
            for (top, seen) in tops.iter().zip(seen) {
                let mass = zeta(*top, theta) / zeta(ITEMS, theta);
                let deviation = (mass * (1.0 - mass) / SAMPLES as f64).sqrt();
                let found = seen as f64 / SAMPLES as f64;
                assert!(
                    (found - mass).abs() <= 4.5 * deviation,
                    "theta {theta}, top {top}: {found} is not {mass}"
                );
            }
        }
    }

    #[test]
    fn more_items_than_fit_a_float_stay_in_range() {
        for theta in [0.01, 0.99, 1.0, 8.0, 1000.0] {
            for items in [1 << 40, u64::MAX] {
                let zipfian = Zipfian::new(theta, items).unwrap();
                let mut rng = Rng::with_seed(11);
                for _ in 0..2_000 {
                    assert!(zipfian.sample(&mut rng) < items);
                }
            }
        }
    }

    #[test]
    fn resizing_is_the_same_as_starting_with_that_size() {
        let mut grown = Zipfian::new(0.99, 10).unwrap();
        grown.set_items(1_000_000);
        let fresh = Zipfian::new(0.99, 1_000_000).unwrap();
        let (mut left, mut right) = (Rng::with_seed(5), Rng::with_seed(5));
        for _ in 0..10_000 {
            assert_eq!(grown.sample(&mut left), fresh.sample(&mut right));
        }
        assert_eq!(grown.items(), 1_000_000);
    }

    #[test]
    fn senseless_exponents_are_refused() {
        for theta in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(matches!(Zipfian::new(theta, 10), Err(DistributionError::Theta(_))));
        }
    }
}
