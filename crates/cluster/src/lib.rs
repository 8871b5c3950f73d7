//! Cluster directory: names a cluster's memory servers, compute servers and coordinator in etcd.
//!
//! The coordinator is the compute server that recovers the dead.
//!
//! The pool itself knows its members, fences the dead and holds the map of owners. No change of the
//! pool depends on the directory: an expired entry only tells the coordinator to look. So the loss of
//! etcd stops no process that has the pool open. `docs/design/cluster.md` gives the reasons.
//!
//! | key, below `/farleaf/NAME/` | held by | says |
//! |---|---|---|
//! | `pool` | nobody | the pool's id, and how many memory servers it has |
//! | `memory/00000` | memory server 0 | [`MemoryRecord`] |
//! | `compute/<incarnation>` | that compute server | [`ComputeRecord`] |
//! | `coordinator` | a compute server | which one |
//! | `leave/<incarnation>` | that compute server | somebody asks it to hand over and leave |
//!
//! - **INV-DIR-1** Each held key is bound to a lease that its holder alone renews: a life that ends
//!   takes its keys with it, [`LEASE`] later at most, and the time that etcd takes.
//! - **INV-DIR-2** The keys of a compute server are bound to one lease: a coordinator that has gone and one
//!   that is not registered any more are the same.
//! - **INV-DIR-3** A reader checks every value before it uses it. It reports a foreign key, and leaves
//!   it alone.
#![forbid(unsafe_code)]

mod access;
mod address;
mod directory;
mod error;
mod etcd;
mod record;
mod registration;
mod tls;

pub use access::{EtcdAccess, EtcdTlsFiles};
pub use address::ClusterAddress;
pub use directory::Directory;
pub use error::ClusterError;
pub use etcd::{Etcd, LeaseId, Pair};
pub use record::{ComputeRecord, Foreign, MemoryRecord, PoolRecord, Snapshot, Way};
pub use registration::{ComputeRegistration, LEASE, MemoryRegistration, View};
