//! Insert: links a new leaf by one CAS of a slot, in a node with room or by a new node.

use std::sync::Arc;

use farleaf_fabric::{Buf, GlobalAddr};
use farleaf_index::IndexError;
use farleaf_index::local::QueuePlace;
use farleaf_pool::{Placement, Session, Tries, Unlinked};

use super::descent::{NodeRead, Path, PathEnd, ReadNode};
use super::layout::{Edge, LeafClass, NodeType, Slot, fill_node, slot_addr};
use super::leaf::{Leaf, class_for, fill_leaf};
use super::locked::{LeafContent, LeafImage, lock_addr};
use super::mode::Moved;
use super::outcome::Linking;
use super::tree::{Fail, Tree, count};

/// Objects that are written in one round trip: a long chain in one would hardly ever come through where completions
/// are lost.
const WRITES_MAX: usize = 16;

/// A leaf that nothing leads to yet. Dropped, it is freed.
#[derive(Debug)]
pub(super) struct NewLeaf {
    object: Unlinked,
    class: LeafClass,
    token: u64,
    words: Vec<u64>,
    content: LeafContent,
    /// Its words are in the pool.
    pub(super) is_written: bool,
}

/// A node that nothing leads to yet. Dropped, it is freed.
struct NewNode {
    object: Unlinked,
    of: NodeType,
    words: Vec<u64>,
}

/// The place of a slot, and what is to stand there.
struct Place {
    held: ReadNode,
    index: usize,
    expected: Slot,
    /// The child that comes under a new node, if objects point back.
    moved: Option<Moved>,
}

impl NewNode {
    fn slot_addr(&self, index: usize) -> GlobalAddr {
        slot_addr(self.object.addr(), index)
    }

    /// Caches it as a READ at the moment `read` would have brought it.
    fn remember(&self, tree: &Tree, read: NodeRead, key: &[u8]) {
        tree.remember_words(self.object.addr(), &self.words[..self.of.bytes() / 8], read, key);
    }
}

impl NewLeaf {
    pub(super) fn addr(&self) -> GlobalAddr {
        self.object.addr()
    }

    pub(super) fn slot(&self, edge: Edge) -> Slot {
        Slot::leaf(edge, self.addr(), self.class)
    }

    /// The object and its content, if that is still to be written.
    pub(super) fn unwritten(&self, session: &Session) -> Option<(&Unlinked, Buf)> {
        (!self.is_written).then(|| (&self.object, copy(session, &self.words)))
    }

    /// Lets it name the slot at `at`, if objects point back; it may have to be written again.
    pub(super) fn aim(&mut self, tree: &Tree, at: GlobalAddr) {
        let addr = self.addr();
        if tree.shape.aim(&mut self.words, addr, at) {
            self.is_written = false;
        }
    }

    /// Writes its first word again, if it is to name another slot than it did. Nothing leads to it.
    async fn write_back(&mut self, session: &Session) -> Result<(), IndexError> {
        if !self.is_written {
            session.reliable().write(self.addr(), copy(session, &self.words[..1])).await?;
            self.is_written = true;
        }
        Ok(())
    }

    /// Gives up the leaf, but not what it was to hold.
    pub(super) fn into_content(self) -> LeafContent {
        self.content
    }

    pub(super) fn keep(&self) {
        self.object.keep();
        self.content.keep();
    }

    pub(super) fn unkeep(&self) {
        self.object.unkeep();
        self.content.unkeep();
    }

    pub(super) fn linking<'a>(&self, key: &'a [u8]) -> Linking<'a> {
        let (addr, token) = (self.addr(), self.token);
        Linking { key, addr, lock_addr: lock_addr(addr, self.class.bytes()), token }
    }
}

/// A buffer of these words.
pub(super) fn copy(session: &Session, words: &[u64]) -> Buf {
    let mut buf = session.client().buf(words.len() * 8);
    buf.words_mut().copy_from_slice(words);
    buf
}

impl Tree {
    /// Makes a leaf, placed `on`, in this compute server's memory. No remote operation.
    ///
    /// # Errors
    /// `Full`.
    pub(super) async fn new_leaf(
        &self,
        session: &Session,
        on: Placement,
        key: &[u8],
        content: LeafContent,
    ) -> Result<NewLeaf, IndexError> {
        let class = class_for(self.shape.mode.lead(), key.len(), content.as_new().bytes());
        let class = class.ok_or_else(|| {
            IndexError::Invalid(format!("a key of {} bytes is too long for a leaf", key.len()))
        })?;
        let object = session.alloc_unlinked(on, class.bytes()).await?;
        let (token, mut words) = (session.lock_token(), vec![0; class.bytes() / 8]);
        // After the address was handed out.
        let birth = session.epoch();
        let (pair, lead) = ((key, content.as_new()), self.shape.mode.lead());
        let head = object.addr().plus(8 * lead as u64);
        fill_leaf(self.shape.table, head, &mut words[lead..], birth, pair, token);
        Ok(NewLeaf { object, class, token, words, content, is_written: false })
    }

