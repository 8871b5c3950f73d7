//! Message codec: encodes operations and their replies, as `docs/design/compute.md` specifies.
//!
//! All integers are little-endian. A request is the address of the table's meta object, a word, and then the
//! operation. Nothing here trusts the other side: it refuses what is not exactly of this form, and allocates
//! nothing beyond what has come.

use std::ops::Bound;

use farleaf_fabric::{CALL_BYTES_MAX, GlobalAddr, Incarnation};

use super::{OpReply, Request};
use crate::compute::migration::{MoveError, PartLoad};
use crate::index::Exchange;
use crate::op::Op;
use crate::{Entries, IndexError};

/// Bytes of pairs after which a scan's reply is cut off.
const PAIRS_BYTES: usize = 4 << 20;
/// Most bytes of an error's text.
const TEXT_MAX: usize = 4 << 10;

/// Bytes that are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at byte {at}: {what}")]
pub struct Malformed {
    /// The place of the fault.
    pub at: usize,
    /// The fault.
    pub what: &'static str,
}

/// Encodes a request for the table with this meta object.
pub fn encode_request(table: GlobalAddr, request: &Request) -> Vec<u8> {
    let mut out = table.word().to_le_bytes().to_vec();
    put_request(&mut out, request);
    out
}

/// Encodes a reply. A scan's reply says if it leaves pairs out. A reply that is too long to travel becomes an
/// error that says so.
pub fn encode_reply(outcome: &Result<OpReply, IndexError>) -> Vec<u8> {
    let encode = |outcome: &Result<OpReply, IndexError>| {
        let mut out = Vec::new();
        put_outcome(&mut out, outcome);
        out
    };
    let bytes = encode(outcome);
    if bytes.len() <= CALL_BYTES_MAX {
        return bytes;
    }
    let why =
        format!("a reply of {} bytes: {CALL_BYTES_MAX} are the most that travel", bytes.len());
    encode(&Err(IndexError::OutcomeUnknown(why)))
}

