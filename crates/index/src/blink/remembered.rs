//! Remembered pointers: finds leaves by copies of inner nodes that this compute server keeps between operations.
//!
//! Epochs protect what an operation has READ itself, not what it remembers of an earlier one: a merged node is freed, and
//! its memory is used again, perhaps for a node of this tree that nobody links. So each node of such a tree bears the epoch
//! of its making (*birth*, the high 40 bits of its version), and each copy keeps the epoch from before its READ.
//!
//! - `INV-REM-1` A node that is READ by a remembered pointer counts if it is current, covers the place, and was born by the
//!   epoch of the copy that names it (INV-EPOCH-6 of the pool). Then it is the object that was linked when the copy was
//!   READ, and it is alive. Else the copy is dropped, and the way is looked up anew.
//! - `INV-REM-2` Pointers of a node that counted and was READ by this operation are *fresh*: its pin holds what they lead to.
//!   So is the root word, if it was READ at the present moment (INV-EPOCH-7 of the pool).
//! - `INV-REM-3` A writer proves a node by the image that it READs under the lock, and writes to no other. The lock word
//!   lies in a lock table, so that the CAS harms nobody if the pointer was stale.
//! - `INV-REM-4` A leaf that is open at both ends may be giving way to a loaded tree. Its image counts if its lock word,
//!   READ before it, was 0, or if the root leads to it after the READ.
//!
//! Cost of a get with all inner nodes cached: 1 READ of a leaf. A stale copy costs 1 READ of a leaf, and 1 of each node that
//! is READ anew.

use std::sync::Arc;

use farleaf_fabric::{Buf, Endpoint, GlobalAddr};
use farleaf_pool::{LockToken, Session};

use super::lock_table::LockTables;
use super::own_leaves::{LeafRule, OwnLeaves};
use super::read::{CORRUPT_AFTER_NS, LeafFit, REREADS_QUICK, Unfinished, root_parts};
use super::{BlinkFail, BlinkTree};
use crate::bnode::{Cover, GuardedLeaf, Kind, Lookup, Node};
use crate::detach::unfinished_work;
use crate::local::node_cache::AGE_MAX;
use crate::local::{CachedNode, HandOver, NodeCache};
use crate::retry::{
    Attempts, LOCK_WAIT_MAX_NS, OWNER_CHECK_NS, RetryPolicy, backoff, locked_too_long,
};
use crate::sync::{AtomicU64, Ordering};
use crate::{CounterSet, IndexError, Seek};

/// Settings by which a compute server opens a tree whose nodes it remembers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RememberOptions {
    /// Bytes of copies of inner nodes.
    pub cache_bytes: u64,
    /// Times in a row that a lock goes on within the compute server.
    pub hand_over: u32,
    /// The node's content goes along.
    pub hand_image: bool,
    /// Lock and READ are one chain.
    pub combine_lock: bool,
    /// A change of a guarded leaf writes its slot alone, not the leaf.
    pub write_entries: bool,
    /// A get READs the leaf's lock word before and after the leaf, and a change once before it locks.
    pub read_locks: bool,
}

/// The copies and the queues of a compute server for one tree, and the words that lock its nodes.
#[derive(Debug)]
pub(super) struct Remembered {
    pub(super) locks: LockTables,
    pub(super) nodes: NodeCache,
    pub(super) turns: Arc<HandOver>,
    pub(super) rule: LeafRule,
    pub(super) options: RememberOptions,
    /// Time that the last chain of lock and READ took.
    pub(super) chain_ns: AtomicU64,
    pub(super) counts: RememberCounts,
}

/// Events of a compute server since it opened the tree.
#[derive(Debug, Default)]
pub(super) struct RememberCounts {
    /// Leaves that were READ again because a header or a slot did not fit.
    pub reread: AtomicU64,
    /// Slots that the dead had left between two writes.
    pub mended: AtomicU64,
    /// Copies that led too far left.
    pub led_right: AtomicU64,
    /// Copies that led to something else than the node that they name.
    pub refused: AtomicU64,
    /// Leaves that were split.
    pub splits: AtomicU64,
    /// Nodes that were merged.
    pub merges: AtomicU64,
}

