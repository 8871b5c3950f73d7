//! Key queues: let the gets of a key in this compute server share READs, and its changes a lock and a WRITE.
//!
//! [`Delegation`] has the protocol; this is its form for operations of an index. A get takes the answer of READs that
//! began after it did. A change is applied to what the leader knows under its lock, after those before it.

use std::borrow::Cow;
use std::sync::Arc;

use farleaf_pool::Session;

use super::delegation::{Delegation, Lead, Turn};
use crate::change::{Change, Decision, Outcome, OwnedChange};
use crate::error::IndexError;

/// Lists that keys share.
const STRIPES: usize = 64;

/// The answer of a get: the value, if there is one.
pub type FoundValue = Result<Option<Vec<u8>>, IndexError>;
/// The answer of a change: its outcome, and what the key held if the change asked for that.
pub type Changed = Result<(Outcome, Vec<u8>), IndexError>;
/// The lead among the gets of a key.
pub type GetLead = Lead<(), FoundValue>;
/// The lead among the changes of a key.
pub type ChangeLead = Lead<OwnedChange, Changed>;

/// The answer of [`KeyQueues::get`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Got {
    /// The key is present.
    pub is_there: bool,
    /// Another get has read it.
    pub joined: bool,
}

/// The answer of [`KeyQueues::change`].
#[derive(Debug)]
pub enum ChangeTurn {
    /// The change is the caller's to do, and those that wait with it.
    Lead(ChangeLead),
    /// Another one has done it.
    Done(Outcome),
}

/// Changes that a leader has taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collapsed {
    /// All of them.
    pub members: usize,
    /// Those that changed the value.
    pub applied: u64,
}

/// Operations by the keys that they are under way on.
#[derive(Debug)]
pub struct KeyQueues {
    gets: Arc<Delegation<(), FoundValue>>,
    changes: Arc<Delegation<OwnedChange, Changed>>,
}

impl KeyQueues {
    /// Queues of which one operation does at most `batch_limit` operations; 0 sets no limit.
    pub fn new(batch_limit: usize) -> KeyQueues {
        KeyQueues {
            gets: Delegation::of_reads(STRIPES, batch_limit),
            changes: Delegation::of_changes(STRIPES, batch_limit),
        }
    }

    /// Copies the value of `key` by `read`, or by that of another get. If `is_strict`, that READ begins after this get;
    /// else it may be under way already.
    ///
    /// # Errors
    /// Those of `read`; `Unavailable` if another's takes too long.
    pub async fn get(
        &self,
        session: &Session,
        key: &[u8],
        value: &mut Vec<u8>,
        is_strict: bool,
        read: impl AsyncFnOnce(&mut Vec<u8>) -> Result<bool, IndexError>,
    ) -> Result<Got, IndexError> {
        let mut lead = loop {
            if let Some(lead) = self.gets.try_lead(key) {
                break lead;
            }
            let mut joined = self.gets.join(key, ());
            match session.reliable().within(&mut joined).await {
                Some(Turn::Lead(lead)) => break lead,
                Some(Turn::Back) => {}
                Some(Turn::Done(found)) => {
                    value.clear();
                    let found = found?;
                    value.extend_from_slice(found.as_deref().unwrap_or_default());
                    return Ok(Got { is_there: found.is_some(), joined: true });
                }
                None => return Err(waited("READ")),
            }
        };
        if is_strict {
            lead.close();
        }
        let found = read(value).await;
        if !is_strict {
            lead.close();
        }
        lead.answer(|| found.clone().map(|is_there| is_there.then(|| value.clone())));
        found.map(|is_there| Got { is_there, joined: false })
    }

    /// Leads the gets of `key`, unless a get does.
    pub fn try_lead_gets(&self, key: &[u8]) -> Option<GetLead> {
        self.gets.try_lead(key)
    }

    /// Leads the changes of the key, or has another one do this one; `held` is then what the key held, if the change
    /// asks for that.
    ///
    /// # Errors
    /// Those of the change that did it; `OutcomeUnknown` if it has not ended in time, `Unavailable` if it has not begun
    /// either.
    pub async fn change(
        &self,
        session: &Session,
        change: &Change<'_>,
        held: &mut Vec<u8>,
    ) -> Result<ChangeTurn, IndexError> {
        loop {
            if let Some(lead) = self.changes.try_lead(change.key) {
                return Ok(ChangeTurn::Lead(lead));
            }
            let mut joined = self.changes.join(change.key, OwnedChange::of(change));
            match session.reliable().within(&mut joined).await {
                Some(Turn::Lead(lead)) => return Ok(ChangeTurn::Lead(lead)),
                Some(Turn::Back) => {}
                Some(Turn::Done(changed)) => {
                    let (outcome, found) = changed?;
                    if change.expected.is_some() {
                        *held = found;
                    }
                    return Ok(ChangeTurn::Done(outcome));
                }
                None => return Err(if joined.leave() { unknown() } else { waited("change") }),
            }
        }
    }
}

/// Applies the changes of `key` that wait to the `value` that their leader stores, as long as `fits` has room for the
/// bytes of theirs. The leader acknowledges them. The value is copied only if one of them changes it.
pub fn collapse(
    lead: &mut ChangeLead,
    key: &[u8],
    value: &mut Option<Cow<'_, [u8]>>,
    fits: impl Fn(usize) -> bool,
) -> Collapsed {
    let mut applied = 0;
    let members = lead.seal(lost, |change| {
        let change = change.of_key(key);
        let found = change.expected.and(value.as_deref()).unwrap_or_default().to_vec();
        match change.decide(value.is_some(), value.as_deref()) {
            Decision::Leave(outcome) => Some(Ok((outcome, found))),
            Decision::Apply(outcome) => {
                if !fits(change.value.map_or(0, <[u8]>::len)) {
                    return None;
                }
                *value = change.value.map(|value| Cow::Owned(value.to_vec()));
                applied += 1;
                Some(Ok((outcome, found)))
            }
        }
    });
    Collapsed { members, applied }
}

fn lost() -> Changed {
    Err(unknown())
}

fn unknown() -> IndexError {
    IndexError::OutcomeUnknown("it was written together with a change that has not ended".into())
}

fn waited(what: &str) -> IndexError {
    IndexError::Unavailable(format!(
        "another operation's {what} of the same key has not ended in time: try again"
    ))
}
