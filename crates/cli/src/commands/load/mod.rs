//! `farleaf load`: records from a file into a table.

mod pipeline;
mod summary;

use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::ValueEnum;
use farleaf::{ErrorKind, Farleaf, KeyFormat, Settings, Table, ValueFormat};
use farleaf_index::VALUE_BYTES_MAX;

use self::pipeline::{Job, Outcome};
use self::summary::Summary;
use super::{NOT_IN_ORDER, discard, open_or_create, stop_on_interrupt, table_or_create};
use crate::args::{LoadArgs, NewTableArgs, ValueFrom, to_usize};
use crate::errors::{Exit, Failure};
use crate::formats;
use crate::input::{
    self, ColumnSpec, Columns, Fault, InputError, InputFormat, Peeked, RecordReader, ValueSource,
};
use crate::output::{Console, counted};
use crate::progress::Meter;
use crate::source::Source;

pub(super) fn run(args: LoadArgs, console: &mut Console) -> anyhow::Result<Exit> {
    check(&args)?;
    let source = Source::open(args.file.as_deref())?;
    let settings = args.set.settings();
    let db = open_or_create(&args.table.pool, &args.create, &settings, console)?;
    load(&args, source, &settings, &db, console).inspect_err(|_| discard(&db, console))
}

/// Loads from `source` into a pool that is open, and leaves it in order.
fn load(
    args: &LoadArgs,
    source: Source,
    settings: &Settings,
    db: &Farleaf,
    console: &mut Console,
) -> anyhow::Result<Exit> {
    let stop = stop_on_interrupt()?;
    let (name, length, read_bytes) = (source.name, source.length, source.read);
    let (keys, values) = formats_of(db, args)?;
    // A table is made once the input has shown that it can be read, and what is in it fits.
    let reader = input::open(args.format, source.input, columns(args, values));
    let Some(mut reader) = peek(reader, &stop)? else {
        db.clone().close().context(NOT_IN_ORDER)?;
        console.note("interrupted before anything had been read; nothing was changed");
        return Ok(Exit::Interrupted);
    };
    check_first(&mut reader, args, (keys, values), &name)?;
    let (table, was_made) =
        table_or_create(db, &args.table.table, &args.new_table, settings, console)?;
    let bulk = args.sorted && may_bulk_load(db, &table, args.skip_errors, console)?;

    let job = Job {
        reader: Box::new(reader),
        table: table.clone(),
        bulk,
        skip_errors: args.skip_errors,
        resume_from: args.resume_from,
        threads: args.threads.into(),
        batch_records: to_usize(args.batch.0),
        stop: Arc::clone(&stop),
    };
    let progress = Meter::new(console.shows_progress(), length);
    let start = Instant::now();
    let mut outcome =
        pipeline::run(job, |loaded| progress.show(loaded, read_bytes.load(Ordering::Relaxed)))?;
    let seconds = start.elapsed().as_secs_f64();
    progress.clear();

    for skipped in &outcome.skipped_first {
        console.warn(format_args!("{name}: {skipped}; skipped"));
    }
    let told = outcome.skipped_first.len() as u64;
    if outcome.skipped > told {
        console.warn(format_args!("{} skipped in all", counted(outcome.skipped, "record")));
    }
    let is_interrupted = stop.load(Ordering::Relaxed);
    let unit = if args.format == InputFormat::Binary { "record" } else { "line" };
    let certain = certain(&outcome, bulk, unit, &name);
    drop(table);
    let ended = end(&mut outcome, bulk, &name, &certain, was_made && !args.sorted, console)
        .and_then(|()| check_resumed(&outcome, args.resume_from, unit, &name));
    let is_complete = ended.is_ok() && !is_interrupted;
    let table = args.table.table.as_str();
    let summary = Summary { outcome: &outcome, table, was_made, bulk, seconds };
    if console.args.json {
        console.json_line(&summary.to_json(is_complete, ended.as_ref().err()))?;
    } else if ended.is_ok() && !console.args.quiet {
        summary.print(console)?;
    }
    console.flush()?;
    ended?;
    db.clone().close().context(NOT_IN_ORDER)?;
    if is_interrupted {
        let loaded = counted(outcome.loaded, "record");
        console.note(format_args!("interrupted after {loaded} had been loaded; {certain}"));
        return Ok(Exit::Interrupted);
    }
    Ok(Exit::Done)
}

