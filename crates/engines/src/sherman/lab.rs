//! Lab: the engine's settings for runs of the lab, and its seeded bugs.

use farleaf_index::Settings;
use farleaf_index::engine::choose;
use farleaf_pool::canary::Canary;
use fastrand::Rng;

/// Seeded bugs that the lab hunts with this engine.
pub(super) const CANARIES: &[Canary] = &[
    Canary::UnlockBeforeWrite,
    Canary::AnswerBeforeWrite,
    Canary::SeparatorUnchecked,
    Canary::UnlockRightEarly,
    Canary::ForgetRetire,
    Canary::SkipCoverCheck,
    Canary::ScanBack,
    Canary::StealLock,
    Canary::SkipFence,
    Canary::ResendBlindly,
    Canary::SkipBirth,
    Canary::MissUnchecked,
    Canary::HandBeforeCompletion,
    Canary::BuildClearsTorn,
    Canary::BuildKeepsTorn,
    Canary::LoseLeafRedo,
];

/// Draws settings for one run.
pub(super) fn draw(rng: &mut Rng) -> Settings {
    Settings::default()
        .with("cache", choose(rng, &["0", "2KiB", "16KiB", "256MiB", "256MiB"]))
        .with("hand_over", choose(rng, &["0", "1", "8", "8"]))
        .with("hand_image", choose(rng, &["true", "true", "false"]))
        .with("combine_lock", choose(rng, &["true", "true", "false"]))
        .with("write_back", choose(rng, &["entry", "entry", "node"]))
        .with("read", choose(rng, &["guard", "guard", "guard", "locked3"]))
        .with("scan_batch", choose(rng, &["1", "3", "16"]))
        .with("bulk_fill", choose(rng, &["0.3", "0.7", "1.0"]))
        .with("lock_words", choose(rng, &["1", "64", "4096", "4096"]))
}
