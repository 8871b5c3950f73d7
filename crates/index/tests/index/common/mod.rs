//! Test pools: pools on every fabric for the suites.
#![allow(dead_code, unreachable_pub, reason = "each suite uses its part")]

pub mod clients;
pub mod model;

use std::future::Future;
use std::sync::Arc;

use farleaf_fabric::mapped::Mapped;
use farleaf_fabric::sim::{Sim, SimConfig};
use farleaf_fabric::tcp::{MemoryServer, MemoryServerConfig, Tcp, TcpConfig};
use farleaf_fabric::{AnyEndpoint, Client, Endpoint, Fabric, OpKind, ServerId, Snapshot, Words};
use farleaf_index::bnode::{KeyFormat, ValueFormat};
use farleaf_index::dex::offload::{OFFLOAD_SERVICE, OffloadService};
use farleaf_index::knobs::CACHE;
use farleaf_index::{
    AnyIndex, Engine, Index, NodeRoom, OpenOptions, Settings, SortedPairs, StoredTable,
    TableFormat, TableReport,
};
use farleaf_pool::{Audit, AuditReport, Pool, PoolOptions, Session, format};

/// A pool of `servers` regions of `region_bytes`.
#[derive(Clone, Copy, Debug)]
pub struct World {
    pub servers: usize,
    pub region_bytes: u64,
    pub block_bytes: u64,
    pub seed: u64,
}

impl Default for World {
    fn default() -> Self {
        World { servers: 2, region_bytes: 32 << 20, block_bytes: 256 << 10, seed: 1 }
    }
}

impl World {
    pub fn pool_options(&self) -> PoolOptions {
        PoolOptions { block_bytes: self.block_bytes, clients_max: 64, ..PoolOptions::default() }
    }

    /// Runs `test` with one session on mapped memory.
    pub fn on_mapped<F: Future<Output = ()>>(self, test: impl FnOnce(Session) -> F) {
        let fabric = Mapped::anonymous(self.servers, self.region_bytes).expect("memory");
        fabric.serve(OFFLOAD_SERVICE, offload_service());
        let endpoint = fabric.any_endpoint().expect("endpoint");
        endpoint.seed(self.seed);
        let executor = endpoint.executor().clone();
        executor.block_on(async { test(start(endpoint, &self.pool_options()).await).await });
    }

    /// Runs `test` with one session on memory servers of this process, over loopback.
    pub fn on_tcp<F: Future<Output = ()>>(self, test: impl FnOnce(Session) -> F) {
        let sizes = vec![self.region_bytes; self.servers];
        self.on_tcp_of(&sizes, test);
    }

    /// As [`World::on_tcp`], on memory servers of these sizes.
    pub fn on_tcp_of<F: Future<Output = ()>>(self, sizes: &[u64], test: impl FnOnce(Session) -> F) {
        let servers: Vec<MemoryServer> = (0..)
            .zip(sizes)
            .map(|(server, bytes)| {
                let words = Words::anonymous((bytes / 8) as usize).expect("memory");
                let config = MemoryServerConfig {
                    server: ServerId(server),
                    servers: sizes.len(),
                    ..MemoryServerConfig::default()
                };
                let server = MemoryServer::start(config, Arc::new(words)).expect("a memory server");
                server.serve(OFFLOAD_SERVICE, offload_service());
                server
            })
            .collect();
        let config = TcpConfig::to(servers.iter().map(MemoryServer::address));
        let fabric = Tcp::connect(config).expect("connected");
        let endpoint = fabric.any_endpoint().expect("endpoint");
        endpoint.seed(self.seed);
        let executor = endpoint.executor().clone();
        executor.block_on(async { test(start(endpoint, &self.pool_options()).await).await });
    }

    pub fn sim_config(&self) -> SimConfig {
        SimConfig {
            seed: self.seed,
            memory_servers: self.servers,
            region_bytes: self.region_bytes,
            ..SimConfig::default()
        }
    }

    /// Runs `test` with one session in the simulator, READs and WRITEs torn.
    pub fn on_sim<F: Future<Output = ()> + 'static>(
        self,
        test: impl FnOnce(Session) -> F + 'static,
    ) {
        let mut config = self.sim_config();
        config.adversary.torn = 0.5;
        // Handlers see completed operations.
        config.capabilities.cpu_visible = true;
        let sim = Sim::new(config).expect("sim");
        sim.fabric(0).serve(OFFLOAD_SERVICE, offload_service());
        let endpoint = sim.fabric(0).any_endpoint().expect("endpoint");
        let options = self.pool_options();
        sim.block_on(async move { test(start(endpoint, &options).await).await })
            .expect("the simulation ends");
    }
}

