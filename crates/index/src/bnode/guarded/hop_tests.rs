//! Hopscotch leaf tests: places, a sorted map as the model, deaths within a hop, READs that mix words of hops.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use super::super::header::{Head, Kind};
use super::super::tests::Rng;
use super::super::verify::NodeError;
use super::*;

const ADDR: u64 = 0x4_0000;
const TREE: u64 = 77;

fn layout((key, value): (usize, usize), cap: u16, neighbourhood: usize) -> GuardedLayout {
    let spec = Spec { key: KeyFormat::Fixed(key), value: ValueFormat::Fixed(value) };
    let layout = GuardedLayout::new(8192, &spec, Some(cap), TREE).unwrap();
    layout.with_neighbourhood(neighbourhood).unwrap()
}

fn key_of(layout: &GuardedLayout, number: u64) -> Vec<u8> {
    let mut key = vec![(number % 3) as u8; layout.key_bytes()];
    key[..8].copy_from_slice(&number.to_be_bytes());
    key
}

fn value_of(layout: &GuardedLayout, number: u64) -> Vec<u8> {
    number.to_le_bytes().iter().copied().cycle().take(layout.value_bytes()).collect()
}

fn leaf_of(layout: &GuardedLayout, numbers: &[u64]) -> Option<Vec<u64>> {
    let pairs: Vec<_> = numbers.iter().map(|&n| (key_of(layout, n), value_of(layout, n))).collect();
    let mut words = vec![0; layout.leaf_words()];
    let version = Stamp::at_birth(5).word();
    let head = Head { addr: ADDR, version, ..Head::default() };
    match layout.encode(&mut words, &head, &pairs) {
        Ok(()) => Some(words),
        Err(ChangeError::NoRoom) => None,
        Err(error) => panic!("{error}"),
    }
}

const FORMATS: [(usize, usize); 5] = [(8, 8), (8, 0), (8, 64), (24, 8), (64, 256)];

/// All places of keys, one after the other: whether there are any.
fn any_places(windows: &[std::ops::Range<usize>], taken: &mut Vec<usize>) -> bool {
    let Some((window, rest)) = windows.split_first() else { return true };
    for place in window.clone().filter(|place| !taken.contains(place)).collect::<Vec<_>>() {
        taken.push(place);
        if any_places(rest, taken) {
            return true;
        }
        taken.pop();
    }
    false
}

#[test]
fn places_are_found_whenever_there_are_any() {
    let layout = layout((8, 8), 9, 3);
    let mut rng = Rng::of(3);
    let mut counts = [0, 0];
    for _ in 0..800 {
        let mut numbers: Vec<u64> = (0..4 + rng.below(5)).map(|_| rng.next() >> 8).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let windows: Vec<_> =
            numbers.iter().map(|&number| layout.window(&key_of(&layout, number))).collect();
        let words = leaf_of(&layout, &numbers);
        assert_eq!(words.is_some(), any_places(&windows, &mut Vec::new()));
        counts[usize::from(words.is_some())] += 1;
        let Some(words) = words else { continue };
        let leaf = GuardedLeaf::new(&layout, &words);
        assert_eq!((leaf.kind_at(ADDR), leaf.verify(ADDR)), (Kind::Leaf, Ok(())));
        for number in numbers {
            assert!(matches!(leaf.find(&key_of(&layout, number)), Lookup::Hit(_)));
            assert_eq!(leaf.find(&key_of(&layout, number + 1)), Lookup::Miss);
        }
    }
    assert!(counts.iter().all(|&count| count > 100), "{counts:?}");
}

/// Writes the named bytes of an image, as a client does.
fn write(remote: &mut [u64], image: &[u64], bytes: &std::ops::Range<usize>) {
    let words = bytes.start / 8..bytes.end / 8;
    remote[words.clone()].copy_from_slice(&image[words]);
}

