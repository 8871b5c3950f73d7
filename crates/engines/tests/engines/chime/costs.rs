//! Exact costs of operations with all stamps known, of each setting of the paper's ablation, and of growth.

use std::ops::Bound;

use farleaf_engines::{AnyIndex, Engine, TableFormat};
use farleaf_fabric::{Cost, Endpoint, OpKind};
use farleaf_index::{Entries, Index, KeyFormat, ScanRange, Spec, ValueFormat};
use farleaf_pool::Session;

use super::loaded;
use crate::common::{World, check, costs, stock};
use crate::sherman::costs::{change_of, means, on_both};
use crate::sherman::{Row, counters, loaded_as, number, row, settings, since};

const LEAF: u64 = 1792;
const NODE: u64 = 1024;
const NEAR: u64 = 192;
const SLOT: u64 = 24;
const KEYS: u64 = 10_000;

async fn get(session: &Session, index: &AnyIndex, key: u64) -> (bool, Row) {
    let (before, mut value) = (costs(session), Vec::new());
    let is_there = index.get(session, &number(key), &mut value).await.expect("get");
    (is_there, since(session, &before, OpKind::Get))
}

#[test]
fn point_operations_cost_what_the_design_says() {
    on_both(async |session| {
        let index = loaded(&session, KEYS, &[]).await;
        // The load's gets have left hints.
        assert_eq!(get(&session, &index, 8_000).await, (true, ([1, 0, 0, 1], [SLOT, 0])));
        let absent = ([4, 0, 0, 2], [2 * NEAR + 16, 0]);
        for key in [8_001, u64::MAX] {
            assert_eq!(get(&session, &index, key).await, (false, absent));
        }
        let before = costs(&session);
        assert_eq!(index.update(&session, &number(8_000), &[1; 8]).await, Ok(true));
        assert_eq!(since(&session, &before, OpKind::Update), change_of(&session, [1, 2], SLOT, 16));
        assert_eq!(get(&session, &index, 8_000).await.1, ([1, 0, 0, 1], [SLOT, 0]));
        let before = costs(&session);
        assert_eq!(index.insert(&session, &number(8_001), &[1; 8]).await, Ok(true));
        assert_eq!(since(&session, &before, OpKind::Insert), change_of(&session, [1, 2], NEAR, 24));
        // No hint yet, then one.
        assert_eq!(get(&session, &index, 8_001).await, (true, ([1, 0, 0, 1], [NEAR, 0])));
        assert_eq!(get(&session, &index, 8_001).await, (true, ([1, 0, 0, 1], [SLOT, 0])));
        let before = costs(&session);
        assert_eq!(index.remove(&session, &number(8_001)).await, Ok(true));
        assert_eq!(since(&session, &before, OpKind::Remove), change_of(&session, [1, 2], NEAR, 16));
        // The hint is wrong now.
        let wrong = ([5, 0, 0, 3], [SLOT + 2 * NEAR + 16, 0]);
        assert_eq!(get(&session, &index, 8_001).await, (false, wrong));
        let before = costs(&session);
        assert_eq!(index.insert(&session, &number(8_000), &[1; 8]).await, Ok(false));
        assert_eq!(since(&session, &before, OpKind::Insert), change_of(&session, [1, 2], SLOT, 0));
        // So it is for a change, which then READs the neighbourhood under its lock.
        assert_eq!(index.insert(&session, &number(8_001), &[1; 8]).await, Ok(true));
        assert_eq!(get(&session, &index, 8_001).await.1, ([1, 0, 0, 1], [NEAR, 0]));
        assert_eq!(index.remove(&session, &number(8_001)).await, Ok(true));
        let before = costs(&session);
        assert_eq!(index.update(&session, &number(8_001), &[1; 8]).await, Ok(false));
        let wrong = change_of(&session, [2, 3], SLOT + NEAR, 0);
        assert_eq!(since(&session, &before, OpKind::Update), wrong);
        assert_eq!(check(&session, &[&index]).await.keys, KEYS);
    });
}

/// Mean bytes READ of a get of a random key that is there.
fn bytes_of_gets(engine: Engine, list: &'static [(&str, &str)]) -> f64 {
    const COUNT: u64 = 4_000;
    let mean = std::cell::Cell::new(0.0);
    let world = World { region_bytes: 64 << 20, ..World::default() };
    world.on_sim_with(world.sim_config(), async |session: Session| {
        let index = loaded_as(&session, engine, KEYS, list).await;
        let (before, mut value) = (costs(&session), Vec::new());
        let mut rng = fastrand::Rng::with_seed(5);
        for _ in 0..COUNT {
            let key = number(2 * rng.u64(..KEYS));
            assert_eq!(index.get(&session, &key, &mut value).await, Ok(true));
        }
        let cost = costs(&session).since(&before).kind(OpKind::Get);
        assert!(cost.reads * 100 <= COUNT * 102, "{} READs", cost.reads);
        mean.set(cost.bytes_read as f64 / COUNT as f64);
    });
    mean.get()
}

