//! `farleaf redis`: a gateway, which serves tables to Redis's clients.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, TryRecvError};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use clap::{Args, ValueEnum, ValueHint};
use farleaf::{Builder, Content, ErrorKind, Farleaf, Processors, Settings, ValueFormat};
use farleaf_gateway::{
    Gateway, GatewayError, GatewayOptions, GatewayTls, Multi, Overlap, Users, new_token,
};
use farleaf_index::knobs::CACHE;
use farleaf_index::sync::lock;
use farleaf_index::units::{Size, TimeSpan};
use rustix::process::{Resource, getrlimit, setrlimit};
use serde_json::json;

use super::compute::store_metrics;
use super::memory::{stop_signal, tell_sharing};
use super::{
    builder, check_settings, close, discard, made_as, may_come, not_opened, table_options,
    table_or_create_with, tell_opened,
};
use crate::args::{CreateArgs, NewTableArgs};
use crate::errors::{Exit, Failure};
use crate::listen::socket_address;
use crate::metrics::{Exposed, Metric};
use crate::one_of::OneOf;
use crate::output::{Console, counted};
use crate::serving::{ServingArgs, tell_ending, tell_ready};
use crate::settings::SetArgs;

/// Tables that clients may select if none is named.
const TABLES: usize = 16;
/// Between two looks whether the pool is still open, and whether the users have changed.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Time for an opening that is under way when the command is to end.
const END_WITHIN: Duration = Duration::from_secs(10);
/// Time between two attempts to open a pool that may come, and between two looks while one is being opened.
const RETRY_AFTER: Duration = Duration::from_millis(100);
const LOOK_WHILE_OPENING: Duration = Duration::from_millis(20);
/// Descriptors that are left to the pool, the log and the metrics.
const DESCRIPTORS_KEPT: u64 = 32;
/// The word in place of a pool that asks for a token.
const TOKEN: &str = "token";

#[derive(Debug, Args)]
pub(crate) struct RedisArgs {
    /// The pool, as in mem:, shm:/dev/shm/mypool, tcp://127.0.0.1:7000 or etcd://127.0.0.1:2379/mycluster; the word
    /// token prints a random token for --users instead, and its hash
    #[arg(value_name = "POOL")]
    pub(crate) pool: String,
    /// The address at which Redis's clients reach it; port 0 takes a free one
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:6379")]
    pub(crate) address: String,
    /// A table that clients SELECT by its place, from 0 on; may be given several times [default: those of --users, or
    /// db0 to db15]
    #[arg(short, long, value_name = "TABLE")]
    pub(crate) table: Vec<String>,
    /// Threads, each with an event loop
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    pub(crate) threads: usize,
    /// Processors on which these threads stay, as in 0,2-3: one on each in turn [default: any]
    #[arg(long, value_name = "CPUS")]
    pub(crate) pin: Option<Processors>,
    /// Percent of a table's keys to look at each second for records that have expired; 0 removes those alone that a
    /// client meets
    #[arg(long, value_name = "PERCENT", default_value_t = 1)]
    pub(crate) sweep: u32,
    /// Let clients remove all keys of a table by FLUSHDB
    #[arg(long)]
    pub(crate) allow_flush: bool,
    /// Commands of one connection that run together
    #[arg(long, value_name = "COMMANDS", default_value = "reads", value_parser = OneOf::<Pipeline>::names())]
    pub(crate) pipeline: Pipeline,
    /// The meaning of MULTI
    #[arg(long, value_name = "MEANING", default_value = "refused", value_parser = OneOf::<MultiMeans>::names())]
    pub(crate) multi: MultiMeans,
    /// Bytes of the cache of each table, short for --set cache=SIZE
    #[arg(long, value_name = "SIZE")]
    pub(crate) cache: Option<Size>,
    #[command(flatten)]
    pub(crate) set: SetArgs,
    #[command(flatten)]
    pub(crate) clients: ClientArgs,
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

/// Options about clients: access and limits.
#[derive(Debug, Args)]
#[command(next_help_heading = "Clients")]
pub(crate) struct ClientArgs {
    /// Users with their tokens, tables and rights (TOML); clients then begin with AUTH. Read again when it changes
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) users: Option<PathBuf>,
    /// The certificate (PEM) that clients are shown: they speak TLS 1.3 then
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "client_key")]
    pub(crate) client_cert: Option<PathBuf>,
    /// The certificate's key (PEM)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "client_cert")]
    pub(crate) client_key: Option<PathBuf>,
    /// Certificates (PEM) of those who vouch for clients, each of which then has to show a certificate
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "client_cert")]
    pub(crate) client_ca: Option<PathBuf>,
    /// Connections at a time; fewer if the limit of open files (ulimit -n) leaves fewer
    #[arg(long, value_name = "COUNT", default_value_t = 10_000)]
    pub(crate) connections: usize,
    /// Bytes of parts of commands and of waiting replies, of all clients together
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    pub(crate) client_memory: Size,
    /// Close a client whose replies wait and that takes none for so long
    #[arg(long, value_name = "TIME", default_value = "60s")]
    pub(crate) slow_client: TimeSpan,
    /// Close a client that sends nothing for so long [default: never]
    #[arg(long, value_name = "TIME")]
    pub(crate) idle: Option<TimeSpan>,
}

