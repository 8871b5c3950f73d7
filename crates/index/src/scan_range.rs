//! Scan range: the keys that a scan returns, and the end that it starts from.

use std::ops::Bound;

/// The keys that a scan returns, and the end that it starts from.
#[derive(Clone, Copy, Debug)]
pub struct ScanRange<'a> {
    /// Lower end.
    pub from: Bound<&'a [u8]>,
    /// Upper end.
    pub to: Bound<&'a [u8]>,
    /// From the largest key down.
    pub reverse: bool,
}

impl ScanRange<'_> {
    /// All keys, ascending.
    pub const ALL: ScanRange<'static> =
        ScanRange { from: Bound::Unbounded, to: Bound::Unbounded, reverse: false };

    /// The range between two ends.
    pub fn between<'a>(
        from: &'a Bound<Vec<u8>>,
        to: &'a Bound<Vec<u8>>,
        reverse: bool,
    ) -> ScanRange<'a> {
        let (from, to) = (from.as_ref().map(Vec::as_slice), to.as_ref().map(Vec::as_slice));
        ScanRange { from, to, reverse }
    }

    /// Tells whether `key` is in the range.
    pub fn holds(&self, key: &[u8]) -> bool {
        use std::ops::RangeBounds;
        (self.from, self.to).contains(key)
    }
}
