//! Own leaves of `p-sherman`: exact costs without lock words, turns of tasks, callers that go away, and bounds.

use farleaf_engines::{AnyIndex, Engine, TableFormat};
use farleaf_fabric::OpKind;
use farleaf_index::{Index, KeyFormat, OpenOptions, Spec, ValueFormat};

use super::costs::on_both;
use super::locks::run_of;
use super::{Row, counters, loaded_as, number, settings, since};
use crate::common::server::owned;
use crate::common::{World, check, costs};

const LEAF: u64 = 1024;
const KEYS: u64 = 10_000;

/// A change of `written` bytes of an own leaf: a READ, then a slot.
fn change(written: u64) -> Row {
    let slots = u64::from(written > 0);
    ([1, slots, 0, 1 + slots], [LEAF, written])
}

/// No operation on own keys asks for a lock word, wherever a release is a WRITE or a CAS.
#[test]
fn own_operations_take_no_lock_word() {
    on_both(async |session| {
        let index = loaded_as(&session, Engine::PSherman, KEYS, &[]).await;
        let mut value = Vec::new();
        for (key, is_there) in [(0, true), (8_000, true), (8_001, false), (u64::MAX, false)] {
            let before = costs(&session);
            assert_eq!(index.get(&session, &number(key), &mut value).await, Ok(is_there));
            assert_eq!(since(&session, &before, OpKind::Get), ([1, 0, 0, 1], [LEAF, 0]));
        }
        let before = costs(&session);
        assert_eq!(index.update(&session, &number(8_000), &[1; 8]).await, Ok(true));
        assert_eq!(since(&session, &before, OpKind::Update), change(16));
        let before = costs(&session);
        assert_eq!(index.insert(&session, &number(8_001), &[1; 8]).await, Ok(true));
        assert_eq!(since(&session, &before, OpKind::Insert), change(24));
        let before = costs(&session);
        assert_eq!(index.remove(&session, &number(8_001)).await, Ok(true));
        assert_eq!(since(&session, &before, OpKind::Remove), change(16));
        let before = costs(&session);
        assert_eq!(index.insert(&session, &number(8_000), &[1; 8]).await, Ok(false));
        assert_eq!(since(&session, &before, OpKind::Insert), change(0));
        assert_eq!(check(&session, &[&index]).await.keys, KEYS);
    });
}

/// An update of a value of more than one word takes the lock word, which its redo record names.
#[test]
fn a_wide_update_of_an_own_leaf_takes_its_lock_word() {
    on_both(async |session| {
        let spec = Spec { key: KeyFormat::Fixed(16), value: ValueFormat::Fixed(24) };
        let format = TableFormat::new(Engine::PSherman, spec);
        let index = farleaf_harness::create_table(&session, "t", &format, 96, &settings(&[])).await;
        let index = index.expect("a table");
        let key = |number: u64| [number.to_be_bytes(), [1; 8]].concat();
        for number in 0..4 {
            assert_eq!(index.insert(&session, &key(number), &[1; 24]).await, Ok(true));
        }
        let before = costs(&session);
        assert_eq!(index.update(&session, &key(2), &[2; 24]).await, Ok(true));
        let ([reads, writes, cas, trips], _) = since(&session, &before, OpKind::Update);
        assert_eq!((reads, writes + cas, trips), (1, 4, 3), "record, slot, lock and release");
        assert!(cas == 1 || writes == 2);
        assert_eq!(check(&session, &[&index]).await.keys, 4);
    });
}

/// Tasks that want one leaf take turns, and pass its content on: most READ nothing, and none swaps a word.
#[test]
fn turns_pass_the_content_on() {
    let on = run_of(Engine::PSherman, &[8], &[], false, 1);
    let off = run_of(Engine::PSherman, &[8], &[("hand_image", "false")], false, 1);
    let (passes, images) = (on.counts.get("passes"), on.counts.get("images_passed"));
    assert!(passes > 100 && images == passes, "{passes} passes, {images} images");
    // The claim of the range and the member's own words, whatever the number of changes.
    assert!(off.counts.get("passes") == 0 && on.cas == off.cas && on.cas <= 4, "{}", on.cas);
    println!("{} changes without content, {} with", off.changes[0], on.changes[0]);
    // Each change follows a get of its own, which READs.
    assert!(
        on.changes[0] > off.changes[0] && on.reads * off.changes[0] < off.reads * on.changes[0]
    );
}

/// Callers that are dropped at any moment lose no change of another: their turn ends when their WRITE has landed.
#[test]
fn dropped_callers_end_their_turns_late_enough() {
    for seed in 0..12 {
        let image = ["true", "false"][seed as usize % 2];
        let run = run_of(Engine::PSherman, &[8], &[("hand_image", image)], true, seed);
        assert!(run.changes[0] > 50, "{:?}", run.changes);
    }
}

/// A bound is the high fence of a leaf, also of one that is empty; leaves on both sides of it never merge.
#[test]
fn leaves_end_at_bounds_and_do_not_merge_across() {
    World::default().on_mapped(|session| async move {
        let index = loaded_as(&session, Engine::PSherman, 1_000, &[]).await;
        let leaves = |report: &farleaf_index::TableReport| report.nodes_per_level[0];
        let before = leaves(&check(&session, &[&index]).await);
        // The first is the last key of a leaf or lies within one; the last is behind all keys.
        let bounds = [600, 601, 3_000].map(|bound| number(bound).to_vec());
        owned(&index).partition(&session, &bounds).await.expect("partition");
        let root = session.open_root("t").await.expect("root");
        let open =
            async || AnyIndex::open(&session, &root, &OpenOptions::default()).await.expect("open");
        let index = open().await;
        let cut = leaves(&check(&session, &[&index]).await);
        assert!(cut > before && cut <= before + 3, "{cut} leaves, {before} before");
        for key in 0..1_000 {
            assert_eq!(index.remove(&session, &number(2 * key)).await, Ok(true), "{key}");
        }
        assert!(counters(&index).get("merges") > 10);
        let report = check(&session, &[&index]).await;
        assert!(report.keys == 0 && leaves(&report) >= 4, "one for each range: {report:?}");
        index.close(&session).await.expect("close");
    });
}

/// A bulk load needs a table without bounds.
#[test]
fn a_cut_table_is_not_loaded_in_bulk() {
    World::default().on_mapped(|session| async move {
        let format = TableFormat::fixed8(Engine::PSherman);
        let index = farleaf_harness::create_table(&session, "t", &format, 96, &settings(&[])).await;
        let bounds = [number(7).to_vec()];
        owned(&index.expect("a table")).partition(&session, &bounds).await.expect("partition");
        let root = session.open_root("t").await.expect("root");
        let index = AnyIndex::open(&session, &root, &OpenOptions::default()).await.expect("open");
        let pairs = [(number(1).to_vec(), vec![1; 8])];
        let refused = index.bulk_load(&session, &mut crate::common::Pairs(pairs.iter())).await;
        let refused = refused.expect_err("a cut table").to_string();
        assert!(refused.contains("before it is cut"), "{refused}");
        assert_eq!(index.insert(&session, &number(1), &[1; 8]).await, Ok(true));
        assert_eq!(check(&session, &[&index]).await.keys, 1);
    });
}
