//! Rule tests: rules of DEX that the other suites do not test by themselves.
//!
//! `docs/papers/dex.md` lists all rules with their tests.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use farleaf_engines::dex::{Admission, DexOptions, Durability, equal_width};
use farleaf_engines::{Engine, TableFormat};
use farleaf_fabric::sim::Sim;
use farleaf_fabric::{Endpoint, ToAny};
use farleaf_index::{Index, IndexError};
use farleaf_pool::Session;

use super::hosts::Hosts;
use super::storm::{bounds, config, finish, members_of, serve};
use super::tables::{check, create, open, try_open};
use crate::common::clients::one_step;
use crate::common::{Pairs, World, bnode_layout, formats, start};

fn number(key: u64) -> [u8; 8] {
    key.to_be_bytes()
}

/// The words of one table's root, its lock and its owner are no other table's: two that lie beside each other
/// grow from nothing by turns, and each holds what it was given.
async fn two_tables(session: Session) {
    let tiny = formats()[0].1;
    let made = [create(&session, &tiny).await, create(&session, &tiny).await];
    let mut tables = Vec::new();
    for made in made {
        tables.push(open(&session, made, 16, DexOptions::default()).await);
    }
    for key in 0..600_u64 {
        for (at, table) in (0_u64..).zip(&tables) {
            let new = table.insert(&session, &number(key * 7 % 601), &number(key + at)).await;
            assert_eq!(new, Ok(true));
        }
    }
    let mut value = Vec::new();
    for (at, table) in (0_u64..).zip(&tables) {
        for key in 0..600_u64 {
            assert_eq!(table.get(&session, &number(key * 7 % 601), &mut value).await, Ok(true));
            assert_eq!(value, number(key + at));
        }
    }
    // Each as whoever opens it next finds it.
    for table in &tables {
        table.close(&session).await.expect("close");
    }
    for made in made {
        let index = open(&session, made, 16, DexOptions::default()).await;
        let mut audit = farleaf_pool::Audit::new(&session).await.expect("audit");
        let report = index.verify(&session, &mut audit).await.expect("verify");
        assert_eq!((report.problems, report.keys), (Vec::new(), 600));
        index.close(&session).await.expect("close");
    }
}

#[test]
fn tables_beside_each_other_grow_by_themselves() {
    World::default().on_mapped(two_tables);
    World::default().on_sim(two_tables);
}

/// A parent is not held while a child of it is read: misses of many leaves below one parent are under way at
/// the same time, and a hit beside them does not wait.
#[test]
fn misses_below_one_parent_overlap() {
    const LEAVES: u64 = 16;
    let sim = Sim::new(World::default().sim_config()).expect("sim");
    let endpoint = sim.fabric(0).any_endpoint().expect("endpoint");
    sim.block_on(async {
        let session = start(endpoint, &World::default().pool_options()).await;
        let made = create(&session, &TableFormat::fixed8(Engine::BTree)).await;
        let volatile = DexOptions { durability: Durability::Volatile, ..DexOptions::default() };
        let index = open(&session, made, 64, volatile).await;
        let pairs: Vec<_> =
            (0..42 * 20_u64).map(|key| (number(key).to_vec(), number(key).to_vec())).collect();
        let loaded = index.bulk_load(&session, &mut Pairs(pairs.iter())).await;
        assert_eq!(loaded, Ok(42 * 20));
        index.close(&session).await.expect("close");
        let index = open(&session, made, 64, volatile).await;
        // The root, which has all leaves below it, and one leaf; then another leaf alone.
        let mut value = Vec::new();
        assert_eq!(index.get(&session, &number(0), &mut value).await, Ok(true));
        let begun_ns = session.endpoint().now_ns();
        assert_eq!(index.get(&session, &number(42), &mut value).await, Ok(true));
        let alone_ns = session.endpoint().now_ns() - begun_ns;
        let mut sessions = Vec::new();
        for _ in 0..LEAVES {
            let endpoint = session.endpoint().clone();
            sessions.push(session.pool().session(endpoint).await.expect("session"));
        }
        let left = Rc::new(Cell::new(LEAVES));
        let begun_ns = session.endpoint().now_ns();
        for (leaf, session) in (0..LEAVES).zip(sessions) {
            let (index, left) = (index.clone(), Rc::clone(&left));
            let endpoint = session.endpoint().clone();
            endpoint.spawn(async move {
                let key = number(42 * (leaf + 2));
                assert_eq!(index.get(&session, &key, &mut Vec::new()).await, Ok(true));
                left.set(left.get() - 1);
            });
        }
        let mut hit = false;
        while left.get() > 0 {
            session.endpoint().sleep(50).await;
            if index.tree().stats().leaves_admitted == 2 && !hit {
                // All are on their way: a leaf that is there is read all the same.
                let before_ns = session.endpoint().now_ns();
                assert_eq!(index.get(&session, &number(0), &mut value).await, Ok(true));
                hit = session.endpoint().now_ns() - before_ns < alone_ns / 2;
            }
        }
        let all_ns = session.endpoint().now_ns() - begun_ns;
        println!("one miss {alone_ns} ns, {LEAVES} together {all_ns} ns");
        assert!(hit && all_ns < 4 * alone_ns, "{alone_ns} {all_ns}");
        assert_eq!(index.tree().stats().reads_leaf, 2 + LEAVES);
        check(&session, &index).await;
    })
    .expect("the simulation ends");
}

