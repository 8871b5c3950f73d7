//! `farleaf scan` and `farleaf count`: print the pairs of a range of keys, or how many there are.

use std::io::{self, Write};
use std::ops::Bound;

use farleaf::{Prefix, Table};
use serde_json::{Map, Value, json};

use super::{bytes_of, close, open_table};
use crate::args::{CountArgs, RangeArgs, ScanArgs, to_usize};
use crate::errors::{Exit, Failure};
use crate::output::Console;

/// A key and its string; `None` for a hash.
type Pair = farleaf::Result<(Vec<u8>, Option<Vec<u8>>)>;

pub(super) fn run(args: &ScanArgs, console: &mut Console) -> anyhow::Result<Exit> {
    let range = Keys::of(&args.range, args.bytes.hex)?;
    let (db, table) = open_table(&args.table, &args.set, console)?;
    let limit = args.limit.map_or(usize::MAX, |limit| to_usize(limit.0));
    let pairs = range.of_table(&table, args.reverse).take(limit);
    if args.count {
        let mut count = 0_u64;
        for pair in pairs {
            pair?;
            count += 1;
        }
        print_count(count, console)?;
    } else {
        print(pairs, args, console)?;
    }
    console.flush()?;
    drop(table);
    close(db)?;
    Ok(Exit::Done)
}

pub(super) fn count(args: &CountArgs, console: &mut Console) -> anyhow::Result<Exit> {
    let range = Keys::of(&args.range, args.hex)?;
    let (db, table) = open_table(&args.table, &args.set, console)?;
    let count = match range {
        Keys::Prefix(prefix) => table.count(Prefix(prefix))?,
        Keys::Between(from, to) => table.count((from, to))?,
    };
    print_count(count, console)?;
    console.flush()?;
    drop(table);
    close(db)?;
    Ok(Exit::Done)
}

fn print_count(count: u64, console: &mut Console) -> io::Result<()> {
    if console.args.json {
        return console.json_line(&json!({ "count": count }));
    }
    writeln!(console.out(), "{count}")
}

fn print(
    pairs: impl Iterator<Item = Pair>,
    args: &ScanArgs,
    console: &mut Console,
) -> anyhow::Result<()> {
    let look = console.look(args.bytes);
    for pair in pairs {
        let (key, value) = pair?;
        if console.args.json {
            let mut object = Map::new();
            look.put("key", &key, &mut object);
            match value {
                _ if args.keys_only => {}
                Some(value) => look.put("value", &value, &mut object),
                None => drop(object.insert("value".to_owned(), Value::Null)),
            }
            console.json_line(&object.into())?;
            continue;
        }
        let out = console.out();
        if value.is_none() && !args.keys_only {
            out.flush()?;
            return Err(Failure::usage(format!(
                "the key \"{}\" holds a hash, for which no line stands: --keys-only leaves out values, --json has null \
                 for a hash",
                key.escape_ascii()
            ))
            .into());
        }
        look.write(&key, out)?;
        if let Some(value) = value.filter(|_| !args.keys_only) {
            out.write_all(b"\t")?;
            look.write(&value, out)?;
        }
        out.write_all(b"\n")?;
    }
    Ok(())
}

/// The keys that the caller asked for.
enum Keys {
    Prefix(Vec<u8>),
    Between(Bound<Vec<u8>>, Bound<Vec<u8>>),
}

impl Keys {
    fn of(args: &RangeArgs, hex: bool) -> Result<Keys, Failure> {
        if let Some(prefix) = &args.prefix {
            return Ok(Keys::Prefix(bytes_of(prefix, hex)?));
        }
        let from = args.from.as_ref().map(|key| bytes_of(key, hex)).transpose()?;
        let to = args.to.as_ref().map(|key| bytes_of(key, hex)).transpose()?;
        Ok(Keys::Between(
            from.map_or(Bound::Unbounded, Bound::Included),
            to.map_or(Bound::Unbounded, Bound::Excluded),
        ))
    }

    fn of_table(self, table: &Table, reverse: bool) -> Box<dyn Iterator<Item = Pair>> {
        let range = match self {
            Keys::Prefix(prefix) => table.range_strings(Prefix(prefix)),
            Keys::Between(from, to) => table.range_strings((from, to)),
        };
        if reverse { Box::new(range.rev()) } else { Box::new(range) }
    }
}