impl RememberCounts {
    /// The counts by their names.
    pub(super) fn list(&self) -> [(&'static str, &AtomicU64); 6] {
        [
            ("read_again", &self.reread),
            ("slots_mended", &self.mended),
            ("hints_right", &self.led_right),
            ("hints_refused", &self.refused),
            ("splits", &self.splits),
            ("merges", &self.merges),
        ]
    }
}

pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Remembered {
    pub(super) fn new(
        locks: LockTables,
        options: RememberOptions,
        node_bytes: usize,
        rule: LeafRule,
    ) -> Self {
        Remembered {
            locks,
            rule,
            nodes: NodeCache::new(options.cache_bytes, node_bytes),
            turns: HandOver::new(options.hand_over),
            options,
            chain_ns: AtomicU64::new(0),
            counts: RememberCounts::default(),
        }
    }

    /// The turns at the leaves that this compute server alone changes, if it has such leaves.
    pub(super) fn own_leaves(&self) -> Option<&OwnLeaves> {
        match &self.rule {
            LeafRule::Own(own) => Some(own),
            LeafRule::Shared | LeafRule::Unowned => None,
        }
    }
}

/// The place that a pointer was read from.
#[derive(Clone, Debug)]
enum PointerSource {
    /// The remembered root word.
    Root,
    /// The copy of the node above.
    Copy(GlobalAddr, Arc<CachedNode>),
    /// The node above, READ by this operation.
    Parent,
    /// The left neighbour, READ by this operation.
    Sibling,
}

/// A pointer to a node that was not READ yet.
#[derive(Clone, Debug)]
pub(super) struct NodePointer {
    pub(super) addr: GlobalAddr,
    /// The epoch by which the node must have been born; `None` if the pointer is fresh.
    pub(super) view: Option<u64>,
    source: PointerSource,
}

impl NodePointer {
    /// A pointer that this operation has read.
    pub(super) fn fresh(addr: GlobalAddr) -> Self {
        NodePointer { addr, view: None, source: PointerSource::Sibling }
    }
}

/// A node above the leaves: a copy, or READ by this operation.
#[derive(Debug)]
pub(super) struct UpperNode {
    pub(super) addr: GlobalAddr,
    pub(super) node: Arc<CachedNode>,
    is_fresh: bool,
}

impl UpperNode {
    /// Its pointer to the child at `addr`.
    pub(super) fn pointer(&self, addr: GlobalAddr) -> NodePointer {
        if self.is_fresh {
            return NodePointer { addr, view: None, source: PointerSource::Parent };
        }
        let source = PointerSource::Copy(self.addr, Arc::clone(&self.node));
        NodePointer { addr, view: Some(self.node.epoch()), source }
    }
}

impl BlinkTree {
    /// The copies and queues of a tree that has some.
    pub(super) fn remembered(&self) -> &Remembered {
        self.remembered.as_ref().expect("a tree whose nodes are remembered")
    }

    /// Adds the events since the tree was opened, where nodes are remembered.
    pub fn count_remembered(&self, counters: &mut CounterSet) {
        let Some(remembered) = &self.remembered else { return };
        let copies = remembered.nodes.counts();
        let (mut passes, mut images) = remembered.turns.counts();
        if let Some(own) = remembered.own_leaves() {
            let (passed, with_image) = own.turns.counts();
            passes += passed;
            images += with_image;
        }
        for (name, count) in [
            ("node_hits", copies.hits),
            ("node_misses", copies.misses),
            ("nodes_evicted", copies.evicted),
            ("passes", passes),
            ("images_passed", images),
        ] {
            counters.add(name, count);
        }
        for (name, count) in remembered.counts.list() {
            counters.add(name, count.load(Ordering::Relaxed));
        }
    }

    /// Bytes of the copies of nodes.
    pub fn copy_bytes(&self) -> u64 {
        self.remembered.as_ref().map_or(0, |it| it.nodes.counts().bytes)
    }

