//! Rescue: finishes what a dead client was doing to a leaf, and frees its lock.
//!
//! With a redo record of the lock's token, the taker carries out the split from step 4 on, or the merge from step 3 on: it
//! writes a record of its own, takes the left leaf's lock, repeats the steps, and frees left, then right. The right leaf
//! alone is freed only once the left one's line carries its new version (split), or its own line is dead and the upper tree
//! knows (merge). Without a record the taker judges each slot by itself and builds the line from the leaf: nothing else can be
//! half done.

use std::sync::Arc;

use farleaf_fabric::{Endpoint, GlobalAddr};
use farleaf_index::IndexError;
use farleaf_index::detach::detach;
use farleaf_index::remote_lock::try_lock_reading;
use farleaf_index::retry::LockWait;
use farleaf_pool::{LockToken, Session};

use super::cache::LeafRecord;
use super::layout::{LeafShape, word};
use super::line::{LINE_BYTES, Line, lock_at};
use super::redo::{LeafRedo, Pending, PendingUpdate};
use super::{LeafTree, count};

farleaf_fabric::canaries! {
    pub(crate) TAKE_OVER_UNRECORDED = "take-over-unrecorded",
        "a takeover of a leaf writes no redo record of its own";
    pub(crate) BUILD_CLEARS_TORN = "build-clears-torn",
        "a slot that a dead client's update has torn is emptied";
    pub(crate) BUILD_KEEPS_TORN = "build-keeps-torn",
        "a slot that a dead client's insert or remove has torn is kept";
}

impl LeafTree {
    /// Finishes what the dead client of the lock word `holder` was doing to a leaf, and frees its lock; by a task. The
    /// caller has made sure of the death.
    ///
    /// Cost: 1 READ for each memory server; 1 CAS, 2 READs and up to 4 WRITEs; an edit of the upper tree after a split or a
    /// merge.
    #[cold]
    pub(super) async fn rescue(
        self: &Arc<Self>,
        session: &Session,
        leaf: (GlobalAddr, GlobalAddr),
        holder: u64,
    ) -> Result<(), IndexError> {
        let (tree, patient) = (Arc::clone(self), session.without_deadline());
        detach(session, async move { tree.rescue_now(&patient, leaf, holder).await }).await
    }

    /// Looks, under its lock, at a leaf that does not fit its record although nobody changes it; by a task. A line that is not
    /// whole is made anew from its leaf.
    ///
    /// Cost: 2 CAS, 2 READs, and one for each level of the upper tree; 1 WRITE of a line.
    ///
    /// # Errors
    /// `Corrupt` if the upper tree leads `key` there, and header or slots are not the record's.
    #[cold]
    pub(super) async fn examine(
        self: &Arc<Self>,
        session: &Session,
        key: &[u8],
        record: LeafRecord,
    ) -> Result<(), IndexError> {
        let (tree, key, patient) = (Arc::clone(self), key.to_vec(), session.without_deadline());
        detach(session, async move { tree.examine_now(&patient, &key, record).await }).await
    }

    async fn examine_now(
        &self,
        session: &Session,
        key: &[u8],
        record: LeafRecord,
    ) -> Result<(), IndexError> {
        let at = self.lines.of(session, record.leaf).await?;
        let (token, what) = (session.lock_token(), (at, LINE_BYTES));
        let Ok((lock, image)) = try_lock_reading(session, lock_at(at), 0, token, what).await?
        else {
            return Ok(());
        };
        let line = Line::decode(self.shape.tree, at, &image).0;
        match self.whole_line(session, key, record, line).await {
            Ok(Some(line)) => {
                let mut ops = session.client().ops();
                ops.write(at, line.encode(session, self.shape.tree, at));
                lock.finish(ops, 0, None).await
            }
            Ok(None) => lock.release().await,
            Err(error) => {
                lock.release().await?;
                Err(error)
            }
        }
    }

