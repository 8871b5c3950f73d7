//! Relocation: replaces a node by one of another size, and a leaf by one of another class.
//!
//! A node is marked dead, then each of its words is frozen; a frozen word never changes again. A copy without the
//! slots that have no child is linked in its place by one CAS. Any client does this, any number at once: one copy is
//! linked, the others are freed. An insert that meets a frozen word does it as well, so none waits for another. In
//! place of a node with few children a child may be linked, or nothing (`shrink.rs`).

use std::sync::Arc;

use farleaf_fabric::{Buf, GlobalAddr};
use farleaf_index::IndexError;
use farleaf_index::retry::queue_for;
use farleaf_pool::{Retiring, Session, Tries, Unlinked};

use super::descent::{Path, PathEnd, ReadNode, Up};
use super::insert::{NewLeaf, copy};
use super::layout::{Edge, META_ROOT, NodeType, Slot, fill_node, slot_addr};
use super::leaf::{Leaf, MOVING, NewValue};
use super::locked::LeafImage;
use super::tree::{Fail, Tree, count};

farleaf_fabric::canaries! {
    pub(crate) COPY_UNFROZEN = "copy-unfrozen",
        "a node is copied and replaced without freezing its slots";
    pub(crate) MOVE_UNMARKED = "move-unmarked",
        "a leaf whose value moves elsewhere is not marked as moving";
}

/// CASes of one chain.
const CHAIN_MAX: usize = 32;

/// A node that is to be replaced.
pub(super) struct Dying {
    pub(super) addr: GlobalAddr,
    pub(super) up: Up,
    /// Its words as last seen.
    pub(super) words: Vec<u64>,
    /// Bytes of its keys that lead to it.
    pub(super) matched: usize,
}

impl Dying {
    /// The node that is held, if its parent's word is known.
    pub(super) fn of(held: &ReadNode) -> Option<Dying> {
        let words = held.image.words().to_vec();
        Some(Dying { addr: held.addr, up: held.up?, words, matched: held.matched })
    }

    /// It is dead and all of its words are frozen (`INV-SMART-3`), unless a seeded bug skips that.
    pub(super) fn is_frozen(&self) -> bool {
        let slots = &self.words[2..];
        let is_done = super::layout::FirstWord(self.words[0]).is_dead()
            && slots.iter().all(|word| Slot(*word).is_frozen());
        is_done || COPY_UNFROZEN.is_armed()
    }

    /// The word that leads to it is the root word.
    pub(super) fn is_root(&self, tree: &Tree) -> bool {
        self.up.at == tree.meta.plus(META_ROOT)
    }
}

/// The end of a try to make room for a key.
pub(super) enum Helped {
    /// This client has linked the node that has room.
    Linked(ReadNode),
    /// It has linked none.
    No,
    /// Another task of this compute server has replaced the node meanwhile, and its cache knows the new one.
    ByAnother,
}

impl Tree {
    /// Makes room for `key` on its way: replaces the first node that is dying, or the last if it is full. One task of
    /// this compute server does; the others wait for it. 1 READ if the way begins with the node that is replaced.
    pub(super) async fn help(
        self: &Arc<Self>,
        session: &Session,
        mut path: Path,
        key: &[u8],
    ) -> Result<Helped, Fail> {
        let dying = path.nodes.iter().position(|held| held.node(self).first_word().is_dead());
        let is_full = matches!(path.landing, PathEnd::None)
            && path.last().node(self).first_empty().is_none()
            && !self.shape.mode.keeps_nodes();
        let last = path.nodes.len() - 1;
        let Some(at) = dying.or(is_full.then_some(last)) else { return Ok(Helped::No) };
        let mut held = path.nodes.swap_remove(at);
        // An operation that locks nodes has its turn at this one.
        let mut place = None;
        if !self.ladder.locks_nodes() {
            place = self.lock_queue.try_place(held.addr.word());
            if place.is_none() {
                drop(queue_for(session, &self.lock_queue, held.addr.word()).await);
                return Ok(Helped::ByAnother);
            }
        }
        let parent = match at {
            0 if held.up.is_none() => self.read_parent(session, &mut held, key).await?,
            0 => None,
            _ => Some(path.nodes.swap_remove(at - 1)),
        };
        let Some(dying) = Dying::of(&held) else { return Ok(Helped::No) };
        let copy = self.relocate(session, dying, key).await?;
        if let Some((copy, up)) = copy.as_ref().and_then(|copy| Some((copy, copy.up?))) {
            self.remember(copy, key);
            if let Some(mut parent) = parent {
                self.remember_slot(&mut parent, up.index(), Slot(up.word), key);
            }
        }
        drop(place);
        Ok(copy.map_or(Helped::No, Helped::Linked))
    }

