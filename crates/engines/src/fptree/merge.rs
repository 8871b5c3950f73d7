//! Merge: a leaf takes in its right neighbour, which leaves the tree.
//!
//! L takes in R, under one node of the upper tree, if R is empty, or if both are sparse. A merge is never needed: it gives up
//! wherever somebody else is busy.
//!
//! 1. Lock L's line, then R's, by trying, left before right. READ both leaves; all is looked at again under the locks.
//! 2. Make the edit of the upper tree ready: L's record goes, R's key leads to L.
//! 3. One chain to L's server: redo record; if pairs move, L's line with all fingerprints, then their slots; L's header
//!    with R's high fence and right neighbour. L keeps its version: its range grows.
//! 4. One chain to R's server: R's line with the dead version, R's slots empty under it, R's header DEAD.
//! 5. Publish the edit.
//! 6. Unlock L's line, then R's; retire R.
//!
//! R is empty and its line dead before L's line is free (`INV-FP-6`): else readers of R return old copies, or prove keys
//! absent, after a change through L. The dead version is one that no record has, so an old record never fits R's memory.

use std::sync::Arc;

use farleaf_fabric::{Buf, GlobalAddr, OpKind};
use farleaf_index::IndexError;
use farleaf_index::Seek;
use farleaf_index::blink::canaries::{FORGET_RETIRE, LOSE_REDO_RECORD, UNLOCK_RIGHT_EARLY};
use farleaf_index::blink::{Edit, LeafPairs};
use farleaf_index::detach::detach;
use farleaf_index::remote_lock::Lock;
use farleaf_index::retry::backoff;
use farleaf_pool::{Retiring, Session};

use super::cache::{LeafRecord, RecordNode};
use super::homes::{LinePlace, Op, Reach};
use super::layout::{Header, Judged, SPAN_MAX};
use super::line::Line;
use super::redo::Pending;
use super::split::fence_record;
use super::{LeafTree, count};

farleaf_fabric::canaries! {
    pub(crate) MERGE_UNCHECKED = "merge-unchecked",
        "a merge takes the right leaf for empty without a look under its lock";
    pub(crate) FREE_LEAF_UNCLEARED = "free-leaf-uncleared", "a leaf leaves the tree with its pairs";
}

/// Attempts at one lock before a merge gives up.
const TRIES: u32 = 6;
/// Most merges that one removal leads to.
const MERGES_MAX: usize = 64;

impl LeafTree {
    /// Tells whether a leaf of so many pairs may be merged.
    pub(super) fn is_sparse(&self, pairs: usize) -> bool {
        let most = (self.shape.span as f64 * self.options.merge).max(1.0);
        pairs == 0 || (self.options.merge > 0.0 && pairs as f64 <= most)
    }

    /// Tells whether a removal that leaves so many pairs in a leaf looks for a merge: not each does, as most find none.
    pub(super) fn asks_merge(&self, pairs: usize) -> bool {
        self.is_sparse(pairs) && pairs.is_multiple_of((self.shape.span / 8).max(1))
    }

    fn fits(&self, left: usize, right: usize) -> bool {
        right == 0 || (self.is_sparse(left) && self.is_sparse(right))
    }

    /// Merges the leaf of `key` with its neighbours as far as they are sparse, by a task. Its cost counts as maintenance.
    /// Errors are no one's: the removal has happened.
    ///
    /// Cost: 1 to 3 READs of lines, and 1 for each level of the upper tree if its node is not cached. A merge: READs of two
    /// lines and two leaves, 5 WRITEs, 1 more for the left line and each pair that moves, 4 CASes; the edit: 1 READ for each level,
    /// 2 WRITEs, 2 CASes; then 1 READ for each level, and the look for the next merge.
    pub(super) async fn merge(self: &Arc<Self>, session: &Op<'_>, key: &[u8]) {
        let before = session.client().charge_to(OpKind::Maintenance);
        let (tree, key, patient) = (Arc::clone(self), key.to_vec(), session.without_deadline());
        let right = session.for_task(self);
        // As long as nothing is changed, the work gives up if a compute server is out of reach.
        let first = if self.is_homed() { session.session().clone() } else { patient.clone() };
        detach(session, async move {
            let op = right.on(&first);
            for _ in 0..MERGES_MAX {
                if !matches!(tree.merge_once(&op, &patient, &key).await, Ok(true)) {
                    return;
                }
            }
        })
        .await;
        session.client().charge_to(before);
    }

