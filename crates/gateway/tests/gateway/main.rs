//! Gateway tests: commands over a socket, and beside redis-server.
#![allow(clippy::unwrap_used)]

mod beside_redis;
mod commands;
mod common;
mod limits;
mod pages;
