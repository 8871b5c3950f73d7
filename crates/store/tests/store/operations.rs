//! Operation tests: batches of mixed operations, changes by what a key holds, runs of keys.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use crate::OVER_NETWORK;
use crate::common::{block_on, key, small, table};
use crate::ordered::cost_of;
use farleaf::{Answer, CompareExchange, Cost, Engine, ErrorKind, Expiry, Operation, TableOptions};

/// A generator of numbers below a bound.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % bound
    }
}

/// The answer of a sorted map to an operation.
fn of_model(model: &mut BTreeMap<Vec<u8>, Vec<u8>>, operation: &Operation) -> Answer {
    match operation.clone() {
        Operation::Get(key) => Answer::Value(model.get(&key).cloned()),
        Operation::Insert(key, value) => Answer::Flag(model.insert(key, value).is_none()),
        Operation::InsertNew(key, value) => {
            let is_new = !model.contains_key(&key);
            model.entry(key).or_insert(value);
            Answer::Flag(is_new)
        }
        Operation::Update(key, value) => {
            Answer::Flag(model.get_mut(&key).map(|held| *held = value).is_some())
        }
        Operation::Remove(key) => Answer::Flag(model.remove(&key).is_some()),
        Operation::CompareExchange { key, expected, new } => {
            let held = model.get(&key).cloned();
            if held != expected {
                return Answer::Exchange(CompareExchange::Found(held));
            }
            match new {
                Some(new) => drop(model.insert(key, new)),
                None => drop(model.remove(&key)),
            }
            Answer::Exchange(CompareExchange::Exchanged)
        }
        operation => panic!("no model of {operation:?}"),
    }
}

#[test]
fn a_batch_answers_as_its_operations_one_by_one() {
    let db = small();
    for engine in Engine::ALL.iter().filter(|engine| !engine.is_example()) {
        let table =
            db.create_table(engine.name(), TableOptions::default().engine(*engine)).unwrap();
        let (mut model, mut numbers) = (BTreeMap::new(), Numbers(41));
        for _ in 0..if OVER_NETWORK { 5 } else { 30 } {
            let operations: Vec<Operation> = (0..numbers.below(120))
                .map(|_| {
                    // Few keys, so that many operations of a batch share one.
                    let key = key(numbers.below(40) as u32);
                    let mut value = || numbers.below(3).to_le_bytes().to_vec();
                    let (first, second) = (value(), value());
                    match numbers.below(7) {
                        0 | 1 => Operation::Get(key),
                        2 => Operation::Insert(key, first),
                        3 => Operation::InsertNew(key, first),
                        4 => Operation::Update(key, first),
                        5 => Operation::Remove(key),
                        _ => {
                            let expected = Some(first).filter(|it| it[0] > 0);
                            let new = Some(second).filter(|it| it[0] > 0);
                            Operation::CompareExchange { key, expected, new }
                        }
                    }
                })
                .collect();
            let expected: Vec<Answer> =
                operations.iter().map(|operation| of_model(&mut model, operation)).collect();
            let answers = table.run_batch(operations).unwrap();
            let answers: Vec<Answer> = answers.into_iter().map(Result::unwrap).collect();
            assert_eq!(answers, expected, "{}", engine.name());
        }
        db.drop_table(engine.name()).unwrap();
    }
}

/// A copy of this match in the gateway once lacked two kinds, and made removes of them.
#[test]
fn a_borrowed_operation_is_the_same_operation() {
    let bytes = |text: &str| text.as_bytes().to_vec();
    let (key, value) = (bytes("key"), bytes("value"));
    let exchange = |expected: Option<&str>, new: Option<&str>| Operation::CompareExchange {
        key: bytes("key"),
        expected: expected.map(bytes),
        new: new.map(bytes),
    };
    for operation in [
        Operation::Get(key.clone()),
        Operation::Insert(key.clone(), value.clone()),
        Operation::InsertNew(key.clone(), value.clone()),
        Operation::Update(key.clone(), value.clone()),
        Operation::Remove(key.clone()),
        Operation::Record(key.clone()),
        Operation::InsertWith(key.clone(), value.clone(), Expiry::Keep),
        Operation::InsertWith(key, value, Expiry::In(Duration::from_secs(7))),
        exchange(Some("a"), None),
        exchange(None, Some("b")),
    ] {
        assert_eq!(format!("{:?}", operation.borrowed()), format!("{operation:?}"));
    }
}

#[test]
fn an_operation_that_fails_stops_no_other() {
    let table = table();
    let long = "k".repeat(1025);
    let operations = [
        Operation::Insert("a", "1"),
        Operation::Insert(&long, "2"),
        Operation::Get("a"),
        Operation::Get(&long),
    ];
    let check = |answers: Vec<farleaf::Result<Answer>>, is_new: bool| {
        assert_eq!(answers.len(), 4);
        assert_eq!(answers[0].as_ref().unwrap(), &Answer::Flag(is_new));
        assert_eq!(answers[2].as_ref().unwrap(), &Answer::Value(Some(b"1".to_vec())));
        for failed in [&answers[1], &answers[3]] {
            let error = failed.as_ref().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains("1025"), "{error}");
        }
    };
    check(table.run_batch(operations.clone()).unwrap(), true);
    check(block_on(table.to_async().run_batch(operations)).unwrap(), false);
    assert_eq!(table.run_batch(Vec::<Operation>::new()).unwrap().len(), 0);
}

