//! Hosts: the memory servers that an experiment starts beside this process.

use std::{error::Error, net::SocketAddr};

/// Why a memory server does not start.
pub type HostError = Box<dyn Error + Send + Sync>;

/// Starts memory servers, for experiments in real time over a network.
pub trait Hosts {
    /// Starts one with one thread that exposes `region_bytes`, as the only one of its pool.
    ///
    /// # Errors
    /// Whatever keeps it from starting.
    fn memory_server(&self, region_bytes: u64) -> Result<Box<dyn Host>, HostError>;
}

/// A memory server that is at work. It ends when this is dropped.
pub trait Host {
    /// Where it listens.
    fn address(&self) -> SocketAddr;
}
