//! World: a simulated cluster with a loaded tree, on which one index after the other runs.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    sync::Arc,
};

use farleaf_fabric::{
    AnyEndpoint, Client, Endpoint, Fabric, GlobalAddr, ServerId, Snapshot,
    sim::{RpcConfig, Sim, SimConfig},
};
use farleaf_index::{
    Engine, Index, IndexError, TableFormat,
    bnode::Layout,
    compute::OwnedTable,
    dex::{
        Dex, DexOptions, DexStats, JoinOptions, Take, equal_width,
        offload::{OFFLOAD_SERVICE, OffloadService},
    },
};
use farleaf_pool::{Pool, PoolError, PoolOptions, Session, format};

use super::{
    error::ReproError,
    router::{Bounds, Router},
    setup,
    watch::{LOOK_NS, Span, Watch},
};
use crate::{
    generator::{Op, OpGenerator},
    item_space::ItemSpace,
    keys::{KeyMaker, KeyOrder},
    run::{BenchError, Phase, Progress, meet::Gather, sorted::Pairs},
    values::ValueMaker,
    workload::{OpKind, Workload},
};

/// Bytes of keys and of values.
const VALUE_BYTES: usize = 8;
/// Operations of one client between two reports of progress.
const PROGRESS_OPS: u64 = 1 << 12;
/// Time between two rounds of maintenance of a session.
const TICK_NS: u64 = 10_000_000;
/// Bits of a version below the writer's number.
const VERSION_BITS: u32 = 40;

/// The cluster and its loaded data.
#[derive(Clone, Debug)]
pub(super) struct WorldConfig {
    pub(super) keys: u64,
    pub(super) seed: u64,
    pub(super) compute_servers: usize,
    pub(super) memory_servers: usize,
    /// Worker threads of all compute servers, with one client each.
    pub(super) threads: usize,
    /// Further worker threads of each compute server, for work besides its clients'.
    pub(super) spare_threads: usize,
    pub(super) bulk_fill: f64,
    /// Threads of each memory server that serve offloaded requests.
    pub(super) handler_threads: usize,
    /// Nodes up to this level lie on one memory server with all below them.
    pub(super) subtree_level: u8,
}

/// One run on a [`World`].
#[derive(Clone, Debug)]
pub(super) struct Load<'a> {
    pub(super) workload: &'a Workload,
    /// Operations before the measured ones, of all clients together.
    pub(super) warmup: u64,
    /// Measured operations, of all clients together.
    pub(super) ops: u64,
    /// Time that an operation takes on its worker thread besides its waits, nanoseconds of virtual
    /// time.
    pub(super) local_ns: u64,
    /// The number of clients that take part, the same for each compute server; `None` for all.
    pub(super) clients: Option<usize>,
}

/// Results of the measured operations of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Measured {
    pub(super) ops: u64,
    /// Virtual time.
    pub(super) nanos: u64,
    /// Fabric operations of all compute servers, maintenance included.
    pub(super) cost: Snapshot,
    /// Share of the time that the memory servers' threads were busy with offloaded requests.
    pub(super) handlers_busy: f64,
}

/// Remote operations and bytes for each index operation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct PerOperation {
    pub(super) reads: f64,
    pub(super) writes: f64,
    pub(super) atomics: f64,
    pub(super) rpcs: f64,
    pub(super) bytes: f64,
}

impl Measured {
    pub(super) fn per_op(&self) -> PerOperation {
        let cost = self.cost.total();
        let each = |count: u64| count as f64 / self.ops.max(1) as f64;
        PerOperation {
            reads: each(cost.reads),
            writes: each(cost.writes),
            atomics: each(cost.atomics()),
            rpcs: each(cost.rpcs),
            bytes: each(cost.bytes_read + cost.bytes_written),
        }
    }

    /// Remote operations of all kinds for each index operation.
    pub(super) fn verbs_per_op(&self) -> f64 {
        self.cost.total().verbs() as f64 / self.ops.max(1) as f64
    }

    /// Millions of operations per second of virtual time.
    pub(super) fn mops(&self) -> f64 {
        if self.nanos == 0 { 0.0 } else { self.ops as f64 * 1e3 / self.nanos as f64 }
    }
}

