//! Lab: the engine's settings for runs of the lab, and its seeded bugs.

use farleaf_index::Settings;
use farleaf_index::engine::choose;
use farleaf_pool::canary::Canary;
use fastrand::Rng;

/// Seeded bugs that the lab hunts with this engine.
pub(super) const CANARIES: &[Canary] = &[
    Canary::UnlockNewLeafEarly,
    Canary::OldTableKeepsVersion,
    Canary::ClearedSlotsKeepVersion,
    Canary::BuildClearsTorn,
    Canary::BuildKeepsTorn,
    Canary::MergeUnchecked,
    Canary::FreeLeafUncleared,
    Canary::BelieveOldHeader,
    Canary::ScanStale,
    Canary::ForgetRetire,
    Canary::LoseRedoRecord,
    Canary::UnlockRightEarly,
    Canary::LoseLeafRedo,
    Canary::TakeOverUnrecorded,
    Canary::JoinOpenRead,
    Canary::ResendBlindly,
];

/// Draws settings for one run.
pub(super) fn draw(rng: &mut Rng) -> Settings {
    Settings::default()
        .with("cache", choose(rng, &["0", "2KiB", "16KiB", "256MiB", "256MiB"]))
        .with("scan_window", choose(rng, &["1", "3", "16"]))
        .with("bulk_fill", choose(rng, &["0.3", "0.7", "1.0"]))
        .with("filter", choose(rng, &["true", "true", "false"]))
        .with("gap_join", choose(rng, &["0", "2"]))
        .with("delegate", choose(rng, &["true", "true", "false"]))
        .with("batch_limit", choose(rng, &["0", "2", "8"]))
        .with("merge", choose(rng, &["0", "0.4", "0.4"]))
}

/// Seeded bugs that the lab hunts with a table whose lines lie on compute servers.
pub(super) const HOMED_CANARIES: &[Canary] = &[];

/// As [`draw`], for a table whose lines lie on compute servers.
pub(super) fn draw_homed(rng: &mut Rng) -> Settings {
    draw(rng)
        .with("replica", choose(rng, &["true", "true", "false"]))
        .with("speculate", choose(rng, &["true", "false"]))
        .with("weight", choose(rng, &["1", "1", "2", "0"]))
}
