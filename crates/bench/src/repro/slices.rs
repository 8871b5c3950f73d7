//! Slices: run the same operations on several sides in turns, in real time, on mapped memory.
//!
//! A slice takes some milliseconds, and every side has one in every round, on all threads at once:
//! other load of the machine strikes all sides alike, and medians over rounds leave out the rest.

use std::{
    sync::{Arc, Barrier, Mutex, PoisonError},
    thread,
    time::Instant,
};

use farleaf_fabric::{AnyEndpoint, Cost, Endpoint, OpKind, Snapshot, ToAny, mapped::Mapped};
use farleaf_harness::make_pool;
use farleaf_index::Index;
use farleaf_pool::{Pool, PoolOptions, Session};
use rustix::time::{ClockId, clock_gettime};

use super::error::ReproError;
use crate::{
    keys::{KeyMaker, KeyOrder},
    mix64::mix64,
    run::{BenchError, Phase, Progress, sorted::Pairs},
    values::ValueMaker,
};

/// The kinds of index operations of slices, as the fabric counts them.
pub(super) const OPERATIONS: [OpKind; 2] = [OpKind::Get, OpKind::Update];

/// Operations of a slice.
pub(super) const SLICE_OPS: usize = 5_000;

/// Threads, each on a session of its own.
pub(super) const THREADS: usize = 2;

/// Memory of one server, with a pool.
pub(super) struct Testbed {
    fabric: Mapped,
    main: AnyEndpoint,
    home: Session,
    seed: u64,
}

/// One thread's number, endpoint and session.
pub(super) struct BenchThread {
    pub(super) number: usize,
    endpoint: AnyEndpoint,
    pub(super) session: Session,
}

/// Keys to look up, with their items.
pub(super) type Wanted = [([u8; 8], u64)];

/// One side's work in a slice: an operation on each key. Returns the number of keys found.
pub(super) type Slice<'a> =
    dyn Fn(usize, &BenchThread, &Wanted) -> Result<usize, ReproError> + Sync + 'a;

/// A choice of an item.
pub(super) type Draw<'a> = dyn Fn(&mut fastrand::Rng) -> u64 + Sync + 'a;

/// Parameters of a measurement.
pub(super) struct SlicePlan<'a> {
    pub(super) sides: usize,
    pub(super) rounds: usize,
    /// Chooses an item.
    pub(super) draw: &'a Draw<'a>,
    pub(super) slice: &'a Slice<'a>,
}

/// Operations of all threads, per second and per second of processor time.
#[derive(Clone, Copy, Debug, Default)]
struct Rate {
    wall: f64,
    processor: f64,
}

/// Results of a measurement.
pub(super) struct Times {
    /// Rates by round and side.
    rates: Vec<Vec<Rate>>,
    /// Remote operations of index operations.
    pub(super) cost: Cost,
}

impl Times {
    /// The median of a side's throughput, million operations per second.
    pub(super) fn mops(&self, side: usize) -> f64 {
        median(self.rates.iter().map(|round| round[side].wall / 1e6).collect())
    }

    /// The median over rounds of a side's throughput divided by another's.
    pub(super) fn ratio(&self, side: usize, over: usize) -> f64 {
        median(self.rates.iter().map(|round| round[side].wall / round[over].wall).collect())
    }

    /// As [`Times::ratio`], by processor time, which leaves out other load of the machine. For
    /// sides that never wait.
    pub(super) fn processor_ratio(&self, side: usize, over: usize) -> f64 {
        let ratio = |round: &Vec<Rate>| round[side].processor / round[over].processor;
        median(self.rates.iter().map(ratio).collect())
    }
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or(0.0)
}

/// Time that this thread has run on a processor.
fn processor_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// The key of an item as a number.
pub(super) fn number_of(item: u64) -> u64 {
    mix64(item)
}

/// The pairs of a load, in the order of their keys.
pub(super) fn pairs<'a>(keys: &'a KeyMaker, count: u64, progress: &'a dyn Progress) -> Pairs<'a> {
    Pairs::new(keys, ValueMaker::new(8), count, progress)
}

/// Maker of the keys of [`pairs`].
pub(super) const KEYS: KeyMaker = KeyMaker::U64(KeyOrder::Hashed);

/// Gets items, each of which must be there.
///
/// # Errors
/// `Operation`, `Wrong`.
pub(super) async fn get_all(
    session: &Session,
    index: &impl Index,
    items: impl Iterator<Item = u64>,
) -> Result<(), ReproError> {
    let mut value = Vec::new();
    for item in items {
        let key = number_of(item).to_be_bytes();
        let failed = |source| ReproError::Operation { kind: "get", source };
        if !index.get(session, &key, &mut value).await.map_err(failed)? {
            return Err(ReproError::Wrong(format!("item {item} was loaded and is not found")));
        }
    }
    Ok(())
}

/// Does an operation of that kind on each key. Returns the number of keys found.
///
/// # Errors
/// `Operation`.
pub(super) async fn work_on(
    session: &Session,
    index: &impl Index,
    work: Work,
    wanted: &Wanted,
) -> Result<usize, ReproError> {
    let mut value = Vec::with_capacity(8);
    let mut found = 0;
    for (key, item) in wanted {
        let is_there = match work {
            Work::Get => index.get(session, key, &mut value).await,
            Work::Update => index.update(session, key, &item.to_le_bytes()).await,
        };
        let failed = |source| ReproError::Operation { kind: work.name(), source };
        found += usize::from(is_there.map_err(failed)?);
    }
    Ok(found)
}

