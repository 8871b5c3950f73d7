//! The bench itself: sets a cluster up, loads a table, runs a workload on it and reports.
//!
//! One loop serves every fabric (`client`): a client makes its next operation, does it on the
//! engine, and checks the answer; a thread brings its clients through the phases together with
//! all other threads (`worker`). The fabrics differ in who runs the threads (`real`, `sim`).
//!
//! - INV-RUN-1: in the simulator, the same configuration gives the same report, number by number.
//! - INV-RUN-2: nothing but measured operations lies between the counts before and after the run
//!   phase, except for maintenance.
//! - INV-RUN-3: an answer that cannot be right is counted as an error, and so is a failure.

mod client;
mod context;
mod error;
pub(crate) mod meet;
mod progress;
mod real;
mod sim;
pub(crate) mod sorted;
mod tally;
#[cfg(test)]
mod tests;
mod worker;

use farleaf_fabric::{Capabilities, Client, Endpoint};
use farleaf_index::{AnyIndex, Index, IndexError, TableReport};
use farleaf_pool::{Audit, Pool, PoolError, Session, format, format_once};
use serde_json::{Map, Value, json};

pub use error::BenchError;
pub use progress::{NoProgress, Phase, Progress};

use crate::{
    config::{BenchConfig, FabricKind, LoadKind},
    machine::Machine,
    report::{LoopKind, MemoryReport, PhaseReport, Report, TimeKind, build_commit},
};
use context::Context;
use sim::AboutSim;
use sorted::Pairs;
use worker::{Outcome, Server};

/// The table's name in the pool.
const TABLE: &str = "bench";

/// Sets up what `config` asks for, runs it, and reports.
///
/// # Errors
/// [`BenchError`] if it makes no sense, or fails before or after the operations. Operations that
/// fail or answer wrongly are counted in the report.
pub fn run(config: &BenchConfig, progress: &dyn Progress) -> Result<Report, BenchError> {
    if config.fabric == FabricKind::Tcp {
        let (fabric, region_bytes) = real::connect(config)?;
        let servers = config.cluster.as_ref().map_or(0, |cluster| cluster.addresses().len());
        let context = Context::new(&BenchConfig {
            memory_servers: servers,
            pool_bytes: Some(region_bytes * servers as u64),
            ..config.clone()
        })?;
        return Ok(real::run(&context, &fabric, progress)?.report(&context));
    }
    let context = Context::new(config)?;
    let run = match config.fabric {
        FabricKind::Sim => sim::run(&context, progress)?,
        FabricKind::Mapped | FabricKind::Tcp => real::on_mapped(&context, progress)?,
    };
    Ok(run.report(&context))
}

/// Bytes that each memory server needs for what `config` asks for.
///
/// # Errors
/// As [`run`], for what makes no sense.
pub fn region_bytes(config: &BenchConfig) -> Result<u64, BenchError> {
    Ok(Context::new(config)?.region_bytes)
}

/// What is known when a run is over.
struct Run {
    outcome: Outcome,
    /// The bulk load, if there was one.
    load: Option<PhaseReport>,
    /// Bytes of keys and values of the bulk load.
    data_bytes: u64,
    servers: Vec<Server>,
    seen: Option<TableReport>,
    capabilities: Capabilities,
    about_sim: Option<AboutSim>,
}

impl Run {
    fn report(self, context: &Context) -> Report {
        let config = &context.config;
        let Outcome { tally, load_ns, run_ns, cost } = &self.outcome;
        let memory: Vec<_> = self.servers.iter().map(|server| server.pool.memory()).collect();
        let data_bytes = self.data_bytes.saturating_add_signed(tally.data_bytes());
        Report {
            engine: config.engine.name().to_owned(),
            fabric: config.fabric.name().to_owned(),
            time: match config.fabric {
                FabricKind::Mapped | FabricKind::Tcp => TimeKind::Real,
                FabricKind::Sim => TimeKind::Virtual,
            },
            loop_kind: if config.rate.is_some() { LoopKind::Open } else { LoopKind::Closed },
            config: self.config(context),
            load: self.load.unwrap_or_else(|| PhaseReport::new(seconds(*load_ns), config.keys)),
            run: tally.report(seconds(*run_ns), cost),
            memory: MemoryReport {
                pool_bytes: context.pool_bytes(),
                index_bytes: memory.iter().map(|it| it.live_bytes - it.retired_bytes).sum(),
                data_bytes,
                compute_bytes: 0,
            },
            machine: Machine::detect(),
            commit: build_commit().map(str::to_owned),
        }
    }

    /// The configuration with what was left open filled in, and what else explains the numbers.
    fn config(&self, context: &Context) -> Map<String, Value> {
        let mut config = context.config.to_json();
        let mut set = |name: &str, value: Value| config.insert(name.to_owned(), value);
        set("pool_bytes", json!(context.pool_bytes()));
        set("block_bytes", json!(context.pool.block_bytes));
        set("node_bytes", json!(context.format.node_bytes()));
        if let Some(AnyIndex::Dex(dex)) = self.servers.first().map(|server| &server.index) {
            let options = dex.options();
            set("cache_bytes", json!(options.cache_bytes));
            set("durability", json!(options.durability.to_string()));
            set("admit_leaf", json!(options.admit_leaf));
            set("scan_prefetch", json!(options.scan_prefetch));
            set("combine", json!(options.combine));
        }
        set("capabilities", json!(capability_names(&self.capabilities)));
        set("crash_atomic_bytes", json!(self.capabilities.crash_atomic_bytes));
        if let Some(seen) = &self.seen {
            set("levels", json!(seen.nodes_per_level.len()));
            set("keys_at_end", json!(seen.keys));
        }
        if let Some(about) = self.about_sim {
            // As text: numbers beyond 2^53 do not survive every reader of JSON.
            set("trace_hash", json!(format!("{:016x}", about.trace_hash)));
            set("sim_events", json!(about.events));
            set("sim_remote_ops", json!(about.remote_ops));
        }
        config
    }
}

