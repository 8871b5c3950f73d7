//! Descent: the way from a proven node down to a key, and what proves it.
//!
//! A *fresh* pointer is a slot that this operation has READ from a live node. A *cached* pointer is one that an
//! earlier operation READ when its member's view of the epoch was `c`.
//!
//! - A node is live if its pointer is fresh. It is live if it is READ at a cached entry's address and has the
//!   entry's first word, not DEAD. It is live if it is READ by a cached slot, is not DEAD, and was born by `c`.
//! - A leaf that is READ by a cached slot proves its content if it is whole, valid, not moving, and was born by `c`:
//!   it was linked at a moment of the READ. Otherwise it proves nothing.
//! - Absence needs fresh evidence. A fresh slot with the address of a leaf that was proven before, in the same
//!   operation, leads to that leaf: the operation's pin keeps the address from being used again.
//! - If the node has reserved room, that leaf is reason enough to CAS the cached slot (`INV-SMART-15`).
//! - A linked node is on the way of the keys that begin with the bytes in front of its depth.
//!
//! An address is handed out again only at a view above the `c` of all pointers that led to what it was. So what was
//! born by `c` is what the pointer led to.

use farleaf_fabric::{Buf, GlobalAddr};
use farleaf_pool::{Session, Unlinked};

use super::cache::Stamp;
use super::entry::Entry;
use super::layout::{Edge, META_ROOT, Node, NodeType, Slot, slot_addr};
use super::leaf::Leaf;
use super::locked::LeafImage;
use super::tree::{Fail, Tree, count};

farleaf_fabric::canaries! {
    pub(crate) TRUST_DEAD_NODE = "trust-dead-node", "a cached node counts although it is dead";
    pub(crate) SKIP_BIRTH = "skip-birth",
        "a cached pointer counts without the birth of what it leads to";
}

/// The word that leads to a node: a slot of its parent, or the root word.
#[derive(Clone, Copy, Debug)]
pub(super) struct Up {
    /// The parent, or the meta object.
    pub(super) node: GlobalAddr,
    pub(super) at: GlobalAddr,
    pub(super) word: u64,
}

impl Up {
    /// The number of the parent's slot.
    pub(super) fn index(self) -> usize {
        (self.at.offset() - slot_addr(self.node, 0).offset()) as usize / 8
    }
}

/// The moment before a READ of a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodeRead {
    /// The member's view.
    pub(super) c: u64,
    /// The stamp for an exact entry.
    pub(super) stamp: Option<Stamp>,
}

/// A node that this operation has READ, and proven.
#[derive(Debug)]
pub(super) struct ReadNode {
    pub(super) addr: GlobalAddr,
    pub(super) image: Buf,
    /// Bytes of the key that lead to it; 0 if it was found by the cache.
    pub(super) matched: usize,
    /// `None` if it was found by the cache.
    pub(super) up: Option<Up>,
    /// The member's view before the READ.
    pub(super) c: u64,
    /// The moment before the READ, for an exact entry.
    pub(super) stamp: Option<Stamp>,
    /// It is that of a cache entry, and was not READ.
    pub(super) is_cached: bool,
}

impl ReadNode {
    pub(super) fn node(&self, tree: &Tree) -> Node<'_> {
        Node::new(&tree.shape, self.image.words())
    }

    pub(super) fn slot_addr(&self, index: usize) -> GlobalAddr {
        slot_addr(self.addr, index)
    }

    /// The word that leads to the child in `slot`.
    pub(super) fn up_of(&self, index: usize, slot: Slot) -> Up {
        Up { node: self.addr, at: self.slot_addr(index), word: slot.0 }
    }
}

/// The end of the way to a key.
#[derive(Debug)]
pub(super) enum PathEnd {
    /// The last node has no slot for the key's edge.
    None,
    /// It has one without a child.
    Tomb { index: usize, slot: Slot },
    /// It leads to a leaf.
    Leaf { index: usize, slot: Slot },
    /// It leads to a node whose compressed bytes the key leaves at a position.
    Differs { index: usize, slot: Slot, child: ReadNode, at: usize },
}

/// The nodes on the way to a key from the one that was proven first, and where it ends.
#[derive(Debug)]
pub(super) struct Path {
    pub(super) nodes: Vec<ReadNode>,
    pub(super) landing: PathEnd,
}

impl Path {
    /// The node in which the way ends.
    pub(super) fn last(&self) -> &ReadNode {
        &self.nodes[self.nodes.len() - 1]
    }

