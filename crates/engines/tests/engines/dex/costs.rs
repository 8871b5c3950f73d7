//! Cost tests: the exact remote operations of the engine `dex`.

use super::tables::{check, create, open};
use crate::common::{Pairs, World, cost_since, costs};
use farleaf_engines::dex::{Admission, DexOptions, DexTable, Durability};
use farleaf_engines::{Engine, TableFormat};
use farleaf_fabric::{Cost, Endpoint, OpKind};
use farleaf_index::compute::OwnedTable;
use farleaf_index::{Entries, Index, ScanRange};
use farleaf_pool::Session;

/// What the log adds is in `log`.
fn volatile() -> DexOptions {
    DexOptions { durability: Durability::Volatile, ..DexOptions::default() }
}

fn number(key: u64) -> [u8; 8] {
    key.to_be_bytes()
}

/// A table of every other number below `2 * keys`, loaded and closed; and its height.
async fn loaded(
    session: &Session,
    keys: u64,
) -> ((farleaf_fabric::GlobalAddr, farleaf_index::bnode::Layout), u64) {
    let made = create(session, &TableFormat::fixed8(Engine::BTree)).await;
    let index = open(session, made, 64, volatile()).await;
    let pairs: Vec<_> =
        (0..keys).map(|key| (number(2 * key).to_vec(), number(key).to_vec())).collect();
    assert_eq!(index.bulk_load(session, &mut Pairs(pairs.iter())).await, Ok(keys));
    let height = check(session, &index).await.nodes_per_level.len() as u64;
    index.close(session).await.expect("close");
    (made, height)
}

fn verbs(cost: Cost) -> (u64, u64, u64) {
    (cost.reads, cost.writes, cost.cas + cost.faa + cost.rpcs)
}

/// The total since `before`.
fn since(session: &Session, before: &farleaf_fabric::Snapshot) -> Cost {
    costs(session).since(before).total()
}

async fn cold_and_warm(session: Session) {
    let (made, height) = loaded(&session, 10_000).await;
    assert_eq!(height, 3);
    let index = open(&session, made, 1_000, volatile()).await;
    let mut value = Vec::new();

    // The table is taken: the ownership map is read, and read and changed under its lock.
    let before = costs(&session);
    assert_eq!(index.take_all_free(&session).await, Ok(true));
    let cost = since(&session, &before);
    // The last unlocks, by a WRITE where the fabric keeps the order of a chain and a CAS elsewhere.
    assert_eq!((cost.reads, cost.writes + cost.cas, cost.rpcs), (6, 4, 0), "{cost:?}");

    // Cold: the root word, each level once.
    let before = costs(&session);
    assert_eq!(index.get(&session, &number(0), &mut value).await, Ok(true));
    let cost = since(&session, &before);
    assert_eq!(verbs(cost), (1 + height, 0, 0), "{cost:?}");
    assert_eq!((cost.round_trips, cost.bytes_read), (1 + height, 8 + height * 1024));
    let stats = index.tree().stats();
    assert_eq!((stats.reads_root, stats.reads_inner, stats.reads_leaf), (1, height - 2, 1));

    // A neighbour is a hit; a leaf under the same parent is one READ.
    let before = costs(&session);
    assert_eq!(index.get(&session, &number(1), &mut value).await, Ok(false));
    assert_eq!(since(&session, &before), Cost::default());
    let before = costs(&session);
    assert_eq!(index.get(&session, &number(2 * 50), &mut value).await, Ok(true));
    assert_eq!(verbs(since(&session, &before)), (1, 0, 0));

    // A full scan reads each node that is not cached once, and then everything is.
    let before = costs(&session);
    let mut out = Entries::new();
    index.scan(&session, ScanRange::ALL, usize::MAX, &mut out).await.expect("scan");
    assert_eq!(out.len(), 10_000);
    let cost = since(&session, &before);
    let leaves = 10_000_u64.div_ceil(42);
    assert!((leaves - 2..leaves + 10).contains(&cost.reads), "{cost:?}");
    assert_eq!((cost.writes, cost.cas), (0, 0));

    // Warm: nothing goes over the fabric, whatever is done, until a leaf is full.
    let before = costs(&session);
    for key in 0..10_000 {
        assert_eq!(index.get(&session, &number(2 * key), &mut value).await, Ok(true));
        assert_eq!(value, number(key));
    }
    for key in 0..300 {
        let (old, new, other) = (number(60 * key), number(1), number(2));
        assert_eq!(index.update(&session, &old, &new).await, Ok(true));
        assert_eq!(index.upsert(&session, &old, &new).await, Ok(false));
        assert_eq!(index.insert(&session, &number(60 * key + 1), &new).await, Ok(true));
        assert_eq!(index.insert(&session, &number(60 * key + 1), &new).await, Ok(false));
        assert_eq!(index.remove(&session, &number(60 * key + 1)).await, Ok(true));
        assert_eq!(index.remove(&session, &number(60 * key + 1)).await, Ok(false));
        let mut found = Vec::new();
        let swap = index.compare_exchange(&session, &old, Some(&new), Some(&other), &mut found);
        assert!(swap.await.is_ok());
    }
    for reverse in [false, true] {
        out.clear();
        let range = ScanRange { reverse, ..ScanRange::ALL };
        index.scan(&session, range, usize::MAX, &mut out).await.expect("scan");
        assert_eq!(out.len(), 10_000);
    }
    assert_eq!(since(&session, &before), Cost::default(), "a warm cache is silent");

    // A flush writes each changed node once; a second one nothing.
    let before = costs(&session);
    index.flush(&session).await.expect("flush");
    let cost = since(&session, &before);
    // 300 keys, 30 entries apart, in leaves of 42.
    assert!((210..=300).contains(&cost.writes), "{cost:?}");
    assert_eq!((cost.reads, cost.cas, cost.bytes_written), (0, 0, cost.writes * 1016));
    let before = costs(&session);
    index.flush(&session).await.expect("flush");
    assert_eq!(since(&session, &before), Cost::default());
    check(&session, &index).await;
}

