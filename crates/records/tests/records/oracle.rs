//! Oracle: random operations on a table of records, beside a map in memory that expires as it should.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::{Duration, UNIX_EPOCH};

use farleaf_engines::{AnyIndex, Content, Engine, TableFormat};
use farleaf_harness::{World, create_table};
use farleaf_index::{Entries, Index, ScanRange, Settings, Spec};
use farleaf_pool::Session;
use farleaf_records::{
    Expiry, FormatFault, Hash, Record, RecordError, RecordValue, RecordView, Records,
};
use fastrand::Rng;

/// A map that knows the time.
#[derive(Default)]
struct Model(BTreeMap<Vec<u8>, Record>);

impl Model {
    fn live(&self, key: &[u8], now_ms: u64) -> Option<&Record> {
        self.0.get(key).filter(|record| record.expires_ms.is_none_or(|at_ms| at_ms > now_ms))
    }

    fn put(&mut self, key: &[u8], record: Record) {
        self.0.insert(key.to_vec(), record);
    }

    fn all(&self, now_ms: u64) -> Vec<(Vec<u8>, Record)> {
        let live = |key: &&Vec<u8>| self.live(key, now_ms).is_some();
        self.0.keys().filter(live).map(|key| (key.clone(), self.0[key].clone())).collect()
    }
}

async fn table(session: &Session, engine: Engine) -> AnyIndex {
    let format = TableFormat::new(engine, Spec::ANY).with_content(Content::Records);
    create_table(session, "t", &format, 64, &Settings::default()).await.expect("a table")
}

fn string_of(record: Option<&Record>) -> Result<Option<&[u8]>, ()> {
    match record.map(|record| &record.value) {
        None => Ok(None),
        Some(RecordValue::String(string)) => Ok(Some(string)),
        Some(_) => Err(()),
    }
}

fn hash_of(record: Option<&Record>) -> Result<Hash, ()> {
    match record.map(|record| &record.value) {
        None => Ok(Hash::new()),
        Some(RecordValue::Hash(hash)) => Ok(hash.clone()),
        Some(_) => Err(()),
    }
}

/// The result as the oracle has it: a key of the wrong kind, or the answer.
fn told<T>(result: Result<T, RecordError>) -> Result<T, ()> {
    match result {
        Ok(answer) => Ok(answer),
        Err(RecordError::WrongKind { .. }) => Err(()),
        Err(error) => panic!("{error}"),
    }
}

