//! DART: the experiments of its paper, with every engine beside it on the same keys.

mod ablation;
mod locks;
mod memory;
mod skip_table;
mod sweeps;
mod ycsb;

use farleaf_index::knobs::CACHE;

use super::{
    ReproOptions, Spec,
    driver::{self, Curves, Driver, Heading},
    error::{self, ReproError},
    papers::{self, DartPaper},
    report,
};
use crate::{keys::KeySpec, run::Progress};

/// The paper's own engine.
const DART: &str = "dart";
/// The radix tree that the paper compares itself with.
const SMART: &str = "smart";
/// The radix tree that it begins from.
const ART: &str = "art";
/// The paper's B+-trees, and ours without a cache.
const B_TREES: [&str; 5] = ["btree", "dex", "sherman", "chime", "p-sherman"];

const SMALLER: &str = "at this scale the cache holds more of the tree than the paper's";

/// Kinds of keys, by the paper's names.
fn keys() -> [(&'static str, KeySpec); 2] {
    [("randint", KeySpec::Randint), ("email", KeySpec::Email)]
}

/// The experiments.
pub(super) const SPECS: &[Spec] = &[
    Spec::of_all_engines(
        "dart-table1",
        "DART, Table 1: writes of plain ART with node locks and without, every engine",
        &[CACHE, "node_locks"],
        locks::run,
    ),
    Spec::of_all_engines(
        "dart-table2",
        "DART, Table 2: memory beside keys and values, every engine",
        &[CACHE],
        memory::run,
    ),
    Spec::of_all_engines(
        "dart-fig6",
        "DART, Figure 6: throughput and latency of YCSB, every engine",
        &[CACHE],
        ycsb::throughput,
    ),
    Spec::of_all_engines(
        "dart-fig7",
        "DART, Figure 7: round trips and bytes of YCSB, every engine",
        &[CACHE],
        ycsb::costs,
    ),
    Spec::of_all_engines(
        "dart-fig8",
        "DART, Figure 8: the gain of each technique",
        &[CACHE, "buckets", "compound_pointers", "est", "node_locks"],
        ablation::run,
    ),
    Spec::of_all_engines(
        "dart-fig9",
        "DART, Figure 9: throughput and memory over the size of a bucket",
        &[CACHE, "bucket_bytes"],
        sweeps::buckets,
    ),
    Spec::of_all_engines(
        "dart-fig10",
        "DART, Figure 10: upkeep of the skip table beside inserts",
        &[CACHE, "est_maintenance"],
        skip_table::upkeep,
    ),
    Spec::of_all_engines(
        "dart-fig11",
        "DART, Figure 11: prefix lengths before, during and after their adjustment",
        &[CACHE, "adjust_s", "freq_sample"],
        skip_table::adjustment,
    ),
    Spec::of_all_engines(
        "dart-fig12",
        "DART, Figure 12: scans over their length, every engine",
        &[CACHE],
        sweeps::scans,
    ),
    Spec::of_all_engines(
        "dart-fig13",
        "DART, Figure 13: gets over the size of the cache, every engine",
        &[CACHE],
        sweeps::caches,
    ),
    Spec::of_all_engines(
        "dart-fig14",
        "DART, Figure 14: updates and gets over skew, every engine",
        &[CACHE],
        sweeps::skews,
    ),
    Spec::of_all_engines(
        "dart-fig15",
        "DART, Figure 15: updates and gets over clients, every engine",
        &[CACHE],
        sweeps::clients,
    ),
];

/// Begins a report on the paper's cluster.
///
/// # Errors
/// `Scale`, `TooSmall`, `Figures`.
fn begin<'a>(
    name: &str,
    title: &str,
    options: &'a ReproOptions,
    progress: &'a dyn Progress,
) -> Result<(report::ReproReport, Driver<'a>, DartPaper), ReproError> {
    let paper = papers::dart()?;
    let heading = Heading { name, title, source: &paper.source };
    let (report, driver) = Driver::begin(heading, paper.setup.clone(), options, progress)?;
    Ok((report, driver, paper))
}

/// The paper's engine over each other one at a point of a chart.
fn gains(curves: &Curves, at: &str) -> Vec<(String, f64)> {
    let Some(own) = curves.at(DART, at) else { return Vec::new() };
    let others = curves.across(at).filter(|(name, other)| *name != DART && *other > 0.0);
    others.map(|(name, other)| (name.to_owned(), own / other)).collect()
}

/// The least and the most of some gains; `None` without any.
fn ends(gains: &[(String, f64)]) -> Option<[f64; 2]> {
    let least = gains.iter().map(|it| it.1).reduce(f64::min)?;
    let most = gains.iter().map(|it| it.1).reduce(f64::max)?;
    Some([least, most])
}
