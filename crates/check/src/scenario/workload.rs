//! Workloads: name the mixes of clients' operations and keys.

use std::fmt;
use std::str::FromStr;

/// A mix of operations over a choice of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// All kinds of operations.
    Mixed,
    /// All kinds of operations, mostly on three keys.
    Hot,
    /// New keys at the right end, and reads from there.
    Ascending,
    /// Mostly removes, so that nodes are merged.
    Removes,
    /// Keys come and go, so that nodes are split and merged all the time.
    Churn,
    /// Counters, counted up by compare-exchange.
    Counters,
    /// Mostly gets and scans, few changes.
    Reads,
    /// Large values.
    Large,
}

/// Weights of the operations, of 100; the rest are scans.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weights {
    pub(crate) get: u32,
    pub(crate) insert: u32,
    pub(crate) update: u32,
    pub(crate) upsert: u32,
    pub(crate) remove: u32,
    pub(crate) exchange: u32,
    pub(crate) count: u32,
}

impl Workload {
    /// Every workload.
    pub const ALL: &'static [Workload] = &[
        Workload::Mixed,
        Workload::Hot,
        Workload::Ascending,
        Workload::Removes,
        Workload::Churn,
        Workload::Counters,
        Workload::Reads,
        Workload::Large,
    ];

    /// The name in flags.
    pub fn name(self) -> &'static str {
        match self {
            Workload::Mixed => "mixed",
            Workload::Hot => "hot",
            Workload::Ascending => "ascending",
            Workload::Removes => "removes",
            Workload::Churn => "churn",
            Workload::Counters => "counters",
            Workload::Reads => "reads",
            Workload::Large => "large",
        }
    }

    pub(crate) fn weights(self) -> Weights {
        let [get, insert, update, upsert, remove, exchange, count, _scans] = match self {
            Workload::Mixed | Workload::Large => [20, 15, 10, 20, 15, 10, 0, 10],
            Workload::Hot => [20, 15, 10, 15, 20, 10, 5, 5],
            Workload::Ascending => [15, 50, 0, 15, 5, 0, 0, 15],
            Workload::Removes => [10, 15, 0, 5, 60, 0, 0, 10],
            Workload::Churn => [10, 30, 0, 10, 40, 0, 0, 10],
            Workload::Counters => [15, 0, 0, 0, 5, 5, 70, 5],
            Workload::Reads => [55, 5, 5, 5, 5, 0, 0, 25],
        };
        Weights { get, insert, update, upsert, remove, exchange, count }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Workload {
    type Err = super::ScenarioError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let names = || Workload::ALL.iter().map(|workload| workload.name());
        let found = Workload::ALL.iter().find(|workload| workload.name() == text);
        found.copied().ok_or_else(|| super::ScenarioError::name("workload", text, names()))
    }
}
