//! `farleaf redis`: a gateway, which serves tables to Redis's clients.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use farleaf::Farleaf;
use farleaf_bench::units::Size;
use farleaf_gateway::{Gateway, GatewayError, GatewayOptions};
use farleaf_index::knobs::CACHE;
use serde_json::json;

use super::compute::store_metrics;
use super::memory::stop_signal;
use super::{builder, close, discard, open_as, table_options, table_or_create};
use crate::args::{CreateArgs, NewTableArgs};
use crate::errors::{Exit, Failure};
use crate::metrics::{Exposed, Metric};
use crate::output::Console;
use crate::serving::ServingArgs;
use crate::settings::SetArgs;

/// Tables that clients may select if none is named.
const TABLES: usize = 16;
/// Between two looks whether the pool is still open.
const LOOK_EVERY: Duration = Duration::from_millis(500);

#[derive(Debug, Args)]
pub(crate) struct RedisArgs {
    /// The pool, as in mem:, shm:/dev/shm/mypool, tcp://127.0.0.1:7000 or etcd://127.0.0.1:2379/mycluster
    pub(crate) pool: String,
    /// The address at which Redis's clients reach it; port 0 takes a free one
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:6379")]
    pub(crate) address: String,
    /// A table that clients SELECT by its place, from 0 on; may be given several times [default: db0 to db15]
    #[arg(short, long, value_name = "TABLE")]
    pub(crate) table: Vec<String>,
    /// Threads, each with an event loop
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    pub(crate) threads: usize,
    /// Connections at a time
    #[arg(long, value_name = "COUNT", default_value_t = 10_000)]
    pub(crate) connections: usize,
    /// Let clients remove all keys of a table by FLUSHDB
    #[arg(long)]
    pub(crate) allow_flush: bool,
    /// Bytes of the cache of each table, short for --set cache=SIZE
    #[arg(long, value_name = "SIZE")]
    pub(crate) cache: Option<Size>,
    #[command(flatten)]
    pub(crate) set: SetArgs,
    #[command(flatten)]
    pub(crate) create: CreateArgs,
    #[command(flatten)]
    pub(crate) new_table: NewTableArgs,
    #[command(flatten)]
    pub(crate) serving: ServingArgs,
    /// End with standard input, too: when whoever has started it is gone
    #[arg(long, hide = true)]
    pub(crate) end_with_stdin: bool,
}

pub(super) fn run(args: &RedisArgs, console: &mut Console) -> anyhow::Result<Exit> {
    let listen = address(&args.address, console)?;
    // Before anything is served, so that no signal is lost.
    let stop = stop_signal(args.end_with_stdin)?;
    args.serving.start_log();
    let mut settings = args.set.settings();
    if let Some(size) = args.cache {
        settings.set(CACHE, &size.to_string());
    }
    let is_own = args.pool.trim().starts_with("mem:");
    // It stays, as a compute server does.
    let builder = builder(console)?.recovers(true);
    let db = open_as(builder, &args.pool, &args.create, &settings, console)?;
    let served = serve(args, is_own, &settings, listen, &db, console);
    let (gateway, tables) = match served {
        Ok(served) => served,
        Err(error) => {
            discard(&db, console);
            return Err(error);
        }
    };
    let gateway = Arc::new(gateway);
    let exposed = GatewayMetrics { db: db.clone(), gateway: Arc::clone(&gateway) };
    let metrics = match args.serving.expose(exposed) {
        Ok(metrics) => metrics,
        Err(error) => {
            drop(gateway);
            discard(&db, console);
            return Err(error);
        }
    };
    let metrics_at = metrics.as_ref().map(|metrics| metrics.address().to_string());
    tell(&gateway, &tables, metrics_at, console)?;
    while let Err(RecvTimeoutError::Timeout) = stop.recv_timeout(LOOK_EVERY) {
        if let Err(error) = db.stats()
            && error.kind() == farleaf::ErrorKind::Closed
        {
            gateway.stop();
            return Err(error).context("the pool was lost: start the gateway again");
        }
    }
    drop(metrics);
    // The last of its handles, which stops it.
    drop(gateway);
    close(db)?;
    Ok(Exit::Done)
}

/// A table that clients may select: its name, and its engine once it is there.
type Served = (String, Option<String>);

