//! Suite of the engine `fptree`: its exact costs, values and keys of every length, and damage.

mod costs;
mod damage;

use crate::common::{Pairs, World, check, cost_since, costs, create, open};
use farleaf_engines::{AnyIndex, Engine, TableFormat};
use farleaf_fabric::{Cost, Endpoint, OpKind};
use farleaf_index::{Entries, Index, KeyFormat, ScanRange, Settings, Spec, ValueFormat};
use farleaf_pool::Session;

const KEYS: u64 = 2_000;
/// Operations of each kind that are counted.
const COUNTED: u64 = 400;
const LINE: u64 = 64;
const SLOT: u64 = 48;

/// 24 bytes, of which the first 8 are the number.
fn key(number: u64) -> Vec<u8> {
    [number.to_be_bytes(), [7; 8], [9; 8]].concat()
}

/// A table of the paper's pairs, all records cached.
async fn table(session: &Session) -> AnyIndex {
    let spec = Spec { key: KeyFormat::Fixed(24), value: ValueFormat::Fixed(8) };
    let format = TableFormat::new(Engine::FpTree, spec);
    let settings = Settings::default().with("merge", "0");
    let index = farleaf_harness::create_table(session, "t", &format, 96, &settings).await;
    let index = index.expect("a table");
    let pairs: Vec<_> =
        (0..KEYS).map(|number| (key(2 * number), number.to_le_bytes().to_vec())).collect();
    assert_eq!(index.bulk_load(session, &mut Pairs(pairs.iter())).await, Ok(KEYS));
    let mut value = Vec::new();
    for (key, loaded) in &pairs {
        assert_eq!(index.get(session, key, &mut value).await, Ok(true));
        assert_eq!(value, *loaded);
    }
    index
}

/// Reads beyond those of the lines and of the right slots: other keys with the same fingerprint.
fn others(cost: Cost, least: u64) -> u64 {
    let others = cost.reads - least;
    assert!(
        (COUNTED / 50..=COUNTED * 3 / 20).contains(&others),
        "{others} of {COUNTED}, 8 % expected"
    );
    others
}

async fn exact_costs(session: Session) {
    let index = table(&session).await;
    let unlock_is_write = u64::from(session.endpoint().capabilities().write_vs_rmw);
    let mut value = Vec::new();

    let before = costs(&session);
    for number in 0..COUNTED {
        assert_eq!(index.get(&session, &key(2 * number), &mut value).await, Ok(true));
    }
    let cost = cost_since(&session, &before, OpKind::Get);
    let expected = Cost {
        reads: cost.reads,
        bytes_read: COUNTED * LINE + (cost.reads - COUNTED) * SLOT,
        round_trips: 2 * COUNTED,
        ..Cost::default()
    };
    assert_eq!(cost, expected, "a get reads a line and 1.08 slots, in two waits");
    others(cost, 2 * COUNTED);

    // A CAS counts 8 bytes: lock and unlock are 16.
    let before = costs(&session);
    for number in 0..COUNTED {
        assert_eq!(index.update(&session, &key(2 * number), &[1; 8]).await, Ok(true));
    }
    let cost = cost_since(&session, &before, OpKind::Update);
    assert_eq!(cost.round_trips, 3 * COUNTED);
    assert_eq!(cost.writes, (1 + unlock_is_write) * COUNTED);
    assert_eq!(cost.cas, (2 - unlock_is_write) * COUNTED);
    assert_eq!(cost.bytes_written, (16 + 16) * COUNTED);
    others(cost, 2 * COUNTED);

    // Leaves are filled to 0.7: so many inserts meet no full one.
    let before = costs(&session);
    for number in (0..COUNTED).map(|number| 9 * number) {
        assert_eq!(index.insert(&session, &key(number / 2 * 2 + 1), &[2; 8]).await, Ok(true));
    }
    let cost = cost_since(&session, &before, OpKind::Insert);
    let met = others(cost, COUNTED);
    assert!(cost.round_trips >= 2 * COUNTED && cost.round_trips <= 2 * COUNTED + met);
    assert_eq!(cost.writes, (2 + unlock_is_write) * COUNTED);
    assert_eq!(cost.cas, (2 - unlock_is_write) * COUNTED);
    assert_eq!(cost.bytes_written, (56 + SLOT + 16) * COUNTED);

    let before = costs(&session);
    for number in 0..COUNTED {
        assert_eq!(index.remove(&session, &key(2 * number)).await, Ok(true));
    }
    let cost = cost_since(&session, &before, OpKind::Remove);
    assert_eq!(cost.round_trips, 3 * COUNTED);
    assert_eq!(cost.writes, (2 + unlock_is_write) * COUNTED);
    assert_eq!(cost.bytes_written, (24 + 56 + 16) * COUNTED);
    others(cost, 2 * COUNTED);

    let report = check(&session, &[&index]).await;
    assert_eq!(report.keys, KEYS);
}

