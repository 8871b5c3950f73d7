//! World: a simulated cluster with a loaded tree, on which one index after the other runs.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    sync::Arc,
};

use farleaf_engines::{
    AnyIndex,
    dex::{
        Dex, DexOptions, DexStats, DexTable, JoinOptions, Take, equal_width,
        offload::{OFFLOAD_SERVICE, OffloadService},
    },
};
use farleaf_fabric::{
    AnyEndpoint, Endpoint, Fabric, GlobalAddr, ServerId, Snapshot,
    sim::{RpcConfig, Sim, SimConfig},
};
use farleaf_harness::{join, make_pool};
use farleaf_index::{Index, IndexError, bnode::Layout, compute::OwnedTable};
use farleaf_pool::{PoolError, PoolOptions, Session};

use super::{error::ReproError, papers::Table2Row, report::ReproReport, setup, watch::Watch};
use crate::{
    generator::OpGenerator,
    item_space::ItemSpace,
    keys::{KeyMaker, KeyOrder},
    run::{
        BenchError, Phase, Progress,
        client::{Client as BenchClient, Job, Observer, Route, ThreadContext},
        context::Dataset,
        meet::Gather,
        route::{Bounds, Owners, Router},
        sorted::Pairs,
    },
    values::ValueMaker,
    workload::Workload,
};

/// Bytes of keys and of values.
const VALUE_BYTES: usize = 8;
/// Time between two rounds of maintenance of a session.
const TICK_NS: u64 = 10_000_000;

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
    /// Time that a line of the processor's cache takes from one thread of a compute server to another; 0: contention
    /// costs nothing.
    pub(super) handover_ns: u64,
}

/// One run on a [`World`].
#[derive(Clone, Debug)]
pub(super) struct Load {
    pub(super) workload: Workload,
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
    /// Frames that the caches evicted.
    pub(super) evicted: u64,
}

impl Measured {
    /// Millions of frames evicted per second of virtual time by each of `caches` caches, on average.
    pub(super) fn mega_evictions_per_s(&self, caches: usize) -> f64 {
        self.evicted as f64 * 1e3 / (self.nanos.max(1) as f64 * caches as f64)
    }

