//! Run report: the result of a run, as JSON for tools and as rows for people.
//!
//! - INV-REPORT-1: the names and their order in JSON are an interface: a golden test holds them.
//! - INV-REPORT-2: every number is finite: a division by 0 gives 0.

use std::{collections::BTreeMap, fmt, iter::Sum};

use farleaf_fabric::{Cost, OpKind as FabricKind, Snapshot};
use farleaf_index::CounterSet;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    machine::Machine,
    units::{human_bytes, human_count, human_rate, human_us},
    workload::OpKind,
};

/// The commit that this crate was built from, if it was built in a checkout.
pub fn build_commit() -> Option<&'static str> {
    option_env!("FARLEAF_COMMIT").filter(|commit| !commit.is_empty())
}

/// Everything about one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The engine's name.
    pub engine: String,
    /// The fabric's name.
    pub fabric: String,
    /// The clock of the seconds and latencies.
    pub time: TimeKind,
    /// True if clients waited for one operation before they began the next.
    #[serde(rename = "loop")]
    pub loop_kind: LoopKind,
    /// The request for the run, in the bench's own words.
    pub config: Map<String, Value>,
    /// The load phase.
    pub load: PhaseReport,
    /// The run phase.
    pub run: RunReport,
    /// Memory in use after the run.
    pub memory: MemoryReport,
    /// The machine of the run.
    pub machine: Machine,
    /// Commit of the source it was built from.
    pub commit: Option<String>,
}

/// Clock by which a run is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TimeKind {
    /// The machine's.
    Real,
    /// The simulator's.
    Virtual,
}

/// Moment at which a client begins its next operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LoopKind {
    /// The last operation is over.
    Closed,
    /// The operation's own time has come, at a given rate; latency counts from that time.
    Open,
}

/// Operations of a phase and their time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PhaseReport {
    /// The duration in seconds.
    pub seconds: f64,
    /// The operations done.
    pub ops: u64,
    /// The operations per second.
    pub ops_per_s: f64,
}

impl PhaseReport {
    /// `ops` operations in `seconds`; in no time at all, their rate is given as 0.
    pub fn new(seconds: f64, ops: u64) -> Self {
        Self { seconds: finite(seconds), ops, ops_per_s: finite(ops as f64 / seconds) }
    }
}

/// The run phase, as a whole and by kind of operation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunReport {
    /// Duration, operations and rate.
    #[serde(flatten)]
    pub phase: PhaseReport,
    /// Operations that gave an error or a wrong answer, those of the warm-up included; they are
    /// not among `ops`.
    pub errors: u64,
    /// Message of the first error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_error: Option<String>,
    /// The latency of every operation.
    pub latency_us: LatencyUs,
    /// The cost of an operation, on average.
    pub per_op: PerOp,
    /// As [`KindReport::targets`], of all kinds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub targets: Option<TargetCosts>,
    /// The cost and latency of each kind that came.
    pub by_kind: BTreeMap<ReportKind, KindReport>,
    /// Counts of the engine's own, of all compute servers, for engines that have some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counters: Option<CounterReport>,
    /// The part of a card that was in use for longest, in a simulation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busiest_card: Option<BusiestCard>,
}

/// A part of a server's card, and the share of the time for which operations kept it in use. Near 1, it binds the rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BusiestCard {
    /// The server, as in "memory server 1".
    pub server: String,
    /// The part: operations or bytes, in or out, or atomics.
    pub part: String,
    /// Share of the time.
    pub share: f64,
}

impl fmt::Display for BusiestCard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}'s card, {}, {:.0} % of the time", self.server, self.part, 100.0 * self.share)
    }
}

/// Counts of the engine's own while the operations ran.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CounterReport {
    /// Share of the operations on a key that neither read a leaf nor had a memory server look for it, of an
    /// engine that caches leaves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hit_rate: Option<f64>,
    /// The counts by name, for each index operation; those that are not 0.
    pub per_op: BTreeMap<String, f64>,
}

impl CounterReport {
    /// Computes the report from the counts of the engine and the fabric.
    pub(crate) fn new(counters: &CounterSet, cost: &Snapshot) -> Self {
        let kinds = [
            FabricKind::Get,
            FabricKind::Insert,
            FabricKind::Update,
            FabricKind::Upsert,
            FabricKind::Remove,
            FabricKind::CompareExchange,
        ];
        let on_keys: u64 = kinds.into_iter().map(|kind| cost.ops(kind)).sum();
        let all = on_keys + cost.ops(FabricKind::Scan);
        let hit_rate = |misses| finite(on_keys.saturating_sub(misses) as f64 / on_keys as f64);
        let counts = counters.iter().filter(|(_, count)| *count > 0);
        CounterReport {
            hit_rate: counters.misses().map(hit_rate),
            per_op: counts
                .map(|(name, count)| (name.to_owned(), finite(count as f64 / all as f64)))
                .collect(),
        }
    }
}

