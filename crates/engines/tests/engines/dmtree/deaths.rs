//! Deaths of compute servers in the engine `dmtree`: the owner of a leaf's line, a client, both, and all.

use super::{Cluster, LEASE_NS, fill, key8, sim_config, tiny_table, value8};
use farleaf_engines::{AnyIndex, recover};
use farleaf_fabric::sim::{CrashPlan, CrashWay, SimConfig};
use farleaf_fabric::{Endpoint, ToAny};
use farleaf_index::retry::OWNER_CHECK_NS;
use farleaf_index::{Entries, Index, IndexError, ScanRange, Settings};
use farleaf_pool::Session;

/// So many that their leaves' lines lie in many partitions.
const KEYS: u64 = 3_000;

fn config(seed: u64) -> SimConfig {
    let mut config = SimConfig { seed, ..sim_config(4) };
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
        for number in 0..KEYS {
            let since_ns = endpoint.now_ns();
            let updated = index.update(&session, &key8(number), &value8(number + 1)).await;
            assert_eq!(updated, Ok(true), "{number}");
            let waited_ns = endpoint.now_ns() - since_ns;
            assert!(waited_ns < 2 * LEASE_NS, "{number}: {waited_ns} ns");
        }
    });
    assert!(cluster.counter("failed_over") > 0 && cluster.counter("lines_built") > 50);
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
        // Leaves without lines are READ as they are; none is taken for one that somebody changes.
        let (mut all, since_ns) = (Entries::new(), session.endpoint().now_ns());
        assert_eq!(index.scan(&session, ScanRange::ALL, usize::MAX, &mut all).await, Ok(()));
        assert_eq!(all.len() as u64, KEYS);
        assert!(session.endpoint().now_ns() - since_ns < OWNER_CHECK_NS);
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
        for number in (0..KEYS).step_by(100) {
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

/// Keys that are there before the changes, and those that the changes insert and remove.
const FIRST: std::ops::Range<u64> = 0..200;
const CHANGED: std::ops::Range<u64> = 1_000..1_060;

/// Inserts that split leaves, and removes that merge them; gives the first error.
async fn changes(session: Session, index: AnyIndex) -> Result<(), IndexError> {
    for number in CHANGED {
        assert!(index.insert(&session, &key8(number), &value8(number)).await?, "{number}");
        assert!(index.update(&session, &key8(number), &value8(number + 1)).await?, "{number}");
    }
    for number in CHANGED {
        assert!(index.remove(&session, &key8(number)).await?, "{number}");
    }
    Ok(())
}

/// Outcomes of runs with a death.
#[derive(Debug, Default)]
struct Deaths {
    runs: u64,
    /// Runs in which the owner of a line died.
    of_owners: u64,
    failed_over: u64,
    rescued: u64,
}

/// Something dies at operation `k` of the client's changes. Gives false if they were over before.
fn die_at(k: u64, way: CrashWay, deaths: &mut Deaths) -> bool {
    let cluster = Cluster::new(config(k), &tiny_table(), 3, &Settings::default());
    fill(&cluster, 0, 1, FIRST);
    let fabric = cluster.sim.fabric(CLIENT);
    let lives: Vec<_> = (0..3).map(|at| cluster.sim.fabric(at).incarnation()).collect();
    fabric.plan(CrashPlan { op: k, way });
    let work = cluster.begin(CLIENT, changes);
    while !fabric.has_fired() && work.borrow().is_none() {
        cluster.rest(2_000);
    }
    if !fabric.has_fired() {
        return false;
    }
    if way == CrashWay::OwnerDies {
        // The client goes on: no change fails, and no outcome is unknown.
        while work.borrow().is_none() {
            cluster.rest(100_000);
        }
        assert_eq!(work.take().expect("it has ended"), Ok(()), "k = {k}");
    } else {
        cluster.note_death(CLIENT);
    }
    let endpoint = cluster.sim.fabric(3).any_endpoint().expect("an endpoint");
    let is_dead =
        |at: usize| cluster.sim.block_on(endpoint.is_dead(lives[at])).expect("no deadlock");
    for at in (0..2).filter(|at| is_dead(*at)) {
        deaths.of_owners += 1;
        cluster.note_death(at);
    }
    let survivor = *cluster.servers.borrow().keys().next().expect("one lives");
    // All keys can be changed, and none that was acknowledged is lost.
    cluster.on(survivor, async |session, index| {
        let mut value = Vec::new();
        for number in FIRST {
            let got = index.get(&session, &key8(number), &mut value).await;
            assert_eq!((got, &value), (Ok(true), &value8(number)), "{number}");
        }
        for number in FIRST.chain(CHANGED) {
            index.upsert(&session, &key8(number), &value8(number)).await.expect("an upsert");
        }
        for number in FIRST.chain(CHANGED) {
            let got = index.get(&session, &key8(number), &mut value).await;
            assert_eq!((got, &value), (Ok(true), &value8(number)), "{number}");
        }
        while let Some(done) = recover(&session).await.expect("recovery") {
            assert_eq!((done.problems, done.complete), (Vec::new(), true));
        }
    });
    assert_eq!(cluster.check(survivor), 260, "k = {k}");
    deaths.runs += 1;
    deaths.failed_over += cluster.counter("failed_over");
    deaths.rescued += cluster.counter("rescued");
    true
}

fn die_at_each(ways: &[CrashWay], first: u64, step: usize) -> Deaths {
    let mut deaths = Deaths::default();
    for (at, k) in (first..).step_by(step).enumerate() {
        if !die_at(k, ways[at % ways.len()], &mut deaths) {
            break;
        }
    }
    println!("{ways:?}: {deaths:?}");
    assert!(deaths.runs > 20, "{deaths:?}");
    deaths
}

#[test]
fn a_client_dies_at_any_operation() {
    let deaths = die_at_each(&[CrashWay::After, CrashWay::Before], 1, 29);
    assert!(deaths.rescued > 0, "{deaths:?}");
}

#[test]
fn the_owner_of_a_line_dies_at_any_operation_of_a_client() {
    let deaths = die_at_each(&[CrashWay::OwnerDies], 2, 29);
    assert!(deaths.of_owners > 5 && deaths.failed_over > 5, "{deaths:?}");
}

#[test]
fn a_client_and_the_owner_of_its_line_die_together_at_any_operation() {
    let deaths = die_at_each(&[CrashWay::BothDie], 3, 29);
    assert!(deaths.of_owners > 5 && deaths.failed_over > 5, "{deaths:?}");
}
