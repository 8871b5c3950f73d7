//! Duplex connection: splits a connection, plain or encrypted, into a reading and a writing half.
//!
//! - **TCP-12** After the handshake only the writing half puts bytes on the socket, so that records go
//!   out in the order of their making. TLS's own messages go out with the next write.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::net::sockopt;

use super::tls::Tls;

/// Bytes to take from the socket at once.
const TAKE_BYTES: usize = 32 << 10;
/// Keepalive: after the first time of silence, the system sends so many probes, each after the last time.
const ASKED_AFTER: Duration = Duration::from_secs(5);
const ASKED_MOST: u32 = 5;
const ASKED_EVERY: Duration = Duration::from_secs(1);
/// A connection has ended if bytes sent over it have not arrived for so long.
const ARRIVES_WITHIN: Duration = Duration::from_secs(20);

/// The reading half.
#[derive(Debug)]
pub struct Incoming {
    socket: TcpStream,
    sealed: Option<Unsealing>,
}

/// The writing half.
#[derive(Debug)]
pub struct Outgoing {
    socket: TcpStream,
    sealed: Option<Sealing>,
}

type SharedTls = Arc<Mutex<rustls::Connection>>;

#[derive(Debug)]
struct Unsealing {
    tls: SharedTls,
    /// Received bytes, those from `taken` to `filled` not deciphered yet.
    raw: Box<[u8]>,
    taken: usize,
    filled: usize,
}

#[derive(Debug)]
struct Sealing {
    tls: SharedTls,
    raw: Vec<u8>,
}

/// Makes both halves of a connection to `address`, after the handshake if there is `tls`. The socket's
/// timeouts hold for the handshake.
///
/// # Errors
/// The socket's error; `InvalidData` if the two sides do not agree on TLS.
pub fn connected(
    socket: TcpStream,
    tls: Option<&Tls>,
    address: SocketAddr,
) -> io::Result<(Incoming, Outgoing)> {
    halves(socket, tls.map(|tls| tls.connects(address.ip())))
}

/// The same for an accepted connection.
///
/// # Errors
/// See [`connected`].
pub fn accepted(socket: TcpStream, tls: Option<&Tls>) -> io::Result<(Incoming, Outgoing)> {
    halves(socket, tls.map(Tls::accepts))
}

fn halves(
    mut socket: TcpStream,
    tls: Option<Result<rustls::Connection, rustls::Error>>,
) -> io::Result<(Incoming, Outgoing)> {
    notice_loss(&socket)?;
    let other = socket.try_clone()?;
    let Some(tls) = tls else {
        let incoming = Incoming { socket, sealed: None };
        return Ok((incoming, Outgoing { socket: other, sealed: None }));
    };
    let mut tls = tls.map_err(invalid)?;
    while tls.is_handshaking() {
        tls.complete_io(&mut socket)?;
    }
    let tls = Arc::new(Mutex::new(tls));
    let raw = vec![0; TAKE_BYTES].into();
    let unsealing = Unsealing { tls: Arc::clone(&tls), raw, taken: 0, filled: 0 };
    let incoming = Incoming { socket, sealed: Some(unsealing) };
    Ok((incoming, Outgoing { socket: other, sealed: Some(Sealing { tls, raw: Vec::new() }) }))
}

/// Makes the system notice a silently lost connection: a router has forgotten it, or the other machine has
/// lost power. Then it ends on this side within [`ARRIVES_WITHIN`].
pub(super) fn notice_loss(socket: &impl AsFd) -> io::Result<()> {
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, ASKED_AFTER)?;
    sockopt::set_tcp_keepintvl(socket, ASKED_EVERY)?;
    sockopt::set_tcp_keepcnt(socket, ASKED_MOST)?;
    #[cfg(target_os = "linux")]
    sockopt::set_tcp_user_timeout(socket, ARRIVES_WITHIN.as_millis() as u32)?;
    Ok(())
}

impl Outgoing {
    /// Ends both directions.
    pub fn shut_down(&self) {
        // It may have ended by itself.
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

impl Read for Incoming {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let Incoming { socket, sealed: Some(sealed) } = self else {
            return self.socket.read(room);
        };
        loop {
            if let Some(count) = sealed.read(room)? {
                return Ok(count);
            }
            (sealed.taken, sealed.filled) = (0, socket.read(&mut sealed.raw)?);
            if sealed.filled == 0 {
                return Ok(0);
            }
        }
    }
}

impl Unsealing {
    /// Reads deciphered bytes; `None` if more have to arrive first.
    fn read(&mut self, room: &mut [u8]) -> io::Result<Option<usize>> {
        let mut tls = lock(&self.tls);
        loop {
            match tls.reader().read(room) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // The other side has closed without an alert; nobody relies on that alert.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(Some(0)),
                read => return read.map(Some),
            }
            if self.taken == self.filled {
                return Ok(None);
            }
            self.taken += tls.read_tls(&mut &self.raw[self.taken..self.filled])?;
            tls.process_new_packets().map_err(invalid)?;
        }
    }
}

impl Write for Outgoing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(sealed) = &mut self.sealed else { return self.socket.write(bytes) };
        let taken = {
            let mut tls = lock(&sealed.tls);
            let taken = tls.writer().write(bytes)?;
            while tls.wants_write() {
                tls.write_tls(&mut sealed.raw)?;
            }
            taken
        };
        self.socket.write_all(&sealed.raw)?;
        sealed.raw.clear();
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

fn lock(tls: &SharedTls) -> MutexGuard<'_, rustls::Connection> {
    tls.lock().unwrap_or_else(PoisonError::into_inner)
}

fn invalid(error: rustls::Error) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, error)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Checks the settings that reveal a loss: no test on one machine loses packets.
    #[test]
    fn both_sides_notice_a_silent_loss() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let one = TcpStream::connect(address).unwrap();
        let other = listener.accept().unwrap().0;
        assert!(!sockopt::socket_keepalive(&one).unwrap());
        let halves = [connected(one, None, address).unwrap(), accepted(other, None).unwrap()];
        for (incoming, outgoing) in &halves {
            for socket in [&incoming.socket, &outgoing.socket] {
                assert!(sockopt::socket_keepalive(socket).unwrap());
                assert_eq!(sockopt::tcp_keepidle(socket).unwrap(), ASKED_AFTER);
                let asked =
                    sockopt::tcp_keepintvl(socket).unwrap() * sockopt::tcp_keepcnt(socket).unwrap();
                assert!(ASKED_AFTER + asked <= ARRIVES_WITHIN);
                #[cfg(target_os = "linux")]
                assert_eq!(sockopt::tcp_user_timeout(socket).unwrap(), 20_000);
            }
        }
    }
}
