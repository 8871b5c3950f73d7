//! What was posted and has not been taken back.
//!
//! - **VERBS-3** A slot is given back exactly once: by the future that takes its result, or, if that was
//!   dropped, when the last part has ended. Until then its hold owns the buffers (F7).
//! - **VERBS-4** No waker is called or dropped while anything here is borrowed: it may drop a task, and
//!   with it futures that come back here.

use std::rc::Rc;
use std::task::Waker;

use crate::OpError;
use crate::raw::verbs::{Hold, Load};
use crate::tcp::call::answer_of;

#[derive(Debug)]
struct Slot {
    /// Kept for its memory when nothing is posted.
    hold: Rc<Hold>,
    /// Parts that have not ended.
    missing: u32,
    error: Option<OpError>,
    waker: Option<Waker>,
    /// Its future is gone.
    abandoned: bool,
}

/// All posts whose futures have not taken their results.
#[derive(Debug, Default)]
pub(super) struct Posts {
    slots: Vec<Slot>,
    free: Vec<u32>,
    to_wake: Vec<Waker>,
}

impl Posts {
    /// A slot with `load` in it, of which no part is posted yet.
    pub(super) fn insert(&mut self, load: Load, waker: Waker) -> u32 {
        let index = self.free.pop().unwrap_or_else(|| {
            let hold = Hold::new();
            let slot = Slot { hold, missing: 0, error: None, waker: None, abandoned: false };
            self.slots.push(slot);
            (self.slots.len() - 1) as u32
        });
        let slot = &mut self.slots[index as usize];
        slot.put(load);
        (slot.missing, slot.error, slot.abandoned) = (0, None, false);
        slot.waker = Some(waker);
        index
    }

    /// One more part of a post is on its way; who owns its buffers.
    pub(super) fn part(&mut self, index: u32) -> Rc<Hold> {
        let slot = &mut self.slots[index as usize];
        slot.missing += 1;
        Rc::clone(&slot.hold)
    }

    /// A post that is waited for without any operation.
    pub(super) fn wait(&mut self, index: u32) {
        self.slots[index as usize].missing += 1;
    }

    /// All parts have been posted. If there was none, the result is there.
    pub(super) fn posted(&mut self, index: u32, error: Option<OpError>) {
        let slot = &mut self.slots[index as usize];
        slot.error = slot.error.or(error);
        if slot.missing == 0 {
            self.to_wake.extend(slot.waker.take());
        }
    }

    /// One part has ended.
    #[inline]
    pub(super) fn ended(&mut self, index: u32, result: Result<(), OpError>) {
        let slot = &mut self.slots[index as usize];
        if let Err(error) = result {
            slot.error.get_or_insert(error);
        }
        slot.missing -= 1;
        if slot.missing > 0 {
            return;
        }
        if slot.abandoned {
            return self.release(index);
        }
        self.to_wake.extend(slot.waker.take());
    }

    /// The answer to an RPC has come; false if it is none.
    pub(super) fn answered(&mut self, index: u32, message: &[u8]) -> bool {
        let call = Hold::call_mut(&mut self.slots[index as usize].hold);
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

    /// What has come of a post, if it has ended: the slot is given back. Else the waker that was there
    /// before, to be dropped when nothing is borrowed.
    pub(super) fn take(
        &mut self,
        index: u32,
        waker: &Waker,
    ) -> Result<(Load, Option<OpError>, Option<Waker>), Option<Waker>> {
        let slot = &mut self.slots[index as usize];
        if slot.missing > 0 {
            return Err(match &slot.waker {
                Some(same) if same.will_wake(waker) => None,
                _ => slot.waker.replace(waker.clone()),
            });
        }
        let load = slot.put(Load::Empty);
        let taken = (load, slot.error.take(), slot.waker.take());
        self.free.push(index);
        Ok(taken)
    }

    /// The future of a post is gone; its waker.
    pub(super) fn abandon(&mut self, index: u32) -> Option<Waker> {
        let slot = &mut self.slots[index as usize];
        slot.abandoned = true;
        let waker = slot.waker.take();
        if slot.missing == 0 {
            self.release(index);
        }
        waker
    }

    fn release(&mut self, index: u32) {
        drop(self.slots[index as usize].put(Load::Empty));
        self.free.push(index);
    }

    /// Takes the wakers that have gathered.
    pub(super) fn wakers(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.to_wake)
    }

    /// Gives the vector back, for its memory.
    pub(super) fn give_back(&mut self, wakers: Vec<Waker>) {
        if self.to_wake.is_empty() {
            self.to_wake = wakers;
        }
    }
}

impl Slot {
    /// Exchanges what it holds. A card that could not be stopped keeps what it had.
    fn put(&mut self, load: Load) -> Load {
        Hold::swap(&mut self.hold, load).unwrap_or_else(|load| {
            self.hold = Hold::new();
            Hold::swap(&mut self.hold, load).unwrap_or(Load::Empty)
        })
    }
}
