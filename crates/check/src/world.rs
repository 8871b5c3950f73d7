//! World: a small pool in the simulator, and the checks of its order.

use farleaf_fabric::sim::{Sim, SimConfig, SimError};
use farleaf_fabric::{AnyEndpoint, Client, Fabric, FabricError, OpError};
use farleaf_index::knobs::CACHE;
use farleaf_index::{
    AnyIndex, Entries, Exchange, Index, IndexError, OpenOptions, ScanRange, Settings, StoredTable,
    TableFormat, TableReport,
};
use farleaf_pool::{Audit, AuditReport, Pool, PoolError, PoolOptions, Session, format};

use crate::history::{Answer, Call};

/// Failure of a run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Fault(pub String);

impl Fault {
    /// The same fault, with the activity in front.
    #[must_use]
    pub fn within(self, what: impl std::fmt::Display) -> Fault {
        Fault(format!("{what}: {}", self.0))
    }
}

macro_rules! from {
    ($($error:ty),*) => {
        $(impl From<$error> for Fault {
            fn from(error: $error) -> Self {
                Fault(format!("{error} ({error:?})"))
            }
        })*
    };
}

from!(SimError, FabricError, OpError, PoolError, IndexError);

/// A small world: memory servers of a few hundred KiB, a few tables, clients and members.
#[derive(Clone, Debug)]
pub struct SmallWorld {
    /// The cluster.
    pub config: SimConfig,
    /// The pool.
    pub options: PoolOptions,
}

impl SmallWorld {
    /// `computes` compute servers and two memory servers; READs and WRITEs torn.
    pub fn new(seed: u64, computes: usize) -> SmallWorld {
        let mut config = SimConfig {
            memory_servers: 2,
            compute_servers: computes,
            region_bytes: 768 << 10,
            events_max: 20_000_000,
            ..SimConfig::seeded(seed)
        };
        config.adversary.torn = 0.5;
        let options = PoolOptions {
            block_bytes: 64 << 10,
            clients_max: 10,
            members_max: 5,
            tables_max: 4,
            redo_bytes: 1 << 10,
        };
        SmallWorld { config, options }
    }

    /// The cluster with a formatted pool, in which compute server 0 has one session.
    ///
    /// # Errors
    /// Any failure.
    pub fn start(&self) -> Result<(Sim, Session), Fault> {
        let sim = Sim::new(self.config.clone())?;
        let endpoint = sim.fabric(0).any_endpoint()?;
        let session = sim.block_on(async {
            format(&Client::new(endpoint.clone()), &self.options).await?;
            join(endpoint.clone()).await
        })??;
        Ok((sim, session))
    }
}

/// Makes a table and opens it.
///
/// # Errors
/// As [`AnyIndex::create`] and [`AnyIndex::open`].
pub async fn create(
    session: &Session,
    name: &str,
    format: &TableFormat,
) -> Result<AnyIndex, IndexError> {
    AnyIndex::create(session, name, format).await?;
    open(session, name).await
}

/// Opens a table with a small cache, if its engine has one. A compute server that has it open
/// already gets the same table.
///
/// # Errors
/// As [`AnyIndex::open`].
pub async fn open(session: &Session, name: &str) -> Result<AnyIndex, IndexError> {
    open_with(session, name, &Settings::default()).await
}

/// As [`open`], with these settings in place of its own.
///
/// # Errors
/// The table is not there, or cannot be opened so.
pub async fn open_with(
    session: &Session,
    name: &str,
    chosen: &Settings,
) -> Result<AnyIndex, IndexError> {
    let root = session.open_root(name).await?;
    let format = *StoredTable::of(&root)?.format();
    let cache_bytes = CACHE_NODES * u64::from(format.node_bytes());
    let mut settings = Settings::default()
        .with(CACHE, &cache_bytes.to_string())
        // Keeps leaves, so that the lab tries operations in the cache.
        .with("admission", "eager")
        .with("log_bytes", "8KiB")
        // So that the space of removed keys is given up within the run.
        .with("unlink_batch", "1")
        // A skip table from the first node on.
        .with("est_nodes", "1");
    settings.set_all(chosen);
    let settings = format.engine.options_of(&settings);
    AnyIndex::open(session, &root, &OpenOptions { settings, ..OpenOptions::default() }).await
}