#[test]
fn changes_with_hops_agree_with_a_map() {
    let (mut hopped, mut full) = (0, 0);
    for format in FORMATS {
        let layout = layout(format, 12, 3);
        for seed in 0..12 {
            let mut rng = Rng::of(seed);
            let mut remote = leaf_of(&layout, &[]).unwrap();
            let mut model = BTreeMap::new();
            for step in 0..250 {
                // Each step is another holder of the lock, who READs what the others have written.
                let mut words = remote.clone();
                let mut leaf = GuardedLeafMut::new(&layout, &mut words);
                assert_eq!(leaf.mend(), []);
                let key = key_of(&layout, rng.below(40) as u64);
                let value = value_of(&layout, step);
                let edit = match leaf.view().find(&key) {
                    Lookup::Hit(index) if rng.below(2) == 0 => {
                        model.remove(&key).unwrap();
                        leaf.remove(index).unwrap()
                    }
                    Lookup::Hit(index) => {
                        model.insert(key, value.clone()).unwrap();
                        leaf.update(index, &value).unwrap()
                    }
                    Lookup::Miss => {
                        let Some(hops) = leaf.view().hops_for(&key) else {
                            assert_eq!(leaf.insert(&key, &value), Err(ChangeError::NoRoom));
                            full += 1;
                            continue;
                        };
                        assert_eq!(
                            hops.is_empty(),
                            leaf.view().fits_in(&layout.window(&key)).1 > 0
                        );
                        let before = remote[0];
                        for &hop in &hops {
                            let written = leaf.hop(hop).unwrap();
                            for bytes in written {
                                let image = leaf.view().image();
                                write(&mut remote, image, &bytes);
                            }
                        }
                        assert_eq!(remote[0], before + hops.len() as u64);
                        hopped += hops.len();
                        model.insert(key.clone(), value.clone());
                        leaf.insert(&key, &value).unwrap()
                    }
                    Lookup::Torn(slot) => panic!("slot {slot} does not fit"),
                };
                write(&mut remote, &words, &edit.bytes);
                let view = GuardedLeaf::new(&layout, &remote);
                assert_eq!(view.verify(ADDR), Ok(()));
                let expected: Vec<_> = model.clone().into_iter().collect();
                assert_eq!(view.pairs(), Ok(expected));
            }
        }
    }
    assert!(hopped > 100 && full > 100, "{hopped} hops, {full} times no room");
}

/// A leaf with a full neighbourhood, a key for it, and the first hop of its insert.
fn about_to_hop(layout: &GuardedLayout, seed: u64) -> Option<(Vec<u64>, Hop, Vec<u8>)> {
    let mut rng = Rng::of(seed);
    let mut numbers: Vec<u64> = (0..7).map(|_| rng.below(1000) as u64).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let words = leaf_of(layout, &numbers)?;
    let leaf = GuardedLeaf::new(layout, &words);
    let new = key_of(layout, 2000 + seed);
    let hop = leaf.hops_for(&new)?.first().copied()?;
    let moved = leaf.key(hop.from);
    Some((words, hop, moved))
}

/// A hop's three WRITEs, a death within one of them with any subset of its words landed, and the next holder of the lock.
#[test]
fn a_death_within_a_hop_leaves_the_pair_once_or_twice_and_is_mended() {
    let (mut tried, mut twice) = (0, 0);
    for format in FORMATS {
        let layout = layout(format, 10, 3);
        for seed in 0..40 {
            let Some((before, hop, moved)) = about_to_hop(&layout, seed) else { continue };
            let mut image = before.clone();
            let written = GuardedLeafMut::new(&layout, &mut image).hop(hop).unwrap();
            let expected = GuardedLeaf::new(&layout, &before).pairs().unwrap();
            let mut remote = before.clone();
            for bytes in written {
                let words = bytes.start / 8..bytes.end / 8;
                let subsets = 1_u64 << words.len().min(6);
                for subset in 0..subsets {
                    let mut torn = remote.clone();
                    for (bit, at) in words.clone().enumerate() {
                        if subset >> (bit % 6) & 1 == 1 {
                            torn[at] = image[at];
                        }
                    }
                    tried += 1;
                    // A reader sees the pair, or that something is under way.
                    let view = GuardedLeaf::new(&layout, &torn);
                    let found = view.find(&moved);
                    assert!(matches!(found, Lookup::Hit(_)), "{found:?}");
                    let mut mended = torn.clone();
                    let mut leaf = GuardedLeafMut::new(&layout, &mut mended);
                    twice += usize::from(!leaf.view().second_copies().is_empty());
                    assert!(!leaf.view().has_two_values());
                    assert!(leaf.mend().len() <= 1);
                    assert_eq!(leaf.view().verify(ADDR), Ok(()));
                    assert_eq!(leaf.view().pairs(), Ok(expected.clone()));
                    assert_eq!(leaf.view().count(), expected.len());
                }
                write(&mut remote, &image, &bytes);
            }
        }
    }
    assert!(tried > 300 && twice > 20, "{tried} deaths, {twice} with the pair twice");
}

#[test]
fn a_leaf_that_dies_or_is_rewritten_has_no_slot_that_fits_under_its_stamp() {
    let layout = layout((8, 8), 12, 3);
    let words = leaf_of(&layout, &[1, 2, 3, 9]).unwrap();
    let stamp = GuardedLeaf::new(&layout, &words).stamp();
    let fits = |image: &[u64]| {
        let slots = 0..layout.slots();
        let (offset, bytes) = layout.bytes_of(&slots);
        let mut part = vec![0; layout.leaf_words()];
        let read = &image[offset as usize / 8..][..bytes / 8];
        layout.fill_part(&mut part, (ADDR, stamp), &slots, read);
        let (pairs, empty, torn) = GuardedLeaf::new(&layout, &part).fits_in(&slots);
        assert_eq!(pairs + empty + torn, 12);
        (pairs, empty)
    };
    assert_eq!(fits(&words), (4, 8));
    let mut dead = words.clone();
    GuardedLeafMut::new(&layout, &mut dead).set_dead();
    assert_eq!(GuardedLeaf::new(&layout, &dead).kind_at(ADDR), Kind::Dead);
    assert_eq!((fits(&dead), GuardedLeaf::new(&layout, &dead).count()), ((0, 0), 0));
    let [mut left, mut right] = [words.clone(), words.clone()];
    let split = GuardedLeaf::new(&layout, &words).split(
        Some((&key_of(&layout, 5), &[5; 8])),
        ADDR + 4096,
        Stamp::at_birth(9),
        &mut left,
        &mut right,
    );
    assert_eq!(split, Ok(key_of(&layout, 3)));
    assert_eq!((fits(&left), GuardedLeaf::new(&layout, &left).verify(ADDR)), ((0, 0), Ok(())));
    assert_eq!(GuardedLeaf::new(&layout, &right).verify(ADDR + 4096), Ok(()));
    assert_eq!(GuardedLeaf::new(&layout, &right).pairs().unwrap().len(), 2);
}

