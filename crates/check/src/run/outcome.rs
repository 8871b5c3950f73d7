//! Outcome: the result of a run, and its statistics.

use std::fmt;

use crate::history::History;

/// The check that a run failed, and how.
#[derive(Clone, Debug, PartialEq)]
pub enum Failure {
    /// An assertion, or an index out of range.
    Panicked(String),
    /// The table could not be made.
    Setup(String),
    /// An operation found remote memory not to hold what it must.
    Corrupt(String),
    /// A valid operation was refused.
    Refused(String),
    /// A client or server did not end after the faults had stopped.
    Stuck(String),
    /// The recovery of the dead failed.
    Recovery(String),
    /// The answers of clients contradict each other.
    NotLinearizable {
        /// The key, if it concerns one.
        key: Option<Vec<u8>>,
        /// The contradiction.
        why: String,
        /// The events that show it, by their places in the history.
        events: Vec<usize>,
    },
    /// The table's own check found problems.
    Damaged(Vec<String>),
    /// The pool's accounts do not close.
    Leaked(String),
    /// The same scenario ran differently the second time.
    Diverged(String),
}

impl Failure {
    /// A word for the kind of failure.
    pub fn kind(&self) -> &'static str {
        match self {
            Failure::Panicked(_) => "panicked",
            Failure::Setup(_) => "setup",
            Failure::Corrupt(_) => "corrupt",
            Failure::Refused(_) => "refused",
            Failure::Stuck(_) => "stuck",
            Failure::Recovery(_) => "recovery",
            Failure::NotLinearizable { .. } => "not-linearizable",
            Failure::Damaged(_) => "damaged",
            Failure::Leaked(_) => "leaked",
            Failure::Diverged(_) => "diverged",
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Panicked(why) => write!(f, "panicked: {why}"),
            Failure::Setup(why) => write!(f, "the table could not be made: {why}"),
            Failure::Corrupt(why) => write!(f, "remote memory is corrupt: {why}"),
            Failure::Refused(why) => write!(f, "a valid operation was refused: {why}"),
            Failure::Stuck(why) => write!(f, "no end after the faults had stopped: {why}"),
            Failure::Recovery(why) => write!(f, "recovery failed: {why}"),
            Failure::NotLinearizable { why, .. } => write!(f, "not linearizable: {why}"),
            Failure::Damaged(problems) => {
                write!(f, "the table is damaged: {}", problems.join("; "))
            }
            Failure::Leaked(why) => write!(f, "memory is not accounted for: {why}"),
            Failure::Diverged(why) => write!(f, "the same scenario ran differently: {why}"),
        }
    }
}

/// Statistics of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunStats {
    /// Operations of clients.
    pub ops: u64,
    /// Operations of these that are scans.
    pub scans: u64,
    /// Operations of these that an owner answered in one message with others.
    pub batched: u64,
    /// Operations of these without an answer: unknown outcomes, given up, or their client died.
    pub unknown: u64,
    /// Operations of these refused for lack of memory.
    pub full: u64,
    /// Operations of these that failed for another reason and did nothing.
    pub unavailable: u64,
    /// Remote operations.
    pub remote_ops: u64,
    /// Virtual time.
    pub virtual_ns: u64,
    /// Compute servers that died.
    pub killed: u64,
    /// Lives that found themselves cut off.
    pub cut_off: u64,
    /// Lives that began anew.
    pub restarted: u64,
    /// Dead members that were recovered.
    pub recovered: u64,
    /// Ranges of keys that compute servers gave to others.
    pub moved: u64,
    /// Histories, or keys of them, that could not be decided.
    pub undecided: u64,
}

impl RunStats {
    /// Adds another run's.
    pub fn add(&mut self, other: &RunStats) {
        self.ops += other.ops;
        self.scans += other.scans;
        self.batched += other.batched;
        self.unknown += other.unknown;
        self.full += other.full;
        self.unavailable += other.unavailable;
        self.remote_ops += other.remote_ops;
        self.virtual_ns += other.virtual_ns;
        self.killed += other.killed;
        self.cut_off += other.cut_off;
        self.restarted += other.restarted;
        self.recovered += other.recovered;
        self.moved += other.moved;
        self.undecided += other.undecided;
    }
}

/// Results of a run.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The history of the clients, with a last look at all keys.
    pub history: History,
    /// Client and step of each event of the history; `None` for the last look.
    pub steps: Vec<Option<(usize, u32)>>,
    /// Events of servers, and their times in nanoseconds of virtual time.
    pub marks: Vec<(u64, String)>,
    /// The simulator's hash over all that happened.
    pub trace_hash: u64,
    /// Events of the simulator.
    pub events: u64,
    /// Statistics.
    pub stats: RunStats,
    /// The first check that failed.
    pub failure: Option<Failure>,
}
