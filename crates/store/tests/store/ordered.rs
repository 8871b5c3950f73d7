//! Ordered tests: nearest keys, prefixes, counts and removals of ranges, and what they cost.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::OVER_NETWORK;
use crate::common::{block_on, key, small, small_with};
use farleaf::{
    Cost, Engine, ErrorKind, Farleaf, KeyFormat, OpKind, Prefix, Settings, Table, TableOptions,
};

type Pair = Option<(Vec<u8>, Vec<u8>)>;

/// All byte strings of up to `most` bytes out of {0, 1, 0xFF}.
fn strings(most: usize) -> Vec<Vec<u8>> {
    let (mut all, mut last) = (vec![Vec::new()], vec![Vec::new()]);
    for _ in 0..most {
        last = last
            .iter()
            .flat_map(|key: &Vec<u8>| [0, 1, 0xFF].map(|byte| [key.as_slice(), &[byte]].concat()))
            .collect();
        all.extend_from_slice(&last);
    }
    all
}

fn engines() -> impl Iterator<Item = Engine> {
    Engine::ALL.iter().copied().filter(|engine| !engine.is_example())
}

/// The answers of a sorted map, of `floor`, `ceiling`, `lower`, `higher` and `longest_prefix`.
fn of_model(model: &BTreeMap<Vec<u8>, Vec<u8>>, key: &[u8]) -> [Pair; 5] {
    let range = |from: Bound<&[u8]>, to: Bound<&[u8]>| model.range::<[u8], _>((from, to));
    let own =
        |pair: Option<(&Vec<u8>, &Vec<u8>)>| pair.map(|(key, value)| (key.clone(), value.clone()));
    let (any, at, beside) = (Bound::Unbounded, Bound::Included(key), Bound::Excluded(key));
    [
        own(range(any, at).next_back()),
        own(range(at, any).next()),
        own(range(any, beside).next_back()),
        own(range(beside, any).next()),
        own(model.iter().rfind(|(stored, _)| key.starts_with(stored))),
    ]
}

fn of_table(table: &Table, key: &[u8]) -> [Pair; 5] {
    [
        table.floor(key).unwrap(),
        table.ceiling(key).unwrap(),
        table.lower(key).unwrap(),
        table.higher(key).unwrap(),
        table.longest_prefix(key).unwrap(),
    ]
}

/// Keys that are prefixes of each other, and each key of up to four bytes looked for near them.
#[test]
fn the_nearest_keys_are_those_of_a_sorted_map() {
    let db = small();
    for engine in engines() {
        let options = TableOptions::default().engine(engine);
        let table = db.create_table(engine.name(), options).unwrap();
        let mut model = BTreeMap::new();
        // Empty, then with more and more of the keys of up to three bytes.
        for part in [0, 3, 7, 40] {
            for (number, key) in strings(3).into_iter().enumerate() {
                if (number * 17 + 5) % 41 < part {
                    table.insert(&key, number.to_le_bytes()).unwrap();
                    model.insert(key, number.to_le_bytes().to_vec());
                }
            }
            let asked = strings(if OVER_NETWORK { 2 } else { 4 });
            for key in asked {
                let found = of_table(&table, &key);
                assert_eq!(found, of_model(&model, &key), "{} {part} {key:?}", engine.name());
            }
        }
        // A key may be longer than those of the table.
        let long = [vec![1], vec![0; 2000]].concat();
        assert_eq!(of_table(&table, &long), of_model(&model, &long), "{}", engine.name());
        db.drop_table(engine.name()).unwrap();
    }
}

#[test]
fn keys_of_one_length_are_found_near_keys_of_any() {
    let db = small();
    for engine in engines() {
        let options = TableOptions::default().engine(engine).keys(KeyFormat::Fixed(8));
        let table = db.create_table(engine.name(), options).unwrap();
        let mut model = BTreeMap::new();
        for number in (0..1000_u64).step_by(10) {
            let (key, value) = (number.to_be_bytes(), number.to_le_bytes());
            table.insert(key, value).unwrap();
            model.insert(key.to_vec(), value.to_vec());
        }
        for number in [0, 9, 10, 11, 985, 990, 991, u64::MAX] {
            let key = number.to_be_bytes();
            for key in [&key[..], &key[..7], &[&key[..], b"\0"].concat(), b""] {
                assert_eq!(
                    of_table(&table, key),
                    of_model(&model, key),
                    "{} {key:?}",
                    engine.name()
                );
            }
        }
        db.drop_table(engine.name()).unwrap();
    }
}

