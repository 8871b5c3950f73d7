//! Run table: makes, loads, partitions, opens and checks the table of a run.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::SeqCst},
};

use farleaf_engines::AnyIndex;
use farleaf_fabric::{AnyEndpoint, Client, Endpoint, Exposed, FabricError, ServerId};
use farleaf_harness::{join, make_pool};
use farleaf_index::{
    Index, IndexError, OpenOptions, Settings, Spec, TableReport,
    compute::{Host, equal_width, number_of, sampled},
    knobs::CACHE,
};
use farleaf_pool::{Audit, Pool, PoolError, Root, Session, format_once};

use super::{
    context::Context,
    error::BenchError,
    progress::{Phase, Progress},
    route::Bounds,
    seconds,
    sorted::Pairs,
};
use crate::{config::LoadKind, parts::Boundaries, report::PhaseReport, units::human_bytes};

/// The table's name in the pool.
const TABLE: &str = "bench";
/// Nodes of the cache by which a table is loaded and cut.
const LOADER_NODES: u64 = 4096;
/// Time between two rounds of regular work of a table with partitions.
const PARTITION_TICK_NS: u64 = 10_000_000;
/// Keys from which bounds are drawn.
const SAMPLE_KEYS: u64 = 1 << 16;

/// A compute server's side of the table.
#[derive(Clone, Debug)]
pub(super) struct Server {
    pub(super) pool: Arc<Pool>,
    pub(super) index: AnyIndex,
    /// Executes what other compute servers send.
    pub(super) host: Arc<Host<AnyIndex>>,
    /// Settings by which it was opened.
    pub(super) settings: Settings,
}

/// A table that no compute server has open.
#[derive(Debug)]
pub(super) struct Loaded {
    /// The pool, on the compute server that has loaded it.
    pool: Arc<Pool>,
    /// The bulk load, if there was one.
    pub(super) load: Option<PhaseReport>,
    /// Bytes of keys and values of the bulk load.
    pub(super) data_bytes: u64,
    /// Bytes that the table takes in the pool.
    table_bytes: u64,
    /// Upper bounds of all partitions but the last.
    pub(super) bounds: Vec<Vec<u8>>,
}

/// The number of partitions, of `count`, that compute server `number` of `servers` takes.
pub(crate) fn share_of(count: usize, servers: usize, number: usize) -> usize {
    count / servers + usize::from(number < count % servers)
}

impl Loaded {
    /// The bounds, for a router.
    pub(super) fn shared_bounds(&self) -> Bounds {
        let bounds = Bounds::default();
        bounds.set(self.bounds.clone());
        bounds
    }

    /// Formats the pool, makes the table, cuts it, and runs the bulk load, if the configuration
    /// asks for one. `expose` exposes memory under compute server 0's number, if the engine has a use for it.
    ///
    /// # Errors
    /// `Pool`, `PoolTooSmall`, `Load`, `Open`, `Key`.
    pub(super) async fn make(
        context: &Context,
        endpoint: &AnyEndpoint,
        expose: impl Fn(ServerId, u64) -> Result<Option<Exposed>, FabricError>,
        progress: &dyn Progress,
    ) -> Result<Loaded, BenchError> {
        let pool_bytes = context.pool_bytes();
        let refused = |source| context.refused(source);
        let session = if context.config.shares_pool() {
            // An existing pool belongs to others.
            let client = Client::new(endpoint.clone());
            format_once(&client, &context.pool).await.map_err(refused)?;
            join(endpoint.clone()).await
        } else {
            make_pool(endpoint.clone(), &context.pool).await
        };
        let session = session.map_err(refused)?;
        let pool = Arc::clone(session.pool());
        if context.exposed_bytes() > 0 {
            publish_memory(context, &session, expose).await?;
        }
        let root = AnyIndex::create(&session, TABLE, &context.format).await;
        let root = root.map_err(|error| failed_load(pool_bytes, error))?;
        let filled = fill(context, &session, &root, progress).await;
        if filled.is_err() && context.config.shares_pool() {
            // The first failure is the one to report.
            let _ = AnyIndex::drop_table(&session, TABLE).await;
        }
        let (load, data_bytes, bounds) = filled?;
        let memory = pool.memory();
        let table_bytes = memory.live_bytes - memory.retired_bytes;
        drop(session);
        Ok(Loaded { pool, load, data_bytes, table_bytes, bounds })
    }

