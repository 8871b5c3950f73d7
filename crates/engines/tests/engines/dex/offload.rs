//! Offload tests: costs of the operations that memory servers do for `dex`, and their refusals.
//!
//! They also lose completions, slow servers down and kill compute servers.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use farleaf_engines::btree::BTree;
use farleaf_engines::dex::offload::{OFFLOAD_SERVICE, Offload, OffloadService};
use farleaf_engines::dex::{Admission, Dex, DexOptions, DexTable};
use farleaf_engines::{Engine, TableFormat};
use farleaf_fabric::sim::{Direction, RpcConfig, Sim, SimConfig};
use farleaf_fabric::{
    Cost, Endpoint, Fabric, GlobalAddr, Incarnation, ServerId, Service, ServiceId, ServiceReply,
    ToAny, Words,
};
use farleaf_index::bnode::Layout;
use farleaf_index::{Entries, Index, IndexError, ScanRange, ValueFormat};
use farleaf_pool::Session;

use super::tables::{SUBTREE_LEVEL, check, open, placed};
use crate::common::{
    Pairs, World, bnode_layout, costs, formats, lab_table, offload_service, settle, start,
    with_shape,
};

type Made = (GlobalAddr, Layout);

fn number(key: u64) -> [u8; 8] {
    key.to_be_bytes()
}

fn always() -> DexOptions {
    DexOptions { offload: Offload::Always, ..DexOptions::default() }
}

fn config(seed: u64) -> SimConfig {
    let mut config = World { seed, ..World::default() }.sim_config();
    config.capabilities.cpu_visible = true;
    config
}

/// A table of every other number below `2 * keys`, loaded and closed.
async fn loaded(session: &Session, made: Made, keys: u64) -> Made {
    let index = open(session, made, 64, DexOptions::default()).await;
    let pairs: Vec<_> =
        (0..keys).map(|key| (number(2 * key).to_vec(), number(key).to_vec())).collect();
    assert_eq!(index.bulk_load(session, &mut Pairs(pairs.iter())).await, Ok(keys));
    check(session, &index).await;
    index.close(session).await.expect("close");
    made
}

/// READs, WRITEs, atomics, RPCs; bytes read, bytes written.
fn verbs(cost: Cost) -> ([u64; 4], [u64; 2]) {
    let verbs = [cost.reads, cost.writes, cost.cas + cost.faa, cost.rpcs];
    (verbs, [cost.bytes_read, cost.bytes_written])
}

