//! A run on mapped memory: real threads, real time.

use std::{sync::Arc, thread};

use farleaf_fabric::{
    Endpoint, Fabric,
    mapped::{Mapped, MappedEndpoint},
};

use super::{
    Prepared, Run,
    context::Context,
    error::BenchError,
    finish,
    meet::Gate,
    prepare,
    progress::Progress,
    worker::{Duty, Outcome, Server, work},
};

/// Operations after which a client lets the other tasks of its thread go on. Waiting for memory
/// that is mapped never does that.
const YIELD_OPS: u64 = 32;

/// Runs it all.
pub(super) fn run(context: &Arc<Context>, progress: &dyn Progress) -> Result<Run, BenchError> {
    let config = &context.config;
    let fabric = Mapped::anonymous(config.memory_servers, context.region_bytes)?;
    let main = fabric.endpoint()?;
    main.seed(config.seed);
    let endpoints = vec![main.clone(); config.compute_servers];
    let prepared = main.executor().block_on(prepare(context, &endpoints, progress))?;

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
    let seen = main.executor().block_on(finish(context, &servers, &main, progress))?;
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

fn on_thread(
    context: &Arc<Context>,
    fabric: &Mapped,
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
    let duty = Duty::<MappedEndpoint> {
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
