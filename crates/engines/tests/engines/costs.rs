//! Cost tests: the exact remote operations and bytes of each operation.

use std::ops::Bound;

use crate::common::{Pairs, World, cost_since, costs, create, is_radix, stock, with_shape};
use farleaf_engines::{AnyIndex, Engine, TableFormat};
use farleaf_fabric::{Cost, Endpoint, OpKind};
use farleaf_index::{Entries, Exchange, Index, KeyFormat, ScanRange};
use farleaf_pool::Session;

/// Loads every other number below `2 * keys` and gives the height.
async fn load(session: &Session, index: &AnyIndex, keys: u64) -> u64 {
    let pairs: Vec<_> = (0..keys)
        .map(|key| ((2 * key).to_be_bytes().to_vec(), key.to_be_bytes().to_vec()))
        .collect();
    assert_eq!(index.bulk_load(session, &mut Pairs(pairs.iter())).await, Ok(keys));
    let mut audit = farleaf_pool::Audit::new(session).await.expect("audit");
    let report = index.verify(session, &mut audit).await.expect("verify");
    assert_eq!((report.keys, report.problems), (keys, Vec::new()));
    report.nodes_per_level.len() as u64
}

fn number(key: u64) -> [u8; 8] {
    key.to_be_bytes()
}

/// A cold get of a tree of height h is h READs of whole nodes in h round trips, present or not.
async fn get(session: Session, node_bytes: u32, keys: u64, height: u64) {
    let bytes = node_bytes.to_string();
    let format = with_shape(TableFormat::fixed8(Engine::BTree), &[("node_bytes", &bytes)]);
    let index = create(&session, "t", &format).await;
    assert_eq!(load(&session, &index, keys).await, height);
    let mut value = Vec::new();
    for (key, present) in
        [(0, true), (keys, keys.is_multiple_of(2)), (2 * keys - 2, true), (1, false)]
    {
        let before = costs(&session);
        assert_eq!(index.get(&session, &number(key), &mut value).await, Ok(present), "{key}");
        let cost = Cost {
            reads: height,
            round_trips: height,
            bytes_read: height * u64::from(node_bytes),
            ..Cost::default()
        };
        assert_eq!(cost_since(&session, &before, OpKind::Get), cost);
        assert_eq!(costs(&session).since(&before).total(), cost, "and nothing beside it");
        assert_eq!(costs(&session).since(&before).ops(OpKind::Get), 1);
    }
}

#[test]
fn a_get_reads_each_level_once() {
    for (node_bytes, keys, height) in [(1024, 20, 1), (1024, 1_000, 2), (256, 3_000, 4)] {
        let world = World { region_bytes: 16 << 20, ..World::default() };
        world.on_mapped(|session| get(session, node_bytes, keys, height));
        // Torn READs would be read again: costs are those of an honest fabric.
        on_honest_sim(world, move |session| get(session, node_bytes, keys, height));
    }
}

