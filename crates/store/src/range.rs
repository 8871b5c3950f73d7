//! Range iterators: yield the pairs of a range of keys.

use std::fmt;
use std::iter::FusedIterator;
use std::ops::{Bound, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

use farleaf_index::Entries;

use crate::bounds::{self, End, Interval};
use crate::error::Result;
use crate::table::Table;

/// Entries that a side fetches first and at most; each fetch doubles the count.
pub(crate) const CHUNK_FIRST: usize = 16;
const CHUNK_MAX: usize = 512;
/// A chunk is kept below this many bytes once the size of entries is known.
const CHUNK_BYTES: usize = 1 << 20;

/// The pairs of a range of a table, in the order of their keys; made by [`Table::range`].
///
/// Entries are fetched in chunks as they are asked for, from either end. The iterator is not a
/// snapshot: every key that is present from the first call to the last is met once, a key that is
/// added or removed meanwhile may or may not be, and no key is met twice. After an error it ends.
pub struct Range {
    table: Table,
    /// The part that neither side has yielded.
    rest: Interval,
    front: Side,
    back: Side,
    done: bool,
    /// Fetches the bytes of records, not their strings.
    of_records: bool,
}

/// Pairs that one end has fetched and not yet yielded.
struct Side {
    entries: Entries,
    at: usize,
    /// Number of pairs to fetch next.
    chunk: usize,
    /// The last fetch brought all there was.
    dry: bool,
}

impl Range {
    pub(crate) fn new(table: Table, rest: Interval) -> Self {
        let side = || Side { entries: Entries::new(), at: 0, chunk: CHUNK_FIRST, dry: false };
        let done = rest.is_empty();
        Range { table, rest, front: side(), back: side(), done, of_records: false }
    }

    pub(crate) fn of_records(table: Table, rest: Interval) -> Self {
        Range { of_records: true, ..Range::new(table, rest) }
    }

    /// Tells whether values are the bytes of records.
    pub(crate) fn is_of_records(&self) -> bool {
        self.of_records
    }

    fn step(&mut self, reverse: bool) -> Option<Result<(Vec<u8>, Vec<u8>)>> {
        if self.done {
            return None;
        }
        let side = if reverse { &mut self.back } else { &mut self.front };
        if side.at == side.entries.len()
            && let Err(error) = side.fetch(&self.table, &self.rest, reverse, self.of_records)
        {
            self.done = true;
            return Some(Err(error));
        }
        // The other side may have yielded what this one fetched earlier.
        let rest = &mut self.rest;
        let pair = side.entries.get(side.at).filter(|(key, _)| rest.scan(reverse).holds(key));
        let Some((key, value)) = pair else {
            self.done = true;
            return None;
        };
        set_excluded(if reverse { &mut rest.to } else { &mut rest.from }, key);
        let pair = (key.to_vec(), value.to_vec());
        side.at += 1;
        Some(Ok(pair))
    }
}

impl Side {
    /// Fetches the next chunk, none after the last.
    fn fetch(
        &mut self,
        table: &Table,
        rest: &Interval,
        reverse: bool,
        of_records: bool,
    ) -> Result<()> {
        self.entries.clear();
        self.at = 0;
        if self.dry || rest.is_empty() {
            return Ok(());
        }
        let (range, out) = (rest.scan(reverse), &mut self.entries);
        match of_records {
            true => table.scan_records(range, self.chunk, out)?,
            false => table.scan(range, self.chunk, out)?,
        }
        self.dry = self.entries.len() < self.chunk;
        self.chunk = next_chunk(self.chunk, &self.entries);
        Ok(())
    }
}

/// The number of pairs to fetch after a chunk of `chunk` pairs that brought `entries`.
pub(crate) fn next_chunk(chunk: usize, entries: &Entries) -> usize {
    let bytes: usize = entries.iter().map(|(key, value)| key.len() + value.len()).sum();
    let bytes_each = bytes / entries.len().max(1);
    let fitting = CHUNK_BYTES / bytes_each.max(1);
    (chunk * 2).min(CHUNK_MAX).min(fitting.max(1))
}

impl Iterator for Range {
    type Item = Result<(Vec<u8>, Vec<u8>)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step(false)
    }
}

impl DoubleEndedIterator for Range {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.step(true)
    }
}

impl FusedIterator for Range {}

impl fmt::Debug for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Range")
            .field("table", &self.table.name())
            .field("rest", &self.rest)
            .field("done", &self.done)
            .finish_non_exhaustive()
    }
}

/// A range of keys: any of the standard library's ranges over anything that is bytes, `..`
/// included, a pair of [`Bound`]s, or a [`Prefix`]. An end need not be a possible key of the table.
pub trait KeyRange: sealed::Sealed {
    /// Lower and upper end.
    #[doc(hidden)]
    fn ends(self) -> (Bound<Vec<u8>>, Bound<Vec<u8>>);
}

/// The range of the keys that start with these bytes.
///
/// ```
/// use farleaf::Prefix;
///
/// # let table = farleaf::Farleaf::open("mem:")?.create_table("t", Default::default())?;
/// table.insert_many([("ant", "6"), ("ape", "2"), ("bee", "6")])?;
/// assert_eq!(table.count(Prefix("a"))?, 2);
/// assert_eq!(table.remove_range(Prefix("a"))?, 2);
/// # Ok::<(), farleaf::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix<K>(pub K);

mod sealed {
    #[allow(unnameable_types, reason = "keeps the trait closed")]
    pub trait Sealed {}
}

macro_rules! key_ranges {
    ($($range:ty => |$it:ident| $ends:expr;)+) => {$(
        impl<K: AsRef<[u8]>> sealed::Sealed for $range {}

        impl<K: AsRef<[u8]>> KeyRange for $range {
            fn ends(self) -> (End, End) {
                let $it = self;
                $ends
            }
        }
    )+};
}

key_ranges! {
    std::ops::Range<K> => |it| (included(&it.start), excluded(&it.end));
    RangeInclusive<K> => |it| (included(it.start()), included(it.end()));
    RangeFrom<K> => |it| (included(&it.start), Bound::Unbounded);
    RangeTo<K> => |it| (Bound::Unbounded, excluded(&it.end));
    RangeToInclusive<K> => |it| (Bound::Unbounded, included(&it.end));
    Prefix<K> => |it| bounds::prefix_ends(it.0.as_ref().to_vec());
    (Bound<K>, Bound<K>) => |it| (bounds::own(it.0.as_ref()), bounds::own(it.1.as_ref()));
}

impl sealed::Sealed for RangeFull {}

impl KeyRange for RangeFull {
    fn ends(self) -> (End, End) {
        (Bound::Unbounded, Bound::Unbounded)
    }
}

fn included(key: &impl AsRef<[u8]>) -> End {
    bounds::own(Bound::Included(key))
}

fn excluded(key: &impl AsRef<[u8]>) -> End {
    bounds::own(Bound::Excluded(key))
}

/// Makes `end` exclude `key`, in the memory that it has.
pub(crate) fn set_excluded(end: &mut End, key: &[u8]) {
    if let Bound::Excluded(old) = end {
        old.clear();
        old.extend_from_slice(key);
    } else {
        *end = Bound::Excluded(key.to_vec());
    }
}
