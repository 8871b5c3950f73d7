//! Client: generates its operations, runs them, times them and checks their answers.

use std::{cell::RefCell, fmt, ops::Bound, rc::Rc, sync::Arc};

use farleaf_engines::AnyIndex;
use farleaf_fabric::Endpoint;
use farleaf_index::{Entries, Index, IndexError, ScanRange};
use farleaf_pool::Session;

use super::{
    context::{Dataset, Found},
    meet::Gather,
    route::{Next, Router},
    table::share_of,
    tally::Tally,
};
use crate::{
    config::BenchConfig,
    generator::{Op, OpGenerator},
    load::LoadPlan,
    mix64::mix64,
    workload::OpKind,
};

/// Operations of one client between two reports of progress.
const PROGRESS_OPS: u64 = 1 << 10;
/// Bits of a version below the writer's number.
pub(crate) const VERSION_BITS: u32 = 40;
/// Interval at which a client checks for an operation that another client may still make.
const LOOK_NS: u64 = 1_000;
/// Interval at which a client without keys checks whether it has some.
const IDLE_LOOK_NS: u64 = 10_000;

/// Generator of operations, which clients of one thread may share.
pub(crate) type SharedGenerator = Rc<RefCell<OpGenerator>>;

/// A client with its own session and buffers.
pub(crate) struct Client {
    data: Arc<Dataset>,
    session: Session,
    index: AnyIndex,
    number: usize,
    generator: SharedGenerator,
    route: Option<Route>,
    /// The version that its next value gets: no two values of a run have the same.
    version: u64,
    rng: fastrand::Rng,
    key: Vec<u8>,
    value: Vec<u8>,
    found: Vec<u8>,
    entries: Entries,
}

/// A client's source of operations on keys of its own compute server.
pub(crate) struct Route {
    router: Arc<Router>,
    /// Its compute server.
    server: usize,
    /// True if the client waits while its compute server has no keys.
    waits: bool,
    /// See [`Router::next`].
    may_make: bool,
}

impl Route {
    /// The route of a client of `server`. With `waits` the client waits while its compute server, which has
    /// one partition, has no keys.
    pub(crate) fn new(router: &Arc<Router>, server: usize, waits: bool) -> Self {
        Route { router: Arc::clone(router), server, waits, may_make: false }
    }
}

/// Source of a client's operations.
enum OpSource {
    /// Inserts of its share of the items.
    Plan(LoadPlan),
    /// Operations of the workload.
    Workload,
}

/// A client's work in a phase.
#[derive(Clone, Debug)]
pub(crate) enum Job {
    /// Insert the items of a plan.
    Load(LoadPlan),
    /// This many operations of the workload, one after the other.
    Closed(u64),
    /// This many operations of the workload, each at its time, `gap_ns` apart on average.
    Open(u64, f64),
}

impl Job {
    /// The share of client `number` in the load of all items.
    pub(super) fn load(config: &BenchConfig, number: usize) -> Job {
        let (client, clients) = (number as u64, config.clients as u64);
        Job::Load(LoadPlan::new(config.keys, config.seed, client, clients))
    }

    /// The share of client `number` in `ops` operations, as the configuration paces them.
    pub(super) fn share(config: &BenchConfig, ops: u64, number: usize) -> Job {
        let share = share_of(ops as usize, config.clients, number) as u64;
        match config.rate {
            None => Job::Closed(share),
            Some(rate) => Job::Open(share, config.clients as f64 * 1e9 / rate.per_second() as f64),
        }
    }
}

/// The state that a client shares with the other clients of its thread.
#[derive(Clone)]
pub(crate) struct ThreadContext {
    /// The counts of the thread's clients.
    pub(crate) tally: Rc<RefCell<Tally>>,
    /// Takes the client back when it is done.
    pub(crate) gather: Gather<Client>,
    /// Operations after which a client yields to the thread's other tasks; 0 if waiting for the
    /// fabric does that.
    pub(crate) yield_ops: u64,
    /// Time that an operation takes on its thread besides its waits, nanoseconds of virtual time.
    pub(crate) local_ns: u64,
    /// Records every operation, if given. Then a wrong answer ends the phase for all clients.
    pub(crate) observer: Option<Rc<dyn Observer>>,
}

/// An observer of the operations of a run.
pub(crate) trait Observer: fmt::Debug {
    /// Returns whether the clients stop now.
    fn is_over(&self) -> bool;

    /// Records a right answer. A write wrote `version`.
    fn note(&self, op: Op, key: &[u8], version: u64, began_ns: u64, ended_ns: u64);
}

