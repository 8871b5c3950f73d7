//! Commands: one file for each command, or for a few that belong together.

#[cfg(feature = "lab")]
mod bench;
#[cfg(feature = "lab")]
pub(crate) mod check;
pub(crate) mod cluster;
mod completions;
pub(crate) mod compute;
pub(crate) mod config;
pub(crate) mod engines;
pub(crate) mod health;
mod keys;
mod load;
pub(crate) mod memory;
mod put;
pub(crate) mod redis;
pub(crate) mod repartition;
#[cfg(feature = "lab")]
pub(crate) mod repro;
mod scan;
mod stats;
mod tables;
pub(crate) mod up;
mod verify;
mod walk;

use std::ffi::OsStr;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{process, thread};

use anyhow::Context;
use farleaf::{
    Builder, Content, Engine, ErrorKind, Farleaf, ServerName, Settings, Table, TableInfo,
    TableOptions,
};
use farleaf_index::suggest;

use crate::args::{Command, CreateArgs, NewTableArgs, TableArgs};
use crate::config::Config;
use crate::errors::{Exit, Failure};
use crate::formats;
use crate::output::{Console, from_hex};
use crate::settings::SetArgs;

/// Does what was asked for. `configured` is the definition of the command line, with what `config` has set.
///
/// # Errors
/// See [`crate::errors::exit_of`].
pub(crate) fn run(
    command: Command,
    config: &Config,
    configured: &clap::Command,
    console: &mut Console,
) -> anyhow::Result<Exit> {
    match command {
        Command::Load(args) => load::run(args, console),
        Command::Get(args) => keys::get(&args, console),
        Command::Put(args) => put::run(&args, console),
        Command::Del(args) => keys::del(&args, console),
        Command::Scan(args) => scan::run(&args, console),
        Command::Count(args) => scan::count(&args, console),
        Command::Tables(args) => tables::list(&args, console),
        Command::Drop(args) => tables::drop_table(&args, console),
        Command::Stats(args) => stats::run(&args, console),
        Command::Verify(args) => verify::run(&args, console),
        Command::Engines(args) => engines::run(&args, console),
        #[cfg(feature = "lab")]
        Command::Bench(args) => bench::run(&args, console),
        #[cfg(feature = "lab")]
        Command::Repro(args) => repro::run(&args, console),
        #[cfg(feature = "lab")]
        Command::Check(args) => check::run(&args, console),
        Command::Memory(args) => memory::run(&args, console),
        Command::Compute(args) => compute::run(&args, console),
        Command::Redis(args) => redis::run(&args, console),
        Command::Health(args) => health::run(&args, console),
        Command::Cluster(args) => cluster::run(&args, console),
        Command::Up(args) => up::run(&args, console),
        Command::Repartition(args) => repartition::run(&args, console),
        Command::Config(args) => config::run(&args, config, configured, console),
        Command::Completions(args) => completions::run(&args, console),
    }
}

/// Returns the builder with which every pool is opened. Commands end soon: they leave the dead to compute servers.
fn builder(console: &Console) -> Result<Builder, Failure> {
    let tls = console.args.tls.load()?;
    let mut builder = Farleaf::builder()
        .etcd(console.args.etcd.load()?)
        .recovers(false)
        .listen(console.args.listen.address(tls.is_some())?)
        .insecure_public(console.args.listen.insecure_public);
    if let Some(address) = console.args.listen.advertise {
        builder = builder.advertise(address);
    }
    Ok(match tls {
        Some(tls) => builder.tls(tls),
        None => builder,
    })
}

/// Opens a pool that is there.
fn open(pool: &str, console: &Console) -> anyhow::Result<Farleaf> {
    open_with(pool, &Settings::default(), console)
}

/// Opens a pool that is there, to open tables by `settings`.
fn open_with(pool: &str, settings: &Settings, console: &Console) -> anyhow::Result<Farleaf> {
    refuse_mem(pool)?;
    let builder = builder(console)?.guest_operations(GUEST_OPERATIONS).set_all(settings);
    let db = open_waiting(builder, pool, false, console)?;
    tell_opened(&db, pool, console)?;
    Ok(db)
}

/// Operations on keys that nobody owns after which a command owns them. Fewer are done sooner without that.
const GUEST_OPERATIONS: u64 = 64;

/// Time between two looks for a pool that is not there.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Opens `pool` as `builder` says, which makes one that is missing if `creates`. With `--wait`, tries again
/// while memory servers cannot be reached, or hold no pool that others may be making.
fn open_waiting(
    builder: Builder,
    pool: &str,
    creates: bool,
    console: &Console,
) -> farleaf::Result<Farleaf> {
    let end = Instant::now() + console.wait();
    loop {
        let error = match builder.clone().open(pool) {
            Ok(db) => return Ok(db),
            Err(error) => error,
        };
        if !may_come(&error, creates) || Instant::now() >= end {
            return Err(error);
        }
        thread::sleep(LOOK_EVERY);
    }
}

