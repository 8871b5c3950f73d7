//! Verification: walks the whole table and checks its invariants.
//!
//! The order: meta object, directory, table objects, the upper tree, then each leaf with the record of its high fence and
//! those of its pairs. A new leaf may be linked by its left neighbour alone, so the walk goes right from each leaf up to
//! the key of its record.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use farleaf_fabric::{Buf, GlobalAddr};
use farleaf_index::Seek;
use farleaf_index::compute::partitions::{ack_bytes, as_conductor, read_partitions};
use farleaf_index::join::join_all;
use farleaf_index::retry::{Attempts, LockWait, backoff};
use farleaf_index::{IndexError, TableReport, Visitor};
use farleaf_pool::Session;

use super::cache::{LeafRecord, RecordNode};
use super::homed::HomedTable;
use super::homes::{Op, Reach};
use super::layout::{Fence, Header, Judged, word};
use super::line::Line;
use super::lines::{DIRECTORY_WORDS, directory_words, table_bytes};
use super::split::fence_record;
use super::{LeafTree, META_BYTES};

/// Attempts at a view of one leaf that nobody changes meanwhile.
const VIEWS_MAX: u32 = 4_000;

/// Leaves, or records, that are read side by side; and the most bytes of records that wait for their turn.
const BATCH: usize = 128;
const AHEAD_BYTES: usize = 4 << 20;

/// The place that a walk of the leaves has come to.
#[derive(Default)]
struct WalkPlace {
    /// All keys up to this one have been visited.
    low: Option<Vec<u8>>,
    /// Leaves that have been visited. One that takes in its right neighbour meanwhile is met again.
    visited: BTreeSet<GlobalAddr>,
    /// The leaf that was visited last, with its header.
    before: Option<(GlobalAddr, Header)>,
}

/// A leaf that nobody changed while it was read.
struct View {
    header: Header,
    image: Buf,
    line: Option<Line>,
}

/// A look at a leaf.
enum Look {
    Quiet(View),
    /// Somebody changes it, or has died over it: its lock word.
    Busy(u64),
}

/// Objects that a walk has read before their turn: views of leaves, and pairs by the words of their records.
#[derive(Default)]
struct Ahead {
    views: BTreeMap<GlobalAddr, View>,
    pairs: BTreeMap<u64, (Vec<u8>, Vec<u8>)>,
}

impl LeafTree {
    /// Visits and checks all objects. See [`farleaf_index::engine::Engine::walk`].
    ///
    /// Cost: 1 READ for each node, record and table object, 3 for each leaf; all leaves of a node of records, and 128 records,
    /// at once.
    pub(super) async fn walk_all(
        self: &Arc<Self>,
        session: &Session,
        visitor: &mut impl Visitor,
        report: &mut TableReport,
    ) -> Result<(), IndexError> {
        visitor.object("meta object", self.stored.meta, META_BYTES);
        if visitor.is_done() {
            return Ok(());
        }
        if let Some(parts) = &self.parts {
            visitor.object("acknowledgements", parts.words.acks, ack_bytes(session.pool()));
            if visitor.is_done() {
                return Ok(());
            }
            let (map, bytes) = read_partitions(&parts.words, session).await?.object();
            visitor.object("partition map", map, bytes);
            if visitor.is_done() {
                return Ok(());
            }
        }
        self.walk_lines(session, visitor).await?;
        if visitor.is_done() {
            return Ok(());
        }
        let mut upper = TableReport::default();
        self.upper.walk(session, visitor, &mut upper).await?;
        report.problems.append(&mut upper.problems);
        report.node_bytes += upper.node_bytes;
        report.inner_bytes += upper.node_bytes;
        report.unfinished_splits += upper.unfinished_splits;
        report.nodes_per_level = vec![0];
        report.nodes_per_level.append(&mut upper.nodes_per_level);
        if visitor.is_done() {
            return Ok(());
        }
        self.walk_leaves(session, visitor, report).await
    }

