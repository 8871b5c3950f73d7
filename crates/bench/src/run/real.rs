//! A run on mapped memory or over TCP: real threads, real time.

use std::{sync::Arc, thread};

use farleaf_fabric::{
    Endpoint, Fabric, RealTime, ServerId,
    mapped::Mapped,
    tcp::{Tcp, TcpConfig},
};

use super::{
    Prepared, Run, clear, close,
    context::Context,
    error::BenchError,
    finish,
    meet::Gate,
    prepare,
    progress::Progress,
    worker::{Duty, Outcome, Server, work},
};
use crate::config::BenchConfig;

/// Operations after which a client lets the other tasks of its thread go on. Waiting for memory
/// that is mapped never does that.
const YIELD_OPS: u64 = 32;

/// Runs it all in memory of this process.
pub(super) fn on_mapped(
    context: &Arc<Context>,
    progress: &dyn Progress,
) -> Result<Run, BenchError> {
    let fabric = Mapped::anonymous(context.config.memory_servers, context.region_bytes)?;
    run(context, &fabric, progress)
}

/// Connects to the memory servers of the configuration; their least region's bytes.
pub(super) fn connect(config: &BenchConfig) -> Result<(Tcp, u64), BenchError> {
    let addresses = config.cluster.as_ref().ok_or(BenchError::NoCluster)?.addresses();
    let tls = config.tls.clone();
    let fabric = Tcp::connect(TcpConfig { tls, ..TcpConfig::to(addresses.iter().copied()) })?;
    let main = fabric.endpoint()?;
    let servers = 0..addresses.len() as u16;
    let least = servers.map(|server| main.region_bytes(ServerId(server))).min();
    Ok((fabric, least.unwrap_or(0)))
}

/// Runs it all on a fabric whose tasks run on executors of their own.
pub(super) fn run<F>(
    context: &Arc<Context>,
    fabric: &F,
    progress: &dyn Progress,
) -> Result<Run, BenchError>
where
    F: Fabric<Endpoint: RealTime> + Send + Sync,
{
    let config = &context.config;
    let main = fabric.endpoint()?;
    main.seed(config.seed);
    let endpoints = vec![main.clone(); config.compute_servers];
    let prepared = main.executor().block_on(prepare(context, &endpoints, progress))?;
    let servers = prepared.servers.clone();
    let run = run_phases(context, fabric, &main, prepared, progress);
    if config.shares_pool() {
        // Also after a failure, which is what is told then.
        let cleared = main.executor().block_on(async {
            close(&servers, &main).await?;
            clear(&main).await
        });
        return run.and_then(|run| cleared.map(|()| run));
    }
    run
}

fn run_phases<F>(
    context: &Arc<Context>,
    fabric: &F,
    main: &F::Endpoint,
    prepared: Prepared,
    progress: &dyn Progress,
) -> Result<Run, BenchError>
where
    F: Fabric<Endpoint: RealTime> + Send + Sync,
{
    let config = &context.config;
    let gate = Gate::new(config.threads);
    let outcome = thread::scope(|scope| {
        let mut threads = Vec::new();
        for index in 0..config.threads {
            let (fabric, servers, gate) = (fabric.clone(), &prepared.servers, &gate);
            let body = move || on_thread(context, &fabric, servers, index, gate, progress);
            let spawned = thread::Builder::new()
                .name(format!("bench-{index}"))
                .spawn_scoped(scope, body)
                .map_err(BenchError::Thread);
            match spawned {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    // The others wait at the gate for this one.
                    drop(gate.promise());
                    return Err(error);
                }
            }
        }
        join(threads)
    })?;
    let Prepared { servers, load, data_bytes } = prepared;
    let seen = main.executor().block_on(finish(context, &servers, main, progress))?;
    Ok(Run {
        outcome,
        load,
        data_bytes,
        servers,
        seen,
        capabilities: main.capabilities(),
        about_sim: None,
    })
}

fn on_thread<F: Fabric<Endpoint: RealTime>>(
    context: &Arc<Context>,
    fabric: &F,
    servers: &[Server],
    index: usize,
    gate: &Gate,
    progress: &dyn Progress,
) -> Result<Outcome, BenchError> {
    let promise = gate.promise();
    let config = &context.config;
    let home = fabric.endpoint()?;
    home.seed(config.seed ^ (index as u64 + 1) << 32);
    let seat = |number: usize| (number, servers[number % servers.len()].clone(), home.clone());
    // Threads and clients are multiples of compute servers: a thread has clients of one only.
    let duty = Duty::<F::Endpoint> {
        clients: (index..config.clients).step_by(config.threads).map(seat).collect(),
        yield_ops: YIELD_OPS,
        leads: index == 0,
    };
    let outcome = home.executor().block_on(work(context, &home, duty, gate, progress))?;
    promise.keep();
    Ok(outcome)
}

/// Waits for all threads; the first error that is not another's counts.
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
