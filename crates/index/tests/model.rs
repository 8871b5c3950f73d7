//! Every engine on every fabric against `BTreeMap`, one session, all operations, tiny nodes.

mod common;

use std::collections::BTreeMap;
use std::ops::Bound;

use common::{Pairs, World, check, create, engine_formats, key, value};
use farleaf_fabric::Endpoint;
use farleaf_index::{AnyIndex, Entries, Exchange, Index, ScanRange, TableFormat};
use farleaf_pool::Session;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

struct Run<E: Endpoint> {
    session: Session<E>,
    index: AnyIndex,
    format: TableFormat,
    model: Model,
    rng: fastrand::Rng,
    space: u64,
}

impl<E: Endpoint> Run<E> {
    async fn new(session: Session<E>, format: TableFormat, seed: u64, space: u64) -> Self {
        let index = create(&session, "t", &format).await;
        let (model, rng) = (Model::new(), fastrand::Rng::with_seed(seed));
        Run { session, index, format, model, rng, space }
    }

    async fn steps(&mut self, steps: usize, grow: bool) {
        for step in 0..steps {
            if step % 64 == 0 {
                self.session.tick().await.expect("tick");
            }
            self.step(grow).await;
        }
    }

    async fn step(&mut self, grow: bool) {
        let key = key(&self.format, &mut self.rng, self.space);
        let value = value(&self.format, &mut self.rng);
        let (session, index) = (&self.session, &self.index);
        let present = self.model.contains_key(&key);
        match self.rng.u8(..if grow { 12 } else { 20 }) {
            0..4 => {
                let done = index.upsert(session, &key, &value).await.expect("upsert");
                assert_eq!(done, !present);
                self.model.insert(key, value);
            }
            4..6 => {
                let done = index.insert(session, &key, &value).await.expect("insert");
                assert_eq!(done, !present);
                self.model.entry(key).or_insert(value);
            }
            6 => {
                let done = index.update(session, &key, &value).await.expect("update");
                assert_eq!(done, present);
                self.model.entry(key).and_modify(|held| *held = value);
            }
            7 => self.exchange(key, value).await,
            8 | 9 => {
                let mut found = vec![1, 2, 3];
                let has = index.get(session, &key, &mut found).await.expect("get");
                assert_eq!(has.then_some(&found), self.model.get(&key));
            }
            10 => self.scan().await,
            _ => {
                let done = index.remove(session, &key).await.expect("remove");
                assert_eq!(done, self.model.remove(&key).is_some());
            }
        }
    }

    async fn exchange(&mut self, key: Vec<u8>, value: Vec<u8>) {
        let held = self.model.get(&key).cloned();
        let expected = match self.rng.u8(..4) {
            0 => None,
            1 => Some(value.clone()),
            _ => held.clone(),
        };
        let new = self.rng.bool().then_some(value);
        let mut found = Vec::new();
        let (exchange, had) = self
            .index
            .compare_exchange(&self.session, &key, expected.as_deref(), new.as_deref(), &mut found)
            .await
            .expect("compare_exchange");
        assert_eq!(had.then_some(found), held);
        assert_eq!(exchange == Exchange::Done, expected == held);
        if exchange == Exchange::Done {
            match new {
                Some(new) => self.model.insert(key, new),
                None => self.model.remove(&key),
            };
        }
    }

    async fn scan(&mut self) {
        let ends = [0, 1].map(|_| key(&self.format, &mut self.rng, self.space));
        let mut bound = |key| match self.rng.u8(..4) {
            0 => Bound::Unbounded,
            1 => Bound::Excluded(key),
            _ => Bound::Included(key),
        };
        let range =
            ScanRange { from: bound(&ends[0][..]), to: bound(&ends[1][..]), reverse: false };
        let range = ScanRange { reverse: self.rng.bool(), ..range };
        let limit = self.rng.usize(..30);
        let mut out = Entries::new();
        self.index.scan(&self.session, range, limit, &mut out).await.expect("scan");
        let inside = |key: &Vec<u8>| {
            let above = match range.from {
                Bound::Unbounded => true,
                Bound::Included(from) => key.as_slice() >= from,
                Bound::Excluded(from) => key.as_slice() > from,
            };
            let below = match range.to {
                Bound::Unbounded => true,
                Bound::Included(to) => key.as_slice() <= to,
                Bound::Excluded(to) => key.as_slice() < to,
            };
            above && below
        };
        let hits = self.model.iter().filter(|(key, _)| inside(key));
        let expected: Vec<_> = if range.reverse {
            hits.rev().take(limit).collect()
        } else {
            hits.take(limit).collect()
        };
        let got: Vec<_> = out.iter().collect();
        assert_eq!(got.len(), expected.len(), "{range:?}, limit {limit}");
        for ((key, value), expected) in got.into_iter().zip(expected) {
            assert_eq!((key, value), (expected.0.as_slice(), expected.1.as_slice()));
        }
    }

