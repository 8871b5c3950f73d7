//! RPC queue: holds the RPCs of one queue pair that wait to be sent, or for their answers.
//!
//! - **VERBS-10** Answers come in the order of the requests. An RPC goes out when the send queue has
//!   room for it, and never twice.

use std::collections::VecDeque;
use std::io;
use std::rc::Rc;

use super::posts::CardPosts;
use crate::OpError;
use crate::raw::verbs::{Call, Hold, SendQueue};
use crate::tcp::call::head;

#[derive(Debug, Default)]
pub(super) struct Calls {
    unsent: VecDeque<WaitingCall>,
    sent: VecDeque<WaitingCall>,
    /// Time of the last probe of a silent send queue.
    probed_ns: u64,
}

#[derive(Debug)]
struct WaitingCall {
    slot: u32,
    /// Owns the request until it has been sent.
    hold: Option<Rc<Hold>>,
    /// Time at which it was first seen waiting.
    since_ns: Option<u64>,
}

impl Calls {
    pub(super) fn is_empty(&self) -> bool {
        self.unsent.is_empty() && self.sent.is_empty()
    }

    /// Returns whether answers are to come.
    pub(super) fn awaits(&self) -> bool {
        !self.sent.is_empty()
    }

    pub(super) fn push(&mut self, slot: u32, hold: Rc<Hold>) {
        self.unsent.push_back(WaitingCall { slot, hold: Some(hold), since_ns: None });
    }

    /// Gives to `send_queue` as much as it has room for.
    ///
    /// # Errors
    /// If the caller has to cut the send queue.
    pub(super) fn send(&mut self, send_queue: &mut SendQueue) -> io::Result<()> {
        if !self.unsent.is_empty() && !send_queue.takes_messages() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        while send_queue.has_room()
            && let Some(mut call) = self.unsent.pop_front()
        {
            let hold = call.hold.take();
            self.sent.push_back(call);
            let Some(hold) = hold else { continue };
            hold.with_call(|Call { service, request, reply, .. }| {
                let bytes = request.window_bytes();
                send_queue.put([&head(*service, reply.window_len(), bytes.len()), bytes])
            })?;
        }
        Ok(())
    }

    /// Hands over an answer; false if it is none, or nobody waits for it.
    pub(super) fn answered(&mut self, message: &[u8], posts: &mut CardPosts) -> bool {
        let Some(call) = self.sent.front() else { return false };
        let is_answer = posts.answered(call.slot, message);
        if is_answer {
            self.sent.pop_front();
        }
        is_answer
    }

    /// Returns the wait of the oldest, since the first look at it.
    pub(super) fn look(&mut self, now_ns: u64) -> u64 {
        for calls in [&mut self.unsent, &mut self.sent] {
            for call in calls.iter_mut().rev().take_while(|call| call.since_ns.is_none()) {
                call.since_ns = Some(now_ns);
            }
        }
        let oldest = self.sent.front().or(self.unsent.front()).and_then(|call| call.since_ns);
        oldest.map_or(0, |since_ns| now_ns.saturating_sub(since_ns))
    }

    /// Returns whether to probe the send queue: an answer has been due for `every_ns`, and the last probe is
    /// as old.
    pub(super) fn is_due(&mut self, waited_ns: u64, now_ns: u64, every_ns: u64) -> bool {
        let is_due = self.awaits()
            && waited_ns >= every_ns
            && now_ns.saturating_sub(self.probed_ns) >= every_ns;
        if is_due {
            self.probed_ns = now_ns;
        }
        is_due
    }

