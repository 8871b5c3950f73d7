//! Fabric errors: report a failed operation, or a fabric that cannot be opened.

use std::io;
use std::path::PathBuf;

use crate::{GlobalAddr, Incarnation, ServerId};

/// A failed operation. Unless the kind says otherwise **its effect is unknown**: it may have
/// happened, in part too, and may even come later, until the initiator is fenced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("operation on {} {server} failed: {kind}", if server.is_compute() { "compute server" } else { "memory server" })]
pub struct OpError {
    /// The server that it went to.
    pub server: ServerId,
    /// Why it failed.
    pub kind: OpErrorKind,
}

impl OpError {
    /// Whether the operation may have happened, or may still happen (F5).
    pub fn is_unknown(&self) -> bool {
        matches!(self.kind, OpErrorKind::Unavailable | OpErrorKind::Timeout | OpErrorKind::Fenced)
    }
}

/// Why an operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpErrorKind {
    /// The server cannot be reached. Effect unknown.
    #[error("the server cannot be reached")]
    Unavailable,
    /// No completion within the fabric's limit. Effect unknown.
    #[error("no completion in time")]
    Timeout,
    /// This compute server has been fenced and must join anew. Nothing that is posted from now on
    /// takes effect; what was in flight may have.
    #[error("this compute server has been fenced")]
    Fenced,
    /// The address, its length or its alignment is outside what the server exposes. Nothing was
    /// done.
    #[error("address {addr} with {bytes} bytes is outside the server's {region_bytes} bytes")]
    OutOfBounds {
        /// First byte asked for.
        addr: GlobalAddr,
        /// Bytes asked for.
        bytes: u64,
        /// Length of that server's region, 0 if there is no such server.
        region_bytes: u64,
    },
    /// An atomic on an address that is not a multiple of 8. Nothing was done.
    #[error("atomic on {addr}, which is not aligned to 8 bytes")]
    Misaligned {
        /// The address asked for.
        addr: GlobalAddr,
    },
    /// No such service on that server. Nothing was done.
    #[error("no service {service} there")]
    NoService {
        /// The service asked for.
        service: u16,
    },
    /// The buffer's memory could not be registered with the card. Nothing was done.
    #[error("a buffer could not be registered with the card: raise the limit of locked memory")]
    Unregistered,
    /// A fence of a compute server that cannot be proven dead. Nothing was done.
    #[error("the compute server to be fenced is alive")]
    StillAlive,
    /// The compute server that it went to has ended its life, or is attached no more. What stood in its
    /// memory is lost.
    #[error("compute server {who} has ended its life")]
    Gone {
        /// Its life.
        who: Incarnation,
    },
}

/// For which reason a memory server does not let a program in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// What answers is no memory server.
    NoMemoryServer,
    /// It speaks another version of the protocol.
    OtherVersion,
    /// It has another number, or the pool another number of servers.
    OtherServer,
    /// It has as many connections as it allows.
    Full,
    /// It serves other memory than before.
    OtherMemory,
    /// One of both sides does not trust the other, or speaks TLS while the other does not.
    NotTrusted,
    /// It was asked for its card, and serves without one.
    NoCard,
    /// Its card is on another kind of network, or gives no queue pair.
    NoWay,
    /// Others reach its memory another way now, by its card or without, and it does not allow both.
    OtherWay,
}

/// Opening or creating a fabric failed; nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FabricError {
    /// The operating system refused.
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// On which file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Something is there that is not a pool folder, or not a whole one.
    #[error("{} is not a usable pool folder: {why}", path.display())]
    NotAPool {
        /// The folder or file.
        path: PathBuf,
        /// What is wrong with it and what to do.
        why: String,
    },
    /// Something is there that a memory server cannot serve.
    #[error("cannot serve {}: {why}", path.display())]
    NotARegion {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A pool folder with a file that is damaged.
    #[error("{} is damaged: {why}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A configuration that makes no sense.
    #[error("{0}")]
    Config(String),
    /// A memory server cannot be reached.
    #[error("cannot reach memory server {server} at {address}: {source}")]
    Unreachable {
        /// Which one.
        server: ServerId,
        /// Where it should be.
        address: String,
        /// What the system said.
        source: io::Error,
    },
    /// A memory server does not let this program in.
    #[error("memory server {server} at {address} refuses: {why}")]
    Refused {
        /// Which one.
        server: ServerId,
        /// Where it is.
        address: String,
        /// For which reason.
        reason: Refusal,
        /// Why, and what to do.
        why: String,
    },
    /// This compute server has been fenced and must join anew.
    #[error(
        "memory server {server} has cut this compute server off, which was silent for its lease: open the pool again"
    )]
    CutOff {
        /// Which one.
        server: ServerId,
    },
    /// This compute server has given up a pool that it could not reach, and must join anew.
    #[error(
        "this compute server has given the pool up, as it could not be reached: open the pool again"
    )]
    GivenUp,
    /// RDMA cannot be used.
    #[cfg(feature = "verbs")]
    #[error(transparent)]
    Verbs(#[from] crate::verbs::VerbsError),
    /// Memory could not be had.
    #[error("cannot map {bytes} bytes of memory for memory server {server}")]
    NoMemory {
        /// Bytes asked for.
        bytes: u64,
        /// For which server.
        server: ServerId,
    },
}
