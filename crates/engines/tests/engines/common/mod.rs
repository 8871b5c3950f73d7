//! Test pools: formats, keys and checks for the suites; the harness makes their pools.
#![allow(dead_code, unreachable_pub, reason = "each suite uses its part")]

pub mod clients;
pub mod model;
pub mod server;

use std::sync::Arc;

use farleaf_engines::dex::offload::OffloadService;
use farleaf_engines::{AnyIndex, Engine, TableFormat};
use farleaf_fabric::{AnyEndpoint, Endpoint, OpKind, ServerId, Snapshot};
use farleaf_index::{
    Index, IndexError, KeyFormat, Settings, SortedPairs, Spec, TableReport, ValueFormat,
};
use farleaf_pool::{AuditReport, PoolOptions, Session};

pub use farleaf_harness::{World, bnode_layout, lab_table, try_shape, with_shape};

/// The service that memory servers run for the engine `dex`.
pub fn offload_service() -> Arc<OffloadService> {
    Arc::new(OffloadService::new(1, None))
}

/// Formats the pool and joins it. A node that is read after it was freed is no node of any engine.
pub async fn start(endpoint: AnyEndpoint, options: &PoolOptions) -> Session {
    let session = farleaf_harness::make_pool(endpoint, options).await.expect("a pool");
    session.pool().poison_freed();
    session
}

/// Joins as one more compute server.
pub async fn join(endpoint: AnyEndpoint) -> Session {
    let session = farleaf_harness::join(endpoint).await.expect("join");
    session.pool().poison_freed();
    session
}

/// Makes a table and opens it.
pub async fn create(session: &Session, name: &str, format: &TableFormat) -> AnyIndex {
    let made =
        farleaf_harness::create_table(session, name, format, CACHE_NODES, &Settings::default())
            .await;
    made.expect("create")
}

/// Opens a table, with a cache that holds some of it.
pub async fn open(session: &Session, name: &str) -> AnyIndex {
    try_open(session, name).await.expect("open")
}

/// As [`open`], for members that may be fenced meanwhile.
pub async fn try_open(session: &Session, name: &str) -> Result<AnyIndex, IndexError> {
    farleaf_harness::open_table(session, name, CACHE_NODES, &Settings::default()).await
}

/// Lets the member have so many free objects of each of these bytes on each server: operations that are looked at take no
/// pages then.
pub async fn stock(session: &Session, sizes: &[usize], count: usize) {
    for server in (0..session.pool().geometry().servers() as u16).map(ServerId) {
        for bytes in sizes {
            let mut taken = Vec::new();
            for _ in 0..count {
                taken.push(session.alloc_on(server, *bytes).await.expect("memory"));
            }
            taken.into_iter().for_each(|addr| session.free_unpublished(addr, *bytes));
        }
    }
}

/// Nodes that caches hold.
const CACHE_NODES: u64 = 96;

/// The suites that all engines share, and that take formats by a cover ([`farleaf_harness::covers`]).
#[derive(Clone, Copy, Debug)]
pub enum Suite {
    RandomOnMapped,
    RandomOnSim,
    RandomOnTcp,
    BulkOnMapped,
    BulkOnSim,
    Clients,
    Death,
    LostOperations,
    DroppedCallers,
    Outage,
}

impl Suite {
    const COUNT: usize = Suite::Outage as usize + 1;

    /// The formats of `engine` that the suite goes through.
    pub fn formats_of(self, engine: Engine) -> Vec<(&'static str, TableFormat)> {
        let formats = formats_of(&[engine]);
        let (suite, count) = ((self as usize, Suite::COUNT), formats.len());
        let all = formats.into_iter().enumerate();
        all.filter(|(number, _)| farleaf_harness::covers(suite, engine, (*number, count)))
            .map(|(_, format)| format)
            .collect()
    }

    /// The formats that the suite goes through, with every engine; `FARLEAF_ENGINE=dart` leaves one.
    pub fn formats(self) -> Vec<(&'static str, TableFormat)> {
        chosen(|_| true).into_iter().flat_map(|engine| self.formats_of(engine)).collect()
    }

    /// As [`Suite::formats`], with the engines of [`shared_engines`].
    pub fn shared_formats(self) -> Vec<(&'static str, TableFormat)> {
        shared_engines().into_iter().flat_map(|engine| self.formats_of(engine)).collect()
    }
}

/// All formats, by name, with every engine; `FARLEAF_ENGINE=dart` leaves one.
pub fn engine_formats() -> Vec<(&'static str, TableFormat)> {
    formats_of(&chosen(|_| true))
}

/// The formats alone, for suites of engines that bring their own.
pub fn formats() -> Vec<(&'static str, TableFormat)> {
    formats_of(&[Engine::BTree])
}

/// The engines whose compute servers need nothing of each other. The others have suites of their own for many
/// compute servers.
pub fn shared_engines() -> Vec<Engine> {
    chosen(|engine| grows(engine) && !engine.traits().owned)
}

/// Returns whether a change touches a few nodes of a table of many.
pub fn grows(engine: Engine) -> bool {
    engine.grows()
}

/// Returns whether `engine` is a radix tree: its caches may be of any size, and its scans read the nodes on the way to each
/// pair.
pub fn is_radix(engine: Engine) -> bool {
    matches!(engine, Engine::Art | Engine::Dart | Engine::PSmart | Engine::Smart)
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
        let tiny = lab_table(engine, "u64-tiny");
        let bytes = lab_table(engine, "bytes");
        formats.push(("u64 tiny", tiny));
        formats.push(("u64 1 KiB", lab_table(engine, "u64")));
        formats.push(("16 to 24", lab_table(engine, "wide-tiny")));
        formats.push(("short bytes tiny", lab_table(engine, "short-tiny")));
        formats.push(("bytes tiny", lab_table(engine, "bytes-tiny")));
        formats.push(("bytes", bytes));
        formats.push(("odd fixed", lab_table(engine, "odd")));
        let (key, value) = (KeyFormat::Bytes { max: 40 }, ValueFormat::Fixed(8));
        let short = tiny.with_spec(Spec { key, value });
        let rooms = [
            ("u64 reserved", tiny, "reserve"),
            ("bytes reserved", bytes, "reserve"),
            ("u64 reverse", tiny, "reverse"),
            ("bytes reverse", short, "reverse"),
        ];
        for (name, format, nodes) in rooms {
            formats.extend(try_shape(format, "nodes", nodes).map(|format| (name, format)));
        }
    }
    formats
}

/// A key that the format takes, of one of the awkward shapes.
pub fn key(format: &TableFormat, rng: &mut fastrand::Rng, space: u64) -> Vec<u8> {
    match format.spec.key {
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
    let bytes = match format.spec.value {
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

/// Most times that `settle` waits for tasks of operations, each as long as the patience of a session lasts.
const TASK_WAITS: usize = 10;

/// Lets every retired object be reclaimed.
pub async fn settle(session: &Session) {
    let mut ended = session.finish_tasks().await;
    // On a busy machine, tasks over a real fabric outlast that patience.
    for _ in 1..TASK_WAITS {
        ended = ended || session.finish_tasks().await;
    }
    assert!(ended, "the tasks of operations end");
    farleaf_harness::settle(session).await.expect("ticks");
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
    let (reports, audit) = farleaf_harness::audit(session, tables).await.expect("a walk");
    for report in &reports {
        assert_eq!(report.problems, Vec::<String>::new());
    }
    (reports, audit)
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
