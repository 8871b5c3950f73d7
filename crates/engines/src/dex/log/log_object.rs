//! Log object: the object in the pool that stores a log, and the word that names it.
//!
//! A log is one object. Words of its head: 0 tag, 1 incarnation of its owner, 2 a number drawn at
//! random, 3 number of the last change that is in remote memory in any case, 4 number of the last image
//! that is void, 5 segments and words of a segment (in the high half) of the journal, 6 those of the
//! changes, 7 checksum of words 0 to 2, 5 and 6. Then the journal's segments, then the changes'. The
//! rings' seeds bind their content to the head, so that no former content of the memory passes for a
//! record.
//!
//! The ownership map has its address.

use farleaf_fabric::{Endpoint, GlobalAddr};
use farleaf_index::IndexError;
use farleaf_index::blink::remote::RemoteTree;
use farleaf_pool::{Session, Unlinked};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::journal::BATCH_MAX;
use super::ring::{RingPlace, record_words};
use super::{Durability, Log};

const TAG: u64 = u64::from_le_bytes(*b"FLdexlog");
const LOG_HEAD_WORDS: usize = 8;
/// Words of a log's head that change: numbers below which nothing counts.
pub(crate) const FLOOR_WORD: u64 = 3;

/// Segments of a log's two parts.
const CHANGE_SEGMENTS: usize = 16;
const JOURNAL_SEGMENTS: usize = 4;
/// Most images that a journal holds at a time.
pub(crate) const IMAGES_MAX: usize = JOURNAL_SEGMENTS * BATCH_MAX;
/// Least bytes of a segment of changes: some records always fit.
const SEGMENT_BYTES_MIN: u64 = 512;
/// A log in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogPlace {
    pub(crate) addr: GlobalAddr,
    seed: u64,
    /// The numbers up to which changes and images do not count.
    pub(crate) floors: [u64; 2],
    journal: (usize, usize),
    changes: (usize, usize),
}

impl LogPlace {
    pub(crate) fn bytes(&self) -> usize {
        let words = |(segments, words): (usize, usize)| segments * words;
        (LOG_HEAD_WORDS + words(self.journal) + words(self.changes)) * 8
    }

    fn ring(&self, at: GlobalAddr, (segments, segment_words): (usize, usize)) -> RingPlace {
        RingPlace { at, segments, segment_words, seed: self.seed }
    }

    pub(crate) fn journal(&self) -> Option<RingPlace> {
        let at = self.addr.plus(LOG_HEAD_WORDS as u64 * 8);
        (self.journal.0 > 0).then(|| self.ring(at, self.journal))
    }

    pub(crate) fn changes(&self) -> Option<RingPlace> {
        let first = LOG_HEAD_WORDS + self.journal.0 * self.journal.1;
        (self.changes.0 > 0).then(|| self.ring(self.addr.plus(first as u64 * 8), self.changes))
    }

    fn encode(&self, owner: u64, random: u64) -> [u64; LOG_HEAD_WORDS] {
        let shape = |(segments, words): (usize, usize)| segments as u64 | (words as u64) << 32;
        let (journal, changes) = (shape(self.journal), shape(self.changes));
        let mut words = [TAG, owner, random, 0, 0, journal, changes, 0];
        words[7] = head_sum(&words);
        words
    }

    fn decode(addr: GlobalAddr, seed_of: u64, words: &[u64]) -> Option<Self> {
        let head: &[u64; LOG_HEAD_WORDS] = words.first_chunk()?;
        let shape = |word: u64| (word as u32 as usize, (word >> 32) as usize);
        let [TAG, owner, random, change, image, journal, changes, checksum] = *head else {
            return None;
        };
        let place = LogPlace {
            addr,
            seed: seed(seed_of, owner, random),
            floors: [change, image],
            journal: shape(journal),
            changes: shape(changes),
        };
        (checksum == head_sum(head)).then_some(place)
    }
}

fn bytes_of(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn head_sum(head: &[u64; LOG_HEAD_WORDS]) -> u64 {
    let [tag, owner, random, _, _, journal, changes, _] = *head;
    xxh3_64_with_seed(&bytes_of(&[tag, owner, random, journal, changes]), TAG)
}

/// Binds what a log holds to its table and its owner.
fn seed(meta: u64, owner: u64, random: u64) -> u64 {
    xxh3_64_with_seed(&bytes_of(&[meta, owner, random]), TAG)
}

impl Log {
    /// Makes a log of the kind that these options need, if they need one. It is written and not named yet.
    ///
    /// Cost: 1 WRITE.
    ///
    /// # Errors
    /// `Invalid` if the log has no room for its segments; `Full` if the pool has none.
    pub(crate) async fn make(
        &self,
        session: &Session,
    ) -> Result<Option<(LogPlace, Unlinked)>, IndexError> {
        let node_bytes = self.layout.node_bytes();
        let atomic = session.endpoint().capabilities().crash_atomic_bytes as usize;
        let journals = self.journals && atomic < node_bytes;
        let logs = self.durability == Durability::Logged;
        if !journals && !logs {
            return Ok(None);
        }
        let journal_words = BATCH_MAX * record_words(0, node_bytes);
        let journal = if journals { (JOURNAL_SEGMENTS, journal_words) } else { (0, 0) };
        let most = session.pool().geometry().object_bytes_max() as u64;
        let left = most.saturating_sub((LOG_HEAD_WORDS * 8 + journal.0 * journal.1 * 8) as u64);
        let segment_bytes = self.bytes.min(left) / CHANGE_SEGMENTS as u64;
        if logs && segment_bytes < SEGMENT_BYTES_MIN {
            return Err(IndexError::Invalid(format!(
                "a log of {} bytes has segments of {segment_bytes}; the least is \
                 {SEGMENT_BYTES_MIN}, {} bytes in all, and this pool's largest object leaves {left}",
                self.bytes,
                SEGMENT_BYTES_MIN * CHANGE_SEGMENTS as u64
            )));
        }
        let changes = if logs { (CHANGE_SEGMENTS, segment_bytes as usize / 8) } else { (0, 0) };
        let shape = LogPlace { addr: GlobalAddr::NULL, seed: 0, floors: [0; 2], journal, changes };
        let object = session.alloc_unlinked(session.place(), shape.bytes()).await?;
        let owner = session.endpoint().incarnation().0;
        let random = session.endpoint().random();
        let mut head = session.reliable().buf(LOG_HEAD_WORDS * 8);
        head.words_mut().copy_from_slice(&shape.encode(owner, random));
        object.write(head).await?;
        let seed = seed(self.meta.word(), owner, random);
        Ok(Some((LogPlace { addr: object.addr(), seed, ..shape }, object)))
    }
}

/// Reads the log whose address this word is. 1 READ.
pub(crate) async fn read_log(
    remote: &RemoteTree,
    session: &Session,
    word: u64,
) -> Result<LogPlace, IndexError> {
    let addr = remote.pointer(word, remote.meta())?;
    let reliable = session.reliable();
    let head = reliable.read(addr, reliable.buf(LOG_HEAD_WORDS * 8)).await?;
    LogPlace::decode(addr, remote.meta().word(), head.words()).ok_or_else(|| {
        IndexError::Corrupt(format!("the log at {addr} of the table at {}", remote.meta()))
    })
}
