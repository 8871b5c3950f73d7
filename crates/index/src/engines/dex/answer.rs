//! Answer: connects the task that sent a request with the task that replies to it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::forward::Reply;
use crate::IndexError;
use crate::sync::{Mutex, lock};

pub(super) type Outcome = Result<Reply, IndexError>;

/// Where an answer is left.
#[derive(Debug, Default)]
struct Slot {
    outcome: Option<Outcome>,
    waker: Option<Waker>,
    /// Nobody waits for it any more.
    abandoned: bool,
}

/// The duty to answer. Dropped, it answers what is known then.
#[derive(Debug)]
pub(super) struct Answer {
    slot: Option<Arc<Mutex<Slot>>>,
    is_change: bool,
    begun: bool,
}

/// The wait for an answer.
#[derive(Debug)]
pub(super) struct Waiting(Arc<Mutex<Slot>>);

/// Both ends of the answer to a request, which is a change or is not.
pub(super) fn promise(is_change: bool) -> (Answer, Waiting) {
    let slot = Arc::new(Mutex::new(Slot::default()));
    (Answer { slot: Some(Arc::clone(&slot)), is_change, begun: false }, Waiting(slot))
}

impl Answer {
    /// Whether anybody waits for it.
    pub(super) fn is_wanted(&self) -> bool {
        self.slot.as_ref().is_some_and(|slot| !lock(slot).abandoned)
    }

    /// From here on the request may have been done, whatever becomes of the answer.
    pub(super) fn begin(&mut self) {
        self.begun = true;
    }

    pub(super) fn give(&mut self, outcome: Outcome) {
        let Some(slot) = self.slot.take() else { return };
        let waker = {
            let mut slot = lock(&slot);
            slot.outcome = Some(outcome);
            slot.waker.take()
        };
        waker.into_iter().for_each(Waker::wake);
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if self.begun && self.is_change {
            self.give(Err(IndexError::OutcomeUnknown(
                "the key's owner went away in the middle of the operation".into(),
            )));
        } else {
            self.give(Ok(Reply::Gone));
        }
    }
}

impl Future for Waiting {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        let mut slot = lock(&self.0);
        match slot.outcome.take() {
            Some(outcome) => Poll::Ready(outcome),
            None => {
                slot.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        lock(&self.0).abandoned = true;
    }
}
