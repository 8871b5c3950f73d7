//! Entries: hold the pairs of a scan in order, in one piece of memory that scans reuse.

use crate::{IndexError, Spec};

/// Sorted pairs for a bulk load, lent one at a time.
pub trait SortedPairs {
    /// The next pair, with a key larger than all before; `None` at the end.
    fn next(&mut self) -> Option<(&[u8], &[u8])>;
}

/// Keys and values, each in memory of its own.
pub type PairList = Vec<(Vec<u8>, Vec<u8>)>;

/// Takes all pairs of a bulk load at once, for an engine that keeps them together.
///
/// # Errors
/// `Invalid` for a key or value that the table does not take, and for a key that is not larger than the one before.
pub fn collect_sorted(pairs: &mut impl SortedPairs, spec: &Spec) -> Result<PairList, IndexError> {
    let mut all = PairList::new();
    while let Some((key, value)) = pairs.next() {
        spec.check_key(key)?;
        spec.check_value(value)?;
        if all.last().is_some_and(|(last, _)| last.as_slice() >= key) {
            let what =
                format!("key {} of a bulk load is not larger than the one before", all.len());
            return Err(IndexError::Invalid(what));
        }
        all.push((key.to_vec(), value.to_vec()));
    }
    Ok(all)
}

/// A list of key-value pairs. Cleared and filled again, it allocates nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entries {
    bytes: Vec<u8>,
    /// The ends of each pair's key and value in `bytes`.
    ends: Vec<(usize, usize)>,
}

impl Entries {
    /// An empty list.
    pub fn new() -> Self {
        Entries::default()
    }

    /// Number of pairs.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Tells whether there is none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Forgets all pairs, keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    /// Forgets the pairs from `len` on.
    pub fn truncate(&mut self, len: usize) {
        if len < self.len() {
            self.bytes.truncate(self.start(len));
            self.ends.truncate(len);
        }
    }

    /// Adds a pair at the end.
    pub fn push(&mut self, key: &[u8], value: &[u8]) {
        self.push_with(
            |bytes| bytes.extend_from_slice(key),
            |bytes| bytes.extend_from_slice(value),
        );
    }

    /// Adds a pair that two functions append, the key first.
    pub fn push_with(&mut self, key: impl FnOnce(&mut Vec<u8>), value: impl FnOnce(&mut Vec<u8>)) {
        key(&mut self.bytes);
        let key_end = self.bytes.len();
        value(&mut self.bytes);
        self.ends.push((key_end, self.bytes.len()));
    }

    /// The pair at `index`.
    pub fn get(&self, index: usize) -> Option<(&[u8], &[u8])> {
        let &(key_end, end) = self.ends.get(index)?;
        Some((&self.bytes[self.start(index)..key_end], &self.bytes[key_end..end]))
    }

    /// The last pair.
    pub fn last(&self) -> Option<(&[u8], &[u8])> {
        self.get(self.len().checked_sub(1)?)
    }

    /// The pairs in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&[u8], &[u8])> + ExactSizeIterator {
        (0..self.len()).map(|index| {
            let (key_end, end) = self.ends[index];
            (&self.bytes[self.start(index)..key_end], &self.bytes[key_end..end])
        })
    }

    fn start(&self, index: usize) -> usize {
        if index == 0 { 0 } else { self.ends[index - 1].1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_come_back_and_the_tail_can_go() {
        let mut entries = Entries::new();
        entries.push(b"", b"x");
        entries.push(b"key", b"");
        entries.push(b"k", b"value");
        assert_eq!(entries.iter().collect::<Vec<_>>().len(), 3);
        assert_eq!(entries.get(1), Some((&b"key"[..], &b""[..])));
        assert_eq!(entries.last(), Some((&b"k"[..], &b"value"[..])));
        entries.truncate(1);
        assert_eq!(entries.last(), Some((&b""[..], &b"x"[..])));
        entries.push(b"a", b"b");
        assert_eq!(entries.get(1), Some((&b"a"[..], &b"b"[..])));
    }
}
