//! Keyspace: commands on all keys of the selected table.

use std::ops::Bound;

use farleaf::{Prefix, Table};

use super::{Call, Command, Failure, Plan, SYNTAX, check_reply, integer, lower};
use crate::pattern::{self, PATTERN_BYTES_MAX};
use crate::shared::Shared;
use farleaf_resp::replies::Replies;

const GROUP: &str = "generic";
/// Keys that a call of `SCAN` looks at: without `COUNT`, and at most.
const COUNT: i64 = 10;
const COUNT_MAX: i64 = 10_000;
/// Keys that `KEYS` returns, at most.
const KEYS_MAX: usize = 1_000_000;

pub(super) const COMMANDS: &[Command] = &[
    Command::new("scan", -2, GROUP, "Returns some keys, and a cursor that goes on.", scan)
        .reads([0, 0, 0])
        .differs("in the order of the keys, each once; a cursor is known until 16,384 newer ones"),
    Command::new("keys", 2, GROUP, "Returns the keys that match a pattern.", keys)
        .reads([0, 0, 0])
        .differs("at most 1,000,000 keys"),
    Command::new("dbsize", 1, "server", "Counts the keys.", dbsize)
        .reads([0, 0, 0])
        .differs("a walk of the table; of more than 10,000 keys, one of the last minute"),
    Command::new("flushdb", -1, "server", "Removes all keys.", flush)
        .writes([0, 0, 0])
        .differs("with --allow-flush alone; each key by itself"),
];

fn scan(call: &mut Call<'_>) -> Result<Plan, String> {
    let cursor = std::str::from_utf8(call.args[1]).ok().and_then(|text| text.parse::<u64>().ok());
    let cursor = cursor.ok_or("ERR invalid cursor")?;
    let (mut count, mut wanted, mut kind) = (COUNT, None, None);
    let mut rest = call.args[2..].iter();
    while let Some(word) = rest.next() {
        let value = rest.next().ok_or(SYNTAX)?;
        match lower(word).as_str() {
            "match" => wanted = Some(checked(value)?),
            "count" => count = integer(value)?,
            "type" => kind = Some(lower(value)),
            _ => return Err(SYNTAX.to_owned()),
        }
    }
    if count < 1 {
        return Err(SYNTAX.to_owned());
    }
    let count = count.min(COUNT_MAX) as usize;
    let place = call.client.table;
    Ok(Plan::Alone(Box::new(move |table: &Table, shared: &Shared, replies: &mut Replies| {
        let after = match cursor {
            0 => None,
            cursor => Some(shared.cursor(place, cursor).ok_or_else(|| {
                Failure::Text(format!(
                    "ERR cursor {cursor} is not known here any more: start again with 0"
                ))
            })?),
        };
        let prefix = wanted.as_deref().map(pattern::prefix).unwrap_or_default();
        let from = match after {
            Some(after) => Bound::Excluded(after),
            None => Bound::Included(prefix.clone()),
        };
        let (mut found, mut last, mut looked) = (Vec::new(), None, 0);
        for pair in table.range_strings((from, Bound::Unbounded)) {
            let (key, string) = pair?;
            if !key.starts_with(&prefix) {
                last = None;
                break;
            }
            looked += 1;
            let is = if string.is_some() { "string" } else { "hash" };
            if kind.as_deref().is_none_or(|kind| kind == is)
                && wanted.as_deref().is_none_or(|wanted| pattern::matches(wanted, &key))
            {
                found.push(key.clone());
            }
            last = Some(key);
            if looked == count {
                break;
            }
        }
        let last = last.filter(|_| looked == count);
        let next = last.map_or(0, |last| shared.new_cursor(place, last));
        replies.array(2);
        replies.bulk(next.to_string().as_bytes());
        replies.array(found.len());
        found.iter().for_each(|key| replies.bulk(key));
        Ok(())
    })))
}

fn checked(pattern: &[u8]) -> Result<Vec<u8>, String> {
    if pattern.len() > PATTERN_BYTES_MAX {
        let bytes = pattern.len();
        return Err(format!("ERR a pattern of {bytes} bytes: at most {PATTERN_BYTES_MAX}"));
    }
    Ok(pattern.to_vec())
}

fn keys(call: &mut Call<'_>) -> Result<Plan, String> {
    let wanted = checked(call.args[1])?;
    Ok(Plan::Alone(Box::new(move |table: &Table, _: &Shared, replies: &mut Replies| {
        let (mut found, mut bytes) = (Vec::new(), 0);
        let prefix = pattern::prefix(&wanted);
        for pair in table.range_strings(Prefix(&prefix)) {
            let (key, _) = pair?;
            if pattern::matches(&wanted, &key) {
                if found.len() == KEYS_MAX {
                    return Err(Failure::Text(format!(
                        "ERR more than {KEYS_MAX} keys match: use SCAN"
                    )));
                }
                bytes = check_reply(bytes + key.len(), "use SCAN")?;
                found.push(key);
            }
        }
        replies.array(found.len());
        found.iter().for_each(|key| replies.bulk(key));
        Ok(())
    })))
}

fn dbsize(call: &mut Call<'_>) -> Result<Plan, String> {
    let place = call.client.table;
    Ok(Plan::Alone(Box::new(move |table: &Table, shared: &Shared, replies: &mut Replies| {
        replies.integer(shared.count_keys(place, table)? as i64);
        Ok(())
    })))
}

fn flush(call: &mut Call<'_>) -> Result<Plan, String> {
    if !call.shared.options.allow_flush {
        return Err("ERR FLUSHDB is off: start the gateway with --allow-flush".to_owned());
    }
    Ok(Plan::Alone(Box::new(|table: &Table, _: &Shared, replies: &mut Replies| {
        table.remove_range(..)?;
        replies.simple("OK");
        Ok(())
    })))
}
