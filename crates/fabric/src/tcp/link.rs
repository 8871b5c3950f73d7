//! Byte link: carries the bytes of a connection, plain or encrypted.
//!
//! - **TCP-10** Bytes that a link has taken and not yet put on its socket are pending, and count as
//!   unsent.
//! - **TCP-11** [`Link::fill`] returns with room left only if the socket had no more bytes, so that a
//!   reader that is notified once misses none.

use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;

use super::tls::Tls;

/// A socket of type `S`, with TLS above it if there is any.
#[derive(Debug)]
pub struct Link<S>(LinkKind<S>);

#[derive(Debug)]
enum LinkKind<S> {
    Plain(S),
    Sealed(Box<Sealed<S>>),
}

#[derive(Debug)]
struct Sealed<S> {
    socket: S,
    tls: rustls::Connection,
}

impl<S> Link<S> {
    /// The side that has connected to the server at `address`.
    pub(super) fn connect(socket: S, tls: Option<&Tls>, address: SocketAddr) -> io::Result<Self> {
        Link::over(socket, tls.map(|tls| tls.connects(address.ip())))
    }

    /// The side that has accepted the connection.
    pub(super) fn accept(socket: S, tls: Option<&Tls>) -> io::Result<Self> {
        Link::over(socket, tls.map(Tls::accepts))
    }

    fn over(socket: S, tls: Option<Result<rustls::Connection, rustls::Error>>) -> io::Result<Self> {
        match tls.transpose().map_err(|error| io::Error::new(ErrorKind::InvalidData, error))? {
            None => Ok(Link::plain(socket)),
            Some(tls) => Ok(Link::sealed(socket, tls)),
        }
    }

    /// Bytes as they are.
    pub fn plain(socket: S) -> Self {
        Link(LinkKind::Plain(socket))
    }

    /// Bytes that `tls` encrypts.
    pub fn sealed(socket: S, tls: rustls::Connection) -> Self {
        Link(LinkKind::Sealed(Box::new(Sealed { socket, tls })))
    }

    pub(super) fn socket_ref(&self) -> &S {
        match &self.0 {
            LinkKind::Plain(socket) => socket,
            LinkKind::Sealed(sealed) => &sealed.socket,
        }
    }

    /// The socket, to watch it. Its bytes go through the link.
    pub fn socket(&mut self) -> &mut S {
        match &mut self.0 {
            LinkKind::Plain(socket) => socket,
            LinkKind::Sealed(sealed) => &mut sealed.socket,
        }
    }

    /// Returns whether the bytes are encrypted: reads of them then end where a record ends.
    pub fn is_sealed(&self) -> bool {
        matches!(self.0, LinkKind::Sealed(_))
    }

    /// Returns whether some written bytes have not been put on the socket (TCP-10).
    #[inline]
    pub fn is_pending(&self) -> bool {
        match &self.0 {
            LinkKind::Plain(_) => false,
            LinkKind::Sealed(sealed) => sealed.tls.wants_write(),
        }
    }
}

impl<S: Read + Write> Link<S> {
    /// Reads the available bytes, as far as there is room, from a nonblocking socket; 0 if no more will come
    /// (TCP-11).
    #[inline]
    pub(super) fn fill(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let LinkKind::Sealed(sealed) = &mut self.0 else { return self.read(room) };
        let mut filled = 0;
        while filled < room.len() {
            match sealed.read(&mut room[filled..]) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // The next read returns the end, or the error, again.
                Err(_) if filled > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }
}

impl<S: Read + Write> Sealed<S> {
    /// Puts on the socket as much as it takes; false if that is not all.
    fn put(&mut self) -> io::Result<bool> {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut self.socket) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Reads some bytes, and reads from the socket only if no deciphered bytes are left.
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.tls.reader().read(room) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // The other side has closed without an alert. Nothing relies on that alert: a waiting caller
                // gets no answer.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(0),
                read => return read,
            }
            // Bytes of a handshake, for which the other side may wait.
            self.put()?;
            if self.tls.read_tls(&mut self.socket)? == 0 {
                return Ok(0);
            }
            if let Err(error) = self.tls.process_new_packets() {
                // Tries to send the reason.
                let _ = self.put();
                return Err(io::Error::new(ErrorKind::InvalidData, error));
            }
        }
    }

    /// Takes some of `bytes`. Bytes that the socket does not take at once are pending.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            let taken = self.tls.writer().write(bytes)?;
            let has_room = self.put()?;
            if taken > 0 || bytes.is_empty() {
                return Ok(taken);
            }
            if !has_room {
                return Err(ErrorKind::WouldBlock.into());
            }
        }
    }
}

impl<S: Read + Write> Read for Link<S> {
    #[inline]
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        match &mut self.0 {
            LinkKind::Plain(socket) => socket.read(room),
            LinkKind::Sealed(sealed) => sealed.read(room),
        }
    }
}

impl<S: Read + Write> Write for Link<S> {
    #[inline]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.0 {
            LinkKind::Plain(socket) => socket.write(bytes),
            LinkKind::Sealed(sealed) => sealed.write(bytes),
        }
    }

    /// Puts pending bytes on the socket.
    fn flush(&mut self) -> io::Result<()> {
        match &mut self.0 {
            LinkKind::Plain(socket) => socket.flush(),
            LinkKind::Sealed(sealed) => match sealed.put()? {
                true => Ok(()),
                false => Err(ErrorKind::WouldBlock.into()),
            },
        }
    }
}
