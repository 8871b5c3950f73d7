//! Command tests: run the built command on pools in shared memory, as a person or a script does.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../../../fabric/tests/common/authority.rs"]
mod authority;
mod bench;
mod check;
mod churn;
mod cluster;
mod compute;
mod config;
mod engines;
mod etcd;
mod gateway;
mod keys;
mod leftovers;
mod listen;
mod load;
mod orderly;
mod pipes;
mod processes;
mod redis;
mod repro;
#[path = "../../../cluster/tests/common/etcd.rs"]
mod server;
mod serving;
mod space;
mod strangers;
mod usage;
mod verbs;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, fs, process, thread};

use serde_json::Value;

/// A pool of its own for one test, gone at its end.
struct Pool {
    folder: PathBuf,
}

/// The result of a run of the command.
struct Run {
    code: i32,
    out: Vec<u8>,
    err: String,
}

impl Pool {
    /// An address where there is no pool yet.
    fn missing() -> Pool {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let shared = Path::new("/dev/shm");
        let parent = if shared.is_dir() { shared.to_owned() } else { env::temp_dir() };
        // As long as every other: no folder's name begins another one's, by which a test finds processes.
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        Pool { folder: parent.join(format!("farleaf-cli-test-{}-{count:04}", process::id())) }
    }

    /// A pool with an empty table `t`.
    fn new() -> Pool {
        let pool = Pool::missing();
        pool.load("t", &["--create", "--pool-bytes", "64MiB"], b"").done();
        pool
    }

    fn uri(&self) -> String {
        format!("shm:{}", self.folder.display())
    }

    /// Runs `farleaf COMMAND POOL ARGUMENTS...`.
    fn run(&self, command: &str, arguments: &[&str]) -> Run {
        self.run_with(command, arguments, b"")
    }

    /// The same with an input.
    fn run_with(&self, command: &str, arguments: &[&str], input: &[u8]) -> Run {
        let uri = self.uri();
        let words: Vec<&str> =
            [command, &uri].into_iter().chain(arguments.iter().copied()).collect();
        farleaf(&words, input)
    }

    /// Loads `input` into `table`.
    fn load(&self, table: &str, options: &[&str], input: &[u8]) -> Run {
        let words: Vec<&str> = [table, "-"].into_iter().chain(options.iter().copied()).collect();
        self.run_with("load", &words, input)
    }

    /// All of a table, as lines.
    fn scan(&self, table: &str) -> String {
        self.run("scan", &[table]).done().text()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Run {
    fn text(&self) -> String {
        String::from_utf8(self.out.clone()).unwrap()
    }

    fn json(&self) -> Value {
        serde_json::from_slice(&self.out).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    /// It ended well.
    #[track_caller]
    fn done(self) -> Run {
        assert_eq!(self.code, 0, "{}", self.err);
        self
    }

    /// It ended with `code` and said `words` on standard error.
    #[track_caller]
    fn failed(self, code: i32, words: &str) -> Run {
        assert_eq!(self.code, code, "{}", self.err);
        assert!(self.err.contains(words), "{:?} is not in: {}", words, self.err);
        self
    }
}

fn command(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farleaf"));
    command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env_remove("NO_COLOR");
    // Independent of this machine's settings.
    command.env("FARLEAF_CONFIG", "");
    for server in ["MEMORY", "COMPUTE", "REDIS"] {
        command.env(format!("FARLEAF_{server}_LOG_LEVEL"), "warn");
    }
    command
}

/// Runs `farleaf WORDS...` with `input` on standard input.
fn farleaf(words: &[&str], input: &[u8]) -> Run {
    finish(command(words), input)
}

/// Runs it to its end with `input` on standard input.
fn finish(mut command: Command, input: &[u8]) -> Run {
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    // A command that does not read its input leaves a broken pipe, which is no failure.
    let writer = thread::spawn(move || drop(stdin.write_all(&input)));
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    writer.join().unwrap();
    let err = String::from_utf8(stderr).unwrap();
    Run { code: status.code().unwrap_or(-1), out: stdout, err }
}
