//! Relocation: replaces a node by one of another size, and a leaf by one of another class.
//!
//! A node is marked dead, then each of its words is frozen; a frozen word never changes again. A copy without the
//! slots that have no child is linked in its place by one CAS. Any client does this, any number at once: one copy is
//! linked, the others are freed. An insert that meets a frozen word does it as well, so none waits for another.

use std::sync::Arc;

use farleaf_fabric::GlobalAddr;
use farleaf_pool::{Retiring, Session, Trial, Unlinked};

use super::descent::{Held, Landing, Path, Up};
use super::insert::NewLeaf;
use super::layout::{META_ROOT, NodeType, Slot, fill_node};
use super::leaf::{Leaf, MOVING, NewValue};
use super::locked::LeafImage;
use super::tree::{Fail, Tree, count, finish};
use crate::IndexError;

/// CASes of one chain.
const CHAIN_MAX: usize = 64;

/// A node that is to be replaced.
pub(super) struct Dying {
    pub(super) addr: GlobalAddr,
    pub(super) of: NodeType,
    /// Bytes of keys that lead to it.
    pub(super) matched: usize,
    pub(super) up: Up,
    /// Its words as last seen.
    pub(super) words: Vec<u64>,
}

/// What takes the place of a node.
#[derive(Debug)]
pub(super) enum Successor {
    /// A copy, in a node of this type.
    Copy(NodeType),
    /// A slot that leads past it, or that has no child.
    Slot(Slot),
}

impl Dying {
    /// The node that is held, if its parent's word is known.
    pub(super) fn of(tree: &Tree, held: &Held) -> Option<Dying> {
        let (up, of) = (held.up?, held.node(tree).node_type()?);
        let words = held.image.words().to_vec();
        Some(Dying { addr: held.addr, of, matched: held.matched, up, words })
    }

    /// The word that leads to it is the root word.
    fn is_root(&self, tree: &Tree) -> bool {
        self.up.at == tree.meta.plus(META_ROOT)
    }
}

impl Tree {
    /// Makes room for `key` on its way from the root: replaces the first node that is dying, or the last if it is
    /// full.
    pub(super) async fn help(
        self: &Arc<Self>,
        session: &Session,
        path: Path,
        key: &[u8],
    ) -> Result<(), Fail> {
        let dying = path.nodes.iter().find(|held| held.node(self).life().is_dead());
        let last = path.last();
        let is_full = matches!(path.landing, Landing::None) && last.node(self).first_empty().is_none();
        let Some(held) = dying.or(is_full.then_some(last)) else { return Ok(()) };
        let Some(dying) = Dying::of(self, held) else { return Ok(()) };
        self.relocate(session, dying, key, |tree, words| {
            let live = live_slots(words).count();
            Successor::Copy(NodeType::replacing(live, tree.first_type()))
        })
        .await?;
        Ok(())
    }

    /// Freezes a node and puts what `choose` says of its frozen words in its place; whether this client did. `key`
    /// leads there.
    ///
    /// Cost: 2 WRITEs, and a CAS for each slot and 2 more; 4 round trips.
    ///
    /// # Errors
    /// `Full`: the node stays as it was, or frozen, which readers do not mind.
    pub(super) async fn relocate(
        self: &Arc<Self>,
        session: &Session,
        dying: Dying,
        key: &[u8],
        choose: fn(&Tree, &[u64]) -> Successor,
    ) -> Result<bool, IndexError> {
        let (tree, key) = (Arc::clone(self), key.to_vec());
        finish(session, async move |session| {
            tree.relocate_now(&session, dying, &key, choose).await
        })
        .await
    }

    async fn relocate_now(
        &self,
        session: &Session,
        mut dying: Dying,
        key: &[u8],
        choose: fn(&Tree, &[u64]) -> Successor,
    ) -> Result<bool, IndexError> {
        let mut spare = match self.successor(&dying, choose) {
            Successor::Copy(of) => Some((of, self.alloc_node(session, of).await?)),
            Successor::Slot(_) => None,
        };
        let retiring = session.announce_retire(dying.addr).await?;
        self.freeze(session, &mut dying).await?;
        let (word, copy) = match self.successor(&dying, choose) {
            Successor::Slot(slot) => (slot, None),
            Successor::Copy(of) => {
                if spare.as_ref().is_none_or(|(made, _)| *made != of) {
                    spare = match self.alloc_node(session, of).await {
                        Ok(object) => Some((of, object)),
                        Err(error) => {
                            session.cancel_retire(retiring).await?;
                            return Err(error);
                        }
                    };
                }
                let Some((_, object)) = spare.take() else { return Ok(false) };
                self.fill_copy(session, &dying, of, &object).await?;
                let edge = Slot(dying.up.word).edge();
                (Slot::node(edge, object.addr(), of), Some(object))
            }
        };
        let new = match &copy {
            Some(object) if dying.is_root(self) => object.addr().word(),
            _ => word.0,
        };
        if let Some(object) = &copy {
            object.keep();
        }
        let addr = copy.as_ref().map(Unlinked::addr);
        self.replace(session, &dying, key, new, addr, (copy, retiring)).await
    }

    fn successor(&self, dying: &Dying, choose: fn(&Tree, &[u64]) -> Successor) -> Successor {
        match choose(self, &dying.words) {
            // The root dispatches on the first byte, whatever it is.
            _ if dying.is_root(self) => Successor::Copy(NodeType::TOP),
            Successor::Slot(slot) if slot.0 == 0 => {
                Successor::Slot(Slot::tomb(Slot(dying.up.word).edge()))
            }
            Successor::Slot(slot) => Successor::Slot(slot.under(Slot(dying.up.word).edge())),
            copy => copy,
        }
    }

