//! Crash tests: flushed changes of `dex` survive the death of its compute server.
//!
//! The tree is whole, and every key holds a value that it held.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use farleaf_engines::TableFormat;
use farleaf_engines::btree::BTree;
use farleaf_engines::dex::offload::Offload;
use farleaf_engines::dex::{Admission, DexOptions, DexStats, Durability};
use farleaf_fabric::ToAny;
use farleaf_fabric::sim::{Sim, SimConfig};
use farleaf_harness::simulate;
use farleaf_index::{Entries, Index, ScanRange};
use farleaf_pool::Session;

use super::tables::{create, open};
use crate::common::clients::soak;
use crate::common::{World, formats, key, settle, start, value};

/// What each key has held since the flush, or, if changes are logged, may hold now; the value `None` is
/// its absence.
type Held = BTreeMap<Vec<u8>, BTreeSet<Option<Vec<u8>>>>;

/// Kills a compute server some time after a flush; gives what the next one had to do.
fn death(
    seed: u64,
    format: TableFormat,
    frames: u64,
    at_ns: u64,
    durability: Durability,
) -> DexStats {
    let mut config =
        SimConfig { compute_servers: 2, ..World { seed, ..World::default() }.sim_config() };
    let logged = durability == Durability::Logged;
    // Without a journal WRITEs land whole or not at all: what is left of a node else is lost.
    config.adversary.torn = if logged { 0.7 } else { 0.0 };
    config.capabilities.cpu_visible = true;
    let sim = simulate(config).expect("sim");
    // Memory servers may do a part of it, for the dead and for the next one.
    let offload = [Offload::Never, Offload::Ratio(0.5)][seed as usize / 2 % 2];
    let next_offload = [Offload::Never, Offload::Always][seed as usize / 4 % 2];
    let options = World::default().pool_options();
    let endpoints = [0, 1].map(|compute| sim.fabric(compute).any_endpoint().expect("endpoint"));
    let [first, victim] = endpoints;
    let held: Rc<RefCell<Held>> = Rc::default();
    let (session, made) = sim
        .block_on(async {
            let session = start(first, &options).await;
            let made = create(&session, &format).await;
            (session, made)
        })
        .expect("made");
    let flushed = Rc::new(RefCell::new(false));
    {
        let (held, flushed) = (Rc::clone(&held), Rc::clone(&flushed));
        sim.spawn(1, async move {
            let session = farleaf_harness::join(victim).await.expect("join");
            let admission = [Admission::LAZY, Admission::EAGER][seed as usize % 2];
            let log_bytes = [8 << 10, 64 << 10][seed as usize / 2 % 2];
            let options =
                DexOptions { admission, durability, log_bytes, offload, ..DexOptions::default() };
            let index = open(&session, made, frames, options).await;
            let mut rng = fastrand::Rng::with_seed(seed);
            for step in 0_u64.. {
                session.tick().await.expect("tick");
                if step == 150 {
                    index.flush(&session).await.expect("flush");
                    *flushed.borrow_mut() = true;
                }
                let key = key(&format, &mut rng, 60);
                // Growing until the flush, shrinking after.
                let put = rng.u8(..10) < if step < 150 { 8 } else { 4 };
                let new = put.then(|| value(&format, &mut rng));
                {
                    let mut held = held.borrow_mut();
                    let values = held.entry(key.clone()).or_insert_with(|| [None].into());
                    if step < 150 {
                        // Only the last counts at the flush.
                        values.clear();
                    }
                    values.insert(new.clone());
                }
                match &new {
                    Some(value) => drop(index.upsert(&session, &key, value).await.expect("upsert")),
                    None => drop(index.remove(&session, &key).await.expect("remove")),
                }
                if logged {
                    held.borrow_mut().insert(key, [new].into());
                }
            }
        });
    }
    // Until it has flushed, and then for a while.
    while !*flushed.borrow() {
        sim.run_until(sim.now_ns() + 20_000).expect("runs");
    }
    sim.run_until(sim.now_ns() + at_ns).expect("runs");
    sim.fabric(1).kill();
    let held = held.borrow().clone();
    sim.block_on(async {
        let options = DexOptions { offload: next_offload, ..DexOptions::default() };
        let index = open(&session, made, 64, options).await;
        // In an order of its own, so that what is left half done is met from all sides.
        let mut keys: Vec<_> = held.keys().collect();
        fastrand::Rng::with_seed(seed).shuffle(&mut keys);
        let mut now = BTreeMap::new();
        for key in keys {
            let mut found = Vec::new();
            let has = index.get(&session, key, &mut found).await.expect("get");
            let value = has.then_some(found);
            assert!(held[key].contains(&value), "{key:?} holds {value:?}, which it never did");
            if let Some(value) = value {
                now.insert(key.clone(), value);
            }
            session.tick().await.expect("tick");
        }
        let mut out = Entries::new();
        index.scan(&session, ScanRange::ALL, usize::MAX, &mut out).await.expect("scan");
        let all: BTreeMap<_, _> = out.iter().map(|(k, v)| (k.to_vec(), v.to_vec())).collect();
        assert_eq!(all, now);
        settle(&session).await;
        let mut audit = farleaf_pool::Audit::new(&session).await.expect("audit");
        let report = index.verify(&session, &mut audit).await.expect("verify");
        assert_eq!(report.problems, Vec::<String>::new());
        assert_eq!(report.keys, now.len() as u64);
        // And it can be changed.
        for (step, key) in held.keys().enumerate() {
            match step % 3 {
                0 => drop(index.remove(&session, key).await.expect("remove")),
                _ => {
                    let value = now.get(key).cloned().unwrap_or_else(|| {
                        value(&format, &mut fastrand::Rng::with_seed(step as u64))
                    });
                    index.upsert(&session, key, &value).await.expect("upsert");
                }
            }
            session.tick().await.expect("tick");
        }
        let mut audit = farleaf_pool::Audit::new(&session).await.expect("audit");
        let report = index.verify(&session, &mut audit).await.expect("verify");
        assert_eq!(report.problems, Vec::<String>::new());
        index.tree().stats()
    })
    .expect("checked")
}

