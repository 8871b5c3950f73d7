//! Format tests: capacities, limits, and the format byte by byte.

use super::*;

#[test]
fn a_kibibyte_holds_sixty_words_pairs() {
    let layout = layout(1024, KeyFormat::Fixed(8), ValueFormat::Fixed(8));
    assert!(layout.is_dense());
    assert_eq!((layout.leaf_cap(), layout.inner_cap()), (60, 59));
    let pinned = capped(layout, 58, 58);
    assert_eq!((pinned.leaf_cap(), pinned.inner_cap()), (58, 58));
    for layout in [layout, pinned] {
        let keys: Vec<_> = (0..100_u64).map(u64::to_be_bytes).collect();
        let entries: Vec<_> =
            keys.iter().map(|key| LeafEntry { key, value: Value::Inline(&[1; 8]) }).collect();
        let mut words = vec![0; 128];
        let head = Head { addr: 64, ..Head::default() };
        let cap = layout.leaf_cap();
        layout.encode_leaf(&mut words, &head, &entries[..cap]).unwrap();
        let mut node = NodeMut::new(&layout, &mut words[..]);
        let more = node.insert(&keys[cap], Value::Inline(&[1; 8]));
        assert_eq!(more, Err(ChangeError::NoRoom));
        let refused = layout.encode_leaf(&mut words, &head, &entries[..=cap]);
        assert_eq!(refused, Err(ChangeError::NoRoom));
    }
}

#[test]
fn impossible_layouts_are_refused() {
    use KeyFormat::{Bytes, Fixed};
    use ValueFormat as V;
    let refusal =
        |bytes, key, value| Layout::new(LayoutOptions::new(bytes, key, value)).unwrap_err();
    for bytes in [0, 128, 1000, 1 << 17] {
        assert_eq!(refusal(bytes, Fixed(8), V::Bytes), LayoutError::NodeBytes(bytes));
    }
    let error = refusal(4096, Bytes { max: 1025 }, V::Bytes);
    assert_eq!(error, LayoutError::KeyBytes(1025));
    let error = refusal(2048, Bytes { max: 1024 }, V::Bytes);
    let expected =
        LayoutError::KeyForNode { key: 1024, node_bytes: 2048, key_max: 652, node_least: 4096 };
    assert_eq!(error, expected);
    assert!(error.to_string().contains("652") && error.to_string().contains("4096"));
    assert!(Layout::new(LayoutOptions::new(2048, Bytes { max: 652 }, V::Bytes)).is_ok());
    let error = refusal(256, Fixed(64), V::Fixed(256));
    assert_eq!(error, LayoutError::EntryForNode { node_bytes: 256, node_least: 1024 });
    let options = LayoutOptions::new(1024, Fixed(8), V::Fixed(8));
    for cap in [0, 1, 61] {
        let error = Layout::new(LayoutOptions { cap_leaf: Some(cap), ..options });
        assert_eq!(error, Err(LayoutError::Capacity { cap: cap.into(), fits: 60 }));
    }
    let largest = layout(4096, Bytes { max: 1024 }, V::Bytes);
    assert_eq!((largest.key_max(), largest.inline_value_max()), (1024, 950));
    let short = layout(4096, Bytes { max: 16 }, V::Bytes);
    assert_eq!(short.inline_value_max(), 1024);
}

#[test]
fn dense_format_is_as_documented() {
    let layout = layout(256, KeyFormat::Fixed(16), ValueFormat::Fixed(8));
    let (low, high, key) = ([1; 16], [9; 16], *b"abcdefghABCDEFGH");
    let high = if high > key { high } else { [0xEE; 16] };
    let head = Head {
        addr: 0x1122,
        right: 0x3344,
        level: 0,
        incarnation: 0x0506,
        version: 77,
        low: Some(&low),
        high: Some(&high),
    };
    let mut words = vec![0; 32];
    let entry = LeafEntry { key: &key, value: Value::Inline(b"12345678") };
    layout.encode_leaf(&mut words, &head, &[entry]).unwrap();
    assert_eq!(words[0..2], [0, 0x1122]);
    assert_eq!(words[4], 0x3344);
    assert_eq!(words[5].to_le_bytes(), [1, 0, 1, 0, 0, 0xF7, 6, 5]);
    assert_eq!(words[7], 77);
    assert_eq!(words[8], u64::from_be_bytes(*b"abcdefgh"));
    assert_eq!(words[9], u64::from_be_bytes(*b"ABCDEFGH"));
    assert_eq!(words[10].to_le_bytes(), *b"12345678");
    assert_eq!(words[28..30], [0x0101_0101_0101_0101; 2]);
    assert_eq!(words[30..32], [0xEEEE_EEEE_EEEE_EEEE; 2]);
    assert_eq!(words[11..28], [0; 17]);
    let mut node = NodeMut::new(&layout, &mut words[..]);
    node.set_right(5);
    node.seal(78);
    assert_eq!((node.as_node().right(), node.as_node().version()), (5, 78));
}

#[test]
fn slotted_format_is_as_documented() {
    let layout = layout(256, KeyFormat::Bytes { max: 30 }, ValueFormat::Bytes);
    let head = Head { addr: 64, low: Some(b"user:10"), high: Some(b"user:2"), ..Head::default() };
    let mut words = vec![0; 32];
    let record = Value::Record(RecordRef { addr: 0x77, len: 5000 });
    let entries = [
        LeafEntry { key: b"user:123456", value: Value::Inline(b"xyz") },
        LeafEntry { key: b"user:2", value: record },
    ];
    layout.encode_leaf(&mut words, &head, &entries).unwrap();
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    assert_eq!(bytes[249..], *b"user:10");
    assert_eq!(bytes[243..249], *b"user:2");
    // The suffix without "user:", the value's length, the value.
    assert_eq!(bytes[232..243], *b"123456\x03\x00xyz");
    assert_eq!(bytes[213..216], *b"2\x00\x80");
    assert_eq!(bytes[216..232], [0x77, 0, 0, 0, 0, 0, 0, 0, 0x88, 0x13, 0, 0, 0, 0, 0, 0]);
    assert_eq!(words[8], u64::from(u32::from_be_bytes(*b"1234")) << 32 | 232 << 16 | 6);
    assert_eq!(words[9], u64::from(u32::from_be_bytes(*b"2\0\0\0")) << 32 | 213 << 16 | 1);
    assert_eq!(words[2], 249 | 7 << 16 | 43 << 32);
    assert_eq!(words[3], 243 | 6 << 16 | 5 << 32);
    assert_eq!(words[5].to_le_bytes()[4], 4, "slotted, finite fences");
}

#[test]
fn the_sum_is_that_of_two_hashes() {
    use xxhash_rust::xxh3::xxh3_64;
    for layout in &layouts() {
        let layout = &layout.for_tree(0x1122_3344_5566_7788);
        let mut words: Vec<u64> = (0..layout.node_words() as u64).map(|i| i * 0x1_0001).collect();
        NodeMut::new(layout, &mut words[..]).seal(5);
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut front = bytes[8..48].to_vec();
        front.extend(xxh3_64(&bytes[56..]).to_le_bytes());
        front.extend(0x1122_3344_5566_7788_u64.to_le_bytes());
        assert_eq!(words[6], xxh3_64(&front));
        assert!(!Node::new(&layout.for_tree(1), &words[..]).sum_ok(), "of another tree");
    }
}
