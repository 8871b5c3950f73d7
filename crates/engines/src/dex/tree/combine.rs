//! Hot leaves: the holder of a leaf's latch does waiting changes together with its own.
//!
//! With [`DexOptions::combine`](crate::dex::DexOptions::combine). A writer that finds a leaf's latch held
//! leaves its change there ([`Combiner`](farleaf_index::local::Combiner)) and waits. A holder that changes the
//! leaf does the waiting changes as well: by one log WRITE for all if changes are logged, else under
//! one hold of the latch. So a hot leaf takes all changes that arrive during a round trip, not one. A
//! thread that loses the processor while it holds the latch delays the others once. Holders that split
//! or write back leave the changes; their writers take them back and try again.
//!
//! `INV-DEX-COMBINE` A holder does a taken change as if the change's owner had the latch: the leaf
//! covers the key, the change is in the log before anybody sees it, and the owner gets the outcome
//! after that. Changes that expect a value, and those that put or give up a record, are their owner's.
//! The holder has entered the range guard for a key of the same leaf, and a leaf is open or closed as a
//! whole.

use std::sync::Arc;

use farleaf_index::bnode::{Cover, Image, NodeMut};
use farleaf_index::local::{Ended, Taken};
use farleaf_index::{Decision, IndexError, Outcome};

use super::DexTree;
use super::context::DexFail;
use super::ops::{LeafAttempt, apply_at};
use crate::dex::cache::PageCache;
use crate::dex::change::{LeafChange, OwnedLeafChange};

/// The outcome of a change that a latch holder executed, and whether it changed anything.
pub(crate) type Combined = Result<(Outcome, bool), IndexError>;

/// Changes of others that the holder executes. Those that are not answered have an unknown outcome.
pub(crate) struct Others {
    tree: Arc<DexTree>,
    frame: u32,
    done: Vec<(Taken<OwnedLeafChange>, (Outcome, bool))>,
}

impl Others {
    /// Returns the changes that have to be logged, in the order of execution.
    pub(crate) fn changes(&self) -> impl Iterator<Item = &OwnedLeafChange> {
        self.done.iter().filter(|(_, (_, changed))| *changed).map(|(taken, _)| &taken.work)
    }

    /// Returns whether one of them has removed something.
    pub(crate) fn remove(&self) -> bool {
        self.changes().any(|change| change.borrowed().value.is_none())
    }

    /// Answers them as done, before the latch is released.
    pub(crate) fn answer(mut self) {
        self.tree.stats.combined.add_many(self.done.len() as u64);
        for (taken, ended) in self.done.drain(..) {
            self.tree.combiner.answer(self.frame.into(), &taken, Some(Ok(ended)));
        }
    }
}

impl Drop for Others {
    fn drop(&mut self) {
        if self.done.is_empty() {
            return;
        }
        for (taken, _) in self.done.drain(..) {
            let error =
                IndexError::OutcomeUnknown("another change of the same batch failed".into());
            self.tree.combiner.answer(self.frame.into(), &taken, Some(Err(error)));
        }
        self.tree.pages.lot.unpark(PageCache::frame_key(self.frame));
    }
}

impl DexTree {
    /// Leaves a change to the holder of the leaf's latch, if it may, and waits until that has executed it
    /// or the latch is free.
    pub(crate) async fn leave_to_holder(
        &self,
        frame: u32,
        change: &LeafChange<'_>,
    ) -> Result<LeafAttempt, DexFail> {
        if self.options.combine == 0 || change.expected.is_some() || change.record.is_some() {
            self.pages.wait_for_frame(frame).await;
            return Ok(LeafAttempt::Again);
        }
        let latch = self.pages.frames.latch(frame);
        let mut left = self.combiner.leave(frame.into(), OwnedLeafChange::of(change));
        loop {
            self.pages
                .lot
                .park(PageCache::frame_key(frame), || left.is_over(|| latch.is_held()))
                .await;
            return match left.end() {
                Ended::NotYet => continue,
                Ended::Back => Ok(LeafAttempt::Again),
                Ended::Done(Ok((outcome, true))) => Ok(LeafAttempt::Changed(outcome, false)),
                Ended::Done(Ok((outcome, false))) => Ok(LeafAttempt::Left(outcome)),
                Ended::Done(Err(error)) => Err(error.into()),
            };
        }
    }

    /// Executes in `leaf`, the frame's or a copy, the changes that others have left for the holder of the
    /// frame's latch.
    pub(crate) fn combine<I: Image>(
        self: &Arc<Self>,
        frame: u32,
        leaf: &mut NodeMut<'_, I>,
    ) -> Others {
        let most = self.options.combine;
        let mut others = Others { tree: Arc::clone(self), frame, done: Vec::new() };
        if most == 0 || !self.combiner.has_work(frame.into()) {
            return others;
        }
        for taken in self.combiner.take(frame.into(), most) {
            match combine_one(leaf, &taken.work) {
                Some(ended) => others.done.push((taken, ended)),
                None => self.combiner.answer(frame.into(), &taken, None),
            }
        }
        others
    }
}

/// Executes one change; `None` if its owner must try again, and nothing was done.
fn combine_one<I: Image>(
    leaf: &mut NodeMut<'_, I>,
    owned: &OwnedLeafChange,
) -> Option<(Outcome, bool)> {
    let change = owned.borrowed();
    let node = leaf.as_node();
    // The frame may hold another leaf meanwhile.
    if node.level() != 0 || node.covers(change.key) != Cover::Inside {
        return None;
    }
    let found = node.find(change.key);
    if found.is_ok_and(|index| node.record(index).is_some()) {
        return None;
    }
    match change.decide(found.is_ok(), None) {
        Decision::Leave(outcome) => Some((outcome, false)),
        Decision::Apply(outcome) => apply_at(leaf, &change, found).ok().map(|()| (outcome, true)),
    }
}
