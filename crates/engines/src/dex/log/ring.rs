//! Ring: segments in pool memory to which one compute server appends records.
//!
//! Each record has its place as soon as a task appends it. It waits there until one of the waiting
//! tasks writes all gathered records: while one WRITE is under way the next records gather, so that any
//! number of tasks and threads share one (group commit). Alone, a record is one WRITE.
//!
//! - `INV-DEX-RING-1` At most one batch is under way, and a batch is posted only after all before it
//!   have landed. So a reader who takes the records of a segment from its front, up to the first one
//!   that does not fit its checksum, has all that were acknowledged.
//! - `INV-DEX-RING-2` A segment is begun anew only when nobody needs its records any more: it has no
//!   *users*, and no entry of it is open.
//! - `INV-DEX-RING-3` All records of a segment that a reader takes are of one generation, which no
//!   other use of any segment has: what an earlier use left behind them does not pass for a record.
//!   Segments are reused in order. So if two old records are readable, all between them are.
//!
//! A record, words: 0 kind (8 bits), bytes of the key (24 bits), bytes of the value (32 bits);
//! 1 number; 2 generation of the segment's use; 3 checksum of the others and the rest, with the ring's
//! seed; then key and value behind each other, padded with zeros to 8 bytes.

use farleaf_fabric::{Buf, GlobalAddr, OpError};
use farleaf_index::IndexError;
use farleaf_index::local::ParkingLot;
use farleaf_index::sync::{Mutex, lock};
use farleaf_pool::Session;
use xxhash_rust::xxh3::xxh3_64_with_seed;
use zerocopy::IntoBytes;

/// Words in front of a record's key.
pub(crate) const HEAD_WORDS: usize = 4;

/// The kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum RecordKind {
    /// The key holds the value.
    Put = 1,
    /// The key is gone.
    Remove = 2,
    /// A node's image (the value), before it is written in its place.
    Image = 3,
    /// The node at the address that the value holds is about to be freed: its images are void.
    Forget = 4,
}

impl RecordKind {
    fn of(bits: u8) -> Option<Self> {
        [RecordKind::Put, RecordKind::Remove, RecordKind::Image, RecordKind::Forget]
            .into_iter()
            .find(|it| *it as u8 == bits)
    }
}

/// A record that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) kind: RecordKind,
    pub(crate) number: u64,
    pub(crate) key: Vec<u8>,
    pub(crate) value: Vec<u8>,
}

/// The segments of a ring in pool memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RingPlace {
    pub(crate) at: GlobalAddr,
    pub(crate) segments: usize,
    pub(crate) segment_words: usize,
    /// The value that its checksums are bound to.
    pub(crate) seed: u64,
}

impl RingPlace {
    pub(crate) fn segment(&self, index: usize) -> GlobalAddr {
        self.at.plus((index * self.segment_words * 8) as u64)
    }
}

/// Returns the number of words of a record.
pub(crate) fn record_words(key: usize, value: usize) -> usize {
    HEAD_WORDS + (key + value).div_ceil(8)
}

fn sum(seed: u64, head: &[u64], body: &[u64]) -> u64 {
    xxh3_64_with_seed(body.as_bytes(), xxh3_64_with_seed(head.as_bytes(), seed))
}

fn encode(
    into: &mut Vec<u64>,
    seed: u64,
    kind: RecordKind,
    number: u64,
    use_of: u64,
    parts: [&[u8]; 2],
) {
    let [key, value] = parts;
    let first = into.len();
    let lengths = (key.len() as u64) << 8 | (value.len() as u64) << 32;
    into.extend([u64::from(kind as u8) | lengths, number, use_of, 0]);
    into.resize(first + record_words(key.len(), value.len()), 0);
    let (head, body) = into[first..].split_at_mut(HEAD_WORDS);
    let (key_bytes, rest) = body.as_mut_bytes().split_at_mut(key.len());
    key_bytes.copy_from_slice(key);
    rest[..value.len()].copy_from_slice(value);
    head[3] = sum(seed, &head[..3], body);
}

/// Decodes the record that `words` begin with; returns it with its words and its generation.
fn decode(words: &[u64], seed: u64) -> Option<(Record, usize, u64)> {
    let [lengths, number, generation, checksum] = *words.first_chunk::<HEAD_WORDS>()?;
    let kind = RecordKind::of(lengths as u8)?;
    let (key, value) = ((lengths >> 8) as usize & 0xff_ffff, (lengths >> 32) as usize);
    let len = record_words(key, value);
    let body = words.get(HEAD_WORDS..len)?;
    if checksum != sum(seed, &words[..3], body) {
        return None;
    }
    let mut bytes = body.as_bytes()[..key + value].to_vec();
    let value = bytes.split_off(key);
    Some((Record { kind, number, key: bytes, value }, len, generation))
}

