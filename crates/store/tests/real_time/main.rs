//! Real-time tests: the public API over memory servers, etcd and RDMA.

#[path = "../store/common/mod.rs"]
mod common;

mod dmtree;
#[cfg(feature = "etcd")]
mod etcd;
mod network;
mod verbs;
mod waits;

#[path = "../store/forward.rs"]
mod forward;
#[path = "../store/futures.rs"]
mod futures;
#[path = "../store/local.rs"]
mod local;
#[path = "../store/processes.rs"]
mod processes;
#[path = "../store/races.rs"]
mod races;
#[path = "../store/stores.rs"]
mod stores;
#[path = "../store/tables.rs"]
mod tables;

/// Returns whether the tests run over memory servers.
const OVER_NETWORK: bool = true;
