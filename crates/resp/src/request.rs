//! Requests: finds the commands in a connection's bytes, borrowed and without allocation.
//!
//! A command is an array of bulk strings, or a line (*inline*). The parser keeps its place, so that bytes that come in
//! pieces are looked at once. It checks each length before it waits for the bytes: what a client announces takes no
//! memory.
//!
//! As in redis-server, an array of no or of less elements is skipped, and the two bytes behind a bulk string are not
//! looked at.

use std::ops::Range;

/// Longest line: an inline command, or a length.
const LINE_BYTES_MAX: usize = 64 << 10;

/// Bounds of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Arguments of a command, its name among them.
    pub args: usize,
    /// Bytes of a command.
    pub request_bytes: usize,
    /// Set before `AUTH`: the texts then are those that redis-server has for that.
    pub is_before_auth: bool,
}

impl Limits {
    /// Those of a client that may use the table.
    pub const OPEN: Limits =
        Limits { args: 65_536, request_bytes: 64 << 20, is_before_auth: false };
    /// Those of a client that has not said who it is.
    pub const BEFORE_AUTH: Limits =
        Limits { args: 16, request_bytes: 4 << 10, is_before_auth: true };
}

/// The end of a connection: its bytes are no commands, or break a limit. The text is that of the reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProtocolError(pub String);

impl std::fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ERR Protocol error: {}", self.0)
    }
}

impl std::error::Error for ProtocolError {}

/// The result of [`Parser::parse`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// The bytes end inside a command.
    Incomplete,
    /// These bytes are a command, whose arguments [`Parser::arg`] has. Without arguments it is skipped.
    Command(usize),
}

/// The place in the first command of a connection's bytes.
#[derive(Debug, Default)]
pub struct Parser {
    /// Bytes that have been looked at, from the begin of the command on.
    at: usize,
    /// Bulk strings that are still to come; `None` in front of the command.
    left: Option<usize>,
    /// Bytes of the bulk string whose length has been read.
    bulk: Option<usize>,
    /// Bytes of an unfinished line that hold no end of it.
    seen: usize,
    args: Vec<Range<usize>>,
    /// The arguments of an inline command, without quotes and escapes.
    inline: Vec<u8>,
    is_inline: bool,
}

impl Parser {
    /// The arguments of the command that was found.
    pub fn args(&self) -> usize {
        self.args.len()
    }

    /// An argument of the command that was found in `input`.
    pub fn arg<'a>(&'a self, input: &'a [u8], number: usize) -> &'a [u8] {
        let bytes = if self.is_inline { &self.inline } else { input };
        &bytes[self.args[number].clone()]
    }

    /// Looks for the end of the command that `input` begins with. After a command the next call begins a new one.
    ///
    /// # Errors
    /// Bytes that are no command, or break a limit; the connection cannot go on.
    pub fn parse(&mut self, input: &[u8], limits: Limits) -> Result<Parsed, ProtocolError> {
        if self.at == 0 && self.left.is_none() {
            self.args.clear();
            self.inline.clear();
            self.is_inline = false;
            match input.first() {
                None => return Ok(Parsed::Incomplete),
                Some(b'*') => {}
                Some(_) => return self.inline(input, limits),
            }
        }
        let mut left = match self.left {
            Some(left) => left,
            None => {
                let too_long = "too big mbulk count string";
                let Some(line) = self.line(input, too_long)? else { return Ok(Parsed::Incomplete) };
                let count = number(&input[line.start + 1..line.end]);
                let count = count.ok_or_else(|| error("invalid multibulk length"))?;
                let count = usize::try_from(count).unwrap_or(0);
                if count > limits.args {
                    return Err(match limits.is_before_auth {
                        true => error("unauthenticated multibulk length"),
                        false => ProtocolError(format!(
                            "too many arguments: {count}, limit {}",
                            limits.args
                        )),
                    });
                }
                count
            }
        };
        while left > 0 {
            self.left = Some(left);
            let bytes = match self.bulk {
                Some(bytes) => bytes,
                None => {
                    let too_long = "too big bulk count string";
                    let Some(line) = self.line(input, too_long)? else {
                        return Ok(Parsed::Incomplete);
                    };
                    self.bulk_bytes(&input[line], limits)?
                }
            };
            self.bulk = Some(bytes);
            let end = self.at + bytes;
            if input.len() < end + 2 {
                return Ok(Parsed::Incomplete);
            }
            self.args.push(self.at..end);
            (self.at, self.bulk, left) = (end + 2, None, left - 1);
        }
        Ok(self.done())
    }

