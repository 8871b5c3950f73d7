//! Workload: the mix of operations, their items, and the length of scans.

use std::{fmt, str::FromStr};

use farleaf_index::suggest::{did_you_mean, nearest};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::distribution::{DistributionError, RequestDistribution, ZIPFIAN_THETA_DEFAULT};

/// A kind of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OpKind {
    /// Reads one value.
    Get,
    /// Replaces the value of an existing item.
    Update,
    /// Adds a new item.
    Insert,
    /// Reads items in key order from one on.
    Scan,
    /// Reads a value, then replaces it: two index operations, timed as one.
    ReadModifyWrite,
    /// Removes an item. Later reads of it find nothing.
    Remove,
    /// Replaces the value of an item, or adds the item.
    Upsert,
}

impl OpKind {
    /// Every kind, in the order of reports.
    pub const ALL: [Self; 7] = [
        Self::Get,
        Self::Update,
        Self::Insert,
        Self::Scan,
        Self::ReadModifyWrite,
        Self::Remove,
        Self::Upsert,
    ];

    /// The name in reports and mixes.
    pub fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Update => "update",
            Self::Insert => "insert",
            Self::Scan => "scan",
            Self::ReadModifyWrite => "read_modify_write",
            Self::Remove => "remove",
            Self::Upsert => "upsert",
        }
    }

    /// Its place in [`OpKind::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }

    fn from_name(name: &str) -> Option<Self> {
        match name {
            "read" => Some(Self::Get),
            "rmw" | "read-modify-write" => Some(Self::ReadModifyWrite),
            _ => Self::ALL.into_iter().find(|kind| kind.name() == name),
        }
    }
}

/// Shares of the kinds of operations.
///
/// Reads `get=95,update=5`; the numbers need not come to 100. Prints the same, in per cent.
#[derive(Clone, Debug, PartialEq)]
pub struct Mix {
    /// Shares by [`OpKind::index`]; they add up to 1.
    shares: [f64; OpKind::ALL.len()],
}

impl Mix {
    /// A mix by weights, of which those not named are 0; equal kinds add up.
    ///
    /// # Errors
    /// [`WorkloadError::Weight`] for a weight that is negative or not finite,
    /// [`WorkloadError::EmptyMix`] if they come to nothing.
    pub fn new(weights: &[(OpKind, f64)]) -> Result<Self, WorkloadError> {
        let mut shares = [0.0; OpKind::ALL.len()];
        for (kind, weight) in weights {
            if !(weight.is_finite() && *weight >= 0.0) {
                return Err(WorkloadError::Weight { kind: kind.name(), read: weight.to_string() });
            }
            shares[kind.index()] += weight;
        }
        let total: f64 = shares.iter().sum();
        if total == 0.0 {
            return Err(WorkloadError::EmptyMix);
        }
        if !total.is_finite() {
            return Err(WorkloadError::Weight { kind: "total", read: total.to_string() });
        }
        Ok(Self { shares: shares.map(|share| share / total) })
    }

    /// The share of `kind`, 0 to 1.
    pub fn share(&self, kind: OpKind) -> f64 {
        self.shares[kind.index()]
    }

    /// The kind at `point` of the whole, 0 up to 1.
    pub(crate) fn kind_at(&self, point: f64) -> OpKind {
        let mut rest = point;
        let mut last = OpKind::Get;
        for kind in OpKind::ALL {
            let share = self.share(kind);
            if share > 0.0 {
                if rest < share {
                    return kind;
                }
                rest -= share;
                last = kind;
            }
        }
        // Rounding may leave a little at the very end; it goes to a kind that is in the mix.
        last
    }

    /// A mix of constants that are known to be right.
    fn fixed(weights: &[(OpKind, f64)]) -> Self {
        Self::new(weights).expect("the weights are constants above 0")
    }
}

impl FromStr for Mix {
    type Err = WorkloadError;

