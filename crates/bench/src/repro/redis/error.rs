//! Redis errors: say why Redis could not be measured.

use std::{io, time::Duration};

use farleaf_resp::wire::{Reply, WireError};
use thiserror::Error;

use crate::repro::error::ReproError;

/// Failure of Redis or its bench.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RedisError {
    /// The program is not installed.
    #[error(
        "there is no {program} here: make setup installs it, or apt-get install redis-server \
         (Debian, Ubuntu), which brings redis-benchmark, too"
    )]
    Missing {
        /// Its name.
        program: &'static str,
    },
    /// The program cannot be run.
    #[error("cannot run {program}: {source}")]
    Run {
        /// Its name.
        program: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// Redis has no ranges of sorted sets by their bytes.
    #[error("redis-server is version {version}, and the comparison takes 6.2 or later")]
    TooOld {
        /// The version that was found.
        version: String,
    },
    /// Redis does not print its version.
    #[error("redis-server --version says nothing about its version, but \"{said}\"")]
    NoVersion {
        /// Its output instead.
        said: String,
    },
    /// The system gave it no folder or no port.
    #[error("cannot prepare for redis-server: {0}")]
    Prepare(#[source] io::Error),
    /// Redis does not answer.
    #[error("redis-server does not start within {} s{}", waited.as_secs(), logged(log))]
    NoStart {
        /// Time that the bench waited.
        waited: Duration,
        /// The last lines of its log.
        log: String,
    },
    /// Redis ended during the run.
    #[error(
        "redis-server has ended or been cut off while it was at work ({source}){}",
        logged(log)
    )]
    Gone {
        /// The system's error.
        source: io::Error,
        /// The last lines of its log.
        log: String,
    },
    /// The reply is no RESP, a refusal, or something else than the command asks for.
    #[error("redis-server does not do as asked: {0}")]
    Answer(#[source] WireError),
    /// `redis-benchmark` failed.
    #[error("redis-benchmark ended with {status}: {said}")]
    Benchmark {
        /// The exit status.
        status: String,
        /// Its output.
        said: String,
    },
    /// The output of `redis-benchmark` has another form than expected.
    #[error("redis-benchmark's figures have no {what}: \"{said}\"")]
    Figures {
        /// The missing part.
        what: &'static str,
        /// Its output.
        said: String,
    },
}

impl RedisError {
    /// An answer that the command should not have.
    pub(super) fn answer(command: &'static str, reply: &Reply<'_>) -> Self {
        RedisError::Answer(WireError::answer(command, reply))
    }
}

impl From<WireError> for RedisError {
    fn from(error: WireError) -> Self {
        match error {
            WireError::Gone(source) => RedisError::Gone { source, log: String::new() },
            error => RedisError::Answer(error),
        }
    }
}

impl From<WireError> for ReproError {
    fn from(error: WireError) -> Self {
        RedisError::from(error).into()
    }
}

fn logged(log: &str) -> String {
    if log.is_empty() { String::new() } else { format!("; the last it has logged: {log}") }
}