/// Says what is certain about the table after a load that did not get to the end of its input.
fn certain(outcome: &Outcome, bulk: bool, unit: &str, name: &str) -> String {
    match outcome.certain {
        _ if bulk && (outcome.store_error.is_some() || outcome.read.error.is_some()) => {
            "the table is as empty as before".to_owned()
        }
        0 => format!("some records of {name} may be in the table"),
        certain => format!(
            "all records of {name} up to {unit} {certain} are in the table, and some after it may be: \
             --resume-from {certain} goes on"
        ),
    }
}

/// Returns the error of the load, which it takes out of `outcome`, if it met one.
fn end(
    outcome: &mut Outcome,
    bulk: bool,
    name: &str,
    certain: &str,
    may_hint: bool,
    console: &Console,
) -> anyhow::Result<()> {
    let loaded = outcome.loaded;
    if let Some(error) = outcome.store_error.take() {
        return Err(error).with_context(|| format!("the load stopped; {certain}"));
    }
    if let Some(error) = outcome.refused.take() {
        return Err(Failure::malformed(format!("{name}: {error} ({certain})")).into());
    }
    if let Some(error) = outcome.read.error.take() {
        let loaded = counted(loaded, "record");
        let context = match bulk {
            true => format!("{name}: {error} ({certain})"),
            false => format!("{name}: {error} ({loaded} loaded before it)"),
        };
        let source = match error.fault {
            input::Fault::Io(source) => return Err(Failure::unreadable(context, source).into()),
            _ => Failure::malformed(context),
        };
        return Err(source.into());
    }
    if may_hint && outcome.read.is_sorted && loaded > HINT_RECORDS_MIN {
        console.note("the input was sorted: --sorted loads such input into a new table faster");
    }
    Ok(())
}

/// Refuses a position to go on from that lies behind the end of the input.
fn check_resumed(
    outcome: &Outcome,
    resume_from: u64,
    unit: &str,
    name: &str,
) -> anyhow::Result<()> {
    match outcome.read.end {
        Some(end) if end < resume_from => Err(Failure::usage(format!(
            "--resume-from {resume_from}: the last record of {name} is at {unit} {end}, so nothing was loaded: is it \
             the input of the load that stopped?"
        ))
        .into()),
        _ => Ok(()),
    }
}

/// The formats of the table: its own, or those that it is to be made with.
fn formats_of(db: &Farleaf, args: &LoadArgs) -> anyhow::Result<(KeyFormat, ValueFormat)> {
    match db.table(&args.table.table) {
        Ok(table) => Ok((table.info().keys, table.info().values)),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let NewTableArgs { key_format, value_format, .. } = &args.new_table;
            let keys = key_format.unwrap_or(KeyFormat::Bytes { max: formats::KEY_BYTES_MAX });
            Ok((keys, value_format.unwrap_or(ValueFormat::Bytes)))
        }
        Err(error) => Err(error.into()),
    }
}

/// Reads the first record; `None` on an interrupt, which leaves the reader behind (INV-LOAD-3).
fn peek(reader: Box<dyn RecordReader>, stop: &AtomicBool) -> anyhow::Result<Option<Peeked>> {
    let (sender, read) = mpsc::channel();
    let first = move || {
        // Nobody listens only after an interrupt.
        let _ = sender.send(Peeked::new(reader));
    };
    let named = thread::Builder::new().name("peek".to_owned());
    named.spawn(first).context("cannot start a thread")?;
    loop {
        match read.recv_timeout(LOOK_EVERY) {
            Ok(peeked) => return Ok(Some(peeked)),
            Err(RecvTimeoutError::Timeout) if stop.load(Ordering::Relaxed) => return Ok(None),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => anyhow::bail!("the reader has ended"),
        }
    }
}

