//! Deaths of compute servers in the engine `dmtree`: the owner of a leaf's line, a client, both, and all.

use super::{Cluster, LEASE_NS, fill, key8, sim_config, tiny_table, value8};
use farleaf_engines::recover;
use farleaf_fabric::Endpoint;
use farleaf_fabric::sim::{CrashPlan, CrashWay, SimConfig};
use farleaf_index::{Index, IndexError, Settings};

const KEYS: u64 = 300;

fn config(seed: u64) -> SimConfig {
    let mut config = SimConfig { seed, ..sim_config(3) };
    config.adversary.torn = 0.5;
    config
}

/// The owner of lines dies. Every key is there and can be changed within two leases; gets do not wait.
#[test]
fn the_death_of_an_owner_loses_nothing() {
    let cluster = Cluster::new(config(3), &tiny_table(), 3, &Settings::default());
    fill(&cluster, 0, 1, 0..KEYS);
    cluster.kill(2);
    cluster.on(0, async |session, index| {
        let (endpoint, mut value) = (session.endpoint().clone(), Vec::new());
        for number in 0..2 * KEYS {
            let since_ns = endpoint.now_ns();
            let got = index.get(&session, &key8(number), &mut value).await;
            assert_eq!(got, Ok(number < KEYS), "{number}");
            let waited_ns = endpoint.now_ns() - since_ns;
            assert!(waited_ns < 5_000_000, "{number}: {waited_ns} ns");
        }
        let since_ns = endpoint.now_ns();
        for number in 0..KEYS {
            let updated = index.update(&session, &key8(number), &value8(number + 1)).await;
            assert_eq!(updated, Ok(true), "{number}");
        }
        let waited_ns = endpoint.now_ns() - since_ns;
        assert!(waited_ns < 3 * LEASE_NS, "{waited_ns} ns");
    });
    assert_eq!(cluster.check(1), KEYS);
    let map = cluster.server(0).partitions().known_partitions();
    assert_eq!(map.members.len(), 2);
}

/// All compute servers die; another life opens the table: all that was acknowledged is there.
#[test]
fn a_table_outlives_all_of_its_compute_servers() {
    let cluster = Cluster::new(config(4), &tiny_table(), 3, &Settings::default());
    fill(&cluster, 0, 1, 0..KEYS);
    for compute in 0..3 {
        cluster.kill(compute);
    }
    cluster.add(0, None);
    cluster.on(0, async |session, index| {
        let mut value = Vec::new();
        for number in 0..KEYS {
            let got = index.get(&session, &key8(number), &mut value).await;
            assert_eq!((got, &value), (Ok(true), &value8(number)), "{number}");
            assert_eq!(index.update(&session, &key8(number), &value8(7)).await, Ok(true));
        }
        while let Some(done) = recover(&session).await.expect("recovery") {
            assert_eq!((done.problems, done.complete), (Vec::new(), true));
        }
    });
    assert_eq!(cluster.check(0), KEYS);
}

