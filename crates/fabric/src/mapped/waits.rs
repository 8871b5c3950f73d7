//! Waits of a thread on mapped memory: for other descriptors, and for other threads' wake-ups. Operations wait for
//! nothing.

#![allow(clippy::disallowed_methods, reason = "a thread that waits in real time")]

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use crate::exec::Driver;
use crate::socket_waiter::SocketWaiter;
use crate::wake::Notify;

/// The driver of an executor that has nothing to drive.
pub(super) struct DescriptorWait {
    waiter: SocketWaiter,
    others: RefCell<Vec<OwnedFd>>,
}

impl DescriptorWait {
    pub(super) fn new() -> io::Result<DescriptorWait> {
        Ok(DescriptorWait { waiter: SocketWaiter::new()?, others: RefCell::default() })
    }
}

impl Driver for DescriptorWait {
    fn drive(&self) -> bool {
        false
    }

    fn is_busy(&self) -> bool {
        false
    }

    fn wait(&self, at_most: Option<Duration>) {
        let others = self.others.borrow();
        let others = others.iter().map(|other| (other.as_fd(), false));
        if let Err(error) = self.waiter.wait(others, at_most)
            && error.kind() != io::ErrorKind::Interrupted
        {
            // Nothing can be waited for: go on asking instead.
            std::thread::yield_now();
        }
    }

    fn watch(&self, other: BorrowedFd<'_>) -> io::Result<()> {
        self.others.borrow_mut().push(other.try_clone_to_owned()?);
        Ok(())
    }

    fn notifier(&self) -> Notify {
        Arc::clone(self.waiter.notify())
    }
}
