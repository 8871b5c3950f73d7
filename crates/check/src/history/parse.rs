//! Parsing: reads operations from lines.

use std::ops::Bound;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

use super::{Answer, LineFault, Op};

/// Content of one line.
pub(super) enum HistoryLine {
    Header,
    Initial {
        key: Vec<u8>,
        value: Vec<u8>,
    },
    Whole {
        client: u32,
        call: Op,
        from_ns: u64,
        answer: Option<(u64, Answer)>,
    },
    Begin {
        number: u64,
        client: u32,
        call: Op,
        from_ns: u64,
    },
    /// The result, which is read by the kind of its call.
    End {
        number: u64,
        to_ns: u64,
        result: Value,
    },
}

/// Version of the format.
pub(super) const VERSION: u64 = 1;

/// The fields of a line that are not yet taken.
struct Fields(Map<String, Value>);

impl Fields {
    fn take(&mut self, field: &'static str) -> Result<Value, LineFault> {
        self.0.remove(field).ok_or(LineFault::Missing(field))
    }

    fn number(&mut self, field: &'static str) -> Result<u64, LineFault> {
        let expected = "a whole number from 0 to 2^64 - 1";
        self.take(field)?.as_u64().ok_or(LineFault::Field { field, expected })
    }

    fn bytes(&mut self, field: &'static str) -> Result<Vec<u8>, LineFault> {
        bytes(&self.take(field)?, field)
    }

    fn option(&mut self, field: &'static str) -> Result<Option<Vec<u8>>, LineFault> {
        option(&self.take(field)?, field)
    }

    fn bound(&mut self, field: &'static str) -> Result<Bound<Vec<u8>>, LineFault> {
        let wrong = LineFault::Field {
            field,
            expected: "null, {\"included\": key} or {\"excluded\": key}",
        };
        match self.take(field)? {
            Value::Null => Ok(Bound::Unbounded),
            Value::Object(ends) if ends.len() == 1 => {
                if let Some(key) = ends.get("included") {
                    Ok(Bound::Included(bytes(key, field)?))
                } else if let Some(key) = ends.get("excluded") {
                    Ok(Bound::Excluded(bytes(key, field)?))
                } else {
                    Err(wrong)
                }
            }
            _ => Err(wrong),
        }
    }

    fn client(&mut self) -> Result<u32, LineFault> {
        let wrong = LineFault::Field { field: "client", expected: "below 2^32" };
        self.number("client")?.try_into().map_err(|_| wrong)
    }

    fn call(&mut self, op: &str) -> Result<Op, LineFault> {
        Ok(match op {
            "get" => Op::Get { key: self.bytes("key")? },
            "insert" => Op::Insert { key: self.bytes("key")?, value: self.bytes("value")? },
            "update" => Op::Update { key: self.bytes("key")?, value: self.bytes("value")? },
            "upsert" => Op::Upsert { key: self.bytes("key")?, value: self.bytes("value")? },
            "remove" => Op::Remove { key: self.bytes("key")? },
            "compare_exchange" => Op::CompareExchange {
                key: self.bytes("key")?,
                expected: self.option("expected")?,
                new: self.option("value")?,
            },
            "scan" => {
                let (from, to) = (self.bound("from")?, self.bound("to")?);
                let wrong = LineFault::Field { field: "reverse", expected: "true or false" };
                let reverse = self.take("reverse")?.as_bool().ok_or(wrong)?;
                let wrong = LineFault::Field { field: "limit", expected: "null or a number" };
                let limit = match self.take("limit")? {
                    Value::Null => usize::MAX,
                    limit => {
                        limit.as_u64().and_then(|limit| usize::try_from(limit).ok()).ok_or(wrong)?
                    }
                };
                Op::Scan { from, to, reverse, limit }
            }
            _ => return Err(LineFault::UnknownOp(op.to_owned())),
        })
    }

    fn done<T>(self, what: T) -> Result<T, LineFault> {
        match self.0.into_iter().next() {
            None => Ok(what),
            Some((field, _)) => Err(LineFault::UnknownField(field)),
        }
    }
}

