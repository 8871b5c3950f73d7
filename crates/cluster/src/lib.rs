//! Cluster directory: names a cluster's memory servers, compute servers and coordinator in etcd.
//!
//! The coordinator is the compute server that recovers the dead.
//!
//! The pool itself knows its members, fences the dead and holds the map of owners; what stands here is
//! never asked before anything is done to it. An entry that runs out only rings a bell. So the loss of
//! etcd stops nobody who has the pool open. `docs/design/cluster.md` says why it is so.
//!
//! | key, below `/farleaf/NAME/` | held by | says |
//! |---|---|---|
//! | `pool` | nobody | the pool's id, and how many memory servers it has |
//! | `memory/00000` | memory server 0 | [`MemoryRecord`] |
//! | `compute/<incarnation>` | that compute server | [`ComputeRecord`] |
//! | `coordinator` | a compute server | which one |
//! | `leave/<incarnation>` | that compute server | somebody asks it to hand over and leave |
//!
//! - **INV-DIR-1** A key that somebody holds is bound to a lease that the holder alone renews: a life that
//!   ends takes its keys with it, [`LEASE`] later at most, and the time that etcd takes.
//! - **INV-DIR-2** The keys of a compute server are bound to one lease: a coordinator that has gone and one
//!   that is not registered any more are the same.
//! - **INV-DIR-3** Nothing in a value is believed before it was checked; a key that is none of ours is told,
//!   and left alone.
#![forbid(unsafe_code)]

mod access;
mod address;
mod directory;
mod error;
mod etcd;
mod record;
mod seats;
mod tls;

pub use access::{EtcdAccess, EtcdTlsFiles};
pub use address::ClusterAddress;
pub use directory::Directory;
pub use error::ClusterError;
pub use etcd::{Etcd, LeaseId, Listing, Pair};
pub use record::{ComputeRecord, Foreign, MemoryRecord, Name, PoolRecord, Snapshot, Way};
pub use seats::{ComputeSeat, LEASE, MemorySeat, View};