/// A scan reads the line of each leaf, then its slots in one or two runs: two waits for a window of 16 leaves.
async fn scan_costs(session: Session) {
    let index = table(&session).await;
    let leaves = KEYS.div_ceil(22);
    let before = costs(&session);
    let mut out = Entries::new();
    index.scan(&session, ScanRange::ALL, usize::MAX, &mut out).await.expect("scan");
    let cost = cost_since(&session, &before, OpKind::Scan);
    assert_eq!(out.len() as u64, KEYS);
    // Pairs of a loaded leaf stand side by side. The first node is found by its place, which is no key.
    assert!((2 * leaves..=2 * leaves + 8).contains(&cost.reads), "{cost:?}, {leaves} leaves");
    let bytes = leaves * LINE + KEYS * SLOT;
    assert!((bytes..bytes + 8 * 1024).contains(&cost.bytes_read), "{cost:?}");
    assert_eq!((cost.writes, cost.cas), (0, 0));
    let windows = leaves.div_ceil(16);
    assert!(cost.round_trips <= 2 * (windows + leaves / 10 + 2), "{cost:?}");
}

#[test]
fn a_scan_reads_lines_and_the_slots_that_they_name() {
    let world = World { region_bytes: 16 << 20, ..World::default() };
    world.on_mapped(scan_costs);
}

/// A compute server whose records are old reads headers of leaves, not the upper tree.
async fn refreshes(session: Session) {
    let old = table(&session).await;
    let new = open(&session, "t").await;
    let leaves = check(&session, &[&new]).await.nodes_per_level[0];
    for number in 0..KEYS {
        assert_eq!(new.insert(&session, &key(2 * number + 1), &[3; 8]).await, Ok(true));
    }
    let splits = check(&session, &[&new]).await.nodes_per_level[0] - leaves;
    assert!(splits >= leaves / 2, "{splits} of {leaves}");
    let (mut value, before) = (Vec::new(), costs(&session));
    for number in 0..2 * KEYS {
        assert_eq!(old.get(&session, &key(number), &mut value).await, Ok(true), "{number}");
    }
    let cost = cost_since(&session, &before, OpKind::Get);
    let beside = cost.reads - 4 * KEYS;
    // Other keys of the same fingerprint, and for a split a line and two headers.
    assert!(beside <= 2 * KEYS * 3 / 20 + 4 * splits, "{beside} of {splits} splits");
    // Merges: the old records lead to leaves that are gone.
    for number in (0..2 * KEYS).filter(|number| number % 40 != 0) {
        assert_eq!(new.remove(&session, &key(number)).await, Ok(true));
    }
    let report = check(&session, &[&new]).await;
    assert_eq!(report.keys, 2 * KEYS / 40);
    assert!(report.nodes_per_level[0] < leaves / 3, "{report:?}");
    for number in 0..2 * KEYS {
        let is_there = number % 40 == 0;
        assert_eq!(old.get(&session, &key(number), &mut value).await, Ok(is_there), "{number}");
        assert_eq!(old.update(&session, &key(number), &[4; 8]).await, Ok(is_there), "{number}");
    }
    for number in 0..2 * KEYS {
        assert_eq!(old.upsert(&session, &key(number), &[5; 8]).await, Ok(number % 40 != 0));
    }
    let mut out = Entries::new();
    new.scan(&session, ScanRange::ALL, usize::MAX, &mut out).await.expect("scan");
    assert_eq!(out.len() as u64, 2 * KEYS);
    assert_eq!(check(&session, &[&new]).await.keys, 2 * KEYS);
}

#[test]
fn old_records_are_refreshed_by_headers() {
    let world = World { region_bytes: 32 << 20, ..World::default() };
    world.on_mapped(refreshes);
}

/// A leaf that is split twice has a right neighbour that covers only the middle of its old range: an old record's rest must
/// not be taken for that neighbour's, whose line would prove the keys beyond it absent.
async fn split_twice(session: Session) {
    let old = table(&session).await;
    let new = open(&session, "t").await;
    // The second leaf has the numbers 44 to 86. What is inserted stays in its left half, so that it is split each time.
    let added = |number: u8| [&key(44)[..23], &[10 + number]].concat();
    let leaves = check(&session, &[&new]).await.nodes_per_level[0];
    for number in 0..80 {
        assert_eq!(new.insert(&session, &added(number), &[3; 8]).await, Ok(true));
    }
    let splits = check(&session, &[&new]).await.nodes_per_level[0] - leaves;
    assert!(splits >= 3, "{splits}");
    let mut value = Vec::new();
    // The first of these refreshes the record; the others use what it has put in its place.
    assert_eq!(old.get(&session, &added(0), &mut value).await, Ok(true));
    for number in (44..88).step_by(2) {
        assert_eq!(old.get(&session, &key(number), &mut value).await, Ok(true), "{number}");
        assert_eq!(old.update(&session, &key(number), &[4; 8]).await, Ok(true), "{number}");
    }
    for number in 0..80 {
        assert_eq!(old.get(&session, &added(number), &mut value).await, Ok(true), "{number}");
    }
    let mut out = Entries::new();
    old.scan(&session, ScanRange::ALL, usize::MAX, &mut out).await.expect("scan");
    assert_eq!(out.len() as u64, KEYS + 80);
}

