//! Message format: encodes the messages between compute servers, as `docs/design/post.md` specifies.
//!
//! All integers are little-endian. A connection begins with a [`Hello`] and a [`Welcome`], 64 bytes each.
//! Then requests go one way and replies the other, each behind a head:
//!
//! ```text
//! request:  length u32 | 0 u32 | number u64 | meta object of the table u64 | content
//! reply:    length u32 | 0 u32 | number u64 | content
//! ```
//!
//! `length` is that of the content. Nothing here trusts the other side: what is not exactly of this form
//! is refused, and nothing is allocated beyond what has come.

use std::ops::Bound;

use farleaf_fabric::Incarnation;

use super::super::repartition::{MoveError, PartLoad};
use super::super::{Reply, Request};
use crate::index::Exchange;
use crate::{Entries, IndexError};

/// Version of this protocol. Both sides must speak the same.
pub const VERSION: u32 = 1;
const MAGIC: [u8; 8] = *b"FarleafP";
/// Bytes of a greeting.
pub const GREETING_BYTES: usize = 64;
/// Bytes in front of a request's content.
pub const REQUEST_HEAD_BYTES: usize = 24;
/// Bytes in front of a reply's content.
pub const REPLY_HEAD_BYTES: usize = 16;
/// Most bytes of a content.
pub const CONTENT_MAX: usize = 16 << 20;
/// Bytes of pairs after which a scan's reply is cut off.
const PAIRS_BYTES: usize = 4 << 20;
/// Most bytes of an error's text.
const TEXT_MAX: usize = 4 << 10;

/// Bytes that are none of this protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at byte {at}: {what}")]
pub struct Malformed {
    /// Where.
    pub at: usize,
    /// What is wrong there.
    pub what: &'static str,
}

/// A content that is longer than [`CONTENT_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message of {0} bytes: {CONTENT_MAX} are the most that travel to another compute server")]
pub struct TooLong(pub usize);

/// What the one says that connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Of the protocol.
    pub version: u32,
    /// The pool's.
    pub pool: u128,
    /// Who it is.
    pub from: Incarnation,
    /// Who is meant.
    pub to: Incarnation,
}

/// Whether a connection is let in, or why not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Entry {
    /// Requests may follow.
    LetIn = 0,
    /// Only the version of either greeting says anything.
    OtherVersion = 1,
    /// This compute server works on another pool.
    OtherPool = 2,
    /// It is another one than was meant: that one is gone, or has another address.
    OtherServer = 3,
    /// As many connections as it allows are open.
    Full = 4,
}

/// What the one answers that was connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// Of the protocol.
    pub version: u32,
    /// Whether requests may follow.
    pub entry: Entry,
    /// The pool's.
    pub pool: u128,
    /// Who it is.
    pub me: Incarnation,
}

fn greeting(version: u32, entry: u8, pool: u128, words: [u64; 2]) -> [u8; GREETING_BYTES] {
    let mut bytes = [0; GREETING_BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&version.to_le_bytes());
    bytes[12] = entry;
    bytes[16..32].copy_from_slice(&pool.to_le_bytes());
    bytes[32..40].copy_from_slice(&words[0].to_le_bytes());
    bytes[40..48].copy_from_slice(&words[1].to_le_bytes());
    bytes
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    std::array::from_fn(|index| bytes[at + index])
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array(bytes, at))
}

/// Version of a greeting; `None` if it is none of this protocol.
fn version_of(bytes: &[u8; GREETING_BYTES]) -> Option<u32> {
    bytes.starts_with(&MAGIC).then(|| u32::from_le_bytes(array(bytes, 8)))
}

impl Hello {
    /// The bytes that are sent.
    pub fn encode(self) -> [u8; GREETING_BYTES] {
        greeting(self.version, 0, self.pool, [self.from.0, self.to.0])
    }

