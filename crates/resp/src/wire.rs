//! Wire: a client's connection, which sends commands together and takes their replies, of RESP2, in order.
//!
//! The crate `redis-protocol` decodes each reply in place: where a client is measured, its own work is part of it.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use redis_protocol::error::RedisProtocolError;
use redis_protocol::resp2::decode::decode_range;
use redis_protocol::resp2::types::RangeFrame;
use thiserror::Error;

const CONNECT_TIME: Duration = Duration::from_secs(5);
/// Least size of a read of replies.
const READ_BYTES: usize = 64 << 10;

/// Failure of a connection, or an answer that ends the work on it.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WireError {
    /// The server ended, was cut off, or was silent for too long.
    #[error("the server is gone: {0}")]
    Gone(#[source] io::Error),
    /// The reply is no RESP.
    #[error("the reply to {command} cannot be read: {source}")]
    Reply {
        /// The command.
        command: &'static str,
        /// The fault in the reply.
        source: RedisProtocolError,
    },
    /// The server refuses, or answers with something else than the command asks for.
    #[error("the server answers {command} with {said}")]
    Answer {
        /// The command.
        command: &'static str,
        /// The answer, in quotes.
        said: String,
    },
}

/// Appends a command, as clients send it: an array of bulk strings.
pub fn put_command(bytes: &mut Vec<u8>, words: &[&[u8]]) {
    let mut add = |parts: [&[u8]; 3]| parts.map(|part| bytes.extend_from_slice(part));
    let mut digits = itoa::Buffer::new();
    add([b"*", digits.format(words.len()).as_bytes(), b"\r\n"]);
    for word in words {
        add([b"$", digits.format(word.len()).as_bytes(), b"\r\n"]);
        add([word, b"\r\n", b""]);
    }
}

/// A connection, and how many bytes went over it.
#[derive(Debug)]
pub struct Wire {
    stream: TcpStream,
    silence_max: Duration,
    /// The commands that it sends next.
    commands: Vec<u8>,
    /// Received; those from `start` to `end` are not looked at yet.
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    /// Bytes sent and received.
    pub bytes_both: u64,
}

/// A reply, whose ranges are places in `bytes`.
#[derive(Debug)]
pub struct Reply<'a> {
    /// Its kind, and its parts.
    pub frame: RangeFrame,
    bytes: &'a [u8],
}

impl<'a> Reply<'a> {
    /// The bytes of a string, which is this reply or one of its parts.
    pub fn string(&self, frame: &RangeFrame) -> Option<&'a [u8]> {
        match frame {
            RangeFrame::SimpleString((start, end))
            | RangeFrame::Error((start, end))
            | RangeFrame::BulkString((start, end)) => self.bytes.get(*start..*end),
            _ => None,
        }
    }

    /// The reply as text, one line for each part.
    pub fn text(&self) -> String {
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
    /// Connects to a server, which `silence_max` bounds: no send and no reply takes longer.
    ///
    /// # Errors
    /// `Gone`: no server accepts the connection within 5 s.
    pub fn connect(address: SocketAddr, silence_max: Duration) -> Result<Wire, WireError> {
        let open = || -> io::Result<TcpStream> {
            let stream = TcpStream::connect_timeout(&address, CONNECT_TIME)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(silence_max))?;
            stream.set_write_timeout(Some(silence_max))?;
            Ok(stream)
        };
        let stream = open().map_err(WireError::Gone)?;
        let bytes = vec![0; READ_BYTES];
        Ok(Wire {
            stream,
            silence_max,
            commands: Vec::new(),
            bytes,
            start: 0,
            end: 0,
            bytes_both: 0,
        })
    }

    /// Adds a command to those that are sent next.
    pub fn put(&mut self, words: &[&[u8]]) {
        put_command(&mut self.commands, words);
    }

    /// Sends the commands; returns whether there were any.
    ///
    /// # Errors
    /// `Gone`.
    pub fn send(&mut self) -> Result<bool, WireError> {
        self.stream.write_all(&self.commands).map_err(|source| self.gone(source))?;
        self.bytes_both += self.commands.len() as u64;
        let any = !self.commands.is_empty();
        self.commands.clear();
        Ok(any)
    }

    /// Takes the next reply, which is to `command`. A refusal is a reply.
    ///
    /// # Errors
    /// `Gone`, `Reply`.
    pub fn reply(&mut self, command: &'static str) -> Result<Reply<'_>, WireError> {
        loop {
            let unread = |source| WireError::Reply { command, source };
            let decoded = decode_range(&self.bytes[self.start..self.end]).map_err(unread)?;
            if let Some((frame, used)) = decoded {
                let bytes = &self.bytes[self.start..self.end];
                self.start += used;
                return Ok(Reply { frame, bytes });
            }
            self.receive().map_err(|source| self.gone(source))?;
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

    fn gone(&self, source: io::Error) -> WireError {
        // The system calls silence a resource that is temporarily unavailable.
        WireError::Gone(match source.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                let why =
                    format!("it has not answered within {} s", self.silence_max.as_secs_f64());
                io::Error::new(ErrorKind::TimedOut, why)
            }
            _ => source,
        })
    }

    /// Sends one command, and returns the text of its reply.
    ///
    /// # Errors
    /// `Gone`, `Reply`; `Answer` if the server refuses.
    pub fn ask(&mut self, command: &'static str, words: &[&[u8]]) -> Result<String, WireError> {
        self.put(words);
        self.send()?;
        let reply = self.reply(command)?;
        match reply.frame {
            RangeFrame::Error(_) => Err(WireError::answer(command, &reply)),
            _ => Ok(reply.text()),
        }
    }
}

