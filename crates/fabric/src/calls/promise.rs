//! Promise: carries the outcome of a call within one process from its giver to its waiter.
//!
//! INV-CALL-1: the wait ends once, by what [`Answer::give`] was given first.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use super::CallError;
use crate::sync::lock;

pub(crate) type CallOutcome = Result<Vec<u8>, CallError>;

#[derive(Debug, Default)]
struct PromiseSlot {
    outcome: Option<CallOutcome>,
    waker: Option<Waker>,
    is_answered: bool,
    is_abandoned: bool,
}

type Shared = Arc<Mutex<PromiseSlot>>;

/// The right to end the wait. Dropped unused, it leaves the wait to its other holders.
#[derive(Clone, Debug)]
pub(crate) struct Answer(Shared);

/// The wait for the outcome.
#[derive(Debug)]
pub(crate) struct PromiseWait(Shared);

/// Both ends.
pub(crate) fn promise() -> (Answer, PromiseWait) {
    let slot = Shared::default();
    (Answer(Arc::clone(&slot)), PromiseWait(slot))
}

impl Answer {
    /// Returns whether the sender still waits.
    pub(crate) fn is_wanted(&self) -> bool {
        let slot = lock(&self.0);
        !slot.is_abandoned && !slot.is_answered
    }

    /// Ends the wait, unless it has ended.
    pub(crate) fn give(&self, outcome: CallOutcome) {
        let waker = {
            let mut slot = lock(&self.0);
            if slot.is_answered {
                return;
            }
            slot.is_answered = true;
            if !slot.is_abandoned {
                slot.outcome = Some(outcome);
            }
            slot.waker.take()
        };
        waker.into_iter().for_each(Waker::wake);
    }
}

impl Future for PromiseWait {
    type Output = CallOutcome;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<CallOutcome> {
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

impl Drop for PromiseWait {
    fn drop(&mut self) {
        lock(&self.0).is_abandoned = true;
    }
}
