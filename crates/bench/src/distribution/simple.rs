//! Simple distributions: uniform, latest, hotspot, exponential and sequential, each a formula.

use fastrand::Rng;

use super::{DistributionError, Zipfian};

/// Every item as often as every other.
#[derive(Clone, Copy, Debug)]
pub struct Uniform;

impl Uniform {
    /// Draws one of `items` items; none counts as one.
    pub fn sample(&self, rng: &mut Rng, items: u64) -> u64 {
        rng.u64(0..items.max(1))
    }
}

/// The newest item most often, older ones zipfian in their age. Not scrambled: age is what counts.
#[derive(Clone, Debug)]
pub struct Latest {
    ages: Zipfian,
}

impl Latest {
    /// Skewed by `theta`, as [`Zipfian`] is.
    ///
    /// # Errors
    /// [`DistributionError::Theta`] if `theta` is not a finite number above 0.
    pub fn new(theta: f64) -> Result<Self, DistributionError> {
        Ok(Self { ages: Zipfian::new(theta, 1)? })
    }

    /// Draws one of `items` items, of which `items - 1` is the newest; none counts as one.
    pub fn sample(&mut self, rng: &mut Rng, items: u64) -> u64 {
        self.ages.set_items(items);
        self.ages.items() - 1 - self.ages.sample(rng)
    }
}

/// Two uniform sets: the first items are hot and get a fixed share of the draws.
#[derive(Clone, Copy, Debug)]
pub struct Hotspot {
    set_share: f64,
    op_share: f64,
}

impl Hotspot {
    /// `set_share` of the items are hot and get `op_share` of the draws; both 0 to 1.
    ///
    /// # Errors
    /// [`DistributionError::Share`] if either is not in 0 to 1.
    pub fn new(set_share: f64, op_share: f64) -> Result<Self, DistributionError> {
        for (name, share) in [("hot set", set_share), ("hot operation", op_share)] {
            if !(0.0..=1.0).contains(&share) {
                return Err(DistributionError::Share { name, share });
            }
        }
        Ok(Self { set_share, op_share })
    }

    /// Draws one of `items` items; none counts as one. If one of the sets is empty, the other gets
    /// all.
    pub fn sample(&self, rng: &mut Rng, items: u64) -> u64 {
        let items = items.max(1);
        let hot = ((items as f64 * self.set_share).round() as u64).min(items);
        // Draw even where the result cannot matter, so that the sequence of numbers does not depend
        // on it.
        let is_hot = rng.f64() < self.op_share;
        if hot == items || (is_hot && hot > 0) { rng.u64(0..hot) } else { rng.u64(hot..items) }
    }
}

/// The newest item most often, older ones exponentially less in their age.
#[derive(Clone, Copy, Debug)]
pub struct Exponential {
    /// The decay over the age of all items together.
    decay: f64,
}

impl Exponential {
    /// `op_share` of the draws fall on the newest `set_share` of the items (YCSB's
    /// `exponential.percentile` and `exponential.frac`); both above 0, the first below 1.
    ///
    /// # Errors
    /// [`DistributionError::Share`] if either is not in its range.
    pub fn new(op_share: f64, set_share: f64) -> Result<Self, DistributionError> {
        if !(op_share > 0.0 && op_share < 1.0) {
            return Err(DistributionError::Share {
                name: "exponential operation",
                share: op_share,
            });
        }
        if !(set_share > 0.0 && set_share.is_finite()) {
            return Err(DistributionError::Share { name: "exponential set", share: set_share });
        }
        Ok(Self { decay: -(-op_share).ln_1p() / set_share })
    }

    /// Draws one of `items` items, of which `items - 1` is the newest; none counts as one.
    ///
    /// The part beyond the oldest item is cut off and shared out in proportion.
    pub fn sample(&self, rng: &mut Rng, items: u64) -> u64 {
        let items = items.max(1);
        let below = rng.f64() * -(-self.decay).exp_m1();
        let age = -(-below).ln_1p() / self.decay * items as f64;
        items - 1 - (age as u64).min(items - 1)
    }
}

/// One item after the other, from the first again after the last.
#[derive(Clone, Copy, Debug)]
pub struct Sequential {
    next: u64,
    stride: u64,
}

