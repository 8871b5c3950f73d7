//! Loopback servers: memory servers of this process that compute servers reach over TCP.

use std::net::SocketAddr;
use std::time::Duration;

use farleaf_engines::Engine;
use farleaf_fabric::tcp::{HugePages, MemoryServer, MemoryServerConfig, Region, TcpConfig};
use farleaf_fabric::{FabricError, ServerId};

/// The memory servers of one pool, in the order of their numbers. They run the services of all engines.
#[derive(Debug)]
pub struct LoopbackServers(pub Vec<MemoryServer>);

impl LoopbackServers {
    /// A lease that no test outlives, however busy the machine is.
    pub const LEASE_LONG: Duration = Duration::from_secs(60);

    /// Starts `count` servers of `region_bytes` each. A compute server that is silent for `lease` counts as dead.
    ///
    /// # Errors
    /// As [`Region::anonymous`] and [`MemoryServer::start_over`].
    pub fn start(
        count: usize,
        region_bytes: u64,
        lease: Duration,
    ) -> Result<LoopbackServers, FabricError> {
        LoopbackServers::start_of(&vec![region_bytes; count], lease)
    }

    /// As [`LoopbackServers::start`], with servers of these sizes.
    ///
    /// # Errors
    /// As [`LoopbackServers::start`].
    pub fn start_of(sizes: &[u64], lease: Duration) -> Result<LoopbackServers, FabricError> {
        let start = |(number, bytes): (u16, &u64)| {
            let config = MemoryServerConfig {
                server: ServerId(number),
                servers: sizes.len(),
                lease,
                ..MemoryServerConfig::default()
            };
            let region = Region::anonymous(*bytes, HugePages::No)?;
            let server = MemoryServer::start_over(config, region)?;
            for (id, service) in Engine::services(1) {
                server.serve(id, service);
            }
            Ok(server)
        };
        (0..).zip(sizes).map(start).collect::<Result<_, _>>().map(LoopbackServers)
    }

    /// The addresses at which they listen.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.0.iter().map(MemoryServer::address).collect()
    }

    /// The address of the pool: `tcp://127.0.0.1:7000,127.0.0.1:7001`.
    pub fn uri(&self) -> String {
        let addresses: Vec<_> = self.addresses().iter().map(SocketAddr::to_string).collect();
        format!("tcp://{}", addresses.join(","))
    }

    /// The configuration of a compute server that connects to them without TLS.
    pub fn tcp(&self) -> TcpConfig {
        TcpConfig::to(self.addresses())
    }
}
