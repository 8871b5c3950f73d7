//! Lab: the seeded bugs, crash cases and small tables of this engine, and the settings that the lab draws for it.

use farleaf_index::blink::canaries::{
    ANSWER_BEFORE_WRITE, BELIEVE_OLD_POINTER, FORGET_RETIRE, LOSE_LEAF_REDO, SCAN_BACK,
    SEPARATOR_UNCHECKED, SKIP_COVER_CHECK, UNLOCK_BEFORE_WRITE, UNLOCK_RIGHT_EARLY,
};
use farleaf_index::blink::{LeafRule, lab};
use farleaf_index::bnode::canaries::{BUILD_CLEARS_TORN, BUILD_KEEPS_TORN, MISS_UNCHECKED};
use farleaf_index::lab::{CrashState, Hunt, Lab, LabSize, Variant, changes, choose};
use farleaf_index::remote_lock::{LOSE_CHOSEN_TURN, PASS_WHEN_POSTED, RESEND_BLINDLY};
use farleaf_index::{IndexError, Settings, Spec, Stored, TableReport, TableSpec};
use farleaf_pool::Session;
use farleaf_pool::canary::SKIP_FENCE;
use fastrand::Rng;

use super::{Sherman, ShermanShape, open_tree, without_copies};

pub(crate) const VARIANTS: &[Variant] = &[Variant::WIDE];

/// Seeded bugs that show whether ranges of keys have owners or not.
pub(crate) fn hunts() -> Vec<Hunt> {
    let any = [
        &UNLOCK_BEFORE_WRITE,
        &ANSWER_BEFORE_WRITE,
        &SEPARATOR_UNCHECKED,
        &UNLOCK_RIGHT_EARLY,
        &FORGET_RETIRE,
        &SKIP_COVER_CHECK,
        &SCAN_BACK,
        &SKIP_FENCE,
        &RESEND_BLINDLY,
        &MISS_UNCHECKED,
    ];
    let mut hunts = any.map(Hunt::any).to_vec();
    hunts.extend([
        Hunt::at(&BUILD_CLEARS_TORN, "u64-tiny/update"),
        Hunt::at(&BUILD_KEEPS_TORN, "u64-tiny/insert"),
        // Values of several words stand in slots of leaves.
        Hunt::at(&LOSE_LEAF_REDO, "wide/update"),
    ]);
    hunts
}

/// Settings of a run that a variant has as well.
pub(crate) fn draw_shared(rng: &mut Rng) -> Settings {
    Settings::default()
        .with("cache", choose(rng, &["0", "2KiB", "16KiB", "256MiB", "256MiB"]))
        .with("hand_over", choose(rng, &["0", "1", "8", "8"]))
        .with("hand_image", choose(rng, &["true", "true", "false"]))
        .with("combine_lock", choose(rng, &["true", "true", "false"]))
        .with("write_back", choose(rng, &["entry", "entry", "node"]))
        .with("scan_batch", choose(rng, &["1", "3", "16"]))
        .with("bulk_fill", choose(rng, &["0.3", "0.7", "1.0"]))
        .with("lock_words", choose(rng, &["1", "64", "4096", "4096"]))
}

impl Lab for Sherman {
    // A record may hold an inner node and two leaves.
    const REDO_BYTES: u32 = 4 << 10;

    fn hunts() -> Vec<Hunt> {
        let mut hunts = hunts();
        hunts.extend([&PASS_WHEN_POSTED, &LOSE_CHOSEN_TURN].map(Hunt::any));
        // A client dies in a split before anything leads to the new leaf, whose memory another's copy still leads to.
        hunts.push(Hunt::at(&BELIEVE_OLD_POINTER, "u64-tiny/insert-split-reused"));
        hunts
    }

    fn shape(size: LabSize, spec: &Spec) -> ShermanShape {
        let nodes = lab::shape(size, spec);
        ShermanShape {
            node_bytes: nodes.node_bytes,
            cap_leaf: nodes.cap_leaf,
            cap_inner: nodes.cap_inner,
            ..ShermanShape::default()
        }
    }

    fn variants() -> &'static [Variant] {
        VARIANTS
    }

    fn draw(rng: &mut Rng, _table: &TableSpec<ShermanShape>) -> Settings {
        let reads = ["guard", "guard", "guard", "locked3"];
        draw_shared(rng).with("read", choose(rng, &reads))
    }

    fn is_change(name: &str, before: &TableReport, after: &TableReport) -> bool {
        changes::in_btree(name, before, after)
    }

    fn cases() -> Vec<(&'static str, CrashState)> {
        let mut cases = lab::cases(true);
        cases.push(("insert-split-reused", lab::split_in_reused()));
        cases
    }

    /// Gives every node one of the last versions that there are.
    ///
    /// Cost: 3 READs and 1 WRITE for each node.
    async fn age(session: &Session, table: &Stored<ShermanShape>) -> Result<(), IndexError> {
        let tree = open_tree(session, table, &without_copies(), LeafRule::Shared).await?;
        tree.age(session).await
    }
}
