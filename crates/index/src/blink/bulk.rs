//! Bulk load: fills an empty table from sorted pairs, bottom up.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use farleaf_fabric::{Endpoint, GlobalAddr, ServerId};
use farleaf_pool::Session;

use super::leaf::NodeView;
use super::records::{fill_record, record_bytes};
use super::{BlinkFail, BlinkTree};
use crate::VALUE_BYTES_MAX;
use crate::bnode::{GuardedLayout, Head, Layout, LeafEntry, Node, RecordRef, Value};
use crate::{IndexError, SortedPairs};

/// Nodes written at once.
const BATCH_NODES: usize = 16;
/// Pairs are looked at so many nodes ahead, as keys that have much in common take little space.
const AHEAD_NODES: usize = 8;

impl BlinkTree {
    /// Builds the tree beside the empty one and puts it in its place.
    ///
    /// Cost: 1 WRITE per node, up to 16 in one round trip, and 1 per record; then about 9
    /// operations to put it in place. An error leaves the table empty and the memory free.
    pub async fn bulk_load(
        self: &Arc<Self>,
        session: &Session,
        pairs: &mut impl SortedPairs,
    ) -> Result<u64, IndexError> {
        self.bulk_load_keeping(session, pairs, ()).await
    }

    /// As [`BlinkTree::bulk_load`]; `kept` is dropped once the new tree is in its place, or will not be.
    ///
    /// # Errors
    /// As [`BlinkTree::bulk_load`].
    pub async fn bulk_load_keeping(
        self: &Arc<Self>,
        session: &Session,
        pairs: &mut impl SortedPairs,
        kept: impl Sized + 'static,
    ) -> Result<u64, IndexError> {
        let gives_way = move |leaf: &NodeView<'_>| {
            let _ = &kept;
            leaf.count() == 0
        };
        self.replace_leaf(session, pairs, gives_way).await
    }

    /// As [`BlinkTree::bulk_load`], in place of a tree of one leaf that `gives_way`.
    ///
    /// # Errors
    /// `Invalid` if it does not; others as [`BlinkTree::bulk_load`].
    pub async fn replace_by(
        self: &Arc<Self>,
        session: &Session,
        pairs: &mut impl SortedPairs,
        gives_way: impl Fn(&Node<'_, u64>) -> bool + 'static,
    ) -> Result<u64, IndexError> {
        self.replace_leaf(session, pairs, move |leaf| match leaf {
            NodeView::Node(leaf) => gives_way(leaf),
            NodeView::Guarded(_) => false,
        })
        .await
    }

    async fn replace_leaf(
        self: &Arc<Self>,
        session: &Session,
        pairs: &mut impl SortedPairs,
        gives_way: impl Fn(&NodeView<'_>) -> bool + 'static,
    ) -> Result<u64, IndexError> {
        self.read_root(session).await?;
        let NewTree { root, count, built } = self.build(session, pairs, &[]).await?;
        let tree = Arc::clone(self);
        let done = BlinkTree::detach(session, async move |session| {
            tree.put_in_place(&session, root, built, gives_way).await
        });
        done.await.unwrap_or_else(|| {
            Err(IndexError::OutcomeUnknown("the new tree is still being put in place".into()))
        })?;
        Ok(count)
    }

    /// Makes the new tree the table's, if the old one is still a leaf that `gives_way`.
    async fn put_in_place(
        self: &Arc<Self>,
        session: &Session,
        (root, level): (GlobalAddr, u8),
        mut built: BuiltNodes,
        gives_way: impl Fn(&NodeView<'_>) -> bool,
    ) -> Result<(), IndexError> {
        let lock = self.lock_root(session).await?;
        let (old, old_level) = self.read_root(session).await?;
        let leaf = match self.lock(session, old, old_level).await {
            Ok(leaf) => leaf,
            Err(BlinkFail::Error(error)) => return Err(error),
            Err(BlinkFail::Restart) => {
                lock.release().await?;
                return Err(not_empty());
            }
        };
        let leaf = leaf.take_word().await?;
        if old_level > 0 || !gives_way(&leaf.view()) || leaf.view().right() != 0 {
            leaf.unlock().await?;
            lock.release().await?;
            return Err(not_empty());
        }
        let retiring = session.prepare_retire(old).await?;
        self.record_burial(session, &leaf).await?;
        built.keep();
        // Until the old leaf is dead, those who remember it as the root find it locked, and look at the
        // root word (see `Tree::node_at`).
        self.publish_root(session, lock, root, level).await?;
        self.publish_dead(leaf, Some(retiring)).await
    }
}

/// The objects of a tree that is being built; freed when dropped, unless they are kept.
struct BuiltNodes {
    session: Session,
    objects: Vec<(GlobalAddr, usize)>,
    /// WRITEs were posted, and have not come back.
    writing: bool,
}

impl BuiltNodes {
    fn keep(&mut self) {
        self.objects.clear();
    }
}

impl Drop for BuiltNodes {
    fn drop(&mut self) {
        let objects = std::mem::take(&mut self.objects);
        if !self.writing || objects.is_empty() || !self.session.endpoint().is_lossy() {
            for (addr, bytes) in objects {
                self.session.free_unpublished(addr, bytes);
            }
            return;
        }
        self.session.spawn(async move |session| {
            for server in 0..session.endpoint().server_count() {
                // An error is final: this compute server has been cut off.
                if session.maintenance().settle(ServerId(server as u16)).await.is_err() {
                    return;
                }
            }
            for (addr, bytes) in objects {
                session.free_unpublished(addr, bytes);
            }
        });
    }
}

/// Pairs that are waiting for their leaf.
#[derive(Default)]
struct Waiting {
    bytes: Vec<u8>,
    /// Ends of key and value in `bytes`, or the record that holds the value.
    pairs: Vec<(usize, usize, Option<RecordRef>)>,
}

impl Waiting {
    fn start(&self, index: usize) -> usize {
        if index == 0 { 0 } else { self.pairs[index - 1].1 }
    }

    fn entry(&self, index: usize) -> LeafEntry<'_> {
        let (key_end, end, record) = self.pairs[index];
        let value = match record {
            Some(record) => Value::Record(record),
            None => Value::Inline(&self.bytes[key_end..end]),
        };
        LeafEntry { key: &self.bytes[self.start(index)..key_end], value }
    }

    /// Forgets the first `count` pairs.
    fn advance(&mut self, count: usize) {
        let cut = self.start(count);
        self.bytes.drain(..cut);
        self.pairs.drain(..count);
        for (key_end, end, _) in &mut self.pairs {
            *key_end -= cut;
            *end -= cut;
        }
    }
}

/// One level above the leaves: children that are waiting for their node, and the upper bound of
/// each but, at the very end, the last.
struct Level {
    low: Option<Vec<u8>>,
    addr: GlobalAddr,
    children: Vec<u64>,
    bounds: Vec<Vec<u8>>,
    bytes: usize,
    is_first: bool,
}

struct TreeBuilder<'a> {
    tree: &'a BlinkTree,
    layout: &'a Layout,
    session: &'a Session,
    fill_percent: usize,
    count: u64,
    waiting: Waiting,
    low: Option<Vec<u8>>,
    leaf: GlobalAddr,
    levels: Vec<Level>,
    batch: farleaf_fabric::Ops,
    root: (GlobalAddr, u8),
    built: BuiltNodes,
    group: Option<Group>,
    /// Inclusive upper bounds of parts of the keys that no leaf may cross, and how many of them are
    /// behind.
    cuts: &'a [Vec<u8>],
    cut: usize,
}