#[test]
fn a_cold_get_reads_each_level_and_a_warm_cache_is_silent() {
    World::default().on_mapped(cold_and_warm);
    World::default().on_sim(cold_and_warm);
}

/// A split is 2 WRITEs, one after the other; a merge 3 and the announcement, as maintenance.
async fn splits_and_merges(session: Session) {
    let (made, _) = loaded(&session, 10_000).await;
    let index = open(&session, made, 1_000, volatile()).await;
    let mut out = Entries::new();
    index.scan(&session, ScanRange::ALL, usize::MAX, &mut out).await.expect("scan");
    // 42 of 60 entries a leaf: the first leaf is full after 18 more. A first split takes a block.
    for key in 0..19_u64 {
        let done = index.insert(&session, &number(80 * 42 + 2 * key + 1), &number(0)).await;
        assert_eq!(done, Ok(true));
    }
    for key in 0..18_u64 {
        assert_eq!(index.insert(&session, &number(2 * key + 1), &number(0)).await, Ok(true));
    }
    let before = costs(&session);
    assert_eq!(index.insert(&session, &number(37), &number(0)).await, Ok(true));
    let cost = cost_since(&session, &before, OpKind::Insert);
    assert_eq!((cost.reads, cost.cas), (0, 0), "{cost:?}");
    assert_eq!((cost.writes, cost.round_trips, cost.bytes_written), (2, 2, 1024 + 1016));
    let mut removed = 0;
    loop {
        let before = costs(&session);
        assert_eq!(index.remove(&session, &number(removed)).await, Ok(true));
        removed += 1;
        let cost = cost_since(&session, &before, OpKind::Maintenance);
        if cost.verbs() > 0 {
            assert_eq!((cost.reads, cost.writes, cost.cas), (0, 3, 0), "{cost:?}");
            assert_eq!(cost.round_trips, 3, "{cost:?}");
            break;
        }
    }
    assert_eq!(removed, 16, "14 of 60 are less than a quarter");
    check(&session, &index).await;
}

#[test]
fn a_split_and_a_merge_cost_what_they_must() {
    World::default().on_mapped(splits_and_merges);
}

/// A leaf that is not kept costs 1 READ each time, and 1 WRITE when it is changed.
async fn streams(session: Session) {
    let (made, height) = loaded(&session, 20_000).await;
    assert_eq!(height, 3);
    let options = DexOptions { admission: Admission::Chance(0.0), ..volatile() };
    let index = open(&session, made, 40, options).await;
    let mut value = Vec::new();
    // Leaves fill the cache once, and then give way to the 13 inner nodes, of which one or another does, too.
    for round in 0..8 {
        for key in (0..40_000).step_by(70) {
            assert!(index.get(&session, &number(key), &mut value).await.is_ok(), "{round}");
        }
    }
    let mut total = Cost::default();
    for key in (0..40_000_u64).step_by(700) {
        let before = costs(&session);
        assert_eq!(index.update(&session, &number(key), &number(7)).await, Ok(true));
        let cost = cost_since(&session, &before, OpKind::Update);
        // A hit on one of the leaves that are still there, or a stream.
        assert!(matches!(verbs(cost), (0, 0, 0) | (1, 1, 0)), "{cost:?}");
        total += cost;
        let before = costs(&session);
        assert_eq!(index.get(&session, &number(key), &mut value).await, Ok(true));
        assert_eq!(value, number(7));
        let again = cost_since(&session, &before, OpKind::Get);
        assert_eq!((again.reads, again.writes), (cost.reads, 0));
    }
    assert!(total.reads > 30, "{total:?}");
    assert_eq!((total.bytes_read, total.bytes_written), (total.reads * 1024, total.writes * 1016));
    check(&session, &index).await;
}

