//! Slot changes: change one slot of a locked guarded leaf, or split the leaf and take the new pair along.

use std::sync::Arc;

use farleaf_pool::Session;

use super::lock::Locked;
use super::read::Unfinished;
use super::remembered::count;
use super::{BlinkFail, BlinkTree, redo};
use crate::IndexError;
use crate::bnode::{ChangeError, GuardedLeaf, GuardedLeafMut, Lookup, SlotEdit, Stamp};
use crate::change::{Change, Decision, Outcome};
use crate::detach::unfinished_change;

farleaf_fabric::canaries! {
    pub LOSE_LEAF_REDO = "lose-leaf-redo", "a change of several words of a value leaves no redo record";
}

impl BlinkTree {
    /// Does a change in a leaf that is locked, and mended in its image, and unlocks it.
    ///
    /// Cost: 2 WRITEs in one chain, the slot and the release; 1 more for the redo record of a wide change, and 1 for each
    /// slot that was mended. For a full leaf that of a split, see [`BlinkTree::split_with`].
    pub(super) async fn change_slot(
        self: &Arc<Self>,
        session: &Session,
        mut leaf: Locked,
        change: &Change<'_>,
        held: &mut Vec<u8>,
    ) -> Result<Outcome, BlinkFail> {
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
                return Ok(outcome);
            }
            Decision::Apply(outcome) => outcome,
        };
        let mut image = GuardedLeafMut::new(layout, leaf.image.words_mut());
        let edit = match (found, change.value) {
            (Some(index), Some(value)) => image.update(index, value),
            (None, Some(value)) => image.insert(change.key, value),
            (Some(index), None) => image.remove(index),
            (None, None) => {
                leaf.unlock().await?;
                return Ok(outcome);
            }
        };
        let edit = match (edit, change.value) {
            (Ok(edit), _) => edit,
            (Err(ChangeError::NoRoom), Some(value)) => {
                self.split_with(session, leaf, change.key.to_vec(), value.to_vec()).await?;
                return Ok(outcome);
            }
            (Err(error), _) => {
                let error = self.damaged(leaf.addr, error);
                leaf.unlock().await?;
                return Err(error.into());
            }
        };
        let is_sparse = change.value.is_none() && self.is_sparse_at(0, leaf.image.words());
        self.publish_slot(leaf, &edit).await?;
        if is_sparse {
            self.merge(session, change.key, 1).await;
        }
        Ok(outcome)
    }

    /// Writes a slot back and unlocks, in one chain.
    async fn publish_slot(&self, leaf: Locked, edit: &SlotEdit) -> Result<(), IndexError> {
        let mut ops = leaf.session.client().ops();
        let is_lost = LOSE_LEAF_REDO.is_armed();
        if edit.is_wide && !is_lost && redo::is_needed(&leaf.session, edit.bytes.len()) {
            let words = &leaf.image.words()[edit.bytes.start / 8..edit.bytes.end / 8];
            let what = (edit.bytes.start, words);
            let record = self.entry_record(&leaf.session, leaf.token(), leaf.addr, what);
            ops.write(leaf.session.redo_addr(leaf.addr.server()), record);
        }
        leaf.mend_in(&mut ops);
        let written = match self.remembered().options.write_entries {
            true => edit.bytes.clone(),
            // All other bytes stay as they are, so that no record is needed here either.
            false => 8..self.bytes_at(0),
        };
        leaf.write_in(&mut ops, written);
        leaf.finish(ops, None).await
    }

    /// Splits a full leaf that is locked, with a new pair in one of its halves, unlocks it, and tells its parent.
    ///
    /// Cost: 1 WRITE of the new leaf; 3 in one chain, the redo record, the old leaf and the release; then the separator.
    ///
    /// # Errors
    /// `Full`: nothing was changed. `OutcomeUnknown` if it takes longer than the caller waits.
    async fn split_with(
        self: &Arc<Self>,
        session: &Session,
        leaf: Locked,
        key: Vec<u8>,
        value: Vec<u8>,
    ) -> Result<(), IndexError> {
        let tree = Arc::clone(self);
        BlinkTree::detach(session, async move |session| {
            let leaf = leaf.with_session(&session);
            let unfinished = tree.split_leaf(&session, leaf, &key, &value).await?;
            // The change has happened; a separator that cannot be added now is added by another.
            let _ = tree.finish_split_now(&session, unfinished).await;
            Ok(())
        })
        .await
        .unwrap_or_else(|| Err(unfinished_change("a split")))
    }

    async fn split_leaf(
        self: &Arc<Self>,
        session: &Session,
        mut leaf: Locked,
        key: &[u8],
        value: &[u8],
    ) -> Result<Unfinished, IndexError> {
        let bytes = self.bytes_at(0);
        let place = self.place_beside(session, leaf.addr, 0);
        let object = match session.alloc_unlinked(place, bytes).await {
            Ok(object) => object,
            Err(full) => {
                leaf.unlock().await?;
                return Err(full.into());
            }
        };
        let (mut left, mut right) = (session.client().buf(bytes), session.client().buf(bytes));
        let birth = Stamp::of_word(self.first_version(session));
        let cut = match &self.guarded {
            Some(layout) => GuardedLeaf::new(layout, leaf.image.words()).split(
                Some((key, value)),
                object.addr().word(),
                birth,
                left.words_mut(),
                right.words_mut(),
            ),
            None => Err(ChangeError::WrongKind),
        };
        let separator = match cut {
            Ok(separator) => separator,
            Err(error) => {
                let error = self.damaged(leaf.addr, error);
                leaf.unlock().await?;
                return Err(error);
            }
        };
        object.write(right).await?;
        object.keep();
        leaf.image = left;
        leaf.publish_sealed(true, None).await?;
        count(&self.remembered().counts.splits);
        Ok(Unfinished { level: 1, separator, right: object.addr() })
    }
}
