//! `farleaf check processes`: tests real processes on one pool; a hidden command runs its children.

mod args;

use std::env;
use std::process;

pub(crate) use self::args::{ProcessArgs, ProcessesArgs};
use anyhow::Context;
use farleaf_check::processes::{
    self, CommandsReport, Launcher, NetworkReport, ProcessesError, ProcessesReport, Times,
    run_child,
};
use serde_json::to_value;

use crate::commands::stop_on_interrupt;
use crate::config::environment_of_parts;
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
        environment: environment_of_parts(),
    };
    let config = args.config()?;
    let stop = stop_on_interrupt()?;
    let mut note = |report: &ProcessesReport| {
        let (counts, rounds) = (&report.counts, counted(report.rounds, "round"));
        console.detail(format_args!(
            "{rounds} in {:.1} s of {:.0} s: {} operations, {} kills, {} stops, nothing found",
            report.seconds,
            config.time.as_secs_f64(),
            counts.operations,
            counts.kills(),
            counts.stops
        ));
    };
    let ended = processes::run(&config, &launcher, &stop, &mut note);
    let report = match ended {
        Err(ProcessesError::Config(why)) => return Err(Failure::usage(why).into()),
        report => report?,
    };
    if console.args.json {
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
        match &config.network {
            None => console.note(format_args!("farleaf verify {} looks at the pool", failure.pool)),
            Some(network) => console.note(format_args!(
                "farleaf up --memory-servers {} --folder {} serves the pool again",
                network.memory_servers, failure.pool
            )),
        }
        console.note(format_args!(
            "the driver's choices come again with: {}; real processes do not replay exactly, so \
             that it may take several runs, or not happen again",
            args.again()
        ));
        return Ok(Exit::NotFound);
    }
    Ok(if report.is_interrupted { Exit::Interrupted } else { Exit::Done })
}

fn print(report: &ProcessesReport, console: &mut Console) -> std::io::Result<()> {
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
        ("gateways killed", counts.kills_gateways.to_string()),
        ("clients of gateways killed", counts.kills_resp.to_string()),
        ("stopped", counts.stops.to_string()),
        ("could not start", counts.not_started.to_string()),
        ("tables left behind", counts.tables_left.to_string()),
    ];
    rows.extend(commands_rows(&report.commands));
    if let Some(network) = &report.network {
        rows.extend(network_rows(network));
    }
    rows.extend([
        ("seconds", format!("{:.1}", report.seconds)),
        ("seconds of checking", format!("{:.1}", report.check_seconds)),
        ("found", if report.failure.is_some() { "a failure" } else { "nothing" }.to_owned()),
    ]);
    if let Some(folder) = &report.folder {
        rows.push(("kept", folder.display().to_string()));
    }
    console.fields(&rows)
}

fn commands_rows(commands: &CommandsReport) -> Vec<(&'static str, String)> {
    vec![
        ("commands run", commands.run.to_string()),
        ("commands killed", commands.killed.to_string()),
        ("commands with unknown outcome", commands.unknown.to_string()),
        ("commands without the pool", commands.unavailable.to_string()),
        ("longest command, ms", format!("{:.0}", commands.longest_ms)),
        ("longest after a death or stop, ms", format!("{:.0}", commands.longest_beyond_ms)),
        ("recoveries", commands.recoveries.to_string()),
        ("recoveries in vain", commands.recoveries_in_vain.to_string()),
        ("recoveries at once", commands.recoveries_at_once.to_string()),
    ]
}

fn network_rows(network: &NetworkReport) -> Vec<(&'static str, String)> {
    let times = |times: &Times| {
        let Times { count, never, median_ms, longest_ms, .. } = times;
        let never = if *never > 0 { format!(", never {never}") } else { String::new() };
        match count {
            0 => "-".to_owned(),
            _ => format!("median {median_ms:.0}, longest {longest_ms:.0}, of {count}{never}"),
        }
    };
    vec![
        ("memory servers", network.memory_servers.to_string()),
        ("memory servers killed", network.kills_memory.to_string()),
        ("memory servers stopped", network.stops_memory.to_string()),
        ("links cut", network.cuts.to_string()),
        ("links cut one way", network.half_cuts.to_string()),
        ("links slowed", network.slows.to_string()),
        ("connections ended", network.ends.to_string()),
        ("call links cut", network.call_cuts.to_string()),
        ("call links cut one way", network.call_half_cuts.to_string()),
        ("call links slowed", network.call_slows.to_string()),
        ("call connections ended", network.call_ends.to_string()),
        ("pools opened anew", network.opened_anew.to_string()),
        ("lease, ms", format!("{:.0}", network.lease_ms)),
        ("killed, keys served after, ms", times(&network.kills_compute_served)),
        ("killed, stall of the others, ms", times(&network.kills_compute_stalls)),
        ("memory server listens after, ms", times(&network.starts_listen)),
        ("memory server back, keys served after, ms", times(&network.starts_served)),
        ("link or stopped back, keys served after, ms", times(&network.returns_served)),
    ]
}

/// A child of the driver. Ends the process: its exit codes are the driver's business.
pub(in crate::commands) fn run_process(args: &ProcessArgs) -> ! {
    process::exit(run_child(&args.spec) as i32)
}
