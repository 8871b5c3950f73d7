//! Opener tests: a full member table makes openers wait, and not fail.

use std::cell::Cell;
use std::rc::Rc;

use farleaf_fabric::sim::{Sim, SimConfig};
use farleaf_fabric::{AnyEndpoint, Client, Endpoint, ToAny};

use super::simulated::{Shared, maintained_pool};
use super::{SMALL, join};
use crate::{Pool, PoolError};

/// Many more openers than entries, some of them killed while they have the pool open: each gets its turn.
#[test]
fn openers_wait_for_an_entry() {
    const OPENERS: usize = 24;
    let config = SimConfig {
        compute_servers: OPENERS + 1,
        region_bytes: 8 << 20,
        lease_ns: 1_000_000,
        ..SimConfig::seeded(3)
    };
    let sim = Sim::new(config).unwrap();
    let shared = Rc::new(Shared::default());
    let _keeper = maintained_pool(&sim, &SMALL, 200_000, &shared);
    let opened = Rc::new(Cell::new(0));
    let open = |number: usize, endpoint: AnyEndpoint| {
        let opened = Rc::clone(&opened);
        sim.spawn(number, async move {
            let client = Client::new(endpoint.clone());
            let pool = Pool::join_within(&client, 30_000_000_000).await.unwrap();
            opened.set(opened.get() + 1);
            endpoint.sleep(5_000_000).await;
            let session = pool.session(endpoint).await.unwrap();
            session.leave().await.unwrap();
        });
    };
    (1..=OPENERS).for_each(|number| open(number, sim.fabric(number).any_endpoint().unwrap()));
    for death in 0..12 {
        sim.run_until(sim.now_ns() + 3_000_000 + death * 700_000).unwrap();
        let victim = 1 + (death as usize * 7) % OPENERS;
        sim.fabric(victim).kill();
        open(victim, sim.fabric(victim).restart().any_endpoint().unwrap());
    }
    sim.run_until(sim.now_ns() + 30_000_000_000).unwrap();
    shared.stop.set(true);
    assert!(opened.get() >= OPENERS, "{} opened", opened.get());
    // Full of the living, it says so after the time that it was given.
    let others: Vec<_> = (1..=4).map(|at| sim.fabric(at).any_endpoint().unwrap()).collect();
    sim.block_on(async {
        let mut living = Vec::new();
        for end in &others[..3] {
            living.push(join(end).await);
        }
        let from_ns = others[3].now_ns();
        let none = Pool::join_within(&Client::new(others[3].clone()), 100_000_000).await;
        assert_eq!(none.unwrap_err(), PoolError::NoSlot("member", 4));
        let waited_ns = others[3].now_ns() - from_ns;
        assert!((100_000_000..200_000_000).contains(&waited_ns), "{waited_ns} ns");
        drop(living);
    })
    .unwrap();
}
