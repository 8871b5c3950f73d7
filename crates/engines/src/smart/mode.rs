//! Node mode: the room of a table's nodes and the proof of a cached pointer, chosen when the table is opened.
//!
//! By default a larger node takes the place of a full one, and an object proves a cached pointer by the epoch in which
//! it was made. The paper's modes (`paper/`) reserve the room of each node, and one of them proves by pointers back.
//! This file alone names that folder: each function is one decision. Builds without the feature `figures` have the
//! default alone, and refuse tables of the other modes.

#![cfg_attr(
    not(feature = "figures"),
    allow(unused_variables, reason = "only the other modes ask for some arguments")
)]

use farleaf_fabric::GlobalAddr;
use farleaf_index::{IndexError, Spec, TableSpec};
use farleaf_pool::{Cas, Session};

use super::descent::{CachedStart, PathEnd, ReadNode};
use super::entry::Entry;
use super::ladder::NodeTypes;
use super::layout::{FirstWord, Node, NodeForm, NodeType, Slot};
use super::leaf::Leaf;
use super::locked::LeafImage;
use super::options::{NodeRoom, SmartOptions, SmartShape};
#[cfg(feature = "figures")]
use super::paper::{self, grow, reverse};
use super::tree::{Fail, Tree};

/// The mode of a table's nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeMode {
    /// A node has as much room as its slots need. Proof is the epoch of an object.
    Relocate,
    /// A node has room for all slots, and grows in place. Proof is the epoch of an object.
    #[cfg(feature = "figures")]
    Reserve,
    /// A node has room for all slots. Proof is the address of the slot that leads to an object.
    #[cfg(feature = "figures")]
    Reverse,
}

/// A child that a new node has come in front of, if objects point back.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(feature = "figures"), allow(dead_code, reason = "no build without it makes one"))]
pub(super) struct Moved {
    /// The child, and its first word when it was READ.
    pub(super) addr: GlobalAddr,
    pub(super) word: u64,
    /// The slots that led to it before and lead to it now.
    pub(super) from: GlobalAddr,
    pub(super) to: GlobalAddr,
    /// A node's header when it was READ, and the depth that it has now.
    pub(super) header: Option<(u64, usize)>,
}

impl NodeMode {
    /// The mode of a table of that shape, which this build has.
    pub(super) fn of(shape: &SmartShape) -> NodeMode {
        match shape.nodes {
            #[cfg(feature = "figures")]
            NodeRoom::Reserve => NodeMode::Reserve,
            #[cfg(feature = "figures")]
            NodeRoom::Reverse => NodeMode::Reverse,
            _ => NodeMode::Relocate,
        }
    }

    /// Refuses a mode that this build leaves out.
    ///
    /// # Errors
    /// `Invalid`.
    pub(super) fn check_build(room: NodeRoom) -> Result<(), IndexError> {
        check_room(room, cfg!(feature = "figures"))
    }

    /// Refuses keys and values that the mode cannot hold.
    ///
    /// # Errors
    /// `Invalid`.
    pub(super) fn check_spec(room: NodeRoom, spec: &Spec) -> Result<(), IndexError> {
        match room {
            #[cfg(feature = "figures")]
            NodeRoom::Reverse => reverse::check_spec(spec),
            _ => Ok(()),
        }
    }

    /// Refuses a table whose values the pool's leaves cannot hold.
    ///
    /// # Errors
    /// `Invalid`.
    pub(super) fn check_values(
        session: &Session,
        table: &TableSpec<SmartShape>,
    ) -> Result<(), IndexError> {
        match NodeMode::of(&table.shape) {
            #[cfg(feature = "figures")]
            NodeMode::Reverse => reverse::check_values(session, table),
            _ => Ok(()),
        }
    }

    /// Refuses settings by which no table of the mode can be opened.
    ///
    /// # Errors
    /// `Invalid`.
    pub(super) fn check_open(shape: &SmartShape, options: &SmartOptions) -> Result<(), IndexError> {
        match NodeMode::of(shape) {
            #[cfg(feature = "figures")]
            NodeMode::Reverse => reverse::check_open(options),
            _ => Ok(()),
        }
    }
}

/// Room and types.
impl NodeMode {
    /// Each node has room for all slots.
    fn reserves(self) -> bool {
        match self {
            NodeMode::Relocate => false,
            #[cfg(feature = "figures")]
            NodeMode::Reserve | NodeMode::Reverse => true,
        }
    }

