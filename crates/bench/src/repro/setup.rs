//! The paper's set-up at a scale.

use farleaf_fabric::OpKind;
use farleaf_index::dex::{DexOptions, Durability};

use super::{
    ReproOptions,
    error::ReproError,
    papers::DexPaper,
    report::ReproReport,
    world::{World, WorldConfig},
};

/// The kinds of index operations that experiments make, as the fabric counts them.
pub(super) const OPERATIONS: [OpKind; 2] = [OpKind::Get, OpKind::Update];
/// Share of a node that the bulk load fills, as random inserts leave it.
const BULK_FILL: f64 = 0.7;

/// The engine as the paper has it: a compute server's death loses what it had not written back.
pub(super) fn as_in_the_paper() -> DexOptions {
    DexOptions { durability: Durability::Volatile, ..DexOptions::default() }
}

/// `size` at the scale.
pub(super) fn scaled(size: u64, options: &ReproOptions) -> u64 {
    (size as f64 * options.scale) as u64
}

/// # Errors
/// `Scale`, `TooSmall`.
pub(super) fn check_scale(
    options: &ReproOptions,
    least: f64,
    what: &str,
) -> Result<(), ReproError> {
    let scale = options.scale;
    if !(scale > 0.0 && scale <= 1.0) {
        return Err(ReproError::Scale { read: scale });
    }
    if scale < least {
        return Err(ReproError::TooSmall { scale, what: what.to_owned(), least });
    }
    Ok(())
}

/// DEX's cluster.
pub(super) fn world(paper: &DexPaper, options: &ReproOptions) -> WorldConfig {
    WorldConfig {
        keys: scaled(paper.setup.keys, options),
        seed: options.seed,
        compute_servers: paper.setup.compute_servers,
        memory_servers: paper.setup.memory_servers,
        threads: paper.setup.threads,
        bulk_fill: BULK_FILL,
    }
}

/// Says what was run.
pub(super) fn describe(
    report: &mut ReproReport,
    paper: &DexPaper,
    options: &ReproOptions,
    world: &World,
) {
    report.scale = options.scale;
    let config = &world.config;
    report.set("engine", "dex");
    report.set("fabric", "sim");
    report.set("seed", options.seed);
    report.set("keys", config.keys);
    report.set("key_bytes", paper.setup.key_bytes);
    report.set("value_bytes", paper.setup.value_bytes);
    report.set("data_bytes", world.data_bytes());
    report.set("compute_servers", config.compute_servers);
    report.set("memory_servers", config.memory_servers);
    report.set("clients", config.threads);
    report.set("node_bytes", world.layout.node_bytes());
    report.set("bulk_fill", config.bulk_fill);
    report.set("partitions", "of equal width, one for each compute server");
    report.set("offload", "none");
}
