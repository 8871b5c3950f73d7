//! Operations: gets and changes of one key.
//!
//! A get READs the line of the key's leaf, then the slots whose fingerprints match. Without a match the line proves the
//! key absent (`INV-FP-2`). A change locks the line in the chain that READs it, READs the matching slots if there are any,
//! and posts its WRITEs and the unlock as one chain: the slot's WRITE is its instant.

use std::sync::Arc;

use farleaf_fabric::{Buf, GlobalAddr};
use farleaf_index::blink::canaries::FORGET_RETIRE;
use farleaf_index::local::key_queues::ChangeLead;
use farleaf_index::remote_lock::{Lock, try_lock_reading};
use farleaf_index::retry::{Attempts, LockWait};
use farleaf_index::{Change, Decision, IndexError, Outcome};
use farleaf_pool::Session;

use super::LeafTree;
use super::cache::LeafRecord;
use super::layout::{self, Judged, LeafShape, PairContent};
use super::line::{LINE_BYTES, Line, lock_at};
use super::locate::StaleWait;
use super::records::NewPairRecord;
use super::redo::PendingUpdate;

farleaf_fabric::canaries! {
    pub(crate) LOSE_LEAF_REDO = "lose-leaf-redo",
        "a change of several words of a value leaves no redo record";
}

/// READs of a slot that does not fit its check before the operation looks at the leaf's lock.
const REREADS: u32 = 16;

/// A leaf whose line is locked.
#[derive(Debug)]
pub(super) struct LockedLeaf {
    pub(super) lock: Lock,
    pub(super) record: LeafRecord,
    pub(super) at: GlobalAddr,
    pub(super) line: Line,
}

/// A slot that holds the key, or may.
struct FoundSlot {
    index: usize,
    /// The first word of its value, which names its record if it has one.
    word: u64,
    slot: Buf,
    /// The content of its record, if it has been read.
    pair: Option<Vec<u8>>,
}

impl FoundSlot {
    /// Copies the value, which has been read if it is in a record.
    fn value(&self, shape: &LeafShape, value: &mut Vec<u8>) {
        match &self.pair {
            Some(pair) => {
                value.clear();
                value.extend_from_slice(pair);
            }
            None => shape.value_of(self.slot.bytes(), value),
        }
    }
}

/// The end of an attempt under the lock.
enum LockedAttempt {
    Done(Outcome),
    Again,
}

