//! `farleaf compute`: a compute server that owns keys of tables and answers other compute servers.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use farleaf::{
    CounterSet, Engine, ErrorKind, Farleaf, Processors, ServerName, Settings, Stats, Table,
};
use farleaf_fabric::{Cost, OpKind};
use farleaf_index::knobs::CACHE;
use farleaf_index::sync::lock;
use farleaf_index::units::Size;
use serde_json::json;

use super::memory::{stop_signal, tell_sharing};
use super::{close, refuse_mem};
use crate::errors::{Exit, Failure};
use crate::metrics::{Exposed, Metric};
use crate::output::Console;
use crate::serving::{ServingArgs, tell_ending, tell_ready};
use crate::settings::SetArgs;

/// Time between two looks for keys that nobody has, and for new tables.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Time for which it tries to give all of a table away while other moves are under way, and the pause between.
const GIVE_WAIT: Duration = Duration::from_secs(5);
const GIVE_PAUSE: Duration = Duration::from_millis(200);

#[derive(Clone, Debug, Args)]
pub(crate) struct ComputeArgs {
    /// The pool, as in shm:/dev/shm/mypool, tcp://127.0.0.1:7000 or etcd://127.0.0.1:2379/mycluster
    pub(crate) pool: String,
    /// A table that it serves; may be given several times [default: all whose engine has owners, new ones
    /// included]
    #[arg(short, long, value_name = "TABLE")]
    pub(crate) table: Vec<String>,
    /// Threads that answer
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    pub(crate) threads: usize,
    /// Processors on which these threads stay, as in 0,2-3: one on each in turn [default: any]
    #[arg(long, value_name = "CPUS")]
    pub(crate) pin: Option<Processors>,
    /// Bytes of memory that it exposes to the other compute servers, for engines that keep a part of their tables
    /// there; a multiple of 4KiB. By RDMA all of it is locked [default: 0]
    #[arg(long, value_name = "SIZE")]
    pub(crate) expose_bytes: Option<Size>,
    /// Bytes of the cache of each table, short for --set cache=SIZE [default: 256MiB]
    #[arg(long, value_name = "SIZE")]
    pub(crate) cache: Option<Size>,
    #[command(flatten)]
    pub(crate) set: SetArgs,
    #[command(flatten)]
    pub(crate) serving: ServingArgs,
    /// End with standard input, too: when whoever has started it is gone
    #[arg(long, hide = true)]
    pub(crate) end_with_stdin: bool,
}

