//! Split: divides a full leaf in two, each with a version of its own.
//!
//! 1. The leaf's line is locked. READ the leaf, choose the fence.
//! 2. Take memory for the right leaf S, and lock S's line under the same token: a client with a record of a leaf that was
//!    there before may hold it for a moment.
//! 3. One chain: WRITE S and its line. Make the edit of the upper tree ready, which may need memory.
//! 4. One chain to the leaf's server: redo record, new header, slots with the new version, those that moved emptied.
//! 5. Publish the edit: fence -> the leaf, high -> S.
//! 6. One chain: the line with the new version and what is left of its fingerprints, unlock. Completed.
//! 7. Unlock S's line.
//!
//! S is unlocked last (`INV-FP-5`). Before, an update in S would be acknowledged while old copies are readable in the leaf,
//! or an insert while the leaf's line still proves the key absent.

use std::sync::Arc;

use farleaf_fabric::{Buf, GlobalAddr, ServerId};
use farleaf_index::IndexError;
use farleaf_index::blink::canaries::LOSE_REDO_RECORD;
use farleaf_index::blink::{Edit, LeafPairs};
use farleaf_index::detach::detach;
use farleaf_index::remote_lock::Lock;
use farleaf_index::retry::LockWait;
use farleaf_pool::{PoolError, Session, Unlinked};

use super::LeafTree;
use super::cache::{LeafRecord, SeenRecord};
use super::homes::{LinePlace, Op};
use super::layout::{Fence, Header, Judged, LeafShape, SPAN_MAX};
use super::line::Line;
use super::ops::LockedLeaf;
use super::redo::Pending;

farleaf_fabric::canaries! {
    pub(crate) OLD_TABLE_KEEPS_VERSION = "old-table-keeps-version",
        "the fingerprints of a leaf that was split keep its old version";
    pub(crate) UNLOCK_NEW_LEAF_EARLY = "unlock-new-leaf-early",
        "a split unlocks the new leaf before the old one has its new version";
    pub(crate) CLEARED_SLOTS_KEEP_VERSION = "cleared-slots-keep-version",
        "the slots that a split empties keep the leaf's old version";
}

impl LeafTree {
    /// Divides a full leaf, whose lock it gives back, so that there is room for `key`; by a task.
    ///
    /// Cost: READs of the leaf and of the new leaf's line, 6 WRITEs, 3 CASes; the edit of the upper tree: 1 READ for each of its
    /// levels, 2 WRITEs, 2 CASes; 1 READ for each key that only its record has.
    ///
    /// # Errors
    /// `Full`: nothing was changed.
    pub(super) async fn split(
        self: &Arc<Self>,
        session: &Op<'_>,
        leaf: LockedLeaf,
        key: &[u8],
    ) -> Result<(), IndexError> {
        let (tree, key, patient) = (Arc::clone(self), key.to_vec(), session.without_deadline());
        let right = session.for_task(self);
        // As long as nothing is changed, the work gives up if a compute server is out of reach.
        let first = if self.is_homed() { session.session().clone() } else { patient.clone() };
        detach(session, async move {
            let LockedLeaf { lock, record, at, line } = leaf;
            let leaf = LockedLeaf { lock: lock.with_session(&patient), record, at, line };
            tree.split_now(&right.on(&first), &patient, leaf, &key).await
        })
        .await
    }

