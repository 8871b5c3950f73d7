//! Changes: structural changes of trees between two walks, by name.
//!
//! | name | the operation |
//! |---|---|
//! | `none` | changed no node, in a tree of two levels or more |
//! | `leaf-split` | split a leaf, and its parent took the separator |
//! | `first-growth` | split the only leaf, which got a parent |
//! | `inner-split` | split a leaf and its parent, which is not the root |
//! | `growth-2`, `growth-3` | split everything up to the root, in a tree of so many levels before |
//! | `leaf-merge` | merged a leaf away |
//! | `inner-merge` | merged a leaf and its parent away |
//! | `shrink-2`, `shrink-3` | took a level from the tree, of so many before |
//! | `leaf-added` | added a leaf to a node with room (radix trees, also below) |
//! | `node-added` | added a leaf with a new inner node |
//! | `node-grows` | added a leaf to a node that is replaced by a larger one |
//! | `node-grows-in-place` | added a leaf to a node with reserved room, which grew in place |
//! | `node-shrinks` | took a leaf from a node that is replaced by a smaller one |
//! | `node-collapses` | took a leaf from a node that then left the tree |

use crate::TableReport;

/// The difference of the numbers of nodes of a level.
fn by(before: &TableReport, after: &TableReport, level: usize) -> i64 {
    let count =
        |report: &TableReport| report.nodes_per_level.get(level).map_or(0, |count| *count as i64);
    count(after) - count(before)
}

fn is_whole(before: &TableReport, after: &TableReport) -> bool {
    before.unfinished_splits + after.unfinished_splits == 0
}

/// Returns whether the change `name` of a B+-tree lies between two walks.
pub fn in_btree(name: &str, before: &TableReport, after: &TableReport) -> bool {
    let (b, a) = (&before.nodes_per_level, &after.nodes_per_level);
    let (from, to) = (b.len(), a.len());
    let by = |level| by(before, after, level);
    let grows = to == from + 1;
    let shrinks = to + 1 == from;
    is_whole(before, after)
        && match name {
            "none" => a == b && from >= 2,
            "leaf-split" => from == to && from >= 2 && by(0) == 1 && by(1) == 0,
            "first-growth" => from == 1 && grows,
            "inner-split" => from == to && from >= 3 && by(0) == 1 && by(1) == 1,
            "growth-2" => from == 2 && grows && by(0) == 1,
            "growth-3" => from == 3 && grows && by(0) == 1,
            "leaf-merge" => from == to && by(0) == -1 && by(1) == 0,
            "inner-merge" => from == to && by(0) == -1 && by(1) == -1,
            "shrink-2" => from == 2 && shrinks,
            "shrink-3" => from == 3 && shrinks,
            _ => false,
        }
}

/// Returns whether the change `name` of a radix tree lies between two walks: one of its own, or one of
/// [`in_btree`].
pub fn in_radix(name: &str, before: &TableReport, after: &TableReport) -> bool {
    let inner = |report: &TableReport| report.nodes_per_level.iter().skip(1).sum::<u64>();
    let (nodes, added) = (inner(before), inner(after).wrapping_sub(inner(before)));
    let larger = after.inner_bytes > before.inner_bytes;
    let smaller = after.inner_bytes < before.inner_bytes;
    let in_place = after.reserved_bytes < before.reserved_bytes;
    let by_leaf = by(before, after, 0);
    is_whole(before, after)
        && match name {
            "leaf-added" => nodes > 1 && added == 0 && !larger && !in_place && by_leaf == 1,
            "node-added" => nodes > 1 && added == 1 && by_leaf == 1,
            "node-grows" => nodes > 1 && added == 0 && larger && by_leaf == 1,
            "node-grows-in-place" => nodes > 1 && added == 0 && !larger && in_place && by_leaf == 1,
            "node-shrinks" => added == 0 && smaller && by_leaf == -1,
            "node-collapses" => added == u64::MAX && by_leaf == -1,
            _ => in_btree(name, before, after),
        }
}
