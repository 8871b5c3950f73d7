//! Proofs: gets of a table whose lines lie on compute servers, by replicas, by lines, or by whole leaves.
//!
//! A replica tells which slots to READ for a key that is there: 1 wait, and no line. It proves no key absent. The line at its
//! home does, inside the partition guard (`INV-FP-2`). And so does the whole leaf, if its header and all slots have the record's
//! version: a leaf that leaves the tree, or whose range shrinks, has another one in every slot first. That needs no line. So no
//! get waits for a partition, nor for a compute server that is dead, stopped or out of reach.

use std::sync::Arc;

use farleaf_fabric::Buf;
use farleaf_index::IndexError;
use farleaf_pool::Session;

use super::cache::LeafRecord;
use super::homes::Op;
use super::layout::{Judged, word};
use super::line::Line;
use super::locate::StaleWait;
use super::ops::FoundSlot;
use super::{LeafTree, count};

farleaf_fabric::canaries! {
    pub(crate) REPLICA_PROVES_ABSENCE = "replica-proves-absence",
        "a replica without a key's fingerprint proves the key absent";
    pub(crate) HEADER_PROVES_LEAF = "header-proves-leaf",
        "a whole leaf counts by its header, whatever versions its slots have";
}

/// READs of a leaf with a torn slot before the get looks at the leaf's lock.
const REREADS: u32 = 16;

impl LeafTree {
    /// Copies the value of `key`; the caller has a pin.
    ///
    /// Cost: 1.08 READs of slots, 1 wait, if the replica has the key. Else 1 READ of the line, and those of slots with the key's
    /// fingerprint: 2 waits, or 1 if there is none. Or 1 READ of the leaf.
    pub(super) async fn find_homed(
        self: &Arc<Self>,
        op: &Op<'_>,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<bool, IndexError> {
        let fingerprint = self.shape.fingerprint(key);
        let mut changing = StaleWait::default();
        let mut seen = self.locate(op, key).await?;
        value.clear();
        loop {
            let found = self.find_by(op, seen.record, fingerprint, key, &changing).await?;
            match found {
                Some(Some(found)) => {
                    found.value(&self.shape, value);
                    return Ok(true);
                }
                Some(None) => return Ok(false),
                None => seen = self.refresh(op, key, seen, &mut changing).await?,
            }
        }
    }

    /// The slot that holds `key` in the leaf of `record`, or none; `None` if the record does not hold, or a slot stays torn.
    async fn find_by(
        &self,
        op: &Op<'_>,
        record: LeafRecord,
        fingerprint: u8,
        key: &[u8],
        changing: &StaleWait,
    ) -> Result<Option<Option<FoundSlot>>, IndexError> {
        let Some(parts) = &self.parts else { return Ok(None) };
        let counts = &self.counts;
        let replica = parts.replicas.get(record.leaf, record.version);
        if REPLICA_PROVES_ABSENCE.is_armed()
            && replica.is_some_and(|line| line.matches(fingerprint).next().is_none())
        {
            return Ok(Some(None));
        }
        if let Some(line) = replica.filter(|line| line.matches(fingerprint).next().is_some()) {
            match self.search(op, record, &line, fingerprint, (key, true)).await? {
                Some(None) => count(&counts.replicas_behind),
                found => {
                    count(&counts.replica_hits);
                    return Ok(found);
                }
            }
        }
        match self.peek_line(op, record.leaf).await? {
            Some(line) if line.version == record.version => {
                count(&counts.line_proofs);
                parts.replicas.put(record.leaf, line);
                return self.search(op, record, &line, fingerprint, (key, true)).await;
            }
            // If the leaf's header has the record's version, the line is of a leaf that was there before.
            Some(_) if !changing.confirms(record) => return Ok(None),
            _ => {}
        }
        count(&counts.leaf_proofs);
        self.search_leaf(op, record, key).await
    }

    /// As [`LeafTree::search`], by the whole leaf. 1 READ.
    async fn search_leaf(
        &self,
        session: &Session,
        record: LeafRecord,
        key: &[u8],
    ) -> Result<Option<Option<FoundSlot>>, IndexError> {
        let shape = &self.shape;
        for _ in 0..REREADS {
            let Some(image) = self.read_leaf_of(session, record).await? else {
                return Ok(None);
            };
            let slot = |index: usize| shape.slot(image.bytes(), index);
            let (mut line, mut wanted, mut is_torn) = (Line::empty(record.version), None, false);
            for index in 0..shape.span {
                match shape.judge((record.leaf, index), slot(index), record.version) {
                    // Both are of the version.
                    Judged::Stale if HEADER_PROVES_LEAF.is_armed() => {}
                    Judged::Stale | Judged::Torn => is_torn = true,
                    Judged::Empty => {}
                    Judged::Pair(word) => {
                        line = line.with(index, shape.slot_fingerprint(slot(index)));
                        if !shape.holds(slot(index), key) {
                            continue;
                        }
                        let mut pair = None;
                        if shape.has_record(key.len()) {
                            let (of, content) = self.read_record(session, word).await?;
                            if of != key {
                                continue;
                            }
                            pair = Some(content);
                        }
                        wanted = Some((index, word, pair));
                    }
                }
            }
            if wanted.is_some() || !is_torn {
                // A hint for later gets, which proves no key absent. Its term is none that lines have, so no change
                // speculates by it.
                self.remember(record.leaf, line);
            }
            if let Some((index, word, pair)) = wanted {
                let mut copy = session.client().buf(shape.slot_bytes);
                copy.bytes_mut().copy_from_slice(slot(index));
                return Ok(Some(Some(FoundSlot { index, word, slot: copy, pair })));
            }
            if !is_torn {
                return Ok(Some(None));
            }
        }
        Ok(None)
    }

    /// READs a leaf; `None` if its header is not the record's, or a slot has another version. 1 READ.
    ///
    /// The header is bound to the table: an empty leaf of another table may have that version as well.
    async fn read_leaf_of(
        &self,
        session: &Session,
        record: LeafRecord,
    ) -> Result<Option<Buf>, IndexError> {
        let reliable = session.reliable();
        let image = reliable.read(record.leaf, reliable.buf(self.shape.leaf_bytes)).await?;
        Ok(self.is_all_of(record, image.bytes()).then_some(image))
    }

    /// Tells whether header and all slots of a leaf that was READ have the record's version.
    pub(super) fn is_all_of(&self, record: LeafRecord, image: &[u8]) -> bool {
        let shape = &self.shape;
        let header = shape.header(record.leaf, image);
        header.is_some_and(|header| !header.is_dead && header.version == record.version)
            && (HEADER_PROVES_LEAF.is_armed()
                || (0..shape.span)
                    .all(|index| word(shape.slot(image, index), 0) >> 1 == record.version))
    }
}
