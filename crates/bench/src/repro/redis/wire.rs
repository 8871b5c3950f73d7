//! Redis connection: sends commands together, and takes their replies in order.
//!
//! The crate `redis-protocol` decodes each reply in place: a client's own work is part of the measurement.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use redis_protocol::resp2::{decode::decode_range, types::RangeFrame};

use super::error::RedisError;

/// The longest silence: no command here takes as long.
const SILENCE_MAX: Duration = Duration::from_secs(60);
const CONNECT_TIME: Duration = Duration::from_secs(5);
/// Least size of a read of replies.
const READ_BYTES: usize = 64 << 10;

/// A connection, and how many bytes went over it.
#[derive(Debug)]
pub(super) struct Wire {
    stream: TcpStream,
    /// The commands that it sends next.
    commands: Vec<u8>,
    /// Received; those from `start` to `end` are not looked at yet.
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    /// Bytes sent and received.
    pub(super) bytes_both: u64,
}

/// A reply, whose ranges are places in `bytes`.
pub(super) struct Reply<'a> {
    pub(super) frame: RangeFrame,
    bytes: &'a [u8],
}

impl<'a> Reply<'a> {
    /// The bytes of a string, which is this reply or one of its parts.
    pub(super) fn string(&self, frame: &RangeFrame) -> Option<&'a [u8]> {
        match frame {
            RangeFrame::SimpleString((start, end))
            | RangeFrame::Error((start, end))
            | RangeFrame::BulkString((start, end)) => self.bytes.get(*start..*end),
            _ => None,
        }
    }

    /// The reply as text, one line for each part.
    pub(super) fn text(&self) -> String {
        let text = |part: &RangeFrame| match part {
            RangeFrame::Integer(number) => number.to_string(),
            part => String::from_utf8_lossy(self.string(part).unwrap_or_default()).into_owned(),
        };
        match &self.frame {
            RangeFrame::Array(parts) => parts.iter().map(text).collect::<Vec<_>>().join("\n"),
            part => text(part),
        }
    }
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
        Ok(Wire { stream, commands: Vec::new(), bytes, start: 0, end: 0, bytes_both: 0 })
    }

    /// Adds a command to those that are sent next.
    pub(super) fn put(&mut self, words: &[&[u8]]) {
        let mut add = |parts: [&[u8]; 3]| parts.map(|part| self.commands.extend_from_slice(part));
        let mut digits = itoa::Buffer::new();
        add([b"*", digits.format(words.len()).as_bytes(), b"\r\n"]);
        for word in words {
            add([b"$", digits.format(word.len()).as_bytes(), b"\r\n"]);
            add([word, b"\r\n", b""]);
        }
    }

    /// Sends the commands; returns whether there were any.
    ///
    /// # Errors
    /// `Gone`.
    pub(super) fn send(&mut self) -> Result<bool, RedisError> {
        self.stream.write_all(&self.commands)?;
        self.bytes_both += self.commands.len() as u64;
        let any = !self.commands.is_empty();
        self.commands.clear();
        Ok(any)
    }

    /// Takes the next reply, which is to `command`. A refusal is a reply.
    ///
    /// # Errors
    /// `Gone`, `Reply`.
    pub(super) fn reply(&mut self, command: &'static str) -> Result<Reply<'_>, RedisError> {
        loop {
            let unread = |source| RedisError::Reply { command, source };
            let decoded = decode_range(&self.bytes[self.start..self.end]).map_err(unread)?;
            if let Some((frame, used)) = decoded {
                let bytes = &self.bytes[self.start..self.end];
                self.start += used;
                return Ok(Reply { frame, bytes });
            }
            self.receive()?;
        }
    }

    fn receive(&mut self) -> io::Result<()> {
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
        self.bytes_both += count as u64;
        Ok(())
    }

    /// Sends one command, and returns the text of its reply.
    ///
    /// # Errors
    /// `Gone`, `Reply`, `Answer`.
    pub(super) fn ask(
        &mut self,
        command: &'static str,
        words: &[&[u8]],
    ) -> Result<String, RedisError> {
        self.put(words);
        self.send()?;
        let reply = self.reply(command)?;
        match reply.frame {
            RangeFrame::Error(_) => Err(RedisError::answer(command, &reply)),
            _ => Ok(reply.text()),
        }
    }
}

impl From<io::Error> for RedisError {
    fn from(source: io::Error) -> Self {
        // The system calls silence a resource that is temporarily unavailable.
        let source = match source.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                let why = format!("it has not answered within {} s", SILENCE_MAX.as_secs());
                io::Error::new(ErrorKind::TimedOut, why)
            }
            _ => source,
        };
        RedisError::Gone { source, log: String::new() }
    }
}
