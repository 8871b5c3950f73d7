//! Scan: reads the leaves of successive records in windows.
//!
//! With `filter` a window is two waits: the lines, then the slots that have a fingerprint, in at most two READs for each leaf,
//! or all slots where most have one. A key that is present throughout has its fingerprint in the line at every instant
//! (`INV-FP-2`). Without `filter` it is one wait, for whole leaves.
//!
//! A line or a slot of another version than the record's means that the leaf has changed: that leaf again, by the record that
//! the upper tree has now. The next leaf is found by key, never by a pointer alone. So every key that is present throughout
//! is returned, once.

use std::ops::Bound;
use std::sync::Arc;

use farleaf_index::Seek;
use farleaf_index::{Entries, IndexError, ScanRange};
use farleaf_pool::Session;

use super::LeafTree;
use super::cache::{LeafRecord, RecordNode};
use super::homes::{LinePlace, Op, Reach};
use super::layout::Judged;
use super::line::Line;
use super::locate::StaleWait;

farleaf_fabric::canaries! {
    pub(crate) SCAN_STALE = "scan-stale", "a scan skips slots of another version than the leaf's";
    pub(crate) SCAN_BY_REPLICA = "scan-by-replica",
        "a scan reads the slots that a replica names, not those of the line at its home";
}

/// Share of slots with a fingerprint above which a scan reads all slots.
const WHOLE_SHARE: f64 = 0.8;
/// Most READs of slots of one leaf.
const RUNS_MAX: usize = 2;

/// A record with its range.
struct ScannedLeaf {
    record: LeafRecord,
    low: Option<Vec<u8>>,
    high: Vec<u8>,
}

/// Slots that were read of a leaf: each run begins at a slot. `None`: its line does not fit.
type Slots = Option<Vec<(usize, Vec<u8>)>>;

/// A pair of a leaf: its key, its record's word, and the value if it stands in the slot or has been read.
type ScannedPair = (Vec<u8>, u64, Option<Vec<u8>>);

