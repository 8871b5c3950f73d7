//! Records tests: expiry and hashes through the public API.
#![allow(clippy::unwrap_used)]

use std::thread;
use std::time::{Duration, SystemTime};

use crate::common::{block_on, small};
use crate::ordered::cost_of;
use farleaf::{
    Answer, CompareExchange, Content, Engine, ErrorKind, Expiry, Farleaf, KeyFormat, Operation,
    RecordChange, RecordValue, Table, TableOptions, ValueFormat,
};

const SHORT: Expiry = Expiry::In(Duration::from_millis(40));

fn wait() {
    thread::sleep(Duration::from_millis(45));
}

fn table(db: &Farleaf, name: &str, engine: Engine) -> Table {
    let options = TableOptions::default().engine(engine).content(Content::Records);
    db.create_table(name, options).unwrap()
}

fn fields(pairs: &[(&str, &str)]) -> Vec<(Vec<u8>, Vec<u8>)> {
    pairs
        .iter()
        .map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec()))
        .collect()
}

/// Every way to read a table hides what has expired, at once.
#[test]
fn what_has_expired_is_absent_everywhere() {
    let db = small();
    for engine in Engine::ALL {
        let table = table(&db, engine.name(), *engine);
        table.insert_many([("a", "1"), ("c", "3"), ("e", "5")]).unwrap();
        let put_all = || {
            for key in ["b", "c/x", "d"] {
                table.insert_with(key, b"gone".to_vec(), SHORT).unwrap();
            }
        };
        let left = [("a", "1"), ("c", "3"), ("e", "5")]
            .map(|(key, value)| (key.as_bytes().to_vec(), value.as_bytes().to_vec()));
        put_all();
        assert_eq!(table.count(..).unwrap(), 6);
        assert_eq!(table.floor("d5").unwrap().unwrap().1, b"gone");
        wait();
        // Each looks first: what one has met is removed.
        assert_eq!(table.count(..).unwrap(), 3, "{engine}");
        for look in 0..8 {
            put_all();
            wait();
            match look {
                0 => assert_eq!(table.get("b").unwrap(), None),
                1 => assert_eq!(table.range(..).collect::<Result<Vec<_>, _>>().unwrap(), left),
                2 => assert_eq!(table.floor("d5").unwrap(), Some(left[1].clone())),
                3 => assert_eq!(table.longest_prefix("c/x/y").unwrap(), Some(left[1].clone())),
                4 => assert!(!table.contains_key("d").unwrap()),
                5 => assert_eq!(table.get_many(["a", "b"]).unwrap(), [Some(b"1".to_vec()), None]),
                6 => assert!(table.insert_new("b", "new").unwrap() && table.remove("b").unwrap()),
                _ => assert!(!table.remove("d").unwrap() && !table.update("b", "x").unwrap()),
            }
        }
        assert_eq!(table.range(..).rev().count(), 3, "{engine}");
        put_all();
        wait();
        let swept = table.sweep_expired(.., 100).unwrap();
        assert_eq!((swept.looked, swept.removed, swept.last), (6, 3, None), "{engine}");
        assert!(table.verify().unwrap().problems.is_empty());
    }
}

#[test]
fn a_plain_insert_drops_the_expiry_and_a_change_keeps_it() {
    let db = small();
    let table = table(&db, "t", Engine::default());
    let now = SystemTime::now();
    let at = now + Duration::from_secs(1000);
    table.insert_with("k", b"1".to_vec(), Expiry::At(at)).unwrap();
    let far = |table: &Table| {
        let at = table.expiry("k").unwrap().expect("present").expect("an expiry");
        at.duration_since(now).unwrap() > Duration::from_secs(999)
    };
    assert!(far(&table));
    table.update_with("k", |held| Some([held.unwrap(), b"+"].concat())).unwrap();
    assert!(far(&table));
    table.insert_with("k", b"2".to_vec(), Expiry::Keep).unwrap();
    assert!(far(&table));
    assert!(table.set_expiry("k", Expiry::Never).unwrap());
    assert_eq!(table.expiry("k").unwrap(), Some(None));
    assert!(table.set_expiry("k", Expiry::At(at)).unwrap());
    table.insert("k", "3").unwrap();
    assert_eq!(table.expiry("k").unwrap(), Some(None));
    assert!(table.set_expiry("k", Expiry::At(now - Duration::from_secs(1))).unwrap());
    assert_eq!((table.get("k").unwrap(), table.expiry("k").unwrap()), (None, None));
    assert!(!table.set_expiry("k", Expiry::Never).unwrap());
}

