//! Cluster tests: compute servers of `dex` join, leave, die and share the load; costs of a move.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use farleaf_engines::dex::{
    Admission, Balance, BalanceOptions, Dex, DexOptions, DexTable, JoinOptions, MoveError, Take,
    equal_width, sampled,
};
use farleaf_engines::{Engine, TableFormat};
use farleaf_fabric::mapped::Mapped;
use farleaf_fabric::sim::{Sim, SimConfig};
use farleaf_fabric::{Endpoint, Fabric, Incarnation, ListenConfig, ToAny};
use farleaf_index::compute::{Host, OwnedTable, RangeCalls, number_of};
use farleaf_index::{Entries, Index, IndexError, ScanRange};

use super::hosts::Hosts;
use super::storm::{config, members, members_of, serve};
use super::tables::{create, open};
use crate::common::{Pairs, World, bnode_layout, join, settle, start};

fn fixed8() -> TableFormat {
    TableFormat::fixed8(Engine::BTree)
}

fn key_of(number: u64) -> [u8; 8] {
    (number << 40).to_be_bytes()
}

#[test]
fn moves_that_cannot_be_are_refused() {
    let sim = Sim::new(config(5, 3)).expect("sim");
    let cluster = Hosts::of(&sim);
    let layout = bnode_layout(&fixed8());
    let cut = equal_width(layout.options().key, 2).expect("fixed");
    let servers = members(&sim, &fixed8(), &cut, 64);
    for (compute, server) in servers.iter().enumerate() {
        serve(&sim, compute, server, &cluster);
    }
    let who = |compute: usize| sim.fabric(compute).incarnation();
    let third = sim.fabric(2);
    sim.block_on(async {
        let (index, session) = (&servers[0].index, &servers[0].session);
        session.endpoint().sleep(50_000).await;
        let go = async |low: Option<&[u8]>, high: Option<&[u8]>, to| {
            index.move_range(session, low, high, to).await
        };
        let (low, high) = ([1; 8], [2; 8]);
        assert_eq!(go(Some(&high), Some(&low), who(1)).await, Err(MoveError::OutOfOrder));
        assert_eq!(go(Some(&low), Some(&low), who(1)).await, Err(MoveError::OutOfOrder));
        assert_eq!(go(Some(&[1; 7]), Some(&high), who(1)).await, Err(MoveError::NoKey));
        assert_eq!(go(None, None, who(1)).await, Err(MoveError::NotOwned), "of two owners");
        let nobody = Incarnation(99);
        assert_eq!(go(None, Some(&low), nobody).await, Err(MoveError::DeadTarget(nobody)));
        let silent = third.incarnation();
        cluster.close(silent);
        assert_eq!(go(None, Some(&low), silent).await, Err(MoveError::UnknownServer(silent)));
        let bound = index.move_boundary(session, 1, &low).await;
        assert_eq!(bound, Err(MoveError::NoBoundary(1)));
        let (epoch, bounds, owners) = index.known_map();
        assert_eq!((bounds, owners), (cut.clone(), vec![who(0), who(1)]), "nothing has happened");
        assert_eq!(go(None, Some(&low), who(0)).await, Ok(epoch), "it has it");
        let (cluster_too, dex) = (cluster.clone(), servers[2].index.clone());
        let own = servers[2].pool.session(third.any_endpoint().expect("endpoint")).await;
        let own = own.expect("session");
        servers[2].session.endpoint().spawn(async move {
            // Until it dies.
            let _ = cluster_too.serve(dex, own).await;
        });
        while !cluster.members().contains(&silent) {
            session.endpoint().sleep(10_000).await;
        }
        // Two changes of the map for a move: the intent, and the move.
        assert_eq!(go(None, Some(&low), silent).await, Ok(epoch + 2));
        third.kill();
        let dead = go(Some(&low), Some(&high), who(2)).await;
        assert!(matches!(dead, Err(MoveError::DeadTarget(_))), "{dead:?}");
        // Whoever meets the dead one's keys takes them over.
        assert_eq!(index.upsert(session, &[0; 8], &[7; 8]).await, Ok(true));
        let (_, _, owners) = index.known_map();
        assert_eq!(owners, [who(0), who(0), who(1)]);
        // Of a table that nobody has, nothing is given.
        let free = create(session, &fixed8()).await;
        let free = open(session, free, 32, DexOptions::default()).await;
        let none = free.move_range(session, None, Some(&low), who(1)).await;
        assert_eq!(none, Err(MoveError::NotOwned));
        cluster.members().into_iter().for_each(|who| cluster.leave(who));
    })
    .expect("the simulation ends");
}

