//! Hosts: the memory servers that an experiment starts beside this process.

use std::{error::Error, net::SocketAddr};

/// Error of a memory server that does not start.
pub type HostError = Box<dyn Error + Send + Sync>;

/// Starts memory servers, for experiments in real time over a network.
pub trait Hosts {
    /// Starts one with one thread that exposes `region_bytes`, as the only one of its pool.
    ///
    /// # Errors
    /// Any cause that keeps it from starting.
    fn memory_server(&self, region_bytes: u64) -> Result<Box<dyn Host>, HostError>;
}

/// A running memory server. Dropping it ends the server.
pub trait Host {
    /// The address at which it listens.
    fn address(&self) -> SocketAddr;
}
