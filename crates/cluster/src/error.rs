//! What can go wrong with the directory.

use std::net::SocketAddr;

/// A failed call. Nothing that etcd does or says changes what is in the pool.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// An address that makes no sense.
    #[error("{0}")]
    Address(String),
    /// No server of etcd has answered; what was tried, and why it failed.
    #[error("etcd cannot be reached ({tried}): start it, or correct the addresses")]
    Unreachable {
        /// Each address with what went wrong there.
        tried: String,
    },
    /// etcd has understood, and refuses.
    #[error("etcd at {endpoint} refuses to {what}: {message}")]
    Refused {
        /// Who.
        endpoint: String,
        /// What was asked for.
        what: &'static str,
        /// Its code, of gRPC's.
        code: i64,
        /// Its reason.
        message: String,
    },
    /// Something else answers there.
    #[error(
        "what answers at {endpoint} is no etcd that can be used ({why}): it takes etcd 3.4 or later, \
         reached by plain HTTP"
    )]
    NotEtcd {
        /// Where.
        endpoint: String,
        /// What it has answered.
        why: String,
    },
    /// The directory has nothing of that name.
    #[error(
        "etcd at {etcd} knows no cluster \"{name}\"{others}; its memory servers register with \
         farleaf memory --etcd {etcd} --cluster {name}"
    )]
    NoSuchCluster {
        /// The name.
        name: String,
        /// Where was looked.
        etcd: String,
        /// The clusters that there are, to be put behind the name.
        others: String,
    },
    /// Memory servers of the cluster are not registered.
    #[error(
        "cluster \"{name}\": of {servers} memory servers, {missing} not registered: start what is \
         missing, or wait until it is back"
    )]
    Missing {
        /// The cluster.
        name: String,
        /// Which, as text.
        missing: String,
        /// How many there should be.
        servers: u16,
    },
    /// Memory servers of the cluster do not agree on how many they are.
    #[error(
        "cluster \"{name}\": memory server {server} at {address} says that there are {servers}, and \
         another {others}: start them with the same --servers"
    )]
    OtherCount {
        /// The cluster.
        name: String,
        /// One of them.
        server: u16,
        /// Where it listens.
        address: SocketAddr,
        /// What it says.
        servers: u16,
        /// What others say.
        others: u16,
    },
    /// A key of the directory holds what Farleaf has not written.
    #[error("the key {key} of etcd is no entry of a cluster's directory ({why}): remove it")]
    Foreign {
        /// The key.
        key: String,
        /// What is wrong with it.
        why: String,
    },
    /// Somebody else has that number.
    #[error(
        "cluster \"{name}\" has a memory server {server} already, at {holder}, which is alive: give \
         this one another number (--server), or end that one"
    )]
    NumberTaken {
        /// The cluster.
        name: String,
        /// The number.
        server: u16,
        /// Who has it.
        holder: SocketAddr,
    },
    /// The memory servers hold another pool than the cluster had.
    #[error(
        "cluster \"{name}\" is of pool {expected:032x}, and {what} of pool {found:032x}: start the \
         memory servers over the files that belong to it, or take another name for the cluster"
    )]
    OtherPool {
        /// The cluster.
        name: String,
        /// The pool that its directory names.
        expected: u128,
        /// The pool that is there.
        found: u128,
        /// Who holds that.
        what: String,
    },
    /// The cluster has no such compute server.
    #[error("cluster \"{name}\" has no compute server {server} registered")]
    NoSuchServer {
        /// The cluster.
        name: String,
        /// The compute server.
        server: String,
    },
}

impl ClusterError {
    /// Whether trying again later may help.
    pub fn may_pass(&self) -> bool {
        matches!(self, ClusterError::Unreachable { .. } | ClusterError::Missing { .. })
    }
}