fn put_u64(out: &mut Vec<u8>, number: u64) {
    out.extend(number.to_le_bytes());
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    // A content whose length does not fit is longer than a content may be.
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

fn put_op(out: &mut Vec<u8>, op: &Op) {
    let mut with_value = |tag, key: &[u8], value: &[u8]| {
        out.push(tag);
        put_bytes(out, key);
        put_bytes(out, value);
    };
    match op {
        Op::Insert { key, value } => with_value(2, key, value),
        Op::Update { key, value } => with_value(3, key, value),
        Op::Upsert { key, value } => with_value(4, key, value),
        Op::Get { key } => {
            out.push(1);
            put_bytes(out, key);
        }
        Op::Remove { key } => {
            out.push(5);
            put_bytes(out, key);
        }
        Op::CompareExchange { key, expected, new } => {
            out.push(6);
            put_bytes(out, key);
            put_optional(out, expected.as_deref());
            put_optional(out, new.as_deref());
        }
        Op::Scan { from, to, reverse, limit } => {
            out.push(7);
            put_bound(out, from);
            put_bound(out, to);
            out.push((*reverse).into());
            put_u64(out, *limit as u64);
        }
    }
}

fn put_request(out: &mut Vec<u8>, request: &Request) {
    match request {
        Request::Op(op) => put_op(out, op),
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

fn put_outcome(out: &mut Vec<u8>, outcome: &Result<OpReply, IndexError>) {
    match outcome {
        Ok(OpReply::Value(value)) => {
            out.push(1);
            put_optional(out, value.as_deref());
        }
        Ok(OpReply::Done(done)) => out.extend([2, (*done).into()]),
        Ok(OpReply::Exchanged(exchange, held)) => {
            out.extend([3, (*exchange == Exchange::Done).into()]);
            put_optional(out, held.as_deref());
        }
        Ok(OpReply::Pairs(pairs)) => put_pairs(out, 4, pairs),
        Ok(OpReply::Part(pairs)) => put_pairs(out, 5, pairs),
        Ok(OpReply::WrongOwner { epoch }) => {
            out.push(6);
            put_u64(out, *epoch);
        }
        Ok(OpReply::Moved(Ok(epoch))) => {
            out.push(7);
            put_u64(out, *epoch);
        }
        Ok(OpReply::Moved(Err(error))) => {
            out.push(8);
            put_move_error(out, error);
        }
        Ok(OpReply::Load(loads)) => {
            out.push(9);
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
            out.push(10);
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
        IndexError::NoTable(text) => (7, text),
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

/// The meta object's address of a request's table, and the operation.
///
/// # Errors
/// [`Malformed`].
pub fn decode_request(content: &[u8]) -> Result<(GlobalAddr, Request), Malformed> {
    let mut input = Input { content, at: 0 };
    let table = GlobalAddr::from_word(input.u64()?);
    let table = table.ok_or(Malformed { at: 0, what: "no address of a table" })?;
    let request = match input.u8()? {
        8 => Request::Hello,
        9 => Request::Learn { epoch: input.u64()? },
        10 => Request::Give {
            low: input.optional()?,
            high: input.optional()?,
            to: Incarnation(input.u64()?),
        },
        11 => Request::Share { to: Incarnation(input.u64()?) },
        12 => Request::Load { decay: input.flag()? },
        kind => Request::Op(input.op(kind)?),
    };
    input.end()?;
    Ok((table, request))
}

/// The content of a reply.
///
/// # Errors
/// [`Malformed`].
pub fn decode_reply(content: &[u8]) -> Result<Result<OpReply, IndexError>, Malformed> {
    let mut input = Input { content, at: 0 };
    let reply = match input.u8()? {
        1 => OpReply::Value(input.optional()?),
        2 => OpReply::Done(input.flag()?),
        3 => {
            let exchange = if input.flag()? { Exchange::Done } else { Exchange::Differs };
            OpReply::Exchanged(exchange, input.optional()?)
        }
        4 => OpReply::Pairs(input.pairs()?),
        5 => OpReply::Part(input.pairs()?),
        6 => OpReply::WrongOwner { epoch: input.u64()? },
        7 => OpReply::Moved(Ok(input.u64()?)),
        8 => OpReply::Moved(Err(input.move_error()?)),
        9 => OpReply::Load(input.loads()?),
        10 => {
            let error = input.error()?;
            input.end()?;
            return Ok(Err(error));
        }
        _ => return Err(input.wrong("a reply of an unknown kind")),
    };
    input.end()?;
    Ok(Ok(reply))
}

/// The rest of a content.
struct Input<'a> {
    content: &'a [u8],
    at: usize,
}

impl<'a> Input<'a> {
    fn wrong(&self, what: &'static str) -> Malformed {
        Malformed { at: self.at.saturating_sub(1), what }
    }

    fn op(&mut self, kind: u8) -> Result<Op, Malformed> {
        Ok(match kind {
            1 => Op::Get { key: self.bytes()? },
            2 => Op::Insert { key: self.bytes()?, value: self.bytes()? },
            3 => Op::Update { key: self.bytes()?, value: self.bytes()? },
            4 => Op::Upsert { key: self.bytes()?, value: self.bytes()? },
            5 => Op::Remove { key: self.bytes()? },
            6 => Op::CompareExchange {
                key: self.bytes()?,
                expected: self.optional()?,
                new: self.optional()?,
            },
            7 => Op::Scan {
                from: self.bound()?,
                to: self.bound()?,
                reverse: self.flag()?,
                limit: self.size()?,
            },
            _ => return Err(self.wrong("an operation of an unknown kind")),
        })
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
        let bytes = self.take(4)?;
        Ok(u32::from_le_bytes(std::array::from_fn(|at| bytes[at])))
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        let bytes = self.take(8)?;
        Ok(u64::from_le_bytes(std::array::from_fn(|at| bytes[at])))
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
            7 => IndexError::NoTable,
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
    use farleaf_fabric::ServerId;

    use super::*;

    fn requests() -> Vec<Request> {
        let (key, value) = (|| b"key".to_vec(), || b"value".to_vec());
        let ops = [
            Op::Get { key: key() },
            Op::Insert { key: key(), value: value() },
            Op::Update { key: Vec::new(), value: value() },
            Op::Upsert { key: key(), value: Vec::new() },
            Op::Remove { key: key() },
            Op::CompareExchange { key: key(), expected: None, new: Some(value()) },
            Op::CompareExchange { key: key(), expected: Some(Vec::new()), new: None },
            Op::Scan {
                from: Bound::Included(key()),
                to: Bound::Excluded(value()),
                reverse: true,
                limit: usize::MAX,
            },
            Op::Scan { from: Bound::Unbounded, to: Bound::Unbounded, reverse: false, limit: 0 },
        ];
        let others = [
            Request::Hello,
            Request::Learn { epoch: 9 },
            Request::Give { low: None, high: Some(key()), to: Incarnation(5) },
            Request::Share { to: Incarnation(6) },
            Request::Load { decay: true },
        ];
        ops.map(Request::Op).into_iter().chain(others).collect()
    }

    fn outcomes() -> Vec<Result<OpReply, IndexError>> {
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
            IndexError::NoTable(text()),
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
            Ok(OpReply::Value(None)),
            Ok(OpReply::Value(Some(vec![1, 2]))),
            Ok(OpReply::Done(true)),
            Ok(OpReply::Exchanged(Exchange::Done, None)),
            Ok(OpReply::Exchanged(Exchange::Differs, Some(vec![]))),
            Ok(OpReply::Pairs(pairs.clone())),
            Ok(OpReply::Part(pairs)),
            Ok(OpReply::Pairs(Entries::new())),
            Ok(OpReply::WrongOwner { epoch: 3 }),
            Ok(OpReply::Moved(Ok(8))),
            Ok(OpReply::Load(vec![load.clone(), load])),
            Ok(OpReply::Load(vec![])),
        ];
        outcomes.extend(moves.map(|error| Ok(OpReply::Moved(Err(error)))));
        outcomes.extend(errors.map(Err));
        outcomes
    }

    #[test]
    fn every_message_comes_back_and_none_that_is_cut_or_longer() {
        let table = GlobalAddr::new(ServerId(3), 4_096);
        for request in requests() {
            let bytes = encode_request(table, &request);
            assert_eq!(decode_request(&bytes), Ok((table, request)));
            assert!((0..bytes.len()).all(|end| decode_request(&bytes[..end]).is_err()));
            assert!(decode_request(&[&bytes[..], &[0]].concat()).is_err());
        }
        for outcome in outcomes() {
            assert_eq!(decode_reply(&encode_reply(&outcome)), Ok(outcome));
        }
        assert!(decode_request(&[]).is_err() && decode_reply(&[99]).is_err());
    }

    #[test]
    fn a_count_takes_no_memory_that_no_bytes_stand_for() {
        let load = [&[9][..], &[0; 8], &[0, 0], &[0; 8], &[255; 4]].concat();
        assert!(decode_reply(&load).is_err());
    }

    #[test]
    fn a_long_scan_comes_in_parts_and_long_errors_are_cut() {
        let mut pairs = Entries::new();
        (0..9).for_each(|number| pairs.push(&[number], &vec![7; 1 << 20]));
        let bytes = encode_reply(&Ok(OpReply::Pairs(pairs)));
        assert!(bytes.len() <= PAIRS_BYTES + 100);
        match decode_reply(&bytes) {
            Ok(Ok(OpReply::Part(part))) => assert_eq!(part.len(), 3),
            other => panic!("{other:?}"),
        }
        let text = "\u{20ac}".repeat(TEXT_MAX);
        match decode_reply(&encode_reply(&Err(IndexError::Full(text)))) {
            Ok(Err(IndexError::Full(text))) => assert_eq!(text.len(), TEXT_MAX / 3 * 3),
            other => panic!("{other:?}"),
        }
        let long = encode_reply(&Ok(OpReply::Value(Some(vec![0; CALL_BYTES_MAX]))));
        assert!(matches!(decode_reply(&long), Ok(Err(IndexError::OutcomeUnknown(_)))));
    }
}
