//! `farleaf check`: many seeds, or one.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::sync::atomic::Ordering;

use anyhow::Context;
use farleaf_check::history::write_jsonl;
use farleaf_check::report::{Failed, Report, check};
use farleaf_check::run::run_with;
use farleaf_check::scenario::Scenario;
use farleaf_check::shrink::{ShrinkLimits, shrink};
use farleaf_check::trace::write_html;
use serde_json::{Value, json};

use super::super::stop_on_interrupt;
use super::args::SeedsArgs;
use super::panics::tell_panics_of_runs;
use crate::errors::{Exit, Failure};
use crate::output::{Console, counted};
use crate::progress::Meter;
use crate::source::create;

pub(super) fn run(args: &SeedsArgs, console: &mut Console) -> anyhow::Result<Exit> {
    let plan = args.plan()?;
    let history = args.history.as_deref().map(create).transpose()?;
    let trace = args.trace.as_deref().map(create).transpose()?;
    tell_panics_of_runs();
    let stop = stop_on_interrupt()?;
    let seeds = plan.seeds.end - plan.seeds.start;
    let meter = Meter::new(console.shows_progress(), Some(seeds));
    let report = check(&plan, &stop, &|_, _, failed| {
        if let Some(failed) = failed {
            meter.tell(&format!("{}\n    {}", failed.scenario, first_line(failed)));
        }
        meter.step();
    });
    meter.clear();
    let is_interrupted = stop.load(Ordering::Relaxed);
    let mut shrunk = None;
    if let Some(failed) = report.failures.first().filter(|_| args.shrink && !is_interrupted) {
        let limits = ShrinkLimits { tries_max: args.tries.0, ..ShrinkLimits::default() };
        let meter = Meter::new(console.shows_progress(), Some(limits.tries_max));
        let smaller = shrink(&failed.scenario, &failed.failure, &limits, &stop, &|_| meter.step());
        meter.clear();
        let how = if smaller.is_minimal { "" } else { "; a limit came first" };
        console.note(format_args!("made smaller in {} tries{how}", smaller.tries));
        shrunk = Some(Failed { scenario: smaller.scenario, failure: smaller.failure });
    }
    print(&report, shrunk.as_ref(), console)?;
    let last = plan.seeds.start + report.seeds.saturating_sub(1);
    let shown = match (&shrunk, report.failures.first()) {
        (Some(failed), _) | (None, Some(failed)) => failed.scenario.clone(),
        (None, None) => plan.choices.scenario(last),
    };
    if history.is_some() || trace.is_some() {
        write_files(&shown, history, trace, args)?;
        console.note(format_args!("wrote the run of {shown}"));
    }
    Ok(if !report.failures.is_empty() {
        Exit::NotFound
    } else if is_interrupted {
        Exit::Interrupted
    } else {
        Exit::Done
    })
}

/// Runs a scenario once more, and writes what there is of it.
fn write_files(
    scenario: &Scenario,
    history: Option<File>,
    trace: Option<File>,
    args: &SeedsArgs,
) -> anyhow::Result<()> {
    let (outcome, records) = run_with(scenario, trace.is_some());
    if let (Some(file), Some(path)) = (history, &args.history) {
        let written = write_jsonl(BufWriter::new(file), &outcome.history);
        written.with_context(|| format!("cannot write {}", path.display()))?;
    }
    if let (Some(file), Some(path)) = (trace, &args.trace) {
        let mut out = BufWriter::new(file);
        let written = write_html(&mut out, scenario, &outcome, &records);
        let written = written.and_then(|()| out.flush());
        written.map_err(|error| Failure::unwritable(path.display(), error))?;
    }
    Ok(())
}

fn first_line(failed: &Failed) -> String {
    failed.failure.to_string().lines().next().unwrap_or_default().to_owned()
}

fn told(failed: &Failed) -> Value {
    json!({
        "seed": failed.scenario.seed,
        "kind": failed.failure.kind(),
        "what": failed.failure.to_string(),
        "replay": failed.scenario.to_string(),
    })
}

fn print(report: &Report, shrunk: Option<&Failed>, console: &mut Console) -> anyhow::Result<()> {
    let stats = &report.stats;
    if console.args.json {
        let failures: Vec<Value> = report.failures.iter().map(told).collect();
        console.json_line(&json!({
            "seeds": report.seeds,
            "complete": report.is_complete,
            "failures": failures,
            "shrunk": shrunk.map(told),
            "run_twice": report.twice,
            "ops": stats.ops,
            "scans": stats.scans,
            "unknown": stats.unknown,
            "full": stats.full,
            "unavailable": stats.unavailable,
            "undecided_keys": stats.undecided,
            "remote_ops": stats.remote_ops,
            "virtual_ns": stats.virtual_ns,
            "killed": stats.killed,
            "cut_off": stats.cut_off,
            "restarted": stats.restarted,
            "recovered": stats.recovered,
            "moved": stats.moved,
            "elapsed_ns": u64::try_from(report.elapsed.as_nanos()).unwrap_or(u64::MAX),
        }))?;
        return Ok(());
    }
    for failed in report.failures.iter().chain(shrunk) {
        if shrunk.is_some_and(|shrunk| std::ptr::eq(shrunk, failed)) {
            writeln!(console.out(), "smaller:")?;
        }
        writeln!(console.out(), "{}", failed.scenario)?;
        for line in failed.failure.to_string().lines() {
            writeln!(console.out(), "    {line}")?;
        }
    }
    let rows = [
        ("seeds", report.seeds.to_string()),
        ("failures", report.failures.len().to_string()),
        ("run_twice", report.twice.to_string()),
        ("ops", stats.ops.to_string()),
        ("scans", stats.scans.to_string()),
        ("unknown", stats.unknown.to_string()),
        ("full", stats.full.to_string()),
        ("unavailable", stats.unavailable.to_string()),
        ("undecided_keys", stats.undecided.to_string()),
        ("remote_ops", stats.remote_ops.to_string()),
        ("virtual_s", format!("{:.3}", stats.virtual_ns as f64 / 1e9)),
        ("killed", stats.killed.to_string()),
        ("cut_off", stats.cut_off.to_string()),
        ("restarted", stats.restarted.to_string()),
        ("recovered", stats.recovered.to_string()),
        ("ranges moved", stats.moved.to_string()),
        ("elapsed_s", format!("{:.3}", report.elapsed.as_secs_f64())),
        ("seeds_per_s", format!("{:.1}", report.seeds_per_s())),
        ("ops_per_s", format!("{:.0}", report.ops_per_s())),
    ];
    console.fields(&rows)?;
    if !report.is_complete {
        console.note(format_args!("ended early, after {}", counted(report.seeds, "seed")));
    }
    Ok(())
}
