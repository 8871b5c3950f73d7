//! Moves of the engine `dmtree`: compute servers come and go while others work.

use std::cell::Cell;
use std::rc::Rc;

use super::{Cluster, key8, sim_config, tiny_table, value8};
use farleaf_fabric::Endpoint;
use farleaf_index::compute::partitions::MoveWay;
use farleaf_index::{Index, Settings};

/// Inserts and updates of one client, until it is told to stop; gives its number of keys.
async fn write_until(
    session: farleaf_pool::Session,
    index: farleaf_engines::AnyIndex,
    first: u64,
    stop: Rc<Cell<bool>>,
) -> u64 {
    let (mut count, mut value) = (0, Vec::new());
    while !stop.get() {
        let key = key8(first + count * 16);
        assert_eq!(index.insert(&session, &key, &value8(count)).await, Ok(true));
        assert_eq!(index.get(&session, &key, &mut value).await, Ok(true), "{first} {count}");
        assert_eq!(value, value8(count));
        if count % 3 == 0 {
            assert_eq!(index.update(&session, &key, &value8(count + 1)).await, Ok(true));
            assert_eq!(index.update(&session, &key, &value8(count)).await, Ok(true));
        }
        count += 1;
    }
    count
}

/// Two compute servers work; two more come; one leaves. Nothing is lost.
fn scale(way: MoveWay, seed: u64) {
    let mut config = sim_config(4);
    config.seed = seed;
    config.adversary.torn = 0.5;
    let cluster = Cluster::new(config, &tiny_table(), 2, &Settings::default());
    let stop = Rc::new(Cell::new(false));
    let writers: Vec<_> = (0..2)
        .map(|at| {
            let stop = Rc::clone(&stop);
            cluster.begin(at, async move |session, index| {
                write_until(session, index, at as u64, stop).await
            })
        })
        .collect();
    cluster.rest(2_000_000);
    cluster.add(2, None);
    cluster.add(3, None);
    cluster.rest(2_000_000);
    let owned: Vec<usize> = (0..4).map(|at| cluster.server(at).owned()).collect();
    assert!(owned.iter().all(|count| *count > 2), "{owned:?}");
    cluster.on(3, async move |session, index| {
        let partitions = index.partitions().expect("partitions");
        partitions.spread(&session, way).await.expect("nothing is misplaced");
    });
    // One leaves in order: its partitions go to the others.
    let server = cluster.server(2);
    cluster.on(2, async |session, index| index.close(&session).await.expect("closed"));
    server.is_over.set(true);
    cluster.rest(2_000_000);
    assert_eq!(cluster.server(0).partitions().known_partitions().members.len(), 3);
    stop.set(true);
    let mut keys = 0;
    for writer in &writers {
        while writer.borrow().is_none() {
            cluster.rest(100_000);
        }
        keys += writer.take().expect("it has ended");
    }
    assert_eq!(cluster.check(3), keys);
    assert!(keys > 200, "{keys}");
}

#[test]
fn compute_servers_come_and_go_while_others_write() {
    for seed in 1..5 {
        scale(MoveWay::Build, seed);
    }
}

/// Changes keys of one client until it is told to stop; gives how often each was acknowledged, and the longest wait for an
/// operation.
async fn change_until(
    session: farleaf_pool::Session,
    index: farleaf_engines::AnyIndex,
    first: u64,
    stop: Rc<Cell<bool>>,
    changed: Rc<Cell<u64>>,
) -> (Vec<u64>, u64) {
    const KEYS: u64 = 150;
    let (mut rounds, mut longest_ns) = (vec![0; KEYS as usize], 0);
    for number in (0..KEYS).cycle() {
        if stop.get() {
            break;
        }
        let round = rounds[number as usize] + 1;
        let since_ns = session.endpoint().now_ns();
        let key = key8(first + number * 16);
        index.upsert(&session, &key, &value8(round)).await.expect("a change");
        longest_ns = longest_ns.max(session.endpoint().now_ns() - since_ns);
        rounds[number as usize] = round;
        changed.set(changed.get() + 1);
    }
    (rounds, longest_ns)
}

/// Two compute servers work, two more come, one is drained and leaves, with the ticks of a real store, every 10 ms. Nothing
/// acknowledged is lost, and no operation waits for 100 ms, in virtual time.
#[test]
fn no_operation_waits_long_while_compute_servers_come_and_go() {
    for seed in 1..4 {
        let mut config = sim_config(4);
        (config.seed, config.lease_ns) = (seed, 1_000_000_000);
        let cluster = Cluster::new(config, &tiny_table(), 1, &Settings::default());
        cluster.tick_ns.set(10_000_000);
        cluster.add(1, None);
        let (stop, changed) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(0)));
        let writers: Vec<_> = (0..2)
            .map(|at| {
                let (stop, changed) = (Rc::clone(&stop), Rc::clone(&changed));
                cluster.begin(at, async move |session, index| {
                    change_until(session, index, at as u64, stop, changed).await
                })
            })
            .collect();
        let more = |what: &str| {
            let before = changed.get();
            cluster.rest(40_000_000);
            assert!(changed.get() > before + 100, "{what}: {} changes", changed.get() - before);
        };
        more("two");
        cluster.add(2, None);
        cluster.add(3, None);
        more("four");
        let owned: Vec<usize> = (0..4).map(|at| cluster.server(at).owned()).collect();
        assert!(owned.iter().all(|count| *count > 2), "{owned:?}");
        let (leaver, who) = (cluster.server(2), cluster.server(2).fabric.incarnation());
        let given = cluster.on(3, async move |session, index| {
            index.partitions().expect("partitions").drain(&session, who).await
        });
        assert!(given.expect("drained") > 2);
        more("one is drained");
        cluster.on(2, async |session, index| index.close(&session).await.expect("closed"));
        leaver.is_over.set(true);
        more("three");
        assert_eq!(cluster.server(0).partitions().known_partitions().members.len(), 3);
        stop.set(true);
        for (first, writer) in (0..).zip(&writers) {
            while writer.borrow().is_none() {
                cluster.rest(100_000);
            }
            let (rounds, longest_ns) = writer.take().expect("it has ended");
            assert!(longest_ns < 100_000_000, "seed {seed}: a wait of {longest_ns} ns");
            cluster.on(3, async move |session, index| {
                let mut value = Vec::new();
                for (number, round) in (0..).zip(rounds).filter(|(_, round)| *round > 0) {
                    let key = key8(first + number * 16);
                    assert_eq!(index.get(&session, &key, &mut value).await, Ok(true));
                    assert_eq!(value, value8(round));
                }
            });
        }
        cluster.check(3);
    }
}