impl ThreadContext {
    fn is_over(&self) -> bool {
        let observer = self.observer.as_ref();
        observer.is_some_and(|it| it.is_over() || self.tally.borrow().has_errors())
    }
}

impl Client {
    /// Client `number` of the run. Its values are those of a writer of this number alone.
    pub(crate) fn new(
        data: &Arc<Dataset>,
        session: Session,
        index: AnyIndex,
        number: usize,
        generator: SharedGenerator,
        route: Option<Route>,
        seed: u64,
    ) -> Self {
        let client = number as u64;
        Client {
            session,
            index,
            number,
            generator,
            route,
            version: (client + 1) << VERSION_BITS,
            rng: fastrand::Rng::with_seed(mix64(mix64(seed) ^ client ^ 1 << 63)),
            key: Vec::with_capacity(data.keys.key_bytes_max()),
            value: Vec::with_capacity(data.value_bytes),
            found: Vec::with_capacity(data.value_bytes),
            entries: Entries::new(),
            data: Arc::clone(data),
        }
    }

    /// Its number in the run.
    pub(crate) fn number(&self) -> usize {
        self.number
    }

    /// Its session.
    pub(super) fn session(&self) -> &Session {
        &self.session
    }

    /// Does `job` as a task of its own and then hands the client to `gather`.
    pub(crate) fn start(mut self, job: Job, thread: ThreadContext) {
        let endpoint = self.session.endpoint().clone();
        self.route.iter_mut().for_each(|route| route.may_make = true);
        endpoint.spawn(async move {
            match job {
                Job::Load(plan) => self.load(plan, &thread).await,
                Job::Closed(ops) => self.run(ops, None, &thread).await,
                Job::Open(ops, gap_ns) => self.run(ops, Some(gap_ns), &thread).await,
            }
            self.route.iter_mut().for_each(|route| route.router.give_up(&mut route.may_make));
            let gather = thread.gather.clone();
            gather.finish(self);
        });
    }

    /// The next operation; `None` if there is none left for this client.
    async fn next_op(&mut self, source: &mut OpSource, thread: &ThreadContext) -> Option<Op> {
        let Client { generator, data, key, route, session, .. } = self;
        let mut make = || match source {
            OpSource::Plan(plan) => {
                plan.next().map(|item| Op { kind: OpKind::Insert, item, scan_len: 0 })
            }
            OpSource::Workload => generator.borrow_mut().next_op(),
        };
        let Some(route) = route else { return make() };
        loop {
            if route.waits && route.router.is_idle(route.server) {
                session.endpoint().sleep(IDLE_LOOK_NS).await;
                if thread.is_over() {
                    return None;
                }
                continue;
            }
            let next = route.router.next(route.server, &mut route.may_make, key, |key| {
                let op = make()?;
                if data.keys.write_key(op.item, key).is_err() {
                    // The client that runs the operation meets the error again.
                    key.clear();
                }
                Some(op)
            });
            match next {
                Next::Op(op) => return Some(op),
                Next::Wait => session.endpoint().sleep(LOOK_NS).await,
                Next::End => return None,
            }
        }
    }

    async fn load(&mut self, plan: LoadPlan, thread: &ThreadContext) {
        let mut plan = OpSource::Plan(plan);
        let mut steps = 0;
        while !thread.tally.borrow().has_errors()
            && let Some(op) = self.next_op(&mut plan, thread).await
        {
            let answer = match self.prepare(op, 0) {
                Ok(()) => self.insert().await,
                Err(error) => Err(error),
            };
            self.settle(op, answer, thread);
            steps += 1;
            self.pause(steps, thread).await;
        }
        thread.gather.advance(steps % PROGRESS_OPS);
    }