/// Level by level: one RPC of 96 bytes and an answer of 40, whatever the height of the subtree. A
/// change sends 8 more and gets no value; the first one asks for a session.
async fn one_rpc(session: Session) {
    let format = TableFormat::fixed8(Engine::BTree);
    let made = loaded(&session, placed(&session, &format, SUBTREE_LEVEL).await, 10_000).await;
    for offload_level in [1, 0] {
        let index = open(&session, made, 1_000, DexOptions { offload_level, ..always() }).await;
        let mut value = Vec::new();
        // The way to the root, and down to where offloading begins.
        assert_eq!(index.get(&session, &number(0), &mut value).await, Ok(true));
        let since = |before| verbs(costs(&session).since(&before).total());
        let get = ([0, 0, 0, 1], [40, 96]);
        let change = ([0, 0, 0, 1], [32, 104]);
        for (key, there) in [(0, true), (40, true), (41, false), (8, true)] {
            let before = costs(&session);
            assert_eq!(index.get(&session, &number(key), &mut value).await, Ok(there));
            let expected = if there { get } else { (get.0, [32, 96]) };
            assert_eq!(since(before), expected);
            assert_eq!(value, if there { number(key / 2).to_vec() } else { Vec::new() });
        }
        let before = costs(&session);
        assert_eq!(index.update(&session, &number(40), &number(9)).await, Ok(true));
        assert_eq!(since(before), ([0, 0, 0, 2], [64, 208]), "a session and the update");
        let before = costs(&session);
        assert_eq!(index.update(&session, &number(41), &number(9)).await, Ok(false));
        assert_eq!(since(before), change);
        let before = costs(&session);
        assert_eq!(index.upsert(&session, &number(40), &number(8)).await, Ok(false));
        assert_eq!(since(before), change);
        let before = costs(&session);
        assert_eq!(index.insert(&session, &number(40), &number(7)).await, Ok(false));
        assert_eq!(since(before), change);
        let before = costs(&session);
        assert_eq!(index.insert(&session, &number(41), &number(7)).await, Ok(true));
        assert_eq!(since(before), change);
        let before = costs(&session);
        assert_eq!(index.remove(&session, &number(41)).await, Ok(true));
        assert_eq!(since(before), (change.0, [32, 96]));
        let before = costs(&session);
        assert_eq!(index.remove(&session, &number(41)).await, Ok(false));
        assert_eq!(since(before), (change.0, [32, 96]));
        assert_eq!(index.get(&session, &number(40), &mut value).await, Ok(true));
        assert_eq!(value, number(8));
        assert_eq!(index.update(&session, &number(40), &number(20)).await, Ok(true));

        let stats = index.tree().stats();
        assert_eq!((stats.offload_ok, stats.offload_exists), (4 + 1 + 1 + 1 + 1 + 1 + 1, 1));
        assert_eq!((stats.offload_absent, stats.offload_sessions), (3, 1));
        assert_eq!(stats.leaves_admitted + stats.leaves_streamed, 0, "{stats:?}");
        let servers = index.tree().offload_servers(&session);
        let calls: u64 = servers.iter().map(|server| server.calls).sum();
        assert_eq!(calls, stats.offload_ok + stats.offload_exists + stats.offload_absent + 1);
        let busy: u64 = servers.iter().map(|server| server.handler_ns).sum();
        assert!(busy > 0 && busy == stats.offload_handler_ns, "{servers:?}");
        check(&session, &index).await;
        index.close(&session).await.expect("close");
    }
    // A leaf's miss is its own matter.
    let options = DexOptions { offload_level: 0, offload_leaf_miss: false, ..always() };
    let index = open(&session, made, 1_000, options).await;
    assert_eq!(index.get(&session, &number(0), &mut Vec::new()).await, Ok(true));
    assert_eq!((index.tree().stats().offload_chosen, index.tree().stats().leaves_admitted), (0, 1));
}

#[test]
fn a_miss_at_any_level_is_one_rpc() {
    World::default().on_mapped(one_rpc);
    World::default().on_sim(one_rpc);
    World::default().on_tcp(one_rpc);
}

/// What would change the tree's shape, or give up a record, is told to fetch, once, and is done.
async fn sent_back(session: Session) {
    let tiny = lab_table(Engine::BTree, "u64-tiny").with_values(ValueFormat::Bytes);
    let format = with_shape(tiny, &[("node_bytes", "auto")]);
    let made = placed(&session, &format, SUBTREE_LEVEL).await;
    let index = open(&session, made, 64, DexOptions::default()).await;
    let long = vec![7; 5_000];
    for key in 0..40_u64 {
        let value = if key == 20 { &long[..] } else { &number(key)[..] };
        assert_eq!(index.insert(&session, &number(10 * key), value).await, Ok(true));
    }
    index.close(&session).await.expect("close");
    let index = open(&session, made, 8, DexOptions { offload_level: 1, ..always() }).await;
    let mut value = Vec::new();
    let fallbacks = |index: &DexTable| index.tree().stats().offload_need_smo;
    // A record is found by one RPC and read; the leaf is not.
    assert_eq!(index.get(&session, &number(0), &mut value).await, Ok(true));
    assert_eq!(index.get(&session, &number(200), &mut value).await, Ok(true));
    assert_eq!((&value, fallbacks(&index)), (&long, 0));
    // To change or remove it is the compute server's. (The leaf is then cached, as others may be.)
    assert_eq!(index.update(&session, &number(200), b"short").await, Ok(true));
    assert_eq!(fallbacks(&index), 1);
    // A long value goes into a record, which is not offloaded at all.
    let before = index.tree().stats().offload_chosen;
    assert_eq!(index.update(&session, &number(390), &long).await, Ok(true));
    assert_eq!(index.tree().stats().offload_chosen, before);
    // A full leaf: one after the other until some leaf has to be split.
    let splits = index.tree().stats().splits;
    for key in 0..6 {
        assert_eq!(index.insert(&session, &number(1 + key), b"more").await, Ok(true));
    }
    assert!(index.tree().stats().splits > splits, "{:?}", index.tree().stats());
    assert!(fallbacks(&index) > 1, "{:?}", index.tree().stats());
    let mut out = Entries::new();
    index.scan(&session, ScanRange::ALL, usize::MAX, &mut out).await.expect("scan");
    assert_eq!(out.len(), 46);
    check(&session, &index).await;
}

