//! Local comparison: a cache that is larger than the data, beside trees in local memory.
//!
//! It shows the cost of remote memory that is not needed, on mapped memory with real threads.

use farleaf_engines::dex::DexOptions;

use super::{
    Repro,
    error::ReproError,
    local_tree::LocalTree,
    maps::{self, BenchMap, BenchTable, Side},
    papers::{self, DexPaper},
    report::ReproReport,
    setup,
    slices::{self, SlicePlan, THREADS, Testbed, Times, Work},
};
use crate::run::{Phase, Progress};

const KEYS: u64 = 10_000_000;
const FILL: f64 = 0.7;
const ROUNDS: usize = 100;
pub(super) const SCALE_MIN: f64 = 0.0001;

pub(super) fn run(repro: &Repro<'_>, report: &mut ReproReport) -> Result<(), ReproError> {
    let Repro { options, progress, .. } = *repro;
    let paper = papers::papers()?.dex;
    report.source.clone_from(&paper.source);
    let keys = options.scaled(KEYS);
    // Room for every node, half as many again.
    let cache_bytes = (keys * 16 * 2).max(1 << 20);
    let testbed = setup::testbed(keys, options)?;
    progress.begin(Phase::Load, keys * 3);
    let base = setup::with_settings(options)?;
    let dex = DexOptions { cache_bytes, bulk_fill: FILL, ..base };
    let (sides, local_nodes) = sides(&testbed, keys, dex, progress)?;
    report.set("engine", "dex");
    report.set("fabric", "mapped");
    report.set("seed", options.seed);
    report.set("keys", keys);
    report.set("distribution", "uniform");
    report.set("threads", THREADS);
    report.set("cache_bytes", cache_bytes);
    report.set("bulk_fill", FILL);
    report.set("local_nodes", local_nodes);
    report.set("slice_ops", slices::SLICE_OPS);
    report.set("rounds", ROUNDS);
    let mut verbs = 0;
    for work in [Work::Get, Work::Update] {
        let plan = SlicePlan {
            sides: sides.len(),
            rounds: ROUNDS,
            draw: &|rng| rng.u64(..keys),
            slice: &|side, thread, wanted| sides[side].map.slice(work, thread, wanted),
        };
        let times = testbed.measure(&plan, progress)?;
        verbs += times.cost.verbs();
        add(report, &paper, work, &sides, &times);
    }
    report.check("an operation on a warm cache does no remote operation", Some(verbs == 0));
    report.note(
        "Each row is the median over rounds; in a round every side runs for some milliseconds on \
         both threads at once, one side after the other. The share is by processor time, so that \
         what else runs on the machine does not count; Mops are by real time.",
    );
    Ok(())
}

fn add(report: &mut ReproReport, paper: &DexPaper, work: Work, sides: &[Side], times: &Times) {
    let name = work.name();
    let share = times.processor_ratio(0, 1);
    let published = (work == Work::Get).then_some(paper.local.share_of_local_tree);
    let why = "dex has the processor fetch what a search may touch, the local tree does not: see the next \
               row; and the smaller the trees, the more of them lies in the processor's caches, and the \
               more weighs what an operation does beside waiting for memory";
    report.row(name, "share of the local tree's throughput", published, share, why);
    let quantity = "share of a local tree's throughput that prefetches as dex does";
    report.row(name, quantity, None, times.processor_ratio(0, 2), "");
    if work == Work::Get {
        let least = paper.local.share_of_local_tree;
        // Smaller trees lie in the processor's cache, and so measure something else.
        report.bar(format!("get: at least {least} of the local tree's throughput"), share >= least);
    }
    for (at, side) in sides.iter().enumerate() {
        report.row(&format!("{name}, {}", side.name), "Mops", None, times.mops(at), "");
    }
    let (names, why) = maps::missing();
    for map in names {
        report.missing(&format!("{name}, {map}"), "Mops", None, why);
    }
}

/// The maps that take turns. The first three are the comparison, the others stand beside it.
fn sides(
    testbed: &Testbed,
    keys: u64,
    dex: DexOptions,
    progress: &dyn Progress,
) -> Result<(Vec<Side>, usize), ReproError> {
    let layout = setup::layout()?;
    let local = || {
        let mut pairs = slices::pairs(&slices::KEYS, keys, progress);
        LocalTree::build(layout, &mut pairs, keys, FILL)
            .ok_or_else(|| ReproError::Wrong("no memory for the local tree".to_owned()))
    };
    let dex = BenchTable(setup::table_on(testbed, keys, dex, progress)?);
    let plain = local()?;
    let nodes = plain.nodes();
    // A tree of its own: nodes of a shared one could still lie in the processor's caches.
    let prefetching = local()?;
    let mut sides = vec![
        Side::new("dex", Box::new(dex)),
        Side::new("local B+-tree, same nodes", local_side::<false>(plain)),
        Side::new("the same, prefetching", local_side::<true>(prefetching)),
    ];
    sides.extend(maps::all(keys));
    Ok((sides, nodes))
}

fn local_side<const PREFETCH: bool>(tree: LocalTree) -> Box<dyn BenchMap> {
    maps::local(
        tree,
        |tree, wanted| {
            let mut value = Vec::with_capacity(8);
            slices::count(wanted, |key, _| tree.get::<PREFETCH>(key, &mut value))
        },
        |tree, wanted| {
            slices::count(wanted, |key, item| tree.update::<PREFETCH>(key, &item.to_le_bytes()))
        },
    )
}
