//! `farleaf check history`: checks history files.

use std::fs::File;
use std::io;

use anyhow::Context;
use farleaf_check::history::{History, HistoryError, merge, read_jsonl};
use farleaf_check::linear::{Limits, check};
use serde_json::json;

use super::args::HistoryArgs;
use crate::errors::{Exit, Failure};
use crate::output::{Console, escaped};

pub(super) fn run(args: &HistoryArgs, console: &mut Console) -> anyhow::Result<Exit> {
    let mut histories: Vec<History> = Vec::new();
    if args.files.iter().filter(|path| path.as_os_str() == "-").count() > 1 {
        return Err(Failure::usage("standard input can be read only once: name - once").into());
    }
    for path in &args.files {
        let name = path.display().to_string();
        let read = if path.as_os_str() == "-" {
            read_jsonl(io::stdin().lock())
        } else {
            let file = File::open(path).map_err(|error| Failure::unreadable(&name, error))?;
            read_jsonl(file)
        };
        let history = read.map_err(|error| unusable(&name, error))?;
        // As of a process that was killed early, or of the wrong file.
        if history.events.is_empty() && history.initial.is_empty() {
            console.warn(format_args!("{name} has no operations"));
        }
        histories.push(history);
    }
    let history = merge(histories).map_err(|error| unusable("the files together", error))?;
    let verdict = check(&history, &Limits::default());
    let (checked, violation) = match verdict {
        Ok(checked) => (Some(checked), None),
        Err(violation) => (None, Some(violation.to_string())),
    };
    let undecided: Vec<String> = checked
        .iter()
        .flat_map(|checked| &checked.undecided)
        .map(|undecided| escaped(&undecided.key))
        .collect();
    let operations = history.events.len();
    if console.args.json {
        console.json_line(&json!({
            "operations": operations,
            "linearizable": violation.is_none(),
            "violation": violation,
            "undecided_keys": undecided,
        }))?;
    } else {
        if let Some(violation) = &violation {
            use io::Write;
            writeln!(console.out(), "{}", violation.trim_end()).context("printing")?;
        }
        let verdict = match (&violation, undecided.len()) {
            (Some(_), _) => "not linearizable",
            (None, 0) => "linearizable",
            (None, _) => "undecided",
        };
        console
            .fields(&[("operations", operations.to_string()), ("verdict", verdict.to_owned())])?;
    }
    if !undecided.is_empty() {
        console.warn(format_args!(
            "{} keys have too many operations at a time to be decided: {}",
            undecided.len(),
            undecided.join(", ")
        ));
    }
    Ok(if violation.is_some() { Exit::NotFound } else { Exit::Done })
}

fn unusable(name: &str, error: HistoryError) -> Failure {
    match error {
        HistoryError::Io(error) => Failure::unreadable(name, error),
        error => Failure::malformed(format!("{name}: {error}")),
    }
}
