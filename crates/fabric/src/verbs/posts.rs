//! Verbs posts: own the buffers of posted operations, together with the cards that use them.

use std::rc::Rc;

use crate::OpError;
use crate::posts::{self, Kept};
use crate::raw::verbs::{HeldLoad, Hold};
use crate::tcp::call::answer_of;

/// All posts whose futures have not taken their results. An unused hold is kept for its memory.
pub(super) type CardPosts = posts::Posts<Rc<Hold>>;

impl Kept for Rc<Hold> {
    type Load = HeldLoad;

    /// A card that could not be stopped keeps the old hold.
    #[inline]
    fn exchange(&mut self, load: HeldLoad) -> HeldLoad {
        Hold::swap(self, load).unwrap_or_else(|load| {
            *self = Rc::default();
            Hold::swap(self, load).unwrap_or_default()
        })
    }
}

impl CardPosts {
    /// One more part of a post is on its way; returns the owner of its buffers.
    #[inline]
    pub(super) fn part(&mut self, index: u32) -> Rc<Hold> {
        let slot = self.slot(index);
        slot.missing += 1;
        Rc::clone(&slot.kept)
    }

    /// Makes a post wait without any operation.
    pub(super) fn wait(&mut self, index: u32) {
        self.slot(index).missing += 1;
    }

    /// Takes the answer to an RPC; false if it is none.
    pub(super) fn answered(&mut self, index: u32, message: &[u8]) -> bool {
        let call = Hold::call_mut(&mut self.slot(index).kept);
        let answer = call.and_then(|call| {
            let (at, room) = (call.reply.window_start(), call.reply.window_len());
            let answer = answer_of(message, call.service, room)?;
            Some((
                call.server,
                answer.map(|reply| {
                    call.reply.bytes_mut()[at..at + reply.len()].copy_from_slice(reply);
                    call.reply_len = reply.len();
                }),
            ))
        });
        let is_answer = answer.is_some();
        if let Some((server, answer)) = answer {
            self.ended(index, answer.map_err(|kind| OpError { server, kind }));
        }
        is_answer
    }
}
