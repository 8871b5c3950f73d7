//! Leaf tests: contents come back, damage shows, and WRITEs cover what differs.

use farleaf_fabric::ServerId;

use super::*;

const TABLE: u64 = 77;

fn addr() -> GlobalAddr {
    GlobalAddr::new(ServerId(1), 640)
}

fn leaf(key: &[u8], value: NewValue<'_>, class: usize) -> Vec<u64> {
    let mut words = vec![u64::MAX; class / 8];
    fill_leaf(TABLE, addr(), &mut words, 5, (key, value), 9);
    words
}

fn view(words: &[u64]) -> Leaf<'_> {
    Leaf::new(TABLE, addr(), words)
}

#[test]
fn contents_come_back() {
    for len in [0, 1, 7, 8, 9, 100, 1_024] {
        let (key, value) = (vec![b'k'; len], vec![b'v'; len]);
        let class = class_for(0, len, len);
        let Some(class) = class else {
            assert_eq!(len, 1_024, "only that is too long");
            continue;
        };
        let words = leaf(&key, NewValue::Inline(&value), class.bytes());
        let leaf = view(&words);
        assert!(leaf.is_whole() && leaf.is_valid() && leaf.is_free() && !leaf.is_moving());
        assert_eq!((leaf.key(), leaf.content()), (&key[..], NewValue::Inline(&value)));
        assert!(leaf.has_room(len) && !leaf.has_room(class.bytes()));
    }
    let words = leaf(b"key", NewValue::Record(0x1234_5678), 64);
    assert_eq!(view(&words).content(), NewValue::Record(0x1234_5678));
    assert_eq!(class_for(0, 8, 8).map(LeafClass::bytes), Some(64));
    assert_eq!(class_for(0, 24, 8).map(LeafClass::bytes), Some(64));
    assert_eq!(class_for(0, 8, 64).map(LeafClass::bytes), Some(128));
}

#[test]
fn each_word_and_the_place_are_in_the_sum() {
    let words = leaf(b"0123456789", NewValue::Inline(b"value"), 64);
    // Head, sum, by, two words of key, one of value.
    for at in 0..6 {
        let mut torn = words.clone();
        torn[at] ^= 1 << 60;
        assert!(!view(&torn).is_whole(), "{at}");
    }
    assert!(!Leaf::new(TABLE, addr().plus(64), &words).is_whole());
    assert!(!Leaf::new(TABLE + 1, addr(), &words).is_whole());
    // The bytes behind the value, and the lock, are not.
    let mut other = words.clone();
    (other[6], other[7]) = (1, 2);
    assert!(view(&other).is_whole() && !view(&other).is_free());
    assert!(!view(&[u64::MAX; 8]).is_sound());
}

#[test]
fn births_are_compared_modulo() {
    let words = leaf(b"k", NewValue::Absent, 64);
    assert!(view(&words).is_born_by(5) && view(&words).is_born_by(6));
    assert!(!view(&words).is_born_by(4));
    assert!(view(&words).is_born_by((1 << 34) + 5) && !view(&words).is_born_by((1 << 34) + 4));
}

#[test]
fn writes_cover_the_words_that_differ() {
    let old = leaf(b"12345678", NewValue::Inline(b"aaaaaaaa"), 128);
    let change = |from: &[u64], value| {
        let mut new = from.to_vec();
        set_content(TABLE, addr(), &mut new, value, from[2] + 1);
        assert!(view(&new).is_whole() && !view(&new).is_free());
        let found = changed(from, &new);
        (new, found.runs, found.needs_redo)
    };
    // Head, sum, by, the key in between, and the value: one WRITE.
    let whole = |runs: &[Range<usize>], to: usize| runs.len() == 1 && runs[0] == (0..to);
    let (_, runs, redo) = change(&old, NewValue::Inline(b"bbbbbbbb"));
    assert!(whole(&runs, 5) && !redo, "{runs:?}");
    let (long, runs, redo) = change(&old, NewValue::Inline(b"aaaaaaaabbbbbbbbcccccccc"));
    assert!(runs == [0..3, 5..7] && redo, "{runs:?}");
    let (_, runs, redo) = change(&long, NewValue::Inline(b"xaaaaaaabbbbbbbbcccccccx"));
    assert!(runs == [0..5, 6..7] && redo, "{runs:?}");
    // One word of another length: a mixture would show neither value.
    let (_, runs, redo) = change(&old, NewValue::Inline(b"aaa"));
    assert!(whole(&runs, 5) && redo);
    let (gone, runs, redo) = change(&old, NewValue::Absent);
    assert!(whole(&runs, 3) && !redo);
    assert!(!view(&gone).is_valid() && view(&gone).key() == b"12345678");
    // The value first.
    let (_, runs, redo) = change(&gone, NewValue::Inline(b"bbbbbbbbcccccccc"));
    assert!(runs == [4..6, 0..3] && !redo, "{runs:?}");
}
