//! Expiry: the moment from which on a record counts as absent.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The moment at which a record is to expire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Expiry {
    /// It does not expire.
    #[default]
    Never,
    /// When the record before it would have; it does not expire if there was none.
    Keep,
    /// This time after the operation, by this process's clock. Rounded up to milliseconds.
    In(Duration),
    /// At this time; in the past, the record is absent at once. Rounded up to milliseconds.
    At(SystemTime),
}

impl Expiry {
    /// The moment in milliseconds since 1970, if the record is written at `now_ms` in place of one that expires at
    /// `held_ms`.
    pub fn at_ms(self, now_ms: u64, held_ms: Option<u64>) -> Option<u64> {
        match self {
            Expiry::Never => None,
            Expiry::Keep => held_ms,
            Expiry::In(time) => Some(now_ms.saturating_add(millis(time))),
            Expiry::At(time) => Some(time.duration_since(UNIX_EPOCH).map_or(0, millis)),
        }
    }
}

/// Milliseconds, rounded up.
fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_counted_in_milliseconds_since_1970() {
        let at = |expiry: Expiry| expiry.at_ms(1_000, Some(7));
        assert_eq!(at(Expiry::Never), None);
        assert_eq!(at(Expiry::Keep), Some(7));
        assert_eq!(at(Expiry::In(Duration::from_micros(1))), Some(1_001));
        assert_eq!(at(Expiry::In(Duration::MAX)), Some(u64::MAX));
        assert_eq!(at(Expiry::At(UNIX_EPOCH + Duration::from_secs(2))), Some(2_000));
        assert_eq!(at(Expiry::At(UNIX_EPOCH - Duration::from_secs(2))), Some(0));
        assert_eq!(Expiry::Keep.at_ms(1_000, None), None);
    }
}
