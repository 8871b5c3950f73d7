//! The future of a READ or a WRITE: what is done most. As [`crate::post::Post`], but nothing is moved
//! beside the buffer: a larger load, stored by the caller and moved on at once, would have the processor
//! wait for its own stores, twice per operation.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::transport::Transport;
use crate::post::{Carrier, Stage};
use crate::{Buf, GlobalAddr, OpError};

/// One READ or WRITE. Posted when first polled (F8); dropped in flight, it leaves the buffer to the
/// transport (F7).
pub(super) struct Single<'a> {
    transport: &'a Transport,
    is_read: bool,
    at: GlobalAddr,
    buf: Option<Buf>,
    stage: Stage,
}

impl<'a> Single<'a> {
    /// A READ into the buffer, or else a WRITE of it.
    #[inline]
    pub(super) fn new(transport: &'a Transport, is_read: bool, at: GlobalAddr, buf: Buf) -> Self {
        Single { transport, is_read, at, buf: Some(buf), stage: Stage::Unsent }
    }
}

impl Future for Single<'_> {
    type Output = Result<Buf, OpError>;

    #[inline(always)]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        match this.stage {
            Stage::Unsent => {
                let (at, buf) = (this.at, this.buf.take());
                let buf = buf.expect("an unsent operation has its buffer");
                let slot = this.transport.post_single(this.is_read, at, buf, context);
                this.stage = Stage::Sent(slot);
                Poll::Pending
            }
            Stage::Sent(slot) => match this.transport.take_buf(slot, context) {
                Poll::Pending => Poll::Pending,
                Poll::Ready(Some(buf)) => {
                    this.stage = Stage::Done;
                    Poll::Ready(Ok(buf))
                }
                Poll::Ready(None) => {
                    this.stage = Stage::Done;
                    Poll::Ready(Err(this.transport.take_error(slot)))
                }
            },
            Stage::Done => panic!("polled after it was ready"),
        }
    }
}

impl Drop for Single<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Stage::Sent(slot) = self.stage {
            self.transport.abandon(slot);
        }
    }
}