#[test]
fn a_key_outside_of_its_neighbourhood_and_two_values_of_a_key_are_named() {
    let layout = layout((8, 8), 12, 3);
    let words = leaf_of(&layout, &[1]).unwrap();
    let key = key_of(&layout, 1);
    let window = layout.window(&key);
    let with = |slot: usize, value: u64| {
        let mut words = words.clone();
        let guard = super::slot::Guard::new(TREE, ADDR, Stamp::at_birth(5).word(), slot);
        let slot = &mut words[layout.slot_at(slot)..][..layout.slot_words()];
        layout.store(&guard, slot, 3, &key, &value_of(&layout, value));
        GuardedLeaf::new(&layout, &words).verify(ADDR)
    };
    let outside = (0..12).find(|slot| !window.contains(slot)).unwrap();
    assert_eq!(with(outside, 1), Err(NodeError::Place { index: outside }));
    let other = window.clone().nth(1).unwrap();
    assert_eq!(with(other, 1), Ok(()), "a dead client's hop");
    assert!(matches!(with(other, 2), Err(NodeError::Order { .. })));
}

#[test]
fn a_miss_in_an_image_during_which_pairs_hopped_is_none() {
    let layout = layout((8, 8), 12, 3);
    let mut words = leaf_of(&layout, &[1, 2, 3]).unwrap();
    note_moves(&mut words, 7, 7);
    assert_eq!(GuardedLeaf::new(&layout, &words).find(&key_of(&layout, 4)), Lookup::Miss);
    note_moves(&mut words, 7, 8);
    let leaf = GuardedLeaf::new(&layout, &words);
    assert!(leaf.has_moved() && matches!(leaf.find(&key_of(&layout, 4)), Lookup::Torn(_)));
    assert!(matches!(leaf.find(&key_of(&layout, 1)), Lookup::Hit(_)), "what is seen was there");
}

#[test]
fn neighbourhoods_that_do_not_fit_say_what_would() {
    let spec = Spec { key: KeyFormat::Fixed(8), value: ValueFormat::Fixed(8) };
    let leaf = |cap| GuardedLayout::new(1792, &spec, cap, TREE).unwrap();
    assert_eq!(leaf(None).slots(), 72);
    assert_eq!(leaf(None).with_neighbourhood(8).unwrap().neighbourhood(), 8);
    for (cap, neighbourhood, most) in [(None, 1, 16), (None, 17, 16), (Some(6), 7, 6)] {
        let slots = usize::from(cap.unwrap_or(72));
        let error = GuardedLayoutError::Neighbourhood { neighbourhood, slots, most };
        assert_eq!(leaf(cap).with_neighbourhood(neighbourhood), Err(error));
    }
}

/// Random inserts into leaves of 72 slots: the load at which the first one finds no room, and hops for each insert.
#[test]
fn leaves_fill_to_six_sevenths_before_an_insert_finds_no_room() {
    let layout = layout((8, 8), 72, 8);
    let (mut loads, mut hops, mut inserts) = (0, 0, 0);
    for seed in 0..60 {
        let mut rng = Rng::of(seed);
        let mut numbers: Vec<u64> = (0..32).map(|_| rng.next()).collect();
        numbers.sort_unstable();
        let mut words = leaf_of(&layout, &numbers).unwrap();
        let mut leaf = GuardedLeafMut::new(&layout, &mut words);
        loop {
            let key = key_of(&layout, rng.next());
            let Some(plan) = leaf.view().hops_for(&key) else { break };
            (hops, inserts) = (hops + plan.len(), inserts + 1);
            for hop in plan {
                leaf.hop(hop).unwrap();
            }
            leaf.insert(&key, &[1; 8]).unwrap();
        }
        loads += leaf.view().count();
    }
    let load = loads as f64 / (60.0 * 72.0);
    let each = hops as f64 / inserts as f64;
    println!("load at a split {load:.3}, hops an insert {each:.2}");
    assert!((0.85..0.90).contains(&load) && each < 0.7, "{load} {each}");
}
