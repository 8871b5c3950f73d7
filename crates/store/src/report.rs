//! Store reports: counters of a store, and results of verification.

use farleaf_fabric::Snapshot;
use farleaf_pool::{AuditReport, MemoryUse, RecoveryCounts};

/// Numbers of a store, as this process sees them; made by [`Farleaf::stats`](crate::Farleaf::stats).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stats {
    /// The fabric that carries the operations, as in `mapped`.
    pub fabric: &'static str,
    /// True if a READ may see a word in part while it is written, which no engine withstands: then one
    /// thread of one process alone may work on the pool. Of RDMA devices made of software.
    pub tears_words: bool,
    /// Memory servers of the pool.
    pub memory_servers: usize,
    /// Bytes of a block, the unit in which compute servers take memory.
    pub block_bytes: u64,
    /// Number of this compute server in the pool.
    pub member: u32,
    /// Memory, as far as this compute server knows.
    pub memory: MemoryUse,
    /// Recoveries of dead compute servers by this one.
    pub recoveries: RecoveryCounts,
    /// Bytes of memory that this compute server exposes to others now.
    pub exposed_bytes: u64,
    /// Remote operations of this compute server so far, by server and by kind of index operation. They are on memory
    /// servers ([`Snapshot::memory`]), other compute servers ([`Snapshot::compute`]) and the memory that this one
    /// exposes ([`Snapshot::own`]).
    pub counters: Snapshot,
}

/// Counts of a table; made by [`Table::stats`](crate::Table::stats).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TableStats {
    /// Keys present.
    pub keys: u64,
    /// Bytes of keys and values.
    pub data_bytes: u64,
    /// Bytes of nodes.
    pub node_bytes: u64,
    /// Bytes of values that are kept outside of nodes.
    pub record_bytes: u64,
    /// Nodes of each level, leaves first.
    pub nodes_per_level: Vec<u64>,
    /// Further parts of the table that no option tells of, each in a few words, as the prefix lengths of a skip table.
    pub parts: Vec<String>,
}

/// Findings of a walk over a table; made by [`Table::verify`](crate::Table::verify).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TableReport {
    /// The table's name.
    pub name: String,
    /// The table's findings of its engine.
    pub stats: TableStats,
    /// Violated invariants, each with its place. Empty if all is well.
    pub problems: Vec<String>,
}

impl TableReport {
    pub(crate) fn new(
        name: String,
        walked: farleaf_index::TableReport,
        parts: Vec<String>,
    ) -> Self {
        let stats = TableStats {
            keys: walked.keys,
            data_bytes: walked.data_bytes,
            node_bytes: walked.node_bytes,
            record_bytes: walked.record_bytes,
            nodes_per_level: walked.nodes_per_level,
            parts,
        };
        TableReport { name, stats, problems: walked.problems }
    }
}

/// Findings of a walk over all tables, and whether the memory adds up; made by
/// [`Farleaf::verify`](crate::Farleaf::verify).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct VerifyReport {
    /// Every table.
    pub tables: Vec<TableReport>,
    /// Every block and object of the pool.
    pub memory: AuditReport,
}

impl VerifyReport {
    /// Everything that is wrong, in tables and in memory.
    pub fn problems(&self) -> impl Iterator<Item = String> {
        let tables = self.tables.iter().flat_map(|table| {
            table.problems.iter().map(|problem| format!("table \"{}\": {problem}", table.name))
        });
        tables.chain(self.memory.problems.iter().cloned())
    }

    /// Returns whether nothing is wrong and every object of the pool is accounted for.
    pub fn closes(&self) -> bool {
        self.memory.closes() && self.problems().next().is_none()
    }
}