    /// `None` if it is no greeting of this protocol. Of another version only that is known.
    pub fn decode(bytes: &[u8; GREETING_BYTES]) -> Option<Hello> {
        let version = version_of(bytes)?;
        let pool = u128::from_le_bytes(array(bytes, 16));
        let (from, to) = (Incarnation(word(bytes, 32)), Incarnation(word(bytes, 40)));
        let hello = Hello { version, pool, from, to };
        let is_whole = hello.encode() == *bytes && from.0 != 0 && to.0 != 0;
        (version != VERSION || is_whole).then_some(hello)
    }
}

impl Welcome {
    /// The bytes that are sent.
    pub fn encode(self) -> [u8; GREETING_BYTES] {
        greeting(self.version, self.entry as u8, self.pool, [self.me.0, 0])
    }

    /// `None` if it is no greeting of this protocol. Of another version only that is known.
    pub fn decode(bytes: &[u8; GREETING_BYTES]) -> Option<Welcome> {
        use Entry::{Full, LetIn, OtherPool, OtherServer, OtherVersion};
        let version = version_of(bytes)?;
        let all = [LetIn, OtherVersion, OtherPool, OtherServer, Full];
        let entry = all.into_iter().find(|entry| *entry as u8 == bytes[12]);
        let (pool, me) = (u128::from_le_bytes(array(bytes, 16)), Incarnation(word(bytes, 32)));
        if version != VERSION {
            return Some(Welcome { version, entry: OtherVersion, pool, me });
        }
        let welcome = Welcome { version, entry: entry?, pool, me };
        (welcome.encode() == *bytes).then_some(welcome)
    }
}

/// Length of the content, number and table of a request.
///
/// # Errors
/// [`Malformed`], also for a content that is too long.
pub fn decode_request_head(
    bytes: &[u8; REQUEST_HEAD_BYTES],
) -> Result<(usize, u64, u64), Malformed> {
    let (length, number) = decode_head(bytes)?;
    Ok((length, number, word(bytes, 16)))
}

/// Length of the content and number of a reply.
///
/// # Errors
/// [`Malformed`], also for a content that is too long.
pub fn decode_reply_head(bytes: &[u8; REPLY_HEAD_BYTES]) -> Result<(usize, u64), Malformed> {
    decode_head(bytes)
}

fn decode_head(bytes: &[u8]) -> Result<(usize, u64), Malformed> {
    let length = u32::from_le_bytes(array(bytes, 0)) as usize;
    if length > CONTENT_MAX {
        return Err(Malformed { at: 0, what: "a content that is too long" });
    }
    if bytes[4..8] != [0; 4] {
        return Err(Malformed { at: 4, what: "bytes that must be 0" });
    }
    Ok((length, word(bytes, 8)))
}

/// A request with its head.
///
/// # Errors
/// [`TooLong`].
pub fn encode_request(number: u64, table: u64, request: &Request) -> Result<Vec<u8>, TooLong> {
    let mut out = vec![0; REQUEST_HEAD_BYTES];
    put_request(&mut out, request);
    out[16..24].copy_from_slice(&table.to_le_bytes());
    put_head(&mut out, REQUEST_HEAD_BYTES, number)?;
    Ok(out)
}

/// A reply with its head. What is left out of a scan's pairs it says; what cannot travel at all becomes
/// an error that says so.
pub fn encode_reply(number: u64, outcome: &Result<Reply, IndexError>) -> Vec<u8> {
    let encode = |outcome: &Result<Reply, IndexError>| {
        let mut out = vec![0; REPLY_HEAD_BYTES];
        put_outcome(&mut out, outcome);
        put_head(&mut out, REPLY_HEAD_BYTES, number).map(|()| out)
    };
    encode(outcome).unwrap_or_else(|too_long| {
        let told = Err(IndexError::OutcomeUnknown(too_long.to_string()));
        encode(&told).unwrap_or_default()
    })
}

fn put_head(out: &mut [u8], head_bytes: usize, number: u64) -> Result<(), TooLong> {
    let length = out.len() - head_bytes;
    if length > CONTENT_MAX {
        return Err(TooLong(length));
    }
    out[..4].copy_from_slice(&(length as u32).to_le_bytes());
    out[8..16].copy_from_slice(&number.to_le_bytes());
    Ok(())
}