pub(super) fn run(args: &ComputeArgs, console: &mut Console) -> anyhow::Result<Exit> {
    refuse_mem(&args.pool)?;
    // Before anything is served, so that no signal is lost.
    let stop = stop_signal(args.end_with_stdin)?;
    args.serving.start_log();
    let pin = args.pin.clone().unwrap_or_default();
    tell_sharing(args.threads, &pin, console);
    let mut builder = super::builder(console)?
        .serve_threads(args.threads)
        .pin_serve_threads(pin)
        .expose_bytes(args.expose_bytes.map_or(0, |size| size.0))
        .take_partitions(usize::MAX)
        .recovers(true)
        .leaves_when_asked(true);
    builder = builder.set_all(&settings(args)?);
    let db = super::open_waiting(builder, &args.pool, false, console)?;
    let own = db.serve()?;
    let mut tables = BTreeMap::new();
    for name in &args.table {
        let table = db.table(name)?;
        if !table.info().engine.traits().is_served() {
            return Err(Failure::usage(format!(
                "table \"{name}\" is of the engine {}, which has no owners: any process uses it as \
                 it is",
                table.info().engine
            ))
            .into());
        }
        tell_too_small(&db, &table)?;
        tables.insert(name.clone(), table);
    }
    let seen = Arc::<Mutex<Seen>>::default();
    look(&db, args, &mut tables, &seen)?;
    let metrics =
        args.serving.expose(ComputeMetrics { db: db.clone(), seen: Arc::clone(&seen) })?;
    let metrics_at = metrics.as_ref().map(|metrics| metrics.address().to_string());
    let address = own.address.map(|address| address.to_string());
    let listens = db.listens()?.map(|address| address.to_string());
    let names: Vec<&String> = tables.keys().collect();
    if console.args.json {
        console.json_line(&json!({
            "address": address,
            "listens": listens,
            "exposed_bytes": own.exposed_bytes,
            "name": own.name.to_string(),
            "tables": names,
            "metrics": metrics_at,
        }))?;
    } else {
        let listens = listens.filter(|at| Some(at) != address.as_ref());
        let mut fields: Vec<_> = address.clone().map(|at| ("address", at)).into_iter().collect();
        fields.push(("name", own.name.to_string()));
        fields.extend(listens.map(|at| ("listens", at)));
        let exposes = Some(own.exposed_bytes).filter(|bytes| *bytes > 0);
        fields.extend(exposes.map(|bytes| ("exposes", console.size(bytes))));
        fields.extend(metrics_at.map(|address| ("metrics", format!("http://{address}/metrics"))));
        console.fields(&fields)?;
    }
    console.flush()?;
    tracing::info!(name = %own.name, ?address, tables = tables.len(), "serves");
    tell_ready(address.as_deref());
    while let Err(RecvTimeoutError::Timeout) = stop.recv_timeout(LOOK_EVERY) {
        if db.cluster().is_some_and(|cluster| cluster.is_leaving) {
            tracing::info!("has been asked to leave its cluster");
            give_all(&tables, own.name);
            break;
        }
        look(&db, args, &mut tables, &seen)?;
    }
    tell_ending();
    tracing::info!("ends, and hands back what it has");
    drop(metrics);
    drop(tables);
    close(db)?;
    Ok(Exit::Done)
}

/// Settings by which tables are opened, as some engine with owners takes them.
fn settings(args: &ComputeArgs) -> Result<Settings, Failure> {
    let mut settings = args.set.settings();
    if let Some(size) = args.cache {
        settings.set(CACHE, &size.to_string());
    }
    let owned: Vec<Engine> =
        Engine::ALL.iter().copied().filter(|it| it.traits().is_served()).collect();
    Engine::check_some(&owned, &settings).map_err(|error| Failure::usage(error.to_string()))?;
    Ok(settings)
}

/// The findings of the last look.
#[derive(Debug, Default)]
struct Seen {
    tables: Vec<SeenTable>,
    /// The trouble that it met.
    trouble: Option<String>,
}

/// Numbers of a table.
#[derive(Debug)]
struct SeenTable {
    name: String,
    counters: CounterSet,
    cache_bytes: Option<u64>,
}

impl SeenTable {
    fn of((name, table): (&String, &Table)) -> Self {
        let (counters, cache_bytes) = (table.counters(), table.cache_bytes());
        SeenTable { name: name.clone(), counters, cache_bytes }
    }
}

impl Seen {
    /// Takes note of a look's end; a trouble that is new is logged.
    fn note(&mut self, tables: &BTreeMap<String, Table>, trouble: Option<String>) {
        match (&self.trouble, &trouble) {
            (before, Some(now)) if before.as_ref() != Some(now) => {
                tracing::warn!(why = now, "trouble")
            }
            (Some(_), None) => tracing::info!("all is well again"),
            _ => {}
        }
        *self = Seen { tables: tables.iter().map(SeenTable::of).collect(), trouble };
    }

    fn table_metrics(&self) -> Vec<Metric> {
        let mut counts = Metric::counter("engine_events", "Counts of a table's engine, by name");
        let mut cached = Metric::gauge_family("cache_bytes", "Bytes of a table's cache");
        for SeenTable { name, counters, cache_bytes } in &self.tables {
            for (event, count) in counters.iter() {
                counts = counts.with(&[("table", name), ("event", event)], count);
            }
            if let Some(bytes) = cache_bytes {
                cached = cached.with(&[("table", name)], *bytes);
            }
        }
        let tables = self.tables.len() as u64;
        vec![Metric::gauge("tables", "Tables that are served", tables), counts, cached]
    }
}