/// Compute servers come and get a part, and go and leave nothing behind; who owns nothing uses all keys.
#[test]
fn compute_servers_come_and_go() {
    let sim = Sim::new(config(6, 4)).expect("sim");
    let cluster = Hosts::of(&sim);
    let servers = members(&sim, &fixed8(), &[], 400);
    for (compute, server) in servers.iter().enumerate() {
        serve(&sim, compute, server, &cluster);
    }
    let who = |compute: usize| sim.fabric(compute).incarnation();
    let incarnations: Vec<Incarnation> = (0..4).map(who).collect();
    sim.block_on(async {
        let client = &servers[3];
        let (index, session) = (&client.index, &client.session);
        session.endpoint().sleep(50_000).await;
        assert_eq!(index.known_map().2, [incarnations[0]]);
        for number in 0..2_000 {
            let put = index.upsert(session, &key_of(number), &number.to_le_bytes()).await;
            assert_eq!(put, Ok(true));
            session.tick().await.expect("tick");
        }
        for to in [1, 2] {
            index.scale_out(session, incarnations[to]).await.expect("a part");
        }
        let (_, bounds, owners) = index.known_map();
        let numbers: Vec<u64> = bounds
            .iter()
            .map(|bound| u64::from_be_bytes(bound.as_slice().try_into().expect("8")) >> 40)
            .collect();
        println!("{numbers:?} {owners:?}");
        assert_eq!(owners.len(), 3);
        assert!(numbers.iter().all(|at| (200..1_800).contains(at)), "{numbers:?}");
        assert!(numbers[1] - numbers[0] > 200);
        let all = async || {
            let mut out = Entries::new();
            index.scan(session, ScanRange::ALL, usize::MAX, &mut out).await.expect("scan");
            let mut back = Entries::new();
            let reverse = ScanRange { reverse: true, ..ScanRange::ALL };
            index.scan(session, reverse, 1_500, &mut back).await.expect("scan");
            assert_eq!((out.len(), back.len()), (2_000, 1_500));
            for (number, (key, value)) in (0_u64..).zip(out.iter()) {
                assert_eq!((key, value), (&key_of(number)[..], &number.to_le_bytes()[..]));
            }
            assert!(back.iter().rev().eq(out.iter().skip(500)));
        };
        all().await;
        // The first one leaves, then another.
        for out in [0, 2] {
            let given = index.scale_in(session, incarnations[out]).await.expect("gives");
            assert!(given >= 1);
            let left = &servers[out];
            assert!(!index.known_map().2.contains(&incarnations[out]));
            cluster.leave(incarnations[out]);
            left.index.close(&left.session).await.expect("close");
            all().await;
        }
        let last = index.scale_in(session, incarnations[1]).await;
        assert_eq!(last, Err(MoveError::NobodyElse));
        assert!(index.tree().stats().forwarded > 2_000, "{:?}", index.tree().stats());
        cluster.members().into_iter().for_each(|who| cluster.leave(who));
        settle(&servers[1].session).await;
        let (index, session) = (&servers[1].index, &servers[1].session);
        let mut audit = farleaf_pool::Audit::new(session).await.expect("audit");
        let report = index.verify(session, &mut audit).await.expect("verify");
        assert_eq!((report.keys, report.problems), (2_000, Vec::<String>::new()));
    })
    .expect("the simulation ends");
}

