//! Command: the `farleaf` program as a library, of which the program calls [`main`] alone.
//!
//! `args` parses the command line, one file of `commands` runs each command, [`input`] reads
//! records, `output` prints, and `errors` turns failures into exit codes.

#![forbid(unsafe_code)]

mod args;
#[cfg(feature = "lab")]
mod bench;
mod card;
mod cluster;
mod commands;
mod compressed;
mod config;
mod errors;
mod etcd;
mod formats;
pub mod input;
mod listen;
mod metrics;
mod one_of;
mod output;
mod progress;
mod serving;
mod settings;
mod source;
mod tls;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::process::ExitCode;
use std::{env, io, panic, process};

use clap::{ColorChoice, CommandFactory, FromArgMatches};

use crate::args::Cli;
use crate::config::Config;
use crate::errors::Exit;
use crate::output::Console;

/// The last words of a process whose memory file has no space, or no end, any more.
const BUS_ERROR: &str = "error: a mapped file cannot be read or written: its file system is full (free some \
                         space there; pools that are made without --no-reserve have all of theirs), or the \
                         file was cut short\n";

/// Runs the command that the arguments of this process name. Returns the exit code.
///
/// A panic prints one line and ends the process with the code of an internal error.
pub fn main() -> ExitCode {
    panic::set_hook(Box::new(|info| {
        let _ = writeln!(io::stderr(), "error: internal: {info}");
        // Asked for by RUST_BACKTRACE=1. Without debug information in the program, its lines come from farleaf.debug.
        let trace = Backtrace::capture();
        if trace.status() == BacktraceStatus::Captured {
            let _ = writeln!(io::stderr(), "{trace}");
        }
        process::exit(Exit::Internal as i32);
    }));

    farleaf_fabric::exit_on_bus_error(BUS_ERROR, Exit::Full as u8);

    let arguments: Vec<OsString> = env::args_os().collect();
    let plain = Cli::command().color(color_choice(&arguments));
    let found = Config::find(&plain, &arguments).and_then(|config| {
        config.check(&plain)?;
        Ok(config)
    });
    let config = match found {
        Ok(config) => config,
        Err(failure) => {
            let error = anyhow::Error::from(failure);
            Console::plain().error(&error);
            return errors::exit_of(&error).into();
        }
    };
    let command = config.apply(plain);
    let cli = command
        .clone()
        .try_get_matches_from(&arguments)
        .and_then(|matches| Cli::from_arg_matches(&matches))
        .unwrap_or_else(|error| {
            if let Some(variable) = config::blamed_variable(&error, &arguments) {
                let _ = writeln!(io::stderr(), "{variable} is set in the environment");
            }
            refuse(&error)
        });

    let mut console = Console::new(cli.global);
    let ended = commands::run(cli.command, &config, &command, &mut console)
        .and_then(|exit| console.flush().map(|()| exit).map_err(anyhow::Error::from));
    match ended {
        Ok(exit) => exit.into(),
        Err(error) if errors::is_broken_pipe(&error) => Exit::Done.into(),
        Err(error) => {
            // Output before the error belongs to the result; the error comes after it.
            let _ = console.flush();
            console.error(&error);
            if let Some(advice) = errors::advice(&error) {
                console.note(advice);
            }
            errors::exit_of(&error).into()
        }
    }
}

/// Prints what clap answers in place of a command: help, a version, or a complaint about the command line.
fn refuse(error: &clap::Error) -> ! {
    let plain = error.render().to_string();
    // Colours are left out if the command line has control bytes, so that none reach the terminal.
    let is_safe = output::printable(&plain) == plain;
    let printed =
        if is_safe { error.print() } else { write!(io::stderr(), "{}", output::printable(&plain)) };
    let is_answer = !error.use_stderr();
    match printed {
        Err(error) if is_answer && error.kind() != io::ErrorKind::BrokenPipe => {
            let _ = writeln!(io::stderr(), "error: cannot write to standard output: {error}");
            process::exit(Exit::Internal as i32)
        }
        _ => process::exit(error.exit_code()),
    }
}

/// The colour of help and of complaints about the command line, which are printed before that line
/// is understood.
fn color_choice(arguments: &[OsString]) -> ColorChoice {
    match config::word_of(arguments, "--color").as_deref().and_then(OsStr::to_str) {
        Some("always") => ColorChoice::Always,
        Some("never") => ColorChoice::Never,
        _ => ColorChoice::Auto,
    }
}