    async fn run(&mut self, ops: u64, gap_ns: Option<f64>, thread: &ThreadContext) {
        let endpoint = self.session.endpoint().clone();
        let mut due_ns = endpoint.now_ns() as f64;
        let mut steps = 0;
        // The router counts routed operations.
        while !thread.is_over()
            && (self.route.is_some() || steps < ops)
            && let Some(op) = self.next_op(&mut OpSource::Workload, thread).await
        {
            self.version += 1;
            if let Err(error) = self.prepare(op, self.version) {
                self.settle(op, Err(error), thread);
                steps += 1;
                continue;
            }
            if thread.local_ns > 0 {
                endpoint.work(thread.local_ns).await;
            }
            let mut began_ns = endpoint.now_ns();
            if let Some(gap_ns) = gap_ns {
                // Exponential gaps: clients come independently of each other.
                due_ns -= gap_ns * (1.0 - self.rng.f64()).ln();
                let due_ns = due_ns as u64;
                if due_ns > began_ns {
                    endpoint.sleep(due_ns - began_ns).await;
                }
                began_ns = due_ns;
            }
            let answer = match op.kind {
                OpKind::Get => self.get(op.item).await,
                OpKind::Update => self.update().await,
                OpKind::Insert => self.insert().await,
                OpKind::Scan => self.scan(op).await,
                OpKind::ReadModifyWrite => self.read_modify_write(op.item).await,
                OpKind::Remove => self.remove().await,
                OpKind::Upsert => self.upsert().await,
            };
            let ended_ns = endpoint.now_ns();
            if self.settle(op, answer, thread) {
                thread.tally.borrow_mut().done(op.kind, ended_ns.saturating_sub(began_ns));
                if let Some(observer) = &thread.observer {
                    observer.note(op, &self.key, self.version, began_ns, ended_ns);
                }
            }
            steps += 1;
            self.pause(steps, thread).await;
        }
        thread.gather.advance(steps % PROGRESS_OPS);
    }

    /// Reports progress after an operation, and yields to other tasks.
    #[inline]
    async fn pause(&self, steps: u64, thread: &ThreadContext) {
        if steps.is_multiple_of(PROGRESS_OPS) {
            thread.gather.advance(PROGRESS_OPS);
        }
        if thread.yield_ops > 0 && steps.is_multiple_of(thread.yield_ops) {
            self.session.endpoint().yield_now().await;
        }
    }

    /// Makes the key, and the value of a write.
    #[inline]
    fn prepare(&mut self, op: Op, version: u64) -> Result<(), IndexError> {
        let made = self.data.prepare(op, version, &mut self.key, &mut self.value);
        made.map_err(|error| IndexError::Invalid(error.to_string()))
    }

    async fn get(&mut self, item: u64) -> Result<Found, IndexError> {
        let present = self.index.get(&self.session, &self.key, &mut self.found).await?;
        Ok(self.data.got(item, present.then_some(&self.found)))
    }

    async fn update(&mut self) -> Result<Found, IndexError> {
        let present = self.index.update(&self.session, &self.key, &self.value).await?;
        Ok(Found::right(present))
    }

    async fn insert(&mut self) -> Result<Found, IndexError> {
        let present = !self.index.insert(&self.session, &self.key, &self.value).await?;
        Ok(match present {
            true => Found::wrong("an insert of a new key found it present"),
            false => Found::right(false),
        })
    }

    async fn read_modify_write(&mut self, item: u64) -> Result<Found, IndexError> {
        let found = self.get(item).await?;
        if found.wrong.is_some() { Ok(found) } else { self.update().await }
    }

    async fn remove(&mut self) -> Result<Found, IndexError> {
        let present = self.index.remove(&self.session, &self.key).await?;
        Ok(Found::right(present))
    }

    async fn upsert(&mut self) -> Result<Found, IndexError> {
        let present = !self.index.upsert(&self.session, &self.key, &self.value).await?;
        Ok(Found::right(present))
    }

    async fn scan(&mut self, op: Op) -> Result<Found, IndexError> {
        self.entries.clear();
        let limit = op.scan_len as usize;
        let from = Bound::Included(self.key.as_slice());
        let range = ScanRange { from, to: Bound::Unbounded, reverse: false };
        self.index.scan(&self.session, range, limit, &mut self.entries).await?;
        let pairs = self.entries.iter().map(|(key, value)| (key, Some(value)));
        Ok(self.data.scanned(op, &self.key, pairs))
    }

    /// Counts an operation's answer; returns whether it is right.
    #[inline]
    fn settle(&self, op: Op, answer: Result<Found, IndexError>, thread: &ThreadContext) -> bool {
        if op.kind == OpKind::Insert {
            self.data.space.acknowledge(op.item);
        }
        let mut tally = thread.tally.borrow_mut();
        let found = match answer {
            Ok(found) => found,
            Err(error) => {
                tally.failed(op, error);
                return false;
            }
        };
        if let Some(fault) = self.data.fault(op, &found) {
            tally.wrong(|| fault);
            return false;
        }
        let bytes = (self.key.len() + self.data.value_bytes) as i64;
        match op.kind {
            OpKind::Insert => tally.data(bytes),
            OpKind::Upsert if !found.present => tally.data(bytes),
            OpKind::Remove if found.present => tally.data(-bytes),
            _ => {}
        }
        true
    }
}