/// Subject of a part of a [`RunReport`]. In JSON, its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum ReportKind {
    /// Operations of one kind.
    Op(OpKind),
    /// Fabric operations during the run on behalf of no operation: epochs, memory, recovery of
    /// other members. It has no latency; its `ops` are those of the whole run, over which its cost
    /// is spread.
    Maintenance,
}

impl ReportKind {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Op(kind) => kind.name(),
            Self::Maintenance => "maintenance",
        }
    }
}

impl From<ReportKind> for String {
    fn from(kind: ReportKind) -> Self {
        kind.name().to_owned()
    }
}

impl TryFrom<String> for ReportKind {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        let kinds = OpKind::ALL.into_iter().map(Self::Op).chain([Self::Maintenance]);
        let found = kinds.into_iter().find(|kind| kind.name() == name);
        found.ok_or_else(|| format!("no kind of operation is named \"{name}\""))
    }
}

/// One kind of operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct KindReport {
    /// Operations done.
    pub ops: u64,
    /// Their latency; maintenance has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_us: Option<LatencyUs>,
    /// The cost of one, on average.
    pub per_op: PerOp,
    /// The cost by the kind of server that it fell on, if the run used the memory of compute servers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub targets: Option<TargetCosts>,
}

/// Average costs by the kind of server that they fall on. Waits are counted where the first operation of each goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TargetCosts {
    /// On memory servers.
    pub memory: PerOp,
    /// On other compute servers.
    pub compute: PerOp,
    /// On the compute server's own region.
    pub own: PerOp,
}

impl TargetCosts {
    /// Names and costs.
    pub fn named(&self) -> [(&'static str, PerOp); 3] {
        [("memory", self.memory), ("compute", self.compute), ("own", self.own)]
    }

    /// Costs of a whole run on memory servers, on compute servers and on own regions; `None` if all falls on memory servers.
    pub(crate) fn of([memory, compute, own]: [PerOp; 3]) -> Option<Self> {
        let has_others = compute != PerOp::default() || own != PerOp::default();
        has_others.then_some(TargetCosts { memory, compute, own })
    }
}

/// Latencies in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LatencyUs {
    /// The median.
    pub p50: f64,
    /// 90 % took no longer.
    pub p90: f64,
    /// 99 % took no longer.
    pub p99: f64,
    /// 99.9 % took no longer.
    pub p999: f64,
    /// The longest.
    pub max: f64,
}

/// Cost of one operation on the fabric, on average.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PerOp {
    /// READs.
    pub reads: f64,
    /// WRITEs.
    pub writes: f64,
    /// CASes and FAAs.
    pub atomics: f64,
    /// RPCs.
    pub rpcs: f64,
    /// Calls to other compute servers.
    #[serde(default)]
    pub calls: f64,
    /// Waits for completions.
    pub round_trips: f64,
    /// Bytes that came from memory servers and called compute servers.
    pub bytes_read: f64,
    /// Bytes that went to memory servers and called compute servers.
    pub bytes_written: f64,
}

impl PerOp {
    /// The average of `cost` over `ops` operations; all 0 if there were none.
    pub fn of(cost: Cost, ops: u64) -> Self {
        let each = |total: u64| finite(total as f64 / ops as f64);
        Self {
            reads: each(cost.reads),
            writes: each(cost.writes),
            atomics: each(cost.atomics()),
            rpcs: each(cost.rpcs),
            calls: each(cost.calls),
            round_trips: each(cost.round_trips),
            bytes_read: each(cost.bytes_read),
            bytes_written: each(cost.bytes_written),
        }
    }

    /// Each number, combined with the same one of `other`.
    fn with(self, other: Self, combine: impl Fn(f64, f64) -> f64) -> Self {
        Self {
            reads: combine(self.reads, other.reads),
            writes: combine(self.writes, other.writes),
            atomics: combine(self.atomics, other.atomics),
            rpcs: combine(self.rpcs, other.rpcs),
            calls: combine(self.calls, other.calls),
            round_trips: combine(self.round_trips, other.round_trips),
            bytes_read: combine(self.bytes_read, other.bytes_read),
            bytes_written: combine(self.bytes_written, other.bytes_written),
        }
    }

    /// Each of them multiplied by `factor`.
    pub(crate) fn times(self, factor: f64) -> Self {
        self.with(self, |number, _| number * factor)
    }
}

impl Sum for PerOp {
    fn sum<I: Iterator<Item = Self>>(costs: I) -> Self {
        costs.fold(Self::default(), |sum, cost| sum.with(cost, |one, other| one + other))
    }
}

/// Memory in use after the run, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryReport {
    /// Taken from the pool.
    pub pool_bytes: u64,
    /// Bytes of these that the index itself takes.
    pub index_bytes: u64,
    /// Bytes of these that keys and values take.
    pub data_bytes: u64,
    /// On the compute servers: their caches of the table, when the run phase ended.
    pub compute_bytes: u64,
}

