//! Range bounds: convert the ends of ranges of keys.

use std::ops::Bound;

use farleaf_index::ScanRange;

use crate::KeyFormat;

/// An end that owns its key.
pub(crate) type End = Bound<Vec<u8>>;

/// The keys between two ends, neither met yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Interval {
    pub(crate) from: End,
    pub(crate) to: End,
}

impl Interval {
    /// The interval of a table with keys of `format` that holds the same keys, with ends that
    /// are possible keys. A bound may be any byte string; an engine takes only keys of its table.
    pub(crate) fn of(from: End, to: End, format: KeyFormat) -> Interval {
        let (least, most) = match format {
            KeyFormat::Fixed(len) => (len, len),
            KeyFormat::Bytes { max } => (0, max),
        };
        // Keys are `least` to `most` bytes long. Below the shortened bound lies what lies below
        // the bound, since a longer key that starts with it is no key; it itself is below.
        // Filled up with zeros, a bound is the first key that is not below it.
        let from = match from {
            Bound::Included(key) | Bound::Excluded(key) if key.len() > most => {
                Bound::Excluded(cut(key, most))
            }
            Bound::Included(key) | Bound::Excluded(key) if key.len() < least => {
                Bound::Included(fill(key, least))
            }
            end => end,
        };
        let to = match to {
            Bound::Included(key) | Bound::Excluded(key) if key.len() > most => {
                Bound::Included(cut(key, most))
            }
            Bound::Included(key) | Bound::Excluded(key) if key.len() < least => {
                Bound::Excluded(fill(key, least))
            }
            end => end,
        };
        Interval { from, to }
    }

    /// The keys that start with `prefix`.
    pub(crate) fn prefix(prefix: Vec<u8>, format: KeyFormat) -> Interval {
        let (from, to) = prefix_ends(prefix);
        Interval::of(from, to, format)
    }

    /// Returns whether no key can lie in it.
    pub(crate) fn is_empty(&self) -> bool {
        match (&self.from, &self.to) {
            (Bound::Unbounded, Bound::Excluded(to)) => to.is_empty(),
            (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
            (Bound::Included(from), Bound::Included(to)) => from > to,
            (Bound::Included(from) | Bound::Excluded(from), Bound::Excluded(to))
            | (Bound::Excluded(from), Bound::Included(to)) => from >= to,
        }
    }

    /// The interval as an engine takes it.
    pub(crate) fn scan(&self, reverse: bool) -> ScanRange<'_> {
        let [from, to] = [&self.from, &self.to].map(|end| end.as_ref().map(Vec::as_slice));
        ScanRange { from, to, reverse }
    }
}

/// The end with its own key.
pub(crate) fn own<K: AsRef<[u8]>>(end: Bound<&K>) -> End {
    end.map(|key| key.as_ref().to_vec())
}

/// The ends of the keys that start with `prefix`.
pub(crate) fn prefix_ends(prefix: Vec<u8>) -> (End, End) {
    let to = after_prefix(&prefix).map_or(Bound::Unbounded, Bound::Excluded);
    (Bound::Included(prefix), to)
}

/// The least byte string above all that start with `prefix`; none if that has no byte but 0xFF.
fn after_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|&byte| byte != 0xFF)?;
    let mut after = prefix[..=last].to_vec();
    after[last] += 1;
    Some(after)
}

fn cut(mut key: Vec<u8>, len: usize) -> Vec<u8> {
    key.truncate(len);
    key
}

fn fill(mut key: Vec<u8>, len: usize) -> Vec<u8> {
    key.resize(len, 0);
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contains(interval: &Interval, key: &[u8]) -> bool {
        interval.scan(false).holds(key)
    }

    /// All byte strings of `least` to `most` bytes out of {0, 1, 0xFF}.
    fn keys(least: usize, most: usize) -> Vec<Vec<u8>> {
        let mut all = vec![Vec::new()];
        let mut last = all.clone();
        for _ in 0..most {
            last = last
                .iter()
                .flat_map(|key| [0, 1, 0xFF].map(|byte| [key.as_slice(), &[byte]].concat()))
                .collect();
            all.extend_from_slice(&last);
        }
        all.retain(|key| key.len() >= least);
        all
    }

    #[test]
    fn any_bound_means_the_same_keys_in_every_format() {
        for (format, least, most) in [
            (KeyFormat::Fixed(2), 2, 2),
            (KeyFormat::Bytes { max: 2 }, 0, 2),
            (KeyFormat::Bytes { max: 0 }, 0, 0),
        ] {
            let ends = keys(0, 3).into_iter().flat_map(|key| {
                [Bound::Included(key.clone()), Bound::Excluded(key), Bound::Unbounded]
            });
            for end in ends {
                let meant = [
                    Interval { from: end.clone(), to: Bound::Unbounded },
                    Interval { from: Bound::Unbounded, to: end },
                ];
                for meant in meant {
                    let made = Interval::of(meant.from.clone(), meant.to.clone(), format);
                    for key in keys(least, most) {
                        assert_eq!(
                            contains(&made, &key),
                            contains(&meant, &key),
                            "{key:?} in {meant:?} and in {made:?}"
                        );
                    }
                    for end in [&made.from, &made.to] {
                        if let Bound::Included(key) | Bound::Excluded(key) = end {
                            assert!((least..=most).contains(&key.len()), "{made:?}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_prefix_means_the_keys_that_start_with_it() {
        for format in [KeyFormat::Fixed(3), KeyFormat::Bytes { max: 3 }] {
            let least = if format == KeyFormat::Fixed(3) { 3 } else { 0 };
            for prefix in keys(0, 3) {
                let interval = Interval::prefix(prefix.clone(), format);
                for key in keys(least, 3) {
                    assert_eq!(contains(&interval, &key), key.starts_with(&prefix), "{prefix:?}");
                }
            }
        }
        assert_eq!(after_prefix(&[1, 0xFF]), Some(vec![2]));
        assert_eq!(after_prefix(&[0xFF, 0xFF]), None);
        assert_eq!(after_prefix(&[]), None);
    }

    #[test]
    fn empty_intervals_are_seen() {
        let (a, b) = (|| b"a".to_vec(), || b"b".to_vec());
        let is_empty = |from, to| Interval { from, to }.is_empty();
        assert!(is_empty(Bound::Included(b()), Bound::Included(a())));
        assert!(is_empty(Bound::Included(a()), Bound::Excluded(a())));
        assert!(is_empty(Bound::Excluded(a()), Bound::Included(a())));
        assert!(is_empty(Bound::Unbounded, Bound::Excluded(Vec::new())));
        assert!(!is_empty(Bound::Included(a()), Bound::Included(a())));
        assert!(!is_empty(Bound::Excluded(a()), Bound::Excluded(b())));
        assert!(!is_empty(Bound::Unbounded, Bound::Unbounded));
    }
}