/// A link between two compute servers is cut: gets go on, changes of keys whose lines lie there fail with nothing done.
#[test]
fn a_cut_link_stops_changes_there_and_no_gets() {
    let cluster = Cluster::new(sim_config(3), &tiny_table(), 3, &Settings::default());
    fill(&cluster, 0, 1, 0..KEYS);
    cluster.sim.cut(0, 2);
    cluster.sim.cut(2, 0);
    let failed = cluster.on(0, async |session, index| {
        let (endpoint, mut value) = (session.endpoint().clone(), Vec::new());
        for number in 0..KEYS {
            let since_ns = endpoint.now_ns();
            let got = index.get(&session, &key8(number), &mut value).await;
            assert_eq!((got, &value), (Ok(true), &value8(number)), "{number}");
            assert!(endpoint.now_ns() - since_ns < 5_000_000);
        }
        let mut failed = Vec::new();
        for number in (0..KEYS).step_by(10) {
            let since_ns = endpoint.now_ns();
            match index.update(&session, &key8(number), &value8(number + 1)).await {
                Ok(true) => {}
                Err(IndexError::Unavailable(_)) => failed.push(number),
                other => panic!("{number}: {other:?}"),
            }
            let waited_ns = endpoint.now_ns() - since_ns;
            assert!(waited_ns < 1_500_000_000, "{number}: {waited_ns} ns");
        }
        failed
    });
    assert!((3..25).contains(&failed.len()), "{failed:?}");
    cluster.sim.heal(0, 2);
    cluster.sim.heal(2, 0);
    cluster.on(1, async move |session, index| {
        let mut value = Vec::new();
        for number in failed {
            assert_eq!(index.get(&session, &key8(number), &mut value).await, Ok(true));
            assert_eq!(value, value8(number), "nothing was done");
            assert_eq!(index.update(&session, &key8(number), &value8(number)).await, Ok(true));
        }
    });
    assert_eq!(cluster.check(1), KEYS);
}

/// The client that dies, which may be the owner of lines as well.
const CLIENT: usize = 2;

/// Work of a client that splits leaves and merges them.
async fn changes(session: farleaf_pool::Session, index: farleaf_engines::AnyIndex) {
    for number in 0..40 {
        // It is killed, or cut off.
        if index.insert(&session, &key8(1_000 + number), &value8(number)).await.is_err() {
            return;
        }
    }
    for number in 0..40 {
        if index.remove(&session, &key8(1_000 + number)).await.is_err() {
            return;
        }
    }
}

/// The client dies around operation `k` of its changes, and `owner` at the same time if that is given. Gives false if its
/// changes were over before.
fn die_at(seed: u64, k: u64, way: CrashWay, owner: Option<usize>) -> bool {
    let cluster = Cluster::new(config(seed), &tiny_table(), 3, &Settings::default());
    fill(&cluster, 0, 1, 0..60);
    let fabric = cluster.sim.fabric(CLIENT);
    fabric.plan(CrashPlan { op: k, way });
    let work = cluster.begin(CLIENT, changes);
    while !fabric.has_fired() && work.borrow().is_none() {
        cluster.sim.run_until(cluster.sim.now_ns() + 2_000).expect("it runs");
    }
    if !fabric.has_fired() {
        return false;
    }
    std::mem::forget(cluster.servers.borrow_mut().remove(&CLIENT));
    if let Some(owner) = owner {
        cluster.kill(owner);
    }
    // All keys can be changed, and none that was acknowledged is lost.
    cluster.on(0, async |session, index| {
        let mut value = Vec::new();
        for number in 0..60 {
            let got = index.get(&session, &key8(number), &mut value).await;
            assert_eq!((got, &value), (Ok(true), &value8(number)), "{number}");
        }
        for number in (0..60).chain(1_000..1_040) {
            index.upsert(&session, &key8(number), &value8(number)).await.expect("an upsert");
        }
        for number in (0..60).chain(1_000..1_040) {
            let got = index.get(&session, &key8(number), &mut value).await;
            assert_eq!((got, &value), (Ok(true), &value8(number)), "{number}");
        }
        while let Some(done) = recover(&session).await.expect("recovery") {
            assert_eq!((done.problems, done.complete), (Vec::new(), true));
        }
    });
    assert_eq!(cluster.check(0), 100, "k = {k}");
    true
}

#[test]
fn a_client_and_owner_dies_at_any_operation() {
    let ways = [CrashWay::After, CrashWay::Before];
    for k in (1..).step_by(17) {
        if !die_at(k, k, ways[k as usize % 2], None) {
            assert!(k > 300, "{k}");
            return;
        }
    }
}

#[test]
fn a_client_and_another_owner_die_together_at_any_operation() {
    for k in (3..).step_by(31) {
        if !die_at(k, k, CrashWay::After, Some(1)) {
            assert!(k > 300, "{k}");
            return;
        }
    }
}
