//! Lab: what the tree has, and the settings that the lab draws for this engine.

use farleaf_index::lab::{CrashState, Lab, LabSize, Variant, changes, choose};
use farleaf_index::{Settings, Spec, TableReport, TableSpec};
use fastrand::Rng;

use super::Art;
use crate::smart::{NodeLocks, SmartShape, lab};

impl Lab for Art {
    const UNLINKS_LATER: bool = true;

    fn shape(size: LabSize, _spec: &Spec) -> SmartShape {
        lab::shape(size)
    }

    fn variants() -> &'static [Variant] {
        lab::VARIANTS
    }

    fn draw(rng: &mut Rng, _table: &TableSpec<SmartShape>) -> Settings {
        Settings::default()
            .with("cache", choose(rng, &["0", "2KiB", "64KiB", "16MiB"]))
            .with("node_locks", choose(rng, NodeLocks::WORDS))
            .with("scan_window", choose(rng, &["1", "3", "32"]))
            .with("unlink_batch", choose(rng, &["1", "4", "64"]))
    }

    fn is_change(name: &str, before: &TableReport, after: &TableReport) -> bool {
        changes::in_radix(name, before, after)
    }

    fn cases() -> Vec<(&'static str, CrashState)> {
        lab::cases()
    }
}
