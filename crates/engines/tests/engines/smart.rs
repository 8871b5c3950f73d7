//! Tests of the engine `smart` alone: its costs to the operation, and keys that are awkward for radix trees.

use std::collections::BTreeMap;

use farleaf_engines::{AnyIndex, Engine, TableFormat};
use farleaf_fabric::{Cost, OpKind};
use farleaf_index::{
    Entries, Index, IndexError, KeyFormat, OpenOptions, ScanRange, Settings, Spec, ValueFormat,
};
use farleaf_pool::Session;

use crate::common::{Pairs, World, check, cost_since, costs, create, settle};

fn number(key: u64) -> [u8; 8] {
    // The low byte differs first: nodes with few slots, far from the root.
    key.to_be_bytes()
}

fn fixed8() -> TableFormat {
    TableFormat::fixed8(Engine::Smart)
}

fn bytes() -> TableFormat {
    TableFormat::new(Engine::Smart, Spec::ANY)
}

/// A table with so many even keys, each of which was looked up once.
async fn warm(session: &Session, keys: u64) -> AnyIndex {
    let index = create_with(session, fixed8(), 64 << 20).await;
    for key in 0..keys {
        let added = index.insert(session, &number(2 * key), &number(key)).await;
        assert_eq!(added, Ok(true));
    }
    for key in 0..keys {
        assert_eq!(index.get(session, &number(2 * key), &mut Vec::new()).await, Ok(true));
    }
    index
}

async fn create_with(session: &Session, format: TableFormat, cache_bytes: u64) -> AnyIndex {
    let root = AnyIndex::create(session, "t", &format).await.expect("create");
    let settings = Settings::default().with("cache", &cache_bytes.to_string());
    let options = OpenOptions { settings, ..OpenOptions::default() };
    AnyIndex::open(session, &root, &options).await.expect("open")
}

fn cost(reads: u64, writes: u64, cas: u64, round_trips: u64) -> Cost {
    Cost { reads, writes, cas, round_trips, ..Cost::default() }
}

/// What an operation has cost, without bytes and chains.
fn verbs(found: Cost) -> Cost {
    cost(found.reads, found.writes, found.cas, found.round_trips)
}

async fn costs_of_warm_operations(session: Session) {
    let index = warm(&session, 100).await;
    let (mut value, mut held) = (Vec::new(), Vec::new());

    let before = costs(&session);
    assert_eq!(index.get(&session, &number(84), &mut value).await, Ok(true));
    let get = cost_since(&session, &before, OpKind::Get);
    assert_eq!(verbs(get), cost(1, 0, 0, 1));
    assert_eq!(get.bytes_read, 64);
    assert_eq!(costs(&session).since(&before).total(), get, "and nothing beside it");

    // A key without a slot costs its node; one beside another leaf costs both.
    let before = costs(&session);
    assert_eq!(index.get(&session, &number(85), &mut value).await, Ok(false));
    assert_eq!(verbs(cost_since(&session, &before, OpKind::Get)), cost(1, 0, 0, 1));

    let before = costs(&session);
    assert_eq!(index.update(&session, &number(84), &number(7)).await, Ok(true));
    assert_eq!(verbs(cost_since(&session, &before, OpKind::Update)), cost(1, 1, 1, 3));

    let before = costs(&session);
    assert_eq!(index.insert(&session, &number(85), &number(1)).await, Ok(true));
    let insert = cost_since(&session, &before, OpKind::Insert);
    assert_eq!(verbs(insert), cost(1, 1, 1, 2));

    let before = costs(&session);
    assert_eq!(index.insert(&session, &number(85), &number(2)).await, Ok(false));
    assert_eq!(verbs(cost_since(&session, &before, OpKind::Insert)), cost(1, 0, 0, 1));

    let before = costs(&session);
    assert_eq!(index.remove(&session, &number(85)).await, Ok(true));
    assert_eq!(verbs(cost_since(&session, &before, OpKind::Remove)), cost(1, 1, 1, 3));

    // The leaf is still there: it comes back in place, by the value and then the head.
    let before = costs(&session);
    assert_eq!(index.upsert(&session, &number(85), &number(3)).await, Ok(true));
    assert_eq!(verbs(cost_since(&session, &before, OpKind::Upsert)), cost(3, 2, 1, 5));

    let before = costs(&session);
    let (key, old, new) = (number(84), number(7), number(8));
    let exchange = index.compare_exchange(&session, &key, Some(&old), Some(&new), &mut held).await;
    assert!(exchange.is_ok());
    assert_eq!(verbs(cost_since(&session, &before, OpKind::CompareExchange)), cost(1, 1, 1, 3));
    check(&session, &[&index]).await;
}

