//! Cost tests: count what retiring and freeing costs in the steady state.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use farleaf_fabric::sim::{Sim, SimConfig};
use farleaf_fabric::{AnyEndpoint, Client, Endpoint, GlobalAddr, OpKind, Snapshot, ToAny};

use crate::{Pool, PoolOptions, Session, format};

const COMPUTE: usize = 3;
const LEAVES: usize = 3_000;
const LEAF_BYTES: usize = 64;
const UPDATES: usize = 6_000;
const OPTIONS: PoolOptions = PoolOptions {
    block_bytes: 256 << 10,
    clients_max: 16,
    members_max: 8,
    tables_max: 4,
    redo_bytes: 4096,
};

/// The leaves of all compute servers, and whether they count already.
struct Shared {
    leaves: RefCell<Vec<GlobalAddr>>,
    ready: Cell<usize>,
    counted_from: Cell<usize>,
    done: Cell<usize>,
}

async fn update(endpoint: AnyEndpoint, compute: usize, shared: Rc<Shared>) {
    let pool = Pool::join(&Client::new(endpoint.clone())).await.unwrap();
    let session: Session = pool.session(endpoint).await.unwrap();
    for at in (0..LEAVES).filter(|at| at % COMPUTE == compute) {
        let pinned = session.begin(OpKind::Insert).await.unwrap();
        let leaf = session.alloc(session.place(), LEAF_BYTES).await.unwrap();
        shared.leaves.borrow_mut()[at] = leaf;
        drop(pinned);
    }
    shared.ready.set(shared.ready.get() + 1);
    for number in 0..2 * UPDATES {
        while shared.ready.get() < COMPUTE || number == UPDATES && !is_warm(&shared) {
            session.tick().await.unwrap();
            session.endpoint().sleep(10_000).await;
        }
        let pinned = session.begin(OpKind::Update).await.unwrap();
        let leaf = session.alloc(session.place(), LEAF_BYTES).await.unwrap();
        // As long as the round trips of an update.
        session.endpoint().sleep(6_000).await;
        let at = session.endpoint().random() as usize % LEAVES;
        let old = std::mem::replace(&mut shared.leaves.borrow_mut()[at], leaf);
        let retiring = session.prepare_retire(old).await.unwrap();
        session.retire(retiring);
        drop(pinned);
        if number % 32 == 31 {
            session.tick().await.unwrap();
        }
        if number + 1 == UPDATES {
            shared.counted_from.set(shared.counted_from.get() + 1);
        }
    }
    shared.done.set(shared.done.get() + 1);
    while shared.done.get() < COMPUTE {
        session.tick().await.unwrap();
        session.endpoint().sleep(10_000).await;
    }
}

fn is_warm(shared: &Shared) -> bool {
    shared.counted_from.get() == COMPUTE
}

/// Each update takes a new leaf and retires one of any compute server's, and every 32nd is followed by a
/// tick: all that this costs, ticks and looks for free memory included.
#[test]
fn retiring_and_freeing_a_leaf_costs_at_most_1_2_operations() {
    let config = SimConfig {
        seed: 7,
        compute_servers: COMPUTE,
        memory_servers: 3,
        region_bytes: 8 << 20,
        ..SimConfig::default()
    };
    let sim = Sim::new(config).unwrap();
    let first = sim.fabric(0).any_endpoint().unwrap();
    sim.block_on(async move { format(&Client::new(first), &OPTIONS).await.unwrap() }).unwrap();
    let shared = Rc::new(Shared {
        leaves: RefCell::new(vec![GlobalAddr::default(); LEAVES]),
        ready: Cell::new(0),
        counted_from: Cell::new(0),
        done: Cell::new(0),
    });
    let mut counters = Vec::new();
    for compute in 0..COMPUTE {
        let endpoint = sim.fabric(compute).any_endpoint().unwrap();
        counters.push(endpoint.counters().clone());
        sim.spawn(compute, update(endpoint, compute, Rc::clone(&shared)));
    }
    while !is_warm(&shared) {
        sim.run_until(sim.now_ns() + 100_000).unwrap();
    }
    let before = Snapshot::of(&counters);
    sim.run().unwrap();
    let cost = Snapshot::of(&counters).since(&before).total();
    let each = cost.verbs() as f64 / (COMPUTE * UPDATES) as f64;
    println!("{each:.2} operations for each update: {cost:?}");
    assert!(each <= 1.2, "{each:.2} operations for each update: {cost:?}");
}