#[test]
fn what_the_handler_must_not_do_is_fetched() {
    World::default().on_mapped(sent_back);
    World::default().on_sim(sent_back);
}

/// Leaves stay in the cooling map after their parents have gone. A memory server that changes one must
/// not leave the old copy to be found later.
async fn stale_copies(session: Session) {
    let (_, format) = formats()[0];
    let made = placed(&session, &format, SUBTREE_LEVEL).await;
    let options = DexOptions {
        offload: Offload::Ratio(0.5),
        cooling_ratio: 0.9,
        admission: Admission::EAGER,
        probe_buckets: 1,
        ..DexOptions::default()
    };
    let index = open(&session, made, 40, options).await;
    let mut rng = fastrand::Rng::with_seed(5);
    let mut model = BTreeMap::new();
    for step in 0..12_000_u64 {
        if step % 64 == 0 {
            session.tick().await.expect("tick");
        }
        let key = rng.u64(..200);
        if rng.u8(..3) == 0 {
            let new = index.upsert(&session, &number(key), &number(step)).await;
            assert_eq!(new, Ok(model.insert(key, step).is_none()));
        } else {
            let mut value = Vec::new();
            let has = index.get(&session, &number(key), &mut value).await.expect("get");
            let held = model.get(&key).map(|step| number(*step).to_vec());
            assert_eq!(has.then_some(value), held, "step {step}");
        }
    }
    let stats = index.tree().stats();
    assert!(stats.offload_invalidated > 0 && stats.second_chances > 100, "{stats:?}");
    check(&session, &index).await;
}

#[test]
fn a_cooling_copy_of_a_changed_leaf_goes() {
    World::default().on_mapped(stale_copies);
    World::default().on_sim(stale_copies);
}

/// Subtrees lie on one server each, and a table on all of them.
async fn spread(session: Session, format: TableFormat, level: u8, bulk: bool) {
    let made = placed(&session, &format, level).await;
    let index = open(&session, made, 40, always()).await;
    let mut rng = fastrand::Rng::with_seed(level.into());
    let mut model = BTreeMap::new();
    if bulk {
        while model.len() < 2_000 {
            let key = crate::common::key(&format, &mut rng, 1 << 40);
            model.insert(key, crate::common::value(&format, &mut rng));
        }
        let pairs: Vec<_> = model.clone().into_iter().collect();
        let loaded = index.bulk_load(&session, &mut Pairs(pairs.iter())).await;
        assert_eq!(loaded, Ok(2_000));
        check(&session, &index).await;
    }
    for step in 0..2_000 {
        session.tick().await.expect("tick");
        let key = crate::common::key(&format, &mut rng, 400);
        if step % 3 < 2 {
            let value = crate::common::value(&format, &mut rng);
            index.upsert(&session, &key, &value).await.expect("upsert");
            model.insert(key, value);
        } else {
            let gone = index.remove(&session, &key).await.expect("remove");
            assert_eq!(gone, model.remove(&key).is_some());
        }
    }
    let report = check(&session, &index).await;
    assert_eq!(report.keys, model.len() as u64);
    let stats = index.tree().stats();
    assert_eq!(stats.offload_cross_server, 0, "{stats:?}");
    index.close(&session).await.expect("close");
    let nodes = BTree::open(made.0, made.1, Default::default()).objects(&session).await;
    let mut servers = [0; 3];
    nodes.expect("nodes").iter().for_each(|node| servers[node.server().index()] += 1);
    println!("{servers:?}, {:?} nodes on each level", report.nodes_per_level);
    // Others have nodes so large that a subtree holds all of it, or have grown from one subtree.
    let is_spread = bulk || level == 0;
    if is_spread
        && format.shape().get("cap_inner").is_some()
        && report.nodes_per_level.len() > usize::from(level) + 1
    {
        assert!(servers.iter().all(|nodes| *nodes > 3), "{servers:?}");
    }
}

