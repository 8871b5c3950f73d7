//! Copies of inner nodes that have become old: their cost, and what they lead to once memory is used again.

use std::cell::RefCell;
use std::collections::BTreeMap;

use farleaf_engines::Engine;
use farleaf_fabric::sim::Sim;
use farleaf_fabric::{OpKind, ToAny};
use farleaf_index::{CounterSet, Entries, Index, ScanRange, Settings};
use farleaf_pool::{PoolOptions, Session};

use super::{counters, loaded, number, since};
use crate::common::{World, check, costs, join, lab_table, start};

const LEAF: u64 = 1024;

/// Runs with a session of each of two compute servers.
pub(crate) fn with_two(seed: u64, test: impl AsyncFnOnce(Session, Session)) {
    let world = World { seed, ..World::default() };
    let mut config = world.sim_config();
    config.compute_servers = 2;
    let sim = Sim::new(config).expect("sim");
    let [first, second] = [0, 1].map(|at| sim.fabric(at).any_endpoint().expect("endpoint"));
    let options = PoolOptions { block_bytes: 64 << 10, ..world.pool_options() };
    sim.block_on(async {
        let first = start(first, &options).await;
        let second = join(second).await;
        test(first, second).await;
    })
    .expect("the simulation ends");
}

#[test]
fn a_split_costs_another_compute_server_a_leaf_and_a_parent() {
    with_two(1, async |first, second| {
        let index = loaded(&first, 2_000, &[]).await;
        let other = farleaf_harness::open_table(&second, "t", 1 << 16, &Settings::default()).await;
        let other = other.expect("open");
        let mut value = Vec::new();
        for key in 0..2_000 {
            assert_eq!(other.get(&second, &number(2 * key), &mut value).await, Ok(true));
        }
        // The first leaf, of 28 pairs, is split in two.
        for key in 0..14 {
            assert_eq!(index.insert(&first, &number(2 * key + 1), &[1; 8]).await, Ok(true));
        }
        // A key of the right half: the old leaf and the new one, then the parent once, then nothing more.
        for (reads, key) in [(2, 54), (2, 54), (1, 54), (1, 2), (1, 3_998)] {
            let before = costs(&second);
            assert_eq!(other.get(&second, &number(key), &mut value).await, Ok(true));
            let expected = ([reads, 0, 0, reads], [reads * LEAF, 0]);
            assert_eq!(since(&second, &before, OpKind::Get), expected, "{key}");
        }
        assert_eq!(counters(&other).get("hints_right"), 1);
        assert_eq!(check(&first, &[&index]).await.keys, 2_014);
    });
}

/// A compute server that does not tick is an epoch behind another one. The root that the other one makes was then born after
/// all that this one remembers, and it READ the root word again and again, to give up (found by the crash points of
/// `p-sherman`).
#[test]
fn a_root_of_the_next_epoch_is_found_without_a_tick() {
    for engine in [Engine::Sherman, Engine::Chime] {
        with_two(7, async |first, second| {
            let (format, settings) = (lab_table(engine, "u64-tiny"), Settings::default());
            let index = farleaf_harness::create_table(&first, "t", &format, 1 << 12, &settings);
            let index = index.await.expect("a table");
            assert_eq!(index.insert(&first, &number(0), &[1; 8]).await, Ok(true));
            let other = farleaf_harness::open_table(&second, "t", 1 << 12, &settings).await;
            let other = other.expect("open");
            let pin = second.begin(OpKind::Other).await.expect("a pin");
            let mut ticks = 0;
            while first.epoch() == second.epoch() {
                first.tick().await.expect("tick");
                ticks += 1;
                assert!(ticks < 20, "the epoch does not move on");
            }
            for key in 1..200 {
                assert_eq!(index.insert(&first, &number(key), &[1; 8]).await, Ok(true));
            }
            let mut out = Entries::new();
            other.scan(&second, ScanRange::ALL, usize::MAX, &mut out).await.expect("scan");
            assert_eq!((out.len(), first.epoch()), (200, second.epoch() + 1), "{engine}");
            let mut value = Vec::new();
            for key in 0..200 {
                assert_eq!(other.get(&second, &number(key), &mut value).await, Ok(true));
                assert_eq!(other.update(&second, &number(key), &[2; 8]).await, Ok(true));
            }
            drop(pin);
            assert_eq!(check(&first, &[&index]).await.keys, 200);
        });
    }
}

/// One compute server fills and empties the table, so that nodes come and go and their memory is used again; another one
/// looks by copies of any age.
#[test]
fn old_copies_never_lead_to_what_took_the_place_of_their_nodes() {
    for seed in 0..6 {
        let counts = fill_and_empty(Engine::Sherman, seed);
        assert!(counts.get("merges") > 10, "{counts:?}");
    }
}

/// Fills and empties a table of that engine by one compute server, and checks what another one finds. Returns the counters
/// of both.
pub(crate) fn fill_and_empty(engine: Engine, seed: u64) -> CounterSet {
    let counts = RefCell::new(CounterSet::default());
    with_two(seed, async |first, second| {
        let name = ["u64-tiny", "bytes-tiny", "wide-tiny"][seed as usize % 3];
        let format = lab_table(engine, name);
        let settings = Settings::default();
        let index = farleaf_harness::create_table(&first, "t", &format, 1 << 12, &settings).await;
        let index = index.expect("a table");
        let other = farleaf_harness::open_table(&second, "t", 1 << 12, &settings).await;
        let other = other.expect("open");
        let mut rng = fastrand::Rng::with_seed(seed);
        let key = |number: u64| match name {
            "bytes-tiny" => format!("key {number:05}").into_bytes(),
            "wide-tiny" => [number.to_be_bytes(), [1; 8]].concat(),
            _ => number.to_be_bytes().to_vec(),
        };
        let bytes = if name == "wide-tiny" { 24 } else { 8 };
        let mut model = BTreeMap::new();
        for round in 0..40_u8 {
            let fills = round % 2 == 0;
            for _ in 0..120 {
                let key = key(rng.u64(..200));
                if fills || rng.u8(..4) == 0 {
                    let value = vec![round; bytes];
                    let new = index.upsert(&first, &key, &value).await.expect("upsert");
                    assert_eq!(new, model.insert(key, value).is_none());
                } else {
                    let gone = index.remove(&first, &key).await.expect("remove");
                    assert_eq!(gone, model.remove(&key).is_some());
                }
            }
            for _ in 0..6 {
                first.tick().await.expect("tick");
                second.tick().await.expect("tick");
            }
            let mut value = Vec::new();
            for _ in 0..30 {
                let key = key(rng.u64(..200));
                let is_there = other.get(&second, &key, &mut value).await.expect("get");
                assert_eq!(is_there.then_some(&value), model.get(&key));
                if rng.u8(..4) == 0 {
                    let new = vec![0x80 | round; bytes];
                    let there = other.update(&second, &key, &new).await.expect("update");
                    assert_eq!(there, model.contains_key(&key));
                    model.entry(key).and_modify(|held| *held = new);
                }
            }
            let mut out = Entries::new();
            let range = ScanRange { reverse: round % 3 == 0, ..ScanRange::ALL };
            other.scan(&second, range, usize::MAX, &mut out).await.expect("scan");
            let seen: BTreeMap<_, _> =
                out.iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
            assert_eq!((seen, out.len()), (model.clone(), model.len()));
        }
        for index in [&index, &other] {
            counts.borrow_mut().add_all(&counters(index));
        }
        assert_eq!(check(&first, &[&index]).await.keys, model.len() as u64);
    });
    counts.into_inner()
}
