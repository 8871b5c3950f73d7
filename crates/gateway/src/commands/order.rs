//! Order: ranges and nearest keys of the selected table.
//!
//! Redis ranges over a sorted set whose scores are equal. Here the table itself is that set: its name is the key of
//! `ZRANGE ... BYLEX` and its like. `FARLEAF.*` name no key, and return values as well.

use std::ops::Bound;

use farleaf::Table;

use super::{Call, Command, Failure, NO_INTEGER, Plan, SYNTAX, check_reply, integer, lower};
use crate::lex::{Ends, LexBound, NO_BOUND, range};
use crate::shared::Shared;
use farleaf_resp::replies::Replies;

const SORTED: &str = "sorted-set";
const FARLEAF: &str = "farleaf";
const OF_TABLE: &str = "over the keys of the selected table, whose name is the key";

pub(super) const COMMANDS: &[Command] = &[
    Command::new("zrange", -4, SORTED, "Returns the keys of a range.", zrange)
        .reads([1, 1, 1])
        .differs("with BYLEX alone, over the keys of the selected table"),
    Command::new("zrangebylex", -4, SORTED, "Returns the keys of a range.", |call| {
        by_lex(call, false)
    })
    .reads([1, 1, 1])
    .differs(OF_TABLE),
    Command::new(
        "zrevrangebylex",
        -4,
        SORTED,
        "Returns the keys of a range, the last first.",
        |call| by_lex(call, true),
    )
    .reads([1, 1, 1])
    .differs(OF_TABLE),
    Command::new("zlexcount", 4, SORTED, "Counts the keys of a range.", zlexcount)
        .reads([1, 1, 1])
        .differs(OF_TABLE),
    Command::new("zremrangebylex", 4, SORTED, "Removes the keys of a range.", zremrangebylex)
        .writes([1, 1, 1])
        .differs("over the keys of the selected table; each key by itself"),
    Command::new("farleaf.range", -3, FARLEAF, "Returns keys and values of a range.", own_range)
        .reads([0, 0, 0]),
    Command::new(
        "farleaf.floor",
        2,
        FARLEAF,
        "Returns the pair at or in front of a key.",
        |call| nearest(call, |table, key| table.floor(key)),
    )
    .reads([1, 1, 1]),
    Command::new("farleaf.ceiling", 2, FARLEAF, "Returns the pair at or behind a key.", |call| {
        nearest(call, |table, key| table.ceiling(key))
    })
    .reads([1, 1, 1]),
    Command::new(
        "farleaf.longestprefix",
        2,
        FARLEAF,
        "Returns the pair whose key is the longest prefix of a key.",
        |call| nearest(call, |table, key| table.longest_prefix(key)),
    )
    .reads([1, 1, 1]),
    Command::new("farleaf.longestrun", -2, FARLEAF, "Counts keys up to the first absent one.", run)
        .reads([1, -1, 1]),
];

/// A range that a client asks for.
struct WantedRange {
    min: Vec<u8>,
    max: Vec<u8>,
    is_reverse: bool,
    /// Pairs that are left out at first, and returned at most.
    skip: i64,
    limit: i64,
}

impl WantedRange {
    /// All pairs between two bounds, in order.
    fn all(min: &[u8], max: &[u8]) -> Self {
        WantedRange { min: min.to_vec(), max: max.to_vec(), is_reverse: false, skip: 0, limit: -1 }
    }

