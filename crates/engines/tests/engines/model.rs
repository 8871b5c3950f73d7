//! Model tests: every engine on every fabric against `BTreeMap`, one session, tiny nodes.

use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};

use farleaf_engines::{AnyIndex, TableFormat};
use farleaf_harness::depth;
use farleaf_pool::Session;

use crate::common::model::Run;
use crate::common::{Suite, World, create, grows};

/// Of a new table.
async fn run(session: Session, format: TableFormat, seed: u64, space: u64) -> Run<AnyIndex> {
    let index = create(&session, "t", &format).await;
    Run::new(session, index, format, seed, space, |_| Vec::new())
}

async fn random_operations(session: Session, format: TableFormat, seed: u64, steps: usize) {
    match grows(format.engine) {
        true => run(session, format, seed, 300).await.random_operations(steps).await,
        false => run(session, format, seed, 24).await.random_operations(steps / WHOLE).await,
    }
}

async fn bulk_then_random(session: Session, format: TableFormat, seed: u64) {
    match grows(format.engine) {
        true => run(session, format, seed, 2_000).await.bulk_then_random(1_500, 1_500).await,
        false => run(session, format, seed, 80).await.bulk_then_random(60, 1_500 / WHOLE).await,
    }
}

/// The longest test of all: each processor takes the next format until there is none.
#[test]
#[allow(
    clippy::disallowed_methods,
    reason = "each thread has pools of its own, which follow from their seeds"
)]
fn random_operations_on_mapped() {
    let formats = Suite::RandomOnMapped.formats();
    let next = AtomicUsize::new(0);
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            let Some((name, format)) = formats.get(seed).cloned() else { return };
            println!("{name}");
            let steps = steps(&format, STEPS_MAPPED);
            World::default()
                .on_mapped(|session| random_operations(session, format, seed as u64, steps));
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, NonZero::get) {
            scope.spawn(work);
        }
    });
}

#[test]
fn random_operations_on_sim() {
    for (seed, (name, format)) in Suite::RandomOnSim.formats().into_iter().enumerate() {
        println!("{name}");
        let steps = steps(&format, STEPS_SIM);
        World::default()
            .on_sim(move |session| random_operations(session, format, seed as u64, steps));
    }
}

#[test]
fn random_operations_on_tcp() {
    for (seed, (name, format)) in Suite::RandomOnTcp.formats().into_iter().enumerate() {
        println!("{name}");
        World::default().on_tcp(|session| {
            random_operations(session, format, seed as u64, steps(&format, STEPS_TCP))
        });
    }
}

#[test]
fn bulk_load_on_mapped() {
    for (seed, (name, format)) in Suite::BulkOnMapped.formats().into_iter().enumerate() {
        println!("{name}");
        World::default().on_mapped(|session| bulk_then_random(session, format, seed as u64));
    }
}

#[test]
fn bulk_load_on_sim() {
    for (seed, (name, format)) in Suite::BulkOnSim.formats().into_iter().enumerate() {
        println!("{name}");
        World::default().on_sim(move |session| bulk_then_random(session, format, seed as u64));
    }
}

/// An engine that does not split copies its whole table for each change: it gets so many times fewer steps.
const WHOLE: usize = 20;
/// An engine that goes short gets so many times fewer steps.
const SHORT: usize = 10;

fn steps(format: &TableFormat, steps: usize) -> usize {
    depth(format.engine).pick(steps / SHORT, steps)
}

/// Steps per format; an engine has seven and more.
const STEPS_MAPPED: usize = 240_000;
const STEPS_SIM: usize = 60_000;
/// Each is some round trips through the system.
const STEPS_TCP: usize = 1_200;

/// `make verbs` runs it where there is a device.
#[test]
fn random_operations_on_verbs() {
    use std::sync::Arc;

    use farleaf_fabric::tcp::MemoryServerConfig;
    use farleaf_fabric::verbs::{CardConfig, Verbs, VerbsConfig, VerbsServer, devices};
    use farleaf_fabric::{ServerId, ToAny, Words};

    if !devices().is_ok_and(|names| !names.is_empty()) {
        eprintln!("random_operations_on_verbs: skipped: no RDMA device; `make verbs` runs it");
        return;
    }
    let world = World { region_bytes: 16 << 20, ..World::default() };
    for (seed, (name, format)) in Suite::RandomOnTcp.formats().into_iter().enumerate() {
        println!("{name}");
        let servers: Vec<VerbsServer> = (0..world.servers)
            .map(|server| {
                let words = Words::anonymous((world.region_bytes / 8) as usize).expect("memory");
                let server = ServerId(server as u16);
                let config =
                    MemoryServerConfig { server, servers: world.servers, ..Default::default() };
                VerbsServer::start(config, &CardConfig::default(), Arc::new(words))
                    .expect("a memory server")
            })
            .collect();
        let config = VerbsConfig::to(servers.iter().map(VerbsServer::address));
        let endpoint = Verbs::connect(config).expect("connected").any_endpoint().expect("endpoint");
        let executor = endpoint.executor().clone();
        executor.block_on(async {
            let session = crate::common::start(endpoint, &world.pool_options()).await;
            random_operations(session, format, seed as u64, STEPS_TCP / 2).await;
        });
    }
}
