//! Single operation future: waits for one READ or WRITE, the most frequent operations.
//!
//! It works as [`crate::post::Post`], but moves nothing beside the buffer. If the caller stored a
//! larger load and moved it on at once, the processor would wait for its own stores, twice per
//! operation.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::post::{Carrier, Stage};
use crate::{Buf, GlobalAddr, OpError, posts};

/// One READ, or else a WRITE. Posted when first polled (F8); dropped in flight, it leaves the buffer to
/// the carrier (F7).
pub(crate) struct Single<'a, C: Carrier, const IS_READ: bool> {
    carrier: &'a C,
    at: GlobalAddr,
    buf: Option<Buf>,
    stage: Stage,
}

impl<'a, C: Carrier> Single<'a, C, true> {
    /// A READ into the buffer's window.
    #[inline]
    pub(crate) fn read(carrier: &'a C, from: GlobalAddr, into: Buf) -> Self {
        Single { carrier, at: from, buf: Some(into), stage: Stage::Unsent }
    }
}

impl<'a, C: Carrier> Single<'a, C, false> {
    /// A WRITE of the buffer's window.
    #[inline]
    pub(crate) fn write(carrier: &'a C, to: GlobalAddr, from: Buf) -> Self {
        Single { carrier, at: to, buf: Some(from), stage: Stage::Unsent }
    }
}

impl<C: Carrier, const IS_READ: bool> Future for Single<'_, C, IS_READ> {
    type Output = Result<Buf, OpError>;

    #[inline(always)]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        match this.stage {
            Stage::Unsent => {
                let (at, buf) = (this.at, this.buf.take());
                let buf = buf.expect("an unsent operation has its buffer");
                let slot = this.carrier.post_single(IS_READ, at, buf, context);
                this.stage = Stage::Sent(slot);
                Poll::Pending
            }
            Stage::Sent(slot) => match posts::buf(this.carrier.table(), slot, context) {
                None => Poll::Pending,
                Some(Some(buf)) => {
                    this.stage = Stage::Done;
                    Poll::Ready(Ok(buf))
                }
                Some(None) => {
                    this.stage = Stage::Done;
                    Poll::Ready(Err(posts::take_error(this.carrier.table(), slot)))
                }
            },
            Stage::Done => panic!("polled after it was ready"),
        }
    }
}

impl<C: Carrier, const IS_READ: bool> Drop for Single<'_, C, IS_READ> {
    #[inline]
    fn drop(&mut self) {
        if let Stage::Sent(slot) = self.stage {
            posts::abandon(self.carrier.table(), slot);
        }
    }
}