#[test]
fn operations_of_dropped_tables_and_closed_stores_fail() {
    let db = small();
    let table = db.create_table("t", TableOptions::default()).unwrap();
    db.drop_table("t").unwrap();
    let kind = |error: farleaf::Error| error.kind();
    assert_eq!(kind(table.run_batch([Operation::Get("a")]).unwrap_err()), ErrorKind::NotFound);
    assert_eq!(kind(table.update_with("a", |_| None).unwrap_err()), ErrorKind::NotFound);
    assert_eq!(kind(table.longest_prefix("a").unwrap_err()), ErrorKind::NotFound);
    assert_eq!(kind(table.remove_range(..).unwrap_err()), ErrorKind::NotFound);
    db.close().unwrap();
    assert_eq!(kind(table.run_batch([Operation::Get("a")]).unwrap_err()), ErrorKind::Closed);
}

fn add_one(held: Option<&[u8]>) -> Option<Vec<u8>> {
    let count = held.map_or(0, |held| u64::from_le_bytes(held.try_into().unwrap()));
    Some((count + 1).to_le_bytes().to_vec())
}

#[test]
fn a_change_by_what_a_key_holds_is_one_step() {
    let table = table();
    assert_eq!(table.update_with("k", |_| None).unwrap(), None);
    assert_eq!(table.get("k").unwrap(), None);
    let (threads, each) = (4, if OVER_NETWORK { 25 } else { 500 });
    thread::scope(|scope| {
        for number in 0..threads {
            let table = &table;
            scope.spawn(move || {
                for _ in 0..each {
                    if number % 2 == 0 {
                        table.update_with("k", add_one).unwrap();
                    } else {
                        block_on(table.to_async().update_with("k", add_one)).unwrap();
                    }
                }
            });
        }
    });
    let held = table.update_with("k", |_| None).unwrap().unwrap();
    assert_eq!(held, u64::to_le_bytes(threads * each));
    assert_eq!(table.get("k").unwrap(), None);
}

/// A change that returns what it was given writes nothing.
#[test]
fn a_change_costs_a_get_and_a_compare_exchange() {
    let db = small();
    let table = db.create_table("t", TableOptions::default()).unwrap();
    table.insert("k", 1_u64.to_le_bytes()).unwrap();
    let get = cost_of(&db, || table.get("k").unwrap());
    let mut held = 1_u64;
    let mut both = cost_of(&db, || {
        let (from, to) = (held.to_le_bytes(), (held + 1).to_le_bytes());
        let done = table.compare_exchange("k", Some(&from), Some(&to)).unwrap();
        assert_eq!(done, CompareExchange::Exchanged);
        held += 1;
    });
    both += get;
    assert_eq!(cost_of(&db, || table.update_with("k", add_one).unwrap()), both);
    let same = |held: Option<&[u8]>| held.map(<[u8]>::to_vec);
    assert_eq!(cost_of(&db, || table.update_with("k", same).unwrap()), get);
}

/// A key that others change before every attempt.
#[test]
fn a_change_that_others_always_forestall_ends() {
    let table = table();
    let other = table.clone();
    let mut attempts = 0_u64;
    let error = table
        .update_with("k", |_| {
            attempts += 1;
            other.insert("k", attempts.to_le_bytes()).unwrap();
            Some(b"mine".to_vec())
        })
        .unwrap_err();
    assert_eq!((error.kind(), attempts), (ErrorKind::Unavailable, 1_000), "{error}");
    assert_eq!(table.get("k").unwrap(), Some(1_000_u64.to_le_bytes().to_vec()));
}

#[test]
fn a_run_ends_at_the_first_absent_key() {
    let table = table();
    let run = |keys: &[u32]| table.longest_run(keys.iter().map(|number| key(*number))).unwrap();
    let all: Vec<u32> = (0..200).collect();
    assert_eq!((run(&[]), run(&all)), (0, 0));
    table.insert_many(all.iter().map(|number| (key(*number), "v"))).unwrap();
    assert_eq!(run(&all), 200);
    for absent in [199, 150, 97, 96, 95, 33, 32, 31, 1, 0] {
        table.remove(key(absent)).unwrap();
        assert_eq!(run(&all), absent as usize);
        let keys: Vec<_> = all.iter().map(|number| key(*number)).collect();
        assert_eq!(block_on(table.to_async().longest_run(keys)).unwrap(), absent as usize);
    }
    assert_eq!(run(&[5, 5, 5, 0, 5]), 3);
    let long = vec![b'k'; 1025];
    assert_eq!(table.longest_run([key(5), long]).unwrap_err().kind(), ErrorKind::Invalid);
}

/// Reads of keys behind the part with the first absent key are not begun.
#[test]
fn a_run_reads_parts_of_doubling_length() {
    let db = small();
    let table = db.create_table("t", TableOptions::default()).unwrap();
    table.bulk_load((0..1_000).map(|number| (key(number), "v"))).unwrap();
    let get = cost_of(&db, || table.get(key(0)).unwrap());
    table.remove(key(40)).unwrap();
    let keys: Vec<_> = (0..1_000).map(key).collect();
    let reads = cost_of(&db, || assert_eq!(table.longest_run(&keys).unwrap(), 40)).reads;
    assert_eq!(
        get,
        Cost {
            reads: get.reads,
            round_trips: get.reads,
            bytes_read: get.bytes_read,
            ..Cost::default()
        }
    );
    let (least, most) = (41 * get.reads, (32 + 64) * get.reads);
    assert!((least..=most).contains(&reads), "{reads} of {least} to {most}");
}
