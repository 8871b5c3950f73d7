//! Slot changes: change one slot of a locked guarded leaf; if it is full, pairs hop, or the leaf is split with the new pair.

use std::borrow::Cow;
use std::sync::Arc;

use farleaf_pool::Session;

use super::hops::LeafCut;
use super::lock::Locked;
use super::remembered::count;
use super::{BlinkFail, BlinkTree, redo};
use crate::IndexError;
use crate::bnode::{ChangeError, GuardedLeaf, GuardedLeafMut, Lookup, SlotEdit};
use crate::change::{Change, Decision, Outcome};
use crate::detach::unfinished_work;
use crate::local::key_queues::{ChangeLead, collapse};
use crate::retry::{Attempts, RetryPolicy};

farleaf_fabric::canaries! {
    pub LOSE_LEAF_REDO = "lose-leaf-redo", "a change of several words of a value leaves no redo record";
}

/// Applies the changes that wait to what the leader's own leaves of its key, which is there: what the slot holds in the end.
fn combine<'a>(lead: &mut ChangeLead, own: &Change<'a>) -> Option<Cow<'a, [u8]>> {
    let mut value = own.value.map(Cow::Borrowed);
    collapse(lead, own.key, &mut value, |_| true);
    value
}

impl BlinkTree {
    /// Does a change in a leaf that is locked, and mended in its image, and unlocks it.
    ///
    /// Cost: 2 WRITEs in one chain, the slot and the release; 1 more for the redo record of a wide change, and 1 for each
    /// slot that was mended. Without room that of hops or of a split, see [`super::hops`]. `None` if the leaf was split, or
    /// not, without the change. Changes that wait for `lead` cost nothing more if the key is there.
    pub(super) async fn change_slot(
        self: &Arc<Self>,
        session: &Session,
        mut leaf: Locked,
        change: &Change<'_>,
        held: &mut Vec<u8>,
        lead: &mut Option<ChangeLead>,
    ) -> Result<Option<Outcome>, BlinkFail> {
        let Some(layout) = &self.guarded else { return Err(BlinkFail::Restart) };
        let view = GuardedLeaf::new(layout, leaf.image.words());
        let found = match view.find(change.key) {
            Lookup::Hit(index) => Some(index),
            Lookup::Miss => None,
            Lookup::Torn(_) => return Err(self.damaged(leaf.addr, ChangeError::Damaged).into()),
        };
        if change.expected.is_some() {
            held.clear();
            found.into_iter().for_each(|index| view.value(index, held));
        }
        let present = found.is_some();
        let outcome = match change.decide(present, present.then_some(held.as_slice())) {
            Decision::Leave(outcome) => {
                leaf.unlock().await?;
                return Ok(Some(outcome));
            }
            Decision::Apply(outcome) => outcome,
        };
        // The lock proves what their changes are applied to. An insert may need another leaf: it is its own leader's alone.
        let value = match lead {
            Some(lead) if present => combine(lead, change),
            _ => change.value.map(Cow::Borrowed),
        };
        let value = value.as_deref();
        let mut image = GuardedLeafMut::new(layout, leaf.image.words_mut());
        let edit = match (found, value) {
            (Some(index), Some(value)) => image.update(index, value),
            (None, Some(value)) => image.insert(change.key, value),
            (Some(index), None) => image.remove(index),
            (None, None) => {
                leaf.unlock().await?;
                return Ok(Some(outcome));
            }
        };
        let edit = match (edit, value) {
            (Ok(edit), _) => edit,
            (Err(ChangeError::NoRoom), Some(value)) => {
                let (key, value) = (change.key.to_vec(), value.to_vec());
                let done = self.make_room(session, leaf, key, value).await?;
                return Ok(done.then_some(outcome));
            }
            (Err(error), _) => {
                let error = self.damaged(leaf.addr, error);
                leaf.unlock().await?;
                return Err(error.into());
            }
        };
        let is_sparse = value.is_none() && leaf.is_sparse();
        self.publish_slot(leaf, &edit).await?;
        if let Some(mut lead) = lead.take() {
            lead.acknowledge();
        }
        if is_sparse {
            self.merge(session, change.key, 1).await;
        }
        Ok(Some(outcome))
    }

