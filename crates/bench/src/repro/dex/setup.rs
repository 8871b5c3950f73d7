//! Set-up: the paper's set-up at a scale.

use farleaf_engines::Engine;
use farleaf_engines::dex::{Admission, Dex, DexOptions, DexTable, Durability, JoinOptions};
use farleaf_index::bnode::{BnodeShape, Layout};
use farleaf_index::{Index, Knobs, Spec};

use super::{
    Repro, ReproOptions, driver,
    error::ReproError,
    papers::DexPaper,
    report::ReproReport,
    slices::{self, Testbed},
    world::{Load, World, WorldConfig},
};
use crate::run::{BenchError, Progress, sorted::SortedItems};

/// Share of a node that the bulk load fills, as random inserts leave it.
const BULK_FILL: f64 = 0.7;
/// Time that a line takes from one thread to another: 130 ns on a virtual machine with two processors of one socket, by
/// `cargo run --release -p farleaf-fabric --example handover`.
pub(super) const HANDOVER_NS: u64 = 130;
/// Entries of such a node, about.
const FANOUT: u64 = 41;
/// Subtrees on each memory server, at least.
const SUBTREES_EACH: u64 = 4;

/// Options of the paper's engine: the death of a compute server loses changes not yet written back.
pub(super) fn as_in_the_paper() -> DexOptions {
    let (durability, admission) = (Durability::Volatile, Admission::LAZY);
    DexOptions { durability, admission, ..DexOptions::default() }
}

/// Options of the paper's engine with the settings that the caller of the experiment chose.
///
/// # Errors
/// `Setting`.
pub(super) fn with_settings(options: &ReproOptions) -> Result<DexOptions, ReproError> {
    let mut dex = as_in_the_paper();
    // Others stand beside it in some experiments, with settings of their own.
    for (name, text) in Engine::Dex.known(&options.settings).iter() {
        dex.set(name, text).map_err(ReproError::Setting)?;
    }
    Ok(dex)
}

/// DEX's cluster.
pub(super) fn world(paper: &DexPaper, options: &ReproOptions) -> WorldConfig {
    let keys = options.scaled(paper.setup.keys);
    WorldConfig {
        keys,
        seed: options.seed,
        compute_servers: paper.setup.compute_servers,
        memory_servers: paper.setup.memory_servers,
        threads: paper.setup.threads,
        spare_threads: 0,
        bulk_fill: BULK_FILL,
        handler_threads: (paper.setup.memory_threads / paper.setup.memory_servers).max(1),
        subtree_level: subtree_level(paper, keys),
        handover_ns: 0,
    }
}

/// The paper's level, or the highest below it with which every memory server has enough subtrees: a
/// smaller tree has fewer of one height.
fn subtree_level(paper: &DexPaper, keys: u64) -> u8 {
    let subtrees = |level: u8| keys / FANOUT.pow(u32::from(level) + 1);
    let enough = SUBTREES_EACH * paper.setup.memory_servers as u64;
    (1..=paper.setup.offload_level).rev().find(|level| subtrees(*level) >= enough).unwrap_or(1)
}

/// An experiment's additions to the paper's cluster.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Added {
    /// Threads beside the clients.
    pub(super) spare_threads: usize,
    /// Cost of a change of hands between threads of the lock of Cooling frames, if it has one.
    pub(super) handover_ns: Option<u64>,
}

/// Sets the paper's cluster up, loaded; the report records the parameters of the run.
///
/// # Errors
/// Those of [`World::new`].
pub(super) fn begin<'a>(
    repro: &Repro<'a>,
    report: &mut ReproReport,
    paper: &DexPaper,
    added: Added,
) -> Result<World<'a>, ReproError> {
    let config = WorldConfig {
        spare_threads: added.spare_threads,
        handover_ns: added.handover_ns.unwrap_or(0),
        ..world(paper, repro.options)
    };
    if let Some(handover_ns) = added.handover_ns {
        report.set("handover_ns", handover_ns);
    }
    report.source.clone_from(&paper.source);
    let world = World::new(config, repro.progress)?;
    let config = &world.config;
    report.set("engine", "dex");
    report.set("fabric", "sim");
    report.set("seed", config.seed);
    report.set("keys", config.keys);
    report.set("key_bytes", paper.setup.key_bytes);
    report.set("value_bytes", paper.setup.value_bytes);
    report.set("data_bytes", world.data_bytes());
    report.set("compute_servers", config.compute_servers);
    report.set("memory_servers", config.memory_servers);
    report.set("clients", config.threads);
    report.set("node_bytes", world.layout.node_bytes());
    report.set("bulk_fill", config.bulk_fill);
    report.set("subtree_level", config.subtree_level);
    report.set("partitions", "of equal width, one for each compute server");
    report.set("offload", "none");
    Ok(world)
}

/// A load of the built-in workload `name` with as many warm-up operations as measured ones, at the paper's cost for
/// its worker thread; the report records both.
///
/// # Errors
/// `Bench`.
pub(super) fn paced(
    report: &mut ReproReport,
    paper: &DexPaper,
    options: &ReproOptions,
    name: &str,
) -> Result<Load, ReproError> {
    let ops = options.scaled(paper.setup.warmup_ops);
    let local_ns = paper.setup.cached_page_access_ns;
    report.set("warmup_ops", ops);
    report.set("ops", ops);
    report.set("local_ns", local_ns);
    let workload = driver::workload(name)?;
    Ok(Load { workload, warmup: ops, ops, local_ns, clients: None })
}

/// Mapped memory for `keys` pairs of 8 + 8 bytes.
///
/// # Errors
/// `Bench`.
pub(super) fn testbed(keys: u64, options: &ReproOptions) -> Result<Testbed, ReproError> {
    Testbed::new(keys * 64 + (512 << 20), options.seed)
}

/// The geometry of tables of 8 + 8 bytes.
///
/// # Errors
/// `Bench`.
pub(super) fn layout() -> Result<Layout, ReproError> {
    BnodeShape::default()
        .layout(&Spec::FIXED8)
        .map_err(|error| BenchError::Table(error.into()).into())
}

/// Loads a table with `keys` pairs on mapped memory, and gets every item once for its cache.
///
/// # Errors
/// [`ReproError`].
pub(super) fn table_on(
    testbed: &Testbed,
    keys: u64,
    options: DexOptions,
    progress: &dyn Progress,
) -> Result<DexTable, ReproError> {
    let layout = layout()?;
    testbed.prepare(async |session| {
        let meta = Dex::create(session, &layout).await.map_err(BenchError::Load)?;
        let dex = Dex::open(session, meta, layout, options, JoinOptions::default()).await;
        let dex = dex.map_err(BenchError::Load)?;
        let mut pairs = slices::pairs(&slices::KEYS, keys, progress);
        dex.bulk_load(session, &mut pairs).await.map_err(BenchError::Load)?;
        pairs.finish().map_err(BenchError::from)?;
        slices::get_all(session, &dex, SortedItems::new(&slices::KEYS, keys)).await?;
        Ok(dex)
    })
}
