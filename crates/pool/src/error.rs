//! Pool errors: say what failed in a pool, and what the caller can do.

use farleaf_fabric::{OpError, ServerId};

use crate::Fullness;

/// A failed operation of the pool.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// A remote operation failed; see [`OpError`] for what is known about its effect.
    #[error(transparent)]
    Fabric(#[from] OpError),
    /// No memory left for an object of that size, on any server or on the one that the caller insisted on.
    /// Nothing was lost; freeing objects, or ending operations that hold retired ones back, makes room.
    #[error("no memory server has room for {bytes} bytes: {found}")]
    Full {
        /// The server that was asked first.
        server: ServerId,
        /// Bytes asked for.
        bytes: usize,
        /// Memory in use, and free memory in the blocks of others.
        found: Box<Fullness>,
    },
    /// Remote memory does not hold what it must.
    #[error("{0}")]
    Corrupt(String),
    /// The regions are not, or not all, a pool of this version.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// A table of fixed length is full: of what, and how many it holds.
    #[error("no free {0} entry: the pool was formatted for {1}; {advice}", advice = advice(.0))]
    NoSlot(&'static str, usize),
    /// There is no table of that name.
    #[error("there is no table {0:?}")]
    NoSuchTable(String),
    /// There is a table of that name already.
    #[error("there is a table {0:?} already")]
    TableExists(String),
    /// This client's retire page on the object's server is full, and nothing in it can be
    /// reclaimed yet. Nothing was done; end the operation and try again.
    #[error("too many retired objects wait for reclamation")]
    RetireFull,
    /// Another member holds a lock of the pool's own for longer than it should. Nothing was done;
    /// try again.
    #[error("{0} is locked by another compute server: try again")]
    Busy(&'static str),
    /// Another session of this compute server searches the pool for memory, for longer than it should. Nothing was
    /// done; try again.
    #[error(
        "another thread of this compute server has been searching for memory for long: try again"
    )]
    Searching,
    /// An earlier operation of this session has an outcome that is still to be found out, as a
    /// server cannot be reached. Nothing was done; try again.
    #[error("an earlier operation is still waiting for a memory server: try again")]
    Unsettled,
    /// The request makes no sense. Nothing was done.
    #[error("{0}")]
    Invalid(String),
    /// This compute server has left the pool and must join anew.
    #[error("this compute server has left the pool: open the pool again")]
    Closed,
}

/// Advice if no entry of a table is free.
fn advice(of: &str) -> &'static str {
    match of {
        "client" => "use fewer threads, close processes that are not needed, or make a larger pool",
        "member" => {
            "none of the compute servers that have them is known to be dead: close one, or try again when \
             the leases of those that have died have run out"
        }
        "table" => "drop one that is not needed",
        _ => "end the session and begin another",
    }
}

/// A server's region cannot be opened as part of a pool. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("memory server {server} {fault}")]
pub struct FormatError {
    /// The server whose superblock is at fault.
    pub server: ServerId,
    /// The fault.
    pub fault: FormatFault,
}

/// Fault of a superblock, with advice.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FormatFault {
    /// The first word is zero.
    #[error("is not formatted: format the pool first")]
    NotFormatted,
    /// The first word is neither zero nor Farleaf's.
    #[error("holds something that is not a Farleaf pool: check the address, or format it anew")]
    Foreign,
    /// Written by another version of the format.
    #[error("has format version {found}, this program reads {supported}: use a matching program")]
    Version {
        /// The version found.
        found: u64,
        /// The version that this program reads and writes.
        supported: u64,
    },
    /// The checksum does not match.
    #[error("has a damaged superblock (its checksum does not match): restore the region")]
    Checksum,
    /// The region is shorter or longer than when it was formatted.
    #[error("exposes {found} bytes but was formatted with {expected}: {}",
        if found < expected { "it was cut short, restore it" } else { "open it at its old length" })]
    Length {
        /// Bytes that the server exposes now.
        found: u64,
        /// Bytes when it was formatted.
        expected: u64,
    },
    /// The region belongs to another server of the pool.
    #[error("holds the region of server {found}: list the servers in their old order")]
    ServerId {
        /// The server that the region was formatted as.
        found: u64,
    },
    /// The pool was formatted over another number of servers.
    #[error("belongs to a pool of {expected} servers, but {found} are here: list all of them")]
    ServerCount {
        /// Servers here.
        found: u64,
        /// Servers when the pool was formatted.
        expected: u64,
    },
    /// The region belongs to another pool than server 0's.
    #[error("belongs to pool {found:032x}, server 0 to {expected:032x}: do not mix pools")]
    PoolId {
        /// The pool that this region belongs to.
        found: u128,
        /// The pool that server 0 belongs to.
        expected: u128,
    },
    /// The sizes in a superblock with a good checksum make no sense, or differ from server 0's.
    #[error("has an invalid superblock ({0}): format the pool again")]
    Geometry(String),
}
