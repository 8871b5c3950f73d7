//! Ownership map: assigns each range of keys to a compute server.
//!
//! The map is an object that a word of the table's meta object names: sorted bounds that cut the key
//! space into ranges `(low, high]`, an owner's incarnation for each (0 for none), the move that is
//! under way, if any, and an epoch. Its object has two slots, of which the word names one. A compute
//! server that changes the map takes the map's lock (a word of the meta object), writes the new map,
//! with the next epoch, into the other slot, and names that slot together with the unlocking. So a full
//! pool does not keep anybody from taking over. A map that outgrows its slot gets a new object; the old
//! one is retired. A taker breaks the lock of a dead holder after that is cut off.
//!
//! - `INV-COMPUTE-MAP-1` Only the owner that the map names for a range gives the range to another, or a
//!   taker after that owner has been cut off from every memory server.
//! - `INV-COMPUTE-MAP-2` A map counts once the word names it. A reader reads the word again after the map,
//!   and begins anew if the word has changed: the slot may hold parts of the next map.
//!
//! Layout of the map, words: 0 tag, 1 epoch, 2 number of partitions, 3 checksum, 4 and 5 the move's
//! giver and taker (0 if none), 6 number of logs; then an owner each; then for each its upper bound: length, bytes
//! padded to words; a length of `u64::MAX` for the last, which has none; then the move's low and high
//! bound likewise; then for each log its owner's incarnation and its address. The word that names it holds the logarithm of a
//! slot's bytes in its low 5 bits, and the slot in the next.

use std::collections::BTreeSet;
use std::ops::Bound;

use farleaf_fabric::codec::Writer;
use farleaf_fabric::{GlobalAddr, Incarnation, Ops};
use farleaf_pool::Session;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::IndexError;
use crate::blink::BlinkOptions;
use crate::blink::lock::{Lock, lock_word_after};
use crate::blink::remote::RemoteTree;
use crate::bnode::{KeyFormat, Layout, Node, Seek, Word};
use crate::detach::detach;
use crate::index::ScanRange;
use crate::retry::backoff;

const TAG: u64 = u64::from_le_bytes(*b"FLdexmp2");
const HEAD_WORDS: usize = 7;
/// Most partitions of a table.
pub(crate) const PARTITIONS_MAX: usize = 4096;
const NO_BOUND: u64 = u64::MAX;
/// Logarithms of the bytes that a slot may have.
const BYTES_LOG: std::ops::RangeInclusive<u64> = 8..=20;
const LOG_MASK: u64 = 31;
const SLOT_BIT: u64 = 32;
/// Times that a map is read anew because it has just been changed.
const READS_MAX: u32 = 1_000;

/// The words of a table's meta object that hold its ownership map.
#[derive(Clone, Copy, Debug)]
pub struct MapWords {
    /// The meta object.
    pub meta: GlobalAddr,
    /// The word that names the map.
    pub map: GlobalAddr,
    /// The map's lock.
    pub lock: GlobalAddr,
    /// Nodes of the remote B-link tree in which guests change keys under the map's lock; `None` without guests.
    pub guests: Option<Layout>,
}

impl MapWords {
    /// The address that a word of the map holds.
    ///
    /// # Errors
    /// `Corrupt`.
    pub(crate) fn pointer(&self, word: u64) -> Result<GlobalAddr, IndexError> {
        let addr = GlobalAddr::from_word(word).filter(|_| word != 0 && word.is_multiple_of(64));
        addr.ok_or_else(|| {
            IndexError::Corrupt(format!(
                "the ownership map of the table at {} points to {word:#018x}, which is not an address",
                self.meta
            ))
        })
    }
}

/// A range `(low, high]` of keys; `None` is the end of the key space.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Range {
    /// The bound below it, which is not in it; `None` is the beginning of the key space.
    pub low: Option<Vec<u8>>,
    /// Its last key; `None` is the end of the key space.
    pub high: Option<Vec<u8>>,
}

