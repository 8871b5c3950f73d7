//! Partition tests: the engine `dex` on several compute servers, each of which owns some of the keys.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use farleaf_engines::dex::{Dex, DexOptions, JoinOptions, Owner, Take};
use farleaf_engines::{Engine, TableFormat};
use farleaf_fabric::ToAny;
use farleaf_fabric::sim::Sim;
use farleaf_index::compute::messages::{OpReply, Request};
use farleaf_index::compute::{OwnedTable, RangeCalls};
use farleaf_index::{Entries, Index, IndexError, Op, ScanRange};

use super::storm::{Server, bounds, cluster, config, finish, serve};
use super::tables::{create, open};
use crate::common::clients::{Model, count_up, one_step, soak};
use crate::common::{Pairs, World, formats, key, start, value};

/// Clients on all compute servers use all keys; each owns those that end in its number.
fn storm(seed: u64, format: TableFormat, count: usize, frames: u64, steps: usize) -> (u64, u64) {
    let sim = Sim::new(config(seed, count)).expect("sim");
    let (servers, post) = cluster(&sim, &format, count, frames);
    for (compute, server) in servers.iter().enumerate() {
        serve(&sim, compute, server, &post);
    }
    let clients = 2 * count;
    let (running, counted) = (Rc::new(Cell::new(clients)), Rc::new(Cell::new(0_u64)));
    let models: Rc<RefCell<Vec<Model>>> = Rc::default();
    for client in 0..clients {
        let compute = client % count;
        let endpoint = sim.fabric(compute).any_endpoint().expect("endpoint");
        let (pool, index) = (servers[compute].pool.clone(), servers[compute].index.clone());
        let (running, counted, post) = (running.clone(), counted.clone(), post.clone());
        let models = models.clone();
        sim.spawn(compute, async move {
            let session = pool.session(endpoint).await.expect("session");
            let mut rng = fastrand::Rng::with_seed(seed ^ client as u64);
            let mut model = BTreeMap::new();
            for step in 0..steps {
                session.tick().await.expect("tick");
                one_step(&session, &index, &format, client, &mut rng, &mut model, step).await;
                if step % 8 == 0 {
                    count_up(&session, &index, &format, &mut rng, 8).await;
                    counted.set(counted.get() + 1);
                }
            }
            models.borrow_mut().push(model);
            for _ in 0..3 {
                session.tick().await.expect("tick");
            }
            running.set(running.get() - 1);
            if running.get() == 0 {
                post.members().into_iter().for_each(|who| post.leave(who));
            }
        });
    }
    sim.run().expect("the simulation ends");
    let expected = models.take().into_iter().flatten().collect();
    let refreshes = servers.iter().map(|server| server.index.tree().stats().refreshes).sum();
    finish(&sim, &servers, &format, expected, counted.get());
    (sim.trace_hash(), refreshes)
}

#[test]
fn compute_servers_with_a_part_each_agree() {
    let mut refreshes = 0;
    for round in 0..soak() {
        for (number, (name, format)) in formats().into_iter().enumerate() {
            let count = 2 + number % 3;
            for frames in [40, 1_000] {
                let seed = 40 + number as u64 + 1_000 * round + frames;
                println!("{name}, {count} compute servers, {frames} frames, seed {seed}");
                refreshes += storm(seed, format, count, frames, 130).1;
            }
        }
    }
    println!("{refreshes} refreshes");
    assert!(refreshes > 0, "shared nodes were split by others");
}

/// Two ways in which an older copy of a shared node once undid another server's split.
///
/// Seed 3044: a frame was dropped as an old copy of a shared node when it held another node, a dirty
/// one, by then. Seed 4080: a growth that was under way had the root word name a node that lay in one
/// partition; its owner took it for exclusive, put a root of its own over it, and wrote both back.
#[test]
fn old_copies_of_shared_nodes_undo_nothing() {
    storm(3_044, formats()[4].1, 3, 1_000, 130);
    storm(4_080, formats()[0].1, 2, 40, 130);
}

#[test]
fn the_same_seed_is_the_same_run() {
    let format = formats()[0].1;
    assert_eq!(storm(1, format, 3, 40, 60), storm(1, format, 3, 40, 60));
}

