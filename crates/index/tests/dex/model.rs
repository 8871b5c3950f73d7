//! The engine `dex` against `BTreeMap`: one session, all operations, tiny nodes, the smallest cache.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::common::{Pairs, World, formats, key, value};
use crate::tables::{check, create, open, some_durability};
use farleaf_fabric::Endpoint;
use farleaf_index::dex::offload::Offload;
use farleaf_index::dex::{Dex, DexOptions};
use farleaf_index::{Entries, Exchange, Index, ScanRange, TableFormat};
use farleaf_pool::Session;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

struct Run<E: Endpoint> {
    session: Session<E>,
    index: Dex,
    format: TableFormat,
    model: Model,
    rng: fastrand::Rng,
    space: u64,
}

impl<E: Endpoint> Run<E> {
    async fn new(
        session: Session<E>,
        format: TableFormat,
        frames: u64,
        seed: u64,
        space: u64,
        offload: Offload,
    ) -> Self {
        // Every third run keeps every leaf, every third none.
        let admit_leaf = [0.1, 1.0, 0.0][seed as usize % 3];
        let options = DexOptions { admit_leaf, offload, ..DexOptions::default() };
        let options = some_durability(seed / 3, options);
        let index = open(create(&session, &format).await, frames, options);
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
        let (from, to) = (bound(&ends[0][..]), bound(&ends[1][..]));
        let range = ScanRange { from, to, reverse: self.rng.bool() };
        let limit = self.rng.usize(..30);
        let mut out = Entries::new();
        self.index.scan(&self.session, range, limit, &mut out).await.expect("scan");
        let above = |key: &[u8]| match from {
            Bound::Unbounded => true,
            Bound::Included(from) => key >= from,
            Bound::Excluded(from) => key > from,
        };
        let below = |key: &[u8]| match to {
            Bound::Unbounded => true,
            Bound::Included(to) => key <= to,
            Bound::Excluded(to) => key < to,
        };
        let mut expected: Vec<_> =
            self.model.iter().filter(|(key, _)| above(key) && below(key)).collect();
        if range.reverse {
            expected.reverse();
        }
        expected.truncate(limit);
        let got: Vec<_> = out.iter().collect();
        assert_eq!(got.len(), expected.len(), "{range:?}, limit {limit}");
        for ((key, value), expected) in got.into_iter().zip(expected) {
            assert_eq!((key, value), (expected.0.as_slice(), expected.1.as_slice()));
        }
    }

    async fn check(&self) {
        let mut out = Entries::new();
        self.index.scan(&self.session, ScanRange::ALL, usize::MAX, &mut out).await.expect("scan");
        let model: Vec<_> =
            self.model.iter().map(|(key, value)| (key.as_slice(), value.as_slice())).collect();
        assert_eq!(out.iter().collect::<Vec<_>>(), model);
        let report = check(&self.session, &self.index).await;
        assert_eq!(report.keys, self.model.len() as u64);
        assert_eq!(report.unfinished_splits, 0);
    }
}

async fn random_operations<E: Endpoint>(
    session: Session<E>,
    format: TableFormat,
    frames: u64,
    seed: u64,
    steps: usize,
    offload: Offload,
) {
    let mut run = Run::new(session, format, frames, seed, 300, offload).await;
    run.check().await;
    for _ in 0..3 {
        run.steps(steps / 6, true).await;
        run.check().await;
        run.steps(steps / 6, false).await;
        run.check().await;
    }
    for key in std::mem::take(&mut run.model).into_keys() {
        assert!(run.index.remove(&run.session, &key).await.expect("remove"));
        run.session.tick().await.expect("tick");
    }
    run.check().await;
    let stats = run.index.stats();
    println!("{frames} frames: {stats:?}");
    assert!(stats.splits > 0, "{stats:?}");
    check_offloads(&run.index, offload);
}

