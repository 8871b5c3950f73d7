//! Lab: the seeded bugs, crash cases and small tables of this engine, and the settings that the lab draws for it.

use farleaf_fabric::canary::{FENCE_SKIPS_REGIONS, NUMBER_FOLLOWS_SLOT};
use farleaf_index::blink::canaries::{FORGET_RETIRE, LOSE_REDO_RECORD, UNLOCK_RIGHT_EARLY};
use farleaf_index::blink::lab;
use farleaf_index::bnode::BnodeShape;
use farleaf_index::compute::canaries::{
    ACK_UNDRAINED, IGNORE_TERM, MAP_BEFORE_ACK, OPEN_UNACKNOWLEDGED, OPEN_UNFINISHED,
    TWO_CONDUCTORS,
};
use farleaf_index::lab::{
    Action, CrashState, CrashStep, Hunt, Lab, LabSize, Order, Script, Variant, changes, choose,
    died_in, grow, keys, met, met_before, shrink,
};
use farleaf_index::remote_lock::RESEND_BLINDLY;
use farleaf_index::{Settings, Spec, TableReport, TableSpec};
use fastrand::Rng;

use super::delegation::JOIN_OPEN_READ;
use super::homed::DmTree;
use super::homed_options::DmTreeShape;
use super::homes::ANSWER_UNVOUCHED;
use super::locate::BELIEVE_OLD_HEADER;
use super::merge::{FREE_LEAF_UNCLEARED, MERGE_UNCHECKED};
use super::ops::{
    LOSE_LEAF_REDO, SLOT_BEFORE_LINE, SPECULATE_ABSENCE, SPECULATE_WITHOUT_EDITS,
    UNLOCK_BEFORE_SLOT,
};
use super::partitioned::MOVE_DROPS_LOCKS;
use super::proofs::{HEADER_PROVES_LEAF, REPLICA_PROVES_ABSENCE};
use super::rescue::{
    BUILD_CLEARS_TORN, BUILD_KEEPS_TORN, FORGET_UNLOCKED_REDO, FREE_RIGHT_ALONE, REDO_FINISHED,
    TAKE_OVER_UNRECORDED,
};
use super::scan::{SCAN_BY_REPLICA, SCAN_STALE};
use super::split::{CLEARED_SLOTS_KEEP_VERSION, OLD_TABLE_KEEPS_VERSION, UNLOCK_NEW_LEAF_EARLY};
use super::{FpTree, FpTreeShape};

/// Clients of one compute server on the same keys.
const HOT: &[(&str, &str)] = &[
    ("workload", "hot"),
    ("set", "delegate=true,batch_limit=8"),
    ("compute-servers", "2"),
    ("clients", "8"),
];
/// Updates of keys that others remove and insert again, by replicas.
const SPECULATING: &[(&str, &str)] = &[
    ("workload", "hot"),
    ("set", "replica=true,speculate=true,cache=256MiB,delegate=false"),
    ("compute-servers", "3"),
    ("clients", "6"),
];
/// Compute servers that join and take partitions, by copy, while others change the same few keys.
const JOINING: &[(&str, &str)] = &[
    ("workload", "hot"),
    ("set", "weight=1,move=copy"),
    ("compute-servers", "4"),
    ("clients", "8"),
    ("keys", "20"),
    ("ops", "60"),
    ("expose-kib", "1024"),
    ("event", "none"),
];
/// Settings of the survivor, the actor and the third compute server that put lines into the memory of one of them.
const AT_SURVIVOR: [&str; 3] = ["", "weight=0", "weight=0"];
const AT_ACTOR: [&str; 3] = ["", "weight=64", "weight=0"];
const AT_THIRD: [&str; 3] = ["weight=0", "weight=0", "weight=64"];
/// As `AT_THIRD`, with lines that were built before.
const COPIED_TO_THIRD: [&str; 3] = ["", "weight=0", "weight=64,move=copy"];
/// As `AT_ACTOR`, whose lines are copied when it opens or closes the table.
const COPIED: [&str; 3] = ["", "weight=64,move=copy", "weight=0"];
/// As `COPIED`; a third compute server takes the lines.
const COPIED_BESIDE: [&str; 3] = ["weight=0", "weight=64,move=copy", "weight=1"];
const BUILT_BESIDE: [&str; 3] = ["weight=0", "weight=64,move=build", "weight=1"];
/// A leaf's address is used again for another range while a compute server's cache leads there.
const REUSE: &[(&str, &str)] = &[
    ("format", "u64-tiny"),
    ("workload", "churn"),
    ("set", "cache=256MiB,merge=0.4"),
    ("compute-servers", "4"),
    ("clients", "4"),
    ("keys", "60|100|150|300"),
    ("memory-servers", "1"),
    ("ops", "400"),
    ("think-ns", "2000"),
    ("event", "none"),
];

