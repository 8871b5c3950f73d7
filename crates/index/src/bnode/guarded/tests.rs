//! Guarded leaf tests: formats, a sorted map as the model, deaths within a WRITE, READs that mix words of several lives.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};

use super::super::header::{Head, Kind};
use super::super::tests::Rng;
use super::super::verify::NodeError;
use super::super::view::Cover;
use super::slot::Guard;
use super::*;
use crate::Seek;

const ADDR: u64 = 0x4_0000;
const RIGHT: u64 = 0x8_0000;
const TREE: u64 = 77;

fn layout(key: usize, value: usize, cap: Option<u16>) -> GuardedLayout {
    let spec = Spec { key: KeyFormat::Fixed(key), value: ValueFormat::Fixed(value) };
    let bytes = if key + value > 128 { 4096 } else { 1024 };
    GuardedLayout::new(bytes, &spec, cap, TREE).unwrap()
}

fn key_of(layout: &GuardedLayout, number: u64) -> Vec<u8> {
    let mut key = vec![(number % 3) as u8; layout.key_bytes()];
    key[..8].copy_from_slice(&number.to_be_bytes());
    key
}

fn value_of(layout: &GuardedLayout, number: u64) -> Vec<u8> {
    number.to_le_bytes().iter().copied().cycle().take(layout.value_bytes()).collect()
}

fn head(stamp: Stamp) -> Head<'static> {
    Head { addr: ADDR, right: RIGHT, version: stamp.word(), ..Head::default() }
}

fn leaf_of(layout: &GuardedLayout, numbers: &[u64]) -> Vec<u64> {
    let pairs: Vec<_> = numbers.iter().map(|&n| (key_of(layout, n), value_of(layout, n))).collect();
    let mut words = vec![0; layout.leaf_words()];
    layout.encode(&mut words, &head(Stamp::at_birth(5)), &pairs).unwrap();
    words
}

const FORMATS: [(usize, usize); 7] =
    [(8, 8), (8, 0), (8, 64), (24, 8), (64, 256), (16, 0), (64, 8)];

#[test]
fn a_leaf_gives_back_what_it_was_made_of() {
    assert_eq!(layout(8, 8, None).slots(), 40);
    for (key, value) in FORMATS {
        let layout = layout(key, value, None);
        let numbers: Vec<u64> = (0..layout.slots() as u64 - 1).map(|n| n * 2).collect();
        let words = leaf_of(&layout, &numbers);
        let leaf = GuardedLeaf::new(&layout, &words);
        assert_eq!((leaf.kind_at(ADDR), leaf.verify(ADDR)), (Kind::Leaf, Ok(())));
        assert_eq!((leaf.count(), leaf.right()), (numbers.len(), RIGHT));
        let mut found = Vec::new();
        for &number in &numbers {
            let Lookup::Hit(index) = leaf.find(&key_of(&layout, number)) else {
                panic!("key {number} of {key} + {value} bytes is not found");
            };
            leaf.value(index, &mut found);
            assert_eq!(found, value_of(&layout, number));
            assert_eq!(leaf.find(&key_of(&layout, number + 1)), Lookup::Miss);
        }
        let expected: Vec<_> =
            numbers.iter().map(|&n| (key_of(&layout, n), value_of(&layout, n))).collect();
        assert_eq!(leaf.pairs(), Ok(expected));
        assert_eq!(leaf.find(&[0; 3]), Lookup::Miss, "a key of another length");
    }
}

