//! Own leaves: guarded leaves that one compute server alone changes, without lock words.
//!
//! Ranges of a table's keys may have owners (`crates/index/src/compute`). A bound between two ranges is the high fence of a
//! leaf, so that a leaf has one owner. Its owner changes slots by a READ and a WRITE: tasks of the owner take turns at the
//! leaf, and nobody else writes there. Nodes above the leaves stay shared, under their lock words.
//!
//! - `INV-OWN-1` Bounds of ranges are high fences of leaves. An owner merges leaves only if both are its own by one view, and
//!   no range is being given away ([`LeafOwner::owns`]).
//! - `INV-OWN-2` A task that has an own leaf's turn is inside the owner's guard until all that it has posted to the leaf has
//!   landed, also if its caller goes away. So a drained guard means that no WRITE is under way.
//! - `INV-OWN-3` A change that needs a redo record (split, merge, wide update) holds the leaf's lock word as well: a record
//!   names its change by the token of that word. Before a range of the dead opens, every such record has been carried out
//!   ([`BlinkTree::finish_words_of_dead`]): its new owner looks at no lock word.
//! - `INV-OWN-4` Only a leaf's owner mends its slots. A compute server that works on keys without an owner changes leaves by
//!   their lock words, and nobody owns them meanwhile. Other readers mend their private image: a slot that its dead or living
//!   writer has half written holds a pair in it if and only if its next holder makes it hold that pair.

use std::any::Any;
use std::fmt;
use std::pin::pin;
use std::sync::Arc;

use farleaf_fabric::{Buf, GlobalAddr};
use farleaf_pool::Session;

use super::remembered::Remembered;
use super::{BlinkFail, BlinkTree};
use crate::bnode::Node;
use crate::join::within;
use crate::local::{Entered, HandOver};
use crate::remote_lock::Lock;
use crate::retry::{Attempts, RetryPolicy};
use crate::retry::{LOCK_WAIT_MAX_NS, LockWait, locked_too_long};
use crate::{IndexError, Seek};

farleaf_fabric::canaries! {
    pub MERGE_ACROSS_BOUND = "merge-across-bound",
        "an owner merges a leaf of its own with one of another compute server";
}

/// The owner of ranges of a tree's keys, as the tree asks for it.
pub trait LeafOwner: fmt::Debug + Send + Sync {
    /// Enters the owner's guard for a task that the caller, which is inside, may leave behind; left when dropped.
    fn enter(&self, session: &Session) -> Box<dyn Any>;

    /// Returns whether all keys above `low`, up to `high`, are in one range of this compute server's, and no range is being
    /// given away.
    fn owns(&self, low: Option<&[u8]>, high: Option<&[u8]>) -> bool;
}

/// The compute servers that change the guarded leaves of a tree.
#[derive(Debug)]
pub enum LeafRule {
    /// Any, under the leaves' lock words.
    Shared,
    /// This one, those of the keys that it works on.
    Own(OwnLeaves),
    /// Their owners. This one changes leaves that nobody owns, under their lock words, and merges none.
    Unowned,
}

/// The turns at leaves that this compute server alone changes.
#[derive(Debug)]
pub struct OwnLeaves {
    owner: Box<dyn LeafOwner>,
    pub(super) turns: Arc<HandOver>,
}

impl OwnLeaves {
    /// The leaves of `owner`. A turn that goes on takes the leaf's content along if `hand_image`.
    pub fn new(owner: impl LeafOwner + 'static, hand_image: bool) -> Self {
        // No other compute server waits.
        let turns = HandOver::new(if hand_image { u32::MAX } else { 0 });
        OwnLeaves { owner: Box::new(owner), turns }
    }

    pub(super) fn enter(&self, session: &Session) -> Box<dyn Any> {
        self.owner.enter(session)
    }

    /// The left one of two leaves below `parent` that are own and of which the child `index` is one: with its right
    /// neighbour if that is own, else with its left one. By the separators, which enclose the leaves.
    pub(super) fn left_of_pair(&self, parent: &Node<'_, u64>, index: usize) -> Option<usize> {
        let fence = |has: bool, fence: Vec<u8>| has.then_some(fence);
        let is_own = |left: usize| {
            let [mut low, mut high] = [Vec::new(), Vec::new()];
            let has_low = match left {
                0 => parent.low_fence(&mut low),
                _ => parent.separator(left - 1, &mut low),
            };
            let has_high = match left + 1 < parent.count() {
                true => parent.separator(left + 1, &mut high),
                false => parent.high_fence(&mut high),
            };
            let (low, high) = (fence(has_low, low), fence(has_high, high));
            MERGE_ACROSS_BOUND.is_armed() || self.owner.owns(low.as_deref(), high.as_deref())
        };
        let right = Some(index).filter(|index| *index < parent.count());
        right.into_iter().chain(index.checked_sub(1)).find(|left| is_own(*left))
    }
}