    fn from_str(text: &str) -> Result<Self, WorkloadError> {
        let mut weights = Vec::new();
        for part in text.split(',') {
            let (name, number) = part
                .split_once('=')
                .ok_or_else(|| WorkloadError::MixPart { read: part.to_owned() })?;
            let name = name.trim().to_ascii_lowercase();
            let kind = OpKind::from_name(&name).ok_or_else(|| WorkloadError::UnknownKind {
                suggestion: nearest(&name, OpKind::ALL.map(OpKind::name)).map(str::to_owned),
                read: name,
            })?;
            let number = number.trim();
            let weight = number.strip_suffix('%').unwrap_or(number).trim_end();
            let weight: f64 = weight.parse().map_err(|_| WorkloadError::Weight {
                kind: kind.name(),
                read: number.to_owned(),
            })?;
            weights.push((kind, weight));
        }
        Self::new(&weights)
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds = OpKind::ALL.into_iter().filter(|kind| self.share(*kind) > 0.0);
        for (index, kind) in kinds.enumerate() {
            let comma = if index > 0 { "," } else { "" };
            // Shares are quotients; a ten-millionth of a per cent hides their rounding.
            let percent = (self.share(kind) * 1e9).round() / 1e7;
            write!(f, "{comma}{}={percent}", kind.name())?;
        }
        Ok(())
    }
}

/// Length of scans, in items. Reads `100`, `1-100` (uniform), `zipfian:1-100`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanLength {
    /// Always the same length, at least 1.
    Fixed(u32),
    /// Each length from `min` to `max` as often.
    Uniform {
        /// The shortest, at least 1.
        min: u32,
        /// The longest.
        max: u32,
    },
    /// Short scans more than long ones, with YCSB's skew.
    Zipfian {
        /// The shortest, at least 1.
        min: u32,
        /// The longest.
        max: u32,
    },
}

impl ScanLength {
    /// The shortest and the longest.
    pub fn range(self) -> (u32, u32) {
        match self {
            Self::Fixed(length) => (length, length),
            Self::Uniform { min, max } | Self::Zipfian { min, max } => (min, max),
        }
    }
}

impl FromStr for ScanLength {
    type Err = WorkloadError;

    fn from_str(text: &str) -> Result<Self, WorkloadError> {
        let malformed = || WorkloadError::ScanLength { read: text.to_owned() };
        let number = |text: &str| text.trim().parse::<u32>().map_err(|_| malformed());
        let (zipfian, lengths) = match text.trim().strip_prefix("zipfian:") {
            Some(lengths) => (true, lengths),
            None => (false, text.trim()),
        };
        let length = match (lengths.split_once('-'), zipfian) {
            (Some((min, max)), false) => Self::Uniform { min: number(min)?, max: number(max)? },
            (Some((min, max)), true) => Self::Zipfian { min: number(min)?, max: number(max)? },
            (None, false) => Self::Fixed(number(lengths)?),
            (None, true) => return Err(malformed()),
        };
        let (min, max) = length.range();
        if min == 0 || min > max { Err(malformed()) } else { Ok(length) }
    }
}

impl fmt::Display for ScanLength {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(length) => write!(f, "{length}"),
            Self::Uniform { min, max } => write!(f, "{min}-{max}"),
            Self::Zipfian { min, max } => write!(f, "zipfian:{min}-{max}"),
        }
    }
}

/// A workload: its mix, the distribution of its items, and the length of its scans.
///
/// Reads one of [`Workload::NAMES`], YCSB's letters alone (`a`) or with `workload` before them, or
/// a mix (`get=50,insert=50`), which is zipfian with scans of 100.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// The name, for people.
    pub name: String,
    /// Shares of the operations.
    pub mix: Mix,
    /// Distribution of the items.
    pub request: RequestDistribution,
    /// Length of scans.
    pub scan_length: ScanLength,
}

impl Workload {
    /// The names of the workloads that are built in: YCSB's six (Cooper et al., SoCC 2010), and the
    /// five of DEX (VLDB 2024), whose scans are of 100 items.
    pub const NAMES: [&str; 11] = [
        "ycsb-a",
        "ycsb-b",
        "ycsb-c",
        "ycsb-d",
        "ycsb-e",
        "ycsb-f",
        "read-only",
        "read-intensive",
        "write-intensive",
        "insert-intensive",
        "scan-intensive",
    ];