#[test]
fn warm_operations_cost_what_they_must() {
    World::default().on_mapped(costs_of_warm_operations);
    World::default().on_sim_with(World::default().sim_config(), costs_of_warm_operations);
}

async fn costs_of_warm_splits(session: Session) {
    let index = warm(&session, 100).await;
    let insert = async |key: u64| {
        let before = costs(&session);
        assert_eq!(index.insert(&session, &number(key), &number(key)).await, Ok(true));
        verbs(cost_since(&session, &before, OpKind::Insert))
    };
    let get = async |key: u64| {
        let before = costs(&session);
        let found = index.get(&session, &number(key), &mut Vec::new()).await;
        (found, verbs(cost_since(&session, &before, OpKind::Get)))
    };
    // A node that comes in between: it is known, and its leaves are.
    insert(0x300).await;
    assert_eq!(get(0x300).await, (Ok(true), cost(1, 0, 0, 1)));
    // The leaf of another key, its node, both objects, the slot.
    assert_eq!(get(0x301).await, (Ok(false), cost(2, 0, 0, 2)));
    assert_eq!(insert(0x301).await, cost(2, 2, 1, 4));
    assert_eq!(get(0x301).await, (Ok(true), cost(1, 0, 0, 1)));
    assert_eq!(get(0x302).await, (Ok(false), cost(1, 0, 0, 1)));
    let slots = 14;
    for key in 0x302..0x300 + slots {
        assert_eq!(insert(key).await, cost(1, 1, 1, 2), "{key:#x}");
    }
    // The full node and its parent; the leaf and the copy; DEAD, the slots, the parent's slot, the leaf's.
    let last = 0x300 + slots;
    assert_eq!(insert(last).await, cost(2, 2, slots + 3, 6));
    assert_eq!(insert(last + 1).await, cost(1, 1, 1, 2));
    assert_eq!(get(last).await, (Ok(true), cost(1, 0, 0, 1)));
    check(&session, &[&index]).await;
}

#[test]
fn warm_splits_and_replaced_nodes_cost_what_they_must() {
    World::default().on_mapped(costs_of_warm_splits);
    World::default().on_sim_with(World::default().sim_config(), costs_of_warm_splits);
}

/// Without a cache each node on the way is read.
#[test]
fn an_operation_without_a_cache_reads_its_way() {
    World::default().on_mapped(|session| async move {
        let index = create_with(&session, fixed8(), 0).await;
        for key in 0..10 {
            assert_eq!(index.insert(&session, &number(key), &number(key)).await, Ok(true));
        }
        let before = costs(&session);
        assert_eq!(index.get(&session, &number(4), &mut Vec::new()).await, Ok(true));
        // The root, one node that compresses six bytes, and the leaf.
        let get = cost_since(&session, &before, OpKind::Get);
        assert_eq!(verbs(get), cost(3, 0, 0, 3));
        assert_eq!(get.bytes_read, 2_072 + 128 + 64);
    });
}

