//! Small cache tests: a cache of a size that an engine accepts works, whatever the keys and the batch.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use crate::common::clients::soak;
use crate::common::{World, check, growing_engines, is_radix, settle};
use farleaf_engines::{AnyIndex, Engine, TableFormat};
use farleaf_fabric::mapped::Mapped;
use farleaf_fabric::{AnyEndpoint, Endpoint, ToAny};
use farleaf_harness::{make_pool, simulate_pool};
use farleaf_index::knobs::CACHE;
use farleaf_index::{Index, KEY_BYTES_MAX, OpenOptions, Settings, Spec};
use farleaf_pool::{Pool, PoolOptions, Session};

/// The shapes of a sweep's keys.
#[derive(Clone, Copy, Debug)]
enum Keys {
    /// Of one length, all bytes but the last ones alike.
    Alike(usize),
    /// Of one length, random.
    Random(usize),
    /// Of all lengths.
    Mixed,
}

impl Keys {
    fn key(self, number: u64) -> Vec<u8> {
        let mut rng = fastrand::Rng::with_seed(number);
        let (bytes, is_random) = match self {
            Keys::Alike(bytes) => (bytes, false),
            Keys::Random(bytes) => (bytes, true),
            Keys::Mixed => (rng.usize(..=KEY_BYTES_MAX), rng.bool()),
        };
        let mut key: Vec<u8> =
            (0..bytes).map(|_| if is_random { rng.u8(..) } else { b'k' }).collect();
        let end = (number as u16).to_be_bytes();
        let from = bytes.saturating_sub(2);
        key[from..].copy_from_slice(&end[..bytes - from]);
        key
    }
}

/// The smallest caches that the engine accepts for such a table, and a few above.
fn caches(engine: Engine, node_bytes: u64) -> Vec<u64> {
    if is_radix(engine) { vec![0, 1, 300, 2 << 10] } else { vec![8 * node_bytes, 12 * node_bytes] }
}

/// A run: the engine and its cache, the keys, and how many clients use the table at once.
#[derive(Clone, Copy, Debug)]
struct Case {
    engine: Engine,
    cache: u64,
    keys: Keys,
    count: u64,
    at_once: u64,
}

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

impl Case {
    fn options(self) -> PoolOptions {
        PoolOptions { clients_max: 512, ..World::default().pool_options() }
    }

    async fn make(self, session: &Session) -> AnyIndex {
        let format = TableFormat::new(self.engine, Spec::ANY);
        let root = AnyIndex::create(session, "t", &format).await.expect("create");
        let settings = Settings::default().with(CACHE, &self.cache.to_string());
        let settings = self.engine.options_of(&settings);
        let options = OpenOptions { settings, ..OpenOptions::default() };
        AnyIndex::open(session, &root, &options).await.expect("the cache is accepted")
    }

    /// Changes and reads the keys of client number `client`, and looks at every answer; what they hold at the end.
    async fn work(self, session: &Session, index: &AnyIndex, client: u64, clients: u64) -> Model {
        let mut model = Model::new();
        for round in 0..3_u8 {
            for number in (client..self.count).step_by(clients as usize) {
                let key = self.keys.key(number);
                // The shortest keys would be several clients'.
                if key.len() < 2 && number > 0 {
                    continue;
                }
                let value = vec![round; (number % 40) as usize];
                if round == 1 && number % 3 == 0 {
                    let had = model.remove(&key).is_some();
                    assert_eq!(index.remove(session, &key).await, Ok(had), "{self:?}");
                } else {
                    let is_new = model.insert(key.clone(), value.clone()).is_none();
                    assert_eq!(index.upsert(session, &key, &value).await, Ok(is_new), "{self:?}");
                }
                let mut held = Vec::new();
                let found = index.get(session, &key, &mut held).await;
                assert_eq!(found, Ok(model.contains_key(&key)), "{self:?}");
                assert_eq!(model.get(&key).unwrap_or(&Vec::new()), &held, "{self:?}");
                session.tick_if_due().await.expect("tick");
            }
        }
        model
    }

