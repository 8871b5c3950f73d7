//! Move tests: ranges of `dex` change owners under load, while compute servers come, go and die.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use farleaf_engines::dex::{ADOPT_UNCHECKED, Dex, DexTable, MoveError, TRUST_OLD_COPY};
use farleaf_engines::{Engine, TableFormat};
use farleaf_fabric::sim::Sim;
use farleaf_fabric::{Endpoint, GlobalAddr, ToAny};
use farleaf_index::bnode::{Cover, Kind, Node};
use farleaf_index::compute::{OwnedTable, RangeCalls};
use farleaf_index::{Index, Stored};
use farleaf_pool::Session;

use super::hosts::Hosts;
use super::storm::{bounds, config, finish, members, serve};
use crate::common::clients::{Model, count_up, one_step, soak};
use crate::common::{formats, key, with_shape};

/// What a storm came to.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Came {
    hash: u64,
    moves: u64,
    adopted: u64,
    parked: u64,
}

/// Clients on all compute servers use all keys, while ranges are moved all the time.
fn storm(
    seed: u64,
    format: TableFormat,
    (computes, parts): (usize, usize),
    frames: u64,
    steps: usize,
) -> Came {
    let sim = Sim::new(config(seed, computes)).expect("sim");
    let cluster = Hosts::of(&sim);
    let servers = members(&sim, &format, &bounds(&format, parts), frames);
    for (compute, server) in servers.iter().enumerate() {
        serve(&sim, compute, server, &cluster);
    }
    let clients = 2 * computes;
    let running = Rc::new(Cell::new(clients));
    let counted = Rc::new(Cell::new(0_u64));
    let models: Rc<RefCell<Vec<Model>>> = Rc::default();
    for client in 0..clients {
        let compute = client % computes;
        let endpoint = sim.fabric(compute).any_endpoint().expect("endpoint");
        let (pool, index) = (servers[compute].pool.clone(), servers[compute].index.clone());
        let (running, counted, models) = (running.clone(), counted.clone(), models.clone());
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
        });
    }
    for mover in 0..2 {
        let compute = mover % computes;
        let endpoint = sim.fabric(compute).any_endpoint().expect("endpoint");
        let (pool, index) = (servers[compute].pool.clone(), servers[compute].index.clone());
        let (running, cluster) = (running.clone(), cluster.clone());
        sim.spawn(compute, async move {
            let session = pool.session(endpoint).await.expect("session");
            let mut rng = fastrand::Rng::with_seed(seed ^ 77 ^ mover as u64);
            while running.get() > 0 {
                move_something(&session, &index, &format, &cluster, &mut rng).await;
                session.tick().await.expect("tick");
                farleaf_fabric::Endpoint::sleep(session.endpoint(), 20_000).await;
            }
            if mover == 0 {
                cluster.members().into_iter().for_each(|who| cluster.leave(who));
            }
        });
    }
    sim.run().expect("the simulation ends");
    let expected = models.take().into_iter().flatten().collect();
    let mut came = Came { hash: sim.trace_hash(), ..Came::default() };
    for server in &servers {
        let stats = server.index.tree().stats();
        came.moves += stats.moves;
        came.adopted += stats.adopted;
        came.parked += stats.parked;
    }
    finish(&sim, &servers, &format, expected, counted.get());
    came
}