#[test]
fn ranges_are_counted_and_removed() {
    let db = small();
    for engine in engines() {
        let table = db.create_table(engine.name(), TableOptions::default().engine(engine)).unwrap();
        let most = if OVER_NETWORK { 700 } else { 2_000 };
        table.insert_many((0..most).map(|number| (key(number), "v"))).unwrap();
        assert_eq!(table.count(..).unwrap(), u64::from(most));
        assert_eq!(table.count(key(10)..key(630)).unwrap(), 620);
        assert_eq!(table.count(Prefix("key-000000")).unwrap(), 100);
        assert_eq!(table.count(key(9)..key(3)).unwrap(), 0);
        assert_eq!(table.remove_range(key(10)..key(630)).unwrap(), 620);
        assert_eq!(table.remove_range(key(10)..key(630)).unwrap(), 0);
        assert_eq!(table.remove_range(key(630)..=key(631)).unwrap(), 2);
        assert_eq!(table.remove_range(key(9)..key(3)).unwrap(), 0);
        assert_eq!(table.count(..).unwrap(), u64::from(most) - 622);
        assert_eq!(table.higher(key(9)).unwrap().unwrap().0, key(632));
        assert_eq!(table.remove_range(..).unwrap(), u64::from(most) - 622);
        assert_eq!(table.first_key_value().unwrap(), None);
    }
}

/// Chunks of long values stay small: 40 MiB are counted and removed.
#[test]
fn ranges_of_long_values_are_removed_in_small_chunks() {
    let db = Farleaf::builder().pool_bytes(128 << 20).open("mem:").unwrap();
    let table = db.create_table("t", TableOptions::default()).unwrap();
    let value = vec![7; 1 << 20];
    for number in 0..40 {
        table.insert(key(number), &value).unwrap();
    }
    assert_eq!(table.count(..).unwrap(), 40);
    assert_eq!(table.remove_range(key(1)..).unwrap(), 39);
    assert_eq!(table.count(..).unwrap(), 1);
}