    /// The first word of each object names the slot that leads there.
    fn points_back(self) -> bool {
        match self {
            #[cfg(feature = "figures")]
            NodeMode::Reverse => true,
            _ => false,
        }
    }

    /// No node but the root ever leaves the tree (`INV-SMART-15`).
    pub(super) fn keeps_nodes(self) -> bool {
        self.reserves()
    }

    /// No leaf ever leaves the tree.
    pub(super) fn keeps_leaves(self) -> bool {
        self.points_back()
    }

    /// A node that comes in front of a child changes that child, so a fresh slot may lead to one that is deeper.
    pub(super) fn moves_children(self) -> bool {
        self.points_back()
    }

    /// A new object names the slot that will lead to it, so that slot's address comes first.
    pub(super) fn needs_parents(self) -> bool {
        self.points_back()
    }

    /// Only changes of slots change a node, so that a cache entry can be exact. Otherwise a walk changes the header of
    /// a node that reserves its room, and an insert the header and first word of a node that points back.
    pub(super) fn allows_exact_entries(self) -> bool {
        !self.reserves()
    }

    /// A cache entry keeps the places of slots, so that an insert can CAS one of a node that it has not READ.
    pub(super) fn keeps_places(self) -> bool {
        self.reserves() && !self.points_back()
    }

    /// A cache entry keeps slots in the order of the node.
    pub(super) fn keeps_order(self) -> bool {
        self.points_back()
    }

    /// Words of a leaf's object in front of its head.
    pub(super) fn lead(self) -> usize {
        usize::from(self.points_back())
    }

    /// The type of a new node whose keys suggest `first`.
    pub(super) fn first(self, first: NodeType) -> NodeType {
        match self {
            NodeMode::Relocate => first,
            #[cfg(feature = "figures")]
            NodeMode::Reserve | NodeMode::Reverse => paper::reserved(0),
        }
    }

    /// The type of a new node of a table whose `first` it is, with the ladder's `types`.
    pub(super) fn first_type(self, types: NodeTypes, first: NodeType) -> NodeType {
        match self {
            NodeMode::Relocate => types.first(first),
            #[cfg(feature = "figures")]
            NodeMode::Reserve | NodeMode::Reverse => paper::first_type(types, first),
        }
    }

    /// The type of a new node with so many slots.
    pub(super) fn holding(self, types: NodeTypes, slots: usize) -> NodeType {
        match self {
            NodeMode::Relocate => types.holding(slots),
            #[cfg(feature = "figures")]
            NodeMode::Reserve | NodeMode::Reverse => paper::grown(types, slots),
        }
    }

    /// Slots that a node has room for.
    pub(super) fn room(self, node: Node<'_>) -> usize {
        if self.reserves() { NodeType::TOP.capacity() } else { node.capacity() }
    }

    /// The words that count of a node that was READ; `of` is the type that its header has.
    pub(super) fn counted(self, words: &[u64], of: Option<NodeType>) -> &[u64] {
        match self {
            NodeMode::Relocate => words,
            #[cfg(feature = "figures")]
            NodeMode::Reserve | NodeMode::Reverse => paper::counted(words, of),
        }
    }

    /// Returns whether a node that was READ as `read` can be there, by its own type and the slots that count.
    pub(super) fn fits(self, node: Node<'_>, read: NodeType) -> bool {
        match self {
            NodeMode::Relocate => {
                node.node_type() == Some(read) && node.capacity() == read.capacity()
            }
            #[cfg(feature = "figures")]
            NodeMode::Reserve | NodeMode::Reverse => paper::fits(node, read),
        }
    }
}

/// First words, and what they prove.
impl NodeMode {
    /// The first word of a node that is made at view `birth`, and linked at `parent`.
    pub(super) fn first_word(
        self,
        table: u64,
        addr: GlobalAddr,
        birth: u64,
        parent: GlobalAddr,
    ) -> FirstWord {
        match self {
            #[cfg(feature = "figures")]
            NodeMode::Reverse => reverse::first_word(table, addr, parent),
            _ => FirstWord::new(table, addr, birth),
        }
    }

    /// Returns whether `word` is the first one of a node of that table at `addr`, dead or alive.
    pub(super) fn is_of_table(self, word: FirstWord, table: u64, addr: GlobalAddr) -> bool {
        match self {
            #[cfg(feature = "figures")]
            NodeMode::Reverse => reverse::is_of_table(word, table, addr),
            _ => word.fits(table, addr),
        }
    }