#[test]
fn changes_write_what_they_name_and_agree_with_a_map() {
    for (key, value) in FORMATS {
        for seed in 0..40 {
            let (layout, mut rng) = (layout(key, value, Some(3)), Rng::of(seed));
            let mut remote = leaf_of(&layout, &[]);
            let mut model = BTreeMap::new();
            for step in 0..120 {
                // Each step is another holder of the lock, who READs what the others have written.
                let mut words = remote.clone();
                let mut leaf = GuardedLeafMut::new(&layout, &mut words);
                assert_eq!(leaf.mend(), []);
                let key = key_of(&layout, rng.pick(&[0, 1, 7, 8, u64::MAX]));
                let value = value_of(&layout, step);
                let found = leaf.view().find(&key);
                let edit = match (found, rng.below(3)) {
                    (Lookup::Hit(index), 0) => {
                        model.remove(&key).unwrap();
                        leaf.remove(index)
                    }
                    (Lookup::Hit(index), 1) => {
                        model.insert(key, value.clone()).unwrap();
                        leaf.update(index, &value)
                    }
                    _ => leaf.insert(&key, &value).inspect(|_| {
                        assert_eq!(model.insert(key.clone(), value.clone()), None);
                    }),
                };
                match edit {
                    Ok(edit) => {
                        let range = edit.bytes.start / 8..edit.bytes.end / 8;
                        remote[range.clone()].copy_from_slice(&words[range]);
                    }
                    Err(ChangeError::NoRoom) => assert_eq!(model.len(), 3),
                    Err(ChangeError::Exists { .. }) => assert!(found != Lookup::Miss),
                    Err(error) => panic!("{error}"),
                }
                assert_eq!(words, remote, "the bytes named are all that changed");
                let leaf = GuardedLeaf::new(&layout, &remote);
                assert_eq!(leaf.verify(ADDR), Ok(()));
                assert_eq!(leaf.pairs().unwrap(), model.clone().into_iter().collect::<Vec<_>>());
            }
        }
    }
}

type Pair = Option<(Vec<u8>, Vec<u8>)>;

fn shown(layout: &GuardedLayout, words: &[u64], index: usize) -> Option<Pair> {
    let leaf = GuardedLeaf::new(layout, words);
    match leaf.slot(index) {
        SlotState::Torn => None,
        SlotState::Empty => Some(None),
        SlotState::Pair => {
            let mut value = Vec::new();
            leaf.value(index, &mut value);
            Some(Some((leaf.key(index), value)))
        }
    }
}

/// One slot's life: what its words were after each landing of a word, and what the slot may say at that time.
struct Life {
    layout: GuardedLayout,
    remote: Vec<u64>,
    history: Vec<(Vec<u64>, BTreeSet<Pair>)>,
    rng: Rng,
}

impl Life {
    fn slot(&self) -> Vec<u64> {
        self.remote[self.layout.slot_at(0)..][..self.layout.slot_words()].to_vec()
    }

    /// Lands the words of `range` in any order; the writer dies before one of them if `dies`.
    fn land(&mut self, range: std::ops::Range<usize>, image: &[u64], dies: bool) {
        let mut words: Vec<usize> = (range.start / 8..range.end / 8).collect();
        let landing = if dies { self.rng.below(words.len()) } else { words.len() };
        for _ in 0..landing {
            let at = words.swap_remove(self.rng.below(words.len()));
            self.remote[at] = image[at];
            let slot = self.slot();
            self.history.push((slot, BTreeSet::new()));
        }
    }

    /// Mends as holders of the lock do who may die at it, until one does not.
    fn mend(&mut self) {
        loop {
            let mut image = self.remote.clone();
            let mends = GuardedLeafMut::new(&self.layout, &mut image).mend();
            let Some(mend) = mends.first() else { return };
            assert_eq!((mends.len(), mend.index), (1, 0));
            let dies = self.rng.below(3) == 0;
            self.land(mend.bytes.clone(), &image, dies);
        }
    }

