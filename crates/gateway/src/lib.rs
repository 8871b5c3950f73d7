//! Gateway: serves tables to Redis's clients, in RESP2 and RESP3.
//!
//! A gateway is a compute server like any other: any number of them serve one pool, beside the library's users. Its
//! commands are those of the library on the tables' own keys and values, so each is linearizable across all of them.
//! `docs/design/gateway.md` says how it works, `docs/redis.md` what differs from Redis.
#![forbid(unsafe_code)]

mod client;
pub mod commands;
mod connection;
mod cursors;
mod lex;
mod pattern;
pub mod resp;
mod server;
mod shared;

use std::net::SocketAddr;

use farleaf::TableOptions;

pub use commands::{Command, REFUSED, commands};
pub use server::{Gateway, GatewayCounts, GatewayError};

/// Options of a gateway.
#[derive(Clone, Debug)]
pub struct GatewayOptions {
    /// The address at which it listens; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Tables that clients `SELECT` by their place.
    pub tables: Vec<String>,
    /// Options with which a missing table is made; `None` makes none.
    pub creates: Option<TableOptions>,
    /// Threads, each with an event loop.
    pub threads: usize,
    /// Connections at a time.
    pub connections_max: usize,
    /// True if clients may remove all keys of a table.
    pub allow_flush: bool,
}

impl GatewayOptions {
    /// Most threads.
    pub const THREADS_MAX: usize = 64;

    /// One table, by its name, on a free port of this machine.
    pub fn new(tables: Vec<String>) -> Self {
        GatewayOptions {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            tables,
            creates: None,
            threads: 1,
            connections_max: 10_000,
            allow_flush: false,
        }
    }
}