    /// Returns whether it begins with the node of a cache entry, so that no node was READ before that.
    pub(super) fn is_cached(&self) -> bool {
        self.nodes[0].is_cached
    }

    /// Returns whether it leads to the object at `addr`.
    pub(super) fn reaches(&self, addr: GlobalAddr) -> bool {
        let ends_there = match &self.landing {
            PathEnd::None | PathEnd::Tomb { .. } => false,
            PathEnd::Leaf { slot, .. } | PathEnd::Differs { slot, .. } => slot.addr() == addr,
        };
        ends_there || self.nodes.iter().any(|held| held.addr == addr)
    }
}

/// The end of the cached part of the way to a key.
#[derive(Debug)]
pub(super) struct CachedStart {
    pub(super) entry: Entry,
    /// The cached slot for the key's next edge.
    pub(super) slot: Option<Slot>,
    /// The address of that slot, or of the first unused one; `None` unless objects point back.
    pub(super) at: Option<GlobalAddr>,
    pub(super) proof: Proof,
}

/// The proof that a guess is, by exact entries (`own_nodes.rs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Proof {
    /// Nothing.
    Hint,
    /// The node has these slots now.
    Exact,
    /// The key is absent: it leaves the compressed bytes of the child in its slot.
    Absent,
}

impl Tree {
    /// Follows the cached nodes towards `key`. No remote operation.
    pub(super) fn guess(&self, key: &[u8]) -> Option<CachedStart> {
        if self.ladder.starts_by_hash() {
            return self.guess_by_length(key);
        }
        let (root, first_word) = self.known_root()?;
        let (mut entry, mut is_exact) =
            self.cache.get(root).filter(|(entry, _)| entry.first_word() == first_word)?;
        // All keys below a node on the way begin with the bytes up to the one that it dispatches on.
        let proof = |at: usize, is_exact: bool, proof: Proof| {
            if is_exact && self.owns_all(&key[..at]) { proof } else { Proof::Hint }
        };
        loop {
            let at = entry.head(&self.shape).dispatch();
            let found = entry.find(Edge::of(key, at)?);
            let (slot, index) = (found.map(|found| found.1), found.map(|found| found.0));
            let node = slot.filter(|slot| !slot.is_leaf());
            let Some((child, is_child_exact)) = node.and_then(|slot| self.cache.get(slot.addr()))
            else {
                let proof = proof(at, is_exact, Proof::Exact);
                return Some(CachedStart { proof, ..self.guess_in(entry, slot, index) });
            };
            let goes_on = child.head(&self.shape).dispatch() > at;
            if !goes_on || !child.is_on_way(&self.shape, key) {
                // The address was used again, or the key is absent: only a fresh slot tells, or exact entries.
                let proof = proof(at, is_exact && is_child_exact && goes_on, Proof::Absent);
                return Some(CachedStart { entry, slot: None, at: None, proof });
            }
            (entry, is_exact) = (child, is_child_exact);
        }
    }

    /// The parent of the node at `child` on the cached part of the way to `key`, without its slot. No remote
    /// operation.
    pub(super) fn guess_parent(&self, key: &[u8], child: GlobalAddr) -> Option<CachedStart> {
        let (root, first_word) = self.known_root()?;
        let (mut entry, mut is_exact) =
            self.cache.get(root).filter(|(entry, _)| entry.first_word() == first_word)?;
        loop {
            let at = entry.head(&self.shape).dispatch();
            let (_, slot) = entry.find(Edge::of(key, at)?).filter(|(_, slot)| !slot.is_leaf())?;
            if slot.addr() == child {
                let is_exact = is_exact && self.owns_all(&key[..at]);
                let proof = if is_exact { Proof::Exact } else { Proof::Hint };
                // Without the slot, which leads to `child`.
                return Some(CachedStart { proof, ..self.guess_in(entry, None, None) });
            }
            let next = self.cache.get(slot.addr())?;
            let goes_on = next.0.head(&self.shape).dispatch() > at;
            if !goes_on || !next.0.is_on_way(&self.shape, key) {
                return None;
            }
            (entry, is_exact) = next;
        }
    }

    /// A guess that proves nothing.
    pub(super) fn guess_in(
        &self,
        entry: Entry,
        slot: Option<Slot>,
        index: Option<usize>,
    ) -> CachedStart {
        let at = self.shape.mode.slot_place(&entry, index);
        CachedStart { entry, slot, at, proof: Proof::Hint }
    }

