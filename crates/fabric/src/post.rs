//! Post futures: for fabrics whose transport keeps results in slots until a future takes them.

use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::posts::{self, Kept, Table};
use crate::{Buf, GlobalAddr, Op, OpError, Ops};

/// Operations that are posted together; they come back with their results. The default is a load after its
/// operations have been handed over.
pub(crate) trait Load: fmt::Debug + Default {
    /// Returns whether there is nothing to do: a list without operations.
    fn is_empty(&self) -> bool;

    /// The operation, if it is one alone.
    fn into_op(self) -> Result<Op, Self>;

    /// The list, if it is one.
    fn into_ops(self) -> Result<Ops, Self>;
}

/// Carries loads to the servers and back.
pub(crate) trait Carrier {
    /// State with the slots of its posts.
    type Table: Table;

    /// The slots that hold the results.
    fn table(&self) -> &RefCell<Self::Table>;

    /// Posts; returns the slot that will hold the result.
    fn post(&self, load: LoadOf<Self>, context: &Context<'_>) -> u32;

    /// The same for a READ, or else a WRITE, of `buf`, with the least that has to be moved.
    fn post_single(&self, is_read: bool, at: GlobalAddr, buf: Buf, context: &Context<'_>) -> u32;
}

/// Type of a carrier's loads.
pub(crate) type LoadOf<C> = <<<C as Carrier>::Table as Table>::Kept as Kept>::Load;

/// Posted when first polled (F8). Dropped while in flight, it leaves the operation, and its buffers,
/// to the carrier (F7).
pub(crate) struct Post<'a, C: Carrier, T> {
    carrier: &'a C,
    stage: Stage,
    load: LoadOf<C>,
    finish: fn(LoadOf<C>, Option<OpError>) -> T,
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
        load: LoadOf<C>,
        finish: fn(LoadOf<C>, Option<OpError>) -> T,
    ) -> Self {
        Post { carrier, stage: Stage::Unsent, load, finish }
    }

    /// Waits for what the carrier has posted in `slot`.
    #[cfg(feature = "verbs")]
    pub(crate) fn sent(
        carrier: &'a C,
        slot: u32,
        finish: fn(LoadOf<C>, Option<OpError>) -> T,
    ) -> Self {
        Post { carrier, stage: Stage::Sent(slot), load: Default::default(), finish }
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
                let load = std::mem::take(&mut this.load);
                if load.is_empty() {
                    this.stage = Stage::Done;
                    return Poll::Ready((this.finish)(load, None));
                }
                this.stage = Stage::Sent(this.carrier.post(load, context));
                Poll::Pending
            }
            Stage::Sent(slot) => match posts::result(this.carrier.table(), slot, context) {
                Some((load, error)) => {
                    this.stage = Stage::Done;
                    Poll::Ready((this.finish)(load, error))
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
            posts::abandon(self.carrier.table(), slot);
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