impl Range {
    /// The range of a node, by its fences.
    pub fn of_node<W: Word>(node: &Node<'_, W>) -> Self {
        let (mut low, mut high) = (Vec::new(), Vec::new());
        let low = node.low_fence(&mut low).then_some(low);
        let high = node.high_fence(&mut high).then_some(high);
        Range { low, high }
    }

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
    /// Its object's, of both slots.
    pub addr: GlobalAddr,
    /// Bytes of its object.
    pub bytes: usize,
    /// The slot that holds it.
    pub(crate) slot: u64,
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
            addr: GlobalAddr::NULL,
            bytes: 0,
            slot: 0,
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

    fn encode(&self) -> Vec<u64> {
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

    fn decode((addr, slot): (GlobalAddr, u64), words: &[u64]) -> Option<Self> {
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
        let bytes = words.len() * 16;
        Some(Partitions { addr, bytes, slot, epoch, bounds, owners, intent, logs })
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
pub fn equal_width(layout: &Layout, count: usize) -> Option<Vec<Vec<u8>>> {
    let KeyFormat::Fixed(len) = layout.options().key else { return None };
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

/// The ownership map that the meta object names.
///
/// Cost: 3 READs in 2 round trips; more if it is being changed.
pub async fn read_map(words: &MapWords, session: &Session) -> Result<Partitions, IndexError> {
    let reliable = session.reliable();
    let corrupt =
        || IndexError::Corrupt(format!("the ownership map of the table at {}", words.meta));
    let mut word = reliable.word(words.map).await?;
    for attempt in 0..READS_MAX {
        let addr = words.pointer(word & !(LOG_MASK | SLOT_BIT))?;
        if !BYTES_LOG.contains(&(word & LOG_MASK)) {
            return Err(corrupt());
        }
        let (bytes, slot) = (1 << (word & LOG_MASK), u64::from(word & SLOT_BIT != 0));
        let at = addr.plus(slot * bytes);
        let same_server = at.server() == words.meta.server();
        let read = async || -> Result<_, IndexError> {
            if same_server {
                let build = |ops: &mut Ops| {
                    ops.read(at, reliable.buf(bytes as usize));
                    ops.read(words.map, reliable.buf(8));
                };
                let (mut ops, _) = reliable.chain(build).await?;
                let again = ops.buf(1).words()[0];
                return Ok((ops.take_buf(0), again));
            }
            let map = reliable.read(at, reliable.buf(bytes as usize)).await?;
            Ok((map, reliable.word(words.map).await?))
        };
        let (map, again) = read().await?;
        if again == word {
            let map = Partitions::decode((addr, slot), map.words());
            return map.ok_or_else(corrupt);
        }
        word = again;
        backoff(session, attempt.min(4)).await;
    }
    Err(IndexError::Unavailable("the ownership map changes all the time: try again".into()))
}
/// Puts what `change` makes of the ownership map in its place, as the next epoch; gives the new map. An
/// error of `change`'s is the result, and nothing has happened. Runs to its end whatever becomes of the
/// caller, who has a pin.
///
/// Cost: CAS and 3 READs, then a WRITE and a chain: 5 round trips; more if others change it at the same
/// time, or if it outgrows its slot. A fence per memory server if the dead had it.
///
/// # Errors
/// `Unavailable` if somebody holds the lock for long, `Full`; `change`'s.
pub async fn change_map<E: From<IndexError> + 'static>(
    words: &MapWords,
    session: &Session,
    change: impl AsyncFnOnce(&Partitions) -> Result<Partitions, E> + 'static,
) -> Result<Partitions, E> {
    let (words, task_session) = (*words, session.without_deadline());
    detach(session, async move { change_map_now(&words, &task_session, change).await }).await
}

/// As [`change_map`], for a task that runs to its end.
pub async fn change_map_now<E: From<IndexError>>(
    words: &MapWords,
    session: &Session,
    change: impl AsyncFnOnce(&Partitions) -> Result<Partitions, E>,
) -> Result<Partitions, E> {
    // Dropped, the lock is released.
    let lock = lock_map(words, session).await?;
    let old = read_map(words, session).await?;
    let new = change(&old).await?;
    Ok(put_map(words, session, lock, Some(&old), new).await?)
}

/// Takes the map's lock; takes it over from the dead, once what they changed under it is whole.
pub async fn lock_map(words: &MapWords, session: &Session) -> Result<Lock, IndexError> {
    let finish = async |dead| {
        let Some(layout) = words.guests else { return Ok(()) };
        let tree = RemoteTree::open(words.meta, layout, BlinkOptions::default());
        tree.finish_change_of(session, dead).await
    };
    lock_word_after(session, words.lock, finish).await
}

/// Gives a new table its ownership map, of one partition that nobody has.
///
/// Cost: 1 CAS, 1 WRITE and a chain.
pub async fn create_map(words: &MapWords, session: &Session) -> Result<(), IndexError> {
    let lock = lock_map(words, session).await?;
    put_map(words, session, lock, None, Partitions::cut(&[])).await.map(drop)
}

/// Names `new` in the place of `old`, and releases the map's lock.
async fn put_map(
    words: &MapWords,
    session: &Session,
    lock: Lock,
    old: Option<&Partitions>,
    mut new: Partitions,
) -> Result<Partitions, IndexError> {
    if new.count() > PARTITIONS_MAX {
        return Err(IndexError::Invalid(format!(
            "a table has at most {PARTITIONS_MAX} partitions"
        )));
    }
    new.epoch = old.map_or(0, |old| old.epoch) + 1;
    let content = new.encode();
    let needed = (content.len() * 8).next_power_of_two().max(1 << BYTES_LOG.start());
    if !BYTES_LOG.contains(&u64::from(needed.ilog2())) {
        return Err(IndexError::Invalid("the bounds of the partitions are too long".into()));
    }
    let image = |bytes: usize| {
        let mut image = session.reliable().buf(bytes);
        image.words_mut().fill(0);
        image.words_mut()[..content.len()].copy_from_slice(&content);
        image
    };
    let mut unnamed = Vec::new();
    let logs = old.iter().flat_map(|old| old.logs.iter());
    for log in logs.filter(|log| !new.logs.contains(log)) {
        unnamed.push(words.pointer(log.1)?);
    }
    let (mut object, mut slot_bytes) = (None, needed);
    match old {
        Some(old) if needed <= old.bytes / 2 => {
            slot_bytes = old.bytes / 2;
            (new.addr, new.slot) = (old.addr, old.slot ^ 1);
            let at = new.addr.plus(new.slot * slot_bytes as u64);
            // Until it has landed: one that landed later would fall into a map that counts.
            let patient = session.without_deadline();
            patient.reliable().write(at, image(slot_bytes)).await?;
        }
        old => {
            unnamed.extend(old.iter().map(|old| old.addr));
            let both = session.alloc_unlinked(session.place(), 2 * slot_bytes).await?;
            both.write(image(2 * slot_bytes)).await?;
            (new.addr, new.slot) = (both.addr(), 0);
            object = Some(both);
        }
    }
    new.bytes = 2 * slot_bytes;
    let mut retiring = Vec::new();
    for addr in unnamed {
        retiring.push(session.prepare_retire(addr).await?);
    }
    if let Some(object) = object {
        object.keep();
    }
    let word = new.addr.word() | (new.slot * SLOT_BIT) | u64::from(slot_bytes.ilog2());
    let mut ops = session.client().ops();
    ops.write_word(words.map, word);
    lock.finish(ops, 0, None).await?;
    retiring.into_iter().for_each(|retiring| session.retire(retiring));
    Ok(new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bnode::{LayoutOptions, ValueFormat};

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
        let addr = GlobalAddr::from_word(4096).expect("an address");
        let read = Partitions::decode((addr, 1), &words).expect("a map");
        (map.addr, map.bytes, map.slot) = (addr, words.len() * 16, 1);
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
            assert_eq!(Partitions::decode((addr, 1), &torn), None, "word {at}");
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
        let options = LayoutOptions::new(1024, KeyFormat::Fixed(8), ValueFormat::Fixed(8));
        let layout = Layout::new(options).expect("layout");
        let bounds = equal_width(&layout, 4).expect("fixed keys");
        let bound = |high: u64| (high - 1).to_be_bytes().to_vec();
        assert_eq!(bounds, [bound(1 << 62), bound(2 << 62), bound(3 << 62)]);
        assert_eq!(equal_width(&layout, 1), Some(Vec::new()));
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
