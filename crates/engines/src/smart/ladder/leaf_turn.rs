//! Leaf turn: changes of one leaf in this compute server go one after the other, and pass its lock on.
//!
//! With `hand_over` a change that finds the leaf's lock taken by another one of its compute server waits in a
//! [`HandOver`] queue, without remote operations. The holder's last chain leaves the token of the next change in the lock
//! word, in front of the content. So the leaf is not free for a moment, and the next change has its lock and its
//! content: it needs no CAS. Changes that expect a value, that remove the key or that need a redo record neither wait here
//! nor pass a lock on.
//!
//! - `INV-SMART-16` A lock word gets the token of a change that waits, and does so in front of the content of the change
//!   before it. A death in between leaves the old or the new content, as that content needs no redo record. The task that
//!   waits learns of it after the chain has completed, and keeps its session until then (`INV-SMART-14`).

use farleaf_fabric::{Endpoint, GlobalAddr};
use farleaf_index::local::hand_over::NodeImage;
use farleaf_index::local::{Entered, Holding};
use farleaf_pool::{Session, is_open};

use super::super::locked::{LeafContent, LeafImage};
use super::Ladder;
use super::switches::LeafLock;

/// The turn of a change at a leaf.
#[derive(Debug)]
pub(in crate::smart) struct LeafTurn {
    pub(in crate::smart) turn: Holding,
    /// The leaf's content, if its lock holds the token of the turn.
    pub(in crate::smart) passed: Option<NodeImage>,
    /// Another change of this compute server came before.
    pub(in crate::smart) has_waited: bool,
}

impl Ladder {
    /// Returns whether some changes of a leaf go one after the other.
    pub(in crate::smart) fn has_turns(&self) -> bool {
        self.lock == LeafLock::Rear && self.turns.is_some()
    }

    /// Returns whether changes to such a content that expect no value go one after the other.
    pub(in crate::smart) fn queues(&self, content: &LeafContent) -> bool {
        self.has_turns() && matches!(content, LeafContent::Inline(_))
    }

    /// Waits for the turn at a leaf, if changes of it go one after the other. In a task, which runs to its end. No
    /// remote operation.
    pub(in crate::smart) async fn leaf_turn(
        &self,
        session: &Session,
        leaf: &LeafImage,
    ) -> Option<LeafTurn> {
        let turns = self.turns.as_ref()?;
        let (began_ns, lock) = (session.endpoint().now_ns(), leaf.lock_addr());
        let (token, bytes) = (session.lock_token(), leaf.words.len() * 8);
        let orphan = {
            let (session, addr) = (session.clone(), leaf.addr);
            move |turn: Holding| release_leaf(&session, (addr, bytes), turn)
        };
        let (turn, entered) = turns.enter(lock, token, leaf.addr, orphan).await;
        let passed = match entered {
            Entered::Ask => None,
            Entered::Passed(image) => image,
        };
        let has_waited = session.endpoint().now_ns() > began_ns;
        Some(LeafTurn { turn, passed, has_waited })
    }
}

/// Frees a leaf whose lock holds the token of a turn that nobody waits for any more, by a task.
pub(in crate::smart) fn release_leaf(
    session: &Session,
    (addr, bytes): (GlobalAddr, usize),
    turn: Holding,
) {
    session.spawn(async move |session| {
        let reliable = session.maintenance();
        // The content has landed whole, and nobody else changes it.
        match reliable.read(addr, reliable.buf(bytes)).await {
            Ok(image) => {
                let (by, lock) = (image.words()[2], addr.plus(bytes as u64 - 8));
                // An error is final: this compute server has been cut off.
                let _ = reliable.cas_release(lock, turn.token(), by).await;
            }
            Err(error) => debug_assert!(!is_open(error), "maintenance tries again"),
        }
        drop(turn);
    });
}