/// An idle epoch later, what was cached still proves itself.
#[test]
fn cached_nodes_outlive_epochs() {
    World::default().on_mapped(|session| async move {
        let index = warm(&session, 40).await;
        for _ in 0..3 {
            settle(&session).await;
            for key in 0..40 {
                let before = costs(&session);
                assert_eq!(index.get(&session, &number(2 * key), &mut Vec::new()).await, Ok(true));
                assert_eq!(cost_since(&session, &before, OpKind::Get).reads, 1, "{key}");
            }
        }
    });
}

/// Prefixes of other keys, zero bytes, the empty key, and common bytes around what nodes compress.
#[test]
fn awkward_keys_live_side_by_side() {
    let mut keys: Vec<Vec<u8>> = vec![vec![], vec![0], vec![0, 0], b"a".into(), b"a\0".into()];
    for common in [5, 6, 7, 8, 12, 13, 14, 20, 21, 240, 241, 242, 255, 256, 1_022] {
        for tail in [&b""[..], b"\0", b"x", b"xy"] {
            let mut key = vec![b'p'; common];
            key.extend_from_slice(tail);
            keys.push(key);
        }
        keys.push([vec![b'p'; common / 2], vec![b'q'; common - common / 2]].concat());
    }
    for byte in 0..=255 {
        keys.push(vec![b'n', byte]);
    }
    keys.push(b"n".into());
    keys.sort();
    keys.dedup();
    for wide in [true, false] {
        let key = KeyFormat::Bytes { max: if wide { 1_024 } else { 240 } };
        let format = bytes().with_keys(key);
        let mut keys: Vec<Vec<u8>> =
            keys.iter().filter(|key| wide || key.len() <= 240).cloned().collect();
        fastrand::Rng::with_seed(5).shuffle(&mut keys);
        World::default().on_mapped(|session| async move {
            let index = create(&session, "t", &format).await;
            let mut model = BTreeMap::new();
            for (at, key) in keys.iter().enumerate() {
                let value = vec![at as u8; at % 40];
                assert_eq!(index.insert(&session, key, &value).await, Ok(true), "{key:?}");
                assert_eq!(index.insert(&session, key, &value).await, Ok(false), "{key:?}");
                model.insert(key.clone(), value);
            }
            for reverse in [false, true] {
                let mut out = Entries::new();
                let range = ScanRange { reverse, ..ScanRange::ALL };
                index.scan(&session, range, usize::MAX, &mut out).await.expect("scan");
                let found: Vec<_> =
                    out.iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
                let mut wanted: Vec<_> = model.clone().into_iter().collect();
                if reverse {
                    wanted.reverse();
                }
                assert!(found == wanted);
            }
            assert_eq!(check(&session, &[&index]).await.keys, keys.len() as u64);
            for key in &keys {
                assert_eq!(index.remove(&session, key).await, Ok(true), "{key:?}");
                assert_eq!(index.remove(&session, key).await, Ok(false), "{key:?}");
            }
            assert_eq!(check(&session, &[&index]).await.keys, 0);
        });
    }
}

/// A loaded table has the smallest nodes that hold its children, and reads as one that was filled.
#[test]
fn a_loaded_table_is_small_and_whole() {
    World::default().on_mapped(|session| async move {
        let index = create(&session, "t", &fixed8()).await;
        let mut rng = fastrand::Rng::with_seed(3);
        let pairs: BTreeMap<Vec<u8>, Vec<u8>> = (0..20_000)
            .map(|at: u64| (number(rng.u64(..) >> 1).to_vec(), number(at).to_vec()))
            .collect();
        let sorted: Vec<_> = pairs.clone().into_iter().collect();
        let count = sorted.len() as u64;
        assert_eq!(index.bulk_load(&session, &mut Pairs(sorted.iter())).await, Ok(count));
        let report = check(&session, &[&index]).await;
        assert_eq!(report.keys, count);
        // 128 nodes of 158 slots, and the root.
        assert!(report.inner_bytes / count < 30, "{report:?}");
        let again = index.bulk_load(&session, &mut Pairs(sorted.iter())).await;
        assert!(matches!(again, Err(IndexError::Invalid(_))));
        for (key, value) in sorted.iter().take(500) {
            let mut held = Vec::new();
            assert_eq!(index.get(&session, key, &mut held).await, Ok(true));
            assert_eq!(&held, value);
        }
    });
}

