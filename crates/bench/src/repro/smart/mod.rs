//! SMART: the experiments of its paper, with every engine beside it on the same keys.

mod amplification;
mod ladders;
mod throughput;

use farleaf_index::knobs::CACHE;

use super::{
    ReproOptions, Spec,
    driver::{self, Curves, Driver, Heading},
    error::{self, ReproError},
    papers::{self, SmartPaper},
    report,
};
use crate::run::Progress;

/// The paper's own engine.
const SMART: &str = "smart";
/// The radix tree that it begins from.
const ART: &str = "art";
/// The B+-tree that the paper compares itself with.
const SHERMAN: &str = "sherman";
/// Settings that the ladders choose.
const SWITCHES: [&str; 9] = [
    CACHE,
    "node_locks",
    "types",
    "leaf",
    "lock",
    "read_delegation",
    "write_combining",
    "batch_limit",
    "cache_index",
];

/// The experiments.
pub(super) const SPECS: &[Spec] = &[
    Spec::of_all_engines(
        "smart-amplification",
        "SMART, section 3: bytes moved for each byte of a pair, every engine",
        &[CACHE],
        amplification::run,
    ),
    Spec::of_all_engines(
        "smart-throughput",
        "SMART, Figure 11: throughput and latency of YCSB over clients, every engine",
        &[CACHE],
        throughput::run,
    ),
    Spec::of_all_engines(
        "smart-factors",
        "SMART, Figure 15: the gain of each technique over plain ART",
        &SWITCHES,
        ladders::factors,
    ),
    Spec::of_all_engines(
        "smart-locks",
        "SMART, Figure 16: locks in a table, in leaves, and fewer of them",
        &SWITCHES,
        ladders::locks,
    ),
    Spec::of_all_engines(
        "smart-cache",
        "SMART, Figure 17: node types and the cache's index over the size of the cache",
        &SWITCHES,
        ladders::caches,
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
) -> Result<(report::ReproReport, Driver<'a>, SmartPaper), ReproError> {
    let paper = papers::smart()?;
    let heading = Heading { name, title, source: &paper.source };
    let (report, driver) = Driver::begin(heading, paper.setup.clone(), options, progress)?;
    Ok((report, driver, paper))
}

/// Over each other engine at a point of a chart.
fn gains(curves: &Curves, at: &str) -> Vec<(String, f64)> {
    let Some(own) = curves.at(SMART, at) else { return Vec::new() };
    let others = curves.across(at).filter(|(name, other)| *name != SMART && *other > 0.0);
    others.map(|(name, other)| (name.to_owned(), own / other)).collect()
}