/// A change adds to that a CAS, in one round trip with the leaf's READ, and the leaf's WRITE and
/// the unlock in one more.
async fn changes(session: Session) {
    let index = create(&session, "t", &TableFormat::fixed8(Engine::BTree)).await;
    let height = load(&session, &index, 10_000).await;
    assert_eq!(height, 3);
    let by_write = session.endpoint().capabilities().write_vs_rmw;
    let unlock = if by_write {
        Cost { writes: 1, bytes_written: 8, ..Cost::default() }
    } else {
        Cost { cas: 1, bytes_written: 8, ..Cost::default() }
    };
    let nothing = {
        let mut cost = Cost {
            reads: height,
            cas: 1,
            chains: 2,
            round_trips: height + 1,
            bytes_read: height * 1024,
            bytes_written: 8,
            ..Cost::default()
        };
        cost += unlock;
        cost
    };
    let mut one_word = nothing;
    one_word += Cost { writes: 1, bytes_written: 1016, ..Cost::default() };
    let mut many_words = one_word;
    many_words += Cost { writes: 1, bytes_written: 64 + 1024, ..Cost::default() };

    let before = costs(&session);
    assert_eq!(index.update(&session, &number(500), &number(1)).await, Ok(true));
    assert_eq!(cost_since(&session, &before, OpKind::Update), one_word);
    assert_eq!(costs(&session).since(&before).total(), one_word, "and nothing beside it");

    let before = costs(&session);
    assert_eq!(index.update(&session, &number(501), &number(1)).await, Ok(false));
    assert_eq!(cost_since(&session, &before, OpKind::Update), nothing);

    let before = costs(&session);
    assert_eq!(index.upsert(&session, &number(502), &number(1)).await, Ok(false));
    assert_eq!(cost_since(&session, &before, OpKind::Upsert), one_word);

    let before = costs(&session);
    assert_eq!(index.insert(&session, &number(503), &number(1)).await, Ok(true));
    assert_eq!(cost_since(&session, &before, OpKind::Insert), many_words);

    let before = costs(&session);
    assert_eq!(index.insert(&session, &number(503), &number(1)).await, Ok(false));
    assert_eq!(cost_since(&session, &before, OpKind::Insert), nothing);

    let before = costs(&session);
    assert_eq!(index.remove(&session, &number(503)).await, Ok(true));
    assert_eq!(cost_since(&session, &before, OpKind::Remove), many_words);

    let before = costs(&session);
    let mut found = Vec::new();
    let (key, old, new) = (number(500), number(1), number(2));
    let exchange =
        index.compare_exchange(&session, &key, Some(&old[..]), Some(&new[..]), &mut found).await;
    assert_eq!(exchange, Ok((Exchange::Done, true)));
    assert_eq!(cost_since(&session, &before, OpKind::CompareExchange), one_word);
}

#[test]
fn a_change_adds_a_lock_a_write_and_an_unlock() {
    World::default().on_mapped(changes);
    on_honest_sim(World::default(), changes);
}

/// A split adds the new node, the old one under a redo record, the parent's separator, and a second
/// attempt. A merge counts as maintenance.
async fn splits_and_merges(session: Session) {
    let index = create(&session, "t", &TableFormat::fixed8(Engine::BTree)).await;
    let h = load(&session, &index, 10_000).await;
    // 42 of 60 entries a leaf: the first leaf is full after 18 more.
    for key in 0..18_u64 {
        assert_eq!(index.insert(&session, &number(2 * key + 1), &number(0)).await, Ok(true));
    }
    let before = costs(&session);
    assert_eq!(index.insert(&session, &number(37), &number(0)).await, Ok(true));
    let cost = cost_since(&session, &before, OpKind::Insert);
    // Attempt, split, attempt.
    assert_eq!(cost.reads, h + (h + 1) + h, "{cost:?}");
    assert_eq!((cost.writes, cost.cas), (7 + 3, 1 + 1 + 1), "{cost:?}");
    assert_eq!(cost.round_trips, h + (h + 4) + (h + 1), "{cost:?}");
    // 30 and 31 entries are left: the merge comes when one leaf has less than a quarter.
    let mut removed = 0;
    loop {
        let before = costs(&session);
        assert_eq!(index.remove(&session, &number(removed)).await, Ok(true));
        removed += 1;
        let cost = cost_since(&session, &before, OpKind::Maintenance);
        if cost.verbs() > 0 {
            assert_eq!((cost.reads, cost.writes, cost.cas), (h + 2, 7, 3), "{cost:?}");
            assert_eq!(cost.round_trips, h + 8, "{cost:?}");
            break;
        }
    }
    assert_eq!(removed, 16, "14 of 60 are less than a quarter");
}

#[test]
fn a_split_and_a_merge_cost_what_they_must() {
    World::default().on_mapped(splits_and_merges);
}

