//! `farleaf check crash`: deaths at every remote operation.

use std::sync::atomic::Ordering;

use farleaf_check::crash::{CrashOptions, CrashReport, by_name, cases, run_all};
use serde_json::json;

use super::super::stop_on_interrupt;
use super::args::CrashArgs;
use super::panics::tell_panics_of_runs;
use crate::errors::{Exit, Failure};
use crate::output::{Console, counted};
use crate::progress::Meter;

pub(super) fn run(args: &CrashArgs, console: &mut Console) -> anyhow::Result<Exit> {
    tell_panics_of_runs();
    let wanted = args.cases.as_deref().unwrap_or_default();
    if wanted.contains('#') {
        return run_one(wanted, console);
    }
    let chosen = cases().iter().filter(|case| case.name().contains(wanted)).count();
    if chosen == 0 {
        return Err(Failure::usage(format!(
            "no case's name contains \"{wanted}\": --list prints them all"
        ))
        .into());
    }
    if args.list {
        let cases = cases();
        let names = cases.iter().map(|case| case.name()).filter(|name| name.contains(wanted));
        if console.args.json {
            console.json_line(&json!({ "cases": names.collect::<Vec<_>>() }))?;
            return Ok(Exit::Done);
        }
        for name in names {
            console.fields(&[("case", name.to_owned())])?;
        }
        return Ok(Exit::Done);
    }
    let stop = stop_on_interrupt()?;
    let meter = Meter::new(console.shows_progress(), Some(chosen as u64));
    let mut options = CrashOptions { stride: args.stride.into(), ..CrashOptions::default() };
    options.threads = super::args::threads(args.threads);
    options.budget = args.time.map(farleaf_bench::units::TimeSpan::duration);
    // Each case is asked for once it is its turn: an interrupt leaves out those that are left.
    let is_wanted = |name: &str| name.contains(wanted);
    let report = run_all(is_wanted, &options, |done| {
        if done.failures > 0 {
            meter.tell(&format!("{}: {}", done.name, counted(done.failures as u64, "failure")));
        }
        meter.step();
        if stop.load(Ordering::Relaxed) {
            std::process::exit(Exit::Interrupted as i32);
        }
    });
    meter.clear();
    print(&report, console)?;
    Ok(if report.failures.is_empty() { Exit::Done } else { Exit::NotFound })
}

fn run_one(name: &str, console: &mut Console) -> anyhow::Result<Exit> {
    let failure = by_name(name).err();
    let point = failure.as_ref().map_or(name, |failure| failure.name.as_str());
    let what = failure.as_ref().map(|failure| failure.what.as_str());
    match what {
        _ if console.args.json => console.json_line(&json!({ "point": point, "failure": what }))?,
        None => console.fields(&[("passed", point.to_owned())])?,
        Some(what) => console.fields(&[("failed", point.to_owned()), ("what", what.to_owned())])?,
    }
    Ok(if what.is_some() { Exit::NotFound } else { Exit::Done })
}

fn print(report: &CrashReport, console: &mut Console) -> anyhow::Result<()> {
    if console.args.json {
        let failures: Vec<_> = report
            .failures
            .iter()
            .map(|failure| json!({ "replay": replay(&failure.name), "what": failure.what }))
            .collect();
        console.json_line(&json!({
            "cases": report.cases,
            "points": report.points,
            "points_left_out": report.left_out,
            "cases_left_out": report.cases_left_out,
            "failures": failures,
            "points_swept": report.swept.0,
            "elapsed_ns": u64::try_from(report.took.as_nanos()).unwrap_or(u64::MAX),
        }))?;
        return Ok(());
    }
    for failure in &report.failures {
        console.fields(&[("failed", replay(&failure.name)), ("what", failure.what.clone())])?;
    }
    console.fields(&[
        ("cases", report.cases.to_string()),
        ("points", report.points.to_string()),
        ("points_left_out", (report.left_out + report.cases_left_out).to_string()),
        ("failures", report.failures.len().to_string()),
        ("elapsed_s", format!("{:.1}", report.took.as_secs_f64())),
    ])?;
    Ok(())
}

/// The command line that runs one point again.
fn replay(name: &str) -> String {
    format!("farleaf check crash '{name}'")
}
