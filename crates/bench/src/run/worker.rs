//! Worker: one thread of a run, whose clients load, warm up and run phase by phase with all others.

use std::{
    cell::RefCell,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
};

use farleaf_fabric::{AnyEndpoint, Counters, Endpoint, Snapshot, sim::CardUse};
use farleaf_index::{CacheControl, CounterSet, Index};
use farleaf_pool::Session;

use super::{
    client::{Client, Job, Route, ThreadContext},
    context::Context,
    error::BenchError,
    meet::{Gather, PhaseBarrier},
    progress::{Phase, Progress},
    route::Router,
    table::Server,
    tally::Tally,
};
use crate::{config::LoadKind, generator::OpGenerator, workload::Workload};

/// Time between two rounds of maintenance of a compute server; its sessions take turns.
const TICK_NS: u64 = 1_000_000;
/// Most turns until a session's own comes.
const TURNS_MAX: u64 = 10;

/// Work of one thread.
pub(super) struct Duty<'a> {
    /// Clients: number, compute server, and the endpoint of the thread that it runs on.
    pub(super) clients: Vec<(usize, Server, AnyEndpoint)>,
    /// Threads that execute what other compute servers send.
    pub(super) serving: Vec<ServingThread>,
    /// All compute servers.
    pub(super) servers: Vec<Server>,
    /// Gives operations to the owners of their keys, if they begin there.
    pub(super) router: Option<Arc<Router>>,
    /// See [`ThreadContext::yield_ops`].
    pub(super) yield_ops: u64,
    /// True for the one thread that reports the phases.
    pub(super) leads: bool,
    /// Tells the work of all cards so far, in a simulation.
    pub(super) cards: Option<&'a dyn Fn() -> Vec<CardUse>>,
}

/// A thread of a compute server that executes, beside its clients, what others send.
pub(super) struct ServingThread {
    pub(super) server: Server,
    pub(super) endpoint: AnyEndpoint,
}

/// Results of a thread.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Counts of its clients.
    pub(super) tally: Tally,
    /// Nanoseconds of the load phase; 0 if the thread takes no part in it.
    pub(super) load_ns: u64,
    /// Nanoseconds of the run phase.
    pub(super) run_ns: u64,
    /// Fabric operations of the run phase.
    pub(super) cost: Snapshot,
    /// The engine's counts of the run phase, from the thread that leads.
    pub(super) counters: CounterSet,
    /// Bytes of all compute servers' caches after the run phase, from the thread that leads.
    pub(super) cache_bytes: u64,
    /// The work of each server's card in the run phase, in a simulation.
    pub(super) cards: Vec<CardUse>,
}

impl Outcome {
    /// Adds the outcome of another thread that ran at the same time.
    pub(super) fn add(&mut self, other: Outcome) {
        self.tally.add(other.tally);
        self.load_ns = self.load_ns.max(other.load_ns);
        self.run_ns = self.run_ns.max(other.run_ns);
        self.cost.add(&other.cost);
        self.counters.add_all(&other.counters);
        self.cache_bytes += other.cache_bytes;
    }
}

