//! Hops and held splits: what an insert into a leaf with neighbourhoods does if that of its key is full.
//!
//! A *hop* moves a pair to a later slot of its neighbourhood: one chain WRITEs the copy, the count of hops, and the slot that
//! was left. Where a chain may be lost, and is then posted again in whole, the next hop waits for it: with two hops in a
//! chain, the second try clears the pair that moved into the slot of the first one. Until it writes that pair again no slot
//! has it, and the count does not tell. Each chain begins with a redo record that names the leaf: if the writer dies, the taker
//! of its lock leaves no pair in two slots (`INV-HOP-3`).
//!
//! - `INV-SPLIT-1` No client changes a key in the new leaf before the last word of the old one has landed. Else another one
//!   still reads the old slot, which fits under the stamp that it remembers. Two locks see to that:
//!   - The old leaf's. Two pointers alone lead to the new leaf. A writer follows the old leaf's right link only from an image
//!     that it READ under the old leaf's lock (`lock_from`). And the parent's separator is added once that lock
//!     is free, by the split itself or by such a writer: a get or a scan that goes right adds none. A stale pointer to the
//!     memory's earlier use proves nothing (`INV-REM-3`).
//!   - The new leaf's, under the token of the old one. It is unlocked first.
//!
//!   As the first one is enough, no run can show a split that leaves out the second one.
//! - `INV-SPLIT-2` Only a client that takes over the old leaf's lock finishes a dead client's split: the redo record names
//!   the old leaf first, then the new one.
//!
//! | step of a split | operations |
//! |---|---|
//! | the new leaf's lock, by trying; the new leaf | 1 CAS, 1 WRITE |
//! | redo record of both, the old leaf | 2 WRITEs in one chain |
//! | releases, the new leaf's first | 2 WRITEs |
//!
//! Source: Luo et al., "CHIME" (SOSP 2024), insert and split. Differs: their program WRITEs all slots from the home to the
//! empty one in one piece, and links the new leaf before the old one is whole.

use std::sync::Arc;

use farleaf_fabric::{Buf, Endpoint, OpError, Ops};
use farleaf_pool::{Session, Unlinked};

use super::lock::Locked;
use super::read::Unfinished;
use super::remembered::count;
use super::{BlinkTree, redo};
use crate::IndexError;
use crate::bnode::{ChangeError, GuardedLeaf, GuardedLeafMut, Hop, SlotEdit, Stamp};
use crate::detach::unfinished_change;
use crate::remote_lock::Lock;

farleaf_fabric::canaries! {
    pub HOPS_IN_ONE_CHAIN = "hops-in-one-chain", "all hops of an insert are one chain, which may be posted again";
    pub HOPS_UNRECORDED = "hops-unrecorded", "an insert that moves pairs leaves no redo record";
}

/// New leaves that a split asks for until it finds one whose lock is free.
const SIBLINGS_MAX: usize = 4;

/// The place at which a leaf is split.
#[derive(Clone, Copy, Debug)]
pub(super) enum LeafCut<'a> {
    /// Near the middle, with a new pair in one of the halves.
    With(&'a [u8], &'a [u8]),
    /// Near the middle.
    Middle,
    /// Behind a key.
    Bound(&'a [u8]),
}

/// The images of the two leaves that a split makes of one, and the fence between them.
struct Halves {
    left: Buf,
    right: Buf,
    separator: Vec<u8>,
}

impl BlinkTree {
    /// Moves pairs of a locked leaf, inserts a pair where there is room then, and unlocks.
    ///
    /// Cost: 4 WRITEs and 1 wait for each hop, the redo record among them, then the slot and the release. Where no completion
    /// is lost, one chain with one record and 3 WRITEs for each hop.
    ///
    /// # Errors
    /// `OutcomeUnknown` if it takes longer than the caller waits.
    pub(super) async fn insert_by_hops(
        self: &Arc<Self>,
        session: &Session,
        leaf: Locked,
        (key, value): (Vec<u8>, Vec<u8>),
        hops: Vec<Hop>,
    ) -> Result<(), IndexError> {
        let tree = Arc::clone(self);
        BlinkTree::detach(session, async move |session| {
            tree.hop_and_insert(&session, leaf.with_session(&session), (&key, &value), &hops).await
        })
        .await
        .unwrap_or_else(|| Err(unfinished_change("an insert that moves pairs")))
    }

