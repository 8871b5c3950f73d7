//! ! Post future: waits for the result of a simulated endpoint's post.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::slots::{Failure, SimPayload, Wake};
use super::{SimEndpoint, SimInner};

/// A post: sent off when first polled (F8), and awaited from then on.
///
/// Dropped while in flight, it leaves the operation, and its buffers, to the machine (F7).
pub(super) struct SimPost<'a, T> {
    endpoint: &'a SimEndpoint,
    stage: SimStage,
    /// Payload to send; empty once it was sent.
    payload: SimPayload,
    /// Takes the result out of the returned payload.
    finish: fn(&mut SimPayload, Failure) -> T,
}

#[derive(Clone, Copy, PartialEq)]
enum SimStage {
    Unsent,
    Sent(u32),
    Done,
}

impl<'a, T> SimPost<'a, T> {
    #[inline]
    pub(super) fn new(
        endpoint: &'a SimEndpoint,
        payload: SimPayload,
        finish: fn(&mut SimPayload, Failure) -> T,
    ) -> Self {
        SimPost { endpoint, stage: SimStage::Unsent, payload, finish }
    }

    #[inline]
    fn send(&mut self, context: &Context<'_>) -> Poll<T> {
        let is_nothing = match &self.payload {
            SimPayload::Chain(ops) | SimPayload::Batch(ops) => ops.is_empty(),
            SimPayload::Work { ps } => *ps == 0,
            _ => false,
        };
        if is_nothing {
            self.stage = SimStage::Done;
            return Poll::Ready((self.finish)(&mut self.payload, None));
        }
        let inner = self.endpoint.inner();
        let poster = self.endpoint.poster();
        if inner.holds(poster, &self.payload, context) {
            return Poll::Pending;
        }
        let mut machine = inner.machine.borrow_mut();
        // The dead post nothing.
        if !machine.lives[poster.life as usize].dead {
            let payload = std::mem::take(&mut self.payload);
            self.stage = SimStage::Sent(machine.post(poster, payload, inner.wake(context)));
            drop(machine);
            inner.end_planned();
        }
        Poll::Pending
    }

    #[inline]
    fn receive(&mut self, slot: u32, context: &Context<'_>) -> Poll<T> {
        let inner = self.endpoint.inner();
        let mut machine = inner.machine.borrow_mut();
        let Some((held, failure)) = machine.result(slot) else {
            let before = std::mem::replace(&mut machine.slots[slot].wake, inner.wake(context));
            // It may call the machine when it is dropped.
            drop(machine);
            drop(before);
            return Poll::Pending;
        };
        let result = (self.finish)(held, failure);
        self.stage = SimStage::Done;
        let before = machine.give_back(slot);
        drop(machine);
        drop(before);
        Poll::Ready(result)
    }
}

impl<T> Future for SimPost<'_, T> {
    type Output = T;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        match self.stage {
            SimStage::Unsent => self.send(context),
            SimStage::Sent(slot) => self.receive(slot, context),
            SimStage::Done => panic!("polled after completion"),
        }
    }
}

impl<T> Drop for SimPost<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if let SimStage::Sent(slot) = self.stage {
            let wake = self.endpoint.inner().machine.borrow_mut().abandon(slot);
            drop(wake);
        }
    }
}

impl SimInner {
    /// Waiter of the future that is being polled.
    #[inline]
    pub(super) fn wake(&self, context: &Context<'_>) -> Wake {
        let current = self.current.get();
        let tasks = self.tasks.borrow();
        let own = tasks.waker(current).unwrap_or(&self.root_waker);
        if own.will_wake(context.waker()) {
            Wake::Task(current)
        } else {
            Wake::Other(context.waker().clone())
        }
    }
}