    /// Fails them all: no answer will come.
    pub(super) fn lose(&mut self, error: OpError, posts: &mut CardPosts) {
        for call in self.sent.drain(..).chain(self.unsent.drain(..)) {
            drop(call.hold);
            posts.ended(call.slot, Err(error));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use super::*;
    use crate::posts::Kept;
    use crate::raw::SlabRef;
    use crate::raw::verbs::HeldLoad;
    use crate::{OpErrorKind, ServerId, ServiceId};

    /// As [`Calls::send`] with room for `count`, and no send queue.
    fn send(calls: &mut Calls, count: usize) {
        for _ in 0..count {
            if let Some(mut call) = calls.unsent.pop_front() {
                call.hold = None;
                calls.sent.push_back(call);
            }
        }
    }

    fn post(posts: &mut CardPosts, calls: &mut Calls, slab: &SlabRef) -> u32 {
        let (server, service) = (ServerId(0), ServiceId(1));
        let (request, reply) = (slab.buf(8), slab.buf(8));
        let load = HeldLoad::Call(Call { server, service, request, reply, reply_len: 0 });
        let (slot, opened, _) = posts.open(&Context::from_waker(Waker::noop()));
        opened.kept.put(load);
        let hold = posts.part(slot);
        calls.push(slot, hold);
        posts.posted(slot, None);
        slot
    }

    fn taken(posts: &mut CardPosts, slot: u32) -> Option<(usize, Option<OpError>)> {
        let is_done = posts.slot(slot).missing == 0;
        let (load, error) = is_done.then(|| posts.take(slot))?;
        match load {
            HeldLoad::Call(call) => Some((call.reply_len, error)),
            other => panic!("an RPC came back as {other:?}"),
        }
    }

    #[test]
    fn answers_find_their_calls_in_order() {
        let slab = SlabRef::new();
        let (mut posts, mut calls) = (CardPosts::default(), Calls::default());
        let slots: Vec<u32> = (0..3).map(|_| post(&mut posts, &mut calls, &slab)).collect();
        assert!(!calls.answered(&[0; 8], &mut posts), "nothing has been sent");
        send(&mut calls, 2);
        assert_eq!(taken(&mut posts, slots[0]), None);
        assert!(calls.answered(&[0, 0, 0, 0, 2, 0, 0, 0, 7, 7], &mut posts));
        assert_eq!(taken(&mut posts, slots[0]), Some((2, None)));
        assert_eq!(taken(&mut posts, slots[1]), None);
        // Longer than the room, and no answer at all.
        assert!(!calls.answered(&[&[0, 0, 0, 0, 9, 0, 0, 0][..], &[7; 9]].concat(), &mut posts));
        assert!(!calls.answered(&[1, 2, 3], &mut posts));
        // Nobody waits for this one any more: its buffers are freed with the answer.
        drop(posts.abandon(slots[1]));
        assert_eq!(slab.buffers_out(), 4);
        assert!(calls.answered(&[3, 0, 0, 0, 0, 0, 0, 0], &mut posts));
        assert_eq!(slab.buffers_out(), 2);
        let error = OpError { server: ServerId(0), kind: OpErrorKind::Unavailable };
        calls.lose(error, &mut posts);
        assert_eq!(taken(&mut posts, slots[2]), Some((0, Some(error))));
        assert!(calls.is_empty());
        assert_eq!(slab.buffers_out(), 0);
    }

    #[test]
    fn the_oldest_call_sets_the_wait() {
        let slab = SlabRef::new();
        let (mut posts, mut calls) = (CardPosts::default(), Calls::default());
        assert_eq!(calls.look(50), 0);
        for _ in 0..2 {
            post(&mut posts, &mut calls, &slab);
        }
        assert_eq!(calls.look(100), 0);
        send(&mut calls, 1);
        post(&mut posts, &mut calls, &slab);
        assert_eq!(calls.look(130), 30);
        assert!(!calls.is_due(30, 130, 40));
        assert_eq!(calls.look(150), 50);
        assert!(calls.is_due(50, 150, 40));
        assert!(!calls.is_due(60, 160, 40), "it was just looked after");
        assert!(calls.answered(&[0; 8], &mut posts));
        assert_eq!(calls.look(170), 70, "the second has waited as long");
        assert!(!calls.is_due(70, 170, 20), "nothing has been sent");
        send(&mut calls, 2);
        assert!(calls.answered(&[0; 8], &mut posts));
        assert_eq!(calls.look(180), 50, "the third came later");
    }
}
