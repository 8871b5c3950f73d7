//! Read delegation and write combining of the operations on one key in this compute server.
//!
//! Gets that wait for another's READ cost none. Changes that wait for another's lock are written with its own: one
//! READ, one CAS and one WRITE for all of them. [`farleaf_index::local::key_queues`] has the protocol.
//!
//! A combined change is linearizable: its operation began before the leader took it, which is under the leaf's lock
//! (`INV-SMART-5`). The lock proves the content that the changes are applied to, in the order in which they came. All
//! of them happen at the moment at which that content is replaced, and no get sees a part of them. They are
//! acknowledged after that. A change that leaves things as they are is answered by the same content, or by what its
//! leader has read since it joined.
//!
//! An owner's change that replaces a value leads the gets of its key as well, unless a get does. Gets that come before
//! its WRITE is posted get what it writes: each has begun before the leaf holds that, and ends after. Later ones READ.
//! If the change has to try again, it gives the gets up. If compute servers compete for a leaf's lock, gets READ for
//! themselves. Otherwise the waiting clients return together, and the same server wins the lock again.
//!
//! Changes that need a record, another leaf or a new one are their own leader's alone; the others follow.

use std::borrow::Cow;
use std::sync::Arc;

use farleaf_index::local::key_queues::{self, ChangeTurn, GetLead, collapse};
use farleaf_index::{Change, Decision, IndexError, Outcome};
use farleaf_pool::Session;

use super::leaf::{Leaf, NewValue};
use super::locked::LeafContent;
use super::tree::{Tree, count, count_many};

farleaf_fabric::canaries! {
    pub(crate) JOIN_OPEN_READ = "join-open-read",
        "a get takes the answer of a READ that began before it";
}

/// The lead among the changes of one key, and among its gets, unless a get has that.
#[derive(Debug)]
pub(crate) struct ChangeLead {
    changes: key_queues::ChangeLead,
    gets: Option<GetLead>,
}

impl ChangeLead {
    /// Members of the changes' queue so far.
    pub(super) fn mark(&self) -> u64 {
        self.changes.mark()
    }

    /// The gets are to READ for themselves.
    pub(super) fn give_up_gets(&mut self) {
        self.gets = None;
    }

    /// Takes the gets that wait: the WRITE is about to be posted.
    pub(super) fn close_gets(&mut self) {
        if let Some(gets) = &mut self.gets {
            gets.close();
        }
    }

    /// The WRITE has completed: gives the changes that were taken their answers, and the gets `content`.
    pub(super) fn acknowledge(mut self, content: &LeafContent) {
        self.changes.acknowledge();
        let found = match content {
            LeafContent::Absent => None,
            LeafContent::Inline(value) => Some(value),
            // They READ the record.
            LeafContent::Record(_) => return,
        };
        if let Some(gets) = &mut self.gets {
            gets.answer(|| Ok(found.cloned()));
        }
    }
}

impl Tree {
    /// Copies the value of `key`: by an own READ, or that of another get that began after this one.
    pub(crate) async fn get_delegated(
        self: &Arc<Self>,
        session: &Session,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<bool, IndexError> {
        let Some(is_strict) = self.ladder.reads_are_strict() else {
            return self.get(session, key, value).await;
        };
        let is_strict = is_strict && !JOIN_OPEN_READ.is_armed();
        let read = async |value: &mut Vec<u8>| self.get(session, key, value).await;
        let got = self.queues.get(session, key, value, is_strict, read).await?;
        if got.joined {
            count(&self.counts.gets_joined);
        }
        Ok(got.is_there)
    }

    /// Changes one key: by itself, or together with others that the key's leader does.
    pub(crate) async fn change_combined(
        self: &Arc<Self>,
        session: &Session,
        change: &Change<'_>,
        held: &mut Vec<u8>,
    ) -> Result<Outcome, IndexError> {
        if !self.options.write_combining {
            return self.change(session, change, held, None).await;
        }
        let changes = match self.queues.change(session, change, held).await? {
            ChangeTurn::Lead(lead) => lead,
            ChangeTurn::Done(outcome) => {
                count(&self.counts.changes_joined);
                return Ok(outcome);
            }
        };
        let leads_gets =
            change.replaces && self.owner.is_some() && self.ladder.reads_are_strict().is_some();
        let gets = if leads_gets { self.queues.try_lead_gets(change.key) } else { None };
        self.change(session, change, held, Some(ChangeLead { changes, gets })).await
    }

    /// Applies the changes that wait to what the leader stores in a leaf that it has locked.
    pub(super) fn combine(
        &self,
        inline_max: usize,
        old: Leaf<'_>,
        content: LeafContent,
        lead: Option<&mut ChangeLead>,
    ) -> LeafContent {
        let Some(lead) = lead else { return content };
        let mut value = match (old.content(), content) {
            (NewValue::Record(_), content) | (_, content @ LeafContent::Record(_)) => {
                return content;
            }
            (_, LeafContent::Absent) => None,
            (_, LeafContent::Inline(value)) => Some(Cow::Owned(value)),
        };
        let fits = |bytes| bytes <= inline_max && old.has_room(bytes);
        let collapsed = collapse(&mut lead.changes, old.key(), &mut value, fits);
        if collapsed.members > 0 {
            count(&self.counts.batches);
            count_many(&self.counts.collapsed, collapsed.applied);
        }
        value.map_or(LeafContent::Absent, |value| LeafContent::Inline(value.into_owned()))
    }

    /// The leader has found that its change leaves things as they are: so do those of members that joined before it
    /// looked, if that is so for what it has seen. `held` is the value, unless it is in a record.
    pub(super) fn answer_alike(
        &self,
        lead: Option<&ChangeLead>,
        mark: u64,
        key: &[u8],
        (existed, held): (bool, Option<&[u8]>),
    ) {
        let Some(lead) = lead else { return };
        lead.changes.answer_until(mark, |change| {
            let change = change.of_key(key);
            if existed && held.is_none() && change.expected.is_some() {
                return None;
            }
            match change.decide(existed, held) {
                Decision::Leave(outcome) => {
                    Some(Ok((outcome, change.expected.and(held).unwrap_or_default().to_vec())))
                }
                Decision::Apply(_) => None,
            }
        });
    }
}
