//! Strings: commands on single keys and values.

use farleaf::{Content, Expiry, Operation, Record, RecordChange, RecordError, RecordValue, Table};
use smallvec::smallvec;

use super::records::{TimeOption, at, holds_records, need_records};
use super::{Call, Command, Failure, NO_INTEGER, Operations, Plan, SYNTAX, Shape, integer, lower};
use crate::shared::Shared;
use farleaf_resp::number;
use farleaf_resp::replies::Replies;

const GROUP: &str = "string";
const ONE: [i32; 3] = [1, 1, 1];
const ALL: [i32; 3] = [1, -1, 1];
const PAIRS: [i32; 3] = [1, -1, 2];
const EACH: &str = "not atomic: each key by itself";

/// Bytes of the largest value.
const VALUE_BYTES_MAX: usize = 1 << 20;
const TOO_LONG: &str = "ERR string exceeds maximum allowed size (1 MiB)";
const NO_FLOAT: &str = "ERR value is not a valid float";

pub(super) const COMMANDS: &[Command] = &[
    Command::new("get", 2, GROUP, "Returns the value of a key.", get).reads(ONE),
    Command::new("set", -3, GROUP, "Sets the value of a key.", set)
        .writes(ONE)
        .differs("EX, PX, EXAT and PXAT in tables of records"),
    Command::new("setnx", 3, GROUP, "Sets the value of a key that is absent.", setnx).writes(ONE),
    Command::new("getset", 3, GROUP, "Sets a value and returns the one before.", getset)
        .writes(ONE),
    Command::new("getdel", 2, GROUP, "Removes a key and returns its value.", getdel).writes(ONE),
    Command::new("mget", -2, GROUP, "Returns the values of keys.", mget)
        .reads(ALL)
        .differs("not a snapshot of all keys"),
    Command::new("mset", -3, GROUP, "Sets the values of keys.", mset).writes(PAIRS).differs(EACH),
    Command::new("del", -2, "generic", "Removes keys.", del).writes(ALL).differs(EACH),
    Command::new("unlink", -2, "generic", "Removes keys.", del).writes(ALL).differs(EACH),
    Command::new("delifeq", 3, GROUP, "Removes a key that has this value.", delifeq).writes(ONE),
    Command::new("exists", -2, "generic", "Counts the keys that are present.", exists).reads(ALL),
    Command::new("touch", -2, "generic", "Counts the keys that are present.", exists).reads(ALL),
    Command::new("type", 2, "generic", "Tells the type of a value.", kind).reads(ONE),
    Command::new("strlen", 2, GROUP, "Returns the length of a value.", strlen).reads(ONE),
    Command::new("getrange", 4, GROUP, "Returns a part of a value.", getrange).reads(ONE),
    Command::new("substr", 4, GROUP, "Returns a part of a value.", getrange).reads(ONE),
    Command::new("setrange", 4, GROUP, "Overwrites a part of a value.", setrange).writes(ONE),
    Command::new("append", 3, GROUP, "Appends to a value.", append).writes(ONE),
    Command::new("incr", 2, GROUP, "Adds one to a number.", |call| add(call, Ok(1))).writes(ONE),
    Command::new("decr", 2, GROUP, "Takes one from a number.", |call| add(call, Ok(-1)))
        .writes(ONE),
    Command::new("incrby", 3, GROUP, "Adds to a number.", |call| add(call, integer(call.args[2])))
        .writes(ONE),
    Command::new("decrby", 3, GROUP, "Takes from a number.", decrby).writes(ONE),
    Command::new("incrbyfloat", 3, GROUP, "Adds to a number with a fraction.", incrbyfloat)
        .writes(ONE)
        .differs("counts with 64 bits"),
];

fn get(call: &mut Call<'_>) -> Result<Plan, String> {
    Ok(Plan::Reads(smallvec![Operation::Get(call.key())], Shape::Value))
}

fn mget(call: &mut Call<'_>) -> Result<Plan, String> {
    Ok(Plan::Reads(gets(call), Shape::Values))
}