async fn move_something(
    session: &Session,
    index: &DexTable,
    format: &TableFormat,
    cluster: &Hosts,
    rng: &mut fastrand::Rng,
) {
    let (_, bounds, owners) = index.known_map();
    let all = cluster.members();
    let Some(somebody) = rng.choice(all) else { return };
    let moved = match rng.u8(..10) {
        0 => index.scale_in(session, somebody).await.map(|_| 0),
        1 | 2 => index.scale_out(session, somebody).await,
        3..6 if !bounds.is_empty() => {
            let bound = key(format, rng, 150);
            index.move_boundary(session, rng.usize(..bounds.len()), &bound).await
        }
        6..8 => {
            let at = rng.usize(..owners.len());
            let low = at.checked_sub(1).map(|at| bounds[at].as_slice());
            index.move_range(session, low, bounds.get(at).map(Vec::as_slice), somebody).await
        }
        _ => {
            let (low, high) = (key(format, rng, 150), key(format, rng, 150));
            index.move_range(session, Some(&low), Some(&high), somebody).await
        }
    };
    match moved {
        Ok(_) => {}
        Err(
            MoveError::OutOfOrder
            | MoveError::NotOwned
            | MoveError::Busy
            | MoveError::NobodyElse
            | MoveError::NoBoundary(_)
            | MoveError::UnknownServer(_),
        ) => {}
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn ranges_move_under_load() {
    let mut all = Came::default();
    for round in 0..soak() {
        for (number, (name, format)) in formats().into_iter().enumerate() {
            let computes = 2 + number % 3;
            for frames in [40, 1_000] {
                let seed = 400 + number as u64 + 1_000 * round + frames;
                let parts = 1 + (number + frames as usize / 40) % 4;
                println!("{name}, {computes} compute servers, {parts}, {frames} frames, {seed}");
                let came = storm(seed, format, (computes, parts), frames, 130);
                all.moves += came.moves;
                all.adopted += came.adopted;
                all.parked += came.parked;
            }
        }
    }
    println!("{all:?}");
    assert!(all.moves > 100 && all.adopted > 0 && all.parked > 0, "{all:?}");
}

/// A shared copy was compared with remote memory, to become exclusive, while a range of which it had a part
/// began to be given away: the giver took it for shared, and it was exclusive after, and out of date.
#[test]
fn a_copy_that_is_being_adopted_is_not_missed_by_a_move() {
    let (_, format) = formats()[3];
    storm(14_403, format, (2, 1), 1_000, 130);
}

#[test]
fn the_same_seed_is_the_same_run() {
    let format = formats()[0].1;
    assert_eq!(storm(1, format, (3, 2), 40, 60), storm(1, format, (3, 2), 40, 60));
}

/// All compute servers make an empty table grow at once; and the smallest cache is enough.
#[test]
fn the_smallest_caches_make_progress() {
    let format = formats()[0].1;
    for (computes, parts) in [(1, 1), (8, 8), (8, 1)] {
        println!("{computes} compute servers, {parts} partitions");
        storm(3, format, (computes, parts), 8 + 4 * computes as u64, 40);
    }
}

/// A shared node that is taken for exclusive without a look whether the copy is current undoes what its
/// owner before has done. That the storms find this shows that they would notice.
#[test]
fn a_stale_copy_that_is_adopted_blindly_is_found_out() {
    let tiny = [formats()[0].1, formats()[3].1, formats()[4].1];
    let found = (0..60_u64).find(|seed| {
        let _armed = ADOPT_UNCHECKED.arm();
        let format = tiny[*seed as usize % tiny.len()];
        let run = || storm(9_100 + seed, format, (3, 3), 1_000, 130);
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err()
    });
    let seed = found.expect("somebody loses something");
    println!("found with seed {seed}");
    // And without the bug nothing is.
    storm(9_100 + seed, tiny[seed as usize % tiny.len()], (3, 3), 1_000, 130);
}

/// The leaf of `key` in remote memory: its address and its words.
async fn leaf_of(session: &Session, index: &DexTable, key: &[u8]) -> (GlobalAddr, Vec<u64>) {
    let (layout, meta) = (*index.tree().layout(), index.meta());
    let stored = Stored { table: layout.table(), meta };
    let all = stored.collect::<Dex>(session, None).await.expect("a walk");
    for addr in all.into_iter().filter(|addr| *addr != meta) {
        let buf = session.client().buf(layout.node_bytes());
        let image = session.reliable().read(addr, buf).await.expect("a READ");
        let node = Node::new(&layout, image.words());
        if node.kind() == Kind::Leaf
            && node.self_addr() == addr.word()
            && node.covers(key) == Cover::Inside
        {
            return (addr, image.words().to_vec());
        }
    }
    panic!("no leaf has {key:?}");
}

/// A compute server gives its keys away, and gets them back later. Meanwhile the node that crosses the bound, of which it
/// has a copy, was exclusive to the other, which merged a leaf away. Where the copy leads to that leaf, there is one with
/// the very same fences again (a right half that a dead owner never linked): nothing but the copy's age tells.
#[test]
fn a_copy_of_an_earlier_map_leads_nowhere() {
    assert_eq!(read_by_an_old_copy(), Ok(()));
    let armed = TRUST_OLD_COPY.arm();
    let found = read_by_an_old_copy();
    drop(armed);
    assert!(found.is_err(), "nothing tells the old leaf from a new one");
}

/// The stage of that test; the key whose value is out of date.
fn read_by_an_old_copy() -> Result<(), u64> {
    const BOUND: u64 = 60;
    /// Keys from here to the bound are removed and come back.
    const FROM: u64 = 40;
    // Three levels: a root is never exclusive again.
    let shape = [("node_bytes", "1024"), ("cap_leaf", "4"), ("cap_inner", "12")];
    let format = with_shape(TableFormat::fixed8(Engine::BTree), &shape);
    let sim = Sim::new(config(1, 2)).expect("sim");
    let cluster = Hosts::of(&sim);
    let number = |number: u64| number.to_be_bytes();
    let servers = members(&sim, &format, &[number(BOUND).to_vec()], 200);
    for (compute, server) in servers.iter().enumerate() {
        serve(&sim, compute, server, &cluster);
    }
    let [one, two] =
        [0, 1].map(|at: usize| (servers[at].session.clone(), servers[at].index.clone()));
    let done = Rc::new(Cell::new(None));
    let (told, hosts) = (done.clone(), cluster.clone());
    sim.spawn(0, async move {
        let [(one_session, one), (two_session, two)] = [one, two];
        let [one_name, two_name] =
            [&one_session, &two_session].map(|session| session.endpoint().incarnation());
        for at in 0..BOUND {
            assert_eq!(one.insert(&one_session, &number(at), &[1; 8]).await, Ok(true));
        }
        for at in BOUND..80 {
            assert_eq!(two.insert(&two_session, &number(at), &[1; 8]).await, Ok(true));
        }
        let mut value = Vec::new();
        for at in 0..BOUND {
            assert_eq!(one.get(&one_session, &number(at), &mut value).await, Ok(true));
        }
        one.flush(&one_session).await.expect("flush");
        two.flush(&two_session).await.expect("flush");
        let mut before = Vec::new();
        for at in FROM..BOUND {
            before.push(leaf_of(&one_session, &one, &number(at)).await);
        }
        let to = Some(&number(BOUND)[..]);
        one.move_range(&one_session, None, to, two_name).await.expect("moved");
        for at in FROM..BOUND {
            assert_eq!(two.get(&two_session, &number(at), &mut value).await, Ok(true));
        }
        // From the right: a leaf absorbs its right neighbour, which has to be empty.
        for at in (FROM..BOUND).rev() {
            assert_eq!(two.remove(&two_session, &number(at)).await, Ok(true));
        }
        for at in FROM..BOUND {
            assert_eq!(two.insert(&two_session, &number(at), &[2; 8]).await, Ok(true));
        }
        two.flush(&two_session).await.expect("flush");
        let stored = Stored { table: two.tree().layout().table(), meta: two.meta() };
        let all = stored.collect::<Dex>(&two_session, None).await.expect("a walk");
        // The leaves that were merged away, at addresses at which there is nothing else by now.
        before.retain(|(addr, _)| !all.contains(addr));
        assert!(!before.is_empty(), "leaves were merged away");
        // They are free, and poisoned, before anything is written there.
        for _ in 0..8 {
            one_session.tick().await.expect("tick");
            two_session.tick().await.expect("tick");
        }
        for (addr, words) in before {
            let mut image = two_session.client().buf(words.len() * 8);
            image.words_mut().copy_from_slice(&words);
            two_session.reliable().write(addr, image).await.expect("a WRITE");
        }
        two.move_range(&two_session, None, to, one_name).await.expect("moved back");
        let mut found = Ok(());
        // From the right, where the old leaves are: one that has split since would show the copy's age.
        for at in (0..BOUND).rev() {
            assert_eq!(one.get(&one_session, &number(at), &mut value).await, Ok(true));
            if value != [1 + u8::from(at >= FROM); 8] {
                found = Err(at);
            }
        }
        hosts.members().into_iter().for_each(|who| hosts.leave(who));
        told.set(Some(found));
    });
    sim.run().expect("the simulation ends");
    done.take().expect("it has ended")
}