    /// The built-in workload called `name`.
    ///
    /// # Errors
    /// [`WorkloadError::UnknownName`], with the nearest name if there is one.
    pub fn named(name: &str) -> Result<Self, WorkloadError> {
        use OpKind::{Get, Insert, ReadModifyWrite, Scan, Update};

        let lower = name.trim().to_ascii_lowercase();
        let letter = lower.strip_prefix("workload").or(lower.strip_prefix("ycsb-"));
        let letter = letter.or(lower.strip_prefix("ycsb")).unwrap_or(&lower);
        let full = if letter.len() == 1 { format!("ycsb-{letter}") } else { lower };

        let zipfian = RequestDistribution::Zipfian { theta: ZIPFIAN_THETA_DEFAULT };
        let latest = RequestDistribution::Latest { theta: ZIPFIAN_THETA_DEFAULT };
        let short_scans = ScanLength::Uniform { min: 1, max: 100 };
        let scans_of_100 = ScanLength::Fixed(100);
        let (weights, request, scan_length) = match full.as_str() {
            "ycsb-a" => (vec![(Get, 50.0), (Update, 50.0)], zipfian, short_scans),
            "ycsb-b" => (vec![(Get, 95.0), (Update, 5.0)], zipfian, short_scans),
            "ycsb-c" => (vec![(Get, 100.0)], zipfian, short_scans),
            "ycsb-d" => (vec![(Get, 95.0), (Insert, 5.0)], latest, short_scans),
            "ycsb-e" => (vec![(Scan, 95.0), (Insert, 5.0)], zipfian, short_scans),
            "ycsb-f" => (vec![(Get, 50.0), (ReadModifyWrite, 50.0)], zipfian, short_scans),
            "read-only" => (vec![(Get, 100.0)], zipfian, scans_of_100),
            "read-intensive" => (vec![(Get, 95.0), (Update, 5.0)], zipfian, scans_of_100),
            "write-intensive" => (vec![(Get, 50.0), (Update, 50.0)], zipfian, scans_of_100),
            "insert-intensive" => (vec![(Get, 50.0), (Insert, 50.0)], zipfian, scans_of_100),
            "scan-intensive" => (vec![(Scan, 95.0), (Insert, 5.0)], zipfian, scans_of_100),
            _ => {
                return Err(WorkloadError::UnknownName {
                    read: name.to_owned(),
                    suggestion: nearest(&full, Self::NAMES).map(str::to_owned),
                });
            }
        };
        Ok(Self { name: full, mix: Mix::fixed(&weights), request, scan_length })
    }
}

impl FromStr for Workload {
    type Err = WorkloadError;

    fn from_str(text: &str) -> Result<Self, WorkloadError> {
        if !text.contains('=') {
            return Self::named(text);
        }
        let mix: Mix = text.parse()?;
        Ok(Self {
            name: mix.to_string(),
            mix,
            request: RequestDistribution::Zipfian { theta: ZIPFIAN_THETA_DEFAULT },
            scan_length: ScanLength::Fixed(100),
        })
    }
}