    /// One change by a holder of the lock, who may die at any word of it.
    fn change(&mut self, keys: &[u64]) {
        let before = shown(&self.layout, &self.remote, 0).expect("a slot at rest fits");
        let begun = self.history.len() - 1;
        let mut image = self.remote.clone();
        let mut leaf = GuardedLeafMut::new(&self.layout, &mut image);
        let value = value_of(&self.layout, 1 + self.rng.below(2) as u64);
        let edit = match (&before, self.rng.below(2)) {
            (None, _) => leaf.insert(&key_of(&self.layout, self.rng.pick(keys)), &value),
            (Some(_), 0) => leaf.remove(0),
            (Some(_), _) => leaf.update(0, &value),
        };
        let edit = edit.unwrap();
        assert_eq!(edit.index, 0);
        // A record stands for a wide change: it is done in whole.
        let dies = self.rng.below(3) != 0 && !edit.is_wide;
        self.land(edit.bytes, &image, dies);
        self.mend();
        let after = shown(&self.layout, &self.remote, 0).expect("mended slots fit");
        let wanted = shown(&self.layout, &image, 0).expect("it is whole");
        assert!([&before, &wanted].contains(&&after) && (dies || after == wanted));
        for (_, may_say) in &mut self.history[begun..] {
            may_say.extend([before.clone(), after.clone()]);
        }
    }
}

/// A READ may take each word at another instant. What fits must have been so at one of them (`INV-GUARD-1`).
#[test]
fn words_of_several_lives_never_pass_for_a_pair_that_was_not_there() {
    let (mut torn, mut whole) = (0, 0);
    for (key, value) in [(8, 8), (8, 0), (8, 16), (16, 8)] {
        for seed in 0..250 {
            let layout = layout(key, value, Some(2));
            let mut remote = leaf_of(&layout, &[9]);
            // The pair moves to slot 1, so that slot 0 is the only free one.
            let mut edit = GuardedLeafMut::new(&layout, &mut remote);
            edit.insert(&key_of(&layout, 8), &value_of(&layout, 8)).unwrap();
            edit.remove(0).unwrap();
            let mut life = Life { layout, remote, history: Vec::new(), rng: Rng::of(seed) };
            let first = life.slot();
            life.history.push((first, BTreeSet::from([None])));
            let words_max = if key + value > 16 { 12 } else { 18 };
            while life.history.len() < words_max {
                life.change(&[1, 2]);
            }
            let count = layout.slot_words();
            let moments = life.history.len();
            let mut image = life.remote.clone();
            for mix in 0..moments.pow(count as u32) {
                let at: Vec<usize> =
                    (0..count).map(|word| mix / moments.pow(word as u32) % moments).collect();
                // Samples of random mixes alone, where there are many.
                if count > 3 && life.rng.below(8) != 0 {
                    continue;
                }
                for (word, &moment) in at.iter().enumerate() {
                    image[layout.slot_at(0) + word] = life.history[moment].0[word];
                }
                let Some(said) = shown(&layout, &image, 0) else {
                    torn += 1;
                    continue;
                };
                whole += 1;
                let (from, to) = (*at.iter().min().unwrap(), *at.iter().max().unwrap());
                let is_true = life.history[from..=to].iter().any(|(_, says)| says.contains(&said));
                assert!(is_true, "seed {seed}, {key} + {value}: {said:?} by words of {at:?}");
            }
        }
    }
    assert!(torn > 100_000 && whole > 100_000, "both happen: {torn}, {whole}");
}

/// Whichever word of an insert has landed, the next holder sees it, and the next insert takes another turn.
#[test]
fn every_word_of_a_dead_insert_leaves_a_trace() {
    for (key, value) in FORMATS {
        let layout = layout(key, value, Some(2));
        let empty = leaf_of(&layout, &[]);
        let mut image = empty.clone();
        let (key, value) = (key_of(&layout, 3), value_of(&layout, 3));
        let edit = GuardedLeafMut::new(&layout, &mut image).insert(&key, &value).unwrap();
        let check = layout.slot_at(0) + layout.slot_words() - 1;
        for landed in edit.bytes.start / 8..edit.bytes.end / 8 {
            let mut remote = empty.clone();
            remote[landed] = image[landed];
            let mut leaf = GuardedLeafMut::new(&layout, &mut remote);
            assert_eq!(leaf.view().slot(0), SlotState::Torn);
            let mends = leaf.mend();
            assert_eq!((mends.len(), mends[0].how), (1, Mended::Emptied));
            assert_eq!(leaf.view().slot(0), SlotState::Empty);
            leaf.insert(&key, &value).unwrap();
            assert!(slot::turn(remote[check]) > slot::turn(image[check]));
        }
    }
}

