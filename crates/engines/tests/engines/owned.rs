//! Ownership tests: every engine with owned ranges, with several compute servers, guests, moves and deaths.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::pin::Pin;
use std::rc::Rc;

use farleaf_engines::{AnyIndex, Engine, TableFormat};
use farleaf_fabric::sim::{Sim, SimConfig};
use farleaf_fabric::{Endpoint, Incarnation, OpKind, ToAny};
use farleaf_index::ValueFormat;
use farleaf_index::compute::{MoveError, RangeCalls};
use farleaf_index::{CounterSet, Entries, Index, IndexError, OpenOptions, ScanRange, Settings};
use farleaf_pool::Session;

use crate::common::clients::soak;
use crate::common::server::{Server, owned, serve};
use crate::common::{
    Pairs, World, check, cost_since, costs, engine_formats, formats_of, join, key, settle, start,
    value,
};

const KEYS: u64 = 240;

/// An operation whose cost is measured.
type BoxedOp = Pin<Box<dyn Future<Output = Result<bool, IndexError>>>>;

fn key_of(number: u64) -> [u8; 8] {
    (number << 40).to_be_bytes()
}

/// Engines with owners, with small nodes.
fn owned_formats() -> Vec<TableFormat> {
    let owned = engine_formats().into_iter().filter(|(_, format)| format.engine.traits().owned);
    owned.filter(|(name, _)| *name == "u64 tiny").map(|(_, format)| format).collect()
}

fn config(seed: u64, computes: usize) -> SimConfig {
    let world = World { seed, ..World::default() };
    let mut config = SimConfig { compute_servers: computes, ..world.sim_config() };
    config.adversary.torn = 0.5;
    config.adversary.split_rmw = 0.5;
    config.network.jitter_ns = 1_000;
    config
}

/// Settings with a cache that holds a part of the table, and removed keys that leave it at once.
fn options(engine: Engine, seed: u64, guest_operations: u64) -> OpenOptions {
    let cache = ["64KiB", "32KiB", "1MiB"][seed as usize % 3];
    let settings = Settings::default().with("cache", cache).with("unlink_batch", "2");
    let settings = engine.known(&settings);
    OpenOptions { settings, guest_operations, calls: true, ..OpenOptions::default() }
}

async fn open(session: &Session, seed: u64, guest_operations: u64) -> AnyIndex {
    let root = session.open_root("t").await.expect("root");
    let engine = root.engine.parse().expect("engine");
    let options = options(engine, seed, guest_operations);
    AnyIndex::open(session, &root, &options).await.expect("open")
}

async fn owners(session: &Session, index: &AnyIndex) -> Vec<u64> {
    owned(index).refresh_map(session).await.expect("map");
    owned(index).known_map().2.into_iter().map(|owner| owner.0).collect()
}

fn made(sim: &Sim, format: TableFormat) -> Session {
    let endpoint = sim.fabric(0).any_endpoint().expect("endpoint");
    let made = async move {
        let session = start(endpoint, &World::default().pool_options()).await;
        AnyIndex::create(&session, "t", &format).await.expect("create");
        session
    };
    sim.block_on(made).expect("made")
}

/// One client's work on keys of its own, each answer checked.
struct Client {
    rng: fastrand::Rng,
    number: u64,
    clients: u64,
    /// The values that each key may hold; more than one after a change whose outcome is not known.
    model: BTreeMap<[u8; 8], BTreeSet<Option<Vec<u8>>>>,
    /// True if owners die.
    is_doubtful: bool,
}

impl Client {
    fn new(seed: u64, number: u64, clients: u64) -> Self {
        let rng = fastrand::Rng::with_seed(seed ^ (number << 32));
        Client { rng, number, clients, model: BTreeMap::new(), is_doubtful: false }
    }

    /// A change that ends with `new` in the key, or is not done.
    fn note(&mut self, key: [u8; 8], new: Option<Vec<u8>>, done: Result<(), IndexError>) {
        let held = self.model.entry(key).or_insert_with(|| [None].into());
        match done {
            Ok(()) => *held = [new].into(),
            Err(IndexError::Unavailable(_)) if self.is_doubtful => {}
            Err(IndexError::OutcomeUnknown(_)) if self.is_doubtful => {
                held.insert(new);
            }
            Err(error) => panic!("{error}"),
        }
    }

