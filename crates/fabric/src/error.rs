//! Fabric errors: report a failed operation, or a fabric that cannot be opened.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::{GlobalAddr, Incarnation, ServerId};

/// A failed operation. Unless the kind says otherwise **its effect is unknown**: it may have
/// happened, in part too, and may even come later, until the initiator is fenced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("operation on {} {server} failed: {kind}", if server.is_compute() { "compute server" } else { "memory server" })]
pub struct OpError {
    /// The server that it went to.
    pub server: ServerId,
    /// Reason of the failure.
    pub kind: OpErrorKind,
}

impl OpError {
    /// Returns whether the operation may have happened, or may still happen (F5).
    pub fn is_unknown(&self) -> bool {
        matches!(self.kind, OpErrorKind::Unavailable | OpErrorKind::Timeout | OpErrorKind::Fenced)
    }
}

/// Reason of an operation's failure.
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
    /// The addressed compute server has ended its life or detached. The content of its memory is lost.
    #[error("compute server {who} has ended its life")]
    Gone {
        /// Its life.
        who: Incarnation,
    },
}

/// Reason for which a memory server refuses a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// The process that answers is no memory server.
    NoMemoryServer,
    /// It speaks another version of the protocol.
    OtherVersion,
    /// It has another number, or the pool another number of servers.
    OtherServer,
    /// It has as many open connections as it allows.
    Full,
    /// It serves other memory than before.
    OtherMemory,
    /// One side does not trust the other, or speaks TLS while the other does not.
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
    #[error("cannot {what} {}{}: {source}", path.display(), missing_rights(path, source))]
    Io {
        /// The operation that failed.
        what: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The path holds something else than a pool folder, or an incomplete one.
    #[error("{} is not a usable pool folder: {why}", path.display())]
    NotAPool {
        /// The folder or file.
        path: PathBuf,
        /// The fault, and the remedy.
        why: String,
    },
    /// The path holds something that a memory server cannot serve.
    #[error("cannot serve {}: {why}", path.display())]
    NotARegion {
        /// The file.
        path: PathBuf,
        /// The fault.
        why: String,
    },
    /// A pool folder with a file that is damaged.
    #[error("{} is damaged: {why}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The fault.
        why: String,
    },
    /// An invalid configuration.
    #[error("{0}")]
    Config(String),
    /// A memory server cannot be reached.
    #[error("cannot reach memory server {server} at {address}: {source}")]
    Unreachable {
        /// The server.
        server: ServerId,
        /// Its configured address.
        address: String,
        /// The system's error.
        source: io::Error,
    },
    /// A memory server refuses this program.
    #[error("memory server {server} at {address} refuses: {why}")]
    Refused {
        /// The server.
        server: ServerId,
        /// Its address.
        address: String,
        /// The server's reason.
        reason: Refusal,
        /// The reason, and the remedy.
        why: String,
    },
    /// This compute server has been fenced and must join anew.
    #[error(
        "memory server {server} has fenced this compute server, which gave no sign of life for a whole lease: open the pool again"
    )]
    CutOff {
        /// The server.
        server: ServerId,
    },
    /// This compute server has given up a pool that it could not reach, and must join anew.
    #[error(
        "this compute server has left the pool, because it could not reach it: open the pool again"
    )]
    GivenUp,
    /// RDMA cannot be used.
    #[cfg(feature = "verbs")]
    #[error(transparent)]
    Verbs(#[from] crate::verbs::VerbsError),
    /// A file system has too little space for the files of memory.
    #[error(
        "{bytes} bytes do not fit into {}, whose file system has {free} bytes free: ask for less, or free some space{}",
        path.display(), more_shared_memory(path, *bytes)
    )]
    NoSpace {
        /// The folder or file.
        path: PathBuf,
        /// Bytes that are to be reserved.
        bytes: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// Memory could not be had.
    #[error(
        "cannot map {bytes} bytes of memory for {} {server}: ask for less, or raise the limit of address space",
        if server.is_compute() { "compute server" } else { "memory server" }
    )]
    NoMemory {
        /// Bytes asked for.
        bytes: u64,
        /// The server.
        server: ServerId,
    },
}

impl FabricError {
    /// Makes the error of a system that refuses to do `what` with a file or folder.
    pub(crate) fn io<E: Into<io::Error>>(
        what: &'static str,
        path: &Path,
    ) -> impl Fn(E) -> FabricError {
        move |source| FabricError::Io { what, path: path.to_path_buf(), source: source.into() }
    }

    /// Makes the error for a memory server that cannot be reached at that address.
    pub(crate) fn unreachable(
        server: ServerId,
        address: SocketAddr,
    ) -> impl Fn(io::Error) -> FabricError {
        move |source| FabricError::Unreachable { server, address: address.to_string(), source }
    }
}

/// Names the user and the owner if `source` says that this process may not use `path`, and the remedy; else empty.
///
/// For messages, behind the path.
pub fn missing_rights(path: &Path, source: &io::Error) -> String {
    if source.kind() != io::ErrorKind::PermissionDenied {
        return String::new();
    }
    let user = rustix::process::geteuid().as_raw();
    // The nearest that is there: the folder in which a file was to be made.
    let there = path.ancestors().find_map(|at| Some((at, fs::metadata(at).ok()?)));
    let Some((at, found)) = there.filter(|(at, _)| !at.as_os_str().is_empty()) else {
        return format!(" (this process is user {user})");
    };
    let (at, owner) = (at.display(), found.uid());
    match owner == user {
        true => format!(" (the mode of {at} is {:03o}: chmod u+rwX {at})", found.mode() & 0o777),
        false => format!(
            " (this process is user {user}, and {at} belongs to user {owner}: chown {user} {at}, or run as that user)"
        ),
    }
}

/// The remedy for a container, whose shared memory is 64 MiB unless it is told otherwise; empty elsewhere.
fn more_shared_memory(path: &Path, bytes: u64) -> String {
    if !path.starts_with("/dev/shm") {
        return String::new();
    }
    let size = bytes.div_ceil(1 << 20) + 64;
    format!(
        "; a container has more of it by docker run --shm-size={size}m (shm_size in a compose file)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_dev_shm_says_how_a_container_has_more() {
        let told = |path: &str| {
            FabricError::NoSpace { path: path.into(), bytes: 1 << 30, free: 64 << 20 }.to_string()
        };
        assert!(told("/dev/shm/pool").ends_with("--shm-size=1088m (shm_size in a compose file)"));
        assert!(told("/data/pool").ends_with("free some space"));
    }

    #[test]
    fn a_refusal_names_the_user_and_the_owner() {
        let user = rustix::process::geteuid().as_raw();
        let denied = io::Error::from(io::ErrorKind::PermissionDenied);
        let other =
            if user == 0 { Path::new("/nonexistent-folder/memory") } else { Path::new("/") };
        let told = missing_rights(other, &denied);
        let expected = match user {
            0 => "the mode of / is".to_owned(),
            _ => format!("this process is user {user}, and / belongs to user 0: chown {user} /"),
        };
        assert!(told.contains(&expected), "{told}");
        assert_eq!(missing_rights(other, &io::Error::from(io::ErrorKind::NotFound)), "");
        let error = FabricError::io("make", Path::new("memory"))(denied).to_string();
        assert_eq!(
            error,
            format!("cannot make memory (this process is user {user}): permission denied")
        );
    }
}