    /// Looks for a cached node on the way to `key` by the bytes that lead to it. No remote operation.
    fn guess_by_length(&self, key: &[u8]) -> Option<CachedStart> {
        let is_here = |len: &usize| -> Option<(Entry, Edge)> {
            let entry = self.cache.by_name(&key[..*len])?;
            let is_it =
                entry.head(&self.shape).dispatch() == *len && entry.is_on_way(&self.shape, key);
            Some((entry, Edge::of(key, *len)?)).filter(|_| is_it)
        };
        let (entry, edge) = (0..=key.len()).rev().find_map(|len| is_here(&len))?;
        let found = entry.find(edge);
        Some(self.guess_in(entry, found.map(|found| found.1), found.map(|found| found.0)))
    }

    /// The deepest node that the cache knows of, to put a node before one of its leaves by a CAS of the cached slot:
    /// one with reserved room below the root, which never leaves the tree (`INV-SMART-15`). No remote operation.
    pub(super) fn unread(&self, session: &Session, guess: &CachedStart) -> Option<ReadNode> {
        let is_root = guess.entry.head(&self.shape).dispatch() == 0;
        let stays = self.shape.mode.keeps_nodes() && !is_root;
        if stays { self.held_of(session, &guess.entry) } else { None }
    }

    /// The node of an entry with the places of its slots, as a READ would have brought it.
    fn held_of(&self, session: &Session, entry: &Entry) -> Option<ReadNode> {
        let mut image = session.client().buf(entry.node_type(&self.shape)?.bytes());
        entry.fill(image.words_mut());
        Some(ReadNode {
            addr: entry.addr(),
            image,
            matched: 0,
            up: None,
            c: entry.c(),
            stamp: None,
            is_cached: true,
        })
    }

    /// Proves the deepest node that the cache knows of: 1 READ, with the WRITE of `new` in the same round trip; none
    /// if its entry is exact. `None` if the cache is out of date.
    pub(super) async fn prove(
        &self,
        session: &Session,
        guess: &CachedStart,
        key: &[u8],
        new: Option<(&Unlinked, Buf)>,
    ) -> Result<Option<ReadNode>, Fail> {
        let entry = &guess.entry;
        if guess.proof == Proof::Exact && new.is_none() {
            return Ok(self.held_of(session, entry));
        }
        if let Some(slot) = guess.slot
            && let Some(of) = slot.node_type().filter(|_| !slot.is_leaf())
        {
            let held = self.read_at(session, slot.addr(), of, 0, None).await?;
            let node = held.node(self);
            let is_it = node.is_of(&self.shape, slot.addr(), of)
                && (!node.first_word().is_dead() || TRUST_DEAD_NODE.is_armed())
                && (self.is_current(guess, &held) || SKIP_BIRTH.is_armed());
            if is_it && node.differs(key, 0).is_none() {
                self.remember(&held, key);
                return Ok(Some(held));
            }
            // If the key leaves the child's compressed bytes, only a fresh slot proves that it is absent.
            count(&self.counts.unproven);
        }
        let Some(of) = entry.node_type(&self.shape) else { return Ok(None) };
        let held = self.read_at(session, entry.addr(), of, 0, new).await?;
        let is_it = held.node(self).first_word() == entry.first_word();
        let is_dead = held.node(self).first_word() == entry.first_word().dead();
        if !(is_it || is_dead && TRUST_DEAD_NODE.is_armed()) {
            self.cache.forget(entry);
            return Ok(None);
        }
        self.remember(&held, key);
        Ok(Some(held))
    }

    /// Returns whether the node that a cached slot led to proves that pointer, if it is alive.
    fn is_current(&self, guess: &CachedStart, held: &ReadNode) -> bool {
        self.shape.mode.proves_node(&self.shape, guess, held.addr, held.node(self))
    }

    /// READs the root node: 1 READ, more the first time and when it was replaced.
    pub(super) async fn root_node(&self, session: &Session) -> Result<ReadNode, Fail> {
        let (node, at) = (self.meta, self.meta.plus(META_ROOT));
        let up = |addr: GlobalAddr| Some(Up { node, at, word: addr.word() });
        if let Some((addr, first_word)) = self.known_root() {
            let mut held = self.read_at(session, addr, NodeType::TOP, 0, None).await?;
            if held.node(self).first_word() == first_word {
                held.up = up(addr);
                self.remember(&held, b"");
                return Ok(held);
            }
            self.note_root(None);
        }
        let addr = self.read_meta(session).await?;
        let mut held = self.read_at(session, addr, NodeType::TOP, 0, None).await?;
        held.up = up(addr);
        self.check(&held, NodeType::TOP)?;
        let first_word = held.node(self).first_word();
        if !first_word.is_dead() {
            self.note_root(Some((addr, first_word)));
            self.remember(&held, b"");
        }
        Ok(held)
    }