impl Lab for FpTree {
    // Leaves, lines and the nodes above have size classes of their own, and redo records as well.
    const SERVER_BYTES: u64 = 1536 << 10;
    const REDO_BYTES: u32 = 4 << 10;

    fn hunts() -> Vec<Hunt> {
        vec![
            // A client with the old record looks for a key that another inserts into the new leaf.
            Hunt::at(&UNLOCK_NEW_LEAF_EARLY, "u64-tiny/insert-leaf-split-watched"),
            Hunt::any(&OLD_TABLE_KEEPS_VERSION),
            Hunt::any(&CLEARED_SLOTS_KEEP_VERSION),
            Hunt::at(&BUILD_CLEARS_TORN, "u64-tiny/update"),
            Hunt::at(&BUILD_KEEPS_TORN, "u64-tiny/insert"),
            Hunt::any(&MERGE_UNCHECKED),
            Hunt::any(&FREE_LEAF_UNCLEARED),
            Hunt::with(&BELIEVE_OLD_HEADER, REUSE),
            Hunt::any(&SCAN_STALE),
            Hunt::any(&FORGET_RETIRE),
            Hunt::any(&LOSE_REDO_RECORD),
            Hunt::any(&UNLOCK_RIGHT_EARLY),
            // Values of several words stand in slots of leaves.
            Hunt::at(&LOSE_LEAF_REDO, "wide/update"),
            Hunt::at(&TAKE_OVER_UNRECORDED, "wide/takeover-update"),
            Hunt::with(&JOIN_OPEN_READ, HOT),
            Hunt::any(&RESEND_BLINDLY),
        ]
    }

    fn shape(size: LabSize, spec: &Spec) -> FpTreeShape {
        let BnodeShape { node_bytes, cap_leaf, cap_inner } = lab::shape(size, spec);
        FpTreeShape { node_bytes, cap_leaf, cap_inner }
    }

    fn variants() -> &'static [Variant] {
        &[Variant::WIDE]
    }

    fn draw(rng: &mut Rng, _table: &TableSpec<FpTreeShape>) -> Settings {
        draw_shared(rng)
    }

    fn is_change(name: &str, before: &TableReport, after: &TableReport) -> bool {
        changes::in_btree(name, before, after)
    }

    /// A leaf is merged below one node alone, so nodes of small trees keep a record each, and no level goes.
    fn cases() -> Vec<(&'static str, CrashState)> {
        let split = grow("leaf-split", Order::Up);
        let growth = grow("growth-2", Order::Up);
        let merge = shrink(14, "leaf-merge", Order::Up);
        let beside = CrashStep::InsertBeside;
        let remove = CrashStep::RemoveBefore;
        let reused = CrashState::new(Script::Without(12, 60), CrashStep::Do(Action::Insert(60)));
        let in_update = |action| died_in(Action::Update(60), action);
        let in_insert = |action| died_in(Action::Insert(65), action);
        let mut cases = lab::splits_and_merges("leaf-merge");
        cases.extend([
            ("insert-leaf-split-watched", CrashState { is_watched: true, ..split }),
            ("insert-reused", reused),
            ("remove-merge-down-own", shrink(14, "leaf-merge", Order::Down).by_actor()),
            ("recover-merge", merge.recovered(2).patient()),
            ("recover-update", in_update(Action::Recover).patient()),
            ("takeover-update", in_update(Action::Update(60))),
            ("takeover-remove", in_update(Action::Remove(60)).patient()),
            ("takeover-get", in_update(Action::Get(60)).patient()),
            ("takeover-split", met(split, 5, beside)),
            ("takeover-split-slots", met(split, 3, beside).patient()),
            ("takeover-split-upper", met(split, 1, beside)),
            ("takeover-split-line", met(split, 0, CrashStep::Get)),
            ("takeover-growth", met(growth, 3, beside)),
            ("takeover-merge", met(merge, 5, remove).patient()),
            ("takeover-merge-right", met(merge, 3, remove)),
            ("takeover-merge-upper", met(merge, 0, beside).patient()),
            ("recover-split-slots", split.recovered(3)),
            ("recover-merge-right", merge.recovered(4)),
            ("takeover-insert", in_insert(Action::Insert(65))),
            ("takeover-removal", died_in(Action::Remove(60), Action::Insert(60))),
            ("recover-insert", in_insert(Action::Recover)),
            ("scan-after-split", met(split, 3, CrashStep::Do(Action::Scan { reverse: false }))),
            ("verify-after-merge", met(merge, 3, CrashStep::Do(Action::Verify)).patient()),
        ]);
        for (name, state) in &mut cases {
            if *name == "recover-growth" {
                *state = state.patient();
            }
        }
        cases
    }
}