/// Choice of commands of one connection that run together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Pipeline {
    /// None
    Strict,
    /// Reads that stand next to each other
    Reads,
    /// Reads and writes; those of one key take effect in their order
    All,
}

/// Choice of what MULTI means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MultiMeans {
    /// Clients get an error: there are no transactions
    Refused,
    /// Commands up to EXEC run in order, each atomic, others' in between
    Sequence,
}

pub(super) fn run(args: &RedisArgs, console: &mut Console) -> anyhow::Result<Exit> {
    if args.pool == TOKEN {
        return tell_token(console);
    }
    let mut users = args.clients.users.as_deref().map(UsersFile::open).transpose()?;
    let tls = tls(&args.clients)?;
    let listen = address(args, users.is_some(), tls.is_some(), console)?;
    let connections = connections(args.clients.connections, console)?;
    // Before anything is served, so that no signal is lost.
    let stop = stop_signal(args.end_with_stdin)?;
    args.serving.start_log();
    let pin = args.pin.clone().unwrap_or_default();
    pin.check().map_err(|error| Failure::usage(error.to_string()))?;
    tell_sharing(args.threads, &pin, console);
    let settings = settings(args);
    // It stays, as a compute server does.
    let builder = builder(console)?.recovers(true).leaves_when_asked(true);
    let builder = made_as(builder, &args.pool, &args.create, &settings)?;
    let Some(db) = open(&builder, args, console, &stop)? else { return Ok(Exit::Done) };
    tell_opened(&db, &args.pool, console)?;
    let options = GatewayOptions {
        listen,
        threads: args.threads,
        pin,
        connections_max: connections,
        allow_flush: args.allow_flush,
        sweep_percent: args.sweep,
        users: users.as_ref().map(|file| file.users.clone()),
        tls,
        overlap: match args.pipeline {
            Pipeline::Strict => Overlap::Nothing,
            Pipeline::Reads => Overlap::Reads,
            Pipeline::All => Overlap::All,
        },
        multi: match args.multi {
            MultiMeans::Refused => Multi::Refused,
            MultiMeans::Sequence => Multi::Sequence,
        },
        client_memory: args.clients.client_memory.0 as usize,
        slow_client: args.clients.slow_client.duration(),
        idle: args.clients.idle.map(TimeSpan::duration),
        ..GatewayOptions::new(Vec::new())
    };
    let (gateway, tables) = match serve(args, &settings, options, &db, console) {
        Ok(served) => served,
        Err(error) => {
            discard(&db, console);
            return Err(error);
        }
    };
    let gateway = Arc::new(gateway);
    let db = Arc::new(Mutex::new(db));
    let exposed = RedisMetrics { gateway: Arc::clone(&gateway), db: Arc::clone(&db) };
    let metrics = match args.serving.expose(exposed) {
        Ok(metrics) => metrics,
        Err(error) => {
            // The last of its handles, which stops it.
            drop(gateway);
            discard(&lock(&db), console);
            return Err(error);
        }
    };
    let metrics_at = metrics.as_ref().map(|metrics| metrics.address().to_string());
    tell(&gateway, &tables, metrics_at, console)?;
    tracing::info!(address = %gateway.address(), tables = tables.len(), "serves");
    tell_ready(Some(&gateway.address().to_string()));
    while let Err(RecvTimeoutError::Timeout) = stop.recv_timeout(LOOK_EVERY) {
        if let Some(users) = &mut users {
            users.look(&gateway);
        }
        let is_closed = lock(&db).stats().is_err_and(|error| error.kind() == ErrorKind::Closed);
        if (is_closed || gateway.is_lost())
            && !reopen(&builder, args, console, &gateway, &db, &stop)
        {
            break;
        }
    }
    tell_ending();
    tracing::info!("ends, and answers what it has received");
    drop(metrics);
    // The metrics had the other one.
    if let Some(gateway) = Arc::into_inner(gateway) {
        gateway.stop();
    }
    let db = lock(&db).clone();
    match close(db) {
        // It was lost, and others recover what it held.
        Err(error) if error.downcast_ref::<farleaf::Error>().is_some_and(is_closed) => {}
        closed => closed?,
    }
    Ok(Exit::Done)
}

