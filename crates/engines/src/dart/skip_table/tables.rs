//! Tables: arrays of buckets in segments, and the descriptor that names them.
//!
//! The descriptor word D of the meta object: address of the descriptor in bits 47..6, its size code in bits
//! 5..2, a version in bits 63..48. D changes by CAS alone, and the winner retires the descriptor before. A
//! descriptor is immutable. It names up to three tables, each with a role, its list of prefix lengths, and its
//! segments. Words of it: 0 tag, 1 checksum, 2 number of tables; then for each table: role, lengths' count and
//! segments' count, fingerprint's bits and bucket bits; the lengths; the segments' addresses.

use std::sync::{Arc, RwLock};

use farleaf_fabric::{GlobalAddr, ServerId};
use farleaf_index::IndexError;
use farleaf_pool::{Reliable, Session, Unlinked};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::entry::{BUCKET_BYTES, PRINT_BITS_MAX, PrefixHash};
use super::lengths::Lengths;
use crate::dart::DartTree;
use crate::dart::descent::REPAIR;

/// Most lengths of a list.
pub(super) const LENGTHS_MAX: usize = 16;
const TABLES_MAX: usize = 3;
const SEGMENTS_MAX: usize = 1 << 14;
const TAG: u64 = u64::from_le_bytes(*b"FLdartT1");
const ADDR: u64 = 0x0000_ffff_ffff_ffc0;
const OFFSET: u64 = 0x0000_00ff_ffff_ffc0;
/// Sizes of descriptors by code: 64 << code, of which a READ takes all.
const CODE_MAX: u32 = 12;

/// The role of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Lookups probe it.
    Current,
    /// Entries are being added; lookups probe it while there is no other.
    Filling,
    /// Nobody probes it; changes still take entries out of it.
    Leaving,
}

/// One table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Table {
    pub(super) role: Role,
    /// Lengths of prefixes, ascending.
    pub(super) lengths: Vec<u16>,
    /// Bits of fingerprints.
    pub(super) print_bits: u32,
    /// Buckets of a segment, as a power of two.
    pub(super) bucket_bits: u32,
    /// As many as a power of two.
    pub(super) segments: Vec<GlobalAddr>,
}

impl Table {
    /// Returns the address of a prefix's bucket.
    pub(super) fn bucket(&self, hash: PrefixHash) -> GlobalAddr {
        let count = self.segments.len() as u64;
        let segment = ((u128::from(hash.0) * u128::from(count)) >> 64) as usize;
        let bucket = hash.0 & ((1 << self.bucket_bits) - 1);
        self.segments[segment].plus(bucket * BUCKET_BYTES as u64)
    }

    /// The index of a length in the list.
    pub(super) fn number_of(&self, length: usize) -> Option<usize> {
        self.lengths.iter().position(|known| usize::from(*known) == length)
    }

    /// Bytes of a segment.
    pub(super) fn segment_bytes(&self) -> usize {
        BUCKET_BYTES << self.bucket_bits
    }

    /// Bytes of all segments.
    pub(super) fn bytes(&self) -> u64 {
        (self.segment_bytes() * self.segments.len()) as u64
    }

    /// The lengths for which a node between `above` (its parent's position) and `plen` is express.
    pub(super) fn lengths_of(
        &self,
        above: Option<usize>,
        plen: usize,
    ) -> impl Iterator<Item = usize> {
        let lengths = self.lengths.iter().map(|length| usize::from(*length));
        lengths.filter(move |length| *length <= plen && above.is_none_or(|above| *length > above))
    }
}

/// The tables that exist.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Descriptor {
    pub(super) tables: Vec<Table>,
}

impl Descriptor {
    /// The table that lookups probe.
    pub(super) fn probed(&self) -> Option<&Table> {
        let of = |role| self.tables.iter().find(move |table| table.role == role);
        of(Role::Current).or_else(|| of(Role::Filling))
    }

    fn to_words(&self, number: u32) -> Vec<u64> {
        let mut words = vec![TAG, 0, self.tables.len() as u64];
        for table in &self.tables {
            let role = match table.role {
                Role::Current => 0,
                Role::Filling => 1,
                Role::Leaving => 2,
            };
            words.extend([
                role,
                table.lengths.len() as u64 | (table.segments.len() as u64) << 32,
                u64::from(table.print_bits) | u64::from(table.bucket_bits) << 32,
            ]);
            words.extend(table.lengths.iter().map(|length| u64::from(*length)));
            words.extend(table.segments.iter().map(|segment| segment.word()));
        }
        words[1] = checksum(&words, number);
        words
    }