impl Sequential {
    /// Begins at item `first` and goes on by `stride` (none counts as one): clients that begin at
    /// 0, 1, 2 with a stride of 3 share the items.
    pub fn new(first: u64, stride: u64) -> Self {
        Self { next: first, stride: stride.max(1) }
    }

    /// The next of `items` items; none counts as one.
    pub fn sample(&mut self, items: u64) -> u64 {
        let item = self.next % items.max(1);
        self.next = item.wrapping_add(self.stride);
        item
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn uniform_is_flat() {
        let mut rng = Rng::with_seed(1);
        let mut seen = [0f64; 50];
        for _ in 0..100_000 {
            seen[Uniform.sample(&mut rng, 50) as usize] += 1.0;
        }
        let chi_square: f64 = seen.iter().map(|seen| (seen - 2000.0).powi(2) / 2000.0).sum();
        assert!(chi_square < 90.0, "{chi_square}");
        assert_eq!(Uniform.sample(&mut rng, 0), 0);
    }

    #[test]
    fn latest_follows_the_newest() {
        let mut rng = Rng::with_seed(2);
        let mut latest = Latest::new(0.99).unwrap();
        for items in [1u64, 10, 1_000, 1_000_000] {
            let draws: Vec<u64> = (0..20_000).map(|_| latest.sample(&mut rng, items)).collect();
            assert!(draws.iter().all(|item| *item < items));
            let count = |item| draws.iter().filter(|drawn| **drawn == item).count();
            let newest = count(items - 1);
            if items > 1 {
                // Twice as old is half as often, nearly.
                let ratio = newest as f64 / count(items - 2) as f64;
                assert!((1.8..2.2).contains(&ratio), "{items} items: {ratio}");
            }
        }
        assert_eq!(latest.sample(&mut rng, 0), 0);
    }

    #[test]
    fn hotspot_keeps_its_shares() {
        let mut rng = Rng::with_seed(3);
        let hotspot = Hotspot::new(0.2, 0.8).unwrap();
        for items in [100, 1000] {
            let hot = (0..50_000).filter(|_| hotspot.sample(&mut rng, items) < items / 5).count();
            assert!((39_500..40_500).contains(&hot), "{hot}");
        }
        let all_hot = Hotspot::new(1.0, 0.0).unwrap();
        let none_hot = Hotspot::new(0.0, 1.0).unwrap();
        for items in [0, 1, 2, 7] {
            for hotspot in [hotspot, all_hot, none_hot] {
                assert!(hotspot.sample(&mut rng, items) < items.max(1));
            }
        }
        assert!(matches!(Hotspot::new(1.1, 0.5), Err(DistributionError::Share { .. })));
        assert!(Hotspot::new(0.5, f64::NAN).is_err());
    }

    #[test]
    fn exponential_keeps_its_share() {
        let mut rng = Rng::with_seed(4);
        let exponential = Exponential::new(0.95, 0.5).unwrap();
        const ITEMS: u64 = 10_000;
        let newest =
            (0..50_000).filter(|_| exponential.sample(&mut rng, ITEMS) >= ITEMS / 2).count();
        // Cutting at the oldest leaves 1 - 0.05^2 of the mass.
        let expected = 0.95 / (1.0 - 0.05f64.powi(2)) * 50_000.0;
        assert!((newest as f64 - expected).abs() < 250.0, "{newest} is not {expected}");
        for items in [0, 1, 2, 3] {
            assert!(exponential.sample(&mut rng, items) < items.max(1));
        }
        assert!(Exponential::new(1.0, 0.5).is_err());
        assert!(Exponential::new(0.5, 0.0).is_err());
    }

    #[test]
    fn sequential_clients_share_the_items() {
        let mut seen = [0; 10];
        for client in 0..3 {
            let mut sequential = Sequential::new(client, 3);
            for _ in 0..3 {
                seen[sequential.sample(10) as usize] += 1;
            }
        }
        assert_eq!(seen, [1, 1, 1, 1, 1, 1, 1, 1, 1, 0]);
        let mut sequential = Sequential::new(9, 0);
        assert_eq!([(); 3].map(|()| sequential.sample(10)), [9, 0, 1]);
        assert_eq!(sequential.sample(0), 0);
    }
}
