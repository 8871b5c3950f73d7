//! Simulated run: one real thread in virtual time, the same again from the same seed.

use std::sync::{Arc, atomic::AtomicBool};

use farleaf_fabric::{
    AnyEndpoint, Capabilities, Endpoint, Fabric, ListenConfig, ToAny,
    mapped::{Mapped, REGION_BYTES_MIN},
    sim::{AdversaryConfig, NicConfig, OpRecord, RpcConfig, Sim, SimConfig},
};
use farleaf_harness::simulate;

use super::{
    Run,
    context::Context,
    error::BenchError,
    meet::PhaseBarrier,
    progress::Progress,
    route::{Owners, Router},
    table::{self, Loaded},
    worker::{Duty, Outcome, ServingThread, StopOnDrop, work},
};
use crate::{
    config::{BenchConfig, CapabilityKind, CardModel},
    report::BusiestCard,
};

/// Results that only a simulation has.
#[derive(Clone, Debug)]
pub(super) struct AboutSim {
    /// Events and effects of the whole run, hashed.
    pub(super) trace_hash: u64,
    /// Events.
    pub(super) events: u64,
    /// Remote operations.
    pub(super) remote_ops: u64,
    /// The part of a card that was in use for longest in the run phase.
    pub(super) busiest_card: Option<BusiestCard>,
}

/// Runs the bench in the simulator.
pub(super) fn run(context: &Arc<Context>, progress: &dyn Progress) -> Result<Run, BenchError> {
    let sim = simulate(cluster(&context.config, context.region_bytes)?)?;
    run_in(&sim, context, progress)
}

/// As [`run`]; also returns every remote operation, the newest million of them.
pub(super) fn run_recorded(
    context: &Arc<Context>,
    progress: &dyn Progress,
) -> Result<(Run, Vec<OpRecord>), BenchError> {
    let recording = SimConfig { record: true, ..cluster(&context.config, context.region_bytes)? };
    let sim = simulate(recording)?;
    let run = run_in(&sim, context, progress)?;
    Ok((run, sim.recorded()))
}

fn run_in(sim: &Sim, context: &Arc<Context>, progress: &dyn Progress) -> Result<Run, BenchError> {
    let config = &context.config;
    // One endpoint for each worker thread; thread t works for compute server t % servers.
    let computes = config.compute_servers;
    let endpoints = (0..config.threads)
        .map(|thread| sim.fabric(thread % computes).endpoint_on(thread / computes).map(Into::into))
        .collect::<Result<Vec<AnyEndpoint>, _>>()?;
    let home = &endpoints[0];
    let barrier = PhaseBarrier::new(1);
    let cards = || sim.card_use();
    let (loaded, servers, outcome, seen) = sim.block_on(async {
        let stop = Arc::new(AtomicBool::new(false));
        let _stop = StopOnDrop(Arc::clone(&stop));
        let expose = |number: usize| {
            let fabric = sim.fabric(number);
            move |own, bytes| fabric.expose(own, bytes, &ListenConfig::default())
        };
        let loaded = Loaded::make(context, home, expose(0), progress).await?;
        let mut servers = Vec::with_capacity(computes);
        for (number, endpoint) in endpoints[..computes].iter().enumerate() {
            let opened = loaded.open(context, endpoint, number, expose(number)).await?;
            let ticks = table::tick_partitions(opened.clone(), endpoint.clone(), Arc::clone(&stop));
            endpoint.spawn(ticks);
            servers.push(opened);
        }
        let owners = context.routes.then(|| Owners::new(loaded.shared_bounds(), computes));
        let client = |number: usize| {
            let endpoint = endpoints[number % endpoints.len()].clone();
            (number, servers[number % computes].clone(), endpoint)
        };
        let serves = |(thread, endpoint): (usize, &AnyEndpoint)| ServingThread {
            server: servers[thread % computes].clone(),
            endpoint: endpoint.clone(),
        };
        let duty = Duty {
            clients: (0..config.clients).map(client).collect(),
            serving: endpoints.iter().enumerate().map(serves).collect(),
            servers: servers.clone(),
            router: owners.map(|owners| Arc::new(Router::new(owners, computes))),
            yield_ops: 0,
            leads: true,
            cards: Some(&cards),
        };
        let outcome = work(context, home, duty, &barrier, progress).await?;
        let mut seen = None;
        if config.verify {
            for (server, endpoint) in servers.iter().zip(&endpoints) {
                table::settle(server, endpoint).await?;
            }
            seen = Some(table::verify(&servers[0], home, progress).await?);
        }
        Ok::<_, BenchError>((loaded, servers, outcome, seen))
    })??;
    let about_sim = AboutSim {
        trace_hash: sim.trace_hash(),
        events: sim.events(),
        remote_ops: sim.ops(),
        busiest_card: busiest(sim.config(), &outcome),
    };
    Ok(Run {
        outcome,
        loaded,
        servers,
        seen,
        capabilities: home.capabilities(),
        about_sim: Some(about_sim),
    })
}

/// The part of a card that was in use for longest in the run phase.
fn busiest(config: &SimConfig, outcome: &Outcome) -> Option<BusiestCard> {
    let parts = outcome.cards.iter().enumerate().map(|(place, used)| {
        let (server, card) = match place.checked_sub(config.memory_servers) {
            None => (format!("memory server {place}"), &config.memory_nic),
            Some(compute) => (format!("compute server {compute}"), &config.compute_nic),
        };
        let (part, share) = used.busiest(card, outcome.run_ns);
        BusiestCard { server, part: part.to_owned(), share }
    });
    parts.max_by(|one, other| one.share.total_cmp(&other.share))
}

fn cluster(config: &BenchConfig, region_bytes: u64) -> Result<SimConfig, BenchError> {
    let mut capabilities = match config.capabilities {
        CapabilityKind::None => Capabilities::NONE,
        CapabilityKind::Mapped => {
            Mapped::anonymous(1, REGION_BYTES_MIN)?.any_endpoint()?.capabilities()
        }
        CapabilityKind::WriteRmw => Capabilities { write_vs_rmw: true, ..Capabilities::NONE },
    };
    let offload = config.settings.get("offload").unwrap_or("never");
    let offloads = config.engine.traits().offloads && offload != "never";
    // Threads that serve offloaded requests must see the memory that others have written.
    capabilities.cpu_visible |= offloads;
    let threads = config.parts.memory_threads.unwrap_or(RpcConfig::default().threads);
    let torn = if config.torn { 1.0 } else { 0.0 };
    let nic = config.card_model.map_or_else(NicConfig::default, nic);
    Ok(SimConfig {
        memory_nic: nic.clone(),
        compute_nic: nic,
        memory_servers: config.memory_servers,
        compute_servers: config.compute_servers,
        threads: config.threads / config.compute_servers,
        region_bytes,
        rpc: RpcConfig { threads, ..RpcConfig::default() },
        adversary: AdversaryConfig { torn, ..AdversaryConfig::default() },
        capabilities,
        ..SimConfig::seeded(config.seed)
    })
}

fn nic(model: CardModel) -> NicConfig {
    let CardModel { ops_per_s, atomics_per_s } = model;
    NicConfig {
        in_ops_per_s: ops_per_s,
        out_ops_per_s: ops_per_s,
        atomics_per_s,
        ..NicConfig::default()
    }
}
