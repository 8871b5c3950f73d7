//! Guest tests: compute servers of `dex` use keys that nobody owns, beside each other, beside owners that come and
//! go, and beside the dead.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use farleaf_engines::dex::DexTable;
use farleaf_engines::{AnyIndex, Engine, TableFormat};
use farleaf_fabric::sim::{Sim, SimFabric};
use farleaf_fabric::{AnyEndpoint, Endpoint, Fabric, ListenConfig, ToAny};
use farleaf_index::compute::{Host, OwnedTable, number_of};
use farleaf_index::knobs::CACHE;
use farleaf_index::{Entries, Index, OpenOptions, ScanRange, Settings};
use farleaf_pool::Session;

use super::storm::config;
use super::tables;
use crate::common::{World, formats_of, join, key, lab_table, settle, start, value};

const KEYS: u64 = 300;

fn key_of(number: u64) -> [u8; 8] {
    (number << 40).to_be_bytes()
}

fn tiny() -> TableFormat {
    lab_table(Engine::Dex, "u64-tiny")
}

/// Opens the table `t`; for so many operations as a guest.
async fn open(session: &Session, guest_operations: u64) -> DexTable {
    let root = session.open_root("t").await.expect("root");
    let settings = Settings::default().with(CACHE, "64KiB").with("log_bytes", "8KiB");
    let options = OpenOptions { settings, guest_operations, calls: true, ..OpenOptions::default() };
    match AnyIndex::open(session, &root, &options).await.expect("open") {
        AnyIndex::Dex(dex) => dex,
        other => panic!("{}", other.engine()),
    }
}

async fn owners(session: &Session, dex: &DexTable) -> Vec<u64> {
    dex.refresh_map(session).await.expect("map");
    dex.known_map().2.into_iter().map(|owner| owner.0).collect()
}

/// One client's work on keys of its own, each answer checked.
struct Client {
    rng: fastrand::Rng,
    number: u64,
    clients: u64,
    model: BTreeMap<[u8; 8], Vec<u8>>,
}

impl Client {
    fn new(seed: u64, number: u64, clients: u64) -> Self {
        let rng = fastrand::Rng::with_seed(seed ^ (number << 32));
        Client { rng, number, clients, model: BTreeMap::new() }
    }

    async fn step(&mut self, session: &Session, dex: &DexTable) {
        let number = self.rng.u64(..KEYS / self.clients) * self.clients + self.number;
        let key = key_of(number);
        match self.rng.u8(..8) {
            0 | 1 => {
                let mut value = Vec::new();
                let has = dex.get(session, &key, &mut value).await.expect("get");
                assert_eq!(has.then_some(value), self.model.get(&key).cloned());
            }
            2 => {
                let had = dex.remove(session, &key).await.expect("remove");
                assert_eq!(had, self.model.remove(&key).is_some());
            }
            3 => {
                // Own keys of a range, in one direction or the other.
                let reverse = self.rng.bool();
                let high = key_of(number + self.rng.u64(..KEYS));
                let (from, to) = (&key[..], &high[..]);
                let range = ScanRange {
                    from: std::ops::Bound::Excluded(from),
                    to: std::ops::Bound::Included(to),
                    reverse,
                };
                let mut out = Entries::new();
                dex.scan(session, range, usize::MAX, &mut out).await.expect("scan");
                let is_own = |key: &[u8]| {
                    let number = u64::from_be_bytes(key.try_into().expect("8 bytes")) >> 40;
                    number % self.clients == self.number
                };
                let mut found: Vec<_> =
                    out.iter().filter(|(key, _)| is_own(key)).map(|it| it.0.to_vec()).collect();
                if reverse {
                    found.reverse();
                }
                let all = self.model.keys().filter(|it| **it > key && **it <= high);
                let all: Vec<_> = all.map(|key| key.to_vec()).collect();
                assert_eq!(found, all);
            }
            _ => {
                let value = self.rng.u64(..).to_le_bytes().to_vec();
                let new = dex.upsert(session, &key, &value).await.expect("upsert");
                assert_eq!(new, self.model.insert(key, value).is_none());
            }
        }
        session.tick().await.expect("tick");
    }
}

