//! World: a cluster with a pool, on any fabric.

use farleaf_engines::Engine;
use farleaf_fabric::mapped::Mapped;
use farleaf_fabric::sim::{Sim, SimConfig};
use farleaf_fabric::tcp::Tcp;
use farleaf_fabric::{AnyEndpoint, Fabric, FabricError, ToAny};
use farleaf_pool::{PoolOptions, Session};

use crate::{HarnessError, LoopbackServers, make_pool};

/// A simulated cluster whose memory servers run the services of all engines.
///
/// # Errors
/// As [`Sim::new`].
pub fn simulate(config: SimConfig) -> Result<Sim, FabricError> {
    let sim = Sim::new(config)?;
    for (id, service) in Engine::services(1) {
        sim.fabric(0).serve(id, service);
    }
    Ok(sim)
}

/// A simulated cluster with a formatted pool, in which compute server 0 has one session.
///
/// # Errors
/// Any failure.
pub fn simulate_pool(
    config: SimConfig,
    options: &PoolOptions,
) -> Result<(Sim, Session), HarnessError> {
    let sim = simulate(config)?;
    let endpoint = sim.fabric(0).any_endpoint()?;
    let session = sim.block_on(make_pool(endpoint, options))??;
    Ok((sim, session))
}

/// A cluster with a pool, and the seed of all random choices in it.
#[derive(Clone, Copy, Debug)]
pub struct World {
    /// Memory servers.
    pub servers: usize,
    /// Bytes of each memory server.
    pub region_bytes: u64,
    /// Bytes of a block of the pool.
    pub block_bytes: u64,
    /// The seed.
    pub seed: u64,
}

impl Default for World {
    fn default() -> Self {
        World { servers: 2, region_bytes: 32 << 20, block_bytes: 256 << 10, seed: 1 }
    }
}

impl World {
    /// The options with which it formats its pool.
    pub fn pool_options(&self) -> PoolOptions {
        PoolOptions { block_bytes: self.block_bytes, clients_max: 64, ..PoolOptions::default() }
    }

    /// The cluster in the simulator, with one compute server and without faults.
    pub fn sim_config(&self) -> SimConfig {
        SimConfig {
            seed: self.seed,
            memory_servers: self.servers,
            region_bytes: self.region_bytes,
            ..SimConfig::default()
        }
    }

    /// Runs `test` with one session on mapped memory. Here and in the other two, the pool overwrites freed objects, so
    /// that a stale read shows.
    ///
    /// # Panics
    /// If the cluster or its pool cannot be made; in the other two as well.
    pub fn on_mapped<T>(&self, test: impl AsyncFnOnce(Session) -> T) -> T {
        self.on_mapped_of(&vec![self.region_bytes; self.servers], test)
    }

    /// As [`World::on_mapped`], on memory servers of these sizes.
    pub fn on_mapped_of<T>(&self, sizes: &[u64], test: impl AsyncFnOnce(Session) -> T) -> T {
        let fabric = Mapped::anonymous_of(sizes).expect("memory");
        for (id, service) in Engine::services(1) {
            fabric.serve(id, service);
        }
        self.on(fabric.any_endpoint().expect("an endpoint"), test)
    }

    /// Runs `test` with one session on memory servers of this process, over loopback.
    pub fn on_tcp<T>(&self, test: impl AsyncFnOnce(Session) -> T) -> T {
        let (servers, bytes) = (self.servers, self.region_bytes);
        let servers = LoopbackServers::start(servers, bytes, LoopbackServers::LEASE_LONG);
        let servers = servers.expect("memory servers");
        let fabric = Tcp::connect(servers.tcp()).expect("a connection");
        self.on(fabric.any_endpoint().expect("an endpoint"), test)
    }

    /// Runs `test` with one session in the simulator, with READs and WRITEs torn. Handlers of memory servers see
    /// completed operations.
    pub fn on_sim<T>(&self, test: impl AsyncFnOnce(Session) -> T) -> T {
        let mut config = self.sim_config();
        config.adversary.torn = 0.5;
        config.capabilities.cpu_visible = true;
        self.on_sim_with(config, test)
    }

    /// As [`World::on_sim`], on a cluster that `config` describes.
    pub fn on_sim_with<T>(&self, config: SimConfig, test: impl AsyncFnOnce(Session) -> T) -> T {
        let (sim, session) = simulate_pool(config, &self.pool_options()).expect("a pool");
        session.pool().poison_freed();
        sim.block_on(test(session)).expect("the simulation ends")
    }

    /// Runs `test` on an endpoint in real time.
    fn on<T>(&self, endpoint: AnyEndpoint, test: impl AsyncFnOnce(Session) -> T) -> T {
        endpoint.seed(self.seed);
        let executor = endpoint.executor().clone();
        executor.block_on(async {
            let session = make_pool(endpoint, &self.pool_options()).await.expect("a pool");
            session.pool().poison_freed();
            test(session).await
        })
    }
}
