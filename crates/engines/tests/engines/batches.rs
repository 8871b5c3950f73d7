//! Batch tests: operations of one client that run at once do not hold each other up.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::common::{World, check, growing_engines};
use farleaf_engines::{AnyIndex, Engine, TableFormat};
use farleaf_fabric::{Cost, Endpoint};
use farleaf_harness::simulate_pool;
use farleaf_index::{Index, OpenOptions};
use farleaf_pool::PoolOptions;

const KEYS: u64 = 480;

/// Time and remote operations of the inserts of a run.
#[derive(Clone, Copy, Debug)]
struct Took {
    ns: u64,
    /// The longest of an insert.
    insert_ns: u64,
    cost: Cost,
}

/// Inserts of keys in their order by one compute server, so many of them at once.
fn in_order(engine: Engine, at_once: u32) -> Took {
    let options = PoolOptions { clients_max: 128, ..World::default().pool_options() };
    let (sim, session) = simulate_pool(World::default().sim_config(), &options).expect("a pool");
    sim.block_on(async {
        let format = TableFormat::fixed8(engine);
        let root = AnyIndex::create(&session, "t", &format).await.expect("create");
        let index = AnyIndex::open(&session, &root, &OpenOptions::default()).await.expect("open");
        let index = Rc::new(index);
        let (next, left) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(at_once)));
        let mut sessions = Vec::new();
        for _ in 0..at_once {
            let endpoint = session.endpoint().clone();
            sessions.push(session.pool().session(endpoint).await.expect("session"));
        }
        let before = session.endpoint().counters().snapshot();
        let begun_ns = session.endpoint().now_ns();
        let longest = Rc::new(RefCell::new(0));
        for own in sessions {
            let (index, next, left) = (index.clone(), next.clone(), left.clone());
            let longest = longest.clone();
            session.endpoint().spawn(async move {
                while next.get() < KEYS {
                    let key: u64 = next.replace(next.get() + 1);
                    let begun_ns = own.endpoint().now_ns();
                    let done = index.insert(&own, &key.to_be_bytes(), &[1; 8]).await;
                    assert_eq!(done, Ok(true), "{engine}, {at_once} at once, key {key}");
                    let took_ns = own.endpoint().now_ns() - begun_ns;
                    longest.replace_with(|most| took_ns.max(*most));
                    own.tick_if_due().await.expect("tick");
                }
                left.set(left.get() - 1);
            });
        }
        while left.get() > 0 {
            session.endpoint().sleep(1_000).await;
        }
        let ns = session.endpoint().now_ns() - begun_ns;
        let cost = session.endpoint().counters().snapshot().since(&before).total();
        assert_eq!(check(&session, &[&*index]).await.keys, KEYS);
        Took { ns, insert_ns: *longest.borrow(), cost }
    })
    .expect("the simulation ends")
}

/// Inserts of one batch, which all go the same way, took each other's locks away, and waited longer and longer: a batch
/// of 64 took ten times as long as one by one, and its last operations gave up.
#[test]
fn a_batch_of_ordered_inserts_is_no_slower_than_one_by_one() {
    let mut slow = Vec::new();
    for engine in growing_engines() {
        let alone = in_order(engine, 1);
        for at_once in [1, 16, 64] {
            let took = in_order(engine, at_once);
            let Cost { reads, writes, cas, round_trips, .. } = took.cost;
            println!(
                "{engine}, {at_once} at once: {} us, an insert up to {} us; {reads} READ, {writes} WRITE, {cas} CAS, \
                 {round_trips} trips",
                took.ns / 1_000,
                took.insert_ns / 1_000,
            );
            // Those whose inserts take no locks try one unused slot after the other, all of a batch the same ones.
            // Splits of hopscotch leaves wait for two locks.
            let percent = match engine {
                Engine::Smart | Engine::PSmart => 200,
                Engine::Chime => 105,
                _ => 100,
            };
            if 100 * took.ns > percent * alone.ns {
                slow.push((engine, at_once, took.ns, alone.ns));
            }
        }
    }
    assert!(slow.is_empty(), "slower than one by one: {slow:?}");
}
