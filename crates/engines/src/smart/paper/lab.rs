//! Lab of the paper's nodes: the variants of tables, their crash cases and the seeded bug.

use farleaf_index::lab::{Hunt, Variant};

use super::grow::GROW_UNHELPED;

/// Cases of tables whose nodes reserve their room: what adds to nodes and takes from them, and what meets them.
const RESERVED: &[&str] = &[
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

/// Tables whose nodes have room for all of their slots.
pub(in crate::smart) const RESERVING: Variant = Variant {
    name: "reserved",
    settings: "nodes=reserve",
    value_bytes: None,
    object_bytes: 256,
    expose_bytes: 0,
    cases: Some(RESERVED),
    is_drawn: true,
};
/// Tables whose objects point back to what leads to them as well, which takes values of one length.
pub(in crate::smart) const REVERSING: Variant =
    Variant { name: "reverse", settings: "nodes=reverse", value_bytes: Some(8), ..RESERVING };

/// Full nodes of which several clients want a slot.
const FULL_NODES: &[(&str, &str)] = &[
    ("format", "u64-reserved"),
    ("workload", "ascending|mixed"),
    ("compute-servers", "3"),
    ("clients", "6"),
];
/// The seeded bugs of nodes that grow in place.
pub(in crate::smart) fn hunts() -> Vec<Hunt> {
    vec![Hunt::with(&GROW_UNHELPED, FULL_NODES)]
}