/// Returns whether a pool that could not be opened may be there later: its servers start, or others make it.
fn may_come(error: &farleaf::Error, creates: bool) -> bool {
    match error.kind() {
        ErrorKind::Unavailable => true,
        ErrorKind::NoPool => !creates,
        _ => false,
    }
}

/// Says that a pool was opened, and what it is no good for.
fn tell_opened(db: &Farleaf, pool: &str, console: &Console) -> anyhow::Result<()> {
    console.detail(format_args!("opened {pool}"));
    if db.stats()?.tears_words {
        console.warn(TORN);
    }
    Ok(())
}

/// About RDMA devices made of software.
const TORN: &str = "the RDMA device here, or a memory server's, tears words that are written while they \
                    are read, as those made of software do: let one thread of one process work on the \
                    pool at a time, and keep nothing in it";

/// Opens a pool, or makes it if that was asked for, to open tables by `settings`.
fn open_or_create(
    pool: &str,
    create: &CreateArgs,
    settings: &Settings,
    console: &Console,
) -> anyhow::Result<Farleaf> {
    refuse_mem(pool)?;
    let builder = builder(console)?.guest_operations(GUEST_OPERATIONS);
    open_as(builder, pool, create, settings, console)
}

/// As [`open_or_create`], as `builder` says besides; `mem:` pools, too.
fn open_as(
    builder: Builder,
    pool: &str,
    create: &CreateArgs,
    settings: &Settings,
    console: &Console,
) -> anyhow::Result<Farleaf> {
    let builder = made_as(builder, pool, create, settings)?;
    let db = open_waiting(builder, pool, create.create, console)
        .map_err(|error| not_opened(error, create))?;
    tell_opened(&db, pool, console)?;
    Ok(db)
}

/// Has `builder` open `pool`, or make it as `create` says.
///
/// # Errors
/// [`Exit::Usage`] for sizes of a pool whose memory servers have theirs.
fn made_as(
    builder: Builder,
    pool: &str,
    create: &CreateArgs,
    settings: &Settings,
) -> Result<Builder, Failure> {
    let is_sized =
        create.pool_bytes.is_some() || create.memory_servers.is_some() || create.no_reserve;
    if is_sized && ["tcp:", "verbs:", "etcd:"].iter().any(|scheme| pool.trim().starts_with(scheme))
    {
        return Err(Failure::usage(
            "--pool-bytes, --memory-servers and --no-reserve are for pools on this machine: memory \
             servers on a network have the size that they were started with, and the address names them",
        ));
    }
    let mut builder = builder
        .create(create.create)
        .reserve(!create.no_reserve)
        .set_all(&Engine::without_shape(settings));
    if let Some(size) = create.pool_bytes {
        builder = builder.pool_bytes(size.0);
    }
    if let Some(count) = create.memory_servers {
        builder = builder.memory_servers(count as usize);
    }
    if let Some(size) = create.block_bytes {
        builder = builder.block_bytes(size.0);
    }
    Ok(builder)
}

/// The error of an opening, with advice if there is no pool.
fn not_opened(error: farleaf::Error, create: &CreateArgs) -> anyhow::Error {
    let is_missing = error.kind() == ErrorKind::NoPool && !create.create;
    let error = anyhow::Error::from(error);
    if is_missing { error.context("there is no pool yet: --create makes one") } else { error }
}

/// A pool that vanishes with this very process is of no use to any command on a pool.
fn refuse_mem(pool: &str) -> Result<(), Failure> {
    if pool.trim().starts_with("mem:") {
        return Err(Failure::usage(
            "a mem: pool exists only within one process, so a command always finds it empty: use \
             a pool that outlives the command, such as shm:/dev/shm/mypool",
        ));
    }
    Ok(())
}

/// Opens a table that is there by settings of its engine.
fn open_table(
    args: &TableArgs,
    set: &SetArgs,
    console: &Console,
) -> anyhow::Result<(Farleaf, Table)> {
    let settings = set.settings();
    let db = open_with(&args.pool, &settings, console)?;
    let table = db.table(&args.table)?;
    check_settings(&table, &settings)?;
    Ok((db, table))
}

/// Refuses settings that the table's engine does not have.
fn check_settings(table: &Table, settings: &Settings) -> Result<(), Failure> {
    let TableInfo { name, engine, .. } = table.info();
    let refusal = |error| Failure::usage(format!("table \"{name}\": {error}"));
    engine.check(settings).map_err(refusal)
}

/// Opens a table, or makes it; `true` if it was made.
///
/// # Errors
/// [`Exit::Usage`] if there is one that is not as `wanted` says.
fn table_or_create(
    db: &Farleaf,
    name: &str,
    wanted: &NewTableArgs,
    settings: &Settings,
    console: &Console,
) -> anyhow::Result<(Table, bool)> {
    table_or_create_with(db, name, wanted, settings, Content::Raw, console)
}

