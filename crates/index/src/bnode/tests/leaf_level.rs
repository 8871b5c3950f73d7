//! Leaf level test: inserts, splits, merges and reads of leaves, against a sorted map.

use std::collections::BTreeMap;

use super::*;

const LOCK: u64 = 0xABCD;

struct Level<'l> {
    layout: &'l Layout,
    leaves: Vec<Twin>,
    model: BTreeMap<Vec<u8>, Owned>,
    addr_next: u64,
    splits: usize,
    merges: usize,
}

impl<'l> Level<'l> {
    fn new(layout: &'l Layout) -> Self {
        let mut only = Twin::new(layout);
        let head = Head { addr: 64, version: 1, ..Head::default() };
        both!(layout, only, |node| node.init_leaf(&head)).unwrap();
        Self {
            layout,
            leaves: vec![Self::locked(only)],
            model: BTreeMap::new(),
            addr_next: 128,
            splits: 0,
            merges: 0,
        }
    }

    fn locked(mut twin: Twin) -> Twin {
        twin.private[0] = LOCK;
        twin.shared[0].store(LOCK, Relaxed);
        twin
    }

    /// The leaf that covers `key`.
    fn leaf_of(&self, key: &[u8]) -> usize {
        let mut found = None;
        for (index, leaf) in self.leaves.iter().enumerate() {
            let cover = leaf.node(self.layout).covers(key);
            assert_eq!(cover, leaf.frame(self.layout).covers(key));
            let order = match found {
                None if cover == Cover::Inside => {
                    found = Some(index);
                    Cover::Inside
                }
                None => Cover::Above,
                Some(_) => Cover::Below,
            };
            assert_eq!(cover, order);
        }
        found.unwrap()
    }

    fn insert(&mut self, key: &[u8], value: &Owned) {
        let layout = self.layout;
        let mut splits_max = usize::MAX;
        loop {
            let at = self.leaf_of(key);
            let leaf = &mut self.leaves[at];
            let before = leaf.private.clone();
            let found = leaf.node(layout).find(key);
            match both!(layout, leaf, |node| node.insert(key, value.value())) {
                Ok(index) => {
                    assert_eq!(found, Err(index));
                    assert!(self.model.insert(key.to_vec(), value.clone()).is_none());
                    return leaf.seal(layout, LOCK);
                }
                Err(ChangeError::Exists { index }) => {
                    assert_eq!(found, Ok(index));
                    assert!(self.model.contains_key(key));
                    assert_eq!(before, leaf.private);
                    return self.replace(key, value);
                }
                Err(ChangeError::NoRoom) => {
                    assert_eq!(before, leaf.private);
                    let rest = match value {
                        Owned::Inline(bytes) => 10 + bytes.len(),
                        Owned::Record(_) => 10 + 16,
                    };
                    assert_full(layout, leaf, key.len(), rest, layout.leaf_cap());
                }
                Err(error) => panic!("{error}"),
            }
            // INV-NODE-6: each split leaves fewer entries beside the key.
            let count = self.leaves[at].node(layout).count();
            assert!(count < splits_max && count > 0);
            splits_max = count;
            self.split(at, key);
        }
    }

    fn replace(&mut self, key: &[u8], value: &Owned) {
        let layout = self.layout;
        loop {
            let at = self.leaf_of(key);
            let leaf = &mut self.leaves[at];
            let index = leaf.frame(layout).find(key).unwrap();
            match both!(layout, leaf, |node| node.replace(index, value.value())) {
                Ok(()) => break leaf.seal(layout, LOCK),
                Err(ChangeError::NoRoom) => self.split(at, key),
                Err(error) => panic!("{error}"),
            }
        }
        self.model.insert(key.to_vec(), value.clone());
    }

