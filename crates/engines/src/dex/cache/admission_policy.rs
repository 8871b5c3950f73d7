//! Admission policy: decides which missed leaves the cache admits once every frame is in use.
//!
//! It admits leaves by chance, as in the paper (section 4.3), or those that are *missed again*: leaves
//! whose last miss lies at most as many leaf misses back as the cache has frames. Such a leaf would
//! still be cached if the first miss had admitted it. So the rate of admission follows the workload by
//! itself, and needs no tuning.

use std::fmt;
use std::str::FromStr;

use farleaf_index::sync::{AtomicU64, Ordering};

/// The choice of missed leaves that the cache admits once every frame has been used. It admits all inner
/// nodes.
///
/// Reads `again`, `lazy` (0.1), `eager` (1) or a probability, and prints `again` or a probability.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Admission {
    /// Each leaf with that probability.
    Chance(f64),
    /// The leaves that were missed before within as many misses of leaves as the cache has frames.
    Again,
}

impl Admission {
    /// The paper's choice: one leaf in ten.
    pub const LAZY: Admission = Admission::Chance(0.1);
    /// Every leaf.
    pub const EAGER: Admission = Admission::Chance(1.0);
}

impl fmt::Display for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Admission::Chance(chance) => chance.fmt(f),
            Admission::Again => f.write_str("again"),
        }
    }
}

impl FromStr for Admission {
    type Err = UnknownAdmission;

    fn from_str(text: &str) -> Result<Self, UnknownAdmission> {
        match text.trim().to_ascii_lowercase().as_str() {
            "again" => Ok(Admission::Again),
            "lazy" => Ok(Admission::LAZY),
            "eager" => Ok(Admission::EAGER),
            other => {
                let chance = other.parse().ok().filter(|chance| (0.0..=1.0).contains(chance));
                chance.map(Admission::Chance).ok_or_else(|| UnknownAdmission(text.to_owned()))
            }
        }
    }
}

/// A text that names no admission policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{0}\" says nothing of which leaves are kept: take again, lazy (0.1), eager (1), or a probability \
     from 0 to 1"
)]
pub struct UnknownAdmission(pub String);

/// Leaves that were missed recently.
///
/// A table of as many words as the cache has frames, or somewhat more. Each holds some bits of an address
/// and the number of the miss at which that address was last seen there. Addresses that share a word drive
/// each other out, and two may be taken for one another: both only change how often the cache admits a
/// leaf.
#[derive(Debug)]
pub(crate) struct Ghosts {
    words: Box<[AtomicU64]>,
    misses: AtomicU64,
    window: u32,
}

impl Ghosts {
    /// Makes a table that remembers as many misses as there are `frames`.
    pub(crate) fn new(frames: usize) -> Self {
        let words = (0..frames.next_power_of_two()).map(|_| AtomicU64::new(0)).collect();
        Ghosts {
            words,
            misses: AtomicU64::new(0),
            window: u32::try_from(frames).unwrap_or(u32::MAX),
        }
    }

    /// Notes that the leaf at `addr` is missed; returns whether the table remembers an earlier miss of it.
    pub(crate) fn note(&self, addr: u64) -> bool {
        let hash = addr.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let word = &self.words[(hash >> 32) as usize & (self.words.len() - 1)];
        let now = self.misses.fetch_add(1, Ordering::Relaxed) as u32;
        let before = word.load(Ordering::Relaxed);
        let tag = hash as u32 | 1;
        word.store(u64::from(tag) << 32 | u64::from(now), Ordering::Relaxed);
        (before >> 32) as u32 == tag && now.wrapping_sub(before as u32) <= self.window
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn admissions_are_read_and_nonsense_is_refused() {
        let read = |text: &str| text.parse::<Admission>();
        assert_eq!(read("lazy"), Ok(Admission::Chance(0.1)));
        assert_eq!(read("Eager"), Ok(Admission::Chance(1.0)));
        for text in ["again", "0.25", "1", "0"] {
            assert_eq!(read(text).map(|it| it.to_string()), Ok(text.to_owned()));
        }
        for text in ["2", "-0.1", "NaN", "", "0.1,1", "often"] {
            let error = read(text).map_err(|error| error.to_string());
            assert!(
                error.as_ref().is_err_and(|it| it.contains("again, lazy (0.1), eager (1)")),
                "{error:?}"
            );
        }
    }

    fn leaf(number: u64) -> u64 {
        number * 1024
    }

    #[test]
    fn what_is_missed_again_soon_is_known_again() {
        let ghosts = Ghosts::new(100);
        assert!(!ghosts.note(leaf(1)));
        assert!(ghosts.note(leaf(1)) && ghosts.note(leaf(1)));
        for other in 2..30 {
            assert!(!ghosts.note(leaf(other)), "{other}");
        }
        assert!(ghosts.note(leaf(1)));
        // Too many misses ago, even where nothing else has come to its word.
        ghosts.misses.fetch_add(200, Ordering::Relaxed);
        assert!(!ghosts.note(leaf(1)));
        assert!(ghosts.note(leaf(1)));
    }
}
