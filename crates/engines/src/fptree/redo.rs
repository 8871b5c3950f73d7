//! Redo records: describe a change of many words, for the client that takes over its dead client's locks.
//!
//! A record stands in the last bytes of its client's redo area, behind the records of the upper tree; that of a split or a
//! merge on the left leaf's server, that of an update on the leaf's. A record counts only for the locks whose tokens it names.
//!
//! Split and merge, words: 0 magic, 1 token of the left leaf's lock, 2 token of the right one's, 3 tree, 4 and 5 left leaf
//! and its version from before, 6 new version (split: of the left leaf; merge: the dead one of the right leaf), 7 and 8
//! right leaf and its version, 9 checksum; then a byte for each slot, and the left leaf's new header and its old one. The byte
//! tells where the pair of a slot goes (split: 1 if it moves; merge: the left leaf's slot + 1).
//!
//! Update, words: 0 magic, 1 token, 2 leaf, 3 tree, 4 version, 5 slot, 6 to 8 unused, 9 checksum; then check and value.
//! An update of one word needs none, unless it is from or to the value BLANK: a slot that is cut short tells what it was.

use farleaf_fabric::{Buf, Endpoint, GlobalAddr, ServerId};
use farleaf_index::IndexError;
use farleaf_index::blink::ENGINE_REDO_BYTES;
use farleaf_pool::{LockToken, Session};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::LeafTree;
use super::cache::LeafRecord;
use super::layout::{Header, LeafShape, SPAN_MAX, set, word};

const SPLIT: u64 = u64::from_le_bytes(*b"FLfpspl1");
const MERGE: u64 = u64::from_le_bytes(*b"FLfpmrg1");
const UPDATE: u64 = u64::from_le_bytes(*b"FLfpupd1");
const SUM: usize = 9;
const SLOTS_AT: usize = (SUM + 1) * 8;
const HEADER_AT: usize = SLOTS_AT + SPAN_MAX;

/// A split or a merge that is under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pending {
    pub(super) is_merge: bool,
    pub(super) token: u64,
    pub(super) right_token: u64,
    /// The left leaf as it was.
    pub(super) left: LeafRecord,
    pub(super) right: LeafRecord,
    pub(super) version: u64,
    /// The place that the pair of each slot goes to: of the left leaf (split), or of the right one (merge). 0: nowhere.
    pub(super) slots: [u8; SPAN_MAX],
    /// The left leaf's new header.
    pub(super) header: Header,
    /// That from before.
    pub(super) old: Header,
}

/// An update whose torn slot would not tell what it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PendingUpdate {
    pub(super) token: u64,
    pub(super) leaf: LeafRecord,
    pub(super) slot: usize,
    /// The slot's check and value.
    pub(super) content: Vec<u8>,
}

/// The content of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LeafRedo {
    Pending(Pending),
    Update(PendingUpdate),
}

impl LeafRedo {
    /// Tells whether it counts for the lock word `holder`.
    pub(super) fn is_of(&self, holder: u64) -> bool {
        match self {
            LeafRedo::Pending(pending) => [pending.token, pending.right_token].contains(&holder),
            LeafRedo::Update(update) => update.token == holder,
        }
    }

    /// Bytes of the longest record.
    pub(super) fn bytes(shape: &LeafShape) -> usize {
        (HEADER_AT + 2 * shape.header_bytes).max(SLOTS_AT + shape.updated().len())
    }

    /// The record in those bytes, if there is one of that tree.
    pub(super) fn decode(shape: &LeafShape, bytes: &[u8]) -> Option<LeafRedo> {
        let bytes = bytes.get(..LeafRedo::bytes(shape))?;
        if word(bytes, 3) != shape.tree || word(bytes, SUM) != sum(bytes) {
            return None;
        }
        let addr =
            |index: usize| GlobalAddr::from_word(word(bytes, index)).filter(|addr| !addr.is_null());
        let magic = word(bytes, 0);
        if magic == UPDATE {
            let slot = word(bytes, 5) as usize;
            return (slot < shape.span).then_some(LeafRedo::Update(PendingUpdate {
                token: word(bytes, 1),
                leaf: LeafRecord { leaf: addr(2)?, version: word(bytes, 4) },
                slot,
                content: bytes[SLOTS_AT..SLOTS_AT + shape.updated().len()].to_vec(),
            }));
        }
        if magic != SPLIT && magic != MERGE {
            return None;
        }
        let mut slots = [0; SPAN_MAX];
        slots.copy_from_slice(&bytes[SLOTS_AT..HEADER_AT]);
        if slots.iter().any(|slot| usize::from(*slot) > shape.span) {
            return None;
        }
        let left = addr(4)?;
        Some(LeafRedo::Pending(Pending {
            is_merge: magic == MERGE,
            token: word(bytes, 1),
            right_token: word(bytes, 2),
            left: LeafRecord { leaf: left, version: word(bytes, 5) },
            version: word(bytes, 6),
            right: LeafRecord { leaf: addr(7)?, version: word(bytes, 8) },
            slots,
            header: shape.header(left, &bytes[HEADER_AT..])?,
            old: shape.header(left, &bytes[HEADER_AT + shape.header_bytes..])?,
        }))
    }
}

