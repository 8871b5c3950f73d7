//! Descent: the way from a start down to the slot that a key belongs to.
//!
//! Positions: all keys below a node share plen bytes, and the node dispatches on byte plen. A child stands at
//! plen + 1 + len; the root slot counts as plen -1. Bytes that an edge skips are stored nowhere: the leaf proves
//! them.
//!
//! A *fresh* way begins at R, which its operation has read: sealed words are followed and believed, because they
//! were current at an instant of the operation. Any other way believes and follows unsealed words alone.

use farleaf_fabric::{Buf, GlobalAddr};
use farleaf_index::IndexError;
use farleaf_pool::{Reliable, Session};

use super::DartTree;
use super::hashed_node::{BucketPlace, find};
use super::leaf::{self, LONG, LeafCopy};
use super::meta::{self, CheckLine, META_ROOT};
use super::word::{DartNodeType, SlotContent, SlotWord, Step};

farleaf_fabric::canaries! {
    pub(crate) BELIEVE_SEALED = "believe-sealed",
        "a lookup that began at an entry believes and follows sealed words";
}

/// READs of a leaf whose checksum does not fit.
const LEAF_READS: usize = 3;
/// Advice that ends the error of a damaged table.
pub(super) const REPAIR: &str =
    "verify the table for all damage, and load what can still be read into a new one";
/// Bytes of a node's header, if nodes had one: what a reader without compound pointers reads beside a bucket.
const HEADER_BYTES: usize = 64;

/// An inner node and its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NodeRef {
    pub(super) addr: GlobalAddr,
    pub(super) kind: DartNodeType,
    /// Position of the byte on which it dispatches.
    pub(super) plen: usize,
}

/// A slot that a way has come to.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlotPlace {
    pub(super) at: GlobalAddr,
    pub(super) word: SlotWord,
    pub(super) step: Step,
    /// The slot's node; `None` for R.
    pub(super) node: Option<NodeRef>,
}

impl SlotPlace {
    /// Bytes that lie in front of what the slot leads to, compressed ones aside.
    pub(super) fn bytes_before_child(&self) -> usize {
        self.node.map_or(0, |node| node.plen + 1)
    }

    /// The shared bytes of the slot's node.
    pub(super) fn plen(&self) -> usize {
        self.node.map_or(0, |node| node.plen)
    }

    /// The inner node that the slot leads to.
    pub(super) fn child(&self) -> Option<NodeRef> {
        match self.word.child() {
            SlotContent::Node(kind, len) => {
                let plen = self.bytes_before_child() + len;
                Some(NodeRef { addr: self.word.addr(), kind, plen })
            }
            _ => None,
        }
    }
}

/// The beginning of a path.
#[derive(Clone, Copy, Debug)]
pub(super) enum Start {
    Root(CheckLine),
    Express(NodeRef),
}

/// The end of a path.
#[derive(Debug)]
pub(super) enum PathEnd {
    /// At a slot that leads to no inner node, with the words of its bucket.
    Slot(SlotPlace, Option<Buf>),
    /// In front of an inner node behind more bytes than the key has.
    Edge(SlotPlace),
    /// At a node whose bucket has neither the step nor an empty slot.
    Full(NodeRef, Buf),
    /// At the slot that leads to the node that was looked for.
    Met(SlotPlace),
    /// At a word that this start may not believe.
    Stale,
}

/// A path down from a start: its end, and what was seen before it.
#[derive(Debug)]
pub(super) struct Path {
    pub(super) landing: PathEnd,
    pub(super) is_fresh: bool,
    /// Some bytes in front of the end are unproven.
    pub(super) has_gaps: bool,
    /// Nodes that were read.
    pub(super) levels: usize,
}

impl DartTree {
    /// R and D: remembered, or by 1 READ.
    #[inline]
    pub(super) async fn line(
        &self,
        session: &Session,
        io: Reliable<'_>,
    ) -> Result<CheckLine, IndexError> {
        match self.remembered.at(session.moment()) {
            Some(line) => Ok(line),
            None => self.fresh_line(session, io).await,
        }
    }

    /// R and D, by 1 READ. Heeds notices (`INV-DART-7`), which may take another one.
    pub(super) async fn fresh_line(
        &self,
        session: &Session,
        io: Reliable<'_>,
    ) -> Result<CheckLine, IndexError> {
        let moment = session.moment();
        let line = meta::read_line(io, self.meta).await?;
        self.cache.heed(io, self.meta, &line, &self.counters).await?;
        self.remembered.remember(line, moment);
        Ok(line)
    }

