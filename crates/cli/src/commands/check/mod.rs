//! `farleaf check`: tests the engines in the simulator and with real processes.

pub(crate) mod args;
#[cfg(feature = "canary")]
mod canaries;
mod crash;
mod history;
mod panics;
mod processes;
mod seeds;

pub(crate) use args::{CheckArgs, CheckCommand};

use crate::errors::Exit;
use crate::output::Console;

pub(super) fn run(args: &CheckArgs, console: &mut Console) -> anyhow::Result<Exit> {
    match &args.command {
        None => seeds::run(&args.run, console),
        Some(CheckCommand::Crash(args)) => crash::run(args, console),
        #[cfg(feature = "canary")]
        Some(CheckCommand::Canaries(args)) => canaries::run(args, console),
        Some(CheckCommand::History(args)) => history::run(args, console),
        Some(CheckCommand::Processes(args)) => processes::run(args, console),
        Some(CheckCommand::Process(args)) => processes::run_process(args),
    }
}