/// Goes through deaths in all formats; the sums of what was healed, done again and repaired.
fn deaths(durability: Durability) -> [u64; 3] {
    let mut sums = [0; 3];
    for (number, (name, format)) in formats().into_iter().enumerate() {
        for step in 0..30 * soak() {
            let at_ns = step % 30 * 17_123 + step / 30 * 97;
            let frames = if step % 3 == 0 { 28 } else { 500 };
            println!("{name}, step {step}, {at_ns} ns");
            let stats = death(number as u64 * 100_000 + step, format, frames, at_ns, durability);
            let done = [stats.separators_healed, stats.replayed, stats.repaired];
            sums.iter_mut().zip(done).for_each(|(sum, done)| *sum += done);
        }
    }
    println!("{sums:?} healed, done again, repaired");
    sums
}

#[test]
fn a_dead_compute_server_loses_only_what_it_had_not_written_back() {
    let [healed, replayed, _] = deaths(Durability::Volatile);
    assert!(healed > 0, "some deaths leave separators to be healed");
    assert_eq!(replayed, 0);
}

/// With WRITEs that are cut short.
#[test]
fn a_dead_compute_server_that_logs_loses_nothing() {
    let [healed, replayed, repaired] = deaths(Durability::Logged);
    assert!(healed > 0 && replayed > 0, "{healed} {replayed} {repaired}");
}

/// Remote memory is a valid tree at every moment, however much of it is out of date (INV-DEX-CHAIN).
async fn valid_without_a_flush(session: Session, format: TableFormat, frames: u64, seed: u64) {
    let made = create(&session, &format).await;
    let options = DexOptions { admission: Admission::Chance(0.5), ..DexOptions::default() };
    let index = open(&session, made, frames, options).await;
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut unfinished = 0;
    for step in 0..1_500 {
        session.tick().await.expect("tick");
        let key =
            key(&format, &mut rng, if format.shape().get("cap_leaf").is_some() { 40 } else { 200 });
        if rng.u8(..10) < if step / 250 % 2 == 0 { 8 } else { 3 } {
            let value = value(&format, &mut rng);
            index.upsert(&session, &key, &value).await.expect("upsert");
        } else {
            index.remove(&session, &key).await.expect("remove");
        }
        if step % 5 == 0 {
            let mut audit = farleaf_pool::Audit::new(&session).await.expect("audit");
            let remote = BTree::open(made.0, made.1, Default::default());
            let report = remote.verify(&session, &mut audit).await.expect("verify");
            assert_eq!(report.problems, Vec::<String>::new(), "step {step}");
            unfinished += report.unfinished_splits;
        }
    }
    let stats = index.tree().stats();
    println!("{unfinished} unfinished, {stats:?}");
    assert!(unfinished > 0 && stats.splits > 0, "{unfinished} {stats:?}");
}

