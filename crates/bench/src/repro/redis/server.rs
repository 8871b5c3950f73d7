//! Redis server: starts a private Redis on a free port, in its own folder, without persistence.
//!
//! The server ends, and its folder goes, when this process drops it or ends in any way.

use std::{
    ffi::OsStr,
    fs,
    io::{self, ErrorKind},
    net::{Ipv4Addr, SocketAddr, TcpListener},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    process::{self, Child, ChildStdin, Command, Output, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use farleaf_resp::wire::Wire;

use super::error::RedisError;

pub(super) const SERVER: &str = "redis-server";
/// The first version that has ranges of sorted sets by `ZRANGE ... BYLEX`.
const VERSION_MIN: (u32, u32) = (6, 2);
/// The longest silence of a server: no command here takes as long.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(60);
/// The longest times until it answers, and until it ends.
const START_TIME: Duration = Duration::from_secs(10);
const END_TIME: Duration = Duration::from_secs(5);
/// Time between two checks of a server while another program works on it.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Attempts to start: another process may take a port between its choice and its use.
const ATTEMPTS: usize = 3;
/// Runs a server until standard input ends in any way, and removes its folder (the first word).
/// Signals are left to the parent.
const RUN: &str = "trap '' INT TERM HUP QUIT; folder=$1; shift; \
    \"$@\" </dev/null >/dev/null 2>&1 & server=$!; cat >/dev/null; \
    kill -9 $server 2>/dev/null; wait $server; rm -rf \"$folder\"";

/// A Redis that is at work.
#[derive(Debug)]
pub(super) struct RedisServer {
    process: Child,
    /// Its end ends the server.
    stdin: Option<ChildStdin>,
    pub(super) address: SocketAddr,
    folder: PathBuf,
    pub(super) version: String,
}

impl RedisServer {
    /// Starts one, and waits until it answers.
    ///
    /// # Errors
    /// `Missing`, `TooOld`, `NoVersion`, `Run`, `Prepare`, `NoStart`.
    pub(super) fn start() -> Result<RedisServer, RedisError> {
        RedisServer::start_with(&[])
    }

    /// The same with more options.
    ///
    /// # Errors
    /// As [`RedisServer::start`].
    pub(super) fn start_with(options: &[&str]) -> Result<RedisServer, RedisError> {
        let version = version()?;
        let mut attempt = 1;
        loop {
            let mut server = RedisServer::spawn(version.clone(), options)?;
            match server.wait() {
                Ok(()) => return Ok(server),
                Err(_)
                    if attempt < ATTEMPTS && server.log().contains("Failed listening on port") =>
                {
                    attempt += 1;
                }
                Err(error) => return Err(server.explain(error)),
            }
        }
    }

    fn spawn(version: String, options: &[&str]) -> Result<RedisServer, RedisError> {
        let folder = folder().map_err(RedisError::Prepare)?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(RedisError::Prepare)?;
        let address = listener.local_addr().map_err(RedisError::Prepare)?;
        drop(listener);
        let port = address.port().to_string();
        let mut process = Command::new("sh")
            .args(["-c", RUN, "farleaf-redis"])
            .arg(&folder)
            .args([SERVER, "--port", &port, "--bind", "127.0.0.1", "--databases", "1"])
            .args(["--save", "", "--appendonly", "no", "--daemonize", "no"])
            .args(options)
            .args([OsStr::new("--dir"), folder.as_ref()])
            .args([OsStr::new("--logfile"), folder.join("log").as_ref()])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|source| RedisError::Run { program: SERVER, source })?;
        let stdin = process.stdin.take();
        Ok(RedisServer { process, stdin, address, folder, version })
    }

    /// Waits until the server answers, and is the one that this started.
    fn wait(&mut self) -> Result<(), RedisError> {
        let end = Instant::now() + START_TIME;
        loop {
            let wire = Wire::connect(self.address, SILENCE_MAX);
            let ask = [&b"CONFIG"[..], b"GET", b"dir"];
            let told = wire.and_then(|mut wire| wire.ask("CONFIG GET", &ask));
            match told.map_err(RedisError::from) {
                Ok(told) if told.lines().any(|dir| Path::new(dir) == self.folder) => return Ok(()),
                Ok(_) | Err(RedisError::Gone { .. }) => {}
                Err(error) => return Err(error),
            }
            if Instant::now() >= end || self.log().contains("Failed listening on port") {
                return Err(RedisError::NoStart { waited: START_TIME, log: String::new() });
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Connects to the server.
    ///
    /// # Errors
    /// `Gone`.
    pub(super) fn connect(&self) -> Result<Wire, RedisError> {
        let wire = Wire::connect(self.address, SILENCE_MAX);
        wire.map_err(|error| self.explain(error.into()))
    }

    /// Runs a program that talks to this server, to its end.
    ///
    /// # Errors
    /// `Gone`, `Missing`, `Run`.
    pub(super) fn output(
        &self,
        program: &'static str,
        words: &[&str],
    ) -> Result<Output, RedisError> {
        output_of(program, words, || self.connect().map(drop))
    }

    /// Adds the last lines of the server's log to an error.
    pub(super) fn explain(&self, error: RedisError) -> RedisError {
        match error {
            RedisError::Gone { source, .. } => RedisError::Gone { source, log: self.log() },
            RedisError::NoStart { waited, .. } => RedisError::NoStart { waited, log: self.log() },
            other => other,
        }
    }

    /// The last line of its log.
    fn log(&self) -> String {
        let log = fs::read_to_string(self.folder.join("log")).unwrap_or_default();
        log.lines().last().unwrap_or_default().to_owned()
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let end = Instant::now() + END_TIME;
        while matches!(self.process.try_wait(), Ok(None)) {
            if Instant::now() >= end {
                // Nothing more can be done about a failure of this.
                let _ = self.process.kill();
                let _ = self.process.wait();
                break;
            }
            thread::sleep(Duration::from_millis(2));
        }
        // Usually the server's own shell has done this.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Runs a program that talks to a server, to its end.
///
/// Such a program may try for ever to reach a server that has ended. So this asks `is_there` once a second, and kills the
/// program once the server is not.
///
/// # Errors
/// `Missing`, `Run`; those of `is_there`.
pub(super) fn output_of(
    program: &'static str,
    words: &[&str],
    is_there: impl Fn() -> Result<(), RedisError>,
) -> Result<Output, RedisError> {
    is_there()?;
    let mut command = command(program, words);
    let failed = |source| cannot_run(program, source);
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(failed)?;
    let mut look = Instant::now() + LOOK_EVERY;
    while child.try_wait().map_err(failed)?.is_none() {
        thread::sleep(Duration::from_millis(5));
        if Instant::now() < look {
            continue;
        }
        if let Err(error) = is_there() {
            // It may have ended by itself, and then this fails.
            let _ = child.kill();
            child.wait().map_err(failed)?;
            return Err(error);
        }
        look = Instant::now() + LOOK_EVERY;
    }
    let output = child.wait_with_output().map_err(failed)?;
    if !output.status.success() {
        // If the server is gone, that is the cause to report.
        is_there()?;
    }
    Ok(output)
}

/// Makes a new folder that no other user can read.
fn folder() -> io::Result<PathBuf> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("farleaf-redis-{}-{count}", process::id()));
    fs::DirBuilder::new().mode(0o700).create(&folder)?;
    // In the form in which the server prints it.
    Path::canonicalize(&folder)
}

fn command(program: &str, words: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(words).stdin(Stdio::null());
    command
}

fn cannot_run(program: &'static str, source: io::Error) -> RedisError {
    match source.kind() {
        ErrorKind::NotFound => RedisError::Missing { program },
        _ => RedisError::Run { program, source },
    }
}

/// The version of the server that is installed.
fn version() -> Result<String, RedisError> {
    let output =
        command(SERVER, &["--version"]).output().map_err(|source| cannot_run(SERVER, source))?;
    let said = String::from_utf8_lossy(&output.stdout);
    check_version(said.trim())
}

/// Takes the version out of `Redis server v=7.0.15 sha=...`.
fn check_version(said: &str) -> Result<String, RedisError> {
    let unknown = || RedisError::NoVersion { said: said.to_owned() };
    let version = said.split_whitespace().find_map(|word| word.strip_prefix("v="));
    let version = version.ok_or_else(unknown)?;
    let mut parts = version.split('.').map(str::parse::<u32>);
    let (Some(Ok(major)), Some(Ok(minor))) = (parts.next(), parts.next()) else {
        return Err(unknown());
    };
    if (major, minor) < VERSION_MIN {
        return Err(RedisError::TooOld { version: version.to_owned() });
    }
    Ok(version.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_and_old_ones_refused() {
        let told = |said: &str| check_version(said).map_err(|error| error.to_string());
        let now = "Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64 build=1";
        assert_eq!(told(now), Ok("7.0.15".to_owned()));
        assert_eq!(told("Redis server v=6.2.0"), Ok("6.2.0".to_owned()));
        let old = told("Redis server v=5.0.14 sha=00000000:0").expect_err("it is old");
        assert!(old.contains("version 5.0.14, and the comparison takes 6.2"), "{old}");
        for said in ["", "bash: no", "Redis server v=next"] {
            let error = told(said).expect_err("it is no version");
            assert!(error.contains("says nothing about its version"), "{error}");
        }
    }
}
