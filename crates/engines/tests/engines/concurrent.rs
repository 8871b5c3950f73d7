//! Concurrency tests: clients of several compute servers on one table in the simulator, with torn I/O.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use farleaf_engines::{AnyIndex, TableFormat, recover};
use farleaf_fabric::sim::{Sim, SimConfig};
use farleaf_fabric::{AnyEndpoint, Endpoint, ToAny};
use farleaf_index::{Index, IndexError};
use farleaf_pool::Session;

use crate::common::clients::{self, soak, sum_of_counters};
use crate::common::{
    Suite, World, audit, create, formats_of, join, key, open, settle, shared_engines, start, value,
};

const COMPUTES: usize = 3;

fn config(seed: u64) -> SimConfig {
    let mut config =
        SimConfig { compute_servers: COMPUTES, ..World { seed, ..World::default() }.sim_config() };
    config.adversary.torn = 0.5;
    config.network.jitter_ns = 1_000;
    config
}

/// A simulated cluster with a pool and an empty table; the session is of compute server 0.
fn made(seed: u64, format: &TableFormat) -> (Sim, Session, AnyIndex) {
    let sim = Sim::new(config(seed)).expect("sim");
    let options = World::default().pool_options();
    let first = sim.fabric(0).any_endpoint().expect("endpoint");
    let (session, index) = sim
        .block_on(async {
            let session = start(first, &options).await;
            let index = create(&session, "t", format).await;
            (session, index)
        })
        .expect("made");
    (sim, session, index)
}

/// Tasks of a compute server that open a table at the same time share what the first one opens. The second one was refused,
/// as its compute server took part already (found by a death within `create-table` of `dmtree`).
#[test]
fn tasks_open_a_table_at_the_same_time() {
    for (name, format) in formats_of(&shared_engines()) {
        let (sim, session, index) = made(3, &format);
        let endpoint = sim.fabric(1).any_endpoint().expect("endpoint");
        sim.block_on(async {
            index.close(&session).await.expect("close");
            let first = join(endpoint.clone()).await;
            let second = first.pool().session(endpoint).await.expect("a second session");
            let (one, other) =
                farleaf_index::join::join(open(&first, "t"), open(&second, "t")).await;
            let mut rng = fastrand::Rng::with_seed(3);
            let (key, value) = (key(&format, &mut rng, 9), value(&format, &mut rng));
            assert_eq!(one.insert(&first, &key, &value).await, Ok(true), "{name}");
            let mut found = Vec::new();
            assert_eq!(other.get(&second, &key, &mut found).await, Ok(true), "{name}");
            assert_eq!(found, value, "{name}");
            one.close(&first).await.expect("close");
        })
        .expect("the simulation ends");
    }
}

/// Keeps a compute server's epochs going until told to stop.
fn maintain(sim: &Sim, compute: usize, session: &Session, stop: &Rc<Cell<bool>>) {
    let (session, stop) = (session.clone(), Rc::clone(stop));
    sim.spawn(compute, async move {
        while !stop.get() {
            session.tick().await.expect("tick");
            session.endpoint().sleep(200_000).await;
        }
    });
}

/// Clients of all compute servers, two of each.
fn storm(seed: u64, format: TableFormat, steps: usize) -> u64 {
    let (sim, session, index) = made(seed, &format);
    let stop = Rc::new(Cell::new(false));
    let running = Rc::new(Cell::new(0));
    let added = Rc::new(Cell::new(0_u64));
    for client in 0..6_usize {
        let compute = client % COMPUTES;
        let endpoint = sim.fabric(compute).any_endpoint().expect("endpoint");
        let (index, stop, running, added) =
            (index.clone(), Rc::clone(&stop), Rc::clone(&running), Rc::clone(&added));
        running.set(running.get() + 1);
        sim.spawn(compute, async move {
            let session = join(endpoint).await;
            // Every client is a member of its own here, with its own maintenance.
            let count = clients::run(&session, &index, &format, client, seed, steps).await;
            added.set(added.get() + count);
            running.set(running.get() - 1);
            if running.get() == 0 {
                stop.set(true);
            }
            session.leave().await.expect("leave");
        });
    }
    maintain(&sim, 0, &session, &stop);
    sim.run().expect("the simulation ends");
    sim.block_on(async {
        let sum = sum_of_counters(&session, &index, &format).await;
        assert_eq!(sum, added.get(), "increments by compare-exchange are all there, once");
        settle(&session).await;
        let (_, audit) = audit(&session, &[&index]).await;
        assert_eq!(audit.problems, Vec::<String>::new());
        assert!(audit.closes(), "{audit:#?}");
    })
    .expect("checked");
    sim.trace_hash()
}

#[test]
fn clients_of_three_compute_servers_agree() {
    for round in 0..soak() {
        for (number, (name, format)) in Suite::Clients.shared_formats().into_iter().enumerate() {
            let seed = 10 + number as u64 + 1_000 * round;
            println!("{}, {name}, seed {seed}", format.engine);
            storm(seed, format, 400);
        }
    }
}

#[test]
fn the_same_seed_is_the_same_run() {
    for engine in shared_engines() {
        let format = formats_of(&[engine])[0].1;
        assert_eq!(storm(1, format, 150), storm(1, format, 150), "{engine}");
        assert_ne!(storm(1, format, 150), storm(2, format, 150), "{engine}");
    }
}

