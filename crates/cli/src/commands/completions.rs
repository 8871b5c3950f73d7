//! `farleaf completions`: prints completions for a shell.

use std::io::Write;

use clap::CommandFactory;

use crate::args::{Cli, CompletionsArgs};
use crate::errors::Exit;
use crate::output::Console;

pub(super) fn run(args: &CompletionsArgs, console: &mut Console) -> anyhow::Result<Exit> {
    // The generator panics when it cannot write, so that it gets memory to write to.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "farleaf", &mut script);
    console.out().write_all(&script)?;
    Ok(Exit::Done)
}
