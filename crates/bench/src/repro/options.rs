//! Options: the scale, the seed and the settings of an experiment.

use std::fmt;
use std::str::FromStr;

use farleaf_index::Settings;
use farleaf_index::suggest::nearest;

use super::{Experiment, error::ReproError};

/// Options of an experiment.
#[derive(Clone, Debug, PartialEq)]
pub struct ReproOptions {
    /// Share of the paper's keys, cache and operations: above 0, at most 1.
    pub scale: f64,
    /// Seed of all randomness.
    pub seed: u64,
    /// Settings of the engine, in place of the paper's and of the defaults. The experiment itself chooses
    /// those that it compares.
    pub settings: Settings,
}

impl Default for ReproOptions {
    fn default() -> Self {
        ReproOptions { scale: 1.0, seed: 1, settings: Settings::default() }
    }
}

impl ReproOptions {
    /// `size` at the scale.
    pub(super) fn scaled(&self, size: u64) -> u64 {
        (size as f64 * self.scale) as u64
    }

    /// # Errors
    /// `Scale`, `TooSmall`.
    pub(super) fn check_scale(&self, least: f64, what: &str) -> Result<(), ReproError> {
        let scale = self.scale;
        if !(scale > 0.0 && scale <= 1.0) {
            return Err(ReproError::Scale { read: scale });
        }
        if scale < least {
            return Err(ReproError::TooSmall { scale, what: what.to_owned(), least });
        }
        Ok(())
    }
}

/// A scale as people give it. Reads and prints `small`, `usual`, `full`, or a share of the paper's sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Scale {
    /// The experiment's small scale, for a quick look.
    Small,
    /// The experiment's default.
    #[default]
    Usual,
    /// The paper's own sizes.
    Full,
    /// That share of the paper's sizes.
    Share(f64),
}

impl Scale {
    /// The words that are read.
    pub const WORDS: [&str; 3] = ["small", "usual", "full"];

    /// The share that it stands for in that experiment. Nothing checks it before the experiment runs.
    pub fn of(self, experiment: Experiment) -> f64 {
        match self {
            Scale::Small => experiment.small_scale(),
            Scale::Usual => experiment.usual_scale(),
            Scale::Full => 1.0,
            Scale::Share(share) => share,
        }
    }
}

impl fmt::Display for Scale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scale::Small => f.write_str("small"),
            Scale::Usual => f.write_str("usual"),
            Scale::Full => f.write_str("full"),
            Scale::Share(share) => write!(f, "{share}"),
        }
    }
}

impl FromStr for Scale {
    type Err = ReproError;

    fn from_str(text: &str) -> Result<Self, ReproError> {
        let lower = text.trim().to_ascii_lowercase();
        match lower.as_str() {
            "small" => Ok(Scale::Small),
            "usual" => Ok(Scale::Usual),
            "full" => Ok(Scale::Full),
            _ => match lower.parse::<f64>() {
                Ok(share) if share > 0.0 && share <= 1.0 => Ok(Scale::Share(share)),
                Ok(read) => Err(ReproError::Scale { read }),
                Err(_) => Err(ReproError::ScaleWord {
                    read: text.to_owned(),
                    suggestion: nearest(&lower, Scale::WORDS).map(str::to_owned),
                }),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn scales_are_words_or_shares() {
        for text in ["small", "usual", "full", "0.05", "1"] {
            assert_eq!(text.parse::<Scale>().unwrap().to_string(), text);
        }
        let told = |text: &str| text.parse::<Scale>().unwrap_err().to_string();
        assert!(told("smal").contains("did you mean \"small\"?"), "{}", told("smal"));
        assert!(told("").contains("small, usual, full, or a share"), "{}", told(""));
        for text in ["0", "-1", "1.5", "nan"] {
            assert!(told(text).contains("is invalid"), "{text}");
        }
    }
}