/// Returns the records of one segment, and its generation (0 if it has none).
pub(crate) fn records_of(words: &[u64], seed: u64) -> (Vec<Record>, u64) {
    let (mut records, mut rest, mut of) = (Vec::new(), words, 0);
    while let Some((record, len, generation)) = decode(rest, seed) {
        if of != 0 && generation != of {
            break;
        }
        of = generation;
        records.push(record);
        rest = &rest[len..];
    }
    (records, of)
}

/// See the [module page](self).
#[derive(Debug)]
pub(crate) struct Ring {
    pub(crate) place: RingPlace,
    /// The keys under which tasks wait for a batch, and for a segment.
    keys: [u64; 2],
    state: Mutex<RingState>,
}

#[derive(Debug)]
struct RingState {
    segments: Box<[Segment]>,
    current: usize,
    /// Words of the current segment that are taken.
    used: usize,
    generation: u64,
    /// Records that have their places and are not posted: runs that lie in one segment each.
    runs: Vec<Run>,
    busy: bool,
    appended: u64,
    durable: u64,
    failed: Option<OpError>,
}

impl RingState {
    /// Returns the oldest segment that frames keep, once one of the half that comes next is in use. (The
    /// number in use says nothing: segments do not become free in turn, and one in the way is enough.)
    fn oldest(&self) -> Option<usize> {
        let count = self.segments.len();
        let mut next = (1..count).map(|step| (self.current + step) % count);
        next.clone().take(count / 2).find(|at| !self.segments[*at].is_free())?;
        next.find(|at| !self.segments[*at].users.is_empty())
    }
}

#[derive(Debug, Default)]
struct Segment {
    /// Frames that held changes which are recorded here, and may hold them still.
    users: Vec<u32>,
    /// Batches of records whose work goes on.
    open: u32,
    /// The largest number of a record.
    last: u64,
}

impl Segment {
    fn is_free(&self) -> bool {
        self.users.is_empty() && self.open == 0
    }
}

#[derive(Debug)]
struct Run {
    segment: usize,
    first_word: usize,
    words: Vec<u64>,
}

/// A record to append.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogEntry<'a> {
    pub(crate) kind: RecordKind,
    pub(crate) key: &'a [u8],
    pub(crate) value: &'a [u8],
    /// The frame that is going to hold the change.
    pub(crate) frame: Option<u32>,
}

/// The result of appending: the number of all records so far, and the segment of the new ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Appended {
    pub(crate) count: u64,
    pub(crate) segment: usize,
}

/// A frame whose change keeps a segment from being used again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Straggler {
    pub(crate) frame: u32,
    pub(crate) segment: usize,
    /// It is one if its oldest change has at most this number.
    pub(crate) last: u64,
}

impl Ring {
    /// Makes a ring whose next record is the first of a segment: behind `segment` and `generation`, the
    /// last that were used.
    pub(crate) fn new(place: RingPlace, keys: [u64; 2], segment: usize, generation: u64) -> Self {
        let state = RingState {
            segments: (0..place.segments).map(|_| Segment::default()).collect(),
            current: segment % place.segments,
            used: place.segment_words,
            generation,
            runs: Vec::new(),
            busy: false,
            appended: 0,
            durable: 0,
            failed: None,
        };
        Ring { place, keys, state: Mutex::new(state) }
    }