    fn from_words(words: &[u64], number: u32) -> Option<Descriptor> {
        let (head, mut rest) = words.split_at_checked(3)?;
        if head[0] != TAG || head[2] > TABLES_MAX as u64 {
            return None;
        }
        let mut tables = Vec::new();
        for _ in 0..head[2] {
            let (of, more) = rest.split_at_checked(3)?;
            let (lengths, segments) = (of[1] as u32 as usize, (of[1] >> 32) as usize);
            if lengths > LENGTHS_MAX || segments > SEGMENTS_MAX || segments == 0 {
                return None;
            }
            let (list, more) = more.split_at_checked(lengths)?;
            let (places, more) = more.split_at_checked(segments)?;
            let role = [Role::Current, Role::Filling, Role::Leaving];
            tables.push(Table {
                role: *role.get(of[0] as usize)?,
                lengths: list.iter().map(|length| *length as u16).collect(),
                print_bits: (of[2] as u32).min(PRINT_BITS_MAX),
                bucket_bits: (of[2] >> 32) as u32,
                segments: places
                    .iter()
                    .map(|place| GlobalAddr::from_word(*place))
                    .collect::<Option<_>>()?,
            });
            rest = more;
        }
        let used = words.len() - rest.len();
        (head[1] == checksum(&words[..used], number)).then_some(Descriptor { tables })
    }
}

fn checksum(words: &[u64], number: u32) -> u64 {
    words
        .iter()
        .enumerate()
        .filter(|(index, _)| *index != 1)
        .fold(u64::from(number), |sum, (_, word)| xxh3_64_with_seed(&word.to_le_bytes(), sum))
}

/// The descriptor word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TablesWord(pub(super) u64);

impl TablesWord {
    /// Returns the descriptor's address and bytes; `None` if there is none.
    pub(super) fn place(self) -> Option<(GlobalAddr, usize)> {
        if self.0 & ADDR == 0 {
            return None;
        }
        let addr = GlobalAddr::new(ServerId((self.0 >> 40 & 0xff) as u16), self.0 & OFFSET);
        Some((addr, 64 << (self.0 >> 2 & 0xf).min(u64::from(CODE_MAX))))
    }

    /// The next version of the word, for a descriptor at `addr` of that code, or none.
    pub(super) fn next(self, place: Option<(GlobalAddr, u32)>) -> TablesWord {
        let version = (self.0 >> 48).wrapping_add(1) & 0xffff;
        let place = place.map_or(0, |(addr, code)| {
            u64::from(addr.server().0) << 40 | addr.offset() | u64::from(code) << 2
        });
        TablesWord(version << 48 | place)
    }
}

/// The descriptor that this compute server knows, with its word.
#[derive(Debug, Default)]
pub(crate) struct KnownTables(RwLock<Option<(u64, Arc<Descriptor>)>>);

impl KnownTables {
    /// Prefix lengths of the table that lookups probe.
    pub(in crate::dart) fn lengths(&self) -> Option<Lengths> {
        let known = self.0.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        known.as_ref().and_then(|(_, known)| Lengths::new(&known.probed()?.lengths))
    }

    /// Bytes of the known descriptor.
    pub(in crate::dart) fn bytes(&self) -> u64 {
        let known = self.0.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        let of = |table: &Table| 8 * table.segments.len() + 2 * table.lengths.len();
        let tables = known.iter().flat_map(|(_, known)| &known.tables);
        tables.map(|table| (size_of::<Table>() + of(table)) as u64).sum()
    }
}

impl DartTree {
    /// The tables that `word` names: known, or by 1 READ. What it names is not reused while the caller's
    /// operation runs.
    pub(super) async fn tables(
        &self,
        io: Reliable<'_>,
        word: TablesWord,
    ) -> Result<Option<Arc<Descriptor>>, IndexError> {
        let Some((addr, bytes)) = word.place() else { return Ok(None) };
        if let Some(known) = self.known(word) {
            return Ok(Some(known));
        }
        let read = io.read(addr, io.buf(bytes)).await;
        let buf = read.map_err(|error| self.misled(error))?;
        let descriptor = Descriptor::from_words(buf.words(), self.table).ok_or_else(|| {
            IndexError::Corrupt(format!(
                "no descriptor of skip tables of the table at {} is at {addr}; {REPAIR}",
                self.meta
            ))
        })?;
        let descriptor = Arc::new(descriptor);
        let mut known =
            self.known_tables.0.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        *known = Some((word.0, Arc::clone(&descriptor)));
        Ok(Some(descriptor))
    }