/// The source of its metrics over HTTP.
struct ComputeMetrics {
    db: Farleaf,
    seen: Arc<Mutex<Seen>>,
}

impl Exposed for ComputeMetrics {
    fn metrics(&self) -> Vec<Metric> {
        let mut all = lock(&self.seen).table_metrics();
        all.extend(store_metrics(&self.db));
        all
    }

    fn health(&self) -> Result<(), String> {
        lock(&self.seen).trouble.clone().map_or(Ok(()), Err)
    }
}

/// Memory, recoveries and remote operations of a process that has a pool open.
pub(super) fn store_metrics(db: &Farleaf) -> Vec<Metric> {
    // A store that is being closed has nothing to tell any more.
    let Ok(stats) = db.stats() else { return Vec::new() };
    let memory = stats.memory;
    let mut all = vec![
        Metric::gauge("pool_bytes", "Bytes of all memory servers", memory.pool_bytes),
        Metric::gauge("memory_servers", "Memory servers", stats.memory_servers as u64),
        Metric::gauge("owned_bytes", "Bytes of the blocks that it owns", memory.block_bytes_owned),
        Metric::gauge("retired_bytes", "Bytes not reclaimed yet", memory.retired_bytes),
        Metric::gauge(
            "exposed_bytes",
            "Bytes of memory that it exposes to compute servers",
            stats.exposed_bytes,
        ),
    ];
    let recoveries = stats.recoveries;
    all.push(
        Metric::counter("recoveries", "Recoveries of dead compute servers by this one")
            .with(&[("state", "begun")], recoveries.begun)
            .with(&[("state", "done")], recoveries.done)
            .with(&[("state", "in-vain")], recoveries.in_vain),
    );
    all.push(
        Metric::counter("recovered_members", "Dead compute servers that it has recovered")
            .with(&[], recoveries.members),
    );
    let mut ops = Metric::counter("index_operations", "Index operations done");
    let mut remote =
        Metric::counter("remote_operations", "Remote operations, by what they were for");
    let mut bytes =
        Metric::counter("network_bytes", "Bytes read from and written to memory servers");
    let mut trips =
        Metric::counter("round_trips", "Round trips that an index operation waited for");
    for kind in OpKind::ALL {
        let (name, cost) = (kind.name(), stats.counters.kind(kind));
        ops = ops.with(&[("kind", name)], stats.counters.ops(kind));
        for (verb, count) in verbs(&cost) {
            remote = remote.with(&[("kind", name), ("operation", verb)], count);
        }
        bytes = bytes
            .with(&[("kind", name), ("direction", "in")], cost.bytes_read)
            .with(&[("kind", name), ("direction", "out")], cost.bytes_written);
        trips = trips.with(&[("kind", name)], cost.round_trips);
    }
    all.extend([ops, remote, bytes, trips]);
    all.extend(target_metrics(&stats));
    all
}

/// Remote operations by the kind of server that they go to.
fn target_metrics(stats: &Stats) -> [Metric; 3] {
    let mut remote = Metric::counter(
        "target_operations",
        "Remote operations, by target: memory servers, other compute servers, own exposed memory",
    );
    let mut trips = Metric::counter("target_round_trips", "Round trips, by target");
    let mut bytes = Metric::counter("target_bytes", "Bytes read and written, by target");
    for (target, cost) in by_target(stats) {
        for (verb, count) in verbs(&cost) {
            remote = remote.with(&[("target", target), ("operation", verb)], count);
        }
        trips = trips.with(&[("target", target)], cost.round_trips);
        bytes = bytes
            .with(&[("target", target), ("direction", "in")], cost.bytes_read)
            .with(&[("target", target), ("direction", "out")], cost.bytes_written);
    }
    [remote, trips, bytes]
}

