//! Replies: the receiver's end of one connection that carries calls.
//!
//! - INV-REPLIES-1: each accepted request is answered once, by a reply or by the drop of its
//!   [`Incoming`](super::Incoming).
//! - INV-REPLIES-2: nothing of a closed connection is begun.
//! - INV-REPLIES-3: a compute server that leaves says so last, once nothing of the connection is under way
//!   that was begun. So a sender that hears it knows that all its unanswered requests were not begun.

use std::sync::{Arc, Mutex};

use super::{CallError, Closed, Queued, Requests, Responder, UNDER_WAY_MAX};
use crate::sync::lock;
use crate::wake::Notify;
use crate::{Incarnation, OpErrorKind, ServiceId, canary};

/// End of a call, as it goes over a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Outcome {
    Done = 0,
    NotBegun = 1,
    Unknown = 2,
}

impl Outcome {
    pub(crate) fn of(byte: u8) -> Option<Outcome> {
        [Outcome::Done, Outcome::NotBegun, Outcome::Unknown].get(usize::from(byte)).copied()
    }

    /// Returns what a sender learns that this and `reply` came to.
    pub(crate) fn of_call<T>(self, reply: T) -> Result<T, CallError> {
        match self {
            Outcome::Done => Ok(reply),
            Outcome::NotBegun => Err(CallError::NotBegun),
            Outcome::Unknown => Err(CallError::Unknown(OpErrorKind::Unavailable)),
        }
    }
}

/// A reply that waits to be sent.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) number: u64,
    pub(crate) outcome: Outcome,
    pub(crate) bytes: Vec<u8>,
}

/// Decides whether a connection's requests may begin, and whether replies may leave.
pub(crate) trait Admission: Send + Sync {
    /// Returns whether a request of `from` may begin (F12.4, F12.6).
    fn may_begin(&self, from: Incarnation) -> bool;

    /// Returns whether this compute server holds its lease (F12.7).
    fn holds_lease(&self) -> bool;
}

#[derive(Default)]
struct RepliesState {
    ready: Vec<Reply>,
    under_way: usize,
    /// Requests whose receiver has not answered or dropped them.
    owed: usize,
    /// The number of the last request.
    last: u64,
    is_closed: bool,
    /// This compute server leaves, and has said so to the sender.
    leaves: bool,
    has_said_so: bool,
    /// Some of what was ready has not been given to the system.
    is_unsent: bool,
}

/// The number that stands for all requests of a connection that have no answer.
pub(crate) const ALL_OTHERS: u64 = 0;

/// The requests of one connection that are under way, and their replies.
pub(crate) struct Replies {
    state: Mutex<RepliesState>,
    admission: Box<dyn Admission>,
    /// Called when a reply is ready.
    notify: Notify,
}

impl Replies {
    pub(super) fn new(admission: Box<dyn Admission>, notify: Notify) -> Arc<Replies> {
        Arc::new(Replies { state: Mutex::default(), admission, notify })
    }

    /// Takes a request in. False if its number is not larger than the one before (F12.1), or there are
    /// more under way than a sender may have (F12.10): this is no connection of the protocol.
    pub(crate) fn take_in(
        self: &Arc<Self>,
        requests: &Requests,
        from: Incarnation,
        number: u64,
        service: ServiceId,
        request: Vec<u8>,
    ) -> bool {
        {
            let mut state = lock(&self.state);
            let is_seen = number <= state.last && !canary::DELIVER_TWICE.is_armed();
            if is_seen || number == ALL_OTHERS || state.under_way >= UNDER_WAY_MAX {
                return false;
            }
            (state.last, state.under_way) = (number, state.under_way + 1);
            state.owed += 1;
        }
        let responder = WireResponder {
            replies: Arc::clone(self),
            from,
            number,
            is_begun: false,
            is_done: false,
        };
        requests.push(service, Queued { from, request, responder: Box::new(responder) });
        true
    }

    /// Takes out what is ready to be sent.
    pub(crate) fn take_ready(&self) -> Vec<Reply> {
        let mut state = lock(&self.state);
        let ready = std::mem::take(&mut state.ready);
        let answers = ready.iter().filter(|reply| reply.number != ALL_OTHERS).count();
        state.under_way -= answers;
        ready
    }

    /// All that was taken out has been given to the system.
    pub(crate) fn sent(&self) {
        let mut state = lock(&self.state);
        if state.ready.is_empty() {
            state.is_unsent = false;
        }
    }

    /// This compute server leaves: tells the sender, once what was begun is answered.
    pub(crate) fn leave(&self) {
        lock(&self.state).leaves = true;
        self.say_goodbye();
    }

