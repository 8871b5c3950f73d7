//! Errors: messages of the command, and their exit codes.

#[cfg(feature = "lab")]
mod lab;

use std::process::{ExitCode, ExitStatus};
use std::{fmt, io};

use clap::ValueEnum;
use farleaf::ErrorKind;
use farleaf_cluster::ClusterError;

use crate::input::InputError;

/// The end of a command. The numbers are an interface: `farleaf --help` lists them with the texts of the
/// variants, and `docs/cli.md` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[repr(u8)]
pub(crate) enum Exit {
    /// done
    Done = 0,
    /// a key was not found, a condition of put was not met, or verify or check found problems
    NotFound = 1,
    /// the command line is invalid
    Usage = 2,
    /// the pool is unavailable
    Unavailable = 3,
    /// the pool is full
    Full = 4,
    /// the pool is corrupt
    Corrupt = 5,
    /// a change may or may not have happened
    OutcomeUnknown = 6,
    /// input data is malformed, or a file cannot be read or written
    Malformed = 7,
    /// the pool has no such table or compute server
    NoTable = 8,
    /// there is no pool at this address
    NoPool = 9,
    /// internal error
    // A fault of the program, or standard output that cannot be written.
    Internal = 70,
    /// interrupted
    Interrupted = 130,
}

impl Exit {
    /// The exit of another process of this program that ended with `code`.
    pub(crate) fn of_code(code: i32) -> Option<Exit> {
        Exit::value_variants().iter().copied().find(|exit| *exit as i32 == code)
    }

    /// The list of all, one a line, for the help of the program.
    pub(crate) fn list() -> String {
        let line = |exit: &Exit| {
            let value = exit.to_possible_value().unwrap_or_default();
            let meaning = value.get_help().map(ToString::to_string).unwrap_or_default();
            format!("{:>5}  {meaning}", *exit as u8)
        };
        Exit::value_variants().iter().map(line).collect::<Vec<_>>().join("\n")
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit as u8)
    }
}

/// An error of this program itself, with the exit code that it ends in.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Failure {
    exit: Exit,
    message: String,
    source: Option<io::Error>,
}

impl Failure {
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Failure { exit, message: message.into(), source: None }
    }

    /// An invalid command line.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Failure::new(Exit::Usage, message)
    }

    /// Another process of this program failed, and has said why.
    pub(crate) fn of_process(status: ExitStatus) -> Self {
        // A signal, or the system, ended it.
        let exit = status.code().and_then(Exit::of_code).unwrap_or(Exit::Unavailable);
        Failure::new(exit, format!("it has ended with {status}; its own message stands above"))
    }

    /// Input data that is malformed.
    pub(crate) fn malformed(message: impl Into<String>) -> Self {
        Failure::new(Exit::Malformed, message)
    }

    /// A resource cannot be had now.
    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Failure::new(Exit::Unavailable, message)
    }

    /// Input that cannot be read.
    pub(crate) fn unreadable(what: impl fmt::Display, source: io::Error) -> Self {
        Failure { source: Some(source), ..Failure::malformed(format!("cannot read {what}")) }
    }

    /// A file that cannot be written.
    pub(crate) fn unwritable(what: impl fmt::Display, source: io::Error) -> Self {
        Failure { source: Some(source), ..Failure::malformed(format!("cannot write {what}")) }
    }
}

/// The exit code that `error` ends in. The outermost error that is known decides.
pub(crate) fn exit_of(error: &anyhow::Error) -> Exit {
    for cause in error.chain() {
        if let Some(failure) = cause.downcast_ref::<Failure>() {
            return failure.exit;
        }
        if let Some(error) = cause.downcast_ref::<farleaf::Error>() {
            return exit_of_kind(error.kind());
        }
        if let Some(error) = cause.downcast_ref::<ClusterError>() {
            return exit_of_kind(farleaf::Error::from(error.clone()).kind());
        }
        #[cfg(feature = "lab")]
        if let Some(exit) = lab::exit_of(cause) {
            return exit;
        }
        if cause.is::<InputError>() {
            return Exit::Malformed;
        }
    }
    Exit::Internal
}