    async fn step(&mut self, session: &Session, index: &AnyIndex) {
        let number = self.rng.u64(..KEYS / self.clients) * self.clients + self.number;
        let key = key_of(number);
        let held = self.model.get(&key).cloned().unwrap_or_else(|| [None].into());
        match self.rng.u8(..8) {
            0 | 1 => {
                let mut found = Vec::new();
                match index.get(session, &key, &mut found).await {
                    Ok(has) => {
                        let found = has.then_some(found);
                        assert!(held.contains(&found), "{key:?} holds {found:?}, not {held:?}");
                        self.model.insert(key, [found].into());
                    }
                    Err(IndexError::Unavailable(_)) if self.is_doubtful => {}
                    Err(error) => panic!("{error}"),
                }
            }
            2 | 3 => {
                let done = index.remove(session, &key).await;
                if let Ok(had) = &done {
                    assert!(held.iter().any(|held| held.is_some() == *had));
                }
                self.note(key, None, done.map(drop));
            }
            4 => {
                let reverse = self.rng.bool();
                let high = key_of(number + self.rng.u64(..KEYS));
                let range =
                    ScanRange { from: Bound::Excluded(&key), to: Bound::Included(&high), reverse };
                let mut out = Entries::new();
                match index.scan(session, range, usize::MAX, &mut out).await {
                    Ok(()) => self.check_scan(&key, &high, reverse, &out),
                    Err(IndexError::Unavailable(_)) if self.is_doubtful => {}
                    Err(error) => panic!("{error}"),
                }
            }
            _ => {
                let value = self.rng.u64(..).to_le_bytes().to_vec();
                let done = index.upsert(session, &key, &value).await;
                if let Ok(new) = &done {
                    assert!(held.iter().any(|held| held.is_none() == *new));
                }
                self.note(key, Some(value), done.map(drop));
            }
        }
        session.tick().await.expect("tick");
    }

    /// Own keys are those that are there for certain, and some that may be there.
    fn check_scan(&self, low: &[u8; 8], high: &[u8; 8], reverse: bool, out: &Entries) {
        let is_own = |key: &[u8]| {
            let number = u64::from_be_bytes(key.try_into().expect("8 bytes")) >> 40;
            number % self.clients == self.number
        };
        let mut found: Vec<_> = out.iter().map(|(key, value)| (key.to_vec(), value)).collect();
        if reverse {
            found.reverse();
        }
        assert!(found.is_sorted_by(|a, b| a.0 < b.0), "in order, none twice");
        let found: BTreeMap<_, _> = found.into_iter().filter(|(key, _)| is_own(key)).collect();
        for (key, held) in self.model.iter().filter(|(key, _)| *key > low && *key <= high) {
            let value = found.get(&key[..]).map(|value| value.to_vec());
            assert!(held.contains(&value), "{key:?} holds {value:?}, not {held:?}");
        }
        let known = |key: &Vec<u8>| self.model.contains_key(&key[..]);
        assert!(found.keys().all(known), "a key that was never there");
    }
}

/// Ends on the last server: the table is whole and holds what the clients say.
async fn finish(server: &Server, models: &[Client]) {
    let keys = agree(server, models).await;
    let report = check(&server.session, &[&server.index]).await;
    assert_eq!(report.keys, keys);
}

/// The table holds what the clients say, as a scan through the server tells; the number of its keys.
async fn agree(server: &Server, models: &[Client]) -> u64 {
    settle(&server.session).await;
    let mut out = Entries::new();
    server.index.scan(&server.session, ScanRange::ALL, usize::MAX, &mut out).await.expect("scan");
    let all: BTreeMap<_, _> = out.iter().map(|(key, value)| (key, value.to_vec())).collect();
    for client in models {
        for (key, held) in &client.model {
            let found = all.get(&key[..]).cloned();
            assert!(held.contains(&found), "{key:?} holds {found:?}, not {held:?}");
        }
    }
    all.len() as u64
}