/// Unfinished part of a tree whose lower levels lie on one server, subtree by subtree: leaves and
/// the nodes above them up to `level`. No node up to there has children of two groups.
struct Group {
    level: u8,
    /// Leaves of a full subtree.
    leaves: u64,
    /// Leaves of a full subtree that is a level lower.
    leaves_below: u64,
    /// Leaves of this group so far.
    done: u64,
    server: ServerId,
}

/// The neighbour behind a leaf that is being ended.
enum Behind {
    /// Another one of the same part.
    More,
    /// The first one of the part above this bound.
    Cut(Vec<u8>),
    /// Nothing.
    Nothing,
}

impl<'a> TreeBuilder<'a> {
    fn new(tree: &'a BlinkTree, session: &'a Session, cuts: &'a [Vec<u8>]) -> Self {
        let fill_percent = (tree.options.bulk_fill.clamp(0.1, 1.0) * 100.0) as usize;
        let group = tree.placed.load(Ordering::Relaxed).checked_sub(1).map(|level| {
            let children = tree.layout.inner_cap() * fill_percent / 100;
            let below = |level: u8| (children.max(1) as u64 + 1).saturating_pow(level.into());
            let (leaves, leaves_below) = (below(level), below(level.saturating_sub(1)));
            Group { level, leaves, leaves_below, done: 0, server: session.next_server() }
        });
        TreeBuilder {
            tree,
            layout: &tree.layout,
            session,
            fill_percent,
            group,
            count: 0,
            waiting: Waiting::default(),
            low: None,
            leaf: GlobalAddr::NULL,
            levels: Vec::new(),
            batch: session.client().ops(),
            root: (GlobalAddr::NULL, 0),
            cuts,
            cut: 0,
            built: BuiltNodes { session: session.clone(), objects: Vec::new(), writing: false },
        }
    }

