//! Tests of tables whose nodes reserve their room: growth in place to the operation, and sizes.

use std::collections::BTreeMap;

use crate::common::{Pairs, World, check, cost_since, costs, settle, stock, with_shape};
use farleaf_engines::{AnyIndex, Engine, TableFormat};
use farleaf_fabric::{Cost, OpKind};
use farleaf_index::{Index, OpenOptions, Settings};
use farleaf_pool::Session;

/// Bytes of a node.
const NODE: u64 = 2_072;

fn format() -> TableFormat {
    with_shape(TableFormat::fixed8(Engine::Smart), &[("nodes", "reserve")])
}

/// Key `number`; all but the last byte are the same for small numbers.
fn key(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

/// A table, by one handle with a cache and one without.
async fn warm_and_cold(session: &Session) -> [AnyIndex; 2] {
    let root = AnyIndex::create(session, "t", &format()).await.expect("create");
    let mut open = Vec::new();
    for cache in ["64MiB", "0"] {
        let settings = Settings::default().with("cache", cache);
        let options = OpenOptions { settings, ..OpenOptions::default() };
        open.push(AnyIndex::open(session, &root, &options).await.expect("open"));
    }
    open.try_into().expect("two")
}

/// READs, WRITEs, CASes and round trips.
fn verbs(cost: Cost) -> [u64; 4] {
    [cost.reads, cost.writes, cost.cas, cost.round_trips]
}

async fn insert(session: &Session, index: &AnyIndex, number: u64) -> Cost {
    let before = costs(session);
    assert_eq!(index.insert(session, &key(number), &key(number)).await, Ok(true), "{number}");
    cost_since(session, &before, OpKind::Insert)
}

async fn get(session: &Session, index: &AnyIndex, number: u64) -> Cost {
    let before = costs(session);
    assert_eq!(index.get(session, &key(number), &mut Vec::new()).await, Ok(true), "{number}");
    cost_since(session, &before, OpKind::Get)
}

#[test]
fn a_node_grows_where_it_stands() {
    World::default().on_mapped(|session| async move {
        let [warm, cold] = warm_and_cold(&session).await;
        for number in 0..4 {
            insert(&session, &warm, number).await;
        }
        let report = check(&session, &[&warm]).await;
        assert_eq!((report.inner_bytes, report.reserved_bytes), (2 * NODE, NODE - 48));
        // The first one READs the meta object as well.
        get(&session, &cold, 3).await;
        assert_eq!(get(&session, &cold, 3).await.bytes_read, NODE + 48 + 64);

        // One CAS links the leaf, and one grows the header: the cache does not know the slot that leads to the node.
        assert_eq!(verbs(insert(&session, &warm, 4).await), [1, 1, 2, 3]);
        let report = check(&session, &[&warm]).await;
        assert_eq!((report.inner_bytes, report.reserved_bytes), (2 * NODE, NODE - 80));
        assert_eq!(verbs(get(&session, &warm, 4).await), [1, 0, 0, 1]);

        // The parent's slot still says four slots: a reader READs the node again, and a task corrects the slot.
        let stale = get(&session, &cold, 4).await;
        assert_eq!((stale.reads, stale.bytes_read), (4, NODE + 48 + 80 + 64));
        settle(&session).await;
        let current = get(&session, &cold, 4).await;
        assert_eq!((verbs(current), current.bytes_read), ([3, 0, 0, 3], NODE + 80 + 64));

        // An insert that came by the parent's slot corrects it in the round trip in which the header grows.
        for number in 5..8 {
            insert(&session, &cold, number).await;
        }
        assert_eq!(verbs(insert(&session, &cold, 8).await), [2, 1, 3, 5]);
        assert_eq!(get(&session, &cold, 8).await.bytes_read, NODE + 144 + 64);

        for number in 9..256 {
            insert(&session, if number % 3 == 0 { &cold } else { &warm }, number).await;
        }
        let report = check(&session, &[&warm]).await;
        assert_eq!((report.keys, report.inner_bytes, report.reserved_bytes), (256, 2 * NODE, 0));
        for index in [&warm, &cold] {
            let AnyIndex::Smart(smart) = index else { panic!("it is no table of this engine") };
            let counts = BTreeMap::from_iter(smart.counts());
            assert!(counts["grown"] >= 1 && counts["relocated"] == 0, "{counts:?}");
        }
        for number in 0..256 {
            get(&session, &warm, number).await;
            get(&session, &cold, number).await;
            assert_eq!(warm.remove(&session, &key(number)).await, Ok(true));
        }
        warm.close(&session).await.expect("close");
        // Nodes stay, with a slot for each byte.
        let report = check(&session, &[&warm]).await;
        assert_eq!((report.keys, report.inner_bytes), (0, 2 * NODE));
        // The first leaf beyond a 16th of a block takes a block on the other memory server.
        insert(&session, &warm, 76).await;
        for number in 77..100 {
            assert_eq!(insert(&session, &warm, number).await.cas, 1, "{number}");
        }
    });
}

/// A node below the root never leaves the tree: the leaf under its cached slot is enough to split it.
#[test]
fn a_leaf_of_a_cached_node_is_split_by_one_read() {
    World::default().on_mapped(|session| async move {
        let [warm, cold] = warm_and_cold(&session).await;
        stock(&session, &[64, NODE as usize], 20).await;
        insert(&session, &warm, 0).await;
        insert(&session, &warm, 1).await;
        assert_eq!(verbs(insert(&session, &warm, 2).await), [1, 1, 1, 2]);
        insert(&session, &warm, 0x300).await;
        // The leaf of another key tells where they part.
        assert_eq!(verbs(insert(&session, &warm, 0x301).await), [1, 2, 1, 3]);
        assert_eq!(verbs(insert(&session, &warm, 0x302).await), [1, 1, 1, 2]);
        // Another handle has split the leaf, and has emptied a slot.
        insert(&session, &warm, 0x400).await;
        insert(&session, &cold, 0x401).await;
        insert(&session, &warm, 0x402).await;
        insert(&session, &warm, 0x500).await;
        assert_eq!(cold.remove(&session, &key(0x500)).await, Ok(true));
        cold.close(&session).await.expect("close");
        insert(&session, &warm, 0x501).await;
        let numbers = [0, 1, 2, 0x300, 0x301, 0x302, 0x400, 0x401, 0x402, 0x501];
        for number in numbers {
            get(&session, &warm, number).await;
            get(&session, &cold, number).await;
        }
        assert_eq!(check(&session, &[&warm]).await.keys, numbers.len() as u64);
    });
}

#[test]
fn a_loaded_table_reserves_each_node() {
    World::default().on_mapped(|session| async move {
        let [warm, cold] = warm_and_cold(&session).await;
        let mut rng = fastrand::Rng::with_seed(3);
        let pairs: BTreeMap<Vec<u8>, Vec<u8>> = (0..5_000)
            .map(|at: u64| ((rng.u64(..) >> 1).to_be_bytes().to_vec(), key(at).to_vec()))
            .collect();
        let sorted: Vec<_> = pairs.into_iter().collect();
        let count = sorted.len() as u64;
        assert_eq!(warm.bulk_load(&session, &mut Pairs(sorted.iter())).await, Ok(count));
        let report = check(&session, &[&warm]).await;
        let nodes: u64 = report.nodes_per_level.iter().skip(1).sum();
        assert_eq!((report.keys, report.inner_bytes), (count, nodes * NODE));
        // About 39 leaves in each of 128 nodes: 64 slots count.
        assert!(report.reserved_bytes > (nodes - 20) * (NODE - 528), "{report:?}");
        for (at, (key, value)) in sorted.iter().enumerate().take(500) {
            let mut held = Vec::new();
            let index = if at % 2 == 0 { &warm } else { &cold };
            assert_eq!(index.get(&session, key, &mut held).await, Ok(true));
            assert_eq!(&held, value);
        }
    });
}

#[test]
fn engines_without_reserved_room_refuse_it() {
    World::default().on_mapped(|session| async move {
        for engine in [Engine::BTree, Engine::Dex, Engine::Dart] {
            let shaped = TableFormat::fixed8(engine).shaped(&format().shape());
            let why = shaped.expect_err("no such setting").to_string();
            assert!(why.contains("no setting is named \"nodes\""), "{engine}: {why}");
        }
        let root = AnyIndex::create(&session, "t", &format()).await.expect("create");
        let stored = farleaf_engines::StoredTable::of(&root).expect("a table");
        assert_eq!(stored.format().shape().get("nodes"), Some("reserve"));
    });
}
