//! RESP2: encodes Redis's commands and decodes its replies, as far as the comparison needs.
//!
//! Written by hand, as a client's own work is part of the measurement: the parser reads replies in
//! place and allocates nothing for one. (The crate `redis` makes a value of each reply, cannot keep
//! a window of commands under way, and brings forty packages with it.)
//!
//! - INV-RESP-1: any bytes are a reply, the beginning of one, or an error.

use thiserror::Error;

/// The longest line of a reply: a number, or the text of an error.
const LINE_BYTES_MAX: usize = 64 << 10;
/// The longest string that the parser takes: values are at most 1 MiB, and so is a reply to `INFO`.
const BULK_BYTES_MAX: i64 = 16 << 20;
/// The most strings of one reply.
const ITEMS_MAX: i64 = 1 << 20;
const END: &[u8] = b"\r\n";

/// Appends a command of these words.
pub(super) fn write_command(out: &mut Vec<u8>, words: &[&[u8]]) {
    begin_command(out, words.len());
    for word in words {
        write_word(out, word);
    }
}

/// Appends the beginning of a command of `count` words, which follow.
pub(super) fn begin_command(out: &mut Vec<u8>, count: usize) {
    write_length(out, b'*', count);
}

/// Appends a word of a command that has begun.
#[inline]
pub(super) fn write_word(out: &mut Vec<u8>, word: &[u8]) {
    write_length(out, b'$', word.len());
    out.extend_from_slice(word);
    out.extend_from_slice(END);
}

#[inline]
fn write_length(out: &mut Vec<u8>, kind: u8, length: usize) {
    let mut digits = [0; 20];
    out.push(kind);
    out.extend_from_slice(decimal(length as u64, &mut digits));
    out.extend_from_slice(END);
}

/// The decimal digits of `number`, at the end of `digits`.
#[inline]
pub(super) fn decimal(number: u64, digits: &mut [u8; 20]) -> &[u8] {
    let mut rest = number;
    let mut first = digits.len();
    while rest > 0 || first == digits.len() {
        first -= 1;
        // A remainder by ten is one digit.
        digits[first] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    &digits[first..]
}

/// Redis's reply to one command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reply<'a> {
    /// A word, as in `OK`.
    Simple(&'a [u8]),
    /// A refusal and its reason.
    Error(&'a [u8]),
    /// A number.
    Integer(i64),
    /// A string; `None` if there is none.
    Bulk(Option<&'a [u8]>),
    /// Several strings.
    Array(Items<'a>),
}

impl Reply<'_> {
    /// Its kind, for errors.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Reply::Simple(_) => "a word",
            Reply::Error(_) => "an error",
            Reply::Integer(_) => "a number",
            Reply::Bulk(None) => "nothing",
            Reply::Bulk(Some(_)) => "a string",
            Reply::Array(_) => "several strings",
        }
    }
}

/// The strings of a reply, one after the other; `None` for one that is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Items<'a> {
    /// Well-formed: [`parse`] has walked them.
    rest: &'a [u8],
    count: usize,
}

impl<'a> Iterator for Items<'a> {
    type Item = Option<&'a [u8]>;

    fn next(&mut self) -> Option<Option<&'a [u8]>> {
        if self.count == 0 {
            return None;
        }
        let (item, used) = bulk(self.rest).ok()??;
        self.rest = self.rest.get(used..).unwrap_or_default();
        self.count -= 1;
        Some(item)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.count, Some(self.count))
    }
}

impl ExactSizeIterator for Items<'_> {}

/// Bytes that are no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RespError {
    /// No reply begins so.
    #[error("no reply begins with the byte {0:#04x}")]
    Kind(u8),
    /// A number is none, or out of range.
    #[error("a length or number in a reply makes no sense")]
    Number,
    /// A line or string does not end where it should.
    #[error("a line or string does not end where it should")]
    Unended,
    /// Several strings consist of something else.
    #[error("a reply has another one inside")]
    Nested,
}

type Parsed<T> = Result<Option<(T, usize)>, RespError>;

/// The reply that `bytes` begin with, and its length; `None` if it goes on beyond them.
///
/// # Errors
/// [`RespError`] if no reply begins so.
pub(super) fn parse(bytes: &[u8]) -> Parsed<Reply<'_>> {
    let Some(kind) = bytes.first() else { return Ok(None) };
    match kind {
        b'$' => Ok(bulk(bytes)?.map(|(item, used)| (Reply::Bulk(item), used))),
        b'+' => Ok(line(bytes)?.map(|(words, used)| (Reply::Simple(words), used))),
        b'-' => Ok(line(bytes)?.map(|(words, used)| (Reply::Error(words), used))),
        b':' => {
            let Some((words, used)) = line(bytes)? else { return Ok(None) };
            Ok(Some((Reply::Integer(number(words)?), used)))
        }
        b'*' => array(bytes),
        other => Err(RespError::Kind(*other)),
    }
}

fn array(bytes: &[u8]) -> Parsed<Reply<'_>> {
    let Some((words, first)) = line(bytes)? else { return Ok(None) };
    let count = match number(words)? {
        -1 => 0,
        count @ 0..=ITEMS_MAX => count as usize,
        _ => return Err(RespError::Number),
    };
    let mut end = first;
    for _ in 0..count {
        let Some((_, used)) = bulk(&bytes[end..])? else { return Ok(None) };
        end += used;
    }
    Ok(Some((Reply::Array(Items { rest: &bytes[first..end], count }), end)))
}