    /// The parent of a node that the cache has led to: 1 READ, none if its entry is exact. `None` if the cache does not
    /// know it, or is out of date.
    async fn read_parent(
        &self,
        session: &Session,
        held: &mut ReadNode,
        key: &[u8],
    ) -> Result<Option<ReadNode>, Fail> {
        let Some(guess) = self.guess_parent(key, held.addr) else { return Ok(None) };
        let Some(parent) = self.prove(session, &guess, key, None).await? else { return Ok(None) };
        let at = parent.node(self).dispatch();
        let found = Edge::of(key, at).and_then(|edge| parent.node(self).find(edge));
        let up = found.filter(|(_, slot)| slot.has_child() && slot.addr() == held.addr);
        held.up = up.map(|(index, slot)| parent.up_of(index, slot));
        held.matched = at + 1;
        Ok(Some(parent))
    }

    /// Freezes a node and puts a copy in its place, unless another client is first. `key` leads there. Returns the
    /// copy if this client has linked it.
    ///
    /// Cost: 1 WRITE, and a CAS for each slot and 2 more; 3 round trips.
    ///
    /// # Errors
    /// `Full`: the node stays as it was, or frozen, which readers do not mind.
    pub(super) async fn relocate(
        self: &Arc<Self>,
        session: &Session,
        dying: Dying,
        key: &[u8],
    ) -> Result<Option<ReadNode>, IndexError> {
        let (tree, key) = (Arc::clone(self), key.to_vec());
        self.finish(session, async move |session| tree.relocate_now(&session, dying, &key).await)
            .await
    }

    pub(super) async fn relocate_now(
        &self,
        session: &Session,
        mut dying: Dying,
        key: &[u8],
    ) -> Result<Option<ReadNode>, IndexError> {
        let mut of = self.copy_type(&dying);
        let mut object = self.alloc_node(session, of).await?;
        let retiring = session.prepare_retire(dying.addr).await?;
        // Its entry never becomes exact again.
        let _changing = self.changing(dying.addr).await;
        self.freeze(session, &mut dying).await?;
        if let Some(heir) = self.heir(session, &dying).await? {
            self.collapse(session, &dying, key, heir, retiring).await?;
            return Ok(None);
        }
        if self.copy_type(&dying) != of {
            of = self.copy_type(&dying);
            object = match self.alloc_node(session, of).await {
                Ok(object) => object,
                Err(error) => {
                    session.cancel_retire(retiring);
                    return Err(error);
                }
            };
        }
        let image = self.fill_copy(session, &dying, of, &object).await?;
        let addr = object.addr();
        let slot = Slot::node(Slot(dying.up.word).edge(), addr, of);
        let word = if dying.is_root(self) { addr.word() } else { slot.0 };
        // While nobody knows it, and the dead node is linked.
        let (c, stamp) = (session.epoch(), self.stamp(addr));
        let won = self.replace(session, &dying, key, word, (object, retiring)).await?;
        let (up, matched) = (Some(Up { word, ..dying.up }), dying.matched);
        Ok(won.then(|| ReadNode { addr, image, matched, up, c, stamp, is_cached: false }))
    }

