//! Bulk load: fills an empty table from sorted pairs.
//!
//! An empty table has one leaf L, whose record has the largest key. New leaves, with their lines, are written beside it.
//! Then, under L's lock, L's line and slots get a version that no record has, and a tree of the new records takes the place
//! of the upper tree's one leaf. L is out of use first: else a client with its record would deny keys that others have seen.
//! If the loader dies in between, L's header still has the version of its record: the taker of its lock makes it whole.

use std::sync::Arc;

use farleaf_index::detach::run_to_end;
use farleaf_index::retry::LockWait;
use farleaf_index::{IndexError, SortedPairs};
use farleaf_pool::{Session, Unlinked};

use super::LeafTree;
use super::cache::LeafRecord;
use super::homes::{LinePlace, Op, Reach};
use super::layout::{Fence, Header, PairContent};
use super::line::Line;
use super::locate::StaleWait;
use super::records::NewPairRecord;

/// The new leaves and what belongs to them; freed when dropped, unless they are kept.
#[derive(Default)]
pub(super) struct BuiltLeaves {
    leaves: Vec<Unlinked>,
    records: Vec<NewPairRecord>,
    /// The records that the upper tree gets: high fence and leaf.
    pairs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Sorted records, as a bulk load of the upper tree takes them.
struct Records<'a>(std::slice::Iter<'a, (Vec<u8>, Vec<u8>)>);

impl SortedPairs for Records<'_> {
    fn next(&mut self) -> Option<(&[u8], &[u8])> {
        self.0.next().map(|(key, value)| (key.as_slice(), value.as_slice()))
    }
}

/// A leaf that is being filled, or waits for its high fence.
struct Filling {
    object: Unlinked,
    /// `None` for a line that is made when it is needed.
    at: Option<LinePlace>,
    low: Fence,
    pairs: Vec<(Vec<u8>, PairContent)>,
}

impl LeafTree {
    /// Fills an empty table; the caller has a pin.
    ///
    /// Cost: 2 WRITEs for each leaf, 1 for each record, that of the upper tree; 1 CAS, 1 READ, 2 WRITEs.
    ///
    /// # Errors
    /// `Invalid`, `Full`: the table is empty, and the memory free.
    pub(super) async fn load(
        self: &Arc<Self>,
        session: &Session,
        pairs: &mut impl SortedPairs,
    ) -> Result<u64, IndexError> {
        let (built, count) = self.build_leaves(session, pairs).await?;
        if count == 0 {
            return Ok(0);
        }
        let (tree, patient) = (Arc::clone(self), session.without_deadline());
        let task = Box::pin(async move { tree.put_in_place(&Op::in_pool(&patient), &built).await });
        run_to_end(session, task, ()).await.unwrap_or_else(|| {
            Err(IndexError::OutcomeUnknown("the new leaves are still being put in place".into()))
        })?;
        Ok(count)
    }

    pub(super) async fn build_leaves(
        &self,
        session: &Session,
        pairs: &mut impl SortedPairs,
    ) -> Result<(BuiltLeaves, u64), IndexError> {
        let shape = &self.shape;
        let fill = ((shape.span as f64 * self.options.bulk_fill.clamp(0.05, 1.0)) as usize).max(1);
        let (mut built, mut count) = (BuiltLeaves::default(), 0);
        let mut last: Option<Vec<u8>> = None;
        let mut filling: Option<Filling> = None;
        while let Some((key, value)) = pairs.next() {
            shape.spec.check_key(key)?;
            shape.spec.check_value(value)?;
            if let Some(last) = last.as_deref().filter(|last| *last >= key) {
                let how = if last == key { "repeats" } else { "is below" };
                return Err(IndexError::Invalid(format!(
                    "pair {} of the load is out of order: its key {how} the one before it",
                    count + 1
                )));
            }
            let full = filling.take_if(|leaf| leaf.pairs.len() >= fill);
            if let (Some(full), Some(last)) = (full, last.as_deref()) {
                let bound = shape.separator(last, key);
                let (fence, record) = self.new_fence(session, &bound).await?;
                built.records.extend(record);
                let next = self.start_leaf(session, fence.clone()).await?;
                let right = next.object.addr().word();
                self.end_leaf(session, full, (fence, bound), right, &mut built).await?;
                filling = Some(next);
            }
            let mut leaf = match filling.take() {
                Some(leaf) => leaf,
                None => self.start_leaf(session, Fence::Open).await?,
            };
            let content = if shape.has_record(key.len()) {
                let record = self.write_record(session, key, value).await?;
                let content = PairContent::Record(record.word());
                built.records.push(record);
                content
            } else {
                PairContent::Inline(value.to_vec())
            };
            leaf.pairs.push((key.to_vec(), content));
            filling = Some(leaf);
            last = Some(key.to_vec());
            count += 1;
        }
        if let Some(leaf) = filling {
            let high = (Fence::Open, shape.largest());
            self.end_leaf(session, leaf, high, 0, &mut built).await?;
        }
        Ok((built, count))
    }

    async fn start_leaf(&self, session: &Session, low: Fence) -> Result<Filling, IndexError> {
        let (object, at) = match self.is_homed() {
            false => {
                let (object, at) = self.new_leaf(&Op::in_pool(session)).await?;
                (object, Some(at))
            }
            true => {
                let bytes = self.shape.leaf_bytes;
                (session.alloc_unlinked(session.place(), bytes).await?, None)
            }
        };
        Ok(Filling { object, at, low, pairs: Vec::new() })
    }

