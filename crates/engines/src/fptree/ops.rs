//! Operations: gets and changes of one key.
//!
//! A get READs the line of the key's leaf, then the slots whose fingerprints match. Without a match the line proves the
//! key absent (`INV-FP-2`). A change locks the line in the chain that READs it, READs the matching slots if there are any,
//! and posts its WRITEs and the unlock as one chain: the slot's WRITE is its instant.

use std::sync::Arc;

use farleaf_fabric::{Buf, GlobalAddr, OpError, Ops};
use farleaf_index::blink::canaries::FORGET_RETIRE;
use farleaf_index::join::join;
use farleaf_index::local::key_queues::ChangeLead;
use farleaf_index::remote_lock::Lock;
use farleaf_index::retry::{Attempts, LockWait};
use farleaf_index::{Change, Decision, IndexError, Outcome};
use farleaf_pool::{Retiring, Session};

use super::cache::LeafRecord;
use super::homes::{LinePlace, Op};
use super::layout::{self, Judged, LeafShape, PairContent};
use super::line::Line;
use super::locate::StaleWait;
use super::records::NewPairRecord;
use super::redo::PendingUpdate;
use super::{LeafTree, count_if};

farleaf_fabric::canaries! {
    pub(crate) LOSE_LEAF_REDO = "lose-leaf-redo",
        "a change of several words of a value leaves no redo record";
    pub(crate) SLOT_BEFORE_LINE = "slot-before-line",
        "an insert writes the slot before its fingerprint is in the line at a compute server";
    pub(crate) UNLOCK_BEFORE_SLOT = "unlock-before-slot",
        "a change gives back the lock at a compute server before its slot is written";
    pub(crate) SPECULATE_WITHOUT_EDITS = "speculate-without-edits",
        "a slot that was read before the lock counts although the line has been edited since";
    pub(crate) SPECULATE_ABSENCE = "speculate-absence",
        "a slot that was read before the lock and held no pair proves the key absent";
}

/// READs of a slot that does not fit its check before the operation looks at the leaf's lock.
const REREADS: u32 = 16;

/// A leaf whose line is locked.
#[derive(Debug)]
pub(super) struct LockedLeaf {
    pub(super) lock: Lock,
    pub(super) record: LeafRecord,
    pub(super) at: LinePlace,
    pub(super) line: Line,
}

/// A slot that holds the key, or may.
pub(super) struct FoundSlot {
    pub(super) index: usize,
    /// The first word of its value, which names its record if it has one.
    pub(super) word: u64,
    pub(super) slot: Buf,
    /// The content of its record, if it has been read.
    pub(super) pair: Option<Vec<u8>>,
}

