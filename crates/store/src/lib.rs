//! Farleaf: an ordered key-value store on disaggregated memory.
//!
//! A [`Farleaf`] is a pool of memory servers that is open; a [`Table`] in it is an ordered map from
//! byte strings to byte strings, which every compute server that has the pool open reads and
//! changes with one-sided operations, without asking anybody.
//!
//! ```
//! use farleaf::{Farleaf, TableOptions};
//!
//! let db = Farleaf::open("mem:")?;
//! let users = db.create_table("users", TableOptions::default())?;
//! users.insert("ada", "1815")?;
//! users.insert("alan", "1912")?;
//! users.insert("grace", "1906")?;
//!
//! assert_eq!(users.get("ada")?, Some(b"1815".to_vec()));
//! for pair in users.prefix("a") {
//!     let (name, born) = pair?;
//!     println!("{} was born in {}", name.escape_ascii(), born.escape_ascii());
//! }
//! users.remove("alan")?;
//! assert_eq!(users.range("a".."h").count(), 2);
//! assert!(db.verify()?.closes());
//! db.close()?;
//! # Ok::<(), farleaf::Error>(())
//! ```
//!
//! | address | pool |
//! |---|---|
//! | `mem:` | new, in this process's memory |
//! | `shm:<folder>` | in a folder of memory files, for several processes of one machine |
//! | `tcp://<host>:<port>,...` | on memory servers of a network, in the order of their numbers |
//! | `verbs://<host>:<port>,...` | the same, reached by RDMA |
//! | `etcd://<host>:<port>,.../<cluster>` | on those of a cluster that etcd knows (feature `etcd`) |
//!
//! If a process is killed, the others go on reading and writing its tables, and the first one to notice
//! recovers its locks and memory. A pool is memory: its content is gone when the machine is switched
//! off (a folder on `/dev/shm`, a memory server's file) or the process ends (`mem:`, a memory server
//! without a file).
//!
//! Any number of threads may share a handle; each that is at work takes one of the pool's sessions,
//! of which a pool of 64 MiB or more has 256 for all processes, and gives it back when it ends.
//!
//! Calls block for as long as the operation takes, which on mapped memory is about a microsecond;
//! [`Table::to_async`] gives the same as futures.
#![forbid(unsafe_code)]

mod async_table;
mod bounds;
mod builder;
mod card;
mod core;
mod error;
mod local;
mod maintain;
mod many;
mod op_lock;
mod operation;
mod options;
mod ordered;
mod owners;
mod partitions;
mod range;
mod record_table;
#[cfg(feature = "etcd")]
mod registered;
mod report;
mod serve;
mod store;
mod sync;
mod table;
mod table_core;
mod thread_context;
mod turns;
mod uri;
mod workers;

#[cfg(feature = "etcd")]
pub use farleaf_cluster::{EtcdAccess, EtcdTlsFiles};
pub use farleaf_engines::typed;
pub use farleaf_engines::{Content, Engine, KnobDefault, SettingError, UnknownEngine};
pub use farleaf_fabric::tcp::{Tls, TlsFiles};
pub use farleaf_fabric::verbs::CardConfig;
pub use farleaf_fabric::{Cost, OpKind, Processors, ServerId, Snapshot};
pub use farleaf_index::{CounterSet, Knob, KnobError, KnobKind, Setting, Settings, Traits};
pub use farleaf_pool::{AuditReport, ClassReport, MemoryUse, OwnerReport, RecoveryCounts};
pub use farleaf_records::{
    Expiry, Hash, Record, RecordChange, RecordError, RecordValue, RecordView, Swept, ValueView,
};

pub use crate::async_table::AsyncTable;
pub use crate::builder::Builder;
pub use crate::error::{Error, ErrorKind, Result};
pub use crate::local::{Local, LocalTable};
pub use crate::operation::{Answer, Operation};
pub use crate::options::{KeyFormat, TableInfo, TableOptions, ValueFormat};
pub use crate::partitions::{ComputeServer, Partition, PartitionShare, ServerName};
pub use crate::range::{KeyRange, Prefix, Range};
pub use crate::record_table::{RecordRange, StringRange};
#[cfg(feature = "etcd")]
pub use crate::registered::ClusterState;
pub use crate::report::{Stats, TableReport, TableStats, VerifyReport};
pub use crate::store::Farleaf;
pub use crate::table::{CompareExchange, Table};
pub use crate::thread_context::forget_after_fork;
pub use crate::uri::MemoryServers;

/// Compiles and runs the examples of the project's front page.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct FrontPage;