#[test]
fn subtrees_stay_on_one_server_and_are_spread() {
    let world = World { servers: 3, ..World::default() };
    for (name, format) in formats() {
        for (level, bulk) in [(0, true), (0, false), (1, false), (1, true), (2, true), (3, true)] {
            println!("{name}, subtree level {level}, bulk {bulk}");
            world.on_mapped(|session| spread(session, format, level, bulk));
        }
    }
}

/// The nodes that `btree` adds to a table lie on any server: operations that lead elsewhere come back.
async fn not_placed(session: Session) {
    let (_, format) = formats()[0];
    let layout = bnode_layout(&format).for_tree(77);
    let meta = Dex::create_placed(&session, &layout, SUBTREE_LEVEL).await.expect("create");
    let tree = BTree::open(meta, layout, Default::default());
    for key in 0..1_000 {
        assert_eq!(tree.insert(&session, &number(key), &number(key)).await, Ok(true));
    }
    let index = open(&session, (meta, layout), 16, always()).await;
    for key in 0..1_000 {
        let mut value = Vec::new();
        assert_eq!(index.get(&session, &number(key), &mut value).await, Ok(true));
        assert_eq!(value, number(key));
        assert_eq!(index.update(&session, &number(key), &number(1)).await, Ok(true));
    }
    let stats = index.tree().stats();
    assert!(stats.offload_cross_server > 10 && stats.offload_ok > 50, "{stats:?}");
    settle(&session).await;
    assert_eq!(index.tree().check_cache(), Vec::<String>::new());
    index.close(&session).await.expect("close");
    // By the tree's own rules, which ask for no placement.
    let mut audit = farleaf_pool::Audit::new(&session).await.expect("audit");
    let report = tree.verify(&session, &mut audit).await.expect("verify");
    assert_eq!((report.problems, report.keys), (Vec::new(), 1_000));
}

#[test]
fn a_table_that_is_not_placed_works_all_the_same() {
    World::default().on_mapped(not_placed);
}

/// Memory servers without the service, and a fabric on which handlers may see old memory: everything
/// is fetched.
#[test]
fn without_the_service_everything_is_fetched() {
    for (visible, serves) in [(true, false), (false, true)] {
        let mut config = config(1);
        config.capabilities.cpu_visible = visible;
        let sim = Sim::new(config).expect("sim");
        if serves {
            sim.fabric(0).serve(OFFLOAD_SERVICE, offload_service());
        }
        let endpoint = sim.fabric(0).any_endpoint().expect("endpoint");
        sim.block_on(async {
            let session = start(endpoint, &World::default().pool_options()).await;
            let made = loaded(
                &session,
                placed(&session, &TableFormat::fixed8(Engine::BTree), SUBTREE_LEVEL).await,
                5_000,
            )
            .await;
            let index = open(&session, made, 100, always()).await;
            let mut value = Vec::new();
            for key in 0..500 {
                assert_eq!(index.get(&session, &number(20 * key), &mut value).await, Ok(true));
                assert_eq!(value, number(10 * key));
                assert_eq!(index.update(&session, &number(20 * key), &number(1)).await, Ok(true));
            }
            let stats = index.tree().stats();
            // It asks each server once a second at most.
            assert_eq!(stats.offload_no_service, u64::from(!serves), "{stats:?}");
            assert_eq!(stats.offload_blind > 100, !visible, "{stats:?}");
            assert_eq!(stats.offload_ok, 0);
            check(&session, &index).await;
        })
        .expect("it ends");
    }
}

/// Puts something else between a memory server and its service.
struct Between<F>(Arc<OffloadService>, F);

impl<F: Fn(&OffloadService, &Words, &[u8], &mut [u8]) -> ServiceReply + Send + Sync> Service
    for Between<F>
{
    fn call(&self, memory: &Words, request: &[u8], reply: &mut [u8]) -> ServiceReply {
        (self.1)(&self.0, memory, request, reply)
    }

    fn busy(&self, reply: &mut [u8]) -> Option<ServiceReply> {
        self.0.busy(reply)
    }
}

