//! Lab: what the tree has, and the seeded bugs and settings of ownership.

use farleaf_fabric::canary::{DELIVER_TWICE, LOST_IS_NOT_BEGUN};
use farleaf_index::blink::LeafRule;
use farleaf_index::blink::canaries::{MERGE_ACROSS_BOUND, OPEN_UNFINISHED};
use farleaf_index::compute::canaries::{FORWARD_UNCHECKED, GIVE_UNDRAINED};
use farleaf_index::lab::{CrashState, Hunt, Lab, LabSize, Variant, changes};
use farleaf_index::remote_lock::END_TURN_EARLY;
use farleaf_index::{IndexError, Settings, Spec, Stored, TableReport, TableSpec};
use farleaf_pool::Session;
use farleaf_pool::canary::SKIP_FENCE;
use fastrand::Rng;

use super::PSherman;
use crate::sherman::{Sherman, ShermanShape, lab, open_tree, without_copies};

/// Owners that stand still for longer than their lease, and go on.
const STOPPED: &[(&str, &str)] = &[
    ("workload", "hot"),
    ("compute-servers", "2"),
    ("clients", "4"),
    ("keys", "20"),
    ("ops", "150"),
    ("event", "stop:1@20000,resume:1@900000,stop:0@1500000,resume:0@2400000"),
    ("faults", "lease=50000,shuffle=1,late=0.3,late-ns=100000"),
];

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
        // An owner holds no remote lock: the dead must wake and write what is another's by then.
        let shared = lab::hunts().into_iter().filter(|hunt| hunt.canary.name != SKIP_FENCE.name);
        let stopped = Hunt::with(&SKIP_FENCE, STOPPED);
        shared.chain(of_owners.map(Hunt::any)).chain([stopped]).collect()
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
        farleaf_index::blink::lab::cases(true)
    }

    /// Cost: as [`Sherman`]'s.
    async fn age(session: &Session, table: &Stored<ShermanShape>) -> Result<(), IndexError> {
        let tree = open_tree(session, table, &without_copies(), LeafRule::Shared).await?;
        tree.age(session).await
    }
}
