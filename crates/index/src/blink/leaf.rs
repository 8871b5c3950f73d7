//! Leaves of either kind: the kit's nodes, or guarded leaves whose slots change one by one.

use farleaf_fabric::{Buf, GlobalAddr, OpError, Ops};
use farleaf_pool::Session;

use super::read::ACCEPT_TORN;
use super::{BlinkTree, DEAD};
use crate::bnode::{
    ChangeError, Cover, GuardedLayout, GuardedLeaf, GuardedLeafMut, Head, Kind, LeafEntry, Node,
    NodeMut, SlotState, Stamp, Value, kind_of, note_moves, version_of,
};
use crate::join::join_all;
use crate::{IndexError, Seek};

farleaf_fabric::canaries! {
    pub SCAN_UNCOUNTED = "scan-uncounted", "a READ of a leaf does not look whether pairs hopped meanwhile";
}

/// An image of a node of either kind, to read.
#[derive(Clone, Copy)]
pub(super) enum NodeView<'a> {
    /// An inner node, or a leaf with one checksum.
    Node(Node<'a, u64>),
    /// A leaf with a check for each slot.
    Guarded(GuardedLeaf<'a>),
}

impl NodeView<'_> {
    pub(super) fn covers(&self, key: &[u8]) -> Cover {
        match self {
            NodeView::Node(node) => node.covers(key),
            NodeView::Guarded(leaf) => leaf.covers(key),
        }
    }

    pub(super) fn covers_place(&self, seek: Seek<'_>) -> Cover {
        match self {
            NodeView::Node(node) => node.covers_place(seek),
            NodeView::Guarded(leaf) => leaf.covers_place(seek),
        }
    }

    pub(super) fn right(&self) -> u64 {
        match self {
            NodeView::Node(node) => node.right(),
            NodeView::Guarded(leaf) => leaf.right(),
        }
    }

    /// The low fence; `None` if the node is open below.
    pub(super) fn low(&self) -> Option<Vec<u8>> {
        match self {
            NodeView::Node(node) => {
                let mut low = Vec::new();
                node.low_fence(&mut low).then_some(low)
            }
            NodeView::Guarded(leaf) => leaf.low_fence(),
        }
    }

    /// The high fence; `None` if the node is open above.
    pub(super) fn high(&self) -> Option<Vec<u8>> {
        match self {
            NodeView::Node(node) => {
                let mut high = Vec::new();
                node.high_fence(&mut high).then_some(high)
            }
            NodeView::Guarded(leaf) => leaf.high_fence(),
        }
    }

    /// Entries of a leaf, separators of an inner node.
    pub(super) fn count(&self) -> usize {
        match self {
            NodeView::Node(node) => node.count(),
            NodeView::Guarded(leaf) => leaf.count(),
        }
    }

    /// Returns whether the left neighbour takes in the right one and is then full to `percent` at most.
    pub(super) fn can_merge(&self, right: &NodeView<'_>, percent: usize) -> bool {
        match (self, right) {
            (NodeView::Node(left), NodeView::Node(right)) => left.can_merge(right, percent),
            (NodeView::Guarded(left), NodeView::Guarded(right)) => {
                let are_neighbours = left.high_fence().is_some()
                    && left.high_fence() == right.low_fence()
                    && left.right() == right.self_addr();
                are_neighbours
                    && left.count() + right.count() <= left.slots() * percent.min(100) / 100
                    && left.takes_in(right)
            }
            _ => false,
        }
    }
}

farleaf_fabric::canaries! {
    pub BELIEVE_OLD_POINTER = "believe-old-pointer",
        "a remembered pointer counts whatever node has come to lie where it leads";
}

impl BlinkTree {
    /// Returns whether nodes of `level` are guarded leaves.
    #[inline]
    pub(super) fn is_guarded(&self, level: u8) -> bool {
        level == 0 && self.guarded.is_some()
    }

    /// Bytes of a node of `level`.
    #[inline]
    pub(super) fn bytes_at(&self, level: u8) -> usize {
        match &self.guarded {
            Some(leaf) if level == 0 => leaf.leaf_bytes(),
            _ => self.layout.node_bytes(),
        }
    }

