//! Fabric counters: count operations, round trips and bytes exactly.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::ServerId;

/// The index operation that causes a remote operation.
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
    /// Allocation, epochs, recovery, merging: work that no single operation waits for.
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

        impl Cost {
            /// Nothing.
            pub(crate) const ZERO: Cost = Cost { $($name: 0,)+ };
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
    /// CASes, failed ones included.
    cas,
    /// FAAs.
    faa,
    /// RPCs.
    rpcs,
    /// Calls of other compute servers.
    calls,
    /// Chains.
    chains,
    /// Waits on the critical path: 1 for each operation, chain or batch that is awaited.
    round_trips,
    /// Payload of READs and of replies to RPCs and calls.
    bytes_read,
    /// Payload of WRITEs and of requests of RPCs and calls, and 8 for every CAS and FAA.
    bytes_written,
}

impl Cost {
    /// CASes and FAAs.
    pub fn atomics(&self) -> u64 {
        self.cas + self.faa
    }

    /// READs, WRITEs, atomics, RPCs and calls together.
    pub fn verbs(&self) -> u64 {
        self.reads + self.writes + self.atomics() + self.rpcs + self.calls
    }
}

/// One writer only, so no atomic read-modify-write is needed. The branch skips the store for counts that an
/// operation does not touch, and folds away if the count is a constant.
#[inline]
fn bump(count: &AtomicU64, by: u64) {
    if by != 0 {
        count.store(count.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
    }
}

/// Compute servers that have counts of their own; the last one counts for all further ones.
const COMPUTE_MAX: usize = 64;

/// Counters of one endpoint, per server and per kind of index operation. The endpoint's thread alone writes
/// them; any thread may read.
#[derive(Debug)]
pub struct Counters {
    cells: Vec<Cell>,
    /// Of other compute servers, and behind them of this one's own region. Most threads use neither.
    compute: OnceLock<Vec<Cell>>,
    ops: [AtomicU64; OpKind::ALL.len()],
}

impl Counters {
    /// Zeroed counters for `servers` memory servers, and for 64 compute servers.
    pub fn new(servers: usize) -> Arc<Self> {
        let cells = cells(servers.max(1));
        Arc::new(Counters { cells, compute: OnceLock::new(), ops: Default::default() })
    }

    /// Adds a cost on a memory server. False, having added nothing, if there is no such memory server.
    #[inline]
    pub(crate) fn add(&self, kind: OpKind, server: ServerId, cost: Cost) -> bool {
        match self.cells.get(server.index() * OpKind::ALL.len() + kind as usize) {
            Some(cell) => cell.add(cost),
            None => return false,
        }
        true
    }

    /// Adds a cost on a server that is no memory server: a compute server, this compute server's own region
    /// if `is_own`, or one that does not exist, which counts for the last memory server.
    #[cold]
    pub(crate) fn add_elsewhere(&self, kind: OpKind, server: ServerId, is_own: bool, cost: Cost) {
        if !server.is_compute() {
            let servers = self.cells.len() / OpKind::ALL.len();
            return self.cells[(servers - 1) * OpKind::ALL.len() + kind as usize].add(cost);
        }
        let number = server.index() - ServerId::COMPUTE_FIRST.index();
        let at = if is_own { COMPUTE_MAX } else { number.min(COMPUTE_MAX - 1) };
        let cells = self.compute.get_or_init(|| cells(COMPUTE_MAX + 1));
        cells[at * OpKind::ALL.len() + kind as usize].add(cost);
    }

    /// Counts index operations of `kind`.
    #[inline]
    pub(crate) fn add_ops(&self, kind: OpKind, count: u64) {
        bump(&self.ops[kind as usize], count);
    }

    /// Returns the present counts. Other threads may be counting meanwhile.
    pub fn snapshot(&self) -> Snapshot {
        let mut per_compute = self.compute.get().map_or_else(Vec::new, |cells| read(cells));
        let own = if per_compute.is_empty() { None } else { per_compute.pop() };
        Snapshot {
            per_server: read(&self.cells),
            per_compute,
            own: own.unwrap_or_default(),
            ops: std::array::from_fn(|kind| self.ops[kind].load(Ordering::Relaxed)),
        }
    }
}

fn cells(servers: usize) -> Vec<Cell> {
    (0..servers * OpKind::ALL.len()).map(|_| Cell::default()).collect()
}

fn read(cells: &[Cell]) -> Vec<Kinds> {
    let servers = cells.chunks(OpKind::ALL.len());
    servers.map(|kinds| std::array::from_fn(|kind| kinds[kind].get())).collect()
}

/// Costs by kind of index operation.
type Kinds = [Cost; OpKind::ALL.len()];

/// Counts at one moment, of one endpoint or several added up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    per_server: Vec<Kinds>,
    /// Empty if nobody has used a compute server.
    per_compute: Vec<Kinds>,
    /// On own regions.
    own: Kinds,
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
        for (mine, theirs) in
            [(&mut self.per_server, &other.per_server), (&mut self.per_compute, &other.per_compute)]
        {
            mine.resize(mine.len().max(theirs.len()), Default::default());
        }
        self.merge(other, |mine, theirs| *mine += theirs, |mine, theirs| *mine += theirs);
    }

    /// Returns the counts since `earlier`, a snapshot of the same endpoints.
    pub fn since(&self, earlier: &Snapshot) -> Snapshot {
        let mut difference = self.clone();
        difference.merge(earlier, |new, old| *new = *new - old, |new, old| *new -= old);
        difference
    }

    /// Changes each of its counts by the other's.
    fn merge(&mut self, other: &Snapshot, cost: fn(&mut Cost, Cost), ops: fn(&mut u64, u64)) {
        let mine = self.per_server.iter_mut().zip(&other.per_server);
        let both = mine.chain(self.per_compute.iter_mut().zip(&other.per_compute));
        let all = both.chain([(&mut self.own, &other.own)]);
        for (mine, theirs) in all.flat_map(|(mine, theirs)| mine.iter_mut().zip(theirs)) {
            cost(mine, *theirs);
        }
        for (mine, theirs) in self.ops.iter_mut().zip(&other.ops) {
            ops(mine, *theirs);
        }
    }

    /// Everything.
    pub fn total(&self) -> Cost {
        self.sum(self.all().flatten())
    }

    /// Returns the cost of operations on memory servers.
    pub fn memory(&self) -> Cost {
        self.sum(self.per_server.iter().flatten())
    }

    /// Returns the cost of calls to compute servers, and of operations on other compute servers' regions.
    pub fn compute(&self) -> Cost {
        self.sum(self.per_compute.iter().flatten())
    }

    /// Returns the cost of operations of compute servers on their own regions.
    pub fn own(&self) -> Cost {
        self.sum(self.own.iter())
    }

    /// Returns these counts of operations on memory servers alone, on compute servers' regions alone, and on own
    /// regions alone. Each counts all index operations.
    pub fn by_target(&self) -> [Snapshot; 3] {
        let none = || Snapshot { ops: self.ops, ..Snapshot::default() };
        [
            Snapshot { per_server: self.per_server.clone(), ..none() },
            Snapshot { per_compute: self.per_compute.clone(), ..none() },
            Snapshot { own: self.own, ..none() },
        ]
    }

    /// Returns the cost of operations of `kind`.
    pub fn kind(&self, kind: OpKind) -> Cost {
        self.sum(self.all().map(|kinds| &kinds[kind as usize]))
    }

    /// Returns the cost of operations on `server`. Compute servers from the 64th on share one entry.
    /// Operations on an own region are not among them: [`Snapshot::own`] has those.
    pub fn server(&self, server: ServerId) -> Cost {
        let kinds = match server.index().checked_sub(ServerId::COMPUTE_FIRST.index()) {
            None => self.per_server.get(server.index()),
            Some(number) => self.per_compute.get(number.min(COMPUTE_MAX - 1)),
        };
        self.sum(kinds.into_iter().flatten())
    }

    /// Memory servers counted.
    pub fn server_count(&self) -> usize {
        self.per_server.len()
    }

    /// Index operations of `kind`.
    pub fn ops(&self, kind: OpKind) -> u64 {
        self.ops[kind as usize]
    }

    fn all(&self) -> impl Iterator<Item = &Kinds> {
        self.per_server.iter().chain(&self.per_compute).chain([&self.own])
    }

    fn sum<'a>(&self, costs: impl Iterator<Item = &'a Cost>) -> Cost {
        let mut sum = Cost::default();
        costs.for_each(|cost| sum += *cost);
        sum
    }
}
