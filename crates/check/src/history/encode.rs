//! Encoding: writes operations as lines.

use std::ops::Bound;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::{Answer, Op};

/// Key and value of the initial content.
pub(super) fn initial(key: &[u8], value: &[u8]) -> Map<String, Value> {
    object(pair("initial", key, value))
}

fn pair(op: &str, key: &[u8], value: &[u8]) -> Value {
    json!({ "op": op, "key": base64(key), "value": base64(value) })
}

/// Client, call and time of an operation's begin.
pub(super) fn call(client: u32, call: &Op, from_ns: u64) -> Map<String, Value> {
    let fields = match call {
        Op::Get { key } => json!({ "op": "get", "key": base64(key) }),
        Op::Insert { key, value } => pair("insert", key, value),
        Op::Update { key, value } => pair("update", key, value),
        Op::Upsert { key, value } => pair("upsert", key, value),
        Op::Remove { key } => json!({ "op": "remove", "key": base64(key) }),
        Op::CompareExchange { key, expected, new } => json!({
            "op": "compare_exchange",
            "key": base64(key),
            "expected": option(expected.as_deref()),
            "value": option(new.as_deref()),
        }),
        Op::Scan { from, to, reverse, limit } => json!({
            "op": "scan",
            "from": bound(from),
            "to": bound(to),
            "reverse": reverse,
            "limit": if *limit == usize::MAX { Value::Null } else { json!(limit) },
        }),
    };
    let mut line = object(json!({ "client": client }));
    line.extend(object(fields));
    line.insert("from_ns".to_owned(), json!(from_ns));
    line
}

/// Adds the end of an operation.
pub(super) fn answer(line: &mut Map<String, Value>, answer: Option<(u64, &Answer)>) {
    line.insert("to_ns".to_owned(), json!(answer.map(|(to_ns, _)| to_ns)));
    let Some((_, answer)) = answer else { return };
    let result = match answer {
        Answer::Value(value) => option(value.as_deref()),
        Answer::Flag(flag) => json!(flag),
        Answer::Exchanged { done, held } => {
            json!({ "done": done, "held": option(held.as_deref()) })
        }
        Answer::Pairs(pairs) => pairs
            .iter()
            .map(|(key, value)| json!([base64(key), base64(value)]))
            .collect::<Vec<_>>()
            .into(),
        Answer::Nothing => json!({ "failed": true }),
    };
    line.insert("result".to_owned(), result);
}

/// The fields of a `json!` object.
pub(super) fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

fn bound(bound: &Bound<Vec<u8>>) -> Value {
    match bound {
        Bound::Included(key) => json!({ "included": base64(key) }),
        Bound::Excluded(key) => json!({ "excluded": base64(key) }),
        Bound::Unbounded => Value::Null,
    }
}

fn option(bytes: Option<&[u8]>) -> Value {
    json!(bytes.map(base64))
}

fn base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}
