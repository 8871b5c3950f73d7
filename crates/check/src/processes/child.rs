//! Child process: a process that the driver has started.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{self, ChildStdin, Command, ExitStatus, Stdio};
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};

use super::commands::Hits;
use super::config::Launcher;
use super::links::Links;
use super::spec::{ChildEnd, Role, Spec};

/// Purpose of a child.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ChildKind {
    Client,
    Tables,
    /// `farleaf load`, by its number.
    Load(usize),
    /// A command that opens the pool, and so recovers the dead.
    Opener,
    /// A process that dies by itself.
    Dying,
    /// A command that makes a pool in a folder.
    Creation(PathBuf),
    Judge,
    /// A gateway for Redis's clients, by its place.
    Gateway(usize),
    /// A client of gateways.
    Resp,
    /// A short command.
    Command,
    /// A memory server.
    Memory,
    /// A process that looks up the owners of the keys.
    Owners,
}

/// Way in which a child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Done,
    /// Killed by the driver's `kill -9`.
    Killed,
    NotStarted,
    /// In an unexpected way.
    Badly(ExitStatus),
}

#[derive(Debug)]
pub(super) struct Child {
    pub(super) name: String,
    pub(super) kind: ChildKind,
    process: process::Child,
    /// Its end tells the process to end.
    input: Option<ChildStdin>,
    errors: PathBuf,
    /// Time to continue it, if it is stopped.
    pub(super) continue_at: Option<Instant>,
    /// Time to kill it, if that is planned.
    pub(super) kill_at: Option<Instant>,
    is_killed: bool,
    /// Its kill and its stops.
    pub(super) hits: Hits,
    /// Its links to memory servers. They end after the process.
    pub(super) links: Option<Links>,
}

impl Child {
    /// Starts it. Standard error goes to `<folder>/<name>.err`, standard output to `output` if that
    /// is given.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn start(
        launcher: &Launcher,
        folder: &Path,
        name: String,
        kind: ChildKind,
        role: Role,
        output: Option<&Path>,
    ) -> io::Result<Child> {
        let spec = Spec { parent: process::id(), role };
        let errors = folder.join(format!("{name}.err"));
        let output = match output {
            Some(path) => File::create(path)?.into(),
            None => Stdio::null(),
        };
        let mut command = Command::new(&launcher.program);
        for (name, value) in &launcher.environment {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let mut process = command
            .args(&launcher.arguments)
            .arg(serde_json::to_string(&spec)?)
            // The driver handles Ctrl-C.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(output)
            .stderr(File::create(&errors)?)
            .spawn()?;
        let input = process.stdin.take();
        let (continue_at, kill_at, links) = (None, None, None);
        let (is_killed, hits) = (false, Hits::default());
        Ok(Child {
            name,
            kind,
            process,
            input,
            errors,
            continue_at,
            kill_at,
            is_killed,
            hits,
            links,
        })
    }

    pub(super) fn is_killed(&self) -> bool {
        self.is_killed
    }

    fn may_die(&self) -> bool {
        self.is_killed || self.kind == ChildKind::Dying
    }

    /// `kill -9`.
    pub(super) fn kill(&mut self) {
        self.is_killed = true;
        self.hits.kill();
        self.signal(Signal::KILL);
    }

    pub(super) fn stop(&mut self, until: Instant) {
        self.continue_at = Some(until);
        self.hits.stop();
        self.signal(Signal::STOP);
    }

    pub(super) fn go_on(&mut self) {
        self.continue_at = None;
        self.signal(Signal::CONT);
        self.hits.go_on();
    }

    /// Tells it to end by itself.
    pub(super) fn end(&mut self) {
        self.input = None;
    }

    /// Returns its exit status, if it has ended.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn exit(&mut self) -> io::Result<Option<ExitStatus>> {
        self.process.try_wait()
    }

    /// Returns the way in which it ended, if it has.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn ended(&mut self) -> io::Result<Option<Ended>> {
        let Some(status) = self.exit()? else { return Ok(None) };
        let unavailable = Some(ChildEnd::NotStarted as i32);
        // `farleaf` exits with 4 for a full pool, 3 for one that it cannot reach, and 6 for a
        // change with an unknown outcome.
        Ok(Some(match status.code() {
            Some(0) => Ended::Done,
            None if self.may_die() && status.signal() == Some(9) => Ended::Killed,
            code if code == unavailable => Ended::NotStarted,
            Some(4 | 6)
                if !matches!(self.kind, ChildKind::Client | ChildKind::Resp | ChildKind::Judge) =>
            {
                Ended::NotStarted
            }
            _ => Ended::Badly(status),
        }))
    }

    /// Returns the last lines of its standard error.
    pub(super) fn last_errors(&self) -> String {
        const BYTES_MAX: usize = 2000;
        let said = fs::read(&self.errors).unwrap_or_default();
        let said = String::from_utf8_lossy(&said[said.len().saturating_sub(BYTES_MAX)..]);
        said.trim().to_owned()
    }

    fn signal(&self, signal: Signal) {
        // The number is the process's own, as nobody has waited for it yet; it may have ended.
        let _ = kill_process(Pid::from_child(&self.process), signal);
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if matches!(self.process.try_wait(), Ok(None)) {
            self.signal(Signal::KILL);
            let _ = self.process.wait();
        }
    }
}