fn exit_of_kind(kind: ErrorKind) -> Exit {
    match kind {
        ErrorKind::NotFound => Exit::NoTable,
        ErrorKind::NoPool => Exit::NoPool,
        ErrorKind::Invalid | ErrorKind::AlreadyExists | ErrorKind::WrongType => Exit::Usage,
        ErrorKind::Unavailable | ErrorKind::Closed | ErrorKind::Io => Exit::Unavailable,
        ErrorKind::Full => Exit::Full,
        ErrorKind::Corrupt => Exit::Corrupt,
        ErrorKind::OutcomeUnknown => Exit::OutcomeUnknown,
        _ => Exit::Internal,
    }
}

/// Returns what the caller of a command can do about `error`, where its message does not say.
pub(crate) fn advice(error: &anyhow::Error) -> Option<&'static str> {
    let is_closed = |error: &farleaf::Error| error.kind() == ErrorKind::Closed;
    let mut errors = error.chain().filter_map(|cause| cause.downcast_ref::<farleaf::Error>());
    errors.any(is_closed).then_some("run the command again: it opens the pool again")
}

/// The error with its causes, those left out whose words stand in the error already.
pub(crate) fn told(error: &anyhow::Error) -> String {
    let mut told = String::new();
    for cause in error.chain() {
        let words = cause.to_string();
        if told.is_empty() {
            told = words;
        } else if !told.contains(&words) {
            told = format!("{told}: {words}");
        }
    }
    told
}

/// Returns whether `error` only says that the reader of our output has gone.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let cause = error.root_cause();
    cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;
    use crate::input::Fault;

    #[test]
    fn errors_end_in_their_codes() {
        let usage = anyhow::Error::new(Failure::usage("no")).context("while parsing");
        assert_eq!(exit_of(&usage), Exit::Usage);
        let store = farleaf::Farleaf::open("nonsense:").expect_err("no address");
        assert_eq!(exit_of(&anyhow::Error::new(store).context("opening")), Exit::Usage);
        let fault = Fault::OpenQuote;
        let input = InputError { line: Some(3), record: 2, fault, fatal: true };
        assert_eq!(exit_of(&input.into()), Exit::Malformed);
        assert_eq!(exit_of(&anyhow::anyhow!("strange")), Exit::Internal);
        assert_eq!(exit_of_kind(ErrorKind::OutcomeUnknown), Exit::OutcomeUnknown);
        assert_eq!(exit_of_kind(ErrorKind::Full), Exit::Full);
        assert_eq!(exit_of_kind(ErrorKind::NotFound), Exit::NoTable);
    }

    #[test]
    fn the_help_lists_exits() {
        let told = Exit::list();
        assert!(told.starts_with("    0  done\n    1  a key was not found, a condition"), "{told}");
        assert!(told.ends_with("\n   70  internal error\n  130  interrupted"), "{told}");
    }

    #[test]
    fn a_process_hands_on_its_exit_code() {
        let ended = |raw: i32| exit_of(&Failure::of_process(ExitStatus::from_raw(raw)).into());
        assert_eq!(ended(2 << 8), Exit::Usage);
        assert_eq!(ended(70 << 8), Exit::Internal);
        assert_eq!(ended(9), Exit::Unavailable, "killed");
        assert_eq!(ended(99 << 8), Exit::Unavailable);
    }

    #[test]
    fn causes_are_told_once() {
        let inner = io::Error::other("no room");
        let error = anyhow::Error::new(inner).context("cannot write: no room").context("load");
        assert_eq!(told(&error), "load: cannot write: no room");
    }

    #[test]
    fn broken_pipes_are_told_from_other_errors() {
        let broken = anyhow::Error::new(io::Error::from(io::ErrorKind::BrokenPipe));
        assert!(is_broken_pipe(&broken.context("printing")));
        assert!(!is_broken_pipe(&anyhow::Error::new(io::Error::from(io::ErrorKind::NotFound))));
    }
}