#[test]
fn a_leaf_that_is_not_kept_is_read_and_written_each_time() {
    World::default().on_mapped(streams);
    World::default().on_sim(streams);
}

/// Whatever was read is in one of the counters by cause, but for the word that says where the root is.
async fn reads_by_cause(session: Session) {
    let (made, _) = loaded(&session, 10_000).await;
    let options = DexOptions { scan_prefetch: 4, ..volatile() };
    let index = open(&session, made, 60, options).await;
    assert_eq!(index.take_all_free(&session).await, Ok(true));
    let before = costs(&session);
    let mut rng = fastrand::Rng::with_seed(5);
    let (mut value, mut out) = (Vec::new(), Entries::new());
    for step in 0..4_000 {
        let key = number(rng.u64(..20_000));
        match step % 4 {
            0 => drop(index.upsert(&session, &key, &key).await.expect("upsert")),
            1 => drop(index.remove(&session, &key).await.expect("remove")),
            2 => drop(index.get(&session, &key, &mut value).await.expect("get")),
            _ => {
                out.clear();
                let from = std::ops::Bound::Included(&key[..]);
                let range = ScanRange { from, reverse: step % 8 == 7, ..ScanRange::ALL };
                index.scan(&session, range, 60, &mut out).await.expect("scan");
            }
        }
    }
    let stats = index.tree().stats();
    let cost = since(&session, &before);
    let scans = stats.reads_scan_inner + stats.reads_scan_leaf + stats.reads_prefetch;
    let others = stats.reads_root + stats.reads_inner + stats.reads_leaf;
    assert_eq!(cost.reads, 1 + scans + others, "{stats:?}");
    assert!(stats.reads_prefetch > 100 && stats.reads_scan_leaf > 100, "{stats:?}");
    let none = [stats.reads_shared, stats.reads_compared, stats.reads_heal, stats.reads_again];
    assert_eq!((none, stats.reads_in_vain), ([0; 4], 0));
    assert_eq!((stats.reads_fallback_inner, stats.reads_fallback_leaf), (0, 0));
    let leaves = stats.reads_scan_leaf + stats.reads_prefetch + stats.reads_leaf;
    assert_eq!(leaves, stats.leaves_admitted + stats.leaves_streamed);
    let new = 2 * stats.splits;
    let written = stats.written_back + stats.written_streamed + new;
    assert!(stats.written_streamed > 100, "{stats:?}");
    assert!(cost.writes >= written && stats.written_through == 0, "{cost:?} {stats:?}");
}

#[test]
fn every_read_has_its_cause() {
    World::default().on_mapped(reads_by_cause);
    World::default().on_sim(reads_by_cause);
}

/// A scan from `from` on, or down from there; what it has cost.
async fn scan_cost(
    session: &Session,
    index: &DexTable,
    (from, reverse, limit): (Option<u64>, bool, usize),
) -> (Cost, Vec<Vec<u8>>) {
    let (mut out, key) = (Entries::new(), from.map(number));
    let bound =
        key.as_ref().map_or(std::ops::Bound::Unbounded, |key| std::ops::Bound::Included(&key[..]));
    let range = match reverse {
        true => ScanRange { to: bound, reverse, ..ScanRange::ALL },
        false => ScanRange { from: bound, ..ScanRange::ALL },
    };
    let before = costs(session);
    index.scan(session, range, limit, &mut out).await.expect("scan");
    let cost = cost_since(session, &before, OpKind::Scan);
    (cost, out.iter().map(|(key, _)| key.to_vec()).collect())
}