fn exists(call: &mut Call<'_>) -> Result<Plan, String> {
    Ok(Plan::Reads(gets(call), Shape::Count))
}

fn gets(call: &Call<'_>) -> Operations {
    call.rest().iter().map(|key| Operation::Get(key.to_vec())).collect()
}

fn kind(call: &mut Call<'_>) -> Result<Plan, String> {
    Ok(Plan::Reads(smallvec![Operation::Get(call.key())], Shape::Type))
}

fn strlen(call: &mut Call<'_>) -> Result<Plan, String> {
    Ok(Plan::Reads(smallvec![Operation::Get(call.key())], Shape::Length))
}

fn getrange(call: &mut Call<'_>) -> Result<Plan, String> {
    let (from, to) = (integer(call.args[2])?, integer(call.args[3])?);
    Ok(Plan::Reads(smallvec![Operation::Get(call.key())], Shape::Part(from, to)))
}

/// The options of `SET`.
#[derive(Default)]
struct SetOptions {
    is_new: bool,
    is_there: bool,
    equals: Option<Vec<u8>>,
    returns: bool,
    keeps_expiry: bool,
    /// The moment of expiry, in milliseconds since 1970.
    expires_ms: Option<u64>,
}

fn set(call: &mut Call<'_>) -> Result<Plan, String> {
    let mut options = SetOptions::default();
    let mut time = TimeOption::default();
    let mut rest = call.args[3..].iter();
    while let Some(word) = rest.next() {
        match lower(word).as_str() {
            "nx" => options.is_new = true,
            "xx" => options.is_there = true,
            "get" => options.returns = true,
            "ifeq" => options.equals = Some(rest.next().ok_or(SYNTAX)?.to_vec()),
            "keepttl" => options.keeps_expiry = true,
            word => time.take(word, &mut rest)?,
        }
    }
    if time.is_given() && options.keeps_expiry {
        return Err(SYNTAX.to_owned());
    }
    let conditions = [options.is_new, options.is_there, options.equals.is_some()];
    if conditions.iter().filter(|is_set| **is_set).count() > 1 {
        return Err(SYNTAX.to_owned());
    }
    if time.is_given() {
        need_records(call, "SET with an expiry")?;
        options.expires_ms = time.later("set")?;
    }
    let (key, value) = (call.key(), call.args[2].to_vec());
    let has_condition = conditions.contains(&true);
    let keeps_expiry = options.keeps_expiry && holds_records(call);
    if options.returns || has_condition && (options.expires_ms.is_some() || keeps_expiry) {
        return Ok(set_by_looking(key, value, options));
    }
    if let Some(moment) = options.expires_ms {
        return Ok(Plan::Writes(
            smallvec![Operation::InsertWith(key, value, at(moment))],
            Shape::Ok,
        ));
    }
    if keeps_expiry {
        return Ok(Plan::Writes(
            smallvec![Operation::InsertWith(key, value, Expiry::Keep)],
            Shape::Ok,
        ));
    }
    Ok(match options {
        SetOptions { is_new: true, .. } => {
            Plan::Writes(smallvec![Operation::InsertNew(key, value)], Shape::OkIfDone)
        }
        SetOptions { is_there: true, .. } => {
            Plan::Writes(smallvec![Operation::Update(key, value)], Shape::OkIfDone)
        }
        SetOptions { equals: Some(expected), .. } => {
            let change =
                Operation::CompareExchange { key, expected: Some(expected), new: Some(value) };
            Plan::Writes(smallvec![change], Shape::OkIfDone)
        }
        SetOptions { .. } => Plan::Writes(smallvec![Operation::Insert(key, value)], Shape::Ok),
    })
}

impl SetOptions {
    /// Tells whether the condition holds for a key that holds this string (`None`: no string), or is there at all.
    fn hold(&self, held: Option<&[u8]>, is_there: bool) -> bool {
        match &self.equals {
            Some(expected) => held == Some(expected.as_slice()),
            None => !(self.is_new && is_there || self.is_there && !is_there),
        }
    }