/// Completions of RPCs are lost on their way there and back: what is sent again is done once. The
/// handler counts what it has really done by the requests that it gets.
fn lost_completions(seed: u64, from: Option<u64>) -> (u64, u64, u64) {
    const KEYS: u64 = 300;
    let mut config = config(seed);
    config.adversary.lost = if from.is_some() { 0.2 } else { 0.0 };
    config.adversary.lost_ns = 200_000;
    config.adversary.window = from.unwrap_or(0)..u64::MAX;
    let sim = Sim::new(config).expect("sim");
    let service = offload_service();
    sim.fabric(0).serve(OFFLOAD_SERVICE, service.clone());
    let endpoint = sim.fabric(0).any_endpoint().expect("endpoint");
    let posts = Rc::new(Cell::new(0));
    let ready = Rc::clone(&posts);
    let sim = Rc::new(sim);
    let world = Rc::clone(&sim);
    let resent = sim
        .block_on(async move {
            let session = start(endpoint, &World::default().pool_options()).await;
            let made = placed(&session, &TableFormat::fixed8(Engine::BTree), SUBTREE_LEVEL).await;
            let made = loaded(&session, made, KEYS).await;
            // Leaves are never read, inner nodes are there already, and nothing is full.
            let index =
                open(&session, made, 100, DexOptions { offload_level: 0, ..always() }).await;
            let mut value = Vec::new();
            for key in 0..KEYS {
                assert_eq!(index.get(&session, &number(2 * key), &mut value).await, Ok(true));
            }
            ready.set(world.posts());
            let mut model: BTreeMap<u64, u64> = (0..KEYS).map(|key| (2 * key, key)).collect();
            let mut rng = fastrand::Rng::with_seed(seed);
            for step in 0..1_200 {
                let key = rng.u64(..2 * KEYS);
                let held = model.get(&key).copied();
                match rng.u8(..4) {
                    // Few enough that no leaf is full.
                    0 if held.is_some() || key % 40 == 1 => {
                        let new = index.insert(&session, &number(key), &number(step)).await;
                        assert_eq!(new, Ok(held.is_none()), "step {step}");
                        model.entry(key).or_insert(step);
                    }
                    1 => {
                        let gone = index.remove(&session, &number(key)).await;
                        assert_eq!(gone, Ok(model.remove(&key).is_some()), "step {step}");
                    }
                    2 => {
                        let there = index.update(&session, &number(key), &number(step)).await;
                        assert_eq!(there, Ok(held.is_some()), "step {step}");
                        held.is_some().then(|| model.insert(key, step));
                    }
                    _ => {
                        let has = index.get(&session, &number(key), &mut value).await.expect("get");
                        let held = held.map(|held| number(held).to_vec());
                        assert_eq!(has.then(|| value.clone()), held, "step {step}");
                    }
                }
            }
            let stats = index.tree().stats();
            assert_eq!((stats.offload_unknown, stats.leaves_admitted), (0, 0), "{stats:?}");
            stats.offload_resent
        })
        .expect("it ends");
    (posts.get(), resent, service.stats().duplicates)
}

#[test]
fn what_is_sent_again_is_done_once() {
    let (mut resent, mut duplicates) = (0, 0);
    for seed in 1..6 {
        // A first run finds out when the reads are over.
        let (posts, ..) = lost_completions(seed, None);
        let (_, again, twice) = lost_completions(seed, Some(posts + 1));
        resent += again;
        duplicates += twice;
    }
    println!("{resent} sent again, {duplicates} of them had been done");
    assert!(resent > 100 && duplicates > 50, "{resent} {duplicates}");
}