/// Leaves that are read ahead save their round trips, and are the same READs.
async fn prefetching(session: Session) {
    let (made, height) = loaded(&session, 10_000).await;
    for reverse in [false, true] {
        let mut found = Vec::new();
        for ahead in [0_u64, 2, 8] {
            let options = DexOptions { scan_prefetch: ahead as usize, ..volatile() };
            let index = open(&session, made, 1_000, options).await;
            assert_eq!(index.take_all_free(&session).await, Ok(true));
            let (cost, keys) = scan_cost(&session, &index, (None, reverse, usize::MAX)).await;
            assert_eq!(keys.len(), 10_000);
            found.push(keys);
            let stats = index.tree().stats();
            let leaves = stats.reads_scan_leaf + stats.reads_prefetch;
            assert_eq!(leaves, 239);
            let inner = 1 + stats.reads_scan_inner;
            assert_eq!((cost.reads, cost.cas, cost.writes), (1 + inner + leaves, 0, 0));
            assert_eq!(cost.round_trips, 1 + inner + stats.reads_scan_leaf);
            // Below each of the level-1 nodes, of 42 leaves each, a batch for each so many.
            let batches = match ahead {
                0 => 239,
                2 => 5 * 14 + 10,
                _ => 5 * 5 + 4,
            };
            assert_eq!(stats.reads_scan_leaf, batches, "{ahead} ahead");
            index.close(&session).await.expect("close");

            // What a leaf holds is known after the first scan.
            let index = open(&session, made, 1_000, options).await;
            assert_eq!(index.get(&session, &number(0), &mut Vec::new()).await, Ok(true));
            let far = if reverse { 2 * 42 * 20 } else { 2 * 42 * 10 };
            let (cost, keys) = scan_cost(&session, &index, (Some(far), reverse, 400)).await;
            assert_eq!(keys.len(), 400);
            assert!((10..=12).contains(&cost.reads), "{cost:?}");
            // 100 pairs from the end of a leaf on that is not cached, below a parent that is: 3 leaves.
            let next = if reverse { 2 * (42 * 6 - 1) } else { 2 * 42 * 30 };
            let (cost, keys) = scan_cost(&session, &index, (Some(next), reverse, 100)).await;
            assert_eq!(keys.len(), 100);
            let trips = if ahead == 0 { 3 } else { 1 };
            assert_eq!((cost.reads, cost.round_trips), (3, trips), "{ahead} ahead, {reverse}");
            let (cost, _) = scan_cost(&session, &index, (Some(next), reverse, 100)).await;
            assert_eq!(cost, Cost::default(), "all of it is cached");
            assert_eq!(index.tree().stats().reads_in_vain, 0);
            index.close(&session).await.expect("close");
        }
        assert!(found.iter().all(|keys| *keys == found[0]));
    }
    assert_eq!(height, 3);
}

#[test]
fn leaves_read_ahead_save_round_trips() {
    World::default().on_mapped(prefetching);
    World::default().on_sim(prefetching);
}

/// Scans of 100 pairs from anywhere, in a cache of a tenth: READs, round trips, and virtual time.
async fn scans_in_a_small_cache(session: Session) {
    const SCANS: u64 = 1_000;
    let (made, _) = loaded(&session, 20_000).await;
    let mut rows = Vec::new();
    for ahead in [0, 2, 4, 8] {
        // 477 leaves and 13 inner nodes.
        let index =
            open(&session, made, 49, DexOptions { scan_prefetch: ahead, ..volatile() }).await;
        let mut rng = fastrand::Rng::with_seed(3);
        let (mut total, mut begun) = (Cost::default(), 0);
        for scan in 0..2 * SCANS {
            if scan == SCANS {
                (total, begun) = (Cost::default(), session.endpoint().now_ns());
            }
            let from = 2 * rng.u64(..19_900);
            total += scan_cost(&session, &index, (Some(from), false, 100)).await.0;
        }
        let ns = session.endpoint().now_ns() - begun;
        let each = |count: u64| count as f64 / SCANS as f64;
        println!(
            "{ahead} ahead: {:.2} READs, {:.2} round trips, {:.0} bytes, {} ns a scan",
            each(total.reads),
            each(total.round_trips),
            each(total.bytes_read),
            ns / SCANS
        );
        rows.push((each(total.reads), each(total.round_trips)));
        index.close(&session).await.expect("close");
    }
    for (reads, trips) in &rows[1..] {
        assert!(*reads < 1.1 * rows[0].0, "{rows:?}");
        assert!(*trips < 0.6 * rows[0].1, "{rows:?}");
    }
}

#[test]
fn reading_ahead_halves_the_round_trips_of_short_scans() {
    World::default().on_sim(scans_in_a_small_cache);
}

/// A cache that holds all but a few nodes misses about as often as it must.
async fn steady_state(session: Session) {
    let (made, _) = loaded(&session, 10_000).await;
    // 239 leaves and 7 inner nodes; a cache for half of them.
    let index = open(&session, made, 125, volatile()).await;
    let mut rng = fastrand::Rng::with_seed(1);
    let mut value = Vec::new();
    let mut run = async |index: &DexTable, gets: u64| {
        let before = costs(&session);
        for _ in 0..gets {
            let key = number(2 * rng.u64(..10_000));
            assert_eq!(index.get(&session, &key, &mut value).await, Ok(true));
        }
        since(&session, &before)
    };
    run(&index, 20_000).await;
    let cost = run(&index, 20_000).await;
    let per_get = cost.reads as f64 / 20_000.0;
    // Uniform keys: about half of the gets find their leaf, which is nearly always the only miss.
    assert!((0.45..0.62).contains(&per_get), "{per_get} READs a get");
    assert_eq!((cost.writes, cost.cas), (0, 0), "nothing is dirty");
}

#[test]
fn half_a_cache_halves_the_reads_of_uniform_gets() {
    World::default().on_mapped(steady_state);
}