    async fn run(&mut self, pairs: &mut impl SortedPairs) -> Result<(), IndexError> {
        self.leaf = self.node(0).await?;
        let mut last: Vec<u8> = Vec::new();
        let most_pairs = (self.leaf_cap() * self.fill_percent / 100).max(1);
        let most_bytes = AHEAD_NODES * self.tree.bytes_at(0);
        while let Some((key, value)) = pairs.next() {
            self.check(key, value, &last)?;
            while self.cuts.get(self.cut).is_some_and(|cut| cut.as_slice() < key) {
                self.end_part().await?;
            }
            self.put(key, value).await?;
            last.clear();
            last.extend_from_slice(key);
            self.count += 1;
            let ahead = self.waiting.pairs.len();
            if ahead > most_pairs || ahead > 1 && self.waiting.bytes.len() > most_bytes {
                self.end_leaf(self.fit_leaf(None).min(ahead - 1), Behind::More).await?;
            }
        }
        while self.cut < self.cuts.len() {
            self.end_part().await?;
        }
        self.end_waiting(None).await?;
        let mut level = 0;
        while level < self.levels.len() {
            self.end_level(level).await?;
            level += 1;
        }
        self.flush().await
    }

    /// Entries of a leaf.
    fn leaf_cap(&self) -> usize {
        self.tree.guarded.as_ref().map_or(self.layout.leaf_cap(), GuardedLayout::slots)
    }

    fn check(&self, key: &[u8], value: &[u8], last: &[u8]) -> Result<(), IndexError> {
        let layout = self.layout;
        if !layout.takes_key(key.len())
            || !layout.takes_value(value.len())
            || value.len() > VALUE_BYTES_MAX
        {
            return Err(IndexError::Invalid(format!(
                "pair {} of the load: a key of {} and a value of {} bytes do not fit this table",
                self.count + 1,
                key.len(),
                value.len()
            )));
        }
        if self.count > 0 && key <= last {
            let how = if key == last { "repeats" } else { "is below" };
            return Err(IndexError::Invalid(format!(
                "pair {} of the load is out of order: its key {how} the one before it",
                self.count + 1
            )));
        }
        Ok(())
    }