/// Runs a thread's share of the bench. `home` is an endpoint of the thread.
///
/// # Errors
/// `Pool`, `Distribution`, `WrongLoad`, or `Aborted` if another thread fails.
pub(super) async fn work(
    context: &Arc<Context>,
    home: &AnyEndpoint,
    duty: Duty<'_>,
    barrier: &PhaseBarrier,
    progress: &dyn Progress,
) -> Result<Outcome, BenchError> {
    let config = &context.config;
    let stop = Arc::new(AtomicBool::new(false));
    let _stop = StopOnDrop(Arc::clone(&stop));
    let mut clients = Vec::with_capacity(duty.clients.len());
    let mut generators = Vec::with_capacity(duty.clients.len());
    let first = config.warm_up.as_ref().unwrap_or(&config.workload);
    for (number, server, endpoint) in duty.clients {
        let session = server.pool.session(endpoint).await;
        let session = session.map_err(|source| context.refused(source))?;
        maintain(context, session.clone(), number as u64, Arc::clone(&stop));
        let route = duty.router.as_ref();
        let route = route.map(|router| Route::new(router, number % config.compute_servers, false));
        let generator = Rc::new(RefCell::new(generator(context, first, number)?));
        generators.push((number, Rc::clone(&generator)));
        let (data, seed) = (&context.data, config.seed);
        clients.push(Client::new(data, session, server.index, number, generator, route, seed));
    }
    let served = serve(context, &duty.serving).await?;
    let mut crew = Crew {
        tally: Rc::default(),
        clients,
        yield_ops: duty.yield_ops,
        local_ns: config.local_ns,
        leads: duty.leads,
        clients_of_all: config.clients,
        router: duty.router,
        home: home.clone(),
        barrier,
        turn: 0,
        progress,
    };

    let mut outcome = Outcome::default();
    if config.load == LoadKind::Insert {
        outcome.load_ns =
            crew.phase(Phase::Load, config.keys, |number| Job::load(config, number)).await?;
        crew.tally.borrow().check_load(context.pool_bytes())?;
    }
    let ops = config.warmup_ops;
    if ops > 0 {
        crew.phase(Phase::WarmUp, ops, |number| Job::share(config, ops, number)).await?;
        crew.tally.borrow_mut().restart();
    }
    crew.meet().await?;
    if config.warm_up.is_some() {
        for (number, of_client) in generators {
            *of_client.borrow_mut() = generator(context, &config.workload, number)?;
        }
    }
    let counters_before = counters(&duty.servers);
    let cards = || duty.cards.map_or_else(Vec::new, |cards| cards());
    let cards_before = cards();
    crew.begin(Phase::Run, config.ops);
    let slices = config.slices.max(1);
    for slice in 0..slices {
        let ops = config.ops * (slice + 1) / slices - config.ops * slice / slices;
        if slice > 0 {
            crew.meet().await?;
        }
        if crew.leads {
            progress.pause();
        }
        let (ns, cost) = crew.work(ops, |number| Job::share(config, ops, number)).await?;
        outcome.run_ns += ns;
        outcome.cost.add(&cost);
    }
    let used = cards().into_iter().zip(cards_before);
    outcome.cards = used.map(|(now, before)| now.since(before)).collect();
    // Others may wait for locks that tasks of this thread hold.
    crew.meet().await?;
    if duty.leads {
        outcome.counters = counters(&duty.servers).since(&counters_before);
        let caches = duty.servers.iter().filter_map(|server| server.index.cache());
        outcome.cache_bytes = caches.map(CacheControl::resident_bytes).sum();
    }
    outcome.tally = crew.tally.take();
    for endpoint in served {
        endpoint.leave().await;
    }
    Ok(outcome)
}

/// The operations of client `number`.
fn generator(
    context: &Context,
    workload: &Workload,
    number: usize,
) -> Result<OpGenerator, BenchError> {
    let config = &context.config;
    let (space, clients) = (Arc::clone(&context.data.space), config.clients as u64);
    Ok(OpGenerator::new(workload, space, config.seed, number as u64, clients)?)
}

/// The engine's counts of all compute servers so far.
fn counters(servers: &[Server]) -> CounterSet {
    let mut sum = CounterSet::default();
    servers.iter().for_each(|server| server.index.counters(&mut sum));
    sum
}

/// Executes what other compute servers send, until the compute server leaves.
async fn serve(
    context: &Arc<Context>,
    threads: &[ServingThread],
) -> Result<Vec<AnyEndpoint>, BenchError> {
    let mut served = Vec::new();
    for ServingThread { server, endpoint } in threads {
        for _ in 0..context.serve_tasks {
            let session = server.pool.session(endpoint.clone()).await;
            let session = session.map_err(|source| context.refused(source))?;
            let serving = Arc::clone(&server.host).serve(session);
            endpoint.spawn(async move {
                // A compute server that has been cut off serves no more; callers get an error.
                let _ = serving.await;
            });
        }
        served.push(endpoint.clone());
    }
    Ok(served)
}

