//! `farleaf compute`: a compute server that owns keys of tables of the engine `dex` and answers others.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::SocketAddr;
use std::sync::mpsc::RecvTimeoutError;
use std::thread;
use std::time::Duration;

use clap::Args;
use farleaf::{Durability, Engine, ErrorKind, Farleaf, ServerName, Table};
use farleaf_bench::units::Size;
use serde_json::json;

use super::memory::stop_signal;
use super::{close, refuse_mem};
use crate::errors::{Exit, Failure};
use crate::output::Console;

/// How often it looks for keys that nobody has, and for new tables.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How often giving all away is tried while other moves are under way, and the pause between.
const GIVE_ATTEMPTS: u32 = 25;
const GIVE_PAUSE: Duration = Duration::from_millis(200);

#[derive(Clone, Debug, Args)]
pub(crate) struct ComputeArgs {
    /// The pool, as in shm:/dev/shm/mypool, tcp://127.0.0.1:7000 or etcd://127.0.0.1:2379/mycluster
    pub(crate) pool: String,
    /// A table that it serves; may be given several times [default: all of the engine dex, new ones too]
    #[arg(short, long, value_name = "TABLE")]
    pub(crate) table: Vec<String>,
    /// Where it listens; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0")]
    pub(crate) listen: SocketAddr,
    /// Listen on an address that other machines reach, though nothing is authenticated or encrypted:
    /// whoever reaches it can read and change the tables
    #[arg(long)]
    pub(crate) insecure_public: bool,
    /// Threads that answer
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    pub(crate) threads: usize,
    /// Bytes of the cache of each table [default: 256MiB]
    #[arg(long, value_name = "SIZE")]
    pub(crate) cache: Option<Size>,
    /// What an acknowledged change survives: volatile or logged [default: logged]
    #[arg(long)]
    pub(crate) durability: Option<Durability>,
    /// End with standard input, too: when whoever has started it is gone
    #[arg(long, hide = true)]
    pub(crate) end_with_stdin: bool,
}

pub(super) fn run(args: &ComputeArgs, console: &mut Console) -> anyhow::Result<Exit> {
    refuse_mem(&args.pool)?;
    // Before anything is served, so that no signal is lost.
    let stop = stop_signal(args.end_with_stdin)?;
    let mut builder = super::builder(console)?
        .listen(args.listen)
        .insecure_public(args.insecure_public)
        .serve_threads(args.threads)
        .take_partitions(usize::MAX)
        .leaves_when_asked(true);
    if let Some(size) = args.cache {
        builder = builder.cache_bytes(size.0);
    }
    if let Some(durability) = args.durability {
        builder = builder.durability(durability);
    }
    let db = builder.open(&args.pool).map_err(|error| match error.kind() {
        ErrorKind::Invalid if !args.listen.ip().is_loopback() && !args.insecure_public => {
            anyhow::Error::from(Failure::usage(format!(
                "{} can be reached from other machines, and nothing here is authenticated: listen \
                 on 127.0.0.1, or give --insecure-public in a network where you trust every machine",
                args.listen
            )))
        }
        _ => error.into(),
    })?;
    let own = db.serve()?;
    let mut tables = BTreeMap::new();
    for name in &args.table {
        let table = db.table(name)?;
        if table.info().engine != Engine::Dex {
            return Err(Failure::usage(format!(
                "table \"{name}\" is of the engine {}, which has no owners: any process uses it as \
                 it is",
                table.info().engine
            ))
            .into());
        }
        tables.insert(name.clone(), table);
    }
    look(&db, args, &mut tables)?;
    let address = own.address.map(|address| address.to_string()).unwrap_or_default();
    let names: Vec<&String> = tables.keys().collect();
    if console.json {
        console.json_line(
            &json!({ "address": address, "name": own.name.to_string(), "tables": names }),
        )?;
    } else {
        console.fields(&[("address", address), ("name", own.name.to_string())])?;
    }
    console.flush()?;
    while let Err(RecvTimeoutError::Timeout) = stop.recv_timeout(LOOK_EVERY) {
        if db.cluster().is_some_and(|cluster| cluster.is_leaving) {
            console.detail("has been asked to leave its cluster");
            give_all(&tables, own.name, console);
            break;
        }
        look(&db, args, &mut tables)?;
    }
    console.detail("ends, and hands back what it has");
    drop(tables);
    close(db)?;
    Ok(Exit::Done)
}

/// Opens tables that are new, lets go of those that are gone, and takes keys that nobody has.
fn look(
    db: &Farleaf,
    args: &ComputeArgs,
    tables: &mut BTreeMap<String, Table>,
) -> anyhow::Result<()> {
    if args.table.is_empty() {
        let infos = match db.tables() {
            Err(error) if may_pass(error.kind()) => return Ok(()),
            infos => infos?,
        };
        for info in infos.into_iter().filter(|info| info.engine == Engine::Dex) {
            let Entry::Vacant(entry) = tables.entry(info.name) else { continue };
            match db.table(entry.key()) {
                // Dropped meanwhile, or there is no room for it now.
                Err(error) if may_pass(error.kind()) => {}
                table => {
                    entry.insert(table?);
                }
            }
        }
    }
    let mut gone = Vec::new();
    for (name, table) in tables.iter() {
        match table.take_free() {
            Err(error) if error.kind() == ErrorKind::NotFound => gone.push(name.clone()),
            Err(error) if may_pass(error.kind()) => {}
            taken => drop(taken?),
        }
    }
    for name in gone {
        tables.remove(&name);
    }
    Ok(())
}

/// Gives all to other compute servers. What nobody takes now is free for all once the pool is left.
fn give_all(tables: &BTreeMap<String, Table>, own: ServerName, console: &Console) {
    for (name, table) in tables {
        for attempt in 1.. {
            match table.drain(own) {
                // Another move is under way.
                Err(error) if error.kind() == ErrorKind::Unavailable && attempt < GIVE_ATTEMPTS => {
                    thread::sleep(GIVE_PAUSE);
                }
                Err(error) => {
                    console
                        .detail(format_args!("what it has of table \"{name}\" is freed: {error}"));
                    break;
                }
                Ok(ranges) => {
                    console.detail(format_args!("{ranges} ranges of table \"{name}\" are given"));
                    break;
                }
            }
        }
    }
}

/// Whether to look again later.
fn may_pass(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::NotFound | ErrorKind::Unavailable | ErrorKind::OutcomeUnknown | ErrorKind::Full
    )
}
