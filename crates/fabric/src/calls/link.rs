//! Link: the sender's end of one thread's calls to one peer, for fabrics without an own connection.
//!
//! - INV-LINK-1: a call counts as begun from just before its receiver can see it as begun (within one
//!   process), or just before its first byte is written (through a socket).
//! - INV-LINK-2: an ended link has nothing pending, and nothing of it is begun any more.

use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Poll, Waker};

use super::{
    ALL_OTHERS, Answer, CALL_BYTES_MAX, CallError, Closed, Queued, Requests, Responder,
    UNDER_WAY_MAX, promise,
};
use crate::sync::lock;
use crate::{Incarnation, OpErrorKind, ServiceId};

/// A request on its way to the socket.
pub(crate) struct Outbound {
    pub(crate) number: u64,
    pub(crate) service: ServiceId,
    pub(crate) request: Vec<u8>,
}

struct Pending {
    answer: Answer,
    is_begun: bool,
}

#[derive(Default)]
struct LinkState {
    number: u64,
    pending: BTreeMap<u64, Pending>,
    /// Not written yet.
    queue: VecDeque<Outbound>,
    /// Calls that wait for room.
    blocked: Vec<Waker>,
    stream: Option<UnixStream>,
    is_ended: bool,
}

/// One thread's way to one life of a peer.
pub(crate) struct CallLink {
    pub(crate) to: Incarnation,
    from: Incarnation,
    /// The receiver's queue, within one process; else requests wait for [`CallLink::next`].
    receiver: Option<Arc<Requests>>,
    state: Mutex<LinkState>,
    changed: Condvar,
}

impl CallLink {
    pub(crate) fn new(
        from: Incarnation,
        to: Incarnation,
        receiver: Option<Arc<Requests>>,
    ) -> Arc<CallLink> {
        let (state, changed) = (Mutex::default(), Condvar::new());
        Arc::new(CallLink { to, from, receiver, state, changed })
    }

    pub(crate) fn is_ended(&self) -> bool {
        lock(&self.state).is_ended
    }

    /// See [`crate::Endpoint::call`].
    pub(crate) async fn call(
        self: &Arc<Self>,
        service: ServiceId,
        request: Vec<u8>,
    ) -> Result<Vec<u8>, CallError> {
        if request.len() > CALL_BYTES_MAX {
            return Err(CallError::TooLong);
        }
        let (answer, waiting) = promise();
        let number = poll_fn(|context| {
            let mut state = lock(&self.state);
            if state.is_ended {
                return Poll::Ready(None);
            }
            if state.pending.len() >= UNDER_WAY_MAX {
                state.blocked.push(context.waker().clone());
                return Poll::Pending;
            }
            state.number += 1;
            let number = state.number;
            state.pending.insert(number, Pending { answer: answer.clone(), is_begun: false });
            Poll::Ready(Some(number))
        });
        let Some(number) = number.await else { return Err(CallError::NotBegun) };
        match &self.receiver {
            Some(receiver) => {
                let responder = LocalResponder { link: Arc::clone(self), number, is_begun: false };
                let queued = Queued { from: self.from, request, responder: Box::new(responder) };
                receiver.push(service, queued);
            }
            None => {
                lock(&self.state).queue.push_back(Outbound { number, service, request });
                self.changed.notify_all();
            }
        }
        waiting.await
    }

    /// Ends a call, and lets further ones in.
    fn finish(&self, number: u64, outcome: Result<Vec<u8>, CallError>) -> bool {
        let (pending, blocked) = {
            let mut state = lock(&self.state);
            (state.pending.remove(&number), std::mem::take(&mut state.blocked))
        };
        // All, as some may wait no more.
        blocked.into_iter().for_each(Waker::wake);
        // A late reply to what has been given up belongs to nobody (F12.8).
        let Some(pending) = pending else { return false };
        pending.answer.give(outcome);
        true
    }

    /// Begins the work of a call; false if nobody waits for it.
    fn begin(&self, number: u64) -> bool {
        let mut state = lock(&self.state);
        let Some(pending) = state.pending.get_mut(&number) else { return false };
        pending.is_begun = pending.answer.is_wanted();
        pending.is_begun
    }

    /// Ends the link: what was begun is `Unknown`, the rest `NotBegun`.
    pub(crate) fn end(&self, kind: OpErrorKind) {
        let (pending, blocked) = {
            let mut state = lock(&self.state);
            state.is_ended = true;
            state.queue.clear();
            if let Some(stream) = state.stream.take() {
                // It may have ended by itself.
                let _ = stream.shutdown(Shutdown::Both);
            }
            (std::mem::take(&mut state.pending), std::mem::take(&mut state.blocked))
        };
        self.changed.notify_all();
        for Pending { answer, is_begun } in pending.into_values() {
            answer.give(Err(CallError::unanswered(is_begun, kind)));
        }
        blocked.into_iter().for_each(Waker::wake);
    }

    /// The peer is dead. A socket ends by itself, behind what the peer has sent before its end.
    pub(crate) fn peer_died(&self) {
        if self.receiver.is_some() {
            self.end(OpErrorKind::Gone { who: self.to });
        }
    }

    /// Takes the socket, to shut it down at the end; false if the end has come.
    pub(crate) fn connected(&self, stream: UnixStream) -> bool {
        let mut state = lock(&self.state);
        if !state.is_ended {
            state.stream = Some(stream);
        }
        !state.is_ended
    }

    /// Waits for the next request to write, which counts as begun from here on; `None` at the end. Blocks
    /// its thread.
    pub(crate) fn next(&self) -> Option<Outbound> {
        loop {
            let state = self
                .changed
                .wait_while(lock(&self.state), |state| state.queue.is_empty() && !state.is_ended);
            // An ended link has an empty queue.
            let next = state.unwrap_or_else(PoisonError::into_inner).queue.pop_front()?;
            if self.begin(next.number) {
                return Some(next);
            }
            // A caller that has gone leaves nothing to send.
            self.finish(next.number, Err(CallError::NotBegun));
        }
    }

    /// A reply has come; one that nobody waits for is dropped (F12.8).
    pub(crate) fn came(&self, number: u64, outcome: Result<Vec<u8>, CallError>) {
        if number == ALL_OTHERS {
            // The receiver has left.
            lock(&self.state).pending.values_mut().for_each(|pending| pending.is_begun = false);
            return self.end(OpErrorKind::Unavailable);
        }
        self.finish(number, outcome);
    }
}

/// The reply that the receiver of a call within one process owes.
struct LocalResponder {
    link: Arc<CallLink>,
    number: u64,
    is_begun: bool,
}

impl Responder for LocalResponder {
    fn begin(&mut self) -> bool {
        let is_fenced =
            self.link.receiver.as_ref().is_some_and(|receiver| receiver.is_fenced(self.link.from));
        self.is_begun = !is_fenced && self.link.begin(self.number);
        self.is_begun
    }

    fn reply(&mut self, reply: Vec<u8>) -> Result<(), Closed> {
        assert!(self.is_begun, "a reply to a request that was not begun");
        if self.link.finish(self.number, Ok(reply)) { Ok(()) } else { Err(Closed) }
    }
}

impl Drop for LocalResponder {
    fn drop(&mut self) {
        let told = CallError::unanswered(self.is_begun, OpErrorKind::Unavailable);
        self.link.finish(self.number, Err(told));
    }
}