    /// Bytes that the buffer needs at least until the command under way may be whole.
    pub fn needs(&self) -> usize {
        self.at + self.bulk.map_or(0, |bytes| bytes + 2)
    }

    /// Gives back memory between commands.
    pub fn release(&mut self) {
        if self.at == 0 && self.left.is_none() {
            (self.args, self.inline) = (Vec::new(), Vec::new());
        }
    }

    fn done(&mut self) -> Parsed {
        let used = std::mem::take(&mut self.at);
        (self.left, self.bulk, self.seen) = (None, None, 0);
        Parsed::Command(used)
    }

    /// The length of a bulk string, by its line.
    fn bulk_bytes(&self, line: &[u8], limits: Limits) -> Result<usize, ProtocolError> {
        if line.first() != Some(&b'$') {
            let got = line.first().map_or(' ', |byte| char::from(*byte));
            return Err(ProtocolError(format!("expected '$', got '{}'", got.escape_default())));
        }
        let bytes = number(&line[1..]).and_then(|bytes| usize::try_from(bytes).ok());
        let bytes = bytes.ok_or_else(|| error("invalid bulk length"))?;
        let all = self.at.saturating_add(bytes);
        if all > limits.request_bytes {
            return Err(match limits.is_before_auth {
                true => error("unauthenticated bulk length"),
                false => {
                    let limit = limits.request_bytes;
                    ProtocolError(format!("request of {all} bytes, limit {limit}"))
                }
            });
        }
        Ok(bytes)
    }

    /// The line from the place on, without its end; moves behind it. `None` if its end has not come.
    fn line(
        &mut self,
        input: &[u8],
        too_long: &str,
    ) -> Result<Option<Range<usize>>, ProtocolError> {
        let from = self.at + self.seen;
        let found = input[from..].iter().position(|byte| *byte == b'\r').map(|at| from + at);
        match found {
            // The byte behind it belongs to it.
            Some(end) if end + 1 < input.len() => {
                let line = self.at..end;
                (self.at, self.seen) = (end + 2, 0);
                Ok(Some(line))
            }
            _ if input.len() - self.at > LINE_BYTES_MAX => Err(error(too_long)),
            _ => {
                self.seen = found.unwrap_or(input.len()) - self.at;
                Ok(None)
            }
        }
    }

    fn inline(&mut self, input: &[u8], limits: Limits) -> Result<Parsed, ProtocolError> {
        let most = LINE_BYTES_MAX.min(limits.request_bytes);
        let found = input[self.seen..].iter().position(|byte| *byte == b'\n');
        let Some(end) = found.map(|at| self.seen + at) else {
            self.seen = input.len();
            if input.len() > most {
                return Err(error("too big inline request"));
            }
            return Ok(Parsed::Incomplete);
        };
        if end > most {
            return Err(error("too big inline request"));
        }
        let line = input[..end].strip_suffix(b"\r").unwrap_or(&input[..end]);
        self.is_inline = true;
        self.split(line).ok_or_else(|| error("unbalanced quotes in request"))?;
        if self.args.len() > limits.args {
            let limit = limits.args;
            return Err(ProtocolError(format!(
                "too many arguments: {}, limit {limit}",
                self.args.len()
            )));
        }
        self.at = end + 1;
        Ok(self.done())
    }