    fn split(&mut self, at: usize, key: &[u8]) {
        let layout = self.layout;
        let (mut before, mut after) = (Vec::new(), Vec::new());
        let count = self.leaves[at].node(layout).count();
        let (right, split) = split(layout, &mut self.leaves[at], key, self.addr_next);
        self.addr_next += 64;
        self.splits += 1;
        let mut right = Self::locked(right);
        right.seal(layout, LOCK);
        self.leaves[at].seal(layout, LOCK);
        let (left, right_node) = (self.leaves[at].node(layout), right.node(layout));
        assert_eq!(left.count() + right_node.count(), count);
        assert_eq!(split.goes_right, key > &split.separator[..]);
        // The separator is as the layout wants it between the keys on both sides, `key` among them
        // when one side was empty.
        if count > 1 {
            assert!(left.count() > 0 && right_node.count() > 0);
            left.key(left.count() - 1, &mut before);
            right_node.key(0, &mut after);
            let mut separator = Vec::new();
            layout.separator(&before, &after, &mut separator);
            assert_eq!(separator, split.separator);
        }
        self.leaves.insert(at + 1, right);
    }

    fn remove(&mut self, key: &[u8]) {
        let layout = self.layout;
        let at = self.leaf_of(key);
        let leaf = &mut self.leaves[at];
        match leaf.node(layout).find(key) {
            Ok(index) => {
                both!(layout, leaf, |node| node.remove(index)).unwrap();
                assert!(self.model.remove(key).is_some());
                leaf.seal(layout, LOCK);
            }
            Err(_) => assert!(!self.model.contains_key(key)),
        }
    }

    fn merge(&mut self, at: usize, fill_percent: usize) {
        let layout = self.layout;
        if at + 1 >= self.leaves.len() {
            return;
        }
        let right = self.leaves.remove(at + 1);
        let left = &mut self.leaves[at];
        let can = left.node(layout).can_merge(&right.frame(layout), fill_percent);
        let before = left.private.clone();
        let merged = both!(layout, left, |node| node.merge_right(&right.node(layout)));
        assert!(!can || merged.is_ok());
        if fill_percent == 100 {
            assert_eq!(can, merged.is_ok(), "merging succeeds exactly when it should");
        }
        if merged.is_ok() {
            self.merges += 1;
            left.seal(layout, LOCK);
            assert_eq!(left.node(layout).right(), right.node(layout).right());
        } else {
            assert_eq!(merged, Err(ChangeError::NoRoom));
            assert_eq!(before, left.private);
            self.leaves.insert(at + 1, right);
        }
    }

    fn check(&self) {
        let layout = self.layout;
        let (mut key, mut low, mut high) = (Vec::new(), Vec::new(), Vec::new());
        let mut all = self.model.iter();
        let mut fence: Option<Vec<u8>> = None;
        for (at, leaf) in self.leaves.iter().enumerate() {
            let (node, frame) = (leaf.node(layout), leaf.frame(layout));
            assert_eq!(node.kind(), Kind::Leaf);
            assert!(node.used_bytes() <= node.capacity_bytes());
            assert_eq!(node.low_fence(&mut low).then_some(&low), fence.as_ref());
            for index in 0..node.count() {
                let (want_key, want_value) = all.next().unwrap();
                for found in [node.key(index, &mut key), frame.key(index, &mut key)] {
                    assert!(found);
                    assert_eq!(&key, want_key);
                }
                assert_eq!(node.find(want_key), Ok(index));
                assert_eq!(frame.find(want_key), Ok(index));
                assert_eq!(Owned::read(&node, index).as_ref(), Some(want_value));
                assert_eq!(Owned::read(&frame, index).as_ref(), Some(want_value));
            }
            assert!(!node.key(node.count(), &mut key));
            let low = fence.clone();
            fence = node.high_fence(&mut high).then(|| high.clone());
            check_fences(&node, low.as_deref(), fence.as_deref());
            let next = self.leaves.get(at + 1).map_or(0, |next| next.node(layout).self_addr());
            assert_eq!(node.right(), next);
        }
        assert_eq!(fence, None);
        assert!(all.next().is_none());
    }
}

