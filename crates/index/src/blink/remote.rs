//! Remote tree: gives caching engines single objects of the tree, and work on the whole tree at rest.
//!
//! Such an engine keeps the tree's nodes, meta object and records as they are here, so that
//! `verify`, `destroy` and loading are these.

use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use farleaf_fabric::{Buf, GlobalAddr};
use farleaf_pool::{Placement, Session};

use super::bulk::BuiltTree;
use super::read::Unfinished;
use super::scan::{CursorPlace, is_empty, is_past};
use super::{BlinkFail, BlinkOptions, BlinkTree, LEVEL_MASK, META_ROOT, read};
use crate::bnode::{ChangeError, Layout, Node, NodeMut, RecordRef, Seek, StoredValue};
use crate::change::{Change, Outcome};
use crate::compute::ownership::MapWords;
use crate::index::{ScanRange, SortedPairs, TableReport};
use crate::retry::backoff;
use crate::walk::Visitor;
use crate::{Entries, IndexError};

/// First word of the meta object that is free for the engine.
const META_FREE: u64 = 192;
/// Tries at a node that does not look like one, with waits between them: enough for a WRITE to end.
const EXCLUSIVE_TRIES: u32 = 32;

/// A remote tree.
#[derive(Clone, Debug)]
pub struct RemoteTree(Arc<BlinkTree>);

/// A tree that was built and is not in place yet.
pub struct NewTree(BuiltTree);

impl NewTree {
    /// Its root and the level of it.
    pub fn root(&self) -> (GlobalAddr, u8) {
        self.0.root
    }

    /// Keys in it.
    pub fn count(&self) -> u64 {
        self.0.count
    }

    /// It is about to be pointed to: from here on it is not freed when dropped.
    pub fn keep(&mut self) {
        self.0.keep();
    }
}

impl RemoteTree {
    /// Makes an empty tree; returns its meta object.
    pub async fn create(session: &Session, layout: &Layout) -> Result<GlobalAddr, IndexError> {
        BlinkTree::create(session, layout).await
    }

    /// The tree with the meta object at `meta`. No remote operation.
    pub fn open(meta: GlobalAddr, layout: Layout, options: BlinkOptions) -> Self {
        RemoteTree(Arc::new(BlinkTree::with(meta, layout, options, true)))
    }

    /// Geometry of its nodes.
    pub fn layout(&self) -> &Layout {
        &self.0.layout
    }

    /// The address of its meta object.
    pub fn meta(&self) -> GlobalAddr {
        self.0.meta()
    }

    /// The words of the meta object that hold the ownership map of a table that has one.
    pub fn map_words(&self) -> MapWords {
        let meta = self.0.meta;
        let [map, lock] = [8, 16].map(|offset| meta.plus(META_FREE + offset));
        MapWords { meta, map, lock, guests: Some(*self.layout()) }
    }

    /// The word of the meta object that says up to which level nodes lie on their children's server.
    pub fn placement_word(meta: GlobalAddr) -> GlobalAddr {
        meta.plus(META_FREE + 24)
    }

    /// The bit of that word that says that some nodes do not: their server was full, or they are older.
    pub const LOOSE: u64 = 1 << 63;

    /// Tells the table that a node of `level` that was to lie at `place` lies at `addr`.
    ///
    /// Cost: none; 1 CAS the first time that it is on another server.
    pub async fn note_place(
        &self,
        session: &Session,
        level: u8,
        place: Placement,
        addr: GlobalAddr,
    ) -> Result<(), IndexError> {
        self.0.note_place(session, level, place, addr).await
    }

    /// From now on, new nodes up to this level go to their neighbours' server, or to any.
    pub fn set_subtree_level(&self, level: Option<u8>) {
        self.0.placed.store(level.map_or(0, |level| level + 1), Ordering::Relaxed);
    }

    /// See [`RemoteTree::set_subtree_level`].
    pub fn subtree_level(&self) -> Option<u8> {
        self.0.placed.load(Ordering::Relaxed).checked_sub(1)
    }

