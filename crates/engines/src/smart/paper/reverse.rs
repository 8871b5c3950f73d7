//! Pointers back: the paper's proof of a cached pointer, in tables with `nodes=reverse`.
//!
//! The first word of each node and leaf names the word that leads there: a slot of the parent, or the root word. A
//! cached pointer counts if its object names the slot from which the pointer was cached. An insert that puts a node
//! in between changes the word of the child that comes under it: 1 CAS for a leaf; for a node another one, of its
//! header, because the bytes in front of its depth have moved up. Both are awaited before the insert is acknowledged.
//!
//! Alone that proves nothing once an address is used again: the word may fit an object that nobody has linked. So
//! nothing leaves such a tree. Nodes reserve their room, values have one length, the leaf of a removed key stays and
//! takes the key back. The object that a pointer has ever led to stays what it is, and the word only says whether the
//! pointer is current. A client that dies in front of the CAS leaves a word behind, which costs readers a fresh look;
//! one of them corrects it.
//!
//! - `INV-SMART-8` An object that was linked stays linked. Its word has each slot that has led to it at most once, in
//!   their order.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use farleaf_fabric::GlobalAddr;
use farleaf_index::{IndexError, TableSpec, ValueFormat};
use farleaf_pool::{Cas, Session};

use super::super::descent::{CachedStart, ReadNode};
use super::super::ladder::LeafUpdate;
use super::super::layout::{FirstWord, Node, NodeForm, Slot};
use super::super::leaf::class_for;
use super::super::options::{NodeRoom, SmartOptions, SmartShape};
use super::super::tree::{Tree, count, inline_max};
use super::grow::Correcting;

/// A child that a new node has come in front of.
#[derive(Clone, Copy, Debug)]
pub(in crate::smart) struct Moved {
    /// The child, and its first word when it was READ.
    pub(in crate::smart) addr: GlobalAddr,
    pub(in crate::smart) word: u64,
    /// The slots that led to it before and lead to it now.
    pub(in crate::smart) from: GlobalAddr,
    pub(in crate::smart) to: GlobalAddr,
    /// A node's header when it was READ, and the depth that it has now.
    pub(in crate::smart) header: Option<(u64, usize)>,
}

/// Refuses a table with pointers back whose values do not fit into leaves.
///
/// # Errors
/// `Invalid`.
pub(in crate::smart) fn check_values(
    session: &Session,
    table: &TableSpec<SmartShape>,
) -> Result<(), IndexError> {
    let (shape, spec) = (NodeForm::of(table), table.spec);
    let ValueFormat::Fixed(value) = spec.value else { return Ok(()) };
    let fits =
        value <= inline_max(session) && class_for(shape.lead(), spec.key_max(), value).is_some();
    if fits || !shape.points_back {
        return Ok(());
    }
    Err(IndexError::Invalid(format!(
        "nodes=reverse keeps values in leaves, and keys of {} bytes with values of {value} are too long: take \
         nodes=reserve",
        spec.key_max()
    )))
}

/// Refuses to open a table with pointers back such that its leaves are replaced.
///
/// # Errors
/// `Invalid`.
pub(in crate::smart) fn check_open(
    shape: &SmartShape,
    options: &SmartOptions,
) -> Result<(), IndexError> {
    if shape.nodes == NodeRoom::Reverse && options.leaf == LeafUpdate::Replaced {
        return Err(IndexError::Invalid(
            "leaf=replaced does not go with a table of nodes=reverse, where no address is used again: take \
             leaf=in-place"
                .into(),
        ));
    }
    Ok(())
}

impl Tree {
    /// The first word of an object at `addr` to which the word at `parent` leads.
    pub(in crate::smart) fn back(&self, addr: GlobalAddr, parent: GlobalAddr) -> u64 {
        FirstWord::reverse(self.shape.table, addr, parent).0
    }

    /// Returns whether the object that a cached slot led to names that slot in its first word.
    pub(in crate::smart) fn names_slot(
        &self,
        guess: &CachedStart,
        addr: GlobalAddr,
        word: u64,
    ) -> bool {
        guess.at.is_some_and(|at| word == self.back(addr, at))
    }

    /// Lets a child name the slot that leads to it now.
    ///
    /// Cost: 1 CAS for a leaf, 2 for a node, in 1 round trip; more if others have changed these words.
    pub(in crate::smart) async fn turn(
        &self,
        session: &Session,
        moved: Moved,
    ) -> Result<(), IndexError> {
        let (addr, new) = (moved.addr, self.back(moved.addr, moved.to));
        let mut word = Some(moved.word).filter(|word| *word != new);
        let mut header = moved.header;
        while word.is_some() || header.is_some() {
            let mut list = Vec::with_capacity(2);
            list.extend(word.map(|expected| Cas { at: addr, expected, new }));
            list.extend(header.map(|(expected, depth)| {
                let new = self.shape.header_from(expected, depth);
                Cas { at: addr.plus(8), expected, new }
            }));
            let found = session.reliable().cas_many(&list).await?;
            let mut found = found.into_iter();
            word = word.and_then(|expected| {
                let now = found.next().filter(|now| *now != expected);
                // Another has brought it here from further up; or it is further down.
                now.filter(|now| *now == self.back(addr, moved.from))
            });
            header = header.and_then(|(expected, depth)| {
                let now = found.next().filter(|now| *now != expected)?;
                // Its node has grown.
                (Node::new(&self.shape, &[0, now]).depth() < depth).then_some((now, depth))
            });
        }
        Ok(())
    }

    /// Lets a task correct the first word of the object at `addr`, which was `word` when a fresh slot led there. One
    /// task corrects; otherwise the next reader does.
    pub(in crate::smart) fn correct_back(
        &self,
        session: &Session,
        (at, slot): (GlobalAddr, Slot),
        (addr, word): (GlobalAddr, u64),
    ) {
        // Most tables have no such words: nothing is computed for them.
        if !self.shape.points_back {
            return;
        }
        let new = self.back(addr, at);
        if word == new || slot.is_frozen() || self.correcting.swap(true, Ordering::SeqCst) {
            return;
        }
        count(&self.counts.stale_back);
        let (correcting, pin) = (Correcting(Arc::clone(&self.correcting)), session.pin_for_task());
        session.spawn(async move |session| {
            // The slot led there after the word was READ: so the word is behind, unless it has changed since.
            if let Ok(now) = session.reliable().word(at).await
                && Slot(now).has_child()
                && Slot(now).addr() == addr
                && !Slot(now).is_frozen()
            {
                // An error leaves it behind.
                let _ = session.reliable().cas(addr, word, new).await;
            }
            drop(pin);
            drop(correcting);
        });
    }

    /// Lets a node's first word be corrected if another slot has led to it.
    pub(in crate::smart) fn correct_node(&self, session: &Session, held: &ReadNode) {
        if let Some(up) = held.up.filter(|_| self.shape.points_back) {
            let word = held.node(self).first_word().0;
            self.correct_back(session, (up.at, Slot(up.word)), (held.addr, word));
        }
    }
}
