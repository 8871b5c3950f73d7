//! `farleaf get` and `farleaf del`: read and remove the keys that the caller names.

use std::io::Write;
use std::mem::take;
use std::path::Path;

use farleaf::Table;
use serde_json::{Map, Value, json};

use super::{bytes_of, close, open_table};
use crate::args::{DelArgs, GetArgs, NearArgs};
use crate::errors::{Exit, Failure};
use crate::formats;
use crate::input::{self, ColumnSpec, Columns, Fault, InputFormat, Record, ValueSource};
use crate::output::{Console, counted, escaped, from_hex, hex};
use crate::source::Source;

pub(super) fn get(args: &GetArgs, console: &mut Console) -> anyhow::Result<Exit> {
    let keys = keys(&args.keys, args.bytes.hex)?;
    let (db, table) = open_table(&args.table, &args.set, console)?;
    if let Some(near) = Near::of(args.near) {
        let exit = get_near(near, &table, &keys, args, console)?;
        close(db)?;
        return Ok(exit);
    }
    let values = table.get_many(&keys)?;
    let look = console.look(args.bytes);
    let mut exit = Exit::Done;
    for (key, value) in keys.iter().zip(values) {
        if value.is_none() {
            exit = Exit::NotFound;
            console.note(format_args!("no key {}", shown(key, args.bytes.hex)));
        }
        if console.args.json {
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

/// Another pair than that of a key.
#[derive(Clone, Copy)]
enum Near {
    Floor,
    Ceiling,
    Lower,
    Higher,
    LongestPrefix,
}

impl Near {
    fn of(args: NearArgs) -> Option<Near> {
        let asked = [
            (args.floor, Near::Floor),
            (args.ceiling, Near::Ceiling),
            (args.lower, Near::Lower),
            (args.higher, Near::Higher),
            (args.longest_prefix, Near::LongestPrefix),
        ];
        asked.into_iter().find(|(is_asked, _)| *is_asked).map(|(_, near)| near)
    }

    /// The relation of the pair to the key.
    fn name(self) -> &'static str {
        match self {
            Near::Floor => "at or below",
            Near::Ceiling => "at or above",
            Near::Lower => "below",
            Near::Higher => "above",
            Near::LongestPrefix => "that is a prefix of",
        }
    }

    fn find(self, table: &Table, key: &[u8]) -> farleaf::Result<Option<(Vec<u8>, Vec<u8>)>> {
        match self {
            Near::Floor => table.floor(key),
            Near::Ceiling => table.ceiling(key),
            Near::Lower => table.lower(key),
            Near::Higher => table.higher(key),
            Near::LongestPrefix => table.longest_prefix(key),
        }
    }
}

/// Prints the pairs near the keys, with their own keys.
fn get_near(
    near: Near,
    table: &Table,
    keys: &[Vec<u8>],
    args: &GetArgs,
    console: &mut Console,
) -> anyhow::Result<Exit> {
    let look = console.look(args.bytes);
    let mut exit = Exit::Done;
    for key in keys {
        let pair = near.find(table, key)?;
        if pair.is_none() {
            exit = Exit::NotFound;
            console.note(format_args!("no key {} {}", near.name(), shown(key, args.bytes.hex)));
        }
        if console.args.json {
            let mut object = Map::new();
            look.put("asked", key, &mut object);
            match pair {
                Some((key, value)) => {
                    look.put("key", &key, &mut object);
                    look.put("value", &value, &mut object);
                }
                None => drop(object.insert("key".to_owned(), Value::Null)),
            }
            console.json_line(&object.into())?;
        } else if let Some((key, value)) = pair {
            let out = console.out();
            look.write(&key, out)?;
            out.write_all(b"\t")?;
            look.write(&value, out)?;
            out.write_all(b"\n")?;
        }
    }
    console.flush()?;
    Ok(exit)
}

pub(super) fn del(args: &DelArgs, console: &mut Console) -> anyhow::Result<Exit> {
    let from = match (&args.keys_from, &args.keys[..]) {
        (Some(path), _) => Some(path.as_path()),
        (None, [only]) if only == "-" => Some(Path::new("-")),
        _ => None,
    };
    let Some(from) = from else {
        let keys = keys(&args.keys, args.hex)?;
        let (db, table) = open_table(&args.table, &args.set, console)?;
        let mut removed = Removed::default();
        for key in &keys {
            if table.remove(key)? {
                removed.present += 1;
            } else {
                console.note(format_args!("no key {}", shown(key, args.hex)));
                removed.absent += 1;
            }
        }
        close(db)?;
        return removed.tell(console);
    };
    let source = Source::open(Some(from))?;
    let (db, table) = open_table(&args.table, &args.set, console)?;
    let removed = remove_lines(source, &table, args.hex)?;
    close(db)?;
    removed.tell(console)
}

/// Keys that `del` was to remove.
#[derive(Default)]
struct Removed {
    present: u64,
    absent: u64,
}

impl Removed {
    fn tell(&self, console: &mut Console) -> anyhow::Result<Exit> {
        if console.args.json {
            console.json_line(&json!({ "removed": self.present, "absent": self.absent }))?;
        } else {
            console.detail(format_args!("{} removed", counted(self.present, "key")));
        }
        Ok(if self.absent == 0 { Exit::Done } else { Exit::NotFound })
    }
}

/// Keys of a batch that is removed at once, and their bytes, at most.
const BATCH_KEYS_MAX: usize = 1000;
const BATCH_BYTES_MAX: usize = 1 << 20;

/// Removes the keys that `source` holds, one a line, in batches whose operations are in flight together.
///
/// # Errors
/// [`Exit::Malformed`] for a line that is no key; the keys of the lines before it are gone.
fn remove_lines(source: Source, table: &Table, is_hex: bool) -> anyhow::Result<Removed> {
    let name = source.name;
    let constant = ValueSource::Constant(Vec::new());
    let columns = Columns { key: ColumnSpec::Number(1), value: constant, header: false };
    let mut reader = input::open(InputFormat::Lines, source.input, columns);
    let (mut record, mut removed) = (Record::default(), Removed::default());
    loop {
        let (mut batch, mut bytes, mut ended) = (Vec::new(), 0, Ok(()));
        while batch.len() < BATCH_KEYS_MAX && bytes < BATCH_BYTES_MAX {
            let read = reader.read(&mut record).and_then(|is_there| {
                if !is_there {
                    return Ok(None);
                }
                let key = if is_hex { from_hex(&record.key) } else { Ok(take(&mut record.key)) };
                let checked = key.and_then(|key| {
                    formats::check_key(table.info().keys, key.len())?;
                    Ok(Some(key))
                });
                checked.map_err(|why| record.error(Fault::Refused(why)))
            });
            match read {
                Ok(Some(key)) => {
                    bytes += key.len();
                    batch.push(key);
                }
                Ok(None) => break,
                Err(error) => {
                    ended = Err(Failure::malformed(format!(
                        "{name}: {error} (the keys of the lines before it are removed)"
                    )));
                    break;
                }
            }
        }
        let count = batch.len() as u64;
        if count > 0 {
            let present = table.remove_many(&batch)?;
            removed.present += present;
            removed.absent += count - present;
        }
        ended?;
        if count == 0 {
            return Ok(removed);
        }
    }
}

fn keys(arguments: &[std::ffi::OsString], is_hex: bool) -> Result<Vec<Vec<u8>>, Failure> {
    arguments.iter().map(|key| bytes_of(key, is_hex)).collect()
}

/// A key as messages name it.
fn shown(key: &[u8], is_hex: bool) -> String {
    if is_hex { hex(key) } else { format!("\"{}\"", escaped(key)) }
}
