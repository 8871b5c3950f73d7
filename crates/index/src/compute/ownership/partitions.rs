//! Partitions: the content of an ownership map, which assigns each range of keys to a compute server.
//!
//! Sorted bounds cut the key space into ranges `(low, high]`. Each has an owner's incarnation, 0 for none. The move that
//! is under way, an epoch and the owners' logs stand beside them.
//!
//! Layout of the map, words: 0 tag, 1 epoch, 2 number of partitions, 3 checksum, 4 and 5 the move's
//! giver and taker (0 if none), 6 number of logs; then an owner each; then for each its upper bound: length, bytes
//! padded to words; a length of `u64::MAX` for the last, which has none; then the move's low and high
//! bound likewise; then for each log its owner's incarnation and its address.

use std::collections::BTreeSet;
use std::ops::Bound;

use farleaf_fabric::Incarnation;
use farleaf_fabric::codec::Writer;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::two_slots::SlotPlace;
use crate::spec::KeyFormat;
use crate::{ScanRange, Seek};

const TAG: u64 = u64::from_le_bytes(*b"FLdexmp2");
const HEAD_WORDS: usize = 7;
/// Most partitions of a table.
pub(crate) const PARTITIONS_MAX: usize = 4096;
const NO_BOUND: u64 = u64::MAX;
/// A range `(low, high]` of keys; `None` is the end of the key space.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Range {
    /// The bound below it, which is not in it; `None` is the beginning of the key space.
    pub low: Option<Vec<u8>>,
    /// Its last key; `None` is the end of the key space.
    pub high: Option<Vec<u8>>,
}

impl Range {
    /// Returns whether it holds `key`, or the place just above it.
    pub fn holds(&self, key: &[u8], after: bool) -> bool {
        let above = |low: &Vec<u8>| if after { **low <= *key } else { **low < *key };
        let below = |high: &Vec<u8>| if after { *key < **high } else { *key <= **high };
        self.low.as_ref().is_none_or(above) && self.high.as_ref().is_none_or(below)
    }

    /// Returns whether all of `(low, high]` is in it.
    pub fn contains(&self, low: Option<&[u8]>, high: Option<&[u8]>) -> bool {
        let above = |own: &Vec<u8>| low.is_some_and(|low| low >= own.as_slice());
        let below = |own: &Vec<u8>| high.is_some_and(|high| high <= own.as_slice());
        self.low.as_ref().is_none_or(above) && self.high.as_ref().is_none_or(below)
    }

    /// Returns whether it has keys in common with `(low, high]`.
    pub fn meets(&self, low: Option<&[u8]>, high: Option<&[u8]>) -> bool {
        let below = match (&self.low, high) {
            (Some(own), Some(high)) => high <= own.as_slice(),
            _ => false,
        };
        let above = match (&self.high, low) {
            (Some(own), Some(low)) => low >= own.as_slice(),
            _ => false,
        };
        !below && !above
    }

    /// The same keys, ascending.
    pub fn as_scan(&self) -> ScanRange<'_> {
        ScanRange {
            from: self.low.as_deref().map_or(Bound::Unbounded, Bound::Excluded),
            to: self.high.as_deref().map_or(Bound::Unbounded, Bound::Included),
            reverse: false,
        }
    }

    /// Returns whether there is no key in it.
    pub(crate) fn is_empty(&self) -> bool {
        matches!((&self.low, &self.high), (Some(low), Some(high)) if low >= high)
    }
}

/// A range that is about to change hands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intent {
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) range: Range,
}

/// A table's cut into partitions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partitions {
    /// The slot that holds it.
    pub place: SlotPlace,
    /// Changes of the map before it.
    pub epoch: u64,
    /// Inclusive upper bounds of all partitions but the last.
    pub(crate) bounds: Vec<Vec<u8>>,
    /// Incarnation of each one's owner, or 0.
    pub owners: Vec<u64>,
    /// The move that is under way.
    pub(crate) intent: Option<Intent>,
    /// Logs of compute servers that have, or had, partitions: the owner's incarnation, and the word of
    /// the address.
    pub logs: Vec<(u64, u64)>,
}

impl Partitions {
    /// A cut that nobody owns a part of.
    pub(crate) fn cut(bounds: &[Vec<u8>]) -> Self {
        Partitions {
            place: SlotPlace::NONE,
            epoch: 0,
            bounds: bounds.to_vec(),
            owners: vec![0; bounds.len() + 1],
            intent: None,
            logs: Vec::new(),
        }
    }