    /// Drops what a pointer was read from: it led astray.
    pub(super) fn refuse(&self, pointer: &NodePointer) {
        match &pointer.source {
            PointerSource::Root => self.root.forget(),
            PointerSource::Copy(addr, copy) => {
                if let Some(near) = self.hopscotch.as_ref().filter(|_| copy.level() == 1) {
                    near.add_stale_copy(*addr, copy);
                }
                self.remembered().nodes.forget_copy(*addr, copy);
            }
            PointerSource::Parent | PointerSource::Sibling => {}
        }
    }

    fn refused(&self, pointer: &NodePointer) -> BlinkFail {
        count(&self.remembered().counts.refused);
        self.refuse(pointer);
        BlinkFail::Restart
    }

    /// The right sibling of a node that a pointer led to, and that does not reach as far as the key. A split that is
    /// unfinished, and not only unknown here, is put down.
    pub(super) fn go_right(
        &self,
        level: u8,
        words: &[u64],
        pointer: &NodePointer,
        unfinished: &mut Option<Unfinished>,
    ) -> Result<NodePointer, IndexError> {
        let view = self.view(level, words);
        let right = self.pointer(view.right(), pointer.addr)?;
        match (&pointer.source, view.high()) {
            (PointerSource::Parent, Some(separator)) => {
                *unfinished = Some(Unfinished { level: level + 1, separator, right });
            }
            (PointerSource::Copy(..) | PointerSource::Root, _) => {
                count(&self.remembered().counts.led_right);
                self.refuse(pointer);
            }
            _ => {}
        }
        Ok(NodePointer::fresh(right))
    }

    /// The pointer to the root, and its level. 1 READ if none is remembered.
    ///
    /// A word that was READ at the present moment is as good as one READ now (`INV-EPOCH-7` of the pool). Its epoch alone
    /// would refuse a root that a compute server has made whose epoch is one ahead, and as long as nobody here ticks the
    /// word would be READ again in vain.
    async fn root_pointer(&self, session: &Session) -> Result<(NodePointer, u8), IndexError> {
        let pointer = |addr, view| NodePointer { addr, view, source: PointerSource::Root };
        if let Some(word) = self.root.at(session.moment()) {
            let (addr, level) = root_parts(word)?;
            return Ok((pointer(addr, None), level));
        }
        if let Some((addr, level, epoch)) = self.root.by_birth()
            && session.epoch().saturating_sub(epoch) < AGE_MAX
        {
            return Ok((pointer(addr, Some(epoch)), level));
        }
        let (addr, level) = self.read_root(session).await?;
        Ok((pointer(addr, None), level))
    }

    /// READs the node above the leaves that a pointer leads to, and proves it (`INV-REM-1`). 1 READ.
    async fn read_proven(
        self: &Arc<Self>,
        session: &Session,
        pointer: &NodePointer,
        level: u8,
    ) -> Result<Buf, BlinkFail> {
        let (reliable, bytes) = (session.reliable(), self.bytes_at(level));
        let image = reliable.read(pointer.addr, reliable.buf(bytes)).await?;
        if self.is_current(&image, pointer.addr, level)
            && self.is_born_by(image.words(), pointer.view)
        {
            return Ok(image);
        }
        self.read_until(session, pointer, level, image, |_| true).await
    }

    /// The node of `level`, above the leaves, that `seek` wants: a copy, or READ now.
    async fn node_above(
        self: &Arc<Self>,
        session: &Session,
        seek: Seek<'_>,
        level: u8,
        unfinished: &mut Option<Unfinished>,
    ) -> Result<UpperNode, BlinkFail> {
        let remembered = self.remembered();
        let (mut pointer, mut at) = self.root_pointer(session).await?;
        if at < level {
            self.root.forget();
            return Err(BlinkFail::Restart);
        }
        loop {
            let covers = |words: &[u64]| Node::new(&self.layout, words).covers_place(seek);
            let copy = remembered.nodes.get(pointer.addr, session.epoch());
            let copy = copy.filter(|it| it.level() == at && covers(it.words()) == Cover::Inside);
            let is_fresh = copy.is_none();
            let node = match copy {
                Some(copy) => copy,
                None => {
                    let epoch = session.epoch();
                    let image = self.read_proven(session, &pointer, at).await?;
                    let node = self.put_copy(remembered, pointer.addr, (at, epoch), image.words());
                    match covers(image.words()) {
                        Cover::Inside => node,
                        Cover::Above => {
                            pointer = self.go_right(at, image.words(), &pointer, unfinished)?;
                            continue;
                        }
                        Cover::Below => return Err(self.refused(&pointer)),
                    }
                }
            };
            let upper = UpperNode { addr: pointer.addr, node, is_fresh };
            if at == level {
                return Ok(upper);
            }
            at -= 1;
            pointer = self.child_pointer(&upper, seek)?;
        }
    }

