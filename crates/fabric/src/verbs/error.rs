//! Verbs errors: report why a card cannot be opened.

use std::io;

/// RDMA cannot be used; nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// The library for cards is missing.
    #[error(
        "no rdma-core here ({why}): install libibverbs1 and ibverbs-providers (Debian) or \
         rdma-core, or use tcp"
    )]
    NoLibrary {
        /// The dynamic linker's error.
        why: String,
    },
    /// There is no card, or none of the wanted name.
    #[error(
        "no RDMA device{}: {}", wanted.as_ref().map(|name| format!(" named {name}")).unwrap_or_default(),
        if found.is_empty() { "this machine has none that rdma-core knows (see `rdma link`)".to_owned() }
        else { format!("there are {}", found.join(", ")) }
    )]
    NoDevice {
        /// The wanted name.
        wanted: Option<String>,
        /// The existing names.
        found: Vec<String>,
    },
    /// The user has no right to use the card.
    #[error(
        "no permission to {what} of RDMA device {device}: {source}; see the rights of \
         /dev/infiniband/uverbs*"
    )]
    Denied {
        /// The device.
        device: String,
        /// The operation that failed.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// Memory cannot be locked for the card.
    #[error(
        "cannot register {bytes} bytes with RDMA device {device}: {source}; {}, and every \
         registration counts: raise it (ulimit -l, LimitMEMLOCK)",
        limit_bytes.map_or("the limit of locked memory is none".to_owned(),
            |limit| format!("the limit of locked memory is {limit} bytes"))
    )]
    Memory {
        /// The device.
        device: String,
        /// Bytes that were to be registered.
        bytes: u64,
        /// `RLIMIT_MEMLOCK`, if there is one.
        limit_bytes: Option<u64>,
        /// The system's error.
        source: io::Error,
    },
    /// The port is not there or has no link.
    #[error("port {port} of RDMA device {device} {why}")]
    Port {
        /// The device.
        device: String,
        /// The port, from 1.
        port: u8,
        /// The fault of the port.
        why: String,
    },
    /// The wanted GID index is not in the table, or its entry is empty.
    #[error(
        "GID index {index} of RDMA device {device} port {port} cannot be used: the table has \
         {entries} entries{}; `ibv_devinfo -v` lists them",
        if *index < *entries { ", and this one is empty" } else { "" }
    )]
    Gid {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// The wanted index.
        index: u32,
        /// Length of the table.
        entries: u32,
    },
    /// The card cannot do what every engine needs.
    #[error("RDMA device {device} cannot be used: {why}")]
    Unfit {
        /// The device.
        device: String,
        /// The missing capability.
        why: String,
    },
    /// An invalid setting.
    #[error("{0}")]
    Config(String),
    /// Any other call of the library failed.
    #[error("cannot {what} of RDMA device {device}: {source}")]
    Failed {
        /// The device.
        device: String,
        /// The operation that failed.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}