    /// Views an image of a node of `level`.
    pub(super) fn view<'a>(&'a self, level: u8, words: &'a [u64]) -> NodeView<'a> {
        match &self.guarded {
            Some(layout) if level == 0 => NodeView::Guarded(GuardedLeaf::new(layout, words)),
            _ => NodeView::Node(Node::new(&self.layout, words)),
        }
    }

    /// Tells whether the image is one that was published at `addr`, alive, on that level. The slots of a guarded leaf
    /// have checks of their own.
    #[inline]
    pub fn is_current(&self, image: &Buf, addr: GlobalAddr, level: u8) -> bool {
        if let NodeView::Guarded(leaf) = self.view(level, image.words()) {
            return leaf.kind_at(addr.word()) == Kind::Leaf;
        }
        let node = Node::new(&self.layout, image.words());
        let kind = if level == 0 { Kind::Leaf } else { Kind::Inner };
        (node.sum_ok() || ACCEPT_TORN.is_armed())
            && node.self_addr() == addr.word()
            && node.level() == level
            && node.kind() == kind
    }

    /// Returns whether a slot of a guarded leaf is between two writes, or pairs hopped during the READ. Other nodes have no
    /// checks of their slots.
    pub(super) fn has_torn_slots(&self, level: u8, words: &[u64]) -> bool {
        match self.view(level, words) {
            NodeView::Node(_) => false,
            NodeView::Guarded(leaf) => {
                (0..leaf.slots()).any(|index| leaf.slot(index) == SlotState::Torn)
                    || leaf.has_moved()
                    || leaf.has_two_values()
            }
        }
    }

    /// Returns whether nodes of `level` are leaves whose pairs hop: a READ of one is between two READs of its count.
    #[inline]
    pub(super) fn is_hopscotch(&self, level: u8) -> bool {
        level == 0 && self.guarded.as_ref().is_some_and(GuardedLayout::is_hopscotch)
    }

    /// Adds the READ of a whole node to a chain, 3 READs if its pairs hop; [`BlinkTree::take_whole`] takes it out.
    pub(super) fn read_whole(&self, session: &Session, ops: &mut Ops, addr: GlobalAddr, level: u8) {
        let client = session.client();
        let hops = self.is_hopscotch(level);
        if hops {
            ops.read(addr, client.buf(8));
        }
        ops.read(addr, client.buf(self.bytes_at(level)));
        if hops {
            ops.read(addr, client.buf(8));
        }
    }

    /// The image that [`BlinkTree::read_whole`] has READ, from `at` in a chain that has come back; it says whether pairs
    /// hopped meanwhile.
    pub(super) fn take_whole(&self, ops: &mut Ops, at: usize, level: u8) -> Buf {
        if !self.is_hopscotch(level) {
            return ops.take_buf(at);
        }
        let [before, after] = [at, at + 2].map(|at| ops.buf(at).words()[0]);
        let mut image = ops.take_buf(at + 1);
        let after = if SCAN_UNCOUNTED.is_armed() { before } else { after };
        note_moves(image.words_mut(), before, after);
        image
    }

    /// READs a whole node. 1 READ; 3 in one chain for a leaf whose pairs hop.
    pub(super) async fn read_image(
        &self,
        session: &Session,
        addr: GlobalAddr,
        level: u8,
    ) -> Result<Buf, OpError> {
        let reliable = session.reliable();
        if !self.is_hopscotch(level) {
            return reliable.read(addr, reliable.buf(self.bytes_at(level))).await;
        }
        let (mut ops, _) = reliable.chain(|ops| self.read_whole(session, ops, addr, level)).await?;
        Ok(self.take_whole(&mut ops, 0, level))
    }

    /// READs whole nodes, together. 1 round trip.
    pub(super) async fn read_images(
        &self,
        session: &Session,
        places: &[GlobalAddr],
        level: u8,
    ) -> Result<Vec<Buf>, OpError> {
        if self.is_hopscotch(level) {
            let images = places.iter().map(|&addr| self.read_image(session, addr, level));
            return join_all(images).await.into_iter().collect();
        }
        let client = session.client();
        let mut ops = client.ops();
        for &addr in places {
            ops.read(addr, client.buf(self.bytes_at(level)));
        }
        let mut ops = session.reliable().post_many(ops).await?;
        Ok((0..places.len()).map(|at| ops.take_buf(at)).collect())
    }