/// A workload that makes no sense.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum WorkloadError {
    /// No workload has that name.
    #[error("no workload is named \"{read}\"{}; known: {}, or a mix as in get=95,update=5",
        did_you_mean(suggestion.as_deref()), Workload::NAMES.join(", "))]
    UnknownName {
        /// The name as it was given.
        read: String,
        /// The known name that was probably meant.
        suggestion: Option<String>,
    },
    /// No kind of operation has that name.
    #[error("no operation is named \"{read}\"{}; known: {}",
        did_you_mean(suggestion.as_deref()), OpKind::ALL.map(OpKind::name).join(", "))]
    UnknownKind {
        /// The name as it was given.
        read: String,
        /// The known name that was probably meant.
        suggestion: Option<String>,
    },
    /// A part of a mix is not a name and a number.
    #[error("\"{read}\" is not a part of a mix (accepted: get=95,update=5)")]
    MixPart {
        /// The part as it was given.
        read: String,
    },
    /// A weight is not a finite number of at least 0.
    #[error("\"{read}\" is not a weight for {kind} (accepted: 0, 5, 0.05, 5%)")]
    Weight {
        /// Name of the operation, or `total`.
        kind: &'static str,
        /// The weight as it was given.
        read: String,
    },
    /// All weights are 0.
    #[error("a mix needs at least one operation with a weight above 0")]
    EmptyMix,
    /// Not a scan length.
    #[error("\"{read}\" is not a scan length, at least 1 (accepted: 100, 1-100, zipfian:1-100)")]
    ScanLength {
        /// The text as it was given.
        read: String,
    },
    /// The distribution is wrong.
    #[error(transparent)]
    Distribution(#[from] DistributionError),
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// The figures of the papers, written out once more.
    #[test]
    fn built_in_workloads_are_the_papers() {
        for (name, mix, request, scan_length) in [
            ("ycsb-a", "get=50,update=50", "zipfian:0.99", "1-100"),
            ("ycsb-b", "get=95,update=5", "zipfian:0.99", "1-100"),
            ("ycsb-c", "get=100", "zipfian:0.99", "1-100"),
            ("ycsb-d", "get=95,insert=5", "latest:0.99", "1-100"),
            ("ycsb-e", "insert=5,scan=95", "zipfian:0.99", "1-100"),
            ("ycsb-f", "get=50,read_modify_write=50", "zipfian:0.99", "1-100"),
            ("read-only", "get=100", "zipfian:0.99", "100"),
            ("read-intensive", "get=95,update=5", "zipfian:0.99", "100"),
            ("write-intensive", "get=50,update=50", "zipfian:0.99", "100"),
            ("insert-intensive", "get=50,insert=50", "zipfian:0.99", "100"),
            ("scan-intensive", "insert=5,scan=95", "zipfian:0.99", "100"),
        ] {
            let workload: Workload = name.parse().unwrap();
            assert_eq!(workload.name, name);
            assert_eq!(workload.mix.to_string(), mix);
            assert_eq!(workload.request.to_string(), request);
            assert_eq!(workload.scan_length.to_string(), scan_length);
        }
        for name in Workload::NAMES {
            assert_eq!(Workload::named(name).unwrap().name, name);
        }
    }

    #[test]
    fn ycsb_goes_by_many_names() {
        for name in ["a", "A", "ycsb-a", "YCSB-A", "ycsba", "workloada", " a "] {
            assert_eq!(Workload::named(name).unwrap().name, "ycsb-a", "{name}");
        }
        for name in ["g", "ycsb-", "workload", "", "ycsb-ab"] {
            assert!(Workload::named(name).is_err(), "{name}");
        }
    }

    #[test]
    fn wrong_names_are_explained() {
        let message = "red-only".parse::<Workload>().unwrap_err().to_string();
        assert!(message.starts_with(
            "no workload is named \"red-only\"; did you mean \"read-only\"?; known: ycsb-a, "
        ));
        let message = "xyz".parse::<Workload>().unwrap_err().to_string();
        assert!(message.starts_with("no workload is named \"xyz\"; known: "));
        let message = "get=1,updte=2".parse::<Workload>().unwrap_err().to_string();
        assert!(message.contains("did you mean \"update\"?"), "{message}");
    }

    #[test]
    fn mixes_are_read_and_normalised() {
        let mix: Mix = "get=1, rmw=2,read=1".parse().unwrap();
        assert_eq!(mix.share(OpKind::Get), 0.5);
        assert_eq!(mix.share(OpKind::ReadModifyWrite), 0.5);
        assert_eq!("get=95%,remove=5%".parse::<Mix>().unwrap().share(OpKind::Remove), 0.05);
        let thirds: Mix = "get=1,scan=1,upsert=1".parse().unwrap();
        assert_eq!(thirds.to_string(), "get=33.3333333,scan=33.3333333,upsert=33.3333333");
        assert_eq!("get=0".parse::<Mix>(), Err(WorkloadError::EmptyMix));
        assert!(matches!("get".parse::<Mix>(), Err(WorkloadError::MixPart { .. })));
        for weight in ["-1", "nan", "inf", "x", ""] {
            let mix = format!("get={weight}").parse::<Mix>();
            assert!(matches!(mix, Err(WorkloadError::Weight { .. })), "{weight}");
        }
        let huge = [(OpKind::Get, f64::MAX), (OpKind::Scan, f64::MAX)];
        assert!(matches!(Mix::new(&huge), Err(WorkloadError::Weight { kind: "total", .. })));
    }

    #[test]
    fn kinds_that_are_not_in_the_mix_never_come() {
        let mix: Mix = "update=1,insert=1,scan=1".parse().unwrap();
        assert_eq!(mix.kind_at(0.0), OpKind::Update);
        assert_eq!(mix.kind_at(0.34), OpKind::Insert);
        assert_eq!(mix.kind_at(1.0), OpKind::Scan);
    }

    #[test]
    fn scan_lengths_are_read() {
        for text in ["100", "1-100", "zipfian:2-50"] {
            assert_eq!(text.parse::<ScanLength>().unwrap().to_string(), text);
        }
        for text in ["0", "0-5", "5-4", "zipfian:5", "", "x", "-5", "1-2-3"] {
            assert!(text.parse::<ScanLength>().is_err(), "{text}");
        }
    }

    #[test]
    fn kinds_are_where_their_index_says() {
        for (index, kind) in OpKind::ALL.into_iter().enumerate() {
            assert_eq!(kind.index(), index);
            assert_eq!(OpKind::from_name(kind.name()), Some(kind));
            assert_eq!(serde_json::to_string(&kind).unwrap(), format!("\"{}\"", kind.name()));
        }
    }
}