    /// Goes on from a proven node to `key`: 1 READ for each node below it.
    pub(super) async fn descend(
        &self,
        session: &Session,
        start: ReadNode,
        key: &[u8],
    ) -> Result<Path, Fail> {
        let mut nodes = vec![start];
        loop {
            let last = &nodes[nodes.len() - 1];
            let node = last.node(self);
            let at = node.dispatch();
            let edge = Edge::of(key, at).filter(|_| at >= last.matched);
            let edge =
                edge.ok_or_else(|| self.corrupt(last.addr, "its compressed bytes lead astray"))?;
            let Some((index, slot)) = node.find(edge) else {
                if node.is_short() {
                    let last = nodes.len() - 1;
                    self.shape.mode.read_whole(self, session, &mut nodes[last], key).await?;
                    continue;
                }
                return Ok(Path { nodes, landing: PathEnd::None });
            };
            if slot.is_tomb() {
                return Ok(Path { nodes, landing: PathEnd::Tomb { index, slot } });
            }
            if slot.is_leaf() {
                return Ok(Path { nodes, landing: PathEnd::Leaf { index, slot } });
            }
            let up = last.up_of(index, slot);
            let child = self.read_child(session, slot, (key, at + 1), up).await?;
            if let Some(at) = child.node(self).differs(key, child.matched) {
                let landing = PathEnd::Differs { index, slot, child, at };
                return Ok(Path { nodes, landing });
            }
            nodes.push(child);
        }
    }

    /// The way to `key` from the root.
    pub(super) async fn way(&self, session: &Session, key: &[u8]) -> Result<Path, Fail> {
        let root = self.root_node(session).await?;
        self.descend(session, root, key).await
    }

    /// READs the node that a fresh slot leads to; `matched` bytes of `key` lead there.
    pub(super) async fn read_child(
        &self,
        session: &Session,
        slot: Slot,
        (key, matched): (&[u8], usize),
        up: Up,
    ) -> Result<ReadNode, Fail> {
        let of = slot.node_type();
        let of = of.ok_or_else(|| self.corrupt(up.at, "its slot has no type of node"))?;
        let held = self.read_at(session, slot.addr(), of, matched, None).await?;
        self.met_child(session, held, slot, key, up)
    }

    /// A node that was READ as the child of a fresh slot, on the way to `key`.
    ///
    /// # Errors
    /// As [`Tree::check_child`].
    pub(super) fn met_child(
        &self,
        session: &Session,
        mut held: ReadNode,
        slot: Slot,
        key: &[u8],
        up: Up,
    ) -> Result<ReadNode, Fail> {
        held.up = Some(up);
        self.check_child(&held, slot)?;
        self.shape.mode.met_node(self, session, &held, slot);
        self.remember(&held, key);
        Ok(held)
    }

    /// READs nodes, each with the number of a key's bytes that lead there, all at once. 1 READ each, 1 round trip.
    pub(super) async fn read_all_at(
        &self,
        session: &Session,
        nodes: impl Iterator<Item = (GlobalAddr, NodeType, usize)>,
    ) -> Result<Vec<ReadNode>, Fail> {
        let reliable = session.reliable();
        let (c, mut ops, mut places) = (session.epoch(), reliable.client().ops(), Vec::new());
        for (addr, of, matched) in nodes {
            ops.read(addr, reliable.buf(of.bytes()));
            places.push((addr, matched, self.stamp(addr)));
        }
        let mut ops = reliable.post_many(ops).await?;
        let held = places.into_iter().enumerate().map(|(index, (addr, matched, stamp))| {
            let image = ops.take_buf(index);
            ReadNode { addr, image, matched, up: None, c, stamp, is_cached: false }
        });
        Ok(held.collect())
    }

    pub(super) async fn read_at(
        &self,
        session: &Session,
        addr: GlobalAddr,
        of: NodeType,
        matched: usize,
        new: Option<(&Unlinked, Buf)>,
    ) -> Result<ReadNode, Fail> {
        let (c, stamp, reliable) = (session.epoch(), self.stamp(addr), session.reliable());
        let image = match new {
            None => reliable.read(addr, reliable.buf(of.bytes())).await?,
            Some((object, content)) => {
                let mut ops = reliable.client().ops();
                ops.read(addr, reliable.buf(of.bytes()));
                object.write_in(&mut ops, content);
                let mut ops = reliable.post_many(ops).await?;
                object.written();
                ops.take_buf(0)
            }
        };
        Ok(ReadNode { addr, image, matched, up: None, c, stamp, is_cached: false })
    }

