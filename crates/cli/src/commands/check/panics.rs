//! Panics while the lab works: those of a run are its findings, any other is an internal error.

use std::io::Write;
use std::{io, panic, process};

use farleaf_check::run::running;

use crate::errors::Exit;

/// From now on a panic of a run is no error of the command. Where it cannot be caught, prints the run's command line, or the
/// name of its crash point, and ends the program.
pub(super) fn tell_panics_of_runs() {
    let before = panic::take_hook();
    panic::set_hook(Box::new(move |info| match running() {
        Some(_) if cfg!(panic = "unwind") => {}
        Some(name) => {
            let _ = writeln!(io::stderr(), "{name}\n    panicked: {info}");
            process::exit(Exit::NotFound as i32);
        }
        None => before(info),
    }));
}