    fn child_pointer(&self, upper: &UpperNode, seek: Seek<'_>) -> Result<NodePointer, IndexError> {
        let child = Node::new(&self.layout, upper.node.words()).child_at_place(seek).1;
        Ok(upper.pointer(self.pointer(child, upper.addr)?))
    }

    /// The pointer to the node of `level` that probably has the place of `seek`. No READ if all above it are cached.
    pub(super) async fn pointer_to(
        self: &Arc<Self>,
        session: &Session,
        seek: Seek<'_>,
        level: u8,
        unfinished: &mut Option<Unfinished>,
    ) -> Result<NodePointer, BlinkFail> {
        let (root, top) = self.root_pointer(session).await?;
        if top == level {
            return Ok(root);
        }
        let upper = self.node_above(session, seek, level + 1, unfinished).await?;
        Ok(self.child_pointer(&upper, seek)?)
    }

    /// The parent of the leaf at the place of `seek`. `None` if the tree has one level.
    pub(super) async fn parent_of(
        self: &Arc<Self>,
        session: &Session,
        seek: Seek<'_>,
        unfinished: &mut Option<Unfinished>,
    ) -> Result<Option<UpperNode>, BlinkFail> {
        if self.root_pointer(session).await?.1 == 0 {
            return Ok(None);
        }
        Ok(Some(self.node_above(session, seek, 1, unfinished).await?))
    }

    /// READs the node of `level` that `seek` wants, and proves it; a leaf whose slots `fit`.
    pub(super) async fn proven_at(
        self: &Arc<Self>,
        session: &Session,
        seek: Seek<'_>,
        level: u8,
        fit: LeafFit<'_>,
    ) -> Result<(GlobalAddr, Buf), BlinkFail> {
        let mut pointer = self.pointer_to(session, seek, level, &mut None).await?;
        loop {
            let image = self.read_fitting(session, &pointer, level, fit).await?;
            match self.view(level, image.words()).covers_place(seek) {
                Cover::Inside => return Ok((pointer.addr, image)),
                Cover::Above => {
                    pointer = self.go_right(level, image.words(), &pointer, &mut None)?;
                }
                Cover::Below => return Err(self.refused(&pointer)),
            }
        }
    }

    /// READs the node that a pointer leads to, proves it, and waits until its slots `fit`. 1 READ; 2 in one chain for a
    /// leaf that may be the root (`INV-REM-4`).
    pub(super) async fn read_fitting(
        self: &Arc<Self>,
        session: &Session,
        pointer: &NodePointer,
        level: u8,
        fit: LeafFit<'_>,
    ) -> Result<Buf, BlinkFail> {
        let reliable = session.reliable();
        let mut is_lone = level == 0 && matches!(pointer.source, PointerSource::Root);
        let locked3 = level == 0 && self.remembered().options.read_locks && !is_lone;
        let word = self.lock_word_of(pointer.addr);
        if locked3 {
            reliable.word(word).await?;
        }
        loop {
            let mut lock = None;
            let mut image = if is_lone {
                let chain = reliable.chain(|ops| {
                    ops.read(word, reliable.buf(8));
                    self.read_whole(session, ops, pointer.addr, level);
                });
                let (mut ops, _) = chain.await?;
                lock = Some(ops.buf(0).words()[0]);
                self.take_whole(&mut ops, 1, level)
            } else {
                self.read_image(session, pointer.addr, level).await?
            };
            let fits = self.is_current(&image, pointer.addr, level)
                && self.is_born_by(image.words(), pointer.view)
                && self.fits(level, &image, fit);
            if !fits {
                count(&self.remembered().counts.reread);
                let fits = |image: &Buf| self.fits(level, image, fit);
                image = self.read_until(session, pointer, level, image, fits).await?;
                // The image is younger than the look at the lock word.
                lock = lock.map(|_| u64::MAX);
            }
            if locked3 {
                reliable.word(word).await?;
            }
            let view = self.view(level, image.words());
            if level > 0 || view.right() != 0 || view.low().is_some() {
                return Ok(image);
            }
            match lock {
                None => is_lone = true,
                Some(0) => return Ok(image),
                Some(_) if self.root_leads_to(session, pointer.addr).await? => return Ok(image),
                Some(_) => {
                    self.root.forget();
                    return Err(self.refused(pointer));
                }
            }
        }
    }

