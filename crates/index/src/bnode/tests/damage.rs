//! Damage tests: torn, flipped and random images cause no panic, and none passes for a node.

use super::*;

/// Images of every layout: leaves and inner nodes, partly filled.
fn images(layout: &Layout) -> Vec<Vec<u64>> {
    let mut rng = Rng(400);
    let mut keys: Vec<_> = (0..60).map(|_| random_key(layout, &mut rng)).collect();
    keys.sort();
    keys.dedup();
    let low = keys.remove(0);
    let high = keys.last().cloned().unwrap();
    let head = Head { addr: 64, low: Some(&low), high: Some(&high), ..Head::default() };
    let mut leaf = vec![0; layout.node_words()];
    NodeMut::new(layout, &mut leaf[..]).init_leaf(&head).unwrap();
    let mut inner = leaf.clone();
    NodeMut::new(layout, &mut inner[..]).init_inner(&Head { level: 1, ..head }, 9).unwrap();
    let empty = vec![leaf.clone(), inner.clone()];
    for (index, key) in keys.iter().enumerate() {
        let value = Owned::random(layout, &mut rng);
        let mut node = NodeMut::new(layout, &mut leaf[..]);
        let _full = node.insert(key, value.value());
        if index % 5 == 4 {
            node.remove(0).unwrap();
        }
        let _full = NodeMut::new(layout, &mut inner[..]).insert_separator(key, 100);
    }
    for image in [&mut leaf, &mut inner] {
        let mut node = NodeMut::new(layout, &mut image[..]);
        assert!(node.as_node().count() > 0);
        node.seal(2);
        verify_image(layout, image, 64).unwrap();
    }
    [vec![leaf, inner], empty].concat()
}

/// Calls everything that reads.
fn read_all<W: Word>(node: &Node<'_, W>, keys: &[Vec<u8>]) {
    let mut out = Vec::new();
    let _ = (node.kind(), node.level(), node.used_bytes(), node.capacity_bytes(), node.sum_ok());
    let _ = (node.low_fence(&mut out), node.high_fence(&mut out));
    assert!(out.len() <= 65535);
    for key in keys {
        let _ = (node.covers(key), node.covers_after(key));
        let _ = (node.child_for(key), node.child_after(key), node.upper_bound(key));
        let (Ok(index) | Err(index)) = node.find(key);
        assert!(index <= node.words().len());
    }
    for index in (0..20).chain([usize::from(u16::MAX), usize::MAX - 1]) {
        let _ = (node.key(index, &mut out), node.separator(index, &mut out));
        let _ = (node.value(index, &mut out), node.child(index), node.find_child(index as u64));
    }
    let _ = node.can_merge(node, 100);
}

/// Calls everything that changes, on copies.
fn change_all(layout: &Layout, image: &[u64], keys: &[Vec<u8>]) {
    let shared = |image: &[u64]| -> Vec<AtomicU64> {
        image.iter().map(|&word| AtomicU64::new(word)).collect()
    };
    for key in keys {
        let mut copy = image.to_vec();
        let frame = shared(image);
        let mut node = NodeMut::new(layout, &mut copy[..]);
        let mut other = NodeMut::new(layout, &frame[..]);
        let mut right = vec![0; image.len()];
        let mut right = NodeMut::new(layout, &mut right[..]);
        let value = Owned::random(layout, &mut Rng(1));
        let _ = (node.insert(key, value.value()), other.insert(key, value.value()));
        let _ = (node.replace(0, value.value()), other.replace(1, value.value()));
        let _ = (node.insert_separator(key, 4), other.insert_separator(key, 4));
        let _ = (node.remove(1), other.remove(0));
        let _ = (node.remove_separator(1), other.remove_child(4));
        let _ = (node.set_child(1, 3), other.set_child(0, 3));
        let _ = node.merge_right(&other.as_node());
        let _ = (node.split_for(key, &mut right, 4, 0), other.split_for(key, &mut right, 4, 0));
        assert_eq!(copy[0], image[0], "damage never reaches the lock word");
        assert_eq!(frame[0].load(Relaxed), image[0]);
    }
}

fn probes(layout: &Layout) -> Vec<Vec<u8>> {
    let mut rng = Rng(500);
    let mut keys: Vec<_> = (0..4).map(|_| random_key(layout, &mut rng)).collect();
    keys.extend([vec![], vec![0xFF; 1100]]);
    keys
}

