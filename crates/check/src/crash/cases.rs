//! Crash cases: the table of actions and starting states.

use farleaf_engines::Engine;

use super::action::{Action, INITIAL, WRITTEN};
use super::state::{Change, CrashState, CrashStep, Order, Script, Setup};

/// A key that leaves what a radix tree's nodes compress of the keys beside it.
const APART: u32 = 70_000;

/// Cases of tables whose nodes reserve their room: what adds to nodes and takes from them, and what meets them.
const RESERVED: [&str; 22] = [
    "get-absent",
    "scan-reverse",
    "verify",
    "insert-first",
    "update",
    "remove",
    "bulk-load",
    "create-table",
    "drop-table",
    "insert-beside",
    "insert-node",
    "insert-node-down",
    "insert-node-cold",
    "insert-edge-split",
    "revive",
    "node-grows-in-place",
    "node-grows-in-place-cold",
    "node-grows-in-place-own",
    "recover-node",
    "recover-update",
    "takeover-update",
    "takeover-remove",
];

/// Cases of tables whose leaves hang below a tree of records: their splits and merges are finished by whoever meets them.
const OF_UPPER_TREES: [&str; 18] = [
    "insert-leaf-split-watched",
    "insert-reused",
    "remove-merge-down-own",
    "takeover-split",
    "takeover-split-slots",
    "takeover-split-upper",
    "takeover-split-line",
    "takeover-growth",
    "takeover-merge",
    "takeover-merge-right",
    "takeover-merge-upper",
    "recover-split-slots",
    "recover-merge-right",
    "takeover-insert",
    "takeover-removal",
    "recover-insert",
    "scan-after-split",
    "verify-after-merge",
];

