//! Lab: what the tree has, and the seeded bugs and settings of ownership.

use farleaf_fabric::canary::{DELIVER_TWICE, LOST_IS_NOT_BEGUN};
use farleaf_index::blink::LeafRule;
use farleaf_index::blink::canaries::{MERGE_ACROSS_BOUND, OPEN_UNFINISHED};
use farleaf_index::compute::canaries::{FORWARD_UNCHECKED, GIVE_UNDRAINED};
use farleaf_index::lab::{CrashState, Hunt, Lab, LabSize, Variant, changes};
use farleaf_index::remote_lock::END_TURN_EARLY;
use farleaf_index::{IndexError, Settings, Spec, Stored, TableReport, TableSpec};
use farleaf_pool::Session;
use fastrand::Rng;

use super::PSherman;
use crate::sherman::{Sherman, ShermanShape, lab, open_tree, without_copies};

impl Lab for PSherman {
    const REDO_BYTES: u32 = <Sherman as Lab>::REDO_BYTES;

    fn hunts() -> Vec<Hunt> {
        let of_owners = [
            &LOST_IS_NOT_BEGUN,
            &DELIVER_TWICE,
            &FORWARD_UNCHECKED,
            &GIVE_UNDRAINED,
            &MERGE_ACROSS_BOUND,
            &OPEN_UNFINISHED,
            &END_TURN_EARLY,
        ];
        lab::hunts().into_iter().chain(of_owners.map(Hunt::any)).collect()
    }

    fn shape(size: LabSize, spec: &Spec) -> ShermanShape {
        <Sherman as Lab>::shape(size, spec)
    }

    fn variants() -> &'static [Variant] {
        lab::VARIANTS
    }

    fn draw(rng: &mut Rng, _table: &TableSpec<ShermanShape>) -> Settings {
        lab::draw_shared(rng)
    }

    fn is_change(name: &str, before: &TableReport, after: &TableReport) -> bool {
        changes::in_btree(name, before, after)
    }

    fn cases() -> Vec<(&'static str, CrashState)> {
        <Sherman as Lab>::cases()
    }

    /// Cost: as [`Sherman`]'s.
    async fn age(session: &Session, table: &Stored<ShermanShape>) -> Result<(), IndexError> {
        let tree = open_tree(session, table, &without_copies(), LeafRule::Shared).await?;
        tree.age(session).await
    }
}