/// One that is cut off between two operations of a client's: its keys are served by who meets them, and
/// two that meet them at once agree.
#[test]
fn the_keys_of_the_dead_are_taken_over_by_whoever_meets_them() {
    let sim = Sim::new(config(8, 4)).expect("sim");
    let cluster = Hosts::of(&sim);
    let layout = bnode_layout(&fixed8());
    let cut = equal_width(layout.options().key, 3).expect("fixed");
    let servers = members(&sim, &fixed8(), &cut, 100);
    for (compute, server) in servers.iter().enumerate() {
        serve(&sim, compute, server, &cluster);
    }
    let dead = sim.fabric(1).incarnation();
    sim.block_on(async {
        let (index, session) = (&servers[3].index, &servers[3].session);
        session.endpoint().sleep(50_000).await;
        for byte in 0..=255_u8 {
            assert_eq!(index.upsert(session, &[byte; 8], &[byte; 8]).await, Ok(true));
        }
        servers[1].index.flush(&servers[1].session).await.expect("flush");
    })
    .expect("filled");
    sim.fabric(1).kill();
    let seen = Rc::new(Cell::new(0));
    for compute in [0, 2, 3] {
        let endpoint = sim.fabric(compute).any_endpoint().expect("endpoint");
        let (pool, index) = (servers[compute].pool.clone(), servers[compute].index.clone());
        let (seen, cluster) = (seen.clone(), cluster.clone());
        sim.spawn(compute, async move {
            let session = pool.session(endpoint).await.expect("session");
            for byte in 0..=255_u8 {
                let mut value = Vec::new();
                assert_eq!(index.get(&session, &[byte; 8], &mut value).await, Ok(true));
                assert_eq!(value, [byte; 8]);
                let update = index.update(&session, &[byte; 8], &[byte; 8]).await;
                assert_eq!(update, Ok(true));
            }
            seen.set(seen.get() + 1);
            if seen.get() == 3 {
                cluster.members().into_iter().for_each(|who| cluster.leave(who));
            }
        });
    }
    sim.run().expect("the simulation ends");
    assert_eq!(seen.get(), 3);
    sim.block_on(async {
        servers[0].index.refresh_map(&servers[0].session).await.expect("map");
        assert!(!servers[0].index.known_map().2.contains(&dead));
        let again = servers[0].index.take_over(&servers[0].session, dead).await;
        assert_eq!(again, Ok(0), "nothing is left to be taken");
        let alive = servers[2].session.endpoint().incarnation();
        let refused = servers[0].index.take_over(&servers[0].session, alive).await;
        assert!(matches!(refused, Err(IndexError::Unavailable(_))), "{refused:?}");
    })
    .expect("checked");
}

