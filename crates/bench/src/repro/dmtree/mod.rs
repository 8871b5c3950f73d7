//! DMTree: the experiments of its paper, with every engine beside it on the same keys.

mod cards;
mod ladder;
mod memory;
mod micro;
mod setup;
mod steps;
mod sweeps;
mod ycsb;

use farleaf_engines::Engine;
use farleaf_index::knobs::CACHE;

use super::{Kind, Repro, RunFn, Spec, driver, error, papers, report};
use crate::report::TimeKind;

/// The paper's own engine.
const DMTREE: &str = "dmtree";

/// 1 M pairs: leaves of the paper's shape, and a few waits of each of its 1,728 clients.
const SCALE: f64 = 0.001;
/// 200,000 pairs.
const SCALE_SMALL: f64 = 0.0002;

/// An experiment in virtual time.
const fn figure(
    name: &'static str,
    about: &'static str,
    title: &'static str,
    chosen: &'static [&'static str],
    run: RunFn,
) -> Spec {
    Spec {
        name,
        about,
        title,
        usual_scale: SCALE,
        small_scale: SCALE_SMALL,
        least: (driver::SCALE_MIN, "clients have no operations"),
        kind: Kind::Figure,
        time: TimeKind::Virtual,
        chosen,
        engines: Engine::ALL,
        run,
    }
}

/// The experiments.
pub(super) const SPECS: &[Spec] = &[
    figure(
        "dmtree-fig3",
        "DMTree, Figure 3: other systems' share of the expected throughput",
        "throughput beside what an operation's least number of remote operations allows",
        &[CACHE],
        micro::expected,
    ),
    figure(
        "dmtree-fig5",
        "DMTree, Figure 5: operations of cards in use during FP-B+-tree's inserts",
        "inserts of FP-B+-tree: operations of compute servers' cards and of the memory server's in use",
        &[CACHE],
        cards::baseline,
    ),
    figure(
        "dmtree-fig11",
        "DMTree, Figure 11: search, insert, update and scan over threads, uniform, every engine",
        "throughput of search, insert, update and scan over threads, uniform keys",
        &[CACHE],
        micro::uniform,
    ),
    figure(
        "dmtree-fig12",
        "DMTree, Figure 12: search, insert, update and scan over threads, skewed, every engine",
        "throughput of search, insert, update and scan over threads, zipfian keys",
        &[CACHE],
        micro::skewed,
    ),
    figure(
        "dmtree-fig13",
        "DMTree, Figure 13: P99 of search, insert, update and scan; batch limits of a hot key",
        "tail latency of search, insert, update and scan",
        &[CACHE, "batch_limit"],
        micro::tails,
    ),
    figure(
        "dmtree-fig14",
        "DMTree, Figure 14: throughput of YCSB, every engine",
        "throughput of YCSB's workloads",
        &[CACHE],
        ycsb::run,
    ),
    figure(
        "dmtree-table1",
        "DMTree, Table 1: parts of an operation's latency",
        "parts of an operation's latency",
        &[CACHE],
        steps::run,
    ),
    figure(
        "dmtree-memory",
        "DMTree, section 5.3: memory of a compute server and of the pool",
        "bytes of a key on a compute server and in the pool",
        &[CACHE, "replica"],
        memory::run,
    ),
    figure(
        "dmtree-fig15",
        "DMTree, Figure 15: search over the memory of a compute server",
        "search over the memory of a compute server",
        &[CACHE, "nodes"],
        sweeps::caches,
    ),
    figure(
        "dmtree-fig16",
        "DMTree, Figure 16: the gain of each technique over FP-B+-tree",
        "throughput as the techniques come together",
        &[CACHE, "filter", "delegate", "locks"],
        ladder::run,
    ),
    figure(
        "dmtree-fig17",
        "DMTree, Figure 17: operations of cards in use during inserts",
        "inserts: operations of compute servers' cards and of the memory server's in use",
        &[CACHE],
        cards::both,
    ),
    figure(
        "dmtree-fig18",
        "DMTree, Figure 18: YCSB A and scans over the size of a pair",
        "YCSB A and scans over the size of a pair",
        &[CACHE],
        sweeps::pairs,
    ),
    figure(
        "dmtree-fig19",
        "DMTree, Figure 19: scans and YCSB E over the length of scans",
        "scans and YCSB E over the length of scans",
        &[CACHE],
        sweeps::scans,
    ),
];