    /// Splits a line at white space, by redis-server's rules for quotes and escapes. `None` if a quote stays open, or
    /// ends in front of something else than white space.
    fn split(&mut self, line: &[u8]) -> Option<()> {
        let mut rest = line;
        loop {
            let begin = rest.iter().position(|byte| !is_space(*byte));
            let Some(begin) = begin else { return Some(()) };
            rest = &rest[begin..];
            let from = self.inline.len();
            let mut quote = None;
            loop {
                let (taken, byte) = match (quote, rest) {
                    (None, []) => break,
                    (None, [byte, ..]) if is_space(*byte) => break,
                    (None, [byte @ (b'"' | b'\''), after @ ..]) => {
                        (quote, rest) = (Some(*byte), after);
                        continue;
                    }
                    (Some(open), [byte, after @ ..]) if *byte == open => {
                        if after.first().is_some_and(|next| !is_space(*next)) {
                            return None;
                        }
                        rest = after;
                        break;
                    }
                    (Some(_), []) => return None,
                    (Some(b'"'), [b'\\', b'x', high, low, ..])
                        if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() =>
                    {
                        (4, 16 * hex(*high) + hex(*low))
                    }
                    (Some(b'"'), [b'\\', escaped, ..]) => (2, unescaped(*escaped)),
                    (Some(b'\''), [b'\\', b'\'', ..]) => (2, b'\''),
                    (_, [byte, ..]) => (1, *byte),
                };
                self.inline.push(byte);
                rest = &rest[taken..];
            }
            self.args.push(from..self.inline.len());
        }
    }
}

fn error(what: &str) -> ProtocolError {
    ProtocolError(what.to_owned())
}

/// White space as C's `isspace` has it.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c)
}

fn hex(digit: u8) -> u8 {
    char::from(digit).to_digit(16).map_or(0, |digit| digit as u8)
}

fn unescaped(byte: u8) -> u8 {
    match byte {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 0x08,
        b'a' => 0x07,
        other => other,
    }
}