    /// Returns whether the sender has been sent every reply and notice.
    pub(crate) fn has_told_all(&self) -> bool {
        let state = lock(&self.state);
        state.is_closed || state.has_said_so && !state.is_unsent
    }

    /// Tells a sender the last that it hears, if it is time (INV-REPLIES-3).
    fn say_goodbye(&self) {
        {
            let mut state = lock(&self.state);
            if !state.leaves || state.has_said_so || state.owed > 0 || state.is_closed {
                return;
            }
            (state.has_said_so, state.is_unsent) = (true, true);
            let outcome = Outcome::NotBegun;
            state.ready.push(Reply { number: ALL_OTHERS, outcome, bytes: Vec::new() });
        }
        (self.notify)();
    }

    /// The connection has ended.
    pub(crate) fn close(&self) {
        let ready = {
            let mut state = lock(&self.state);
            state.is_closed = true;
            std::mem::take(&mut state.ready)
        };
        drop(ready);
    }

    pub(crate) fn is_closed(&self) -> bool {
        lock(&self.state).is_closed
    }

    fn put(&self, reply: Reply) -> Result<(), Closed> {
        {
            let mut state = lock(&self.state);
            if state.is_closed {
                return Err(Closed);
            }
            state.ready.push(reply);
            state.is_unsent = true;
        }
        (self.notify)();
        Ok(())
    }
}

/// Obligation of a request's receiver over a connection.
struct WireResponder {
    replies: Arc<Replies>,
    from: Incarnation,
    number: u64,
    is_begun: bool,
    is_done: bool,
}

impl WireResponder {
    fn put(&mut self, outcome: Outcome, bytes: Vec<u8>) -> Result<(), Closed> {
        self.is_done = true;
        let put = self.replies.put(Reply { number: self.number, outcome, bytes });
        lock(&self.replies.state).owed -= 1;
        self.replies.say_goodbye();
        put
    }
}

impl Responder for WireResponder {
    fn begin(&mut self) -> bool {
        let may_begin = self.replies.admission.may_begin(self.from);
        self.is_begun =
            !self.replies.is_closed() && (may_begin || canary::BEGIN_BEHIND_FENCE.is_armed());
        self.is_begun
    }

    fn reply(&mut self, reply: Vec<u8>) -> Result<(), Closed> {
        assert!(self.is_begun, "a reply to a request that was not begun");
        if !self.replies.admission.holds_lease() && !canary::REPLY_AS_ZOMBIE.is_armed() {
            let _ = self.put(Outcome::Unknown, Vec::new());
            return Err(Closed);
        }
        self.put(Outcome::Done, reply)
    }
}