    fn fits(&self, level: u8, image: &Buf, fit: LeafFit<'_>) -> bool {
        match (&self.guarded, fit) {
            // The fences of a leaf that does not cover the place say where to go on, whatever its slots are.
            (Some(layout), LeafFit::Key(key)) if level == 0 => {
                let leaf = GuardedLeaf::new(layout, image.words());
                !matches!(leaf.find(key), Lookup::Torn(_)) || leaf.covers(key) != Cover::Inside
            }
            (Some(_), LeafFit::All(seek)) => {
                !self.has_torn_slots(level, image.words())
                    || self.view(level, image.words()).covers_place(seek) != Cover::Inside
            }
            _ => true,
        }
    }

    /// Returns whether the root leads to the leaf at `addr`, which has no neighbours. 1 READ for each level above it, and 1.
    async fn root_leads_to(
        self: &Arc<Self>,
        session: &Session,
        addr: GlobalAddr,
    ) -> Result<bool, BlinkFail> {
        let (mut at, mut level) = self.read_root(session).await?;
        while level > 0 {
            let image = self.read_proven(session, &NodePointer::fresh(at), level).await?;
            let child = Node::new(&self.layout, image.words()).child_at_place(Seek::First).1;
            (at, level) = (self.pointer(child, at)?, level - 1);
        }
        Ok(at == addr)
    }

    /// A READ did not give an image that counts: reads on until one does, or says what to do instead.
    #[cold]
    async fn read_until(
        self: &Arc<Self>,
        session: &Session,
        pointer: &NodePointer,
        level: u8,
        mut image: Buf,
        fits: impl Fn(&Buf) -> bool,
    ) -> Result<Buf, BlinkFail> {
        let (endpoint, reliable) = (session.endpoint(), session.reliable());
        let (addr, word) = (pointer.addr, self.lock_word_of(pointer.addr));
        let start_ns = endpoint.now_ns();
        let mut tries = 0;
        loop {
            let is_current = self.is_current(&image, addr, level);
            if is_current && !self.is_born_by(image.words(), pointer.view) {
                return Err(self.refused(pointer));
            }
            if is_current && fits(&image) {
                return Ok(image);
            }
            if !is_current && self.is_whole(level, image.words()) {
                // Merged away, or another node.
                return Err(self.refused(pointer));
            }
            // A node's own address and its tag stay while it is being written.
            let is_foreign =
                !Self::looks_like_node(image.words()) || image.words()[1] != addr.word();
            // Handed out again since the pointer was READ.
            let may_be_reused = pointer.view.is_some();
            if is_foreign && may_be_reused {
                return Err(self.refused(pointer));
            }
            if tries >= REREADS_QUICK {
                if !is_current && may_be_reused {
                    // It may be no node of this tree any more.
                    return Err(self.refused(pointer));
                }
                backoff(session, tries - REREADS_QUICK).await;
            }
            let waited_ns = endpoint.now_ns() - start_ns;
            if waited_ns >= OWNER_CHECK_NS {
                let lock = reliable.word(word).await?;
                if LockToken::from_word(lock).is_some() && session.owner_is_dead(lock).await? {
                    self.recover(session, word, lock).await?;
                } else if lock == 0 && is_current {
                    // A dead client has left a slot half written.
                    if let Some(image) = self.mend_leaf(session, pointer).await? {
                        return Ok(image);
                    }
                } else if lock == 0 && waited_ns >= CORRUPT_AFTER_NS {
                    return Err(BlinkFail::Error(IndexError::Corrupt(format!(
                        "node {addr} (level {level}) of the table at {}: INV-NODE-4: its checksum does \
                         not fit its content and nobody is writing it",
                        self.meta()
                    ))));
                } else if waited_ns >= LOCK_WAIT_MAX_NS {
                    return Err(BlinkFail::Error(locked_too_long("node", addr, lock)));
                }
            }
            tries += 1;
            image = self.read_image(session, addr, level).await?;
        }
    }