/// Without anybody to carry it, an operation on a foreign key is refused, and says whose it is.
#[test]
fn a_foreign_key_is_told() {
    let sim = Sim::new(config(1, 2)).expect("sim");
    let format = TableFormat::fixed8(Engine::BTree);
    let endpoints = [0, 1].map(|compute| sim.fabric(compute).any_endpoint().expect("endpoint"));
    let incarnation = sim.fabric(1).incarnation();
    let options = World::default().pool_options();
    sim.block_on(async {
        let [one, other] = endpoints;
        let session = start(one, &options).await;
        let other = farleaf_harness::join(other).await.expect("join");
        let made = create(&session, &format).await;
        let whole = open(&session, made, 64, DexOptions::default()).await;
        // Loaded before it is cut; the bounds need not be keys that are there.
        let pairs: Vec<_> = (0..3_000_u64)
            .map(|key| ((key << 50).to_be_bytes().to_vec(), key.to_le_bytes().to_vec()))
            .collect();
        assert_eq!(whole.bulk_load(&session, &mut Pairs(pairs.iter())).await, Ok(3_000));
        let bad = whole.partition(&session, &[vec![9; 8], vec![8; 8]]).await;
        assert!(matches!(bad, Err(IndexError::Invalid(_))), "{bad:?}");
        whole.partition(&session, &[(777_u64 << 50).to_be_bytes().to_vec()]).await.expect("cut");
        let (meta, layout) = made;
        let mut value = Vec::new();
        let again = open(&session, made, 64, DexOptions::default()).await;
        let refused = again.partition(&session, &[vec![9; 8]]).await;
        assert!(matches!(refused, Err(IndexError::Invalid(_))), "{refused:?}");
        again.close(&session).await.expect("close");
        let options = DexOptions { cache_bytes: 200 << 10, ..DexOptions::default() };
        let join = JoinOptions { take: Take::Free(1), take_over: false, ..JoinOptions::default() };
        let low = Dex::open(&session, meta, layout, options, join).await.expect("open");
        let (own, foreign) = ((777_u64 << 50).to_be_bytes(), ((777_u64 << 50) + 1).to_be_bytes());
        assert_eq!(low.get(&session, &own, &mut value).await, Ok(true));
        assert_eq!(low.wrong_owner(&session, &own).await, Ok(None));
        let told = low.wrong_owner(&session, &foreign).await.expect("told").expect("foreign");
        let epoch = low.known_map().0;
        assert_eq!(told, Owner { partition: 1, owner: None, epoch });
        let high = Dex::open(&other, meta, layout, options, join).await.expect("open");
        assert_eq!(high.get(&other, &foreign, &mut value).await, Ok(false));
        let told = low.wrong_owner(&session, &foreign).await.expect("told").expect("foreign");
        // The claim, the log's name.
        let epoch = epoch + 2;
        assert_eq!(told, Owner { partition: 1, owner: Some(incarnation), epoch });
        for refused in [
            low.get(&session, &foreign, &mut value).await,
            low.upsert(&session, &foreign, &[1; 8]).await,
            low.remove(&session, &foreign).await,
            high.insert(&other, &own, &[1; 8]).await,
        ] {
            assert!(matches!(refused, Err(IndexError::Unavailable(_))), "{refused:?}");
        }
        let request = Request::Op(Op::Get { key: foreign.to_vec() });
        let wrong = Ok(OpReply::WrongOwner { epoch });
        assert_eq!(low.serve(&session, request.clone()).await, wrong);
        assert_eq!(high.serve(&other, request).await, Ok(OpReply::Value(None)));
        let mut out = Entries::new();
        let range = ScanRange { to: std::ops::Bound::Included(&own), ..ScanRange::ALL };
        low.scan(&session, range, usize::MAX, &mut out).await.expect("own keys alone");
        assert_eq!(out.len(), 778);
        let all = low.scan(&session, ScanRange::ALL, usize::MAX, &mut out).await;
        assert!(matches!(all, Err(IndexError::Unavailable(_))), "{all:?}");
    })
    .expect("the simulation ends");
}

/// What each key has held since the flush, and holds; the value `None` is its absence.
type Held = BTreeMap<Vec<u8>, (BTreeSet<Option<Vec<u8>>>, Option<Vec<u8>>)>;

#[allow(clippy::too_many_arguments, reason = "what one client is and shares")]
/// Changes random keys of one's own until stopped, flushing once after `flush_at` steps.
async fn churn(
    server: Rc<Server>,
    format: TableFormat,
    range: (Option<Vec<u8>>, Option<Vec<u8>>),
    seed: u64,
    flush_at: usize,
    held: Rc<RefCell<Held>>,
    flushed: Rc<Cell<bool>>,
    stop: Rc<Cell<bool>>,
) {
    let (session, index) = (&server.session, &server.index);
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut step = 0;
    while !stop.get() {
        session.tick().await.expect("tick");
        if step == flush_at {
            index.flush(session).await.expect("flush");
            flushed.set(true);
        }
        let key = key(&format, &mut rng, 90);
        let above = range.0.as_ref().is_none_or(|low| key > *low);
        if !above || range.1.as_ref().is_some_and(|high| key > *high) {
            continue;
        }
        let new = (rng.u8(..10) < 7).then(|| value(&format, &mut rng));
        {
            let mut held = held.borrow_mut();
            let (values, last) = held.entry(key.clone()).or_insert_with(|| ([None].into(), None));
            if step < flush_at {
                values.clear();
            }
            values.insert(new.clone());
            *last = new.clone();
        }
        match &new {
            Some(value) => drop(index.upsert(session, &key, value).await.expect("upsert")),
            None => drop(index.remove(session, &key).await.expect("remove")),
        }
        step += 1;
    }
    session.tick().await.expect("tick");
}

