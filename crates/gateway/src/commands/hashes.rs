//! Hashes: commands on the fields of a hash, which are seen and changed as one.

use farleaf::{Hash, Operation, Record, RecordChange, RecordValue};
use smallvec::smallvec;

use super::records::{ChangeFailure, RecordReply, change_record, hash_in, name_of, need_records};
use super::strings::float;
use super::{Call, Command, Plan, SYNTAX, Shape, integer, lower, wrong_arity};
use crate::pattern::PATTERN_BYTES_MAX;
use farleaf_resp::number;
use farleaf_resp::replies::Replies;

const GROUP: &str = "hash";
const ONE: [i32; 3] = [1, 1, 1];
const NO_INTEGER: &str = "ERR hash value is not an integer";
const NO_FLOAT: &str = "ERR hash value is not a float";

pub(super) const COMMANDS: &[Command] = &[
    Command::new("hset", -4, GROUP, "Sets fields of a hash, all at one moment.", |call| {
        set(call, |is_new, replies| replies.integer(is_new))
    })
    .writes(ONE)
    .needs_records(),
    Command::new("hmset", -4, GROUP, "Sets fields of a hash, all at one moment.", |call| {
        set(call, |_, replies| replies.simple("OK"))
    })
    .writes(ONE)
    .needs_records(),
    Command::new("hsetnx", 4, GROUP, "Sets a field that is absent.", set_new)
        .writes(ONE)
        .needs_records(),
    Command::new("hget", 3, GROUP, "Returns the value of a field.", |call| {
        let field = call.args[2].to_vec();
        look(call, RecordReply::Field(field))
    })
    .reads(ONE)
    .needs_records(),
    Command::new("hmget", -3, GROUP, "Returns the values of fields, of one moment.", |call| {
        let fields = call.args[2..].iter().map(|field| field.to_vec()).collect();
        look(call, RecordReply::Fields(fields))
    })
    .reads(ONE)
    .needs_records(),
    Command::new("hgetall", 2, GROUP, "Returns all fields and values, of one moment.", |call| {
        look(call, RecordReply::All)
    })
    .reads(ONE)
    .orders_by_name(),
    Command::new("hkeys", 2, GROUP, "Returns the names of all fields.", |call| {
        look(call, RecordReply::Names)
    })
    .reads(ONE)
    .orders_by_name(),
    Command::new("hvals", 2, GROUP, "Returns the values of all fields.", |call| {
        look(call, RecordReply::Values)
    })
    .reads(ONE)
    .orders_by_name(),
    Command::new("hlen", 2, GROUP, "Counts the fields of a hash.", |call| {
        look(call, RecordReply::Len)
    })
    .reads(ONE)
    .needs_records(),
    Command::new("hexists", 3, GROUP, "Tells whether a hash has a field.", |call| {
        let field = call.args[2].to_vec();
        look(call, RecordReply::Has(field))
    })
    .reads(ONE)
    .needs_records(),
    Command::new("hstrlen", 3, GROUP, "Returns the length of the value of a field.", |call| {
        let field = call.args[2].to_vec();
        look(call, RecordReply::FieldLen(field))
    })
    .reads(ONE)
    .needs_records(),
    Command::new("hscan", -3, GROUP, "Returns the fields that match a pattern.", scan)
        .reads(ONE)
        .differs("in tables of records; all fields at once, in the order of their names"),
    Command::new("hdel", -3, GROUP, "Removes fields, all at one moment.", remove)
        .writes(ONE)
        .needs_records(),
    Command::new("hincrby", 4, GROUP, "Adds to the number in a field.", add)
        .writes(ONE)
        .needs_records(),
    Command::new("hincrbyfloat", 4, GROUP, "Adds to a field's number with a fraction.", add_float)
        .writes(ONE)
        .differs("in tables of records; counts with 64 bits"),
];

fn look(call: &mut Call<'_>, reply: RecordReply) -> Result<Plan, String> {
    need_records(call, &name_of(call))?;
    Ok(Plan::Reads(smallvec![Operation::Record(call.key())], Shape::Record(reply)))
}