/// A loaded table.
struct Prepared {
    servers: Vec<Server>,
    load: Option<PhaseReport>,
    data_bytes: u64,
}

/// Formats the pool, makes the table and opens it on every compute server; `endpoints` has one of
/// each. Does the bulk load, if one is asked for.
async fn prepare<E: Endpoint>(
    context: &Context,
    endpoints: &[E],
    progress: &dyn Progress,
) -> Result<Prepared, BenchError> {
    let pool_bytes = context.pool_bytes();
    let refused = |source: PoolError| BenchError::Pool { pool_bytes, source };
    let mut servers = Vec::with_capacity(endpoints.len());
    let mut loaded = None;
    for endpoint in endpoints {
        let client = Client::new(endpoint.clone());
        if servers.is_empty() {
            if context.config.shares_pool() {
                // One that is there is somebody's.
                format_once(&client, &context.pool).await.map_err(refused)?;
            } else {
                format(&client, &context.pool).await.map_err(refused)?;
            }
        }
        let pool = Pool::join(&client).await.map_err(refused)?;
        let session = pool.session(endpoint.clone()).await.map_err(refused)?;
        let is_first = servers.is_empty();
        let root = if is_first {
            let created = AnyIndex::create(&session, TABLE, &context.format).await;
            created.map_err(|error| failed_load(pool_bytes, error))?
        } else {
            session.open_root(TABLE).await.map_err(refused)?
        };
        let index = AnyIndex::open(&session, &root, &context.open).await;
        let index = index.map_err(BenchError::Table)?;
        if is_first && context.config.load == LoadKind::Bulk {
            let load = bulk_load(context, &session, &index, progress).await;
            if load.is_err() && context.config.shares_pool() {
                // What has failed is what is told.
                let _ = index.close(&session).await;
                let _ = AnyIndex::drop_table(&session, TABLE).await;
            }
            loaded = Some(load?);
        }
        servers.push(Server { pool, index });
    }
    let (load, data_bytes) = loaded.unzip();
    Ok(Prepared { servers, load, data_bytes: data_bytes.unwrap_or(0) })
}

async fn bulk_load<E: Endpoint>(
    context: &Context,
    session: &Session<E>,
    index: &AnyIndex,
    progress: &dyn Progress,
) -> Result<(PhaseReport, u64), BenchError> {
    let keys = context.config.keys;
    progress.begin(Phase::Load, keys);
    let mut pairs = Pairs::new(&context.keys, context.values, keys, progress);
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

/// Takes the table out of a pool that stays.
async fn clear<E: Endpoint>(endpoint: &E) -> Result<(), BenchError> {
    let client = Client::new(endpoint.clone());
    let pool = Pool::join(&client).await.map_err(|error| BenchError::Clear(error.into()))?;
    let session = pool.session(endpoint.clone()).await;
    let session = session.map_err(|error| BenchError::Clear(error.into()))?;
    AnyIndex::drop_table(&session, TABLE).await.map_err(BenchError::Clear)?;
    session.leave().await.map_err(|error| BenchError::Clear(error.into()))
}

fn failed_load(pool_bytes: u64, error: IndexError) -> BenchError {
    match error {
        IndexError::Full(_) => BenchError::PoolTooSmall { pool_bytes, source: error },
        error => BenchError::Load(error),
    }
}

/// Walks the table at the end, if that is asked for.
async fn finish<E: Endpoint>(
    context: &Context,
    servers: &[Server],
    endpoint: &E,
    progress: &dyn Progress,
) -> Result<Option<TableReport>, BenchError> {
    let Some(server) = servers.first().filter(|_| context.config.verify) else { return Ok(None) };
    progress.begin(Phase::Verify, 0);
    let unread = |error: PoolError| BenchError::Verify(error.into());
    let session = server.pool.session(endpoint.clone()).await.map_err(unread)?;
    let mut audit = Audit::new(&session).await.map_err(unread)?;
    let report = server.index.verify(&session, &mut audit).await.map_err(BenchError::Verify)?;
    match report.problems.first() {
        Some(first) => {
            Err(BenchError::Damaged { count: report.problems.len(), first: first.clone() })
        }
        None => Ok(Some(report)),
    }
}

/// Closes the table on every compute server.
async fn close<E: Endpoint>(servers: &[Server], endpoint: &E) -> Result<(), BenchError> {
    for server in servers {
        let session = server.pool.session(endpoint.clone()).await;
        let session = session.map_err(|error| BenchError::Clear(error.into()))?;
        server.index.close(&session).await.map_err(BenchError::Clear)?;
    }
    Ok(())
}

fn capability_names(it: &Capabilities) -> Vec<&'static str> {
    [
        ("word_atomic", it.word_atomic),
        ("line_atomic", it.line_atomic),
        ("write_inorder", it.write_inorder),
        ("write_vs_rmw", it.write_vs_rmw),
        ("rmw_global", it.rmw_global),
        ("cpu_visible", it.cpu_visible),
        ("native_atomics", it.native_atomics),
        ("needs_target_progress", it.needs_target_progress),
    ]
    .into_iter()
    .filter_map(|(name, has)| has.then_some(name))
    .collect()
}

fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}
