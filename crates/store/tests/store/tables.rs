//! Table tests: every method of tables, with good and with bad input.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::common::{collect, key, small, table};
use farleaf::{CompareExchange, ErrorKind, KeyFormat, Table, TableOptions, ValueFormat};

#[test]
fn point_operations_do_what_they_say() {
    let table = table();
    assert_eq!(table.get("a").unwrap(), None);
    assert!(table.insert("a", "1").unwrap());
    assert!(!table.insert("a", "2").unwrap());
    assert_eq!(table.get("a").unwrap(), Some(b"2".to_vec()));
    assert!(!table.insert_new("a", "3").unwrap());
    assert!(table.insert_new("b", "3").unwrap());
    assert!(table.update("a", "4").unwrap());
    assert!(!table.update("c", "4").unwrap());
    assert!(table.contains_key("a").unwrap());
    assert!(!table.contains_key("c").unwrap());
    assert!(table.remove("a").unwrap());
    assert!(!table.remove("a").unwrap());
    assert_eq!(table.get("a").unwrap(), None);

    let mut value = b"old and long".to_vec();
    assert!(table.get_into("b", &mut value).unwrap());
    assert_eq!(value, b"3");
    assert!(!table.get_into("a", &mut value).unwrap());
}

#[test]
fn unusual_keys_and_values_are_kept() {
    let table = table();
    let long_value = vec![7; 100_000];
    for (key, value) in [
        (&b""[..], &b"the empty key"[..]),
        (b"\0", b"\0"),
        (b"\0\0", b""),
        (b"\xff\xff", &long_value),
        (&[b'x'; 1024], b"a key as long as may be"),
    ] {
        assert!(table.insert(key, value).unwrap());
        assert_eq!(table.get(key).unwrap().as_deref(), Some(value));
    }
    assert_eq!(table.range(..).count(), 5);
    assert_eq!(table.first_key_value().unwrap().unwrap().0, b"");
    assert_eq!(table.last_key_value().unwrap().unwrap(), (b"\xff\xff".to_vec(), long_value));
}

#[test]
fn compare_exchange_changes_only_what_was_expected() {
    use CompareExchange::{Exchanged, Found};
    let table = table();
    let exchange = |expected: Option<&str>, new: Option<&str>| {
        table.compare_exchange("k", expected.map(str::as_bytes), new.map(str::as_bytes)).unwrap()
    };
    assert_eq!(exchange(Some("1"), Some("2")), Found(None));
    assert_eq!(exchange(None, Some("1")), Exchanged);
    assert_eq!(exchange(None, Some("2")), Found(Some(b"1".to_vec())));
    assert_eq!(exchange(Some("1"), Some("2")), Exchanged);
    assert_eq!(exchange(Some("1"), None), Found(Some(b"2".to_vec())));
    assert_eq!(exchange(Some("2"), None), Exchanged);
    assert_eq!(exchange(None, None), Exchanged);
    assert_eq!(table.get("k").unwrap(), None);
}

#[test]
fn keys_and_values_that_do_not_fit_are_refused() {
    let db = small();
    let bytes = db.create_table("bytes", TableOptions::default()).unwrap();
    let fixed = TableOptions::default().keys(KeyFormat::Fixed(8)).values(ValueFormat::Fixed(8));
    let fixed = db.create_table("fixed", fixed).unwrap();
    let refused = |result: farleaf::Result<bool>| {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        error.to_string()
    };
    let message = refused(bytes.insert([1; 1025], "v"));
    assert!(message.contains("1025") && message.contains("bytes"), "{message}");
    refused(fixed.insert([1; 7], [1; 8]));
    refused(fixed.insert([1; 8], [1; 9]));
    refused(fixed.update([1; 8], ""));
    refused(fixed.remove([1; 9]));
    refused(fixed.contains_key(""));
    assert_eq!(fixed.get_many([[1; 7]]).unwrap_err().kind(), ErrorKind::Invalid);
    assert!(fixed.insert([1; 8], [1; 8]).unwrap());
    assert_eq!(fixed.range(..).count(), 1);
}

#[test]
fn ranges_agree_with_a_sorted_map() {
    let table = table();
    let mut model = BTreeMap::new();
    for number in 0..3000_u32 {
        let key = key(number.wrapping_mul(7919) % 10_000);
        table.insert(&key, number.to_le_bytes()).unwrap();
        model.insert(key, number.to_le_bytes().to_vec());
    }
    let of_model = |from: Bound<Vec<u8>>, to: Bound<Vec<u8>>| {
        let pairs = model.range((from, to)).map(|(key, value)| (key.clone(), value.clone()));
        pairs.collect::<Vec<_>>()
    };
    assert_eq!(collect(table.range(..)), of_model(Bound::Unbounded, Bound::Unbounded));
    for (low, high) in [(0, 10_000), (17, 18), (17, 17), (100, 5000), (9999, 20_000)] {
        let ends = [
            (Bound::Included(key(low)), Bound::Excluded(key(high))),
            (Bound::Included(key(low)), Bound::Included(key(high))),
            (Bound::Unbounded, Bound::Excluded(key(high))),
            (Bound::Excluded(key(low)), Bound::Unbounded),
        ];
        for (from, to) in ends {
            let mut expected = of_model(from.clone(), to.clone());
            assert_eq!(collect(table.range((from.clone(), to.clone()))), expected);
            expected.reverse();
            assert_eq!(collect(table.range((from, to)).rev()), expected);
        }
    }
    assert_eq!(table.range(key(5)..key(1)).count(), 0);
    assert_eq!(table.range(key(5)..=key(1)).count(), 0);
    assert_eq!(collect(table.range(..=key(70))), collect(table.range(..key(71))));
    assert_eq!(table.first_key_value().unwrap(), model.clone().pop_first());
    assert_eq!(table.last_key_value().unwrap(), model.pop_last());
}

