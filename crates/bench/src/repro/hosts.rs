//! Hosts: the servers that an experiment starts beside this process.

use std::{error::Error, net::SocketAddr};

/// Error of a server that does not start.
pub type HostError = Box<dyn Error + Send + Sync>;

/// Starts servers, for experiments in real time over a network.
pub trait Hosts {
    /// Starts one with one thread that exposes `region_bytes`, as the only one of its pool.
    ///
    /// # Errors
    /// Any cause that keeps it from starting.
    fn memory_server(&self, region_bytes: u64) -> Result<Box<dyn Host>, HostError>;

    /// Starts a gateway for Redis's clients by the words of `farleaf redis`, on a free port.
    ///
    /// # Errors
    /// Any cause that keeps it from starting; that there are no gateways here.
    fn gateway(&self, words: &[&str]) -> Result<Box<dyn Host>, HostError> {
        let _ = words;
        Err("there are no gateways here".into())
    }
}

/// A running server. Dropping it ends the server.
pub trait Host {
    /// The address at which it listens.
    fn address(&self) -> SocketAddr;
}
