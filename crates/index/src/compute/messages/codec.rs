//! Message codec: encodes operations and their replies, as `docs/design/compute.md` specifies.
//!
//! All integers are little-endian. A request is the address of the table's meta object, a word, and then the
//! operation. Nothing here trusts the other side: it refuses what is not exactly of this form, and allocates
//! nothing beyond what has come.

use std::ops::Bound;

use farleaf_fabric::codec::{DecodeError, Reader, Writer};
use farleaf_fabric::{CALL_BYTES_MAX, GlobalAddr, Incarnation};

use super::{OpReply, Request};
use crate::compute::migration::{MoveError, PartLoad};
use crate::op::Op;
use crate::{Entries, Exchange, IndexError};

/// Bytes of pairs after which a scan's reply is cut off.
const PAIRS_BYTES: usize = 4 << 20;
/// The kind of a scan.
const SCAN: u8 = 7;
/// Most bytes of an error's text.
const TEXT_MAX: usize = 4 << 10;

/// Encodes a request for the table with this meta object.
pub fn encode_request(table: GlobalAddr, request: &Request) -> Vec<u8> {
    let mut out = Writer::default();
    put_request(out.u64(table.word()), request);
    out.finish()
}

/// Encodes a reply. A scan's reply says if it leaves pairs out. A reply that is too long to travel becomes an
/// error that says so.
pub fn encode_reply(outcome: &Result<OpReply, IndexError>) -> Vec<u8> {
    let encode = |outcome: &Result<OpReply, IndexError>| {
        let mut out = Writer::default();
        put_outcome(&mut out, outcome);
        out.finish()
    };
    let bytes = encode(outcome);
    if bytes.len() <= CALL_BYTES_MAX {
        return bytes;
    }
    let why =
        format!("a reply of {} bytes is too long: the limit is {CALL_BYTES_MAX}", bytes.len());
    encode(&Err(IndexError::OutcomeUnknown(why)))
}

fn put_bound<'w>(out: &'w mut Writer, bound: &Bound<Vec<u8>>) -> &'w mut Writer {
    match bound {
        Bound::Unbounded => out.u8(0),
        Bound::Included(key) => out.u8(1).sized(key),
        Bound::Excluded(key) => out.u8(2).sized(key),
    }
}

fn put_op(out: &mut Writer, op: &Op) {
    match op {
        Op::Get { key } => out.u8(1).sized(key),
        Op::Insert { key, value } => out.u8(2).sized(key).sized(value),
        Op::Update { key, value } => out.u8(3).sized(key).sized(value),
        Op::Upsert { key, value } => out.u8(4).sized(key).sized(value),
        Op::Remove { key } => out.u8(5).sized(key),
        Op::CompareExchange { key, expected, new } => {
            out.u8(6).sized(key).optional(expected.as_deref()).optional(new.as_deref())
        }
        Op::Scan { from, to, reverse, limit } => {
            put_bound(put_bound(out.u8(7), from), to).flag(*reverse).u64(*limit as u64)
        }
    };
}

fn put_request(out: &mut Writer, request: &Request) {
    match request {
        Request::Op(op) => {
            put_op(out, op);
            out
        }
        Request::Hello => out.u8(8),
        Request::Learn { epoch } => out.u8(9).u64(*epoch),
        Request::Give { low, high, to } => {
            out.u8(10).optional(low.as_deref()).optional(high.as_deref()).u64(to.0)
        }
        Request::Share { to } => out.u8(11).u64(to.0),
        Request::Load { decay } => out.u8(12).flag(*decay),
        Request::Batch(ops) => {
            out.u8(13);
            ops.iter().for_each(|op| put_op(out, op));
            out
        }
    };
}

fn put_outcome<'w>(out: &'w mut Writer, outcome: &Result<OpReply, IndexError>) -> &'w mut Writer {
    match outcome {
        Ok(OpReply::Value(value)) => out.u8(1).optional(value.as_deref()),
        Ok(OpReply::Done(done)) => out.u8(2).flag(*done),
        Ok(OpReply::Exchanged(exchange, held)) => {
            out.u8(3).flag(*exchange == Exchange::Done).optional(held.as_deref())
        }
        Ok(OpReply::Pairs(pairs)) => put_pairs(out, 4, pairs),
        Ok(OpReply::Part(pairs)) => put_pairs(out, 5, pairs),
        Ok(OpReply::WrongOwner { epoch }) => out.u8(6).u64(*epoch),
        Ok(OpReply::Moved(Ok(epoch))) => out.u8(7).u64(*epoch),
        Ok(OpReply::Moved(Err(error))) => put_move_error(out.u8(8), error),
        Ok(OpReply::Load(loads)) => loads.iter().fold(out.u8(9), |out, load| {
            out.u64(load.owner.0).optional(load.low.as_deref()).optional(load.high.as_deref());
            out.u64(load.ops).u32(load.keys.len() as u32);
            load.keys.iter().fold(out, |out, key| out.sized(key))
        }),
        Err(error) => put_error(out.u8(10), error),
        Ok(OpReply::Batch(replies)) => {
            replies.iter().fold(out.u8(11), |out, reply| put_outcome(out, reply))
        }
    }
}

