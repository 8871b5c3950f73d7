//! Directory entry: keeps a memory server's entry in its cluster's directory.

use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use clap::Args;
use farleaf_cluster::{ClusterAddress, Directory, MemoryRecord, MemoryRegistration, Way};
use farleaf_fabric::tcp::MemoryServer;
use farleaf_pool::{SUPERBLOCK_WORDS, pool_id_of};

use crate::card::Network;
use crate::errors::Failure;
use crate::etcd::EtcdArgs;

/// Time between two looks at the entry.
const KEEP_EVERY: Duration = Duration::from_millis(500);

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Being part of a cluster")]
pub(crate) struct EntryArgs {
    /// Servers of etcd, in whose directory it registers
    #[arg(long, value_name = "HOST:PORT,...", value_delimiter = ',', requires = "cluster")]
    pub(crate) etcd: Vec<String>,
    /// The cluster's name there
    #[arg(long, value_name = "NAME", requires = "etcd")]
    pub(crate) cluster: Option<String>,
}

/// Registers a server that listens, if that was asked for, and tells others that it is reached where it
/// advertises. Waits a few seconds where one that may have died has its number.
pub(crate) fn enter(
    args: &EntryArgs,
    advertise: Option<SocketAddr>,
    etcd: &EtcdArgs,
    server: &MemoryServer,
    numbers: (u16, u16),
    fabric: Network,
) -> anyhow::Result<Option<MemoryRegistration>> {
    let Some(cluster) = &args.cluster else { return Ok(None) };
    let cluster = ClusterAddress::new(args.etcd.iter().cloned(), cluster)?;
    let mut address = advertise.unwrap_or(server.address());
    if address.port() == 0 {
        address.set_port(server.address().port());
    }
    if address.ip().is_unspecified() {
        return Err(Failure::usage(format!(
            "other machines cannot reach a memory server at {address}: give the address that they use with --advertise"
        ))
        .into());
    }
    let way = match fabric {
        Network::Tcp => Way::Tcp,
        Network::Verbs => Way::Verbs,
    };
    let record = MemoryRecord::new(address, numbers, server.words().bytes(), pool_of(server));
    let record = record.by(way);
    let directory = Directory::with(&cluster, &etcd.load()?);
    Ok(Some(directory.register_memory(record)?))
}

/// Keeps the entry until `stop`, and ends it then. That etcd is away is told once, and keeps nobody from
/// using the server.
pub(crate) fn keep(
    mut registration: MemoryRegistration,
    server: &MemoryServer,
    stop: &Receiver<()>,
) {
    let mut is_lost = false;
    while let Err(RecvTimeoutError::Timeout) = stop.recv_timeout(KEEP_EVERY) {
        let kept = registration.keep(pool_of(server));
        match &kept {
            Ok(()) if is_lost => tracing::info!("is registered in its cluster's directory again"),
            Err(error) if !is_lost => {
                tracing::warn!(why = %error, "is not registered, and serves on")
            }
            _ => {}
        }
        is_lost = kept.is_err();
    }
    if let Err(error) = registration.leave() {
        tracing::info!(why = %error, "its entry runs out by itself");
    }
}

/// The pool whose data it holds.
fn pool_of(server: &MemoryServer) -> Option<u128> {
    let mut words = [0; SUPERBLOCK_WORDS];
    server.words().load(0, &mut words);
    pool_id_of(&words)
}
