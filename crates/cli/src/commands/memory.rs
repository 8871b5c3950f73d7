//! `farleaf memory`: one memory server.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use clap::{Args, ValueHint};
use farleaf_engines::Engine;
use farleaf_fabric::tcp::{HugePages, MemoryServer, MemoryServerConfig, Region};
use farleaf_fabric::verbs::VerbsServer;
use farleaf_fabric::{FabricError, Processors, ServerId};
use farleaf_index::units::{Size, TimeSpan};
use serde_json::json;

use super::cluster::entry;
use crate::card::NetworkArgs;
use crate::errors::{Exit, Failure};
use crate::metrics::{Exposed, Metric, MetricsServer};
use crate::output::{Console, counted};
use crate::serving::{ServingArgs, tell_ending, tell_ready};

/// Bytes of a region that is made, if nothing else is asked for.
const BYTES_DEFAULT: u64 = 4 << 30;

#[derive(Clone, Debug, Args)]
pub(crate) struct MemoryArgs {
    /// Bytes that it exposes, in whole units of 4096 [default: 4GiB, or what the file has]
    #[arg(long, value_name = "SIZE")]
    pub(crate) size: Option<Size>,
    /// The file that its memory lies in, made if it is not there, or a device of memory (/dev/dax0.0, in a
    /// build with the feature dax);
    /// without one, memory goes with the process
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) file: Option<PathBuf>,
    /// Take huge pages that the system has set aside, if there are enough
    #[arg(long, conflicts_with = "file")]
    pub(crate) huge_pages: bool,
    /// Its number in the pool, from 0
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    pub(crate) server: u16,
    /// Memory servers of the pool
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    pub(crate) servers: u16,
    /// Threads that serve connections
    #[arg(short, long, value_name = "COUNT", default_value_t = 1)]
    pub(crate) threads: usize,
    /// Processors on which these threads stay, as in 0,2-3: one on each in turn [default: any]
    #[arg(long, value_name = "CPUS")]
    pub(crate) pin: Option<Processors>,
    /// Connections at a time, at most
    #[arg(long, value_name = "COUNT", default_value_t = 4096)]
    pub(crate) connections_max: usize,
    /// Time that a compute server counts as alive without being heard of
    #[arg(long, value_name = "TIME", default_value = "2s")]
    pub(crate) lease: TimeSpan,
    #[command(flatten)]
    pub(crate) network: NetworkArgs,
    #[command(flatten)]
    pub(crate) entry: entry::EntryArgs,
    #[command(flatten)]
    pub(crate) serving: ServingArgs,
    /// End with standard input, too: when whoever has started it is gone
    #[arg(long, hide = true)]
    pub(crate) end_with_stdin: bool,
}

pub(super) fn run(args: &MemoryArgs, console: &mut Console) -> anyhow::Result<Exit> {
    let tls = console.args.tls.load()?;
    let listen = console.args.listen.address(tls.is_some())?;
    let config = MemoryServerConfig {
        tls,
        listen,
        server: ServerId(args.server),
        servers: args.servers.into(),
        threads: args.threads,
        pin: args.pin.clone().unwrap_or_default(),
        lease: args.lease.duration(),
        connections_max: args.connections_max,
        insecure_public: console.args.listen.insecure_public,
        ..MemoryServerConfig::default()
    };
    let card = args.network.card()?;
    // Before anything is served, so that no signal is lost.
    let stop = stop_signal(args.end_with_stdin)?;
    args.serving.start_log();
    tell_sharing(args.threads, &config.pin, console);
    let region = region(args, &config).map_err(refused)?;
    let (bytes, huge_pages) = (region.bytes(), region.huge_pages());
    if args.huge_pages && huge_pages == HugePages::No {
        console
            .warn("there are too few huge pages: goes on without (see /proc/sys/vm/nr_hugepages)");
    }
    let (verbs, server) = match card {
        None => (None, Arc::new(MemoryServer::start_over(config, region).map_err(refused)?)),
        Some(card) => {
            let verbs = VerbsServer::start_over(config, &card, region).map_err(refused)?;
            let server = Arc::clone(verbs.memory_server());
            (Some(verbs), server)
        }
    };
    let card = verbs.as_ref().map(VerbsServer::card);
    for (id, service) in Engine::services(life()) {
        server.serve(id, service);
    }
    let numbers = (args.server, args.servers);
    let seat = entry::enter(
        &args.entry,
        console.args.listen.advertise,
        &console.args.etcd,
        &server,
        numbers,
        args.network.fabric,
    )?;
    let metrics = args.serving.expose(MemoryMetrics { server: Arc::clone(&server), bytes })?;
    let metrics_at = metrics.as_ref().map(MetricsServer::address);
    tell(args, server.address(), card, metrics_at, bytes, huge_pages, console)?;
    tracing::info!(server = args.server, address = %server.address(), bytes, "serves");
    tell_ready(Some(&server.address().to_string()));
    // It ends when somebody says so; that the sender is gone means the same.
    match seat {
        Some(seat) => entry::keep(seat, &server, &stop),
        None => drop(stop.recv()),
    }
    tell_ending();
    tracing::info!(server = args.server, connections = server.connections(), "ends");
    drop(metrics);
    drop(server);
    drop(verbs);
    Ok(Exit::Done)
}

/// The source of its metrics over HTTP.
struct MemoryMetrics {
    server: Arc<MemoryServer>,
    bytes: u64,
}

