//! Fabric counters: count operations, round trips and bytes exactly.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::ServerId;

/// The index operation on whose behalf something goes over the fabric.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum OpKind {
    /// Point read.
    Get,
    /// Insert of an absent key.
    Insert,
    /// Change of a present key.
    Update,
    /// Insert or change.
    Upsert,
    /// Removal.
    Remove,
    /// Conditional change.
    CompareExchange,
    /// Range read.
    Scan,
    /// Load of sorted pairs.
    BulkLoad,
    /// Allocation, epochs, recovery, merging: what no single operation waits for.
    Maintenance,
    /// Opening, checking and everything else.
    Other,
}

impl OpKind {
    /// Every kind, in the order of their numbers.
    pub const ALL: [OpKind; 10] = [
        OpKind::Get,
        OpKind::Insert,
        OpKind::Update,
        OpKind::Upsert,
        OpKind::Remove,
        OpKind::CompareExchange,
        OpKind::Scan,
        OpKind::BulkLoad,
        OpKind::Maintenance,
        OpKind::Other,
    ];

    /// Its name in results, as in `compare_exchange`.
    pub fn name(self) -> &'static str {
        match self {
            OpKind::Get => "get",
            OpKind::Insert => "insert",
            OpKind::Update => "update",
            OpKind::Upsert => "upsert",
            OpKind::Remove => "remove",
            OpKind::CompareExchange => "compare_exchange",
            OpKind::Scan => "scan",
            OpKind::BulkLoad => "bulk_load",
            OpKind::Maintenance => "maintenance",
            OpKind::Other => "other",
        }
    }
}

macro_rules! costs {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        /// Counts of remote operations and bytes.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Cost {
            $($(#[$doc])* pub $name: u64,)+
        }

        /// A `Cost` that one thread adds to and any thread reads.
        #[derive(Debug, Default)]
        struct Cell {
            $($name: AtomicU64,)+
        }

        impl Cell {
            #[inline]
            fn add(&self, cost: Cost) {
                $(bump(&self.$name, cost.$name);)+
            }

            fn get(&self) -> Cost {
                Cost { $($name: self.$name.load(Ordering::Relaxed),)+ }
            }
        }

        impl std::ops::AddAssign for Cost {
            fn add_assign(&mut self, other: Cost) {
                $(self.$name += other.$name;)+
            }
        }

        impl std::ops::Sub for Cost {
            type Output = Cost;
            fn sub(self, other: Cost) -> Cost {
                Cost { $($name: self.$name - other.$name,)+ }
            }
        }
    };
}

costs! {
    /// READs.
    reads,
    /// WRITEs, each of a chain or batch.
    writes,
    /// CASes, failed ones too.
    cas,
    /// FAAs.
    faa,
    /// RPCs.
    rpcs,
    /// Chains.
    chains,
    /// Waits on the critical path: 1 for each operation, chain or batch that is awaited.
    round_trips,
    /// Payload of READs and of RPC replies.
    bytes_read,
    /// Payload of WRITEs and of RPC requests, and 8 for every CAS and FAA.
    bytes_written,
}

impl Cost {
    /// CASes and FAAs.
    pub fn atomics(&self) -> u64 {
        self.cas + self.faa
    }

    /// READs, WRITEs, atomics and RPCs together.
    pub fn verbs(&self) -> u64 {
        self.reads + self.writes + self.atomics() + self.rpcs
    }
}

/// One writer only, so no atomic read-modify-write is needed. The branch spares the store for the
/// counts that an operation does not touch, and folds away where the count is a constant.
#[inline]
fn bump(count: &AtomicU64, by: u64) {
    if by != 0 {
        count.store(count.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
    }
}

/// Counters of one endpoint, per server and per kind of index operation. Written by the endpoint's
/// thread alone, readable from any.
#[derive(Debug)]
pub struct Counters {
    cells: Vec<Cell>,
    ops: [AtomicU64; OpKind::ALL.len()],
}

impl Counters {
    /// Zeroed counters for `servers` servers.
    pub fn new(servers: usize) -> Arc<Self> {
        let cells = (0..servers.max(1) * OpKind::ALL.len()).map(|_| Cell::default()).collect();
        Arc::new(Counters { cells, ops: Default::default() })
    }

    /// Adds a cost. Servers beyond the table count for the last.
    #[inline]
    pub(crate) fn add(&self, kind: OpKind, server: ServerId, cost: Cost) {
        let at = server.index() * OpKind::ALL.len() + kind as usize;
        self.cells[at.min(self.cells.len() - 1)].add(cost);
    }

    /// Counts index operations of `kind`.
    #[inline]
    pub(crate) fn add_ops(&self, kind: OpKind, count: u64) {
        bump(&self.ops[kind as usize], count);
    }

    /// The counts of now. Others may be counting meanwhile.
    pub fn snapshot(&self) -> Snapshot {
        let per_server = self
            .cells
            .chunks(OpKind::ALL.len())
            .map(|kinds| std::array::from_fn(|kind| kinds[kind].get()))
            .collect();
        Snapshot {
            per_server,
            ops: std::array::from_fn(|kind| self.ops[kind].load(Ordering::Relaxed)),
        }
    }
}

/// Counts at one moment, of one endpoint or several added up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    per_server: Vec<[Cost; OpKind::ALL.len()]>,
    ops: [u64; OpKind::ALL.len()],
}

impl Snapshot {
    /// The sum over all endpoints of `counters`.
    pub fn of<'a>(counters: impl IntoIterator<Item = &'a Arc<Counters>>) -> Snapshot {
        let mut sum = Snapshot::default();
        for counters in counters {
            sum.add(&counters.snapshot());
        }
        sum
    }

    /// Adds another's counts.
    pub fn add(&mut self, other: &Snapshot) {
        let servers = self.per_server.len().max(other.per_server.len());
        self.per_server.resize(servers, Default::default());
        for (mine, theirs) in self.per_server.iter_mut().zip(&other.per_server) {
            for (mine, theirs) in mine.iter_mut().zip(theirs) {
                *mine += *theirs;
            }
        }
        for (mine, theirs) in self.ops.iter_mut().zip(&other.ops) {
            *mine += theirs;
        }
    }

    /// What has been counted since `earlier`, a snapshot of the same endpoints.
    pub fn since(&self, earlier: &Snapshot) -> Snapshot {
        let mut difference = self.clone();
        for (new, old) in difference.per_server.iter_mut().zip(&earlier.per_server) {
            for (new, old) in new.iter_mut().zip(old) {
                *new = *new - *old;
            }
        }
        for (new, old) in difference.ops.iter_mut().zip(&earlier.ops) {
            *new -= old;
        }
        difference
    }

    /// Everything.
    pub fn total(&self) -> Cost {
        self.sum(self.per_server.iter().flatten())
    }

    /// What operations of `kind` cost.
    pub fn kind(&self, kind: OpKind) -> Cost {
        self.sum(self.per_server.iter().map(|kinds| &kinds[kind as usize]))
    }

    /// What went to `server`.
    pub fn server(&self, server: ServerId) -> Cost {
        self.sum(self.per_server.get(server.index()).into_iter().flatten())
    }

    /// Servers counted.
    pub fn server_count(&self) -> usize {
        self.per_server.len()
    }

    /// Index operations of `kind`.
    pub fn ops(&self, kind: OpKind) -> u64 {
        self.ops[kind as usize]
    }

    fn sum<'a>(&self, costs: impl Iterator<Item = &'a Cost>) -> Cost {
        let mut sum = Cost::default();
        costs.for_each(|cost| sum += *cost);
        sum
    }
}