#[test]
fn random_changes_agree_with_a_sorted_map() {
    for (number, layout) in layouts().iter().enumerate() {
        let mut rng = Rng(number as u64);
        let mut level = Level::new(layout);
        let rounds = if layout.node_bytes() > 4096 { 3000 } else { 8000 };
        for round in 0..rounds {
            let (key, value) = (random_key(layout, &mut rng), Owned::random(layout, &mut rng));
            // Growing and shrinking phases.
            let growing = round % 800 < 550;
            match rng.below(10) {
                0..=5 if growing => level.insert(&key, &value),
                6 => level.merge(rng.below(level.leaves.len()), rng.pick(&[100, 60])),
                7 if level.model.contains_key(&key) => level.replace(&key, &value),
                _ => match level.model.range(key..).next() {
                    Some((key, _)) => level.remove(&key.clone()),
                    None => level.remove(&[0xFF; 3]),
                },
            }
            if round % 100 == 0 {
                level.check();
            }
        }
        level.check();
        assert!(level.splits > 0 && level.merges > 0, "layout {number} saw no split or merge");
    }
}

#[test]
fn largest_keys_and_values_always_find_room() {
    // INV-NODE-6 with nothing but worst cases: as long as allowed, differing at the end or the start.
    for layout in layouts().iter().filter(|layout| !layout.is_dense()) {
        let mut rng = Rng(7);
        let mut level = Level::new(layout);
        let value = match layout.options().value {
            ValueFormat::Bytes => Owned::Inline(vec![1; layout.inline_value_max()]),
            ValueFormat::Fixed(_) => Owned::random(layout, &mut rng),
        };
        for round in 0..200_u32 {
            let mut key = vec![0xFF; layout.key_max()];
            let number = round.wrapping_mul(0x9E37_79B9).to_be_bytes();
            let at = rng.pick(&[0, layout.key_max().saturating_sub(2), layout.key_max() / 2]);
            for (into, byte) in key[at..].iter_mut().zip(number) {
                *into = byte;
            }
            level.insert(&key, &value);
        }
        level.check();
    }
}

#[test]
fn ascending_keys_fill_leaves() {
    let layout = layout(1024, KeyFormat::Fixed(8), ValueFormat::Fixed(8));
    let mut level = Level::new(&layout);
    for number in 0..3000_u64 {
        level.insert(&number.to_be_bytes(), &Owned::Inline(number.to_le_bytes().to_vec()));
    }
    level.check();
    let full = level.leaves.len() - 1;
    assert!(level.leaves[..full].iter().all(|leaf| leaf.node(&layout).count() == 54));
}

#[test]
fn single_entry_and_key_part_ways() {
    let layout = layout(256, KeyFormat::Bytes { max: 55 }, ValueFormat::Bytes);
    for (only, key, separator) in [("m", "pq", "m"), ("pz", "mzz", "n"), ("ab", "aa", "aa")] {
        let mut left = Twin::new(&layout);
        let head = Head { addr: 64, ..Head::default() };
        both!(&layout, left, |node| node.init_leaf(&head)).unwrap();
        both!(&layout, left, |node| node.insert(only.as_bytes(), Value::Inline(b"v"))).unwrap();
        let (right, done) = split(&layout, &mut left, key.as_bytes(), 128);
        assert_eq!(done, Split { separator: separator.into(), goes_right: key > only });
        let counts = (left.node(&layout).count(), right.node(&layout).count());
        assert_eq!(counts, if key > only { (1, 0) } else { (0, 1) });
        let mut again = Twin::new(&layout);
        let refused = NodeMut::new(&layout, &mut left.private[..]).split_for(
            if key > only { only } else { separator }.as_bytes(),
            &mut NodeMut::new(&layout, &mut again.private[..]),
            192,
            0,
        );
        assert_eq!(refused, Err(ChangeError::NothingToSplit));
    }
}

