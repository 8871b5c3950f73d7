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
use super::super::layout::{Node, NodeForm, NodeType, Slot};
use super::super::mode::NodeMode;
use super::super::tree::{Fail, Tree, count};
use super::{grown, header_with};

farleaf_fabric::canaries! {
    pub(crate) GROW_UNHELPED = "grow-unhelped",
        "the second insert behind the slots that count leaves the node's header to the first";
}

/// Lets slot `index` count, which an own CAS has filled: nobody looks behind the slots that count (`INV-SMART-6`).
pub(in crate::smart) async fn linked(
    tree: &Tree,
    session: &Session,
    held: &mut ReadNode,
    index: usize,
) -> Result<(), IndexError> {
    let counted = held.node(tree).capacity();
    let is_first = index == counted;
    if index >= counted && (is_first || !GROW_UNHELPED.is_armed()) {
        grow(tree, session, held, index).await?;
    }
    debug_assert!(
        GROW_UNHELPED.is_armed() || index < held.node(tree).capacity(),
        "INV-SMART-6: an acknowledged slot does not count"
    );
    Ok(())
}

/// Lets slot `index` count, which is in use: the node's header grows, and then the hint that leads to it.
///
/// Cost: 1 CAS, 2 if the parent's slot is known, in 1 round trip; more if others grow the node.
pub(in crate::smart) async fn grow(
    tree: &Tree,
    session: &Session,
    held: &mut ReadNode,
    index: usize,
) -> Result<(), IndexError> {
    let (form, at) = (&tree.shape, held.addr.plus(8));
    let mut header = held.image.words()[1];
    while counted(form, header) <= index {
        let of = grown(tree.ladder.types(), index + 1);
        let new = header_with(form, header, of);
        let mut list = vec![Cas { at, expected: header, new }];
        if let Some(up) = held.up.filter(|up| !Slot(up.word).is_frozen()) {
            let hint = Slot(up.word).with_type(of).0;
            list.push(Cas { at: up.at, expected: up.word, new: hint });
        }
        let found = session.reliable().cas_many(&list).await?[0];
        if found == header {
            count(&tree.counts.grown);
            header = new;
        } else if counted(form, found) > counted(form, header) || is_deeper(form, found, header) {
            header = found;
        } else {
            return Err(tree.corrupt(held.addr, "its header does not grow"));
        }
    }
    // The slots between are not known; the cache may lack them.
    let (counted, old) = (counted(form, header), held.image.words());
    if old.len() < 2 + counted {
        let mut image = session.client().buf(16 + 8 * counted);
        image.words_mut().fill(0);
        image.words_mut()[..old.len()].copy_from_slice(old);
        held.image = image;
    }
    held.image.words_mut()[1] = header;
    Ok(())
}

/// Lets all used slots of a node count whose words a walk has READ.
pub(in crate::smart) async fn grow_over(
    tree: &Tree,
    session: &Session,
    held: &mut ReadNode,
) -> Result<(), IndexError> {
    let last = held.image.words()[2..].iter().rposition(|word| !Slot(*word).is_empty());
    match last.filter(|last| *last >= held.node(tree).capacity()) {
        Some(last) => grow(tree, session, held, last).await,
        None => Ok(()),
    }
}

/// Returns whether an edge that leads to the node has been split since its header was `old`.
fn is_deeper(form: &NodeForm, header: u64, old: u64) -> bool {
    let depth = |header| Node::new(form, &[0, header]).depth();
    form.mode == NodeMode::Reverse && depth(header) > depth(old)
}

/// Slots that count by a header; 0 if it has no type.
fn counted(form: &NodeForm, header: u64) -> usize {
    Node::new(form, &[0, header]).node_type().map_or(0, NodeType::capacity)
}

/// READs a node again in which more slots count than were READ.
pub(in crate::smart) async fn read_whole(
    tree: &Tree,
    session: &Session,
    held: &mut ReadNode,
    key: &[u8],
) -> Result<(), Fail> {
    let (first_word, of) = (held.node(tree).first_word(), held.node(tree).node_type());
    let of = of.ok_or_else(|| tree.corrupt(held.addr, "its header has no type"))?;
    let again = tree.read_at(session, held.addr, of, held.matched, None).await?;
    // A node that points back stays what it is, while the way to it may get longer.
    let points_back = tree.shape.mode == NodeMode::Reverse;
    let header = header_with(&tree.shape, held.image.words()[1], of);
    if again.node(tree).first_word() != first_word && !points_back {
        return Err(Fail::Again);
    }
    (held.image, held.c) = (again.image, again.c);
    if points_back {
        held.image.words_mut()[1] = header;
    }
    tree.remember(held, key);
    Ok(())
}

/// The correction of the slot that led to a node, if its type is behind.
pub(in crate::smart) fn stale_hint(tree: &Tree, held: &ReadNode, slot: Slot) -> Option<Cas> {
    let up = held.up.filter(|up| !Slot(up.word).is_frozen())?;
    let (of, hint) = (held.node(tree).node_type()?, slot.node_type()?);
    if of.capacity() <= hint.capacity() {
        return None;
    }
    count(&tree.counts.stale_hints);
    Some(Cas { at: up.at, expected: up.word, new: Slot(up.word).with_type(of).0 })
}

/// Lets a task make these corrections, unless one is at it: then the next reader meets them.
pub(in crate::smart) fn correct_hints(tree: &Tree, session: &Session, list: Vec<Cas>) {
    if list.is_empty() || tree.correcting.swap(true, Ordering::SeqCst) {
        return;
    }
    let (correcting, pin) = (Correcting(Arc::clone(&tree.correcting)), session.pin_for_task());
    session.spawn(async move |session| {
        // A slot that has another word by now leads elsewhere, or was corrected. An error leaves hints behind.
        let _ = session.reliable().cas_many(&list).await;
        drop(pin);
        drop(correcting);
    });
}

/// The right to correct hints and pointers back; one task has it.
pub(super) struct Correcting(pub(super) Arc<AtomicBool>);

impl Drop for Correcting {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}
