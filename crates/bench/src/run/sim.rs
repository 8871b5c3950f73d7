//! A run in the simulator: one real thread, virtual time, the same again from the same seed.

use std::sync::Arc;

use farleaf_fabric::{
    Capabilities, Endpoint, Fabric,
    mapped::{Mapped, REGION_BYTES_MIN},
    sim::{AdversaryConfig, Sim, SimConfig, SimEndpoint},
};

use super::{
    Run,
    context::Context,
    error::BenchError,
    finish,
    meet::Gate,
    prepare,
    progress::Progress,
    worker::{Duty, work},
};
use crate::config::{BenchConfig, CapabilityKind};

/// What only a simulation can tell.
#[derive(Clone, Copy, Debug)]
pub(super) struct AboutSim {
    /// Events and effects of the whole run, hashed.
    pub(super) trace_hash: u64,
    /// Events.
    pub(super) events: u64,
    /// Remote operations.
    pub(super) remote_ops: u64,
}

/// Runs it all.
pub(super) fn run(context: &Arc<Context>, progress: &dyn Progress) -> Result<Run, BenchError> {
    let config = &context.config;
    let sim = Sim::new(cluster(config, context.region_bytes)?)?;
    // One endpoint for each worker thread; thread t works for compute server t % servers.
    let computes = config.compute_servers;
    let endpoints = (0..config.threads)
        .map(|thread| sim.fabric(thread % computes).endpoint_on(thread / computes))
        .collect::<Result<Vec<SimEndpoint>, _>>()?;
    let home = &endpoints[0];
    let gate = Gate::new(1);
    let (prepared, outcome, seen) = sim.block_on(async {
        let prepared = prepare(context, &endpoints[..computes], progress).await?;
        let servers = &prepared.servers;
        let seat = |number: usize| {
            let endpoint = endpoints[number % endpoints.len()].clone();
            (number, servers[number % computes].clone(), endpoint)
        };
        let duty =
            Duty { clients: (0..config.clients).map(seat).collect(), yield_ops: 0, leads: true };
        let outcome = work(context, home, duty, &gate, progress).await?;
        let seen = finish(context, servers, home, progress).await?;
        Ok::<_, BenchError>((prepared, outcome, seen))
    })??;
    let about_sim =
        AboutSim { trace_hash: sim.trace_hash(), events: sim.events(), remote_ops: sim.ops() };
    Ok(Run {
        outcome,
        load: prepared.load,
        data_bytes: prepared.data_bytes,
        servers: prepared.servers,
        seen,
        capabilities: home.capabilities(),
        about_sim: Some(about_sim),
    })
}

fn cluster(config: &BenchConfig, region_bytes: u64) -> Result<SimConfig, BenchError> {
    let capabilities = match config.capabilities {
        CapabilityKind::None => Capabilities::NONE,
        CapabilityKind::Mapped => {
            Mapped::anonymous(1, REGION_BYTES_MIN)?.endpoint()?.capabilities()
        }
    };
    let torn = if config.torn { 1.0 } else { 0.0 };
    Ok(SimConfig {
        memory_servers: config.memory_servers,
        compute_servers: config.compute_servers,
        threads: config.threads / config.compute_servers,
        region_bytes,
        adversary: AdversaryConfig { torn, ..AdversaryConfig::default() },
        capabilities,
        ..SimConfig::seeded(config.seed)
    })
}