    async fn split_now(
        self: &Arc<Self>,
        session: &Op<'_>,
        patient: &Session,
        leaf: LockedLeaf,
        key: &[u8],
    ) -> Result<(), IndexError> {
        let LockedLeaf { lock, record, at, line } = leaf;
        let shape = &self.shape;
        let reliable = session.reliable();
        let image = reliable.read(record.leaf, reliable.buf(shape.leaf_bytes)).await?;
        let header = shape.header(record.leaf, image.bytes());
        let Some(header) = header.filter(|header| header.version == record.version) else {
            return Err(self.corrupt(&format!(
                "INV-FP-4: the leaf {} has a line of version {}, and no such header",
                record.leaf, record.version
            )));
        };
        let mut keys = self.keys_of(session, record, image.bytes()).await?;
        keys.sort();
        if keys.len() < 2 {
            return Err(self.corrupt(&format!("the leaf {} is full of nothing", record.leaf)));
        }
        let is_end = keys.last().is_some_and(|(last, _)| last.as_slice() < key);
        let share = if is_end { (keys.len() * 9).div_ceil(10) } else { keys.len() / 2 };
        let cut = share.clamp(1, keys.len() - 1);
        let bound = shape.separator(&keys[cut - 1].0, &keys[cut].0);
        let (fence, fence_record) = self.new_fence(session, &bound).await?;
        let (right, right_at) = self.new_leaf(session).await?;
        let versions = [self.next_version(session).await?, self.next_version(session).await?];
        let mut right_lock = self.lock_right(session, right.addr(), right_at, lock.token()).await?;

        let mut right_image = reliable.buf(shape.leaf_bytes);
        let right_header = Header {
            version: versions[1],
            right: header.right,
            birth: session.epoch(),
            is_dead: false,
            low: fence.clone(),
            high: header.high.clone(),
        };
        shape.put_header(right.addr(), &right_header, right_image.bytes_mut());
        shape.clear_all(right.addr(), right_image.bytes_mut(), versions[1]);
        let (mut right_line, mut left_line) = (Line::empty(versions[1]), line);
        let mut slots = [0; SPAN_MAX];
        for (to, (_, from)) in keys[cut..].iter().enumerate() {
            let (from_at, to_at) = (shape.slot_at(*from), shape.slot_at(to));
            let slot = &image.bytes()[from_at..from_at + shape.slot_bytes];
            let into = &mut right_image.bytes_mut()[to_at..to_at + shape.slot_bytes];
            shape.copy_slot((right.addr(), to), into, versions[1], slot);
            right_line = right_line.with(to, line.fingerprints[*from]);
            left_line = left_line.with(*from, 0);
            slots[*from] = 1;
        }
        if !OLD_TABLE_KEEPS_VERSION.is_armed() {
            left_line.version = versions[0];
        }
        let written =
            self.write_new_leaf(session, (&right, Some(right_at)), &right_image, &right_line).await;
        if written.is_err() {
            right_lock.doubt();
        }
        written?;

        let high = self.fence_key(session, &header.high).await?;
        let high = high.unwrap_or_else(|| shape.largest());
        let new = [
            LeafRecord { leaf: record.leaf, version: versions[0] },
            LeafRecord { leaf: right.addr(), version: versions[1] },
        ];
        let edit = self.split_edit(session, (&bound, &high), record, new).await?;
        let Some(edit) = edit else {
            // The record is of before: somebody has changed the leaf since, and the operation looks anew.
            self.give_back(right_lock).await?;
            return self.give_back(lock).await;
        };
        let session = &session.for_task(self).on(patient);
        right.keep();
        if let Some(record) = &fence_record {
            record.keep();
        }
        let pending = Pending {
            is_merge: false,
            token: lock.token(),
            right_token: lock.token(),
            left: record,
            right: new[1],
            version: versions[0],
            slots,
            header: Header {
                version: versions[0],
                right: right.addr().word(),
                high: fence,
                ..header.clone()
            },
            old: header,
        };
        // This is a task's work, and its session does not give up. What fails from here on is that this compute server has
        // been cut off: its locks are for the client that finds its record.
        let mut right_lock = Some(right_lock);
        let done = async {
            self.write_left(session, &pending, image.bytes()).await?;
            if UNLOCK_NEW_LEAF_EARLY.is_armed()
                && let Some(lock) = right_lock.take()
            {
                self.give_back(lock).await?;
            }
            edit.publish(&self.upper, session).await
        };
        if let Err(error) = done.await {
            lock.abandon();
            right_lock.into_iter().for_each(Lock::abandon);
            return Err(IndexError::OutcomeUnknown(error.to_string()));
        }
        super::count(&self.counts.splits);
        let epoch = session.epoch();
        let parts = [(bound.clone(), new[0]), (high, new[1])]
            .map(|(key, record)| (key, SeenRecord { record, epoch }));
        self.cache.replace(&bound, record, &parts);
        self.finish_line(session, at, lock, Some(&left_line), 0).await?;
        self.remember(record.leaf, Line { term: at.term, ..left_line });
        self.remember(new[1].leaf, Line { term: right_at.term, ..right_line });
        match right_lock {
            Some(lock) => self.give_back(lock).await,
            None => Ok(()),
        }
    }

    /// Makes ready that the upper tree gets `bound` -> `new[0]` and `high` -> `new[1]`, if `high` leads to `old`.
    pub(super) async fn split_edit(
        &self,
        session: &Session,
        (bound, high): (&[u8], &[u8]),
        old: LeafRecord,
        new: [LeafRecord; 2],
    ) -> Result<Option<Edit>, IndexError> {
        let change = |pairs: &mut LeafPairs| {
            let Some(index) = pairs.iter().position(|(key, _)| key == high) else { return false };
            if LeafRecord::of_value(&pairs[index].1) != Some(old) {
                return false;
            }
            pairs[index].1 = new[1].value();
            pairs.insert(index, (bound.to_vec(), new[0].value()));
            true
        };
        self.upper.begin_edit(session, high, change).await
    }

    /// Step 4, which may be repeated: the redo record, then header and slots of the left leaf.
    pub(super) async fn write_left(
        &self,
        session: &Session,
        pending: &Pending,
        image: &[u8],
    ) -> Result<(), IndexError> {
        let shape = &self.shape;
        let leaf = pending.left.leaf;
        let mut content = image.to_vec();
        shape.put_header(leaf, &pending.header, &mut content);
        for index in 0..shape.span {
            let at = shape.slot_at(index);
            let slot = &mut content[at..at + shape.slot_bytes];
            if pending.slots[index] != 0 {
                let keeps = CLEARED_SLOTS_KEEP_VERSION.is_armed();
                let version = if keeps { pending.left.version } else { pending.version };
                shape.clear_slot((leaf, index), slot, version);
            } else {
                LeafShape::set_version(slot, pending.version);
            }
        }
        let (reliable, header) = (session.reliable(), shape.header_bytes);
        reliable
            .chain(|ops| {
                if !LOSE_REDO_RECORD.is_armed() {
                    ops.write(self.redo_at(session, leaf.server()), pending.buf(session, shape));
                }
                let mut buf = reliable.buf(shape.leaf_bytes);
                buf.bytes_mut().copy_from_slice(&content);
                ops.write(leaf, buf.window(0..header));
                let mut buf = reliable.buf(shape.leaf_bytes - header);
                buf.bytes_mut().copy_from_slice(&content[header..]);
                ops.write(leaf.plus(header as u64), buf);
            })
            .await?;
        Ok(())
    }

