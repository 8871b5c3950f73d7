//! The `farleaf` command.
//!
//! [`args`] says what can be asked for, one file of [`commands`] does it, [`input`] reads records,
//! [`output`] prints, [`errors`] turns what went wrong into an exit code.

#![forbid(unsafe_code)]

mod args;
mod bench;
mod card;
mod cluster;
mod commands;
mod errors;
mod formats;
mod input;
mod output;
mod progress;
mod suggest;
mod tls;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;
use std::{env, io, panic, process};

use clap::{ColorChoice, CommandFactory, FromArgMatches};

use crate::args::Cli;
use crate::errors::Exit;
use crate::output::Console;

fn main() -> ExitCode {
    panic::set_hook(Box::new(|info| {
        let _ = writeln!(io::stderr(), "error: internal: {info}");
        process::exit(Exit::Internal as i32);
    }));

    let arguments: Vec<OsString> = env::args_os().collect();
    let command = Cli::command().color(color_choice(&arguments));
    let cli = command
        .try_get_matches_from(arguments)
        .and_then(|matches| Cli::from_arg_matches(&matches))
        .unwrap_or_else(|error| error.exit());

    let mut console = Console::new(&cli.global);
    let ended = commands::run(cli.command, &mut console)
        .and_then(|exit| console.flush().map(|()| exit).map_err(anyhow::Error::from));
    match ended {
        Ok(exit) => exit.into(),
        Err(error) if errors::is_broken_pipe(&error) => Exit::Done.into(),
        Err(error) => {
            // What was printed before the error belongs to the result; the error comes after it.
            let _ = console.flush();
            console.error(&error);
            errors::exit_of(&error).into()
        }
    }
}

/// The colour of help and of complaints about the command line, which are printed before that line
/// is understood.
fn color_choice(arguments: &[OsString]) -> ColorChoice {
    let mut words = arguments.iter().skip(1).take_while(|word| *word != "--");
    while let Some(word) = words.next() {
        let when = match word.to_str().and_then(|word| word.strip_prefix("--color")) {
            Some("") => words.next().and_then(|word| word.to_str()),
            Some(rest) => rest.strip_prefix('='),
            None => None,
        };
        match when {
            Some("always") => return ColorChoice::Always,
            Some("never") => return ColorChoice::Never,
            _ => {}
        }
    }
    ColorChoice::Auto
}
