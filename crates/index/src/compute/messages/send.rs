//! Sender: sends a request to another compute server and interprets how the call ends.

use std::pin::pin;

use farleaf_fabric::{
    AnyEndpoint, CALL_BYTES_MAX, CallError, Endpoint, GlobalAddr, Incarnation, ServerId,
};
use farleaf_pool::Session;

use super::{OpReply, Request, decode_reply, encode_request};
use crate::IndexError;
use crate::compute::TABLE_SERVICE;
use crate::join::within;

/// Tries of an operation before it fails, in the simulator.
const TRIES_MAX: u32 = 1_000;
/// Time that an operation is sent on, and waits for replies, before it fails, in real time.
const PATIENCE_NS: u64 = 10_000_000_000;
/// The same while one owner after the other dies with the key, or those die that take over from them.
const DEATHS_PATIENCE_NS: u64 = 120_000_000_000;
/// Time that a sender waits for a reply before it looks whether the receiver lives.
const ALIVE_CHECK_NS: u64 = 2_000_000;
/// The same in real time.
const REAL_ALIVE_CHECK_NS: u64 = 20_000_000;

/// Time that a task waits for another compute server before it looks whether that one lives.
pub(crate) fn alive_check_ns(endpoint: &AnyEndpoint) -> u64 {
    if endpoint.waits_in_real_time() { REAL_ALIVE_CHECK_NS } else { ALIVE_CHECK_NS }
}

/// The limit on sending an operation from owner to owner.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    pub(crate) tries: u32,
    /// `None` for as long as the receiver lives.
    pub(crate) until_ns: Option<u64>,
    from_ns: u64,
}

impl Patience {
    pub(crate) fn new(endpoint: &AnyEndpoint) -> Self {
        let until_ns =
            endpoint.waits_in_real_time().then(|| endpoint.now_ns().saturating_add(PATIENCE_NS));
        Patience { tries: 0, until_ns, from_ns: endpoint.now_ns() }
    }

    /// Begins anew: the owner that was tried is dead, or another has the key now, which has not been silent yet.
    pub(crate) fn renew(&mut self, endpoint: &AnyEndpoint) {
        if let Some(until_ns) = &mut self.until_ns {
            let last_ns = self.from_ns.saturating_add(DEATHS_PATIENCE_NS);
            *until_ns = endpoint.now_ns().saturating_add(PATIENCE_NS).min(last_ns);
        }
    }

    pub(crate) fn is_over(self, now_ns: u64) -> bool {
        match self.until_ns {
            Some(until_ns) => now_ns >= until_ns,
            None => self.tries > TRIES_MAX,
        }
    }
}

/// Sends `request` on the table at `table` to the compute server `to`, and waits for the reply, but not beyond
/// `until_ns`. `None`: it was not begun and never will be.
///
/// Cost: 1 call, and what the receiver does; 1 READ more the first time, for the receiver's address.
///
/// # Errors
/// Those of the operation. If nobody can tell whether it was done: `OutcomeUnknown` for a change,
/// `Unavailable` for a read, which may be sent again. `Invalid` for an operation that is too long to travel.
pub(crate) async fn send(
    session: &Session,
    table: GlobalAddr,
    to: Incarnation,
    request: &Request,
    until_ns: Option<u64>,
) -> Result<Option<OpReply>, IndexError> {
    let Some(number) = attached(session, to).await? else { return Ok(None) };
    let unknown = |why: String| match request.is_read() {
        true => Err(IndexError::Unavailable(why)),
        false => Err(IndexError::OutcomeUnknown(why)),
    };
    let content = encode_request(table, request);
    let bytes = content.len();
    let before = session.client().charge_to(request.kind());
    let ended = call(session, to, number, content, until_ns).await;
    session.client().charge_to(before);
    match ended {
        CallEnded::Call(Ok(reply)) => match decode_reply(&reply) {
            Ok(outcome) => outcome.map(Some),
            Err(malformed) => {
                unknown(format!("compute server {to} sent a malformed reply: {malformed}"))
            }
        },
        CallEnded::Call(Err(CallError::NotBegun)) => Ok(None),
        CallEnded::Call(Err(CallError::TooLong)) => Err(IndexError::Invalid(format!(
            "a message of {bytes} bytes to another compute server is too long: the limit is {CALL_BYTES_MAX}"
        ))),
        CallEnded::Call(Err(error)) => {
            unknown(format!("compute server {to}, which had the operation, did not reply: {error}"))
        }
        CallEnded::Dead => {
            unknown(format!("compute server {to}, which had the operation, has died"))
        }
        CallEnded::Silent => {
            unknown(format!("compute server {to}, which has the key, lives but does not answer"))
        }
    }
}

/// The number that stands for `who`; `None` if it is no member of the pool that can be called.
async fn attached(session: &Session, who: Incarnation) -> Result<Option<ServerId>, IndexError> {
    let endpoint = session.endpoint();
    if let Some(peer) = endpoint.peer_of(who) {
        return Ok(Some(peer.server));
    }
    let members = session.members().await?;
    let member = members.into_iter().find(|member| member.incarnation == who);
    Ok(member.and_then(|member| {
        let peer = member.peer();
        // One that has published no address takes no calls.
        endpoint.attach(peer).ok().map(|()| peer.server)
    }))
}

/// Calls `who`, which is dead, no more.
pub(crate) fn forget(endpoint: &AnyEndpoint, who: Incarnation) {
    let dead = endpoint.peers().into_iter().filter(|peer| peer.incarnation == who);
    dead.for_each(|peer| endpoint.detach(peer.server));
}

enum CallEnded {
    Call(Result<Vec<u8>, CallError>),
    /// The receiver has died, and nothing more came of it.
    Dead,
    /// It lives, and has not replied in time.
    Silent,
}

/// Calls, and looks every so often whether the receiver lives.
async fn call(
    session: &Session,
    to: Incarnation,
    number: ServerId,
    request: Vec<u8>,
    until_ns: Option<u64>,
) -> CallEnded {
    let endpoint = session.endpoint();
    let check_ns = alive_check_ns(endpoint);
    let mut call = pin!(session.client().call(number, TABLE_SERVICE, request));
    loop {
        if let Some(ended) = within(endpoint, call.as_mut(), check_ns).await {
            return CallEnded::Call(ended);
        }
        if endpoint.is_dead(to).await {
            // The fabric ends the call now, by what the receiver had said before its end.
            let last = within(endpoint, call.as_mut(), check_ns).await;
            return last.map_or(CallEnded::Dead, CallEnded::Call);
        }
        if until_ns.is_some_and(|until_ns| endpoint.now_ns() >= until_ns) {
            return CallEnded::Silent;
        }
    }
}