#[allow(clippy::too_many_lines, reason = "one arm for each operation")]
async fn play(session: &Session, engine: Engine, seed: u64) {
    let index = table(session, engine).await;
    let clock = Cell::new(1_000_u64);
    let records = Records::new(&index, session, || clock.get());
    let (mut model, mut rng) = (Model::default(), Rng::with_seed(seed));
    for step in 0..700 {
        clock.set(clock.get() + [0, 0, 1, 7][rng.usize(..4)]);
        let now_ms = clock.get();
        let mut key = format!("key/{}", rng.u8(..24)).into_bytes();
        key.truncate(rng.usize(4..7));
        let value = [rng.u8(..), 7].repeat(rng.usize(..40));
        let expiry = match rng.u8(..6) {
            0 => Expiry::In(Duration::from_millis(rng.u64(..30))),
            1 => Expiry::At(UNIX_EPOCH + Duration::from_millis(now_ms + rng.u64(..40) - 10)),
            2 => Expiry::Keep,
            _ => Expiry::Never,
        };
        let held = model.live(&key, now_ms).cloned();
        let expires_ms = expiry.at_ms(now_ms, held.as_ref().and_then(|record| record.expires_ms));
        let new = Record { expires_ms, ..Record::string(value.clone()) };
        let field = |rng: &mut Rng| vec![b'a' + rng.u8(..5)];
        let what =
            format!("{engine}, seed {seed}, step {step}, {} at {now_ms}", key.escape_ascii());
        match rng.u8(..15) {
            0 | 1 => {
                // The answer tells only of stored keys whether they were new.
                let is_new = records.insert(&key, &value, expiry).await.expect(&what);
                assert!(!is_new || held.is_none(), "{what}");
                model.put(&key, new);
            }
            2 => {
                let expires_ms = expiry.at_ms(now_ms, None);
                let done = records.insert_new(&key, &value, expiry).await.expect(&what);
                assert_eq!(done, held.is_none(), "{what}");
                if done {
                    model.put(&key, Record { expires_ms, ..new });
                }
            }
            3 => {
                let done = records.replace(&key, &value, expiry).await.expect(&what);
                assert_eq!(done, held.is_some(), "{what}");
                if done {
                    model.put(&key, new);
                }
            }
            4 => {
                assert_eq!(records.remove(&key).await, Ok(held.is_some()), "{what}");
                model.0.remove(&key);
            }
            5 => {
                let own = string_of(held.as_ref());
                let expected = match (rng.u8(..3), &own) {
                    (0, _) => None,
                    (1, Ok(held)) => held.map(<[u8]>::to_vec),
                    _ => Some(b"another".to_vec()),
                };
                let next = rng.bool().then_some(&value[..]);
                let done = told(records.compare_exchange(&key, expected.as_deref(), next).await);
                let wanted =
                    own.map(|held| (held != expected.as_deref()).then(|| held.map(<[u8]>::to_vec)));
                assert_eq!(done, wanted, "{what}");
                match (done, next) {
                    (Ok(None), Some(next)) => model.put(&key, Record::string(next)),
                    (Ok(None), None) => drop(model.0.remove(&key)),
                    _ => {}
                }
            }
            6 => {
                let append = |held: Option<&[u8]>| Some([held.unwrap_or_default(), b"+"].concat());
                let before = told(records.update_string(&key, append).await);
                let own = string_of(held.as_ref()).map(|held| held.map(<[u8]>::to_vec));
                assert_eq!(before, own, "{what}");
                if let Ok(before) = own {
                    let expires_ms = held.and_then(|record| record.expires_ms);
                    let string = [before.unwrap_or_default(), b"+".to_vec()].concat();
                    model.put(&key, Record { expires_ms, ..Record::string(string) });
                }
            }
            7 | 8 => {
                let fields = [(field(&mut rng), value.clone()), (field(&mut rng), vec![1])];
                let done = told(records.hash_set(&key, &fields).await);
                let mut hash = hash_of(held.as_ref());
                if let Ok(hash) = &mut hash {
                    let new = fields
                        .iter()
                        .map(|(name, _)| name)
                        .filter(|name| !hash.contains_key(*name));
                    let mut new: Vec<_> = new.cloned().collect();
                    new.dedup();
                    assert_eq!(done, Ok(new.len()), "{what}");
                    hash.extend(fields);
                    let expires_ms = held.and_then(|record| record.expires_ms);
                    model.put(&key, Record { value: RecordValue::Hash(hash.clone()), expires_ms });
                } else {
                    assert_eq!(done, Err(()), "{what}");
                }
            }
            9 => {
                let fields = [field(&mut rng), field(&mut rng)];
                let done = told(records.hash_remove(&key, &fields).await);
                let hash = hash_of(held.as_ref());
                let count =
                    |hash: &mut Hash| fields.iter().filter(|it| hash.remove(*it).is_some()).count();
                let mut left = hash.clone().unwrap_or_default();
                assert_eq!(done, hash.map(|_| count(&mut left)), "{what}");
                if let (Ok(_), Some(record)) = (done, held) {
                    match left.is_empty() {
                        true => drop(model.0.remove(&key)),
                        false => {
                            model.put(&key, Record { value: RecordValue::Hash(left), ..record })
                        }
                    }
                }
            }
            10 => {
                let done = records.set_expiry(&key, expiry).await.expect(&what);
                assert_eq!(done, held.is_some(), "{what}");
                if let Some(record) = held {
                    model.put(&key, Record { expires_ms, ..record });
                }
            }
            11 => {
                let mut value = b"before".to_vec();
                let found = told(records.get(&key, &mut value).await);
                let own = string_of(held.as_ref());
                assert_eq!(found, own.map(|held| held.is_some()), "{what}");
                if let Ok(Some(own)) = own {
                    assert_eq!(value, own, "{what}");
                }
                let fields = [field(&mut rng), field(&mut rng)];
                let values = told(records.hash_get(&key, &fields).await);
                let own = hash_of(held.as_ref());
                let own = own.map(|hash| fields.iter().map(|it| hash.get(it).cloned()).collect());
                assert_eq!(values, own, "{what}");
                let expires_ms = records.expires_ms(&key).await.expect(&what);
                assert_eq!(expires_ms, held.map(|record| record.expires_ms), "{what}");
            }
            12 => {
                let (reverse, limit) = (rng.bool(), rng.usize(1..30));
                let range = ScanRange { from: Bound::Included(&key), reverse, ..ScanRange::ALL };
                let mut found = Entries::new();
                records.scan_records(range, limit, &mut found).await.expect(&what);
                let found: Vec<_> = found
                    .iter()
                    .map(|(key, bytes)| {
                        (key.to_vec(), RecordView::read(bytes).expect("a record").to_record())
                    })
                    .collect();
                let mut wanted = model.all(now_ms);
                wanted.retain(|(it, _)| *it >= key);
                if reverse {
                    wanted.reverse();
                }
                wanted.truncate(limit);
                assert_eq!(found, wanted, "{what}");
            }
            13 => {
                let mut found = Entries::new();
                let result = told(records.longest_prefix(&key, &mut found).await);
                let all = model.all(now_ms);
                let wanted = all.iter().rev().find(|(it, _)| key.starts_with(it));
                let string = string_of(wanted.map(|(_, record)| record));
                assert_eq!(result, string.map(drop), "{what}");
                if string.is_ok() {
                    assert_eq!(
                        found.get(0).map(|(it, _)| it),
                        wanted.map(|(it, _)| &it[..]),
                        "{what}"
                    );
                }
            }
            _ => {
                let swept = records.sweep(ScanRange::ALL, 1_000).await.expect(&what);
                assert_eq!(swept.last, None);
                let left = records.sweep(ScanRange::ALL, 1_000).await.expect(&what);
                assert_eq!(
                    (left.removed, left.looked),
                    (0, model.all(now_ms).len() as u64),
                    "{what}"
                );
            }
        }
        assert_eq!(
            records.record(&key).await.expect(&what),
            model.live(&key, now_ms).cloned(),
            "{what}"
        );
    }
}