    /// Finishes the last change of the dead client of the lock word `holder`, which may have worked on keys that
    /// nobody owns ([`RemoteTree::change`]). The caller has fenced it.
    ///
    /// Cost: 1 READ per memory server; if something is left, that of its recovery.
    pub(crate) async fn finish_change_of(
        &self,
        session: &Session,
        holder: u64,
    ) -> Result<(), IndexError> {
        self.0.finish_change_of(session, holder).await
    }

    /// Changes a key that nobody owns, under its leaf's lock. The caller has a pin and the
    /// lock of the ownership map, and waits without a deadline: an error is final then, and nothing is under way.
    ///
    /// Cost: as [`crate::blink`]'s.
    pub async fn change(
        &self,
        session: &Session,
        change: &Change<'_>,
        held: &mut Vec<u8>,
    ) -> Result<Outcome, IndexError> {
        let mut tries = 0;
        loop {
            match self.0.change_begun(session, change, held).await {
                // As in `post_separator`.
                Err(IndexError::Corrupt(_)) if tries < EXCLUSIVE_TRIES => tries += 1,
                done => return done,
            }
            backoff(session, tries).await;
        }
    }

    /// Reads a key of keys that nobody owns into `value`; false if it is absent. The caller has a pin.
    ///
    /// Cost: as [`crate::blink`]'s.
    pub async fn get(
        &self,
        session: &Session,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<bool, IndexError> {
        self.0.get(session, key, value).await
    }

    /// Appends pairs of a range that nobody owns to `out`. The caller has a pin.
    ///
    /// Cost: as [`crate::blink`]'s.
    pub async fn scan(
        &self,
        session: &Session,
        range: ScanRange<'_>,
        limit: usize,
        out: &mut Entries,
    ) -> Result<(), IndexError> {
        self.0.scan(session, range, limit, out).await
    }

    /// Refuses a key that the table's format does not take.
    ///
    /// # Errors
    /// `Invalid`.
    pub fn check_key(&self, key: &[u8]) -> Result<(), IndexError> {
        self.0.check_key(key)
    }

    /// Refuses a value that the table's format does not take.
    ///
    /// # Errors
    /// `Invalid`.
    pub fn check_value(&self, value: &[u8]) -> Result<(), IndexError> {
        self.0.check_value(value)
    }

    /// Tells whether `image` is a node that was published at `addr`, alive, on `level`.
    pub fn is_current(&self, image: &Buf, addr: GlobalAddr, level: u8) -> bool {
        self.0.is_current(image, addr, level)
    }

    /// The address that a node's word holds.
    pub fn pointer(&self, word: u64, holder: GlobalAddr) -> Result<GlobalAddr, IndexError> {
        self.0.pointer(word, holder)
    }

    /// The error that says that the node at `addr` could not be changed as it must be.
    pub fn damaged(&self, addr: GlobalAddr, error: ChangeError) -> IndexError {
        self.0.damaged(addr, error)
    }

    /// READs the root word: address and level.
    pub async fn read_root(&self, session: &Session) -> Result<(GlobalAddr, u8), IndexError> {
        self.0.refresh_root(session).await
    }

    /// The address of the root word, and what it holds for a root.
    pub fn root_word(&self, root: GlobalAddr, level: u8) -> (GlobalAddr, u64) {
        debug_assert!(u64::from(level) <= LEVEL_MASK);
        (self.0.meta.plus(META_ROOT), root.word() | u64::from(level))
    }

    /// The root is another one now; what was cached of the root word is forgotten.
    pub fn forget_root(&self) {
        self.0.root.remember(0, 0);
    }

    /// Tells whether a value of `len` bytes needs a record.
    pub fn needs_record(&self, len: usize) -> bool {
        len > self.0.layout.inline_value_max()
    }

    /// Writes a value outside of a node.
    ///
    /// Cost: 1 WRITE, and what allocating costs.
    ///
    /// # Errors
    /// `Full`, `Unavailable`.
    pub async fn write_record(
        &self,
        session: &Session,
        value: &[u8],
    ) -> Result<RecordRef, IndexError> {
        let record = self.0.write_record(session, value).await?;
        record.keep();
        Ok(record.reference())
    }

    /// Reads such a value into `value`.
    ///
    /// Cost: 1 READ.
    ///
    /// # Errors
    /// `Corrupt` if that is no record, or another one; `Unavailable`.
    pub async fn read_record(
        &self,
        session: &Session,
        record: RecordRef,
        value: &mut Vec<u8>,
    ) -> Result<(), IndexError> {
        self.0.read_record(session, record, value).await
    }

    /// Copies value `index` of a leaf into `value`.
    ///
    /// Cost: none, or 1 READ of its record.
    ///
    /// # Errors
    /// As [`RemoteTree::read_record`].
    pub async fn value_of(
        &self,
        session: &Session,
        node: &Node<'_, u64>,
        index: usize,
        value: &mut Vec<u8>,
    ) -> Result<(), IndexError> {
        self.0.value_of(session, node, index, value).await
    }

    /// Address and bytes of a record.
    pub fn record_place(&self, record: RecordRef) -> Result<(GlobalAddr, usize), IndexError> {
        self.0.record_place(record)
    }

    /// READs a node that others may be writing, until an image of it fits; `None` if no such node is
    /// there any more. 1 READ, more if it is torn.
    pub async fn read_shared(
        &self,
        session: &Session,
        addr: GlobalAddr,
        level: u8,
    ) -> Result<Option<Buf>, IndexError> {
        let reliable = session.reliable();
        let image = reliable.read(addr, reliable.buf(self.0.layout.node_bytes())).await?;
        if self.0.is_current(&image, addr, level) {
            return Ok(Some(image));
        }
        match self.0.read_again(session, addr, level, image).await {
            Ok(image) => Ok(Some(image)),
            Err(BlinkFail::Restart) => Ok(None),
            Err(BlinkFail::Error(error)) => Err(error),
        }
    }

    /// Tells the node of `level` that covers `separator`, under its remote lock, that `right` begins
    /// there; adds a level if there is none. May be done again.
    pub async fn post_separator(
        &self,
        session: &Session,
        level: u8,
        separator: &[u8],
        right: GlobalAddr,
    ) -> Result<(), IndexError> {
        let unfinished = Unfinished { level, separator: separator.to_vec(), right };
        let mut tries = 0;
        loop {
            match self.0.finish_split_now(session, unfinished.clone()).await {
                // The way there may touch a node whose one owner writes it without the lock.
                Err(IndexError::Corrupt(_)) if tries < EXCLUSIVE_TRIES => tries += 1,
                done => return done,
            }
            backoff(session, tries).await;
        }
    }

    /// Makes sure that the node of `level` that covers `separator` has room for it, under its remote
    /// lock.
    pub async fn make_room(
        &self,
        session: &Session,
        level: u8,
        separator: &[u8],
    ) -> Result<(), IndexError> {
        let mut restarts = read::Restarts::default();
        let mut tries = 0;
        loop {
            match self.try_make_room(session, level, separator).await {
                Ok(()) => return Ok(()),
                // As above.
                Err(BlinkFail::Error(IndexError::Corrupt(_))) if tries < EXCLUSIVE_TRIES => {
                    tries += 1;
                    backoff(session, tries).await;
                }
                Err(BlinkFail::Restart) => restarts.again(&self.0, session).await?,
                Err(BlinkFail::Error(error)) => return Err(error),
            }
        }
    }

    async fn try_make_room(
        &self,
        session: &Session,
        level: u8,
        separator: &[u8],
    ) -> Result<(), BlinkFail> {
        let tree = &self.0;
        let mut further = None;
        let addr = tree.way_to(session, separator, level, &mut further).await?;
        let node = tree.lock_covering(session, addr, separator, level, &mut further).await?;
        let mut copy = node.image.words().to_vec();
        let posted =
            NodeMut::new(&tree.layout, copy.as_mut_slice()).insert_separator(separator, 64);
        if posted == Err(ChangeError::NoRoom) {
            tree.split(session, node, separator.to_vec()).await?;
        } else {
            node.unlock().await?;
        }
        Ok(())
    }

    /// Builds a tree beside this one, in which each of `cuts` is a leaf's high fence. The error leaves
    /// nothing behind.
    pub async fn build(
        &self,
        session: &Session,
        pairs: &mut impl SortedPairs,
        cuts: &[Vec<u8>],
    ) -> Result<NewTree, IndexError> {
        self.0.build(session, pairs, cuts).await.map(NewTree)
    }

    /// Visits the meta object, the first of a walk.
    pub fn visit_meta(&self, visitor: &mut impl Visitor) {
        self.0.visit_meta(visitor);
    }

    /// Visits and checks all nodes and records, which follow the meta object in a walk.
    ///
    /// Cost: as [`BlinkTree::walk`].
    ///
    /// # Errors
    /// `Corrupt` if the walk cannot go on.
    pub async fn walk_nodes(
        &self,
        session: &Session,
        visitor: &mut impl Visitor,
        report: &mut TableReport,
    ) -> Result<(), IndexError> {
        self.0.walk_nodes(session, visitor, report).await
    }
}

/// A scan that goes from leaf to leaf.
pub struct Passage<'a> {
    range: ScanRange<'a>,
    place: CursorPlace,
    end: usize,
}

