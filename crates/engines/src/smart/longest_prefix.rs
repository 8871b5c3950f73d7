//! Longest prefix: the deepest key on the way to a key.
//!
//! All keys that a key begins with end on its way: each in the slot for the end of a key in a node of the way, or in
//! the leaf that the way ends in. So one descent finds the longest, without a scan.
//!
//! A prefix that is present may be missing from a cached node, so each node of the way is READ. The cached part of the
//! way is READ at once, with the leaves that its slots name: then the operation takes the round trips of a get. A
//! cached node counts if it has its first word still, and if the fresh slot of the node above leads to it. So no node
//! stood between the two when the upper one was READ, and a key that was present throughout was in one of them.

use std::collections::VecDeque;
use std::sync::Arc;

use farleaf_fabric::{Buf, GlobalAddr};
use farleaf_index::retry::Attempts;
use farleaf_index::{Entries, IndexError};
use farleaf_pool::Session;

use super::descent::{CachedStart, PathEnd, ReadNode};
use super::entry::Entry;
use super::layout::{Edge, Slot};
use super::tree::{Fail, Tree};

/// Leaves that are READ at once.
const WINDOW: usize = 8;

/// A slot of a node that was READ, and its address.
type ReadSlot = (GlobalAddr, Slot);

/// The nodes and leaves that one READ of the cached part of a way has brought.
#[derive(Default)]
struct WayRead {
    /// The nodes from the root on that are live, each led to by the one before.
    nodes: Vec<ReadNode>,
    /// Leaves that a cached slot led to, and that are proven.
    leaves: Vec<(Slot, Buf)>,
}

impl Tree {
    /// Appends the pair with the longest key that `key` begins with to `out`, if there is one.
    ///
    /// Cost: the round trips of a get. It READs each node of the way, and the leaves in which a prefix may end; more
    /// round trips if removed keys are left in so many of them that a window of 8 has none that is present.
    pub(crate) async fn longest_prefix(
        self: &Arc<Self>,
        session: &Session,
        key: &[u8],
        out: &mut Entries,
    ) -> Result<(), IndexError> {
        let mut attempts = Attempts::default();
        loop {
            match self.try_longest_prefix(session, key, out).await {
                Err(Fail::Again) => attempts.again(session).await?,
                Err(Fail::Error(error)) => return Err(error),
                Ok(()) => return Ok(()),
            }
        }
    }

