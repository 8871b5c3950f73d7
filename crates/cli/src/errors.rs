//! Errors: messages of the command, and their exit codes.

use std::error::Error;
use std::process::{ExitCode, ExitStatus};
use std::{fmt, io};

use farleaf::ErrorKind;
use farleaf_bench::{BenchError, repro::ReproError};
use farleaf_fabric::FabricError;
use farleaf_index::IndexError;
use farleaf_pool::PoolError;

use crate::input::InputError;

/// The end of a command. The numbers are an interface: `farleaf --help` and `docs/cli.md` list them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    /// All was done.
    Done = 0,
    /// A key was not found, a condition was not met, or there were problems.
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
    /// Input data is malformed, or a file cannot be read or written.
    Malformed = 7,
    /// The pool has no such table or compute server.
    NoTable = 8,
    /// There is no pool at the address.
    NoPool = 9,
    /// A fault of the program, or standard output that cannot be written.
    Internal = 70,
    /// Ctrl-C.
    Interrupted = 130,
}

impl Exit {
    /// The exit of another process of this program that ended with `code`.
    pub(crate) fn of_code(code: i32) -> Option<Exit> {
        use Exit::*;
        let all = [
            Done,
            NotFound,
            Usage,
            Unavailable,
            Full,
            Corrupt,
            OutcomeUnknown,
            Malformed,
            NoTable,
            NoPool,
            Internal,
            Interrupted,
        ];
        all.into_iter().find(|exit| *exit as i32 == code)
    }
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

    /// The pool has no such table or compute server.
    pub(crate) fn missing(message: impl Into<String>) -> Self {
        Failure { exit: Exit::NoTable, message: message.into(), source: None }
    }

    /// Another process of this program failed, and has said why.
    pub(crate) fn of_process(status: ExitStatus) -> Self {
        // A signal, or the system, ended it.
        let exit = status.code().and_then(Exit::of_code).unwrap_or(Exit::Unavailable);
        Failure { exit, message: format!("it said why, and ended with {status}"), source: None }
    }

    /// Input data that is malformed.
    pub(crate) fn malformed(message: impl Into<String>) -> Self {
        Failure { exit: Exit::Malformed, message: message.into(), source: None }
    }

    /// A resource cannot be had now.
    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Failure { exit: Exit::Unavailable, message: message.into(), source: None }
    }

    /// There is no room.
    pub(crate) fn full(message: impl Into<String>) -> Self {
        Failure { exit: Exit::Full, message: message.into(), source: None }
    }

    /// The pool or a file is damaged.
    pub(crate) fn corrupt(message: impl Into<String>) -> Self {
        Failure { exit: Exit::Corrupt, message: message.into(), source: None }
    }

    /// Input that cannot be read.
    pub(crate) fn unreadable(what: impl fmt::Display, source: io::Error) -> Self {
        let message = format!("cannot read {what}");
        Failure { exit: Exit::Malformed, message, source: Some(source) }
    }

    /// A file that cannot be written.
    pub(crate) fn unwritable(what: impl fmt::Display, source: io::Error) -> Self {
        let message = format!("cannot write {what}");
        Failure { exit: Exit::Malformed, message, source: Some(source) }
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
        ErrorKind::NotFound => Exit::NoTable,
        ErrorKind::NoPool => Exit::NoPool,
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
        | ReproError::ScaleWord { .. }
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
        | BenchError::Workload(_)
        | BenchError::Distribution(_)
        | BenchError::TooFewLines { .. }
        | BenchError::Table(_)
        | BenchError::SmallShare { .. }
        | BenchError::NoCluster => Exit::Usage,
        BenchError::Lines(_) | BenchError::Key(_) => Exit::Malformed,
        BenchError::Fabric(error) => exit_of_fabric(error),
        BenchError::Pool { source, .. } => exit_of_pool(source),
        BenchError::PoolTooSmall { .. } => Exit::Full,
        BenchError::Damaged { .. } | BenchError::Verify(_) => Exit::Corrupt,
        BenchError::Open(error) | BenchError::Load(error) | BenchError::Clear(error) => {
            exit_of_index(error)
        }
        BenchError::Thread(_) => Exit::Unavailable,
        _ => Exit::Internal,
    }
}

fn exit_of_fabric(error: &FabricError) -> Exit {
    match error {
        FabricError::Config(_) => Exit::Usage,
        FabricError::NoMemory { .. } => Exit::Full,
        FabricError::Damaged { .. } => Exit::Corrupt,
        _ => Exit::Unavailable,
    }
}

fn exit_of_pool(error: &PoolError) -> Exit {
    match error {
        PoolError::Fabric(_) | PoolError::Closed => Exit::Unavailable,
        PoolError::NoSlot(..) => Exit::Full,
        PoolError::Corrupt(_) | PoolError::Format(_) => Exit::Corrupt,
        // Sizes of the pool that the command line asks for.
        _ => Exit::Usage,
    }
}

fn exit_of_index(error: &IndexError) -> Exit {
    match error {
        IndexError::Invalid(_) => Exit::Usage,
        IndexError::NoTable(_) => Exit::NoTable,
        IndexError::Unavailable(_) | IndexError::Closed(_) => Exit::Unavailable,
        IndexError::OutcomeUnknown(_) => Exit::OutcomeUnknown,
        IndexError::Full(_) => Exit::Full,
        IndexError::Corrupt(_) => Exit::Corrupt,
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