    /// The whole content, the structure, and the pool's accounts.
    async fn check(&self) {
        let mut out = Entries::new();
        self.index.scan(&self.session, ScanRange::ALL, usize::MAX, &mut out).await.expect("scan");
        let model: Vec<_> =
            self.model.iter().map(|(key, value)| (key.as_slice(), value.as_slice())).collect();
        assert_eq!(out.iter().collect::<Vec<_>>(), model);
        let report = check(&self.session, &[&self.index]).await;
        assert_eq!(report.keys, self.model.len() as u64);
        assert_eq!(report.unfinished_splits, 0);
    }
}

async fn random_operations<E: Endpoint>(
    session: Session<E>,
    format: TableFormat,
    seed: u64,
    steps: usize,
) {
    let mut run = Run::new(session, format, seed, 300).await;
    run.check().await;
    for _ in 0..3 {
        run.steps(steps / 6, true).await;
        run.check().await;
        run.steps(steps / 6, false).await;
        run.check().await;
    }
    // Everything goes; a lone leaf is left.
    for key in std::mem::take(&mut run.model).into_keys() {
        assert!(run.index.remove(&run.session, &key).await.expect("remove"));
        run.session.tick().await.expect("tick");
    }
    run.check().await;
}

async fn bulk_then_random<E: Endpoint>(session: Session<E>, format: TableFormat, seed: u64) {
    let mut run = Run::new(session, format, seed, 2_000).await;
    while run.model.len() < 1_500 {
        let key = key(&run.format, &mut run.rng, 1 << 40);
        run.model.insert(key, value(&run.format, &mut run.rng));
    }
    let pairs: Vec<_> = run.model.clone().into_iter().collect();
    let loaded = run.index.bulk_load(&run.session, &mut Pairs(pairs.iter())).await;
    assert_eq!(loaded, Ok(pairs.len() as u64));
    run.check().await;
    run.steps(1_500, false).await;
    run.check().await;
}

#[test]
fn random_operations_on_mapped() {
    for (seed, (name, format)) in engine_formats().into_iter().enumerate() {
        println!("{name}");
        World::default()
            .on_mapped(|session| random_operations(session, format, seed as u64, STEPS_MAPPED));
    }
}

#[test]
fn random_operations_on_sim() {
    for (seed, (name, format)) in engine_formats().into_iter().enumerate() {
        println!("{name}");
        World::default()
            .on_sim(move |session| random_operations(session, format, seed as u64, STEPS_SIM));
    }
}

#[test]
fn random_operations_on_tcp() {
    for (seed, (name, format)) in engine_formats().into_iter().enumerate() {
        println!("{name}");
        World::default()
            .on_tcp(|session| random_operations(session, format, seed as u64, STEPS_TCP));
    }
}

#[test]
fn bulk_load_on_mapped() {
    for (seed, (name, format)) in engine_formats().into_iter().enumerate() {
        println!("{name}");
        World::default().on_mapped(|session| bulk_then_random(session, format, seed as u64));
    }
}

#[test]
fn bulk_load_on_sim() {
    for (seed, (name, format)) in engine_formats().into_iter().enumerate() {
        println!("{name}");
        World::default().on_sim(move |session| bulk_then_random(session, format, seed as u64));
    }
}

/// Steps per format; there are seven. Together with the bulk tests 2.2 million operations.
const STEPS_MAPPED: usize = 240_000;
const STEPS_SIM: usize = 60_000;
/// Each is some round trips through the system.
const STEPS_TCP: usize = 1_200;

/// `make verbs` runs it where there is a device.
#[test]
fn random_operations_on_verbs() {
    use std::sync::Arc;

    use farleaf_fabric::tcp::MemoryServerConfig;
    use farleaf_fabric::verbs::{CardConfig, Verbs, VerbsConfig, VerbsServer, devices};
    use farleaf_fabric::{Fabric, ServerId, Words};

    if !devices().is_ok_and(|names| !names.is_empty()) {
        eprintln!("random_operations_on_verbs: skipped: no RDMA device; `make verbs` runs it");
        return;
    }
    let world = World { region_bytes: 16 << 20, ..World::default() };
    for (seed, (name, format)) in engine_formats().into_iter().enumerate() {
        println!("{name}");
        let servers: Vec<VerbsServer> = (0..world.servers)
            .map(|server| {
                let words = Words::anonymous((world.region_bytes / 8) as usize).expect("memory");
                let server = ServerId(server as u16);
                let config =
                    MemoryServerConfig { server, servers: world.servers, ..Default::default() };
                VerbsServer::start(config, &CardConfig::default(), Arc::new(words))
                    .expect("a memory server")
            })
            .collect();
        let config = VerbsConfig::to(servers.iter().map(VerbsServer::address));
        let endpoint = Verbs::connect(config).expect("connected").endpoint().expect("endpoint");
        let executor = endpoint.executor().clone();
        executor.block_on(async {
            let session = common::start(endpoint, &world.pool_options()).await;
            random_operations(session, format, seed as u64, STEPS_TCP / 2).await;
        });
    }
}
