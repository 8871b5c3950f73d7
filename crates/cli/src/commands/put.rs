//! `farleaf put`: stores a value under a key.

use std::io::{self, Read};

use anyhow::Context;
use farleaf::{ErrorKind, Expiry, KeyFormat, Table, ValueFormat};
use farleaf_index::VALUE_BYTES_MAX;
use serde_json::json;

use super::{bytes_of, check_settings, close, discard, open_or_create, open_with, table_or_create};
use crate::args::{NewTableArgs, PutArgs};
use crate::errors::{Exit, Failure};
use crate::formats;
use crate::output::{Console, escaped, from_hex};

pub(super) fn run(args: &PutArgs, console: &mut Console) -> anyhow::Result<Exit> {
    let key = bytes_of(&args.key, args.hex)?;
    let value =
        if args.value == "-" { read_value(args.hex)? } else { bytes_of(&args.value, args.hex)? };
    let (wanted, settings) = (&args.new_table, args.set.settings());
    if args.create.create {
        let db = open_or_create(&args.table.pool, &args.create, &settings, console)?;
        let mut make = || {
            let name = &args.table.table;
            if db.table(name).is_err_and(|error| error.kind() == ErrorKind::NotFound) {
                // Before a table is made that would be empty.
                check_pair(wanted, &key, &value)?;
            }
            let (table, _) = table_or_create(&db, name, wanted, &settings, console)?;
            put(args, &table, &key, &value, console)
        };
        let exit = make().inspect_err(|_| discard(&db, console))?;
        close(db)?;
        return Ok(exit);
    }
    if let Some((option, _)) = wanted.given().iter().find(|(_, given)| given.is_some()) {
        let message = format!("{option} says how a table is made: it needs --create");
        return Err(Failure::usage(message).into());
    }
    let db = open_with(&args.table.pool, &settings, console)?;
    let table = db.table(&args.table.table).map_err(|error| {
        let is_missing = error.kind() == ErrorKind::NotFound;
        let error = anyhow::Error::from(error);
        if is_missing { error.context("cannot put: --create makes a missing table") } else { error }
    })?;
    check_settings(&table, &settings)?;
    let exit = put(args, &table, &key, &value, console)?;
    drop(table);
    close(db)?;
    Ok(exit)
}

/// Refuses a key and value that a table made as `wanted` would not take.
fn check_pair(wanted: &NewTableArgs, key: &[u8], value: &[u8]) -> Result<(), Failure> {
    let keys = wanted.key_format.unwrap_or(KeyFormat::Bytes { max: formats::KEY_BYTES_MAX });
    formats::check_key(keys, key.len())
        .and_then(|()| {
            formats::check_value(wanted.value_format.unwrap_or(ValueFormat::Bytes), value.len())
        })
        .map_err(Failure::usage)
}

/// Stores the pair as the conditions say, and tells what came of it.
fn put(
    args: &PutArgs,
    table: &Table,
    key: &[u8],
    value: &[u8],
    console: &mut Console,
) -> anyhow::Result<Exit> {
    let expiry = args.expires_in.map(|time| Expiry::In(time.duration()));
    let (done, refusal) = if args.if_absent {
        let is_done = match expiry {
            None => table.insert_new(key, value),
            Some(expiry) => table.insert_new_with(key, value.to_vec(), expiry),
        };
        (is_done?, "exists")
    } else if args.if_present {
        let is_done = match expiry {
            None => table.update(key, value),
            Some(expiry) => table.replace_with(key, value.to_vec(), expiry),
        };
        (is_done?, "does not exist")
    } else {
        let is_new = match expiry {
            None => table.insert(key, value),
            Some(expiry) => table.insert_with(key, value.to_vec(), expiry),
        };
        let is_new = is_new?;
        console.detail(if is_new { "added" } else { "changed" });
        (true, "")
    };
    if !done {
        console.note(format_args!("nothing changed: key \"{}\" {refusal}", escaped(key)));
    }
    if console.args.json {
        console.json_line(&json!({ "changed": done }))?;
    }
    Ok(if done { Exit::Done } else { Exit::NotFound })
}

/// Reads a value from standard input to its end.
fn read_value(is_hex: bool) -> anyhow::Result<Vec<u8>> {
    // Enough to tell that it is too long, in hexadecimal with blanks between bytes, too.
    let limit = if is_hex { 4 * VALUE_BYTES_MAX } else { VALUE_BYTES_MAX };
    let mut value = Vec::new();
    io::stdin()
        .lock()
        .take(limit as u64 + 1)
        .read_to_end(&mut value)
        .map_err(|error| Failure::unreadable("standard input", error))?;
    if value.len() > limit {
        let message = format!("the value on standard input is longer than {VALUE_BYTES_MAX} bytes");
        return Err(Failure::malformed(message).into());
    }
    if is_hex {
        value = from_hex(&value)
            .map_err(|why| Failure::malformed(format!("not hexadecimal: {why}")))
            .context("cannot use the value on standard input")?;
    }
    Ok(value)
}