/// A table whose lines lie on compute servers. Its crash cases are those of [`FpTree`].
impl Lab for DmTree {
    const SERVER_BYTES: u64 = <FpTree as Lab>::SERVER_BYTES;
    const REDO_BYTES: u32 = <FpTree as Lab>::REDO_BYTES;

    fn hunts() -> Vec<Hunt> {
        vec![
            Hunt::any(&SLOT_BEFORE_LINE),
            Hunt::any(&REPLICA_PROVES_ABSENCE),
            // A leaf leaves the tree, and the memory that held its line is gone.
            Hunt::at(&HEADER_PROVES_LEAF, "lines/held-merge"),
            Hunt::any(&UNLOCK_BEFORE_SLOT),
            Hunt::with(&SPECULATE_WITHOUT_EDITS, SPECULATING),
            Hunt::with(&SPECULATE_ABSENCE, SPECULATING),
            Hunt::any(&SCAN_BY_REPLICA),
            Hunt::any(&ANSWER_UNVOUCHED),
            Hunt::at(&FREE_RIGHT_ALONE, "u64-tiny/takeover-merge-right"),
            Hunt::any(&REDO_FINISHED),
            // A client dies in a split together with the memory that holds the leaf's lock.
            Hunt::at(&FORGET_UNLOCKED_REDO, "lines/held-split"),
            // The lock of a dead client, and a line that does not tell what it left, in a partition that moves by copy.
            Hunt::at(&MOVE_DROPS_LOCKS, "lines/leave-copy-locked"),
            Hunt::any(&ACK_UNDRAINED),
            Hunt::any(&OPEN_UNACKNOWLEDGED),
            Hunt::at(&OPEN_UNFINISHED, "lines/held-split"),
            Hunt::any(&IGNORE_TERM),
            Hunt::with(&MAP_BEFORE_ACK, JOINING),
            Hunt::any(&TWO_CONDUCTORS),
            // A client that thaws writes into the memory of another.
            Hunt::at(&FENCE_SKIPS_REGIONS, "lines/far-insert"),
            Hunt::any(&NUMBER_FOLLOWS_SLOT),
            // As in `fptree`. Without an owner, readers trust no line, so that only lines at a compute server show it.
            Hunt::at(&UNLOCK_NEW_LEAF_EARLY, "lines/far-split-watched"),
            Hunt::any(&OLD_TABLE_KEEPS_VERSION),
            Hunt::any(&CLEARED_SLOTS_KEEP_VERSION),
            Hunt::at(&BUILD_CLEARS_TORN, "u64-tiny/update"),
            Hunt::at(&BUILD_KEEPS_TORN, "u64-tiny/insert"),
            Hunt::any(&MERGE_UNCHECKED),
            Hunt::any(&FREE_LEAF_UNCLEARED),
            Hunt::with(&BELIEVE_OLD_HEADER, REUSE),
            Hunt::any(&SCAN_STALE),
            Hunt::any(&LOSE_REDO_RECORD),
            Hunt::any(&UNLOCK_RIGHT_EARLY),
        ]
    }

    fn shape(size: LabSize, spec: &Spec) -> DmTreeShape {
        <FpTree as Lab>::shape(size, spec).into()
    }

    fn variants() -> &'static [Variant] {
        const LINES: Variant = Variant {
            name: "lines",
            settings: "",
            value_bytes: None,
            object_bytes: 256,
            expose_bytes: 512 << 10,
            cases: Some(LINE_CASES),
            is_drawn: false,
        };
        &[Variant::WIDE, LINES]
    }

    fn draw(rng: &mut Rng, _table: &TableSpec<DmTreeShape>) -> Settings {
        draw_shared(rng)
            .with("replica", choose(rng, &["true", "true", "false"]))
            .with("speculate", choose(rng, &["true", "false"]))
            .with("weight", choose(rng, &["1", "1", "2", "0"]))
            .with("move", choose(rng, &["build", "copy"]))
    }

    fn is_change(name: &str, before: &TableReport, after: &TableReport) -> bool {
        changes::in_btree(name, before, after)
    }

    fn cases() -> Vec<(&'static str, CrashState)> {
        let of_lines = line_cases().into_iter().map(|(name, state)| (name, state.of_variants()));
        <FpTree as Lab>::cases().into_iter().chain(of_lines).collect()
    }
}

