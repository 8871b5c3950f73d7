//! Listening sockets: stop listening when their holder drops them.
//!
//! The holder stops by itself, because a copy of the descriptor in a child process would go on
//! listening.

use std::ops::{Deref, DerefMut};
use std::os::fd::AsFd;

use rustix::net::{Shutdown, shutdown};

/// A listening socket. Dropped, it stops listening at once, and its address is free again.
///
/// Closing is not enough. A process that another thread is starting has copies of all descriptors until it
/// executes its program. The system keeps a socket listening until the last copy is closed.
#[derive(Debug)]
pub(super) struct Listening<L: AsFd>(L);

impl<L: AsFd> Listening<L> {
    /// Of a socket that is bound and listens.
    pub(super) fn new(listener: L) -> Self {
        Listening(listener)
    }
}

impl<L: AsFd> Deref for Listening<L> {
    type Target = L;

    fn deref(&self) -> &L {
        &self.0
    }
}

impl<L: AsFd> DerefMut for Listening<L> {
    fn deref_mut(&mut self) -> &mut L {
        &mut self.0
    }
}

impl<L: AsFd> Drop for Listening<L> {
    fn drop(&mut self) {
        // On a system without this call, the socket listens until it is closed.
        let _ = shutdown(self.0.as_fd(), Shutdown::Both);
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// A server that is restarted at once gets its address, also while another thread starts a process.
    #[test]
    #[cfg_attr(miri, ignore = "needs a network")]
    fn a_starting_process_keeps_no_address() {
        let listening = Listening::new(TcpListener::bind(("127.0.0.1", 0)).expect("an address"));
        let address = listening.local_addr().expect("an address");
        let of_child = listening.try_clone().expect("a copy");
        drop(listening);
        let refused = TcpStream::connect(address).expect_err("nobody listens");
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        let again = Listening::new(TcpListener::bind(address).expect("it is free"));
        drop(of_child);
        TcpStream::connect(address).expect("it listens");
        assert!(again.accept().is_ok());
    }
}
