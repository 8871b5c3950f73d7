//! Locks that tasks of one compute server pass on: costs, fairness between compute servers, and callers that go away.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;

use farleaf_engines::{AnyIndex, Engine, TableFormat};
use farleaf_fabric::sim::Sim;
use farleaf_fabric::{Endpoint, ToAny};
use farleaf_index::{Index, OpenOptions, Settings};
use farleaf_pool::Session;

use super::{counters, number, settings};
use crate::common::{World, check, join, start};

const KEYS: u64 = 400;

/// A run of clients on one leaf of a table of many: changes by each compute server, and the counters of all.
pub(super) struct Run {
    pub(super) changes: Vec<u64>,
    pub(super) counts: farleaf_index::CounterSet,
    pub(super) cas: u64,
    pub(super) reads: u64,
}

/// Clients of some compute servers add one to the value of a few keys for 2 ms, `drop_every` of them dropped half way.
fn run(clients: &[usize], list: &[(&str, &str)], drops: bool, seed: u64) -> Run {
    run_of(Engine::Sherman, clients, list, drops, seed)
}

pub(super) fn run_of(
    engine: Engine,
    clients: &[usize],
    list: &[(&str, &str)],
    drops: bool,
    seed: u64,
) -> Run {
    let mut config = World { seed, ..World::default() }.sim_config();
    config.compute_servers = clients.len();
    if drops {
        config.adversary.torn = 0.5;
    }
    let sim = Sim::new(config).expect("sim");
    let first = sim.fabric(0).any_endpoint().expect("endpoint");
    let options = World::default().pool_options();
    let session = sim.block_on(async {
        let session = start(first, &options).await;
        let format = TableFormat::fixed8(engine);
        let root = AnyIndex::create(&session, "t", &format).await.expect("create");
        let index = AnyIndex::open(&session, &root, &OpenOptions::default()).await.expect("open");
        for key in 0..KEYS {
            assert_eq!(index.insert(&session, &number(key), &[0; 8]).await, Ok(true));
        }
        index.close(&session).await.expect("close");
        session
    });
    let session = session.expect("made");
    let all = Rc::new(RefCell::new(Run {
        changes: vec![0; clients.len()],
        counts: Default::default(),
        cas: 0,
        reads: 0,
    }));
    let running = Rc::new(Cell::new(0));
    let settings: Settings = settings(list);
    for (compute, &count) in clients.iter().enumerate() {
        let (endpoint, fabric) =
            (sim.fabric(compute).any_endpoint().expect("endpoint"), sim.fabric(compute));
        let (all, running, settings) = (Rc::clone(&all), Rc::clone(&running), settings.clone());
        running.set(running.get() + 1);
        sim.spawn(compute, async move {
            let member = join(endpoint).await;
            let root = member.open_root("t").await.expect("root");
            let options = OpenOptions { settings, ..OpenOptions::default() };
            let index = AnyIndex::open(&member, &root, &options).await.expect("open");
            let (pool, left) = (member.pool().clone(), Rc::new(Cell::new(0)));
            for client in 0..count {
                let session =
                    pool.session(fabric.any_endpoint().expect("endpoint")).await.expect("session");
                left.set(left.get() + 1);
                let (index, all, left) = (index.clone(), Rc::clone(&all), Rc::clone(&left));
                member.endpoint().spawn(async move {
                    let seed = seed << 16 | (client * 8 + compute) as u64;
                    work(&session, &index, seed, drops, |run| run.changes[compute] += 1, &all)
                        .await;
                    left.set(left.get() - 1);
                });
            }
            while left.get() > 0 {
                member.endpoint().sleep(100_000).await;
                member.tick().await.expect("tick");
            }
            all.borrow_mut().counts.add_all(&counters(&index));
            index.close(&member).await.expect("close");
            member.leave().await.expect("leave");
            running.set(running.get() - 1);
        });
    }
    sim.run().expect("the simulation ends");
    assert_eq!(running.get(), 0);
    let run = Rc::try_unwrap(all).ok().expect("all clients have ended").into_inner();
    let changes: u64 = run.changes.iter().sum();
    sim.block_on(async {
        let root = session.open_root("t").await.expect("root");
        let index = AnyIndex::open(&session, &root, &OpenOptions::default()).await.expect("open");
        assert_eq!(check(&session, &[&index]).await.keys, KEYS);
        let (mut sum, mut value) = (0, Vec::new());
        for key in 0..4 {
            assert_eq!(index.get(&session, &number(key), &mut value).await, Ok(true));
            sum += u64::from_le_bytes(value[..].try_into().expect("8 bytes"));
        }
        // One that was dropped may have happened.
        assert!(
            sum >= changes && (drops || sum == changes),
            "{sum} counted, {changes} acknowledged"
        );
    })
    .expect("checked");
    run
}