fn put_pairs<'w>(out: &'w mut Writer, tag: u8, pairs: &Entries) -> &'w mut Writer {
    let mut bytes = 1;
    let first = pairs.iter().take_while(|(key, value)| {
        let fits = bytes == 1 || bytes + key.len() + value.len() <= PAIRS_BYTES;
        bytes += 8 + key.len() + value.len();
        fits
    });
    let count = first.count();
    let out = out.u8(if count < pairs.len() { 5 } else { tag });
    pairs.iter().take(count).fold(out, |out, (key, value)| out.sized(key).sized(value))
}

fn put_error<'w>(out: &'w mut Writer, error: &IndexError) -> &'w mut Writer {
    let (tag, text) = match error {
        IndexError::Invalid(text) => (1, text),
        IndexError::Unavailable(text) => (2, text),
        IndexError::OutcomeUnknown(text) => (3, text),
        IndexError::Full(text) => (4, text),
        IndexError::Corrupt(text) => (5, text),
        IndexError::Closed(text) => (6, text),
        IndexError::NoTable(text) => (7, text),
    };
    let end = (0..=text.len().min(TEXT_MAX)).rev().find(|end| text.is_char_boundary(*end));
    out.u8(tag).sized(&text.as_bytes()[..end.unwrap_or(0)])
}

fn put_move_error<'w>(out: &'w mut Writer, error: &MoveError) -> &'w mut Writer {
    match error {
        MoveError::OutOfOrder => out.u8(1),
        MoveError::NoKey => out.u8(2),
        MoveError::NoBoundary(number) => out.u8(3).u64(*number as u64),
        MoveError::UnknownServer(who) => out.u8(4).u64(who.0),
        MoveError::DeadTarget(who) => out.u8(5).u64(who.0),
        MoveError::NotOwned => out.u8(6),
        MoveError::NobodyElse => out.u8(7),
        MoveError::Busy => out.u8(8),
        MoveError::CalledOff => out.u8(9),
        MoveError::Index(error) => put_error(out.u8(11), error),
    }
}

/// Decodes a request: the address of its table's meta object, and the operation.
///
/// # Errors
/// The content is no request.
pub fn decode_request(content: &[u8]) -> Result<(GlobalAddr, Request), DecodeError> {
    Reader::whole(content, |input| {
        let table = GlobalAddr::from_word(input.u64()?);
        let table = table.ok_or(input.expected("a table's address"))?;
        let request = match input.u8()? {
            8 => Request::Hello,
            9 => Request::Learn { epoch: input.u64()? },
            10 => Request::Give {
                low: input.optional()?.map(Vec::from),
                high: input.optional()?.map(Vec::from),
                to: Incarnation(input.u64()?),
            },
            11 => Request::Share { to: Incarnation(input.u64()?) },
            12 => Request::Load { decay: input.flag()? },
            13 => Request::Batch(batch(input)?),
            kind => Request::Op(op(input, kind)?),
        };
        Ok((table, request))
    })
}

/// Decodes a reply.
///
/// # Errors
/// The content is no reply.
pub fn decode_reply(content: &[u8]) -> Result<Result<OpReply, IndexError>, DecodeError> {
    Reader::whole(content, |input| {
        Ok(Ok(match input.u8()? {
            4 => OpReply::Pairs(pairs(input)?),
            5 => OpReply::Part(pairs(input)?),
            7 => OpReply::Moved(Ok(input.u64()?)),
            8 => OpReply::Moved(Err(move_error(input)?)),
            9 => OpReply::Load(loads(input)?),
            11 => {
                let mut replies = Vec::new();
                while !input.is_empty() {
                    let kind = input.u8()?;
                    replies.push(outcome(input, kind)?);
                }
                OpReply::Batch(replies)
            }
            kind => return outcome(input, kind),
        }))
    })
}

/// The outcome of an operation on a key.
fn outcome(input: &mut Reader<'_>, kind: u8) -> Result<Result<OpReply, IndexError>, DecodeError> {
    Ok(Ok(match kind {
        1 => OpReply::Value(input.optional()?.map(Vec::from)),
        2 => OpReply::Done(input.flag()?),
        3 => {
            let exchange = if input.flag()? { Exchange::Done } else { Exchange::Differs };
            OpReply::Exchanged(exchange, input.optional()?.map(Vec::from))
        }
        6 => OpReply::WrongOwner { epoch: input.u64()? },
        10 => return error(input).map(Err),
        _ => return Err(input.expected("the kind of a reply")),
    }))
}

