//! `farleaf up`: a cluster on this machine.

use std::fs;
use std::path::PathBuf;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use clap::{Args, ValueHint};
use farleaf_index::units::{Size, human_bytes};
use serde_json::json;

use super::memory::stop_signal;
use crate::card::NetworkArgs;
use crate::cluster::{Change, Cluster, ClusterConfig};
use crate::errors::{Exit, Failure};
use crate::output::{Console, counted};

/// Time between two looks whether its servers are still there.
const LOOK_EVERY: Duration = Duration::from_millis(200);

#[derive(Clone, Debug, Args)]
pub(crate) struct UpArgs {
    /// Memory servers
    #[arg(short, long, value_name = "COUNT", default_value_t = 2,
        value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) memory_servers: u16,
    /// Compute servers, which own and serve the keys of tables whose engine has owners; another is started in
    /// place of one that ends
    #[arg(short, long, value_name = "COUNT", default_value_t = 0,
        value_parser = clap::value_parser!(u16).range(..=32))]
    pub(crate) compute: u16,
    /// Bytes of memory that each compute server exposes to the others (see compute) [default: 0]
    #[arg(long, value_name = "SIZE")]
    pub(crate) expose_bytes: Option<Size>,
    /// Bytes of all memory servers together [default: 4GiB for each, or what their files have]
    #[arg(long, value_name = "SIZE")]
    pub(crate) pool_bytes: Option<Size>,
    /// Folder for the files of their memory: started again, it is the same pool; without, memory goes
    /// with the cluster
    #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    pub(crate) folder: Option<PathBuf>,
    /// The first memory server's port; the others have those behind it [default: free ones]
    #[arg(long, value_name = "PORT", default_value_t = 0, hide_default_value = true)]
    pub(crate) port: u16,
    /// Threads of each memory server
    #[arg(short, long, value_name = "COUNT", default_value_t = 1)]
    pub(crate) threads: usize,
    #[command(flatten)]
    pub(crate) network: NetworkArgs,
    /// Start a gateway for Redis's clients as well, on this port of 127.0.0.1, 0 for a free one [default: 6379];
    /// another is started in place of one that ends
    #[arg(long, value_name = "PORT", num_args = 0..=1, default_missing_value = "6379")]
    pub(crate) redis: Option<u16>,
    /// End with standard input, too
    #[arg(long, hide = true)]
    pub(crate) end_with_stdin: bool,
}

pub(super) fn run(args: &UpArgs, console: &mut Console) -> anyhow::Result<Exit> {
    let stop = stop_signal(args.end_with_stdin)?;
    if let Some(folder) = &args.folder {
        fs::create_dir_all(folder).map_err(|error| Failure::unwritable(folder.display(), error))?;
    }
    let region_bytes =
        args.pool_bytes.map(|size| size.0 / u64::from(args.memory_servers) / 4096 * 4096);
    console.args.tls.load()?;
    let mut cluster = Cluster::start(&ClusterConfig {
        servers: args.memory_servers,
        region_bytes,
        threads: args.threads,
        folder: args.folder.clone(),
        port: args.port,
        tls: console.args.tls.clone(),
        card: args.network.card()?,
    })?;
    let uri = cluster.uri();
    // The pool is made, so that every command finds one.
    let db = super::builder(console)?.create(true).open(&uri)?;
    let pool_bytes = db.stats()?.memory.pool_bytes;
    db.close()?;
    cluster.start_compute(args.compute, args.expose_bytes)?;
    let redis = args.redis.map(|port| cluster.start_gateway(port)).transpose()?;
    if console.args.json {
        let compute = cluster.compute_addresses();
        let compute: Vec<String> = compute.iter().map(ToString::to_string).collect();
        console.json_line(&json!({
            "pool": uri,
            "compute_servers": compute,
            "memory_servers": args.memory_servers,
            "pool_bytes": pool_bytes,
            "redis": redis.map(|address| address.to_string()),
        }))?;
    } else {
        let redis = redis.map(|address| ("redis", address.to_string()));
        console.fields(&[("pool", uri)].into_iter().chain(redis).collect::<Vec<_>>())?;
    }
    console.flush()?;
    let mut servers = counted(args.memory_servers.into(), "memory server");
    if args.compute > 0 {
        servers = format!("{} and {servers}", counted(args.compute.into(), "compute server"));
    }
    let bytes = human_bytes(pool_bytes);
    console.note(format_args!("{servers} with {bytes} are up; Ctrl-C ends them"));
    if console.args.listen.is_given() {
        console
            .note("the servers listen on 127.0.0.1: --listen and --advertise have no effect here");
    }
    while let Err(RecvTimeoutError::Timeout) = stop.recv_timeout(LOOK_EVERY) {
        let changes = cluster.look()?;
        // A Ctrl-C goes to all of them, and may reach them first.
        if !changes.is_empty() && stop.recv_timeout(LOOK_EVERY).is_ok() {
            break;
        }
        for change in changes {
            tell(change, args, console)?;
        }
    }
    drop(cluster);
    console.note("all servers have ended");
    Ok(Exit::Done)
}

fn in_time(pause: Duration) -> String {
    if pause.is_zero() { "now".to_owned() } else { format!("in {} s", pause.as_secs()) }
}

/// Says what has become of a server.
///
/// # Errors
/// A memory server is lost, which ends the cluster.
fn tell(change: Change, args: &UpArgs, console: &Console) -> Result<(), Failure> {
    match change {
        Change::MemoryLost(number, status) => {
            let then = if args.folder.is_some() {
                "the files have its data: up with the same --folder serves the pool again"
            } else {
                "its data is gone, and there are no replicas; --folder keeps data in files"
            };
            return Err(Failure::unavailable(format!(
                "memory server {number} has ended ({status}), and the cluster ends, because each server holds a \
                 part of the pool: {then}"
            )));
        }
        Change::ComputeLost(number, status, pause) => console.warn(format_args!(
            "compute server {number} has ended ({status}): others serve its keys, and another starts {}",
            in_time(pause)
        )),
        Change::GatewayLost(status, pause) => console.warn(format_args!(
            "the gateway for Redis's clients has ended ({status}): another starts {}",
            in_time(pause)
        )),
        Change::GatewayBack(address) => {
            console.note(format_args!("another gateway for Redis's clients listens at {address}"));
        }
        Change::ComputeBack(number, address) => {
            console.note(format_args!("another compute server {number} listens at {address}"));
        }
    }
    Ok(())
}
