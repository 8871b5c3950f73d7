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
use farleaf_index::{IndexError, Spec, TableSpec, ValueFormat};
use farleaf_pool::{Cas, Session};

use super::super::descent::{CachedStart, PathEnd, ReadNode};
use super::super::entry::Entry;
use super::super::ladder::LeafUpdate;
use super::super::layout::{DEAD, FirstWord, Node, NodeForm, Slot, slot_addr};
use super::super::leaf::class_for;
use super::super::locked::LeafImage;
use super::super::mode::Moved;
use super::super::options::{SmartOptions, SmartShape};
use super::super::tree::{Tree, count, inline_max};
use super::grow::Correcting;
use super::header_from;

/// Refuses values by which an object would leave the tree: a leaf whose value needs another one. Its address would be
/// used again, and a pointer back does not tell the two apart.
///
/// # Errors
/// `Invalid`.
pub(in crate::smart) fn check_spec(spec: &Spec) -> Result<(), IndexError> {
    if spec.value == ValueFormat::Bytes {
        return Err(IndexError::Invalid(
            "nodes=reverse needs values of one length: a value that outgrows its leaf leaves an address that is \
             used again"
                .into(),
        ));
    }
    Ok(())
}

/// Refuses a table whose values do not fit into leaves.
///
/// # Errors
/// `Invalid`.
pub(in crate::smart) fn check_values(
    session: &Session,
    table: &TableSpec<SmartShape>,
) -> Result<(), IndexError> {
    let (form, spec) = (NodeForm::of(table), table.spec);
    let ValueFormat::Fixed(value) = spec.value else { return Ok(()) };
    let class = class_for(form.mode.lead(), spec.key_max(), value);
    if value <= inline_max(session) && class.is_some() {
        return Ok(());
    }
    Err(IndexError::Invalid(format!(
        "nodes=reverse keeps values in leaves, and keys of {} bytes with values of {value} are too long: take \
         nodes=reserve",
        spec.key_max()
    )))
}

/// Refuses to open a table such that its leaves are replaced.
///
/// # Errors
/// `Invalid`.
pub(in crate::smart) fn check_open(options: &SmartOptions) -> Result<(), IndexError> {
    if options.leaf == LeafUpdate::Replaced {
        return Err(IndexError::Invalid(
            "leaf=replaced does not go with a table of nodes=reverse, where no address is used again: take \
             leaf=in-place"
                .into(),
        ));
    }
    Ok(())
}

/// The first word of an object at `addr` to which the word at `parent` leads.
pub(in crate::smart) fn first_word(table: u64, addr: GlobalAddr, parent: GlobalAddr) -> FirstWord {
    let place = (parent.offset() / 8) | (u64::from(parent.server().0) << 42);
    FirstWord(place | (FirstWord::new(table, addr, 0).0 >> 50 << 50))
}

/// Returns whether `word` is the first one of an object of that table at `addr`, whatever word leads there.
pub(in crate::smart) fn is_of_table(word: FirstWord, table: u64, addr: GlobalAddr) -> bool {
    ((word.0 ^ FirstWord::new(table, addr, 0).0) & !DEAD) >> 50 == 0
}

/// Lets a new object at `addr` name the slot at `at`; returns whether that changed its words.
pub(in crate::smart) fn aim(
    table: u64,
    words: &mut [u64],
    addr: GlobalAddr,
    at: GlobalAddr,
) -> bool {
    let back = first_word(table, addr, at).0;
    let is_other = words[0] != back;
    words[0] = back;
    is_other
}

/// The address of slot `index` of a cached node, or of its first unused one.
pub(in crate::smart) fn slot_place(entry: &Entry, index: Option<usize>) -> GlobalAddr {
    slot_addr(entry.addr(), index.unwrap_or_else(|| entry.children()))
}

/// Returns whether the object that a cached slot led to names that slot in its first word.
pub(in crate::smart) fn names_slot(
    form: &NodeForm,
    start: &CachedStart,
    addr: GlobalAddr,
    word: u64,
) -> bool {
    start.at.is_some_and(|at| word == first_word(form.table, addr, at).0)
}

/// Returns whether the node that a cached slot led to names that slot, and no node has come in between.
pub(in crate::smart) fn proves_node(
    form: &NodeForm,
    start: &CachedStart,
    addr: GlobalAddr,
    node: Node<'_>,
) -> bool {
    // The bytes between the cached node and this one are those that both compress.
    names_slot(form, start, addr, node.first_word().0)
        && node.depth() <= start.entry.head(form).dispatch() + 1
}