    /// Calls `take` with the range's pairs in their order, as far as the limit goes; a hash has no value.
    fn each(
        &self,
        table: &Table,
        mut take: impl FnMut(Vec<u8>, Option<Vec<u8>>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let text = || Failure::Text(NO_BOUND.to_owned());
        let min = LexBound::parse(&self.min).ok_or_else(text)?;
        let max = LexBound::parse(&self.max).ok_or_else(text)?;
        let Some((from, to)) = range(min, max) else { return Ok(()) };
        if self.skip < 0 {
            return Ok(());
        }
        let limit = usize::try_from(self.limit).unwrap_or(usize::MAX);
        let pairs = table.range_strings(owned(from, to));
        let mut put = |pair: farleaf::Result<(Vec<u8>, Option<Vec<u8>>)>| {
            pair.map_err(Failure::from).and_then(|(key, value)| take(key, value))
        };
        match self.is_reverse {
            true => pairs.rev().skip(self.skip as usize).take(limit).try_for_each(&mut put),
            false => pairs.skip(self.skip as usize).take(limit).try_for_each(&mut put),
        }
    }
}

fn owned(from: Bound<&[u8]>, to: Bound<&[u8]>) -> Ends<Vec<u8>> {
    (from.map(<[u8]>::to_vec), to.map(<[u8]>::to_vec))
}

/// Refuses a key that is not the name of the selected table.
fn check_name(call: &Call<'_>) -> Result<(), String> {
    let name = call.shared.table_name(call.client.table);
    if call.args[1] == name.as_bytes() {
        return Ok(());
    }
    Err(format!(
        "ERR sorted sets are not supported; to range over the keys of the table, name it: \"{name}\""
    ))
}

fn zrange(call: &mut Call<'_>) -> Result<Plan, String> {
    let mut asked = WantedRange::all(call.args[2], call.args[3]);
    let mut is_by_lex = false;
    let mut rest = call.args[4..].iter();
    while let Some(word) = rest.next() {
        match lower(word).as_str() {
            "bylex" => is_by_lex = true,
            "rev" => asked.is_reverse = true,
            "limit" => {
                asked.skip = integer(rest.next().ok_or(SYNTAX)?)?;
                asked.limit = integer(rest.next().ok_or(SYNTAX)?)?;
            }
            "byscore" | "withscores" => {
                return Err("ERR keys have no scores: range over them with BYLEX".to_owned());
            }
            _ => return Err(SYNTAX.to_owned()),
        }
    }
    if !is_by_lex {
        return Err("ERR keys have no ranks: range over them with BYLEX".to_owned());
    }
    if asked.is_reverse {
        std::mem::swap(&mut asked.min, &mut asked.max);
    }
    check_name(call)?;
    keys(asked)
}

fn by_lex(call: &mut Call<'_>, is_reverse: bool) -> Result<Plan, String> {
    let asked = WantedRange::all(call.args[2], call.args[3]);
    let mut asked = WantedRange { is_reverse, ..asked };
    if is_reverse {
        std::mem::swap(&mut asked.min, &mut asked.max);
    }
    match &call.args[4..] {
        [] => {}
        [word, skip, limit] if lower(word) == "limit" => {
            (asked.skip, asked.limit) = (integer(skip)?, integer(limit)?);
        }
        _ => return Err(SYNTAX.to_owned()),
    }
    check_name(call)?;
    keys(asked)
}

/// Answers with the keys of a range.
fn keys(asked: WantedRange) -> Result<Plan, String> {
    Ok(Plan::Alone(Box::new(move |table: &Table, _: &Shared, replies: &mut Replies| {
        let (mut found, mut bytes) = (Vec::new(), 0);
        asked.each(table, |key, _| {
            bytes = check_reply(bytes + key.len(), "give a smaller LIMIT")?;
            found.push(key);
            Ok(())
        })?;
        replies.array(found.len());
        found.iter().for_each(|key| replies.bulk(key));
        Ok(())
    })))
}

fn bounds(call: &Call<'_>) -> Result<Option<Ends<Vec<u8>>>, String> {
    let min = LexBound::parse(call.args[2]).ok_or(NO_BOUND)?;
    let max = LexBound::parse(call.args[3]).ok_or(NO_BOUND)?;
    check_name(call)?;
    Ok(range(min, max).map(|(from, to)| owned(from, to)))
}

fn zlexcount(call: &mut Call<'_>) -> Result<Plan, String> {
    let Some(range) = bounds(call)? else { return call.reply(|replies| replies.integer(0)) };
    Ok(Plan::Alone(Box::new(move |table: &Table, _: &Shared, replies: &mut Replies| {
        replies.integer(table.count(range)? as i64);
        Ok(())
    })))
}

fn zremrangebylex(call: &mut Call<'_>) -> Result<Plan, String> {
    let Some(range) = bounds(call)? else { return call.reply(|replies| replies.integer(0)) };
    Ok(Plan::Alone(Box::new(move |table: &Table, _: &Shared, replies: &mut Replies| {
        replies.integer(table.remove_range(range)? as i64);
        Ok(())
    })))
}

/// Pairs of `FARLEAF.RANGE` without `LIMIT`, and with it at most.
const LIMIT: i64 = 1_000;
const LIMIT_MAX: i64 = 100_000;

fn own_range(call: &mut Call<'_>) -> Result<Plan, String> {
    let asked = WantedRange::all(call.args[1], call.args[2]);
    let mut asked = WantedRange { limit: LIMIT, ..asked };
    let mut has_values = true;
    let mut rest = call.args[3..].iter();
    while let Some(word) = rest.next() {
        match lower(word).as_str() {
            "rev" => asked.is_reverse = true,
            "keys" => has_values = false,
            "limit" => {
                asked.limit = integer(rest.next().ok_or(SYNTAX)?)?;
                if !(0..=LIMIT_MAX).contains(&asked.limit) {
                    return Err(NO_INTEGER.to_owned());
                }
            }
            _ => return Err(SYNTAX.to_owned()),
        }
    }
    Ok(Plan::Alone(Box::new(move |table: &Table, _: &Shared, replies: &mut Replies| {
        let (mut found, mut bytes) = (Vec::new(), 0);
        asked.each(table, |key, value| {
            let value = value.filter(|_| has_values);
            let value_bytes = value.as_ref().map_or(0, Vec::len);
            bytes = check_reply(bytes + key.len() + value_bytes, "give a smaller LIMIT")?;
            found.push((key, value));
            Ok(())
        })?;
        replies.array(if has_values { 2 * found.len() } else { found.len() });
        for (key, value) in &found {
            replies.bulk(key);
            if has_values {
                replies.value(value.as_deref());
            }
        }
        Ok(())
    })))
}

/// A pair of a table, if there is one.
type Pair = farleaf::Result<Option<(Vec<u8>, Vec<u8>)>>;

fn nearest(call: &Call<'_>, find: fn(&Table, &[u8]) -> Pair) -> Result<Plan, String> {
    let key = call.key();
    Ok(Plan::Alone(Box::new(move |table: &Table, _: &Shared, replies: &mut Replies| {
        match find(table, &key)? {
            Some((key, value)) => {
                replies.array(2);
                replies.bulk(&key);
                replies.bulk(&value);
            }
            None => replies.null(),
        }
        Ok(())
    })))
}

fn run(call: &mut Call<'_>) -> Result<Plan, String> {
    let keys: Vec<Vec<u8>> = call.rest().iter().map(|key| key.to_vec()).collect();
    Ok(Plan::Alone(Box::new(move |table: &Table, _: &Shared, replies: &mut Replies| {
        replies.integer(table.longest_run(keys)? as i64);
        Ok(())
    })))
}