/// See the [module page](self).
pub(super) struct World {
    pub(super) config: WorldConfig,
    pub(super) sim: Sim,
    /// One for each worker thread; thread `t` is of compute server `t % compute_servers`.
    pub(super) sessions: Vec<Session>,
    pub(super) meta: GlobalAddr,
    pub(super) layout: Layout,
    space: Arc<ItemSpace>,
    keys: KeyMaker,
    values: ValueMaker,
    /// Bounds of each compute server's keys, once there are some.
    pub(super) bounds: Bounds,
    runs: Cell<u64>,
    handlers: Handlers,
}

/// Threads of the memory servers for offloaded requests.
struct Handlers {
    service: Arc<OffloadService>,
    dispatch_ns: u64,
    threads: Cell<usize>,
}

impl Handlers {
    /// Time of all servers' threads so far.
    fn worked_ns(&self) -> u64 {
        let stats = self.service.stats();
        stats.busy_ns + stats.requests * self.dispatch_ns
    }
}

impl World {
    /// Sets the cluster up and fills the tree: nodes as `btree` and `dex` both have them.
    ///
    /// # Errors
    /// [`ReproError`] if the cluster makes no sense or the keys do not fit.
    pub(super) fn new(config: WorldConfig, progress: &dyn Progress) -> Result<Self, ReproError> {
        let layout = TableFormat::fixed8(Engine::BTree).layout().map_err(BenchError::Table)?;
        let region_bytes = region_bytes(&config);
        let computes = config.compute_servers;
        let mut sim_config = SimConfig {
            memory_servers: config.memory_servers,
            compute_servers: computes,
            threads: config.threads.div_ceil(computes) + config.spare_threads,
            region_bytes,
            rpc: RpcConfig { threads: config.handler_threads, ..RpcConfig::default() },
            ..SimConfig::seeded(config.seed)
        };
        // The paper's memory servers can read the memory that compute servers have written.
        sim_config.capabilities.cpu_visible = true;
        let dispatch_ns = sim_config.rpc.dispatch_ns;
        let sim = Sim::new(sim_config).map_err(BenchError::from)?;
        let offloads = Arc::new(OffloadService::new(1, None));
        sim.fabric(0).serve(OFFLOAD_SERVICE, offloads.clone());
        let endpoints = (0..config.threads)
            .map(|thread| {
                sim.fabric(thread % computes).endpoint_on(thread / computes).map(Into::into)
            })
            .collect::<Result<Vec<AnyEndpoint>, _>>()
            .map_err(BenchError::from)?;
        let mut options = PoolOptions::fitting(region_bytes);
        options.clients_max =
            options.clients_max.max((config.threads + 8) as u32) + 32 * config.spare_threads as u32;
        options.members_max = options.members_max.max(computes as u32 + 1);
        let keys = KeyMaker::U64(KeyOrder::Hashed);
        let values = ValueMaker::new(VALUE_BYTES);
        progress.begin(Phase::Load, config.keys);
        let pool_bytes = region_bytes * config.memory_servers as u64;
        let refused = |source: PoolError| BenchError::Pool { pool_bytes, source };
        let loading = async {
            let mut pools: Vec<Arc<Pool>> = Vec::new();
            let mut sessions = Vec::new();
            for endpoint in &endpoints {
                if pools.len() < computes {
                    let client = Client::new(endpoint.clone());
                    if pools.is_empty() {
                        format(&client, &options).await.map_err(refused)?;
                    }
                    pools.push(Pool::join(&client).await.map_err(refused)?);
                }
                let pool = &pools[sessions.len() % computes];
                sessions.push(pool.session(endpoint.clone()).await.map_err(refused)?);
            }
            let first = &sessions[0];
            let layout = layout.for_tree(first.endpoint().random());
            let meta = Dex::create_placed(first, &layout, config.subtree_level).await;
            let meta = meta.map_err(BenchError::Load)?;
            let options = DexOptions {
                cache_bytes: 64 * layout.node_bytes() as u64,
                bulk_fill: config.bulk_fill,
                ..setup::as_in_the_paper()
            };
            let whole = Dex::open(first, meta, layout, options, JoinOptions::default());
            let whole = whole.await.map_err(BenchError::Load)?;
            let mut pairs = Pairs::new(&keys, values, config.keys, progress);
            let loaded = whole.bulk_load(first, &mut pairs).await;
            loaded.map_err(|source| match source {
                IndexError::Full(_) => BenchError::PoolTooSmall { pool_bytes, source },
                error => BenchError::Load(error),
            })?;
            pairs.finish()?;
            whole.close(first).await.map_err(BenchError::Load)?;
            Ok::<_, BenchError>((sessions, meta, layout))
        };
        let (sessions, meta, layout) = sim.block_on(loading).map_err(BenchError::from)??;
        Ok(World {
            space: Arc::new(ItemSpace::new(config.keys, None)),
            sim,
            sessions,
            meta,
            layout,
            keys,
            values,
            bounds: Bounds::default(),
            runs: Cell::new(0),
            handlers: Handlers {
                service: offloads,
                dispatch_ns,
                threads: Cell::new(config.handler_threads),
            },
            config,
        })
    }

