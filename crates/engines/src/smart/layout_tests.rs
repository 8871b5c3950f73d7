//! Layout tests: words come back out, and sizes are those of the pool's classes.

use super::*;

fn shape(wide: bool) -> NodeForm {
    NodeForm { table: 77, wide, first: NodeType::SMALLEST, mode: NodeMode::Relocate }
}

#[test]
fn slots_hold_edge_child_and_state() {
    let addr = GlobalAddr::new(ServerId(255), (1 << 45) - 64);
    let bytes = (0..=255).map(Edge::byte);
    for edge in bytes.chain([Edge::END]) {
        for of in 1..=23 {
            let slot = Slot::node(edge, addr, NodeType(of));
            assert_eq!((slot.edge(), slot.addr()), (edge, addr));
            assert_eq!(slot.node_type(), Some(NodeType(of)));
            assert!(slot.has_child() && !slot.is_leaf() && !slot.is_frozen());
            assert_eq!(slot.frozen().thawed(), slot);
            let other = slot.frozen().under(Edge::byte(7));
            assert_eq!((other.edge(), other.addr()), (Edge::byte(7), addr));
        }
        for class in 0..16 {
            let slot = Slot::leaf(edge, addr, LeafClass(class));
            assert_eq!((slot.edge(), slot.addr(), slot.leaf_class().0), (edge, addr, class));
            assert!(slot.is_leaf() && slot.has_child());
        }
        let tomb = Slot::tomb(edge);
        assert!(!tomb.is_empty() && !tomb.has_child() && tomb.edge() == edge);
    }
    assert!(Slot(0).is_empty() && Slot(0).frozen().is_empty());
}

#[test]
fn edges_are_in_the_order_of_keys() {
    assert_eq!(Edge::of(b"a", 0), Some(Edge::byte(b'a')));
    assert_eq!(Edge::of(b"a", 1), Some(Edge::END));
    assert_eq!(Edge::of(b"a", 2), None);
    assert!(Edge::END < Edge::byte(0) && Edge::byte(0) < Edge::byte(255));
}

#[test]
fn types_fill_objects() {
    for of in (1..17).map(NodeType) {
        let classes = (0..16).map(size_bytes);
        assert!(classes.clone().any(|bytes| bytes == of.bytes()), "{of:?}");
        assert_eq!(NodeType::holding(of.capacity()), of);
    }
    assert_eq!(NodeType::TOP.bytes(), 2_072);
    let grown: Vec<usize> = GROWTH.map(NodeType::capacity).to_vec();
    assert_eq!(grown, [6, 14, 30, 62, 126, 254, 257]);
    let next = |live| NodeType::replacing(live, NodeType::SMALLEST).capacity();
    assert_eq!([0, 5, 6, 14, 22, 254, 257].map(next), [6, 6, 14, 30, 30, 257, 257]);
    assert_eq!(NodeType::replacing(1, NodeType::SECOND).capacity(), 14);
}

#[test]
fn first_words_tell_tables_addresses_and_births_apart() {
    let addr = GlobalAddr::new(ServerId(1), 640);
    let first_word = FirstWord::new(7, addr, 1_000);
    assert!(first_word.fits(7, addr) && first_word.dead().fits(7, addr));
    assert!(!first_word.fits(8, addr) && !first_word.fits(7, addr.plus(64)));
    assert!(!first_word.is_dead() && first_word.dead().is_dead());
    assert!(
        first_word.is_born_by(1_000) && first_word.is_born_by(1_001) && !first_word.is_born_by(999)
    );
    let late = FirstWord::new(7, addr, BIRTH);
    assert!(late.is_born_by(BIRTH) && late.is_born_by(BIRTH + 1) && !late.is_born_by(BIRTH - 1));
}

#[test]
fn headers_compare_bytes_at_their_positions() {
    for wide in [false, true] {
        let shape = shape(wide);
        let mut words = vec![0; 8];
        let addr = GlobalAddr::new(ServerId(0), 64);
        let bytes = &b"cdefg"[..];
        let slot = Slot::leaf(Edge::byte(b'h'), addr, LeafClass(0));
        let of = NodeType::SMALLEST;
        fill_node(
            &shape,
            &mut words,
            FirstWord::new(77, addr, 3),
            of,
            (2, bytes),
            [slot].into_iter(),
        );
        let node = Node::new(&shape, &words);
        assert!(node.is_of(&shape, addr, NodeType::SMALLEST));
        assert_eq!((node.depth(), node.dispatch(), node.live()), (2, 7, 1));
        assert_eq!(node.differs(b"abcdefgh", 2), None);
        assert_eq!(node.differs(b"abcdxfgh", 2), Some(4));
        assert_eq!(node.differs(b"abcdxfgh", 5), None);
        assert_eq!(node.differs(b"abcd", 2), Some(4));
        assert_eq!(node.byte_at(4), Some(b'e'));
        assert_eq!(node.byte_at(7), None);
        assert_eq!(node.find(Edge::byte(b'h')), Some((0, slot)));
        assert_eq!((node.find(Edge::END), node.first_empty()), (None, Some(1)));
    }
    let deep = shape(true).header(1_000, b"ab", NodeType::TOP);
    let words = [0, deep];
    let node = Node { words: &words, wide: true };
    assert_eq!((node.depth(), node.node_type()), (1_000, Some(NodeType::TOP)));
}

#[test]
fn pools_out_of_reach_are_refused() {
    let check = |servers: usize, bytes: u64| check_reach(std::iter::repeat_n(bytes, servers));
    assert_eq!(check(256, REGION_BYTES_MAX), Ok(()));
    for (servers, bytes) in [(257, 64), (1, REGION_BYTES_MAX + 1)] {
        assert!(matches!(check(servers, bytes), Err(IndexError::Invalid(_))));
    }
}