    /// The moment of expiry in place of that of a record.
    fn moment(&self, held: Option<u64>) -> Option<u64> {
        if self.keeps_expiry { held } else { self.expires_ms }
    }
}

/// `SET` with `GET`, or with a condition and an expiry: looks at what the key holds and changes it, as one step.
fn set_by_looking(key: Vec<u8>, value: Vec<u8>, options: SetOptions) -> Plan {
    alone(move |table, replies| {
        let (before, is_done) = match table.info().content {
            Content::Raw => set_raw(table, &key, &value, &options)?,
            Content::Records => set_record(table, &key, &value, &options)?,
        };
        match (options.returns, is_done) {
            (true, _) => replies.value(before.as_deref()),
            (false, true) => replies.simple("OK"),
            (false, false) => replies.null(),
        }
        Ok(())
    })
}

/// The string before, and whether the key has got the new one.
type Looked = farleaf::Result<(Option<Vec<u8>>, bool)>;

fn set_raw(table: &Table, key: &[u8], value: &[u8], options: &SetOptions) -> Looked {
    let mut is_done = false;
    let before = table.update_with(key, |held| {
        is_done = options.hold(held, held.is_some());
        if is_done { Some(value.to_vec()) } else { held.map(<[u8]>::to_vec) }
    })?;
    Ok((before, is_done))
}

fn set_record(table: &Table, key: &[u8], value: &[u8], options: &SetOptions) -> Looked {
    let mut is_done = false;
    let before = table.update_record(key, |held| {
        let string = match held.map(|record| &record.value) {
            Some(RecordValue::String(string)) => Some(&string[..]),
            None => None,
            // `GET` and `IFEQ` need a string; without them `SET` replaces a hash as well.
            Some(_) if options.returns || options.equals.is_some() => {
                let (key, holds, wanted) = (key.to_vec(), "hash", "string");
                return Err(RecordError::WrongKind { key, holds, wanted });
            }
            Some(_) => None,
        };
        is_done = options.hold(string, held.is_some());
        let expires_ms = options.moment(held.and_then(|record| record.expires_ms));
        Ok(match is_done {
            true => RecordChange::Put(Record { expires_ms, ..Record::string(value) }),
            false => RecordChange::Leave,
        })
    })?;
    let before = before.and_then(|record| match record.value {
        RecordValue::String(string) => Some(string),
        _ => None,
    });
    Ok((before, is_done))
}

fn setnx(call: &mut Call<'_>) -> Result<Plan, String> {
    let insert = Operation::InsertNew(call.key(), call.args[2].to_vec());
    Ok(Plan::Writes(smallvec![insert], Shape::OneIfDone))
}

fn getset(call: &mut Call<'_>) -> Result<Plan, String> {
    let options = SetOptions { returns: true, ..SetOptions::default() };
    Ok(set_by_looking(call.key(), call.args[2].to_vec(), options))
}

fn getdel(call: &mut Call<'_>) -> Result<Plan, String> {
    let key = call.key();
    Ok(alone(move |table, replies| {
        let before = table.update_with(&key, |_| None)?;
        replies.value(before.as_deref());
        Ok(())
    }))
}

fn mset(call: &mut Call<'_>) -> Result<Plan, String> {
    if !call.rest().len().is_multiple_of(2) {
        return Err("ERR wrong number of arguments for 'mset' command".to_owned());
    }
    let pairs = call.rest().chunks_exact(2);
    let inserts = pairs.map(|pair| Operation::Insert(pair[0].to_vec(), pair[1].to_vec()));
    Ok(Plan::Writes(inserts.collect(), Shape::Ok))
}

fn del(call: &mut Call<'_>) -> Result<Plan, String> {
    let removes = call.rest().iter().map(|key| Operation::Remove(key.to_vec()));
    Ok(Plan::Writes(removes.collect(), Shape::CountDone))
}

fn delifeq(call: &mut Call<'_>) -> Result<Plan, String> {
    let (key, expected) = (call.key(), Some(call.args[2].to_vec()));
    let change = Operation::CompareExchange { key, expected, new: None };
    Ok(Plan::Writes(smallvec![change], Shape::OneIfDone))
}