#[test]
fn ordered_operations_work_as_futures() {
    let db = small();
    let table = db.create_table("t", TableOptions::default()).unwrap();
    table.insert_many([("a", "1"), ("ab", "2"), ("b", "3")]).unwrap();
    let table = table.to_async();
    let pair = |key: &str, value: &str| Some((key.into(), value.into()));
    block_on(async {
        assert_eq!(table.floor("abc").await.unwrap(), pair("ab", "2"));
        assert_eq!(table.lower("ab").await.unwrap(), pair("a", "1"));
        assert_eq!(table.ceiling("ab").await.unwrap(), pair("ab", "2"));
        assert_eq!(table.higher("ab").await.unwrap(), pair("b", "3"));
        assert_eq!(table.longest_prefix("aa").await.unwrap(), pair("a", "1"));
        assert_eq!(table.longest_prefix("c").await.unwrap(), None);
        assert_eq!(table.count(Prefix("a")).await.unwrap(), 2);
        assert_eq!(table.remove_range("ab"..).await.unwrap(), 2);
        assert_eq!(table.count(..).await.unwrap(), 1);
    });
    db.close().unwrap();
    let error = block_on(table.count(..)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
}

/// Runs of an operation, of which at least one begins and ends in one epoch.
const RUNS: usize = 5;

/// The least that `op` costs in READs and compare-exchanges, of [`RUNS`] runs. The epoch moves on by the clock, and the
/// first operation after it READs the root again. Maintenance, which may run at the same time, is not in it.
pub(crate) fn cost_of<T>(db: &Farleaf, mut op: impl FnMut() -> T) -> Cost {
    let mut run = || {
        let before = db.stats().unwrap().counters;
        op();
        let spent = db.stats().unwrap().counters.since(&before);
        let mut cost = Cost::default();
        for kind in [OpKind::Get, OpKind::Scan, OpKind::CompareExchange] {
            cost += spent.kind(kind);
        }
        cost
    };
    let costs = (0..RUNS).map(|_| run());
    costs.min_by_key(|cost| (cost.round_trips, cost.bytes_read)).unwrap()
}

/// A floor of `btree` goes down as a get does; a longest prefix is one floor for each of its steps.
#[test]
fn a_longest_prefix_costs_a_floor_for_each_step() {
    let db = small();
    let table = db.create_table("t", TableOptions::default().engine(Engine::BTree)).unwrap();
    let pairs = (0..2_000).map(|number| (key(number), "value of a pair"));
    table.bulk_load(pairs).unwrap();
    table.insert("key-0", "short").unwrap();
    table.get(key(0)).unwrap();
    let floor = cost_of(&db, || table.floor(key(1_000)).unwrap());
    assert!(floor.round_trips >= 2, "{floor:?}");
    let mut three = floor;
    three += floor;
    three += floor;
    // The key itself; one with a prefix right below it; one whose floor, and the floor of what it has in common with
    // that, are none.
    let longer = [key(1_000), b"/x".to_vec()].concat();
    assert_eq!(cost_of(&db, || table.longest_prefix(key(1_000)).unwrap()), floor);
    assert_eq!(cost_of(&db, || table.longest_prefix(&longer).unwrap()), floor);
    let found = || assert_eq!(table.longest_prefix("key-0000100x").unwrap().unwrap().0, b"key-0");
    assert_eq!(cost_of(&db, found), three);
}

/// On the radix trees a longest prefix takes the round trips of a get that goes as deep, whether its last leaf is that
/// of another key, the way ends without one, or the prefix ends in a node far above.
#[test]
fn a_longest_prefix_costs_the_round_trips_of_a_get_on_radix_trees() {
    for engine in ["smart", "p-smart", "art"] {
        for cache in ["1", "16MiB"] {
            let settings = Settings::default().with("cache", cache);
            let db = small_with(Farleaf::builder().set_all(&settings));
            let options = TableOptions::default().engine(engine.parse().unwrap());
            let table = db.create_table("t", options).unwrap();
            let keys =
                ["/", "/usr/lib", "/usr/lib/x1", "/usr/lib/y1", "/usr/local", "/var", "/var/z"];
            table.insert_many(keys.map(|key| (key, key))).unwrap();
            for key in keys.iter().chain(&keys) {
                assert_eq!(table.get(key).unwrap(), Some(key.as_bytes().to_vec()));
            }
            let round_trips = |asked: &str, prefix: &str| {
                let find = || {
                    assert_eq!(table.longest_prefix(asked).unwrap().unwrap().1, prefix.as_bytes())
                };
                cost_of(&db, find).round_trips
            };
            for (asked, prefix, as_deep) in [
                ("/usr/lib/x1", "/usr/lib/x1", "/usr/lib/x1"),
                ("/usr/lib/x1/2", "/usr/lib/x1", "/usr/lib/x1"),
                ("/usr/lib/x2", "/usr/lib", "/usr/lib/x1"),
                ("/usr/lib/z", "/usr/lib", "/usr/lib/x1"),
                ("/usr/lock", "/", "/usr/local"),
                ("/var", "/var", "/var"),
            ] {
                let get =
                    cost_of(&db, || assert!(table.contains_key(as_deep).unwrap())).round_trips;
                if cache == "16MiB" {
                    assert_eq!(get, 1, "{engine} {as_deep}");
                }
                let what = format!("{engine}, cache {cache}: {asked}");
                assert_eq!(round_trips(asked, prefix), get, "{what}");
            }
        }
    }
}

/// On the hashed nodes of `dart` a longest prefix takes the round trips of a get from the root that goes as deep.
#[test]
fn a_longest_prefix_costs_the_round_trips_of_a_get_from_the_root_on_hashed_nodes() {
    let settings = Settings::default().with("est", "false");
    let db = small_with(Farleaf::builder().set_all(&settings));
    let table =
        db.create_table("t", TableOptions::default().engine("dart".parse().unwrap())).unwrap();
    let keys = ["/", "/usr/lib", "/usr/lib/x1", "/usr/lib/y1", "/usr/local", "/var", "/var/z"];
    table.insert_many(keys.map(|key| (key, key))).unwrap();
    for key in keys.iter().chain(&keys) {
        assert!(table.contains_key(key).unwrap());
    }
    for (asked, prefix, as_deep) in [
        ("/usr/lib/x1/2", "/usr/lib/x1", "/usr/lib/x1"),
        ("/usr/lib/z", "/usr/lib", "/usr/lib/x1"),
        ("/usr/lock", "/", "/usr/local"),
        ("/var", "/var", "/var"),
    ] {
        let get = cost_of(&db, || assert!(table.contains_key(as_deep).unwrap())).round_trips;
        let find =
            || assert_eq!(table.longest_prefix(asked).unwrap().unwrap().1, prefix.as_bytes());
        assert_eq!(cost_of(&db, find).round_trips, get, "{asked}");
    }
    assert_eq!(table.longest_prefix("usr").unwrap(), None);
    // Through the skip table: those of a get, if the prefix ends where it leads to, and else those from the root as well.
    let with_skip_table = small();
    let options = TableOptions::default().engine("dart".parse().unwrap());
    let entered = with_skip_table.create_table("t", options).unwrap();
    entered.insert_many(keys.map(|key| (key, key))).unwrap();
    for key in keys.iter().chain(&keys) {
        assert!(entered.contains_key(key).unwrap());
    }
    for (asked, prefix) in [
        ("/usr/lib/x1", "/usr/lib/x1"),
        ("/usr/lib/x1/2", "/usr/lib/x1"),
        ("/usr/lib/z", "/usr/lib"),
        ("/usr/lock", "/"),
    ] {
        let get = |db: &Farleaf, table: &Table| {
            cost_of(db, || assert!(table.contains_key(prefix).unwrap())).round_trips
        };
        let (by_table, by_root) = (get(&with_skip_table, &entered), get(&db, &table));
        let find = || {
            assert_eq!(entered.longest_prefix(asked).unwrap().unwrap().1, prefix.as_bytes());
        };
        let round_trips = cost_of(&with_skip_table, find).round_trips;
        println!("{asked}: {round_trips}, a get {by_table}, from the root {by_root}");
        match asked == prefix {
            true => assert_eq!(round_trips, by_table, "{asked}"),
            false => assert!(round_trips <= by_table + by_root + 1, "{asked}: {round_trips}"),
        }
    }
}

/// Keys come and go around two prefixes that stay, so that nodes split and merge on the way to them.
#[test]
fn a_prefix_that_stays_is_found_while_others_write() {
    let rounds = if OVER_NETWORK { 20 } else { 400 };
    let db = small();
    for engine in engines() {
        let table = db.create_table(engine.name(), TableOptions::default().engine(engine)).unwrap();
        table.insert_many([("a", "1"), ("a/b", "2")]).unwrap();
        let others = ["a/b/c", "a/b/", "a/", "a/b/cd", "a/bb", "", "a/b/cde", "b", "a/b/cx"];
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let (table, is_over) = (&table, &is_over);
            scope.spawn(move || {
                let mut number = 0_usize;
                while !is_over.load(Ordering::Relaxed) {
                    number = number.wrapping_mul(5) + 3;
                    let key = others[number / 7 % others.len()];
                    if number.is_multiple_of(2) {
                        table.insert(key, "other").unwrap();
                    } else {
                        table.remove(key).unwrap();
                    }
                    number += 1;
                }
            });
            for _ in 0..rounds {
                let (found, value) = table.longest_prefix("a/b/cd").unwrap().unwrap();
                assert!(b"a/b/cd".starts_with(&found[..]), "{} {found:?}", engine.name());
                assert!(found.len() >= 3, "{} {found:?}", engine.name());
                let expected = if found == b"a/b" { &b"2"[..] } else { b"other" };
                assert_eq!(value, expected, "{} {found:?}", engine.name());
            }
            is_over.store(true, Ordering::Relaxed);
        });
        db.drop_table(engine.name()).unwrap();
    }
}
