//! Small world: the cluster and the tables of the crash points.

use farleaf_engines::{AnyIndex, Engine, TableFormat};
use farleaf_fabric::sim::{Sim, SimConfig};
use farleaf_harness::{HarnessError, create_table, open_table, simulate_pool};
use farleaf_index::{
    Entries, Exchange, Index, IndexError, ScanRange, Settings, SortedPairs, TableReport,
};
use farleaf_pool::{PoolOptions, Session};

use crate::history::{Answer, Op};

/// A small world for tables of `engine` with `computes` compute servers, of which the first has one session: two memory servers of a few
/// hundred KiB, a few tables, clients and members; READs and WRITEs torn.
///
/// # Errors
/// Any failure.
pub fn small_world(
    seed: u64,
    computes: usize,
    engine: Engine,
) -> Result<(Sim, Session), HarnessError> {
    let (region_bytes, redo_bytes) = engine.small_pool();
    let mut config = SimConfig {
        memory_servers: 2,
        compute_servers: computes,
        region_bytes,
        events_max: 20_000_000,
        ..SimConfig::seeded(seed)
    };
    config.adversary.torn = 0.5;
    let options = PoolOptions {
        block_bytes: 64 << 10,
        clients_max: 10,
        members_max: 5,
        tables_max: 4,
        redo_bytes,
    };
    simulate_pool(config, &options)
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
    create_table(session, name, format, CACHE_NODES, &settings()).await
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
/// As [`AnyIndex::open`].
pub async fn open_with(
    session: &Session,
    name: &str,
    chosen: &Settings,
) -> Result<AnyIndex, IndexError> {
    let mut settings = settings();
    settings.set_all(chosen);
    open_table(session, name, CACHE_NODES, &settings).await
}

/// Nodes that caches hold.
const CACHE_NODES: u64 = 128;

fn settings() -> Settings {
    Settings::default()
        // Keeps leaves, so that the lab tries operations in the cache.
        .with("admission", "eager")
        .with("log_bytes", "8KiB")
        // So that the space of removed keys is given up within the run.
        .with("unlink_batch", "1")
        // A skip table from the first node on.
        .with("est_nodes", "1")
}

/// Walks every table of the pool, and the pool, if no other member runs. Returns the tables' reports, and the
/// number of unreachable objects.
///
/// # Errors
/// The first problem found.
pub async fn check_all(session: &Session) -> Result<(Vec<TableReport>, u64), HarnessError> {
    farleaf_harness::check_all(session, open).await
}

/// Pairs of a key and its value.
pub(crate) type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// Pairs for a bulk load, in order of keys.
pub(crate) struct PairsOf<'a>(pub(crate) std::slice::Iter<'a, (Vec<u8>, Vec<u8>)>);

impl SortedPairs for PairsOf<'_> {
    fn next(&mut self) -> Option<(&[u8], &[u8])> {
        self.0.next().map(|(key, value)| (key.as_slice(), value.as_slice()))
    }
}

/// All pairs of a range, as many as `limit`.
pub(crate) async fn scan(
    session: &Session,
    index: &AnyIndex,
    range: ScanRange<'_>,
    limit: usize,
) -> Result<Pairs, IndexError> {
    let mut out = Entries::new();
    index.scan(session, range, limit, &mut out).await?;
    Ok(out.iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect())
}

/// Makes a call to the table.
pub(crate) async fn ask(
    session: &Session,
    index: &AnyIndex,
    call: &Op,
) -> Result<Answer, IndexError> {
    let mut held = Vec::new();
    Ok(match call {
        Op::Get { key } => {
            let found = index.get(session, key, &mut held).await?;
            Answer::Value(found.then_some(held))
        }
        Op::Insert { key, value } => Answer::Flag(index.insert(session, key, value).await?),
        Op::Update { key, value } => Answer::Flag(index.update(session, key, value).await?),
        Op::Upsert { key, value } => Answer::Flag(index.upsert(session, key, value).await?),
        Op::Remove { key } => Answer::Flag(index.remove(session, key).await?),
        Op::CompareExchange { key, expected, new } => {
            let (expected, new) = (expected.as_deref(), new.as_deref());
            let (exchange, found) =
                index.compare_exchange(session, key, expected, new, &mut held).await?;
            Answer::Exchanged { done: exchange == Exchange::Done, held: found.then_some(held) }
        }
        Op::Scan { from, to, reverse, limit } => {
            let (from, to) = (from.as_ref(), to.as_ref());
            let (from, to) = (from.map(Vec::as_slice), to.map(Vec::as_slice));
            let range = ScanRange { from, to, reverse: *reverse };
            Answer::Pairs(scan(session, index, range, *limit).await?)
        }
    })
}

/// Looks for lost objects in blocks whose member has left, and frees them.
///
/// # Errors
/// Any failure.
pub async fn sweep(session: &Session) -> Result<(), HarnessError> {
    let Some(done) = farleaf_engines::sweep(session).await? else { return Ok(()) };
    match done.problems.first() {
        Some(problem) => Err(HarnessError(format!("sweep: {problem}"))),
        None if done.complete => Ok(()),
        None => Err(HarnessError("a sweep had to wait for others, and there are none".to_string())),
    }
}
