//! DEX, Figure 8: what each technique adds, one after the other.

use farleaf_engines::{
    AnyIndex,
    btree::BTree,
    dex::{DexOptions, offload::Offload},
};
use farleaf_index::BlinkOptions;

use super::{
    Repro, driver,
    error::ReproError,
    papers::{self, DexPaper},
    report::ReproReport,
    setup,
    world::{Load, Measured, World},
};
use crate::{distribution::RequestDistribution, workload::Workload};

/// The smallest scale at which 1 % of the data is more than the least cache.
pub(super) const SCALE_MIN: f64 = 0.01;
/// Nodes of the least cache for each client: a path, and two more.
const PATH_NODES: u64 = 8;
/// Clients of the paper's comparison at two threads: here one of each compute server.
const FEW_CLIENTS: usize = 4;
/// Steps without a real cache need neither a long warm-up nor many operations.
const UNCACHED_SHARE: u64 = 10;

const SIM_THROUGHPUT: &str = "throughput is the simulator's: cards and links like the paper's, and 400 ns of \
    processor time for each operation";

/// The reason why offloading may gain something else than it does in the paper.
pub(super) const OFFLOADING: &str = "what a request costs a memory server's thread is the simulator's: 550 \
    to 1,250 ns, by the nodes that are looked at; the paper does not say what it takes there";

pub(super) fn run(repro: &Repro<'_>, report: &mut ReproReport) -> Result<(), ReproError> {
    let (paper, options) = (papers::papers()?.dex, repro.options);
    let world = setup::begin(repro, report, &paper, setup::Added::default())?;
    let computes = paper.setup.compute_servers as u64;
    let paths = paper.setup.threads as u64 / computes * PATH_NODES;
    let least = paths * world.layout.node_bytes() as u64;
    let cache = options.scaled(paper.fig8.cache_bytes);
    let ops = options.scaled(paper.setup.warmup_ops);
    report.set("workload", "write-intensive");
    report.set("cache_bytes", cache);
    report.set("least_cache_bytes", least);
    report.set("local_ns", paper.setup.cached_page_access_ns);
    report.set("ops", ops);
    report.set("uncached_ops", ops / UNCACHED_SHARE);
    report.set("offload", "adaptive, in the last step");
    let steps = Steps { world: &world, paper: &paper, ops };
    let distributions = [
        ("skewed", RequestDistribution::Zipfian { theta: paper.setup.zipf_theta }),
        ("uniform", RequestDistribution::Uniform),
    ];
    // The base comes first: once the tree is partitioned, btree does not own it any more.
    let few = steps.base(distributions[0].1, Some(FEW_CLIENTS))?;
    let bases = distributions.map(|(_, request)| steps.base(request, None));
    world.partition()?;
    let path = DexOptions { cache_bytes: least, ..setup::with_settings(options)? };
    let caching = DexOptions { cache_bytes: cache, ..path };
    let offloading = DexOptions { offload: Offload::Adaptive, ..caching };
    let few_ops = ops / UNCACHED_SHARE;
    let few_cut = steps.dex(distributions[0].1, path, few_ops, Some(FEW_CLIENTS))?;
    add_step(report, "4 clients, base (btree)", &few);
    add_step(report, "4 clients, + partitioning", &few_cut);
    for ((name, request), base) in distributions.into_iter().zip(bases) {
        let cut = steps.dex(request, path, few_ops, None)?;
        let cached = steps.dex(request, caching, ops, None)?;
        let offloaded = steps.dex(request, offloading, ops, None)?;
        add_step(report, &format!("{name}, base (btree)"), &base?);
        add_step(report, &format!("{name}, + partitioning"), &cut);
        add_step(report, &format!("{name}, + cache"), &cached);
        let published = paper.fig8.cache_gain.get(&request_name(request)).copied();
        let why = format!(
            "the step before has {paths} frames on each compute server, one path for each client, \
             which keep the upper levels cached, so that there is less left to gain; {SIM_THROUGHPUT}"
        );
        let gain = cached.mops() / cut.mops();
        report.gain(
            &format!("{name}, + cache"),
            "gain over the step before",
            published,
            gain,
            &why,
        );
        let published = paper.fig8.offloading_gain.get(&request_name(request)).copied();
        let off = format!("{name}, + offloading");
        add_step(report, &off, &offloaded);
        report.row(&off, "RPCs /op", None, offloaded.per_op().rpcs, "");
        report.row(&off, "memory servers' threads busy", None, offloaded.handlers_busy, "");
        let gain = offloaded.mops() / cached.mops();
        report.gain(&off, "gain over the step before", published, gain, OFFLOADING);
    }
    let gain = few_cut.mops() / few.mops();
    let why = format!(
        "two threads of one machine there, one client of each of {computes} compute servers here; \
         {SIM_THROUGHPUT}"
    );
    let published = Some(paper.fig8.partitioning_gain_2_threads);
    report.gain("4 clients, + partitioning", "gain over the step before", published, gain, &why);
    world.record_hash(report);
    Ok(())
}

/// The name of a distribution in the paper's figures.
fn request_name(request: RequestDistribution) -> String {
    match request {
        RequestDistribution::Uniform => "uniform".to_owned(),
        _ => "zipfian".to_owned(),
    }
}

fn add_step(report: &mut ReproReport, case: &str, measured: &Measured) {
    report.row(case, "Mops", None, measured.mops(), "");
    report.row(case, "remote operations /op", None, measured.verbs_per_op(), "");
}

/// Runner of the steps.
struct Steps<'a> {
    world: &'a World<'a>,
    paper: &'a DexPaper,
    ops: u64,
}

impl Steps<'_> {
    fn load(
        &self,
        request: RequestDistribution,
        [warmup, ops]: [u64; 2],
        clients: Option<usize>,
    ) -> Result<Load, ReproError> {
        let workload = Workload { request, ..driver::workload("write-intensive")? };
        let local_ns = self.paper.setup.cached_page_access_ns;
        Ok(Load { workload, warmup, ops, local_ns, clients })
    }

    /// Every client works on the whole tree.
    fn base(
        &self,
        request: RequestDistribution,
        clients: Option<usize>,
    ) -> Result<Measured, ReproError> {
        let tree = BTree::open(self.world.meta, self.world.layout, BlinkOptions::default());
        let indexes = vec![AnyIndex::BTree(tree); self.paper.setup.compute_servers];
        let ops = self.ops / UNCACHED_SHARE;
        self.world.run(&indexes, &self.load(request, [ops / 10, ops], clients)?)
    }

    /// Each compute server has a partition and a cache.
    fn dex(
        &self,
        request: RequestDistribution,
        options: DexOptions,
        ops: u64,
        clients: Option<usize>,
    ) -> Result<Measured, ReproError> {
        self.world.run_dex(options, &self.load(request, [ops, ops], clients)?)
    }
}