/// One line of a table for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The section: `run`, `load`, `memory`, `counters`, a kind of operation.
    pub group: &'static str,
    /// The line's name: its name in JSON if it has one.
    pub name: String,
    /// The value with its unit.
    pub value: String,
}

impl Report {
    /// The rows of a table for people, group after group.
    pub fn rows(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        let mut add = |group, name: &str, value| {
            rows.push(Row { group, name: name.to_owned(), value });
        };
        let time = match self.time {
            TimeKind::Real => "real",
            TimeKind::Virtual => "virtual",
        };
        let loop_kind = match self.loop_kind {
            LoopKind::Closed => "closed",
            LoopKind::Open => "open",
        };
        add("bench", "engine", self.engine.clone());
        add("bench", "fabric", self.fabric.clone());
        add("bench", "time", time.to_owned());
        add("bench", "loop", loop_kind.to_owned());
        if let Some(commit) = &self.commit {
            add("bench", "commit", commit.clone());
        }
        if let Some(parts) = self.config.get("parts").and_then(Value::as_array) {
            let parts: Vec<&str> = parts.iter().filter_map(Value::as_str).collect();
            add("bench", "parts", parts.join("; "));
        }
        phase_rows(&mut add, "load", &self.load);
        phase_rows(&mut add, "run", &self.run.phase);
        add("run", "errors", human_count(self.run.errors));
        if let Some(error) = &self.run.first_error {
            add("run", "first_error", error.clone());
        }
        if let Some(card) = &self.run.busiest_card {
            add("run", "busiest_card", card.to_string());
        }
        latency_rows(&mut add, "run", &self.run.latency_us);
        cost_rows(&mut add, "run", &self.run.per_op);
        for (kind, report) in &self.run.by_kind {
            if let Some(latency) = &report.latency_us {
                add(kind.name(), "ops", human_count(report.ops));
                latency_rows(&mut add, kind.name(), latency);
            }
            cost_rows(&mut add, kind.name(), &report.per_op);
        }
        if let Some(counters) = &self.run.counters {
            if let Some(hit_rate) = counters.hit_rate {
                add("counters", "hit_rate", format!("{:.2} %", 100.0 * hit_rate));
            }
            for (name, each) in &counters.per_op {
                add("counters", name, format!("{each:.4} /op"));
            }
        }
        let MemoryReport { pool_bytes, index_bytes, data_bytes, compute_bytes } = self.memory;
        add("memory", "pool_bytes", human_bytes(pool_bytes));
        add("memory", "index_bytes", human_bytes(index_bytes));
        add("memory", "data_bytes", human_bytes(data_bytes));
        add("memory", "compute_bytes", human_bytes(compute_bytes));
        let Machine { cpu, cores, memory_bytes, os, arch } = &self.machine;
        for (name, value) in [
            ("cpu", cpu.clone()),
            ("cores", cores.map(|cores| cores.to_string())),
            ("memory_bytes", memory_bytes.map(human_bytes)),
            ("os", os.clone()),
            ("arch", arch.clone()),
        ] {
            if let Some(value) = value {
                add("machine", name, value);
            }
        }
        rows
    }
}

/// Adds a row: its group, name and value.
type Add<'a> = dyn FnMut(&'static str, &str, String) + 'a;

fn phase_rows(add: &mut Add<'_>, group: &'static str, phase: &PhaseReport) {
    add(group, "seconds", format!("{:.3} s", phase.seconds));
    add(group, "ops", human_count(phase.ops));
    add(group, "ops_per_s", human_rate(phase.ops_per_s));
}

fn latency_rows(add: &mut Add<'_>, group: &'static str, latency: &LatencyUs) {
    let LatencyUs { p50, p90, p99, p999, max } = *latency;
    for (name, micros) in [("p50", p50), ("p90", p90), ("p99", p99), ("p999", p999), ("max", max)] {
        add(group, name, human_us(micros));
    }
}

fn cost_rows(add: &mut Add<'_>, group: &'static str, per_op: &PerOp) {
    let PerOp { reads, writes, atomics, rpcs, calls, round_trips, bytes_read, bytes_written } =
        *per_op;
    for (name, each) in [
        ("reads", reads),
        ("writes", writes),
        ("atomics", atomics),
        ("rpcs", rpcs),
        ("calls", calls),
        ("round_trips", round_trips),
    ] {
        add(group, name, format!("{each:.4} /op"));
    }
    for (name, each) in [("bytes_read", bytes_read), ("bytes_written", bytes_written)] {
        add(group, name, format!("{each:.1} B/op"));
    }
}

/// `number`, or 0 if it is the result of a division by 0 (INV-REPORT-2).
fn finite(number: f64) -> f64 {
    if number.is_finite() { number } else { 0.0 }
}

#[cfg(test)]
mod tests;