    /// The type of the node that takes the place of another.
    fn copy_type(&self, dying: &Dying) -> NodeType {
        if dying.is_root(self) {
            // It dispatches on the first byte, whatever that is.
            return NodeType::TOP;
        }
        self.ladder.replacing(live_slots(&dying.words).count(), self.first_type())
    }

    async fn alloc_node(&self, session: &Session, of: NodeType) -> Result<Unlinked, IndexError> {
        Ok(session.alloc_unlinked(session.place(), of.bytes()).await?)
    }

    /// Sets DEAD, then freezes each slot, and again those that had changed.
    pub(super) async fn freeze(
        &self,
        session: &Session,
        dying: &mut Dying,
    ) -> Result<(), IndexError> {
        let (addr, mut tries) = (dying.addr, Tries::default());
        let is_done = |at: usize, word: u64| match at {
            0 => super::layout::FirstWord(word).is_dead(),
            _ => Slot(word).is_frozen(),
        };
        let last = if COPY_UNFROZEN.is_armed() { 1 } else { dying.words.len() };
        loop {
            let open: Vec<usize> = (0..last)
                .filter(|at| *at != 1 && !is_done(*at, dying.words[*at]))
                .take(CHAIN_MAX)
                .collect();
            if open.is_empty() {
                return Ok(());
            }
            let done = |at: usize, word: u64| match at {
                0 => super::layout::FirstWord(word).dead().0,
                _ => Slot(word).frozen().0,
            };
            let mut ops = session.client().ops();
            for at in &open {
                let word = dying.words[*at];
                ops.cas(addr.plus(*at as u64 * 8), word, done(*at, word));
            }
            let mark = session.reliable().post_mark();
            let ops = match session.client().chain(ops).await {
                Ok(ops) => ops,
                Err(error) => {
                    // Part of it has happened: the rest is what is still open.
                    session.reliable().again(&mut tries, mark, error).await?;
                    let reliable = session.reliable();
                    let image = reliable.read(addr, reliable.buf(dying.words.len() * 8)).await?;
                    dying.words.copy_from_slice(image.words());
                    continue;
                }
            };
            for (index, at) in open.iter().enumerate() {
                let (found, expected) = (ops.old(index), dying.words[*at]);
                dying.words[*at] = if found == expected { done(*at, expected) } else { found };
            }
        }
    }

    async fn fill_copy(
        &self,
        session: &Session,
        dying: &Dying,
        of: NodeType,
        object: &Unlinked,
    ) -> Result<Buf, IndexError> {
        let node = super::layout::Node::new(&self.shape, &dying.words);
        let (bytes, len) = node.compressed();
        let mut buf = session.client().buf(of.bytes());
        let place = (node.depth(), &bytes[..len]);
        let slots = live_slots(&dying.words);
        let first_word = self.shape.first_word(object.addr(), session.epoch(), dying.up.at);
        fill_node(&self.shape, buf.words_mut(), first_word, of, place, slots);
        object.write(copy(session, buf.words())).await?;
        Ok(buf)
    }

    /// Stores `new` over the word that leads to a frozen node, so that `made` is linked in its place; returns whether
    /// this client did. The node is retired then; otherwise `made` is freed.
    pub(super) async fn replace(
        &self,
        session: &Session,
        dying: &Dying,
        key: &[u8],
        new: u64,
        (made, retiring): (Unlinked, Retiring),
    ) -> Result<bool, IndexError> {
        let (up, mut tries) = (dying.up, Tries::default());
        let expected = if dying.is_root(self) { up.word } else { Slot(up.word).thawed().0 };
        debug_assert!(
            dying.is_frozen(),
            "INV-SMART-3: {} is replaced before it is frozen",
            dying.addr
        );
        made.keep();
        let changing = self.changing(up.node).await;
        let won = loop {
            let mark = session.reliable().post_mark();
            let error = match session.client().cas(up.at, expected, new).await {
                Ok(found) => break found == expected,
                Err(error) => error,
            };
            session.reliable().again(&mut tries, mark, error).await?;
            if !self.reaches(session, key, dying.addr).await? {
                let addr = made.addr();
                // Only what was linked is ever dead.
                break self.reaches(session, key, addr).await?
                    || self.is_dead(session, addr).await?;
            }
        };
        if dying.is_root(self) {
            self.note_root(None);
        } else if won {
            changing.stored(session, up.index(), (Slot(up.word), Slot(new)));
        } else {
            changing.lost();
        }
        if !won {
            made.unkeep();
        }
        count(if won { &self.counts.relocated } else { &self.counts.relocate_lost });
        self.retire_claimed(session, dying, (won, retiring)).await?;
        Ok(won)
    }

