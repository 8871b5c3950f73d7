//! Entries: slots of the skip table, each of which names the node that stands behind a prefix.
//!
//! | bits | field |
//! |---|---|
//! | 63..56, 1..0 | fingerprint of the prefix |
//! | 5..2 | index of the prefix's length in the table's list |
//! | 55..52 | position of the node, less the prefix's length |
//! | 51..49 | type of the node, N8 to N256 |
//! | 48 | TENT: readers ignore the entry |
//! | 47..6 | address |
//!
//! The word 0 is a free slot. The table holds no keys: an entry is a hint, which its reader checks. The index is
//! no hint: with the length of another prefix, the node's position would be wrong, and no proof would show it.

use farleaf_fabric::{GlobalAddr, ServerId};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::dart::descent::NodeRef;
use crate::dart::word::{DartNodeType, LEN_MAX};

/// Slots of a bucket.
pub(super) const BUCKET_SLOTS: usize = 8;
/// Bytes of a bucket.
pub(super) const BUCKET_BYTES: usize = 8 * BUCKET_SLOTS;

const TENT: u64 = 1 << 48;
const PRINT: u64 = 0xff << 56 | 0x3;
const INDEX_SHIFT: u32 = 2;
const INDEX: u64 = 0xf << INDEX_SHIFT;
/// Bits of a fingerprint at most.
pub(super) const PRINT_BITS_MAX: u32 = 10;
const ADDR: u64 = 0x0000_ffff_ffff_ffc0;
const OFFSET: u64 = 0x0000_00ff_ffff_ffc0;
/// Bits of a hash between those that choose the bucket and those that choose the segment.
const PRINT_SHIFT: u32 = 24;

/// The hash of a prefix: the highest bits choose the segment, the lowest the bucket, others are the
/// fingerprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PrefixHash(pub(super) u64);

impl PrefixHash {
    pub(super) fn of(prefix: &[u8], table: u32) -> PrefixHash {
        let seed = u64::from(table) << 32 | prefix.len() as u64;
        PrefixHash(xxh3_64_with_seed(prefix, seed))
    }

    /// As it stands in an entry, cut to `bits`.
    fn print(self, bits: u32) -> u64 {
        let print = self.0 >> PRINT_SHIFT & ((1 << bits) - 1);
        (print >> 2) << 56 | print & 0x3
    }
}

/// One slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SkipEntry(pub(super) u64);

impl SkipEntry {
    pub(super) const FREE: SkipEntry = SkipEntry(0);

    /// A tentative entry for the node behind a prefix of `len` bytes, which is number `index` of the list; `None`
    /// if the node stands too far below.
    pub(super) fn tentative(
        hash: PrefixHash,
        bits: u32,
        (index, len): (usize, usize),
        node: NodeRef,
    ) -> Option<SkipEntry> {
        let more = node.plen.checked_sub(len).filter(|more| *more <= LEN_MAX)?;
        let place = u64::from(node.addr.server().0) << 40 | node.addr.offset();
        let word = hash.print(bits)
            | (index as u64) << INDEX_SHIFT & INDEX
            | (more as u64) << 52
            | u64::from(node.kind.number()) << 49
            | TENT
            | place;
        Some(SkipEntry(word))
    }

    /// The same for another node.
    pub(super) fn moved(self, len: usize, node: NodeRef) -> Option<SkipEntry> {
        let entry = SkipEntry::tentative(PrefixHash(0), 0, (0, len), node)?;
        Some(SkipEntry(entry.0 | self.0 & (PRINT | INDEX)))
    }

    /// The same, for readers.
    pub(super) fn valid(self) -> SkipEntry {
        SkipEntry(self.0 & !TENT)
    }

    pub(super) fn is_free(self) -> bool {
        self.0 == 0
    }

    pub(super) fn is_tentative(self) -> bool {
        self.0 & TENT != 0
    }

    pub(super) fn addr(self) -> GlobalAddr {
        GlobalAddr::new(ServerId((self.0 >> 40 & 0xff) as u16), self.0 & OFFSET)
    }

    /// The node that a prefix of `len` bytes leads to, if the entry has its fingerprint and index.
    pub(super) fn node(
        self,
        hash: PrefixHash,
        bits: u32,
        (index, len): (usize, usize),
    ) -> Option<NodeRef> {
        let wanted = hash.print(bits) | (index as u64) << INDEX_SHIFT & INDEX;
        if self.0 & ADDR == 0 || self.0 & (PRINT | INDEX) != wanted {
            return None;
        }
        let kind = DartNodeType::of((self.0 >> 49 & 7) as u8)?;
        let plen = len + (self.0 >> 52 & 0xf) as usize;
        Some(NodeRef { addr: self.addr(), kind, plen })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_name_their_nodes() {
        for (number, addr) in [(0, 64), (255, (1 << 40) - 64), (3, 1 << 20)] {
            let addr = GlobalAddr::new(ServerId(number), addr);
            for kind in DartNodeType::all() {
                for (bits, index) in [(0, 0), (1, 7), (PRINT_BITS_MAX, 15)] {
                    let hash = PrefixHash::of(b"abc", 7);
                    let node = NodeRef { addr, kind, plen: 9 };
                    let entry =
                        SkipEntry::tentative(hash, bits, (index, 3), node).expect("near enough");
                    assert!(entry.is_tentative() && !entry.is_free());
                    assert!(!entry.valid().is_tentative());
                    assert_eq!(entry.valid().node(hash, bits, (index, 3)), Some(node));
                    assert_eq!(entry.node(hash, bits, (index ^ 1, 3)), None, "another length");
                    assert_eq!(entry.addr(), addr);
                    let other = NodeRef { addr: GlobalAddr::new(ServerId(1), 128), kind, plen: 5 };
                    let moved = entry.valid().moved(3, other).expect("near enough");
                    assert!(moved.is_tentative());
                    assert_eq!(moved.node(hash, bits, (index, 3)), Some(other));
                }
            }
        }
        let far =
            NodeRef { addr: GlobalAddr::new(ServerId(0), 64), kind: DartNodeType::N8, plen: 19 };
        assert_eq!(SkipEntry::tentative(PrefixHash(1), 10, (0, 3), far), None);
        assert_eq!(SkipEntry::tentative(PrefixHash(1), 10, (0, 20), far), None);
    }

    #[test]
    fn other_prefixes_are_told_apart() {
        let node =
            NodeRef { addr: GlobalAddr::new(ServerId(0), 64), kind: DartNodeType::N8, plen: 3 };
        let entry =
            SkipEntry::tentative(PrefixHash::of(b"abc", 7), 10, (0, 3), node).expect("an entry");
        let strangers = (0..10_000_u32).filter(|number| {
            entry.node(PrefixHash::of(&number.to_le_bytes()[..3], 7), 10, (0, 3)).is_some()
        });
        assert!(strangers.count() < 40, "10 bits tell 1,024 prefixes apart");
        assert_ne!(PrefixHash::of(b"abc", 7), PrefixHash::of(b"abc", 8), "another table");
    }
}