    /// The line that a locked leaf lacks, if it lacks one.
    async fn whole_line(
        &self,
        session: &Session,
        key: &[u8],
        record: LeafRecord,
        line: Option<Line>,
    ) -> Result<Option<Line>, IndexError> {
        let (shape, reliable, leaf) = (&self.shape, session.reliable(), record.leaf);
        if self.look_up(session, key).await?.record != record {
            return Ok(None);
        }
        let image = reliable.read(leaf, reliable.buf(shape.leaf_bytes)).await?;
        let header = shape.header(leaf, image.bytes());
        if header.is_none_or(|header| header.is_dead || header.version != record.version) {
            return Err(self.corrupt(&format!(
                "INV-FP-4: the leaf {leaf} has no header of version {}, as its record says",
                record.version
            )));
        }
        let slots = self.line_of_slots(session, record, image.bytes()).await?;
        match line {
            None => Ok(Some(slots)),
            Some(line) if line.version == record.version => Ok(None),
            Some(line) => Err(self.corrupt(&format!(
                "INV-FP-4: the leaf {leaf} of version {} has a line of version {}",
                record.version, line.version
            ))),
        }
    }

    pub(super) async fn rescue_now(
        self: &Arc<Self>,
        session: &Session,
        leaf: (GlobalAddr, GlobalAddr),
        holder: u64,
    ) -> Result<(), IndexError> {
        match self.find_redo(session, holder).await? {
            Some(LeafRedo::Pending(pending)) => {
                self.finish_pending(session, &pending, holder).await
            }
            Some(LeafRedo::Update(update)) => self.build(session, leaf, holder, Some(update)).await,
            None => self.build(session, leaf, holder, None).await,
        }
    }

    /// Carries out the split or merge that a dead and fenced client has left in the redo record `pending`, and waits for
    /// another taker that is at it. For a recovery, which erases that record.
    pub(super) async fn finish_left(
        self: &Arc<Self>,
        session: &Session,
        pending: &Pending,
    ) -> Result<(), IndexError> {
        let mut wait = LockWait::default();
        let sides = [(pending.left.leaf, pending.token), (pending.right.leaf, pending.right_token)];
        let places =
            [self.lines.of(session, sides[0].0).await?, self.lines.of(session, sides[1].0).await?];
        loop {
            let left = self.read_line(session, places[0]).await?.1;
            if left == pending.token {
                self.rescue(session, (sides[0].0, places[0]), left).await?;
                continue;
            }
            let right = self.read_line(session, places[1]).await?.1;
            if right != pending.right_token {
                return Ok(());
            }
            self.rescue(session, (sides[1].0, places[1]), right).await?;
            if self.read_line(session, places[1]).await?.1 != pending.right_token {
                return Ok(());
            }
            // Another has taken the left leaf's lock, and is at it.
            let holder = self.read_line(session, places[0]).await?.1;
            if holder != 0 && wait.again(session, ("leaf", sides[0].0), holder).await? {
                self.rescue(session, (sides[0].0, places[0]), holder).await?;
            }
        }
    }

    /// Carries out a split or a merge whose client is dead and fenced.
    async fn finish_pending(
        self: &Arc<Self>,
        session: &Session,
        pending: &Pending,
        holder: u64,
    ) -> Result<(), IndexError> {
        let (shape, reliable) = (&self.shape, session.reliable());
        let left = pending.left.leaf;
        let at = self.lines.of(session, left).await?;
        let right_at = self.lines.of(session, pending.right.leaf).await?;
        let token = session.lock_token();
        // Our own record first: if we die half way, the next one finds ours.
        let own = Pending { token, ..pending.clone() };
        if !TAKE_OVER_UNRECORDED.is_armed() {
            reliable.write(self.redo_at(session, left.server()), own.buf(session, shape)).await?;
        }
        let what = (at, LINE_BYTES);
        match try_lock_reading(session, lock_at(at), pending.token, token, what).await? {
            Ok((lock, _)) => {
                let done = match pending.is_merge {
                    false => self.finish_split(session, &own).await,
                    true => self.finish_merge(session, &own, at, right_at).await,
                };
                let line = match done {
                    Ok(line) => line,
                    Err(error) => {
                        // Another may finish it, by the dead client's record.
                        lock.finish(session.client().ops(), pending.token, None).await?;
                        return Err(error);
                    }
                };
                let mut ops = session.client().ops();
                ops.write(at, line.encode(session, shape.tree, at));
                lock.finish(ops, 0, None).await?;
                reliable.cas_release(lock_at(right_at), pending.right_token, 0).await?;
                count(&self.counts.rescued);
                Ok(())
            }
            // It is finished, or another taker is at it.
            Err(found) => {
                let is_done = holder == pending.right_token
                    && self.is_done(session, pending, at, right_at).await?;
                if is_done {
                    reliable.cas_release(lock_at(right_at), pending.right_token, 0).await?;
                } else if found != pending.token
                    && LockToken::from_word(found).is_some()
                    && session.owner_is_dead(found).await?
                {
                    // That taker has died over it, and nobody else may come to the left leaf.
                    Box::pin(self.rescue_now(session, (left, at), found)).await?;
                }
                Ok(())
            }
        }
    }