    /// Gives records their places, in one segment; `None` if there is no room now, or never for so many
    /// words. Calls `number` for their numbers, in the order of places. If the records are to stay `open`,
    /// so does their segment until [`Ring::close`].
    pub(crate) fn append(
        &self,
        entries: &[LogEntry<'_>],
        open: bool,
        mut number: impl FnMut() -> u64,
    ) -> Option<Appended> {
        let words = |entry: &LogEntry<'_>| record_words(entry.key.len(), entry.value.len());
        let words: usize = entries.iter().map(words).sum();
        let mut state = lock(&self.state);
        let state = &mut *state;
        if words > self.place.segment_words {
            return None;
        }
        if state.used + words > self.place.segment_words {
            let next = (state.current + 1) % state.segments.len();
            if !state.segments[next].is_free() {
                return None;
            }
            state.current = next;
            state.used = 0;
            state.generation += 1;
        }
        let (segment, first_word, generation) = (state.current, state.used, state.generation);
        let run = match state.runs.last_mut() {
            Some(run) if run.segment == segment => run,
            _ => {
                state.runs.push(Run { segment, first_word, words: Vec::new() });
                state.runs.last_mut()?
            }
        };
        let at = &mut state.segments[segment];
        for entry in entries {
            let number = number();
            let parts = [entry.key, entry.value];
            encode(&mut run.words, self.place.seed, entry.kind, number, generation, parts);
            at.last = at.last.max(number);
            at.users.extend(entry.frame);
        }
        at.open += u32::from(open);
        state.used += words;
        state.appended += entries.len() as u64;
        Some(Appended { count: state.appended, segment })
    }

    /// Returns once the first `count` records have landed; writes them if no other task does. The calling
    /// task runs to its end.
    ///
    /// Cost: 1 WRITE for all records that have gathered, 1 more if they fill a segment.
    ///
    /// # Errors
    /// This compute server has been cut off. The ring is of no use any more.
    pub(crate) async fn land(
        &self,
        session: &Session,
        lot: &ParkingLot,
        count: u64,
    ) -> Result<u64, IndexError> {
        let mut writes = 0;
        loop {
            let batch = {
                let mut state = lock(&self.state);
                match state.failed {
                    _ if state.durable >= count => return Ok(writes),
                    Some(error) => return Err(error.into()),
                    None if state.busy => None,
                    None => {
                        state.busy = true;
                        Some((std::mem::take(&mut state.runs), state.appended))
                    }
                }
            };
            let Some((runs, appended)) = batch else {
                let is_over = || {
                    let state = lock(&self.state);
                    state.durable >= count || !state.busy
                };
                lot.park(self.keys[0], is_over).await;
                continue;
            };
            writes += runs.len() as u64;
            let done = self.post(session, &runs).await;
            {
                let mut state = lock(&self.state);
                state.busy = false;
                match done {
                    Ok(()) => state.durable = appended,
                    Err(error) => state.failed = Some(error),
                }
            }
            lot.unpark(self.keys[0]);
        }
    }

    async fn post(&self, session: &Session, runs: &[Run]) -> Result<(), OpError> {
        let session = session.without_deadline();
        let reliable = session.reliable();
        let place_of = |run: &Run| {
            let mut buf: Buf = reliable.buf(run.words.len() * 8);
            buf.words_mut().copy_from_slice(&run.words);
            (self.place.segment(run.segment).plus(run.first_word as u64 * 8), buf)
        };
        if let [run] = runs {
            let (to, buf) = place_of(run);
            return reliable.write(to, buf).await;
        }
        let mut ops = session.client().ops();
        for (to, buf) in runs.iter().map(place_of) {
            ops.write(to, buf);
        }
        reliable.post_many(ops).await.map(drop)
    }

    /// Ends the work of records that were left open.
    pub(crate) fn close(&self, lot: &ParkingLot, segment: usize) {
        {
            let mut state = lock(&self.state);
            debug_assert!(state.segments[segment].open > 0, "it was opened");
            state.segments[segment].open -= 1;
        }
        lot.unpark(self.keys[1]);
    }

    /// Returns whether no record is open.
    pub(crate) fn is_closed(&self) -> bool {
        lock(&self.state).segments.iter().all(|segment| segment.open == 0)
    }

    /// Waits until there may be room again.
    pub(crate) async fn wait_for_room(&self, lot: &ParkingLot) {
        let is_over = || {
            let state = lock(&self.state);
            state.segments[(state.current + 1) % state.segments.len()].is_free()
        };
        lot.park(self.keys[1], is_over).await;
    }

    /// Returns the largest number in the oldest segment that a frame keeps, once the half of the segments
    /// that comes next is not free.
    pub(crate) fn oldest_part(&self) -> Option<u64> {
        let state = lock(&self.state);
        state.oldest().map(|segment| state.segments[segment].last)
    }

    /// Takes a frame that keeps the oldest segment, once the half of the segments that comes next is not
    /// free. The caller gives it back.
    pub(crate) fn straggler(&self) -> Option<Straggler> {
        let mut state = lock(&self.state);
        let segment = state.oldest()?;
        let oldest = &mut state.segments[segment];
        let frame = oldest.users.pop()?;
        oldest.open += 1;
        Some(Straggler { frame, segment, last: oldest.last })
    }

    /// Takes a straggler back: its node has been written, or it is a straggler `still`.
    pub(crate) fn give_back(&self, of: Straggler, still: bool) {
        let mut state = lock(&self.state);
        let segment = &mut state.segments[of.segment];
        segment.open -= 1;
        if still {
            // Others first.
            segment.users.insert(0, of.frame);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> RingPlace {
        let at = GlobalAddr::from_word(4096).expect("an address");
        RingPlace { at, segments: 3, segment_words: 16, seed: 7 }
    }

    fn put<'a>(key: &'a [u8], value: &'a [u8], frame: u32) -> LogEntry<'a> {
        LogEntry { kind: RecordKind::Put, key, value, frame: Some(frame) }
    }

    fn landed(ring: &Ring) -> Vec<Run> {
        std::mem::take(&mut lock(&ring.state).runs)
    }

    #[test]
    fn records_come_back_whole_or_not_at_all() {
        let mut words = Vec::new();
        for (number, (key, value)) in
            [("", ""), ("a", "bc"), ("12345678", ""), ("1234", "56789")].into_iter().enumerate()
        {
            let parts = [key.as_bytes(), value.as_bytes()];
            let first = words.len();
            encode(&mut words, 7, RecordKind::Put, number as u64, 5, parts);
            assert_eq!(words.len() - first, record_words(key.len(), value.len()));
        }
        encode(&mut words, 7, RecordKind::Remove, 9, 5, [b"gone", b""]);
        words.extend([0; 8]);
        let (records, generation) = records_of(&words, 7);
        assert_eq!((records.len(), generation), (5, 5));
        assert_eq!((&*records[1].key, &*records[1].value), (&b"a"[..], &b"bc"[..]));
        assert_eq!((&*records[3].key, &*records[3].value), (&b"1234"[..], &b"56789"[..]));
        assert_eq!((records[4].kind, records[4].number), (RecordKind::Remove, 9));
        assert_eq!(records_of(&words, 8).0, [], "of another ring");
        for at in 0..words.len() - 8 {
            let mut torn = words.clone();
            torn[at] ^= 1 << (at % 64);
            let (found, _) = records_of(&torn, 7);
            assert!(found.len() < 5 && found == records[..found.len()], "word {at}");
        }
    }

    #[test]
    fn what_an_earlier_use_left_behind_is_no_record() {
        let (mut old, mut new) = (Vec::new(), Vec::new());
        for number in 0..3 {
            encode(&mut old, 7, RecordKind::Put, number, 1, [b"k", b"v"]);
        }
        encode(&mut new, 7, RecordKind::Put, 9, 4, [b"k", b"w"]);
        let mixed: Vec<u64> = new.iter().chain(&old[new.len()..]).copied().collect();
        let (records, generation) = records_of(&mixed, 7);
        assert_eq!((records.len(), records[0].number, generation), (1, 9, 4));
    }

    #[test]
    fn a_full_ring_takes_nothing_until_its_oldest_segment_is_free() {
        let ring = Ring::new(place(), [1, 2], 2, 0);
        let mut numbers = 0..;
        let mut append =
            |frame| ring.append(&[put(b"k", b"v", frame)], false, || numbers.next().unwrap_or(0));
        // Three records of five words a segment.
        let segments: Vec<_> = (0..9).map(|frame| append(frame).expect("room").segment).collect();
        assert_eq!(segments, [0, 0, 0, 1, 1, 1, 2, 2, 2]);
        assert_eq!(append(9), None);
        let long = [0; 200];
        assert_eq!(ring.append(&[put(&long, b"", 0)], false, || 0), None, "never");
        let runs = landed(&ring);
        assert_eq!(runs.iter().map(|run| run.words.len()).collect::<Vec<_>>(), [15, 15, 15]);
        for (index, run) in runs.iter().enumerate() {
            let (records, generation) = records_of(&run.words, 7);
            assert_eq!((records.len(), generation), (3, index as u64 + 1));
        }
        for _ in 0..3 {
            let straggler = ring.straggler().expect("all of it is used");
            assert_eq!((straggler.segment, straggler.last), (0, 2));
            ring.give_back(straggler, straggler.frame == 2);
        }
        assert_eq!(append(9), None, "frame 2 is one still");
        let straggler = ring.straggler().expect("frame 2");
        assert_eq!((straggler.frame, append(9)), (2, None), "and being seen to");
        ring.give_back(straggler, false);
        assert_eq!(append(9).expect("room").segment, 0);
        // The next of three is not free.
        assert_eq!(ring.straggler().map(|it| it.segment), Some(1));
    }

    /// Few segments are in use, but the next one is: the ring reports the frame that holds it.
    #[test]
    fn a_segment_in_the_way_is_seen_to() {
        let ring = Ring::new(RingPlace { segments: 8, ..place() }, [1, 2], 7, 0);
        let append = |frame| ring.append(&[put(b"k", b"v", frame)], false, || 1);
        assert!((0..24).all(|frame| append(frame).is_some()), "all of it");
        assert_eq!(append(24), None);
        // All but the next one are given up, the others' frames having been written for other reasons.
        for segment in lock(&ring.state).segments.iter_mut().skip(1) {
            segment.users.clear();
        }
        assert_eq!(append(24), None);
        for _ in 0..3 {
            let straggler = ring.straggler().expect("it is in the way");
            assert_eq!(straggler.segment, 0);
            ring.give_back(straggler, false);
        }
        assert!(append(24).is_some() && ring.straggler().is_none());
    }
}