#[test]
fn splits_avoid_fences_that_do_not_fit() {
    // The wanted cut, nine tenths, lies between a long run of 0xFF and "b": nothing shorter than the
    // run separates them, and as a fence it would not fit beside it.
    let layout = layout(256, KeyFormat::Bytes { max: 55 }, ValueFormat::Bytes);
    let mut left = Twin::new(&layout);
    both!(&layout, left, |node| node.init_leaf(&Head { addr: 64, ..Head::default() })).unwrap();
    let run = [&b"a"[..], &[0xFF; 54]].concat();
    for (key, value) in [(&b"A1"[..], 17), (b"A2", 17), (b"A3", 17), (&run, 0), (b"b", 0)] {
        let value = vec![1; value];
        both!(&layout, left, |node| node.insert(key, Value::Inline(&value))).unwrap();
    }
    let (mut right, done) = split(&layout, &mut left, b"c", 128);
    assert_eq!(done.separator, b"B");
    left.seal(&layout, 0);
    right.seal(&layout, 0);
}

#[test]
fn bad_input_is_refused() {
    let layout = layout(256, KeyFormat::Fixed(8), ValueFormat::Fixed(8));
    let slotted = super::layout(256, KeyFormat::Bytes { max: 20 }, ValueFormat::Bytes);
    let (low, high) = ([1; 8], [2; 8]);
    let head = Head { addr: 64, low: Some(&low), high: Some(&high), ..Head::default() };
    for layout in [&layout, &slotted] {
        let mut leaf = Twin::new(layout);
        both!(layout, leaf, |node| node.init_leaf(&head)).unwrap();
        let before = leaf.private.clone();
        let mut insert = |key: &[u8], value: Value<'_>| {
            let error = both!(layout, leaf, |node| node.insert(key, value)).unwrap_err();
            assert_eq!(leaf.private, before);
            error
        };
        let value = Value::Inline(&[0; 8]);
        assert_eq!(insert(&low, value), ChangeError::OutsideFences);
        assert_eq!(insert(&[3; 8], value), ChangeError::OutsideFences);
        assert_eq!(insert(&[1; 21], value), ChangeError::BadKey { len: 21 });
        let long = Value::Inline(&[0; 300]);
        assert_eq!(insert(&high, long), ChangeError::BadValue { len: 300 });
        let mut node = NodeMut::new(layout, &mut leaf.private[..]);
        assert_eq!(node.replace(0, value), Err(ChangeError::BadIndex { index: 0 }));
        assert_eq!(node.remove(0), Err(ChangeError::BadIndex { index: 0 }));
        assert_eq!(node.insert_separator(&high, 5), Err(ChangeError::WrongKind));
        node.mark_dead();
        node.seal(2);
        assert_eq!(node.insert(&high, value), Err(ChangeError::WrongKind));
        assert_eq!(node.as_node().kind(), Kind::Dead);
        assert!(node.as_node().sum_ok());
        assert_eq!(verify_image(layout, &leaf.private, 64), Err(NodeError::Dead));
    }
}

/// They are its fences, and no others are.
fn check_fences<W: Word>(node: &Node<'_, W>, low: Option<&[u8]>, high: Option<&[u8]>) {
    assert!(node.has_fences(low, high));
    let others = |fence: Option<&[u8]>| {
        let Some(fence) = fence else { return vec![Some(Vec::new())] };
        let (mut longer, mut less) = (fence.to_vec(), fence.to_vec());
        longer.push(0);
        let last = less.last_mut().map(|last| *last = last.wrapping_sub(1));
        let shorter = fence[..fence.len().saturating_sub(1)].to_vec();
        let less = last.map(|()| less);
        let all = [Some(longer), less, Some(shorter).filter(|shorter| *shorter != fence)];
        [vec![None], all.into_iter().flatten().map(Some).collect()].concat()
    };
    for other in others(low) {
        assert!(!node.has_fences(other.as_deref(), high), "low {other:?}, is {low:?}");
    }
    for other in others(high) {
        assert!(!node.has_fences(low, other.as_deref()), "high {other:?}, is {high:?}");
    }
}