/// Clients of three compute servers on the same ranges, which move from one to the other meanwhile.
fn moves(seed: u64, format: TableFormat) {
    const COMPUTES: usize = 3;
    let sim = Sim::new(config(seed, COMPUTES)).expect("sim");
    let first = made(&sim, format);
    let cut: Vec<_> = (1..COMPUTES as u64).map(|at| key_of(at * KEYS / 3).to_vec()).collect();
    let fabrics: Vec<_> = (0..COMPUTES).map(|compute| sim.fabric(compute)).collect();
    let servers = sim
        .block_on(async {
            let mut servers: Vec<Server> = Vec::new();
            for (number, fabric) in fabrics.into_iter().enumerate() {
                let session = match number {
                    0 => first.clone(),
                    _ => join(fabric.any_endpoint().expect("endpoint")).await,
                };
                let index = open(&session, seed + number as u64, 0).await;
                if number == 0 {
                    owned(&index).partition(&session, &cut).await.expect("partition");
                }
                let root = session.open_root("t").await.expect("root");
                let options = OpenOptions { take: 1, ..options(format.engine, seed, 0) };
                let index = AnyIndex::open(&session, &root, &options).await.expect("open");
                servers.push(serve(fabric, session, index).await);
            }
            servers
        })
        .expect("made");
    drop(first);
    let (running, models) = (Rc::new(Cell::new(0)), Rc::new(RefCell::new(Vec::new())));
    for (number, server) in servers.iter().enumerate() {
        let (pool, index) = (server.session.pool().clone(), server.index.clone());
        let endpoint = server.session.endpoint().clone();
        for half in 0..2 {
            running.set(running.get() + 1);
            let (running, models) = (Rc::clone(&running), Rc::clone(&models));
            let (pool, index, endpoint) = (pool.clone(), index.clone(), endpoint.clone());
            sim.spawn(number, async move {
                let session = pool.session(endpoint).await.expect("session");
                let mut client = Client::new(seed, (2 * number + half) as u64, 6);
                for _ in 0..150 {
                    client.step(&session, &index).await;
                }
                models.borrow_mut().push(client);
                running.set(running.get() - 1);
            });
        }
    }
    let incarnations: Vec<Incarnation> =
        servers.iter().map(|it| it.session.endpoint().incarnation()).collect();
    let moved = sim
        .block_on(async {
            let mut rng = fastrand::Rng::with_seed(seed);
            let (index, session) = (&servers[0].index, &servers[0].session);
            let mut moved = 0;
            while running.get() > 0 {
                let bound =
                    |number: u64| (!number.is_multiple_of(KEYS)).then(|| key_of(number).to_vec());
                let number = rng.u64(..KEYS);
                let (low, high) = (bound(number), bound(number + 1 + rng.u64(..20)));
                let to = incarnations[rng.usize(..COMPUTES)];
                let done =
                    owned(index).move_range(session, low.as_deref(), high.as_deref(), to).await;
                match done {
                    Ok(_) => moved += 1,
                    Err(MoveError::OutOfOrder | MoveError::NotOwned | MoveError::Busy) => {}
                    Err(error) => panic!("{error}"),
                }
                let load = owned(index).loads(session, true).await.expect("loads");
                assert!(!load.is_empty());
                session.endpoint().sleep(rng.u64(..20_000)).await;
                session.tick().await.expect("tick");
            }
            moved
        })
        .expect("runs");
    assert!(moved > 3, "{moved} moves");
    sim.block_on(async move {
        let mut servers = servers;
        let models = models.take();
        assert_eq!(models.len(), 6);
        while servers.len() > 1 {
            servers.remove(0).leave().await;
        }
        finish(&servers[0], &models).await;
    })
    .expect("ends");
}

#[test]
fn ranges_move_while_clients_use_them() {
    for (number, format) in owned_formats().into_iter().enumerate() {
        for seed in 0..8 {
            moves(3_000 + 100 * number as u64 + seed, format);
        }
    }
}

