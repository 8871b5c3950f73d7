//! Real run: runs on mapped memory, over TCP or by RDMA, with real threads in real time.

use std::{
    sync::{Arc, atomic::AtomicBool},
    thread,
};

use farleaf_fabric::{
    AnyEndpoint, AnyFabric, Capabilities, Endpoint, Fabric, FabricError, ListenConfig, ServerId,
    mapped::Mapped, tcp::TcpConfig,
};

use farleaf_engines::Engine;
use farleaf_index::{Index, TableReport};

use super::{
    Run,
    context::Context,
    error::BenchError,
    meet::PhaseBarrier,
    progress::Progress,
    route::{Bounds, Owners, Router},
    table::{self, Loaded, Server},
    worker::{Duty, Outcome, ServingThread, StopOnDrop, work},
};
use crate::config::BenchConfig;

/// Operations after which a client yields to the other tasks of its thread. Waiting for mapped
/// memory never yields.
const YIELD_OPS: u64 = 32;

/// Runs the bench in memory of this process.
pub(super) fn on_mapped(
    context: &Arc<Context>,
    progress: &dyn Progress,
) -> Result<Run, BenchError> {
    let first = Mapped::anonymous(context.config.memory_servers, context.region_bytes)?;
    for (id, service) in Engine::services(1) {
        first.serve(id, service);
    }
    let others = (1..context.config.compute_servers).map(|_| first.beside()).collect::<Vec<_>>();
    let mut fabrics = vec![AnyFabric::Mapped(first)];
    for other in others {
        fabrics.push(AnyFabric::Mapped(other?));
    }
    run(context, &fabrics, progress)
}

/// Runs the bench on the memory servers of the configuration, to which `connect` connects a compute
/// server. Returns the settings that the memory servers have decided as well.
pub(super) fn on_network(
    config: &BenchConfig,
    connect: impl Fn(TcpConfig) -> Result<AnyFabric, FabricError>,
    progress: &dyn Progress,
) -> Result<(Run, Arc<Context>, AnyFabric), BenchError> {
    // Before a wrong configuration costs a connection for each server.
    config.validate()?;
    let addresses = config.cluster.as_ref().ok_or(BenchError::NoCluster)?.addresses();
    let tcp = TcpConfig { tls: config.tls.clone(), ..TcpConfig::to(addresses.iter().copied()) };
    let connect = |_| connect(tcp.clone());
    let fabrics = (0..config.compute_servers).map(connect).collect::<Result<Vec<_>, _>>()?;
    let least = {
        let main = fabrics[0].endpoint()?;
        let servers = 0..addresses.len() as u16;
        servers.map(|server| main.region_bytes(ServerId(server))).min().unwrap_or(0)
    };
    let context = Context::new(&BenchConfig {
        memory_servers: addresses.len(),
        pool_bytes: Some(least * addresses.len() as u64),
        ..config.clone()
    })?;
    let run = run(&context, &fabrics, progress)?;
    Ok((run, context, fabrics[0].clone()))
}

/// Runs the bench on a fabric whose tasks run on executors of their own; `fabrics` has one for each
/// compute server.
fn run(
    context: &Arc<Context>,
    fabrics: &[AnyFabric],
    progress: &dyn Progress,
) -> Result<Run, BenchError> {
    let mut mains = Vec::with_capacity(fabrics.len());
    for fabric in fabrics {
        let main = fabric.endpoint()?;
        main.seed(context.config.seed);
        mains.push(main);
    }
    let first = &mains[0];
    let listen = ListenConfig { tls: context.config.tls.clone(), ..Default::default() };
    let expose = |number: usize| {
        let (fabric, listen) = (&fabrics[number], &listen);
        move |own, bytes| fabric.expose(own, bytes, listen)
    };
    let loaded = first.executor().block_on(Loaded::make(context, first, expose(0), progress))?;
    let mut servers = Vec::with_capacity(mains.len());
    let mut run = thread::scope(|scope| {
        let stop = Arc::new(AtomicBool::new(false));
        let _stop = StopOnDrop(Arc::clone(&stop));
        for (number, main) in mains.iter().enumerate() {
            let opening = loaded.open(context, main, number, expose(number));
            let opened = main.executor().block_on(opening)?;
            if opened.index.partitions().is_some() {
                // Others that open the table wait for this compute server to learn of their partitions.
                let (server, stop) = (opened.clone(), Arc::clone(&stop));
                let fabric = &fabrics[number];
                scope.spawn(move || {
                    // Without an endpoint here the threads of the run have none either, and say so.
                    let Ok(endpoint) = fabric.endpoint() else { return };
                    let ticks = table::tick_partitions(server, endpoint.clone(), stop);
                    endpoint.executor().block_on(ticks);
                });
            }
            servers.push(opened);
        }
        let bounds = loaded.shared_bounds();
        let outcome = run_phases(context, fabrics, &servers, bounds, progress)?;
        let seen = context.config.verify.then(|| verify(&servers, &mains, progress));
        Ok::<_, BenchError>((outcome, seen.transpose()?))
    });
    if context.config.shares_pool() {
        // Even after a failure, which takes precedence over an error here.
        let cleared = clear(&servers, &mains);
        run = run.and_then(|run| cleared.map(|()| run));
    }
    let (outcome, seen) = run?;
    let capabilities: Capabilities = first.capabilities();
    Ok(Run { outcome, loaded, servers, seen, capabilities, about_sim: None })
}