/// A decimal number as redis-server reads it: no sign but `-`, no zero in front, no space.
pub fn number(text: &[u8]) -> Option<i64> {
    let (is_negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    match digits {
        [b'0'] if !is_negative => return Some(0),
        [b'1'..=b'9', ..] => {}
        _ => return None,
    }
    digits.iter().try_fold(0_i64, |number, digit| {
        let digit = digit.is_ascii_digit().then(|| i64::from(digit - b'0'))?;
        let digit = if is_negative { -digit } else { digit };
        number.checked_mul(10)?.checked_add(digit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The commands in `input`, given in pieces of `piece` bytes; the error that ends it.
    fn commands(input: &[u8], piece: usize, limits: Limits) -> Result<Vec<Vec<Vec<u8>>>, String> {
        let (mut parser, mut found) = (Parser::default(), Vec::new());
        let (mut buffer, mut given) = (Vec::new(), 0);
        loop {
            match parser.parse(&buffer, limits).map_err(|error| error.to_string())? {
                Parsed::Command(used) => {
                    let args = (0..parser.args()).map(|at| parser.arg(&buffer, at).to_vec());
                    found.push(args.collect());
                    buffer.drain(..used);
                }
                Parsed::Incomplete if given == input.len() => return Ok(found),
                Parsed::Incomplete => {
                    let to = input.len().min(given + piece);
                    buffer.extend_from_slice(&input[given..to]);
                    given = to;
                }
            }
        }
    }

    fn all(input: &[u8]) -> Result<Vec<Vec<Vec<u8>>>, String> {
        let whole = commands(input, usize::MAX / 2, Limits::OPEN);
        for piece in 1..=input.len().min(9) {
            assert_eq!(commands(input, piece, Limits::OPEN), whole, "pieces of {piece}");
        }
        whole
    }

    fn one(args: &[&[u8]]) -> Vec<Vec<u8>> {
        args.iter().map(|arg| arg.to_vec()).collect()
    }

    #[test]
    fn commands_come_whole_however_their_bytes_come() {
        let input = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$4\r\n\r\n\0x\r\n*1\r\n$4\r\nPING\r\nGET  k\r\n*0\r\n*-1\r\n*1\r\n$0\r\n\r\n";
        let expected = vec![
            one(&[b"SET", b"k", b"\r\n\0x"]),
            one(&[b"PING"]),
            one(&[b"GET", b"k"]),
            one(&[]),
            one(&[]),
            one(&[b""]),
        ];
        assert_eq!(all(input), Ok(expected));
        assert_eq!(all(b"*2\r\n$3\r\nGET\r\n$1"), Ok(vec![]));
    }

    #[test]
    fn lines_have_quotes_and_escapes() {
        let line = |line: &str| all(format!("{line}\r\n").as_bytes());
        assert_eq!(line(""), Ok(vec![one(&[])]));
        assert_eq!(line("  set\tk  v "), Ok(vec![one(&[b"set", b"k", b"v"])]));
        let escaped = r#"set "a b\n\x41\q\"" 'c\'d\n' "" e"f g""#;
        let args: [&[u8]; 5] = [b"set", b"a b\nAq\"", b"c'd\\n", b"", b"ef g"];
        assert_eq!(line(escaped), Ok(vec![one(&args)]));
        for open in ["set \"a", "set 'a", "set \"a\"b", "set \"a\\"] {
            let error = line(open).unwrap_err();
            assert_eq!(error, "ERR Protocol error: unbalanced quotes in request", "{open}");
        }
        assert_eq!(all(b"PING\n"), Ok(vec![one(&[b"PING"])]));
    }

    #[test]
    fn bytes_that_are_no_commands_are_told_in_the_words_of_redis() {
        for (input, text) in [
            (&b"*a\r\n"[..], "invalid multibulk length"),
            (b"*01\r\n", "invalid multibulk length"),
            (b"*+1\r\n", "invalid multibulk length"),
            (b"*99999999999999999999\r\n", "invalid multibulk length"),
            (b"*1\r\n$-1\r\n", "invalid bulk length"),
            (b"*1\r\n$x\r\n", "invalid bulk length"),
            (b"*1\r\n*1\r\n", "expected '$', got '*'"),
            (b"*1\r\n:1\r\n", "expected '$', got ':'"),
            (b"*65537\r\n", "too many arguments: 65537, limit 65536"),
            (b"*1\r\n$67108864\r\n", "request of 67108879 bytes, limit 67108864"),
        ] {
            assert_eq!(all(input), Err(format!("ERR Protocol error: {text}")), "{input:?}");
        }
    }

    #[test]
    fn limits_hold_before_the_bytes_come() {
        let before = |input: &[u8]| commands(input, 7, Limits::BEFORE_AUTH);
        assert_eq!(before(b"*2\r\n$4\r\nAUTH\r\n$1\r\nx\r\n").map(|found| found.len()), Ok(1));
        let text = |text: &str| Err(format!("ERR Protocol error: {text}"));
        assert_eq!(before(b"*17\r\n"), text("unauthenticated multibulk length"));
        assert_eq!(before(b"*1\r\n$4090\r\n"), text("unauthenticated bulk length"));
        let long = vec![b'a'; 4097];
        assert_eq!(before(&long), text("too big inline request"));
        let open = |input: &[u8]| commands(input, 1000, Limits::OPEN);
        assert_eq!(open(&vec![b'a'; (64 << 10) + 1]), text("too big inline request"));
        let star = [b"*".to_vec(), vec![b'1'; 64 << 10]].concat();
        assert_eq!(open(&star), text("too big mbulk count string"));
        let bulk = [b"*1\r\n$".to_vec(), vec![b'1'; 64 << 10]].concat();
        assert_eq!(open(&bulk), text("too big bulk count string"));
    }

    /// A value that comes byte by byte is looked at once.
    #[test]
    fn a_parser_says_how_many_bytes_it_needs() {
        let mut parser = Parser::default();
        let begin = b"*1\r\n$100\r\n";
        assert_eq!(parser.parse(begin, Limits::OPEN), Ok(Parsed::Incomplete));
        assert_eq!(parser.needs(), begin.len() + 102);
    }

    #[test]
    fn numbers_are_those_of_redis() {
        for (text, expected) in [
            ("0", Some(0)),
            ("-0", None),
            ("007", None),
            ("", None),
            ("-", None),
            (" 1", None),
            ("1 ", None),
            ("+1", None),
            ("9223372036854775807", Some(i64::MAX)),
            ("9223372036854775808", None),
            ("-9223372036854775808", Some(i64::MIN)),
            ("-9223372036854775809", None),
        ] {
            assert_eq!(number(text.as_bytes()), expected, "{text:?}");
        }
    }
}
