//! Growing in place: nodes with room for all slots, of which the header says how many count.
//!
//! A node never moves, so the pointers to it stay good. An insert that finds no unused slot among those that count
//! takes the first one behind them by the same CAS as any other. Then it *grows* the node: it CASes the type in the
//! header up. Until the header has grown nobody follows that slot, and its insert is not acknowledged (`INV-SMART-6`): a
//! reader that knows the smaller type alone would deny the key.
//!
//! A second insert may find the slot taken, and its own further behind or for its own edge. The first one may be
//! dead, so the second grows the node before it is acknowledged or goes on. A walk does the same, so that it visits
//! what is linked.
//!
//! The type in the parent's slot is a hint of how much to READ. It follows the header by a CAS whose result nobody
//! needs. A reader that finds a larger type in the header than the hint said READs the node again, if it misses its
//! edge among the slots that it has, and corrects the hint. A hint ahead of the header does no harm: slots that do not
//! count are not looked at.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use farleaf_index::IndexError;
use farleaf_pool::{Cas, Session};

use super::super::descent::ReadNode;
use super::super::layout::{Node, NodeType, Slot};
use super::super::tree::{Fail, Tree, count};

impl Tree {
    /// Slots that a node has room for.
    pub(in crate::smart) fn room(&self, node: Node<'_>) -> usize {
        if self.shape.reserves { NodeType::TOP.capacity() } else { node.capacity() }
    }

    /// Lets slot `index` count, which is in use: the node's header grows, and then the hint that leads to it.
    ///
    /// Cost: 1 CAS, 2 if the parent's slot is known, in 1 round trip; more if others grow the node.
    pub(in crate::smart) async fn grow(
        &self,
        session: &Session,
        held: &mut ReadNode,
        index: usize,
    ) -> Result<(), IndexError> {
        let at = held.addr.plus(8);
        let mut header = held.image.words()[1];
        while self.counted(header) <= index {
            let of = self.options.types.reserved(index + 1);
            let new = self.shape.header_with(header, of);
            let mut list = vec![Cas { at, expected: header, new }];
            if let Some(up) = held.up.filter(|up| !Slot(up.word).is_frozen()) {
                let hint = Slot(up.word).with_type(of).0;
                list.push(Cas { at: up.at, expected: up.word, new: hint });
            }
            let found = session.reliable().cas_many(&list).await?[0];
            if found == header {
                count(&self.counts.grown);
                header = new;
            } else if self.counted(found) > self.counted(header) || self.is_deeper(found, header) {
                header = found;
            } else {
                return Err(self.corrupt(held.addr, "its header does not grow"));
            }
        }
        // The slots between are not known; the cache may lack them.
        let (counted, old) = (self.counted(header), held.image.words());
        if old.len() < 2 + counted {
            let mut image = session.client().buf(16 + 8 * counted);
            image.words_mut().fill(0);
            image.words_mut()[..old.len()].copy_from_slice(old);
            held.image = image;
        }
        held.image.words_mut()[1] = header;
        Ok(())
    }

    /// Returns whether an edge that leads to the node has been split since its header was `old`.
    fn is_deeper(&self, header: u64, old: u64) -> bool {
        let depth = |header| Node::new(&self.shape, &[0, header]).depth();
        self.shape.points_back && depth(header) > depth(old)
    }

    /// Slots that count by a header; 0 if it has no type.
    fn counted(&self, header: u64) -> usize {
        Node::new(&self.shape, &[0, header]).node_type().map_or(0, NodeType::capacity)
    }

    /// READs a node again in which more slots count than were READ.
    pub(in crate::smart) async fn read_whole(
        &self,
        session: &Session,
        held: &mut ReadNode,
        key: &[u8],
    ) -> Result<(), Fail> {
        let (first_word, of) = (held.node(self).first_word(), held.node(self).node_type());
        let of = of.ok_or_else(|| self.corrupt(held.addr, "its header has no type"))?;
        let again = self.read_at(session, held.addr, of, held.matched, None).await?;
        // A node that points back stays what it is, while the way to it may get longer.
        let header = self.shape.header_with(held.image.words()[1], of);
        if again.node(self).first_word() != first_word && !self.shape.points_back {
            return Err(Fail::Again);
        }
        (held.image, held.c) = (again.image, again.c);
        if self.shape.points_back {
            held.image.words_mut()[1] = header;
        }
        self.remember(held, key);
        Ok(())
    }

    /// The correction of the slot that led to a node, if its type is behind.
    pub(in crate::smart) fn stale_hint(&self, held: &ReadNode, slot: Slot) -> Option<Cas> {
        let up = held.up.filter(|up| self.shape.reserves && !Slot(up.word).is_frozen())?;
        let (of, hint) = (held.node(self).node_type()?, slot.node_type()?);
        if of.capacity() <= hint.capacity() {
            return None;
        }
        count(&self.counts.stale_hints);
        Some(Cas { at: up.at, expected: up.word, new: Slot(up.word).with_type(of).0 })
    }

    /// Lets a task make these corrections, unless one is at it: then the next reader meets them.
    pub(in crate::smart) fn correct_hints(&self, session: &Session, list: Vec<Cas>) {
        if list.is_empty() || self.correcting.swap(true, Ordering::SeqCst) {
            return;
        }
        let (correcting, pin) = (Correcting(Arc::clone(&self.correcting)), session.pin_for_task());
        session.spawn(async move |session| {
            // A slot that has another word by now leads elsewhere, or was corrected. An error leaves hints behind.
            let _ = session.reliable().cas_many(&list).await;
            drop(pin);
            drop(correcting);
        });
    }
}

/// The right to correct hints and pointers back; one task has it.
pub(in crate::smart) struct Correcting(pub(super) Arc<AtomicBool>);

impl Drop for Correcting {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}