    /// The root as a start: fresh, unless what is remembered will do.
    pub(super) async fn root_start(
        &self,
        session: &Session,
        io: Reliable<'_>,
        line: CheckLine,
    ) -> Result<Start, IndexError> {
        if line.is_remembered && !line.has_lasting_root() {
            return Ok(Start::Root(self.fresh_line(session, io).await?));
        }
        Ok(Start::Root(line))
    }

    pub(super) fn root_place(&self, root: SlotWord) -> SlotPlace {
        SlotPlace { at: self.meta.plus(META_ROOT), word: root, step: Step::ROOT, node: None }
    }

    /// Goes down with `key`. Adds the slots of inner nodes on the way to `trail`, and stops at the one that
    /// leads to `until`. 1 READ for each node.
    pub(super) async fn descend(
        &self,
        io: Reliable<'_>,
        key: &[u8],
        start: Start,
        trail: &mut Vec<SlotPlace>,
        until: Option<GlobalAddr>,
    ) -> Result<Path, IndexError> {
        trail.clear();
        let mut path = Path { landing: PathEnd::Stale, is_fresh: false, has_gaps: true, levels: 0 };
        let mut on_lasting_root = false;
        let mut node = match start {
            Start::Express(node) => node,
            Start::Root(line) => {
                path.is_fresh = !line.is_remembered;
                on_lasting_root = line.is_remembered;
                let place = self.root_place(line.root);
                path.has_gaps = false;
                match self.go_on(key, place, trail, until, &mut path) {
                    Some(node) => node,
                    None => return Ok(path),
                }
            }
        };
        loop {
            let step = Step::at(key, node.plen);
            let bucket = self.read_bucket(io, node, step).await?;
            path.levels += 1;
            let first = self.shape.bucket(node.kind, step).start;
            let found = find(bucket.words(), step);
            let is_sealed = match found {
                BucketPlace::At(_, word) | BucketPlace::Empty(_, word) => word.is_sealed(),
                BucketPlace::Full => {
                    bucket.words().iter().all(|word| SlotWord::from_raw(*word).is_sealed())
                }
            };
            if is_sealed && !path.is_fresh && !BELIEVE_SEALED.is_armed() {
                path.landing = PathEnd::Stale;
                return Ok(path);
            }
            // It was in the tree just now.
            path.is_fresh |= std::mem::take(&mut on_lasting_root);
            let (index, word) = match found {
                BucketPlace::At(index, word) | BucketPlace::Empty(index, word) => (index, word),
                BucketPlace::Full => {
                    path.landing = PathEnd::Full(node, bucket);
                    return Ok(path);
                }
            };
            let at = node.addr.plus(8 * (first + index) as u64);
            let place = SlotPlace { at, word, step, node: Some(node) };
            match self.go_on(key, place, trail, until, &mut path) {
                Some(child) => node = child,
                None => {
                    if let PathEnd::Slot(_, words) = &mut path.landing {
                        *words = Some(bucket);
                    }
                    return Ok(path);
                }
            }
        }
    }

    /// The inner node behind `place`, or the end of the way there.
    fn go_on(
        &self,
        key: &[u8],
        place: SlotPlace,
        trail: &mut Vec<SlotPlace>,
        until: Option<GlobalAddr>,
        path: &mut Path,
    ) -> Option<NodeRef> {
        let Some(child) = place.child() else {
            path.landing = PathEnd::Slot(place, None);
            return None;
        };
        if until == Some(child.addr) {
            path.landing = PathEnd::Met(place);
            return None;
        }
        trail.push(place);
        if key.len() < child.plen {
            path.landing = PathEnd::Edge(place);
            return None;
        }
        path.has_gaps |= child.plen > place.bytes_before_child();
        Some(child)
    }

    /// READs the bucket of a node that owns `step`. 1 READ; 2 in 1 round trip without compound pointers.
    #[inline]
    pub(super) async fn read_bucket(
        &self,
        io: Reliable<'_>,
        node: NodeRef,
        step: Step,
    ) -> Result<Buf, IndexError> {
        let slots = self.shape.bucket(node.kind, step);
        let at = node.addr.plus(8 * slots.start as u64);
        let words = if self.options.buckets && !self.options.compound_pointers {
            let mut ops = io.client().ops();
            let index = ops.read(at, io.buf(8 * slots.len()));
            ops.read(node.addr, io.buf(HEADER_BYTES));
            let read = io.post_many(ops).await;
            read.map_err(|error| self.misled(error))?.take_buf(index)
        } else if self.options.buckets {
            let read = io.read(at, io.buf(8 * slots.len())).await;
            read.map_err(|error| self.misled(error))?
        } else {
            let read = io.read(node.addr, io.buf(self.shape.bytes(node.kind))).await;
            let all = read.map_err(|error| self.misled(error))?;
            let mut words = io.buf(8 * slots.len());
            words.words_mut().copy_from_slice(&all.words()[slots]);
            words
        };
        self.check_words(node, words.words())?;
        Ok(words)
    }