impl WireError {
    /// An answer that the command should not have.
    pub fn answer(command: &'static str, reply: &Reply<'_>) -> Self {
        WireError::Answer { command, said: format!("\"{}\"", reply.text().escape_default()) }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::net::TcpListener;
    use std::thread;

    use super::*;
    use crate::request::{Limits, Parsed, Parser};

    const SILENCE: Duration = Duration::from_millis(100);

    /// A client of a server that sends `replies`, each a moment after the one before, and then waits.
    fn wire(replies: &'static [&'static [u8]], closes: bool) -> Wire {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let wire = Wire::connect(listener.local_addr().unwrap(), SILENCE).unwrap();
        let (mut socket, _) = listener.accept().unwrap();
        socket.set_nodelay(true).unwrap();
        thread::spawn(move || {
            for part in replies {
                socket.write_all(part).unwrap();
                thread::sleep(Duration::from_millis(2));
            }
            if !closes {
                // Until the client has given up.
                let _ = socket.read(&mut [0; 1]);
            }
        });
        wire
    }

    #[test]
    fn replies_come_whole_and_in_order() {
        let mut wire =
            wire(&[b"$5\r\nab", b"\r\nc\r\n:", b"7\r\n*2\r\n+a\r\n:1\r\n-ERR no\r\n"], false);
        let bulk = wire.reply("GET").unwrap();
        assert_eq!(bulk.string(&bulk.frame), Some(&b"ab\r\nc"[..]));
        assert_eq!(wire.reply("DEL").unwrap().text(), "7");
        assert_eq!(wire.reply("MGET").unwrap().text(), "a\n1");
        let refused = wire.ask("GET", &[b"GET"]).unwrap_err().to_string();
        assert_eq!(refused, "the server answers GET with \"ERR no\"");
        assert_eq!(wire.bytes_both, (11 + 4 + 4 + 4 + 4 + 9) + 13);
    }

    #[test]
    fn silence_an_end_and_foreign_bytes_are_told_apart() {
        let silent = wire(&[], false).reply("GET").unwrap_err();
        assert!(matches!(silent, WireError::Gone(_)), "{silent}");
        assert!(silent.to_string().contains("has not answered within 0.1 s"), "{silent}");
        let closed = wire(&[b"$5\r\nab"], true).reply("GET").unwrap_err().to_string();
        assert!(closed.contains("it has closed the connection"), "{closed}");
        let foreign = wire(&[b"HTTP/1.1 400\r\n"], false).reply("GET").unwrap_err();
        assert!(matches!(foreign, WireError::Reply { command: "GET", .. }), "{foreign}");
    }

    /// A server's parser finds in a command what the client put there.
    #[test]
    fn commands_are_read_as_they_were_put() {
        let words: [&[u8]; 3] = [b"SET", b"", b"\r\n*1\r\n"];
        let mut bytes = Vec::new();
        put_command(&mut bytes, &words);
        let mut parser = Parser::default();
        assert_eq!(parser.parse(&bytes, Limits::OPEN), Ok(Parsed::Command(bytes.len())));
        assert_eq!(parser.args(), words.len());
        (0..words.len()).for_each(|at| assert_eq!(parser.arg(&bytes, at), words[at]));
    }
}
