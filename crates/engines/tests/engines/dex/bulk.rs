//! Bulk load tests: partitioned tables, against the model and beside other compute servers.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::rc::Rc;

use farleaf_engines::btree::BTree;
use farleaf_engines::dex::{Dex, DexOptions, DexTable, Durability, JoinOptions};
use farleaf_engines::{Engine, TableFormat};
use farleaf_fabric::sim::Sim;
use farleaf_fabric::{Endpoint, ToAny};
use farleaf_index::compute::{OwnedTable, RangeCalls};
use farleaf_index::{Entries, Index, IndexError, ScanRange};
use farleaf_pool::Session;

use super::hosts::Hosts;
use super::storm::{config, members};
use super::tables::{check, create, open};
use crate::common::{
    Pairs, World, bnode_layout, formats, key, lab_table, start, value, with_shape,
};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn fixed8() -> TableFormat {
    with_shape(lab_table(Engine::BTree, "u64-tiny"), &[("node_bytes", "auto")])
}

fn number(at: u64) -> Vec<u8> {
    at.to_be_bytes().to_vec()
}

async fn all(session: &Session, index: &DexTable) -> Model {
    let mut out = Entries::new();
    index.scan(session, ScanRange::ALL, usize::MAX, &mut out).await.expect("scan");
    out.iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect()
}

/// Cuts an empty table anywhere, loads it, works on it, and opens it once more.
async fn cut_then_loaded(
    session: Session,
    format: TableFormat,
    (cuts, keys): (usize, usize),
    seed: u64,
) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let made = create(&session, &format).await;
    let (meta, layout) = made;
    let mut bounds: Vec<Vec<u8>> = (0..cuts).map(|_| key(&format, &mut rng, 1 << 40)).collect();
    bounds.sort_unstable();
    bounds.dedup();
    let whole = open(&session, made, 64, DexOptions::default()).await;
    whole.partition(&session, &bounds).await.expect("cut");
    let mut model = Model::new();
    for _ in 0..2 * keys {
        if model.len() < keys {
            // Some are bounds, which belong to the partition below.
            let key = match (rng.u8(..16), bounds.is_empty()) {
                (0, false) => bounds[rng.usize(..bounds.len())].clone(),
                _ => key(&format, &mut rng, 1 << 40),
            };
            model.insert(key, value(&format, &mut rng));
        }
    }
    let options = DexOptions {
        cache_bytes: 64 * layout.node_bytes() as u64,
        durability: [Durability::Logged, Durability::Volatile][seed as usize % 2],
        ..DexOptions::default()
    };
    let join = JoinOptions { calls: true, ..JoinOptions::default() };
    let index = Dex::open(&session, meta, layout, options, join).await.expect("join");
    // What the empty leaves have held is not to come back.
    let first = key(&format, &mut rng, 1 << 40);
    assert_eq!(index.insert(&session, &first, &value(&format, &mut rng)).await, Ok(true));
    let pairs: Vec<_> = model.clone().into_iter().collect();
    let refused = index.bulk_load(&session, &mut Pairs(pairs.iter())).await;
    assert!(matches!(refused, Err(IndexError::Invalid(_))), "{refused:?}");
    assert_eq!(index.remove(&session, &first).await, Ok(true));
    let loaded = index.bulk_load(&session, &mut Pairs(pairs.iter())).await;
    assert_eq!(loaded, Ok(model.len() as u64));
    assert_eq!(check(&session, &index).await.keys, model.len() as u64);
    assert_eq!(all(&session, &index).await, model);
    for step in 0..300 {
        if step % 32 == 0 {
            session.tick().await.expect("tick");
        }
        let key = match model.keys().nth(rng.usize(..model.len().max(1))) {
            Some(key) if rng.bool() => key.clone(),
            _ => key(&format, &mut rng, 1 << 40),
        };
        if rng.bool() {
            let value = value(&format, &mut rng);
            let is_new = index.upsert(&session, &key, &value).await.expect("upsert");
            assert_eq!(is_new, model.insert(key, value).is_none());
        } else {
            let gone = index.remove(&session, &key).await.expect("remove");
            assert_eq!(gone, model.remove(&key).is_some());
        }
    }
    check(&session, &index).await;
    index.close(&session).await.expect("close");
    let again = Dex::open(&session, meta, layout, options, join).await.expect("join");
    assert_eq!(all(&session, &again).await, model);
    check(&session, &again).await;
}

#[test]
fn empty_tables_that_are_cut_are_loaded_as_the_model() {
    for (at, (name, format)) in formats().into_iter().enumerate() {
        for (cuts, keys) in [(1, 0), (2, 1), (3, 40), (7, 900)] {
            let seed = (10 * at + cuts) as u64;
            println!("{name}, {cuts} bounds, {keys} keys, seed {seed}");
            World::default()
                .on_mapped(|session| cut_then_loaded(session, format, (cuts, keys), seed));
            World::default()
                .on_sim(move |session| cut_then_loaded(session, format, (cuts, keys), seed));
        }
    }
}