#[test]
fn a_neighbours_line_proves_nothing_beyond_its_own_range() {
    let world = World { region_bytes: 32 << 20, ..World::default() };
    world.on_mapped(split_twice);
}

/// Values of 9 to 240 bytes of one length stand in their slots; an update WRITEs a redo record in the same chain.
async fn wide_values(session: Session) {
    for bytes in [9, 32, 240] {
        let format = TableFormat::fixed8(Engine::FpTree).with_values(ValueFormat::Fixed(bytes));
        let name = format!("t{bytes}");
        let index = create(&session, &name, &format).await;
        let (mut held, key) = (Vec::new(), |number: u64| number.to_be_bytes());
        for number in 0..300 {
            assert_eq!(index.insert(&session, &key(number), &vec![1; bytes]).await, Ok(true));
        }
        let before = costs(&session);
        for number in 0..300 {
            let new = vec![number as u8; bytes];
            assert_eq!(index.update(&session, &key(number), &new).await, Ok(true));
        }
        let cost = cost_since(&session, &before, OpKind::Update);
        let unlock = u64::from(session.endpoint().capabilities().write_vs_rmw);
        assert_eq!((cost.writes, cost.round_trips), (300 * (2 + unlock), 900), "{bytes}");
        for number in 0..300 {
            assert_eq!(index.get(&session, &key(number), &mut held).await, Ok(true));
            assert_eq!(held, vec![number as u8; bytes]);
        }
        let report = check(&session, &[&index]).await;
        assert_eq!((report.keys, report.record_bytes), (300, 0));
        index.close(&session).await.expect("close");
        AnyIndex::drop_table(&session, &name).await.expect("drop");
    }
}

#[test]
fn wide_values_stand_in_slots() {
    let world = World { region_bytes: 16 << 20, ..World::default() };
    world.on_mapped(wide_values);
}

#[test]
fn operations_cost_what_the_design_says() {
    let world = World { region_bytes: 16 << 20, ..World::default() };
    world.on_mapped(exact_costs);
}

/// Keys of 0 to 1,024 bytes that have much in common, and values to the longest of a small pool.
async fn all_lengths(session: Session) {
    let index = create(&session, "t", &TableFormat::new(Engine::FpTree, Spec::ANY)).await;
    let mut pairs = std::collections::BTreeMap::new();
    for length in [0, 1, 8, 29, 30, 31, 64, 126, 127, 128, 500, 1023, 1024] {
        for last in [0, 1, 0xfe, 0xff] {
            for first in [0, 0xff] {
                let mut key = vec![first; length];
                key.last_mut().into_iter().for_each(|byte| *byte = last);
                pairs.insert(key, vec![last; length * 3]);
            }
        }
    }
    for (key, value) in &pairs {
        assert_eq!(index.insert(&session, key, value).await, Ok(true));
        assert_eq!(index.insert(&session, key, b"again").await, Ok(false));
    }
    let large = vec![5; 200_000];
    assert_eq!(index.update(&session, &[0xff; 1024], &large).await, Ok(true));
    pairs.insert(vec![0xff; 1024], large);
    let mut value = Vec::new();
    for (key, expected) in &pairs {
        assert_eq!(index.get(&session, key, &mut value).await, Ok(true));
        assert!(value == *expected);
    }
    for reverse in [false, true] {
        let mut out = Entries::new();
        let range = ScanRange { reverse, ..ScanRange::ALL };
        index.scan(&session, range, usize::MAX, &mut out).await.expect("scan");
        let mut found: Vec<_> = (0..out.len())
            .filter_map(|at| out.get(at))
            .map(|(k, v)| (k.to_vec(), v.to_vec()))
            .collect();
        if reverse {
            found.reverse();
        }
        assert!(found.iter().map(|(k, v)| (k, v)).eq(pairs.iter()), "{} pairs", found.len());
    }
    assert_eq!(check(&session, &[&index]).await.keys, pairs.len() as u64);
    for key in pairs.keys() {
        assert_eq!(index.remove(&session, key).await, Ok(true));
        assert_eq!(index.get(&session, key, &mut value).await, Ok(false));
    }
    assert_eq!(check(&session, &[&index]).await.keys, 0);
}

#[test]
fn keys_and_values_of_every_length_are_kept() {
    let world = World { region_bytes: 64 << 20, ..World::default() };
    world.on_mapped(all_lengths);
}