async fn bulk_then_random<E: Endpoint>(
    session: Session<E>,
    format: TableFormat,
    frames: u64,
    seed: u64,
    offload: Offload,
) {
    let mut run = Run::new(session, format, frames, seed, 2_000, offload).await;
    while run.model.len() < 1_500 {
        let key = key(&run.format, &mut run.rng, 1 << 40);
        run.model.insert(key, value(&run.format, &mut run.rng));
    }
    let pairs: Vec<_> = run.model.clone().into_iter().collect();
    let loaded = run.index.bulk_load(&run.session, &mut Pairs(pairs.iter())).await;
    assert_eq!(loaded, Ok(pairs.len() as u64));
    let again = run.index.bulk_load(&run.session, &mut Pairs(pairs.iter())).await;
    assert!(matches!(again, Err(farleaf_index::IndexError::Invalid(_))), "{again:?}");
    run.check().await;
    run.steps(1_500, false).await;
    run.check().await;
}

/// The smallest cache that these trees work with, a small one, and one that holds everything. A way
/// down and a split need the tree's height and 2 more frames; short separators and two of them to a
/// node make high trees.
fn caches(format: &TableFormat) -> [u64; 3] {
    let is_dense = format.layout().expect("layout").is_dense();
    [if is_dense { 8 } else { 16 }, 32, 2_000]
}

#[test]
fn random_operations_on_mapped() {
    for (at, (name, format)) in formats().into_iter().enumerate() {
        for (which, frames) in caches(&format).into_iter().enumerate() {
            let seed = (3 * at + which + at) as u64;
            println!("{name}, {frames} frames, seed {seed}");
            World::default().on_mapped(|session| {
                random_operations(session, format, frames, seed, STEPS_MAPPED, Offload::Never)
            });
        }
    }
}

#[test]
fn random_operations_on_sim() {
    for (at, (name, format)) in formats().into_iter().enumerate() {
        for (which, frames) in caches(&format).into_iter().enumerate() {
            let seed = 100 + (3 * at + which + at) as u64;
            println!("{name}, {frames} frames, seed {seed}");
            World::default().on_sim(move |session| {
                random_operations(session, format, frames, seed, STEPS_SIM, Offload::Never)
            });
        }
    }
}

#[test]
fn bulk_load_then_operations() {
    for (at, (name, format)) in formats().into_iter().enumerate() {
        for frames in [16, 64] {
            println!("{name}, {frames} frames");
            let seed = 200 + at as u64;
            let offload = [Offload::Never, Offload::Always][at % 2];
            World::default()
                .on_mapped(|session| bulk_then_random(session, format, frames, seed, offload));
            World::default()
                .on_sim(move |session| bulk_then_random(session, format, frames, seed, offload));
        }
    }
}

/// Memory servers have done something, and nothing that they must not.
fn check_offloads(index: &Dex, offload: Offload) {
    let stats = index.stats();
    let asked = stats.offload_ok + stats.offload_absent + stats.offload_exists;
    let odd = [stats.offload_refused, stats.offload_no_service, stats.offload_unknown];
    assert_eq!(odd, [0; 3], "{stats:?}");
    assert_eq!((stats.offload_wrong_fence, stats.offload_busy), (0, 0), "{stats:?}");
    if offload == Offload::Never {
        assert_eq!((asked, stats.offload_chosen), (0, 0), "{stats:?}");
    }
}

const MODES: [Offload; 3] = [Offload::Always, Offload::Ratio(0.3), Offload::Adaptive];

#[test]
fn random_operations_offloaded() {
    for (at, (name, format)) in formats().into_iter().enumerate() {
        for (which, offload) in MODES.into_iter().enumerate() {
            let seed = 400 + (3 * at + which) as u64;
            let frames = caches(&format)[which.min(1)];
            println!("{name}, {frames} frames, {offload}, seed {seed}");
            World::default().on_mapped(|session| {
                random_operations(session, format, frames, seed, STEPS_SIM, offload)
            });
            World::default().on_sim(move |session| {
                random_operations(session, format, frames, seed, STEPS_SIM, offload)
            });
        }
    }
}

#[test]
fn random_operations_offloaded_on_tcp() {
    let (_, format) = formats()[0];
    World::default()
        .on_tcp(|session| random_operations(session, format, 8, 500, STEPS_SIM, Offload::Always));
}

/// Steps for each of seven formats and three caches.
const STEPS_MAPPED: usize = 3_000;
const STEPS_SIM: usize = 1_500;
