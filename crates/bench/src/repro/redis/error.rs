//! Redis errors: say why Redis could not be measured.

use std::{io, time::Duration};

use thiserror::Error;

use super::resp::RespError;

/// What went wrong with Redis or its bench.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RedisError {
    /// The program is not there.
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
        /// Why.
        source: io::Error,
    },
    /// It has no ranges of sorted sets by their bytes.
    #[error("redis-server is version {version}, and the comparison takes 6.2 or later")]
    TooOld {
        /// What it is.
        version: String,
    },
    /// It does not say which version it is.
    #[error("redis-server --version says nothing about its version, but \"{said}\"")]
    NoVersion {
        /// What it says instead.
        said: String,
    },
    /// A folder or port of its own could not be had.
    #[error("cannot prepare for redis-server: {0}")]
    Prepare(#[source] io::Error),
    /// It does not answer.
    #[error("redis-server does not start within {} s{}", waited.as_secs(), logged(log))]
    NoStart {
        /// How long it was waited for.
        waited: Duration,
        /// The last of what it has logged.
        log: String,
    },
    /// It was at work, and is not any more.
    #[error(
        "redis-server has ended or been cut off while it was at work ({source}){}",
        logged(log)
    )]
    Gone {
        /// What the system says.
        source: io::Error,
        /// The last of what it has logged.
        log: String,
    },
    /// What it says cannot be understood.
    #[error("redis-server's reply to {command} cannot be read: {source}")]
    Reply {
        /// What was asked.
        command: &'static str,
        /// What is wrong.
        source: RespError,
    },
    /// It refuses, or answers something else than what was asked for.
    #[error("redis-server answers {command} with {said}")]
    Answer {
        /// What was asked.
        command: &'static str,
        /// What it says.
        said: String,
    },
    /// `redis-benchmark` failed.
    #[error("redis-benchmark ended with {status}: {said}")]
    Benchmark {
        /// How.
        status: String,
        /// What it said.
        said: String,
    },
    /// What `redis-benchmark` prints is not what it used to be.
    #[error("redis-benchmark's figures have no {what}: \"{said}\"")]
    Figures {
        /// What is missing.
        what: &'static str,
        /// What it printed.
        said: String,
    },
}

fn logged(log: &str) -> String {
    if log.is_empty() { String::new() } else { format!("; the last it has logged: {log}") }
}
