//! Lab: the seeded bugs of this engine, and the settings that the lab draws for its tables.

use farleaf_index::Settings;
use farleaf_index::engine::choose;
use farleaf_pool::canary::Canary;
use fastrand::Rng;

/// Seeded bugs that the lab hunts with this engine.
///
/// One bug has no canary: a pool that reuses an object in the epoch in which it was retired, where no member has a
/// pin. Births would not tell the new object from the old one then. But a tick moves the epoch on before it frees: it
/// does so at once if no member is pinned, and all that is made afterwards is born later. The bug would need a tick
/// whose CAS of the epoch is lost just then, and a cached pointer of that one epoch; thousands of seeds do not meet it.
/// The pool's bound on reuse rules it out (`Pool::reuse_bound`, INV-EPOCH-6).
pub(crate) const CANARIES: &[Canary] = &[
    Canary::BelieveCachedAbsence,
    Canary::SkipBirth,
    Canary::RewriteEqualWords,
    Canary::LockProvesNothing,
    Canary::LoseLeafRedo,
    Canary::ResendContent,
    Canary::TakeOverUnrecorded,
    Canary::ReviveHeadFirst,
    Canary::FreeSlot,
    Canary::UnlinkUnlocked,
    Canary::MoveUnmarked,
    Canary::CopyUnfrozen,
    Canary::TrustDeadNode,
    Canary::RepostSlotCas,
    Canary::JoinOpenRead,
    Canary::SealLate,
    Canary::GrowUnhelped,
];

/// Settings for one run of the lab, of a tree with owners or without: caches that run full, short windows, leaves that are unlinked at
/// once, and operations that are done together or each by itself.
pub(crate) fn draw_shared(rng: &mut Rng) -> Settings {
    Settings::default()
        .with("cache", choose(rng, &["0", "2KiB", "16KiB", "256MiB", "256MiB"]))
        .with("scan_window", choose(rng, &["1", "3", "32"]))
        .with("unlink_batch", choose(rng, &["1", "1", "4", "64"]))
        .with("read_delegation", choose(rng, &["strict", "strict", "strict", "off"]))
        .with("write_combining", choose(rng, &["true", "true", "true", "false"]))
        .with("batch_limit", choose(rng, &["0", "2", "8"]))
}

/// Settings for one run of the lab: those of [`draw_shared`], and steps of the ladder switched off.
pub(super) fn draw(rng: &mut Rng) -> Settings {
    let mut settings = draw_shared(rng)
        .with("leaf", choose(rng, &["in-place", "in-place", "in-place", "replaced"]))
        .with("lock", choose(rng, &["rear", "rear", "rear", "table"]))
        .with("node_locks", choose(rng, &["off", "off", "off", "node", "path"]))
        .with("types", choose(rng, &["fine", "fine", "fine", "4-16-48-256"]));
    if rng.u8(..8) == 0 {
        settings = settings.with("types", "whole");
    }
    settings.with("cache_index", choose(rng, &["radix", "radix", "hash"]))
}
