//! Misses: read nodes that are not cached, and cache them, or use them once.
//!
//! `INV-DEX-AUDIENCE`: shared reads. Gets of one leaf that wait for a task's READ of it take their values
//! from that READ. Only the task that holds the leaf's I/O mark may write the leaf meanwhile, and each of
//! the gets came while the mark was there: so the image holds what they may return. Gets of a shared leaf,
//! which others may write, read it themselves.

use std::sync::Arc;

use farleaf_fabric::{Buf, GlobalAddr};
use farleaf_index::IndexError;
use farleaf_index::bnode::{Cover, Kind, Node, StoredValue};
use farleaf_index::compute::ownership::Range;
use farleaf_index::local::Ended;
use farleaf_pool::Session;

use super::DexTree;
use super::context::DexFail;
use super::heal::Heal;
use super::pages::has_swizzled;
use super::walk::UnfinishedSplit;
use crate::dex::cache::{IoMark, MissedChild, OwnedFrame, TOP};
use crate::dex::tree::range_of;

/// READs of one node whose checksum does not fit before it counts as damaged. Nobody writes an
/// exclusive node while it is read, so only a crash makes a second READ necessary.
const READS_MAX: u32 = 3;

/// A node as the parent that led to it sees it.
pub(super) enum Arrival {
    /// It covers the range that the parent gives it.
    Fits,
    /// It was split, and the parent lacks the separator.
    Unfinished(UnfinishedSplit),
    /// It has absorbed its right neighbour, and the parent still has the separator at this bound.
    Absorbed(Vec<u8>),
}

impl Arrival {
    /// Compares a node that was read under a mark with the range that its parent gives it.
    ///
    /// # Errors
    /// `Corrupt` if no split or merge explains the difference.
    pub(super) fn of(mark: &IoMark, node: &Node<'_, u64>) -> Result<Arrival, IndexError> {
        let expected = &mark.range;
        if node.has_fences(expected.low.as_deref(), expected.high.as_deref()) {
            return Ok(Arrival::Fits);
        }
        let Range { low, high } = range_of(node);
        let bound = expected.high.as_ref();
        if let Some(high) = &high
            && low == expected.low
            && node.right() != 0
            && bound.is_none_or(|bound| high < bound)
        {
            let (level, separator, right) = (mark.level + 1, high.clone(), node.right());
            return Ok(Arrival::Unfinished(UnfinishedSplit { level, separator, right }));
        }
        if let Some(bound) = bound
            && low == expected.low
            && high.is_none_or(|high| high > *bound)
        {
            return Ok(Arrival::Absorbed(bound.clone()));
        }
        Err(IndexError::Corrupt(format!(
            "node {} (level {}) does not cover the range that its parent gives it",
            mark.addr(),
            mark.level
        )))
    }
}

impl DexTree {
    /// Marks a child that is not cached, for the caller to read.
    pub(super) fn mark(&self, child: MissedChild) -> Option<IoMark> {
        IoMark::take(&self.pages, child, |low, high| self.ownership.crosses(low, high))
    }

    /// Reads a marked node into a frame. Runs to its end whatever becomes of the caller.
    ///
    /// Cost: 1 READ; 1 WRITE for each dirty node that has to make room.
    pub(super) async fn load(
        self: &Arc<Self>,
        session: &Session,
        mark: IoMark,
    ) -> Result<(), DexFail> {
        self.detach(session, |tree, session| async move { tree.load_now(&session, mark).await })
            .await
    }

    async fn load_now(self: &Arc<Self>, session: &Session, mark: IoMark) -> Result<(), DexFail> {
        let Some(frame) = self.take_frame(session).await? else { return Err(DexFail::NoFrame) };
        let epoch = self.map_epoch();
        let image = match self.read_marked(session, &mark).await? {
            Ok(image) => image,
            Err(unfinished) => {
                drop((mark, frame));
                // Boxed: it hardly ever happens, and would make every load's task larger.
                Box::pin(self.heal(session, unfinished)).await?;
                return Err(DexFail::Restart);
            }
        };
        if mark.shared_parent {
            self.note_proven(frame.number(), mark.addr, epoch);
        }
        self.admit(mark, frame, &image, session.id());
        Ok(())
    }

    /// Caches a marked node whose image is in order.
    pub(super) fn admit(&self, mark: IoMark, frame: OwnedFrame, image: &Buf, worker: u32) {
        let count = match mark.level {
            0 => &self.stats.leaves_admitted,
            _ => &self.stats.inner_admitted,
        };
        count.add();
        let node = Node::new(self.layout(), image.words());
        let shared = mark.shared_parent && self.is_shared(&node);
        mark.admit(frame, image.words(), node.version(), shared, worker);
    }

