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
mod event_loop;
mod lex;
mod long;
mod pattern;
mod queue;
mod server;
mod shared;
mod sweeper;
mod tls;
mod users;

use std::net::SocketAddr;
use std::time::Duration;

use farleaf::{Processors, TableOptions};

pub use commands::{Command, REFUSED, commands};
pub use server::{Gateway, GatewayCounts, GatewayError};
pub use tls::GatewayTls;
pub use users::{Rights, User, Users, UsersError, new_token};

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
    /// Processors on which these threads stay, one on each in turn; any by default.
    pub pin: Processors,
    /// Connections at a time.
    pub connections_max: usize,
    /// True if clients may remove all keys of a table.
    pub allow_flush: bool,
    /// The share of a table's keys that is looked at each second for records that have expired, in percent; 0: none.
    pub sweep_percent: u32,
    /// The users, of whom each client has to be one; `None` lets all clients do everything.
    pub users: Option<Users>,
    /// Encrypts connections.
    pub tls: Option<GatewayTls>,
    /// Commands of one connection that run together.
    pub overlap: Overlap,
    /// The meaning of `MULTI`.
    pub multi: Multi,
    /// Bytes of all clients' own buffers: parts of commands, and replies that wait.
    pub client_memory: usize,
    /// A client with waiting replies that takes nothing for so long is closed.
    pub slow_client: Duration,
    /// A client that sends nothing for so long is closed.
    pub idle: Option<Duration>,
}

/// Commands of one connection that run together. Replies come in the order of the commands in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overlap {
    /// None: each command begins once the one before it is answered.
    Nothing,
    /// Reads that stand next to each other.
    #[default]
    Reads,
    /// Reads and changes; those of one key take effect in their order.
    All,
}

/// The meaning of `MULTI`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Multi {
    /// It is refused: nothing makes several keys atomic.
    #[default]
    Refused,
    /// The commands up to `EXEC` run in order, each atomic, others' in between.
    Sequence,
}

impl GatewayOptions {
    /// Most threads.
    pub const THREADS_MAX: usize = 64;

    /// These tables, on a free port of this machine.
    pub fn new(tables: Vec<String>) -> Self {
        GatewayOptions {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            tables,
            creates: None,
            threads: 1,
            pin: Processors::default(),
            connections_max: 10_000,
            allow_flush: false,
            users: None,
            tls: None,
            overlap: Overlap::default(),
            multi: Multi::default(),
            client_memory: 256 << 20,
            slow_client: Duration::from_secs(60),
            idle: None,
            sweep_percent: 1,
        }
    }
}