    async fn try_longest_prefix(
        self: &Arc<Self>,
        session: &Session,
        key: &[u8],
        out: &mut Entries,
    ) -> Result<(), Fail> {
        let mut seen = self.read_cached_way(session, key).await?;
        let start = match seen.nodes.pop() {
            Some(held) => held,
            None => self.root_node(session).await?,
        };
        let path = self.descend(session, start, key).await?;
        let landing = match path.landing {
            PathEnd::Leaf { index, slot } => Some((path.last().slot_addr(index), slot)),
            PathEnd::None | PathEnd::Tomb { .. } | PathEnd::Differs { .. } => None,
        };
        let mut nodes = seen.nodes;
        nodes.extend(path.nodes);
        let mut places: VecDeque<ReadSlot> = landing.into_iter().collect();
        for held in nodes.iter_mut().rev() {
            let mut found = held.node(self).find(Edge::END);
            if found.is_none() && held.node(self).is_short() {
                self.shape.mode.read_whole(self, session, held, key).await?;
                found = held.node(self).find(Edge::END);
            }
            let Some((index, slot)) = found.filter(|(_, slot)| slot.has_child()) else { continue };
            let place = (held.slot_addr(index), slot);
            if slot.is_leaf() && Some(place) != landing {
                places.push_back(place);
            }
        }
        while !places.is_empty() {
            let window: Vec<ReadSlot> = places.drain(..places.len().min(WINDOW)).collect();
            let images = self.read_leaves(session, &window, &mut seen.leaves).await?;
            for ((_, slot), image) in window.into_iter().zip(images) {
                let leaf = self.leaf(slot.addr(), &image);
                let mut value = Vec::new();
                if key.starts_with(leaf.key())
                    && self.value_of(session, leaf.content(), &mut value).await?
                {
                    out.push(leaf.key(), &value);
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// READs the cached nodes on the way to `key`, and the leaves in which they say that prefixes of it end: 1 round
    /// trip, none if nothing is cached.
    async fn read_cached_way(&self, session: &Session, key: &[u8]) -> Result<WayRead, Fail> {
        let way = self.cached_way(key);
        if way.is_empty() {
            return Ok(WayRead::default());
        }
        let (mut ops, reliable) = (session.client().ops(), session.reliable());
        let c = session.epoch();
        let (mut reads, mut leaf_reads) = (Vec::new(), Vec::new());
        for (level, entry) in way.iter().enumerate() {
            let Some(of) = entry.node_type(&self.shape) else { break };
            let number = ops.read(entry.addr(), reliable.buf(of.bytes()));
            reads.push((number, entry, self.stamp(entry.addr())));
            let next = Edge::of(key, entry.head(&self.shape).dispatch());
            let is_last = level + 1 == way.len();
            let edges = [
                next.filter(|_| is_last),
                Some(Edge::END).filter(|_| next != Some(Edge::END) || !is_last),
            ];
            for (index, slot) in edges.into_iter().flatten().filter_map(|edge| entry.find(edge)) {
                if slot.has_child() && slot.is_leaf() && leaf_reads.len() < WINDOW {
                    let guess = self.guess_in(entry.clone(), Some(slot), Some(index));
                    let number = ops.read(slot.addr(), reliable.buf(slot.leaf_class().bytes()));
                    leaf_reads.push((number, slot, guess));
                }
            }
        }
        let mut ops = reliable.post_many(ops).await?;
        let mut seen = WayRead::default();
        let is_proven = |(number, slot, guess): (usize, Slot, CachedStart)| {
            let image = ops.take_buf(number);
            self.is_proven(&guess, slot, &image).then_some((slot.thawed(), image))
        };
        seen.leaves = leaf_reads.into_iter().filter_map(is_proven).collect();
        for (number, entry, stamp) in reads {
            let (addr, image) = (entry.addr(), ops.take_buf(number));
            let held = ReadNode { addr, image, matched: 0, up: None, c, stamp, is_cached: false };
            if held.node(self).first_word() != entry.first_word() {
                self.cache.forget(entry);
                break;
            }
            let is_linked = seen.nodes.last().is_none_or(|above| self.leads_to(above, key, addr));
            if !is_linked {
                break;
            }
            self.remember(&held, key);
            seen.nodes.push(held);
        }
        Ok(seen)
    }

    /// The cached nodes on the way to `key`, from the root on. No remote operation.
    fn cached_way(&self, key: &[u8]) -> Vec<Entry> {
        let mut way = Vec::new();
        // By prefix alone, the nodes between a cached one and the root are not known.
        let root = self.known_root().filter(|_| !self.ladder.starts_by_hash());
        let mut next = root.and_then(|(addr, first_word)| {
            self.cache
                .get(addr)
                .map(|(entry, _)| entry)
                .filter(|entry| entry.first_word() == first_word)
        });
        while let Some(entry) = next {
            let at = entry.head(&self.shape).dispatch();
            let found = Edge::of(key, at).and_then(|edge| entry.find(edge));
            let node = found.filter(|(_, slot)| slot.has_child() && !slot.is_leaf());
            next = node.and_then(|(_, slot)| self.cache.get(slot.addr())).map(|(child, _)| child);
            next = next.filter(|child| {
                child.head(&self.shape).dispatch() > at && child.is_on_way(&self.shape, key)
            });
            way.push(entry);
        }
        way
    }

    /// Returns whether the slot of a node for the next byte of `key` leads to the node at `addr`.
    fn leads_to(&self, above: &ReadNode, key: &[u8], addr: GlobalAddr) -> bool {
        let node = above.node(self);
        let found = Edge::of(key, node.dispatch()).and_then(|edge| node.find(edge));
        found.is_some_and(|(_, slot)| slot.has_child() && !slot.is_leaf() && slot.addr() == addr)
    }

    /// READs the leaves that fresh slots lead to, in 1 round trip, but those of `proven`.
    async fn read_leaves(
        self: &Arc<Self>,
        session: &Session,
        places: &[ReadSlot],
        proven: &mut Vec<(Slot, Buf)>,
    ) -> Result<Vec<Buf>, Fail> {
        let (mut ops, reliable) = (session.client().ops(), session.reliable());
        let mut images = Vec::with_capacity(places.len());
        for (_, slot) in places {
            let seen = proven.iter().position(|(leaf, _)| *leaf == slot.thawed());
            images.push(match seen {
                Some(at) => Ok(proven.swap_remove(at).1),
                None => Err(ops.read(slot.addr(), reliable.buf(slot.leaf_class().bytes()))),
            });
        }
        if ops.is_empty() {
            return Ok(images.into_iter().flatten().collect());
        }
        let mut ops = reliable.post_many(ops).await?;
        let mut whole = Vec::with_capacity(places.len());
        for (place, image) in places.iter().zip(images) {
            let image = match image {
                Ok(image) => image,
                Err(number) => {
                    let (image, addr) = (ops.take_buf(number), place.1.addr());
                    self.shape.mode.met_leaf(self, session, *place, image.words()[0]);
                    self.settle_leaf(session, addr, image).await?
                }
            };
            whole.push(image);
        }
        Ok(whole)
    }
}
