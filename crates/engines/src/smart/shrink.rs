//! Shrinking: gives nodes that have lost their children the size that the rest needs.
//!
//! A task that has unlinked a leaf looks at the leaf's node, and then at those above that changes of it have
//! concerned. It replaces a node as an insert does that needs room (`relocate.rs`): it marks the node dead, freezes
//! each word, and changes the word in the parent by one CAS. Any client that meets the dead node does the same.
//!
//! | children | in the node's place |
//! |---|---|
//! | none | a slot without a child |
//! | one leaf | the leaf |
//! | one node whose compressed bytes begin where the dead node's do, or before | that node |
//! | one other node; at most a quarter of the slots | a smaller node |
//!
//! In the first three lines all clients store the same word. If a completion is lost, the word does not tell a client
//! whether its own CAS stored it. So the client that retires a node with at most one child claims it first: it CASes
//! an own number into the node's last slot without a child. All clients find the same slot, because frozen words
//! stay; readers see no child there. Of several that claim a node, one retires it.
//!
//! A word can come back to a parent's slot: that of a leaf which was moved under a new node and is alone again. A
//! client that CASes from such a word is right: while it stands there, nothing else is below that edge.

use farleaf_index::IndexError;
use farleaf_pool::{Retiring, Session, Tries};

use super::descent::ReadNode;
use super::layout::{Node, NodeType, Slot, slot_addr};
use super::relocate::{Dying, live_slots};
use super::tree::{Fail, Tree, count};

/// Nodes that are replaced after one leaf was unlinked.
const ROUNDS_MAX: usize = 32;
/// A node with at most one in so many slots in use is made smaller.
const SPARSE: usize = 4;

impl Tree {
    /// Replaces the nodes in which the way to `key` ends, as long as they have too few children. `held` is the last
    /// one, as it was after its slot lost its leaf.
    ///
    /// Cost: none if it has enough children; 1 READ if it has one, a node. For each node that is replaced the READs of
    /// the way, and what [`Tree::relocate`] costs; without the WRITE if a child takes its place, and with 1 CAS
    /// more if it has at most one child.
    pub(super) async fn shrink(
        &self,
        session: &Session,
        held: ReadNode,
        key: &[u8],
    ) -> Result<(), IndexError> {
        if self.shape.mode.keeps_nodes() {
            // Nodes stay where they are: their room is their own.
            return Ok(());
        }
        let mut last = held;
        for _ in 0..ROUNDS_MAX {
            let Some(dying) = self.sparse(session, &last).await? else { return Ok(()) };
            self.relocate_now(session, dying, key).await?;
            let mut path = match self.way(session, key).await {
                Ok(path) => path,
                Err(Fail::Again) => return Ok(()),
                Err(Fail::Error(error)) => return Err(error),
            };
            let Some(held) = path.nodes.pop() else { return Ok(()) };
            last = held;
        }
        Ok(())
    }

    /// The node, if it has too few children for its size.
    async fn sparse(
        &self,
        session: &Session,
        held: &ReadNode,
    ) -> Result<Option<Dying>, IndexError> {
        let Some(dying) = Dying::of(held).filter(|dying| !dying.is_root(self)) else {
            return Ok(None);
        };
        let node = held.node(self);
        let (live, of) = (node.live(), NodeType::holding(node.capacity()));
        let gets_smaller = self.ladder.replacing(live, self.first_type()) < of;
        let is_sparse = node.first_word().is_dead()
            || live <= node.capacity() / SPARSE && gets_smaller
            || live <= 1 && self.heir(session, &dying).await?.is_some();
        Ok(is_sparse.then_some(dying))
    }

    /// The word that takes the place of a node with at most one child; `None` if another node must.
    pub(super) async fn heir(
        &self,
        session: &Session,
        dying: &Dying,
    ) -> Result<Option<Slot>, IndexError> {
        let edge = Slot(dying.up.word).edge();
        if dying.is_root(self) {
            return Ok(None);
        }
        let mut children = live_slots(&dying.words);
        let (child, is_alone) = (children.next(), children.next().is_none());
        let Some(child) = child else { return Ok(Some(Slot::tomb(edge))) };
        let takes_its_place = is_alone
            && (child.is_leaf() || {
                let reliable = session.reliable();
                let head = reliable.read(child.addr(), reliable.buf(16)).await?;
                Node::new(&self.shape, head.words()).depth() <= dying.matched
            });
        Ok(takes_its_place.then(|| child.under(edge)))
    }

    /// Stores `heir` over the word that leads to a frozen node, and retires the node if this client claims it.
    pub(super) async fn collapse(
        &self,
        session: &Session,
        dying: &Dying,
        key: &[u8],
        heir: Slot,
        retiring: Retiring,
    ) -> Result<(), IndexError> {
        let (up, mut tries) = (dying.up, Tries::default());
        let expected = Slot(up.word).thawed().0;
        debug_assert!(
            dying.is_frozen(),
            "INV-SMART-3: {} gives way before it is frozen",
            dying.addr
        );
        debug_assert!(live_slots(&dying.words).nth(1).is_none(), "INV-SMART-3: children are lost");
        let changing = self.changing(up.node).await;
        let may_have_won = loop {
            let mark = session.reliable().post_mark();
            let error = match session.client().cas(up.at, expected, heir.0).await {
                Ok(found) if found == expected => {
                    changing.stored(session, up.index(), (Slot(expected), heir));
                    break true;
                }
                Ok(_) => {
                    changing.lost();
                    break false;
                }
                Err(error) => error,
            };
            session.reliable().again(&mut tries, mark, error).await?;
            if !self.reaches(session, key, dying.addr).await? {
                break true;
            }
        };
        self.retire_claimed(session, dying, (may_have_won, retiring)).await?;
        count(if may_have_won { &self.counts.nodes_removed } else { &self.counts.relocate_lost });
        Ok(())
    }

    /// Retires a node that has left the tree, maybe by a CAS of this client. One with at most one child has to be
    /// claimed.
    pub(super) async fn retire_claimed(
        &self,
        session: &Session,
        dying: &Dying,
        (may_have_won, retiring): (bool, Retiring),
    ) -> Result<(), IndexError> {
        if may_have_won && self.claim(session, dying).await? {
            session.retire(retiring);
        } else {
            session.cancel_retire(retiring);
        }
        Ok(())
    }

    /// Claims a frozen node that no path leads to. 1 CAS, none if it has several children.
    async fn claim(&self, session: &Session, dying: &Dying) -> Result<bool, IndexError> {
        let slots = &dying.words[2..];
        if dying.is_root(self) || live_slots(&dying.words).nth(1).is_some() {
            return Ok(true);
        }
        let Some(at) = slots.iter().rposition(|word| !Slot(*word).has_child()) else {
            return Ok(true);
        };
        let free = Slot(slots[at]);
        if free.is_claimed() {
            return Ok(false);
        }
        let (place, own) = (slot_addr(dying.addr, at), free.claimed(session.lock_token()));
        Ok(session.reliable().cas(place, free.0, own.0).await? == free.0)
    }
}