#[test]
fn every_flipped_bit_is_noticed() {
    for layout in &layouts() {
        // All bits of a small node; of a large one, some in every word.
        let step = if layout.node_bytes() <= 1024 { 1 } else { 61 * layout.node_bytes() / 4096 };
        let keys = probes(layout);
        for mut image in images(layout) {
            for bit in (64..layout.node_bytes() * 8).step_by(step) {
                image[bit / 64] ^= 1 << (bit % 64);
                let error = verify_image(layout, &image, 64).unwrap_err();
                assert!(error == NodeError::Sum && error.may_be_torn());
                if bit % 7 == 0 || bit < 8 * 80 {
                    read_all(&Node::new(layout, &image), &keys[..2]);
                }
                image[bit / 64] ^= 1 << (bit % 64);
            }
            verify_image(layout, &image, 64).unwrap();
        }
    }
}

#[test]
fn torn_images_are_noticed() {
    for layout in &layouts() {
        let images = images(layout);
        let shorter = &images[0][1..];
        assert!(matches!(verify_image(layout, shorter, 64), Err(NodeError::Length { .. })));
        for (index, image) in images.iter().enumerate() {
            let other = &images[(index + 1) % images.len()];
            let address = verify_image(layout, image, 128);
            assert_eq!(address, Err(NodeError::Address { expected: 128, found: 64 }));
            for cut in (1..image.len()).step_by(image.len() / 32) {
                for tail in [&other[cut..], &vec![0; image.len() - cut][..]] {
                    let torn = [&image[..cut], tail].concat();
                    let same = torn[1..] == image[1..] || torn[1..] == other[1..];
                    let verdict = verify_image(layout, &torn, 64);
                    assert_eq!(verdict.is_ok(), same, "cut at word {cut}");
                    read_all(&Node::new(layout, &torn), &probes(layout)[..1]);
                }
            }
        }
    }
}

#[test]
fn damage_with_a_right_sum_is_survived() {
    for (number, layout) in layouts().iter().enumerate() {
        let mut rng = Rng(number as u64 + 600);
        let keys = probes(layout);
        let rounds = if layout.node_bytes() > 4096 { 20 } else { 300 };
        let mut refused = 0;
        for image in images(layout) {
            for _ in 0..rounds {
                let mut damaged = image.clone();
                for _ in 0..1 + rng.below(3) {
                    // Mostly header and slots, where the damage is worst.
                    let reach = rng.pick(&[12, layout.node_words() - 1]);
                    let index = 1 + rng.below(reach);
                    damaged[index] = match rng.below(3) {
                        0 => rng.next(),
                        1 => damaged[index] ^ 1 << rng.below(64),
                        _ => rng.pick(&[0, u64::MAX]),
                    };
                }
                let version = damaged[7];
                NodeMut::new(layout, &mut damaged[..]).seal(version);
                let verdict = verify_image(layout, &damaged, 64);
                assert!(verdict.is_ok() || !verdict.unwrap_err().may_be_torn());
                refused += usize::from(verdict.is_err());
                read_all(&Node::new(layout, &damaged), &keys);
                let frame: Vec<_> = damaged.iter().map(|&word| AtomicU64::new(word)).collect();
                read_all(&Node::new(layout, &frame), &keys);
                change_all(layout, &damaged, &keys);
            }
        }
        assert!(refused > rounds, "layout {number}: most damage is recognised");
    }
}

#[test]
fn random_and_zeroed_memory_is_no_node() {
    for (number, layout) in layouts().iter().enumerate() {
        let mut rng = Rng(number as u64 + 700);
        let keys = probes(layout);
        let zeros = vec![0; layout.node_words()];
        assert_eq!(verify_image(layout, &zeros, 0), Err(NodeError::Sum));
        assert_eq!(Node::new(layout, &zeros).kind(), Kind::Invalid);
        for round in 0..if layout.node_bytes() > 4096 { 20 } else { 200 } {
            let mut words: Vec<u64> = match round % 3 {
                0 => (0..layout.node_words()).map(|_| rng.next()).collect(),
                1 => vec![u64::MAX; layout.node_words()],
                _ => zeros.clone(),
            };
            assert!(verify_image(layout, &words, words[1]).is_err());
            // A plausible header in front of it, so that changes go on to the payload.
            let kind = 1 + rng.next() % 2;
            let count = rng.next() % 20;
            words[5] = kind | (kind - 1) << 8 | count << 16 | 3 << 32 | 0xF7 << 40;
            words[5] |= if layout.is_dense() { 0 } else { 4 << 32 };
            read_all(&Node::new(layout, &words), &keys);
            change_all(layout, &words, &keys);
        }
    }
}
