//! Request distributions: choose the item of each operation.
//!
//! A [`RequestDistribution`] describes one, an [`ItemChooser`] draws from it. All randomness is the
//! caller's seeded generator, and the number of items may grow between any two draws:
//!
//! - INV-DIST-1: a draw from `items >= 1` items is below `items`;
//! - INV-DIST-2: the same seed and the same numbers of items give the same draws.

mod scramble;
mod simple;
mod zipfian;

use std::{fmt, iter::zip, mem::discriminant, str::FromStr};

use fastrand::Rng;
use thiserror::Error;

pub use scramble::Scramble;
pub use simple::{Exponential, Hotspot, Latest, Sequential, Uniform};
pub use zipfian::Zipfian;

use farleaf_index::suggest::{did_you_mean, nearest};

/// The skew that YCSB and the papers use unless they say otherwise.
pub const ZIPFIAN_THETA_DEFAULT: f64 = 0.99;

/// Salt of every scramble: independent of the seed, as all clients must agree on the popular items.
const SCRAMBLE_SALT: u64 = 0;

/// Distribution of requests over the items.
///
/// Reads `uniform`, `zipfian`, `zipfian:1.2`, `latest`, `latest:0.5`, `hotspot`, `hotspot:0.2:0.8`
/// (hot set, hot operations), `exponential`, `exponential:0.95:0.86` (operations, set),
/// `sequential`; prints the same, in full.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RequestDistribution {
    /// Every item alike.
    Uniform,
    /// A few items far more than others, spread over all of them by a [`Scramble`].
    Zipfian {
        /// The exponent, above 0.
        theta: f64,
    },
    /// New items more than old ones, zipfian.
    Latest {
        /// The exponent, above 0.
        theta: f64,
    },
    /// A hot set and a cold set.
    Hotspot {
        /// The hot items' share of all items, 0 to 1.
        set_share: f64,
        /// Their share of the operations, 0 to 1.
        op_share: f64,
    },
    /// New items more than old ones, exponentially.
    Exponential {
        /// The share of operations that falls on the newest, above 0 and below 1.
        op_share: f64,
        /// The newest items' share of all items, above 0.
        set_share: f64,
    },
    /// One after the other.
    Sequential,
}

impl RequestDistribution {
    /// The names that are read.
    pub const NAMES: [&str; 6] =
        ["uniform", "zipfian", "latest", "hotspot", "exponential", "sequential"];

    /// YCSB's defaults, in the order of the names.
    const DEFAULTS: [Self; 6] = [
        Self::Uniform,
        Self::Zipfian { theta: ZIPFIAN_THETA_DEFAULT },
        Self::Latest { theta: ZIPFIAN_THETA_DEFAULT },
        Self::Hotspot { set_share: 0.2, op_share: 0.8 },
        Self::Exponential { op_share: 0.95, set_share: 0.857_142_857_1 },
        Self::Sequential,
    ];

    /// Checks the numbers, which the fields alone do not.
    ///
    /// # Errors
    /// [`DistributionError::Theta`] or [`DistributionError::Share`].
    pub fn validate(&self) -> Result<(), DistributionError> {
        ItemChooser::new(self, 1, 0, 1).map(drop)
    }

    /// The numbers after the name, for reading and for printing.
    fn parameters(&mut self) -> Vec<&mut f64> {
        match self {
            Self::Uniform | Self::Sequential => Vec::new(),
            Self::Zipfian { theta } | Self::Latest { theta } => vec![theta],
            Self::Hotspot { set_share, op_share } => vec![set_share, op_share],
            Self::Exponential { op_share, set_share } => vec![op_share, set_share],
        }
    }
}

impl FromStr for RequestDistribution {
    type Err = DistributionError;