    /// Lets the clients from `first` on of all `clients` work at once, in this thread.
    async fn work_at_once(
        self,
        (pool, endpoint): (&Arc<Pool>, &AnyEndpoint),
        index: &AnyIndex,
        (first, clients): (u64, u64),
    ) -> Model {
        let (left, model) = (Rc::new(Cell::new(self.at_once)), Rc::new(RefCell::new(Model::new())));
        for client in first..first + self.at_once {
            let session = pool.session(endpoint.clone()).await.expect("session");
            let (index, left, model) = (index.clone(), Rc::clone(&left), Rc::clone(&model));
            endpoint.spawn(async move {
                let mine = self.work(&session, &index, client, clients).await;
                model.borrow_mut().extend(mine);
                left.set(left.get() - 1);
            });
        }
        while left.get() > 0 {
            endpoint.sleep(10_000).await;
        }
        model.take()
    }

    /// In the simulator, in one thread.
    fn simulate(self) {
        let world = World { region_bytes: 64 << 20, ..World::default() };
        let (sim, session) = simulate_pool(world.sim_config(), &self.options()).expect("a pool");
        let ran = sim.block_on(async {
            let index = self.make(&session).await;
            let by = (session.pool(), session.endpoint());
            let model = self.work_at_once(by, &index, (0, self.at_once)).await;
            assert_eq!(check(&session, &[&index]).await.keys, model.len() as u64, "{self:?}");
        });
        ran.expect("the simulation ends");
        println!("{self:?}: {} us", sim.now_ns() / 1_000);
    }

    /// In the memory of this process, in so many threads.
    #[allow(clippy::disallowed_methods, reason = "the threads are what is tested")]
    fn run_in_memory(self, threads: u64) {
        let fabric = Mapped::anonymous(2, 64 << 20).expect("memory");
        let endpoint = fabric.any_endpoint().expect("an endpoint");
        let executor = endpoint.executor().clone();
        let (session, index) = executor.block_on(async {
            let session = make_pool(endpoint, &self.options()).await.expect("a pool");
            let index = self.make(&session).await;
            settle(&session).await;
            (session, index)
        });
        let (pool, clients) = (session.pool().clone(), threads * self.at_once);
        let keys: u64 = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..threads)
                .map(|thread| {
                    let (fabric, pool, index) = (fabric.clone(), pool.clone(), index.clone());
                    let by = (thread * self.at_once, clients);
                    scope.spawn(move || self.on_thread(&fabric, &pool, &index, by))
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("a thread")).sum()
        });
        executor.block_on(async {
            assert_eq!(check(&session, &[&index]).await.keys, keys, "{self:?}");
        });
    }

    /// The part of one thread; the number of its keys.
    fn on_thread(
        self,
        fabric: &Mapped,
        pool: &Arc<Pool>,
        index: &AnyIndex,
        (first, clients): (u64, u64),
    ) -> u64 {
        let endpoint = fabric.any_endpoint().expect("an endpoint");
        endpoint.seed(first);
        let executor = endpoint.executor().clone();
        let by = (pool, &endpoint);
        executor.block_on(self.work_at_once(by, index, (first, clients))).len() as u64
    }
}

/// The cases of every engine; all of them if `is_all`.
fn cases(is_all: bool) -> Vec<Case> {
    let mut cases = Vec::new();
    for engine in growing_engines() {
        let node_bytes = TableFormat::new(engine, Spec::ANY).node_bytes() as u64;
        let mut keys = vec![Keys::Mixed, Keys::Random(KEY_BYTES_MAX)];
        if is_all {
            keys.extend([0, 8, 100, KEY_BYTES_MAX].map(Keys::Alike));
            keys.extend([8, 100].map(Keys::Random));
        }
        for keys in keys {
            for cache in caches(engine, node_bytes) {
                for at_once in [1, 8, 64] {
                    // Enough for a tree that is taller than the smallest cache of `dex`.
                    let is_tall = engine == Engine::Dex && matches!(keys, Keys::Random(_));
                    let count = if is_tall || is_all { 600 } else { 120 };
                    cases.push(Case { engine, cache, keys, count, at_once });
                }
            }
        }
    }
    cases
}

/// With 8 nodes of cache, an operation on a tree of 9 levels gave up after 100,000 steps, and the operations of a batch
/// evicted each other's nodes without an end.
#[test]
fn a_cache_that_is_accepted_works_whatever_the_keys_and_the_batch() {
    let mut failed = Vec::new();
    for case in cases(soak() > 1) {
        if std::panic::catch_unwind(|| case.simulate()).is_err() {
            failed.push(case);
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
fn threads_share_the_smallest_cache() {
    for case in cases(soak() > 1) {
        let is_least = case.cache <= 8 * 4096 && case.at_once != 1;
        if is_least && (case.engine == Engine::Dex || case.cache == 0) {
            case.run_in_memory(4);
        }
    }
}