    async fn new_node(
        &self,
        session: &Session,
        of: NodeType,
        (depth, bytes): (usize, &[u8]),
        slots: &[Slot],
        parent: GlobalAddr,
    ) -> Result<NewNode, IndexError> {
        let object = session.alloc_unlinked(session.place(), of.object_bytes()).await?;
        let (birth, mut words) = (session.epoch(), vec![0; of.object_bytes() / 8]);
        let first_word = self.shape.first_word(object.addr(), birth, parent);
        fill_node(&self.shape, &mut words, first_word, of, (depth, bytes), slots.iter().copied());
        Ok(NewNode { object, of, words })
    }

    /// Links `new` where the way to `key` ends. If that has changed, or there is no room, gives it back with the
    /// way. The operation's `turn` ends once `new` is linked.
    pub(super) async fn insert(
        self: &Arc<Self>,
        session: &Session,
        key: &[u8],
        mut path: Path,
        other: Option<LeafImage>,
        new: NewLeaf,
        turn: &mut Option<QueuePlace>,
    ) -> Result<Result<(), (NewLeaf, Path)>, Fail> {
        let at = path.last().node(self).dispatch();
        let edge = Edge::of(key, at).ok_or(Fail::Again)?;
        let slot_at = |index| path.last().slot_addr(index);
        // The word that leads to the new leaf, and the nodes in between.
        let (slot, index, expected, nodes) = match &path.landing {
            PathEnd::None => {
                let node = path.last().node(self);
                let behind =
                    (node.capacity() < self.shape.mode.room(node)).then_some(node.capacity());
                let Some(index) = node.first_empty().or(behind) else {
                    return Ok(Err((new, path)));
                };
                let expected = if index < node.capacity() { node.slot(index) } else { Slot(0) };
                (new.slot(edge), index, expected, Vec::new())
            }
            PathEnd::Tomb { index, slot } => (new.slot(edge), *index, *slot, Vec::new()),
            PathEnd::Leaf { index, slot } => {
                let Some(other) = &other else { return Err(Fail::Again) };
                let old = (*slot, other, slot_at(*index));
                let nodes = self.split_leaf(session, key, at + 1, old, &new).await?;
                (node_slot(edge, &nodes[0]), *index, *slot, nodes)
            }
            PathEnd::Differs { index, slot, child, at } => {
                let old = (*slot, child, *at, slot_at(*index));
                let node = self.split_edge(session, key, old, &new).await?;
                (node_slot(edge, &node), *index, *slot, vec![node])
            }
        };
        if expected.is_frozen() {
            return Ok(Err((new, path)));
        }
        let is_split = !nodes.is_empty();
        let moved = nodes.last().and_then(|bottom| {
            let slots = (slot_at(index), bottom.slot_addr(0));
            self.shape.mode.moved(&path.landing, other.as_ref(), slots)
        });
        let locks = self.ladder.slot_locks(&path.nodes);
        let Some(held) = path.nodes.pop() else { return Err(Fail::Again) };
        let (tree, own_key, own_turn) = (Arc::clone(self), key.to_vec(), turn.take());
        let linked = self.finish(session, async move |session| {
            let place = Place { held, index, expected, moved };
            let link = async |_| {
                let linked = tree.link_new(&session, &own_key, place, slot, nodes, new).await?;
                let kept = own_turn.filter(|_| linked.0.is_err());
                Ok((linked, kept))
            };
            tree.ladder.under((&session, &tree.counts), locks, link).await
        });
        let ((result, held), kept) = linked.await?;
        *turn = kept;
        path.nodes.push(held);
        if let (Ok(()), Some(moved), PathEnd::Differs { child, .. }) =
            (&result, moved, &mut path.landing)
        {
            self.shape.mode.remember_moved(self, child, moved, key);
        }
        if result.is_ok() && is_split {
            count(&self.counts.splits);
        }
        Ok(result.map_err(|new| (new, path)))
    }