    /// Reads a marked node and checks that it is the one that its parent names. Returns its image, or the
    /// change that must be healed first.
    ///
    /// Cost: 1 READ; more if others are changing a shared node.
    pub(super) async fn read_marked(
        &self,
        session: &Session,
        mark: &IoMark,
    ) -> Result<Result<Buf, Heal>, DexFail> {
        let stale = |unfinished| {
            let addr = self.pages.frames.ctl(mark.parent).addr_word();
            Heal::Stale { frame: mark.parent, addr, unfinished }
        };
        self.stats.note_read(mark.cause, mark.level, mark.shared);
        let image = if mark.shared {
            // Boxed for the case that others are changing it.
            Box::pin(self.remote.read_shared(session, mark.addr(), mark.level)).await?
        } else {
            let begun_ns = self.offloads.begin_read(session);
            let read = self.read_node(session, mark.addr(), mark.level).await;
            self.offloads.note_read(session, mark.addr(), begun_ns);
            match read {
                Ok(image) => Some(image),
                // It may have been another owner's alone for long, and be gone.
                Err(IndexError::Corrupt(_)) if mark.shared_parent => None,
                Err(error) => return Err(error.into()),
            }
        };
        let Some(image) = image else { return Ok(Err(stale(None))) };
        let node = Node::new(self.layout(), image.words());
        if mark.shared_parent {
            let fits = match node.kind() {
                Kind::Dead => Err(None),
                _ => match Arrival::of(mark, &node) {
                    Ok(Arrival::Fits) => Ok(()),
                    Ok(Arrival::Unfinished(unfinished)) => Err(Some(unfinished)),
                    Ok(Arrival::Absorbed(_)) | Err(_) => Err(None),
                },
            };
            return Ok(fits.map(|()| image).map_err(stale));
        }
        let level = mark.level + 1;
        if node.kind() == Kind::Dead {
            return Ok(Err(Heal::Dead { level, low: mark.range.low.clone(), image }));
        }
        Ok(match Arrival::of(mark, &node)? {
            Arrival::Fits => Ok(image),
            Arrival::Unfinished(unfinished) => Err(Heal::Separator(unfinished)),
            Arrival::Absorbed(bound) => Err(Heal::Absorbed { level, bound }),
        })
    }

    /// READs a node that this compute server alone may write: 1 READ. It may be dead.
    pub(crate) async fn read_node(
        &self,
        session: &Session,
        addr: GlobalAddr,
        level: u8,
    ) -> Result<Buf, IndexError> {
        let reliable = session.reliable();
        for attempt in 0..READS_MAX {
            if attempt > 0 {
                self.stats.reads_again.add();
            }
            let image = reliable.read(addr, reliable.buf(self.layout().node_bytes())).await?;
            let node = Node::new(self.layout(), image.words());
            let dead = node.kind() == Kind::Dead && node.self_addr() == addr.word();
            if self.remote.is_current(&image, addr, level) || dead && node.sum_ok() {
                if has_swizzled(&node, level) {
                    return Err(IndexError::Corrupt(format!(
                        "INV-DEX-PTR: node {addr} of the table at {} holds a pointer to a frame",
                        self.remote.meta()
                    )));
                }
                return Ok(image);
            }
        }
        Err(IndexError::Corrupt(format!(
            "node {addr} (level {level}) of the table at {} does not hold what it must, and nobody \
             writes it",
            self.remote.meta()
        )))
    }

    /// Returns whether others may change a node, by its own fences.
    pub(crate) fn is_shared(&self, node: &Node<'_, u64>) -> bool {
        let range = range_of(node);
        self.ownership.crosses(range.low.as_deref(), range.high.as_deref())
    }

    /// Reads a marked leaf and does not cache it. Not a task of its own: if the caller ends meanwhile,
    /// the mark goes, and a READ changes nothing. A change that a crash left half done is healed to its
    /// end.
    ///
    /// Cost: 1 READ.
    pub(super) async fn stream(
        self: &Arc<Self>,
        session: &Session,
        mark: IoMark,
    ) -> Result<Buf, DexFail> {
        match self.read_marked(session, &mark).await? {
            Ok(image) => {
                self.stats.leaves_streamed.add();
                self.answer_shared_reads(&mark, &image);
                Ok(image)
            }
            Err(heal) => {
                drop(mark);
                self.heal_detached(session, heal).await?;
                Err(DexFail::Restart)
            }
        }
    }

