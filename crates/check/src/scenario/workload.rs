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
    /// Keys that begin with each other, and looks for the longest prefix of a key. No seed draws it.
    Prefixes,
    /// Operations on several keys at once, which go to the owners of the keys together. No seed draws it.
    Batches,
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

/// A workload, its name in flags, and its weights: get, insert, update, upsert, remove, exchange, count, scan.
type Line = (Workload, &'static str, [u32; 8]);

const TABLE: [Line; 10] = [
    (Workload::Mixed, "mixed", [20, 15, 10, 20, 15, 10, 0, 10]),
    (Workload::Hot, "hot", [20, 15, 10, 15, 20, 10, 5, 5]),
    (Workload::Ascending, "ascending", [15, 50, 0, 15, 5, 0, 0, 15]),
    (Workload::Removes, "removes", [10, 15, 0, 5, 60, 0, 0, 10]),
    (Workload::Churn, "churn", [10, 30, 0, 10, 40, 0, 0, 10]),
    (Workload::Counters, "counters", [15, 0, 0, 0, 5, 5, 70, 5]),
    (Workload::Reads, "reads", [55, 5, 5, 5, 5, 0, 0, 25]),
    (Workload::Large, "large", [20, 15, 10, 20, 15, 10, 0, 10]),
    (Workload::Prefixes, "prefixes", [45, 10, 5, 10, 25, 0, 0, 5]),
    (Workload::Batches, "batches", [25, 15, 10, 15, 15, 10, 0, 10]),
];

impl Workload {
    /// Every workload.
    pub fn all() -> [Workload; TABLE.len()] {
        TABLE.map(|(workload, ..)| workload)
    }

    /// Those that seeds draw. Others would give every seed another scenario.
    pub fn drawn() -> impl Iterator<Item = Workload> {
        let is_drawn = |it: &Workload| !matches!(it, Workload::Prefixes | Workload::Batches);
        Workload::all().into_iter().filter(is_drawn)
    }

    /// The name in flags.
    pub fn name(self) -> &'static str {
        TABLE[self as usize].1
    }

    pub(crate) fn weights(self) -> Weights {
        let [get, insert, update, upsert, remove, exchange, count, _scans] = TABLE[self as usize].2;
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
        let found = Workload::all().into_iter().find(|workload| workload.name() == text);
        let names = Workload::all().map(Workload::name);
        found.ok_or_else(|| super::ScenarioError::name("workload", text, names))
    }
}
