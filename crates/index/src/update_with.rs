//! Update by comparing: changes a key depending on what it holds, as one step.

use farleaf_fabric::Endpoint;
use farleaf_pool::Session;

use crate::IndexError;
use crate::change::Exchange;
use crate::index::Index;

/// Attempts of [`update_with`], at most.
pub const UPDATE_ATTEMPTS_MAX: u32 = 1_000;
/// Attempts that follow each other at once; later ones wait for a random time first.
const ATTEMPTS_AT_ONCE: u32 = 2;
/// Longest of these times.
const BACKOFF_NS_MAX: u64 = 1_000_000;

/// The change that [`update_with`] is to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Update {
    /// None.
    Leave,
    /// The key gets this value.
    Put(Vec<u8>),
    /// The key is removed.
    Remove,
}

/// Nanoseconds to wait after the attempt of that number, counted from 0, before the next one. The first attempts follow
/// each other at once; later ones wait for a random time of at most 1 ms.
pub fn update_wait_ns(attempt: u32, random: impl FnOnce() -> u64) -> u64 {
    match attempt < ATTEMPTS_AT_ONCE {
        true => 0,
        false => random() % (1_000_u64 << attempt.min(20)).min(BACKOFF_NS_MAX),
    }
}

/// Gives `key` the value that `change` makes of what it holds (`None`: is absent), as one step; returns what it held
/// before.
///
/// `change` runs once, and again each time that another client has changed the key meanwhile.
///
/// Cost: a get, and a compare-exchange unless nothing is to change; a compare-exchange more for each change by
/// another.
///
/// # Errors
/// Those of `change`, of [`Index::get`] and of [`Index::compare_exchange`]; `Unavailable` also after
/// [`UPDATE_ATTEMPTS_MAX`] attempts.
pub async fn update_with<I: Index, E: From<IndexError>>(
    index: &I,
    session: &Session,
    key: &[u8],
    mut change: impl FnMut(Option<&[u8]>) -> Result<Update, E>,
) -> Result<Option<Vec<u8>>, E> {
    let mut value = Vec::new();
    let is_there = index.get(session, key, &mut value).await?;
    let mut held = is_there.then_some(value);
    for attempt in 0..UPDATE_ATTEMPTS_MAX {
        let new = match change(held.as_deref())? {
            Update::Leave => return Ok(held),
            Update::Put(value) => Some(value),
            Update::Remove => None,
        };
        if new == held {
            return Ok(held);
        }
        let mut found = Vec::new();
        let (expected, new) = (held.as_deref(), new.as_deref());
        match index.compare_exchange(session, key, expected, new, &mut found).await? {
            (Exchange::Done, _) => return Ok(held),
            (Exchange::Differs, is_there) => held = is_there.then_some(found),
        }
        let wait_ns = update_wait_ns(attempt, || session.endpoint().random());
        if wait_ns > 0 {
            session.endpoint().sleep(wait_ns).await;
        }
    }
    let why = format!(
        "others changed the key \"{}\" before each of {UPDATE_ATTEMPTS_MAX} attempts to change it: try again",
        key.escape_ascii()
    );
    Err(IndexError::Unavailable(why).into())
}