    async fn alloc_node(&self, session: &Session, of: NodeType) -> Result<Unlinked, IndexError> {
        Ok(session.alloc_unlinked(session.place(), of.bytes()).await?)
    }

    /// Sets DEAD, then freezes each slot, and again those that had changed.
    pub(super) async fn freeze(&self, session: &Session, dying: &mut Dying) -> Result<(), IndexError> {
        let addr = dying.addr;
        let is_done = |at: usize, word: u64| match at {
            0 => super::layout::Life(word).is_dead(),
            _ => Slot(word).is_frozen(),
        };
        loop {
            let open: Vec<usize> = (0..dying.words.len())
                .filter(|at| *at != 1 && !is_done(*at, dying.words[*at]))
                .take(CHAIN_MAX)
                .collect();
            if open.is_empty() {
                return Ok(());
            }
            let done = |at: usize, word: u64| match at {
                0 => super::layout::Life(word).dead().0,
                _ => Slot(word).frozen().0,
            };
            let words = &dying.words;
            let (ops, _) = session
                .reliable()
                .chain(|ops| {
                    for at in &open {
                        let place = addr.plus(*at as u64 * 8);
                        ops.cas(place, words[*at], done(*at, words[*at]));
                    }
                })
                .await?;
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
    ) -> Result<(), IndexError> {
        let node = super::layout::Node::new(&self.shape, &dying.words);
        let (bytes, len) = node.compressed();
        let mut buf = session.client().buf(of.bytes());
        let place = (node.depth(), &bytes[..len]);
        let slots = live_slots(&dying.words);
        fill_node(&self.shape, buf.words_mut(), object.addr(), session.epoch(), place, slots);
        Ok(object.write(buf).await?)
    }

    /// Stores `new` over the word that leads to a frozen node; whether this client did. The node is retired then.
    pub(super) async fn replace(
        &self,
        session: &Session,
        dying: &Dying,
        key: &[u8],
        new: u64,
        made: Option<GlobalAddr>,
        (copy, retiring): (Option<Unlinked>, Retiring),
    ) -> Result<bool, IndexError> {
        let (up, mut trial) = (dying.up, Trial::default());
        let expected = if dying.is_root(self) { up.word } else { Slot(up.word).thawed().0 };
        let won = loop {
            let posting = session.reliable().posting();
            let error = match session.client().cas(up.at, expected, new).await {
                Ok(found) => break Some(found == expected),
                Err(error) => error,
            };
            session.reliable().again(&mut trial, posting, error).await?;
            if self.reaches(session, key, dying.addr).await? {
                continue;
            }
            let Some(made) = made else {
                // Another may have led past the node as well: nobody can tell who did.
                break None;
            };
            break Some(self.reaches(session, key, made).await? || self.is_dead(session, made).await?);
        };
        if dying.is_root(self) {
            self.note_root(None);
        }
        match won {
            Some(true) => {
                session.retire(retiring);
                count(&self.counts.relocated);
            }
            Some(false) => {
                if let Some(copy) = &copy {
                    copy.unkeep();
                }
                session.cancel_retire(retiring).await?;
                count(&self.counts.relocate_lost);
            }
            // It counts as in use until its block is swept.
            None => session.cancel_retire(retiring).await?,
        }
        Ok(won == Some(true))
    }

    /// Whether the node that this client has made at `addr` is dead, which it can be only if it was linked.
    async fn is_dead(&self, session: &Session, addr: GlobalAddr) -> Result<bool, IndexError> {
        Ok(super::layout::Life(session.reliable().word(addr).await?).is_dead())
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
        let Landing::Leaf { index, slot } = path.landing else { return Ok(Err(new)) };
        if slot.is_frozen() {
            return Ok(Err(new));
        }
        let at = path.last().slot_addr(index);
        let (tree, key) = (Arc::clone(self), key.to_vec());
        finish(session, async move |session| {
            tree.move_now(&session, &key, (at, slot), old, new).await
        })
        .await
    }

    async fn move_now(
        &self,
        session: &Session,
        key: &[u8],
        (at, slot): (GlobalAddr, Slot),
        old: LeafImage,
        mut new: NewLeaf,
    ) -> Result<Result<(), NewLeaf>, IndexError> {
        if let Some((object, content)) = new.unwritten(session) {
            object.write(content).await?;
        }
        new.is_written = true;
        let view = Leaf::new(self.shape.table, old.addr, &old.words);
        let mut retiring = vec![session.announce_retire(old.addr).await?];
        if let NewValue::Record(word) = view.content() {
            retiring.push(session.announce_retire(self.record_place(word)?.0).await?);
        }
        let (by, lock) = (view.by(), session.lock_token() | MOVING);
        let is_locked = session.reliable().cas(old.lock_addr(), by, lock).await? == by;
        if is_locked {
            new.keep();
            let words = (slot, new.slot(slot.edge()));
            if self.link(session, at, words, new.linking(key)).await?.is_ok() {
                // The old leaf stays locked.
                retiring.into_iter().for_each(|retiring| session.retire(retiring));
                return Ok(Ok(()));
            }
            new.unkeep();
            self.unlock(session, &old, lock).await?;
        } else {
            count(&self.counts.lock_lost);
        }
        for retiring in retiring {
            session.cancel_retire(retiring).await?;
        }
        Ok(Err(new))
    }
}

/// The slots of a node that have children.
pub(super) fn live_slots(words: &[u64]) -> impl Iterator<Item = Slot> + '_ {
    words[2..].iter().map(|word| Slot(*word).thawed()).filter(|slot| slot.has_child())
}
