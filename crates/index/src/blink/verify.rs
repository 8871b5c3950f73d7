//! Verification: walks the whole remote structure and checks its invariants.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use farleaf_fabric::{Buf, GlobalAddr};
use farleaf_pool::{LockToken, Session};

use super::leaf::NodeView;
use super::records::record_bytes;
use super::remembered::NodePointer;
use super::{BlinkFail, BlinkTree, DEAD, META_BYTES, META_ROOT_LOCK, grow};
use crate::bnode::{Cover, GuardedLeaf, Kind, Node, StoredValue, verify_image, version_of};
use crate::retry::{Attempts, LockWait, RetryPolicy};
use crate::walk::Visitor;
use crate::{IndexError, Seek, TableReport};

/// Kind of the objects that are nodes.
pub(super) const NODE: &str = "node";
/// Attempts at finding a node. Others' changes explain some; this many mean that pointers lead astray.
const FIND_TRIES_MAX: u32 = 2_000;
/// Nodes that are read at once.
const BATCH: usize = 32;

/// Nodes of one level that are read before the walk comes to them.
struct Ahead {
    /// Those that the level above points to, by their low fences.
    order: Vec<u64>,
    places: BTreeMap<u64, usize>,
    /// Content of nodes whose lock was free before.
    read: BTreeMap<u64, Buf>,
}

impl Ahead {
    /// Of the nodes with these low fences.
    fn new(expected: &BTreeMap<u64, Option<Vec<u8>>>) -> Self {
        let mut order: Vec<u64> = expected.keys().copied().collect();
        order.sort_by_key(|addr| expected.get(addr));
        let places = order.iter().copied().zip(0..).collect();
        Ahead { order, places, read: BTreeMap::new() }
    }
}

impl BlinkTree {
    /// Visits the meta object, then the levels from the root downwards, each from left to right, a leaf's
    /// value records after it; checks every node.
    ///
    /// A problem begins with the invariant that it breaks. `INV-BT-3`, `-6` and `-7` are about what
    /// writers do, which a walk cannot see; what breaks `INV-BT-2` shows as a pointer that leads to
    /// no node of this tree.
    ///
    /// Cost: 2 READs for each node and 2 round trips for 32 of a level. For the root, and a node that is locked or has
    /// changed meanwhile, 1 READ for each level from the root down to it, and 2 in one chain.
    ///
    /// # Errors
    /// `Corrupt` if the walk cannot go on.
    pub async fn walk(
        self: &Arc<Self>,
        session: &Session,
        visitor: &mut impl Visitor,
        report: &mut TableReport,
    ) -> Result<(), IndexError> {
        self.visit_meta(visitor);
        self.walk_nodes(session, visitor, report).await
    }

    /// Visits the meta object, the first of a walk.
    pub fn visit_meta(&self, visitor: &mut impl Visitor) {
        BlinkTree::visit_meta_object(self.meta, visitor);
    }

    /// The same of a tree that is not open: what is left of a dropped one may be this object alone.
    pub fn visit_meta_object(meta: GlobalAddr, visitor: &mut impl Visitor) {
        visitor.object("meta object", meta, META_BYTES);
    }

    /// Visits the lock tables, the next objects of a walk of a tree that has some.
    fn visit_locks(&self, visitor: &mut impl Visitor) {
        for (kind, addr, bytes) in self.remembered.iter().flat_map(|it| it.locks.objects()) {
            if visitor.is_done() {
                return;
            }
            visitor.object(kind, addr, bytes);
        }
    }

    /// Takes over the lock words of the dead, so that the walk meets what they were about to link.
    ///
    /// Cost: 1 READ for each memory server, and that of the recoveries.
    async fn recover_locks(
        self: &Arc<Self>,
        session: &Session,
        report: &mut TableReport,
    ) -> Result<(), IndexError> {
        let Some(remembered) = &self.remembered else { return Ok(()) };
        for (word, held) in remembered.locks.held(session).await? {
            if LockToken::from_word(held).is_none() {
                report.problems.push(format!(
                    "INV-BT-5: the lock word at {word} is {held:#018x}, which names nobody"
                ));
            } else if session.owner_is_dead(held).await? {
                self.recover(session, word, held).await?;
            }
        }
        Ok(())
    }