    async fn hop_and_insert(
        &self,
        session: &Session,
        mut leaf: Locked,
        (key, value): (&[u8], &[u8]),
        hops: &[Hop],
    ) -> Result<(), IndexError> {
        let addr = leaf.addr;
        let damaged = |error| self.damaged(addr, error);
        let layout = self.guarded.ok_or(ChangeError::WrongKind).map_err(damaged)?;
        // This session does not give up: a chain fails only if this compute server has been cut off.
        let together = !session.endpoint().is_lossy() || HOPS_IN_ONE_CHAIN.is_armed();
        let mut last = session.client().ops();
        if leaf.has_mends() {
            if together {
                leaf.mend_in(&mut last);
            } else {
                session.reliable().chain(|ops| leaf.mend_in(ops)).await?;
            }
            leaf.forget_mends();
        }
        let token = leaf.token();
        for (number, &hop) in hops.iter().enumerate() {
            // Another operation of this session may have left a record between two chains.
            let is_recorded = (number == 0 || !together) && !HOPS_UNRECORDED.is_armed();
            let written = GuardedLeafMut::new(&layout, leaf.image.words_mut()).hop(hop);
            let written = written.map_err(damaged)?;
            let write = |ops: &mut Ops| {
                if is_recorded {
                    let record = self.hops_record(session, token, addr);
                    ops.write(session.redo_addr(addr.server()), record);
                }
                written.iter().for_each(|bytes| leaf.write_in(ops, bytes.clone()));
            };
            if together {
                write(&mut last);
            } else {
                session.reliable().chain(write).await?;
            }
            self.hopscotch.iter().for_each(|it| count(&it.counts.hops));
        }
        let mut image = GuardedLeafMut::new(&layout, leaf.image.words_mut());
        let SlotEdit { bytes, .. } = image.insert(key, value).map_err(damaged)?;
        leaf.write_in(&mut last, bytes);
        leaf.finish(last, None).await
    }

    /// Splits the image of a locked leaf.
    ///
    /// # Errors
    /// `NoRoom` if the new pair finds no place beside the others in its neighbourhood.
    fn halve(
        &self,
        session: &Session,
        leaf: &Locked,
        at: LeafCut<'_>,
        right: &Unlinked,
    ) -> Result<Halves, ChangeError> {
        let Some(layout) = &self.guarded else { return Err(ChangeError::WrongKind) };
        let (client, bytes) = (session.client(), self.bytes_at(0));
        let (mut left, mut upper) = (client.buf(bytes), client.buf(bytes));
        let (old, addr) = (GuardedLeaf::new(layout, leaf.image.words()), right.addr().word());
        let (birth, halves) =
            (Stamp::of_word(self.first_version(session)), (left.words_mut(), upper.words_mut()));
        let separator = match at {
            LeafCut::With(key, value) => {
                old.split(Some((key, value)), addr, birth, halves.0, halves.1)?
            }
            LeafCut::Middle => old.split(None, addr, birth, halves.0, halves.1)?,
            LeafCut::Bound(bound) => {
                old.cut_at(bound, addr, birth, halves.0, halves.1)?;
                bound.to_vec()
            }
        };
        Ok(Halves { left, right: upper, separator })
    }

    /// Splits a full leaf that is locked, with a new pair in one of its halves, unlocks it, and tells its parent. Returns
    /// whether the pair is in; else the change begins anew.
    ///
    /// Cost: 1 WRITE of the new leaf; 3 in one chain, the redo record, the old leaf and the release; then the separator.
    /// For leaves with neighbourhoods see the [module page](self).
    ///
    /// # Errors
    /// `Full`: nothing was changed. `OutcomeUnknown` if it takes longer than the caller waits.
    pub(super) async fn split_with(
        self: &Arc<Self>,
        session: &Session,
        leaf: Locked,
        key: Vec<u8>,
        value: Vec<u8>,
    ) -> Result<bool, IndexError> {
        let tree = Arc::clone(self);
        BlinkTree::detach(session, async move |session| {
            let leaf = leaf.with_session(&session);
            let split = tree.split_leaf(&session, leaf, LeafCut::With(&key, &value)).await?;
            let Some((unfinished, takes_along)) = split else { return Ok(false) };
            // The change has happened; a separator that cannot be added now is added by another.
            let _ = tree.finish_split_now(&session, unfinished).await;
            Ok(takes_along)
        })
        .await
        .unwrap_or_else(|| Err(unfinished_change("a split")))
    }