/// Many clients, one thread that takes its time, and no queue: most are turned away, and fetch.
#[test]
fn a_busy_server_turns_operations_away() {
    let mut config = config(3);
    config.rpc = RpcConfig { threads: 1, queue_max: 1, ..RpcConfig::default() };
    let sim = Sim::new(config).expect("sim");
    let slow = |service: &OffloadService, memory: &Words, request: &[u8], reply: &mut [u8]| {
        let done = service.call(memory, request, reply);
        ServiceReply { cpu_ns: 30_000, ..done }
    };
    sim.fabric(0).serve(OFFLOAD_SERVICE, Arc::new(Between(offload_service(), slow)));
    let first = sim.fabric(0).any_endpoint().expect("endpoint");
    let (session, index) = sim
        .block_on(async {
            let session = start(first, &World::default().pool_options()).await;
            let made = placed(&session, &TableFormat::fixed8(Engine::BTree), SUBTREE_LEVEL).await;
            let made = loaded(&session, made, 5_000).await;
            let index = open(&session, made, 60, DexOptions { offload_level: 0, ..always() }).await;
            (session, index)
        })
        .expect("made");
    for client in 0..8_u64 {
        let endpoint = sim.fabric(0).any_endpoint().expect("endpoint");
        let (pool, index) = (session.pool().clone(), index.clone());
        sim.spawn(0, async move {
            let session = pool.session(endpoint).await.expect("session");
            let mut value = Vec::new();
            for step in 0..150_u64 {
                let key = number(2 * (step * 31 % 600 * 8 + client));
                assert_eq!(index.update(&session, &key, &number(step)).await, Ok(true));
                assert_eq!(index.get(&session, &key, &mut value).await, Ok(true));
                assert_eq!(value, number(step));
            }
        });
    }
    sim.run().expect("it ends");
    let stats = index.tree().stats();
    println!("{stats:?}");
    assert!(stats.offload_busy > 20 && stats.offload_ok > 20, "{stats:?}");
    sim.block_on(async { drop(check(&session, &index).await) }).expect("checked");
}

/// Measured, a slow handler is left alone, save for a look now and then, and a quick one is not.
#[test]
fn the_cost_model_follows_the_handler() {
    let mut shares = Vec::new();
    for cpu_ns in [0, 40_000] {
        let sim = Sim::new(config(4)).expect("sim");
        let slow =
            move |service: &OffloadService, memory: &Words, request: &[u8], reply: &mut [u8]| {
                let done = service.call(memory, request, reply);
                ServiceReply { cpu_ns: done.cpu_ns + cpu_ns, ..done }
            };
        sim.fabric(0).serve(OFFLOAD_SERVICE, Arc::new(Between(offload_service(), slow)));
        let endpoint = sim.fabric(0).any_endpoint().expect("endpoint");
        let share = sim
            .block_on(async {
                let session = start(endpoint, &World::default().pool_options()).await;
                let format = with_shape(TableFormat::fixed8(Engine::BTree), &[("cap_inner", "8")]);
                let made =
                    loaded(&session, placed(&session, &format, SUBTREE_LEVEL).await, 5_000).await;
                let options = DexOptions { offload: Offload::Adaptive, ..DexOptions::default() };
                let index = open(&session, made, 22, options).await;
                let mut rng = fastrand::Rng::with_seed(4);
                for step in 0..4_000 {
                    let key = number(2 * rng.u64(..5_000));
                    let mut value = Vec::new();
                    assert_eq!(index.get(&session, &key, &mut value).await, Ok(true), "{step}");
                }
                let stats = index.tree().stats();
                println!("{cpu_ns} ns: {stats:?}, {:?}", index.tree().offload_servers(&session));
                assert!(stats.offload_explored > 100, "{stats:?}");
                stats.offload_chosen as f64 / (stats.offload_chosen + stats.offload_declined) as f64
            })
            .expect("it ends");
        shares.push(share);
    }
    println!("{shares:?} of the misses were offloaded");
    assert!(shares[0] > 0.4 && shares[1] < 0.1, "{shares:?}");
}

/// Keeps a memory server's thread busy for as many microseconds as the request says.
struct Hold;

const HOLD: ServiceId = ServiceId(77);

impl Service for Hold {
    fn call(&self, _: &Words, request: &[u8], _: &mut [u8]) -> ServiceReply {
        ServiceReply { len: 0, cpu_ns: request.len() as u64 * 1_000 }
    }
}

