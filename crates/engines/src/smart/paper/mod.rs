//! Paper: SMART's own nodes, which have room for all slots, grow in place and point back.
//!
//! `nodes=reserve` has nodes with reserved room ([`grow`]), `nodes=reverse` the paper's proof of a cached pointer as well
//! ([`reverse`]). Both are for figures: with them most of an index is room that no child uses. `mode.rs` asks what is
//! here, and nothing else does.

use super::ladder::NodeTypes;
use super::layout::{Node, NodeForm, NodeType, RESERVED};

pub(super) mod grow;
#[cfg(feature = "lab")]
pub(super) mod lab;
#[cfg(test)]
mod model;
pub(super) mod reverse;
#[cfg(test)]
mod tests;

/// The smallest type of a node with reserved room that counts `slots`.
pub(super) fn reserved(slots: usize) -> NodeType {
    RESERVED.into_iter().find(|it| it.capacity() >= slots).unwrap_or(NodeType::TOP)
}

/// The type to which a node grows that is to count `slots`.
pub(super) fn grown(types: NodeTypes, slots: usize) -> NodeType {
    reserved(match (types, slots) {
        (NodeTypes::Art, 5..=16) => 16,
        (NodeTypes::Art, 17..=64) => 64,
        (NodeTypes::Art, 65..) | (NodeTypes::Whole, _) => NodeType::TOP.capacity(),
        _ => slots,
    })
}

/// The type of a new node of a table whose `first` it is.
pub(super) fn first_type(types: NodeTypes, first: NodeType) -> NodeType {
    if types == NodeTypes::Whole { NodeType::TOP } else { first }
}

/// The words of a node that count by the type that its header has (`INV-SMART-6`).
pub(super) fn counted(words: &[u64], of: Option<NodeType>) -> &[u64] {
    let counted = of.map_or(words.len(), |of| 2 + of.capacity());
    &words[..counted.min(words.len())]
}

/// Returns whether a node that was READ as `read` can be there.
pub(super) fn fits(node: Node<'_>, read: NodeType) -> bool {
    node.node_type().is_some_and(|own| {
        own.is_reserved() && node.capacity() == own.capacity().min(read.capacity())
    })
}

/// The same header with another type.
fn header_with(form: &NodeForm, header: u64, of: NodeType) -> u64 {
    let node = [0, header];
    let node = Node::new(form, &node);
    let (bytes, len) = node.compressed();
    form.header(node.depth(), &bytes[..len], of)
}

/// The same header of a node whose compressed bytes in front of `depth` have moved up.
fn header_from(form: &NodeForm, header: u64, depth: usize) -> u64 {
    let words = [0, header];
    let node = Node::new(form, &words);
    let (bytes, len) = node.compressed();
    let gone = depth.saturating_sub(node.depth()).min(len);
    let of = node.node_type().unwrap_or(NodeType::TOP);
    form.header(node.depth() + gone, &bytes[gone..len], of)
}