#[test]
fn remote_memory_is_a_tree_at_every_moment() {
    for (number, (name, format)) in formats().into_iter().enumerate() {
        println!("{name}");
        let (seed, frames) = (number as u64, 40 + 200 * (number as u64 % 2));
        World::default().on_mapped(|session| valid_without_a_flush(session, format, frames, seed));
    }
}

/// Dies `at_ns` after it has begun to remove keys in order, which merges leaves and then inner nodes;
/// gives how many merges the next one finished and undid.
fn death_in_a_merge(at_ns: u64, seed: u64, durability: Durability) -> (u64, u64) {
    const KEYS: u64 = 48;
    let mut config =
        SimConfig { compute_servers: 2, ..World { seed, ..World::default() }.sim_config() };
    let logged = durability == Durability::Logged;
    config.adversary.torn = if logged { 0.7 } else { 0.0 };
    let sim = Sim::new(config).expect("sim");
    let options = World::default().pool_options();
    let endpoints = [0, 1].map(|compute| sim.fabric(compute).any_endpoint().expect("endpoint"));
    let [first, victim] = endpoints;
    let format = formats()[0].1;
    let (session, made) = sim
        .block_on(async {
            let session = start(first, &options).await;
            let made = create(&session, &format).await;
            (session, made)
        })
        .expect("made");
    let removed = Rc::new(std::cell::Cell::new(None));
    {
        let removed = Rc::clone(&removed);
        sim.spawn(1, async move {
            let session = farleaf_harness::join(victim).await.expect("join");
            let index =
                open(&session, made, 200, DexOptions { durability, ..DexOptions::default() }).await;
            for key in 0..KEYS {
                let key = key.to_be_bytes();
                index.upsert(&session, &key, &key).await.expect("upsert");
            }
            index.flush(&session).await.expect("flush");
            for key in 0..KEYS {
                removed.set(Some(key));
                index.remove(&session, &key.to_be_bytes()).await.expect("remove");
            }
            removed.set(Some(KEYS));
        });
    }
    while removed.get().is_none() {
        sim.run_until(sim.now_ns() + 100).expect("runs");
    }
    sim.run_until(sim.now_ns() + at_ns).expect("runs");
    sim.fabric(1).kill();
    let removed = removed.get().expect("it has begun");
    sim.block_on(async {
        let index = open(&session, made, 64, DexOptions::default()).await;
        let mut keys: Vec<u64> = (0..KEYS).collect();
        match seed % 3 {
            0 => {}
            1 => keys.reverse(),
            _ => fastrand::Rng::with_seed(seed).shuffle(&mut keys),
        }
        let mut present = 0;
        for key in keys {
            let mut value = Vec::new();
            let has = index.get(&session, &key.to_be_bytes(), &mut value).await.expect("get");
            assert!(has || key <= removed, "key {key} was not removed");
            assert!(!has || key >= removed || !logged, "key {key} has been removed");
            assert!(!has || value == key.to_be_bytes());
            present += u64::from(has);
        }
        let mut audit = farleaf_pool::Audit::new(&session).await.expect("audit");
        let report = index.verify(&session, &mut audit).await.expect("verify");
        assert_eq!((report.problems, report.keys), (Vec::new(), present));
        let stats = index.tree().stats();
        (stats.merges_finished, stats.merges_undone)
    })
    .expect("checked")
}

fn deaths_in_merges(durability: Durability) {
    let (mut finished, mut undone) = (0, 0);
    for step in 0..240 * soak() {
        let at_ns = step % 240 * 500 + step / 240 * 7;
        let (one, other) = death_in_a_merge(at_ns, step, durability);
        finished += one;
        undone += other;
    }
    println!("{finished} finished, {undone} undone");
    assert!(finished > 0 && undone > 0, "{finished} finished, {undone} undone");
}

#[test]
fn every_moment_of_a_merge_can_be_the_last() {
    deaths_in_merges(Durability::Volatile);
}

/// With WRITEs that are cut short.
#[test]
fn every_moment_of_a_merge_can_be_the_last_and_nothing_is_lost() {
    deaths_in_merges(Durability::Logged);
}