/// A compute server dies with a change in a memory server's queue. With the fence that the next owner
/// begins with the change is not done any more; without it, it would be.
fn dies_in_the_queue(fences: bool) {
    let sim =
        Sim::new(SimConfig { compute_servers: 2, memory_servers: 1, ..config(9) }).expect("sim");
    let service = offload_service();
    sim.fabric(0).serve(OFFLOAD_SERVICE, service.clone());
    sim.fabric(0).serve(HOLD, Arc::new(Hold));
    let [first, victim] =
        [0, 1].map(|compute| sim.fabric(compute).any_endpoint().expect("endpoint"));
    let (session, made) = sim
        .block_on(async {
            let session = start(first, &World::default().pool_options()).await;
            let made = placed(&session, &TableFormat::fixed8(Engine::BTree), SUBTREE_LEVEL).await;
            (session.clone(), loaded(&session, made, 1_000).await)
        })
        .expect("made");
    let dead: Rc<RefCell<Option<Incarnation>>> = Rc::default();
    let says = Rc::clone(&dead);
    sim.spawn(1, async move {
        let session = farleaf_harness::join(victim).await.expect("join");
        let index = open(&session, made, 100, always()).await;
        assert_eq!(index.update(&session, &number(10), &number(50)).await, Ok(true));
        assert_eq!(index.tree().stats().offload_ok, 1);
        let endpoint = session.endpoint().clone();
        *says.borrow_mut() = Some(endpoint.incarnation());
        let holder = endpoint.clone();
        endpoint.spawn(async move {
            let held = holder.rpc(ServerId(0), HOLD, holder.buf(400), holder.buf(8)).await;
            unreachable!("the compute server is dead by then: {held:?}");
        });
        endpoint.sleep(20_000).await;
        let done = index.update(&session, &number(10), &number(99)).await;
        unreachable!("the compute server is dead by then: {done:?}");
    });
    while dead.borrow().is_none() {
        sim.run_until(sim.now_ns() + 1_000).expect("runs");
    }
    sim.run_until(sim.now_ns() + 60_000).expect("runs");
    let before = service.stats().requests;
    sim.fabric(1).kill();
    let value = sim
        .block_on(async {
            let mut value = Vec::new();
            if fences {
                let index = open(&session, made, 100, DexOptions::default()).await;
                assert_eq!(index.get(&session, &number(10), &mut value).await, Ok(true));
                assert_eq!(value, number(50));
                session.endpoint().sleep(2_000_000).await;
                index.close(&session).await.expect("close");
            } else {
                session.endpoint().sleep(2_000_000).await;
            }
            let index = open(&session, made, 100, DexOptions::default()).await;
            assert_eq!(index.get(&session, &number(10), &mut value).await, Ok(true));
            check(&session, &index).await;
            value
        })
        .expect("it ends");
    let done = service.stats().requests - before;
    assert_eq!(
        (value, done),
        if fences { (number(50).to_vec(), 0) } else { (number(99).to_vec(), 1) }
    );
}

#[test]
fn a_fence_keeps_the_deads_changes_out() {
    dies_in_the_queue(true);
    dies_in_the_queue(false);
}