/// Nodes up to the subtree level are of one partition each, and of one memory server; partitions that
/// have enough of them lie on different ones.
async fn placed(session: Session) {
    const LEVEL: u8 = 2;
    let layout = bnode_layout(&fixed8()).for_tree(session.endpoint().random());
    let meta = Dex::create_placed(&session, &layout, LEVEL).await.expect("create");
    let bounds: Vec<_> = [100, 200, 205].map(number).to_vec();
    let whole = open(&session, (meta, layout), 64, DexOptions::default()).await;
    whole.partition(&session, &bounds).await.expect("cut");
    let options = DexOptions { cache_bytes: 64 << 10, ..DexOptions::default() };
    let join = JoinOptions { calls: true, ..JoinOptions::default() };
    let index = Dex::open(&session, meta, layout, options, join);
    let index = index.await.expect("join");
    let pairs: Vec<_> = (1..=300).map(|at| (number(at), vec![1; 8])).collect();
    assert_eq!(index.bulk_load(&session, &mut Pairs(pairs.iter())).await, Ok(300));
    // Leaves of 2 pairs, and 3 children: 50 leaves for each of the large partitions, 3 for the small one.
    let report = check(&session, &index).await;
    assert_eq!(report.nodes_per_level[0], 50 + 50 + 3 + 48);
    let height = report.nodes_per_level.len() as u64;
    index.close(&session).await.expect("close");
    // At the ends of the large partitions, too, no node up to the subtree level is shared.
    for key in [1, 100, 101, 150, 200] {
        let cold = Dex::open(&session, meta, layout, options, join);
        let cold = cold.await.expect("join");
        assert_eq!(cold.get(&session, &number(key), &mut Vec::new()).await, Ok(true));
        let read = cold.tree().stats();
        let all = read.reads_root + read.reads_shared + read.reads_inner + read.reads_leaf;
        assert_eq!((all, read.reads_leaf), (height, 1), "key {key}");
        assert!(read.reads_inner >= u64::from(LEVEL), "key {key}: {read:?}");
        cold.close(&session).await.expect("close");
    }
    let nodes = BTree::open(meta, layout, Default::default()).objects(&session).await;
    let mut servers = [0; 3];
    nodes.expect("nodes").iter().for_each(|node| servers[node.server().index()] += 1);
    assert!(servers.iter().all(|nodes| *nodes > 40), "{servers:?}");
}

#[test]
fn subtrees_of_a_partition_lie_together() {
    World { servers: 3, ..World::default() }.on_mapped(placed);
}

/// Whoever loads must have it all: others' partitions are refused, and nothing is changed.
#[test]
fn what_others_have_is_not_loaded() {
    let sim = Sim::new(config(5, 2)).expect("sim");
    let bounds = [number(1_000)];
    let servers = members(&sim, &fixed8(), &bounds, 64);
    sim.block_on(async {
        let [one, two] = &servers[..] else { panic!("two") };
        let pairs: Vec<_> = (900..1_100).map(|at| (number(at), vec![1; 8])).collect();
        let refused = one.index.bulk_load(&one.session, &mut Pairs(pairs.iter())).await;
        assert!(
            matches!(&refused, Err(IndexError::Unavailable(why)) if why.contains("end that process")),
            "{refused:?}"
        );
        two.index.close(&two.session).await.expect("close");
        let loaded = one.index.bulk_load(&one.session, &mut Pairs(pairs.iter())).await;
        assert_eq!(loaded, Ok(200));
        assert_eq!(all(&one.session, &one.index).await.len(), 200);
        check(&one.session, &one.index).await;
    })
    .expect("loaded");
}