    /// One merge; tells whether there was one.
    async fn merge_once(
        self: &Arc<Self>,
        session: &Op<'_>,
        patient: &Session,
        key: &[u8],
    ) -> Result<bool, IndexError> {
        let cached = self.cache.find(key, false);
        let chosen = match cached {
            Some(node) => self.choose_pair(session, &node, key).await?,
            None => None,
        };
        let chosen = match chosen {
            Some(pair) => pair,
            None => {
                let node = self.read_records(session, Seek::At(key)).await?;
                self.choose_pair(session, &node, key).await?.flatten()
            }
        };
        let Some([left, right]) = chosen else { return Ok(false) };
        let is_merged = self.merge_pair(session, patient, left, right).await?;
        if is_merged {
            // This compute server's next operations need not find out.
            self.read_records(session, Seek::At(key)).await?;
        }
        Ok(is_merged)
    }

    /// Two leaves of a node of records to merge, of which one covers `key`, or none; `None` if the node is out of date.
    async fn choose_pair(
        &self,
        session: &Op<'_>,
        node: &RecordNode,
        key: &[u8],
    ) -> Result<Option<Option<[LeafRecord; 2]>>, IndexError> {
        let index = node.position(key, false);
        if index >= node.count() {
            return Ok(None);
        }
        let first = index.saturating_sub(1);
        let records: Vec<LeafRecord> =
            (first..(index + 2).min(node.count())).map(|index| node.record(index).record).collect();
        if records.iter().any(|record| record.version == 0) {
            return Ok(None);
        }
        let fills = self.fills(session, &records).await?;
        let Some(fills) = fills.into_iter().collect::<Option<Vec<usize>>>() else {
            return Ok(None);
        };
        let own = index - first;
        let pairs = [(own, own + 1), (own.wrapping_sub(1), own)];
        let pair = pairs.into_iter().find(|(left, right)| {
            let fill = |at: &usize| fills.get(*at).copied();
            matches!((fill(left), fill(right)), (Some(left), Some(right)) if self.fits(left, right))
        });
        Ok(Some(pair.map(|(left, right)| [records[left], records[right]])))
    }

    /// The numbers of pairs that lines tell of; `None` where a record does not hold any more.
    async fn fills(
        &self,
        session: &Op<'_>,
        records: &[LeafRecord],
    ) -> Result<Vec<Option<usize>>, IndexError> {
        let mut places = Vec::new();
        for record in records {
            match self.reach(session, record.leaf, false).await? {
                Reach::At(place) => places.push(place),
                // A merge is never needed.
                Reach::Stop(_) | Reach::Unmade => return Ok(vec![None; records.len()]),
            }
        }
        let lines = match self.is_homed() {
            true => self.peek_lines(session, &places).await?,
            false => self.read_lines(session, &places).await?,
        };
        let lines = lines.into_iter().zip(records).map(|(line, record)| {
            line.filter(|line| line.version == record.version).map(|line| line.count())
        });
        Ok(lines.collect())
    }

    /// Locks a line whose version is that of `record`, by trying; `None` if that does not come about.
    async fn try_lock_leaf(
        self: &Arc<Self>,
        session: &Op<'_>,
        record: LeafRecord,
        token: u64,
    ) -> Result<Option<(Lock, LinePlace, Line)>, IndexError> {
        let at = self.line_of(session, record.leaf).await?;
        for attempt in 0..TRIES {
            match self.try_lock_line(session, at, 0, token).await? {
                Ok((lock, line)) => match line {
                    Some(line) if line.version == record.version => {
                        return Ok(Some((lock, at, line)));
                    }
                    _ => {
                        self.give_back(lock).await?;
                        return Ok(None);
                    }
                },
                Err(_) => backoff(session, attempt).await,
            }
        }
        Ok(None)
    }

