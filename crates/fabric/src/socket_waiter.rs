//! Socket wait: lets a thread wait for its sockets, and lets other threads end the wait.
//!
//! Each wait names its sockets; no socket is registered beforehand. A registration would cost the
//! sender at every message, and a busy thread seldom waits.
#![allow(clippy::disallowed_methods, reason = "part of the executor of real threads")]

use std::io::{self, Read, Write};
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::wake::Notify;

/// Descriptors, this one's own included, for which a wait allocates nothing.
const FEW: usize = 16;

/// Ends a thread's waits (INV-WAKE-1).
pub(crate) struct SocketWaiter {
    notified: UnixStream,
    notify: Notify,
}

impl SocketWaiter {
    pub(crate) fn new() -> io::Result<SocketWaiter> {
        let (notified, notifier) = UnixStream::pair()?;
        notified.set_nonblocking(true)?;
        notifier.set_nonblocking(true)?;
        // If the socket takes no more bytes, the notification stands already. If the thread has ended, nobody
        // waits.
        let notify = Arc::new(move || drop((&notifier).write(&[1])));
        Ok(SocketWaiter { notified, notify })
    }

    /// Function that ends the wait, from any thread.
    pub(crate) fn notify(&self) -> &Notify {
        &self.notify
    }

    /// Waits until one of `sockets` can be read, or written if that is asked for, the notifier is called, or
    /// `at_most` has passed.
    pub(crate) fn wait<'a>(
        &self,
        sockets: impl Iterator<Item = (BorrowedFd<'a>, bool)>,
        at_most: Option<Duration>,
    ) -> io::Result<()> {
        let own = || PollFd::new(&self.notified, PollFlags::IN);
        // Up to that many are on the stack.
        let (mut few, mut count, mut many) = ([(); FEW].map(|()| own()), 1, Vec::new());
        for (socket, sends) in sockets {
            let sends = if sends { PollFlags::OUT } else { PollFlags::empty() };
            let awaited = PollFd::from_borrowed_fd(socket, PollFlags::IN | sends);
            if count < FEW {
                few[count] = awaited;
            } else {
                if many.is_empty() {
                    many.extend_from_slice(&few);
                }
                many.push(awaited);
            }
            count += 1;
        }
        let all = if many.is_empty() { &mut few[..count] } else { &mut many[..] };
        let at_most = at_most.and_then(|at_most| Timespec::try_from(at_most).ok());
        poll(all, at_most.as_ref())?;
        let is_notified = !all[0].revents().is_empty();
        if is_notified {
            while matches!((&self.notified).read(&mut [0; 64]), Ok(64)) {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::thread;
    use std::time::Instant;

    use super::*;

    const LONG: Option<Duration> = Some(Duration::from_secs(20));

    fn nothing<'a>() -> impl Iterator<Item = (BorrowedFd<'a>, bool)> {
        std::iter::empty()
    }

    #[test]
    fn a_notification_ends_one_wait() {
        let waiter = SocketWaiter::new().unwrap();
        let start = Instant::now();
        // Notified before the wait, and more often than the socket has room for.
        (0..100_000).for_each(|_| waiter.notify()());
        waiter.wait(nothing(), LONG).unwrap();
        let notify = Arc::clone(waiter.notify());
        let other = thread::spawn(move || {
            thread::sleep(Duration::from_millis(30));
            notify();
        });
        waiter.wait(nothing(), LONG).unwrap();
        other.join().unwrap();
        assert!((30..10_000).contains(&start.elapsed().as_millis()), "{:?}", start.elapsed());
        let start = Instant::now();
        waiter.wait(nothing(), Some(Duration::from_millis(20))).unwrap();
        assert!(start.elapsed() >= Duration::from_millis(20));
    }

    #[test]
    fn a_ready_socket_ends_a_wait() {
        let waiter = SocketWaiter::new().unwrap();
        let (one, other) = UnixStream::pair().unwrap();
        let start = Instant::now();
        waiter.wait([(one.as_fd(), true)].into_iter(), LONG).unwrap();
        (&other).write_all(&[7]).unwrap();
        waiter.wait([(one.as_fd(), false)].into_iter(), LONG).unwrap();
        // The same with many sockets.
        let (silent, _other) = UnixStream::pair().unwrap();
        for before in [FEW - 2, FEW - 1, 3 * FEW] {
            let many = (0..before).map(|_| (silent.as_fd(), false));
            waiter.wait(many.chain([(one.as_fd(), false)]), LONG).unwrap();
        }
        // The same at the end of a connection.
        (&one).read_exact(&mut [0]).unwrap();
        drop(other);
        waiter.wait([(one.as_fd(), false)].into_iter(), LONG).unwrap();
        assert!(start.elapsed() < Duration::from_secs(10));
    }
}