fn is_closed(error: &farleaf::Error) -> bool {
    error.kind() == ErrorKind::Closed
}

/// Prints a new token, and what the file of users holds of it.
fn tell_token(console: &mut Console) -> anyhow::Result<Exit> {
    let (token, hash) = new_token().map_err(|error| Failure::unavailable(error.to_string()))?;
    if console.args.json {
        console.json_line(&json!({ "token": token, "token_sha256": hash }))?;
    } else {
        console.fields(&[("token", token), ("token_sha256", hash)])?;
    }
    Ok(Exit::Done)
}

fn settings(args: &RedisArgs) -> Settings {
    let mut settings = args.set.settings();
    if let Some(size) = args.cache {
        settings.set(CACHE, &size.to_string());
    }
    settings
}

/// Opens the pool, as `open_waiting` does; `None` if the command is to end first.
fn open(
    builder: &Builder,
    args: &RedisArgs,
    console: &Console,
    stop: &Receiver<()>,
) -> anyhow::Result<Option<Farleaf>> {
    let creates = args.create.create;
    let end = Instant::now() + console.wait();
    loop {
        let error = match attempt(builder, &args.pool, stop) {
            Some((Ok(db), false)) => return Ok(Some(db)),
            Some((Ok(db), true)) => {
                discard(&db, console);
                close(db)?;
                return Ok(None);
            }
            Some((Err(_), true)) | None => return Ok(None),
            Some((Err(error), false)) => error,
        };
        if !may_come(&error, creates) || Instant::now() >= end {
            return Err(not_opened(error, &args.create));
        }
        if stop.recv_timeout(RETRY_AFTER) != Err(RecvTimeoutError::Timeout) {
            return Ok(None);
        }
    }
}

/// Opens the pool once, beside a look whether the command is to end; returns whether it is. An opening under way is
/// brought to its end, so that the pool is left in order.
fn attempt(
    builder: &Builder,
    pool: &str,
    stop: &Receiver<()>,
) -> Option<(farleaf::Result<Farleaf>, bool)> {
    thread::scope(|scope| {
        let (tell, told) = mpsc::channel();
        scope.spawn(move || {
            // Somebody waits for it, or the process ends.
            let _ = tell.send(builder.clone().open(pool));
        });
        let mut ends_at = None;
        loop {
            match told.recv_timeout(LOOK_WHILE_OPENING) {
                Ok(opened) => return Some((opened, ends_at.is_some())),
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) => {}
            }
            if ends_at.is_none() && stop.try_recv() != Err(TryRecvError::Empty) {
                ends_at = Some(Instant::now() + END_WITHIN);
            }
            if ends_at.is_some_and(|ends_at| Instant::now() > ends_at) {
                // As a death at this moment, which others recover from.
                std::process::exit(Exit::Interrupted as i32);
            }
        }
    })
}