/// Caches that no operation fits into are refused, and say what the least is; so are shares that are none, and
/// what would leave no way to free a frame.
#[test]
fn a_cache_that_cannot_work_is_refused() {
    World::default().on_mapped(|session| async move {
        let tiny = formats()[0].1;
        let (meta, layout) = create(&session, &tiny).await;
        for cache_bytes in [0, 1, 8 * 256 - 1] {
            let options = DexOptions { cache_bytes, ..DexOptions::default() };
            let Err(IndexError::Invalid(text)) = try_open(&session, (meta, layout), options).await
            else {
                panic!("{cache_bytes} bytes are taken");
            };
            assert!(text.contains("the least is 8, 2048 bytes"), "{text}");
        }
        type Set = fn(&mut DexOptions, f64);
        let shares: [Set; 5] = [
            |options, share| options.cooling_ratio = share,
            |options, share| options.admission = Admission::Chance(share),
            |options, share| options.merge_low = share,
            |options, share| options.merge_sum = share,
            |options, share| options.bulk_fill = share,
        ];
        let refused = async |options: DexOptions, says: &str| {
            let options = DexOptions { cache_bytes: 8 * 256, ..options };
            let Err(IndexError::Invalid(text)) = try_open(&session, (meta, layout), options).await
            else {
                panic!("taken: {options:?}");
            };
            assert!(text.contains(says), "{text}");
        };
        for set in shares {
            for share in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
                let mut options = DexOptions::default();
                set(&mut options, share);
                refused(options, "0 to 1").await;
            }
        }
        refused(DexOptions { sample_count: 0, ..DexOptions::default() }, "at least 1").await;
        refused(DexOptions { probe_buckets: 0, ..DexOptions::default() }, "at least 1").await;
        // What is left is odd at most.
        let mut held = 0;
        for (at, share) in (0_u64..).zip([0.0, 1.0]) {
            let options = DexOptions {
                cooling_ratio: share,
                admission: Admission::Chance(share),
                merge_low: share,
                merge_sum: share,
                sample_count: 1,
                probe_buckets: 1,
                scan_prefetch: usize::MAX,
                combine: usize::MAX,
                offload_level: u8::MAX,
                ..DexOptions::default()
            };
            let index = open(&session, (meta, layout), 8, options).await;
            for key in 0..60 {
                let key = number(key * 5 + at);
                assert_eq!(index.insert(&session, &key, &key).await, Ok(true), "{share}");
                held += 1;
                session.tick().await.expect("tick");
            }
            assert_eq!(check(&session, &index).await.keys, held);
            index.close(&session).await.expect("close");
        }
    });
}

/// The smallest cache that can be, one compute server with one memory server, and eight with eight: clients
/// change and read all keys, and come to an end.
#[test]
fn the_smallest_cache_is_enough_for_one_and_for_eight() {
    let format = formats()[0].1;
    for (servers, seed) in [(1, 5), (8, 6)] {
        println!("{servers} compute and memory servers");
        let world = World { servers, region_bytes: 16 << 20, ..World::default() };
        let mut config = config(seed, servers);
        (config.memory_servers, config.region_bytes) = (servers, world.region_bytes);
        let sim = Sim::new(config).expect("sim");
        let cluster = Hosts::of(&sim);
        let layout = bnode_layout(&format);
        let cut = if servers == 1 {
            Vec::new()
        } else {
            let cut = equal_width(layout.options().key, servers).expect("fixed");
            assert_eq!(cut, bounds(&format, servers));
            cut
        };
        let all = members_of(&sim, world, &format, &cut, 8);
        for (compute, server) in all.iter().enumerate() {
            serve(&sim, compute, server, &cluster);
        }
        let running = Rc::new(Cell::new(servers));
        let models = Rc::new(std::cell::RefCell::new(BTreeMap::new()));
        for (compute, server) in all.iter().enumerate() {
            let endpoint = sim.fabric(compute).any_endpoint().expect("endpoint");
            let (pool, index) = (server.pool.clone(), server.index.clone());
            let (running, models) = (Rc::clone(&running), Rc::clone(&models));
            let cluster = cluster.clone();
            sim.spawn(compute, async move {
                let session = pool.session(endpoint).await.expect("session");
                let mut rng = fastrand::Rng::with_seed(seed ^ compute as u64);
                let mut model = BTreeMap::new();
                for step in 0..400 / servers {
                    session.tick().await.expect("tick");
                    one_step(&session, &index, &format, compute, &mut rng, &mut model, step).await;
                }
                models.borrow_mut().append(&mut model);
                running.set(running.get() - 1);
                if running.get() == 0 {
                    cluster.members().into_iter().for_each(|who| cluster.leave(who));
                }
            });
        }
        sim.run().expect("the simulation ends");
        finish(&sim, &all, &format, models.take(), 0);
    }
}
