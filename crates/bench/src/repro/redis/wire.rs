//! Redis connection: collects commands, sends them together, and reads replies in their order.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use super::{
    error::RedisError,
    resp::{Reply, RespError, parse, write_command},
};

/// The longest silence: no command here takes as long.
const SILENCE_MAX: Duration = Duration::from_secs(60);
const CONNECT_TIME: Duration = Duration::from_secs(5);
/// Least size of a read of replies.
const READ_BYTES: usize = 64 << 10;

/// A connection, and how many bytes went over it.
#[derive(Debug)]
pub(super) struct Wire {
    stream: TcpStream,
    /// Received; those from `start` to `end` are not looked at yet.
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    pub(super) bytes_sent: u64,
    pub(super) bytes_received: u64,
}

impl Wire {
    /// # Errors
    /// If no server accepts the connection.
    pub(super) fn connect(address: SocketAddr) -> io::Result<Wire> {
        let stream = TcpStream::connect_timeout(&address, CONNECT_TIME)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SILENCE_MAX))?;
        stream.set_write_timeout(Some(SILENCE_MAX))?;
        let bytes = vec![0; READ_BYTES];
        Ok(Wire { stream, bytes, start: 0, end: 0, bytes_sent: 0, bytes_received: 0 })
    }

    /// Sends `commands`, and empties it.
    ///
    /// # Errors
    /// If the connection has ended, or the server reads nothing for a minute.
    pub(super) fn send(&mut self, commands: &mut Vec<u8>) -> io::Result<()> {
        self.stream.write_all(commands)?;
        self.bytes_sent += commands.len() as u64;
        commands.clear();
        Ok(())
    }

    /// Waits for more bytes of replies.
    ///
    /// # Errors
    /// If the connection has ended, or nothing comes for a minute.
    pub(super) fn receive(&mut self) -> io::Result<()> {
        self.bytes.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        if self.bytes.len() - self.end < READ_BYTES {
            self.bytes.resize(self.end + READ_BYTES, 0);
        }
        let count = loop {
            match self.stream.read(&mut self.bytes[self.end..]) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                result => break result?,
            }
        };
        if count == 0 {
            return Err(io::Error::new(ErrorKind::UnexpectedEof, "it has closed the connection"));
        }
        self.end += count;
        self.bytes_received += count as u64;
        Ok(())
    }

    /// The next reply and its length, which [`Wire::consume`] takes; `None` until more is received.
    ///
    /// # Errors
    /// If what has come is no reply.
    #[inline]
    pub(super) fn reply(&self) -> Result<Option<(Reply<'_>, usize)>, RespError> {
        parse(&self.bytes[self.start..self.end])
    }

    /// Skips a reply.
    #[inline]
    pub(super) fn consume(&mut self, used: usize) {
        self.start += used;
    }

    /// Sends one command and passes its reply to `read`, which returns the fault in it, if any.
    ///
    /// # Errors
    /// `Gone`, `Reply`, `Answer`.
    pub(super) fn ask<T>(
        &mut self,
        command: &'static str,
        words: &[&[u8]],
        read: impl FnOnce(Reply<'_>) -> Option<T>,
    ) -> Result<T, RedisError> {
        let mut out = Vec::new();
        write_command(&mut out, words);
        self.send(&mut out)?;
        self.expect(command, read)
    }

    /// Passes the next reply to `read`.
    ///
    /// # Errors
    /// As [`Wire::ask`].
    pub(super) fn expect<T>(
        &mut self,
        command: &'static str,
        read: impl FnOnce(Reply<'_>) -> Option<T>,
    ) -> Result<T, RedisError> {
        loop {
            let unread = |source| RedisError::Reply { command, source };
            if let Some((reply, used)) = self.reply().map_err(unread)? {
                let told = read(reply).ok_or_else(|| answer(command, &reply));
                // Also a wrong one: the next reply is another command's.
                self.consume(used);
                return told;
            }
            self.receive()?;
        }
    }
}

/// The error in a reply, or that of a reply of another kind than expected.
pub(super) fn answer(command: &'static str, reply: &Reply<'_>) -> RedisError {
    let said = match reply {
        Reply::Error(words) | Reply::Simple(words) => format!("\"{}\"", words.escape_ascii()),
        other => other.kind().to_owned(),
    };
    RedisError::Answer { command, said }
}

impl From<io::Error> for RedisError {
    fn from(source: io::Error) -> Self {
        RedisError::Gone { source, log: String::new() }
    }
}