/// A string with its length before it.
#[inline]
fn bulk(bytes: &[u8]) -> Parsed<Option<&[u8]>> {
    match bytes.first() {
        None => return Ok(None),
        Some(b'$') => {}
        Some(b'+' | b'-' | b':' | b'*') => return Err(RespError::Nested),
        Some(other) => return Err(RespError::Kind(*other)),
    }
    let Some((words, first)) = line(bytes)? else { return Ok(None) };
    let length = match number(words)? {
        -1 => return Ok(Some((None, first))),
        length @ 0..=BULK_BYTES_MAX => length as usize,
        _ => return Err(RespError::Number),
    };
    let end = first + length;
    match bytes.get(end..end + END.len()) {
        None => Ok(None),
        Some(END) => Ok(Some((Some(&bytes[first..end]), end + END.len()))),
        Some(_) => Err(RespError::Unended),
    }
}

/// Returns the bytes between the first byte and the line's end.
#[inline]
fn line(bytes: &[u8]) -> Parsed<&[u8]> {
    let Some(end) = bytes.iter().take(LINE_BYTES_MAX).position(|byte| *byte == b'\r') else {
        return if bytes.len() < LINE_BYTES_MAX { Ok(None) } else { Err(RespError::Unended) };
    };
    match bytes.get(end + 1) {
        None => Ok(None),
        Some(b'\n') => Ok(Some((&bytes[1..end], end + END.len()))),
        Some(_) => Err(RespError::Unended),
    }
}

#[inline]
fn number(words: &[u8]) -> Result<i64, RespError> {
    let (negative, digits) = match words {
        [b'-', rest @ ..] => (true, rest),
        _ => (false, words),
    };
    // The most digits that certainly fit.
    if digits.is_empty() || digits.len() > 18 {
        return Err(RespError::Number);
    }
    let mut number = 0;
    for digit in digits {
        if !digit.is_ascii_digit() {
            return Err(RespError::Number);
        }
        number = number * 10 + i64::from(digit - b'0');
    }
    Ok(if negative { -number } else { number })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn commands_are_arrays_of_strings() {
        let mut out = Vec::new();
        write_command(&mut out, &[b"SET", b"k\r\n\0", b""]);
        assert_eq!(out, b"*3\r\n$3\r\nSET\r\n$4\r\nk\r\n\0\r\n$0\r\n\r\n");
        let mut digits = [0; 20];
        for number in [0, 7, 10, 1999, u64::MAX] {
            assert_eq!(decimal(number, &mut digits), number.to_string().as_bytes());
        }
    }

    /// Each kind of reply is read, and every beginning of it is known to be one.
    #[test]
    fn incomplete_replies_wait_for_the_rest() {
        let several = b"*3\r\n$1\r\na\r\n$-1\r\n$2\r\n\r\n\r\n";
        let replies: [(&[u8], Reply<'_>); 8] = [
            (b"+OK\r\n", Reply::Simple(b"OK")),
            (b"-ERR no\r\n", Reply::Error(b"ERR no")),
            (b":-12\r\n", Reply::Integer(-12)),
            (b"$5\r\na\r\nbc\r\n", Reply::Bulk(Some(b"a\r\nbc"))),
            (b"$0\r\n\r\n", Reply::Bulk(Some(b""))),
            (b"$-1\r\n", Reply::Bulk(None)),
            (b"*0\r\n", Reply::Array(Items { rest: b"", count: 0 })),
            (several, Reply::Array(Items { rest: &several[4..], count: 3 })),
        ];
        for (bytes, reply) in replies {
            assert_eq!(parse(bytes), Ok(Some((reply, bytes.len()))), "{}", bytes.escape_ascii());
            for cut in 0..bytes.len() {
                assert_eq!(parse(&bytes[..cut]), Ok(None), "{cut} of {}", bytes.escape_ascii());
            }
            let more = [bytes, b"+next\r\n"].concat();
            assert_eq!(parse(&more).unwrap().unwrap().1, bytes.len());
        }
        let Ok(Some((Reply::Array(items), _))) = parse(several) else { panic!("no array") };
        assert_eq!(items.len(), 3);
        assert_eq!(items.collect::<Vec<_>>(), [Some(&b"a"[..]), None, Some(b"\r\n")]);
    }

    #[test]
    fn malformed_replies_are_refused() {
        for (bytes, error) in [
            (&b"HTTP/1.1 400"[..], RespError::Kind(b'H')),
            (b"$x\r\n", RespError::Number),
            (b"$\r\n", RespError::Number),
            (b"$-2\r\n", RespError::Number),
            (b"$99999999999999999999\r\n", RespError::Number),
            (b"$999999999\r\n", RespError::Number),
            (b"*-5\r\n", RespError::Number),
            (b":1a\r\n", RespError::Number),
            (b"$1\r\nabc", RespError::Unended),
            (b"+OK\rx", RespError::Unended),
            (b"*1\r\n*0\r\n", RespError::Nested),
            (b"*1\r\n:5\r\n", RespError::Nested),
            (b"*1\r\nx", RespError::Kind(b'x')),
        ] {
            assert_eq!(parse(bytes), Err(error), "{}", bytes.escape_ascii());
        }
        assert_eq!(parse(&[b'+'; LINE_BYTES_MAX]), Err(RespError::Unended));
    }

    /// INV-RESP-1.
    #[test]
    fn any_bytes_are_a_reply_a_beginning_or_an_error() {
        let mut rng = fastrand::Rng::with_seed(1);
        let letters = b"$*+-:0123456789\r\nab";
        for _ in 0..200_000 {
            let length = rng.usize(0..24);
            let bytes: Vec<u8> =
                (0..length).map(|_| letters[rng.usize(0..letters.len())]).collect();
            if let Ok(Some((reply, used))) = parse(&bytes) {
                assert!(used <= bytes.len());
                if let Reply::Array(items) = reply {
                    assert_eq!(items.count(), items.len());
                }
            }
        }
    }
}