    /// Bytes of keys and values.
    pub(super) fn data_bytes(&self) -> u64 {
        self.config.keys * (8 + VALUE_BYTES as u64)
    }

    /// Gives each memory server `threads` threads for offloaded requests.
    pub(super) fn set_handler_threads(&self, threads: usize) {
        for server in 0..self.config.memory_servers {
            self.sim.memory_server(ServerId(server as u16)).set_rpc_threads(threads);
        }
        self.handlers.threads.set(threads);
    }

    /// Cuts the tree into one partition of equal width for each compute server. Cannot be undone.
    ///
    /// # Errors
    /// The engine's.
    pub(super) fn partition(&self) -> Result<(), ReproError> {
        self.cut(equal_width(&self.layout, self.config.compute_servers).unwrap_or_default())
    }

    /// Cuts the tree at `bounds`. Cannot be undone.
    ///
    /// # Errors
    /// The engine's.
    pub(super) fn cut(&self, bounds: Vec<Vec<u8>>) -> Result<(), ReproError> {
        let options = DexOptions {
            cache_bytes: 4096 * self.layout.node_bytes() as u64,
            ..setup::as_in_the_paper()
        };
        let session = &self.sessions[0];
        let cutting = async {
            let join = JoinOptions::default();
            let whole = Dex::open(session, self.meta, self.layout, options, join).await?;
            whole.partition(session, &bounds).await
        };
        let cut = self.sim.block_on(cutting);
        cut.map_err(BenchError::from)?.map_err(BenchError::Load)?;
        *self.bounds.borrow_mut() = bounds;
        Ok(())
    }

    /// Each compute server's cache of its partition, empty.
    ///
    /// # Errors
    /// The engine's.
    pub(super) fn open(&self, options: DexOptions) -> Result<Vec<Dex>, ReproError> {
        let opening = async {
            let mut caches = Vec::new();
            for number in 0..self.config.compute_servers {
                let session = &self.sessions[number];
                let (meta, layout) = (self.meta, self.layout);
                // The first partition that nobody has: they are opened in their order.
                let join = JoinOptions { take: Take::Free(1), take_over: false, calls: false };
                caches.push(Dex::open(session, meta, layout, options, join).await?);
            }
            Ok::<_, IndexError>(caches)
        };
        let opened = self.sim.block_on(opening).map_err(BenchError::from)?;
        Ok(opened.map_err(BenchError::Table)?)
    }

    /// Checks the caches and closes them, so that others can be opened; returns their statistics.
    ///
    /// # Errors
    /// The engine's; [`ReproError::Wrong`] if a cache is not in order.
    pub(super) fn close(&self, caches: Vec<Dex>) -> Result<Vec<DexStats>, ReproError> {
        let mut stats = Vec::new();
        for (number, cache) in caches.iter().enumerate() {
            if let Some(first) = cache.check_cache().into_iter().next() {
                return Err(ReproError::Wrong(first));
            }
            stats.push(cache.stats());
            let closed = self.sim.block_on(cache.close(&self.sessions[number]));
            closed.map_err(BenchError::from)?.map_err(BenchError::Load)?;
        }
        Ok(stats)
    }