/// A compute server dies at some moment of a storm of its own changes; another goes on, takes over,
/// and finds every acknowledged change.
fn death(seed: u64, format: TableFormat, at_ns: u64) -> bool {
    let (sim, session, index) = made(seed, &format);
    let start_ns = sim.now_ns();
    // For each key of the victim: the certain value, and the value that it may hold instead.
    type Held = BTreeMap<Vec<u8>, (Option<Vec<u8>>, Option<Option<Vec<u8>>>)>;
    let held = Rc::new(RefCell::new(Held::new()));
    for client in 0..2_usize {
        let endpoint = sim.fabric(1).any_endpoint().expect("endpoint");
        let (index, held) = (index.clone(), Rc::clone(&held));
        sim.spawn(1, async move {
            let session = join(endpoint).await;
            let mut rng = fastrand::Rng::with_seed(seed * 2 + client as u64);
            loop {
                session.tick().await.expect("tick");
                for _ in 0..16 {
                    let mut key = key(&format, &mut rng, 60);
                    match key.last_mut() {
                        Some(last) => *last = client as u8,
                        None => key.push(client as u8),
                    }
                    let new = (rng.u8(..3) > 0).then(|| value(&format, &mut rng));
                    held.borrow_mut().entry(key.clone()).or_default().1 = Some(new.clone());
                    match &new {
                        Some(value) => index.upsert(&session, &key, value).await.expect("upsert"),
                        None => index.remove(&session, &key).await.expect("remove"),
                    };
                    *held.borrow_mut().entry(key).or_default() = (new, None);
                }
            }
        });
    }
    sim.run_until(start_ns + at_ns).expect("runs");
    sim.fabric(1).kill();
    let ended = sim.block_on(async {
        let held = held.borrow().clone();
        for (key, (certain, maybe)) in &held {
            let mut found = Vec::new();
            let has = index.get(&session, key, &mut found).await.expect("get");
            let now = has.then_some(found);
            assert!(
                now == *certain || Some(&now) == maybe.as_ref(),
                "key {key:?} holds {now:?}, not {certain:?} or {maybe:?}"
            );
            // And it can be changed: whatever lock was left is taken over.
            let next = value(&format, &mut fastrand::Rng::with_seed(seed));
            index.upsert(&session, key, &next).await.expect("upsert");
            session.tick().await.expect("tick");
        }
        while recover(&session).await.expect("recover").is_some() {}
        settle(&session).await;
        let (reports, audit) = audit(&session, &[&index]).await;
        assert_eq!(reports[0].keys, held.len() as u64);
        assert_eq!(audit.problems, Vec::<String>::new());
        audit.closes()
    });
    ended.expect("checked")
}

#[test]
fn a_dead_compute_server_leaves_the_table_whole() {
    let mut open = 0;
    for (seed, (name, format)) in Suite::Death.shared_formats().into_iter().enumerate() {
        for step in 0..40 * soak() {
            let at_ns = 60_000 + step % 40 * 37_123 + step / 40 * 97;
            println!("{}, {name}, step {step}, {at_ns} ns", format.engine);
            open += u32::from(!death(seed as u64 * 100_000 + step, format, at_ns));
        }
    }
    assert_eq!(open, 0, "runs after which the pool's accounts do not close");
}

/// Futures that are dropped at any await leave nothing half done and no lock behind.
#[test]
fn dropped_operations_leave_no_lock() {
    shared_engines().into_iter().for_each(|engine| drop_operations(formats_of(&[engine])[0].1));
}

fn drop_operations(format: TableFormat) {
    let sim = Sim::new(config(5)).expect("sim");
    let endpoint = sim.fabric(0).any_endpoint().expect("endpoint");
    let options = World::default().pool_options();
    sim.block_on(async {
        let session = start(endpoint, &options).await;
        let index = create(&session, "t", &format).await;
        let mut rng = fastrand::Rng::with_seed(7);
        for round in 0..600_u64 {
            let key = rng.u64(..80).to_be_bytes();
            let limit_ns = 200 + (round * 131) % 16_000;
            let operation = async {
                if round % 3 == 0 {
                    index.remove(&session, &key).await.map(drop)
                } else {
                    index.upsert(&session, &key, &round.to_be_bytes()).await.map(drop)
                }
            };
            let done = within(session.endpoint(), limit_ns, operation).await;
            assert!(matches!(done, None | Some(Ok(()))), "{done:?}");
            session.tick().await.expect("tick");
        }
        // Every key can still be changed, quickly.
        let before_ns = session.endpoint().now_ns();
        for key in 0..80_u64 {
            index.upsert(&session, &key.to_be_bytes(), &[1; 8]).await.expect("upsert");
        }
        assert!(session.endpoint().now_ns() - before_ns < 80 * 200_000);
        session.endpoint().sleep(20_000_000).await;
        settle(&session).await;
        let (reports, audit) = audit(&session, &[&index]).await;
        assert_eq!(reports[0].keys, 80);
        assert_eq!(audit.problems, Vec::<String>::new());
    })
    .expect("the simulation ends");
}

/// Polls `operation` for at most `ns`, then drops it.
async fn within<T>(
    endpoint: &AnyEndpoint,
    ns: u64,
    operation: impl Future<Output = Result<T, IndexError>>,
) -> Option<Result<T, IndexError>> {
    let mut operation = std::pin::pin!(operation);
    let mut sleep = std::pin::pin!(endpoint.sleep(ns));
    std::future::poll_fn(|context| {
        if let std::task::Poll::Ready(result) = operation.as_mut().poll(context) {
            return std::task::Poll::Ready(Some(result));
        }
        sleep.as_mut().poll(context).map(|()| None)
    })
    .await
}
