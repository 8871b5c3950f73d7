//! Lab: what the tree has, and the seeded bugs and settings of ownership.

use farleaf_fabric::canary::{DELIVER_TWICE, LOST_IS_NOT_BEGUN};
use farleaf_index::lab::{CrashState, Hunt, Lab, LabSize, Variant, changes, choose};
use farleaf_index::{Settings, Spec, TableReport, TableSpec};
use fastrand::Rng;

use super::PSmart;
use super::tree::KEEP_EXACT_ENTRIES;
use crate::smart::{BELIEVE_OLD_READ, STORE_LEAF_BESIDE, SmartShape, WRITE_SLOT_BESIDE, lab};

impl Lab for PSmart {
    const UNLINKS_LATER: bool = true;

    fn hunts() -> Vec<Hunt> {
        let of_owners = [
            &LOST_IS_NOT_BEGUN,
            &DELIVER_TWICE,
            &BELIEVE_OLD_READ,
            &KEEP_EXACT_ENTRIES,
            &WRITE_SLOT_BESIDE,
            &STORE_LEAF_BESIDE,
        ];
        lab::hunts().into_iter().chain(of_owners.map(Hunt::any)).collect()
    }

    fn shape(size: LabSize, _spec: &Spec) -> SmartShape {
        lab::shape(size)
    }

    fn variants() -> &'static [Variant] {
        lab::VARIANTS
    }

    fn draw(rng: &mut Rng, _table: &TableSpec<SmartShape>) -> Settings {
        let writes = ["exclusive", "exclusive", "exclusive", "shared"];
        lab::draw_shared(rng).with("owner_writes", choose(rng, &writes))
    }

    fn is_change(name: &str, before: &TableReport, after: &TableReport) -> bool {
        changes::in_radix(name, before, after)
    }

    fn cases() -> Vec<(&'static str, CrashState)> {
        lab::cases()
    }
}