/// Gives a dirty cache of `mb` MiB away, all but the lowest eighth of the keys, while both are in use.
/// Virtual times: of all, of the longest operation outside of the range, of the longest on it.
fn repartition(mb: u64, flush_tasks: usize) -> (u64, u64, u64) {
    let world =
        World { region_bytes: (mb * 2).max(32) << 20, block_bytes: 1 << 20, ..World::default() };
    let sim_config = SimConfig { compute_servers: 2, ..world.sim_config() };
    let sim = Sim::new(sim_config).expect("sim");
    let cluster = Hosts::of(&sim);
    let options = world.pool_options();
    let (leaves, each) = (mb * 1024 * 19 / 20, 42);
    let endpoints = [0, 1].map(|compute| sim.fabric(compute).any_endpoint().expect("endpoint"));
    let take = [Take::Free(1), Take::Nothing];
    let servers = sim
        .block_on(async {
            let mut servers = Vec::new();
            let mut made = None;
            for (number, endpoint) in endpoints.into_iter().enumerate() {
                let session = match number {
                    0 => start(endpoint, &options).await,
                    _ => join(endpoint).await,
                };
                if made.is_none() {
                    let table = create(&session, &fixed8()).await;
                    made = Some(table);
                    let whole = open(&session, table, 64, DexOptions::default()).await;
                    let pairs: Vec<_> = (0..leaves * each)
                        .map(|key| ((key << 20).to_be_bytes().to_vec(), vec![0; 8]))
                        .collect();
                    whole.bulk_load(&session, &mut Pairs(pairs.iter())).await.expect("load");
                    whole.partition(&session, &[]).await.expect("partition");
                }
                let (meta, layout) = made.expect("made");
                let options = DexOptions {
                    cache_bytes: mb << 20,
                    admission: Admission::EAGER,
                    flush_tasks,
                    ..DexOptions::default()
                };
                let join = JoinOptions { take: take[number], take_over: false, calls: true };
                let index = Dex::open(&session, meta, layout, options, join);
                servers.push((session.pool().clone(), index.await.expect("join"), session));
            }
            // Every leaf becomes dirty.
            let (_, index, session) = &servers[0];
            for leaf in 0..leaves {
                let key = (leaf * each) << 20;
                let put = index.update(session, &key.to_be_bytes(), &[1; 8]).await;
                assert_eq!(put, Ok(true));
                if leaf % 256 == 0 {
                    session.tick().await.expect("tick");
                }
            }
            servers
        })
        .expect("made");
    for (compute, (pool, index, _)) in servers.iter().enumerate() {
        for _ in 0..2 {
            let endpoint = sim.fabric(compute).any_endpoint().expect("endpoint");
            let (pool, index, cluster) = (pool.clone(), index.clone(), cluster.clone());
            sim.spawn(compute, async move {
                let session = pool.session(endpoint).await.expect("session");
                cluster.serve(index, session).await.expect("serves");
            });
        }
    }
    let eighth = leaves / 8 * each;
    let (longest, stop) = (Rc::new(RefCell::new([0_u64; 2])), Rc::new(Cell::new(false)));
    let sure: Rc<RefCell<BTreeMap<u64, u64>>> = Rc::default();
    for client in 0..4_u64 {
        let endpoint = sim.fabric(0).any_endpoint().expect("endpoint");
        let (pool, index) = (servers[0].0.clone(), servers[0].1.clone());
        let (longest, stop, sure) = (longest.clone(), stop.clone(), sure.clone());
        sim.spawn(0, async move {
            let session = pool.session(endpoint).await.expect("session");
            let mut rng = fastrand::Rng::with_seed(client);
            for value in 2_u64.. {
                if stop.get() {
                    return;
                }
                // Half of the clients outside of the range, the others inside; also new keys.
                let inside = client % 2 == 1;
                let number = match inside {
                    false => rng.u64(..eighth),
                    true => rng.u64(eighth + 1..leaves * each),
                };
                let key = (number << 20) + (rng.u64(..8) * 4 + client);
                let began_ns = session.endpoint().now_ns();
                index
                    .upsert(&session, &key.to_be_bytes(), &value.to_le_bytes())
                    .await
                    .expect("put");
                let took_ns = session.endpoint().now_ns() - began_ns;
                {
                    let mut longest = longest.borrow_mut();
                    longest[usize::from(inside)] = longest[usize::from(inside)].max(took_ns);
                }
                sure.borrow_mut().insert(key, value);
                session.endpoint().sleep(20_000).await;
                session.tick().await.expect("tick");
            }
        });
    }
    let to = sim.fabric(1).incarnation();
    let took_ns = sim
        .block_on(async {
            let (_, index, session) = &servers[0];
            session.endpoint().sleep(1_000_000).await;
            *longest.borrow_mut() = [0; 2];
            let low = (eighth << 20).to_be_bytes();
            let began_ns = session.endpoint().now_ns();
            index.move_range(session, Some(&low), None, to).await.expect("moved");
            let took_ns = session.endpoint().now_ns() - began_ns;
            let written = index.tree().stats().moved_nodes;
            println!("{mb} MiB, {flush_tasks} flushing: {written} nodes written");
            assert!(written > leaves * 3 / 4, "{written} of {leaves} leaves");
            took_ns
        })
        .expect("moved");
    stop.set(true);
    let lost = sim.block_on(async {
        let (_, index, session) = &servers[1];
        session.endpoint().sleep(1_000_000).await;
        let (mut lost, mut value) = (0, Vec::new());
        let sure = sure.take();
        for (key, sure) in &sure {
            let has = index.get(session, &key.to_be_bytes(), &mut value).await.expect("get");
            lost += u64::from(!has || value != sure.to_le_bytes());
        }
        for leaf in 0..leaves {
            let key = (leaf * each) << 20;
            if !sure.contains_key(&key) {
                let has = index.get(session, &key.to_be_bytes(), &mut value).await.expect("get");
                lost += u64::from(!has || value != [1; 8]);
            }
            if leaf % 256 == 0 {
                session.tick().await.expect("tick");
            }
        }
        cluster.members().into_iter().for_each(|who| cluster.leave(who));
        lost
    });
    assert_eq!(lost.expect("read"), 0, "acknowledged writes");
    let [outside, inside] = *longest.borrow();
    println!(
        "{mb} MiB, {flush_tasks} flushing: {took_ns} ns, outside at most {outside} ns, inside at \
         most {inside} ns"
    );
    (took_ns, outside, inside)
}

