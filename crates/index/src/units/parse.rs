//! Unit parser: reads the number and the unit of a quantity, and explains each fault.

use thiserror::Error;

/// A quantity that could not be read: what was read, what is wrong with it, what is accepted.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("\"{read}\" is not {expected}: {fault} (accepted: {accepted})")]
pub struct UnitError {
    /// The text as it was given.
    pub read: String,
    /// The expected quantity, with its article: `a count`, `a size`.
    pub expected: &'static str,
    /// Its fault.
    pub fault: UnitFault,
    /// Examples of what is accepted.
    pub accepted: &'static str,
}

impl UnitError {
    pub(super) fn new(
        expected: &'static str,
        read: &str,
        fault: UnitFault,
        accepted: &'static str,
    ) -> Self {
        Self { read: read.to_owned(), expected, fault, accepted }
    }
}

/// A fault of a quantity.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum UnitFault {
    /// It does not begin with an unsigned decimal number.
    #[error("it does not begin with a decimal number")]
    NoNumber,
    /// The unit is none of those accepted.
    #[error("the unit \"{0}\" is not known")]
    UnknownUnit(String),
    /// The unit is left out where there is no natural one.
    #[error("a unit is needed")]
    MissingUnit,
    /// `K`, `M`, `G` or `T` of bytes, which some take for 1000 and some for 1024.
    #[error("say {0}iB (1024) or {0}B (1000)")]
    Ambiguous(String),
    /// A fraction is left over, where only whole numbers make sense.
    #[error("it does not come to a whole number")]
    NotWhole,
    /// It does not fit in 64 bits.
    #[error("it is too large")]
    TooLarge,
    /// It lies outside the range named.
    #[error("it must be {0}")]
    OutOfRange(&'static str),
}

/// Splits a quantity into its number and its unit; either may be empty.
pub(super) fn split(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text
        .find(|letter: char| !letter.is_ascii_digit() && letter != '.' && letter != '_')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    (number, unit.trim_start())
}

/// A number as it was written: `digits / 10^scale`, exactly.
#[derive(Clone, Copy)]
pub(super) struct Decimal {
    digits: u128,
    scale: u32,
}

impl Decimal {
    /// Reads digits with at most one point, and underscores between digits.
    pub(super) fn read(text: &str) -> Result<Self, UnitFault> {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        let pointed = text.contains('.');
        if !is_digits(whole) || (pointed && !is_digits(fraction)) {
            return Err(UnitFault::NoNumber);
        }
        let fraction = fraction.trim_end_matches(['0', '_']);
        let mut number = Self { digits: 0, scale: 0 };
        for (part, scaled) in [(whole, 0), (fraction, 1)] {
            for digit in part.bytes().filter(u8::is_ascii_digit) {
                number.digits = number
                    .digits
                    .checked_mul(10)
                    .and_then(|digits| digits.checked_add(u128::from(digit - b'0')))
                    .ok_or(UnitFault::TooLarge)?;
                number.scale += scaled;
            }
        }
        Ok(number)
    }

    /// This number times `multiplier`, if that is a whole number of 64 bits.
    pub(super) fn whole(self, multiplier: u64) -> Result<u64, UnitFault> {
        let product = self.digits.checked_mul(u128::from(multiplier)).ok_or(UnitFault::TooLarge)?;
        // 10^39 and beyond exceeds every `digits`, of which there are at most 39.
        let divisor = 10u128.checked_pow(self.scale).ok_or(UnitFault::NotWhole)?;
        if product % divisor != 0 {
            return Err(UnitFault::NotWhole);
        }
        u64::try_from(product / divisor).map_err(|_| UnitFault::TooLarge)
    }

    /// The floating-point number nearest to this one times `10^power`.
    pub(super) fn as_f64(self, power: i64) -> f64 {
        // Reading text rounds once, whatever the number of digits; arithmetic on `f64` does not.
        let text = format!("{}e{}", self.digits, power - i64::from(self.scale));
        text.parse().unwrap_or(f64::INFINITY)
    }
}

/// Tells whether `text` is digits, with single underscores only between them.
fn is_digits(text: &str) -> bool {
    text.split('_').all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))
}