    /// Runs a workload on `indexes`, one of each compute server. If the tree is partitioned, the
    /// clients of a compute server do the operations on the keys that it owns, else any.
    ///
    /// # Errors
    /// An operation's; [`ReproError::Wrong`] for an answer that cannot be right.
    pub(super) fn run<I: Index + Clone + 'static>(
        &self,
        indexes: &[I],
        load: &Load<'_>,
        progress: &dyn Progress,
    ) -> Result<Measured, ReproError> {
        self.run_watched(indexes, load, None, progress)
    }

    /// As [`World::run`]. A `watch` records every operation, and ends the run.
    ///
    /// # Errors
    /// As [`World::run`].
    pub(super) fn run_watched<I: Index + Clone + 'static>(
        &self,
        indexes: &[I],
        load: &Load<'_>,
        watch: Option<&Rc<Watch>>,
        progress: &dyn Progress,
    ) -> Result<Measured, ReproError> {
        let number = self.runs.replace(self.runs.get() + 1);
        let space = Arc::clone(&self.space);
        let generator = OpGenerator::new(load.workload, space, self.config.seed, 0, 1)
            .map_err(BenchError::from)?;
        let is_partitioned = !self.bounds.borrow().is_empty();
        let router = Router::new(generator, self.keys.clone(), Rc::clone(&self.bounds));
        let shared = Rc::new(RunShared {
            router: RefCell::new(router),
            failure: RefCell::default(),
            stop: Cell::new(false),
            local_ns: load.local_ns,
            values: self.values,
            watch: watch.cloned(),
        });
        self.maintain(&shared);
        let phase = |phase, ops| {
            progress.begin(phase, ops);
            shared.router.borrow_mut().allow(ops);
            let clients = load.clients.unwrap_or(self.sessions.len()).min(self.sessions.len());
            let gather = Gather::new(clients);
            for (thread, session) in self.sessions[..clients].iter().enumerate() {
                let compute = thread % self.config.compute_servers;
                let writer = (number << 1 | u64::from(phase == Phase::Run)) << 12 | thread as u64;
                let client = Worker {
                    shared: Rc::clone(&shared),
                    session: session.clone(),
                    index: indexes[compute].clone(),
                    partition: if is_partitioned { compute } else { 0 },
                    version: (writer + 1) << VERSION_BITS,
                };
                let gather = gather.clone();
                self.sim.spawn(compute, async move {
                    if let Err(error) = client.run(&gather).await {
                        client.shared.failure.borrow_mut().get_or_insert(error);
                    }
                    gather.finish(());
                });
            }
            let all = self.sim.block_on(gather.all(|steps| progress.advance(steps)));
            all.map_err(BenchError::from)?;
            shared.failure.borrow_mut().take().map_or(Ok(()), Err)
        };
        phase(Phase::WarmUp, load.warmup)?;
        let counters = self.sim.counters();
        let (before, began_ns) = (Snapshot::of(&counters), self.sim.now_ns());
        let worked_ns = self.handlers.worked_ns();
        shared.watch.iter().for_each(|watch| watch.begin_measuring());
        phase(Phase::Run, load.ops)?;
        let cost = Snapshot::of(&self.sim.counters()).since(&before);
        shared.stop.set(true);
        let nanos = self.sim.now_ns() - began_ns;
        let threads = self.config.memory_servers * self.handlers.threads.get();
        let worked_ns = self.handlers.worked_ns() - worked_ns;
        let handlers_busy = worked_ns as f64 / (nanos.max(1) as f64 * threads as f64);
        Ok(Measured { ops: load.ops, nanos, cost, handlers_busy })
    }

    /// Runs a workload on caches of the partitions that are empty before it, and closed after it.
    ///
    /// # Errors
    /// As [`World::open`], [`World::run`] and [`World::close`].
    pub(super) fn run_dex(
        &self,
        options: DexOptions,
        load: &Load<'_>,
        progress: &dyn Progress,
    ) -> Result<Measured, ReproError> {
        let caches = self.open(options)?;
        let measured = self.run(&caches, load, progress)?;
        self.close(caches)?;
        Ok(measured)
    }

    /// Counts the items, of those written under a watch, with a value that shows a lost
    /// acknowledged write.
    ///
    /// # Errors
    /// The engine's.
    pub(super) fn lost(&self, index: &Dex, watch: &Watch) -> Result<u64, ReproError> {
        let session = &self.sessions[0];
        let reading = async {
            let (mut lost, mut key, mut value) = (0, Vec::new(), Vec::new());
            for (step, (item, versions)) in watch.written().into_iter().enumerate() {
                self.keys.write_key(item, &mut key).map_err(BenchError::from)?;
                let failed = |source| ReproError::Operation { kind: "get", source };
                let is_there = index.get(session, &key, &mut value).await.map_err(failed)?;
                let version = version_of(&self.values, item, &value).filter(|_| is_there);
                lost += u64::from(!version.is_some_and(|version| versions.contains(&version)));
                if step % 256 == 0 {
                    // The next round makes up for a round that fails.
                    let _ = session.tick().await;
                }
            }
            Ok::<_, ReproError>(lost)
        };
        self.sim.block_on(reading).map_err(BenchError::from)?
    }

    /// Runs the maintenance of every session until the run is over.
    fn maintain(&self, shared: &Rc<RunShared>) {
        for (thread, session) in self.sessions.iter().enumerate() {
            let (shared, session) = (Rc::clone(shared), session.clone());
            let first_ns = TICK_NS * thread as u64 / self.sessions.len() as u64;
            self.sim.spawn(thread % self.config.compute_servers, async move {
                let endpoint = session.endpoint();
                endpoint.sleep(first_ns).await;
                while !shared.stop.get() {
                    // The next round makes up for a round that fails.
                    let _ = session.tick().await;
                    endpoint.sleep(TICK_NS).await;
                }
            });
        }
    }

    /// A hash over every event and effect so far.
    pub(super) fn trace_hash(&self) -> u64 {
        self.sim.trace_hash()
    }
}

