//! SMART: the experiments of its paper, with every engine beside it on the same keys.

mod amplification;
mod ladders;
mod throughput;

use farleaf_index::knobs::CACHE;

use super::{Repro, Spec, driver, error, papers, report};

/// The paper's own engine.
const SMART: &str = "smart";
/// The B+-tree that the paper compares itself with.
const SHERMAN: &str = "sherman";
/// Settings that the ladders choose.
const SWITCHES: [&str; 10] = [
    CACHE,
    "node_locks",
    "types",
    "leaf",
    "lock",
    "hand_over",
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
        "bytes moved for each byte of a pair of 16 bytes, gets and updates half and half",
        &[CACHE],
        amplification::run,
    ),
    Spec::of_all_engines(
        "smart-throughput",
        "SMART, Figure 11: throughput and latency of YCSB over clients, every engine",
        "throughput and latency of YCSB's workloads over clients",
        &[CACHE],
        throughput::run,
    ),
    Spec::of_all_engines(
        "smart-factors",
        "SMART, Figure 15: the gain of each technique over plain ART",
        "throughput as the techniques come together",
        &SWITCHES,
        ladders::factors,
    ),
    Spec::of_all_engines(
        "smart-locks",
        "SMART, Figure 16: locks in a table, in leaves, and fewer of them",
        "locks, gets and updates half and half",
        &SWITCHES,
        ladders::locks,
    ),
    Spec::of_all_engines(
        "smart-cache",
        "SMART, Figure 17: node types and the cache's index over the size of the cache",
        "gets of email keys over the size of the cache",
        &SWITCHES,
        ladders::caches,
    ),
];