/// Owners die while clients of others use their keys. The number of ranges that they got.
fn deaths(seed: u64, format: TableFormat) -> u32 {
    let sim = Sim::new(config(seed, 4)).expect("sim");
    let first = made(&sim, format);
    let fabric = sim.fabric(0);
    let server = sim
        .block_on(async {
            let index = open(&first, seed, 0).await;
            serve(fabric, first.clone(), index).await
        })
        .expect("made");
    drop(first);
    let (running, models) = (Rc::new(Cell::new(2)), Rc::new(RefCell::new(Vec::new())));
    for number in 0..2 {
        let (running, models) = (Rc::clone(&running), Rc::clone(&models));
        let (pool, index) = (server.session.pool().clone(), server.index.clone());
        let endpoint = server.session.endpoint().clone();
        sim.spawn(0, async move {
            let session = pool.session(endpoint).await.expect("session");
            let mut client = Client::new(seed, number, 2);
            client.is_doubtful = true;
            for _ in 0..250 {
                client.step(&session, &index).await;
            }
            models.borrow_mut().push(client);
            running.set(running.get() - 1);
        });
    }
    let mut rng = fastrand::Rng::with_seed(seed);
    let (moved, recovers) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
    while running.get() > 0 {
        for compute in 1..3 {
            let fabric = sim.fabric(compute).restart();
            let endpoint = fabric.any_endpoint().expect("endpoint");
            let to = fabric.incarnation();
            let (giver, session) = (server.index.clone(), server.session.clone());
            let (moved, serves) = (Rc::clone(&moved), Rc::new(Cell::new(false)));
            let is_serving = Rc::clone(&serves);
            sim.spawn(compute, async move {
                let own = join(endpoint).await;
                let index = open(&own, seed, 0).await;
                let server = serve(fabric, own, index).await;
                serves.set(true);
                // Until it is killed.
                std::future::pending::<()>().await;
                drop(server);
            });
            let low = rng.u64(1..KEYS - 40);
            let (low, high) = (key_of(low).to_vec(), key_of(low + 40).to_vec());
            sim.spawn(0, async move {
                // Until the taker serves, or is dead.
                for _ in 0..500 {
                    if is_serving.get() {
                        break;
                    }
                    session.endpoint().sleep(1_000).await;
                }
                // A move may fail: the compute server that gets the range dies soon.
                let done = owned(&giver).move_range(&session, Some(&low), Some(&high), to).await;
                moved.set(moved.get() + u32::from(done.is_ok()));
            });
        }
        sim.run_until(sim.now_ns() + 100_000 + rng.u64(..200_000)).expect("runs");
        for compute in 1..3 {
            sim.fabric(compute).kill();
        }
        sim.run_until(sim.now_ns() + rng.u64(..200_000)).expect("runs");
        // Beside the clients: the dead give back what they took of the pool.
        recovers.set(true);
        let (recovering, session) = (Rc::clone(&recovers), server.session.clone());
        sim.spawn(0, async move {
            let own = session.pool().session(session.endpoint().clone()).await.expect("session");
            farleaf_engines::recover(&own).await.expect("recovered");
            recovering.set(false);
        });
        while recovers.get() {
            sim.run_until(sim.now_ns() + 20_000).expect("runs");
        }
    }
    let last = sim.fabric(3).any_endpoint().expect("endpoint");
    sim.block_on(async move {
        farleaf_engines::recover(&server.session).await.expect("recovered");
        agree(&server, &models.take()).await;
        server.leave().await;
        let session = join(last).await;
        settle(&session).await;
        // The sweep frees objects that the dead had unlinked in others' blocks and not announced.
        farleaf_engines::sweep(&session).await.expect("sweeps");
        let index = open(&session, seed, u64::MAX).await;
        check(&session, &[&index]).await;
    })
    .expect("ends");
    moved.get()
}

#[test]
fn keys_of_dead_owners_go_on() {
    for (number, format) in owned_formats().into_iter().enumerate() {
        let seeds = (0..6 * soak()).map(|seed| 4_000 + 100 * number as u64 + seed);
        let moved: u32 = seeds.map(|seed| deaths(seed, format)).sum();
        assert!(moved > 0, "nobody got a range");
    }
}

#[test]
fn guests_share_a_table_and_own_nothing() {
    for format in owned_formats().into_iter().filter(|format| format.engine.has_guests()) {
        for seed in 0..3 {
            let sim = Sim::new(config(900 + seed, 4)).expect("sim");
            let session = made(&sim, format);
            let running = Rc::new(Cell::new(3));
            for number in 0..3_u64 {
                let endpoint = sim.fabric(number as usize + 1).any_endpoint().expect("endpoint");
                let running = Rc::clone(&running);
                sim.spawn(number as usize + 1, async move {
                    let session = join(endpoint).await;
                    let index = open(&session, seed, u64::MAX).await;
                    let mut client = Client::new(seed, number, 3);
                    for _ in 0..200 {
                        client.step(&session, &index).await;
                    }
                    index.close(&session).await.expect("close");
                    drop(index);
                    settle(&session).await;
                    session.leave().await.expect("leave");
                    running.set(running.get() - 1);
                });
            }
            while running.get() > 0 {
                sim.run_until(sim.now_ns() + 50_000).expect("runs");
            }
            sim.block_on(async move {
                let index = open(&session, seed, 2).await;
                assert_eq!(owners(&session, &index).await, [0]);
                // A guest that has done its operations takes the keys.
                for step in 0..4_u64 {
                    index.upsert(&session, &key_of(step), &[1; 8]).await.expect("upsert");
                    let own = if step < 2 { 0 } else { session.endpoint().incarnation().0 };
                    assert_eq!(owners(&session, &index).await, [own]);
                }
                check(&session, &[&index]).await;
            })
            .expect("ends");
        }
    }
}