    /// Visits and checks all nodes and records, which follow the meta object in a walk.
    ///
    /// Cost: as [`BlinkTree::walk`].
    ///
    /// # Errors
    /// `Corrupt` if the walk cannot go on.
    pub async fn walk_nodes(
        self: &Arc<Self>,
        session: &Session,
        visitor: &mut impl Visitor,
        report: &mut TableReport,
    ) -> Result<(), IndexError> {
        self.visit_locks(visitor);
        if visitor.is_done() {
            return Ok(());
        }
        self.recover_locks(session, report).await?;
        self.check_meta(session, report).await?;
        let (_, top) = self.read_root(session).await?;
        report.nodes_per_level = vec![0; usize::from(top) + 1];
        // Low fences of the nodes that the level above points to, by address.
        let mut expected: BTreeMap<u64, Option<Vec<u8>>> = BTreeMap::new();
        for level in (0..=top).rev() {
            expected = self.walk_level(session, level, expected, report, visitor).await?;
            if visitor.is_done() {
                break;
            }
        }
        Ok(())
    }

    /// Walks one level from left to right; gives what it says of the level below.
    ///
    /// Others may merge nodes meanwhile. Then a node begins before the place that the walk has come
    /// to, because it has taken in its right neighbour, or a child is gone that its parent had; both
    /// are told from damage by looking again. Everything that was there before the walk, and stays,
    /// is visited.
    async fn walk_level(
        self: &Arc<Self>,
        session: &Session,
        level: u8,
        mut expected: BTreeMap<u64, Option<Vec<u8>>>,
        report: &mut TableReport,
        visitor: &mut impl Visitor,
    ) -> Result<BTreeMap<u64, Option<Vec<u8>>>, IndexError> {
        let mut below = BTreeMap::new();
        let mut fence: Option<Vec<u8>> = None;
        let mut before: Option<(GlobalAddr, u64)> = None;
        let mut visited = BTreeSet::new();
        let mut unpointed = 0;
        let mut ahead = Ahead::new(&expected);
        // The right sibling that the node before names.
        let mut sibling: Option<u64> = None;
        loop {
            let seek = fence.as_deref().map_or(Seek::First, Seek::After);
            let next = sibling.or(ahead.order.first().copied());
            let found = match next {
                Some(next) => self.read_next(session, &mut ahead, next, seek, level).await,
                None => None,
            };
            let found = match found {
                None => self.find_unlocked(session, seek, level, report).await?,
                found => found,
            };
            let Some((addr, image)) = found else {
                // The root has given way to its only child: the level is gone.
                return Ok(below);
            };
            let node = self.view(level, image.words());
            let verified = match node {
                NodeView::Node(_) => verify_image(&self.layout, image.words(), addr.word()),
                NodeView::Guarded(leaf) => leaf.verify(addr.word()),
            };
            if let Err(error) = verified {
                report.problems.push(format!("node {addr}: {error}"));
            }
            let low = node.low();
            let is_sibling = sibling.is_none_or(|sibling| sibling == addr.word());
            if (low != fence || !is_sibling) && !self.has_changed(session, before, level).await? {
                let what = match is_sibling {
                    true => "does not start where its left neighbour ends",
                    false => "is not the right sibling that its left neighbour names",
                };
                report.problems.push(format!("INV-BT-1: node {addr} (level {level}) {what}"));
            }
            sibling = Some(node.right());
            if visited.insert(addr) {
                report.nodes_per_level[usize::from(level)] += 1;
                report.node_bytes += self.bytes_at(level) as u64;
                visitor.object(NODE, addr, self.bytes_at(level));
                match expected.remove(&addr.word()) {
                    Some(said) if said != low => report.problems.push(format!(
                        "INV-BT-4: the parent of node {addr} (level {level}) has another low fence for it"
                    )),
                    Some(_) => {}
                    None => unpointed += 1,
                }
            }
            before = Some((addr, version_of(image.words())));
            // All before the fence has been visited.
            match node {
                NodeView::Node(node) if level > 0 => {
                    self.children(&node, low, fence.as_deref(), &mut below);
                }
                NodeView::Node(node) => self.leaf(&node, addr, fence.as_deref(), report, visitor),
                NodeView::Guarded(leaf) => count_pairs(&leaf, fence.as_deref(), report),
            }
            if visitor.is_done() {
                return Ok(BTreeMap::new());
            }
            let Some(high) = node.high() else {
                if node.right() != 0 {
                    report.problems.push(format!(
                        "INV-BT-1: node {addr} (level {level}) is the last and has a right sibling"
                    ));
                }
                break;
            };
            fence = Some(high);
        }
        for (addr, low) in expected {
            if self.is_child(session, addr, low.as_deref(), level).await? {
                report.problems.push(format!(
                    "INV-BT-4: a parent points to {addr:#x}, which is no node of level {level}"
                ));
            }
        }
        // The root has no parent; others without one are splits that nobody has finished yet.
        if usize::from(level) + 1 < report.nodes_per_level.len() {
            report.unfinished_splits += unpointed;
        }
        Ok(below)
    }