    async fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), IndexError> {
        let mut record = None;
        self.waiting.bytes.extend_from_slice(key);
        let key_end = self.waiting.bytes.len();
        if value.len() > self.layout.inline_value_max() {
            let bytes = record_bytes(value.len());
            let addr = self.session.alloc(self.session.place(), bytes).await?;
            self.built.objects.push((addr, bytes));
            let buf = fill_record(self.session.client().buf(bytes), value);
            self.built.writing = true;
            self.session.reliable().write(addr, buf).await?;
            self.built.writing = false;
            record = Some(RecordRef { addr: addr.word(), len: value.len() as u64 });
        } else {
            self.waiting.bytes.extend_from_slice(value);
        }
        self.waiting.pairs.push((key_end, self.waiting.bytes.len(), record));
        Ok(())
    }

    /// Writes leaves of all waiting pairs, the last of which ends at the next cut.
    async fn end_part(&mut self) -> Result<(), IndexError> {
        let cut = self.cuts[self.cut].clone();
        self.cut += 1;
        self.end_waiting(Some(cut)).await
    }

    /// Writes leaves of all waiting pairs: the last ones, or those up to a cut.
    async fn end_waiting(&mut self, cut: Option<Vec<u8>>) -> Result<(), IndexError> {
        loop {
            let (count, ahead) = (self.fit_leaf(cut.as_deref()), self.waiting.pairs.len());
            if count == ahead {
                return self.end_leaf(count, cut.map_or(Behind::Nothing, Behind::Cut)).await;
            }
            self.end_leaf(count, Behind::More).await?;
        }
    }

    /// Counts the waiting pairs that the next leaf takes; `high` is the fence behind the last of them, if
    /// it is known.
    fn fit_leaf(&self, high: Option<&[u8]>) -> usize {
        if self.layout.is_dense() {
            let most = self.leaf_cap() * self.fill_percent / 100;
            let most = self.waiting.pairs.len().min(most.max(1));
            return self.with_places(most);
        }
        let entries: Vec<LeafEntry<'_>> =
            (0..self.waiting.pairs.len()).map(|index| self.waiting.entry(index)).collect();
        self.layout.fit_leaf(self.low.as_deref(), high, &entries, self.fill_percent)
    }

    /// The most of the first `most` waiting pairs that all find places in their neighbourhoods, if leaves have such.
    fn with_places(&self, most: usize) -> usize {
        let Some(leaf) = self.tree.guarded.as_ref().filter(|leaf| leaf.is_hopscotch()) else {
            return most;
        };
        let keys: Vec<&[u8]> = (0..most).map(|index| self.waiting.entry(index).key).collect();
        let fits = |&count: &usize| leaf.takes_all(&keys[..count]);
        (1..=most).rev().find(fits).unwrap_or(most)
    }

    /// Writes a leaf of the first `count` waiting pairs; of all of them unless there is more behind it.
    async fn end_leaf(&mut self, count: usize, behind: Behind) -> Result<(), IndexError> {
        let is_last = matches!(behind, Behind::Nothing);
        let is_cut = matches!(behind, Behind::Cut(_));
        let mut right = GlobalAddr::NULL;
        let high = match behind {
            Behind::Nothing => Vec::new(),
            Behind::Cut(cut) => cut,
            Behind::More => {
                let mut high = Vec::new();
                let (below, above) = (self.waiting.entry(count - 1), self.waiting.entry(count));
                self.layout.separator(below.key, above.key, &mut high);
                high
            }
        };
        let before = if is_last { None } else { self.next_group(is_cut) };
        if !is_last {
            right = self.node(0).await?;
        }
        let head = Head {
            addr: self.leaf.word(),
            right: right.word(),
            version: self.tree.first_version(self.session),
            low: self.low.as_deref(),
            high: (!is_last).then_some(high.as_slice()),
            ..Head::default()
        };
        let entries: Vec<LeafEntry<'_>> =
            (0..count).map(|index| self.waiting.entry(index)).collect();
        let mut image = self.session.client().buf(self.tree.bytes_at(0));
        self.tree
            .encode_leaf(image.words_mut(), &head, &entries)
            .map_err(|error| IndexError::Invalid(format!("bulk load: {error}")))?;
        drop(entries);
        self.waiting.advance(count);
        let done = std::mem::replace(&mut self.leaf, right);
        self.batch.write(done, image);
        self.flush_when_full().await?;
        if is_last && self.levels.is_empty() {
            self.root = (done, 0);
            return Ok(());
        }
        self.low = Some(high.clone());
        let Some(before) = before else {
            return self.add_child(0, done, (!is_last).then_some(high)).await;
        };
        // Its parents are still the old group's.
        let next = self.group_server(Some(before));
        self.add_child(0, done, Some(high)).await?;
        self.end_group(before, next).await
    }

    /// If the leaf that is being ended is the last of its group, begins the next one; gives the server of
    /// the old one. A group ends with its part of the keys, too, so that no node up to its level is of two
    /// parts, unless that would make a mere chain of its top.
    fn next_group(&mut self, is_cut: bool) -> Option<ServerId> {
        let group = self.group.as_mut()?;
        group.done += 1;
        if group.done < group.leaves && !(is_cut && group.done > group.leaves_below) {
            return None;
        }
        group.done = 0;
        Some(std::mem::replace(&mut group.server, self.session.next_server()))
    }

    /// Sets the server that nodes of groups go to; gives the one before.
    fn group_server(&mut self, server: Option<ServerId>) -> Option<ServerId> {
        let group = self.group.as_mut()?;
        Some(std::mem::replace(&mut group.server, server?))
    }

    /// Writes all nodes that the group on `server` still lacks, up to its subtree's top. What comes
    /// after them goes to the `next` server.
    async fn end_group(
        &mut self,
        server: ServerId,
        next: Option<ServerId>,
    ) -> Result<(), IndexError> {
        let top = self.group.as_ref().map_or(0, |group| usize::from(group.level));
        for level in 0..top {
            loop {
                let ahead = self.levels.get(level).map_or(0, |here| here.children.len());
                if ahead == 0 {
                    break;
                }
                let count = self.fit_inner(level).min(ahead);
                // The last one's right sibling is of the next group.
                self.group_server(if count == ahead { next } else { Some(server) });
                let (node, bound) = self.end_inner(level, count).await?;
                self.group_server(Some(server));
                self.add_child(level + 1, node, bound).await?;
            }
        }
        self.group_server(next);
        Ok(())
    }

    /// Tells `level`, which is one above the child, of a finished child and its upper bound.
    async fn add_child(
        &mut self,
        mut level: usize,
        mut child: GlobalAddr,
        mut bound: Option<Vec<u8>>,
    ) -> Result<(), IndexError> {
        let most = (self.layout.inner_cap() * self.fill_percent / 100).max(1);
        loop {
            if level == self.levels.len() {
                let addr = self.node(level as u8 + 1).await?;
                let (children, bounds) = Default::default();
                let (low, bytes, is_first) = (None, 0, true);
                self.levels.push(Level { low, addr, children, bounds, bytes, is_first });
            }
            let here = &mut self.levels[level];
            here.children.push(child.word());
            let Some(bound_here) = bound else { return Ok(()) };
            here.bytes += bound_here.len();
            here.bounds.push(bound_here);
            let ahead = here.bounds.len();
            if ahead <= most + 1 && here.bytes <= AHEAD_NODES * self.layout.node_bytes() {
                return Ok(());
            }
            let count = self.fit_inner(level).min(ahead);
            (child, bound) = self.end_inner(level, count).await?;
            level += 1;
        }
    }

    /// Counts the waiting children that the next node of `level` takes.
    fn fit_inner(&self, level: usize) -> usize {
        let here = &self.levels[level];
        self.layout.fit_inner(here.low.as_deref(), None, &here.bounds, self.fill_percent)
    }

    /// Writes what is waiting on `level`; the last node of the topmost level is the root.
    async fn end_level(&mut self, level: usize) -> Result<(), IndexError> {
        loop {
            let ahead = self.levels[level].children.len();
            let count = self.fit_inner(level).min(ahead);
            let (node, bound) = self.end_inner(level, count).await?;
            let is_last = bound.is_none();
            if is_last && level + 1 == self.levels.len() && self.levels[level].is_first {
                self.root = (node, level as u8 + 1);
                return Ok(());
            }
            self.add_child(level + 1, node, bound).await?;
            if is_last {
                return Ok(());
            }
        }
    }

    /// Writes a node of the first `count` waiting children; gives it and its upper bound.
    async fn end_inner(
        &mut self,
        level: usize,
        count: usize,
    ) -> Result<(GlobalAddr, Option<Vec<u8>>), IndexError> {
        let is_last =
            count == self.levels[level].children.len() && self.levels[level].bounds.len() < count;
        let right = if is_last { GlobalAddr::NULL } else { self.node(level as u8 + 1).await? };
        let here = &mut self.levels[level];
        let high = (!is_last).then(|| here.bounds[count - 1].clone());
        let head = Head {
            addr: here.addr.word(),
            right: right.word(),
            level: level as u8 + 1,
            version: self.tree.first_version(self.session),
            low: here.low.as_deref(),
            high: high.as_deref(),
            ..Head::default()
        };
        let mut image = self.session.client().buf(self.layout.node_bytes());
        self.layout
            .encode_inner(
                image.words_mut(),
                &head,
                &here.children[..count],
                &here.bounds[..count - 1],
            )
            .map_err(|error| IndexError::Invalid(format!("bulk load: {error}")))?;
        let done = std::mem::replace(&mut here.addr, right);
        here.is_first &= is_last;
        here.low = high.clone();
        here.children.drain(..count);
        here.bounds.drain(..count.min(here.bounds.len()));
        here.bytes = here.bounds.iter().map(Vec::len).sum();
        self.batch.write(done, image);
        self.flush_when_full().await?;
        Ok((done, high))
    }

    /// Memory for a node of `level`.
    async fn node(&mut self, level: u8) -> Result<GlobalAddr, IndexError> {
        let place = match &self.group {
            Some(group) if level <= group.level => group.server.into(),
            _ => self.session.place(),
        };
        let bytes = self.tree.bytes_at(level);
        let addr = self.session.alloc(place, bytes).await?;
        self.built.objects.push((addr, bytes));
        self.tree.note_place(self.session, level, place, addr).await?;
        Ok(addr)
    }

    async fn flush_when_full(&mut self) -> Result<(), IndexError> {
        if self.batch.len() >= BATCH_NODES { self.flush().await } else { Ok(()) }
    }

    async fn flush(&mut self) -> Result<(), IndexError> {
        let batch = std::mem::replace(&mut self.batch, self.session.client().ops());
        if !batch.is_empty() {
            self.built.writing = true;
            self.session.reliable().post_many(batch).await?;
            self.built.writing = false;
        }
        Ok(())
    }
}