/// Operations up to the end.
fn batch(input: &mut Reader<'_>) -> Result<Vec<Op>, DecodeError> {
    let mut ops = Vec::new();
    while !input.is_empty() {
        let kind = input.u8()?;
        input.ensure(kind != SCAN, "a batch without scans")?;
        ops.push(op(input, kind)?);
    }
    Ok(ops)
}

fn op(input: &mut Reader<'_>, kind: u8) -> Result<Op, DecodeError> {
    Ok(match kind {
        1 => Op::Get { key: input.sized()?.into() },
        2 => Op::Insert { key: input.sized()?.into(), value: input.sized()?.into() },
        3 => Op::Update { key: input.sized()?.into(), value: input.sized()?.into() },
        4 => Op::Upsert { key: input.sized()?.into(), value: input.sized()?.into() },
        5 => Op::Remove { key: input.sized()?.into() },
        6 => Op::CompareExchange {
            key: input.sized()?.into(),
            expected: input.optional()?.map(Vec::from),
            new: input.optional()?.map(Vec::from),
        },
        7 => Op::Scan {
            from: bound(input)?,
            to: bound(input)?,
            reverse: input.flag()?,
            limit: size(input)?,
        },
        _ => return Err(input.expected("the kind of a request")),
    })
}

fn size(input: &mut Reader<'_>) -> Result<usize, DecodeError> {
    input.u64()?.try_into().map_err(|_| input.expected("a number of this machine's width"))
}

fn bound(input: &mut Reader<'_>) -> Result<Bound<Vec<u8>>, DecodeError> {
    Ok(match input.u8()? {
        0 => Bound::Unbounded,
        1 => Bound::Included(input.sized()?.into()),
        2 => Bound::Excluded(input.sized()?.into()),
        _ => return Err(input.expected("the kind of a bound")),
    })
}

fn pairs(input: &mut Reader<'_>) -> Result<Entries, DecodeError> {
    let mut pairs = Entries::new();
    while !input.is_empty() {
        pairs.push(input.sized()?, input.sized()?);
    }
    Ok(pairs)
}

fn loads(input: &mut Reader<'_>) -> Result<Vec<PartLoad>, DecodeError> {
    let mut loads = Vec::new();
    while !input.is_empty() {
        let owner = Incarnation(input.u64()?);
        let (low, high) = (input.optional()?.map(Vec::from), input.optional()?.map(Vec::from));
        let (ops, count) = (input.u64()?, input.u32()?);
        // Each takes 4 bytes at least, so that there are no more than have come.
        let keys = (0..count).map(|_| input.sized().map(Vec::from)).collect::<Result<_, _>>()?;
        loads.push(PartLoad { owner, low, high, ops, keys });
    }
    Ok(loads)
}

fn error(input: &mut Reader<'_>) -> Result<IndexError, DecodeError> {
    let make = match input.u8()? {
        1 => IndexError::Invalid,
        2 => IndexError::Unavailable,
        3 => IndexError::OutcomeUnknown,
        4 => IndexError::Full,
        5 => IndexError::Corrupt,
        6 => IndexError::Closed,
        7 => IndexError::NoTable,
        _ => return Err(input.expected("the kind of an error")),
    };
    let text = input.sized()?;
    input.ensure(text.len() <= TEXT_MAX, "a shorter text")?;
    let text = str::from_utf8(text).map_err(|_| input.expected("text in UTF-8"))?;
    Ok(make(text.to_owned()))
}

fn move_error(input: &mut Reader<'_>) -> Result<MoveError, DecodeError> {
    Ok(match input.u8()? {
        1 => MoveError::OutOfOrder,
        2 => MoveError::NoKey,
        3 => MoveError::NoBoundary(size(input)?),
        4 => MoveError::UnknownServer(Incarnation(input.u64()?)),
        5 => MoveError::DeadTarget(Incarnation(input.u64()?)),
        6 => MoveError::NotOwned,
        7 => MoveError::NobodyElse,
        8 => MoveError::Busy,
        9 => MoveError::CalledOff,
        11 => MoveError::Index(error(input)?),
        _ => return Err(input.expected("the kind of a move's error")),
    })
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
        let some = [Op::Get { key: key() }, Op::Remove { key: value() }];
        let others = others.into_iter().chain([Request::Batch(some.to_vec())]);
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
            Ok(OpReply::Batch(vec![
                Ok(OpReply::Value(Some(vec![1]))),
                Ok(OpReply::Done(false)),
                Ok(OpReply::WrongOwner { epoch: 4 }),
                Err(IndexError::Full(text())),
                Ok(OpReply::Exchanged(Exchange::Done, None)),
            ])),
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
            assert_eq!(decode_request(&bytes), Ok((table, request.clone())));
            // A batch goes on to the end of its message.
            let may_end = |end| match (decode_request(&bytes[..end]), &request) {
                (Ok((_, Request::Batch(part))), Request::Batch(ops)) => part == ops[..part.len()],
                (cut, _) => cut.is_err(),
            };
            assert!((0..bytes.len()).all(may_end));
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