    /// `None` if nothing was done, as the new leaf's lock was busy. Else whether the pair went along.
    pub(super) async fn split_leaf(
        self: &Arc<Self>,
        session: &Session,
        leaf: Locked,
        at: LeafCut<'_>,
    ) -> Result<Option<(Unfinished, bool)>, IndexError> {
        let mut leaf = leaf.take_word().await?;
        let found = match self.new_sibling(session, &leaf).await {
            Ok(found) => found,
            Err(full) => {
                leaf.unlock().await?;
                return Err(full);
            }
        };
        let Some((object, sibling)) = found else {
            self.hopscotch.iter().for_each(|it| count(&it.counts.siblings_busy));
            leaf.unlock().await?;
            return Ok(None);
        };
        let (halves, takes_along) = match (self.halve(session, &leaf, at, &object), at) {
            (Err(ChangeError::NoRoom), LeafCut::With(..)) => {
                (self.halve(session, &leaf, LeafCut::Middle, &object), false)
            }
            (halves, _) => (halves, true),
        };
        let Halves { left, right, separator } = match halves {
            Ok(halves) => halves,
            Err(error) => {
                let error = self.damaged(leaf.addr, error);
                leaf.unlock().await?;
                return Err(error);
            }
        };
        let unfinished = Unfinished { level: 1, separator, right: object.addr() };
        if self.is_hopscotch(0) {
            self.publish_held(session, leaf, left, (object, sibling), right).await?;
        } else {
            object.write(right).await?;
            object.keep();
            leaf.image = left;
            leaf.publish_sealed(true, None).await?;
        }
        count(&self.remembered().counts.splits);
        Ok(Some((unfinished, takes_along)))
    }

    /// A new leaf, and its lock under the token of the one that is split, unless they share their lock word or the lock is
    /// not needed (`INV-SPLIT-1`). `None` if the locks of some new leaves were all busy: no client waits for one lock while
    /// it has another.
    async fn new_sibling(
        &self,
        session: &Session,
        leaf: &Locked,
    ) -> Result<Option<(Unlinked, Option<Lock>)>, IndexError> {
        let own = self.lock_word_of(leaf.addr);
        let place = self.place_beside(session, leaf.addr, 0);
        let mut busy = Vec::new();
        while busy.len() < SIBLINGS_MAX {
            let object = session.alloc_unlinked(place, self.bytes_at(0)).await?;
            let word = self.lock_word_of(object.addr());
            if !self.is_hopscotch(0) || word == own {
                return Ok(Some((object, None)));
            }
            let mut lock = Lock::about_to_take(session, word, leaf.token());
            if lock.take(0).await? == 0 {
                return Ok(Some((object, Some(lock))));
            }
            lock.disarm();
            busy.push(object);
        }
        Ok(None)
    }

    /// Writes both halves of a leaf, under both locks, and unlocks.
    async fn publish_held(
        &self,
        session: &Session,
        mut leaf: Locked,
        left: Buf,
        (object, mut sibling): (Unlinked, Option<Lock>),
        right: Buf,
    ) -> Result<(), IndexError> {
        let (bytes, token) = (self.bytes_at(0), leaf.token());
        let upper = right.words().to_vec();
        object.write(right).await?;
        object.keep();
        // This session does not give up. So what fails from here on is that this compute server has been cut off: its locks
        // are for whoever recovers it.
        leaf.lock.disarm();
        sibling.iter_mut().for_each(Lock::disarm);
        leaf.image = left;
        let is_needed = redo::is_needed(session, bytes);
        let write = |ops: &mut Ops| {
            if is_needed {
                let nodes =
                    [(leaf.addr, token, leaf.image.words()), (object.addr(), token, &upper[..])];
                let record = self.record(session, token, &nodes);
                ops.write(session.redo_addr(leaf.addr.server()), record);
            }
            leaf.write_in(ops, 8..bytes);
        };
        session.reliable().chain(write).await.map_err(BlinkTree::cut_off)?;
        let mut last = session.client().ops();
        if let Some(sibling) = sibling {
            let endpoint = session.endpoint();
            let together = !endpoint.is_lossy()
                && endpoint.capabilities().write_vs_rmw
                && object.addr().server() == leaf.addr.server();
            if together {
                last.write_word(self.lock_word_of(object.addr()), 0);
            } else {
                sibling.finish(session.client().ops(), 0, None).await?;
            }
        }
        leaf.finish(last, None).await
    }

    fn cut_off(error: OpError) -> IndexError {
        IndexError::OutcomeUnknown(error.to_string())
    }
}