impl Pending {
    /// Its bytes, into `bytes`.
    pub(super) fn encode(&self, shape: &LeafShape, bytes: &mut [u8]) {
        bytes.fill(0);
        let words = [
            if self.is_merge { MERGE } else { SPLIT },
            self.token,
            self.right_token,
            shape.tree,
            self.left.leaf.word(),
            self.left.version,
            self.version,
            self.right.leaf.word(),
            self.right.version,
        ];
        words.into_iter().enumerate().for_each(|(index, value)| set(bytes, index, value));
        bytes[SLOTS_AT..HEADER_AT].copy_from_slice(&self.slots);
        shape.put_header(self.left.leaf, &self.header, &mut bytes[HEADER_AT..]);
        let old = HEADER_AT + shape.header_bytes;
        shape.put_header(self.left.leaf, &self.old, &mut bytes[old..]);
        let sum = sum(bytes);
        set(bytes, SUM, sum);
    }

    pub(super) fn buf(&self, session: &Session, shape: &LeafShape) -> Buf {
        let mut buf = session.client().buf(LeafRedo::bytes(shape));
        self.encode(shape, buf.bytes_mut());
        buf
    }
}

impl PendingUpdate {
    pub(super) fn encode(&self, shape: &LeafShape, bytes: &mut [u8]) {
        bytes.fill(0);
        let words = [
            UPDATE,
            self.token,
            self.leaf.leaf.word(),
            shape.tree,
            self.leaf.version,
            self.slot as u64,
        ];
        words.into_iter().enumerate().for_each(|(index, value)| set(bytes, index, value));
        bytes[SLOTS_AT..SLOTS_AT + self.content.len()].copy_from_slice(&self.content);
        let sum = sum(bytes);
        set(bytes, SUM, sum);
    }

    pub(super) fn buf(&self, session: &Session, shape: &LeafShape) -> Buf {
        let mut buf = session.client().buf(LeafRedo::bytes(shape));
        self.encode(shape, buf.bytes_mut());
        buf
    }
}

fn sum(bytes: &[u8]) -> u64 {
    let first = xxh3_64_with_seed(&bytes[..SUM * 8], SPLIT);
    xxh3_64_with_seed(&bytes[SLOTS_AT..], first)
}

/// Offset of the records of this engine in a redo area.
pub(super) fn redo_offset(session: &Session) -> u64 {
    session.redo_bytes().saturating_sub(ENGINE_REDO_BYTES) as u64
}

impl LeafTree {
    /// The place of this client's records on a server.
    pub(super) fn redo_at(&self, session: &Session, server: ServerId) -> GlobalAddr {
        session.redo_addr(server).plus(redo_offset(session))
    }

    /// The record that the client of the lock word `holder` has left for it. 1 READ for each memory server.
    pub(super) async fn find_redo(
        &self,
        session: &Session,
        holder: u64,
    ) -> Result<Option<LeafRedo>, IndexError> {
        if LockToken::from_word(holder).is_none() {
            return Ok(None);
        }
        for server in 0..session.endpoint().server_count() {
            let area = session.redo_addr_of(ServerId(server as u16), holder)?;
            let record = self.read_redo(session, area).await?;
            if let Some(record) = record.filter(|record| record.is_of(holder)) {
                return Ok(Some(record));
            }
        }
        Ok(None)
    }

    /// The record in the redo area at `area`. 1 READ.
    pub(super) async fn read_redo(
        &self,
        session: &Session,
        area: GlobalAddr,
    ) -> Result<Option<LeafRedo>, IndexError> {
        let reliable = session.reliable();
        let buf = reliable.buf(LeafRedo::bytes(&self.shape));
        let buf = reliable.read(area.plus(redo_offset(session)), buf).await?;
        Ok(LeafRedo::decode(&self.shape, buf.bytes()))
    }
}