    async fn merge_pair(
        self: &Arc<Self>,
        session: &Op<'_>,
        patient: &Session,
        left: LeafRecord,
        right: LeafRecord,
    ) -> Result<bool, IndexError> {
        // One token for both, so that one redo record serves both.
        let token = session.lock_token();
        let Some((lock, at, line)) = self.try_lock_leaf(session, left, token).await? else {
            return Ok(false);
        };
        let Some((right_lock, right_at, _)) = self.try_lock_leaf(session, right, token).await?
        else {
            self.give_back(lock).await?;
            return Ok(false);
        };
        let (lock, right_lock) = (lock.with_session(patient), right_lock.with_session(patient));
        let [image, right_image] = self.read_pair(session, left.leaf, right.leaf).await?;
        let pending = self.plan_merge((left, &image, &line), (right, &right_image), token);
        let Some(pending) = pending else {
            self.give_back(right_lock).await?;
            self.give_back(lock).await?;
            return Ok(false);
        };
        let pending = Pending { version: self.next_version(session).await?, ..pending };
        let line = self.merged_line(session, &pending, line, &right_image).await?;
        let retiring = self.prepare_right(session, &pending).await?;
        let edit = match self.merge_edit(session, &pending).await {
            Ok(Some(edit)) => edit,
            other => {
                retiring.into_iter().for_each(|it| session.cancel_retire(it));
                self.give_back(right_lock).await?;
                self.give_back(lock).await?;
                return other.map(|_| false);
            }
        };
        let session = &session.for_task(self).on(patient);
        // This is a task's work, and its session does not give up. What fails from here on is that this compute server has
        // been cut off: its locks are for the client that finds its record.
        let done = async {
            self.write_merge(session, &pending, Some((at, line)), &right_image).await?;
            if UNLOCK_RIGHT_EARLY.is_armed() {
                return edit.publish(&self.upper, session).await;
            }
            self.kill_right(session, &pending, Some(right_at)).await?;
            edit.publish(&self.upper, session).await
        };
        if let Err(error) = done.await {
            lock.abandon();
            right_lock.abandon();
            return Err(IndexError::OutcomeUnknown(error.to_string()));
        }
        count(&self.counts.merges);
        self.give_back(lock).await?;
        if UNLOCK_RIGHT_EARLY.is_armed() {
            self.kill_right(session, &pending, Some(right_at)).await?;
        }
        self.finish_line(session, right_at, right_lock, None, 0).await?;
        if !FORGET_RETIRE.is_armed() {
            retiring.into_iter().for_each(|it| session.retire(it));
        }
        Ok(true)
    }

    /// READs two leaves at once.
    pub(super) async fn read_pair(
        &self,
        session: &Session,
        left: GlobalAddr,
        right: GlobalAddr,
    ) -> Result<[Buf; 2], IndexError> {
        let (reliable, bytes) = (session.reliable(), self.shape.leaf_bytes);
        let mut ops = reliable.client().ops();
        ops.read(left, reliable.buf(bytes));
        ops.read(right, reliable.buf(bytes));
        let mut ops = reliable.post_many(ops).await?;
        Ok([ops.take_buf(0), ops.take_buf(1)])
    }

