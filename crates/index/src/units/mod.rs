//! Units: read counts, sizes, shares, rates and times exactly, and print them back.
//!
//! - Counts: `1000`, `1_000`, `100K`, `2.5M`, `1G` (decimal).
//! - Sizes: `4096`, `64KiB`, `256MiB`, `1GB`; `KiB` is 1024 bytes, `KB` is 1000. `64K` is refused,
//!   because people mean either by it.
//! - Shares: `8%`, `0.08`.
//! - Rates: `250K`, `1.5M/s`, per second.
//! - Times: `250ns`, `10us`, `1.5s`, `2m`, `1h`.
//!
//! Numbers are decimal fractions read without floating point, so that `2.3M` is 2,300,000 and
//! `1.0005K` is refused as not whole. Every type reads by [`std::str::FromStr`] and prints by
//! [`std::fmt::Display`]:
//!
//! - INV-UNIT-1: what a type prints, it reads back as the same value.

mod human;
mod parse;

use std::{fmt, str::FromStr, time::Duration};

pub use human::{human_bytes, human_count, human_rate, human_us, us_from_ns};
use parse::{Decimal, split};
pub use parse::{UnitError, UnitFault};

const COUNT_UNITS: &[(&str, u64)] =
    &[("T", 1_000_000_000_000), ("G", 1_000_000_000), ("M", 1_000_000), ("K", 1_000), ("", 1)];
const SIZE_UNITS: &[(&str, u64)] = &[
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1_000),
    ("B", 1),
    ("", 1),
];
const TIME_UNITS: &[(&str, u64)] = &[
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

const COUNT_FORMS: &str = "1000, 1_000, 100K, 2.5M, 1G";
const SIZE_FORMS: &str = "4096, 64KiB, 256MiB, 1GB";
const SHARE_FORMS: &str = "8%, 0.08";
const SIZE_OR_SHARE_FORMS: &str = "4096, 64KiB, 256MiB, 1GB, 8%";
const RATE_FORMS: &str = "1000, 250K, 1.5M/s";
const TIME_FORMS: &str = "250ns, 10us, 5ms, 1.5s, 2m, 1h";

/// A count. Reads `1M`, `100K`, `2.5M`, `1_000`; K, M, G, T are decimal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Count(pub u64);

impl FromStr for Count {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        read("a count", COUNT_FORMS, text, |number, unit| {
            number.whole(multiplier(COUNT_UNITS, unit)?).map(Count)
        })
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        print_whole(f, self.0, COUNT_UNITS)
    }
}

/// A size in bytes. Reads `4096`, `64KiB` (1024 each), `1GB` (decimal).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Size(pub u64);

impl Size {
    fn of_number(number: Decimal, unit: &str) -> Result<Self, UnitFault> {
        if matches!(unit, "K" | "k" | "M" | "m" | "G" | "g" | "T" | "t") {
            return Err(UnitFault::Ambiguous(unit.to_ascii_uppercase()));
        }
        number.whole(multiplier(SIZE_UNITS, unit)?).map(Size)
    }
}

impl FromStr for Size {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        read("a size", SIZE_FORMS, text, Size::of_number)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        print_whole(f, self.0, SIZE_UNITS)
    }
}

/// A part of a whole, from nothing (0 %) to all of it (100 %). Reads `8%` and `0.08`.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Share {
    percent: f64,
}

impl Share {
    /// The share that is `percent` hundredths of the whole.
    ///
    /// # Errors
    /// [`UnitFault::OutOfRange`] if `percent` is not in 0 to 100.
    pub fn from_percent(percent: f64) -> Result<Self, UnitError> {
        Self::checked(percent)
            .map_err(|fault| UnitError::new("a share", &percent.to_string(), fault, SHARE_FORMS))
    }

    /// The share as a fraction, 0 to 1.
    pub fn fraction(self) -> f64 {
        self.percent / 100.0
    }

    /// This share of `total`, rounded to the nearest whole.
    pub fn of(self, total: u64) -> u64 {
        ((total as f64 * self.fraction()).round() as u64).min(total)
    }

    fn checked(percent: f64) -> Result<Self, UnitFault> {
        if (0.0..=100.0).contains(&percent) {
            Ok(Self { percent })
        } else {
            Err(UnitFault::OutOfRange("0 to 100 %"))
        }
    }

    fn of_number(number: Decimal, unit: &str) -> Result<Self, UnitFault> {
        match unit {
            "%" => Self::checked(number.as_f64(0)),
            "" => Self::checked(number.as_f64(2)),
            _ => Err(UnitFault::UnknownUnit(unit.to_owned())),
        }
    }
}