impl LeafTree {
    /// Appends at most `limit` pairs of `range`; the caller has a pin.
    ///
    /// Cost: 1 READ of the line and 1 to 2 of slots for each leaf, `scan_window` of them in two waits; without `filter` 1
    /// READ and one wait. 1 READ for each record, all of a leaf's in one wait.
    pub(super) async fn scan_range(
        self: &Arc<Self>,
        session: &Op<'_>,
        range: ScanRange<'_>,
        limit: usize,
        out: &mut Entries,
    ) -> Result<(), IndexError> {
        let end = out.len().saturating_add(limit);
        // The place from which keys are still wanted.
        let mut position = if range.reverse { range.to } else { range.from }.map(<[u8]>::to_vec);
        let mut changing = StaleWait::default();
        while out.len() < end {
            let node = self.node_at(session, &position, range.reverse).await?;
            let parts = self.window(&node, &position, &range, end - out.len())?;
            if parts.is_empty() {
                return Ok(());
            }
            let leaves = match self.options.filter {
                true => self.read_filtered(session, &parts).await?,
                false => self.read_whole(session, &parts.iter().collect::<Vec<_>>()).await?,
            };
            for (part, slots) in parts.iter().zip(leaves) {
                let pairs = self.pairs_of_leaf(session, part, slots).await?;
                let Some(pairs) = pairs else {
                    self.await_change(session, &part.high, part.record, &mut changing).await?;
                    // Brings a newer node than the one of this window.
                    self.look_up(session, &part.high).await?;
                    break;
                };
                changing = StaleWait::default();
                self.emit(session, pairs, &position, &range, end, out).await?;
                let next = if range.reverse {
                    part.low.clone().map(Bound::Included)
                } else if part.high == self.shape.largest() {
                    None
                } else {
                    Some(Bound::Excluded(part.high.clone()))
                };
                let Some(next) = next.filter(|next| self.is_before_end(next, &range)) else {
                    return Ok(());
                };
                position = next;
                if out.len() >= end {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Tells whether keys from `position` on may be in the range.
    fn is_before_end(&self, position: &Bound<Vec<u8>>, range: &ScanRange<'_>) -> bool {
        let (Bound::Included(at) | Bound::Excluded(at)) = position else { return true };
        match if range.reverse { range.from } else { range.to } {
            Bound::Unbounded => true,
            Bound::Included(end) | Bound::Excluded(end) => {
                if range.reverse {
                    at.as_slice() >= end
                } else {
                    at.as_slice() <= end
                }
            }
        }
    }

    async fn node_at(
        &self,
        session: &Session,
        position: &Bound<Vec<u8>>,
        reverse: bool,
    ) -> Result<Arc<RecordNode>, IndexError> {
        let (key, after) = match position {
            Bound::Unbounded if reverse => (self.shape.largest(), false),
            Bound::Unbounded => return self.read_records(session, Seek::First).await,
            Bound::Included(key) => (key.clone(), false),
            Bound::Excluded(key) => (key.clone(), !reverse),
        };
        if let Some(node) = self.cache.find(&key, after) {
            // A record of version 0 tells of no range: the upper tree does.
            let index = node.position(&key, after);
            if index < node.count() && node.record(index).record.version != 0 {
                return Ok(node);
            }
        }
        let seek = if after { Seek::After(&key) } else { Seek::At(&key) };
        self.read_records(session, seek).await
    }

    /// The next records of a node, as many as a window has and as `wanted` keys may need.
    fn window(
        &self,
        node: &RecordNode,
        position: &Bound<Vec<u8>>,
        range: &ScanRange<'_>,
        wanted: usize,
    ) -> Result<Vec<ScannedLeaf>, IndexError> {
        let first = match position {
            Bound::Unbounded if range.reverse => node.count().saturating_sub(1),
            Bound::Unbounded => 0,
            Bound::Included(key) => node.position(key, false),
            Bound::Excluded(key) => node.position(key, !range.reverse),
        };
        // Half full leaves are usual.
        let most =
            self.options.scan_window.min((wanted / (self.shape.span / 2).max(1)).saturating_add(1));
        let mut parts = Vec::new();
        let mut next = (first < node.count()).then_some(first);
        while let Some(index) = next
            && parts.len() < most
        {
            let (record, high) = (node.record(index).record, node.key(index).to_vec());
            if record.version == 0 {
                break;
            }
            let low = match index.checked_sub(1) {
                Some(before) => Some(node.key(before).to_vec()),
                None => node.low.clone(),
            };
            let edge = match range.reverse {
                true => Some(Bound::Included(high.clone())),
                false => low.clone().map(Bound::Excluded),
            };
            if !parts.is_empty() && edge.is_some_and(|edge| !self.is_before_end(&edge, range)) {
                break;
            }
            parts.push(ScannedLeaf { record, low, high });
            next = match range.reverse {
                true => index.checked_sub(1),
                false => Some(index + 1).filter(|index| *index < node.count()),
            };
        }
        Ok(parts)
    }

    /// READs whole leaves, at once; `None` for one whose header or slots are not of the record's version.
    ///
    /// The header is bound to the table, slots without a pair are not: at an address that was used again an empty leaf of
    /// another table may have that version as well.
    async fn read_whole(
        &self,
        session: &Session,
        parts: &[&ScannedLeaf],
    ) -> Result<Vec<Slots>, IndexError> {
        let (shape, reliable) = (&self.shape, session.reliable());
        let mut ops = reliable.client().ops();
        for part in parts {
            ops.read(part.record.leaf, reliable.buf(shape.leaf_bytes));
        }
        let mut ops = reliable.post_many(ops).await?;
        // Behind the last slot a leaf may have room for more.
        let slots = shape.slot_at(0)..shape.slot_at(shape.span);
        let all = |(index, part): (usize, &&ScannedLeaf)| {
            let image = ops.take_buf(index);
            let is_it = self.is_all_of(part.record, image.bytes());
            is_it.then(|| vec![(0, image.bytes()[slots.clone()].to_vec())])
        };
        Ok(parts.iter().enumerate().map(all).collect())
    }

    /// READs the lines of the leaves, then the slots that have a fingerprint.
    async fn read_filtered(
        &self,
        session: &Op<'_>,
        parts: &[ScannedLeaf],
    ) -> Result<Vec<Slots>, IndexError> {
        if self.is_homed() {
            return self.read_filtered_homed(session, parts).await;
        }
        let mut places = Vec::with_capacity(parts.len());
        for part in parts {
            places.push(self.line_of(session, part.record.leaf).await?);
        }
        let lines = self.read_lines(session, &places).await?;
        let runs = parts.iter().zip(lines).map(|(part, line)| {
            let line = line.filter(|line| line.version == part.record.version);
            line.map(|line| self.runs(&line))
        });
        self.read_runs(session, parts, runs.collect()).await
    }

    /// As [`LeafTree::read_filtered`]; a leaf whose line cannot be had, or is of another version, is READ as a whole.
    async fn read_filtered_homed(
        &self,
        session: &Op<'_>,
        parts: &[ScannedLeaf],
    ) -> Result<Vec<Slots>, IndexError> {
        let mut places: Vec<LinePlace> = Vec::with_capacity(parts.len());
        let mut have = Vec::with_capacity(parts.len());
        for part in parts {
            let reached = self.reach(session, part.record.leaf, false).await?;
            let place = if let Reach::At(place) = reached { Some(place) } else { None };
            have.push(place.is_some());
            places.extend(place);
        }
        let mut read = self.peek_lines(session, &places).await?.into_iter();
        let lines = have.into_iter().map(|has| if has { read.next().flatten() } else { None });
        let mut runs = Vec::with_capacity(parts.len());
        for (part, mut line) in parts.iter().zip(lines) {
            if SCAN_BY_REPLICA.is_armed() {
                line = self.replica(part.record).or(line);
            }
            let line = line.filter(|line| line.version == part.record.version);
            if let Some(line) = line {
                self.remember(part.record.leaf, line);
            }
            runs.push(line.map(|line| self.runs(&line)));
        }
        let mut slots = self.read_runs(session, parts, runs).await?;
        let missing: Vec<usize> =
            (0..parts.len()).filter(|index| slots[*index].is_none()).collect();
        if !missing.is_empty() {
            let parts: Vec<_> = missing.iter().map(|index| &parts[*index]).collect();
            let whole = self.read_whole(session, &parts).await?;
            missing.into_iter().zip(whole).for_each(|(index, whole)| slots[index] = whole);
        }
        Ok(slots)
    }

    /// READs runs of slots, all at once; `None` for a leaf without any.
    async fn read_runs(
        &self,
        session: &Session,
        parts: &[ScannedLeaf],
        runs: Vec<Option<Vec<(usize, usize)>>>,
    ) -> Result<Vec<Slots>, IndexError> {
        let (shape, reliable) = (&self.shape, session.reliable());
        let mut ops = reliable.client().ops();
        for (part, runs) in parts.iter().zip(&runs) {
            for (from, count) in runs.iter().flatten() {
                let at = part.record.leaf.plus(shape.slot_at(*from) as u64);
                ops.read(at, reliable.buf(count * shape.slot_bytes));
            }
        }
        if runs.iter().flatten().all(Vec::is_empty) {
            return Ok(runs.iter().map(|runs| runs.as_ref().map(|_| Vec::new())).collect());
        }
        let mut ops = reliable.post_many(ops).await?;
        let mut next = 0;
        let mut slots = Vec::with_capacity(parts.len());
        for runs in &runs {
            slots.push(runs.as_ref().map(|runs| {
                let read = runs.iter().map(|(from, _)| {
                    next += 1;
                    (*from, ops.take_buf(next - 1).bytes().to_vec())
                });
                read.collect()
            }));
        }
        Ok(slots)
    }

    /// Runs of slots, each with its length, that hold all those with a fingerprint.
    fn runs(&self, line: &Line) -> Vec<(usize, usize)> {
        let span = self.shape.span;
        if line.count() as f64 > span as f64 * WHOLE_SHARE {
            return vec![(0, span)];
        }
        let mut runs: Vec<(usize, usize)> = Vec::new();
        for index in (0..span).filter(|index| line.fingerprints[*index] != 0) {
            match runs.last_mut() {
                Some((from, count)) if index - (*from + *count) <= self.options.gap_join => {
                    *count = index + 1 - *from;
                }
                _ => runs.push((index, 1)),
            }
        }
        // Close the smallest gaps until so many READs are left.
        while runs.len() > RUNS_MAX {
            let gap = |at: usize| runs[at + 1].0 - (runs[at].0 + runs[at].1);
            let Some(at) = (0..runs.len() - 1).min_by_key(|at| gap(*at)) else { break };
            let next = runs.remove(at + 1);
            runs[at].1 = next.0 + next.1 - runs[at].0;
        }
        runs
    }

    /// The pairs of a leaf that was read, in order; `None` if it has changed, or is being changed.
    async fn pairs_of_leaf(
        &self,
        session: &Session,
        part: &ScannedLeaf,
        slots: Slots,
    ) -> Result<Option<Vec<ScannedPair>>, IndexError> {
        let (shape, leaf) = (&self.shape, part.record.leaf);
        let Some(runs) = slots else { return Ok(None) };
        let mut pairs = Vec::new();
        let mut long = Vec::new();
        for (from, run) in &runs {
            for (at, slot) in run.chunks_exact(shape.slot_bytes).enumerate() {
                match shape.judge((leaf, from + at), slot, part.record.version) {
                    Judged::Stale if SCAN_STALE.is_armed() => {}
                    Judged::Stale | Judged::Torn => return Ok(None),
                    Judged::Empty => {}
                    Judged::Pair(value) => match shape.key_of(slot) {
                        Some(key) => {
                            let mut held = None;
                            if !shape.has_record(key.len()) {
                                shape.value_of(slot, held.insert(Vec::new()));
                            }
                            pairs.push((key.to_vec(), value, held));
                        }
                        None => long.push(value),
                    },
                }
            }
        }
        let read = self.read_records_of(session, &long).await?;
        pairs.extend(long.iter().zip(read).map(|(word, (key, value))| (key, *word, Some(value))));
        let is_inside =
            |key: &Vec<u8>| part.low.as_ref().is_none_or(|low| low < key) && *key <= part.high;
        pairs.retain(|(key, ..)| is_inside(key));
        pairs.sort();
        // A key that was removed and inserted again between two READs of slots may stand in both.
        pairs.dedup_by(|second, first| second.0 == first.0);
        Ok(Some(pairs))
    }

    async fn read_records_of(
        &self,
        session: &Session,
        words: &[u64],
    ) -> Result<Vec<(Vec<u8>, Vec<u8>)>, IndexError> {
        if words.is_empty() {
            return Ok(Vec::new());
        }
        let reliable = session.reliable();
        let places: Vec<_> =
            words.iter().map(|word| self.record_place(*word)).collect::<Result<_, _>>()?;
        let mut ops = reliable.client().ops();
        for (addr, bytes) in &places {
            ops.read(*addr, reliable.buf(*bytes));
        }
        let mut ops = reliable.post_many(ops).await?;
        let pairs = places.iter().enumerate();
        pairs.map(|(index, (addr, _))| self.pair_of(*addr, &ops.take_buf(index))).collect()
    }

    async fn emit(
        &self,
        session: &Session,
        mut pairs: Vec<ScannedPair>,
        position: &Bound<Vec<u8>>,
        range: &ScanRange<'_>,
        end: usize,
        out: &mut Entries,
    ) -> Result<(), IndexError> {
        let is_ahead = |key: &[u8]| match (position, range.reverse) {
            (Bound::Unbounded, _) => true,
            (Bound::Included(at), false) => key >= at.as_slice(),
            (Bound::Excluded(at), false) => key > at.as_slice(),
            (Bound::Included(at), true) => key <= at.as_slice(),
            (Bound::Excluded(at), true) => key < at.as_slice(),
        };
        pairs.retain(|(key, ..)| range.holds(key) && is_ahead(key));
        if range.reverse {
            pairs.reverse();
        }
        pairs.truncate(end - out.len());
        let words: Vec<u64> =
            pairs.iter().filter(|pair| pair.2.is_none()).map(|pair| pair.1).collect();
        let mut read = self.read_records_of(session, &words).await?.into_iter();
        for pair in pairs {
            let value = pair.2.or_else(|| read.next().map(|(_, value)| value));
            let value = value.unwrap_or_default();
            out.push(&pair.0, &value);
        }
        Ok(())
    }
}