    fn from_str(text: &str) -> Result<Self, DistributionError> {
        let mut parts = text.trim().split(':');
        let name = parts.next().unwrap_or_default();
        let lower = name.to_ascii_lowercase();
        let place = Self::NAMES.iter().position(|known| *known == lower).ok_or_else(|| {
            let suggestion = nearest(&lower, Self::NAMES).map(str::to_owned);
            DistributionError::UnknownName { read: name.to_owned(), suggestion }
        })?;
        let mut distribution = Self::DEFAULTS[place];
        let numbers: Vec<&str> = parts.collect();
        let mut parameters = distribution.parameters();
        let malformed =
            || DistributionError::Parameters { read: text.to_owned(), name: lower.clone() };
        if !numbers.is_empty() && numbers.len() != parameters.len() {
            return Err(malformed());
        }
        for (parameter, number) in parameters.iter_mut().zip(numbers) {
            **parameter = number.parse().map_err(|_| malformed())?;
        }
        distribution.validate()?;
        Ok(distribution)
    }
}

impl fmt::Display for RequestDistribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_same = |(_, it): &(_, Self)| discriminant(it) == discriminant(self);
        let (name, _) = zip(Self::NAMES, Self::DEFAULTS).find(is_same).ok_or(fmt::Error)?;
        f.write_str(name)?;
        let mut copy = *self;
        copy.parameters().iter().try_for_each(|parameter| write!(f, ":{parameter}"))
    }
}

/// A distribution that makes no sense.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum DistributionError {
    /// No distribution has that name.
    #[error("no distribution is named \"{read}\"{}; known: {}",
        did_you_mean(suggestion.as_deref()), RequestDistribution::NAMES.join(", "))]
    UnknownName {
        /// The name as it was given.
        read: String,
        /// The known name that was probably meant.
        suggestion: Option<String>,
    },
    /// The numbers after the name are too many, too few, or none.
    #[error(
        "\"{read}\" does not fit the distribution {name} (accepted: uniform, zipfian:0.99, \
        latest:0.99, hotspot:0.2:0.8, exponential:0.95:0.86, sequential, or a name alone)"
    )]
    Parameters {
        /// The text as it was given.
        read: String,
        /// The distribution's name.
        name: String,
    },
    /// The zipfian exponent is not a finite number above 0.
    #[error("the zipfian theta must be a finite number above 0, not {0}")]
    Theta(f64),
    /// A share is outside its range.
    #[error("the {name} share must be between 0 and 1, not {share}")]
    Share {
        /// Name of the share.
        name: &'static str,
        /// The number given.
        share: f64,
    },
    /// A range of scan lengths is empty or begins at 0.
    #[error("scan lengths must be at least 1 and not end before they begin, not {min} to {max}")]
    ScanLength {
        /// The shortest.
        min: u32,
        /// The longest.
        max: u32,
    },
}

/// One client's choice of items.
#[derive(Clone, Debug)]
pub struct ItemChooser {
    kind: Sampler,
}

#[derive(Clone, Debug)]
enum Sampler {
    Uniform(Uniform),
    Zipfian(Zipfian, Scramble),
    Latest(Latest),
    Hotspot(Hotspot),
    Exponential(Exponential),
    Sequential(Sequential),
}

impl ItemChooser {
    /// The choice of client `client` of `clients`, when `items` items have been loaded.
    ///
    /// Constant time and memory. The last two matter to `sequential` only.
    ///
    /// # Errors
    /// [`DistributionError::Theta`] or [`DistributionError::Share`] for a number out of range.
    pub fn new(
        distribution: &RequestDistribution,
        items: u64,
        client: u64,
        clients: u64,
    ) -> Result<Self, DistributionError> {
        let kind = match *distribution {
            RequestDistribution::Uniform => Sampler::Uniform(Uniform),
            RequestDistribution::Zipfian { theta } => {
                Sampler::Zipfian(Zipfian::new(theta, items)?, Scramble::new(items, SCRAMBLE_SALT))
            }
            RequestDistribution::Latest { theta } => Sampler::Latest(Latest::new(theta)?),
            RequestDistribution::Hotspot { set_share, op_share } => {
                Sampler::Hotspot(Hotspot::new(set_share, op_share)?)
            }
            RequestDistribution::Exponential { op_share, set_share } => {
                Sampler::Exponential(Exponential::new(op_share, set_share)?)
            }
            RequestDistribution::Sequential => {
                Sampler::Sequential(Sequential::new(client, clients))
            }
        };
        Ok(Self { kind })
    }