fn not_empty() -> IndexError {
    IndexError::Invalid("a bulk load needs an empty table, and this one has keys".into())
}

/// A tree that was built beside the table's and that nothing points to yet; freed when dropped,
/// unless it is kept.
pub struct NewTree {
    root: (GlobalAddr, u8),
    count: u64,
    built: BuiltNodes,
}

impl NewTree {
    /// Its root and the level of it.
    pub fn root(&self) -> (GlobalAddr, u8) {
        self.root
    }

    /// Keys in it.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// It is about to be pointed to: from here on it is not freed when dropped.
    pub fn keep(&mut self) {
        self.built.keep();
    }
}

impl BlinkTree {
    /// Builds a tree of `pairs`, in which each of `cuts`, ascending, is a leaf's high fence, and leaves it
    /// to the caller to put it in place. An error leaves nothing behind.
    ///
    /// Cost: 1 WRITE per node, up to 16 in one round trip, and 1 per record.
    pub async fn build(
        self: &Arc<Self>,
        session: &Session,
        pairs: &mut impl SortedPairs,
        cuts: &[Vec<u8>],
    ) -> Result<NewTree, IndexError> {
        let mut builder = TreeBuilder::new(self, session, cuts);
        builder.run(pairs).await?;
        let TreeBuilder { root, count, built, .. } = builder;
        Ok(NewTree { root, count, built })
    }
}