    /// All compute servers that it names: as an owner, with a log, in a move.
    pub(crate) fn holders(&self) -> BTreeSet<Incarnation> {
        let intent = self.intent.iter().flat_map(|intent| [intent.from, intent.to]);
        let logs = self.logs.iter().map(|(owner, _)| *owner);
        let all = self.owners.iter().copied().chain(logs).chain(intent);
        all.filter(|who| *who != 0).map(Incarnation).collect()
    }

    /// Number of partitions.
    pub fn count(&self) -> usize {
        self.bounds.len() + 1
    }

    /// The partition of `key`, or of the place just above it.
    pub fn of(&self, key: &[u8], after: bool) -> usize {
        self.bounds.partition_point(|bound| if after { **bound <= *key } else { **bound < *key })
    }

    /// The partition of a place.
    pub(crate) fn at(&self, seek: Seek<'_>) -> usize {
        match seek {
            Seek::At(key) => self.of(key, false),
            Seek::After(key) => self.of(key, true),
            Seek::First => 0,
            Seek::Last => self.count() - 1,
        }
    }

    /// Exclusive lower and inclusive upper bound of a partition.
    pub fn range(&self, number: usize) -> (Option<&[u8]>, Option<&[u8]>) {
        let low = number.checked_sub(1).map(|before| self.bounds[before].as_slice());
        (low, self.bounds.get(number).map(Vec::as_slice))
    }

    /// As [`Partitions::range`].
    pub(crate) fn owned_range(&self, number: usize) -> Range {
        let (low, high) = self.range(number);
        Range { low: low.map(<[u8]>::to_vec), high: high.map(<[u8]>::to_vec) }
    }

    /// The partition that has all of `range`.
    pub(crate) fn around(&self, range: &Range) -> Option<usize> {
        let number = match &range.low {
            Some(low) => self.of(low, true),
            None => 0,
        };
        let (low, high) = (range.low.as_deref(), range.high.as_deref());
        self.owned_range(number).contains(low, high).then_some(number)
    }

    /// Gives `range`, which lies in one partition, to `to`; it becomes one with neighbours that `to` has.
    pub fn give(&mut self, range: &Range, to: u64) {
        let Some(number) = self.around(range) else { return };
        let (low, high) = self.range(number);
        let (cut_low, cut_high) = (range.low.as_deref() != low, range.high.as_deref() != high);
        let owner = self.owners[number];
        let mut at = number;
        if let (true, Some(low)) = (cut_low, &range.low) {
            self.bounds.insert(number, low.clone());
            self.owners.insert(number, owner);
            at += 1;
        }
        if let (true, Some(high)) = (cut_high, &range.high) {
            self.bounds.insert(at, high.clone());
            self.owners.insert(at + 1, owner);
        }
        self.owners[at] = to;
        if self.owners.get(at + 1) == Some(&to) {
            self.bounds.remove(at);
            self.owners.remove(at);
        }
        if at > 0 && self.owners[at - 1] == to {
            self.bounds.remove(at - 1);
            self.owners.remove(at - 1);
        }
    }

    pub(super) fn encode(&self) -> Vec<u64> {
        let mut words = vec![TAG, self.epoch, self.count() as u64, 0, 0, 0, self.logs.len() as u64];
        words.extend(&self.owners);
        for bound in &self.bounds {
            push_bound(&mut words, Some(bound));
        }
        push_bound(&mut words, None);
        if let Some(Intent { from, to, range }) = &self.intent {
            (words[4], words[5]) = (*from, *to);
            push_bound(&mut words, range.low.as_deref());
            push_bound(&mut words, range.high.as_deref());
        }
        words.extend(self.logs.iter().flat_map(|(owner, addr)| [*owner, *addr]));
        words[3] = sum(&words);
        words
    }

    pub(super) fn decode(place: SlotPlace, words: &[u64]) -> Option<Self> {
        let [TAG, epoch, count, checksum, from, to, logs, ..] = *words else { return None };
        let count =
            usize::try_from(count).ok().filter(|count| (1..=PARTITIONS_MAX).contains(count))?;
        let owners = words.get(HEAD_WORDS..HEAD_WORDS + count)?.to_vec();
        let mut rest = &words[HEAD_WORDS + count..];
        let mut bounds = Vec::new();
        for _ in 1..count {
            bounds.push(take_bound(&mut rest)??);
        }
        if take_bound(&mut rest)?.is_some() {
            return None;
        }
        let intent = match from {
            0 => None,
            _ => {
                let (low, high) = (take_bound(&mut rest)?, take_bound(&mut rest)?);
                Some(Intent { from, to, range: Range { low, high } })
            }
        };
        let logs = usize::try_from(logs).ok().filter(|logs| *logs <= rest.len() / 2)?;
        let (named, rest) = rest.split_at(logs * 2);
        let logs = named.chunks_exact(2).map(|log| (log[0], log[1])).collect();
        let used = words.len() - rest.len();
        if checksum != sum(&words[..used]) || !bounds.is_sorted_by(|a, b| a < b) {
            return None;
        }
        Some(Partitions { place, epoch, bounds, owners, intent, logs })
    }
}