/// A pool without room for a log: a process of many operations stays a guest, reads all, and removes it.
#[test]
fn a_full_pool_is_read_and_emptied_by_guests() {
    for format in owned_formats() {
        World::default().on_mapped(async |session| {
            AnyIndex::create(&session, "t", &format).await.expect("create");
            let index = open(&session, 0, u64::MAX).await;
            for number in 0..KEYS {
                index.insert(&session, &key_of(number), &[1; 8]).await.expect("insert");
            }
            index.close(&session).await.expect("close");
            drop(index);
            while session.alloc(session.place(), 64 << 10).await.is_ok() {}
            let index = open(&session, 0, 2).await;
            let mut value = Vec::new();
            for number in 0..KEYS {
                let key = key_of(number);
                assert_eq!(index.get(&session, &key, &mut value).await, Ok(true), "{number}");
                assert_eq!(index.remove(&session, &key).await, Ok(true), "{number}");
                assert_eq!(index.get(&session, &key, &mut value).await, Ok(false), "{number}");
            }
            if format.engine == Engine::Dex {
                assert_eq!(owners(&session, &index).await, [0]);
            }
            index.close(&session).await.expect("close");
        });
    }
}

/// A guest dies somewhere in its work; an owner or another guest goes on.
#[test]
fn the_death_of_a_guest_leaves_the_table_whole() {
    let engines: BTreeSet<_> = owned_formats().into_iter().map(|it| it.engine).collect();
    for engine in engines {
        let formats = formats_of(&[engine]);
        for seed in 0..40 {
            let (_, format) = formats[seed as usize % formats.len()];
            guest_death(1_000 + seed, format, 300_000 + seed * 7_919 % 2_000_000);
        }
    }
}

fn guest_death(seed: u64, format: TableFormat, at_ns: u64) {
    let sim = Sim::new(config(seed, 3)).expect("sim");
    let session = made(&sim, format);
    type Held = BTreeMap<Vec<u8>, BTreeSet<Option<Vec<u8>>>>;
    let held: Rc<RefCell<Held>> = Rc::default();
    let victim = sim.fabric(1).any_endpoint().expect("endpoint");
    let begun = sim.now_ns();
    let noted = Rc::clone(&held);
    sim.spawn(1, async move {
        let session = join(victim).await;
        let index = open(&session, seed, u64::MAX).await;
        let mut rng = fastrand::Rng::with_seed(seed);
        loop {
            session.tick().await.expect("tick");
            let key = key(&format, &mut rng, 40);
            let new = (rng.u8(..10) < 8).then(|| value(&format, &mut rng));
            let before = || BTreeSet::from([None]);
            noted.borrow_mut().entry(key.clone()).or_insert_with(before).insert(new.clone());
            match &new {
                Some(value) => drop(index.upsert(&session, &key, value).await.expect("upsert")),
                None => drop(index.remove(&session, &key).await.expect("remove")),
            }
            noted.borrow_mut().insert(key, [new].into());
        }
    });
    sim.run_until(begun + at_ns).expect("runs");
    sim.fabric(1).kill();
    let held = held.borrow().clone();
    sim.block_on(async move {
        let guest_operations = if seed.is_multiple_of(3) { u64::MAX } else { 0 };
        let index = open(&session, seed, guest_operations).await;
        let (mut now, mut rng) = (BTreeMap::new(), fastrand::Rng::with_seed(seed));
        for (key, held) in &held {
            let mut found = Vec::new();
            let has = index.get(&session, key, &mut found).await.expect("get");
            let found = has.then_some(found);
            assert!(held.contains(&found), "{key:?} holds {found:?}, which it never did");
            if rng.bool() {
                let new = value(&format, &mut rng);
                index.upsert(&session, key, &new).await.expect("upsert");
                now.insert(key.clone(), new);
            } else if let Some(found) = found {
                now.insert(key.clone(), found);
            }
            session.tick().await.expect("tick");
        }
        let mut out = Entries::new();
        index.scan(&session, ScanRange::ALL, usize::MAX, &mut out).await.expect("scan");
        let all: BTreeMap<_, _> = out.iter().map(|(k, v)| (k.to_vec(), v.to_vec())).collect();
        assert_eq!(all, now);
        index.close(&session).await.expect("close");
        farleaf_engines::recover(&session).await.expect("recovered");
        let index = open(&session, seed, 0).await;
        assert_eq!(check(&session, &[&index]).await.keys, now.len() as u64);
    })
    .expect("ends");
}

/// The share of the keys, sorted, up to `bound`.
fn share(keys: &[Vec<u8>], bound: &[u8]) -> f64 {
    keys.partition_point(|key| key.as_slice() <= bound) as f64 / keys.len() as f64
}

