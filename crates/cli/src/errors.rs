//! Errors: messages of the command, and their exit codes.

use std::error::Error;
use std::process::ExitCode;
use std::{fmt, io};

use farleaf::ErrorKind;
use farleaf_bench::{BenchError, repro::ReproError};
use farleaf_index::IndexError;

use crate::input::InputError;

/// How a command ended. The numbers are an interface: `farleaf --help` and `docs/cli.md` list them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    /// All was done.
    Done = 0,
    /// Something was not found, a condition was not met, or there were problems.
    NotFound = 1,
    /// The command line makes no sense.
    Usage = 2,
    /// The pool is unavailable.
    Unavailable = 3,
    /// The pool is full.
    Full = 4,
    /// The pool is corrupt.
    Corrupt = 5,
    /// A change may or may not have happened.
    OutcomeUnknown = 6,
    /// Input data is malformed or cannot be read.
    Malformed = 7,
    /// A fault of the program, or output that cannot be written.
    Internal = 70,
    /// Ctrl-C.
    Interrupted = 130,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit as u8)
    }
}

/// An error of this program itself, with the exit code that it ends in.
#[derive(Debug)]
pub(crate) struct Failure {
    exit: Exit,
    message: String,
    source: Option<io::Error>,
}

impl Failure {
    /// A command line that makes no sense.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Failure { exit: Exit::Usage, message: message.into(), source: None }
    }

    /// What was named is not there.
    pub(crate) fn missing(message: impl Into<String>) -> Self {
        Failure { exit: Exit::NotFound, message: message.into(), source: None }
    }

    /// Input data that is malformed.
    pub(crate) fn malformed(message: impl Into<String>) -> Self {
        Failure { exit: Exit::Malformed, message: message.into(), source: None }
    }

    /// What is needed cannot be had now.
    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Failure { exit: Exit::Unavailable, message: message.into(), source: None }
    }

    /// There is no room.
    pub(crate) fn full(message: impl Into<String>) -> Self {
        Failure { exit: Exit::Full, message: message.into(), source: None }
    }

    /// What is there is damaged.
    pub(crate) fn corrupt(message: impl Into<String>) -> Self {
        Failure { exit: Exit::Corrupt, message: message.into(), source: None }
    }

    /// Input that cannot be read.
    pub(crate) fn unreadable(what: impl fmt::Display, source: io::Error) -> Self {
        let message = format!("cannot read {what}");
        Failure { exit: Exit::Malformed, message, source: Some(source) }
    }

    /// Output other than standard output that cannot be written.
    pub(crate) fn unwritable(what: impl fmt::Display, source: io::Error) -> Self {
        let message = format!("cannot write {what}");
        Failure { exit: Exit::Internal, message, source: Some(source) }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for Failure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_ref().map(|source| source as _)
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
        if let Some(error) = cause.downcast_ref::<BenchError>() {
            return exit_of_bench(error);
        }
        if let Some(error) = cause.downcast_ref::<ReproError>() {
            return exit_of_repro(error);
        }
        if cause.is::<InputError>() {
            return Exit::Malformed;
        }
    }
    Exit::Internal
}

fn exit_of_kind(kind: ErrorKind) -> Exit {
    match kind {
        ErrorKind::NotFound => Exit::NotFound,
        ErrorKind::Invalid | ErrorKind::AlreadyExists => Exit::Usage,
        ErrorKind::Unavailable | ErrorKind::Closed | ErrorKind::Io => Exit::Unavailable,
        ErrorKind::Full => Exit::Full,
        ErrorKind::Corrupt => Exit::Corrupt,
        ErrorKind::OutcomeUnknown => Exit::OutcomeUnknown,
        _ => Exit::Internal,
    }
}

fn exit_of_repro(error: &ReproError) -> Exit {
    match error {
        ReproError::UnknownExperiment { .. }
        | ReproError::Scale { .. }
        | ReproError::Setting(_)
        | ReproError::Chosen { .. }
        | ReproError::TooSmall { .. } => Exit::Usage,
        ReproError::Bench(error) => exit_of_bench(error),
        ReproError::Host(_) | ReproError::Redis(_) => Exit::Unavailable,
        _ => Exit::Internal,
    }
}

fn exit_of_bench(error: &BenchError) -> Exit {
    match error {
        BenchError::Config(_)
        | BenchError::Distribution(_)
        | BenchError::TooFewLines { .. }
        | BenchError::Table(_)
        | BenchError::Open(IndexError::Invalid(_))
        | BenchError::SmallShare { .. }
        | BenchError::Pool { .. } => Exit::Usage,
        BenchError::Lines(_) | BenchError::Key(_) => Exit::Malformed,
        BenchError::Fabric(_) => Exit::Unavailable,
        BenchError::PoolTooSmall { .. } => Exit::Full,
        BenchError::Damaged { .. } | BenchError::Verify(_) => Exit::Corrupt,
        _ => Exit::Internal,
    }
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

/// Whether `error` only says that whoever read our output has gone.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let cause = error.root_cause();
    cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
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
