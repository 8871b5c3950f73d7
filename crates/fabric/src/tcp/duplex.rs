//! A connection that one thread reads and another one writes, as it is or encrypted.
//!
//! - **TCP-12** Only the writing half puts bytes on the socket once the handshake is over, so that records go
//!   out in the order in which they were made. What TLS itself has to say goes out with the next write.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::tls::Tls;

/// Bytes that are taken from the socket at once.
const TAKE_BYTES: usize = 32 << 10;

/// The half that is read.
#[derive(Debug)]
pub struct Incoming {
    socket: TcpStream,
    sealed: Option<Unsealing>,
}

/// The half that is written.
#[derive(Debug)]
pub struct Outgoing {
    socket: TcpStream,
    sealed: Option<Sealing>,
}

type Shared = Arc<Mutex<rustls::Connection>>;

#[derive(Debug)]
struct Unsealing {
    tls: Shared,
    /// What came, from `taken` to `filled` not deciphered yet.
    raw: Box<[u8]>,
    taken: usize,
    filled: usize,
}

#[derive(Debug)]
struct Sealing {
    tls: Shared,
    raw: Vec<u8>,
}

/// Both halves of a connection that was made to `address`, shaken hands over if there is `tls`. Timeouts of the
/// socket hold for that, too.
///
/// # Errors
/// What the socket says; `InvalidData` if the two sides do not agree on TLS.
pub fn connected(
    socket: TcpStream,
    tls: Option<&Tls>,
    address: SocketAddr,
) -> io::Result<(Incoming, Outgoing)> {
    halves(socket, tls.map(|tls| tls.connects(address.ip())))
}

/// The same of a connection that was let in.
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
    /// Reads what can be deciphered; `None` if more has to come first.
    fn read(&mut self, room: &mut [u8]) -> io::Result<Option<usize>> {
        let mut tls = lock(&self.tls);
        loop {
            match tls.reader().read(room) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // The other side has gone without a word: what it has not said, nobody counts on.
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

fn lock(tls: &Shared) -> MutexGuard<'_, rustls::Connection> {
    tls.lock().unwrap_or_else(PoisonError::into_inner)
}

fn invalid(error: rustls::Error) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, error)
}