/// Values that grow and shrink, in their leaf, to a larger one, to a record and back.
#[test]
fn values_of_all_sizes_change_into_each_other() {
    let format = fixed8().with_values(ValueFormat::Bytes);
    World::default().on_sim(move |session| async move {
        let index = create(&session, "t", &format).await;
        let mut rng = fastrand::Rng::with_seed(11);
        let mut model: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        for step in 0..3_000_u64 {
            let key = rng.u64(..6);
            let len = [0, 1, 7, 8, 9, 30, 100, 400, 1_024, 1_025, 3_000][rng.usize(..11)];
            let value = vec![step as u8; len];
            if rng.u8(..5) == 0 {
                let gone = index.remove(&session, &number(key)).await.expect("remove");
                assert_eq!(gone, model.remove(&key).is_some());
            } else {
                let added = index.upsert(&session, &number(key), &value).await.expect("upsert");
                assert_eq!(added, model.insert(key, value).is_none());
            }
            let mut held = Vec::new();
            let key = rng.u64(..6);
            let has = index.get(&session, &number(key), &mut held).await.expect("get");
            assert_eq!(has.then_some(&held), model.get(&key));
            if step % 64 == 0 {
                session.tick().await.expect("tick");
            }
        }
        assert_eq!(check(&session, &[&index]).await.keys, model.len() as u64);
    });
}

/// A task takes the leaves of removed keys out of the tree; what comes back meanwhile stays.
#[test]
fn removed_keys_leave_the_tree() {
    World::default().on_sim(|session| async move {
        let index = create(&session, "t", &fixed8()).await;
        for key in 0..200 {
            assert_eq!(index.insert(&session, &number(key), &number(key)).await, Ok(true));
        }
        let full = check(&session, &[&index]).await;
        for key in 0..200 {
            assert_eq!(index.remove(&session, &number(key)).await, Ok(true));
            if key % 3 == 0 {
                assert_eq!(index.insert(&session, &number(key), &number(1)).await, Ok(true));
            }
            session.tick().await.expect("tick");
        }
        let report = check(&session, &[&index]).await;
        assert_eq!(report.keys, 67);
        let AnyIndex::Smart(smart) = &index else { panic!("it is no table of this engine") };
        let counts: BTreeMap<_, _> = smart.counts().into_iter().collect();
        assert!(counts["unlinked"] > 60 && counts["splits"] > 0, "{counts:?}");
        assert!(counts["relocated"] > 3 && counts["taken_over"] == 0, "{counts:?}");
        assert!(smart.cached().0 > 0);
        // Batches of 64 were unlinked: the leaves of the third that came back are there, and of the last batch.
        let leaves = |report: &farleaf_index::TableReport| report.nodes_per_level[0];
        assert!(leaves(&report) < 67 + 64, "{report:?}");
        assert_eq!(leaves(&full), 200);
        for key in 0..200 {
            let has = index.get(&session, &number(key), &mut Vec::new()).await;
            assert_eq!(has, Ok(key % 3 == 0));
        }
    });
}