    /// Draws one of `items` items; none counts as one. Does not allocate.
    pub fn choose(&mut self, rng: &mut Rng, items: u64) -> u64 {
        match &mut self.kind {
            Sampler::Uniform(uniform) => uniform.sample(rng, items),
            Sampler::Zipfian(zipfian, scramble) => {
                zipfian.set_items(items);
                // There are never fewer items than were loaded; still the draw stays below them
                // (INV-DIST-1).
                scramble.item(zipfian.sample(rng)).min(items.max(1) - 1)
            }
            Sampler::Latest(latest) => latest.sample(rng, items),
            Sampler::Hotspot(hotspot) => hotspot.sample(rng, items),
            Sampler::Exponential(exponential) => exponential.sample(rng, items),
            Sampler::Sequential(sequential) => sequential.sample(items),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const ALL: [&str; 6] = [
        "uniform",
        "zipfian:0.99",
        "latest:1.2",
        "hotspot:0.2:0.8",
        "exponential:0.95:0.5",
        "sequential",
    ];

    /// INV-DIST-1 and INV-DIST-2, with items being added.
    #[test]
    fn draws_stay_in_range_and_follow_the_seed() {
        for text in ALL {
            let distribution: RequestDistribution = text.parse().unwrap();
            assert_eq!(distribution.to_string(), text);
            let run = |seed| {
                let mut rng = Rng::with_seed(seed);
                let mut chooser = ItemChooser::new(&distribution, 100, 0, 1).unwrap();
                (100..5_000)
                    .map(|items| {
                        let item = chooser.choose(&mut rng, items);
                        assert!(item < items, "{text}");
                        item
                    })
                    .collect::<Vec<_>>()
            };
            assert_eq!(run(1), run(1), "{text}");
            assert!(run(1) != run(2) || text == "sequential", "{text}");
            let mut chooser = ItemChooser::new(&distribution, 100, 0, 1).unwrap();
            assert_eq!(chooser.choose(&mut Rng::with_seed(1), 0), 0, "{text}");
        }
    }

    #[test]
    fn popular_items_stay_popular_while_items_are_added() {
        let zipfian = RequestDistribution::Zipfian { theta: 1.2 };
        let hottest = |items: u64| {
            let mut rng = Rng::with_seed(8);
            let mut chooser = ItemChooser::new(&zipfian, 1_000, 0, 1).unwrap();
            let mut seen = vec![0u32; items as usize];
            for _ in 0..20_000 {
                seen[chooser.choose(&mut rng, items) as usize] += 1;
            }
            (0..seen.len()).max_by_key(|item| seen[*item]).unwrap()
        };
        assert_eq!(hottest(1_000), hottest(5_000));
    }

    #[test]
    fn names_alone_take_the_defaults() {
        assert_eq!("zipfian".parse(), Ok(RequestDistribution::Zipfian { theta: 0.99 }));
        assert_eq!(
            " Hotspot ".parse(),
            Ok(RequestDistribution::Hotspot { set_share: 0.2, op_share: 0.8 })
        );
        for name in RequestDistribution::NAMES {
            assert!(name.parse::<RequestDistribution>().is_ok());
        }
    }

    #[test]
    fn wrong_distributions_are_explained() {
        let error = |text: &str| text.parse::<RequestDistribution>().unwrap_err();
        assert_eq!(
            error("zipfain").to_string(),
            "no distribution is named \"zipfain\"; did you mean \"zipfian\"?; known: uniform, \
             zipfian, latest, hotspot, exponential, sequential"
        );
        assert!(matches!(error("zipfian:x"), DistributionError::Parameters { .. }));
        assert!(matches!(error("zipfian:1:2"), DistributionError::Parameters { .. }));
        assert!(matches!(error("uniform:1"), DistributionError::Parameters { .. }));
        assert!(matches!(error("zipfian:-1"), DistributionError::Theta(_)));
        assert!(matches!(error("hotspot:2:0.5"), DistributionError::Share { .. }));
        assert!(matches!(error(""), DistributionError::UnknownName { .. }));
    }
}