#[test]
fn values_that_are_stored_as_the_blank_word_are_changed_by_wide_changes() {
    let layout = layout(8, 8, Some(2));
    let mut words = leaf_of(&layout, &[4]);
    let guard = Guard::new(TREE, ADDR, Stamp::at_birth(5).word(), 0);
    let odd = (guard.blank() ^ guard.value_mask(1, 0)).to_le_bytes();
    let mut leaf = GuardedLeafMut::new(&layout, &mut words);
    assert!(!leaf.update(0, &[1; 8]).unwrap().is_wide);
    assert!(leaf.update(0, &odd).unwrap().is_wide, "to the blank word");
    assert_eq!(leaf.view().slot(0), SlotState::Pair);
    let mut value = Vec::new();
    leaf.view().value(0, &mut value);
    assert_eq!(value, odd);
    assert!(leaf.update(0, &[2; 8]).unwrap().is_wide, "from the blank word");
    leaf.update(0, &odd).unwrap();
    assert!(!leaf.remove(0).unwrap().is_wide, "one word changes");
    let long = layout_of_long();
    let mut words = leaf_of(&long, &[4]);
    let mut leaf = GuardedLeafMut::new(&long, &mut words);
    assert!(leaf.update(0, &[3; 64]).unwrap().is_wide);
    assert_eq!(leaf.remove(0).unwrap().bytes.len(), 8);
}

fn layout_of_long() -> GuardedLayout {
    layout(8, 64, None)
}

#[test]
fn slots_fit_in_their_place_alone() {
    let layout = layout(8, 8, Some(4));
    let words = leaf_of(&layout, &[1, 2]);
    let stride = layout.slot_words();
    let slot = words[layout.slot_at(0)..][..stride].to_vec();
    let mut moved = words.clone();
    moved[layout.slot_at(2)..][..stride].copy_from_slice(&slot);
    assert_eq!(GuardedLeaf::new(&layout, &moved).slot(2), SlotState::Torn, "another place");
    let mut later = words.clone();
    later[VERSION_WORD] = Stamp::of_word(words[VERSION_WORD]).next().word();
    later[SUM_WORD] = layout.sum(&later);
    let leaf = GuardedLeaf::new(&layout, &later);
    assert_eq!((leaf.kind_at(ADDR), leaf.slot(0)), (Kind::Leaf, SlotState::Torn), "another stamp");
    let of_other = GuardedLayout { tree: TREE + 1, ..layout };
    let leaf = GuardedLeaf::new(&of_other, &words);
    assert_eq!(
        (leaf.kind_at(ADDR), leaf.slot(0)),
        (Kind::Invalid, SlotState::Torn),
        "another tree"
    );
}