/// The service that memory servers run for the engine `dex`.
pub fn offload_service() -> Arc<OffloadService> {
    Arc::new(OffloadService::new(1, None))
}

/// Formats the pool and joins it.
pub async fn start(endpoint: AnyEndpoint, options: &PoolOptions) -> Session {
    let client = Client::new(endpoint.clone());
    format(&client, options).await.expect("format");
    join(endpoint).await
}

/// Joins as one more compute server.
pub async fn join(endpoint: AnyEndpoint) -> Session {
    let pool = Pool::join(&Client::new(endpoint.clone())).await.expect("join");
    // A node that is read after it was freed is no node of any engine.
    pool.poison_freed();
    pool.session(endpoint).await.expect("session")
}

/// Makes a table and opens it.
pub async fn create(session: &Session, name: &str, format: &TableFormat) -> AnyIndex {
    AnyIndex::create(session, name, format).await.expect("create");
    open(session, name).await
}

/// Opens a table, with a cache that holds some of it.
pub async fn open(session: &Session, name: &str) -> AnyIndex {
    let root = session.open_root(name).await.expect("root");
    let table = StoredTable::of(&root).expect("table");
    let cache_bytes = 96 * table.format().node_bytes();
    let settings = Settings::default().with(CACHE, &cache_bytes.to_string());
    let settings = table.format().engine.known(&settings);
    let options = OpenOptions { settings, ..OpenOptions::default() };
    AnyIndex::open(session, &root, &options).await.expect("open")
}

/// Formats that the suites run on, by name, with every engine; `FARLEAF_ENGINE=dart` leaves one.
pub fn engine_formats() -> Vec<(&'static str, TableFormat)> {
    formats_of(&chosen(|_| true))
}

/// The formats alone, for suites of engines that bring their own.
pub fn formats() -> Vec<(&'static str, TableFormat)> {
    formats_of(&[Engine::BTree])
}

/// As [`engine_formats`], with the engines of [`shared_engines`].
pub fn shared_formats() -> Vec<(&'static str, TableFormat)> {
    formats_of(&shared_engines())
}

/// The engines whose compute servers need nothing of each other. The others have suites of their own for many
/// compute servers.
pub fn shared_engines() -> Vec<Engine> {
    chosen(|engine| grows(engine) && !engine.traits().owned)
}

/// Whether a change touches a few nodes of a table of many.
pub fn grows(engine: Engine) -> bool {
    engine.traits().splits || engine.traits().radix
}

/// The engines whose tables grow node by node.
pub fn growing_engines() -> Vec<Engine> {
    chosen(grows)
}

fn chosen(with: impl Fn(Engine) -> bool) -> Vec<Engine> {
    let only = std::env::var("FARLEAF_ENGINE").ok();
    let engines = Engine::ALL.iter().copied();
    engines.filter(|it| with(*it) && only.as_deref().is_none_or(|name| it.name() == name)).collect()
}

pub fn formats_of(engines: &[Engine]) -> Vec<(&'static str, TableFormat)> {
    let mut formats = Vec::new();
    for engine in engines.iter().copied() {
        let tiny = TableFormat {
            cap_leaf: Some(4),
            cap_inner: Some(3),
            node_bytes: Some(256),
            ..TableFormat::fixed8(engine)
        };
        let bytes = TableFormat { engine, ..TableFormat::default() };
        formats.push(("u64 tiny", tiny));
        formats.push(("u64 1 KiB", TableFormat::fixed8(engine)));
        formats.push((
            "16 to 24",
            TableFormat {
                key: KeyFormat::Fixed(16),
                value: ValueFormat::Fixed(24),
                node_bytes: Some(512),
                ..tiny
            },
        ));
        formats.push((
            "short bytes tiny",
            TableFormat {
                key: KeyFormat::Bytes { max: 40 },
                node_bytes: Some(256),
                cap_leaf: Some(4),
                cap_inner: Some(3),
                ..bytes
            },
        ));
        formats
            .push(("bytes tiny", TableFormat { cap_leaf: Some(3), cap_inner: Some(2), ..bytes }));
        formats.push(("bytes", bytes));
        formats.push((
            "odd fixed",
            TableFormat { key: KeyFormat::Fixed(5), value: ValueFormat::Fixed(3), ..bytes },
        ));
        if engine.can_reserve() {
            let nodes = NodeRoom::Reserve;
            formats.push(("u64 reserved", TableFormat { nodes, ..tiny }));
            formats.push(("bytes reserved", TableFormat { nodes, ..bytes }));
        }
    }
    formats
}

