//! `farleaf cluster`: shows the members of a cluster, and gives compute servers their share of tables or takes it.

mod drain;
pub(crate) mod entry;
mod share;
mod status;

use clap::{Args, Subcommand};
use farleaf::ServerName;
use farleaf_cluster::{ClusterAddress, ComputeRecord, Directory, Snapshot};
use farleaf_index::units::TimeSpan;

use super::server_by;
use crate::errors::{Exit, Failure};
use crate::output::Console;

#[derive(Clone, Debug, Args)]
pub(crate) struct ClusterArgs {
    #[command(subcommand)]
    pub(crate) what: ClusterCommand,
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum ClusterCommand {
    /// Print memory servers, compute servers, the coordinator, and who has no entry
    ///
    /// Exits with 1 if the pool cannot be used: not all memory servers are there, or none was made.
    Status {
        #[command(flatten)]
        cluster: ClusterOf,
    },
    /// Let a compute server give all that it has to others, and end
    ///
    /// Of those that `farleaf compute` has started. Waits until it has left. The last one is refused, and so is the last with
    /// memory for a table's numbered partitions.
    Drain {
        #[command(flatten)]
        cluster: ClusterOf,
        /// The compute server: a name or an address, as printed by status
        #[arg(value_name = "SERVER")]
        server: String,
        /// Time to wait for it
        #[arg(long, value_name = "TIME", default_value = "60s")]
        timeout: TimeSpan,
    },
    /// Give a compute server that has been started a share of the tables that compute servers serve
    ///
    /// Of a table whose keys they own: about half of what the one with the most to do has, if it has nothing. Of a table with
    /// numbered partitions: its share by its weight, which it takes by itself unless it was drained. A compute server
    /// becomes part of a cluster by `farleaf compute etcd://.../NAME`.
    Add {
        #[command(flatten)]
        cluster: ClusterOf,
        /// The compute server: a name or an address, as printed by status
        #[arg(value_name = "SERVER")]
        server: String,
        /// A table; may be given several times [default: all that compute servers serve]
        #[arg(short, long, value_name = "TABLE")]
        table: Vec<String>,
    },
}

/// The cluster.
#[derive(Clone, Debug, Args)]
pub(crate) struct ClusterOf {
    /// The cluster, as in etcd://127.0.0.1:2379/mycluster
    #[arg(value_name = "CLUSTER")]
    pub(crate) uri: String,
}

pub(super) fn run(args: &ClusterArgs, console: &mut Console) -> anyhow::Result<Exit> {
    match &args.what {
        ClusterCommand::Status { cluster } => status::run(cluster, console),
        ClusterCommand::Drain { cluster, server, timeout } => {
            drain::run(cluster, server, timeout.duration(), console)
        }
        ClusterCommand::Add { cluster, server, table } => {
            share::run(cluster, server, table, console)
        }
    }
}

impl ClusterOf {
    fn directory(&self, console: &Console) -> anyhow::Result<Directory> {
        // The card in it is for the pool.
        let address = self.uri.split_once('?').map_or(self.uri.as_str(), |(address, _)| address);
        let address = ClusterAddress::parse(address)?;
        Ok(Directory::with(&address, &console.args.etcd.load()?))
    }
}

/// The compute server of that name or address.
fn find<'a>(
    snapshot: &'a Snapshot,
    text: &str,
) -> Result<(ServerName, &'a ComputeRecord), Failure> {
    let servers = snapshot.compute.iter().map(|(name, record)| (*name, record.address));
    let hint = match server_by(text, servers) {
        Ok(name) => return Ok((name, &snapshot.compute[&name])),
        Err(hint) => hint,
    };
    if snapshot.memory.values().any(|record| record.address.to_string() == text) {
        return Err(Failure::usage(format!(
            "{text} is a memory server: these neither join nor leave a pool that is in use"
        )));
    }
    Err(Failure::new(
        Exit::NoTable,
        format!("no compute server \"{text}\" is registered{hint}; status prints those that are"),
    ))
}