/// The fault of the first word of a leaf's object, if it names no slot.
pub(in crate::smart) fn leaf_problem(
    form: &NodeForm,
    addr: GlobalAddr,
    word: u64,
) -> Option<String> {
    let names = is_of_table(FirstWord(word), form.table, addr);
    (!names).then(|| format!("INV-SMART-8: the leaf at {addr} names no slot"))
}

/// The child at which a path ends, which a new node comes in front of.
pub(in crate::smart) fn moved(
    landing: &PathEnd,
    other: Option<&LeafImage>,
    (from, to): (GlobalAddr, GlobalAddr),
) -> Option<Moved> {
    match landing {
        PathEnd::Leaf { slot, .. } => {
            let word = other?.back?;
            Some(Moved { addr: slot.addr(), word, from, to, header: None })
        }
        PathEnd::Differs { child, at, .. } => {
            let words = child.image.words();
            let (word, header) = (words[0], Some((words[1], at + 1)));
            Some(Moved { addr: child.addr, word, from, to, header })
        }
        PathEnd::None | PathEnd::Tomb { .. } => None,
    }
}

/// Caches a node that this client has moved under a new one in front of which `key` leaves its way.
pub(in crate::smart) fn remember_moved(
    tree: &Tree,
    child: &mut ReadNode,
    moved: Moved,
    key: &[u8],
) {
    let Some((header, depth)) = moved.header else { return };
    let Some(byte) = child.node(tree).byte_at(depth - 1) else { return };
    let word = first_word(tree.shape.table, moved.addr, moved.to).0;
    let words = child.image.words_mut();
    (words[0], words[1]) = (word, header_from(&tree.shape, header, depth));
    let prefix = [&key[..depth - 1], &[byte]].concat();
    tree.remember(child, &prefix);
}

/// Lets a child name the slot that leads to it now.
///
/// Cost: 1 CAS for a leaf, 2 for a node, in 1 round trip; more if others have changed these words.
pub(in crate::smart) async fn turn(
    tree: &Tree,
    session: &Session,
    moved: Moved,
) -> Result<(), IndexError> {
    let (form, addr) = (&tree.shape, moved.addr);
    let naming = |slot| first_word(form.table, addr, slot).0;
    let new = naming(moved.to);
    let mut word = Some(moved.word).filter(|word| *word != new);
    let mut header = moved.header;
    while word.is_some() || header.is_some() {
        let mut list = Vec::with_capacity(2);
        list.extend(word.map(|expected| Cas { at: addr, expected, new }));
        list.extend(header.map(|(expected, depth)| {
            let new = header_from(form, expected, depth);
            Cas { at: addr.plus(8), expected, new }
        }));
        let found = session.reliable().cas_many(&list).await?;
        let mut found = found.into_iter();
        word = word.and_then(|expected| {
            let now = found.next().filter(|now| *now != expected);
            // Another has brought it here from further up; or it is further down.
            now.filter(|now| *now == naming(moved.from))
        });
        header = header.and_then(|(expected, depth)| {
            let now = found.next().filter(|now| *now != expected)?;
            // Its node has grown.
            (Node::new(form, &[0, now]).depth() < depth).then_some((now, depth))
        });
    }
    Ok(())
}

/// Lets a task correct the first word of the object at `addr`, which was `word` when a fresh slot led there. One task
/// corrects; otherwise the next reader does.
pub(in crate::smart) fn correct_back(
    tree: &Tree,
    session: &Session,
    (at, slot): (GlobalAddr, Slot),
    (addr, word): (GlobalAddr, u64),
) {
    let new = first_word(tree.shape.table, addr, at).0;
    if word == new || slot.is_frozen() || tree.correcting.swap(true, Ordering::SeqCst) {
        return;
    }
    count(&tree.counts.stale_back);
    let (correcting, pin) = (Correcting(Arc::clone(&tree.correcting)), session.pin_for_task());
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
pub(in crate::smart) fn correct_node(tree: &Tree, session: &Session, held: &ReadNode) {
    if let Some(up) = held.up {
        let word = held.node(tree).first_word().0;
        correct_back(tree, session, (up.at, Slot(up.word)), (held.addr, word));
    }
}
