//! Key source: sorted pairs that the examples load.

use farleaf_index::SortedPairs;

/// Every key below a number, each with itself as its value.
pub(crate) struct All {
    next: u64,
    count: u64,
    bytes: [u8; 8],
}

impl All {
    pub(crate) fn below(count: u64) -> Self {
        All { next: 0, count, bytes: [0; 8] }
    }
}

impl SortedPairs for All {
    fn next(&mut self) -> Option<(&[u8], &[u8])> {
        (self.next < self.count).then(|| {
            self.bytes = self.next.to_be_bytes();
            self.next += 1;
            (&self.bytes[..], &self.bytes[..])
        })
    }
}