    /// Inserts a pair for which there is no free slot; returns whether it is in.
    async fn make_room(
        self: &Arc<Self>,
        session: &Session,
        mut leaf: Locked,
        key: Vec<u8>,
        value: Vec<u8>,
    ) -> Result<bool, BlinkFail> {
        if leaf.is_part {
            self.hopscotch.iter().for_each(|it| count(&it.counts.read_on));
            leaf = leaf.complete().await?;
        }
        let hops = self
            .guarded
            .as_ref()
            .and_then(|layout| GuardedLeaf::new(layout, leaf.image.words()).hops_for(&key));
        match hops {
            // Without a hop: the room of a second copy, which is mended.
            Some(hops) => self.insert_by_hops(session, leaf, (key, value), hops).await?,
            None => return Ok(self.split_with(session, leaf, key, value).await?),
        }
        Ok(true)
    }

    /// Writes a slot back and unlocks, in one chain.
    async fn publish_slot(&self, leaf: Locked, edit: &SlotEdit) -> Result<(), IndexError> {
        let is_lost = LOSE_LEAF_REDO.is_armed();
        let is_recorded =
            edit.is_wide && !is_lost && redo::is_needed(&leaf.session, edit.bytes.len());
        let leaf = if is_recorded { leaf.take_word().await? } else { leaf };
        let mut ops = leaf.session.client().ops();
        leaf.mend_in(&mut ops);
        if is_recorded {
            let words = &leaf.image.words()[edit.bytes.start / 8..edit.bytes.end / 8];
            let what = (edit.bytes.start, words);
            let record = self.entry_record(&leaf.session, leaf.token(), leaf.addr, what);
            ops.write(leaf.session.redo_addr(leaf.addr.server()), record);
        }
        let written = match self.remembered().options.write_entries {
            true => edit.bytes.clone(),
            // All other bytes stay as they are, so that no record is needed here either.
            false => 8..self.bytes_at(0),
        };
        leaf.write_in(&mut ops, written);
        leaf.finish(ops, None).await
    }

    /// Makes `bound` the high fence of a guarded leaf. Other trees stay as they are.
    ///
    /// Cost: a READ of the leaf if that is so; else that of a split.
    ///
    /// # Errors
    /// As a change that splits a leaf.
    pub async fn cut_leaf_at(
        self: &Arc<Self>,
        session: &Session,
        bound: &[u8],
    ) -> Result<(), IndexError> {
        if self.guarded.is_none() {
            return Ok(());
        }
        let (tree, bound) = (Arc::clone(self), bound.to_vec());
        let inside = self.own_leaves(0).map(|own| own.enter(session));
        BlinkTree::detach(session, async move |session| {
            let _inside = inside;
            let mut attempts = Attempts::new(&RetryPolicy::WAY);
            loop {
                let leaf = match tree.lock_level(&session, &bound, 0, &mut None).await {
                    Ok(leaf) => leaf,
                    Err(BlinkFail::Error(error)) => return Err(error),
                    Err(BlinkFail::Restart) => {
                        tree.again(&session, &mut attempts).await?;
                        continue;
                    }
                };
                if leaf.view().high().as_ref() == Some(&bound) {
                    return leaf.unlock().await;
                }
                let split = tree.split_leaf(&session, leaf, LeafCut::Bound(&bound)).await?;
                if let Some((unfinished, _)) = split {
                    let _ = tree.finish_split_now(&session, unfinished).await;
                    return Ok(());
                }
                tree.again(&session, &mut attempts).await?;
            }
        })
        .await
        .unwrap_or_else(|| Err(unfinished_work("cutting a leaf")))
    }
}