/// Reads a line.
pub(super) fn line(value: Value) -> Result<HistoryLine, LineFault> {
    let Value::Object(fields) = value else { return Err(LineFault::NotObject) };
    let mut fields = Fields(fields);
    if fields.0.contains_key("end") {
        let number = fields.number("end")?;
        let to_ns = fields.number("to_ns")?;
        let result = fields.take("result")?;
        return fields.done(HistoryLine::End { number, to_ns, result });
    }
    let wrong = LineFault::Field { field: "op", expected: "a string" };
    let op = match fields.take("op")? {
        Value::String(op) => op,
        _ => return Err(wrong),
    };
    match &op[..] {
        "history" => {
            let version = fields.number("version")?;
            if version != VERSION {
                return Err(LineFault::Version(version));
            }
            return fields.done(HistoryLine::Header);
        }
        "initial" => {
            let (key, value) = (fields.bytes("key")?, fields.bytes("value")?);
            return fields.done(HistoryLine::Initial { key, value });
        }
        _ => {}
    }
    let call = fields.call(&op)?;
    let client = fields.client()?;
    let from_ns = fields.number("from_ns")?;
    if fields.0.contains_key("begin") {
        let number = fields.number("begin")?;
        return fields.done(HistoryLine::Begin { number, client, call, from_ns });
    }
    let answer = if fields.0.get("to_ns") == Some(&Value::Null) {
        fields.take("to_ns")?;
        match fields.0.remove("result") {
            None | Some(Value::Null) => None,
            Some(_) => {
                let expected = "null or left out, as it must be where to_ns is null";
                return Err(LineFault::Field { field: "result", expected });
            }
        }
    } else {
        let to_ns = fields.number("to_ns")?;
        let result = fields.take("result")?;
        Some((to_ns, answer(&call, from_ns, to_ns, &result)?))
    };
    fields.done(HistoryLine::Whole { client, call, from_ns, answer })
}

/// Reads the result of `call`.
pub(super) fn answer(
    call: &Op,
    from_ns: u64,
    to_ns: u64,
    result: &Value,
) -> Result<Answer, LineFault> {
    const FIELD: &str = "result";
    if to_ns < from_ns {
        return Err(LineFault::Times { from_ns, to_ns });
    }
    let wrong = |expected| LineFault::Field { field: FIELD, expected };
    if let Value::Object(fields) = result
        && fields.contains_key("failed")
    {
        let is_plain = fields.len() == 1 && fields["failed"] == true;
        return if is_plain { Ok(Answer::Nothing) } else { Err(wrong("{\"failed\": true}")) };
    }
    match call {
        Op::Get { .. } => Ok(Answer::Value(option(result, FIELD)?)),
        Op::Insert { .. } | Op::Update { .. } | Op::Upsert { .. } | Op::Remove { .. } => {
            result.as_bool().map(Answer::Flag).ok_or(wrong("true or false"))
        }
        Op::CompareExchange { .. } => {
            let expected = "{\"done\": true or false, \"held\": null or a value}";
            let fields = result.as_object().filter(|fields| fields.len() == 2);
            let done = fields.and_then(|fields| fields.get("done")?.as_bool());
            let held = fields.and_then(|fields| fields.get("held"));
            let (Some(done), Some(held)) = (done, held) else { return Err(wrong(expected)) };
            Ok(Answer::Exchanged { done, held: option(held, FIELD)? })
        }
        Op::Scan { .. } => {
            let expected = "an array of [key, value]";
            let pairs = result.as_array().ok_or(wrong(expected))?;
            let pair = |pair: &Value| match pair.as_array().map(Vec::as_slice) {
                Some([key, value]) => Ok((bytes(key, FIELD)?, bytes(value, FIELD)?)),
                _ => Err(wrong(expected)),
            };
            Ok(Answer::Pairs(pairs.iter().map(pair).collect::<Result<_, _>>()?))
        }
    }
}

fn bytes(value: &Value, field: &'static str) -> Result<Vec<u8>, LineFault> {
    let text = value.as_str().ok_or(LineFault::Field { field, expected: "a base64 string" })?;
    let expected = "base64 with the standard alphabet and padding";
    STANDARD.decode(text).map_err(|_| LineFault::Field { field, expected })
}

fn option(value: &Value, field: &'static str) -> Result<Option<Vec<u8>>, LineFault> {
    if value.is_null() { Ok(None) } else { bytes(value, field).map(Some) }
}