/// Nodes that caches hold.
const CACHE_NODES: u64 = 128;

/// Joins the pool as a member of its own, with one session.
///
/// # Errors
/// Any failure.
pub async fn join(endpoint: AnyEndpoint) -> Result<Session, Fault> {
    let pool = Pool::join(&Client::new(endpoint.clone())).await?;
    Ok(pool.session(endpoint).await?)
}

/// Reclaims every retired object, if no other member runs.
///
/// # Errors
/// Any failure.
pub async fn settle(session: &Session) -> Result<(), Fault> {
    for _ in 0..8 {
        session.tick().await?;
    }
    Ok(())
}

/// Walks `tables` and the pool.
///
/// # Errors
/// Any failure to walk. The reports hold the problems found.
pub async fn audit(
    session: &Session,
    tables: &[&AnyIndex],
) -> Result<(Vec<TableReport>, AuditReport), Fault> {
    let mut audit = Audit::new(session).await?;
    let mut reports = Vec::new();
    for table in tables {
        reports.push(table.verify(session, &mut audit).await?);
    }
    Ok((reports, audit.report(session).await?))
}

/// Walks every table of the pool, and the pool, if no other member runs. Returns the tables'
/// reports, and the number of unreachable objects.
///
/// # Errors
/// The first problem found.
pub async fn check_all(session: &Session) -> Result<(Vec<TableReport>, u64), Fault> {
    settle(session).await?;
    let mut tables = Vec::new();
    for root in session.list_roots().await? {
        tables.push(open(session, &root.name).await?);
    }
    let tables: Vec<&AnyIndex> = tables.iter().collect();
    let (reports, audit) = audit(session, &tables).await?;
    for report in &reports {
        if let Some(problem) = report.problems.first() {
            return Err(Fault(format!("verify: {problem}")));
        }
    }
    if let Some(problem) = audit.problems.first() {
        return Err(Fault(format!("audit: {problem}")));
    }
    let lost: u64 = audit.classes.iter().map(|class| class.leaked).sum();
    if lost == 0 && !audit.closes() {
        return Err(Fault(format!("the pool's accounts do not close: {:?}", audit.classes)));
    }
    Ok((reports, lost))
}

/// Makes a call to the table.
pub(crate) async fn ask(
    session: &Session,
    index: &AnyIndex,
    call: &Call,
) -> Result<Answer, IndexError> {
    let mut held = Vec::new();
    Ok(match call {
        Call::Get { key } => {
            let found = index.get(session, key, &mut held).await?;
            Answer::Value(found.then_some(held))
        }
        Call::Insert { key, value } => Answer::Flag(index.insert(session, key, value).await?),
        Call::Update { key, value } => Answer::Flag(index.update(session, key, value).await?),
        Call::Upsert { key, value } => Answer::Flag(index.upsert(session, key, value).await?),
        Call::Remove { key } => Answer::Flag(index.remove(session, key).await?),
        Call::CompareExchange { key, expected, new } => {
            let (expected, new) = (expected.as_deref(), new.as_deref());
            let (exchange, found) =
                index.compare_exchange(session, key, expected, new, &mut held).await?;
            Answer::Exchanged { done: exchange == Exchange::Done, held: found.then_some(held) }
        }
        Call::Scan { from, to, reverse, limit } => {
            let (from, to) = (from.as_ref(), to.as_ref());
            let (from, to) = (from.map(Vec::as_slice), to.map(Vec::as_slice));
            let mut out = Entries::new();
            index
                .scan(session, ScanRange { from, to, reverse: *reverse }, *limit, &mut out)
                .await?;
            Answer::Pairs(out.iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect())
        }
    })
}

/// Looks for lost objects in blocks whose member has left, and frees them.
///
/// # Errors
/// Any failure.
pub async fn sweep(session: &Session) -> Result<(), Fault> {
    let Some(done) = farleaf_index::sweep(session).await? else { return Ok(()) };
    match done.problems.first() {
        Some(problem) => Err(Fault(format!("sweep: {problem}"))),
        None if done.complete => Ok(()),
        None => Err(Fault("a sweep had to wait for others, and there are none".to_string())),
    }
}
