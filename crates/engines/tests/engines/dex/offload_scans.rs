//! Offloaded scan tests: costs and savings of scans that memory servers do for `dex`.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::tables::{SUBTREE_LEVEL, check, open, placed};
use crate::common::{Pairs, World, cost_since, costs, lab_table, with_shape};
use farleaf_engines::dex::offload::Offload;
use farleaf_engines::dex::{Admission, DexOptions, DexTable, Durability};
use farleaf_engines::{Engine, TableFormat};
use farleaf_fabric::{Cost, Endpoint, GlobalAddr, OpKind};
use farleaf_index::bnode::Layout;
use farleaf_index::{Entries, Index, ScanRange};
use farleaf_pool::Session;

type Found = Vec<(Vec<u8>, Vec<u8>)>;

fn number(key: u64) -> [u8; 8] {
    key.to_be_bytes()
}

fn options(offload: Offload) -> DexOptions {
    let durability = Durability::Volatile;
    DexOptions { offload, offload_scans: true, durability, ..DexOptions::default() }
}

/// A table of every other number below `2 * keys`, loaded and closed.
async fn loaded(session: &Session, keys: u64) -> (GlobalAddr, Layout) {
    let made = placed(session, &TableFormat::fixed8(Engine::BTree), SUBTREE_LEVEL).await;
    let index = open(session, made, 64, options(Offload::Never)).await;
    let pairs: Vec<_> =
        (0..keys).map(|key| (number(2 * key).to_vec(), number(key).to_vec())).collect();
    assert_eq!(index.bulk_load(session, &mut Pairs(pairs.iter())).await, Ok(keys));
    index.close(session).await.expect("close");
    made
}

/// A scan from `near` to `far`, and what it cost.
async fn scan(
    session: &Session,
    index: &DexTable,
    (near, far): (Bound<u64>, Bound<u64>),
    reverse: bool,
    limit: usize,
) -> (Cost, Found) {
    let keys = [near, far].map(|bound| bound.map(number));
    let bounds = [&keys[0], &keys[1]].map(|bound| bound.as_ref().map(|key| &key[..]));
    let [near, far] = bounds;
    let (from, to) = if reverse { (far, near) } else { (near, far) };
    let (before, mut out) = (costs(session), Entries::new());
    index.scan(session, ScanRange { from, to, reverse }, limit, &mut out).await.expect("scan");
    let found = out.iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
    (cost_since(session, &before, OpKind::Scan), found)
}