    /// Tells whether nothing is left to be done of a split or a merge but to free the right leaf's lock.
    async fn is_done(
        &self,
        session: &Session,
        pending: &Pending,
        at: GlobalAddr,
        right_at: GlobalAddr,
    ) -> Result<bool, IndexError> {
        if !pending.is_merge {
            let (line, _) = self.read_line(session, at).await?;
            return Ok(line.is_some_and(|line| line.version != pending.left.version));
        }
        let (line, _) = self.read_line(session, right_at).await?;
        if line.is_none_or(|line| line.version != pending.version) {
            return Ok(false);
        }
        // A taker writes its record before it takes the left leaf's lock, and frees that when the upper tree knows.
        let (_, holder) = self.read_line(session, at).await?;
        let is_same = |other: &LeafRedo| match other {
            LeafRedo::Pending(other) => (other.left, other.right) == (pending.left, pending.right),
            LeafRedo::Update(_) => false,
        };
        let other = self.find_redo(session, holder).await?;
        Ok(holder != pending.token && !other.as_ref().is_some_and(is_same))
    }

    /// The rest of a split, under the left leaf's lock; gives the left leaf's line.
    async fn finish_split(
        self: &Arc<Self>,
        session: &Session,
        own: &Pending,
    ) -> Result<Line, IndexError> {
        let shape = &self.shape;
        let left = own.left.leaf;
        let [image, right] = self.read_pair(session, left, own.right.leaf).await?;
        self.write_left(session, own, image.bytes()).await?;
        let Some(header) = shape.header(own.right.leaf, right.bytes()) else {
            return Err(self.corrupt(&format!(
                "the leaf {} of a split that was under way has no header",
                own.right.leaf
            )));
        };
        let bound = self.fence_key(session, &header.low).await?.unwrap_or_default();
        let high = self.fence_key(session, &header.high).await?;
        let high = high.unwrap_or_else(|| shape.largest());
        let new = [LeafRecord { leaf: left, version: own.version }, own.right];
        if let Some(edit) = self.split_edit(session, (&bound, &high), own.left, new).await? {
            edit.publish(&self.upper, session).await?;
        }
        let reliable = session.reliable();
        let image = reliable.read(left, reliable.buf(shape.leaf_bytes)).await?;
        self.line_of_slots(session, new[0], image.bytes()).await
    }

    /// The rest of a merge, under the left leaf's lock; gives the left leaf's line. The right leaf is retired.
    async fn finish_merge(
        self: &Arc<Self>,
        session: &Session,
        own: &Pending,
        at: GlobalAddr,
        right_at: GlobalAddr,
    ) -> Result<Line, IndexError> {
        let shape = &self.shape;
        let [mut image, right] = self.read_pair(session, own.left.leaf, own.right.leaf).await?;
        // Pairs whose slots are not whole in the right leaf any more have been copied.
        for (to, slot) in self.copies(own, right.bytes()) {
            let from = shape.slot_at(to);
            image.bytes_mut()[from..from + shape.slot_bytes].copy_from_slice(&slot);
        }
        let line = self.line_of_slots(session, own.left, image.bytes()).await?;
        let retiring = self.prepare_right(session, own).await?;
        self.write_merge(session, own, (at, line), &right).await?;
        let edit = self.merge_edit(session, own).await?;
        self.kill_right(session, own, right_at).await?;
        if let Some(edit) = edit {
            edit.publish(&self.upper, session).await?;
        }
        retiring.into_iter().for_each(|it| session.retire(it));
        Ok(line)
    }

