//! Cluster tests: the cluster's directory and its client, on a real etcd.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../../../fabric/tests/common/authority.rs"]
mod authority;
#[path = "../common/etcd.rs"]
mod server;

mod access;
mod directory;
mod etcd;
