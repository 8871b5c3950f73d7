//! Two slots: an object of remote memory that readers read without a lock while a writer puts the next version beside it.
//!
//! The object has two slots, of which a word of the table's meta object names one. A writer takes a lock, another word
//! of the meta object, writes the new content into the other slot, and names that slot together with the unlocking. So
//! a full pool keeps nobody from changing it. Content that outgrows its slot gets a new object; the old one is retired.
//!
//! The word holds the logarithm of a slot's bytes in its low 5 bits, and the slot in the next.

use farleaf_fabric::{GlobalAddr, Ops};
use farleaf_pool::Session;

use crate::IndexError;
use crate::remote_lock::{Lock, lock_word_after};
use crate::retry::backoff;

/// Logarithms of the bytes that a slot may have.
const BYTES_LOG: std::ops::RangeInclusive<u64> = 8..=20;
const LOG_MASK: u64 = 31;
const SLOT_BIT: u64 = 32;
/// Times that a map is read anew because it has just been changed.
const READS_MAX: u32 = 1_000;
/// Times that a slot is read whose content does not verify: two changes beside one READ leave the same word.
const TORN_READS_MAX: u32 = 3;

/// The words of a table's meta object that hold its ownership map.
#[derive(Clone, Copy, Debug)]
pub struct MapWords {
    /// The meta object.
    pub meta: GlobalAddr,
    /// The word that names the map.
    pub map: GlobalAddr,
    /// The map's lock.
    pub lock: GlobalAddr,
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

/// The slot that holds the content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotPlace {
    /// The object of both slots.
    pub addr: GlobalAddr,
    /// Bytes of the object.
    pub bytes: usize,
    pub(super) slot: u64,
}

impl SlotPlace {
    /// The place of what no word names yet.
    pub(in crate::compute) const NONE: SlotPlace =
        SlotPlace { addr: GlobalAddr::NULL, bytes: 0, slot: 0 };
}

/// Reads the content that the meta object names, as `decode` makes of it.
///
/// Cost: 3 READs in 2 round trips; more if it is being changed.
///
/// # Errors
/// `Corrupt` if the word names no slot or `decode` finds no content; `Unavailable` if it changes all the time.
pub async fn read_slot<M>(
    words: &MapWords,
    session: &Session,
    decode: impl Fn(SlotPlace, &[u64]) -> Option<M>,
) -> Result<M, IndexError> {
    let reliable = session.reliable();
    let corrupt =
        || IndexError::Corrupt(format!("the ownership map of the table at {}", words.meta));
    let mut word = reliable.word(words.map).await?;
    let mut torn_reads = 0;
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
            let content = reliable.read(at, reliable.buf(bytes as usize)).await?;
            Ok((content, reliable.word(words.map).await?))
        };
        let (content, again) = read().await?;
        if again == word {
            let place = SlotPlace { addr, bytes: 2 * bytes as usize, slot };
            if let Some(decoded) = decode(place, content.words()) {
                return Ok(decoded);
            }
            torn_reads += 1;
            if torn_reads == TORN_READS_MAX {
                return Err(corrupt());
            }
        }
        word = again;
        backoff(session, attempt.min(4)).await;
    }
    Err(IndexError::Unavailable("the ownership map changes all the time: try again".into()))
}

/// The second word of the content at `place`, its number, if the meta object still names that place. The word
/// alone would not do: two changes leave it as it was.
///
/// Cost: 2 READs of 8 bytes, 1 round trip.
///
/// # Errors
/// Those of the READs.
pub(in crate::compute) async fn glance(
    words: &MapWords,
    session: &Session,
    place: SlotPlace,
) -> Result<Option<u64>, IndexError> {
    let reliable = session.reliable();
    let slot_bytes = place.bytes as u64 / 2;
    let mut ops = session.client().ops();
    ops.read(words.map, reliable.buf(8));
    ops.read(place.addr.plus(place.slot * slot_bytes + 8), reliable.buf(8));
    let ops = reliable.post_many(ops).await?;
    let is_named = ops.buf(0).words()[0] == word_of(place);
    Ok(is_named.then(|| ops.buf(1).words()[0]))
}

/// The word that names a place.
fn word_of(place: SlotPlace) -> u64 {
    let slot_bytes = place.bytes as u64 / 2;
    place.addr.word() | (place.slot * SLOT_BIT) | u64::from(slot_bytes.ilog2())
}

/// Takes the lock; takes it over from a dead holder once `finish` has finished what that changed under it.
///
/// Cost: 1 CAS; more if another has it, and a fence per memory server if that is dead.
///
/// # Errors
/// `Unavailable` if one holder keeps it too long.
pub async fn lock_slots(
    words: &MapWords,
    session: &Session,
    finish: impl AsyncFn(u64) -> Result<(), IndexError>,
) -> Result<Lock, IndexError> {
    lock_word_after(session, words.lock, finish).await
}

/// Writes `content` into the other slot of `old`, or into a new object, then names it and releases `lock`; gives the
/// new place. Retires the objects `unnamed`, which the old content named and the new does not.
///
/// Cost: a WRITE and a chain.
///
/// # Errors
/// `Invalid` for content that is too long, `Full`.
pub(in crate::compute) async fn put_slot(
    words: &MapWords,
    session: &Session,
    lock: Lock,
    old: Option<SlotPlace>,
    content: &[u64],
    mut unnamed: Vec<GlobalAddr>,
) -> Result<SlotPlace, IndexError> {
    let needed = (content.len() * 8).next_power_of_two().max(1 << BYTES_LOG.start());
    if !BYTES_LOG.contains(&u64::from(needed.ilog2())) {
        return Err(IndexError::Invalid("the bounds of the partitions are too long".into()));
    }
    let image = |bytes: usize| {
        let mut image = session.reliable().buf(bytes);
        image.words_mut().fill(0);
        image.words_mut()[..content.len()].copy_from_slice(content);
        image
    };
    let (mut object, mut slot_bytes) = (None, needed);
    let mut place = SlotPlace::NONE;
    match old {
        Some(old) if needed <= old.bytes / 2 => {
            slot_bytes = old.bytes / 2;
            (place.addr, place.slot) = (old.addr, old.slot ^ 1);
            let at = place.addr.plus(place.slot * slot_bytes as u64);
            // Until it has landed: one that landed later would fall into a map that counts.
            let patient = session.without_deadline();
            patient.reliable().write(at, image(slot_bytes)).await?;
        }
        old => {
            unnamed.extend(old.map(|old| old.addr));
            let both = session.alloc_unlinked(session.place(), 2 * slot_bytes).await?;
            both.write(image(2 * slot_bytes)).await?;
            place.addr = both.addr();
            object = Some(both);
        }
    }
    place.bytes = 2 * slot_bytes;
    let mut retiring = Vec::new();
    for addr in unnamed {
        retiring.push(session.prepare_retire(addr).await?);
    }
    if let Some(object) = object {
        object.keep();
    }
    let word = word_of(place);
    let mut ops = session.client().ops();
    ops.write_word(words.map, word);
    lock.finish(ops, 0, None).await?;
    retiring.into_iter().for_each(|retiring| session.retire(retiring));
    Ok(place)
}