/// A compute server that joins gets about half of the keys, although nothing was counted.
#[test]
fn a_server_that_joins_gets_half() {
    // Dex halves what it has cached.
    for format in owned_formats().into_iter().filter(|it| it.engine == Engine::PSmart) {
        for is_dense in [true, false] {
            let sim = Sim::new(config(77, 2)).expect("sim");
            let first = made(&sim, format);
            let fabrics = [0, 1].map(|compute| sim.fabric(compute));
            sim.block_on(async move {
                let step = if is_dense { 1 } else { 0x0123_4567_89ab_cdef };
                let mut keys: Vec<_> = (0..200_u64)
                    .map(|number| number.wrapping_mul(step).to_be_bytes().to_vec())
                    .collect();
                keys.sort();
                let index = open(&first, 2, 0).await;
                let pairs: Vec<_> = keys.iter().map(|key| (key.clone(), vec![7; 8])).collect();
                index.bulk_load(&first, &mut Pairs(pairs.iter())).await.expect("load");
                index.close(&first).await.expect("close");
                let [own, other] = fabrics;
                let to = other.incarnation();
                let joined = join(other.any_endpoint().expect("endpoint")).await;
                let index = open(&first, 2, 0).await;
                owned(&index).take_all_free(&first).await.expect("takes");
                let server = serve(own, first, index).await;
                let index = open(&joined, 2, 0).await;
                let joined = serve(other, joined, index).await;
                let mut out = Entries::new();
                let (index, session) = (&server.index, &server.session);
                index.scan(session, ScanRange::ALL, usize::MAX, &mut out).await.expect("scan");
                assert_eq!(out.len(), keys.len());
                owned(index).scale_out(session, to).await.expect("scales out");
                let (_, bounds, owners) = owned(index).known_map();
                assert_eq!((bounds.len(), owners.len()), (1, 2));
                let share = share(&keys, &bounds[0]);
                assert!((0.25..=0.75).contains(&share), "{share} of the keys");
                joined.leave().await;
                server.leave().await;
            })
            .expect("ends");
        }
    }
}

/// An owner that has seen that keys are absent gives them away, another one inserts them, and they come back.
#[test]
fn an_owner_forgets_what_it_knew_of_a_range_that_was_anothers() {
    for (format, seed) in owned_formats().into_iter().flat_map(|it| [(it, 20), (it, 21), (it, 22)])
    {
        let sim = Sim::new(config(seed, 2)).expect("sim");
        let first = made(&sim, format);
        let fabrics = [0, 1].map(|compute| sim.fabric(compute));
        sim.block_on(async move {
            let [here, there] = fabrics;
            let (own, other) = (here.incarnation(), there.incarnation());
            let joined = join(there.any_endpoint().expect("endpoint")).await;
            let index = open(&first, seed, 0).await;
            owned(&index).take_all_free(&first).await.expect("takes");
            let server = serve(here, first, index).await;
            let index = open(&joined, seed, 0).await;
            let joined = serve(there, joined, index).await;
            let (index, session) = (&server.index, &server.session);
            let mut value = Vec::new();
            for number in 0..60_u64 {
                index.upsert(session, &key_of(2 * number), &[1; 8]).await.expect("upsert");
            }
            let (low, high) = (key_of(20), key_of(80));
            for round in 0..3_u8 {
                let absent = || (1..120_u64).filter(|it| it % 8 == 2 * u64::from(round) + 1);
                for number in absent() {
                    let found = index.get(session, &key_of(number), &mut value).await;
                    assert_eq!(found, Ok(false), "{number}");
                }
                let moved = owned(index).move_range(session, Some(&low), Some(&high), other).await;
                moved.expect("moved");
                for number in absent() {
                    let key = key_of(number);
                    let is_new = joined.index.insert(&joined.session, &key, &[round; 8]).await;
                    assert_eq!(is_new, Ok(true), "{number}");
                }
                let back = owned(&joined.index);
                let moved = back.move_range(&joined.session, Some(&low), Some(&high), own).await;
                moved.expect("moved back");
                for number in absent() {
                    let is_new = index.insert(session, &key_of(number), &[9; 8]).await;
                    assert_eq!(is_new, Ok(false), "{number}");
                    let found = index.get(session, &key_of(number), &mut value).await;
                    assert_eq!((found, value.as_slice()), (Ok(true), &[round; 8][..]), "{number}");
                }
            }
            joined.leave().await;
            check(&server.session, &[&server.index]).await;
            server.leave().await;
        })
        .expect("ends");
    }
}