/// `FARLEAF_MOVE_MIB=256` gives the figure of the paper's setting (Fig. 10): under 2 s.
#[test]
fn a_dirty_cache_is_given_away_quickly_and_holds_up_nobody_else() {
    let mb = std::env::var("FARLEAF_MOVE_MIB").ok().and_then(|mb| mb.parse().ok()).unwrap_or(8);
    let (one, outside, inside) = repartition(mb, 1);
    assert!(one < 2_000_000_000 * mb / 256, "{one} ns");
    assert!(outside < 10_000_000, "{outside} ns");
    assert!(
        inside < one / 2,
        "operations on the range wait for a part of it: {inside} of {one} ns"
    );
    let (four, ..) = repartition(mb, 4);
    assert!(four * 3 < one * 2, "{four} ns with four tasks, {one} ns with one");
}

/// Nine operations in ten are on a tenth of the keys, which are all one compute server's.
#[test]
fn a_skewed_load_is_spread_and_then_left_alone() {
    let sim = Sim::new(SimConfig { compute_servers: 3, ..World::default().sim_config() });
    let sim = sim.expect("sim");
    let cluster = Hosts::of(&sim);
    let cut = [1_000, 2_000].map(|at| key_of(at).to_vec());
    let servers = members_of(&sim, World::default(), &fixed8(), &cut, 400);
    for (compute, server) in servers.iter().enumerate() {
        serve(&sim, compute, server, &cluster);
    }
    let stop = Rc::new(Cell::new(false));
    for client in 0..6 {
        let endpoint = sim.fabric(client % 3).any_endpoint().expect("endpoint");
        let (pool, index) = (servers[client % 3].pool.clone(), servers[client % 3].index.clone());
        let stop = stop.clone();
        sim.spawn(client % 3, async move {
            let session = pool.session(endpoint).await.expect("session");
            let mut rng = fastrand::Rng::with_seed(client as u64);
            while !stop.get() {
                let number = if rng.u8(..10) == 0 { rng.u64(..3_000) } else { rng.u64(..300) };
                index.upsert(&session, &key_of(number), &[1; 8]).await.expect("upsert");
                session.endpoint().sleep(1_000).await;
                session.tick().await.expect("tick");
            }
        });
    }
    for (compute, server) in servers.iter().enumerate() {
        let endpoint = sim.fabric(compute).any_endpoint().expect("endpoint");
        let (pool, index) = (server.pool.clone(), server.index.clone());
        sim.spawn(compute, async move {
            let session = pool.session(endpoint).await.expect("session");
            let options = BalanceOptions {
                mode: Balance::Auto,
                round_ns: 1_000_000,
                least_ops: 100,
                ..BalanceOptions::default()
            };
            let ended = index.balance_repeatedly(&session, options).await;
            assert!(matches!(ended, Err(IndexError::Closed(_))), "{ended:?}");
        });
    }
    let moves = || servers.iter().map(|server| server.index.tree().stats().moves).sum::<u64>();
    sim.run_until(sim.now_ns() + 100_000_000).expect("runs");
    let until_even = moves();
    sim.run_until(sim.now_ns() + 100_000_000).expect("runs");
    let after = moves() - until_even;
    stop.set(true);
    sim.block_on(async {
        let (index, session) = (&servers[0].index, &servers[0].session);
        let loads = index.loads(session, false).await.expect("loads");
        let mut sums: BTreeMap<Incarnation, u64> = BTreeMap::new();
        loads.iter().for_each(|load| *sums.entry(load.owner).or_default() += load.ops);
        println!("{until_even} moves, then {after}: {sums:?}");
        assert!((1..30).contains(&until_even) && after <= 3, "{until_even}, then {after}");
        let (most, least) = (sums.values().max().expect("3"), sums.values().min().expect("3"));
        assert!(sums.len() == 3 && *most < *least * 2, "{sums:?}");
        session.endpoint().sleep(1_000_000).await;
        cluster.members().into_iter().for_each(|who| cluster.leave(who));
        for server in &servers {
            server.index.close(&server.session).await.expect("close");
        }
        session.endpoint().sleep(3_000_000).await;
    })
    .expect("checked");
}