/// A get READs a neighbourhood of 192 bytes, or a slot of 24 bytes if the key is hot; one of `sherman` a leaf of 1,024.
#[test]
fn a_get_moves_a_fraction_of_what_a_leaf_has() {
    let near = bytes_of_gets(Engine::Chime, &[("speculate", "false")]);
    let hot = bytes_of_gets(Engine::Chime, &[]);
    let sherman = bytes_of_gets(Engine::Sherman, &[]);
    let times = [near, hot, sherman].map(|bytes| bytes / 16.0);
    println!("bytes READ a get: {near} {hot} {sherman}; over pairs of 16 bytes: {times:?}");
    assert!(near <= 195.0 && hot <= 30.0 && sherman >= 1024.0, "{near} {hot} {sherman}");
}

/// Each step of the paper's ablation is a setting.
#[test]
fn the_papers_steps_are_settings_with_their_costs() {
    let absent = ([4, 0, 0, 2], [2 * NEAR + 16, 0]);
    let header = 64;
    for (list, there, away, update_read) in [
        // A leaf of Sherman's kind, with the counts of hops that its READ needs here.
        (
            &[("point_read", "leaf"), ("insert_read", "leaf")][..],
            ([3, 0, 0, 1], [LEAF + 16, 0]),
            ([3, 0, 0, 1], [LEAF + 16, 0]),
            LEAF,
        ),
        (
            &[("point_read", "header"), ("insert_read", "leaf")],
            ([2, 0, 0, 1], [header + NEAR, 0]),
            ([5, 0, 0, 2], [header + 2 * NEAR + 16, 0]),
            LEAF,
        ),
        (
            &[("point_read", "header")],
            ([2, 0, 0, 1], [header + NEAR, 0]),
            ([5, 0, 0, 2], [header + 2 * NEAR + 16, 0]),
            NEAR,
        ),
        (&[("speculate", "false")], ([1, 0, 0, 1], [NEAR, 0]), absent, NEAR),
        (&[], ([1, 0, 0, 1], [SLOT, 0]), absent, SLOT),
    ] {
        on_both(async |session| {
            let index = loaded(&session, KEYS, list).await;
            assert_eq!(get(&session, &index, 80).await, (true, there), "{list:?}");
            assert_eq!(get(&session, &index, 81).await, (false, away), "{list:?}");
            let before = costs(&session);
            assert_eq!(index.update(&session, &number(80), &[1; 8]).await, Ok(true));
            let expected = change_of(&session, [1, 2], update_read, 16);
            assert_eq!(since(&session, &before, OpKind::Update), expected, "{list:?}");
        });
    }
}

/// An insert without room in its neighbourhood READs the leaf as well. Each hop is 3 WRITEs of 48 bytes, behind a record of 72;
/// where no completion is lost, all leave with one record, the slot and the release. A split is 5 waits.
#[test]
fn hops_and_splits_cost_what_the_design_says() {
    on_both(async |session| {
        let index = loaded(&session, KEYS, &[]).await;
        stock(&session, &[LEAF as usize], 64).await;
        let lossy = session.endpoint().is_lossy();
        let (mut hopped, mut split, mut plain) = (0, 0, 0);
        for key in (0..3_000).map(|key| 2 * (key * 7 % KEYS) + 1) {
            let (before, was) = (costs(&session), counters(&index));
            assert_eq!(index.insert(&session, &number(key), &[1; 8]).await, Ok(true));
            let (verbs, [read, written]) = row(costs(&session).since(&before).kind(OpKind::Insert));
            let [reads, writes, cas, trips] = verbs;
            let now = counters(&index);
            let by = |name: &str| now.get(name) - was.get(name);
            let (hops, splits) = (by("hops"), by("splits"));
            let more = by("stamps_stale") + by("stamps_learned") + by("whole_leaves");
            match (splits, hops, more) {
                (0, 0, 0) if by("read_on") == 0 => {
                    plain += 1;
                    let expected = change_of(&session, [1, 2], NEAR, 24);
                    assert_eq!((verbs, [read, written]), expected);
                }
                (0, 1.., 0) => {
                    hopped += 1;
                    let waits = if lossy { hops } else { 0 };
                    let records = if lossy { hops } else { 1 };
                    let verbs = (2, 3 + 3 * hops + records, 3 + waits);
                    assert_eq!((reads, writes + cas, trips), verbs);
                    assert_eq!((read, written), (NEAR + LEAF, 40 + 72 * records + 48 * hops));
                }
                // Parents split as well, now and then.
                (1, 0, 0) if reads == 6 => {
                    split += 1;
                    // Neighbourhood, leaf; the parent under its lock, and the new leaf, which must live, with counts.
                    assert_eq!((reads, read), (6, NEAR + 2 * LEAF + NODE + 16));
                    // New leaf; record, leaf; record, parent; three releases, and three locks.
                    assert_eq!(writes + cas, 11);
                    let records = 64 + 2 * LEAF + 64 + NODE;
                    assert_eq!(written, LEAF + records + LEAF - 8 + NODE - 8 + 6 * 8);
                    // The new leaf may lie on another server: then its release is a wait of its own.
                    assert!((9..=10).contains(&trips), "{trips}");
                }
                _ => {}
            }
        }
        assert!(hopped > 20 && split > 5 && plain > 1_000, "{hopped} {split} {plain}");
        assert_eq!(check(&session, &[&index]).await.keys, KEYS + 3_000);
    });
}

