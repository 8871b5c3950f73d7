//! Lab: the seeded bugs of this engine, and the settings that the lab draws for its tables.

use farleaf_index::Settings;
use farleaf_index::engine::choose;
use farleaf_pool::canary::Canary;
use fastrand::Rng;

use crate::smart::lab;

/// Seeded bugs of ownership.
const OF_OWNERS: [Canary; 6] = [
    Canary::LostIsNotBegun,
    Canary::DeliverTwice,
    Canary::BelieveOldRead,
    Canary::KeepExactEntries,
    Canary::WriteSlotBeside,
    Canary::StoreLeafBeside,
];

/// Seeded bugs that the lab hunts with owners: those of the tree, and those of ownership.
pub(super) const CANARIES: &[Canary] = &{
    let mut all = [OF_OWNERS[0]; lab::CANARIES.len() + OF_OWNERS.len()];
    let (first, last) = all.split_at_mut(lab::CANARIES.len());
    first.copy_from_slice(lab::CANARIES);
    last.copy_from_slice(&OF_OWNERS);
    all
};

/// Settings for one run of the lab: those of the tree that this engine has, and the rights of an owner.
pub(super) fn draw(rng: &mut Rng) -> Settings {
    let writes = ["exclusive", "exclusive", "exclusive", "shared"];
    lab::draw_shared(rng).with("owner_writes", choose(rng, &writes))
}