/// Operations wait while a table is loaded, and see all of it then. A compute server whose copies of
/// shared nodes are of before finds the new ones.
#[test]
fn who_comes_meanwhile_waits_and_old_copies_are_found_out() {
    let sim = Sim::new(config(6, 2)).expect("sim");
    let cluster = Hosts::of(&sim);
    let bounds = [200, 400, 600, 800].map(number);
    let servers = members(&sim, &fixed8(), &bounds, 200);
    for (compute, server) in servers.iter().enumerate() {
        for _ in 0..2 {
            let endpoint = sim.fabric(compute).any_endpoint().expect("endpoint");
            let (pool, index) = (server.pool.clone(), server.index.clone());
            let cluster = cluster.clone();
            sim.spawn(compute, async move {
                let session = pool.session(endpoint).await.expect("session");
                cluster.serve(index, session).await.expect("serves");
            });
        }
    }
    let begun = Rc::new(Cell::new(false));
    let seen = Rc::new(Cell::new(0_u32));
    for at in 0..4_u64 {
        let endpoint = sim.fabric(0).any_endpoint().expect("endpoint");
        let (pool, index) = (servers[0].pool.clone(), servers[0].index.clone());
        let (begun, seen) = (begun.clone(), seen.clone());
        sim.spawn(0, async move {
            let session = pool.session(endpoint).await.expect("session");
            while !begun.get() {
                session.endpoint().sleep(500).await;
            }
            let (key, mut value) = (number(at * 200 + 150), Vec::new());
            while !index.get(&session, &key, &mut value).await.expect("get") {
                session.endpoint().sleep(2_000).await;
            }
            seen.set(seen.get() + 1);
        });
    }
    let (one, two) = (sim.fabric(0).incarnation(), sim.fabric(1).incarnation());
    sim.block_on(async {
        let [first, second] = &servers[..] else { panic!("two") };
        // The second has copies of everything on the way to its keys.
        for at in 0..5 {
            let key = number(at * 200 + 100);
            let done = second.index.upsert(&second.session, &key, &[1; 8]).await;
            assert_eq!(done, Ok(true));
            assert_eq!(second.index.remove(&second.session, &key).await, Ok(true));
        }
        // One after the other becomes a part of the first one's, until there is one, of many leaves.
        for at in 1..5 {
            let (low, high) = (number(at * 200), (at < 4).then(|| number(at * 200 + 200)));
            let given = second.index.move_range(&second.session, Some(&low), high.as_deref(), one);
            given.await.expect("given");
        }
        let (low, high) = (number(200), number(400));
        let pairs: Vec<_> = (1..1_000).map(|at| (number(at), at.to_le_bytes().to_vec())).collect();
        begun.set(true);
        let loaded = first.index.bulk_load(&first.session, &mut Pairs(pairs.iter())).await;
        assert_eq!(loaded, Ok(999));
        assert!(first.index.tree().stats().parked > 0, "operations had to wait");
        let back = first.index.move_range(&first.session, Some(&low), Some(&high), two).await;
        back.expect("given back");
        let mut found = Vec::new();
        for at in 1..1_000_u64 {
            let got = second.index.get(&second.session, &number(at), &mut found).await;
            assert_eq!((got, &found[..]), (Ok(true), &at.to_le_bytes()[..]), "{at}");
            if at % 64 == 0 {
                second.session.tick().await.expect("tick");
            }
        }
        let mut out = Entries::new();
        let (from, to) = (Bound::Excluded(&low[..]), Bound::Included(&high[..]));
        let range = ScanRange { from, to, reverse: true };
        second.index.scan(&second.session, range, usize::MAX, &mut out).await.expect("scan");
        assert_eq!(out.len(), 200);
        while seen.get() < 4 {
            first.session.endpoint().sleep(10_000).await;
        }
        cluster.members().into_iter().for_each(|who| cluster.leave(who));
        second.index.close(&second.session).await.expect("close");
        check(&first.session, &first.index).await;
    })
    .expect("checked");
}

/// The loader dies: whoever comes finds an empty table, or all of it.
#[test]
fn a_loader_that_dies_leaves_nothing_or_all() {
    let bounds = [50, 100, 150].map(number);
    let mut outcomes = [0_u32; 2];
    for step in 0..60 {
        let sim = Sim::new(config(70 + step, 2)).expect("sim");
        let endpoints = [0, 1].map(|compute| sim.fabric(compute).any_endpoint().expect("endpoint"));
        let [one, other] = endpoints;
        let options = World::default().pool_options();
        let made = sim
            .block_on(async {
                let session = start(one.clone(), &options).await;
                let made = create(&session, &fixed8()).await;
                let whole = open(&session, made, 64, DexOptions::default()).await;
                whole.partition(&session, &bounds).await.expect("cut");
                made
            })
            .expect("made");
        let (meta, layout) = made;
        let options = DexOptions { cache_bytes: 64 << 10, ..DexOptions::default() };
        sim.spawn(0, async move {
            let session = crate::common::join(one).await;
            let join = JoinOptions { calls: true, ..JoinOptions::default() };
            let index = Dex::open(&session, meta, layout, options, join);
            let pairs: Vec<_> = (0..200).map(|at| (number(at), vec![1; 8])).collect();
            let index = index.await.expect("join");
            // It may be dead before it gets there, or after.
            let _ = index.bulk_load(&session, &mut Pairs(pairs.iter())).await;
        });
        let keys = sim
            .block_on(async {
                other.sleep(20_000 + step * 4_000).await;
                sim.fabric(0).kill();
                other.sleep(1_000_000).await;
                let session = crate::common::join(other).await;
                let join = JoinOptions { calls: true, ..JoinOptions::default() };
                let index = Dex::open(&session, meta, layout, options, join);
                let index = index.await.expect("join");
                let keys = all(&session, &index).await;
                assert_eq!(index.insert(&session, &number(77_777), &[2; 8]).await, Ok(true));
                assert_eq!(all(&session, &index).await.len(), keys.len() + 1);
                keys.len()
            })
            .expect("looked at");
        assert!(keys == 0 || keys == 200, "{keys} keys after {step} steps");
        outcomes[usize::from(keys > 0)] += 1;
    }
    assert!(outcomes.iter().all(|count| *count > 3), "{outcomes:?}");
}
