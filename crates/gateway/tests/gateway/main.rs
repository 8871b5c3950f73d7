//! Gateway tests: commands over a socket, and beside redis-server.
#![allow(clippy::unwrap_used)]

#[path = "../../../fabric/tests/common/authority.rs"]
mod authority;
mod beside_redis;
mod commands;
mod common;
mod costs;
mod limits;
mod pages;
mod records;
mod tls;
mod users;