    /// Opens it on compute server `number`, which takes its share of the partitions. `expose` lets it take
    /// calls in under its number, and exposes so many bytes.
    ///
    /// # Errors
    /// `Pool`, `Open`.
    pub(super) async fn open(
        &self,
        context: &Context,
        endpoint: &AnyEndpoint,
        number: usize,
        expose: impl Fn(ServerId, u64) -> Result<Option<Exposed>, FabricError>,
    ) -> Result<Server, BenchError> {
        let refused = |source| context.refused(source);
        let session = match number {
            0 => self.pool.session(endpoint.clone()).await,
            _ => join(endpoint.clone()).await,
        };
        let session = session.map_err(refused)?;
        let pool = Arc::clone(session.pool());
        let root = session.open_root(TABLE).await.map_err(refused)?;
        let mut options = context.open.clone();
        let config = &context.config;
        let settings = config.settings_with_cache(|share| share.of(self.table_bytes));
        options.settings = config.engine.options_of(&settings);
        if config.engine.traits().owned {
            options.take = share_of(self.bounds.len() + 1, config.compute_servers, number);
        }
        // Compute server 0 has exposed its memory before the load.
        if number > 0 && context.exposed_bytes() > 0 {
            publish_memory(context, &session, &expose).await?;
        }
        let index = AnyIndex::open(&session, &root, &options).await.map_err(|source| {
            match (config.cache_share(), source) {
                (Some(Ok(share)), source @ IndexError::Invalid(_)) => BenchError::SmallShare {
                    share: share.to_string(),
                    table: human_bytes(self.table_bytes),
                    source,
                },
                (_, source) => BenchError::Open(source),
            }
        })?;
        let host: Arc<Host<AnyIndex>> = Arc::default();
        if index.owned().is_some() && options.calls {
            if let Some(exposed) = expose(number_of(pool.member()), 0)? {
                session.publish_address(exposed.address).await.map_err(refused)?;
            }
            host.add(index.clone());
        }
        Ok(Server { pool, index, host, settings: options.settings })
    }
}

/// Exposes a compute server's memory, and tells others of it.
async fn publish_memory(
    context: &Context,
    session: &Session,
    expose: impl Fn(ServerId, u64) -> Result<Option<Exposed>, FabricError>,
) -> Result<(), BenchError> {
    let bytes = context.exposed_bytes();
    let exposed = expose(number_of(session.pool().member()), bytes)?;
    session.publish_region(bytes).await.map_err(|source| context.refused(source))?;
    if let Some(exposed) = exposed {
        let published = session.publish_address(exposed.address).await;
        published.map_err(|source| context.refused(source))?;
    }
    Ok(())
}

/// Does the regular work of a table whose partitions move between compute servers, until `stop` is set. Nothing for
/// other tables.
pub(super) async fn tick_partitions(server: Server, endpoint: AnyEndpoint, stop: Arc<AtomicBool>) {
    let Some(partitions) = server.index.partitions() else { return };
    let Ok(session) = server.pool.session(endpoint).await else { return };
    while !stop.load(SeqCst) {
        // The next round makes up for a round that fails; operations meet lasting errors.
        let _ = partitions.tick(&session).await;
        session.endpoint().sleep(PARTITION_TICK_NS).await;
    }
}

type Filled = (Option<PhaseReport>, u64, Vec<Vec<u8>>);

/// Loads and cuts the table, and closes it. Returns the load, the bytes of its keys and values, and
/// the bounds.
async fn fill(
    context: &Context,
    session: &Session,
    root: &Root,
    progress: &dyn Progress,
) -> Result<Filled, BenchError> {
    let failed = |error| failed_load(context.pool_bytes(), error);
    let traits = context.config.engine.traits();
    let mut settings = context.open.settings.clone();
    if traits.cached {
        let bytes = LOADER_NODES * context.format.node_bytes() as u64;
        settings.set(CACHE, &bytes.to_string());
    }
    if traits.logged {
        // Closing writes all changes.
        settings.set("durability", "volatile");
    }
    let options = OpenOptions { settings, ..OpenOptions::default() };
    let open = async || AnyIndex::open(session, root, &options).await.map_err(BenchError::Open);
    let index = open().await?;
    let bounds = bounds(context)?;
    let load = match context.config.load {
        LoadKind::Bulk => Some(bulk_load(context, session, &index, progress).await),
        LoadKind::Insert => None,
    };
    // Some engines refuse to load a table that is cut. Cutting it closes it.
    let is_failed = matches!(load, Some(Err(_)));
    let closed = match index.owned().filter(|_| !bounds.is_empty() && !is_failed) {
        Some(table) => table.partition(session, &bounds).await.map_err(failed),
        // Even after a failure, so that it can be dropped.
        None => index.close(session).await.map_err(failed),
    };
    let (load, data_bytes) = load.transpose()?.unzip();
    closed.map(|()| (load, data_bytes.unwrap_or(0), bounds))
}

