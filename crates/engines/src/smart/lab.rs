//! Lab: the seeded bugs, crash cases and small tables of this engine, and the settings that the lab draws for it. Its
//! variants take what they share.

use farleaf_index::lab::{
    Action, CrashState, CrashStep, Hunt, Lab, LabSize, Order, Script, Variant, changes, choose,
    died_in, grow, keys, merges, node_inserts, shrink,
};
use farleaf_index::{Settings, Spec, TableReport, TableSpec};
use fastrand::Rng;

use super::delegation::JOIN_OPEN_READ;
use super::descent::{SKIP_BIRTH, TRUST_DEAD_NODE};
use super::leaf::{REVIVE_HEAD_FIRST, REWRITE_EQUAL_WORDS};
use super::locked::{LOCK_PROVES_NOTHING, LOSE_LEAF_REDO, RESEND_CONTENT, SEAL_LATE};
use super::ops::BELIEVE_CACHED_ABSENCE;
use super::outcome::REPOST_SLOT_CAS;
use super::paper::lab::{RESERVING, REVERSING};
use super::relocate::{COPY_UNFROZEN, MOVE_UNMARKED};
use super::takeover::TAKE_OVER_UNRECORDED;
use super::unlink::{FREE_SLOT, UNLINK_UNLOCKED};
use super::{FirstSlots, NodeRoom, Smart, SmartShape, paper};

/// A key that leaves what a radix tree's nodes compress of the keys beside it.
const APART: u32 = 70_000;

/// The variants that each engine with this tree has.
pub(crate) const VARIANTS: &[Variant] = &[RESERVING];

/// Objects come and go, and their addresses are used again while caches lead there.
const REUSE: &[(&str, &str)] = &[
    ("workload", "churn"),
    ("set", "unlink_batch=1,cache=256MiB"),
    ("compute-servers", "3"),
    ("memory-servers", "1"),
    ("keys", "5|20|60|150"),
    ("ops", "200"),
    ("think-ns", "4000"),
];
/// Clients of one compute server on the same keys.
const HOT: &[(&str, &str)] = &[
    ("workload", "hot"),
    ("set", "read_delegation=strict,write_combining=true"),
    ("compute-servers", "2"),
    ("clients", "8"),
];

/// Seeded bugs of the tree.
///
/// One bug has no canary: a pool that reuses an object in the epoch in which it was retired, where no member has a
/// pin. Births would not tell the new object from the old one then. But a tick moves the epoch on before it frees: it
/// does so at once if no member is pinned, and all that is made afterwards is born later. The bug would need a tick
/// whose CAS of the epoch is lost just then, and a cached pointer of that one epoch; thousands of seeds do not meet it.
/// The pool's bound on reuse rules it out (`Pool::reuse_bound`, INV-EPOCH-6).
pub(crate) fn hunts() -> Vec<Hunt> {
    vec![
        Hunt::any(&BELIEVE_CACHED_ABSENCE),
        Hunt::with(&SKIP_BIRTH, REUSE),
        Hunt::any(&REWRITE_EQUAL_WORDS),
        Hunt::any(&LOCK_PROVES_NOTHING),
        Hunt::at(&LOSE_LEAF_REDO, "records/update"),
        Hunt::any(&RESEND_CONTENT),
        Hunt::at(&TAKE_OVER_UNRECORDED, "records/takeover-update"),
        Hunt::at(&REVIVE_HEAD_FIRST, "records/revive"),
        Hunt::any(&FREE_SLOT),
        Hunt::any(&UNLINK_UNLOCKED),
        Hunt::any(&MOVE_UNMARKED),
        Hunt::any(&COPY_UNFROZEN),
        Hunt::any(&TRUST_DEAD_NODE),
        Hunt::any(&REPOST_SLOT_CAS),
        Hunt::with(&JOIN_OPEN_READ, HOT),
        Hunt::with(&SEAL_LATE, HOT),
    ]
    .into_iter()
    .chain(paper::lab::hunts())
    .collect()
}

/// Returns the shape of that size: the smallest nodes if it is tiny.
pub(crate) fn shape(size: LabSize) -> SmartShape {
    match size {
        LabSize::Tiny => SmartShape { first_slots: FirstSlots::Six, ..SmartShape::default() },
        LabSize::Small | LabSize::Usual => SmartShape::default(),
    }
}

/// Crash cases of the tree.
pub(crate) fn cases() -> Vec<(&'static str, CrashState)> {
    let in_place = grow("node-grows-in-place", Order::Up).of_variants();
    let smaller = shrink(14, "node-shrinks", Order::Up);
    let in_update = |action| died_in(Action::Update(60), action);
    let revive = CrashState::new(Script::Without(12, 60), CrashStep::Do(Action::Insert(60)));
    let mut cases = merges("leaf-merge");
    cases.extend(node_inserts());
    cases.extend([
        ("insert-edge-split", keys(12, Action::Insert(APART)).of_variants()),
        // Leaves of keys that the actor removes stay linked.
        ("revive", CrashState { settings: "unlink_batch=64", ..revive }),
        ("node-grows-in-place", in_place),
        ("node-grows-in-place-cold", in_place.cold()),
        ("node-grows-in-place-own", in_place.by_actor()),
        ("remove-smaller-node", smaller),
        ("remove-smaller-node-own", smaller.by_actor()),
        ("remove-collapse-to-leaf", shrink(14, "node-collapses", Order::Up)),
        ("remove-collapse-to-node", shrink(26, "node-collapses", Order::Down)),
        ("recover-smaller-node", smaller.recovered(0)),
        ("recover-update", in_update(Action::Recover)),
        ("takeover-update", in_update(Action::Update(60))),
        ("takeover-remove", in_update(Action::Remove(60))),
        ("takeover-get", in_update(Action::Get(60))),
    ]);
    cases
}

impl Lab for Smart {
    const UNLINKS_LATER: bool = true;

    fn hunts() -> Vec<Hunt> {
        hunts()
    }

    fn shape(size: LabSize, _spec: &Spec) -> SmartShape {
        shape(size)
    }

    fn variants() -> &'static [Variant] {
        &[RESERVING, REVERSING]
    }

    fn draw(rng: &mut Rng, table: &TableSpec<SmartShape>) -> Settings {
        let settings = draw(rng);
        if table.shape.nodes == NodeRoom::Reverse {
            settings.with("leaf", "in-place")
        } else {
            settings
        }
    }

    fn is_change(name: &str, before: &TableReport, after: &TableReport) -> bool {
        changes::in_radix(name, before, after)
    }

    fn cases() -> Vec<(&'static str, CrashState)> {
        cases()
    }
}

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
    settings
        .with("cache_index", choose(rng, &["radix", "radix", "hash"]))
        .with("hand_over", choose(rng, &["0", "0", "1", "8"]))
}
