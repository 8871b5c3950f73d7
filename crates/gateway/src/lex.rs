//! Bounds of `ZRANGE ... BYLEX` and its like: `[key`, `(key`, `-` and `+`.

use std::ops::Bound;

/// The text of redis-server for bounds that are none.
pub(crate) const NO_BOUND: &str = "ERR min or max not valid string range item";

/// One end of a range of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LexBound<'a> {
    /// In front of all keys.
    Least,
    /// Behind all keys.
    Most,
    /// This key, itself included or not.
    At(&'a [u8], bool),
}

impl<'a> LexBound<'a> {
    /// Reads a bound; `None` if it is none.
    pub(crate) fn parse(text: &'a [u8]) -> Option<Self> {
        match text {
            b"-" => Some(LexBound::Least),
            b"+" => Some(LexBound::Most),
            [b'[', key @ ..] => Some(LexBound::At(key, true)),
            [b'(', key @ ..] => Some(LexBound::At(key, false)),
            _ => None,
        }
    }
}

/// Two ends of a range of keys.
pub(crate) type Ends<K> = (Bound<K>, Bound<K>);

/// The range from `min` to `max`; `None` if it is empty whatever the table holds, as `+` to `-` is.
pub(crate) fn range<'a>(min: LexBound<'a>, max: LexBound<'a>) -> Option<Ends<&'a [u8]>> {
    let end = |key: &'a [u8], is_included| match is_included {
        true => Bound::Included(key),
        false => Bound::Excluded(key),
    };
    let from = match min {
        LexBound::Least => Bound::Unbounded,
        LexBound::Most => return None,
        LexBound::At(key, is_included) => end(key, is_included),
    };
    let to = match max {
        LexBound::Most => Bound::Unbounded,
        LexBound::Least => return None,
        LexBound::At(key, is_included) => end(key, is_included),
    };
    Some((from, to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_read_as_redis_reads_them() {
        use Bound::{Excluded, Included, Unbounded};
        let of = |min: &'static str, max: &'static str| {
            let (min, max) = (LexBound::parse(min.as_bytes())?, LexBound::parse(max.as_bytes())?);
            range(min, max)
        };
        assert_eq!(of("-", "+"), Some((Unbounded, Unbounded)));
        assert_eq!(of("[a", "(h"), Some((Included(&b"a"[..]), Excluded(&b"h"[..]))));
        assert_eq!(of("(", "[["), Some((Excluded(&b""[..]), Included(&b"["[..]))));
        assert_eq!(of("+", "-"), None);
        assert_eq!(of("+", "+"), None);
        assert_eq!(of("-", "-"), None);
        for text in ["", "a", "--", "-inf", "*"] {
            assert_eq!(LexBound::parse(text.as_bytes()), None, "{text}");
        }
    }
}