#[test]
fn the_two_ends_of_a_range_never_meet_twice() {
    let table = table();
    let keys: Vec<_> = (0..1500).map(key).collect();
    table.insert_many(keys.iter().map(|key| (key, "v"))).unwrap();
    // Pairs from the front, then pairs from the back.
    for (front, back) in [(1, 1), (3, 1), (1, 40), (600, 600), (0, 1), (1499, 1), (17, 33)] {
        let mut range = table.range(..);
        let (mut low, mut high) = (Vec::new(), Vec::new());
        loop {
            let before = low.len() + high.len();
            low.extend(range.by_ref().take(front).map(|pair| pair.unwrap().0));
            high.extend(range.by_ref().rev().take(back).map(|pair| pair.unwrap().0));
            if before == low.len() + high.len() {
                break;
            }
        }
        high.reverse();
        assert_eq!([low, high].concat(), keys, "{front} and {back}");
        assert!(range.next().is_none() && range.next_back().is_none());
    }
}

#[test]
fn a_range_sees_changes_ahead_of_it_and_none_behind() {
    let table = table();
    table.insert_many((0..2000).map(|number| (key(number), "v"))).unwrap();
    let mut range = table.range(..);
    for number in 0..50 {
        assert_eq!(range.next().unwrap().unwrap().0, key(number));
        table.remove(key(number)).unwrap();
    }
    table.insert(key(5000), "new").unwrap();
    let rest = collect(range);
    assert_eq!(rest.first().unwrap().0, key(50));
    assert_eq!(rest.last().unwrap().0, key(5000));
    assert_eq!(rest.len(), 1951);
}

#[test]
fn prefixes_find_what_starts_with_them() {
    let table = table();
    let keys: [&[u8]; 7] = [b"", b"a", b"ab", b"ab\xff", b"ab\xff\xff", b"ac", b"\xff\xff"];
    for key in keys {
        table.insert(key, key).unwrap();
    }
    let found = |prefix: &[u8]| {
        collect(table.prefix(prefix)).into_iter().map(|(key, _)| key).collect::<Vec<_>>()
    };
    for prefix in [&b""[..], b"a", b"ab", b"ab\xff", b"b", b"\xff", b"\xff\xff", b"\xff\xff\xff"] {
        let mut expected: Vec<_> = keys.iter().filter(|key| key.starts_with(prefix)).collect();
        expected.sort();
        assert_eq!(
            found(prefix).iter().map(Vec::as_slice).collect::<Vec<_>>(),
            expected.into_iter().copied().collect::<Vec<_>>(),
            "{prefix:?}"
        );
    }
    let last = table.prefix("ab").next_back().unwrap().unwrap();
    assert_eq!(last.0, b"ab\xff\xff");
}

#[test]
fn ends_of_a_range_need_not_fit_a_fixed_length() {
    let options = TableOptions::default().keys(KeyFormat::Fixed(8)).values(ValueFormat::Fixed(8));
    let table = small().create_table("t", options).unwrap();
    for number in 0..600_u64 {
        table.insert(number.to_be_bytes(), [0; 8]).unwrap();
    }
    assert_eq!(table.range(..).count(), 600);
    assert_eq!(table.prefix([0, 0, 0, 0, 0, 0, 1]).count(), 256);
    assert_eq!(table.range(&[0, 0, 0, 0, 0, 0, 2][..]..).count(), 88);
    let just_after_9 = [&9_u64.to_be_bytes()[..], &[0]].concat();
    assert_eq!(table.range(..just_after_9).count(), 10);
    assert_eq!(table.range("z"..).count(), 0);
}