/// Counts the keys of which `found` says that they are there.
#[inline]
pub(super) fn count(wanted: &Wanted, mut found: impl FnMut(&[u8; 8], u64) -> bool) -> usize {
    wanted.iter().filter(|(key, item)| found(key, *item)).count()
}

/// Kinds of work of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    Get,
    Update,
}

impl Work {
    pub(super) fn name(self) -> &'static str {
        match self {
            Work::Get => "get",
            Work::Update => "update",
        }
    }
}

impl Testbed {
    /// A pool on one server of `pool_bytes`. Memory that nothing touches takes none of the machine's.
    ///
    /// # Errors
    /// [`ReproError::Bench`].
    pub(super) fn new(pool_bytes: u64, seed: u64) -> Result<Self, ReproError> {
        let pool_bytes = pool_bytes & !4095;
        let fabric = Mapped::anonymous(1, pool_bytes).map_err(BenchError::from)?;
        let main = fabric.any_endpoint().map_err(BenchError::from)?;
        main.seed(seed);
        let refused = |source| BenchError::Pool { pool_bytes, source };
        let options = PoolOptions::fitting(pool_bytes);
        let home = main.executor().block_on(make_pool(main.clone(), &options)).map_err(refused)?;
        Ok(Testbed { fabric, main, home, seed })
    }

    /// Runs work on the session that prepares tables, and not in slices.
    pub(super) fn prepare<T>(&self, work: impl AsyncFnOnce(&Session) -> T) -> T {
        self.main.executor().block_on(work(&self.home))
    }

    /// Bytes of the pool's objects that are in use.
    pub(super) fn live_bytes(&self) -> u64 {
        let memory = self.home.pool().memory();
        memory.live_bytes - memory.retired_bytes
    }

    /// Measures. A slice in which a key is not found is an error.
    ///
    /// # Errors
    /// The first one of any thread.
    pub(super) fn measure(
        &self,
        plan: &SlicePlan<'_>,
        progress: &dyn Progress,
    ) -> Result<Times, ReproError> {
        progress.begin(Phase::Run, plan.rounds as u64);
        let rates = Mutex::new(vec![vec![Rate::default(); plan.sides]; plan.rounds]);
        let barrier = Barrier::new(THREADS);
        let cost = thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|number| {
                    let (rates, barrier) = (&rates, &barrier);
                    let rng = fastrand::Rng::with_seed(mix64(self.seed) ^ number as u64);
                    let (fabric, pool) = (&self.fabric, self.home.pool());
                    scope.spawn(move || {
                        let thread = BenchThread::open(fabric, pool, number);
                        // Even after a failure: the others wait.
                        barrier.wait();
                        thread?.run(plan, rng, barrier, rates, progress)
                    })
                })
                .collect();
            let (mut cost, mut failure) = (Cost::default(), None);
            for thread in threads {
                match thread.join() {
                    Ok(Ok(its)) => cost += its,
                    Ok(Err(error)) => failure = failure.or(Some(error)),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            failure.map_or(Ok(cost), Err)
        })?;
        let rates = rates.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok(Times { rates, cost })
    }
}

impl BenchThread {
    /// Opens a session for this thread.
    fn open(fabric: &Mapped, pool: &Arc<Pool>, number: usize) -> Result<Self, ReproError> {
        let endpoint = fabric.any_endpoint().map_err(BenchError::from)?;
        endpoint.seed(number as u64 + 1);
        let made = endpoint.executor().block_on(pool.session(endpoint.clone()));
        let session = made.map_err(|source| BenchError::Pool { pool_bytes: 0, source })?;
        Ok(BenchThread { number, endpoint, session })
    }

    /// Runs a future of this thread to its end.
    pub(super) fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.endpoint.executor().block_on(future)
    }

    fn run(
        &self,
        plan: &SlicePlan<'_>,
        mut rng: fastrand::Rng,
        barrier: &Barrier,
        rates: &Mutex<Vec<Vec<Rate>>>,
        progress: &dyn Progress,
    ) -> Result<Cost, ReproError> {
        let mut failure = None;
        let before = Snapshot::of([self.endpoint.counters()]);
        let mut wanted = vec![([0_u8; 8], 0_u64); SLICE_OPS];
        for round in 0..plan.rounds {
            for (key, item) in &mut wanted {
                *item = (plan.draw)(&mut rng);
                *key = number_of(*item).to_be_bytes();
            }
            for step in 0..plan.sides {
                // The sides take turns in coming first.
                let side = (step + round) % plan.sides;
                barrier.wait();
                let (began, worked) = (Instant::now(), processor_seconds());
                let found = (plan.slice)(side, self, &wanted);
                let ops = SLICE_OPS as f64;
                let processor = ops / (processor_seconds() - worked);
                let wall = ops / began.elapsed().as_secs_f64();
                match found {
                    Ok(found) if found == SLICE_OPS => {}
                    Ok(found) => {
                        let text = format!(
                            "side {side} found {found} of {} keys that are there",
                            SLICE_OPS
                        );
                        failure.get_or_insert(ReproError::Wrong(text));
                    }
                    // The others still wait for this thread in every slice.
                    Err(error) => {
                        failure.get_or_insert(error);
                    }
                }
                let mut rates = rates.lock().unwrap_or_else(PoisonError::into_inner);
                rates[round][side].wall += wall;
                rates[round][side].processor += processor;
            }
            if self.number == 0 {
                progress.advance(1);
            }
        }
        let spent = Snapshot::of([self.endpoint.counters()]).since(&before);
        let mut cost = Cost::default();
        OPERATIONS.iter().for_each(|kind| cost += spent.kind(*kind));
        failure.map_or(Ok(cost), Err)
    }
}