impl FoundSlot {
    /// Copies the value, which has been read if it is in a record.
    pub(super) fn value(&self, shape: &LeafShape, value: &mut Vec<u8>) {
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

/// A slot that was READ before the lock was there, as the replica names it.
struct EarlySlot {
    line: Line,
    index: usize,
    image: Buf,
}

/// WRITEs of a change under a leaf's lock, in the order of their effects.
#[derive(Default)]
struct LeafWrites {
    /// The line before the slot is valid.
    line_before: Option<Line>,
    /// To the leaf's server: the redo record, and the slot. The change's instant.
    slots: Vec<(GlobalAddr, Buf)>,
    /// The line after the slot is empty.
    line_after: Option<Line>,
}

impl LeafTree {
    /// Copies the value of `key`; the caller has a pin.
    ///
    /// Cost: 1 READ of the line and 1.08 of slots, 2 waits; 1 more for a record.
    pub(super) async fn find(
        self: &Arc<Self>,
        session: &Op<'_>,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<bool, IndexError> {
        if self.is_homed() {
            return self.find_homed(session, key, value).await;
        }
        let fingerprint = self.shape.fingerprint(key);
        let mut changing = StaleWait::default();
        let mut seen = self.locate(session, key).await?;
        loop {
            let record = seen.record;
            let at = self.line_of(session, record.leaf).await?;
            let line = match self.read_line(session, at).await? {
                (Some(line), _) if line.version == record.version => line,
                _ => {
                    seen = self.refresh(session, key, seen, &mut changing).await?;
                    continue;
                }
            };
            value.clear();
            match self.search(session, record, &line, fingerprint, (key, true)).await? {
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
    pub(super) async fn search(
        &self,
        session: &Session,
        record: LeafRecord,
        line: &Line,
        fingerprint: u8,
        (key, wants_value): (&[u8], bool),
    ) -> Result<Option<Option<FoundSlot>>, IndexError> {
        let slots = self.matching(line, fingerprint);
        let images = self.read_slots(session, record.leaf, &slots).await?;
        self.search_in(session, record, (&slots, images), (key, wants_value)).await
    }

    /// The slots with that fingerprint.
    fn matching(&self, line: &Line, fingerprint: u8) -> Vec<usize> {
        line.matches(fingerprint).filter(|index| *index < self.shape.span).collect()
    }

    /// As [`LeafTree::search`], of slots that were READ.
    async fn search_in(
        &self,
        session: &Session,
        record: LeafRecord,
        (slots, images): (&[usize], Vec<Buf>),
        (key, wants_value): (&[u8], bool),
    ) -> Result<Option<Option<FoundSlot>>, IndexError> {
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
    pub(super) async fn read_slots(
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
        session: &Op<'_>,
        change: &Change<'_>,
        held: &mut Vec<u8>,
        lead: &mut Option<ChangeLead>,
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
            let at = self.line_of(session, record.leaf).await?;
            let (locked, early) = self.lock_for(session, at, record, change).await?;
            let (mut lock, line) = match locked {
                Ok(locked) => locked,
                Err(holder) => {
                    self.check_fresh(session, at)?;
                    if wait.again(session, ("leaf", record.leaf), holder).await? {
                        self.rescue(session, (record.leaf, at), holder).await?;
                    }
                    // The leaf may have been divided meanwhile.
                    seen = self.locate(session, change.key).await?;
                    continue;
                }
            };
            let line = match line {
                Some(line) if line.version == record.version => Some(line),
                // Never made at this home, or made for a leaf that was there before.
                line if self.is_homed() && (line.is_none() || changing.confirms(record)) => {
                    self.build_locked(session, &mut lock, at, record, change.key).await?
                }
                _ => None,
            };
            let Some(line) = line else {
                self.give_back(lock).await?;
                seen = self.refresh(session, change.key, seen, &mut changing).await?;
                continue;
            };
            let leaf = LockedLeaf { lock, record, at, line };
            let done = self.change_locked(session, change, new.as_ref(), held, (leaf, early), lead);
            match done.await? {
                LockedAttempt::Done(outcome) => return Ok(outcome),
                LockedAttempt::Again => {
                    attempts.again(session).await?;
                    changing = StaleWait::default();
                    seen = self.locate(session, change.key).await?;
                }
            }
        }
    }

    /// Tries to lock the leaf of `record` for `change`. READs the one slot that the replica names beside that, if the change does
    /// not look at the value; gives the replica with it.
    ///
    /// Cost: that of [`LeafTree::try_lock_line`]; 1 READ in the same wait.
    async fn lock_for(
        self: &Arc<Self>,
        session: &Op<'_>,
        at: LinePlace,
        record: LeafRecord,
        change: &Change<'_>,
    ) -> Result<(Result<(Lock, Option<Line>), u64>, Option<EarlySlot>), IndexError> {
        let token = session.lock_token();
        let Some(line) = self.speculation(at, record, change) else {
            return Ok((self.try_lock_line(session, at, 0, token).await?, None));
        };
        let slots = self.matching(&line, self.shape.fingerprint(change.key));
        let &[index] = slots.as_slice() else {
            return Ok((self.try_lock_line(session, at, 0, token).await?, None));
        };
        let slot = record.leaf.plus(self.shape.slot_at(index) as u64);
        let read = session.client().unawaited();
        let read = read.read(slot, session.client().buf(self.shape.slot_bytes));
        let (locked, image) = join(self.try_lock_line(session, at, 0, token), read).await;
        let early = image.ok().map(|image| EarlySlot { line, index, image });
        Ok((locked?, early))
    }

    /// The replica by which a change may READ a slot before it has the lock.
    fn speculation(&self, at: LinePlace, record: LeafRecord, change: &Change<'_>) -> Option<Line> {
        let parts = self.parts.as_ref().filter(|parts| parts.speculates)?;
        let looks_at_value = change.expected.is_some() || self.shape.has_record(change.key.len());
        if looks_at_value || !change.replaces {
            return None;
        }
        let line = parts.replicas.get(record.leaf, record.version)?;
        (line.term == at.term).then_some(line)
    }

    /// The change under the leaf's lock.
    async fn change_locked(
        self: &Arc<Self>,
        session: &Op<'_>,
        change: &Change<'_>,
        new: Option<&NewPairRecord>,
        held: &mut Vec<u8>,
        (leaf, early): (LockedLeaf, Option<EarlySlot>),
        lead: &mut Option<ChangeLead>,
    ) -> Result<LockedAttempt, IndexError> {
        let shape = &self.shape;
        let (record, key) = (leaf.record, change.key);
        let fingerprint = shape.fingerprint(key);
        let wants_value = change.expected.is_some();
        // With the same edits no slot has got another key since the replica's line was there. But the slot may have been READ
        // between an insert's WRITEs of line and slot, so only a pair counts.
        let wanted = (key, wants_value);
        let mut early_found = None;
        let is_same = |early: &EarlySlot| {
            early.line == leaf.line
                || SPECULATE_WITHOUT_EDITS.is_armed() && early.line.term == leaf.line.term
        };
        if let Some(EarlySlot { index, image, .. }) = early.filter(is_same) {
            let slots = (&[index][..], vec![image]);
            early_found = self.search_in(session, record, slots, wanted).await?;
            if !SPECULATE_ABSENCE.is_armed() {
                early_found = early_found.filter(Option::is_some);
            }
        }
        count_if(early_found.is_some(), &self.counts.speculated);
        let found = match early_found {
            found @ Some(_) => found,
            None => self.search(session, record, &leaf.line, fingerprint, wanted).await?,
        };
        let Some(found) = found else {
            // Nobody else writes a locked leaf, and the taker of a dead client's lock repairs it first.
            self.give_back(leaf.lock).await?;
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
                    if let Some(owner) = leaf.at.owner {
                        self.vouch_for(session, owner)?;
                    }
                    self.remember(record.leaf, leaf.line);
                    self.give_back(leaf.lock).await?;
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
        let mut lock = lock;
        let index = free.unwrap_or(0);
        let with_key = line.with(index, fingerprint);
        let is_early = found.is_none() && !at.is_beside_leaf();
        if is_early && !SLOT_BEFORE_LINE.is_armed() {
            // Before any other change is taken in: this may fail.
            self.write_line(session, &mut lock, at, &with_key).await?;
        }
        if let Err(error) = session.begin_posting() {
            retiring.into_iter().for_each(|it| session.cancel_retire(it));
            return Err(error);
        }
        let content = match new {
            Some(new) => Some(PairContent::Record(new.word())),
            // From here on nothing fails before the chain is posted.
            None if shape.has_record(key.len()) => None,
            None => match lead {
                Some(lead) => {
                    self.combine(lead, change).map(|value| PairContent::Inline(value.into_owned()))
                }
                None => change.value.map(|value| PairContent::Inline(value.to_vec())),
            },
        };
        let slot = |index: usize| record.leaf.plus(shape.slot_at(index) as u64);
        let mut writes = LeafWrites::default();
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
                    writes.slots.push((redo_at, update.buf(session, shape)));
                }
                writes.slots.push((slot(found.index).plus(8), image.window(shape.updated())));
            }
            (Some(found), None) => {
                let mut image = session.client().buf(shape.slot_bytes);
                shape.clear_slot((record.leaf, found.index), image.bytes_mut(), record.version);
                writes.slots.push((slot(found.index), image.window(0..24)));
                writes.line_after = Some(line.with(found.index, 0));
            }
            (None, Some(content)) => {
                let mut image = session.client().buf(shape.slot_bytes);
                shape.fill_slot(
                    (record.leaf, index),
                    image.bytes_mut(),
                    record.version,
                    (key, content),
                );
                writes.line_before = Some(with_key);
                writes.line_after = (is_early && SLOT_BEFORE_LINE.is_armed()).then_some(with_key);
                writes.slots.push((slot(index), image));
            }
            // The changes that were taken in leave the key absent.
            (None, None) => writes.line_after = is_early.then(|| with_key.with(index, 0)),
        }
        if let Some(new) = new {
            new.keep();
        }
        let retiring = retiring.filter(|_| !FORGET_RETIRE.is_armed());
        self.remember(record.leaf, writes.line_after.or(writes.line_before).unwrap_or(line));
        self.finish_change(session, at, lock, writes, retiring).await?;
        if let Some(mut lead) = lead.take() {
            lead.acknowledge();
        }
        if found.is_some() && content.is_none() && self.asks_merge(line.count() - 1) {
            self.merge(session, key).await;
        }
        Ok(LockedAttempt::Done(outcome))
    }

    /// The replica of a record's leaf.
    pub(super) fn replica(&self, record: LeafRecord) -> Option<Line> {
        self.parts.as_ref()?.replicas.get(record.leaf, record.version)
    }

    /// The line of a leaf as it is from now on, for later operations of this compute server.
    pub(super) fn remember(&self, leaf: GlobalAddr, line: Line) {
        if let Some(parts) = &self.parts {
            parts.replicas.put(leaf, line);
        }
    }

    /// Does the WRITEs of a change, and gives the lock back. Beside its leaf the line is in the same chain; elsewhere its WRITE with
    /// a new key's fingerprint has completed, and nobody waits for the unlock.
    ///
    /// Cost: 1 chain; or one wait for the slot, and a chain without a wait.
    ///
    /// # Errors
    /// `OutcomeUnknown`.
    async fn finish_change(
        &self,
        session: &Op<'_>,
        at: LinePlace,
        lock: Lock,
        writes: LeafWrites,
        retiring: Option<Retiring>,
    ) -> Result<(), IndexError> {
        let tree = self.shape.tree;
        if at.is_beside_leaf() {
            let mut ops = session.client().ops();
            if let Some(line) = writes.line_before {
                ops.write(at.at, line.encode(session, tree, at));
            }
            for (to, content) in writes.slots {
                ops.write(to, content);
            }
            if let Some(line) = writes.line_after {
                ops.write(at.at, line.encode(session, tree, at));
            }
            return lock.finish(ops, 0, retiring).await;
        }
        let patient = session.without_deadline();
        if UNLOCK_BEFORE_SLOT.is_armed() {
            lock.release_unawaited(|_, _| {});
            return Ok(write_all(&patient, writes.slots).await?);
        }
        if let Err(error) = write_all(&patient, writes.slots).await {
            // This compute server has been cut off.
            lock.abandon();
            return Err(IndexError::OutcomeUnknown(error.to_string()));
        }
        if let Some(retiring) = retiring {
            session.retire(retiring);
        }
        lock.release_unawaited(move |session, ops| {
            if let Some(line) = writes.line_after {
                ops.write(at.at, line.encode(session, tree, at));
            }
        });
        Ok(())
    }
}

/// WRITEs to one server, in their order. 1 round trip, none if there are none.
pub(super) async fn write_all(
    session: &Session,
    mut writes: Vec<(GlobalAddr, Buf)>,
) -> Result<(), OpError> {
    if writes.is_empty() {
        return Ok(());
    }
    let reliable = session.reliable();
    if writes.len() == 1
        && let Some((to, content)) = writes.pop()
    {
        return reliable.write(to, content).await;
    }
    let chain = |ops: &mut Ops| {
        for (to, content) in &writes {
            ops.write(*to, reliable.copy(content));
        }
    };
    reliable.chain(chain).await.map(drop)
}