/// The state that the clients of a run share.
struct RunShared {
    router: RefCell<Router>,
    failure: RefCell<Option<ReproError>>,
    stop: Cell<bool>,
    local_ns: u64,
    values: ValueMaker,
    watch: Option<Rc<Watch>>,
}

/// One client: a task on a worker thread of its own.
struct Worker<I> {
    shared: Rc<RunShared>,
    session: Session,
    index: I,
    partition: usize,
    version: u64,
}

impl<I: Index> Worker<I> {
    async fn run(&self, gather: &Gather<()>) -> Result<(), ReproError> {
        let shared = &*self.shared;
        let (mut key, mut value, mut found) = (Vec::new(), Vec::new(), Vec::new());
        let (mut version, mut steps) = (self.version, 0);
        let endpoint = self.session.endpoint();
        loop {
            if shared.failure.borrow().is_some()
                || shared.watch.as_ref().is_some_and(|it| it.is_over())
            {
                break;
            }
            if shared.router.borrow().is_idle(self.partition) {
                endpoint.sleep(LOOK_NS).await;
                continue;
            }
            let next = shared.router.borrow_mut().next(self.partition, &mut key);
            let Some(op) = next.map_err(BenchError::from)? else { break };
            if shared.local_ns > 0 {
                endpoint.work(shared.local_ns).await;
            }
            let began_ns = endpoint.now_ns();
            let failed = |error| ReproError::Operation { kind: op.kind.name(), source: error };
            let present = match op.kind {
                OpKind::Get => {
                    let got = self.index.get(&self.session, &key, &mut found).await;
                    got.map_err(failed)? && self.is_value_of(op, &found)
                }
                OpKind::Update => {
                    version += 1;
                    shared.values.write_value(op.item, version, &mut value);
                    self.index.update(&self.session, &key, &value).await.map_err(failed)?
                }
                other => {
                    return Err(ReproError::Wrong(format!("no {} is made here", other.name())));
                }
            };
            if !present {
                let kind = op.kind.name();
                let text =
                    format!("{kind} of item {} found nothing, or what nobody wrote", op.item);
                return Err(ReproError::Wrong(text));
            }
            if let Some(watch) = &shared.watch {
                let span = Span { began_ns, ended_ns: endpoint.now_ns() };
                watch.note(&key, span);
                if op.kind == OpKind::Update {
                    watch.note_write(op.item, version, span);
                }
            }
            steps += 1;
            if steps % PROGRESS_OPS == 0 {
                gather.advance(PROGRESS_OPS);
            }
        }
        gather.advance(steps % PROGRESS_OPS);
        Ok(())
    }

    fn is_value_of(&self, op: Op, value: &[u8]) -> bool {
        version_of(&self.shared.values, op.item, value).is_some()
    }
}

/// The version of an item's value; `None` if nobody has written the value.
fn version_of(values: &ValueMaker, item: u64, value: &[u8]) -> Option<u64> {
    let version = values.version_of(item, value);
    version.filter(|version| values.value_matches(item, *version, value))
}

/// Bytes of each memory server that certainly hold the items; only touched memory is committed.
fn region_bytes(config: &WorldConfig) -> u64 {
    let nodes = config.keys * 64 / config.memory_servers as u64;
    let blocks = (config.compute_servers as u64) * 16 * (16 << 20);
    let clients = config.threads as u64 * (512 << 10);
    (nodes + blocks + clients + (256 << 20)) & !4095
}