/// One RPC for all leaves below a node that is not cached, both ways, from and to places of all kinds.
async fn one_rpc(session: Session) {
    use Bound::{Excluded, Included, Unbounded};
    let made = loaded(&session, 10_000).await;
    let plain = open(&session, made, 1_000, options(Offload::Never)).await;
    let ranges = [
        // Near end, far end, descending, limit; bytes of the request, and pairs.
        ((Included(4_000), Unbounded), false, 100, 104, 100),
        ((Excluded(4_000), Unbounded), false, 100, 104, 100),
        ((Included(4_001), Included(4_100)), false, 100, 112, 50),
        ((Included(4_001), Excluded(4_100)), false, 100, 112, 49),
        ((Unbounded, Excluded(100)), false, 999, 104, 50),
        ((Included(4_000), Unbounded), true, 100, 104, 100),
        ((Excluded(4_000), Unbounded), true, 100, 104, 100),
        ((Included(4_001), Included(3_900)), true, 100, 112, 51),
        ((Included(4_001), Excluded(3_900)), true, 100, 112, 50),
        ((Unbounded, Included(19_900)), true, 999, 104, 50),
    ];
    let mut expected = Vec::new();
    for (bounds, reverse, limit, ..) in ranges {
        expected.push(scan(&session, &plain, bounds, reverse, limit).await.1);
    }
    plain.close(&session).await.expect("close");
    let index =
        open(&session, made, 1_000, DexOptions { offload_level: 1, ..options(Offload::Always) })
            .await;
    // The root; what is below it stays where it is.
    scan(&session, &index, (Included(0), Unbounded), false, 1).await;
    for ((bounds, reverse, limit, bytes, pairs), expected) in ranges.into_iter().zip(expected) {
        let (cost, found) = scan(&session, &index, bounds, reverse, limit).await;
        assert_eq!((found.len(), &found), (pairs, &expected), "{bounds:?} {reverse}");
        let verbs = [cost.reads, cost.writes, cost.cas + cost.faa, cost.rpcs];
        assert_eq!((verbs, cost.round_trips), ([0, 0, 0, 1], 1), "{bounds:?} {reverse}");
        // Head, count and fence, if the key space goes on, and the pairs.
        let fence = if matches!(bounds.0, Unbounded) && pairs > 50 { 0 } else { 8 };
        let back = 32 + 8 + fence + 16 * pairs as u64;
        assert_eq!(cost.bytes_written, bytes, "{bounds:?} {reverse}");
        assert!([back, back - 8].contains(&cost.bytes_read), "{bounds:?} {cost:?}");
    }
    let stats = index.tree().stats();
    assert_eq!((stats.offload_scans, stats.offload_wrong_fence), (11, 0), "{stats:?}");
    assert_eq!(stats.leaves_streamed + stats.leaves_admitted, 0, "{stats:?}");
    // All of it: a reply holds 16 KiB, and ends with the subtree.
    let (cost, found) = scan(&session, &index, (Unbounded, Unbounded), false, usize::MAX).await;
    assert_eq!(found.len(), 10_000);
    assert!(cost.reads == 0 && (12..=18).contains(&cost.rpcs), "{cost:?}");
    assert!(cost.bytes_read < 162_000, "{cost:?}");
    check(&session, &index).await;
    index.close(&session).await.expect("close");
}

#[test]
fn a_scan_below_a_missed_node_is_one_rpc() {
    World::default().on_mapped(one_rpc);
    World::default().on_sim(one_rpc);
    World::default().on_tcp(one_rpc);
}

/// What the cache has newer than remote memory wins: paths that are cached dirty, between others that are
/// not, and copies in the cooling map that a memory server's change has made stale.
async fn newer_in_the_cache(session: Session) {
    let made = loaded(&session, 2_000).await;
    let options = DexOptions {
        cooling_ratio: 0.5,
        admission: Admission::EAGER,
        ..options(Offload::Ratio(0.5))
    };
    let index = open(&session, made, 12, options).await;
    let mut rng = fastrand::Rng::with_seed(7);
    let mut model: BTreeMap<u64, u64> = (0..2_000).map(|key| (2 * key, key)).collect();
    for step in 0..3_000_u64 {
        if step % 64 == 0 {
            session.tick().await.expect("tick");
        }
        let key = rng.u64(..4_000);
        match rng.u8(..8) {
            0..4 => {
                index.upsert(&session, &number(key), &number(step)).await.expect("upsert");
                model.insert(key, step);
            }
            4 => {
                let gone = index.remove(&session, &number(key)).await;
                assert_eq!(gone, Ok(model.remove(&key).is_some()), "step {step}");
            }
            _ => {
                let (reverse, limit) = (rng.bool(), rng.usize(1..400));
                let near = (Bound::Included(key), Bound::Unbounded);
                let (_, found) = scan(&session, &index, near, reverse, limit).await;
                let pair =
                    |(key, value): (&u64, &u64)| (number(*key).to_vec(), number(*value).to_vec());
                let expected: Found = match reverse {
                    true => model.range(..=key).rev().take(limit).map(pair).collect(),
                    false => model.range(key..).take(limit).map(pair).collect(),
                };
                assert_eq!(found, expected, "step {step}");
            }
        }
    }
    let stats = index.tree().stats();
    assert!(stats.offload_scans > 20 && stats.offload_scan_pairs > 1_000, "{stats:?}");
    assert!(stats.reads_scan_leaf > 100 && stats.written_back > 100, "{stats:?}");
    check(&session, &index).await;
}