    /// The line that the slots of a leaf make.
    async fn line_of_slots(
        &self,
        session: &Session,
        record: LeafRecord,
        image: &[u8],
    ) -> Result<Line, IndexError> {
        let mut line = Line::empty(record.version);
        for (key, index) in self.keys_of(session, record, image).await? {
            line = line.with(index, self.shape.fingerprint(&key));
        }
        // Another line than any before of this version.
        line.edits = session.endpoint().random() as u32;
        Ok(line)
    }

    /// Takes the lock, repairs each slot, and builds the line from the leaf. A leaf that no record leads to is only
    /// unlocked: whatever happens to it, nobody reads it as one of this table.
    async fn build(
        self: &Arc<Self>,
        session: &Session,
        (leaf, at): (GlobalAddr, GlobalAddr),
        holder: u64,
        update: Option<PendingUpdate>,
    ) -> Result<(), IndexError> {
        let (shape, reliable) = (&self.shape, session.reliable());
        let token = session.lock_token();
        let update = update.map(|update| PendingUpdate { token, ..update });
        if let Some(update) = &update
            && !TAKE_OVER_UNRECORDED.is_armed()
        {
            // As for a split: ours first.
            let redo_at = self.redo_at(session, leaf.server());
            reliable.write(redo_at, update.buf(session, shape)).await?;
        }
        let what = (at, LINE_BYTES);
        let Ok((lock, _)) = try_lock_reading(session, lock_at(at), holder, token, what).await?
        else {
            return Ok(());
        };
        let mut image = reliable.read(leaf, reliable.buf(shape.leaf_bytes)).await?;
        let record = match shape.header(leaf, image.bytes()).filter(|header| !header.is_dead) {
            None => None,
            Some(header) => {
                let high = self.fence_key(session, &header.high).await?;
                let high = high.unwrap_or_else(|| shape.largest());
                let record = LeafRecord { leaf, version: header.version };
                (self.look_up(session, &high).await?.record == record).then_some(record)
            }
        };
        let Some(record) = record else {
            return lock.release().await;
        };
        let mut ops = session.client().ops();
        for index in 0..shape.span {
            let from = shape.slot_at(index);
            let slot = &mut image.bytes_mut()[from..from + shape.slot_bytes];
            let before = slot.to_vec();
            let first = word(slot, 0);
            if first >> 1 != record.version {
                if first & 1 != 0 {
                    return Err(self.corrupt(&format!(
                        "INV-FP-4: slot {index} of the leaf {leaf} has a version other than the leaf's"
                    )));
                }
                // Its client died while it put a bulk load in the place of this empty leaf.
                shape.clear_slot((leaf, index), slot, record.version);
            }
            if let Some(update) = &update
                && update.leaf == record
                && update.slot == index
            {
                slot[shape.updated()].copy_from_slice(&update.content);
            }
            self.repair(shape, (leaf, index), slot, record.version);
            if before != slot {
                let mut words = reliable.buf(shape.slot_bytes);
                words.bytes_mut().copy_from_slice(slot);
                ops.write(leaf.plus(from as u64), words);
            }
        }
        let line = self.line_of_slots(session, record, image.bytes()).await?;
        ops.write(at, line.encode(session, shape.tree, at));
        lock.finish(ops, 0, None).await?;
        count(&self.counts.rescued);
        Ok(())
    }

    /// Repairs one slot under the leaf's lock.
    fn repair(&self, shape: &LeafShape, place: (GlobalAddr, usize), slot: &mut [u8], version: u64) {
        if BUILD_CLEARS_TORN.is_armed() {
            shape.clear_if_torn(place, slot, version);
        } else if BUILD_KEEPS_TORN.is_armed() {
            shape.take_if_torn(place, slot);
        } else {
            shape.repair_slot(place, slot, version);
        }
    }
}