/// A memory server does what it is asked to, but its answers are lost for longer than anybody waits: the
/// outcome is unknown, the table cannot be given up, and whoever wants the leaf waits until it is known.
#[test]
fn an_unknown_outcome_keeps_its_mark() {
    let sim = Sim::new(SimConfig { memory_servers: 1, ..config(12) }).expect("sim");
    let service = offload_service();
    sim.fabric(0).serve(OFFLOAD_SERVICE, service.clone());
    let [one, other] = [0, 0].map(|compute| sim.fabric(compute).any_endpoint().expect("endpoint"));
    let (session, index) = sim
        .block_on(async {
            let session = start(one, &World::default().pool_options()).await;
            let made = placed(&session, &TableFormat::fixed8(Engine::BTree), SUBTREE_LEVEL).await;
            let made = loaded(&session, made, 1_000).await;
            let index = open(&session, made, 100, always()).await;
            assert_eq!(index.update(&session, &number(10), &number(50)).await, Ok(true));
            sim.memory_server(ServerId(0)).cut(0, Direction::Replies);
            let done = index.update(&session, &number(10), &number(51)).await;
            assert!(matches!(done, Err(IndexError::OutcomeUnknown(_))), "{done:?}");
            (session, index)
        })
        .expect("runs");
    let found = Rc::new(RefCell::new(None));
    {
        let (pool, index, found) = (session.pool().clone(), index.clone(), Rc::clone(&found));
        // Its session is made over a line that works.
        sim.memory_server(ServerId(0)).heal(0);
        let other = sim.block_on(async move { pool.session(other).await.expect("session") });
        let other = other.expect("runs");
        sim.spawn(0, async move {
            let mut value = Vec::new();
            let has = index.get(&other, &number(10), &mut value).await;
            *found.borrow_mut() = Some((has, value));
        });
    }
    sim.run_until(sim.now_ns() + 100_000_000).expect("runs");
    assert_eq!(*found.borrow(), Some((Ok(true), number(51).to_vec())));
    let stats = index.tree().stats();
    assert_eq!((stats.offload_unknown, stats.offload_ok), (1, 2), "{stats:?}");
    sim.block_on(async {
        check(&session, &index).await;
        assert_eq!(index.close(&session).await, Ok(()));
    })
    .expect("closed");
    // Once more, and nothing heals it before the owner wants to close.
    let sim = Sim::new(SimConfig { memory_servers: 1, ..config(13) }).expect("sim");
    sim.fabric(0).serve(OFFLOAD_SERVICE, service);
    let endpoint = sim.fabric(0).any_endpoint().expect("endpoint");
    sim.block_on(async {
        let session = start(endpoint, &World::default().pool_options()).await;
        let made = placed(&session, &TableFormat::fixed8(Engine::BTree), SUBTREE_LEVEL).await;
        let made = loaded(&session, made, 1_000).await;
        let index = open(&session, made, 100, always()).await;
        assert_eq!(index.update(&session, &number(10), &number(50)).await, Ok(true));
        let server = sim.memory_server(ServerId(0));
        server.cut(0, Direction::Replies);
        let done = index.update(&session, &number(10), &number(51)).await;
        assert!(matches!(done, Err(IndexError::OutcomeUnknown(_))), "{done:?}");
        let refused = index.close(&session).await;
        assert!(matches!(refused, Err(IndexError::Unavailable(_))), "{refused:?}");
        server.heal(0);
        session.endpoint().sleep(100_000_000).await;
        let mut value = Vec::new();
        assert_eq!(index.get(&session, &number(10), &mut value).await, Ok(true));
        assert_eq!(value, number(51));
        check(&session, &index).await;
        assert_eq!(index.close(&session).await, Ok(()));
    })
    .expect("runs");
}

/// A memory server whose service began anew and has forgotten what it did cannot say whether a change
/// was done: the outcome is unknown, and the cache and the table are sound.
#[test]
fn a_service_that_forgot_leaves_the_outcome_unknown() {
    let mut config = config(11);
    config.adversary.timeout_ns = 20_000;
    let sim = Sim::new(config).expect("sim");
    // Each request that changes something is answered by a service of its own, from when asked to.
    let lives = Arc::new(AtomicU64::new(0));
    let told = Arc::clone(&lives);
    let forgetful = move |service: &OffloadService,
                          memory: &Words,
                          request: &[u8],
                          reply: &mut [u8]| {
        match told.load(Ordering::SeqCst) {
            0 => service.call(memory, request, reply),
            life => OffloadService::new(life, None).call(memory, request, reply),
        }
    };
    sim.fabric(0).serve(OFFLOAD_SERVICE, Arc::new(Between(offload_service(), forgetful)));
    let endpoint = sim.fabric(0).any_endpoint().expect("endpoint");
    sim.block_on(async {
        let session = start(endpoint, &World::default().pool_options()).await;
        let made = placed(&session, &TableFormat::fixed8(Engine::BTree), SUBTREE_LEVEL).await;
        let made = loaded(&session, made, 1_000).await;
        let index = open(&session, made, 100, always()).await;
        assert_eq!(index.update(&session, &number(10), &number(50)).await, Ok(true));
        // It knows nobody's session: grants are tried a few times, then the leaf is fetched.
        lives.store(2, Ordering::SeqCst);
        assert_eq!(index.update(&session, &number(10), &number(51)).await, Ok(true));
        let stats = index.tree().stats();
        assert_eq!((stats.offload_ok, stats.offload_sessions), (1, 5), "{stats:?}");
        lives.store(0, Ordering::SeqCst);
        let mut value = Vec::new();
        assert_eq!(index.get(&session, &number(10), &mut value).await, Ok(true));
        assert_eq!(value, number(51));
        check(&session, &index).await;
    })
    .expect("it ends");
}