/// The place at which a scan goes on.
pub enum ScanNext<'a> {
    /// At the end of the key space that it comes from.
    End,
    /// At a key.
    At(&'a [u8]),
    /// Just above a key.
    After(&'a [u8]),
}

impl<'a> Passage<'a> {
    /// A scan of at most `limit` pairs of `range` that are appended to `out`; `None` if there can
    /// be none.
    pub(crate) fn begin(range: ScanRange<'a>, limit: usize, out: &Entries) -> Option<Self> {
        if limit == 0 || is_empty(&range) {
            return None;
        }
        let place = match if range.reverse { range.to } else { range.from } {
            Bound::Unbounded => CursorPlace::End,
            Bound::Included(key) => CursorPlace::At(key.to_vec()),
            Bound::Excluded(key) if range.reverse => CursorPlace::At(key.to_vec()),
            Bound::Excluded(key) => CursorPlace::After(key.to_vec()),
        };
        Some(Passage { range, place, end: out.len().saturating_add(limit) })
    }

    /// Returns the next leaf's place, and whether the scan descends.
    pub fn next(&self) -> (ScanNext<'_>, bool) {
        let next = match &self.place {
            CursorPlace::End => ScanNext::End,
            CursorPlace::At(key) | CursorPlace::Below(key) => ScanNext::At(key),
            CursorPlace::After(key) => ScanNext::After(key),
        };
        (next, self.range.reverse)
    }

    /// The next leaf's place in the order of keys.
    pub fn seek(&self) -> Seek<'_> {
        match self.next() {
            (ScanNext::End, true) => Seek::Last,
            (ScanNext::End, false) => Seek::First,
            (ScanNext::At(key), _) => Seek::At(key),
            (ScanNext::After(key), _) => Seek::After(key),
        }
    }

    /// Pairs that are still wanted.
    pub fn wanted(&self, out: &Entries) -> usize {
        self.end.saturating_sub(out.len())
    }

    /// Tells whether the range ends before the leaf behind this fence.
    pub fn ends_before(&self, fence: &[u8]) -> bool {
        is_past(&self.range, fence)
    }

    /// Takes the leaf's pairs; whether there is more to come.
    pub async fn pass(
        &mut self,
        remote: &RemoteTree,
        session: &Session,
        leaf: &Node<'_, u64>,
        out: &mut Entries,
    ) -> Result<bool, IndexError> {
        remote.0.take_pairs(session, leaf, &self.range, &self.place, self.end, out).await?;
        let mut fence = Vec::new();
        let more = match self.range.reverse {
            true => leaf.low_fence(&mut fence),
            false => leaf.high_fence(&mut fence),
        };
        Ok(self.skip_to(more.then_some(&fence), out))
    }

    /// Takes pairs of the range that somebody else has gathered, all from the place to `fence`; whether
    /// there is more to come.
    pub async fn pass_pairs<'p>(
        &mut self,
        remote: &RemoteTree,
        session: &Session,
        pairs: impl Iterator<Item = (&'p [u8], StoredValue, &'p [u8])>,
        fence: Option<&[u8]>,
        out: &mut Entries,
    ) -> Result<bool, IndexError> {
        let mut pending = Vec::new();
        for (key, stored, value) in pairs.take(self.wanted(out)) {
            remote.0.take_pair(session, (key, stored, value), &mut pending, out).await?;
        }
        remote.0.take_records(session, &mut pending, out).await?;
        Ok(self.skip_to(fence, out))
    }

    /// Tells whether the end that a descending scan comes from is `key`, and not in the range.
    pub fn leaves_out(&self, key: &[u8]) -> bool {
        self.range.to == Bound::Excluded(key)
    }

    /// The end that the scan goes to, and whether it is not in the range.
    pub fn far_end(&self) -> Option<(&[u8], bool)> {
        match if self.range.reverse { self.range.from } else { self.range.to } {
            Bound::Unbounded => None,
            Bound::Included(key) => Some((key, false)),
            Bound::Excluded(key) => Some((key, true)),
        }
    }

    /// Returns the rest of the range in `(low, high]`, which holds the place, and how many pairs are
    /// wanted.
    pub(crate) fn rest_in(
        &self,
        low: Option<&[u8]>,
        high: Option<&[u8]>,
        out: &Entries,
    ) -> (Bound<Vec<u8>>, Bound<Vec<u8>>, usize) {
        let owned = |bound: Bound<&[u8]>| bound.map(<[u8]>::to_vec);
        let key_of = |bound: Bound<&[u8]>| match bound {
            Bound::Unbounded => None,
            Bound::Included(key) | Bound::Excluded(key) => Some(key.to_vec()),
        };
        let (mut from, mut to) = (owned(self.range.from), owned(self.range.to));
        match &self.place {
            CursorPlace::End => {}
            CursorPlace::Below(key) => to = Bound::Excluded(key.clone()),
            CursorPlace::After(key) => from = Bound::Excluded(key.clone()),
            CursorPlace::At(key) if !self.range.reverse => from = Bound::Included(key.clone()),
            CursorPlace::At(key) if key_of(self.range.to).as_ref() != Some(key) => {
                to = Bound::Included(key.clone());
            }
            CursorPlace::At(_) => {}
        }
        if self.range.reverse {
            let begins_below = key_of(self.range.from).is_none_or(|key| Some(&*key) <= low);
            if let (Some(low), true) = (low, begins_below) {
                from = Bound::Excluded(low.to_vec());
            }
        } else if let Some(high) = high
            && key_of(self.range.to).is_none_or(|key| *key > *high)
        {
            to = Bound::Included(high.to_vec());
        }
        (from, to, self.end - out.len())
    }

    /// All up to `last`, the key of the last pair, has been seen to; whether there is more to come.
    pub(crate) fn go_on_behind(&mut self, last: &[u8], out: &Entries) -> bool {
        let last = last.to_vec();
        self.place =
            if self.range.reverse { CursorPlace::Below(last) } else { CursorPlace::After(last) };
        out.len() < self.end
    }

    /// All up to `fence` has been seen to; whether there is more to come.
    pub(crate) fn skip_to(&mut self, fence: Option<&[u8]>, out: &Entries) -> bool {
        let Some(fence) = fence else { return false };
        if out.len() >= self.end || is_past(&self.range, fence) {
            return false;
        }
        let fence = fence.to_vec();
        self.place =
            if self.range.reverse { CursorPlace::At(fence) } else { CursorPlace::After(fence) };
        true
    }
}