/// A scan READs each leaf once between two READs of its count of hops, all but the first in batches.
#[test]
fn a_scan_reads_each_leaf_once() {
    on_both(async |session| {
        let index = loaded(&session, KEYS, &[]).await;
        for reverse in [false, true] {
            let (bound, before) = (number(9_000), costs(&session));
            let range = match reverse {
                false => ScanRange { from: Bound::Included(&bound[..]), ..ScanRange::ALL },
                true => ScanRange { to: Bound::Included(&bound[..]), reverse, ..ScanRange::ALL },
            };
            let mut out = Entries::new();
            index.scan(&session, range, 200, &mut out).await.expect("scan");
            assert_eq!(out.len(), 200);
            let ([reads, writes, cas, trips], [bytes, _]) = since(&session, &before, OpKind::Scan);
            // 50 pairs a leaf: 200 of them lie in 4 or 5 leaves. Chains that are posted side by side count a wait each.
            let leaves = reads / 3;
            assert!((4..=6).contains(&leaves) && trips <= leaves, "{reads} READs in {trips} waits");
            assert_eq!((reads % 3, writes, cas, bytes), (0, 0, 0, leaves * (LEAF + 16)));
        }
    });
}

/// Random inserts in growth, hops and splits included.
#[test]
fn inserts_in_growth_cost_what_the_design_says() {
    let world = World { region_bytes: 64 << 20, ..World::default() };
    let mut config = world.sim_config();
    config.capabilities.write_vs_rmw = true;
    world.on_sim_with(config, async |session: Session| {
        let index = loaded(&session, 2_000, &[]).await;
        let mut rng = fastrand::Rng::with_seed(1);
        let mut key = || rng.u64(..1 << 12) << 40 | rng.u64(..1 << 40);
        for _ in 0..20_000 {
            index.insert(&session, &number(key()), &[1; 8]).await.expect("insert");
        }
        stock(&session, &[LEAF as usize], 64).await;
        const COUNT: u64 = 20_000;
        let (before, was) = (costs(&session), counters(&index));
        for _ in 0..COUNT {
            index.insert(&session, &number(key()), &[1; 8]).await.expect("insert");
        }
        let cost: Cost = costs(&session).since(&before).kind(OpKind::Insert);
        let [reads, bytes_read, writes, written, cas] = means(cost, COUNT);
        let now = counters(&index);
        let by = |name: &str| 100 * (now.get(name) - was.get(name)) / COUNT;
        println!("insert: {reads} {bytes_read} {writes} {written} {cas} hundredths");
        println!("hops {} splits {} read on {}", by("hops"), by("splits"), by("read_on"));
        let verbs = reads + writes + cas;
        assert!(verbs <= 650, "{verbs} hundredths of verbs");
        let report = check(&session, &[&index]).await;
        let load = report.keys as f64 / report.nodes_per_level[0] as f64 / 72.0;
        println!(
            "load {load:.3}, {:.1} bytes a key",
            report.node_bytes as f64 / report.keys as f64
        );
        assert!(load > 0.6, "{load}");
    });
}

/// An update of a value of more than one word WRITEs a redo record in the same chain; other changes need none.
#[test]
fn a_wide_update_writes_a_redo_record() {
    on_both(async |session| {
        let spec = Spec { key: KeyFormat::Fixed(16), value: ValueFormat::Fixed(24) };
        let format = TableFormat::new(Engine::Chime, spec);
        let index = farleaf_harness::create_table(&session, "t", &format, 96, &settings(&[])).await;
        let index = index.expect("a table");
        let key = |number: u64| [number.to_be_bytes(), [1; 8]].concat();
        for number in 0..200 {
            assert_eq!(index.insert(&session, &key(number), &[1; 24]).await, Ok(true));
        }
        let mut value = Vec::new();
        for number in 0..200 {
            assert_eq!(index.get(&session, &key(number), &mut value).await, Ok(true));
        }
        let before = costs(&session);
        assert_eq!(index.update(&session, &key(2), &[2; 24]).await, Ok(true));
        let (verbs, bytes) = since(&session, &before, OpKind::Update);
        // One slot of 48 bytes, by the get's hint. 32 bytes of it; the record has 72 bytes beside them.
        let (verbs_less, bytes_less) = change_of(&session, [1, 2], 48, 32);
        assert_eq!(verbs, [verbs_less[0], verbs_less[1] + 1, verbs_less[2], verbs_less[3]]);
        assert_eq!(bytes, [48, bytes_less[1] + 72 + 32]);
        let before = costs(&session);
        assert_eq!(index.remove(&session, &key(2)).await, Ok(true));
        assert_eq!(
            since(&session, &before, OpKind::Remove),
            change_of(&session, [1, 2], 8 * 48, 8)
        );
        assert_eq!(check(&session, &[&index]).await.keys, 199);
    });
}