/// Loaded by one, cut by a sample of what is used, and served by several.
#[test]
fn a_loaded_table_is_cut_where_the_load_is() {
    let sim = Sim::new(config(9, 1)).expect("sim");
    let endpoint = sim.fabric(0).any_endpoint().expect("endpoint");
    sim.block_on(async {
        let session = start(endpoint, &World::default().pool_options()).await;
        let made = create(&session, &fixed8()).await;
        let whole = open(&session, made, 200, DexOptions::default()).await;
        let pairs: Vec<_> = (0..3_000).map(|at| (key_of(at).to_vec(), vec![7; 8])).collect();
        assert_eq!(whole.bulk_load(&session, &mut Pairs(pairs.iter())).await, Ok(3_000));
        let mut rng = fastrand::Rng::with_seed(1);
        let sample: Vec<_> =
            (0..900).map(|at| key_of(rng.u64(..if at % 3 > 0 { 30 } else { 3_000 }))).collect();
        let bounds = sampled(&sample, 3);
        assert_eq!(bounds.len(), 2);
        assert!(bounds[1].as_slice() < &key_of(60)[..], "the load is there");
        whole.partition(&session, &bounds).await.expect("cut");
        let (meta, layout) = made;
        let options = DexOptions { cache_bytes: 200 << 10, ..DexOptions::default() };
        let all = JoinOptions { calls: true, ..JoinOptions::default() };
        let one = Dex::open(&session, meta, layout, options, all);
        let one = one.await.expect("join");
        // A member of the pool has one cache of a table, whoever opens it.
        let again = Dex::open(&session, meta, layout, options, all).await;
        assert_eq!(again.expect("open").tree().stats(), one.tree().stats());
        let refused = one.bulk_load(&session, &mut Pairs(pairs.iter())).await;
        assert!(matches!(refused, Err(IndexError::Invalid(_))), "{refused:?}");
        assert_eq!(super::tables::check(&session, &one).await.keys, 3_000);
        one.close(&session).await.expect("close");
        // What was closed is free, and is taken again.
        let two = Dex::open(&session, meta, layout, options, all).await.expect("join");
        assert_eq!(two.get(&session, &key_of(2_999), &mut Vec::new()).await, Ok(true));
        Dex::destroy(&two, &session).await.expect("destroy");
    })
    .expect("the simulation ends");
}