    /// Plans the merge; `None` if the leaves are not as they must be.
    fn plan_merge(
        &self,
        (left, image, line): (LeafRecord, &Buf, &Line),
        (right, right_image): (LeafRecord, &Buf),
        token: u64,
    ) -> Option<Pending> {
        let shape = &self.shape;
        let header = shape.header(left.leaf, image.bytes())?;
        let right_header = shape.header(right.leaf, right_image.bytes())?;
        let are_neighbours = header.version == left.version
            && right_header.version == right.version
            && !header.is_dead
            && !right_header.is_dead
            && header.right == right.leaf.word();
        let pairs = |record: LeafRecord, image: &Buf| -> Option<Vec<usize>> {
            let mut pairs = Vec::new();
            for index in 0..shape.span {
                match shape.judge(
                    (record.leaf, index),
                    shape.slot(image.bytes(), index),
                    record.version,
                ) {
                    Judged::Pair(_) => pairs.push(index),
                    Judged::Empty => {}
                    Judged::Stale | Judged::Torn => return None,
                }
            }
            Some(pairs)
        };
        let (held, mut moving) = (pairs(left, image)?, pairs(right, right_image)?);
        if MERGE_UNCHECKED.is_armed() {
            moving.clear();
        }
        if !are_neighbours || !self.fits(held.len(), moving.len()) {
            return None;
        }
        let mut free =
            (0..shape.span).filter(|index| line.fingerprints[*index] == 0 && !held.contains(index));
        let mut slots = [0; SPAN_MAX];
        for from in moving {
            slots[from] = free.next()? as u8 + 1;
        }
        let new_header =
            Header { right: right_header.right, high: right_header.high.clone(), ..header.clone() };
        let pending = Pending {
            is_merge: true,
            token,
            right_token: token,
            left,
            right,
            version: 0,
            slots,
            header: new_header,
            old: header,
        };
        Some(pending)
    }

    /// Room to retire the right leaf, and the record of the fence between both.
    pub(super) async fn prepare_right(
        &self,
        session: &Session,
        pending: &Pending,
    ) -> Result<Vec<Retiring>, IndexError> {
        let mut retiring = vec![session.prepare_retire(pending.right.leaf).await?];
        if let Some(word) = fence_record(&pending.old.high) {
            let place = self.record_place(word)?.0;
            match session.prepare_retire(place).await {
                Ok(fence) => retiring.push(fence),
                Err(error) => {
                    retiring.into_iter().for_each(|it| session.cancel_retire(it));
                    return Err(error.into());
                }
            }
        }
        Ok(retiring)
    }

    /// Makes ready that the upper tree loses the left leaf's record, and the right one's leads to the left leaf; `None` if it
    /// has other records.
    pub(super) async fn merge_edit(
        &self,
        session: &Session,
        pending: &Pending,
    ) -> Result<Option<Edit>, IndexError> {
        let bound = self.fence_key(session, &pending.old.high).await?;
        let high = self.fence_key(session, &pending.header.high).await?;
        let high = high.unwrap_or_else(|| self.shape.largest());
        let (left, right) = (pending.left, pending.right);
        let change = |pairs: &mut LeafPairs| {
            let Some(index) = pairs.iter().position(|(key, _)| *key == high) else { return false };
            let Some(before) = index.checked_sub(1) else { return false };
            if LeafRecord::of_value(&pairs[index].1) != Some(right)
                || Some(&pairs[before].0) != bound.as_ref()
                || LeafRecord::of_value(&pairs[before].1) != Some(left)
            {
                return false;
            }
            pairs[index].1 = left.value();
            pairs.remove(before);
            true
        };
        self.upper.begin_edit(session, &high, change).await
    }

    /// The left leaf's line with the fingerprints of all pairs that move.
    async fn merged_line(
        &self,
        session: &Session,
        pending: &Pending,
        mut line: Line,
        right_image: &Buf,
    ) -> Result<Line, IndexError> {
        for (key, from) in self.keys_of(session, pending.right, right_image.bytes()).await? {
            let to = usize::from(pending.slots[from]);
            if to > 0 {
                line = line.with(to - 1, self.shape.fingerprint(&key));
            }
        }
        Ok(line)
    }