/// One of two compute servers dies; the other goes on, past the locks that it left on shared nodes, and
/// then a third opens its partition.
fn death(seed: u64, format: TableFormat, at_ns: u64) {
    let sim = Sim::new(config(seed, 3)).expect("sim");
    let (servers, _) = cluster(&sim, &format, 2, 60);
    let third = sim.fabric(2).any_endpoint().expect("endpoint");
    let (meta, layout) = (servers[0].index.meta(), *servers[0].index.tree().layout());
    let cut = bounds(&format, 2).remove(0);
    let stop = Rc::new(Cell::new(false));
    let mut all = Vec::new();
    for (number, server) in servers.into_iter().enumerate() {
        let range = if number == 0 { (None, Some(cut.clone())) } else { (Some(cut.clone()), None) };
        let (held, flushed): (Rc<RefCell<Held>>, Rc<Cell<bool>>) = Default::default();
        let server = Rc::new(server);
        all.push((Rc::clone(&server), Rc::clone(&held), Rc::clone(&flushed)));
        let seed = seed * 2 + number as u64;
        let task = churn(server, format, range, seed, 60, held, flushed, Rc::clone(&stop));
        sim.spawn(number, task);
    }
    while !all.iter().all(|(.., flushed)| flushed.get()) {
        sim.run_until(sim.now_ns() + 20_000).expect("runs");
    }
    sim.run_until(sim.now_ns() + at_ns).expect("runs");
    sim.fabric(1).kill();
    // The other one goes on; locks of the dead are looked at after 10 ms.
    sim.run_until(sim.now_ns() + 2_000_000).expect("runs");
    stop.set(true);
    sim.run_until(sim.now_ns() + 60_000_000).expect("runs");
    let (held, own) = (all[1].1.borrow().clone(), all[0].1.borrow().clone());
    let (survivor, ..) = &all[0];
    sim.block_on(async {
        for (key, (_, last)) in &own {
            let mut found = Vec::new();
            let has = survivor.index.get(&survivor.session, key, &mut found).await.expect("get");
            assert_eq!(&has.then_some(found), last, "the living lose nothing");
        }
        let session = farleaf_harness::join(third).await.expect("join");
        let options = DexOptions { cache_bytes: 60 * 4096, ..DexOptions::default() };
        let join = JoinOptions { take: Take::Nothing, take_over: true, ..JoinOptions::default() };
        let index = Dex::open(&session, meta, layout, options, join).await.expect("open");
        let mut now = 0;
        for (key, (values, _)) in &held {
            let mut found = Vec::new();
            let has = index.get(&session, key, &mut found).await.expect("get");
            now += u64::from(has);
            let value = has.then_some(found);
            assert!(values.contains(&value), "{key:?} holds {value:?}, which it never did");
            session.tick().await.expect("tick");
        }
        let mut out = Entries::new();
        let range = ScanRange { from: std::ops::Bound::Excluded(&cut), ..ScanRange::ALL };
        index.scan(&session, range, usize::MAX, &mut out).await.expect("scan");
        assert_eq!(out.len() as u64, now);
        for key in held.keys() {
            let value = value(&format, &mut fastrand::Rng::with_seed(seed));
            index.upsert(&session, key, &value).await.expect("upsert");
            session.tick().await.expect("tick");
        }
        for (index, session) in [(&survivor.index, &survivor.session), (&index, &session)] {
            index.flush(session).await.expect("flush");
            assert_eq!(index.tree().check_cache(), Vec::<String>::new());
        }
        let mut audit = farleaf_pool::Audit::new(&session).await.expect("audit");
        let report = index.verify(&session, &mut audit).await.expect("verify");
        assert_eq!(report.problems, Vec::<String>::new());
    })
    .expect("checked");
}

#[test]
fn a_dead_owner_is_followed_and_holds_nobody_up() {
    for (number, (name, format)) in formats().into_iter().enumerate() {
        for step in 0..8 * soak() {
            let at_ns = step % 8 * 61_123 + step / 8 * 97;
            println!("{name}, step {step}, {at_ns} ns");
            death(number as u64 * 100_000 + step, format, at_ns);
        }
    }
}