/// Three compute servers, a thread each, on the memory of one machine; ranges move meanwhile.
#[test]
#[allow(clippy::disallowed_methods, reason = "about real threads")]
fn threads_forward_to_each_other() {
    const COUNT: usize = 3;
    let path = std::env::temp_dir().join(format!("farleaf-dex-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    let world = World::default();
    let (first, guard) = Mapped::create(&path, world.servers, world.region_bytes).expect("folder");
    let endpoint = first.any_endpoint().expect("endpoint");
    let executor = endpoint.executor().clone();
    let layout = bnode_layout(&fixed8());
    let cut = equal_width(layout.options().key, COUNT).expect("fixed");
    let (meta, layout) = executor.block_on(async {
        let session = start(endpoint, &world.pool_options()).await;
        let made = create(&session, &fixed8()).await;
        open(&session, made, 64, DexOptions::default())
            .await
            .partition(&session, &cut)
            .await
            .expect("cut");
        made
    });
    guard.finish().expect("made");
    let fabrics: Vec<Mapped> = (0..COUNT).map(|_| Mapped::open(&path).expect("open")).collect();
    let names: Vec<Incarnation> =
        fabrics.iter().map(|it| it.any_endpoint().expect("endpoint").incarnation()).collect();
    let left = std::sync::atomic::AtomicUsize::new(COUNT);
    let joined = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for (number, fabric) in fabrics.iter().enumerate() {
            let (joined, names, left) = (&joined, &names, &left);
            scope.spawn(move || {
                let endpoint = fabric.any_endpoint().expect("endpoint");
                endpoint.seed(number as u64);
                let executor = endpoint.executor().clone();
                executor.block_on(async {
                    let session = join(endpoint.clone()).await;
                    let cache_bytes = 60 * layout.node_bytes() as u64;
                    let options = DexOptions { cache_bytes, ..DexOptions::default() };
                    let take = JoinOptions { take: Take::Free(1), take_over: false, calls: true };
                    let index = Dex::open(&session, meta, layout, options, take);
                    let index = index.await.expect("join");
                    let slots = session.members().await.expect("members").into_iter();
                    let mut me = slots.filter(|it| it.incarnation == endpoint.incarnation());
                    let number_here = number_of(me.next().expect("it is one").slot);
                    fabric.expose(number_here, 0, &ListenConfig::default()).expect("exposed");
                    let host: Arc<Host<DexTable>> = Arc::default();
                    host.add(index.clone());
                    let serving = Rc::new(Cell::new(2));
                    for _ in 0..2 {
                        let own = session.pool().session(endpoint.clone()).await.expect("session");
                        let serve = Arc::clone(&host).serve(own);
                        let serving = serving.clone();
                        endpoint.spawn(async move {
                            serve.await.expect("serves");
                            serving.set(serving.get() - 1);
                        });
                    }
                    joined.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                    while joined.load(std::sync::atomic::Ordering::SeqCst) < COUNT {
                        endpoint.sleep(10_000).await;
                    }
                    let mut rng = fastrand::Rng::with_seed(number as u64);
                    let mut model = BTreeMap::new();
                    for step in 0..600_u64 {
                        let mut key =
                            rng.u64(..300).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
                        key[7] = number as u8;
                        if step % 3 == 0 {
                            let mut value = Vec::new();
                            let has = index.get(&session, &key, &mut value).await.expect("get");
                            assert_eq!(has.then_some(value), model.get(&key).cloned());
                        } else {
                            let value = step.to_le_bytes().to_vec();
                            let new = index.upsert(&session, &key, &value).await.expect("upsert");
                            assert_eq!(new, model.insert(key, value).is_none());
                        }
                        if step % 40 == 20 + number as u64 {
                            let to = names[rng.usize(..COUNT)];
                            let bounds = index.known_map().1;
                            let bound = rng.u64(..).to_be_bytes();
                            let moved = match rng.u8(..2) {
                                0 if !bounds.is_empty() => {
                                    index.move_boundary(&session, 0, &bound).await
                                }
                                _ => index.move_range(&session, Some(&bound), None, to).await,
                            };
                            if let Err(error @ MoveError::Index(_)) = moved {
                                panic!("{error}");
                            }
                        }
                        session.tick().await.expect("tick");
                    }
                    let mut out = Entries::new();
                    index.scan(&session, ScanRange::ALL, usize::MAX, &mut out).await.expect("scan");
                    let own: BTreeMap<_, _> = out
                        .iter()
                        .filter(|(key, _)| key[7] == number as u8)
                        .map(|(key, value)| (key.try_into().expect("8"), value.to_vec()))
                        .collect();
                    assert_eq!(own, model);
                    left.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                    while left.load(std::sync::atomic::Ordering::SeqCst) > 0 {
                        endpoint.sleep(10_000).await;
                    }
                    endpoint.leave().await;
                    while serving.get() > 0 {
                        endpoint.sleep(10_000).await;
                    }
                    assert_eq!(index.tree().check_cache(), Vec::<String>::new());
                    index.close(&session).await.expect("close");
                });
            });
        }
    });
    let _ = std::fs::remove_dir_all(&path);
}
