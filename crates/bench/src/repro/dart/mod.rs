//! DART: the experiments of its paper, with every engine beside it on the same keys.

mod ablation;
mod locks;
mod memory;
mod skip_table;
mod sweeps;
mod ycsb;

use farleaf_index::knobs::CACHE;

use super::{Repro, Spec, driver, error, papers, report};
use crate::keys::KeySpec;

/// The paper's own engine.
const DART: &str = "dart";
/// The radix tree that the paper compares itself with.
const SMART: &str = "smart";
/// The radix tree that it begins from.
const ART: &str = "art";
/// The systems that the paper compares itself with on random keys. Others stand in rows of their own.
const PAPER_OTHERS: [&str; 4] = ["sherman", "chime", "dex", SMART];
/// The paper's B+-trees, and ours without a cache.
const B_TREES: [&str; 5] = ["btree", "dex", "sherman", "chime", "p-sherman"];

/// Kinds of keys, by the paper's names.
fn keys() -> [(&'static str, KeySpec); 2] {
    [("randint", KeySpec::Randint), ("email", KeySpec::Email)]
}

/// The experiments.
pub(super) const SPECS: &[Spec] = &[
    Spec::of_all_engines(
        "dart-table1",
        "DART, Table 1: writes of plain ART with node locks and without, every engine",
        "writes of plain ART with node locks and without, beside every engine",
        &[CACHE, "node_locks"],
        locks::run,
    ),
    Spec::of_all_engines(
        "dart-table2",
        "DART, Table 2: memory beside keys and values, every engine",
        "memory beside keys and values",
        &[CACHE],
        memory::run,
    ),
    Spec::of_all_engines(
        "dart-fig6",
        "DART, Figure 6: throughput and latency of YCSB, every engine",
        "throughput and latency of YCSB's workloads",
        &[CACHE],
        ycsb::throughput,
    ),
    Spec::of_all_engines(
        "dart-fig7",
        "DART, Figure 7: round trips and bytes of YCSB, every engine",
        "round trips and bytes of YCSB's workloads",
        &[CACHE],
        ycsb::costs,
    ),
    Spec::of_all_engines(
        "dart-fig8",
        "DART, Figure 8: the gain of each technique",
        "throughput, round trips and bytes as the techniques come together",
        &[CACHE, "buckets", "compound_pointers", "est", "node_locks"],
        ablation::run,
    ),
    Spec::of_all_engines(
        "dart-fig9",
        "DART, Figure 9: throughput and memory over the size of a bucket",
        "throughput and memory over the size of a bucket",
        &[CACHE, "bucket_bytes"],
        sweeps::buckets,
    ),
    Spec::of_all_engines(
        "dart-fig10",
        "DART, Figure 10: maintenance of the skip table beside inserts",
        "gets of new keys beside inserts, with and without maintenance of the skip table",
        &[CACHE, "est_maintenance"],
        skip_table::maintenance,
    ),
    Spec::of_all_engines(
        "dart-fig11",
        "DART, Figure 11: prefix lengths before, during and after their adjustment",
        "gets before, during and after the choice of prefix lengths",
        &[CACHE, "adjust_s", "freq_sample"],
        skip_table::adjustment,
    ),
    Spec::of_all_engines(
        "dart-fig12",
        "DART, Figure 12: scans over their length, every engine",
        "scans over their length, 5 % inserts",
        &[CACHE],
        sweeps::scans,
    ),
    Spec::of_all_engines(
        "dart-fig13",
        "DART, Figure 13: gets over the size of the cache, every engine",
        "gets over the size of the cache",
        &[CACHE],
        sweeps::caches,
    ),
    Spec::of_all_engines(
        "dart-fig14",
        "DART, Figure 14: updates and gets over skew, every engine",
        "gets and updates half and half over skew",
        &[CACHE],
        sweeps::skews,
    ),
    Spec::of_all_engines(
        "dart-fig15",
        "DART, Figure 15: updates and gets over clients, every engine",
        "gets and updates half and half over clients",
        &[CACHE],
        sweeps::clients,
    ),
];

/// The least and the most of some gains; `None` without any.
fn ends(gains: &[(String, f64)]) -> Option<[f64; 2]> {
    let least = gains.iter().map(|it| it.1).reduce(f64::min)?;
    let most = gains.iter().map(|it| it.1).reduce(f64::max)?;
    Some([least, most])
}