    /// The address of the lock word of the node at `addr`.
    #[inline]
    pub(super) fn lock_word_of(&self, addr: GlobalAddr) -> GlobalAddr {
        match &self.remembered {
            None => addr,
            Some(remembered) => remembered.locks.word(addr),
        }
    }

    /// The value that a node's death leaves in its lock word.
    pub(super) fn dead_word(&self) -> u64 {
        if self.remembered.is_some() { 0 } else { DEAD }
    }

    /// The version of a node that is made now: its birth, where compute servers remember pointers.
    pub(super) fn first_version(&self, session: &Session) -> u64 {
        match self.remembered {
            None => 1,
            Some(_) => Stamp::at_birth(session.epoch()).word(),
        }
    }

    /// The image of a node of `level` once it is dead.
    pub(super) fn dead_image(&self, session: &Session, level: u8, alive: &Buf) -> Buf {
        let mut dead = session.client().buf(self.bytes_at(level));
        dead.words_mut().copy_from_slice(alive.words());
        self.kill(level, dead.words_mut());
        dead
    }

    /// Marks an image as dead.
    pub(super) fn kill(&self, level: u8, words: &mut [u64]) {
        match &self.guarded {
            Some(layout) if level == 0 => GuardedLeafMut::new(layout, words).set_dead(),
            _ => {
                let version = Node::new(&self.layout, words).version().wrapping_add(1);
                let mut node = NodeMut::new(&self.layout, words);
                node.mark_dead();
                node.seal(version);
            }
        }
    }

    /// Tells whether a node has become so empty that a neighbour could take it in.
    pub(super) fn is_sparse_at(&self, level: u8, words: &[u64]) -> bool {
        match self.view(level, words) {
            NodeView::Node(node) => self.is_sparse(&node),
            NodeView::Guarded(leaf) => {
                (leaf.count() as f64) < leaf.slots() as f64 * self.options.merge_low
            }
        }
    }

    /// Gives the image of a left node the content of its right neighbour's; not sealed, if that is to be done.
    ///
    /// # Errors
    /// `Corrupt` if they are no neighbours that fit into one.
    pub(super) fn take_in(
        &self,
        (addr, level): (GlobalAddr, u8),
        left: &mut [u64],
        right: &[u64],
    ) -> Result<(), IndexError> {
        let taken = match &self.guarded {
            Some(layout) if level == 0 => {
                let mut merged = vec![0; layout.leaf_words()];
                let right = GuardedLeaf::new(layout, right);
                let taken = GuardedLeaf::new(layout, left).merge(&right, &mut merged);
                left[1..].copy_from_slice(&merged[1..]);
                taken
            }
            _ => NodeMut::new(&self.layout, left).merge_right(&Node::new(&self.layout, right)),
        };
        taken.map_err(|error| self.damaged(addr, error))
    }

    /// Encodes a leaf of entries in the order of their keys.
    ///
    /// # Errors
    /// As [`crate::bnode::Layout::encode_leaf`].
    pub(super) fn encode_leaf(
        &self,
        words: &mut [u64],
        head: &Head<'_>,
        entries: &[LeafEntry<'_>],
    ) -> Result<(), ChangeError> {
        let Some(layout) = &self.guarded else {
            return self.layout.encode_leaf(words, head, entries);
        };
        let pairs = entries.iter().map(|entry| match entry.value {
            Value::Inline(value) => Ok((entry.key, value)),
            Value::Record(_) => Err(ChangeError::WrongKind),
        });
        let pairs: Vec<_> = pairs.collect::<Result<_, _>>()?;
        layout.encode(words, head, &pairs)
    }

    /// Returns whether a pointer that was read at `view` leads to the node of that image; any does that was read by this
    /// operation.
    pub(super) fn is_born_by(&self, words: &[u64], view: Option<u64>) -> bool {
        let is_born = |view| Stamp::of_word(version_of(words)).is_born_by(view);
        BELIEVE_OLD_POINTER.is_armed() || view.is_none_or(is_born)
    }

    /// Returns whether the header of an image says that it is a node, whole or not.
    pub(super) fn looks_like_node(words: &[u64]) -> bool {
        kind_of(words) != Kind::Invalid
    }
}
