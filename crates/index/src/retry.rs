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

/// A policy of retries: the waits between the attempts at one operation, and the number of attempts.
#[derive(Debug)]
pub struct RetryPolicy {
    /// Attempts that follow each other at once.
    pub at_once: u32,
    /// Attempts after those, between which other tasks run.
    pub yielding: u32,
    /// Attempts before the operation gives up. Between the last ones it waits for random times.
    pub most: u32,
    /// Longest of these times.
    pub longest_ns: u64,
    /// The aim of the attempts and a remedy, for the error.
    pub gave_up: &'static str,
}

impl RetryPolicy {
    /// Attempts at one key.
    pub const KEY: RetryPolicy = RetryPolicy {
        at_once: 4,
        yielding: 0,
        most: 20_000,
        longest_ns: BACKOFF_NS.1,
        gave_up: "one key, which others change all the time: try again",
    };
    /// Attempts at one key by a client that asks for others of its compute server.
    pub const KEY_OF_LEADER: RetryPolicy =
        RetryPolicy { longest_ns: LEADER_BACKOFF_NS, ..RetryPolicy::KEY };
    /// Attempts at finding a node of a tree.
    pub const WAY: RetryPolicy = RetryPolicy {
        at_once: 8,
        gave_up: "finding the way through the table: try again",
        ..RetryPolicy::KEY
    };
}

/// Counts the attempts at one operation, and spaces them out by a policy.
#[derive(Debug)]
pub struct Attempts {
    policy: &'static RetryPolicy,
    count: u32,
}

impl Default for Attempts {
    /// Attempts at one key.
    fn default() -> Self {
        Attempts::new(&RetryPolicy::KEY)
    }
}

impl Attempts {
    /// The first attempt.
    pub fn new(policy: &'static RetryPolicy) -> Self {
        Attempts { policy, count: 0 }
    }

    /// The first attempt of a client that asks for others of its compute server, if it `leads`.
    pub fn of_leader(leads: bool) -> Self {
        match leads {
            true => Attempts::new(&RetryPolicy::KEY_OF_LEADER),
            false => Attempts::default(),
        }
    }

    /// Returns whether so few attempts failed that they follow each other at once, and one more will.
    pub fn is_quick(&self) -> bool {
        self.count < self.policy.at_once
    }

    /// Waits from the next attempt on, as others have to finish first.
    pub fn wait_from_now(&mut self) {
        self.count = self.count.max(self.policy.at_once + self.policy.yielding);
    }

    /// Waits before one more attempt when there were some.
    ///
    /// # Errors
    /// `Unavailable` after very many.
    pub async fn again(&mut self, session: &Session) -> Result<(), IndexError> {
        let RetryPolicy { at_once, yielding, most, longest_ns, gave_up } = *self.policy;
        self.count += 1;
        if self.count > most {
            return Err(IndexError::Unavailable(format!(
                "gave up after {most} attempts at {gave_up}"
            )));
        }
        if self.count > at_once + yielding {
            backoff_up_to(session, self.count - at_once - yielding, longest_ns).await;
        } else if self.count > at_once {
            session.endpoint().yield_now().await;
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