    /// Lets a new object at `addr` name the slot at `at` in the first of its `words`; returns whether that changed it.
    pub(super) fn aim(
        self,
        table: u64,
        words: &mut [u64],
        addr: GlobalAddr,
        at: GlobalAddr,
    ) -> bool {
        match self {
            #[cfg(feature = "figures")]
            NodeMode::Reverse => reverse::aim(table, words, addr, at),
            _ => false,
        }
    }

    /// The address of slot `index` of a cached node, or of its first unused one, if that proves anything.
    pub(super) fn slot_place(self, entry: &Entry, index: Option<usize>) -> Option<GlobalAddr> {
        match self {
            #[cfg(feature = "figures")]
            NodeMode::Reverse => Some(reverse::slot_place(entry, index)),
            _ => None,
        }
    }

    /// Returns whether the node that a cached slot led to proves that pointer, if it is alive.
    pub(super) fn proves_node(
        self,
        form: &NodeForm,
        start: &CachedStart,
        addr: GlobalAddr,
        node: Node<'_>,
    ) -> bool {
        match self {
            #[cfg(feature = "figures")]
            NodeMode::Reverse => reverse::proves_node(form, start, addr, node),
            _ => node.first_word().is_born_by(start.entry.c()),
        }
    }

    /// Returns whether the leaf in the object at `addr`, to which a cached slot led, proves that pointer. `word` is the
    /// first one of the object.
    pub(super) fn proves_leaf(
        self,
        form: &NodeForm,
        start: &CachedStart,
        (addr, word): (GlobalAddr, u64),
        leaf: Leaf<'_>,
    ) -> bool {
        match self {
            #[cfg(feature = "figures")]
            NodeMode::Reverse => reverse::names_slot(form, start, addr, word),
            _ => leaf.is_born_by(start.entry.c()),
        }
    }

    /// The fault of the first word of the object of a leaf in a walk, if it has one.
    pub(super) fn leaf_problem(
        self,
        form: &NodeForm,
        addr: GlobalAddr,
        word: u64,
    ) -> Option<String> {
        match self {
            #[cfg(feature = "figures")]
            NodeMode::Reverse => reverse::leaf_problem(form, addr, word),
            _ => None,
        }
    }
}

/// Changes.
impl NodeMode {
    /// The child at which a path ends, if a new node in front of it changes it. `from` is the slot that leads there, and
    /// `to` the one of the new node.
    pub(super) fn moved(
        self,
        landing: &PathEnd,
        other: Option<&LeafImage>,
        (from, to): (GlobalAddr, GlobalAddr),
    ) -> Option<Moved> {
        match self {
            #[cfg(feature = "figures")]
            NodeMode::Reverse => reverse::moved(landing, other, (from, to)),
            _ => None,
        }
    }

    /// Completes a slot's CAS before it is acknowledged: slot `index` counts, and a moved child names its new slot.
    ///
    /// Cost: none by default. 1 CAS or 2 if the node grows, and as many for a moved child; 1 round trip each.
    pub(super) async fn linked(
        self,
        tree: &Tree,
        session: &Session,
        (held, index): (&mut ReadNode, usize),
        moved: Option<Moved>,
    ) -> Result<(), IndexError> {
        match self {
            NodeMode::Relocate => Ok(()),
            #[cfg(feature = "figures")]
            NodeMode::Reserve | NodeMode::Reverse => {
                grow::linked(tree, session, held, index).await?;
                match moved {
                    Some(moved) => reverse::turn(tree, session, moved).await,
                    None => Ok(()),
                }
            }
        }
    }

    /// Lets slot `index` count, which another client has filled: that client may be dead. Cost: as for `linked`.
    pub(super) async fn taken(
        self,
        tree: &Tree,
        session: &Session,
        (held, index): (&mut ReadNode, usize),
    ) -> Result<(), IndexError> {
        match self {
            NodeMode::Relocate => Ok(()),
            #[cfg(feature = "figures")]
            NodeMode::Reserve | NodeMode::Reverse => grow::grow(tree, session, held, index).await,
        }
    }

    /// Caches a node that this client has moved under a new one in front of which `key` leaves its way.
    pub(super) fn remember_moved(
        self,
        tree: &Tree,
        child: &mut ReadNode,
        moved: Moved,
        key: &[u8],
    ) {
        match self {
            #[cfg(feature = "figures")]
            NodeMode::Reverse => reverse::remember_moved(tree, child, moved, key),
            _ => {}
        }
    }
}