    /// The keys of a leaf, each with its slot. READs those that only their records have, all at once.
    pub(super) async fn keys_of(
        &self,
        session: &Session,
        record: LeafRecord,
        image: &[u8],
    ) -> Result<Vec<(Vec<u8>, usize)>, IndexError> {
        let shape = &self.shape;
        let mut keys = Vec::new();
        let mut long = Vec::new();
        for index in 0..shape.span {
            let at = shape.slot_at(index);
            let slot = &image[at..at + shape.slot_bytes];
            match shape.judge((record.leaf, index), slot, record.version) {
                Judged::Empty => {}
                Judged::Pair(value) => match shape.key_of(slot) {
                    Some(key) => keys.push((key.to_vec(), index)),
                    None => long.push((index, value)),
                },
                Judged::Stale | Judged::Torn => {
                    return Err(self.corrupt(&format!(
                        "INV-FP-3: slot {index} of the leaf {} holds no pair of version {}, and nobody else changes it",
                        record.leaf, record.version
                    )));
                }
            }
        }
        for (index, value) in long {
            keys.push((self.read_record(session, value).await?.0, index));
        }
        Ok(keys)
    }

    /// Memory for a leaf, and its line, both on one server: on the one that is next, or on any that has room.
    pub(super) async fn new_leaf(
        &self,
        session: &Op<'_>,
    ) -> Result<(Unlinked, LinePlace), IndexError> {
        let bytes = self.shape.leaf_bytes;
        let first = session.alloc_unlinked(session.place(), bytes).await?;
        let mut full = match self.line_of_new(session, first.addr()).await {
            Ok(at) => return Ok((first, at)),
            Err(IndexError::Full(full)) => full,
            Err(error) => return Err(error),
        };
        let tried = first.addr().server();
        drop(first);
        for server in 0..session.pool().geometry().servers() as u16 {
            if ServerId(server) == tried {
                continue;
            }
            let object = match session.alloc_unlinked(ServerId(server), bytes).await {
                Ok(object) => object,
                Err(error @ PoolError::Full { .. }) => {
                    full = error.to_string();
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            match self.line_of_new(session, object.addr()).await {
                Ok(at) => return Ok((object, at)),
                Err(IndexError::Full(why)) => full = why,
                Err(error) => return Err(error),
            }
        }
        Err(IndexError::Full(full))
    }

    /// Writes a leaf that nothing leads to, and its line if it has a place. 2 WRITEs, one wait; two if they are apart.
    pub(super) async fn write_new_leaf(
        &self,
        session: &Op<'_>,
        (leaf, at): (&Unlinked, Option<LinePlace>),
        image: &Buf,
        line: &Line,
    ) -> Result<(), IndexError> {
        let reliable = session.reliable();
        let beside = at.filter(LinePlace::is_beside_leaf);
        reliable
            .chain(|ops| {
                let mut content = reliable.buf(image.len());
                content.bytes_mut().copy_from_slice(image.bytes());
                leaf.write_in(ops, content);
                if let Some(at) = beside {
                    ops.write(at.at, line.encode(session, self.shape.tree, at));
                }
            })
            .await?;
        leaf.written();
        match at.filter(|at| !at.is_beside_leaf()) {
            Some(at) => self.put_line(session, at, line).await,
            None => Ok(()),
        }
    }

    /// Locks the line of a new leaf. A dead holder's token is replaced: the memory was nobody's.
    async fn lock_right(
        self: &Arc<Self>,
        session: &Op<'_>,
        leaf: GlobalAddr,
        at: LinePlace,
        token: u64,
    ) -> Result<Lock, IndexError> {
        let (mut wait, mut expected) = (LockWait::default(), 0);
        loop {
            match self.try_lock_line(session, at, expected, token).await? {
                Ok((lock, _)) => return Ok(lock),
                Err(holder) => {
                    self.check_fresh(session, at)?;
                    let is_dead =
                        holder != 0 && wait.again(session, ("leaf", leaf), holder).await?;
                    expected = if is_dead { holder } else { 0 };
                }
            }
        }
    }
}

/// The fence of a leaf that is open on that side, or ends at a key that stands in its header.
pub(super) fn fence_record(fence: &Fence) -> Option<u64> {
    match fence {
        Fence::Record(word) => Some(*word),
        _ => None,
    }
}