/// A key that the format takes, of one of the awkward shapes.
pub fn key(format: &TableFormat, rng: &mut fastrand::Rng, space: u64) -> Vec<u8> {
    match format.key {
        KeyFormat::Fixed(bytes) => {
            let number = match rng.u8(..8) {
                0 => 0,
                1 => u64::MAX,
                2 => u64::MAX - rng.u64(..3),
                _ => rng.u64(..space).wrapping_mul(0x9e37_79b9_7f4a_7c15 >> rng.u32(..2)),
            };
            let mut key = number.to_be_bytes().to_vec();
            key.resize(bytes, rng.u8(..2) * 0xff);
            key
        }
        KeyFormat::Bytes { max } => {
            let number = rng.u64(..space);
            let mut key = match rng.u8(..9) {
                0 => Vec::new(),
                1 => vec![0; (number as usize * 7) % (max + 1)],
                2 => vec![0xff; (number as usize * 5) % (max + 1)],
                3 => number.to_string().into_bytes(),
                4 => format!("{number:x}").repeat(3).into_bytes(),
                5 => {
                    // Long, alike for long, and as long as can be.
                    let mut key = vec![b'a' + (number % 2) as u8; max - 2];
                    key.extend_from_slice(&(number as u16).to_be_bytes());
                    key
                }
                6 => {
                    let mut key = vec![b'p'; (number % 11) as usize];
                    key.extend_from_slice(&[0, (number % 3) as u8]);
                    key
                }
                _ => format!("user:{number:06}/name").into_bytes(),
            };
            key.truncate(max);
            key
        }
    }
}

/// A value that the format takes; now and then one that is too long for a leaf.
pub fn value(format: &TableFormat, rng: &mut fastrand::Rng) -> Vec<u8> {
    let bytes = match format.value {
        ValueFormat::Fixed(bytes) => bytes,
        ValueFormat::Bytes => match rng.u8(..40) {
            0 => rng.usize(..20_000),
            1..4 => rng.usize(..2_000),
            4..10 => rng.usize(..200),
            _ => rng.usize(..20),
        },
    };
    let first = rng.u8(..);
    (0..bytes).map(|at| first.wrapping_add(at as u8)).collect()
}

/// Pairs from a slice.
pub struct Pairs<'a>(pub std::slice::Iter<'a, (Vec<u8>, Vec<u8>)>);

impl SortedPairs for Pairs<'_> {
    fn next(&mut self) -> Option<(&[u8], &[u8])> {
        self.0.next().map(|(key, value)| (key.as_slice(), value.as_slice()))
    }
}

/// Lets every retired object be reclaimed.
pub async fn settle(session: &Session) {
    assert!(session.finish_tasks().await, "the tasks of operations end");
    for _ in 0..8 {
        session.tick().await.expect("tick");
    }
}

/// Walks table and pool; everything must be in order and accounted for.
pub async fn check<I: Index>(session: &Session, tables: &[&I]) -> TableReport {
    settle(session).await;
    let (reports, audit) = audit(session, tables).await;
    assert_eq!(audit.problems, Vec::<String>::new());
    assert!(audit.closes(), "handed out = live + free + retired does not hold: {audit:#?}");
    reports.into_iter().next().unwrap_or_default()
}

pub async fn audit<I: Index>(session: &Session, tables: &[&I]) -> (Vec<TableReport>, AuditReport) {
    let mut audit = Audit::new(session).await.expect("audit");
    let mut reports = Vec::new();
    for table in tables {
        let report = table.verify(session, &mut audit).await.expect("verify");
        assert_eq!(report.problems, Vec::<String>::new());
        reports.push(report);
    }
    (reports, audit.report(session).await.expect("report"))
}

/// The cost so far of everything that went through this session's endpoint.
pub fn costs(session: &Session) -> Snapshot {
    session.endpoint().counters().snapshot()
}

/// The cost of `kind` since `before`.
pub fn cost_since(session: &Session, before: &Snapshot, kind: OpKind) -> farleaf_fabric::Cost {
    costs(session).since(before).kind(kind)
}

pub const SERVER: ServerId = ServerId(0);
