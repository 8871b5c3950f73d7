//! Scan cursor: the place where a scan of a range goes on, and the pairs that it still wants.
//!
//! It knows ranges and keys and no tree: an engine asks it for the next place, appends pairs, and says up to which key
//! that went.

use std::ops::Bound;

use crate::{Entries, ScanRange, Seek};

/// The place where a scan goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CursorPlace {
    /// At one end of the key space.
    End,
    /// At a key.
    At(Vec<u8>),
    /// Just above a key.
    After(Vec<u8>),
    /// Just below a key, of a scan that descends.
    Below(Vec<u8>),
}

/// A scan that goes on from place to place.
pub struct ScanCursor<'a> {
    range: ScanRange<'a>,
    place: CursorPlace,
    end: usize,
}

impl<'a> ScanCursor<'a> {
    /// A scan of at most `limit` pairs of `range` that are appended to `out`; `None` if there can
    /// be none.
    pub fn begin(range: ScanRange<'a>, limit: usize, out: &Entries) -> Option<Self> {
        if limit == 0 || is_empty(&range) {
            return None;
        }
        let place = match if range.reverse { range.to } else { range.from } {
            Bound::Unbounded => CursorPlace::End,
            Bound::Included(key) => CursorPlace::At(key.to_vec()),
            // The leaf that ends with a key is the one that the places below it are in, too.
            Bound::Excluded(key) if range.reverse => CursorPlace::At(key.to_vec()),
            Bound::Excluded(key) => CursorPlace::After(key.to_vec()),
        };
        Some(ScanCursor { range, place, end: out.len().saturating_add(limit) })
    }

    /// The range.
    pub(crate) fn range(&self) -> &ScanRange<'a> {
        &self.range
    }

    /// The place where the scan goes on.
    pub(crate) fn place(&self) -> &CursorPlace {
        &self.place
    }

    /// The place where the scan goes on, in the order of keys.
    pub fn seek(&self) -> Seek<'_> {
        match &self.place {
            CursorPlace::End if self.range.reverse => Seek::Last,
            CursorPlace::End => Seek::First,
            CursorPlace::At(key) | CursorPlace::Below(key) => Seek::At(key),
            CursorPlace::After(key) => Seek::After(key),
        }
    }

    /// Tells whether the scan descends.
    pub fn is_reverse(&self) -> bool {
        self.range.reverse
    }

    /// Pairs that are still wanted.
    pub fn wanted(&self, out: &Entries) -> usize {
        self.end.saturating_sub(out.len())
    }

    /// Tells whether the range ends before the leaf behind this fence.
    pub fn ends_before(&self, fence: &[u8]) -> bool {
        is_past(&self.range, fence)
    }

    /// Tells whether the end that a descending scan comes from is `key`, and not in the range.
    pub fn leaves_out(&self, key: &[u8]) -> bool {
        self.range.to == Bound::Excluded(key)
    }

    /// The end that the scan goes to, and whether it is not in the range.
    pub fn far_end(&self) -> Option<(&[u8], bool)> {
        match if self.range.reverse { self.range.from } else { self.range.to } {
            Bound::Unbounded => None,
            Bound::Included(key) => Some((key, false)),
            Bound::Excluded(key) => Some((key, true)),
        }
    }

    /// Returns the rest of the range in `(low, high]`, which holds the place, and how many pairs are
    /// wanted.
    pub fn rest_in(
        &self,
        low: Option<&[u8]>,
        high: Option<&[u8]>,
        out: &Entries,
    ) -> (Bound<Vec<u8>>, Bound<Vec<u8>>, usize) {
        let owned = |bound: Bound<&[u8]>| bound.map(<[u8]>::to_vec);
        let key_of = |bound: Bound<&[u8]>| match bound {
            Bound::Unbounded => None,
            Bound::Included(key) | Bound::Excluded(key) => Some(key.to_vec()),
        };
        let (mut from, mut to) = (owned(self.range.from), owned(self.range.to));
        match &self.place {
            CursorPlace::End => {}
            CursorPlace::Below(key) => to = Bound::Excluded(key.clone()),
            CursorPlace::After(key) => from = Bound::Excluded(key.clone()),
            CursorPlace::At(key) if !self.range.reverse => from = Bound::Included(key.clone()),
            CursorPlace::At(key) if key_of(self.range.to).as_ref() != Some(key) => {
                to = Bound::Included(key.clone());
            }
            CursorPlace::At(_) => {}
        }
        if self.range.reverse {
            let begins_below = key_of(self.range.from).is_none_or(|key| Some(&*key) <= low);
            if let (Some(low), true) = (low, begins_below) {
                from = Bound::Excluded(low.to_vec());
            }
        } else if let Some(high) = high
            && key_of(self.range.to).is_none_or(|key| *key > *high)
        {
            to = Bound::Included(high.to_vec());
        }
        (from, to, self.end - out.len())
    }

    /// All up to `last`, the key of the last pair, has been seen to; whether there is more to come.
    pub fn go_on_behind(&mut self, last: &[u8], out: &Entries) -> bool {
        let last = last.to_vec();
        self.place =
            if self.range.reverse { CursorPlace::Below(last) } else { CursorPlace::After(last) };
        out.len() < self.end
    }

    /// All up to `fence` has been seen to; whether there is more to come.
    pub fn skip_to(&mut self, fence: Option<&[u8]>, out: &Entries) -> bool {
        let Some(fence) = fence else { return false };
        if out.len() >= self.end || is_past(&self.range, fence) {
            return false;
        }
        let fence = fence.to_vec();
        self.place =
            if self.range.reverse { CursorPlace::At(fence) } else { CursorPlace::After(fence) };
        true
    }
}

/// Tells whether no key can be in the range.
fn is_empty(range: &ScanRange<'_>) -> bool {
    match (range.from, range.to) {
        (Bound::Included(from), Bound::Included(to)) => from > to,
        (Bound::Included(from) | Bound::Excluded(from), Bound::Excluded(to))
        | (Bound::Excluded(from), Bound::Included(to)) => from >= to,
        _ => false,
    }
}

/// Tells whether everything on the far side of `fence` is outside the range: above it, exclusive, when
/// ascending; at or below it when descending.
fn is_past(range: &ScanRange<'_>, fence: &[u8]) -> bool {
    if range.reverse {
        match range.from {
            Bound::Unbounded => false,
            Bound::Included(from) => fence < from,
            Bound::Excluded(from) => fence <= from,
        }
    } else {
        match range.to {
            Bound::Unbounded => false,
            Bound::Included(to) | Bound::Excluded(to) => fence >= to,
        }
    }
}