    /// READs all words of a node.
    pub(super) async fn read_node(
        &self,
        io: Reliable<'_>,
        node: NodeRef,
    ) -> Result<Buf, IndexError> {
        let read = io.read(node.addr, io.buf(self.shape.bytes(node.kind))).await;
        let words = read.map_err(|error| self.misled(error))?;
        self.check_words(node, words.words())?;
        Ok(words)
    }

    /// The error of an access to which a pointer of the table has led; it names the address.
    #[cold]
    pub(super) fn misled(&self, error: impl Into<IndexError>) -> IndexError {
        match error.into() {
            IndexError::Corrupt(what) => IndexError::Corrupt(format!(
                "a pointer of the table at {} leads where no object can be: {what}; {REPAIR}",
                self.meta
            )),
            error => error,
        }
    }

    /// Refuses words that this engine does not write.
    pub(super) fn check_words(&self, node: NodeRef, words: &[u64]) -> Result<(), IndexError> {
        match words.iter().find(|word| !SlotWord::from_raw(**word).is_legal()) {
            None => Ok(()),
            Some(word) => Err(IndexError::Corrupt(format!(
                "the {} at {} of the table at {} holds {word:#x}, which is no word of a node; {REPAIR}",
                node.kind.name(),
                node.addr,
                self.meta
            ))),
        }
    }

    /// READs the leaf that `word` leads to. 1 READ; 2 if it is longer than size codes say.
    pub(super) async fn read_leaf(
        &self,
        io: Reliable<'_>,
        word: SlotWord,
    ) -> Result<LeafCopy, IndexError> {
        let SlotContent::Leaf(code) = word.child() else {
            return Err(self.corrupt_leaf(word));
        };
        let read = io.read(word.addr(), io.buf(leaf::read_bytes(code))).await;
        let buf = read.map_err(|error| self.misled(error))?;
        self.whole_leaf(io, word, buf).await
    }

    /// The leaf that `word` leads to, of which `buf` has what a first READ gets.
    pub(super) async fn whole_leaf(
        &self,
        io: Reliable<'_>,
        word: SlotWord,
        mut buf: Buf,
    ) -> Result<LeafCopy, IndexError> {
        let SlotContent::Leaf(code) = word.child() else { return Err(self.corrupt_leaf(word)) };
        let most = self.object_bytes_max;
        for reads in 1..=LEAF_READS {
            if code == LONG
                && let Some(bytes) = leaf::long_bytes(buf.words(), self.table, most)
            {
                buf = io.read(word.addr(), io.buf(bytes)).await?;
            }
            let (again, bytes) = (reads < LEAF_READS, leaf::read_bytes(code));
            match LeafCopy::parse(buf, self.table) {
                Some(leaf) => return Ok(leaf),
                None if again => {
                    self.counters.crc_fail.add(1);
                    buf = io.read(word.addr(), io.buf(bytes)).await?;
                }
                None => break,
            }
        }
        Err(self.corrupt_leaf(word))
    }

    /// The byte at which a leaf, that a slot leads to, differs from the key; `None` if it has the key. Both have the
    /// bytes that lead to the slot's node, or differ there, and both have the slot's.
    ///
    /// # Errors
    /// `Corrupt` if the leaf belongs in another slot of the node.
    pub(super) fn difference(
        &self,
        place: &SlotPlace,
        leaf: &LeafCopy,
        key: &[u8],
    ) -> Result<Option<usize>, IndexError> {
        match leaf.difference(key) {
            Some(position) if (place.plen()..place.bytes_before_child()).contains(&position) => {
                Err(self.corrupt_leaf(place.word))
            }
            position => Ok(position),
        }
    }

    fn corrupt_leaf(&self, word: SlotWord) -> IndexError {
        IndexError::Corrupt(format!(
            "no leaf of the table at {} is where a slot leads, at {}; {REPAIR}",
            self.meta,
            word.addr()
        ))
    }
}