fn append(call: &mut Call<'_>) -> Result<Plan, String> {
    let (key, more) = (call.key(), call.args[2].to_vec());
    Ok(change(key, move |held| {
        let value = [held.unwrap_or_default(), &more].concat();
        let length = value.len() as i64;
        Ok((value, length))
    }))
}

fn setrange(call: &mut Call<'_>) -> Result<Plan, String> {
    let at = integer(call.args[2])?;
    let Ok(at) = usize::try_from(at) else {
        return Err("ERR offset is out of range".to_owned());
    };
    let (key, part) = (call.key(), call.args[3].to_vec());
    if part.is_empty() {
        return Ok(Plan::Reads(smallvec![Operation::Get(key)], Shape::Length));
    }
    if at.saturating_add(part.len()) > VALUE_BYTES_MAX {
        return Err(TOO_LONG.to_owned());
    }
    Ok(change(key, move |held| {
        let mut value = held.unwrap_or_default().to_vec();
        value.resize(value.len().max(at + part.len()), 0);
        value[at..at + part.len()].copy_from_slice(&part);
        let length = value.len() as i64;
        Ok((value, length))
    }))
}

fn add(call: &mut Call<'_>, by: Result<i64, String>) -> Result<Plan, String> {
    let (key, by) = (call.key(), by?);
    Ok(change(key, move |held| {
        let number = held.map_or(Some(0), number).ok_or(NO_INTEGER)?;
        let sum = number.checked_add(by).ok_or("ERR increment or decrement would overflow")?;
        Ok((sum.to_string().into_bytes(), sum))
    }))
}

fn decrby(call: &mut Call<'_>) -> Result<Plan, String> {
    let by = integer(call.args[2])?;
    let by = by.checked_neg().ok_or_else(|| "ERR decrement would overflow".to_owned());
    add(call, by)
}

fn incrbyfloat(call: &mut Call<'_>) -> Result<Plan, String> {
    let by = float(call.args[2])?;
    let key = call.key();
    Ok(alone(move |table, replies| {
        let mut outcome = Err(String::new());
        table.update_with(&key, |held| {
            let sum = held.map_or(Ok(0.0), float).and_then(|number| {
                let sum = number + by;
                let refusal = "ERR increment would produce NaN or Infinity";
                if sum.is_finite() { Ok(sum.to_string()) } else { Err(refusal.to_owned()) }
            });
            outcome = sum;
            match &outcome {
                Ok(text) => Some(text.clone().into_bytes()),
                Err(_) => held.map(<[u8]>::to_vec),
            }
        })?;
        replies.bulk(outcome.map_err(Failure::Text)?.as_bytes());
        Ok(())
    }))
}

pub(super) fn float(text: &[u8]) -> Result<f64, String> {
    let parsed = std::str::from_utf8(text).ok().filter(|text| !text.starts_with(' '));
    let number = parsed.and_then(|text| text.parse::<f64>().ok()).filter(|number| !number.is_nan());
    number.ok_or_else(|| NO_FLOAT.to_owned())
}

fn alone(work: impl FnOnce(&Table, &mut Replies) -> Result<(), Failure> + 'static) -> Plan {
    Plan::Alone(Box::new(|table: &Table, _: &Shared, replies: &mut Replies| work(table, replies)))
}

/// A change of a value that answers with a number.
fn change(
    key: Vec<u8>,
    change: impl Fn(Option<&[u8]>) -> Result<(Vec<u8>, i64), String> + 'static,
) -> Plan {
    alone(move |table, replies| {
        let mut outcome = Ok(0);
        table.update_with(&key, |held| match change(held) {
            Ok((value, number)) => {
                outcome = Ok(number);
                Some(value)
            }
            Err(text) => {
                outcome = Err(text);
                held.map(<[u8]>::to_vec)
            }
        })?;
        replies.integer(outcome.map_err(Failure::Text)?);
        Ok(())
    })
}