    /// Returns whether the header of an image is whole: of a node that is dead, or of another one.
    pub(super) fn is_whole(&self, level: u8, words: &[u64]) -> bool {
        match &self.guarded {
            Some(layout) if level == 0 => {
                let leaf = GuardedLeaf::new(layout, words);
                leaf.kind_at(leaf.self_addr()) != Kind::Invalid
            }
            _ => Node::new(&self.layout, words).sum_ok(),
        }
    }

    /// Locks a leaf, mends what dead writers have left in its slots, and unlocks it. The leaf of an owner, which this
    /// compute server may not change, is mended in the image that is returned alone: that is what the owner's next change
    /// makes of it.
    pub(super) async fn mend_leaf(
        self: &Arc<Self>,
        session: &Session,
        pointer: &NodePointer,
    ) -> Result<Option<Buf>, BlinkFail> {
        let tree = Arc::clone(self);
        let pointer = pointer.clone();
        let inside = self.remembered().own_leaves().map(|own| own.enter(session));
        let mended = BlinkTree::detach(session, async move |session| {
            let _inside = inside;
            let mut leaf = match tree.lock_proven(&session, &pointer, 0).await {
                Ok(leaf) => leaf,
                Err(BlinkFail::Restart) => return Ok(None),
                Err(BlinkFail::Error(error)) => return Err(error),
            };
            let mut image = None;
            if matches!(tree.remembered().rule, LeafRule::Unowned) {
                leaf.leave_unmended();
                let mut copy = session.client().buf(tree.bytes_at(0));
                copy.words_mut().copy_from_slice(leaf.image.words());
                image = Some(copy);
            }
            leaf.unlock().await?;
            Ok(image)
        });
        match mended.await {
            Some(done) => Ok(done?),
            None => Err(BlinkFail::Error(unfinished_work("mending a leaf"))),
        }
    }

    /// Takes the image of an inner node that this client has locked and published into the cache. `epoch` was asked for
    /// under the lock.
    pub(super) fn remember_node(&self, addr: GlobalAddr, level: u8, epoch: u64, words: &[u64]) {
        if let (Some(remembered), true) = (&self.remembered, level > 0) {
            self.put_copy(remembered, addr, (level, epoch), words);
        }
    }

    /// The value of `key`. 1 READ if all inner nodes are cached.
    pub(super) async fn get_remembered(
        self: &Arc<Self>,
        session: &Session,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<bool, IndexError> {
        let mut attempts = Attempts::new(&RetryPolicy::WAY);
        loop {
            let found = match self.get_near(session, key, value).await {
                Ok(Some(is_there)) => {
                    if !is_there {
                        value.clear();
                    }
                    return Ok(is_there);
                }
                Ok(None) => self.proven_at(session, Seek::At(key), 0, LeafFit::Key(key)).await,
                Err(fail) => Err(fail),
            };
            let leaf = match found {
                Ok((_, leaf)) => leaf,
                Err(BlinkFail::Restart) => {
                    self.again(session, &mut attempts).await?;
                    continue;
                }
                Err(BlinkFail::Error(error)) => return Err(error),
            };
            value.clear();
            if let Some(layout) = &self.guarded {
                let leaf = GuardedLeaf::new(layout, leaf.words());
                return Ok(match leaf.find(key) {
                    Lookup::Hit(index) => {
                        leaf.value(index, value);
                        true
                    }
                    Lookup::Miss | Lookup::Torn(_) => false,
                });
            }
            let node = Node::new(&self.layout, leaf.words());
            let Ok(index) = node.find(key) else { return Ok(false) };
            self.value_of(session, &node, index, value).await?;
            return Ok(true);
        }
    }
}