impl LeafTree {
    /// Copies the value of `key`; the caller has a pin.
    ///
    /// Cost: 1 READ of the line and 1.08 of slots, 2 waits; 1 more for a record.
    pub(super) async fn find(
        self: &Arc<Self>,
        session: &Session,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<bool, IndexError> {
        let fingerprint = self.shape.fingerprint(key);
        let mut changing = StaleWait::default();
        let mut seen = self.locate(session, key).await?;
        loop {
            let record = seen.record;
            let at = self.lines.of(session, record.leaf).await?;
            let line = match self.read_line(session, at).await? {
                (Some(line), _) if line.version == record.version => line,
                _ => {
                    seen = self.refresh(session, key, seen, &mut changing).await?;
                    continue;
                }
            };
            value.clear();
            match self.search(session, record, &line, fingerprint, key, true).await? {
                None => seen = self.refresh(session, key, seen, &mut changing).await?,
                Some(None) => return Ok(false),
                Some(Some(found)) => {
                    found.value(&self.shape, value);
                    return Ok(true);
                }
            }
        }
    }

    /// READs the slots whose fingerprints match, all in one batch: the one that holds `key`, or none; `None` if the leaf
    /// is another one by now, or a slot stays torn.
    async fn search(
        &self,
        session: &Session,
        record: LeafRecord,
        line: &Line,
        fingerprint: u8,
        key: &[u8],
        wants_value: bool,
    ) -> Result<Option<Option<FoundSlot>>, IndexError> {
        let slots: Vec<usize> =
            line.matches(fingerprint).filter(|index| *index < self.shape.span).collect();
        let images = self.read_slots(session, record.leaf, &slots).await?;
        let mut is_whole = true;
        for (&index, mut image) in slots.iter().zip(images) {
            let mut rereads = 0;
            let judged = loop {
                let judged = self.shape.judge((record.leaf, index), image.bytes(), record.version);
                if judged != Judged::Torn || rereads == REREADS {
                    break judged;
                }
                rereads += 1;
                image = self.read_slots(session, record.leaf, &[index]).await?.remove(0);
            };
            match judged {
                Judged::Stale | Judged::Torn => is_whole = false,
                Judged::Empty => {}
                Judged::Pair(word) => {
                    if !self.shape.holds(image.bytes(), key) {
                        continue;
                    }
                    let mut pair = None;
                    let has_all = self.shape.key_of(image.bytes()).is_some();
                    if self.shape.has_record(key.len()) && (wants_value || !has_all) {
                        let (of, content) = self.read_record(session, word).await?;
                        if of != key {
                            continue;
                        }
                        pair = Some(content);
                    }
                    return Ok(Some(Some(FoundSlot { index, word, slot: image, pair })));
                }
            }
        }
        Ok(is_whole.then_some(None))
    }

    /// READs slots of a leaf, all at once.
    async fn read_slots(
        &self,
        session: &Session,
        leaf: GlobalAddr,
        slots: &[usize],
    ) -> Result<Vec<Buf>, IndexError> {
        let (reliable, bytes) = (session.reliable(), self.shape.slot_bytes);
        let at = |index: usize| leaf.plus(self.shape.slot_at(index) as u64);
        if let &[index] = slots {
            return Ok(vec![reliable.read(at(index), reliable.buf(bytes)).await?]);
        }
        if slots.is_empty() {
            return Ok(Vec::new());
        }
        let mut ops = reliable.client().ops();
        for &index in slots {
            ops.read(at(index), reliable.buf(bytes));
        }
        let mut ops = reliable.post_many(ops).await?;
        Ok((0..slots.len()).map(|index| ops.take_buf(index)).collect())
    }

    /// Changes one key, of a length and with a value that the table takes; the caller has a pin.
    ///
    /// Cost: update: CAS and READ of the line, READ of the slot, WRITE and unlock, 3 waits. Insert: CAS and READ, WRITEs
    /// of line and slot and unlock, 2 waits. Remove: as update, and 1 WRITE. A record adds a WRITE before.
    pub(super) async fn change_one(
        self: &Arc<Self>,
        session: &Session,
        change: &Change<'_>,
        held: &mut Vec<u8>,
        mut lead: Option<ChangeLead>,
    ) -> Result<Outcome, IndexError> {
        let new = match change.value {
            Some(value) if self.shape.has_record(change.key.len()) => {
                Some(self.write_record(session, change.key, value).await?)
            }
            _ => None,
        };
        let (mut changing, mut wait) = (StaleWait::default(), LockWait::default());
        let mut attempts = Attempts::default();
        let mut seen = self.locate(session, change.key).await?;
        loop {
            let record = seen.record;
            let at = self.lines.of(session, record.leaf).await?;
            let what = (at, LINE_BYTES);
            let token = session.lock_token();
            let (lock, image) = match try_lock_reading(session, lock_at(at), 0, token, what).await?
            {
                Ok(locked) => locked,
                Err(holder) => {
                    if wait.again(session, ("leaf", record.leaf), holder).await? {
                        self.rescue(session, (record.leaf, at), holder).await?;
                    }
                    // The leaf may have been divided meanwhile.
                    seen = self.locate(session, change.key).await?;
                    continue;
                }
            };
            let line = match Line::decode(self.shape.tree, at, &image).0 {
                Some(line) if line.version == record.version => line,
                _ => {
                    lock.release().await?;
                    seen = self.refresh(session, change.key, seen, &mut changing).await?;
                    continue;
                }
            };
            let leaf = LockedLeaf { lock, record, at, line };
            match self.change_locked(session, change, new.as_ref(), held, leaf, &mut lead).await? {
                LockedAttempt::Done(outcome) => return Ok(outcome),
                LockedAttempt::Again => {
                    attempts.again(session).await?;
                    changing = StaleWait::default();
                    seen = self.locate(session, change.key).await?;
                }
            }
        }
    }

    /// The change under the leaf's lock.
    async fn change_locked(
        self: &Arc<Self>,
        session: &Session,
        change: &Change<'_>,
        new: Option<&NewPairRecord>,
        held: &mut Vec<u8>,
        leaf: LockedLeaf,
        lead: &mut Option<ChangeLead>,
    ) -> Result<LockedAttempt, IndexError> {
        let shape = &self.shape;
        let (record, key) = (leaf.record, change.key);
        let fingerprint = shape.fingerprint(key);
        let wants_value = change.expected.is_some();
        let found = self.search(session, record, &leaf.line, fingerprint, key, wants_value).await?;
        let Some(found) = found else {
            // Nobody else writes a locked leaf, and the taker of a dead client's lock repairs it first.
            leaf.lock.release().await?;
            self.examine(session, key, record).await?;
            return Ok(LockedAttempt::Again);
        };
        if wants_value {
            held.clear();
            if let Some(found) = &found {
                found.value(shape, held);
            }
        }
        let outcome =
            match change.decide(found.is_some(), found.is_some().then_some(held.as_slice())) {
                Decision::Leave(outcome) => {
                    leaf.lock.release().await?;
                    return Ok(LockedAttempt::Done(outcome));
                }
                Decision::Apply(outcome) => outcome,
            };
        let old = found.as_ref().filter(|_| shape.has_record(key.len())).map(|found| found.word);
        // Room to retire the record that the slot stops naming, before the change: after it nothing may fail.
        let retiring = match old {
            Some(old) => Some(session.prepare_retire(self.record_place(old)?.0).await?),
            None => None,
        };
        let LockedLeaf { lock, at, line, .. } = leaf;
        let free = line.matches(0).find(|index| *index < shape.span);
        if found.is_none() && free.is_none() {
            self.split(session, LockedLeaf { lock, record, at, line }, key).await?;
            return Ok(LockedAttempt::Again);
        }
        let content = match new {
            Some(new) => Some(PairContent::Record(new.word())),
            // From here on nothing fails before the chain is posted.
            None if shape.has_record(key.len()) => None,
            None => match lead {
                Some(lead) => self.combine(lead, change).map(PairContent::Inline),
                None => change.value.map(|value| PairContent::Inline(value.to_vec())),
            },
        };
        let slot = |index: usize| record.leaf.plus(shape.slot_at(index) as u64);
        let mut ops = session.client().ops();
        match (&found, &content) {
            (Some(found), Some(content)) => {
                let mut image = session.client().buf(shape.slot_bytes);
                image.words_mut().fill(0);
                shape.fill_slot(
                    (record.leaf, found.index),
                    image.bytes_mut(),
                    record.version,
                    (key, content),
                );
                let blank = shape.blank(record.leaf, found.index);
                let is_blank = layout::word(image.bytes(), 2) == blank || found.word == blank;
                let is_told = shape.tells_old_from_new(key.len()) && !is_blank;
                if !is_told && !LOSE_LEAF_REDO.is_armed() {
                    let update = PendingUpdate {
                        token: lock.token(),
                        leaf: record,
                        slot: found.index,
                        content: image.bytes()[shape.updated()].to_vec(),
                    };
                    let redo_at = self.redo_at(session, record.leaf.server());
                    ops.write(redo_at, update.buf(session, shape));
                }
                ops.write(slot(found.index).plus(8), image.window(shape.updated()));
            }
            (Some(found), None) => {
                let mut image = session.client().buf(shape.slot_bytes);
                shape.clear_slot((record.leaf, found.index), image.bytes_mut(), record.version);
                ops.write(slot(found.index), image.window(0..24));
                ops.write(at, line.with(found.index, 0).encode(session, shape.tree, at));
            }
            (None, Some(content)) => {
                let index = free.unwrap_or(0);
                let mut image = session.client().buf(shape.slot_bytes);
                shape.fill_slot(
                    (record.leaf, index),
                    image.bytes_mut(),
                    record.version,
                    (key, content),
                );
                ops.write(at, line.with(index, fingerprint).encode(session, shape.tree, at));
                ops.write(slot(index), image);
            }
            (None, None) => {}
        }
        if let Some(new) = new {
            new.keep();
        }
        let retiring = retiring.filter(|_| !FORGET_RETIRE.is_armed());
        lock.finish(ops, 0, retiring).await?;
        if let Some(mut lead) = lead.take() {
            lead.acknowledge();
        }
        if found.is_some() && content.is_none() && self.asks_merge(line.count() - 1) {
            self.merge(session, key).await;
        }
        Ok(LockedAttempt::Done(outcome))
    }
}