/// The same with the content of a new table for which none is `wanted`.
fn table_or_create_with(
    db: &Farleaf,
    name: &str,
    wanted: &NewTableArgs,
    settings: &Settings,
    content: Content,
    console: &Console,
) -> anyhow::Result<(Table, bool)> {
    match db.table(name) {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        table => return Ok((check_table(table?, wanted, settings)?, false)),
    }
    match db.create_table(name, table_options(wanted, settings, content)) {
        Ok(table) => {
            console.detail(format_args!("made table \"{name}\" ({})", table.info().engine));
            Ok((table, true))
        }
        // Somebody else was quicker.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            Ok((check_table(db.table(name)?, wanted, settings)?, false))
        }
        Err(error) => Err(error.into()),
    }
}

/// The options of a table that is made as `wanted` says, with the content that it has if none is wanted.
fn table_options(wanted: &NewTableArgs, settings: &Settings, content: Content) -> TableOptions {
    let content = wanted.content.unwrap_or(content);
    let mut options = TableOptions::default().set_all(settings).content(content);
    if let Some(engine) = wanted.engine {
        options = options.engine(engine);
    }
    if let Some(format) = wanted.key_format {
        options = options.keys(format);
    }
    if let Some(format) = wanted.value_format {
        options = options.values(format);
    }
    options
}

/// Refuses a table that is there and not as `wanted` says.
fn check_table(table: Table, wanted: &NewTableArgs, settings: &Settings) -> Result<Table, Failure> {
    let info = table.info();
    let refusal = |error| Failure::usage(format!("table \"{}\": {error}", info.name));
    let shape = info.engine.shape_among(settings).map_err(refusal)?;
    for (name, wanted) in shape.iter() {
        let is = info.shape.get(name);
        if is != Some(wanted) {
            let is = is.map_or_else(|| "the default".to_owned(), |is| format!("{name}={is}"));
            return Err(Failure::usage(format!(
                "table \"{}\" was made with {is}, not {name}={wanted}: leave the setting out, or name \
                 another table",
                info.name
            )));
        }
    }
    let made = [
        info.engine.to_string(),
        formats::key_format(info.keys),
        formats::value_format(info.values),
        info.content.to_string(),
    ];
    for ((option, wanted), is) in wanted.given().into_iter().zip(made) {
        if let Some(wanted) = wanted.filter(|wanted| *wanted != is) {
            return Err(Failure::usage(format!(
                "table \"{}\" was made with {option} {is}, not {wanted}: leave the option out, or \
                 name another table",
                info.name
            )));
        }
    }
    Ok(table)
}

/// The bytes that an argument stands for.
///
/// # Errors
/// [`Exit::Usage`] if it is to be hexadecimal and is not.
fn bytes_of(text: &OsStr, hex: bool) -> Result<Vec<u8>, Failure> {
    if !hex {
        return Ok(text.as_bytes().to_vec());
    }
    from_hex(text.as_bytes()).map_err(|why| {
        Failure::usage(format!("\"{}\" is not hexadecimal: {why}", text.to_string_lossy()))
    })
}

/// Finds the compute server that has the name or address `text`. Fails with the hint of a message that says so.
fn server_by(
    text: &str,
    servers: impl Iterator<Item = (ServerName, Option<SocketAddr>)> + Clone,
) -> Result<ServerName, String> {
    let names = servers.clone().map(|(name, _)| (name.to_string(), name));
    let addresses = servers.filter_map(|(name, address)| Some((address?.to_string(), name)));
    let known: Vec<(String, ServerName)> = names.chain(addresses).collect();
    let found = known.iter().find(|(known, _)| known.eq_ignore_ascii_case(text));
    let hint = || suggest::hint(text, known.iter().map(|(known, _)| known.as_str()));
    found.map(|(_, name)| *name).ok_or_else(hint)
}

const NOT_IN_ORDER: &str = "the work is done, but this process could not leave the pool cleanly; other processes recover what it held";

/// Leaves the pool in order.
fn close(db: Farleaf) -> anyhow::Result<()> {
    db.close().context(NOT_IN_ORDER)
}

/// Removes the pool if this failed command has made it and nobody has used it: the next try may want another.
fn discard(db: &Farleaf, console: &Console) {
    if db.remove_if_unused().unwrap_or(false) {
        console.note("the pool that was made for this is removed");
    }
}

/// Has Ctrl-C set the flag that is returned; a second one ends the process at once.
fn stop_on_interrupt() -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&stop);
    ctrlc::set_handler(move || {
        if seen.swap(true, Ordering::Relaxed) {
            process::exit(Exit::Interrupted as i32);
        }
    })
    .context("cannot listen for Ctrl-C")?;
    Ok(stop)
}
