//! `farleaf check canaries`: seeded bugs, and how soon they are found.

use std::slice;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};

use farleaf_check::canaries::{CanaryResult, Hunted, hunt, names, with_engines};
use farleaf_check::crash::cases;
use serde_json::json;

use super::super::stop_on_interrupt;
use super::args::CanariesArgs;
use super::panics::tell_panics_of_runs;
use crate::errors::{Exit, Failure};
use crate::output::Console;
use crate::progress::Meter;

pub(super) fn run(args: &CanariesArgs, console: &mut Console) -> anyhow::Result<Exit> {
    let known = names();
    if let Some(name) = args.names.iter().find(|name| !known.contains(&name.as_str())) {
        return Err(Failure::usage(format!(
            "there is no canary \"{name}\" (known: {})",
            known.join(", ")
        ))
        .into());
    }
    if let Some(at) = args.at.as_deref().filter(|at| !cases().iter().any(|case| case.name() == *at))
    {
        return Err(Failure::usage(format!(
            "there is no crash case \"{at}\": 'farleaf check crash --list' names them"
        ))
        .into());
    }
    let choices = args.pins.choices()?;
    // The engine of the case, if there is one.
    let of_case = args.at.as_deref().and_then(|at| at.split('/').next()?.parse().ok());
    let engine = of_case.or(choices.engine);
    let is_chosen = |name: &&str| args.names.is_empty() || args.names.iter().any(|it| it == name);
    let chosen = known.into_iter().filter(is_chosen);
    let canaries: Vec<Hunted> = chosen.flat_map(|name| with_engines(name, engine)).collect();
    tell_panics_of_runs();
    let stop = stop_on_interrupt()?;
    let meter = Meter::new(console.shows_progress(), Some(canaries.len() as u64));
    let (seeds, threads) = (args.seeds.0, super::args::threads(args.threads));
    // A terminal gets one table at the end, a program each result as soon as it is there.
    let shows_early = !console.is_terminal || console.args.json;
    let out = Mutex::new((console, Ok(())));
    let results = hunt(&canaries, &choices, args.at.as_deref(), seeds, threads, &stop, &|result| {
        meter.step();
        let mut out = out.lock().unwrap_or_else(PoisonError::into_inner);
        let (console, printed) = &mut *out;
        if shows_early && printed.is_ok() {
            *printed = print(slice::from_ref(result), console);
            stop.fetch_or(printed.is_err(), Ordering::Relaxed);
        }
    });
    meter.clear();
    let (console, printed) = out.into_inner().unwrap_or_else(PoisonError::into_inner);
    printed?;
    if !shows_early {
        print(&results, console)?;
    }
    for (scenario, failure) in results.iter().filter_map(|result| result.unseeded.as_ref()) {
        console.warn(format!("this fails without a seeded bug, too: {scenario}: {failure}"));
    }
    Ok(if stop.load(Ordering::Relaxed) {
        Exit::Interrupted
    } else if results.iter().all(|result| result.found_by().is_some() && result.unseeded.is_none())
    {
        Exit::Done
    } else {
        Exit::NotFound
    })
}

fn print(results: &[CanaryResult], console: &mut Console) -> anyhow::Result<()> {
    if console.args.json {
        for result in results {
            console.json_line(&json!({
                "canary": result.canary.name,
                "engine": result.engine.map(|engine| engine.name()),
                "what": result.canary.what,
                "seeds": result.seeds,
                "found_by": result.found_by(),
                "finding": result.finding(),
                "replay": result.replay(),
                "fails_unseeded": result.unseeded.as_ref().map(|(scenario, _)| scenario.to_string()),
                "elapsed_ns": u64::try_from(result.elapsed.as_nanos()).unwrap_or(u64::MAX),
            }))?;
        }
        return Ok(console.flush()?);
    }
    let row = |result: &CanaryResult| {
        vec![
            result.canary.name.to_owned(),
            result.engine.map_or("any", |engine| engine.name()).to_owned(),
            result.seeds.to_string(),
            result.found_by().unwrap_or("NOT FOUND").to_owned(),
            result.canary.what.to_owned(),
        ]
    };
    let header = ["canary", "engine", "seeds", "found by", "what is done wrong"];
    console.table(&header, results.iter().map(row))?;
    Ok(console.flush()?)
}