fn serve(
    args: &RedisArgs,
    is_own: bool,
    settings: &farleaf::Settings,
    listen: SocketAddr,
    db: &Farleaf,
    console: &Console,
) -> anyhow::Result<(Gateway, Vec<Served>)> {
    let creates = args.create.create || is_own;
    let mut tables: Vec<Served> = Vec::new();
    for name in &args.table {
        let engine = match creates {
            true => table_or_create(db, name, &args.new_table, settings, console)?.0.info().engine,
            false => db.table(name)?.info().engine,
        };
        tables.push((name.clone(), Some(engine.to_string())));
    }
    if tables.is_empty() {
        let there = db.tables()?;
        let engine =
            |name: &str| there.iter().find(|it| it.name == name).map(|it| it.engine.to_string());
        tables = (0..TABLES)
            .map(|number| format!("db{number}"))
            .map(|name| {
                let engine = engine(&name);
                (name, engine)
            })
            .collect();
        if !creates && tables.iter().all(|(_, engine)| engine.is_none()) {
            return Err(Failure::usage(
                "the pool has none of the tables db0 to db15: name tables with --table, or give --create",
            )
            .into());
        }
    }
    let options = GatewayOptions {
        listen,
        tables: tables.iter().map(|(name, _)| name.clone()).collect(),
        creates: creates.then(|| table_options(&args.new_table, settings)).transpose()?,
        threads: args.threads,
        connections_max: args.connections,
        allow_flush: args.allow_flush,
        ..GatewayOptions::new(Vec::new())
    };
    let gateway = Gateway::start(db.clone(), options).map_err(|error| match error {
        GatewayError::Options(text) => anyhow::Error::from(Failure::usage(text)),
        error => error.into(),
    })?;
    Ok((gateway, tables))
}

/// The address of an option. Without users, other machines reach the gateway only if that is asked for.
fn address(text: &str, console: &Console) -> anyhow::Result<SocketAddr> {
    let found = text.to_socket_addrs().map(|mut all| all.next());
    let address = match found {
        Ok(Some(address)) => address,
        _ => {
            return Err(Failure::usage(format!(
                "--address: \"{text}\" is not a network address: write 127.0.0.1:6379"
            ))
            .into());
        }
    };
    if !address.ip().is_loopback() && !console.args.listen.insecure_public {
        return Err(Failure::usage(format!(
            "--address {address} is reached by other machines, and a gateway has neither users nor TLS: take an \
             address of this machine, or give --insecure-public in a network where you trust every machine"
        ))
        .into());
    }
    Ok(address)
}

/// The source of its metrics over HTTP.
struct GatewayMetrics {
    db: Farleaf,
    gateway: Arc<Gateway>,
}

impl Exposed for GatewayMetrics {
    fn metrics(&self) -> Vec<Metric> {
        let counts = self.gateway.counts();
        let mut all = vec![
            Metric::gauge("redis_connections", "Connections of clients", counts.connections),
            Metric::gauge(
                "redis_client_bytes",
                "Bytes of clients' own buffers",
                counts.client_bytes,
            ),
            Metric::counter("redis_connections_made", "Connections that clients have made")
                .with(&[], counts.connected),
            Metric::counter("redis_connections_refused", "Connections that were too many")
                .with(&[], counts.refused),
            Metric::counter("redis_connections_closed", "Connections whose clients broke a limit")
                .with(&[], counts.closed),
            Metric::counter("redis_commands", "Commands of clients that were done")
                .with(&[], counts.commands),
        ];
        all.extend(store_metrics(&self.db));
        all
    }

    fn health(&self) -> Result<(), String> {
        self.db.stats().map(drop).map_err(|error| error.to_string())
    }
}

fn tell(
    gateway: &Gateway,
    tables: &[Served],
    metrics: Option<String>,
    console: &mut Console,
) -> anyhow::Result<()> {
    let address = gateway.address().to_string();
    if console.args.json {
        let tables: Vec<_> = tables
            .iter()
            .enumerate()
            .map(|(number, (name, engine))| json!({ "database": number, "table": name, "engine": engine }))
            .collect();
        console.json_line(&json!({ "address": address, "tables": tables, "metrics": metrics }))?;
    } else {
        let mut fields = vec![("redis", address)];
        fields.extend(metrics.map(|at| ("metrics", format!("http://{at}/metrics"))));
        console.fields(&fields)?;
        let rows = tables.iter().enumerate().map(|(number, (name, engine))| {
            let engine = engine.clone().unwrap_or_else(|| "-".to_owned());
            vec![number.to_string(), crate::output::escaped(name.as_bytes()), engine]
        });
        console.table(&["database", "table", "engine"], rows)?;
    }
    console.flush()?;
    Ok(())
}
