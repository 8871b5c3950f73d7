//! `farleaf get` and `farleaf del`: read and remove the keys that the caller names.

use std::io::Write;

use serde_json::{Map, Value, json};

use super::{bytes_of, close, open_table};
use crate::args::{DelArgs, GetArgs};
use crate::errors::{Exit, Failure};
use crate::output::{Console, counted, escaped, hex};

pub(super) fn get(args: &GetArgs, console: &mut Console) -> anyhow::Result<Exit> {
    let keys = keys(&args.keys, args.bytes.hex)?;
    let (db, table) = open_table(&args.table, &args.set, console)?;
    let values = table.get_many(&keys)?;
    let look = console.look(args.bytes);
    let mut exit = Exit::Done;
    for (key, value) in keys.iter().zip(values) {
        if value.is_none() {
            exit = Exit::NotFound;
            console.note(format_args!("no key {}", shown(key, args.bytes.hex)));
        }
        if console.json {
            let mut object = Map::new();
            look.put("key", key, &mut object);
            match value {
                Some(value) => look.put("value", &value, &mut object),
                None => drop(object.insert("value".to_owned(), Value::Null)),
            }
            console.json_line(&object.into())?;
        } else if let Some(value) = value {
            let out = console.out();
            if keys.len() > 1 {
                look.write(key, out)?;
                out.write_all(b"\t")?;
            }
            look.write(&value, out)?;
            // A single raw value is copied to the byte, so that it can be put elsewhere.
            if !(args.bytes.raw && keys.len() == 1) {
                out.write_all(b"\n")?;
            }
        }
    }
    console.flush()?;
    close(db)?;
    Ok(exit)
}

pub(super) fn del(args: &DelArgs, console: &mut Console) -> anyhow::Result<Exit> {
    let keys = keys(&args.keys, args.hex)?;
    let (db, table) = open_table(&args.table, &args.set, console)?;
    let mut removed = 0_u64;
    let mut absent = Vec::new();
    for key in &keys {
        if table.remove(key)? {
            removed += 1;
        } else {
            console.note(format_args!("no key {}", shown(key, args.hex)));
            absent.push(key);
        }
    }
    if console.json {
        console.json_line(&json!({ "removed": removed, "absent": absent.len() }))?;
    } else {
        console.detail(format_args!("{} removed", counted(removed, "key")));
    }
    close(db)?;
    Ok(if absent.is_empty() { Exit::Done } else { Exit::NotFound })
}

fn keys(arguments: &[std::ffi::OsString], is_hex: bool) -> Result<Vec<Vec<u8>>, Failure> {
    arguments.iter().map(|key| bytes_of(key, is_hex)).collect()
}

/// A key as messages name it.
fn shown(key: &[u8], is_hex: bool) -> String {
    if is_hex { hex(key) } else { format!("\"{}\"", escaped(key)) }
}