/// Own operations of P-SMART: an exact entry answers for an absent key, an insert writes its leaf and its slot, and an
/// update the leaf's lock and content. With the shared protocol they cost what those of SMART do.
#[test]
fn own_operations_of_p_smart_cost_what_they_must() {
    own_operations_cost("exclusive", (0, 0, 0, 0), (0, 2, 0, 1), (1, 2, 0, 2));
    own_operations_cost("shared", (1, 0, 0, 1), (1, 1, 1, 2), (1, 1, 1, 3));
}

type Cost = (u64, u64, u64, u64);

/// READs, WRITEs, CASes and round trips of a lookup that finds no slot for its key, of an insert there, and of an update.
fn own_operations_cost(owner_writes: &'static str, denies: Cost, inserts: Cost, updates: Cost) {
    World::default().on_mapped(move |session| async move {
        let root = AnyIndex::create(&session, "t", &TableFormat::fixed8(Engine::PSmart)).await;
        let mut options = options(Engine::PSmart, 2, 0);
        options.settings = options.settings.with("owner_writes", owner_writes);
        let index = AnyIndex::open(&session, &root.expect("create"), &options).await.expect("open");
        for key in (0..100_u64).map(|key| (2 * key).to_be_bytes()) {
            assert_eq!(index.insert(&session, &key, &key).await, Ok(true));
        }
        let mut value = Vec::new();
        for key in (0..100_u64).map(|key| (2 * key).to_be_bytes()) {
            assert_eq!(index.get(&session, &key, &mut value).await, Ok(true));
        }
        let measure = async |kind: OpKind, work: &dyn Fn() -> BoxedOp| {
            let before = costs(&session);
            let done = work().await;
            let found = cost_since(&session, &before, kind);
            (done, (found.reads, found.writes, found.cas, found.round_trips))
        };
        let (key, absent) = (20_u64.to_be_bytes(), 21_u64.to_be_bytes());
        let get = |key: [u8; 8]| {
            let (index, session) = (index.clone(), session.clone());
            move || -> BoxedOp {
                let (index, session) = (index.clone(), session.clone());
                Box::pin(async move { index.get(&session, &key, &mut Vec::new()).await })
            }
        };
        let change = |work: fn(AnyIndex, Session, [u8; 8]) -> BoxedOp, key: [u8; 8]| {
            let (index, session) = (index.clone(), session.clone());
            move || work(index.clone(), session.clone(), key)
        };
        let update = |index: AnyIndex, session: Session, key: [u8; 8]| -> BoxedOp {
            Box::pin(async move { index.update(&session, &key, &[9; 8]).await })
        };
        let insert = |index: AnyIndex, session: Session, key: [u8; 8]| -> BoxedOp {
            Box::pin(async move { index.insert(&session, &key, &[8; 8]).await })
        };
        assert_eq!(measure(OpKind::Get, &get(key)).await, (Ok(true), (1, 0, 0, 1)));
        assert_eq!(measure(OpKind::Get, &get(absent)).await, (Ok(false), denies));
        let updated = change(update, key);
        assert_eq!(measure(OpKind::Update, &updated).await, (Ok(true), updates));
        let denied = change(update, absent);
        assert_eq!(measure(OpKind::Update, &denied).await, (Ok(false), denies));
        // The entry learns of the new leaf: what follows goes by it.
        for key in (0..8_u64).map(|key| (2 * key + 21).to_be_bytes()) {
            let inserted = change(insert, key);
            assert_eq!(measure(OpKind::Insert, &inserted).await, (Ok(true), inserts));
            assert_eq!(measure(OpKind::Get, &get(key)).await, (Ok(true), (1, 0, 0, 1)));
            let again = change(insert, key);
            assert_eq!(measure(OpKind::Insert, &again).await, (Ok(false), (1, 0, 0, 1)));
        }
        // A leaf of another key stands where the key would.
        let beside = (20_u64 << 8 | 1).to_be_bytes();
        assert_eq!(index.insert(&session, &beside, &key).await, Ok(true));
        let beside = (20_u64 << 8 | 1 << 16 | 1).to_be_bytes();
        assert_eq!(index.insert(&session, &beside, &key).await, Ok(true));
        assert_eq!(index.get(&session, &beside, &mut value).await, Ok(true));
        let other = (21_u64 << 8 | 1 << 16 | 1).to_be_bytes();
        assert_eq!(index.get(&session, &other, &mut value).await, Ok(false));
        check(&session, &[&index]).await;
    });
}