/// A long value is one record: a READ more to get, a WRITE more to put, and none when it is replaced.
async fn records(session: Session) {
    let format = TableFormat::default().with_keys(KeyFormat::Bytes { max: 100 });
    let index = create(&session, "t", &format).await;
    let long = vec![7; 100_000];
    assert_eq!(index.upsert(&session, b"k", &long).await, Ok(true));
    stock(&session, &[24 + long.len()], 4).await;
    assert_eq!(index.upsert(&session, b"k", &long).await, Ok(false));
    let before = costs(&session);
    let mut value = Vec::new();
    assert_eq!(index.get(&session, b"k", &mut value).await, Ok(true));
    assert_eq!(value, long);
    let cost = cost_since(&session, &before, OpKind::Get);
    assert_eq!((cost.reads, cost.round_trips, cost.bytes_read), (2, 2, 4096 + 24 + 100_000));
    let before = costs(&session);
    assert_eq!(index.upsert(&session, b"k", &long).await, Ok(false));
    let cost = cost_since(&session, &before, OpKind::Upsert);
    let unlock_writes = u64::from(session.endpoint().capabilities().write_vs_rmw);
    // Record, redo record, leaf, unlock.
    assert_eq!((cost.reads, cost.writes, cost.round_trips), (1, 3 + unlock_writes, 3));
}

#[test]
fn a_long_value_costs_its_record() {
    // Blocks that hold many such records: taking a block costs, too.
    let world = World { block_bytes: 2 << 20, ..World::default() };
    world.on_mapped(records);
    on_honest_sim(world, records);
}

/// A scan reads each leaf once, several in a round trip.
async fn scans(session: Session) {
    let index = create(&session, "t", &TableFormat::fixed8(Engine::BTree)).await;
    let height = load(&session, &index, 10_000).await;
    for reverse in [false, true] {
        let before = costs(&session);
        let mut out = Entries::new();
        let range = ScanRange { reverse, ..ScanRange::ALL };
        // 42 of 60 entries a leaf, so ten leaves, eleven from the end; some are read in vain.
        index.scan(&session, range, 420, &mut out).await.expect("scan");
        assert_eq!(out.len(), 420);
        let cost = cost_since(&session, &before, OpKind::Scan);
        assert!(cost.reads <= height + 13, "{cost:?}");
        assert!(cost.round_trips <= height + 2, "{cost:?}");
    }
}

#[test]
fn a_scan_reads_each_leaf_once() {
    World::default().on_mapped(scans);
    on_honest_sim(World::default(), scans);
}

/// A scan of a radix tree reads the nodes on the way to its pairs, and few that it has no use for.
async fn scans_of_radix_trees(session: Session) {
    for engine in Engine::ALL.iter().filter(|engine| is_radix(**engine)) {
        let index = create(&session, engine.name(), &TableFormat::fixed8(*engine)).await;
        let mut rng = fastrand::Rng::with_seed(1);
        for _ in 0..20_000 {
            let key = rng.u64(..).to_be_bytes();
            index.insert(&session, &key, &key).await.expect("insert");
        }
        let (mut reads, mut round_trips, mut bytes) = (0, 0, 0);
        const SCANS: u64 = 32;
        for scan in 0..SCANS {
            // Away from both ends of the table, so that each scan is full.
            let bound = (rng.u64(..) >> 1 | 1 << 62).to_be_bytes();
            let reverse = scan % 2 == 1;
            let range = match reverse {
                false => ScanRange { from: Bound::Included(&bound), ..ScanRange::ALL },
                true => ScanRange { to: Bound::Included(&bound), reverse, ..ScanRange::ALL },
            };
            let before = costs(&session);
            let mut out = Entries::new();
            index.scan(&session, range, 100, &mut out).await.expect("scan");
            assert_eq!(out.len(), 100);
            let cost = cost_since(&session, &before, OpKind::Scan);
            reads += cost.reads;
            round_trips += cost.round_trips;
            bytes += cost.bytes_read;
        }
        println!("{engine}: {} {} {}", reads / SCANS, round_trips / SCANS, bytes / SCANS);
        assert!(reads <= 150 * SCANS, "{engine}: {reads} READs");
        assert!(round_trips <= 12 * SCANS, "{engine}: {round_trips} round trips");
        assert!(bytes <= 20_000 * SCANS, "{engine}: {bytes} bytes");
    }
}

#[test]
fn a_scan_of_a_radix_tree_reads_few_nodes_beside_its_way() {
    let world = World { region_bytes: 64 << 20, ..World::default() };
    world.on_mapped(scans_of_radix_trees);
}

fn on_honest_sim(world: World, test: impl AsyncFnOnce(Session)) {
    world.on_sim_with(world.sim_config(), test);
}