    /// Remote operations and bytes for each index operation.
    pub(super) fn per_op(&self) -> Table2Row {
        let cost = self.cost.total();
        let each = |count: u64| count as f64 / self.ops.max(1) as f64;
        Table2Row {
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
pub(super) struct World<'a> {
    pub(super) config: WorldConfig,
    pub(super) sim: Sim,
    /// One for each worker thread; thread `t` is of compute server `t % compute_servers`.
    pub(super) sessions: Vec<Session>,
    pub(super) meta: GlobalAddr,
    pub(super) layout: Layout,
    data: Arc<Dataset>,
    /// Bounds of each compute server's keys, once there are some.
    pub(super) bounds: Bounds,
    runs: Cell<usize>,
    handlers: Handlers,
    progress: &'a dyn Progress,
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

impl<'a> World<'a> {
    /// Sets the cluster up and fills the tree: nodes as `btree` and `dex` both have them.
    ///
    /// # Errors
    /// [`ReproError`] if the cluster makes no sense or the keys do not fit.
    pub(super) fn new(config: WorldConfig, progress: &'a dyn Progress) -> Result<Self, ReproError> {
        let layout = setup::layout()?;
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
        sim_config.cpu.handover_ns = config.handover_ns;
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
            let mut sessions: Vec<Session> = Vec::new();
            for endpoint in &endpoints {
                let session = match sessions.len() {
                    0 => make_pool(endpoint.clone(), &options).await,
                    thread if thread < computes => join(endpoint.clone()).await,
                    thread => sessions[thread % computes].pool().session(endpoint.clone()).await,
                };
                sessions.push(session.map_err(refused)?);
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
            data: Arc::new(Dataset {
                keys,
                values,
                value_bytes: VALUE_BYTES,
                space: Arc::new(ItemSpace::new(config.keys, None)),
                all_present: true,
            }),
            sim,
            sessions,
            meta,
            layout,
            bounds: Bounds::default(),
            runs: Cell::new(0),
            handlers: Handlers {
                service: offloads,
                dispatch_ns,
                threads: Cell::new(config.handler_threads),
            },
            config,
            progress,
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
        self.cut(
            equal_width(self.layout.options().key, self.config.compute_servers).unwrap_or_default(),
        )
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
        self.bounds.set(bounds);
        Ok(())
    }

    /// Each compute server's cache of its partition, empty.
    ///
    /// # Errors
    /// The engine's.
    pub(super) fn open(&self, options: DexOptions) -> Result<Vec<DexTable>, ReproError> {
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
    pub(super) fn close(&self, caches: Vec<DexTable>) -> Result<Vec<DexStats>, ReproError> {
        let mut stats = Vec::new();
        for (number, cache) in caches.iter().enumerate() {
            if let Some(first) = cache.tree().check_cache().into_iter().next() {
                return Err(ReproError::Wrong(first));
            }
            stats.push(cache.tree().stats());
            let closed = self.sim.block_on(cache.close(&self.sessions[number]));
            closed.map_err(BenchError::from)?.map_err(BenchError::Load)?;
        }
        Ok(stats)
    }

    /// Runs a workload on `indexes`, one of each compute server. If the tree is partitioned, the
    /// clients of a compute server do the operations on the keys that it owns, else any.
    ///
    /// # Errors
    /// [`ReproError::Wrong`] for an operation that fails, or an answer that cannot be right.
    pub(super) fn run(&self, indexes: &[AnyIndex], load: &Load) -> Result<Measured, ReproError> {
        self.run_watched(indexes, load, &Rc::default())
    }

    /// As [`World::run`]. A `watch` records every operation, and ends the run.
    ///
    /// # Errors
    /// As [`World::run`].
    pub(super) fn run_watched(
        &self,
        indexes: &[AnyIndex],
        load: &Load,
        watch: &Rc<Watch>,
    ) -> Result<Measured, ReproError> {
        let number = self.runs.replace(self.runs.get() + 1);
        let (space, seed) = (Arc::clone(&self.data.space), self.config.seed);
        let generator =
            OpGenerator::new(&load.workload, space, seed, 0, 1).map_err(BenchError::from)?;
        let generator = Rc::new(RefCell::new(generator));
        let partitions = self.bounds.partitions();
        let router = Router::new(Owners::new(self.bounds.clone(), partitions), partitions);
        let router = Arc::new(router);
        let count = load.clients.unwrap_or(self.sessions.len()).min(self.sessions.len());
        let client = |(thread, session): (usize, &Session)| {
            let compute = thread % self.config.compute_servers;
            let route = Route::new(&router, compute % partitions, true);
            let (index, generator) = (indexes[compute].clone(), Rc::clone(&generator));
            let writer = number << 12 | thread;
            let (data, session) = (&self.data, session.clone());
            BenchClient::new(data, session, index, writer, generator, Some(route), seed)
        };
        let mut clients: Vec<_> = self.sessions[..count].iter().enumerate().map(client).collect();
        let stop = self.maintain();
        let mut phase = |phase, ops| {
            self.progress.begin(phase, ops);
            router.allow(ops, count);
            let thread = ThreadContext {
                tally: Rc::default(),
                gather: Gather::new(count),
                yield_ops: 0,
                local_ns: load.local_ns,
                observer: Some(Rc::clone(watch) as Rc<dyn Observer>),
            };
            for client in clients.drain(..) {
                client.start(Job::Closed(ops), thread.clone());
            }
            let all = self.sim.block_on(thread.gather.all(|steps| self.progress.advance(steps)));
            clients = all.map_err(BenchError::from)?;
            clients.sort_unstable_by_key(BenchClient::number);
            let wrong = thread.tally.borrow().first_error().map(str::to_owned);
            wrong.map_or(Ok(()), |text| Err(ReproError::Wrong(text)))
        };
        phase(Phase::WarmUp, load.warmup)?;
        let counters = self.sim.counters();
        let (before, began_ns) = (Snapshot::of(&counters), self.sim.now_ns());
        let worked_ns = self.handlers.worked_ns();
        let evicted = evicted(indexes);
        watch.begin_measuring();
        phase(Phase::Run, load.ops)?;
        let cost = Snapshot::of(&self.sim.counters()).since(&before);
        stop.set(true);
        let nanos = self.sim.now_ns() - began_ns;
        let threads = self.config.memory_servers * self.handlers.threads.get();
        let worked_ns = self.handlers.worked_ns() - worked_ns;
        let handlers_busy = worked_ns as f64 / (nanos.max(1) as f64 * threads as f64);
        let evicted = self::evicted(indexes) - evicted;
        Ok(Measured { ops: load.ops, nanos, cost, handlers_busy, evicted })
    }

    /// Runs a workload on caches of the partitions that are empty before it, and closed after it.
    ///
    /// # Errors
    /// As [`World::open`], [`World::run`] and [`World::close`].
    pub(super) fn run_dex(&self, options: DexOptions, load: &Load) -> Result<Measured, ReproError> {
        let caches = self.open(options)?;
        let measured = self.run(&as_indexes(&caches), load)?;
        self.close(caches)?;
        Ok(measured)
    }

    /// Counts the items, of those written under a watch, with a value that shows a lost
    /// acknowledged write.
    ///
    /// # Errors
    /// The engine's.
    pub(super) fn lost(&self, index: &DexTable, watch: &Watch) -> Result<u64, ReproError> {
        let session = &self.sessions[0];
        let reading = async {
            let (mut lost, mut key, mut value) = (0, Vec::new(), Vec::new());
            for (step, (item, versions)) in watch.written().into_iter().enumerate() {
                self.data.keys.write_key(item, &mut key).map_err(BenchError::from)?;
                let failed = |source| ReproError::Operation { kind: "get", source };
                let is_there = index.get(session, &key, &mut value).await.map_err(failed)?;
                let version = version_of(&self.data.values, item, &value).filter(|_| is_there);
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

    /// Runs the maintenance of every session until the returned cell is set.
    fn maintain(&self) -> Rc<Cell<bool>> {
        let stop = Rc::new(Cell::new(false));
        for (thread, session) in self.sessions.iter().enumerate() {
            let (stop, session) = (Rc::clone(&stop), session.clone());
            let first_ns = TICK_NS * thread as u64 / self.sessions.len() as u64;
            self.sim.spawn(thread % self.config.compute_servers, async move {
                let endpoint = session.endpoint();
                endpoint.sleep(first_ns).await;
                while !stop.get() {
                    // The next round makes up for a round that fails.
                    let _ = session.tick().await;
                    endpoint.sleep(TICK_NS).await;
                }
            });
        }
        stop
    }

    /// Records a hash over every event and effect so far.
    pub(super) fn record_hash(&self, report: &mut ReproReport) {
        // As text: numbers beyond 2^53 do not survive every reader of JSON.
        report.set("trace_hash", format!("{:016x}", self.sim.trace_hash()));
    }
}

/// The caches as tables of any engine.
pub(super) fn as_indexes(caches: &[DexTable]) -> Vec<AnyIndex> {
    caches.iter().cloned().map(AnyIndex::Dex).collect()
}

/// Frames that the caches among `indexes` have evicted so far.
fn evicted(indexes: &[AnyIndex]) -> u64 {
    let of = |index: &AnyIndex| match index {
        AnyIndex::Dex(table) => table.tree().stats().evicted,
        _ => 0,
    };
    indexes.iter().map(of).sum()
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