fn put_u64(out: &mut Vec<u8>, number: u64) {
    out.extend(number.to_le_bytes());
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    // What is longer than the length can say is longer than a content may be.
    out.extend((bytes.len().min(u32::MAX as usize) as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}

fn put_optional(out: &mut Vec<u8>, bytes: Option<&[u8]>) {
    out.push(bytes.is_some().into());
    bytes.into_iter().for_each(|bytes| put_bytes(out, bytes));
}

fn put_bound(out: &mut Vec<u8>, bound: &Bound<Vec<u8>>) {
    let (tag, key) = match bound {
        Bound::Unbounded => (0, None),
        Bound::Included(key) => (1, Some(key)),
        Bound::Excluded(key) => (2, Some(key)),
    };
    out.push(tag);
    key.into_iter().for_each(|key| put_bytes(out, key));
}

fn put_request(out: &mut Vec<u8>, request: &Request) {
    let mut with_value = |tag, key: &[u8], value: &[u8]| {
        out.push(tag);
        put_bytes(out, key);
        put_bytes(out, value);
    };
    match request {
        Request::Insert { key, value } => with_value(2, key, value),
        Request::Update { key, value } => with_value(3, key, value),
        Request::Upsert { key, value } => with_value(4, key, value),
        Request::Get { key } => {
            out.push(1);
            put_bytes(out, key);
        }
        Request::Remove { key } => {
            out.push(5);
            put_bytes(out, key);
        }
        Request::CompareExchange { key, expected, new } => {
            out.push(6);
            put_bytes(out, key);
            put_optional(out, expected.as_deref());
            put_optional(out, new.as_deref());
        }
        Request::Scan { from, to, reverse, limit } => {
            out.push(7);
            put_bound(out, from);
            put_bound(out, to);
            out.push((*reverse).into());
            put_u64(out, *limit as u64);
        }
        Request::Hello => out.push(8),
        Request::Learn { epoch } => {
            out.push(9);
            put_u64(out, *epoch);
        }
        Request::Give { low, high, to } => {
            out.push(10);
            put_optional(out, low.as_deref());
            put_optional(out, high.as_deref());
            put_u64(out, to.0);
        }
        Request::Share { to } => {
            out.push(11);
            put_u64(out, to.0);
        }
        Request::Load { decay } => out.extend([12, (*decay).into()]),
    }
}

fn put_outcome(out: &mut Vec<u8>, outcome: &Result<Reply, IndexError>) {
    match outcome {
        Ok(Reply::Value(value)) => {
            out.push(1);
            put_optional(out, value.as_deref());
        }
        Ok(Reply::Done(done)) => out.extend([2, (*done).into()]),
        Ok(Reply::Exchanged(exchange, held)) => {
            out.extend([3, (*exchange == Exchange::Done).into()]);
            put_optional(out, held.as_deref());
        }
        Ok(Reply::Pairs(pairs)) => put_pairs(out, 4, pairs),
        Ok(Reply::Part(pairs)) => put_pairs(out, 5, pairs),
        Ok(Reply::WrongOwner { epoch }) => {
            out.push(6);
            put_u64(out, *epoch);
        }
        Ok(Reply::Gone) => out.push(7),
        Ok(Reply::Moved(Ok(epoch))) => {
            out.push(8);
            put_u64(out, *epoch);
        }
        Ok(Reply::Moved(Err(error))) => {
            out.push(9);
            put_move_error(out, error);
        }
        Ok(Reply::Load(loads)) => {
            out.push(10);
            for load in loads {
                put_u64(out, load.owner.0);
                put_optional(out, load.low.as_deref());
                put_optional(out, load.high.as_deref());
                put_u64(out, load.ops);
                out.extend((load.keys.len() as u32).to_le_bytes());
                load.keys.iter().for_each(|key| put_bytes(out, key));
            }
        }
        Err(error) => {
            out.push(11);
            put_error(out, error);
        }
    }
}

fn put_pairs(out: &mut Vec<u8>, tag: u8, pairs: &Entries) {
    let at = out.len();
    out.push(tag);
    for (key, value) in pairs.iter() {
        let is_first = out.len() == at + 1;
        if !is_first && out.len() - at + key.len() + value.len() > PAIRS_BYTES {
            // The first pairs.
            out[at] = 5;
            return;
        }
        put_bytes(out, key);
        put_bytes(out, value);
    }
}

fn put_error(out: &mut Vec<u8>, error: &IndexError) {
    let (tag, text) = match error {
        IndexError::Invalid(text) => (1, text),
        IndexError::Unavailable(text) => (2, text),
        IndexError::OutcomeUnknown(text) => (3, text),
        IndexError::Full(text) => (4, text),
        IndexError::Corrupt(text) => (5, text),
        IndexError::Closed(text) => (6, text),
    };
    out.push(tag);
    let end = (0..=text.len().min(TEXT_MAX)).rev().find(|end| text.is_char_boundary(*end));
    put_bytes(out, &text.as_bytes()[..end.unwrap_or(0)]);
}

fn put_move_error(out: &mut Vec<u8>, error: &MoveError) {
    let (tag, number) = match error {
        MoveError::OutOfOrder => (1, None),
        MoveError::NoKey => (2, None),
        MoveError::NoBoundary(number) => (3, Some(*number as u64)),
        MoveError::UnknownServer(who) => (4, Some(who.0)),
        MoveError::DeadTarget(who) => (5, Some(who.0)),
        MoveError::NotOwned => (6, None),
        MoveError::NobodyElse => (7, None),
        MoveError::Busy => (8, None),
        MoveError::CalledOff => (9, None),
        MoveError::Index(error) => {
            out.push(11);
            return put_error(out, error);
        }
    };
    out.push(tag);
    number.into_iter().for_each(|number| put_u64(out, number));
}

/// The content of a request.
///
/// # Errors
/// [`Malformed`].
pub fn decode_request(content: &[u8]) -> Result<Request, Malformed> {
    let mut input = Input { content, at: 0 };
    let request = match input.u8()? {
        1 => Request::Get { key: input.bytes()? },
        2 => Request::Insert { key: input.bytes()?, value: input.bytes()? },
        3 => Request::Update { key: input.bytes()?, value: input.bytes()? },
        4 => Request::Upsert { key: input.bytes()?, value: input.bytes()? },
        5 => Request::Remove { key: input.bytes()? },
        6 => Request::CompareExchange {
            key: input.bytes()?,
            expected: input.optional()?,
            new: input.optional()?,
        },
        7 => Request::Scan {
            from: input.bound()?,
            to: input.bound()?,
            reverse: input.flag()?,
            limit: input.size()?,
        },
        8 => Request::Hello,
        9 => Request::Learn { epoch: input.u64()? },
        10 => Request::Give {
            low: input.optional()?,
            high: input.optional()?,
            to: Incarnation(input.u64()?),
        },
        11 => Request::Share { to: Incarnation(input.u64()?) },
        12 => Request::Load { decay: input.flag()? },
        _ => return Err(input.wrong("a request of an unknown kind")),
    };
    input.end()?;
    Ok(request)
}

/// The content of a reply.
///
/// # Errors
/// [`Malformed`].
pub fn decode_reply(content: &[u8]) -> Result<Result<Reply, IndexError>, Malformed> {
    let mut input = Input { content, at: 0 };
    let reply = match input.u8()? {
        1 => Reply::Value(input.optional()?),
        2 => Reply::Done(input.flag()?),
        3 => {
            let exchange = if input.flag()? { Exchange::Done } else { Exchange::Differs };
            Reply::Exchanged(exchange, input.optional()?)
        }
        4 => Reply::Pairs(input.pairs()?),
        5 => Reply::Part(input.pairs()?),
        6 => Reply::WrongOwner { epoch: input.u64()? },
        7 => Reply::Gone,
        8 => Reply::Moved(Ok(input.u64()?)),
        9 => Reply::Moved(Err(input.move_error()?)),
        10 => Reply::Load(input.loads()?),
        11 => {
            let error = input.error()?;
            input.end()?;
            return Ok(Err(error));
        }
        _ => return Err(input.wrong("a reply of an unknown kind")),
    };
    input.end()?;
    Ok(Ok(reply))
}

/// What is left of a content.
struct Input<'a> {
    content: &'a [u8],
    at: usize,
}

impl<'a> Input<'a> {
    fn wrong(&self, what: &'static str) -> Malformed {
        Malformed { at: self.at.saturating_sub(1), what }
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let end = self.at.checked_add(count).filter(|end| *end <= self.content.len());
        let Some(end) = end else {
            return Err(Malformed { at: self.at, what: "it ends too early" });
        };
        let taken = &self.content[self.at..end];
        self.at = end;
        Ok(taken)
    }

    fn end(&self) -> Result<(), Malformed> {
        match self.at == self.content.len() {
            true => Ok(()),
            false => Err(Malformed { at: self.at, what: "bytes behind its end" }),
        }
    }

    fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.take(1)?[0])
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(array(self.take(4)?, 0)))
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(word(self.take(8)?, 0))
    }

    fn size(&mut self) -> Result<usize, Malformed> {
        let number = self.u64()?;
        usize::try_from(number).map_err(|_| self.wrong("a number that is too large"))
    }

    fn flag(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(self.wrong("neither 0 nor 1")),
        }
    }

    fn slice(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.u32()? as usize;
        self.take(length)
    }

    fn bytes(&mut self) -> Result<Vec<u8>, Malformed> {
        Ok(self.slice()?.to_vec())
    }

    fn optional(&mut self) -> Result<Option<Vec<u8>>, Malformed> {
        match self.flag()? {
            true => self.bytes().map(Some),
            false => Ok(None),
        }
    }

    fn bound(&mut self) -> Result<Bound<Vec<u8>>, Malformed> {
        match self.u8()? {
            0 => Ok(Bound::Unbounded),
            1 => self.bytes().map(Bound::Included),
            2 => self.bytes().map(Bound::Excluded),
            _ => Err(self.wrong("a bound of an unknown kind")),
        }
    }

    fn pairs(&mut self) -> Result<Entries, Malformed> {
        let mut pairs = Entries::new();
        while self.at < self.content.len() {
            let (key, value) = (self.slice()?, self.slice()?);
            pairs.push(key, value);
        }
        Ok(pairs)
    }

    fn loads(&mut self) -> Result<Vec<PartLoad>, Malformed> {
        let mut loads = Vec::new();
        while self.at < self.content.len() {
            let owner = Incarnation(self.u64()?);
            let (low, high) = (self.optional()?, self.optional()?);
            let (ops, count) = (self.u64()?, self.u32()?);
            // Each takes 4 bytes at least, so that there are no more than have come.
            let keys = (0..count).map(|_| self.bytes()).collect::<Result<_, _>>()?;
            loads.push(PartLoad { owner, low, high, ops, keys });
        }
        Ok(loads)
    }

    fn error(&mut self) -> Result<IndexError, Malformed> {
        let tag = self.u8()?;
        let make = match tag {
            1 => IndexError::Invalid,
            2 => IndexError::Unavailable,
            3 => IndexError::OutcomeUnknown,
            4 => IndexError::Full,
            5 => IndexError::Corrupt,
            6 => IndexError::Closed,
            _ => return Err(self.wrong("an error of an unknown kind")),
        };
        let at = self.at;
        let text = self.slice()?;
        if text.len() > TEXT_MAX {
            return Err(Malformed { at, what: "a text that is too long" });
        }
        let text = str::from_utf8(text).map_err(|_| Malformed { at, what: "no UTF-8" })?;
        Ok(make(text.to_owned()))
    }

    fn move_error(&mut self) -> Result<MoveError, Malformed> {
        Ok(match self.u8()? {
            1 => MoveError::OutOfOrder,
            2 => MoveError::NoKey,
            3 => MoveError::NoBoundary(self.size()?),
            4 => MoveError::UnknownServer(Incarnation(self.u64()?)),
            5 => MoveError::DeadTarget(Incarnation(self.u64()?)),
            6 => MoveError::NotOwned,
            7 => MoveError::NobodyElse,
            8 => MoveError::Busy,
            9 => MoveError::CalledOff,
            11 => MoveError::Index(self.error()?),
            _ => return Err(self.wrong("a move's error of an unknown kind")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests() -> Vec<Request> {
        let (key, value) = (|| b"key".to_vec(), || b"value".to_vec());
        vec![
            Request::Get { key: key() },
            Request::Insert { key: key(), value: value() },
            Request::Update { key: Vec::new(), value: value() },
            Request::Upsert { key: key(), value: Vec::new() },
            Request::Remove { key: key() },
            Request::CompareExchange { key: key(), expected: None, new: Some(value()) },
            Request::CompareExchange { key: key(), expected: Some(Vec::new()), new: None },
            Request::Scan {
                from: Bound::Included(key()),
                to: Bound::Excluded(value()),
                reverse: true,
                limit: usize::MAX,
            },
            Request::Scan {
                from: Bound::Unbounded,
                to: Bound::Unbounded,
                reverse: false,
                limit: 0,
            },
            Request::Hello,
            Request::Learn { epoch: 9 },
            Request::Give { low: None, high: Some(key()), to: Incarnation(5) },
            Request::Share { to: Incarnation(6) },
            Request::Load { decay: true },
        ]
    }

    fn outcomes() -> Vec<Result<Reply, IndexError>> {
        let mut pairs = Entries::new();
        pairs.push(b"a", b"1");
        pairs.push(b"", b"");
        let text = || "why".to_owned();
        let errors = [
            IndexError::Invalid(text()),
            IndexError::Unavailable(text()),
            IndexError::OutcomeUnknown(String::new()),
            IndexError::Full(text()),
            IndexError::Corrupt("\u{fc}".into()),
            IndexError::Closed(text()),
        ];
        let who = Incarnation(u64::MAX);
        let moves = [
            MoveError::OutOfOrder,
            MoveError::NoKey,
            MoveError::NoBoundary(3),
            MoveError::UnknownServer(who),
            MoveError::DeadTarget(who),
            MoveError::NotOwned,
            MoveError::NobodyElse,
            MoveError::Busy,
            MoveError::CalledOff,
            MoveError::Index(IndexError::Full(text())),
        ];
        let load = PartLoad {
            owner: who,
            low: None,
            high: Some(vec![1]),
            ops: 7,
            keys: vec![vec![], vec![2; 9]],
        };
        let mut outcomes = vec![
            Ok(Reply::Value(None)),
            Ok(Reply::Value(Some(vec![1, 2]))),
            Ok(Reply::Done(true)),
            Ok(Reply::Exchanged(Exchange::Done, None)),
            Ok(Reply::Exchanged(Exchange::Differs, Some(vec![]))),
            Ok(Reply::Pairs(pairs.clone())),
            Ok(Reply::Part(pairs)),
            Ok(Reply::Pairs(Entries::new())),
            Ok(Reply::WrongOwner { epoch: 3 }),
            Ok(Reply::Gone),
            Ok(Reply::Moved(Ok(8))),
            Ok(Reply::Load(vec![load.clone(), load])),
            Ok(Reply::Load(vec![])),
        ];
        outcomes.extend(moves.map(|error| Ok(Reply::Moved(Err(error)))));
        outcomes.extend(errors.map(Err));
        outcomes
    }

    #[test]
    fn every_message_comes_back_and_none_that_is_cut_or_longer() {
        for (number, request) in (7..).zip(requests()) {
            let bytes = encode_request(number, 11, &request).unwrap();
            let (head, content) = bytes.split_at(REQUEST_HEAD_BYTES);
            let head = head.try_into().unwrap();
            assert_eq!(decode_request_head(head), Ok((content.len(), number, 11)));
            assert_eq!(decode_request(content), Ok(request));
            assert!((0..content.len()).all(|end| decode_request(&content[..end]).is_err()));
            assert!(decode_request(&[content, &[0]].concat()).is_err());
        }
        for (number, outcome) in (7..).zip(outcomes()) {
            let bytes = encode_reply(number, &outcome);
            let (head, content) = bytes.split_at(REPLY_HEAD_BYTES);
            let head = head.try_into().unwrap();
            assert_eq!(decode_reply_head(head), Ok((content.len(), number)));
            assert_eq!(decode_reply(content), Ok(outcome));
        }
        assert!(decode_request(&[]).is_err() && decode_reply(&[99]).is_err());
    }

    #[test]
    fn a_length_beyond_the_most_is_refused_before_anything_is_read() {
        let mut head = [0; REQUEST_HEAD_BYTES];
        head[..4].copy_from_slice(&(CONTENT_MAX as u32 + 1).to_le_bytes());
        assert!(decode_request_head(&head).is_err());
        let request = Request::Get { key: vec![0; CONTENT_MAX] };
        assert_eq!(encode_request(1, 1, &request), Err(TooLong(CONTENT_MAX + 5)));
        // A count that is not backed by bytes.
        let load = [&[10][..], &[0; 8], &[0, 0], &[0; 8], &[255; 4]].concat();
        assert!(decode_reply(&load).is_err());
    }

    #[test]
    fn a_long_scan_comes_in_parts_and_long_errors_are_cut() {
        let mut pairs = Entries::new();
        (0..9).for_each(|number| pairs.push(&[number], &vec![7; 1 << 20]));
        let bytes = encode_reply(1, &Ok(Reply::Pairs(pairs)));
        assert!(bytes.len() <= PAIRS_BYTES + 100);
        match decode_reply(&bytes[REPLY_HEAD_BYTES..]) {
            Ok(Ok(Reply::Part(part))) => assert_eq!(part.len(), 3),
            other => panic!("{other:?}"),
        }
        let text = "\u{20ac}".repeat(TEXT_MAX);
        let bytes = encode_reply(1, &Err(IndexError::Full(text)));
        match decode_reply(&bytes[REPLY_HEAD_BYTES..]) {
            Ok(Err(IndexError::Full(text))) => assert_eq!(text.len(), TEXT_MAX / 3 * 3),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn greetings_come_back_and_others_are_told_apart() {
        let (from, to) = (Incarnation(3), Incarnation(4));
        let hello = Hello { version: VERSION, pool: 1 << 100, from, to };
        assert_eq!(Hello::decode(&hello.encode()), Some(hello));
        let other = Hello { version: 9, ..hello };
        assert_eq!(Hello::decode(&other.encode()).map(|hello| hello.version), Some(9));
        for entry in [Entry::LetIn, Entry::OtherPool, Entry::OtherServer, Entry::Full] {
            let welcome = Welcome { version: VERSION, entry, pool: 5, me: from };
            assert_eq!(Welcome::decode(&welcome.encode()), Some(welcome));
            let newer = Welcome { version: 2, ..welcome };
            let told = Welcome::decode(&newer.encode()).map(|welcome| welcome.entry);
            assert_eq!(told, Some(Entry::OtherVersion));
        }
        let mut bytes = hello.encode();
        bytes[60] = 1;
        assert_eq!(Hello::decode(&bytes), None, "a byte out of place");
        assert_eq!(
            Hello::decode(b"GET / HTTP/1.1\r\nHost: farleaf.example\r\nUser-Agent: a-browser-at-"),
            None
        );
        assert_eq!(Hello::decode(&Hello { from: Incarnation(0), ..hello }.encode()), None);
    }
}