fn push_bound(words: &mut Vec<u64>, bound: Option<&[u8]>) {
    let Some(bound) = bound else { return words.push(NO_BOUND) };
    words.push(bound.len() as u64);
    words.extend(bound.chunks(8).map(|chunk| {
        let mut bytes = [0; 8];
        bytes[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(bytes)
    }));
}

/// The next bound; `Some(None)` is one that there is not.
fn take_bound(rest: &mut &[u64]) -> Option<Option<Vec<u8>>> {
    let (len, tail) = rest.split_first()?;
    if *len == NO_BOUND {
        *rest = tail;
        return Some(None);
    }
    let len = usize::try_from(*len).ok()?;
    let taken = tail.get(..len.div_ceil(8))?;
    let mut bound = Writer::bytes_of(taken);
    bound.truncate(len);
    *rest = &tail[len.div_ceil(8)..];
    Some(Some(bound))
}

fn sum(words: &[u64]) -> u64 {
    let head = xxh3_64_with_seed(&Writer::bytes_of(&words[..3]), TAG);
    xxh3_64_with_seed(&Writer::bytes_of(&words[4..]), head)
}

/// Bounds that cut the space of fixed keys into `count` ranges of equal width, by their first eight
/// bytes; `None` for other keys.
pub fn equal_width(key: KeyFormat, count: usize) -> Option<Vec<Vec<u8>>> {
    let KeyFormat::Fixed(len) = key else { return None };
    if len < 8 || count == 0 {
        return None;
    }
    let bound = |number: usize| {
        let at = ((number as u128) << 64) / count as u128 - 1;
        let mut bound = (at as u64).to_be_bytes().to_vec();
        bound.resize(len, 0xff);
        bound
    };
    Some((1..count).map(bound).collect())
}

/// Bounds that cut the keys into at most `count` ranges that get equal shares of `sample`, a sample of
/// the keys that operations are on, in any order and as often as they are used. A key that alone
/// makes up more than a share gets a range of its own, so that there may be fewer ranges; also when the
/// sample has fewer keys than there are ranges.
pub fn sampled<K: AsRef<[u8]>>(sample: &[K], count: usize) -> Vec<Vec<u8>> {
    let mut keys: Vec<&[u8]> = sample.iter().map(AsRef::as_ref).collect();
    keys.sort_unstable();
    let mut bounds: Vec<Vec<u8>> = Vec::new();
    for number in 1..count {
        // The last key of this share.
        let Some(at) = (keys.len() * number / count).checked_sub(1) else { continue };
        let is_new = bounds.last().is_none_or(|last| last.as_slice() < keys[at]);
        if is_new && keys.last().is_some_and(|last| keys[at] < *last) {
            bounds.push(keys[at].to_vec());
        }
    }
    bounds
}

#[cfg(test)]
mod tests {
    use farleaf_fabric::GlobalAddr;

    use super::*;

    fn some(bound: &str) -> Option<Vec<u8>> {
        Some(bound.as_bytes().to_vec())
    }

    #[test]
    fn maps_come_back_and_know_their_keys() {
        let bounds: Vec<Vec<u8>> = ["", "b", "long enough for words"].map(Vec::from).to_vec();
        let range = Range { low: some("bb"), high: None };
        let mut map = Partitions::cut(&bounds);
        map.epoch = 3;
        map.owners = vec![0, 7, 99, 7];
        map.intent = Some(Intent { from: 7, to: 99, range });
        let mut words = map.encode();
        let used = words.len();
        words.resize(used + 5, 0);
        map.place = SlotPlace {
            addr: GlobalAddr::from_word(4096).expect("an address"),
            bytes: 512,
            slot: 1,
        };
        let read = Partitions::decode(map.place, &words).expect("a map");
        assert_eq!(read, map);
        let of = |key: &str| (map.of(key.as_bytes(), false), map.of(key.as_bytes(), true));
        assert_eq!(
            (of(""), of("a"), of("b"), of("ba"), of("z")),
            ((0, 1), (1, 1), (1, 2), (2, 2), (3, 3))
        );
        assert_eq!(map.range(0), (None, Some(&b""[..])));
        assert_eq!(map.range(1), (Some(&b""[..]), Some(&b"b"[..])));
        assert_eq!(map.range(3), (Some(&b"long enough for words"[..]), None));
        for at in 0..used {
            let mut torn = words.clone();
            torn[at] ^= 1;
            assert_eq!(Partitions::decode(map.place, &torn), None, "word {at}");
        }
    }

    #[test]
    fn a_range_that_is_given_away_joins_its_new_neighbours() {
        let map = |bounds: &[&str], owners: &[u64]| {
            let bounds: Vec<Vec<u8>> = bounds.iter().map(|it| it.as_bytes().to_vec()).collect();
            Partitions { owners: owners.to_vec(), ..Partitions::cut(&bounds) }
        };
        let give = |low: &str, high: &str, to, mut map: Partitions| {
            let end = |at: &str| (!at.is_empty()).then(|| at.as_bytes().to_vec());
            map.give(&Range { low: end(low), high: end(high) }, to);
            map
        };
        let two = || map(&["m"], &[1, 2]);
        assert_eq!(give("g", "m", 2, two()), map(&["g"], &[1, 2]), "the boundary moves");
        assert_eq!(give("m", "t", 1, two()), map(&["t"], &[1, 2]), "the other way");
        assert_eq!(give("c", "g", 3, two()), map(&["c", "g", "m"], &[1, 3, 1, 2]));
        assert_eq!(give("", "g", 3, two()), map(&["g", "m"], &[3, 1, 2]));
        assert_eq!(give("", "m", 2, two()), map(&[], &[2]), "all of one that leaves");
        assert_eq!(give("m", "", 3, two()), map(&["m"], &[1, 3]));
        assert_eq!(give("g", "p", 3, two()), two(), "of two partitions: nothing");
        let three = map(&["g", "p"], &[1, 2, 1]);
        assert_eq!(give("g", "p", 1, three), map(&[], &[1]), "both neighbours");
    }

    #[test]
    fn ranges_know_what_is_in_them() {
        let range = Range { low: some("b"), high: some("d") };
        let holds =
            |key: &str| (range.holds(key.as_bytes(), false), range.holds(key.as_bytes(), true));
        assert_eq!(holds("b"), (false, true));
        assert_eq!(holds("c"), (true, true));
        assert_eq!(holds("d"), (true, false));
        let all = Range::default();
        assert!(all.contains(None, None) && !range.contains(Some(b"b"), None));
        assert!(range.contains(Some(b"b"), Some(b"d")) && !range.contains(None, Some(b"d")));
        assert!(!range.meets(None, Some(b"b")) && !range.meets(Some(b"d"), None));
        assert!(range.meets(Some(b"c"), None) && range.meets(None, None) && all.meets(None, None));
    }

    #[test]
    fn equal_widths_are_equal() {
        let key = KeyFormat::Fixed(8);
        let bounds = equal_width(key, 4).expect("fixed keys");
        let bound = |high: u64| (high - 1).to_be_bytes().to_vec();
        assert_eq!(bounds, [bound(1 << 62), bound(2 << 62), bound(3 << 62)]);
        assert_eq!(equal_width(key, 1), Some(Vec::new()));
    }

    #[test]
    fn sampled_bounds_get_equal_shares() {
        // Half of all operations are on the first tenth of the keys.
        let mut sample: Vec<[u8; 2]> = (0..1_000_u16).map(|key| (key / 10).to_be_bytes()).collect();
        sample.extend((1_000..2_000_u16).map(u16::to_be_bytes));
        fastrand::Rng::with_seed(1).shuffle(&mut sample);
        let bounds = sampled(&sample, 4);
        assert_eq!(bounds.len(), 3);
        let shares = Partitions::cut(&bounds);
        let mut counts = [0; 4];
        sample.iter().for_each(|key| counts[shares.of(key, false)] += 1);
        assert!(counts.iter().all(|count| (490..=510).contains(count)), "{counts:?}");
        // One key that is nearly all of it cannot be cut.
        let mut hot = vec![[7; 2]; 90];
        hot.extend([[1; 2], [9; 2]]);
        assert_eq!(sampled(&hot, 4), [[7; 2]]);
        assert_eq!(sampled(&[[1; 2]], 4), Vec::<Vec<u8>>::new());
        assert_eq!(sampled(&Vec::<Vec<u8>>::new(), 4), Vec::<Vec<u8>>::new());
    }
}