/// Bounds at which the table is cut; none for an engine without partitions.
fn bounds(context: &Context) -> Result<Vec<Vec<u8>>, BenchError> {
    let config = &context.config;
    if !config.engine.traits().owned {
        return Ok(Vec::new());
    }
    let count = config.parts.partitions(config);
    if config.parts.boundaries == Some(Boundaries::Equal) {
        // Numbers have eight bytes.
        return Ok(equal_width(Spec::FIXED8.key, count).unwrap_or_default());
    }
    if count == 1 {
        return Ok(Vec::new());
    }
    let step = config.keys.div_ceil(SAMPLE_KEYS).max(1) as usize;
    let mut sample = Vec::new();
    for item in (0..config.keys).step_by(step) {
        let mut key = Vec::new();
        context.data.keys.write_key(item, &mut key)?;
        sample.push(key);
    }
    Ok(sampled(&sample, count))
}

async fn bulk_load(
    context: &Context,
    session: &Session,
    index: &AnyIndex,
    progress: &dyn Progress,
) -> Result<(PhaseReport, u64), BenchError> {
    let keys = context.config.keys;
    progress.begin(Phase::Load, keys);
    let mut pairs = Pairs::new(&context.data.keys, context.data.values, keys, progress);
    let began_ns = session.endpoint().now_ns();
    let count = index
        .bulk_load(session, &mut pairs)
        .await
        .map_err(|error| failed_load(context.pool_bytes(), error))?;
    let nanos = session.endpoint().now_ns() - began_ns;
    let key_bytes = pairs.finish()?;
    let data_bytes = key_bytes + count * context.config.value_bytes as u64;
    Ok((PhaseReport::new(seconds(nanos), count), data_bytes))
}

fn failed_load(pool_bytes: u64, error: IndexError) -> BenchError {
    match error {
        IndexError::Full(_) => BenchError::PoolTooSmall { pool_bytes, source: error },
        error => BenchError::Load(error),
    }
}

/// Writes a compute server's cached changes to the pool, and checks the cache.
///
/// # Errors
/// `Verify`, `Damaged`.
pub(super) async fn settle(server: &Server, endpoint: &AnyEndpoint) -> Result<(), BenchError> {
    let Some(cache) = server.index.cache() else { return Ok(()) };
    let session = server.pool.session(endpoint.clone()).await;
    let session = session.map_err(|error| BenchError::Verify(error.into()))?;
    cache.flush(&session).await.map_err(BenchError::Verify)?;
    damaged(&cache.check())
}

/// Walks the table, after all compute servers have settled.
///
/// # Errors
/// `Verify`, `Damaged`.
pub(super) async fn verify(
    server: &Server,
    endpoint: &AnyEndpoint,
    progress: &dyn Progress,
) -> Result<TableReport, BenchError> {
    progress.begin(Phase::Verify, 0);
    let unread = |error: PoolError| BenchError::Verify(error.into());
    let session = server.pool.session(endpoint.clone()).await.map_err(unread)?;
    let mut audit = Audit::new(&session).await.map_err(unread)?;
    let report = server.index.verify(&session, &mut audit).await.map_err(BenchError::Verify)?;
    damaged(&report.problems)?;
    Ok(report)
}

fn damaged(problems: &[String]) -> Result<(), BenchError> {
    match problems.first() {
        Some(first) => Err(BenchError::Damaged { count: problems.len(), first: first.clone() }),
        None => Ok(()),
    }
}

/// Closes the table on a compute server.
///
/// # Errors
/// `Clear`.
pub(super) async fn close(server: &Server, endpoint: &AnyEndpoint) -> Result<(), BenchError> {
    let session = server.pool.session(endpoint.clone()).await;
    let session = session.map_err(|error| BenchError::Clear(error.into()))?;
    server.index.close(&session).await.map_err(BenchError::Clear)
}

/// Drops the table from a pool that stays.
///
/// # Errors
/// `Clear`.
pub(super) async fn clear(endpoint: &AnyEndpoint) -> Result<(), BenchError> {
    let session = join(endpoint.clone()).await;
    let session = session.map_err(|error| BenchError::Clear(error.into()))?;
    AnyIndex::drop_table(&session, TABLE).await.map_err(BenchError::Clear)?;
    session.leave().await.map_err(|error| BenchError::Clear(error.into()))
}