/// Refuses input whose first record ends the load: no table is made for it.
fn check_first(
    reader: &mut Peeked,
    args: &LoadArgs,
    (keys, values): (KeyFormat, ValueFormat),
    name: &str,
) -> Result<(), Failure> {
    let ends = |error: &InputError| {
        error.fatal || !args.skip_errors && error.position() > args.resume_from
    };
    let refused = reader.take_error(ends).or_else(|| {
        let record =
            reader.first().filter(|record| record.place().position() > args.resume_from)?;
        let fits = formats::check_key(keys, record.key.len())
            .and_then(|()| formats::check_value(values, record.value.len()));
        fits.err().filter(|_| !args.skip_errors).map(|why| record.error(Fault::Refused(why)))
    });
    let Some(error) = refused else { return Ok(()) };
    let context = format!("{name}: {error} (0 records loaded before it)");
    Err(match error.fault {
        Fault::Io(source) => Failure::unreadable(context, source),
        _ => Failure::malformed(context),
    })
}

/// Time between two looks for an interrupt.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Records from which on it is worth saying that they could have been loaded faster.
const HINT_RECORDS_MIN: u64 = 100_000;

/// Refuses options that do not go together.
fn check(args: &LoadArgs) -> Result<(), Failure> {
    let format = args.format.to_possible_value().unwrap_or_default();
    let has_columns = matches!(args.format, InputFormat::Tsv | InputFormat::Csv);
    let refuse = |option: &str, why: &str| {
        let format = format.get_name();
        Err(Failure::usage(format!("{option} does not apply to --format {format}: {why}")))
    };
    for (option, is_given) in [
        ("--key-column", args.key_column.is_some()),
        ("--value-column", args.value_column.is_some()),
        ("--header", args.header),
    ] {
        if is_given && !has_columns {
            return refuse(option, "only tsv and csv have columns");
        }
    }
    if args.format == InputFormat::Binary {
        for (option, is_given) in
            [("--value", args.value.is_some()), ("--value-from", args.value_from.is_some())]
        {
            if is_given {
                return refuse(option, "its records hold their values");
            }
        }
    }
    for (option, column) in
        [("--key-column", &args.key_column), ("--value-column", &args.value_column)]
    {
        match column {
            Some(ColumnSpec::Number(0)) => {
                return Err(Failure::usage(format!("{option} 0: columns are counted from 1")));
            }
            Some(ColumnSpec::Name(name)) if !args.header => {
                return Err(Failure::usage(format!(
                    "{option} \"{name}\" is a name, which needs --header (a column's number does \
                     not)"
                )));
            }
            _ => {}
        }
    }
    if args.batch.0 == 0 {
        return Err(Failure::usage("--batch 0: a batch has at least one record"));
    }
    if args.sorted && args.threads > 1 {
        return Err(Failure::usage(
            "--sorted fills the table from one thread: leave out --threads, or --sorted",
        ));
    }
    Ok(())
}

fn columns(args: &LoadArgs, values: ValueFormat) -> Columns {
    let value = if let Some(value) = &args.value {
        ValueSource::Constant(value.clone().into_vec())
    } else if let Some(ValueFrom::LineNumber) = args.value_from {
        ValueSource::LineNumber { as_u64: values == ValueFormat::Fixed(8) }
    } else if args.format == InputFormat::Lines {
        ValueSource::Constant(Vec::new())
    } else {
        ValueSource::Column(args.value_column.clone().unwrap_or(ColumnSpec::Number(2)))
    };
    let key = args.key_column.clone().unwrap_or(ColumnSpec::Number(1));
    Columns { key, value, header: args.header }
}

/// Returns whether the table can be filled in one go; says so if it cannot.
fn may_bulk_load(
    db: &Farleaf,
    table: &Table,
    skip_errors: bool,
    console: &Console,
) -> anyhow::Result<bool> {
    let name = table.name();
    let refuse = |why: &str| {
        console.note(format_args!("table \"{name}\" {why}: inserting one batch after the other"));
        Ok(false)
    };
    if table.first_key_value()?.is_some() {
        return refuse("holds keys already");
    }
    // A bulk load ends with the first record that has no room in a block.
    if skip_errors && db.stats()?.block_bytes <= VALUE_BYTES_MAX as u64 {
        return refuse("lies in a pool of small blocks, in which some values may not fit");
    }
    Ok(true)
}