/// Does the maintenance of client `number`'s session beside its operations, until `stop` is set.
fn maintain(context: &Context, session: Session, number: u64, stop: Arc<AtomicBool>) {
    let config = &context.config;
    let clients = (config.clients / config.compute_servers) as u64;
    let interval_ns = TICK_NS * clients.min(TURNS_MAX);
    // Spread over the interval, so that not all come at once.
    let first_ns = interval_ns * number / config.clients as u64;
    let endpoint = session.endpoint().clone();
    endpoint.clone().spawn(async move {
        endpoint.sleep(first_ns).await;
        while !stop.load(SeqCst) {
            // The next round makes up for a round that fails; the client meets lasting errors.
            let _ = session.tick_if_due().await;
            endpoint.sleep(interval_ns).await;
        }
    });
}

/// Ends maintenance, however the thread's work ends.
pub(super) struct StopOnDrop(pub(super) Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// A thread's clients.
struct Crew<'a> {
    clients: Vec<Client>,
    tally: Rc<RefCell<Tally>>,
    yield_ops: u64,
    local_ns: u64,
    leads: bool,
    clients_of_all: usize,
    router: Option<Arc<Router>>,
    home: AnyEndpoint,
    barrier: &'a PhaseBarrier,
    turn: usize,
    progress: &'a dyn Progress,
}

impl Crew<'_> {
    /// Waits for all other threads.
    async fn meet(&mut self) -> Result<(), BenchError> {
        self.turn += 1;
        self.barrier.pass(&self.home, self.turn).await
    }

    /// Begins together with all other threads and lets every client do its job. Returns the time
    /// that this took, in nanoseconds.
    async fn phase(
        &mut self,
        phase: Phase,
        total: u64,
        job: impl Fn(usize) -> Job,
    ) -> Result<u64, BenchError> {
        self.begin(phase, total);
        Ok(self.work(total, job).await?.0)
    }

    fn begin(&self, phase: Phase, total: u64) {
        if self.leads {
            self.progress.begin(phase, total);
        }
    }

    /// As [`Crew::phase`], without a report of the phase; also returns the cost. Maintenance goes
    /// on in pauses, without a client to count for.
    async fn work(
        &mut self,
        total: u64,
        job: impl Fn(usize) -> Job,
    ) -> Result<(u64, Snapshot), BenchError> {
        if let Some(router) = self.router.clone() {
            // The router may change only after all clients have left the last phase.
            self.meet().await?;
            if self.leads {
                router.allow(total, self.clients_of_all);
            }
        }
        self.meet().await?;
        let counters = self.counters();
        let (began_ns, before) = (self.home.now_ns(), Snapshot::of(&counters));
        let gather = Gather::new(self.clients.len());
        for client in self.clients.drain(..) {
            let thread = ThreadContext {
                tally: Rc::clone(&self.tally),
                gather: gather.clone(),
                yield_ops: self.yield_ops,
                local_ns: self.local_ns,
                observer: None,
            };
            let job = job(client.number());
            client.start(job, thread);
        }
        self.clients = gather.all(|steps| self.progress.advance(steps)).await;
        self.clients.sort_unstable_by_key(Client::number);
        Ok((self.home.now_ns() - began_ns, Snapshot::of(&counters).since(&before)))
    }

    /// The counters of its clients' endpoints, each once.
    fn counters(&self) -> Vec<Arc<Counters>> {
        let mut counters: Vec<Arc<Counters>> = Vec::new();
        for client in &self.clients {
            let its = client.session().endpoint().counters();
            if !counters.iter().any(|known| Arc::ptr_eq(known, its)) {
                counters.push(Arc::clone(its));
            }
        }
        counters
    }
}
