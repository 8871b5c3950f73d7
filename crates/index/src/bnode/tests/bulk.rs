//! Bulk tests: levels built from sorted entries.

use std::collections::BTreeMap;

use super::*;

#[test]
fn sorted_entries_fill_levels() {
    for (number, layout) in layouts().iter().enumerate() {
        for fill in [100, 70] {
            let mut rng = Rng(number as u64 + 300);
            let map: BTreeMap<_, _> = (0..600)
                .map(|_| (random_key(layout, &mut rng), Owned::random(layout, &mut rng)))
                .collect();
            let entries: Vec<_> =
                map.iter().map(|(key, value)| LeafEntry { key, value: value.value() }).collect();
            let bounds = load_leaves(layout, &entries, fill);
            load_inner(layout, &bounds, fill);
        }
    }
}

/// Builds the leaves and gives the fences between them.
fn load_leaves(layout: &Layout, entries: &[LeafEntry<'_>], fill: usize) -> Vec<Vec<u8>> {
    let mut words = vec![u64::MAX; layout.node_words()];
    let mut bounds: Vec<Vec<u8>> = Vec::new();
    let mut rest = entries;
    let mut used = 0;
    while !rest.is_empty() {
        let low = bounds.last().cloned();
        let count = layout.fit_leaf(low.as_deref(), None, rest, fill);
        let (now, later) = rest.split_at(count);
        let mut high = Vec::new();
        if let Some(next) = later.first() {
            layout.separator(now[count - 1].key, next.key, &mut high);
        }
        let head = Head {
            addr: 64,
            version: 3,
            low: low.as_deref(),
            high: (!later.is_empty()).then_some(&high[..]),
            ..Head::default()
        };
        layout.encode_leaf(&mut words, &head, now).unwrap();
        verify_image(layout, &words, 64).unwrap();
        let node = Node::new(layout, &words);
        assert_eq!((node.count(), node.version(), words[0]), (count, 3, 0));
        used = used.max(node.used_bytes() * 100 / node.capacity_bytes());
        let mut key = Vec::new();
        for (index, entry) in now.iter().enumerate() {
            assert!(node.key(index, &mut key));
            assert_eq!(key, entry.key);
            assert_eq!(Owned::read(&node, index).unwrap().value(), entry.value);
        }
        bounds.push(high);
        rest = later;
    }
    bounds.pop();
    if layout.leaf_cap() > 8 && bounds.len() > 8 {
        assert!(used <= fill || fill == 70 && used <= 100, "{used}");
        assert!(used > fill / 2, "leaves are filled as asked for");
    }
    bounds
}

fn load_inner(layout: &Layout, bounds: &[Vec<u8>], fill: usize) {
    let mut words = vec![0; layout.node_words()];
    let (mut low, mut rest): (Option<&[u8]>, _) = (None, bounds);
    let mut child = 1;
    loop {
        let count = layout.fit_inner(low, None, rest, fill);
        let high = rest.get(count - 1).map(|high| &high[..]);
        let head = Head { addr: 64, level: 1, low, high, ..Head::default() };
        let children: Vec<u64> = (child..child + count as u64).collect();
        let separators = &rest[..count - 1];
        layout.encode_inner(&mut words, &head, &children, separators).unwrap();
        verify_image(layout, &words, 64).unwrap();
        child += count as u64;
        low = high;
        if high.is_none() {
            break;
        }
        rest = &rest[count..];
    }
    assert_eq!(child, bounds.len() as u64 + 2, "every child has a place");
}

#[test]
fn encoding_refuses_what_is_wrong() {
    for layout in [
        &layout(256, KeyFormat::Fixed(8), ValueFormat::Fixed(8)),
        &layout(256, KeyFormat::Bytes { max: 8 }, ValueFormat::Fixed(9)),
    ] {
        let value = [7; 9];
        let ValueFormat::Fixed(len) = layout.options().value else { unreachable!() };
        let value = Value::Inline(&value[..len]);
        let keys: Vec<_> = (0..100_u64).map(u64::to_be_bytes).collect();
        let entries: Vec<_> = keys.iter().map(|key| LeafEntry { key, value }).collect();
        let mut words = vec![0; layout.node_words()];
        let head = Head { addr: 64, low: Some(&keys[1]), high: Some(&keys[9]), ..Head::default() };
        let mut encode = |entries: &[LeafEntry<'_>]| {
            let error = layout.encode_leaf(&mut words, &head, entries).unwrap_err();
            assert_eq!(Node::new(layout, &words).kind(), Kind::Invalid);
            error
        };
        assert_eq!(encode(&entries[1..5]), ChangeError::OutsideFences);
        assert_eq!(encode(&entries[5..11]), ChangeError::OutsideFences);
        assert_eq!(encode(&[entries[3], entries[3]]), ChangeError::Unsorted { index: 1 });
        assert_eq!(encode(&entries), ChangeError::NoRoom);
        let long = LeafEntry { key: &[0; 9], value };
        assert_eq!(encode(&[long]), ChangeError::BadKey { len: 9 });
        let wrong = LeafEntry { key: &keys[3], value: Value::Inline(&[0; 3]) };
        assert_eq!(encode(&[wrong]), ChangeError::BadValue { len: 3 });
        let head = Head { level: 1, ..head };
        let error = layout.encode_leaf(&mut words, &head, &[]);
        assert_eq!(error, Err(ChangeError::WrongKind));
        let inner = |children: &[u64], separators: &[[u8; 8]]| {
            layout.encode_inner(&mut vec![0; layout.node_words()], &head, children, separators)
        };
        assert_eq!(inner(&[1, 2], &[keys[3]]), Ok(()));
        assert_eq!(inner(&[1], &[keys[3]]), Err(ChangeError::BadIndex { index: 1 }));
        assert_eq!(inner(&[1, 2], &[keys[9]]), Err(ChangeError::OutsideFences));
        assert_eq!(inner(&[1, 2], &[keys[1]]), Err(ChangeError::OutsideFences));
        let error = inner(&[1, 2, 3], &[keys[4], keys[4]]);
        assert_eq!(error, Err(ChangeError::Unsorted { index: 1 }));
    }
}

/// Leaves that are cut at keys end with a fence as long as a key, where the shortest string between two keys is short.
#[test]
fn pairs_of_a_leaf_that_is_cut_at_a_key_leave_room_for_its_fence() {
    let layout =
        layout(4096, KeyFormat::Bytes { max: 1024 }, ValueFormat::Fixed(16)).with_exact_cuts();
    let keys: Vec<Vec<u8>> = (0..8_u8).map(|number| [&[number], &[9; 1023][..]].concat()).collect();
    let value = Value::Inline(&[7; 16]);
    let entries: Vec<_> = keys[1..].iter().map(|key| LeafEntry { key, value }).collect();
    let low = Some(&keys[0][..]);
    let count = layout.fit_leaf(low, None, &entries, 100);
    assert_eq!(count, 1, "a low fence, a key, a high fence");
    let mut high = Vec::new();
    layout.separator(entries[count - 1].key, entries[count].key, &mut high);
    assert_eq!(high, keys[1]);
    let mut words = vec![0; layout.node_words()];
    let head = Head { addr: 64, low, high: Some(&high), ..Head::default() };
    assert_eq!(layout.encode_leaf(&mut words, &head, &entries[..count]), Ok(()));
}