    /// The tables that `word` names, if they are known.
    pub(super) fn known(&self, word: TablesWord) -> Option<Arc<Descriptor>> {
        let known = self.known_tables.0.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        known.as_ref().filter(|(of, _)| *of == word.0).map(|(_, known)| Arc::clone(known))
    }

    /// Writes a descriptor. 1 WRITE.
    pub(super) async fn new_descriptor(
        &self,
        session: &Session,
        descriptor: &Descriptor,
    ) -> Result<(Unlinked, u32), IndexError> {
        let words = descriptor.to_words(self.table);
        let code = (words.len() * 8).div_ceil(64).next_power_of_two().ilog2();
        if code > CODE_MAX {
            return Err(IndexError::Full("a skip table has too many segments".into()));
        }
        let object = session.alloc_unlinked(session.place(), 64 << code).await?;
        let io = session.maintenance();
        let mut content = io.buf(object.bytes());
        content.words_mut().fill(0);
        content.words_mut()[..words.len()].copy_from_slice(&words);
        object.write_by(io, content).await?;
        Ok((object, code))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_come_back_and_damage_is_told() {
        let at = |offset| GlobalAddr::new(ServerId(2), offset);
        let table = |role, segments: u64| Table {
            role,
            lengths: vec![1, 2, 4],
            print_bits: 10,
            bucket_bits: 4,
            segments: (1..=segments).map(|number| at(1_024 * number)).collect(),
        };
        let tables =
            vec![table(Role::Current, 3), table(Role::Filling, 8), table(Role::Leaving, 1)];
        for count in 0..=3 {
            let descriptor = Descriptor { tables: tables[..count].to_vec() };
            let mut words = descriptor.to_words(5);
            words.extend([0; 7]);
            assert_eq!(Descriptor::from_words(&words, 5), Some(descriptor));
            assert_eq!(Descriptor::from_words(&words, 6), None);
            for word in 0..words.len() - 7 {
                let mut damaged = words.clone();
                damaged[word] ^= 4;
                assert_eq!(Descriptor::from_words(&damaged, 5), None, "word {word}");
            }
        }
        let descriptor = Descriptor { tables: tables.clone() };
        assert_eq!(descriptor.probed(), Some(&tables[0]));
        assert_eq!(Descriptor { tables: tables[1..].to_vec() }.probed(), Some(&tables[1]));
        assert_eq!(Descriptor { tables: tables[2..].to_vec() }.probed(), None);
    }

    #[test]
    fn words_count_their_versions() {
        let none = TablesWord(0);
        assert_eq!(none.place(), None);
        let addr = GlobalAddr::new(ServerId(255), (1 << 40) - 64);
        let word = none.next(Some((addr, 3)));
        assert_eq!(word.place(), Some((addr, 512)));
        assert_eq!(word.next(None).place(), None);
        assert_ne!(word.next(None), none);
        assert_ne!(word.next(Some((addr, 3))), word);
    }

    #[test]
    fn buckets_lie_in_their_segments() {
        let segments: Vec<GlobalAddr> =
            (0..4).map(|number| GlobalAddr::new(ServerId(number), 4_096)).collect();
        let table = Table {
            role: Role::Current,
            lengths: vec![1, 3],
            print_bits: 10,
            bucket_bits: 3,
            segments: segments.clone(),
        };
        assert_eq!(table.bytes(), 4 * 512);
        let mut hit = [0; 4];
        for number in 0..1_000_u32 {
            let at = table.bucket(PrefixHash::of(&number.to_le_bytes(), 1));
            let segment = usize::from(at.server().0);
            assert!(
                at.offset() >= 4_096 && at.offset() < 4_096 + 512 && at.offset().is_multiple_of(64)
            );
            hit[segment] += 1;
        }
        assert!(hit.iter().all(|count| *count > 150), "{hit:?}");
        assert_eq!(table.lengths_of(Some(1), 5).collect::<Vec<_>>(), [3]);
        assert_eq!(table.lengths_of(None, 2).collect::<Vec<_>>(), [1]);
    }
}