/// The cases of an engine, in every format in which nodes reserve their room or do not, by name.
pub(super) fn table(engine: Engine, reserves: bool) -> Vec<(&'static str, CrashState)> {
    let grow = |change, order| CrashState::new(Script::Grow(change, order), CrashStep::Found);
    let shrink = |keys, change, order| {
        CrashState::new(Script::Shrink(keys, change, order), CrashStep::Found)
    };
    let keys = |count, action| CrashState::new(Script::Keys(count), CrashStep::Do(action));
    let split = grow(Change::LeafSplit, Order::Up);
    let unfinished = |step| CrashState { setup: Setup::Unfinished, step, ..split };
    let recover = |state, from_last| CrashState {
        setup: Setup::Died(from_last),
        step: CrashStep::Do(Action::Recover),
        ..state
    };
    let growth = grow(Change::Growth(2), Order::Up);
    let merge = shrink(14, Change::LeafMerge, Order::Up);
    let by_actor = |state| CrashState { by_actor: true, ..state };
    let cold = |state| CrashState { is_cold: true, ..state };
    let traits = engine.traits();
    let shrinks = traits.shrinks && !traits.radix;
    let levels_go = shrinks && !traits.upper_tree;
    let cases = vec![
        ("get", keys(12, Action::Get(60))),
        ("get-absent", cold(keys(12, Action::Get(61)))),
        ("get-unfinished", unfinished(CrashStep::Get)),
        ("scan", keys(12, Action::Scan { reverse: false })),
        ("scan-reverse", cold(keys(12, Action::Scan { reverse: true }))),
        ("verify", keys(12, Action::Verify)),
        ("insert-first", keys(0, Action::Insert(10))),
        ("insert", grow(Change::None, Order::Up)),
        ("insert-present", keys(12, Action::Insert(60))),
        ("insert-leaf-split", split),
        ("insert-leaf-split-left", grow(Change::LeafSplit, Order::Down)),
        ("insert-leaf-split-middle", grow(Change::LeafSplit, Order::Mixed)),
        ("insert-leaf-split-cold", cold(split)),
        ("insert-block-exhausted", CrashState { is_exhausted: true, ..split }),
        ("insert-first-growth", grow(Change::FirstGrowth, Order::Up)),
        ("insert-inner-split", grow(Change::InnerSplit, Order::Up)),
        ("insert-root-growth", growth),
        ("insert-deep-growth", grow(Change::Growth(3), Order::Up)),
        ("insert-unfinished", unfinished(CrashStep::InsertBeside)),
        ("update", keys(12, Action::Update(60))),
        ("update-own", by_actor(keys(12, Action::Update(60)))),
        ("update-absent", keys(12, Action::Update(61))),
        ("upsert-absent", cold(keys(12, Action::Upsert(61)))),
        ("upsert-present", keys(12, Action::Upsert(60))),
        ("remove", keys(12, Action::Remove(60))),
        ("remove-absent", keys(12, Action::Remove(61))),
        ("remove-last", keys(1, Action::Remove(10))),
        ("remove-merge-right", merge),
        ("remove-merge-left", shrink(14, Change::LeafMerge, Order::Down)),
        ("remove-merge-own", by_actor(merge)),
        ("remove-merge-cascade", shrink(30, Change::InnerMerge, Order::Up)),
        ("remove-root-shrink", shrink(6, Change::Shrink(2), Order::Up)),
        ("remove-shrink-cascade", shrink(14, Change::Shrink(3), Order::Up)),
        ("remove-unfinished", unfinished(CrashStep::RemoveBefore)),
        ("exchange-change", keys(12, Action::Exchange(60, INITIAL, WRITTEN))),
        ("exchange-differs", keys(12, Action::Exchange(60, WRITTEN, INITIAL))),
        ("exchange-add", keys(12, Action::Exchange(61, 0, WRITTEN))),
        ("exchange-remove", keys(12, Action::Exchange(60, INITIAL, 0))),
        ("bulk-load", keys(0, Action::BulkLoad(9))),
        ("create-table", keys(6, Action::CreateTable)),
        ("create-table-cold", cold(keys(6, Action::CreateTable))),
        ("drop-table", CrashState { has_other: true, ..keys(6, Action::DropTable) }),
        ("drop-table-own", CrashState { has_other: true, ..by_actor(keys(6, Action::DropTable)) }),
        ("join", keys(6, Action::Join)),
        ("leave", keys(6, Action::Leave)),
        ("leave-own", by_actor(merge_then(Action::Leave, levels_go))),
        ("tick", merge_then(Action::Ticks(6), levels_go)),
        ("tick-own", by_actor(merge_then(Action::Ticks(6), levels_go))),
        ("alloc", cold(keys(6, Action::Alloc))),
        ("recover-split", recover(split, 1)),
        ("recover-growth", recover(growth, 0)),
        ("recover-merge", recover(merge, if shrinks { 2 } else { 0 })),
    ];
    let node = grow(Change::NodeAdded, Order::Up);
    let larger = grow(Change::NodeGrows, Order::Up);
    let grows = grow(Change::NodeGrowsInPlace, Order::Up);
    let smaller = shrink(14, Change::NodeShrinks, Order::Up);
    let died_in_update =
        |action| CrashState { setup: Setup::DiedIn(Action::Update(60)), ..keys(12, action) };
    let revive = CrashState::new(Script::Without(12, 60), CrashStep::Do(Action::Insert(60)));
    let cases = cases.into_iter().chain([
        ("insert-beside", grow(Change::LeafAdded, Order::Up)),
        ("insert-node", node),
        ("insert-node-down", grow(Change::NodeAdded, Order::Down)),
        ("insert-node-cold", cold(node)),
        ("insert-node-exhausted", CrashState { is_exhausted: true, ..node }),
        ("insert-larger-node", larger),
        ("insert-larger-node-own", by_actor(larger)),
        ("insert-edge-split", keys(12, Action::Insert(APART))),
        ("revive", CrashState { keeps_removed: true, ..revive }),
        ("node-grows-in-place", grows),
        ("node-grows-in-place-cold", cold(grows)),
        ("node-grows-in-place-own", by_actor(grows)),
        ("recover-node", recover(node, 0)),
        ("recover-larger-node", recover(larger, 0)),
        ("remove-smaller-node", smaller),
        ("remove-smaller-node-own", by_actor(smaller)),
        ("remove-collapse-to-leaf", shrink(14, Change::NodeCollapses, Order::Up)),
        ("remove-collapse-to-node", shrink(26, Change::NodeCollapses, Order::Down)),
        ("recover-smaller-node", recover(smaller, 0)),
        ("recover-update", died_in_update(Action::Recover)),
        ("takeover-update", died_in_update(Action::Update(60))),
        ("takeover-remove", died_in_update(Action::Remove(60))),
        ("takeover-get", died_in_update(Action::Get(60))),
    ]);
    // A third compute server died in a split or a merge, and nobody recovers it: the next operation meets what it left.
    let met = |state, from_last, step| CrashState { setup: Setup::Died(from_last), step, ..state };
    let beside = CrashStep::InsertBeside;
    let died_in = |before, action| CrashState { setup: Setup::DiedIn(before), ..keys(12, action) };
    let reused = CrashState::new(Script::Without(12, 60), CrashStep::Do(Action::Insert(60)));
    let cases = cases.chain([
        ("insert-leaf-split-watched", CrashState { is_watched: true, ..split }),
        ("insert-reused", reused),
        ("remove-merge-down-own", by_actor(shrink(14, Change::LeafMerge, Order::Down))),
        ("takeover-split", met(split, 5, beside)),
        ("takeover-split-slots", met(split, 3, beside)),
        ("takeover-split-upper", met(split, 1, beside)),
        ("takeover-split-line", met(split, 0, CrashStep::Get)),
        ("takeover-growth", met(growth, 3, beside)),
        ("takeover-merge", met(merge, 5, CrashStep::RemoveBefore)),
        ("takeover-merge-right", met(merge, 3, CrashStep::RemoveBefore)),
        ("takeover-merge-upper", met(merge, 0, beside)),
        ("recover-split-slots", recover(split, 3)),
        ("recover-merge-right", recover(merge, 4)),
        ("takeover-insert", died_in(Action::Insert(65), Action::Insert(65))),
        ("takeover-removal", died_in(Action::Remove(60), Action::Insert(60))),
        ("recover-insert", died_in(Action::Insert(65), Action::Recover)),
        ("scan-after-split", met(split, 3, CrashStep::Do(Action::Scan { reverse: false }))),
        ("verify-after-merge", met(merge, 3, CrashStep::Do(Action::Verify))),
    ]);
    let background = engine.background_work().iter();
    let cases = cases.chain(background.map(|work| (*work, keys(12, Action::Background(work)))));
    // Leaves that change in place, under a lock that their content gives back.
    let in_place = traits.radix && traits.shrinks;
    let has_change = |state: &CrashState| match state.script {
        // A recovery finishes its splits.
        _ if traits.upper_tree && state.setup == Setup::Unfinished => false,
        // Its leaves have a size class of their own, beside that of the nodes above.
        _ if traits.upper_tree && state.is_exhausted => false,
        Script::Without(..) => in_place || traits.upper_tree,
        Script::Keys(_) => {
            in_place || traits.upper_tree || !matches!(state.setup, Setup::DiedIn(_))
        }
        Script::Grow(Change::LeafAdded | Change::NodeAdded | Change::NodeGrows, _) => traits.radix,
        Script::Grow(Change::NodeGrowsInPlace, _) => reserves,
        Script::Grow(Change::FirstGrowth, _) => traits.splits && !traits.upper_tree,
        Script::Grow(..) => traits.splits,
        Script::Shrink(_, Change::NodeShrinks | Change::NodeCollapses, _) => in_place,
        // A leaf is merged below one node alone, so nodes of such small trees keep a record each.
        Script::Shrink(_, Change::Shrink(_), _) => shrinks && !traits.upper_tree,
        Script::Shrink(..) => traits.merges,
    };
    // A remove of a radix tree WRITEs nothing at whose middle its compute server could die.
    let has_writes = |name: &str| !traits.radix || name != "recover-merge";
    let is_tried = |name: &str| match name {
        "revive" => in_place && (!reserves || RESERVED.contains(&name)),
        _ if OF_UPPER_TREES.contains(&name) => traits.upper_tree,
        "insert-edge-split" => in_place && reserves,
        _ => !reserves || RESERVED.contains(&name),
    };
    let suits = |(name, state): &(&str, CrashState)| {
        has_change(state) && has_writes(name) && is_tried(name)
    };
    cases.filter(suits).collect()
}

/// The actor makes nodes go first, and a level if `levels_go`, so that it has retired something.
fn merge_then(action: Action, levels_go: bool) -> CrashState {
    let change = if levels_go { Change::Shrink(3) } else { Change::LeafMerge };
    CrashState::new(Script::Shrink(14, change, Order::Up), CrashStep::Do(action))
}