#[test]
fn a_scan_sees_what_the_cache_has_newer() {
    World::default().on_mapped(newer_in_the_cache);
    World::default().on_sim(newer_in_the_cache);
}

/// Values in records come by address, and are read; of a leaf whose pairs do not fit a reply nothing comes.
async fn records(session: Session) {
    let format = with_shape(lab_table(Engine::BTree, "short-tiny"), &[("node_bytes", "auto")]);
    let made = placed(&session, &format, SUBTREE_LEVEL).await;
    let index = open(&session, made, 64, options(Offload::Never)).await;
    let value = |key: u64| vec![key as u8; if key.is_multiple_of(3) { 5_000 } else { 5 }];
    for key in 0..60_u64 {
        assert_eq!(index.insert(&session, &number(key), &value(key)).await, Ok(true));
    }
    index.close(&session).await.expect("close");
    let index =
        open(&session, made, 8, DexOptions { offload_level: 1, ..options(Offload::Always) }).await;
    for reverse in [false, true] {
        let all = (Bound::Unbounded, Bound::Unbounded);
        let (_, found) = scan(&session, &index, all, reverse, usize::MAX).await;
        let mut expected: Found = (0..60).map(|key| (number(key).to_vec(), value(key))).collect();
        if reverse {
            expected.reverse();
        }
        assert_eq!(found, expected);
    }
    let stats = index.tree().stats();
    assert!(stats.offload_scans > 10 && stats.offload_need_smo == 0, "{stats:?}");
    check(&session, &index).await;
}

#[test]
fn records_of_an_offloaded_scan_are_read() {
    World::default().on_mapped(records);
    World::default().on_sim(records);
}

/// Scans from anywhere, in small caches: READs, RPCs, bytes, round trips, and virtual time.
async fn savings(session: Session) {
    const SCANS: u64 = 600;
    let made = loaded(&session, 60_000).await;
    println!("| cache | pairs | scans | READs | RPCs | round trips | bytes | time |");
    for (frames, percent) in [(44, 3), (147, 10)] {
        for pairs in [100, 1_000] {
            let mut costs = Vec::new();
            for (name, offload) in [
                ("fetched", Offload::Never),
                ("adaptive", Offload::Adaptive),
                ("offloaded", Offload::Always),
            ] {
                // 1,429 leaves and 35 inner nodes.
                let index = open(&session, made, frames, options(offload)).await;
                let mut rng = fastrand::Rng::with_seed(3);
                let (mut total, mut begun) = (Cost::default(), 0);
                for at in 0..2 * SCANS {
                    if at == SCANS {
                        (total, begun) = (Cost::default(), session.endpoint().now_ns());
                    }
                    let near = Bound::Included(2 * rng.u64(..60_000 - pairs));
                    let limit = pairs as usize;
                    let (cost, found) =
                        scan(&session, &index, (near, Bound::Unbounded), false, limit).await;
                    assert_eq!(found.len(), limit);
                    total += cost;
                }
                let us = (session.endpoint().now_ns() - begun) as f64 / 1_000.0;
                let each = |count: u64| count as f64 / SCANS as f64;
                let bytes = total.bytes_read + total.bytes_written;
                println!(
                    "| {percent} % | {pairs} | {name} | {:.2} | {:.2} | {:.2} | {:.0} | {:.1} us |",
                    each(total.reads),
                    each(total.rpcs),
                    each(total.round_trips),
                    each(bytes),
                    us / SCANS as f64
                );
                costs.push((bytes, total.round_trips));
                index.close(&session).await.expect("close");
            }
            let [(fetched, _), _, (offloaded, _)] = costs[..] else { panic!("three ways") };
            assert!(offloaded < fetched, "{costs:?}");
        }
    }
}

#[test]
fn offloaded_scans_save_bytes() {
    World::default().on_sim(savings);
}