impl FromStr for Share {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        read("a share", SHARE_FORMS, text, Share::of_number)
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.percent)
    }
}

/// A size in bytes, or a share of a total that is known later (a cache of `8%` of the data).
///
/// A share needs its `%` here: a bare `0.08` is refused as a size that is not whole.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SizeOrShare {
    /// So many bytes.
    Size(Size),
    /// So much of the total.
    Share(Share),
}

impl SizeOrShare {
    /// The bytes meant, where the whole is `total_bytes`.
    pub fn bytes_of(self, total_bytes: u64) -> u64 {
        match self {
            Self::Size(size) => size.0,
            Self::Share(share) => share.of(total_bytes),
        }
    }
}

impl FromStr for SizeOrShare {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        read("a size or share", SIZE_OR_SHARE_FORMS, text, |number, unit| {
            if unit.ends_with('%') {
                Share::of_number(number, unit).map(Self::Share)
            } else {
                Size::of_number(number, unit).map(Self::Size)
            }
        })
    }
}

impl fmt::Display for SizeOrShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Size(size) => size.fmt(f),
            Self::Share(share) => share.fmt(f),
        }
    }
}

/// A rate per second, above 0. Reads `250K`, `1.5M/s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rate {
    per_second: u64,
}

impl Rate {
    /// A rate of `per_second`; `None` if that is none at all.
    pub fn new(per_second: u64) -> Option<Self> {
        (per_second > 0).then_some(Self { per_second })
    }

    /// The number per second, at least 1.
    pub fn per_second(self) -> u64 {
        self.per_second
    }
}

impl FromStr for Rate {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        read("a rate", RATE_FORMS, text, |number, unit| {
            let unit = unit.strip_suffix("/s").unwrap_or(unit).trim_end();
            let rate = number.whole(multiplier(COUNT_UNITS, unit)?)?;
            Self::new(rate).ok_or(UnitFault::OutOfRange("at least 1 per second"))
        })
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        print_whole(f, self.per_second, COUNT_UNITS)?;
        f.write_str("/s")
    }
}

/// A length of time in whole nanoseconds. Reads `250ns`, `10us`, `1.5s`; the unit is required.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TimeSpan {
    /// Nanoseconds; up to 584 years.
    pub nanos: u64,
}

impl TimeSpan {
    /// The same time as the standard library's type.
    pub fn duration(self) -> Duration {
        Duration::from_nanos(self.nanos)
    }
}

impl FromStr for TimeSpan {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        read("a time", TIME_FORMS, text, |number, unit| {
            if unit.is_empty() {
                return Err(UnitFault::MissingUnit);
            }
            number.whole(multiplier(TIME_UNITS, unit)?).map(|nanos| Self { nanos })
        })
    }
}

impl fmt::Display for TimeSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nanos == 0 {
            return f.write_str("0s");
        }
        print_whole(f, self.nanos, TIME_UNITS)
    }
}

/// Reads a quantity: what `value` makes of its number and its unit.
fn read<T>(
    expected: &'static str,
    accepted: &'static str,
    text: &str,
    value: impl FnOnce(Decimal, &str) -> Result<T, UnitFault>,
) -> Result<T, UnitError> {
    let (number, unit) = split(text);
    Decimal::read(number)
        .and_then(|number| value(number, unit))
        .map_err(|fault| UnitError::new(expected, text, fault, accepted))
}

/// The factor of `unit` in `units`; upper and lower case are the same.
fn multiplier(units: &[(&str, u64)], unit: &str) -> Result<u64, UnitFault> {
    units
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case(unit))
        .map(|(_, multiplier)| *multiplier)
        .ok_or_else(|| UnitFault::UnknownUnit(unit.to_owned()))
}

/// Prints `value` in the unit of `units` that leaves the smallest whole number (INV-UNIT-1).
fn print_whole(f: &mut fmt::Formatter<'_>, value: u64, units: &[(&str, u64)]) -> fmt::Result {
    let (name, multiplier) = units
        .iter()
        .filter(|(_, multiplier)| value > 0 && value.is_multiple_of(*multiplier))
        .max_by_key(|(name, multiplier)| (*multiplier, std::cmp::Reverse(name.len())))
        .copied()
        .unwrap_or(("", 1));
    write!(f, "{}{name}", value / multiplier)
}

#[cfg(test)]
mod tests;