    /// Waits while another task works on the node at `addr`, or, if that task streams a leaf, takes the value
    /// of `key` from its READ (`INV-DEX-AUDIENCE`). Returns whether there is a value, which is in `value`
    /// then; `None` if the task gave no answer.
    ///
    /// Cost: none.
    pub(super) async fn join_read(
        &self,
        addr: u64,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Option<bool> {
        let pages = &self.pages;
        let mut left = self.shared_reads.leave(addr, key.to_vec());
        loop {
            pages.lot.park(addr, || left.is_over(|| pages.is_worked_on(addr))).await;
            let found = match left.end() {
                Ended::NotYet => continue,
                Ended::Back => return None,
                Ended::Done(found) => found,
            };
            value.clear();
            value.extend_from_slice(found.as_deref().unwrap_or_default());
            return Some(found.is_some());
        }
    }

    /// Gives the gets that wait for the leaf their values (`INV-DEX-AUDIENCE`).
    fn answer_shared_reads(&self, mark: &IoMark, image: &Buf) {
        if mark.shared || !self.shared_reads.has_work(mark.addr) {
            return;
        }
        let node = Node::new(self.layout(), image.words());
        for taken in self.shared_reads.take(mark.addr, usize::MAX) {
            let key = taken.work.as_slice();
            let mut value = Vec::new();
            let stored = node.find(key).ok().and_then(|index| node.value(index, &mut value));
            let found = match stored {
                _ if node.covers(key) != Cover::Inside => None,
                None => Some(None),
                Some(StoredValue::Inline) => Some(Some(value)),
                // The get reads the record itself.
                Some(StoredValue::Record(_)) => None,
            };
            self.stats.gets_joined.add_many(found.is_some().into());
            self.shared_reads.answer(mark.addr, &taken, found);
        }
    }

    /// Caches the root. Runs to its end whatever becomes of the caller.
    ///
    /// Cost: 1 READ of the root word, 1 READ of the root.
    pub(super) async fn load_root(self: &Arc<Self>, session: &Session) -> Result<(), DexFail> {
        let mark = self.mark_root().await?;
        self.detach(
            session,
            |tree, session| async move { tree.load_root_now(&session, mark).await },
        )
        .await
    }

    /// Takes the right to cache the root, which one task has at a time. If another task has it, waits and
    /// begins again.
    async fn mark_root(self: &Arc<Self>) -> Result<IoMark, DexFail> {
        // The meta object's address stands for the root's until that is known.
        let addr = self.remote.meta().word();
        let Some(version) = self.pages.frames.ctl(TOP).latch.sample() else {
            return Err(DexFail::Restart);
        };
        let range = Range::default();
        let child = MissedChild { addr, parent: TOP, version, level: 0, range };
        if let Some(mark) = self.mark(child) {
            return Ok(mark);
        }
        self.pages.lot.park(addr, || self.pages.map.get(addr).is_none()).await;
        Err(DexFail::Restart)
    }

    async fn load_root_now(
        self: &Arc<Self>,
        session: &Session,
        mark: IoMark,
    ) -> Result<(), DexFail> {
        let frames = &self.pages.frames;
        if frames.root() != 0 {
            return Ok(());
        }
        let Some(frame) = self.take_frame(session).await? else { return Err(DexFail::NoFrame) };
        let epoch = self.map_epoch();
        let (addr, level) = self.remote.read_root(session).await?;
        self.stats.reads_root.add();
        let Some(image) = self.remote.read_shared(session, addr, level).await? else {
            return Err(DexFail::Restart);
        };
        if !self.pages.x_now(TOP) {
            return Err(DexFail::Restart);
        }
        let frame = frame.take();
        let node = Node::new(self.layout(), image.words());
        frames.fill(frame, image.words(), addr.word(), level, node.version());
        // With a growth that is not finished, the root word names a node that may lie in one partition;
        // changes above it concern all. The view of now counts: a range may have begun to be given away
        // since the READ.
        let view = self.ownership.view();
        let shared = view.map.count() > 1 || view.crosses(None, None);
        frames.ctl(frame).set_shared(shared);
        self.note_proven(frame, addr.word(), epoch);
        frames.set_root(self.pages.enter(frame));
        self.pages.release_x(TOP);
        drop(mark);
        Ok(())
    }
}