    /// Writes what is new, then links it.
    async fn link_new(
        &self,
        session: &Session,
        key: &[u8],
        mut place: Place,
        slot: Slot,
        nodes: Vec<NewNode>,
        mut new: NewLeaf,
    ) -> Result<(Result<(), NewLeaf>, ReadNode), IndexError> {
        new.aim(
            self,
            match nodes.last() {
                Some(bottom) => bottom.slot_addr(1),
                None => place.held.slot_addr(place.index),
            },
        );
        let (at, words) = (place.held.slot_addr(place.index), (place.expected, slot));
        let alone = self.changing_alone(&place.held, key, place.index, words);
        let is_near = alone.is_some() && nodes.is_empty() && at.server() == new.addr().server();
        self.write_new(session, &nodes, Some(&mut new).filter(|_| !is_near)).await?;
        new.keep();
        nodes.iter().for_each(|node| node.object.keep());
        // While nobody knows them.
        let read_at = |node: &NewNode| self.read_now(session, node.object.addr());
        let reads: Vec<NodeRead> = nodes.iter().map(read_at).collect();
        let remember_new =
            || nodes.iter().zip(&reads).for_each(|(node, read)| node.remember(self, *read, key));
        if let Some(changing) = alone {
            debug_assert!(
                self.cache.is_alone(place.held.addr),
                "INV-SMART-12: others change the node"
            );
            self.write_slot(session, at, slot, &mut new).await?;
            // The entry learns of the slot.
            changing.stored(session, place.index, words);
            remember_new();
            return Ok((Ok(()), place.held));
        }
        debug_assert!(
            !place.held.is_cached || self.shape.mode.keeps_nodes() || self.has_exact_entries(),
            "INV-SMART-7: a CAS goes by an unproven node"
        );
        debug_assert!(
            place.expected.0 != 0 || place.held.node(self).find(slot.edge()).is_none(),
            "INV-SMART-1: a second slot for {:?}",
            slot.edge()
        );
        let changing = self.changing(place.held.addr).await;
        loop {
            let at = place.held.slot_addr(place.index);
            let words = (place.expected, slot);
            let counted = place.held.node(self).capacity();
            let Err(found) = self.link(session, at, words, new.linking(key)).await? else {
                let filled = (&mut place.held, place.index);
                self.shape.mode.linked(self, session, filled, place.moved).await?;
                if place.index < place.held.node(self).capacity() {
                    self.remember_slot(&mut place.held, place.index, slot, key);
                }
                changing.stored(session, place.index, words);
                remember_new();
                return Ok((Ok(()), place.held));
            };
            // Another edge took the slot: the next one, if it was to be an unused one.
            if let Some(next) = self.next_slot(&place, slot, found) {
                place.index = next;
                new.aim(self, place.held.slot_addr(next));
                new.write_back(session).await?;
                continue;
            }
            if place.index >= counted && !found.is_empty() {
                // The edge's slot is there, and whoever filled it may be dead.
                let taken = (&mut place.held, place.index);
                self.shape.mode.taken(self, session, taken).await?;
            }
            changing.lost();
            new.unkeep();
            nodes.iter().for_each(|node| node.object.unkeep());
            return Ok((Err(new), place.held));
        }
    }

    /// Writes new nodes, and `new` behind them unless it is written.
    ///
    /// Cost: 1 WRITE for each, 16 in a round trip.
    async fn write_new(
        &self,
        session: &Session,
        nodes: &[NewNode],
        mut new: Option<&mut NewLeaf>,
    ) -> Result<(), IndexError> {
        let mut batches: Vec<&[NewNode]> = nodes.chunks(WRITES_MAX - 1).collect();
        if batches.is_empty() {
            batches.push(&[]);
        }
        let last = batches.len() - 1;
        for (number, batch) in batches.into_iter().enumerate() {
            let mut ops = session.client().ops();
            for node in batch {
                node.object.write_in(&mut ops, copy(session, &node.words));
            }
            let leaf = new.as_deref_mut().filter(|_| number == last);
            let content = leaf.as_ref().and_then(|leaf| leaf.unwritten(session));
            let has_leaf = content.is_some();
            if let Some((object, content)) = content {
                object.write_in(&mut ops, content);
            }
            if ops.is_empty() {
                continue;
            }
            session.reliable().post_many(ops).await?;
            batch.iter().for_each(|node| node.object.written());
            if let Some(leaf) = leaf.filter(|_| has_leaf) {
                leaf.object.written();
                leaf.is_written = true;
            }
        }
        Ok(())
    }

