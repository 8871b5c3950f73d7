//! Child specification: passes a child its task as JSON on the command line, and reads its end.

use std::fmt::Display;
use std::fs;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use farleaf::{ErrorKind, Farleaf};
use rustix::process::{Signal, getpid, getppid, kill_process, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

use super::values::Shape;
use super::{client, judge, owners, resp, tables};
use crate::history::HistoryError;

/// A child's task.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Spec {
    /// Process id of the driver. The child does not outlive it.
    pub(super) parent: u32,
    pub(super) role: Role,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Role {
    Client(ClientSpec),
    /// Works through gateways.
    Resp(RespSpec),
    Tables(TablesSpec),
    Judge(JudgeSpec),
    /// Looks up the owners of a table's keys.
    Owners(OwnersSpec),
    /// Opens the pool at this address and dies, so that the next one recovers and sweeps.
    Die(String),
    /// The program itself with these arguments, as a user would run it.
    Command(Vec<String>),
}

/// Threads that do random operations on a table until standard input ends.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ClientSpec {
    pub(super) pool: String,
    pub(super) table: String,
    pub(super) shape: Shape,
    pub(super) keys: u32,
    /// One history file each.
    pub(super) logs: Vec<PathBuf>,
    /// The first thread's first number in the history; [`calls::CALLS_MAX`](super::calls::CALLS_MAX)
    /// belong to each thread.
    pub(super) client: u32,
    pub(super) seed: u64,
    /// Of a pool on a network: the file in which the process notes its name as a compute server and
    /// its address. It adds a line whenever it opens the pool.
    pub(super) names: Option<PathBuf>,
    /// The file in which the process notes its recoveries.
    #[serde(default)]
    pub(super) recoveries: Option<PathBuf>,
    /// Address at which other compute servers ask it, if not the one at which it listens.
    pub(super) advertise: Option<SocketAddr>,
    /// Bytes of memory that it exposes to other compute servers.
    #[serde(default)]
    pub(super) expose_bytes: u64,
    /// It stops work after this time, also if the driver stalls and never tells it to end: its history files
    /// would grow until the disk is full.
    pub(super) work_time_max: Duration,
}

/// Threads that do random operations on a table through gateways until standard input ends.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct RespSpec {
    /// The gateways, of which any may be away for a while.
    pub(super) gateways: Vec<SocketAddr>,
    pub(super) shape: Shape,
    pub(super) keys: u32,
    /// As of [`ClientSpec`].
    pub(super) logs: Vec<PathBuf>,
    pub(super) client: u32,
    pub(super) seed: u64,
    pub(super) work_time_max: Duration,
}

/// Looks up the owners of the keys of a table whose engine has owners.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct OwnersSpec {
    pub(super) pool: String,
    pub(super) table: String,
    /// The file for the result.
    pub(super) owners: PathBuf,
}

/// Makes, fills and drops tables until standard input ends.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct TablesSpec {
    pub(super) pool: String,
    /// Prefix of the tables' names; no other process has tables of such names.
    pub(super) prefix: String,
    pub(super) engine: String,
    pub(super) seed: u64,
}

/// Opens the pool after all others have ended, and reports its content.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct JudgeSpec {
    pub(super) pool: String,
    /// The table to read, and those that are to stay.
    pub(super) table: String,
    pub(super) shape: Shape,
    pub(super) stay: Vec<String>,
    pub(super) loads: Vec<LoadSpec>,
    /// The history file for the table's content, and its number in the history.
    pub(super) log: PathBuf,
    pub(super) client: u32,
    /// The file for the verdict.
    pub(super) verdict: PathBuf,
}

/// A `farleaf load` of [`super::loads`]' records.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct LoadSpec {
    pub(super) table: String,
    pub(super) sorted: bool,
    /// True if the process has reported success.
    pub(super) acknowledged: bool,
}

/// End of a child, by its exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChildEnd {
    /// It did its task.
    Done = 0,
    /// A check failed; standard error has the reason.
    Fault = 1,
    /// It could not begin, since the pool was unavailable or full for the moment.
    NotStarted = 3,
}

/// Reason why a child ended before its time.
#[derive(Debug)]
pub(super) enum ChildFailed {
    NotStarted(String),
    Fault(String),
}

impl ChildFailed {
    /// Turns an error in opening `pool` into the child's end.
    pub(super) fn at_start(pool: &str, error: farleaf::Error) -> ChildFailed {
        match error.kind() {
            kind if may_pass(pool, kind) => ChildFailed::NotStarted(error.to_string()),
            kind => ChildFailed::Fault(format!("{error} ({kind:?})")),
        }
    }

    /// A fault, because `what` cannot be done.
    pub(super) fn cannot<E: Display>(what: &str) -> impl FnOnce(E) -> ChildFailed {
        move |error| ChildFailed::Fault(format!("cannot {what}: {error}"))
    }

