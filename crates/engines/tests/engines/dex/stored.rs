//! Table tests: make, open, close, drop and recover tables of `dex` by name.

use farleaf_engines::{AnyIndex, Engine, StoredTable, TableFormat, recover};
use farleaf_fabric::sim::{Sim, SimConfig};
use farleaf_fabric::{Endpoint, OpKind, ToAny};
use farleaf_index::{Index, IndexError, OpenOptions, Settings};
use farleaf_pool::{Audit, PoolOptions, Session};

use super::hosts::Hosts;
use crate::common::{World, create, join, lab_table, open, settle, start};

fn format() -> TableFormat {
    lab_table(Engine::Dex, "u64-tiny")
}

fn key(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

/// A simulation of two compute servers, and a session of each, members of one pool.
fn two(config: SimConfig, options: &PoolOptions) -> (Sim, [Session; 2]) {
    let sim = Sim::new(SimConfig { compute_servers: 2, ..config }).expect("sim");
    let ends = [0, 1].map(|compute| sim.fabric(compute).any_endpoint().expect("endpoint"));
    let sessions = sim
        .block_on(async {
            let [first, second] = ends;
            let first = start(first, options).await;
            [first, join(second).await]
        })
        .expect("made");
    (sim, sessions)
}

fn world() -> (SimConfig, PoolOptions) {
    let world = World::default();
    (world.sim_config(), world.pool_options())
}

#[test]
fn a_table_is_open_once_in_a_member_and_by_one_owner_at_a_time() {
    let (config, options) = world();
    let (sim, [one, other]) = two(config, &options);
    sim.block_on(async {
        let table = create(&one, "t", &format()).await;
        assert_eq!(table.insert(&one, &key(1), &key(10)).await, Ok(true));
        // Opened again, it is the same, with what it has changed and not written back.
        let again = open(&one, "t").await;
        let mut value = Vec::new();
        assert_eq!(again.get(&one, &key(1), &mut value).await, Ok(true));
        let theirs = open(&other, "t").await;
        let refused = theirs.get(&other, &key(1), &mut value).await;
        assert!(matches!(refused, Err(IndexError::Unavailable(_))), "{refused:?}");
        let loaded = theirs.bulk_load(&other, &mut crate::common::Pairs([].iter())).await;
        assert!(matches!(loaded, Err(IndexError::Unavailable(_))), "{loaded:?}");
        let mine = AnyIndex::drop_table(&one, "t").await;
        assert!(matches!(&mine, Err(IndexError::Invalid(why)) if why.contains("close it")));
        let not_mine = AnyIndex::drop_table(&other, "t").await;
        assert!(
            matches!(&not_mine, Err(IndexError::Invalid(why)) if why.contains("end that process"))
        );
        let left = one.leave().await;
        assert!(left.is_err_and(|error| error.to_string().contains("close them first")));
        again.close(&one).await.expect("close");
        assert!(matches!(table.get(&one, &key(1), &mut value).await, Err(IndexError::Closed(_))));
        assert_eq!(theirs.get(&other, &key(1), &mut value).await, Ok(true));
        assert_eq!(value, key(10));
        theirs.close(&other).await.expect("close");
        AnyIndex::drop_table(&one, "t").await.expect("drop");
        settle(&one).await;
        settle(&other).await;
        one.leave().await.expect("leave");
    })
    .expect("checked");
}

/// Recovery by a member that does not have the table open frees what was the dead one's, with all that
/// it had acknowledged; nodes of merges that it had begun are seen to before the tree is walked.
#[test]
fn recovery_gives_back_what_the_dead_had() {
    let (config, options) = world();
    for seed in 0..40 {
        let config = SimConfig { seed, ..config.clone() };
        let (sim, [one, other]) = two(config, &options);
        let count = 20 + seed;
        sim.block_on(async {
            AnyIndex::create(&one, "t", &format()).await.expect("create");
            let table = open(&other, "t").await;
            for number in 0..count {
                assert_eq!(table.insert(&other, &key(number), &key(number)).await, Ok(true));
                other.tick().await.expect("tick");
            }
            for number in (0..count).filter(|number| number % 3 > 0) {
                assert_eq!(table.remove(&other, &key(number)).await, Ok(true));
                other.tick().await.expect("tick");
            }
        })
        .expect("filled");
        sim.fabric(1).kill();
        std::mem::forget(other);
        sim.block_on(async {
            while !one.pool().needs_recovery() {
                one.tick().await.expect("tick");
                one.endpoint().sleep(100_000).await;
            }
            while recover(&one).await.expect("recover").is_some() {}
            let stored = StoredTable::of(&one.open_root("t").await.expect("root")).expect("table");
            let mut audit = Audit::new(&one).await.expect("audit");
            let report = stored.verify(&one, &mut audit).await.expect("verify");
            assert_eq!(report.problems, Vec::<String>::new(), "seed {seed}");
            assert_eq!(report.keys, count.div_ceil(3), "seed {seed}");
            assert_eq!(stored.release_dead(&one).await, Ok(0));
            let table = open(&one, "t").await;
            for number in 0..count {
                let found = table.get(&one, &key(number), &mut Vec::new()).await;
                assert_eq!(found, Ok(number % 3 == 0), "seed {seed}");
            }
        })
        .expect("checked");
    }
}

/// Takes every byte that can be had.
async fn exhaust(session: &Session) {
    for bytes in [200_000, 60_000, 3_000, 256, 64] {
        let _pin = session.begin(OpKind::Other).await.expect("begin");
        let servers = session.endpoint().server_count() as u16;
        for server in (0..servers).map(farleaf_fabric::ServerId) {
            while session.alloc(server, bytes).await.is_ok() {}
        }
    }
}

/// A change of the ownership map needed memory, so that in a full pool nobody could take over.
#[test]
fn a_full_pool_keeps_nobody_from_what_the_dead_had() {
    let (config, options) = world();
    let config = SimConfig { region_bytes: 4 << 20, ..config };
    let (sim, [one, other]) = two(config, &options);
    sim.block_on(async {
        AnyIndex::create(&one, "t", &format()).await.expect("create");
        let table = open(&other, "t").await;
        assert_eq!(table.insert(&other, &key(1), &key(10)).await, Ok(true));
        exhaust(&one).await;
    })
    .expect("filled");
    sim.fabric(1).kill();
    std::mem::forget(other);
    sim.block_on(async {
        let root = one.open_root("t").await.expect("root");
        let stored = StoredTable::of(&root).expect("table");
        while stored.release_dead(&one).await.expect("release") == 0 {
            one.endpoint().sleep(100_000).await;
        }
        // Without a log it needs no room to begin.
        let settings = Settings::default().with("durability", "volatile").with("cache", "64KiB");
        let options = OpenOptions { settings, ..OpenOptions::default() };
        let table = AnyIndex::open(&one, &root, &options).await.expect("open");
        let mut value = Vec::new();
        assert_eq!(table.get(&one, &key(1), &mut value).await, Ok(true));
        assert_eq!(value, key(10));
    })
    .expect("checked");
}

/// The map had come to name a compute server that found no room for its log, and did so after it had
/// closed the table: nobody else could have the keys.
#[test]
fn who_could_not_begin_gives_back_what_it_was_given() {
    let (config, options) = world();
    let config = SimConfig { region_bytes: 4 << 20, ..config };
    let (sim, [one, other]) = two(config, &options);
    sim.block_on(async {
        AnyIndex::create(&one, "t", &format()).await.expect("create");
        exhaust(&one).await;
        let table = open(&other, "t").await;
        let refused = table.insert(&other, &key(1), &key(10)).await;
        assert!(matches!(refused, Err(IndexError::Full(_))), "{refused:?}");
        table.close(&other).await.expect("close");
        let stored = StoredTable::of(&one.open_root("t").await.expect("root")).expect("table");
        let mut audit = Audit::new(&one).await.expect("audit");
        assert_eq!(stored.verify(&one, &mut audit).await.expect("verify").keys, 0);
        AnyIndex::drop_table(&one, "t").await.expect("nobody has it");
    })
    .expect("checked");
}

/// A compute server that was stopped for longer than its lease finds in its cache what another has
/// changed since.
#[test]
fn who_was_taken_for_dead_answers_nothing_from_its_cache() {
    let (config, options) = world();
    let config = SimConfig { lease_ns: 1_000_000, ..config };
    let (sim, [one, other]) = two(config, &options);
    let theirs = sim
        .block_on(async {
            AnyIndex::create(&one, "t", &format()).await.expect("create");
            let theirs = open(&other, "t").await;
            assert_eq!(theirs.insert(&other, &key(1), &key(10)).await, Ok(true));
            theirs
        })
        .expect("filled");
    sim.fabric(1).stop();
    sim.block_on(async {
        one.endpoint().sleep(5_000_000).await;
        let table = open(&one, "t").await;
        assert_eq!(table.update(&one, &key(1), &key(20)).await, Ok(true));
    })
    .expect("taken over");
    sim.fabric(1).resume();
    let told = std::rc::Rc::new(std::cell::RefCell::new(None));
    let result = told.clone();
    sim.spawn(1, async move {
        let mut value = Vec::new();
        let got = theirs.get(&other, &key(1), &mut value).await;
        *result.borrow_mut() = Some((got, value));
    });
    sim.run().expect("runs");
    let told = told.take();
    assert!(matches!(told, Some((Err(IndexError::Closed(_)), _))), "{told:?}");
}

#[test]
fn a_host_serves_until_its_compute_server_leaves() {
    let (config, options) = world();
    let (sim, [one, other]) = two(config, &options);
    let hosts = Hosts::of(&sim);
    sim.block_on(async {
        AnyIndex::create(&one, "t", &format()).await.expect("create");
        let AnyIndex::Dex(dex) = open(&one, "t").await else {
            unreachable!("it is of this engine")
        };
        let serving = hosts.serve(dex, other);
        assert_eq!(hosts.members().len(), 1);
        hosts.leave(hosts.members()[0]);
        assert_eq!(serving.await, Ok(()));
        assert_eq!(hosts.members(), []);
    })
    .expect("it ends");
}
