//! Lab: the seeded bugs of B-link trees, their crash cases, and small shapes of their nodes.

use super::canaries::{
    ACCEPT_TORN, ANSWER_BEFORE_WRITE, COMPARE_UNLOCKED, DROP_SIBLING, FORGET_RETIRE,
    GROW_FROM_OLD_ROOT, LOSE_REDO_RECORD, PUBLISH_OLD_FIRST, REDO_OF_ANY_TOKEN, SCAN_BACK,
    SEPARATOR_UNCHECKED, SKIP_COVER_CHECK, UNLOCK_BEFORE_WRITE, UNLOCK_RIGHT_EARLY,
};
use crate::bnode::BnodeShape;
use crate::lab::{CrashState, CrashStep, Hunt, LabSize, Order, Script, grow, merges, shrink};
use crate::remote_lock::RESEND_BLINDLY;
use crate::retry::STEAL_LOCK;
use crate::{Spec, ValueFormat};

/// Returns the shape of nodes of that size: 4 keys a leaf and 3 separators an inner node if they are tiny, 3 and 2 for keys of
/// up to 1,024 bytes.
pub fn shape(size: LabSize, spec: &Spec) -> BnodeShape {
    let is_wide = matches!(spec.value, ValueFormat::Fixed(9..));
    match size {
        LabSize::Tiny if spec.key_max() > 40 => {
            BnodeShape { node_bytes: None, cap_leaf: Some(3), cap_inner: Some(2) }
        }
        LabSize::Tiny => BnodeShape {
            node_bytes: Some(if is_wide { 512 } else { 256 }),
            cap_leaf: Some(4),
            cap_inner: Some(3),
        },
        LabSize::Small => BnodeShape { node_bytes: Some(256), ..BnodeShape::default() },
        LabSize::Usual => BnodeShape::default(),
    }
}

/// Seeded bugs of a tree whose clients share it.
pub fn hunts() -> Vec<Hunt> {
    [
        &UNLOCK_BEFORE_WRITE,
        &ANSWER_BEFORE_WRITE,
        &LOSE_REDO_RECORD,
        &REDO_OF_ANY_TOKEN,
        &PUBLISH_OLD_FIRST,
        &DROP_SIBLING,
        &SEPARATOR_UNCHECKED,
        &UNLOCK_RIGHT_EARLY,
        &FORGET_RETIRE,
        &GROW_FROM_OLD_ROOT,
        &SKIP_COVER_CHECK,
        &COMPARE_UNLOCKED,
        &ACCEPT_TORN,
        &SCAN_BACK,
        &STEAL_LOCK,
        &farleaf_pool::canary::SKIP_FENCE,
        &farleaf_pool::canary::SETTLE_WITHOUT_RECONNECT,
        &RESEND_BLINDLY,
    ]
    .map(Hunt::any)
    .to_vec()
}

/// Crash cases of a tree that grows and merges, whose root becomes lower again if it `shrinks`.
pub fn cases(shrinks: bool) -> Vec<(&'static str, CrashState)> {
    cases_after(shrinks, if shrinks { "shrink-3" } else { "leaf-merge" })
}

/// The same, with the change `gone` that [`splits_and_merges`] takes.
pub fn cases_after(shrinks: bool, gone: &'static str) -> Vec<(&'static str, CrashState)> {
    let mut cases = splits_and_merges(gone);
    let split = grow("leaf-split", Order::Up);
    cases.extend([
        ("get-unfinished", split.unfinished(CrashStep::Get)),
        ("insert-block-exhausted", split.exhausted()),
        ("insert-first-growth", grow("first-growth", Order::Up)),
        ("insert-unfinished", split.unfinished(CrashStep::InsertBeside)),
        ("remove-unfinished", split.unfinished(CrashStep::RemoveBefore)),
        (
            "recover-merge",
            shrink(14, "leaf-merge", Order::Up).recovered(if shrinks { 2 } else { 0 }),
        ),
    ]);
    if shrinks {
        cases.extend([
            ("remove-root-shrink", shrink(6, "shrink-2", Order::Up)),
            ("remove-shrink-cascade", shrink(14, "shrink-3", Order::Up)),
        ]);
    }
    cases
}

/// A split whose new leaf lies where another one was, to which a survivor's copies lead. The compute server has filled the table,
/// and has no object on a further memory server.
pub fn split_in_reused() -> CrashState {
    let script = Script::Regrow(14, "leaf-merge", "leaf-split");
    CrashState::new(script, CrashStep::Found).by_actor().cold().approached()
}

/// The part of [`cases`] that every tree of leaves and nodes above them has. The actor makes the change `gone` first, so
/// that it has retired something, before it leaves or ticks.
pub fn splits_and_merges(gone: &'static str) -> Vec<(&'static str, CrashState)> {
    let split = grow("leaf-split", Order::Up);
    let growth = grow("growth-2", Order::Up);
    let mut cases = vec![
        ("insert", grow("none", Order::Up)),
        ("insert-leaf-split", split),
        ("insert-leaf-split-left", grow("leaf-split", Order::Down)),
        ("insert-leaf-split-middle", grow("leaf-split", Order::Mixed)),
        ("insert-leaf-split-cold", split.cold()),
        ("insert-inner-split", grow("inner-split", Order::Up)),
        ("insert-root-growth", growth),
        ("insert-deep-growth", grow("growth-3", Order::Up)),
        ("recover-split", split.recovered(1)),
        ("recover-growth", growth.recovered(0)),
    ];
    cases.extend(merges(gone));
    cases
}