    /// The next slot for `slot` after its CAS has `found` another edge's word in an unused one; `None` if there is none.
    fn next_slot(&self, place: &Place, slot: Slot, found: Slot) -> Option<usize> {
        let (next, node) = (place.index + 1, place.held.node(self));
        let is_other = place.expected.0 == 0
            && !found.is_empty()
            && !found.is_frozen()
            && found.edge() != slot.edge();
        let is_unused = next >= node.capacity() || node.slot(next).0 == 0;
        (is_other && next < self.shape.mode.room(node) && is_unused).then_some(next)
    }

    /// Stores `slot`, which leads to `new` or to what is above it, in a node that this change has alone; `new` in
    /// front of it, in the same chain, unless it is written (`INV-SMART-12`).
    async fn write_slot(
        &self,
        session: &Session,
        at: GlobalAddr,
        slot: Slot,
        new: &mut NewLeaf,
    ) -> Result<(), IndexError> {
        let mut tries = Tries::default();
        loop {
            let mut ops = session.client().ops();
            if let Some((object, content)) = new.unwritten(session) {
                object.write_in(&mut ops, content);
            }
            let mut word = session.client().buf(8);
            word.words_mut()[0] = slot.0;
            ops.write(at, word);
            let mark = session.reliable().post_mark();
            let done = match ops.len() {
                1 => session.client().post_many(ops).await,
                _ => session.client().chain(ops).await,
            };
            if let Err(error) = done {
                session.reliable().again(&mut tries, mark, error).await?;
                if session.reliable().word(at).await? != slot.0 {
                    continue;
                }
            }
            new.object.written();
            new.is_written = true;
            return Ok(());
        }
    }

    /// New nodes between a slot and its leaf, so that the leaf of `key` stands beside it: a chain of nodes with one
    /// child for long common bytes, then one with both. The first is the top.
    async fn split_leaf(
        &self,
        session: &Session,
        key: &[u8],
        from: usize,
        (slot, other, parent): (Slot, &LeafImage, GlobalAddr),
        new: &NewLeaf,
    ) -> Result<Vec<NewNode>, Fail> {
        let other = Leaf::new(self.shape.table, other.addr, &other.words);
        let common = common_bytes(key, other.key());
        let edges = (Edge::of(key, common), Edge::of(other.key(), common));
        let (true, (Some(edge), Some(old))) = (common >= from, edges) else {
            return Err(self
                .corrupt(slot.addr(), "INV-SMART-2: the leaf's key leads elsewhere")
                .into());
        };
        let bytes_max = self.shape.bytes_max();
        // Starts of the chain's nodes, each of which covers its bytes and the one that it dispatches on.
        let links = (common - from) / (bytes_max + 1);
        let last_from = from + links * (bytes_max + 1);
        let slots = [slot.under(old), new.slot(edge)];
        let bottom = (last_from, &key[last_from..common]);
        let of = self.first_type();
        let mut nodes = vec![self.new_node(session, of, bottom, &slots, parent).await?];
        for link in (0..links).rev() {
            let start = from + link * (bytes_max + 1);
            let end = start + bytes_max;
            let child = node_slot(Edge::byte(key[end]), &nodes[nodes.len() - 1]);
            let place = (start, &key[start..end]);
            let node = self.new_node(session, of, place, &[child], parent).await?;
            if let Some(below) = nodes.last_mut() {
                let addr = below.object.addr();
                self.shape.aim(&mut below.words, addr, node.slot_addr(0));
            }
            nodes.push(node);
        }
        nodes.reverse();
        Ok(nodes)
    }

    /// A new node between a slot and its node, whose compressed bytes `key` leaves at position `at`.
    async fn split_edge(
        &self,
        session: &Session,
        key: &[u8],
        (slot, child, at, parent): (Slot, &ReadNode, usize, GlobalAddr),
        new: &NewLeaf,
    ) -> Result<NewNode, Fail> {
        let (from, byte) = (child.matched, child.node(self).byte_at(at));
        let (Some(edge), Some(byte)) = (Edge::of(key, at), byte) else {
            return Err(self
                .corrupt(child.addr, "INV-SMART-2: its bytes do not lead to it")
                .into());
        };
        let slots = [slot.under(Edge::byte(byte)), new.slot(edge)];
        let place = (from, &key[from..at]);
        Ok(self.new_node(session, self.first_type(), place, &slots, parent).await?)
    }
}

/// The slot that leads to a new node.
fn node_slot(edge: Edge, node: &NewNode) -> Slot {
    Slot::node(edge, node.object.addr(), node.of)
}

/// Bytes that two keys have in common at their beginning.
pub(super) fn common_bytes(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