impl BlinkTree {
    /// The turns at nodes of `level`, if this compute server alone changes them.
    pub(super) fn own_leaves(&self, level: u8) -> Option<&OwnLeaves> {
        let is_guarded = self.is_guarded(level);
        self.remembered.as_ref().filter(|_| is_guarded).and_then(Remembered::own_leaves)
    }

    /// Returns whether nodes of `level` are not merged here.
    pub(super) fn leaves_unmerged(&self, level: u8) -> bool {
        let is_unowned = |it: &Remembered| matches!(it.rule, LeafRule::Unowned);
        self.is_guarded(level) && self.remembered.as_ref().is_some_and(is_unowned)
    }

    /// The same tree for work on keys that nobody owns. No remote operation.
    #[must_use]
    pub fn unowned(&self) -> Arc<Self> {
        let mut tree = BlinkTree::with(self.meta, self.layout, self.options, false);
        tree.guarded = self.guarded;
        tree.remembered = self.remembered.as_ref().map(|it| {
            let (locks, bytes) = (it.locks.clone(), self.layout.node_bytes());
            Remembered::new(locks, it.options, bytes, LeafRule::Unowned)
        });
        Arc::new(tree)
    }

    /// Takes the turn at an own leaf, and READs it unless its content comes along.
    pub(super) async fn lock_own(
        self: &Arc<Self>,
        session: &Session,
        own: &OwnLeaves,
        addr: GlobalAddr,
    ) -> Result<(Lock, Buf), BlinkFail> {
        let (inside, token) = (own.enter(session), session.lock_token());
        let entering = own.turns.enter(addr, token, addr, drop);
        let entered = pin!(session.reliable().within(entering));
        let entered = within(session.endpoint(), entered, LOCK_WAIT_MAX_NS).await.flatten();
        let Some((turn, entered)) = entered else {
            return Err(BlinkFail::Error(locked_too_long("node", addr, token)));
        };
        let lock = Lock::local(session, self.lock_word_of(addr), turn, inside);
        let reliable = session.reliable();
        let mut image = reliable.buf(self.bytes_at(0));
        match entered {
            Entered::Passed(Some(content)) => image.words_mut().copy_from_slice(&content),
            Entered::Ask | Entered::Passed(None) => image = reliable.read(addr, image).await?,
        }
        Ok((lock, image))
    }

    /// Takes the lock word of the node at `addr`.
    pub(super) async fn take_word(
        self: &Arc<Self>,
        session: &Session,
        addr: GlobalAddr,
    ) -> Result<Lock, IndexError> {
        let (word, mut wait) = (self.lock_word_of(addr), LockWait::default());
        loop {
            let mut lock = Lock::about_to_take(session, word, session.lock_token());
            let holder = lock.take(0).await?;
            if holder == 0 {
                return Ok(lock);
            }
            lock.disarm();
            if wait.again(session, ("node", addr), holder).await? {
                self.recover(session, word, holder).await?;
            }
        }
    }

    /// The separators that `is_inside` of the highest level that has such, on the way to `seek`.
    ///
    /// Cost: a READ for each level whose node is not cached.
    ///
    /// # Errors
    /// Those of the READs.
    pub async fn separators(
        self: &Arc<Self>,
        session: &Session,
        seek: Seek<'_>,
        is_inside: impl Fn(&[u8]) -> bool,
    ) -> Result<Vec<Vec<u8>>, IndexError> {
        let mut attempts = Attempts::new(&RetryPolicy::WAY);
        let mut level = self.read_root(session).await?.1;
        while level > 0 {
            let node = match self.node_at(session, seek, level).await {
                Ok((_, node)) => node,
                Err(BlinkFail::Restart) => {
                    self.again(session, &mut attempts).await?;
                    continue;
                }
                Err(BlinkFail::Error(error)) => return Err(error),
            };
            let node = Node::new(&self.layout, node.words());
            let separator = |index| {
                let mut separator = Vec::new();
                node.separator(index, &mut separator).then_some(separator)
            };
            let inside = (0..node.count()).filter_map(separator).filter(|it| is_inside(it));
            let inside: Vec<_> = inside.collect();
            if !inside.is_empty() {
                return Ok(inside);
            }
            level -= 1;
        }
        Ok(Vec::new())
    }
}
