//! Inner level test: inner nodes whose children split and merge, against a sorted map.

use std::collections::BTreeMap;

use super::*;

const FIRST_CHILD: u64 = 1000;

struct Level<'l> {
    layout: &'l Layout,
    nodes: Vec<Twin>,
    /// Separator to the child above it; the first child is above none of them.
    model: BTreeMap<Vec<u8>, u64>,
    addr_next: u64,
    splits: usize,
    merges: usize,
}

impl<'l> Level<'l> {
    fn new(layout: &'l Layout) -> Self {
        let mut only = Twin::new(layout);
        let head = Head { addr: 64, level: 1, ..Head::default() };
        both!(layout, only, |node| node.init_inner(&head, FIRST_CHILD)).unwrap();
        let model = BTreeMap::new();
        Self { layout, nodes: vec![only], model, addr_next: 128, splits: 0, merges: 0 }
    }

    fn node_of(&self, key: &[u8]) -> usize {
        let inside = |twin: &Twin| twin.node(self.layout).covers(key) == Cover::Inside;
        self.nodes.iter().position(inside).unwrap()
    }

    fn insert(&mut self, separator: &[u8], child: u64) {
        let layout = self.layout;
        loop {
            let at = self.node_of(separator);
            let twin = &mut self.nodes[at];
            let before = twin.private.clone();
            let known = self.model.get(separator);
            match both!(layout, twin, |node| node.insert_separator(separator, child)) {
                Ok(Posted::Added(index)) => {
                    assert_eq!(known, None);
                    self.model.insert(separator.to_vec(), child);
                    twin.seal(layout, 0);
                    let again = both!(layout, twin, |node| node.insert_separator(separator, child));
                    assert_eq!(again, Ok(Posted::AlreadyThere(index)));
                    let other = both!(layout, twin, |node| node.insert_separator(separator, 1));
                    return assert_eq!(other, Err(ChangeError::OtherChild { index }));
                }
                Ok(Posted::AlreadyThere(_)) => panic!("no child is posted twice"),
                Err(ChangeError::OtherChild { .. } | ChangeError::OutsideFences) => {
                    assert!(known.is_some(), "only a separator or fence that is there is refused");
                    return assert_eq!(before, twin.private);
                }
                Err(ChangeError::NoRoom) => {
                    assert_eq!(before, twin.private);
                    assert_full(layout, twin, separator.len(), 16, layout.inner_cap());
                }
                Err(error) => panic!("{error}"),
            }
            self.split(at, separator);
        }
    }

    fn split(&mut self, at: usize, separator: &[u8]) {
        let layout = self.layout;
        let count = self.nodes[at].node(layout).count();
        let (mut right, split) = split(layout, &mut self.nodes[at], separator, self.addr_next);
        self.addr_next += 64;
        self.splits += 1;
        right.seal(layout, 0);
        self.nodes[at].seal(layout, 0);
        assert!(self.model.contains_key(&split.separator), "a separator moves up");
        let halves = self.nodes[at].node(layout).count() + right.node(layout).count();
        assert_eq!(halves + 1, count);
        self.nodes.insert(at + 1, right);
    }

    fn remove(&mut self, separator: &[u8], by_child: bool) {
        let layout = self.layout;
        let child = self.model[separator];
        let at = self.node_of(separator);
        let twin = &mut self.nodes[at];
        let (index, _) = twin.node(layout).child_for(separator);
        let mut stored = Vec::new();
        if !twin.node(layout).separator(index, &mut stored) || stored != separator {
            return assert!(twin.node(layout).high_fence(&mut stored) && stored == separator);
        }
        assert_eq!(twin.node(layout).find_child(child), Some(index + 1));
        if by_child {
            assert_eq!(both!(layout, twin, |node| node.remove_child(child)), Ok(index));
        } else {
            both!(layout, twin, |node| node.remove_separator(index)).unwrap();
        }
        self.model.remove(separator);
        twin.seal(layout, 0);
    }

    fn merge(&mut self, at: usize) {
        let layout = self.layout;
        if at + 1 >= self.nodes.len() {
            return;
        }
        let right = self.nodes.remove(at + 1);
        let left = &mut self.nodes[at];
        let can = left.frame(layout).can_merge(&right.node(layout), 100);
        let before = left.private.clone();
        let merged = both!(layout, left, |node| node.merge_right(&right.frame(layout)));
        assert_eq!(can, merged.is_ok());
        if can {
            self.merges += 1;
            left.seal(layout, 0);
        } else {
            assert_eq!(before, left.private);
            self.nodes.insert(at + 1, right);
        }
    }