async fn work(
    session: &Session,
    index: &AnyIndex,
    seed: u64,
    drops: bool,
    counted: impl Fn(&mut Run),
    run: &RefCell<Run>,
) {
    let end_ns = session.endpoint().now_ns() + 2_000_000;
    let mut rng = fastrand::Rng::with_seed(seed);
    let (mut value, mut held) = (Vec::new(), Vec::new());
    let before = session.endpoint().counters().snapshot();
    while session.endpoint().now_ns() < end_ns {
        let key = number(rng.u64(..4));
        assert_eq!(index.get(session, &key, &mut value).await, Ok(true));
        let new = u64::from_le_bytes(value[..].try_into().expect("8 bytes")) + 1;
        let new = new.to_le_bytes();
        let exchange = index.compare_exchange(session, &key, Some(&value), Some(&new), &mut held);
        if drops && rng.u8(..3) == 0 {
            let patience_ns = rng.u64(..20_000);
            let exchange = pin!(exchange);
            let done = within(session, exchange, patience_ns).await;
            if let Some(Ok((farleaf_index::Exchange::Done, _))) = done {
                counted(&mut run.borrow_mut());
            }
        } else if let (farleaf_index::Exchange::Done, _) = exchange.await.expect("exchange") {
            counted(&mut run.borrow_mut());
        }
    }
    let cost = session.endpoint().counters().snapshot().since(&before).total();
    let mut run = run.borrow_mut();
    (run.cas, run.reads) = (run.cas + cost.cas, run.reads + cost.reads);
}

/// Drops `work` unless it ends within so many nanoseconds.
async fn within<T>(
    session: &Session,
    mut work: impl Future<Output = T> + Unpin,
    ns: u64,
) -> Option<T> {
    let mut timer = pin!(session.endpoint().sleep(ns));
    poll_fn(|context| match Pin::new(&mut work).poll(context) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending => timer.as_mut().poll(context).map(|_| None),
    })
    .await
}

/// Eight passes in a row save eight of nine CASes for the lock, and the READs with them.
#[test]
fn passes_save_the_locks_and_the_reads() {
    let off = run(&[8], &[("hand_over", "0")], false, 1);
    let on = run(&[8], &[], false, 1);
    assert_eq!(off.counts.get("passes"), 0);
    let (passes, images) = (on.counts.get("passes"), on.counts.get("images_passed"));
    assert!(passes > 100 && images == passes, "{passes} passes, {images} images");
    let without = run(&[8], &[("hand_image", "false")], false, 1);
    assert!(without.counts.get("passes") > 100 && without.counts.get("images_passed") == 0);
    println!("{} changes without passes, {} with", off.changes[0], on.changes[0]);
    assert!(on.changes[0] > off.changes[0]);
}

/// A compute server with many waiters leaves another one its share: at worst a third of its own.
#[test]
fn two_compute_servers_share_a_leaf() {
    for clients in [[8, 8], [16, 1]] {
        let run = run(&clients, &[], false, 2);
        println!("{clients:?}: {:?}", run.changes);
        // One client alone cannot do as much as many.
        let [first, second] = [run.changes[0], run.changes[1]];
        let share = if clients[1] == 1 { 12 } else { 3 };
        assert!(second * share >= first && first * share >= second, "{first} and {second}");
    }
}

/// Waiters and holders that are dropped at any moment leave the lock to others, and no change is lost.
#[test]
fn dropped_callers_lose_no_turn() {
    for seed in 0..12 {
        let hand_over = ["0", "1", "8"][seed as usize % 3];
        let run = run(&[6, 3], &[("hand_over", hand_over)], true, seed);
        assert!(run.changes.iter().all(|changes| *changes > 20), "{:?}", run.changes);
    }
}