/// Opens a lost pool again, while clients are told so; false if the command is to end.
fn reopen(
    builder: &Builder,
    args: &RedisArgs,
    console: &Console,
    gateway: &Gateway,
    db: &Mutex<Farleaf>,
    stop: &Receiver<()>,
) -> bool {
    gateway.lose();
    tracing::warn!("the pool is lost, and is opened again");
    // A pool in this process is gone with its content: there is nothing to open.
    let builder = builder.clone().create(false);
    loop {
        match open(&builder, args, console, stop) {
            Ok(Some(opened)) => {
                *lock(db) = opened.clone();
                gateway.reopen(opened);
                tracing::info!("the pool is open again");
                return true;
            }
            Ok(None) => return false,
            Err(error) => tracing::warn!(why = %format!("{error:#}"), "cannot open the pool yet"),
        }
        if stop.recv_timeout(LOOK_EVERY) != Err(RecvTimeoutError::Timeout) {
            return false;
        }
    }
}

/// A table that clients may select: its name, and its engine once it is there.
type Served = (String, Option<String>);

fn serve(
    args: &RedisArgs,
    settings: &Settings,
    mut options: GatewayOptions,
    db: &Farleaf,
    console: &Console,
) -> anyhow::Result<(Gateway, Vec<Served>)> {
    let creates = args.create.create || args.pool.trim().starts_with("mem:");
    let named = match &options.users {
        Some(users) if args.table.is_empty() => users.tables(),
        _ => args.table.clone(),
    };
    let mut tables: Vec<Served> = Vec::new();
    for name in &named {
        if tables.iter().any(|(other, _)| other == name) {
            return Err(Failure::usage(format!("--table {name} is given twice")).into());
        }
        let engine = match creates {
            true => {
                let content = content(&args.new_table);
                let wanted = &args.new_table;
                let (table, _) =
                    table_or_create_with(db, name, wanted, settings, content, console)?;
                table.info().engine
            }
            false => {
                let table = db.table(name)?;
                check_settings(&table, settings)?;
                table.info().engine
            }
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
    options.tables = tables.iter().map(|(name, _)| name.clone()).collect();
    options.creates =
        creates.then(|| table_options(&args.new_table, settings, content(&args.new_table)));
    let gateway = Gateway::start(db.clone(), options).map_err(|error| match error {
        GatewayError::Options(_) | GatewayError::Users(_) => {
            anyhow::Error::from(Failure::usage(error.to_string()))
        }
        GatewayError::Listen { .. } => Failure::unavailable(format!(
            "{error}: is another gateway or a redis-server there? --address names another port, and port 0 a free one"
        ))
        .into(),
        error => Failure::unavailable(error.to_string()).into(),
    })?;
    Ok((gateway, tables))
}

/// The content of a new table for which none is wanted. Values of one length are raw.
fn content(wanted: &NewTableArgs) -> Content {
    match wanted.value_format {
        Some(ValueFormat::Fixed(_)) => Content::Raw,
        _ => Content::Records,
    }
}

/// The address of an option. Other machines reach the gateway only with users and TLS, or if that is asked for.
fn address(
    args: &RedisArgs,
    has_users: bool,
    has_tls: bool,
    console: &Console,
) -> anyhow::Result<SocketAddr> {
    let text = &args.address;
    let Ok(address) = socket_address(text) else {
        return Err(Failure::usage(format!(
            "--address: \"{text}\" is not a network address: write 127.0.0.1:6379"
        ))
        .into());
    };
    if address.ip().is_loopback() || console.args.listen.insecure_public {
        return Ok(address);
    }
    let lacks = match (has_users, has_tls) {
        (true, true) => return Ok(address),
        (false, false) => "without users (--users) and TLS (--client-cert, --client-key)",
        (false, true) => "without users (--users)",
        (true, false) => "without TLS (--client-cert, --client-key)",
    };
    Err(Failure::usage(format!(
        "--address {address} can be reached from other machines {lacks}: add them, take an address of this machine, \
         or give --insecure-public in a network where you trust every machine"
    ))
    .into())
}

fn tls(args: &ClientArgs) -> Result<Option<GatewayTls>, Failure> {
    let (Some(certificate), Some(key)) = (&args.client_cert, &args.client_key) else {
        return Ok(None);
    };
    let tls = GatewayTls::load(certificate, key, args.client_ca.as_deref());
    tls.map(Some).map_err(|error| Failure::usage(error.to_string()))
}

/// Connections that the limit of open files leaves. The limit is raised as far as the system lets it.
fn connections(wanted: usize, console: &Console) -> Result<usize, Failure> {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let raised = rustix::process::Rlimit { current: limit.maximum, ..limit };
        if setrlimit(Resource::Nofile, raised).is_ok() {
            limit = raised;
        }
    }
    let Some(files) = limit.current else { return Ok(wanted) };
    let left = files.saturating_sub(DESCRIPTORS_KEPT) as usize;
    if left == 0 {
        return Err(Failure::unavailable(format!(
            "{files} open files are the most here, and the gateway needs {} before the first client: raise the limit \
             (ulimit -n)",
            DESCRIPTORS_KEPT + 1
        )));
    }
    if left < wanted {
        console.note(format_args!(
            "at most {} at a time, because the limit of open files (ulimit -n) is {files}",
            counted(left as u64, "connection")
        ));
    }
    Ok(wanted.min(left))
}

/// The file of users, which is read again when it changes.
struct UsersFile {
    path: PathBuf,
    users: Users,
    changed: Option<SystemTime>,
    /// The last content that could not be used has been logged.
    is_failing: bool,
}

impl UsersFile {
    fn open(path: &Path) -> Result<UsersFile, Failure> {
        let changed = changed(path);
        let text =
            fs::read_to_string(path).map_err(|error| Failure::unreadable(path.display(), error))?;
        let users = Users::parse(&text)
            .map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
        Ok(UsersFile { path: path.to_owned(), users, changed, is_failing: false })
    }

    /// Has the gateway take the users if the file has changed. One that cannot be used changes nothing.
    fn look(&mut self, gateway: &Gateway) {
        if changed(&self.path) == self.changed {
            return;
        }
        let taken =
            UsersFile::open(&self.path).map_err(|error| error.to_string()).and_then(|file| {
                gateway.set_users(file.users.clone()).map_err(|error| error.to_string())?;
                Ok(file)
            });
        match taken {
            Ok(file) => {
                tracing::info!(users = file.users.iter().count(), "has read the users again");
                *self = file;
            }
            Err(why) if !self.is_failing => {
                self.is_failing = true;
                tracing::warn!(why, "the users stay as they were");
            }
            // The file may be in the middle of being written: it is read again until it can be used.
            Err(_) => {}
        }
    }
}

fn changed(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|data| data.modified()).ok()
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
        let metrics = metrics.map(|address| ("metrics", format!("http://{address}/metrics")));
        let fields: Vec<_> = [("redis", address)].into_iter().chain(metrics).collect();
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

/// The source of its metrics over HTTP.
struct RedisMetrics {
    gateway: Arc<Gateway>,
    db: Arc<Mutex<Farleaf>>,
}

impl Exposed for RedisMetrics {
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
        all.extend(store_metrics(&lock(&self.db)));
        all
    }

    fn health(&self) -> Result<(), String> {
        match self.gateway.is_lost() {
            true => Err("the pool is lost, and is opened again".to_owned()),
            false => Ok(()),
        }
    }
}
