//! Post futures: for fabrics whose transport keeps results in slots until a future takes them.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::{Op, OpError, Ops};

/// Operations that are posted together; they come back with their results.
pub(crate) trait Load: fmt::Debug + Sized {
    /// A load after its operations have been handed over.
    const EMPTY: Self;

    /// Returns whether there is nothing to do: a list without operations.
    fn is_empty(&self) -> bool;

    /// The operation, if it is one alone.
    fn into_op(self) -> Result<Op, Self>;

    /// The list, if it is one.
    fn into_ops(self) -> Result<Ops, Self>;
}

/// Carries loads to the servers and back.
pub(crate) trait Carrier {
    /// Type of its loads.
    type Load: Load;

    /// Posts; returns the slot that will hold the result.
    fn post(&self, load: Self::Load, context: &Context<'_>) -> u32;

    /// Hands the result to `finish` if it is there and gives the slot back.
    fn result<T>(
        &self,
        slot: u32,
        context: &Context<'_>,
        finish: fn(Self::Load, Option<OpError>) -> T,
    ) -> Option<T>;

    /// The future is gone: the operation goes on unseen.
    fn abandon(&self, slot: u32);
}

/// Posted when first polled (F8). Dropped while in flight, it leaves the operation, and its buffers,
/// to the carrier (F7).
pub(crate) struct Post<'a, C: Carrier, T> {
    carrier: &'a C,
    stage: Stage,
    load: C::Load,
    finish: fn(C::Load, Option<OpError>) -> T,
}

/// Progress of a post.
#[derive(Clone, Copy)]
pub(crate) enum Stage {
    Unsent,
    Sent(u32),
    Done,
}

impl<'a, C: Carrier, T> Post<'a, C, T> {
    #[inline]
    pub(crate) fn new(
        carrier: &'a C,
        load: C::Load,
        finish: fn(C::Load, Option<OpError>) -> T,
    ) -> Self {
        Post { carrier, stage: Stage::Unsent, load, finish }
    }
}

impl<C: Carrier, T> Unpin for Post<'_, C, T> {}

impl<C: Carrier, T> Future for Post<'_, C, T> {
    type Output = T;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let this = self.get_mut();
        match this.stage {
            Stage::Unsent => {
                let load = std::mem::replace(&mut this.load, C::Load::EMPTY);
                if load.is_empty() {
                    this.stage = Stage::Done;
                    return Poll::Ready((this.finish)(load, None));
                }
                this.stage = Stage::Sent(this.carrier.post(load, context));
                Poll::Pending
            }
            Stage::Sent(slot) => match this.carrier.result(slot, context, this.finish) {
                Some(result) => {
                    this.stage = Stage::Done;
                    Poll::Ready(result)
                }
                None => Poll::Pending,
            },
            Stage::Done => panic!("polled after it was ready"),
        }
    }
}

impl<C: Carrier, T> Drop for Post<'_, C, T> {
    #[inline]
    fn drop(&mut self) {
        if let Stage::Sent(slot) = self.stage {
            self.carrier.abandon(slot);
        }
    }
}

/// Ends a CAS or an FAA.
#[inline]
pub(crate) fn old_word<L: Load>(load: L, error: Option<OpError>) -> Result<u64, OpError> {
    match (load.into_op(), error) {
        (_, Some(error)) => Err(error),
        (Ok(Op::Cas { old, .. } | Op::Faa { old, .. }), None) => Ok(old),
        (other, None) => unreachable!("an atomic came back as {other:?}"),
    }
}

/// Ends a chain or a batch.
#[inline]
pub(crate) fn list<L: Load>(load: L, error: Option<OpError>) -> Result<Ops, OpError> {
    match (load.into_ops(), error) {
        (_, Some(error)) => Err(error),
        (Ok(ops), None) => Ok(ops),
        (Err(other), None) => unreachable!("a list came back as {other:?}"),
    }
}
