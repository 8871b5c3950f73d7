//! Requests: queue the arrived requests of each service until a task of this compute server takes them.
//!
//! - INV-CALL-2: a request is taken once, by one task.
//! - INV-CALL-3: a closed queue is empty and stays so: it drops later requests, which tells their
//!   senders `NotBegun`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Waker};

use super::{Admission, Incoming, Replies, Responder};
use crate::sync::lock;
use crate::wake::Notify;
use crate::{Executor, Incarnation, ServiceId};

/// Time that a compute server that leaves waits for its last replies to be sent, and between two looks.
const LEAVE_NS: u64 = 1_000_000_000;
const LEAVE_LOOK_NS: u64 = 100_000;

/// A request that waits.
pub(crate) struct Queued {
    pub(crate) from: Incarnation,
    pub(crate) request: Vec<u8>,
    pub(crate) responder: Box<dyn Responder + Send>,
}

#[derive(Default)]
struct RequestsState {
    services: BTreeMap<ServiceId, ServiceQueue>,
    fenced: BTreeSet<Incarnation>,
    /// Connections that carry requests.
    connections: Vec<Weak<Replies>>,
    is_open: bool,
    has_left: bool,
}

#[derive(Default)]
struct ServiceQueue {
    waiting: VecDeque<Queued>,
    /// Tasks that wait for a request.
    idle: Vec<Waker>,
}

/// The requests of one compute server. It takes none in before [`Requests::open`].
#[derive(Default)]
pub(crate) struct Requests(Mutex<RequestsState>);

impl Requests {
    /// Takes requests in from now on; false if that was called before.
    pub(crate) fn open(&self) -> bool {
        let mut state = lock(&self.0);
        !state.has_left && !std::mem::replace(&mut state.is_open, true)
    }

    /// Returns whether requests are taken in.
    pub(crate) fn is_open(&self) -> bool {
        lock(&self.0).is_open
    }

    /// Adds a request. If the queue is not open, it drops the request.
    pub(crate) fn push(&self, service: ServiceId, queued: Queued) {
        let mut state = lock(&self.0);
        if !state.is_open {
            // It answers when it is dropped, without the lock.
            drop(state);
            return drop(queued);
        }
        let service = state.services.entry(service).or_default();
        service.waiting.push_back(queued);
        let idle = std::mem::take(&mut service.idle);
        drop(state);
        idle.into_iter().for_each(Waker::wake);
    }

    /// The next request for `service`; `None` once this compute server has left.
    pub(crate) fn poll_next(
        &self,
        service: ServiceId,
        context: &mut Context<'_>,
    ) -> Poll<Option<Incoming>> {
        let mut state = lock(&self.0);
        if state.has_left {
            return Poll::Ready(None);
        }
        let service = state.services.entry(service).or_default();
        match service.waiting.pop_front() {
            Some(Queued { from, request, responder }) => {
                Poll::Ready(Some(Incoming::new(from, request, responder)))
            }
            None => {
                if !service.idle.iter().any(|waker| waker.will_wake(context.waker())) {
                    service.idle.push(context.waker().clone());
                }
                Poll::Pending
            }
        }
    }

    /// Takes in no more requests. Senders of waiting requests receive `NotBegun`, and waiting tasks `None`.
    pub(crate) fn close(&self) {
        let services = {
            let mut state = lock(&self.0);
            (state.is_open, state.has_left) = (false, true);
            std::mem::take(&mut state.services)
        };
        for service in services.into_values() {
            service.idle.into_iter().for_each(Waker::wake);
            drop(service.waiting);
        }
    }

    /// The receiver's end of a new connection, whose sender learns when this compute server leaves. `None` once it
    /// has left: nobody waits for what such a connection is still to be told, so its sender must not be let in.
    pub(crate) fn connection(
        &self,
        admission: Box<dyn Admission>,
        notify: Notify,
    ) -> Option<Arc<Replies>> {
        let mut state = lock(&self.0);
        if state.has_left {
            return None;
        }
        let replies = Replies::new(admission, notify);
        state.connections.retain(|known| known.strong_count() > 0);
        state.connections.push(Arc::downgrade(&replies));
        Some(replies)
    }

    fn connections(&self) -> Vec<Arc<Replies>> {
        lock(&self.0).connections.iter().filter_map(Weak::upgrade).collect()
    }

    /// Begins no request of `who` any more (F12.6).
    pub(crate) fn fence(&self, who: Incarnation) {
        lock(&self.0).fenced.insert(who);
    }

    /// Returns whether `who` has been fenced here.
    pub(crate) fn is_fenced(&self, who: Incarnation) -> bool {
        lock(&self.0).fenced.contains(&who)
    }
}

/// Takes nothing in any more, and waits until all senders have been told how far their requests were.
pub(crate) async fn leave(requests: &Requests, executor: &Executor) {
    requests.close();
    let connections = requests.connections();
    connections.iter().for_each(|replies| replies.leave());
    let until_ns = executor.now_ns().saturating_add(LEAVE_NS);
    while !connections.iter().all(|replies| replies.has_told_all()) && executor.now_ns() < until_ns
    {
        executor.sleep(LEAVE_LOOK_NS).await;
    }
}

/// Waits for the next request.
pub(crate) async fn next(requests: &Arc<Requests>, service: ServiceId) -> Option<Incoming> {
    std::future::poll_fn(|context| requests.poll_next(service, context)).await
}

impl std::fmt::Debug for Requests {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Requests(open: {})", lock(&self.0).is_open)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Incarnation;

    struct All;

    impl Admission for All {
        fn may_begin(&self, _from: Incarnation) -> bool {
            true
        }

        fn holds_lease(&self) -> bool {
            true
        }
    }

    #[test]
    fn a_sender_that_comes_after_the_end_is_not_let_in() {
        let requests = Requests::default();
        assert!(requests.open());
        let early = requests.connection(Box::new(All), Arc::new(|| {}));
        requests.close();
        // It is among those that are told, and waited for.
        assert_eq!(requests.connections().len(), 1);
        assert!(early.is_some_and(|replies| !replies.is_closed()));
        assert!(requests.connection(Box::new(All), Arc::new(|| {})).is_none());
    }
}