#[test]
fn hashes_and_strings_are_told_apart() {
    let db = small();
    let table = table(&db, "t", Engine::default());
    assert_eq!(table.hash_set("h", fields(&[("a", "1"), ("b", "2")])).unwrap(), 2);
    assert_eq!(table.hash_set("h", fields(&[("b", "3"), ("c", "4")])).unwrap(), 1);
    assert_eq!(table.hash_len("h").unwrap(), 3);
    let all = table.hash("h").unwrap();
    assert_eq!(all.into_iter().collect::<Vec<_>>(), fields(&[("a", "1"), ("b", "3"), ("c", "4")]));
    let count = table
        .hash_update_with("h", |hash| {
            let count = hash.len() as u64;
            hash.insert(b"count".to_vec(), count.to_string().into_bytes());
            Ok(count)
        })
        .unwrap();
    assert_eq!(count, 3);
    assert_eq!(table.hash_remove("h", vec![b"count".to_vec(), b"x".to_vec()]).unwrap(), 1);
    table.insert("s", "string").unwrap();
    for error in [
        table.get("h").unwrap_err(),
        table.range(..).next().unwrap().unwrap_err(),
        table.update_with("h", |_| None).unwrap_err(),
        table.compare_exchange("h", None, Some(b"x")).unwrap_err(),
        table.hash("s").unwrap_err(),
        table.hash_set("s", fields(&[("a", "1")])).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::WrongType, "{error}");
        assert!(error.to_string().starts_with("table \"t\": the key \""), "{error}");
    }
    assert!(table.contains_key("h").unwrap() && table.contains_key("s").unwrap());
    assert_eq!(table.longest_run(["h", "s", "absent", "h"]).unwrap(), 2);
    let kinds: Vec<bool> = table
        .range_records(..)
        .map(|pair| matches!(pair.unwrap().1.value, RecordValue::Hash(_)))
        .collect();
    assert_eq!(kinds, [true, false]);
    let strings = |range| {
        let pair = |pair: farleaf::Result<(Vec<u8>, Option<Vec<u8>>)>| pair.unwrap();
        table.range_strings(range).map(pair).collect::<Vec<_>>()
    };
    let [h, s] = [(b"h".to_vec(), None), (b"s".to_vec(), table.get("s").unwrap())];
    assert_eq!(strings("a"..), [h.clone(), s.clone()]);
    assert_eq!(table.range_strings(..).next_back().unwrap().unwrap(), s);
    assert_eq!(strings("i"..), [s]);
    assert_eq!(table.count(..).unwrap(), 2);
    assert_eq!(table.remove_range(..).unwrap(), 2);
}

/// As raw values are, and with one operation as its documentation counts them.
#[test]
fn records_cost_the_remote_operations_of_raw_values() {
    let db = small();
    let records = table(&db, "records", Engine::default());
    let raw = db.create_table("raw", TableOptions::default()).unwrap();
    for table in [&records, &raw] {
        table.insert_many((0..2_000).map(|at| (format!("{at:04}"), "value"))).unwrap();
    }
    records.hash_set("1000h", fields(&[("a", "1"), ("b", "2")])).unwrap();
    let get = cost_of(&db, || raw.get("1000").unwrap());
    assert!(get.round_trips > 1, "a tree of several levels");
    assert_eq!(cost_of(&db, || records.get("1000").unwrap()), get);
    assert_eq!(cost_of(&db, || records.hash("1000h").unwrap()).round_trips, get.round_trips);
    let exchange = |table: &Table| {
        let (mut held, mut next) = (*b"value", *b"other");
        cost_of(&db, || {
            let done = table.compare_exchange("1000", Some(&held), Some(&next)).unwrap();
            assert_eq!(done, CompareExchange::Exchanged);
            std::mem::swap(&mut held, &mut next);
        })
    };
    let change = exchange(&raw);
    assert_eq!(exchange(&records), change);
    let mut count = 0;
    let set = cost_of(&db, || {
        count += 1;
        records.hash_set("1000h", fields(&[("a", &format!("{count}")), ("c", "3")])).unwrap()
    });
    assert_eq!(set.round_trips, get.round_trips + change.round_trips);
}