#[test]
fn every_engine_does_what_the_oracle_says() {
    for engine in Engine::ALL.iter().filter(|engine| crate::is_chosen(engine)) {
        for seed in 0..2 * crate::soak() {
            World::default().on_mapped(async |session| play(&session, *engine, seed).await);
            World::default().on_sim(async |session| play(&session, *engine, 100 + seed).await);
        }
    }
}

/// No operation changes what it cannot read, except to remove it.
#[test]
fn a_record_of_a_later_version_stays_as_it_is() {
    World::default().on_mapped(async |session| {
        let index = table(&session, Engine::default()).await;
        let records = Records::new(&index, &session, || 5);
        let later = [0x42, 1, 2, 3];
        index.upsert(&session, b"k", &later).await.expect("room");
        let is_later = |error: RecordError| match error {
            RecordError::Format { key, fault } => {
                (key, fault) == (b"k".to_vec(), FormatFault::Later(0x42))
            }
            _ => false,
        };
        assert!(records.get(b"k", &mut Vec::new()).await.is_err_and(is_later));
        assert!(records.record(b"k").await.is_err_and(is_later));
        assert!(records.set_expiry(b"k", Expiry::Never).await.is_err_and(is_later));
        assert!(records.hash_set(b"k", &[("a", "b")]).await.is_err_and(is_later));
        assert!(records.insert_new(b"k", b"v", Expiry::Never).await.is_err_and(is_later));
        assert!(records.compare_exchange(b"k", None, Some(b"v")).await.is_err_and(is_later));
        assert!(records.scan(ScanRange::ALL, 9, &mut Entries::new()).await.is_err_and(is_later));
        let swept = records.sweep(ScanRange::ALL, 9).await.expect("a sweep");
        assert_eq!((swept.looked, swept.removed), (1, 0));
        let mut value = Vec::new();
        assert_eq!(index.get(&session, b"k", &mut value).await, Ok(true));
        assert_eq!(value, later);
        assert_eq!(records.remove(b"k").await, Ok(true));
    });
}

/// A string, or a hash, that would not fit changes nothing.
#[test]
fn what_is_too_long_is_refused() {
    // Blocks with room for the longest value.
    let world = World { region_bytes: 64 << 20, block_bytes: 4 << 20, ..World::default() };
    world.on_mapped(async |session| {
        let index = table(&session, Engine::default()).await;
        let records = Records::new(&index, &session, || 5);
        let long = vec![7; 1 << 20];
        assert_eq!(records.hash_set(b"k", &[("a", "b")]).await, Ok(1));
        for error in [
            records.insert(b"k", &long, Expiry::Never).await.map(drop),
            records.hash_set(b"k", &[(&b"long"[..], &long[..])]).await.map(drop),
        ] {
            let text = error.expect_err("too long").to_string();
            assert!(text.contains("at most 1048576"), "{text}");
        }
        assert_eq!(records.hash(b"k").await.map(|hash| hash.len()), Ok(1));
        assert_eq!(records.insert(b"k", &long[1..], Expiry::Never).await, Ok(false));
    });
}
