//! `farleaf check processes`, and the hidden command that its children run.

mod args;

use std::env;
use std::process;

pub(crate) use self::args::{ProcessArgs, ProcessesArgs};
use anyhow::Context;
use farleaf_check::processes::{self, Launcher, ProcessesError, Report, run_child};
use serde_json::to_value;

use crate::commands::stop_on_interrupt;
use crate::errors::{Exit, Failure};
use crate::output::{Console, counted};

/// The hidden command.
const CHILD: [&str; 2] = ["check", "process"];

pub(in crate::commands) fn run(
    args: &ProcessesArgs,
    console: &mut Console,
) -> anyhow::Result<Exit> {
    let launcher = Launcher {
        program: env::current_exe().context("cannot find this program")?,
        arguments: CHILD.map(Into::into).to_vec(),
    };
    let stop = stop_on_interrupt()?;
    let mut note = |report: &Report| {
        let (counts, rounds) = (&report.counts, counted(report.rounds, "round"));
        console.detail(format_args!(
            "{rounds} in {:.1} s of {:.0} s: {} operations, {} kills, {} stops, nothing found",
            report.seconds,
            args.time().as_secs_f64(),
            counts.operations,
            counts.kills(),
            counts.stops
        ));
    };
    let ended = processes::run(&args.config()?, &launcher, &stop, &mut note);
    let report = match ended {
        Err(ProcessesError::Config(why)) => return Err(Failure::usage(why).into()),
        report => report?,
    };
    if console.json {
        console.json_line(&to_value(&report)?)?;
    } else {
        print(&report, console)?;
    }
    if let Some(failure) = &report.failure {
        let folder = failure.folder.display();
        console.warn(format_args!("round {}: {}", failure.round, failure.what));
        console.note(format_args!(
            "{folder} has what clients asked and were told (*.jsonl) and what processes said (*.err)"
        ));
        console.note(format_args!("farleaf verify {} looks at the pool", failure.pool));
        console.note(format_args!(
            "the driver's choices come again with: {}; real processes do not replay exactly, so \
             that it may take several runs, or not happen again",
            args.again()
        ));
        return Ok(Exit::NotFound);
    }
    Ok(if report.is_interrupted { Exit::Interrupted } else { Exit::Done })
}

fn print(report: &Report, console: &mut Console) -> std::io::Result<()> {
    let counts = &report.counts;
    let mut rows = vec![
        ("seed", report.seed.to_string()),
        ("rounds", report.rounds.to_string()),
        ("operations", counts.operations.to_string()),
        ("refused", counts.refused.to_string()),
        ("without answer", counts.unknown.to_string()),
        ("keys checked", counts.keys_checked.to_string()),
        ("keys undecided", counts.keys_undecided.to_string()),
        ("clients started", counts.clients.to_string()),
        ("clients killed", counts.kills_clients.to_string()),
        ("makers of tables killed", counts.kills_tables.to_string()),
        ("loads killed", counts.kills_loads.to_string()),
        ("loads done", counts.loads.to_string()),
        ("killed over recovery", counts.kills_openers.to_string()),
        ("killed over a new pool", counts.kills_creations.to_string()),
        ("stopped", counts.stops.to_string()),
        ("could not start", counts.not_started.to_string()),
        ("tables left behind", counts.tables_left.to_string()),
        ("seconds", format!("{:.1}", report.seconds)),
        ("seconds of checking", format!("{:.1}", report.check_seconds)),
        ("found", if report.failure.is_some() { "a failure" } else { "nothing" }.to_owned()),
    ];
    if let Some(folder) = &report.folder {
        rows.push(("kept", folder.display().to_string()));
    }
    console.fields(&rows)
}

/// A child of the driver. Ends the process: its exit codes are the driver's business.
pub(in crate::commands) fn run_process(args: &ProcessArgs) -> ! {
    process::exit(run_child(&args.spec) as i32)
}