impl Drop for WireResponder {
    fn drop(&mut self) {
        if !self.is_done {
            let outcome = if self.is_begun { Outcome::Unknown } else { Outcome::NotBegun };
            // A connection that has ended tells its sender by its end.
            let _ = self.put(outcome, Vec::new());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::task::{Context, Poll, Waker};

    use super::super::Incoming;
    use super::*;

    const WHO: Incarnation = Incarnation(7);
    const SERVICE: ServiceId = ServiceId(3);

    /// A connection with a switch for fences and one for the lease.
    struct Connection {
        requests: Requests,
        replies: Arc<Replies>,
        switches: Arc<[AtomicBool; 2]>,
        rings: Arc<AtomicUsize>,
    }

    struct Switches(Arc<[AtomicBool; 2]>);

    impl Admission for Switches {
        fn may_begin(&self, from: Incarnation) -> bool {
            assert_eq!(from, WHO);
            !self.0[0].load(Ordering::SeqCst)
        }

        fn holds_lease(&self) -> bool {
            !self.0[1].load(Ordering::SeqCst)
        }
    }

    impl Connection {
        fn new() -> Connection {
            let (requests, rings) = (Requests::default(), Arc::<AtomicUsize>::default());
            assert!(requests.open() && !requests.open());
            let switches = Arc::<[AtomicBool; 2]>::default();
            let rung = Arc::clone(&rings);
            let notify = Arc::new(move || {
                rung.fetch_add(1, Ordering::SeqCst);
            });
            let replies = Replies::new(Box::new(Switches(Arc::clone(&switches))), notify);
            Connection { requests, replies, switches, rings }
        }

        fn comes(&self, number: u64) -> bool {
            self.replies.take_in(&self.requests, WHO, number, SERVICE, vec![number as u8])
        }

        fn take(&self) -> Option<Incoming> {
            match self.requests.poll_next(SERVICE, &mut Context::from_waker(Waker::noop())) {
                Poll::Ready(incoming) => incoming,
                Poll::Pending => None,
            }
        }

        fn ready(&self) -> Vec<(u64, Outcome, Vec<u8>)> {
            let ready = self.replies.take_ready().into_iter();
            ready.map(|reply| (reply.number, reply.outcome, reply.bytes)).collect()
        }
    }

    #[test]
    fn each_request_is_answered_once_and_says_how_far_it_was() {
        let connection = Connection::new();
        assert!((1..=4).all(|number| connection.comes(number)));
        let take = || connection.take().expect("a request");
        let (mut replied, mut begun, unbegun) = (take(), take(), take());
        assert!(replied.begin() && begun.begin());
        assert_eq!((replied.from, &replied.request[..]), (WHO, &[1][..]));
        assert_eq!(replied.reply(vec![9]), Ok(()));
        drop((begun, unbegun));
        let told = connection.ready();
        let none = Vec::new();
        assert_eq!(
            told,
            [
                (1, Outcome::Done, vec![9]),
                (2, Outcome::Unknown, none.clone()),
                (3, Outcome::NotBegun, none.clone())
            ]
        );
        // One request waits when this compute server leaves, and one comes later.
        connection.requests.close();
        assert!(connection.comes(5) && connection.take().is_none());
        assert_eq!(
            connection.ready(),
            [(4, Outcome::NotBegun, none.clone()), (5, Outcome::NotBegun, none)]
        );
        assert_eq!(connection.rings.load(Ordering::SeqCst), 5);
    }

    #[test]
    fn a_receiver_that_leaves_says_so_behind_its_last_reply() {
        let connection = Connection::new();
        assert!(connection.comes(1) && connection.comes(2));
        let mut begun = connection.take().unwrap();
        assert!(begun.begin());
        connection.requests.close();
        connection.replies.leave();
        assert_eq!(connection.ready(), [(2, Outcome::NotBegun, Vec::new())]);
        assert!(!connection.replies.has_told_all(), "one is under way");
        assert_eq!(begun.reply(vec![7]), Ok(()));
        let goodbye = (ALL_OTHERS, Outcome::NotBegun, Vec::new());
        assert_eq!(connection.ready(), [(1, Outcome::Done, vec![7]), goodbye]);
        assert!(!connection.replies.has_told_all(), "it has not been sent");
        connection.replies.sent();
        assert!(connection.replies.has_told_all());
        // Later calls are not begun, and the receiver says goodbye once.
        assert!(connection.comes(3) && connection.take().is_none());
        assert_eq!(connection.ready(), [(3, Outcome::NotBegun, Vec::new())]);
    }

    #[test]
    fn nothing_of_a_closed_connection_is_begun() {
        let connection = Connection::new();
        assert!(connection.comes(1) && connection.comes(2));
        let (mut begun, mut waits) = (connection.take().unwrap(), connection.take().unwrap());
        assert!(begun.begin());
        connection.replies.close();
        assert!(!waits.begin());
        assert_eq!(begun.reply(Vec::new()), Err(Closed));
        assert!(connection.ready().is_empty());
    }

    #[test]
    fn a_connection_has_a_bound_on_calls() {
        let connection = Connection::new();
        assert!((1..=UNDER_WAY_MAX as u64).all(|number| connection.comes(number)));
        assert!(!connection.comes(5_000), "one too many");
        drop(connection.take());
        assert!(!connection.comes(5_000), "its answer has not left");
        assert_eq!(connection.ready().len(), 1);
        assert!(connection.comes(5_000));
    }

    fn repeated() {
        let connection = Connection::new();
        assert!(connection.comes(2) && !connection.comes(2) && !connection.comes(1));
        assert!(connection.take().is_some() && connection.take().is_none());
    }

    fn fenced() {
        let connection = Connection::new();
        assert!(connection.comes(1));
        let mut incoming = connection.take().unwrap();
        connection.switches[0].store(true, Ordering::SeqCst);
        assert!(!incoming.begin());
    }

    fn zombie() {
        let connection = Connection::new();
        assert!(connection.comes(1));
        let mut incoming = connection.take().unwrap();
        assert!(incoming.begin());
        connection.switches[1].store(true, Ordering::SeqCst);
        assert_eq!(incoming.reply(vec![1]), Err(Closed));
        assert_eq!(connection.ready(), [(1, Outcome::Unknown, Vec::new())]);
    }

    #[test]
    fn canaries_are_found() {
        let finds: [(&'static crate::Canary, fn()); 3] = [
            (&canary::DELIVER_TWICE, repeated),
            (&canary::BEGIN_BEHIND_FENCE, fenced),
            (&canary::REPLY_AS_ZOMBIE, zombie),
        ];
        for (canary, find) in finds {
            find();
            let _armed = canary.arm();
            assert!(catch_unwind(AssertUnwindSafe(find)).is_err(), "{canary:?} was not found");
        }
    }
}
