//! Read delegation and write combining of the operations on one key in this compute server.
//!
//! Gets that wait for another's READs cost none. Changes that wait for another's lock are written with its own, and
//! acknowledged once that is. [`farleaf_index::local::key_queues`] has the protocol; as in `smart`, a get takes the answer
//! of READs that began after it did, and at most `batch_limit` operations share one.
//!
//! A batch is taken under the leaf's lock, which proves the content that its changes are applied to, in the order in which
//! they came. All of them happen at the WRITE of the slot. Pairs with a record are their own leaders', one after the other.

use std::borrow::Cow;
use std::sync::Arc;

use farleaf_index::local::key_queues::{ChangeLead, ChangeTurn, collapse};
use farleaf_index::{Change, IndexError, Outcome};

use super::homes::Op;
use super::{LeafTree, count, count_many};

farleaf_fabric::canaries! {
    pub(crate) JOIN_OPEN_READ = "join-open-read",
        "a get takes the answer of a READ that began before it";
}

impl LeafTree {
    /// Copies the value of `key`: by own READs, or those of another get that began after this one.
    pub(super) async fn get_delegated(
        self: &Arc<Self>,
        session: &Op<'_>,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<bool, IndexError> {
        if !self.options.delegate {
            return self.find(session, key, value).await;
        }
        let is_strict = !JOIN_OPEN_READ.is_armed();
        let read = async |value: &mut Vec<u8>| {
            session.notes().inspect(|notes| notes.looks());
            self.find(session, key, value).await
        };
        let got = self.queues.get(session, key, value, is_strict, read).await?;
        if got.joined {
            count(&self.counts.gets_joined);
        }
        Ok(got.is_there)
    }

    /// Changes one key: by itself, or together with others that the key's leader does.
    pub(super) async fn change_combined(
        self: &Arc<Self>,
        session: &Op<'_>,
        change: &Change<'_>,
        held: &mut Vec<u8>,
    ) -> Result<Outcome, IndexError> {
        if !self.options.delegate {
            return self.change_one(session, change, held, &mut None).await;
        }
        match self.queues.change(session, change, held).await? {
            ChangeTurn::Lead(lead) => self.change_one(session, change, held, &mut Some(lead)).await,
            ChangeTurn::Done(outcome) => {
                count(&self.counts.changes_joined);
                Ok(outcome)
            }
        }
    }

    /// Applies the changes that wait to what the leader's own leaves of the key: what the slot holds in the end.
    pub(super) fn combine<'a>(
        &self,
        lead: &mut ChangeLead,
        own: &Change<'a>,
    ) -> Option<Cow<'a, [u8]>> {
        let mut value = own.value.map(Cow::Borrowed);
        let collapsed = collapse(lead, own.key, &mut value, |_| true);
        if collapsed.members > 0 {
            count(&self.counts.batches);
            count_many(&self.counts.collapsed, collapsed.applied);
        }
        value
    }
}