/// Work on the fields of a hash: `change` changes them, and tells an answer, which `write` writes. The moment of expiry
/// stays, a hash without fields is removed, and one that stays as it is costs a get alone.
fn change<T: 'static>(
    call: &mut Call<'_>,
    change: impl Fn(&mut Hash) -> Result<T, ChangeFailure> + 'static,
    write: impl FnOnce(T, &mut Replies) + 'static,
) -> Result<Plan, String> {
    need_records(call, &name_of(call))?;
    let change = move |held: Option<&Record>| {
        let before = hash_in(held)?;
        let mut hash = before.cloned().unwrap_or_default();
        let answer = change(&mut hash)?;
        if before.map_or(hash.is_empty(), |before| *before == hash) {
            return Ok((RecordChange::Leave, answer));
        }
        let expires_ms = held.and_then(|record| record.expires_ms);
        let record = Record { value: RecordValue::Hash(hash), expires_ms };
        Ok((RecordChange::Put(record), answer))
    };
    Ok(change_record(call.key(), change, write))
}

fn set(
    call: &mut Call<'_>,
    write: impl FnOnce(i64, &mut Replies) + 'static,
) -> Result<Plan, String> {
    if !call.args.len().is_multiple_of(2) {
        return Err(wrong_arity(&lower(call.args[0])));
    }
    let pair = |pair: &[&[u8]]| (pair[0].to_vec(), pair[1].to_vec());
    let fields: Vec<_> = call.args[2..].chunks_exact(2).map(pair).collect();
    let set = move |hash: &mut Hash| {
        let mut is_new = 0;
        for (name, value) in &fields {
            is_new += i64::from(hash.insert(name.clone(), value.clone()).is_none());
        }
        Ok(is_new)
    };
    change(call, set, write)
}

fn set_new(call: &mut Call<'_>) -> Result<Plan, String> {
    let (name, value) = (call.args[2].to_vec(), call.args[3].to_vec());
    let set = move |hash: &mut Hash| {
        let is_new = !hash.contains_key(&name);
        if is_new {
            hash.insert(name.clone(), value.clone());
        }
        Ok(is_new)
    };
    change(call, set, |is_new, replies| replies.integer(is_new.into()))
}

fn remove(call: &mut Call<'_>) -> Result<Plan, String> {
    let names: Vec<Vec<u8>> = call.args[2..].iter().map(|name| name.to_vec()).collect();
    let remove =
        move |hash: &mut Hash| Ok(names.iter().filter(|name| hash.remove(*name).is_some()).count());
    change(call, remove, |removed, replies| replies.integer(removed as i64))
}

fn add(call: &mut Call<'_>) -> Result<Plan, String> {
    let (name, by) = (call.args[2].to_vec(), integer(call.args[3])?);
    let add = move |hash: &mut Hash| {
        let held = hash.get(&name).map_or(Some(0), |value| number(value)).ok_or(NO_INTEGER)?;
        let sum = held.checked_add(by).ok_or("ERR increment or decrement would overflow")?;
        hash.insert(name.clone(), sum.to_string().into_bytes());
        Ok(sum)
    };
    change(call, add, |sum, replies| replies.integer(sum))
}

fn add_float(call: &mut Call<'_>) -> Result<Plan, String> {
    let (name, by) = (call.args[2].to_vec(), float(call.args[3])?);
    if by.is_infinite() {
        return Err("ERR value is NaN or Infinity".to_owned());
    }
    let add = move |hash: &mut Hash| {
        let held = hash.get(&name).map_or(Ok(0.0), |value| float(value)).map_err(|_| NO_FLOAT)?;
        let sum = held + by;
        if !sum.is_finite() {
            return Err("ERR increment would produce NaN or Infinity".into());
        }
        let text = sum.to_string().into_bytes();
        hash.insert(name.clone(), text.clone());
        Ok(text)
    };
    change(call, add, |text, replies| replies.bulk(&text))
}

fn scan(call: &mut Call<'_>) -> Result<Plan, String> {
    let cursor = std::str::from_utf8(call.args[2]).ok().and_then(|text| text.parse::<u64>().ok());
    cursor.ok_or("ERR invalid cursor")?;
    let (mut pattern, mut has_values) = (None, true);
    let mut rest = call.args[3..].iter();
    while let Some(word) = rest.next() {
        match lower(word).as_str() {
            "novalues" => has_values = false,
            "match" => pattern = Some(rest.next().ok_or(SYNTAX)?.to_vec()),
            "count" if integer(rest.next().ok_or(SYNTAX)?)? < 1 => return Err(SYNTAX.to_owned()),
            "count" => {}
            _ => return Err(SYNTAX.to_owned()),
        }
    }
    if let Some(bytes) = pattern.as_ref().map(Vec::len).filter(|bytes| *bytes > PATTERN_BYTES_MAX) {
        return Err(format!("ERR a pattern of {bytes} bytes: at most {PATTERN_BYTES_MAX}"));
    }
    look(call, RecordReply::Scan { pattern, has_values })
}