/// Costs by the kind of server that operations go to.
pub(super) fn by_target(stats: &Stats) -> [(&'static str, Cost); 3] {
    let counts = &stats.counters;
    [("memory", counts.memory()), ("compute", counts.compute()), ("own", counts.own())]
}

/// Counts of remote operations by their names in metrics.
pub(super) fn verbs(cost: &Cost) -> [(&'static str, u64); 5] {
    [
        ("read", cost.reads),
        ("write", cost.writes),
        ("atomic", cost.atomics()),
        ("rpc", cost.rpcs),
        ("call", cost.calls),
    ]
}

/// Opens tables that are new, lets go of those that are gone, and takes keys that nobody has.
fn look(
    db: &Farleaf,
    args: &ComputeArgs,
    tables: &mut BTreeMap<String, Table>,
    seen: &Mutex<Seen>,
) -> anyhow::Result<()> {
    let mut trouble = None;
    if args.table.is_empty() {
        let infos = match db.tables() {
            Err(error) if may_pass(error.kind()) => {
                lock(seen).note(tables, Some(error.to_string()));
                return Ok(());
            }
            infos => infos?,
        };
        for info in infos.into_iter().filter(|info| info.engine.traits().is_served()) {
            let Entry::Vacant(entry) = tables.entry(info.name) else { continue };
            match db.table(entry.key()) {
                // Dropped meanwhile.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                // There is no room for it now, or it cannot be reached.
                Err(error) if may_pass(error.kind()) => trouble = Some(error.to_string()),
                table => {
                    let table = table?;
                    tracing::info!(table = entry.key(), "serves a table");
                    tell_too_small(db, &table)?;
                    entry.insert(table);
                }
            }
        }
    }
    let mut gone = Vec::new();
    for (name, table) in tables.iter() {
        match table.take_free() {
            Err(error) if error.kind() == ErrorKind::NotFound => gone.push(name.clone()),
            Err(error) if may_pass(error.kind()) => trouble = Some(error.to_string()),
            taken => {
                if taken? {
                    tracing::info!(table = name, "has taken what nobody had, or was its share");
                }
            }
        }
    }
    for name in gone {
        tracing::info!(table = name, "a table is gone");
        tables.remove(&name);
    }
    lock(seen).note(tables, trouble);
    Ok(())
}

/// Says so if this compute server exposes memory, and less than the table's lines take: it has no partitions of it then.
fn tell_too_small(db: &Farleaf, table: &Table) -> anyhow::Result<()> {
    let (Some(least), exposed) = (table.expose_bytes_least()?, db.stats()?.exposed_bytes) else {
        return Ok(());
    };
    if (1..least).contains(&exposed) {
        tracing::warn!(
            table = table.name(),
            exposed,
            "exposes too little memory to have partitions of the table: its lines take {least} bytes in this pool; start \
             with --expose-bytes {least}, or more"
        );
    }
    Ok(())
}

/// Gives all to other compute servers. What nobody takes now is free for all once the pool is left.
fn give_all(tables: &BTreeMap<String, Table>, own: ServerName) {
    for (name, table) in tables {
        let end = Instant::now() + GIVE_WAIT;
        loop {
            match table.drain(own) {
                // Another move is under way.
                Err(error) if error.kind() == ErrorKind::Unavailable && Instant::now() < end => {
                    thread::sleep(GIVE_PAUSE);
                }
                Err(error) => {
                    tracing::info!(table = name, why = %error, "frees what it has");
                    break;
                }
                Ok(parts) => {
                    tracing::info!(table = name, parts, "has given its ranges or partitions");
                    break;
                }
            }
        }
    }
}

/// Returns whether to look again later.
fn may_pass(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::NotFound | ErrorKind::Unavailable | ErrorKind::OutcomeUnknown | ErrorKind::Full
    )
}
