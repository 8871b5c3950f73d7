//! Retries: spaces out attempts, and waits for locks that others hold.

use std::pin::pin;
use std::sync::Arc;

use farleaf_fabric::{Endpoint, GlobalAddr};
use farleaf_pool::{LockToken, Session};

use crate::IndexError;
use crate::join::within;
use crate::local::{LockQueue, QueuePlace};

farleaf_fabric::canaries! {
    pub STEAL_LOCK = "steal-lock", "a lock that is held for long is taken from a living holder";
}

/// Attempts at one operation before it gives up.
const ATTEMPTS_MAX: u32 = 20_000;
/// Attempts that follow each other at once.
const ATTEMPTS_QUICK: u32 = 4;
/// After waiting so long on a lock, an operation looks whether its holder lives.
pub const OWNER_CHECK_NS: u64 = 10_000_000;
/// After waiting so long on a lock, an operation gives up.
pub const LOCK_WAIT_MAX_NS: u64 = 10_000_000_000;
/// First and longest wait between two tries.
const BACKOFF_NS: (u64, u64) = (1_000, 64_000);
/// Longest wait of a client that asks for all others of its compute server. Few ask then; one that waited much longer
/// would lose to a new leader of another compute server again and again.
const LEADER_BACKOFF_NS: u64 = 8_000;
/// Tries at a lock after which the longest wait doubles, and again after as many more, up to 4 ms.
const MANY_TRIES: u32 = 32;

/// Waits 1 to 64 us, doubling with `attempt`, jittered.
pub async fn backoff(session: &Session, attempt: u32) {
    backoff_up_to(session, attempt, BACKOFF_NS.1).await;
}

/// The same, and so long at most.
async fn backoff_up_to(session: &Session, attempt: u32, most_ns: u64) {
    let most = (BACKOFF_NS.0 << attempt.min(16)).min(most_ns);
    let ns = most / 2 + session.endpoint().random() % (most / 2 + 1);
    session.endpoint().sleep(ns).await;
}

/// Counts the attempts at one operation, lets the first few follow each other at once, and spaces out the rest.
#[derive(Debug, Default)]
pub struct Attempts {
    count: u32,
    leads: bool,
}

impl Attempts {
    /// Those of a client that asks for others of its compute server, if it `leads`.
    pub fn of_leader(leads: bool) -> Self {
        Attempts { count: 0, leads }
    }

    /// Waits before one more attempt when there were some.
    ///
    /// # Errors
    /// `Unavailable` after very many.
    pub async fn again(&mut self, session: &Session) -> Result<(), IndexError> {
        self.count += 1;
        if self.count > ATTEMPTS_MAX {
            return Err(IndexError::Unavailable(format!(
                "gave up after {ATTEMPTS_MAX} attempts at one key, which others change all the time: try again"
            )));
        }
        if self.count > ATTEMPTS_QUICK {
            let most_ns = if self.leads { LEADER_BACKOFF_NS } else { BACKOFF_NS.1 };
            backoff_up_to(session, self.count - ATTEMPTS_QUICK, most_ns).await;
        }
        Ok(())
    }
}

/// Waiting for a lock that another has.
#[derive(Debug, Default)]
pub struct LockWait {
    since_ns: u64,
    holder: u64,
    tries: u32,
    leads: bool,
}

impl LockWait {
    /// That of a client that asks for others of its compute server, if it `leads`.
    pub fn of_leader(leads: bool) -> Self {
        LockWait { leads, ..LockWait::default() }
    }

    /// Waits before one more look at the lock of the `what` at `addr`, which `token` holds; true at once if the
    /// holder is dead, and fenced.
    ///
    /// # Errors
    /// `Unavailable` if one holder keeps it too long.
    pub async fn again(
        &mut self,
        session: &Session,
        (what, addr): (&str, GlobalAddr),
        token: u64,
    ) -> Result<bool, IndexError> {
        let now_ns = session.endpoint().now_ns();
        if self.holder != token {
            (self.since_ns, self.holder) = (now_ns, token);
        }
        let waited_ns = now_ns - self.since_ns;
        if waited_ns >= OWNER_CHECK_NS
            && LockToken::from_word(token).is_some()
            && (STEAL_LOCK.is_armed() || session.owner_is_dead(token).await?)
        {
            return Ok(true);
        }
        if waited_ns >= LOCK_WAIT_MAX_NS {
            return Err(locked_too_long(what, addr, token));
        }
        let most_ns = match self.leads {
            true => LEADER_BACKOFF_NS << (self.tries / MANY_TRIES).min(9),
            false => BACKOFF_NS.1 << (self.tries / MANY_TRIES).min(6),
        };
        backoff_up_to(session, self.tries, most_ns).await;
        self.tries += 1;
        Ok(false)
    }
}

/// Waits for the place in the queue of `key`, behind the other tasks of this compute server that came before; `None` if
/// they take as long as the session or one that wants a lock waits: then the caller goes on without. No remote operation.
pub async fn queue_for(session: &Session, queue: &Arc<LockQueue>, key: u64) -> Option<QueuePlace> {
    if let Some(place) = queue.try_place(key) {
        return Some(place);
    }
    let place = session.reliable().within(queue.place(key));
    within(session.endpoint(), pin!(place), LOCK_WAIT_MAX_NS).await.flatten()
}

/// The error for a lock of the `what` at `addr` that `token` has held for too long.
pub fn locked_too_long(what: &str, addr: GlobalAddr, token: u64) -> IndexError {
    let holder = match LockToken::from_word(token) {
        Some(token) => format!("compute server {} (client {})", token.member(), token.client()),
        None => format!("an unknown holder ({token:#018x})"),
    };
    IndexError::Unavailable(format!(
        "{what} {addr} has been locked by {holder} for more than {} s: is that process stopped?",
        LOCK_WAIT_MAX_NS / 1_000_000_000
    ))
}