    /// Step 3, which may be repeated. Pairs of the right leaf that are not whole any more have been copied.
    pub(super) async fn write_merge(
        &self,
        session: &Op<'_>,
        pending: &Pending,
        line: Option<(LinePlace, Line)>,
        right_image: &Buf,
    ) -> Result<(), IndexError> {
        let (shape, reliable) = (&self.shape, session.reliable());
        let left = pending.left;
        let moves = self.copies(pending, right_image.bytes());
        let redo_at = self.redo_at(session, left.leaf.server());
        let line = line.filter(|_| pending.slots.iter().any(|slot| *slot > 0));
        // All fingerprints are in the line before their slots are there.
        if let Some((at, line)) = line.filter(|(at, _)| !at.is_beside_leaf()) {
            self.put_line_if_there(session, at, &line).await?;
        }
        let beside = line.filter(|(at, _)| at.is_beside_leaf());
        reliable
            .chain(|ops| {
                if !LOSE_REDO_RECORD.is_armed() {
                    ops.write(redo_at, pending.buf(session, shape));
                }
                if let Some((at, line)) = beside {
                    ops.write(at.at, line.encode(session, shape.tree, at));
                }
                for (to, slot) in &moves {
                    let mut buf = reliable.buf(shape.slot_bytes);
                    buf.bytes_mut().copy_from_slice(slot);
                    ops.write(left.leaf.plus(shape.slot_at(*to) as u64), buf);
                }
                let mut header = reliable.buf(shape.header_bytes);
                shape.put_header(left.leaf, &pending.header, header.bytes_mut());
                ops.write(left.leaf, header);
            })
            .await?;
        Ok(())
    }

    /// The left leaf's slots that pairs move to, and what goes there.
    pub(super) fn copies(&self, pending: &Pending, right_image: &[u8]) -> Vec<(usize, Vec<u8>)> {
        let (shape, right) = (&self.shape, pending.right);
        let mut copies = Vec::new();
        for index in 0..shape.span {
            let slot = shape.slot(right_image, index);
            let judged = shape.judge((right.leaf, index), slot, right.version);
            if let (Some(to), Judged::Pair(_)) =
                (usize::from(pending.slots[index]).checked_sub(1), judged)
            {
                let mut copy = vec![0; shape.slot_bytes];
                shape.copy_slot((pending.left.leaf, to), &mut copy, pending.left.version, slot);
                copies.push((to, copy));
            }
        }
        copies
    }

    /// Step 4, which may be repeated.
    pub(super) async fn kill_right(
        &self,
        session: &Op<'_>,
        pending: &Pending,
        right_at: Option<LinePlace>,
    ) -> Result<(), IndexError> {
        self.kill_leaf(session, (pending.right.leaf, right_at), pending.version, true).await
    }

    /// Gives a locked leaf and its line, if that has a place, a version that no record has, and empties it. 3 WRITEs; 2 if its
    /// header stays.
    pub(super) async fn kill_leaf(
        &self,
        session: &Op<'_>,
        (leaf, at): (GlobalAddr, Option<LinePlace>),
        version: u64,
        with_header: bool,
    ) -> Result<(), IndexError> {
        let (shape, reliable) = (&self.shape, session.reliable());
        let header = Header::dead(version);
        if let Some(at) = at.filter(|at| !at.is_beside_leaf()) {
            self.put_line_if_there(session, at, &Line::empty(version)).await?;
        }
        let beside = at.filter(LinePlace::is_beside_leaf);
        if FREE_LEAF_UNCLEARED.is_armed() && beside.is_none() {
            return Ok(());
        }
        reliable
            .chain(|ops| {
                if let Some(at) = beside {
                    ops.write(at.at, Line::empty(version).encode(session, shape.tree, at));
                }
                if FREE_LEAF_UNCLEARED.is_armed() {
                    return;
                }
                let mut image = reliable.buf(shape.leaf_bytes);
                shape.put_header(leaf, &header, image.bytes_mut());
                shape.clear_all(leaf, image.bytes_mut(), version);
                let split = shape.header_bytes;
                let mut slots = reliable.buf(shape.leaf_bytes - split);
                slots.bytes_mut().copy_from_slice(&image.bytes()[split..]);
                ops.write(leaf.plus(split as u64), slots);
                if with_header {
                    ops.write(leaf, image.window(0..split));
                }
            })
            .await?;
        Ok(())
    }
}