/// Nodes whose children are gone leave the tree: a table that has lost all of its keys is as small as a new one.
#[test]
fn nodes_without_children_leave_the_tree() {
    World::default().on_sim(|session| async move {
        let index = create(&session, "t", &bytes()).await;
        let empty = check(&session, &[&index]).await;
        let mut keys: Vec<Vec<u8>> =
            (0..300).map(|at| format!("key:{at:05}").into_bytes()).collect();
        // Chains of nodes, and keys that end where nodes dispatch.
        keys.extend((0..30).map(|len| vec![b'c'; len]));
        keys.extend((0..20).map(|at| [vec![b'd'; 25], vec![at]].concat()));
        for key in &keys {
            assert_eq!(index.insert(&session, key, b"1").await, Ok(true), "{key:?}");
        }
        let full = check(&session, &[&index]).await;
        fastrand::Rng::with_seed(9).shuffle(&mut keys);
        for (at, key) in keys.iter().enumerate() {
            assert_eq!(index.remove(&session, key).await, Ok(true), "{key:?}");
            if at % 50 == 0 {
                index.close(&session).await.expect("close");
                let report = check(&session, &[&index]).await;
                assert_eq!(report.keys, (keys.len() - at - 1) as u64);
                for (place, key) in keys.iter().enumerate() {
                    let has = index.get(&session, key, &mut Vec::new()).await;
                    assert_eq!(has, Ok(place > at), "{key:?}");
                }
            }
            session.tick().await.expect("tick");
        }
        index.close(&session).await.expect("close");
        let report = check(&session, &[&index]).await;
        assert_eq!((report.keys, report.inner_bytes), (0, empty.inner_bytes), "{full:?}");
        let AnyIndex::Smart(smart) = &index else { panic!("it is no table of this engine") };
        let counts = BTreeMap::from_iter(smart.counts());
        assert!(counts["nodes_removed"] > 30, "{counts:?}");
        for key in &keys {
            assert_eq!(index.insert(&session, key, b"2").await, Ok(true), "{key:?}");
        }
        assert_eq!(check(&session, &[&index]).await.keys, keys.len() as u64);
    });
}

/// Radix or hash, whole nodes or not, with room for some nodes or all: the same answers, and warm gets of one READ.
#[test]
fn the_index_of_the_cache_changes_no_answer() {
    for (index, types) in
        [("radix", "fine"), ("hash", "fine"), ("hash", "whole"), ("radix", "whole")]
    {
        for (format, cache) in [(bytes(), "16KiB"), (bytes(), "64MiB"), (fixed8(), "64MiB")] {
            World::default().on_mapped(|session| async move {
                let root = AnyIndex::create(&session, "t", &format).await.expect("create");
                let settings = Settings::default().with("cache", cache).with("types", types);
                let settings = settings.with("cache_index", index);
                let options = OpenOptions { settings, ..OpenOptions::default() };
                let table = AnyIndex::open(&session, &root, &options).await.expect("open");
                let (mut rng, mut model) = (fastrand::Rng::with_seed(8), BTreeMap::new());
                for step in 0..2_000_u64 {
                    let key = crate::common::key(&format, &mut rng, 150);
                    if rng.u8(..4) == 0 {
                        let gone = table.remove(&session, &key).await.expect("remove");
                        assert_eq!(gone, model.remove(&key).is_some());
                    } else {
                        let value = number(step).to_vec();
                        let added = table.upsert(&session, &key, &value).await.expect("upsert");
                        assert_eq!(added, model.insert(key, value).is_none());
                    }
                    let (key, mut held) = (crate::common::key(&format, &mut rng, 150), Vec::new());
                    let has = table.get(&session, &key, &mut held).await.expect("get");
                    assert_eq!(has.then_some(&held), model.get(&key), "{index}, {types}, {key:?}");
                    if step % 64 == 0 {
                        session.tick().await.expect("tick");
                    }
                }
                let AnyIndex::Smart(smart) = &table else {
                    panic!("it is no table of this engine")
                };
                let most = if cache == "16KiB" { 16 << 10 } else { 64 << 20 };
                assert!(smart.cached().0 <= most, "{:?}", smart.cached());
                for key in model.keys().filter(|_| cache == "64MiB") {
                    table.get(&session, key, &mut Vec::new()).await.expect("get");
                    let before = costs(&session);
                    table.get(&session, key, &mut Vec::new()).await.expect("get");
                    assert_eq!(cost_since(&session, &before, OpKind::Get).reads, 1, "{key:?}");
                }
                assert_eq!(check(&session, &[&table]).await.keys, model.len() as u64);
            });
        }
    }
}