fn verify(
    servers: &[Server],
    mains: &[AnyEndpoint],
    progress: &dyn Progress,
) -> Result<TableReport, BenchError> {
    for (server, main) in servers.iter().zip(mains) {
        main.executor().block_on(table::settle(server, main))?;
    }
    mains[0].executor().block_on(table::verify(&servers[0], &mains[0], progress))
}

fn clear(servers: &[Server], mains: &[AnyEndpoint]) -> Result<(), BenchError> {
    for (server, main) in servers.iter().zip(mains) {
        main.executor().block_on(table::close(server, main))?;
    }
    mains[0].executor().block_on(table::clear(&mains[0]))
}

fn run_phases(
    context: &Arc<Context>,
    fabrics: &[AnyFabric],
    servers: &[Server],
    bounds: Bounds,
    progress: &dyn Progress,
) -> Result<Outcome, BenchError> {
    let config = &context.config;
    let barrier = PhaseBarrier::new(config.threads);
    let owners = context.routes.then(|| Owners::new(bounds, servers.len()));
    let router = owners.map(|owners| Arc::new(Router::new(owners, servers.len())));
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for index in 0..config.threads {
            let fabric = fabrics[index % fabrics.len()].clone();
            let (barrier, router) = (&barrier, router.clone());
            let body =
                move || on_thread(context, &fabric, servers, index, barrier, router, progress);
            let spawned = thread::Builder::new()
                .name(format!("bench-{index}"))
                .spawn_scoped(scope, body)
                .map_err(BenchError::Thread);
            match spawned {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    // The others wait at the barrier for this one.
                    drop(barrier.promise());
                    return Err(error);
                }
            }
        }
        join(threads)
    })
}

fn on_thread(
    context: &Arc<Context>,
    fabric: &AnyFabric,
    servers: &[Server],
    index: usize,
    barrier: &PhaseBarrier,
    router: Option<Arc<Router>>,
    progress: &dyn Progress,
) -> Result<Outcome, BenchError> {
    let promise = barrier.promise();
    let config = &context.config;
    let home = fabric.endpoint()?;
    home.seed(config.seed ^ (index as u64 + 1) << 32);
    let client = |number: usize| (number, servers[number % servers.len()].clone(), home.clone());
    // Threads and clients are multiples of compute servers: a thread has clients of one only.
    let own = servers[index % servers.len()].clone();
    let duty = Duty {
        clients: (index..config.clients).step_by(config.threads).map(client).collect(),
        serving: vec![ServingThread { server: own, endpoint: home.clone() }],
        servers: servers.to_vec(),
        router,
        yield_ops: YIELD_OPS,
        leads: index == 0,
        cards: None,
    };
    let outcome = home.executor().block_on(work(context, &home, duty, barrier, progress))?;
    promise.keep();
    Ok(outcome)
}

/// Waits for all threads; returns the first error other than `Aborted`.
fn join(
    threads: Vec<thread::ScopedJoinHandle<'_, Result<Outcome, BenchError>>>,
) -> Result<Outcome, BenchError> {
    let mut sum = Outcome::default();
    let mut failure = None;
    for thread in threads {
        match thread.join() {
            Ok(Ok(outcome)) => sum.add(outcome),
            Ok(Err(error)) => {
                if matches!(failure, None | Some(BenchError::Aborted)) {
                    failure = Some(error);
                }
            }
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
    failure.map_or(Ok(sum), Err)
}