/// Names of [`line_cases`].
const LINE_CASES: &[&str] = &[
    "held-get",
    "held-insert",
    "held-update",
    "held-remove",
    "held-scan",
    "held-split",
    "held-merge",
    "far-insert",
    "far-update",
    "far-remove",
    "far-scan",
    "far-split",
    "far-split-watched",
    "far-merge",
    "beside-get",
    "beside-insert",
    "beside-update",
    "beside-remove",
    "beside-scan",
    "beside-split",
    "leave-build",
    "leave-copy",
    "leave-build-beside",
    "leave-copy-beside",
    "leave-build-locked",
    "leave-copy-locked",
    "leave-copy-torn",
    "join-build",
    "join-copy",
    "join-copy-locked",
    "failover-insert",
    "failover-split",
    "failover-merge",
    "failover-recover",
    "takeover-far-insert",
];

/// Cases of lines in the memory of compute servers: of the actor, of the survivor, or of a third one that lives or is dead.
fn line_cases() -> Vec<(&'static str, CrashState)> {
    let split = grow("leaf-split", Order::Up);
    let merge = shrink(14, "leaf-merge", Order::Up);
    let scan = Action::Scan { reverse: false };
    let of_key = |action| keys(12, action);
    // A client dies with the lock of a leaf, when the line has a fingerprint and the slot no pair.
    let locked = |action| CrashState {
        touches_all: false,
        ..met_before(grow("none", Order::Up), 0, CrashStep::Do(action))
    };
    let torn = |action| died_in(Action::Insert(65), action);
    let mut cases = vec![
        ("leave-build", of_key(Action::Leave).opened(AT_ACTOR)),
        ("leave-copy", of_key(Action::Leave).opened(COPIED)),
        ("leave-build-beside", of_key(Action::Leave).opened(BUILT_BESIDE).beside()),
        ("leave-copy-beside", of_key(Action::Leave).opened(COPIED_BESIDE).beside()),
        ("leave-build-locked", locked(Action::Leave).opened(AT_ACTOR)),
        ("leave-copy-locked", locked(Action::Leave).opened(COPIED)),
        ("leave-copy-torn", torn(Action::Leave).opened(COPIED)),
        ("join-build", of_key(Action::Join).opened(AT_ACTOR)),
        ("join-copy", of_key(Action::Join).opened(COPIED)),
        ("join-copy-locked", locked(Action::Join).opened(COPIED)),
        ("failover-insert", torn(Action::Insert(65)).opened(AT_THIRD)),
        ("failover-split", met(split, 1, CrashStep::InsertBeside).opened(AT_THIRD)),
        (
            "failover-merge",
            met(merge, 3, CrashStep::RemoveBefore).opened(COPIED_TO_THIRD).patient(),
        ),
        // The survivors have cached nothing, so that they find the new leaf by the upper tree.
        (
            "far-split-watched",
            CrashState { is_watched: true, ..split }.by_actor().opened(AT_SURVIVOR),
        ),
        ("failover-recover", split.recovered(1).opened(AT_THIRD)),
        ("takeover-far-insert", torn(Action::Insert(65)).opened(AT_SURVIVOR).patient()),
    ];
    for (names, state) in [
        (["held-get", "", "beside-get"], of_key(Action::Get(60))),
        (["held-insert", "far-insert", "beside-insert"], of_key(Action::Insert(65))),
        (["held-update", "far-update", "beside-update"], of_key(Action::Update(60))),
        (["held-remove", "far-remove", "beside-remove"], of_key(Action::Remove(60))),
        (["held-scan", "far-scan", "beside-scan"], of_key(scan)),
        (["held-split", "far-split", "beside-split"], split),
        // A key that the third one inserts would keep the leaves apart.
        (["held-merge", "far-merge", ""], merge),
    ] {
        let [held, far, beside] = names;
        cases.extend([
            (held, state.opened(AT_ACTOR)),
            (far, state.opened(AT_SURVIVOR)),
            (beside, state.opened(AT_THIRD).beside()),
        ]);
    }
    cases.retain(|(name, _)| LINE_CASES.contains(name));
    cases
}

/// Draws the settings that tables of both kinds have.
fn draw_shared(rng: &mut Rng) -> Settings {
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