    /// The node at `next` if nobody had it locked, and it is the one that is looked for; reads the nodes behind it
    /// with it. `None` also if it cannot be read there.
    ///
    /// The lock words arrive before the content is asked for, as [`BlinkTree::find_unlocked`] needs it. What was read
    /// somewhat earlier is as good: if it covers the place that the walk has come to, it has all that was there
    /// before the walk and stays.
    ///
    /// Cost: nothing if it was read with others before; else 2 READs for each of up to 32 nodes, 2 round trips.
    async fn read_next(
        &self,
        session: &Session,
        ahead: &mut Ahead,
        next: u64,
        seek: Seek<'_>,
        level: u8,
    ) -> Option<(GlobalAddr, Buf)> {
        if !ahead.read.contains_key(&next) {
            let from = ahead.places.get(&next).copied();
            let batch: Vec<u64> = match from {
                Some(from) => ahead.order.iter().skip(from).take(BATCH).copied().collect(),
                None => vec![next],
            };
            let places: Option<Vec<GlobalAddr>> =
                batch.iter().map(|word| GlobalAddr::from_word(*word)).collect();
            // Of damage, the search tells.
            ahead.read = self.read_unlocked(session, level, &places?).await.unwrap_or_default();
        }
        let (addr, image) = (GlobalAddr::from_word(next)?, ahead.read.remove(&next)?);
        let is_it = self.is_current(&image, addr, level)
            && self.view(level, image.words()).covers_place(seek) == Cover::Inside
            && !self.has_torn_slots(level, image.words());
        is_it.then_some((addr, image))
    }

    /// The content of those nodes that nobody had locked before it was read.
    async fn read_unlocked(
        &self,
        session: &Session,
        level: u8,
        places: &[GlobalAddr],
    ) -> Result<BTreeMap<u64, Buf>, IndexError> {
        let reliable = session.reliable();
        let mut locks = session.client().ops();
        for addr in places {
            locks.read(self.lock_word_of(*addr), reliable.buf(8));
        }
        let locks = reliable.post_many(locks).await?;
        let images = self.read_images(session, places, level).await?;
        let all = places
            .iter()
            .zip(images)
            .enumerate()
            .map(|(at, (addr, image))| (addr.word(), locks.buf(at).words()[0] == 0, image));
        Ok(all.filter(|(_, is_free, _)| *is_free).map(|(addr, _, image)| (addr, image)).collect())
    }