    /// Refuses a node that is not what a fresh slot must lead to.
    ///
    /// # Errors
    /// `Again` if a node has come in front of it since the slot was read.
    pub(super) fn check_child(&self, held: &ReadNode, slot: Slot) -> Result<(), Fail> {
        match slot.node_type() {
            Some(of) => self.check(held, of),
            None => {
                let what = "the slot that leads to it has no type of node";
                Err(self.corrupt(held.addr, what).into())
            }
        }
    }

    fn check(&self, held: &ReadNode, of: NodeType) -> Result<(), Fail> {
        let node = held.node(self);
        if !node.is_of(&self.shape, held.addr, of) {
            let what = "INV-SMART-2: no node of this table is there";
            return Err(self.corrupt(held.addr, what).into());
        }
        if node.depth() > held.matched && self.shape.mode.moves_children() {
            return Err(Fail::Again);
        }
        if node.depth() > held.matched || node.dispatch() < held.matched {
            let what = "INV-SMART-2: it does not continue its path";
            return Err(self.corrupt(held.addr, what).into());
        }
        Ok(())
    }

    /// Caches a live node on the way to `key`.
    pub(super) fn remember(&self, held: &ReadNode, key: &[u8]) {
        if !held.node(self).first_word().is_dead() {
            let read = NodeRead { c: held.c, stamp: held.stamp };
            self.remember_words(held.addr, held.image.words(), read, key);
        }
    }

    /// The moment before a READ of the node at `addr`.
    pub(super) fn read_now(&self, session: &Session, addr: GlobalAddr) -> NodeRead {
        NodeRead { c: session.epoch(), stamp: self.stamp(addr) }
    }

    /// Caches the live node at `addr` with these words, which a READ at the moment `read` brings.
    pub(super) fn remember_words(
        &self,
        addr: GlobalAddr,
        words: &[u64],
        NodeRead { c, stamp }: NodeRead,
        key: &[u8],
    ) {
        if self.options.cache_bytes == 0 {
            return;
        }
        let is_whole = self.ladder.caches_whole();
        let splits_unread = self.shape.mode.keeps_places() && !is_whole;
        if self.has_exact_entries() || splits_unread {
            if let Some(entry) = Entry::with_places_of(&self.shape, addr, c, words, key) {
                self.put(entry, stamp);
            }
            return;
        }
        if let Some(entry) = Entry::of(&self.shape, addr, c, words, (key, is_whole)) {
            self.cache.put(entry);
        }
    }

    /// Caches a node after an own CAS has stored `slot` at `index`.
    pub(super) fn remember_slot(&self, held: &mut ReadNode, index: usize, slot: Slot, key: &[u8]) {
        held.image.words_mut()[2 + index] = slot.0;
        self.remember(held, key);
    }

    /// READs the leaf that a slot leads to.
    pub(super) async fn read_leaf(&self, session: &Session, slot: Slot) -> Result<Buf, Fail> {
        let reliable = session.reliable();
        Ok(reliable.read(slot.addr(), reliable.buf(slot.leaf_class().bytes())).await?)
    }

    /// Returns whether a leaf that was READ by a cached slot was linked there at a moment of the READ, with this
    /// content.
    pub(super) fn is_proven(&self, guess: &CachedStart, slot: Slot, image: &Buf) -> bool {
        let leaf = self.leaf(slot.addr(), image);
        let object = (slot.addr(), image.words()[0]);
        let is_current = self.shape.mode.proves_leaf(&self.shape, guess, object, leaf);
        leaf.is_valid()
            && (is_current || SKIP_BIRTH.is_armed())
            && leaf.is_whole()
            && !leaf.is_moving()
    }

    /// The leaf in the object at `addr`. Its own address is that of its head.
    pub(super) fn leaf<'a>(&self, addr: GlobalAddr, image: &'a Buf) -> Leaf<'a> {
        let lead = self.shape.mode.lead();
        Leaf::new(self.shape.table, addr.plus(8 * lead as u64), &image.words()[lead..])
    }

    /// A copy of the leaf in the object at `addr`.
    pub(super) fn leaf_image(&self, addr: GlobalAddr, image: &Buf) -> LeafImage {
        let lead = self.shape.mode.lead();
        LeafImage {
            addr: addr.plus(8 * lead as u64),
            words: image.words()[lead..].to_vec(),
            back: self.shape.mode.moves_children().then(|| image.words()[0]),
        }
    }
}