impl Exposed for MemoryMetrics {
    fn metrics(&self) -> Vec<Metric> {
        let served = self.server.served();
        let operation = |name| [("operation", name)];
        vec![
            Metric::gauge("region_bytes", "Bytes that are exposed", self.bytes),
            Metric::gauge(
                "connections",
                "Connections that are open",
                self.server.connections() as u64,
            ),
            Metric::counter("operations", "Operations carried out by this process, not by a card")
                .with(&operation("read"), served.reads)
                .with(&operation("write"), served.writes)
                .with(&operation("atomic"), served.atomics)
                .with(&operation("rpc"), served.rpcs),
            Metric::counter("network_bytes", "Bytes of requests and answers, without a card's")
                .with(&[("direction", "in")], served.bytes_in)
                .with(&[("direction", "out")], served.bytes_out),
            Metric::counter("connections_let_in", "Connections let in").with(&[], served.let_in),
            Metric::counter("connections_refused", "Connections that were not let in")
                .with(&[], served.refused),
            Metric::counter("fences", "Compute servers cut off").with(&[], served.fenced),
        ]
    }
}

fn region(args: &MemoryArgs, config: &MemoryServerConfig) -> Result<Region, FabricError> {
    // As the sizes of pools are: 1GB is not a multiple.
    let bytes = args.size.map(|size| size.0 / 4096 * 4096);
    match &args.file {
        Some(path) => {
            let bytes = bytes.or((!path.exists()).then_some(BYTES_DEFAULT));
            Region::file(path, bytes, config.server, config.servers)
        }
        None => {
            let wanted = if args.huge_pages { HugePages::Yes } else { HugePages::No };
            Region::anonymous(bytes.unwrap_or(BYTES_DEFAULT), wanted)
        }
    }
}

/// A number that tells this process's services from those of the processes before it.
fn life() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_nanos() as u64 ^ u64::from(std::process::id()) << 32
}

/// Says where it listens, at once: whoever has started it may wait for that.
fn tell(
    args: &MemoryArgs,
    address: SocketAddr,
    card: Option<&str>,
    metrics: Option<SocketAddr>,
    bytes: u64,
    huge_pages: HugePages,
    console: &mut Console,
) -> io::Result<()> {
    let memory = match (&args.file, huge_pages) {
        (Some(path), _) => path.display().to_string(),
        (None, HugePages::Yes) => "huge pages".to_owned(),
        (None, HugePages::No) => "anonymous".to_owned(),
    };
    if console.args.json {
        let mut told = json!({
            "address": address.to_string(),
            "server": args.server,
            "servers": args.servers,
            "bytes": bytes,
            "memory": memory,
            "metrics": metrics.map(|address| address.to_string()),
        });
        if let Some(card) = card {
            told["card"] = json!(card);
        }
        console.json_line(&told)?;
    } else {
        let mut fields = vec![
            ("address", address.to_string()),
            ("server", format!("{} of {}", args.server, args.servers)),
            ("bytes", console.size(bytes)),
            ("memory", memory),
        ];
        fields.extend(card.map(|card| ("card", card.to_owned())));
        fields.extend(metrics.map(|address| ("metrics", format!("http://{address}/metrics"))));
        console.fields(&fields)?;
    }
    console.flush()
}

/// Sorts the library's refusals by what the caller can do about them.
fn refused(error: FabricError) -> anyhow::Error {
    let exit = match &error {
        FabricError::Config(_) | FabricError::NotARegion { .. } => Exit::Usage,
        FabricError::Unreachable { address, source, .. } => {
            let remedy = match source.kind() {
                io::ErrorKind::AddrInUse => ": --listen names another port, and port 0 a free one",
                _ => "",
            };
            return Failure::unavailable(format!("cannot listen on {address}: {source}{remedy}"))
                .into();
        }
        FabricError::Verbs(_) => return farleaf::Error::from(error).into(),
        FabricError::NoMemory { .. } | FabricError::NoSpace { .. } => Exit::Full,
        FabricError::Io { source, .. } if source.kind() == io::ErrorKind::StorageFull => Exit::Full,
        FabricError::Damaged { .. } => Exit::Corrupt,
        _ => Exit::Unavailable,
    };
    Failure::new(exit, error.to_string()).into()
}

/// Says that threads share processors, if they do.
pub(super) fn tell_sharing(threads: usize, pin: &Processors, console: &Console) {
    if pin.count() > 0 && threads > pin.count() {
        console.note(format_args!(
            "{threads} threads on {}: some threads share a processor (--threads, --pin)",
            counted(pin.count() as u64, "processor")
        ));
    }
}

/// Gets a message on Ctrl-C, on the signals that ask a process to end, and, if asked for, when
/// standard input ends.
pub(super) fn stop_signal(with_stdin: bool) -> anyhow::Result<Receiver<()>> {
    let (tell, told) = mpsc::channel();
    let on_signal = tell.clone();
    let say = move || {
        // Nobody listens any more if it ends already.
        let _ = on_signal.send(());
    };
    ctrlc::set_handler(say).context("cannot listen for Ctrl-C")?;
    if with_stdin {
        let wait = move || {
            // The bytes do not matter; the end of the input counts.
            let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
            let _ = tell.send(());
        };
        thread::Builder::new()
            .name("farleaf-stdin".to_owned())
            .spawn(wait)
            .context("cannot start a thread")?;
    }
    Ok(told)
}
