//! Line: the fingerprints of a leaf, its version and its lock, in 64 bytes.
//!
//! Bytes: 0 version, 8 term of the partition (0 where lines never move), 12 edits, 16 a fingerprint for each slot (0: empty), 48 checksum of the bytes before,
//! bound to the tree and the line's place, 56 the lock. A WRITE of a line leaves its lock out.

use farleaf_fabric::{Buf, GlobalAddr};
use farleaf_index::compute::canaries::IGNORE_TERM;
use farleaf_pool::Session;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::homes::LinePlace;
use super::layout::SPAN_MAX;

/// Bytes of a line.
pub(super) const LINE_BYTES: usize = 64;
/// Bytes of a line that a WRITE changes.
const TABLE_BYTES: usize = 56;
const LOCK_AT: u64 = 56;

/// A fingerprint table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) version: u64,
    pub(super) term: u32,
    pub(super) edits: u32,
    pub(super) fingerprints: [u8; SPAN_MAX],
}

/// The lock of the line at `line`.
pub(super) fn lock_at(line: GlobalAddr) -> GlobalAddr {
    line.plus(LOCK_AT)
}

impl Line {
    /// One without a fingerprint.
    pub(super) fn empty(version: u64) -> Self {
        Line { version, term: 0, edits: 0, fingerprints: [0; SPAN_MAX] }
    }

    /// The line in 64 bytes that were read at `place`, and its lock word; no line if it is torn, or of another tree or term.
    pub(super) fn decode(tree: u64, place: LinePlace, buf: &Buf) -> (Option<Line>, u64) {
        let (line, lock) = Line::decode_any(tree, place.at, buf);
        (line.filter(|line| line.term == place.term || IGNORE_TERM.is_armed()), lock)
    }

    /// As [`Line::decode`], of any term.
    pub(super) fn decode_any(tree: u64, at: GlobalAddr, buf: &Buf) -> (Option<Line>, u64) {
        let (words, bytes) = (buf.words(), buf.bytes());
        let line = (words[6] == sum(tree, at, bytes)).then(|| {
            let mut fingerprints = [0; SPAN_MAX];
            fingerprints.copy_from_slice(&bytes[16..48]);
            let (term, edits) = (words[1] as u32, (words[1] >> 32) as u32);
            Line { version: words[0], term, edits, fingerprints }
        });
        (line, words[7])
    }

    /// The bytes that a WRITE at `place` puts there, under its term.
    pub(super) fn encode(&self, session: &Session, tree: u64, place: LinePlace) -> Buf {
        let mut buf = session.client().buf(TABLE_BYTES);
        buf.words_mut()[0] = self.version;
        buf.words_mut()[1] = u64::from(self.edits) << 32 | u64::from(place.term);
        buf.bytes_mut()[16..48].copy_from_slice(&self.fingerprints);
        buf.words_mut()[6] = sum(tree, place.at, buf.bytes());
        buf
    }

    /// The slots whose fingerprint is that one.
    pub(super) fn matches(&self, fingerprint: u8) -> impl Iterator<Item = usize> + '_ {
        (0..SPAN_MAX).filter(move |index| self.fingerprints[*index] == fingerprint)
    }

    /// Number of fingerprints.
    pub(super) fn count(&self) -> usize {
        self.fingerprints.iter().filter(|fingerprint| **fingerprint != 0).count()
    }

    /// The same with another fingerprint.
    pub(super) fn with(mut self, index: usize, fingerprint: u8) -> Self {
        self.fingerprints[index] = fingerprint;
        self.edits = self.edits.wrapping_add(1);
        self
    }
}

fn sum(tree: u64, at: GlobalAddr, bytes: &[u8]) -> u64 {
    xxh3_64_with_seed(&bytes[..48], tree ^ at.word().rotate_left(16)).max(1)
}