    async fn walk_lines(
        &self,
        session: &Session,
        visitor: &mut impl Visitor,
    ) -> Result<(), IndexError> {
        let geometry = session.pool().geometry();
        let leaf_bytes = self.shape.leaf_bytes;
        let (words, bytes) =
            (directory_words(geometry, leaf_bytes), table_bytes(geometry, leaf_bytes));
        visitor.object("directory", self.lines.directory(), words * 8);
        let mut at = 0;
        while at < words && !visitor.is_done() {
            let count = DIRECTORY_WORDS.min(words - at);
            let reliable = session.reliable();
            let from = self.lines.directory().plus(at as u64 * 8);
            let part = reliable.read(from, reliable.buf(count * 8)).await?;
            for (index, word) in part.words().iter().enumerate() {
                let number = (at + index) as u64;
                if let Some(table) = self.lines.named(session, number, *word).await?
                    && !visitor.is_done()
                {
                    visitor.object("lines", table, bytes);
                }
            }
            at += count;
        }
        Ok(())
    }

    async fn walk_leaves(
        self: &Arc<Self>,
        session: &Session,
        visitor: &mut impl Visitor,
        report: &mut TableReport,
    ) -> Result<(), IndexError> {
        let mut place = WalkPlace::default();
        let largest = self.shape.largest();
        let mut restarts = Attempts::default();
        'nodes: loop {
            let seek = place.low.as_deref().map_or(Seek::First, Seek::After);
            let (_, image) = self.upper.leaf_image(session, seek).await?;
            let node = RecordNode::new(&self.shape.upper, image.words(), 0)?;
            let first = place.low.as_deref().map_or(0, |low| node.position(low, true));
            if first >= node.count() {
                return Err(self.corrupt("INV-FP-1: a node of records has none where it should"));
            }
            let leaves = (first..node.count()).map(|index| node.record(index).record.leaf);
            let leaves: Vec<GlobalAddr> = leaves.collect();
            let mut ahead = self.look_ahead(session, &leaves, visitor.wants_content()).await?;
            for index in first..node.count() {
                let (record, high) = (node.record(index).record, node.key(index).to_vec());
                let mut leaf = record.leaf;
                if place.low.as_ref() >= Some(&high) {
                    // Its left neighbour has taken it in. A table that is dropped may still name it.
                    if !visitor.wants_content() {
                        visitor.object("leaf", leaf, self.shape.leaf_bytes);
                        if visitor.is_done() {
                            return Ok(());
                        }
                    }
                    continue;
                }
                loop {
                    let named = Some(record).filter(|record| record.leaf == leaf);
                    let places = (&mut place, &mut ahead);
                    let walked =
                        self.walk_leaf(session, (leaf, named), places, visitor, report).await?;
                    let Some((next, end)) = walked else {
                        // Others have changed what the node tells: again from here.
                        restarts.again(session).await?;
                        continue 'nodes;
                    };
                    if visitor.is_done() {
                        return Ok(());
                    }
                    let end = end.unwrap_or_else(|| largest.clone());
                    if place.low.as_ref().is_some_and(|low| end <= *low) {
                        return Err(self
                            .corrupt(&format!("INV-FP-1: the leaf {leaf} ends before it starts")));
                    }
                    place.low = Some(end);
                    if place.low.as_ref() >= Some(&high) {
                        break;
                    }
                    report.unfinished_splits += 1;
                    leaf = GlobalAddr::from_word(next).filter(|next| !next.is_null()).ok_or_else(
                        || self.corrupt(&format!("INV-FP-1: nothing is right of {leaf}")),
                    )?;
                }
            }
            if place.low.as_ref() >= Some(&largest) {
                return Ok(());
            }
        }
    }

    /// Visits and checks one leaf, and the record that led there: its right neighbour and its high fence; `None` if it has
    /// left the tree meanwhile, or begins elsewhere.
    async fn walk_leaf(
        self: &Arc<Self>,
        session: &Session,
        (leaf, named): (GlobalAddr, Option<LeafRecord>),
        (place, ahead): (&mut WalkPlace, &mut Ahead),
        visitor: &mut impl Visitor,
        report: &mut TableReport,
    ) -> Result<Option<(u64, Option<Vec<u8>>)>, IndexError> {
        let (shape, low) = (&self.shape, &place.low);
        let mut value = Vec::new();
        let wants_content = visitor.wants_content();
        let View { header, image, line } = match ahead.views.remove(&leaf) {
            Some(view) => view,
            None => self.view(session, leaf, wants_content).await?,
        };
        let mut is_again = false;
        if wants_content {
            let found = self.walked_fence(session, ahead, &header.low).await?;
            let record = LeafRecord { leaf, version: header.version };
            let is_named = named.is_none_or(|named| named == record);
            if header.is_dead || found != *low || !is_named {
                let seek = low.as_deref().map_or(Seek::First, Seek::After);
                let node = self.read_records(session, seek).await?;
                let index = low.as_deref().map_or(0, |low| node.position(low, true));
                let now = (index < node.count()).then(|| node.record(index).record);
                // The upper tree learns of a version before the leaf is unlocked with it.
                if !is_named && now == named {
                    report.problems.push(format!(
                        "INV-FP-4: the record of the leaf {leaf} has another version than the leaf"
                    ));
                } else if now != Some(record) {
                    return Ok(None);
                }
                // It has taken in the leaf that began here, and may have been visited.
                is_again = header.is_dead || found != *low;
                if is_again && !self.has_changed(session, &place.before).await? {
                    report.problems.push(format!(
                        "INV-FP-1: the leaf {leaf} does not start where its left neighbour ends"
                    ));
                }
            }
        }
        if !wants_content || place.visited.insert(leaf) {
            report.nodes_per_level[0] += 1;
            report.node_bytes += shape.leaf_bytes as u64;
            visitor.object("leaf", leaf, shape.leaf_bytes);
        }
        place.before = Some((leaf, header.clone()));
        if visitor.is_done() {
            return Ok(Some((header.right, None)));
        }
        if let Some(word) = fence_record(&header.high) {
            self.visit_record(word, visitor, report)?;
            if visitor.is_done() {
                return Ok(Some((header.right, None)));
            }
        }
        let high = self.walked_fence(session, ahead, &header.high).await?;
        for index in 0..shape.span {
            let at = shape.slot_at(index);
            let slot = &image.bytes()[at..at + shape.slot_bytes];
            let is_pair = match shape.judge((leaf, index), slot, header.version) {
                Judged::Empty => false,
                Judged::Pair(_) => true,
                Judged::Stale => {
                    report.problems.push(format!(
                        "INV-FP-4: slot {index} of the leaf {leaf} has another version than the leaf"
                    ));
                    continue;
                }
                // A dead client's update, or insert: its value word is whole, old or new.
                Judged::Torn => !wants_content && shape.names_pair((leaf, index), slot),
            };
            if is_pair {
                let word = word(slot, 2);
                let has_record = shape.has_record(shape.key_len(slot));
                if !wants_content {
                    if has_record {
                        self.visit_record(word, visitor, report)?;
                    }
                    if visitor.is_done() {
                        return Ok(Some((header.right, None)));
                    }
                    continue;
                }
                let (key, bytes) = match shape.key_of(slot) {
                    Some(key) if !has_record => {
                        shape.value_of(slot, &mut value);
                        (key.to_vec(), value.len())
                    }
                    _ => {
                        let (key, value) = self.walked_pair(session, ahead, word).await?;
                        (key, value.len())
                    }
                };
                if is_again && low.as_ref().is_some_and(|low| key <= *low) {
                    continue;
                }
                if has_record {
                    self.visit_record(word, visitor, report)?;
                    if visitor.is_done() {
                        return Ok(Some((header.right, None)));
                    }
                }
                report.keys += 1;
                report.data_bytes += (key.len() + bytes) as u64;
                let is_inside = low.as_ref().is_none_or(|low| *low < key)
                    && high.as_ref().is_none_or(|high| key <= *high);
                if !is_inside || !shape.holds(slot, &key) {
                    report.problems.push(format!(
                        "INV-FP-1: slot {index} of the leaf {leaf} holds a key of another leaf"
                    ));
                }
                if line.is_some_and(|line| line.fingerprints[index] != shape.fingerprint(&key)) {
                    report.problems.push(format!(
                        "INV-FP-2: the line of the leaf {leaf} lacks the fingerprint of slot {index}"
                    ));
                }
            } else if line.is_some_and(|line| line.fingerprints[index] != 0) {
                report.problems.push(format!(
                    "INV-FP-2: the line of the leaf {leaf} has a fingerprint for the empty slot {index}"
                ));
            }
        }
        Ok(Some((header.right, high)))
    }

    /// Tells whether a leaf that was visited has changed since: it has taken in its right neighbour, or is gone.
    async fn has_changed(
        &self,
        session: &Session,
        before: &Option<(GlobalAddr, Header)>,
    ) -> Result<bool, IndexError> {
        let Some((leaf, header)) = before else { return Ok(false) };
        Ok(self.read_header(session, *leaf).await?.as_ref() != Some(header))
    }

    fn visit_record(
        &self,
        word: u64,
        visitor: &mut impl Visitor,
        report: &mut TableReport,
    ) -> Result<(), IndexError> {
        let (addr, bytes) = self.record_place(word)?;
        visitor.object("record", addr, bytes);
        report.record_bytes += bytes as u64;
        Ok(())
    }

    /// Looks at leaves, and READs the records of those that are quiet.
    async fn look_ahead(
        self: &Arc<Self>,
        session: &Session,
        leaves: &[GlobalAddr],
        wants_content: bool,
    ) -> Result<Ahead, IndexError> {
        let mut ahead = Ahead::default();
        for some in leaves.chunks(BATCH) {
            let op = self.looking_op(session).await?;
            let looks = some.iter().map(|leaf| self.look(&op, *leaf, wants_content));
            for (leaf, look) in some.iter().zip(join_all(looks).await) {
                if let Look::Quiet(view) = look? {
                    ahead.views.insert(*leaf, view);
                }
            }
        }
        let (mut words, mut bytes) = (BTreeSet::new(), 0);
        if wants_content {
            for (leaf, view) in &ahead.views {
                for word in self.record_words(*leaf, view) {
                    bytes += self.record_place(word)?.1;
                    if bytes > AHEAD_BYTES {
                        break;
                    }
                    words.insert(word);
                }
            }
        }
        let words: Vec<u64> = words.into_iter().collect();
        for some in words.chunks(BATCH) {
            let read = join_all(some.iter().map(|word| self.read_record(session, *word))).await;
            for (word, pair) in some.iter().zip(read) {
                ahead.pairs.insert(*word, pair?);
            }
        }
        Ok(ahead)
    }

    /// The records that a walk READs of a leaf.
    fn record_words(&self, leaf: GlobalAddr, view: &View) -> Vec<u64> {
        let shape = &self.shape;
        let fences = [&view.header.low, &view.header.high].into_iter();
        let mut words: Vec<u64> = fences.filter_map(fence_record).collect();
        for index in 0..shape.span {
            let at = shape.slot_at(index);
            let slot = &view.image.bytes()[at..at + shape.slot_bytes];
            let has_record =
                || shape.key_of(slot).is_none() || shape.has_record(shape.key_len(slot));
            if let Judged::Pair(word) = shape.judge((leaf, index), slot, view.header.version)
                && has_record()
            {
                words.push(word);
            }
        }
        words
    }

    /// The pair in a record. 1 READ, unless it was READ before.
    async fn walked_pair(
        &self,
        session: &Session,
        ahead: &Ahead,
        word: u64,
    ) -> Result<(Vec<u8>, Vec<u8>), IndexError> {
        match ahead.pairs.get(&word) {
            Some(pair) => Ok(pair.clone()),
            None => self.read_record(session, word).await,
        }
    }

    /// As [`LeafTree::fence_key`], by [`LeafTree::walked_pair`].
    async fn walked_fence(
        &self,
        session: &Session,
        ahead: &Ahead,
        fence: &Fence,
    ) -> Result<Option<Vec<u8>>, IndexError> {
        match fence_record(fence) {
            Some(word) => Ok(Some(self.walked_pair(session, ahead, word).await?.0)),
            None => self.fence_key(session, fence).await,
        }
    }

    /// A leaf that nobody changed between two looks at its line. One of a table that is being dropped is taken as it is.
    async fn view(
        self: &Arc<Self>,
        session: &Session,
        leaf: GlobalAddr,
        wants_content: bool,
    ) -> Result<View, IndexError> {
        let (mut tries, mut wait) = (0, LockWait::default());
        loop {
            let look = {
                let op = self.looking_op(session).await?;
                self.look(&op, leaf, wants_content).await?
            };
            match look {
                Look::Quiet(view) => return Ok(view),
                Look::Busy(0) => {}
                Look::Busy(lock) => {
                    // A view begins with a free lock, as a change under it may be half done.
                    if wait.again(session, ("leaf", leaf), lock).await? {
                        self.rescue_met(session, leaf, lock).await?;
                    }
                    continue;
                }
            }
            tries += 1;
            if tries > VIEWS_MAX {
                return Err(self.corrupt(&format!(
                    "INV-FP-4: header, slots and line of the leaf {leaf} do not fit each other, and nobody changes it"
                )));
            }
            backoff(session, tries).await;
        }
    }

    /// One look at a leaf, between two at its line.
    async fn look(
        &self,
        op: &Op<'_>,
        leaf: GlobalAddr,
        wants_content: bool,
    ) -> Result<Look, IndexError> {
        let (shape, reliable) = (&self.shape, op.reliable());
        let reached = self.reach(op, leaf, false).await?;
        let place = if let Reach::At(place) = reached { Some(place) } else { None };
        let before = match place {
            Some(place) => self.peek_words(op, place).await?,
            None => None,
        };
        let image = reliable.read(leaf, reliable.buf(shape.leaf_bytes)).await?;
        let header = shape.header(leaf, image.bytes());
        if let (false, Some(header)) = (wants_content, &header) {
            return Ok(Look::Quiet(View { header: header.clone(), image, line: None }));
        }
        let after = match place {
            Some(place) => self.peek_words(op, place).await?,
            None => None,
        };
        let (line, lock) = match (place, &before) {
            (Some(place), Some(before)) => Line::decode(shape.tree, place, before),
            _ => (None, 0),
        };
        let is_same = match (&before, &after) {
            (Some(before), Some(after)) => before.words() == after.words(),
            (before, after) => before.is_none() && after.is_none(),
        };
        let record = header.as_ref().map(|header| LeafRecord { leaf, version: header.version });
        let is_whole = record.is_some_and(|record| {
            (0..shape.span).all(|index| {
                let from = shape.slot_at(index);
                let slot = &image.bytes()[from..from + shape.slot_bytes];
                let judged = shape.judge((leaf, index), slot, record.version);
                !matches!(judged, Judged::Torn | Judged::Stale)
            })
        });
        let is_quiet = lock == 0 && is_same && is_whole;
        let line = line.filter(|line| record.is_some_and(|it| it.version == line.version));
        match header {
            Some(header) if is_quiet && (line.is_some() || self.is_homed()) => {
                // Without the guard a line may be one that its home has left behind.
                let line = line.filter(|_| !op.is_conductor());
                Ok(Look::Quiet(View { header, image, line }))
            }
            _ => Ok(Look::Busy(lock)),
        }
    }

    /// A look at lines: inside the guard where the table is open, else by the map as it stands.
    async fn looking_op<'a>(&'a self, session: &'a Session) -> Result<Op<'a>, IndexError> {
        match &self.parts {
            None => Ok(Op::in_pool(session)),
            Some(parts) => match self.try_inside(session) {
                Some(op) => Ok(op),
                None => {
                    let map = read_partitions(&parts.words, session).await?;
                    Ok(Op::of_conductor(session, map))
                }
            },
        }
    }

    /// Finishes what the dead client of the lock word `holder` was doing to a leaf that a walk has met.
    async fn rescue_met(
        self: &Arc<Self>,
        session: &Session,
        leaf: GlobalAddr,
        holder: u64,
    ) -> Result<(), IndexError> {
        let inside = match self.is_homed() {
            false => Some(Op::in_pool(session)),
            true => self.try_inside(session),
        };
        let Some(op) = inside else {
            let (table, tree) = (HomedTable(Arc::clone(self)), Arc::clone(self));
            return as_conductor(&table, session, async move |_, session, map| {
                let op = Op::of_conductor(session, map.clone());
                match tree.reach(&op, leaf, false).await? {
                    Reach::At(at) => tree.rescue_now(&op, (leaf, at), holder).await,
                    // The next look finds another home.
                    Reach::Stop(_) | Reach::Unmade => Ok(()),
                }
            })
            .await;
        };
        match self.reach(&op, leaf, false).await? {
            Reach::At(at) => self.rescue(&op, (leaf, at), holder).await,
            Reach::Stop(_) | Reach::Unmade => Ok(()),
        }
    }
}