/// A table of P-SMART reports the cache and the counts of its tree, as a table of SMART does.
#[test]
fn p_smart_reports_its_cache_and_counts() {
    World::default().on_mapped(|session| async move {
        let format = TableFormat::fixed8(Engine::PSmart);
        AnyIndex::create(&session, "t", &format).await.expect("create");
        let index = open(&session, 2, 0).await;
        for key in (0..100_u64).map(u64::to_be_bytes) {
            assert_eq!(index.insert(&session, &key, &key).await, Ok(true));
        }
        let AnyIndex::PSmart(table) = &index else { panic!("{}", index.engine()) };
        let (bytes, nodes) = table.tree().inner().cached();
        assert!(nodes > 0, "inserts leave nodes in the cache");
        let cache = index.cache().expect("a table of a cached engine has a cache");
        assert_eq!(cache.resident_bytes(), bytes);
        let mut counters = CounterSet::default();
        index.counters(&mut counters);
        // Those of the tree, and those of its ownership.
        for (name, count) in table.tree().inner().counts() {
            assert_eq!(counters.get(name), count, "{name}: {counters:?}");
        }
        assert!(counters.get("map_reads") > 0, "{counters:?}");
        assert!(counters.get("splits") > 0, "{counters:?}");
    });
}

/// A table that was closed here does nothing more, and its keys are free.
#[test]
fn a_closed_table_refuses_operations() {
    for format in owned_formats() {
        World::default().on_mapped(|session| async move {
            AnyIndex::create(&session, "t", &format).await.expect("create");
            let index = open(&session, 2, 0).await;
            let (key, mut value) = (key_of(1), Vec::new());
            assert_eq!(index.insert(&session, &key, &[1; 8]).await, Ok(true));
            index.close(&session).await.expect("close");
            let is_closed = |told: Result<bool, IndexError>| {
                assert!(matches!(told, Err(IndexError::Closed(_))), "{told:?}");
            };
            is_closed(index.get(&session, &key, &mut value).await);
            is_closed(index.upsert(&session, &key, &[2; 8]).await);
            let mut out = Entries::new();
            let scan = index.scan(&session, ScanRange::ALL, 9, &mut out).await;
            is_closed(scan.map(|()| false));
            index.close(&session).await.expect("again");
            let index = open(&session, 2, 0).await;
            assert_eq!(index.get(&session, &key, &mut value).await, Ok(true));
            assert_eq!(value, [1; 8]);
            check(&session, &[&index]).await;
        });
    }
}

/// Gets that come while an owner's change of their key is under way get what it writes.
#[test]
fn gets_beside_an_owners_change_read_nothing() {
    const HOT: [u8; 8] = 20_u64.to_be_bytes();
    World::default().on_sim_with(World::default().sim_config(), |session| async move {
        let format = TableFormat::fixed8(Engine::PSmart).with_values(ValueFormat::Bytes);
        let root = AnyIndex::create(&session, "t", &format).await;
        let options = options(Engine::PSmart, 2, 0);
        let index = AnyIndex::open(&session, &root.expect("create"), &options).await.expect("open");
        assert_eq!(index.insert(&session, &HOT, b"value").await, Ok(true));
        assert_eq!(index.get(&session, &HOT, &mut Vec::new()).await, Ok(true));
        let (short, record): (&'static [u8], &'static [u8]) = (&[7; 5], &[8; 3_000]);
        // In the leaf, as a leaf that is removed, and in a record, which gets have to READ.
        for (new, shares) in [(Some(short), true), (None, true), (Some(record), false)] {
            if !shares {
                assert_eq!(index.upsert(&session, &HOT, &[9; 3_000]).await, Ok(true));
            }
            let (before, left) = (costs(&session), Rc::new(Cell::new(7)));
            for _ in 0..left.get() {
                let (session, index, left) = (session.clone(), index.clone(), left.clone());
                session.clone().endpoint().spawn(async move {
                    session.endpoint().sleep(200).await;
                    let mut held = Vec::new();
                    let is_there = index.get(&session, &HOT, &mut held).await;
                    assert_eq!(is_there.map(|it| it.then_some(held)), Ok(new.map(<[u8]>::to_vec)));
                    left.set(left.get() - 1);
                });
            }
            let done = match new {
                Some(new) => index.update(&session, &HOT, new).await,
                None => index.remove(&session, &HOT).await,
            };
            assert_eq!(done, Ok(true));
            while left.get() > 0 {
                session.endpoint().sleep(1_000).await;
            }
            let reads = cost_since(&session, &before, OpKind::Get).reads;
            assert_eq!(reads == 0, shares, "{reads} READs of gets");
        }
        index.close(&session).await.expect("close");
    });
}
