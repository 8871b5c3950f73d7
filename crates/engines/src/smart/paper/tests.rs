//! Tests of the paper's nodes: their types, and the words that count.

use farleaf_fabric::{GlobalAddr, ServerId};

use super::super::layout::{Edge, FirstWord, LeafClass, Slot, fill_node};
use super::super::mode::NodeMode;
use super::*;

#[test]
fn reserved_types_say_what_counts() {
    let shape = NodeForm { table: 77, wide: false, first: reserved(0), mode: NodeMode::Reserve };
    let all = RESERVED.map(|of| (of.capacity(), of.bytes(), of.object_bytes()));
    let reads = [(4, 48), (8, 80), (16, 144), (32, 272), (64, 528), (128, 1_040), (257, 2_072)];
    assert_eq!(all, reads.map(|(slots, bytes)| (slots, bytes, 2_072)));
    assert_eq!([0, 4, 5, 129, 257].map(|slots| reserved(slots).capacity()), [4, 4, 8, 257, 257]);
    let addr = GlobalAddr::new(ServerId(0), 128);
    let leaf =
        |byte| Slot::leaf(Edge::byte(byte), addr.plus(2_112), LeafClass::of(64).expect("class"));
    let (mut words, of) = (vec![0; 259], reserved(4));
    fill_node(&shape, &mut words, FirstWord::new(77, addr, 3), of, (2, b"cd"), (0..4).map(leaf));
    words[2 + 4] = leaf(9).0;
    // Slots behind those that count are not looked at, however much was READ.
    for read in [reserved(4), reserved(16), NodeType::TOP] {
        let node = Node::new(&shape, &words[..2 + read.capacity()]);
        assert!(node.is_of(&shape, addr, read) && !node.is_short());
        assert_eq!(
            (node.capacity(), node.find(Edge::byte(9)), node.first_empty()),
            (4, None, None)
        );
    }
    words[1] = header_with(&shape, words[1], reserved(5));
    let short = Node::new(&shape, &words[..6]);
    assert!(short.is_of(&shape, addr, of) && short.is_short());
    let grown = Node::new(&shape, &words[..10]);
    assert!(!grown.is_short() && grown.compressed() == (*b"cd\0\0\0\0", 2) && grown.depth() == 2);
    assert_eq!((grown.find(Edge::byte(9)), grown.first_empty()), (Some((4, leaf(9))), Some(5)));
    let slot = Slot::node(Edge::byte(7), addr, of).with_type(NodeType::TOP);
    assert_eq!((slot.addr(), slot.bytes(), slot.edge()), (addr, Some(2_072), Edge::byte(7)));
    assert_eq!(Slot::node(Edge::END, addr, of).object_bytes(), Some(2_072));
}

#[test]
fn nodes_grow_through_the_types_of_the_ladder() {
    let grown = |types| [4, 5, 9, 17, 65, 129].map(|slots| grown(types, slots).capacity());
    assert_eq!(grown(NodeTypes::Fine), [4, 8, 16, 32, 128, 257]);
    assert_eq!(grown(NodeTypes::Art), [4, 16, 16, 64, 257, 257]);
    assert_eq!(grown(NodeTypes::Whole), [257; 6]);
}