    fn check(&self) {
        let layout = self.layout;
        let mut stored = Vec::new();
        let mut wanted = self.model.iter();
        let mut child = FIRST_CHILD;
        for twin in &self.nodes {
            let (node, frame) = (twin.node(layout), twin.frame(layout));
            for index in 0..=node.count() {
                assert_eq!(node.child(index), Some(child));
                assert_eq!(frame.child(index), Some(child));
                let last = index == node.count();
                let bounded = if last {
                    node.high_fence(&mut stored)
                } else {
                    frame.separator(index, &mut stored)
                };
                let Some((separator, &next)) = wanted.next() else {
                    assert!(last && !bounded);
                    break;
                };
                assert_eq!(&stored, separator);
                // A bound belongs to its child, and what lies just above it to the next.
                assert_eq!(node.child_for(separator), (index, child));
                assert_eq!(frame.child_for(separator), (index, child));
                if !last {
                    assert_eq!(node.child_after(separator), (index + 1, next));
                }
                child = next;
            }
            assert_eq!(node.child(node.count() + 1), None);
        }
        assert!(wanted.next().is_none());
    }
}

#[test]
fn random_separators_agree_with_a_sorted_map() {
    for (number, layout) in layouts().iter().enumerate() {
        let mut rng = Rng(number as u64 + 100);
        let mut level = Level::new(layout);
        let rounds = if layout.node_bytes() > 4096 { 6000 } else { 12_000 };
        for round in 0..rounds {
            let separator = random_separator(layout, &mut rng);
            let growing = round % 1000 < 750;
            match rng.below(8) {
                0..=4 if growing => level.insert(&separator, FIRST_CHILD + 1 + round),
                5 => level.merge(rng.below(level.nodes.len())),
                _ => {
                    if let Some((separator, _)) = level.model.range(separator..).next() {
                        level.remove(&separator.clone(), rng.below(2) == 0);
                    }
                }
            }
            if round % 100 == 0 {
                level.check();
            }
        }
        level.check();
        let large = layout.node_bytes() > 4096;
        assert!(large || level.splits > 0 && level.merges > 0, "layout {number} was never full");
    }
}

#[test]
fn largest_separators_always_find_room() {
    // INV-NODE-6 for inner nodes.
    for layout in layouts().iter().filter(|layout| !layout.is_dense()) {
        let mut rng = Rng(9);
        let mut level = Level::new(layout);
        for round in 0..300_u32 {
            let mut key = vec![0; layout.key_max()];
            let number = round.wrapping_mul(0x9E37_79B9).to_be_bytes();
            let at = rng.pick(&[0, layout.key_max().saturating_sub(2), layout.key_max() / 2]);
            for (into, byte) in key[at..].iter_mut().zip(number) {
                *into = byte;
            }
            level.insert(&key, FIRST_CHILD + 1 + u64::from(round));
        }
        level.check();
    }
}

#[test]
fn splits_of_one_child_may_be_posted_in_any_order() {
    let layout = layout(256, KeyFormat::Bytes { max: 20 }, ValueFormat::Bytes);
    let mut level = Level::new(&layout);
    // Child 1000 was split at "m" (to 21), then at "f" (to 22); the second is posted first.
    level.insert(b"f", 22);
    level.insert(b"m", 21);
    level.check();
    assert_eq!(level.nodes[0].node(&layout).child_for(b"g"), (1, 22));
}

#[test]
fn children_can_be_exchanged() {
    for layout in &layouts() {
        let mut level = Level::new(layout);
        level.insert(&vec![7; layout.key_max()], 5);
        for (index, addr) in [(0, 1 << 63), (1, u64::MAX)] {
            both!(layout, level.nodes[0], |node| node.set_child(index, addr)).unwrap();
            assert_eq!(level.nodes[0].node(layout).find_child(addr), Some(index));
        }
        let missing = both!(layout, level.nodes[0], |node| node.set_child(2, 1));
        assert_eq!(missing, Err(ChangeError::BadIndex { index: 2 }));
    }
}