/// Starts a client on each compute server from `first` on; gives how many run.
fn clients(sim: &Sim, seed: u64, first: usize, count: usize, steps: u64) -> Rc<Cell<usize>> {
    let running = Rc::new(Cell::new(count));
    for number in 0..count {
        let compute = first + number;
        let endpoint = sim.fabric(compute).any_endpoint().expect("endpoint");
        let running = Rc::clone(&running);
        sim.spawn(compute, async move {
            let session = join(endpoint).await;
            let dex = open(&session, u64::MAX).await;
            let mut client = Client::new(seed, number as u64, count as u64);
            for _ in 0..steps {
                client.step(&session, &dex).await;
            }
            assert_eq!(dex.tree().stats().takeovers, 0);
            dex.close(&session).await.expect("close");
            drop(dex);
            settle(&session).await;
            session.leave().await.expect("leave");
            running.set(running.get() - 1);
        });
    }
    running
}

fn run_out(sim: &Sim, running: &Cell<usize>) {
    while running.get() > 0 {
        sim.run_until(sim.now_ns() + 50_000).expect("runs");
    }
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

#[test]
fn guests_share_a_table_and_own_nothing() {
    for seed in 0..4 {
        let sim = Sim::new(config(900 + seed, 4)).expect("sim");
        let session = made(&sim, tiny());
        let running = clients(&sim, seed, 1, 3, 300);
        run_out(&sim, &running);
        sim.block_on(async move {
            let dex = open(&session, 2).await;
            assert_eq!(owners(&session, &dex).await, [0]);
            // A guest that has done its operations takes the keys.
            for step in 0..4_u64 {
                dex.upsert(&session, &key_of(step), &[1; 8]).await.expect("upsert");
                let own = if step < 2 { 0 } else { session.endpoint().incarnation().0 };
                assert_eq!(owners(&session, &dex).await, [own]);
            }
            tables::check(&session, &dex).await;
        })
        .expect("ends");
    }
}

/// One life of an owner: it takes what is free, serves it for a while, gives it up and leaves.
async fn own_for_a_while(fabric: SimFabric, endpoint: AnyEndpoint, stay_ns: u64) {
    let session = join(endpoint.clone()).await;
    let own = number_of(session.pool().member());
    fabric.expose(own, 0, &ListenConfig::default()).expect("exposed");
    let dex = open(&session, 0).await;
    let host: Arc<Host<DexTable>> = Arc::default();
    host.add(dex.clone());
    let serving = session.pool().session(endpoint.clone()).await.expect("session");
    let (serve, over) = (Arc::clone(&host).serve(serving), Rc::new(Cell::new(false)));
    endpoint.spawn({
        let over = Rc::clone(&over);
        async move {
            serve.await.expect("serves");
            over.set(true);
        }
    });
    dex.take_all_free(&session).await.expect("takes");
    endpoint.sleep(stay_ns).await;
    let leaving = host.remove(dex.meta()).expect("it was there");
    while !leaving.is_done() {
        endpoint.sleep(1_000).await;
    }
    endpoint.leave().await;
    while !over.get() {
        endpoint.sleep(1_000).await;
    }
    dex.close(&session).await.expect("close");
    drop(dex);
    settle(&session).await;
    session.leave().await.expect("leave");
}

#[test]
fn guests_go_on_while_owners_come_and_go() {
    for seed in 0..6 {
        let sim = Sim::new(config(920 + seed, 5)).expect("sim");
        let session = made(&sim, tiny());
        let running = clients(&sim, seed, 1, 2, 400);
        let mut rng = fastrand::Rng::with_seed(seed);
        let owners = [3, 4].map(|compute| (compute, Rc::new(Cell::new(false))));
        let mut lives = 0;
        while running.get() > 0 || owners.iter().any(|(_, is_there)| is_there.get()) {
            for (compute, is_there) in &owners {
                if running.get() > 0 && !is_there.replace(true) {
                    lives += 1;
                    let fabric = sim.fabric(*compute).restart();
                    let endpoint = fabric.any_endpoint().expect("endpoint");
                    let (is_there, stay_ns) = (Rc::clone(is_there), rng.u64(..300_000));
                    sim.spawn(*compute, async move {
                        own_for_a_while(fabric, endpoint, stay_ns).await;
                        is_there.set(false);
                    });
                }
            }
            sim.run_until(sim.now_ns() + 1 + rng.u64(..50_000)).expect("runs");
        }
        assert!(lives > 4, "{lives} lives of owners");
        sim.block_on(async move {
            let dex = open(&session, 0).await;
            tables::check(&session, &dex).await;
        })
        .expect("ends");
    }
}

/// The values that each key may hold; `None` is its absence.
type Held = BTreeMap<Vec<u8>, BTreeSet<Option<Vec<u8>>>>;

/// Kills a guest in the middle of its work; an owner and another guest go on.
fn death(seed: u64, format: TableFormat, at_ns: u64) {
    let sim = Sim::new(config(seed, 3)).expect("sim");
    let session = made(&sim, format);
    let held: Rc<RefCell<Held>> = Rc::default();
    let begun = sim.now_ns();
    let victim = sim.fabric(1).any_endpoint().expect("endpoint");
    {
        let held = Rc::clone(&held);
        sim.spawn(1, async move {
            let session = join(victim).await;
            let dex = open(&session, u64::MAX).await;
            let mut rng = fastrand::Rng::with_seed(seed);
            loop {
                session.tick().await.expect("tick");
                let key = key(&format, &mut rng, 40);
                let new = (rng.u8(..10) < 8).then(|| value(&format, &mut rng));
                held.borrow_mut()
                    .entry(key.clone())
                    .or_insert_with(|| [None].into())
                    .insert(new.clone());
                match &new {
                    Some(value) => drop(dex.upsert(&session, &key, value).await.expect("upsert")),
                    None => drop(dex.remove(&session, &key).await.expect("remove")),
                }
                held.borrow_mut().insert(key, [new].into());
            }
        });
    }
    sim.run_until(begun + at_ns).expect("runs");
    sim.fabric(1).kill();
    let held = held.borrow().clone();
    let is_owner = !seed.is_multiple_of(3);
    sim.block_on(async {
        let dex = open(&session, if is_owner { 0 } else { u64::MAX }).await;
        let mut keys: Vec<_> = held.keys().collect();
        let mut rng = fastrand::Rng::with_seed(seed);
        rng.shuffle(&mut keys);
        let mut now = BTreeMap::new();
        for key in keys {
            let mut found = Vec::new();
            let has = dex.get(&session, key, &mut found).await.expect("get");
            let found = has.then_some(found);
            assert!(held[key].contains(&found), "{key:?} holds {found:?}, which it never did");
            if let Some(found) = found {
                now.insert(key.clone(), found);
            }
            session.tick().await.expect("tick");
        }
        for key in held.keys() {
            if rng.bool() {
                continue;
            }
            let value = value(&format, &mut rng);
            dex.upsert(&session, key, &value).await.expect("upsert");
            now.insert(key.clone(), value);
            session.tick().await.expect("tick");
        }
        let mut out = Entries::new();
        dex.scan(&session, ScanRange::ALL, usize::MAX, &mut out).await.expect("scan");
        let all: BTreeMap<_, _> = out.iter().map(|(k, v)| (k.to_vec(), v.to_vec())).collect();
        assert_eq!(all, now);
        dex.close(&session).await.expect("close");
        farleaf_engines::recover(&session).await.expect("recovered");
        let dex = open(&session, 0).await;
        assert_eq!(tables::check(&session, &dex).await.keys, now.len() as u64);
    })
    .expect("ends");
}

#[test]
fn the_death_of_a_guest_leaves_whole_nodes() {
    let formats = formats_of(&[Engine::Dex]);
    for seed in 0..300 {
        let (_, format) = formats[seed as usize % formats.len()];
        death(1_000 + seed, format, 300_000 + seed * 7_919 % 2_000_000);
    }
}