#[test]
fn many_keys_at_once() {
    let table = table();
    assert_eq!(table.insert_many((0..500).map(|number| (key(number), "v"))).unwrap(), 500);
    // Of pairs with one key the last counts, and it counts once.
    assert_eq!(table.insert_many([("a", "1"), ("b", "1"), ("a", "2")]).unwrap(), 2);
    assert_eq!(table.get("a").unwrap(), Some(b"2".to_vec()));
    assert_eq!(table.insert_many([("a", "3")]).unwrap(), 0);
    let values = table.get_many(["b", "none", "a", "b"]).unwrap();
    let values: Vec<_> = values.iter().map(Option::as_deref).collect();
    assert_eq!(values, [Some(&b"1"[..]), None, Some(b"3"), Some(b"1")]);
    assert_eq!(table.remove_many(["a", "b", "a", "none"]).unwrap(), 2);
    assert_eq!(table.remove_many((0..500).map(key)).unwrap(), 500);
    assert_eq!(table.insert_many([("", ""); 0]).unwrap(), 0);
    assert_eq!(table.get_many([""; 0]).unwrap(), Vec::<Option<Vec<u8>>>::new());
    assert_eq!(table.range(..).count(), 0);
}

#[test]
fn a_bulk_load_takes_sorted_pairs_into_an_empty_table() {
    let table = table();
    let unsorted = table.bulk_load([("a", "1"), ("c", "2"), ("b", "3")]).unwrap_err();
    assert_eq!(unsorted.kind(), ErrorKind::Invalid, "{unsorted}");
    let repeated = table.bulk_load([("a", "1"), ("a", "2")]).unwrap_err();
    assert_eq!(repeated.kind(), ErrorKind::Invalid, "{repeated}");
    assert_eq!(table.range(..).count(), 0);
    let pairs: Vec<_> = (0..20_000).map(|number| (key(number), key(number))).collect();
    assert_eq!(table.bulk_load(pairs.iter().map(|(key, value)| (key, value))).unwrap(), 20_000);
    assert_eq!(collect(table.range(..)), pairs);
    let again = table.bulk_load([("z", "1")]).unwrap_err();
    assert_eq!(again.kind(), ErrorKind::Invalid, "{again}");
    let report = table.verify().unwrap();
    assert_eq!((report.stats.keys, report.problems), (20_000, Vec::<String>::new()));
    assert_eq!(table.stats().unwrap(), report.stats);
}

/// The caller's code runs inside of a bulk load; it may use the store.
#[test]
fn the_iterator_of_a_bulk_load_may_ask_other_tables() {
    let db = small();
    let source = db.create_table("source", TableOptions::default()).unwrap();
    let target = db.create_table("target", TableOptions::default()).unwrap();
    source.insert_many((0..1000).map(|number| (key(number), key(number)))).unwrap();
    let nested = |pair: farleaf::Result<(Vec<u8>, Vec<u8>)>| {
        let (key, value) = pair.unwrap();
        assert_eq!(source.get(&key).unwrap(), Some(value.clone()));
        assert_eq!(db.clone().close().unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!(db.drop_table("source").unwrap_err().kind(), ErrorKind::Invalid);
        (key, value)
    };
    assert_eq!(target.bulk_load(source.range(..).map(nested)).unwrap(), 1000);
    assert_eq!(collect(target.range(..)), collect(source.range(..)));
    assert!(db.verify().unwrap().closes());
}

#[test]
fn handles_are_shared_between_threads() {
    fn assert_shared<T: Send + Sync + Clone>() {}
    assert_shared::<Table>();
    assert_shared::<farleaf::Farleaf>();
    assert_shared::<farleaf::AsyncTable>();
    let table = table();
    std::thread::scope(|scope| {
        for thread in 0..4_u32 {
            let table = table.clone();
            scope.spawn(move || {
                for number in 0..500 {
                    // Each thread its own keys, and one that all of them count up.
                    table.insert(key(thread * 1000 + number), "v").unwrap();
                    add_one(&table);
                }
            });
        }
    });
    assert_eq!(table.prefix("key-").count(), 2000);
    assert_eq!(table.get("sum").unwrap(), Some(2000_u64.to_le_bytes().to_vec()));
    assert_eq!(table.verify().unwrap().problems, Vec::<String>::new());
}

fn add_one(table: &Table) {
    loop {
        let old = table.get("sum").unwrap();
        let sum = old.as_deref().map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().unwrap()));
        let new = (sum + 1).to_le_bytes();
        let done = table.compare_exchange("sum", old.as_deref(), Some(&new)).unwrap();
        if done == CompareExchange::Exchanged {
            return;
        }
    }
}

/// Two threads drop the same table: one does, the other is told that there is none. (It was once told
/// that its request made no sense.) A third makes another table meanwhile, which stays usable.
#[test]
fn one_of_two_drops_a_table() {
    let db = small();
    for _ in 0..50 {
        db.create_table("t", TableOptions::default()).unwrap();
        let [one, other] = std::thread::scope(|scope| {
            let drops = [(); 2].map(|()| scope.spawn(|| db.drop_table("t")));
            let made = db.create_table("new", TableOptions::default()).unwrap();
            made.insert("k", "v").unwrap();
            drops.map(|drop| drop.join().unwrap())
        });
        let error = match (one, other) {
            (Ok(()), Err(error)) | (Err(error), Ok(())) => error,
            both => panic!("{both:?}"),
        };
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        db.drop_table("new").unwrap();
    }
}