    /// Writes a leaf and its line.
    async fn end_leaf(
        &self,
        session: &Session,
        leaf: Filling,
        (fence, high): (Fence, Vec<u8>),
        right: u64,
        built: &mut BuiltLeaves,
    ) -> Result<(), IndexError> {
        let (shape, addr) = (&self.shape, leaf.object.addr());
        let version = self.next_version(session).await?;
        let (birth, low, is_dead) = (session.epoch(), leaf.low, false);
        let header = Header { version, right, birth, is_dead, low, high: fence };
        let mut image = session.client().buf(shape.leaf_bytes);
        shape.put_header(addr, &header, image.bytes_mut());
        shape.clear_all(addr, image.bytes_mut(), version);
        let mut line = Line::empty(version);
        for (index, (key, content)) in leaf.pairs.iter().enumerate() {
            let at = shape.slot_at(index);
            let slot = &mut image.bytes_mut()[at..at + shape.slot_bytes];
            shape.fill_slot((addr, index), slot, version, (key, content));
            line = line.with(index, shape.fingerprint(key));
        }
        let op = Op::in_pool(session);
        self.write_new_leaf(&op, (&leaf.object, leaf.at), &image, &line).await?;
        // A line that has no home now is made when it is needed.
        let patient = session.without_deadline();
        if let Some(inside) = self.try_inside(&patient)
            && let Reach::At(place) = self.reach(&inside, addr, true).await?
        {
            // Nobody looks at a line for this leaf. A lock there is somebody's who has an old record.
            self.put_line_if_there(&inside, place, &line).await?;
        }
        built.pairs.push((high, LeafRecord { leaf: addr, version }.value()));
        built.leaves.push(leaf.object);
        Ok(())
    }

    /// Makes the new leaves the table's, if it is empty still.
    pub(super) async fn put_in_place(
        self: &Arc<Self>,
        session: &Op<'_>,
        built: &BuiltLeaves,
    ) -> Result<(), IndexError> {
        let not_empty = || {
            IndexError::Invalid("a bulk load fills an empty table, and this one has keys".into())
        };
        let (shape, largest) = (&self.shape, self.shape.largest());
        let (mut wait, mut changing) = (LockWait::default(), StaleWait::default());
        let (lock, record, at, line) = loop {
            let seen = self.look_up(session, &largest).await?;
            let record = seen.record;
            let at = self.line_of(session, record.leaf).await?;
            let token = session.lock_token();
            match self.try_lock_line(session, at, 0, token).await? {
                Err(holder) => {
                    self.check_fresh(session, at)?;
                    if wait.again(session, ("leaf", record.leaf), holder).await? {
                        self.rescue_now(session, (record.leaf, at), holder).await?;
                    }
                }
                Ok((mut lock, line)) => {
                    let line = match line {
                        Some(line) if line.version == record.version => Some(line),
                        _ if self.is_homed() => {
                            self.build_locked(session, &mut lock, at, record, &largest).await?
                        }
                        _ => None,
                    };
                    if let Some(line) = line {
                        break (lock, record, at, line);
                    }
                    self.give_back(lock).await?;
                    self.await_change(session, &largest, record, &mut changing).await?;
                }
            }
        };
        let reliable = session.reliable();
        let image = reliable.read(record.leaf, reliable.buf(shape.leaf_bytes)).await?;
        let is_only = shape
            .header(record.leaf, image.bytes())
            .is_some_and(|header| header.low == Fence::Open && header.high == Fence::Open);
        if !is_only || line.fingerprints.iter().any(|fingerprint| *fingerprint != 0) {
            self.give_back(lock).await?;
            return Err(not_empty());
        }
        let dead = self.next_version(session).await?;
        let retiring = session.prepare_retire(record.leaf).await?;
        session.begin_posting()?;
        self.kill_leaf(session, (record.leaf, Some(at)), dead, false).await?;
        // Once the upper tree's new root is published they are linked; until then only this client knows of them.
        let mut records = Records(built.pairs.iter());
        let value = record.value();
        let upper = shape.upper;
        let gives_way = move |node: &farleaf_index::bnode::Node<'_, u64>| {
            debug_assert_eq!(node.layout(), &upper);
            let mut found = Vec::new();
            node.count() == 1 && node.value(0, &mut found).is_some() && found == value
        };
        let keep = || {
            built.leaves.iter().for_each(Unlinked::keep);
            built.records.iter().for_each(NewPairRecord::keep);
        };
        match self.upper.replace_by(session, &mut records, gives_way).await {
            Ok(_) => keep(),
            Err(error @ IndexError::OutcomeUnknown(_)) => {
                // This compute server has been cut off.
                keep();
                lock.abandon();
                return Err(error);
            }
            Err(error) => {
                session.cancel_retire(retiring);
                let mut empty = reliable.buf(shape.leaf_bytes);
                shape.clear_all(record.leaf, empty.bytes_mut(), record.version);
                let from = shape.header_bytes;
                let to = record.leaf.plus(from as u64);
                let content = empty.window(from..shape.leaf_bytes);
                if at.is_beside_leaf() {
                    let mut ops = session.client().ops();
                    ops.write(to, content);
                    ops.write(at.at, line.encode(session, shape.tree, at));
                    lock.finish(ops, 0, None).await?;
                } else {
                    reliable.write(to, content).await?;
                    self.finish_line(session, at, lock, Some(&line), 0).await?;
                }
                return Err(error);
            }
        }
        self.kill_leaf(session, (record.leaf, Some(at)), dead, true).await?;
        if at.is_beside_leaf() {
            return lock.finish(session.client().ops(), 0, Some(retiring)).await;
        }
        session.retire(retiring);
        self.finish_line(session, at, lock, None, 0).await
    }
}
