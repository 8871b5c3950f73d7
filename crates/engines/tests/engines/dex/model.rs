//! Model tests: `dex` against `BTreeMap`, one session, all operations, tiny nodes, the smallest cache.

use super::tables::{create, open, some_durability};
use crate::common::model::Run;
use crate::common::{World, bnode_layout, formats};
use farleaf_engines::TableFormat;
use farleaf_engines::dex::offload::Offload;
use farleaf_engines::dex::{Admission, DexOptions, DexTable};
use farleaf_pool::Session;

/// Of a new table, with a cache of `frames` nodes.
async fn run(
    session: Session,
    format: TableFormat,
    frames: u64,
    seed: u64,
    space: u64,
    offload: Offload,
) -> Run<DexTable> {
    // Some keep every leaf, some none, some those that are missed again.
    let admission = [Admission::LAZY, Admission::EAGER, Admission::Chance(0.0), Admission::Again]
        [seed as usize % 4];
    let options = DexOptions { admission, offload, ..DexOptions::default() };
    let options = some_durability(seed / 3, options);
    let index = open(&session, create(&session, &format).await, frames, options).await;
    Run::new(session, index, format, seed, space, |index| index.tree().check_cache())
}

async fn random_operations(
    session: Session,
    format: TableFormat,
    frames: u64,
    seed: u64,
    steps: usize,
    offload: Offload,
) {
    let mut run = run(session, format, frames, seed, 300, offload).await;
    run.random_operations(steps).await;
    let stats = run.index.tree().stats();
    println!("{frames} frames: {stats:?}");
    assert!(stats.splits > 0, "{stats:?}");
    check_offloads(&run.index, offload);
}

async fn bulk_then_random(
    session: Session,
    format: TableFormat,
    frames: u64,
    seed: u64,
    offload: Offload,
) {
    run(session, format, frames, seed, 2_000, offload).await.bulk_then_random(1_500, 1_500).await;
}

/// The smallest cache that these trees work with, a small one, and one that holds everything. A way
/// down and a split need the tree's height and 2 more frames; short separators and two of them to a
/// node make high trees.
fn caches(format: &TableFormat) -> [u64; 3] {
    let is_dense = bnode_layout(format).is_dense();
    [if is_dense { 8 } else { 16 }, 32, 2_000]
}

#[test]
fn random_operations_on_mapped() {
    for (at, (name, format)) in formats().into_iter().enumerate() {
        for (which, frames) in caches(&format).into_iter().enumerate() {
            let seed = (3 * at + which + at) as u64;
            println!("{name}, {frames} frames, seed {seed}");
            World::default().on_mapped(|session| {
                random_operations(session, format, frames, seed, STEPS_MAPPED, Offload::Never)
            });
        }
    }
}

#[test]
fn random_operations_on_sim() {
    for (at, (name, format)) in formats().into_iter().enumerate() {
        for (which, frames) in caches(&format).into_iter().enumerate() {
            let seed = 100 + (3 * at + which + at) as u64;
            println!("{name}, {frames} frames, seed {seed}");
            World::default().on_sim(move |session| {
                random_operations(session, format, frames, seed, STEPS_SIM, Offload::Never)
            });
        }
    }
}

#[test]
fn bulk_load_then_operations() {
    for (at, (name, format)) in formats().into_iter().enumerate() {
        for frames in [16, 64] {
            println!("{name}, {frames} frames");
            let seed = 200 + at as u64;
            let offload = [Offload::Never, Offload::Always][at % 2];
            World::default()
                .on_mapped(|session| bulk_then_random(session, format, frames, seed, offload));
            World::default()
                .on_sim(move |session| bulk_then_random(session, format, frames, seed, offload));
        }
    }
}

/// Memory servers have done something, and nothing that they must not.
fn check_offloads(index: &DexTable, offload: Offload) {
    let stats = index.tree().stats();
    let asked = stats.offload_ok + stats.offload_absent + stats.offload_exists;
    let odd = [stats.offload_refused, stats.offload_no_service, stats.offload_unknown];
    assert_eq!(odd, [0; 3], "{stats:?}");
    assert_eq!((stats.offload_wrong_fence, stats.offload_busy), (0, 0), "{stats:?}");
    if offload == Offload::Never {
        assert_eq!((asked, stats.offload_chosen), (0, 0), "{stats:?}");
    }
}

const MODES: [Offload; 3] = [Offload::Always, Offload::Ratio(0.3), Offload::Adaptive];

#[test]
fn random_operations_offloaded() {
    for (at, (name, format)) in formats().into_iter().enumerate() {
        for (which, offload) in MODES.into_iter().enumerate() {
            let seed = 400 + (3 * at + which) as u64;
            let frames = caches(&format)[which.min(1)];
            println!("{name}, {frames} frames, {offload}, seed {seed}");
            World::default().on_mapped(|session| {
                random_operations(session, format, frames, seed, STEPS_SIM, offload)
            });
            World::default().on_sim(move |session| {
                random_operations(session, format, frames, seed, STEPS_SIM, offload)
            });
        }
    }
}

#[test]
fn random_operations_offloaded_on_tcp() {
    let (_, format) = formats()[0];
    World::default()
        .on_tcp(|session| random_operations(session, format, 8, 500, STEPS_SIM, Offload::Always));
}

/// Steps for each of seven formats and three caches.
const STEPS_MAPPED: usize = 3_000;
const STEPS_SIM: usize = 1_500;