#[test]
fn a_split_takes_the_new_pair_along_and_a_merge_takes_it_back() {
    for (key, value) in FORMATS {
        let layout = layout(key, value, Some(6));
        let words = leaf_of(&layout, &[10, 20, 30, 40, 50, 60]);
        let leaf = GuardedLeaf::new(&layout, &words);
        for new in [5, 35, 65] {
            let (mut left, mut right) = (words.clone(), words.clone());
            let pair = (key_of(&layout, new), value_of(&layout, new));
            let birth = Stamp::at_birth(9);
            let separator = leaf
                .split(Some((&pair.0, &pair.1)), RIGHT + 64, birth, &mut left, &mut right)
                .unwrap();
            let (lower, upper) =
                (GuardedLeaf::new(&layout, &left), GuardedLeaf::new(&layout, &right));
            assert_eq!((lower.verify(ADDR), upper.verify(RIGHT + 64)), (Ok(()), Ok(())));
            assert_eq!((lower.right(), upper.right()), (RIGHT + 64, RIGHT));
            assert_eq!((lower.stamp(), upper.stamp()), (leaf.stamp().next(), birth));
            assert_eq!((lower.count(), upper.count()), (4, 3));
            assert_eq!(lower.covers(&separator), Cover::Inside);
            assert_eq!(lower.covers_after(&separator), Cover::Above);
            assert_eq!(upper.covers(&separator), Cover::Below);
            assert_eq!(upper.covers_after(&separator), Cover::Inside);
            assert_eq!(lower.covers_place(Seek::Last), Cover::Above);
            let half = if new < 40 { &lower } else { &upper };
            assert!(matches!(half.find(&pair.0), Lookup::Hit(_)));
            let mut out = words.clone();
            assert_eq!(lower.merge(&upper, &mut out), Err(ChangeError::NoRoom), "seven pairs");
            GuardedLeafMut::new(&layout, &mut right).remove(0).unwrap();
            let upper = GuardedLeaf::new(&layout, &right);
            lower.merge(&upper, &mut out).unwrap();
            let whole = GuardedLeaf::new(&layout, &out);
            assert_eq!((whole.verify(ADDR), whole.count(), whole.right()), (Ok(()), 6, RIGHT));
            assert_eq!(whole.stamp(), leaf.stamp().next().next());
            assert_eq!(upper.merge(&lower, &mut out), Err(ChangeError::NotNeighbours));
        }
    }
    let layout = layout(8, 8, Some(6));
    let words = leaf_of(&layout, &[1]);
    let (mut left, mut right) = (words.clone(), words.clone());
    let leaf = GuardedLeaf::new(&layout, &words);
    let mut split = |new| leaf.split(new, RIGHT, Stamp::at_birth(1), &mut left, &mut right);
    assert_eq!(split(None), Err(ChangeError::NothingToSplit));
    let key = key_of(&layout, 1);
    assert_eq!(split(Some((&key, &[0; 8]))), Err(ChangeError::Exists { index: 0 }));
}

#[test]
fn stamps_count_rewrites_and_carry_into_the_birth() {
    let first = Stamp::at_birth(1_000);
    assert!(first.is_born_by(1_000) && first.is_born_by(1_001) && !first.is_born_by(999));
    assert!(first.next().is_born_by(1_000) && first.next() != first);
    let last = Stamp::of_word(first.word() | 0xff_ffff);
    assert!(last.is_born_by(1_000) && !last.next().is_born_by(1_000));
    assert!(last.next().is_born_by(1_001));
    // Births wrap, as epochs do.
    let late = Stamp::at_birth((1 << 40) - 1);
    assert!(late.is_born_by(1 << 40) && !late.is_born_by((1 << 40) - 2));
    let wrapped = Stamp::of_word(u64::MAX).next();
    assert!(wrapped.is_born_by(1 << 40) && !wrapped.is_born_by((1 << 40) - 1));
}