    /// Writes a child's findings into the file `what`.
    pub(super) fn write(
        path: &Path,
        what: &str,
        found: &impl Serialize,
    ) -> Result<(), ChildFailed> {
        let text =
            serde_json::to_vec(found).map_err(|error| ChildFailed::Fault(error.to_string()))?;
        fs::write(path, text).map_err(ChildFailed::cannot(what))
    }

    /// Turns an error in leaving the pool into the child's end. Others recover what it could not
    /// release.
    pub(super) fn at_end(pool: &str, error: farleaf::Error) -> Result<(), ChildFailed> {
        match error.kind() {
            kind if may_pass(pool, kind) => Ok(()),
            kind => Err(ChildFailed::Fault(format!("cannot leave the pool: {error} ({kind:?})"))),
        }
    }
}

/// Returns whether an error of that kind means only that `pool` is unavailable for now, or to this
/// process from now on.
pub(super) fn may_pass(pool: &str, kind: ErrorKind) -> bool {
    match kind {
        ErrorKind::Unavailable | ErrorKind::Full => true,
        ErrorKind::Closed | ErrorKind::OutcomeUnknown => is_network(pool),
        _ => false,
    }
}

/// Returns whether the process reaches the pool over links that may be cut. A process that is
/// silent there counts as dead.
pub(super) fn is_network(pool: &str) -> bool {
    pool.starts_with("tcp:")
}

impl From<HistoryError> for ChildFailed {
    fn from(error: HistoryError) -> Self {
        ChildFailed::Fault(format!("cannot write the history: {error}"))
    }
}

/// Runs a child process: the whole of a hidden command whose one argument is the driver's `spec`.
/// Writes failures to standard error.
///
/// The process dies with its parent.
pub fn run_child(spec: &str) -> ChildEnd {
    match try_run(spec) {
        Ok(()) => ChildEnd::Done,
        Err(ChildFailed::NotStarted(why)) => {
            eprintln!("not started: {why}");
            ChildEnd::NotStarted
        }
        Err(ChildFailed::Fault(why)) => {
            eprintln!("fault: {why}");
            ChildEnd::Fault
        }
    }
}

fn try_run(spec: &str) -> Result<(), ChildFailed> {
    let spec: Spec = serde_json::from_str(spec)
        .map_err(|error| ChildFailed::Fault(format!("not the driver's specification: {error}")))?;
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(ChildFailed::cannot("ask to die with the driver"))?;
    // The driver may have died before that call.
    let parent = getppid().map_or(0, |parent| parent.as_raw_nonzero().get() as u32);
    if parent != spec.parent {
        return Err(ChildFailed::Fault("the driver is gone, or is not the parent".to_owned()));
    }
    match spec.role {
        Role::Client(spec) => {
            let (stop, input) = until_end_of_input();
            stop_after(spec.work_time_max, &stop);
            client::run(&spec, &stop)?;
            // A client ends when the driver says so: the driver reports one that ends before.
            let _ = input.join();
            Ok(())
        }
        Role::Resp(spec) => {
            let (stop, input) = until_end_of_input();
            stop_after(spec.work_time_max, &stop);
            resp::run(&spec, &stop)?;
            let _ = input.join();
            Ok(())
        }
        Role::Tables(spec) => tables::run(&spec, &until_end_of_input().0),
        Role::Judge(spec) => judge::run(&spec),
        Role::Owners(spec) => owners::run(&spec),
        Role::Die(pool) => {
            let _db = Farleaf::open(&pool).map_err(|error| ChildFailed::at_start(&pool, error))?;
            let died = kill_process(getpid(), Signal::KILL);
            Err(ChildFailed::Fault(format!("cannot die: {died:?}")))
        }
        Role::Command(arguments) => {
            let program =
                std::env::current_exe().map_err(ChildFailed::cannot("find the program"))?;
            // The request to die with the driver survives `exec`.
            let error = Command::new(program).args(arguments).exec();
            Err(ChildFailed::cannot("run the program")(error))
        }
    }
}

/// A flag that is set when standard input ends (the driver wants the process to end, or is gone), and the
/// thread that waits for this.
fn until_end_of_input() -> (Arc<AtomicBool>, JoinHandle<()>) {
    let stop = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&stop);
    let thread = thread::spawn(move || {
        let _ = io::stdin().lock().read_to_end(&mut Vec::new());
        seen.store(true, Ordering::SeqCst);
    });
    (stop, thread)
}

/// Sets the flag after `time`.
fn stop_after(time: Duration, stop: &Arc<AtomicBool>) {
    let stop = Arc::clone(stop);
    thread::spawn(move || {
        thread::sleep(time);
        stop.store(true, Ordering::SeqCst);
    });
}
