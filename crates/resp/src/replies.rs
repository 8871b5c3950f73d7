//! Replies: writes values in RESP2 and RESP3.
//!
//! Each method appends to the connection's output. Where the protocols differ (null, maps, doubles, booleans), a reply
//! of RESP3 is what redis-server 7 turns into RESP2: an empty bulk string or array, pairs in an array, a bulk string.

use std::io::Write;

/// The version of the protocol that a client has chosen by `HELLO`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// That of a client that says nothing.
    #[default]
    Resp2,
    /// With types of its own for null, maps and more.
    Resp3,
}

/// A connection's output.
#[derive(Debug, Default)]
pub struct Replies {
    /// Bytes that are to be sent.
    pub bytes: Vec<u8>,
    /// The client's protocol.
    pub protocol: Protocol,
}

impl Replies {
    /// `+OK` and its like; no line ends.
    pub fn simple(&mut self, text: &str) {
        self.line(b'+', text.as_bytes());
    }

    /// An error. Its first word is its code; line ends become spaces, because they would end the reply.
    pub fn error(&mut self, text: &str) {
        self.bytes.push(b'-');
        let byte = |byte: u8| if matches!(byte, b'\r' | b'\n') { b' ' } else { byte };
        self.bytes.extend(text.bytes().map(byte));
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// An integer.
    pub fn integer(&mut self, number: i64) {
        self.number(b':', number);
    }

    /// A bulk string.
    pub fn bulk(&mut self, bytes: &[u8]) {
        self.number(b'$', bytes.len() as i64);
        self.bytes.extend_from_slice(bytes);
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// A value, or null.
    pub fn value(&mut self, value: Option<&[u8]>) {
        match value {
            Some(value) => self.bulk(value),
            None => self.null(),
        }
    }

    /// Null, in place of a bulk string.
    pub fn null(&mut self) {
        self.bytes.extend_from_slice(match self.protocol {
            Protocol::Resp2 => b"$-1\r\n",
            Protocol::Resp3 => b"_\r\n",
        });
    }

    /// The head of an array; that many replies follow.
    pub fn array(&mut self, replies: usize) {
        self.number(b'*', replies as i64);
    }

    /// The head of a map; twice as many replies follow, key and value in turn.
    pub fn map(&mut self, pairs: usize) {
        match self.protocol {
            Protocol::Resp2 => self.array(2 * pairs),
            Protocol::Resp3 => self.number(b'%', pairs as i64),
        }
    }

    /// The head of a set; that many replies follow.
    pub fn set(&mut self, replies: usize) {
        match self.protocol {
            Protocol::Resp2 => self.array(replies),
            Protocol::Resp3 => self.number(b'~', replies as i64),
        }
    }

    /// A text with line ends, as `INFO` answers.
    pub fn verbatim(&mut self, text: &str) {
        if self.protocol == Protocol::Resp2 {
            return self.bulk(text.as_bytes());
        }
        self.number(b'=', text.len() as i64 + 4);
        self.bytes.extend_from_slice(b"txt:");
        self.bytes.extend_from_slice(text.as_bytes());
        self.bytes.extend_from_slice(b"\r\n");
    }

    fn line(&mut self, kind: u8, text: &[u8]) {
        self.bytes.push(kind);
        self.bytes.extend_from_slice(text);
        self.bytes.extend_from_slice(b"\r\n");
    }

    fn number(&mut self, kind: u8, number: i64) {
        self.bytes.push(kind);
        if let Ok(digit @ 0..=9) = u8::try_from(number) {
            self.bytes.push(b'0' + digit);
        } else {
            // A vector takes all.
            let _ = write!(self.bytes, "{number}");
        }
        self.bytes.extend_from_slice(b"\r\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(protocol: Protocol, write: impl FnOnce(&mut Replies)) -> String {
        let mut replies = Replies { protocol, ..Replies::default() };
        write(&mut replies);
        String::from_utf8(replies.bytes).expect("text")
    }

    #[test]
    fn replies_are_those_of_each_protocol() {
        let write = |replies: &mut Replies| {
            replies.simple("OK");
            replies.error("ERR key\r\nof two lines");
            for number in [0, 9, 10, -1, i64::MIN] {
                replies.integer(number);
            }
            replies.bulk(b"");
            replies.value(Some(b"a\r\nb"));
            replies.value(None);
            replies.array(2);
            replies.map(1);
            replies.set(3);
            replies.verbatim("a:1");
        };
        let both = "+OK\r\n-ERR key  of two lines\r\n:0\r\n:9\r\n:10\r\n:-1\r\n:-9223372036854775808\r\n$0\r\n\r\n\
                    $4\r\na\r\nb\r\n";
        let two = "$-1\r\n*2\r\n*2\r\n*3\r\n$3\r\na:1\r\n";
        let three = "_\r\n*2\r\n%1\r\n~3\r\n=7\r\ntxt:a:1\r\n";
        assert_eq!(written(Protocol::Resp2, write), format!("{both}{two}"));
        assert_eq!(written(Protocol::Resp3, write), format!("{both}{three}"));
    }
}