#[test]
fn damage_is_named() {
    let layout = layout(16, 8, Some(6));
    let words = leaf_of(&layout, &[1, 2, 3]);
    let check = |change: &dyn Fn(&mut Vec<u64>)| {
        let mut damaged = words.clone();
        change(&mut damaged);
        GuardedLeaf::new(&layout, &damaged).verify(ADDR)
    };
    assert_eq!(check(&|_| {}), Ok(()));
    assert_eq!(check(&|words| words[0] = 7), Ok(()), "the first word is the engine's");
    assert_eq!(check(&|words| words[RIGHT_WORD] += 64), Err(NodeError::Sum));
    assert_eq!(check(&|words| words[layout.fence_at(true)] += 1), Err(NodeError::Sum));
    assert_eq!(check(&|words| words.fill(0)), Err(NodeError::Sum));
    let slot = layout.slot_at(1);
    assert_eq!(check(&|words| words[slot] ^= 1), Err(NodeError::Cell { index: 1 }));
    assert_eq!(
        GuardedLeaf::new(&layout, &words).verify(ADDR + 64),
        Err(NodeError::Address { expected: ADDR + 64, found: ADDR })
    );
    let twice = |words: &mut Vec<u64>| {
        let guard = Guard::new(TREE, ADDR, Stamp::at_birth(5).word(), 4);
        let slot = &mut words[layout.slot_at(4)..][..layout.slot_words()];
        layout.store(&guard, slot, 1, &key_of(&layout, 2), &[0; 8]);
    };
    assert_eq!(check(&twice), Err(NodeError::Order { index: 4 }));
    let mut dead = words.clone();
    GuardedLeafMut::new(&layout, &mut dead).set_dead();
    let leaf = GuardedLeaf::new(&layout, &dead);
    assert_eq!((leaf.kind_at(ADDR), leaf.verify(ADDR)), (Kind::Dead, Err(NodeError::Dead)));
    let fenced = Head { low: Some(&[1; 16]), high: Some(&[2; 16]), ..head(Stamp::at_birth(5)) };
    let pair = [(key_of(&layout, 3), value_of(&layout, 3))];
    let mut out = words.clone();
    assert_eq!(layout.encode(&mut out, &fenced, &pair), Err(ChangeError::OutsideFences));
    assert_eq!(GuardedLeaf::new(&layout, &out).kind_at(ADDR), Kind::Invalid);
}

/// Foreign and damaged words give errors or nonsense, and no panic.
#[test]
fn any_words_are_read_and_mended_without_a_panic() {
    for (key, value) in FORMATS {
        let layout = layout(key, value, None);
        let mut rng = Rng::of(key as u64);
        for _ in 0..50 {
            let mut words: Vec<u64> = (0..layout.leaf_words()).map(|_| rng.next()).collect();
            let leaf = GuardedLeaf::new(&layout, &words);
            assert_eq!(
                (leaf.kind_at(ADDR), leaf.verify(ADDR)),
                (Kind::Invalid, Err(NodeError::Sum))
            );
            assert_eq!(leaf.find(&key_of(&layout, 1)), Lookup::Torn(0));
            assert_eq!(leaf.pairs(), Err(0));
            let mut leaf = GuardedLeafMut::new(&layout, &mut words);
            assert_eq!(
                leaf.insert(&key_of(&layout, 1), &value_of(&layout, 1)),
                Err(ChangeError::Damaged)
            );
            assert_eq!(leaf.mend().len(), layout.slots());
            assert_eq!(leaf.mend(), []);
        }
    }
}

#[test]
fn shapes_that_do_not_fit_say_what_would() {
    let new = |bytes, key, value, cap| {
        let spec = Spec { key: KeyFormat::Fixed(key), value: ValueFormat::Fixed(value) };
        GuardedLayout::new(bytes, &spec, cap, 1).map(|layout| layout.slots())
    };
    assert_eq!(new(1536, 24, 8, None), Ok(35));
    assert_eq!(new(1000, 8, 8, None), Err(GuardedLayoutError::LeafBytes(1000)));
    assert_eq!(new(128, 8, 8, None), Err(GuardedLayoutError::LeafBytes(128)));
    assert_eq!(new(1024, 12, 8, None), Err(GuardedLayoutError::Format));
    assert_eq!(new(1024, 72, 8, None), Err(GuardedLayoutError::Format));
    let pairs = new(256, 64, 256, None).unwrap_err();
    assert_eq!(pairs, GuardedLayoutError::Pairs { pair: 328, leaf_bytes: 256, least: 896 });
    assert_eq!(new(896, 64, 256, None), Ok(2));
    assert_eq!(new(1024, 8, 8, Some(41)), Err(GuardedLayoutError::Capacity { cap: 41, fits: 40 }));
    assert_eq!(GuardedLayout::new(1024, &Spec::ANY, None, 1), Err(GuardedLayoutError::Format));
}