#[test]
fn a_table_keeps_its_content() {
    let pool = crate::common::SharedPool::new("records");
    let db = pool.open();
    let made = table(&db, "t", Engine::default());
    assert_eq!(made.info().content, Content::Records);
    made.insert_with("k", b"v".to_vec(), Expiry::In(Duration::from_secs(100))).unwrap();
    let raw = db.create_table("raw", TableOptions::default()).unwrap();
    assert_eq!(raw.info().content, Content::Raw);
    let other = pool.open();
    let opened = other.table("t").unwrap();
    assert_eq!(opened.info(), made.info());
    assert_eq!(opened.get("k").unwrap(), Some(b"v".to_vec()));
    assert!(opened.expiry("k").unwrap().flatten().is_some());
    let contents: Vec<_> = other.tables().unwrap().into_iter().map(|it| it.content).collect();
    assert_eq!(contents, [Content::Records, Content::Raw]);
    // Raw tables stay raw.
    raw.insert("k", [0x42, 0, 1]).unwrap();
    assert_eq!(raw.get("k").unwrap(), Some(vec![0x42, 0, 1]));
    for error in [
        raw.expiry("k").unwrap_err(),
        raw.hash("k").unwrap_err(),
        raw.insert_with("k", Vec::new(), Expiry::Never).unwrap_err(),
        raw.sweep_expired(.., 1).unwrap_err(),
        raw.range_records(..).next().unwrap().unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("\"raw\" holds raw values"), "{error}");
    }
    let fixed = TableOptions::default().values(ValueFormat::Fixed(8)).content(Content::Records);
    let error = db.create_table("u", fixed).unwrap_err();
    assert!(error.to_string().contains("records have no fixed length"), "{error}");
    let keys = TableOptions::default().keys(KeyFormat::Fixed(2)).content(Content::Records);
    let short = db.create_table("v", keys).unwrap();
    short.bulk_load([("ab", "1"), ("cd", "2")]).unwrap();
    assert_eq!(short.get("cd").unwrap(), Some(b"2".to_vec()));
}

#[test]
fn a_batch_mixes_records_with_all_else() {
    let db = small();
    let table = table(&db, "t", Engine::default());
    table.hash_set("h", fields(&[("a", "1")])).unwrap();
    let answers = table.run_batch([
        Operation::InsertWith("k", "v", Expiry::In(Duration::from_secs(100))),
        Operation::Record("k"),
        Operation::Record("h"),
        Operation::Get("h"),
        Operation::Record("absent"),
    ]);
    let answers = answers.unwrap();
    assert_eq!(answers[0].as_ref().unwrap(), &Answer::Flag(true));
    let of = |at: usize| match &answers[at] {
        Ok(Answer::Record(record)) => record.clone(),
        other => panic!("{other:?}"),
    };
    assert!(of(1).is_some_and(|record| record.expires_ms.is_some()));
    assert!(matches!(of(2).unwrap().value, RecordValue::Hash(hash) if hash.len() == 1));
    assert_eq!(answers[3].as_ref().unwrap_err().kind(), ErrorKind::WrongType);
    assert_eq!(of(4), None);
}

#[test]
fn futures_do_the_same() {
    let db = small();
    let table = table(&db, "t", Engine::default()).to_async();
    block_on(async {
        table.insert_with("k", b"1".to_vec(), SHORT).await?;
        assert_eq!(table.hash_set("h", fields(&[("a", "1")])).await?, 1);
        wait();
        assert_eq!(table.get("k").await?, None);
        assert_eq!(table.hash_get("h", vec![b"a".to_vec()]).await?, [Some(b"1".to_vec())]);
        let before = table.update_record("h", |_| Ok(RecordChange::Remove)).await?;
        assert!(before.is_some());
        assert_eq!(table.scan(.., 10).await?, []);
        Ok::<(), farleaf::Error>(())
    })
    .unwrap();
}