    /// Returns whether the node that this client has made at `addr` is dead, which it can be only if it was linked.
    async fn is_dead(&self, session: &Session, addr: GlobalAddr) -> Result<bool, IndexError> {
        Ok(super::layout::FirstWord(session.reliable().word(addr).await?).is_dead())
    }

    /// Links `new` in place of a leaf of the same key that was whole and free: its value moves. Gives `new` back if
    /// another was first.
    ///
    /// Cost: 2 WRITEs and 2 CASes; 1 WRITE more if the old value is in a record.
    pub(super) async fn move_leaf(
        self: &Arc<Self>,
        session: &Session,
        key: &[u8],
        path: &Path,
        old: LeafImage,
        new: NewLeaf,
    ) -> Result<Result<(), NewLeaf>, IndexError> {
        let PathEnd::Leaf { index, slot } = path.landing else { return Ok(Err(new)) };
        if slot.is_frozen() {
            return Ok(Err(new));
        }
        let node = path.last().addr;
        let locks = self.ladder.leaf_locks(old.addr, self.ladder.slot_locks(&path.nodes));
        let (tree, key) = (Arc::clone(self), key.to_vec());
        self.finish(session, async move |session| {
            let work = async |_| tree.move_now(&session, &key, (node, index, slot), old, new).await;
            tree.ladder.under((&session, &tree.counts), locks, work).await
        })
        .await
    }

    async fn move_now(
        &self,
        session: &Session,
        key: &[u8],
        (node, index, slot): (GlobalAddr, usize, Slot),
        old: LeafImage,
        mut new: NewLeaf,
    ) -> Result<Result<(), NewLeaf>, IndexError> {
        if let Some((object, content)) = new.unwritten(session) {
            object.write(content).await?;
        }
        new.is_written = true;
        let view = Leaf::new(self.shape.table, old.addr, &old.words);
        let mut retiring = vec![session.prepare_retire(old.addr).await?];
        if let NewValue::Record(word) = view.content() {
            retiring.push(session.prepare_retire(self.record_place(word)?.0).await?);
        }
        let moving = if MOVE_UNMARKED.is_armed() { 0 } else { MOVING };
        let (by, lock) = (view.by(), session.lock_token() | moving);
        let _changing = self.changing_leaf(old.addr).await;
        let is_locked = session.reliable().cas(old.lock_addr(), by, lock).await? == by;
        if is_locked {
            debug_assert!(view.is_whole() && view.is_free(), "INV-SMART-4: a torn leaf moves");
            new.keep();
            let (at, words) = (slot_addr(node, index), (slot, new.slot(slot.edge())));
            let changing = self.changing(node).await;
            if self.link(session, at, words, new.linking(key)).await?.is_ok() {
                changing.stored(session, index, words);
                // The old leaf stays locked.
                retiring.into_iter().for_each(|retiring| session.retire(retiring));
                return Ok(Ok(()));
            }
            changing.lost();
            new.unkeep();
            self.unlock(session, &old, lock).await?;
        } else {
            count(&self.counts.lock_lost);
        }
        for retiring in retiring {
            session.cancel_retire(retiring);
        }
        Ok(Err(new))
    }
}

/// The slots of a node that have children.
pub(super) fn live_slots(words: &[u64]) -> impl Iterator<Item = Slot> + '_ {
    words[2..].iter().map(|word| Slot(*word).thawed()).filter(|slot| slot.has_child())
}
