//! Search tests: strings of every length, also those that cannot be keys.

use super::*;

#[test]
fn bounds_of_any_string_are_lexicographic() {
    for (number, layout) in layouts().iter().enumerate() {
        let mut rng = Rng(number as u64 + 200);
        let mut strings: Vec<_> = (0..400).map(|_| random_key(layout, &mut rng)).collect();
        strings.sort();
        strings.dedup();
        let value = Owned::random(layout, &mut rng);
        let mut separators = strings.clone();
        let (low, high) = (separators.remove(0), separators.pop());
        separators.truncate(rng.below(20) + 1);
        let mut keys = separators.clone();
        keys.push(high.clone().unwrap());
        let entries: Vec<_> =
            keys.iter().map(|key| LeafEntry { key, value: value.value() }).collect();
        let fit = layout.fit_leaf(Some(&low), None, &entries, 100);
        let keys = &keys[..fit];
        let head = Head { addr: 64, low: Some(&low), high: high.as_deref(), ..Head::default() };
        let leaf_head = Head { high: keys.last().map(|key| &key[..]), ..head };
        let mut leaf = Twin::new(layout);
        layout.encode_leaf(&mut leaf.private, &leaf_head, &entries[..fit]).unwrap();
        let mut inner = Twin::new(layout);
        let inner_fit = layout.fit_inner(Some(&low), high.as_deref(), &separators, 50) - 1;
        let separators = &separators[..inner_fit];
        let children: Vec<_> = (1..=separators.len() as u64 + 1).collect();
        let inner_head = Head { level: 1, ..head };
        layout.encode_inner(&mut inner.private, &inner_head, &children, separators).unwrap();
        for twin in [&leaf, &inner] {
            for (shared, &word) in twin.shared.iter().zip(&twin.private) {
                shared.store(word, Relaxed);
            }
        }
        let mut probes = strings;
        for index in 0..probes.len() {
            let key = probes[index].clone();
            probes.push([&key[..], &[0]].concat());
            probes.push([&key[..], &[0xFF; 9]].concat());
            probes.push(key[..key.len() / 2].to_vec());
            probes.push(key[..key.len().saturating_sub(1)].to_vec());
        }
        for probe in &probes {
            check(&leaf.node(layout), keys, probe, &leaf_head);
            check(&leaf.frame(layout), keys, probe, &leaf_head);
            check_inner(&inner.node(layout), separators, probe);
            check_inner(&inner.frame(layout), separators, probe);
        }
    }
}

fn check<W: Word>(node: &Node<'_, W>, keys: &[Vec<u8>], probe: &[u8], head: &Head<'_>) {
    let below = keys.iter().filter(|key| &key[..] < probe).count();
    let up_to = keys.iter().filter(|key| &key[..] <= probe).count();
    assert_eq!(node.lower_bound(probe), below);
    assert_eq!(node.upper_bound(probe), up_to);
    assert_eq!(node.find(probe), if up_to > below { Ok(below) } else { Err(below) });
    let (low, high) = (head.low.unwrap(), head.high.unwrap());
    let expected = if probe <= low {
        Cover::Below
    } else if probe > high {
        Cover::Above
    } else {
        Cover::Inside
    };
    assert_eq!(node.covers(probe), expected);
    let expected = if probe < low {
        Cover::Below
    } else if probe >= high {
        Cover::Above
    } else {
        Cover::Inside
    };
    assert_eq!(node.covers_after(probe), expected);
}

fn check_inner<W: Word>(node: &Node<'_, W>, separators: &[Vec<u8>], probe: &[u8]) {
    let below = separators.iter().filter(|key| &key[..] < probe).count();
    let up_to = separators.iter().filter(|key| &key[..] <= probe).count();
    assert_eq!(node.child_for(probe), (below, below as u64 + 1));
    assert_eq!(node.child_after(probe), (up_to, up_to as u64 + 1));
}
