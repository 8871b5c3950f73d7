//! Rescue: finishes what a dead client was doing to a leaf, and frees its lock.
//!
//! With a redo record of the lock's token, the taker carries out the split from step 4 on, or the merge from step 3 on: it
//! writes a record of its own, takes the left leaf's lock, repeats the steps, and frees left, then right. The right leaf
//! alone is freed only once the left one's line carries its new version (split), or its own line is dead and the upper tree
//! knows (merge). Without a record the taker judges each slot by itself and builds the line from the leaf: nothing else can be
//! half done.

use std::sync::Arc;

use farleaf_fabric::{Buf, Endpoint, GlobalAddr};
use farleaf_index::IndexError;
use farleaf_index::compute::regions::{RegionEnd, on_region};
use farleaf_index::detach::detach;
use farleaf_index::remote_lock::Lock;
use farleaf_index::retry::LockWait;
use farleaf_pool::{LockToken, Session};

use super::cache::LeafRecord;
use super::homes::{LinePlace, Op, Reach};
use super::layout::{Fence, Judged, LeafShape, word};
use super::line::{Line, lock_at};
use super::ops::write_all;
use super::redo::{LeafRedo, Pending, PendingUpdate};
use super::{LeafTree, count};

farleaf_fabric::canaries! {
    pub(crate) TAKE_OVER_UNRECORDED = "take-over-unrecorded",
        "a takeover of a leaf writes no redo record of its own";
    pub(crate) BUILD_CLEARS_TORN = "build-clears-torn",
        "a slot that a dead client's update has torn is emptied";
    pub(crate) BUILD_KEEPS_TORN = "build-keeps-torn",
        "a slot that a dead client's insert or remove has torn is kept";
    pub(crate) FREE_RIGHT_ALONE = "free-right-alone",
        "the right leaf of a dead client's split or merge is unlocked before that is finished";
    pub(crate) REDO_FINISHED = "redo-finished",
        "a split or merge of a dead client is carried out again although the upper tree has it";
    pub(crate) FORGET_UNLOCKED_REDO = "forget-unlocked-redo",
        "a split or merge whose lock was lost with its compute server stays half done";
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
        session: &Op<'_>,
        leaf: (GlobalAddr, LinePlace),
        holder: u64,
    ) -> Result<(), IndexError> {
        let (tree, patient) = (Arc::clone(self), session.without_deadline());
        let right = session.for_task(self);
        detach(session, async move { tree.rescue_now(&right.on(&patient), leaf, holder).await })
            .await
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
        session: &Op<'_>,
        key: &[u8],
        record: LeafRecord,
    ) -> Result<(), IndexError> {
        let (tree, key, patient) = (Arc::clone(self), key.to_vec(), session.without_deadline());
        let right = session.for_task(self);
        detach(session, async move { tree.examine_now(&right.on(&patient), &key, record).await })
            .await
    }

    async fn examine_now(
        self: &Arc<Self>,
        session: &Op<'_>,
        key: &[u8],
        record: LeafRecord,
    ) -> Result<(), IndexError> {
        let at = self.line_of(session, record.leaf).await?;
        let token = session.lock_token();
        let Ok((mut lock, line)) = self.try_lock_line(session, at, 0, token).await? else {
            return Ok(());
        };
        if self.is_homed() {
            let built = self.build_locked(session, &mut lock, at, record, key).await;
            let is_damaged = matches!(built, Ok(None))
                && self.look_up(session, key).await.is_ok_and(|found| found.record == record);
            self.give_back(lock).await?;
            return match is_damaged {
                false => built.map(drop),
                true => Err(self.corrupt(&format!(
                    "INV-FP-4: the leaf {} has no header of version {}, as its record says",
                    record.leaf, record.version
                ))),
            };
        }
        match self.whole_line(session, key, record, line).await {
            Ok(Some(line)) => self.finish_line(session, at, lock, Some(&line), 0).await,
            Ok(None) => self.give_back(lock).await,
            Err(error) => {
                self.give_back(lock).await?;
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
        session: &Op<'_>,
        leaf: (GlobalAddr, LinePlace),
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
    /// another taker that is at it. For a recovery, which erases that record; and for a conductor, that opens partitions whose
    /// lines are lost.
    pub(super) async fn finish_left(
        self: &Arc<Self>,
        session: &Op<'_>,
        pending: &Pending,
    ) -> Result<(), IndexError> {
        let mut wait = LockWait::default();
        let sides = [(pending.left.leaf, pending.token), (pending.right.leaf, pending.right_token)];
        let [left_at, right_at] = [
            self.open_line(session, sides[0].0).await?,
            self.open_line(session, sides[1].0).await?,
        ];
        let Some(left_at) = left_at else {
            return self.finish_unlocked(session, pending, right_at).await;
        };
        loop {
            let left = self.read_line(session, left_at).await?.1;
            if left == pending.token {
                self.rescue(session, (sides[0].0, left_at), left).await?;
                continue;
            }
            let Some(right_at) = right_at else {
                // Nobody meets the right leaf before it has got a home. Its taker may be at the left one.
                if left == 0 || !self.is_same_change(session, pending, left).await? {
                    return Ok(());
                }
                if wait.again(session, ("leaf", sides[0].0), left).await? {
                    self.rescue(session, (sides[0].0, left_at), left).await?;
                }
                continue;
            };
            let right = self.read_line(session, right_at).await?.1;
            if right != pending.right_token {
                return Ok(());
            }
            self.rescue(session, (sides[1].0, right_at), right).await?;
            if self.read_line(session, right_at).await?.1 != pending.right_token {
                return Ok(());
            }
            // Another has taken the left leaf's lock, and is at it.
            let holder = self.read_line(session, left_at).await?.1;
            if holder != 0 && wait.again(session, ("leaf", sides[0].0), holder).await? {
                self.rescue(session, (sides[0].0, left_at), holder).await?;
            }
        }
    }

    /// The line of a leaf of a change that is to be finished; `None` for a conductor whose partition it is that has no home yet.
    async fn open_line(
        &self,
        session: &Op<'_>,
        leaf: GlobalAddr,
    ) -> Result<Option<LinePlace>, IndexError> {
        match self.reach(session, leaf, true).await? {
            Reach::At(place) => Ok(Some(place)),
            Reach::Stop(_) if session.is_conductor() => Ok(None),
            Reach::Stop(stop) => Err(session.stopped(stop)),
            Reach::Unmade => Ok(None),
        }
    }

    /// Carries out a split or a merge whose left lock is lost, as the conductor; frees the right one's, if that is there. The upper
    /// tree tells whether anything is left to be done: it changes last, and it names a version only once.
    async fn finish_unlocked(
        self: &Arc<Self>,
        session: &Op<'_>,
        pending: &Pending,
        right_at: Option<LinePlace>,
    ) -> Result<(), IndexError> {
        let own = Pending { token: session.lock_token(), ..pending.clone() };
        if self.is_unfinished(session, pending).await? && !FORGET_UNLOCKED_REDO.is_armed() {
            match pending.is_merge {
                false => self.finish_split(session, &own).await?,
                true => self.finish_merge(session, &own, None, right_at).await?,
            };
            count(&self.counts.rescued);
        }
        if let Some(at) = right_at {
            let freed = session.reliable().cas_release(lock_at(at.at), pending.right_token, 0);
            freed.await?;
        }
        Ok(())
    }

    /// Tells whether the upper tree still has the record from before a split or a merge.
    async fn is_unfinished(
        &self,
        session: &Session,
        pending: &Pending,
    ) -> Result<bool, IndexError> {
        if REDO_FINISHED.is_armed() {
            return Ok(true);
        }
        // The fence's record may have been freed since, and its memory used again: a version is named only once.
        let (record, high) = match pending.is_merge {
            false => (pending.left, &pending.old.high),
            true => (pending.right, &pending.header.high),
        };
        let Some(high) = self.old_fence_key(session, high).await? else { return Ok(false) };
        Ok(self.look_up(session, &high).await?.record == record)
    }

    /// Carries out a split or a merge whose client is dead and fenced.
    async fn finish_pending(
        self: &Arc<Self>,
        session: &Op<'_>,
        pending: &Pending,
        holder: u64,
    ) -> Result<(), IndexError> {
        let (shape, reliable) = (&self.shape, session.reliable());
        let left = pending.left.leaf;
        let Some(at) = self.open_line(session, left).await? else {
            // The conductor sees to it, before it opens the left leaf's partition.
            return Ok(());
        };
        let right_at = self.open_line(session, pending.right.leaf).await?;
        let token = session.lock_token();
        // Our own record first: if we die half way, the next one finds ours.
        let own = Pending { token, ..pending.clone() };
        if !TAKE_OVER_UNRECORDED.is_armed() {
            reliable.write(self.redo_at(session, left.server()), own.buf(session, shape)).await?;
        }
        match self.try_lock_line(session, at, pending.token, token).await? {
            Ok((lock, _)) => {
                // A conductor may have carried it out, and retired the right leaf, before a move was called off that left the
                // lock where it is.
                let is_left = match self.is_homed() {
                    true => self.is_unfinished(session, pending).await,
                    false => Ok(true),
                };
                let done = match (is_left, pending.is_merge) {
                    (Err(error), _) => Err(error),
                    (Ok(false), _) => self.line_of_leaf(session, left).await,
                    (Ok(true), false) => self.finish_split(session, &own).await,
                    (Ok(true), true) => self.finish_merge(session, &own, Some(at), right_at).await,
                };
                let line = match done {
                    Ok(line) => line,
                    Err(error) => {
                        // Another may finish it, by the dead client's record.
                        self.finish_line(session, at, lock, None, pending.token).await?;
                        return Err(error);
                    }
                };
                self.finish_line(session, at, lock, Some(&line), 0).await?;
                self.free_right(session, pending, right_at).await?;
                count(&self.counts.rescued);
                Ok(())
            }
            // It is finished, or another taker is at it.
            Err(found) => {
                let is_done = holder == pending.right_token
                    && self.is_done(session, pending, at, right_at).await?;
                if is_done {
                    self.free_right(session, pending, right_at).await?;
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

    /// Frees the right leaf's lock, if it is there.
    async fn free_right(
        &self,
        session: &Op<'_>,
        pending: &Pending,
        right_at: Option<LinePlace>,
    ) -> Result<(), IndexError> {
        let Some(at) = right_at else { return Ok(()) };
        let word = lock_at(at.at);
        let freed = session.reliable().cas_release(word, pending.right_token, 0);
        match at.owner {
            None => freed.await.map(drop)?,
            Some(owner) => match on_region(session, owner, freed).await {
                RegionEnd::Done(_) | RegionEnd::Gone => {}
                RegionEnd::Unreachable(error) => return Err(error.into()),
            },
        }
        Ok(())
    }

    /// Tells whether nothing is left to be done of a split or a merge but to free the right leaf's lock.
    async fn is_done(
        &self,
        session: &Op<'_>,
        pending: &Pending,
        at: LinePlace,
        right_at: Option<LinePlace>,
    ) -> Result<bool, IndexError> {
        let Some(right_at) = right_at.filter(|_| !FREE_RIGHT_ALONE.is_armed()) else {
            return Ok(true);
        };
        // A line that is lost proves nothing any more; there the upper tree tells.
        if self.is_homed() && self.is_unfinished(session, pending).await? {
            return Ok(false);
        }
        if !pending.is_merge {
            let (line, _) = self.read_line(session, at).await?;
            let is_new = |line: Line| line.version != pending.left.version;
            return Ok(line.map_or(self.is_homed(), is_new));
        }
        let (line, _) = self.read_line(session, right_at).await?;
        let is_dead = |line: Line| line.version == pending.version;
        if !line.map_or(self.is_homed(), is_dead) {
            return Ok(false);
        }
        // A taker writes its record before it takes the left leaf's lock, and frees that when the upper tree knows.
        let (_, holder) = self.read_line(session, at).await?;
        Ok(holder != pending.token && !self.is_same_change(session, pending, holder).await?)
    }

    /// Tells whether the client of the lock word `holder` has left a record of the same split or merge.
    async fn is_same_change(
        &self,
        session: &Session,
        pending: &Pending,
        holder: u64,
    ) -> Result<bool, IndexError> {
        let other = self.find_redo(session, holder).await?;
        Ok(other.is_some_and(|other| match other {
            LeafRedo::Pending(other) => (other.left, other.right) == (pending.left, pending.right),
            LeafRedo::Update(_) => false,
        }))
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
        session: &Op<'_>,
        own: &Pending,
        at: Option<LinePlace>,
        right_at: Option<LinePlace>,
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
        self.write_merge(session, own, at.map(|at| (at, line)), &right).await?;
        let edit = self.merge_edit(session, own).await?;
        self.kill_right(session, own, right_at).await?;
        if let Some(edit) = edit {
            edit.publish(&self.upper, session).await?;
        }
        retiring.into_iter().for_each(|it| session.retire(it));
        Ok(line)
    }

    /// The line of a locked leaf that is as it should be.
    async fn line_of_leaf(&self, session: &Session, leaf: GlobalAddr) -> Result<Line, IndexError> {
        let reliable = session.reliable();
        let image = reliable.read(leaf, reliable.buf(self.shape.leaf_bytes)).await?;
        let header = self.shape.header(leaf, image.bytes());
        let header = header.ok_or_else(|| {
            self.corrupt(&format!("the leaf {leaf} of a change that is done has no header"))
        })?;
        let record = LeafRecord { leaf, version: header.version };
        self.line_of_slots(session, record, image.bytes()).await
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
        session: &Op<'_>,
        (leaf, at): (GlobalAddr, LinePlace),
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
        let Ok((lock, _)) = self.try_lock_line(session, at, holder, token).await? else {
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
            return self.give_back(lock).await;
        };
        let repaired = self.repaired(session, record, &mut image, update.as_ref())?;
        let line = self.line_of_slots(session, record, image.bytes()).await?;
        if at.is_beside_leaf() {
            let mut ops = session.client().ops();
            for (to, content) in repaired {
                ops.write(to, content);
            }
            ops.write(at.at, line.encode(session, shape.tree, at));
            lock.finish(ops, 0, None).await?;
        } else {
            write_all(session, repaired).await?;
            self.finish_line(session, at, lock, Some(&line), 0).await?;
        }
        count(&self.counts.rescued);
        Ok(())
    }

    /// Repairs each slot in the image of a leaf; the WRITEs that do so in remote memory.
    fn repaired(
        &self,
        session: &Session,
        record: LeafRecord,
        image: &mut Buf,
        update: Option<&PendingUpdate>,
    ) -> Result<Vec<(GlobalAddr, Buf)>, IndexError> {
        let (shape, leaf) = (&self.shape, record.leaf);
        let mut writes = Vec::new();
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
            if let Some(update) = update
                && update.leaf == record
                && update.slot == index
            {
                slot[shape.updated()].copy_from_slice(&update.content);
            }
            self.repair(shape, (leaf, index), slot, record.version);
            if before != slot {
                let mut words = session.reliable().buf(shape.slot_bytes);
                words.bytes_mut().copy_from_slice(slot);
                writes.push((leaf.plus(from as u64), words));
            }
        }
        Ok(writes)
    }

    /// Makes the line of a locked leaf from the leaf, where the home has none that counts, and repairs slots that a dead client's
    /// change has left: its lock was lost with a home, and nothing else can be half done. `None` if the leaf is not the record's
    /// any more.
    ///
    /// Cost: 1 READ of the leaf, 1 WRITE of the line.
    pub(super) async fn build_locked(
        self: &Arc<Self>,
        session: &Op<'_>,
        lock: &mut Lock,
        at: LinePlace,
        record: LeafRecord,
        key: &[u8],
    ) -> Result<Option<Line>, IndexError> {
        let (shape, reliable) = (&self.shape, session.reliable());
        let mut image = reliable.read(record.leaf, reliable.buf(shape.leaf_bytes)).await?;
        let header = shape.header(record.leaf, image.bytes());
        if header.is_none_or(|header| header.is_dead || header.version != record.version) {
            return Ok(None);
        }
        // A leaf that leaves the tree has slots of another version first. If they are, a client may have died over a bulk load.
        if !self.is_all_of(record, image.bytes())
            && self.look_up(session, key).await?.record != record
        {
            return Ok(None);
        }
        let repaired = self.repaired(session, record, &mut image, None)?;
        // As it must not take effect once the lock is free.
        write_all(&session.without_deadline(), repaired).await?;
        let mut line = self.line_of_slots(session, record, image.bytes()).await?;
        line.term = at.term;
        self.write_line(session, lock, at, &line).await?;
        self.remember(record.leaf, line);
        count(&self.counts.built);
        Ok(Some(line))
    }

    /// Finishes an update whose record `update` a dead client has left, and whose lock is lost, as the conductor. A slot that
    /// fits its check is the old pair or the new one, each whole.
    pub(super) async fn finish_update(
        &self,
        session: &Session,
        update: &PendingUpdate,
    ) -> Result<(), IndexError> {
        let (shape, place) = (&self.shape, (update.leaf.leaf, update.slot));
        let image = self.read_slots(session, place.0, &[place.1]).await?.remove(0);
        if shape.judge(place, image.bytes(), update.leaf.version) != Judged::Torn {
            return Ok(());
        }
        let mut content = session.reliable().buf(shape.slot_bytes);
        content.bytes_mut()[shape.updated()].copy_from_slice(&update.content);
        let to = place.0.plus(shape.slot_at(place.1) as u64 + 8);
        Ok(session.reliable().write(to, content.window(shape.updated())).await?)
    }

    /// As [`LeafTree::finish_left`], of an update.
    pub(super) async fn finish_left_update(
        self: &Arc<Self>,
        session: &Op<'_>,
        update: &PendingUpdate,
    ) -> Result<(), IndexError> {
        let leaf = update.leaf.leaf;
        let Some(at) = self.open_line(session, leaf).await? else {
            return self.finish_update(session, update).await;
        };
        let mut wait = LockWait::default();
        loop {
            let holder = self.read_line(session, at).await?.1;
            if holder == update.token {
                self.rescue(session, (leaf, at), holder).await?;
                continue;
            }
            // A taker that is at it has a record of its own; if it dies, the next one goes by that.
            let is_same = |other: LeafRedo| match other {
                LeafRedo::Update(other) => (other.leaf, other.slot) == (update.leaf, update.slot),
                LeafRedo::Pending(_) => false,
            };
            if holder == 0 || !self.find_redo(session, holder).await?.is_some_and(is_same) {
                return Ok(());
            }
            if wait.again(session, ("leaf", leaf), holder).await? {
                self.rescue(session, (leaf, at), holder).await?;
            }
        }
    }

    /// The key that a fence of a leaf was, in a record that may be long out of date; `None` if nothing tells any more.
    async fn old_fence_key(
        &self,
        session: &Session,
        fence: &Fence,
    ) -> Result<Option<Vec<u8>>, IndexError> {
        match self.fence_key(session, fence).await {
            Ok(key) => Ok(Some(key.unwrap_or_else(|| self.shape.largest()))),
            // The fence's record has been freed, with the leaf that it belonged to.
            Err(IndexError::Corrupt(_)) => Ok(None),
            Err(error) => Err(error),
        }
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