    /// Finds a node; `None` if the level is gone.
    async fn find(
        self: &Arc<Self>,
        session: &Session,
        seek: Seek<'_>,
        level: u8,
    ) -> Result<Option<(GlobalAddr, Buf)>, IndexError> {
        let mut attempts = Attempts::new(&RetryPolicy::WAY);
        for _ in 0..FIND_TRIES_MAX {
            match self.node_at(session, seek, level).await {
                Ok(found) => return Ok(Some(found)),
                Err(BlinkFail::Restart) => {
                    self.again(session, &mut attempts).await?;
                    if self.root(session).await?.1 < level {
                        return Ok(None);
                    }
                }
                Err(BlinkFail::Error(error)) => return Err(error),
            }
        }
        Err(IndexError::Corrupt(format!(
            "INV-BT-4: in {FIND_TRIES_MAX} attempts no way was found to the next node of level {level}"
        )))
    }

    /// Finds a node that nobody has locked; `None` if the level is gone.
    ///
    /// Under a lock something may be about to be linked that only its holder knows of: what a dead
    /// one's redo record says, written again by whoever takes over. A recovery that does not see it
    /// would take it for lost.
    ///
    /// The words of one READ come in any order (contract F1): the lock word of after a release beside
    /// the content of before it would pass for an unlocked node. So the lock word is read first and the
    /// content after it, in one chain: what the dead had left for others to write is in the content if
    /// the lock was free before. What living clients link meanwhile is in no block of the dead.
    async fn find_unlocked(
        self: &Arc<Self>,
        session: &Session,
        seek: Seek<'_>,
        level: u8,
        report: &mut TableReport,
    ) -> Result<Option<(GlobalAddr, Buf)>, IndexError> {
        let (mut wait, mut changes) = (LockWait::default(), 0);
        loop {
            let Some((addr, _)) = self.find(session, seek, level).await? else {
                return Ok(None);
            };
            let reliable = session.reliable();
            let (mut ops, _) = reliable
                .chain(|ops| {
                    ops.read(self.lock_word_of(addr), reliable.buf(8));
                    self.read_whole(session, ops, addr, level);
                })
                .await?;
            let (lock, image) = (ops.buf(0).words()[0], self.take_whole(&mut ops, 1, level));
            let is_it = self.is_current(&image, addr, level)
                && self.view(level, image.words()).covers_place(seek) == Cover::Inside;
            let is_torn = is_it && self.has_torn_slots(level, image.words());
            if lock == 0 && is_it && !is_torn {
                return Ok(Some((addr, image)));
            }
            if lock == 0 && is_torn && changes > 0 {
                // It may be a writer's that came in between; the lock tells.
                match self.mend_leaf(session, &NodePointer::fresh(addr)).await {
                    Ok(Some(image))
                        if self.view(level, image.words()).covers_place(seek) == Cover::Inside =>
                    {
                        return Ok(Some((addr, image)));
                    }
                    Ok(_) | Err(BlinkFail::Restart) => {}
                    Err(BlinkFail::Error(error)) => return Err(error),
                }
            }
            if lock == 0 || lock == DEAD {
                changes += 1;
                if changes > FIND_TRIES_MAX {
                    return Err(IndexError::Unavailable(format!(
                        "node {addr} changed at each of {FIND_TRIES_MAX} looks: try again"
                    )));
                }
                continue;
            }
            if LockToken::from_word(lock).is_none() {
                report.problems.push(format!(
                    "INV-BT-5: the lock word of node {addr} is {lock:#018x}, which names nobody"
                ));
                return Ok(Some((addr, image)));
            }
            if session.owner_is_dead(lock).await?
                || wait.again(session, ("node", addr), lock).await?
            {
                self.recover(session, self.lock_word_of(addr), lock).await?;
            }
        }
    }

    /// Tells whether a node that was seen in a version is another now, or dead.
    async fn has_changed(
        &self,
        session: &Session,
        seen: Option<(GlobalAddr, u64)>,
        level: u8,
    ) -> Result<bool, IndexError> {
        let Some((addr, version)) = seen else { return Ok(false) };
        let client = session.client();
        let image = client.read(addr, client.buf(self.bytes_at(level))).await?;
        Ok(!self.is_current(&image, addr, level) || version_of(image.words()) != version)
    }