/// Reads.
impl NodeMode {
    /// READs a node again in which more slots count than were READ.
    ///
    /// # Errors
    /// `Again` if it is another node by now. `Corrupt` if its header and its type differ.
    pub(super) async fn read_whole(
        self,
        tree: &Tree,
        session: &Session,
        held: &mut ReadNode,
        key: &[u8],
    ) -> Result<(), Fail> {
        match self {
            NodeMode::Relocate => Err(tree
                .corrupt(held.addr, "its header counts slots that it has no room for")
                .into()),
            #[cfg(feature = "figures")]
            NodeMode::Reserve | NodeMode::Reverse => {
                grow::read_whole(tree, session, held, key).await
            }
        }
    }

    /// A fresh slot has led to a leaf, and `word` is the first one of its object: a task may correct it.
    pub(super) fn met_leaf(
        self,
        tree: &Tree,
        session: &Session,
        (at, slot): (GlobalAddr, Slot),
        word: u64,
    ) {
        match self {
            #[cfg(feature = "figures")]
            NodeMode::Reverse => {
                reverse::correct_back(tree, session, (at, slot), (slot.addr(), word));
            }
            _ => {}
        }
    }

    /// A fresh slot has led to a node: a task may correct its type in that slot, and the node's first word.
    pub(super) fn met_node(self, tree: &Tree, session: &Session, held: &ReadNode, slot: Slot) {
        match self {
            NodeMode::Relocate => {}
            #[cfg(feature = "figures")]
            NodeMode::Reserve | NodeMode::Reverse => {
                grow::correct_hints(
                    tree,
                    session,
                    Vec::from_iter(grow::stale_hint(tree, held, slot)),
                );
                if self == NodeMode::Reverse {
                    reverse::correct_node(tree, session, held);
                }
            }
        }
    }

    /// The correction of the slot that led to a node, if its type is behind.
    pub(super) fn stale_hint(self, tree: &Tree, held: &ReadNode, slot: Slot) -> Option<Cas> {
        match self {
            NodeMode::Relocate => None,
            #[cfg(feature = "figures")]
            NodeMode::Reserve | NodeMode::Reverse => grow::stale_hint(tree, held, slot),
        }
    }

    /// Lets a task make these corrections, unless one is at it: then the next reader meets them.
    pub(super) fn correct_hints(self, tree: &Tree, session: &Session, list: Vec<Cas>) {
        match self {
            NodeMode::Relocate => {}
            #[cfg(feature = "figures")]
            NodeMode::Reserve | NodeMode::Reverse => grow::correct_hints(tree, session, list),
        }
    }

    /// The slot by which a walk READs all words of a node.
    pub(super) fn whole_slot(self, slot: Slot) -> Slot {
        match self {
            NodeMode::Relocate => slot,
            #[cfg(feature = "figures")]
            NodeMode::Reserve | NodeMode::Reverse => slot.with_type(NodeType::TOP),
        }
    }

    /// Lets all used slots of a node count whose words a walk has READ. One behind those that count may lead to a leaf
    /// of a dead client: the node grows, as with the next insert, so that the walk visits what is linked.
    pub(super) async fn grow_over(
        self,
        tree: &Tree,
        session: &Session,
        held: &mut ReadNode,
    ) -> Result<(), IndexError> {
        match self {
            NodeMode::Relocate => Ok(()),
            #[cfg(feature = "figures")]
            NodeMode::Reserve | NodeMode::Reverse => grow::grow_over(tree, session, held).await,
        }
    }
}

/// Refuses a room of nodes unless it is the default or a build `has_figures`.
fn check_room(room: NodeRoom, has_figures: bool) -> Result<(), IndexError> {
    if has_figures || room == NodeRoom::Relocate {
        return Ok(());
    }
    Err(IndexError::Invalid(format!(
        "this program was built without nodes={room}, which is for figures: take nodes=relocate, or build it with the \
         feature figures of farleaf-engines"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_without_figures_has_the_default_alone() {
        for room in [NodeRoom::Relocate, NodeRoom::Reserve, NodeRoom::Reverse] {
            assert_eq!(check_room(room, true), Ok(()));
        }
        assert_eq!(check_room(NodeRoom::Relocate, false), Ok(()));
        for (room, name) in
            [(NodeRoom::Reserve, "nodes=reserve"), (NodeRoom::Reverse, "nodes=reverse")]
        {
            let Err(IndexError::Invalid(told)) = check_room(room, false) else {
                panic!("{name} is taken");
            };
            assert!(told.contains(name) && told.contains("feature figures"), "{told}");
        }
    }
}
