//! `farleaf load`: records from a file into a table.

mod pipeline;
mod summary;

use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use anyhow::Context;
use clap::ValueEnum;
use farleaf::{Farleaf, Table, ValueFormat};
use farleaf_index::VALUE_BYTES_MAX;

use self::pipeline::{Job, Outcome};
use self::summary::Summary;
use super::{close, open_or_create, stop_on_interrupt, table_or_create};
use crate::args::{LoadArgs, ValueFrom};
use crate::bench::to_usize;
use crate::errors::{Exit, Failure};
use crate::input::{self, ColumnSpec, Columns, InputFormat, ValueSource};
use crate::output::{Console, counted};
use crate::progress::Meter;
use crate::source::Source;

pub(super) fn run(args: LoadArgs, console: &mut Console) -> anyhow::Result<Exit> {
    check(&args)?;
    let source = Source::open(args.file.as_deref())?;
    let settings = args.set.settings();
    let db = open_or_create(&args.table.pool, &args.create, &settings, console)?;
    let name = &args.table.table;
    let (table, was_made) = table_or_create(&db, name, &args.new_table, &settings, console)?;
    let bulk = args.sorted && may_bulk_load(&db, &table, args.skip_errors, console)?;

    let stop = stop_on_interrupt()?;
    let (name, length) = (source.name.clone(), source.length);
    let job = Job {
        reader: input::open(args.format, source.input, columns(&args, &table)),
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
        pipeline::run(job, |loaded| progress.show(loaded, source.read.load(Ordering::Relaxed)))?;
    let seconds = start.elapsed().as_secs_f64();
    progress.clear();

    for skipped in &outcome.skipped_first {
        console.warn(format_args!("{name}: {skipped}; left out"));
    }
    let told = outcome.skipped_first.len() as u64;
    if outcome.skipped > told {
        console.warn(format_args!("{} left out in all", counted(outcome.skipped, "record")));
    }
    let is_interrupted = stop.load(Ordering::Relaxed);
    let unit = if args.format == InputFormat::Binary { "record" } else { "line" };
    let certain = certain(&outcome, bulk, unit, &name);
    drop(table);
    let ended = end(&mut outcome, &name, &certain, was_made && !args.sorted, console);
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
    close(db)?;
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
        _ if bulk && outcome.store_error.is_some() => "the table is as empty as before".to_owned(),
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
        let context = format!("{name}: {error} ({loaded} loaded before it)");
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

/// Records from which on it is worth saying that they could have been loaded faster.
const HINT_RECORDS_MIN: u64 = 100_000;

/// Refuses options that do not go together.
fn check(args: &LoadArgs) -> Result<(), Failure> {
    let format = args.format.to_possible_value().unwrap_or_default();
    let has_columns = matches!(args.format, InputFormat::Tsv | InputFormat::Csv);
    let refuse = |option: &str, why: &str| {
        let format = format.get_name();
        Err(Failure::usage(format!("{option} makes no sense with --format {format}: {why}")))
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

fn columns(args: &LoadArgs, table: &Table) -> Columns {
    let value = if let Some(value) = &args.value {
        ValueSource::Constant(value.clone().into_vec())
    } else if let Some(ValueFrom::LineNumber) = args.value_from {
        ValueSource::LineNumber { as_u64: table.info().values == ValueFormat::Fixed(8) }
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