    /// Tells whether the parent of the node of `level` that starts at `low` points to `addr` now.
    async fn is_child(
        self: &Arc<Self>,
        session: &Session,
        addr: u64,
        low: Option<&[u8]>,
        level: u8,
    ) -> Result<bool, IndexError> {
        if self.read_root(session).await?.1 <= level {
            return Ok(false);
        }
        let seek = low.map_or(Seek::First, Seek::After);
        let Some((_, image)) = self.find(session, seek, level + 1).await? else {
            return Ok(false);
        };
        Ok(Node::new(&self.layout, image.words()).child_at_place(seek).1 == addr)
    }

    async fn check_meta(
        self: &Arc<Self>,
        session: &Session,
        report: &mut TableReport,
    ) -> Result<(), IndexError> {
        let reliable = session.reliable();
        let meta = reliable.read(self.meta, reliable.buf(META_BYTES)).await?;
        let (magic, lock) = (meta.words()[0], meta.words()[META_ROOT_LOCK as usize / 8]);
        if magic != grow::MAGIC {
            report.problems.push(format!(
                "the meta object at {} begins with {magic:#018x}, which is not its tag",
                self.meta
            ));
        }
        if LockToken::from_word(lock).is_some() {
            if session.owner_is_dead(lock).await? {
                reliable.cas(self.meta.plus(META_ROOT_LOCK), lock, 0).await?;
            }
        } else if lock != 0 {
            report.problems.push(format!(
                "INV-BT-5: the root's lock word is {lock:#018x}, which names nobody"
            ));
        }
        Ok(())
    }

    /// The children of an inner node from `from` on, with the low fences that it gives them.
    fn children(
        &self,
        node: &Node<'_, u64>,
        low: Option<Vec<u8>>,
        from: Option<&[u8]>,
        below: &mut BTreeMap<u64, Option<Vec<u8>>>,
    ) {
        let mut bound = low;
        for index in 0..=node.count() {
            let low = bound.take();
            if low.as_deref() >= from {
                below.insert(node.child(index).unwrap_or(0), low);
            }
            let mut separator = Vec::new();
            node.separator(index, &mut separator);
            bound = Some(separator);
        }
    }

    fn leaf(
        &self,
        node: &Node<'_, u64>,
        addr: GlobalAddr,
        above: Option<&[u8]>,
        report: &mut TableReport,
        visitor: &mut impl Visitor,
    ) {
        debug_assert_eq!(node.kind(), Kind::Leaf);
        let (mut key, mut value) = (Vec::new(), Vec::new());
        for index in 0..node.count() {
            node.key(index, &mut key);
            if above.is_some_and(|above| key.as_slice() <= above) {
                continue;
            }
            report.keys += 1;
            report.data_bytes += key.len() as u64;
            match node.value(index, &mut value) {
                Some(StoredValue::Inline) => report.data_bytes += value.len() as u64,
                Some(StoredValue::Record(record)) => {
                    report.data_bytes += record.len;
                    report.record_bytes += record_bytes(record.len as usize) as u64;
                    match self.record_place(record) {
                        Ok((addr, bytes)) => visitor.object("value record", addr, bytes),
                        Err(error) => report.problems.push(format!("leaf {addr}: {error}")),
                    }
                }
                None => {}
            }
        }
    }
}

/// Counts the pairs of a guarded leaf above the fence up to which all has been counted.
fn count_pairs(leaf: &GuardedLeaf<'_>, above: Option<&[u8]>, report: &mut TableReport) {
    report.hops += leaf.hops();
    for (key, value) in leaf.pairs().unwrap_or_default() {
        if above.is_none_or(|above| key.as_slice() > above) {
            report.keys += 1;
            report.data_bytes += (key.len() + value.len()) as u64;
        }
    }
}
